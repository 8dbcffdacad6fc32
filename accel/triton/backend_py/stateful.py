"""Serves one accel artifact of a stateful model in Triton's Python backend: each request is a step of a sequence.

``model.py`` beside it, with one difference: a request's states are those that the step before left, which are kept here
by correlation id. The server's sequence batcher sends the steps of one sequence to one instance, in order and never two
at once, so that requests that are merged belong to different sequences. A step that fails leaves the state as it was.

Source: core src/sequence_batch_scheduler/sequence_batch_scheduler.cc, OldestSequenceBatch::CompleteAndNext;
python_backend README, ``InferenceRequest.correlation_id`` and ``flags``.
"""

import importlib
import json

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

# The server imports this file as ``<version>.stateful``, below the model's folder.
plain = importlib.import_module(f"{__name__.rpartition('.')[0]}.model".lstrip("."))


class TritonPythonModel(plain.TritonPythonModel):  # type: ignore[name-defined]
    """The class the Python backend looks for."""

    def initialize(self, args):  # type: ignore[no-untyped-def]
        """Open the artifact's session."""
        super().initialize(args)
        sequences, values = (importlib.import_module(f"accel.{m}") for m in ("triton.sequences", "core.values"))
        spec = json.loads((plain.HERE / "artifact.json").read_text(encoding="utf-8"))
        states = tuple(values.from_json(sequences.State, s) for s in spec["states"])
        batching = json.loads(args["model_config"]).get("sequence_batching", {})
        with np.load(plain.HERE / "initial.npz", allow_pickle=False) as file:
            initial = {state.input.name: file[state.input.name] for state in states}
        self.sequences = sequences.Sequences(
            states,
            initial,
            most=int(batching.get("oldest", {}).get("max_candidate_sequences") or sequences.MOST_SEQUENCES),
            idle_s=sequences.seconds(batching.get("max_sequence_idle_microseconds") or 0),
        )
        self.misfit = importlib.import_module("accel.core.errors").SampleError
        self.outputs += [values.TensorSpec(s.output, s.input.dtype, s.input.dims) for s in states]
        self.axes = {name: s.axis for s in states for name in (s.input.name, s.output)}

    def feed(self, request):  # type: ignore[no-untyped-def]
        """Return a request's inputs, with the states that the step before left."""
        start = bool(request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START)
        feed = super().feed(request)
        for spec in self.inputs:
            if spec.dims[0] == "batch" and feed[spec.name].shape[0] != 1:
                raise self.misfit(f"input {spec.name!r} has shape {feed[spec.name].shape}: a step is one item")
        return {**feed, **self.sequences.before(request.correlation_id(), start=start)}

    def answer(self, request, outputs):  # type: ignore[no-untyped-def]
        """Keep the states that a step left, and return the response."""
        end = bool(request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
        self.sequences.after(request.correlation_id(), outputs, end=end)
        return super().answer(request, outputs)
