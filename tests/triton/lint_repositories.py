"""Small repositories for the linter's tests: one valid base for each backend, and edits that break or fix it."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from accel.triton.lint import lint

CONFIG = "m/config.pbtxt"
FRONT = "e/config.pbtxt"
Files = Mapping[str, bytes | str | None]
"""Path below the root → content; None for a folder, or, in an edit, for a file that is taken away."""

TENSORS = """
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }
"""
UNBATCHED = TENSORS.replace("[ 3 ]", "[ -1, 3 ]")
MODEL_PY = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


@functools.cache
def onnx_model(*dims: int | str, out: str = "FLOAT", scalar: bool = False, spare: bool = False) -> bytes:
    """Return an ONNX model whose ``y`` is ``x``, cast to ``out``.

    Args:
        dims: of both; (batch, 3) unless given.
        scalar: both have no dims.
        spare: there is an input ``w`` that nothing reads.
    """
    from onnx import TensorProto, helper

    element = TensorProto.DataType.Value(out)
    shape = () if scalar else dims or ("batch", 3)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Cast", ["x"], ["y"], to=element)],
        "cast",
        [info(name, TensorProto.FLOAT, shape) for name in (("x", "w") if spare else ("x",))],
        [info("y", element, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return bytes(model.SerializeToString())


@functools.cache
def openvino_model(*, bounded: bool = False, layout: bool = False, weights: bool = True) -> tuple[bytes, bytes]:
    """Return XML and weights of an IR with y = x * w for x: float32 (batch, 3); ``y`` answers to ``z`` as well."""
    import tempfile

    import numpy as np
    import openvino as ov
    from openvino import opset13 as ops

    rows = ov.Dimension(1, 10) if bounded else ov.Dimension()
    x = ops.parameter(ov.PartialShape([rows, 3]), np.float32, name="x")
    x.output(0).set_names({"x"})
    y = ops.multiply(x, ops.constant(np.arange(3, dtype=np.float32))) if weights else ops.relu(x)
    y.output(0).set_names({"y", "z"})
    model = ov.Model([y], [x], "scaled")
    if layout:
        for port in (*model.inputs, *model.outputs):
            port.get_node().set_layout(ov.Layout("NC"))
    with tempfile.TemporaryDirectory() as folder:
        ov.save_model(model, Path(folder) / "model.xml", compress_to_fp16=False)
        return (Path(folder) / "model.xml").read_bytes(), (Path(folder) / "model.bin").read_bytes()


def onnx_base() -> dict[str, bytes | str | None]:
    return {
        "m/config.pbtxt": f'name: "m"\nbackend: "onnxruntime"\nmax_batch_size: 4\n{TENSORS}',
        "m/1/model.onnx": onnx_model(),
    }


def openvino_base() -> dict[str, bytes | str | None]:
    xml, weights = openvino_model()
    return {
        "m/config.pbtxt": f'name: "m"\nbackend: "openvino"\n{UNBATCHED}instance_group {{ kind: KIND_CPU }}\n',
        "m/1/model.xml": xml,
        "m/1/model.bin": weights,
    }


def python_base() -> dict[str, bytes | str | None]:
    return {
        "m/config.pbtxt": f'name: "m"\nbackend: "python"\nmax_batch_size: 4\n{TENSORS}',
        "m/1/model.py": MODEL_PY,
    }


def plain_base(backend: str, platform: str, file: str) -> dict[str, bytes | str | None]:
    """A model whose file lint does not read."""
    lines = ['name: "m"', f'backend: "{backend}"', f'platform: "{platform}"', "max_batch_size: 4"]
    return {"m/config.pbtxt": "\n".join(lines) + TENSORS, f"m/1/{file}": b"PK"}


def aoti_base() -> dict[str, bytes | str | None]:
    tensors = UNBATCHED.replace('"x"', '"ARGS[0]"').replace('"y"', '"RESULT[0]"')
    return {
        "m/config.pbtxt": f'name: "m"\nbackend: "pytorch"\nplatform: "torch_aoti"\n{tensors}',
        "m/1/model.pt2": b"PK",
    }


def ensemble_base() -> dict[str, bytes | str | None]:
    """A front ``e`` with two steps on the ONNX model ``m``."""
    return onnx_base() | {
        "e/config.pbtxt": f"""
