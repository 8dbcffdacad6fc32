"""TensorFlow targets: what ships is the source's own SavedModel where that can be, and Triton serves it up to 25.02."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from accel import exporters
from accel.builders.targets import discover
from accel.builders.to_tensorflow import BUILDER, ENTRY
from accel.core.errors import InputError, StageError, UsageError
from accel.core.feeds import write_feeds
from accel.core.values import (
    Artifact,
    BuildRequest,
    GraphChoice,
    OnnxModel,
    Repository,
    SampleSet,
    Skipped,
    Target,
    TritonModel,
    Variant,
    file_ref,
    file_refs,
)
from accel.exporters.check import reference_points
from accel.exporters.sources import recognise
from accel.exporters.tensorflow_runtime import import_tensorflow
from accel.triton.config import parse
from accel.triton.lint import lint
from accel.triton.repository import emit
from accel.triton.request import ClientModel, EmitRequest

ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SavedModel with a matrix product, a convolution, one that XLA cannot compile, and a lookup."""
    tf = import_tensorflow()
    folder = tmp_path_factory.mktemp("tf-builder") / "saved"
    module = tf.Module()
    module.weight = tf.Variable(np.random.default_rng(0).standard_normal((4, 3)), dtype=tf.float32)

    def product(x: Any) -> dict[str, Any]:
        return {"y": tf.matmul(x, module.weight)}

    def uncompilable(x: Any) -> dict[str, Any]:
        return {"y": tf.strings.to_number(tf.strings.as_string(x)) * 1.0}

    def lookup(ids: Any) -> dict[str, Any]:
        return {"row": tf.gather(module.weight, ids)}

    def pool(x: Any) -> dict[str, Any]:
        return {"y": tf.nn.conv2d(x, module.kernel, 1, "SAME")}

    module.kernel = tf.Variable(np.random.default_rng(1).standard_normal((3, 3, 3, 5)), dtype=tf.float32)
    rows, ids = tf.TensorSpec((None, 4), tf.float32, "x"), tf.TensorSpec((None, 2), tf.int64, "ids")
    signatures = {
        "serving_default": tf.function(product).get_concrete_function(rows),
        "uncompilable": tf.function(uncompilable).get_concrete_function(rows),
        "pool": tf.function(pool).get_concrete_function(tf.TensorSpec((None, 6, 8, 3), tf.float32, "x")),
        "lookup": tf.function(lookup).get_concrete_function(ids),
    }
    tf.saved_model.save(module, str(folder), signatures=signatures)
    return folder


@pytest.fixture
def build(saved: Path, tmp_path: Path) -> Callable[..., tuple[Artifact, Path, Any]]:
    def go(target: str, *, signature: str | None = None, narrowed: bool = False) -> tuple[Artifact, Path, Any]:
        device = BUILDER.targets[target].devices[0]
        asked = recognise(
            str(saved), graph=GraphChoice(signature=signature), ranges={"ids": (0, 3)} if narrowed else {}
        )
        source = exporters.describe(asked)
        if narrowed:
            source = replace(
                source, inputs=tuple(replace(s, dtype="int32") for s in source.inputs), native={"ids": "int64"}
            )
        out = tmp_path / target
        out.mkdir()
        feeds = tmp_path / "feeds.npz"
        write_feeds(feeds, {"opt": {"x": ROWS}})
        file = file_ref(feeds, tmp_path)
        samples = SampleSet(None, file, file, 0, 1, file.sha256, "rows")
        variant = Variant(Target(target, device), source.profile)
        request = BuildRequest(variant, source, None, None, samples, str(tmp_path), 1)
        built = BUILDER.build(request, BUILDER.options(), out)
        return Artifact(variant, file_refs(out), source.key, built, 0.1), out, source

    return go


