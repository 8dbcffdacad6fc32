"""The fast part of benchmarks/fuzz.py. Those of kills, clients and planted errors: tests/pipeline, triton, accuracy."""

import importlib
import json
import os
import random
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import click
import pytest

from accel.core.errors import AccelError

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script of benchmarks/ by its name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_every_broken_file_is_an_error_with_a_message(script, tmp_path):
    fuzz = script("fuzz")
    fuzz.written(tmp_path)
    kinds = list(fuzz.commands(tmp_path))
    assert {"onnx", "ir", "job", "samples npz", "overrides", "requests", "release file"} <= set(kinds)
    line = [sys.executable, str(BENCHMARKS / "fuzz.py"), "--child", str(tmp_path), "--seed", "7", "--inputs", "150"]
    line += [word for kind in kinds for word in ("--kind", kind)]
    done = subprocess.run(line, capture_output=True, text=True, errors="replace", check=False, env=dict(os.environ))
    told = [json.loads(text) for text in done.stdout.splitlines() if text.startswith("{")]
    assert [t["finding"] for t in told if "finding" in t] == []
    assert "counts" in told[-1], done.stderr[-2000:]
    assert sum(v for k, v in told[-1]["counts"].items() if ": " in k) == 150
    assert told[-1]["max_rss"] < fuzz.MOST_BYTES


def test_every_test_that_the_page_of_attacks_names_is_there():
    page = (BENCHMARKS.parent / "docs/attacks.md").read_text()
    file, named = "", 0
    for place, name in re.findall(r"`(?:(tests/\S+)::)?(test_\w+)`", page):
        file, named = place or file, named + 1
        assert f"def {name}(" in (BENCHMARKS.parent / file).read_text(), f"{file}::{name}"
    assert named > 60


def header(kind, size):
    """Return a header of a tar archive that says that a name or more headers of this many bytes follow."""
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


DEEP = [b"[" * 100_000, b'{"a":' * 100_000]
BREAKERS = {
    "tune.json": [*DEEP, b"[]", b'{"hardware": {"id": 1}, "goal": {}, "tried": [null]}'],
    "traffic": [*DEEP, b'{"length": true}', b"\xff", b"", b"9" * 5000],
    "labels": [b'{"ids": [[1]]}', b'{"ids": [[1]], "label": null}', *DEEP],
    "initial state": [b"", b"\x93NUMPY", b"PK\x03\x04"],
    "bundle": [
        b"",
        header(b"L", 1 << 62),
        header(b"x", 1 << 62),
        (header(b"L", 5) + b"abcd".ljust(512, b"\0")) * 3000,
        (header(b"x", 13) + b"13 path=abcd\n".ljust(512, b"\0")) * 3000,
        header(b"2", 0) + bytes(1024),
    ],
    "ir": [b"<net", b"\xff\xfe<net/>", b"&a [*a]", b'<net name="x" version="11"><layers>' + b"<layer/>" * 99],
    "job": [
        b"state: {a: [1]}",
        b"a: &a [*a]",
        b"rounds: " + b"9" * 5000,
        b"[" * 5000,
        b"\xff",
        b"source: ~nosuch/x\ntargets: [ort]",
    ],
    "samples jsonl": [b"\xa0", b'{"ids": [[1e400]]}', b'{"ids": [[' + b"9" * 5000 + b"]]}", b"[" * 100_000],
    "samples npz": [b"PK\x03\x04", b"\x93NUMPY", b""],
    "requests": [*DEEP, b'{"data": [null]}', b'{"data": [{"ids": {"content": [1], "shape": {}}}]}', b'{"data": [[]]}'],
    "prices": [b"a: .nan", b"a: " + b"9" * 5000, b"null", b"a: {usd_per_hour: -1}"],
    "arrivals": [b"nan\n1", b"1e400\n2", b"", b"\xff", b'{"at": 1}\n2', b'{"at": ' + b"9" * 5000],
    "overrides": [
        b'output { label_filename: "a\\000" }',
        b"dynamic_batching {" * 200,
        b"\xff",
        b"max_batch_size: 99999999999",
        b"instance_group { gpus: -1 ",
    ],
    "onnx": [b"", b"\x08" * 9, b"\xff" * 100],
    "release file": [b"models: {a: &a [*a]}", b"release: 1", b"\xff", b"pools: " + b"[" * 4000],
}
"""Content that broke a reader once, or is like what did: by the kind of file."""


@pytest.mark.parametrize("kind", list(BREAKERS))
def test_what_broke_a_reader_once_is_refused(script, tmp_path, monkeypatch, kind):
    fuzz = script("fuzz")
    fuzz.written(tmp_path)
    (tmp_path / "1.tar").touch()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    fuzz.contract.cache_clear()
    fuzz.contract()
    path, lines = fuzz.commands(tmp_path)[kind]
    for content in BREAKERS[kind]:
        path.write_bytes(content)
        for line in lines:
            with pytest.raises((AccelError, click.ClickException, SystemExit)):
                fuzz.call(list(line), random.Random(0))
