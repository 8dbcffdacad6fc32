"""Print the figures that serving is held to, from real servers; keep each as docs/benchmarks/served_<name>.json.

    .venv/bin/python benchmarks/served.py ceiling                                      the null model: who sends most
    .venv/bin/python benchmarks/served.py agree --run runs/bert --variant ort@cpu      ours beside perf_analyzer
    .venv/bin/python benchmarks/served.py overhead --run runs/bert --variant ort@cpu   served beside in process
    .venv/bin/python benchmarks/served.py neighbours --run runs/minilm                 answers alone and in a batch
    .venv/bin/python benchmarks/served.py soak --run runs/minilm --variant ort-int8@cpu --minutes 10

``--run`` is a run directory of ``accel convert``. ``agree`` and ``ceiling`` need ``accel env install perf-analyzer``,
and all the embedded server or one on PATH. Run them on a quiet machine; each takes a few minutes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from accel.bench import perf_analyzer, served
from accel.bench.expected import Expected
from accel.bench.load import Generator, Load, Window, fit_feeds
from accel.bench.served import Method
from accel.bench.stability import ratio_interval
from accel.bench.timed import open_timed, time_round
from accel.bench.usage import use
from accel.core import hardware
from accel.core.accuracy import parity
from accel.core.feeds import Feed, fit_inputs, read_feeds, write_feeds
from accel.core.processes import Worker
from accel.core.values import ModelSource, from_json, to_json
from accel.triton import manifest as manifests
from accel.triton.reading import read_points
from accel.triton.servers import server

FACTORY = """
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        return x.sum(dim=1, keepdim=True)
def build():
    return Net(), [{"x": torch.randn(1, 16).numpy()} for _ in range(400)]
