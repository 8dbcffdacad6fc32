"""A run directory belongs to one model: what else lies in a folder is neither mixed with a run nor buried under one."""

import json
import shutil
from pathlib import Path

import pytest
from tiny_run import convert

from accel.core.errors import OutputError
from accel.run.job import Job, assemble
from accel.run.run_json import check_folder


def job(source: Path | str, out: Path) -> Job:
    return assemble({"source": str(source), "targets": "ort", "out": out}, None, command="accel convert")


def listing(folder: Path) -> dict[str, int]:
    return {p.relative_to(folder).as_posix(): p.stat().st_mtime_ns for p in folder.rglob("*")}


def test_another_models_run_is_refused_and_untouched(run, factory, tmp_path):
    document, out = run
    before = listing(out)
    with pytest.raises(OutputError, match=r"holds the run of another model: .*tiny\.py:build") as caught:
        convert(factory, out, "ort", function="hashing")
    assert "-o DIR" in (caught.value.fix or "")
    assert listing(out) == before
    check_folder(job(f"{factory}:build", out))
    store = tmp_path / "killed"  # before run.json was there
    shutil.copytree(out / ".store", store / ".store")
    check_folder(job(f"{factory}:build", store))
    with pytest.raises(OutputError, match="another model"):
        check_folder(job(f"{factory}:hashing", store))
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed" / "run.json").write_text(json.dumps(document))
    with pytest.raises(OutputError, match="another model"):
        check_folder(job("bert", tmp_path / "listed"))


def test_the_same_content_elsewhere_is_the_same_model(run, tmp_path):
    """Of a file: a factory's content is known only when it was called."""
    _, out = run
    onnx = tmp_path / "a" / "model.onnx"
    shutil.copytree(out / "onnx", onnx.parent)
    folder = tmp_path / "run"
    file = folder / ".store" / "source-0" / "value.json"
    file.parent.mkdir(parents=True)
    described = {"kind": "onnx", "reference": str(onnx), "key": job(onnx, folder).request and _key(onnx, folder)}
    file.write_text(json.dumps({"value": {"source": described}}))
    moved = shutil.copytree(onnx.parent, tmp_path / "b") / "model.onnx"
    check_folder(job(moved, folder))
    other = tmp_path / "c" / "model.onnx"
    other.parent.mkdir()
    _changed(onnx, other)
    with pytest.raises(OutputError, match="another model"):
        check_folder(job(other, folder))
    _changed(onnx, onnx)  # trained again, in its old place
    check_folder(job(onnx, folder))


def _key(path: Path, folder: Path) -> str | None:
    from accel.exporters.sources import content_key

    return content_key(job(path, folder).request)


def _changed(source: Path, target: Path) -> None:
    import onnx

    model = onnx.load(source)
    model.doc_string = "changed"
    onnx.save(model, target)


def test_a_folder_full_of_other_files_is_not_filled(factory, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "data").mkdir()
    with pytest.raises(OutputError, match=r"holds other files \(data, thesis\.tex\) and no run of accel"):
        convert(factory, tmp_path, "ort")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "thesis.tex"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".gitkeep").touch()
    check_folder(job(f"{factory}:build", tmp_path / "empty"))
    check_folder(job(f"{factory}:build", tmp_path / "new"))


@pytest.mark.parametrize("out", ["/proc/foo", "/dev/null", "/dev/null/x", "x" * 300])
def test_a_folder_that_cannot_be_is_refused(factory, out):
    with pytest.raises(OutputError, match="cannot write to") as caught:
        convert(factory, Path(out), "ort")
    assert "another folder" in (caught.value.fix or "")
