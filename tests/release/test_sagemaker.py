"""A release as SageMaker takes it: archives unpacked and served as its container does, JSON held to AWS' rules."""

import json
import re
import shutil
import string

import botocore.session
import botocore.validate
import numpy as np
import pytest
from tiny_release import ask, tritonserver, unpack

from accel.core import environments, signing
from accel.core.errors import CheckFailed, OutputError
from accel.core.values import sha256_file
from accel.release import document, forms
from accel.triton import launch, manifest, python_variant
from accel.triton.reading import read_points
from accel.triton.servers.hosts import EMBEDDED_RELEASE

GIVEN = {
    "ACCOUNT": "123456789012",
    "REGION": "eu-north-1",
    "S3_URL": "s3://bucket/prefix",
    "ROLE_ARN": "arn:aws:iam::123456789012:role/serving",
    "INSTANCE_TYPE": "ml.c7i.xlarge",
}


@pytest.fixture(scope="module")
def published(built, tmp_path_factory, key_pair):
    """The release, its public key, and the folder it was published to for SageMaker."""
    folder = tmp_path_factory.mktemp("sagemaker")
    private, public = key_pair(folder, "key")
    shutil.copytree(built[0] / "store" / "1", folder / "1")
    signing.sign(folder / "1", private)
    done = forms.publish(folder / "1", [f"sagemaker:{folder / 'out'}"], key=public)
    base = folder / "out" / "1" / done["digest"]
    assert done["published"] == [str(base)]
    return folder / "1", public, base


def given(path):
    return json.loads(string.Template(path.read_text()).substitute(GIVEN))


def content(folder):
    return {p.relative_to(folder).as_posix(): sha256_file(p) for p in folder.rglob("*") if p.is_file()}


def test_archives_hold_the_repositories_and_their_bytes_follow_from_them(published, tmp_path):
    root, public, base = published
    for entry in document.read(root).entries:
        if entry.repository is None:
            assert not (base / entry.pool / f"{entry.model}.tar.gz").exists()
            continue
        archive = base / entry.pool / f"{entry.model}.tar.gz"
        made = unpack(archive, tmp_path / entry.model)
        assert content(made) == content(root / entry.repository)
        assert (made / "launch.sh").stat().st_mode & 0o111
        assert not (made / "config.pbtxt").exists()  # the container refuses one at the top
    forms.publish(root, [f"sagemaker:{tmp_path / 'again'}"], key=public)
    assert content(tmp_path / "again/1" / base.name) == content(base)


def test_the_json_is_what_aws_takes(published):
    _, _, base = published
    service = botocore.session.get_session().get_service_model("sagemaker")
    found = {p.relative_to(base).as_posix(): given(p) for p in base.rglob("*.json")}
    assert set(found) == {"here.json", *(f"here/{m}{kind}.json" for m in "ab" for kind in ("", ".endpoint"))}
    for name, data in found.items():
        shape = service.operation_model("CreateEndpointConfig" if "endpoint" in name else "CreateModel").input_shape
        report = botocore.validate.ParamValidator().validate(data, shape)
        assert not report.has_errors(), report.generate_report()
        container = shape.members.get("PrimaryContainer")
        for key, value in data.get("PrimaryContainer", {}).items():
            pattern = container.members[key].metadata.get("pattern")
            assert pattern is None or re.fullmatch(pattern, value), (key, value, pattern)
    one, many = found["here/b.json"]["PrimaryContainer"], found["here.json"]["PrimaryContainer"]
    url = f"s3://bucket/prefix/1/{base.name}/here/"
    assert (one["ModelDataUrl"], many["ModelDataUrl"], many["Mode"]) == (f"{url}b.tar.gz", url, "MultiModel")
    assert one["Image"].startswith("123456789012.dkr.ecr.eu-north-1.amazonaws.com/sagemaker-tritonserver:")
    assert one["Environment"] == {
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "b",
        "SAGEMAKER_TRITON_LOG_INFO": "true --disable-auto-complete-config",
        "ORT_DISABLE_TELEMETRY": "1",
    }
    assert found["here/b.endpoint.json"]["ProductionVariants"][0]["ModelName"] == found["here/b.json"]["ModelName"]


