"""What became of each variant of a run, and how a choice or a reader sees it."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from accel.builders import targets
from accel.core.accuracy import parity
from accel.core.document import ServerRecord
from accel.core.hardware import Hardware
from accel.core.values import Decision, Deferred, Failed, Measurement, ModelSource, Skipped, Status, Variant
from accel.run.decide import Candidate
from accel.run.job import PYTHON_VARIANT, Job
from accel.run.stages import Proof, Stage
from accel.run.tasks import Described, Emitted

Outcome = Skipped | Deferred | Failed


@dataclass(slots=True)
class VariantState:
    """What became of one variant so far.

    Attributes:
        typing / precision_converted_proof: the ONNX file in which the variant's precision was made, and how it
            compared on the CPU.
        precision_converted: the same file, as the build takes it.
        kit: what finishes the variant elsewhere.
        python_variant: a second repository of the same artifact, which the Python backend serves and batches.
        routed: a third one, in which a model before the native one groups requests by length.
        unserved: name of a repository → how a server failed to serve it.
    """

    variant: Variant
    outcome: Outcome | None = None
    typing: Stage | None = None
    precision_converted: Stage | None = None
    precision_converted_proof: Stage | None = None
    kit: Stage | None = None
    seal: str | None = None
    built: Stage | None = None
    proof: Stage | None = None
    emitted: Stage | None = None
    python_variant: Stage | None = None
    routed: Stage | None = None
    points: tuple[Measurement, ...] = ()
    freshly_measured: bool = False
    unserved: dict[str, Failed] = field(default_factory=dict)

    @property
    def repositories(self) -> dict[str, Stage]:
        """The emitted repositories by their names: the variant's own, and its Python-backend variant."""
        id = self.variant.id
        named = {id: self.emitted, id + PYTHON_VARIANT: self.python_variant}
        return {n: stage for n, stage in named.items() if stage is not None and stage.value.repository is not None}


@dataclass(slots=True)
class Run:
    """Everything a run found; ``run_json`` writes it down.

    Attributes:
        first_tried: of a quick run, what it tried first and why.
    """

    job: Job
    hardware: Hardware
    described: Described
    onnx: Stage | None
    narrowed: Stage | None
    results: list[VariantState]
    served: ServerRecord | None = None
    decisions: tuple[Decision, ...] = ()
    timings_s: dict[str, float] = field(default_factory=dict)
    first_tried: str | None = None


def candidate(result: VariantState) -> Candidate:
    """Reduce a result to what the choice looks at, as it was measured in process."""
    status, reason, _ = status_of(result)
    proof: Proof | None = result.proof.value if result.proof else None
    emitted: Emitted | None = result.emitted.value if result.emitted else None
    unserved = emitted is not None and emitted.repository is None
    return Candidate(
        id=result.variant.id,
        status=status,
        reason=emitted.reason if unserved and emitted and status == "ok" else reason,
        precision=proof.asked if proof else "none",
        bytes=result.built.value.bytes if result.built else 0,
        measurements=tuple(m for m in result.points if m.via == "inprocess"),
        choosable=not unserved,
    )


def served_candidates(result: VariantState) -> list[Candidate]:
    """Reduce a result to what the choice looks at, one for each of its repositories, as a server answered."""
    found = []
    for name in result.repositories:
        own = replace(
            candidate(result),
            id=name,
            measurements=tuple(m for m in result.points if m.repository == f"repositories/{name}"),
            repository=f"repositories/{name}",
        )
        if own.status == "ok" and name in result.unserved:
            own = replace(own, status="failed", reason=result.unserved[name].cause)
        found.append(own)
    return found or [replace(candidate(result), measurements=())]


def rerun_command(variant: Variant, job: Job) -> str:
    """Return the job's command with this variant's target alone, writing beside the run."""
    words = shlex.split(job.command)
    if words[1:2] == ["build"]:  # it names kits, no targets
        return job.command
    place = words.index("--") if "--" in words else len(words)
    words, named = words[:place], words[place:]  # behind it a source may look like an option
    words = [w for w in words if not w.startswith(("--targets=", "--out=", "--require="))]
    for flag in ("--targets", "-t", "--out", "-o", "--require"):
        while flag in words:
            del words[words.index(flag) : words.index(flag) + 2]
    required = ["--require", str(variant.target)] if job.required else []  # others are not among the targets then
    alone = ["--targets", str(variant.target), *required, "-o", f"{job.run_dir}-{variant.target.name}"]
    return shlex.join([*words, *alone, *named])


def status_of(result: VariantState) -> tuple[Status, str | None, str | None]:
    """Return a result's status, reason and fix, as run.json has them."""
    if isinstance(result.outcome, Failed):
        where = f" (log: {result.outcome.log})" if result.outcome.log else ""
        fix = f"`{result.outcome.reproduce}` repeats it alone" if result.outcome.reproduce else None
        return "failed", f"{result.outcome.stage}: {result.outcome.cause}{where}", fix
    if isinstance(result.outcome, Skipped):
        return "skipped", result.outcome.reason, result.outcome.fix
    if isinstance(result.outcome, Deferred):
        return "deferred", result.outcome.reason, result.outcome.fix or f"accel build {result.outcome.kit}"
    converted: Proof | None = result.precision_converted_proof.value if result.precision_converted_proof else None
    if converted is not None and not converted.parity.passed:
        reason = f"the typed ONNX file, on the CPU: {'; '.join(converted.parity.reasons)}"
        return "gate_failed", reason, parity.accept(converted.parity)
    proof: Proof | None = result.proof.value if result.proof else None
    if proof is not None and not proof.parity.passed:
        return "gate_failed", "; ".join(proof.parity.reasons), parity.accept(proof.parity)
    return "ok", None, None


def baseline(results: Sequence[VariantState], source: ModelSource, device: str) -> str | None:
    """Return the id of the source framework's own variant on a device, if it was asked for."""
    target = targets.baseline(source.framework)
    found = [r.variant.id for r in results if r.variant.target.name == target and not r.variant.static]
    return next((id for id in found if id.endswith(f"@{device}")), found[0] if found else None)