name: "e"
platform: "ensemble"
max_batch_size: 4
{TENSORS}
ensemble_scheduling {{
  step {{ model_name: "m" model_version: -1 input_map {{ key: "x" value: "x" }} output_map {{ key: "y" value: "t" }} }}
  step {{ model_name: "m" model_version: -1 input_map {{ key: "x" value: "t" }} output_map {{ key: "y" value: "y" }} }}
}}
""",
        "e/1": None,
    }


BASES = {
    "onnxruntime": onnx_base,
    "openvino": openvino_base,
    "python": python_base,
    "torch_aoti": aoti_base,
    "ensemble": ensemble_base,
    "tensorrt": functools.partial(plain_base, "tensorrt", "tensorrt_plan", "model.plan"),
    "libtorch": functools.partial(plain_base, "pytorch", "pytorch_libtorch", "model.pt"),
    "tensorflow": functools.partial(plain_base, "tensorflow", "tensorflow_graphdef", "model.graphdef"),
}


@dataclass(frozen=True)
class Edit:
    """A change of a base: text replaced in and added to one config, and files put or taken away.

    Attributes:
        swap: text in the config, its replacement, and how the lines begin that it may be in.
    """

    add: str = ""
    swap: tuple[str, str, str] | None = None
    files: Files = field(default_factory=dict)
    config: str = CONFIG

    def __call__(self, base: Files) -> dict[str, bytes | str | None]:
        changed = dict(base)
        text = changed[self.config]
        assert isinstance(text, str)
        if self.swap is not None:
            old, new, start = self.swap
            lines = [line.replace(old, new) if line.startswith(start) else line for line in text.split("\n")]
            assert "\n".join(lines) != text, f"{old!r} is not in {self.config}"
            text = "\n".join(lines)
        changed[self.config] = f"{text}\n{self.add}\n" if self.add else text
        for path, content in self.files.items():
            if content is None and path in changed:
                del changed[path]
            else:
                changed[path] = content
        return changed


def add(*texts: str, config: str = CONFIG, files: Files | None = None) -> Edit:
    """Add text to a config."""
    return Edit("\n".join(texts), None, files or {}, config)


def swap(old: str, new: str, *texts: str, config: str = CONFIG, files: Files | None = None) -> Edit:
    """Replace text in a config, and add some."""
    return Edit("\n".join(texts), (old, new, ""), files or {}, config)


def tensor(name: str, old: str, new: str, *texts: str, config: str = CONFIG, files: Files | None = None) -> Edit:
    """Replace text in the declaration of one tensor, which is one line of a config."""
    kind = "input" if name in ("x", "ARGS[0]") else "output"
    return Edit("\n".join(texts), (old, new, f'{kind} {{ name: "{name}"'), files or {}, config)


def put(files: Files, *texts: str) -> Edit:
    """Put files (take them away with None), and add text to the model's config."""
    return Edit("\n".join(texts), None, files)


def parameter(key: str, value: str) -> str:
    """Return one entry of a config's ``parameters``."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def write(root: Path, files: Files) -> Path:
    """Write a repository; return its root."""
    for name, content in files.items():
        path = root / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


@dataclass(frozen=True)
class Case:
    """A broken repository that gives one finding, and its valid counterpart that gives none.

    Attributes:
        base: a key of ``BASES``.
        file / field / severity: where the finding points; the model's config unless ``file`` says otherwise.
        good: the counterpart's edit; the base itself unless given. None where no release and edit fixes it.
        said: what the finding's text must contain.
    """

    name: str
    base: str
    bad: Edit
    field: str
    good: Edit | None = Edit()
    file: str = CONFIG
    release: str = "26.05"
    severity: str = "error"
    said: str = ""

    def check(self, tmp_path: Path) -> None:
        """Assert both; the finding has a reason and a fix."""
        base = BASES[self.base]()
        findings = lint(write(tmp_path / "bad", self.bad(base)), self.release)
        places = [(f.severity, f.file, f.field) for f in findings]
        assert places == [(self.severity, self.file, self.field)], findings
        assert self.said in f"{findings[0].why} {findings[0].fix}", findings
        assert findings[0].why
        assert findings[0].fix
        if self.good is not None:
            left = lint(write(tmp_path / "good", self.good(base)), self.release)
            assert left == (), left
