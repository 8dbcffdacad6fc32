"""The JSON of a run → ``RunView``.

Works out which point of a variant stands in the table, how fast it is against the baseline of its own session, in what
order the variants stand, and why each one won or lost. It measures and decides nothing: the choice and its interval
are the run's own.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from accel.report.formats import mebibytes, size
from accel.report.reading import Node, check_schema, clean
from accel.report.view import DecisionView, GateView, OutputView, Point, RunView, VariantView

COLOUR = re.compile("#[0-9a-fA-F]{6}")
ORDER = {"ok": 0, "gate_failed": 1, "deferred": 2, "skipped": 3, "failed": 4}
"""Places of the statuses in the table."""


def run_view(run: Mapping[str, Any], *, origin: str = "this run") -> RunView:
    """Work out what a report of the run shows.

    Raises:
        InputError: the run has no schema number, or one that this version cannot read.
    """
    check_schema(run, origin)
    top = Node(run)
    model, hardware = top.node("model"), top.node("hardware")
    decided = list(top.nodes("decisions"))
    baseline = model.node("baseline")
    variants = [_variant(n) for n in top.nodes("variants")]
    rows = _ranked(variants, decided, baseline.text("target"))
    by_id = {v.id: v for v in rows}
    timings = top.node("timings_s")
    return RunView(
        name=model.text("name") or "model",
        framework=baseline.text("name") or model.text("framework") or "the source",
        source=model.text("source"),
        weights=model.text("weights"),
        revision=model.text("revision"),
        proved=model.text("accuracy") == "proved",
        notice=model.text("notice"),
        inputs=_tensors(model, "inputs"),
        outputs=_tensors(model, "outputs"),
        integers=_integers(model.node("integers")),
        samples=model.node("samples"),
        created=top.text("created"),
        accel=top.text("accel"),
        command=top.text("command"),
        hardware_id=hardware.text("id") or "unknown hardware",
        hardware=_hardware(hardware),
        versions=hardware.node("versions").pairs(),
        settings=top.node("settings").pairs(),
        timings=tuple((clean(k), v) for k in timings.data if (v := timings.amount(k)) is not None),
        variants=tuple(rows),
        decisions=tuple(_decision(d, by_id) for d in decided),
    )


def _integers(node: Node) -> str | None:
    """Say what became of 64-bit integers: at the door, and inside where a runtime computes them as int32."""
    if node.text("level") is None:
        return None
    doors = [*node.words("narrowed_inputs"), *node.words("narrowed_outputs")]
    changed = f"{', '.join(doors)} narrowed to INT32" if doors else "none narrowed"
    unproved = node.words("unproved_int64")
    if not unproved:
        inside = "all inside is proved to fit int32" if node.text("level") != "keep" else ""
    else:
        inside = f"{len(unproved)} values inside are not proved to fit int32"
        inside += ", and were allowed to wrap" if node.flag("allow_unproved_int64") else ""
    return "; ".join(part for part in (f"level {node.text('level')}", changed, inside) if part)


def _tensors(model: Node, key: str) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (n.text("name") or "?", n.text("dtype") or "?", "×".join(clean(d) for d in n.list("dims")) or "scalar")
        for n in model.nodes(key)
    )


def _hardware(node: Node) -> tuple[tuple[str, str], ...]:
    cpu = node.node("cpu")
    rows = [("CPU", cpu.text("model"))]
    rows += [(f"CPU {name}", value) for name, value in cpu.pairs() if name != "model"]
    for gpu in node.nodes("gpus"):
        memory = gpu.amount("memory_bytes")
        rows.append(("GPU", gpu.text("name") or "GPU"))
        rows.append(("GPU memory", None if memory is None else size(memory)))
        rows += [(f"GPU {k.replace('_', ' ')}", v) for k, v in gpu.pairs() if k not in ("name", "memory_bytes")]
    memory = node.amount("memory_bytes")
    rows.append(("memory", None if memory is None else size(memory)))
    rows.append(("system", node.text("system")))
    return tuple((name, value) for name, value in rows if value)


def _point(node: Node) -> Point:
    split = node.node("server")
    copies = split.amount("input_ms")
    return Point(
        scenario=node.text("scenario") or "latency",
        via=node.text("via") or "inprocess",
        backend=node.text("backend") or "",
        batch=node.whole("batch"),
        concurrency=node.whole("concurrency"),
        threads=node.whole("threads"),
        p50_ms=node.amount("p50_ms"),
        p90_ms=node.amount("p90_ms"),
        p95_ms=node.amount("p95_ms"),
        p99_ms=node.amount("p99_ms"),
        mean_ms=node.amount("mean_ms"),
        p50_ci_ms=node.interval("p50_ci_ms"),
        throughput_per_s=node.amount("throughput_per_s"),
        throughput_ci_per_s=node.interval("throughput_ci_per_s"),
        stable=node.flag("stable") is not False,
        samples=node.whole("samples"),
        peak_rss_mib=node.amount("peak_rss_mib"),
        load_ms=node.amount("load_ms"),
        first_ms=node.amount("first_ms"),
        rounds_ms=node.numbers("rounds_ms"),
        session=node.text("session"),
        rate_per_s=node.amount("rate_per_s"),
        failures=node.whole("failures"),
        repository=node.text("repository"),
        queue_ms=split.amount("queue_ms"),
        copy_ms=None if copies is None else copies + (split.amount("output_ms") or 0.0),
        infer_ms=split.amount("infer_ms"),
        requests=split.whole("requests"),
        executions=split.whole("executions"),
        cache_hits=split.whole("cache_hits"),
    )


def _variant(node: Node) -> VariantView:
    artifact, parity = node.node("artifact"), node.node("parity")
    gate, found = parity.node("gate"), parity.node("found")
    passed = parity.flag("passed")
    files = [f.amount("bytes") for f in artifact.nodes("files")]
    listed = sum(b for b in files if b is not None) if files else None
    identity = node.text("id") or "?"
    target, _, device = identity.partition("@")
    gates = []
    for name in gate.data:
        need, value = gate.number(name), found.number(name)
        held = value >= need if value is not None and need is not None else bool(passed)
        gates.append(GateView(clean(name), need, value, held))
    outputs = tuple(_output(o) for o in parity.nodes("outputs"))
    reason = node.text("reason") or "; ".join(parity.words("reasons")) or None
    total = artifact.amount("bytes")
    runtime = node.node("runtime")
    colours = runtime.words("colours")
    return VariantView(
        id=identity,
        target=node.text("target") or target,
        device=node.text("device") or device.split("+")[0],
        status=node.text("status") or "failed",
        reason=reason,
        fix=node.text("fix"),
        requested=artifact.text("precision"),
        precision=artifact.text("effective_precision"),
        bytes=listed if total is None else total,
        build_s=artifact.amount("build_s"),
        cached=node.flag("cached"),
        facts=(*artifact.node("facts").pairs(), *_on_the_gpu(node)),
        versions=artifact.node("versions").pairs(),
        repository=node.text("repository"),
        passed=passed,
        gates=tuple(gates),
        outputs=outputs,
        points=tuple(_point(m) for m in node.nodes("measurements")),
        unverified=node.words("unverified_for_release"),
        runtime=runtime.text("name"),
        colours=colours if len(colours) == 2 and all(map(COLOUR.fullmatch, colours)) else None,
    )


def _on_the_gpu(variant: Node) -> Iterator[tuple[str, str]]:
    """Yield what the latency point, or the first there is, says of the GPU: parts of a call, memory, power, clocks."""
    points = sorted(variant.nodes("measurements"), key=lambda m: m.text("scenario") != "latency")
    split = next((s for m in points if (s := m.node("split"))), Node({}))
    gpu = next((g for m in points if (g := m.node("gpu"))), Node({}))
    parts = [p for name in ("copy_in", "compute", "copy_out") if (p := split.amount(f"{name}_ms")) is not None]
    if len(parts) == 3:
        yield "copy in, model, copy out", f"{', '.join(f'{p:.3f}' for p in parts)} ms, apart"
    if (memory := gpu.amount("memory_peak_mib")) is not None:
        yield "GPU memory peak", mebibytes(memory)
    if (power := gpu.amount("power_w")) is not None:
        joules = gpu.amount("energy_j")
        yield "GPU power", f"{power:.0f} W" + (f", {joules * 1e3:.3g} mJ per item" if joules is not None else "")
    if (clock := gpu.amount("sm_mhz")) is not None:
        yield "GPU clock", f"{clock:.0f} MHz, at least {gpu.amount('sm_mhz_min') or clock:.0f} MHz"
    if warnings := gpu.words("warnings"):
        yield "the GPU was not quiet", "; ".join(warnings)


def _output(node: Node) -> OutputView:
    shapes = node.node("by_shape_db")
    return OutputView(
        name=node.text("name") or "?",
        max_abs=node.number("max_abs"),
        cosine=node.number("cosine"),
        sqnr_db=node.number("sqnr_db"),
        exact=node.flag("exact") is True,
        agreement=node.number("agreement"),
        atol_needed=node.number("atol_needed"),
        rtol_needed=node.number("rtol_needed"),
        by_shape_db=tuple((clean(k), shapes.number(k)) for k in shapes.data),
    )


def _told(node: Node) -> str | None:
    """Return the decision's reason, with the ties added where it does not name them."""
    reason = node.text("reason")
    untold = [i for i in node.words("ties") if i != node.text("chosen") and i not in (reason or "")]
    parts = [reason] if reason else []
    return "; ".join([*parts, f"ties with {', '.join(untold)}"] if untold else parts) or None


