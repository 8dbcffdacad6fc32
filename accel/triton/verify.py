"""The offline check of a repository: is it whole, unchanged, and in agreement with itself?"""

import dataclasses
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from accel.core.dtypes import datatype
from accel.core.errors import InputError
from accel.core.feeds import read_npz
from accel.core.files import stays_inside
from accel.core.values import FileRef, TensorSpec, file_ref, sha256_file
from accel.triton.config import byte_size, dims, parse, type_name
from accel.triton.manifest import FILENAME, REFERENCE, Finding, Manifest, read, write

AGAIN = "emit the repository again"


def verify(root: Path) -> tuple[Finding, ...]:
    """Check hashes, missing and extra files, the manifest, the configs and the stored reference.

    Returns:
        What was found, errors first; empty when all is well. A missing or broken manifest is a finding, too.
    """
    try:
        manifest = read(root)
    except InputError as error:
        return (Finding("error", FILENAME, "", error.message, error.fix or AGAIN),)
    found = [
        *changes(root, manifest.files, {FILENAME}),
        *(
            f
            for model in manifest.models
            for file in _config_files(root, model)
            for f in _config(root, manifest, model, file)
        ),
        *_reference(root, manifest),
    ]
    found += [
        Finding("warning", FILENAME, "unverified", text, "build with the release's versions, or test on it")
        for text in manifest.unverified
    ]
    if manifest.core is not None and manifest.core not in manifest.models:
        found.append(Finding("error", FILENAME, "core", f"{manifest.core!r} is not one of its models", AGAIN))
    if (why := manifest.unproved) is not None:
        fix = f"take what the run chose, or accel convert … --require {manifest.variant}"
        found.append(Finding("warning", FILENAME, "parity", why, fix))
    return tuple(sorted(found, key=lambda f: (f.severity, f.file, f.field)))


def accept_configs(root: Path) -> tuple[str, ...]:
    """List configs in the manifest that another machine measured and somebody put below ``<model>/configs``.

    Returns:
        The configs that were added, relative to the repository.

    Raises:
        InputError: the manifest is missing or broken, or a config contradicts the contract.
    """
    manifest = read(root)
    listed = {file.path for file in manifest.files}
    added = [
        (model, name) for model in manifest.models for name in _config_files(root, model)[1:] if name not in listed
    ]
    for model, name in added:
        if (root / name).is_symlink():
            raise InputError(f"{name} is a link: a repository holds plain files", fix="copy the file itself")
        for finding in _config(root, manifest, model, name):
            raise InputError(f"{name} contradicts the contract: {finding.field} {finding.why}", fix="measure it again")
    files = (*manifest.files, *(file_ref(root / name, root) for _, name in added))
    write(dataclasses.replace(manifest, files=tuple(sorted(files, key=lambda f: f.path))), root)
    return tuple(name for _, name in added)


def changes(root: Path, files: Iterable[FileRef], apart: Collection[str]) -> Iterator[Finding]:
    """Yield what of the files is not as described: changed, missing, added, a link; all of them errors.

    Args:
        apart: files that need not be described.
    """
    listed = set(apart)
    for file in files:
        listed.add(file.path)
        if not stays_inside(file.path):
            yield Finding("error", file.path, "files", "the path leaves the repository", AGAIN)
            continue
        path = root / file.path
        try:
            status = path.lstat()
        except OSError:
            yield Finding("error", file.path, "", "the file is missing", AGAIN)
            continue
        if not stat.S_ISREG(status.st_mode):
            # Links are found by the walk below; hashing through one would vouch for something outside.
            if not stat.S_ISLNK(status.st_mode):
                yield Finding("error", file.path, "", "expected a plain file", AGAIN)
            continue
        if status.st_size != file.bytes:
            yield Finding("error", file.path, "bytes", f"has {status.st_size}, expected {file.bytes}", AGAIN)
        elif (found := sha256_file(path)) != file.sha256:
            yield Finding("error", file.path, "sha256", f"is {found}, expected {file.sha256}", AGAIN)
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            yield Finding("error", name, "", f"a link to {path.readlink()}: a repository holds plain files", AGAIN)
        elif not path.is_dir() and name not in listed:
            parts = PurePosixPath(name).parts
            measured = len(parts) == 3 and parts[1] == "configs" and path.suffix == ".pbtxt"
            fix = "remove it, or list it: accel verify --accept-configs" if measured else "remove it"
            yield Finding("error", name, "", "the manifest does not list this file", fix)


