"""Text in GitHub Markdown, for a pull request: what a report's templates (``*.md.j2``) escape, and how.

Whatever comes from a user or a library is escaped, and stands in a code span where it holds an ``@``: on GitHub
``@cpu`` in running text would call a person of that name.
"""

import re

from accel.report.formats import spans

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~!$&])")
_MENTION = re.compile(r"([^\s(),;:]*@[^\s(),;:]+)")


def escape(text: str) -> str:
    """Escape running text: no markup, no HTML, no table border, no mention, no link; `code` stays code."""
    return "".join(code(part) if is_code else _words(part) for is_code, part in spans(text))


def _words(text: str) -> str:
    return "".join(code(part) if i % 2 else _plain(part) for i, part in enumerate(_MENTION.split(text)))


def _plain(text: str) -> str:
    # An escaped colon keeps GitHub from turning a bare address into a link.
    return _SPECIAL.sub(r"\\\1", text).replace("://", "\\://")


def fence(text: str, least: int) -> str:
    """Return a fence of at least so many backticks, longer than any run of them in the text."""
    return "`" * max([least, *(len(run) + 1 for run in re.findall(r"`+", text))])


def code(text: str) -> str:
    """Put text into a code span, whatever backticks and table borders it holds."""
    marks = fence(text, 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{marks}{pad}{text}{pad}{marks}".replace("|", "\\|")
