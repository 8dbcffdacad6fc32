"""A run as a small piece of HTML for a notebook: the verdict, and a row for each variant. No script, no style sheet."""

from html import escape

from accel.report.formats import figures
from accel.report.view import RunView

LEFT, RIGHT = "text-align:left", "text-align:right"
COLUMNS = {
    "variant": f"{LEFT};white-space:nowrap",
    "": LEFT,
    "p50 ms": RIGHT,
    "× baseline": RIGHT,
    "runs in": LEFT,
    "proof": LEFT,
}
"""Heads, and how their cells are set."""


def fragment(view: RunView) -> str:
    """Return the HTML."""
    verdicts = "".join(
        f"<p><b>{escape(d.row.id if d.row else 'nothing chosen')}</b> ({escape(d.device)}, "
        f"{escape(d.objective)}): {escape(d.reason or '')}</p>"
        for d in view.decisions
    )
    head = "".join(f"<th style='{style}'>{escape(name)}</th>" for name, style in COLUMNS.items())
    rows = []
    for row in view.variants:
        cells = (
            row.id,
            row.mark,
            f"{'' if row.latency.stable else '~'}{figures(row.latency.p50_ms)}" if row.latency else "",
            f"{row.speedup:.2f}" if row.speedup else "",
            row.precision or "",
            "; ".join(f"{g.label} {g.shown} (gate {g.least})" for g in row.gates) or row.reason or "",
        )
        set_cells = (f"<td style='{s}'>{escape(c)}</td>" for c, s in zip(cells, COLUMNS.values(), strict=True))
        rows.append(f"<tr>{''.join(set_cells)}</tr>")
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    notice = f"<p>{escape(view.document.model.notice)}</p>" if view.document.model.notice else ""
    return f"<div><h4>{escape(view.name)}</h4>{verdicts}{notice}{table}</div>"
