"""The pages of a large release: small, self-contained, and searched and sorted by a real browser where there is one."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest

from accel.core.values import SCHEMA, Decision
from accel.release import pages
from accel.release.document import Compared, DiffRow, Line, ModelLine, PoolLine, Release, ReleaseEntry

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


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


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")
def test_a_browser_searches_filters_and_sorts(release, tmp_path):
    def shown(script):
        page = tmp_path / "page.html"
        page.write_text(pages.page(release).replace("</body>", f"<script>{script}</script></body>"))
        words = [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--dump-dom",
            f"--user-data-dir={tmp_path}/home",
        ]
        return subprocess.run([*words, page.as_uri()], capture_output=True, text=True, check=True, timeout=120).stdout

    typed = 'search.value = "model-17 xeon"; search.dispatchEvent(new Event("input"));'
    assert ">11 of 400<" in shown(typed)  # model-17, and 170 to 179
    chosen = 'state.value = "waiting"; state.dispatchEvent(new Event("change"));'
    press = 'const heads = document.querySelectorAll(".release th button"); heads[4].click(); heads[4].click();'
    text = shown(chosen + press)
    assert ">200 of 400<" in text
    first = re.search(r"<tbody>.*?data-value=\"([^\"]*)\"", text[text.index('class="variants release"') :], re.DOTALL)[
        1
    ]
    assert first == "&lt;b&gt;&amp;&quot;|`'"  # the slowest, last by name
