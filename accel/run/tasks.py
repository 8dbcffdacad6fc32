"""What a worker process can be asked to do. Parameters and results are JSON; arrays are ``.npz`` files by path.

Each task imports what it needs itself, so that a process in a foreign environment loads only its own runtime.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np

from accel.bench.session import TimedSession, now_ns, peak_rss_mib
from accel.builders import TypedBuilder, targets
from accel.core.errors import StageError
from accel.core.feeds import Feed, read_feeds, write_feeds
from accel.core.processing import Pipeline
from accel.core.values import (
    Artifact,
    BuildRequest,
    ModelSource,
    OnnxModel,
    Parity,
    SampleSet,
    Skipped,
    TensorSpec,
    Typed,
    from_json,
    to_json,
)
from accel.exporters.request import SourceRequest

_timed: list[TimedSession] = []


def describe(request: Any, out_dir: str) -> Any:
    """Load the source once, find its inputs and outputs, and write its sample files into ``out_dir``."""
    from accel import exporters
    from accel.exporters import samples

    asked = from_json(SourceRequest, request)
    source = exporters.describe(asked)
    return {"source": to_json(source), "samples": to_json(samples.make_samples(source, asked, Path(out_dir)))}


def source_key(request: Any) -> Any:
    """Return the content key of a source whose weights only its own code can make (a factory)."""
    from accel import exporters

    return exporters.describe(from_json(SourceRequest, request)).key


def export(source: Any, samples: Any, samples_folder: str, reference: str, out_dir: str, opset: int) -> Any:
    """Export the source to ONNX and check the file against what the source answered at the checked shapes."""
    from accel import exporters
    from accel.exporters.check import Point

    feeds = read_feeds(Path(samples_folder) / from_json(SampleSet, samples).shapes.path)
    answers = read_feeds(Path(reference))
    points = [Point(name, feed, answers[name]) for name, feed in feeds.items()]
    made = exporters.export_onnx(from_json(ModelSource, source), Path(out_dir), opset=opset, points=points)
    return to_json(made)


def reference(source: Any, samples: Any, samples_folder: str, out: str) -> Any:
    """Run the source itself, FP32 on CPU, over all feeds."""
    from accel import exporters

    described = from_json(ModelSource, source)
    model = exporters.load(described)
    feeds = _all_feeds(from_json(SampleSet, samples), Path(samples_folder))
    write_feeds(Path(out), {name: model.run(feed) for name, feed in feeds.items()})
    return {"feeds": len(feeds)}


def narrow(source: Any, onnx: Any, folder: str, out_dir: str, level: Any) -> Any:
    """Narrow the exported model's integers, and say which 64-bit values inside are not proved to fit int32."""
    from accel.exporters.check import read_onnx
    from accel.graph.narrow import narrow_file, prove_int32_interior
    from accel.run.narrowed import Narrowed

    described = from_json(ModelSource, source)
    file = Path(folder) / from_json(OnnxModel, onnx).file.path
    ranges = {s.name: s.range for s in described.inputs if s.range is not None}
    out = Path(out_dir) / file.name
    report = narrow_file(file, out, level=level, ranges=ranges, shapes=described.profile)
    unproved = prove_int32_interior(file, ranges=ranges, shapes=described.profile)
    values = tuple(f"{u.name} ({u.op}) in [{u.lo}, {u.hi}]: {u.reason}" for u in unproved)
    return to_json(Narrowed(read_onnx(out), report, values))


def autocast(source: str, out: str, to: Any, keep: Any) -> Any:
    """Write an ONNX file in FP16 or BF16; runs in the ``modelopt`` environment."""
    from accel.graph.autocast import autocast

    return autocast(source, out, to, keep)


def build(request: Any, out_dir: str) -> Any:
    """Build one variant."""
    wanted = from_json(BuildRequest, request)
    builder = targets.discover()[wanted.variant.target.name]
    options = builder.options(**wanted.variant.options)
    start = time.monotonic()
    built = builder.build(wanted, options, Path(out_dir))
    return {"built": to_json(built), "build_s": time.monotonic() - start}


def prepare(request: Any, out_dir: str) -> Any:
    """Type the ONNX file of one variant."""
    wanted = from_json(BuildRequest, request)
    builder = targets.discover()[wanted.variant.target.name]
    assert isinstance(builder, TypedBuilder)
    return to_json(builder.prepare(wanted, builder.options(**wanted.variant.options), Path(out_dir)))


