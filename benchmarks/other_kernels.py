"""What other kernels for the same products would bring: rivals of what accel builds, timed beside it in one process.

    TARGETS=torch,aoti,ort,ort-int8,ort-int8-dynamic,openvino-fp32,openvino-int8
    accel convert MODEL --targets $TARGETS --bench none -o RUN
    pip install --target TORCHAO --no-deps torchao==0.18.0
    PYTHONPATH=.:TORCHAO python -m benchmarks.other_kernels RUN --work WORK -o docs/benchmarks/other_kernels.json

The rivals: static INT8 of ONNX Runtime with signed activations in place of unsigned ones (the same scales, every zero
point moved by 128), 8-bit weights alone (MatMulNBits, blocks of 128, accuracy level 4), AOTInductor with
``max_autotune`` (its GEMM templates in C++), and static INT8 for AOTInductor (PT2E with torchao's quantiser for x86).
Each is timed at one item of the profile's usual shape, in rounds, in an order drawn anew for each; ratios are paired by
rounds. SQNR is that of the first output against ONNX Runtime's FP32, over samples of the gate brought to that shape.
"""

import argparse
import json
import random
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, numpy_helper

import accel.run  # noqa: F401  hands the zoo in
from accel.bench.stability import ratio_interval
from accel.builders import targets
from accel.core import document, hardware
from accel.core.accuracy import sqnr
from accel.core.feeds import Feed, read_feeds
from accel.core.values import Artifact, from_json, to_json

ROUNDS, ROUND_S, WARM_S = 16, 0.5, 1.5
JUDGED = 32
BUILT = ("ort", "ort-int8", "ort-int8-dynamic", "aoti", "openvino-fp32", "openvino-int8")
Call = Callable[[Feed], np.ndarray]
Timer = Callable[[float], list[float]]
"""Calls for so many seconds, and returns what each call took, in milliseconds."""


def _onnx_call(path: Path, threads: int) -> Call:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    first = session.get_outputs()[0].name
    return lambda feed: np.asarray(session.run([first], dict(feed))[0])


def signed(path: Path, made: Path) -> str:
    """Write a file of the same scales whose quantised activations are int8: each zero point less 128.

    Returns:
        How many zero points were moved.
    """
    model = onnx.load(path)
    held = {i.name: i for i in model.graph.initializer}
    uses = [n.input[2] for n in model.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    moved = [name for name in dict.fromkeys(uses) if held[name].data_type == TensorProto.UINT8]
    values = {n.input[0] for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[2] in moved}
    for name in [*moved, *(v for v in values if v in held)]:
        shifted = (numpy_helper.to_array(held[name]).astype(np.int16) - 128).astype(np.int8)
        held[name].CopyFrom(numpy_helper.from_array(shifted, name))
    del model.graph.value_info[:]
    onnx.save(model, made, save_as_external_data=True, location=made.name + ".data")
    return f"{len(moved)} zero points moved"


def weights_alone(path: Path, made: Path) -> str:
    """Write a file whose products have weights in 8 bits, by blocks.

    Returns:
        How many products it has.
    """
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    work = MatMulNBitsQuantizer(onnx.load(path), bits=8, block_size=128, is_symmetric=True, accuracy_level=4)
    work.process()
    work.model.save_model_to_file(str(made), use_external_data_format=True)
    return f"{sum(n.op_type == 'MatMulNBits' for n in work.model.model.graph.node)} products"


def package(program: Path, made: Path, feeds: Sequence[Feed], *, max_autotune: bool, integers: bool) -> str:
    """Compile what the framework's variant holds for AOTInductor, with one setting changed.

    Args:
        feeds: calibrate INT8, and give the shape that it is compiled for; the other keeps its dynamic axes.

    Returns:
        How many products and convolutions have weights laid out for oneDNN.
    """
    import torch

    from accel.builders.torch_program import _SHARED_RUNTIME, _packed_products
    from accel.exporters.exported import read_program

    exported = read_program(program)
    if integers:
        from torchao.quantization.pt2e.inductor_passes import x86
        from torchao.quantization.pt2e.lowering import lower_pt2e_quantized_to_x86  # noqa: F401  registers the passes
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as quantisers

        x86._register_quantization_weight_pack_pass()
        quantiser = quantisers.X86InductorQuantizer()
        quantiser.set_global(quantisers.get_default_x86_inductor_quantization_config())
        rows = [tuple(torch.from_numpy(np.array(a)) for a in feed.values()) for feed in feeds]
        with torch.no_grad():
            prepared = prepare_pt2e(torch.export.export(exported.module(), rows[0]).module(), quantiser)
            for row in rows:
                prepared(*row)
            exported = torch.export.export(convert_pt2e(prepared), rows[0])
    configs = {"cpp.dynamic_threads": True, "freezing": True, "max_autotune": max_autotune, **_SHARED_RUNTIME}
    configs |= {"max_autotune_gemm_backends": "CPP,ATEN"} if max_autotune else {}
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(exported, package_path=str(made), inductor_configs=configs)
    return f"{_packed_products(made)} products packed"


def _package_call(path: Path, threads: int) -> Call:
    import torch
    from torch.export.pt2_archive._package import AOTICompiledModel

    torch.set_num_threads(threads)
    compiled = AOTICompiledModel(torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1))

    def call(feed: Feed) -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(compiled(*(torch.from_numpy(a) for a in feed.values()))[0].numpy())

    return call


def built(run: Path, name: str) -> tuple[Artifact, Path] | None:
    """Return what a run built for a target, and its folder."""
    found = next((run / ".store").glob(f"build-{name}@cpu-*"), None)
    if found is None:
        return None
    return from_json(Artifact, json.loads((found / "value.json").read_text())["value"]), found / "files"


