"""A release of two tiny models, built by the command line; tests that change it change a copy."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_release import accel, write_model, write_release


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of models, release file and store, and what ``accel release build --json`` printed."""
    folder = tmp_path_factory.mktemp("release")
    file = write_release(folder, {name: write_model(folder / f"{name}.onnx", seed) for seed, name in enumerate("ab")})
    done = accel("release", "build", file, "--store", folder / "store", "--json")
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)