def _constraint(name: str, value: str) -> str:
    """``max_p99_ms`` 50 → ``p99 at most 50 ms``; other names stay as they are."""
    units = {"ms": "ms", "mib": "MiB", "throughput": "per s"}
    bound, *rest = name.split("_")
    if bound not in ("max", "min") or not rest:
        return f"{name} {value}"
    what = " ".join(rest[:-1] if rest[-1] in units and len(rest) > 1 else rest)
    return f"{what} {'at most' if bound == 'max' else 'at least'} {value} {units.get(rest[-1], '')}".strip()


def _decision(node: Node, by_id: Mapping[str, VariantView]) -> DecisionView:
    via, repository = node.text("via") or "inprocess", node.text("repository")
    chosen = by_id.get(node.text("chosen") or "")
    own = [p for p in chosen.points if p.via == via and p.repository == repository] if chosen else []
    latency, best = _shown(own)
    return DecisionView(
        device=node.text("device") or "?",
        objective=node.text("objective") or "latency",
        constraints=tuple(_constraint(name, value) for name, value in node.node("constraints").pairs()),
        chosen=chosen,
        latency=latency,
        best=best,
        via=via,
        repository=repository,
        reason=_told(node),
        baseline=node.text("baseline"),
        speedup=node.amount("speedup"),
        speedup_ci=node.interval("speedup_ci"),
    )


