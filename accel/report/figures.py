"""The plots of a report, as plain Plotly figures (JSON objects).

Colours are written as CSS variables (``var(--c-openvino)``); the page resolves them, so that one figure serves the
light and the dark page. Colour says which runtime, the marker and the dash say which precision: neither stands alone.
"""

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from accel.core.values import Measurement
from accel.report.formats import between, decibels, figures
from accel.report.view import RunView, VariantView

Figure = Mapping[str, Any]
SYMBOLS = {
    "fp32": "circle",
    "tf32": "pentagon",
    "bf16": "square",
    "fp16": "diamond",
    "int8": "triangle-up",
    "fp8": "triangle-down",
    "none": "circle",
}
DASHES = {"fp32": "solid", "tf32": "longdash", "bf16": "dash", "fp16": "longdashdot", "int8": "dot", "fp8": "dashdot"}
WIDTH, HEIGHT = 500.0, 340.0
"""Pixels of a plot's drawing area on a wide page, for placing labels."""
WIDE = 30
"""Ratio of the fastest to the slowest from which on a throughput axis is logarithmic: a CPU beside a GPU."""
TASKS = {
    "describe": "load",
    "reference": "reference",
    "export": "export",
    "check": "export",
    "noise": "reference",
    "narrow": "narrow",
    "prepare": "build",
    "build": "build",
    "answers": "prove",
    "precision_converted_answers": "prove",
    "typed_answers": "prove",  # its name in the run.json of older runs
    "compare": "prove",
    "emit": "emit",
}
TIMED = ("open_timed", "warm", "split", "time_round", "flops_per_s")
SPAN_COLOURS = {
    "load": "#8a8f98",
    "reference": "#5b7fb5",
    "export": "#3f9a9a",
    "narrow": "#9a7fb8",
    "build": "#d08a3c",
    "prove": "#5a9e5a",
    "emit": "#b8a23c",
    "measure": "#b5566b",
    "other": "#8a8f98",
}
TOGETHER_S = 5.0
DECADE_TICKS = [m * 10.0**e for e in range(-3, 6) for m in (1, 2, 5)]


def accuracy_figure(run: RunView) -> Figure | None:
    """Plot p50 latency (log) against SQNR, or None where no variant has both.

    Exact matches have no SQNR: they stand on a line of their own above the others. A variant that failed its gate is
    a cross.
    """
    rows = [v for v in run.variants if v.computes and _p50(v) and (v.exact or v.sqnr_db is not None)]
    if not rows:
        return None
    known = [v.sqnr_db for v in rows if v.sqnr_db is not None and not v.exact]
    low, high = min(known, default=0.0), max(known, default=100.0)
    span = max(high - low, 20.0)
    line = high + 0.22 * span
    traces = [_marker(v, line if v.exact else v.sqnr_db or 0.0) for v in rows]
    bottom, top = low - 0.16 * span, line + 0.16 * span
    step = 20 if span > 60 else 10 if span > 25 else 5
    ticks = [t for t in range(-100, 400, step) if bottom <= t <= high + 0.08 * span]
    axis_y = linear_axis("worst output's SQNR, dB")
    axis_y |= {"range": [bottom, top], "tickvals": [*ticks, line], "ticktext": [*(str(t) for t in ticks), "exact"]}
    times = [_p50(v) for v in rows]
    axis_x = _log_axis("p50 latency at batch 1, ms", min(times) / 1.5, max(times) * 1.5)
    left, right = axis_x["range"]
    heights = [t["y"][0] for t in traces]
    spots = [
        ((math.log10(ms) - left) / (right - left) * WIDTH, (y - bottom) / (top - bottom) * HEIGHT)
        for ms, y in zip(times, heights, strict=True)
    ]
    layout = plot_layout(axis_x, axis_y)
    layout |= {"showlegend": False, "annotations": _labels(rows, heights, spots)}
    return {"data": traces, "layout": layout}


def throughput_figure(run: RunView) -> Figure | None:
    """Plot throughput by batch size, one line a variant, or None where nobody was measured at two batch sizes."""
    traces: list[dict[str, Any]] = []
    batches: set[int] = set()
    speeds: list[float] = []
    for row in run.variants:
        points = row.by_batch
        if len(points) < 2 or not row.computes:
            continue
        batches |= {p.batch for p in points}
        speeds += [p.throughput_per_s for p in points]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": html.escape(row.id) + ("" if row.status == "ok" else " (gate failed)"),
                "x": [p.batch for p in points],
                "y": [p.throughput_per_s for p in points],
                "line": {
                    "color": f"var(--c-{row.family})",
                    "width": 3 if row.chosen else 1.75,
                    "dash": DASHES.get(row.kind, "solid"),
                },
                "marker": {"symbol": _symbols(row, points), "size": 9 if row.chosen else 7},
                "customdata": [[_hover_throughput(p)] for p in points],
                "hovertemplate": f"<b>{html.escape(row.id)}</b><br>batch %{{x}}: %{{customdata[0]}}<extra></extra>",
                "opacity": 1 if row.status == "ok" else 0.6,
            }
        )
    if not traces:
        return None
    axis = _log_axis("batch size", min(batches) / 1.15, max(batches) * 1.15)
    axis |= {"tickvals": sorted(batches), "ticktext": [str(b) for b in sorted(batches)]}
    axis_y = (
        _log_axis("inferences per second", min(speeds) / 1.3, max(speeds) * 1.3)
        if max(speeds) > WIDE * min(speeds) > 0
        else linear_axis("inferences per second") | {"rangemode": "tozero"}
    )
    layout = plot_layout(axis, axis_y)
    layout["height"] += 12 * len(traces)
    return {"data": traces, "layout": layout}


