"""Everything the user asked of one ``accel convert``, as one frozen value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from accel.core.values import Target
from accel.exporters.ensemble_request import Asked
from accel.exporters.request import SourceRequest
from accel.run.decide import Constraints, Objective


@dataclass(frozen=True, slots=True)
class Job:
    """One conversion.

    Attributes:
        source: what to convert.
        targets: what to build, in the user's order.
        grouped: names of targets that only a group brought in: they are left out where the source is another
            framework's than theirs.
        run_dir: where everything is written.
        command: shell line that repeats it; written into run.json and the report.
        static: also build each target that can be built for one fixed shape, at the opt shape.
        objectives: what is measured, with one decision each, per device.
        gates: ``--gate NAME=VALUE``.
        required: targets whose variants must end ``ok``.
        options: builder options by target name.
        ensemble: which steps to serve around the model, as an ensemble; None for none.
        triton: overrides of the emitted configs by target name, as the text of a partial ``config.pbtxt``.
        bench: whether variants are measured in process, as a Triton server serves them, or both.
        via: where that server comes from (``embedded``, ``local``, ``docker``, or None for what is here).
        rounds / round_s: interleaved rounds of the latency scenario and the least time of each.
        opset: ONNX opset to ask the exporter for.
        ints: which INT64 values become INT32, where that is proved; decides what clients of every repository see.
        sign_kits: private key with which every kit of a deferred variant is signed; None for no signature.
        sandbox: run every worker process in ``core.sandbox``.
        allow_unproved_int64: let runtimes that compute int64 as int32 pass although their interior is not proved.
    """

    source: SourceRequest
    targets: tuple[Target, ...]
    run_dir: Path
    command: str
    grouped: frozenset[str] = frozenset()
    static: bool = False
    objectives: tuple[Objective, ...] = ("latency", "throughput")
    constraints: Constraints = field(default_factory=Constraints)
    gates: Mapping[str, float] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    triton: Mapping[str, str] = field(default_factory=dict)
    ensemble: Asked | None = None
    ints: Literal["keep", "io", "interior"] = "keep"
    allow_unproved_int64: bool = False
    threads: int = 1
    timeout_s: float = 1800.0
    triton_release: str = ""
    model_version: int = 1
    bench: Literal["inprocess", "triton", "both"] = "inprocess"
    via: str | None = None
    rounds: int = 8
    round_s: float = 0.5
    opset: int = 18
    sign_kits: Path | None = None
    sandbox: bool = False
