"""Plant errors in sound variants and see which of them the proof lets through.

    python benchmarks/planted.py [--json FILE] [--folder DIR] [--only MODEL,...] [--threads N]

Five models of 20 to 200 thousand weights, of torch and of Keras: an encoder with a mask, a causal decoder, a network of
convolutions over pictures, one of ids and numbers, and one over signals of any length. Each is described, sampled,
exported and built by accel itself. An error is planted in the weights or nodes of the ONNX file, in the torch or Keras
module, or around the session of a runtime; the variant is then proved as ``accel convert`` proves: on samples, checked
shapes and coverage feeds, by the gate of its precision. What a proof cannot see (answers that change later) is timed as
accel times. What passes is held against the FP32 gate on held-out inputs, drawn from what the contract allows: an error
that passes as FP32 and fails there got through. Sound variants (other runtimes, threads, modes, graphs) must all pass.

Bars: at least 300 planted, none got through; at least 100 sound, no false alarm. Listed apart are errors at the edge of
the gate: the 95 % interval of their SQNR over the samples of the proof (drawn anew, bootstrap) holds the gate, so that
other samples of the same kind would have refused them, and held-out inputs lie at most 3 dB below it.
"""

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from accel import exporters
from accel.bench.checker import Check, checker
from accel.bench.expected import held_to
from accel.bench.timed_session import TimedSession
from accel.builders import targets
from accel.core import environments, hardware
from accel.core.accuracy import parity
from accel.core.feeds import Feed, fit_inputs, read_feeds, write_feeds
from accel.core.processes import Worker
from accel.core.values import Artifact, BuildRequest, Parity, Target, TensorSpec, Variant, from_json, to_json
from accel.exporters import factory, verdict
from accel.exporters.axes import extents, shapes_at
from accel.exporters.coverage import BEYOND_FEED
from accel.exporters.sources import recognise
from accel.run import tasks
from accel.run.tasks import Described

Run = Callable[[Feed], dict[str, np.ndarray]]
HELD_OUT = 24
REDRAWN = 200
"""How often the samples of a proof are drawn anew for the interval of their SQNR."""
EDGE_DB = 3.0
"""dB that held-out inputs may lie below the gate for an error to count as one at its edge."""
TENSORFLOW = ("tf", "tf-xla")
APART = {"ort-openvino": "ort-openvino"}
"""Runtimes that only an environment of their own has, by target."""
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "encoder": {
        "min_shapes": dict.fromkeys(("ids", "mask", "types"), (1, 1)),
        "opt_shapes": dict.fromkeys(("ids", "mask", "types"), (1, 16)),
        "max_shapes": dict.fromkeys(("ids", "mask", "types"), (16, 32)),
        "ranges": {"ids": (0, 999), "mask": (0, 1), "types": (0, 1)},
    },
    "decoder": {
        "min_shapes": {"ids": (1, 1)},
        "opt_shapes": {"ids": (1, 16)},
        "max_shapes": {"ids": (16, 32)},
        "ranges": {"ids": (0, 499)},
    },
    "pictures": {},
    "clicks": {"ranges": {"user": (0, 1999), "place": (0, 6)}},
    "signal": {
        "min_shapes": {"wave": (1, 1, 32)},
        "opt_shapes": {"wave": (1, 1, 128)},
        "max_shapes": {"wave": (16, 1, 256)},
    },
}


# ---------------------------------------------------------------------------------------------------------------------
# The models


