"""What ends a cached build: the code that a builder imports, and new versions of the packages that it declares."""

import importlib
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from types import ModuleType

import pytest

from accel.builders import Builder, targets
from accel.core import imports
from accel.core.errors import StageError
from accel.core.values import BuildRequest, Target, Variant
from accel.run import stages, tasks

BUILDERS = {type(b).__module__: b for b in targets.discover().values()}
PLUGIN = """
from accel.builders import Builder, TargetInfo

class Mine(Builder):
    targets = {"mine": TargetInfo(("cpu",), "fp32", "one of the test's")}
    packages = ("mine-runtime",)
    options = dict
    def available(self, target): ...
    def build(self, request, options, out_dir):
        from mine_plugin import converter
    def open(self, artifact, folder, *, threads, mode): ...
    def triton(self, artifact, release): ...

BUILDER = Mine()
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A plug-in of two files, and its runtime's metadata."""
    (tmp_path / "mine_plugin").mkdir()
    (tmp_path / "mine_plugin" / "to_mine.py").write_text(PLUGIN)
    (tmp_path / "mine_plugin" / "converter.py").write_text("LEVEL = 1\n")
    (tmp_path / "mine_runtime-1.0.dist-info").mkdir()
    install(tmp_path, "1.0")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("mine_plugin.to_mine")
    found = {**targets.discover(), "mine": module.BUILDER}
    monkeypatch.setattr(targets, "discover", lambda: found)
    yield module
    for name in [name for name in sys.modules if name.startswith("mine_plugin")]:
        del sys.modules[name]


def install(folder: Path, version: str) -> None:
    metadata = f"Metadata-Version: 2.1\nName: mine-runtime\nVersion: {version}\n"
    (folder / "mine_runtime-1.0.dist-info" / "METADATA").write_text(metadata)


def key() -> dict[str, object]:
    return stages._builder(Variant(Target("mine", "cpu"), {}))


def test_a_new_runtime_ends_the_cached_build(plugin, tmp_path):
    before = key()
    assert before["versions"]["mine-runtime"] == "1.0"
    assert key() == before
    install(tmp_path, "1.1")
    importlib.invalidate_caches()
    assert key()["versions"]["mine-runtime"] == "1.1"


def test_another_file_of_the_plugin_ends_it_too(plugin, tmp_path):
    before = key()
    (tmp_path / "mine_plugin" / "converter.py").write_text("LEVEL = 2\n")
    assert key()["code"] != before["code"]


def test_environments_that_a_build_uses_are_in_its_key():
    pins = stages._builder(Variant(Target("trt-fp16", "cuda"), {}))["environments"]
    assert any("nvidia-modelopt" in pin for pin in pins[1])


@pytest.mark.parametrize("module", sorted(BUILDERS))
def test_a_builder_declares_every_package_that_it_imports(module):
    builder: Builder = BUILDERS[module]
    installed = packages_distributions()
    declared = {*builder.packages, "numpy"}
    names = [name for name in imports.modules_of(module) if name.startswith(("accel.builders", module))]
    files = imports.modules_of(module)
    for name in names:
        for imported in imports._imports(name, files[name]):
            top = imported.partition(".")[0]
            if top and top not in sys.stdlib_module_names and top not in imports.OWN:
                assert {top, *installed.get(top, ())} & declared, f"{name} imports {imported}"


def test_a_build_that_describes_nothing_is_named(plugin, tmp_path):
    request = BuildRequest(Variant(Target("mine", "cpu"), {}), None, None, None, None, None, threads=1)
    with pytest.raises(StageError, match=r"Mine.build returned None for mine@cpu: expected a Built"):
        tasks.build(request, tmp_path / "out", "")
