"""The linter as a whole: clean on what accel emits, findings alone on whatever lies in a folder, and the command."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from embedding import write_onnx
from lint_repositories import BASES, CONFIG, add, onnx_base, openvino_model, parameter, python_base, swap, write

from accel.core.errors import InputError, UsageError
from accel.core.values import Artifact, file_refs
from accel.triton.lint import lint
from accel.triton.lint.rules import ACCELERATORS, PARAMETERS
from accel.triton.python_variant import write_python_variant
from accel.triton.releases import NEWEST, RELEASES, release

BACKENDS = ("onnxruntime", "openvino", "aoti", "python")


def errors(root: Path, name: str = "26.05") -> list[tuple[str, str, str]]:
    return [(f.file, f.field, f.why) for f in lint(root, name) if f.severity == "error"]


@pytest.fixture(scope="module")
def ir(tmp_path_factory) -> Path:
    """The embedding model as a real IR."""
    import openvino as ov

    folder = tmp_path_factory.mktemp("ir")
    write_onnx(folder / "model.onnx")
    ov.save_model(ov.convert_model(folder / "model.onnx"), folder / "model.xml")
    return folder


def artifact(bench, backend: str, ir: Path, *, static: bool = False) -> Artifact:
    """Return the bench's artifact, with a real IR in place of its stand-in, and fixed dims in a static ONNX file."""
    made = bench.artifact(backend, static=static)
    if backend == "openvino":
        for name in ("model.xml", "model.bin"):
            shutil.copyfile(ir / name, bench.folder(backend) / name)
    elif backend == "onnxruntime" and static:
        path = bench.folder(backend) / "model.onnx"
        model = onnx.load(path)
        for value in (*model.graph.input, *model.graph.output):
            for dim in value.type.tensor_type.shape.dim:
                if dim.HasField("dim_param"):
                    dim.dim_value = {"batch": 1, "seq": 6}[dim.dim_param]
        onnx.save(model, path)
    return replace(made, files=file_refs(bench.folder(backend)))


# --- what accel emits


@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_error_on_what_accel_emits(bench, ir, backend, static):
    made = artifact(bench, backend, ir, static=static)
    bench.emit(made)
    found = lint(bench.root(made), "26.05")
    assert {f.field for f in found} <= {"unverified"}, found
    assert all(f.severity == "warning" for f in found)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "python"])
def test_no_error_when_served_through_the_python_backend(bench, ir, backend):
    made = artifact(bench, backend, ir)
    bench.emit(made, python=True)
    assert lint(bench.root(made), "26.05") == ()


@pytest.mark.parametrize(
    ("backend", "name"), [(b, n) for b in BACKENDS for n in RELEASES if b != "aoti" or release(n).torch_aoti]
)
def test_no_error_in_any_release_it_is_emitted_for(bench, ir, backend, name):
    made = artifact(bench, backend, ir)
    bench.emit(made, release=name)
    assert errors(bench.root(made), name) == []


OVERRIDES = """
instance_group { count: 2 kind: KIND_CPU host_policy: "cpu_0" rate_limiter { resources { name: "r" count: 1 } } }
response_cache { enable: true }
metric_tags { key: "team" value: "search" }
"""


@pytest.mark.parametrize("python", [False, True], ids=["native", "python"])
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "python"])
def test_no_error_with_overrides_threads_and_a_config_for_the_hardware(bench, ir, backend, python):
    made = artifact(bench, backend, ir)
    bench.emit(made, python=python, overrides=OVERRIDES, threads=2, hardware="cpu-test")
    assert (bench.root(made) / "embedding/configs/cpu-test.pbtxt").is_file()
    found = lint(bench.root(made), "26.05")
    assert {f.field for f in found} <= {"unverified"}, found


def test_no_error_on_a_python_backend_twin(bench, ir, tmp_path):
    made = artifact(bench, "openvino", ir)
    bench.emit(made)
    write_python_variant(bench.root(made), tmp_path / "twin", release="24.10")
    assert lint(tmp_path / "twin", "24.10") == ()


