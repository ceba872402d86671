"""`ToolComponent`, what a decorated class becomes, and `Tool`, the runtime half of a definition.

A definition is a value and knows nothing of code; a `Tool` holds the rest: the
validators compiled from its schemas, what it needs injected, and how an instance is built and run.
Only `ToolRunner` calls `Tool.invoke`.
"""

from __future__ import annotations

import asyncio
import copy
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, Generic, ParamSpec, TypeAlias, TypeVar, get_args

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

from toolcrib.errors import DefinitionError
from toolcrib.schema import UNCHANGED_TYPES, Converter, Default, Validator, ValidatorFactory
from toolcrib.schema.derive.adapters import whole
from toolcrib.schema.derive.defaults import STEADY
from toolcrib.schema.derive.factories import FactoryValues
from toolcrib.schema.derive.plain import MISSING
from toolcrib.schema.derive.reading import TypedReader, reading_at_once
from toolcrib.schema.derive.roundtrip import A_VALIDATOR, At, Differs, Findings, Noted, steps
from toolcrib.schema.references import pointer_of
from toolcrib.schema.validator import kind_of
from toolcrib.tools.build import compile_schema
from toolcrib.tools.capability import Need
from toolcrib.tools.trust import Imported, Pins, Trust, trusted_by
from toolcrib.values.definition import HasDefinition, ToolDefinition, asking
from toolcrib.values.json import JsonObject, JsonValue, Veiled, canonical_bytes
from toolcrib.values.typed import names_wrong_types

# Valid arguments that an author's own hints refuse: where and of what kind, never their text.

_KINDS = frozenset(get_args(ErrorType))
_NOT_ACCEPTED = "this value is not accepted"
_NO_INTEGER = ("int_type", "int_from_float")
NO_INTEGER = "expected integer, got number"
"""Says of a number what a schema's validator does, where only the hint refuses it: beyond 2^53 one with
a fraction or an exponent is no integer."""
_IN_WORDS = frozenset(("value_error", "assertion_error"))
Fault: TypeAlias = tuple[tuple[int | str, ...], str]


class NotAcceptedError(Exception):
    """Valid by the schema, but not what the author's hints promise: where, and safe text.

    `code` names the author's code that may have made it so, and `by_code` is True where it has: what
    it made, or left out, is not what was sent. Neither is said of what that code refuses in words.
    """

    def __init__(
        self, faults: tuple[Fault, ...], code: tuple[str, ...] = (), *, by_code: bool = False
    ) -> None:
        super().__init__("arguments not accepted")
        self.faults = faults
        self.code = code
        self.by_code = by_code


def _told(error: ValidationError, reader: TypedReader, sent: JsonValue, at: At) -> NotAcceptedError:
    """Return what a pydantic error says of valid JSON, and whether the author's code is the cause.

    A validator that returns None, or another type than its hint takes, is refused after it by pydantic
    with what it returned, which then is not what was sent.
    """
    faults = value_faults(error, *steps(at))
    found = error.errors(include_url=False, include_context=False)
    if any(fault["type"] not in _KINDS or fault["type"] in _IN_WORDS for fault in found):
        return NotAcceptedError(faults)
    by_code = not reader.reads_texts and any(_is_made(fault, sent) for fault in found)
    return NotAcceptedError(faults, reader.code, by_code=by_code)


def _is_made(fault: ErrorDetails, sent: JsonValue) -> bool:
    """Return whether what pydantic refuses is certainly another value than was sent for its place."""
    given, where, kind = fault["input"], fault["loc"], fault["type"]
    node: Any = sent
    is_there = False
    for step in where:
        is_there = _has(node, step)
        if not (is_there or isinstance(node, dict | list)):
            return False  # it stands in what code made of a text, and that may say anything
        node = node[step] if is_there else node
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return is_there  # it was sent
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return isinstance(node, dict) and not is_there
    if where[-1:] == ("[key]",):
        return False
    if given is None:
        return node is not None
    return kind.endswith("_type") and not same_kind(given, node)


