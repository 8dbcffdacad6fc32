"""The check of a served repository: does the running server answer what its reference says?

Sends the stored inputs of every shape point and compares the answers with the stored reference outputs, by the figures
of ``accuracy.parity``. A served variant must do what it did in process: its error may exceed that of the gate's own run
by no more than ``ROOM_DB``, and no shape may fall below the gate's floor. Also looks whether the warm-up of the config
shows in the server's own statistics.
"""

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient import grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from accel.bench.endpoint import Endpoint
from accel.core.accuracy import parity
from accel.core.accuracy.detections import match
from accel.core.accuracy.sqnr import ratio_db
from accel.core.errors import InputError, StageError
from accel.core.feeds import Feed
from accel.core.values import OutputParity, TensorSpec, extended
from accel.triton import manifest as manifests
from accel.triton.manifest import REFERENCE, Finding, Manifest
from accel.triton.reading import CONFIG, read_configs, read_points
from accel.triton.samples import ReferencePoint
from accel.triton.servers import server

ROOM_DB = 1.0
"""How far a served answer may fall below the same build in process: room for another number of threads."""
ENOUGH_DB = parity.GATES_DB["fp32"]
"""Above this no step was computed in less than float32; what differs is the order of summation."""
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One output at one stored shape point.

    Attributes:
        served_db / inprocess_db: SQNR against the reference, as served and as the gate found it in process; None where
            every value is equal or no such figure can be given.
        least_db: what ``served_db`` must reach.
        problem: what is wrong with it; empty where nothing is.
    """

    point: str
    output: str
    served_db: float | None
    inprocess_db: float | None
    least_db: float | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Examined:
    """The answers, and what is wrong with them or with the server's statistics."""

    answers: tuple[Answer, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeCheck(Examined):
    """What serving a repository showed.

    Attributes:
        endpoint: where it was served.
        native: backend that the repository is for.
        twins: models that were answered by the Python-backend variant of it.
    """

    endpoint: Endpoint
    native: str
    twins: tuple[str, ...]


def check(endpoint: Endpoint, root: Path) -> tuple[Finding, ...]:
    """Return what is wrong with a served repository, errors first; as ``examine``."""
    return examine(endpoint, root).findings


def verify_served(root: Path, *, via: str | None = None, backend_directory: Path | None = None) -> ServeCheck:
    """Serve a repository for as long as it takes to examine it.

    Args:
        via / backend_directory: as for ``server.start``.

    Raises:
        AccelError: as ``server.start`` and ``examine``; where the server failed, its log stays.
    """
    native = manifests.read(root).backend
    with server.start(root, via=via, log=server.fresh_log(), backend_directory=backend_directory, grace_s=0) as running:
        found = examine(running.endpoint, root)
    twins = tuple(sorted(running.python_models))
    return extended(ServeCheck, found, endpoint=running.endpoint, native=native, twins=twins)


def examine(endpoint: Endpoint, root: Path) -> Examined:
    """Check the model that a server answers for against the repository at ``root``, or its variant.

    Raises:
        InputError: ``root`` has no readable manifest or reference.
        StageError: no server answers at the endpoint.
    """
    manifest = manifests.read(root)
    points = read_points(root, manifest)
    findings: list[Finding] = []
    with client(endpoint) as calls:
        findings += _warmups(calls, manifest, root)
        got: dict[str, Feed] = {}
        steps = sequence(len(points)) if manifest.states else [{}] * len(points)
        for (name, point), step in zip(points.items(), steps, strict=True):
            try:
                got[name] = infer(calls, manifest.models[0], point.inputs, manifest.outputs, **step)
            except InputError as error:
                findings.append(_error(f"outputs/{name}", f"the server refused the stored inputs: {error.message}"))
        complete = {}
        for name, outputs in got.items():
            wrong = list(_misfits(name, outputs, points[name].outputs, manifest.outputs))
            findings += wrong
            if not wrong:
                complete[name] = outputs
    answers = _compare(manifest, points, complete) if complete else ()
    findings += [_error(f"outputs/{a.point}/{a.output}", a.problem) for a in answers if a.problem]
    return Examined(answers, tuple(sorted(findings, key=lambda f: (f.severity, f.file, f.field))))


# ---------------------------------------------------------------------------------------------------------------------
# Calls


def client(endpoint: Endpoint) -> Any:
    """Return a gRPC client of an endpoint (``tritonclient.grpc.InferenceServerClient``), a context manager."""
    return grpc.InferenceServerClient(endpoint.grpc)


def sequence(steps: int) -> list[dict[str, Any]]:
    """Return what ``infer`` sends along with each step of a new sequence."""
    id = secrets.randbits(62) + 1
    return [{"sequence_id": id, "sequence_start": k == 0, "sequence_end": k == steps - 1} for k in range(steps)]


def infer(
    calls: Any, model: str, inputs: Feed, outputs: tuple[TensorSpec, ...], **sequence: Any
) -> dict[str, np.ndarray]:
    """Send one request and return the outputs by name.

    Args:
        calls: what ``client`` gives.
        **sequence: of a step of a sequence ``sequence_id``, ``sequence_start`` and ``sequence_end``.

    Raises:
        InputError: the server answered with an error; the message is the server's.
        StageError: no server answers.
    """
    tensors = []
    for name, value in inputs.items():
        tensor = grpc.InferInput(name, value.shape, np_to_triton_dtype(value.dtype))
        tensors.append(tensor.set_data_from_numpy(np.ascontiguousarray(value)))
    try:
        result = calls.infer(model, tensors, client_timeout=TIMEOUT_S, **sequence)
    except InferenceServerException as error:
        raise _translated(error) from error
    return {s.name: result.as_numpy(s.name) for s in outputs}


def _translated(error: Any) -> InputError | StageError:
    """Tell a server that refuses from one that is not there."""
    if error.status() in ("StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED", "StatusCode.CANCELLED"):
        return StageError(f"no server answers: {error.message()}", fix="its log says why it ended")
    return InputError(error.message())


# ---------------------------------------------------------------------------------------------------------------------
# Judging


def _error(field: str, why: str, *, file: str = REFERENCE) -> Finding:
    return Finding("error", file, field, why, "compare the server's packages with the manifest's versions")


def _warmups(calls: Any, manifest: Manifest, root: Path) -> Iterator[Finding]:
    """Find models whose statistics show fewer executions than they have warm-up samples.

    What is served is asked of the server: a Python-backend variant needs no model that only renames tensors, and may
    batch otherwise.

    Source: a warm-up call counts like any other execution (core, src/backend_model_instance.cc, ``WarmUp``).
    """
    emitted = read_configs(root)
    try:
        ready = {m.name for m in calls.get_model_repository_index().models if m.state == "READY"}
        for model in manifest.models:
            if model not in ready:
                if model in (manifest.models[0], manifest.pipeline):
                    yield _error("", "the server does not serve this model", file=f"{model}/{CONFIG}")
                continue
            samples = calls.get_model_config(model).config.model_warmup
            if not samples and model in emitted:
                samples = emitted[model].model_warmup
            wanted = sum(max(1, sample.count) for sample in samples)
            found = sum(s.execution_count for s in calls.get_inference_statistics(model).model_stats)
            if found < wanted:
                why = f"the server's statistics show {found} executions, expected at least the {wanted} of the warm-up"
                yield _error("model_warmup", why, file=f"{model}/{CONFIG}")
    except InferenceServerException as error:
        raise _translated(error) from error


def _misfits(point: str, found: Feed, expected: Feed, outputs: tuple[TensorSpec, ...]) -> Iterator[Finding]:
    """Find outputs that are missing or have another shape or dtype than the reference or the contract."""
    for spec in outputs:
        value, wanted = found.get(spec.name), expected[spec.name]
        shown = "nothing" if value is None else f"{value.dtype} {value.shape}"
        if value is None or value.shape != wanted.shape or value.dtype != np.dtype(spec.dtype):
            yield _error(f"outputs/{point}/{spec.name}", f"served {shown}, expected {spec.dtype} {wanted.shape}")


def _compare(manifest: Manifest, points: Mapping[str, ReferencePoint], found: Mapping[str, Feed]) -> tuple[Answer, ...]:
    if manifest.states:
        return _compare_stream(manifest, points, found)
    inputs = {name: points[name].inputs for name in found}
    masks, mask_dims = parity.masks_of(manifest.inputs, manifest.mask, inputs)
    compared = parity.compare(
        {name: points[name].outputs for name in found},
        found,
        outputs=manifest.outputs,
        masks=masks,
        mask_dims=mask_dims,
        gate={},
        detections=manifest.detections,
    )
    before = {row.name: row for row in manifest.parity.outputs} if manifest.parity else {}
    rows = []
    for spec, row in zip(manifest.outputs, compared.outputs, strict=True):
        for name in found:
            value = points[name].outputs[spec.name].astype(np.float64)
            finite = value[np.isfinite(value)]
            power = (float(np.square(finite).mean()) if finite.size else 0.0) or parity.SMALL**2
            rows.append(_answer(manifest, spec, name, row, before.get(spec.name), power))
    if (declared := manifest.detections) is not None:
        rows += [
            Answer(name, declared.count, None, None, None, f"{share:.4g} of the rows have a partner")
            for name in found
            if (share := match(points[name].outputs, found[name], declared).share) < parity.FEED_MATCHED
        ]
    return tuple(rows)


def _compare_stream(
    manifest: Manifest, points: Mapping[str, ReferencePoint], found: Mapping[str, Feed]
) -> tuple[Answer, ...]:
    """Hold the steps of a stream against the gate, all together: of one step alone nothing says what it may miss."""
    gate = manifest.parity.gate if manifest.parity and manifest.parity.passed else {}
    least = {name: value - ROOM_DB for name, value in gate.items() if name in ("sqnr_db", "tolerance_db")}
    compared = parity.compare(
        {name: points[name].outputs for name in found}, found, outputs=manifest.outputs, masks={}, gate=least
    )
    floor = next(iter(least.values()), None)
    reason = "; ".join(compared.reasons)
    return tuple(
        Answer(f"0 to {len(found) - 1}", row.name, row.sqnr_db, None, floor, reason * (i == 0))
        for i, row in enumerate(compared.outputs)
    )


def _answer(
    manifest: Manifest, spec: TensorSpec, point: str, row: OutputParity, before: OutputParity | None, power: float
) -> Answer:
    """Judge one output at one point.

    The gate took the signal's power over all its samples, and the repository holds a few of them: so the served figure
    is the gate's own, corrected by the ratio of the two errors. Where the gate saw no error there, it is the plain
    power of the reference over the error.
    """
    inprocess = before.by_shape_db.get(point) if before else None
    known = (before.by_shape_mse.get(point) or None) if before else None
    error = row.by_shape_mse.get(point, 0.0)
    if error == 0 and not row.nonfinite:
        return Answer(point, spec.name, None, inprocess, None)
    if row.nonfinite:
        return Answer(point, spec.name, None, inprocess, None, f"{row.nonfinite} values are NaN or infinite")
    if np.dtype(spec.dtype).kind in "iub" and known is None:
        return Answer(
            point, spec.name, None, None, None, "integers differ from the reference, and were equal in process"
        )
    if known is None:
        served, least = ratio_db(power / error), ENOUGH_DB
    elif inprocess is None:  # the reference is constant there: only the errors can be compared
        served, least = ratio_db(known / error), -ROOM_DB
    else:
        served, least = inprocess + ratio_db(known / error), min(inprocess - ROOM_DB, ENOUGH_DB)
        if manifest.parity is not None and manifest.parity.passed:
            least = max(least, manifest.parity.gate.get("shape_db", least))
    if served >= least:
        return Answer(point, spec.name, served, inprocess, least)
    inside = "exact" if known is None else "no signal" if inprocess is None else f"{inprocess:.4g} dB"
    problem = f"served {served:.4g} dB (in process {inside}), expected at least {least:.4g} dB"
    return Answer(point, spec.name, served, inprocess, least, problem)
