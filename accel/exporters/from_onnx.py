"""ONNX files as sources: checked, run unoptimised as the reference, copied with their external data."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.core.errors import InputError, StageError, UnavailableError, UsageError, first_line, raised_as
from accel.core.feeds import Feed
from accel.core.values import ModelSource, TensorSpec
from accel.exporters import masks
from accel.exporters.axes import Extent, fix_dims, known_input, profile_of, resolve
from accel.exporters.axis_trial import study
from accel.exporters.onnx_file import external_files, nodes, parse, refuse_foreign
from accel.exporters.probe import check_repeats, example_arrays
from accel.exporters.request import SourceRequest
from accel.exporters.sample_files import Call, ends_of, limited, sample_calls, shapes_of, whole_calls
from accel.exporters.sources import content_key
from accel.graph.evaluate import OLDEST, kernel_check, open_unoptimised

if TYPE_CHECKING:
    import onnx

FIXED_INSIDE = (
    "a fixed size inside the graph is the usual cause: change the export, or fix the axis with --min-shape and "
    "--max-shape"
)
SEQUENCE = Extent(1, 128, 512)
LEADING = Extent(1, 1, 16)
MOVES = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose"})
"""Operators that give the values of their first input elsewhere."""

QUANTISED = frozenset(
    {"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"}
)
"""Operators of a file that somebody quantised already."""

DRAWING = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout"}
)
"""Operators that draw random numbers; the last one in training mode."""

DATA_DEPENDENT = frozenset({"NonZero", "NonMaxSuppression", "Unique", "Compress", "Loop", "SequenceAt"})
"""Operators behind which the size of an axis may follow from values."""


def check_file(path: Path) -> None:
    """Run onnx.checker in full, after making sure that the file points inside its folder and holds nothing foreign.

    Raises:
        InputError: the checker rejects it (a cycle, a bad type, an unknown operator…).
    """
    import onnx

    external_files(path)
    refuse_foreign(path)
    with raised_as(
        InputError,
        (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, RuntimeError, ValueError),
        f"{path.name} is not a valid ONNX model",
        fix="export it again",
        say=first_line,
    ):
        try:
            onnx.checker.check_model(str(path), full_check=True)
        except onnx.checker.ValidationError as error:
            if "topologically sorted" not in str(error):
                raise
            onnx.checker.check_model(_in_order(path), full_check=True)


def _in_order(path: Path) -> "onnx.ModelProto":
    """Return a file's graph, its nodes sorted as ONNX wants them and as ONNX Runtime sorts them by itself.

    Converters to half precision put their casts at the end. Weights in external data are inputs here: the checker would
    look for their files in the working directory.

    Raises:
        ValueError: the graph has a cycle.
    """
    import onnx_ir as ir
    from onnx_ir.passes.common import TopologicalSortPass

    from accel.graph import passes

    model = passes.load(path)
    TopologicalSortPass()(model)
    for name, value in list(model.graph.initializers.items()):
        if isinstance(value.const_value, ir.ExternalTensor):
            value.dtype, value.shape = value.const_value.dtype, ir.Shape(value.const_value.shape)
            del model.graph.initializers[name]
            model.graph.inputs.append(value)
    return ir.to_proto(model)


def graph_specs(model: "onnx.ModelProto") -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the inputs (initialisers left out) and outputs as the graph declares them.

    An axis without a size or a name (``?`` is none) gets one: ``batch`` in front, else ``<tensor>_<axis>``. A scalar
    has the dims (1,): Triton has no tensors without dims.

    Raises:
        InputError: an input or output that is not a tensor, or has no shape.
    """
    constants = {t.name for t in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.name not in constants]
    return tuple(_spec(v) for v in inputs), tuple(_spec(v) for v in model.graph.output)


