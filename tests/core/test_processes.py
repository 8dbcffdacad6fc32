"""A child that crashes, hangs or is killed is a failure of its own; real processes throughout."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from accel.core import processes, temporary
from accel.core.errors import OutputError, SampleError, StageError, WorkerDied
from accel.core.processes import PACKAGE, Worker

TASKS = """
import os, signal, sys, time
from accel.core.errors import SampleError
def die(how: int) -> None: os.kill(os.getpid(), how)
def leave(code: int) -> None: print('last words', flush=True); os._exit(code)
def hang() -> None: time.sleep(600)
def noisy() -> str: print('x' * 200000); os.write(1, b'raw'); return 'fine'
def fork(die: bool) -> None:
    child = os.fork()
    if child == 0: time.sleep(600)
    open(os.environ['PID_FILE'], 'w').write(str(child))
    if die: os._exit(4)
def ask() -> str: return input('sure? ')
def half() -> None:
    import gc, io
    out = next(o for o in gc.get_objects() if isinstance(o, io.BufferedWriter) and o.fileno() > 2)
    out.write(b'{"result": '); out.flush(); os._exit(5)
def refuse() -> None: raise SampleError('bad sample', fix='fix it')
def bug() -> None: raise RuntimeError('a library says no')
def oom() -> None: raise MemoryError
def garbage(text: str) -> None:
    import gc, io
    out = next(o for o in gc.get_objects() if isinstance(o, io.BufferedWriter) and o.fileno() > 2)
    out.write(text.encode() + b'\\n'); out.flush(); time.sleep(600)
def deaf() -> None:
    import ctypes
    open(os.environ['PID_FILE'], 'w').write(str(os.getpid()))
    ctypes.PyDLL(None).sleep(600)  # holds the interpreter's lock, as one long computation does
def detach() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            open(os.environ['PID_FILE'], 'w').write(str(os.getpid())); os.closerange(0, 100); time.sleep(600)
        os._exit(0)
    while not os.path.exists(os.environ['PID_FILE']): time.sleep(0.01)
def chatty(mib: int) -> str:
    print('the first words')
    for _ in range(mib): sys.stdout.write('x' * 1023 + '\\n' + ('y' * 1023 + '\\n') * 1023)
    print('the last words')
    return 'done'
def scribble() -> None:
    import itertools, tempfile, threading
    def write() -> None:
        for number in itertools.count(): open(os.path.join(tempfile.gettempdir(), str(number)), 'w').close()
    for _ in range(3): threading.Thread(target=write, daemon=True).start()
    time.sleep(0.2)
def fill() -> None:
    with open('/dev/full', 'wb', buffering=0) as file: file.write(b'x')
def library_fill() -> None:
    try: fill()
    except OSError as error: raise RuntimeError('cannot save the model') from error