def typed_answers(
    of: str, typed: Any, folder: str, source: Any, samples: Any, samples_folder: str, out: str, threads: int
) -> Any:
    """Run the typed ONNX file of a target over all feeds on the CPU."""
    builder = targets.discover()[of]
    assert isinstance(builder, TypedBuilder)
    described = from_json(ModelSource, source)
    session = builder.open_typed(from_json(Typed, typed), Path(folder), source=described, threads=threads)
    with contextlib.closing(session):
        feeds = _all_feeds(from_json(SampleSet, samples), Path(samples_folder))
        write_feeds(Path(out), {name: session.run(feed) for name, feed in feeds.items()})
        return {"feeds": len(feeds)}


def answers(artifact: Any, folder: str, source: Any, samples: Any, samples_folder: str, out: str, threads: int) -> Any:
    """Run a built variant over all feeds it can take, and say in what precision it really ran."""
    made = from_json(Artifact, artifact)
    described = from_json(ModelSource, source)
    feeds = _all_feeds(from_json(SampleSet, samples), Path(samples_folder))
    builder = targets.discover()[made.variant.target.name]
    session = builder.open(made, Path(folder), threads=threads, mode="latency")
    with contextlib.closing(session):
        if made.variant.static:
            fixed = {name: shape.opt for name, shape in made.variant.profile.items()}
            hidden = _hidden_axes(described)
            results = {}
            for name, feed in feeds.items():
                if all(_fits(feed[i.name].shape, fixed[i.name], i.dims, hidden) for i in described.inputs):
                    results[name] = _run_fixed(session.run, feed, described, fixed)
        else:
            results = {name: session.run(feed) for name, feed in feeds.items()}
        if not results:
            raise StageError(
                "no gate sample fits the fixed shape of this build",
                fix="give samples of that shape with --samples, or leave --static out",
            )
        write_feeds(Path(out), results)
        return {"precision": session.precision(), "feeds": len(results)}


def compare(
    source: Any,
    samples: Any,
    samples_folder: str,
    reference: str,
    answers: str,
    gate: Mapping[str, float],
) -> Any:
    """Compare answers with the reference and hold them against the gate."""
    from accel.exporters import verdict

    feeds = _all_feeds(from_json(SampleSet, samples), Path(samples_folder))
    truth, found = read_feeds(Path(reference)), read_feeds(Path(answers))
    return to_json(verdict.compare(from_json(ModelSource, source), feeds, truth, found, gate))


def emit(
    artifact: Any,
    folder: str,
    source: Any,
    release: str,
    root: str,
    model_version: int,
    samples: str,
    reference: str,
    parity: Any,
    python: bool,
    overrides: str,
    pipeline: Any,
    threads: int,
    hardware: str,
) -> Any:
    """Write the Triton repository of a built variant; gives the repository, or the reason why there can be none."""
    from accel.triton import ensemble, repository

    made = from_json(Artifact, artifact)
    described = from_json(ModelSource, source)
    emitted = repository.emit(
        made,
        Path(folder),
        inputs=described.inputs,
        outputs=described.outputs,
        unproved=described.unproved_int64,
        mask=described.mask,
        detections=described.detections,
        parity=from_json(Parity, parity) if parity else None,
        python=python,
        builder=targets.discover()[made.variant.target.name],
        release=release,
        root=Path(root),
        run_dir=Path(root).parent,
        model_name=described.name,
        model_version=model_version,
        samples=Path(samples),
        reference=Path(reference),
        overrides=overrides,
        threads=threads,
        hardware=hardware,
    )
    if isinstance(emitted, Skipped):
        return {"repository": None, "reason": emitted.reason}
    if pipeline is not None:
        added = ensemble.add(Path(root), from_json(Pipeline, pipeline))
        emitted = dataclasses.replace(emitted, models=(*emitted.models, *added))
    return {"repository": to_json(emitted), "reason": None}


def bench_feeds(
    source: Any,
    samples: Any,
    samples_folder: str,
    points: Mapping[str, Mapping[str, list[int]]],
    out: str,
    items: int | None = None,
) -> Any:
    """Write the inputs that variants are timed on: real samples brought to each point's shapes.

    Args:
        items: so many samples of each point, under ``<point>-<number>``; None for one, under the point's name.
    """
    from accel.exporters.samples import fit_shape

    described = from_json(ModelSource, source)
    stored = read_feeds(Path(samples_folder) / from_json(SampleSet, samples).gate.path)
    shaped = {}
    for point, shapes in points.items():
        fixed = {name: tuple(shape) for name, shape in shapes.items()}
        for number, name in enumerate(sorted(stored)[: items or 1]):
            key = point if items is None else f"{point}-{number}"
            shaped[key] = fit_shape(stored[name], described.inputs, fixed, mask=described.mask)
    write_feeds(Path(out), shaped)
    return sorted(shaped)


