"""Olive's workflow of conversion, transformer fusion and ONNX Runtime's quantisation: ``… MODEL SAMPLES OUT KIND``.

Its own ``optimize`` command knows language models alone; ``olive run`` is what its documentation shows for others.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import olive
from olive.data.registry import Registry


class Samples:
    """The samples as Olive's calibration reads them: pairs of a feed and a label."""

    def __init__(self, file: str) -> None:
        self.feeds: dict[str, dict[str, np.ndarray]] = {}
        with np.load(file) as stored:
            for key in stored.files:
                point, _, name = key.partition("/")
                self.feeds.setdefault(point, {})[name] = stored[key]

    def __len__(self) -> int:
        return len(self.feeds)

    def __getitem__(self, index: int) -> tuple[dict[str, np.ndarray], int]:
        return self.feeds[str(index)], 0


@Registry.register_dataset("samples")
def samples(data_dir: str, **_: Any) -> Samples:
    """Return the samples of a file."""
    return Samples(data_dir)


@Registry.register_dataloader("as_they_are")
def as_they_are(dataset: Samples, **_: Any) -> list[tuple[dict[str, np.ndarray], int]]:
    """Return the samples one by one, each at its own shape."""
    return [dataset[n] for n in range(len(dataset))]


model, file, out, kind = sys.argv[1:]
given: dict[str, Any] = {"type": "ONNXModel", "model_path": model}
passes: dict[str, Any] = {}
if not model.endswith(".onnx"):
    given = {"type": "HfModel", "model_path": model, "task": "feature-extraction"}
    passes["conversion"] = {"type": "OnnxConversion", "use_dynamo_exporter": True}
    passes["fusion"] = {"type": "OrtTransformersOptimization", "model_type": "bert"}
if kind == "int8-dynamic":
    passes["int8"] = {"type": "OnnxDynamicQuantization"}
elif kind == "int8-static":
    passes["int8"] = {"type": "OnnxStaticQuantization", "data_config": "samples", "quant_format": "QDQ"}
if not passes:
    passes["peephole"] = {"type": "OnnxPeepholeOptimizer"}
config = {
    "input_model": given,
    "systems": {
        "here": {
            "type": "LocalSystem",
            "accelerators": [{"device": "cpu", "execution_providers": ["CPUExecutionProvider"]}],
        }
    },
    "data_configs": [
        {
            "name": "samples",
            "type": "DataContainer",
            "load_dataset_config": {"type": "samples", "params": {"data_dir": file}},
            "pre_process_data_config": {"type": "skip_pre_process"},
            "post_process_data_config": {"type": "skip_post_process"},
            "dataloader_config": {"type": "as_they_are"},
        }
    ],
    "passes": passes,
    "target": "here",
    "host": "here",
    "cache_dir": str(Path(out, "cache")),
    "output_dir": str(Path(out, "m")),
}
olive.run(config)
