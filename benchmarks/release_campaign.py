"""Kill `accel release build` and its workers at random moments; and hold an unchanged release against itself, often.

    python benchmarks/release_campaign.py --kills 30 -o kills.json     # driver and workers, in turn
    python benchmarks/release_campaign.py --kills 30 --fleet -o fleet.json    # over Ray: its nodes, too
    python benchmarks/release_campaign.py --diffs 20 -o diffs.json     # the same speed, other bytes: nothing may block
    python benchmarks/release_campaign.py --example -o example.json    # examples/release.yaml, thrice; --ray auto
    python benchmarks/release_campaign.py --publishes 30 -o publishes.json     # kill who publishes: a folder, then S3

A killed driver is started again; a killed worker is the driver's to notice. In the end the release must be as the
undisturbed one: the state of every entry, every variant's status and files, every kit. A reader looks at the
release's folder all the time: it is absent or whole, with every file that release.json names at its size.
For the diffs the second release has one weight changed by a ten-millionth, so that all is measured, and is not slower.
For the publishes, a process uploads and promotes one small release after the other; it is killed and started again, and
a reader pulls what the pointer stands for all the time: it gets a whole, signed release each time, and never an older
one. In the end every release was promoted once, in order.
For the example, a model counts as converted where its record in the store is not the one from before.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import ray_nodes
import yaml
from kills import settle
from onnx import TensorProto, helper, numpy_helper
from ray_nodes import Nodes

from accel.core import signing
from accel.core.errors import AccelError, InputError
from accel.core.values import SCHEMA
from accel.release import building, document, publishing
from accel.release.object_store import ObjectStore

SETTLE_S = 10.0
PHASES = (": export", ": prepare", ": measure")
"""What the names of Ray's processes end in while they work."""
ROOT = Path(__file__).parents[1]


