"""Random integer graphs for property tests: arithmetic, selection, shapes, casts, with inputs of random ranges."""

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

INT64_MAX, INT64_MIN = 2**63 - 1, -(2**63)
BINARY = ("Add", "Sub", "Mul", "Max", "Min", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Where")
UNARY = (
    "Neg", "Abs", "Sign", "Div", "Mod", "FMod", "Clip", "Gather", "CumSum", "CastChain", "Floats", "ReduceSum",
    "ReduceMax",
    "ReduceMin", "ReduceProd", "Square", "Not", "Slice", "Reverse", "Pad", "Trilu", "Scatter", "Compare", "Bools",
)  # fmt: skip
SOURCES = ("ArgMax", "TopK", "Size", "Rows", "ShapeMath", "Range", "NonZero", "Reshape", "Tile", "OneHot", "Filled")


@dataclass
class IntegerGraph:
    """A model under construction; ``wide`` values broadcast to (batch, 4), and ONNX Runtime runs all nodes."""

    ranges: dict[str, tuple[int, int]]
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    wide: list[str] = field(default_factory=list)
    opset: int = 18

    def constant(self, value: object, dtype: type = np.int64) -> str:
        """Add an initialiser."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(value, dtype), name))
        return name

    def node(self, op: str, inputs: list[str], outputs: int = 1, **attributes: object) -> list[str]:
        """Add a node."""
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name=f"n{len(self.nodes)}", **attributes))
        return names

    def full(self, name: str) -> str:
        """Broadcast a value to (batch, 4)."""
        return self.node("Expand", [name, self.node("Shape", ["x"])[0]])[0]

    def model(self, outputs: list[str]) -> ModelProto:
        """Return the model with these INT64 outputs of shape (batch, 4)."""
        inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", 4]) for n in self.ranges]
        made = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", 4]) for n in outputs]
        graph = helper.make_graph(self.nodes, "random", inputs, made, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)


NUMBERS = st.one_of(
    st.integers(-9, 9), st.sampled_from([31, -64, 1000, 2**16, 2**31 - 1, -(2**31), 2**31, 2**40, INT64_MAX, INT64_MIN])
)


@st.composite
def input_ranges(draw: st.DrawFn) -> tuple[int, int]:
    """Draw a range that may or may not fit int32."""
    a, b = draw(NUMBERS), draw(NUMBERS)
    return min(a, b), max(a, b)


@st.composite
def graphs(draw: st.DrawFn) -> IntegerGraph:
    """Draw a graph of up to eight operations on one or two inputs."""
    g = IntegerGraph({"x": draw(input_ranges())})
    if draw(st.booleans()):
        g.ranges["y"] = draw(input_ranges())
    g.wide = list(g.ranges)
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(BINARY + UNARY + SOURCES))
        a, b = draw(st.sampled_from(g.wide)), draw(st.sampled_from(g.wide))
        g.wide.append(_apply(g, draw, kind, a, b))
    return g


def _apply(g: IntegerGraph, draw: st.DrawFn, kind: str, a: str, b: str) -> str:
    if kind in BINARY:
        if draw(st.booleans()):
            b = g.constant(draw(st.one_of(NUMBERS, st.lists(NUMBERS, min_size=4, max_size=4))))
        if kind == "Where":
            return g.node("Where", [g.node("Less", [a, g.constant(draw(NUMBERS))])[0], a, b])[0]
        return g.node(kind, [a, b])[0]
    return _source(g, draw, kind, a) if kind in SOURCES else _unary(g, draw, kind, a)


def _unary(g: IntegerGraph, draw: st.DrawFn, kind: str, a: str) -> str:
    divisor = g.constant(draw(st.sampled_from([2, 3, -4, 7, 2**33])))
    low = draw(st.integers(-5, 5))
    if kind in ("Neg", "Abs", "Sign"):
        return g.node(kind, [a])[0]
    if kind in ("Div", "Mod", "FMod"):
        return g.node("Mod", [a, divisor], fmod=1)[0] if kind == "FMod" else g.node(kind, [a, divisor])[0]
    if kind == "Clip":
        return g.node("Clip", [a, g.constant(low), g.constant(draw(st.integers(low, 2**33)))])[0]
    if kind == "Gather":
        table = g.constant(draw(st.lists(NUMBERS, min_size=5, max_size=5)))
        return g.node("Gather", [table, g.node("Mod", [a, g.constant(5)])[0]])[0]
    if kind == "CumSum":
        flags = {"exclusive": int(draw(st.booleans())), "reverse": int(draw(st.booleans()))}
        return g.node("CumSum", [g.full(a), g.constant(1)], **flags)[0]
    if kind == "CastChain":
        to = draw(st.sampled_from([TensorProto.INT32, TensorProto.BOOL, TensorProto.UINT8, TensorProto.INT8]))
        return g.node("Cast", [g.node("Cast", [a], to=to)[0]], to=TensorProto.INT64)[0]
    if kind == "Floats":
        small = g.node("Clip", [a, g.constant(-(2**40)), g.constant(2**40)])[0]
        to = draw(st.sampled_from([TensorProto.FLOAT, TensorProto.DOUBLE]))
        number = g.node("Cast", [small], to=to)[0]
        half = g.constant(0.37, np.float32 if to == TensorProto.FLOAT else np.float64)
        number = g.node(draw(st.sampled_from(["Add", "Mul", "Sub"])), [number, half])[0]
        return g.node("Cast", [g.node(draw(st.sampled_from(["Floor", "Ceil", "Round"])), [number])[0]], to=7)[0]
    if kind.startswith("Reduce"):
        return g.node(kind, [g.full(a), g.constant([1])], keepdims=1)[0]
    if kind == "Square":
        return g.node("Mul", [a, a])[0]
    if kind == "Not":
        return g.node("BitwiseNot", [a])[0]
    if kind == "Slice":
        at, axis = g.constant([draw(st.integers(0, 4))]), g.constant([1])
        head = g.node("Slice", [g.full(a), g.constant([0]), at, axis])[0]
        tail = g.node("Slice", [g.full(a), at, g.constant([INT64_MAX]), axis])[0]
        return g.node("Concat", [tail, head], axis=1)[0]
    if kind == "Reverse":
        ends = [g.constant([INT64_MAX]), g.constant([INT64_MIN]), g.constant([1]), g.constant([-1])]
        return g.node("Slice", [g.full(a), *ends])[0]
    if kind == "Pad":
        padded = g.node("Pad", [g.full(a), g.constant([0, 1, 0, 0]), g.constant(draw(NUMBERS))])[0]
        return g.node("Slice", [padded, g.constant([0]), g.constant([4]), g.constant([1])])[0]
    if kind == "Trilu":
        return g.node("Trilu", [g.full(a)], upper=int(draw(st.booleans())))[0]
    if kind == "Scatter":
        where = g.node("Mod", [g.full(a), g.constant(4)])[0]
        return g.node("ScatterElements", [g.full(a), where, g.full("x")], axis=1)[0]
    if kind == "Bools":
        answer = g.node("Cast", [a], to=TensorProto.BOOL)[0]
        return g.node("Cast", [g.node("Not", [answer])[0]], to=TensorProto.INT64)[0]
    return g.node("Cast", [g.node(draw(st.sampled_from(["Less", "Equal", "Greater"])), [a, "x"])[0]], to=7)[0]


def _source(g: IntegerGraph, draw: st.DrawFn, kind: str, a: str) -> str:
    if kind == "ArgMax":
        number = g.node("Cast", [g.full(a)], to=TensorProto.FLOAT)[0]
        return g.node(draw(st.sampled_from(["ArgMax", "ArgMin"])), [number], axis=1)[0]
    if kind == "TopK":
        picked = g.node("TopK", [g.full(a), g.constant([4])], 2, axis=1)
        return picked[draw(st.integers(0, 1))]
    if kind == "Size":
        return g.node("Size", [a])[0]
    shape = g.node("Shape", ["x"])[0]
    if kind == "Rows":
        return g.node("Gather", [shape, g.constant(draw(st.sampled_from([0, -1])))])[0]
    if kind == "ShapeMath":
        rows = g.node("Slice", [shape, g.constant([0]), g.constant([1])])[0]
        both = g.node("Concat", [rows, g.constant([draw(st.integers(-3, 3))])], axis=0)[0]
        total = g.node("ReduceProd", [both], keepdims=0)[0]
        return g.node("Add", [g.node("Squeeze", [rows])[0], total])[0]
    if kind == "Range":
        width = g.node("Gather", [shape, g.constant(1)])[0]
        start = g.constant(draw(st.integers(-3, 3)))
        end = g.node("Add", [start, width])[0]
        return g.node("Range", [start, end, g.constant(1)])[0]
    if kind == "NonZero":
        found = g.node("NonZero", [g.full(a)])[0]
        whole = g.node("Concat", [found, g.constant([[0], [0]])], axis=1)[0]
        row = g.node("Gather", [whole, g.constant(draw(st.integers(0, 1)))])[0]
        return g.node("Gather", [row, g.constant(0)])[0]
    if kind == "Reshape":
        turned = g.node("Transpose", [g.full(a)], perm=[1, 0])[0]
        return g.node("Reshape", [turned, shape])[0]
    if kind == "Tile":
        row = g.node("Gather", [g.full(a), g.constant(0)])[0]
        twice = g.node("Tile", [row, g.constant([2])])[0]
        return g.node("Slice", [twice, g.constant([3]), g.constant([-1])])[0]
    if kind == "OneHot":
        which = g.node("Mod", [g.full(a), g.constant(4)])[0]
        hot = g.node("OneHot", [which, g.constant(3), g.constant([draw(NUMBERS), draw(NUMBERS)])])[0]
        return g.node("Gather", [hot, g.constant(draw(st.integers(0, 2)))], axis=-1)[0]
    value = helper.make_tensor("value", TensorProto.INT64, [1], [draw(NUMBERS)])
    return g.node("ConstantOfShape", [shape], value=value)[0]


def feeds(g: IntegerGraph, seed: int) -> list[dict[str, np.ndarray]]:
    """Return feeds at both ends of every range and inside, for batches of 1, 2 and 5."""
    random = np.random.default_rng(seed)
    made = []
    for batch, place in ((1, "low"), (2, "high"), (5, "inside"), (3, "mixed")):
        feed = {}
        for name, (lo, hi) in g.ranges.items():
            if place == "inside":
                value = random.integers(lo, hi, (batch, 4), endpoint=True, dtype=np.int64)
            elif place == "mixed":
                value = random.choice(np.array([lo, hi], np.int64), (batch, 4))
            else:
                value = np.full((batch, 4), lo if place == "low" else hi, np.int64)
            feed[name] = value
        made.append(feed)
    return made
