"""The pages of a large release: small, self-contained, and searched and sorted by a real browser where there is one."""

import re
from dataclasses import replace

import pytest
from browser import CHROMIUM, browser

from accel.core.values import SCHEMA, Decision
from accel.release import pages
from accel.release.document import Compared, DiffRow, Line, ModelLine, PoolLine, Release, ReleaseEntry

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no browser here: apt-get install chromium")
PAINTED_MS, LARGEST = 2000, 5 << 20
LONG = "sentence-embedding.multilingual_base-v2.of-a-customer-with-a-name"


def variant(id, p50_ms):
    return Line(
        id=id, status="ok", reason=None, fix=None, precision="fp32", bytes=1 << 20, gate={"sqnr_db": 80.0},
        found={"sqnr_db": 120.0}, p50_ms=p50_ms, p50_ci_ms=(p50_ms, p50_ms), throughput_per_s=1e3 / p50_ms,
        peak_rss_mib=100.0, files=(),
    )  # fmt: skip


def entry(model, number):
    id = "openvino-int8@cpu"
    decision = Decision("cpu", "latency", {}, id, "inprocess", (), (), "fastest", speedup=2.0, speedup_ci=(1.9, 2.1))
    lines = tuple(variant(name, float(number + 1)) for name in (id, "ort@cpu", "torch@cpu", "openvino@cpu"))
    return ReleaseEntry(
        model=model, pool="cpu", held="ready", chosen=id, decisions=(decision,), variants=lines, hardware="xeon"
    )


@pytest.fixture(scope="module")
def release():
    names = [f"model-{n}" for n in range(199)] + ["<b>&\"|`'"]
    waiting = [
        ReleaseEntry(model=n, pool="h100", held="waiting", reason=f"no H100 for {n}", fix="build it there")
        for n in names
    ]
    pools = [PoolLine(name=n, device=d, targets=("ort",), needs={}) for n, d in (("cpu", "cpu"), ("h100", "cuda"))]
    place = {"model": "model-7", "pool": "cpu"}
    rows = [
        DiffRow(**place, what=w, before="1", after="2", verdict=v, blocks=v != "same", reason="why")
        for w, v in (("latency", "worse"), ("size", "same"))
    ]
    return Release(
        version="2026.11.1", accel="0", created="2026-11-22T00:00:00Z", asked_sha256="", pools=tuple(pools),
        models=tuple(ModelLine(name=n) for n in names), missing=("one is not there",), toolchains={}, files=(),
        entries=tuple(entry(name, number) for number, name in enumerate(names)) + tuple(waiting), schema=SCHEMA,
        compared=Compared(before="2026.10.1", hardware="xeon", created="2026-11-22T00:00:00Z", rows=tuple(rows)),
    )  # fmt: skip


def test_a_page_of_200_models_is_small_and_loads_nothing(release):
    text = pages.page(release)
    assert len(text.encode()) < 5 << 20
    assert not re.findall(r"(?:src|href)=|url\(|@import", text)
    assert "<b>&" not in text
    assert "&lt;b&gt;&amp;&#34;|`&#39;" in text
    for said in ("Since 2026.10.1", "one is not there", "2.00×", "worse, blocks", "no H100 for model-3"):
        assert said in text


def test_a_licence_that_was_accepted_is_seen_on_both_pages(release):
    models = (*release.models[1:], ModelLine(name="ours", licence="<CC-BY-NC-4.0>", accepted="contract 17"))
    said = replace(release, models=models)
    assert "ours: licence &lt;CC-BY-NC-4.0&gt;</strong>, accepted: contract 17" in pages.page(said)
    assert "**ours: licence" in pages.markdown(said)
    assert "accepted: contract 17" in pages.markdown(said)
    assert ": licence" not in pages.page(release) + pages.markdown(release)


def test_markdown_keeps_its_tables(release):
    text = pages.markdown(release)
    rows = [line for line in text.splitlines() if line.startswith("| model-")]
    assert len(rows) == 1 + 2 * 199
    assert {line.replace("\\|", "").count("|") for line in rows} == {7, 9}
    assert "| model-7 | cpu | latency | 1 | 2 | **worse**: why |" in text


def test_each_model_is_compared_across_the_pools(release):
    """Each pool's figure, the least in bold; a pool that has none says why, one that was not asked is empty."""
    twice, fast = entry("model-1", 1), replace(entry("model-1", 0), pool="h100")
    alone = entry("model-2", 2)
    some = replace(release, entries=(twice, fast, alone, replace(release.entries[200], model="model-3")))
    text = pages.page(some)
    part = text[text.index("Every model on every pool") : text.index('<section class="pool">')]
    rows = {m[1]: m[2] for m in re.finditer(r'<tr><td data-value="([^"]*)">(.*?)</tr>', part, re.DOTALL)}
    cells = {name: re.findall(r'data-label="(\w+)" data-value="([^"]*)">(.*?)</td>', row) for name, row in rows.items()}
    found = "openvino-int8@cpu, 2.00×</small>"
    assert cells == {
        "model-1": [("cpu", "2.0", f"2.00<small>{found}"), ("h100", "1.0", f"<strong>1.00</strong><small>{found}")],
        "model-2": [
            ("cpu", "3.0", f"3.00<small>{found}"),
            ("h100", "", '<span class="none">—</span>'),
        ],
        "model-3": [
            ("cpu", "", '<span class="none">—</span>'),
            ("h100", "", '<span class="none">waiting for hardware</span>'),
        ],
    }
    assert "Every model on" not in pages.page(replace(some, pools=some.pools[:1]))


