"""Recorded requests: their lengths, shapes and times are read, and what is none is named by its line and field."""

import pytest

from accel.core.errors import InputError, SampleError
from accel.core.recorded import Recorded, read, read_times


@pytest.fixture
def written(tmp_path):
    def write(text):
        (tmp_path / "log.jsonl").write_text(text)
        return tmp_path / "log.jsonl"

    return write


def test_lengths_shapes_and_times_are_read(written):
    text = '{"length": 50, "at": 0.5, "user": "a"}\n\n3\n'
    text += '{"shape": {"x": [3, 480, 640], "y": []}, "at": "2026-11-22T10:00:01Z"}'
    assert read(written(text)) == [
        Recorded("log.jsonl:1", 50, at_s=0.5),
        Recorded("log.jsonl:3", 3),
        Recorded("log.jsonl:4", shapes={"x": (3, 480, 640), "y": ()}, at_s=1795341601.0),
    ]


def test_times_are_read_in_either_form(written):
    assert read_times(written('{"at": 3, "length": 1}\n{"at": 3.25}\n')) == [3.0, 3.25]
    zones = '{"at": "2026-11-22T10:00:00+01:00"}\n{"at": "2026-11-22T09:00:01.5Z"}\n{"at": "2026-11-22 09:00:02"}\n'
    times = read_times(written(zones))
    assert [t - times[0] for t in times] == [0.0, 1.5, 2.0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "log.jsonl:2 is not JSON"),
        ('{"tokens": 3}', 'log.jsonl:2 has no "length" and no "shape"'),
        ('{"length": 3, "shape": {"x": [3]}}', 'log.jsonl:2 has both "length" and "shape"'),
        *((row, '"length" of log.jsonl:2 is ') for row in ("0", "true", "[1]", '{"length": 2.5}', '"5"', "null")),
        *((f'{{"shape": {value}}}', '"shape" of log.jsonl:2 is ') for value in ("[3, 4]", "{}", '"3x4"', "null")),
        *((f'{{"shape": {{"x": {value}}}}}', "'x'") for value in ("3", "[0, 4]", "[2.0]", "[true]", "null")),
        *(
            (f'{{"length": 3, "at": {value}}}', '"at" of log.jsonl:2 is ')
            for value in ("true", "null", "NaN", "1e999", '"10:00"', '"noon"', "[1]", "9" * 400)
        ),
    ],
)
def test_a_wrong_line_is_named_with_its_field(written, line, said):
    with pytest.raises(SampleError, match=said):
        read(written(f"3\n{line}\n"))


def test_times_must_be_there_and_ascend(written):
    for line in ("{}", '{"length": 3}', "3"):
        with pytest.raises(InputError, match=r'log.jsonl:2 has no "at"'):
            read_times(written(f'{{"at": 1}}\n{line}'))
    with pytest.raises(InputError, match=r'"at" of log.jsonl:3 is before'):
        read_times(written('{"at": 1}\n{"at": 2}\n{"at": 1.5}'))


def test_a_file_without_requests_is_refused(written, tmp_path):
    with pytest.raises(SampleError, match="holds no requests"):
        read(written("\n"))
    with pytest.raises(SampleError, match="cannot be read"):
        read(tmp_path / "gone.jsonl")
