"""What a user changes in the configs that accel emits: read, validated by Triton's protobuf, merged field by field.

Overrides travel as the text of a partial ``config.pbtxt``. They are parsed by Triton's own schema in which every
singular field knows whether it was given: proto3 forgets an explicit 0 or false, and those are worth saying
(``max_batch_size: 0``). Scalars and messages merge, maps merge by key, a repeated field replaces accel's. ``input`` and
``output`` are the client contract: a tensor is found by its name and can only gain properties.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, text_format

from accel.core.errors import InputError, UsageError, nearest, raised_as
from accel.core.values import sha256_file
from accel.core.yaml_file import positions
from accel.triton.config import to_text

TARGETS = "targets"
"""Key of the job file's ``triton:`` whose values are for single targets; every other key is a field of ModelConfig."""

LAYOUT: Mapping[str, str] = {
    "name": "it is the model's folder; --model-name sets it",
    "backend": "it follows from the target; --targets chooses",
    "platform": "it follows from the target; --targets chooses",
    "version_policy": "the repository holds one version folder; --model-version numbers it",
    "default_model_filename": "it is the artifact's own file",
    "ensemble_scheduling": "accel writes the ensembles",
}
"""Fields that the layout decides, with the reason given when an override contradicts it."""
_FIX = (
    "fields and types are those of Triton's ModelConfig (model_config.proto); for no warm-up at all, give model_warmup "
    "one sample of batch_size 0, which the server skips"
)


@functools.cache
def _schema() -> Any:
    """Return ModelConfig as a message class with presence: Triton's schema, read as proto2.

    Source: https://protobuf.dev/programming-guides/field_presence/: in proto2 every singular field tracks presence.
    """
    from tritonclient.grpc import model_config_pb2 as pb

    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    file.syntax = "proto2"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(pb.ModelConfig.DESCRIPTOR.full_name))


def parse(text: str, source: str = "overrides") -> Any:
    """Read overrides from their text.

    Args:
        source: what a message calls the text.

    Raises:
        InputError: protobuf refuses it (an unknown field, a wrong enum or type), or a list is empty; the message has
            line and column.
    """
    try:
        given = text_format.Parse(text, _schema()())
        tokens, before = text_format.Tokenizer(text.splitlines()), ""
        while not tokens.AtEnd():
            if (before, tokens.token) == ("[", "]"):
                raise tokens.ParseError("an empty list cannot be told from one that was not given")
            before = tokens.token
            tokens.NextToken()
    except text_format.ParseError as error:
        raise InputError(f"{source}:{error}", fix=_FIX) from error
    return given


def from_file(path: Path) -> str:
    """Read ``--triton-config``; files that it names are looked for beside it.

    Raises:
        InputError: it cannot be read, is not a ModelConfig in text form, or names a file that is not there.
    """
    with raised_as(InputError, (OSError, UnicodeDecodeError), f"--triton-config {path} cannot be read"):
        text = path.read_text(encoding="utf-8")
    return _anchored(parse(text, str(path)), path.parent, str(path))


def from_fields(fields: Mapping[str, Any], what: str) -> str:
    """Read fields in protobuf's JSON form that name no files.

    Args:
        what: what a message calls them.

    Raises:
        InputError: protobuf refuses one, a value is missing, or a list is empty.
    """
    given = _parsed(fields, lambda steps: f"{what}{_named(steps)}")
    for _, field, _ in _files(given):
        raise InputError(f"{what}: {field} names a file, and a repository that is tuned takes none", fix="leave it out")
    return to_text(given)


@functools.cache
def without_schedule(overrides: str) -> str:
    """Return overrides without what forms batches: preferred sizes and the delay."""
    given = parse(overrides)
    for field in ("preferred_batch_size", "max_queue_delay_microseconds"):
        given.dynamic_batching.ClearField(field)
    if not given.dynamic_batching.ListFields():
        given.ClearField("dynamic_batching")
    return to_text(given)


def from_job(triton: Mapping[str, Any], path: Path, known: Sequence[str]) -> dict[str, str]:
    """Read ``triton:`` of a job file: overrides by target name, under ``""`` those for every target.

    Args:
        triton: fields in protobuf's JSON form, and ``targets`` with the same for single targets.
        path: the job file; files that the overrides name are looked for beside it.
        known: names that ``targets`` may have.

    Raises:
        UsageError: a target that does not exist.
        InputError: protobuf refuses a field or value, a value is missing, a list is empty, or a file is not there; the
            message names the field and its line.
    """
    single = triton.get(TARGETS, {})
    if not isinstance(single, Mapping) or not all(isinstance(v, Mapping) for v in single.values()):
        raise InputError(f"{path}:{_line(path, [TARGETS])}: triton.{TARGETS}: expected a mapping of target to fields")
    for target in single:
        if target not in known:
            raise UsageError(
                f"{_place(path, [TARGETS, str(target)])}: unknown target{nearest(str(target), known)}",
                fix="`accel targets` lists them",
            )
    shared = {k: v for k, v in triton.items() if k != TARGETS}
    return {"": _from_mapping(shared, path, [])} | {
        str(target): _from_mapping(fields, path, [TARGETS, str(target)]) for target, fields in single.items()
    }


