"""The regression gate: what is worse blocks, each kind of it planted; what is the same passes."""

import dataclasses
import json
import re
import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_release import accel, write_model, write_release

from accel.core.errors import InputError, OutputError, UsageError
from accel.core.values import file_ref
from accel.release import building, diffing, document, release_file
from accel.triton import manifest

REPOSITORY = "repositories/here/b"
HERE = {"pools": {"here": {"device": "cpu", "targets": ["ort"]}}}
QUICK = diffing.DiffLimits(rounds=12, round_s=0.03, budget_s=20)


@pytest.fixture
def pair(built, tmp_path):
    """Two copies of the release: the one before, and the one to be held against it."""
    for name in ("before", "after"):
        shutil.copytree(built[0] / "store" / "1", tmp_path / name)
    return tmp_path / "before", tmp_path / "after"


def rows(pair, **more):
    compared = diffing.diff(*pair, asked=QUICK, **more)
    return {(r.model, r.what): r for r in compared.rows}, compared


def by_command(pair):
    """Compare by the command: what it was, and the rows of b by what they are of."""
    short = ["--rounds", QUICK.rounds, "--round-s", QUICK.round_s, "--budget-s", QUICK.budget_s]
    done = accel("release", "diff", *pair, *short, "--json")
    return done, {row["what"]: row for row in json.loads(done.stdout)["rows"] if row["model"] == "b"}


def verdicts(found):
    return {what: r.verdict for (model, what), r in found.items() if model == "b" and r.verdict != "same"}


def change_model(root, change):
    """Change the ONNX file of b in place, and what the manifest says of it."""
    file = root / REPOSITORY / "b" / "1" / "model.onnx"
    model = onnx.load(file)
    change(model.graph)
    file.chmod(0o644)
    onnx.save(model, file)
    made = file_ref(file, file.parent)
    change_manifest(root, lambda m: m["artifact"]["files"][0].update(sha256=made.sha256, bytes=made.bytes))


def change_manifest(root, change):
    file = root / REPOSITORY / "manifest.json"
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))
    describe(root)


def describe(root):
    """Describe the files anew, as if the release had been built so."""
    made = {building.PAGE, building.REPORT, "bom.cdx.json", "provenance.json"}
    release = document.read(root)
    building.write(release, root, {f.path: root / f.path for f in release.files if f.path not in made}, copy=True)


def price(root, usd_per_hour, hardware=None, objective="throughput"):
    """Write what an hour costs into a release, as if its file had said so, and what models are chosen by."""
    data = json.loads((root / "release.json").read_text())
    for entry in data["entries"]:
        entry |= {"usd_per_hour": usd_per_hour} | ({"hardware": hardware} if hardware else {})
        for decision in entry["decisions"]:
            decision["objective"] = objective
    (root / "release.json").write_text(json.dumps(data))


def slow_down(graph):
    """Compute much that is then multiplied by zero: the same answers, later."""
    name = graph.output[0].name
    for node in graph.node:
        node.output[:] = ["kept" if output == name else output for output in node.output]
    wide = np.zeros((4, 1024), np.float32), np.eye(1024, dtype=np.float32), np.zeros((1024, 4), np.float32)
    graph.initializer.extend(numpy_helper.from_array(w, f"wide{i}") for i, w in enumerate(wide))
    graph.node.append(helper.make_node("MatMul", ["kept", "wide0"], ["m0"]))
    for i in range(12):
        graph.node.append(helper.make_node("MatMul", [f"m{i}", "wide1"], [f"m{i + 1}"]))
    graph.node.append(helper.make_node("MatMul", ["m12", "wide2"], ["nothing"]))
    graph.node.append(helper.make_node("Add", ["kept", "nothing"], [name]))


def perturb(graph):
    weight = numpy_helper.to_array(graph.initializer[0]).copy()
    weight.flat[0] += 0.25
    graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, graph.initializer[0].name))


def swell(graph):
    """Hold a tensor of 64 MiB for a moment, which is then multiplied by zero: the same answers, more memory."""
    (x,), name = (i.name for i in graph.input), graph.output[0].name
    for node in graph.node:
        node.output[:] = ["kept" if output == name else output for output in node.output]
    for tensor, value in (("large", [4096, 4096]), ("none", 0.0), ("axes", [0, 1])):
        graph.initializer.append(
            numpy_helper.from_array(np.array(value, np.float32 if tensor == "none" else np.int64), tensor)
        )
    graph.node.extend([
        helper.make_node("ReduceMax", [x], ["one"], keepdims=1),
        helper.make_node("Expand", ["one", "large"], ["wide"]),
        helper.make_node("ReduceMax", ["wide", "axes"], ["most"], keepdims=0),
        helper.make_node("Mul", ["most", "none"], ["nothing"]),
        helper.make_node("Add", ["kept", "nothing"], [name]),
    ])  # fmt: skip


