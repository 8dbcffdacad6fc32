"""Feed broken files of every kind to every command that reads them, and see that each is an error with a message.

    python benchmarks/fuzz.py --inputs 10000 -o fuzz.json [--breakers FOLDER]

Files that accel itself wrote (a run with repositories and a kit, made first from a small ONNX model), models of every
framework and Hugging Face folders are broken by flipped, cut, repeated and replaced bytes, by odd values at random
places of JSON, and by odd words. Commands run in this process, as the command line calls them, in children that each
do many; what a command does in a worker process is done by the same task, in the child. A finding is: an exception
that is no message of accel's or of the command line's, a crash, more than ``LIMIT_S`` seconds, a write outside the
child's own folder, a file left in the temporary one, or more than ``MOST_BYTES`` of memory. What a library raises in a
worker is a message of accel's, and counted as such (``library``); what crashes or hangs one is tried again by the
command itself, which must end with a message (``worker``). Every input that gives a finding is kept.
"""

import argparse
import contextlib
import copy
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIMIT_S, MOST_BYTES = 60, 4 << 30
BATCH = 250
FRAMEWORKS = ("exported program", "torchscript", "saved model", "frozen graph", "keras", "h5", "config", "weights")
"""Kinds of files that a framework reads, in a worker process: these have children of their own, and are fewer."""
FRAMEWORK_SHARE = 0.12
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 31, 1 << 63, 10**400, 1e400, -0.0, "", "a" * 300, "../x", "/etc/passwd", "\0", "~nosuch/x",
    "ort", [], {}, [[]], {"a": 1}, "9**9**9", "%s", "é", "\ud800", "1x128", "a:1x2", [None], "grpc://x:1",
)  # fmt: skip
WORDS = (
    b"", b"\0", b"-1", b"0", b"99999999999999999999", b"nan", b"[]", b"{}", b"../", b"/etc/passwd", b"\xff\xfe",
    b"TYPE_INT64", b"TYPE_STRING", b"dims: [ -1, -1 ]", b"KIND_GPU", b"&a [*a]", b"input", b"output", b"a" * 70000,
    b'ensemble_scheduling { step { model_name: "small" } }', b"\x1f\x8b\x08", b"PK\x03\x04", b"\x08" * 9,
)  # fmt: skip


class Hang(BaseException):
    """A command that runs too long."""


def small_model(path: Path) -> None:
    """Write the model that everything else is made from."""
    sys.path.insert(0, str(Path(__file__).parent))
    import kills

    kills.write_model(path)


