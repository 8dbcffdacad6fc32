"""What single builders promise beyond the contract that all share."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from accel import builders
from accel.builders import targets
from accel.builders.declared import reconcile
from accel.builders.requirements import demand, missing, versions
from accel.core import hardware
from accel.core.errors import StageError, UnavailableError, UsageError
from accel.core.values import Target, TensorSpec

HEAVY = {"torch", "onnx", "onnxruntime", "openvino", "nncf", "onnxscript", "transformers"}


def test_importing_all_builders_imports_no_runtime():
    code = f"import sys, accel.builders.targets as t; t.discover(); print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", sorted(Path(builders.__path__[0]).glob("*.py")), ids=lambda p: p.name)
def test_module_level_imports_are_standard_library_numpy_and_accel(path):
    known = sys.stdlib_module_names | {"numpy", "accel"}
    if path.name in ("torch_device.py", "torch_program.py"):  # builders import these within functions
        known |= {"torch"}
    for node in ast.parse(path.read_text()).body:
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            assert name.split(".")[0] in known, f"{path.name} imports {name}"


def test_openvino_and_nncf_cannot_send_telemetry():
    code = (
        "from accel.builders.to_openvino import import_openvino; import_openvino(); import nncf;"
        "from openvino.tools.ovc import telemetry_utils as u; from nncf.telemetry import wrapper as w;"
        "print(u.tm.__name__, type(w.telemetry).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-2:] == ["openvino.tools.ovc.telemetry_stub", "MagicMock"]


def test_onnx_runtime_sends_nothing_and_gives_the_machine_no_id(tmp_path):
    """Its official wheels do both by default: an id and a database in the cache folder, a session file in TMPDIR."""
    code = (
        "from accel.builders import ort_session; import onnxruntime as ort;"
        "from onnx import helper as h, save; p = h.make_tensor_value_info('x', 1, [1]);"
        "q = h.make_tensor_value_info('y', 1, [1]); n = h.make_node('Neg', ['x'], ['y']);"
        "m = h.make_model(h.make_graph([n], 'g', [p], [q]), opset_imports=[h.make_opsetid('', 18)], ir_version=10);"
        "ort.InferenceSession(m.SerializeToString())"
    )
    usual = {k: v for k, v in os.environ.items() if k not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")}
    environment = {**usual, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert not list(tmp_path.iterdir())


def test_requirements_name_what_is_missing_and_how_to_get_it():
    assert missing("json", "numpy") is None
    skipped = missing("json", "no_such_package_here")
    assert skipped is not None
    assert "no_such_package_here" in skipped.reason
    assert skipped.fix == "pip install no_such_package_here"
    with pytest.raises(UnavailableError, match="no_such_package_here"):
        demand(skipped)
    assert list(versions(["numpy", "no-such-package-here"])) == ["numpy"]


def test_aoti_says_that_it_lacks_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    builder = targets.discover()["aoti"]
    skipped = builder.available(Target("aoti", "cpu"))
    assert skipped is not None
    assert "g++" in skipped.reason
    assert builder.available(Target("torch", "cpu")) is None


@pytest.mark.parametrize(
    ("flags", "emulated"),
    [
        ("fpu sse2 avx2", True),
        ("fpu avx2 avx512f avx512_vnni", True),
        ("fpu avx2 avx512f avx512_bf16", False),
        ("fpu avx2 avx512f amx_bf16", False),
        ("fp asimd bf16", False),
        ("", False),
    ],
    ids=["AVX2", "AVX512", "AVX512 with BF16", "AMX", "Arm", "unknown"],
)
def test_what_a_cpu_would_emulate_is_not_tried(monkeypatch, flags, emulated):
    monkeypatch.setattr(hardware, "_cpuinfo", lambda keys: flags if "flags" in keys else "")
    for name in ("torch-bf16", "aoti-bf16", "openvino-bf16"):
        skipped = targets.discover()[name].available(Target(name, "cpu"))
        assert (skipped is not None and "no instructions for BF16" in skipped.reason) == emulated
    openvino = targets.discover()["openvino"]
    assert openvino.available(Target("openvino", "cpu")) is None
    other = "openvino-bf16" if "avx2" in flags else None
    assert openvino.same_as(Target("openvino", "cpu")) == ("openvino-fp32" if emulated else other)
    assert openvino.same_as(Target("openvino-int8", "cpu")) is None


def test_ort_openvino_names_its_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ACCEL_HOME", str(tmp_path))
    skipped = targets.discover()["ort-openvino"].available(Target("ort-openvino", "cpu"))
    assert skipped is not None
    assert skipped.fix == "accel env install ort-openvino"


def test_null_refuses_a_negative_latency(tmp_path):
    builder = targets.discover()["null"]
    with pytest.raises(UsageError, match="-1"):
        builder.build(None, builder.options(latency_ms=-1.0), tmp_path)


def test_reconcile_takes_sizes_from_the_file_and_names_from_the_promise():
    promised = [TensorSpec("ids", "int64", ("batch", "seq"), (0, 9)), TensorSpec("x", "float32", ("batch", 4))]
    found = [TensorSpec("x", "float32", ("?", 4)), TensorSpec("ids", "int32", ("?", 16))]
    assert reconcile(found, promised, what="input") == (
        TensorSpec("x", "float32", ("batch", 4)),
        TensorSpec("ids", "int32", ("batch", 16), (0, 9)),
    )


@pytest.mark.parametrize(
    "found",
    [
        [TensorSpec("y", "float32", ("?", 4))],
        [TensorSpec("x", "float32", ("?",))],
        [TensorSpec("x", "float32", ("?", 5))],
        [],
    ],
)
def test_reconcile_refuses_a_file_that_lost_something(found):
    with pytest.raises(StageError):
        reconcile(found, [TensorSpec("x", "float32", ("batch", 4))], what="input")
