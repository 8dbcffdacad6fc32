"""SOURCE is recognised, refused with a remedy, and keyed by content, all without a framework."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from accel.core.errors import AccelError, InputError, UsageError
from accel.core.model_names import check_model_name
from accel.core.values import GraphChoice, from_json, to_json
from accel.exporters.request import SourceRequest
from accel.exporters.sources import parse_range, parse_shapes, quick_key, recognise


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "tiny"
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(b"weights")
    return path


def test_zoo_names_are_known() -> None:
    request = recognise("bert", min_shapes={"input_ids": (1, 8)}, ranges={"input_ids": (0, 99)})
    assert (request.kind, request.reference, request.name) == ("zoo", "bert", "bert")
    assert from_json(SourceRequest, json.loads(json.dumps(to_json(request)))) == request


def test_files_and_folders_are_told_apart(tmp_path: Path, folder: Path) -> None:
    for name in ("m.onnx", "m.pt2", "f.py", "m.keras", "m.h5", "g.pb"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "saved_model.pb").write_bytes(b"x")
    assert recognise(str(folder)).kind == "huggingface"
    assert recognise(str(tmp_path / "m.onnx")).kind == "onnx"
    assert recognise(str(tmp_path / "m.pt2")).kind == "exported"
    factory = recognise(f"{tmp_path}/f.py:make")
    assert (factory.kind, factory.reference, factory.name) == ("factory", f"{tmp_path}/f.py:make", "f")
    for name, kind in (("m.keras", "keras"), ("m.h5", "keras"), ("g.pb", "graphdef"), ("saved", "savedmodel")):
        request = recognise(str(tmp_path / name))
        assert (request.kind, request.reference) == (kind, str(tmp_path / name))
    inside = recognise(str(tmp_path / "saved" / "saved_model.pb"))
    assert (inside.kind, inside.reference, inside.name) == ("savedmodel", str(tmp_path / "saved"), "saved")
    hub = recognise("prajjwal1/bert-tiny", revision="main")
    assert (hub.kind, hub.reference, hub.name) == ("huggingface", "prajjwal1/bert-tiny", "bert-tiny")


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.onnx").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    assert recognise("m.onnx").reference == str(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("bertt", UsageError, "did you mean bert?"),
        ("", UsageError, "no SOURCE"),
        ("absent.onnx", InputError, "no ONNX file"),
        ("absent.pt2", InputError, "no exported program"),
        ("absent.py:make", InputError, "no factory file"),
        ("./absent/folder", InputError, "no file or folder"),
        ("model.pt", InputError, "pickle"),
        ("model.bin", InputError, "pickle"),
        ("absent.keras", InputError, "no Keras model"),
        ("absent.pb", InputError, "no graph"),
        ("model.safetensors", InputError, "without an architecture"),
        ("code.py", UsageError, "names no factory"),
        ("notes.md", InputError, "not a model file"),
        ("empty", InputError, "no config.json"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_a_remedy(
    text: str, error: type[AccelError], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("model.pt", "model.bin", "model.safetensors", "code.py", "notes.md"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=says):
        recognise(text)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        (".hidden.onnx", "_hidden"),
        ("-dash.onnx", "_dash"),
        ("a...b.onnx", "a_.b"),
        ("...onnx", "_"),
        ("with space ü.onnx", "with_space__"),
        (230 * "l" + ".onnx", 100 * "l"),
    ],
)
def test_a_name_made_of_a_file_name_is_one_that_triton_takes(file: str, name: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(b"x")
    made = recognise(str(tmp_path / file)).name
    assert made == name == check_model_name(made)
    assert recognise("bert", model_name=made).name == made


def test_options_that_do_not_fit_the_source_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--task"):
        recognise("bert", task="fill-mask")
    for name in ("a/b", ".a", "-a", "a..b", "", 101 * "a"):
        with pytest.raises(UsageError, match="model name"):
            recognise("bert", model_name=name)
    with pytest.raises(UsageError, match="--weights"):
        recognise("bert", weights="any")  # type: ignore[arg-type]
    (tmp_path / "m.onnx").write_bytes(b"x")
    with pytest.raises(UsageError, match="--weights random"):
        recognise(str(tmp_path / "m.onnx"), weights="random")
    for choice, option in (
        (GraphChoice(signature="serve"), "--signature"),
        (GraphChoice(inputs=("x",)), "--input-tensors"),
        (GraphChoice(outputs=("y",)), "--output-tensors"),
        (GraphChoice(nchw=("x",)), "--inputs-as-nchw"),
    ):
        with pytest.raises(UsageError, match=option):
            recognise(str(tmp_path / "m.onnx"), graph=choice)
    with pytest.raises(InputError, match="no sample file"):
        recognise(str(folder), samples="absent.npz")
    with pytest.raises(UsageError, match=r"expected \.npz"):
        recognise(str(folder), samples=str(tmp_path / "m.onnx"))


def test_shapes_are_read_as_trtexec_writes_them() -> None:
    assert parse_shapes("input_ids:1x128,attention_mask:1x128") == {"input_ids": (1, 128), "attention_mask": (1, 128)}
    assert parse_shapes("x:4") == {"x": (4,)}


@pytest.mark.parametrize("text", ["input_ids", "x:1x", "x:ax2", "x:0x3", "x:1,x:2", ":1x2", "x:1x2,"])
def test_bad_shapes_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_shapes(text)


def test_ranges_are_read() -> None:
    assert parse_range("input_ids=0:30521") == ("input_ids", (0, 30521))
    assert parse_range("x=-3:-1") == ("x", (-3, -1))


@pytest.mark.parametrize("text", ["x=1", "x=5:1", "=1:2", "x=a:b", "x=1:2:3"])
def test_bad_ranges_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_range(text)


def test_the_key_follows_content_and_request(folder: Path, tmp_path: Path) -> None:
    samples = tmp_path / "s.npz"
    samples.write_bytes(b"one")
    request = recognise(str(folder), samples=str(samples))
    first = quick_key(request)
    assert first == quick_key(recognise(str(folder), samples=str(samples)))
    assert quick_key(recognise(str(folder), samples=str(samples), max_shapes={"x": (2,)})) != first
    samples.write_bytes(b"two")
    second = quick_key(request)
    assert second != first
    (folder / "model.safetensors").write_bytes(b"other")
    assert quick_key(request) not in (first, second)


def test_the_key_of_a_saved_model_follows_every_file_and_the_choice(tmp_path: Path) -> None:
    (tmp_path / "variables").mkdir()
    (tmp_path / "saved_model.pb").write_bytes(b"graph")
    (tmp_path / "variables" / "variables.data").write_bytes(b"weights")
    keys = {quick_key(recognise(str(tmp_path), graph=GraphChoice(signature=s))) for s in (None, "serve")}
    (tmp_path / "variables" / "variables.data").write_bytes(b"others")
    keys.add(quick_key(recognise(str(tmp_path))))
    assert len(keys) == 3
    assert None not in keys


def test_a_factory_and_an_absent_hub_id_have_no_quick_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "f.py").write_text("def make(): ...")
    factory = recognise(f"{tmp_path}/f.py:make")
    assert quick_key(factory) is None
    other = recognise(f"{tmp_path}/f.py:make", max_shapes={"x": (4,)})
    assert quick_key(factory, "key") != quick_key(other, "key")  # other shapes were taken from an earlier run
    assert quick_key(recognise("nobody/nothing")) is None
    assert quick_key(recognise("bert", weights="pretrained")) is None
    assert quick_key(recognise("bert")) != quick_key(recognise("minilm"))


def test_a_cached_hub_id_is_keyed_and_a_half_download_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--net"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text("{}")
    assert quick_key(recognise("org/net")) is None
    (snapshot / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}'
    )
    (snapshot / "1.safetensors").write_bytes(b"1")
    assert quick_key(recognise("org/net")) is None
    (snapshot / "2.safetensors").write_bytes(b"2")
    assert quick_key(recognise("org/net")) is not None


def test_recognising_and_keying_import_no_framework() -> None:
    code = (
        "import sys, accel.run; from accel.exporters.sources import recognise, quick_key;"
        "quick_key(recognise('minilm'));"
        "print([m for m in ('torch', 'onnx', 'transformers', 'onnxruntime', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("~nosuch/x", "'~nosuch/x' cannot be opened as a file: Could not determine home directory"),
        ("~nosuch/m.onnx", "cannot be opened as a file: Could not determine"),
        ("~nosuch/m.py:build", "cannot be opened as a file: Could not determine"),
        ("x" * 5000, r"… \(5000 characters\)' cannot be opened as a file: File name too long"),
        (f"{'y' * 300}.py:build", "cannot be opened as a file: File name too long"),
        ("m\0.onnx", "cannot be opened as a file: embedded null byte"),
    ],
)
def test_a_text_that_can_be_no_path_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        recognise(text)
    with pytest.raises(InputError, match=says):
        recognise("minilm", samples=text)
