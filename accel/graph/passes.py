"""The one interface of graph passes, and how an ONNX file goes through them.

A pass of accel is a ``ContractPass``: ``call`` returns ``PassResult(model, modified)`` (a subclass of that where there
is more to say), and after it clients send and get what they did, which ``ensures`` checks. What a pass refuses on
purpose is an ``AccelError``. Passes that others keep well (``onnx_ir.passes.common``, ``onnxscript.optimizer``) come
before our own.

Weights in external data are mapped, never read into memory as a whole.

Source: https://onnx.ai/ir-py/ (passes, external data).
"""

import filecmp
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import ClassVar

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from accel.core.errors import AccelError, InputError, OutputError, StageError, UsageError, raised_as
from accel.core.files import replacing


class ContractPass(ir.passes.InPlacePass):
    """A pass that keeps names and order of inputs and outputs, and their element types unless it ``retypes`` them.

    Raises:
        StageError: it did not.
    """

    retypes: ClassVar[bool] = False

    def requires(self, model: ir.Model) -> None:
        """Note what clients send and get."""
        self._before = self._contract(model)

    def ensures(self, model: ir.Model) -> None:
        """Hold the result to that."""
        if (after := self._contract(model)) != self._before:
            raise StageError(
                f"the graph pass {type(self).__name__} changed the model's inputs and outputs from {self._before} "
                f"to {after}",
                fix="report it: this is a fault of accel",
            )

    def _contract(self, model: ir.Model) -> list[str]:
        values = (*model.graph.inputs, None, *model.graph.outputs)
        return [f"{v.name}{'' if self.retypes else f': {v.dtype}'}" if v is not None else "→" for v in values]


def load(path: Path) -> ir.Model:
    """Read a model; tensors in external data stay there.

    Raises:
        InputError: no ONNX file, truncated, or with sparse tensors, which onnx-ir does not know.
    """
    with raised_as(
        InputError,
        (DecodeError, OSError, ValueError, UnicodeDecodeError, RuntimeError, NotImplementedError),
        f"{path} is not an ONNX model that can be read",
        fix="export it again",
    ):
        proto = onnx.load(str(path), load_external_data=False)
        if proto.graph.sparse_initializer:
            raise InputError(f"{path.name} has sparse initialisers", fix="export it with dense weights")
        model = ir.from_proto(proto)
        if "ai.onnx" in model.opset_imports:  # another name of ONNX's own domain
            model.opset_imports.setdefault("", model.opset_imports.pop("ai.onnx"))
    ir.external_data.set_base_dir(model.graph, path.parent)
    return model


def run(model: ir.Model, *passes: ir.passes.PassBase) -> list[ir.passes.PassResult]:
    """Run passes one after the other, each on the model that the one before returned.

    Raises:
        AccelError: as the passes raise.
        StageError: a pass did not hold a condition of its own.
    """
    results: list[ir.passes.PassResult] = []
    for each in passes:
        try:
            results.append(each(results[-1] if results else model))
        except ir.passes.InvariantError as error:
            if isinstance(error.__cause__, AccelError):
                raise error.__cause__ from None
            raise StageError(f"the graph pass {type(each).__name__} failed: {error.__cause__ or error}") from error
    return results


def rewrite(
    source: Path,
    out: Path,
    *passes: ir.passes.PassBase,
    data: str | None = None,
    check: Callable[[Path], None] | None = None,
) -> list[ir.passes.PassResult]:
    """Write the file ``source``, rewritten by passes, to ``out``; byte for byte the same where no pass changes it.

    Args:
        data: as of ``save``; moved weights count as a change.
        check: as of ``save``.

    Raises:
        InputError: as ``load``; AccelError as ``run``; OutputError as ``save``.
    """
    model = load(source)
    results = run(model, *passes)
    if data is not None or any(result.modified for result in results):
        save(results[-1].model if results else model, out, data=data, check=check)
    else:
        _write(out, lambda temporary: shutil.copyfile(source, temporary), model, check)
    return results


@contextmanager
def by_library(out: Path) -> Iterator[Path]:
    """Give the path to which a library writes a model with external data; at the end the model is at ``out``.

    Its name is nobody's: onnx refuses external data of a name that a file of the working directory has, and there
    exporters leave their ``model.onnx.data`` (``external_data_helper.convert_model_to_external_data``).

    Raises:
        OutputError: as ``save``.
    """
    with tempfile.TemporaryDirectory(prefix=".written.", dir=out.parent) as folder:
        made = Path(folder) / f"{uuid.uuid4().hex}.onnx"
        yield made
        rewrite(made, out, data=f"{out.name}.data")


def save(model: ir.Model, path: Path, *, data: str | None = None, check: Callable[[Path], None] | None = None) -> None:
    """Write a model; the file appears whole or not at all.

    Args:
        data: name of the file beside it that takes all weights; those that lie outside and are attributes of nodes go
            into the model itself. Without one each tensor stays where it is, and external data of another folder is
            copied along.
        check: called with the written file before it gets its name; what it raises leaves no file behind.

    Raises:
        OutputError: the folder cannot be written, the disk is full, or another file stands where external data belongs.
    """

    for node in chain.from_iterable(model.graphs()) if data is not None else ():
        for name, attribute in node.attributes.items():
            if attribute.type == ir.AttributeType.TENSOR and isinstance(held := attribute.value, ir.ExternalTensor):
                node.attributes[name] = ir.AttrTensor(name, ir.Tensor(held.numpy().copy(), name=held.name))

    def write(temporary: Path) -> None:
        ir.save(model, temporary, format="protobuf", external_data=data)

    _write(path, write, model if data is None else None, check)


def _write(
    path: Path, write: Callable[[Path], object], shared: ir.Model | None, check: Callable[[Path], None] | None
) -> None:
    with replacing(path) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        for tensor in external_tensors(shared) if shared is not None else ():
            if path.resolve() == Path(tensor.path).resolve():
                raise UsageError(f"{path} holds the weights of the model", fix="choose another -o")
            _copy_data(Path(tensor.path), path.parent / tensor.location)
        if check is not None:
            check(temporary)


def external_tensors(model: ir.Model) -> list[ir.ExternalTensor]:
    """Return the tensors whose data lies in other files, one for each such file."""
    found: dict[str, ir.ExternalTensor] = {}
    for graph in model.graphs():
        held = [v.const_value for v in graph.initializers.values()]
        held += [a.value for n in graph for a in n.attributes.values() if a.type == ir.AttributeType.TENSOR]
        found |= {str(t.location): t for t in held if isinstance(t, ir.ExternalTensor)}
    return list(found.values())


def _copy_data(data: Path, copy: Path) -> None:
    if copy.exists():
        if not copy.samefile(data) and not filecmp.cmp(data, copy, shallow=False):
            raise OutputError(f"{copy} exists and is not the external data of the model", fix="choose another folder")
        return
    copy.parent.mkdir(parents=True, exist_ok=True)
    with replacing(copy) as half:
        shutil.copyfile(data, half)
