"""Lay out a report as GitHub Markdown, for a pull request: tables and text, no images.

Whatever comes from a user or a library is escaped, and stands in a code span where it holds an ``@``: on GitHub
``@cpu`` in running text would call a person of that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from accel.core.values import ServerSplit
from accel.report.formats import (
    NONE,
    between,
    decibels,
    error,
    figures,
    mebibytes,
    moment,
    seconds,
    size,
    spans,
    thousands,
    times,
)
from accel.report.view import DecisionView, RunView, VariantView

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!$&])")
_MENTION = re.compile(r"[^\s(),;:]*@[^\s(),;:]+")


def escape(text: str) -> str:
    """Escape running text: no markup, no HTML, no table border, no mention, no link; `code` stays code."""
    return "".join(code(part) if is_code else _words(part) for is_code, part in spans(text))


def _words(text: str) -> str:
    parts, last = [], 0
    for found in _MENTION.finditer(text):
        parts += [_plain(text[last : found.start()]), code(found.group())]
        last = found.end()
    return "".join([*parts, _plain(text[last:])])


def _plain(text: str) -> str:
    # An escaped colon keeps GitHub from turning a bare address into a link.
    return _SPECIAL.sub(r"\\\1", text).replace("://", "\\://")


def code(text: str) -> str:
    """Put text into a code span, whatever backticks and table borders it holds."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, align: str) -> list[str]:
    """Return the lines of a table; ``align`` holds ``l`` or ``r`` for each column."""
    rule = [{"l": ":--", "r": "--:"}[side] for side in align]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]


def run_markdown(run: RunView) -> str:
    """Return the report of one run as Markdown."""
    document = run.document
    created = f" on {moment(document.created)}" if document.created else ""
    lines = [f"# {escape(run.name)}", ""]
    weights = escape(document.model.weights or "unknown")
    lines += [f"{run.framework} model, weights {weights}; {escape(run.title)}{escape(created)}.", ""]
    if (notice := document.model.notice) or not run.proved:
        lines.append(f"> **{run.accuracy_line}**")
        lines += [">", f"> {escape(notice)}"] if notice else []
        lines.append("")
    for group in run.verdicts:
        lines += [*_verdict(run, group), ""]
    if not run.decisions:
        lines += [f"**No decision**: {run.undecided}.", ""]
    lines += ["## All variants", "", *_variants(run), ""]
    lines += [
        f"Fastest first; speed-up against {run.framework} in the same session. {NONE} in a percentile: too few samples "
        "lie beyond it. \\~: the point did not settle.",
        "",
    ]
    lines += _throughput(run)
    lines += _served(run)
    lines += _details(run)
    lines += ["## Hardware, model and samples", ""]
    facts = [("hardware", run.hardware_id), *run.hardware, *run.model]
    facts += [(f"samples: {name}" if name != "samples" else name, value) for name, value in run.sample_facts]
    facts.append(("versions", ", ".join(f"{name} {value}" for name, value in document.hardware.versions.items())))
    lines += [*table(("", ""), [(escape(k), escape(v)) for k, v in facts if v], align="ll"), ""]
    lines += ["## How it was measured", "", *(f"{sentence}\n" for sentence in run.method)]
    lines += [*table(("", ""), [(escape(k), escape(v)) for k, v in run.settings_and_times], align="ll"), ""]
    if command := document.command:
        # The fence is longer than any run of backticks in the command.
        fence = "`" * max(3, 1 + max((len(r) for r in re.findall(r"`+", command)), default=0))
        lines += ["## Do it again", "", f"{fence}sh", command, fence, ""]
    return "\n".join(lines)


def _verdict(run: RunView, group: Sequence[DecisionView]) -> list[str]:
    first, best = group[0], group[0].chosen
    limits = "".join(f", {escape(c)}" for c in first.constraints)
    objectives = " and ".join(escape(d.objective) for d in group)
    how = ", as served by Triton" if first.via == "triton" else ""
    lines = [f"## Best for {objectives} on {escape(first.device)}{how}{limits}", ""]
    if best is None:
        return [*lines, f"**Nothing qualified.** {escape(first.reason or '')}".rstrip()]
    head = f"**{code(best.id)}**"
    if best.baseline:
        head += ": the source framework itself; nothing that passed beats it"
    else:
        head += ":" * any(d.speedup is not None for d in group) + ",".join(
            _factor(d, run.framework, alone=len(group) == 1) for d in group if d.speedup is not None
        )
    lines += [f"{head}.", ""]
    for decision in group:
        lines += [f"{escape(decision.reason)}.", ""] if decision.reason else []
    cells = []
    if first.latency:
        cells += [("p50", f"{figures(first.latency.p50_ms)} ms"), ("p99", _unit(first.latency.p99_ms, "ms"))]
    if first.best:
        at = first.best.load if first.via == "triton" else f"at batch {first.best.batch or 1}"
        cells.append(("throughput", f"{figures(first.best.throughput_per_s)} / s {at}"))
    if first.repository:
        cells.append(("repository", code(first.repository)))
    cells += [
        (g.label, f"{'exact' if g.found is None and g.passed else g.text} (gate {g.needed_text})") for g in best.gates
    ]
    if best.unverified_for_release:
        cells.append(("Triton release", f"**unverified**: {escape('; '.join(best.unverified_for_release))}"))
    cells += [("accuracy", "proved" if run.proved else "**UNPROVED**"), ("size", size(best.bytes))]
    names, values = zip(*cells, strict=True)
    return [*lines, *table([escape(n) for n in names], [values], align="l" * len(cells))]


