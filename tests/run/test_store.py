"""Results are whole or absent; one command at a time; nothing is lost."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from accel.core import files
from accel.core.errors import OutputError
from accel.core.values import Target
from accel.run import store
from accel.run.store import Store


def put(kept, key, stage="build", text="x"):
    with kept.writing(stage) as folder:
        (folder / "file").write_text(text)
        return kept.put(stage, key, Target(text, "cpu"), folder)


def test_what_was_put_is_found_by_its_key_alone(tmp_path):
    kept = Store(tmp_path)
    folder = put(kept, "k1")
    assert kept.get("build", "k1", Target) == Target("x", "cpu")
    assert (folder / "file").read_text() == "x"
    assert kept.get("build", "k2", Target) is None
    assert kept.get("other", "k1", Target) is None


def test_an_interrupted_write_is_never_read_and_is_cleared(tmp_path):
    kept = Store(tmp_path)

    def interrupted():
        with kept.writing("build") as folder:
            (folder / "file").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert kept.get("build", "k", Target) is None
    left = kept.root / "tmp-build-killed"
    left.mkdir()
    Store(tmp_path)
    assert not left.exists()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"schema": 99, "key": "k", "value": {}}', '{"schema": 1, "key": "other"}']
)
def test_a_broken_result_counts_as_none(tmp_path, content):
    kept = Store(tmp_path)
    (put(kept, "k") / "value.json").write_text(content)
    assert kept.get("build", "k", Target) is None
    put(kept, "k", text="again")
    assert kept.get("build", "k", Target) == Target("again", "cpu")


def test_a_result_whose_files_were_changed_in_place_is_made_again(tmp_path):
    """What people see is a second name of the stored file: an editor that writes in place reaches the store."""
    kept = Store(tmp_path)
    folder = put(kept, "k")
    seen = tmp_path / "repositories" / "ort@cpu"
    files.replace_folder(seen, {"config.pbtxt": folder / "file"})
    assert kept.get("build", "k", Target) == Target("x", "cpu")
    assert (seen / "config.pbtxt").stat().st_mode & 0o222 == 0
    (seen / "config.pbtxt").chmod(0o644)
    (seen / "config.pbtxt").write_text("edited")
    assert kept.get("build", "k", Target) is None
    put(kept, "k", text="again")
    assert kept.get("build", "k", Target) == Target("again", "cpu")
    (folder / "file").unlink()
    assert kept.get("build", "k", Target) is None


def test_what_no_hardware_changes_is_taken_from_another_machine(tmp_path):
    other, here = Store(tmp_path / "other"), Store(tmp_path / "here")
    for number, stage in enumerate(
        ["source", "onnx", "onnx", "typed-trt", "typed-proof-trt", "build-ort", "reference"]
    ):
        with other.writing(stage) as folder:
            (folder / "a.onnx").write_text(str(number))
            (folder / "a.data").write_text("weights")
            made = other.put(stage, store.key(number=number), number, folder)
        os.utime(made, (number, number))
    here.adopt(tmp_path / "other")
    assert here.get("source", store.key(number=0), int) == 0
    assert here.get("onnx", store.key(number=1), int) is None  # an older one
    assert here.get("onnx", store.key(number=2), int) == 2
    assert here.get("typed-trt", store.key(number=3), int) == 3
    assert len(list(here.root.iterdir())) == 3
    data = here.folder("onnx", store.key(number=2)) / "a.data"
    assert data.stat().st_nlink == 1  # onnx refuses external data that has several names
    here.adopt(tmp_path / "nobody")
    here.adopt(tmp_path / "other")
    assert len(list(here.root.iterdir())) == 3


def test_prune_keeps_what_was_used_and_the_newest(tmp_path):
    kept = Store(tmp_path)
    for i in range(6):
        os.utime(put(kept, f"k{i}"), (i, i))
    later = Store(tmp_path)
    later.get("build", "k0", Target)
    later.prune()
    assert [i for i in range(6) if later.get("build", f"k{i}", Target)] == [0, 4, 5]


def test_a_second_command_is_told_who_holds_the_directory(tmp_path):
    with files.lock(tmp_path / "run", "accel convert bert"):
        code = (
            "import sys; from pathlib import Path; from accel.core import files\n"
            f"with files.lock(Path({str(tmp_path / 'run')!r}), 'second'): pass"
        )
        second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert second.returncode != 0
    assert f"in use by `accel convert bert` (process {os.getpid()}" in second.stderr
    with files.lock(tmp_path / "run", "third"):
        pass


def test_a_file_in_the_way_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write to"), files.lock(tmp_path / "file" / "run", "x"):
        pass


def test_a_full_disk_is_a_clear_error_and_the_old_file_stays(tmp_path):
    target = tmp_path / "run.json"
    target.write_text("old")
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    (tmp_path / f".run.json.{os.getpid()}.new").symlink_to(
        "/dev/full"
    )  # every write to it says: no space left on device
    with pytest.raises(OutputError, match="no space left"):
        files.write_text(target, "new" * 10000)
    assert target.read_text() == "old"


def test_replace_folder_is_exact_and_links(tmp_path):
    source = tmp_path / "source"
    source.write_text("x")
    target = tmp_path / "view"
    files.replace_folder(target, {"a/b": source, "c": source})
    files.replace_folder(target, {"a/b": source})
    assert sorted(p.relative_to(target).as_posix() for p in target.rglob("*")) == ["a", "a/b"]
    assert (target / "a/b").stat().st_ino == source.stat().st_ino
    files.replace_folder(target, {"c": source}, copy=True)
    assert (target / "c").stat().st_ino != source.stat().st_ino
    assert not (target / "c").is_symlink()


@pytest.mark.parametrize("kind", ["file", "link", "dangling", "folder link"])
def test_replace_folder_takes_the_place_of_whatever_is_there(tmp_path, kind):
    source, target, elsewhere = tmp_path / "source", tmp_path / "views" / "view", tmp_path / "elsewhere"
    source.write_text("x")
    target.parent.mkdir()
    elsewhere.mkdir()
    (elsewhere / "kept").write_text("kept")
    if kind == "file":
        target.write_text("in the way")
    else:
        target.symlink_to({"link": source, "dangling": tmp_path / "nowhere", "folder link": elsewhere}[kind])
    files.replace_folder(target, {"c": source})
    assert [p.name for p in target.parent.iterdir()] == ["view"]
    assert (target / "c").read_text() == "x"
    assert not target.is_symlink()
    assert (elsewhere / "kept").read_text() == "kept"


def test_a_kill_at_any_renaming_loses_no_folder(tmp_path):
    """The process is really killed, at each of its renamings; then the next call fails half-way."""
    source = tmp_path / "source"
    source.write_text("old")
    for after in (0, 1, 2):
        target = tmp_path / f"run{after}" / "view"
        files.replace_folder(target, {"c": source}, copy=True)
        code = (
            "import os, signal; from pathlib import Path; from accel.core import files\n"
            "rename, done = Path.rename, []\n"
            "def stop(self, to):\n"
            f"    if len(done) == {after}: os.kill(os.getpid(), signal.SIGKILL)\n"
            "    done.append(to)\n"
            "    return rename(self, to)\n"
            "Path.rename = stop\n"
            "rmtree = files.shutil.rmtree\n"
            "def late(path, **kw):\n"
            "    if len(done) == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
            "    rmtree(path, **kw)\n"
            "files.shutil.rmtree = late\n"
            f"files.replace_folder(Path({str(target)!r}), {{'d': Path({str(source)!r})}}, copy=True)\n"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
        with pytest.raises(FileNotFoundError):
            files.replace_folder(target, {"e": tmp_path / "missing"})
        assert [p.name for p in target.iterdir()] == (["d"] if after == 2 else ["c"])
        assert [p.name for p in target.parent.iterdir()] == ["view"]


def test_copies_can_be_written_to(tmp_path):
    source = tmp_path / "source"
    source.write_text("x")
    source.chmod(0o444)
    files.replace_folder(tmp_path / "best", {"c": source}, copy=True)
    assert (tmp_path / "best" / "c").stat().st_mode & 0o777 == 0o644


def test_code_of_a_part_that_does_not_exist_is_no_hash():
    with pytest.raises(FileNotFoundError):
        store.code_hash("no_such_stage.py")


def test_code_hash_follows_the_code(tmp_path):
    file = tmp_path / "x.py"
    file.write_text("a = 1")
    before = store.code_hash(str(file), "core/accuracy/parity.py")
    file.write_text("a = 2")
    assert store.code_hash(str(file), "core/accuracy/parity.py") != before


def test_code_hash_follows_the_templates_of_a_folder(tmp_path):
    (tmp_path / "launch.sh.j2").write_text("exec")
    before = store.code_hash(str(tmp_path))
    (tmp_path / "launch.sh.j2").write_text("exec again")
    assert store.code_hash(str(tmp_path)) != before


def test_errors_of_another_kind_are_not_dressed_up(tmp_path):
    with pytest.raises(OSError, match="odd") as caught, files.writing(tmp_path):
        raise OSError(errno.EIO, "odd")
    assert not isinstance(caught.value, OutputError)