def rename(graph):
    graph.name = "tinx"  # other bytes, the same work


def test_an_unchanged_release_passes_and_says_so_in_its_pages(pair):
    found, compared = rows(pair)
    assert {r.verdict for r in found.values()} == {"same"}
    assert diffing.blocking(compared) == []
    assert {what for _, what in found} == {"contract", "accuracy", "size", "lint", "answers", "latency", "memory"}
    assert document.read(pair[1]).compared == compared
    assert "Since 1" in (pair[1] / "index.html").read_text()
    done = accel("release", "verify", pair[1])
    assert done.returncode == 0, done.stdout


def test_the_same_files_that_are_opened_otherwise_are_not_the_same(pair):
    """Targets share files and differ in a hint to the runtime: the precision that it computes in."""
    made = manifest.read(pair[0] / REPOSITORY)
    other = dataclasses.replace(
        made.artifact.variant, target=dataclasses.replace(made.artifact.variant.target, name="x")
    )
    changed = dataclasses.replace(made, artifact=dataclasses.replace(made.artifact, variant=other))
    assert diffing._executed(made) != diffing._executed(changed)
    assert diffing._executed(made) == diffing._executed(dataclasses.replace(made))


def test_other_bytes_of_the_same_speed_and_answers_pass(pair):
    change_model(pair[1], rename)
    found, compared = rows(pair)
    assert found["b", "answers"].verdict == "same"
    assert re.search("interleaved rounds|6 pairs of processes", found["b", "latency"].reason)
    assert found["b", "latency"].verdict != "worse"
    assert diffing.blocking(compared) == []


def test_perturbed_weights_are_blocked(pair):
    change_model(pair[1], perturb)
    found, _ = rows(pair)
    assert found["b", "answers"].verdict == "changed"
    assert found["b", "answers"].blocks
    assert "is below the gate" in found["b", "answers"].reason


def test_a_slower_variant_is_blocked_for_time_and_size(pair):
    for root in pair:
        price(root, 0.2)
    change_model(pair[1], slow_down)
    done, found = by_command(pair)
    assert done.returncode == 1
    assert found["latency"]["verdict"] == found["throughput"]["verdict"] == found["size"]["verdict"] == "worse"
    assert "per s" in found["throughput"]["before"]
    assert "6 pairs of processes" in found["latency"]["reason"]
    assert "6 pairs of processes" in found["throughput"]["reason"]
    assert found["answers"]["verdict"] == "same"
    assert "b:latency on here: worse" in done.stderr
    assert (found["cost"]["verdict"], found["cost"]["blocks"]) == ("worse", True)
    assert found["cost"]["before"].endswith("USD per million")
    assert "b:cost on here: worse" in done.stderr
    for root in pair:
        price(root, 0.2, objective="latency")
    assert verdicts(rows((pair[1], pair[0]))[0]) == {"latency": "better", "size": "better"}


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (0.2, 0.2, "same"),
        (0.2, 0.209, "same"),
        (0.2, 0.22, "worse"),
        (0.2, 0.18, "better"),
        (None, 0.2, "new"),
        (0.2, None, "not comparable"),
        (None, None, None),
    ],
)
def test_a_price_that_changed_counts_also_for_the_same_bytes(pair, before, after, verdict):
    price(pair[0], before)
    price(pair[1], after)
    found, compared = rows(pair)
    row = found.get(("b", "cost"))
    assert (row.verdict if row else None) == verdict
    assert [r.what for r in diffing.blocking(compared) if r.model == "b"] == ["cost"] * (
        verdict in ("worse", "not comparable")
    )
    if verdict in ("worse", "better"):
        assert (row.before, row.after) == ("0.200 USD an hour", f"{after:.3f} USD an hour")


def test_the_price_of_other_hardware_is_not_compared(pair):
    price(pair[0], 0.1, "another")
    price(pair[1], 0.2)
    found, _ = rows(pair)
    assert (found["b", "cost"].verdict, found["b", "cost"].before) == ("new", "")
    assert "made for another" in found["b", "cost"].reason


