"""The errors a user can meet, and the exit code each one leads to.

    AccelError                      exit 2   what failed, on what, what was expected and found, how to fix it
    ├── UsageError                  exit 2   a wrong option, name or job file
    ├── InputError                  exit 2   a model, sample or repository file that is missing, broken or contradictory
    │   └── SampleError             exit 2   samples that do not fit the model's inputs
    ├── OutputError                 exit 2   the output folder cannot be written, or somebody else is writing to it
    ├── CheckFailed                 exit 1   a check ran and found errors (verify, lint, --require, no variant passed)
    ├── UnavailableError            exit 3   a package, an environment or a device that this machine lacks
    └── StageError                  exit 1   an export, build or run failed inside a library; carries the log
        └── WorkerDied              exit 1   the process of a stage crashed, hung past its limit or was killed

Anything else that escapes is a bug in accel and shows its traceback. Remedies differ by class, not by module: whoever
catches one of these knows from its class what the user can do.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager


class AccelError(Exception):
    """A failure the user can fix.

    Args:
        message: what failed, on what, and what was expected and found; one or two sentences.
        fix: the command or change that fixes it.
    """

    exit_code = 2

    def __init__(self, message: str, *, fix: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  fix: {self.fix}" if self.fix else self.message


class UsageError(AccelError):
    """A wrong option, name or job file."""


class InputError(AccelError):
    """A model, sample or repository file that is missing, broken or contradicts itself."""


class SampleError(InputError):
    """Samples whose names, dtypes, shapes or values do not fit the model's inputs."""


class OutputError(AccelError):
    """The output folder cannot be written, or another command is writing to it."""


class CheckFailed(AccelError):
    """A check ran to its end and found errors."""

    exit_code = 1


class UnavailableError(AccelError):
    """A package, an environment or a device that is needed and not here."""

    exit_code = 3


class StageError(AccelError):
    """An export, a build or a run failed inside a library.

    Args:
        log: path of the log of the process that failed, when there is one.
    """

    exit_code = 1

    def __init__(self, message: str, *, fix: str | None = None, log: str | None = None) -> None:
        super().__init__(message, fix=fix)
        self.log = log


class UnprovedWarning(UserWarning):
    """What was loaded answers otherwise than its source by more than its gate allows."""


END_OF_LOG = "; the end of its log:"
"""Parts the reason of ``WorkerDied`` from the last lines of the process's log, each indented by ``LOG_INDENT``."""
LOG_INDENT = "    "


class WorkerDied(StageError):
    """The process of a stage crashed, was killed, or ran past its time limit."""


@contextmanager
def raised_as(
    kind: type[AccelError],
    caught: type[Exception] | tuple[type[Exception], ...],
    what: str,
    *,
    fix: str | None = None,
    say: Callable[[Exception], str] = str,
) -> Iterator[None]:
    """Turn what a library raises in the block into an error of accel's: ``what``, and the library's own words.

    Args:
        kind: class of the error.
        caught: what the library raises; anything else passes, and so do accel's own errors.
        what: what failed, and on what.
        fix: how to repair it.
        say: returns the library's words; where it returns none, the class of its error stands for them.
    """
    try:
        yield
    except AccelError:
        raise
    except caught as error:
        raise kind(f"{what}: {say(error) or type(error).__name__}", fix=fix) from error


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error that says something; its class where it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def nearest(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant: ``' (did you mean X?)'``, or an empty string."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {matches[0]}?)" if matches else ""
