"""Several sentences in one row with a block-diagonal mask, against groups of similar length, on a run's variants.

    accel convert minilm --targets ort,openvino-fp32,openvino-bf16,openvino-int8 --bench none -o runs/minilm
    python benchmarks/packing.py runs/minilm runs/bert [--variants ort@cpu,openvino-int8@cpu] [--out FILE]

The change (``packed_graphs``) is made on each variant's own graph: the IR, quantised or not, and the exported ONNX,
fused again as the variant was.

Sentences are the run's gate samples, each of its own length. They are answered in these ways, in one process, pass
after pass in an order drawn anew for each round. Of each way the settings are chosen first, in passes of their own:

    groups.window   groups of similar length as a server makes them (accel.triton.grouping), among 64 that wait at once
    groups.all      the same among all sentences
    packed.window   rows packed by first fit, the longest sentence first, among 64 that wait at once
    packed.all      the same among all sentences

Only calls of the model are timed, by the clock and by what they computed: joining, packing and taking apart are not.
Each sentence's packed answer is held against its answer alone, at its own length without padding: in FP32 by no less
than 60 dB.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from packed_graphs import PACKED, Pack, pack_ir
from packed_rows import Call, packed_calls, unpacked
from traffic import opened

from accel.bench.stability import ratio_interval
from accel.builders import Session, targets
from accel.builders.to_openvino import import_openvino
from accel.core import document, hardware
from accel.core.errors import InputError
from accel.core.feeds import Feed, fit_inputs
from accel.core.values import Artifact, TensorSpec
from accel.graph import passes
from accel.graph.fuse import fuse
from accel.triton import grouping as groups, manifest as manifests
from accel.triton.grouping import Grouping

LEAST_DB = 60.0
"""Least SQNR of a sentence's packed answer in FP32 (docs/traffic.md)."""
WIDTHS = (64, 128, 256)
PLACES = (512, 4096)
"""Positions of one call, as many rows as fit."""
GROUP_ROWS = (8, 16, 64)
CALL_TOKENS = (groups.CALL_TOKENS, 4 * groups.CALL_TOKENS)
"""What a call is taken to cost beside its tokens where groups are cut: the server's figure, and one for fewer calls."""
LEAST_ROUNDS, MOST_ROUNDS = 5, 15
THREADS = hardware.cpu_threads()


def packed_artifact(run: Path, artifact: Artifact, folder: Path, mask: str, out: Path) -> Artifact:
    """Write a variant's packed graph to ``out``; returns the artifact that a builder can open there.

    Raises:
        InputError: the graph cannot be packed.
    """
    entry, fusions = artifact.built.entry, dict[str, int]()
    if entry.endswith(".onnx"):
        plain = out / f"plain-{entry}"
        packed = passes.run(passes.load(run / "onnx" / "model.onnx"), Pack(mask))[-1].model
        passes.save(packed, plain, data=f"{plain.name}.data")
        names = [str(value.name) for value in packed.graph.inputs]
        if artifact.built.facts.get("graph") == "fused":
            fusions = fuse(plain, out / entry)
        if not fusions:
            entry = plain.name
    else:
        ov = import_openvino()
        model = ov.Core().read_model(folder / entry)
        pack_ir(model, mask)
        ov.save_model(model, out / entry, compress_to_fp16=False)
        names = [port.get_any_name() for port in model.inputs]
    kept = [spec for spec in artifact.built.inputs if spec.name in names]
    new = [TensorSpec(name, "int32", dims) for name, dims in PACKED.items() if name in names]
    outputs = [s if "seq" in s.dims else replace(s, dims=("sentences", *s.dims[1:])) for s in artifact.built.outputs]
    built = replace(artifact.built, entry=entry, inputs=(*kept, *new), outputs=tuple(outputs))
    return replace(artifact, built=replace(built, facts={"fusions": fusions}))


def group_calls(
    requests: Sequence[Feed], inputs: Sequence[TensorSpec], grouping: Grouping, window: int, call_tokens: int
) -> list[Call]:
    """Return the calls that a server makes of the sentences, ``window`` of which wait at once."""
    groups.CALL_TOKENS = call_tokens
    made: list[Call] = []
    for begin in range(0, len(requests), window):
        feeds = dict(enumerate(requests[begin : begin + window], begin))
        for group in groups.groups(feeds, grouping):
            made.append(([row.request for row in group], groups.joined(group, feeds, inputs, grouping.axis)))
    return made


