"""What lint reads of a repository: each model's config with what the server would make of it, and files, safely.

Nothing is executed, no file is read that is not a plain one inside the repository, and none beyond a stated size.
"""

import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from accel.core.errors import InputError, raised_as
from accel.triton.config import parse
from accel.triton.lint.rules import AUTO_COMPLETE, EXTRA_BACKENDS, FILENAMES, PLATFORMS
from accel.triton.manifest import Finding, Manifest
from accel.triton.reading import CONFIG
from accel.triton.releases import TritonRelease

CONFIGS = "configs"
NO_VERSIONS = frozenset({"warmup", "initial_state", CONFIGS})
"""Folders of a model that the server does not take for versions. Source: core model_lifecycle.cc, VersionsToLoad."""
LARGEST_CONFIG_BYTES = 4 << 20
Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class LintedModel:
    """One config of one model folder.

    Attributes:
        root: the repository, resolved.
        file: the config, relative to ``root``; ``<model>/configs/<name>.pbtxt`` is one of its own.
        config: the ``ModelConfig`` as it was parsed.
        row: the release it is linted for.
        versions: numeric version folders, as the server reads their names.
        backend / platform / filename: after the server's own completion; empty where it would find none. ``ensemble``
            is the platform of an ensemble, whose backend stays empty.
        others: every model of the repository by its folder, with the configs that go with this one; None for one
            whose config is missing or does not parse.
        launch: text of the repository's ``launch.sh``; None where there is none.
        manifest: accel's account of the repository; None where there is none that can be read.
    """

    root: Path
    folder: str
    file: str
    config: Any
    row: TritonRelease
    versions: tuple[int, ...]
    backend: str
    platform: str
    filename: str
    others: "Mapping[str, LintedModel | None]"
    launch: str | None
    manifest: Manifest | None = None

    def finding(self, severity: Severity, field: str, why: str, fix: str, *, file: str | None = None) -> Finding:
        """Return a finding on this config, or on ``file``."""
        return Finding(severity, file or self.file, field, why, fix)

    def error(self, field: str, why: str, fix: str, *, file: str | None = None) -> Finding:
        """Return a finding for what fails the load or answers wrongly."""
        return self.finding("error", field, why, fix, file=file)

    def errors(self, *checks: tuple[object, str, str, str]) -> Iterator[Finding]:
        """Yield an error for each check that holds: whether it is wrong, the field, why, and the fix."""
        return (self.error(field, why, fix) for wrong, field, why, fix in checks if wrong)

    def warning(self, field: str, why: str, fix: str, *, file: str | None = None) -> Finding:
        """Return a finding for what is ignored, overwritten or doubtful."""
        return self.finding("warning", field, why, fix, file=file)

    @property
    def extra_inputs(self) -> frozenset[str]:
        """Inputs beside those of ``input``: controls and states of sequence batching, and batch inputs."""
        sequences, made = self.config.sequence_batching, self.config.batch_input
        named = (*(c.name for c in sequences.control_input), *(s.input_name for s in sequences.state))
        return frozenset([*named, *(n for b in made for n in b.target_name)])

    @property
    def batched(self) -> bool:
        """Whether the server adds a batch axis in front of the config's dims."""
        return bool(self.config.max_batch_size > 0)

    @property
    def custom(self) -> bool:
        """Whether its backend is none of the release's: what that reads, and what it completes, is not known."""
        return bool(self.backend) and self.backend not in self.row.backends | EXTRA_BACKENDS | {"tensorflow"}

    @property
    def ensemble(self) -> bool:
        """Whether its steps are other models."""
        return bool(self.platform == "ensemble" or self.config.HasField("ensemble_scheduling"))

    def served(self) -> tuple[int, ...]:
        """Return the versions its policy loads, newest first.

        Source: core src/model_repository_manager/model_lifecycle.cc, VersionsToLoad; src/model_config_utils.cc,
        NormalizeModelConfig (the latest one where there is no policy).
        """
        policy, newest = self.config.version_policy, sorted(self.versions, reverse=True)
        if policy.HasField("specific"):
            return tuple(v for v in newest if v in policy.specific.versions)
        if policy.HasField("all"):
            return tuple(newest)
        return tuple(newest[: policy.latest.num_versions if policy.HasField("latest") else 1])

    def parameter(self, key: str) -> str:
        """Return one value of ``parameters``, empty where it is not set."""
        return str(self.config.parameters[key].string_value) if key in self.config.parameters else ""


