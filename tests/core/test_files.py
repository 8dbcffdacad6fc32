"""What takes another file's or folder's place does so whole, or not at all."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from accel.core import files
from accel.core.errors import OutputError


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_fails_half_way_leaves_the_old_one_and_nothing_beside_it(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "run"
    if kind == "file":
        target.write_text("old")
    else:
        files.replace_folder(target, {"a": "old"})

    def fail() -> None:
        with files.replacing(target) as new:
            if kind == "file":
                new.write_text("new")
            else:
                new.mkdir()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (target if kind == "file" else target / "a").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_block_that_writes_nothing_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("old")
    with files.replacing(tmp_path / "run"):
        pass
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


def test_a_folder_is_never_removed_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    (tmp_path / "report.html" / "kept").write_text("")
    with pytest.raises(OutputError, match=r"cannot write to .*report\.html"):
        files.write_text(tmp_path / "report.html", "text")
    assert [p.name for p in tmp_path.rglob("*")] == ["report.html", "kept"]


def test_what_a_killed_process_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".run.json.{dead.pid}.new").write_text("half")
    (tmp_path / f".run.json.{os.getppid()}.new").write_text("half")
    (tmp_path / ".run.json.mine.new").write_text("")
    files.write_text(tmp_path / "run.json", "whole")
    names = {".run.json.mine.new", f".run.json.{os.getppid()}.new", "run.json"}
    assert {p.name for p in tmp_path.iterdir()} == names


@pytest.mark.parametrize("fails", [True, False])
def test_a_run_directory_that_is_moved_meanwhile_is_said_so(tmp_path: Path, fails: bool) -> None:
    run_dir = tmp_path / "run"

    def move() -> None:
        with files.lock(run_dir, "accel convert"):
            run_dir.rename(tmp_path / "elsewhere")
            if fails:
                (run_dir / ".store" / "value.json").write_text("{}")
            files.write_text(run_dir / "run.json", "{}")  # as many a stage does, it makes the folder anew

    with pytest.raises(OutputError, match="was moved or removed while the command ran") as caught:
        move()
    assert "-o DIR" in str(caught.value.fix)
    with files.lock(tmp_path / "elsewhere", "accel convert"):
        pass


@pytest.mark.parametrize("text", ['{"a": NaN}', '["\\ud800"]', '{"\\udc00": 1}', "{"])
def test_what_only_pythons_reader_takes_is_no_json(text: str) -> None:
    """Half of a character can be in no file name: looking for such a file was a traceback."""
    with pytest.raises(ValueError):
        files.parse_json(text)
    assert files.parse_json('["\\ud83d\\ude00", 1.5]') == ["😀", 1.5]


def test_a_file_larger_than_a_limit_names_where_it_goes(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OutputError, match="no space left while writing to") as told:
            files.write_text(tmp_path / "to" / "large", 2000 * "x")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"{tmp_path / 'to' / 'large'}: File too large" in told.value.message
    assert "-o" not in told.value.fix  # the option may be --to or --store