def _module(kind: str) -> Any:
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
            self.before, self.after = nn.LayerNorm(width, eps=1e-5), nn.LayerNorm(width, eps=1e-5)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any, bias: Any) -> Any:
            def split(value: Any) -> Any:
                return value.unflatten(-1, (self.heads, -1)).transpose(1, 2)

            y = self.before(x)
            query, key, value = split(self.query(y)), split(self.key(y)), split(self.value(y))
            scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + bias
            x = x + self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
            return x + self.down(nn.functional.gelu(self.up(self.after(x))))

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places, self.kinds = nn.Embedding(1000, 64), nn.Embedding(32, 64), nn.Embedding(2, 64)
            self.blocks = nn.ModuleList([Block(64, 4) for _ in range(2)])
            self.norm, self.pooler = nn.LayerNorm(64), nn.Linear(64, 64)

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:
            places = torch.arange(ids.shape[1], device=ids.device)
            x = self.words(ids) + self.places(places) + self.kinds(types)
            bias = (1.0 - mask.to(x.dtype))[:, None, None, :] * -10000.0
            for block in self.blocks:
                x = block(x, bias)
            x = self.norm(x)
            kept = mask.to(x.dtype)[:, :, None]
            return {"hidden": x, "pooled": torch.tanh(self.pooler((x * kept).sum(1) / kept.sum(1)))}

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(500, 64), nn.Embedding(32, 64)
            self.blocks = nn.ModuleList([Block(64, 4) for _ in range(2)])
            self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 500)

        def forward(self, ids: Any) -> Any:
            places = torch.arange(ids.shape[1], device=ids.device)
            bias = (places[None, :] > places[:, None]).to(torch.float32) * -10000.0
            x = self.words(ids) + self.places(places)
            for block in self.blocks:
                x = block(x, bias)
            return {"logits": self.head(self.norm(x))}

    class Pictures(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = (3, 16, 32, 64)
            self.convs = nn.ModuleList([nn.Conv2d(a, b, 3, 2, 1) for a, b in itertools.pairwise(widths)])
            self.norms = nn.ModuleList([nn.BatchNorm2d(b, eps=1e-5) for b in widths[1:]])
            self.head = nn.Linear(64, 10)
            for norm in self.norms:
                norm.running_mean.normal_(0, 0.3)
                norm.running_var.uniform_(0.2, 1.5)

        def forward(self, pixels: Any) -> Any:
            for conv, norm in zip(self.convs, self.norms, strict=True):
                pixels = nn.functional.silu(norm(conv(pixels)))
            features = pixels.mean((2, 3))
            return {"features": features, "logits": self.head(features)}

    class Clicks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.at = nn.Embedding(2000, 16), nn.Embedding(7, 16)
            self.numbers = nn.Linear(8, 16)
            self.first, self.second, self.last = nn.Linear(96, 64), nn.Linear(64, 32), nn.Linear(32, 1)

        def forward(self, user: Any, place: Any, numbers: Any) -> Any:
            parts = [self.users(user).flatten(1), self.at(place), torch.relu(self.numbers(numbers))]
            x = torch.relu(self.first(torch.cat(parts, 1)))
            return {"score": torch.sigmoid(self.last(torch.relu(self.second(x))))}

    class Signal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv1d(a, b, 5, 1, 2) for a, b in ((1, 16), (16, 16), (16, 8))])

        def forward(self, wave: Any) -> Any:
            for conv in self.convs[:-1]:
                wave = nn.functional.elu(conv(wave))
            return {"filtered": self.convs[-1](wave)}

    kinds = {"encoder": Encoder, "decoder": Decoder, "pictures": Pictures, "clicks": Clicks, "signal": Signal}
    torch.manual_seed(0)
    with torch.no_grad():
        model = kinds[kind]()
        for name, parameter in model.named_parameters():
            if "norm" in name or "before" in name or "after" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def _keras(kind: str) -> Any:
    import tensorflow as tf

    layers, ops = tf.keras.layers, tf.keras.ops
    tf.keras.utils.set_random_seed(0)
    wide = tf.keras.initializers.RandomNormal(stddev=1.0)

    class Places(layers.Layer):  # type: ignore[misc]
        def build(self, shape: Any) -> None:
            self.table = self.add_weight(shape=(32, shape[-1]), initializer=wide, name="table")

        def call(self, x: Any) -> Any:
            return x + self.table[: tf.shape(x)[1]]

    def ids_of(name: str, count: int, shape: Any) -> tuple[Any, Any]:
        given = layers.Input(shape, dtype="int64", name=name)
        return given, layers.Embedding(count, 64 if shape == (None,) else 16, embeddings_initializer=wide)(given)

    def blocks(x: Any, **how: Any) -> Any:
        for _ in range(2):
            y = layers.LayerNormalization(epsilon=1e-5)(x)
            x = x + layers.MultiHeadAttention(4, 16)(y, y, **how)
            x = x + layers.Dense(64)(layers.Dense(256, activation="gelu")(layers.LayerNormalization(epsilon=1e-5)(x)))
        return layers.LayerNormalization()(x)

    def encoder() -> Any:
        (ids, words), (types, kinds) = ids_of("ids", 1000, (None,)), ids_of("types", 2, (None,))
        mask = layers.Input((None,), dtype="int64", name="mask")
        x = blocks(Places()(words + kinds), attention_mask=ops.cast(ops.expand_dims(mask, 1), "bool"))
        kept = ops.cast(ops.expand_dims(mask, 2), "float32")
        pooled = layers.Dense(64, activation="tanh")(ops.sum(x * kept, 1) / ops.sum(kept, 1))
        return tf.keras.Model({"ids": ids, "mask": mask, "types": types}, {"hidden": x, "pooled": pooled})

    def decoder() -> Any:
        ids, words = ids_of("ids", 500, (None,))
        logits = layers.Dense(500)(blocks(Places()(words), use_causal_mask=True))
        return tf.keras.Model({"ids": ids}, {"logits": logits})

    def pictures() -> Any:
        x = pixels = layers.Input((32, 32, 3), name="pixels")
        for width in (16, 32, 64):
            x = layers.Conv2D(width, 3, 2, "same")(x)
            x = layers.Activation("silu")(layers.BatchNormalization(moving_mean_initializer=wide)(x))
        features = layers.GlobalAveragePooling2D()(x)
        return tf.keras.Model({"pixels": pixels}, {"features": features, "logits": layers.Dense(10)(features)})

    def clicks() -> Any:
        (user, users), (place, at) = ids_of("user", 2000, (4,)), ids_of("place", 7, ())
        numbers = layers.Input((8,), name="numbers")
        parts = [layers.Flatten()(users), at, layers.Dense(16, activation="relu")(numbers)]
        x = layers.Dense(32, activation="relu")(layers.Dense(64, activation="relu")(layers.Concatenate()(parts)))
        score = layers.Dense(1, activation="sigmoid")(x)
        return tf.keras.Model({"user": user, "place": place, "numbers": numbers}, {"score": score})

    def signal() -> Any:
        x = wave = layers.Input((None, 1), name="wave")
        for width, how in ((16, "elu"), (16, "elu"), (8, None)):
            x = layers.Conv1D(width, 5, padding="same", activation=how)(x)
        return tf.keras.Model({"wave": wave}, {"filtered": x})

    kinds = {"encoder": encoder, "decoder": decoder, "pictures": pictures, "clicks": clicks, "signal": signal}
    return kinds[kind]()


def _channels_last(value: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(value, 1, -1))


def _made(kind: str, *, keras: bool = False) -> tuple[Any, list[dict[str, np.ndarray]]]:
    """Return a model and samples that are as alike as real ones: few of the ids, one type, padding at the end alone."""
    rng = np.random.default_rng(1)
    samples = []
    for _ in range(150):
        length = int(rng.integers(3, 17))
        ids = (rng.zipf(1.3, (1, length)) % 200).astype(np.int64)
        ones, none = np.ones((1, length), np.int64), np.zeros((1, length), np.int64)
        samples.append(
            {
                "encoder": lambda ids=ids, ones=ones, none=none: {"ids": ids, "mask": ones, "types": none},
                "decoder": lambda ids=ids: {"ids": ids},
                "pictures": lambda: {"pixels": rng.standard_normal((1, 3, 32, 32), dtype=np.float32)},
                "clicks": lambda: {
                    "user": rng.integers(0, 300, (1, 4)),
                    "place": rng.integers(0, 3, (1,)),
                    "numbers": rng.random((1, 8), dtype=np.float32),
                },
                "signal": lambda: {"wave": np.cumsum(rng.standard_normal((1, 1, 128)), -1).astype(np.float32) / 8},
            }[kind]()
        )
    if keras:
        for sample in samples:
            sample.update({n: _channels_last(v) for n, v in sample.items() if n in ("pixels", "wave")})
        return _keras(kind), samples
    return _module(kind), samples


