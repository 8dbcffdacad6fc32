"""What is to be optimised, as files that every worker process can open: a module in memory becomes one.

A torch module travels as its exported program (``torch.export``) and a Keras model as a SavedModel: never as pickled
code, so modules that were defined in a notebook work like any other. How Python calls it is noted beside.
"""

import contextlib
import copy
import functools
import hashlib
import inspect
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.api.frameworks import is_keras, is_torch
from accel.api.samples import CallArguments, array, by_keyword, by_name, calls, each, rebound
from accel.core.calls import CallForm, structure, tensors
from accel.core.errors import AccelError, StageError, UsageError
from accel.core.feeds import Feed, write_feeds
from accel.core.files import replacing
from accel.core.values import ShapeRange, TensorSpec
from accel.exporters import factory
from accel.exporters.axes import points, shapes_at
from accel.exporters.axis_trial import Run
from accel.exporters.factory_result import FactoryResult
from accel.exporters.probe import alike, example_arrays
from accel.exporters.request import SourceRequest

if TYPE_CHECKING:
    import torch

FOLDER = "source"
"""Where a run directory keeps a model that came from memory, and its samples."""
SAMPLES = "samples.npz"
COMPARED = 4
"""So many samples does a program answer before it stands for its module."""
WRAPPERS = ("OptimizedModule", "DataParallel", "DistributedDataParallel")
"""Classes of torch around a module."""


@dataclass(frozen=True)
class Given:
    """A source as files: its path, how Python calls it, and the options that go with it."""

    text: str
    options: Mapping[str, Any]
    form: CallForm | None = None


def name_of(model: Any) -> str:
    """Return what a run of the model is called: its class, in snake case."""
    kind = type(unwrapped(model)).__name__
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()


def written(model: Any, samples: Any, folder: Path, options: Mapping[str, Any]) -> Given:
    """Write a model in memory and its samples below ``folder``.

    Args:
        options: shapes and ranges, as a job takes them (``min_shapes``, …).

    Raises:
        UsageError: it is neither a torch module nor a Keras model.
        SampleError: there are no samples, or they do not fit.
        StageError: the module's own code raised, or torch could not export it.
    """
    write = _torch if is_torch(model) else _keras if is_keras(model) else None
    if write is None:
        raise UsageError(
            f"a source is {type(model).__name__}: expected an nn.Module, a Keras model, a path, or a zoo or hub name",
            fix="accel.optimize(model, samples=[…]) for a model in memory, accel.optimize('model.onnx') for a file",
        )
    folder.mkdir(parents=True, exist_ok=True)
    return write(model, samples, folder, options)


def sample_file(samples: Any, names: list[str], folder: Path) -> Path:
    """Write samples of a model whose inputs are known by name, and return the file."""
    return _store(by_name(samples, names), folder)


def unwrapped(model: Any) -> Any:
    """Return the module that ``torch.compile`` or a parallel wrapper holds."""
    while type(model).__name__ in WRAPPERS:
        model = getattr(model, "_orig_mod", None) or model.module
    return model


