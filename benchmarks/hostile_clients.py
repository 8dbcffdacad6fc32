"""Send a served repository wrong requests among good ones, and count the good ones that were lost.

    python benchmarks/hostile_clients.py REPOSITORY -o clients.json [--backend-directory DIR] [--seconds 20]

Good clients send stored samples all the time. Beside them come wrong dtypes, shapes, batches, ids, names, missing
inputs and cut connections; each kind has its own span of time. At the end the server is ended under load as
`accel serve` ends it, by SIGTERM and where that is not enough by SIGKILL: a good request that it had begun is lost if
it gets no answer; one that it refused is not.
"""

import argparse
import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient import grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from accel.triton import manifest as manifests
from accel.triton.reading import read_points
from accel.triton.servers import server

GOOD, BAD = 12, 4
REFUSED = ("exiting", "stopping", "not ready", "failed to connect", "no available versions")
"""What a server that ends says to a request that it does not begin."""


def tensors(feed: dict[str, np.ndarray], datatype: str | None = None) -> list[Any]:
    """Return a request's inputs; with ``datatype`` all under that name."""
    made = []
    for name, value in feed.items():
        made.append(grpc.InferInput(name, list(value.shape), np_to_triton_dtype(value.dtype)))
        made[-1].set_data_from_numpy(np.ascontiguousarray(value))
        if datatype:
            made[-1]._input.datatype = datatype
    return made


def attacks(feed: dict[str, np.ndarray]) -> dict[str, Callable[[], list[Any] | None]]:
    """Return by name what makes a wrong request of a good one; None cuts a connection."""
    first = next(iter(feed))
    whole = next((n for n, v in feed.items() if v.dtype.kind == "i"), first)

    def changed(name: str, value: np.ndarray) -> list[Any]:
        return tensors({**feed, name: value})

    return {
        "wrong dtype": lambda: changed(first, feed[first].astype(np.float64)),
        "lying dtype": lambda: tensors(feed, "BOOL"),
        "wrong rank": lambda: changed(first, feed[first].reshape(-1)),
        "huge batch": lambda: tensors({n: np.repeat(v, 4096, axis=0) for n, v in feed.items()}),
        "empty batch": lambda: tensors({n: v[:0] for n, v in feed.items()}),
        "id too large": lambda: changed(whole, np.full_like(feed[whole], 10**6)),
        "id of -1": lambda: changed(whole, np.full_like(feed[whole], -1)),
        "missing input": lambda: tensors({n: v for n, v in feed.items() if n != first}),
        "unknown input": lambda: tensors({**feed, "no_such": feed[first]}),
        "cut connection": lambda: None,
    }


def campaign(root: Path, *, seconds: float, backends: Path | None, only: list[str] | None = None) -> dict[str, Any]:
    """Serve the repository, attack it, end it under load.

    Args:
        only: kinds of wrong requests; None for all.
    """
    manifest = manifests.read(root)
    feed = dict(read_points(root, manifest)["opt"].inputs)
    counts: dict[str, Counter[str]] = {}
    now, over, ending = "alone", threading.Event(), threading.Event()

    with server.start(root, log=server.fresh_log(), backend_directory=backends) as running:
        expected: list[np.ndarray] = []

        def good() -> None:
            with grpc.InferenceServerClient(running.endpoint.grpc) as client:
                while not over.is_set():
                    kind, begun = now, time.monotonic()
                    seen = counts.setdefault(kind, Counter())
                    try:
                        result = client.infer(manifest.models[0], tensors(feed), client_timeout=30)
                        values = result.as_numpy(manifest.outputs[0].name)
                        expected[:] = expected or [values]
                        close = np.allclose(values, expected[0], rtol=1e-3, atol=1e-3, equal_nan=True)
                        seen["answered" if close else "answered wrongly"] += 1
                    except InferenceServerException as error:
                        text = str(error)
                        refused = any(w in text.lower() for w in REFUSED)
                        late = ending.is_set() and refused
                        if ending.is_set():  # begun beside the last kind, and lost by the end
                            seen = counts.setdefault("SIGTERM", Counter())
                        seen["refused at the end" if late else f"lost: {text[:120]}"] += 1
                        if ending.is_set():
                            return
                    seen["slowest_ms"] = max(seen["slowest_ms"], int(1e3 * (time.monotonic() - begun)))

        def bad(make: Callable[[], list[Any] | None], until: float, seen: Counter[str]) -> None:
            host, _, port = running.endpoint.grpc.rpartition(":")
            with grpc.InferenceServerClient(running.endpoint.grpc) as client:
                while time.monotonic() < until:
                    request = make()
                    try:
                        if request is None:
                            with socket.create_connection((host, int(port)), timeout=5) as connection:
                                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + os.urandom(64))
                            client.async_infer(manifest.models[0], tensors(feed), lambda result, error: None).cancel()
                            seen["cut"] += 1
                        else:
                            client.infer(manifest.models[0], request, client_timeout=30)
                            seen["answered"] += 1
                    except (InferenceServerException, OSError, ValueError) as error:
                        seen[f"refused: {str(error)[:120]}"] += 1

        clients = [threading.Thread(target=good) for _ in range(GOOD)]
        for client in clients:
            client.start()
        time.sleep(2)
        wrong: dict[str, Counter[str]] = {}
        for kind, make in attacks(feed).items():
            if only and kind not in only:
                continue
            now = kind
            wrong[kind] = Counter()
            while kind not in counts and any(client.is_alive() for client in clients):
                time.sleep(0.01)  # those begun beside the kind before are counted there
            until = time.monotonic() + seconds
            attackers = [threading.Thread(target=bad, args=(make, until, wrong[kind])) for _ in range(BAD)]
            for attacker in attackers:
                attacker.start()
            for attacker in attackers:
                attacker.join()
        alive = running.alive()
        ended = None if alive else running.failure().message
        now = "SIGTERM"
        ending.set()
        begun = time.monotonic()
        running.stop()
        ended_s = time.monotonic() - begun if alive else None
        over.set()
        for client in clients:
            client.join(40)
    lost = {k: sum(v for n, v in c.items() if n.startswith(("lost", "answered wrongly"))) for k, c in counts.items()}
    return {
        "repository": manifest.variant,
        "backend": "python" if running.python_models else manifest.backend,
        "release": running.endpoint.release,
        "alive_after_all": alive,
        "ended_by_itself": ended,
        "sigterm_to_end_s": ended_s and round(ended_s, 2),
        "good_requests": sum(c["answered"] for c in counts.values()),
        "good_lost": lost,
        "good": counts,
        "wrong": wrong,
    }


def main() -> None:
    """Run the campaign and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--backend-directory", type=Path)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", action="append", help="this kind of wrong request; may be repeated")
    parser.add_argument("-o", "--out", type=Path, required=True)
    asked = parser.parse_args()
    found = campaign(asked.repository, seconds=asked.seconds, backends=asked.backend_directory, only=asked.only)
    asked.out.write_text(json.dumps(found, indent=1))
    print(json.dumps({k: v for k, v in found.items() if k not in ("good", "wrong")}, indent=1))


if __name__ == "__main__":
    main()
