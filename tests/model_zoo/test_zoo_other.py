"""The zoo's models that are neither text nor pictures, and a new file, as docs/zoo.md tells how to write one."""

import re
from pathlib import Path

import numpy as np
import pytest

import model_zoo
from accel.exporters import describe, load
from accel.exporters.axes import extents, shapes_at
from accel.exporters.probe import example_arrays
from accel.exporters.source_model import SourceModel
from accel.exporters.sources import recognise
from model_zoo._audio import RATE, speech

OTHER = ("autoencoder", "dlrm", "whisper-encoder")
GUIDE = Path(__file__).parents[2] / "docs" / "zoo.md"


@pytest.fixture(params=[*(f"{n}@small" for n in OTHER), "autoencoder"])
def model(request: pytest.FixtureRequest) -> SourceModel:
    return load(describe(recognise(request.param)))


def test_a_model_keeps_what_its_entry_declares(model: SourceModel) -> None:
    entry = model_zoo.entry(model.source.reference)
    assert model.module is not None
    assert sum(p.numel() for p in model.module.parameters()) == entry.parameters
    items = entry.samples(5)
    assert len({i[entry.inputs[0].name].tobytes() for i in items}) == 5
    axes = extents(entry.inputs, entry.profile)
    feeds = [items[0], example_arrays(entry.inputs, shapes_at(entry.inputs, dict.fromkeys(axes, 3)))]
    for feed in feeds:
        for spec in entry.inputs:
            assert feed[spec.name].shape[1:] == spec.dims[1:]
            assert spec.range is None or (
                spec.range[0] <= feed[spec.name].min() <= feed[spec.name].max() <= spec.range[1]
            )
        for output, value in zip(model.source.outputs, model.run(feed).values(), strict=True):
            batch = feed[entry.inputs[0].name].shape[0]
            assert value.shape == tuple(batch if d == "batch" else d for d in output.dims)
            assert str(value.dtype) == output.dtype
            assert np.isfinite(value).all()


def test_outputs_depend_on_the_input(model: SourceModel) -> None:
    """Else a comparison would measure rounding: what differs between samples is a good part of the whole."""
    items = model_zoo.entry(model.source.reference).samples(16)
    answers = model.run({name: np.concatenate([i[name] for i in items]) for name in items[0]})
    for value in answers.values():
        signal = np.square(value - value.mean(axis=0)).sum()
        assert signal > 0.03 * np.square(value).sum()


def test_every_bag_of_ids_counts_and_its_padding_does_not() -> None:
    model = load(describe(recognise("dlrm@small")))
    feed = dict(model_zoo.entry("dlrm@small").samples(1)[0])
    before = model.run(feed)["click_logit"]
    for spec in model.source.inputs[1:]:
        other = {**feed, spec.name: np.roll(feed[spec.name], 1, axis=1)}
        np.testing.assert_allclose(model.run(other)["click_logit"], before, rtol=1e-5, err_msg="a bag has no order")
        changed = feed[spec.name].copy()
        changed[0, 0] = changed[0, 0] % spec.range[1] + 1 if spec.range and spec.range[1] > 1 else 0
        if (changed != feed[spec.name]).any():
            assert abs(model.run({**feed, spec.name: changed})["click_logit"] - before).item() > 1e-6


def test_speech_is_made_by_rule() -> None:
    first = speech(3, 1.5)
    assert first.shape == (int(1.5 * RATE),)
    assert first.dtype == np.float32
    assert 0.05 < np.abs(first).max() <= 1
    np.testing.assert_array_equal(first, speech(3, 1.5))
    assert not np.array_equal(first, speech(4, 1.5))
    power = np.abs(np.fft.rfft(first)) ** 2
    # Voices live below 4 kHz.
    assert power[: len(power) // 2].sum() > 0.9 * power.sum()


def test_the_guides_own_model_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (tmp_path / "flowers.py").write_text(code)
    monkeypatch.setattr(model_zoo, "__path__", [*model_zoo.__path__, str(tmp_path)])
    for name in ("flowers", "flowers@small"):
        entry = model_zoo.entry(name)
        model = load(describe(recognise(name)))
        assert model.module is not None
        assert sum(p.numel() for p in model.module.parameters()) == entry.parameters
        assert model.run(entry.samples(1)[0])["logits"].shape == (1, 3)
