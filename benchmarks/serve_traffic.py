"""Real requests through real servers: padded to one length, joined in order of arrival, grouped by length or shape.

    accel convert minilm --targets torch,openvino-fp32 --objective traffic -o runs/minilm
    python benchmarks/serve_traffic.py runs/minilm --variant openvino-fp32@cpu [--rounds 7] [--seconds 2.5] [--out FILE]
    python benchmarks/serve_traffic.py --picture docs/benchmarks/serve_traffic.png

The requests are the run's gate samples (up to 256), one sentence each, drawn at random by closed-loop clients. One
artifact of the run is served by the embedded server in these ways, each by a server of its own; one at a time is under
load, in an order drawn anew for each round:

    fixed     clients pad to the typical length (``--length``; 128 in most of the zoo); requests of one shape are
              merged. A sweep goes before: instances, threads of each and largest batch, every combination on a server
              of its own for one window a load; the two with most requests per second at each load take part in the
              rounds
    eager     the source itself in PyTorch (the run's ``torch@cpu``), padded alike: one instance with all threads,
              without merging, as people run it, and in batches of 8
    arrival   clients do not pad; the server joins up to the profile's largest batch in order of arrival, padded to the
              longest of each
    grouped   clients do not pad; the server groups by length (docs/traffic.md): the repository as accel emits it, but
              that no texts share rows
    packed    clients do not pad; texts share rows: where accel emits it so
    trimmed   as accel emits it, by clients that pad to the typical length: the server trims by the mask

Of a model without a mask (pictures of several sizes, sound) nothing is padded, and there is no sweep:

    accel convert pp-ocr-det --targets openvino-fp32 --bench none -o runs/det   # benchmarks/utterances.py: sound
    python benchmarks/serve_traffic.py runs/det --variant openvino-fp32@cpu --out docs/benchmarks/serve_pictures.json

    single    the server has no dynamic batching: each request is a call
    limited   it has, and batches of one: what accel emits where larger batches gain nothing
    merged    the server's own dynamic batching: requests of one shape that come one after another share a call
    queued    the model's own queue, as ``grouped``, and each request is a call: the smallest first
    grouped   the repository as accel emits it: all that wait are grouped by shape

Answers are held against those of the same artifact in process to each sentence alone, at its own length: a share of
them while they come. Run it on a quiet machine: with two cores and two loads the sweep takes 24 windows and 12 starts,
a round at most 18 windows; 7 rounds of 2.5 s some 12 minutes in all.
"""

import argparse
import json
import random
import shutil
import statistics
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from traffic import opened

from accel.bench import stability
from accel.bench.expected import Expected
from accel.bench.load import END, Generator, Load, Window
from accel.bench.served import by_length
from accel.builders import targets
from accel.core import document, hardware
from accel.core.feeds import fit_inputs
from accel.core.values import Artifact, ModelSource
from accel.exporters import traffic
from accel.exporters.axes import extents
from accel.triton import config as configs, manifest as manifests, settings
from accel.triton.python_variant import write_python_variant
from accel.triton.servers import server
from accel.triton.servers.hosts import EMBEDDED_RELEASE
from accel.triton.settings import Settings

SETTLE_S, WARM_S = 0.4, 1.5
ANSWERS = 2
"""Answers of a window at least, times the clients: a few batches of sixteen say little of a slow way."""
SHARE = 0.02
FINALISTS = 2
"""Configurations of the sweep that take part in the rounds, at each load: one window may mistake the best."""
ARRIVAL = '''

def groups(feeds, grouping):
    """Join rows in order of arrival, each call padded to its longest."""
    rows = [
        RequestRow(number, row, length, bucket_of(grouping.lengths, length))
        for number, feed in feeds.items()
        for row, length in enumerate(own_lengths(feed[grouping.mask]).tolist())
    ]
    return [rows[i : i + grouping.rows] for i in range(0, len(rows), grouping.rows)]
'''
"""What the rival of the same repository does in place of grouping; ``joined`` pads to the longest of a group."""


