"""What the GPU targets of ONNX Runtime and torch do, as far as a CPU can show it: the same lines on another device."""

import contextlib
from pathlib import Path

import numpy as np
import onnx
import pytest
import small_onnx
import torch
from onnx import TensorProto, helper

from accel.bench.timed_session import TimedSession
from accel.builders import targets
from accel.builders.ort_providers import CPU, CUDA, TENSORRT, Provider, fallback_nodes, provider_for, tensorrt_folder
from accel.builders.ort_session import OrtDeviceSession, OrtSession, failure, fallback, open_session, profiled
from accel.builders.torch_device import TorchDeviceSession
from accel.core import environments, gpu
from accel.core.errors import StageError, UnavailableError
from accel.core.values import Artifact, Built, ShapeRange, Target, TensorSpec, Variant
from accel.graph.fuse import lend_shapes
from accel.graph.products import products_by_type
from accel.triton import lint, repository
from accel.triton.releases import NEWEST
from accel.triton.request import ClientModel, EmitRequest

WIDTH = 32
PROFILE = {"x": ShapeRange((1, WIDTH), (2, WIDTH), (8, WIDTH))}
SPECS = (TensorSpec("x", "float32", ("batch", WIDTH)),), (TensorSpec("y", "float32", ("batch", WIDTH)),)


def variant(name: str, **options) -> Variant:
    return Variant(Target(name, "cuda"), PROFILE, options=options)


