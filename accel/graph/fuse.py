"""Fuse an ONNX graph for ONNX Runtime: attention, GELU and layer norm become its own operators.

The result holds operators of the ``com.microsoft`` domain, which OpenVINO and TensorRT do not read: give it to ONNX
Runtime only.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from accel.core.errors import StageError

ATTENTION = ("attention", "mha1", "mha2", "gqa", "sdpa_via_mha")
"""Names under which the fuser counts attention layers."""


def fuse(path: Path, out: Path) -> dict[str, int]:
    """Write the fused form of the model at ``path`` to ``out``, weights in ``<out>.data`` beside it.

    Returns:
        Fusion → how many times it applied, those that did; empty where nothing changed (then nothing is written).

    Raises:
        StageError: the fuser failed on this graph.

    Source: onnxscript, ``onnxscript.rewriter.ort_fusions.optimize_for_ort``.
    """
    import onnx_ir as ir
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the rewriter's own deprecations
            model, counts = optimize_for_ort(ir.load(path))
            applied = {name: int(count) for name, count in counts.items() if count}
            if applied:
                ir.save(model, out, external_data=f"{out.name}.data")
    except Exception as error:
        raise StageError(f"the fusion of {path.name} failed: {type(error).__name__}: {error}") from error
    return applied


def lend_shapes(source: Path, typed: Path) -> None:
    """Declare in the typed form of a model the shapes that its source declares, in its own types, and write it back.

    The fuser recognises attention by shapes, which typing drops.

    Raises:
        InputError: the types of the typed graph cannot be inferred.
    """
    import onnx

    from accel.graph import measured

    model = onnx.load(str(typed), load_external_data=False)
    types = measured.float_tensors(model)
    inner = {o for node in model.graph.node for o in node.output} - {o.name for o in model.graph.output}
    model.graph.ClearField("value_info")
    for declared in onnx.load(str(source), load_external_data=False).graph.value_info:
        if declared.name in inner:
            value = model.graph.value_info.add()
            value.CopyFrom(declared)
            if declared.name in types:
                value.type.tensor_type.elem_type = types[declared.name]
    typed.write_bytes(model.SerializeToString())


def attention_layers(counts: Mapping[str, int]) -> int:
    """Return how many attention layers were fused."""
    return max((counts.get(name, 0) for name in ATTENTION), default=0)