def bench_open(artifact: Any, folder: str, threads: int, mode: Any, feeds: str, points: list[str]) -> Any:
    """Load a variant for timing at ``points``; ``feeds`` is an ``.npz`` with keys ``<point>/<input>``."""

    made = from_json(Artifact, artifact)
    builder = targets.discover()[made.variant.target.name]
    start = now_ns()
    session = builder.open(made, Path(folder), threads=threads, mode=mode)
    loaded = now_ns()
    stored = read_feeds(Path(feeds))
    timed = TimedSession(session, {point: stored[point] for point in points})
    _timed.append(timed)
    first = timed.call_ns(points[0])
    return {
        "load_ms": (loaded - start) / 1e6,
        "first_ms": first / 1e6,
        "slots": session.slots,
    }


def bench_warm(point: str, limit_s: float) -> Any:
    """Warm the open session up at one point; returns how long its last call took."""
    return {"last_ms": _timed[-1].warm(point, limit_s) / 1e6}


def bench_split(point: str, calls: int) -> Any:
    """Take a call of the open session apart: copies in, the model, copies out; null where nothing is copied."""
    return to_json(_timed[-1].split(point, calls))


def bench_latency(point: str, seconds: float, least: int, limit_ms: float | None = None) -> Any:
    """Run one latency round; returns the ns of each call."""
    return {"times_ns": _timed[-1].latency(point, seconds, least, limit_ms), "peak_rss_mib": peak_rss_mib()}


def bench_throughput(point: str, seconds: float, least: int, limit_ms: float | None = None) -> Any:
    """Run one throughput round; returns the ns of each request and of the whole round."""
    times, elapsed = _timed[-1].throughput(point, seconds, least, limit_ms)
    return {"times_ns": times, "elapsed_ns": elapsed, "peak_rss_mib": peak_rss_mib()}


def load(call: str, **params: Any) -> Any:
    """Send requests to a Triton server: see ``accel.bench.calls``."""
    from accel.bench import calls

    return calls.CALLS[call](**params)


TASKS: Mapping[str, Callable[..., Any]] = {
    task.__name__: task
    for task in (
        describe,
        source_key,
        export,
        reference,
        narrow,
        autocast,
        prepare,
        typed_answers,
        build,
        answers,
        compare,
        emit,
        bench_feeds,
        bench_open,
        bench_warm,
        bench_split,
        bench_latency,
        bench_throughput,
        load,
    )
}


def _all_feeds(samples: SampleSet, folder: Path) -> dict[str, dict[str, np.ndarray]]:

    return read_feeds(folder / samples.gate.path) | read_feeds(folder / samples.shapes.path)


def _hidden_axes(source: ModelSource) -> Set[int | str]:
    """Return the axes that may be padded: the mask hides what is added, and every output can be cut back by its axes.

    An output may have an axis of its own, as the keys of a decoder's past and the new position have: where padding
    ends in it nothing says.
    """
    given = {d for spec in source.inputs for d in spec.dims}
    if any(isinstance(d, str) and d not in given for spec in source.outputs for d in spec.dims):
        return set()
    return {d for spec in source.inputs if spec.name == source.mask for d in spec.dims[1:]}


def _fits(shape: tuple[int, ...], fixed: tuple[int, ...], dims: tuple[int | str, ...], hidden: Set[int | str]) -> bool:
    """Say whether a feed can be brought to a fixed shape: items in groups, axes that the mask hides padded."""
    axes = zip(dims[1:], shape[1:], fixed[1:], strict=True)
    return all(size <= limit if dim in hidden else size == limit for dim, size, limit in axes)


def _run_fixed(
    run: Callable[[Feed], dict[str, np.ndarray]], feed: Feed, source: ModelSource, fixed: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Run a feed through a build of one fixed shape: items in groups of its batch, other axes padded with zeros.

    Padding is what a client of a static build does; the mask of the feed, padded alike, hides it. Outputs are cut
    back to the feed's own sizes, axis by axis name.
    """
    batch = next(iter(fixed.values()))[0]
    sizes: dict[str, int] = {}
    for spec in source.inputs:
        sizes |= {d: n for d, n in zip(spec.dims, feed[spec.name].shape, strict=True) if isinstance(d, str)}
    items = next(iter(feed.values())).shape[0]
    parts: list[dict[str, np.ndarray]] = []
    for start in range(0, items, batch):
        padded = {}
        for spec in source.inputs:
            chunk = feed[spec.name][start : start + batch]
            widths = [(0, limit - size) for size, limit in zip(chunk.shape, fixed[spec.name], strict=True)]
            padded[spec.name] = np.pad(chunk, widths)
        parts.append(run(padded))
    return {spec.name: _cut(spec, np.concatenate([p[spec.name] for p in parts]), sizes) for spec in source.outputs}


def _cut(spec: TensorSpec, value: np.ndarray, sizes: Mapping[str, int]) -> np.ndarray:
    return value[tuple(slice(sizes.get(d)) if isinstance(d, str) else slice(None) for d in spec.dims)]
