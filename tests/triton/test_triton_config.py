"""Configs: text round trip, and what the server would refuse is refused here."""

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tritonclient.grpc import model_config_pb2 as pb

from accel.core.dtypes import DATATYPES
from accel.core.errors import InputError, UsageError
from accel.core.values import TensorSpec
from accel.triton.config import (
    DynamicBatching,
    Step,
    TritonConfig,
    WarmupSample,
    check_model_name,
    parse,
    render,
    to_protobuf,
)

PLAIN = TritonConfig(
    name="model",
    inputs=(TensorSpec("x", "float32", ("seq", 3)),),
    outputs=(TensorSpec("y", "float16", (2,)),),
    max_batch_size=8,
    versions=(1,),
    backend="onnxruntime",
    filename="model.onnx",
)
ENSEMBLE = replace(
    PLAIN, backend=None, filename=None, platform="ensemble", steps=(Step("inner", {"a": "x"}, {"b": "y"}),)
)
names = st.text("abcXYZ_[]0.-é", min_size=1, max_size=12)
specs = st.builds(
    TensorSpec,
    names,
    st.sampled_from(sorted(DATATYPES)),
    st.lists(st.one_of(st.integers(1, 2**40), st.just("axis")), max_size=4).map(tuple),
)
configs = st.builds(
    TritonConfig,
    name=st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_-]{0,20}\Z"),
    inputs=st.lists(specs, max_size=3).map(tuple),
    outputs=st.lists(specs, max_size=3).map(tuple),
    max_batch_size=st.integers(64, 4096),
    versions=st.lists(st.integers(1, 10**6), min_size=1, max_size=3).map(tuple),
    backend=st.sampled_from(["onnxruntime", "python"]),
    instances=st.integers(1, 16),
    kind=st.sampled_from(["KIND_CPU", "KIND_GPU"]),
    batching=st.none() | st.builds(DynamicBatching, st.lists(st.integers(1, 64)).map(tuple), st.integers(0, 10**6)),
    accelerators=st.lists(
        st.tuples(st.sampled_from(["cpu", "gpu"]), names, st.dictionaries(names, names, max_size=3)), max_size=2
    ).map(tuple),
    parameters=st.dictionaries(names, st.text(max_size=20), max_size=4),
)


@given(configs)
def test_text_parses_back_to_the_same_message(config):
    assert parse(render(config)) == to_protobuf(config)


@given(st.dictionaries(names, names, min_size=2, max_size=5))
def test_text_does_not_depend_on_the_order_of_parameters(parameters):
    backwards = dict(reversed(parameters.items()))
    assert render(replace(PLAIN, parameters=parameters)) == render(replace(PLAIN, parameters=backwards))


def test_every_field_reaches_its_place():
    warmup = WarmupSample("w", 4, (TensorSpec("x", "float32", (5, 3)),), {"x": "x.bin"})
    config = to_protobuf(
        replace(
            PLAIN,
            kind="KIND_GPU",
            instances=2,
            batching=DynamicBatching((4, 8), 100),
            warmup=(warmup, replace(warmup, name="zeros", files={})),
            accelerators=(("gpu", "tensorrt", {"precision_mode": "FP16"}), ("cpu", "openvino", {})),
            parameters={"key": "value"},
        )
    )
    assert config.dynamic_batching.preferred_batch_size == [4, 8]
    assert config.dynamic_batching.max_queue_delay_microseconds == 100
    assert (config.instance_group[0].kind, config.instance_group[0].count) == (pb.ModelInstanceGroup.KIND_GPU, 2)
    assert config.model_warmup[0].inputs["x"].input_data_file == "x.bin"
    assert config.model_warmup[1].inputs["x"].zero_data
    assert list(config.model_warmup[0].inputs["x"].dims) == [5, 3]
    accelerators = config.optimization.execution_accelerators
    assert accelerators.gpu_execution_accelerator[0].parameters["precision_mode"] == "FP16"
    assert accelerators.cpu_execution_accelerator[0].name == "openvino"
    assert config.parameters["key"].string_value == "value"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(ENSEMBLE, backend="python"), "belong to its steps"),
        (replace(ENSEMBLE, batching=DynamicBatching()), "belong to its steps"),
        (replace(ENSEMBLE, platform=None), "expected 'ensemble'"),
        (replace(PLAIN, max_batch_size=0, batching=DynamicBatching()), "max_batch_size 0"),
        (replace(PLAIN, backend="openvino", kind="KIND_GPU"), "KIND_CPU"),
        (replace(PLAIN, warmup=(WarmupSample("w", 1, PLAIN.inputs),)), "not concrete"),
        (replace(PLAIN, inputs=(TensorSpec("x", "complex64", (1,)),)), "complex64"),
    ],
)
def test_what_the_server_refuses_is_refused(config, message):
    with pytest.raises(InputError, match=message):
        render(config)


def test_an_ensemble_has_no_instance_group():
    assert not to_protobuf(ENSEMBLE).instance_group


def test_a_text_with_an_unknown_field_does_not_parse():
    with pytest.raises(InputError, match="no_such_field"):
        parse('name: "x" no_such_field: 1')


def test_good_names_pass():
    for name in ("bert", "all-MiniLM-L6.v2", "_x", "9"):
        assert check_model_name(name) == name
    with pytest.raises(UsageError, match="--model-name"):
        check_model_name("../etc")


def test_this_folder_does_not_pose_as_the_package_of_its_name():
    # With tests/ on sys.path, torch would take this folder for the triton compiler and fail in odd places.
    spec = importlib.util.find_spec("triton")
    assert spec is None or str(Path(__file__).parent) not in (spec.submodule_search_locations or ())
