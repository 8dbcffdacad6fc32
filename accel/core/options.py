"""Options: one pydantic model a command, of which its flags, a file's keys and Python's keyword arguments are made.

A field with a description is an option, under its alias where it has one; ``accel.cli.options`` makes the flags.
"""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from accel.core.errors import AccelError, InputError, UsageError, nearest

AboveZero = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class OptionTrait(Enum):
    """What else there is to say of a field."""

    ARGUMENT = "given by its place, without a flag"
    REPEATED = "a flag that may be given several times"
    SWITCH = "a flag without a value"
    FILE = "a flag that takes a file, which is read"
    BY_MODEL = "a flag that takes a number, or NAME=NUMBER,… of several models"
    CARRIED = "matters also where a deferred build is finished"
    INTERNAL = "set by accel: no key of a file"


class Options(BaseModel):
    """What a command takes; what is wrong with it is an ``AccelError``.

    Attributes:
        MISSING: how to give each option that has no default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    MISSING: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def typed(cls, given: Mapping[str, Any]) -> Self:
        """Return the options of a command line, by their keys; an error names them by their flags."""
        return cls.model_validate(given, context={"typed": given})

    @model_validator(mode="wrap")
    @classmethod
    def _explained(cls, given: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        try:
            return handler(given)
        except ValidationError as error:
            raise explained(error, cls, **(info.context or {})) from error


def keys(model: type[BaseModel]) -> list[str]:
    """Return what the options of a model are called, in a file as in Python."""
    fields = model.model_fields.items()
    return [info.alias or name for name, info in fields if OptionTrait.INTERNAL not in info.metadata]


def explained(
    error: ValidationError, model: type[Options], config: Path | None = None, typed: Iterable[str] = ()
) -> AccelError:
    """Say what is wrong with options: by its flag what was typed, by its key what a job file holds.

    Args:
        config: file that held what was not typed.
        typed: keys of what was typed.
    """
    errors = [found for found in error.errors() if found["type"] != "default_factory_not_called"]  # others say why
    if all(found["type"] == "missing" for found in errors):
        name = str(errors[0]["loc"][0])
        return UsageError(f"no {name} given", fix=model.MISSING[name])
    messages: dict[str, None] = {}
    from_file = False
    keyed = {info.alias or name for name, info in model.model_fields.items() if info.default == {}}
    for found in errors:
        name, kind, limits = str(found["loc"][0]), found["type"], found.get("ctx", {})
        if kind == "missing":
            continue
        from_file |= config is not None and name not in typed
        label = ".".join(map(str, found["loc"])) if name in keyed else name
        label = f"--{name.replace('_', '-')}" if name in typed else label
        bound = {key: f"{value:g}" for key, value in limits.items() if isinstance(value, int | float)}
        known = re.findall("'([^']*)'", limits["expected"]) if kind == "literal_error" else []
        expected = {
            "literal_error": str(limits.get("expected")).replace("'", "") + nearest(str(found["input"]), known),
            "greater_than_equal": f"{bound.get('ge')} or more",
            "greater_than": f"a number above {bound.get('gt')}",
            "less_than_equal": f"{bound.get('le')} or less",
            "less_than": f"a number below {bound.get('lt')}",
            "finite_number": "a number above 0",
        }.get(kind)
        plain = found["msg"].removeprefix("Value error, ")
        if kind == "extra_forbidden":
            plain = f"there is no such option{nearest(name, (*model.model_fields, *keys(model)))}"
        said = f" is {found['input']!r}: expected {expected}" if expected else f": {plain}"
        messages[label + said] = None
    if from_file:
        return InputError(f"job file {config}: {'; '.join(messages)}", fix=f"known keys: {', '.join(keys(model))}")
    return UsageError("; ".join(messages))
