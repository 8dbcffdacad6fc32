"""Ways to a faster CPU variant that accel does not take, beside those that it takes: what each gains or loses.

    accel convert FOLDER --targets openvino-fp32,openvino-bf16,openvino-int8,ort,ort-int8,aoti --bench none -o RUN
    python -m benchmarks.tried FOLDER RUN ENVIRONMENTS [-o docs/benchmarks/tried.json] [--without NAME,…]

FOLDER holds a text encoder of Hugging Face with its tokenizer. Tried, each in a process of its own, one at a time, in
an order drawn anew for each round, at 1 × 128 and 8 × 128 tokens, none of them padding:

    ctranslate2        its own engine, in FP32, BF16 and INT8 (weights in INT8, activations by row, at run time)
    qkv                OpenVINO INT8 by NNCF, and the same with each layer's Q, K and V in one product
    nbits              ONNX Runtime's MatMulNBits: 8-bit weights in blocks, activations in INT8 at run time (level 4)
    u8s8, s8s8         ONNX Runtime's own static quantisation by channel, activations in UINT8 and in INT8
    autotune           AOTInductor, its C++ templates for products tried (`max_autotune`)
    pt2e               AOTInductor in static INT8, by torchao's quantizer for x86

SQNR is over the first output at the run's gate samples, where the mask is 1, against the exported ONNX file in FP32.
What needs packages of its own finds them in ENVIRONMENTS, where pip puts them when they are not there yet.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from accel.bench.stability import ratio_interval
from accel.core import hardware
from accel.core.accuracy import sqnr
from accel.core.feeds import Feed, read_feeds, write_feeds
from benchmarks.children import Child
from benchmarks.peers.__main__ import measure

OURS = ("openvino-fp32", "openvino-bf16", "openvino-int8", "ort", "ort-int8", "aoti")
LENGTH, ROUNDS = 128, 12
THREADS = hardware.cpu_threads()


@dataclass(frozen=True, slots=True)
class Given:
    """What is tried on.

    Attributes:
        folder: model of Hugging Face.
        onnx: as the run exported it.
        calibration / gate: feeds of the run.
        environments: where packages of their own lie.
        out: where what is made goes.
    """

    folder: Path
    onnx: Path
    calibration: list[Feed]
    gate: list[Feed]
    environments: Path
    out: Path


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a process is started on: a role of ``peers/child.py``, and what it takes."""

    role: str
    path: str
    python: str = sys.executable
    packages: str = ""


def ctranslate2(given: Given) -> dict[str, Candidate]:
    """Convert for CTranslate2; the compute type is chosen when it is loaded."""
    home = given.environments / "ctranslate2"
    if not (home / "made").exists():
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        pip = [
            home / "bin/python",
            "-m",
            "pip",
            "install",
            "-q",
            "torch==2.13.0",
            "ctranslate2",
            "transformers",
            "numpy",
        ]
        subprocess.run(pip, check=True)
        (home / "made").touch()
    python = str(home / "bin" / "python")
    words = ["--model", str(given.folder), "--output_dir", str(given.out / "ctranslate2")]
    subprocess.run([home / "bin" / "ct2-transformers-converter", *words], check=True, stdout=subprocess.DEVNULL)
    kinds = {"FP32": "float32", "BF16": "bfloat16", "INT8": "int8_float32", "INT8, rest BF16": "int8_bfloat16"}
    made = given.out / "ctranslate2"
    return {f"CTranslate2, {k}": Candidate("ctranslate2", f"{made}:{kind}", python) for k, kind in kinds.items()}


