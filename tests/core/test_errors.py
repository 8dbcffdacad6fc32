"""What is said of an error that a library raised."""

import pytest

from accel.core.errors import InputError, SampleError, StageError, first_line, raised_as


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("one\ntwo"), "one"),
        (RuntimeError("\n\n  [ShapeInferenceError] no  \n"), "[ShapeInferenceError] no"),
        (KeyError(), "KeyError"),
        (RuntimeError(""), "RuntimeError"),
    ],
)
def test_the_first_line_that_says_something(error, said):
    assert first_line(error) == said


@pytest.mark.parametrize(
    ("error", "say", "said"),
    [
        (ValueError("at byte 7"), str, "m.onnx cannot be read: at byte 7"),
        (OSError("one\ntwo"), first_line, "m.onnx cannot be read: one"),
        (ValueError(), str, "m.onnx cannot be read: ValueError"),
    ],
)
def test_what_a_library_raises_is_told_as_an_error_with_its_fix(error, say, said):
    with (
        pytest.raises(InputError) as told,
        raised_as(InputError, (OSError, ValueError), "m.onnx cannot be read", fix="copy it again", say=say),
    ):
        raise error
    assert (told.value.message, told.value.fix, told.value.__cause__) == (said, "copy it again", error)


@pytest.mark.parametrize("error", [KeyError("a bug"), SampleError("no number"), StageError("no memory")])
def test_bugs_and_errors_with_a_fix_of_their_own_pass_as_they_are(error):
    with pytest.raises(type(error)) as told, raised_as(InputError, ValueError, "m.onnx cannot be read"):
        raise error
    assert told.value is error


def test_an_error_of_accels_is_not_told_twice():
    with pytest.raises(SampleError) as told, raised_as(StageError, Exception, "the export failed"):
        raise SampleError("no number", fix="give another")
    assert told.value.fix == "give another"