def _factor(decision: DecisionView, framework: str, *, alone: bool) -> str:
    word = "faster than" if (decision.speedup or 0.0) >= 1 else "the speed of"
    interval = f" (interval {between(decision.speedup_ci, '×')})" if decision.speedup_ci else ""
    scope = "" if alone else f" for {escape(decision.objective)}"
    return f" **{times(decision.speedup)} {word} {framework}**{scope}{interval}"


def _unit(value: float | None, unit: str) -> str:
    return NONE if value is None else f"{figures(value)} {unit}"


def _variants(run: RunView) -> list[str]:
    header = (
        "variant",
        "",
        "speed-up",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "best / s",
        "accuracy",
        "size",
        "memory",
        "runs in",
    )
    rows = [_row(v) for v in run.variants]
    return table((*header, "why"), rows, align="llrrrrrrrrll")


def _row(v: VariantView) -> list[str]:
    p, best = v.latency, v.best
    why = [escape(v.note)] if v.note else []
    why += [f"Fix: {escape(v.fix)}"] if v.fix else []
    accuracy = f"{v.accuracy or NONE}" + (f" {v.accuracy_label}" if v.accuracy and v.accuracy_label else "")
    return [
        code(v.id),
        f"**{v.mark}**" if v.chosen else escape(v.mark),
        f"{times(v.speedup)}" + (f" ({between(v.speedup_ci)})" if v.speedup_ci else ""),
        _settled(p is None or p.stable, p.p50_ms if p else None),
        figures(p.p90_ms if p else None),
        figures(p.p99_ms if p else None),
        _settled(best is None or best.stable, best.throughput_per_s if best else None)
        + (f" (batch {best.batch}{_also(v)})" if best and best.batch else ""),
        escape(accuracy),
        size(v.bytes),
        mebibytes(v.peak_rss_mib),
        escape(v.precision or NONE),
        ". ".join(why),
    ]


def _also(v: VariantView) -> str:
    return f", {times(v.throughput_speedup)}" if v.throughput_speedup and v.objective != "throughput" else ""


def _settled(stable: bool, value: float | None) -> str:
    return ("" if stable else "\\~") + figures(value)


def _throughput(run: RunView) -> list[str]:
    """Return throughput by batch size, which the page shows as a plot."""
    rows = [(v, v.by_batch) for v in run.variants]
    batches = sorted({p.batch for _, points in rows for p in points if p.batch})
    if len(batches) < 2:
        return []
    cells = []
    for v, points in rows:
        if points:
            found = {p.batch: p for p in points}
            cells.append(
                [
                    code(v.id),
                    *(_settled(found[b].stable, found[b].throughput_per_s) if b in found else NONE for b in batches),
                ]
            )
    header = ["inferences / s at batch", *(str(b) for b in batches)]
    return ["## Throughput by batch", "", *table(header, cells, align="l" + "r" * len(batches)), ""]


def _served(run: RunView) -> list[str]:
    """Return what a Triton server answered under load, which the page shows as a plot, too."""
    if not run.served:
        return []
    header = ("repository", "backend", "load", "/ s", "p50 ms", "p95 ms", "p99 ms", "queue ms", "model ms", "per call")
    cells = [
        [
            code(p.repository or v.id),
            escape(p.backend),
            escape(p.load),
            _settled(p.stable, p.throughput_per_s),
            *(figures(n) for n in (p.p50_ms, p.p95_ms, p.p99_ms, *_inside(p.server))),
            thousands(p.failures or None),
        ]
        for v, p in run.served
    ]
    rows = table((*header, "failed"), cells, align="lllrrrrrrrr")
    return ["## As served", "", escape(run.served_line), "", *rows, ""]


def _inside(server: ServerSplit | None) -> tuple[float | None, ...]:
    return (server.queue_ms, server.infer_ms, server.merged) if server else (None,) * 3


def _details(run: RunView) -> list[str]:
    """Return per-output parity and the build of every variant that came so far."""
    parity = []
    for v in run.variants:
        for o in v.outputs:
            sqnr = "exact" if o.exact else decibels(o.sqnr_db)
            cosine = NONE if o.cosine is None else f"{o.cosine:.6f}"
            agreement = NONE if o.agreement is None else f"{100 * o.agreement:.1f} %"
            needed = (error(o.max_abs), error(o.atol_needed), error(o.rtol_needed))
            parity.append([code(v.id), escape(o.name), sqnr, cosine, agreement, *needed])
    lines = []
    if parity:
        header = (
            "variant",
            "output",
            "SQNR",
            "cosine",
            "same top-1",
            "largest difference",
            "atol needed",
            "rtol needed",
        )
        lines += _folded(f"Outputs against {run.framework} in FP32", table(header, parity, align="llrrrrrr"))
    built = [
        [
            code(v.id),
            seconds(v.artifact.build_s if v.artifact else None) + (" (cached)" if v.cached else ""),
            thousands(v.latency.samples if v.latency else None),
            figures(v.latency.load_ms if v.latency else None),
            figures(v.latency.first_ms if v.latency else None),
            escape(", ".join(f"{name} {value}" for name, value in v.built)),
        ]
        for v in run.variants
        if v.built
    ]
    if built:
        names = ("variant", "built in", "samples", "load ms", "first ms", "facts")
        lines += _folded("Builds", table(names, built, align="lrrrrl"))
    return lines


def _folded(title: str, lines: list[str]) -> list[str]:
    """Fold long tables away; GitHub wants a blank line on both sides of Markdown inside HTML."""
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>", ""]
