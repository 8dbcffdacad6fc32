"""A built variant as something to call: the arguments and the result of the model that it was built from.

Knows artifacts and their sessions. Imports NumPy, the core of accel and the builders' own modules, so that a process
needs nothing but the runtime of what it loads.
"""

import asyncio
import contextlib
import dataclasses
import functools
import operator
import os
import queue
import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from accel.api.frameworks import given
from accel.builders import Mode, Session, targets
from accel.core import document, environments, hardware
from accel.core.calls import CallForm, Outputs, is_tensor, leaves
from accel.core.errors import (
    InputError,
    SampleError,
    StageError,
    UnavailableError,
    UnprovedWarning,
    UsageError,
    raised_as,
)
from accel.core.feeds import fit_inputs
from accel.core.values import Artifact, Parity, TensorSpec
from accel.triton import manifest as manifests
from accel.triton.grouping import Grouping, answered

_LOADED: "weakref.WeakSet[Model]" = weakref.WeakSet()
BEST, VARIANTS = "best", "variants"
FEW, LAYOUTS = 256, 1024
"""Numbers of an input that are looked at one by one, and layouts of feeds that a model keeps in mind, at most."""


class Model(contextlib.AbstractContextManager["Model"]):
    """A variant, loaded into this process; call it as the model that it was built from.

    Arguments may be torch tensors, TensorFlow tensors or arrays, alone or nested as they were in the samples; the
    result holds what was given. Any thread may call it. Pickling one keeps the path and loads it again.

    Attributes:
        path: the repository it was loaded from.
        id: of the variant.
        inputs / outputs: names, dtypes and dims.
    """

    def __init__(
        self,
        path: Path,
        artifact: Artifact,
        folder: Path,
        *,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        form: CallForm | None = None,
        grouping: Grouping | None = None,
        threads: int | None = None,
        mode: Literal["latency", "throughput"] = "latency",
    ) -> None:
        self.path, self.id = path, artifact.variant.id
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        if mode not in get_args(Mode):
            raise UsageError(f"mode={mode!r}: expected one of {', '.join(map(repr, get_args(Mode)))}")
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise UsageError(f"threads={threads!r}: expected a number of threads, 1 or more, or None for all")
        self._how = (threads, mode)
        self._grouping = grouping
        self._form = form or CallForm(tuple(spec.name for spec in inputs))
        self._built = Outputs if self._form.result is None else self._form.result.build
        with raised_as(InputError, TypeError, f"{path} describes outputs of no known dtype", fix="emit it again"):
            dtypes = {spec.name: np.dtype(self._form.dtypes.get(spec.name, spec.dtype)) for spec in outputs}
        how: dict[str, Any] = {"threads": threads or hardware.cpu_threads(), "mode": mode}
        self._session = _opened(artifact, folder, **how)
        builder = targets.discover()[artifact.variant.target.name]
        self._packed: Session | None = None
        self._packing = threading.Lock()
        mask = grouping.mask if grouping is not None else None
        self._open_packed = functools.partial(builder.open_packed, artifact, folder, mask=mask or "", **how)
        promised, profile = {spec.name: spec for spec in inputs}, artifact.variant.profile
        if odd := [s.name for s in self._session.inputs if s.name not in promised or s.name not in profile]:
            self._session.close()
            raise InputError(f"{path} does not describe the input {odd[0]!r} of its model", fix="emit it again")
        self._specs = {s.name: _inner(s, promised[s.name]) for s in self._session.inputs}
        self._first = next(iter(self._specs))
        self._layouts: dict[tuple[int, ...], tuple[list[Any], list[tuple[str, np.dtype]]]] = {}
        self._sizes = [(n, tuple(profile[n].min), tuple(profile[n].max), profile[n].multiples) for n in self._specs]
        given = {spec.name: np.dtype(spec.dtype) for spec in self._session.outputs}
        self._dtypes = [] if list(dtypes.items()) == list(given.items()) else list(dtypes.items())
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(self._session.slots):
            self._free.put(slot)
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._closed = self._closing = False
        self._gone = ("is closed", "load it again")
        _LOADED.add(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the variant.

        Returns:
            What the model itself returns: a tensor, or tensors in tuples, lists, dicts or objects of its own class
            where this process has that class, else ``Outputs``. Of torch where torch tensors were given, else NumPy.

        Raises:
            UsageError: an argument that the model does not take, or one that was optimised with another value.
            SampleError: an input is missing or does not fit: its rank, its dtype, or sizes that were not proved.
            StageError: the runtime failed, or the model is closed.
        """
        if args:
            kwargs = self._named(args, kwargs)
        feed, like = self._plain(kwargs), None
        if feed is None:
            given, like = self._feed(kwargs)
            feed = self._plain(given) or self._fitted(given)
        outputs = self._run(feed)
        if like is not None:
            outputs = {name: like(value) for name, value in outputs.items()}
        return self._built(outputs)

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run on arrays by input name, and return arrays by output name.

        Raises:
            SampleError / StageError: as for a call.
        """
        return self._run(self._arrays(feed))

    def _run(self, fitted: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self._closed:
            raise self._refusal()
        slot = self._free.get()
        try:
            if self._closed:
                raise self._refusal()
            found = self._session.call(fitted, slot=slot)
        finally:
            self._free.put(slot)
        return {name: found[name].astype(dtype, copy=False) for name, dtype in self._dtypes} if self._dtypes else found

    def run_all(self, requests: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        """Run on many requests of different sizes, in as few calls and with as little padding as that takes.

        Rows are trimmed by the mask, and those of similar length share a call, where the proof says that padding and
        neighbours change no answer (docs/traffic.md); without a mask those of one shape do. Texts share rows where that
        was found to be faster: for these the model is loaded once more. Else each request is a call of its own.

        Args:
            requests: arrays by input name, batch axis included.

        Returns:
            For each request its arrays by output name, in the request's shape: 0 where the mask shows nothing more.

        Raises:
            SampleError / StageError: as for a call.
        """
        if (how := self._grouping) is None:
            return [self.run(request) for request in requests]
        feeds = dict(enumerate(map(self._arrays, requests)))
        run = self.run if how.packing is None else self._run_packed
        found = answered(feeds, tuple(self._specs.values()), self.outputs, how, run)
        return [found[number] for number in feeds]

    def _run_packed(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run rows that several texts share, in a session of their own: it is loaded with the first, and kept."""
        with self._packing:
            if self._closed:
                raise self._refusal()
            if self._packed is None:
                self._packed = self._open_packed()
            return self._packed.run(feed)

    async def async_call(self, *args: Any, **kwargs: Any) -> Any:
        """Run the variant on a thread of its own, and let the event loop go on."""
        with self._lock:
            if self._closing or self._closed:
                raise self._refusal()
            pool = self._pool = self._pool or ThreadPoolExecutor(self._session.slots, thread_name_prefix="accel-call")
        try:
            called = asyncio.get_running_loop().run_in_executor(pool, lambda: self(*args, **kwargs))
        except RuntimeError as error:  # the pool was shut down in between
            raise self._refusal() from error
        return await called

    def _refusal(self) -> StageError:
        """Return why no call is answered any more."""
        why, fix = self._gone
        return StageError(f"{self.id} {why}", fix=fix)

    def close(self) -> None:
        """Give memory and threads back, once the calls that run are done. A second time does nothing."""
        with self._lock:  # not held while calls end: an event loop that is about to call waits for it
            if self._closing or self._closed:
                return
            self._closing, pool, self._pool = True, self._pool, None
        if pool is not None:
            pool.shutdown()
        for _ in range(self._session.slots):
            self._free.get()
        self._closed = True
        self._session.close()
        with self._packing:
            if self._packed is not None:
                self._packed.close()
        for slot in range(self._session.slots):
            self._free.put(slot)

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _loaded_again, (self.path, *self._how)

    def __repr__(self) -> str:
        takes = ", ".join(f"{s.name}: {s.dtype}{list(s.dims)}" for s in self.inputs)
        return f"<accel.Model {self.id} ({takes})>"

    def _named(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        names = self._form.parameters
        if len(args) > len(names):
            raise UsageError(f"{self.id} takes {len(names)} arguments {list(names)}, and {len(args)} were given")
        named = dict(zip(names, args, strict=False))
        if twice := sorted(named.keys() & kwargs.keys()):
            raise UsageError(f"argument {twice[0]!r} was given twice")
        return named | kwargs

    def _feed(self, kwargs: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], Any]:
        """Return the arrays that arguments hold, and what makes an output like them."""
        specs, feed, like = self._specs, {}, None
        for argument, value in kwargs.items():
            if argument in specs and value is not None:
                feed[argument], like = given(value, like)
                continue
            for name, leaf in leaves(value, argument):
                if name in specs and leaf is not None:
                    feed[name], like = given(leaf, like)
                else:
                    self._check_constant(name, leaf)
        return feed, like

    def _check_constant(self, name: str, value: Any) -> None:
        """Refuse an argument that the model was not optimised with; None stands for an argument left out."""
        known = self._form.constants
        if value is None or (name in known and not is_tensor(value) and bool(known[name] == value)):
            return
        if name in known or name in self._form.parameters:
            found = f"{known[name]!r}" if name in known else "nothing"
            raise UsageError(
                f"argument {name!r} of {self.id} is {_short(value)}: it was optimised with {found}",
                fix=f"leave it out, or optimise with samples that have it; its inputs are {list(self._specs)}",
            )
        raise UsageError(f"{self.id} has no argument {name!r}", fix=f"its inputs are {list(self._specs)}")

    def _arrays(self, feed: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
        """Return what a feed holds as arrays that the session takes."""
        given = {name: np.asarray(value) for name, value in feed.items()}
        return self._plain(given) or self._fitted(given)

    def _plain(self, feed: Mapping[str, Any]) -> Mapping[str, np.ndarray] | None:
        """Return arrays as the session takes them, if all are laid out as an earlier feed and hold what they may.

        The model leaves the processor's caches empty, so each function of Python's or NumPy's that is called costs some
        10 microseconds, a reduction 25: few numbers are looked at one by one.
        """
        try:
            layouts, casts = self._layouts[feed[self._first].shape]
            if len(feed) != len(layouts):
                return None
            for name, shape, dtype, strides, low, high, few in layouts:
                value = feed[name]
                if type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype:
                    return None
                if value.strides != strides:
                    return None
                if low is not None:
                    for number in value.ravel().tolist() if few else (value.min().item(), value.max().item()):
                        if not low <= number <= high:
                            return None
        except (KeyError, AttributeError, TypeError):
            return None
        return {**feed, **{name: np.asarray(feed[name], dtype, order="C") for name, dtype in casts}} if casts else feed

    def _fitted(self, feed: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Hold arrays against the inputs, and sizes against those that were proved; keep how they are laid out."""
        feed = {name: value if value.ndim else value.reshape(1) for name, value in feed.items()}
        fitted = fit_inputs(feed, self._specs.values())
        for name, low, high, steps in self._sizes:
            shape = fitted[name].shape
            outside = any(map(operator.gt, shape, high)) or any(map(operator.lt, shape, low))
            if outside or any(map(operator.mod, shape, steps)):
                multiples = f" in multiples of {steps}" if max(steps, default=1) > 1 else ""
                raise SampleError(
                    f"input {name!r} has shape {shape}, and {low} to {high}{multiples} were proved",
                    fix="optimise with samples of that shape, or with min_shapes= and max_shapes=",
                )
        casts = [(name, value.dtype) for name, value in fitted.items() if value is not feed[name]]
        rounded = any(dtype.kind == "f" and dtype != feed[name].dtype for name, dtype in casts)
        if not rounded and all(value.size for value in feed.values()) and len(self._layouts) < LAYOUTS:
            self._layouts[feed[self._first].shape] = [_layout(feed[s.name], s) for s in self._specs.values()], casts
        return fitted


def load(path: str | Path, *, threads: int | None = None, mode: Literal["latency", "throughput"] = "latency") -> Model:
    """Load what a repository serves, to call it in this process.

    Nothing is imported but NumPy, the core of accel and the runtime of the variant. Of a variant that did not pass its
    gate it warns (``UnprovedWarning``), with the reasons.

    Args:
        path: a repository that accel emitted (``runs/bert/best/cpu``), a run directory, for its best variant, or
            ``variants/<id>`` of one.
        threads: CPU threads of the runtime; all that this process may use when None.
        mode: ``latency`` for one call at a time on all threads, ``throughput`` for calls from several threads at once.

    Raises:
        InputError: no repository lies there, or files of it are missing.
        UnavailableError: the runtime is not here, or this is not the interpreter that has it.
    """
    root = Path(path)
    if root.is_file():
        why = f"{root} is a file: expected a repository or the directory of a run"
        raise InputError(why, fix="accel convert, or accel.optimize, makes one of a model")
    kept: manifests.Manifest | document.RunModel
    parity: Parity | None
    grouping = None
    if root.parent.name == VARIANTS and (root.parents[1] / document.FILENAME).is_file():
        root = folder = root.resolve()
        kept, record = _of_run(folder)
        artifact, parity = record.to_artifact(), record.parity
        inputs, outputs = kept.inputs, kept.outputs
    else:
        repositories = sorted((root / BEST).glob(f"*/{manifests.FILENAME}"))
        if repositories and not (root / manifests.FILENAME).is_file():
            root = repositories[-1].parent  # of best/cpu and best/cuda the GPU's
        kept = manifests.read(root)
        _, folder = manifests.holder(root, kept)
        root, artifact, grouping = root.resolve(), kept.artifact, kept.grouping
        inputs, outputs, parity = kept.model_inputs, kept.model_outputs, kept.parity
    if parity is not None and not parity.passed:
        why = f"{artifact.variant.id} did not pass its gate: {'; '.join(parity.reasons)}"
        warnings.warn(why, UnprovedWarning, stacklevel=2)
    return Model(
        root,
        artifact,
        folder,
        inputs=inputs,
        outputs=outputs,
        form=kept.call,
        grouping=grouping,
        threads=threads,
        mode=mode,
    )


def _of_run(folder: Path) -> tuple[document.RunModel, document.VariantRecord]:
    """Return what a run says of its model and of a variant, whether or not there is a repository of it."""
    run = document.read(folder.parents[1])
    known = {v.id: v for v in run.variants}
    record = known.get(folder.name)
    if record is None:
        raise InputError(f"the run {folder.parents[1]} has no variant {folder.name}", fix=f"it has {list(known)}")
    return run.model, record


def _forked() -> None:
    """Refuse calls in a forked process: the runtimes' threads are not in it, and a call would wait for ever."""
    for model in _LOADED:
        model._closed, model._gone = True, ("was loaded before a fork", "accel.load it in the process that calls it")


os.register_at_fork(after_in_child=_forked)


def _loaded_again(path: Path, threads: int | None, mode: Literal["latency", "throughput"]) -> Model:
    return load(path, threads=threads, mode=mode)


def _opened(artifact: Artifact, folder: Path, threads: int, mode: Literal["latency", "throughput"]) -> Session:
    """Open the artifact's session, or say what is missing and where it is."""
    target = artifact.variant.target
    builder = targets.discover().get(target.name)
    if builder is None:
        raise UnavailableError(f"no builder here offers the target {target.name!r}", fix="install its plug-in")
    wanted = " ".join(f"{name}=={version}" for name, version in sorted(artifact.built.versions.items()))
    try:
        return builder.open(artifact, folder, threads=threads, mode=mode)
    except (UnavailableError, ImportError) as error:
        apart = builder.environment(target)
        fix = f"it was built with {wanted}: pip install {wanted}"
        if apart != environments.MAIN:
            fix = f"its runtime is in accel's environment {apart!r}: call it from {environments.python(apart)}"
        raise UnavailableError(
            f"{artifact.variant.id} cannot be loaded here: {getattr(error, 'message', error)}", fix=fix
        ) from error


def _inner(built: TensorSpec, promised: TensorSpec) -> TensorSpec:
    """Return an input as the artifact takes it, with the axis names and the range that callers were promised."""
    within = promised.range
    if within is None and built.dtype != promised.dtype and "int" in promised.dtype:
        limits = np.iinfo(promised.dtype)
        within = int(limits.min), int(limits.max)
    return dataclasses.replace(built, dims=promised.dims, range=within)


def _layout(value: np.ndarray, spec: TensorSpec) -> tuple[Any, ...]:
    """Return how an array is laid out, what its numbers lie between (None: its dtype says it), and if they are few."""
    limits: tuple[Any, Any] = (None, None)
    if value.dtype.kind == "f":
        limits = float(np.finfo(value.dtype).min), float(np.finfo(value.dtype).max)
    elif value.dtype.kind in "iu" and (spec.range is not None or value.dtype != spec.dtype):
        info = np.iinfo(spec.dtype)
        low, high = spec.range or (info.min, info.max)
        limits = max(low, int(info.min)), min(high, int(info.max))
    return spec.name, value.shape, value.dtype, value.strides, *limits, value.size <= FEW


def _short(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if is_tensor(value) else repr(value)[:80]