def pid() -> int: return os.getpid()
def threads() -> str: return os.environ['OMP_NUM_THREADS']
"""
known: dict[str, Any] = {"__name__": "accel.run.tasks"}
exec(TASKS, known)  # as the parent knows them; the child imports them from its copy of accel


@pytest.fixture
def tasks_file(tmp_path, monkeypatch):
    """A copy of accel whose tasks misbehave on demand: the process, pipes and protocol are the real ones."""
    copy = tmp_path / "accel"
    copy.mkdir()
    (copy / "run").mkdir()
    for part in [*PACKAGE.iterdir(), *(PACKAGE / "run").glob("*.py")]:
        if part.name not in ("run", "tasks.py"):
            (copy / part.relative_to(PACKAGE)).symlink_to(part)
    (tmp_path / "model_zoo").symlink_to(PACKAGE.parent / "model_zoo")
    (copy / "run" / "tasks.py").write_text(TASKS)
    monkeypatch.setattr(processes, "PACKAGE", copy)
    processes.start()
    return tmp_path / "child.log"


def run(task, log, timeout_s=30.0, **params):
    with Worker(log, threads=3, timeout_s=timeout_s) as worker:
        return worker.call(known[task], **params)


def test_results_come_back_whatever_is_printed(tasks_file):
    assert run("noisy", tasks_file) == "fine"
    assert "raw" in tasks_file.read_text()
    assert run("threads", tasks_file) == "3"


@pytest.mark.parametrize("how", [signal.SIGABRT, signal.SIGSEGV, signal.SIGKILL])
def test_a_signal_is_named(tasks_file, how):
    with pytest.raises(WorkerDied, match=how.name):
        run("die", tasks_file, how=int(how))


def test_a_crash_says_where_it_was_and_not_what_was_loaded(tasks_file):
    with pytest.raises(WorkerDied, match=r"SIGSEGV in die \(.*tasks.*\.py, line \d+\)") as caught:
        run("die", tasks_file, how=int(signal.SIGSEGV))
    assert "most recent call" not in caught.value.message
    assert "Extension modules" not in caught.value.message


def test_a_crash_of_an_earlier_process_is_not_told_of_a_later_one(tasks_file):
    with pytest.raises(WorkerDied):
        run("die", tasks_file, how=int(signal.SIGSEGV))
    with pytest.raises(WorkerDied) as caught:
        run("leave", tasks_file, code=3)
    assert " in die (" not in caught.value.message


def test_a_kill_hints_at_memory(tasks_file):
    with pytest.raises(WorkerDied, match="memory runs out"):
        run("die", tasks_file, how=9)


def test_an_exit_shows_the_end_of_the_log(tasks_file):
    with pytest.raises(WorkerDied, match=r"(?s)exit code 3.*last words"):
        run("leave", tasks_file, code=3)


def test_a_hang_ends_at_the_limit(tasks_file):
    with pytest.raises(WorkerDied, match="limit of 1 s") as caught:
        run("hang", tasks_file, timeout_s=1.0)
    assert "--timeout" in caught.value.fix


@pytest.mark.parametrize(("ignores", "code", "how"), [(False, -15, "SIGTERM"), (True, -9, "SIGKILL")])
def test_a_group_may_end_by_itself_before_it_is_made_to(ignores, code, how):
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if ignores else ""
    script = f"import signal, sys, time; {ignore} print(flush=True); time.sleep(600)"
    group = processes.ProcessGroup([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert group.process.stdout.readline() == b"\n"
    assert group.alive()
    assert not group.wait(0.0)
    assert group.end(grace_s=20.0 if not ignores else 0.2) == code
    assert not group.alive()
    assert group.end() == code
    assert how in processes.how_it_ended(code)
    group.process.stdout.close()


def _gone(pid):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("die", [True, False])
def test_what_a_child_forked_ends_with_it_also_after_a_crash(tasks_file, monkeypatch, die):
    """The fork holds the pipes open: only the child's own end tells, and it must not wait for the limit."""
    pid = tasks_file.with_name("pid")
    monkeypatch.setenv("PID_FILE", str(pid))
    if die:
        with pytest.raises(WorkerDied, match="exit code 4"):
            run("fork", tasks_file, timeout_s=300.0, die=True)
    else:
        run("fork", tasks_file, die=False)
    assert _gone(int(pid.read_text()))


def test_half_a_line_is_a_death(tasks_file):
    with pytest.raises(WorkerDied, match="exit code 5"):
        run("half", tasks_file)


def test_a_process_outlives_the_thread_that_started_it(tasks_file):
    """A resumed run found its source described: the thread of the reference started the process, and took it along."""
    with Worker(tasks_file, threads=1, timeout_s=30) as child:
        first = threading.Thread(target=child.call, args=(known["threads"],))
        first.start()
        first.join()
        assert child.call(known["threads"]) == "1"


def test_a_prompt_gets_nothing_and_eats_no_request(tasks_file):
    with Worker(tasks_file, threads=1, timeout_s=30) as child:
        with pytest.raises(StageError, match="EOFError"):
            child.call(known["ask"])
        assert child.call(known["threads"]) == "1"


