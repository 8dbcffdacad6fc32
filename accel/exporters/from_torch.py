"""Sources that are torch code or a torch export, and the way from any loaded torch module to ONNX.

A factory ``file.py:function`` returns an ``nn.Module`` or ``(module, samples)``; samples are a dict name → array, a
tuple of arrays in the order of forward's parameters, or a list of either. Without shapes the leading axis of every
input is the dynamic axis ``batch`` (1 to 16); the others are fixed unless samples or --min-shape/--max-shape differ.
"""

import contextlib
import dataclasses
import functools
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from accel.core.errors import AccelError, InputError, StageError
from accel.core.feeds import Feed
from accel.core.values import ModelSource, ShapeRange, TensorSpec
from accel.exporters import axis_trial, exported, factory, pooling, probe
from accel.exporters.axes import extents, profile_of, resolve, shapes_at, trace_sizes
from accel.exporters.factory_result import FactoryResult
from accel.exporters.probe import example_arrays
from accel.exporters.request import SourceRequest
from accel.exporters.sample_files import Call, limited, rise_of, sample_calls, whole_calls
from accel.exporters.sources import content_key

if TYPE_CHECKING:
    import torch

    from accel.exporters.source_model import SourceModel


def describe(request: SourceRequest, made: FactoryResult | None = None) -> ModelSource:
    """Describe a factory or an exported program: inputs from its signature, outputs from running it.

    Args:
        made: what the factory returned; None for an exported program.
    """
    from accel.exporters import determinism, torchscript

    notices: list[str] = []
    new = determinism.marks(made.module) if made is not None else {}
    if request.kind == "torchscript":
        made = FactoryResult("torch", torchscript.read_script(Path(request.reference)), ())
    if made is None:
        module, inputs, profile, key = exported.open_program(request)
        names = [s.name for s in inputs]
        inputs = limited(inputs, whole_calls(sample_calls(request.samples, names), names))
        samples = request.samples_or("random")
    else:
        module = made.module
        inputs, profile, calls = factory.inputs(made, request)
        key = content_key(request) or factory.content_key(request.reference, module)
        inputs, profile, notices = tried(module, inputs, profile, calls, request)
        if request.multiples:
            inputs, profile, _ = resolve(inputs, profile, request)
        alone = {f"{s.name}_0" for s in inputs}  # their smallest size was not seen
        varied = {d for s in inputs for d in s.dims if isinstance(d, str) and calls} - alone
        inputs, profile, found = settled(module, inputs, profile, request, varied)
        notices += found
        samples = request.samples_or(request.reference if made.samples else "random")
    module = torchscript.exportable(module, inputs, profile)
    held = {str(p.dtype) for p in module.parameters()}  # halves in an exported program alone: others are made FP32
    computes: Literal["bf16", "fp16", "fp32"]
    computes = "bf16" if "torch.bfloat16" in held else "fp16" if "torch.float16" in held else "fp32"
    inputs, profile, found = axis_trial.count_items(runner(module, inputs), inputs, profile, coarse=computes != "fp32")
    notices += found
    outputs = probe_outputs(module, inputs, profile)
    if request.kind == "factory" and made is not None:
        other = example_arrays(inputs, {name: shape.opt for name, shape in profile.items()}, seed=1)

        def run_fresh() -> dict[str, np.ndarray]:
            return runner(factory.make(request.reference).module, inputs)(other)

        determinism.check_first_call(new, made.module, functools.partial(runner(module, inputs), other), run_fresh)
    inputs, found = factory.told_ranges(inputs, made.samples if made is not None else (), request)
    notices += found
    source = request.source(
        "torch", key=key, inputs=inputs, outputs=outputs, profile=profile, samples=samples, notices=notices
    )
    return dataclasses.replace(source, computes=computes)


