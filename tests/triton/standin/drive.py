"""Loads a version folder as the stub process does, sends requests and writes the responses down.

Arguments: version folder, config.pbtxt as JSON, a pickle-free ``.npz`` of requests (keys ``<request>/<input>``), the
output ``.npz``, and how many answers find no room (0). Prints one JSON document: an error message for each request (or
null), where accel came from, and the shapes that the session was run with.
"""

import importlib
import json
import sys
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

folder, config, requests_file, answers_file, refused = sys.argv[1:]
pb_utils.InferenceResponseSender.refuses = int(refused)
sys.path += [str(Path(folder).parent), folder]  # where the stub looks; a version folder is a package to it
entry = json.loads(config).get("default_model_filename", "model.py").removesuffix(".py")
instance = importlib.import_module(f"{Path(folder).name}.{entry}").TritonPythonModel()
instance.initialize({"model_config": config, "model_name": "embedding"})
with np.load(requests_file) as file:
    arrays = {key: file[key] for key in file.files}
count = 1 + max(int(key.split("/")[0]) for key in arrays)
requests = [
    pb_utils.InferenceRequest(
        [pb_utils.Tensor(k.split("/")[1], v) for k, v in arrays.items() if k.startswith(f"{i}/")],
        ["pooled"] if i == count - 1 else ["hidden", "pooled"],
    )
    for i in range(count)
]
responses = instance.execute(requests)
deadline = time.monotonic() + 60
while responses is None:  # they are sent, now or later
    assert time.monotonic() < deadline, "a request got no answer"
    time.sleep(0.005)
    responses = [r.sent for r in requests] if all(r.sent for r in requests) else None
answers = {f"{i}/{t.name()}": t.as_numpy() for i, r in enumerate(responses) for t in r.output_tensors()}
np.savez(answers_file, **answers)
instance.finalize()
calls = getattr(instance.session, "calls", None)
result = {
    "errors": [r.error().message() if r.error() else None for r in responses],
    "codes": [r.error().code() if r.error() else None for r in responses],
    "accel": str(Path(sys.modules["accel"].__file__).parent),
    "calls": calls,
    "counted": pb_utils.MetricFamily.counted,
    "order": [requests.index(r) for r in pb_utils.InferenceRequest.answered],
}
sys.stdout.write(json.dumps(result))
