"""`ToolComponent`, the base of decorated classes, and `Tool`, the runtime half of a definition.

A definition is a value and knows nothing of code. A `Tool` holds the rest: the validators compiled
from its schemas, what it needs injected, and how an instance is built and run. Only `ToolRunner`
calls `Tool.invoke`.
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
from toolcrib.schema.derive.roundtrip import (
    A_VALIDATOR,
    OWN_STEP,
    At,
    Differs,
    Findings,
    FoundDefault,
    steps,
)
from toolcrib.schema.references import pointer_of
from toolcrib.schema.validator import kind_of
from toolcrib.tools.build import compile_schema
from toolcrib.tools.capability import Need
from toolcrib.tools.trust import Imported, Pins, Trust, trusted_by
from toolcrib.values.definition import HasDefinition, ToolDefinition, asking
from toolcrib.values.json import JsonObject, JsonValue, Redacted, canonical_bytes
from toolcrib.values.typed import names_wrong_types

# Report valid arguments that an author's own hints refuse: the place and the kind, never their
# text.

_PYDANTIC_KINDS = frozenset(get_args(ErrorType))
_NOT_ACCEPTED = "this value is not accepted"
_NOT_INTEGER_KINDS = ("int_type", "int_from_float")
NO_INTEGER = "expected integer, got number"
"""The schema validator's wording, used when only the hint refuses a number: beyond 2^53, a number
with a fraction or an exponent is not an integer."""
_KINDS_WITH_MESSAGE = frozenset(("value_error", "assertion_error"))
Fault: TypeAlias = tuple[tuple[int | str, ...], str]


class NotAcceptedError(Exception):
    """Arguments are valid against the schema but do not fit the author's hints. Holds places and
    safe text.

    `code` names the author's code that may be the cause. `by_code` is True if it certainly is: what
    it made, or left out, differs from what was sent. Neither is set for arguments that the code
    explicitly refuses with a message.
    """

    def __init__(
        self, faults: tuple[Fault, ...], code: tuple[str, ...] = (), *, by_code: bool = False
    ) -> None:
        super().__init__("arguments not accepted")
        self.faults = faults
        self.code = code
        self.by_code = by_code


def _not_accepted_error(
    error: ValidationError, reader: TypedReader, sent: JsonValue, at: At
) -> NotAcceptedError:
    """Translate a pydantic error about valid JSON, and say whether the author's code is the cause.

    If a validator returns None, or another type than its hint accepts, pydantic then refuses the
    returned value, which differs from what was sent.
    """
    faults = value_faults(error, *steps(at))
    details = error.errors(include_url=False, include_context=False)
    if any(
        fault["type"] not in _PYDANTIC_KINDS or fault["type"] in _KINDS_WITH_MESSAGE
        for fault in details
    ):
        return NotAcceptedError(faults)
    by_code = not reader.reads_texts and any(_differs_from_sent(fault, sent) for fault in details)
    return NotAcceptedError(faults, reader.code, by_code=by_code)


def _differs_from_sent(fault: ErrorDetails, sent: JsonValue) -> bool:
    """Return whether pydantic refuses a value that is certainly not the one sent for its place."""
    refused, location, kind = fault["input"], fault["loc"], fault["type"]
    node: Any = sent
    is_present = False
    for step in location:
        if isinstance(step, str) and step.startswith(OWN_STEP):
            continue
        is_present = _has_step(node, step)
        if not (is_present or isinstance(node, dict | list)):
            return False  # it is inside what code made of a string, which may be anything
        node = node[step] if is_present else node
    if kind in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return is_present  # it was sent
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return isinstance(node, dict) and not is_present
    if location[-1:] == ("[key]",):
        return False
    if refused is None:
        return node is not None
    return kind.endswith("_type") and not same_kind(refused, node)


def _has_step(node: Any, step: str | int) -> bool:
    if isinstance(node, list):
        return isinstance(step, int) and step < len(node)
    return isinstance(node, dict) and step in node


def same_kind(one: Any, other: Any) -> bool:
    """Return whether two values have the same JSON type; all numbers do."""
    kinds = {kind_of(one), kind_of(other)}
    return len(kinds) == 1 or kinds == {"integer", "number"}


def value_faults(error: ValidationError, *prefix: str | int) -> tuple[Fault, ...]:
    """Return the places and kinds of a pydantic error, without its text, which repeats the value.

    An author's own kind is not shown, because it is text that may contain anything.
    """
    details = error.errors(include_url=False, include_context=False)
    return tuple(
        ((*prefix, *fault["loc"]), _fault_text(fault["type"], fault["input"])) for fault in details
    )


def _fault_text(kind: str, value: object) -> str:
    if kind in _NOT_INTEGER_KINDS and isinstance(value, float):
        return NO_INTEGER
    return f"{_NOT_ACCEPTED} ({kind if kind in _PYDANTIC_KINDS else 'custom'})"


def _converted(converter: Converter, value: JsonValue, name: str) -> Any:
    """Return what a plain converter makes of the value of a parameter. Raises NotAcceptedError."""
    try:
        return converter(value)
    except (ValueError, OverflowError):
        message = NO_INTEGER if converter is whole and isinstance(value, float) else _NOT_ACCEPTED
        raise NotAcceptedError((((name,), message),)) from None


P = ParamSpec("P")
R = TypeVar("R")
ATTRIBUTE = "__toolcrib_tool__"
_NOT_COPIED = ("definition", "has_factories")
"""What a copy of a tool gets or computes itself; its target and its original are private."""


class ToolComponent(ABC):
    """A call that can be run: made from validated arguments, run once.

    A class decorated with `@tool` counts as a subclass (`issubclass`, `isinstance`) without
    inheriting from it. Calls of a function are `BoundCall`s.
    """

    @abstractmethod
    async def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the call. Capabilities and `CallContext` are passed as keyword arguments."""

    @classmethod
    def get_definition(cls) -> ToolDefinition:
        return _own_tool(cls).definition


