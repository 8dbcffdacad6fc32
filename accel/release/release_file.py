"""What a user asks of one release: ``release.yaml``, read and checked as a whole before anything is built.

    release: 2026.11.1
    defaults: &defaults {objective: latency, triton_release: "26.06"}      any key of a job file
    pools:
      cpu-vnni: {device: cpu, targets: [ort, openvino-int8], flags: [avx512_vnni]}
      h100: {device: cuda, targets: [trt-fp16], gpu: H100}
    models:
      minilm: minilm                                                       its source alone, or
      ranker: {source: ranker.onnx, samples: ranker.npz, require: [ort], pools: {cpu-vnni: [ort]}}

The keys of a model are those of a job file, over the file's ``defaults``. Which targets are built is the pools' to say,
and which machine is a pool, the machine's own facts.
"""

import functools
import shlex
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    create_model,
    field_validator,
    model_validator,
)

from accel.builders import targets
from accel.core.errors import AccelError, InputError, nearest
from accel.core.hardware import FLAGS, Hardware
from accel.core.options import AboveZero
from accel.core.values import Target
from accel.core.yaml_file import positions, read_yaml
from accel.exporters.request import SourceRequest
from accel.exporters.sources import licence_of
from accel.run import job
from accel.run.job import Job, Names
from accel.triton.tune.cost import Price, parse_prices, read_prices
from accel.triton.tune.request import TuneOptions

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$"
OF_THE_RELEASE = {"targets", "out", "device", "command", "model_name"}
"""Fields of a job that the release fills in."""
KeyPath = tuple[str | int, ...]
"""Keys and positions that lead to a value of the file."""


class Strict(BaseModel):
    """A part of the file: no unknown keys, and accel's own errors told at the line that they are about."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @field_validator("*", mode="wrap")
    @classmethod
    def _explained(cls, given: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(given)
        except AccelError as error:
            raise ValueError(error.message) from error


def _options() -> Any:
    """Return the model of a job file's keys of which none has to be given, and of ``tune``."""
    fields: dict[str, Any] = {}
    for name, info in Job.model_fields.items():
        if name not in OF_THE_RELEASE:
            free = copy(info)
            free.default, free.default_factory, free.alias, free.validation_alias = None, None, None, None
            kind: Any = {"source": str, "triton": dict[str, Any]}.get(name, info.annotation)
            fields[info.alias or name] = (kind | None, free)
    fields["tune"] = (
        TuneOptions | None,
        Field(None, description="Ship what accel tune finds; null: as it was measured"),
    )
    return create_model("Options", __base__=Strict, **fields)


Options: Any = _options()


class MachinePool(Strict):
    """Machines of one kind: what they need to have, and what is built for them."""

    device: Annotated[Literal["cpu", "cuda"], Field(description="What its variants run on")]
    targets: Annotated[Names, Field(min_length=1, description="Targets of every model, as accel targets lists them")]
    hardware: Annotated[str | None, Field(description="Exactly this hardware id, as run.json has it")] = None
    flags: Annotated[Names, Field(description="Features of the CPU: avx512_vnni, amx_int8…")] = ()
    gpu: Annotated[str | None, Field(description="Part of the GPU's name: H100")] = None
    threads: Annotated[int, Field(ge=1, description="CPU threads at least")] = 1
    memory_gib: Annotated[AboveZero | None, Field(description="Memory at least")] = None

    @field_validator("flags")
    @classmethod
    def _known(cls, flags: tuple[str, ...]) -> tuple[str, ...]:
        for flag in flags:
            if flag not in FLAGS:
                raise ValueError(f"unknown feature {flag!r}{nearest(flag, FLAGS)}: expected {', '.join(FLAGS)}")
        return flags

    @model_validator(mode="after")
    def _checked(self) -> Self:
        try:
            self.parsed(self.targets)
        except AccelError as error:
            raise ValueError(error.message) from error
        return self

    def lacks(self, machine: Hardware) -> str | None:
        """Say what a machine lacks to be of this pool; None where it is."""
        gpu = (self.gpu or "").lower()
        if self.hardware not in (None, machine.id):
            return f"it is {machine.id}, not {self.hardware}"
        if self.device not in machine.devices:
            return f"it has no {self.gpu or 'GPU'}"
        if gpu and not any(gpu in card.name.lower() for card in machine.gpus):
            return f"it has no {self.gpu}"
        if missing := [flag for flag in self.flags if flag not in machine.cpu.flags]:
            return f"its CPU has no {', '.join(missing)}"
        if machine.cpu.threads < self.threads:
            return f"it has {machine.cpu.threads} CPU threads, not {self.threads}"
        if self.memory_gib and machine.memory_bytes < self.memory_gib * 2**30:
            return f"it has {machine.memory_bytes / 2**30:.1f} GiB of memory, not {self.memory_gib:g}"
        return None

    def parsed(self, names: tuple[str, ...]) -> tuple[Target, ...]:
        """Return targets on this pool's device.

        Raises:
            UsageError: an unknown target, or one of another device.
        """
        return targets.parse(",".join(names), devices=(self.device,), only=True)


