"""A tiny model of one's own, and how the tests convert it."""

from pathlib import Path
from typing import Any

from accel import pipeline
from accel.core.progress import Progress
from accel.run.job import assemble

FACTORY = '''
import numpy as np
import torch

class Tiny(torch.nn.Module):
    """Embeds ids, mixes them, gives a vector per position: small, but with integers, a mask and two dynamic axes."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(50, 16)
        self.first = torch.nn.Linear(16, 32)
        self.second = torch.nn.Linear(32, 16)

    def forward(self, ids, scale):
        hidden = self.embed(ids) * scale
        return {"hidden": self.second(torch.tanh(self.first(hidden)))}

def build():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    feeds = [
        {"ids": rng.integers(0, 50, (1, 5)), "scale": rng.random((1, 1, 1), dtype=np.float32) + 0.5} for _ in range(400)
    ]
    return Tiny(), feeds

class Hashing(torch.nn.Module):
    """int64 arithmetic that must not be done in int32: a multiplicative hash into a small table."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 8)

    def forward(self, ids):
        return {"hidden": self.embed((ids * 2654435761 + 12345) % 1000003 % 64)}

def hashing():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    return Hashing(), [{"ids": rng.integers(0, 2**31, (1, 4))} for _ in range(400)]

def raises():
    class Bad(torch.nn.Module):
        def forward(self, x):
            raise RuntimeError("this forward raises")
    return Bad(), [{"x": np.ones((1, 3), np.float32)}]

class Unexportable(torch.nn.Module):
    def forward(self, x):
        return x * float(x.sum().item() > 0)
'''
SHAPES = {
    "min_shape": ["ids:1x1,scale:1x1x1"],
    "shape": ["ids:1x5,scale:1x1x1"],
    "max_shape": ["ids:4x9,scale:4x1x1"],
    "range": ["ids=0:49"],
}


def convert(
    factory: Path, out: Path, targets: str, function: str = "build", progress: Progress | None = None, **given: Any
) -> dict[str, Any]:
    """Convert the tiny model with short rounds."""
    asked = {
        "source": f"{factory}:{function}",
        "targets": targets,
        "out": out,
        "threads": 1,
        "rounds": 3,
        "round_s": 0.05,
        **SHAPES,
        **given,
    }
    command = f"accel convert {asked['source']} --targets {targets} -o {out}"
    return pipeline.convert(assemble(asked, None, command=command), progress)