@ToolComponent.register  # one is made per call, and structs are created in C
class BoundCall(Redacted, msgspec.Struct, frozen=True):
    """A function with the arguments of one call, all but the injected ones."""

    redacted: ClassVar[tuple[str, ...]] = ("arguments",)

    function: Callable[..., Any]
    blocking: bool
    arguments: Mapping[str, Any]

    get_definition = ToolComponent.__dict__["get_definition"]

    async def run(self, *args: Any, **injected: Any) -> Any:
        if self.blocking:
            return await asyncio.to_thread(self.function, *args, **self.arguments, **injected)
        result = self.function(*args, **self.arguments, **injected)
        if not isinstance(result, AsyncIterator):
            return await result
        last = None
        async for last in result:  # noqa: B007  the last part is the result
            pass
        return last


class BuiltArguments(Redacted, msgspec.Struct, frozen=True):
    """The effective arguments of one call, and the instance that was built from them.

    `canonical` holds the effective arguments. `defaults`, `normalised` and `sets` point into them:
    to what was not sent, to what an author's own validator changed, and to what has no order.
    `factory_values` holds what default factories made. `found_defaults` holds the defaults with
    their values, if there are others than constants of parameters. `typed_arguments` is what the
    instance was built from, or None if that is no more than JSON.
    """

    redacted: ClassVar[tuple[str, ...]] = (
        *("instance", "canonical", "factory_values", "found_defaults", "typed_arguments"),
    )

    instance: Any
    canonical: bytes
    defaults: tuple[str, ...] = ()
    normalised: tuple[str, ...] = ()
    factory_values: FactoryValues | None = None
    found_defaults: Sequence[FoundDefault] = ()
    sets: tuple[str, ...] = ()
    typed_arguments: Any = None


def copy_of(instance: Any) -> Any:
    """Return a copy of an instance that shares no argument with it."""
    if not isinstance(instance, BoundCall):
        return copy.deepcopy(instance)
    return msgspec.structs.replace(instance, arguments=copy.deepcopy(dict(instance.arguments)))


_NOTHING: Mapping[str, Any] = MappingProxyType({})  # shared by all tools that declare nothing


