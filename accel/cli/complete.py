"""What a shell offers after Tab: targets, names of the zoo, run directories, repositories, and files beside them.

Each takes what was typed of a word and returns whole words. ``accel --install-completion`` sets the shell up.
"""

from collections.abc import Callable, Iterable
from pathlib import Path


def targets(incomplete: str) -> list[str]:
    """Complete the last of several targets separated by commas."""
    from accel.builders import targets as known

    before, comma, _ = incomplete.rpartition(",")
    taken = before.split(",")
    found = [*known.GROUPS, *known.discover()]
    return [
        before + comma + name for name in found if name not in taken and (before + comma + name).startswith(incomplete)
    ]


def sources(incomplete: str) -> list[str]:
    """Complete a name of the zoo, or a file."""
    return [*zoo_names(incomplete), *_files(incomplete)]


def zoo_names(incomplete: str) -> list[str]:
    """Complete a name of the zoo."""
    import model_zoo

    return [name for name in model_zoo.entries() if name.startswith(incomplete)]


def runs(incomplete: str) -> list[str]:
    """Complete a run directory."""
    from accel.core.document import FILENAME

    return _holding(incomplete, Path("runs").glob(f"*/{FILENAME}"))


def repositories(incomplete: str) -> list[str]:
    """Complete a repository that accel emitted: the best ones first."""
    from accel.triton.manifest import FILENAME

    found = (Path("runs").glob(f"*/{folder}/*/{FILENAME}") for folder in ("best", "repositories"))
    return _holding(incomplete, (path for paths in found for path in sorted(paths)))


def words(*known: str) -> Callable[[str], list[str]]:
    """Return what completes one of a few words."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in known if word.startswith(incomplete)]

    return complete


def _holding(incomplete: str, found: Iterable[Path]) -> list[str]:
    known = [text for text in (str(path.parent) for path in found) if text.startswith(incomplete)]
    return known or _files(incomplete)


def _files(incomplete: str) -> list[str]:
    folder, _, start = incomplete.rpartition("/")
    shown = Path(folder or ("/" if incomplete.startswith("/") else "."))
    try:
        found = sorted(shown.iterdir())
    except OSError:
        return []
    head = incomplete[: len(incomplete) - len(start)]
    hidden = start.startswith(".")
    named = [path for path in found if path.name.startswith(start) and (hidden or not path.name.startswith("."))]
    return [f"{head}{path.name}{'/' if path.is_dir() else ''}" for path in named]
