"""``--metric``: a stranger's trained classifiers, of which one loses its task in INT8 though its decibels are good."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_run import convert

from accel.core.accuracy.metrics import METRICS, edit_distance
from accel.core.errors import AccelError
from accel.core.feeds import read_feeds
from accel.exporters import describe
from accel.exporters.samples import make_samples
from accel.exporters.sources import recognise
from accel.exporters.verdict import labels_of, score
from accel.run import tasks
from accel.run.stages import Described

SOURCE = '''
import torch

def train(loud):
    """Two classes by the sign of a sum; where loud, far larger values that say nothing go beside it."""
    torch.manual_seed(0)
    x = torch.randn(2048, 16)
    y = (x[:, :8].sum(1) > 0).long()
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    optimiser = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(150):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    if loud:
        with torch.no_grad():
            net[2].weight += 2000 * torch.randn(1, 32)
    return net.eval(), (x[:64],)

def sound():
    return train(False)

def loud():
    return train(True)
'''
METRIC = """
import numpy as np

def right(outputs, labels, inputs):
    (name,) = outputs[0]
    assert inputs[0]["input"].shape == (16,)
    return np.mean([o[name].argmax() == label for o, label in zip(outputs, labels, strict=True)])

def none(outputs, labels, inputs):
    return 0.0

def text(outputs, labels, inputs):
    return "good"

def writes(outputs, labels, inputs):
    (name,) = outputs[0]
    right = np.mean([o[name].argmax() == label for o, label in zip(outputs, labels, strict=True)])
    for o, i in zip(outputs, inputs, strict=True):
        o[name][:] = 0.0
        i["input"][:] = 0.0
    labels.clear()
    return right

def breaks(outputs, labels, inputs):
    return labels[0]["class"]
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strangers")
    (folder / "net.py").write_text(SOURCE)
    (folder / "metric.py").write_text(METRIC)
    x = np.random.default_rng(1).standard_normal((384, 16)).astype(np.float32)
    np.savez(folder / "data.npz", input=x, kind=(x[:, :8].sum(1) > 0).astype(np.int64))
    return folder


@pytest.mark.parametrize(("which", "passes"), [("sound", True), ("loud", False)])
def test_int8_that_loses_the_task_fails_whatever_its_decibels(
    files: Path, tmp_path: Path, which: str, passes: bool
) -> None:
    given: dict[str, Any] = {"samples": str(files / "data.npz"), "metric": "accuracy", "labels": "kind"}
    given |= dict.fromkeys(("min_shape", "shape", "max_shape", "range"), ())
    run = convert(files / "net.py", tmp_path / "run", "ort,ort-int8-dynamic", which, bench="none", **given)
    plain, int8 = (v["parity"] for v in run["variants"])
    assert plain["passed"]
    assert plain["scores"]["accuracy"][0] == plain["scores"]["accuracy"][1] > 0.9
    assert int8["found"]["sqnr_db"] > 20
    assert int8["passed"] is passes, int8["reasons"]
    if not passes:
        assert "of the source's own score" in int8["reasons"][0]
        score, own = int8["scores"]["accuracy"]
        assert int8["found"]["accuracy"] == score / own < 0.99 == int8["gate"]["accuracy"]
        assert f"{score:.4f} (of {own:.4f})" in (tmp_path / "run" / "report.md").read_text()


def described(files: Path, folder: Path, which: str = "sound", **given: Any) -> Described:
    request = recognise(f"{files}/net.py:{which}", **{"samples": str(files / "data.npz"), **given})
    source = describe(request)
    return Described(source, make_samples(source, request, folder))


def test_a_users_function_scores_what_the_known_one_does(files: Path, tmp_path: Path) -> None:
    for metric in ("accuracy", f"{files}/metric.py:right", f"{files}/metric.py:writes"):
        made = described(files, tmp_path / metric[-5:], metric=metric, labels="kind")
        folder = tmp_path / metric[-5:]
        assert tasks.reference(made, folder, folder / "reference.npz").feeds > 32
        assert made.source.gate is not None
        held = tasks.compare(
            made, folder, folder / "reference.npz", folder / "reference.npz", {made.source.gate[0]: 0.99}
        )
        assert held.passed
        [score] = held.scores.values()
        assert score == pytest.approx((0.98, 0.98), abs=0.02)


