"""Feeds: arrays by input name, how they are checked against specs, and their ``.npz`` files. NumPy is all it needs."""

import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import numpy as np

from accel.core.errors import SampleError, raised_as
from accel.core.files import replacing
from accel.core.values import TensorSpec

UNREADABLE = (
    *(OSError, ValueError, EOFError, KeyError, TypeError, SyntaxError, RuntimeError, MemoryError, OverflowError),
    *(struct.error, zlib.error, tokenize.TokenError, zipfile.BadZipFile),
)
"""What zipfile and NumPy raise of a file that is damaged, or made to be odd."""

Feed = Mapping[str, np.ndarray]
"""Input or output arrays by the client's names."""


def fit_inputs(feed: Feed, specs: Collection[TensorSpec]) -> dict[str, np.ndarray]:
    """Check a feed against the specs, in their order, casting integers only where every value fits.

    Raises:
        SampleError: a name is missing or unknown, a rank or fixed size differs, a dtype cannot be cast without loss,
            an integer lies outside the declared range, or a float is NaN or infinite; the message names the input, the
            first bad value and its index.
    """
    names = [s.name for s in specs]
    if missing := [n for n in names if n not in feed]:
        raise SampleError(f"input {missing[0]!r} is missing: got {sorted(feed)}", fix=f"give all of {names}")
    if unknown := [n for n in feed if n not in names]:
        raise SampleError(f"the model has no input {unknown[0]!r}", fix=f"its inputs are {names}")
    sizes: dict[str, tuple[str, int]] = {}
    fitted: dict[str, np.ndarray] = {}
    for spec in specs:
        value = np.asarray(feed[spec.name])
        if value.ndim != len(spec.dims):
            raise SampleError(
                f"input {spec.name!r} has shape {value.shape}, expected rank {len(spec.dims)}: {spec.dims}"
            )
        for size, dim in zip(value.shape, spec.dims, strict=True):
            if isinstance(dim, int) and size != dim:
                raise SampleError(f"input {spec.name!r} has shape {value.shape}, expected {spec.dims}")
            if isinstance(dim, str):
                other, seen = sizes.setdefault(dim, (spec.name, size))
                if seen != size:
                    raise SampleError(
                        f"axis {dim!r} is {seen} in input {other!r} and {size} in {spec.name!r}: expected one size"
                    )
        fitted[spec.name] = _cast(value, spec)
    return fitted


def _cast(value: np.ndarray, spec: TensorSpec) -> np.ndarray:
    wanted = np.dtype(spec.dtype)
    if value.dtype.kind in "iu" and wanted.kind in "iu":
        info = np.iinfo(wanted)
        low, high = spec.range if spec.range is not None else (info.min, info.max)
        low, high = max(low, int(info.min)), min(high, int(info.max))
        if value.size and (int(value.min()) < low or int(value.max()) > high):
            outside = (value < low) | (value > high)
            index = tuple(int(i) for i in np.argwhere(outside)[0])
            raise SampleError(
                f"input {spec.name!r} holds {int(value[index])} at index {index}, expected values in [{low}, {high}]",
                fix="correct the value, or declare the range with --range NAME=LO:HI",
            )
        return np.asarray(value, wanted, order="C")
    if value.dtype == wanted or (value.dtype.kind == "f" and wanted.kind == "f"):
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
            fitted = np.asarray(value, wanted, order="C")
        if wanted.kind == "f" and not np.isfinite(fitted).all():
            index = tuple(int(i) for i in np.argwhere(~np.isfinite(fitted))[0])
            raise SampleError(
                f"input {spec.name!r} holds {value[index]} at index {index}, expected finite {wanted} values",
                fix="drop the sample, or replace the value (in an additive mask by a large negative number)",
            )
        return fitted
    raise SampleError(f"input {spec.name!r} has dtype {value.dtype}, expected {wanted}")


