"""A place of each kind as another process sees it, what is not there, and what cannot be reached or answers late."""

import asyncio
import filecmp
import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import fsspec
import pytest
from cloud_servers import AZURE_KEY, KINDS
from s3_server import STALL_S
from tiny_release import accel

from accel.core.errors import InputError, UnavailableError, UsageError
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


SERVERS = ("s3", "gs", "abfs")


@pytest.fixture(params=KINDS)
def url(request, empty_place):
    return empty_place(request.param)


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


@pytest.mark.filterwarnings(
    "ignore:Sending a large body directly:ResourceWarning"
)  # aiohttp's, of what Azure's client does
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


def test_answers_that_come_late_are_waited_for_and_those_that_stop_are_asked_for_again(
    s3, empty_place, tmp_path, monkeypatch
):
    url = empty_place("s3")
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


def test_of_many_that_create_one_file_one_wins_and_its_content_stays(url):
    places = [object_store.ObjectStore(url) for _ in range(4)]
    with ThreadPoolExecutor(len(places)) as pool:
        for round in range(5):
            name = f"pointers/p/{round}"
            won = list(pool.map(lambda n, name=name: places[n].create(name, b"%d" % n), range(len(places))))
            assert won.count(True) == 1
            assert places[0].read(name) == b"%d" % won.index(True)


def test_a_place_is_used_alike_whatever_kind_it_is(url, tmp_path):
    place = object_store.ObjectStore(url)
    for name in ("a/x", "a/b/y", "ab/z", "a.b"):
        place.write(name, name.encode())
    assert (place.names("a"), place.names("none")) == (["b", "x"], [])
    assert (place.files_below("a"), place.files_below("none")) == (["b/y", "x"], [])
    place.download("a/b/y", tmp_path / "y")
    assert (tmp_path / "y").read_bytes() == b"a/b/y"
    for act in (place.read, lambda name: place.download(name, tmp_path / "z")):
        with pytest.raises(InputError, match="has no a/none"):
            act("a/none")
    assert not (tmp_path / "z").exists()
    place.remove("a")
    place.remove("a")
    assert (place.names("a"), place.read("ab/z"), place.read("a.b")) == ([], b"ab/z", b"a.b")


@pytest.mark.parametrize("kind", SERVERS)
def test_a_bucket_that_is_not_there_is_told(kind, empty_place, tmp_path):
    place = object_store.ObjectStore(empty_place(kind).replace("://b", "://no-such-bucket-b"))
    (tmp_path / "file").write_bytes(b"x")
    writes = (place.write, place.create, lambda name, _: place.upload(tmp_path / "file", name))
    for write in writes:
        with pytest.raises(UnavailableError, match="cannot be written to") as caught:
            write("x", b"x")
        assert "make the bucket" in caught.value.fix


@pytest.mark.parametrize("kind", ["gs", "abfs"])
def test_who_has_no_right_is_told_so_in_few_lines(kind, empty_place, key_pair, tmp_path, monkeypatch):
    url, (_, public) = empty_place(kind), key_pair(tmp_path, "key")
    if kind == "gs":
        url = "gs://forbidden/prefix"
    else:
        connection = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", connection.replace(AZURE_KEY, "b3RoZXI="))
    done = accel("release", "list", "--to", url, "--key", public)
    assert (done.returncode, len(done.stderr.splitlines()) < 5) == (3, True), done.stderr
    assert f"{url} cannot be used" in done.stderr


def test_no_account_is_told_as_what_it_is(azure, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    with pytest.raises(UnavailableError, match=r"abfs://container/x cannot be used: .*account_name"):
        object_store.ObjectStore("abfs://container/x")


def test_a_kind_that_nobody_knows_is_told():
    with pytest.raises(UsageError, match="nosuch"):
        object_store.ObjectStore("nosuch://bucket/x")


@pytest.mark.parametrize("kind", ["gs", "abfs"])
def test_where_nothing_listens_it_is_not_tried_for_minutes(kind, empty_place, monkeypatch):
    """The pauses between tries are counted, and not made."""
    url, paused, sleep = empty_place(kind), [], asyncio.sleep
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    nothing = f"DefaultEndpointsProtocol=http;AccountName=a;AccountKey={AZURE_KEY};BlobEndpoint=http://127.0.0.1:9/a;"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", nothing)
    place = object_store.ObjectStore(url)

    async def count(seconds, *_):
        paused.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", count)
    with pytest.raises(UnavailableError, match=r"cannot be used: .*Cannot connect"):
        place.read("x")
    assert len(paused) > 1
    assert sum(paused) < 60


WITHOUT = """
import sys
sys.modules |= {"s3fs": None, "gcsfs": None, "adlfs": None}
from accel.core.errors import UnavailableError
from accel.release.object_store import ObjectStore
for kind in ("s3", "gs", "abfs", "az"):
    try:
        ObjectStore(f"{kind}://bucket/x")
    except UnavailableError as error:
        print(error.fix)
"""


def test_what_is_not_installed_is_named_by_the_extra_that_brings_it():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, timeout=120)
    extras = ("s3", "gcs", "azure", "azure")
    assert done.stdout.splitlines() == [f"pip install 'accel[{extra}]'" for extra in extras], done.stderr


USER = """
import sys
from accel.release.object_store import ObjectStore
place = ObjectStore(sys.argv[1])
place.write("x", b"x")
assert place.read("x") == b"x" and place.names("") == ["x"]
"""


@pytest.mark.parametrize("kind", SERVERS)
def test_a_process_that_used_a_place_ends_without_a_word(kind, empty_place):
    done = subprocess.run([sys.executable, "-c", USER, empty_place(kind)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_credentials_of_azure_are_those_that_its_variables_name(azure, empty_place, monkeypatch):
    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

    url = empty_place("abfs")
    object_store.ObjectStore(url).write("x", b"x")
    endpoint = os.environ["AZURE_STORAGE_CONNECTION_STRING"].partition("BlobEndpoint=")[2].rstrip(";")
    may = {
        "resource_types": ResourceTypes.from_string("sco"),
        "permission": AccountSasPermissions(read=True, list=True),
    }
    until = datetime.now(UTC) + timedelta(hours=1)
    token = generate_account_sas("accel", AZURE_KEY, **may, expiry=until)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"BlobEndpoint={endpoint};SharedAccessSignature={token}")
    reads = object_store.ObjectStore(url.replace("abfs://", "az://"))
    assert reads.read("x") == b"x"
    assert "sig=" not in reads.address
    with pytest.raises(UnavailableError, match="cannot be used"):
        reads.write("x", b"y")
    monkeypatch.delenv("AZURE_STORAGE_CONNECTION_STRING")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", AZURE_KEY)
    named = object_store.ObjectStore("abfss://models@ours.dfs.core.windows.net/prefix")
    assert (named.root, named.address) == ("models/prefix", "https://ours.blob.core.windows.net/models/prefix")


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")
@pytest.mark.parametrize("kind", SERVERS)
def test_a_file_that_goes_in_parts_comes_back_and_does_not_go_again(kind, empty_place, tmp_path):
    place, file = object_store.ObjectStore(empty_place(kind)), tmp_path / "file"
    with file.open("wb") as written:
        for _ in range(130):
            written.write(os.urandom(1 << 20))
    place.upload(file, "large")
    there = place.files.info(place._at("large"))
    place.upload(file, "large")
    assert place.files.info(place._at("large")) == there
    place.download("large", tmp_path / "back")
    assert filecmp.cmp(file, tmp_path / "back", shallow=False)
