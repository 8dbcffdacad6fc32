"""A space of the user's own: fields of Triton's ModelConfig and variables of the server, each with what it may be.

    model_config_parameters:                     # protobuf's JSON form; a list of choices for each field
      instance_group:
        - [{count: 1, kind: KIND_CPU}]
        - [{count: 2, kind: KIND_CPU}]
      dynamic_batching: [off, {}, {preferred_batch_size: [8], max_queue_delay_microseconds: 500}]
    environment:
      TF_XLA_FLAGS: ["", --tf_xla_auto_jit=2]

Every combination is a configuration. ``off`` leaves a field out, and only ``dynamic_batching`` can be left out; null is
as it ships. The names are those of Model Analyzer's ``model_config_parameters``.
"""

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from accel.core import hardware
from accel.core.errors import InputError, UsageError
from accel.core.yaml_file import read_yaml
from accel.triton import overrides, settings as schedules
from accel.triton.settings import Settings

FIELDS, VARIABLES = "model_config_parameters", "environment"
CONTRACT = "it is what clients were promised"
REFUSED: Mapping[str, str] = {
    **overrides.LAYOUT,
    **dict.fromkeys(("input", "output", "max_batch_size", "sequence_batching", "model_transaction_policy"), CONTRACT),
    "response_cache": "it is tried where --hit-rate says how often requests repeat",
}
"""Fields that cannot vary, and why."""
MOST = 1000
"""Most configurations of a space."""
BATCHING = "dynamic_batching"


@dataclass(frozen=True, slots=True)
class Space:
    """What may vary: the choices of each field (in protobuf's JSON form) and of each variable."""

    path: Path
    fields: Mapping[str, tuple[Any, ...]]
    variables: Mapping[str, tuple[str, ...]]

    def settings(self, config: Any) -> list[Settings]:
        """Return every combination, as what a repository's ``ModelConfig`` becomes by it.

        Raises:
            InputError: protobuf refuses a field or a value.
        """
        chosen = itertools.product(*self.fields.values())
        values = list(itertools.product(*self.variables.values()))
        found = []
        for choice in chosen:
            given = dict(zip(self.fields, choice, strict=True))
            one = self._applied(config, {name: value for name, value in given.items() if value is not None})
            for each in values:
                named = zip(self.variables, each, strict=True)
                found.append(replace(one, variables=tuple(f"{name}={value}" for name, value in named)))
        return list(dict.fromkeys(found))

    def _applied(self, config: Any, given: Mapping[str, Any]) -> Settings:
        model = type(config)()
        model.CopyFrom(config)
        said = {name: value for name, value in given.items() if value is not False}
        text = overrides.from_fields(said, f"{self.path}: {FIELDS}") if said else ""
        if given.get(BATCHING) is False:
            model.ClearField(BATCHING)
        if text:
            overrides.apply(text, model)
        found = replace(schedules.read(model), fields=text)
        try:
            schedules.apply(model, found, cpu_threads=hardware.cpu_threads())
        except InputError as error:
            raise InputError(f"{self.path}: {error.message}", fix=error.fix) from error
        if wrong := next((group.count for group in model.instance_group if group.count < 0), None):
            raise InputError(f"{self.path}: instance_group: count is {wrong}, expected 1 or more")
        most = model.max_batch_size
        if beyond := [size for size in model.dynamic_batching.preferred_batch_size if not 0 < size <= most]:
            where = f"{self.path}: {BATCHING}.preferred_batch_size"
            raise InputError(f"{where} is {beyond[0]}, and max_batch_size is {most}", fix="give sizes up to that")
        return found


def read(path: Path) -> Space:
    """Read a space from YAML.

    Raises:
        InputError: it cannot be read, or is none.
        UsageError: a field that cannot vary, or too many combinations.
    """
    given = read_yaml(path, "space")
    if not isinstance(given, Mapping) or not given or not given.keys() <= {FIELDS, VARIABLES}:
        raise InputError(
            f"{path} is not a space: expected {FIELDS} and {VARIABLES}", fix="docs/tuning.md has an example"
        )
    fields = {str(name): _choices(path, FIELDS, name, value) for name, value in _section(path, given, FIELDS)}
    for name, choices in fields.items():
        if (why := REFUSED.get(name)) is not None:
            raise UsageError(f"{path}: {name} cannot vary: {why}", fix="leave it out")
        if name != BATCHING and any(choice is False for choice in choices):
            raise UsageError(f"{path}: {name}: only {BATCHING} can be off", fix="null is as it ships")
    variables = {}
    for name, value in _section(path, given, VARIABLES):
        choices = _choices(path, VARIABLES, name, value)
        if not re.fullmatch(r"[A-Za-z_]\w*", str(name)) or not all(isinstance(v, str | int | float) for v in choices):
            raise InputError(f"{path}: {VARIABLES}: {name}: expected NAME: [text, …]")
        variables[str(name)] = tuple(str(v) for v in choices)
    count = math.prod(len(each) for each in (*fields.values(), *variables.values()))
    if count > MOST:
        raise UsageError(f"{path} has {count} combinations, at most {MOST} can be tried", fix="give fewer choices")
    return Space(path, fields, variables)


def _section(path: Path, given: Mapping[str, Any], name: str) -> list[tuple[Any, Any]]:
    section = given.get(name, {})
    if not isinstance(section, Mapping):
        raise InputError(f"{path}: {name}: expected a mapping of names to choices")
    return list(section.items())


def _choices(path: Path, section: str, name: Any, value: Any) -> tuple[Any, ...]:
    """Return the choices of one name; a single one need not be a list."""
    choices = tuple(value) if isinstance(value, list) else (value,)
    if not choices:
        raise InputError(f"{path}: {section}: {name} has no choices")
    return choices
