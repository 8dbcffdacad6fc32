"""Which operations OpenVINO's CPU plugin really computes in int32, measured.

Each ONNX operator gets int64 values beyond 32 bits in a one-node model, once compiled for the CPU plugin and once
computed with NumPy. ``exact`` means that every value came back; ``wraps`` that each wrong value is the right one
modulo 2**32;
``saturates`` that each wrong value is the nearest int32; ``differs`` anything else. The same operators then get values
inside int32 but above 2**24, to see whether a float takes part.

    python benchmarks/openvino_int64.py [--json FILE]
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino
from onnx import TensorProto, helper

LARGE = np.array([2**40 + 1, -(2**40) - 3, 2**31, 2**31 + 7, 2**32, 2**32 + 5, -(2**31) - 1, 2**62, 5, -9], np.int64)
SMALL = np.array([2**24 + 1, -(2**24) - 3, 2**30 + 1, -(2**30) - 7, 123456789, -87654321, 5, 1, -1, -9], np.int64)
ONE = np.array([1], np.int64)

Case = tuple[str, list[np.ndarray], dict[str, object], np.ndarray]


def cases(x: np.ndarray) -> list[Case]:
    """Return operator, inputs, attributes and the right answer, for one vector of values."""
    y, many = x[::-1].copy(), np.stack([x, x])
    picks = np.array([3, 0, 9], np.int64)
    divided = np.where(x < 0, -(-x // 7), x // 7)
    return [
        ("Identity", [x], {}, x),
        ("Add", [x, ONE], {}, x + 1),
        ("Sub", [x, ONE], {}, x - 1),
        ("Mul", [x, ONE], {}, x),
        ("Div", [x, 7 * ONE], {}, divided),
        ("Mod", [x, 7 * ONE], {}, x % 7),
        ("Neg", [x], {}, -x),
        ("Abs", [x], {}, abs(x)),
        ("Sign", [x], {}, np.sign(x)),
        ("Max", [x, y], {}, np.maximum(x, y)),
        ("Min", [x, y], {}, np.minimum(x, y)),
        ("Equal", [x, y], {}, x == y),
        ("Less", [x, y], {}, x < y),
        ("Where", [x > y, x, y], {}, np.where(x > y, x, y)),
        ("Clip", [x, np.array(-(2**20)), np.array(2**20)], {}, np.clip(x, -(2**20), 2**20)),
        ("Gather", [x, picks], {}, x[picks]),
        ("Concat", [x, y], {"axis": 0}, np.concatenate([x, y])),
        ("Slice", [x, ONE, 5 * ONE], {}, x[1:5]),
        ("Reshape", [x, np.array([2, -1])], {}, x.reshape(2, -1)),
        ("Transpose", [many], {"perm": [1, 0]}, many.T),
        ("Expand", [x, np.array([2, 10])], {}, many),
        ("ReduceSum", [x], {"keepdims": 1}, x.sum(keepdims=True)),
        ("ReduceMin", [x], {"keepdims": 1}, x.min(keepdims=True)),
        ("ReduceProd", [x[:1]], {"keepdims": 1}, x[:1]),
        ("Pow", [x, ONE], {}, x),
        ("Mod with fmod", [x, 7 * ONE], {"fmod": 1}, np.fmod(x, 7)),
        ("Greater", [x, y], {}, x > y),
        ("Tile", [x, 2 * ONE], {}, np.concatenate([x, x])),
        ("Pad", [x, np.array([1, 0])], {}, np.concatenate([0 * ONE, x])),
        ("GatherElements", [x, picks], {}, x[picks]),
        ("GatherND", [x, picks[:, None]], {}, x[picks]),
        ("BitwiseXor", [x, y], {}, x ^ y),
        ("BitwiseNot", [x], {}, ~x),
        (
            "Cast to INT32",
            [np.clip(x, -(2**31), 2**31 - 1)],
            {"to": 6},
            np.clip(x, -(2**31), 2**31 - 1).astype(np.int32),
        ),
        ("Trilu", [many], {}, np.triu(many)),
        ("ReduceMax", [x], {"keepdims": 1}, x.max(keepdims=True)),
        ("CumSum", [x, np.array(0)], {}, np.cumsum(x)),
        ("TopK", [x, 3 * ONE], {}, np.sort(x)[::-1][:3]),
        ("Cast to FLOAT", [x], {"to": TensorProto.FLOAT}, x.astype(np.float32)),
        ("Cast to DOUBLE", [x], {"to": TensorProto.DOUBLE}, x.astype(np.float64)),
        ("Cast to BOOL", [x], {"to": TensorProto.BOOL}, x != 0),
        ("BitwiseAnd", [x, y], {}, x & y),
        ("ScatterElements", [x, picks, x[:3]], {}, _scattered(x, picks)),
    ]


def _scattered(x: np.ndarray, picks: np.ndarray) -> np.ndarray:
    copy = x.copy()
    copy[picks] = x[:3]
    return copy


def compute(case: Case, *, constants: Sequence[int] = ()) -> np.ndarray:
    """Run one operator on OpenVINO's CPU plugin; inputs named in ``constants`` become initialisers."""
    name, inputs, attributes, right = case
    op = name.split()[0]
    values = [np.asarray(v) for v in inputs]
    fixed = {*constants, *((1, 2) if op in ("Reshape", "Expand", "TopK", "CumSum", "Tile", "Pad") else ())}
    outputs = ["y", "index"] if op == "TopK" else ["y"]
    node = helper.make_node(op, [f"i{n}" for n in range(len(values))], outputs, **attributes)
    kinds = [helper.np_dtype_to_tensor_dtype(v.dtype) for v in values]
    given = [helper.make_tensor_value_info(f"i{n}", kinds[n], v.shape) for n, v in enumerate(values) if n not in fixed]
    held = [helper.make_tensor(f"i{n}", kinds[n], v.shape, v.reshape(-1)) for n, v in enumerate(values) if n in fixed]
    made = [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(right.dtype), right.shape)]
    graph = helper.make_graph([node], "one", given, made, held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    compiled = openvino.Core().compile_model(
        openvino.Core().read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    feed = {f"i{n}": v for n, v in enumerate(values) if n not in fixed}
    return np.asarray(compiled(feed)[0])


def verdict(found: np.ndarray, right: np.ndarray) -> str:
    """Say how a result differs from the right one."""
    if found.dtype == right.dtype and np.array_equal(found, right):
        return "exact"
    wrong = found != right
    if right.dtype != np.int64:
        return f"differs ({int(wrong.sum())} of {right.size})"
    if np.array_equal(found[wrong], right[wrong].astype(np.int32)):
        return "wraps"
    limits = np.iinfo(np.int32)
    if np.array_equal(found[wrong], np.clip(right[wrong], limits.min, limits.max)):
        return "saturates"
    return f"differs ({int(wrong.sum())} of {right.size})"


def measure() -> dict[str, dict[str, str]]:
    """Return for each operator the verdict on large values and on values inside int32."""
    table: dict[str, dict[str, str]] = {}
    for column, x in (("beyond int32", LARGE), ("inside int32", SMALL)):
        for case in cases(x):
            try:
                answer = verdict(compute(case), case[3])
            except RuntimeError as error:
                answer = "refused: " + str(error).strip().splitlines()[-1][:60]
            table.setdefault(case[0], {})[column] = answer
    return table


def slice_markers() -> dict[str, str]:
    """Say whether INT64_MAX and INT64_MIN in Slice keep their meaning."""
    x = np.arange(7, dtype=np.float32)
    top, bottom = np.array([2**63 - 1]), np.array([-(2**63)])
    found = {
        "INT64_MAX as end": (("Slice", [x, 2 * ONE, top], {}, x[2:]), (1, 2)),
        "INT64_MIN as end, step -1": (
            ("Slice", [x, top, bottom, 0 * ONE, -ONE], {}, x[::-1]),
            (1, 2, 3, 4),
        ),
        "INT64_MIN as start": (("Slice", [x, bottom, 3 * ONE], {}, x[:3]), (1, 2)),
        "-INT64_MAX as end, step -1": (("Slice", [x, top, -top, 0 * ONE, -ONE], {}, x[::-1]), (1, 2, 3, 4)),
        "beyond INT32 as end": (("Slice", [x, 2 * ONE, (2**32 + 3) * ONE], {}, x[2:]), (1, 2)),
    }
    return {name: verdict(compute(case, constants=fixed), case[3]) for name, (case, fixed) in found.items()}


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    options = parser.parse_args()
    table, markers = measure(), slice_markers()
    print(f"OpenVINO {openvino.__version__}, CPU plugin\n")
    print(f"{'operator':18} {'beyond int32':24} inside int32")
    for op, row in table.items():
        print(f"{op:18} {row['beyond int32']:24} {row['inside int32']}")
    print()
    for name, answer in markers.items():
        print(f"{name:28} {answer}")
    if options.json:
        whole = {"openvino": openvino.__version__, "operators": table, "slice_markers": markers}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
