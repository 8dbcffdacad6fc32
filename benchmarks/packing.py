"""Several texts in one row against groups of similar length, on a run's variants, as the served model answers them.

    accel convert minilm --targets openvino-fp32,openvino-bf16,openvino-int8 --bench none -o runs/minilm
    python benchmarks/packing.py runs/minilm runs/bert [--variants openvino-int8@cpu] [--out FILE]

Texts are the run's gate samples, each of its own length; 64 wait at once. They are answered by the code that a
repository is served with (``accel.triton.grouping``), in one process, pass after pass in an order drawn anew for each
round: in groups, as the run's own manifest has them; in groups of up to 64 rows; and in shared rows of each width that
a conversion tries. A pass takes requests to answers: joining and taking apart are in it. Each text's answer in a shared
row is held against its answer alone, at its own length.
"""

import argparse
import contextlib
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from traffic import opened

from accel.bench.stability import ratio_interval
from accel.builders import Session, targets
from accel.core import document, hardware
from accel.core.feeds import Feed
from accel.core.values import ModelSource
from accel.run.pack_check import in_rows
from accel.triton import manifest as manifests
from accel.triton.grouping import WINDOW, Grouping, answered, groups, places

LARGE = 64
"""Rows of a group beside those that the profile allows."""
THREADS = hardware.cpu_threads()
Windows = Sequence[Mapping[int, Feed]]


def windows(requests: Sequence[Feed]) -> Windows:
    """Return the requests that wait at once, by number."""
    numbered = list(enumerate(requests))
    return [dict(numbered[i : i + WINDOW]) for i in range(0, len(numbered), WINDOW)]


def settings(grouping: Grouping) -> dict[str, Grouping]:
    """Return how requests share calls, by name: ``groups`` as served first."""
    plain = replace(grouping, packing=None)
    return {
        "groups": plain,
        f"groups of {LARGE}": replace(plain, rows=LARGE),
        **{f"rows of {width}": way for width, way in in_rows(plain).items()},
    }


def all_answered(source: ModelSource, session: Session, how: Grouping, asked: Windows) -> dict[int, dict[str, Any]]:
    """Answer windows of requests one after the other."""
    found = {}
    for window in asked:
        found |= answered(window, source.inputs, source.outputs, how, session.run)
    return found


def least_sqnr_db(alone: Sequence[Feed], found: Mapping[int, Feed]) -> float:
    """Return the least SQNR (dB) of a text's outputs against those alone.

    Formula: 10 log10(sum (alone - mean)² / sum (alone - answer)²) over a text's values, the mean that of each channel
    over all texts.
    """
    means = {n: np.concatenate([a[n].reshape(-1, a[n].shape[-1]) for a in alone]).mean(axis=0) for n in alone[0]}
    least = float("inf")
    for index, truth in enumerate(alone):
        for name, mean in means.items():
            value = truth[name].astype(np.float64)
            noise = float(np.square(value - found[index][name]).sum())
            least = min(least, 10 * np.log10(float(np.square(value - mean).sum()) / max(noise, 1e-30)))
    return float(least)


def of_variant(
    run: Path, record: document.VariantRecord, source: ModelSource, requests: Sequence[Feed], rounds: int
) -> dict[str, Any]:
    """Hold a variant's answers in shared rows and in groups against those alone, and time all ways; return all figures.

    Raises:
        InputError: the variant cannot be loaded so.
    """
    holder = record.twin or record.repository
    grouping = manifests.read(run / str(holder)).grouping
    assert grouping is not None, f"{record.id} of {run} has no groups by length"
    builder, asked, ways = targets.discover()[record.target], windows(requests), settings(grouping)
    artifact, folder = record.to_artifact(), (run / "variants" / record.id).resolve()
    how: dict[str, Any] = {"threads": THREADS, "mode": "latency"}
    with (
        contextlib.closing(builder.open(artifact, folder, **how)) as session,
        contextlib.closing(builder.open_packed(artifact, folder, mask=str(grouping.mask), **how)) as packed,
    ):
        sessions = {name: packed if way.packing else session for name, way in ways.items()}
        alone = [session.run(feed) for feed in requests]
        found = {n: all_answered(source, sessions[n], way, asked) for n, way in ways.items()}  # and meets new shapes
        taken: dict[str, list[float]] = {name: [] for name in ways}
        order = list(ways)
        for number in range(rounds):
            random.Random(number).shuffle(order)
            for name in order:
                begin = time.perf_counter()
                all_answered(source, sessions[name], ways[name], asked)
                taken[name].append(time.perf_counter() - begin)
    made = {n: [g for w in asked for g in groups(w, way)] for n, way in ways.items()}
    return {
        "variant": record.id,
        "texts": len(requests),
        "tokens": sum(next(iter(feed.values())).shape[1] for feed in requests),
        "places": {n: sum(places(g, ways[n]) for g in calls) for n, calls in made.items()},
        "calls": {n: len(calls) for n, calls in made.items()},
        "least_sqnr_db": {n: least_sqnr_db(alone, answers) for n, answers in found.items()},
        "seconds": taken,
        "over_groups": {n: ratio_interval(taken["groups"], t) for n, t in taken.items() if n != "groups"},
    }


def show(model: str, row: Mapping[str, Any]) -> None:
    """Print texts per second of each way, and what it answers for each one in groups."""
    print(f"{model} {row['variant']}: {row['texts']} texts, {row['tokens']} tokens")
    for name, taken in row["seconds"].items():
        ratio = row["over_groups"].get(name)
        over = "" if ratio is None else f", {ratio[0]:.2f}× [{ratio[1]:.2f}, {ratio[2]:.2f}] of groups"
        places, calls, sqnr_db = (row[what][name] for what in ("places", "calls", "least_sqnr_db"))
        per_s = row["texts"] / float(np.median(taken))
        print(f"  {name:<13} {per_s:8.1f} /s  {places} places in {calls} calls, {sqnr_db:.1f} dB{over}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--variants", default="", help="ids, separated by commas  [default: all that take shared rows]")
    parser.add_argument("--most", type=int, default=128, help="texts, at even distances of the samples")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/packing.json"))
    asked = parser.parse_args()
    wanted = [id for id in asked.variants.split(",") if id]
    head = {"hardware": hardware.detect().id, "threads": THREADS}
    rows = []
    for run in asked.runs:
        source, every = opened(run)
        most = min(asked.most, len(every))
        requests = [every[i * len(every) // most] for i in range(most)]
        for record in document.read(run).variants:
            takes = record.status == "ok" and not record.static and targets.discover()[record.target].packs
            if takes and (not wanted or record.id in wanted):
                found = of_variant(run, record, source, requests, asked.rounds)
                rows.append({"model": source.name, "weights": source.weights, **found})
                show(source.name, rows[-1])
                asked.out.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
