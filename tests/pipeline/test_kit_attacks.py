"""A kit from somebody else: it runs no code, reads nothing beside itself, and writes where it is told.

Anybody can seal a kit, so each attack here carries a seal that is right.
"""

import json
import shutil
import subprocess
import sys

import onnx
import pytest
from tiny_run import convert

from accel.core import signing
from accel.core.errors import InputError
from accel.core.values import sha256_file, sha256_json
from accel.run import kits


@pytest.fixture(scope="module")
def kit(run):
    return run[1] / "variants" / "trt-fp16@cuda" / "kit"


@pytest.fixture
def copied(kit, tmp_path):
    there = tmp_path / "kit"
    shutil.copytree(kit, there, copy_function=shutil.copyfile)
    return there


def sealed(folder, change):
    """Change what kit.json says and seal it again, as anybody can."""
    path = folder / kits.MANIFEST
    data = json.loads(path.read_text())
    change(data)
    data["seal"] = sha256_json({**data, "seal": ""})
    path.write_text(json.dumps(data))


def listed(folder, name):
    """Bring the entry of a file up to date."""

    def change(data):
        file = folder / name
        entry = {"path": name, "sha256": sha256_file(file), "bytes": file.stat().st_size}
        data["files"] = [f for f in data["files"] if f["path"] != name] + [entry]

    sealed(folder, change)


def put(*keys):
    """Return a change that sets ``data[key][key]… = value``."""
    *above, last, value = keys

    def change(data):
        for key in above:
            data = data[key]
        data[last] = value

    return change


def refused(folder):
    """Return why a kit is refused."""
    with pytest.raises(InputError) as error:
        kits.read(folder)
    return error.value.message


def test_a_kit_names_no_path_of_the_machine_it_was_made_on(kit):
    found = kits.read(kit)
    assert (found.source.kind, found.source.reference) == ("onnx", "onnx/model.onnx")
    assert found.source.samples == "given"


def test_a_kit_that_would_run_a_factory_is_refused(copied, tmp_path):
    code = tmp_path / "evil.py"
    code.write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'was-run')!r}).touch()\n")

    def change(data):
        data["source"] |= {"kind": "factory", "reference": f"{code}:build"}
        data["variant"]["target"] = {"name": "torch", "device": "cpu"}

    sealed(copied, change)
    assert "source is factory" in refused(copied)
    assert not (tmp_path / "was-run").exists()


