"""The models accel knows by name: one file each, found by listing this folder.

A file offers ``ENTRY``, an ``Entry``. Its module level imports the standard library, NumPy and this package only, so
that listing the zoo costs nothing; frameworks are imported inside ``load`` and ``samples``. ``bert@small`` names the
reduced model of an entry: fewer layers or smaller pictures, the same structure, random weights.
"""

import dataclasses
import pkgutil
from collections.abc import Sequence

from accel.core.errors import InputError
from accel.core.values import TensorSpec
from accel.exporters.zoo import SMALL, Entry, Item

__all__ = ["SMALL", "Entry", "Item", "entries", "entry", "pictures", "sentences"]


def entries() -> dict[str, Entry]:
    """Return name → entry for every file of the folder, sorted by name; files whose name begins with _ only help.

    Raises:
        InputError: a file cannot be imported, offers no ``ENTRY``, lacks a field or has a wrong one, or two files claim
            one name; the message names file and field.
    """
    from model_zoo import _checks

    found: dict[str, Entry] = {}
    for stem in sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")):
        made = _checks.read(__name__, stem, Entry)
        if made.name in found:
            raise InputError(f"zoo file {__name__}/{stem}.py: name: {made.name!r} is another file's", fix="rename it")
        found[made.name] = made
    return dict(sorted(found.items()))


def entry(name: str) -> Entry:
    """Return one entry, or the reduced one of ``NAME@small``.

    Raises:
        KeyError: no such name, or the entry has no reduced model.
        InputError: a file of the zoo is wrong, or the reduced entry of this one.
    """
    from model_zoo import _checks

    name, at, _ = name.partition(SMALL)
    found = entries()[name]
    if not at:
        return found
    if found.small is None:
        raise KeyError(f"{name} has no reduced model")
    reduced = found.small()
    _checks.check(reduced, f"the reduced entry of {name}")
    small = dataclasses.replace(reduced, name=name + SMALL, gate=None, metric=None, labels=None)
    return dataclasses.replace(small, hub=None, revision=None, drawn=None, resolve=None)


def sentences(count: int) -> Sequence[str]:
    """Return ``count`` sentences in a fixed order."""
    from model_zoo import _text

    return _text.sentences(count)


def pictures(count: int, spec: TensorSpec) -> Sequence[Item]:
    """Return ``count`` pictures with natural statistics, each an item for a model whose one input is ``spec``."""
    from model_zoo import _pictures

    return _pictures.pictures(count, spec)