def _store(feeds: list[dict[str, np.ndarray]], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_feeds(folder / SAMPLES, {str(index): feed for index, feed in enumerate(feeds)})
    return (folder / SAMPLES).resolve()


# ---------------------------------------------------------------------------------------------------------------------
# torch


def _torch(model: "torch.nn.Module", samples: Any, folder: Path, options: Mapping[str, Any]) -> Given:
    import torch

    module = unwrapped(model)
    if isinstance(module, torch.jit.ScriptModule):
        raise UsageError(
            f"{module.original_name} is TorchScript: torch.export, by which modules in memory travel, takes none",
            fix="torch.jit.save(module, 'model.pt'), accel.optimize('model.pt', samples, opt_shapes={'x': (1, 9)})",
        )
    found = calls(module.forward, samples, type(module).__name__)
    with _plain(module) as plain:
        flat = _Flat(plain, found[0])
        # Triton has no tensors without dims: a number is one element for whoever calls.
        given = [{name: np.atleast_1d(array(value)) for name, value in call.feed.items()} for call in found]
        wide = factory.double_inputs(FactoryResult("torch", flat, tuple(given)))
        feeds = [{name: value if name in wide else _float32(value) for name, value in feed.items()} for feed in given]
        form = _form(plain, found[0], feeds[0])
        path, profile = _exported(flat, feeds, folder, options)
    shapes = {f"{point}_shapes": {n: getattr(s, point) for n, s in profile.items()} for point in ("min", "opt", "max")}
    return Given(str(path), {**shapes, "samples": str(_store(feeds, folder))}, form)


@contextlib.contextmanager
def _plain(module: "torch.nn.Module") -> Iterator["torch.nn.Module"]:
    """Lend the module in eval mode, FP32 on the CPU; it is a copy where the user's own is something else."""
    held = [*module.parameters(), *module.buffers()]
    if any(t.device.type != "cpu" or str(t.dtype) in ("torch.float16", "torch.bfloat16") for t in held):
        yield copy.deepcopy(module).cpu().float().eval()
        return
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield module
    finally:
        for part, training in modes:
            part.training = training


def _form(module: "torch.nn.Module", call: CallArguments, feed: Mapping[str, np.ndarray]) -> CallForm:
    """Run the module once on a feed, and note how it is called and what it returns."""
    import torch

    given = {name: torch.from_numpy(value) for name, value in feed.items()}
    try:
        args, kwargs = by_keyword(_as_called(call, given))
        with torch.inference_mode():
            result = module(*args, **kwargs)
    except Exception as error:
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in given.items())
        raise StageError(f"the model raised {type(error).__name__} on {shapes}: {error}") from error
    kinds = {n: str(t.dtype).removeprefix("torch.") for n, t in tensors(result, call.feed).items()}
    return _form_of(
        call, structure(result, call.feed), {name: kind for name, kind in kinds.items() if "float" not in kind}
    )


def _as_called(call: CallArguments, given: Mapping[str, Any]) -> inspect.BoundArguments:
    """Return the call on other tensors: numbers, which clients give as one element, have no axes again."""
    return rebound(call.bound, {n: t if np.shape(call.feed[n]) else t.reshape(()) for n, t in given.items()})


def _form_of(call: CallArguments, result: Any, dtypes: Mapping[str, str]) -> CallForm:
    """Note the arguments of a call; those that were left out stand with their defaults."""
    parameters = call.bound.signature.parameters.values()
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    constants = {p.name: p.default for p in plain if isinstance(p.default, bool | int | float | str)}
    names: list[str] = []
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            names += [f"{p.name}_{place}" for place in range(len(call.bound.arguments.get(p.name, ())))]
        elif p in plain:
            names.append(p.name)
    return CallForm(tuple(names), constants | dict(call.constants), result, dtypes)


def _float32(value: np.ndarray) -> np.ndarray:
    """Return floats as FP32, in which the reference computes: 64-bit ones are rarely more than NumPy's default."""
    return value.astype(np.float32) if value.dtype in (np.float16, np.float64) else value


def _Flat(module: "torch.nn.Module", call: CallArguments) -> "torch.nn.Module":
    """Make a module that takes tensors by name and returns them by name, however the user's own nests them."""
    import torch

    names = list(call.feed)

    class Flat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.training = False
            self.model = module
            self.scalars = frozenset(name for name in names if not np.shape(call.feed[name]))

        def forward(self, *args: torch.Tensor, **kwargs: torch.Tensor) -> dict[str, torch.Tensor]:
            given, named = by_keyword(_as_called(call, dict(zip(names, args, strict=False)) | kwargs))
            return tensors(self.model(*given, **named))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    Flat.forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind) for name in ("self", *names)]
    )
    return Flat()


