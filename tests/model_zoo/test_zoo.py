"""Every zoo entry keeps what it declares; MiniLM's metric tells a good variant from a bad one."""

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import model_zoo
from accel.core.errors import InputError, UnavailableError
from accel.core.values import TensorSpec
from accel.exporters import describe, load
from accel.exporters.axes import extents, shapes_at
from accel.exporters.probe import example_arrays
from accel.exporters.sources import recognise
from model_zoo import _text
from model_zoo._pictures import dead_leaves, pictures

NAMES = {
    *("bert", "bert-large", "distilbert", "minilm", "roberta", "t5-encoder", "gpt2"),
    *("resnet50", "densenet121", "inception-v3", "vit", "mobilenet-v2", "east", "text-recognition", "yolo"),
    *("whisper-encoder", "dlrm", "autoencoder"),
    *("pp-ocr-rec", "pp-ocr-det", "magika", "crepe-tiny", "crepe-full"),
    *("basic-pitch", "basic-pitch-tf", "silero-vad", "resemblyzer"),
}
FILE = """
from accel.core.values import ShapeRange, TensorSpec
from model_zoo import Entry

ENTRY = Entry(
    name="mine",
    title="A model of one's own",
    licence="MIT",
    parameters=2,
    inputs=(TensorSpec("ids", "int64", ("batch", 3), (0, 9)),),
    outputs=(TensorSpec("score", "float32", ("batch", 1)),),
    profile={"ids": ShapeRange((1, 3), (1, 3), (4, 3))},
    load=lambda folder: None,
    samples=lambda count: [],
    origin="nothing",
)
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Write a zoo file that is found beside the others, under a name of its own each time."""
    monkeypatch.setattr(model_zoo, "__path__", [*model_zoo.__path__, str(tmp_path)])

    def write(text: str) -> Path:
        path = tmp_path / f"mine_{uuid.uuid4().hex}.py"
        path.write_text(text)
        return path

    yield write
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(f"model_zoo.{path.stem}", None)


def test_a_file_of_ones_own_is_found(written: Callable[[str], Path]) -> None:
    written(FILE)
    assert model_zoo.entry("mine").parameters == 2


@pytest.mark.parametrize(
    ("instead", "of", "message", "fix"),
    [
        ("", '    licence="MIT",\n', "Entry lacks licence", "pretrained weights"),
        ("", '    profile={"ids": ShapeRange((1, 3), (1, 3), (4, 3))},\n', "Entry lacks profile", "name → ShapeRange"),
        ("licens=", "licence=", r"no field 'licens' \(did you mean licence\?\)", "its fields are name, title"),
        ('"My Model"', '"mine"', "name: expected lower-case", "accel zoo"),
        ('parameters="two"', "parameters=2", "parameters: expected a whole number, found 'two'", "number of weights"),
        (
            "[]",
            '(TensorSpec("score", "float32", ("batch", 1)),)',
            "outputs: expected a tuple of TensorSpec",
            "TensorSpec",
        ),
        ('("batch", 3))', '("batch", 3), (0, 9))', r"inputs\[ids\]: expected a range", "range of values"),
        ('"int65"', '"int64"', r"inputs\[ids\]: expected NumPy's name", "TensorSpec"),
        ('{"idz"', '{"ids"', "profile: expected a ShapeRange for each of", "ShapeRange"),
        ("(4, 4)", "(4, 3)", r"profile\[ids\]: expected the fixed size 3", "largest shape"),
        ("(5, 3), (4, 3)", "(1, 3), (4, 3)", r"profile\[ids\]: expected min <= opt <= max", "largest shape"),
        ("(4,)", "(4, 3)", r"profile\[ids\]: expected 2 sizes each", "largest shape"),
        ('"x", resolve="none"', '"nothing"', "resolve: expected a function or None, found 'none'", "local folder"),
        ('"x", mask="m"', '"nothing"', "mask: expected one of the inputs", "padded positions"),
        ('"x", hub="bert"', '"nothing"', "hub: expected org/name", "hub id"),
        ('"x", gate=("f1", 0.9)', '"nothing"', "metric: expected a value: gate and metric go together", "gate's feeds"),
        ('"x", family="audio"', '"nothing"', "family: expected one of transformer, vision, other", "network"),
        ('"x", small=3', '"nothing"', "small: expected a function or None", "reduced model"),
        ('"x", states={"ids": "hn"}', '"nothing"', "states: expected input -> output", "what the step before left"),
        ('"x", extra_files=("no.py",)', '"nothing"', "extra_files: expected files of model_zoo/", "samples"),
        (
            "MINE = Entry(",
            "ENTRY = Entry(",
            "expected ENTRY, a model_zoo.Entry; there is none",
            "begin its name with _",
        ),
        ("import nowhere\nfrom model_zoo", "from model_zoo", "cannot be imported: ModuleNotFoundError", None),
        ('"bert"', '"mine"', "name: 'bert' is another file's", "rename"),
    ],
)
def test_a_wrong_file_is_told_by_file_and_field(
    written: Callable[[str], Path], instead: str, of: str, message: str, fix: str | None
) -> None:
    assert of in FILE
    path = written(FILE.replace(of, instead))
    with pytest.raises(InputError, match=message) as raised:
        model_zoo.entries()
    assert path.name in raised.value.message
    assert raised.value.fix is None if fix is None else fix in (raised.value.fix or "")