def _has(node: Any, step: str | int) -> bool:
    if isinstance(node, list):
        return isinstance(step, int) and step < len(node)
    return isinstance(node, dict) and step in node


def same_kind(one: Any, other: Any) -> bool:
    """Return whether two values are of one JSON type; all numbers are."""
    kinds = {kind_of(one), kind_of(other)}
    return len(kinds) == 1 or kinds == {"integer", "number"}


def value_faults(error: ValidationError, *prefix: str | int) -> tuple[Fault, ...]:
    """Return the places and kinds of a pydantic error, without its text: that repeats the value.

    A kind of the author's own is not shown: it is text that may be made of anything.
    """
    found = error.errors(include_url=False, include_context=False)
    return tuple(
        ((*prefix, *fault["loc"]), _fault(fault["type"], fault["input"])) for fault in found
    )


def _fault(kind: str, value: object) -> str:
    if kind in _NO_INTEGER and isinstance(value, float):
        return NO_INTEGER
    return f"{_NOT_ACCEPTED} ({kind if kind in _KINDS else 'custom'})"


def _converted(converter: Converter, value: JsonValue, name: str) -> Any:
    """Return what a plain converter makes of the value of a parameter. Raises NotAcceptedError."""
    try:
        return converter(value)
    except (ValueError, OverflowError):
        said = NO_INTEGER if converter is whole and isinstance(value, float) else _NOT_ACCEPTED
        raise NotAcceptedError((((name,), said),)) from None


__all__ = [
    "ATTRIBUTE",
    "BoundCall",
    "BuiltArguments",
    "NotAcceptedError",
    "Tool",
    "ToolComponent",
    "tool_of",
    "value_faults",
]

P = ParamSpec("P")
R = TypeVar("R")
ATTRIBUTE = "__toolcrib_tool__"
_ANEW = ("definition", "has_factories")
"""What a copy of a tool is given, or works out, anew; its target and its original are private."""


class ToolComponent(ABC):
    """A call that can be run: made from validated arguments, run once.

    A class decorated with `@tool` is a subclass at run time (`issubclass`, `isinstance`) without
    inheriting from it; a function's calls are `BoundCall`s.
    """

    @abstractmethod
    async def run(self, *args: Any, **kwargs: Any) -> Any:
        """Do it; capabilities and `CallContext` come as keyword arguments."""

    @classmethod
    def get_definition(cls) -> ToolDefinition:
        return _own_tool(cls).definition


@ToolComponent.register  # one is made for every call, and a struct is made in C
class BoundCall(Veiled, msgspec.Struct, frozen=True):
    """A function with the arguments of one call, all but the injected ones."""

    veiled: ClassVar[tuple[str, ...]] = ("arguments",)

    function: Callable[..., Any]
    blocking: bool
    arguments: Mapping[str, Any]

    get_definition = ToolComponent.__dict__["get_definition"]

    async def run(self, *args: Any, **injected: Any) -> Any:
        if self.blocking:
            return await asyncio.to_thread(self.function, *args, **self.arguments, **injected)
        made = self.function(*args, **self.arguments, **injected)
        if not isinstance(made, AsyncIterator):
            return await made
        last = None
        async for last in made:  # noqa: B007  the last part is the result
            pass
        return last


class BuiltArguments(Veiled, msgspec.Struct, frozen=True):
    """The effective arguments of one call, and the instance that was built from them.

    `canonical` are the effective arguments; `defaults` and `normalised` point into them: to what was
    not sent, and to what an author's own validator changed, and `sets` to what has no order.
    `factory_values` is what default factories made, and `noted` the defaults with their values, where
    those are more than constants of parameters. `given` is what the instance was built from, None where
    that is no more than JSON.
    """

    veiled: ClassVar[tuple[str, ...]] = (
        *("instance", "canonical", "factory_values", "noted", "given"),
    )

    instance: Any
    canonical: bytes
    defaults: tuple[str, ...] = ()
    normalised: tuple[str, ...] = ()
    factory_values: FactoryValues | None = None
    noted: Sequence[Noted] = ()
    sets: tuple[str, ...] = ()
    given: Any = None


