"""A run document → ``RunView``.

Works out which point of a variant stands in the table, how fast it is against the baseline of its own session, in what
order the variants stand, and why each one won or lost. It measures and decides nothing: the choice and its interval
are the run's own.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from accel.core.document import Integers, Machine, RunDocument, VariantRecord
from accel.core.values import LAYERS, Decision, Measurement, extended
from accel.report.formats import known, mebibytes, pairs, plain, size
from accel.report.view import DecisionView, GateView, RunView, VariantView

ORDER = {"ok": 0, "gate_failed": 1, "deferred": 2, "skipped": 3, "failed": 4}
"""Places of the statuses in the table."""
LONG = 80
"""Characters of a reason that is told once."""


def run_view(run: RunDocument) -> RunView:
    """Work out what a report of the run shows."""
    baseline = run.model.baseline
    rows = _ranked([_row(v) for v in run.variants], run.decisions, baseline.target if baseline else None)
    by_id = {v.id: v for v in rows}
    return RunView(
        document=run,
        name=run.model.name or "model",
        framework=(baseline.name if baseline else "") or run.model.framework or "the source",
        integers=_integers(run.model.integers),
        hardware_id=run.hardware.id or "unknown hardware",
        hardware=_hardware(run.hardware),
        variants=tuple(_told_once(rows)),
        decisions=tuple(_decision(d, run.decisions, by_id) for d in run.decisions),
    )


def _told_once(rows: Sequence[VariantView]) -> Iterator[VariantView]:
    """Let what was left out for a long reason that stands above refer to it."""
    first: dict[tuple[str, str | None, str | None], str] = {}
    for row in rows:
        above = first.setdefault((row.status, row.reason, row.fix), row.id)
        shared = row.status == "skipped" and above != row.id and len(row.reason or "") > LONG
        yield replace(row, reason=f"as {above}", fix=None) if shared else row


def _integers(found: Integers | None) -> str | None:
    """Say what became of 64-bit integers: of inputs and outputs, and inside where a runtime computes them as int32."""
    if found is None or found.level is None:
        return None
    names = [*found.narrowed_inputs, *found.narrowed_outputs]
    changed = f"{', '.join(names)} narrowed to INT32" if names else "none narrowed"
    if not found.unproved_int64:
        inside = "all inside is proved to fit int32" if found.level != "keep" else ""
    else:
        inside = f"{len(found.unproved_int64)} values inside are not proved to fit int32"
        inside += ", and were allowed to wrap" if found.allow_unproved_int64 else ""
    return "; ".join(part for part in (f"level {found.level}", changed, inside) if part)


def _hardware(machine: Machine) -> tuple[tuple[str, str], ...]:
    rows = [("CPU", machine.cpu.model)]
    rows += [("CPU threads", plain(machine.cpu.threads or None)), ("CPU flags", plain(machine.cpu.flags))]
    for gpu in machine.gpus:
        rows += [("GPU", gpu.name or "GPU"), ("GPU memory", size(gpu.memory_bytes) if gpu.memory_bytes else "")]
        rows += [("GPU driver", gpu.driver), ("GPU compute capability", gpu.compute_capability)]
    rows += [("memory", size(machine.memory_bytes)), ("system", machine.system or "")]
    return tuple((name, value) for name, value in rows if value.strip("—"))


def _row(record: VariantRecord) -> VariantView:
    target, _, device = record.id.partition("@")
    parity, artifact = record.parity, record.artifact
    gates = []
    for name, needed in parity.gate.items() if parity else ():
        value = parity.found.get(name) if parity else None
        passed = value >= needed if known(value) else bool(parity and parity.passed)
        gates.append(GateView(name, needed, value, passed, parity.scores.get(name) if parity else None))
    return extended(
        VariantView,
        record,
        id=record.id or "?",
        target=record.target or target,
        device=record.device or device.split("+")[0],
        reason=record.reason or (parity and "; ".join(parity.reasons)) or None,
        gates=tuple(gates),
        outputs=parity.outputs if parity else (),
        partly=f"proved on {parity.feeds} of {parity.of} feeds" if parity and not parity.whole else None,
        facts=(
            *(pairs({n: v for n, v in artifact.facts.items() if n != LAYERS}) if artifact else ()),
            *(("proof", note) for note in (parity.notes if parity else ())),
            *_on_the_gpu(record.measurements),
        ),
    )


def _on_the_gpu(points: Sequence[Measurement]) -> Iterator[tuple[str, str]]:
    """Yield what the latency point, or the first there is, says of the GPU: parts of a call, memory, power, clocks."""
    points = sorted(points, key=lambda m: m.scenario != "latency")
    if split := next((m.split for m in points if m.split), None):
        parts = (split.copy_in_ms, split.compute_ms, split.copy_out_ms)
        yield "copy in, model, copy out", f"{', '.join(f'{p:.3f}' for p in parts)} ms, apart"
    if (gpu := next((m.gpu for m in points if m.gpu), None)) is None:
        return
    if gpu.memory_peak_mib is not None:
        yield "GPU memory peak", mebibytes(gpu.memory_peak_mib)
    if gpu.power_w is not None:
        per_item = f", {gpu.energy_j * 1e3:.3g} mJ per item" if gpu.energy_j is not None else ""
        yield "GPU power", f"{gpu.power_w:.0f} W{per_item}"
    if gpu.sm_mhz is not None:
        yield "GPU clock", f"{gpu.sm_mhz:.0f} MHz, at least {gpu.sm_mhz_min or gpu.sm_mhz:.0f} MHz"
    if gpu.warnings:
        yield "the GPU was not quiet", "; ".join(gpu.warnings)


def _told(decision: Decision) -> str:
    """Return the decision's reason, with the ties added where it does not name them."""
    untold = [i for i in decision.ties if i != decision.chosen and i not in decision.reason]
    parts = (decision.reason, f"ties with {', '.join(untold)}" if untold else "")
    return "; ".join(part for part in parts if part)


