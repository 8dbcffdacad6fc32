"""What OpenVINO does with int64 is measured, not assumed: these fail when a release changes it."""

import importlib.util
from pathlib import Path

import pytest

from accel.builders.openvino_integers import THROUGH_FLOAT

pytestmark = pytest.mark.slow
_SCRIPT = Path(__file__).parents[2] / "benchmarks" / "openvino_int64.py"
_SPEC = importlib.util.spec_from_file_location("openvino_int64", _SCRIPT)
assert _SPEC is not None
assert _SPEC.loader is not None
openvino_int64 = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(openvino_int64)

DOUBLE_IS_FLOAT = {"Cast to DOUBLE"}
"""The CPU plugin has no double: the cast is exact to 24 bits, whatever the integer's type."""


def test_values_inside_int32_come_back_exactly_or_their_operator_is_known() -> None:
    table = openvino_int64.measure()
    assert not any(row["inside int32"].startswith("refused") for row in table.values()), table
    inexact = {op for op, row in table.items() if row["inside int32"] != "exact"} - DOUBLE_IS_FLOAT
    assert {op.split()[0] for op in inexact} <= THROUGH_FLOAT, inexact


def test_values_beyond_int32_do_wrap() -> None:
    table = openvino_int64.measure()
    assert table["Add"]["beyond int32"] == "wraps"
    assert table["Identity"]["beyond int32"] == "wraps"


def test_slice_markers_keep_their_meaning() -> None:
    assert set(openvino_int64.slice_markers().values()) == {"exact"}
