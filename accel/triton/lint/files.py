"""Rules on the files a config needs: versions, the model itself, warm-up data, labels, and where links lead."""

import ast
import math
import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from accel.core.errors import InputError
from accel.triton.config import byte_size, type_name
from accel.triton.lint.model import (
    NO_VERSIONS,
    LintedModel,
    Severity,
    folders,
    leads_inside,
    read_bytes,
    read_text,
    unsafe,
)
from accel.triton.lint.rules import FILENAMES
from accel.triton.manifest import Finding

LARGEST_WARMUP_BYTES = 64 << 20
ONE_EXECUTE = frozenset({"onnxruntime", "openvino", "pytorch", "tensorflow", "tensorrt"})
"""Backends that refuse a call with more requests than ``max_batch_size``.

Source: ProcessRequests of each: "batch size N for 'model', max allowed is M".
"""


def links(root: Path) -> Iterator[Finding]:
    """Links that leave the repository or lead nowhere; those inside it are left alone."""
    for folder, names, files in os.walk(root):
        for name in sorted([*names, *files]):
            path = Path(folder) / name
            if not path.is_symlink():
                continue
            file = path.relative_to(root).as_posix()
            if not leads_inside(root, path):
                why = f"a link to {path.readlink()}, out of the repository or in a circle"
                yield Finding("error", file, "", why, "put the file itself there")
            elif not path.exists():
                yield Finding("error", file, "", f"a link to {path.readlink()}, which is not there", "remove it")


def unsafe_names(root: Path) -> Iterator[Finding]:
    """Folders whose names are risky on the wire, in a shell or in a store: they become the models' names."""
    for name in folders(root):
        if ".." in name or unsafe(name):
            yield Finding("error", name, "", f"model name {name!r} is unsafe as a path", "use letters, digits, _ . -")
        elif not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            why = f"model name {name!r} has more than letters, digits, '_', '.' and '-', or begins with a '.'"
            yield Finding("warning", name, "", why, "use letters, digits, _ . -")


def versions(model: LintedModel) -> Iterator[Finding]:
    """Version folders and the policy over them.

    Source: core src/model_repository_manager/model_lifecycle.cc, VersionsToLoad (std::stoll reads the digits in front)
    and AsyncLoad.
    """
    at = model.root / model.folder
    for name in folders(at):
        if name in NO_VERSIONS or re.fullmatch(r"0|[1-9]\d{0,17}", name):
            continue
        number = re.match(r"[1-9]\d{0,17}|0(?!\d)", name)
        if number and int(number[0]) not in model.versions:
            why = f"counts as version {number[0]}, whose folder is not there"
            yield model.error("", why, f"rename it to {number[0]}, or move it away", file=f"{model.folder}/{name}")
        else:
            why = "is not a version number (digits, no leading zero): the server ignores it"
            yield model.warning("", why, "rename it, or move it away", file=f"{model.folder}/{name}")
    if not model.versions:
        yield model.error("", "has no version folder", "put the model's files into 1/", file=model.folder)
        return
    policy, served = model.config.version_policy, model.served()
    absent = [v for v in policy.specific.versions if v not in model.versions]
    if not served:
        found = f"versions {list(model.versions)}"
        yield model.error("version_policy", f"loads none of the {found}", "name one that is there")
    elif absent:
        yield model.warning("version_policy", f"version {absent[0]} is not there", "drop it, or add the folder")


