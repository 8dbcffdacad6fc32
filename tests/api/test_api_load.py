"""``accel.load`` in a process that has NumPy, accel's core and one runtime, and nothing else."""

import dataclasses
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_module
import torch

import accel
from accel.core.errors import InputError, SampleError, UnavailableError, UsageError

HERE = Path(accel.__file__).parent
SCRIPT = """
import sys
sys.path[:] = [p for p in sys.path if "site-packages" not in p and "dist-packages" not in p] + [{site!r}]
import numpy as np
import accel
with accel.load({path!r}, threads=1) as model:
    bias = np.zeros((1, 3, 16), np.float32)
    found = model(np.array([[1, 2, 3]]), mask=np.ones((1, 3), np.float32), extra={{"bias": bias}})
import json
others = {{"torch", "transformers", "onnx", "pydantic", "typer", "rich"}}
foreign = sorted({{m.partition(".")[0] for m in sys.modules}} & others)
print(json.dumps([found["logits"].tolist(), len(found["rest"]), foreign]))
"""


def alone(folder: Path, *packages: str) -> Path:
    """Make a folder of packages with links to these alone."""
    site = folder / "site"
    site.mkdir()
    (site / "accel").symlink_to(HERE)
    for package in packages:
        home = Path(importlib.util.find_spec(package).origin).parent
        for found in (home, *home.parent.glob(f"{package}.libs"), *home.parent.glob(f"{package}-*.dist-info")):
            (site / found.name).symlink_to(found)
    return site


@pytest.mark.parametrize(("id", "runtime"), [("ort@cpu", "onnxruntime"), ("openvino-fp32@cpu", "openvino")])
def test_it_needs_the_runtime_alone(result, tmp_path, id, runtime):
    site = alone(tmp_path, "numpy", runtime)
    script = SCRIPT.format(site=str(site), path=str(result.variants[id].repository))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    logits, rest, foreign = json.loads(done.stdout)
    assert foreign == []
    assert rest == 3
    sample = {"ids": torch.tensor([[1, 2, 3]]), "mask": torch.ones(1, 3), "extra": {"bias": torch.zeros(1, 3, 16)}}
    np.testing.assert_allclose(logits, result.best(**sample)["logits"].numpy(), atol=1e-5)


def test_without_its_runtime_it_says_what_to_install(result, tmp_path):
    site = alone(tmp_path, "numpy")
    script = SCRIPT.format(site=str(site), path=str(result.variants["ort@cpu"].repository))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False)
    assert "UnavailableError" in done.stderr
    assert "pip install onnx" in done.stderr


def test_a_run_directory_means_its_best_variant(result):
    with accel.load(result.path) as model:
        assert model.id == result.decision.chosen


def test_what_a_run_built_loads_without_a_repository(result):
    sample = tiny_module.samples(1)[0]
    with accel.load(result.variants["ort@cpu"].folder) as model:
        torch.testing.assert_close(model(**sample)["logits"], result.best(**sample)["logits"], atol=1e-5, rtol=1e-4)
    with pytest.raises(InputError, match="has no variant"):
        accel.load(result.path / "variants" / "trt@cuda")