def write_model(path: Path, seed: int, nudge: float = 0.0) -> Path:
    """Write two layers of 256 × 1024 with random weights; one of them is multiplied by ``1 + nudge``."""
    rng = np.random.default_rng(seed)
    first, second = (rng.standard_normal(shape).astype(np.float32) / 16 for shape in ((256, 1024), (1024, 256)))
    first[0, 0] *= 1 + nudge
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h"]),
        helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("MatMul", ["t", "second"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 256]) for name in "xy"]
    given = [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")]
    graph = helper.make_graph(nodes, "small", ports[:1], ports[1:], given)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    np.savez(path.with_suffix(".npz"), x=rng.standard_normal((64, 256)).astype(np.float32))
    return path


def write_release(
    folder: Path, models: list[Path], version: str, targets: tuple[str, ...] = ("ort",), *, there: bool = False
) -> Path:
    """Write a release file: this CPU, and kits for a GPU that is not here.

    Args:
        there: the first model is for machines of a second kind as well, and so exported by one for both.
    """
    file: dict[str, Any] = {
        "release": version,
        "defaults": {"objective": "latency", "rounds": 2, "round_s": 0.02, "threads": 1, "max_shape": "x:4x256"},
        "pools": {
            "here": {"device": "cpu", "targets": list(targets)},
            "h100": {"device": "cuda", "targets": ["trt-fp16"], "gpu": "H100"},
        },
        "models": {m.stem: {"source": str(m), "samples": str(m.with_suffix(".npz"))} for m in models},
    }
    if there:
        file["pools"]["there"] = {"device": "cpu", "targets": ["ort"]}
        for model in models[1:]:
            file["models"][model.stem]["pools"] = ["here", "h100"]
    path = folder / f"{version}.yaml"
    path.write_text(yaml.safe_dump(file))
    return path


def content(root: Path) -> dict[str, Any]:
    """Return what a release says that does not depend on time or on what was measured."""
    release = document.read(root)
    lines = {
        f"{e.model} {e.pool} {v.id}": [v.status, bool(v.kit), sorted((f.path, f.sha256) for f in v.files)]
        for e in release.entries
        for v in e.variants
    }
    kits = {
        f.path: f.sha256
        for f in release.files
        if f.path.startswith("kits/") and Path(f.path).name not in ("kit.json", "typing.json")  # they tell seconds
    }
    return {"states": {f"{e.model} {e.pool}": e.held for e in release.entries}, "variants": lines, "kits": kits}


class Reader(threading.Thread):
    """Looks at a release's folder until told to stop, and notes what is not whole."""

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self.root, self.done, self.looks, self.wrong = root, threading.Event(), 0, []
        self.start()

    def run(self) -> None:
        while not self.done.wait(0.05):
            self.looks += 1
            if not self.root.exists():
                continue
            try:
                files = document.read(self.root).files
                bad = [f.path for f in files if (self.root / f.path).stat().st_size != f.bytes]
            except (InputError, OSError) as error:
                bad = [str(error)]
            self.wrong += [f"{time.time():.3f} {name}" for name in bad[:1]]

    def stop(self) -> None:
        self.done.set()
        self.join()


def kill_once(process: subprocess.Popen, whom: str, rng: random.Random, nodes: Nodes | None) -> str | None:
    """Kill the driver, a process that works for it, or a node of a cluster; return what was killed, if anything.

    Args:
        nodes: of the cluster that builds; the node comes again at once, and its processes work for the driver.
    """
    if whom == "driver":
        process.send_signal(signal.SIGKILL)
        return f"driver {process.pid}"
    if whom == "node":
        assert nodes is not None
        nodes.kill("second")
        nodes.worker("second", "here")
        return "node"
    children = psutil.Process(process.pid).children(recursive=True) if nodes is None else list(at_work(nodes))
    if not children:
        return None
    victim = rng.choice(children)
    try:
        line = " ".join(victim.cmdline())[-120:]
        victim.send_signal(signal.SIGKILL)
    except psutil.Error:
        return None
    return f"worker {victim.pid} {line}"


def at_work(nodes: Nodes) -> Iterator[psutil.Process]:
    """Yield the processes of a cluster in which a task runs, and what they started."""
    for process in [p for found in nodes.nodes.values() for p in found]:
        with contextlib.suppress(psutil.Error):
            for child in process.children(recursive=True):
                if any(phase in word for word in child.cmdline() for phase in PHASES):
                    yield child
                    yield from child.children(recursive=True)


def kills(
    count: int, folder: Path, *, seed: int = 0, models: int = 2, targets: tuple[str, ...] = ("ort", "openvino-fp32"),
    nodes: Nodes | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Build a release undisturbed, then again and again with kills, until that many were made.

    Args:
        nodes: of a cluster that builds it, with a machine of the pool ``there``; ``second``, of the pool ``here``, may
            be killed.
    """
    rng, environment = random.Random(seed), {**os.environ, "TMPDIR": str(folder / "tmp"), "HF_HUB_OFFLINE": "1"}
    victims = ("worker", "driver", *(("node",) if nodes else ()))
    (folder / "tmp").mkdir()
    file = write_release(
        folder, [write_model(folder / f"m{n}.onnx", n) for n in range(models)], "1", targets, there=nodes is not None
    )

    def start(store: Path) -> subprocess.Popen:
        line = [sys.executable, "-m", "accel", "release", "build", str(file), "--store", str(store)]
        line += ["--ray", nodes.address] if nodes else []
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(line, env=environment, stdout=log, stderr=log)

    begin = time.monotonic()
    if code := start(folder / "undisturbed").wait():
        raise SystemExit(f"the undisturbed build ended with {code}: {(folder / 'log').read_text()[-2000:]}")
    took = time.monotonic() - begin
    expected, runs, made = content(folder / "undisturbed" / "1"), [], 0
    while made < count:
        store, killed = folder / f"store-{len(runs)}", []
        reader = Reader(store / "1")
        for _ in range(3):  # a variant whose process died twice has failed, so its workers are killed once a run
            process = start(store)
            whom = rng.choice([v for v in victims if v != "worker" or not any(k.startswith(v) for k in killed)])
            try:
                process.wait(rng.uniform(0, took) if made + len(killed) < count else None)
                break
            except subprocess.TimeoutExpired:
                hit = kill_once(process, whom, rng, nodes)
                killed += [hit] if hit else []
                if whom != "driver":
                    process.wait()
                    break
                process.wait()
        else:
            process = start(store)
        code = process.wait() if process.returncode is None else process.returncode
        if code < 0 or not (store / "1").exists():
            code = start(store).wait()
        alive = settle(folder / "tmp", SETTLE_S)
        if nodes is not None:
            alive += [" ".join(p.cmdline()) for p in at_work(nodes)]
        reader.stop()
        found = content(store / "1")
        half = [str(p) for p in store.rglob("*") if p.name.endswith((".new", ".old", ".removed"))]
        runs.append(
            {
                "killed": killed,
                "exit": code,
                "same": found == expected,
                "differs": {k: v for k, v in found["variants"].items() if v != expected["variants"].get(k)},
                "states": found["states"],
                "looks": reader.looks,
                "not_whole": reader.wrong,
                "alive": alive,
                "half": half,
            }
        )
        made += len(killed)
        print(f"{made} kills, {len(runs)} runs: {runs[-1]['same']}", file=sys.stderr)
    bad = [r for r in runs if not r["same"] or r["not_whole"] or r["alive"] or r["half"]]
    return {"kills": made, "undisturbed_s": took, "runs": runs, "bad": len(bad)}


def diffs(count: int, folder: Path) -> dict[str, Any]:
    """Build a release and one that is as fast, and compare them that often."""
    store, found = folder / "store", []
    for version, nudge in (("1", 0.0), ("2", 1e-7)):
        file = write_release(folder, [write_model(folder / "m.onnx", 0, nudge)], version)
        line = [sys.executable, "-m", "accel", "release", "build", str(file), "--store", str(store)]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    for number in range(1, count + 1):
        line = [sys.executable, "-m", "accel", "release", "diff", str(store / "1"), str(store / "2"), "--json"]
        done = subprocess.run(line, check=False, capture_output=True, text=True)
        rows = json.loads(done.stdout)["rows"]
        assert any(r["what"] == "latency" for r in rows), "nothing was measured"
        found.append({"exit": done.returncode, "rows": rows})
        print(f"{number} of {count}: {'passes' if not done.returncode else 'BLOCKED'}", file=sys.stderr)
    return {"diffs": count, "blocked": sum(f["exit"] != 0 for f in found), "found": found}


FILES = 12
"""How many files a release has that is published over and over, beside those that every one has."""


SEEN_S = 60.0
"""How long the reader may take to see the last release."""


def write_keys(folder: Path) -> tuple[Path, Path]:
    """Write a key pair to sign with, and return its private and public file."""
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec

    private, public, key = folder / "key.pem", folder / "key.pub", ec.generate_private_key(ec.SECP256R1())
    plain, pem = forms.NoEncryption(), forms.Encoding.PEM
    private.write_bytes(key.private_bytes(pem, forms.PrivateFormat.TraditionalOpenSSL, plain))
    public.write_bytes(key.public_key().public_bytes(pem, forms.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def write_small(root: Path, private: Path, count: int) -> Path:
    """Write a signed release without models, and with files of random bytes; its version is the folder's name."""
    made = root.with_name(f".{root.name}")
    shutil.rmtree(made, ignore_errors=True)
    files = {f"kits/{n}.bin": random.Random(f"{root.name} {n}").randbytes(20_000) for n in range(count)}
    for name, content in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(content)
    release = document.Release(
        version=root.name, accel="0", created="2026-11-22T00:00:00Z", asked_sha256="", pools=(), models=(), entries=(),
        missing=(), toolchains={}, files=(), schema=SCHEMA,
    )  # fmt: skip
    building.write(release, root, {name: made / name for name in files})
    shutil.rmtree(made)
    signing.sign(root, private)
    return root


def publisher(url: str, folder: Path, last: int, files: int) -> None:
    """Publish and promote the releases 1 to ``last``, each after the one before; go on where an earlier one was killed.

    A line on stdout says that it begins, and one for each release that is done.
    """
    place, private, public = ObjectStore(url), folder / "key.pem", folder / "key.pub"
    print("begins", flush=True)
    stands = next(publishing.pointers(place, "production", public), None)
    for version in range(int(stands.version) + 1 if stands else 1, last + 1):
        root = folder / "store" / str(version)
        if not (root / signing.SIGNATURE).exists():
            shutil.rmtree(root, ignore_errors=True)
            write_small(root, private, files)
        publishing.publish(root, place, key=public)
        publishing.promote(place, "production", str(version), key=private, public=public, days=90)
        print(version, flush=True)


class Puller(threading.Thread):
    """Pulls what the pointer stands for until told to stop, each time anew, and notes what is not whole or older."""

    def __init__(self, url: str, public: Path, out: Path) -> None:
        super().__init__(daemon=True)
        self.url, self.public, self.out, self.done = url, public, out, threading.Event()
        self.looks, self.newest, self.wrong = 0, 0, []
        self.start()

    def run(self) -> None:
        place = ObjectStore(self.url)
        while not self.done.wait(0.05):
            if not place.names("pointers"):
                continue
            try:
                taken = publishing.pull(place, "production", self.out, key=self.public)
                if int(taken.name) < self.newest:
                    self.wrong.append(f"{taken.name} after {self.newest}")
                self.newest = int(taken.name)
                shutil.rmtree(taken)
            except (AccelError, OSError, ValueError) as error:
                self.wrong.append(f"{type(error).__name__}: {error}")
            self.looks += 1

    def stop(self) -> None:
        self.done.set()
        self.join()


def publishes(count: int, folder: Path, url: str, *, files: int = FILES, seed: int = 0) -> dict[str, Any]:
    """Kill whoever publishes that often, at random moments, while a reader pulls."""
    rng, (private, public) = random.Random(seed), write_keys(folder)
    del private

    def start(last: int) -> subprocess.Popen:
        given = f"{url!r}, pathlib.Path({str(folder)!r}), {last}, {files}"
        code = f"import release_campaign as c, pathlib; c.publisher({given})"
        path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        process = subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
        )
        process.stdout.readline()  # it is imported: what follows is work
        return process

    begin, done = time.monotonic(), 2
    undisturbed = start(done)
    begin = time.monotonic()
    undisturbed.communicate()
    if undisturbed.returncode:
        raise SystemExit(f"who publishes ended with {undisturbed.returncode}")
    took, killed = (time.monotonic() - begin) / done, []
    failed = 0
    reader = Puller(url, public, folder / "out")
    while len(killed) < count:
        process = start(last := done + 2)
        try:
            process.communicate(timeout=rng.uniform(0, 4 * took))
            failed += process.returncode != 0
            done = last
        except subprocess.TimeoutExpired:
            process.kill()
            lines = process.communicate()[0].split()
            killed.append(lines)
            done = max([done, *map(int, lines)])
    final = start(done + 2)
    final.communicate()
    failed += final.returncode != 0
    until = time.monotonic() + SEEN_S
    while reader.newest < done + 2 and time.monotonic() < until:
        time.sleep(0.05)
    reader.stop()
    place = ObjectStore(url)
    history = [[p.sequence, p.version] for p in publishing.pointers(place, "production", public)][::-1]
    expected = [[n, str(n)] for n in range(1, done + 3)]
    bad = [
        *reader.wrong,
        *([f"{failed} times who publishes ended with an error"] if failed else []),
        *([str(history)] if history != expected else []),
    ]
    return {
        "url": url.partition("://")[0],
        "kills": len(killed),
        "releases": len(history),
        "looks": reader.looks,
        "newest_seen": reader.newest,
        "round_s": round(took, 3),
        "bad": len(bad),
        "what": bad,
    }


def publishes_everywhere(count: int, folder: Path, seed: int) -> dict[str, Any]:
    """Kill who publishes to a folder, and to a real S3 server in this process, that often each."""
    sys.path.append(str(ROOT / "tests" / "release"))
    from s3_server import S3Server

    server = S3Server()
    os.environ |= {"AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
    ObjectStore("s3://publishes").files.mkdir("publishes")
    runs = []
    for kind, url in (("file", f"file://{folder}/place"), ("s3", "s3://publishes/prefix")):
        (folder / kind).mkdir()
        runs.append(publishes(count, folder / kind, url, seed=seed))
        print(f"{kind}: {runs[-1]}", file=sys.stderr)
    server.http.shutdown()
    return {"publishes": runs, "bad": sum(r["bad"] for r in runs)}


def example(folder: Path, ray: str | None = None) -> dict[str, Any]:
    """Build examples/release.yaml, once more, and with one model changed; say each time what was converted.

    Args:
        ray: a cluster that builds it once more, into an empty store; the cpu pool's name is its resource.
    """
    write = "import onnx_file, pathlib; onnx_file.write(pathlib.Path('small.onnx'))"
    subprocess.run(
        [sys.executable, "-c", write], cwd=folder, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    store, runs = folder / "releases", []
    for what in ("first", "again", "one model changed", *(["fleet"] if ray else [])):
        if what == "one model changed":
            model = onnx.load(folder / "small.onnx")
            (weight,) = model.graph.initializer
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(0.5), weight.name))
            onnx.save(model, folder / "small.onnx")
        before, begin = records(store), time.monotonic()
        line = [sys.executable, "-m", "accel", "release", "build", str(ROOT / "examples" / "release.yaml"), "--json"]
        if what == "fleet":
            store, before = folder / "fleet", {}
            line += ["--ray", str(ray)]
        done = subprocess.run(
            [*line, "--store", str(store)], cwd=folder, check=False, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip
        if not done.stdout:
            raise SystemExit(f"the build ended with {done.returncode}")
        release = json.loads(done.stdout)
        keys = ("model", "pool", "held", "chosen", "reason", "decisions")
        entries = [{k: e[k] for k in keys} for e in release["entries"]]
        after = records(store)
        converted = sorted(key.rpartition("/")[2] for key, text in after.items() if before.get(key) != text)
        runs.append(
            {
                "what": what,
                "exit": done.returncode,
                "seconds": round(time.monotonic() - begin, 1),
                "converted": converted,
                "entries": entries,
                "content": content(store / release["version"]),
            }
        )
        print(f"{what}: {converted} in {runs[-1]['seconds']} s", file=sys.stderr)
    first, again, changed = runs[:3]
    good = [
        len(first["converted"]) == 4,
        again["converted"] == [],
        again["content"] == first["content"],
        changed["converted"] == ["classifier"],
    ]
    fleet = {}
    if ray:
        pairs = list(zip(changed["entries"], runs[3]["entries"], strict=True))
        one, other = changed["content"]["variants"], runs[3]["content"]["variants"]
        fleet = {
            "other_files": [id for id in one if one[id] != other.get(id)],
            "other_kits": sorted({*changed["content"]["kits"].items()} ^ {*runs[3]["content"]["kits"].items()}),
            "other_choices": [f"{a['model']} {a['pool']}" for a, b in pairs if not same_choice(a, b)],
        }
        good += [changed["content"]["states"] == runs[3]["content"]["states"], not fleet["other_choices"]]
    return {"example": runs, **fleet, "bad": good.count(False)}


def same_choice(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Say whether two builds chose the same, or what at least one of them holds to be as good."""
    ties = {id for entry in (one, other) for d in entry["decisions"] for id in (d["chosen"], *d["ties"])}
    unsure = any(d["verdict"] != "decided" for entry in (one, other) for d in entry["decisions"])
    return one["chosen"] == other["chosen"] or (unsure and {one["chosen"], other["chosen"]} <= ties)


def records(store: Path) -> dict[str, str]:
    """Return what the store noted of each model's last conversion, by machine and model."""
    files = store.glob("runs/*/*.json")
    return {f"{p.parent.name}/{p.stem}": p.read_text() for p in files if not p.name.endswith(".job.json")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--diffs", type=int, default=0)
    parser.add_argument("--fleet", action="store_true", help="with --kills: over a Ray cluster of three nodes")
    parser.add_argument("--publishes", type=int, default=0, help="kills of who publishes, for each kind of place")
    parser.add_argument("--example", action="store_true")
    parser.add_argument("--ray", help="with --example: build it over this cluster, too (auto, HOST:PORT)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--out", type=Path, required=True)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="release-campaign-") as scratch:
        found: dict[str, Any] = {}
        if args.kills and args.fleet:
            with ray_nodes.cluster() as nodes:
                nodes.worker("second", "here")
                nodes.worker("there", "there", ACCEL_SIMULATE="there")
                found |= kills(args.kills, Path(scratch), seed=args.seed, nodes=nodes)
        elif args.kills:
            found |= kills(args.kills, Path(scratch), seed=args.seed)
        if args.diffs:
            found |= diffs(args.diffs, Path(tempfile.mkdtemp(dir=scratch)))
        if args.publishes:
            found |= publishes_everywhere(args.publishes, Path(tempfile.mkdtemp(dir=scratch)), args.seed)
        if args.example:
            found |= example(Path(tempfile.mkdtemp(dir=scratch)), args.ray)
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(bool(found.get("bad") or found.get("blocked")))


if __name__ == "__main__":
    main()