@pytest.fixture(scope="module")
def crowded(release):
    """The release with all that makes a page wide or long: names, reasons and paths without a space, a large diff."""
    held = "INT32 batch×sequence; ".join(f"input_number_{n} " for n in range(6))
    path = f"/srv/releases/{'folder/' * 20}{LONG}.json"
    rows = [
        DiffRow(model=f"model-{n}", pool="cpu", what=w, before=held, after=f"{held}×2", verdict=v, blocks=v != "better",
                reason=path)
        for n in range(200) for w, v in (("contract", "changed"), ("latency", "better"))
    ]  # fmt: skip
    entries = list(release.entries)
    entries[0] = replace(entries[0], model=LONG, hardware=LONG, variants=(variant(entries[0].chosen, 1234567.0),) * 8)
    entries[200] = replace(entries[200], model=LONG, reason=path, fix=f"accel build {path}")
    entries[201] = replace(entries[201], held="failed", reason=path, fix=None)
    missing = tuple(f"model-{n} on h100: trt-fp16 waits: {path}" for n in range(200))
    return replace(
        release, entries=tuple(entries), missing=missing,
        compared=replace(release.compared, before=LONG, rows=tuple(rows)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("browser") / "profile") as running:
        yield running


@pytest.fixture(params=[1300, 420], ids="{} px".format)
def opened(request, chromium, crowded, tmp_path):
    """A tab with the crowded page in a window of a desk and of a telephone; and the width."""
    page = tmp_path / "index.html"
    page.write_text(pages.page(crowded))
    chromium.open(page, request.param)
    return chromium, request.param


SEEN = "[...document.querySelectorAll('.pool')[0].querySelectorAll('tbody tr:not([hidden])')]"
NAMES = f"{SEEN}.map((row) => row.cells[0].dataset.value)"
PAINT = """new Promise((found) => new PerformanceObserver((list) => {
    for (const e of list.getEntries()) if (e.name === "first-contentful-paint") found(e.startTime);
}).observe({ type: "paint", buffered: true }))"""
"""When something was painted first, in ms since the page was asked for, as the browser says it."""


def choose(name, value, event):
    return f"{name}.value = {value!r}; {name}.dispatchEvent(new Event({event!r}))"


@needs_browser
def test_it_is_painted_within_two_seconds(crowded, chromium, tmp_path):
    page = tmp_path / "index.html"
    page.write_text(pages.page(crowded))
    assert page.stat().st_size <= LARGEST
    for width in (1300, 420):
        painted = []
        for _ in range(3):  # another process may have the processor at that moment
            chromium.open(page, width)
            painted.append(chromium.run(PAINT))
            if painted[-1] <= PAINTED_MS:
                break
        assert min(painted) <= PAINTED_MS, f"first contentful paint at {width} px after {painted} ms"


@needs_browser
def test_nothing_is_wider_than_the_window(opened):
    tab, width = opened
    tab.run("document.querySelectorAll('details').forEach((d) => d.open = true)")
    # held to the width that was asked for: of a telephone innerWidth grows with what is too wide
    assert tab.run("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)") <= width
    # nor is a line cut off, or over another column
    wide = "[...document.querySelectorAll('td, p, li, h1, h2')].filter((e) => e.scrollWidth > e.clientWidth + 1)"
    assert tab.run(f"{wide}.map((e) => e.textContent.slice(0, 80))") == []


@needs_browser
def test_it_is_searched_and_filtered(opened):
    tab, _ = opened
    count = "document.getElementById('count').textContent"
    assert tab.run(count) == "400 of 400"
    tab.run(choose("search", "model-17 xeon", "input"))
    assert tab.run(count) == "11 of 400"  # model-17, and 170 to 179
    assert tab.run(f"{SEEN}.length") == 11
    tab.run(choose("search", "model-17 contract", "input"))  # of what changed
    assert tab.run(count) == "0 of 400"
    assert tab.run("document.querySelectorAll('section:not(.pool) tbody tr:not([hidden])').length") == 11
    assert tab.run("document.querySelectorAll('.pool:not([hidden])').length") == 0
    tab.run(choose("search", "", "input"))
    tab.run(choose("state", "waiting", "change"))
    assert tab.run(count) == "199 of 400"


@needs_browser
def test_it_is_sorted_at_any_width(opened):
    tab, width = opened
    heads = "document.querySelector('.pool').querySelectorAll('th button')"
    shown = "(e) => { const b = e.getBoundingClientRect(); return b.width > 20 && b.height > 10 && b.left >= 0; }"
    if width > 1040:
        assert tab.run(f"[...{heads}].every({shown})")
        press = f"{heads}[4].click()"
        down, up = f"{press}; {press}", press
    else:
        assert tab.run(f"({shown})(order)")
        down, up = choose("order", "4 down", "change"), choose("order", "4 up", "change")
    tab.run(down)
    assert tab.run(NAMES)[0] == LONG  # the slowest
    tab.run(up)
    assert tab.run(NAMES)[:11] == [f"model-{n}" for n in range(1, 12)]
    tab.run(choose("order", "", "change"))
    assert tab.run(NAMES)[:2] == [LONG, "model-1"]  # as it was built
    across = "document.querySelector('.across')"
    tab.run(f"const heading = {across}.querySelectorAll('th button')[1]; heading.click(); heading.click()")
    assert tab.run(f"{across}.tBodies[0].rows[0].cells[0].dataset.value") == LONG
