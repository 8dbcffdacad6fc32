"""What a repository is made from, beside the artifact: what its clients are promised, and how it is to be served."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from accel.core.calls import CallForm
from accel.core.values import Detections, ModelSource, Parity, TensorSpec
from accel.triton import manifest as manifests
from accel.triton.grouping import Grouping


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientModel:
    """The model that clients call.

    Attributes:
        model_name: its name on the server.
        inputs / outputs: what clients are promised: names, dtypes and dims with their batch axis; states included.
        states: of a stateful model, by input that holds a state the output that left it; clients see neither.
        unproved_int64: 64-bit values inside the model that are not proved to fit int32.
        mask: name of the input that is 0 at padded positions.
        detections: the outputs that are compared as sets of rows.
        call: how Python code calls the model.
    """

    model_name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    states: Mapping[str, str] = field(default_factory=dict)
    unproved_int64: tuple[str, ...] = ()
    mask: str | None = manifests.MASK
    detections: Detections | None = None
    call: CallForm | None = None

    @classmethod
    def of(cls, source: ModelSource) -> Self:
        """Return what the source promises."""
        return cls(
            model_name=source.name,
            inputs=source.inputs,
            outputs=source.outputs,
            states=source.states,
            unproved_int64=source.unproved_integers,
            mask=source.mask,
            detections=source.detections,
            call=source.call,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitRequest:
    """How one variant is to be served.

    Attributes:
        release: Triton release to emit for.
        model_version: its version folder.
        parity: what the gate found in process; a served answer is held against it. None where only a server can run it.
        grouping: how requests of different sizes may share calls, where the Python backend serves them; ``ungrouped``
            says why they may not.
        python: serve it through the Python backend, whatever backend the builder would choose.
        overrides: what the user changes in the config, as the text of a partial ``config.pbtxt`` (``overrides``).
        threads: CPU threads it was measured with; None leaves them to the backend.
        hardware: id of the machine; the config also gets that name below ``configs/``.
    """

    release: str
    model_version: int = 1
    parity: Parity | None = None
    grouping: Grouping | None = None
    ungrouped: str | None = None
    python: bool = False
    overrides: str = ""
    threads: int | None = None
    hardware: str | None = None
