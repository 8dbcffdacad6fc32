"""Where ranges are measured: never on the feeds that judge, where there are any others."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from accel.builders.calibration import range_feeds
from accel.core.feeds import write_feeds
from accel.core.values import FileRef, TensorSpec


def test_ranges_come_from_calibration_then_from_what_the_gate_leaves(tmp_path: Path) -> None:
    for number, name in enumerate(("calibration", "ranges", "gate")):
        write_feeds(tmp_path / f"{name}.npz", {"0": {"x": np.full((1, 2), number, np.float32)}})
    of = {name: FileRef(f"{name}.npz", "", 0) for name in ("calibration", "ranges", "gate")}

    def found(**samples: FileRef | None) -> float:
        request = SimpleNamespace(
            samples=SimpleNamespace(**dict.fromkeys(of) | samples),
            samples_folder=str(tmp_path),
            source=SimpleNamespace(inputs=(TensorSpec("x", "float32", ("batch", 2)),)),
            variant=SimpleNamespace(static=None),
        )
        (feed,) = range_feeds(request)  # type: ignore[arg-type]
        return float(feed["x"][0, 0])

    assert found(**of) == 0
    assert found(ranges=of["ranges"], gate=of["gate"]) == 1
    assert found(gate=of["gate"]) == 2
