"""What may vary of how a repository's models are scheduled, read from its configs and written into them.

The contract with clients stays as it is, ``max_batch_size`` with it: a smaller one would refuse requests that were
accepted before. How many requests are merged is limited by ``preferred_batch_size`` instead.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel.builders import targets
from accel.core.files import write_text
from accel.triton import config as configs, overrides

THREADS = ("intra_op_thread_count", "threads", "NUM_STREAMS", "INFERENCE_NUM_THREADS")
"""Parameters that say how an instance uses the CPU, and follow the number of instances where a config has them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the server schedules one model.

    Attributes:
        instances: how many copies compute at once.
        threads: CPU threads of each; None leaves what the config says.
        batching: whether waiting requests are merged.
        preferred: batch sizes that are sent at once when they are reached, the largest first. Without a delay no
            batch is larger than the largest of them. Empty: the model's ``max_batch_size``.
        delay_us: how long a request may wait for others, in microseconds.
        fields: what else the config says, as the text of a partial ``config.pbtxt``.
        variables: ``NAME=VALUE`` of the server's environment.
        cached: whether the server keeps answers, and gives them to requests that ask the same; None leaves what the
            config says.

    Source: server docs/user_guide/batcher.md, "Preferred Batch Sizes", "Delayed Batching".
    """

    instances: int = 1
    threads: int | None = None
    batching: bool = True
    preferred: tuple[int, ...] = ()
    delay_us: int = 0
    fields: str = ""
    variables: tuple[str, ...] = ()
    cached: bool | None = None

    @property
    def plain(self) -> bool:
        """Whether nothing else is set that could change what a model answers."""
        return not self.fields and not self.variables

    def __str__(self) -> str:
        more = [
            *["response cache"] * bool(self.cached),
            *self.variables,
            *filter(None, [" ".join(self.fields.split())]),
        ]
        return ", ".join([self._schedule, *more])

    @property
    def _schedule(self) -> str:
        each = f" of {self.threads} thread{'s' * (self.threads > 1)}" if self.threads else ""
        words = [f"{self.instances} instance{'s' * (self.instances > 1)}{each}"]
        if not self.batching:
            return f"{words[0]}, no batching"
        words.append(f"batches of {'/'.join(map(str, self.preferred))}" if self.preferred else "batching")
        return ", ".join(words) + (f", {self.delay_us} µs delay" if self.delay_us else "")


def merging(model: Any) -> Any:
    """Return what says how requests of a ``ModelConfig`` are merged: ``dynamic_batching``, or that of sequences.

    The two are one choice of the message: to set the first would drop the second.
    """
    return model.sequence_batching.oldest if model.HasField("sequence_batching") else model.dynamic_batching


def read(model: Any) -> Settings:
    """Return the settings of a ``ModelConfig``."""
    given = [int(model.parameters[k].string_value or 0) for k in THREADS[:2] if k in model.parameters]
    batching = merging(model)
    sequences = model.HasField("sequence_batching")
    return Settings(
        sum(group.count for group in model.instance_group) or 1,
        given[0] if given and given[0] > 0 else None,
        list(batching.preferred_batch_size) != [1] and model.max_batch_size > 0
        if sequences
        else model.HasField("dynamic_batching"),
        tuple(batching.preferred_batch_size),
        batching.max_queue_delay_microseconds,
        cached=model.response_cache.enable or None,
    )


def apply(model: Any, settings: Settings, *, cpu_threads: int) -> None:
    """Set the settings in a ``ModelConfig``, further fields last; a queue policy that it has stays.

    Args:
        cpu_threads: what the instances share where ``settings`` name no threads and the config states some.
    """
    if model.max_batch_size > 0 and (settings.batching or model.HasField("sequence_batching")):
        batching = merging(model)
        batching.SetInParent()
        del batching.preferred_batch_size[:]
        batching.preferred_batch_size.extend(settings.preferred if settings.batching else [1])
        batching.max_queue_delay_microseconds = settings.delay_us
    else:
        model.ClearField("dynamic_batching")
    if settings.cached is not None:
        model.response_cache.enable = settings.cached
    groups = model.instance_group
    kind = groups[0].kind if groups else model.instance_group.add().kind
    del groups[:]
    groups.add(count=settings.instances, kind=kind)
    if settings.threads is not None or any(key in model.parameters for key in THREADS):
        for key in THREADS:
            model.parameters.pop(key, None)
        total = cpu_threads if settings.threads is None else settings.threads * settings.instances
        for key, value in targets.backend(model.backend).parameters(total, settings.instances).items():
            model.parameters[key].string_value = value
    if settings.fields:
        overrides.apply(settings.fields, model)


def write(root: Path, settings: Settings, *, cpu_threads: int, models: Sequence[str] = ()) -> bool:
    """Set the settings of a repository's models but ensembles; False where batching is asked for and none can.

    Args:
        models: as for ``rewrite``.
    """
    written = rewrite(root, lambda model: apply(model, settings, cpu_threads=cpu_threads), models=models)
    return not settings.batching or any(model.max_batch_size > 0 for model in written)


def rewrite(root: Path, change: Callable[[Any], None], *, models: Sequence[str] = ()) -> list[Any]:
    """Change the configs of a repository's models but ensembles; return the ``ModelConfig`` of each as it is now.

    Files are replaced, never written in place: they may be hard links to another repository's.

    Args:
        models: folders of those that are meant; none of them means all. Their configs by hardware change as well.
    """
    changed = []
    for file in sorted([*root.glob("*/config.pbtxt"), *root.glob("*/configs/*.pbtxt")]):
        model = configs.parse(file.read_text(encoding="utf-8"))
        if model.HasField("ensemble_scheduling") or (models and model.name not in models):
            continue
        change(model)
        write_text(file, configs.to_text(model))
        changed.append(model)
    return changed


def limit_batches(model: Any, largest: int) -> None:
    """Let no more items be merged than these; the queue and its policy stay, and so does what clients may send.

    Source: triton-inference-server/core, src/dynamic_batch_scheduler.cc, GetDynamicBatch: without a delay no batch
    grows beyond the largest preferred size.
    """
    del merging(model).preferred_batch_size[:]
    merging(model).preferred_batch_size.append(largest)