def settled(
    module: "torch.nn.Module",
    inputs: tuple[TensorSpec, ...],
    profile: dict[str, ShapeRange],
    request: SourceRequest,
    varied: Collection[str] = (),
) -> tuple[tuple[TensorSpec, ...], dict[str, ShapeRange], list[str]]:
    """Let axes begin where the model does, and take the multiples that it takes, as ``axis_trial.settle``.

    Args:
        varied: axes whose sizes the samples show; those of ``request`` are the user's, too.
    """
    named = {*request.min_shapes, *request.opt_shapes, *request.max_shapes}
    given = {d for s in inputs if s.name in named for d in s.dims if isinstance(d, str)}
    return axis_trial.settle(runner(module, inputs), inputs, profile, given={*given, *varied})


def _ordered(
    run: Callable[[Feed], dict[str, np.ndarray]], inputs: tuple[TensorSpec, ...],
    typical: Mapping[str, tuple[int, ...]], calls: Sequence[Call],
) -> tuple[TensorSpec, ...]:  # fmt: skip
    """Return the inputs, some with values that rise as they do in all samples, where the model takes no others.

    Raises:
        StageError: the model does not run at its typical shapes either way.
    """
    try:
        run(example_arrays(inputs, typical))
    except StageError:
        rising = tuple(dataclasses.replace(s, rises=rise_of(calls, s)) for s in inputs) if calls else inputs
        if rising == inputs:
            raise
        run(example_arrays(rising, typical))
        return rising
    return inputs


def _given_apart(names: Sequence[str], profile: Mapping[str, ShapeRange]) -> dict[str, str]:
    """Return an axis for the first one of each input whose sizes the user gave; none where all are given alike."""
    found: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        shape = profile[name]
        found.setdefault((shape.min[0], shape.opt[0], shape.max[0]), []).append(name)
    return {name: f"{alike[0]}_0" for alike in found.values() for name in alike} if len(found) > 1 else {}


def _as_long(
    sizes: Sequence[int], inputs: Sequence[TensorSpec], profile: Mapping[str, ShapeRange],
    calls: Sequence[Call],
) -> tuple[str, dict[str, int]] | None:  # fmt: skip
    """Return the axis behind the first of an input that has these sizes in the samples, and its ends; None for none."""
    for spec in inputs if len(set(sizes)) > 1 else ():
        for axis, dim in list(enumerate(spec.dims))[1:]:
            if isinstance(dim, str) and all(s[spec.name].shape[axis] == n for s, n in zip(calls, sizes, strict=True)):
                shape = profile[spec.name]
                return dim, {"min": shape.min[axis], "opt": shape.opt[axis], "max": shape.max[axis]}
    return None


