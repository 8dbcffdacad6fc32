"""Several releases of a model in one Triton repository, each to be asked for by its version.

    OUT/<pool>/<model>/<name>/1, /2, …     by the order in which the releases are given; config.pbtxt names them all
    OUT/<pool>/<model>/launch.sh           serves them, as the last release's
    OUT/<pool>/<model>/versions.json       which version is which release and variant, and every file by sha256

Triton has one config for all versions of a model, so what clients see and what the backend is told must be equal.
Instances, batching and warm-up are the last release's. A client that names no version is given the highest.

Source: triton-inference-server/server, docs/user_guide: model_repository.md ("Model Versions"), model_configuration.md
("Version Policy").
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from accel.core.errors import InputError, UsageError
from accel.core.files import replace_folder
from accel.core.values import file_refs, to_json
from accel.release.diffing import Side, contract
from accel.release.document import read
from accel.triton.config import parse, to_text
from accel.triton.reading import CONFIG
from accel.triton.verify import verify

FILENAME = "versions.json"
SERVING = ("version_policy", "instance_group", "dynamic_batching", "model_warmup")
"""Fields of a config that may differ between the releases."""


def side_by_side(releases: Sequence[Path], out: Path) -> Iterator[tuple[str, str, str | None]]:
    """Write a repository for each model and pool that is ready in all releases; yield both, and why not where refused.

    Raises:
        UsageError: there are fewer than two releases.
        InputError: a release or a repository is damaged.
        OutputError: ``out`` cannot be written.
    """
    if len(releases) < 2:
        raise UsageError("one release has one version of each model", fix="name two releases or more, the oldest first")
    found = [read(folder) for folder in releases]
    ready = [{(e.pool, e.model): e for e in release.entries if e.repository} for release in found]
    for pool, model in sorted(set().union(*ready)):
        lacking = [r.version for r, there in zip(found, ready, strict=True) if (pool, model) not in there]
        if lacking:
            yield pool, model, f"release {lacking[0]} has no repository of it"
            continue
        sides = [Side.of(folder, there[pool, model]) for folder, there in zip(releases, ready, strict=True)]
        why = _refused(sides)
        if why is None:
            _write(sides, [release.version for release in found], out / pool / model)
        yield pool, model, why


def _refused(sides: Sequence[Side]) -> str | None:
    """Say why repositories cannot be versions of one model; None where they can."""
    last = sides[-1]
    for side in sides:
        if wrong := [f for f in verify(side.root) if f.severity == "error"]:
            raise InputError(f"{side.root}/{wrong[0].file}: {wrong[0].why}", fix="take that release again")
        made, other = side.manifest, last.manifest
        if len(made.models) > 1:
            return f"it is {len(made.models)} models, whose steps would all take the newest: {', '.join(made.models)}"
        if contract(made) != contract(other):
            return f"the contract differs: {contract(made)}; {contract(other)}"
        pairs = [
            ("Triton release", made.release, other.release),
            ("packages", dict(made.requires), dict(other.requires)),
        ]
        config, wanted = _config(side.root / made.models[0] / CONFIG), _config(last.root / other.models[0] / CONFIG)
        names = {f.name for message in (config, wanted) for f, _ in message.ListFields()} - set(SERVING)
        pairs += [(name, getattr(config, name), getattr(wanted, name)) for name in sorted(names)]
        pairs.append(("files beside the versions", _shared(side), _shared(last)))
        for name, one, two in pairs:
            if one != two:
                return f"{name} differ, and a model has one config: {_short(one)}; {_short(two)}"
    return None


def _config(file: Path) -> Any:
    return parse(file.read_text(encoding="utf-8"))


def _shared(side: Side) -> dict[str, str]:
    """Return the files of a model that all its versions read, but config and warm-up."""
    apart = (CONFIG, "configs", "warmup", str(side.manifest.version))
    paths = {f.path: f.sha256 for f in side.manifest.files if f.path.startswith(f"{side.manifest.models[0]}/")}
    return {path: sha256 for path, sha256 in paths.items() if path.split("/")[1] not in apart}


def _short(value: Any) -> str:
    return " ".join(str(value).split())[:120] or "none"


def _write(sides: Sequence[Side], names: Sequence[str], target: Path) -> None:
    """Write one repository of all versions."""
    last, files = sides[-1], dict[str, Path | str]()
    model, numbers = last.manifest.models[0], range(1, len(sides) + 1)
    told = {}
    for number, name, side in zip(numbers, names, sides, strict=True):
        folder = side.root / model / str(side.manifest.version)
        own = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
        files |= {f"{model}/{number}/{path}": source for path, source in own.items()}
        told[number] = {"release": name, "variant": side.manifest.variant, "files": to_json(file_refs(folder))}
    for path in (last.root / model).rglob("*"):
        inside = path.relative_to(last.root)
        if not path.is_file() or inside.parts[1] == str(last.manifest.version):
            continue
        files[inside.as_posix()] = path
        if path.suffix == ".pbtxt":
            config = _config(path)
            config.version_policy.specific.versions[:] = numbers
            files[inside.as_posix()] = to_text(config)
    files["launch.sh"] = last.root / "launch.sh"
    files[FILENAME] = json.dumps({"versions": told, "schema": 1}, indent=1) + "\n"
    replace_folder(target, files, copy=True)
