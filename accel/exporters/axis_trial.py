"""What the axes of a model do, found by running it at a few small sizes.

The names that a file gives its axes are hints: batch axes are called ``N`` or ``unk__214``, two axes share ``?``, and
outputs have names that say nothing. What a model does with other sizes is certain: which axes must be of one size,
which take multiples of a number only, which one counts items that do not see each other, and how outputs follow.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from accel.core.errors import StageError, UsageError
from accel.core.feeds import Feed
from accel.core.values import ShapeRange, TensorSpec
from accel.exporters.axes import extents, odd_sizes, profile_of, shapes_at
from accel.exporters.probe import example_arrays

Run = Callable[[Feed], Mapping[str, np.ndarray]]
"""Gives the outputs for arrays by input name.

Raises:
    StageError: the model does not take these sizes.
"""
RTOL, ATOL = 1e-3, 1e-4
"""What the order of sums may change between an item alone and among others; ``ATOL`` is relative to the largest value.

Kernels of another batch size add in another order.
"""
LOOSE, COARSE = 10, 100
"""How much more that is where an axis is taken for a batch already, and in half precision. Sums in which large terms
cancel differ by more, items that see each other by far more; BF16 has three digits, of which a network loses one."""
TIED = 4
"""How many times as fast as another one an axis that is tied to it may grow."""


@dataclass(frozen=True, slots=True)
class Studied:
    """A model's contract, as its behaviour shows it.

    Attributes:
        notices: one sentence for each thing that the user would not expect.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    profile: Mapping[str, ShapeRange]
    notices: tuple[str, ...]


def study(
    run: Run,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    profile: Mapping[str, ShapeRange],
    *,
    given: Collection[str],
    data_dependent: bool,
) -> Studied:
    """Run a model at small sizes and return its contract with axes named, bounded and tied as it behaves.

    The axis of items that do not see each other is called ``batch``, and no other that leads an input. An axis that
    takes its smallest size only becomes fixed, unless it is ``given``. Output axes are sizes, names of input axes, or
    expressions in them (``height/4``).

    Args:
        outputs: as the file declares them; their own axis names are kept where no expression is found.
        given: axes whose sizes the user chose.
        data_dependent: whether sizes may follow from values: then no size that was merely seen is taken for fixed.

    Raises:
        StageError: the model does not run at its smallest sizes, or at others that the user asked for.
        UsageError: an axis takes multiples only, and sizes that the user gave are none.
    """
    trial = _Trial(run, inputs, profile)
    trial.start()
    for name in list(trial.axes):
        if name in trial.axes:
            trial.try_axis(name, fixable=name not in given)
    trial.runs({n: e.opt for n, e in trial.axes.items()})
    trial.name_batch(trial.batch())
    found = trial.outputs(outputs, data_dependent)
    return Studied(tuple(trial.inputs), found, profile_of(trial.inputs, trial.axes), tuple(trial.notices))


def settle(
    run: Run, inputs: Sequence[TensorSpec], profile: Mapping[str, ShapeRange], *, given: Collection[str]
) -> tuple[tuple[TensorSpec, ...], dict[str, ShapeRange], list[str]]:
    """Bound and tie the axes of a model that does not take every size of its profile; a batch axis stays as it is.

    A model that runs at its smallest sizes, at the next ones and at its largest stays as it is. Of another one, an axis
    begins and ends where the model does, and takes the multiples that the model takes.

    Args:
        given: axes whose sizes the user chose.

    Returns:
        The inputs, their profile, and one sentence for each thing that the user would not expect.

    Raises:
        StageError: the model does not run at its typical sizes, or at others that the user asked for.
        UsageError: an axis takes multiples only, and sizes that the user gave are none.
    """
    trial = _Trial(run, inputs, profile)
    axes = {n: e for n, e in trial.axes.items() if n != "batch" and e.min < e.max}
    near = [{n: size} for n, e in axes.items() for k in (1, 2, 3) if (size := e.min + k * e.multiple) <= e.max]
    if axes and not all(map(trial.runs, [{}, *near, {n: e.max for n, e in axes.items()}])):
        free = [name for name in axes if name not in given]
        trial.start_lower(free)
        trial.begin(free)
        for name in axes:
            if name in trial.axes:
                trial.try_axis(name, fixable=name in free)
        for name in free:
            if name in trial.axes:
                trial.end(name)
    return tuple(trial.inputs), profile_of(trial.inputs, trial.axes), trial.notices


