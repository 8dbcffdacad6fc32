"""Configs: text round trip, and what the server would refuse is refused here."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tritonclient.grpc import model_config_pb2 as pb

from accel.core.dtypes import DATATYPES
from accel.core.errors import InputError, UsageError
from accel.core.model_names import check_model_name
from accel.core.values import TensorSpec
from accel.triton.config import BATCHING, LIMITED, model_config, parse, step, tensor, to_text

PLAIN = {
    "name": "model",
    "inputs": (TensorSpec("x", "float32", ("seq", 3)),),
    "outputs": (TensorSpec("y", "float16", (2,)),),
    "max_batch_size": 8,
    "version": 1,
}
SERVED = PLAIN | {"backend": "onnxruntime", "default_model_filename": "model.onnx"}
ENSEMBLE = PLAIN | {"steps": (step("inner", {"a": "x"}, {"b": "y"}),)}
names = st.text("abcXYZ_[]0.-é", min_size=1, max_size=12)
specs = st.builds(
    TensorSpec,
    names,
    st.sampled_from(sorted(DATATYPES)),
    st.lists(st.one_of(st.integers(1, 2**40), st.just("axis")), max_size=4).map(tuple),
)
configs = st.builds(
    model_config,
    name=st.from_regex(r"\A[A-Za-z0-9_][A-Za-z0-9_-]{0,20}\Z"),
    inputs=st.lists(specs, max_size=3).map(tuple),
    outputs=st.lists(specs, max_size=3).map(tuple),
    max_batch_size=st.integers(64, 4096),
    version=st.integers(1, 10**6),
    backend=st.sampled_from(["onnxruntime", "python"]),
    kind=st.sampled_from(["KIND_CPU", "KIND_GPU"]),
    dynamic_batching=st.none() | st.just(BATCHING),
    accelerators=st.lists(
        st.tuples(st.sampled_from(["cpu", "gpu"]), names, st.dictionaries(names, names, max_size=3)), max_size=2
    ).map(tuple),
    parameters=st.dictionaries(names, st.text(max_size=20), max_size=4),
)


@given(configs)
def test_text_parses_back_to_the_same_message(config):
    assert parse(to_text(config)) == config


@given(st.dictionaries(names, names, min_size=2, max_size=5))
def test_text_does_not_depend_on_the_order_of_parameters(parameters):
    backwards = dict(reversed(parameters.items()))
    texts = [to_text(model_config(**SERVED, parameters=given)) for given in (parameters, backwards)]
    assert texts[0] == texts[1]


def test_every_field_reaches_its_place():
    data = tensor(TensorSpec("x", "float32", (5, 3)))
    config = model_config(
        **SERVED,
        kind="KIND_GPU",
        dynamic_batching=LIMITED,
        model_warmup=[{"name": "w", "batch_size": 4, "count": 1, "inputs": {"x": data | {"input_data_file": "x.bin"}}}],
        accelerators=(("gpu", "tensorrt", {"precision_mode": "FP16"}), ("cpu", "openvino", {})),
        parameters={"key": "value"},
    )
    policy = config.dynamic_batching.default_queue_policy
    assert (policy.timeout_action, policy.max_queue_size) == (policy.REJECT, 1024)
    assert (policy.default_timeout_microseconds, policy.allow_timeout_override) == (10_000_000, True)
    assert config.version_policy.specific.versions == [1]
    assert (config.instance_group[0].kind, config.instance_group[0].count) == (pb.ModelInstanceGroup.KIND_GPU, 1)
    assert config.model_warmup[0].inputs["x"].input_data_file == "x.bin"
    assert list(config.model_warmup[0].inputs["x"].dims) == [5, 3]
    accelerators = config.optimization.execution_accelerators
    assert accelerators.gpu_execution_accelerator[0].parameters["precision_mode"] == "FP16"
    assert accelerators.cpu_execution_accelerator[0].name == "openvino"
    assert config.parameters["key"].string_value == "value"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ENSEMBLE | {"backend": "python"}, "belong to its steps"),
        (ENSEMBLE | {"dynamic_batching": BATCHING}, "belong to its steps"),
        (ENSEMBLE | {"accelerators": (("cpu", "openvino", {}),)}, "belong to its steps"),
        (SERVED | {"max_batch_size": 0, "dynamic_batching": BATCHING}, "max_batch_size 0"),
        (SERVED | {"backend": "openvino", "kind": "KIND_GPU"}, "KIND_CPU"),
        (
            SERVED | {"model_warmup": [{"name": "w", "inputs": {"x": tensor(TensorSpec("x", "int8", ("a",)))}}]},
            "not concrete",
        ),
        (SERVED | {"inputs": (TensorSpec("x", "complex64", (1,)),)}, "complex64"),
    ],
)
def test_what_the_server_refuses_is_refused(config, message):
    with pytest.raises(InputError, match=message):
        model_config(**config)


def test_an_ensemble_has_its_platform_and_no_instance_group():
    config = model_config(**ENSEMBLE)
    assert (config.platform, list(config.instance_group)) == ("ensemble", [])
    assert config.ensemble_scheduling.step[0].model_version == -1


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
