"""Which values must share an element type, read from the operator schemas.

A schema ties inputs and outputs together by type variables ("T", "Tind"): all that carry one variable have one type. So
the values of a graph fall into classes, and a class can change its type only as a whole. Where a schema leaves no
choice (``Reshape.shape`` is int64), where no schema exists (another domain, a function of the model), or where a type
depends on something a schema does not tie together, the class is pinned, with the operator as the reason.

Constants are cheap to duplicate, so that each use of one is a member of its own: a constant shared with ``Reshape``
does not pin the others that use it.
"""

import functools
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir
from onnx import defs
from onnx_ir.analysis import analyze_implicit_usage

from accel.graph.narrow.inference import bodies
from accel.graph.narrow.report import Cause

TYPE_ATTRIBUTES = ("to", "dtype")
"""Names that ONNX gives to attributes which choose the type of an output."""


class Use(NamedTuple):
    """One use of a constant; equal to what ``Value.uses`` gives."""

    node: ir.Node
    idx: int


Member: TypeAlias = ir.Value | Use
"""What belongs to a class: a value, or one use of a constant."""


class Place(NamedTuple):
    """Where a value enters or leaves a node."""

    output: bool
    slot: int


@dataclass(frozen=True, slots=True)
class Group:
    """The places of one node that one type variable ties together.

    Attributes:
        members: class members with the places they take.
        free: whether the schema lets the group as such change its type.
    """

    members: tuple[tuple[Member, Place], ...]
    free: bool


@dataclass(slots=True)
class TypeClasses:
    """The classes of all values of one element type in the main graph.

    Attributes:
        parents: every member, and the one above it in its class.
        pins: root member → why the class cannot change.
        groups: by node; a node without an entry is pinned, or touches no such value.
        choosers: values whose type an attribute of their node chooses → its name.
    """

    parents: dict[Member, Member] = field(default_factory=dict)
    pins: dict[Member, tuple[Cause, str]] = field(default_factory=dict)
    groups: dict[ir.Node, list[Group]] = field(default_factory=dict)
    choosers: dict[ir.Value, str] = field(default_factory=dict)

    def uses(self, value: ir.Value) -> list[Use]:
        """Return the uses of a constant that are members of their own."""
        return [Use(*use) for use in value.uses() if use in self.parents]

    def root(self, member: Member) -> Member:
        """Return the class of a member, which stands alone if it is new."""
        parent = self.parents.setdefault(member, member)
        while self.parents[parent] != parent:
            self.parents[member] = self.parents[parent]
            member, parent = parent, self.parents[parent]
        return parent

    def tie(self, a: Member, b: Member) -> None:
        """Make one class of two."""
        one, other = self.root(a), self.root(b)
        if one != other:
            self.parents[other] = one
            if other in self.pins:
                self.pins.setdefault(one, self.pins.pop(other))

    def pin(self, member: Member, cause: Cause, reason: str) -> None:
        """Say that a class keeps its type; the first reason stays."""
        self.pins.setdefault(self.root(member), (cause, reason))


def value_of(member: Member) -> ir.Value:
    """Return the value that a member is, or uses."""
    return member.node.inputs[member.idx] if isinstance(member, Use) else member


@functools.cache
def schema_of(op: str, domain: str, version: int) -> defs.OpSchema | None:
    """Return the operator's schema at an opset, or None where ONNX has none."""
    try:
        return defs.get_schema(op, version, domain)
    except defs.SchemaError:
        return None


def type_text(dtype: int) -> str:
    """Return the schema's name of an element type: ``tensor(int64)``."""
    return f"tensor({ir.DataType(dtype).name.lower()})"


@functools.cache
def _formals(op: str, domain: str, version: int, output: bool) -> tuple[tuple[str, str, bool, bool], ...]:
    schema = schema_of(op, domain, version)
    if schema is None:
        return ()
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    return tuple(
        (p.name, p.type_str, p.option == variadic, p.is_homogeneous)
        for p in (schema.outputs if output else schema.inputs)
    )