HOME = "/etc/passwd"
ATTACKS = {
    "target": (put("variant", "target", {"name": "torch", "device": "cpu"}), "no kit finishes target"),
    "null": (put("variant", "target", {"name": "null", "device": "cpu"}), "no kit finishes target"),
    "device": (put("variant", "target", "device", "cpu"), "does not run on"),
    "unknown target": (put("variant", "target", "name", "../x"), "no kit finishes target"),
    "static": (put("variant", "static", "../../x"), "static is"),
    "option": (put("variant", "options", {"plugins": "/tmp/evil.so"}), "no option 'plugins'"),
    "option's type": (put("variant", "options", {"keep": "/x"}), "options"),
    "name": (put("source", "name", "../../x"), "cannot name a folder"),
    "absolute name": (put("source", "name", "/tmp/x"), "cannot name a folder"),
    "hub id": (put("source", "kind", "huggingface"), "source is huggingface"),
    "path of the source": (put("source", "reference", HOME), "source is onnx"),
    "zoo": (lambda d: d["source"].update(kind="zoo", reference="no-such-model"), "the zoo of this accel has no"),
    "gate of the source": (put("source", "gate", ["accuracy", -1.0]), "expected None"),
    "mask": (put("source", "mask", "nothing"), "is not an input"),
    "input": (put("source", "inputs", 0, "dims", [-1, "batch"]), "which no tensor is"),
    "dtype": (put("source", "inputs", 0, "dtype", "object0"), "which no tensor is"),
    "limit": (put("source", "inputs", 0, "at_most", ["nothing", 0, -1]), "axis 0 of 'nothing', which is not there"),
    "no outputs": (put("source", "outputs", []), "has no output"),
    "profile": (put("variant", "profile", {}), "no shapes of"),
    "multiple": (put("source", "profile", "ids", "multiple", [0, 7]), "not multiples of"),
    "huge profile": (put("source", "profile", "ids", "max", [10**12, 9]), "expected sizes"),
    "gate": (put("settings", "gates", {"fp16": -300.0}), "gate fp16 is -300"),
    "infinite gate": (put("settings", "gates", {"sqnr_db": 1e308}), "gate sqnr_db is"),
    "share": (put("settings", "gates", {"agreement": 0.0}), "gate agreement is 0"),
    "unknown gate": (put("settings", "gates", {"x": 20.0}), "no such gate"),
    "rounds": (put("settings", "rounds", 10**9), "rounds is"),
    "timeout": (put("settings", "timeout_s", -1.0), "timeout_s is"),
    "version": (put("settings", "model_version", 0), "model_version is"),
    "release": (put("settings", "triton_release", "../99.99"), "knows no Triton"),
    "objective": (put("settings", "objectives", []), "objectives are"),
    "option of a job": (put("settings", "samples", "/tmp/evil.py:samples"), "settings are"),
    "no option of a job": (lambda d: d["settings"].pop("rounds"), "settings are"),
    "constraint": (put("settings", "constraints", {"max_p99_ms": "1"}), "constraints"),
    "number": (put("settings", "rounds", "2"), "rounds is '2'"),
    "proof": (put("proof", "passed", False), "did not pass its gate"),
    "no files": (put("files", []), "is not listed"),
    "path": (lambda d: d["files"].append({"path": "../../x", "sha256": "0" * 64, "bytes": 0}), "leaves the kit"),
    "absolute path": (lambda d: d["files"].append({"path": HOME, "sha256": "0" * 64, "bytes": 0}), "leaves the kit"),
    "NUL": (lambda d: d["files"].append({"path": "a\0b", "sha256": "0" * 64, "bytes": 0}), "not printable"),
    "twice": (lambda d: d["files"].append(d["files"][0]), "listed twice"),
    "onnx": (put("onnx", "file", "path", "../../model.onnx"), "source is onnx"),
    "data": (put("onnx", "data", [{"path": "../../x", "sha256": "0" * 64, "bytes": 1}]), "is not listed"),
    "other onnx": (put("onnx", "file", "sha256", "0" * 64), "another file"),
    "gate samples": (put("samples", "gate", "path", HOME), "is not listed"),
    "terminal": (put("command", "accel convert \x1b]0;x\x07"), "not printable"),
    "label file": (
        put("settings", "overrides", f'output {{ name: "hidden" label_filename: "{HOME}" }}'),
        "not a file of",
    ),
    "label file above": (
        put("settings", "overrides", 'output { name: "hidden" label_filename: "given/../../x" }'),
        "not a file of",
    ),
    "warm-up file": (
        put("settings", "overrides", f'model_warmup {{ inputs {{ key: "x" value {{ input_data_file: "{HOME}" }} }} }}'),
        "not a file of",
    ),
    "library": (
        put("settings", "overrides", 'model_operations { op_library_filename: "/tmp/evil.so" }'),
        "cannot set model_operations",
    ),
    "agent": (put("settings", "overrides", 'model_repository_agents { agents { name: "x" } }'), "cannot set model_rep"),
    "environment": (
        put(
            "settings",
            "overrides",
            'parameters { key: "EXECUTION_ENV_PATH" value { string_value: "/tmp/evil.tar.gz" } }',
        ),
        "cannot set the parameter",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_field_that_no_kit_has_is_refused(copied, attack):
    change, why = ATTACKS[attack]
    sealed(copied, change)
    with pytest.raises(InputError) as error:
        kits.read(copied)
    assert why in error.value.message


@pytest.mark.parametrize("attack", ["target", "name", "NUL"])
def test_the_command_line_refuses_it_before_it_writes_anything(copied, attack):
    change, why = ATTACKS[attack]
    sealed(copied, change)
    done = build(copied)
    assert done.returncode == 2, done.stderr
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    assert not (copied.parent / "run").exists()


def test_a_file_that_is_not_listed_or_no_file_is_refused(copied):
    (copied / "onnx" / "evil.so").write_bytes(b"")
    assert "onnx/evil.so is not listed" in refused(copied)
    (copied / "onnx" / "evil.so").unlink()
    (copied / "onnx" / "link").symlink_to(HOME)
    assert "plain files" in refused(copied)


def test_a_listed_file_may_not_be_a_link(copied, tmp_path):
    name = kits.REFERENCE
    (copied / name).rename(tmp_path / name)
    (copied / name).symlink_to(tmp_path / name)
    assert "plain files" in refused(copied)


def test_weights_come_from_the_kit_alone(copied):
    file = copied / "onnx" / "model.onnx"
    model = onnx.load(str(file))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "typing.json"), ("length", "64")):
        tensor.external_data.add(key=key, value=value)
    file.write_bytes(model.SerializeToString())
    listed(copied, "onnx/model.onnx")
    sealed(copied, lambda d: d["onnx"].update(file={**file_entry(file), "path": "model.onnx"}))
    assert "takes weights from 'typing.json'" in refused(copied)


