"""The pass that writes Fourier transforms of real signals as matrix products.

TensorRT has neither STFT nor DFT; OpenVINO 2026.4 takes an STFT of a fixed shape only, and gives the one-sided DFT an
axis too many. A network that makes its own spectrogram, or convolves by Fourier transforms, runs in both as products
with tables of cosines and sines.

Source: https://onnx.ai/onnx/operators/ (STFT, DFT).
"""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from accel.graph.narrow.integers import Names, add_constant
from accel.graph.passes import ContractPass

LONGEST = 2048
"""Points of a transform whose table is worth its size: 16 MiB."""


class FourierAsProducts(ContractPass):
    """Write STFT and one-sided DFT of fixed lengths, of FLOAT and in the main graph, as products."""

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrite those whose lengths, window and axis are constant."""
        parts = {"STFT": _stft, "DFT": _dft}
        modified = False
        for node in list(model.graph):
            part = parts.get(node.op_type) if not node.domain else None
            x = node.inputs[0] if part is not None else None
            if part is None or x is None or x.dtype != ir.DataType.FLOAT or not node.attributes.get_int("onesided", 0):
                continue
            made = part(_Writer(model, node), x)
            if made is not None:
                made.shape = node.outputs[0].shape
                ir.convenience.replace_all_uses_with(node.outputs[0], made, replace_graph_outputs=True)
                made.name, node.outputs[0].name = node.outputs[0].name, None
                modified = True
        if modified:
            RemoveUnusedNodesPass()(model)
        return ir.passes.PassResult(model, modified)


class _Writer:
    """Writes nodes and constants in front of a node."""

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self.model, self.node, self.names = model, node, Names(model)

    def constant(self, array: np.ndarray) -> ir.Value:
        return add_constant(self.model.graph, self.names.fresh(f"{self.node.outputs[0].name}__table"), array)

    def write(self, op: str, inputs: list[ir.Value], **attributes: object) -> ir.Value:
        name = self.names.fresh(f"{self.node.outputs[0].name}__{op.lower()}")
        made = ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT))
        self.model.graph.insert_before(self.node, ir.node(op, inputs, attributes, outputs=[made], name=name))
        return made

    def given(self, slot: int) -> np.ndarray | None:
        """Return a constant input; None where it is computed, or left out."""
        value = self.node.inputs[slot] if slot < len(self.node.inputs) else None
        tensor = ir.convenience.get_const_tensor(value) if value is not None else None
        return tensor.numpy() if tensor is not None else None

    def left_out(self, slot: int) -> bool:
        return slot >= len(self.node.inputs) or self.node.inputs[slot] is None


def _angles(rows: int, columns: int, points: int) -> np.ndarray:
    return 2 * np.pi * (np.outer(np.arange(rows), np.arange(columns)) % points) / points


def _spectrum(points: int, rows: int) -> np.ndarray:
    """Return the table (rows, frequencies · 2) from samples, padded with zeros, to real and imaginary parts."""
    angles = _angles(min(rows, points), points // 2 + 1, points)
    table = np.zeros((rows, angles.shape[1] * 2))
    table[: len(angles), 0::2], table[: len(angles), 1::2] = np.cos(angles), -np.sin(angles)
    return table


def _signal(points: int, frequencies: int) -> np.ndarray:
    """Return the table (frequencies · 2, points) of the inverse: what is not listed is the conjugate of what is."""
    used = min(frequencies, points // 2 + 1)
    angles = _angles(used, points, points)
    twice = np.where((np.arange(used) == 0) | (2 * np.arange(used) == points), 1, 2)[:, None] / points
    table = np.zeros((frequencies * 2, points))
    table[0 : 2 * used : 2], table[1 : 2 * used : 2] = twice * np.cos(angles), -twice * np.sin(angles)
    return table


def _stft(write: _Writer, x: ir.Value) -> ir.Value | None:
    """Write a short-time transform of (batch, samples, 1) as a strided convolution: (batch, frames, frequencies, 2)."""
    step, window, length = (write.given(slot) for slot in (1, 2, 3))
    if step is None or (window is None and (length is None or not write.left_out(2))):
        return None
    if x.shape is None or len(x.shape) != 3 or x.shape[2] != 1:
        return None
    weights = np.ones(int(length)) if window is None and length is not None else window
    assert weights is not None
    points = len(weights)
    if points > LONGEST or (length is not None and int(length) != points):
        return None
    kernel = (_spectrum(points, points) * weights[:, None]).T[:, None, :].astype(np.float32)
    line = write.write("Transpose", [x], perm=[0, 2, 1])
    found = write.write("Conv", [line, write.constant(kernel)], strides=[int(step)], kernel_shape=[points])
    frames = write.write("Transpose", [found], perm=[0, 2, 1])
    return write.write("Reshape", [frames, write.constant(np.array([0, 0, points // 2 + 1, 2]))])


def _dft(write: _Writer, x: ir.Value) -> ir.Value | None:
    """Write a transform along the last axis but one: of real samples, or back to them."""
    opset, inverse = write.model.opset_imports.get("", 1), write.node.attributes.get_int("inverse", 0)
    shape, length = x.shape, write.given(1)
    if shape is None or not isinstance(shape[-2], int) or (length is None and not write.left_out(1)):
        return None
    axis: int | None = write.node.attributes.get_int("axis", 1)
    if opset >= 20:
        given = write.given(2)
        axis = int(given) if given is not None else -2 if write.left_out(2) else None
    size, rank = shape[-2], len(shape)
    points = int(length) if length is not None else 2 * (size - 1) if inverse else size
    if axis is None or axis % rank != rank - 2 or points > LONGEST or shape[-1] != (2 if inverse else 1):
        return None
    lead = [0] * (rank - 2)
    if inverse:
        rows = write.write("Reshape", [x, write.constant(np.array([*lead, 1, 2 * size]))])
        table = write.constant(_signal(points, size).astype(np.float32))
        to = np.array([*lead, points, 1])
    else:
        rows = write.write("Reshape", [x, write.constant(np.array([*lead, 1, size]))])
        table = write.constant(_spectrum(points, size).astype(np.float32))
        to = np.array([*lead, points // 2 + 1, 2])
    return write.write("Reshape", [write.write("MatMul", [rows, table]), write.constant(to)])