def qkv(given: Given) -> dict[str, Candidate]:
    """Quantise as exported, and with products of one input joined, by the same hand."""
    import onnx
    import openvino as ov

    model = onnx.load(given.onnx)
    joined = join_products(model)
    file = given.out / "joined.onnx"
    onnx.save(model, file)
    found = {}
    for label, source in (("as exported", given.onnx), (f"{joined} products joined", file)):
        read = ov.Core().read_model(source)
        path = given.out / f"{source.stem}-int8.xml"
        ov.save_model(quantised(read, given.calibration), path, compress_to_fp16=False)
        plain = given.out / f"{source.stem}-plain.xml"
        ov.save_model(read, plain, compress_to_fp16=False)
        found[f"OpenVINO, INT8 by NNCF, {label}"] = Candidate("openvino", str(path))
        found[f"OpenVINO, its default, {label}"] = Candidate("openvino", str(plain))
    return found


def quantised(model: Any, feeds: list[Feed]) -> Any:
    """Quantise an OpenVINO model with NNCF's defaults for transformers."""
    import nncf

    nncf.set_log_level(logging.ERROR)
    types = {port.get_any_name(): port.get_element_type().to_dtype() for port in model.inputs}
    data = [{k: v.astype(types[k]) for k, v in feed.items() if k in types} for feed in feeds]
    return nncf.quantize(model, nncf.Dataset(data), subset_size=len(data), model_type=nncf.ModelType.TRANSFORMER)


def join_products(model: Any) -> int:
    """Make one product of those of one input whose weights, and biases behind them, are constant; return how many."""
    from onnx import helper, numpy_helper

    values = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    users: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    made = 0
    for name, nodes in list(users.items()):
        pairs = []
        for node in nodes:
            if node.op_type != "MatMul" or node.input[0] != name or node.input[1] not in values:
                continue
            added = users.get(node.output[0], [])
            if len(added) == 1 and added[0].op_type == "Add" and set(added[0].input) & set(values):
                pairs.append((node, added[0]))
        if len(pairs) < 2:
            continue
        weights = [values[node.input[1]] for node, _ in pairs]
        biases = [values[next(n for n in add.input if n in values)] for _, add in pairs]
        stem = f"joined{made}"
        sizes = np.array([w.shape[1] for w in weights], np.int64)
        constants = {"w": np.concatenate(weights, 1), "b": np.concatenate(biases), "sizes": sizes}
        model.graph.initializer.extend(numpy_helper.from_array(v, f"{stem}.{k}") for k, v in constants.items())
        at = list(model.graph.node).index(pairs[0][0])
        for node, add in pairs:
            model.graph.node.remove(node)
            model.graph.node.remove(add)
        steps = [
            helper.make_node("MatMul", [name, f"{stem}.w"], [f"{stem}.product"], f"{stem}.MatMul"),
            helper.make_node("Add", [f"{stem}.product", f"{stem}.b"], [f"{stem}.sum"], f"{stem}.Add"),
            helper.make_node(
                "Split", [f"{stem}.sum", f"{stem}.sizes"], [add.output[0] for _, add in pairs], f"{stem}.Split", axis=-1
            ),
        ]
        for node in reversed(steps):
            model.graph.node.insert(at, node)
        made += 1
    return made


def nbits(given: Given) -> dict[str, Candidate]:
    """Quantise weights alone, in blocks."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(given.onnx), bits=8, block_size=128, is_symmetric=True, accuracy_level=4)
    quantizer.process()
    file = given.out / "nbits.onnx"
    quantizer.model.save_model_to_file(str(file), use_external_data_format=False)
    return {"ONNX Runtime, MatMulNBits": Candidate("onnx", str(file))}


def static(given: Given) -> dict[str, Candidate]:
    """Quantise statically by ONNX Runtime's own tool, activations unsigned and signed."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._left = iter(given.calibration)

        def get_next(self) -> Any:
            return next(self._left, None)

    ready = given.out / "ready.onnx"
    quant_pre_process(str(given.onnx), str(ready), skip_symbolic_shape=True)
    found = {}
    for label, kind in (("U8S8", QuantType.QUInt8), ("S8S8", QuantType.QInt8)):
        file = given.out / f"{label}.onnx"
        quantize_static(
            *(str(ready), str(file), Reader()),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            activation_type=kind,
            weight_type=QuantType.QInt8,
        )
        found[f"ONNX Runtime, static {label}"] = Candidate("onnx", str(file))
    return found