def tried(
    module: "torch.nn.Module",
    inputs: tuple[TensorSpec, ...],
    profile: dict[str, ShapeRange],
    calls: Sequence[Call],
    request: SourceRequest,
) -> tuple[tuple[TensorSpec, ...], dict[str, ShapeRange], list[str]]:
    """Fix leading axes that were taken for a batch, where nobody said so, and of which the model takes one size only.

    Those that differ within a sample are no common batch: each that moves has an axis of its own.

    Returns:
        The inputs, their profile, and what to tell the user.

    Raises:
        StageError: the model does not run at its typical shapes either.
    """
    given = {*request.min_shapes, *request.max_shapes}
    leading = [s.name for s in inputs if s.dims[:1] == ("batch",) and s.name not in given]
    said = [s.name for s in inputs if s.dims[:1] == ("batch",) and s.name in given]
    own = _given_apart(said, profile)
    said = [] if own else said
    run = runner(module, inputs)
    typical = {name: shape.opt for name, shape in profile.items()}
    inputs = _ordered(run, inputs, typical, calls)

    def moves(names: Sequence[str]) -> bool:
        """Say whether the model takes other sizes of these inputs' first axes."""
        for size in (1, typical[names[0]][0] + 1):
            shapes = {n: (size, *s[1:]) if n in names else s for n, s in typical.items()}
            try:
                run(example_arrays(inputs, shapes))
            except StageError:
                return False
        return True

    alike: dict[tuple[int, ...], list[str]] = {}  # whose first sizes are the same in each sample
    for name in leading:
        alike.setdefault(tuple(call[name].shape[0] for call in calls), []).append(name)
    if len(alike) > 1:  # no one batch: a query and its keys, points and edges
        tied: dict[str, str] = {}  # to another input's later axis, since the model does not take them without it
        for sizes, names in alike.items():
            if (later := _as_long(sizes, inputs, profile, calls)) is not None and not moves(names):
                dim, ends = later
                tied |= dict.fromkeys(names, dim)
                for name in names:
                    point = {at: (size, *getattr(profile[name], at)[1:]) for at, size in ends.items()}
                    profile[name] = dataclasses.replace(profile[name], **point)
        free = {sizes: names for sizes, names in alike.items() if names[0] not in tied}
        moving = [names for sizes, names in free.items() if len(set(sizes)) > 1 or moves(names)]
        one = len(moving) == 1 and not said and not tied
        axes = tied | {name: "batch" if one else f"{names[0]}_0" for names in moving for name in names}
        fixed = [name for name in leading if name not in axes]
    else:
        assumed = [n for n in leading if len({call[n].shape[:1] for call in calls}) < 2]
        first = typical[assumed[0]][0] if assumed else 0
        same = [name for name in assumed if typical[name][0] == first]
        batched = next((t for t in dict.fromkeys((tuple(assumed), tuple(same))) if t and moves([*t, *said])), ())
        axes, fixed = {}, [name for name in assumed if name not in batched]
    notices = []
    if fixed:
        places = ", ".join(f"{name} {list(typical[name])}" for name in fixed)
        notices.append(f"no batch: the model takes no other length of the first axis of {places} (found by trial)")
    leads: dict[str, int | str] = {**own, **axes, **{name: typical[name][0] for name in fixed}}
    specs = tuple(dataclasses.replace(s, dims=(leads[s.name], *s.dims[1:])) if s.name in leads else s for s in inputs)
    for name in fixed:
        lo, opt, hi = profile[name].min, profile[name].opt, profile[name].max
        profile[name] = dataclasses.replace(profile[name], min=opt[:1] + lo[1:], max=opt[:1] + hi[1:])
    return specs, profile, notices


def load(source: ModelSource) -> "torch.nn.Module":
    """Load a factory's module or an exported program again.

    Raises:
        InputError: it is no longer what ``describe`` saw.
    """
    if source.kind == "exported":
        return exported.flat_module(exported.read_program(Path(source.reference)))
    from accel.exporters import torchscript

    native = [dataclasses.replace(s, dtype=source.native.get(s.name, s.dtype)) for s in source.inputs]
    if source.kind == "torchscript":
        return torchscript.exportable(torchscript.read_script(Path(source.reference)), native, source.profile)
    made = factory.make(source.reference)
    if pooling.key(factory.content_key(source.reference, made.module), source.pool) != source.key:
        raise InputError(
            f"{source.reference} gave other weights or code than a moment ago",
            fix="do not edit the file during a run; load weights from a file, or seed their generator",
        )
    return torchscript.exportable(made.module, native, source.profile)


def probe_outputs(
    model: "torch.nn.Module",
    inputs: Sequence[TensorSpec],
    profile: Mapping[str, ShapeRange],
) -> tuple[TensorSpec, ...]:
    """Run the module to read its outputs' names and dtypes, and which of their axes follow which input axes.

    Raises:
        InputError: it answers the same inputs differently.
        StageError: its code raised, or it returns what no client could receive.
    """
    from accel.exporters import determinism

    run = runner(model, inputs)
    outputs = probe.probe_outputs(run, inputs, profile)
    axes = extents(inputs, profile)
    smallest = {name: e.min for name, e in axes.items()}
    longest = smallest | {name: e.max for name, e in axes.items() if name != "batch"}
    for sizes in (smallest, longest) if longest != smallest else (smallest,):
        determinism.check(model, functools.partial(run, example_arrays(inputs, shapes_at(inputs, sizes))))
    return outputs