def copy_of(instance: Any) -> Any:
    """Return a copy of an instance that shares no argument with it."""
    if not isinstance(instance, BoundCall):
        return copy.deepcopy(instance)
    return msgspec.structs.replace(instance, arguments=copy.deepcopy(dict(instance.arguments)))


_NOTHING: Mapping[str, Any] = MappingProxyType({})  # one for all tools that declare nothing


class _FixedValue(msgspec.Struct, frozen=True):
    """A default that is the same in each call, and the pointer to it."""

    name: str
    value: JsonValue
    pointer: str


def _fixed_values(defaults: Mapping[str, Default]) -> tuple[_FixedValue, ...] | None:
    """Return the defaults that are JSON as they stand and cannot be changed; None if one is not."""
    if not all(d.is_json and d.value.__class__ in STEADY for d in defaults.values()):
        return None
    return tuple(_FixedValue(n, d.value, pointer_of((n,))) for n, d in defaults.items())


def _made(
    instance: Any, given: Any, canonical: bytes, found: Findings, values: FactoryValues | None
) -> BuiltArguments:
    if not (found.defaults or found.normalised or found.sets):
        return BuiltArguments(instance, canonical, factory_values=values, given=given)
    return BuiltArguments(
        instance,
        canonical,
        tuple(pointer_of(steps(at)) for at, _, _ in found.defaults),
        tuple(pointer_of(steps(at)) for at in found.normalised),
        values,
        found.defaults,
        tuple(pointer_of(steps(at)) for at in found.sets),
        given,
    )


def _read(
    reader: TypedReader, sent: JsonValue, at: At, found: Findings, values: FactoryValues | None
) -> tuple[Any, Any]:
    """Return a typed value and the JSON that it is. Raises NotAcceptedError."""
    try:
        return reader.read(sent, at, found, values)
    except Differs as differs:
        fault, code = (steps(differs.at), differs.text), differs.code
        named = reader.code if code in ((), A_VALIDATOR) else code
        raise NotAcceptedError((fault,), named, by_code=bool(code)) from None
    except ValidationError as error:
        raise _told(error, reader, sent, at) from None
    except (ValueError, OverflowError):
        raise NotAcceptedError(((steps(at), _NOT_ACCEPTED),)) from None


def _constructed(made: Any, arguments: Mapping[str, Any]) -> Any:
    return made(**arguments)


