"""Values, files, errors and processes: what every room above speaks about."""

import os

# The official wheels of ONNX Runtime send usage data to Microsoft and keep an id of the machine; whatever imports it
# here imports this first. Source: Privacy.md of the onnxruntime 1.31 wheel, "Disabling Telemetry"
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