def test_what_did_not_pass_its_gate_is_loaded_with_a_warning(result, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(result.path, run, symlinks=True)
    variant = accel.Result(run).variants["ort@cpu"]
    manifest, document = variant.repository / "manifest.json", run / "run.json"
    told = {path: json.loads(path.read_text()) for path in (manifest, document)}
    [row] = [row for row in told[document]["variants"] if row["id"] == "ort@cpu"]
    for parity in (told[manifest]["parity"], row["parity"]):
        parity.update(passed=False, reasons=["sqnr_db 9 is below 30"])
    for path, content in told.items():
        path.write_text(json.dumps(content))
    for load in (accel.Result(run).variants["ort@cpu"].load, lambda: accel.load(variant.folder)):
        with pytest.warns(accel.UnprovedWarning, match="ort@cpu did not pass its gate: sqnr_db 9 is below 30"):
            load().close()


def test_a_folder_that_is_no_repository_is_named(tmp_path):
    with pytest.raises(InputError, match=r"manifest\.json"):
        accel.load(tmp_path)


@pytest.mark.parametrize("how", [{"mode": "Latency"}, {"threads": 0}, {"threads": -1}, {"threads": "2"}])
def test_what_is_no_mode_and_no_number_of_threads_is_refused(result, how):
    ((name, value),) = how.items()
    with pytest.raises(UsageError, match=f"{name}={value!r}: expected"):
        accel.load(result.path, **how)


def test_a_file_is_no_repository(tmp_path):
    (tmp_path / "net.py").write_text("")
    with pytest.raises(InputError, match=r"net\.py is a file: expected a repository"):
        accel.load(tmp_path / "net.py")


def test_another_environments_variant_says_which_interpreter_runs_it(result, tmp_path):
    """An artifact that says it belongs to ONNX Runtime's OpenVINO build, which the main environment lacks."""
    root = tmp_path / "repository"
    shutil.copytree(result.variants["ort@cpu"].repository, root)
    manifest = json.loads((root / "manifest.json").read_text())
    manifest["artifact"]["variant"]["target"]["name"] = "ort-openvino"
    (root / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UnavailableError, match="ort-openvino") as raised:
        accel.load(root)
    assert "bin/python" in str(raised.value)


def test_a_manifest_with_an_output_of_no_dtype_is_refused(result, tmp_path):
    root = tmp_path / "repository"
    shutil.copytree(result.variants["ort@cpu"].repository, root)
    manifest = json.loads((root / "manifest.json").read_text())
    manifest["outputs"][0]["dtype"] = "../x"
    (root / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"no known dtype.*'\.\./x'"):
        accel.load(root)


@pytest.fixture
def fed(result):
    """The variant for ONNX Runtime, and a feed that it has answered."""
    sample = tiny_module.samples(1)[0]
    feed = {"ids": sample["ids"], "mask": sample["mask"], "extra_bias": sample["extra"]["bias"]}
    with accel.load(result.variants["ort@cpu"].repository, threads=1) as model:
        yield model, {name: value.numpy() for name, value in feed.items()}


@pytest.mark.parametrize("few", [0, 256])
@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("ids", lambda v: np.where(np.arange(3) == 2, 50, v), "holds 50 at index"),
        ("ids", lambda v: np.where(np.arange(3) == 1, -1000, v), "holds -1000 at index"),
        ("ids", lambda v: v.astype(np.float32), "has dtype float32"),
        ("ids", lambda v: v[:, :2], "axis"),
        ("ids", lambda v: v[0], "expected rank 2"),
        ("mask", lambda v: v * np.array([1, np.nan, 1], np.float32), "holds nan at index"),
        ("mask", lambda v: v * np.array([1, 1, np.inf], np.float32), "holds inf at index"),
        ("mask", lambda v: v * np.array([-np.inf, 1, 1], np.float32), "holds -inf at index"),
        ("mask", lambda v: v > 0, "has dtype bool"),
        ("other", lambda v: np.ones(1), "no input 'other'"),
        ("mask", None, "'mask' is missing"),
    ],
)
def test_a_feed_like_an_earlier_one_is_checked_as_the_first(fed, monkeypatch, few, name, wrong, message):
    monkeypatch.setattr("accel.api.model.FEW", few)
    model, feed = fed
    model.run(feed)
    changed = {**feed, name: wrong(feed.get(name))} if wrong else {n: v for n, v in feed.items() if n != name}
    for _ in range(2):
        with pytest.raises(SampleError, match=message):
            model.run(changed)
    model.run(feed)


def test_casts_and_layouts_of_an_earlier_feed_are_made_again(fed):
    model, feed = fed
    expected = model.run(feed)
    ways = [
        {**feed, "ids": feed["ids"].astype(np.int32)},
        {**feed, "ids": feed["ids"].astype(">i8")},
        {**feed, "mask": feed["mask"].astype(np.float64)},
        {**feed, "extra_bias": np.asfortranarray(feed["extra_bias"])},
        {**feed, "extra_bias": np.ascontiguousarray(feed["extra_bias"][:, ::-1])[:, ::-1]},
        dict(reversed(feed.items())),
    ]
    for given in [way for way in ways for _ in range(2)]:
        found = model.run(given)
        for name, value in expected.items():
            np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("range", [None, (-(2**63), 2**63 - 1), (0, 50)])
def test_no_integer_wraps_round_in_an_earlier_layout(fed, range):
    """As for a variant that computes in int32 what clients send as int64."""
    model, feed = fed
    model._specs["ids"] = dataclasses.replace(model._specs["ids"], dtype="int32", range=range)
    model._fitted(feed)
    assert model._plain(feed)["ids"].dtype == np.int32
    for value in (2**31, 2**32, -(2**40)):
        assert model._plain({**feed, "ids": np.full_like(feed["ids"], value)}) is None


def test_a_second_call_runs_little_code(fed):
    """The time of a call by itself is ``benchmarks/call_overhead.py``'s to tell; here count the functions it enters."""
    model, feed = fed
    model.run(feed)
    entered, package = list[str](), Path(accel.__file__).parent

    def note(frame, event, _):
        if event == "call" and Path(frame.f_code.co_filename).is_relative_to(package):
            entered.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        model.run(feed)
    finally:
        sys.setprofile(None)
    assert "OrtSession.call" in entered
    assert len(entered) <= 8, entered
