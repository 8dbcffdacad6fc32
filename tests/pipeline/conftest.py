"""The tiny model converted for real; the run is shared by the tests that only read it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_run import FACTORY, convert


@pytest.fixture(scope="session")
def factory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("source") / "tiny.py"
    file.write_text(FACTORY)
    return file


@pytest.fixture(scope="session")
def run(factory: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """One whole run: the framework, two real rivals, the null target, and one that cannot be built here."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    document = convert(factory, out, "torch,ort,openvino-fp32,null,trt-fp16", static=True)
    assert json.loads((out / "run.json").read_text()) == document
    return document, out
