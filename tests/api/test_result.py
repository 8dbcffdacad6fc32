"""What ``accel.optimize`` gives for a module in memory: the chosen variant as a drop-in, figures, decisions, files."""

import asyncio
import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tiny_module
import torch

import accel
from accel.core import document
from accel.core.errors import CheckFailed, SampleError, StageError, UsageError

IDS = ("torch@cpu", "ort@cpu", "openvino-fp32@cpu")


@pytest.mark.parametrize("id", IDS)
def test_a_variant_answers_as_the_module_does(result, id):
    module = tiny_module.module().eval()
    with result.variants[id].load(threads=1) as model:
        for sample in tiny_module.samples(6):
            with torch.inference_mode():
                expected = module(**sample)
            found = model(**sample)
            assert list(found) == ["logits", "rest"]
            assert isinstance(found["rest"], tuple)
            assert found["rest"][2] is None
            torch.testing.assert_close(found["logits"], expected["logits"], atol=1e-5, rtol=1e-4)
            torch.testing.assert_close(found["rest"][0], expected["rest"][0], atol=1e-5, rtol=1e-4)
            assert found["rest"][1].dtype == torch.int64
            assert torch.equal(found["rest"][1], expected["rest"][1])


def test_arguments_come_by_position_or_name_and_arrays_give_arrays(result):
    sample = tiny_module.samples(1)[0]
    by_name = result.best(**sample)
    by_position = result.best(sample["ids"], sample["mask"], 2.0, extra=sample["extra"])
    assert torch.equal(by_name["logits"], by_position["logits"])
    arrays = result.best(sample["ids"].numpy(), mask=sample["mask"].numpy(), extra={"bias": sample["extra"]["bias"]})
    assert isinstance(arrays["logits"], torch.Tensor)  # one torch tensor among them makes the result torch's
    arrays = result.best(sample["ids"].numpy(), sample["mask"].numpy(), extra={"bias": sample["extra"]["bias"].numpy()})
    assert isinstance(arrays["logits"], np.ndarray)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"mask": None}, SampleError, "'mask' is missing"),
        ({"scale": 3.0}, UsageError, "optimised with 2.0"),
        ({"strange": 1}, UsageError, "no argument 'strange'"),
        ({"ids": torch.full((1, 3), 99)}, SampleError, "holds 99"),
        ({"ids": torch.zeros(17, 3, dtype=torch.int64)}, SampleError, "axis 'batch'"),
    ],
)
def test_a_call_that_was_not_proved_is_refused(result, change, error, message):
    sample = {**tiny_module.samples(1)[0], **change}
    with pytest.raises(error, match=message):
        result.best(**sample)


def test_sizes_beyond_the_proved_ones_are_refused(result):
    long = {"ids": torch.zeros(1, 30, dtype=torch.int64), "mask": torch.ones(1, 30)}
    with pytest.raises(SampleError, match="were proved"):
        result.best(**long, extra={"bias": torch.zeros(1, 30, 16)})


def test_variants_have_figures_and_files(result):
    assert set(result.variants) == set(IDS)
    for id, variant in result.variants.items():
        assert (variant.id, variant.status) == (id, "ok")
        assert variant.speedup > 0
        assert variant.p50_ms > 0
        assert variant.parity.passed
        assert (variant.repository / "manifest.json").is_file()
        for file in variant.artifact.files:
            assert (variant.folder / file.path).stat().st_size == file.bytes
    assert result.variants["torch@cpu"].speedup == 1.0


def test_the_decision_names_the_repository_that_was_chosen(result):
    written = json.loads((result.path / "run.json").read_text())
    for decision in written["decisions"]:
        assert decision["repository"] == f"repositories/{decision['chosen']}"
    assert result.decision.reason
    assert result.best.id == result.decision.chosen


def test_the_baseline_says_that_it_is_the_exported_program(result):
    assert result.document.model.kind == "exported"
    assert "exported" in result.document.model.baseline.name


def test_a_pickle_holds_paths(result):
    copied = pickle.loads(pickle.dumps(result))  # noqa: S301
    assert copied.path == result.path
    data = pickle.dumps(result.best)
    assert len(data) < 1000
    sample = tiny_module.samples(1)[0]
    with pickle.loads(data) as model:  # noqa: S301
        assert torch.equal(model(**sample)["logits"], result.best(**sample)["logits"])


