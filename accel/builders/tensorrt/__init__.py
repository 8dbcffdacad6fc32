"""TensorRT, in parts: the typed ONNX, the build, the plan and what it says of itself, the session on a device.

To be imported without TensorRT: ``library`` finds it, and only functions that need a GPU call it.
"""