def test_no_descriptor_is_left(tasks_file):
    run("pid", tasks_file)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        run("pid", tasks_file)
        with pytest.raises(WorkerDied):
            run("die", tasks_file, how=9)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_errors_keep_their_class_and_remedy(tasks_file):
    with pytest.raises(SampleError, match="bad sample") as caught:
        run("refuse", tasks_file)
    assert caught.value.fix == "fix it"
    with pytest.raises(StageError, match="RuntimeError: a library says no") as failed:
        run("bug", tasks_file)
    assert failed.value.log == str(tasks_file)
    assert "Traceback" in tasks_file.read_text()
    with pytest.raises(StageError, match="memory ran out"):
        run("oom", tasks_file)


@pytest.mark.parametrize("task", ["fill", "library_fill"])
def test_a_full_disk_is_named_with_its_folder(tasks_file, task):
    with pytest.raises(
        OutputError, match=f"no space left in (/.*) for {task}: .*(No space left|cannot save)"
    ) as caught:
        run(task, tasks_file)
    assert "free space" in caught.value.fix


@pytest.mark.parametrize(
    ("task", "error", "says"), [("bug", StageError, "a library says no"), ("fill", OutputError, "no space left")]
)
def test_what_fails_is_said_though_the_log_cannot_be_written(tasks_file, task, error, says):
    """The traceback met the full disk, too, and the process ended with exit code 1 and an empty log."""
    tasks_file.symlink_to("/dev/full")
    with Worker(tasks_file, threads=1, timeout_s=30) as child:
        with pytest.raises(error, match=says):
            child.call(known[task])
        assert child.call(known["threads"]) == "1"


def test_a_process_that_died_on_a_full_disk_says_which(tasks_file, monkeypatch):
    """No disk is filled here: the limit is raised to what every disk is below."""
    monkeypatch.setattr(processes, "FULL_BYTES", 1 << 80)
    with pytest.raises(WorkerDied, match=r"no space is left in /.*: the process of die was ended by SIGBUS") as caught:
        run("die", tasks_file, how=int(signal.SIGBUS))
    assert "free space" in caught.value.fix


def test_a_session_outlives_a_failed_task(tasks_file):
    with Worker(tasks_file, threads=1, timeout_s=30) as child:
        first = child.call(known["pid"])
        with pytest.raises(StageError):
            child.call(known["bug"])
        assert child.call(known["pid"]) == first
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_no_task_starts_no_process(tasks_file):
    with Worker(tasks_file, threads=1, timeout_s=30):
        assert not processes._running
    assert not tasks_file.exists()


def test_a_call_after_death_is_a_death(tasks_file):
    with Worker(tasks_file, threads=1, timeout_s=30) as child:
        with pytest.raises(WorkerDied):
            child.call(known["die"], 9)
        with pytest.raises(WorkerDied):
            child.call(known["pid"])


