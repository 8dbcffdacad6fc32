"""A kit: all that finishes a variant on another machine, and nothing of the machine it was made on.

    kit.json        the variant, its source, gates and settings, the expected toolchain; every file with its sha256
    build.sh        accel build on this folder
    onnx/           the typed ONNX file, its weights, and typing.json: which nodes were typed, which not, and why
    samples/        inputs for calibration, gate and timing
    reference.npz   what the source itself answered, in FP32 on a CPU
    given/          files that the user's Triton overrides name

``accel build`` holds every file against its hash and every field against ``kit_rules`` first; the stages after that
are those of any run. The seal finds damage only: anybody can make one. A signature (``core.signing``) says who did.
"""

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accel.core import document, signing
from accel.core.errors import InputError, StageError, UnavailableError, UsageError
from accel.core.files import link_or_copy, read_value
from accel.core.options import OptionTrait
from accel.core.values import (
    SCHEMA,
    FileRef,
    ModelSource,
    OnnxModel,
    Parity,
    SampleSet,
    Variant,
    file_refs,
    sha256_file,
    sha256_json,
    to_json,
)
from accel.exporters.request import SourceRequest
from accel.run import kit_rules
from accel.run.job import Job

MANIFEST = "kit.json"
SCRIPT = "build.sh"
ONNX = "onnx"
SAMPLES = "samples"
REFERENCE = "reference.npz"
GIVEN = "given"
UNKNOWN = "of a version that is not known here"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """What the other machine should have.

    Attributes:
        packages: package → version, as far as it is known (``11`` says the major version and no more), or ``UNKNOWN``.
        image: image of the Triton release that the plan is for.
        made_with: packages that typed and proved the ONNX file.
    """

    packages: Mapping[str, str]
    image: str
    made_with: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DeferredBuild:
    """What ``kit.json`` says.

    Attributes:
        proof: how the typed file compared with the reference on the CPU that made the kit.
        feeds: how many feeds the reference holds.
        settings: the options that the job carries here, its ``constraints``, and ``overrides``: what the user changed
            in the emitted config, with files named relative to the kit.
        reason: why the variant was not built there.
        command: the command of that run.
        seal: sha256 of all the rest.
    """

    variant: Variant
    source: ModelSource
    samples: SampleSet
    onnx: OnnxModel
    typing: Mapping[str, Any]
    proof: Parity
    feeds: int
    settings: Mapping[str, Any]
    toolchain: Toolchain
    reason: str
    command: str
    files: tuple[FileRef, ...] = ()
    seal: str = ""
    accel: str = field(default_factory=lambda: version("accel"))
    schema: int = SCHEMA


def write(
    kit: DeferredBuild,
    folder: Path,
    *,
    onnx: Path,
    samples: Path,
    reference: Path,
) -> DeferredBuild:
    """Write a kit into an empty folder and return it with its files and seal.

    Args:
        onnx / samples: the folders that ``kit.onnx`` and ``kit.samples`` are relative to.
        reference: the reference outputs.

    Raises:
        InputError: a gate or an override that no kit may have.
    """
    carried = kit_rules.portable(kit.source, f"{ONNX}/{kit.onnx.file.path}")
    gates = {n: v for n, v in kit.settings["gates"].items() if carried.gate or (n,) != (kit.source.gate or ())[:1]}
    kit = replace(kit, source=carried, settings={**kit.settings, "gates": gates})
    wanted = {f"{ONNX}/{f.path}": onnx / f.path for f in (kit.onnx.file, *kit.onnx.data)}
    wanted |= {f"{ONNX}/{p.name}": p for p in sorted(onnx.glob("*.json")) if p.name != "value.json"}
    wanted |= {f"{SAMPLES}/{f.path}": samples / f.path for f in kit.samples.files}
    wanted[REFERENCE] = reference
    for name, source in wanted.items():
        # onnx's checker and loader refuse external data that has several names
        link_or_copy(source, folder / name, copy=name.startswith(ONNX))
    kit = _with_given(kit, folder)
    script = folder / SCRIPT
    script.write_text(_script(kit))
    script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    kit = replace(kit, files=file_refs(folder), seal="")
    kit = replace(kit, seal=sha256_json(kit))
    _check(kit, folder)
    (folder / MANIFEST).write_text(json.dumps(to_json(kit), indent=1, allow_nan=False) + "\n")
    return kit


