"""Time and memory of narrowing against the number of nodes, and the public tools on the same files.

    python benchmarks/narrow.py [--nodes 1000,10000,100000] [--json docs/benchmarks/narrow.json] [--folder DIR]

Each measurement runs in a process of its own, so that its peak memory is its own. The 8 GiB model has a sparse data
file: it takes no disk, and reading it would show in the peak.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from accel.graph.narrow import narrow_file, prove_int32_interior

I64 = TensorProto.INT64
INT64_MAX = 2**63 - 1


def save(nodes: list, inputs: list, outputs: list, constants: list, path: Path) -> Path:
    """Write a model, opset 18."""
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return path


def info(name: str, dtype: int, dims: list) -> onnx.ValueInfoProto:
    """Describe an input or output."""
    return helper.make_tensor_value_info(name, dtype, dims)


def chain(count: int, path: Path) -> Path:
    """Write a graph of ``count`` integer nodes whose constants, shapes and classes all take part."""
    nodes = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Gather", ["shape", "zero"], ["v0"], axis=0)]
    ops = (("Add", "three"), ("Mul", "one"), ("Sub", "three"), ("Min", "many"), ("Max", "zero"), ("Mod", "many"))
    nodes += [helper.make_node(ops[i % 6][0], [f"v{i}", ops[i % 6][1]], [f"v{i + 1}"]) for i in range(count // 2)]
    nodes.append(helper.make_node("Cast", ["x"], ["w0"], to=I64))
    rest = count - len(nodes) - 1
    nodes += [helper.make_node(ops[i % 6][0], [f"w{i}", ops[i % 6][1]], [f"w{i + 1}"]) for i in range(rest)]
    nodes.append(helper.make_node("Add", [f"v{count // 2}", f"w{rest}"], ["y"]))
    constants = [
        numpy_helper.from_array(np.array(v, np.int64), n)
        for n, v in (("zero", 0), ("one", 1), ("three", 3), ("many", 1000))
    ]
    return save(nodes, [info("x", I64, ["batch", 4])], [info("y", I64, ["batch", 4])], constants, path)


def weights(gib: int, path: Path) -> Path:
    """Write an embedding model whose table lies in a sparse external file of that size."""
    rows, width = gib * 2**18, 1024
    with (path.parent / "weights.bin").open("wb") as file:
        file.truncate(rows * width * 4)
    table = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=[rows, width])
    table.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(rows * width * 4))):
        table.external_data.add(key=key, value=value)
    nodes = [helper.make_node("Gather", ["table", "ids"], ["y"])]
    inputs, outputs = [info("ids", I64, ["batch", "seq"])], [info("y", TensorProto.FLOAT, ["batch", "seq", width])]
    return save(nodes, inputs, outputs, [table], path)


def one(path: Path, level: str) -> dict[str, float | int]:
    """Narrow one file here and return the time, and how far the peak memory rose above what imports took."""
    from accel.graph.narrow import plan  # noqa: F401 - imports are not what is measured

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, cpu = time.perf_counter_ns(), time.process_time_ns()
    ranges = {"x": (0, 100)} if path.name == "chain.onnx" else {}
    report = narrow_file(path, path.with_name("out.onnx"), level=level, ranges=ranges)
    narrow_ns, narrow_cpu_ns = time.perf_counter_ns() - start, time.process_time_ns() - cpu
    start = time.perf_counter_ns()
    prove_int32_interior(path, ranges=ranges)
    return {
        "file_mib": round(path.stat().st_size / 2**20, 2),
        "narrow_s": round(narrow_ns / 1e9, 2),
        "narrow_cpu_s": round(narrow_cpu_ns / 1e9, 2),
        "prove_s": round((time.perf_counter_ns() - start) / 1e9, 2),
        "peak_rise_mib": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, 1),
        "peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "narrowed": report.count("narrowed"),
    }


def in_own_process(path: Path, level: str) -> dict[str, float | int]:
    """Run ``one`` in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", str(path), level], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