def test_a_wrong_reduced_entry_is_told(written: Callable[[str], Path]) -> None:
    tail = 'small=lambda: __import__("dataclasses").replace(ENTRY, parameters=-1)'
    written(FILE.replace('origin="nothing",', f'origin="nothing", {tail}'))
    with pytest.raises(InputError, match="the reduced entry of mine: parameters"):
        model_zoo.entry("mine@small")


def test_the_zoo_is_found_by_listing_and_costs_nothing() -> None:
    assert set(model_zoo.entries()) == NAMES
    code = (
        "import sys, model_zoo; model_zoo.entries();"
        "print([m for m in ('torch', 'transformers', 'tensorflow', 'PIL', 'scipy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["bert", "minilm", "resnet50"])
def test_an_entry_keeps_what_it_declares(name: str) -> None:
    entry = model_zoo.entry(name)
    axes = extents(entry.inputs, entry.profile)
    assert set(entry.profile) == {s.name for s in entry.inputs}
    assert all(path.is_file() for path in entry.code_files().values())
    assert entry.mask is None or entry.mask in entry.profile
    assert (entry.gate is None) == (entry.metric is None)
    items = entry.samples(3)
    source = describe(recognise(name))
    model = load(source)
    assert model.module is not None
    assert sum(p.numel() for p in model.module.parameters()) == entry.parameters
    sizes = {n: 2 if n == "batch" else 7 for n in axes}
    for feed in (items[0], example_arrays(entry.inputs, shapes_at(entry.inputs, sizes))):
        for output, value in zip(source.outputs, model.run(feed).values(), strict=True):
            known = dict(zip(entry.inputs[0].dims, feed[entry.inputs[0].name].shape, strict=True))
            assert value.shape == tuple(known.get(d, d) for d in output.dims)
            assert str(value.dtype) == output.dtype
            assert np.isfinite(value).all()


def test_weights_that_cannot_be_had_are_told_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    source = describe(recognise("bert"))
    assert (source.weights, source.accuracy) == ("random(seed=0)", "unproved")
    assert "random(seed=0)" in (source.notice or "")
    with pytest.raises(UnavailableError, match="HF_HUB_OFFLINE"):
        describe(recognise("bert", weights="pretrained"))
    minilm = describe(recognise("minilm", weights="random"))
    assert (minilm.weights, minilm.gate) == ("random(seed=0)", None)
    assert describe(recognise("minilm")).gate == ("rank_correlation", 0.98)


def test_sentences_are_many_distinct_and_of_mixed_length() -> None:
    texts = _text.sentences(450)
    words = [len(t.split()) for t in texts]
    assert len(set(texts)) == 450
    assert min(words) <= 3
    assert sum(w > 100 for w in words) >= 5
    with pytest.raises(ValueError, match="asked for"):
        _text.sentences(10_000)


def test_the_metric_ranks_good_above_bad_and_fails_a_constant() -> None:
    entry = model_zoo.entry("minilm")
    assert entry.metric is not None
    model = load(describe(recognise("minilm")))
    feeds = list(entry.samples(40))
    reference = [model.run(f) for f in feeds]
    rng = np.random.default_rng(0)

    def noisy(scale: float) -> list[dict[str, np.ndarray]]:
        return [{n: v + scale * rng.standard_normal(v.shape) for n, v in r.items()} for r in reference]

    assert entry.metric(reference, reference, feeds) == pytest.approx(1, abs=1e-12)
    assert entry.metric(noisy(0.01), reference, feeds) > 0.99
    assert entry.metric(noisy(1.0), reference, feeds) < 0.98
    constant = [{n: np.ones_like(v) for n, v in r.items()} for r in reference]
    assert entry.metric(constant, reference, feeds) == 0
    assert entry.metric([{n: v * np.nan for n, v in r.items()} for r in reference], reference, feeds) == -1


def test_pictures_have_the_spectrum_of_photographs() -> None:
    slopes = []
    for seed in range(6):
        grey = dead_leaves(seed, 128, 128).mean(2)
        power = np.abs(np.fft.fft2(grey - grey.mean())) ** 2
        radius = np.hypot(*np.meshgrid(np.fft.fftfreq(128), np.fft.fftfreq(128)))
        rings = [power[(radius >= lo) & (radius < lo * 1.5)].mean() for lo in (0.02, 0.04, 0.08, 0.16)]
        slopes.append(np.polyfit(np.log([0.02, 0.04, 0.08, 0.16]), np.log(rings), 1)[0])
    # Photographs fall off as 1/f^2, give or take; white noise would be flat.
    assert -3.2 < float(np.mean(slopes)) < -1.4
    np.testing.assert_array_equal(dead_leaves(3, 40, 60), dead_leaves(3, 40, 60))
    assert pictures(1, TensorSpec("x", "float32", ("batch", 1, 16, 24)))[0]["x"].shape == (1, 1, 16, 24)
    with pytest.raises(ValueError, match="fixed size"):
        pictures(1, TensorSpec("x", "float32", ("batch", 3, "h", "w")))


def test_random_resnet_tells_pictures_apart() -> None:
    """Settled statistics keep the picture in the logits: they differ more between pictures than a constant would."""
    model = load(describe(recognise("resnet50")))
    feed = {"pixel_values": np.concatenate([i["pixel_values"] for i in model_zoo.entry("resnet50").samples(4)])}
    logits = model.run(feed)["logits"]
    assert logits.std(axis=0).mean() > 0.05 * logits.std()