def runner(model: "torch.nn.Module", inputs: Sequence[TensorSpec]) -> Callable[[Feed], dict[str, np.ndarray]]:
    """Return what runs a module on arrays by name and gives its outputs by name."""
    from accel.exporters.positional import Positional, call, client_array, named_tensors

    module = Positional(model, [s.name for s in inputs], outputs=None)

    def run(feed: Feed) -> dict[str, np.ndarray]:
        found = named_tensors(call(module.result, module.inputs, feed), module.inputs)
        return {name: client_array(tensor) for name, tensor in found.items()}

    return run


def example_inputs(source: ModelSource, shapes: Mapping[str, tuple[int, ...]]) -> tuple["torch.Tensor", ...]:
    """Return seeded tensors of exactly these shapes, in the order of ``source.inputs``.

    For tracing, take the shapes from ``trace_shapes``: an axis traced at 1 is specialised to 1.
    """
    import torch

    feed = probe.example_arrays(source.inputs, shapes)
    return tuple(torch.from_numpy(feed[s.name]) for s in source.inputs)


def trace_shapes(source: ModelSource, profile: Mapping[str, ShapeRange]) -> dict[str, tuple[int, ...]]:
    """Return shapes to trace at: every dynamic axis at least 2, and no two axes of one size."""
    axes = {n: e for n, e in extents(source.inputs, profile).items() if e.min < e.max}
    taken = {d for s in source.inputs for d in s.dims if isinstance(d, int)}
    fixed = {n: e.opt for n, e in extents(source.inputs, profile).items() if e.min == e.max}
    return shapes_at(source.inputs, trace_sizes(axes, taken=taken) | fixed)


def dynamic_shapes(
    source: ModelSource, profile: Mapping[str, ShapeRange]
) -> tuple[tuple[dict[int, "torch.export.Dim"], ...]]:
    """Return torch.export's ``dynamic_shapes`` for ``SourceModel.module``: one shared ``Dim`` per named axis.

    An axis whose smallest and largest size are equal in ``profile`` (a static build) stays fixed.
    """
    import torch

    dims = {
        n: torch.export.Dim(n, min=e.min, max=e.max)
        for n, e in extents(source.inputs, profile).items()
        if e.min < e.max
    }
    return (
        tuple({a: dims[d] for a, d in enumerate(s.dims) if isinstance(d, str) and d in dims} for s in source.inputs),
    )


@contextlib.contextmanager
def exportable_layers(module: "torch.nn.Module") -> Iterator["torch.nn.Module"]:
    """Lend the module with every transformers model inside switched to the layers that can be written as ONNX.

    Attention is ``eager``: the default (sdpa) exports a guard against fully masked rows that keeps runtimes from fusing
    it. Experts are ``batched_mm``: the default is an operator of transformers' own. A config that has ``onnx_export``
    says itself what it is for.
    """
    models = [part for part in module.modules() if hasattr(part, "set_attn_implementation")]
    configs = {id(part.config): part.config for part in models}
    # Not set back by the same functions: they refuse what some parts had from the start.
    before = {key: dict(vars(config)) for key, config in configs.items()}
    try:
        for part in models:
            part.set_attn_implementation("eager")
            if hasattr(part, "set_experts_implementation"):
                part.set_experts_implementation("batched_mm")
        for config in configs.values():
            if getattr(config, "onnx_export", None) is False:
                config.onnx_export = True
        yield module
    finally:
        for key, config in configs.items():
            vars(config).update(before[key])


@contextlib.contextmanager
def whole_recurrent_layers() -> Iterator[None]:
    """Keep LSTM and GRU layers whole while torch.export traces: as it comes, it unrolls them for one length.

    Source: torch/export/_patches.py (2.11 and later), which torch.onnx.export uses too, but after its own tracing.
    """
    from torch.export import _patches

    with _patches.register_lstm_while_loop_decomposition(), _patches.register_gru_while_loop_decomposition():
        yield


