"""Feed broken files of every kind to every command that reads them, and see that each is an error with a message.

    python benchmarks/fuzz.py --inputs 10000 -o fuzz.json [--breakers FOLDER]

Files that accel itself wrote (a run with repositories and a kit, made first from a small ONNX model, one of a stateful
model, and a signed and published release, also as a bundle and as an OCI layout), what its users write (job files,
overrides, prices, requests, labels, recorded traffic, states), models of every framework and Hugging Face folders are
broken by flipped, cut, repeated and replaced bytes, by odd values at random places of JSON, by odd members of archives,
and by odd words. Commands run in this process, as the command line calls them, in children that each
do many; what a command does in a worker process is done by the same task, in the child. A finding is: an exception
that is not a message of accel's or of the command line's, a crash, more than ``LIMIT_S`` seconds, a write outside the
child's own folder, a file left in the temporary one, or more than ``MOST_BYTES`` of memory. What a library raises in a
worker is a message of accel's, and counted as such (``library``); what crashes or hangs one is tried again by the
command itself, which must end with a message (``worker``). Every input that gives a finding is kept.
"""

import argparse
import contextlib
import copy
import datetime
import faulthandler
import functools
import importlib
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
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
FRAMEWORKS = (
    "exported program", "torchscript", "saved model", "variables", "frozen graph", "keras", "h5", "config", "weights",
    "modules", "tokenizer", "preprocessor", "labels of a model",
)  # fmt: skip
"""Kinds of files that a framework reads, in a worker process: these have children of their own, and are fewer."""
FRAMEWORK_SHARE = 0.12
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 31, 1 << 63, 10**400, 1e400, -0.0, "", "a" * 300, "../x", "/etc/passwd", "\0", "~nosuch/x",
    "ort", [], {}, [[]], {"a": 1}, "9**9**9", "%s", "é", "\ud800", "1x128", "a:1x2", [None], "grpc://x:1",
)  # fmt: skip
DEEP: Any = 0
for _ in range(300):  # as deep as JSON may be that is read; copying and describing it takes several frames a level
    DEEP = [DEEP]
ODD += (DEEP,)
WORDS = (
    b"", b"\0", b"-1", b"0", b"99999999999999999999", b"nan", b"[]", b"{}", b"../", b"/etc/passwd", b"\xff\xfe",
    b"TYPE_INT64", b"TYPE_STRING", b"dims: [ -1, -1 ]", b"KIND_GPU", b"&a [*a]", b"input", b"output", b"a" * 70000,
    b'ensemble_scheduling { step { model_name: "small" } }', b"\x1f\x8b\x08", b"PK\x03\x04", b"\x08" * 9,
    b"[" * 5000, b'{"a":' * 5000, b"- " * 5000, b"9" * 5000,
)  # fmt: skip


class Hang(BaseException):
    """A command that runs too long."""


def small_model(path: Path) -> None:
    """Write the model that everything else is made from."""
    sys.path.insert(0, str(Path(__file__).parent))
    import kills

    kills.write_model(path)


def stateful_model(path: Path) -> None:
    """Write a model whose state decays, and is added to what it is given."""
    from onnx import TensorProto, helper, numpy_helper, save

    nodes = [helper.make_node("Mul", ["state", "half"], ["kept"]), helper.make_node("Add", ["kept", "x"], ["next"])]
    nodes.append(helper.make_node("Tanh", ["next"], ["y"]))
    x, state, y, following = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("x", "state", "y", "next")
    )
    half = numpy_helper.from_array(np_half(), "half")
    graph = helper.make_graph(nodes, "steps", [x, state], [y, following], [half])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def np_half() -> Any:
    """Return what a state is multiplied by."""
    import numpy as np

    return np.array([0.5], np.float32)


