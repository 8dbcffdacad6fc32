"""What an exported program (``.pt2``) may hold: plain tensors, plain arithmetic and torch's own operators.

It is read before torch opens it, since opening and calling a program runs what its JSON names: torch looks operators up
by dotted path in its own modules (``torch.serialization.os.system`` is one), executes guards as Python, evaluates sizes
with sympy, and puts names into the source of the function that it generates.

Source: torch/_export/serde/serialize.py (deserialize_operator, _parse_sym_expr), torch/export/_unlift.py
(_convert_guards_code_to_fn, _get_codegen) and torch/fx/graph.py (CodeGen), all of 2.13.
"""

import ast
import io
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from accel.core.errors import InputError, raised_as

SIZE_BITS = 1 << 16
"""Longest number that an expression may come to: ``9**9**9**9`` is nine characters and no computer holds it."""
DEEPEST = 100
"""How deep the JSON and an expression may be nested; programs of torch stay below 30."""

ARITHMETIC = {"Symbol", "Integer", "Rational", "Float", "Add", "Mul", "Pow", "Mod", "Max", "Min", "floor", "ceiling"}
"""Names of sympy that a size may call, beside torch's own functions of sizes."""
RELATIONS = {f"{strict}{than}" for strict in ("", "Strict") for than in ("GreaterThan", "LessThan")}
RELATIONS |= {"Equality", "Unequality"}
"""Names of sympy that an assertion on a size may call: of sizes that follow from values torch keeps what it assumed."""


PICKLED = re.compile(r"custom_obj|opaque_obj|\.pkl$|serialized_")
"""Names of records that torch unpickles without restriction: foreign constants, and all of the format before 2.8."""


def refuse_pickles(path: Path) -> None:
    """Raise InputError where loading the archive would run code that it holds.

    ``torch.export.load`` falls back to an unrestricted unpickler for example inputs and for weights that are marked
    as pickled. So the archive is read first with torch's own reader (no second parser that could disagree), and
    anything but what the module names is refused.

    Source: torch/export/pt2_archive/_package.py and torch/_export/serde/serialize.py (2.13).
    """
    import torch

    fix = "export it again with torch.export.save, from a program whose inputs and constants are plain tensors"
    with raised_as(
        InputError,
        (RuntimeError, ValueError, LookupError, zipfile.BadZipFile),
        f"{path} is not an exported program",
        fix="give a file of torch.export.save",
    ):
        reader = torch._C.PyTorchFileReader(str(path))
        names = reader.get_all_records()
        with zipfile.ZipFile(path) as archive:
            listed = [*names, *archive.namelist()]
    if not any(n.startswith("models/") for n in names):
        raise InputError(f"{path} holds no exported program (found {names[:4]})", fix=fix)
    # torch's reader finds a record whatever the case of its name, so two spellings could hide one another.
    if len({n.lower() for n in names}) != len(names):
        raise InputError(f"{path.name} holds two records of one name", fix=fix)
    for name in listed:
        if PICKLED.search(name.lower()):
            raise InputError(f"{path.name} holds a pickled object ({name}), which accel never opens", fix=fix)
    for name in names:
        kind = name.lower()
        if kind.endswith(".json") or kind.startswith("models/"):
            with raised_as(InputError, (ValueError, RecursionError), f"{path.name}: {name} is not JSON", fix=fix):
                _check(json.loads(reader.get_record(name)), f"{path.name}:{name}", fix)
        elif kind.endswith(".pt") and (raw := reader.get_record(name)):
            try:
                torch.load(io.BytesIO(raw), weights_only=True)
            except Exception as error:
                raise InputError(
                    f"{path.name}: {name} is a pickle of more than plain tensors, which accel never opens", fix=fix
                ) from error


