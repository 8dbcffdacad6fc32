"""What OpenVINO does with integers, for every target that it computes."""

THROUGH_FLOAT = frozenset(
    [
        "Div",
        "Mod",
        "Pow",
        "ReduceSum",
        "ReduceMax",
        "ReduceMin",
        "ReduceMean",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
    ]
)
"""Operators that OpenVINO's CPU plugin computes in float even for integers: exact up to 2**24 only.

Source: measured by benchmarks/openvino_int64.py; tests/builders/test_openvino_int64.py fails when another one joins
them.
"""
