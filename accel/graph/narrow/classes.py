"""Which values must share an element type, read from the operator schemas.

A schema ties inputs and outputs together by type variables ("T", "Tind"): all that carry one variable have one type. So
the values of a graph fall into classes, and a class can change its type only as a whole. Where a schema leaves no
choice (``Reshape.shape`` is int64), where no schema exists (another domain, a function of the model), or where a type
depends on something a schema does not tie together, the class is pinned, with the operator as the reason.

Constants are cheap to duplicate, so that each use of one is a member of its own: a constant shared with ``Reshape``
does not pin the others that use it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, defs

from accel.graph.narrow.analysis import ONNX_DOMAINS
from accel.graph.narrow.inference import node_graphs
from accel.graph.narrow.report import Cause

TYPE_ATTRIBUTES = ("to", "dtype")
"""Names that ONNX gives to attributes which choose the type of an output."""


@dataclass(frozen=True, slots=True)
class Use:
    """One place at a node where a value enters or leaves."""

    node: int
    output: bool
    slot: int


@dataclass(frozen=True, slots=True)
class Group:
    """The places of one node that one type variable ties together.

    Attributes:
        variable: as the schema names it.
        members: class members with the places they take.
        free: whether the schema lets the group as such change its type.
    """

    node: int
    variable: str
    members: tuple[tuple[int, Use], ...]
    free: bool


@dataclass(slots=True)
class TypeClasses:
    """The classes of all values of one element type in the main graph.

    Attributes:
        values: member number by value name; ``constant_uses`` by the place where a constant enters.
        pins: root member → why the class cannot change.
        groups: by node; a node without an entry is pinned, or touches no such value.
        choosers: members whose type an attribute of their node chooses: member → (node, attribute name).
    """

    parents: list[int] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    constant_uses: dict[tuple[int, int], int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    pins: dict[int, tuple[Cause, str]] = field(default_factory=dict)
    groups: dict[int, list[Group]] = field(default_factory=dict)
    choosers: dict[int, tuple[int, str]] = field(default_factory=dict)

    def add(self, name: str) -> int:
        """Add a member that stands alone."""
        self.parents.append(len(self.parents))
        self.names.append(name)
        return len(self.parents) - 1

    def root(self, member: int) -> int:
        """Return the class of a member."""
        while self.parents[member] != member:
            self.parents[member] = self.parents[self.parents[member]]
            member = self.parents[member]
        return member

    def tie(self, a: int, b: int) -> None:
        """Make one class of two."""
        one, other = self.root(a), self.root(b)
        if one != other:
            self.parents[other] = one
            if other in self.pins:
                self.pins.setdefault(one, self.pins.pop(other))

    def pin(self, member: int, cause: Cause, reason: str) -> None:
        """Say that a class keeps its type; the first reason stays."""
        self.pins.setdefault(self.root(member), (cause, reason))


@functools.cache
def schema_of(op: str, domain: str, version: int) -> defs.OpSchema | None:
    """Return the operator's schema at an opset, or None where ONNX has none."""
    try:
        return defs.get_schema(op, version, "" if domain == "ai.onnx" else domain)
    except defs.SchemaError:
        return None


def type_text(dtype: int) -> str:
    """Return the schema's name of an element type: ``tensor(int64)``."""
    return f"tensor({TensorProto.DataType.Name(dtype).lower()})"


@functools.cache
def _allowed(op: str, domain: str, version: int) -> Mapping[str, frozenset[str]]:
    schema = schema_of(op, domain, version)
    constraints = schema.type_constraints if schema is not None else ()
    return {c.type_param_str: frozenset(c.allowed_type_strs) for c in constraints}


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
    model: ModelProto, types: Mapping[str, int], constants: set[str], *, source: int, target: int
) -> TypeClasses:
    """Tie the values of type ``source`` into classes and pin those that cannot become ``target``.

    Args:
        types: element type by value of the main graph; 0 or missing where it is unknown or no tensor.
        constants: names that each node may have its own copy of.
    """
    classes = TypeClasses()
    opsets = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in model.opset_import}
    functions = {(f.domain, f.name) for f in model.functions}
    for index, node in enumerate(model.graph.node):
        bodies = node_graphs(node)
        for inner in bodies:
            for name in captured(inner):
                if types.get(name) == source:
                    member = _member(classes, name, constants, None)
                    classes.pin(member, "sub-graph", f"used inside the sub-graph of {call_text(node)}")
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            continue
        places = _places(node, index, types, constants, source, classes)
        if not places:
            continue
        domain = "" if node.domain == "ai.onnx" else node.domain
        schema = schema_of(node.op_type, domain, opsets.get(domain, 1))
        if (node.domain, node.op_type) in functions or schema is None:
            kind = "function of the model" if (node.domain, node.op_type) in functions else "operator without a schema"
            for member, _ in places:
                classes.pin(member, "custom-operator", f"{call_text(node)} is a {kind}: what it takes is not known")
        elif bodies:
            for member, _ in places:
                classes.pin(member, "sub-graph", f"crosses the border of the sub-graph of {call_text(node)}")
        else:
            _bind(classes, node, index, places, types, (node.op_type, domain, opsets.get(domain, 1)), source, target)
    return classes


