"""A TensorRT plan is tied to a TensorRT version and a GPU: lint and serve refuse what cannot run it."""

import os
from dataclasses import replace

import embedding
import pytest

from accel.builders.to_tensorrt import BUILDER
from accel.core import hardware
from accel.core.errors import StageError
from accel.core.hardware import Gpu
from accel.core.values import Skipped
from accel.triton import repository
from accel.triton.lint import lint, plans
from accel.triton.manifest import read
from accel.triton.releases import RELEASES
from accel.triton.request import ClientModel, EmitRequest
from accel.triton.servers import server as servers

FACTS = {"tensorrt": "10.16.1.11", "compute_capability": "9.0", "gpu": "an H200", "driver": "580.1"}
H200 = Gpu("an H200", 141 << 30, "580.1", "9.0")
T4 = Gpu("a T4", 16 << 30, "580.1", "7.5")


def emit_plan(bench, artifact, release):
    """Emit an artifact of the TensorRT builder."""
    return repository.emit(
        artifact,
        bench.folder("trt-fp16"),
        model=ClientModel(model_name="embedding", inputs=embedding.INPUTS, outputs=embedding.OUTPUTS),
        request=EmitRequest(release=release),
        builder=BUILDER,
        root=bench.root(artifact),
        run_dir=bench.run_dir,
        samples=bench.samples,
        reference=bench.reference,
    )


@pytest.fixture
def emit(bench):
    """Emit a plan as the TensorRT builder describes it; the file is not a real plan, and nothing here opens it."""

    def emitted(release="26.05", **facts):
        folder = bench.folder("trt-fp16")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.plan").write_bytes(b"plan")
        artifact = embedding.artifact(
            folder,
            "trt-fp16@cuda",
            entry="model.plan",
            precision="fp16",
            facts=FACTS | facts,
            versions={"tensorrt": FACTS["tensorrt"]},
        )
        root = bench.root(artifact)
        found = emit_plan(bench, artifact, release)
        assert not isinstance(found, Skipped), found
        return root

    return emitted


def of_plan(root, release):
    return [f for f in lint(root, release) if f.field == "artifact.built.facts"]


def test_the_manifest_says_what_the_plan_is_tied_to(emit):
    root = emit()
    manifest = read(root)
    assert manifest.backend == "tensorrt"
    assert manifest.artifact.built.facts == FACTS
    config = (root / "embedding" / "config.pbtxt").read_text()
    assert 'backend: "tensorrt"' in config
    assert 'default_model_filename: "model.plan"' in config
    assert "KIND_GPU" in config


def test_lint_refuses_another_major_and_says_what_to_do(emit):
    root = emit()
    (error,) = [f for f in of_plan(root, "26.06") if f.severity == "error"]
    assert "with TensorRT 10.16.1.11, and TensorRT 11 is to run it" in error.why
    assert "accel build KIT --toolchain docker:IMAGE" in error.fix
    assert "26.06" in error.fix
    (warning,) = of_plan(root, "26.05")  # only the major version of that release is known
    assert warning.severity == "warning"
    assert "runs on TensorRT 10.16.1.11 alone" in warning.why


def test_a_version_compatible_plan_runs_on_later_ones(emit):
    root = emit(version_compatible=True)
    assert [f for f in of_plan(root, "26.06") if f.severity == "error"] == []
    assert "version-compatible=true" in (root / "launch.sh").read_text()


def test_a_gpu_of_this_machine_that_cannot_run_it_is_named(emit):
    manifest = read(emit())
    row = RELEASES["26.05"]
    assert not [f for f in plans.findings(manifest, row, [H200, T4]) if "this machine" in f.why]
    (found,) = [f for f in plans.findings(manifest, row, [T4]) if "this machine" in f.why]
    assert found.severity == "warning"
    assert "compute capability 9.0" in found.why
    assert "7.5" in found.why
    assert not list(plans.findings(replace(manifest, backend="python"), row, [T4]))


def test_serve_refuses_before_it_starts_anything(emit, tmp_path, monkeypatch):
    root = emit()
    program = tmp_path / "opt" / "bin" / "tritonserver"
    (tmp_path / "opt" / "backends" / "tensorrt").mkdir(parents=True)
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ntouch started\n")
    program.chmod(0o755)
    monkeypatch.setenv("TRITONSERVER", str(program))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StageError, match=r"cannot be served by Triton 26\.06: built with TensorRT 10") as error:
        servers.start(root, via="local", log=tmp_path / "log", release="26.06")
    assert "accel build KIT" in str(error.value.fix)
    assert not (tmp_path / "started").exists()


def test_serve_refuses_another_gpu(emit, tmp_path, monkeypatch):
    tool = tmp_path / "bin" / "nvidia-smi"  # says what one says on a machine with a T4
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'GPU-1, Tesla T4, 15360, 580.1, 7.5'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [gpu.compute_capability for gpu in hardware.detect().gpus] == ["7.5"]
    with pytest.raises(StageError, match=r"cannot be served on this machine: built on an H200") as error:
        plans.check(emit(), "26.05")
    assert "hardware_compatibility" in str(error.value.fix)
    plans.check(emit(hardware_compatibility="same_compute_capability", compute_capability="7.5"), "26.05")


def test_a_stripped_plan_is_not_served(bench):
    folder = bench.folder("trt-fp16")
    folder.mkdir(parents=True)
    (folder / "model.plan").write_bytes(b"plan")
    artifact = embedding.artifact(folder, "trt-fp16@cuda", entry="model.plan", facts=FACTS | {"weights": "stripped"})
    found = emit_plan(bench, artifact, "26.05")
    assert isinstance(found, Skipped)
    assert "puts no weights into a stripped plan" in found.reason


