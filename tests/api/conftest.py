"""One tiny module, optimised once for all tests of the API."""

import json
from pathlib import Path

import pytest
import tiny_module

import accel


@pytest.fixture(scope="session")
def result(tmp_path_factory: pytest.TempPathFactory) -> accel.Result:
    """The nested module, optimised from memory for two targets."""
    out = tmp_path_factory.mktemp("api") / "run"
    events: list[accel.Event] = []
    found = accel.optimize(
        tiny_module.module(),
        tiny_module.samples(),
        targets="torch,ort,openvino-fp32",
        objective="latency",
        gate={"sqnr_db": 60.0},
        out=out,
        rounds=2,
        round_s=0.02,
        progress=events.append,
    )
    (out / "events.json").write_text(json.dumps([[e.kind, e.id, e.text] for e in events]))
    return found


@pytest.fixture(scope="session")
def run_dir(result: accel.Result) -> Path:
    return result.path
