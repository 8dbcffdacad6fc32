"""Hold `accel lint` against public configurations: how much it sees, and what it says where nothing is wrong.

    python benchmarks/lint_fixtures.py score SERVER/qa -o score.json      # fixtures of the server's qa/L0_model_config
    python benchmarks/lint_fixtures.py public REPOSITORY... -o public.json # every config.pbtxt below these folders

``score`` prepares each fixture as the server's own test does (qa/L0_model_config/test.sh: version folders, copied
models, the platform), with models of the same inputs and outputs where the test takes them from a folder that is not
public. A TensorRT plan cannot be made here and is an empty file, so what only the plan's content shows counts as
missed. ``public`` gives each config a version folder and leaves out findings that only say that a file is not in the
checkout; what remains is for a person to judge.
"""

import argparse
import collections
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path

from accel.triton.lint import lint
from accel.triton.releases import NEWEST

PLATFORM = "onnxruntime_onnx"
"""What ``noautofill_platform`` fixtures get: the test tries several, and each must fail under every one."""
ABSENT = re.compile(
    r"is not there|has no version folder|is not in the model's folder|is missing, and nothing in the folder tells|"
    r"is not a model of this repository|is not in initial_state|loads none of the versions|is not absolute|"
    r"which is not there"
)
"""Findings about files that a checkout does not have."""


PLAN = "autofill_noplatform/tensorrt/"
CANNOT_BE_SEEN = {
    "autofill_noplatform/custom/unknown_backend.unknown": "the folder's suffix names a backend that may lie in a "
    "server's --backend-directory: a warning",
    f"{PLAN}bad_dynamic_shapes_max": "a dim above the largest of the plan's profile",
    f"{PLAN}bad_dynamic_shapes_min": "a dim below the least of the plan's profile",
    f"{PLAN}bad_input_dims": "a size that is not the plan's",
    f"{PLAN}bad_input_shape": "a rank that fits the plan of one input with, of another without a batch axis",
    f"{PLAN}bad_input_type": "a type that is not the plan's",
    f"{PLAN}bad_output_dims": "a size that is not the plan's",
    f"{PLAN}bad_output_shape": "a rank that fits the plan of one output with, of another without a batch axis",
    f"{PLAN}bad_output_type": "a type that is not the plan's",
    f"{PLAN}mixed_batch_hint_dims": "ranks that fit the plan partly with, partly without a batch axis",
    f"{PLAN}mixed_batch_hint_shape_values": "the same, for shape tensors",
    f"{PLAN}too_few_inputs": "an input of the plan that the config leaves out",
    f"{PLAN}too_many_inputs": "an input that the plan does not have",
    f"{PLAN}unknown_input": "an input that the plan does not have",
    f"{PLAN}unknown_output": "an output that the plan does not have",
}
"""Invalid fixtures of which nothing but a plan's content, which the checkout lacks, or the server's folders tells."""


def score(qa: Path) -> dict:
    """Lint every fixture, and return what was seen and what was missed."""
    fixtures = qa / "L0_model_config"
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for valid, source in sorted(_fixtures(fixtures), key=lambda f: f[1]):
            root = Path(scratch) / "repository"
            shutil.rmtree(root, ignore_errors=True)
            _prepare(qa, fixtures, source, root)
            # A file that this preparation lacks is no proof that the mistake was seen.
            found = (f for f in lint(root, NEWEST) if f.severity == "error")
            errors = [f for f in found if not re.match(r"\d+/\S+ is not there", f.why)]
            rows.append(
                {
                    "fixture": source.relative_to(fixtures).as_posix(),
                    "valid": valid,
                    "right": valid == (not errors),
                    "errors": [f"{f.file}: {f.field}: {f.why}" for f in errors],
                    "expected": [p.read_text().strip() for p in sorted(source.glob("expected*"))] if not valid else [],
                }
            )
    invalid, sound = [r for r in rows if not r["valid"]], [r for r in rows if r["valid"]]
    seeable = [r for r in invalid if r["fixture"] not in CANNOT_BE_SEEN]
    return {
        "release": NEWEST,
        "invalid": {"seen": sum(r["right"] for r in invalid), "of": len(invalid)},
        "invalid_that_can_be_seen": {"seen": sum(r["right"] for r in seeable), "of": len(seeable)},
        "valid": {"clean": sum(r["right"] for r in sound), "of": len(sound)},
        "wrong": [r["fixture"] for r in rows if not r["right"] and r["fixture"] not in CANNOT_BE_SEEN],
        "cannot_be_seen": CANNOT_BE_SEEN,
        "fixtures": rows,
    }