def count_items(
    run: Run, inputs: Sequence[TensorSpec], profile: Mapping[str, ShapeRange], *, coarse: bool = False
) -> tuple[tuple[TensorSpec, ...], dict[str, ShapeRange], list[str]]:
    """Leave the name ``batch`` to an axis whose items do not see each other: only these may come from many requests.

    Args:
        coarse: the model computes in half precision, where an item among others is answered a little differently.

    Returns:
        The inputs, their profile, and what to tell the user where the leading axis is no batch.
    """
    trial = _Trial(run, inputs, profile)
    e, factor = trial.axes.get("batch"), COARSE if coarse else LOOSE
    if e is None or 2 * e.min > e.max or trial._independent(["batch"], factor=factor, whole=True) is not False:
        return tuple(inputs), dict(profile), []
    trial.name_batch(())
    return tuple(trial.inputs), profile_of(trial.inputs, trial.axes), trial.notices


class _Trial:
    """One model under trial: what is known of its axes so far."""

    def __init__(self, run: Run, inputs: Sequence[TensorSpec], profile: Mapping[str, ShapeRange]) -> None:
        self.run = run
        self.inputs = list(inputs)
        self.axes = extents(inputs, profile)
        self.notices: list[str] = []
        self.seen: list[tuple[dict[str, int], dict[str, tuple[int, ...]]]] = []

    def sizes(self, other: Mapping[str, int]) -> dict[str, int]:
        """Return the smallest size of every axis, with those of ``other`` in their place."""
        return {n: e.min for n, e in self.axes.items()} | dict(other)

    def start(self) -> None:
        """Run the model at its smallest sizes."""
        try:
            self.record(self.sizes({}))
        except StageError as error:
            typical = {n: e.opt for n, e in self.axes.items()}
            if typical == self.sizes({}) or not self.runs(typical):
                raise
            places = ", ".join(f"{n} {s}" for n, s in shapes_at(self.inputs, self.sizes({})).items())
            raise StageError(
                f"the model runs at its typical shapes, and not at its smallest ({places}): {error.message}",
                fix="raise --min-shape",
            ) from error

    def start_lower(self, free: Collection[str]) -> None:
        """Let a ``free`` axis be typically shorter, where the model does not take what is typical."""
        typical = {n: e.opt for n, e in self.axes.items()}
        if self.runs(typical):
            return
        for name in free:
            e = self.axes[name]
            size = e.opt
            while size > e.min:
                size = max(e.min, size // 2 // e.multiple * e.multiple)
                if self.runs(typical | {name: size}):
                    self.axes[name] = dataclasses.replace(e, opt=size)
                    return
        self.record(typical)

    def begin(self, free: Collection[str]) -> None:
        """Let each ``free`` axis begin at the least size that the model takes, the others being typical."""
        typical = {n: e.opt for n, e in self.axes.items()}
        for name in free:
            e = self.axes[name]
            if not self.runs(typical | {name: e.min}):
                least = self._border(typical, name, e.opt, e.min)
                self.axes[name] = dataclasses.replace(e, min=least)
                self.notices.append(f"{self._place(name)} begins at {least}: the model takes nothing shorter")
        self.start()

    def end(self, name: str) -> None:
        """Let an axis end at the largest size that the model takes."""
        e = self.axes[name]
        if e.min < e.max and not self.runs({name: e.max}):
            most = self._border(self.sizes({}), name, e.min, e.max)
            self.axes[name] = dataclasses.replace(e, opt=min(e.opt, most), max=most)
            self.notices.append(f"{self._place(name)} ends at {most}: the model takes nothing longer")

    def _border(self, others: Mapping[str, int], name: str, runs: int, fails: int) -> int:
        """Return the last size on the way from one at which the model runs to one at which it fails."""
        step = self.axes[name].multiple
        runs, fails = runs // step, fails // step
        while abs(fails - runs) > 1:
            middle = (runs + fails) // 2
            if self.runs({**others, name: middle * step}):
                runs = middle
            else:
                fails = middle
        return runs * step

    def runs(self, other: Mapping[str, int]) -> bool:
        """Say whether the model takes these sizes, and remember what it gave."""
        try:
            self.record(self.sizes(other))
        except StageError:
            return False
        return True

    def record(self, sizes: dict[str, int]) -> None:
        """Run the model at these sizes and remember what it gave."""
        found = self.run(example_arrays(self.inputs, shapes_at(self.inputs, sizes)))
        shapes = {name: value.shape for name, value in found.items()}
        if self.seen and any(len(self.seen[0][1][n]) != len(s) for n, s in shapes.items()):
            raise StageError(f"the model's outputs change their rank with the inputs' sizes: {shapes} at {sizes}")
        self.seen.append((sizes, shapes))

    def try_axis(self, name: str, *, fixable: bool) -> None:
        """Find which sizes an axis takes, alone or together with another one, and set its extent accordingly.

        Two sizes that follow each other show that any size does: no number above 1 divides both.
        """
        e = self.axes[name]
        if e.min == e.max:
            return
        alike = [other for other, its in self.axes.items() if other != name and its == e]
        refused: list[int] = []
        for step in [n for n in range(e.multiple, e.min + 1) if n % e.multiple == 0 and e.min % n == 0]:
            tried = [
                n for n in (e.min + step, e.min + 2 * step, e.min + 3 * step)[:: 2 if step > 1 else 1] if n <= e.max
            ]
            tried = tried[:2] or [e.max]
            for partner in (None, *alike):
                tied = {name, partner} - {None}
                if all(self.runs({str(axis): size for axis in tied}) for size in tried):
                    self._settle(name, step, tried, refused, partner, fixable=fixable)
                    return
            refused.append(tried[0])
        if fixable:
            self.notices.append(f"{self._place(name)} takes {e.min} only, found by trial: it is fixed")
            self.inputs = [
                dataclasses.replace(s, dims=tuple(e.min if d == name else d for d in s.dims)) for s in self.inputs
            ]
            del self.axes[name]
            return
        if followed := self._follower(name):
            raise StageError(
                f"{followed}, found by trial: each axis was to vary alone",
                fix="fix both axes by the same --min-shape, --shape and --max-shape, or make one input's size from the "
                "other's inside forward",
            )
        raise StageError(
            f"{self._place(name)} takes {e.min}, and not {', '.join(map(str, refused))}",
            fix="a size inside the graph is fixed: fix the axis too, by the same --min-shape, --shape and --max-shape, "
            "or export the model again",
        )

    def _follower(self, name: str) -> str | None:
        """Say which axis must grow with this one, and by how much: one that is twice as long, or longer by one."""
        e = self.axes[name]
        for other, its in self.axes.items():
            for by in range(1, TIED + 1) if other != name else ():
                if all(self.runs({name: e.min + n, other: its.min + by * n}) for n in (1, 2)):
                    rest = its.min - by * e.min
                    size = f"{by}*{name}" if by > 1 else name
                    return f"{self._place(other)} must be {size}{f'{rest:+d}' if rest else ''}"
        return None

    def _settle(
        self, name: str, step: int, ran: list[int], refused: list[int], partner: str | None, *, fixable: bool
    ) -> None:
        e = self.axes[name]
        if step > e.multiple:
            words = f"{self._place(name)} takes multiples of {step} only: it runs at {e.min} and {ran[0]}, not at "
            words += str(refused[-1])
            if fixable:
                e = dataclasses.replace(e, opt=e.opt // step * step, max=e.max // step * step)
            if wrong := [n for n in (e.opt, e.max) if n % step]:
                low = wrong[0] // step * step
                raise UsageError(f"{words}; {wrong[0]} is not one", fix=f"take {low} or {low + step}")
            self.axes[name] = dataclasses.replace(e, multiple=step)
            self.notices.append(words)
        if partner is not None:
            kept, gone = (partner, name) if partner == "batch" else (name, partner)
            self.notices.append(f"{self._place(gone)} must be as long as axis {kept!r}: they are one axis")
            self.axes[kept] = self.axes[name]
            self.rename({gone: kept})
        else:
            far = odd_sizes({name: self.axes[name]})[name]
            if far not in (e.min, *ran) and not self.runs({name: far}):
                if not fixable:
                    raise StageError(
                        f"{self._place(name)} takes {', '.join(map(str, (e.min, *ran)))}, and not {far}",
                        fix="give --min-shape and --max-shape between which the model takes every size",
                    )
                self.end(name)

    def _place(self, name: str) -> str:
        spec = next(s for s in self.inputs if name in s.dims)
        return f"axis {spec.dims.index(name)} ({name!r}) of input {spec.name!r}"

    def rename(self, names: Mapping[str, str]) -> None:
        """Give axes other names; those that get the same one become one axis."""

        def renamed(dim: int | str) -> int | str:
            return names.get(dim, dim) if isinstance(dim, str) else dim

        self.inputs = [dataclasses.replace(s, dims=tuple(map(renamed, s.dims))) for s in self.inputs]
        self.axes = {names.get(n, n): e for n, e in self.axes.items()}
        seen = []
        for sizes, shapes in self.seen:
            together = {new: {sizes[n] for n in sizes if names.get(n, n) == new} for new in self.axes}
            if all(len(found) == 1 for found in together.values()):
                seen.append(({new: found.pop() for new, found in together.items()}, shapes))
        self.seen = seen

    def outputs(self, declared: Sequence[TensorSpec], data_dependent: bool) -> tuple[TensorSpec, ...]:
        """Return the outputs with the dims that all runs agree with."""
        specs = []
        for spec in declared:
            dims: list[int | str] = []
            for axis in range(len(self.seen[0][1][spec.name])):
                own = spec.dims[axis] if axis < len(spec.dims) else None
                points = [({n: at[n] for n in self.axes}, shapes[spec.name][axis]) for at, shapes in self.seen]
                found = _follow(points)
                if found is None or (isinstance(found, int) and isinstance(own, str) and data_dependent):
                    free = isinstance(own, str) and own not in self.axes
                    found = str(own) if free else f"{spec.name}_{axis}"
                dims.append(found)
            specs.append(dataclasses.replace(spec, dims=tuple(dims)))
        return tuple(specs)

    def batch(self) -> tuple[str, ...]:
        """Return the leading axes that together count items which do not see each other."""
        leading = list(dict.fromkeys(d for s in self.inputs for d in s.dims[:1] if isinstance(d, str)))
        if len({self.axes[name] for name in leading}) == 1 and self._independent(leading):
            return tuple(leading)
        alone = [(name,) for name in leading if len(leading) > 1 and self._independent([name])]
        return alone[0] if len(alone) == 1 else ()

    def _independent(self, names: Sequence[str], *, factor: int = 1, whole: bool = False) -> bool | None:
        """Say whether items answer alone as they do among two and three; None where the model does not take these.

        Args:
            factor: of what their answers may differ by.
            whole: outputs that do not lead with the axis say nothing: no server merges requests of such a model.
        """
        e = self.axes[names[0]]
        count = 3 if 3 * e.min <= e.max else 2
        if count * e.min > e.max:
            return False
        sizes = self.sizes(dict.fromkeys(names, count * e.min))
        feed = example_arrays(self.inputs, shapes_at(self.inputs, sizes))
        try:
            together = self.run(feed)
            for part in (slice(e.min, 2 * e.min), slice(e.min, None)):
                size = len(range(count * e.min)[part])
                chosen = {s.name: _along(feed[s.name], [d in names for d in s.dims], part) for s in self.inputs}
                for name, alone in self.run(chosen).items():
                    if (among := together.get(name)) is None:
                        return None  # whoever reads the outputs says so
                    if among.ndim != alone.ndim:
                        return False
                    places = [a != b for a, b in zip(among.shape, alone.shape, strict=True)]
                    if whole and not (places[:1] == [True] and len(alone) == size):
                        continue
                    if sum(places) != 1 or not _same(_along(among, places, part), alone, factor=factor):
                        return False
        except StageError:
            return None
        return True

    def name_batch(self, names: Sequence[str]) -> None:
        """Call the batch ``batch``, and nothing else that leads an input."""
        taken = [] if "batch" in names else [n for n in self.axes if n == "batch" and (names or self._leads(n))]
        for name in taken:
            spec = next(s for s in self.inputs if name in s.dims)
            if self._leads(name):
                self.notices.append(
                    f"{self._place(name)} is not a batch: items change each other's answers, or outputs lack that axis"
                )
            self.rename({name: f"{spec.name}_{spec.dims.index(name)}"})
        self.rename(dict.fromkeys(names, "batch"))
        if len(names) > 1:  # what was seen with only one of them longer says nothing now
            e = self.axes["batch"]
            self.runs({"batch": 2 * e.min})
            self.runs({"batch": min(3 * e.min, e.max)})

    def _leads(self, name: str) -> bool:
        return any(s.dims[:1] == (name,) for s in self.inputs)


def _along(value: np.ndarray, axes: Sequence[bool], part: slice) -> np.ndarray:
    """Cut a value along the axes that are marked."""
    return value[tuple(part if marked else slice(None) for marked in axes)]


def _same(one: np.ndarray, other: np.ndarray, *, factor: int = 1) -> bool:
    if one.shape != other.shape:
        return False
    if one.dtype.kind != "f":
        return one.size == 0 or float(np.mean(one == other)) >= 0.99  # a tie of two scores may fall either way
    finite = np.abs(one[np.isfinite(one)])
    atol = factor * ATOL * float(finite.max(initial=0.0))
    return np.allclose(one, other, rtol=factor * RTOL, atol=atol, equal_nan=True)


Points = Sequence[tuple[Mapping[str, int], int]]
"""Sizes of the input axes, and the size that an output axis had; the first at the smallest sizes."""


def _follow(points: Points) -> int | str | None:
    """Return the size, or the expression in input axes, that fits every point; None where there is none."""
    base, size = points[0]
    if all(found == size for _, found in points):
        return size
    moved = [
        name
        for name in base
        if any(found != size for at, found in points if at[name] != base[name] and {**at, name: base[name]} == base)
    ]
    if len(moved) == 1:
        return _expression(moved[0], {at[moved[0]]: found for at, found in points}, points)
    if len(moved) > 1 and all(math.prod(at[n] for n in moved) == found for at, found in points):
        return "*".join(moved)
    if len(moved) > 1 and all(sum(at[n] for n in moved) == found for at, found in points):
        return "+".join(moved)
    return None


def _expression(name: str, sizes: Mapping[int, int], points: Points) -> str | None:
    """Return a·n + b, n/k or ceil(n/k) of an axis ``name``, where it fits every point."""
    if any(sizes[at[name]] != found for at, found in points) or len(sizes) < 2:
        return None
    (n0, s0), *_, (n1, s1) = sorted(sizes.items())
    if n1 != n0 and (s1 - s0) % (n1 - n0) == 0:
        a = (s1 - s0) // (n1 - n0)
        b = s0 - a * n0
        if a and all(a * n + b == s for n, s in sizes.items()):
            return (name if a == 1 else f"{a}*{name}") + (f"{b:+d}" if b else "")
    fits = _quotients(sizes.items())
    return next((text.format(n=name) for text in fits), None) if len(sizes) > 2 else None


def _quotients(sizes: Iterable[tuple[int, int]]) -> Iterable[str]:
    rows = list(sizes)
    for k in range(2, max(n for n, _ in rows) + 1):
        if all(n // k == s for n, s in rows):
            yield f"{{n}}/{k}"
        if all(-(-n // k) == s for n, s in rows):
            yield f"ceil({{n}}/{k})"