def _config_files(root: Path, model: str) -> list[str]:
    named = sorted(p.name for p in (root / model / "configs").glob("*.pbtxt"))
    return [f"{model}/config.pbtxt", *(f"{model}/configs/{name}" for name in named)]


def _config(root: Path, manifest: Manifest, model: str, file: str) -> Iterator[Finding]:
    if PurePosixPath(model).name != model or model in (".", ".."):
        yield Finding("error", FILENAME, "models", f"{model!r} is not a folder name", AGAIN)
        return
    try:
        config = parse((root / file).read_text(encoding="utf-8"))
    except InputError as error:
        yield Finding("error", file, "", error.message, AGAIN)
        return
    except (OSError, UnicodeDecodeError) as error:
        yield Finding("error", file, "", f"cannot be read: {error}", AGAIN)
        return

    def differs(field: str, found: Any, expected: Any) -> Iterator[Finding]:
        if found != expected:
            yield Finding("error", file, field, f"is {found!r}, expected {expected!r}", AGAIN)

    yield from differs("name", config.name, model)
    whole = model == manifest.core and config.max_batch_size == 0  # a group is one request of its backend
    yield from differs("max_batch_size", config.max_batch_size, 0 if whole else manifest.max_batch_size)
    yield from differs("version_policy", list(config.version_policy.specific.versions), [manifest.version])
    if config.default_model_filename:
        entry = f"{model}/{manifest.version}/{config.default_model_filename}"
        if ".." in PurePosixPath(entry).parts or not (root / entry).exists():
            yield Finding("error", file, "default_model_filename", f"{entry} is not in the repository", AGAIN)
    for step in config.ensemble_scheduling.step:
        if step.model_name not in manifest.models:
            yield Finding("error", file, "ensemble_scheduling", f"step {step.model_name!r} is not here", AGAIN)
    yield from _warmup(root, manifest, model, config)
    if model == manifest.models[0]:
        for field, specs, tensors in (
            ("input", manifest.inputs, config.input),
            ("output", manifest.outputs, config.output),
        ):
            yield from differs(field, _tensors(tensors), [_tensor(s, manifest.max_batch_size) for s in specs])


def _tensor(spec: TensorSpec, batch: int) -> tuple[str, str, list[int]]:
    return spec.name, datatype(spec.dtype), list(dims(spec))[1 if batch else 0 :]


def _tensors(tensors: Any) -> list[tuple[str, str, list[int]]]:
    return [(t.name, type_name(t.data_type), list(t.dims)) for t in tensors]


def _warmup(root: Path, manifest: Manifest, model: str, config: Any) -> Iterator[Finding]:
    """Find warm-up data that would fail the load: missing, or of another size than its dims say."""
    for sample in config.model_warmup:
        for name, data in sample.inputs.items():
            if not data.input_data_file:
                continue
            file = f"{model}/warmup/{data.input_data_file}"
            size, path = byte_size(data), root / file
            if PurePosixPath(data.input_data_file).name != data.input_data_file:
                yield Finding(
                    "error", f"{model}/config.pbtxt", f"model_warmup.{name}", f"{file} is not a file name", AGAIN
                )
            elif not path.is_file() or size not in (None, path.stat().st_size):
                found = path.stat().st_size if path.is_file() else "no file"
                yield Finding("error", file, f"model_warmup.{name}", f"{found}, expected {size} bytes", AGAIN)


def _reference(root: Path, manifest: Manifest) -> Iterator[Finding]:
    """Check that the stored reference has every point's inputs and outputs, in the contract's dtypes and ranks."""
    path = root / REFERENCE
    if path.is_symlink() or not path.is_file():
        return
    try:
        stored = read_npz(path)
    except InputError as error:
        yield Finding("error", REFERENCE, "", error.message, AGAIN)
        return
    for point in manifest.reference_points:
        for kind, specs in (("inputs", manifest.inputs), ("outputs", manifest.outputs)):
            for spec in specs:
                key = f"{kind}/{point}/{spec.name}"
                value = stored.get(key)
                if value is None:
                    yield Finding("error", REFERENCE, key, "is missing", AGAIN)
                elif value.ndim != len(spec.dims) or (kind == "inputs" and value.dtype != spec.dtype):
                    found = f"{value.dtype} {value.shape}"
                    yield Finding("error", REFERENCE, key, f"is {found}, expected {spec.dtype} {spec.dims}", AGAIN)
