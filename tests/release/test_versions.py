"""Two releases side by side in one Triton repository, served by the embedded server where it is installed."""

import json
import shutil

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from tiny_release import accel, ask, tritonserver

from accel.core import environments
from accel.core.errors import InputError, UsageError
from accel.core.values import file_ref, to_json
from accel.release import versions
from accel.triton import lint, manifest, python_variant
from accel.triton.config import parse
from accel.triton.reading import read_points
from accel.triton.servers import hosts


@pytest.fixture
def pair(built, tmp_path):
    """Releases 1 and 2 with the repositories of ``a`` and ``b``; the ``b`` of 2 answers twice as much."""
    for version in ("1", "2"):
        root = tmp_path / version
        shutil.copytree(built[0] / "store" / "1" / "repositories", root / "repositories")
        data = json.loads((built[0] / "store" / "1" / "release.json").read_text())
        (root / "release.json").write_text(json.dumps(data | {"version": version}))
    root = tmp_path / "2" / "repositories" / "here" / "b"
    file = root / "b" / "1" / "model.onnx"
    model = onnx.load(file)
    weight = model.graph.initializer[1]
    weight.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight), weight.name))
    onnx.save(model, file)
    change(root, lambda told: told["artifact"]["files"][0].update(to_json(file_ref(file, file.parent))))
    return tmp_path / "1", tmp_path / "2"


def change(root, edit):
    """Change a manifest, and let it describe the files as they are."""
    file = root / "manifest.json"
    told = json.loads(file.read_text())
    edit(told)
    told["files"] = [to_json(file_ref(root / f["path"], root)) for f in told["files"]]
    file.write_text(json.dumps(told))


def test_each_release_is_a_version_of_the_model(pair, tmp_path):
    done = accel("release", "versions", *pair, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    root = tmp_path / "out" / "here" / "b"
    config = parse((root / "b" / "config.pbtxt").read_text())
    assert list(config.version_policy.specific.versions) == [1, 2]
    for number, release in enumerate(pair, 1):
        there, given = root / "b" / str(number), release / "repositories" / "here" / "b" / "b" / "1"
        assert (there / "model.onnx").read_bytes() == (given / "model.onnx").read_bytes()
    told = json.loads((root / "versions.json").read_text())["versions"]
    assert {number: v["release"] for number, v in told.items()} == {"1": "1", "2": "2"}
    assert told["1"]["files"] != told["2"]["files"]
    assert not [f for f in lint.lint(root, manifest.read(given.parents[1]).release) if f.severity == "error"]
    (named,) = (root / "b" / "configs").iterdir()
    assert list(parse(named.read_text()).version_policy.specific.versions) == [1, 2]


def test_what_differs_is_refused_with_the_reason_and_the_rest_is_written(pair, tmp_path):
    root = pair[1] / "repositories" / "here" / "b"
    config = root / "b" / "config.pbtxt"
    text = config.read_text()
    config.write_text(text.replace('default_model_filename: "model.onnx"', 'default_model_filename: "other.onnx"'))
    change(root, lambda _: None)
    done = accel("release", "versions", *pair, "-o", tmp_path / "out")
    assert done.returncode == 1
    assert "b on here: default_model_filename differ, and a model has one config: model.onnx; other.onnx" in done.stderr
    assert [p.name for p in (tmp_path / "out" / "here").iterdir()] == ["a"]
    config.write_text(text.replace("count: 1", "count: 2", 1))  # instances are the last release's
    change(root, lambda _: None)
    assert {why for _, _, why in versions.side_by_side(pair, tmp_path / "out")} == {None}
    change(root, lambda told: told["outputs"][0].update(name="z"))
    found = {model: why for _, model, why in versions.side_by_side(pair, tmp_path / "again")}
    assert found["a"] is None
    assert found["b"].startswith("the contract differs: b, batch 4: x float32")


def test_what_one_release_lacks_is_refused_and_damage_is_an_error(pair, tmp_path):
    data = json.loads((pair[0] / "release.json").read_text())
    entries = [e | {"repository": None} if e["model"] == "a" else e for e in data["entries"]]
    (pair[0] / "release.json").write_text(json.dumps(data | {"entries": entries}))
    found = {model: why for _, model, why in versions.side_by_side(pair, tmp_path / "out")}
    assert found == {"a": "release 1 has no repository of it", "b": None}
    file = pair[1] / "repositories/here/b/b/1/model.onnx"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(InputError, match=r"model\.onnx"):
        list(versions.side_by_side(pair, tmp_path / "out"))
    with pytest.raises(UsageError, match="one release"):
        list(versions.side_by_side(pair[:1], tmp_path / "out"))


@pytest.mark.skipif(not environments.installed("triton"), reason="the embedded server is not installed")
def test_the_embedded_server_serves_both_versions(pair, tmp_path):
    """It has the Python backend alone, so each repository is emitted for that one first."""
    for release in pair:
        own = release / "repositories" / "here" / "b"
        points = read_points(own, manifest.read(own))
        own.rename(release / "native")
        python_variant.write_python_variant(release / "native", own, release=hosts.EMBEDDED_RELEASE)
    found = {model: why for _, model, why in versions.side_by_side(pair, tmp_path / "out")}
    assert found["b"] is None
    point = next(iter(points.values()))
    ((name, given),) = point.inputs.items()
    tensor = {"name": name, "shape": list(given.shape), "datatype": "FP32", "data": given.ravel().tolist()}
    root = pair[1] / "repositories" / "here" / "b"
    arguments = "--model-repository=$OUT --disable-auto-complete-config --http-port=$PORT --allow-grpc=false"
    arguments += " --allow-metrics=false --http-address=127.0.0.1"
    with tritonserver(root, arguments, tmp_path / "server", OUT=str(tmp_path / "out/here/b")) as (url, _):
        ask(f"{url}/v2/health/ready")
        answers = {}
        for version in ("1", "2", None):
            path = f"/versions/{version}" if version else ""
            (out,) = ask(f"{url}/v2/models/b{path}/infer", {"inputs": [tensor]})["outputs"]
            answers[version] = np.reshape(out["data"], out["shape"])
    expected = next(iter(point.outputs.values()))
    np.testing.assert_allclose(answers["1"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(answers["2"], 2 * expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(answers[None], answers["2"])
