"""``--int8 all`` quantises all that can be, whatever the gate asks; ``--search-s`` limits every search."""

from pathlib import Path

import numpy as np
import pytest
import small_onnx

from accel.builders import targets
from accel.core.errors import UnavailableError
from accel.core.values import BuildRequest, Built, Variant
from accel.pipeline import plan
from accel.run.job import assemble

GATES = {"int8": 60.0}
"""What no INT8 holds."""


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> tuple:
    folder = tmp_path_factory.mktemp("mlp")
    feeds = {"x": np.random.default_rng(0).standard_normal((200, 32)).astype(np.float32)}
    return folder, *small_onnx.prepared(small_onnx.mlp(folder / "mlp.onnx"), folder, feeds, (32,))


def planned(ready: tuple, names: str, **given: object) -> list[Variant]:
    job = assemble({"source": str(ready[0] / "mlp.onnx"), "targets": names, **given}, None, command="")
    return plan(job, ready[1])


def built(ready: tuple, out: Path, variant: Variant) -> Built:
    folder, source, made, onnx = ready
    out.mkdir()
    request = BuildRequest(variant, source, onnx, str(folder / "onnx"), made, str(folder), threads=2, gates=GATES)
    builder = targets.discover()[variant.target.name]
    return builder.build(request, builder.options(**variant.options), out)


@pytest.mark.parametrize("name", ["ort-int8", "openvino-int8"])
def test_all_of_it_is_int8_though_it_misses_its_gate(ready: tuple, tmp_path: Path, name: str) -> None:
    [searched], [forced] = planned(ready, name), planned(ready, name, int8="all")
    whole = built(ready, tmp_path / "whole", forced)
    if name == "ort-int8":
        assert whole.facts["int8_share"] == 1.0
        with pytest.raises(UnavailableError, match="nothing in the model bears INT8"):  # FP32 by another name
            built(ready, tmp_path / "usual", searched)
    else:
        assert "whole_missed" in built(ready, tmp_path / "usual", searched).facts
        assert not {"whole_missed", "search_s"} & whole.facts.keys()


def test_the_flags_reach_the_targets_that_have_them(ready: tuple) -> None:
    names = "ort,ort-int8,openvino-bf16,openvino-int8,trt-int8@cuda"
    every = planned(ready, names, int8="all", search_s=7.0, options={"openvino-bf16": {"search_s": 3.0}})
    assert {v.target.name: dict(v.options) for v in every} == {
        "ort": {},
        "ort-int8": {"target_db": 0.0},
        "openvino-bf16": {"search_s": 3.0},
        "openvino-int8": {"search_s": 0.0},
        "trt-int8": {"search": False},
    }
    assert not any(v.options for v in planned(ready, names))