def test_flags_are_those_of_launch_sh():
    text = (
        'exec "${TRITONSERVER:-tritonserver}" \\\n  --model-repository="$here" \\\n'
        "  --disable-auto-complete-config \\\n"
        '  --http-address="$address" --http-port="${HTTP_PORT:-8000}" \\\n'
        '  --exit-timeout-secs="${EXIT_TIMEOUT_S:-30}" \\\n'
        '  --cache-config=local,size="${CACHE_BYTES:-67108864}" \\\n  --rate-limit=execution_count \\\n'
        '  "${flags[@]}" "$@"\n'
    )
    assert launch.flags_of(text) == [
        "--disable-auto-complete-config",
        "--cache-config=local,size=67108864",
        "--rate-limit=execution_count",
    ]


@pytest.mark.skipif(not environments.installed("triton"), reason="the embedded server is not installed")
def test_the_embedded_server_serves_what_was_unpacked_as_the_container_does(published, tmp_path):
    """It has the Python backend alone, so each repository is emitted for that one: names, configs and answers stay."""
    _, _, base = published
    served, points = {}, {}
    for name in "ab":
        root = unpack(base / "here" / f"{name}.tar.gz", tmp_path / f"{name}-unpacked")
        served[name] = tmp_path / f"models/{name}/model"
        served[name].parent.mkdir(parents=True)
        python_variant.write_python_variant(root, served[name], release=EMBEDDED_RELEASE)
        points[name] = next(iter(read_points(root, manifest.read(root)).values()))
    environment = given(base / "here/b.json")["PrimaryContainer"]["Environment"]
    # as docker/sagemaker/serve starts it
    arguments = (
        "--allow-sagemaker=true --allow-grpc=false --allow-http=false --allow-metrics=false "
        "--model-control-mode=explicit --model-repository=$ROOT --model-namespacing=true --sagemaker-port=$PORT "
        "--load-model=$SAGEMAKER_TRITON_DEFAULT_MODEL_NAME --log-info=$SAGEMAKER_TRITON_LOG_INFO"
    )
    with tritonserver(served["b"], arguments, tmp_path / "server", **environment) as (url, log):
        ask(f"{url}/ping")
        assert re.search(r"strict_model_config\s*\|\s*1", log.read_text())  # no auto-complete
        check(ask(f"{url}/invocations", request(points["b"])), points["b"])
        target = {"X_Amzn_SageMaker_Target_Model": "a.tar.gz"}  # a multi-model endpoint
        ask(f"{url}/models", {"model_name": "hash-of-a", "url": str(served["a"])}, **target)
        assert len(ask(f"{url}/models")["models"]) == 1
        check(ask(f"{url}/models/hash-of-a/invoke", request(points["a"]), **target), points["a"])


def request(point):
    tensors = [
        {"name": n, "shape": v.shape, "datatype": "FP32", "data": v.ravel().tolist()} for n, v in point.inputs.items()
    ]
    return {"inputs": tensors}


def check(answer, point):
    found = {o["name"]: np.array(o["data"], np.float32).reshape(o["shape"]) for o in answer["outputs"]}
    assert found.keys() == point.outputs.keys()
    for name, expected in point.outputs.items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)


def test_only_what_may_ship_goes_out_and_a_version_stays(published, tmp_path):
    root, public, _ = published
    changed = tmp_path / "1"
    shutil.copytree(root, changed)
    (changed / "report.md").write_text("x")
    with pytest.raises(CheckFailed, match=r"report\.md"):
        forms.publish(changed, [f"sagemaker:{tmp_path / 'out'}"], key=public)
    assert not (tmp_path / "out").exists()
    (tmp_path / "out/1").mkdir(parents=True)
    (tmp_path / "out/1/digest").write_text("0" * 64)
    with pytest.raises(OutputError, match="release 1 with other content"):
        forms.publish(root, [f"sagemaker:{tmp_path / 'out'}"], key=public)
