"""``accel.serve``: a real Triton server on a repository, with a client."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from accel.bench.endpoint import Endpoint
from accel.core.calls import Outputs
from accel.core.errors import StageError, UnavailableError
from accel.core.feeds import fit_inputs
from accel.triton import manifest as manifests
from accel.triton.manifest import Manifest
from accel.triton.servers import Via, server as servers


class Served:
    """A model behind a Triton server; call it with arrays by input name.

    Attributes:
        endpoint: where the server answers (``grpc``, ``http``, ``metrics``).
        model: name of the model on the server.
        client: ``tritonclient.grpc.InferenceServerClient``, for everything else.
    """

    def __init__(self, endpoint: Endpoint, manifest: Manifest) -> None:
        from tritonclient import grpc

        self.endpoint, self.model = endpoint, manifest.models[0]
        self._inputs, self._outputs = manifest.inputs, manifest.outputs
        self._grpc: Any = grpc
        self.client: Any = grpc.InferenceServerClient(endpoint.grpc)

    def __call__(self, **inputs: Any) -> Outputs:
        """Send one request.

        Returns:
            Arrays by output name.

        Raises:
            SampleError: the inputs do not fit.
            StageError: the server refused the request, or is gone.
        """
        return self._answer(inputs)

    def step(self, id: int | str, *, start: bool = False, end: bool = False, **inputs: Any) -> Outputs:
        """Send one step of a sequence to a stateful model.

        Args:
            id: correlation id of the sequence, a positive number or a text that nobody else uses at the time.
            start / end: whether it is the first step, which begins with the initial state, or the last one.

        Raises:
            SampleError / StageError: as a call; the server refuses a step of a sequence that did not begin.
        """
        return self._answer(inputs, sequence_id=id, sequence_start=start, sequence_end=end)

    def _answer(self, inputs: Mapping[str, Any], **sequence: Any) -> Outputs:
        arrays = {n: v.detach().cpu().numpy() if hasattr(v, "detach") else v for n, v in inputs.items()}
        feed = fit_inputs(arrays, self._inputs)
        tensors = [self._tensor(name, value) for name, value in feed.items()]
        try:
            answer = self.client.infer(self.model, tensors, **sequence)
        except self._grpc.InferenceServerException as error:
            raise StageError(f"the server refused the request to {self.model}: {error}") from error
        except ValueError as error:  # of a channel that was closed
            why = f"the server of {self.model} was stopped: {error}"
            raise StageError(why, fix="call it inside the `with` block") from error
        return Outputs({spec.name: answer.as_numpy(spec.name) for spec in self._outputs})

    def _tensor(self, name: str, value: np.ndarray) -> Any:
        from tritonclient.utils import np_to_triton_dtype

        tensor = self._grpc.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype))
        tensor.set_data_from_numpy(value)
        return tensor


@contextlib.contextmanager
def serve(repository: str | Path, *, via: Via | None = None, **options: Any) -> Iterator[Served]:
    """Serve a repository on this machine for as long as the block runs.

    Args:
        repository: as accel emitted it (``runs/bert/best/cpu``).
        via: the server; a local tritonserver where there is one, else the embedded one, when None.
        **options: what ``accel serve`` takes besides (``http_port``, ``allow_changed``, …).

    Raises:
        InputError: it is not a repository, or was changed since it was emitted.
        UnavailableError: the server, its client or the artifact's runtime is not here.
        StageError: the server did not become ready.
    """
    root = Path(repository)
    manifest = manifests.read(root)
    log = servers.fresh_log()
    try:
        with servers.start(root, via=via, log=log, **options) as running:
            try:
                served = Served(running.endpoint, manifest)
            except ImportError as error:
                raise UnavailableError("tritonclient is not installed", fix="pip install 'accel[serve]'") from error
            with contextlib.closing(served.client):
                yield served
    finally:
        shutil.rmtree(log.parent, ignore_errors=True)