def read(folder: Path) -> DeferredBuild:
    """Read a kit, hold every field against what a kit may be, and every file against its hash.

    Raises:
        InputError: it is not a kit, was made by a newer accel, says what no kit may say, or a file is missing or was
            changed.
    """
    path = folder / MANIFEST
    kit = read_value(
        path,
        DeferredBuild,
        missing="give the folder variants/<id>/kit of a run with a deferred variant",
        fix="copy the kit again",
    )
    data = json.loads(path.read_text())
    if sha256_json({**data, "seal": ""}) != kit.seal:
        raise InputError(f"{path} was changed since the kit was made", fix="copy the kit again")
    kit_rules.check_texts(data)
    _check(kit, folder)
    for file in kit.files:
        found = folder / file.path
        if not found.is_file():
            raise InputError(f"{file.path} is missing from the kit {folder}", fix="copy the kit again")
        if found.stat().st_size != file.bytes or sha256_file(found) != file.sha256:
            raise InputError(
                f"{file.path} of the kit {folder} was changed: its sha256 is not the one in {MANIFEST}",
                fix="copy the kit again, or make it again with the options you want",
            )
    kit_rules.check_onnx(kit.onnx, folder / ONNX)
    return kit


def _check(kit: DeferredBuild, folder: Path) -> None:
    """Hold a kit against what a kit may be; its files' content is held against the hashes apart.

    Raises:
        InputError: it is something else.
    """
    samples = kit.samples
    carried = [name for name, info in Job.model_fields.items() if OptionTrait.CARRIED in info.metadata]
    kit_rules.check_source(kit.source, f"{ONNX}/{kit.onnx.file.path}")
    kit_rules.check_variant(kit.variant, kit.source)
    kit_rules.check_settings(kit.settings, carried, kit.source)
    if not kit.proof.passed:
        raise kit_rules.refuse("the typed file did not pass its gate where it was made")
    kit_rules.check_number("feeds", kit.feeds, 1, 1 << 20)
    needed: dict[str, FileRef | None] = {f"{ONNX}/{f.path}": f for f in (kit.onnx.file, *kit.onnx.data)}
    needed |= {f"{SAMPLES}/{f.path}": f for f in samples.files} | {REFERENCE: None, SCRIPT: None}
    kit_rules.check_files(kit.files, needed, folder, {MANIFEST, signing.SIGNATURE})
    kit_rules.check_overrides(kit.settings["overrides"], (f.path for f in kit.files), GIVEN)


def overrides(kit: DeferredBuild, folder: Path) -> str:
    """Return the overrides with the kit's own files by absolute path."""
    if not kit.settings["overrides"]:
        return ""
    from accel.triton.overrides import moved

    return moved(kit.settings["overrides"], lambda path: (folder / path).resolve())


def check_together(found: Mapping[Path, DeferredBuild]) -> None:
    """Hold kits that are to be finished and measured side by side: of one model, on the same inputs, asked the same.

    Raises:
        UsageError: they are not.
    """
    (first_place, first), *others = found.items()
    for place, kit in others:
        for name in ("source", "samples", "settings", "reference"):
            if _common(kit, name) != _common(first, name):
                raise UsageError(
                    f"the kits {first_place} and {place} differ in their {name}: they cannot be measured side by side",
                    fix="give kits of one model that one command made, or finish each by itself",
                )
    if len({kit.variant.id for kit in found.values()}) < len(found):
        raise UsageError(f"two kits are of {first.variant.id}", fix="give one of them")


def _common(kit: DeferredBuild, name: str) -> Any:
    if name == "settings":
        return {k: v for k, v in kit.settings.items() if k != "overrides"}
    return [f for f in kit.files if f.path == REFERENCE] if name == "reference" else getattr(kit, name)


def job(found: Mapping[Path, DeferredBuild], typed: Mapping[str, Any], *, out: Path | None, command: str) -> Job:
    """Make the job that finishes kits of one model, from what their own job asked for.

    Args:
        found: folder → the kit that lies there.
        typed: options by the keys of a job file, in place of this machine's and the kits'.
        out: run directory; ``runs/<model>-<target>`` of the first when None.

    Raises:
        UsageError: as ``check_together``, or what was typed is out of its limits.
    """
    check_together(found)
    kit = next(iter(found.values()))
    carried = {n: v for n, v in kit.settings.items() if n not in ("constraints", "overrides")}
    reference, target = kit.source.reference, kit.variant.target
    asked = {
        **{Job.model_fields[name].alias or name: value for name, value in carried.items()},
        **kit.settings["constraints"],
        **typed,
        "source": SourceRequest(reference, kit.source.kind, reference, model_name=kit.source.name),
        "targets": tuple(k.variant.target for k in found.values()),
        "out": out or Path("runs") / f"{kit.source.name}-{target.name}",
        "triton": {k.variant.target.name: overrides(k, folder) for folder, k in found.items()},
        "ints": "keep",  # what clients see was decided when the kit was made
        "opset": kit.onnx.opset,
        "command": command,
    }
    return Job.model_validate(asked, context={"typed": typed})


