"""How much of a variant's time its GEMMs alone would take: the IR that was built, and a model of nothing but its GEMMs.

    accel convert bert --targets openvino-int8 --static --shape … -o RUN
    python -m benchmarks.gemms RUN openvino-int8-static…@cpu -o docs/benchmarks/gemms.json

Every FullyConnected that the runtime's own graph shows is put beside the others in one more model: same M, K and N, the
precision that the graph says, weights of its own (so they are as cold as the variant's), one activation for all of the
same K, quantised once. ``--joined MxKxN:PRECISION`` times a third model in which threes of these are one of 3 N: what
joining the products of query, key and value could bring at most. All are compiled with the settings that the variant
ships with and timed in turns, a round each, in one process. What is left of the variant's time is told by kind of node,
from the runtime's counters in a run of their own.
"""

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from accel.bench.stability import ratio_interval
from accel.builders.to_openvino import compile_settings
from accel.core import document, hardware

ROUNDS, ROUND_S, WARM_S = 24, 0.5, 2.0


@dataclass(frozen=True, slots=True, order=True)
class Gemm:
    """One product with constant weights: ``m`` rows of ``k`` by ``k`` × ``n``, and what the runtime computes it in."""

    m: int
    k: int
    n: int
    precision: str


def gemms(compiled: ov.CompiledModel) -> list[Gemm]:
    """Return the products of a compiled model of fixed shapes, as its runtime graph has them."""
    found = []
    for node in compiled.get_runtime_model().get_ordered_ops():
        told = {key: str(value.astype(str)) for key, value in node.get_rt_info().items()}
        if told.get("layerType") == "FullyConnected":
            rows, weights = node.input(0).get_shape(), node.input(1).get_shape()
            k = rows[-1]
            found.append(Gemm(int(np.prod(rows[:-1])), k, int(np.prod(weights)) // k, told["runtimePrecision"]))
    return found


def alone(wanted: list[Gemm]) -> ov.Model:
    """Return a model of these products alone, each with weights of its own."""
    rng, given, results = np.random.default_rng(0), {}, []
    for number, gemm in enumerate(wanted):
        key = gemm.m, gemm.k, gemm.precision
        integer = gemm.precision in ("i8", "u8")
        if key not in given:
            x = ops.parameter([gemm.m, gemm.k], np.float32, name=f"x{len(given)}")
            ends = (0.0, 255 / 256) if gemm.precision == "u8" else (-1.0, 127 / 128)
            given[key] = x, ops.fake_quantize(x, *ends, *ends, 256) if integer else x
        if integer:
            values = rng.integers(-127, 128, (gemm.n, gemm.k), np.int8)
            scale = ops.constant(np.full((gemm.n, 1), 1 / 127, np.float32))
            weights = ops.multiply(ops.convert(ops.constant(values), np.float32), scale)
        else:
            weights = ops.constant(rng.standard_normal((gemm.n, gemm.k), np.float32))
        product = ops.matmul(given[key][1], weights, transpose_a=False, transpose_b=True)
        results.append(ops.result(product, name=f"y{number}"))
    return ov.Model(results, [x for x, _ in given.values()], "gemms")


def joined(wanted: list[Gemm], which: str) -> list[Gemm]:
    """Put one GEMM of three times the width in place of every three of a kind."""
    sizes, precision = which.split(":")
    m, k, n = map(int, sizes.split("x"))
    one = Gemm(m, k, n, precision)
    count, rest = divmod(wanted.count(one), 3)
    if rest or not count:
        sys.exit(f"{which} is there {wanted.count(one)} times: no multiple of 3")
    return [gemm for gemm in wanted if gemm != one] + [Gemm(m, k, 3 * n, precision)] * count


def by_kind(model: ov.Model, words: dict[str, Any], calls: int = 50) -> dict[str, float]:
    """Return milliseconds of a call by kind of node and precision, from the runtime's counters."""
    request = ov.Core().compile_model(model, "CPU", words | {"PERF_COUNT": "YES"}).create_infer_request()
    total: Counter[str] = Counter()
    feed = inputs(model)
    for number in range(2 * calls):
        request.infer(feed)
        if number >= calls:
            for node in request.profiling_info:
                if node.status == ov.ProfilingInfo.Status.EXECUTED:
                    total[f"{node.node_type} {node.exec_type.rpartition('_')[2]}"] += node.real_time.total_seconds()
    return {kind: seconds / calls * 1e3 for kind, seconds in total.most_common() if seconds}


def inputs(model: ov.Model) -> dict[int, np.ndarray]:
    """Return a feed: ones, so that masks are whole and ids are real."""
    return {n: np.ones(list(port.shape), port.element_type.to_dtype()) for n, port in enumerate(model.inputs)}


def main() -> None:
    """Time all, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("variant")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--joined", help="MxKxN:PRECISION")
    asked = parser.parse_args()
    variant = next(v for v in document.read(asked.run).variants if v.id == asked.variant)
    artifact = variant.to_artifact()
    core = ov.Core()
    whole = core.read_model(asked.run / "variants" / variant.id / artifact.built.entry)
    if whole.is_dynamic():
        whole.reshape({name: dims.opt for name, dims in variant.shapes.items()})
    words = compile_settings(variant.target, hardware.cpu_threads(), "latency")
    compiled = core.compile_model(whole, "CPU", words)
    wanted = gemms(compiled)
    bare_model = alone(wanted)
    bare = core.compile_model(bare_model, "CPU", words)
    if sorted(gemms(bare)) != sorted(wanted):
        sys.exit(f"the GEMMs alone became others:\n{Counter(gemms(bare))}\nin place of\n{Counter(wanted)}")
    both = {"variant": (compiled, whole), "gemms": (bare, bare_model)}
    if asked.joined:
        joined_model = alone(joined(wanted, asked.joined))
        both["joined"] = core.compile_model(joined_model, "CPU", words), joined_model
    runners = {name: (made.create_infer_request(), inputs(model)) for name, (made, model) in both.items()}
    rounds: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(asked.rounds + 1):
        for name in sorted(runners, reverse=number % 2 == 0):
            request, feed = runners[name]
            taken, end = [], time.perf_counter() + (ROUND_S if number else WARM_S)
            while time.perf_counter() < end:
                begin = time.perf_counter()
                request.infer(feed, share_outputs=True)  # what is copied to Python else takes longer than the GEMMs
                taken.append((time.perf_counter() - begin) * 1e3)
            if number:
                rounds[name].append(statistics.median(taken))
    share = ratio_interval(rounds["gemms"], rounds["variant"])
    gain = ratio_interval(rounds["joined"], rounds["gemms"]) if asked.joined else None
    told = {
        "hardware": hardware.detect().id,
        "variant": variant.id,
        "shapes": {name: list(dims.opt) for name, dims in variant.shapes.items()},
        "gemms": [asdict(gemm) | {"count": count} for gemm, count in Counter(wanted).most_common()],
        "ms": {name: statistics.median(found) for name, found in rounds.items()},
        "gemms_over_variant": list(share),
        "joined": asked.joined,
        "joined_over_gemms": list(gain) if gain else None,
        "rounds_ms": rounds,
        "by_kind_ms": {"variant": by_kind(whole, words), "gemms": by_kind(bare_model, words)},
    }
    asked.out.write_text(json.dumps(told, indent=1) + "\n")
    shown = ("ms", "gemms_over_variant", "joined_over_gemms", "by_kind_ms")
    print(json.dumps({k: told[k] for k in shown}, indent=1))


if __name__ == "__main__":
    main()
