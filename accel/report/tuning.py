"""The report of ``accel tune``, from its document (``tune.json``) alone."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from accel.core.files import write_text
from accel.report import layout
from accel.report.figures import linear_axis, plot_layout

PREDICTED, MEASURED, SHIPPED = "#8a8f98", "#0072b2", "#d18a00"


def write_tuning(found: Mapping[str, Any], out: Path) -> None:
    """Write the page.

    Args:
        found: what ``tune.json`` has.

    Raises:
        OutputError: the file cannot be written.
    """
    figures = dict(_figures(found["tried"]))
    page = layout.render(
        "tuning.html.j2",
        found=found,
        rows=sorted(found["tried"], key=_order),
        figures=figures,
        plotly=Markup(layout.plotly() if figures else ""),
        script=Markup(layout.asset("plots.js")),
    )
    write_text(out, page)


def _order(row: Mapping[str, Any]) -> tuple[bool, float]:
    """Measured configurations first, then by what each carries."""
    best = row["measured"] or row["predicted"]
    return row["measured"] is None, -(best["throughput_per_s"] if best else 0.0)


def _figures(rows: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the plots, by title."""
    predicted = [r for r in rows if r["predicted"]]
    measured = [r for r in rows if r["measured"]]
    if predicted or measured:
        traces = [
            _points(
                "predicted, greatest load held", PREDICTED, [(r, r["predicted"]) for r in predicted], "circle-open"
            ),
            _points("measured, every load", MEASURED, [(r, p) for r in rows for p in r["probes"]], "circle"),
            _points(
                "as it ships, measured", SHIPPED, [(r, p) for r in rows if r["default"] for p in r["probes"]], "square"
            ),
        ]
        yield "Throughput over p50 latency", _figure(traces, "items per second", "p50 latency, ms")
    both = [r for r in measured if r["predicted"]]
    if both:
        pairs = [(r["predicted"]["throughput_per_s"], r["measured"]["throughput_per_s"]) for r in both]
        most = max(max(pair) for pair in pairs)
        line = {"type": "scatter", "mode": "lines", "x": [0, most], "y": [0, most], "name": "equal"}
        dots = _trace(
            "configurations",
            MEASURED,
            [(r["repository"] + ": " + r["label"], *p) for r, p in zip(both, pairs, strict=True)],
            "circle",
        )
        yield (
            "Prediction against measurement",
            _figure(
                [line | {"line": {"color": PREDICTED, "dash": "dot"}}, dots], "predicted items per second", "measured"
            ),
        )
    known = [r for r in measured if r["memory_mib"] and r["measured"]["p50_ms"]]
    if known:
        dots = _trace(
            "configurations",
            MEASURED,
            [(r["repository"] + ": " + r["label"], r["measured"]["p50_ms"], r["memory_mib"]) for r in known],
            "circle",
        )
        yield "Memory over latency", _figure([dots], "p50 latency, ms", "memory of the server, MiB")


def _points(name: str, colour: str, probes: list[tuple[Any, Any]], symbol: str) -> dict[str, Any]:
    shown = [
        (r["repository"] + ": " + r["label"], p["throughput_per_s"], p["p50_ms"]) for r, p in probes if p["p50_ms"]
    ]
    return _trace(name, colour, shown, symbol)


def _trace(name: str, colour: str, shown: list[tuple[str, float, float]], symbol: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": [x for _, x, _ in shown],
        "y": [y for _, _, y in shown],
        "text": [text for text, _, _ in shown],
        "hovertemplate": "%{text}<br>%{x:.4g}, %{y:.4g}<extra></extra>",
        "marker": {"color": colour, "symbol": symbol, "size": 8},
    }


def _figure(traces: list[dict[str, Any]], across: str, up: str) -> dict[str, Any]:
    return {
        "data": traces,
        "layout": plot_layout(linear_axis(across) | {"rangemode": "tozero"}, linear_axis(up) | {"rangemode": "tozero"}),
    }
