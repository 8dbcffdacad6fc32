"""``accel tune`` on real servers: interrupted, resumed, impossible, and with models that misbehave."""

import json
from dataclasses import replace

import null_repository
import pytest

from accel.core.errors import CheckFailed
from accel.core.values import sha256_file
from accel.triton import manifest as manifests, settings as schedules
from accel.triton.config import parse
from accel.triton.settings import Settings
from accel.triton.verify import verify
from accel.tune import lab, predict, session
from accel.tune.cost import Price
from accel.tune.lab import Goal

pytestmark = pytest.mark.slow
MISBEHAVES = """

class Misbehaving(TritonPythonModel):
    def initialize(self, args):
        super().initialize(args)
        self.two = json.loads(args["model_config"])["instance_group"][0]["count"] == 2

    def execute(self, requests):
        if self.two:
            os.kill(os.getppid(), 9)
        return super().execute(requests)

    def fit(self, tensors):
        from accel.core.errors import SampleError

        if len(tensors["input_ids"]) == 4:
            raise SampleError("out of memory, as four items find it")
        return super().fit(tensors)


TritonPythonModel = Misbehaving
"""


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Two setups on any machine, and measurements too short to mean anything: tests look at what becomes of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predict, "setups", lambda sayable, cores: [(1, 1), (2, 1)])
        patch.setattr(predict, "REQUESTS", 300)
        patch.setattr(lab, "WINDOW_S", 0.1)
        patch.setattr(session, "FINALISTS", 1)
        yield


def asked(root, **more):
    how = {"probe_s": 0.2, "least": 20, "via": "embedded", "prices": {"elsewhere": Price(1.0)}, "budget_s": 20.0}
    return session.Asked((root,), Goal(400.0, rate_per_s=1000.0), **how | more)


class Told:
    """What a user was told."""

    def __init__(self, stop_at: str = "never") -> None:
        self.notices: list[str] = []
        self.doings: list[str] = []
        self.stop_at = stop_at

    def progress(self, name: str, doing: str) -> None:
        self.doings.append(doing)
        if doing.startswith(self.stop_at):
            raise KeyboardInterrupt

    def tune(self, what: session.Asked):
        return session.tune(what, notice=self.notices.append, progress=self.progress)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, quick):
    """A repository whose tuning was interrupted before its second curve, and went on."""
    root = null_repository.write(tmp_path_factory.mktemp("tuned"), latency_ms=5.0)
    before = {p: sha256_file(p) for p in sorted(root.rglob("*")) if p.is_file()}
    broken, whole = Told("measuring 2"), Told()
    with pytest.raises(KeyboardInterrupt):
        broken.tune(asked(root))
    found, folder = whole.tune(asked(root))
    return root, before, broken, whole, found, folder


def test_what_was_measured_before_an_interruption_is_kept(tuned):
    _, _, broken, whole, _, _ = tuned
    assert [d for d in broken.doings if d.startswith("measuring")] == [
        "measuring 1 × 1 threads",
        "measuring 2 × 1 threads",
    ]
    assert [d for d in whole.doings if d.startswith("measuring")] == ["measuring 2 × 1 threads"]
    assert "goes on from here" in broken.notices[0]


def test_the_chosen_configuration_is_a_repository_of_its_own(tuned):
    root, before, _, _, found, folder = tuned
    assert {p: sha256_file(p) for p in sorted(root.rglob("*")) if p.is_file()} == before
    chosen = next(row for row in found["tried"] if row["chosen"])
    made = folder / "repository"
    assert not [f for f in verify(made) if f.severity == "error"]
    config = parse((made / "nothing" / "config.pbtxt").read_text())
    wanted = Settings(**chosen["settings"] | {"preferred": tuple(chosen["settings"]["preferred"])})
    assert schedules.read(config) == wanted
    shipped = parse((root / "nothing" / "config.pbtxt").read_text())
    assert (config.max_batch_size, config.input, config.output) == (8, shipped.input, shipped.output)
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 1024 or not wanted.batching
    assert manifests.read(made).tuned == found["decision"]["reason"]
    assert manifests.read(root).tuned is None


def test_the_document_says_what_was_predicted_proved_and_what_it_costs(tuned):
    _, _, _, whole, found, folder = tuned
    assert json.loads((folder / "tune.json").read_text()) == found
    assert found["tried"][0]["default"]
    assert any(row["predicted"] for row in found["tried"])  # on a busy machine a curve may hold nothing
    proved = [row for row in found["tried"] if row["probes"]]
    assert found["tried"][0] in proved
    assert sum(row["chosen"] for row in found["tried"]) == 1
    assert found["decision"]["verdict"] in ("decided", "equivalent", "undecided")
    best = next(row for row in found["tried"] if row["chosen"])["measured"]
    (here,) = found["costs"]
    assert here["per_minute"] == pytest.approx(60 * best["throughput_per_s"])
    assert here["machines"] * best["throughput_per_s"] >= 1200 > (here["machines"] - 1) * best["throughput_per_s"]
    assert here["usd_per_million"] is None
    assert any("the price list has no " in text and "elsewhere" in text for text in whole.notices)
    assert all(c["rss_mib"] > 10 for curves in found["curves"].values() for c in curves)
    page = (folder / "report.html").read_text()
    assert found["decision"]["chosen"] in page
    assert page.count('class="plot"') == 3


def test_a_budget_that_nothing_holds_names_the_nearest_miss(tuned):
    root, _, _, _, _, folder = tuned
    told = Told()
    with pytest.raises(CheckFailed, match=r"nothing holds p99 within 1 ms: nearest is .* take longer; .* idle server"):
        told.tune(replace(asked(root), goal=Goal(1.0)))
    assert json.loads((folder / "tune.json").read_text())["decision"]["verdict"] == "impossible"


def test_memory_that_no_server_keeps_within(tuned):
    root = tuned[0]
    with pytest.raises(CheckFailed, match="no configuration keeps within 1 MiB: the smallest server takes"):
        Told().tune(asked(root, max_memory_mib=1.0))


def test_one_batch_size_fails_and_two_instances_end_the_server(tmp_path, quick):
    """Both are findings: what is left is tuned, and nothing chosen may merge four requests."""
    root = null_repository.write(tmp_path)
    file = root / "nothing" / "1" / "model.py"
    file.write_text(file.read_text() + MISBEHAVES)
    manifest = json.loads((root / "manifest.json").read_text())
    entry = next(f for f in manifest["files"] if f["path"] == "nothing/1/model.py")
    entry |= {"sha256": sha256_file(file), "bytes": file.stat().st_size}
    (root / "manifest.json").write_text(json.dumps(manifest))
    found, _ = Told().tune(asked(root))
    unfit = found["unfit"]
    assert "out of memory, as four items find it" in next(why for name, why in unfit.items() if "above 2" in name)
    assert any("2 instances" in name for name in unfit)
    options = [row["settings"] for row in found["tried"][1:]]
    assert options
    assert {s["instances"] for s in options} == {1}
    assert all(not s["batching"] or (s["preferred"] == [2] and s["delay_us"] == 0) for s in options)