def model_files(model: LintedModel) -> Iterator[Finding]:
    """The file each served version loads is there and inside the version folder.

    Source: ModelState of each backend joins repository, version and file name; core src/backend_model.cc; server
    docs/customization_guide/repository_agents.md (an agent may change the repository before the load).
    """
    if model.ensemble:
        return
    # A custom backend may take the name for anything, and an agent may bring the file when the model is loaded.
    agents = model.config.model_repository_agents.agents
    severity: Severity = "warning" if model.custom or agents else "error"
    other = dict.fromkeys(model.config.cc_model_filenames.values())  # by compute capability of the GPU
    known = model.config.default_model_filename or model.platform in FILENAMES or model.backend in FILENAMES
    wanted = [("cc_model_filenames", name) for name in other]
    if model.filename and known and not other:
        wanted.append(("default_model_filename", model.filename))
    for field, name in wanted:
        if reason := unsafe(name):
            yield model.error(field, f"is {name!r}: {reason}", "name a file of the version folder")
            continue
        for version in model.served():
            if not (model.root / model.folder / str(version) / name).exists():
                why = f"{version}/{name} is not there" + ", unless an agent brings it" * bool(agents)
                yield model.finding(severity, field, why, "add the file, or correct the name")


def python_class(model: LintedModel) -> Iterator[Finding]:
    """``model.py`` defines what the Python backend looks for; it is parsed, never run.

    Source: python_backend src/pb_stub.cc, Stub::Initialize.
    """
    if model.backend != "python" or unsafe(model.filename):
        return
    for version in model.served():
        file = f"{model.folder}/{version}/{model.filename}"
        if not (model.root / file).is_file():
            continue
        try:
            tree = ast.parse(read_text(model.root, model.root / file))
        except (InputError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            yield model.warning("", f"cannot be read as Python here: {error}", "check it", file=file)
            continue
        if not _binds(tree, "TritonPythonModel"):
            yield model.error("", "defines no TritonPythonModel", "name the class so", file=file)


def _binds(tree: ast.Module, name: str) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return True
        if isinstance(node, ast.ImportFrom) and any(name == (a.asname or a.name) or a.name == "*" for a in node.names):
            return True
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            return True
    return False


def labels(model: LintedModel) -> Iterator[Finding]:
    """Label files lie in the model's folder. Source: core src/model.cc, Model::Init."""
    at = model.root / model.folder
    for output in model.config.output:
        name, field = output.label_filename, f"output.{output.name}.label_filename"
        if not name:
            continue
        if reason := unsafe(name) or ("" if leads_inside(at, at / name) else "it leaves the model's folder"):
            yield model.error(field, f"is {name!r}: {reason}", "name a file of the model's folder")
        elif not (at / name).is_file():
            yield model.error(field, f"{name} is not in the model's folder", "add it, or drop the field")


def warmup(model: LintedModel) -> Iterator[Finding]:
    """Warm-up samples that fail the load, and those that are skipped.

    Source: core src/backend_model_instance.cc, GenerateWarmupData; src/infer_request.cc, Normalize,
    ValidateRequestInputs and ValidateBytesInputs.
    """
    if model.ensemble:
        return
    config = model.config
    inputs = {t.name: t for t in config.input}
    for index, sample in enumerate(config.model_warmup):
        field = f"model_warmup.{sample.name or index}"
        if sample.batch_size == 0:
            yield model.warning(f"{field}.batch_size", "is 0, and the sample is skipped", "set 1 or more")
            continue
        if sample.batch_size > max(config.max_batch_size, 1) and model.backend in ONE_EXECUTE:
            why = f"is {sample.batch_size}, and max_batch_size is {config.max_batch_size}"
            yield model.error(f"{field}.batch_size", why, "lower it")
        if inputs:
            missing = [n for n, t in inputs.items() if n not in sample.inputs and not t.optional]
            unknown = [n for n in sample.inputs if n not in inputs and n not in model.extra_inputs]
            # As many wrong names as missing ones are taken for the same inputs.
            for name in missing if len(missing) > len(unknown) else ():
                yield model.error(f"{field}.{name}", "is missing: every input needs data", "add it")
            for name in unknown:
                yield model.error(f"{field}.{name}", "is not an input of the config", "correct the name")
        for name, data in sample.inputs.items():
            yield from _warmup_input(model, f"{field}.{name}", inputs.get(name), data)


def _warmup_input(model: LintedModel, field: str, tensor: Any, data: Any) -> Iterator[Finding]:
    dims, kind = list(data.dims), type_name(data.data_type)
    source = data.WhichOneof("input_data_type")
    if any(d < 1 for d in dims):
        yield model.error(f"{field}.dims", f"is {dims}: warm-up needs sizes", "give the size of every dim")
    elif tensor is not None and data.data_type != tensor.data_type:
        expected = type_name(tensor.data_type)
        yield model.error(f"{field}.data_type", f"is {kind}, and the input is {expected}", "make them equal")
    elif tensor is not None and not _fits(dims, list(tensor.dims)):
        axis = ", without the batch axis" if model.batched else ""
        why = f"is {dims}, and the input is {list(tensor.dims)}{axis}"
        yield model.error(f"{field}.dims", why, "make them fit")
    elif source is None:
        yield model.error(field, "has no data", "set zero_data, random_data or input_data_file")
    elif source == "input_data_file":
        yield from _warmup_file(model, field, data)


def _fits(dims: list[int], declared: list[int]) -> bool:
    return len(dims) == len(declared) and all(d in (-1, s) for s, d in zip(dims, declared, strict=True))


def _warmup_file(model: LintedModel, field: str, data: Any) -> Iterator[Finding]:
    name, elements = data.input_data_file, math.prod(data.dims)
    file = f"{model.folder}/warmup/{name}"
    path = model.root / file
    if reason := unsafe(name) or ("" if name else "it is empty"):
        yield model.error(f"{field}.input_data_file", f"is {name!r}: {reason}", "name a file of warmup/")
        return
    if "/" in name:
        yield model.warning(f"{field}.input_data_file", f"{name!r} holds a folder", "put the file into warmup/ itself")
    if not path.is_file():
        yield model.error(field, "the file is not there", "add it, or use zero_data", file=file)
        return
    if type_name(data.data_type) == "TYPE_STRING":
        try:
            found = _strings(read_bytes(model.root, path, limit=LARGEST_WARMUP_BYTES))
        except InputError as error:
            yield model.warning(field, f"was not checked: {error.message}", "check it", file=file)
            return
        if found != elements:
            has = "a string that is cut short" if found is None else f"{found} strings"
            yield model.error(
                field, f"has {has}, expected {elements}", "write each as 4 bytes of length and its bytes", file=file
            )
        return
    size, expected = path.stat().st_size, byte_size(data) or 0
    if size < expected:
        yield model.error(field, f"has {size} bytes, expected {expected}", "write the whole tensor", file=file)
    elif size > expected:
        why = f"has {size} bytes, expected {expected}: the rest is ignored"
        yield model.warning(field, why, "write the tensor alone, or correct its dims", file=file)


def _strings(content: bytes) -> int | None:
    """Count strings of 4 bytes of little-endian length and their bytes; None where the last is cut short."""
    at = count = 0
    while at < len(content):
        if at + 4 > len(content):
            return None
        at += 4 + struct.unpack_from("<I", content, at)[0]
        count += 1
    return count if at == len(content) else None


def initial_state(model: LintedModel) -> Iterator[Finding]:
    """Data files of implicit state lie below ``initial_state/``.

    Source: core src/sequence_batch_scheduler/sequence_batch_scheduler.cc, which joins the folder and the name.
    """
    for state in model.config.sequence_batching.state:
        for initial in state.initial_state:
            field = f"sequence_batching.state.{state.input_name}.initial_state"
            if not initial.data_file:
                continue
            path = model.root / model.folder / "initial_state" / initial.data_file
            if reason := unsafe(initial.data_file):
                yield model.error(field, f"is {initial.data_file!r}: {reason}", "name a file of initial_state/")
            elif not path.is_file():
                yield model.error(field, f"{initial.data_file} is not in initial_state/", "add it, or use zero_data")


RULES: tuple[Callable[[LintedModel], Iterator[Finding]], ...] = (
    versions,
    model_files,
    python_class,
    labels,
    warmup,
    initial_state,
)
