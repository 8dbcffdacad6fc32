"""release.yaml: what is read of it, what is refused with its line, and the schema that editors hold it against."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import yaml
from tiny_release import accel, write_model

from accel.core import hardware
from accel.core.errors import InputError, UsageError
from accel.release import planning, release_file

FILE = """\
release: 2026.11.1
defaults: &defaults
  objective: latency
  rounds: 3
pools:
  here: {device: cpu, targets: [ort, torch]}
  h100: {device: cuda, targets: trt-fp16, gpu: H100}
models:
  plain: minilm
  bert:
    <<: *defaults
    source: bert
    rounds: 5
    require: [ort]
    pools: {here: [ort]}
    shape: input_ids:1x128
    triton: {max_batch_size: 4}
"""
BAD = {
    "defaults:\n  objectiv: latency": ["line 3: defaults.objectiv: unknown key 'objectiv' (did you mean objective?)"],
    "models:\n  m: {source: minilm, rounds: 1}": [
        "line 3: models.m.rounds: Input should be greater than or equal to 2"
    ],
    "models:\n  m:\n    targets: cpu": ["line 4: models.m.targets: unknown key", "line 3: models.m: source is missing"],
    "models:\n  m: {source: minilm, shape: x}": ["line 3: models.m.shape: 'x' is not a shape"],
    "models:\n  m:\n    source: gone.onnx": ["line 3: models.m: no ONNX file at gone.onnx"],
    "models:\n  m:\n    source: minilm\n    pools: [cpo]": [
        "line 5: models.m.pools: unknown pool 'cpo' (did you mean cpu?)"
    ],
    "models:\n  m:\n    source: minilm\n    pools: {cpu: [trt-fp16]}": [
        "line 5: models.m.pools.cpu: target 'trt-fp16' does"
    ],
    "models:\n  m:\n    source: minilm\n    require: torch": [
        "line 5: models.m.require: 'torch' is not among its targets"
    ],
    "models:\n  m: minilm\n  m: bert": ["line 4: models.m is given in line 3 already"],
    "models:\n  m: {source: minilm, triton: {max_batch: 4}}": ["line 3: models.m:", "no field named"],
    "models: {}": ["line 2: models: Dictionary should have at least 1 item"],
    "models:\n  a/b: minilm": ["models.a/b: String should match pattern"],
    "pools:\n  cpu: {device: cpu, targets: [ortt]}": ["line 3: pools.cpu: unknown target 'ortt' (did you mean ort?)"],
    "pools:\n  cpu:\n    device: gpu\n    targets: ort": [
        "line 4: pools.cpu.device: Input should be 'cpu' or 'cuda', found"
    ],
    "pools:\n  cpu: {device: cpu, targets: ort, flags: [vnni]}": ["line 3: pools.cpu.flags: unknown feature 'vnni'"],
    "release: '1'\nretention: {keep: 3}": [
        "line 2: retention.keep: unknown key 'keep' (did you mean keep_",
        "line 2: retention: keep_last is missing",
    ],
    "release: '1'\nlicences: {alow: MIT}": ["line 2: licences.alow: unknown key 'alow' (did you mean allow?)"],
    "release: 2026.11": ["line 1: release: Input should be a valid string, found 2026.11"],
    "release: ../up": ["line 1: release: String should match pattern"],
}


def write(folder: Path, text: str) -> Path:
    path = folder / "release.yaml"
    path.write_text(text)
    return path


def test_defaults_overrides_anchors_and_short_forms(tmp_path):
    plan = release_file.read(write(tmp_path, FILE))
    plain, bert = plan.models
    assert (plan.version, list(plan.pools)) == ("2026.11.1", ["here", "h100"])
    assert {pool: [str(t) for t in targets] for pool, targets in plain.wanted.items()} == {
        "here": ["ort@cpu", "torch@cpu"],
        "h100": ["trt-fp16@cuda"],
    }
    assert {pool: [str(t) for t in targets] for pool, targets in bert.wanted.items()} == {"here": ["ort@cpu"]}
    assert bert.required == ("ort",)
    job = bert.job(bert.wanted["here"], tmp_path / "run")
    assert (job.rounds, job.objectives, job.opt_shapes, job.request.name) == (
        5,
        ("latency",),
        {"input_ids": (1, 128)},
        "bert",
    )
    assert "max_batch_size: 4" in job.overrides["ort"]
    assert plain.job(plain.wanted["here"], tmp_path / "run").rounds == 3


@pytest.mark.parametrize("part", BAD)
def test_what_is_wrong_is_told_with_its_line(part, tmp_path):
    whole = {
        "release": "release: '1'\n",
        "pools": "pools: {cpu: {device: cpu, targets: ort}}\n",
        "models": "models: {m: minilm}\n",
    }
    text = whole.pop(part.partition(":")[0], whole["release"]) if not part.startswith("defaults") else ""
    head = "" if part.startswith("release") else whole.pop("release")
    text = head + part + "\n" + "".join(whole.values())
    with pytest.raises(InputError) as caught:
        release_file.read(write(tmp_path, text))
    for said in BAD[part]:
        assert said in caught.value.message, text


def test_every_error_of_a_file_is_told_at_once(tmp_path):
    done = accel("release", "plan", write(tmp_path, "release: '1'\npools: {}\nmodels: {m: {sauce: x}}\n"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert all(
        said in done.stderr for said in ("line 2: pools", "line 3: models.m.sauce", "models.m: source is missing")
    )


def test_the_schema_takes_what_is_read_and_refuses_what_is_not(tmp_path):
    done = accel("release", "schema")
    schema = json.loads(done.stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    good = yaml.safe_load(FILE)
    jsonschema.validate(good, schema)
    for change in (
        {"models": {}},
        {"pools": {"p": {"device": "tpu", "targets": "ort"}}},
        {"models": {"m": {"sauce": 1}}},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**good, **change}, schema)


@pytest.mark.parametrize(
    "prices",
    ["{}", "[]", "3", "{a: 0}", "{a: -1}", "{a: {models: 2}}", "{a: {usd_per_hour: 1, x: 2}}", "{a: true}", "null"],
)
def test_a_price_that_is_none_is_told_with_its_line_and_refused_by_the_schema(tmp_path, prices):
    with pytest.raises(InputError, match=r"line \d+: prices: "):
        release_file.read(write(tmp_path, f"{FILE}\nprices: {prices}\n"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**yaml.safe_load(FILE), "prices": yaml.safe_load(prices)}, release_file.schema())


def test_prices_are_read_as_accel_tune_reads_them(tmp_path):
    (tmp_path / "prices.yaml").write_text("a: 0.5\n")
    for prices in (f"{tmp_path}/prices.yaml", "{a: 0.5}", "{a: {usd_per_hour: 1, models: 2}}"):
        plan = release_file.read(write(tmp_path, f"{FILE}\nprices: {prices}\n"))
        assert plan.prices["a"].of_a_model == 0.5
        jsonschema.validate({**yaml.safe_load(FILE), "prices": yaml.safe_load(prices)}, release_file.schema())
    with pytest.raises(InputError, match=r"line \d+: prices: .*missing.yaml"):
        release_file.read(write(tmp_path, f"{FILE}\nprices: {tmp_path}/missing.yaml\n"))
    assert release_file.read(write(tmp_path, FILE)).prices == {}


def test_which_machine_is_of_a_pool():
    cpu = hardware.Cpu("Xeon", 8, ("avx2", "avx512_vnni"))
    machine = hardware.Hardware(cpu, (), 16 << 30, "Linux")
    card = hardware.Gpu("NVIDIA H100 80GB HBM3", 80 << 30, "570", "9.0")

    def lack(machine=machine, **needs):
        return release_file.MachinePool.model_validate({"device": "cpu", "targets": ["ort"], **needs}).lacks(machine)

    assert lack() is None
    assert lack(flags=["avx512_vnni"], threads=8, memory_gib=16, hardware=machine.id) is None
    assert "amx_int8" in lack(flags=["amx_int8"])
    assert "8 CPU threads, not 9" in lack(threads=9)
    assert "16.0 GiB" in lack(memory_gib=17)
    assert "not other" in lack(hardware="other")
    gpu = {"device": "cuda", "targets": ["trt-fp16"]}
    assert lack(**gpu) == "it has no GPU"
    assert lack(replace(machine, gpus=(card,)), **gpu, gpu="h100") is None
    assert lack(replace(machine, gpus=(card,)), **gpu, gpu="L4") == "it has no L4"
    pools = {n: release_file.MachinePool(device="cpu", targets=("ort",)) for n in "ab"}
    with pytest.raises(UsageError, match="of the pools a and b"):
        planning.roles(pools, machine)


def test_the_plan_of_what_was_never_built(tmp_path):
    model = write_model(tmp_path / "m.onnx")
    pools = "here: {device: cpu, targets: ort}, arm: {device: cpu, targets: ort, flags: asimd}"
    text = f"release: '1'\npools: {{{pools}, h100: {{device: cuda, targets: trt-fp16}}}}\nmodels: {{m: {model}}}\n"
    plan = release_file.read(write(tmp_path, text))
    steps = list(planning.steps(plan, tmp_path / "store", replace(hardware.detect(), gpus=())))
    assert [(s.pool, s.doing, s.seconds) for s in steps] == [
        ("here", "build", None),
        ("arm", "wait", None),
        ("h100", "kits", None),
    ]
    assert not (tmp_path / "store").exists()


def test_a_licence_that_is_unknown_or_denied_stops_until_it_is_accepted_by_name(tmp_path):
    folder = write_bert(tmp_path / "card", "---\nlicense: other\nlicense_name: house-1\n---\n# A model\n")
    models = {"zoo": "minilm", "card": str(folder), "file": str(write_model(tmp_path / "file.onnx"))}
    whole = {"release": "1", "pools": {"cpu": {"device": "cpu", "targets": "ort"}}, "models": models}

    def read(licences, **more):
        text = yaml.safe_dump({**whole, "licences": licences, **more}, sort_keys=False)
        return release_file.read(write(tmp_path, text))

    with pytest.raises(InputError) as caught:
        read({"allow": "apache-2.0, MIT"})
    said = caught.value.message
    assert "card: its licence is house-1, and licences.allow names apache-2.0, MIT" in said
    assert "file: its licence is unknown: give its licence, or say why under licences.accept.file" in said
    assert "zoo" not in said
    with pytest.raises(InputError, match=r"zoo: its licence is Apache-2\.0, which licences.deny names"):
        read({"deny": ["Apache-2.0"], "accept": {"file": "ours"}})
    with pytest.raises(InputError, match=r"line \d+: licences.accept.*: unknown model 'fil' \(did you mean file\?\)"):
        read({"allow": ["MIT"], "accept": {"fil": "ours"}})
    given = {**models, "file": {"source": models["file"], "licence": "MIT"}}
    plan = read({"allow": ["MIT", "Apache-2.0"], "accept": {"card": "contract 17"}}, models=given)
    assert [(m.licence, m.accepted) for m in plan.models] == [
        ("Apache-2.0", None),
        ("house-1", "contract 17"),
        ("MIT", None),
    ]
    assert {m.licence for m in read({}).models} == {"Apache-2.0", "house-1", None}
    assert plan.models[2].options == read({}).models[2].options  # a licence is no reason to convert again


def test_what_a_model_is_asked_for_is_read_once(tmp_path, monkeypatch):
    """A plan asks for it many times, and each reading of it read the whole zoo: 28 ms of CPU time a model."""
    plan, read = release_file.read(write(tmp_path, FILE)), []
    monkeypatch.setattr(release_file.ModelPlan, "job", lambda *_: read.append(1) or SimpleNamespace(request="asked"))
    assert [m.request for m in plan.models for _ in range(3)] == ["asked"] * 3 * len(plan.models)
    assert len(read) == len(plan.models)


def write_bert(folder: Path, card: str) -> Path:
    """Write what a local Hugging Face folder is recognised by, and its model card."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "README.md").write_text(card)
    return folder