def timer(call: Call, feed: Feed) -> Timer:
    """Return what calls again and again for some seconds, three times at least."""

    def timed(seconds: float) -> list[float]:
        taken: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(taken) < 3:
            begin = time.perf_counter()
            call(feed)
            taken.append((time.perf_counter() - begin) * 1e3)
        return taken

    return timed


def in_turns(timers: Mapping[str, Timer], count: int = ROUNDS) -> dict[str, list[float]]:
    """Return the median of each round in milliseconds; a round before the first warms up."""
    rounds: dict[str, list[float]] = {name: [] for name in timers}
    for number in range(count + 1):
        order = list(timers)
        random.Random(number).shuffle(order)
        for name in order:
            taken = timers[name](ROUND_S if number else WARM_S)
            if number:
                rounds[name].append(statistics.median(taken))
    return rounds


def rivals(run: Path, work: Path, feeds: Sequence[Feed], threads: int) -> tuple[dict[str, Call], dict[str, str]]:
    """Open everything that there is; the second names what came of each that was made or failed here."""
    calls: dict[str, Call] = {}
    said: dict[str, str] = {}
    known = targets.discover()
    for name in BUILT:
        if (found := built(run, name)) is not None:
            session = known[name].open(*found, threads=threads, mode="latency")
            first = found[0].built.outputs[0].name
            calls[name] = lambda feed, session=session, first=first: np.asarray(session.run(feed)[first])  # type: ignore[misc]

    def made(name: str, of: str, make: Callable[[Path, Path], str], open_it: Callable[[Path, int], Call]) -> None:
        if (found := built(run, of)) is None:
            said[name] = f"not tried: the run has no {of}"
            return
        path = work / f"{name.replace(' ', '_')}{'.pt2' if open_it is _package_call else '.onnx'}"
        begin, note = time.monotonic(), path.with_suffix(".txt")  # a second call finds what the first has built
        try:
            if not note.exists():
                copied = work / f"of_{of}"  # onnx refuses data that have a second name, as a run's files do
                shutil.copytree(found[1], copied, dirs_exist_ok=True)
                what = make(copied / found[0].built.entry, path)
                note.write_text(f"{what}, built in {time.monotonic() - begin:.0f} s")
            said[name] = note.read_text()
            calls[name] = open_it(path, threads)
            calls[name](feeds[0])
        except Exception as error:  # noqa: BLE001 what cannot be built is a result
            said[name] = f"{type(error).__name__}: {error}"[:400]
            calls.pop(name, None)

    made("ort-int8, signed activations", "ort-int8", signed, _onnx_call)
    made("ort, 8-bit weights alone", "ort", weights_alone, _onnx_call)
    for name, autotune, integers in (("aoti, max_autotune", True, False), ("aoti, static INT8", False, True)):

        def compile_it(program: Path, path: Path, autotune: bool = autotune, integers: bool = integers) -> str:
            return package(program, path, feeds, max_autotune=autotune, integers=integers)

        made(name, "torch", compile_it, _package_call)
    return calls, said


def main() -> None:
    """Build the rivals, time all in turns, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="run directory")
    parser.add_argument("--work", type=Path, required=True, help="folder for what is built here")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("-o", "--out", type=Path, required=True)
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    run, threads = document.read(asked.run), hardware.cpu_threads()
    usual = next(v.shapes for v in run.variants if v.shapes)
    samples = read_feeds(next((asked.run / ".store").glob("source-*")) / "gate.npz").values()
    artifact = built(asked.run, "ort")
    assert artifact is not None
    dtypes = {s.name: s.dtype for s in artifact[0].built.inputs}
    feeds = [
        {name: np.resize(feed[name], [1, *usual[name].opt[1:]]).astype(dtype) for name, dtype in dtypes.items()}
        for feed in list(samples)[:JUDGED]
    ]
    calls, said = rivals(asked.run, asked.work, feeds, threads)
    true = [calls["ort"](feed).astype(np.float64) for feed in feeds]
    mean = float(np.mean([t.mean() for t in true]))
    signal = sum(float(np.square(t - mean).sum()) for t in true)
    kept = {}
    for name, call in calls.items():
        noise = sum(float(np.square(call(f) - t).sum()) for f, t in zip(feeds, true, strict=True))
        kept[name] = sqnr.decibels(signal, noise) if noise else None
    rounds = in_turns({name: timer(call, feeds[0]) for name, call in calls.items()}, asked.rounds)
    fastest = min(rounds, key=lambda name: statistics.median(rounds[name]))
    rows = [
        {
            "name": name,
            "ms": statistics.median(found),
            "over_fastest": list(ratio_interval(found, rounds[fastest])),
            "sqnr_db": kept[name],
            "said": said.get(name),
            "rounds_ms": found,
        }
        for name, found in sorted(rounds.items(), key=lambda pair: statistics.median(pair[1]))
    ]
    earlier = json.loads(asked.out.read_text())["models"] if asked.out.exists() else {}
    shape = {name: list(feeds[0][name].shape) for name in dtypes}
    failed = {name: why for name, why in said.items() if name not in calls}
    told = earlier | {run.model.name: {"shapes": shape, "fastest": fastest, "rows": rows, "failed": failed}}
    asked.out.write_text(json.dumps({"hardware": to_json(hardware.detect()), "models": told}, indent=1) + "\n")
    for row in rows:
        decibels = "" if row["sqnr_db"] is None else f"{row['sqnr_db']:.1f} dB"
        print(f"{row['name']:30} {row['ms']:8.2f} ms  {row['over_fastest'][0]:.2f}  {decibels:9} {row['said'] or ''}")
    for name, why in failed.items():
        print(f"{name:30} {why}")


if __name__ == "__main__":
    main()