@pytest.mark.parametrize(
    ("given", "message", "fix"),
    [
        ({"metric": "accuracy"}, "needs the right answers", "--labels NAME"),
        ({"labels": "kind"}, "--labels is for a task metric", "--metric accuracy"),
        ({"metric": "acuracy", "labels": "kind"}, "did you mean accuracy", None),
        ({"metric": "accuracy", "labels": "sort"}, "no label 'sort'", "one of the keys ['input', 'kind']"),
        ({"metric": "gone.py:right", "labels": "kind"}, "no metric file at gone.py", "check the path"),
        ({"metric": "metric.py:wrong", "labels": "kind"}, "no function 'wrong'", "'right'"),
        (
            {"metric": "metric.py:none", "labels": "kind"},
            "none of net itself is 0",
            "labels are not in the model's own",
        ),
        ({"metric": "metric.py:text", "labels": "kind"}, "returned str, expected a number", "def metric(outputs"),
        ({"metric": "metric.py:breaks", "labels": "kind"}, "breaks raised TypeError", "def metric(outputs"),
        ({"metric": "cer", "labels": "kind"}, "is not a list of characters", "file.py:function"),
        (
            {"metric": "accuracy", "labels": "kind", "samples": "few.npz"},
            "3 labels under 'kind' for 4 items",
            "first axis",
        ),
        ({"metric": "accuracy", "labels": "kind", "samples": "s.jsonl"}, "s.jsonl:2: no label 'kind'", "--labels NAME"),
        ({"metric": "accuracy", "labels": "kind", "samples": "high.npz"}, "label 7 of item", "numbered from 0"),
    ],
)
def test_what_is_wrong_is_told_with_its_fix(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str], message: str, fix: str | None
) -> None:
    monkeypatch.chdir(files)
    row = np.zeros((4, 16), np.float32) + np.arange(4, dtype=np.float32)[:, None]
    np.savez("few.npz", input=row, kind=np.arange(3))
    np.savez("high.npz", input=row, kind=np.full(4, 7))
    Path("s.jsonl").write_text("".join(json.dumps({"input": [0.5] * 16} | more) + "\n" for more in ({"kind": 1}, {})))

    def answer() -> None:
        tasks.reference(described(files, tmp_path, **given), tmp_path, tmp_path / "reference.npz")

    with pytest.raises(AccelError) as raised:
        answer()
    assert message in raised.value.message
    assert fix is None or fix in (raised.value.fix or "")


def test_what_a_metric_writes_into_its_arguments_is_not_compared(files: Path, tmp_path: Path) -> None:
    made = described(files, tmp_path, metric=f"{files}/metric.py:writes", labels="kind")
    assert made.samples.gate is not None
    feeds, labels = read_feeds(tmp_path / made.samples.gate.path), labels_of(made.samples, tmp_path, "gate")
    assert labels is not None
    answers = {name: {"out": np.stack([-feed["input"][:, 0], feed["input"][:, 0]], 1)} for name, feed in feeds.items()}
    whole = json.dumps(labels), {n: f["input"].copy() for n, f in feeds.items()}
    first = score(made.source, feeds, answers, labels)
    assert 0 < first == score(made.source, feeds, answers, labels)
    assert json.dumps(labels) == whole[0]
    assert all((feeds[n]["input"] == value).all() and answers[n]["out"].any() for n, value in whole[1].items())


def test_labels_stay_with_their_items(files: Path, tmp_path: Path) -> None:
    """Repeated rows are left out, every third calibrates, feeds join eight: each keeps its own label."""
    x = np.arange(60, dtype=np.float32).repeat(2)[:, None].repeat(16, 1)
    np.savez(tmp_path / "twice.npz", input=x, kind=x[:, 0].astype(int))
    made = described(files, tmp_path / "made", samples=str(tmp_path / "twice.npz"), metric="accuracy", labels="kind")
    count = 0
    for name, file in (("gate", made.samples.gate), ("calibration", made.samples.calibration)):
        labels = labels_of(made.samples, tmp_path / "made", name)
        assert labels is not None
        assert file is not None
        feeds = read_feeds(tmp_path / "made" / file.path)
        assert {n: f["input"][:, 0].astype(int).tolist() for n, f in feeds.items()} == labels
        count += sum(map(len, labels.values()))
    assert count == 60


def test_known_metrics() -> None:
    scores = [{"logits": np.array(v, np.float32)} for v in ([0.1, 0.9, 0.0], [0.5, 0.4, 0.1], [0.2, 0.3, 0.5])]
    none: list[dict[str, np.ndarray]] = [{}] * 3
    assert METRICS["accuracy"](scores, [1, 0, 1], none) == pytest.approx(2 / 3)
    assert METRICS["f1"](scores, [1, 0, 1], none) == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert METRICS["mrr"](scores, [1, 1, 0], none) == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    pairs = [{"logits": np.array([v], np.float32)} for v in (0.9, 0.3, 0.5)]
    assert METRICS["mrr"](pairs, [["q", 0], ["q", 1], ["q", 0]], none) == pytest.approx(1 / 3)
    tokens = [{"logits": np.eye(4, dtype=np.float32)[[1, 2, 3, 0]]}]
    assert METRICS["accuracy"](tokens, [[1, 0, -100]], [{}]) == 0.5
    steps = [{"logits": np.eye(4, dtype=np.float32)[[1, 1, 0, 1, 2, 2]]}]
    assert METRICS["cer"](steps, [[1, 1, 2]], [{}]) == 1
    assert METRICS["cer"](steps, [[1, 2, 3, 3]], [{}]) == 0.25
    assert edit_distance("kitten", "sitting") == 3
