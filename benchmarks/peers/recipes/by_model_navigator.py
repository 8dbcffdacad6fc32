"""Model Navigator's ``optimize`` for this CPU, as its quick start shows: ``… MODEL SAMPLES OUT``."""

import shutil
import sys
from pathlib import Path

import model_navigator as nav
import numpy as np
import torch


def main(source: str, samples: str, out: str) -> None:
    """Optimise, and copy what is best."""
    feeds: dict[str, dict[str, np.ndarray]] = {}
    with np.load(samples) as stored:
        for key in stored.files:
            point, _, name = key.partition("/")
            feeds.setdefault(point, {})[name] = stored[key]
    common = {"target_device": nav.DeviceKind.CPU, "workspace": Path(out, "work")}
    if source.endswith(".onnx"):
        package = nav.onnx.optimize(model=source, dataloader=list(feeds.values()), **common)
    else:
        from transformers import AutoModel

        package = nav.torch.optimize(
            model=AutoModel.from_pretrained(source).eval(),
            dataloader=[{name: torch.from_numpy(value) for name, value in feed.items()} for feed in feeds.values()],
            **common,
        )
    best = package.get_best_model_status(include_source=source.endswith(".onnx"))
    path = package.get_model_path(best.model_config.key)
    shutil.copyfile(path, Path(out, f"chosen{path.suffix}"))


if __name__ == "__main__":  # it starts processes that import this file
    main(*sys.argv[1:])