def read_bytes(root: Path, path: Path, *, limit: int) -> bytes:
    """Read a plain file inside ``root`` (resolved).

    Raises:
        InputError: it lies outside (perhaps through a link), is not a plain file, too large (``limit``) or unreadable.
    """
    # A loop of links is a RuntimeError in Python 3.11.
    with raised_as(InputError, (OSError, RuntimeError), "it cannot be read"):
        resolved = path.resolve(strict=True)
        if not resolved.is_relative_to(root):
            raise InputError("it is a link that leaves the repository")
        status = resolved.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError("it is not a plain file")
        if status.st_size > limit:
            raise InputError(f"it has {status.st_size} bytes, more than the {limit} that lint reads")
        return resolved.read_bytes()


def read_text(root: Path, path: Path, *, limit: int = LARGEST_CONFIG_BYTES) -> str:
    """Read a plain UTF-8 file inside ``root``.

    Raises:
        InputError: as ``read_bytes``, or it is not UTF-8.
    """
    with raised_as(InputError, UnicodeDecodeError, "it is not text in UTF-8"):
        return read_bytes(root, path, limit=limit).decode("utf-8")


def unsafe(name: str) -> str:
    """Say why a name must not become part of a path; empty where it may (a folder in front is left to the caller)."""
    parts = name.replace("\\", "/").split("/")
    if name.startswith("/"):
        return "it is an absolute path"
    if ".." in parts:
        return "it climbs out of its folder with '..'"
    if any(len(part.encode()) > 255 for part in parts):
        return "it is longer than a file name can be"
    return "it holds a control character" if re.search(r"[\x00-\x1f\x7f]", name) else ""


def folders(path: Path) -> list[str]:
    """Return the names of the folders below a folder, sorted; links count as what they lead to."""
    try:
        return sorted(p.name for p in path.iterdir() if p.is_dir())
    except OSError:
        return []


def versions_of(path: Path) -> tuple[int, ...]:
    """Return the numbers of the version folders that the server would load as such.

    Source: core src/model_repository_manager/model_lifecycle.cc, VersionsToLoad.
    """
    return tuple(sorted(int(n) for n in folders(path) if re.fullmatch(r"0|[1-9]\d{0,17}", n)))


def load(root: Path, row: TritonRelease, manifest: Manifest | None) -> tuple[list[LintedModel], list[Finding]]:
    """Parse every config below ``root`` (resolved): the default ones, then those of each name below ``configs/``.

    Returns:
        The models, and a finding for each config that is missing or does not parse.
    """
    names = folders(root)
    inside = [n for n in names if leads_inside(root, root / n)]
    found: list[Finding] = []
    try:
        launch = read_text(root, root / "launch.sh")
    except InputError:
        launch = None

    def parsed(folder: str, file: str) -> LintedModel | None:
        try:
            return _model(root, folder, file, row, launch)
        except InputError as error:
            found.append(Finding("error", file, "", error.message, "write it as protobuf text, see Triton's schema"))
            return None

    default: dict[str, LintedModel | None] = dict.fromkeys(names)
    custom: dict[str, dict[str, LintedModel | None]] = {}
    for folder in inside:
        if (root / folder / CONFIG).exists():
            default[folder] = parsed(folder, f"{folder}/{CONFIG}")
        else:
            found.append(_without_config(root, folder))
        for path in sorted((root / folder / CONFIGS).glob("*.pbtxt")):
            custom.setdefault(path.name, {})[folder] = parsed(folder, f"{folder}/{CONFIGS}/{path.name}")
    models = [replace(m, others=default, manifest=manifest) for m in default.values() if m is not None]
    for changed in custom.values():
        group = {**default, **changed}
        # The server takes the name for all models at once, so an ensemble may meet other configs of its steps.
        chosen = [m for f, m in group.items() if m is not None and (f in changed or m.ensemble)]
        models += [replace(m, others=group, manifest=manifest) for m in chosen]
    return models, found


