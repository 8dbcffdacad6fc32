"""What is here and what is missing: the rows behind ``accel doctor``, ``accel targets`` and ``accel zoo``."""

import re
import shutil
import sys
from importlib.metadata import requires
from typing import Any

from accel.builders import targets
from accel.builders.requirements import versions
from accel.builders.toolchain import toolchain
from accel.core import environments, hardware
from accel.core.values import Target

Row = dict[str, Any]
REPAIR = "repair the plug-in, or uninstall its package"


def examine() -> list[Row]:
    """Return one row per thing a run may need: what, found, ok, needed (by every run), fix."""
    machine = hardware.detect()
    free = shutil.disk_usage(".").free
    rows = [
        _row(
            "Python", sys.version.split()[0], ok=sys.version_info >= (3, 11), needed=True, fix="use Python 3.11 to 3.13"
        ),
        _row("CPU", f"{machine.cpu.model}, {machine.cpu.threads} threads, {' '.join(machine.cpu.flags)}"),
        _row(
            "INT8 in hardware (VNNI, AMX)",
            any(flag in machine.cpu.flags for flag in ("avx512_vnni", "avx_vnni", "amx_int8", "i8mm")),
            fix="INT8 may be no faster here; nothing fixes that",
        ),
        _row("memory", f"{machine.memory_bytes / 2**30:.1f} GiB"),
        _row("free disk", f"{free / 2**30:.1f} GiB", ok=free > 5 << 30, fix="free 5 GiB, or write elsewhere with -o"),
        *(
            _row(f"{program} ({', '.join(names)})", shutil.which(program) or False, fix=f"apt-get install {program}")
            for program, names in _programs().items()
        ),
        _row(
            "NVIDIA GPU",
            ", ".join(f"{g.name} (driver {g.driver})" for g in machine.gpus) or False,
            fix="GPU targets need a machine with one",
        ),
    ]
    required = [re.split(r"[^\w.-]", line)[0] for line in requires("accel") or () if "extra ==" not in line]
    installed = versions(required) | toolchain()
    fix = "make demo, or pip install -c constraints.txt -e ."
    return [
        *rows,
        *(
            _row(package, installed.get(package, ""), needed=package in required, fix=fix)
            for package in dict.fromkeys([*required, *installed])
        ),
        *(
            _row(f"environment {name}", environments.installed(name), fix=environments.fix(name))
            for name in environments.ENVIRONMENTS
        ),
        _row("tritonserver", shutil.which("tritonserver") or False, fix="only serving needs it: see docs/triton.md"),
        *(_row(f"plug-in {name}", why, ok=False, fix=REPAIR) for name, why in targets.plugins()[1].items()),
    ]


def _programs() -> dict[str, list[str]]:
    """Return the programs that builds start → the targets that are built so."""
    found: dict[str, list[str]] = {}
    for name, builder in targets.discover().items():
        for program in builder.targets[name].programs:
            found.setdefault(program, []).append(name)
    return found


def targets_here() -> list[Row]:
    """Return one row per target and device: whether it can be built here, or why not and what fixes that."""
    rows = []
    for name, builder in targets.discover().items():
        for device in builder.targets[name].devices:
            skipped = builder.available(Target(name, device))
            rows.append(
                {
                    "target": name,
                    "device": device,
                    "available": skipped is None,
                    "reason": skipped.reason if skipped else None,
                    "fix": skipped.fix if skipped else None,
                    "about": builder.targets[name].about,
                }
            )
    for name, why in targets.plugins()[1].items():
        row: Row = {"target": name, "device": "?", "available": False, "reason": f"the plug-in {why}", "about": None}
        rows.append(row | {"fix": REPAIR})
    return rows


def zoo() -> list[Row]:
    """Return one row per model of the zoo."""
    import model_zoo

    return [
        {
            "name": entry.name,
            "title": entry.title,
            "parameters": f"{entry.parameters / 1e6:.1f} M",
            "licence": entry.licence,
            "weights": _weights(entry.hub, here=entry.weights() is not None),
            "inputs": ", ".join(f"{s.name} {s.dtype}[{','.join(map(str, s.dims))}]" for s in entry.inputs[:4])
            + (f" and {len(entry.inputs) - 4} more" if len(entry.inputs) > 4 else ""),
        }
        for entry in model_zoo.entries().values()
    ]


def _weights(hub: str | None, *, here: bool) -> str:
    if here:
        return "here"
    return f"random, unless {hub} is in the local cache" if hub else "random"


def _row(what: str, found: Any, *, ok: bool | None = None, needed: bool = False, fix: str | None = None) -> Row:
    good = bool(found) if ok is None else ok
    return {
        "what": what,
        "found": found or "no",
        "ok": good,
        "needed": needed,
        "fix": None if good else fix,
    }