class ModelEntry(Options):
    """One model: a job file's keys, and the pools that it is for."""

    source: Annotated[str, Field(description="As accel convert takes it")]
    pools: Annotated[
        tuple[str, ...] | dict[str, Names] | None,
        Field(description="Pools, or for each of them its targets  [default: all pools, and theirs]"),
    ] = None
    licence: Annotated[
        str | None, Field(description="Of its weights  [default: as the zoo or its model card says]")
    ] = None


def _short(given: Any) -> Any:
    return {"source": given} if isinstance(given, str) else given


Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Margins(Strict):
    """How much worse than in the release before something may be; what is worse by more blocks the release."""

    latency: Annotated[Share, Field(description="Share of the time of calls, if they are slower for certain")] = 0.05
    memory: Annotated[Share, Field(description="Share of the peak memory, from 32 MiB on")] = 0.10
    size: Annotated[Share, Field(description="Share of the artifact's bytes")] = 0.10
    accuracy_db: Annotated[Share, Field(description="dB of a gate's figure, below 80 dB")] = 1.0
    accuracy: Annotated[Share, Field(description="A task metric's figure")] = 0.01
    cost: Annotated[Share, Field(description="Share of what a million inferences cost, if certain")] = 0.05


class Licences(Strict):
    """Which licences of models may be released. One that is unknown stops a release as a denied one does."""

    allow: Annotated[Names, Field(description="These alone, as SPDX has them: Apache-2.0  [default: all]")] = ()
    deny: Annotated[Names, Field(description="These not")] = ()
    accept: Annotated[dict[str, str], Field(description="Model: why it is released all the same")] = {}

    def refuse(self, licence: str | None) -> str | None:
        """Say what is wrong with a licence; None for one that may be released."""
        if not self.allow and not self.deny:
            return None
        if licence is None:
            return "its licence is unknown"
        folded = licence.casefold()
        if folded in {text.casefold() for text in self.deny}:
            return f"its licence is {licence}, which licences.deny names"
        if self.allow and folded not in {text.casefold() for text in self.allow}:
            return f"its licence is {licence}, and licences.allow names {', '.join(self.allow)}"
        return None


class Retention(Strict):
    """Which releases `accel release prune` keeps: what either of these covers, and what a pointer needs."""

    keep_last: Annotated[int, Field(ge=1, description="So many of the newest")]
    keep_days: Annotated[Share, Field(description="All that are younger")] = 30.0


PRICES = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": {
                "anyOf": [
                    {"type": "number", "exclusiveMinimum": 0},
                    {
                        "type": "object",
                        "properties": {
                            name: {"type": "number", "exclusiveMinimum": 0} for name in ("usd_per_hour", "models")
                        },
                        "required": ["usd_per_hour"],
                        "additionalProperties": False,
                    },
                ]
            },
        },
    ]
}
"""The JSON Schema of a price list: the reader of ``accel tune`` checks it."""