EXPORT = """
import sys, numpy as np, torch
from transformers import AutoModel
folder, feeds, out, how = sys.argv[1:]
class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = AutoModel.from_pretrained(folder, attn_implementation="sdpa").eval()
    def forward(self, input_ids, attention_mask, token_type_ids):
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self.model(**given).last_hidden_state
with np.load(feeds) as stored:
    numbers = sorted({key.partition("/")[0] for key in stored.files}, key=lambda n: (not n.startswith("batch"), n))
    every = [[torch.from_numpy(stored[f"{n}/{k}"]).long() for k in ("input_ids", "attention_mask", "token_type_ids")]
             for n in numbers]
sizes = {0: torch.export.Dim("batch", min=1, max=16), 1: torch.export.Dim("sequence", min=2, max=512)}
example = next(feed for feed in every if feed[0].shape[0] > 1)
with torch.no_grad():
    module = Encoder()
    program = torch.export.export(module, tuple(example), dynamic_shapes=(sizes,) * 3)
    if how == "pt2e":
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
        quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
        prepared = prepare_pt2e(program.module(), quantizer)
        for feed in every[:64]:
            prepared(*feed)
        program = torch.export.export(convert_pt2e(prepared), tuple(example), dynamic_shapes=(sizes,) * 3)
    configs = {"freezing": True, "cpp.dynamic_threads": True, "max_autotune": how == "autotune"}
    torch._inductor.aoti_compile_and_package(program, package_path=out, inductor_configs=configs)
"""


def inductor(given: Given, how: str, packages: str = "") -> dict[str, Candidate]:
    """Export and compile with AOTInductor in a process of its own."""
    feeds, out = given.out / "calibration.npz", given.out / f"{how}.pt2"
    write_feeds(feeds, {**{str(n): f for n, f in enumerate(given.calibration)}, "batch": typical(given.gate, 8)})
    own = {"PYTHONPATH": packages} if packages else {}
    words = [sys.executable, "-c", EXPORT, str(given.folder), str(feeds), str(out), how]
    subprocess.run(words, check=True, env=os.environ | own, stdout=subprocess.DEVNULL)
    return {f"AOTInductor, {how}": Candidate("aoti", str(out), packages=packages)}


def pt2e(given: Given) -> dict[str, Candidate]:
    """Quantise with torchao, without what it requires: torch is here."""
    packages = given.environments / "torchao"
    if not packages.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", packages, "torchao"]
        subprocess.run(pip, check=True)
    return inductor(given, "pt2e", str(packages))


WAYS: Mapping[str, Callable[[Given], dict[str, Candidate]]] = {
    "ctranslate2": ctranslate2,
    "qkv": qkv,
    "nbits": nbits,
    "static": static,
    "plain": lambda given: inductor(given, "plain"),
    "autotune": lambda given: inductor(given, "autotune"),
    "pt2e": pt2e,
}


def typical(feeds: list[Feed], batch: int) -> dict[str, np.ndarray]:
    """Return a full feed of so many rows, filled from others."""
    return {
        name: np.resize(np.concatenate([np.ravel(feed[name]) for feed in feeds]), (batch, LENGTH))
        if name != "attention_mask"
        else np.ones((batch, LENGTH), feeds[0][name].dtype)
        for name in feeds[0]
    }


def decibels(truth: Mapping[str, Mapping[str, np.ndarray]], other: Mapping[str, Any], gate: list[Feed]) -> float | None:
    """Return the SQNR of the first output over all unmasked positions."""
    sides: list[list[np.ndarray]] = [[], []]
    for number, feed in enumerate(gate):
        kept = feed["attention_mask"].astype(bool)
        for side, answers in zip(sides, (truth, other), strict=True):
            own = next(v for v in answers[str(number)].values() if v.ndim == 3)
            side.append(own[:, : kept.shape[1]][kept[:, : own.shape[1]]].astype(np.float64))
    right, found = map(np.concatenate, sides)
    signal = float(np.square(right - right.mean(axis=0)).sum())
    return sqnr.decibels(signal, float(np.square(found - right).sum()))


