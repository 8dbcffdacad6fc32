"""Fuse an ONNX graph for ONNX Runtime: attention, GELU and layer norm become its own operators.

The result holds operators of the ``com.microsoft`` domain, which OpenVINO and TensorRT do not read: give it to ONNX
Runtime only.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from accel.errors import StageError

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


def attention_layers(counts: Mapping[str, int]) -> int:
    """Return how many attention layers were fused."""
    return max((counts.get(name, 0) for name in ATTENTION), default=0)
