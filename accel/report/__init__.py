"""Lay out finished runs: a page, Markdown for a pull request, a table for the terminal, a comparison of several runs.

The only input is the run document; this package measures nothing and decides nothing. Every renderer draws the
same ``RunView``, so that they cannot disagree.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel.core import document
from accel.core.errors import OutputError, UsageError
from accel.core.files import write_text
from accel.report.compare import Comparison, merge_runs
from accel.report.from_run import run_view
from accel.report.layout import comparison_markdown, comparison_page, run_markdown, run_page

if TYPE_CHECKING:
    from accel.report.terminal import RunTable

__all__ = ["Comparison", "merge_runs", "terminal_table", "write_comparison", "write_reports"]


def write_reports(run: Mapping[str, Any], folder: Path) -> tuple[Path, Path]:
    """Write ``report.html`` and ``report.md`` into ``folder``, replacing earlier ones.

    Args:
        run: the JSON of ``run.json``; unknown fields are ignored, all but ``schema`` may be missing.

    Returns:
        The two paths.

    Raises:
        InputError: the run has no schema number, or one that this version cannot read.
        OutputError: the folder cannot be written.
    """
    view = run_view(document.parse(run))
    page, text = folder / "report.html", folder / "report.md"
    _write(page, run_page(view))
    _write(text, run_markdown(view))
    return page, text


def terminal_table(run: Mapping[str, Any]) -> "RunTable":
    """Return the main table as a renderable of rich; it shows as many columns as the terminal has room for.

    Raises:
        InputError: the run has no schema number, or one that this version cannot read.
    """
    from accel.report.terminal import RunTable

    return RunTable(run_view(document.parse(run)))


def write_comparison(paths: Sequence[Path], out: Path) -> Path:
    """Compare several runs in one file: one section per hardware target.

    Args:
        paths: run directories or ``run.json`` files.
        out: the file to write; its suffix, ``.html`` or ``.md``, says which form.

    Raises:
        UsageError: no run, or another suffix.
        InputError: a run cannot be read.
        OutputError: the file cannot be written.
    """
    if out.suffix not in (".html", ".md"):
        raise UsageError(f"cannot write a comparison to {out}: expected a file that ends in .html or .md")
    comparison = merge_runs(paths)
    _write(out, comparison_page(comparison) if out.suffix == ".html" else comparison_markdown(comparison))
    return out


def _write(path: Path, text: str) -> None:
    if not path.parent.is_dir():
        raise OutputError(f"cannot write {path}: there is no such folder", fix="name a folder that exists")
    write_text(path, text)