class ReleaseFile(Strict):
    """A whole ``release.yaml``."""

    release: Annotated[str, Field(pattern=NAME, description="Version, such as 2026.11.1: quote what is a number")]
    defaults: Annotated[Options, Field(description="Keys of a job file for all models")] = Options()
    pools: Annotated[dict[Annotated[str, Field(pattern=NAME)], MachinePool], Field(min_length=1)]
    models: Annotated[
        dict[Annotated[str, Field(pattern=NAME)], Annotated[ModelEntry, BeforeValidator(_short, str | ModelEntry)]],
        Field(min_length=1),
    ]
    margins: Annotated[Margins, Field(description="How much worse than before is still let through")] = Margins()
    licences: Annotated[Licences, Field(description="Which licences of models may be released")] = Licences()
    retention: Annotated[Retention | None, Field(description="What accel release prune keeps")] = None
    prices: Annotated[
        Any,
        WithJsonSchema(PRICES),
        Field(description="A price list's file, as accel tune takes it, or what it says: HARDWARE_ID: USD per hour"),
    ] = None


@dataclass(frozen=True)
class ModelPlan:
    """One model of a release, with the defaults beneath its own options.

    Attributes:
        given: keys of a job file as the release file has them.
        options: the same as a job takes them.
        wanted: the targets of each pool that it is for.
        required: what must be ``ok`` for the release to be complete: target names, or ids of variants.
        licence: of its weights: as given, or as the zoo or its model card says; None where nobody says.
        accepted: why it is released although its licence is unknown or denied; None where that is not so.
        tune: what its serving configuration must hold; None for the one that ``accel convert`` emits.
    """

    name: str
    given: Mapping[str, Any]
    options: Mapping[str, Any]
    wanted: Mapping[str, tuple[Target, ...]]
    required: tuple[str, ...]
    licence: str | None = None
    accepted: str | None = None
    tune: TuneOptions | None = None

    @property
    def everything(self) -> list[Any]:
        """All that is asked of it, but where it is built: for hashes."""
        return [self.options, *([self.tune.model_dump(mode="json")] if self.tune else [])]

    def job(self, wanted: Iterable[Target], out: Path, *, config: Path | None = None) -> Job:
        """Return the conversion of this model for some of its targets.

        Args:
            config: where its options lie as a job file, which the command then names.

        Raises:
            UsageError / InputError: as ``Job``.
        """
        asked = tuple(dict.fromkeys(wanted))
        words = ["accel", "convert", *(["-c", str(config)] if config else [])]
        command = shlex.join([*words, "--targets", ",".join(map(str, asked)), "-o", str(out)])
        every = {"targets": [target for targets in self.wanted.values() for target in targets]}
        given = {"ints": job.default_ints(every), **self.options}  # clients see the same on every pool
        return Job.model_validate({**given, "targets": asked, "out": out, "command": command})

    @functools.cached_property
    def request(self) -> SourceRequest:
        """The source of this model; raises as ``Job``."""
        return self.job((t for targets in self.wanted.values() for t in targets), Path()).request


@dataclass(frozen=True, slots=True)
class ReleasePlan:
    """A release file that was read: its version, its pools and models.

    Attributes:
        prices: hardware id → what a machine of it costs; none where nothing was said.
    """

    version: str
    pools: Mapping[str, MachinePool]
    models: tuple[ModelPlan, ...]
    margins: Margins
    retention: Retention | None
    prices: Mapping[str, Price] = field(default_factory=dict)


def read(path: Path) -> ReleasePlan:
    """Read a release file; all that is wrong with it is told at once, each with its line.

    Raises:
        InputError: it is missing, no YAML, has unknown keys or wrong values, or names what is not there.
    """
    data = read_yaml(path, "release file")
    lines = positions(path, "release file")
    if not isinstance(data, dict):
        raise InputError(f"release file {path} holds {type(data).__name__}: expected keys and values", fix=FIX)
    try:
        given = ReleaseFile.model_validate(data)
    except ValidationError as error:
        raise _refuse(path, lines, [(e["loc"], _said(e)) for e in error.errors()]) from error
    if wrong := list(_contradictions(given)):
        raise _refuse(path, lines, wrong)
    models = []
    for name, entry in given.models.items():
        try:
            asked = _asked(name, entry, given, data, path)
            request = asked.request
        except AccelError as error:
            wrong.append((("models", name), error.message.removeprefix(f"job file {path}: ")))
            continue
        licence = entry.licence or licence_of(request)
        refused, why = given.licences.refuse(licence), given.licences.accept.get(name)
        if refused is not None and why is None:
            fix = "" if licence else "give its licence, or "
            wrong.append((("models", name, "licence"), f"{refused}: {fix}say why under licences.accept.{name}"))
        models.append(replace(asked, licence=licence, accepted=why if refused else None))
    prices: dict[str, Price] = {}
    try:
        if isinstance(given.prices, str):
            prices = read_prices(Path(given.prices))
        elif "prices" in data:
            prices = parse_prices(given.prices, "prices")
    except AccelError as error:
        wrong.append((("prices",), error.message))
    if wrong:
        raise _refuse(path, lines, wrong)
    return ReleasePlan(given.release, given.pools, tuple(models), given.margins, given.retention, prices)


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a release file, for editors."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **ReleaseFile.model_json_schema()}