def _fixed_values(defaults: Mapping[str, Default]) -> list[tuple[str, JsonValue, str]] | None:
    """Return names, values and pointers of the defaults if all are immutable JSON values, or None."""
    if not all(d.is_json and d.value.__class__ in STEADY for d in defaults.values()):
        return None
    return [(name, default.value, pointer_of((name,))) for name, default in defaults.items()]


def _built(
    instance: Any,
    built_from: Any,
    canonical: bytes,
    findings: Findings,
    factory_values: FactoryValues | None,
) -> BuiltArguments:
    if not (findings.defaults or findings.normalised or findings.sets):
        return BuiltArguments(
            instance, canonical, factory_values=factory_values, typed_arguments=built_from
        )
    return BuiltArguments(
        instance,
        canonical,
        tuple(pointer_of(steps(at)) for at, _, _ in findings.defaults),
        tuple(pointer_of(steps(at)) for at in findings.normalised),
        factory_values,
        findings.defaults,
        tuple(pointer_of(steps(at)) for at in findings.sets),
        built_from,
    )


def _read(
    reader: TypedReader,
    sent: JsonValue,
    at: At,
    findings: Findings,
    factory_values: FactoryValues | None,
) -> tuple[Any, Any]:
    """Return a typed value and its JSON. Raises NotAcceptedError."""
    try:
        return reader.read(sent, at, findings, factory_values)
    except Differs as differs:
        fault, code = (steps(differs.at), differs.text), differs.code
        code_names = reader.code if code in ((), A_VALIDATOR) else code
        raise NotAcceptedError((fault,), code_names, by_code=bool(code)) from None
    except ValidationError as error:
        raise _not_accepted_error(error, reader, sent, at) from None
    except (ValueError, OverflowError):
        raise NotAcceptedError(((steps(at), _NOT_ACCEPTED),)) from None


def _instance_of(cls: Any, arguments: Mapping[str, Any]) -> Any:
    return cls(**arguments)