def classify(
    model: ir.Model, types: Mapping[ir.Value, int], constants: Set[ir.Value], *, source: int, target: int
) -> TypeClasses:
    """Tie the values of type ``source`` into classes and pin those that cannot become ``target``.

    Args:
        types: element type by value of the main graph; 0 or missing where it is unknown or no tensor.
        constants: values that each node may have its own copy of.
    """
    classes = TypeClasses()
    captured = analyze_implicit_usage(model.graph)
    for node in model.graph:
        inner = list(bodies(node))
        for value in (v for body in inner for v in captured[body] if types.get(v) == source):
            classes.pin(value, "sub-graph", f"used inside the sub-graph of {call_text(node)}")
        if node.op_type == "Constant" and not node.domain:
            continue
        places: list[tuple[Member, Place]] = []
        for slot, value in enumerate(node.inputs):
            if types.get(value) == source:
                places.append((Use(node, slot) if value in constants else value, Place(False, slot)))
        places += [(v, Place(True, slot)) for slot, v in enumerate(node.outputs) if types.get(v) == source]
        for member, _ in places:
            classes.root(member)
        key = (node.op_type, node.domain, model.opset_imports.get(node.domain, 1))
        whole: tuple[Cause, str] | None = None
        if node.op_identifier() in model.functions or schema_of(*key) is None:
            kind = "function of the model" if node.op_identifier() in model.functions else "operator without a schema"
            whole = "custom-operator", f"{call_text(node)} is a {kind}: what it takes is not known"
        elif inner:
            whole = "sub-graph", f"crosses the border of the sub-graph of {call_text(node)}"
        elif places:
            _bind(classes, node, places, types, key, source, target)
        if whole is not None:
            for member, _ in places:
                classes.pin(member, *whole)
    return classes


def call_text(node: ir.Node) -> str:
    """Name a node in a message: its operator, and its own name or that of its first output."""
    return f"{node.op_type} {node.name!r}" if node.name else f"{node.op_type} of {node.outputs[0].name!r}"


ABSENT, SOURCE, OTHER, UNKNOWN = range(4)
"""What stands at a place of a node: nothing, a value of the type in question, one of another type, or nobody knows."""
Kinds = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Template:
    """What a schema says about all nodes with the same operator and the same kinds of inputs and outputs.

    Attributes:
        tied: variable → places; ``stuck`` the variables that cannot change.
        pins: place → cause and the end of the reason.
        choosing: output places whose type no input decides.
        whole: why the node as a whole is pinned, or an empty string.
    """

    tied: Mapping[str, tuple[Place, ...]]
    stuck: frozenset[str]
    pins: Mapping[Place, tuple[Cause, str]]
    choosing: frozenset[Place]
    whole: str


@functools.cache
def _template(op: str, domain: str, version: int, inputs: Kinds, outputs: Kinds, target: int) -> _Template:
    formals = {side: _formals(op, domain, version, side) for side in (False, True)}
    schema = schema_of(op, domain, version)
    allowed = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints} if schema is not None else {}
    entering = [(_formal(formals[False], slot), kind) for slot, kind in enumerate(inputs) if kind != ABSENT]
    fed = {formal[1] for formal, _ in entering if formal is not None}
    doubtful = {formal[1] for formal, kind in entering if formal is not None and kind == UNKNOWN}
    tied: dict[str, tuple[Place, ...]] = {}
    pins: dict[Place, tuple[Cause, str]] = {}
    stuck: set[str] = set()
    choosing: set[Place] = set()
    whole = ""
    wanted = type_text(target)
    for place in [Place(False, i) for i, k in enumerate(inputs) if k == SOURCE] + [
        Place(True, i) for i, k in enumerate(outputs) if k == SOURCE
    ]:
        formal = _formal(formals[place.output], place.slot)
        if formal is None:
            whole = "has more inputs or outputs than its schema"
            continue
        label, variable, _, homogeneous = formal
        if variable not in allowed:
            pins[place] = ("pinned", f"{op}.{label} is always {variable[7:-1]}")
            continue
        if wanted not in allowed[variable]:
            pins[place] = ("pinned", f"{op}.{label} does not take {wanted[7:-1]}")
            stuck.add(variable)
        elif variable in doubtful:
            pins[place] = ("custom-operator", f"the type of another {variable} is not known")
            stuck.add(variable)
        elif place.output and variable not in fed:
            choosing.add(place)
        if homogeneous:
            tied[variable] = (*tied.get(variable, ()), place)
        else:
            whole = "takes values of mixed types"
    return _Template(tied, frozenset(stuck), pins, frozenset(choosing), whole)


