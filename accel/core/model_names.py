"""Which names a model may have: those of folders in a Triton repository, safe on the wire, too."""

import re

from accel.core.errors import UsageError


def check_model_name(name: str, *, longest: int = 128) -> str:
    """Return the name if it is safe as a folder and on the wire.

    Raises:
        UsageError: it is empty or too long, begins with a dot or ``-``, or holds a slash, ``..`` or anything but
            letters, digits, ``_.-``.
    """
    if len(name) > longest or ".." in name or not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise UsageError(
            f"model name {name!r} cannot name a folder of a Triton repository: expected 1 to {longest} letters, "
            "digits, '_', '-' or '.', not starting with '.' or '-' and without '..'",
            fix="choose another with --model-name",
        )
    return name
