"""The matrix over the six models that differ most, reduced: the main job on each, and no cell that failed."""

import json
from pathlib import Path
from typing import Any

import pytest

import model_zoo
from accel import pipeline
from accel.builders.targets import discover
from accel.cli.zoo import zoo_check
from accel.core.errors import CheckFailed, InputError, UsageError
from accel.core.values import Target
from accel.release import zoo_matrix
from accel.run.job import assemble

SHORT, LONG = "dlrm", ("text-recognition", "inception-v3", "gpt2", "yolo", "whisper-encoder")
SIX = (SHORT, *(pytest.param(name, marks=pytest.mark.campaign) for name in LONG))
FRAMEWORKS = {"torch": {"torch", "torch-bf16", "aoti"}, "tensorflow": {"tf", "tf-xla"}}
"""Targets that start from a framework's own model, and so are skipped for the other's."""

NOTHING_TO_DO = {
    *((name, "ort-int8-dynamic") for name in ("yolo", "inception-v3", "text-recognition")),
    ("dlrm", "ort-int8"),
}
"""Dynamic quantisation works on matrix products, and a network of convolutions has none or one; of a product with a
bias, which is a Gemm for it, ONNX Runtime makes no integer kernel."""


@pytest.mark.slow
@pytest.mark.parametrize("name", SIX)
def test_no_cell_of_the_matrix_fails(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brief = {target: {"search_s": 5.0} for target in ("openvino", "openvino-bf16", "openvino-int8")}
    monkeypatch.setattr(zoo_matrix, "assemble", lambda given, *a, **k: assemble({**given, "options": brief}, *a, **k))
    [row] = zoo_matrix.check((name,), folder=tmp_path, targets="cpu")
    assert zoo_matrix.failures([row]) == []
    assert row["source"] == f"{name}@small"
    foreign = set().union(*(names for framework, names in FRAMEWORKS.items() if framework != row["framework"]))
    builders = discover()
    for cell in row["variants"]:
        absent = builders[cell["target"]].available(Target(cell["target"], "cpu"))
        if cell["target"] in foreign or absent is not None or (name, cell["target"]) in NOTHING_TO_DO:
            expected = {"skipped"}
        elif cell["effective_precision"] != "fp32":
            expected = {"ok", "gate_failed"}  # weights that nobody trained need not hold INT8 or BF16
        else:
            expected = {"ok"}
        assert cell["status"] in expected, f"{cell['id']}: {cell['reason']}"
        if cell["status"] in ("ok", "gate_failed"):
            assert cell["build_s"] > 0
            assert cell["effective_precision"]
            assert cell["found"]
        else:
            assert cell["reason"]
    assert [d["chosen"] is not None for d in row["decisions"]] == [True]
    assert json.loads((tmp_path / f"{name}.json").read_text()) == row
    assert f"| {name} | " in (tmp_path / "zoo.md").read_text()


def test_a_model_that_cannot_be_loaded_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    refs = tmp_path / "cache" / "models--google-bert--bert-base-uncased"
    known = model_zoo.entry("bert")
    folder = refs / "snapshots" / str(known.revision)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{")
    (folder / "model.safetensors").write_bytes(b"")
    rows = zoo_matrix.check(("bert", "autoencoder"), folder=tmp_path / "out", full=True, targets="null")
    assert [row["error"] is None for row in rows] == [False, True]
    assert zoo_matrix.failures(rows)[0].startswith("bert: null@cpu: ")
    assert [v["status"] for v in rows[1]["variants"]] == ["gate_failed"]
    with pytest.raises(CheckFailed, match="bert: null@cpu: "):
        zoo_check(["bert"], full=True, targets="null", out=tmp_path / "out", quiet=True)


def test_what_cannot_be_checked_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown model 'dlrn' \(did you mean dlrm\?\)"):
        zoo_matrix.check(("autoencoder", "dlrn"), folder=tmp_path, targets="cpu")
    with pytest.raises(UsageError, match="unknown target 'orrt'"):
        zoo_matrix.check(("autoencoder",), folder=tmp_path, targets="orrt")
    assert list(tmp_path.iterdir()) == []


def row(model: str, *cells: tuple[str, str, str | None]) -> dict[str, Any]:
    variants = [
        {
            "id": id,
            "target": id.partition("@")[0],
            "static": id.partition("+")[2] or None,
            "status": status,
            "reason": reason,
            "fix": None,
            "build_s": None if status == "skipped" else 2.5,
            "p50_ms": 0.125 if status == "ok" else None,
        }
        for id, status, reason in cells
    ]
    hardware = {"id": "cpu-2"}
    return {"model": model, "created": "2026-01-02T00:00:00Z", "hardware": hardware, "variants": variants}


ROWS = [
    row("one", ("ort@cpu", "ok", None), ("tf@cpu", "skipped", "no | TensorFlow"), ("openvino@cpu+1x8", "ok", None)),
    row("two", ("openvino@cpu", "failed", "boom\nlong log"), ("tf@cpu", "skipped", "no | TensorFlow")),
]


def test_rows_that_were_checked_apart_add_up(tmp_path: Path) -> None:
    for made in ROWS:
        (tmp_path / f"{made['model']}.json").write_text(json.dumps(made))
    zoo_matrix.write(tmp_path)
    assert [r["model"] for r in zoo_matrix.read(tmp_path)] == ["one", "two"]
    assert zoo_matrix.columns(ROWS) == ["ort", "tf", "openvino", "openvino+static"]
    text = (tmp_path / "zoo.md").read_text()
    assert "| one | ok<br>2.50 s<br>0.125 ms | skipped | · | ok<br>2.50 s<br>0.125 ms |" in text
    assert "- **failed** `openvino`: two: boom\n" in text
    assert "- **skipped** `tf`: one, two: no \\| TensorFlow" in text
    assert zoo_matrix.failures(ROWS) == ["two: openvino@cpu: boom\nlong log"]
    (tmp_path / "one.json").write_text("{}")
    with pytest.raises(InputError, match=r"one\.json is not a row"):
        zoo_matrix.write(tmp_path)


@pytest.mark.parametrize("rows", [ROWS, ROWS * 3])
def test_the_terminal_shows_the_longer_side_downwards(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console

    many = [{**r, "model": f"{r['model']}{i}"} for i, r in enumerate(rows)]
    console = Console(width=120)
    with console.capture() as shown:
        console.print(zoo_matrix.table(many))
    assert shown.get().split()[0] == ("target" if len(many) < 4 else "model")


@pytest.mark.slow
def test_a_fixed_shape_is_proved_on_what_can_be_compared(tmp_path: Path) -> None:
    """The keys that a decoder gives have an axis of their own: a padded answer could not be cut back to its size."""
    given = {"source": "gpt2@small", "targets": "openvino-fp32", "out": tmp_path, "static": True, "rounds": 2}
    job = assemble({**given, "round_s": 0.05, "objective": "latency"}, None, command="accel convert gpt2@small")
    found = {v["id"]: v for v in pipeline.convert(job)["variants"]}
    static = found["openvino-fp32@cpu+1x1"]
    assert static["status"] == "ok", static["reason"]
    assert 0 < static["parity"]["feeds"] < found["openvino-fp32@cpu"]["parity"]["feeds"]
