"""The site builds without a warning and asks nobody; commands and code blocks in README and the tutorials work.

The tutorials are run as they stand, in one folder, page after page. Of README, each command is parsed by the command
line and its job is checked on files of the kinds that it names; test_readme.py runs them. ``NOT_PARSED`` lists what
is not a command of accel's.
"""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import accel
from accel import cli, pipeline
from accel.core import environments

ROOT = Path(accel.__file__).parents[1]
TUTORIALS = ("first-ten-minutes", "your-own-model", "serving", "tuning", "releasing")
SKIPPED = re.compile(r"<!-- not run: (.+) -->")
NEEDS = re.compile(r"<!-- needs: (.+) -->")
NOT_PARSED = {
    "make demo": "two commands of a fresh clone: benchmarks/clean_system.sh runs them on an empty Debian",
    "make test": "as make demo",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed: pip install 'accel[docs]'")
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(out)]
    env = os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


class _Links(HTMLParser):
    """Collects what a browser would fetch for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag in ("script", "img", "iframe", "source") and found.get("src"):
            self.fetched.append(str(found["src"]))
        if tag == "link" and found.get("rel") != "canonical":
            self.fetched.append(str(found.get("href")))


def test_the_site_fetches_nothing_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        links = _Links()
        links.feed(page.read_text())
        for link in links.fetched:
            assert not re.match(r"(https?:)?//", link), (page, link)
            assert (page.parent / link.partition("?")[0]).exists() or page.name == "404.html", (page, link)


def test_the_reference_names_everything(site):
    from accel.builders import targets

    api = (site / "reference" / "api.html").read_text()
    assert [name for name in accel.__all__ if name != "NEWEST" and f'id="accel.{name}"' not in api] == []
    commands = (site / "reference" / "commands.html").read_text()
    for word in ("accel convert", "--max-p99-ms", "accel zoo check", "--mixed-lengths"):
        assert word in commands
    known = (site / "reference" / "targets.html").read_text()
    assert all(f"<code>{name}</code>" in known for name in targets.discover())


def test_the_schemas_hold_real_files(site):
    import jsonschema

    run = json.loads((site / "reference" / "run.schema.json").read_text())
    real = json.loads((ROOT / "docs" / "benchmarks" / "bert" / "run.json").read_text())
    fresh = accel.core.values.to_json(accel.Result(ROOT / "docs" / "benchmarks" / "bert").document)
    jsonschema.validate(fresh, run)
    assert set(real) <= set(run["properties"]) | {"schema"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(fresh | {"variants": "none"}, run)
    job = json.loads((site / "reference" / "job.schema.json").read_text())
    example = {
        "source": "model.onnx",
        "targets": ["ort"],
        "shape": {"x": [1, 3, 64, 64]},
        "max_shape": "x:4x3x64x64",
        "range": {"ids": [0, 9]},
        "gate": {"int8": 25},
        "objective": "latency",
        "options": {"openvino": {"frontend": "tensorflow"}},
        "triton": {"max_batch_size": 4},
        "ensemble": True,
    }
    jsonschema.validate(example, job)
    for wrong in ({"targts": "ort"}, {"rounds": "many"}, {"objective": "speed"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, job)


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Return the fenced blocks of a page: language, text, and the remark above it."""
    found = re.findall(r"(?:^(<!-- [^\n]+ -->)\n)?^```(\w+)\n(.*?)^```$", page.read_text(), re.M | re.S)
    return [(language, text, remark) for remark, language, text in found]


@pytest.mark.filterwarnings("ignore::FutureWarning")  # torch's own, of its exporter
@pytest.mark.campaign
def test_the_tutorials_run_as_they_stand(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    command = tmp_path / "bin" / "accel"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m accel "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    run, left_out = 0, []
    for name in TUTORIALS:
        scope: dict[str, Any] = {"__name__": "__main__"}
        for language, text, remark in blocks(ROOT / "docs" / "tutorials" / f"{name}.md"):
            if (why := SKIPPED.fullmatch(remark)) or (
                (needs := NEEDS.fullmatch(remark)) and not environments.installed(needs[1])
            ):
                left_out.append(why[1] if why else remark)
                continue
            run += 1
            if language == "python":
                exec(compile(text, f"{name}.md", "exec"), scope)
            else:
                assert language == "console"
                done = subprocess.run(["bash", "-e", "-c", text], capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{name}.md: {text}\n{done.stdout}\n{done.stderr}"
    assert run >= 16
    with capsys.disabled():
        print("".join(f"\nnot run: {why}" for why in left_out), end=" ")


@pytest.fixture
def named_files(tmp_path: Path) -> Path:
    """Make files of the kinds that README names."""
    import numpy as np
    import onnx
    import torch
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "model.onnx"
    )
    np.savez(tmp_path / "real.npz", x=np.ones((300, 3), np.float32))
    (tmp_path / "net.py").write_text("def build(): ...\n")
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(1, 3),)), tmp_path / "program.pt2")
    (tmp_path / "my-bert-folder").mkdir()
    (tmp_path / "my-bert-folder" / "config.json").write_text('{"architectures": ["BertModel"], "model_type": "bert"}')
    (tmp_path / "saved_model").mkdir()
    (tmp_path / "saved_model" / "saved_model.pb").write_bytes(b"")
    (tmp_path / "job.yaml").write_text("source: model.onnx\ntargets: ort\n")
    return tmp_path


def readme_commands() -> list[str]:
    lines = re.findall(r"^    (.+)$", (ROOT / "README.md").read_text(), re.M)
    return [line.partition(" # ")[0].strip() for line in lines if line.startswith(("accel ", "make "))]


def test_every_command_of_the_readme_is_one_of_ours(named_files, monkeypatch):
    from typer.main import get_command

    monkeypatch.chdir(named_files)
    jobs: list[accel.Job] = []

    def stop(job: accel.Job, progress: Any) -> None:
        jobs.append(job)
        raise accel.AccelError("the job is what was wanted")

    monkeypatch.setattr(pipeline, "convert", stop)
    found = [line for line in readme_commands() if line not in NOT_PARSED]
    assert len(found) >= 19
    for line in found:
        words = shlex.split(line)[1:]
        if words[0] == "convert":
            with pytest.raises(accel.AccelError, match="the job is what was wanted"):
                cli.app(words, standalone_mode=False)
            assert jobs[-1].wanted, line
        else:
            group, command = get_command(cli.app), words[0]
            name, inner, rest = group.resolve_command(
                group.make_context("accel", [command], resilient_parsing=True), words
            )
            if hasattr(inner, "commands") and rest:
                name, inner, rest = inner.resolve_command(inner.make_context(name, rest, resilient_parsing=True), rest)
            inner.make_context(name, rest)


def test_a_command_that_is_not_ours_would_be_found(named_files):
    from typer.main import get_command

    group = get_command(cli.app)
    with pytest.raises(Exception, match="No such option"):
        group.commands["lint"].make_context("lint", ["folder", "--triton-relase", "26.06"])
