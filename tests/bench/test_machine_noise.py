"""What else the machine does is seen in real processes' CPU time, and a disturbed turn is repeated."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from accel.bench import machine_noise, rounds
from accel.bench.machine_noise import NoiseSample, Turn, disturbed, summary, taker
from accel.bench.race import Contest, Race
from accel.core.values import Failed

SPIN = "while True: pass"


def quiet(**changed):
    return Turn(0.02, 0.0, 1.0, 0.0, 1.0, 2000.0)._replace(**changed)


@pytest.fixture
def neighbour():
    """A process that is not accel's: it has another parent, as a user's own would."""
    script = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SPIN!r}], stdout=2).pid)"
    pid = int(subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True).stdout)
    yield pid
    os.kill(pid, 9)


def spent(which, before, seconds=0.2, limit_s=60):
    """Wait until as much CPU time was spent since a look; returns the turn."""
    deadline = time.monotonic() + limit_s
    while True:
        time.sleep(0.1)
        now = NoiseSample.now()
        turn = now.since(before)
        if getattr(turn, which) * (now.at - before.at) >= seconds or time.monotonic() > deadline:
            return turn


def test_a_neighbours_cpu_time_is_others_and_a_childs_is_own(neighbour):
    before = NoiseSample.now()
    assert spent("others_cores", before).others_cores * (NoiseSample.now().at - before.at) >= 0.2
    own = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        before = NoiseSample.now()
        assert spent("own_cores", before).own_cores * (NoiseSample.now().at - before.at) >= 0.2
    finally:
        own.kill()
        own.wait()


@pytest.fixture
def quota():
    """A cgroup that may use a tenth of a core; with version 1 of cgroups, by a user who may make one."""
    folder = Path("/sys/fs/cgroup/cpu", f"accel-test-{os.getpid()}")
    try:
        folder.mkdir()
        (folder / "cpu.cfs_quota_us").write_text("10000")
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield folder
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:  # what ended leaves it a moment later
        with contextlib.suppress(OSError):
            return folder.rmdir()
        time.sleep(0.05)


def test_a_used_up_quota_is_a_disturbance(quota):
    script = f"""
import os, time
open({str(quota / "cgroup.procs")!r}, "w").write(str(os.getpid()))
from accel.bench.machine_noise import NoiseSample, disturbed
before = NoiseSample.now()
until = time.monotonic() + 1
while time.monotonic() < until:
    pass
