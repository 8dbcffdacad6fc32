"""What clients of a run see, once integers have been narrowed: one contract for every variant.

The exported ONNX is narrowed where that is proved (``accel.graph.narrow``); the dtypes of the result are the contract,
and a variant that wants int64 inside casts at its own inputs. Ranges that the proof rests on become ranges of the
inputs, which sessions and servers check before they cast.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from accel.core.values import ModelSource, OnnxModel, TensorSpec
from accel.graph.narrow.report import NarrowReport


@dataclass(frozen=True, slots=True)
class NarrowedModel:
    """A narrowed ONNX model.

    Attributes:
        unproved: values inside that a runtime computing int64 as int32 could change, with the interval found.
        inexact: operators that a runtime computing them in float could change, each with the interval found.
    """

    onnx: OnnxModel
    report: NarrowReport
    unproved: tuple[str, ...]
    inexact: tuple[tuple[str, str], ...]


def applied(source: ModelSource, narrowed: NarrowedModel) -> ModelSource:
    """Return the source as clients see it: narrowed dtypes, the preconditions as ranges, what is not proved."""
    dtypes = {s.name: s.dtype for s in (*narrowed.onnx.inputs, *narrowed.onnx.outputs)}
    assumed = {r.name: (r.lo, r.hi) for r in narrowed.report.inputs}

    def seen(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return tuple(replace(s, dtype=dtypes[s.name], range=s.range or assumed.get(s.name)) for s in specs)

    changed = {s.name: s.dtype for s in (*source.inputs, *source.outputs) if dtypes[s.name] != s.dtype}
    return replace(
        source,
        inputs=seen(source.inputs),
        outputs=seen(source.outputs),
        native={**source.native, **changed},
        unproved_int64=narrowed.unproved,
        inexact_int64=narrowed.inexact,
    )