# ---------------------------------------------------------------------------------------------------------------------
# The public tools on the same files


def naive(source: Path, out: Path) -> None:
    """Retype everything and cast every initialiser with NumPy, as the snippets that circulate do."""
    model = onnx.load(source)
    for tensor in model.graph.initializer:
        if tensor.data_type == I64:
            with np.errstate(all="ignore"):
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.int32), tensor.name))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if value.type.tensor_type.elem_type == I64:
            value.type.tensor_type.elem_type = TensorProto.INT32
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == I64:
                attribute.i = TensorProto.INT32
    onnx.save(model, out)


def ort_change_input(source: Path, out: Path) -> None:
    """Use ONNX Runtime's own OnnxModel.change_graph_input_type on every INT64 input."""
    from onnxruntime.transformers.onnx_model import OnnxModel

    model = OnnxModel(onnx.load(source))
    for value in list(model.model.graph.input):
        if value.type.tensor_type.elem_type == I64:
            model.change_graph_input_type(value, TensorProto.INT32)
    onnx.save(model.model, out)


def accel_narrow(level: str) -> Callable[[Path, Path], None]:
    """Return accel at one level, with nothing declared but what each case says."""

    def narrow(source: Path, out: Path) -> None:
        narrow_file(source, out, level=level, ranges=RANGES.get(source.stem, {}))

    return narrow


RANGES: dict[str, dict[str, tuple[int, int]]] = {
    "cast_to_bool": {"mask": (0, 2)},
    "slice_to_end": {"x": (0, 99)},
    "reshape": {"shape": (-1, 64)},
    "large_constant": {"x": (0, 5)},
}


def comparison_cases(folder: Path) -> list[tuple[Path, dict[str, np.ndarray]]]:
    """Write the files on which existing tools are known to go wrong, each with a feed that shows it."""

    def constant(name: str, value: object) -> TensorProto:
        return numpy_helper.from_array(np.array(value, np.int64), name)

    node, flt = helper.make_node, TensorProto.FLOAT
    x8 = np.arange(8, dtype=np.int64)
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    files = [
        ("slice_to_end", [node("Slice", ["x", "two", "end"], ["y"])], [info("x", I64, ["n"])], [info("y", I64, ["m"])],
         [constant("two", [2]), constant("end", [INT64_MAX])], {"x": x8}),
        ("cast_to_bool", [node("Cast", ["mask"], ["b"], to=9), node("Where", ["b", "one", "zero"], ["y"])],
         [info("mask", I64, ["n"])], [info("y", flt, ["n"])],
         [helper.make_tensor("one", flt, [1], [1.0]), helper.make_tensor("zero", flt, [1], [0.0])],
         {"mask": np.array([0, 1, 2, 0], np.int64)}),
        ("embedding", [node("Gather", ["table", "ids"], ["y"])], [info("ids", I64, ["n"])], [info("y", flt, ["n", 4])],
         [numpy_helper.from_array(rows, "table")], {"ids": np.array([0, 2, -1], np.int64)}),
        ("reshape", [node("Reshape", ["x", "shape"], ["y"])], [info("x", flt, ["a", "b"]), info("shape", I64, [2])],
         [info("y", flt, ["c", "d"])], [], {"x": rows, "shape": np.array([4, -1], np.int64)}),
        ("timestamps", [node("Sub", ["now", "then"], ["age"]), node("Div", ["age", "day"], ["y"])],
         [info("now", I64, ["n"]), info("then", I64, ["n"])], [info("y", I64, ["n"])], [constant("day", 86_400_000)],
         {"now": np.array([1_700_000_000_000], np.int64), "then": np.array([1_600_000_000_000], np.int64)}),
        ("large_constant", [node("Add", ["x", "big"], ["y"])], [info("x", I64, ["n"])], [info("y", I64, ["n"])],
         [constant("big", 2**40)], {"x": x8[:5]}),
        ("hashing", [node("Mul", ["ids", "prime"], ["m"]), node("Mod", ["m", "size"], ["y"])],
         [info("ids", I64, ["n"])], [info("y", I64, ["n"])], [constant("prime", 2654435761), constant("size", 97)],
         {"ids": np.array([3, 123456789, 2**35 + 1], np.int64)}),
        ("cumulative_sum", [node("CumSum", ["x", "axis"], ["y"])], [info("x", I64, ["n"])], [info("y", I64, ["n"])],
         [constant("axis", 0)], {"x": np.full(4, 2**30, np.int64)}),
    ]  # fmt: skip
    made = []
    for name, nodes, inputs, outputs, constants, feed in files:
        made.append((save(nodes, inputs, outputs, constants, folder / f"{name}.onnx"), feed))
    return made