def test_a_slower_artifact_is_cheaper_where_the_hour_became_cheaper_by_more(pair):
    price(pair[0], 0.2)
    # A millionth: on a busy machine the interval of a model of microseconds has reached a thousandfold.
    price(pair[1], 0.2e-6)
    change_model(pair[1], slow_down)
    found, _ = rows(pair)
    assert (found["b", "throughput"].verdict, found["b", "cost"].verdict) == ("worse", "better")


def test_cost_is_not_comparable_where_the_old_does_not_run(pair):
    for root in pair:
        price(root, 0.2)
    change_model(pair[0], rename)
    file = pair[0] / REPOSITORY / "b" / "1" / "model.onnx"
    file.write_bytes(file.read_bytes()[:-100])
    describe(pair[0])
    found, _ = rows(pair)
    assert found["b", "cost"].verdict == found["b", "throughput"].verdict == "not comparable"


def test_cost_is_not_compared_for_a_model_that_is_not_chosen_by_throughput(pair):
    price(pair[0], 0.2, objective="latency")
    price(pair[1], 0.4, objective="latency")
    assert ("b", "cost") not in rows(pair)[0]


def test_prices_of_the_release_file_are_recorded_and_shown(built, tmp_path):
    folder = tmp_path / "work"
    shutil.copytree(built[0], folder)
    (entry, *_) = document.read(folder / "store/1").entries
    assert entry.usd_per_hour is None
    (folder / "prices.yaml").write_text(f"{entry.hardware}: {{usd_per_hour: 0.25, models: 2}}\nother: 3\n")
    text = (folder / "release.yaml").read_text()
    for prices in (str(folder / "prices.yaml"), f"{{{entry.hardware}: {{usd_per_hour: 0.25}}}}"):
        (folder / "release.yaml").write_text(f"{text}\nprices: {prices}\n")
        made = building.build(release_file.read(folder / "release.yaml"), folder / "store")
        assert {e.usd_per_hour for e in made.entries if e.held == "ready"} == {0.25}
        assert {e.usd_per_hour for e in made.entries if e.hardware is None} <= {None}
        for page in ("index.html", "report.md"):
            assert "USD per million" in (folder / "store/1" / page).read_text()
    for page in ("index.html", "report.md"):
        assert "USD per million" not in (built[0] / "store/1" / page).read_text()


def test_more_memory_is_blocked(pair):
    change_model(pair[1], swell)
    done, found = by_command(pair)
    assert done.returncode == 1
    assert found["memory"]["verdict"] == "worse"
    assert found["answers"]["verdict"] == "same"
    assert "b:memory on here: worse" in done.stderr


def test_a_changed_contract_is_blocked(pair):
    change_manifest(pair[1], lambda m: m["outputs"][0].update(name="z"))
    assert verdicts(rows(pair)[0]) == {"contract": "changed"}


CONTRACTS = {
    "the dtype of an input": (
        {"dtypes": (TensorProto.FLOAT16, TensorProto.FLOAT)},
        "x float16 batch×8; y float32 batch×4",
    ),
    "the dtype of an output": (
        {"dtypes": (TensorProto.FLOAT, TensorProto.FLOAT16)},
        "x float32 batch×8; y float16 batch×4",
    ),
    "the dims of an input": ({"dims": (9, 4)}, "x float32 batch×9; y float32 batch×4"),
    "the dims of an output": ({"dims": (8, 5)}, "x float32 batch×8; y float32 batch×5"),
}


@pytest.mark.parametrize("changed", CONTRACTS)
def test_a_model_that_was_rebuilt_with_another_contract_is_blocked(built, tmp_path, changed):
    more, expected = CONTRACTS[changed]
    write_model(tmp_path / "b.onnx", 1, **more)
    file = write_release(tmp_path, {"b": tmp_path / "b.onnx"}, **HERE)
    if "dims" in more:
        file.write_text(file.read_text().replace("max_shape: x:4x8", f"max_shape: x:4x{more['dims'][0]}"))
    building.build(release_file.read(file), tmp_path / "store")
    done, found = by_command((built[0] / "store" / "1", tmp_path / "store" / "1"))
    assert done.returncode == 1
    assert found["contract"]["verdict"] == "changed"
    assert found["contract"]["before"].endswith("b, batch 4: x float32 batch×8; y float32 batch×4")
    assert found["contract"]["after"].endswith(expected)
    assert {"latency", "memory", "answers"}.isdisjoint(found)
    assert f"b:contract on here: changed: {found['contract']['after']}" in done.stderr