def _exported(
    module: "torch.nn.Module", feeds: list[dict[str, np.ndarray]], folder: Path, options: Mapping[str, Any]
) -> tuple[Path, dict[str, ShapeRange]]:
    """Export a flat module and save the program, unless the file holds it already: two saves differ in bytes.

    The leading axis of every input is the batch, of any size, unless the module takes that of the samples alone, or
    answers others otherwise than the program does.

    Raises:
        InputError: the module answers the same inputs differently.
        StageError: torch could not export it, or the program is not the module.
    """
    import torch

    from accel.exporters import determinism, exported, from_torch
    from accel.exporters.samples import fit_shape

    request = SourceRequest("a module in memory", "factory", "", **_shapes(options))
    specs, profile, seen = factory.inputs(FactoryResult("torch", module, tuple(feeds)), request)
    run = from_torch.runner(module, specs)
    for feed in (feeds[0], max(feeds, key=lambda feed: sum(value.size for value in feed.values()))):
        determinism.check(module, functools.partial(run, feed))
    with contextlib.suppress(StageError):  # the export says what is wrong
        specs, profile, _ = from_torch.tried(module, specs, profile, seen, request)
    last: StageError | None = None
    for trial in (profile, _as_seen(profile, feeds)):
        source = request.source("torch", key="", inputs=specs, outputs=(), profile=trial, samples="")
        sizes = from_torch.trace_shapes(source, trial)
        example = {n: torch.from_numpy(v) for n, v in fit_shape(feeds[0], specs, sizes).items()}
        dynamic = dict(zip(example, from_torch.dynamic_shapes(source, trial)[0], strict=True))
        try:
            with warnings.catch_warnings(action="ignore"), torch.no_grad(), from_torch.whole_recurrent_layers():
                program = torch.export.export(module, (), example, dynamic_shapes=dynamic)
        except AccelError:
            raise
        except Exception as error:  # noqa: BLE001  whatever torch raises, the second trial may do without
            last = from_torch.unexportable("torch.export could not trace the module", error)
            continue
        if (last := _unlike(run, from_torch.runner(exported.flat_module(program), specs), specs, trial, feeds)) is None:
            return _saved(program, folder), trial
    assert last is not None
    raise last


def _unlike(
    run: Run, exported: Run, specs: Sequence[TensorSpec], profile: Mapping[str, ShapeRange], feeds: Sequence[Feed]
) -> StageError | None:
    """Hold a program against the module that it was made of, on samples and at small sizes; None where they agree.

    torch.export follows the way that the traced sizes take: of a module that treats a batch of one differently it keeps
    what the others get. From then on the program is the reference.
    """
    small = [shapes_at(specs, sizes) for name, sizes in points(specs, profile).items() if name != "max"]
    for feed in (*feeds[:COMPARED], *(example_arrays(specs, shapes) for shapes in small)):
        try:
            expected = run(feed)
        except StageError:
            continue  # a size that the module itself does not take
        if (unlike := _otherwise(feed, expected, exported(feed))) is not None:
            return unlike
    return None


def _otherwise(feed: Feed, expected: Mapping[str, Any], found: Mapping[str, Any]) -> StageError | None:
    """Return what to say where what a model was traced to does not answer as the model does."""
    pairs = {name: (np.asarray(value), np.asarray(found[name])) for name, value in expected.items()}
    differing = [name for name, pair in pairs.items() if not alike(*pair, factor=10)]
    if not differing:
        return None
    at = ", ".join(f"{name} {list(value.shape)}" for name, value in feed.items())
    return StageError(
        f"once traced, the model answers otherwise than in memory at {at} (output {differing[0]!r}): it decides by a "
        "size, and a graph goes one way",
        fix="let the model answer every size in one way, or give samples of one size and max_shapes= of it",
    )


def _saved(program: "torch.export.ExportedProgram", folder: Path) -> Path:
    """Save a program, unless the file holds it already."""
    import torch

    path, mark, digest = folder / "model.pt2", folder / "model.sha256", _digest(program)
    if not (path.exists() and mark.exists() and mark.read_text() == digest):
        mark.unlink(missing_ok=True)  # it must never stand beside another program
        with replacing(path) as fresh, fresh.open("wb") as file:
            torch.export.save(program, file)
        mark.write_text(digest)
    return path.resolve()


