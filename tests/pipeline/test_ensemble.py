"""A conversion that also emits an ensemble, as a job asks for it."""

from pathlib import Path
from typing import Any

import pytest
from tiny_run import convert

from accel.core.errors import UsageError
from accel.triton import manifest as manifests
from accel.triton.verify import verify

STEP = """
def total(inputs):
    return {"total": inputs["hidden"].sum(axis=2)}
"""


def asked(file: Path, dtype: str = "float32") -> dict[str, Any]:
    outputs = [{"name": "total", "dtype": dtype, "dims": ["batch", "seq"]}]
    return {"pre": None, "post": {"function": f"{file}:total", "outputs": outputs}}


@pytest.mark.slow
def test_a_step_of_the_user_s_is_in_the_repository_and_in_its_key(factory, tmp_path):
    file, out = tmp_path / "mine.py", tmp_path / "run"
    file.write_text(STEP)
    convert(factory, out, "null", ensemble=asked(file))
    root = out / "repositories/null@cpu"
    assert [f for f in verify(root) if f.severity == "error"] == []
    assert manifests.read(root).models == ("tiny", "tiny_post", "tiny_pipeline")
    emitted = {p.name for p in (out / ".store").glob("emit-null*")}
    file.write_text(STEP + "\n# changed\n")
    document = convert(factory, out, "null", ensemble=asked(file, "float64"))
    assert {p.name for p in (out / ".store").glob("emit-null*")} == emitted
    (variant,) = document["variants"]
    assert (variant["status"], variant["cached"]) == ("failed", True)
    assert "'total' is float32, declared float64" in variant["reason"]


@pytest.mark.slow
def test_a_source_that_declares_no_steps_ends_before_anything_is_built(factory, tmp_path):
    with pytest.raises(UsageError, match="nothing says how text or pictures become the inputs of tiny"):
        convert(factory, tmp_path / "run", "null", ensemble=True)
    assert {p.name.partition("-")[0] for p in (tmp_path / "run/.store").iterdir()} == {"source"}
    assert not (tmp_path / "run/run.json").exists()