def test_a_release_older_than_the_emitted_one_is_told(bench):
    made = bench.artifact("aoti")
    bench.emit(made)
    assert [field for _, field, _ in errors(bench.root(made), "26.04")] == ["platform"]


def test_the_toolchain_is_compared_with_the_release_asked_for(bench):
    made = bench.artifact("onnxruntime")
    bench.emit(made)
    assert lint(bench.root(made), "26.05") == ()
    (finding,) = lint(bench.root(made), "24.10")
    assert (finding.severity, finding.file, finding.field) == ("warning", "manifest.json", "unverified")
    assert "1.19.2" in finding.why


def test_multiples_that_a_backend_does_not_state_are_told(bench):
    made = bench.artifact("onnxruntime")
    profile = {n: replace(s, multiple=(1, 3)) for n, s in made.variant.profile.items()}
    made = replace(made, variant=replace(made.variant, profile=profile))
    bench.emit(made)
    found = lint(bench.root(made), "26.05")
    assert {f.field for f in found} == {f"artifact.variant.profile.{name}" for name in profile}
    assert all(f.severity == "warning" and "takes multiples of [1, 3] only" in f.why for f in found)


def test_a_manifest_that_cannot_be_read_is_a_warning(bench):
    made = bench.artifact("python")
    bench.emit(made)
    (bench.root(made) / "manifest.json").write_text("[]")
    (finding,) = lint(bench.root(made), "26.05")
    assert (finding.severity, finding.file) == ("warning", "manifest.json")


def test_lint_sees_what_it_reads_of_an_emitted_repository(bench, ir):
    """The clean results above are worth something: each kind of model file is really compared."""
    edits = {
        "onnxruntime": ('name: "pooled"', 'name: "pool"', "output.pool"),
        "openvino": ("dims: 4", "dims: 5", "output.hidden.dims"),
        "aoti": ('name: "ARGS[0]"', 'name: "ids"', "input.ids"),
        "python": ("TYPE_FP32", "TYPE_FP16", "output.hidden"),
    }
    for backend, (old, new, field) in edits.items():
        made = artifact(bench, backend, ir)
        bench.emit(made)
        inner = "embedding_aoti" if backend == "aoti" else "embedding"
        path = bench.root(made) / inner / "config.pbtxt"
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
        assert field in [f for _, f, _ in errors(bench.root(made))], backend


# --- any repository


@pytest.mark.parametrize("name", BASES)
def test_the_bases_of_the_cases_are_clean(name, tmp_path):
    root = write(tmp_path, BASES[name]())
    assert lint(root, "25.02" if name == "tensorflow" else "26.05") == ()


def test_other_configs_of_a_model_are_linted_with_their_own_name(tmp_path):
    base = write(tmp_path, onnx_base())
    text = (base / CONFIG).read_text()
    (base / "m/configs").mkdir()
    (base / "m/configs/gpu.pbtxt").write_text(text + "instance_group { kind: KIND_CPU gpus: [ 0 ] }")
    assert [(f, field) for f, field, _ in errors(base)] == [("m/configs/gpu.pbtxt", "instance_group[0].gpus")]
    (base / "m/configs/gpu.pbtxt").write_text(text + "instance_group { kind: KIND_GPU gpus: [ 0 ] }")
    assert lint(base, "26.05") == ()


def test_an_ensemble_meets_the_configs_of_the_same_name(tmp_path):
    base = write(tmp_path, BASES["ensemble"]())
    (base / "m/configs").mkdir()
    (base / "m/configs/small.pbtxt").write_text((base / CONFIG).read_text().replace("size: 4", "size: 2"))
    assert [(f, field) for f, field, _ in errors(base)] == [("e/config.pbtxt", "max_batch_size")]


