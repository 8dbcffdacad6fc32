"""An encoder's IR, quantised or not, changed while it is loaded: a row may hold several texts (``core.packed``).

Nothing here knows a model by its name. Where mask and positions come in is found by what they follow from, the mask
alone or sizes alone; that every text is answered as it is alone, the variant's gate says (``run.pack_check``).
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from accel.core.errors import InputError
from accel.core.packed import PACKED, POSITION, SHOWN, START, TEXT

ELEMENTWISE = ("Convert", "Subtract", "Multiply", "Add", "Equal", "NotEqual", "Greater", "Less", "LogicalNot", "Select")
"""What exporters make of a mask (batch, length) before it meets the scores."""
LENGTH = 6
"""Positions at which what follows from sizes or the mask is looked at."""


def pack(model: Any, mask: str) -> None:
    """Let a model take several texts in a row, in place: ``PACKED`` for the mask, and what follows from it.

    The mask that scores are filled up with, (batch, 1, …, length), becomes one of which positions see which, (rows, 1,
    …, width, width). The table of positions is read at the place within the text; where positions are counted along a
    row, counting begins anew with each text. Where there is neither, positions come in by distance, as rotations of
    both sides of a product do, or not at all; or the answers tell. What reads position 0 of each row reads the first of
    each text, and sums and means over a row are taken over each text.

    Args:
        mask: name of the input (batch, length) that is 0 at padding.

    Raises:
        InputError: mask or positions come in where none is expected, or something else is read of a row.
    """
    from openvino import opset13 as ops

    given = {name: ops.parameter([-1] * len(dims), np.int32, name=name) for name, dims in PACKED.items()}
    for name, made in given.items():
        made.output(0).set_names({name})
    parameter = model.input(mask).get_node()
    scored = _scored(model, parameter)
    placed, counted, first, sums = _by_position(model)
    if not scored or len(placed) + len(counted) > 1:
        raise _refused(
            f"the mask {mask!r} comes to scores in {len(scored)} places, and positions come in at "
            f"{len(placed) + len(counted)} (expected are encoders with one table of positions, or none)"
        )
    seen = ops.equal(ops.unsqueeze(given[TEXT], [2]), ops.unsqueeze(given[SHOWN], [1]))
    for op, (hidden, shown) in scored:
        square = ops.select(seen, shown, hidden)
        heads = op.get_output_partial_shape(0).rank.get_length() - 3
        _give(_takers(op), ops.unsqueeze(square, list(range(1, 1 + heads))) if heads else square)
    _give(_takers(parameter), ops.convert(ops.greater(given[SHOWN], np.int32(0)), parameter.get_element_type()))
    for op, begin in placed:
        place = ops.add(given[POSITION], np.int32(begin)) if begin else given[POSITION]
        op.input(1).replace_source_output(place.output(0))
    for op in counted:
        takers = _takers(op)
        _give(takers, _anew(op, given))
    for op in first:
        hidden = op.input_value(0)
        rows = ops.reshape(hidden, [-1, hidden.get_partial_shape()[2].get_length()], special_zero=False)
        _give(_takers(op), ops.gather(rows, given[START], 0))
    for op in sums:
        _give(_takers(op), _by_text(op, given))
    model.remove_parameter(parameter)
    model.add_parameters(list(given.values()))
    model.validate_nodes_and_infer_types()


def _refused(why: str) -> InputError:
    return InputError(f"no row of it can hold several texts: {why}")


def _takers(op: Any) -> list[Any]:
    return list(op.output(0).get_target_inputs())


def _give(takers: Iterable[Any], op: Any) -> None:
    for target in takers:
        target.replace_source_output(op.output(0))


def _names(op: Any) -> list[str]:
    return [value.get_node().get_name() for value in op.input_values()]


# ---------------------------------------------------------------------------------------------------------------------
# Where mask and positions come in


def _scored(model: Any, parameter: Any) -> list[tuple[Any, tuple[Any, Any]]]:
    """Return what makes (batch, 1, …, length) of the mask, each with the values of a hidden and of a shown position."""
    chain = {parameter.get_name(): parameter.output(0)}
    found = []
    for op in model.get_ordered_ops():
        known = [name for name in _names(op) if name in chain]
        shape = op.get_output_partial_shape(0) if known else None
        if shape is None or shape.rank.is_dynamic:
            continue
        middle = list(shape)[1:-1]
        if middle and all(d.is_static and d.get_length() == 1 for d in middle):
            values = _computed(model, chain[known[0]], {parameter.get_name(): np.arange(LENGTH)[None] % 2})
            kind = op.get_output_element_type(0).to_dtype()
            found.append((op, (values[0, 0].astype(kind), values[0, 1].astype(kind))))
        elif not middle and len(known) == 1 and op.get_type_name() in ELEMENTWISE:
            chain[op.get_name()] = op.output(0)
    return found


def _by_position(model: Any) -> tuple[list[tuple[Any, int]], list[Any], list[Any], list[Any]]:
    """Return what reads a table by position, what counts along rows, what reads the first of each, and what adds it up.

    Returns:
        The first with the index that position 0 has. A table that is read at one index, or by the distance of two
        positions, is none of these: it stays right.

    Raises:
        InputError: another position is read, a table in another way, or something else is made of a row.
    """
    shaped = {p.get_name() for p in model.get_parameters()}
    valued = set(shaped)
    placed, counted, first, sums = list[tuple[Any, int]](), list[Any](), list[Any](), list[Any]()
    for op in model.get_ordered_ops():
        used, kind, name = _names(op), op.get_type_name(), op.get_name()
        if kind == "CumSum" and used[0] in valued and not any(op.get_attributes().values()):  # forwards, with its own
            counted.append(op)
        elif kind.startswith("Reduce") and used[0] in valued and _over_length(op):
            if kind not in ("ReduceSum", "ReduceMean"):
                raise _refused(f"{op.get_friendly_name()} takes {kind} of a row")
            sums.append(op)
        elif kind == "Gather":
            data, index, _ = used
            if data not in shaped and index in shaped - valued:
                at = _computed(model, op.input_value(1), {})
                if at.size == LENGTH and (at == at.flat[0] + np.arange(LENGTH)).all():
                    placed.append((op, int(at.flat[0])))
                elif at.min() < at.max() and not _by_distance(at):
                    raise _refused(f"how {op.get_friendly_name()} reads a table")
            elif data in valued and index not in shaped and int(_constant(op, 2)[0]) == 1:
                if not _is_first(op):
                    raise _refused(f"{op.get_friendly_name()} reads a position")
                first.append(op)
        for held in (shaped, valued):
            if not held.isdisjoint(used) and (held is shaped or kind != "ShapeOf"):
                held.add(name)
    return placed, counted, first, sums


def _computed(model: Any, port: Any, feed: Mapping[str, np.ndarray]) -> np.ndarray:
    """Compute a value for one row of ``LENGTH``, where inputs that are not given are 0."""
    from openvino import Core, Model, opset13 as ops

    parameters = model.get_parameters()
    part = Core().compile_model(Model([ops.result(port)], parameters, "part"), "CPU")
    zeros = np.zeros((1, LENGTH))
    fed = [feed.get(p.get_name(), zeros).astype(p.get_element_type().to_dtype()) for p in parameters]
    return np.array(part(fed)[0])


def _constant(op: Any, number: int) -> list[int]:
    """Return the numbers of a constant input; none where it is computed."""
    node = op.input_value(number).get_node()
    return [int(n) for n in node.get_vector()] if node.get_type_name() == "Constant" else []


def _over_length(op: Any) -> bool:
    """Say whether a reduction is over the second axis alone, of a size that varies."""
    shape = op.input_value(0).get_partial_shape()
    if shape.rank.is_dynamic or shape.rank.get_length() not in (2, 3):
        return False
    axes = [axis % shape.rank.get_length() for axis in _constant(op, 1)]
    return axes == [1] and shape[1].is_dynamic


def _by_distance(index: np.ndarray) -> bool:
    """Say whether (length, length) indices depend on the distance of both positions alone."""
    if index.size != LENGTH * LENGTH or index.shape[-2:] != (LENGTH, LENGTH):
        return False
    square = index.reshape(LENGTH, LENGTH)
    return bool((square[1:, 1:] == square[:-1, :-1]).all())


def _is_first(op: Any) -> bool:
    """Say whether a Gather along the length reads position 0 of (batch, length, width), and drops that axis."""
    hidden = op.input_value(0).get_partial_shape()
    if hidden.rank.get_length() != 3 or not hidden[2].is_static:
        return False
    return _constant(op, 1) == [0] and not op.input_value(1).get_shape()


# ---------------------------------------------------------------------------------------------------------------------
# What is made of each text in place of each row


def _begins(given: Mapping[str, Any]) -> Any:
    """Return for each position (rows, width) where in the flattened rows its text begins."""
    from openvino import opset13 as ops

    sizes = ops.shape_of(given[POSITION], "i32")
    places = ops.range(np.int32(0), ops.reduce_prod(sizes, [0]), np.int32(1), "i32")
    return ops.subtract(ops.reshape(places, sizes, special_zero=False), given[POSITION])


def _anew(op: Any, given: Mapping[str, Any]) -> Any:
    """Return a running sum (rows, width) that begins anew with each text: less what it was before the text."""
    from openvino import opset13 as ops

    before = ops.reshape(ops.subtract(op, op.input_value(0)), [-1], special_zero=False)
    return ops.subtract(op, ops.gather(before, _begins(given), 0))


def _by_text(op: Any, given: Mapping[str, Any]) -> Any:
    """Return a sum or mean over each text (texts, …) in place of each row: a product with which position is of which.

    Whole numbers are added as float32, exactly to 2**24: they count positions.
    """
    from openvino import opset13 as ops

    kind = op.get_element_type()
    value = op.input_value(0) if kind.is_real() else ops.convert(op.input_value(0), "f32")
    begins = ops.select(ops.greater(given[TEXT], np.int32(0)), _begins(given), np.int32(-1))
    flat = ops.unsqueeze(ops.reshape(begins, [-1], special_zero=False), [0])
    member = ops.convert(ops.equal(ops.unsqueeze(given[START], [1]), flat), kind if kind.is_real() else "f32")
    rank = op.input_value(0).get_partial_shape().rank.get_length()
    width = op.input_value(0).get_partial_shape()[2].get_length() if rank == 3 else 1
    found = ops.matmul(member, ops.reshape(value, [-1, width], special_zero=False), False, False)
    if op.get_type_name() == "ReduceMean":
        found = ops.divide(found, ops.reduce_sum(member, [1], keep_dims=True))
    found = found if kind.is_real() else ops.convert(found, kind)
    kept = op.get_attributes()["keep_dims"]
    if rank == 2:
        return found if kept else ops.squeeze(found, [1])
    return ops.unsqueeze(found, [1]) if kept else found