NAME = re.compile(r"[\w.:/-]*")
NAMESPACES = {"aten", "prims", "quantized_decomposed", "torchvision"}
FILES = {"aten::from_file", "aten::save"}
"""Operators of these namespaces that open files by name."""
HIGHER_ORDER = {
    *("associative_scan", "cond", "flex_attention", "invoke_subgraph", "map_impl", "scan", "while_loop"),
    *("wrap_with_autocast", "wrap_with_set_grad_enabled"),
}
PLAIN = {
    "_operator": {
        *("add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "index", "invert", "le", "lshift", "lt", "mod"),
        *("mul", "ne", "neg", "not_", "or_", "pos", "pow", "rshift", "sub", "truediv", "xor"),
    },
    "math": {"ceil", "floor", "sqrt", "trunc"},
    "torch": {
        *("sym_float", "sym_int", "sym_ite", "sym_max", "sym_min", "sym_not", "sym_sum", "sym_sqrt", "_sym_sqrt"),
    },
}
"""Functions of numbers that are called beside torch's operators, by module."""
GUARD = re.compile(r"[\w\s.,()\[\]'<>=!+*/%-]*")
GUARDED = {"size", "stride", "storage_offset", "dim", "ndim", "shape", "dtype", "device", "isnan"}
"""What a guard may ask of an input."""


def _check(value: Any, where: str, fix: str, depth: int = 0) -> None:
    """Hold a JSON value of the archive against the rules; ``where`` is its record."""
    if depth > DEEPEST:
        raise InputError(f"{where} is nested more than {DEEPEST} levels deep", fix=fix)
    if isinstance(value, list):
        for item in value:
            _check(item, where, fix, depth + 1)
    elif isinstance(value, Mapping):
        if value.get("use_pickle") or PICKLED.search(str(value.get("path_name", "")).lower()):
            raise InputError(f"{where} marks {value.get('path_name')} as a pickle, which accel never opens", fix=fix)
        for key, item in value.items():
            _check_field(key, item, where, fix)
            if key != "metadata":  # of a node: where it came from, as text that nobody evaluates
                _check(item, where, fix, depth + 1)


def _check_field(key: str, value: Any, where: str, fix: str) -> None:
    if not NAME.fullmatch(key):
        raise InputError(f"{where} has an invalid name: {key[:80]!r}", fix=fix)
    rule = FIELDS.get(key) or (FIELDS["name"] if key.endswith("_name") else None)
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str) and rule is not None and not rule[0](text):
            raise InputError(f"{where} has {rule[1]}: {text[:80]!r}", fix=fix)


def is_operator(target: str) -> bool:
    """Say whether a dotted path names an operator of torch that computes, and opens no file."""
    import torch

    module, _, name = target.rpartition(".")
    if module in PLAIN:
        return name in PLAIN[module]
    if module == "torch.ops.higher_order":
        return name in HIGHER_ORDER
    parts = target.split(".")
    if len(parts) != 5 or parts[:2] != ["torch", "ops"] or parts[2] not in NAMESPACES:
        return False
    packet = getattr(getattr(torch.ops, parts[2]), parts[3], None)
    found = getattr(packet, parts[4], None)
    return isinstance(found, torch._ops.OpOverload) and found._schema.name not in FILES


def is_arithmetic(text: str) -> bool:
    """Say whether an expression holds numbers, symbols, operators and calls of known functions, and stays small."""
    from torch.utils._sympy import functions

    known = ARITHMETIC | RELATIONS | set(functions.__all__)
    tree = _parse(text)
    if tree is None:
        return False
    names: set[int] = set()
    for node in ast.walk(tree):  # a call comes before its arguments
        if not isinstance(node, _ARITHMETIC):
            return False
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in known):
            return False
        if (
            isinstance(node, ast.Name)
            and node.id not in known
            and not re.fullmatch(r"-?(s|u|zf|zuf)\d+|(int_)?oo", node.id)
        ):
            return False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Symbol":
            names |= {id(a) for a in node.args if isinstance(a, ast.Constant) and re.fullmatch(r"\w+", str(a.value))}
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in names:
            return False
        if isinstance(node, ast.keyword) and not (
            isinstance(node.value, ast.Constant) and node.value.value in (True, False)
        ):
            return False
    return _is_small(tree)


