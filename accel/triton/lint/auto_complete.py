"""Rules on what a Python model's ``auto_complete_config`` says of its own config: read as a syntax tree, never run.

What the function does unconditionally and with literal values is known; the rest is left to the server.

Source: python_backend src/resources/triton_python_backend_utils.py, ModelConfig; src/pb_stub.cc,
AutoCompleteModelConfig.
"""

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accel.core.errors import InputError
from accel.triton.config import type_name
from accel.triton.lint.model import LintedModel, read_text, unsafe
from accel.triton.manifest import Finding

DISABLED = "--disable-auto-complete-config"
FUNCTION = "auto_complete_config"
NEEDED = ("name", "data_type", "dims")
UNKNOWN = object()


@dataclass(frozen=True, slots=True)
class Said:
    """What ``auto_complete_config`` says.

    Attributes:
        calls: method of the config object and its first argument, ``UNKNOWN`` where that is not a literal.
        returns: whether it returns something.
    """

    calls: tuple[tuple[str, Any], ...]
    returns: bool


def auto_complete(model: LintedModel) -> Iterator[Finding]:
    """Properties that ``auto_complete_config`` leaves out, invents, or states otherwise than the config."""
    if DISABLED in (model.launch or ""):
        return
    for version in model.served():
        file = f"{model.folder}/{version}/{model.filename}"
        said = read(model, file)
        if said is None:
            continue
        for why, fix in _contradictions(model, said):
            yield model.error(FUNCTION, why, fix, file=file)


def completes(model: LintedModel) -> bool:
    """Say whether a Python model completes its own config."""
    return any(read(model, f"{model.folder}/{version}/{model.filename}") is not None for version in model.served())


def read(model: LintedModel, file: str) -> Said | None:
    """Return what the function of a model file says; None where there is none, or no Python."""
    if model.backend != "python" or unsafe(model.filename) or not (model.root / file).is_file():
        return None
    try:
        tree = ast.parse(read_text(model.root, model.root / file))
    except (InputError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # files.python_class tells of it
    classes = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "TritonPythonModel"]
    functions = [n for c in classes for n in c.body if isinstance(n, ast.FunctionDef) and n.name == FUNCTION]
    if not functions or not functions[-1].args.args:
        return None
    function = functions[-1]
    names: dict[str, Any] = {}
    calls = tuple(_calls(function.body, function.args.args[-1].arg, names))
    returns = any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(function))
    return Said(calls, returns)


def _calls(body: Sequence[ast.stmt], config: str, names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the calls of statements that always run; ``names`` follows the values of local names."""
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                names[name] = _value(value, names)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=method), args=arguments)):
                if owner == config:
                    yield method, _value(arguments[0], names) if arguments else UNKNOWN
                else:
                    names.pop(owner, None)  # a list that is appended to
            case ast.For(target=ast.Name(id=name), iter=values, body=inner) if isinstance(
                items := _value(values, names), list | tuple
            ):
                for item in items:
                    names[name] = item
                    yield from _calls(inner, config, names)
            case ast.Return():
                return
            case _:
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name):
                        names.pop(node.id, None)  # it may change there
                    if isinstance(node, ast.Return | ast.Raise):
                        return


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(id=name):
            return names.get(name, UNKNOWN)
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords) if all(k.arg for k in keywords):
            return {str(k.arg): _value(k.value, names) for k in keywords}
        case ast.List(elts=items):
            return [_value(item, names) for item in items]
        case ast.Dict(keys=keys, values=values) if all(isinstance(k, ast.Constant) for k in keys):
            return {k.value: _value(v, names) for k, v in zip(keys, values, strict=True) if isinstance(k, ast.Constant)}
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
    return UNKNOWN


def _contradictions(model: LintedModel, said: Said) -> Iterator[tuple[str, str]]:
    config = model.config
    if not said.returns:
        yield "returns nothing, and the server needs the config back", "return its argument"
    checks: Mapping[str, Callable[[Any], Iterator[tuple[str, str]]]] = {
        "add_input": lambda value: _tensor(value, "input", (*NEEDED, "optional"), config.input),
        "add_output": lambda value: _tensor(value, "output", NEEDED, config.output),
        "set_model_transaction_policy": lambda value: _policy(model, value),
    }
    for method, value in said.calls:
        if method == "set_max_batch_size" and isinstance(value, int) and config.max_batch_size > value:
            yield f"sets max_batch_size {value}, and the config has {config.max_batch_size}", "lower the config's"
        elif method == "set_dynamic_batching" and config.HasField("sequence_batching"):
            yield "sets dynamic batching, and the config has sequence_batching", "choose one"
        elif method in checks and isinstance(value, dict):
            yield from checks[method](value)


def _tensor(value: Mapping[str, Any], kind: str, known: Sequence[str], tensors: Any) -> Iterator[tuple[str, str]]:
    name = value.get("name", "")
    for key in value:
        if key not in known:
            yield f"gives {kind} {name!r} the property {key!r}, which does not exist", f"use {', '.join(known)}"
    for key in NEEDED:
        if key not in value:
            yield f"gives {kind} {name!r} no {key!r}", "give it"
    same = next((t for t in tensors if t.name == name), None)
    if same is None:
        return
    kept, type_ = type_name(same.data_type), value.get("data_type")
    if isinstance(type_, str) and same.data_type and type_ != kept:
        yield f"says {kind} {name!r} is {type_}, and the config has {kept}", "make them equal"
    dims = value.get("dims")
    if isinstance(dims, list) and UNKNOWN not in dims and same.dims and dims != list(same.dims):
        yield f"says {kind} {name!r} is {dims}, and the config has {list(same.dims)}", "make them equal"


def _policy(model: LintedModel, value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key in value:
        if key != "decoupled":
            yield f"gives the transaction policy the property {key!r}, which does not exist", "use 'decoupled'"
    stated, decoupled = model.config.model_transaction_policy.decoupled, value.get("decoupled")
    if isinstance(decoupled, bool) and model.config.HasField("model_transaction_policy") and decoupled != stated:
        yield f"sets decoupled to {decoupled}, and the config has {stated}", "make them equal"


RULES: tuple[Callable[[LintedModel], Iterator[Finding]], ...] = (auto_complete,)
