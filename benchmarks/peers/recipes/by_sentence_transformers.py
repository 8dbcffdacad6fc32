"""sentence-transformers' other backends, as its page on faster inference shows: ``… MODEL TEXTS OUT PART``."""

import sys
from pathlib import Path

from sentence_transformers import SentenceTransformer

model, texts, out, part = sys.argv[1:]
folder = Path(out)
if part == "onnx":
    SentenceTransformer(model, backend="onnx", device="cpu").save_pretrained(out)
elif part == "onnx-o3":
    from sentence_transformers import export_optimized_onnx_model

    export_optimized_onnx_model(SentenceTransformer(model, backend="onnx", device="cpu"), "O3", out)
elif part == "onnx-int8":
    from sentence_transformers import export_dynamic_quantized_onnx_model

    export_dynamic_quantized_onnx_model(SentenceTransformer(model, backend="onnx", device="cpu"), "avx512_vnni", out)
elif part == "openvino":
    SentenceTransformer(model, backend="openvino", device="cpu").save_pretrained(out)
else:
    from optimum.intel import OVQuantizationConfig
    from sentence_transformers import export_static_quantized_openvino_model

    data = folder / "data"
    data.mkdir()
    (data / "train.jsonl").write_text(Path(texts).read_text())
    export_static_quantized_openvino_model(
        SentenceTransformer(model, backend="openvino", device="cpu"),
        OVQuantizationConfig(),
        out,
        dataset_name=str(data),
        dataset_config_name="default",
        dataset_split="train",
        column_name="text",
    )
