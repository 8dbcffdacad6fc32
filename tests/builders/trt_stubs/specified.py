"""Stand-ins for TensorRT's objects that know no more, and accept no less, than the real classes say.

An attribute that the class lacks cannot be read, called or set. A call is held against the signatures in the method's
docstring: number, names and types of its arguments. What it returns has the type that the signature gives: a stand-in
for a class, or a value that the test's script chose, which is held against the signature, too.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

ALIASES = {"IParserError": "ParserError"}
"""C++ names in signatures whose Python class is called otherwise."""
MADE = ("Builder", "OnnxParser", "Runtime", "Refitter", "OnnxParserRefitter")
"""Classes that a caller makes itself; all other objects come from these."""


class Violation(TypeError):
    """A call that the real API does not have."""


@dataclass(frozen=True)
class Argument:
    name: str
    kind: str
    optional: bool


@dataclass(frozen=True)
class Signature:
    arguments: tuple[Argument, ...]
    returns: str


def signatures(name: str, doc: str | None) -> list[Signature]:
    """Read the signatures that pybind11 wrote into a docstring, one for each overload."""
    found = []
    for line in (doc or "").splitlines():
        match = re.match(rf"(?:\d+\. )?(?:{re.escape(name)})?\((.*)\) -> (.+)$", line.strip())
        if match:
            found.append(Signature(tuple(_argument(part) for part in _split(match[1])), match[2].strip()))
    return found


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += char in "[(<"
        depth -= char in "])>"
        if char == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def _argument(text: str) -> Argument:
    name, _, rest = text.partition(":")
    kind, equals, _ = rest.partition(" = ")
    return Argument(name.strip(), kind.strip(), bool(equals))


class Api:
    """TensorRT's module with the classes of ``MADE`` replaced by makers of stand-ins.

    Args:
        real: the imported bindings.
        script: ``Class.member`` → value, or a function of the stand-in and the call's arguments.
    """

    def __init__(self, real: ModuleType, script: Mapping[str, Any]) -> None:
        self.real = real
        self.script = dict(script)
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.module = ModuleType("tensorrt")
        self.module.__getattr__ = lambda name: getattr(real, name)  # type: ignore[method-assign]
        self.module.__version__ = real.__version__
        for name in MADE:
            setattr(self.module, name, self._maker(name))

    def named(self, what: str) -> list[tuple[Any, ...]]:
        """Return the positional arguments of every call of ``Class.member``, or values that it was set to."""
        return [arguments for name, arguments, _ in self.calls if name == what]

    def _maker(self, name: str) -> Callable[..., Any]:
        cls = getattr(self.real, name)

        def make(*args: Any, **kwargs: Any) -> Any:
            return self.call(cls, "__init__", None, args, kwargs, default=lambda: self.stand_in(cls))

        return make

    def stand_in(self, cls: type) -> Any:
        if cls is self.real.IHostMemory:
            memory = Memory(self.script.get("IHostMemory.bytes", b"built"))
            memory.stands_for = cls
            return memory
        return StandIn(self, cls)

    def call(
        self,
        cls: type,
        member: str,
        owner: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        default: Callable[[], Any] | None = None,
    ) -> Any:
        where = f"{cls.__name__}.{member}"
        known = signatures(member, getattr(cls, member).__doc__)
        if not known:
            raise Violation(f"{where} has no signature to hold the call against")
        fitting = [s for s in known if self._takes(s, args, kwargs)]
        if not fitting:
            raise Violation(f"{where}{args!r}{kwargs or ''} fits none of {known}")
        self.calls.append((where, args, kwargs))
        if where in self.script:
            value = self.script[where]
            value = value(owner, *args, **kwargs) if callable(value) else value
            returns = "object" if default else fitting[0].returns
            if not (value is None and self._class(returns) is not None) and not self.fits(returns, value):
                raise Violation(f"the script lets {where} return {value!r}, expected {returns}")
            return value
        return default() if default else self.answer(where, fitting[0].returns)

    def _takes(self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        own = signature.arguments[1:]  # without self
        if len(args) > len(own):
            return False
        given = dict(zip((a.name for a in own), args, strict=False))
        if set(given) & set(kwargs) or not set(kwargs) <= {a.name for a in own}:
            return False
        given |= kwargs
        return all(self.fits(a.kind, given[a.name]) if a.name in given else a.optional for a in own)

    def answer(self, where: str, kind: str) -> Any:
        """Make a value of a type; what has no natural one must be scripted."""
        plain = {"None": None, "bool": True, "int": 0, "float": 0.0, "str": ""}
        if kind in plain:
            return plain[kind]
        if kind.startswith("list["):
            return []
        cls = self._class(kind)
        if cls is None or hasattr(cls, "__members__") or cls is self.real.Dims:
            raise Violation(f"{where} gives {kind}, and the script does not say which")
        return self.stand_in(cls)

    def fits(self, kind: str, value: Any) -> bool:
        """Say whether pybind11 would take a value for an annotation."""
        if kind in ("object", "typing.Any"):
            return True
        if " | " in kind:
            return any(self.fits(part, value) for part in kind.split(" | "))
        simple: dict[str, Callable[[Any], bool]] = {
            "None": lambda v: v is None,
            "bool": lambda v: isinstance(v, bool),
            "str": lambda v: isinstance(v, str),
            "int": lambda v: isinstance(v, int) and not isinstance(v, bool),
            "float": lambda v: isinstance(v, float),
            "tuple": lambda v: isinstance(v, tuple),
            "list": lambda v: isinstance(v, list),
            "typing.SupportsInt": lambda v: hasattr(v, "__int__") and not isinstance(v, str | float),
            "typing.SupportsFloat": lambda v: isinstance(v, int | float),
            "typing_extensions.Buffer": _is_buffer,
        }
        if kind in simple:
            return simple[kind](value)
        if match := re.fullmatch(r"(?:collections\.abc\.Sequence|list)\[(.+)\]", kind):
            return (
                isinstance(value, Sequence)
                and not isinstance(value, str)
                and all(self.fits(match[1], v) for v in value)
            )
        cls = self._class(kind)
        if cls is None:
            raise Violation(f"the annotation {kind!r} is not known: teach it to this file")
        if cls is self.real.Dims and isinstance(value, tuple | list):
            return all(isinstance(v, int) for v in value)  # converted implicitly
        return isinstance(value, cls)

    def _class(self, kind: str) -> type | None:
        names = re.split(r"\.|::", kind)
        names = [n for n in names if n not in ("tensorrt_bindings", "tensorrt", "nvinfer1", "nvonnxparser", "v_1_0")]
        found: Any = self.real
        for name in names:
            found = getattr(found, ALIASES.get(name, name), None)
        return found if isinstance(found, type) else None


def _is_buffer(value: Any) -> bool:
    try:
        memoryview(value)
    except TypeError:
        return False
    return True


class Memory(bytes):
    """A stand-in for ``IHostMemory``, whose bytes can be read as the real one's can."""

    stands_for: type

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return self.stands_for

    @property
    def nbytes(self) -> int:
        return len(self)

    def __enter__(self) -> "Memory":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class StandIn:
    """One object of a real class."""

    def __init__(self, api: Api, cls: type) -> None:
        object.__setattr__(self, "_api", api)
        object.__setattr__(self, "_cls", cls)
        object.__setattr__(self, "_set", {})

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return object.__getattribute__(self, "_cls")

    def __getattr__(self, name: str) -> Any:
        api, cls, values = self._api, self._cls, self._set
        member = getattr(cls, name, None)
        if member is None:
            raise AttributeError(f"TensorRT {api.real.__version__} has no {cls.__name__}.{name}")
        if not isinstance(member, property):
            return lambda *args, **kwargs: api.call(cls, name, self, args, kwargs)
        if name in values:
            return values[name]
        where = f"{cls.__name__}.{name}"
        if where in api.script:
            value = api.script[where]
            return value(self) if callable(value) else value
        known = signatures("", member.fget.__doc__)
        if not known:
            raise Violation(f"{where} has no type, and the script does not say what it gives")
        return api.answer(where, known[0].returns)

    def __setattr__(self, name: str, value: Any) -> None:
        api, cls = self._api, self._cls
        member = getattr(cls, name, None)
        if not isinstance(member, property) or member.fset is None:
            raise AttributeError(f"TensorRT {api.real.__version__} has no {cls.__name__}.{name} that can be set")
        known = signatures("", member.fset.__doc__)
        if known and not any(api.fits(s.arguments[1].kind, value) for s in known):
            raise Violation(f"{cls.__name__}.{name} = {value!r} fits none of {known}")
        api.calls.append((f"{cls.__name__}.{name}", (value,), {}))
        self._set[name] = value

    def __iter__(self) -> Iterator[Any]:
        if not hasattr(self._cls, "__getitem__"):
            raise TypeError(f"{self._cls.__name__} cannot be iterated over")
        return iter(self._api.script.get(f"{self._cls.__name__}.__iter__", ()))

    def __repr__(self) -> str:
        return f"<{self._cls.__name__}>"