WHOLE = [
    ("input", "input_ids", "TYPE_INT64", "-1"),
    ("input", "attention_mask", "TYPE_INT64", "-1"),
    ("output", "hidden", "TYPE_FP32", "-1, 4"),
    ("output", "pooled", "TYPE_FP32", "4"),
]
"""Tensors of the plan's config: kind, name, type and dims without the batch axis."""


def config_of(tensors, batch=8):
    """Return a config of these tensors."""
    text = f'name: "embedding"\nbackend: "tensorrt"\ndefault_model_filename: "model.plan"\nmax_batch_size: {batch}\n'
    return text + "".join(f'{k} {{ name: "{n}" data_type: {t} dims: [ {d} ] }}\n' for k, n, t, d in tensors)


def changed(at, **new):
    """Return the tensors with one changed."""
    keys = ("kind", "name", "type", "dims")
    return [tuple(new.get(k, v) for k, v in zip(keys, t, strict=True)) if i == at else t for i, t in enumerate(WHOLE)]


def with_batch(tensors):
    """Return the tensors with the batch axis in their dims."""
    return [(k, n, t, f"-1, {d}") for k, n, t, d in tensors]


EXTRA = ("input", "extra", "TYPE_FP32", "16")
CONTRADICTIONS = {
    "bad_dynamic_shapes_max": (changed(0, dims="13"), 8, "input.input_ids.dims", "a profile from 1 to 12"),
    "bad_dynamic_shapes_min": (changed(0, dims="0"), 8, "input.input_ids.dims", "a profile from 1 to 12"),
    "bad_input_dims": ([*with_batch(WHOLE[1:]), ("input", "input_ids", "TYPE_INT64", "9, -1")], 0,
                       "input.input_ids.dims", "a profile from 1 to 8"),
    "bad_input_shape": (changed(0, dims="-1, 1"), 8, "input.input_ids.dims", "adds the batch axis to dims"),
    "bad_input_type": (changed(1, type="TYPE_FP32"), 8, "input.attention_mask.data_type", "has TYPE_INT64"),
    "bad_output_dims": (changed(3, dims="5"), 8, "output.pooled.dims", "has 5 at axis 1"),
    "bad_output_shape": (changed(3, dims="4, 1"), 8, "output.pooled.dims", "adds the batch axis to dims"),
    "bad_output_type": (changed(2, type="TYPE_FP16"), 8, "output.hidden.data_type", "has TYPE_FP32"),
    "mixed_batch_hint_dims": ([*with_batch(WHOLE[:2]), *WHOLE[2:]], 0, "dims", "of others not"),
    "mixed_batch_hint_shape_values": ([*WHOLE[:3], *with_batch(WHOLE[3:])], 0, "dims", "of others not"),
    "too_few_inputs": (WHOLE[1:], 8, "input.input_ids", "is missing"),
    "too_many_inputs": ([EXTRA, *WHOLE], 8, "input.extra", "is not an input of manifest.json"),
    "unknown_input": (changed(0, name="ids"), 8, "input.ids", "is not an input of manifest.json"),
    "unknown_output": (changed(2, name="hiddens"), 8, "output.hiddens", "is not an output of manifest.json"),
    "a larger batch": (WHOLE, 9, "max_batch_size", "a profile up to 8"),
}  # fmt: skip
"""The kinds of the server's qa/L0_model_config/autofill_noplatform/tensorrt, each in the terms of this model."""
SOUND = {
    "as emitted": (WHOLE, 8),
    "a smaller batch": (WHOLE, 2),
    "a fixed size inside the profile": (changed(1, dims="12"), 8),
    "an output left out": (WHOLE[:3], 8),
    "no batching": (with_batch(WHOLE), 0),
    "batching left to auto-complete": (WHOLE, 0),
    "no tensors": ([], 8),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_config_is_held_against_what_accel_built(emit, name):
    tensors, batch, field, why = CONTRADICTIONS[name]
    root = emit()
    assert [f for f in lint(root, "26.05") if f.severity == "error"] == []
    (root / "embedding/config.pbtxt").write_text(config_of(tensors, batch))
    found = [f for f in lint(root, "26.05") if f.severity == "error"]
    assert (field, True) in [(f.field, why in f.why) for f in found], found


@pytest.mark.parametrize("name", SOUND)
def test_a_config_that_fits_what_accel_built_is_let_through(emit, name):
    root = emit()
    (root / "embedding/config.pbtxt").write_text(config_of(*SOUND[name]))
    assert [f for f in lint(root, "26.05") if f.severity == "error"] == []


def test_another_plan_than_the_manifest_describes_is_named(emit):
    root = emit()
    (root / "embedding/1/model.plan").write_bytes(b"another plan")
    (root / "embedding/config.pbtxt").write_text(config_of(changed(0, name="ids")))
    (found,) = [f for f in lint(root, "26.05") if f.field == "files"]
    assert found.severity == "warning"
    assert "another embedding/1/model.plan" in found.why


def test_the_front_of_a_backend_that_dictates_names_is_held_against_the_contract(bench):
    """Both configs are changed alike: neither contradicts the other, and no file here tells what the package takes."""
    artifact = bench.artifact("aoti")
    bench.emit(artifact)
    root = bench.root(artifact)
    assert [f for f in lint(root, "26.05") if f.severity == "error"] == []
    for path in root.glob("*/config.pbtxt"):
        path.write_text(path.read_text().replace("TYPE_INT64", "TYPE_INT32"))
    found = [f for f in lint(root, "26.05") if f.severity == "error"]
    assert [(f.file, f.field) for f in found] == [
        ("embedding/config.pbtxt", "input.attention_mask.data_type"),
        ("embedding/config.pbtxt", "input.input_ids.data_type"),
    ]