def _bind(
    classes: TypeClasses,
    node: ir.Node,
    places: list[tuple[Member, Place]],
    types: Mapping[ir.Value, int],
    key: tuple[str, str, int],
    source: int,
    target: int,
) -> None:
    """Tie the places of one node by the schema's type variables."""

    def kind(value: ir.Value | None) -> int:
        if value is None or not value.name:
            return ABSENT
        dtype = types.get(value)
        return SOURCE if dtype == source else OTHER if dtype else UNKNOWN

    template = _template(*key, tuple(map(kind, node.inputs)), tuple(map(kind, node.outputs)), target)
    members = {place: member for member, place in places}
    whole = template.whole
    for place, (cause, reason) in template.pins.items():
        classes.pin(members[place], cause, f"{call_text(node)}: {reason}")
    for place in template.choosing:
        attribute = _chooser(node, source)
        if attribute is None:
            whole = "chooses the type of an output by a rule of its own"
        else:
            classes.choosers[node.outputs[place.slot]] = attribute
    if whole:
        for member, _ in places:
            classes.pin(member, "pinned", f"{call_text(node)} {whole}")
    groups = []
    for variable, tied in template.tied.items():
        found = tuple((members[place], place) for place in tied)
        for member, _ in found[1:]:
            classes.tie(found[0][0], member)
        groups.append(Group(found, not whole and variable not in template.stuck))
    classes.groups[node] = groups


def _formal(formals: tuple[tuple[str, str, bool, bool], ...], slot: int) -> tuple[str, str, bool, bool] | None:
    if slot < len(formals):
        return formals[slot]
    return formals[-1] if formals and formals[-1][2] else None


def _chooser(node: ir.Node, source: int) -> str | None:
    """Return the attribute that makes the output ``source``; None where there is not exactly one such attribute."""
    found = [
        a.name
        for a in node.attributes.values()
        if (a.type == ir.AttributeType.INT and a.name in TYPE_ATTRIBUTES and a.value == source)
        or (a.type == ir.AttributeType.TENSOR and a.name == "value" and a.value.dtype == source)
    ]
    return found[0] if len(found) == 1 else None


def retyped(attribute: ir.Attr, to: ir.DataType) -> ir.Attr:
    """Return an attribute that chooses a type, saying ``to``; a tensor is converted."""
    if attribute.type == ir.AttributeType.INT:
        return ir.AttrInt64(attribute.name, to)
    return ir.AttrTensor(attribute.name, converted(attribute.as_tensor(), to))


def converted(tensor: ir.TensorProtocol, to: ir.DataType) -> ir.TensorProtocol:
    """Return a tensor cast to another type; its values are known to survive that."""
    with np.errstate(under="ignore"):
        return ir.tensor(tensor.numpy().astype(to.numpy()), name=tensor.name)


def only_int64(op: str, domain: str, version: int, slot: int) -> bool:
    """Say whether the schema writes int64 itself at an input, where sizes, axes and counts stand."""
    formal = _formal(_formals(op, domain, version, False), slot)
    return formal is not None and formal[1] == type_text(ir.DataType.INT64)