def _spec(value: "onnx.ValueInfoProto") -> TensorSpec:
    import onnx

    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise InputError(
            f"{value.name!r} is not a tensor with a shape: clients could not know what to send or what comes",
            fix="keep the part between tensors with onnx.utils.extract_model(IN, OUT, INPUTS, OUTPUTS), or declare the "
            "shape in the file (onnx.shape_inference finds most)",
        )
    try:
        dtype = str(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)))
    except (KeyError, TypeError) as error:
        raise InputError(f"{value.name!r} has the element type {kind.elem_type}, which NumPy lacks") from error
    dims: list[int | str] = []
    for axis, dim in enumerate(kind.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value > 0:
            dims.append(int(dim.dim_value))
        else:
            named = dim.dim_param if re.search(r"[A-Za-z]", dim.dim_param) else None
            dims.append(named or ("batch" if axis == 0 else f"{value.name}_{axis}"))
    return TensorSpec(value.name, dtype, tuple(dims) or (1,))


def describe(request: SourceRequest) -> ModelSource:
    """Describe an ONNX file: names and dtypes as it has them, axes as a trial shows them (``axis_trial``).

    Raises:
        InputError: broken, or reaching outside its folder.
        UsageError: nothing says which sizes a dynamic axis takes, or it does not take those that were given.
        StageError: the model does not run at its smallest sizes, or at others that the user asked for.
    """
    path = Path(request.reference)
    key = content_key(request)
    check_file(path)
    graph = parse(path)
    declared, outputs = graph_specs(graph)
    session = open_source(path)
    answer = answers(session, [o.name for o in outputs])
    names = [s.name for s in declared]
    calls = sample_calls(request.samples, names)
    whole = whole_calls(calls, names)
    inputs, notices = _renamed(limited(declared, whole), request, whole, answer)
    axes: dict[str, Extent] = {}
    guessed: dict[str, str] = {}
    for spec in inputs:
        for axis, dim in enumerate(spec.dims):
            if isinstance(dim, str) and dim not in axes:
                axes[dim], guessed[dim] = _extent(request, spec, axis, calls)
    inputs, profile, fixed = resolve(inputs, profile_of(inputs, axes), request)
    if request.samples is None:
        inputs, assumed_ranges = _ranged(inputs, graph.graph)
        notices += assumed_ranges
    inputs, assumed_mask = _masked(inputs, request, calls)
    notices += assumed_mask
    shaped = {*request.min_shapes, *request.opt_shapes, *request.max_shapes}
    found = study(
        answer,
        inputs,
        [TensorSpec(o.name, o.dtype, fix_dims(o, fixed)) for o in outputs],
        profile,
        given={d for s in inputs if s.name in shaped for d in s.dims if isinstance(d, str)},
        data_dependent=any(node.op_type in DATA_DEPENDENT for node in nodes(graph.graph)),
    )
    drawing = sorted({n.op_type for n in nodes(graph.graph) if n.op_type in DRAWING})
    check_repeats(answer, found.inputs, found.profile, drawing)
    if key is None:
        raise InputError(f"{path} vanished while it was read")
    if too_old(path):
        notices.append(
            f"its opset is raised to {OLDEST}, the oldest that ONNX Runtime runs: answers are held against the model "
            "as onnx.version_converter brings it there"
        )
    assumed = "axis {!r}: sizes {} to {} {} (--min-shape, --shape and --max-shape set them)"
    notices += [assumed.format(n, axes[n].min, axes[n].max, how) for n, how in guessed.items() if how]
    source = request.source(
        "onnx",
        key=key,
        inputs=found.inputs,
        outputs=found.outputs,
        profile=found.profile,
        samples=request.samples or "random",
        notices=[*notices, *found.notices],
    )
    quantised = any(node.op_type in QUANTISED for node in nodes(graph.graph))
    return dataclasses.replace(source, computes="int8" if quantised else "fp32")


def _ranged(inputs: tuple[TensorSpec, ...], graph: "onnx.GraphProto") -> tuple[tuple[TensorSpec, ...], list[str]]:
    """Bound integer inputs without a range by the constant tables that they index.

    Returns:
        The inputs, and what to tell the user.
    """
    tables = {tensor.name: tensor.dims for tensor in graph.initializer}
    origin = {s.name: s.name for s in inputs if "int" in s.dtype and s.range is None}
    rows: dict[str, int] = {}
    for node in graph.node:
        if node.op_type in MOVES and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        elif node.op_type == "Gather" and node.input[0] in tables and node.input[1] in origin:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
            name, size = origin[node.input[1]], tables[node.input[0]][axis]
            rows[name] = min(size, rows.get(name, size))
    inputs = tuple(dataclasses.replace(s, range=(0, rows[s.name] - 1)) if s.name in rows else s for s in inputs)
    said = "input {!r}: values 0 to {} assumed, the rows of the table that it indexes (--range sets them)"
    return inputs, [said.format(name, size - 1) for name, size in rows.items()]


def _masked(
    inputs: tuple[TensorSpec, ...], request: SourceRequest, calls: Sequence[Call]
) -> tuple[tuple[TensorSpec, ...], list[str]]:
    """Bound a mask without a range: by 0 and 1, or what the samples have beyond them.

    Returns:
        The inputs, and what to tell the user.
    """
    name = masks.usual(inputs) if request.mask is None else request.mask
    found = next((s for s in inputs if s.name == name and "int" in s.dtype and s.range is None), None)
    if found is None:
        return inputs, []
    low, high = ends_of(calls, found.name) or (0, 1)
    bounds = (min(low, 0), max(high, 1))
    said = f"input {name!r}: values {bounds[0]} to {bounds[1]} assumed, as of a mask (--range sets them)"
    return tuple(dataclasses.replace(s, range=bounds) if s is found else s for s in inputs), [said]


def _renamed(
    inputs: tuple[TensorSpec, ...],
    request: SourceRequest,
    calls: Sequence[Call],
    answer: Callable[[Feed], Mapping[str, np.ndarray]],
) -> tuple[tuple[TensorSpec, ...], list[str]]:
    """Name axes as the user says, and apart where the sizes that the user gives one name differ, or those within one
    sample, and the model takes them.

    Args:
        calls: what the samples show of all inputs.

    Returns:
        The inputs, and what to tell the user.

    Raises:
        UsageError: the user names an axis that does not exist.
    """
    known = {f"{s.name}:{axis}" for s in inputs for axis in range(len(s.dims))}
    for place in request.axis_names:
        known_input(place, known, "--rename-axes")

    def dims(
        specs: Sequence[TensorSpec], name: Callable[[TensorSpec, int, int | str], int | str]
    ) -> tuple[TensorSpec, ...]:
        return tuple(dataclasses.replace(s, dims=tuple(name(s, *dim) for dim in enumerate(s.dims))) for s in specs)

    def chosen(spec: TensorSpec, axis: int, dim: int | str) -> int | str:
        only = spec.name in request.states and sum(isinstance(d, str) for d in spec.dims) == 1
        usual = "batch" if only else dim  # of a state nothing else may vary
        return request.axis_names.get(f"{spec.name}:{axis}", usual) if isinstance(dim, str) else dim

    inputs = dims(inputs, chosen)
    every = (request.min_shapes, request.opt_shapes, request.max_shapes)
    calls = [call for call in calls if all(len(call[s.name].shape) == len(s.dims) for s in inputs)]
    given: dict[str, dict[str, tuple[int | None, ...]]] = {}  # axis → the places that have its name → their sizes
    for spec in inputs:
        for axis, dim in enumerate(spec.dims):
            found = tuple(s[spec.name][axis] if len(s.get(spec.name, ())) == len(spec.dims) else None for s in every)
            found += tuple(call[spec.name].shape[axis] for call in calls)
            if isinstance(dim, str) and any(found):
                given.setdefault(dim, {})[f"{spec.name}_{axis}"] = found
    shared = {dim: places for dim, places in given.items() if len(set(places.values())) > 1}
    apart = {place for places in shared.values() for place in places}

    def own(spec: TensorSpec, axis: int, dim: int | str) -> int | str:
        return place if (place := f"{spec.name}_{axis}") in apart else dim

    split = dims(inputs, own)
    shapes = {s.name: tuple(d if isinstance(d, int) else 1 for d in s.dims) for s in split}
    shapes |= {name: one.shape for name, one in calls[0].items()} if calls else {}
    shapes |= {s.name: sizes[s.name] for sizes in reversed(every) for s in split if s.name in sizes}
    try:
        if apart:
            answer(example_arrays(split, shapes))
    except (StageError, ValueError):
        return inputs, []  # one axis it is: ``resolve`` says which sizes contradict each other
    return split, [f"axes that are all called {n!r} have sizes of their own: {', '.join(p)}" for n, p in shared.items()]


def _extent(request: SourceRequest, spec: TensorSpec, axis: int, calls: Sequence[Call]) -> tuple[Extent, str]:
    """Find the sizes of an axis in the user's shapes, assume some for a batch and a sequence, else ask the samples.

    Of the first axis the samples show more where they differ: as many as the largest of them has.

    Returns:
        The sizes, and how they were found where the user did not say them.
    """
    every = (request.min_shapes, request.opt_shapes, request.max_shapes)
    given = [s[spec.name][axis] for s in every if spec.name in s and axis < len(s[spec.name])]
    name = str(spec.dims[axis])
    seen = [s[axis] for s in shapes_of(calls, spec.name) if len(s) == len(spec.dims)]
    if axis == 0 and not given and len(set(seen)) > 1:
        return Extent(1, seen[0], max(LEADING.max, *seen)), "as in the samples" if max(seen) > LEADING.max else ""
    if axis == 0:
        return Extent(1, LEADING.opt, max([LEADING.max, *given])), ""
    if given:
        return Extent(min(given), given[-1], max(given)), ""
    if "seq" in name.lower():
        return SEQUENCE, "assumed"
    if seen:
        return Extent(min(seen), seen[0], max(seen)), "as in the samples"
    raise UsageError(
        f"nothing says which sizes axis {axis} ({name!r}) of input {spec.name!r} takes",
        fix=f"give --min-shape, --shape and --max-shape for {spec.name}, or --samples FILE.npz with real ones",
    )


def answers(session: Any, outputs: Sequence[str]) -> Callable[[Feed], dict[str, np.ndarray]]:
    """Return what runs an unoptimised session for clients, who see a scalar as a tensor of one element."""
    scalars = {i.name for i in session.get_inputs() if not i.shape}

    def answer(feed: Feed) -> dict[str, np.ndarray]:
        found = run_session(session, {n: v.reshape(()) if n in scalars else v for n, v in feed.items()}, outputs)
        return {name: value if value.ndim else value.reshape(1) for name, value in found.items()}

    return answer


def open_source(path: Path) -> Any:
    """Open a source's file unoptimised, with its opset raised where it is ``too_old``.

    Raises:
        UnavailableError: as ``open_unoptimised``; StageError: its opset cannot be raised.
    """
    import onnx_ir as ir

    from accel.graph import passes
    from accel.graph.opset import RaiseOpset

    try:
        return open_unoptimised(path)
    except UnavailableError:
        if not too_old(path):
            raise
    model = passes.load(path)
    passes.run(model, RaiseOpset(OLDEST))
    return open_unoptimised(path, ir.to_proto(model).SerializeToString())


def too_old(path: Path) -> bool:
    """Say whether a file has an opset before the oldest that ONNX Runtime runs, and an operator that it lacks."""
    opsets = [o.version for o in parse(path).opset_import if o.domain in ("", "ai.onnx")]
    return min(opsets, default=OLDEST) < OLDEST and not kernel_check()(str(path))


def run_session(session: Any, feed: Mapping[str, np.ndarray], outputs: Sequence[str]) -> dict[str, np.ndarray]:
    """Run an unoptimised session.

    Raises:
        StageError: ONNX Runtime raised; the message names the shapes.
    """
    try:
        return dict(zip(outputs, session.run(list(outputs), dict(feed)), strict=True))
    except Exception as error:
        shapes = ", ".join(f"{n} {v.dtype}{list(v.shape)}" for n, v in feed.items())
        raise StageError(
            f"the ONNX model failed on {shapes}: {first_line(error)}",
            fix=FIXED_INSIDE,
        ) from error


def copy(source: ModelSource, origin: Path, path: Path) -> None:
    """Copy a source's ONNX file and its external data to ``path``'s folder, under the names the file uses.

    Nodes that are not in their order are sorted, and an opset that is ``too_old`` is raised. Inputs take what clients
    send, with a cast where the model wants another type. Axes get the source's names, those that are fixed their size,
    and scalars one axis; an ``If`` that the declared ranges and shapes decide gives way to its branch. All else stays
    byte for byte. A size that contradicts a branch which never runs, as it would for ONNX Runtime, stays undeclared.

    Raises:
        InputError: external data outside the source's folder, missing or truncated.
        OutputError: the folder cannot be written.
    """
    from onnx_ir.passes.common import TopologicalSortPass

    from accel.graph import passes
    from accel.graph.branches import TakeBranches
    from accel.graph.interface import CastInputs, DeclareAxes, ScalarsAsVectors
    from accel.graph.opset import RaiseOpset

    external_files(origin)
    specs = (*source.inputs, *source.outputs)
    ranges = {s.name: s.range for s in source.inputs if s.range is not None}
    taken = TakeBranches(ranges=ranges, shapes=source.profile)
    first = [TopologicalSortPass(), *([RaiseOpset(OLDEST)] if too_old(origin) else [])]
    casts = CastInputs({s.name: s.dtype for s in source.inputs if s.name in source.native})
    passes.rewrite(origin, path, *first, ScalarsAsVectors(), casts, DeclareAxes(specs), taken)
    branches = any(node.op_type == "If" for node in nodes(parse(path).graph))
    if branches and not kernel_check(optimised=True)(str(path)):
        free = [
            dataclasses.replace(
                s, dims=tuple(d if isinstance(d, str) else f"{s.name}_{i}" for i, d in enumerate(s.dims))
            )
            for s in specs
        ]
        passes.rewrite(origin, path, *first, ScalarsAsVectors(), casts, DeclareAxes(free))