def _fixtures(folder: Path) -> list[tuple[bool, Path]]:
    places = {
        "autofill_noplatform/*/*": False,
        "autofill_noplatform_success/*/*": True,
        "noautofill_platform/*": False,
        "special_cases/*": False,
        "model_metrics/invalid_config/*": False,
        "model_metrics/valid_config/*": True,
        "model_metrics/valid_config_with_warn/*": True,
        "custom_parameters/*/invalid/*": False,
        "custom_parameters/*/valid/*": True,
    }
    return [(valid, path) for pattern, valid in places.items() for path in folder.glob(pattern) if path.is_dir()]


def _prepare(qa: Path, fixtures: Path, source: Path, root: Path) -> None:
    """Copy one fixture as a repository, and add what the server's test adds."""
    place = source.relative_to(fixtures).as_posix()
    nested = [p for p in source.iterdir() if (p / "config.pbtxt").exists()]
    single = not nested
    shutil.copytree(source, root / source.name if single else root)
    models = [root / source.name] if single else [p for p in root.iterdir() if p.is_dir()]
    for model in models:
        for file in model.glob("expected*"):
            file.unlink()
        if "no_version" not in place:
            (model / "1").mkdir(exist_ok=True)
        if (model / "model.py").exists():
            shutil.copy(model / "model.py", model / "1/model.py")
    for file in root.glob("expected*"):
        file.unlink()
    model, kind = models[0], place.split("/")[1] if "/" in place else ""
    if place.startswith("noautofill_platform/"):
        config = model / "config.pbtxt"
        kept = [line for line in config.read_text().splitlines() if "platform:" not in line]
        config.write_text("\n".join([*kept, f'platform: "{PLATFORM}"']) + "\n")
        if "invalid_cpu" in place or "_gpu" in place:
            ports = (1, ["N", 16])
            _onnx(model / "1/model.onnx", {"INPUT0": ports, "INPUT1": ports}, {"OUTPUT0": ports, "OUTPUT1": ports})
    elif place.startswith("model_metrics/"):
        _partial(model, qa / "python_models/async_execute_decouple/config.pbtxt")
        shutil.copy(qa / "python_models/async_execute_decouple/model.py", model / "1/model.py")
    elif place.startswith("custom_parameters/"):
        _partial(model, None)
        (model / "1/model.plan").write_bytes(b"")
    elif kind == "python" and not (model / "model.py").exists() and single:
        shutil.copy(qa / "python_models/auto_complete/model.py", model / "1/model.py")
    elif kind == "tensorrt":
        (model / "1/model.plan").write_bytes(b"")
    elif kind == "openvino":
        batch = "dynamic_batch" if place.endswith("dynamic_batch") else "fixed_batch"
        shutil.copytree(qa / "openvino_models" / batch / "1", model / "1", dirs_exist_ok=True)
        if place.endswith("partial_config"):
            _openvino_int8(model)
    elif kind == "pytorch":
        _torchscript(model / "1/model.pt")
    elif place.endswith("onnx/cpu_instance"):
        _onnx(model / "1/model.onnx", {"INPUT0": (10, list("NML"))}, {"OUTPUT0": (10, list("NML"))})
    elif place.endswith("invalid_platform"):
        ports = (1, ["N", 16])
        _onnx(model / "1/model.onnx", {"INPUT0": ports, "INPUT1": ports}, {"OUTPUT0": ports, "OUTPUT1": ports})
    elif place.endswith("runtime_escape"):
        (model / "dummy_runtime").mkdir()
        (model / "dummy_runtime/libtriton_identity.so").write_bytes(b"")
    for repeat in root.glob("repeat_int32"):
        (repeat / "1/libtriton_repeat.so").write_bytes(b"")


def _partial(model: Path, base: Path | None) -> None:
    """Put the fixture's part of a config behind the whole one that the test takes."""
    partial = (model / "partial.pbtxt").read_text()
    if base is not None:
        text = re.sub(r"(?m)^name:.*$", "", base.read_text())
    else:  # the config of qa_model_repository/plan_float32_float32_float32, which a script generates
        text = 'platform: "tensorrt_plan"\nmax_batch_size: 8\n' + "".join(
            f'{kind} {{ name: "{kind.upper()}{i}" data_type: TYPE_FP32 dims: [ 16 ] }}\n'
            for kind in ("input", "output")
            for i in (0, 1)
        )
    (model / "config.pbtxt").write_text(f"{text}\n{partial}")


