"""INT8 by NNCF: attention answers rightly at every length, the width of a head among them."""

from pathlib import Path

import numpy as np

from accel.builders import targets
from accel.core.feeds import read_feeds
from accel.core.values import Artifact, BuildRequest, Target, Variant
from accel.exporters import describe, export_onnx, load, samples
from accel.exporters.sources import recognise

WIDTH_OF_A_HEAD = 16


def test_int8_attention_is_right_where_the_sequence_is_as_long_as_a_head_is_wide(tmp_path: Path) -> None:
    asked = recognise("roberta@small")
    source = describe(asked)
    model = load(source)
    made = samples.make_samples(source, asked, tmp_path / "samples")
    onnx = export_onnx(source, tmp_path / "onnx", model=model)
    variant = Variant(Target("openvino-int8", "cpu"), source.profile)
    builder = targets.discover()["openvino-int8"]
    out = tmp_path / "built"
    out.mkdir()
    request = BuildRequest(variant, source, onnx, str(tmp_path / "onnx"), made, str(tmp_path / "samples"), threads=2)
    built = builder.build(request, builder.options(), out)
    assert built.facts["float_activation_products"] == 4
    session = builder.open(Artifact(variant, (), "", built, 0.0), out, threads=2, mode="latency")
    assert session.precision() == "int8"
    feed = read_feeds(tmp_path / "samples" / made.shapes.path)["max"]
    for length in (WIDTH_OF_A_HEAD - 1, WIDTH_OF_A_HEAD, WIDTH_OF_A_HEAD + 1):
        cut = {name: np.ascontiguousarray(value[:, :length]) for name, value in feed.items()}
        truth = model.run(cut)["last_hidden_state"]
        error = session.run(cut)["last_hidden_state"] - truth
        assert np.square(error).sum() < 0.01 * np.square(truth).sum(), length
    session.close()


def test_a_graph_of_sizes_beside_an_lstm_is_no_obstacle_and_what_has_no_int8_product_is_not_int8(
    tmp_path: Path,
) -> None:
    """NNCF's own search for what returns to float together ends in a KeyError here (3.4)."""
    asked = recognise("text-recognition@small")
    source = describe(asked)
    made = samples.make_samples(source, asked, tmp_path / "samples")
    onnx = export_onnx(source, tmp_path / "onnx", model=load(source))
    variant = Variant(Target("openvino-int8", "cpu"), source.profile)
    builder = targets.discover()["openvino-int8"]
    out = tmp_path / "built"
    out.mkdir()
    folders = onnx, str(tmp_path / "onnx"), made, str(tmp_path / "samples")
    built = builder.build(BuildRequest(variant, source, *folders, 2, {"int8": 60.0}), builder.options(), out)
    assert built.expected is False
    assert built.facts["mixed"] == "no part of it was found to hold the gate"