def _constraint(name: str, value: str) -> str:
    """``max_p99_ms`` 50 → ``p99 at most 50 ms``; other names stay as they are."""
    units = {"ms": "ms", "mib": "MiB", "throughput": "per s"}
    bound, *rest = name.split("_")
    if bound not in ("max", "min") or not rest:
        return f"{name} {value}"
    what = " ".join(rest[:-1] if rest[-1] in units and len(rest) > 1 else rest)
    return f"{what} {'at most' if bound == 'max' else 'at least'} {value} {units.get(rest[-1], '')}".strip()


def _decision(decision: Decision, all_of_run: Sequence[Decision], by_id: Mapping[str, VariantView]) -> DecisionView:
    chosen = by_id.get(decision.chosen or "")
    points = chosen.measurements if chosen else ()
    via, served = _where(decision)
    mine = [p for p in points if (p.via, p.repository) == (via, served)]
    won = [d for d in all_of_run if (d.chosen, *_where(d)) == (decision.chosen, via, served)]
    latency, best, traffic = _shown(mine, won)
    return extended(
        DecisionView,
        decision,
        device=decision.device or "?",
        via=via,
        repository=served,
        reason=_told(decision),
        row=chosen,
        limits=tuple(_constraint(name, value) for name, value in pairs(decision.constraints)),
        latency=latency,
        best=best,
        traffic=traffic,
    )


def _via(decision: Decision) -> str:
    return decision.via or "inprocess"


def _where(decision: Decision) -> tuple[str, str | None]:
    """Return how what was chosen was measured, and as which repository; in process there is none."""
    via = _via(decision)
    return via, None if via == "inprocess" else decision.repository


# ---------------------------------------------------------------------------------------------------------------------
# Rows


def _ranked(variants: list[VariantView], decisions: Sequence[Decision], baseline: str | None) -> list[VariantView]:
    """Fill in the points, the speed-ups and the notes, and sort: by device, passed ones by speed, then others."""
    by_device: dict[str, list[Decision]] = {}
    for decision in decisions:
        by_device.setdefault(decision.device or "?", []).append(decision)
    by_id = {v.id: v for v in variants}
    filled = []
    for row in variants:
        decided = by_device.get(row.device, [])
        named = [d.baseline or "" for d in decided]
        base = next((by_id[i] for i in (*named, f"{baseline}@{row.device}", f"{baseline}@cpu") if i in by_id), None)
        filled.append(_compared(row, base, decided))
    first = {v.id: i for i, v in enumerate(variants)}
    devices = list(dict.fromkeys([*by_device, *(v.device for v in variants)]))
    return sorted(
        filled,
        key=lambda v: (
            devices.index(v.device),
            ORDER.get(v.status, len(ORDER)),
            v.objective not in v.wins,
            v.speedup is None,
            -(v.speedup or 0.0),
            v.latency.p50_ms if v.latency and v.latency.p50_ms is not None else float("inf"),
            first[v.id],
        ),
    )


