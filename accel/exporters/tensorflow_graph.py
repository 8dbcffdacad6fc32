"""The one form that every TensorFlow source takes inside accel: a function with named tensors in and out.

Clients' dtypes and layout are part of it: casts and transpositions stand around it, so that whatever is run, exported
or saved from it shows clients one contract. TensorFlow is imported inside functions.
"""

import functools
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from accel.core.errors import InputError, StageError, raised_as
from accel.core.feeds import Feed
from accel.core.values import TensorSpec
from accel.exporters.layout import TO_LAST
from accel.exporters.tensorflow_runtime import explain, import_tensorflow

SIGNATURE = "serving_default"
"""The signature that TensorFlow's own tools and Triton take where none is named."""
PRODUCTS = frozenset({"MatMul", "BatchMatMulV2", "Einsum", "Conv2D", "Conv3D", "DepthwiseConv2dNative"})
CHANGING = re.compile(
    r"Assign|ResourceScatter|Rng|Stateful(?!PartitionedCall)|(?!Stateless).*(Random|Multinomial|TruncatedNormal)"
)
"""Operators that write variables or draw random numbers; those called ``Stateless…`` draw the same every time."""
NARROW = ("float16", "bfloat16")
"""Float types that NumPy or clients lack; clients see float32."""
quiet = functools.partial(warnings.catch_warnings, action="ignore")
"""Keeps warnings of TensorFlow and Keras about themselves from the user."""