def test_threads_and_event_loops_may_call_it_at_once(result):
    samples = tiny_module.samples(16)
    expected = [result.best(**s)["logits"] for s in samples]
    with result.variants["openvino-fp32@cpu"].load(mode="throughput") as model, ThreadPoolExecutor(8) as pool:
        for one, other in zip(expected, pool.map(lambda s: model(**s)["logits"], samples * 4), strict=False):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)

    async def all_at_once() -> list[torch.Tensor]:
        return [answer["logits"] for answer in await asyncio.gather(*(result.best.async_call(**s) for s in samples))]

    for one, other in zip(expected, asyncio.run(all_at_once()), strict=True):
        assert torch.equal(one, other)


def test_a_closed_model_says_so_and_the_result_opens_another(result):
    model = result.best
    with result:
        pass
    with pytest.raises(StageError, match="closed"):
        model(**tiny_module.samples(1)[0])
    model.close()
    assert result.best is not model


def test_a_call_on_the_event_loop_after_closing_says_so(result):
    sample = tiny_module.samples(1)[0]

    async def closed_while_called(model) -> list[object]:
        first = asyncio.create_task(model.async_call(**sample))
        await first
        await asyncio.to_thread(model.close)
        return await asyncio.gather(*(model.async_call(**sample) for _ in range(3)), return_exceptions=True)

    model = result.variants["ort@cpu"].load()
    assert all(isinstance(e, StageError) and "is closed" in e.message for e in asyncio.run(closed_while_called(model)))
    untouched = result.variants["ort@cpu"].load()
    untouched.close()
    with pytest.raises(StageError, match="is closed"):
        asyncio.run(untouched.async_call(**sample))
    assert untouched._pool is None


def test_the_threads_of_one_torch_variant_are_not_those_of_the_process(result):
    sample, before = tiny_module.samples(1)[0], torch.get_num_threads()
    with (
        result.variants["torch@cpu"].load(threads=before + 1) as one,
        result.variants["torch@cpu"].load(threads=1) as two,
    ):
        assert torch.equal(one(**sample)["logits"], two(**sample)["logits"])
    assert torch.get_num_threads() == before


FORKED = """
import os, sys
import accel, numpy as np
model = accel.load(sys.argv[1])
pid = os.fork()
if pid:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
try:
    model(np.array([[1, 2, 3]]), mask=np.ones((1, 3), np.float32), extra={"bias": np.zeros((1, 3, 16), np.float32)})
except accel.AccelError as error:
    os._exit(0 if "before a fork" in str(error) else 3)
os._exit(4)
"""


def test_a_forked_process_is_told_to_load_again(result):
    path = str(result.variants["ort@cpu"].repository)
    done = subprocess.run([sys.executable, "-c", FORKED, path], timeout=60, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_notebook_shows_the_verdict(result, tmp_path):
    shown = result._repr_html_()
    assert result.decision.reason.split(" passes")[0] in shown
    assert all(id in shown for id in IDS)
    assert "<script" not in shown
    assert "http" not in shown
    page = result.report(tmp_path / "r.html").read_text()
    assert page == (result.path / "report.html").read_text()
    with pytest.raises(UsageError, match=r"\.html or \.md"):
        result.report(tmp_path / "r.pdf")


def test_a_function_gets_what_happens(result):
    events = json.loads((result.path / "events.json").read_text())
    assert {"load source", "export", "build and prove", "measure"} <= {
        text for kind, _, text in events if kind == "stage"
    }
    assert {id for kind, id, _ in events if kind == "done"} == set(IDS)


def test_the_command_repeats_the_run_from_its_files(result):
    command = result.document.command
    assert ".pt2" in command
    assert str(result.path) in command


def test_where_nothing_is_chosen_the_reason_is_said(tmp_path):
    found = accel.optimize(
        tiny_module.module(), tiny_module.samples(), targets="null", out=tmp_path / "run", rounds=2, round_s=0.02
    )
    with pytest.raises(CheckFailed, match="null@cpu gate_failed"):
        _ = found.best


def test_an_artifact_is_read_back_from_run_json(result):
    record = next(v for v in document.read(result.path).variants if v.id == "ort@cpu")
    artifact = record.to_artifact()
    assert artifact.variant.id == "ort@cpu"
    assert artifact.built.entry == "model.onnx"
    assert [s.name for s in artifact.built.inputs] == ["ids", "mask", "extra_bias"]