class Tool(Generic[P, R]):
    """A definition with what is needed to check and to run it; callable as the original function.

    `blocking` is True for a plain (not async) function: it has to run off the event loop, in a
    thread or, with `subprocess`, in a process of its own. `streaming` is True for what yields parts.
    `runnable` is False for a tool of which only the definition is known. `accepts` names what it takes
    where the schema was given and may let other properties through, `accepts_matching` judges the
    names of others; `requires` names what it needs and such a schema may not ask for. `defaults` has
    what the target gets for each parameter that is not sent; those in the fields of classes are theirs.
    `imported` is what it was before anybody trusted it, None for an author's own.
    """

    __slots__ = (
        "__weakref__",
        "_at_once",
        "_converting",
        "_fixed",
        "_instance",
        "_original",
        "_target",
        "accepts",
        "accepts_matching",
        "blocking",
        "context_parameter",
        "converters",
        "defaults",
        "definition",
        "has_factories",
        "imported",
        "instead",
        "is_class",
        "needs",
        "output_validator",
        "requires",
        "streaming",
        "subprocess",
        "takes_object",
        "validator",
    )

    def __init__(  # noqa: PLR0913  made in one place, from parts that are checked there
        self,
        definition: ToolDefinition,
        target: Callable[..., Any] | None,
        *,
        original: Any = None,
        validator: Validator | None = None,
        output_validator: Validator | None = None,
        converters: Mapping[str, Converter] | None = None,
        defaults: Mapping[str, Default] | None = None,
        takes_object: TypedReader | None = None,
        accepts: frozenset[str] | None = None,
        accepts_matching: Validator | None = None,
        requires: frozenset[str] = frozenset(),
        needs: tuple[Need, ...] = (),
        context_parameter: str | None = None,
        imported: Imported | None = None,
        instead: tuple[JsonValue, ...] | None = None,
        is_class: bool = False,
        blocking: bool = False,
        streaming: bool = False,
        subprocess: bool = False,
    ) -> None:
        self.definition = definition
        self._target = target
        made: Any = target
        self._instance: Callable[[Mapping[str, Any]], Any] = (
            partial(_constructed, made) if is_class else partial(BoundCall, made, blocking)
        )
        self._original = target if original is None else original
        self.validator = validator
        self.output_validator = output_validator
        self.converters = converters or _NOTHING
        self._converting = tuple((n, c, UNCHANGED_TYPES.get(c)) for n, c in self.converters.items())
        self.defaults = defaults or _NOTHING
        self.takes_object = takes_object
        self._fixed = None if takes_object is not None else _fixed_values(self.defaults)
        readers = [takes_object, *self.converters.values()]
        self.has_factories = any(
            isinstance(reader, TypedReader) and reader.has_factories for reader in readers
        ) or any(default.factory is not None for default in self.defaults.values())
        plain = self.has_factories or not any(isinstance(r, TypedReader) for r in readers)
        self._at_once: Any = None if plain else MISSING  # made when it is first needed
        self.accepts = accepts
        self.accepts_matching = accepts_matching
        self.requires = requires
        self.needs = needs
        self.context_parameter = context_parameter
        self.imported = imported
        self.instead = instead
        self.is_class = is_class
        self.blocking = blocking
        self.streaming = streaming
        self.subprocess = subprocess

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._original is None:
            raise DefinitionError(f"only the definition of '{self.definition.name}' is known")
        result: R = self._original(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<Tool {self.definition.name}>"

    @property
    def __name__(self) -> str:
        return self.definition.name

    @property
    def __wrapped__(self) -> Any:
        """The original function, for `inspect` and for tests."""
        return self._original

    def get_definition(self) -> ToolDefinition:
        return self.definition

    @property
    def runnable(self) -> bool:
        return self._target is not None

    @property
    def distrusted(self) -> bool:
        """Whether it was imported, and its definition in force is the one that asks."""
        return self.imported is not None and self.imported.definition is self.definition

    @property
    def registered(self) -> HasDefinition:
        """What the author has in hand: the decorated class, else this tool."""
        if self.is_class and getattr(self._original, ATTRIBUTE, None) is self:
            decorated: HasDefinition = self._original
            return decorated
        return self

    def code_at(self, name: str) -> tuple[str, ...]:
        """Return the names of the author's code that runs while an argument is read."""
        reader = self.takes_object or self.converters.get(name)
        return reader.code if isinstance(reader, TypedReader) else ()

    def renamed(self, name: str) -> Tool[P, R]:
        """Return the same tool under another name; its definition, and so its digest, is another."""
        definition, imported = self.definition.renamed(name), self.imported
        if imported is not None:
            asks = definition if self.distrusted else imported.definition.renamed(name)
            imported = imported._replace(definition=asks)
        return self._but(definition=definition, imported=imported)

    def brought(self, brought: ToolDefinition) -> Tool[P, R]:
        """Return the same tool as one that was imported, as `brought`, and asks."""
        own = self.definition.annotations
        asks = msgspec.structs.replace(self.definition, annotations=asking(own))
        return self._but(definition=asks, imported=Imported(asks, brought, own))

    def trusted(self, trust: Trust, pins: Pins | None) -> Tool[P, R]:
        """Return the tool with the trust that its author gives. Raises as `trusted_by` does."""
        definition, imported = trusted_by(self.definition, self.imported, trust, pins)
        return self._but(definition=definition, imported=imported)

    def validated_by(self, factory: ValidatorFactory, *, lazy: bool = False) -> Tool[P, R]:
        """Return the tool with validators that `factory` makes for its arguments and results.

        Made now, or (lazy) at their first use. Raises SchemaError, naming the tool and the schema.
        """
        validator, output_validator = _validators(self.definition, factory, lazy=lazy)
        return self._but(validator=validator, output_validator=output_validator)

    def _but(self, **changes: Any) -> Tool[P, R]:
        kept = (name for name in Tool.__slots__ if name[0] != "_" and name not in _ANEW)
        made: dict[str, Any] = {name: getattr(self, name) for name in kept}
        made |= {"original": self._original, **changes}
        return Tool(made.pop("definition", self.definition), self._target, **made)

    def _refuse_strangers(self, arguments: JsonObject, accepted: frozenset[str]) -> None:
        """Raise NotAcceptedError for names that the tool does not take."""
        others = [name for name in arguments if name not in accepted]
        matching = self.accepts_matching
        strangers = [n for n in others if matching is None or not matching.is_valid(n)]
        if strangers:
            raise NotAcceptedError(
                tuple(((name,), "the tool does not take this property") for name in strangers)
            )

    def make(self, arguments: JsonObject, before: FactoryValues | None = None) -> BuiltArguments:
        """Return an instance for one call, and the effective arguments that it was made of.

        `arguments` are valid and become the instance's own: nobody else may hold them. `before` has
        what default factories made for this call before. Raises NotAcceptedError, and what the author's
        validators, factories and constructor raise.
        """
        if self._target is None:
            return BuiltArguments(None, canonical_bytes(arguments))
        if self.accepts is not None and not self.accepts.issuperset(arguments):
            self._refuse_strangers(arguments, self.accepts)
        if self.requires and not self.requires <= arguments.keys():
            lacking = sorted(self.requires - arguments.keys())
            raise NotAcceptedError(
                tuple(((name,), f"the tool needs the property '{name}'") for name in lacking)
            )
        typed = None if self._fixed is None else self._as_sent(arguments)
        if typed is not None:
            places: tuple[str, ...] = ()
            for fixed in self._fixed or ():
                if fixed.name not in arguments:
                    arguments[fixed.name] = typed[fixed.name] = fixed.value
                    places += (fixed.pointer,)
            of = None if typed is arguments else typed
            return BuiltArguments(
                self._instance(typed), canonical_bytes(arguments), places, given=of
            )
        found = Findings()
        values = (before or FactoryValues()) if self.has_factories else None
        given: Any
        if self.takes_object is not None:
            given, shown = _read(self.takes_object, arguments, None, found, values)
            instance = self._target(given)
        else:
            given, shown = self._typed(arguments, found, values)
            instance = self._instance(given)
        return _made(instance, given, canonical_bytes(shown), found, values)

    def _as_sent(self, arguments: JsonObject) -> dict[str, Any] | None:
        """Return the arguments as the hints promise them, if each is read as it was sent; else None."""
        at_once = self._at_once
        if at_once is MISSING:
            at_once = self._at_once = reading_at_once(self.converters, UNCHANGED_TYPES)
        if at_once is not None:
            try:
                typed: dict[str, Any] = at_once(arguments)
            except ValidationError:
                return None  # what it is that differs, is found by `_typed`
            return typed
        for name, _, kept in self._converting:
            if name in arguments and arguments[name].__class__ is not kept:
                return None
        return arguments

    def _typed(
        self, arguments: JsonObject, found: Findings, values: FactoryValues | None
    ) -> tuple[Mapping[str, Any], JsonObject]:
        """Return the arguments as the author's hints promise them, and as everybody else sees them."""
        typed: dict[str, Any] | None = None
        shown: JsonObject | None = None
        for name, converter, kept in self._converting:
            if name not in arguments or arguments[name].__class__ is kept:
                continue
            if typed is None:
                typed = dict(arguments)
            sent = arguments[name]
            if isinstance(converter, TypedReader):
                typed[name], made = _read(converter, sent, (None, name), found, values)
                is_same = made is sent
            else:
                typed[name] = made = _converted(converter, sent, name)
                is_same = made.__class__ is sent.__class__  # else what a float, or an int, holds
            if not is_same:
                shown = dict(arguments) if shown is None else shown
                shown[name] = made
        if not self.defaults:
            typed = arguments if typed is None else typed
            return typed, arguments if shown is None else shown
        return self._with_defaults(arguments, typed, shown, found, values)

    def _with_defaults(
        self,
        arguments: JsonObject,
        typed: dict[str, Any] | None,
        shown: JsonObject | None,
        found: Findings,
        values: FactoryValues | None,
    ) -> tuple[Mapping[str, Any], JsonObject]:
        """Return the same with what was not sent."""
        typed = dict(arguments) if typed is None else typed
        shown = dict(arguments) if shown is None else shown
        for name, declared in self.defaults.items():
            if name in arguments:
                continue
            default = declared.for_call(name, values, self.converters.get(name))
            found.defaults.append(((None, name), default.value, declared.factory))
            typed[name], shown[name] = default.value, default.shown
        return typed, shown

    def invoke(self, instance: Any, injected: Mapping[str, Any]) -> Any:
        """Run it: a coroutine, a generator of parts, or for a blocking tool the result itself."""
        if self.is_class:
            return instance.run(**injected)
        if injected:
            return instance.function(**instance.arguments, **injected)
        return instance.function(**instance.arguments)


@names_wrong_types
def tool_of(thing: object) -> Tool[..., Any]:
    """Return the runtime half of anything that has a definition.

    Raises DefinitionError for what is no tool.
    """
    if isinstance(thing, Tool):
        return thing
    if isinstance(thing, type):
        return _own_tool(thing)
    if isinstance(thing, ToolDefinition):
        return _of_definition(thing)
    if isinstance(thing, HasDefinition) and not isinstance(thing, ToolComponent):
        return _of_definition(thing.get_definition())
    kind = getattr(thing, "__qualname__", None) or type(thing).__name__
    if isinstance(getattr(thing, "__wrapped__", None), Tool):
        raise DefinitionError(f"{kind} wraps a tool, and is none: put @tool above that decorator")
    raise DefinitionError(f"{kind} is no tool: {_mend(thing)}")


_MENDS = {
    "langchain": "from_langchain_tool(…) of toolcrib.bridges.langchain makes one of it",
    "toolcrib.agent.": "agent.as_tool() makes one of it",
    "builtins": "decorate it with @tool(visible=…)",
    "": "toolset(…) makes tools of an object's methods",
}


def _mend(thing: object) -> str:
    """Return what makes a tool of what is none, by the module of its class."""
    if isinstance(thing, str | ModuleType):
        return "give the function itself, or discover(…) of the file or module that has it"
    module = type(thing).__module__
    return next(mend for start, mend in _MENDS.items() if module.startswith(start))


def _of_definition(definition: ToolDefinition) -> Tool[..., Any]:
    """Return the tool of a definition made by hand; a member that is no JSON is an error at once."""
    try:
        _ = definition.digest
    except ValueError:
        raise DefinitionError(
            f"the definition of '{definition.name}' holds a schema, or the arguments of an example, "
            "that is no JSON text"
        ) from None
    validator, output_validator = _validators(definition)
    return Tool(definition, None, validator=validator, output_validator=output_validator)


def _validators(
    definition: ToolDefinition, factory: ValidatorFactory | None = None, *, lazy: bool = False
) -> tuple[Validator | None, Validator | None]:
    made = partial(compile_schema, definition.name, factory=factory, lazy=lazy)
    return (
        made("input_schema", definition.input_schema_json),
        made("output_schema", definition.output_schema_json),
    )


def _own_tool(cls: type) -> Tool[..., Any]:
    """Return the tool of this very class: a subclass is no tool until it is decorated, too."""
    found = cls.__dict__.get(ATTRIBUTE)
    if not isinstance(found, Tool):
        name = cls.__qualname__
        raise DefinitionError(
            f"{name} is no tool: decorate it with @tool(visible=…); toolset({name}(…)) makes tools of "
            "its methods"
        )
    return found