def _from_mapping(fields: Mapping[str, Any], path: Path, above: list[str | int]) -> str:
    given = _parsed(fields, lambda steps: _place(path, [*above, *steps]))
    return _anchored(given, path.parent, str(path))


def _parsed(fields: Mapping[str, Any], place: Callable[[Sequence[str | int]], str]) -> Any:
    """Return fields as protobuf; ``place`` names the value to which keys lead."""
    for path_to, value in _walk(fields):
        if value is None or value == []:
            what = "has no value" if value is None else "is an empty list, which cannot be told from none"
            raise InputError(f"{place(path_to)} {what}", fix=f"an empty message is {{}}; {_FIX}")
    try:
        return json_format.ParseDict(fields, _schema()())
    except json_format.ParseError as error:
        steps, why = _explained(str(error))
        raise InputError(f"{place(steps)}: {why}", fix=_FIX) from error


def _walk(value: Any, steps: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield every value below a mapping with the keys that lead to it."""
    items: Any = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield (*steps, key), below
        yield from _walk(below, (*steps, key))


def _explained(error: str) -> tuple[list[str | int], str]:
    """Take protobuf's JSON error apart: the keys that lead to the field, and what is wrong with it."""
    line = error.splitlines()[0]
    fields = re.findall(r"Failed to parse (\w+) field: ", line)
    why = re.sub(r"Failed to parse \w+ field: ", "", line)
    at = re.search(r' at "?ModelConfig\.?([^"\s]*?)"?\.*$', why)
    if at is not None:
        fields = [part for part in re.split(r"[.\[\]]+", at[1]) if part]
        why = why[: at.start()]
    # Of these two, the place is that of the message around the field.
    if inner := re.search(r'has no field named "([^"]+)"|repeated field (\w+) must', why):
        fields = [*fields, inner[1] or inner[2]]
    return [int(f) if f.isdigit() else f for f in fields], why.rstrip(".")


def _place(path: Path, steps: Sequence[str | int]) -> str:
    return f"{path}:{_line(path, steps)}: triton{_named(steps)}"


def _named(steps: Sequence[str | int]) -> str:
    return "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in steps)


def _line(path: Path, steps: Sequence[str | int]) -> int:
    """Return the line of the job file on which a value below ``triton:`` stands, as near as the keys lead to it."""
    lines, way = positions(path, "job file"), ("triton", *steps)
    return next((lines[way[:n]] for n in range(len(way), 0, -1) if way[:n] in lines), 1)


def merged(*texts: str) -> str:
    """Return overrides that say what all of these say, the later ones winning."""
    together = _schema()()
    for text in texts:
        _merge(together, parse(text))
    return to_text(together)


def max_batch_size(overrides: str) -> int | None:
    """Return the ``max_batch_size`` that was given, which may be 0."""
    given = parse(overrides)
    return given.max_batch_size if given.HasField("max_batch_size") else None


def instances(overrides: str) -> int:
    """Return how many instances were asked for in all groups; 1 where nothing was."""
    return sum(group.count or 1 for group in parse(overrides).instance_group) or 1


def apply(
    overrides: str, model: Any, *, inputs: Mapping[str, str] | None = None, outputs: Mapping[str, str] | None = None
) -> None:
    """Merge overrides into the ``ModelConfig`` of the model that does the work.

    A group of ``instance_group`` without count or kind gets accel's: the server's own defaults are two instances of an
    ONNX model on CPU, and a GPU wherever there is one.
    Source: core, src/model_config_utils.cc, SetDefaultInstanceCount and NormalizeInstanceGroup.

    Args:
        inputs / outputs: client's name → the model's, where they differ.

    Raises:
        InputError: a field that the layout or the client contract decides is given another value.
    """
    given = parse(overrides)
    kind = model.instance_group[0].kind if model.instance_group else 0
    before = type(model)()
    before.CopyFrom(model)
    for sample in given.model_warmup:
        for client, own in (inputs or {}).items():
            if client in sample.inputs:
                sample.inputs[own].CopyFrom(sample.inputs[client])
                del sample.inputs[client]
    tensors(overrides, model, inputs=inputs, outputs=outputs)
    given.ClearField("input")
    given.ClearField("output")
    _merge(model, given)
    for field, reason in LAYOUT.items():
        if _only(model, field) != _only(before, field):
            raise InputError(f"{field} of {before.name!r} cannot be overridden: {reason}")
    for wanted, group in zip(given.instance_group, model.instance_group, strict=False):
        group.count = wanted.count or 1
        if not wanted.HasField("kind"):
            group.kind = kind if not wanted.gpus else type(group).KIND_GPU


def tensors(
    overrides: str, model: Any, *, inputs: Mapping[str, str] | None = None, outputs: Mapping[str, str] | None = None
) -> None:
    """Merge only the properties of inputs and outputs, into any model that shows them to clients.

    Raises:
        InputError: a tensor that is not there, or another type or shape for one that is.
    """
    given = parse(overrides)
    for kind, names in (("input", inputs or {}), ("output", outputs or {})):
        present = {tensor.name: tensor for tensor in getattr(model, kind)}
        for tensor in getattr(given, kind):
            name = names.get(tensor.name, tensor.name)
            if name not in present:
                known = [next((c for c, own in names.items() if own == n), n) for n in present]
                raise InputError(
                    f"{kind} {tensor.name!r} of {model.name!r} cannot be overridden: it has {known}"
                    f"{nearest(tensor.name, known)}"
                )
            mine = present[name]
            if tensor.dims not in ([], list(mine.dims)) or (
                tensor.HasField("data_type") and tensor.data_type != mine.data_type
            ):
                raise InputError(
                    f"{kind} {tensor.name!r} of {model.name!r} is promised to clients: its data_type and dims cannot "
                    "be overridden",
                    fix="leave data_type and dims out; other properties of it may be given",
                )
            tensor.ClearField("dims")
            tensor.name = name
            _merge(mine, tensor)


def file_hashes(overrides: str) -> list[str]:
    """Return the sha256 of each file that overrides name: it goes into the repository, so they say what is in it."""
    named = _files(parse(overrides)) if overrides else ()
    return [sha256_file(Path(getattr(holder, field))) for holder, field, _ in named]


def take_files(overrides: str) -> tuple[str, dict[str, Path]]:
    """Return overrides that name their files as the server looks for them, and place below the model's folder → file.

    Raises:
        InputError: two files would have one place.
    """
    given = parse(overrides)
    places: dict[str, Path] = {}
    for holder, field, folder in _files(given):
        source = Path(getattr(holder, field))
        place = f"{folder}{source.name}"
        if places.setdefault(place, source) != source:
            raise InputError(f"{places[place]} and {source} would both be {place}", fix="rename one of them")
        setattr(holder, field, source.name)
    return to_text(given), places


def moved(overrides: str, move: Callable[[Path], Path]) -> str:
    """Return overrides in which every file has the path that ``move`` gives for its own."""
    given = parse(overrides)
    for holder, field, _ in _files(given):
        setattr(holder, field, str(move(Path(getattr(holder, field)))))
    return to_text(given)


def _files(model: Any) -> Iterator[tuple[Any, str, str]]:
    """Yield each message that names a file, the field, and the folder where the server looks for it.

    Source: core, src/model.cc (labels), src/backend_model_instance.cc (warm-up),
    src/sequence_batch_scheduler/sequence_batch_scheduler.cc (initial states).
    """
    for output in model.output:
        if output.label_filename:
            yield output, "label_filename", ""
    for sample in model.model_warmup:
        for data in sample.inputs.values():
            if data.input_data_file:
                yield data, "input_data_file", "warmup/"
    for state in model.sequence_batching.state:
        for initial in state.initial_state:
            if initial.data_file:
                yield initial, "data_file", "initial_state/"


def _anchored(given: Any, folder: Path, source: str) -> str:
    """Make the files that overrides name absolute, and return the text."""
    for holder, field, _ in _files(given):
        named = getattr(holder, field)
        if "\0" in named or not (path := (folder / named).resolve()).is_file():
            raise InputError(f"{source}: {field} {named!r} is not a file beside it")
        setattr(holder, field, str(path))
    return to_text(given)


def _only(model: Any, field: str) -> Any:
    value = getattr(model, field)
    return value if isinstance(value, str) else (model.HasField(field), value.SerializeToString(deterministic=True))


def _merge(into: Any, given: Any) -> None:
    """Merge every field that ``given`` has; ``into`` is a message of the same type, of this schema or of Triton's."""
    for field, value in given.ListFields():
        mine = getattr(into, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key, item in value.items():
                if hasattr(item, "ListFields"):
                    _merge(mine[key], item)
                else:
                    mine[key] = item
        elif hasattr(value, "ListFields"):
            mine.SetInParent()
            _merge(mine, value)
        else:
            into.ClearField(field.name)
            into.MergeFromString(type(given)(**{field.name: value}).SerializeToString())
