"""What documents name is there: files, tests, and the code's own names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / "README.md", ROOT / "CHANGELOG.md"),
    *(page for folder in ("docs", "docs/tutorials", "docs/decisions") for page in sorted((ROOT / folder).glob("*.md"))),
    *sorted((ROOT / "examples").rglob("*.md")),
]
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:accel|tests|benchmarks|docs|examples|model_zoo)/[\w./-]*")
MADE_BY_READERS = ("docs/benchmarks/gpu.json", "model_zoo/flowers.py")
"""What a page tells its reader to make."""
TESTS = {name for file in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", file.read_text())}


def missing(text: str) -> list[str]:
    """Return the paths and tests between backticks that are not there."""
    found = []
    for code in CODE.findall(text):
        path, _, test = code.partition("::")
        if PATH.fullmatch(path) and path not in MADE_BY_READERS and not (ROOT / path).exists():
            found.append(code)
        name = test or (code if re.fullmatch(r"test_\w+", code) else "")
        if name and name not in TESTS and not any(ROOT.rglob(f"tests/**/{name}.py")):
            found.append(code)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_files_and_tests_that_a_page_names_are_there(page):
    assert missing(page.read_text()) == []


def test_what_is_not_there_would_be_found():
    text = "`accel/core/values.py`, `accel/gone.py`, `tests/test_doc_names.py::test_gone`, `test_gone`, `gone.py`"
    assert missing(text) == ["accel/gone.py", "tests/test_doc_names.py::test_gone", "test_gone"]
