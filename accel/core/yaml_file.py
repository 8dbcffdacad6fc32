"""Read a YAML file that somebody else may have written: no file is too large, too deep or too often repeated.

PyYAML's safe loader runs no code, but an alias repeats what it names: nine lines of ten aliases each are a thousand
million values. It recurses once for each level, and Python refuses to write integers of 5,000 digits.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from accel.core.errors import InputError

LARGEST_BYTES = 1 << 20
MOST_VALUES = 20_000
"""Values in all, an alias counted as everything it stands for."""
DEEPEST = 32
LONGEST_NUMBER = 40
NUMBER = re.compile(r"[-+]?(0x[0-9a-fA-F_]+|0b[01_]+|[0-9_:.]+)")


def read_yaml(path: Path, what: str) -> Any:
    """Read a YAML file of values, mappings and lists.

    Args:
        what: what a message calls the file (``job file``).

    Raises:
        InputError: it is missing, no YAML, or larger, deeper or more often repeated than any such file.
    """
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_BYTES + 1)
        if len(content) > LARGEST_BYTES:
            raise InputError(f"{what} {path} has more than {LARGEST_BYTES >> 20} MiB")
        text = content.decode()
        _check(text, f"{what} {path}")
        return yaml.safe_load(text)
    except FileNotFoundError:
        raise InputError(f"{what} {path} does not exist") from None
    except (OSError, ValueError, OverflowError, RecursionError, yaml.YAMLError) as error:
        raise InputError(f"{what} {path} cannot be read: {error}") from error


def _check(text: str, where: str) -> None:
    """Count what the file would become, from the parser's events, which nest and repeat nothing.

    Raises:
        InputError: that is more than any such file needs.
    """
    total = 0
    opened: list[tuple[str | None, int]] = []
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise InputError(f"{where}: *{event.anchor} names what is not there yet, or holds itself")
            total += sizes[event.anchor]
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = opened.pop()
            if anchor is not None:
                sizes[anchor] = total - before
        elif isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, total))
            total += 1
            if len(opened) > DEEPEST:
                raise InputError(f"{where} is nested more than {DEEPEST} levels deep")
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
            if len(event.value) > LONGEST_NUMBER and NUMBER.fullmatch(event.value):
                raise InputError(f"{where} has a number of {len(event.value)} characters")
        if total > MOST_VALUES:
            raise InputError(f"{where} comes to more than {MOST_VALUES} values")


def positions(path: Path, what: str) -> dict[tuple[str | int, ...], int]:
    """Return the line of every key and list item of a file that ``read_yaml`` has read, by the way that leads to it.

    What ``<<`` merges in stands at its own line.

    Raises:
        InputError: a key is given twice, of which YAML would keep the last alone.
    """
    found: dict[tuple[str | int, ...], int] = {}

    def walk(node: Any, way: tuple[str | int, ...]) -> None:
        if isinstance(node, yaml.SequenceNode):
            for number, item in enumerate(node.value):
                found.setdefault((*way, number), item.start_mark.line + 1)
                walk(item, (*way, number))
        elif isinstance(node, yaml.MappingNode):
            own: dict[str, int] = {}
            merged: list[Any] = []
            for key, value in node.value:
                if key.tag == "tag:yaml.org,2002:merge":
                    merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
                    continue
                name, line = str(key.value), key.start_mark.line + 1
                if name in own:
                    raise InputError(
                        f"{what} {path}, line {line}: {'.'.join(map(str, (*way, name)))} is given in line {own[name]}"
                        " already",
                        fix="keep one of them",
                    )
                own[name] = line
                found.setdefault((*way, name), line)
                walk(value, (*way, name))
            for base in merged:
                walk(base, way)

    walk(yaml.compose(path.read_text(), Loader=yaml.SafeLoader), ())
    return found