def seeds(folder: Path) -> None:
    """Write one sound example of everything that accel reads."""
    import numpy as np
    import openvino as ov

    small_model(folder / "small.onnx")
    ov.save_model(ov.convert_model(folder / "small.onnx"), folder / "small.xml")
    line = [sys.executable, "-m", "accel", "convert", str(folder / "small.onnx"), "--targets", "ort,null,trt-fp16"]
    line += ["--min-shape", "ids:1x1", "--shape", "ids:1x5", "--max-shape", "ids:4x9", "--range", "ids=0:49"]
    line += ["--random-samples", "--threads", "1", "--round-s", "0.05", "-o", str(folder / "run"), "--quiet"]
    done = subprocess.run([*line, "--rounds", "3"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(folder / "run/.store")
    (folder / "job.yaml").write_text(
        "source: small.onnx\ntargets: [ort, openvino]\n"
        "min_shape: ['ids:1x1']\nshape: ['ids:1x5']\nmax_shape: ['ids:4x9']\n"
        "range: ['ids=0:49']\nrounds: 3\ntriton:\n  dynamic_batching: {max_queue_delay_microseconds: 100}\n"
        "gate: ['sqnr_db=40']\n"
    )
    np.savez(folder / "samples.npz", ids=np.zeros((4, 5), np.int64))
    (folder / "samples.jsonl").write_text('{"ids": [[1, 2, 3]]}\n' * 4)
    subprocess.run([sys.executable, __file__, "--models", str(folder)], check=True, capture_output=True)


def framework_seeds(folder: Path) -> None:
    """Write small models of torch, Hugging Face and TensorFlow."""
    import torch
    from transformers import BertConfig, BertModel

    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
    example = (torch.ones(2, 4),)
    torch.export.save(torch.export.export(net, example), folder / "program.pt2")
    torch.jit.save(torch.jit.trace(net, example), folder / "script.pt")
    config = BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16, architectures=["BertModel"],
    )  # fmt: skip
    BertModel(config).save_pretrained(folder / "hub")
    import tensorflow as tf
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    layers = [tf.keras.layers.Input((4,), name="x"), tf.keras.layers.Dense(3, activation="relu")]
    model = tf.keras.Sequential(layers)
    model.export(folder / "saved", verbose=False)
    model.save(folder / "model.keras")
    model.save(folder / "model.h5")
    called = tf.function(model).get_concrete_function(tf.TensorSpec((None, 4), tf.float32))
    frozen = convert_variables_to_constants_v2(called).graph.as_graph_def()
    (folder / "frozen.pb").write_bytes(frozen.SerializeToString())


def commands(folder: Path) -> dict[str, tuple[Path, list[list[str]]]]:
    """Return by kind of file what is broken, below ``folder``, and the commands that read it."""
    run = folder / "run"
    root, kit = run / "repositories/ort@cpu", run / "variants/trt-fp16@cuda/kit"
    model = next(p for p in root.iterdir() if (p / "config.pbtxt").exists())
    reads = [["lint", str(root)], ["verify", str(root)]]
    narrow = ["narrow", str(folder / "small.onnx"), "-o", str(folder / "out/narrow.onnx"), "--level", "interior"]

    def source(path: str) -> list[list[str]]:
        return [["@source", str(folder / path)]]

    return {
        "onnx": (folder / "small.onnx", [["@onnx", str(folder / "small.onnx")], *source("small.onnx"), narrow]),
        "ir": (folder / "small.xml", [["inspect", str(folder / "small.xml")]]),
        "run.json": (run / "run.json", [["report", str(run), "-o", str(folder / "out.html")], ["inspect", str(run)]]),
        "config of a model": (model / "config.pbtxt", reads),
        "manifest": (root / "manifest.json", [*reads, ["inspect", str(root / "manifest.json")]]),
        "reference": (root / "reference.npz", reads),
        "model of a repository": (model / "1/model.onnx", [["lint", str(root)]]),
        "kit": (kit / "kit.json", [["build", str(kit), "-o", str(folder / "out")]]),
        "kit's samples": (kit / "samples/gate.npz", [["build", str(kit), "-o", str(folder / "out")]]),
        "job": (folder / "job.yaml", [["@job", str(folder / "job.yaml")]]),
        "samples npz": (folder / "samples.npz", [["@samples", str(folder / "samples.npz")]]),
        "samples jsonl": (folder / "samples.jsonl", [["@samples", str(folder / "samples.jsonl")]]),
        "options": (folder / "job.yaml", [["@options"], ["@words", str(root)]]),
        "exported program": (folder / "program.pt2", source("program.pt2")),
        "torchscript": (folder / "script.pt", source("script.pt")),
        "saved model": (folder / "saved/saved_model.pb", source("saved")),
        "frozen graph": (folder / "frozen.pb", source("frozen.pb")),
        "keras": (folder / "model.keras", source("model.keras")),
        "h5": (folder / "model.h5", source("model.h5")),
        "config": (folder / "hub/config.json", source("hub")),
        "weights": (folder / "hub/model.safetensors", source("hub")),
    }


def broken(content: bytes, name: str, rng: random.Random) -> bytes:
    """Break the content of a file in one of many ways."""
    if name.endswith(".json") and rng.random() < 0.7:
        with contextlib.suppress(ValueError):
            document = json.loads(content)
            for _ in range(rng.choice((1, 1, 2, 5))):
                _replace(document, rng)
            return json.dumps(document).encode("utf-8", "surrogatepass")
    if name.endswith((".npz", ".pt2", ".pt", ".keras")) and rng.random() < 0.7:
        return _broken_archive(content, rng)
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = rng.choice(WORDS)
            case 3:
                data[at : at + rng.randrange(1, 40)] = rng.choice(WORDS)
            case 4:
                data[at:at] = data[rng.randrange(len(data) + 1) :][: rng.randrange(200)]
            case _:
                data[at : at + rng.randrange(1, 9)] = rng.randbytes(rng.randrange(9))
    return bytes(data)


def _replace(document: Any, rng: random.Random) -> None:
    """Put an odd value somewhere into a document, take something away, or repeat it."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            places.append((value, key))
            walk(inner)

    walk(document)
    if not places:
        return
    holder, key = rng.choice(places)
    match rng.randrange(4):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder[key:key] = copy.deepcopy(holder[key : key + 1]) * rng.choice((1, 50))
        case _:
            holder[key] = copy.deepcopy(rng.choice(ODD))


def _broken_archive(content: bytes, rng: random.Random) -> bytes:
    """Break one member of an archive and keep the archive sound."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        names = old.namelist()
        chosen = rng.choice(names)
        for name in names:
            data = old.read(name)
            if name == chosen:
                match rng.randrange(4):
                    case 0:
                        continue
                    case 1:
                        name = rng.choice(("../x.npy", "/x.npy", "x", "min/ids.npy", "a" * 300 + ".npy", ".npy"))
                    case 2 if name.endswith(".npy"):
                        data = data.replace(b"<i8", rng.choice((b"|O0", b"<f8", b"<U9", b">i8"))).replace(
                            b"(", rng.choice((b"(-1,", b"(99999999999,", b"(", b"[")), 1
                        )
                    case _:
                        data = broken(data, name, rng)
            new.writestr(name, data)
    return out.getvalue()


def call(line: list[str], rng: random.Random) -> None:
    """Run one command in this process; what it raises is for the caller."""
    from accel.cli import app

    if line[0] == "@job":
        from accel.run.job import assemble

        assemble({"out": Path("out")}, Path(line[1]), command="fuzz")
    elif line[0] == "@samples":
        from accel.exporters.user_samples import user_items
        from accel.run import kits

        user_items(line[1], kits.read(Path("run/variants/trt-fp16@cuda/kit")).source)
    elif line[0] == "@onnx":
        from accel.run import inspection

        inspection.inspect(Path(line[1]))
    elif line[0] == "@source":
        from accel.exporters.sources import recognise
        from accel.run import tasks

        tasks.source_of(recognise(line[1]))
    elif line[0] == "@options":
        some = [w for _ in range(rng.randrange(1, 4)) for w in (rng.choice(OPTIONS), odd_text(rng))]
        _assemble_words(odd_text(rng) if rng.random() < 0.3 else "small.onnx", some)
    elif line[0] == "@words":
        command, own, options = rng.choice(
            (
                ("narrow", ["small.onnx", "-o", "out/narrow.onnx"], ("--range", "--level", "--min-shape", "--runtime")),
                ("bench", ["nosuch"], ("--concurrency", "--rate", "--model", "--shape", "--range", "--via")),
                ("lint", [line[1]], ("--triton-release",)),
                ("inspect", [odd_text(rng) or "x"], ("--shape", "--range")),
                ("report", [odd_text(rng) or "x"], ("-o",)),
                ("build", [odd_text(rng) or "x"], ("-o", "--require-signature", "--toolchain")),
                ("verify", [odd_text(rng) or "x"], ("--backend-directory",)),
                ("serve", [odd_text(rng) or "x"], ("--via", "--backend-directory")),
            )
        )
        app([command, *own, rng.choice(options), odd_text(rng)], standalone_mode=False)
    else:
        app(line, standalone_mode=False)


OPTIONS = (
    "--shape", "--range", "--gate", "--targets", "--min-shape", "--max-shape", "--threads", "--samples", "--ints",
    "--rename-axes", "--multiple", "--objective", "--max-p99-ms", "--timeout", "--triton-release", "--model-name",
)  # fmt: skip
TEXTS = (
    "ids", "1x1", ":", "=", ",", "0", "-", "x", "99999999999999999999", "ids:1x5", "ids=0:49", "é", "\0", "~nosuch/x",
    "out/", "../", "1:16", "nan", "ort", "a" * 300,
)  # fmt: skip


def odd_text(rng: random.Random) -> str:
    """Return a word as somebody might mistype one."""
    return "".join(rng.choices(TEXTS, k=rng.randrange(5)))


def _assemble_words(source: str, words: Sequence[str]) -> None:
    """Assemble a job of a command line's words, as ``accel convert`` does before it starts."""
    from accel.cli.convert import JobCommand
    from accel.run.job import assemble

    command = JobCommand(name="convert", callback=lambda: None)
    context = command.make_context("convert", [source, *words])
    own = ("config", "as_json", "quiet", "verbose")
    given = {k: v for k, v in context.params.items() if v is not None and k not in own}
    assemble({**given, "out": Path("out")}, None, command="fuzz")


KEPT = ("accel-scratch-", ".accel-", "torchinductor_")
"""What a process keeps in the temporary folder until it ends."""


def _is_ours(error: BaseException) -> bool:
    """Say whether code of accel raised, rather than a library that it called."""
    raised = traceback.extract_tb(error.__traceback__)[-1].filename
    return str(Path(__file__).parent.parent / "accel") in raised


def child(folder: Path, seed: int, count: int, kinds: Sequence[str]) -> None:
    """Do ``count`` inputs, and print a line of JSON for each that is a finding, and one at the end."""
    import logging

    from accel.core.errors import AccelError

    logging.disable()
    rng = random.Random(seed)
    work = Path(tempfile.mkdtemp(prefix="fuzz-child-"))
    (work / "tmp").mkdir()
    tempfile.tempdir = os.environ["TMPDIR"] = str(work / "tmp")
    allowed = (str(work), "/dev/", "/proc/self")
    outside: list[str] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        paths: tuple[Any, ...] = ()
        if event == "open" and isinstance(arguments[0], str | bytes):
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            paths = arguments[:1] if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) else ()
        elif event in ("os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "shutil.rmtree"):
            paths = arguments[:1]
        elif event in ("os.rename", "os.link", "os.symlink", "shutil.copyfile", "shutil.move"):
            paths = arguments[1:2]
        for path in paths:
            with contextlib.suppress(Exception):
                text = os.path.abspath(os.fsdecode(path))  # noqa: PTH100  what is in a path does not matter here
                if not text.startswith(allowed) and "__pycache__" not in text:
                    outside.append(f"{event} {text}")

    def ring(*_: object) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, ring)
    shutil.copytree(folder, work / "seeds", copy_function=shutil.copy)
    for path in (work / "seeds").rglob("*"):
        path.chmod(path.stat().st_mode | 0o200)
    os.chdir(work / "seeds")
    table = commands(work / "seeds")
    sys.addaudithook(watch)
    counts: Counter[str] = Counter()
    for number in range(count):
        kind = rng.choice(kinds)
        path, lines = table[kind]
        whole = path.read_bytes()
        data = broken(whole, path.name, rng) if kind != "options" else whole
        line = list(rng.choice(lines))
        (folder / "last").write_bytes(data)
        print(json.dumps({"doing": [seed, number, kind]}), flush=True)
        outcome, detail = "answered", ""
        try:
            path.write_bytes(data)
            signal.alarm(LIMIT_S)
            begin = time.monotonic()
            outside.clear()
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                call(line, rng)
        except (AccelError, SystemExit):
            outcome = "refused"
        except Hang:
            outcome, detail = "hang", traceback.format_exc()
        except BaseException as error:  # noqa: BLE001  whatever it is, it is what is looked for
            if hasattr(error, "format_message") or type(error).__module__.startswith("click"):
                outcome = "refused"
            elif isinstance(error, OSError):
                outcome = "refused"  # as ``accel.cli.main`` does, with the file's name
            elif line[0] == "@source" and not _is_ours(error):
                outcome = "library"
            else:
                outcome, detail = "traceback", traceback.format_exc()
        finally:
            signal.alarm(0)
            took_s = time.monotonic() - begin
            path.write_bytes(whole)
            shutil.rmtree(work / "seeds/out", ignore_errors=True)
        if outside:
            outcome, detail = "wrote outside", "; ".join(outside[:5])
        if left := [p for p in (work / "tmp").iterdir() if not p.name.startswith(KEPT)]:
            outcome, detail = "left behind", ", ".join(p.name for p in left[:5])
            for item in left:
                shutil.rmtree(item) if item.is_dir() else item.unlink()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        if memory > MOST_BYTES:
            outcome, detail = "memory", f"{memory} bytes"
        counts[f"{kind}: {outcome}"] += 1
        if outcome not in ("answered", "refused"):
            kept = {"kind": kind, "line": line, "outcome": outcome, "detail": detail, "seed": seed, "number": number}
            print(json.dumps({"finding": kept | {"data": data.hex() if len(data) < 200_000 else None}}), flush=True)
            if outcome == "memory":
                break
        counts[f"slowest {kind} {int(took_s)} s"] += took_s > 10
    print(
        json.dumps({"counts": counts, "max_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10}), flush=True
    )
    shutil.rmtree(work, ignore_errors=True)


def in_a_worker(folder: Path, path: Path, lines: list[list[str]]) -> str | None:
    """Give a model that crashed the child to the command, and return its message; None if that is none."""
    whole = path.read_bytes()
    try:
        path.write_bytes((folder / "last").read_bytes())
        line = [sys.executable, "-m", "accel", "inspect", lines[0][1]]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=10 * LIMIT_S, check=False)
    finally:
        path.write_bytes(whole)
    return ran.stderr[-500:] if ran.returncode in (0, 1, 2, 3) and "Traceback" not in ran.stderr else None


def campaign(inputs: int, *, seed: int, folder: Path, minutes: float, kinds: Sequence[str]) -> dict[str, Any]:
    """Run children until all inputs were done or time is up."""
    counts: Counter[str] = Counter()
    findings: list[dict[str, Any]] = []
    done, largest, limit = 0, 0, time.monotonic() + 60 * minutes
    table = commands(folder)
    groups = [[k for k in kinds if k not in FRAMEWORKS], [k for k in kinds if k in FRAMEWORKS]]
    from_frameworks = 0
    while done < inputs and time.monotonic() < limit:
        framework = bool(groups[1]) and (not groups[0] or from_frameworks < FRAMEWORK_SHARE * done)
        before = done
        line = [sys.executable, __file__, "--child", str(folder), "--seed", str(seed)]
        line += ["--inputs", str(min(BATCH, inputs - done))]
        line += [w for kind in groups[framework] for w in ("--kind", kind)]
        ran = subprocess.run(line, capture_output=True, text=True, errors="replace", check=False)
        last: Any = None
        finished = False
        for text in ran.stdout.splitlines():
            with contextlib.suppress(ValueError):
                said = json.loads(text)
                if "finding" in said:
                    findings.append(said["finding"])
                    print(str(said["finding"])[:2000], flush=True)
                elif "doing" in said:
                    last, done = said["doing"], done + 1
                elif "counts" in said:
                    finished = True
                    counts.update(said["counts"])
                    largest = max(largest, said["max_rss"])
        from_frameworks += (done - before) * framework
        if not finished:
            detail = f"exit code {ran.returncode}: {ran.stderr[-2000:]}"
            if framework and last is not None and (said := in_a_worker(folder, *table[last[2]])):
                counts[f"{last[2]}: worker"] += 1
                print(f"{last}: {said}", flush=True)
            else:
                findings.append(
                    {"outcome": "crash", "detail": detail, "seed": seed, "number": last, "kind": last and last[2]}
                )
            if last is None:
                break
        seed += 1
        print(f"{done} inputs, {len(findings)} findings", flush=True)
    by_place = Counter(f"{f['outcome']} {f['kind']}: {f['detail'].strip().splitlines()[-1][:160]}" for f in findings)
    return {
        "inputs": done,
        "findings": len(findings),
        "largest_memory_bytes": largest,
        "counts": dict(sorted((k, v) for k, v in counts.items() if v)),
        "by_place": dict(by_place.most_common()),
        "rows": findings,
    }


def main() -> None:
    """Run the campaign, or one child of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--kind", action="append", help="only this kind of file; may be repeated")
    parser.add_argument("--seeds", type=Path, help="folder of an earlier campaign's examples")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--models", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--out", type=Path)
    asked = parser.parse_args()
    if asked.models:
        return framework_seeds(asked.models)
    if asked.child:
        return child(asked.child, asked.seed, asked.inputs, asked.kind)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        folder = asked.seeds or Path(scratch)
        folder.mkdir(exist_ok=True)
        if not (folder / "samples.jsonl").exists():
            seeds(folder)
        kinds = asked.kind or list(commands(folder))
        found = campaign(asked.inputs, seed=asked.seed, folder=folder, minutes=asked.minutes, kinds=kinds)
    asked.out.write_text(json.dumps(found, indent=1))
    print(json.dumps({k: v for k, v in found.items() if k != "rows"}, indent=1))
    return None


if __name__ == "__main__":
    main()