def file_entry(file):
    return {"sha256": sha256_file(file), "bytes": file.stat().st_size}


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"schema": NaN}', '{"schema": 1, "a": ' + "9" * 5000 + "}", "\0", '{"schema": true}']
)
def test_json_that_is_made_to_break_the_reader_is_refused(copied, text):
    (copied / kits.MANIFEST).write_text(text)
    refused(copied)


def test_a_gate_that_everything_passes_makes_no_kit(factory, tmp_path):
    document = convert(factory, tmp_path / "run", "trt-fp16", gate=["fp16=-300"])
    (found,) = document["variants"]
    assert found["status"] == "failed"
    assert "gate fp16 is -300" in found["reason"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory, key_pair):
    """Two key pairs: the maker's, and somebody else's."""
    folder = tmp_path_factory.mktemp("keys")
    key_pair(folder, "maker")
    key_pair(folder, "other")
    return folder


def build(folder, *words):
    program = [sys.executable, "-m", "accel", "build", str(folder), "-o", str(folder.parent / "run"), *map(str, words)]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def test_a_signature_says_who_made_the_kit(factory, run, keys, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(run[1], out)  # what was proved there is not proved again
    convert(factory, out, "trt-fp16", sign_kits=keys / "maker.pem")
    there = tmp_path / "stick" / "kit"
    shutil.copytree(out / "variants" / "trt-fp16@cuda" / "kit", there, copy_function=shutil.copyfile)
    kits.read(there)
    assert build(there, "--require-signature", keys / "maker.pub").returncode == 3, "only the GPU is missing"
    found = build(there, "--require-signature", keys / "other.pub")
    assert found.returncode == 2
    assert "is not what the owner of" in found.stderr
    sealed(there, put("settings", "rounds", 9))
    kits.read(there)  # the seal is right
    found = build(there, "--require-signature", keys / "maker.pub")
    assert found.returncode == 2
    assert "is not what the owner of" in found.stderr
    (there / signing.SIGNATURE).unlink()
    assert "is not signed" in build(there, "--require-signature", keys / "maker.pub").stderr
    convert(factory, out, "trt-fp16")
    assert not (out / "variants" / "trt-fp16@cuda" / "kit" / signing.SIGNATURE).exists()


def test_a_key_that_cannot_sign_is_refused_before_anything_is_done(factory, keys, tmp_path):
    with pytest.raises(InputError, match="not a private key"):
        convert(factory, tmp_path / "run", "null", sign_kits=keys / "maker.pub")
    assert not (tmp_path / "run").exists()
