"""Turn what the user typed, and a job file beneath it, into one ``Job``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel.accuracy.parity import GATES_DB
from accel.builders import targets
from accel.core import hardware
from accel.core.errors import UsageError, nearest
from accel.core.values import GraphChoice, ShapeRange, Target
from accel.exporters import ensemble_request, sources
from accel.run.decide import Constraints
from accel.run.job import Job
from accel.run.stages import TWIN

CHOICES = {
    "device": ("cpu", "cuda"),
    "objective": ("latency", "throughput"),
    "bench": ("inprocess", "triton", "both"),
    "via": ("embedded", "local", "docker"),
    "ints": ("keep", "io", "interior"),
    "level": ("keep", "io", "interior"),
}
"""What each option that takes one of a few words may be."""
LEAST = {
    "threads": 1,
    "rounds": 2,  # one round has no interval
    "model_version": 1,
    "timeout": 0,
    "round_s": 0,
    "max_p99_ms": 0,
    "min_throughput": 0,
    "max_memory_mib": 0,
}
"""Least value of each number; 0 stands for any above it."""


def assemble(given: Mapping[str, Any], config: Path | None, *, command: str) -> Job:
    """Make the job.

    Args:
        given: options by the names of ``job_file.JobFile``; only those that were given.
        config: job file whose values stand where ``given`` has none.
        command: shell line that repeats the job.

    Raises:
        UsageError: an option that is missing, unknown or contradicts another.
        InputError: the job file or the source is missing or broken.
    """
    from accel.triton import releases

    asked: dict[str, Any] = {}
    if config is not None:
        from accel.run import job_file

        asked = {k: v for k, v in job_file.read(config).model_dump().items() if v is not None}
    # The flag asks for an ensemble; which one, a job file may say.
    asked |= {k: v for k, v in given.items() if k != "ensemble" or not asked.get(k)}
    if "source" not in asked:
        raise UsageError("no source given", fix="accel convert SOURCE --targets cpu; `accel zoo` lists known models")
    if "targets" not in asked:
        raise UsageError("no targets given", fix="--targets cpu, or --targets openvino,ort; `accel targets` lists them")
    request = sources.recognise(
        asked["source"],
        task=asked.get("task"),
        weights=asked.get("weights", "auto"),
        revision=asked.get("revision"),
        samples=asked.get("samples"),
        random_samples=asked.get("random_samples", False),
        ranges=dict(sources.parse_range(text) for text in asked.get("range", [])),
        min_shapes=_shapes(asked.get("min_shape", [])),
        opt_shapes=_shapes(asked.get("shape", [])),
        max_shapes=_shapes(asked.get("max_shape", [])),
        model_name=asked.get("model_name"),
        graph=GraphChoice(
            asked.get("signature"),
            _words(asked.get("input_tensors", [])),
            _words(asked.get("output_tensors", [])),
            _words(asked.get("inputs_as_nchw", [])),
        ),
    )
    _check_numbers(asked)
    _check_words(asked)
    devices = (asked["device"],) if "device" in asked else hardware.detect().devices
    wanted = asked["targets"] if isinstance(asked["targets"], str) else ",".join(asked["targets"])
    objective = asked.get("objective")
    release = asked.get("triton_release", releases.NEWEST)
    releases.release(release)
    defaults = {f.name: f.default for f in dataclasses.fields(Job)}
    chosen = targets.parse(wanted, devices=devices, only="device" in asked)
    return Job(
        source=request,
        targets=chosen,
        grouped=frozenset(t.name for t in chosen) - targets.named(wanted),
        run_dir=Path(asked.get("out", Path("runs") / request.name)),
        command=command,
        static=asked.get("static", False),
        objectives=(objective,) if objective else ("latency", "throughput"),
        constraints=Constraints(asked.get("max_p99_ms"), asked.get("min_throughput"), asked.get("max_memory_mib")),
        gates=dict(_gate(text) for text in asked.get("gate", [])),
        required=_required(asked.get("require", []), chosen),
        options=_options(asked.get("options", {})),
        triton=_overrides(asked, config, chosen),
        ensemble=ensemble_request.asked(asked.get("ensemble")),
        ints=_ints(asked.get("ints"), chosen),
        allow_unproved_int64=asked.get("allow_unproved_int64", False),
        threads=asked.get("threads", hardware.cpu_threads()),
        timeout_s=asked.get("timeout", defaults["timeout_s"]),
        triton_release=release,
        model_version=asked.get("model_version", defaults["model_version"]),
        bench=asked.get("bench", defaults["bench"]),
        via=asked.get("via"),
        rounds=asked.get("rounds", defaults["rounds"]),
        round_s=asked.get("round_s", defaults["round_s"]),
        opset=asked.get("opset", defaults["opset"]),
    )


def narrowing(ranges: list[str], low: list[str], high: list[str], level: str) -> dict[str, Any]:
    """Make the keyword arguments of ``narrow_file`` from what was typed.

    Raises:
        UsageError: a text or level that is not known, or a smallest shape without a largest.
    """
    _check_words({"level": level})
    least, most = _shapes(low), _shapes(high)
    if least.keys() != most.keys():
        odd = sorted(least.keys() ^ most.keys())[0]
        raise UsageError(f"input {odd!r} needs both --min-shape and --max-shape: together they bound its axes")
    shapes = {name: ShapeRange(least[name], most[name], most[name]) for name in most}
    return {
        "level": level,
        "ranges": dict(sources.parse_range(text) for text in ranges),
        "shapes": shapes,
    }


def _words(texts: list[str]) -> tuple[str, ...]:
    """Read names given one by one, or several separated by commas."""
    return tuple(dict.fromkeys(word.strip() for text in texts for word in text.split(",") if word.strip()))


def _shapes(texts: list[str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for text in texts:
        found |= sources.parse_shapes(text)
    return found


def _ints(asked: str | None, chosen: tuple[Target, ...]) -> Any:
    """Return the level asked for; by default ``io`` where a runtime takes part that gains by int32 or forces it."""
    return asked or ("io" if any(targets.info(target).prefers_int32 for target in chosen) else "keep")


def _gate(text: str) -> tuple[str, float]:
    name, equals, value = text.partition("=")
    try:
        if not equals:
            raise ValueError
        if not math.isfinite(float(value)):
            raise ValueError
        return name.strip(), float(value)
    except ValueError:
        known = ", ".join(GATES_DB)
        raise UsageError(
            f"--gate {text!r}: expected NAME=VALUE", fix=f"a precision ({known}: dB) or a metric"
        ) from None


def _check_numbers(asked: Mapping[str, Any]) -> None:
    for name, least in LEAST.items():
        value = asked.get(name)
        if value is not None and not (math.isfinite(value) and (value >= least if least else value > 0)):
            expected = f"{least} or more" if least else "a number above 0"
            raise UsageError(f"--{name.replace('_', '-')} is {value}: expected {expected}")


def _check_words(asked: Mapping[str, Any]) -> None:
    for name, known in CHOICES.items():
        value = asked.get(name)
        if value is not None and value not in known:
            expected = f"{', '.join(known[:-1])} or {known[-1]}{nearest(value, known)}"
            raise UsageError(f"--{name} is {value!r}: expected {expected}")


def _required(texts: list[str], wanted: tuple[Target, ...]) -> tuple[str, ...]:
    """Check that each requirement can be met: a target's name, ``name@device``, or a static variant's id."""
    known = [text for target in wanted for text in (target.name, str(target))]
    for text in texts:
        if text.partition("+")[0] not in known:
            raise UsageError(
                f"--require {text!r} is not among the targets{nearest(text, known)}", fix="add it to --targets"
            )
    return tuple(texts)


def _overrides(asked: Mapping[str, Any], config: Path | None, chosen: tuple[Target, ...]) -> dict[str, str]:
    """Join what the job file and ``--triton-config`` change in the configs of each target, the latter winning."""
    if not asked.get("triton") and "triton_config" not in asked:
        return {}
    from accel.triton import overrides

    known = [name + twin for name in targets.discover() for twin in ("", TWIN)]
    found = overrides.from_job(asked["triton"], config, known) if asked.get("triton") and config is not None else {}
    last = overrides.from_file(asked["triton_config"]) if "triton_config" in asked else ""
    joined = {}
    for name in {target.name: None for target in chosen}:
        own = overrides.merged(found.get("", ""), found.get(name, ""))
        joined[name] = overrides.merged(own, last)
        joined[name + TWIN] = overrides.merged(own, found.get(name + TWIN, ""), last)
    return joined


def _options(given: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Check builder options (job file, ``options:``) against each builder's own dataclass."""
    known = targets.discover()
    for target, values in given.items():
        if target not in known:
            raise UsageError(f"options for unknown target {target!r}{nearest(target, known)}")
        fields = [f.name for f in dataclasses.fields(known[target].options)]
        for name in values:
            if name not in fields:
                raise UsageError(
                    f"target {target} has no option {name!r}{nearest(name, fields)}", fix=f"it has: {fields}"
                )
    return {target: dict(values) for target, values in given.items()}