@dataclass(frozen=True, slots=True)
class Asked:
    """Sentences that wait, and how the server would group them."""

    requests: Sequence[Feed]
    grouping: Grouping
    inputs: Sequence[TensorSpec]

    def grouped(self, window: int) -> dict[str, list[Call]]:
        """Return the calls of each setting with groups by length."""
        return {
            f"{rows} rows, {tokens} tokens a call": group_calls(
                self.requests, self.inputs, replace(self.grouping, rows=rows), window, tokens
            )
            for rows in GROUP_ROWS
            for tokens in CALL_TOKENS
        }

    def packed(self, window: int) -> dict[str, list[Call]]:
        """Return the calls of each setting with packed rows."""
        return {
            f"width {width}, {places} places": packed_calls(self.requests, self.grouping.mask, width, places, window)
            for width in WIDTHS
            for places in PLACES
        }


def fitted(session: Session, calls: Sequence[Call]) -> list[dict[str, np.ndarray]]:
    """Return the feeds of some calls in the session's own types."""
    return [fit_inputs(feed, session.inputs) for _, feed in calls]


def least_s(session: Session, calls: Sequence[Call]) -> float:
    """Return the shorter of two passes: the first meets new shapes."""
    feeds = fitted(session, calls)
    return min(timed(session, feeds)[0] for _ in range(2))


