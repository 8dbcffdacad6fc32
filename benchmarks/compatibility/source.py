"""One source of the corpus: what it is, where it comes from, how to make it, and the command a person would give."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["onnx", "torch", "huggingface", "tensorflow"]
KINDS: tuple[Kind, ...] = ("onnx", "torch", "huggingface", "tensorflow")
MODELS = Path(__file__).parent / "models"


class NotHere(Exception):
    """The source needs a package that is not on this machine; the message names it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A stranger's model.

    Attributes:
        id: ``kind/name``, unique.
        architecture: what network it is; several sources may share one.
        origin: paper, package or suite.
        make: writes the source into an empty folder and returns the SOURCE argument of ``accel convert``.
        arguments: further arguments; ``{folder}`` stands for the source's folder.
        operator: whether it is a case of a single operator, which is counted apart.
        wants: ``variants``, or ``message`` where no variant can be right and a clear message is what is asked for.
    """

    id: str
    kind: Kind
    architecture: str
    origin: str
    make: Callable[[Path], str]
    arguments: tuple[str, ...] = ()
    operator: bool = False
    wants: Literal["variants", "message"] = "variants"


def factory(file: str, function: str) -> Callable[[Path], str]:
    """Return a ``make`` for a function of a file in ``models/``."""
    return lambda folder: f"{MODELS / file}.py:{function}"


def checked(sources: Iterable[Source]) -> tuple[Source, ...]:
    """Return the sources.

    Raises:
        ValueError: an id that is used twice, or does not begin with its kind.
    """
    found = tuple(sources)
    seen: set[str] = set()
    for source in found:
        if source.id in seen or not source.id.startswith(f"{source.kind}/"):
            raise ValueError(f"source id {source.id!r} is used twice, or not of kind {source.kind}")
        seen.add(source.id)
    return found