def _shapes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a job that bear on shapes, as a request has them."""
    from accel.run import job

    read = {"min_shapes": job.shapes, "opt_shapes": job.shapes, "max_shapes": job.shapes, "ranges": job.ranges}
    return {name: read[name](options[name]) for name in read if options.get(name)}


def _as_seen(profile: Mapping[str, ShapeRange], feeds: list[dict[str, np.ndarray]]) -> dict[str, ShapeRange]:
    """Return the profile with every axis that is the same in all samples fixed at that size."""
    fixed = {}
    for name, shape in profile.items():
        seen = [feed[name].shape for feed in feeds]
        low, high = tuple(map(min, zip(*seen, strict=True))), tuple(map(max, zip(*seen, strict=True)))
        fixed[name] = ShapeRange(
            low, tuple(min(max(o, a), b) for o, a, b in zip(shape.opt, low, high, strict=True)), high
        )
    return fixed


def _digest(program: "torch.export.ExportedProgram") -> str:
    """Hash what a program computes: its code, its sizes and its tensors."""
    digest = hashlib.sha256()
    digest.update(f"{program.graph_module.code}{program.range_constraints}{program.call_spec}".encode())
    for name, value in sorted({**program.state_dict, **program.constants}.items()):
        digest.update(f"{name}{getattr(value, 'dtype', '')}{tuple(getattr(value, 'shape', ()))}".encode())
        if hasattr(value, "detach"):
            flat = value.detach().contiguous().flatten()
            import torch

            digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return digest.hexdigest()


# ---------------------------------------------------------------------------------------------------------------------
# Keras


def _keras(model: Any, samples: Any, folder: Path, options: Mapping[str, Any]) -> Given:
    import tensorflow as tf

    found = calls(_keras_call(model), _keras_samples(model, samples), type(model).__name__)
    feeds = [{name: _float32(array(value)) for name, value in call.feed.items()} for call in found]
    try:
        first = rebound(found[0].bound, {name: tf.constant(value) for name, value in feeds[0].items()})
        form = _form_of(found[0], structure(model(*first.args, **first.kwargs, training=False), feeds[0]), {})
    except AccelError:
        raise
    except Exception as error:
        raise StageError(f"the model raised {type(error).__name__}: {error}") from error

    def answer(**given: Any) -> dict[str, Any]:
        other = rebound(found[0].bound, given)
        return tensors(model(*other.args, **other.kwargs, training=False), given)

    request = SourceRequest("a Keras model in memory", "factory", "", **_shapes(options))
    profile = {n: factory.shape_range(n, [f[n].shape for f in feeds], request) for n in feeds[0]}
    specs = {
        name: tf.TensorSpec(
            [low if low == high else None for low, high in zip(shape.min, shape.max, strict=True)],
            feeds[0][name].dtype,
            name=name,
        )
        for name, shape in profile.items()
    }
    holder = tf.Module()
    holder.model = model  # its variables are saved with what holds them
    path = folder / "savedmodel"
    shutil.rmtree(path, ignore_errors=True)
    signature = tf.function(answer).get_concrete_function(**specs)
    for feed in feeds[:COMPARED]:
        given = {name: tf.constant(value) for name, value in feed.items()}
        if (unlike := _otherwise(feed, answer(**given), signature(**given))) is not None:
            raise unlike
    tf.saved_model.save(holder, str(path), signatures={"serving_default": signature})
    shapes = {f"{point}_shapes": {n: getattr(s, point) for n, s in profile.items()} for point in ("min", "opt", "max")}
    return Given(str(path.resolve()), {**shapes, "samples": str(_store(feeds, folder))}, form)


def _keras_call(model: Any) -> Any:
    """Return a stand-in for ``call`` with its inputs alone: Keras itself gives the others."""
    parameters = inspect.signature(model.call).parameters.values()
    own = [p for p in parameters if p.name not in ("training", "mask") and p.kind is not p.VAR_KEYWORD]

    def call(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError

    call.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return call


def _keras_samples(model: Any, samples: Any) -> Any:
    """Return samples with the list that a functional model takes as one argument marked as such."""
    if len(getattr(model, "inputs", None) or ()) < 2 or samples is None:
        return samples
    return ((sample,) if isinstance(sample, list | tuple) else sample for _, sample in each(samples))