def written(folder: Path) -> None:
    """Write sound examples of what users write: models, job files, samples, overrides, prices and requests."""
    import numpy as np
    import onnx
    import openvino as ov

    small_model(folder / "small.onnx")
    ov.save_model(ov.convert_model(folder / "small.onnx"), folder / "small.xml")
    onnx.save(onnx.load(folder / "small.onnx"), folder / "apart.onnx", save_as_external_data=True, location="apart.bin")
    np.savez(folder / "samples.npz", ids=np.zeros((4, 5), np.int64))
    stateful_model(folder / "steps.onnx")
    np.save(folder / "state.npy", np.ones((1, 4), np.float32))
    np.savez(folder / "requests.npz", ids=np.zeros((4, 5), np.int64))
    entry = {"ids": {"content": [1, 2, 3], "shape": [3]}}
    probe = {"load": 2.0, "throughput_per_s": 90.0, "requests": 99, "late": 0, "p50_ms": 9.0, "p99_ms": 20.0}
    tried = {"repository": "ort@cpu", "label": "1 instance", "probes": [probe], "measured": probe, "chosen": True}
    texts = {
        "job.yaml": "source: small.onnx\ntargets: [ort, openvino]\n"
        "min_shape: ['ids:1x1']\nshape: ['ids:1x5']\nmax_shape: ['ids:4x9']\n"
        "range: ['ids=0:49']\nrounds: 3\ntriton:\n  dynamic_batching: {max_queue_delay_microseconds: 100}\n"
        "gate: ['sqnr_db=40']\nstate: {next: state}\ninitial_state: {state: state.npy}\nmetric: accuracy\n"
        "labels: label\ntraffic: traffic.jsonl\nobjective: [latency, traffic]\nint8: all\nsearch_s: 3\n",
        "samples.jsonl": '{"ids": [[1, 2, 3]]}\n' * 4,
        "labelled.jsonl": '{"ids": [[1, 2, 3]], "label": 1}\n{"ids": [[4, 5, 6]], "label": [2, "x"]}\n' * 90,
        "traffic.jsonl": '{"length": 3, "at": 1.5}\n7\n{"shape": {"ids": [3]}, "at": "2026-11-22"}\n' * 20,
        "tune.json": json.dumps({"hardware": {"id": "cpu-z"}, "goal": {"limit_ms": 50.0}, "tried": [tried] * 2}),
        "overrides.pbtxt": "dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 100 }\n"
        'instance_group { count: 2 kind: KIND_CPU }\noutput { name: "hidden" label_filename: "job.yaml" }\n',
        "prices.yaml": "cpu-x: {usd_per_hour: 0.17, models: 2}\ncpu-y: 0.3\n",
        "arrivals.txt": "".join(f"{n / 7}\n" for n in range(20)),
        "requests.json": json.dumps({"data": [entry, {"ids": [1, 2, 3]}]}),
        "release.yaml": 'release: "1"\n'
        "defaults: {rounds: 2, round_s: 0.02, threads: 1, random_samples: true}\n"
        "pools:\n  here: {device: cpu, targets: [ort]}\n  h100: {device: cuda, targets: [trt-fp16], gpu: H100}\n"
        "margins: {latency: 0.05}\n"
        "models:\n  small:\n    source: small.onnx\n"
        "    min_shape: ['ids:1x1']\n    shape: ['ids:1x5']\n    max_shape: ['ids:4x9']\n    range: ['ids=0:49']\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)


def seeds(folder: Path) -> None:
    """Write one sound example of everything that accel reads."""
    written(folder)
    line = [sys.executable, "-m", "accel", "convert", str(folder / "small.onnx"), "--targets", "ort,null,trt-fp16"]
    line += ["--min-shape", "ids:1x1", "--shape", "ids:1x5", "--max-shape", "ids:4x9", "--range", "ids=0:49"]
    line += ["--random-samples", "--threads", "1", "--round-s", "0.05", "-o", str(folder / "run"), "--quiet"]
    done = subprocess.run([*line, "--rounds", "3"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    line = [sys.executable, "-m", "accel", "convert", str(folder / "steps.onnx"), "--targets", "ort", "--quiet"]
    line += ["--state", "next=state", "--initial-state", f"state={folder / 'state.npy'}", "--max-shape", "x:4x4"]
    line += ["--random-samples", "--bench", "none", "--threads", "1", "-o", str(folder / "steps")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for run in ("run", "steps"):
        shutil.rmtree(folder / run / ".store")
    shutil.copytree(folder / "run/repositories/null@cpu", folder / "measured")
    measured = folder / "measured/small"
    (measured / "configs").mkdir(exist_ok=True)
    shutil.copy(measured / "config.pbtxt", measured / "configs/other.pbtxt")
    release_seeds(folder)
    subprocess.run([sys.executable, __file__, "--models", str(folder)], check=True, capture_output=True)


def release_seeds(folder: Path) -> None:
    """Write a release of the small model, signed, and published with a pointer."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec

    key, pem = ec.generate_private_key(ec.SECP256R1()), forms.Encoding.PEM
    plain = key.private_bytes(pem, forms.PrivateFormat.TraditionalOpenSSL, forms.NoEncryption())
    (folder / "key.pem").write_bytes(plain)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fuzz")])
    begin = datetime.datetime(2020, 1, 1)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), begin)
    made = made.not_valid_after(begin.replace(year=2050)).sign(key, hashes.SHA256())
    (folder / "root.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pub").write_bytes(key.public_key().public_bytes(pem, forms.PublicFormat.SubjectPublicKeyInfo))
    place = ["--to", str(folder / "place"), "--key", "key.pub"]
    for words in (
        ["build", "release.yaml", "--store", "store", "--quiet"],
        ["sign", "store/1", "--key", "key.pem"],
        ["publish", "store/1", *place],
        ["promote", "1", *place, "--sign", "key.pem"],
        ["pull", *place, "-o", "pulled"],
        ["publish", "store/1", "--to", "bundle:1.tar", "--to", "oci-layout:layout", "--key", "key.pub"],
    ):
        line = [sys.executable, "-m", "accel", "release", *words]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


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
    tokenizer = {"pad_token": "[PAD]", "model_max_length": 16, "padding_side": "right"}
    (folder / "hub/tokenizer_config.json").write_text(json.dumps(tokenizer))
    words = {"[PAD]": 0, "[UNK]": 1, "a": 2}
    model = {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}
    (folder / "hub/tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    picture = {"do_resize": True, "size": {"height": 8, "width": 8}, "do_normalize": True, "image_mean": [0.5] * 3}
    (folder / "hub/preprocessor_config.json").write_text(json.dumps(picture | {"image_std": [0.5] * 3}))
    shutil.copytree(folder / "hub", folder / "sentences")
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": i, "name": str(i), "path": place, "type": f"sentence_transformers.models.{kind}"}
        for i, (place, kind) in enumerate(kinds.items())
    ]
    (folder / "sentences/modules.json").write_text(json.dumps(modules))
    (folder / "sentences/1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True}
    (folder / "sentences/1_Pooling/config.json").write_text(json.dumps(pooling))
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
    """Return by kind of file what is broken, of what is below ``folder``, and the commands that read it."""
    run = folder / "run"
    root, kit = run / "repositories/ort@cpu", run / "variants/trt-fp16@cuda/kit"
    model = root / "small"
    reads = [["lint", str(root)], ["verify", str(root)]]
    null, release, place = run / "repositories/null@cpu", folder / "store/1", folder / "place"
    in_python = [["lint", str(null)], ["verify", str(null)]]
    key = ["--key", str(folder / "key.pub")]
    checked = [["release", "verify", str(release), *key], ["release", "verify", str(release)]]
    published = [
        ["release", "list", "--to", str(place), *key],
        ["release", "pull", "--to", str(place), *key, "-o", str(folder / "out")],
        ["release", "promote", "1", "--to", str(place), *key, "--sign", str(folder / "key.pem"), "--as", "new"],
    ]
    published += [
        ["release", "rollback", "--to", str(place), *key, "--sign", str(folder / "key.pem")],
        ["release", "prune", "release.yaml", "--to", str(place), *key, "--dry-run"],
    ]
    digest = next((place / "releases/1").glob("*/release.json"), place).parent
    stateful, bundle = folder / "steps/repositories/ort@cpu", folder / "1.tar"
    steps = [["lint", str(stateful)], ["verify", str(stateful)], ["@load", str(stateful)]]
    record = next((folder / "store/runs").glob("*/small.json"), folder / "none")
    layout = folder / "layout"
    to_layout = [["release", "publish", str(release), *key, "--to", f"oci-layout:{layout}"]]
    keys = [["release", "sign", str(release), "--key", str(folder / "key.pem"), "--certificate", "root.pem"]]
    narrow = ["narrow", str(folder / "small.onnx"), "-o", str(folder / "out/narrow.onnx"), "--level", "interior"]

    def source(path: str) -> list[list[str]]:
        return [["@source", str(folder / path)]]

    table = {
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
        "labels": (folder / "labelled.jsonl", [["@labels", str(folder / "labelled.jsonl")]]),
        "traffic": (folder / "traffic.jsonl", [["@traffic", str(folder / "traffic.jsonl")]]),
        "initial state": (folder / "state.npy", [["@steps", str(folder / "state.npy")]]),
        "stateful model": (folder / "steps.onnx", [["@steps", str(folder / "state.npy")]]),
        "tune.json": (folder / "tune.json", [["@tuned", str(folder / "tune.json")]]),
        "requests npz": (folder / "requests.npz", [["@requests", str(folder / "requests.npz")]]),
        "stateful manifest": (stateful / "manifest.json", steps),
        "stateful reference": (stateful / "reference.npz", steps[1:2]),
        "stateful config": (stateful / "steps/config.pbtxt", steps),
        "loaded manifest": (null / "manifest.json", [["@load", str(null)]]),
        "measured config": (
            folder / "measured/small/configs/other.pbtxt",
            [["verify", str(folder / "measured"), "--accept-configs"], ["lint", str(folder / "measured")]],
        ),
        "launch.sh": (root / "launch.sh", reads),
        "bundle": (
            bundle,
            [
                ["release", "verify", str(bundle), *key],
                ["release", "verify", str(bundle)],
                ["release", "import", str(bundle), *key, "-o", str(folder / "out")],
            ],
        ),
        "layout": (layout / "index.json", to_layout),
        "record": (record, [["release", "plan", "release.yaml", "--store", "store"]]),
        "pulled pointer": (
            folder / "pulled/production.pointer.json",
            [["release", "pull", "--to", str(place), *key, "-o", str(folder / "pulled")]],
        ),
        "private key": (folder / "key.pem", [*keys, *published[2:3]]),
        "certificate": (folder / "root.pem", [*keys, ["release", "verify", str(release), "--authority", "root.pem"]]),
        "samples jsonl": (folder / "samples.jsonl", [["@samples", str(folder / "samples.jsonl")]]),
        "options": (folder / "job.yaml", [["@options"], ["@words", str(root)]]),
        "external weights": (folder / "apart.onnx", [["@onnx", str(folder / "apart.onnx")], *source("apart.onnx")]),
        "overrides": (folder / "overrides.pbtxt", [["@overrides", str(folder / "overrides.pbtxt")]]),
        "prices": (folder / "prices.yaml", [["@prices", str(folder / "prices.yaml")]]),
        "arrivals": (folder / "arrivals.txt", [["@arrivals", str(folder / "arrivals.txt")]]),
        "requests": (folder / "requests.json", [["@requests", str(folder / "requests.json")]]),
        "artifact of a repository": (null / "small/1/artifact.json", in_python),
        "model.py": (null / "small/1/model.py", [["lint", str(null)]]),
        "release file": (folder / "release.yaml", [["release", "plan", "release.yaml", "--store", "store"]]),
        "release.json": (release / "release.json", checked),
        "provenance": (release / "provenance.json", checked),
        "bill of materials": (release / "bom.cdx.json", checked),
        "signature": (release / "model.sig", checked),
        "public key": (folder / "key.pub", [*checked[:1], *published[:2]]),
        "pointer": (place / "pointers/production/0000000001.json", published[:2]),
        "digest": (place / "releases/1/digest", published[1:]),
        "published release.json": (digest / "release.json", [published[1], published[4]]),
        "published signature": (digest / "model.sig", published[1:2]),
        "exported program": (folder / "program.pt2", source("program.pt2")),
        "torchscript": (folder / "script.pt", source("script.pt")),
        "saved model": (folder / "saved/saved_model.pb", source("saved")),
        "variables": (folder / "saved/variables/variables.index", source("saved")),
        "frozen graph": (folder / "frozen.pb", source("frozen.pb")),
        "keras": (folder / "model.keras", source("model.keras")),
        "h5": (folder / "model.h5", source("model.h5")),
        "config": (folder / "hub/config.json", source("hub")),
        "weights": (folder / "hub/model.safetensors", source("hub")),
        "tokenizer": (folder / "hub/tokenizer_config.json", [["@processing", str(folder / "hub")]]),
        "preprocessor": (folder / "hub/preprocessor_config.json", [["@processing", str(folder / "hub")]]),
        "labels of a model": (folder / "hub/config.json", [["@processing", str(folder / "hub")]]),
        "modules": (folder / "sentences/modules.json", source("sentences")),
    }
    return {kind: row for kind, row in table.items() if row[0].exists()}


def broken(content: bytes, name: str, rng: random.Random) -> bytes:
    """Break the content of a file in one of many ways."""
    if name.endswith(".json") and rng.random() < 0.7:
        with contextlib.suppress(ValueError):
            document = json.loads(content)
            for _ in range(rng.choice((1, 1, 2, 5))):
                _replace(document, rng)
            if name == "kit.json" and rng.random() < 0.8:
                _seal(document)
            if name.startswith("00000") and rng.random() < 0.8:
                document = _signed(json.loads(content), rng)
            return json.dumps(document).encode("utf-8", "surrogatepass")
    if name.endswith((".npz", ".pt2", ".pt", ".keras")) and rng.random() < 0.7:
        return _broken_archive(content, rng)
    if name.endswith(".tar") and rng.random() < 0.8:
        return _broken_tar(content, rng)
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


def _seal(kit: dict[str, Any]) -> None:
    """Seal a kit anew, as anybody can."""
    from accel.core.values import sha256_json

    with contextlib.suppress(ValueError):
        kit["seal"] = sha256_json({**kit, "seal": ""})


def _signed(whole: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Break what a pointer says, and sign it by its owner's key."""
    import base64

    from accel.core import signing

    pointer = json.loads(whole["pointer"])
    _replace(pointer, rng)
    text = json.dumps(pointer)
    with contextlib.suppress(UnicodeEncodeError):
        return {"pointer": text, "signature": base64.b64encode(signing.sign_text(text, Path("key.pem"))).decode()}
    return whole


def _broken_tar(content: bytes, rng: random.Random) -> bytes:
    """Change, repeat or drop members of a tar archive, or put headers before it that no writer makes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(content)) as old, tarfile.open(fileobj=out, mode="w") as new:
        members = old.getmembers()
        chosen = rng.choice(members)
        for member in members:
            data = old.extractfile(member)
            body = data.read() if data is not None else b""
            for _ in range(rng.choice((1, 2)) if member is chosen else 1):
                if member is chosen:
                    match rng.randrange(6):
                        case 0:
                            continue
                        case 1:
                            member.name = rng.choice(
                                ("../x", "/x", "1", "", ".", "1/..", "a" * 300, "1/" * 400 + "x", "\0")
                            )
                        case 2:
                            kinds = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"S", b"Z")
                            member.type, member.linkname = rng.choice(kinds), "/etc/passwd"
                        case 3:
                            member.mode = rng.choice((0, 0o7777))
                        case 4:
                            member.pax_headers = {
                                rng.choice(("size", "path", "mtime", "GNU.sparse.map", "hdrcharset")): rng.choice(
                                    ("-1", "9" * 30, "inf", "../x", "1,2", "BINARY", "")
                                )
                            }
                        case _:
                            body = broken(body, member.name, rng)
                            member.size = len(body)
                new.addfile(member, io.BytesIO(body) if member.size else None)
    made = out.getvalue()
    if rng.random() < 0.2:  # the longest name that a number of 11 bytes can say, or one name after the other
        info = tarfile.TarInfo("x")
        info.type, info.size = rng.choice((b"L", b"x")), rng.choice((5, 1 << 40, 1 << 62))
        made = (info.tobuf(tarfile.GNU_FORMAT) + b"5 a=b\n".ljust(512, b"\0")) * rng.choice((1, 3000)) + made
    return made


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


SHAPES: Any = {"min_shapes": {"ids": (1, 1)}, "opt_shapes": {"ids": (1, 5)}, "max_shapes": {"ids": (4, 9)}} | {
    "ranges": {"ids": (0, 49)}
}


@functools.cache
def contract() -> Any:
    """Return what the small model takes and gives, to read requests by."""
    from accel.exporters.sources import recognise
    from accel.run import tasks

    return tasks.source_of(recognise("small.onnx", **SHAPES))


def call(line: list[str], rng: random.Random) -> None:
    """Run one command in this process; what it raises is for the caller."""
    from accel.cli import app

    if line[0] == "@job":
        from accel.run.job import assemble

        assemble({"out": Path("out")}, Path(line[1]), command="fuzz")
    elif line[0] == "@samples":
        from accel.exporters.sources import recognise
        from accel.run import tasks

        tasks.describe(recognise("small.onnx", samples=line[1], **SHAPES), Path("out/samples"))
    elif line[0] == "@labels":
        from accel.exporters import verdict
        from accel.exporters.sources import recognise
        from accel.run import tasks

        made = {"samples": line[1], "labels": "label", "metric": "accuracy"}
        described = tasks.describe(recognise("small.onnx", **made, **SHAPES), Path("out/samples"))
        verdict.labels_of(described.samples, Path("out/samples"), "gate")
    elif line[0] == "@traffic":
        from accel.core import recorded

        recorded.read(Path(line[1]))
    elif line[0] == "@steps":
        from accel.exporters import streams
        from accel.exporters.sources import recognise
        from accel.run import tasks

        pair = rng.choice(
            (("state", "next"), ("state", "next"), ("state", "y"), ("x", "next"), (odd_text(rng), "next"))
        )
        request = recognise("steps.onnx", states=dict([pair]), initial={pair[0]: Path(line[1])}, random_samples=True)
        streams.initial(tasks.source_of(request))
    elif line[0] == "@tuned":
        from accel.triton.tune.cost import tuned_elsewhere
        from accel.triton.tune.lab import Goal

        tuned_elsewhere(Path(line[1]), Goal(50.0, "poisson"))
    elif line[0] == "@load":
        import accel

        with accel.load(Path(line[1]), threads=1) as model:
            repr(model)
    elif line[0] == "@processing":
        from accel.exporters.ensemble_request import EnsembleRequest
        from accel.exporters.processing_files import resolve_processing_files
        from accel.exporters.sources import recognise
        from accel.run import tasks

        source = tasks.source_of(recognise(line[1]))
        resolve_processing_files(source, EnsembleRequest(folder=line[1]))
    elif line[0] == "@onnx":
        from accel.run import inspection

        inspection.inspect(Path(line[1]))
    elif line[0] == "@source":
        from accel.exporters.sources import recognise
        from accel.run import tasks

        shapes: Any = {"opt_shapes": {"input": (2, 4)}} if line[1].endswith(".pt") else {}
        tasks.source_of(recognise(line[1], **shapes))
    elif line[0] == "@overrides":
        from accel.triton import overrides

        text, _ = overrides.take_files(overrides.from_file(Path(line[1])))
        overrides.apply(text, overrides.parse(CONFIG))
    elif line[0] == "@prices":
        from accel.triton.tune.cost import read_prices

        read_prices(Path(line[1]))
    elif line[0] == "@arrivals":
        from accel.bench.ranges import arrivals

        arrivals(line[1])
    elif line[0] == "@requests":
        from accel.bench import feeds

        feeds.read(Path(line[1]), contract().inputs, batched=True)
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
                ("tune", [odd_text(rng) or "x"], ("--max-p99-ms", "--arrivals", "--mode", "--prices", "--data")),
                ("release", ["plan", odd_text(rng) or "x"], ("--store",)),
                ("release", ["verify", odd_text(rng) or "x"], ("--key", "--authority", "--via")),
                ("release", ["list", "--key", "key.pub"], ("--to",)),
                ("release", ["pull", "--key", "key.pub", "-o", "out", "--to", "place"], ("--as",)),
                ("release", ["import", odd_text(rng) or "x", "--key", "key.pub"], ("-o", "--authority")),
                ("release", ["publish", "store/1", "--key", "key.pub"], ("--to",)),
                ("release", ["promote", odd_text(rng), "--to", "place", "--key", "key.pub"], ("--sign", "--as")),
                ("release", ["build", odd_text(rng) or "x"], ("--store", "--finished", "--ray")),
                ("release", ["diff", "store/1", odd_text(rng) or "x"], ("--accept", "--rounds")),
                ("env", ["remove"], ()),
                ("zoo", ["check"], ("--json",)),
            )
        )
        app([command, *own, *([rng.choice(options)] if options else ()), odd_text(rng)], standalone_mode=False)
    else:
        app(line, standalone_mode=False)


CONFIG = 'name: "small" max_batch_size: 4 input { name: "ids" data_type: TYPE_INT32 dims: -1 } ' + (
    'output { name: "hidden" data_type: TYPE_FP32 dims: [ -1, 64 ] } instance_group { count: 1 kind: KIND_CPU }'
)
OPTIONS = (
    "--shape", "--range", "--gate", "--targets", "--min-shape", "--max-shape", "--threads", "--samples", "--ints",
    "--rename-axes", "--multiple", "--objective", "--max-p99-ms", "--timeout", "--triton-release", "--model-name",
    "--state", "--initial-state", "--metric", "--labels", "--traffic", "--int8", "--search-s",
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
    framework = set(kinds) <= set(FRAMEWORKS)
    for module in ("torch", "transformers", "keras") if framework else ("onnx", "onnxruntime", "openvino"):
        importlib.import_module(module)  # outside the time of the first input, which would end an import half done
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
            faulthandler.dump_traceback_later(LIMIT_S + 15, exit=True)  # a library's own loop sees no signal
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
            faulthandler.cancel_dump_traceback_later()
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
        if outcome not in ("answered", "refused", "library"):
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


def campaign(
    inputs: int, *, seed: int, folder: Path, minutes: float, kinds: Sequence[str], out: Path
) -> dict[str, Any]:
    """Run children until all inputs were done or time is up, and write to ``out`` after each what was found so far."""
    first = seed
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
                    print(said["finding"] | {"data": None}, flush=True)
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
        seed += 1
        places = Counter(f"{f['outcome']} {f['kind']}: {f['detail'].strip().splitlines()[-1][:160]}" for f in findings)
        found = {
            "inputs": done,
            "seeds": [first, seed - 1],
            "findings": len(findings),
            "largest_memory_bytes": largest,
            "counts": dict(sorted((k, v) for k, v in counts.items() if v)),
            "by_place": dict(places.most_common()),
            "rows": findings,
        }
        out.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{done} inputs, {len(findings)} findings", flush=True)
        if last is None:
            break
    return found


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
    parser.add_argument("-o", "--out", type=Path, default=Path("fuzz.json"))
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
        given = {"seed": asked.seed, "minutes": asked.minutes, "out": asked.out}
        found = campaign(asked.inputs, folder=folder, kinds=kinds, **given)
    print(json.dumps({k: v for k, v in found.items() if k != "rows"}, indent=1))
    return None


if __name__ == "__main__":
    main()