class Tool(Generic[P, R]):
    """A definition with what is needed to check and run it; callable as the original function.

    `blocking` is True for a plain (not async) function. It has to run off the event loop, in a
    thread or, with `subprocess`, in a separate process. `streaming` is True for a tool that yields
    parts. `runnable` is False if only the definition is known.

    The next three are for a schema given by the author, which may allow properties or omit
    requirements that the target does not. `accepts` names what the target takes, `accepts_matching`
    checks other names, and `requires` names what it needs. `defaults` holds what the target gets
    for each parameter that is not sent; fields of classes keep their own defaults. `imported` is
    the tool as it was before anybody trusted it, or None for an author's own tool.
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

    def __init__(  # noqa: PLR0913  called in one place, with checked parts
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
        untyped_target: Any = target
        self._instance: Callable[[Mapping[str, Any]], Any] = (
            partial(_instance_of, untyped_target)
            if is_class
            else partial(BoundCall, untyped_target, blocking)
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
        typed_readers = [reader for reader in readers if isinstance(reader, TypedReader)]
        self.has_factories = any(reader.has_factories for reader in typed_readers) or any(
            default.factory is not None for default in self.defaults.values()
        )
        # made when first needed
        self._at_once: Any = MISSING if typed_readers and not self.has_factories else None
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
            raise DefinitionError(
                f"'{self.definition.name}' cannot be called: only its definition is known"
            )
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
        """Whether the tool was imported and is not trusted, so that its calls need approval."""
        return self.imported is not None and self.imported.definition is self.definition

    @property
    def registered(self) -> HasDefinition:
        """The object that the author refers to: the decorated class, or else this tool."""
        if self.is_class and getattr(self._original, ATTRIBUTE, None) is self:
            decorated: HasDefinition = self._original
            return decorated
        return self

    def code_at(self, name: str) -> tuple[str, ...]:
        """Return the names of the author's code that runs while an argument is read."""
        reader = self.takes_object or self.converters.get(name)
        return reader.code if isinstance(reader, TypedReader) else ()

    def renamed(self, name: str) -> Tool[P, R]:
        """Return the tool under another name, which gives it another definition and digest."""
        definition, imported = self.definition.renamed(name), self.imported
        if imported is not None:
            asking_definition = definition if self.distrusted else imported.definition.renamed(name)
            imported = imported._replace(definition=asking_definition)
        return self._replaced(definition=definition, imported=imported)

    def brought(self, brought: ToolDefinition) -> Tool[P, R]:
        """Return the tool as imported with the definition `brought`; its calls need approval."""
        own_annotations = self.definition.annotations
        asking_definition = msgspec.structs.replace(
            self.definition, annotations=asking(own_annotations)
        )
        return self._replaced(
            definition=asking_definition,
            imported=Imported(asking_definition, brought, own_annotations),
        )

    def trusted(self, trust: Trust, pins: Pins | None) -> Tool[P, R]:
        """Return the tool with the author's trust. Raises as `trusted_by` does."""
        definition, imported = trusted_by(self.definition, self.imported, trust, pins)
        return self._replaced(definition=definition, imported=imported)

    def validated_by(self, factory: ValidatorFactory, *, lazy: bool = False) -> Tool[P, R]:
        """Return the tool with validators that `factory` makes for its arguments and results.

        They are made now, or at their first use if `lazy`. Raises SchemaError naming the tool and
        the schema.
        """
        validator, output_validator = _validators(self.definition, factory, lazy=lazy)
        return self._replaced(validator=validator, output_validator=output_validator)

    def _replaced(self, **changes: Any) -> Tool[P, R]:
        names = (name for name in Tool.__slots__ if name[0] != "_" and name not in _NOT_COPIED)
        fields: dict[str, Any] = {name: getattr(self, name) for name in names}
        fields |= {"original": self._original, **changes}
        return Tool(fields.pop("definition", self.definition), self._target, **fields)

    def _refuse_unknown(self, arguments: JsonObject, accepted: frozenset[str]) -> None:
        unaccepted = [name for name in arguments if name not in accepted]
        matching = self.accepts_matching
        unknown = [n for n in unaccepted if matching is None or not matching.is_valid(n)]
        if unknown:
            raise NotAcceptedError(
                tuple(((name,), "the tool does not take this property") for name in unknown)
            )

    def make(
        self, arguments: JsonObject, earlier_values: FactoryValues | None = None
    ) -> BuiltArguments:
        """Return the instance for one call, and its effective arguments.

        `arguments` are valid, and the instance takes them over: nobody else may hold a reference.
        `earlier_values` are those that default factories made for this call earlier. Raises
        NotAcceptedError, and whatever the author's validators, factories and constructor raise.
        """
        if self._target is None:
            return BuiltArguments(None, canonical_bytes(arguments))
        if self.accepts is not None and not self.accepts.issuperset(arguments):
            self._refuse_unknown(arguments, self.accepts)
        if self.requires and not self.requires <= arguments.keys():
            missing = sorted(self.requires - arguments.keys())
            raise NotAcceptedError(
                tuple(((name,), f"the tool needs the property '{name}'") for name in missing)
            )
        typed = None if self._fixed is None else self._as_sent(arguments)
        if typed is not None:
            default_pointers: tuple[str, ...] = ()
            for name, value, pointer in self._fixed or ():
                if name not in arguments:
                    arguments[name] = typed[name] = value
                    default_pointers += (pointer,)
            typed_if_changed = None if typed is arguments else typed
            return BuiltArguments(
                self._instance(typed),
                canonical_bytes(arguments),
                default_pointers,
                typed_arguments=typed_if_changed,
            )
        findings = Findings()
        factory_values = (earlier_values or FactoryValues()) if self.has_factories else None
        built_from: Any
        if self.takes_object is not None:
            built_from, shown = _read(self.takes_object, arguments, None, findings, factory_values)
            instance = self._target(built_from)
        else:
            built_from, shown = self._typed(arguments, findings, factory_values)
            instance = self._instance(built_from)
        return _built(instance, built_from, canonical_bytes(shown), findings, factory_values)

    def _as_sent(self, arguments: JsonObject) -> dict[str, Any] | None:
        """Return the typed arguments if each is read exactly as it was sent, or None."""
        reader = self._at_once
        if reader is MISSING:
            reader = self._at_once = reading_at_once(self.converters, UNCHANGED_TYPES)
        if reader is not None:
            try:
                typed: dict[str, Any] = reader(arguments)
            except ValidationError:
                return None  # `_typed` finds out which one differs
            return typed
        for name, _, unchanged_type in self._converting:
            if name in arguments and arguments[name].__class__ is not unchanged_type:
                return None
        return arguments

    def _typed(
        self, arguments: JsonObject, findings: Findings, factory_values: FactoryValues | None
    ) -> tuple[Mapping[str, Any], JsonObject]:
        """Return the arguments as the author's hints type them, and as everybody else sees them."""
        typed: dict[str, Any] = dict(arguments)
        shown = dict(arguments)
        for name, converter, unchanged_type in self._converting:
            if name not in arguments or arguments[name].__class__ is unchanged_type:
                continue
            sent = arguments[name]
            if isinstance(converter, TypedReader):
                typed[name], shown[name] = _read(
                    converter, sent, (None, name), findings, factory_values
                )
            else:
                typed[name] = converted = _converted(converter, sent, name)
                if converted.__class__ is not sent.__class__:  # `3.0` became `3`
                    shown[name] = converted
        for name, declared in self.defaults.items():
            if name in arguments:
                continue
            default = declared.for_call(name, factory_values, self.converters.get(name))
            findings.defaults.append(((None, name), default.value, declared.factory))
            typed[name], shown[name] = default.value, default.shown
        return typed, shown

    def invoke(self, instance: Any, injected: Mapping[str, Any]) -> Any:
        """Run the call: return a coroutine, a generator of parts, or a blocking tool's result."""
        if self.is_class:
            return instance.run(**injected)
        if injected:
            return instance.function(**instance.arguments, **injected)
        return instance.function(**instance.arguments)


