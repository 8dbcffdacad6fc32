"""Commands whose options are the fields of a pydantic model (``accel.core.options``)."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from accel.cli import complete

Complete = Callable[[str], list[str]]
SHORT = {"targets": ("-t",), "out": ("-o",)}
LAST = ("as_json", "quiet", "verbose")
"""Options of how a command tells what it did."""


def command_of(
    model: str,
    body: Callable[..., None],
    *,
    offers: Mapping[str, Complete] | None = None,
    only: Sequence[str] | None = None,
    own_at: int = 0,
) -> type[TyperCommand]:
    """Return the class of a command that has an option for each field with a description.

    Args:
        model: ``module:Class``, imported when the command is called: ``accel --help`` imports no pydantic.
        body: takes what was given, by the keys of the options, and options of its own.
        offers: what completes a key's word.
        only: keys of the fields that are options of the command, whose defaults are not the model's; None for all.
        own_at: how many of the fields' options stand before the command's own ones; ``LAST`` stand at the end.
    """

    class ModelCommand(TyperCommand):
        def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
            """Make the context of the command that has the options."""
            app = typer.Typer(add_completion=False, rich_markup_mode=None)
            module, _, name = model.partition(":")
            options = getattr(importlib.import_module(module), name)
            app.command(help=self.help)(_with_options(body, options, offers or {}, only, own_at))
            return typer.main.get_command(app).make_context(info_name, args, parent, **extra)

    return ModelCommand


def _with_options(
    body: Callable[..., None], model: Any, offers: Mapping[str, Complete], only: Sequence[str] | None, own_at: int
) -> Callable[..., None]:
    fields = {info.alias or name: info for name, info in model.model_fields.items() if info.description is not None}
    keys = only or list(fields)
    params = [_parameter(key, fields[key], offers, defaults=only is None) for key in keys]
    own = list(Signature.from_callable(body, eval_str=True).parameters.values())[:-1]
    own = [p.replace(kind=Parameter.KEYWORD_ONLY) for p in own]
    params[own_at:own_at] = [p for p in own if p.name not in LAST]
    params += [p for p in own if p.name in LAST]

    def with_options(**given: Any) -> None:
        body(**{key: value for key, value in given.items() if value is not None or key not in keys})

    with_options.__signature__ = Signature(params)  # type: ignore[attr-defined]
    return with_options


def _parameter(key: str, field: Any, offers: Mapping[str, Complete], *, defaults: bool) -> Parameter:
    from accel.core.options import OptionTrait

    traits, text = field.metadata, field.description
    shown = field.default if isinstance(field.default, str) else None
    if isinstance(field.default, int | float) and not isinstance(field.default, bool):
        shown = f"{field.default:g}"
    if defaults and shown and "[default:" not in text:
        text += f"  [default: {shown}]"
    if OptionTrait.BY_MODEL in traits:
        text += ": 100, or by model bert=100,minilm=20"
    arms = (field.annotation, *get_args(field.annotation))
    plain = [getattr(arm, "__origin__", arm) for arm in arms]  # ``float`` of ``Annotated[float, Field(gt=0)]``
    kind: Any = next((kind for kind in (bool, int, float, Path) if kind in plain), str)
    for trait, wanted in (
        (OptionTrait.FILE, Path),
        (OptionTrait.BY_MODEL, str),
        (OptionTrait.SWITCH, bool),
        (OptionTrait.REPEATED, list[str]),
    ):
        kind = wanted if trait in traits else kind
    choices = [word for arm in arms if get_origin(arm) is Literal for word in get_args(arm)]
    shell = offers.get(key) or (complete.words(*choices) if choices else None)
    option = (
        typer.Argument(help=text, autocompletion=shell)
        if OptionTrait.ARGUMENT in traits
        else typer.Option(f"--{key.replace('_', '-')}", *SHORT.get(key, ()), help=text, autocompletion=shell)
    )
    return Parameter(key, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])