def test_a_warm_up_of_an_openvino_batch_fails_the_load(tmp_path):
    """The backend refuses each request of a batch that is smaller than its fixed one; warm-up sends such requests."""
    data = "data_type: TYPE_FP32 dims: 3 zero_data: true"
    sample = f'model_warmup {{ name: "w" batch_size: 4 inputs {{ key: "x" value {{ {data} }} }} }}'
    fixed = swap("[ -1, 3 ]", "[ 3 ]", "max_batch_size: 4", sample)(BASES["openvino"]())
    found = [(f.severity, f.field) for f in lint(write(tmp_path, fixed), NEWEST)]
    assert found == [("error", "model_warmup"), ("warning", "max_batch_size")]


def test_a_fixed_batch_of_one_may_leave_sizes_to_the_ir(tmp_path):
    one = swap("[ -1, 3 ]", "[ -1 ]", "max_batch_size: 1")(BASES["openvino"]())
    one[CONFIG] = str(one[CONFIG]).replace(
        '"y" data_type: TYPE_FP32 dims: [ -1 ]', '"y" data_type: TYPE_FP32 dims: [ 3 ]'
    )
    assert lint(write(tmp_path, one), NEWEST) == ()


def test_a_step_that_its_backend_completes_is_not_judged(tmp_path):
    files = {**BASES["ensemble"](), CONFIG: 'backend: "onnxruntime"\nmax_batch_size: 4\n'}
    assert errors(write(tmp_path, files)) == []


def test_findings_are_ordered_and_not_repeated(tmp_path):
    broken = swap('name: "m"', 'name: "n"', "optimization { cuda { } }", "instance_group { gpus: -1 }")(python_base())
    broken["m/configs/a.pbtxt"] = str(broken[CONFIG]) + "dynamic_batching { preferred_batch_size: 9 }"
    found = lint(write(tmp_path, broken), "26.05")
    assert [f.severity for f in found] == sorted(f.severity for f in found)
    assert len(set(found)) == len(found) == 7