def captured(graph: onnx.GraphProto) -> set[str]:
    """Return the names that a sub-graph takes from outside."""
    inside = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    used: set[str] = set()
    for node in graph.node:
        used |= {name for name in node.input if name and name not in inside}
        for inner in node_graphs(node):
            used |= captured(inner) - inside
        inside |= set(node.output)
    return used | {v.name for v in graph.output if v.name not in inside}


def call_text(node: NodeProto) -> str:
    """Name a node in a message: its operator, and its own name or that of its first output."""
    return f"{node.op_type} {node.name!r}" if node.name else f"{node.op_type} of {(node.output or [''])[0]!r}"


def _member(classes: TypeClasses, name: str, constants: set[str], place: Use | None) -> int:
    if place is not None and name in constants and not place.output:
        key = (place.node, place.slot)
        if key not in classes.constant_uses:
            classes.constant_uses[key] = classes.add(name)
        return classes.constant_uses[key]
    if name not in classes.values:
        classes.values[name] = classes.add(name)
    return classes.values[name]


def _places(
    node: NodeProto, index: int, types: Mapping[str, int], constants: set[str], source: int, classes: TypeClasses
) -> list[tuple[int, Use]]:
    places = []
    for output, names in ((False, node.input), (True, node.output)):
        for slot, name in enumerate(names):
            if name and types.get(name) == source:
                use = Use(index, output, slot)
                places.append((_member(classes, name, constants, use), use))
    return places


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

    tied: Mapping[str, tuple[tuple[bool, int], ...]]
    stuck: frozenset[str]
    pins: Mapping[tuple[bool, int], tuple[Cause, str]]
    choosing: frozenset[tuple[bool, int]]
    whole: str


@functools.cache
def _template(op: str, domain: str, version: int, inputs: Kinds, outputs: Kinds, target: int) -> _Template:
    formals = {side: _formals(op, domain, version, side) for side in (False, True)}
    allowed = _allowed(op, domain, version)
    fed: set[str] = set()
    doubtful: set[str] = set()
    for slot, kind in enumerate(inputs):
        formal = _formal(formals[False], slot)
        if kind != ABSENT and formal is not None:
            fed.add(formal[1])
            if kind == UNKNOWN:
                doubtful.add(formal[1])
    tied: dict[str, tuple[tuple[bool, int], ...]] = {}
    pins: dict[tuple[bool, int], tuple[Cause, str]] = {}
    stuck: set[str] = set()
    choosing: set[tuple[bool, int]] = set()
    whole = ""
    wanted = type_text(target)
    for place in [(False, i) for i, k in enumerate(inputs) if k == SOURCE] + [
        (True, i) for i, k in enumerate(outputs) if k == SOURCE
    ]:
        formal = _formal(formals[place[0]], place[1])
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
        elif place[0] and variable not in fed:
            choosing.add(place)
        if homogeneous:
            tied[variable] = (*tied.get(variable, ()), place)
        else:
            whole = "takes values of mixed types"
    return _Template(tied, frozenset(stuck), pins, frozenset(choosing), whole)


def _bind(
    classes: TypeClasses,
    node: NodeProto,
    index: int,
    places: list[tuple[int, Use]],
    types: Mapping[str, int],
    key: tuple[str, str, int],
    source: int,
    target: int,
) -> None:
    """Tie the places of one node by the schema's type variables."""

    def kind(name: str) -> int:
        if not name:
            return ABSENT
        dtype = types.get(name)
        return SOURCE if dtype == source else OTHER if dtype else UNKNOWN

    template = _template(*key, tuple(map(kind, node.input)), tuple(map(kind, node.output)), target)
    members = {(use.output, use.slot): (member, use) for member, use in places}
    whole = template.whole
    for place, (cause, reason) in template.pins.items():
        classes.pin(members[place][0], cause, f"{call_text(node)}: {reason}")
    for place in template.choosing:
        attribute = _chooser(node, source)
        if attribute is None:
            whole = "chooses the type of an output by a rule of its own"
        else:
            classes.choosers[members[place][0]] = (index, attribute)
    if whole:
        for member, _ in places:
            classes.pin(member, "pinned", f"{call_text(node)} {whole}")
    groups = []
    for variable, group in template.tied.items():
        found = tuple(members[place] for place in group)
        for member, _ in found[1:]:
            classes.tie(found[0][0], member)
        groups.append(Group(index, variable, found, not whole and variable not in template.stuck))
    classes.groups[index] = groups


def _formal(formals: tuple[tuple[str, str, bool, bool], ...], slot: int) -> tuple[str, str, bool, bool] | None:
    if slot < len(formals):
        return formals[slot]
    return formals[-1] if formals and formals[-1][2] else None


def _chooser(node: NodeProto, source: int) -> str | None:
    """Return the attribute that makes the output ``source``; None where there is not exactly one such attribute."""
    found = [
        a.name
        for a in node.attribute
        if (a.type == AttributeProto.INT and a.name in TYPE_ATTRIBUTES and a.i == source)
        or (a.type == AttributeProto.TENSOR and a.name == "value" and a.t.data_type == source)
    ]
    return found[0] if len(found) == 1 else None


def only_int64(op: str, domain: str, version: int, slot: int) -> bool:
    """Say whether the schema writes int64 itself at an input, where sizes, axes and counts stand."""
    formal = _formal(_formals(op, domain, version, False), slot)
    return formal is not None and formal[1] == type_text(TensorProto.INT64)
