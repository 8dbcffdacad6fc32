"""Run ``accel convert`` on one source as a person would, in a process of its own, and write down what became of it."""

import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.compatibility import forked
from benchmarks.compatibility.packages import FOLDER
from benchmarks.compatibility.source import NotHere, Source

SETTINGS = ("--bench", "none", "--threads", "1")
"""Build and prove only, each source on one core."""
STAGES = {
    "load source": "loaded",
    "reference": "loaded",
    "export": "loaded",
    "narrow integers": "exported",
    "build and prove": "exported",
    "measure": "proved",
    "write": "proved",
}
"""Stage that ``accel convert`` names on stderr → what is done by then, where the run ends in it."""
ORDER = ("nothing", "made", "loaded", "exported", "built", "proved", "packaged", "chosen")
"""How far a source came, in order."""
RAW = re.compile(r"^(?:[a-z_ ]+: )?(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Fault): ")
"""How an error begins that nobody explained, after the stage in front of it."""
ROOT = Path(__file__).parents[2]
NOT_HERE = 3
"""Exit code of ``make`` for a source whose package is not on this machine."""

Row = dict[str, Any]


def run(
    source: Source, targets: str, work: Path, *, limit_s: float, warm: bool = False, extra: Sequence[str] = ()
) -> Row:
    """Make the source, convert it, and return its row; its folder below ``work`` is emptied first.

    Args:
        source: what to convert.
        targets: as for ``accel convert``.
        work: folder of the sources and run directories.
        limit_s: for making, and for converting, each.
        warm: whether this process has called ``warm.prepare``, and is to be forked.
        extra: further arguments of ``accel convert``.
    """
    folder = (work / source.id).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    start = time.monotonic()
    row: Row = {
        "id": source.id,
        "kind": source.kind,
        "architecture": source.architecture,
        "origin": source.origin,
        "operator": source.operator,
        "wants": source.wants,
        "targets": targets,
        "warm": warm,
        "commit": commit(),
        "stage": "nothing",
    }
    if warm:
        made = forked.call(lambda: sys.exit(make(source, folder)), ROOT, limit_s, _environment())
    else:
        command = [sys.executable, "-m", "benchmarks.compatibility", "make", source.id, str(folder)]
        made = _limited(command, None, limit_s)
    if made[0] != 0:
        empty = {"here": made[0] != NOT_HERE, "variants": [], "chosen": None, "command": None}
        return _without_paths({**row, **empty, **_ending(made, start)}, folder)
    reference = made[1].strip().splitlines()[-1]
    arguments = [a.replace("{folder}", str(folder)) for a in source.arguments]
    words = ["convert", reference, "--targets", targets, *arguments, *SETTINGS, *extra]
    words_here = [*words, "-o", str(folder / "run"), "--json"]
    if warm:
        ended = forked.call(lambda: forked.accel(words_here), folder, limit_s, _environment())
    else:
        ended = _limited([sys.executable, "-m", "accel", *words_here], folder, limit_s)
    document = _document(ended[1])
    variants = [
        {k: v[k] for k in ("id", "target", "status", "reason", "fix")} for v in (document or {}).get("variants", [])
    ]
    decisions = (document or {}).get("decisions", [])
    found = {
        "here": True,
        "command": shlex.join(["accel", *words]),
        "stage": _stage(ended[2], document),
        "variants": variants,
        "chosen": next((d["chosen"] for d in decisions if d["chosen"]), None),
        "accuracy": document["model"]["accuracy"] if document else None,
    }
    return _without_paths({**row, **found, **_ending(ended, start)}, folder)


