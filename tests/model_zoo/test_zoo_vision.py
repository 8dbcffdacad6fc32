"""The zoo's vision models keep what they declare, tell pictures apart, and become ONNX that computes the same."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import model_zoo
from accel.core.accuracy.detections import match
from accel.core.values import Detections
from accel.exporters import describe, load
from accel.exporters.axes import extents, shapes_at
from accel.exporters.from_torch import write_onnx
from accel.exporters.source_model import SourceModel
from accel.exporters.sources import recognise
from model_zoo import _lettering, _pictures, densenet121, yolo

TORCH = ["densenet121", "east", "mobilenet-v2", "resnet50", "text-recognition", "vit", "yolo"]
NAMES = [*TORCH, "inception-v3"]


@pytest.fixture(scope="module")
def models() -> dict[str, SourceModel]:
    """Every reduced model, loaded once."""
    return {name: load(describe(recognise(f"{name}@small"))) for name in NAMES}


def joined(items: Any) -> dict[str, np.ndarray]:
    return {name: np.concatenate([i[name] for i in items]) for name in items[0]}


def feeds_of(name: str) -> list[dict[str, np.ndarray]]:
    """One feed at the largest and one at the smallest sizes, of real items."""
    entry = model_zoo.entry(f"{name}@small")
    axes = extents(entry.inputs, entry.profile)
    items = entry.samples(30)
    feeds = []
    for end in ("max", "min"):
        shapes = shapes_at(entry.inputs, {n: getattr(e, end) for n, e in axes.items()})
        spec = entry.inputs[0]
        fitting = [i for i in items if i[spec.name].shape[1:] == shapes[spec.name][1:]]
        feeds.append(joined(fitting[: shapes[spec.name][0]]))
    return feeds


@pytest.mark.parametrize("name", NAMES)
def test_a_full_entry_and_its_reduced_one_agree(name: str) -> None:
    full, small = model_zoo.entry(name), model_zoo.entry(f"{name}@small")
    assert [(s.name, s.dtype, len(s.dims)) for s in (*full.inputs, *full.outputs)] == [
        (s.name, s.dtype, len(s.dims)) for s in (*small.inputs, *small.outputs)
    ]
    assert small.framework == full.framework
    assert small.detections == full.detections
    assert small.parameters < full.parameters
    for entry in (full, small):
        assert set(entry.profile) == {s.name for s in entry.inputs}
        assert all(path.is_file() for path in entry.code_files().values())
        item = entry.samples(1)[0]
        for spec in entry.inputs:
            assert item[spec.name].dtype == spec.dtype
            sizes = zip(item[spec.name].shape[1:], entry.profile[spec.name].min[1:], strict=True)
            assert all(low <= size for size, low in sizes)
            assert all(isinstance(d, str) or d == n for d, n in zip(spec.dims, item[spec.name].shape, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_reduced_model_keeps_what_it_declares(name: str, models: dict[str, SourceModel]) -> None:
    entry, model = model_zoo.entry(f"{name}@small"), models[name]
    if name != "inception-v3":
        assert model.module is not None
        assert sum(p.numel() for p in model.module.parameters()) == entry.parameters
    for feed in feeds_of(name):
        answer = model.run(feed)
        assert list(answer) == [s.name for s in entry.outputs]
        for spec in entry.outputs:
            value = answer[spec.name]
            assert str(value.dtype) == spec.dtype
            known = {"batch": len(feed[entry.inputs[0].name]), "steps": feed[entry.inputs[0].name].shape[-1] // 4 - 1}
            assert value.shape == tuple(known[d] if isinstance(d, str) else d for d in spec.dims)
            assert np.isfinite(value).all()


@pytest.mark.parametrize("name", [n for n in NAMES if n != "yolo"])
def test_random_weights_tell_items_apart(name: str, models: dict[str, SourceModel]) -> None:
    """What differs between items is a good part of the answer: else a comparison would measure rounding alone."""
    answer = models[name].run(feeds_of(name)[0])
    for value in answer.values():
        assert value.std(axis=0).mean() > 0.05 * value.std()


def test_a_detector_finds_different_things(models: dict[str, SourceModel]) -> None:
    answer = models["yolo"].run(joined(model_zoo.entry("yolo@small").samples(8)))
    assert len(set(answer["count"])) > 2
    assert (np.diff(answer["scores"], axis=1) <= 0).all()
    for item, count in enumerate(answer["count"]):
        assert (answer["scores"][item, :count] > yolo.SCORE).all()
        assert not answer["boxes"][item, count:].any()
        assert (answer["boxes"][item, :count, 2:] > answer["boxes"][item, :count, :2]).all()


@pytest.mark.parametrize("name", ["text-recognition", "yolo"])
def test_onnx_has_the_operator_that_the_model_is_about(
    name: str, models: dict[str, SourceModel], tmp_path: Path
) -> None:
    """LSTM layers and non-maximum suppression stay what they are, and compute the same at other sizes than traced."""
    write_onnx(models[name], tmp_path / "model.onnx", opset=18)
    file = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    kinds = [n.op_type for n in file.graph.node]
    assert kinds.count({"yolo": "NonMaxSuppression", "text-recognition": "LSTM"}[name]) == (1 if name == "yolo" else 2)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for feed in feeds_of(name):
        expected = models[name].run(feed)
        found = dict(zip(expected, session.run(list(expected), feed), strict=True))
        if name == "yolo":
            assert match(expected, found, Detections(iou=0.99, score=1e-3)).share > 0.99
        else:
            np.testing.assert_allclose(found["log_probs"], expected["log_probs"], atol=1e-4)


def test_lines_of_text_come_in_runs_of_one_width() -> None:
    items = model_zoo.entry("text-recognition").samples(4 * _lettering.RUN)
    widths = [i["images"].shape[3] for i in items]
    assert all(len(set(widths[i : i + _lettering.RUN])) == 1 for i in range(0, len(widths), _lettering.RUN))
    assert len(set(widths)) == 4
    assert len({i["images"].tobytes() for i in items}) == len(items)
    ink = _lettering.line(5, 32, 128).astype(float)
    assert ink.max() - ink.min() > 80
    np.testing.assert_array_equal(_lettering.scene(3, 64, 48), _lettering.scene(3, 64, 48))


def test_settled_statistics_hold_for_other_pictures() -> None:
    import torch

    model = densenet121.load_small(None)
    seen: list[torch.Tensor] = []
    last = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)][-1]
    last.register_forward_hook(lambda own, given, found: seen.append(found))
    images = joined(_pictures.unsettled(densenet121.SMALL_INPUT, 16))["pixel_values"]
    with torch.inference_mode():
        model(torch.from_numpy(images))
    assert 0.3 < float(seen[0].std()) < 3
    assert abs(float(seen[0].mean())) < 1