@dataclass(frozen=True)
class Way:
    """One way to serve: its repository, whether clients pad, and which variant of the run it serves."""

    name: str
    root: Path
    padded: bool
    variant: str


def written(run: Path, variant: str, out: Path) -> Path:
    """Write a variant's repository for the Python backend of the embedded server."""
    name = variant + (".python" if (run / "repositories" / f"{variant}.python").is_dir() else "")
    write_python_variant((run / "repositories" / name).resolve(), out, release=EMBEDDED_RELEASE)
    return out


def by_arrival(grouped: Path, out: Path) -> Path:
    """Write the repository that joins requests in order of arrival."""
    manifest = manifests.read(grouped)
    shutil.copytree(grouped, out)
    shipped = out / manifest.models[0] / str(manifest.version) / "accel/triton/grouping.py"
    text = shipped.read_text()
    shipped.unlink()
    shipped.write_text(text + ARRIVAL)
    return out


def unpacked(emitted: Path, out: Path) -> Path:
    """Write the repository in which no texts share rows."""
    manifest = manifests.read(emitted)
    shutil.copytree(emitted, out)
    file = out / manifest.models[0] / str(manifest.version) / "artifact.json"
    spec = json.loads(file.read_text())
    del spec["grouping"]["packing"]
    file.unlink()
    file.write_text(json.dumps(spec))
    return out


def fixed(emitted: Path, out: Path, how: Settings, rows: int, *, warm: tuple[str, ...] = ("opt",)) -> Path:
    """Write the repository that answers requests in the shape they have, of at most ``rows`` rows.

    Args:
        warm: how the names of the warm-up samples that it keeps begin.
    """
    shutil.copytree(emitted, out)
    file = out / manifests.read(emitted).models[0] / "config.pbtxt"
    config = configs.parse(file.read_text())
    config.default_model_filename = "model.py"
    config.max_batch_size = rows
    for spec in config.input:
        spec.ClearField("allow_ragged_batch")
    kept = [s for s in config.model_warmup if s.name.startswith(warm) and s.batch_size <= rows]
    del config.model_warmup[:]
    config.model_warmup.extend(kept)
    settings.apply(config, how, cpu_threads=hardware.cpu_threads())
    file.unlink()
    file.write_text(configs.to_text(config))
    return out


def sweep_settings(cores: int, rows: int) -> list[Settings]:
    """List what a fixed configuration may be: instances, threads of each, and the largest batch."""
    counts = sorted({1 << i for i in range(cores.bit_length())} | {cores})
    return [
        Settings(instances, threads, batching=batch > 1, preferred=(batch,) if batch > 1 else ())
        for instances in counts
        for threads in counts
        if instances * threads <= 2 * cores
        for batch in sorted({1, min(8, rows), rows})
    ]