@functools.cache
def commit() -> str | None:
    """Return the commit that runs here, in short, with ``+`` where files differ from it; none without git."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() or None


def make(source: Source, folder: Path) -> int:
    """Write one source into a folder, and print what ``accel convert`` takes for it; returns the exit code."""
    try:
        print(source.make(folder))
    except NotHere as error:
        print(error, file=sys.stderr)
        return NOT_HERE
    return 0


def verdict(row: Row) -> str:
    """Return ``passes`` (two runtimes, or the only one asked), ``one runtime``, ``message``, ``fails`` or ``not here``.

    A source that wants a message fails where it ends without one that has a remedy, or with variants that cannot be
    right.
    """
    if not row["here"]:
        return "not here"
    passed = {_runtime(v["target"]) for v in row["variants"] if v["status"] == "ok"}
    if row["traceback"] or row["timed_out"]:
        return "fails"
    if row["wants"] == "message":
        return "message" if not passed and row["fix"] and row["exit_code"] in (1, 2, 3) else "fails"
    asked = {_runtime(name) for name in row["targets"].split(",")}
    least = 2 if len(asked) > 1 or row["targets"] in ("cpu", "all") else 1
    return "passes" if len(passed) >= least else "one runtime" if passed else "fails"


def unexplained(row: Row) -> list[str]:
    """Return the errors and reasons that are a library's or Python's own words, left to the reader to explain."""
    texts = [row["error"], *(v["reason"] for v in row["variants"] if v["status"] == "failed")]
    return [text for text in texts if text and RAW.search(text)]


def _without_paths(row: Row, folder: Path) -> Row:
    """Return the row with the places of this machine as ``.``, so that rows of several machines can be compared."""
    text = json.dumps(row)
    packages = os.environ.get(FOLDER)
    places = [folder, ROOT, *([Path(packages).resolve()] if packages else []), sys.prefix, Path.home()]
    for place in sorted(map(str, places), key=len, reverse=True):
        text = text.replace(json.dumps(place)[1:-1], ".")
    found: Row = json.loads(text)
    return found


def _runtime(target: str) -> str:
    """Return whose runtime a target is: ``ort-int8`` and ``ort`` are one."""
    return target.split("-")[0]


def _environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": paths, "HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}


def _limited(command: Sequence[str], cwd: Path | None, limit_s: float) -> tuple[int | None, str, str]:
    """Run a command, ended past the limit; returns its code (None: ended so), stdout and stderr."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        return None, out, err
    except BaseException:  # Ctrl-C reaches this process alone
        os.killpg(process.pid, signal.SIGKILL)
        raise


def _ending(ended: tuple[int | None, str, str], start: float) -> Row:
    code, out, err = ended
    lines = err.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("accel: error: ")), None)
    error = fix = None
    if first is not None:
        rest = lines[first:]
        cut = next((i for i, line in enumerate(rest) if line.startswith("  fix: ")), len(rest))
        error = "\n".join(rest[:cut]).removeprefix("accel: error: ")
        fix = "\n".join(rest[cut:]).removeprefix("  fix: ") or None
    elif code is None:
        error = "\n".join(["ran past its time limit, after:", *lines[-3:]])
        fix = "run it again with a larger --limit-s, and nothing beside it"
    elif code != 0:
        error = "\n".join(lines[-3:])
    return {
        "exit_code": code,
        "timed_out": code is None,
        "traceback": "Traceback (most recent call last)" in err + out,
        "error": error,
        "fix": fix,
        "stderr": "\n".join(lines[-60:]),
        "seconds": round(time.monotonic() - start, 1),
    }


def _document(out: str) -> Row | None:
    try:
        found = json.loads(out)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "variants" in found else None


def _stage(err: str, document: Row | None) -> str:
    """Return how far the best variant came; without a document, how far stderr says that the run came."""
    if document is None:
        named = re.findall(r"^accel: ([a-z ]+)$", err, re.MULTILINE)
        return next((STAGES[name] for name in reversed(named) if name in STAGES), "made")
    if any(d["chosen"] for d in document["decisions"]):
        return "chosen"
    reached = ["exported" if document["model"]["onnx"] else "loaded"]
    for v in document["variants"]:
        reached.append("built" if v["artifact"] else "exported" if document["model"]["onnx"] else "loaded")
        reached += ["proved"] if v["parity"] and v["parity"]["passed"] else []
        reached += ["packaged"] if v["status"] == "ok" and v["repository"] else []
    return max(reached, key=ORDER.index)