def image_of(toolchain: str) -> str:
    """Return the image that ``--toolchain`` names.

    Raises:
        UsageError: it is not ``docker:IMAGE``.
    """
    kind, _, image = toolchain.partition(":")
    if kind != "docker" or not image:
        raise UsageError(f"--toolchain is {toolchain!r}: expected docker:IMAGE", fix="leave it out to build right here")
    return image


def in_docker(image: str, folders: Sequence[Path], out: Path, words: Sequence[str]) -> dict[str, Any]:
    """Build kits inside a docker image with accel as its entry point; returns the run it wrote into ``out``.

    Args:
        words: further options of ``accel build``.

    Raises:
        UnavailableError: there is no docker.
        StageError: no run was written: accel failed inside the image; its own messages were printed.
    """
    program = os.environ.get("DOCKER") or shutil.which("docker")
    if program is None:
        raise UnavailableError(
            "there is no docker on PATH, which --toolchain asks for",
            fix="install docker, or run `accel build` inside the image yourself",
        )
    out.mkdir(parents=True, exist_ok=True)
    inside = {f"/kit{number or ''}": folder for number, folder in enumerate(folders)}
    command = [
        *(program, "run", "--rm", "--gpus", "all", "--shm-size", "1g"),
        *("--user", f"{os.getuid()}:{os.getgid()}"),  # what is written belongs to the user
        *("-e", "HOME=/tmp", "-e", "ACCEL_HOME=/tmp/accel"),
        *(word for name, folder in inside.items() for word in ("-v", f"{folder.resolve()}:{name}:ro")),
        *("-v", f"{out.resolve()}:/run-directory"),
        *(image, "build", *inside, "--out", "/run-directory", *words),
    ]
    before = _stamp(out / document.FILENAME)
    done = subprocess.run(command, check=False, stdout=sys.stderr)
    if _stamp(out / document.FILENAME) == before:  # it wrote none: no variant passed is an exit code of its own
        raise StageError(
            f"accel build inside {image} ended with exit code {done.returncode}",
            fix=f"`{shlex.join(command)}` repeats it; Dockerfile.gpu makes such an image",
        )
    run: dict[str, Any] = document.read_json(out)
    return run


def _stamp(file: Path) -> int | None:
    return file.stat().st_mtime_ns if file.exists() else None


def _with_given(kit: DeferredBuild, folder: Path) -> DeferredBuild:
    """Bring the files that the overrides name into the kit."""
    if not kit.settings["overrides"]:
        return kit
    from accel.triton.overrides import moved

    taken: dict[Path, Path] = {}

    def take(path: Path) -> Path:
        if path not in taken:
            taken[path] = Path(GIVEN) / str(len(taken)) / path.name  # two folders may hold files of one name
            (folder / taken[path]).parent.mkdir(parents=True)
            shutil.copyfile(path, folder / taken[path])
        return taken[path]

    return replace(kit, settings={**kit.settings, "overrides": moved(kit.settings["overrides"], take)})


def _script(kit: DeferredBuild) -> str:
    packages = ", ".join(f"{name} {v}" for name, v in sorted(kit.toolchain.packages.items()))
    release = kit.settings["triton_release"]
    return f"""#!/bin/sh
# Finishes {kit.variant.id} of {kit.source.name}: builds, compares with the reference, packages, measures.
# Made for Triton {release} ({packages}); a plan fits one TensorRT version and one GPU.
#   ./build.sh -o RUN                              accel on PATH, or ACCEL=/path/to/it
#   ./build.sh -o RUN --toolchain docker:IMAGE     an image made from Dockerfile.gpu for that release
# Then: accel report FIRST_RUN RUN
set -eu
here="$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)"
exec "${{ACCEL:-accel}}" build "$here" "$@"
"""