def fixed_parts(
    feed: Feed, shapes: Mapping[str, tuple[int, ...]], *, grouped: bool = True
) -> Iterator[dict[str, np.ndarray]]:
    """Yield a feed's items in groups of a fixed batch and shape: what is longer is cut, what is shorter gets zeros.

    Args:
        grouped: whether the batch leads every input; else the feed is one part.
    """
    batch = next(iter(shapes.values()))[0]
    items = next(iter(feed.values())).shape[0] if grouped else batch
    for start in range(0, items, batch):
        part = {}
        for name, shape in shapes.items():
            chunk = feed[name][start : start + batch] if grouped else feed[name]
            chunk = chunk[tuple(slice(n) for n in shape)]
            part[name] = np.pad(chunk, [(0, n - have) for n, have in zip(shape, chunk.shape, strict=True)])
        yield part


def resized(
    feed: Feed, specs: Collection[TensorSpec], sizes: Mapping[str, int], mask: str | None
) -> dict[str, np.ndarray]:
    """Repeat or cut a feed's values to other sizes of axes, by their names; a mask then shows all of them."""
    made = {}
    for spec in specs:
        value = feed[spec.name]
        for at, dim in enumerate(spec.dims):
            if isinstance(dim, str) and dim in sizes:
                value = np.take(value, np.arange(sizes[dim]) % value.shape[at], axis=at)
        made[spec.name] = np.ones_like(value) if spec.name == mask else value
    return made


def write_feeds(path: Path, feeds: Mapping[str, Feed]) -> None:
    """Write feeds to ``path`` under keys ``<index>/<input>``; the file appears whole or not at all."""
    with replacing(path) as new, zipfile.ZipFile(new, "w", zipfile.ZIP_STORED) as archive:
        for index, feed in feeds.items():
            for name, value in feed.items():
                # A fixed date keeps the file's hash a function of its content.
                entry = zipfile.ZipInfo(f"{index}/{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
                with archive.open(entry, "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asarray(value, order="C"), allow_pickle=False)


def read_feeds(path: Path, *, only: Collection[str] | None = None) -> dict[str, dict[str, np.ndarray]]:
    """Read feeds by index, in the file's order.

    Args:
        only: indices of the feeds to read, where they are there; all of them when None.

    Raises:
        SampleError: missing, no ``.npz``, holding Python objects, or with keys that are not ``<index>/<input>``.
    """
    return by_feed(read_npz(path, lambda key: only is None or key.partition("/")[0] in only), path.name)


def feed_names(path: Path) -> list[str]:
    """Return the names of the feeds of an ``.npz`` that ``write_feeds`` wrote, in its order, reading no array."""
    with np.load(path, allow_pickle=False) as stored:
        return list(dict.fromkeys(key.partition("/")[0] for key in stored.files))


def by_feed(arrays: Mapping[str, np.ndarray], where: str) -> dict[str, dict[str, np.ndarray]]:
    """Return arrays with keys ``<index>/<name>`` by index and name; a name may hold slashes.

    Raises:
        SampleError: a key of another form, which is found in ``where``.
    """
    feeds: dict[str, dict[str, np.ndarray]] = {}
    for key, value in arrays.items():
        index, slash, name = key.partition("/")
        if not slash or not index or not name:
            raise SampleError(f"{where}: key {key!r}, expected <index>/<input>", fix='for example "0/input_ids"')
        feeds.setdefault(index, {})[name] = value
    return feeds


def read_npz(path: Path, wanted: Callable[[str], bool] = lambda key: True) -> dict[str, np.ndarray]:
    """Read the arrays of an ``.npz`` by key, without ever unpickling.

    Args:
        wanted: says of a key whether its array is read.

    Raises:
        SampleError: missing, empty, no ``.npz``, or holding Python objects.
    """
    if not path.is_file():
        raise SampleError(f"no sample file at {path}")
    fix = "write it with numpy.savez from plain arrays; arrays of Python objects are refused"
    if not path.stat().st_size:
        raise SampleError(f"{path} cannot be read as .npz: it is empty", fix=fix)
    if not zipfile.is_zipfile(path):
        raise SampleError(f"{path} cannot be read as .npz: it is not a zip archive, or truncated", fix=fix)
    with (
        raised_as(SampleError, UNREADABLE, f"{path} cannot be read as .npz", fix=fix),
        path.open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        keys = archive.files
        found = {key: archive[key] for key in keys if wanted(key)}
    if odd := next((key for key, value in found.items() if not isinstance(value, np.ndarray)), None):
        raise SampleError(f"{path}: {odd!r} is not an array", fix=fix)
    if not keys:
        raise SampleError(f"{path} holds no arrays")
    return found
