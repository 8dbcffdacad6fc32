"""Google Cloud Storage and Azure Blob Storage as their emulators have them, over HTTP, each in a process of its own.

Azure is Microsoft's azurite as it comes. Google's is gcp-storage-emulator (``python cloud_servers.py``), which knows no
preconditions, and asks nobody who he is. What accel relies on is added as Google documents it ("Request
preconditions"): an upload with ``ifGenerationMatch=0`` is answered with 412 where there is such an object, and of two
at once one is first. Bucket ``forbidden`` is nobody's.
"""

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

KINDS = ("file", "s3", "gs", "abfs")
FOLDER = os.environ.get("ACCEL_AZURITE") or f"{sys.prefix}/azurite/node_modules/.bin"
"""Where ``make azurite`` puts the program."""
AZURITE = shutil.which("azurite-blob") or shutil.which("azurite-blob", path=FOLDER)
AZURE_KEY = "YWNjZWw="


@contextlib.contextmanager
def google() -> Iterator[str]:
    """Run the emulator of Google Cloud Storage; gives its URL."""
    with _running(sys.executable, __file__) as server:
        yield server.stdout.readline().strip()


@contextlib.contextmanager
def azure() -> Iterator[str]:
    """Run azurite, which keeps all in memory; gives the connection string of its only account."""
    assert AZURITE is not None
    words = ["--blobHost", "127.0.0.1", "--blobPort", "0", "--inMemoryPersistence", "--silent", "--disableTelemetry"]
    words += ["--skipApiVersionCheck"]  # the client is newer
    with _running(AZURITE, *words, AZURITE_ACCOUNTS=f"accel:{AZURE_KEY}") as server:
        url = next(line.split()[-1] for line in server.stdout if "successfully listens on" in line)
        yield f"DefaultEndpointsProtocol=http;AccountName=accel;AccountKey={AZURE_KEY};BlobEndpoint={url}/accel;"


@contextlib.contextmanager
def _running(*words: str, **variables: str) -> Iterator[Any]:
    made = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | variables)
    try:
        yield made
    finally:
        made.terminate()
        made.communicate()


class ExistsError(Exception):
    """An upload was to create an object, and it is there."""


def main() -> None:
    from gcp_storage_emulator import server as emulator
    from gcp_storage_emulator.storage import Storage

    logging.disable()
    storage, lock, asked = Storage(use_memory_fs=True), threading.Lock(), threading.local()
    write = storage.create_file

    def create_file(bucket: str, name: str, *content: Any) -> None:
        with lock:
            if asked.new and name in storage.objects.get(bucket, {}):
                raise ExistsError
            write(bucket, name, *content)

    storage.create_file = create_file

    class Handler(emulator.RequestHandler):
        def do_GET(self) -> None:
            self._answer(super().do_GET)

        def do_POST(self) -> None:
            self._answer(super().do_POST)

        def do_PUT(self) -> None:
            self._answer(super().do_PUT)

        def _answer(self, answer: Callable[[], None]) -> None:
            asked.new = parse_qs(urlsplit(self.path).query).get("ifGenerationMatch") == ["0"]
            if "/b/forbidden/" in self.path:
                self._refuse(401, "Anonymous caller does not have storage.objects.list access to the bucket.")
                return
            try:
                answer()
            except ExistsError:
                self._refuse(412, "At least one of the pre-conditions you specified did not hold.")

        def _refuse(self, code: int, why: str) -> None:
            text = json.dumps({"error": {"code": code, "message": why}}).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing: a test makes hundreds."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, storage))
    print(f"http://127.0.0.1:{http.server_port}", flush=True)
    http.serve_forever()


if __name__ == "__main__":
    main()