def write_onnx(model: "SourceModel", path: Path, *, opset: int) -> None:
    """Export the loaded module with torch.onnx (dynamo), weights in ``model.onnx.data`` beside the file.

    Raises:
        StageError: torch.onnx could not export it.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from accel.exporters import torch_layers, torch_operators

    if model.module is None:
        raise TypeError("an ONNX source is copied, not exported")
    source = model.source
    profile = profile_of(source.inputs, extents(source.inputs, source.profile))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Four warnings that torchvision's operators are missing: no model that loads here uses one.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    try:
        with (
            exportable_layers(model.module) as module,
            whole_recurrent_layers(),
            torch_layers.exportable_forwards(module),
            # The strides that attention has once torch.onnx takes it apart: a view made on others would be refused.
            sdpa_kernel(SDPBackend.MATH),
            warnings.catch_warnings(action="ignore"),
        ):
            # torch's own deprecations and its note that a shared axis keeps one name are no concern of the user.
            program = torch.onnx.export(
                module,
                example_inputs(source, trace_shapes(source, profile)),
                dynamo=True,
                opset_version=opset,
                input_names=[s.name for s in source.inputs],
                output_names=[s.name for s in source.outputs],
                dynamic_shapes=dynamic_shapes(source, profile),
                custom_translation_table=torch_operators.TABLE,
                verbose=False,
            )
            program.save(str(path), external_data=True)
    except AccelError:
        raise
    except Exception as error:
        raise unexportable(f"torch.onnx could not export {source.name}", error) from error


def unexportable(what: str, error: BaseException) -> StageError:
    """Explain why torch could not trace a model: the cause, the line of the model's code, and the way around."""
    from accel.exporters.determinism import line_of

    # torch wraps the reason in advice; the innermost error is what the user can fix.
    chain = [error]
    while (inner := chain[-1].__cause__) is not None:
        chain.append(inner)
    root = chain[-1]
    text = str(root).strip() or "no message"
    cause = f"{type(root).__name__}: {text.splitlines()[0]}"
    stacks = [traceback.extract_tb(e.__traceback__) for e in reversed(chain)]
    # Torch translates what it traced: of an operator that ONNX lacks, only the node in its frames knows the line.
    nodes = [frame.f_locals.get("node") for e in chain for frame, _ in traceback.walk_tb(e.__traceback__)]
    for told in [text, *(str(getattr(node, "meta", {}).get("stack_trace")) for node in nodes)]:
        found = re.findall(r'File "([^"]+)", line (\d+), in ([^\n]*)\n\s*(.*)', told)
        stacks.append(traceback.StackSummary.from_list(found))
    place = next((p for p in map(line_of, stacks) if ".py:" in p), None)
    at = f" at {place}" if place else ""
    if re.search(r"[Dd]ata-dependent|\.item\(\)|[Dd]ynamic control flow", f"{type(root).__name__} {text}"):
        return StageError(
            f"{what}: the model decides by the values of a tensor{at}, and a graph takes one way only ({cause})",
            fix="write torch.where(condition, a, b) where both can be computed, torch.cond(condition, f, g, (x,)) "
            "where only one may be, or decide before or after the model",
        )
    if absent := re.match(r"No ONNX function found for <OpOverload\(op='([^']+)'", text):
        return StageError(
            f"{what}: ONNX has no operator for {absent[1]}{at}",
            fix="write that part of forward with other operators, or choose targets that take the model itself: torch, "
            "aoti",
        )
    if "onstraints violated" in text or "ConstraintViolation" in type(root).__name__:
        ties = re.findall(r"^\s*(\S+ = .+)$", text, re.MULTILINE)
        told = "; ".join(ties) or text.splitlines()[-1]
        return StageError(
            f"{what}: its sizes are tied, and each axis was to vary alone{at}: {told}",
            fix="fix these axes by the same --min-shape, --shape and --max-shape, or make one from the other inside "
            "forward",
        )
    return StageError(
        f"{what}{at}: {cause}",
        fix="rewrite that part of forward, or fix the axis it needs with equal --min-shape and --max-shape; the log "
        "has all that torch says",
    )
