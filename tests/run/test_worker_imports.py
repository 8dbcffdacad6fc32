"""A worker runs in any environment with NumPy and one runtime: what it imports before its task asks for no more."""

import subprocess
import sys

CODE = """
import sys
for name in ("onnx", "onnx_ir", "onnxscript", "onnxruntime", "openvino", "torch", "transformers", "tensorflow"):
    sys.modules[name] = None
import accel.run.child, accel.run.tasks, accel.bench.timed
"""


def test_the_tasks_can_be_imported_where_no_framework_and_no_onnx_is():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
