"""What a job may ask of ensembles, and how it is said."""

from pathlib import Path
from typing import Any

import pytest

from accel.core.errors import AccelError
from accel.core.values import TensorSpec
from accel.exporters.ensemble_request import EnsembleRequest, asked
from accel.run.job import assemble

WORDS = {"name": "words", "dtype": "str", "dims": ["batch", 1]}


@pytest.fixture(autouse=True)
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("steps.py").write_text("def prepare(inputs):\n    return inputs\n")
    Path("broken.py").write_text("def prepare(:\n")
    Path("words.txt").write_text("a\n")


def test_the_flag_and_what_switches_it_off():
    assert asked(True) == EnsembleRequest({}, {})
    assert asked(False) is None
    assert asked(None) is None
    assert asked({}) == EnsembleRequest({}, {})
    assert asked({"pre": None, "post": {"top_k": 3}}) == EnsembleRequest(None, {"top_k": 3})


def test_a_step_of_the_user_s(tmp_path):
    pre = {"function": "steps.py:prepare", "inputs": [WORDS], "files": ["words.txt"], "packages": ["scipy==1.17.1"]}
    post = {"function": "steps.py:prepare", "inputs": ["logits"], "outputs": [{**WORDS, "dtype": "object"}]}
    found = asked({"pre": pre, "post": post})
    assert found.pre.file.path == str(tmp_path / "steps.py")
    assert len(found.pre.file.sha256) == 64
    assert found.pre.inputs == (TensorSpec("words", "str", ("batch", 1)),)
    assert [Path(f.path).name for f in found.pre.files] == ["words.txt"]
    assert found.pre.packages == ("scipy==1.17.1",)
    assert (found.post.inputs, found.post.outputs) == (("logits",), found.pre.inputs)


def pre(**changes: Any) -> dict[str, Any]:
    return {"pre": {"function": "steps.py:prepare", "inputs": [WORDS]} | changes}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"before": {}}, "ensemble has no key 'before'"),
        ({"folder": "none"}, "ensemble.folder is 'none', which is not a folder here"),
        ({"pre": "steps.py:prepare"}, "needs its tensors declared"),
        (pre(function="steps.py"), "expected file.py:function"),
        (pre(function="other.py:prepare"), "ensemble.pre: cannot read .*other.py: No such file"),
        (pre(function="broken.py:prepare"), "broken.py is not a Python file"),
        (pre(function="steps.py:prepar"), "defines no function 'prepar' .did you mean prepare"),
        (pre(inputs=[]), "declares no inputs: nothing says what clients send"),
        (pre(inputs=WORDS), "ensemble.pre.inputs is .*: expected a list"),
        (pre(inputs=["words"]), "ensemble.pre.inputs holds 'words': expected .name"),
        (pre(inputs=[WORDS, WORDS]), "declares 'words' twice"),
        (pre(inputs=[{**WORDS, "dtype": "string"}]), "no data type for 'string'"),
        (pre(inputs=[{**WORDS, "dtype": "bfloat16"}]), "which NumPy cannot hold"),
        (pre(inputs=[{**WORDS, "dims": ["batch"]}]), "has dims .'batch'.: expected 'batch' and at least one more"),
        (pre(inputs=[{**WORDS, "dims": [1, 1]}]), "expected 'batch' and at least one more"),
        (pre(inputs=[{**WORDS, "dims": ["batch", -1]}]), "each a name or a size"),
        (pre(inputs=[{**WORDS, "shape": [1]}]), "expected .name: …, dtype: …, dims"),
        (pre(files=["none.txt"]), "cannot read .*none.txt"),
        (pre(packages=["scipy"]), "packages holds 'scipy': expected name==version"),
        (pre(file="x"), "ensemble.pre has no key 'file'"),
        ({"post": {"function": "steps.py:prepare"}}, "declares no outputs: nothing says what clients get"),
        ({"post": {"function": "steps.py:prepare", "inputs": [WORDS], "outputs": [WORDS]}}, "expected the name of a"),
    ],
)
def test_a_wrong_declaration_is_a_clear_error(value, why):
    with pytest.raises(AccelError, match=why):
        asked(value)


def test_the_flag_takes_the_job_file_s_words(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text("source: minilm\ntargets: ort\nensemble: {post: {normalise: false}}\n")
    for given in ({}, {"ensemble": True}):
        assert assemble(given, job, command="").ensemble == EnsembleRequest({}, {"normalise": False})
    job.write_text("source: minilm\ntargets: ort\n")
    assert assemble({}, job, command="").ensemble is None
    assert assemble({"ensemble": True}, job, command="").ensemble == EnsembleRequest()
    job.write_text("source: minilm\ntargets: ort\nensemble: 3\n")
    with pytest.raises(AccelError, match="ensemble"):
        assemble({}, job, command="")
