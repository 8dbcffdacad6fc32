"""A pipeline of modules: parts are recorded, optimised and put in place; the whole answers alike."""

from typing import Any

import pytest
import torch

import accel
from accel.api import parts
from accel.core.errors import SampleError, UsageError


class Detector(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Conv2d(1, 2, 3, padding=1)
        self.config = {"threshold": 0.0}

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.net(image).amax(dim=(2, 3))


class Reader(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(2, 5)
        self.never = torch.nn.Linear(2, 2)

    def forward(self, found: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        return {"scores": self.net(found) * scale}


class Pipeline:
    """Not a module itself, as pipelines often are."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.detector = Detector().eval()
        self.reader = Reader().eval()

    def __call__(self, image: torch.Tensor) -> dict[str, Any]:
        with torch.inference_mode():
            found = self.detector(image)
            scores = self.reader(found, scale=2.0)["scores"]
        return {"scores": scores, "best": scores.argmax(-1).tolist(), "threshold": self.detector.config["threshold"]}


def images(count: int = 12) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(3)
    return [torch.rand(1, 1, 8, 8 + i % 3, generator=made) for i in range(count)]


@pytest.fixture(scope="module")
def optimised(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pipeline, accel.PartsResult]:
    pipeline = Pipeline()
    found = accel.optimize_parts(
        pipeline,
        {"detector": {"targets": "ort"}, "reader": {}},
        run=pipeline,
        samples=images(),
        out=tmp_path_factory.mktemp("parts"),
        targets="openvino-fp32",
        objective="latency",
        rounds=3,
        progress=False,
    )
    return pipeline, found


def test_the_whole_answers_as_before(optimised):
    pipeline, found = optimised
    own = Pipeline()
    for image in images(4):
        expected, answer = own(image), pipeline(image)
        torch.testing.assert_close(answer["scores"], expected["scores"], atol=1e-4, rtol=1e-4)
        assert answer["best"] == expected["best"]
        assert answer["threshold"] == 0.0  # the part still answers for all but the call
    assert found.equal
    assert found.max_abs < 1e-4


def test_it_is_timed_end_to_end(optimised):
    _, found = optimised
    assert found.before_ms > 0
    assert found.after_ms > 0
    assert found.speedup_ci[0] <= found.speedup <= found.speedup_ci[1]
    assert {name: result.best.id for name, result in found.parts.items()} == {
        "detector": "ort@cpu",
        "reader": "openvino-fp32@cpu",
    }


def test_a_part_is_swapped_and_put_back(optimised):
    _, found = optimised
    outer = torch.nn.Module()
    outer.inner = torch.nn.Module()
    outer.inner.reader = Pipeline().reader
    own = accel.replace(outer, "inner.reader", found.parts["reader"].best)
    given = torch.ones(1, 2)
    torch.testing.assert_close(outer.inner.reader(given, scale=2.0)["scores"], own(given, scale=2.0)["scores"].detach())
    assert "openvino" in repr(outer)
    outer.inner.reader = own
    assert outer.inner.reader(given).keys() == {"scores"}


def test_what_cannot_be_recorded_is_said():
    pipeline = Pipeline()
    with pytest.raises(UsageError, match="no part 'reeder'"):
        parts.record(pipeline, ["reeder"], run=pipeline, samples=images(1))
    with pytest.raises(UsageError, match=r"did you mean net"):
        parts.record(pipeline, ["reader.nett"], run=pipeline, samples=images(1))
    with pytest.raises(SampleError, match=r"never called its part 'reader\.never'"):
        parts.record(pipeline, ["reader.never"], run=pipeline, samples=images(1))


def test_inputs_are_those_of_the_call_even_if_they_change_later():
    pipeline = Pipeline()

    def run(image: torch.Tensor) -> None:
        with torch.inference_mode():
            found = pipeline.detector(image)
            pipeline.reader(found, scale=1.0)
            found.zero_()

    recorded = parts.record(pipeline, ["reader"], run=run, samples=images(2))
    assert len(recorded["reader"]) == 2
    assert recorded["reader"][0]["found"].abs().sum() > 0
    assert recorded["reader"][0]["scale"] == 1.0
