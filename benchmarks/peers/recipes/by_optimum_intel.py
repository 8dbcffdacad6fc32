"""Optimum-Intel's static INT8 by NNCF with one's own calibration data, as its page shows: ``… MODEL TEXTS OUT``."""

import json
import sys
from pathlib import Path

from datasets import Dataset
from optimum.intel import OVConfig, OVModelForFeatureExtraction, OVQuantizationConfig, OVQuantizer
from transformers import AutoTokenizer

folder, texts, out = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
lines = [json.loads(line)["text"] for line in Path(texts).read_text().splitlines()]
data = Dataset.from_list([dict(tokenizer(line)) for line in lines])
model = OVModelForFeatureExtraction.from_pretrained(folder, export=True)
OVQuantizer.from_pretrained(model).quantize(
    calibration_dataset=data,
    ov_config=OVConfig(quantization_config=OVQuantizationConfig()),
    save_directory=out,
)
