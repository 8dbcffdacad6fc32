"""``accel.optimize``: the whole pipeline on a model in memory or on disk, as ``accel convert`` runs it."""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accel import pipeline
from accel.api import sources
from accel.api.keywords import told_in_python
from accel.api.live import Watcher, watching
from accel.api.result import Result
from accel.core import hardware
from accel.run.job import Job

RUNS = Path("runs")


@told_in_python()
def optimize(
    model: Any,
    samples: Any = None,
    *,
    targets: str | Sequence[str] | None = None,
    gate: Mapping[str, float] | None = None,
    objective: str | Sequence[str] | None = None,
    budget_s: float | None = None,
    out: str | Path | None = None,
    progress: Watcher = None,
    **options: Any,
) -> Result:
    """Build fast variants of a model, prove each against it, measure them and choose.

    Args:
        model: an ``nn.Module`` or a Keras model in memory, or what ``accel convert`` takes: a path, a zoo or hub name.
        samples: real inputs with their batch axis, for tracing, calibration and the gate: a list, a DataLoader, a
            Dataset or a generator of what one call takes (a tensor, a tuple of arguments, a dict by name); or a path as
            ``--samples`` takes it. Needed for a model in memory.
        targets: what to build, as for ``--targets``; all that run on this machine's devices when None.
        gate: name → least value that passes, as for ``--gate``.
        objective: ``latency``, ``throughput`` or both; ``best`` follows the first.
        budget_s: seconds of measuring at most, as for ``--budget-s``.
        out: the run directory; ``runs/<model>`` when None.
        progress: who is told: a terminal or notebook that looks on when None, nobody when False, or a function
            of events.
        **options: every other field of ``accel.Job``.

    Raises:
        UsageError: an option that is wrong.
        SampleError: samples are missing or do not fit; the message has an example.
        AccelError: as ``accel.convert``.
    """
    given = {"targets": targets, "gates": gate, "objectives": objective, "budget_s": budget_s, "out": out}
    job = job_for(model, samples, **options, **{name: value for name, value in given.items() if value is not None})
    with watching(progress) as shown:
        pipeline.convert(job, shown)
    return Result(job.run_dir)


def job_for(model: Any, samples: Any = None, **options: Any) -> Job:
    """Make the job that optimises a model; one in memory is written below its run directory first.

    Args:
        model / samples: as for ``optimize``.
        **options: fields of ``accel.Job``.

    Raises:
        UsageError / InputError / SampleError: as ``optimize``.
    """
    options.setdefault("targets", ",".join({"cpu": "cpu", "cuda": "gpu"}[d] for d in hardware.detect().devices))
    if isinstance(samples, Path):
        samples = str(samples)
    if isinstance(model, str | Path):
        options["source"] = str(model)
        if samples is None or isinstance(samples, str):
            return _job(options | ({"samples": samples} if samples else {}))
        plain = _job(options)
        names = _input_names(plain)
        return _job(options | {"samples": str(sources.sample_file(samples, names, plain.run_dir / sources.FOLDER))})
    name = options.setdefault("model_name", sources.name_of(model))
    run_dir = Path(options.setdefault("out", RUNS / name))
    given = sources.written(model, samples, run_dir / sources.FOLDER, options)
    options |= {"source": given.text, **given.options}
    request = dataclasses.replace(_job(options).request, call=given.form)
    return Job.model_validate(options | {"source": request, "command": _command(options)})


def _job(options: Mapping[str, Any]) -> Job:
    """Make a job with the command that repeats it."""
    return Job.model_validate({"command": _command(options), **options})


def _command(options: Mapping[str, Any]) -> str:
    """Return the shell line that repeats a job: every source is a file by now."""
    words = ["accel", "convert", str(options["source"])]
    for name, value in options.items():
        field = Job.model_fields.get(name)
        if name == "source" or field is None or field.description is None:
            continue
        flag = f"--{(field.alias or name).replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                sizes = "x".join(map(str, item)) if isinstance(item, tuple | list) else str(item)
                words += [flag, f"{key}{':' if 'shape' in name else '='}{_pair(name, item, sizes)}"]
        elif value not in (None, False):
            text = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
            words += [flag, text]
    return shlex.join(words)


def _pair(name: str, item: Any, text: str) -> str:
    return f"{item[0]}:{item[1]}" if name in ("ranges", "range") else text


def _input_names(job: Job) -> list[str]:
    """Return the inputs of a source that only a worker can open."""
    with pipeline.at_work(job, None) as work, work.stages.worker("source") as worker:
        return [spec.name for spec in work.stages.describe(worker).value.source.inputs]