def leads_inside(root: Path, path: Path) -> bool:
    """Return whether a path, its links followed, lies in ``root`` (resolved)."""
    try:
        return path.resolve().is_relative_to(root)
    except (OSError, RuntimeError):
        return False


def _model(root: Path, folder: str, file: str, row: TritonRelease, launch: str | None) -> LintedModel:
    config = parse(read_text(root, root / file))
    versions = versions_of(root / folder)
    backend, platform, filename = _complete(config, root / folder)
    return LintedModel(root, folder, file, config, row, versions, backend, platform, filename, {}, launch)


def _complete(config: Any, folder: Path) -> tuple[str, str, str]:
    """Return backend, platform and file name as the server completes them, whatever its auto-complete flag says.

    Source: core src/model_config_utils.cc, AutoCompleteBackendFields.
    """
    backend, platform, filename = config.backend, config.platform, config.default_model_filename
    if config.HasField("ensemble_scheduling") or platform == "ensemble":
        return backend, platform, filename
    by_file = {file: platform for platform, file in FILENAMES.items()}
    if not backend and not platform:
        guess = by_file.get(filename, "") if filename else _by_content(folder, by_file)
        backend, platform = PLATFORMS.get(guess, guess), guess if guess in PLATFORMS else ""
    if not backend and platform:
        # libtorch is known here and refused later on, see rules.PLATFORMS.
        backend = "pytorch" if platform == "libtorch" else PLATFORMS.get(platform, "")
    if not (backend or platform or filename) and "." in folder.name:
        backend = folder.name.partition(".")[2]
        return backend, platform, f"model.{backend}"
    if backend in PLATFORMS.values() and not platform:
        # TensorFlow has two platforms, told by the file; PyTorch's older one is its default.
        named = by_file.get(filename, "") if filename else _by_content(folder, by_file)
        usual = {"tensorrt": "tensorrt_plan", "onnxruntime": "onnxruntime_onnx", "pytorch": "pytorch_libtorch"}
        platform = usual.get(backend, "") or (named if PLATFORMS.get(named) == backend else "")
    contradictory = PLATFORMS.get(platform, backend) != backend
    if not filename and not contradictory and not (backend == "pytorch" and config.runtime == FILENAMES["python"]):
        filename = FILENAMES.get(platform, "") or FILENAMES.get(backend, "")
    return backend, platform, filename


def _by_content(folder: Path, by_file: Mapping[str, str]) -> str:
    """Tell the platform by what lies in the first version folder; the server asks in the order of the table."""
    first = next(iter(folders(folder)), None)
    if first is None:
        return ""
    return next((name for file, name in by_file.items() if (folder / first / file).exists()), "")


def _without_config(root: Path, folder: str) -> Finding:
    """Judge a folder without a config: some models can do without one.

    Source: core src/model_repository_manager/model_repository_manager.cc, InitializeModelInfo: every folder of the
    repository is taken for a model.
    """
    from tritonclient.grpc import model_config_pb2 as pb

    backend, _, _ = _complete(pb.ModelConfig(), root / folder)
    if backend in AUTO_COMPLETE:
        return Finding(
            "warning",
            f"{folder}/{CONFIG}",
            "",
            f"is missing: the {backend} backend completes it, unless the server runs with "
            "--disable-auto-complete-config; batching, instances and warm-up are then what it chooses",
            "write one",
        )
    return Finding(
        "error",
        f"{folder}/{CONFIG}",
        "",
        "is missing, and nothing in the folder tells the backend: the server takes every folder for a model",
        "write one, or move the folder out of the repository",
    )
