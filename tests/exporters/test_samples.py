"""Samples: read, checked, split, batched and fitted to shapes; bad ones refused with the place."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from accel.core.errors import InputError, SampleError, UsageError
from accel.core.feeds import read_feeds, write_feeds
from accel.core.values import ModelSource, ShapeRange, TensorSpec
from accel.exporters.request import SourceRequest
from accel.exporters.samples import fit_shape, make_samples, shape_points
from accel.exporters.sources import quick_key, recognise

SHAPES = ShapeRange((1, 1), (1, 8), (4, 32))
SOURCE = ModelSource(
    name="tiny",
    kind="onnx",
    reference="/m.onnx",
    framework="onnx",
    weights="local",
    revision=None,
    key="0",
    inputs=(
        TensorSpec("ids", "int64", ("batch", "seq"), (0, 99)),
        TensorSpec("mask", "int64", ("batch", "seq"), (0, 1)),
    ),
    outputs=(TensorSpec("y", "float32", ("batch", 2)),),
    profile={"ids": SHAPES, "mask": SHAPES},
    mask="mask",
)
REQUEST = SourceRequest(text="/m.onnx", kind="onnx", reference="/m.onnx")
EXPECTED = (
    "the inputs are ids: int64 (batch 1 to 4, seq 1 to 32) in [0, 99]; mask: int64 (batch 1 to 4, seq 1 to 32) in "
    "[0, 1]. As .npz: numpy.savez('samples.npz', **{'0/ids': …, …}), keys <number>/<input>, or one array per "
    "input, its items along the first axis. As .jsonl: a line for each item, without its first axis: "
    '{"ids": […], "mask": […]}.'
)
ZOO = recognise("minilm", max_shapes={"input_ids": (8, 24)}, opt_shapes={"input_ids": (1, 16)})


def with_samples(path: Path | str) -> tuple[ModelSource, SourceRequest]:
    return dataclasses.replace(SOURCE, samples=str(path)), dataclasses.replace(REQUEST, samples=str(path))


def item(index: int, length: int) -> dict[str, np.ndarray]:
    ids = (np.arange(length)[None] + index) % 100
    return {"ids": ids, "mask": np.ones_like(ids)}


@given(
    st.dictionaries(
        st.from_regex(r"[a-z0-9]{1,4}", fullmatch=True),
        st.dictionaries(st.sampled_from(["a", "b/c", "d.e"]), st.lists(st.floats(allow_nan=False)), min_size=1),
        min_size=1,
        max_size=4,
    )
)
def test_feeds_come_back_as_written(tmp_path_factory: pytest.TempPathFactory, feeds: dict) -> None:
    path = tmp_path_factory.mktemp("f") / "feeds.npz"
    arrays = {i: {n: np.array(v) for n, v in feed.items()} for i, feed in feeds.items()}
    write_feeds(path, arrays)
    found = read_feeds(path)
    assert list(found) == list(arrays)
    for index, feed in arrays.items():
        assert {n: v.tolist() for n, v in found[index].items()} == {n: v.tolist() for n, v in feed.items()}
    first = path.read_bytes()
    write_feeds(path, arrays)
    assert path.read_bytes() == first


def test_bad_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with pytest.raises(SampleError, match="no sample file"):
        read_feeds(path)
    path.write_bytes(b"no zip")
    with pytest.raises(SampleError, match="cannot be read"):
        read_feeds(path)
    np.savez(path, **{"0/ids": np.array([{}], dtype=object)})
    with pytest.raises(SampleError, match="cannot be read"):
        read_feeds(path)
    np.savez(path, ids=np.ones(3))
    with pytest.raises(SampleError, match="<index>/<input>"):
        read_feeds(path)
    np.savez(path)
    with pytest.raises(SampleError, match="holds no arrays"):
        read_feeds(path)
    write_feeds(path, {"0": item(0, 30)})
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SampleError, match="cannot be read"):
        read_feeds(path)
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(SampleError, match="not a zip archive"):
        read_feeds(tmp_path / "one.npy")


def test_shape_points_go_from_min_to_max() -> None:
    points = shape_points(SOURCE)
    assert list(points) == ["min", "odd", "opt", "max"]
    assert (points["min"]["ids"], points["opt"]["ids"], points["max"]["mask"]) == ((1, 1), (1, 8), (4, 32))
    assert points["odd"]["ids"] == points["odd"]["mask"] == (3, 5)


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 5), st.integers(1, 9))
def test_fitted_feeds_have_the_shape_and_only_real_values(b: int, s: int, to_b: int, to_s: int) -> None:
    feed = {"ids": np.arange(b * s).reshape(b, s), "mask": np.zeros((b, s), np.int64)}
    fitted = fit_shape(feed, SOURCE.inputs, {"ids": (to_b, to_s), "mask": (to_b, to_s)}, mask="mask")
    assert fitted["ids"].shape == (to_b, to_s)
    assert set(fitted["ids"].flat) <= set(feed["ids"].flat)
    assert fitted["mask"].all()
    np.testing.assert_array_equal(fitted["ids"][: min(b, to_b), : min(s, to_s)], feed["ids"][:to_b, :to_s])


def test_user_samples_are_split_one_to_two_and_padded(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    write_feeds(path, {str(i): item(i, 3 + i % 7) for i in range(30)})
    source, request = with_samples(path)
    samples = make_samples(source, request, tmp_path / "out")
    assert (samples.calibration_items, samples.gate_items) == (10, 20)
    assert "only 10 items to calibrate and 20 to compare" in samples.origin
    calibration = read_feeds(tmp_path / "out" / "calibration.npz")
    gate = read_feeds(tmp_path / "out" / "gate.npz")
    rows = [
        {tuple(r[m == 1]) for f in s.values() for r, m in zip(f["ids"], f["mask"], strict=True)}
        for s in (calibration, gate)
    ]
    assert len(rows[0]) == 10
    assert len(rows[1]) == 20
    assert not rows[0] & rows[1]
    assert all(f["ids"].shape[0] <= 4 for f in gate.values())
    assert any((f["mask"] == 0).any() for f in gate.values())
    assert all((f["ids"][f["mask"] == 0] == 0).all() for f in gate.values())
    shapes = read_feeds(tmp_path / "out" / "shapes.npz")
    assert {p: f["ids"].shape for p, f in shapes.items()} == {p: s["ids"] for p, s in shape_points(source).items()}
    assert make_samples(source, request, tmp_path / "again").sha256 == samples.sha256


def test_repeated_samples_never_meet_on_both_sides(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    write_feeds(path, {str(i): item(i % 4, 5) for i in range(40)})
    samples = make_samples(*with_samples(path), tmp_path / "out")
    assert samples.calibration_items + samples.gate_items == 4


@pytest.mark.parametrize("order", ["in turn", "one after the other"])
def test_every_kind_is_on_both_sides_whatever_the_order(tmp_path: Path, order: str) -> None:
    """With every third item of one kind, or in a large file of one kind after the other."""
    kinds = np.arange(1200) % 3 if order == "in turn" else np.arange(1200) // 400
    ids = np.stack([kinds, np.arange(1200) // 100, np.arange(1200) % 100], 1)
    np.savez(tmp_path / "ids.npz", ids=ids, mask=np.ones_like(ids))
    made = make_samples(*with_samples(tmp_path / "ids.npz"), tmp_path / "out")
    assert (made.calibration_items, made.gate_items) == (128, 256)
    for name, items in (("calibration", 128), ("gate", 256)):
        seen = [row[0] for feed in read_feeds(tmp_path / "out" / f"{name}.npz").values() for row in feed["ids"]]
        assert np.bincount(seen, minlength=3).min() > items / 5
    again = make_samples(*with_samples(tmp_path / "ids.npz"), tmp_path / "again")
    assert again.sha256 == made.sha256


def test_plain_arrays_and_lines_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "s.npz", ids=np.arange(24).reshape(6, 4), mask=np.ones((6, 4), np.int32))
    assert make_samples(*with_samples(tmp_path / "s.npz"), tmp_path / "a").gate_items == 4
    rows = [{"ids": [i, i + 1], "mask": [[1, 1]]} for i in range(6)]
    (tmp_path / "s.jsonl").write_text("\n".join(json.dumps(r) for r in rows) + "\n\n")
    assert make_samples(*with_samples(tmp_path / "s.jsonl"), tmp_path / "b").gate_items == 4


def test_a_generator_is_called(tmp_path: Path) -> None:
    code = "import numpy as np\ndef gen():\n    return [(np.full((1, 3), i), np.ones((1, 3), int)) for i in range(9)]\n"
    (tmp_path / "g.py").write_text(code + "def bad():\n    yield 3\ndef fails():\n    return 1 / 0\n")
    assert make_samples(*with_samples(f"{tmp_path}/g.py:gen"), tmp_path / "a").calibration_items == 3
    with pytest.raises(SampleError, match=r"sample 0 of g\.py:bad is int"):
        make_samples(*with_samples(f"{tmp_path}/g.py:bad"), tmp_path / "b")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        make_samples(*with_samples(f"{tmp_path}/g.py:fails"), tmp_path / "c")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mask": None}, "sample 1: input 'mask' is missing"),
        ({"other": np.ones((1, 3))}, "sample 1: the model has no input 'other'"),
        ({"ids": np.ones((1, 3), np.float32)}, "sample 1: input 'ids' has dtype float32"),
        ({"ids": np.ones((3,), np.int64)}, "sample 1: input 'ids' has shape"),
        (
            {"ids": np.array([[1, 100, 2]])},
            r"sample 1: input 'ids' holds 100 at index \(0, 1\), expected values in \[0, 99\]",
        ),
        ({"ids": np.ones((1, 4), np.int64)}, "sample 1: axis 'seq' is"),
        (dict.fromkeys(("ids", "mask"), np.ones((0, 3), np.int64)), "sample 1: input 'ids' holds no item"),
        (
            {"ids": np.ones((1, 40), np.int64), "mask": np.ones((1, 40), np.int64)},
            "sample 1: axis 'seq' of input 'ids' is 40",
        ),
    ],
)
def test_samples_that_do_not_fit_are_refused(tmp_path: Path, change: dict, says: str) -> None:
    bad = {n: v for n, v in {**item(1, 3), **change}.items() if v is not None}
    write_feeds(tmp_path / "s.npz", {"0": item(0, 3), "1": bad})
    with pytest.raises(SampleError, match=says) as caught:
        make_samples(*with_samples(tmp_path / "s.npz"), tmp_path / "out")
    assert EXPECTED in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "s.jsonl:1 is not JSON"),
        ("[" * 100_000, "s.jsonl:1 is not JSON"),
        ('{"ids": [NaN], "mask": [1]}', "sample 0: input 'ids' has dtype float64, expected int64"),
        ("[1]", "s.jsonl:1: expected"),
        ('{"text": 3}', "s.jsonl:1: expected"),
        ('{"ids": ["a"], "mask": [1]}', "s.jsonl:1: input 'ids' holds"),
        ('{"ids": [[1], [1, 2]], "mask": [1]}', "ragged"),
        ('{"text": "hello"}', "no tokenizer"),
        ("", "holds no samples"),
        ("\n \n", "holds no samples"),
    ],
)
def test_bad_lines_are_refused(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "s.jsonl").write_text(line)
    with pytest.raises(SampleError, match=says) as caught:
        make_samples(*with_samples(tmp_path / "s.jsonl"), tmp_path / "out")
    assert EXPECTED in (caught.value.fix or "")


def test_lines_that_are_no_utf8_are_refused(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_bytes(b'{"text": "caf\xe9"}\n')
    with pytest.raises(SampleError, match=r"s\.jsonl is not UTF-8 text: byte 13 is 0xe9"):
        make_samples(*with_samples(tmp_path / "s.jsonl"), tmp_path / "out")
    (tmp_path / "s.jsonl").write_text('\ufeff{"ids": [1], "mask": [1]}\n{"ids": [2], "mask": [1], "note": "\u2028"}')
    with pytest.raises(SampleError, match=r"s\.jsonl:2: input 'note' holds"):
        make_samples(*with_samples(tmp_path / "s.jsonl"), tmp_path / "out")


def test_a_folder_is_read_file_by_file(tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    write_feeds(folder / "a.npz", {str(i): item(i, 5) for i in range(6)})
    (folder / "b.jsonl").write_text("\n".join(json.dumps({"ids": [i], "mask": [1]}) for i in range(3)))
    (folder / "notes.txt").write_text("not a sample")
    request = recognise("minilm", samples=str(folder))
    samples = make_samples(*with_samples(request.samples or ""), tmp_path / "out")
    assert samples.calibration_items + samples.gate_items == 9
    before = quick_key(dataclasses.replace(request, weights="random"))
    (folder / "b.jsonl").write_text('{"ids": [9], "mask": [1]}')
    assert quick_key(dataclasses.replace(request, weights="random")) != before
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"empty holds no \.npz and no \.jsonl file"):
        recognise("minilm", samples=str(tmp_path / "empty"))


def test_a_name_with_a_slash_is_a_name_where_the_model_has_it(tmp_path: Path) -> None:
    inputs = tuple(dataclasses.replace(s, name=f"model/{s.name}") for s in SOURCE.inputs)
    source = dataclasses.replace(SOURCE, inputs=inputs, profile={s.name: SHAPES for s in inputs}, mask="model/mask")
    np.savez(tmp_path / "s.npz", **{"model/ids": np.arange(24).reshape(6, 4), "model/mask": np.ones((6, 4), np.int64)})
    source = dataclasses.replace(source, samples=str(tmp_path / "s.npz"))
    assert make_samples(source, REQUEST, tmp_path / "out").gate_items == 4


def test_random_values_calibrate_only_when_asked_for(tmp_path: Path) -> None:
    silent = make_samples(SOURCE, REQUEST, tmp_path / "a")
    assert (silent.calibration, silent.calibration_items, silent.gate_items) == (None, 0, 256)
    assert silent.ranges is not None
    assert silent.ranges in silent.files
    drawn = [
        {tuple(map(tuple, rows)) for f in read_feeds(tmp_path / "a" / name).values() for rows in [f["ids"].tolist()]}
        for name in ("ranges.npz", "gate.npz")
    ]
    assert drawn[0]
    assert not drawn[0] & drawn[1], "what shapes a variant does not judge it"
    asked = make_samples(SOURCE, dataclasses.replace(REQUEST, random_samples=True), tmp_path / "b")
    assert asked.calibration is not None
    assert asked.ranges is None
    assert "as asked" in asked.origin
    values = np.concatenate([f["ids"].ravel() for f in read_feeds(tmp_path / "b" / "gate.npz").values()])
    assert (values.min(), values.max()) == (0, 99)


def test_random_integers_need_a_range(tmp_path: Path) -> None:
    open_range = dataclasses.replace(
        SOURCE, inputs=(dataclasses.replace(SOURCE.inputs[0], range=None), SOURCE.inputs[1])
    )
    with pytest.raises(SampleError, match="nothing says which values"):
        make_samples(open_range, REQUEST, tmp_path)


def test_items_without_a_batch_axis_stay_feeds(tmp_path: Path) -> None:
    spec = TensorSpec("x", "float32", (3, "width"))
    source = dataclasses.replace(SOURCE, inputs=(spec,), profile={"x": ShapeRange((3, 2), (3, 4), (3, 9))}, mask=None)
    samples = make_samples(source, REQUEST, tmp_path)
    assert samples.gate_items == len(read_feeds(tmp_path / "gate.npz")) == 256
    assert read_feeds(tmp_path / "shapes.npz")["max"]["x"].shape == (3, 9)


def test_items_of_other_sizes_are_not_padded_without_a_mask(tmp_path: Path) -> None:
    source = dataclasses.replace(SOURCE, mask=None)
    make_samples(source, REQUEST, tmp_path)
    feeds = read_feeds(tmp_path / "gate.npz")
    assert sum(f["ids"].shape[0] for f in feeds.values()) == 256
    assert len(feeds) > 256 / 4


def test_zoo_sentences_are_real_padded_and_within_the_profile(tmp_path: Path) -> None:
    from accel.exporters import describe

    source = describe(ZOO)
    samples = make_samples(source, ZOO, tmp_path)
    assert (samples.calibration_items, samples.gate_items) == (128, 256)
    feeds = read_feeds(tmp_path / "gate.npz")
    lengths = {int(n) for f in feeds.values() for n in f["attention_mask"].sum(1)}
    assert max(lengths) == 24
    assert len(lengths) > 10
    for feed in feeds.values():
        ends = feed["input_ids"][np.arange(8), feed["attention_mask"].sum(1) - 1]
        assert (feed["input_ids"][:, 0] == 101).all()
        assert (ends == 102).all()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("s.npz", "", r"s\.npz cannot be read as \.npz: it is empty"),
        ("s.jsonl", "", r"s\.jsonl holds no samples"),
        ("s.py", "", r"s\.py has no function 'samples'"),
        ("s.py", "def samples():\n    return []\n", "s.py:samples holds no samples"),
    ],
)
def test_an_empty_sample_file_is_refused(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    reference = f"{tmp_path / name}:samples" if name == "s.py" else tmp_path / name
    with pytest.raises(InputError, match=says):
        make_samples(*with_samples(reference), tmp_path / "out")


def test_text_longer_than_the_model_takes_is_cut_and_still_ends(tmp_path: Path) -> None:
    """As the tokenizer of an ensemble does; ids that are too many are refused, since nobody knows where to cut them."""
    from accel.exporters import describe

    path = tmp_path / "s.jsonl"
    texts = (" ".join(["word"] * (500 + i)) for i in range(4))
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    request = dataclasses.replace(ZOO, samples=str(path))
    [feed] = read_feeds(tmp_path / make_samples(describe(request), request, tmp_path).gate.path).values()
    assert feed["input_ids"].shape == (1, 24)
    assert feed["input_ids"][0, -1] == 102
    row = {"input_ids": [1] * 600, "attention_mask": [1] * 600, "token_type_ids": [0] * 600}
    path.write_text(json.dumps(row))
    with pytest.raises(SampleError, match="axis 'seq' of input 'input_ids' is 600, expected 1 to 24"):
        make_samples(describe(request), request, tmp_path)


def test_text_of_the_user_is_tokenised_by_the_zoo_model(tmp_path: Path) -> None:
    from accel.exporters import describe

    path = tmp_path / "s.jsonl"
    path.write_text("\n".join(json.dumps({"text": f"Sentence number {i}."}) for i in range(6)))
    request = dataclasses.replace(ZOO, samples=str(path))
    source = describe(request)
    assert source.samples == str(path)
    assert make_samples(source, request, tmp_path).gate_items == 4
    with pytest.raises(UsageError, match="no input 'ids'"):
        describe(dataclasses.replace(ZOO, ranges={"ids": (0, 1)}))
