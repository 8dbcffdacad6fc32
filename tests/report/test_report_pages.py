"""The page and the Markdown: whole, well-formed, self-contained, and safe against the text they carry."""

import base64
import gzip
import html.parser
import io
import json
import re
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
import report_runs
from report_runs import run_view
from rich.console import Console

from accel.core.errors import AccelError, InputError, OutputError
from accel.report import terminal_table, write_reports
from accel.report.figures import accuracy_figure, served_figure, throughput_figure
from accel.report.layout import run_markdown, run_page
from accel.report.markdown import code, escape

VOID = {"meta", "br", "link", "img", "hr", "input"}
RUNS = {name: getattr(report_runs, name) for name in ("bert", "minilm", "served", "hostile", "bare")}
every_run = pytest.mark.parametrize("run", [pytest.param(make(), id=name) for name, make in RUNS.items()])


class Page(html.parser.HTMLParser):
    """Parse a document strictly: every element is closed in order; keep the attributes and the texts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    @property
    def visible(self) -> str:
        return " ".join(data for tag, data in self.texts if tag not in ("script", "style"))


@every_run
def test_page_is_well_formed_and_loads_nothing(run: dict[str, Any]) -> None:
    text = run_page(run_view(run))
    page = Page(text)
    assert not page.open
    for tag, attributes in page.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert not {"src", "srcset", "action", "data", "background"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in text.split("</style>")[0]
    policies = [a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policies
    assert "default-src 'none'" in (policies[0] or "")


@every_run
def test_links_of_the_table_reach_their_details(run: dict[str, Any]) -> None:
    page = Page(run_page(run_view(run)))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"] for t, a in page.tags if t == "a"} == {f"#{i}" for i in ids if re.fullmatch(r"v\d+", i or "")}


def test_hostile_text_is_shown_and_not_run() -> None:
    text = run_page(run_view(report_runs.hostile()))
    assert "<script>alert" not in text
    page = Page(text)
    assert "<script>alert(1)</script> | **x**" in page.visible
    assert "{{ 7*7 }}" in page.visible
    assert "\x1b" not in text
    kinds = [a.get("type") or a.get("id") for t, a in page.tags if t == "script"]
    assert kinds == ["application/json", "application/json", "application/octet-stream", None]


def test_the_log_of_a_process_that_died_stands_among_the_details_alone() -> None:
    run = report_runs.bert()
    failed = next(v for v in run["variants"] if v["id"] == "ort@cpu")
    failed |= {
        "status": "failed",
        "reason": "the process was ended by SIGSEGV; the end of its log:\n    <one>\n    two",
    }
    page = run_page(run_view(run))
    assert page.count("&lt;one&gt;") == 1
    assert "<pre>&lt;one&gt;\ntwo</pre>" in page
    assert page.count("the process was ended by SIGSEGV") >= 2


def test_markdown_of_hostile_text_keeps_its_tables() -> None:
    text, _, command = run_markdown(run_view(report_runs.hostile())).rpartition("## Do it again\n")
    assert command.count("\n```") == 2
    outside = re.sub(r"(?<![\\`])(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
    assert "\\<script\\>" in text
    assert not re.search(r"(?<!\\)<(?!/?details>|/?summary>)", outside)
    assert "@" not in outside
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(widths) == 1, block


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b", "a\\|b"),
        ("<b>*x*", "\\<b\\>\\*x\\*"),
        ("slower than ort@cpu", "slower than `ort@cpu`"),
        ("run `accel doctor` now", "run `accel doctor` now"),
        ("accel env install x", "`accel env install x`"),
        ("see https://x.y", "see https\\://x.y"),
        ("one ` alone", "one \\` alone"),
    ],
)
def test_escape(text: str, expected: str) -> None:
    assert escape(text) == expected


def test_code_span_holds_backticks_and_borders() -> None:
    assert code("a`b|c") == "``a`b\\|c``"
    assert code("`a") == "`` `a ``"


@every_run
def test_nothing_reads_nan(run: dict[str, Any]) -> None:
    view = run_view(run)
    text = Page(run_page(view)).visible + run_markdown(view)
    assert not re.search(r"\b(nan|NaN|inf|Infinity|undefined|None)\b", text)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "fast", [], True])
def test_figures_that_are_none_read_as_unknown(bad: object) -> None:
    run = report_runs.bert()
    point = run["variants"][0]["measurements"][0]
    run["variants"][0]["measurements"] = [{**point, "p50_ms": bad, "rounds_ms": [bad], "throughput_per_s": bad}]
    run["variants"][0]["parity"]["outputs"][0] |= {"sqnr_db": bad, "max_abs": bad, "exact": False}
    view = run_view(run)
    row = next(v for v in view.variants if v.id == "torch@cpu")
    assert row.latency is not None
    assert (row.latency.p50_ms, row.latency.rounds_ms, row.outputs[0].sqnr_db) == (None, (), None)
    assert not re.search(r"\b(nan|inf)\b", run_page(view).split("<script")[0] + run_markdown(view))


def test_page_says_what_counts() -> None:
    text = Page(run_page(run_view(report_runs.bert()))).visible
    for expected in (
        "Accuracy UNPROVED",
        "random(seed=0) instead",
        "6.36× faster",
        "interval 6.31–6.42×",
        "p99 at most 50 ms",
        "34.9 ms",
        "ort-int8-dynamic@cpu",
        "gate failed",
        "SQNR 9.6 dB is below the gate",
        "no NVIDIA GPU on this machine",
        "signal 11 after 3 s",
        "accel build kits/trt-int8@cuda",
        "accel convert bert --targets cpu,trt-fp16 --max-p99-ms 50",
        "8 rounds of 2 s were interleaved",
        "c0ffee",
        "openvino 2026.4.1 built it, 26.06 carries 2026.1.0",
        "from cache",
    ):
        assert expected in text, expected


def test_figures_are_valid_and_mark_what_failed() -> None:
    view = run_view(report_runs.bert())
    accuracy, throughput = accuracy_figure(view), throughput_figure(view)
    assert accuracy is not None
    assert throughput is not None
    go.Figure(accuracy)
    go.Figure(throughput)
    marks = {t["name"]: t["marker"]["symbol"] for t in accuracy["data"]}
    assert marks["ort-int8-dynamic@cpu"] == "x-thin"
    assert marks["torch@cpu"] == "circle"
    assert "null@cpu" not in marks
    heights = {t["name"]: t["y"][0] for t in accuracy["data"]}
    assert heights["torch@cpu"] == max(heights.values())
    open_markers = {t["name"] for t in throughput["data"] if any(s.endswith("-open") for s in t["marker"]["symbol"])}
    assert open_markers == {"openvino-bf16@cpu", "torch-bf16@cpu"}


def test_page_carries_the_plot_library() -> None:
    text = run_page(run_view(report_runs.bert()))
    packed = re.search(r'id="plotly">([^<]+)<', text)
    assert packed
    assert b"plotly.js v" in gzip.decompress(base64.b64decode(packed[1]))[:500]
    assert len(text) < 3_000_000


def test_a_run_without_measurements_carries_no_plot_library() -> None:
    assert len(run_page(run_view(report_runs.bare()))) < 20_000


def test_the_strip_shows_each_layers_precision(golden: Any) -> None:
    run = report_runs.bert()
    layers = [["stem", "fp32", 0.05], ["block <1>", "int8", 0.75], ["gate", "bf16", 0.125], ["head", "none", 0.075]]
    mixed = next(v for v in run["variants"] if v["id"] == "openvino-int8@cpu")
    mixed["artifact"]["facts"]["layers"] = layers
    page = run_page(run_view(run))
    assert not Page(page).open
    (strip,) = re.findall(r"<h2>Precision by layer</h2>.*?</svg></div>", page, re.DOTALL)
    golden("report/strip.html", strip + "\n")
    shares = "int8 75 %, bf16 12.5 %, not known 7.5 %, fp32 5 %"
    assert f'<span class="mark">{shares}</span>' in page, "not the largest of them alone"
    assert f"| {shares} |" in run_markdown(run_view(run))
    assert "block" not in run_markdown(run_view(run)), "too long for a table"


@pytest.mark.parametrize("layers", ["all", 3, [["stem", "fp32"]], [["stem", "int3", 0.5]], [["stem", "fp32", "half"]]])
def test_layers_that_are_none_are_left_out(layers: Any) -> None:
    run = report_runs.bert()
    run["variants"][0]["artifact"]["facts"]["layers"] = layers
    assert "Precision by layer" not in run_page(run_view(run))


def test_golden_markdown(golden: Any) -> None:
    golden("report/bert.md", run_markdown(run_view(report_runs.bert())))
    golden("report/minilm.md", run_markdown(run_view(report_runs.minilm())))


def test_write_reports(tmp_path: Path) -> None:
    (tmp_path / "report.md").write_text("before")
    paths = write_reports(report_runs.bert(), tmp_path)
    assert paths == (tmp_path / "report.html", tmp_path / "report.md")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.html", "report.md"]
    assert paths[0].read_text().startswith("<!doctype html>")
    assert paths[1].read_text().startswith("# bert\n")
    first = paths[0].read_bytes()
    write_reports(json.loads(json.dumps(report_runs.bert())), tmp_path)
    assert paths[0].read_bytes() == first


def test_unwritable_folder(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"cannot write .*report\.html"):
        write_reports(report_runs.bert(), tmp_path / "missing")


@pytest.mark.parametrize("schema", [2, 99, 0, -1, None, "1", True])
def test_other_schemas_are_refused(schema: object, tmp_path: Path) -> None:
    run = report_runs.bert() | {"schema": schema, "accel": "9.9"}
    with pytest.raises(InputError, match="schema") as caught:
        write_reports(run, tmp_path)
    assert isinstance(caught.value, AccelError)
    assert caught.value.fix
    assert not list(tmp_path.iterdir())


def test_unknown_fields_are_ignored() -> None:
    run = report_runs.bert()
    plain = run_markdown(run_view(run))
    run |= {"new": {"a": 1}}
    run["variants"][0] |= {"new": [1]}
    run["variants"][0]["measurements"][0] |= {"new": None}
    run["decisions"][0] |= {"new": 1}
    assert run_markdown(run_view(run)) == plain


def test_served_points_stand_apart_from_those_in_process() -> None:
    view = run_view(report_runs.served())
    text = run_page(view)
    assert "As served" in text
    assert "repositories/openvino-int8@cpu.python" in text
    assert [(p.load, p.server and p.server.merged) for _, p in view.served][3:] == [
        ("1 at a time", 1),
        ("4 at a time", 4),
        ("16 at a time", 4),
    ]
    figure = served_figure(view)
    assert figure is not None
    assert [len(t["x"]) for t in figure["data"]] == [3, 3]
    in_process = run_view(report_runs.minilm())
    assert [v.latency for v in view.variants] == [v.latency for v in in_process.variants]
    assert [v.by_batch for v in view.variants] == [v.by_batch for v in in_process.variants]
    assert served_figure(in_process) is None
    assert "As served" not in run_page(in_process)
    assert [d.via for group in view.verdicts for d in group] == ["inprocess", "inprocess", "triton"]
    assert "repositories/openvino-int8@cpu.python" in run_markdown(view)


def test_what_is_chosen_otherwise_as_served_says_where_the_time_goes() -> None:
    document = report_runs.served()
    last = next(d for d in document["decisions"] if d["via"] == "triton")
    alone = next(d for d in document["decisions"] if (d["via"], d["objective"]) == ("inprocess", last["objective"]))
    assert alone["chosen"] != last["chosen"]
    view = run_view(document)
    (text,) = view.disagreements
    assert text.startswith(f"For {last['objective']}, {last['chosen']} was chosen as served and {alone['chosen']} in ")
    assert f"{alone['chosen']} was not measured as served" in text
    assert re.search(
        r"as served through python, .* at a time \(model .* ms, queue .* ms, copies .*, network and cl", text
    )
    assert "was chosen as served" in run_page(view)
    assert "was chosen as served" in run_markdown(view)
    alone["chosen"] = last["chosen"]
    assert run_view(document).disagreements == ()


def test_a_runtime_brings_its_name_and_colours_and_one_without_gets_a_free_one() -> None:
    run = report_runs.bert()
    own = next(v for v in run["variants"] if v["target"] == "ort")
    own["runtime"] = {"name": "ONNX Runtime", "colours": ["#123456", "#654321"]}
    broken = next(v for v in run["variants"] if v["target"] == "torch")
    broken["runtime"] = {"name": "<i>", "colours": ["red; } * { display: none", "#000000"]}
    text = run_page(run_view(run))
    assert "--c-ort: #123456;" in text
    assert "--c-ort: #654321;" in text
    assert 'title="ONNX Runtime"' in text
    assert "&lt;i&gt;" in text
    assert "display: none;" not in text.split("</style>")[0].rpartition(":root")[2]
    assert re.search(r"--c-torch: #[0-9a-f]{6};", text)
    assert re.search(r"--c-openvino: #[0-9a-f]{6};", text)


@pytest.mark.parametrize(
    ("verdict", "interval", "said"),
    [
        ("decided", (0.196, 11.0), "1.47× the speed of PyTorch|not known to be faster"),
        ("undecided", (0.196, 11.0), "1.47× the speed of PyTorch|not decided"),
        ("undecided", (1.4, 1.5), "1.47× faster than PyTorch|not decided"),
        ("decided", (1.4, 1.5), "1.47× faster than PyTorch|"),
    ],
)
def test_a_headline_praises_nothing_that_is_open(verdict: str, interval: tuple[float, float], said: str) -> None:
    run = report_runs.bert()
    run["decisions"][0] |= {"speedup": 1.47, "speedup_ci": interval, "verdict": verdict}
    text, view = run_page(run_view(run)), run_view(run)
    factor, *_ = re.findall(r'<span class="(factor[^"]*)">(.*?)</span>\n', text, re.DOTALL)
    figure, doubt = said.split("|")
    assert (factor[0] == "factor open") == bool(doubt)
    seen = " ".join(re.sub("<[^>]*>", "", factor[1]).split())
    assert seen.startswith(figure)
    assert seen.endswith(doubt)
    written = run_markdown(view)
    assert (f"**{figure}**" in written) != bool(doubt)
    assert figure in written
    (line,) = [x for x in written.splitlines() if figure in x]
    assert doubt in line
    console = Console(force_terminal=True, color_system="standard", width=160, file=io.StringIO())
    console.print(terminal_table(run))
    (line,) = [x for x in console.file.getvalue().splitlines() if "1.47×" in x and "PyTorch" in x]  # type: ignore[attr-defined]
    assert ("32m" in line) != bool(doubt)
    assert doubt in line


def test_a_run_that_measures_nothing_compared_no_speed() -> None:
    run = report_runs.bert()
    assert "only speed was compared" in run_view(run).accuracy_line
    run["settings"]["bench"] = "none"
    assert run_view(run).accuracy_line.startswith("Accuracy UNPROVED: agreement on these weights")
