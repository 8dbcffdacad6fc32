"""The target grammar, and how builders are found.

    TARGETS := ITEM ("," ITEM)*
    ITEM    := NAME ["@" DEVICE] | "cpu" | "gpu" | "all"
    NAME    := RUNTIME ["-" PRECISION]          lower case; "onnx" is an alias of "ort"

Discovery lists ``accel/builders/to_*.py``, then entry points of the group ``accel.builders``: no table of targets
exists anywhere. Builder modules are light to import, so all of this runs in the parent.
"""

import functools
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points

from accel import builders
from accel.builders import PYTHON, Backend, Builder, TargetInfo
from accel.core.errors import UsageError, first_line, nearest
from accel.core.values import Int32Runtime, Runtime, Target

ALIASES = {"onnx": "ort"}
GROUPS = {"cpu": ("cpu",), "gpu": ("cuda",), "all": ("cpu", "cuda")}


@functools.cache
def plugins() -> tuple[tuple[Builder, ...], Mapping[str, str]]:
    """Return the builders of plug-ins, and why each plug-in that cannot be used cannot be: it hinders no other target.

    Returns:
        The builders, and by entry point what is wrong with it.
    """
    good: list[Builder] = []
    broken: dict[str, str] = {}
    for point in entry_points(group="accel.builders"):
        try:
            builder = point.load()
        except Exception as error:  # noqa: BLE001  a plug-in's own
            broken[point.name] = f"{point.value} cannot be imported: {type(error).__name__}: {first_line(error)}"
            continue
        lacking = [name for name in ("targets", "options") if not hasattr(builder, name)]
        if not isinstance(builder, Builder):
            broken[point.name] = f"{point.value} is {builder!r}: expected an instance of a subclass of Builder"
        elif lacking:
            broken[point.name] = f"{point.value} declares no {' and no '.join(lacking)}"
        else:
            good.append(builder)
    return tuple(good), broken


@functools.cache
def discover() -> Mapping[str, Builder]:
    """Return target name → builder, in the order of the files and of each file's own list.

    Raises:
        UsageError: two builders claim one target.
    """
    found: dict[str, Builder] = {}
    modules = [
        importlib.import_module(f"accel.builders.{m.name}")
        for m in pkgutil.iter_modules(builders.__path__)
        if m.name.startswith("to_")
    ]
    for builder in (*(m.BUILDER for m in modules), *plugins()[0]):
        for name in builder.targets:
            if name in found:
                raise UsageError(
                    f"target {name!r} is offered by two builders: {found[name]} and {builder}",
                    fix="uninstall one of the plug-ins",
                )
            found[name] = builder
    return found


def info(target: Target) -> TargetInfo:
    """Return what the target's builder says about it."""
    return discover()[target.name].targets[target.name]


def int32_runtimes() -> dict[str, Int32Runtime]:
    """Return the runtimes for which integers can be narrowed, by the names of ``accel narrow --runtime``."""
    return {b.narrows.name: b.narrows for b in discover().values() if b.narrows is not None}


def through_float() -> frozenset[str]:
    """Return the operators that the runtime of any target computes in float even for integers."""
    return frozenset().union(*(info.through_float for b in discover().values() for info in b.targets.values()))


def family(name: str) -> str:
    """Return the first word of a target's name: what runs it (``openvino`` of ``openvino-int8``)."""
    return name.partition("-")[0]


def runtime(name: str) -> Runtime:
    """Return the runtime of a target as reports show it."""
    return discover()[name].targets[name].runtime or Runtime(family(name))


def baseline(framework: str) -> str:
    """Return the target that runs sources of a framework as they are."""
    return next(name for name, builder in discover().items() if builder.targets[name].baseline == framework)


def backend(name: str) -> Backend:
    """Return what is declared of a backend of Triton; for one that nobody declares, the defaults."""
    declared = (b for builder in discover().values() for b in builder.backends)
    return next((b for b in (PYTHON, *declared) if b.name == name), Backend(name))


def named(text: str) -> frozenset[str]:
    """Return the names of the targets that a ``--targets`` value names itself, rather than by a group."""
    names = (item.strip().partition("@")[0] for item in text.split(","))
    return frozenset(ALIASES.get(n, n) for n in names if n not in GROUPS)


def parse(text: str, *, devices: Sequence[str], only: bool = False) -> tuple[Target, ...]:
    """Read a ``--targets`` value into targets, without repeats, in the order given.

    Args:
        text: comma-separated items of the grammar above.
        devices: devices of this machine, or the one that ``--device`` names.
        only: whether no other device may be taken: ``--device`` was given.

    Raises:
        UsageError: an unknown target or device (the nearest known one is suggested), or an empty list.
    """
    known = discover()
    targets: list[Target] = []
    for item in (part.strip() for part in text.split(",")):
        if not item:
            continue
        name, _, device = item.partition("@")
        name = ALIASES.get(name, name)
        if name in GROUPS and not device:
            targets += [
                Target(n, d)
                for d in GROUPS[name]
                if d in devices or not only
                for n, b in known.items()
                if d in b.targets[n].devices and d not in b.targets[n].ungrouped
            ]
            continue
        if name not in known:
            options = [*known, *ALIASES, *GROUPS]
            unusable = "".join(f"; the plug-in {point!r} cannot be used: {why}" for point, why in plugins()[1].items())
            raise UsageError(
                f"unknown target {name!r}{nearest(name, options)}{unusable}", fix="`accel targets` lists them all"
            )
        offered = known[name].targets[name].devices
        if only and not device:
            device = devices[0]
        if device and device not in offered:
            raise UsageError(
                f"target {name!r} does not run on {device!r}: offered on {', '.join(offered)}{nearest(device, offered)}"
            )
        wanted = [device] if device else [d for d in offered if d in devices] or [offered[0]]
        targets += [Target(name, d) for d in wanted]
    if not targets:
        raise UsageError("no target given", fix="for example --targets cpu, or --targets openvino,ort")
    return tuple(dict.fromkeys(targets))
