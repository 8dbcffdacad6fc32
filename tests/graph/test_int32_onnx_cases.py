"""ONNX's own operator cases with INT64 inputs or outputs, and the models in its package, through narrowing.

Each comes out valid and bitwise equal, or is refused with a reason; none crashes. What ONNX Runtime cannot run is
compared with ONNX's reference evaluator.
"""

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from narrowing_checks import assert_equal_models, assert_same, run, session
from onnx import TensorProto, defs, numpy_helper
from onnx.reference import ReferenceEvaluator

from accel.core.errors import InputError, UsageError
from accel.graph.narrow import narrow_file

pytestmark = pytest.mark.slow
NEWEST_OPSET, NEWEST_IR = 23, 10
"""What ONNX Runtime 1.31 runs; cases whose operators are older are run at these."""


def _operator_cases() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [case for case in collect_testcases(None) if _has_int64(case.model)]


def _has_int64(model: onnx.ModelProto) -> bool:
    return any(v.type.tensor_type.elem_type == TensorProto.INT64 for v in (*model.graph.input, *model.graph.output))


def _lower(model: onnx.ModelProto) -> None:
    model.ir_version = min(model.ir_version, NEWEST_IR)
    for imported in model.opset_import:
        known = [defs.get_schema(n.op_type, imported.version, n.domain) for n in model.graph.node
                 if not imported.domain and n.domain == "" and defs.has(n.op_type, "")]  # fmt: skip
        if not imported.domain and all(schema.since_version <= NEWEST_OPSET for schema in known):
            imported.version = min(imported.version, NEWEST_OPSET)


def _reference(model: onnx.ModelProto, feed: dict[str, Any]) -> list[Any] | None:
    fitted = {}
    for value in model.graph.input:
        if value.name not in feed:
            continue
        array = feed[value.name]
        narrow = value.type.tensor_type.elem_type == TensorProto.INT32 and isinstance(array, np.ndarray)
        fitted[value.name] = array.astype(np.int32) if narrow and array.dtype == np.int64 else array
    try:
        return ReferenceEvaluator(model).run(None, fitted)
    except Exception:  # noqa: BLE001 - the evaluator lacks operators; the caller counts these
        return None


def _compare(source: Path, out: Path, feeds: list[dict[str, Any]]) -> str:
    try:
        for feed in feeds:
            run(session(source), feed)
    except Exception:  # noqa: BLE001 - ONNX Runtime raises a class of its own per status
        one, other = onnx.load(source), onnx.load(out)
        for feed in feeds:
            before = _reference(one, feed)
            if before is None:
                return "valid, neither runtime runs the source"
            after = _reference(other, feed)
            assert after is not None, "the reference evaluator runs the source only"
            for value, a, b in zip(one.graph.output, before, after, strict=True):
                assert_same(value.name, a, b)
        return "equal (reference evaluator)"
    assert_equal_models(source, out, feeds)
    return "equal (ONNX Runtime)"


def test_operator_cases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts: dict[str, Counter[str]] = {"io": Counter(), "interior": Counter()}
    wrong: list[str] = []
    cases = _operator_cases()
    source, out = tmp_path / "source.onnx", tmp_path / "out.onnx"
    for case in cases:
        _lower(case.model)
        onnx.save(case.model, source)
        inputs = [v.name for v in case.model.graph.input]
        feeds = [dict(zip(inputs, given, strict=False)) for given, _ in case.data_sets]
        ranges = {}
        for value in case.model.graph.input:
            if value.type.tensor_type.elem_type != TensorProto.INT64:
                continue
            given = [np.asarray(f[value.name]) for f in feeds]
            if all(g.size for g in given):
                ranges[value.name] = (min(int(g.min()) for g in given), max(int(g.max()) for g in given))
        for level, count in counts.items():
            try:
                report = narrow_file(source, out, level=level, ranges=ranges)
            except (UsageError, InputError):
                count["refused"] += 1
                continue
            try:
                count[_compare(source, out, feeds)] += 1
            except AssertionError as error:
                wrong.append(f"{case.name} at {level}: {error}")
            count["something narrowed"] += bool(report.count("narrowed"))
    with capsys.disabled():
        print(f"\n{len(cases)} operator cases with int64 inputs or outputs")
        for level, count in counts.items():
            print(f"  {level}: {dict(count)}")
    assert not wrong, wrong
    assert len(cases) > 400
    assert all(count["something narrowed"] > 300 for count in counts.values())


def test_models_in_the_onnx_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    files = sorted(folder.rglob("*.onnx"))
    counts: dict[str, Counter[str]] = {"io": Counter(), "interior": Counter()}
    for file in files:
        data = sorted(file.parent.glob("test_data_set_*"))
        feeds = [feed for feed in (_stored(file, d) for d in data) if feed is not None] or [_drawn(file)]
        for level, count in counts.items():
            out = tmp_path / "out.onnx"
            try:
                report = narrow_file(file, out, level=level)
            except (UsageError, InputError):
                count["refused"] += 1
                continue
            count["something narrowed"] += bool(report.count("narrowed"))
            count[_compare(file, out, feeds)] += 1
    with capsys.disabled():
        print(f"\n{len(files)} model files of the onnx package")
        for level, count in counts.items():
            print(f"  {level}: {dict(count)}")
    assert len(files) > 20


def _stored(file: Path, folder: Path) -> dict[str, Any] | None:
    model = onnx.load(file, load_external_data=False)
    constants = {t.name for t in model.graph.initializer}
    names = [v.name for v in model.graph.input if v.name not in constants]
    feed = {}
    for i, name in enumerate(names):
        path = folder / f"input_{i}.pb"
        if not path.exists():
            return None
        tensor = TensorProto()
        tensor.ParseFromString(path.read_bytes())
        feed[name] = numpy_helper.to_array(tensor)
    return feed


def _drawn(file: Path) -> dict[str, Any]:
    """Return random images for the models that come without data."""
    model = onnx.load(file, load_external_data=False)
    constants = {t.name for t in model.graph.initializer}
    random = np.random.default_rng(0)
    return {
        v.name: random.random([d.dim_value or 1 for d in v.type.tensor_type.shape.dim], dtype=np.float32)
        for v in model.graph.input
        if v.name not in constants
    }
