"""Factories: ``file.py:function`` that returns an ``nn.Module``, a Keras model or a tf.function, or it and samples."""

import dataclasses
import hashlib
import importlib.util
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from accel.core.errors import InputError, SampleError, StageError, UsageError
from accel.core.values import ShapeRange, TensorSpec, sha256_file, sha256_json
from accel.exporters import masks
from accel.exporters.axes import BATCH, checked_ranges, known_input, name_axes
from accel.exporters.factory_result import FactoryResult
from accel.exporters.probe import alike
from accel.exporters.request import SourceRequest
from accel.exporters.sample_files import (
    Call,
    dtype_of,
    ends_of,
    limited,
    sample_calls,
    shapes_of,
    shown,
    unlike,
    whole_calls,
)
from accel.exporters.tensorflow_files import input_names
from accel.exporters.user_code import call, code_of

if TYPE_CHECKING:
    import torch


WIDE_SAMPLES = 8
"""So many samples show whether a model computes in float64."""


def make(reference: str) -> FactoryResult:
    """Call a factory with the generators of its framework seeded, so that unseeded weights are the same each time.

    Raises:
        InputError: it raised, or returned something else than a model, or a model and samples.
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    result = _called(reference)
    module, samples = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if _is_tensorflow(module):
        names = input_names(module, samples[0] if isinstance(samples, list) and samples else samples)
        return FactoryResult("tensorflow", module, () if samples is None else read_samples(samples, names))
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(module, torch.nn.Module):
        raise InputError(
            f"factory {reference} returned {type(module).__name__}: expected an nn.Module, a Keras model or a "
            "tf.function, or (that, samples)"
        )
    from accel.exporters.torch_module import bound, plain

    module = plain(module)
    return FactoryResult("torch", *((module, ()) if samples is None else bound(module, samples)))


def _called(reference: str) -> Any:
    """Call a factory in one thread of torch.

    Sums depend on the number of threads in their last bits, and every process that builds a variant has its own: what a
    factory computes of its weights (a norm, statistics of a batch) would be other weights in each.
    """
    threads: list[int] = []

    def begin() -> None:
        _seed()
        if (torch := sys.modules.get("torch")) is not None:
            threads.append(torch.get_num_threads())
            torch.set_num_threads(1)

    try:
        return call(reference, "factory", begin)
    finally:
        for count in threads:
            sys.modules["torch"].set_num_threads(count)


def _seed() -> None:
    """Seed what a factory may draw weights from, and let Keras count the names that it makes up from the start.

    Keras takes its seeds from Python's generator.
    """
    random.seed(0)
    np.random.seed(0)
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].random.set_seed(0)
    if "keras" in sys.modules:
        sys.modules["keras"].utils.clear_session()
    if "torch" in sys.modules or ("tensorflow" not in sys.modules and importlib.util.find_spec("torch") is not None):
        import torch

        torch.manual_seed(0)


def _is_tensorflow(value: Any) -> bool:
    """Say whether a value is TensorFlow's or Keras's, without importing them where the factory did not."""
    tf, keras = sys.modules.get("tensorflow"), sys.modules.get("keras")
    if tf is not None:
        kinds = (tf.Module, tf.types.experimental.PolymorphicFunction, tf.types.experimental.ConcreteFunction)
        if isinstance(value, kinds):
            return True
    return keras is not None and isinstance(value, keras.layers.Layer)


def read_samples(samples: Any, names: Sequence[str]) -> tuple[Mapping[str, np.ndarray], ...]:
    """Turn the samples of a TensorFlow factory into feeds of the inputs ``names``.

    Raises:
        SampleError: neither a dict, a tuple of arrays, nor a list of such; or a name that the model does not take.
    """
    line = ", ".join(f"{name!r}: array" for name in names)
    fix = f"return (model, samples), samples a list of {{{line}}}, each array with its batch axis (docs/samples.md)"
    feeds = []
    for index, sample in enumerate(samples if isinstance(samples, list) else [samples]):
        if isinstance(sample, Mapping):
            feed = dict(sample)
        elif isinstance(sample, tuple):
            if len(sample) > len(names):
                raise SampleError(f"sample {index} has {len(sample)} arrays, and the model takes {names}", fix=fix)
            feed = dict(zip(names, sample, strict=False))
        elif hasattr(sample, "shape"):
            feed = {names[0]: sample}
        else:
            raise SampleError(
                f"sample {index} is {type(sample).__name__}: expected a dict name → array or a tuple of arrays", fix=fix
            )
        for name in feed:
            known_input(name, names, f"sample {index}")
        feeds.append({n: np.asarray(v) for n, v in feed.items()})
    if not feeds:
        raise SampleError("the factory returned an empty list of samples", fix="return the module alone, or samples")
    if any(list(f) != list(feeds[0]) for f in feeds):
        raise SampleError("the factory's samples do not all have the same inputs", fix=fix)
    return tuple(feeds)


def inputs(
    made: FactoryResult, request: SourceRequest
) -> tuple[tuple[TensorSpec, ...], dict[str, ShapeRange], tuple[Call, ...]]:
    """Work out the module's inputs from forward's signature, the samples and the user's shapes.

    Returns:
        The inputs, their shapes, and what samples show of all of them: the factory's own, else those of ``request``.

    Raises:
        UsageError: nothing says what shape an input has, or a shape is given for an input that does not exist.
    """
    from accel.exporters.torch_module import arguments

    takes = arguments(made.module)
    given = {**request.min_shapes, **request.opt_shapes, **request.max_shapes}
    for name in given:
        known_input(name, takes, "--shape")
    if made.samples:
        names = list(made.samples[0])
    else:
        names = [name for name, required in takes.items() if required or name in given]
    if not names:
        raise UsageError(
            f"{request.text}: forward names no inputs", fix="give forward named parameters, or return samples as a dict"
        )
    own = shown(made.samples)
    calls = own or sample_calls(request.samples, names)
    shapes, dtypes = {}, {}
    double, scalars = _is_double(made.module), getattr(made.module, "scalars", ())
    wide = () if double else double_inputs(made)
    for name in names:
        shapes[name] = shape_range(name, shapes_of(calls, name), request, assumed=not own)
        if name in scalars:  # one element, which is no batch
            shapes[name] = ShapeRange((1,), (1,), (1,))
        # A 64-bit float sample is NumPy's default more often than a wish: the reference computes in float32, unless
        # that answers otherwise.
        found = dtype_of(calls, name) or ("int64" if name in request.ranges else "float32")
        narrow = found == "float16" or (found == "float64" and name not in wide)
        dtypes[name] = "float32" if narrow and not double else found
    specs, profile = name_axes(shapes, dtypes, request.states)
    ranges = checked_ranges(specs, request)
    whole = whole_calls(calls, names)
    specs = tuple(dataclasses.replace(s, range=ranges.get(s.name, seen_range(s, own, request.mask))) for s in specs)
    return limited(specs, whole), profile, whole


def double_inputs(made: FactoryResult) -> tuple[str, ...]:
    """Return the inputs of float64 whose values FP32 cannot hold: a module with weights of FP32 computes differences of
    timestamps before it casts them.

    It is asked on the first samples, as they are and rounded to FP32; one that takes only the latter has none.
    """
    from accel.exporters.positional import Positional, call, client_array, named_tensors

    names = [name for name, value in (made.samples[0] if made.samples else {}).items() if value.dtype == np.float64]
    for feed in made.samples[:WIDE_SAMPLES] if names else ():
        given = {n: v.astype(np.float32) if v.dtype == np.float16 else v for n, v in feed.items()}
        answers: list[list[np.ndarray]] = []
        for one in (given, given | {n: given[n].astype(np.float32) for n in names}):
            module = Positional(made.module, list(one), outputs=None)
            try:
                found = named_tensors(call(module.result, module.inputs, one), module.inputs)
            except StageError:
                return tuple(names) if answers else ()
            answers.append([client_array(tensor) for tensor in found.values()])
        if not all(alike(*pair) for pair in zip(*answers, strict=True)):
            return tuple(names)
    return ()


def _is_double(module: "torch.nn.Module") -> bool:
    import torch

    return any(p.dtype == torch.float64 for p in module.parameters())


def seen_range(spec: TensorSpec, calls: Sequence[Call], mask: str | None) -> tuple[int, int] | None:
    """Take an integer input's range from the samples, where they are all that is known.

    Where there is a mask, samples of several lengths are padded with zeros to share a batch.

    Args:
        mask: as ``SourceRequest`` has it.
    """
    ends = ends_of(calls, spec.name) if "int" in spec.dtype else None
    if ends is None:
        return None
    return (min(ends[0], 0) if masks.padded(calls[0], mask) else ends[0]), ends[1]


def told_ranges(
    inputs: tuple[TensorSpec, ...], made: Sequence[Mapping[str, np.ndarray]], request: SourceRequest
) -> tuple[tuple[TensorSpec, ...], list[str]]:
    """Say which ranges are those of the factory's own samples; where the user gave others, these are none.

    Args:
        made: the factory's samples.

    Returns:
        The inputs, and what to tell the user.
    """
    seen = {s.name: s for s in inputs if s.range is not None and made and s.name not in request.ranges}
    if request.samples is not None:
        return tuple(dataclasses.replace(s, range=None) if s.name in seen else s for s in inputs), []
    mask = masks.usual(inputs) if request.mask is None else request.mask
    said = "input {!r}: values {} to {}{}, as in the factory's samples; no others are answered (--range sets them)"
    return inputs, [
        said.format(name, *(spec.range or ()), _limit_in_words(spec, inputs))
        for name, spec in seen.items()
        if name != mask
    ]


def _limit_in_words(spec: TensorSpec, inputs: Sequence[TensorSpec]) -> str:
    rises = "" if spec.rises is None else f", rising from {spec.rises}"
    if spec.at_most is None:
        return rises
    other, axis, more = spec.at_most
    dim = next(s.dims[axis] for s in inputs if s.name == other)
    return f", {'below' if more else 'at most'} the size of axis {axis} ({str(dim)!r}) of {other!r}{rises}"


def shape_range(
    name: str, seen: Sequence[tuple[int, ...]], request: SourceRequest, *, assumed: bool = False
) -> ShapeRange:
    """Return the sizes that an input may have.

    Args:
        seen: the shapes that samples have.
        assumed: the samples count only where the user gave no shape.

    Raises:
        UsageError: nothing says what shape it has, or what does contradicts itself.
    """
    known = [request.opt_shapes.get(name), request.max_shapes.get(name), request.min_shapes.get(name)]
    seen = () if assumed and any(known) else seen
    opt = next((s for s in [known[0], *seen[:1], known[1], known[2]] if s is not None), None)
    if opt is None:
        raise UsageError(
            f"{request.text}: nothing says what shape input {name!r} has{unlike(request.samples, name)}",
            fix=f"give --shape {name}:1x3x224x224 (its sizes), --samples with an array {name!r}, or return (module, "
            "samples) from the factory",
        )
    every = [s for s in [*known, *seen, opt] if s is not None]
    if any(len(s) != len(opt) for s in every):
        raise UsageError(f"shapes of input {name!r} differ in rank: {sorted(set(every), key=str)}")
    low = list(known[2] or (min(s[i] for s in every) for i in range(len(opt))))
    high = list(known[1] or (max(s[i] for s in every) for i in range(len(opt))))
    if opt and known[2] is None:
        low[0] = min(low[0], BATCH.min[0])
    if opt and known[1] is None:
        high[0] = max(high[0], BATCH.max[0])
    if not all(a <= b <= c for a, b, c in zip(low, opt, high, strict=True)):
        raise UsageError(f"input {name!r}: shapes {tuple(low)} / {opt} / {tuple(high)}, expected min <= opt <= max")
    return ShapeRange(tuple(low), tuple(opt), tuple(high))


def content_key(reference: str, module: "torch.nn.Module") -> str:
    """Hash a factory: its code, and its tensors (names, dtypes, shapes and bytes, in sorted order).

    The code is that of its file and of what that imports from files of the user, and of the classes of its parts.
    """
    import torch

    digest = hashlib.sha256()
    for name, value in sorted({**dict(module.named_buffers()), **module.state_dict()}.items()):
        if not isinstance(value, torch.Tensor):
            digest.update(f"{name}={value!r};".encode())
            continue
        flat = value.detach().cpu().contiguous().flatten()
        digest.update(f"{name}:{value.dtype}:{tuple(value.shape)};".encode())
        digest.update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    kinds = {type(part).__module__ for part in module.modules()}
    files = {getattr(sys.modules.get(kind), "__file__", None) for kind in kinds}
    classes = sorted(sha256_file(Path(file)) for file in files if file is not None and file.endswith(".py"))
    return sha256_json(["factory", code_of(reference), classes, digest.hexdigest()])


def given_key(made: FactoryResult) -> str:
    """Hash what else a factory gave: its samples, and the numbers and texts that parts of the model hold."""
    digest = hashlib.sha256()
    for number, feed in enumerate(made.samples):
        for name, value in feed.items():
            digest.update(f"{number}/{name}:{value.dtype}:{value.shape};".encode())
            digest.update(np.ascontiguousarray(value).tobytes())
    parts = made.module.named_modules() if made.framework == "torch" else ()
    held = {
        f"{place}.{name}": repr(value)
        for place, part in parts
        for name, value in vars(part).items()
        if isinstance(value, int | float | str | None)
    }
    return sha256_json([digest.hexdigest(), held])
