"""INT8 of a real model holds its gate: MiniLM with the weights that people use."""

from typer.testing import CliRunner

from accel.cli import app
from accel.core import document


def test_int8_of_real_weights_is_proved(tmp_path):
    run = tmp_path / "run"
    given = ["convert", "minilm", "--targets", "openvino-int8", "--bench", "none", "-o", str(run)]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0, done.output
    (variant,) = document.read(run).variants
    assert (variant.status, variant.reason) == ("ok", None)
    output = variant.parity.outputs[0]
    # Sentences of one word alone are no calibration sample; every id is asked among others.
    assert not {"lowest", "highest", "beyond"} & set(output.by_shape_db)
    assert any(note.startswith("compared on") and "30,522 input_ids" in note for note in variant.parity.notes)
