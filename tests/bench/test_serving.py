"""A session over repositories behind real servers: what one does wrong is its own."""

import json
from pathlib import Path
from types import SimpleNamespace

import null_repository
import numpy as np
import pytest

from accel.bench.expected import Expected
from accel.bench.rounds import Reached
from accel.core.values import sha256_file
from accel.exporters.request import SourceRequest
from accel.run import measuring, serving
from accel.run.decide import Constraints
from accel.run.job import Job
from accel.run.serving import ServerRunner

BREAKS = """

class Breaking(TritonPythonModel):
    def execute(self, requests):
        if os.path.exists({flag!r}):
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError("it broke")) for _ in requests]
        return super().execute(requests)


TritonPythonModel = Breaking
"""


WRONG = """

class Wrong(TritonPythonModel):
    calls = 0

    def run(self, feeds):
        found = super().run(feeds)
        Wrong.calls += 1
        if {when}:
            for answer in found:
                answer["pooled"] = answer["pooled"] + 1
        return found


TritonPythonModel = Wrong
"""


def _seal(root: Path, path: str) -> None:
    """List a file as it is now: what breaks here was emitted so, and is not a change that serving refuses."""
    manifest = json.loads((root / "manifest.json").read_text())
    entry = next(f for f in manifest["files"] if f["path"] == path)
    entry |= {"sha256": sha256_file(root / path), "bytes": (root / path).stat().st_size}
    (root / "manifest.json").write_text(json.dumps(manifest))


@pytest.fixture
def repositories(tmp_path: Path) -> tuple[dict[str, Path], Path]:
    """Two repositories of the null model, of which ``breaks`` answers with errors from when a file is there."""
    flag = tmp_path / "broken"
    made = {}
    for name in ("good", "breaks"):
        root = null_repository.write(tmp_path / name)
        if name == "breaks":
            with (root / "nothing" / "1" / "model.py").open("a") as file:
                file.write(BREAKS.format(flag=str(flag)))
            _seal(root, "nothing/1/model.py")
        made[name] = root
    return made, flag


def test_a_repository_that_answers_with_errors_fails_alone(repositories, tmp_path, monkeypatch):
    for name, value in (("ROUNDS", 2), ("ROUND_S", 0.1), ("WARM_S", 0.1), ("SETTLE_S", 0.05), ("CONCURRENCY", (1, 4))):
        monkeypatch.setattr(serving, name, value)
    both, flag = repositories
    told = []

    def progress(name: str, doing: str) -> None:
        told.append((name, doing))
        if doing == "served, round 2":
            flag.touch()

    source = SourceRequest("factory", "factory", "/null.py:build")
    job = Job(source=source, targets="null", out=tmp_path / "run", via="embedded")
    (tmp_path / "out").mkdir()
    feeds = [null_repository.feed(null_repository.SHAPES["opt"])]
    how = {"backend": "python", "precision": "none", "has_python_variant": False, "job": job, "feeds": feeds}
    runners = [ServerRunner(name, root, **how) for name, root in both.items()]
    session = measuring.serve(runners, dict.fromkeys(both, "key"), tmp_path / "out", progress, least=2)
    assert (session.via, session.release) == ("embedded", "24.10")
    good, broken = session.entries
    assert (good.id, good.failed, [p.concurrency for p in good.points]) == ("good", None, [1, 4])
    assert all(p.failures == 0 and len(p.rounds_ms) == 2 for p in good.points)
    assert (broken.id, broken.points) == ("breaks", ())
    assert "no request of a whole round was answered; the first error: " in broken.failed.cause
    assert "it broke" in broken.failed.cause
    assert sorted(told[:2]) == [("breaks", "starting a server"), ("good", "starting a server")]
    assert len([doing for _, doing in told if not doing.startswith("the machine is busy")]) == 6


def test_what_breaks_a_limit_keeps_no_server_in_the_race(tmp_path, monkeypatch):
    """Two rounds tell two equal servers apart for nobody: without the limit all rounds are taken."""
    for name, value in (("ROUNDS", 4), ("ROUND_S", 0.1), ("WARM_S", 0.1), ("SETTLE_S", 0.05), ("CONCURRENCY", (1, 4))):
        monkeypatch.setattr(serving, name, value)
    source = SourceRequest("factory", "factory", "/null.py:build")
    job = Job(source=source, targets="null", out=tmp_path / "run", via="embedded")
    feeds = [null_repository.feed(null_repository.SHAPES["opt"])]
    how = {"backend": "python", "precision": "none", "has_python_variant": False, "job": job, "feeds": feeds}
    roots = {name: null_repository.write(tmp_path / name) for name in ("one", "other")}
    out = tmp_path / "out"
    out.mkdir()
    runners = [ServerRunner(name, root, **how) for name, root in roots.items()]
    keys, limits = dict.fromkeys(roots, "key"), Constraints(max_memory_mib=1.0)
    session = measuring.serve(runners, keys, out, lambda name, doing: None, least=2, limits=limits)
    assert {len(p.rounds_ms) for entry in session.entries for p in entry.points} == {2}


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        (Constraints(), True),
        (Constraints(max_memory_mib=100, max_p99_ms=10, min_throughput_per_s=50), True),
        (Constraints(max_memory_mib=99), False),
        (Constraints(max_p99_ms=9), False),
        (Constraints(min_throughput_per_s=51), False),
    ],
)
def test_a_point_may_fit_while_nothing_it_showed_breaks_a_limit(limits, fits):
    runner = SimpleNamespace(reached=lambda point: Reached(memory_mib=100, median_ms=10, most_per_s=50))
    assert measuring._may_fit(runner, "b1", limits) == fits


def test_wrong_answers_under_load_and_after_it_are_a_failure(tmp_path, monkeypatch):
    """One response in 40, and all from a moment on: each answered rightly when the server was started."""
    for name, value in (("ROUNDS", 3), ("ROUND_S", 0.8), ("WARM_S", 0.1), ("SETTLE_S", 0.05), ("CONCURRENCY", (4,))):
        monkeypatch.setattr(serving, name, value)
    flag = tmp_path / "turned"
    source = SourceRequest("factory", "factory", "/null.py:build")
    job = Job(source=source, targets="null", out=tmp_path / "run", via="embedded")
    feeds = [null_repository.feed(null_repository.SHAPES["opt"], seed) for seed in range(4)]
    right = Expected([{"pooled": np.zeros((1, 4), np.float32)}] * 4, null_repository.OUTPUTS, {"sqnr_db": 59.0})
    runners = []
    for name, when, expected in (
        ("sound", "False", right),
        ("seldom", "Wrong.calls > 50 and Wrong.calls % 40 == 0", right),
        ("later", f"os.path.exists({str(flag)!r})", None),
    ):
        root = null_repository.write(tmp_path / name)
        with (root / "nothing" / "1" / "model.py").open("a") as file:
            file.write(WRONG.format(when=when))
        _seal(root, "nothing/1/model.py")
        how = {"backend": "python", "precision": "none", "has_python_variant": False, "job": job, "feeds": feeds}
        runners.append(ServerRunner(name, root, **how, expected=expected))
    (tmp_path / "out").mkdir()

    def progress(name: str, doing: str) -> None:
        if doing == "served, round 3":  # the last, after which only what leaves is looked at
            flag.touch()

    session = measuring.serve(runners, {r.name: "key" for r in runners}, tmp_path / "out", progress, least=3)
    sound, seldom, later = session.entries
    assert sound.failed is None
    assert "served under load, it answers otherwise than in process: sqnr_db" in seldom.failed.cause
    assert "served, after the load, it answers otherwise than in process: outputs/" in later.failed.cause