@names_wrong_types
def tool_of(thing: object) -> Tool[..., Any]:
    """Return the runtime half of anything that has a definition.

    Raises DefinitionError for an object that is not a tool.
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
        raise DefinitionError(
            f"{kind} wraps a tool, but is not one itself: put @tool above that decorator"
        )
    raise DefinitionError(f"{kind} is no tool: {_advice(thing)}")


_ADVICE_BY_MODULE = {
    "langchain": "convert it with from_langchain_tool(…) of toolcrib.bridges.langchain",
    "toolcrib.agent.": "convert it with agent.as_tool()",
    "builtins": "decorate it with @tool(visible=…)",
    "": "toolset(…) makes tools of an object's methods",
}


def _advice(thing: object) -> str:
    """Say how to make a tool of an object that is not one, by the module of its class."""
    if isinstance(thing, str | ModuleType):
        return "give the function itself, or discover(…) of the file or module that has it"
    module = type(thing).__module__
    return next(mend for start, mend in _ADVICE_BY_MODULE.items() if module.startswith(start))


def _of_definition(definition: ToolDefinition) -> Tool[..., Any]:
    """Return the tool for a handmade definition. A member that is not JSON fails here."""
    try:
        _ = definition.digest
    except ValueError:
        raise DefinitionError(
            f"the definition of '{definition.name}' has a schema, or arguments of an example, that "
            "cannot be written as JSON"
        ) from None
    validator, output_validator = _validators(definition)
    return Tool(definition, None, validator=validator, output_validator=output_validator)


def _validators(
    definition: ToolDefinition, factory: ValidatorFactory | None = None, *, lazy: bool = False
) -> tuple[Validator | None, Validator | None]:
    make = partial(compile_schema, definition.name, factory=factory, lazy=lazy)
    return (
        make("input_schema", definition.input_schema_json),
        make("output_schema", definition.output_schema_json),
    )


def _own_tool(cls: type) -> Tool[..., Any]:
    """Return the tool of exactly this class. A subclass has to be decorated, too."""
    class_tool = cls.__dict__.get(ATTRIBUTE)
    if not isinstance(class_tool, Tool):
        name = cls.__qualname__
        raise DefinitionError(
            f"{name} is no tool: decorate it with @tool(visible=…); toolset({name}(…)) makes tools of "
            "its methods"
        )
    return class_tool
