"""What all tests share: golden files, and the flag that rewrites them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import accel.run  # noqa: F401  hands the zoo to the rooms below, as every command does
from accel.core import hardware, processes

APART = ("test_zoo_matrix.py",)
"""Files whose tests share nothing and take minutes each."""
LONGEST = (
    *("triton/tune/test_tuning.py", "test_docs.py", "test_examples.py", "pipeline/test_zoo_matrix.py"),
    *("release/test_fleet.py", "pipeline/test_run_served.py", "pipeline/test_failures.py", "pipeline/test_fast.py"),
    *("pipeline/test_sandbox_run.py", "model_zoo/test_zoo_real.py", "triton/test_triton_served.py"),
)
"""Files that take a minute or more, the longest first: begun last, one of them would keep a single worker busy."""
GOLDEN = Path(__file__).parent / "golden"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what nobody asked for: the GPU suite (``make test-gpu``) and tests of minutes (``make campaign``)."""
    unasked = [mark for mark in ("gpu", "campaign") if mark not in config.option.markexpr]
    left_out = [item for item in items if any(map(item.get_closest_marker, unasked))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    folder = Path(__file__).parent
    rank = {folder / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path, len(rank)))
    if hardware.emulates_bf16():
        for item in items:
            if item.get_closest_marker("bf16"):
                item.add_marker(pytest.mark.skip(reason="this CPU has no instructions for BF16"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Of several workers let one run all tests of a file, which share its fixtures; those of ``APART`` go anywhere."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return nodeid if file.endswith(APART) else file

    config.option.loadscopereorder = False  # ``LONGEST`` first, not what has the most tests
    return Files(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files with what was found")


@pytest.fixture(autouse=True)
def own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test counts and stops its own processes alone: fixtures of other files may hold some until the session ends."""
    monkeypatch.setattr(processes, "_running", set())


@pytest.fixture(scope="session")
def key_pair() -> Callable[[Path, str], tuple[Path, Path]]:
    """Write a key pair to sign with, as openssl does: ``key_pair(folder, name)`` gives its private and public file."""

    def make(folder: Path, name: str) -> tuple[Path, Path]:
        from cryptography.hazmat.primitives import serialization as forms
        from cryptography.hazmat.primitives.asymmetric import ec

        private, public = folder / f"{name}.pem", folder / f"{name}.pub"
        key = ec.generate_private_key(ec.SECP256R1())
        plain, pem = forms.NoEncryption(), forms.Encoding.PEM
        private.write_bytes(key.private_bytes(pem, forms.PrivateFormat.TraditionalOpenSSL, plain))
        public.write_bytes(key.public_key().public_bytes(pem, forms.PublicFormat.SubjectPublicKeyInfo))
        return private, public

    return make


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a file of tests/golden: ``golden("report.md", text)``."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing: run pytest --update-golden"
        expected = path.read_text(encoding="utf-8")
        assert text == expected, f"{path} differs: look at the difference, then run pytest --update-golden"

    return compare