def test_a_lower_figure_of_the_gate_is_blocked_below_80_db_alone(pair):
    for db, expected in ((85.0, {}), (70.0, {"accuracy": "worse"})):
        change_manifest(pair[1], lambda m, db=db: m["parity"]["found"].update(sqnr_db=db))
        assert verdicts(rows(pair)[0]) == expected


def test_a_new_lint_error_is_blocked(pair):
    config = pair[1] / REPOSITORY / "b" / "config.pbtxt"
    config.write_text(config.read_text() + "\nmax_queue_delay: 1\n")
    describe(pair[1])
    done, found = by_command(pair)
    assert done.returncode == 1
    assert {what for what, row in found.items() if row["blocks"]} == {"lint"}
    assert "config.pbtxt" in found["lint"]["reason"]
    assert "b:lint on here: worse" in done.stderr


def test_an_old_artifact_that_does_not_load_is_not_comparable_until_it_is_accepted(pair):
    change_model(pair[0], rename)
    file = pair[0] / REPOSITORY / "b" / "1" / "model.onnx"
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-100])
    describe(pair[0])
    found, compared = rows(pair)
    assert verdicts(found) == {"latency": "not comparable", "memory": "not comparable"}
    assert "the old artifact does not run here" in found["b", "latency"].reason
    accept = {f"b:{what}": "the old one was never right" for what in ("latency", "memory")}
    with pytest.raises(UsageError, match="no such row blocks"):
        diffing.diff(*pair, asked=QUICK, accept={"b:size": "x"})
    _, compared = rows(pair, accept=accept)
    assert diffing.blocking(compared) == []
    kept = document.read(pair[1]).compared
    assert {r.accepted for r in kept.rows if r.blocks} == {"the old one was never right"}


def test_a_release_that_was_changed_since_it_was_built_is_refused(pair):
    (pair[1] / REPOSITORY / "b" / "config.pbtxt").write_text("")
    with pytest.raises(InputError, match="is not as it was built"):
        diffing.diff(*pair, asked=QUICK)


def test_a_model_that_is_gone_is_blocked_and_a_new_one_is_not(pair):
    data = json.loads((pair[1] / "release.json").read_text())
    data["entries"] = [e for e in data["entries"] if e["model"] != "b"]
    (pair[1] / "release.json").write_text(json.dumps(data))
    found, compared = rows(pair)
    assert verdicts(found) == {"release": "worse"}
    assert [r.what for r in diffing.blocking(compared)] == ["release"]
    found, compared = rows((pair[1], pair[0]))
    assert verdicts(found) == {"release": "new"}
    assert not diffing.blocking(compared)


def test_a_retrained_model_is_found_from_the_command_line(built, tmp_path, key_pair):
    """The whole way: a new source, a new release, the gate, the reason that is recorded, and a build that keeps it."""
    folder = tmp_path / "work"
    shutil.copytree(built[0], folder)
    write_model(folder / "b.onnx", 1, shift=0.5)
    file = write_release(folder, {"b": folder / "b.onnx"}, version="2", **HERE)
    plan = release_file.read(file)
    building.build(plan, folder / "store")
    short = ["--rounds", 6, "--round-s", 0.02, "--budget-s", 5]
    both = [folder / "store" / version for version in "12"]
    done = accel("release", "diff", *both, *short)
    assert done.returncode == 1
    assert "b:answers on here: changed" in done.stderr
    assert "a:release on here: worse" in done.stderr
    accepted = ["--accept", "b:answers=retrained on more data", "--accept", "a:release=replaced by b"]
    done = accel("release", "diff", *both, *short, *accepted)
    assert done.returncode in (0, 1)  # a tiny model's time may differ on a busy machine
    assert "b:answers" not in done.stderr
    before = document.read(both[1])
    assert {r.accepted for r in before.compared.rows if r.blocks} >= {"retrained on more data", "replaced by b"}
    assert building.build(plan, folder / "store") == before
    write_model(folder / "b.onnx", 1, shift=0.25)
    anew = building.build(plan, folder / "store")
    assert (anew.compared, anew.compare_again) == (None, "1"), "what blocked is not forgotten by building it anew"
    assert building.build(plan, folder / "store") == anew
    accel("release", "diff", *both, *short)
    again = document.read(both[1])
    assert (again.compared.before, again.compare_again) == ("1", None)
    accel("release", "sign", both[1], "--key", key_pair(tmp_path, "key")[0])
    with pytest.raises(OutputError, match="nothing can be accepted"):
        diffing.diff(*both, accept={"b:answers": "x"}, asked=QUICK)