def judge(source: Path, out: Path, feed: dict[str, np.ndarray]) -> str:
    """Run both files as their client would, NumPy's cast included, and compare."""
    try:
        before = _run(source, feed)
        after = _run(out, feed)
    except Exception as error:  # noqa: BLE001 - ONNX Runtime raises one class per status
        return f"crashed: {type(error).__name__}"
    same = all(a.shape == b.shape and np.array_equal(a, b.astype(a.dtype)) for a, b in zip(before, after, strict=True))
    types = {v.type.tensor_type.elem_type for v in onnx.load(out).graph.input}
    return ("right, input kept INT64" if I64 in types else "right") if same else "wrong"


def _run(path: Path, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    opened = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    fitted = {
        v.name: feed[v.name].astype(np.int32) if v.type == "tensor(int32)" else feed[v.name]
        for v in opened.get_inputs()
    }
    return opened.run(None, fitted)


def compare(folder: Path) -> dict[str, dict[str, str]]:
    """Return tool → case → verdict."""
    tools: dict[str, Callable[[Path, Path], None]] = {
        "accel io": accel_narrow("io"),
        "accel interior": accel_narrow("interior"),
        "onnxruntime change_graph_input_type": ort_change_input,
        "astype(int32) on everything": naive,
    }
    table: dict[str, dict[str, str]] = {tool: {} for tool in tools}
    for source, feed in comparison_cases(folder):
        for tool, narrow in tools.items():
            out = folder / "out.onnx"
            try:
                narrow(source, out)
            except Exception as error:  # noqa: BLE001 - a tool's crash is a result here
                table[tool][source.stem] = f"crashed: {type(error).__name__}"
                continue
            table[tool][source.stem] = judge(source, out, feed)
    return table


def main() -> None:
    """Print all tables and write the raw results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="1000,10000,100000")
    parser.add_argument("--json", type=Path, default=Path("docs/benchmarks/narrow.json"))
    parser.add_argument("--one", nargs=2, metavar=("FILE", "LEVEL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(Path(options.one[0]), options.one[1])))
        return
    results: dict[str, object] = {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
    results["cpu"] = platform.processor() or platform.machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scaling = []
        print(f"{'nodes':>8} {'level':9} {'file MiB':>9} {'narrow s':>9} {'prove s':>8} {'peak rise MiB':>14}")
        for count in (int(n) for n in options.nodes.split(",")):
            for level in ("io", "interior"):
                row = {"nodes": count, "level": level, **in_own_process(chain(count, folder / "chain.onnx"), level)}
                scaling.append(row)
                print(f"{count:8} {level:9} {row['file_mib']:9} {row['narrow_s']:9} {row['prove_s']:8} "
                      f"{row['peak_rise_mib']:14}")  # fmt: skip
        results["scaling"] = scaling
        results["external_8_gib"] = in_own_process(weights(8, folder / "weights.onnx"), "io")
        print(f"\n8 GiB of external weights: {results['external_8_gib']}\n")
        results["comparison"] = table = compare(folder)
    for tool, row in table.items():
        print(tool)
        for case, verdict in row.items():
            print(f"  {case:16} {verdict}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
