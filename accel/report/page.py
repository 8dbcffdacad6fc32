"""Lay out HTML: one file that carries its style, its script and the plot library, and loads nothing.

Autoescaping is on everywhere: names and reasons come from users and from libraries. A content security policy in the
page forbids every request, whatever text it carries.
"""

from __future__ import annotations

import base64
import functools
import gzip
import json
import re
from importlib import resources
from typing import TYPE_CHECKING, Any

from accel.report import formats
from accel.report.figures import Figure, accuracy_figure, served_figure, throughput_figure
from accel.report.view import WORDS, RunView

if TYPE_CHECKING:
    from jinja2 import Environment


def run_page(run: RunView) -> str:
    """Return the report of one run as an HTML document."""
    from markupsafe import Markup

    accuracy, throughput, served = accuracy_figure(run), throughput_figure(run), served_figure(run)
    fastest = max((v.speedup for v in run.variants if v.speedup and v.status == "ok"), default=1.0)
    return render(
        "run.html.j2",
        run=run,
        accuracy=accuracy,
        throughput=throughput,
        served=served,
        fastest=fastest,
        numbers={v.id: number for number, v in enumerate(run.variants, 1)},
        plotly=Markup(_plotly() if accuracy or throughput or served else ""),
        script=Markup(_asset("plots.js")),
    )


def render(template: str, **values: Any) -> str:
    """Render a template of this folder, with the style and the number formats at hand."""
    from markupsafe import Markup

    return _environment().get_template(template).render(style=Markup(_asset("style.css")), **values)


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("accel.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "figures": formats.figures,
        "times": formats.times,
        "between": formats.between,
        "decibels": formats.decibels,
        "size": formats.size,
        "mebibytes": formats.mebibytes,
        "seconds": formats.seconds,
        "error": formats.error,
        "thousands": formats.thousands,
        "moment": formats.moment,
        "spans": formats.spans,
        "status": lambda status: WORDS.get(status, status),
        "slug": lambda text: re.sub(r"[^a-z_]", "", text),
        "figure_json": _figure_json,
    }
    return environment


def _asset(name: str) -> str:
    return (resources.files("accel.report") / name).read_text(encoding="utf-8")


def _figure_json(figure: Figure) -> Any:
    """Write a figure as JSON that cannot end the script element it stands in."""
    from markupsafe import Markup

    text = json.dumps(figure, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


@functools.cache
def _plotly() -> str:
    """Return plotly.js, packed: 2 MB in the file in place of 5."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 6, mtime=0)).decode()