def served_figure(run: RunView) -> Figure | None:
    """Plot p95 latency (log) against throughput as served, one line a repository over its loads, or None."""
    traces: list[dict[str, Any]] = []
    for row in run.variants:
        closed = [p for p in row.served if (p.p95_ms or 0) > 0 and p.throughput_per_s > 0 and not p.rate_per_s]
        for repository in dict.fromkeys(p.repository for p in closed):
            points = [p for p in closed if p.repository == repository]
            name = html.escape((repository or row.id).removeprefix("repositories/"))
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": name,
                    "x": [p.throughput_per_s for p in points],
                    "y": [p.p95_ms for p in points],
                    "line": {
                        "color": f"var(--c-{row.family})",
                        "width": 3 if row.chosen else 1.75,
                        "dash": DASHES.get(row.kind, "solid"),
                    },
                    "marker": {"symbol": _symbols(row, points), "size": 9 if row.chosen else 7},
                    "customdata": [[p.load, figures(p.p95_ms), figures(p.throughput_per_s)] for p in points],
                    "hovertemplate": f"<b>{name}</b><br>%{{customdata[0]}}: %{{customdata[2]}} / s, "
                    "p95 %{customdata[1]} ms<extra></extra>",
                }
            )
    if not traces:
        return None
    times = [y for t in traces for y in t["y"]]
    layout = plot_layout(
        linear_axis("inferences per second") | {"rangemode": "tozero"},
        _log_axis("p95 latency, ms", min(times) / 1.3, max(times) * 1.3),
    )
    layout["height"] += 12 * len(traces)
    return {"data": traces, "layout": layout}


def timeline_figure(run: RunView) -> Figure | None:
    """Plot when each process did what, a row a variant, or None where the run recorded nothing.

    Spans of one task that follow each other closely, as the rounds of measuring do, are drawn as one.
    """
    spans: list[list[Any]] = []
    for span in run.document.timeline:
        kind = TASKS.get(span.task, "measure" if span.task in TIMED else "other")
        last = next((s for s in reversed(spans) if s[0] == span.worker), None)
        if last is not None and last[1] == kind and span.begin_s - last[3] < TOGETHER_S:
            last[3] = span.end_s
        else:
            spans.append([span.worker, kind, span.begin_s, span.end_s])
    if not spans:
        return None
    traces = []
    for kind, colour in SPAN_COLOURS.items():
        own = [s for s in spans if s[1] == kind]
        if own:
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": kind,
                    "y": [html.escape(s[0]) for s in own],
                    "base": [s[2] for s in own],
                    "x": [max(s[3] - s[2], 0.05) for s in own],
                    "marker": {"color": colour},
                    "hovertemplate": f"<b>%{{y}}</b><br>{kind}: %{{x:.1f}} s from %{{base:.1f}} s<extra></extra>",
                }
            )
    rows = list(dict.fromkeys(html.escape(s[0]) for s in spans))
    layout = plot_layout(linear_axis("seconds since the run began"), linear_axis(""))
    layout["yaxis"] |= {"categoryorder": "array", "categoryarray": rows[::-1]}
    layout["legend"] = layout["legend"] | {"y": 1.02, "yanchor": "bottom"}  # below it would lie on the axis title
    return {"data": traces, "layout": layout | {"barmode": "overlay", "height": 140 + 26 * len(rows), "bargap": 0.35}}


def _p50(row: VariantView) -> float:
    return max((row.latency.p50_ms if row.latency else None) or 0.0, 0.0)


def _symbols(row: VariantView, points: Sequence[Measurement]) -> list[str]:
    """Open markers where a point did not settle."""
    symbol = SYMBOLS[row.kind]
    return [symbol if p.stable else f"{symbol}-open" for p in points]


def _hover_throughput(point: Measurement) -> str:
    ends = between(point.throughput_ci_per_s)
    interval = f" ({ends})" if ends else ""
    return f"{figures(point.throughput_per_s)} / s{interval}{'' if point.stable else ', unstable'}"