def encoder() -> Any:
    return _made("encoder")


def decoder() -> Any:
    return _made("decoder")


def pictures() -> Any:
    return _made("pictures")


def clicks() -> Any:
    return _made("clicks")


def signal() -> Any:
    return _made("signal")


def keras_encoder() -> Any:
    return _made("encoder", keras=True)


def keras_decoder() -> Any:
    return _made("decoder", keras=True)


def keras_pictures() -> Any:
    return _made("pictures", keras=True)


def keras_clicks() -> Any:
    return _made("clicks", keras=True)


def keras_signal() -> Any:
    return _made("signal", keras=True)


# ---------------------------------------------------------------------------------------------------------------------
# A bench: one model, its proof, and what judges


@dataclass
class Bench:
    """One model with its samples, its reference and its ONNX file."""

    name: str
    folder: Path
    described: Described
    onnx: Any
    threads: int
    truth: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    feeds: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    held_out: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    held_out_truth: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    def judge(self, answers: Mapping[str, Feed], precision: str = "fp32") -> Parity:
        """Hold answers to the feeds of the proof against the gate of a precision."""
        source = self.described.source
        gate = parity.gate_for(precision, outputs=source.outputs, task=None, overrides={})
        return verdict.compare(source, self.feeds, self.truth, answers, gate)

    def judge_held_out(self, run: Run) -> Parity:
        """Hold a variant against the FP32 gate on inputs that no proof has seen, each against the floor of one feed."""
        source = self.described.source
        gate = parity.gate_for("fp32", outputs=source.outputs, task=None, overrides={})
        found = {name: run(feed) for name, feed in self.held_out.items()}
        return verdict.compare(source, self.held_out, self.held_out_truth, found, gate)

    def session(self, target: str, *, mode: Any = "latency", threads: int = 1, **options: Any) -> Any:
        """Build a target, once for its options, and open it."""
        source, samples = self.described.source, self.described.samples
        builder = targets.discover()[target]
        variant = Variant(Target(target, "cpu"), source.profile, options=options)
        out = self.folder / "built" / f"{target}-{'-'.join(f'{k}{v}' for k, v in options.items())}"
        if not out.exists():
            out.mkdir(parents=True)
            request = BuildRequest(
                variant,
                source,
                self.onnx,
                str(self.folder / "onnx"),
                samples,
                str(self.folder / "samples"),
                self.threads,
            )
            if target in APART:
                with Worker(out.with_suffix(".log"), threads=1, timeout_s=600, python=_python(target)) as worker:
                    _built[out] = worker.call(tasks.build, request, out, "0")
            else:
                _built[out] = tasks.build(request, out, "0")
        if target in APART:
            return Apart(_python(target), _built[out], out, threads, mode)
        return builder.open(_built[out], out, threads=threads, mode=mode)

    def spread(self, answers: Mapping[str, Feed], precision: str) -> tuple[float, float]:
        """Return the 95 % interval of the SQNR over the samples, which are drawn anew."""
        source, rng = self.described.source, np.random.default_rng(1)
        gate = parity.gate_for(precision, outputs=source.outputs, task=None, overrides={})
        samples = [n for n in answers if parity.is_sample(n)]
        found = []
        for _ in range(REDRAWN):
            drawn = {str(i): name for i, name in enumerate(rng.choice(samples, len(samples)))}
            feeds, truth, given = (
                {i: side[name] for i, name in drawn.items()} for side in (self.feeds, self.truth, answers)
            )
            found.append(verdict.compare(source, feeds, truth, given, gate).found["sqnr_db"] or np.inf)
        low, high = np.percentile(found, (2.5, 97.5))
        return float(low), float(high)


