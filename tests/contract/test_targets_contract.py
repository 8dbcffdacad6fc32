"""What every target promises, checked over all that discovery finds: built here, or a counted skip with its reason."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from accel.bench.timed import open_timed, time_round
from accel.builders import ConvertingBuilder, targets
from accel.core import environments, hardware
from accel.core.errors import AccelError, SampleError, StageError, UnavailableError
from accel.core.feeds import write_feeds
from accel.core.processes import Worker
from accel.core.values import Skipped, Target, TritonModel
from accel.run import tasks
from accel.triton.releases import NEWEST

ALL = [Target(name, device) for name, builder in targets.discover().items() for device in builder.targets[name].devices]


@pytest.fixture(params=ALL, ids=str)
def target(request):
    return request.param


@pytest.fixture
def artifact(bench, target):
    """The target built, or a skip with the reason that the user would read."""
    skipped = bench.skip_reason(target)
    if skipped is not None:
        pytest.skip(f"{target}: {skipped.reason}")
    return bench.build(target)


@pytest.fixture
def opened(target, artifact):
    """The target built, where a process of accel can run it."""
    if targets.info(target).server_only:
        pytest.skip(f"{target}: only a Triton server runs it; test_only_a_server_runs_it")
    return artifact


@pytest.fixture
def session(bench, target, opened):
    if targets.discover()[target.name].environment(target) != "main":
        pytest.skip(f"{target}: its runtime lives in another interpreter; test_agrees_with_the_source runs it there")
    with contextlib.closing(bench.open(opened)) as session:
        yield session


def test_availability_is_none_or_a_reason_with_a_fix(target):
    skipped = targets.discover()[target.name].available(target)
    if skipped is not None:
        assert isinstance(skipped, Skipped)
        assert len(skipped.reason) > 10
        assert skipped.fix


def test_unavailable_targets_refuse_to_build(bench, target, tmp_path):
    skipped = bench.skip_reason(target)
    if skipped is None:
        pytest.skip(f"{target} can be built here")
    if target.device != "cuda":
        pytest.skip(f"{target}: {skipped.reason}")
    builder = targets.discover()[target.name]
    with pytest.raises(UnavailableError) as error:
        builder.build(bench.request(target), builder.options(), tmp_path)
    assert error.value.message == skipped.reason
    assert error.value.fix == skipped.fix


TYPED = [t for t in ALL if isinstance(targets.discover()[t.name], ConvertingBuilder)]


@pytest.mark.parametrize("target", TYPED, ids=str)
def test_a_typed_file_agrees_with_the_source_on_the_cpu(bench, target, tmp_path):
    """What is built where a GPU is has been proved before, on any machine."""
    asked = targets.info(target).precision
    found = bench.task(target, tasks.prepare, bench.request(target), tmp_path)
    for have, promised in ((found.onnx.inputs, bench.source.inputs), (found.onnx.outputs, bench.source.outputs)):
        assert {(s.name, s.dtype) for s in have} == {(s.name, s.dtype) for s in promised}
    answers = bench.precision_converted_answers(target, found, tmp_path)
    verdict = bench.parity(asked, answers)
    assert verdict.passed, verdict.reasons


def test_declares_the_client_contract(bench, artifact):
    for found, promised in (
        (artifact.built.inputs, bench.source.inputs),
        (artifact.built.outputs, bench.source.outputs),
    ):
        assert sorted(found, key=lambda s: s.name) == sorted(promised, key=lambda s: s.name)
    assert artifact.built.precision == targets.info(artifact.variant.target).precision
    assert (bench.variant_folder(artifact.variant) / artifact.built.entry).exists()
    assert artifact.files
    if artifact.variant.target.name != "null":
        assert artifact.built.versions


def test_only_a_server_runs_it(bench, target, artifact):
    if not targets.info(target).server_only:
        pytest.skip(f"{target} runs in process")
    with pytest.raises(UnavailableError, match="only Triton"):
        bench.open(artifact)


def test_agrees_with_the_source(bench, target, opened):
    artifact = opened
    answers, precision = bench.answers(artifact)
    if target.name == "null":
        assert precision == "none"
        assert not bench.parity("int8", answers).passed
        return
    if artifact.built.precision != "none":  # ``none``: the runtime chooses, and what it chose is the gate
        assert precision == artifact.built.precision
    verdict = bench.parity(precision, answers)
    assert verdict.passed, verdict.reasons


@pytest.mark.parametrize("point", ["min", "odd", "opt", "max"])
def test_answers_every_shape(bench, target, session, point):
    feed = bench.feed(point)
    sizes = {d: n for s in session.inputs for d, n in zip(s.dims, feed[s.name].shape, strict=True)}
    found = session.run(feed)
    assert sorted(found) == sorted(s.name for s in bench.source.outputs)
    for spec in bench.source.outputs:
        assert found[spec.name].dtype == np.dtype(spec.dtype)
        assert found[spec.name].shape == tuple(sizes.get(d, d) for d in spec.dims)
        assert np.isfinite(found[spec.name]).all()
    again = session.run(feed)
    for name, value in found.items():
        np.testing.assert_array_equal(again[name], value)


@pytest.mark.skipif(not hardware.shares_cpus(1), reason="one CPU: there is no other to go to")
@pytest.mark.parametrize(
    "target", [Target(name, "cpu") for name in ("ort", "ort-openvino", "openvino-fp32")], ids=str, indirect=True
)
def test_one_thread_goes_to_any_cpu(bench, target, opened, tmp_path):
    """A server has a process for each instance: pinned to the first CPU, all of one thread would share it."""
    feeds = tmp_path / "feeds.npz"
    write_feeds(feeds, {"opt": bench.feed("opt")})
    python = environments.python(targets.discover()[target.name].environment(target))
    seen: set[str] = set()
    with Worker(tmp_path / "log", threads=1, timeout_s=240, python=python) as worker, ThreadPoolExecutor() as pool:
        worker.call(open_timed, opened, bench.variant_folder(opened.variant), 1, "latency", feeds, ("opt",))
        calls = pool.submit(worker.call, time_round, "latency", "opt", 0, 4000)
        while not calls.done():  # a thread is pinned while it computes
            for file in Path(f"/proc/{worker._group.process.pid}/task").glob("*/status"):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    seen |= {line for line in file.read_text().splitlines() if "Cpus_allowed_list" in line}
        calls.result()
    mine = next(line for line in Path("/proc/self/status").read_text().splitlines() if "Cpus_allowed_list" in line)
    assert seen == {mine}


def test_results_stay_valid(bench, session):
    first = session.run(bench.feed("opt"))
    kept = {name: value.copy() for name, value in first.items()}
    session.run(bench.feed("max"))
    for name, value in kept.items():
        np.testing.assert_array_equal(first[name], value)


def test_takes_arrays_that_cannot_be_written(bench, session):
    feed = bench.feed("odd")
    expected = session.run(feed)
    for value in feed.values():
        value.flags.writeable = False
    for name, value in session.run(feed).items():
        np.testing.assert_array_equal(value, expected[name])


def test_slots_of_throughput_mode_give_the_same_answers(bench, target, session, artifact):
    feeds = [bench.feed("odd"), bench.feed("opt"), bench.feed("min")]
    expected = [session.run(feed) for feed in feeds]
    with contextlib.closing(bench.open(artifact, mode="throughput")) as many:
        assert many.slots >= 1
        for _ in range(3):
            for slot in range(many.slots):
                many.bind(feeds[slot % 3], slot=slot)
                many.submit(slot=slot)
            for slot in range(many.slots):
                many.wait(slot=slot)
                for name, value in many.read(slot=slot).items():
                    # Another number of threads sums in another order.
                    np.testing.assert_allclose(value, expected[slot % 3][name], rtol=0, atol=2e-2)
    if target.name in ("openvino", "ort", "null"):
        assert many.slots >= 2


def test_refuses_bad_feeds(bench, session):
    good = bench.feed("opt")
    name, value = next(iter(good.items()))
    limit = next(s.range for s in session.inputs if s.name == name)
    assert limit is not None
    beyond = value.copy()
    beyond[0, 3] = limit[1] + 1
    for bad in (
        {name: value},
        good | {name: value.astype(np.float32)},
        good | {name: value[0]},
        good | {name: value[:, :-1]},
        good | {name: beyond},
        good | {"stranger": value},
    ):
        with pytest.raises(SampleError):
            session.run(bad)
    session.run(good)


def test_close_ends_it(bench, opened, target):
    if targets.discover()[target.name].environment(target) != "main" or target.name == "null":
        pytest.skip(f"{target} holds nothing in this process")
    session = bench.open(opened)
    session.run(bench.feed("min"))
    session.close()
    with pytest.raises((StageError, IndexError)):
        session.run(bench.feed("min"))


def test_says_how_triton_serves_it(artifact):
    builder = targets.discover()[artifact.variant.target.name]
    served = builder.triton(artifact, NEWEST)
    if targets.info(artifact.variant.target).needs == "tensorflow":
        assert isinstance(served, Skipped)
        assert "serve the model as ONNX" in served.reason
        assert served.fix
        served = builder.triton(artifact, "25.02")
    assert isinstance(served, TritonModel)
    assert served.filename == artifact.built.entry
    assert set(served.input_names) <= {s.name for s in artifact.built.inputs}
    assert set(served.output_names) <= {s.name for s in artifact.built.outputs}


def test_options_have_defaults_and_unknown_files_are_refused(bench, target, artifact, tmp_path):
    builder = targets.discover()[target.name]
    builder.options()
    if builder.environment(target) != "main" or target.name == "null" or target.name.startswith("aoti"):
        pytest.skip(f"{target}: no file format of its own to break here")
    (tmp_path / artifact.built.entry).write_bytes(b"not a model")
    with pytest.raises(AccelError):
        builder.open(artifact, tmp_path, threads=1, mode="latency")


@pytest.mark.parametrize("target", [Target("aoti", "cpu"), Target("aoti-bf16", "cpu")], ids=str)
def test_a_package_for_a_cpu_has_frozen_weights(target, artifact):
    """Inductor freezes nothing where gradients are on, and says nothing: products were those of eager torch."""
    assert artifact.built.facts["frozen"] is True
    assert artifact.built.facts["packed_products"] >= 2


STATIC = [t for t in ALL if targets.info(t).static and t.device == "cpu"]


@pytest.mark.parametrize("target", STATIC, ids=str)
def test_static_build_takes_its_one_shape(bench, target):
    skipped = bench.skip_reason(target)
    if skipped is not None:
        pytest.skip(f"{target}: {skipped.reason}")
    artifact = bench.build(target, static=True)
    shape = bench.source.profile["input_ids"].opt
    assert artifact.variant.id == f"{target}+{shape[0]}x{shape[1]}"
    assert all(spec.dims == shape for spec in artifact.built.inputs)
    assert all(isinstance(d, int) for spec in artifact.built.outputs for d in spec.dims)
    with contextlib.closing(bench.open(artifact)) as fixed:
        answer = fixed.run(bench.feed("opt"))
        with pytest.raises(SampleError):
            fixed.run(bench.feed("odd"))
    with contextlib.closing(bench.open(bench.build(target))) as dynamic:
        for name, value in dynamic.run(bench.feed("opt")).items():
            centred = value - value.mean(axis=0)
            assert np.square(answer[name] - value).sum() < 0.05 * max(np.square(centred).sum(), np.square(value).sum())