def _marker(row: VariantView, y: float) -> dict[str, Any]:
    failed = row.status != "ok"
    symbol = "x-thin" if failed else SYMBOLS[row.kind] + ("-open" if row.unstable else "")
    name = html.escape(row.id)
    color = f"var(--c-{row.family})"
    accuracy = "exact" if row.exact else decibels(row.sqnr_db)
    remark = "<br>gate failed" if failed else "<br>chosen" if row.chosen else ""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [_p50(row)],
        "y": [y],
        "marker": {
            "symbol": symbol,
            "size": 16 if row.chosen else 11,
            "color": color,
            "line": {"width": 2.5 if failed else 1.5, "color": "var(--bad)" if failed else color},
        },
        "hovertemplate": f"<b>{name}</b><br>{figures(_p50(row))} ms · {accuracy}{remark}<extra></extra>",
        "cliponaxis": False,
    }


def _labels(
    rows: Sequence[VariantView], heights: Sequence[float], spots: Sequence[tuple[float, float]]
) -> list[dict[str, Any]]:
    """Place each marker's name where it covers no marker and no other name, with a thin line to its marker.

    Args:
        heights: the markers' places on the y axis.
        spots: the markers' places on a drawing area of ``WIDTH`` × ``HEIGHT`` pixels, from its lower left corner.
    """
    taken = [(x - 9, y - 9, x + 9, y + 9) for x, y in spots]
    labels = []
    for row, height, (x, y) in sorted(zip(rows, heights, spots, strict=True), key=lambda item: not item[0].chosen):
        half = 3.3 * len(row.id) + 4
        boxes = [(dx, dy, (x + dx - half, y + dy - 8, x + dx + half, y + dy + 8)) for dx, dy in _offsets(half)]
        dx, dy, box = min(boxes, key=lambda item: _covered(item[2], taken) + 0.4 * math.hypot(item[0], item[1]))
        taken.append(box)
        name = html.escape(row.id)
        failed = row.status != "ok"
        labels.append(
            {
                "x": math.log10(_p50(row)),
                "y": height,
                "text": f"<b>{name}</b>" if row.chosen else name,
                "font": {"size": 11, "color": "var(--bad)" if failed else "var(--ink)"},
                "ax": dx,
                "ay": -dy,
                "arrowhead": 0,
                "arrowwidth": 1,
                "arrowcolor": "rgba(0,0,0,0)" if (dx, dy) in _beside(half) else "var(--muted)",
                "standoff": 7,
            }
        )
    return labels


def _beside(half: float) -> list[tuple[float, float]]:
    return [(0.0, 18.0), (0.0, -18.0), (half + 10, 0.0), (-half - 10, 0.0)]


def _offsets(half: float) -> list[tuple[float, float]]:
    """Return where a label's centre may stand, seen from its marker: beside it first, then further away."""
    far = [(side * half * share, up) for side in (1, -1) for share in (0.5, 1.0) for up in range(-120, 121, 20) if up]
    return _beside(half) + [(x, float(y)) for x, y in far]


def _covered(box: tuple[float, float, float, float], taken: Sequence[tuple[float, float, float, float]]) -> float:
    """Return how badly a box collides: the area it shares with others, and what of it leaves the drawing area."""
    left, low, right, high = box
    shared = sum(max(0.0, min(right, r) - max(left, x)) * max(0.0, min(high, h) - max(low, y)) for x, y, r, h in taken)
    outside = max(0.0, -left) + max(0.0, right - WIDTH) + max(0.0, -low) + max(0.0, high - HEIGHT)
    return shared + 40 * outside


def linear_axis(title: str) -> dict[str, Any]:
    """Return a linear axis."""
    return {
        "title": {"text": title, "font": {"size": 12, "color": "var(--muted)"}},
        "gridcolor": "var(--line)",
        "zeroline": False,
        "tickfont": {"size": 11, "color": "var(--muted)"},
        "automargin": True,
    }


def _log_axis(title: str, low: float, high: float) -> dict[str, Any]:
    ticks = [t for t in DECADE_TICKS if low <= t <= high]
    if len(ticks) < 3:
        ticks = [m * 10.0**e for e in range(-3, 6) for m in range(1, 10) if low <= m * 10.0**e <= high]
    axis = linear_axis(title)
    axis |= {"type": "log", "range": [math.log10(low), math.log10(high)]}
    return axis | {"tickvals": ticks, "ticktext": [f"{t:g}" for t in ticks]}


def plot_layout(axis_x: Mapping[str, Any], axis_y: Mapping[str, Any]) -> dict[str, Any]:
    """Return the layout of a plot with these axes."""
    return {
        "xaxis": axis_x,
        "yaxis": axis_y,
        "height": 420,
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "var(--ink)"},
        "hoverlabel": {"bgcolor": "var(--card)", "bordercolor": "var(--line)", "font": {"color": "var(--ink)"}},
        "legend": {"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0, "font": {"size": 11}},
    }