def test_the_child_ends_when_the_parent_is_killed(tasks_file):
    script = (
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
        "from pathlib import Path\nfrom accel.core import processes\n"
        f"processes.PACKAGE = Path({str(processes.PACKAGE)!r})\n"
        f"w = processes.Worker(Path({str(tasks_file)!r}), threads=1, timeout_s=600)\n"
        f"known = {{'__name__': 'accel.run.tasks'}}\nexec({TASKS!r}, known)\n"
        "print(w.call(known['pid']), flush=True)\n"
        "w.call(known['hang'])\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert _gone(child), "the child outlived its parent"


def test_stop_all_ends_what_runs_and_lets_nothing_start(tasks_file):
    failures = []

    def wait():
        try:
            run("hang", tasks_file, timeout_s=60)
        except WorkerDied as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    deadline = time.monotonic() + 20
    while not processes._running and time.monotonic() < deadline:
        time.sleep(0.05)
    processes.stop_all()
    thread.join(20)
    assert [str(failure) for failure in failures] == ["stopped by the user"], "and not killed for memory"
    with pytest.raises(WorkerDied, match="stopped"):
        run("pid", tasks_file)
    processes.start()
    assert run("pid", tasks_file)


@pytest.mark.parametrize("text", ["not JSON", "5", "{}", "[" * 100_000, '{"result": 1}', '{"doing": 1}'])
def test_what_is_no_message_is_shown_and_not_taken_for_a_lack_of_memory(tasks_file, text):
    with pytest.raises(WorkerDied, match=r"not a message of accel's") as caught:
        run("garbage", tasks_file, text=text)
    assert text[:80] in str(caught.value)
    assert "memory" not in str(caught.value)


def test_an_answer_of_another_type_is_this_task_s_failure(tasks_file):
    with pytest.raises(WorkerDied, match="something else than it declares"):
        run("garbage", tasks_file, text='{"result": {"a": 1}, "span": [0, 0, 0]}')
    with pytest.raises(StageError, match="hm"):
        run("garbage", tasks_file, text='{"error": "PACKAGE", "message": "hm", "fix": null, "span": [0, 0, 0]}')


def test_the_child_ends_with_its_parent_also_within_one_long_computation(tasks_file, monkeypatch):
    pid = tasks_file.with_name("pid")
    monkeypatch.setenv("PID_FILE", str(pid))
    parent = _parent(tasks_file, "deaf")
    _wait_for(pid)
    parent.kill()
    parent.wait()
    assert _gone(int(pid.read_text())), "the child outlived its parent"


def test_what_calls_setsid_ends_with_its_worker(tasks_file, monkeypatch):
    pid = tasks_file.with_name("pid")
    monkeypatch.setenv("PID_FILE", str(pid))
    run("detach", tasks_file)
    assert _gone(int(pid.read_text()))


def test_the_next_process_clears_up_after_one_that_was_killed(tasks_file, monkeypatch, tmp_path):
    pid, scratch = tasks_file.with_name("pid"), tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("PID_FILE", str(pid))
    parent = _parent(tasks_file, "detach", "hang", TMPDIR=str(scratch))
    _wait_for(pid)
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    temporary.clear()
    detached = int(pid.read_text())
    assert len(list(scratch.glob("accel-scratch-*/worker-*"))) == 1, "its owner lives"
    assert psutil.pid_exists(detached)
    parent.kill()
    parent.wait()
    temporary.clear()
    assert not list(scratch.iterdir())
    assert _gone(detached)


def test_a_run_without_work_left_clears_up_too(tmp_path, monkeypatch):
    """Killed when all was done but the last file: the next run starts no process."""
    (tmp_path / f"{temporary.PREFIX}left").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    processes.start()
    assert not list(tmp_path.iterdir())


def test_a_worker_that_still_writes_when_the_command_ends_leaves_nothing(tasks_file, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    assert _parent(tasks_file, "scribble", TMPDIR=str(scratch)).wait(60) == 0
    assert not list(scratch.iterdir())


def test_a_log_keeps_its_head_and_its_tail(tasks_file):
    assert run("chatty", tasks_file, mib=100) == "done"
    text = tasks_file.read_text()
    assert len(text) < 13 << 20
    assert text.startswith("the first words\n")
    assert "the last words\n" in text[-100:]
    assert "bytes left out" in text


def _parent(tasks_file, *tasks, **variables):
    """Start another process that runs tasks one after another in one worker."""
    script = (
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n"
        "from pathlib import Path\nfrom accel.core import processes\n"
        f"processes.PACKAGE = Path({str(processes.PACKAGE)!r})\n"
        f"w = processes.Worker(Path({str(tasks_file)!r}), threads=1, timeout_s=600)\n"
        f"known = {{'__name__': 'accel.run.tasks'}}\nexec({TASKS!r}, known)\n"
    )
    script += "".join(f"w.call(known[{task!r}])\n" for task in tasks)
    return subprocess.Popen([sys.executable, "-c", script], env={**os.environ, **variables})


def _wait_for(file):
    deadline = time.monotonic() + 20
    while not (file.exists() and file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