turn = NoiseSample.now().since(before)
print(turn.throttled_cores, disturbed(turn._replace(others_cores=0.0, stolen_cores=0.0), 1))
"""
    said = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True).stdout
    throttled, found = said.split()
    assert float(throttled) > 0.5
    assert found == "True"


def test_a_server_in_a_container_is_no_neighbour(tmp_path, monkeypatch):
    """The engine starts it: it is no child, but its command line has the name that accel gave it."""
    monkeypatch.setattr(machine_noise, "_claimed", {})
    word = f"--id=accel-test-{os.getpid()}"
    inner = "import os, subprocess; print(os.getpid(), flush=True); subprocess.run(['cat'])"
    outer = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], start_new_session=True)"
    with subprocess.Popen(
        [sys.executable, "-c", outer, inner, word], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starts:
        pid = int(starts.stdout.readline())
        starts.wait()
        server = psutil.Process(pid)
        until = time.monotonic() + 30
        while not server.children() and time.monotonic() < until:
            time.sleep(0.05)
        (child,) = server.children()
        own = {process.pid for process in machine_noise._own()}
        assert own.isdisjoint({pid, child.pid}), "nothing says whose it is"
        machine_noise.claim(word)
        assert {pid, child.pid} <= {process.pid for process in machine_noise._own()}
        starts.stdin.close()
        server.wait(30)
    assert pid not in {process.pid for process in machine_noise._own()}


def test_the_busiest_process_is_named(neighbour):
    said = machine_noise.busiest()
    assert said is None or "of a core" in said
    assert str(os.getpid()) not in (said or "")


def test_what_is_left_over_may_be_used_by_others(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert not disturbed(quiet(others_cores=4.0), threads=4)
    assert disturbed(quiet(others_cores=4.3), threads=4)
    assert disturbed(quiet(others_cores=0.3), threads=8)
    assert disturbed(quiet(stolen_cores=0.1), threads=1)


def test_the_summary_counts_what_stayed_disturbed():
    cores = len(os.sched_getaffinity(0))
    found = summary([quiet(), quiet(others_cores=cores + 1.0), quiet()], cores, repeated=2)
    assert (found.disturbed_rounds, found.repeated, found.others_cores_most) == (1, 2, cores + 1.0)
    assert found.others_cores == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("worst", "expected"),
    [
        ({"others_cores": 0.4}, "other processes took up to 40% of a core"),
        ({"stolen_cores": 0.12}, "the hypervisor gave other machines up to 12% of a core"),
        ({"throttled_cores": 0.3}, "the CPU quota of this cgroup held accel back"),
    ],
)
def test_what_took_time_in_the_worst_round_is_named(worst, expected):
    """One round of three: the medians know nothing of it."""
    found = summary([quiet(), quiet(**worst), quiet()], 2, repeated=0)
    assert taker(found) == expected


class Counting:
    """A runner that counts what it times; what it finds at a point is that number."""

    name, threads, log = "a", 1, None

    def __init__(self):
        self.kept, self.timed, self.last = {}, 0, ""

    def open(self): ...

    def close(self): ...

    leave = end_turn = close

    def turn(self, point):
        self.timed, self.last = self.timed + 1, point
        self.kept.setdefault(point, []).append(float(self.timed))

    def discard(self):
        self.kept[self.last].pop()

    def times(self):
        return self.kept


def interleaved(monkeypatch, noises, points=("b1",)):
    """Run three rounds on a machine whose turns are as ``noises`` says, then undisturbed."""
    seen = iter(noises)

    class Scripted:
        @classmethod
        def now(cls):
            return cls()

        def since(self, before):
            return next(seen, quiet())

    monkeypatch.setattr(machine_noise, "NoiseSample", Scripted)
    monkeypatch.setattr(rounds, "CALM_S", 0.0)
    runner = Counting()
    race = Race([Contest(tuple(("a", point) for point in points), frozenset("a"), 3, least=3)])
    failed, noise = rounds.interleave([runner], race, opening="", turn="", progress=lambda *_: None)
    assert not isinstance(failed.get("a"), Failed)
    return runner, noise


def test_a_disturbed_turn_is_thrown_away_and_taken_again(monkeypatch):
    loud = quiet(others_cores=99.0)
    runner, noises = interleaved(monkeypatch, [quiet(), loud])
    assert runner.kept == {"b1": [1.0, 3.0, 4.0]}
    noise = noises["a", "b1"]
    assert (len(noise.turns), noise.repeated) == (3, 1)


def test_of_several_points_the_disturbed_one_alone_is_taken_again(monkeypatch):
    loud = quiet(others_cores=99.0)
    runner, noises = interleaved(monkeypatch, [quiet(), loud], points=("b1", "b2"))
    assert runner.kept == {"b1": [1.0, 4.0, 6.0], "b2": [3.0, 5.0, 7.0]}
    assert [noises["a", point].repeated for point in ("b1", "b2")] == [0, 1]


def test_on_a_busy_machine_turns_are_kept_and_counted(monkeypatch):
    loud = quiet(others_cores=99.0)
    runner, noises = interleaved(monkeypatch, [loud] * 50)
    noise = noises["a", "b1"]
    assert len(runner.kept["b1"]) == len(noise.turns) == 3
    assert noise.repeated <= 4
    assert all(turn is loud for turn in noise.turns)


def test_what_others_do_on_cpus_that_it_may_not_use_disturbs_nothing(monkeypatch):
    def cpus(*user):
        return [SimpleNamespace(user=float(u), nice=0.0, system=0.0, irq=0.0, softirq=0.0, steal=0.0) for u in user]

    monkeypatch.setattr(machine_noise.os, "sched_getaffinity", lambda _: {1})
    monkeypatch.setattr(machine_noise.os, "cpu_count", lambda: 3)
    monkeypatch.setattr(machine_noise, "_own", list)
    monkeypatch.setattr(machine_noise.psutil, "cpu_times", lambda percpu: cpus(100, 7, 100))
    assert NoiseSample.now().busy == 7
    monkeypatch.setattr(machine_noise.psutil, "cpu_times", lambda percpu: cpus(100, 7))  # one of them is offline
    assert NoiseSample.now().busy == 107


@pytest.mark.parametrize(("loud", "looks"), [(0, 1), (2, 3)])
def test_a_repeat_waits_until_nobody_disturbs(monkeypatch, loud, looks):
    seen = [quiet(others_cores=99.0)] * loud + [quiet()]

    class Scripted:
        @classmethod
        def now(cls):
            return cls()

        def since(self, before):
            return seen.pop(0)

    slept = []
    monkeypatch.setattr(machine_noise, "NoiseSample", Scripted)
    monkeypatch.setattr(machine_noise.time, "sleep", slept.append)
    machine_noise.wait_for_calm(1, 60.0)
    assert len(slept) == looks
    machine_noise.wait_for_calm(1, 0.0)
    assert len(slept) == looks
