"""The pipeline's errors for who calls it from Python: their remedies name options of the command line."""

import contextlib
import re
from collections.abc import Iterator

from accel.core.errors import AccelError
from accel.run.job import Job

OWN = {"gates": "gate", "objectives": "objective"}
"""Keywords that ``accel.optimize`` has in place of a field of ``accel.Job``."""


def in_python(text: str) -> str:
    """Return a text with every option of ``accel convert`` as the keyword that it is: ``min_shapes=``."""
    flags = {(field.alias or name).replace("_", "-"): OWN.get(name, name) for name, field in Job.model_fields.items()}
    return re.sub(r"--([a-z][a-z0-9-]*)", lambda found: f"{flags[found[1]]}=" if found[1] in flags else found[0], text)


@contextlib.contextmanager
def told_in_python() -> Iterator[None]:
    """Let errors name keywords where they would name options."""
    try:
        yield
    except AccelError as error:
        error.message = in_python(error.message)
        error.args = (error.message, *error.args[1:])
        error.fix = in_python(error.fix) if error.fix else None
        raise
