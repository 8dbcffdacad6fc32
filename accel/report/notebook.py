"""A run as a small piece of HTML for a notebook: the verdict, and a row for each variant. No script, no style sheet."""

from html import escape

from accel.report.formats import figures
from accel.report.view import RunView

COLUMNS = ("variant", "", "p50 ms", "× baseline", "runs in", "proof")


def fragment(view: RunView) -> str:
    """Return the HTML."""
    verdicts = "".join(
        f"<p><b>{escape(d.row.id if d.row else 'nothing chosen')}</b> ({escape(d.device)}, "
        f"{escape(d.objective)}): {escape(d.reason or '')}</p>"
        for d in view.decisions
    )
    head = "".join(f"<th style='text-align:left'>{escape(c)}</th>" for c in COLUMNS)
    rows = []
    for row in view.variants:
        cells = (
            row.id,
            row.mark,
            figures(row.latency.p50_ms) if row.latency else "",
            f"{row.speedup:.2f}" if row.speedup else "",
            row.precision or "",
            "; ".join(f"{g.label} {g.shown} (gate {g.least})" for g in row.gates) or row.reason or "",
        )
        rows.append("<tr>" + "".join(f"<td style='text-align:left'>{escape(cell)}</td>" for cell in cells) + "</tr>")
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    notice = f"<p>{escape(view.document.model.notice)}</p>" if view.document.model.notice else ""
    return f"<div><h4>{escape(view.name)}</h4>{verdicts}{notice}{table}</div>"