def quick(session: Session, asked: Asked, most_s: float) -> Sequence[Feed]:
    """Return the sentences, or as many at even distances as are answered in some time, but no fewer than a window."""
    requests = asked.requests
    made = group_calls(
        requests[:: max(1, len(requests) // groups.WINDOW)], asked.inputs, asked.grouping, groups.WINDOW, CALL_TOKENS[0]
    )
    each_s = least_s(session, made) / sum(len(members) for members, _ in made)
    while len(requests) // 2 >= groups.WINDOW and len(requests) * each_s > most_s:
        requests = requests[::2]
    return requests


def timed(session: Session, feeds: Sequence[Feed]) -> tuple[float, float]:
    """Time one pass over fitted feeds; returns its seconds by the clock, and those that this process computed."""
    start, begun = time.perf_counter_ns(), time.process_time_ns()
    for feed in feeds:
        session.call(feed)
    return (time.perf_counter_ns() - start) / 1e9, (time.process_time_ns() - begun) / 1e9


def answered(
    session: Session, mask: str, requests: Sequence[Feed], calls: Sequence[Call]
) -> Iterator[tuple[int, Feed]]:
    """Yield each sentence's own outputs, out of packed rows or of groups."""
    for members, feed in calls:
        outputs = session.run(feed)
        if "segments" in feed:
            yield from zip(members, unpacked(feed, outputs), strict=True)
            continue
        width = feed[mask].shape[1]
        for row, index in enumerate(members):
            own = requests[index][mask].shape[1]
            yield index, {n: v[row : row + 1, :own] if v.shape[1] == width else v[[row]] for n, v in outputs.items()}


def least_sqnr_db(alone: Sequence[Feed], answers: Iterable[tuple[int, Feed]]) -> float:
    """Return the least SQNR (dB) of a sentence's outputs against those alone.

    Formula: 10 log10(sum (alone - mean)² / sum (alone - answer)²) over a sentence's values, the mean that of each
    channel over all sentences.
    """
    means = {n: np.concatenate([a[n].reshape(-1, a[n].shape[-1]) for a in alone]).mean(axis=0) for n in alone[0]}
    least = float("inf")
    for index, found in answers:
        for name, mean in means.items():
            truth = alone[index][name].astype(np.float64)
            noise = float(np.square(truth - found[name]).sum())
            least = min(least, 10 * np.log10(float(np.square(truth - mean).sum()) / max(noise, 1e-30)))
    return float(least)


def of_variant(
    run: Path, record: document.VariantRecord, requests: list[dict[str, np.ndarray]], budget_s: float, most_s: float
) -> dict[str, Any]:
    """Pack a variant, hold its answers against those alone, choose settings and time rounds; returns all figures.

    Raises:
        InputError: the variant may not be grouped, or its graph cannot be packed.
    """
    artifact, folder = record.to_artifact(), (run / "variants" / record.id).resolve()
    holder = record.twin or record.repository
    found = manifests.read(run / str(holder)).grouping if holder else None
    if found is None:
        raise InputError(f"{record.id} of {run} has no groups by length", fix="convert it again, or leave it out")
    builder = targets.discover()[record.target]
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        changed = packed_artifact(run, artifact, folder, found.mask, out)
        session = builder.open(artifact, folder, threads=THREADS, mode="latency")
        packed = builder.open(changed, out, threads=THREADS, mode="latency")
        alone = [session.run(feed) for feed in requests]
        in_rows = packed_calls(requests, found.mask, 128, 1024, len(requests))
        in_groups = group_calls(requests, artifact.built.inputs, found, groups.WINDOW, CALL_TOKENS[0])
        sqnr_db = least_sqnr_db(alone, answered(packed, found.mask, requests, in_rows))
        groups_db = least_sqnr_db(alone, answered(session, found.mask, requests, in_groups))
        if record.artifact and record.artifact.precision == "fp32" and sqnr_db < LEAST_DB:
            raise InputError(f"{record.id}: a sentence has {sqnr_db:.1f} dB in packed rows, expected {LEAST_DB:.0f}")
        asked = Asked(requests, found, artifact.built.inputs)
        requests = quick(session, asked, most_s)
        asked = replace(asked, requests=requests)
        spans = {"window": groups.WINDOW} | ({"all": len(requests)} if len(requests) > groups.WINDOW else {})
        begun = time.perf_counter()
        ways: dict[str, tuple[Session, list[Call]]] = {}
        tried: dict[str, dict[str, float]] = {}
        for span, window in spans.items():
            for kind, opened_session, made in (
                ("groups", session, asked.grouped(window)),
                ("packed", packed, asked.packed(window)),
            ):
                way = f"{kind}.{span}"
                tried[way] = {name: least_s(opened_session, calls) for name, calls in made.items()}
                ways[way] = (opened_session, made[min(tried[way], key=tried[way].__getitem__)])
        feeds = {way: fitted(kind, made) for way, (kind, made) in ways.items()}
        passes_s: dict[str, list[float]] = {way: [] for way in ways}
        cpu_s: dict[str, list[float]] = {way: [] for way in ways}
        order, number = list(ways), 0
        while number < LEAST_ROUNDS or (number < MOST_ROUNDS and time.perf_counter() - begun < budget_s):
            random.Random(number).shuffle(order)
            for way in order:
                taken = timed(ways[way][0], feeds[way])
                passes_s[way].append(taken[0])
                cpu_s[way].append(taken[1])
            number += 1
        session.close()
        packed.close()
    places = {way: sum(int(next(iter(f.values())).size) for _, f in made) for way, (_, made) in ways.items()}
    return {
        "variant": record.id,
        "sentences": len(requests),
        "tokens": sum(feed[found.mask].shape[1] for feed in requests),
        "places": places,
        "calls": {way: len(made) for way, (_, made) in ways.items()},
        "least_sqnr_db": sqnr_db,
        "groups_least_sqnr_db": groups_db,
        "fusions": {"groups": artifact.built.facts.get("fusions", {}), "packed": changed.built.facts["fusions"]},
        "tried_s": tried,
        "seconds": passes_s,
        "cpu_seconds": cpu_s,
        "packed_over_groups": {
            name: {s: ratio_interval(taken[f"groups.{s}"], taken[f"packed.{s}"]) for s in spans}
            for name, taken in (("clock", passes_s), ("cpu", cpu_s))
        },
    }


def show(model: str, row: Mapping[str, Any]) -> None:
    """Print sentences per second of each way, and packed rows over groups."""
    print(
        f"{model} {row['variant']}: {row['sentences']} sentences, {row['tokens']} tokens, "
        f"{row['least_sqnr_db']:.1f} dB packed, {row['groups_least_sqnr_db']:.1f} dB in groups"
    )
    for way, taken in row["seconds"].items():
        best = min(row["tried_s"][way], key=row["tried_s"][way].__getitem__)
        per_s = row["sentences"] / float(np.median(taken))
        print(f"  {way:<14} {per_s:8.1f} /s  {row['places'][way]} places in {row['calls'][way]} calls, {best}")
    for name, spans in row["packed_over_groups"].items():
        for span, (ratio, low, high) in spans.items():
            print(f"  packed over groups, {span}, {name}: {ratio:.3f} [{low:.3f}, {high:.3f}]", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--variants", default="", help="ids, separated by commas  [default: all that passed]")
    parser.add_argument("--most", type=int, default=256, help="sentences, at even distances of the samples")
    parser.add_argument(
        "--seconds", type=float, default=20, help="time of a variant's rounds, choice of settings included"
    )
    parser.add_argument(
        "--pass-seconds", type=float, default=0.4, help="of a variant that takes longer, fewer sentences"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/packing.json"))
    asked = parser.parse_args()
    wanted = [id for id in asked.variants.split(",") if id]
    head = {"hardware": hardware.detect().id, "threads": THREADS}
    rows = []
    for run in asked.runs:
        source, every = opened(run)
        requests = (
            [every[i * len(every) // asked.most] for i in range(asked.most)] if asked.most < len(every) else every
        )
        for record in document.read(run).variants:
            if record.status == "ok" and not record.static and (not wanted or record.id in wanted):
                found = of_variant(run, record, requests, asked.seconds, asked.pass_seconds)
                rows.append({"model": source.name, "weights": source.weights, **found})
                show(source.name, rows[-1])
                asked.out.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