def finalists(swept: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> list[str]:
    """Return the ``FINALISTS`` of a sweep with most requests per second at each load, in the sweep's order."""
    levels = next(iter(swept.values()))
    best = {
        name
        for n in levels
        for name in sorted(swept, key=lambda name: swept[name][n]["per_s"], reverse=True)[:FINALISTS]
    }
    return [name for name in swept if name in best]


def answers(artifact: Artifact, folder: Path, requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Return the artifact's answers to each request alone, at its own length."""
    builder = targets.discover()[artifact.variant.target.name]
    session = builder.open(artifact, folder, threads=hardware.cpu_threads(), mode="latency")
    found = [session.run(request) for request in requests]
    session.close()
    return found


def widened(source: ModelSource, feed: Mapping[str, np.ndarray], specs: Any, size: int) -> dict[str, np.ndarray]:
    """Pad a feed, or the answer to it, with zeros to a size of the length axis."""
    axis = str(traffic.length_axis(source))
    return {s.name: traffic._pad(feed[s.name], s, axis, size) if axis in s.dims else feed[s.name] for s in specs}


class Clients:
    """Requests of a run to servers of several ways, and what its variants answer to each alone.

    Args:
        run: the run's folder.
        slots: most clients at a time.
        length: what clients pad to that pad; None for the typical length of the model.
    """

    def __init__(self, run: Path, slots: int, length: int | None) -> None:
        self.source, self.requests = opened(run)
        self._run, self._slots, self._alone = run, slots, dict[str, list[dict[str, np.ndarray]]]()
        self.lengths = [traffic.length_of(self.source, request) for request in self.requests]
        axes = extents(self.source.inputs, self.source.profile)
        self.typical = (length or axes[str(traffic.length_axis(self.source))].opt) if self.source.mask else 0

    def expected(self, way: Way) -> tuple[Expected, list[dict[str, np.ndarray]]]:
        """Return what is sent, and what must be answered."""
        source = self.source
        if way.variant not in self._alone:
            record = next(v for v in document.read(self._run).variants if v.id == way.variant)
            folder = (self._run / "variants" / way.variant).resolve()
            self._alone[way.variant] = answers(record.to_artifact(), folder, self.requests)
        feeds, truth = self.requests, self._alone[way.variant]
        if source.mask is not None:
            least = max(self.typical, *self.lengths) if way.padded else 0
            sizes = [max(least, n) for n in self.lengths]
            feeds = [widened(source, r, source.inputs, n) for r, n in zip(feeds, sizes, strict=True)]
            truth = [widened(source, a, source.outputs, n) for a, n in zip(truth, sizes, strict=True)]
        mask_dims = next((tuple(map(str, s.dims)) for s in source.inputs if s.name == source.mask), ())
        contract = manifests.read(way.root).inputs
        return Expected(truth, source.outputs, {}, source.mask, mask_dims), [fit_inputs(f, contract) for f in feeds]

    @contextmanager
    def of(self, way: Way, address: str, log: Path) -> Iterator[Generator]:
        """Give clients of a server, which hold a share of its answers against what is expected."""
        expected, feeds = self.expected(way)
        with Generator(address, log=log, timeout_s=60) as generator:
            generator.open(self.source.name, feeds, slots=self._slots, check=expected.for_load(feeds), share=SHARE)
            yield generator


def looked(generator: Generator, clients: int, settle_s: float, seconds: float) -> tuple[Window, dict[str, Any]]:
    """Put a server under load, and return a window and its figures; it lasts until ``ANSWERS`` a client have come."""
    generator.start(Load(concurrency=clients))
    generator.window(settle_s, least=1)
    window = generator.window(seconds, least=ANSWERS * clients)
    failures = generator.failures
    generator.stop()
    generator.start(Load(concurrency=1))  # what is cancelled is computed to its end: the next way waits for that
    generator.window(0.0, least=1)
    generator.stop()
    p50, p99 = (stability.percentile(window.latency_ms, q) for q in (50, 99))
    moments = [window.begin_ns, *sorted(window.answered[:, END]), window.end_ns]
    return window, {
        "per_s": len(window.answered) / window.seconds,
        "p50_ms": p50,
        "p99_ms": p99,
        "longest_pause_s": float(np.diff(moments).max()) / 1e9,
        "client_cpu_s": window.cpu_s / window.seconds,
        "failures": failures,
    }


def sweep(
    clients: Clients, ways: Sequence[Way], concurrency: Sequence[int], seconds: float, scratch: Path
) -> dict[str, dict[int, dict[str, Any]]]:
    """Look at each way once under every load, on a server that runs alone."""
    found: dict[str, dict[int, dict[str, Any]]] = {way.name: {} for way in ways}
    for way in random.Random(0).sample(list(ways), len(ways)):
        log = scratch / f"sweep-{way.root.name}.log"
        with (
            server.start(way.root, via="embedded", log=log, allow_changed=True) as running,
            clients.of(way, running.endpoint.grpc, scratch / "load.log") as generator,
        ):
            looked(generator, max(concurrency), 0.0, WARM_S)
            for n in concurrency:
                found[way.name][n] = looked(generator, n, SETTLE_S, seconds)[1]
    return found


def ways_by_length(
    run: Path,
    variant: str,
    eager: str,
    emitted: Path,
    rows: int,
    clients: Clients,
    loads: Sequence[int],
    seconds: float,
) -> tuple[list[Way], dict[str, dict[int, dict[str, Any]]]]:
    """Return the ways to serve a model with a mask, those of the sweep that take part among them, and the sweep."""
    scratch = emitted.parent
    tried = [
        Way(f"fixed, {how}", fixed(emitted, scratch / f"fixed{number}", how, rows), True, variant)
        for number, how in enumerate(sweep_settings(hardware.cpu_threads(), rows))
    ]
    swept = sweep(clients, tried, loads, seconds, scratch)
    made = [way for way in tried if way.name in finalists(swept)]
    if eager:
        source_itself = written(run, eager, scratch / "eager")
        merged = min(8, rows)
        for name, how in {
            "eager, no merging": Settings(batching=False),
            f"eager, batches of {merged}": Settings(preferred=(merged,)),
        }.items():
            root = scratch / name.replace(" ", "_").replace(",", "")
            made.append(Way(name, fixed(source_itself, root, how, rows), True, eager))
    packs = (promised := manifests.read(emitted).grouping) is not None and promised.packing is not None
    grouped = unpacked(emitted, scratch / "unpacked") if packs else emitted
    made.append(Way("arrival", by_arrival(grouped, scratch / "arrival"), False, variant))
    made += [Way("packed", emitted, False, variant)] if packs else []
    return [*made, Way("grouped", grouped, False, variant), Way("trimmed", emitted, True, variant)], swept


def ways_by_shape(variant: str, grouped: Path, rows: int) -> list[Way]:
    """Return the ways to serve a model without a mask; all meet the same shapes before their server is ready."""
    ways = {"single": Settings(batching=False), "limited": Settings(preferred=(1,)), "merged": Settings()}
    roots = {n: fixed(grouped, grouped.parent / n, how, rows, warm=("opt", "shape")) for n, how in ways.items()}
    queued = shutil.copytree(grouped, grouped.parent / "queued")
    settings.rewrite(queued, lambda config: settings.limit_batches(config, 1))
    roots |= {"queued": queued, "grouped": grouped}
    return [Way(name, root, False, variant) for name, root in roots.items()]


def measure(
    run: Path, variant: str, eager: str, concurrency: list[int], length: int | None, rounds: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """Put every way under every load, round after round, and yield all windows' figures so far after each.

    The last has as well what the answers were worth.
    """
    clients = Clients(run, max(concurrency), length)
    windows: dict[str, dict[int, list[Window]]] = {}
    rows: dict[str, dict[int, list[dict[str, Any]]]] = {}
    with tempfile.TemporaryDirectory() as held, ExitStack() as stack:
        scratch = Path(held)
        grouped = written(run, variant, scratch / "grouped")
        promised = manifests.read(grouped)
        if (grouping := promised.grouping) is None:
            raise SystemExit(f"{variant} is not grouped: {promised.ungrouped}")
        swept: dict[str, dict[int, dict[str, Any]]] = {}
        if grouping.mask is None:
            made = ways_by_shape(variant, grouped, grouping.rows)
        else:
            given = run, variant, eager, grouped, grouping.rows, clients
            made, swept = ways_by_length(*given, concurrency, seconds)
        running: dict[Path, Any] = {}
        generators: dict[str, Generator] = {}
        for way in made:
            if way.root not in running:
                log = scratch / f"{way.root.name}.log"
                running[way.root] = stack.enter_context(
                    server.start(way.root, via="embedded", log=log, allow_changed=True)
                )
            address = running[way.root].endpoint.grpc
            generators[way.name] = stack.enter_context(clients.of(way, address, scratch / "load.log"))
            rows[way.name] = {n: [] for n in concurrency}
            windows[way.name] = {n: [] for n in concurrency}
        lengths = clients.lengths
        what = "tokens" if clients.source.mask else "values"
        shapes = Counter("x".join(map(str, next(iter(r.values())).shape[1:])) for r in clients.requests)
        described = {
            "run": run.name,
            "model": clients.source.name,
            "weights": clients.source.weights,
            "variant": variant,
            "eager": eager or None,
            "requests": len(lengths),
            "padded_to": clients.typical or None,
            what: {"mean": statistics.mean(lengths), "median": statistics.median(lengths), "longest": max(lengths)},
            **({"lengths": grouping.lengths} if clients.source.mask else {"shapes": shapes, "rows": grouping.rows}),
            "sweep": swept,
        }
        turns = [(way, n) for way in made for n in concurrency]
        for number in range(-1, rounds):  # the first is not counted: every shape is met
            random.Random(number).shuffle(turns)
            for way, n in turns:
                window, figures = looked(generators[way.name], n, WARM_S if number < 0 else SETTLE_S, seconds)
                if number >= 0:
                    windows[way.name][n].append(window)
                    rows[way.name][n].append(figures)
            if number >= 0:
                yield described | timed(rows, windows, lengths)
        worst: dict[str, Any] = {}
        for way in made:
            expected, feeds = clients.expected(way)
            verdict = expected.judge(feeds, generators[way.name].worst()[1])
            worst[way.name] = {row.name: row.sqnr_db for row in verdict.outputs}
    yield described | timed(rows, windows, lengths) | {"worst_sqnr_db_against_alone": worst}


def timed(
    rows: Mapping[str, Mapping[int, list[dict[str, Any]]]],
    windows: Mapping[str, Mapping[int, list[Window]]],
    lengths: Sequence[int],
) -> dict[str, Any]:
    """Return the figures of all rounds until now: each window's, and percentiles over all of a way."""
    return {
        "rounds": rows,
        "p99_ms": {
            way: {
                n: stability.percentile(np.concatenate([window.latency_ms for window in found]), 99)
                for n, found in loads.items()
            }
            for way, loads in windows.items()
        },
        "by_length": {
            way: {n: by_length(found, lengths) for n, found in loads.items()} for way, loads in windows.items()
        },
    }


def keep(out: Path, found: Mapping[str, Any]) -> None:
    """Write a model's figures in place of those of an earlier time on this hardware."""
    row = {"hardware": hardware.detect().id, "threads": hardware.cpu_threads(), **found}
    same = ("hardware", "model", "variant")
    kept = json.loads(out.read_text()) if out.exists() else []
    kept = [r for r in kept if any(r[name] != row[name] for name in same)]
    out.write_text(json.dumps([*kept, row], indent=1) + "\n")


def show(found: Mapping[str, Any]) -> None:
    """Print requests per second and p99 of each way, and what grouping gains over the others."""
    for n in next(iter(found["rounds"].values())):
        kind = (
            f"{found['tokens']['mean']:.1f} tokens on average"
            if "tokens" in found
            else f"{len(found['shapes'])} shapes"
        )
        print(f"\n{found['model']} {found['variant']}, {n} at a time, {kind}")
        emitted = "packed" if "packed" in found["rounds"] else "grouped"
        own = [1 / r["per_s"] for r in found["rounds"][emitted][n]]
        for way, loads in found["rounds"].items():
            per_s = statistics.median(r["per_s"] for r in loads[n])
            tail = found["p99_ms"][way][n]
            pause = statistics.median(r["longest_pause_s"] for r in loads[n])
            ratio = stability.ratio_interval([1 / r["per_s"] for r in loads[n]], own) if len(own) > 1 else None
            gain = f"{emitted} is {ratio[0]:.2f} [{ratio[1]:.2f}, {ratio[2]:.2f}] times" if ratio else ""
            p99 = f"{tail:8.1f}" if tail is not None else "       —"
            print(f"  {way:<48} {per_s:8.1f} /s   p99 {p99} ms   longest pause {pause:.2f} s   {gain}")


def medians(row: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return load → way → median requests per second, of several settings of a way the best."""
    names = {
        "eager": "PyTorch, padded",
        "fixed": "padded",
        "arrival": "in order of arrival",
        "grouped": "grouped by length",
        "packed": "in shared rows",
    }
    names = {way: name for way, name in names.items() if any(w.partition(",")[0] == way for w in row["rounds"])}
    found: dict[str, dict[str, float]] = {}
    for way, loads in row["rounds"].items():
        if (name := names.get(way.partition(",")[0])) is not None:
            for n, looks in loads.items():
                best = found.setdefault(str(n), dict.fromkeys(names.values(), 0.0))
                best[name] = max(best[name], statistics.median(look["per_s"] for look in looks))
    return found


def draw(rows: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Draw requests per second over the best that pads to one length, each model at its heaviest load."""
    import plotly.graph_objects as plotly

    figure = plotly.Figure()
    machine, _ = Counter(row["hardware"] for row in rows).most_common(1)[0]  # the one with most models
    rows = [row for row in rows if row["hardware"] == machine]
    heaviest = {row["model"]: medians(row)[max(medians(row), key=int)] for row in rows}
    for way in max(heaviest.values(), key=len):
        gains = {model: by_way[way] / by_way["padded"] for model, by_way in heaviest.items() if way in by_way}
        told = [f"{gain:.1f}×" for gain in gains.values()]
        figure.add_bar(name=way, x=list(gains), y=list(gains.values()), text=told, textposition="outside")
    figure.update_layout(
        template="plotly_white",
        height=400,
        title="Requests per second as served, over the best configuration that pads every text to 128",
        yaxis_title="times",
        legend={"orientation": "h", "y": -0.12},
        margin={"l": 50, "r": 10, "t": 50, "b": 10},
    )
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch, "page.html")
        figure.write_html(page, include_plotlyjs=True, config={"displayModeBar": False})
        command = ["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", "--window-size=900,420"]
        waits = ["--virtual-time-budget=5000", f"--screenshot={out.resolve()}", page.as_uri()]
        subprocess.run([*command, *waits], check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?")
    parser.add_argument("--variant", default="openvino-int8@cpu", help="id of what is served")
    parser.add_argument("--eager", help="the source itself, of the same run; '' leaves it out  [default: torch@cpu]")
    parser.add_argument("--concurrency", default="16,64", help="clients at a time, separated by commas")
    parser.add_argument("--length", type=int, help="what clients pad to  [default: the model's typical length]")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.5)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/serve_traffic.json"))
    parser.add_argument("--picture", type=Path, help="only draw what --out holds into this .png (needs chromium)")
    asked = parser.parse_args()
    if asked.picture is not None:
        draw(json.loads(asked.out.read_text()), asked.picture)
        return
    if asked.run is None:
        parser.error("a run's folder is missing")
    ids = {v.id for v in document.read(asked.run).variants if v.status == "ok"}
    eager = asked.eager
    if eager is None:
        eager = "torch@cpu" if opened(asked.run)[0].mask else ""
    if missing := {asked.variant, eager} - ids - {""}:
        parser.error(f"{asked.run} has no {' and no '.join(sorted(missing))} that passed")
    levels = [int(n) for n in asked.concurrency.split(",")]
    partial = asked.out.with_suffix(".partial.json")  # a run takes long: what was measured before an interruption
    for found in measure(asked.run, asked.variant, eager, levels, asked.length, asked.rounds, asked.seconds):
        partial.write_text(json.dumps(found, indent=1) + "\n")
    show(found)
    keep(asked.out, found)
    partial.unlink()


if __name__ == "__main__":
    main()
