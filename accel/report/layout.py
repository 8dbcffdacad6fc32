"""Lay out reports from their templates: HTML and Markdown.

A page is one file that carries its style, its script and the plot library, and loads nothing. Autoescaping is on in
all of it: names and reasons come from users and from libraries. A content security policy in the page forbids every
request, whatever text it carries. Markdown has tables and text, no images; its templates escape with ``md`` and
``code``.
"""

import base64
import functools
import gzip
import itertools
import re
from collections.abc import Iterable
from importlib import resources
from typing import TYPE_CHECKING, Any, Protocol

from markupsafe import Markup

from accel.report import formats, markdown
from accel.report.figures import accuracy_figure, served_figure, throughput_figure, timeline_figure
from accel.report.view import WORDS, RunView

if TYPE_CHECKING:
    from jinja2 import Environment

    from accel.report.compare import Comparison


PALETTE = (
    *(("#6f7780", "#a3abb4"), ("#b25e93", "#d98bbb"), ("#d18a00", "#f0b03c"), ("#0072b2", "#4ba8e0")),
    *(("#008f68", "#3fc79c"), ("#4a9fd1", "#86cdf5"), ("#8b6d4a", "#c2a27c")),
)
"""Colours on a light page and on a dark one, for runtimes of which the run names none."""


def run_page(run: RunView) -> str:
    """Return the report of one run as an HTML document."""
    accuracy, throughput, served = accuracy_figure(run), throughput_figure(run), served_figure(run)
    timeline = timeline_figure(run)
    fastest = max((v.speedup for v in run.variants if v.speedup and v.status == "ok"), default=1.0)
    return render(
        "run.html.j2",
        run.variants,
        run=run,
        accuracy=accuracy,
        throughput=throughput,
        served=served,
        timeline=timeline,
        fastest=fastest,
        numbers={v.id: number for number, v in enumerate(run.variants, 1)},
        plotly=Markup(plotly() if accuracy or throughput or served or timeline else ""),
        script=script("plots.js"),
    )


def run_markdown(run: RunView) -> str:
    """Return the report of one run as GitHub Markdown."""
    batches = sorted({p.batch for v in run.variants for p in v.by_batch})
    return render("run.md.j2", run=run, batches=batches).rstrip("\n") + "\n"


def comparison_page(comparison: "Comparison") -> str:
    """Return a comparison as one self-contained HTML document."""
    variants = [variant for target in comparison.targets for run in target.runs for variant in run.variants]
    return render("comparison.html.j2", variants, comparison=comparison)


def comparison_markdown(comparison: "Comparison") -> str:
    """Return a comparison as GitHub Markdown."""
    return render("comparison.md.j2", comparison=comparison) + "\n"


class Coloured(Protocol):
    """What has the colours of a runtime."""

    @property
    def family(self) -> str:
        """First word of the target's name."""

    @property
    def colours(self) -> tuple[str, ...] | None:
        """On a light page and on a dark one; None where the runtime declares none."""


def script(name: str) -> Markup:
    """Return a script of this folder as a page carries it."""
    return Markup(asset(name))


def render(template: str, variants: Iterable[Coloured] = (), **values: Any) -> str:
    """Render a template of this folder, with the style, the colours of ``variants`` and the number formats at hand."""
    style = Markup(asset("style.css") + colours(variants))
    return _environment().get_template(template).render(style=style, **values)


def colours(variants: Iterable[Coloured]) -> str:
    """Return the CSS that gives each runtime its colours: those that it declares, else the next free ones."""
    found: dict[str, tuple[str, ...] | None] = {}
    for variant in variants:
        found[variant.family] = found.get(variant.family) or variant.colours
    free = itertools.cycle([pair for pair in PALETTE if pair not in found.values()] or PALETTE)
    light, dark, dots = "", "", ""
    for family, own in found.items():
        pair = own or next(free)
        light += f"--c-{family}: {pair[0]}; "
        dark += f"--c-{family}: {pair[1]}; "
        dots += f".rt-{family} {{ --dot: var(--c-{family}); }}\n"
    return f":root {{ {light}}}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n{dots}"


@functools.cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("accel.report", "."),
        autoescape=lambda name: name is None or ".html" in name,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
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
        "md": markdown.escape,
        "code": markdown.code,
        "fence": markdown.fence,
        "status": lambda status: WORDS.get(status, status),
        "slug": lambda text: re.sub(r"[^a-z_]", "", text),
    }
    return environment


def asset(name: str) -> str:
    """Return a file of this folder."""
    return (resources.files("accel.report") / name).read_text(encoding="utf-8")


@functools.cache
def plotly() -> str:
    """Return plotly.js, packed: 2 MB in the file in place of 5."""
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 6, mtime=0)).decode()
