"""The table of the terminal: what it shows at each width, without colour, and where only ASCII can be written."""

import io
from typing import Any

import pytest
import report_runs
from rich.console import Console

from accel.core.errors import InputError
from accel.report import terminal_table


def printed(run: Any, width: int, *, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    Console(file=file, width=width, no_color=True, legacy_windows=False).print(terminal_table(run))
    return "\n".join(line.rstrip() for line in raw.getvalue().decode(encoding).splitlines()) + "\n"


@pytest.mark.parametrize("width", [80, 120, 160])
def test_golden_table(width: int, golden: Any) -> None:
    golden(f"report/terminal-{width}.txt", printed(report_runs.bert(), width))


def test_golden_table_of_two_devices(golden: Any) -> None:
    golden("report/terminal-devices-80.txt", printed(report_runs.minilm(), 80))


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("name", ["bert", "minilm", "hostile"])
def test_fits_its_width_and_shows_every_measured_variant(name: str, width: int) -> None:
    run = getattr(report_runs, name)()
    text = printed(run, width)
    assert max(len(line) for line in text.splitlines()) <= width
    if name != "hostile" and width >= 80:
        for variant in run["variants"]:
            assert variant["id"] in text
        assert "…" not in text or width >= 140


def test_hostile_text_is_neither_markup_nor_control() -> None:
    text = printed(report_runs.hostile(), 120)
    assert "\x1b" not in text
    assert "[z](javascript" in text


def test_ascii_terminal() -> None:
    text = printed(report_runs.bert(), 80, encoding="ascii")
    assert "6.36x faster than PyTorch" in text
    assert text.isascii()


def test_nothing_measured() -> None:
    assert "failed ort@cpu: build: no memory" in printed(report_runs.bare(), 80)


def test_a_long_reason_that_several_share_is_told_once() -> None:
    run, reason = report_runs.bert(), "cannot win, " * 10
    run["variants"] += [
        report_runs.missing("mnn@cpu", "skipped", reason, "ask for it"),
        report_runs.missing("own@cpu", "skipped", reason, "ask otherwise"),
        report_runs.missing("ort@cpu+1x128", "skipped", reason, "ask for it"),
        report_runs.missing("trt@cuda", "skipped", "no GPU", "buy one"),
        report_runs.missing("trt-int8@cuda+1x128", "skipped", "no GPU", "buy one"),
    ]
    text = " ".join(printed(run, 200).split())
    for told in (
        f"skipped mnn@cpu: {reason} fix: ask for it",
        "skipped ort@cpu+1x128: as mnn@cpu ",
        f"skipped own@cpu: {reason} fix: ask otherwise",
        "skipped trt@cuda: no GPU fix: buy one",
        "skipped trt-int8@cuda+1x128: no GPU fix: buy one",
    ):
        assert " ".join(told.split()) in text, told


def test_newer_schema_is_refused() -> None:
    with pytest.raises(InputError, match="schema 2"):
        terminal_table(report_runs.bert() | {"schema": 2})