def artifact(name: str, entry: str = "model.onnx", **facts) -> Artifact:
    return Artifact(variant(name), (), "0", Built(entry, *SPECS, "fp32", facts, {"onnxruntime-gpu": "1.31.1"}), 1.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("mlp")
    small_onnx.mlp(made / "model.onnx", width=WIDTH)
    return made


@pytest.fixture
def sessions(folder):
    """A bound session and the plain one that tells what is right, both on the CPU."""
    made = artifact("ort-cuda")
    with (
        contextlib.closing(OrtDeviceSession(made, folder, Provider(CPU), threads=1, mode="throughput")) as bound,
        contextlib.closing(OrtSession(made, folder, Provider(CPU), threads=1, mode="latency")) as plain,
    ):
        yield bound, plain


def feed(batch: int, seed: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((batch, WIDTH)).astype(np.float32)}


def test_a_bound_session_answers_as_a_plain_one_at_every_shape(sessions):
    bound, plain = sessions
    for batch, seed in ((2, 0), (8, 1), (8, 2), (1, 3)):
        given = feed(batch, seed)
        kept = given["x"].copy()
        np.testing.assert_array_equal(bound.run(given)["y"], plain.run(given)["y"])
        np.testing.assert_array_equal(given["x"], kept)


def test_a_bound_result_outlives_the_next_call(sessions):
    bound, plain = sessions
    first = bound.run(feed(2, 0))
    bound.run(feed(2, 1))
    np.testing.assert_array_equal(first["y"], plain.run(feed(2, 0))["y"])


def test_the_parts_of_a_call_are_told_apart(sessions):
    split = sessions[0].split(feed(4, 0))
    assert split is not None
    assert split.bytes_in == split.bytes_out == 4 * WIDTH * 4
    assert min(split.copy_in_ms, split.compute_ms, split.copy_out_ms) > 0
    assert sessions[1].split(feed(4, 0)) is None


def test_a_closed_bound_session_says_so(folder):
    session = OrtDeviceSession(artifact("ort-cuda"), folder, Provider(CPU), threads=1, mode="latency")
    session.close()
    with pytest.raises(StageError, match="closed"):
        session.run(feed(1, 0))


def test_nodes_that_ran_elsewhere_are_named_and_arithmetic_on_shapes_is_not(tmp_path):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], "shape"),
        helper.make_node("Gather", ["s", "zero"], ["n"], "gather"),
        helper.make_node("Unsqueeze", ["n", "axis"], ["n1"], "unsqueeze"),
        helper.make_node("Concat", ["n1", "rest"], ["target"], "concat", axis=0),
        helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
        helper.make_node("Reshape", ["h", "target"], ["y"], "reshape"),
    ]
    constants = [
        helper.make_tensor("zero", TensorProto.INT64, [], [0]),
        helper.make_tensor("axis", TensorProto.INT64, [1], [0]),
        helper.make_tensor("rest", TensorProto.INT64, [1], [-1]),
        helper.make_tensor("w", TensorProto.FLOAT, [WIDTH, WIDTH], np.eye(WIDTH).ravel()),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", WIDTH]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "m.onnx")
    ran = profiled(tmp_path / "m.onnx", Provider(CPU), feed(2, 0))
    assert fallback_nodes(ran, CPU) == []
    named = fallback_nodes(ran, CUDA)
    assert named[0] == "product (MatMul, CPU)"
    assert not [n for n in named if n.startswith(("shape", "gather", "unsqueeze", "concat"))]
    error = fallback(CUDA, named)
    assert "product (MatMul, CPU)" in error.message
    assert "allow_fallback" in str(error.fix)


def test_a_session_whose_nodes_ran_elsewhere_fails_unless_that_is_allowed(folder):
    """Asked for another provider than the one that runs: what the profile says decides."""

    class Elsewhere(OrtSession):
        def _profiled(self):
            return [dict(node, provider="OtherExecutionProvider") for node in super()._profiled()]

    for strict in (True, False):
        provider = Provider(CPU, strict=strict)
        with contextlib.closing(
            Elsewhere(artifact("ort-cuda"), folder, provider, threads=1, mode="latency")
        ) as session:
            if strict:
                with pytest.raises(StageError, match="fc0"):
                    session.precision()
            else:
                assert session.precision() == "fp32"


def test_tf32_is_always_set_and_profiles_are_named():
    for name, tf32 in (("ort-cuda", "0"), ("ort-cuda-tf32", "1"), ("ort-cuda-fp16", "0")):
        provider = provider_for(variant(name), threads=1, mode="latency")
        assert (provider.name, provider.options["use_tf32"], provider.strict) == (CUDA, tf32, True)
    provider = provider_for(variant("ort-trt"), threads=1, mode="latency", engines=Path("/e"), keep_timings=True)
    assert provider.name == TENSORRT
    assert provider.options["trt_profile_min_shapes"] == f"x:1x{WIDTH}"
    assert provider.options["trt_profile_max_shapes"] == f"x:8x{WIDTH}"
    assert provider.options["trt_timing_cache_path"] == "/e"
    assert not [k for k in provider.options if "fp16" in k or "int8" in k], "a flag would end strong typing"
    assert provider.behind[0][1]["use_tf32"] == "1"
    assert not provider_for(variant("ort-cuda"), threads=1, mode="latency", allow_fallback=True).strict


@pytest.mark.parametrize("name", ["ort-cuda", "ort-cuda-tf32", "ort-cuda-fp16", "ort-trt", "ort-trt-fp16"])
@pytest.mark.parametrize("release", ["26.05", NEWEST])
def test_repositories_of_gpu_targets_pass_the_linter(tmp_path, folder, name, release):
    """The accelerator that is emitted says what was measured, and nothing in it is refused or ignored."""
    files = tmp_path / "files"
    (files / "trt").mkdir(parents=True)
    (files / "model.onnx").write_bytes((folder / "model.onnx").read_bytes())
    (files / "trt" / "any.engine").write_bytes(b"engine")
    from accel.core.values import file_refs

    made = artifact(name)
    made = Artifact(made.variant, file_refs(files), "0", made.built, 1.0)
    points = ("min", "odd", "opt", "max")
    for file, key in (("samples.npz", "x"), ("reference.npz", "y")):
        np.savez(tmp_path / file, **{f"{p}/{key}": feed(n, n)["x"] for p, n in zip(points, (1, 3, 2, 8), strict=True)})
    repository.emit(
        made,
        files,
        model=ClientModel(model_name="mlp", inputs=SPECS[0], outputs=SPECS[1]),
        request=EmitRequest(release=release),
        builder=targets.discover()[name],
        root=tmp_path / "repository",
        run_dir=tmp_path,
        samples=tmp_path / "samples.npz",
        reference=tmp_path / "reference.npz",
    )
    config = (tmp_path / "repository" / "mlp" / "config.pbtxt").read_text()
    script = (tmp_path / "repository" / "launch.sh").read_text()
    assert "KIND_GPU" in config
    assert 'key: "use_tf32"' in config
    assert ("mlp/1/trt" in config) == ('cd -- "$here"' in script) == name.startswith("ort-trt")
    assert (tmp_path / "repository" / "mlp" / "1" / "trt" / "any.engine").is_file()
    wrong = [f for f in lint.lint(tmp_path / "repository", release=release) if f.severity == "error"]
    assert not wrong


def test_a_missing_provider_names_its_environment(folder):
    with pytest.raises(UnavailableError) as error:
        open_session(folder / "model.onnx", Provider(CUDA), threads=1, mode="latency")
    assert error.value.fix == "accel env install ort-gpu"


def fake_driver(folder: Path, driver: str) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho 'GPU-1, NVIDIA H200, 143771, {driver}, 9.0'\n")
    tool.chmod(0o755)


@pytest.mark.parametrize("name", ["ort-cuda", "ort-trt-fp16"])
def test_what_a_gpu_machine_lacks_is_said_one_after_another(tmp_path, monkeypatch, name):
    """Driver, environment, TensorRT: each with its own remedy."""
    builder, target = targets.discover()[name], Target(name, "cuda")
    monkeypatch.setenv("ACCEL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    for which, driver in (("old", "535.104.05"), ("new", "580.65.06")):
        (tmp_path / which).mkdir()
        fake_driver(tmp_path / which, driver)
    monkeypatch.setenv("PATH", str(tmp_path / "old"))
    assert "535.104.05 is too old for CUDA 13.0: it needs 580" in builder.available(target).reason
    monkeypatch.setenv("PATH", str(tmp_path / "new"))
    lacks = ["ort-gpu"] + (["modelopt"] if "fp16" in name else [])
    for environment in lacks:
        assert builder.available(target).fix == f"accel env install {environment}"
        interpreter = environments.python(environment)
        interpreter.parent.mkdir(parents=True)
        interpreter.touch()
        pins = "\n".join(environments.requirements(environment))
        (interpreter.parents[1] / "complete").write_text(pins)
    if name == "ort-cuda":
        assert builder.available(target) is None
        return
    assert "libnvinfer.so.10" in builder.available(target).reason
    assert "pypi.nvidia.com" in builder.available(target).fix
    libraries = environments.site_packages("ort-gpu") / "tensorrt_libs"
    libraries.mkdir(parents=True)
    (libraries / "libnvinfer.so.10").touch()
    assert tensorrt_folder() == libraries
    assert builder.available(target) is None


def test_torch_says_that_it_has_no_cuda_or_is_too_new_for_the_driver(tmp_path, monkeypatch):
    if torch.version.cuda is not None:
        pytest.skip("this torch has CUDA")
    fake_driver(tmp_path, "580.65.06")
    monkeypatch.setenv("PATH", str(tmp_path))
    skipped = targets.discover()["torch"].available(Target("torch", "cuda"))
    assert "is built without CUDA" in skipped.reason
    assert skipped.fix


def test_running_out_of_memory_is_recognised_in_the_runtimes_own_words(tmp_path):
    graph = helper.make_graph(
        [helper.make_node("ConstantOfShape", ["n"], ["y"])],
        "g",
        [helper.make_tensor_value_info("n", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m"])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), tmp_path / "m.onnx")
    session = open_session(tmp_path / "m.onnx", Provider(CPU), threads=1, mode="latency")
    with pytest.raises(Exception, match="memory") as error:
        session.run(None, {"n": np.array([1 << 45])})
    assert "max-shape" in str(failure("it failed", error.value).fix)
    assert not gpu.ran_out_of_memory(ValueError("shapes differ"))
    assert gpu.ran_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))


@pytest.fixture
def torch_session():
    torch.manual_seed(0)
    layer = torch.nn.Linear(WIDTH, WIDTH).eval()

    def call(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (layer(x),)

    with contextlib.closing(TorchDeviceSession(*SPECS, call, "fp32", device=torch.device("cpu"), slots=2)) as session:
        yield session, lambda given: layer(torch.from_numpy(given["x"].copy())).detach().numpy()


def test_torch_on_a_device_keeps_slots_and_shapes_apart(torch_session):
    session, truth = torch_session
    for batch in (2, 8, 8, 1):
        given = feed(batch, batch)
        np.testing.assert_array_equal(session.run(given)["y"], truth(given))
    both = [feed(2, 10), feed(3, 11)]
    for slot, given in enumerate(both):
        session.bind(given, slot=slot)
        session.submit(slot=slot)
    for slot, given in enumerate(both):
        session.wait(slot=slot)
        np.testing.assert_array_equal(session.read(slot=slot)["y"], truth(given))


def test_torch_on_a_device_takes_arrays_that_cannot_be_written_and_tells_the_parts(torch_session):
    session, truth = torch_session
    given = feed(4, 0)
    given["x"].flags.writeable = False
    np.testing.assert_array_equal(session.run(given)["y"], truth(given))
    split = session.split(given)
    assert (split.bytes_in, split.bytes_out) == (4 * WIDTH * 4, 4 * WIDTH * 4)
    assert min(split.copy_in_ms, split.compute_ms, split.copy_out_ms) > 0


def test_torch_on_a_device_says_what_was_refused_and_when_it_is_closed():
    def call(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x @ torch.zeros(WIDTH + 1, 1),)

    session = TorchDeviceSession(*SPECS, call, "fp32", device=torch.device("cpu"))
    with pytest.raises(StageError, match=r"refused inputs of shapes .*2, 32"):
        session.run(feed(2, 0))
    session.close()
    with pytest.raises((StageError, IndexError)):
        session.run(feed(2, 0))


def test_products_are_counted_by_the_types_of_the_file(tmp_path):
    plain = small_onnx.mlp(tmp_path / "plain.onnx", layers=3, width=8)
    assert products_by_type(plain) == {"fp32": 3}
    model = onnx.load(plain)
    weight = next(t for t in model.graph.initializer if t.name == "w1")
    half = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight).astype(np.float16), "w1")
    weight.CopyFrom(half)
    product = next(n for n in model.graph.node if n.name == "fc1")
    index = list(model.graph.node).index(product)
    before = helper.make_node("Cast", [product.input[0]], ["half_in"], to=TensorProto.FLOAT16)
    after = helper.make_node("Cast", ["half_out"], [product.output[0]], to=TensorProto.FLOAT)
    product.input[0], product.output[0] = "half_in", "half_out"
    model.graph.node.insert(index, before)
    model.graph.node.insert(index + 2, after)
    onnx.save(model, tmp_path / "half.onnx")
    assert products_by_type(tmp_path / "half.onnx") == {"fp32": 2, "fp16": 1}


def test_a_typed_graph_gets_the_shapes_of_its_source_in_its_own_types(tmp_path):
    """Without shapes the fuser finds no attention."""
    plain = small_onnx.mlp(tmp_path / "plain.onnx", layers=2, width=8)
    model = onnx.shape_inference.infer_shapes(onnx.load(plain))
    onnx.save(model, plain)
    declared = {v.name: v.type.tensor_type for v in model.graph.value_info}
    typed = onnx.load(plain)
    typed.graph.ClearField("value_info")
    for tensor in typed.graph.initializer:
        tensor.CopyFrom(
            onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
        )
    first, last = typed.graph.node[0], typed.graph.node[-1]
    first.input[0], last.output[0] = "half_in", "half_out"
    typed.graph.node.insert(0, helper.make_node("Cast", ["x"], ["half_in"], to=TensorProto.FLOAT16))
    typed.graph.node.append(helper.make_node("Cast", ["half_out"], ["y"], to=TensorProto.FLOAT))
    onnx.save(typed, tmp_path / "typed.onnx")
    lend_shapes(plain, tmp_path / "typed.onnx")
    graph = onnx.load(tmp_path / "typed.onnx").graph
    made = {o for n in graph.node for o in n.output}
    found = {v.name: v.type.tensor_type for v in graph.value_info if v.name in made}
    assert found.keys() == declared.keys()
    for name, tensor in found.items():
        assert tensor.elem_type == TensorProto.FLOAT16
        assert tensor.shape == declared[name].shape
    ran = profiled(tmp_path / "typed.onnx", Provider(CPU), {"x": np.ones((2, 8), np.float32)})
    assert fallback_nodes(ran, CPU) == []


def test_the_parts_of_a_call_are_medians_over_calls(sessions):
    timed = TimedSession(sessions[0], {"b2": feed(2, 0)})
    split = timed.split("b2", calls=3)
    assert split is not None
    assert split.bytes_in == 2 * WIDTH * 4
    assert split.compute_ms > 0
    assert TimedSession(sessions[1], {"b2": feed(2, 0)}).split("b2", calls=3) is None