@dataclass(frozen=True, slots=True)
class Port:
    """One input of a TensorFlow model.

    Attributes:
        dtype: NumPy's name.
        shape: sizes, None for one that is open; None for a shape of open rank.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True, eq=False)
class Opened:
    """A TensorFlow model as its file or its factory gives it.

    Attributes:
        ports: its inputs.
        call: takes tensors in the order of ``ports`` and gives tensors by output name.
        owner: keeps its variables alive, and lets them be saved.
        signature: name of a SavedModel's signature; ``gives`` has the dtypes of its outputs, by name.
        samples: what a factory gave along, by input name, each with its batch axis.
    """

    ports: tuple[Port, ...]
    call: Callable[..., Mapping[str, Any]]
    owner: Any
    samples: tuple[Mapping[str, np.ndarray], ...] = ()
    signature: str | None = None
    gives: Mapping[str, str] | None = None


class Graph:
    """A model under the client's contract.

    Args:
        opened: the model.
        inputs: what clients give, in any order; a named axis stays open.
        outputs: what clients get, in order; None for all that the model gives, narrow floats as float32.
        nchw: inputs that clients give with channels first and the model takes with channels last.
    """

    def __init__(
        self,
        opened: Opened,
        inputs: Sequence[TensorSpec],
        *,
        outputs: Sequence[TensorSpec] | None = None,
        nchw: Sequence[str] = (),
    ) -> None:
        by_name = {s.name: s for s in inputs}
        self.opened = opened
        self.inputs = tuple(by_name[p.name] for p in opened.ports)
        self._given = outputs
        self._outputs = None if outputs is None else {s.name: s.dtype for s in outputs}
        self._nchw = tuple(nchw)
        self._concrete: Any = None

    @property
    def plain(self) -> bool:
        """Whether a SavedModel keeps the client's contract as it is, with no cast or transposition around it."""
        taken = {p.name: p.dtype for p in self.opened.ports}
        same = {s.name: s.dtype for s in self.inputs} == taken and self._outputs == self.opened.gives
        scalars = any(p.shape == () for p in self.opened.ports) or any(s.dims == (1,) for s in self._given or ())
        return same and not self._nchw and not scalars

    @property
    def computes(self) -> Literal["fp32", "fp16", "bf16"]:
        """The narrowest float type of its products: Keras's mixed precision casts around them."""
        made = {o.dtype.name for n in self.concrete().graph.get_operations() if n.type in PRODUCTS for o in n.outputs}
        return "bf16" if "bfloat16" in made else "fp16" if "float16" in made else "fp32"

    @property
    def changing(self) -> list[str]:
        """The operators that draw random numbers or write variables, in the graph and the functions that it calls."""
        definition = (self._concrete or self.concrete()).graph.as_graph_def()
        nodes = [*definition.node, *(node for f in definition.library.function for node in f.node_def)]
        return sorted({node.op for node in nodes if CHANGING.match(node.op)})

    def concrete(self, *, compiled: bool = False) -> Any:
        """Trace the model once, and return TensorFlow's ConcreteFunction.

        Args:
            compiled: whether XLA compiles it as a whole.

        Raises:
            StageError: TensorFlow cannot trace it.
        """
        shapes = ", ".join(f"{s.name} {s.dtype}{list(s.dims)}" for s in self.inputs)
        fix = "run the model by hand on such inputs; shapes are set with --min-shape, --shape and --max-shape"
        what = f"TensorFlow could not trace the model with {shapes}"
        with raised_as(StageError, Exception, what, fix=fix, say=explain), quiet():
            return self.function(compiled=compiled).get_concrete_function(*self.signature())

    def function(self, *, compiled: bool = False) -> Any:
        """Return the ``tf.function``: tensors in by position, a dict of tensors out."""
        tf = import_tensorflow()
        return tf.function(self._call, jit_compile=compiled or None, autograph=False)

    def signature(self) -> list[Any]:
        """Return a ``tf.TensorSpec`` for each input, in order."""
        tf = import_tensorflow()
        return [
            tf.TensorSpec([d if isinstance(d, int) else None for d in s.dims], s.dtype, s.name) for s in self.inputs
        ]

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Run the model on arrays in the clients' dtypes.

        Raises:
            StageError: TensorFlow raised; the message names the shapes it was given.
        """
        tf = import_tensorflow()
        if self._concrete is None:
            self._concrete = self.concrete()
        try:
            found = self._concrete(*(tf.constant(feed[s.name]) for s in self.inputs))
        except Exception as error:
            shapes = ", ".join(f"{s.name} {feed[s.name].dtype}{list(feed[s.name].shape)}" for s in self.inputs)
            raise StageError(
                f"the model failed on {shapes}: {explain(error)}",
                fix="run the model by hand on such inputs; shapes are set with --min-shape, --shape and --max-shape, "
                "integers with --range",
            ) from error
        return {name: value.numpy() for name, value in found.items()}

    def save(self, folder: Path, *, compiled: bool = False) -> None:
        """Write a SavedModel with one signature, ``serving_default``, under the client's names.

        Raises:
            StageError: TensorFlow could not write it.
        """
        tf = import_tensorflow()
        concrete = self.concrete(compiled=compiled)
        holder = tf.Module()
        holder.model = self.opened.owner
        holder.variables_of = concrete.variables
        with raised_as(StageError, Exception, "TensorFlow could not save the model", say=explain), quiet():
            tf.saved_model.save(holder, str(folder), signatures={SIGNATURE: concrete})

    def _call(self, *tensors: Any) -> dict[str, Any]:
        tf = import_tensorflow()
        given = []
        for port, tensor in zip(self.opened.ports, tensors, strict=True):
            if port.name in self._nchw:
                tensor = tf.transpose(tensor, TO_LAST)
            if port.shape == ():  # one element to clients: Triton has no tensors without dims
                tensor = tf.reshape(tensor, [])
            given.append(tf.cast(tensor, port.dtype) if tensor.dtype.name != port.dtype else tensor)
        found = {n: tf.reshape(v, [1]) if v.shape.rank == 0 else v for n, v in self.opened.call(*given).items()}
        wanted = self._outputs or {n: "float32" if v.dtype.name in NARROW else v.dtype.name for n, v in found.items()}
        if missing := [n for n in wanted if n not in found]:
            raise InputError(f"the model gives the outputs {sorted(found)}, expected {missing[0]!r} among them")
        # A tensor of its own for each output: one that came out under two names would keep only the last.
        return {
            n: tf.cast(found[n], d) if found[n].dtype.name != d else tf.identity(found[n]) for n, d in wanted.items()
        }


def named_tensors(result: Any, names: Sequence[str] | None = None) -> dict[str, Any]:
    """Give the tensors of a model's result names: dict keys, ``names``, ``output``, or ``output_0``, ``output_1``, …

    Raises:
        InputError: no tensor, or a nested, ragged or foreign value that no client could receive.
    """
    tf = import_tensorflow()
    if isinstance(result, Mapping):
        items = [(str(k), v) for k, v in result.items()]
    else:
        flat = list(result) if isinstance(result, tuple | list) else [result]
        fields = getattr(result, "_fields", None) or names
        if fields is None or len(fields) != len(flat):
            fields = ["output"] if len(flat) == 1 else [f"output_{i}" for i in range(len(flat))]
        items = list(zip(fields, flat, strict=True))
    bad = [(n, v) for n, v in items if not tf.is_tensor(v) or not hasattr(v, "dtype") or hasattr(v, "row_splits")]
    if not items or bad:
        kinds = ", ".join(f"{n}: {type(v).__name__}" for n, v in bad) or "nothing"
        raise InputError(
            f"the model returns {kinds}: expected a tensor, or a flat tuple or dict of dense tensors",
            fix="wrap the model in a `file.py:factory` whose function returns the tensors that clients need "
            "(a RaggedTensor with to_tensor, a SparseTensor with tf.sparse.to_dense)",
        )
    for name, value in items:
        check_dtype(value.dtype, f"output {name!r}")
    return dict(items)


def check_dtype(dtype: Any, what: str) -> str:
    """Return a TensorFlow dtype's name, which is NumPy's.

    Raises:
        InputError: strings, resources, and whatever else is not a number.
    """
    name: str = dtype.name
    if not (dtype.is_floating or dtype.is_integer or dtype.is_bool) or dtype.is_quantized:
        raise InputError(
            f"{what} is of type {name}, which no target takes: expected numbers",
            fix="convert the part of the model behind it: another --signature, other --input-tensors and "
            "--output-tensors, or a `file.py:factory` whose function takes and returns numbers",
        )
    return name