def test_external_weights_of_onnx(tmp_path):
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    info = helper.make_tensor_value_info
    weight = numpy_helper.from_array(np.arange(3, dtype=np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        "scaled",
        [info("x", TensorProto.FLOAT, ("batch", 3))],
        [info("y", TensorProto.FLOAT, ("batch", 3))],
        [weight],
    )
    root = write(tmp_path / "r", onnx_base())
    path = root / "m/1/model.onnx"
    onnx.save(helper.make_model(graph), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert lint(root, "26.05") == ()
    (root / "m/1/w.bin").write_bytes(bytes(8))
    assert errors(root) == [("m/1/model.onnx", "", "needs 12 bytes of w.bin, which has 8")]
    (root / "m/1/w.bin").unlink()
    assert errors(root) == [("m/1/model.onnx", "", "its weights w.bin are not there")]
    model = onnx.load(path, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "../../../w.bin"
    path.write_bytes(model.SerializeToString())
    ((file, _, why),) = errors(root)
    assert file == "m/1/model.onnx"
    assert ".." in why


# --- bad input


def test_a_missing_folder_and_a_file(tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        lint(tmp_path / "gone", NEWEST)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        lint(tmp_path / "file", NEWEST)
    with pytest.raises(UsageError, match="unknown Triton release"):
        lint(tmp_path, "99.99")


def test_an_empty_folder(tmp_path):
    (finding,) = lint(tmp_path, NEWEST)
    assert (finding.severity, finding.file) == ("error", ".")


def test_a_folder_that_is_no_model(tmp_path):
    root = write(tmp_path, {**python_base(), ".git/config": "", "notes/readme.md": ""})
    assert [file for file, _, _ in errors(root)] == [".git/config.pbtxt", "notes/config.pbtxt"]
    assert [f.file for f in lint(root, NEWEST) if f.severity == "warning"] == [".git"]


def test_names_that_are_unsafe_as_paths(tmp_path):
    root = write(
        tmp_path, {"a..b/config.pbtxt": str(python_base()[CONFIG]).replace('"m"', '"a..b"'), "a..b/1/model.py": ""}
    )
    assert ("a..b", "") in [(file, field) for file, field, _ in errors(root)]


@pytest.mark.parametrize("content", [b"\x00" * 4096, bytes(range(256)) * 16, b'name: "' + b"a" * 100, b"{" * 5000])
def test_garbage_as_a_config(tmp_path, content):
    root = write(tmp_path, {**python_base(), CONFIG: content})
    assert [(file, field) for file, field, _ in errors(root)] == [(CONFIG, "")]


def test_a_config_beyond_all_measure(tmp_path):
    root = write(tmp_path, {**python_base(), CONFIG: b"#" * (5 << 20)})
    ((file, _, why),) = errors(root)
    assert file == CONFIG
    assert "more than" in why


def test_links(tmp_path):
    root = write(tmp_path / "r", python_base())
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("max_batch_sise: 1")
    (root / "m/2").symlink_to(outside)
    (root / "m/circle").symlink_to("circle")
    (root / "gone").symlink_to("nowhere")
    (root / "m/1/same.py").symlink_to("model.py")
    (root / "n").symlink_to(outside)
    found = errors(root)
    assert [file for file, field, why in found if "link" in why] == ["gone", "m/2", "m/circle", "n"]
    assert not any("sise" in why for _, _, why in found)


def test_a_config_that_is_a_link_to_outside_is_not_read(tmp_path):
    root = write(tmp_path / "r", python_base())
    (tmp_path / "secret").write_text("password: 1")
    (root / CONFIG).unlink()
    (root / CONFIG).symlink_to(tmp_path / "secret")
    found = errors(root)
    assert {file for file, _, _ in found} == {CONFIG}
    assert not any("password" in why for _, _, why in found)


def test_deep_circles_of_links(tmp_path):
    root = write(tmp_path, python_base())
    at = root / "m/1"
    for level in range(40):
        at = at / str(level)
        at.mkdir()
        (at / "up").symlink_to(os.path.relpath(root / "m", at))
        (at / "round").symlink_to("again")
        (at / "again").symlink_to("round")
    found = errors(root)
    assert len(found) == 80
    assert all("circle" in why for _, _, why in found)


def test_a_pipe_in_place_of_a_file_does_not_hang(tmp_path):
    root = write(tmp_path, {**BASES["openvino"](), "m/1/model.xml": None})
    shutil.rmtree(root / "m/1/model.xml")
    os.mkfifo(root / "m/1/model.xml")
    os.mkfifo(root / "launch.sh")
    (root / CONFIG).unlink()
    os.mkfifo(root / CONFIG)
    assert [(file, why) for file, _, why in errors(root)] == [(CONFIG, "it is not a plain file")]


def test_huge_dims_of_a_warm_up_are_only_counted(tmp_path):
    large = ", ".join(["9223372036854775807"] * 8)
    sample = (
        f'model_warmup {{ name: "w" batch_size: 1 inputs {{ key: "x" value {{ data_type: TYPE_FP32 dims: [ {large} ] '
    )
    edit = add(sample + 'input_data_file: "x" } } }', files={"m/warmup/x": b"1"})
    base = python_base()
    base[CONFIG] = str(base[CONFIG]).replace("[ 3 ]", f"[ {', '.join(['-1'] * 8)} ]")
    assert [field for _, field, _ in errors(write(tmp_path, edit(base)))] == ["model_warmup.w.x"]


@pytest.mark.parametrize("name", ["a" * 5000, "b/" + "a" * 300, "../x", "/x"])
def test_names_that_no_file_can_have(tmp_path, name):
    sample = 'model_warmup { name: "w" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 3 '
    config = f'{python_base()[CONFIG]}default_model_filename: "{name}"\n{sample} input_data_file: "{name}" }} }} }}\n'
    config = config.replace('output { name: "y"', f'output {{ label_filename: "{name}" name: "y"')
    fields = [field for _, field, _ in errors(write(tmp_path, {**python_base(), CONFIG: config}))]
    assert fields == ["default_model_filename", "model_warmup.w.x.input_data_file", "output.y.label_filename"]


FOREIGN = {"schema": 1, "builder": "b", "batched": True, "numpy_below_2": True, "outputs": []}
FOREIGN_TEXTS = [json.dumps(FOREIGN | {"inputs": [{"name": "x", "dtype": "float32", "dims": 3}]}), '{"inputs": 1}']
FOREIGN_TEXTS += [json.dumps(FOREIGN | {"inputs": [{"name": "x", "dtype": [None], "dims": []}]})]


@pytest.mark.parametrize("content", [b"\xff", b"[]", b"[" * 100_000, *(text.encode() for text in FOREIGN_TEXTS)])
def test_an_artifact_json_of_somebody_else_is_left_alone(tmp_path, content):
    assert lint(write(tmp_path, {**python_base(), "m/1/artifact.json": content}), NEWEST) == ()


def test_nothing_of_a_repository_is_run(tmp_path):
    code = f"open({str(tmp_path / 'ran')!r}, 'w')\nclass TritonPythonModel: ...\n"
    root = write(tmp_path / "r", {**python_base(), "m/1/model.py": code, "launch.sh": f"touch {tmp_path / 'ran'}"})
    assert lint(root, NEWEST) == ()
    assert not (tmp_path / "ran").exists()


# --- the tables


def test_every_row_has_a_source():
    for keys in PARAMETERS.values():
        assert all(" src/" in row.source for row in keys.values())
    for known in ACCELERATORS.values():
        for accelerator in known.values():
            assert " src/" in accelerator.source
            assert all(" src/" in row.source or "core/providers" in row.source for row in accelerator.keys.values())


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_every_parameter_of_the_tables_is_accepted_with_a_value_of_its_kind(backend, tmp_path):
    values = {"int": "1", "uint": "1", "digits": "1", "bool": "true", "ort bool": "1", "yes": "YES", "text": "x"}
    values["arenas"] = "cpu:0"
    texts = [parameter(k, row.values[0] if row.values else values[row.kind]) for k, row in PARAMETERS[backend].items()]
    found = lint(write(tmp_path, add(*texts)(BASES[backend]())), NEWEST)
    assert {f.field for f in found} <= {"parameters.ENABLE_BATCH_PADDING"}, found


# --- the command


def accel(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "accel", *map(str, words)], capture_output=True, text=True, check=False
    )


def test_the_command_says_what_verify_says_and_leaves_with_1_on_errors(tmp_path):
    root = write(tmp_path / "r", python_base())
    done = accel("lint", root)
    assert (done.returncode, done.stdout) == (0, "")
    assert f"nothing that Triton {NEWEST} rejects" in done.stderr
    (root / CONFIG).write_text((root / CONFIG).read_text().replace("[ 3 ]", "[ 0 ]"))
    done = accel("lint", root, "--triton-release", "26.05", "--json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert [f["field"] for f in document["findings"]] == ["input.x.dims", "output.y.dims"]
    assert set(document["findings"][0]) == {"severity", "file", "field", "why", "fix"}
    assert "2 errors for Triton 26.05" in done.stderr


def test_the_command_on_bad_input(tmp_path):
    done = accel("lint", tmp_path / "gone")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is not a folder" in done.stderr
    done = accel("lint", tmp_path, "--triton-release", "26.99")
    assert done.returncode == 2
    assert "unknown Triton release" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_ir_of_this_openvino_is_read_as_openvino_reads_it():
    """Names, dims and bounds of ``ports`` against OpenVINO itself."""
    import tempfile

    import openvino as ov

    from accel.triton.lint.ports import read_ports

    xml, weights = openvino_model(bounded=True, layout=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        (root / "model.xml").write_bytes(xml)
        (root / "model.bin").write_bytes(weights)
        ports = read_ports(root, "model.xml")
        model = ov.Core().read_model(root / "model.xml")
        for port, real in ((ports.inputs[0], model.inputs[0]), (ports.outputs[0], model.outputs[0])):
            assert port.names[0] == real.get_any_name()
            assert set(port.names) == real.get_names()
            assert port.batch
            assert port.dims == (-1, 3)
        assert ports.inputs[0].spans == {0: (1, 10)}
        assert ports.weights == {"model.bin": len(weights)}
