"""The files of a Python-backend version folder: ``model.py``, what it reads, and the part of accel it runs on.

The image then needs only the artifact's runtime. Which modules are shipped follows from the imports of the builder's
own module, at any depth, so that a builder of a plug-in is served the same way.
"""

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from accel.builders import Builder
from accel.core.errors import InputError
from accel.core.feeds import Feed
from accel.core.imports import modules_of
from accel.core.values import SCHEMA, Artifact, TensorSpec, to_json
from accel.triton.grouping import Grouping
from accel.triton.sequences import State

ALWAYS = ("accel.core.values", "accel.core.errors", "accel.core.hardware", "accel.builders")
PLAIN, GROUPED, STATEFUL, ROUTED = "model.py", "grouped.py", "stateful.py", "routed.py"
"""The file that the server loads. Beside the first: the second where requests of different lengths share calls, the
third for a stateful model. The fourth, beside the first two, where another model of the server answers these calls."""
DATA_SUFFIXES = (".txt", ".json")
"""Files beside a shipped module that go along: a zoo entry reads its vocabulary or sentences from there."""


@dataclass(frozen=True, slots=True)
class Core:
    """The model that answers the groups of a model which only forms them.

    Attributes:
        name: its name on the server.
        input_names / output_names: client name to the name that it has there, where they differ.
    """

    name: str
    input_names: Mapping[str, str] = field(default_factory=dict)
    output_names: Mapping[str, str] = field(default_factory=dict)


def write_model(
    folder: Path,
    artifact: Artifact,
    *,
    runs: Builder | Core,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    batched: bool,
    numpy_below_2: bool,
    grouping: Grouping | None = None,
    states: tuple[State, ...] = (),
    initial: Feed | None = None,
) -> None:
    """Write ``model.py``, ``artifact.json`` and the accel modules it imports into a version folder.

    Args:
        runs: what opens the artifact in the server's Python backend, or the model beside it that has the artifact.
        inputs / outputs: the client contract, batch axis included.
        batched: whether the server merges requests along the leading axis.
        numpy_below_2: whether the release's Python backend cannot work with NumPy 2; then the model refuses to load.
        grouping: how requests of different lengths share calls; None where they do not.
        states: of a stateful model; ``initial`` has those of a first step, by input.

    Raises:
        InputError: the builder's module does not offer it as ``BUILDER``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spec = {
        "schema": SCHEMA,
        **({"core": to_json(runs)} if isinstance(runs, Core) else _opened_by(runs, artifact)),
        "artifact": to_json(artifact),
        "inputs": to_json(inputs),
        "outputs": to_json(outputs),
        "batched": batched,
        "numpy_below_2": numpy_below_2,
        **({"grouping": to_json(grouping)} if grouping else {}),
        **({"states": to_json(states)} if states else {}),
    }
    (folder / "artifact.json").write_text(json.dumps(spec, indent=2) + "\n", encoding="utf-8")
    if states:
        np.savez(folder / "initial.npz", **(initial or {}))  # type: ignore[arg-type]
    more = {GROUPED: "accel.triton.grouping"} if grouping else {STATEFUL: "accel.triton.sequences"} if states else {}
    for file in (PLAIN, *more, *([ROUTED] if isinstance(runs, Core) else [])):
        shutil.copyfile(Path(__file__).with_name("backend_py") / file, folder / file)
    wanted = [*ALWAYS, *more.values(), *([] if isinstance(runs, Core) else [type(runs).__module__])]
    for name, path in modules_of(*wanted).items():
        parts = name.split(".")
        target = folder.joinpath(*parts, "__init__.py") if path.name == "__init__.py" else folder.joinpath(*parts)
        target = target if target.suffix == ".py" else target.with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        if path.name == "__init__.py" and parts[0] != "accel":
            for data in sorted(p for p in path.parent.iterdir() if p.suffix in DATA_SUFFIXES):
                shutil.copyfile(data, target.parent / data.name)
    # The package's real front module names the whole public API; serving needs none of it.
    (folder / "accel" / "__init__.py").write_text(
        '"""The part of accel that serves this artifact."""\n', encoding="utf-8"
    )


def _opened_by(builder: Builder, artifact: Artifact) -> dict[str, str]:
    """Return where a server finds the builder that opens an artifact, and the environment with its runtime."""
    module = type(builder).__module__
    if getattr(sys.modules.get(module), "BUILDER", None) is None:
        raise InputError(
            f"the builder of {artifact.variant.target.name} is not a module's BUILDER, so the server could not find it",
            fix=f"set BUILDER in {module}",
        )
    return {"builder": module, "environment": builder.environment(artifact.variant.target)}