"""
JOB = "source: {0}/net.py:build\ntargets: ['null']\nout: {0}/run\noptions:\n  'null': {{latency_ms: 0.0}}\n"
THREADS = hardware.cpu_threads()
SLICE_FEEDS = 48
"""Different requests of a soak."""


@contextmanager
def serve(root: Path, logs: Path) -> Iterator[tuple[server.Server, manifests.Manifest]]:
    """Serve a repository; give the server and the manifest of what it serves (a twin's, where it lacks the backend)."""
    with server.start(root, log=logs / "server.log") as running:
        yield running, manifests.read(running.root)


def stored(run: Path, stage: str) -> Path:
    """Return the folder of a run's stored stage (``source``, ``reference``)."""
    found = sorted((run / ".store").glob(f"{stage}-*"))
    if not found:
        raise SystemExit(f"{run} holds no stored {stage}: give the directory of a run of accel convert")
    return found[-1]


def source_of(run: Path) -> ModelSource:
    """Read what the run knows of its model."""
    return from_json(ModelSource, json.loads((stored(run, "source") / "value.json").read_text())["value"]["source"])


# ---------------------------------------------------------------------------------------------------------------------


def ceiling(asked: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Requests/s of the null model, whose answers cost nothing: what remains is generator, wire and server."""
    (logs / "net.py").write_text(FACTORY)
    (logs / "job.yaml").write_text(JOB.format(logs))
    command = [sys.executable, "-m", "accel", "convert", "-c", str(logs / "job.yaml"), "--quiet"]
    # No gate passes a null model: the command says so and ends with 1, and the repository is there all the same.
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    kinds = {
        "accel": (served.sweep, Method(seconds=asked.seconds)),
        "accel, 2 processes": (served.sweep, Method(seconds=asked.seconds, processes=2)),
        "accel, shared memory": (served.sweep, Method(seconds=asked.seconds, shared_memory=True)),
        "perf_analyzer": (perf_analyzer.sweep, Method(seconds=asked.seconds)),
    }
    rows: list[dict[str, Any]] = []
    with serve(logs / "run" / "repositories" / "null@cpu", logs) as (running, manifest):
        feeds = [read_points(running.root, manifest)["opt"].inputs]
        for concurrency in (1, 4, 16, 64):
            for name, (sweep, method) in kinds.items():
                (point,) = sweep(
                    running.endpoint,
                    manifest.models[0],
                    feeds,
                    [Load(concurrency=concurrency)],
                    log=logs / "load.log",
                    inputs=manifest.inputs,
                    method=method,
                )
                rows.append({"concurrency": concurrency, "generator": name, "point": to_json(point)})
                print(
                    f"{concurrency:>3} clients  {name:<22} {point.throughput_per_s:>8.0f} requests/s  "
                    f"p50 {point.p50_ms:.3f} ms  {'stable' if point.stable else 'unstable'}",
                    flush=True,
                )
    best = {name: max(r["point"]["throughput_per_s"] for r in rows if r["generator"] == name) for name in kinds}
    return {"triton": running.endpoint.release, "best_requests_per_s": best, "rows": rows}


def agree(asked: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Ours and perf_analyzer in turn on one endpoint: their ratios in throughput and median latency."""
    rows = []
    with serve(asked.run / "repositories" / asked.variant, logs) as (running, manifest):
        feeds = [read_points(running.root, manifest)["opt"].inputs]
        how = {"log": logs / "load.log", "inputs": manifest.inputs, "method": Method(seconds=asked.seconds)}
        for concurrency in (1, 4):
            found: dict[str, list[Any]] = {"accel": [], "perf_analyzer": []}
            for number in range(asked.rounds):
                order = [("accel", served.sweep), ("perf_analyzer", perf_analyzer.sweep)]
                for name, sweep in order if number % 2 else reversed(order):
                    load = [Load(concurrency=concurrency)]
                    found[name] += sweep(running.endpoint, manifest.models[0], feeds, load, **how)  # type: ignore[arg-type]
            row: dict[str, Any] = {"concurrency": concurrency}
            for figure in ("throughput_per_s", "p50_ms"):
                ours, theirs = ([getattr(p, figure) for p in found[name]] for name in found)
                ratio, low, high = ratio_interval(ours, theirs)
                row[figure] = {"accel": ours, "perf_analyzer": theirs, "ratio": ratio, "ratio_ci": [low, high]}
                print(
                    f"{concurrency:>3} clients  {figure:<17} accel {np.median(ours):.2f}  perf_analyzer "
                    f"{np.median(theirs):.2f}  ratio {ratio:.3f} [{low:.3f}, {high:.3f}] (within 0.95 to 1.05)",
                    flush=True,
                )
            rows.append(row)
    return {"triton": running.endpoint.release, "variant": asked.variant, "rows": rows}


def overhead(asked: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """A served call beside the same files in the same session in process, in turn: the ratio of their medians."""
    with serve(asked.run / "repositories" / asked.variant, logs) as (running, manifest):
        opt = read_points(running.root, manifest)["opt"].inputs
        write_feeds(logs / "feeds.npz", {"b1": opt})
        files = running.root / manifest.models[0] / str(manifest.version) / "artifact"
        if not files.is_dir():
            raise SystemExit(
                f"{asked.variant} is served by its native backend: the same session is the Python backend's"
            )
        with (
            Worker(logs / "inprocess.log", threads=THREADS, timeout_s=600) as worker,
            Generator(running.endpoint.grpc, log=logs / "load.log") as generator,
        ):
            worker.call(open_timed, manifest.artifact, files, THREADS, "latency", logs / "feeds.npz", ("b1",))
            generator.open(manifest.models[0], fit_feeds([opt], manifest.inputs))
            inside, outside = [], []
            for number in range(asked.rounds + 1):
                times = worker.call(time_round, "latency", "b1", 0, asked.calls).times_ns
                generator.start(Load(concurrency=1))
                window = generator.window(0.0, least=asked.calls)
                generator.stop()
                if number:  # the first round warms both
                    inside.append(float(np.median(times)) / 1e6)
                    outside.append(float(np.median(window.latency_ms)))
    ratio, low, high = ratio_interval(outside, inside)
    print(
        f"{asked.variant}: in process {np.median(inside):.2f} ms, served {np.median(outside):.2f} ms, "
        f"ratio {ratio:.3f} [{low:.3f}, {high:.3f}] (<= 1.10 for a model of 30 ms and more)"
    )
    return {
        "triton": running.endpoint.release,
        "variant": asked.variant,
        "inprocess_ms": inside,
        "served_ms": outside,
        "ratio": ratio,
        "ratio_ci": [low, high],
    }


def neighbours(asked: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """How far a sample's answer beside others lies from its answer alone, padded as there and not padded at all."""
    source = source_of(asked.run)
    if source.mask is None:
        raise SystemExit(f"{source.name} has no mask: its samples have one length")
    batches = list(read_feeds(stored(asked.run, "source") / "gate.npz").values())[: asked.batches]
    rows = []
    for root in sorted((asked.run / "repositories").iterdir()):
        if not (root / manifests.FILENAME).exists() or "+" in root.name or root.name.startswith("null"):
            continue
        with serve(root, logs) as (running, manifest):
            found = {
                "triton": running.endpoint.release,
                "variant": root.name,
                "twin": manifest.models[0] in running.python_models,
            }
            found |= _alone_and_together(running.endpoint, manifest, source, batches, logs)
        print(
            f"{root.name:<28} beside others {_shown(found['beside_others_db']):>9}   "
            f"and padded {_shown(found['beside_others_and_padded_db']):>9}",
            flush=True,
        )
        rows.append(found)
    return {"samples": sum(len(next(iter(b.values()))) for b in batches), "rows": rows}


def _alone_and_together(
    endpoint: server.Endpoint, manifest: manifests.Manifest, source: ModelSource, batches: Sequence[Feed], logs: Path
) -> dict[str, Any]:
    names = [spec.name for spec in manifest.outputs]
    together: dict[str, Feed] = {}
    padded: dict[str, Feed] = {}
    cut: dict[str, Feed] = {}
    short: dict[str, Feed] = {}
    masks, short_masks = {}, {}
    assert source.mask is not None
    hidden = next(spec.dims[1] for spec in source.inputs if spec.name == source.mask)
    axes = {spec.name: [i for i, dim in enumerate(spec.dims) if dim == hidden] for spec in manifest.outputs}

    def ask(feed: Feed) -> dict[str, np.ndarray]:
        return infer(endpoint, manifest.models[0], fit_inputs(feed, manifest.inputs), names)

    for number, batch in enumerate(batches):
        whole = ask(batch)
        for index in range(len(batch[source.mask])):
            key = f"{number * 100 + index}"
            row = {name: value[index : index + 1] for name, value in batch.items()}
            length = int(row[source.mask].sum())
            trimmed = {name: value[:, :length] for name, value in row.items()}
            together[key] = {name: value[index : index + 1] for name, value in whole.items()}
            padded[key] = ask(row)
            cut[key] = ask(trimmed)
            short[key] = {
                name: value.take(range(length), axis=axes[name][0]) if axes[name] else value
                for name, value in together[key].items()
            }
            masks[key], short_masks[key] = row[source.mask], trimmed[source.mask]
    dims = tuple(str(d) for d in next(s.dims for s in source.inputs if s.name == source.mask))

    def distance(
        truth: Mapping[str, Feed], answers: Mapping[str, Feed], kept: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        compared = parity.compare(truth, answers, outputs=manifest.outputs, masks=kept, mask_dims=dims, gate={})
        return {row.name: row.sqnr_db for row in compared.outputs}

    return {
        "beside_others_db": distance(padded, together, masks),
        "beside_others_and_padded_db": distance(cut, short, short_masks),
    }


def _shown(figures: Mapping[str, float | None]) -> str:
    known = [value for value in figures.values() if value is not None]
    return f"{min(known):.1f} dB" if known else "exact"


def infer(endpoint: server.Endpoint, model: str, feed: Feed, outputs: Sequence[str]) -> dict[str, np.ndarray]:
    """Send one request."""
    from tritonclient import grpc
    from tritonclient.utils import np_to_triton_dtype

    tensors = [grpc.InferInput(name, value.shape, np_to_triton_dtype(value.dtype)) for name, value in feed.items()]
    for tensor, value in zip(tensors, feed.values(), strict=True):
        tensor.set_data_from_numpy(np.ascontiguousarray(value))
    with grpc.InferenceServerClient(endpoint.grpc) as client:
        result = client.infer(model, tensors)
    return {name: result.as_numpy(name) for name in outputs}


def soak(asked: argparse.Namespace, logs: Path) -> dict[str, Any]:
    """Random batch sizes and lengths for minutes: failures, growth of memory, every response against its reference."""
    source = source_of(asked.run)
    feeds, answers = _slices(asked.run, asked.seed)
    with serve(asked.run / "repositories" / asked.variant, logs) as (running, manifest):
        assert manifest.parity is not None, "the gate never saw this variant"
        held = manifest.parity.gate
        # A task metric speaks of the whole gate set; of single responses its floor at each shape does.
        gate = {"sqnr_db": held.get("sqnr_db", held.get("shape_db", parity.TASK_SHAPE_FLOOR_DB))}
        gate |= {name: value for name, value in held.items() if name == "agreement"}
        dims = next((tuple(str(d) for d in s.dims) for s in source.inputs if s.name == source.mask), ())
        expected = Expected(answers, manifest.outputs, gate, source.mask, dims)
        most = manifest.max_batch_size or 16
        fitted = fit_feeds(feeds, manifest.inputs)
        windows: list[Window] = []
        memory: list[float] = []
        with Generator(running.endpoint.grpc, log=logs / "load.log", timeout_s=300) as generator:
            generator.open(manifest.models[0], fitted, check=expected.for_load(fitted), seed=asked.seed)
            generator.start(Load(concurrency=asked.concurrency))
            end = time.monotonic() + 60 * asked.minutes
            while time.monotonic() < end:
                windows.append(generator.window(min(10.0, 6 * asked.minutes)))
                memory.append(use(running.endpoint)[1])
                print(f"{len(windows):>4}  {len(windows[-1].answered):>6} answers  {memory[-1]:.0f} MiB", flush=True)
            generator.stop()
            checked, worst = generator.worst()
            failures, error = generator.failures, generator.error
    verdict = expected.judge(fitted, worst)
    settled = memory[len(memory) // 10]
    sizes = sorted({next(iter(f.values())).shape[0] for f in feeds})
    found = {
        "triton": running.endpoint.release,
        "variant": asked.variant,
        "minutes": asked.minutes,
        "requests": sum(len(w.rows) for w in windows),
        "failures": failures,
        "error": error,
        "checked": checked,
        "gate": gate,
        "within_gate": verdict.passed,
        "reasons": verdict.reasons,
        "worst_responses": to_json(verdict.outputs),
        "batch_sizes": sizes,
        "lengths": sorted({f[source.inputs[0].name].shape[-1] for f in feeds}),
        "rss_mib": memory,
        "rss_growth": memory[-1] / settled - 1,
        "largest_batch": most,
    }
    worst_db = {row.name: row.sqnr_db for row in verdict.outputs}
    print(f"{found['requests']} requests, {failures} failures (0), {checked} responses checked, batch sizes {sizes}")
    print(
        f"worst responses together {_shown(worst_db)} (gate {gate}): {'within' if verdict.passed else verdict.reasons}"
    )
    print(f"memory {settled:.0f} → {memory[-1]:.0f} MiB, {100 * found['rss_growth']:+.1f} % (<= 5 %)")
    return found


def _slices(run: Path, seed: int) -> tuple[list[Feed], list[Feed]]:
    """Return requests cut at random from the gate samples and shape points of a run, and what the reference answers."""
    drawn = np.random.default_rng(seed)
    samples = stored(run, "source")
    feeds = read_feeds(samples / "gate.npz") | read_feeds(samples / "shapes.npz")
    truth = read_feeds(stored(run, "reference") / "reference.npz")
    points = [name for name in ("min", "odd", "opt", "max") if name in feeds]
    numbered = [name for name in feeds if name not in points]
    chosen = points + [numbered[i] for i in drawn.permutation(len(numbered))[: SLICE_FEEDS - len(points)]]
    asked: list[Feed] = []
    answers: list[Feed] = []
    for name in chosen:
        rows = len(next(iter(feeds[name].values())))
        size = int(drawn.integers(1, 1 + min(rows, 2 if name == "max" else 8)))
        first = int(drawn.integers(0, 1 + rows - size))
        asked.append({k: v[first : first + size] for k, v in feeds[name].items()})
        answers.append({k: v[first : first + size] for k, v in truth[name].items()})
    return asked, answers


# ---------------------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = {kind.__name__: kind for kind in (ceiling, agree, overhead, neighbours, soak)}
    parser.add_argument("name", choices=kinds)
    parser.add_argument("--run", type=Path, default=Path("runs/bert"))
    parser.add_argument("--variant", default="ort@cpu")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=12, help="calls of each round of overhead")
    parser.add_argument("--batches", type=int, default=6, help="batches of gate samples for neighbours")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="accel-served-") as logs:
        found = kinds[asked.name](asked, Path(logs))
    machine = hardware.detect()
    packages = ("accel", "tritonclient", "grpcio", "numpy", "onnxruntime", "openvino", "torch")
    document = {
        "benchmark": asked.name,
        "date": time.strftime("%Y-%m-%d"),
        "hardware": {"id": machine.id, **to_json(machine)},
        "versions": {name: version(name) for name in packages},
        **found,
    }
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / f"served_{asked.name}.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
