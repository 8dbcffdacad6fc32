"""Rules on ensembles: the data flow inside one, and what it expects of its steps.

Sources, in triton-inference-server/core: src/model_config_utils.cc, BuildEnsembleGraph and
ValidateEnsembleSchedulingConfig, for the flow; src/ensemble_scheduler/ensemble_utils.cc, ValidateTensorMapping and
ValidateEnsembleConfig, for the steps; src/model_repository_manager/model_repository_manager.cc for models and versions
that are missing and for circles of ensembles.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from accel.core.errors import nearest
from accel.triton.config import type_name
from accel.triton.lint.model import LintedModel, unsafe
from accel.triton.manifest import Finding

STEP = "ensemble_scheduling.step[{}]"


def steps(model: LintedModel) -> Iterator[Finding]:
    """Every step names a model of the repository, in a version that is served, and maps inputs and outputs."""
    scheduling = model.config.ensemble_scheduling
    if model.config.HasField("ensemble_scheduling") and not scheduling.step:
        yield model.error("ensemble_scheduling.step", "is missing", "add the steps")
    for index, step in enumerate(scheduling.step):
        field, name = STEP.format(index), step.model_name
        for part in ("input_map", "output_map"):
            if not getattr(step, part):
                yield model.error(f"{field}.{part}", "is empty", f"map the {part.partition('_')[0]}s of the step")
        if not name:
            yield model.error(f"{field}.model_name", "is missing", "name a model of the repository")
        elif "/" in name or unsafe(name):
            yield model.error(f"{field}.model_name", f"{name!r} is unsafe as a path", "name a model of the repository")
        elif name not in model.others:
            why = f"{name!r} is not a model of this repository{nearest(name, model.others)}"
            yield model.error(f"{field}.model_name", why, "correct the name, or add the model")
        elif (inner := model.others[name]) and step.model_version > 0 and step.model_version not in inner.served():
            why = f"version {step.model_version} of {name!r} is not served: {list(inner.served())} is"
            yield model.error(f"{field}.model_version", why, "use -1 for the newest, or add the version")


def circles(model: LintedModel) -> Iterator[Finding]:
    """No ensemble is a step of itself, at any depth."""
    seen: set[str] = set()
    waiting: list[tuple[str, tuple[str, ...]]] = [
        (s.model_name, (model.folder, s.model_name)) for s in model.config.ensemble_scheduling.step
    ]
    while waiting:
        name, path = waiting.pop()
        if name == model.folder:
            yield model.error("ensemble_scheduling", f"goes in a circle: {' → '.join(path)}", "break the circle")
            return
        inner = model.others.get(name)
        if inner is not None and name not in seen:
            seen.add(name)
            waiting += [(s.model_name, (*path, s.model_name)) for s in inner.config.ensemble_scheduling.step]


def flow(model: LintedModel) -> Iterator[Finding]:
    """Every tensor is written once, before it is read, and is read; branches of decoupled steps do not meet."""
    scheduled = list(model.config.ensemble_scheduling.step)
    if not scheduled:
        return
    writers: dict[str, list[int]] = {}
    readers: dict[str, list[int]] = {}
    for index, step in enumerate(scheduled):
        for tensor in step.output_map.values():
            writers.setdefault(tensor, []).append(index)
        for tensor in step.input_map.values():
            readers.setdefault(tensor, []).append(index)
    inputs, outputs = ([t.name for t in tensors] for tensors in (model.config.input, model.config.output))
    twice = {name: found for name, found in writers.items() if len(found) + (name in inputs) > 1}
    for name, found in sorted(twice.items()):
        by = " and ".join([*(["the client"] if name in inputs else []), *(f"step {i}" for i in found)])
        yield model.error(STEP.format(found[-1]) + ".output_map", f"{name!r} is written by {by}", "write it once")
    ends = [(f"input.{name}", name, "read") for name in inputs] + [(f"output.{n}", n, "written") for n in outputs]
    for field, name, what in ends:
        if name not in readers and name not in writers:
            yield model.error(field, f"is not {what} by any step", "map it, or drop it")
    if twice or any(not (s.input_map and s.output_map) for s in scheduled):
        return
    yield from _unwritten(model, scheduled, readers, writers)
    for name, found in sorted(writers.items()):
        if name not in readers and name not in outputs:
            why = f"{name!r} is read by no step and is not an output"
            yield model.error(STEP.format(found[0]) + ".output_map", why, "drop the entry")


def _unwritten(
    model: LintedModel, scheduled: list[Any], readers: Mapping[str, list[int]], writers: Mapping[str, list[int]]
) -> Iterator[Finding]:
    """Run the steps as their inputs become ready, and judge what is left over."""
    inputs = {t.name for t in model.config.input}
    missing = {name: found for name, found in readers.items() if name not in writers and name not in inputs}
    for name, found in sorted(missing.items()):
        why = f"{name!r} is read, but written by no step and no input"
        yield model.error(STEP.format(found[0]) + ".input_map", why, "map it to a tensor that is written")
    labels = dict.fromkeys([*inputs, *missing], 0)
    left, decoupled = list(range(len(scheduled))), 0
    while ready := [i for i in left if all(name in labels for name in scheduled[i].input_map.values())]:
        for index in ready:
            step = scheduled[index]
            sources = {labels[name] for name in step.input_map.values()}
            if len(sources) > 1:
                why = "reads tensors of different decoupled models, whose responses do not come in pairs"
                yield model.error(STEP.format(index) + ".input_map", why, "read from one of them")
            label = min(sources)
            inner = model.others.get(step.model_name)
            if inner is not None and inner.config.model_transaction_policy.decoupled:
                decoupled += 1
                label = decoupled
            labels.update(dict.fromkeys(step.output_map.values(), label))
        left = [i for i in left if i not in ready]
    if left:
        waits = ", ".join(
            f"step {i} for {name!r}" for i in left for name in scheduled[i].input_map.values() if name not in labels
        )
        yield model.error("ensemble_scheduling.step", f"wait for each other: {waits}", "break the circle")
    elif len({labels[t.name] for t in model.config.output if t.name in labels}) > 1:
        yield model.error("output", "come from different decoupled models", "give each an ensemble of its own")
    said = model.config.model_transaction_policy
    if model.config.HasField("model_transaction_policy") and said.decoupled != (decoupled > 0):
        why = f"is {str(said.decoupled).lower()} and is overwritten by what the steps are"
        yield model.warning("model_transaction_policy", why, "leave it out")


def mappings(model: LintedModel) -> Iterator[Finding]:
    """Maps name tensors of the steps, and each tensor has one type and fitting dims wherever it is used."""
    config = model.config
    nodes: dict[str, tuple[str, str, bool, list[int]]] = {}
    for tensor in (*config.input, *config.output):
        dims = list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
        nodes.setdefault(tensor.name, ("the ensemble", type_name(tensor.data_type), model.batched, dims))
    for index, step in enumerate(config.ensemble_scheduling.step):
        field, inner = STEP.format(index), model.others.get(step.model_name)
        if inner is None or inner.folder == model.folder:
            continue
        if 0 < inner.config.max_batch_size < config.max_batch_size:
            why = f"is {config.max_batch_size}, and step {step.model_name!r} takes {inner.config.max_batch_size}"
            yield model.error("max_batch_size", why, "lower it to the smallest of the steps")
        for part, tensors, mapped in (
            ("input_map", inner.config.input, step.input_map),
            ("output_map", inner.config.output, step.output_map),
        ):
            known = {t.name: t for t in tensors}
            if not known:
                continue  # completed by the backend, and then not known here
            for name, outer in sorted(mapped.items()):
                at = f"{field}.{part}.{name}"
                if name not in known:
                    why = f"{step.model_name!r} has no {part.partition('_')[0]} {name!r}{nearest(name, known)}"
                    yield model.error(at, why, "correct the name")
                    continue
                tensor = known[name]
                node = (repr(step.model_name), type_name(tensor.data_type), inner.batched, list(tensor.dims))
                yield from _consistent(model, at, outer, nodes.setdefault(outer, node), node)
            if part == "input_map":
                for name in sorted(n for n, t in known.items() if n not in mapped and not t.optional):
                    why = f"{step.model_name!r} needs its input {name!r}, which is not mapped"
                    yield model.error(f"{field}.{part}", why, "map it")


def _consistent(
    model: LintedModel,
    field: str,
    name: str,
    one: tuple[str, str, bool, list[int]],
    two: tuple[str, str, bool, list[int]],
) -> Iterator[Finding]:
    (of_one, type_one, batched_one, dims_one), (of_two, type_two, batched_two, dims_two) = one, two
    full = [[-1, *dims_one] if batched_one else dims_one, [-1, *dims_two] if batched_two else dims_two]
    yield from model.errors(
        (
            type_one != type_two,
            field,
            f"{name!r} is {type_one} in {of_one} and {type_two} in {of_two}",
            "make the types equal, or cast in between",
        ),
        (
            not _agree(dims_one, dims_two) and not _agree(*full),
            field,
            f"{name!r} is {full[0]} in {of_one} and {full[1]} in {of_two}, batch axes included",
            "make the dims fit",
        ),
    )


def _agree(one: list[int], two: list[int]) -> bool:
    return len(one) == len(two) and all(a == b or -1 in (a, b) for a, b in zip(one, two, strict=True))


RULES: tuple[Callable[[LintedModel], Iterator[Finding]], ...] = (steps, circles, flow, mappings)