# ---------------------------------------------------------------------------------------------------------------------
# Rows


def _ranked(variants: list[VariantView], decisions: list[Node], baseline: str | None) -> list[VariantView]:
    """Fill in the points, the speed-ups and the notes, and sort: by device, passed ones by speed, then others."""
    by_device: dict[str, list[Node]] = {}
    for decision in decisions:
        by_device.setdefault(decision.text("device") or "?", []).append(decision)
    by_id = {v.id: v for v in variants}
    filled = []
    for row in variants:
        decided = by_device.get(row.device, [])
        named = [d.text("baseline") or "" for d in decided]
        base = next((by_id[i] for i in (*named, f"{baseline}@{row.device}", f"{baseline}@cpu") if i in by_id), None)
        filled.append(_with_standing(row, base, decided))
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


def _with_standing(row: VariantView, base: VariantView | None, decided: list[Node]) -> VariantView:
    via = (decided[0].text("via") if decided else None) or "inprocess"
    decided = [d for d in decided if (d.text("via") or "inprocess") == via]  # the table shows one way of measuring
    objectives = [d.text("objective") or "latency" for d in decided] or ["latency"]
    points = [p for p in row.points if p.via == via] or list(row.points)
    latency, best = _shown(points)
    ratios = {}
    if base is not None and row.computes:
        ratios = {"latency": _ratio(latency, base, "latency"), "throughput": _ratio(best, base, "throughput")}
    wins, ties, lost = [], False, []
    intervals = {}
    for objective, decision in zip(objectives, decided, strict=False):
        if decision.text("chosen") == row.id:
            wins.append(objective)
            if decision.amount("speedup") is not None:
                ratios[objective] = decision.amount("speedup")
                intervals[objective] = decision.interval("speedup_ci")
            continue
        reason = _rejected(decision).get(row.id)
        tied = row.id in decision.words("ties")
        ties = ties or tied
        if reason or tied:
            lost.append((objective, reason or f"ties with {decision.text('chosen')}"))
    return replace(
        row,
        objective=objectives[0],
        latency=latency,
        best=best,
        latency_speedup=ratios.get("latency"),
        throughput_speedup=ratios.get("throughput"),
        speedup_ci=intervals.get(objectives[0]),
        wins=tuple(wins),
        lost=tuple(lost) if row.status == "ok" else (),
        tied=ties,
        contested=len(decided),
        baseline=base is not None and base.id == row.id,
    )


def _shown(points: Sequence[Point]) -> tuple[Point | None, Point | None]:
    """Return the latency point and the point of the highest throughput that stand for all of them."""
    # Of several sessions the newest counts: it was measured beside the finalists.
    latency = next((p for p in reversed(points) if p.scenario == "latency"), None)
    batches = [p for p in points if p.scenario != "latency"] or points
    return latency, max(batches, key=lambda p: p.throughput_per_s or 0.0, default=None)


def _rejected(decision: Node) -> Mapping[str, str]:
    """Return id → reason; an entry is an object, or a pair as ``to_json`` writes a Decision."""
    found = {}
    for entry in decision.list("rejected"):
        node = Node(dict(zip(("id", "reason"), entry, strict=False)) if isinstance(entry, list | tuple) else entry)
        found[node.text("id") or "?"] = node.text("reason") or ""
    return found


def _ratio(mine: Point | None, base: VariantView, objective: str) -> float | None:
    """Return how much faster a point is than the baseline in the same session; None where they never ran together.

    Formula: the median over the interleaved rounds of baseline time / own time, both for each item; without rounds,
    the ratio of the p50 latencies or of the throughputs.
    """
    if mine is None:
        return None
    same = [p for p in base.points if p.session == mine.session and p.via == mine.via and p.scenario == mine.scenario]
    if not same:
        return None
    other = max(same, key=lambda p: p.throughput_per_s or 0.0)
    if mine.rounds_ms and len(mine.rounds_ms) == len(other.rounds_ms) and min(*mine.rounds_ms, *other.rounds_ms) > 0:
        return statistics.median(b / m for b, m in zip(other.rounds_ms, mine.rounds_ms, strict=True))
    over, under = (mine.throughput_per_s, other.throughput_per_s)
    if objective == "latency":
        over, under = other.p50_ms, mine.p50_ms
    return over / under if over and under else None