def is_guard(text: str) -> bool:
    """Say whether a guard only compares sizes and the like of the inputs: ``L['y'].size()[0] == L['x'].size()[0]``."""
    known = ARITHMETIC | {"L", "math", "inf", "float", "int", "PythonMod", "FloorDiv", "IntTrueDiv", "CeilToInt"}
    tree = _parse(text) if GUARD.fullmatch(text) else None
    if tree is None:
        return False
    for node in ast.walk(tree):
        if not isinstance(node, (*_ARITHMETIC, ast.Attribute, ast.Subscript)):
            return False
        if isinstance(node, ast.Name) and node.id not in known:
            return False
        if isinstance(node, ast.Attribute) and node.attr not in GUARDED:
            return False
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not NAME.fullmatch(node.value):
            return False
    return _is_small(tree)


_ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.keyword, ast.Name, ast.Load),
    *(ast.Constant, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)


def _parse(text: str) -> ast.Expression | None:
    """Parse an expression whose nesting and numbers are small enough to be looked at."""
    nested = deepest = 0
    for character in text:
        nested += (character in "([") - (character in ")]")
        deepest = max(deepest, nested)
    if deepest > DEEPEST:
        return None
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # ValueError: a number of too many digits
        return None


POWERS = {"Pow": ast.Pow(), "PowByNatural": ast.Pow(), "FloatPow": ast.Pow(), "LShift": ast.LShift()}


def _is_small(tree: ast.Expression) -> bool:
    try:
        return _bits(tree.body) <= SIZE_BITS
    except RecursionError:
        return False


def _bits(node: ast.AST) -> int:
    """Bound the length of the number that an expression comes to, in bits; a symbol is a size of 64 bits."""
    if isinstance(node, ast.Constant | ast.Name):
        value = node.value if isinstance(node, ast.Constant) else None
        return value.bit_length() if isinstance(value, int) else 64
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow | ast.LShift):
        return _raised(node.op, node.left, node.right)
    name, below = "", list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call):
        name, below = node.func.id if isinstance(node.func, ast.Name) else "", list(node.args)
    if name in POWERS and len(below) > 1:
        return _raised(POWERS[name], below[0], below[1])
    bits = [_bits(child) for child in below]
    if name in ("Add", "Max", "Min") or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)):
        return max(bits, default=0) + len(bits)
    return sum(bits)  # a product has the digits of its factors, and nothing else grows faster


def _raised(operator: ast.operator, base: ast.AST, exponent: ast.AST) -> int:
    """Bound a power or a shift, whose exponent must be a plain number: ``2``, ``-2`` or ``Integer(2)``."""
    while isinstance(exponent, ast.UnaryOp | ast.Call):
        if isinstance(exponent, ast.UnaryOp):
            exponent = exponent.operand
        elif isinstance(exponent.func, ast.Name) and exponent.func.id in ("Integer", "Rational") and exponent.args:
            exponent = exponent.args[0]
        else:
            break
    if not (isinstance(exponent, ast.Constant) and isinstance(exponent.value, int | float)):
        return SIZE_BITS + 1
    by = min(abs(exponent.value), SIZE_BITS + 1)
    return int(_bits(base) * max(by, 1) if isinstance(operator, ast.Pow) else _bits(base) + by)


def _is_structure(text: str) -> bool:
    """Say whether a tree of inputs or outputs holds names and known containers, and nothing that is imported.

    Source: torch/utils/_pytree.py: a defaultdict and an enum are looked up in a module that the text names.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return bool(NAME.fullmatch(text))
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Mapping):
            if {"default_factory_module", "__enum__"} & item.keys():
                return False
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item
        elif isinstance(item, str) and not NAME.fullmatch(item):
            if item[0] not in '[{"':
                return False
            try:
                waiting.append(json.loads(item))
            except (ValueError, RecursionError):
                return False
    return True


FIELDS: Mapping[str, tuple[Callable[[str], object], str]] = {
    **dict.fromkeys(("name", "as_name", "fqn", "forward_arg_names"), (NAME.fullmatch, "an invalid name")),
    **dict.fromkeys(("target", "as_operator"), (is_operator, "a call of no operator that accel runs")),
    "expr_str": (is_arithmetic, "a size that is not arithmetic"),
    "guards_code": (is_guard, "a guard that is more than a comparison"),
    **dict.fromkeys(("in_spec", "out_spec"), (_is_structure, "a structure that is more than nested names")),
}
"""Fields whose text torch evaluates, or writes into the source that it generates as it does with every ``…_name``: what
holds the text, and what it is where that refuses it."""
