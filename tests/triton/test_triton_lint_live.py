"""The linter against the real server, and on the repositories that the other tests serve."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from lint_repositories import MODEL_PY, Files, add, python_base, swap, write
from test_triton_lint_server_cases import (
    ACCEPTED,
    ENSEMBLES,
    IO,
    OUT,
    PYTHON,
    RESHAPES,
    SINGLE,
    SOUND,
    UNBATCHED,
)

from accel.core import environments
from accel.core.processing import CustomStep, Pipeline, carried
from accel.core.values import TensorSpec
from accel.triton import ensemble
from accel.triton.lint import lint
from accel.triton.servers import server

FLAGS = ("--exit-on-error=false", "--strict-readiness=false", "--disable-auto-complete-config")
STEPS = """
def before(inputs):
    return {"input_ids": inputs["numbers"], "attention_mask": 0 * inputs["numbers"] + 1}


def after(inputs):
    return {"total": inputs["pooled"].sum(axis=1, keepdims=True)}
"""


def cases() -> dict[str, Files]:
    """Return the server's cases by name, the ones it refuses and the ones it takes."""
    found: dict[str, Files] = {name: files for name, (files, _) in ENSEMBLES.items()}
    found |= {f"{name} accepted": files for name, files in ACCEPTED.items()}
    for name, (text, _, _) in RESHAPES.items():
        for kind, line in (("input", IO), ("output", OUT)):
            found[f"{name} {kind} batched"] = add(line.format(text))(python_base())
            found[f"{name} {kind} unbatched"] = swap(*UNBATCHED, line.format(text))(python_base())
    # Fields younger than the embedded server, and a case of two models that overlap, stay out.
    later = ("no_buckets", "empty_metric_family", "ensemble_scheduling_set")
    found |= {name: edit(python_base()) for name, (edit, _) in SINGLE.items() if name not in later}
    return found


def served(files: Files, tag: str) -> Files:
    """Put every model on the Python backend, the only one of the embedded server, under a name of its own."""
    folders = {path.partition("/")[0] for path in files}
    own = {f for f in folders if f"{f}/1/model.py" in files}
    models = {f for f in folders - own if "python" in str(files.get(f"{f}/config.pbtxt"))}
    models |= {f for f in folders - own if "identity" in str(files.get(f"{f}/config.pbtxt"))}
    changed: dict[str, bytes | str | None] = {f"{tag}{f}/1/model.py": MODEL_PY for f in models}
    for path, content in files.items():
        if path.endswith("config.pbtxt"):
            text = str(content).replace('"identity"', '"python"')
            content = re.sub(r'(?m)(^name: "|\bmodel_name: ")', rf"\1{tag}", text)
        if not (content is None and path.partition("/")[0] in models):
            changed[f"{tag}{path}"] = content
    return changed


def test_the_server_refuses_what_lint_calls_an_error_and_loads_the_rest(tmp_path):
    """One server on all cases at once: a case loads if and only if lint finds no error in it."""
    assert len(cases()) > 70
    judge(tmp_path, cases(), FLAGS)


def test_python_models_that_complete_themselves(tmp_path):
    """With auto-complete on, the server runs what lint reads."""
    unknown = ("what cannot be known", "a dict that changed")  # they need names that are not there
    sound = {name: files for name, files in SOUND.items() if "m/1/model.py" in files and name not in unknown}
    text = "CHOICE = False"
    run = {
        name: {k: f"{text}\n{v}" if k.endswith(".py") else v for k, v in files.items()} for name, files in sound.items()
    }
    judge(tmp_path, {**PYTHON, **run}, FLAGS[:2])


def judge(tmp_path: Path, cases: Mapping[str, Files], flags: Sequence[str]) -> None:
    from tritonclient import grpc

    assert environments.installed("triton"), "the embedded server is not installed: make environments"
    judged: dict[str, tuple[str, list[str]]] = {}
    for index, (name, files) in enumerate(cases.items()):
        tag = f"c{index:03d}_"
        alone = write(tmp_path / "alone" / tag, served(files, tag))
        judged[tag] = (name, [f.why for f in lint(alone, "24.10") if f.severity == "error"])
        write(tmp_path / "all", served(files, tag))
    with (
        server.start(tmp_path / "all", via="embedded", log=tmp_path / "log", timeout_s=240, flags=flags) as running,
        grpc.InferenceServerClient(running.endpoint.grpc) as client,
    ):
        models = client.get_model_repository_index().models
    wrong = []
    for tag, (name, errors) in judged.items():
        own = [m for m in models if m.name.startswith(tag)]
        assert own, name
        refused = [f"{m.name}: {m.reason}" for m in own if m.state != "READY"]
        if bool(refused) != bool(errors):
            wrong.append(f"{name}: server {refused}, lint {errors}")
    assert wrong == []
    assert len(judged) == len(cases)


@pytest.mark.parametrize("target", ["ort", "ort-int8-dynamic", "openvino", "torch", "null", "aoti"])
def test_no_error_on_repositories_of_real_builds(live, target):
    found = lint(live.root(target), "26.08")
    assert {f.field for f in found} <= {"unverified"}, found


@pytest.mark.parametrize("backend", ["python", "onnxruntime", "aoti"])
def test_no_error_on_an_ensemble_of_accels(bench, tmp_path, backend):
    artifact = bench.artifact(backend)
    bench.emit(artifact)
    path = tmp_path / "mine.py"
    path.write_text(STEPS)
    file = carried(path, "the test's steps")
    numbers, total = TensorSpec("numbers", "int64", ("batch", "seq")), TensorSpec("total", "float32", ("batch", 1))
    pipeline = Pipeline(CustomStep(file, "before", (numbers,), ()), CustomStep(file, "after", ("pooled",), (total,)))
    added = ensemble.add(bench.root(artifact), pipeline)
    assert lint(bench.root(artifact), "26.05") == ()
    config = bench.root(artifact) / added[-1] / "config.pbtxt"
    config.write_text(config.read_text().replace('key: "numbers"', 'key: "words"'))
    (finding, *_) = lint(bench.root(artifact), "26.05")
    assert (finding.severity, finding.file) == ("error", f"{added[-1]}/config.pbtxt")