FIX = "examples/release.yaml is one; `accel release schema` prints its JSON Schema for an editor"


def _asked(name: str, entry: ModelEntry, given: ReleaseFile, data: Mapping[str, Any], path: Path) -> ModelPlan:
    own = {**(data.get("defaults") or {}), **_short(data["models"][name]), "model_name": name}
    plain = {k: v for k, v in own.items() if k not in ("pools", "require", "licence", "tune")}
    chosen = entry.pools if isinstance(entry.pools, dict) else dict.fromkeys(entry.pools or given.pools, ())
    wanted = {pool: given.pools[pool].parsed(only or given.pools[pool].targets) for pool, only in chosen.items()}
    required = entry.require or given.defaults.require or ()
    tune = (entry if "tune" in entry.model_fields_set else given.defaults).tune
    return ModelPlan(name, plain, job.options(plain, path), wanted, required, tune=tune)


def _contradictions(given: ReleaseFile) -> Iterator[tuple[KeyPath, str]]:
    """Yield what no single value shows: names of models, pools and targets that are not there."""
    for name in given.licences.accept.keys() - given.models.keys():
        yield ("licences", "accept", name), f"unknown model {name!r}{nearest(name, given.models)}"
    for name, entry in given.models.items():
        place = ("models", name, "pools")
        chosen = entry.pools if isinstance(entry.pools, dict) else dict.fromkeys(entry.pools or given.pools, ())
        known: set[str] = set()
        for pool, only in chosen.items():
            if pool not in given.pools:
                yield place, f"unknown pool {pool!r}{nearest(pool, given.pools)}"
                continue
            try:
                wanted = given.pools[pool].parsed(only or given.pools[pool].targets)
                known |= {text for target in wanted for text in (target.name, str(target))}
            except AccelError as error:
                yield (*place, pool), error.message
        for text in entry.require or given.defaults.require or ():
            if known and text.partition("+")[0] not in known:
                yield ("models", name, "require"), f"{text!r} is not among its targets{nearest(text, known)}"


def _said(error: Any) -> str:
    kind, key = error["type"], str(error["loc"][-1])
    if kind == "extra_forbidden":
        parts = {"models": ModelEntry, "pools": MachinePool, "defaults": Options}
        parts |= {"licences": Licences, "retention": Retention}
        part = TuneOptions if "tune" in error["loc"][:-1] else parts.get(str(error["loc"][0]), ReleaseFile)
        known = list((part if len(error["loc"]) > 1 else ReleaseFile).model_fields)
        return f"unknown key {key!r}{nearest(key, known)}"
    if kind == "missing":
        return f"{key} is missing"
    return f"{error['msg'].removeprefix('Value error, ')}, found {error['input']!r}"


def _refuse(path: Path, lines: Mapping[KeyPath, int], wrong: Iterable[tuple[KeyPath, str]]) -> InputError:
    """Return the error that names each thing's place: the deepest part of the way to it that the file has."""
    said = []
    for way, text in wrong:
        there = next(way[:n] for n in range(len(way), -1, -1) if n == 0 or way[:n] in lines)
        if way[0] == "models" and len(there) == 2 and ("defaults", *way[2:3]) in lines:
            there = ("defaults", *way[2:3])
        said.append((lines.get(there, 1), f"line {lines.get(there, 1)}: {'.'.join(map(str, there))}: {text}"))
    found = "\n  ".join(dict.fromkeys(text for _, text in sorted(said)))
    return InputError(f"release file {path} has errors\n  {found}", fix=FIX)
