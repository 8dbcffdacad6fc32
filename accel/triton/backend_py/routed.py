"""Takes requests of different lengths, and has groups of them answered by another model of the server.

``grouped.py`` beside it, with one difference: a group is run by the core, the model beside this one that has the
artifact and a backend of its own, in place of a session in this process. All groups of a window are sent at once, the
cheapest first; the core's queue holds what its instances have no room for. An error of the core is the answer to the
request that caused it: each request of such a group is sent once more, alone.

The server does not know that this model needs the core, and loads both at once. So this one has no warm-up: the core
has it, for every length and group. The server is ready when both are.

Source: python_backend README, "Business Logic Scripting" (not in ``initialize``) and ``preferred_memory``;
src/infer_request.cc, ``Exec`` (blocks its thread alone, without the GIL), and src/python_be.cc (``thread-pool-size``).
Not ``async_exec``: before pull request 439 (June 2026) it used what was freed.
"""

import importlib
from concurrent.futures import ThreadPoolExecutor

import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

# The server imports this file as ``<version>.routed``, below the model's folder.
grouped = importlib.import_module(f"{__name__.rpartition('.')[0]}.grouped".lstrip("."))

AT_ONCE = 8
"""Groups that the core is sent at once at most: the backend has 32 threads for them and for answers to clients."""


class TritonPythonModel(grouped.TritonPythonModel):  # type: ignore[name-defined]
    """The class the Python backend looks for."""

    def open(self, spec, artifact, config):  # type: ignore[no-untyped-def]
        """Return what the core is asked with."""
        self.senders = ThreadPoolExecutor(max_workers=AT_ONCE)
        return Core(**spec["core"], outputs=[s.name for s in self.outputs])

    def started(self, groups, feeds, how):  # type: ignore[no-untyped-def]
        """Return groups, each with what waits for its outputs; all are sent."""
        return [(group, self.senders.submit(self.call, group, feeds, how).result) for group in groups]

    def finalize(self):  # type: ignore[no-untyped-def]
        """End the threads, when all is answered."""
        super().finalize()
        self.senders.shutdown()


class Core:
    """Stands where a session does: runs a feed by a request to another model of the server.

    Args:
        name: of the model.
        input_names / output_names: client name to the name that it has there, where they differ.
        outputs: names that clients know.
    """

    def __init__(self, name, input_names, output_names, outputs):  # type: ignore[no-untyped-def]
        self.name, self.input_names = name, input_names
        self.outputs = {output_names.get(n, n): n for n in outputs}

    def run(self, feed):  # type: ignore[no-untyped-def]
        """Return the outputs of a feed, in this process' memory.

        Raises:
            RuntimeError: the core refused or failed; the message is its own.
        """
        response = pb_utils.InferenceRequest(
            model_name=self.name,
            inputs=[pb_utils.Tensor(self.input_names.get(n, n), a) for n, a in feed.items()],
            requested_output_names=list(self.outputs),
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU, 0),
        ).exec()
        if response.has_error():
            raise RuntimeError(response.error().message())
        return {self.outputs[t.name()]: t.as_numpy() for t in response.output_tensors()}

    def close(self):  # type: ignore[no-untyped-def]
        """Leave the core to the server."""