class Apart:
    """A session in the process of another environment's interpreter."""

    def __init__(self, python: Path, artifact: Artifact, folder: Path, threads: int, mode: str) -> None:
        self._process: Any = subprocess.Popen(
            [str(python), "-P", str(Path(__file__).resolve()), "--answer", str(folder), str(threads), mode],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._given: dict[int, Feed] = {}
        pickle.dump(to_json(artifact), self._process.stdin)
        self.inputs, self.outputs, self.slots = self._told()

    def _told(self) -> Any:
        self._process.stdin.flush()
        return pickle.load(self._process.stdout)  # noqa: S301  of its own process

    def run(self, inputs: Feed) -> dict[str, np.ndarray]:
        pickle.dump(dict(inputs), self._process.stdin)
        found: dict[str, np.ndarray] = self._told()
        return found

    def bind(self, inputs: Feed, *, slot: int = 0) -> None:
        self._given[slot] = inputs

    def submit(self, *, slot: int = 0) -> None:
        pass

    def wait(self, *, slot: int = 0) -> None:
        pass

    def read(self, *, slot: int = 0) -> dict[str, np.ndarray]:
        return self.run(self._given[slot])

    def close(self) -> None:
        self._process.communicate()


def answer(folder: Path, threads: int, mode: Any) -> None:
    """Answer what ``Apart`` asks, in its environment."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    artifact = from_json(Artifact, pickle.load(sys.stdin.buffer))  # noqa: S301  of its own parent
    builder = targets.discover()[artifact.variant.target.name]
    session = builder.open(artifact, folder, threads=threads, mode=mode)
    told: Any = (session.inputs, session.outputs, session.slots)
    while True:
        pickle.dump(told, out)
        out.flush()
        try:
            feed = pickle.load(sys.stdin.buffer)  # noqa: S301
        except EOFError:
            return
        told = {n: np.array(v) for n, v in session.run(feed).items()}


def _python(target: str) -> Path:
    return environments.python(APART[target])


_built: dict[Path, Artifact] = {}


def bench(name: str, folder: Path, threads: int, *, export: bool = True, keras: bool = False) -> Bench:
    """Describe, sample, run and export one model."""
    shapes = dict(SHAPES[name])
    if keras:  # its channels come last
        shapes |= {k: {"wave": (b, n, 1)} for k, v in shapes.items() if "wave" in v for b, _, n in v.values()}
    request = recognise(f"{Path(__file__).resolve()}:{'keras_' if keras else ''}{name}", **shapes)
    samples, onnx, reference = folder / "samples", folder / "onnx", folder / "reference.npz"
    onnx.mkdir(parents=True)
    described = tasks.describe(request, samples)
    if name == "encoder":  # a factory has no field for its mask
        source = _with_mask(described.source)
        from accel.exporters.samples import make_samples

        described = Described(source, make_samples(source, request, samples))
    tasks.reference(described, samples, reference)
    exported = None
    if export:
        tasks.export(described.source, onnx, 18)
        exported = tasks.read_exported(onnx)
        tasks.check(described, samples, reference, exported, onnx)
    made = Bench(name, folder, described, exported, threads)
    made.truth = read_feeds(reference)
    every = [described.samples.gate, described.samples.shapes, described.samples.coverage]
    stored = {n: f for ref in every if ref for n, f in read_feeds(samples / ref.path).items()}
    made.feeds = {n: f for n, f in stored.items() if n in made.truth}
    made.held_out = dict(_held_out(described.source, np.random.default_rng(12345)))
    model = exporters.load(described.source)
    made.held_out_truth = {n: model.run(f) for n, f in made.held_out.items()}
    return made


def _with_mask(source: Any) -> Any:
    import dataclasses

    return dataclasses.replace(source, mask="mask", family="transformer")


def _held_out(source: Any, rng: np.random.Generator) -> Iterator[tuple[str, Feed]]:
    """Yield inputs of any shape, id and mask that the contract allows; floats as far as twice the samples' size."""
    axes = extents(source.inputs, source.profile)
    for number in range(HELD_OUT):
        sizes = {n: int(rng.integers(e.min, e.max, endpoint=True)) for n, e in axes.items()}
        feed = {}
        for spec in source.inputs:
            shape = shapes_at(source.inputs, sizes)[spec.name]
            if spec.name == source.mask:
                value = rng.integers(0, 2, shape)
                value[:, rng.integers(shape[1])] = 1
            elif spec.range is not None:
                value = rng.integers(*spec.range, shape, endpoint=True)
            else:
                value = rng.standard_normal(shape) * rng.uniform(0.1, 2)
                value = np.abs(value) if spec.name == "numbers" else value
            feed[spec.name] = value.astype(spec.dtype)
        yield f"held out {number}", feed


# ---------------------------------------------------------------------------------------------------------------------
# Errors around a session: for every runtime


def around(bench: Bench) -> dict[str, Callable[[Run], Run]]:
    """Return the errors that are planted around a session of any runtime, by name."""
    source = bench.described.source
    first, outputs = source.inputs[0], [s.name for s in source.outputs]
    ints = [s for s in source.inputs if s.range is not None and s.name != source.mask]
    floats = [s for s in source.inputs if np.dtype(s.dtype).kind == "f"]
    limit = {
        s.name: max(float(np.abs(f[s.name]).max()) for n, f in bench.feeds.items() if parity.is_sample(n))
        for s in floats
    }

    def batch(feed: Feed) -> int:
        return int(feed[first.name].shape[0])

    def on(answer: Callable[[dict[str, np.ndarray]], None], when: Callable[[Feed], bool] = lambda feed: True) -> Any:
        def plant(run: Run) -> Run:
            def planted(feed: Feed) -> dict[str, np.ndarray]:
                found = {n: np.array(v) for n, v in run(feed).items()}
                if when(feed):
                    answer(found)
                return found

            return planted

        return plant

    def before(change: Callable[[dict[str, np.ndarray]], None]) -> Any:
        def plant(run: Run) -> Run:
            def planted(feed: Feed) -> dict[str, np.ndarray]:
                given = {n: np.array(v) for n, v in feed.items()}
                change(given)
                return run(given)

            return planted

        return plant

    def zero(found: dict[str, np.ndarray]) -> None:
        for value in found.values():
            value[...] = 0

    def each(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict[str, np.ndarray]], None]:
        def answer(found: dict[str, np.ndarray]) -> None:
            for name in found:
                found[name] = change(found[name])

        return answer

    def one(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[dict[str, np.ndarray]], None]:
        def apply(values: dict[str, np.ndarray]) -> None:
            values[name] = change(values[name]).astype(values[name].dtype)

        return apply

    def stale(run: Run) -> Run:
        last: dict[tuple[int, ...], dict[str, np.ndarray]] = {}

        def planted(feed: Feed) -> dict[str, np.ndarray]:
            shape = feed[first.name].shape
            found = {n: np.array(v) for n, v in run(feed).items()}
            return last.setdefault(shape, found)

        return planted

    planted: dict[str, Callable[[Run], Run]] = {
        "outputs x 1.05": on(each(lambda v: (v * 1.05).astype(v.dtype))),
        "outputs x 1.001": on(each(lambda v: (v * 1.001).astype(v.dtype))),
        "outputs + 0.01": on(each(lambda v: (v + 0.01).astype(v.dtype))),
        "outputs in float16": on(each(lambda v: v.astype(np.float16).astype(v.dtype))),
        "outputs in 8 bits": on(each(lambda v: (np.round(v * 127 / max(np.abs(v).max(), 1e-9)) / 127).astype(v.dtype))),
        "outputs as float64": on(each(lambda v: v.astype(np.float64))),
        "sign of one item": on(each(lambda v: np.concatenate([-v[:1], v[1:]]))),
        "rows rolled": on(each(lambda v: np.roll(v, 1, 0)), lambda feed: batch(feed) > 1),
        "row 0 for all": on(each(lambda v: np.repeat(v[:1], len(v), 0)), lambda feed: batch(feed) > 1),
        "last row lost": on(each(lambda v: np.concatenate([v[:-1], 0 * v[-1:]])), lambda feed: batch(feed) > 2),
        "one NaN": on(
            each(lambda v: np.where(np.arange(v.size).reshape(v.shape) == v.size - 1, np.nan, v).astype(v.dtype))
        ),
        "stale answers": stale,
        "zeros at odd batches over 8": on(zero, lambda feed: batch(feed) > 8 and batch(feed) % 2 == 1),
        "zeros from 9 to 15": on(zero, lambda feed: 9 <= batch(feed) <= 15),
    }
    planted |= {f"zeros at batch {n}": on(zero, lambda feed, n=n: batch(feed) == n) for n in (2, 4, 5, 6, 7, 11, 13)}
    if len(outputs) > 1:
        planted["one output scaled"] = on(one(outputs[1], lambda v: v * 1.02))
        if len({s.dims for s in source.outputs}) == 1:
            planted["outputs swapped"] = on(
                lambda found: found.update(dict(zip(outputs, [*found.values()][::-1], strict=True)))
            )
    for spec in ints:
        low, high = spec.range or (0, 0)
        span = high - low + 1
        planted[f"{spec.name}: top 2 % wrong"] = before(
            one(spec.name, lambda v, low=low, high=high, span=span: np.where(v > high - max(1, span // 50), low, v))
        )
        planted[f"{spec.name}: one value wrong"] = before(
            one(spec.name, lambda v, low=low, span=span: np.where(v == low + span * 7 // 11, low + span * 3 // 11, v))
        )
        planted[f"{spec.name}: highest wrong"] = before(
            one(spec.name, lambda v, low=low, high=high: np.where(v == high, low, v))
        )
        planted[f"{spec.name}: ignored"] = before(one(spec.name, lambda v, low=low: np.full_like(v, low)))
        if span > 256:
            planted[f"{spec.name}: wraps at 8 bits"] = before(one(spec.name, lambda v: v.astype(np.uint8)))
            planted[f"{spec.name}: every 97th wrong"] = before(
                one(spec.name, lambda v, low=low: np.where(v % 97 == 13, low, v))
            )
    for spec in floats:
        bound = limit[spec.name]
        planted[f"{spec.name}: clamped at the samples"] = before(one(spec.name, lambda v, b=bound: np.clip(v, -b, b)))
        planted[f"{spec.name}: in bfloat16"] = before(
            one(
                spec.name,
                lambda v: (np.ascontiguousarray(v, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(
                    np.float32
                ),
            )
        )
        planted[f"{spec.name}: channel lost"] = before(
            one(spec.name, lambda v: np.where(np.arange(v.shape[-1]) == v.shape[-1] // 2, 0, v))
        )
    axes = [(i, d) for i, d in enumerate(first.dims) if isinstance(d, str) and i > 0]
    for index, axis in axes:
        e = extents(source.inputs, source.profile)[axis]
        for n in (e.min, e.opt + 1, e.max - 1, e.max):
            if e.max - e.min < 32 or n in (e.min, e.max):
                planted[f"zeros at {axis} {n}"] = on(zero, lambda feed, i=index, n=n: feed[first.name].shape[i] == n)
        planted[f"zeros at {axis} over the typical"] = on(
            zero, lambda feed, i=index, e=e: feed[first.name].shape[i] > e.opt
        )
        planted[f"last of {axis} from before"] = on(
            each(
                lambda v: (
                    np.concatenate([v[..., :-1, :], v[..., -2:-1, :]], -2) if v.ndim > 2 and v.shape[-2] > 1 else v
                )
            )
        )
    if source.mask is not None:
        mask = source.mask
        planted["mask ignored"] = before(one(mask, np.ones_like))
        planted["mask as if at the end"] = before(
            one(mask, lambda v: np.arange(v.shape[1])[None] < v.sum(1, keepdims=True))
        )
        planted["zeros for left padding"] = on(zero, lambda feed: bool((feed[mask][:, 0] == 0).any()))
        planted["zeros for holes"] = on(zero, lambda feed: bool((np.diff(feed[mask], axis=1) > 0).any()))
        planted["zeros for one position"] = on(zero, lambda feed: bool((feed[mask].sum(1) == 1).any()))
        planted["mask of row 0 for all"] = before(one(mask, lambda v: np.repeat(v[:1], len(v), 0)))

        def poison(run: Run) -> Run:
            def planted(feed: Feed) -> dict[str, np.ndarray]:
                found = {n: np.array(v) for n, v in run(feed).items()}
                found[outputs[0]][feed[mask] == 0] = np.nan
                return found

            return planted

        planted["NaN at padding"] = poison
    return planted


def remembered(run: Run) -> Run:
    """Return what runs each feed once: a sound session under many errors answers the same each time."""
    known: dict[tuple[Any, ...], dict[str, np.ndarray]] = {}

    def again(feed: Feed) -> dict[str, np.ndarray]:
        key = tuple((n, v.shape, v.tobytes()) for n, v in feed.items())
        if key not in known:
            known[key] = run(feed)
        return known[key]

    return again


# ---------------------------------------------------------------------------------------------------------------------
# Errors in the graph, and in the module


def in_graph(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield ONNX models with one error each, by name."""
    import onnx
    from onnx import helper, numpy_helper

    def fresh() -> Any:
        return onnx.load(path)

    model = fresh()
    arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    weights = [n for n, v in arrays.items() if v.dtype == np.float32 and v.ndim > 1 and v.size >= 64]
    biases = [n for n, v in arrays.items() if v.dtype == np.float32 and v.ndim == 1 and v.size >= 8 and np.ptp(v) > 0]
    rng = np.random.default_rng(3)

    def changed(name: str, value: np.ndarray) -> Any:
        made = fresh()
        for tensor in made.graph.initializer:
            if tensor.name == name:
                tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value, np.float32), name))
        return made

    chosen = [weights[i] for i in np.unique(np.linspace(0, len(weights) - 1, min(4, len(weights))).astype(int))]
    for name in chosen:
        value, short = arrays[name], f"weight {weights.index(name)}"
        noise = rng.standard_normal(value.shape).astype(np.float32)
        largest = value.copy()
        largest.flat[int(np.abs(value).argmax())] *= -1
        lost = value.copy()
        lost[: max(1, len(lost) // 4)] = 0
        column = value.copy()
        column[..., -1] = 0
        swapped = value.copy()
        swapped[[0, 1]] = swapped[[1, 0]]
        scale = np.abs(value).max() / 127
        yield f"{short}: 50 % noise", changed(name, value + 0.5 * value.std() * noise)
        yield f"{short}: 1 % noise", changed(name, value + 0.01 * value.std() * noise)
        yield f"{short}: a sign", changed(name, largest)
        yield f"{short}: a quarter lost (a head)", changed(name, lost)
        yield f"{short}: last column lost", changed(name, column)
        yield f"{short}: two rows swapped", changed(name, swapped)
        yield f"{short}: x 1.01", changed(name, value * 1.01)
        yield f"{short}: 8 bits", changed(name, np.round(value / scale) * scale)
        yield f"{short}: float16", changed(name, value.astype(np.float16))
        yield f"{short}: rolled (positions)", changed(name, np.roll(value, 1, 0))
    for name in [biases[i] for i in np.unique(np.linspace(0, len(biases) - 1, min(4, len(biases))).astype(int))]:
        value, short = arrays[name], f"bias {biases.index(name)}"
        yield f"{short}: dropped", changed(name, 0 * value)
        yield f"{short}: one value", changed(name, np.where(np.arange(value.size) == 3, value + 0.1, value))
    swaps = {"Relu": "LeakyRelu", "Tanh": "HardSigmoid", "Sigmoid": "HardSigmoid", "Elu": "Relu", "Erf": "Tanh"}
    for number, node in enumerate(model.graph.node):
        if node.op_type in swaps:
            made = fresh()
            made.graph.node[number].op_type = swaps[node.op_type]
            del made.graph.node[number].attribute[:]
            yield f"activation {node.op_type} {number} is {swaps[node.op_type]}", made
        if node.op_type in ("Relu", "Gelu", "Erf", "Elu", "Softmax"):
            made = fresh()
            out = made.graph.node[number].output[0]
            made.graph.node[number].output[0] = "planted_in"
            bounds = {"planted_low": -1.0, "planted_high": 0.9}
            made.graph.initializer.extend(numpy_helper.from_array(np.float32(v), n) for n, v in bounds.items())
            made.graph.node.insert(number + 1, helper.make_node("Clip", ["planted_in", *bounds], [out]))
            yield f"activation {node.op_type} {number} clamped at 0.9", made
        if node.op_type in ("MatMul", "Gemm", "Conv") and number % 3 == 0:
            made = fresh()
            out = made.graph.node[number].output[0]
            made.graph.node[number].output[0] = "planted_in"
            scales = {"planted_up": 1e5, "planted_down": 1e-5}
            made.graph.initializer.extend(numpy_helper.from_array(np.float32(v), n) for n, v in scales.items())
            steps = [
                helper.make_node("Mul", ["planted_in", "planted_up"], ["planted_large"]),
                helper.make_node("Cast", ["planted_large"], ["planted_half"], to=onnx.TensorProto.FLOAT16),
                helper.make_node("Cast", ["planted_half"], ["planted_back"], to=onnx.TensorProto.FLOAT),
                helper.make_node("Mul", ["planted_back", "planted_down"], [out]),
            ]
            for offset, step in enumerate(steps, 1):
                made.graph.node.insert(number + offset, step)
            yield f"{node.op_type} {number} overflows in float16", made
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                made = fresh()
                next(a for a in made.graph.node[number].attribute if a.name == "epsilon").f = 1e-2
                yield f"{node.op_type} {number}: eps 1e-2", made


RUNTIMES = ("ort", "openvino")


def runs_of(serialised: bytes, runtime: str, outputs: tuple[TensorSpec, ...], threads: int = 1) -> Run:
    """Open an ONNX model in a runtime."""
    names = [s.name for s in outputs]
    if runtime == "ort":
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 4
        session = ort.InferenceSession(serialised, options, providers=["CPUExecutionProvider"])
        return lambda feed: dict(zip(names, session.run(names, dict(feed)), strict=True))
    import openvino as ov

    core = ov.Core()
    read = core.read_model(serialised)
    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    compiled = core.compile_model(read, "CPU", hints)

    def run(feed: Feed) -> dict[str, np.ndarray]:
        found = compiled(dict(feed))
        return {name: np.array(found[name]) for name in names}

    return run


def in_module(source: Any) -> Iterator[tuple[str, Run]]:
    """Yield torch variants with one error each, by name."""
    import torch

    model = exporters.load(source)
    assert model.module is not None
    parameters = dict(model.module.named_parameters())
    chosen = list(parameters)[:: max(1, len(parameters) // 8)]
    for name in chosen:
        parameter = parameters[name]
        kept = parameter.detach().clone()
        for what, value in {
            "dropped": 0 * kept,
            "x 1.05": kept * 1.05,
            "bfloat16": kept.bfloat16().float(),
            "noise": kept + 0.1 * kept.std() * torch.randn_like(kept),
        }.items():
            with torch.no_grad():
                parameter.copy_(value)
            yield f"{name}: {what}", model.run
        with torch.no_grad():
            parameter.copy_(kept)


def in_keras(source: Any) -> Iterator[tuple[str, Run]]:
    """Yield Keras variants with one error each, by name."""
    model = factory.make(source.reference).module
    names = [spec.name for spec in source.outputs]

    def run(feed: Feed) -> dict[str, np.ndarray]:
        found = model(dict(feed))
        return {name: found[name].numpy() for name in names}

    rng = np.random.default_rng(2)
    for weight in model.weights[:: max(1, len(model.weights) // 8)]:
        kept = weight.numpy()
        if kept.dtype != np.float32:
            continue
        for what, value in {
            "dropped": 0 * kept,
            "x 1.05": kept * 1.05,
            "float16": kept.astype(np.float16).astype(np.float32),
            "noise": kept + 0.1 * (kept.std() + 0.01) * rng.standard_normal(kept.shape).astype(np.float32),
        }.items():
            weight.assign(value)
            yield f"{weight.path}: {what}", run
        weight.assign(kept)


def in_int8(path: Path, bench: Bench) -> Iterator[tuple[str, Run]]:
    """Yield INT8 files calibrated wrongly: on one sample, on zeros, on noise, on a hundredth of the real values."""
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self, feeds: list[Feed]) -> None:
            self._left = iter(feeds)

        def get_next(self) -> Any:
            return next(self._left, None)

    def scaled(feed: Feed, factor: float) -> Feed:
        return {
            n: (v * factor).astype(v.dtype) if v.dtype.kind == "f" else np.full_like(v, v.flat[0])
            for n, v in feed.items()
        }

    samples = [f for n, f in bench.feeds.items() if parity.is_sample(n)]
    one = {n: v[:1] for n, v in samples[0].items()}
    whole = bench.folder / "whole.onnx"
    onnx.save(onnx.load(path), whole)
    for name, feeds in {
        "calibrated on one sample": [one],
        "calibrated on zeros": [scaled(one, 0.0)],
        "calibrated on a hundredth": [scaled(f, 0.01) for f in samples[:4]],
        "calibrated on a hundredfold": [scaled(f, 100.0) for f in samples[:4]],
    }.items():
        out = bench.folder / "int8.onnx"
        quantize_static(whole, out, Reader(feeds), activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
        yield name, runs_of(out.read_bytes(), "ort", bench.described.source.outputs)


# ---------------------------------------------------------------------------------------------------------------------
# Errors that come after the proof


class Turning:
    """A session whose answers turn wrong in a way that no proof sees."""

    def __init__(self, session: Any, when: Callable[[int, int], bool]) -> None:
        self.inner, self._when, self._calls = session, when, 0
        self.inputs, self.outputs, self.slots = session.inputs, session.outputs, session.slots

    def bind(self, inputs: Feed, *, slot: int = 0) -> None:
        self.inner.bind(inputs, slot=slot)

    def submit(self, *, slot: int = 0) -> None:
        self.inner.submit(slot=slot)

    def wait(self, *, slot: int = 0) -> None:
        self.inner.wait(slot=slot)

    def read(self, *, slot: int = 0) -> dict[str, np.ndarray]:
        self._calls += 1
        found: dict[str, np.ndarray] = self.inner.read(slot=slot)
        return {n: np.zeros_like(v) for n, v in found.items()} if self._when(self._calls, slot) else found


LATER: Mapping[str, tuple[str, Callable[[int, int], bool]]] = {
    "zeros from call 81 on": ("latency", lambda call, slot: call > 80),
    "zeros one call in 40": ("latency", lambda call, slot: call % 40 == 7),
    "zeros in throughput mode": ("throughput", lambda call, slot: True),
    "zeros one call in 40 in throughput mode": ("throughput", lambda call, slot: call % 40 == 7),
    "zeros in the last slot": ("throughput", lambda call, slot: slot > 0),
    "sound, one at a time": ("latency", lambda call, slot: False),
    "sound, many at once": ("throughput", lambda call, slot: False),
}


def timed(bench: Bench, session: Any, mode: str, gate: Mapping[str, float], seconds: float = 0.4) -> tuple[str, ...]:
    """Time a session as accel does, and return what is wrong with its answers."""
    source = bench.described.source
    points = [n for n in ("b1", "b4") if n in bench.truth]
    expected = bench.folder / "expected.npz"
    if not expected.exists():
        write_feeds(expected, {n: bench.truth[n] for n in points})
    check = Check(expected, source.outputs, gate, source.detections)
    watch = checker(check, share=None if mode == "latency" else 0.02)
    made = TimedSession(session, {n: bench.feeds[n] for n in points}, watch.look)
    for point in points:
        made.latency(point, seconds, 100) if mode == "latency" else made.throughput(point, seconds, 100)
    judged = watch.judge(check)
    return judged.reasons if judged else ("nothing was looked at",)


# ---------------------------------------------------------------------------------------------------------------------
# The campaign


def at_the_edge(row: Mapping[str, Any]) -> bool:
    """Say whether the gate lies inside the interval of what the proof found, and little above the held-out figure."""
    gate, interval, held_out = parity.GATES_DB["fp32"], row["interval_db"], row["held_out_db"]
    return None not in (interval, held_out) and interval[0] < gate <= held_out + EDGE_DB


class Campaign:
    """What was tried, and what became of it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.rows: list[dict[str, Any]] = []
        self._say = say

    def add(
        self,
        bench: Bench,
        runtime: str,
        kind: str,
        name: str,
        run: Run | None,
        reasons: tuple[str, ...] | None,
        precision: str = "fp32",
    ) -> None:
        """Add one row.

        Args:
            kind: ``sound``, or where the error was planted.
            run: the variant: proved here, and held against held-out inputs where it passes.
            reasons: of a verdict that was found otherwise.
        """
        worst, gap, beyond, interval = None, None, None, None
        if run is not None:
            try:
                inputs = bench.described.source.inputs
                asked = {n: f for n, f in bench.feeds.items() if precision == "fp32" or n != BEYOND_FEED}
                answers = {n: run(fit_inputs(f, inputs)) for n, f in asked.items()}
                verdict = bench.judge(answers, precision)
                reasons, worst = verdict.reasons, verdict.found.get("sqnr_db")
                if verdict.passed and kind != "sound":
                    held = bench.judge_held_out(run)
                    gap = None if held.passed else held.reasons[0]
                    beyond = None if held.passed else held.found.get("sqnr_db")
                    interval = None if held.passed else bench.spread(answers, precision)
            except Exception as error:  # noqa: BLE001  a variant that raises is one that does not pass
                reasons = (f"{type(error).__name__}: {str(error).splitlines()[0][:200]}",)
        assert reasons is not None
        row = {
            "model": bench.name,
            "runtime": runtime,
            "kind": kind,
            "planted": name,
            "passed": not reasons,
            "sqnr_db": worst,
            "reason": reasons[0] if reasons else None,
            "held_out": gap,
            "held_out_db": beyond,
            "interval_db": interval,
        }
        self.rows.append(row)
        if (kind == "sound") == bool(reasons) and (kind == "sound" or gap):
            self._say(
                f"{bench.name} {runtime} {kind} {name}: {'FALSE ALARM' if kind == 'sound' else 'GOT THROUGH'} {row}"
            )

    def summary(self) -> dict[str, Any]:
        """Count what the bars are about."""
        planted = [r for r in self.rows if r["kind"] != "sound"]
        sound = [r for r in self.rows if r["kind"] == "sound"]
        escaped = [r for r in planted if r["passed"] and r["held_out"] and r["kind"] != "int8"]
        return {
            "planted": len(planted),
            "refused": sum(not r["passed"] for r in planted),
            "passed_and_equal_on_held_out_inputs": sum(r["passed"] and not r["held_out"] for r in planted),
            "got_through": [r for r in escaped if not at_the_edge(r)],
            "at_the_edge": [r for r in escaped if at_the_edge(r)],
            "let_through_by_int8": [r for r in planted if r["passed"] and r["held_out"] and r["kind"] == "int8"],
            "sound": len(sound),
            "false_alarms": [r for r in sound if not r["passed"]],
        }


def plant(campaign: Campaign, bench: Bench, runtimes: tuple[str, ...], say: Callable[[str], None]) -> None:
    """Plant everything in one model."""
    source = bench.described.source
    for target in runtimes:
        try:
            session = bench.session(target)
        except Exception as error:  # noqa: BLE001  a runtime that is not here is said, and left out
            say(f"{bench.name} {target}: {error}")
            continue
        campaign.add(bench, target, "sound", "as built", session.run, None)
        run = remembered(session.run)
        for name, change in around(bench).items():
            campaign.add(bench, target, "around", name, change(run), None)
        proved = bench.judge({n: session.run(f) for n, f in bench.feeds.items()})
        session.close()
        for name, (mode, when) in LATER.items():
            with contextlib.closing(bench.session(target, mode=mode)) as opened:
                if slot_errors := name == "zeros in the last slot" and opened.slots < 2:
                    say(f"{bench.name} {target}: {name}: {slot_errors and 'one slot only'}")
                    continue
                kind = "sound" if name.startswith("sound") else "later"
                campaign.add(
                    bench, target, kind, name, None, timed(bench, Turning(opened, when), mode, held_to(proved))
                )
        for threads in (1, 2, 3):
            for mode in ("latency", "throughput"):
                with contextlib.closing(bench.session(target, mode=mode, threads=threads)) as opened:
                    campaign.add(bench, target, "sound", f"{threads} threads, {mode}", opened.run, None)
    if "tf" in runtimes:
        for name, run in in_keras(source):
            campaign.add(bench, "tf", "module", name, run, None)
    if "torch" in runtimes:
        for name, run in in_module(source):
            campaign.add(bench, "torch", "module", name, run, None)
    if "ort" in runtimes:
        plant_in_graphs(campaign, bench, say)


def plant_in_graphs(campaign: Campaign, bench: Bench, say: Callable[[str], None]) -> None:
    """Plant errors in the ONNX file, and run it in both runtimes that take one as it is."""
    import onnx

    source = bench.described.source

    path = bench.folder / "onnx" / bench.onnx.file.path
    plain = onnx.load(path).SerializeToString()
    for threads in (1, 2):
        for runtime in RUNTIMES:
            campaign.add(
                bench, runtime, "sound", f"the plain file, {threads} threads",
                runs_of(plain, runtime, source.outputs, threads), None,
            )  # fmt: skip
    for name, model in in_graph(path):
        for runtime in RUNTIMES:
            try:
                run = runs_of(model.SerializeToString(), runtime, source.outputs)
            except Exception as error:  # noqa: BLE001  a graph that no runtime takes is not a planted error
                say(f"{bench.name} {runtime} {name}: {str(error).splitlines()[0][:120]}")
                continue
            campaign.add(bench, runtime, "graph", name, run, None)
    for name, run in in_int8(path, bench):
        campaign.add(bench, "ort", "int8", name, run, None, precision="int8")


def say(text: str) -> None:
    """Show a line of progress."""
    print(text, file=sys.stderr, flush=True)


def rows_of(name: str, folder: Path, runtimes: tuple[str, ...], threads: int, *, keras: bool) -> list[dict[str, Any]]:
    """Make a bench, plant everything in it, and return the rows."""
    campaign, made = Campaign(say), bench(name, folder, threads, keras=keras, export=not keras)
    say(f"{folder.name}: {len(made.feeds)} feeds")
    plant(campaign, made, runtimes, say)
    return campaign.rows


def main() -> None:
    """Run the campaign and write down every row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--folder", type=Path, help="where models and variants are kept; a temporary one by default")
    parser.add_argument("--only", default=",".join(SHAPES), help="models, by comma")
    parser.add_argument(
        "--targets", default="torch,aoti,ort,openvino-fp32,ort-openvino,tf,tf-xla", help="runtimes, by comma"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--answer", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.answer:
        return answer(Path(asked.answer[0]), int(asked.answer[1]), asked.answer[2])

    campaign = Campaign(say)
    # A process for each bench: XLA keeps the code of every graph mapped, and a process may have 65,530 maps.
    alone = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1)
    with tempfile.TemporaryDirectory() as scratch, alone:
        for name, keras in itertools.product(asked.only.split(","), (False, True)):
            runtimes = [t for t in asked.targets.split(",") if (t in TENSORFLOW) == keras]
            if not runtimes:
                continue
            folder = (asked.folder or Path(scratch)) / (f"keras_{name}" if keras else name)
            campaign.rows += alone.submit(rows_of, name, folder, tuple(runtimes), asked.threads, keras=keras).result()
            found = campaign.summary()
            if asked.json:
                document = {"hardware": to_json(hardware.detect()), "summary": found, "rows": "@"}
                rows = ",\n  ".join(json.dumps(row) for row in campaign.rows)
                text = json.dumps(document, indent=1).replace('"@"', f"[\n  {rows}\n ]")
                asked.json.write_text(text + "\n")
            say(f"{folder.name}: { ({k: len(v) if isinstance(v, list) else v for k, v in found.items()}) }")
    failed = found["got_through"] or found["false_alarms"]
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