def test_the_baseline_ships_the_files_of_the_source(build: Callable[..., Any], saved: Path) -> None:
    artifact, out, source = build("tf")
    shipped = {f.path.removeprefix(f"{ENTRY}/"): f.sha256 for f in artifact.files}
    assert shipped == {f.path: f.sha256 for f in file_refs(saved)}
    assert artifact.built.facts == {"signature": "serving_default", "xla": False, "as_it_is": True}
    with contextlib.closing(BUILDER.open(artifact, out, threads=1, mode="latency")) as session:
        truth = exporters.load(source).run({"x": ROWS})
        np.testing.assert_array_equal(session.run({"x": ROWS})["y"], truth["y"])
        assert session.precision() == "fp32"


def test_xla_compiles_what_is_saved(build: Callable[..., Any]) -> None:
    from tensorflow.core.protobuf import saved_model_pb2

    artifact, out, source = build("tf-xla")
    stored = saved_model_pb2.SavedModel()
    stored.ParseFromString((out / ENTRY / "saved_model.pb").read_bytes())
    marked = [f.signature.name for f in stored.meta_graphs[0].graph_def.library.function if f.attr["_XlaMustCompile"].b]
    assert marked
    with contextlib.closing(BUILDER.open(artifact, out, threads=1, mode="latency")) as session:
        truth = exporters.load(source).run({"x": ROWS})
        np.testing.assert_allclose(session.run({"x": ROWS})["y"], truth["y"], rtol=1e-5, atol=1e-6)


def test_what_xla_cannot_compile_fails_with_its_operator(build: Callable[..., Any]) -> None:
    artifact, out, _ = build("tf-xla", signature="uncompilable")
    with (
        contextlib.closing(BUILDER.open(artifact, out, threads=1, mode="latency")) as session,
        pytest.raises(StageError, match="AsString"),
    ):
        session.run({"x": ROWS})


def test_a_narrowed_contract_is_cast_inside_the_file(build: Callable[..., Any]) -> None:
    artifact, out, _ = build("tf", signature="lookup", narrowed=True)
    assert artifact.built.inputs[0].dtype == "int32"
    assert not artifact.built.facts["as_it_is"]
    with contextlib.closing(BUILDER.open(artifact, out, threads=1, mode="latency")) as session:
        assert session.run({"ids": np.array([[0, 3]], np.int32)})["row"].shape == (1, 2, 3)


@pytest.mark.parametrize("nchw", [(), ("x",)])
def test_openvino_reads_the_model_itself(saved: Path, tmp_path: Path, nchw: tuple[str, ...]) -> None:
    """OpenVINO's own way past ONNX answers as TensorFlow does, under the client's contract."""
    signature = "pool" if nchw else None
    source = exporters.describe(recognise(str(saved), graph=GraphChoice(signature=signature, nchw=nchw)))
    builder = discover()["openvino-fp32"]
    write_feeds(tmp_path / "feeds.npz", {"opt": {"x": ROWS}})
    file = file_ref(tmp_path / "feeds.npz", tmp_path)
    samples = SampleSet(None, file, file, 0, 1, file.sha256, "rows")
    variant = Variant(Target("openvino-fp32", "cpu"), source.profile)
    request = BuildRequest(variant, source, None, None, samples, str(tmp_path), 1)
    out = tmp_path / "ir"
    out.mkdir()
    built = builder.build(request, builder.options(frontend="tensorflow"), out)
    assert built.facts["frontend"] == "tensorflow"
    assert (built.inputs, built.outputs) == (source.inputs, source.outputs)
    model = exporters.load(source)
    artifact = Artifact(variant, file_refs(out), source.key, built, 0.1)
    with contextlib.closing(builder.open(artifact, out, threads=1, mode="latency")) as session:
        for point in reference_points(model):
            for name, value in session.run(point.feed).items():
                np.testing.assert_allclose(value, point.answer[name], atol=1e-4)
    with pytest.raises(InputError, match="was not exported"):
        builder.build(request, builder.options(), out)
    refused = tmp_path / "refused.onnx"  # as the loops are that tf2onnx writes
    graph = helper.make_graph([helper.make_node("NoSuch", ["x"], ["y"])], "refused", [], [])
    onnx.save(helper.make_model(graph), refused)
    model = OnnxModel(file_ref(refused, tmp_path), (), 18, 8, {}, source.inputs, source.outputs)
    request = replace(request, onnx=model, onnx_folder=str(tmp_path))
    assert builder.build(request, builder.options(), out).facts["frontend"] == "tensorflow"
    with pytest.raises(StageError, match=r"could not convert refused\.onnx"):
        builder.build(request, builder.options(frontend="onnx"), out)
    with pytest.raises(UsageError, match="expected onnx or tensorflow"):
        builder.build(request, builder.options(frontend="torch"), out)
    with pytest.raises(InputError, match="reads TensorFlow models"):
        builder.build(
            replace(request, source=replace(source, framework="onnx")), builder.options(frontend="tensorflow"), out
        )


