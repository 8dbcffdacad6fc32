"""Does a variant of a stateful model answer whole streams as the source does, each with the state it made itself?

Step by step with the source's own states, as the other feeds of the proof are, every step begins right; a small error
that each step hands on, and makes larger, is not seen. So the variant runs the streams with its own states, and the
gate must hold over all steps and over the last quarter of them: where that is worse than the first, it drifts. A task
metric is taken over all steps: one quarter may have none of what it counts.
"""

import contextlib
from dataclasses import replace
from pathlib import Path

from accel.builders import targets
from accel.core.accuracy import parity
from accel.core.errors import StageError
from accel.core.feeds import Feed, read_feeds
from accel.core.values import Artifact, Parity
from accel.exporters.verdict import compare, labels_of
from accel.run.tasks import Described, steps_of, streams_of


def check_streams(
    artifact: Artifact,
    folder: Path,
    described: Described,
    samples_folder: Path,
    reference: Path,
    verdict: Parity,
    threads: int,
) -> Parity:
    """Return the verdict on a variant once it ran over the streams, too.

    Args:
        folder: where the artifact's files lie.
        reference: the source's answers, those to the streams among them.
        verdict: what the other feeds showed; its gate holds for the streams.
    """
    source, streams = described.source, streams_of(described.samples, samples_folder)
    static = {name: shapes.opt for name, shapes in artifact.variant.profile.items()} if artifact.variant.static else {}
    if any(static[n] != v.shape for n, v in [*streams.steps[0][0].items(), *streams.initial.items()] if static):
        return parity.refused(verdict, "its fixed shape is not that of one step of a stream, so none could be run")
    builder = targets.discover()[artifact.variant.target.name]
    with contextlib.closing(builder.open(artifact, folder, threads=threads, mode="latency")) as session:
        played: dict[str, tuple[Feed, Feed]] = {}
        try:
            for name, feed, out in steps_of(source, session.run, streams):
                played[name] = feed, out
        except StageError as error:
            return parity.refused(verdict, f"step {len(played)} of its streams: {error.message}")
    truth = read_feeds(reference, only=played.keys())
    labels = labels_of(described.samples, samples_folder, "streams")
    task = [source.gate[0]] if source.gate is not None else []
    lengths = {f"s{i}": len(stream) for i, stream in enumerate(streams.steps)}

    def held(part: slice, *more: str) -> Parity:
        """Compare a part of every stream; names that are numbers count as samples."""
        gate = {
            name: verdict.gate[name] for name in ("sqnr_db", "tolerance_db", "agreement", *more) if name in verdict.gate
        }
        chosen = [f"{s}.{k}" for s, n in lengths.items() for k in range(n)[_scaled(part, n)]]
        right = {str(i): labels[name] for i, name in enumerate(chosen)} if labels is not None else None
        return compare(
            source,
            {str(i): played[name][0] for i, name in enumerate(chosen)},
            {str(i): truth[name] for i, name in enumerate(chosen)},
            {str(i): played[name][1] for i, name in enumerate(chosen)},
            gate,
            labels=right,
        )

    first, last = (held(slice(*ends)) for ends in ((0, 1), (3, 4)))
    whole = held(slice(0, 4), *task)
    steps = " and ".join(map(str, lengths.values()))
    said = f"over streams of {steps} steps, each with the state that its own step before left"
    note = f"{said}: {_figure(first)} in the first quarter, {_figure(last)} in the last"
    note += "".join(f"; {name} {whole.found[name]:.4g} of the source's own" for name in task if name in whole.found)
    for part, where in ((whole, ""), (last, ", in the last quarter")):
        if not part.passed:
            return parity.refused(verdict, f"{said}{where}: {part.reasons[0]}")
    return replace(verdict, notes=(*verdict.notes, note))


def _scaled(quarters: slice, steps: int) -> slice:
    return slice(quarters.start * steps // 4, quarters.stop * steps // 4)


def _figure(found: Parity) -> str:
    value = next((v for name, v in found.found.items() if name.endswith("_db")), None)
    return "exact" if value is None else f"{value:.4g} dB"