def _compared(row: VariantView, base: VariantView | None, decided: list[Decision]) -> VariantView:
    """Hold a row against the baseline, and say what the decisions of its device say of it."""
    via = _via(decided[0]) if decided else "inprocess"
    decided = [d for d in decided if _via(d) == via]  # the table shows one way of measuring
    won = [d for d in decided if d.chosen == row.id]
    latency, best, traffic = _shown([p for p in row.measurements if p.via == via] or row.measurements, won)
    ratios: dict[str, float | None] = {}
    if base is not None and row.computes:
        shown = {"latency": latency, "throughput": best, "traffic": traffic}
        ratios = {objective: _ratio(point, base, objective) for objective, point in shown.items()}
    others = [d for d in decided if d.chosen != row.id]
    told = {d.objective: d for d in won if d.speedup is not None}
    ratios |= {objective: d.speedup for objective, d in told.items()}
    lost = [
        (d.objective, reason or f"ties with {d.chosen}")
        for d in others
        if (reason := dict(d.rejected).get(row.id)) or row.id in d.ties
    ]
    objective = decided[0].objective if decided else "latency"
    return replace(
        row,
        objective=objective,
        latency=latency,
        best=best,
        traffic=traffic,
        latency_speedup=ratios.get("latency"),
        throughput_speedup=ratios.get("throughput"),
        traffic_speedup=ratios.get("traffic"),
        speedup_ci=told[objective].speedup_ci if objective in told else None,
        wins=tuple(d.objective for d in won),
        lost=tuple(lost) if row.status == "ok" else (),
        tied=any(row.id in d.ties for d in others),
        contested=len(decided),
        baseline=base is not None and base.id == row.id,
    )


def _shown(points: Sequence[Measurement], won: Sequence[Decision]) -> tuple[Measurement | None, ...]:
    """Return the latency point, and those of the highest throughput at fixed shapes and of the traffic.

    Args:
        won: decisions for the variant: of their objective only points at which it was chosen count.
    """
    at: dict[str, tuple[int | None, int | None]] = {
        d.objective: (d.batch, d.concurrency) for d in won if d.batch is not None
    }
    points = [p for p in points if at.get(p.scenario, (p.batch, p.concurrency)) == (p.batch, p.concurrency)]
    points = [p for p in points if len(p.rounds_ms) != 1] or points  # one round says little
    # Of several sessions the newest counts, as in the choice: it was measured beside the finalists.
    points = list({(p.scenario, p.batch, p.concurrency, p.via, p.repository): p for p in points}.values())
    latency = next((p for p in reversed(points) if p.scenario == "latency"), None)
    fixed = [p for p in points if p.scenario != "traffic"]
    batches = [p for p in fixed if p.scenario != "latency"] or fixed
    traffic = [p for p in points if p.scenario == "traffic"]
    return latency, max(batches, key=_speed, default=None), max(traffic, key=_speed, default=None)


def _speed(point: Measurement) -> float:
    return point.throughput_per_s if point.throughput_per_s > 0 else 0.0


def _ratio(mine: Measurement | None, base: VariantView, objective: str) -> float | None:
    """Return how much faster a point is than the baseline in the same session; None where they never ran together.

    Formula: the median over the interleaved rounds of baseline time / own time (``Measurement.rounds_ms``); without
    rounds, the ratio of the p50 latencies or of the throughputs.
    """
    if mine is None:
        return None
    own = (mine.session, mine.via, mine.scenario)
    others = [p for p in base.measurements if (p.session, p.via, p.scenario) == own]
    most = max((len(p.rounds_ms) for p in others), default=0)  # other batches of it left the race early
    other = max((p for p in others if len(p.rounds_ms) == most), key=_speed, default=None)
    if other is None:
        return None
    rounds = list(zip(other.rounds_ms, mine.rounds_ms, strict=False))  # one of them may have left early
    if rounds and min(map(min, rounds)) > 0:
        return statistics.median(b / m for b, m in rounds)
    over, under = (other.p50_ms, mine.p50_ms) if objective == "latency" else (_speed(mine), _speed(other))
    return over / under if over and under and over > 0 and under > 0 else None
