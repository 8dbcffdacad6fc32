"""A place in S3 as another process sees it, and one that answers late."""

import hashlib
import json
import subprocess
import sys

import fsspec
import pytest
from s3_server import STALL_S

from accel.core.errors import UnavailableError
from accel.release import object_store

READER = """
import hashlib, json, sys
from accel.core.errors import InputError
from accel.release.object_store import ObjectStore

place = ObjectStore(sys.argv[1])
print("ready", flush=True)
for line in sys.stdin:
    folder, name = line.split()
    try:
        read = hashlib.sha256(place.read(f"{folder}/{name}")).hexdigest()
    except InputError:
        read = None
    print(json.dumps([place.names(folder), read]), flush=True)
"""


@pytest.fixture
def url(s3, tmp_path):
    made = object_store.ObjectStore(f"s3://o{abs(hash(tmp_path))}/prefix")
    made.files.mkdir(made.url.split("/")[2])
    return made.url


@pytest.fixture
def reader(url):
    """Ask a process with a client of its own, that stays, what it sees of a file and its folder."""
    words = [sys.executable, "-c", READER, url]
    running = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "ready\n"

    def ask(folder, name):
        print(folder, name, file=running.stdin, flush=True)
        return json.loads(running.stdout.readline())

    yield ask
    running.stdin.close()
    assert running.wait(30) == 0
    running.stdout.close()


def sha(content):
    return hashlib.sha256(content).hexdigest()


def test_another_process_reads_at_once_what_was_written(url, reader, tmp_path):
    place = object_store.ObjectStore(url)
    (tmp_path / "file").write_bytes(large := b"x" * (6 << 20))
    for round in range(5):
        folder = f"pointers/p{round}"
        assert reader(folder, "1") == [[], None]
        assert place.create(f"{folder}/1", first := f"first {round}".encode())
        assert reader(folder, "1") == [["1"], sha(first)]
        assert not place.create(f"{folder}/1", b"second")
        assert reader(folder, "1") == [["1"], sha(first)]
        place.write(f"{folder}/1", other := f"other {round}".encode())
        assert reader(folder, "1") == [["1"], sha(other)]
        place.upload(tmp_path / "file", f"{folder}/2")
        assert reader(folder, "2") == [["1", "2"], sha(large)]
        place.remove(f"{folder}/1")
        assert reader(folder, "1") == [["2"], None]


def test_answers_that_come_late_are_waited_for_and_those_that_stop_are_asked_for_again(s3, url, tmp_path, monkeypatch):
    monkeypatch.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"read_timeout": STALL_S / 4}})
    place, name = object_store.ObjectStore(url), "store/content/ab"
    (tmp_path / "file").write_bytes(content := b"y" * 100_000)
    s3.slow_s = STALL_S / 20
    try:
        place.upload(tmp_path / "file", name)
        place.download(name, tmp_path / "late")
        s3.stalled = 2
        place.download(name, tmp_path / "stalled")
        assert s3.stalled == 0
        for made in ("late", "stalled"):
            assert (tmp_path / made).read_bytes() == content
        s3.slow_s = STALL_S / 2  # each answer is later than the client waits
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        gives_up = object_store.ObjectStore(url)
        monkeypatch.setattr(gives_up.files, "retries", 1)
        with pytest.raises(UnavailableError, match=r"cannot be used: .*[Tt]imeout"):
            gives_up.read(name)
    finally:
        s3.slow_s = s3.stalled = 0
    assert place.read(name) == content
