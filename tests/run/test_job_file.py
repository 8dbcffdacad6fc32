"""A job file that is made to break its reader is refused at once, with one message; an ordinary one is not."""

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accel.core.errors import InputError, UsageError
from accel.run import job

BOMB = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
MERGED = "a0: &a0 {k: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 10))
ATTACKS = {
    "aliases": ("options:\n" + "".join(f"  {line}\n" for line in BOMB.splitlines()), "more than 20000 values"),
    "merged aliases": ("triton:\n" + "".join(f"  {line}\n" for line in MERGED.splitlines()), "more than 20000 values"),
    "itself": ("options: &a {ort: *a}", "holds itself"),
    "deep lists": ("targets: " + "[" * 50_000 + "]" * 50_000, "levels deep"),
    "deep blocks": ("\n".join(" " * i + "a:" for i in range(500)), "levels deep"),
    "digits": ("rounds: " + "9" * 5000, "number of 5000 characters"),
    "hexadecimal digits": ("rounds: 0x" + "f" * 5000, "number of 5002 characters"),
    "base 60": ("rounds: 1" + ":59" * 3000, "number of 9001 characters"),
    "digits of a field of ModelConfig": ("triton: {max_batch_size: " + "9" * 5000 + "}", "number of 5000 characters"),
    "size": ("#" * (1 << 21), "more than 1 MiB"),
    "no text": (b"\xff\xfe\x00", "cannot be read"),
    "tag": ("source: !!python/object/apply:os.getcwd []", "cannot be read"),
    "date": ("source: 0000-00-00", "cannot be read"),
    "NUL": ("source: a\0b", "cannot be read"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_file_made_to_break_the_reader_is_refused(tmp_path: Path, attack: str) -> None:
    content, why = ATTACKS[attack]
    path = tmp_path / "job.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    begin = time.monotonic()
    with pytest.raises(InputError, match=why):
        job.read(path)
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("attack", ["aliases", "deep lists", "digits"])
def test_the_command_line_says_so_in_little_memory(tmp_path: Path, attack: str) -> None:
    content, why = ATTACKS[attack]
    path = tmp_path / "job.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    done = subprocess.run(
        [sys.executable, "-m", "accel", "convert", "bert", "--targets", "null", "-c", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30)),
    )
    assert done.returncode == 2, done.stderr
    assert why in done.stderr
    assert "Traceback" not in done.stderr


def test_an_ordinary_file_with_aliases_is_read(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "source: bert\nrevision: 0123456789012345678901234567890123456789abcdef\n"
        "triton: {targets: {ort: &all {max_batch_size: 4}, openvino: {<<: *all}}}\n"
    )
    found = job.read(path)
    assert found["triton"] == {"": "", "ort": "max_batch_size: 4\n", "openvino": "max_batch_size: 4\n"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"shape": ["x:1x" + "9" * 5000]}, "not a shape"),
        ({"range": ["x=0:" + "9" * 5000]}, "not a range"),
        ({"gate": ["fp32=" + "9" * 5000]}, "NAME=VALUE"),
    ],
)
def test_numbers_of_thousands_of_digits_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        job.assemble({"source": "bert", "targets": "null"} | given, None, command="accel convert bert")
