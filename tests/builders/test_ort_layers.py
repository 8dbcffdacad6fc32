"""What ONNX Runtime computes in INT8 is observed by layer, and what hardly does is not called INT8."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import small_onnx
from onnxruntime.transformers import float16

from accel import pipeline
from accel.builders import ort_layers, targets
from accel.core.errors import UnavailableError
from accel.core.values import BuildRequest, Target, Variant
from accel.run.job import assemble

RANDOM = np.random.default_rng(0)
CONVOLUTIONS = {f"{i}/x": RANDOM.standard_normal((4, 3, 8, 8)).astype(np.float32) for i in range(96)}
VECTORS = {"x": RANDOM.standard_normal((200, 32)).astype(np.float32)}


def facts(folder: Path, path: Path, target: str, feeds: Any, shape: tuple[int, ...], **options: Any) -> Any:
    described, made, found = small_onnx.prepared(path, folder, feeds, shape)
    variant = Variant(Target(target, "cpu"), described.profile)
    request = BuildRequest(variant, described, found, str(folder / "onnx"), made, str(folder), 1)
    (folder / target).mkdir()
    builder = targets.discover()[target]
    return builder.build(request, builder.options(**options), folder / target).facts


def test_a_product_whose_pairs_were_not_fused_is_not_counted(tmp_path: Path) -> None:
    """ONNX Runtime makes a Gemm of the last product and the bias behind it before it looks for pairs."""
    found = facts(tmp_path, small_onnx.mlp(tmp_path / "m.onnx", gemm=True), "ort-int8", VECTORS, (32,))
    assert found["int8_share"] == 1.0
    assert found["share_of_products"] == {"int8": 0.75, "fp32": 0.25}
    assert [layer[:2] for layer in found["layers"]] == [*((f"fc{i}", "int8") for i in range(3)), ("fc3", "fp32")]
    assert found["pairs_not_fused"] == ["fc3"]


def test_dynamic_int8_is_built_whatever_the_working_directory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exporters leave their weights there, by the name that ONNX Runtime's quantiser wants for its own."""
    (there := tmp_path / "there").mkdir()
    (there / "model.onnx.data").write_bytes(b"mine")
    monkeypatch.chdir(there)
    found = facts(tmp_path, small_onnx.mlp(tmp_path / "m.onnx"), "ort-int8-dynamic", VECTORS, (32,))
    assert found["int8_nodes"] == 4
    assert {file.name: file.read_bytes() for file in there.iterdir()} == {"model.onnx.data": b"mine"}


def test_one_small_product_of_a_network_of_convolutions_is_no_dynamic_int8(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"0\.037 % of the multiplications \(1 of 4 products\)") as raised:
        facts(tmp_path, small_onnx.convnet(tmp_path / "m.onnx"), "ort-int8-dynamic", CONVOLUTIONS, (3, 8, 8))
    assert "ort-int8" in str(raised.value.fix)


@pytest.mark.parametrize("target", ["ort-int8", "ort-int8-dynamic"])
def test_weights_that_layers_share_behind_a_transpose_become_int8(tmp_path: Path, target: str) -> None:
    """So exporters write ALBERT, and every model that they are not asked to fold constants of."""
    model = onnx.load(str(small_onnx.mlp(tmp_path / "plain.onnx")))
    nodes = [onnx.helper.make_node("Transpose", ["w0"], ["turned"], "turn", perm=[1, 0])]
    for node in model.graph.node:
        node.input[:] = ["turned" if name.startswith("w") else name for name in node.input]
    nodes += model.graph.node
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, str(tmp_path / "m.onnx"))
    assert facts(tmp_path, tmp_path / "m.onnx", target, VECTORS, (32,))["share_of_products"] == {"int8": 1.0}


@pytest.mark.parametrize("target", ["ort-int8", "ort-int8-dynamic"])
@pytest.mark.parametrize("make", [small_onnx.mlp, small_onnx.convnet])
def test_half_precision_is_no_start_for_int8(tmp_path: Path, target: str, make: Any) -> None:
    """A group asks for INT8 of whatever it is given: that is no failure."""
    model = onnx.load(str(make(tmp_path / "plain.onnx")))
    onnx.save(float16.convert_float_to_float16(model, keep_io_types=True), str(tmp_path / "m.onnx"))
    given = (CONVOLUTIONS, (3, 8, 8)) if make is small_onnx.convnet else (VECTORS, (32,))
    with pytest.raises(UnavailableError, match=r"half precision already|FP32, and model\.onnx has none"):
        facts(tmp_path, tmp_path / "m.onnx", target, *given)


def test_pairs_that_the_runtime_leaves_alone_are_no_static_int8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort_layers, "INT8_PRODUCTS", ("None",))
    with pytest.raises(UnavailableError, match="of 4 more ONNX Runtime made no integer kernel") as raised:
        facts(tmp_path, small_onnx.mlp(tmp_path / "m.onnx"), "ort-int8", VECTORS, (32,))
    assert raised.value.fix == "choose ort-int8-dynamic, whose kernels need no pairs"


def test_an_integer_kernel_of_another_name_is_not_taken_for_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort_layers, "_owner", lambda name, products: None)
    found = facts(tmp_path, small_onnx.mlp(tmp_path / "m.onnx"), "ort-int8", VECTORS, (32,))
    assert found["share_of_products"] == {"none": 1.0}


def test_multiplications_are_those_of_the_shapes(tmp_path: Path) -> None:
    def node(kind: str, given: list[list[int]], out: list[int]) -> dict[str, Any]:
        return {
            "op_name": kind,
            "input_type_shape": [{"float": shape} for shape in given],
            "output_type_shape": [{"float": out}],
        }

    count = ort_layers._multiplications
    assert count(node("MatMul", [[2, 3, 5], [5, 7]], [2, 3, 7])) == 2 * 3 * 5 * 7
    assert count(node("Gemm", [[5, 3], [7, 5], [7]], [3, 7])) == 3 * 5 * 7
    assert count(node("Conv", [[2, 6, 8, 8], [4, 3, 3, 3]], [2, 4, 8, 8])) == 2 * 4 * 8 * 8 * 27
    assert count(node("ConvTranspose", [[2, 6, 8, 8], [6, 4, 2, 2]], [2, 4, 16, 16])) == 2 * 6 * 8 * 8 * 16
    assert count(node("LSTM", [[9, 2, 5], [1, 12, 5], [1, 12, 3]], [9, 1, 2, 3])) == 9 * 2 * 12 * 8
    assert count(node("Einsum", [[3, 5], [5, 7]], [3, 7])) == 3 * 5 * 7


def test_the_report_has_the_strip_of_layers(tmp_path: Path) -> None:
    np.savez(tmp_path / "feeds.npz", **VECTORS)  # type: ignore[arg-type]
    asked = {
        "source": str(small_onnx.mlp(tmp_path / "m.onnx", gemm=True)),
        "targets": "ort-int8",
        "samples": str(tmp_path / "feeds.npz"),
        "shape": ["x:4x32"],
        "max_shape": ["x:8x32"],
        "bench": "none",
        "threads": 1,
        "out": tmp_path / "run",
    }
    (row,) = pipeline.convert(assemble(asked, None, command="accel convert m.onnx"))["variants"]
    assert row["status"] == "ok"
    assert row["artifact"]["facts"]["layers"][-1][:2] == ["fc3", "fp32"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "4 layers of ort-int8@cpu: int8 75 %, fp32 25 %" in page
    assert "<title>fc3: fp32, 25 %</title>" in page