def _onnx(path: Path, inputs: dict, outputs: dict) -> None:
    from onnx import helper, save

    values = [[helper.make_tensor_value_info(n, t, d) for n, (t, d) in ports.items()] for ports in (inputs, outputs)]
    nodes = [helper.make_node("Identity", [i], [o]) for i, o in zip(inputs, outputs, strict=True)]
    save(helper.make_model(helper.make_graph(nodes, "fixture", *values)), path)


def _torchscript(path: Path) -> None:
    """Write add and sub of two tensors, as qa/common/gen_qa_models.py does for libtorch."""
    import torch

    class AddSub(torch.nn.Module):
        def forward(self, INPUT0, INPUT1):
            return INPUT0 + INPUT1, INPUT0 - INPUT1

    torch.jit.save(torch.jit.trace(AddSub(), (torch.ones(1, 16), torch.ones(1, 16))), path)


def _openvino_int8(model: Path) -> None:
    """Write what qa_model_repository/openvino_int8_int8_int8 holds."""
    import openvino as ov
    from openvino import opset13 as ops

    shape = ov.PartialShape([-1, 16])
    one, two = (ops.parameter(shape, ov.Type.i8, name=f"INPUT{i}") for i in (0, 1))
    outputs = [ops.result(ops.add(one, two)), ops.result(ops.subtract(one, two))]
    for i, node in enumerate((one, two)):
        node.output(0).set_names({f"INPUT{i}"})
    for i, node in enumerate(outputs):
        node.input_value(0).set_names({f"OUTPUT{i}"})
    shutil.rmtree(model / "1")
    (model / "1").mkdir()
    ov.save_model(ov.Model(outputs, [one, two]), model / "1/model.xml", compress_to_fp16=False)
    (model / "output0_labels.txt").write_text("label\n" * 16)


def public(folders: list[Path]) -> dict:
    """Lint every config below some checkouts, each with the models beside it."""
    rows = []
    for folder in folders:
        for config in sorted(folder.rglob("*.pbtxt")):
            # In a version folder the server never reads it.
            if "L0_model_config" in config.parts or config.parent.name.isdigit() or not _is_config(config):
                continue
            with tempfile.TemporaryDirectory() as scratch:
                name = _name(config)
                root = Path(scratch)
                for beside in config.parent.parent.iterdir() if config.name == "config.pbtxt" else ():
                    if (beside / "config.pbtxt").exists() and beside != config.parent:
                        _copy(beside, root / beside.name)
                shutil.rmtree(root / name, ignore_errors=True)
                _copy(config.parent, root / name)
                (root / name / "config.pbtxt").write_bytes(config.read_bytes())
                found = [f for f in lint(root, NEWEST) if f.severity == "error" and f.file.split("/")[0] == name]
            errors = [f"{f.field}: {f.why}" for f in found if not ABSENT.search(f.why)]
            rows.append({"config": config.relative_to(folder.parent).as_posix(), "errors": errors})
    flagged = [r for r in rows if r["errors"]]
    return {"release": NEWEST, "configs": len(rows), "flagged": len(flagged), "what": flagged}


def _is_config(path: Path) -> bool:
    text = path.read_text(errors="replace")
    return not ({"${", "{{"} & {m for m in ("${", "{{") if m in text}) and bool(
        re.search(r"(?m)^\s*(backend|platform|input|output|max_batch_size|ensemble_scheduling)\b", text)
    )


def _name(config: Path) -> str:
    stated = re.search(r'(?m)^name\s*:\s*"([^"]+)"', config.read_text(errors="replace"))
    return stated[1] if stated else config.parent.name


def _copy(model: Path, target: Path) -> None:
    shutil.copytree(model, target, ignore=lambda _, names: [n for n in names if n.endswith((".md", ".sh"))])
    if not any(p.is_dir() and p.name.isdigit() for p in target.iterdir()):
        (target / "1").mkdir()
        if (target / "model.py").exists():
            shutil.copy(target / "model.py", target / "1/model.py")


def main() -> None:
    """Print the figures; all findings go to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("score", "public"))
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    asked = parser.parse_args()
    found = score(asked.folders[0]) if asked.what == "score" else public(asked.folders)
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1))
    short = {k: v for k, v in found.items() if k not in ("fixtures", "what")}
    print(json.dumps(short, indent=1))
    if asked.what == "public":
        kinds = collections.Counter(re.sub(r"'[^']*'|\d+", "…", e) for r in found["what"] for e in r["errors"])
        for text, count in kinds.most_common():
            print(f"{count:4} {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