def main() -> None:
    """Make, time and judge all, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("environments", type=Path)
    parser.add_argument("--without", default="")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--work", type=Path, required=True, help="a folder that is not there yet")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/benchmarks/tried.json"))
    asked = parser.parse_args()
    out = asked.work.resolve()
    out.mkdir(parents=True)
    asked.environments.mkdir(parents=True, exist_ok=True)
    stored = next((asked.run / ".store").glob("source-*"))
    sets = [[dict(f) for f in read_feeds(stored / name).values()] for name in ("calibration.npz", "gate.npz")]
    onnx = (asked.run / "onnx" / "model.onnx").resolve()
    given = Given(asked.folder.resolve(), onnx, *sets, asked.environments.resolve(), out)
    feeds = out / "feeds.npz"
    points = {f"batch {n}": typical(given.gate, n) for n in (1, 8)}
    write_feeds(feeds, {**{str(n): feed for n, feed in enumerate(given.gate)}, **points})
    candidates = {f"accel, {id}": Candidate("accel", str(asked.run / "repositories" / f"{id}@cpu")) for id in OURS}
    rows: dict[str, dict[str, Any]] = {}
    for name, make in WAYS.items():
        if name in asked.without.split(","):
            continue
        begin = time.monotonic()
        try:
            made = make(given)
        except Exception as error:  # noqa: BLE001 - what cannot be made is a row
            rows[name] = {"failed": f"{type(error).__name__}: {error}"[:400]}
            print(name, rows[name], flush=True)
            continue
        candidates |= made
        rows |= {label: {"made_s": time.monotonic() - begin} for label in made}
        print(name, f"{time.monotonic() - begin:.0f} s", flush=True)
    running: dict[str, Child] = {}
    answers: dict[str, Any] = {}
    with ExitStack() as stack:
        whole = {"source": Candidate("onnx", str(onnx)), **candidates}
        for label, candidate in whole.items():
            line = (candidate.python, Path(__file__).parent / "peers/child.py", candidate.role, candidate.path)
            try:
                own = {"PYTHONPATH": candidate.packages} if candidate.packages else None
                child = Child(*line, feeds, str(THREADS), of_accel=candidate.role == "accel", quiet=own)
                stack.callback(child.close)
                child.ask(answers=str(out / "answers.npz"))
                answers[label] = read_feeds(out / "answers.npz")
                rows.setdefault(label, {})["runtime"] = child.version
                running[label] = child
            except (RuntimeError, KeyError) as error:
                rows.setdefault(label, {})["failed"] = str(error)[-300:]
        found = measure(running, asked.rounds)
    for point, times in found.items():
        best = min((label for label in times if label.startswith("accel")), key=lambda label: median(times[label]))
        for label, taken in times.items():
            over = list(ratio_interval(taken, times[best]))
            rows[label][point] = {"ms": median(taken), "rounds_ms": taken, "over_best_of_accel": over, "best": best}
    for label in running:
        rows[label]["sqnr_db"] = decibels(answers["source"], answers[label], given.gate)
    told = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    told[asked.folder.name] = {"hardware": hardware.detect().id, "threads": THREADS, "rows": rows}
    asked.out.write_text(json.dumps(told, indent=1) + "\n")
    for label, row in sorted(rows.items(), key=lambda item: item[1].get("batch 1", {}).get("ms", 1e9)):
        if "batch 1" not in row:
            print(f"{label:<52} {row.get('failed')}")
            continue
        one, eight, db = row["batch 1"], row["batch 8"], row["sqnr_db"]
        print(
            f"{label:<52} {one['ms']:8.2f} ms {one['over_best_of_accel'][0]:5.2f}   {eight['ms']:8.2f} ms "
            f"{eight['over_best_of_accel'][0]:5.2f}   {'exact' if db is None else f'{db:.1f} dB'}"
        )


if __name__ == "__main__":
    main()