def test_another_frameworks_source_is_refused(build: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(4, 3)\n")
    artifact, _, _ = build("tf")
    source = exporters.describe(recognise(f"{tmp_path / 'net.py'}:make", opt_shapes={"input": (1, 4)}))
    file = file_ref(tmp_path / "feeds.npz", tmp_path)
    request = BuildRequest(
        artifact.variant, source, None, None, SampleSet(None, file, file, 0, 1, "", ""), str(tmp_path), 1
    )
    with pytest.raises(InputError, match="starts from a TensorFlow model"):
        BUILDER.build(request, BUILDER.options(), tmp_path)


@pytest.mark.parametrize(
    ("target", "accelerator", "level", "kind"),
    [
        ("tf", None, 0, 2),
        ("tf-xla", None, 1, 2),
        ("tf-amp", ("auto_mixed_precision", {}), 0, 1),
        ("tf-trt-fp16", ("tensorrt", {"precision_mode": "FP16"}), 0, 1),
    ],
)
def test_triton_serves_it_up_to_its_last_tensorflow(
    build: Callable[..., Any], tmp_path: Path, target: str, accelerator: Any, level: int, kind: int
) -> None:
    artifact, out, source = build(target)
    points = {"opt": {"x": ROWS}}
    write_feeds(tmp_path / "samples.npz", points)
    write_feeds(tmp_path / "reference.npz", {"opt": exporters.load(source).run({"x": ROWS})})

    def emitted(release: str) -> Repository | Skipped:
        return emit(
            artifact,
            out,
            model=ClientModel(model_name="rows", inputs=source.inputs, outputs=source.outputs),
            request=EmitRequest(release=release, threads=2),
            builder=BUILDER,
            root=tmp_path / "root",
            run_dir=tmp_path,
            samples=tmp_path / "samples.npz",
            reference=tmp_path / "reference.npz",
        )

    repository = emitted("25.02")
    assert isinstance(repository, Repository)
    assert repository.backend == "tensorflow"
    assert any("tensorflow" in line for line in repository.unverified)
    config = parse((tmp_path / "root" / "rows" / "config.pbtxt").read_text())
    assert (config.platform, config.default_model_filename) == ("tensorflow_savedmodel", ENTRY)
    assert (config.optimization.graph.level, config.instance_group[0].kind) == (level, kind)
    assert (config.max_batch_size, list(config.input[0].dims)) == (16, [4])
    assert config.parameters["TF_NUM_INTRA_THREADS"].string_value == "2"
    gpu = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert [(a.name, dict(a.parameters)) for a in gpu] == ([accelerator] if accelerator else [])
    assert [f.field for f in lint(tmp_path / "root", "25.02")] == ["unverified"]
    later = emitted("25.03")
    assert isinstance(later, Skipped)
    assert "25.02 was the last" in later.reason
    assert ("trt-fp16" in later.reason) == (accelerator is not None)


def test_another_signature_is_named_in_the_config(build: Callable[..., Any]) -> None:
    artifact, _, _ = build("tf", signature="lookup")
    served = BUILDER.triton(artifact, "25.02")
    assert isinstance(served, TritonModel)
    assert served.parameters == {"TF_SIGNATURE_DEF": "lookup"}
