"""Turn a tool call into something that may run: resolve, parse, validate, instantiate.

Pure and synchronous. Every mistake of a model comes back as `Rejected`, never as an exception.
Arguments are validated against the author's own schema, whatever view of it the provider was sent:
the offer's argument restorer first translates arguments made for a view back into the author's
terms.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from types import NoneType
from typing import Any, ClassVar, TypeAlias
from weakref import WeakKeyDictionary

import msgspec
from pydantic import ValidationError
from pydantic_core import to_json

from toolcrib.errors import ErrorCode, MissingExtraError, Stage, ToolError
from toolcrib.failures import Explained, log_raised, log_refused, words_of
from toolcrib.hydration.parse import Parsed, read_arguments, read_short
from toolcrib.schema.derive.factories import AddedDefaults, FactoryFailed, FactoryValues, Pinned
from toolcrib.schema.derive.roundtrip import A_VALIDATOR, FoundDefault, TooMuchWorkError
from toolcrib.schema.references import remove_at, steps_of
from toolcrib.schema.validator import Validator
from toolcrib.tools import Catalog, Tool, Tools, tool_of
from toolcrib.tools.component import (
    BuiltArguments,
    NotAcceptedError,
    copy_of,
    same_kind,
    value_faults,
)
from toolcrib.values.call import (
    CallFault,
    Hydrated,
    HydrationError,
    HydrationResult,
    Provenance,
    Rejected,
    ToolCall,
)
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue, Redacted, escape_pointer, fresh, sentence
from toolcrib.values.message import Offer
from toolcrib.values.typed import check_type


def hydrate(
    call: ToolCall,
    offered: Offer | Catalog | Tools,
    *,
    pinned: Pinned = None,
    on_exception: Callable[[ToolCall, BaseException], None] | None = None,
) -> HydrationResult:
    """Check one call against what was offered, and build the tool's instance. Runs nothing.

    Tools that are neither an Offer nor a Catalog are made into a Catalog at each call. Each failure
    has its stage (`parse`, `resolve`, `validate`, `instantiate`), its code and, if it concerns one
    value, a JSON Pointer into the arguments.

    `pinned` holds the values that this call's default factories made earlier
    (`Hydrated.building.pinned`), because a factory runs once per call. An exception from a
    constructor, a validator or a factory that is not a refusal of the arguments ends the call as
    `unusable_tool`. It is always logged, and passed to `on_exception`.
    """
    if call.__class__ is not ToolCall:
        check_type("call", call, ToolCall, "a ToolCall")
    if pinned is not None or not (on_exception is None or callable(on_exception)):
        _check_options(pinned, on_exception)
    started = time.perf_counter()
    if not call.complete or call.fault is not None:
        fault = call.fault or CallFault(ErrorCode.TRUNCATED)
        return _reject(call, started, fault.code, fault.message)
    offer: Offer | None = None
    if isinstance(offered, Catalog):
        entry = offered.by_name.get(call.name)
        tool = ErrorCode.UNKNOWN_TOOL if entry is None else entry.tool
    elif isinstance(offered, Offer):
        offer, tool = offered, _find_offered(call.name, offered)
    else:
        return hydrate(call, Catalog(offered), pinned=pinned, on_exception=on_exception)
    if not isinstance(tool, Tool):
        return _reject(call, started, tool)
    definition = tool.definition
    parsed = read_short(call.arguments) or read_arguments(call.arguments)
    if not isinstance(parsed, Parsed):
        return _reject(call, started, parsed.code, parsed.message, definition=definition)
    restored = parsed if offer is None else _restore(offer, tool, call, parsed)
    earlier_values = None if pinned is None else FactoryValues.of(pinned)
    undeclared = () if definition.closed else _undeclared(tool, restored.value)
    report_arguments = (call, tool, on_exception)
    result, errors, retryable = built(
        tool, restored, earlier_values, _report_failed_call, report_arguments
    )
    notes, validator = call.notes + restored.notes + undeclared, tool.validator
    if result is not None and result.normalised:
        notes = (*notes, "normalised")
    provenance = Provenance(
        call.provider_id,
        call.arguments,
        parsed.data,
        validator is not None and not errors,
        None if validator is None else validator.info,
        time.perf_counter() - started,
        False,
        notes,
        definition.no_schema_mode,
    )
    if result is None or errors:
        return Rejected(call, errors, provenance, definition, retryable)
    sent, canonical, values = restored.data, result.canonical, result.factory_values
    building = _Build(tool, sent, canonical, result, values, result.normalised)
    return Hydrated(call, definition, canonical, provenance, building, result.defaults)


_PINNED = (Mapping, FactoryValues, NoneType)


def _check_options(pinned: object, on_exception: object) -> None:
    check_type("pinned", pinned, _PINNED, "a mapping, such as `Hydrated.building.pinned`")
    if not callable(on_exception):
        check_type("on_exception", on_exception, NoneType, "a function")


# The exceptions by which an author's code refuses arguments, for the model to correct. A ValueError
# or AssertionError of a validator has become a ValidationError by then. Anything else it raises,
# and anything that a default factory or a schema validator raises, is a failure: the author sees
# it, and the model is never told that its arguments are at fault.
_Refusal: TypeAlias = ToolError | NotAcceptedError | ValidationError | TooMuchWorkError
_REFUSALS = (ToolError, NotAcceptedError, ValidationError, TooMuchWorkError)
Failed: TypeAlias = Callable[[str, BaseException], None]
"""Reports a failure of the author's code, or ours: which part failed, and the exception."""


class MadeOtherwise(Explained):
    """An author's validator turned valid arguments into a value that its hints do not accept."""


class OtherArguments(Exception):  # noqa: N818  states why a call does not run; its text is fixed
    """Building again would not give an instance with the arguments that were decided on."""


class _Build(Redacted, msgspec.Struct, eq=False):
    """The `Building` of one call. Each instance is built from its own parse.

    Nobody has seen the instance that was built, and compared with what was sent, during hydration.
    That one runs. Anyone else who asks gets another instance.
    """

    redacted: ClassVar[tuple[str, ...]] = ("_sent", "_canonical", "_unseen", "_factory_values")

    _tool: Tool[..., Any]
    _sent: bytes
    _canonical: bytes
    _unseen: BuiltArguments | None
    _factory_values: FactoryValues | None
    normalised: tuple[str, ...]

    @property
    def sent(self) -> JsonObject:
        return fresh(self._sent)

    @property
    def pinned(self) -> dict[str, JsonValue]:
        return {} if self._factory_values is None else self._factory_values.json()

    @property
    def factory_values(self) -> FactoryValues | None:
        return self._factory_values

    @property
    def distrusted(self) -> bool:
        return self._tool.distrusted

    def another(self) -> Any:
        """Build another instance or, where building gives a different value each time, return a copy.

        A default factory or an author's validator may make a value that JSON cannot restore. If
        that value cannot be copied either, raise the error that building raised.
        """
        try:
            return self.anew(self._tool).instance
        except (OtherArguments, NotAcceptedError):
            if self._unseen is None:
                raise
            with suppress(Exception):
                return copy_of(self._unseen.instance)
            raise

    def anew(self, tool: Tool[..., Any]) -> BuiltArguments:
        values = self._factory_values
        result = tool.make(self.sent, None if values is None else values.again())
        if result.canonical != self._canonical:
            raise OtherArguments("the tool reads a different value from these arguments each time")
        return result


def instance_of(hydrated: Hydrated, tool: Tool[..., Any]) -> Any:
    """Return the instance for a call that is about to run, using the tool of this process.

    Raises OtherArguments if it does not have the arguments that were decided on, and whatever the
    author's constructor raises.
    """
    if hydrated.__class__ is not Hydrated or tool.__class__ is not Tool:
        check_type("hydrated", hydrated, Hydrated, "a Hydrated")
        check_type("tool", tool, Tool, "a Tool")
    building = hydrated.building
    if not isinstance(building, _Build):
        raise OtherArguments("only a call that was hydrated can run")
    result, building._unseen = building._unseen, None  # noqa: SLF001  hand it out only once
    if result is None or tool is not building._tool:  # noqa: SLF001
        result = building.anew(tool)
    if result.canonical != hydrated.canonical:
        raise OtherArguments("these are not the arguments that were decided on")
    return result.instance


def added_to(hydrated: Hydrated) -> AddedDefaults:
    """Return where the defaults of a call that has not run yet are, and what its factories gave."""
    check_type("hydrated", hydrated, Hydrated, "a call that was hydrated")
    building = hydrated.building
    if not isinstance(building, _Build) or building._unseen is None:  # noqa: SLF001
        raise OtherArguments("only a hydrated call that has not run yet can be edited")
    unseen, values = building._unseen, building._factory_values  # noqa: SLF001
    parameters: list[FoundDefault] = [
        ((None, steps_of(p)[0]), None, None) for p in hydrated.defaults
    ]
    factory_values = [] if values is None else values.returned
    return AddedDefaults.of(
        unseen.found_defaults or parameters, factory_values, unseen.sets, unseen.typed_arguments
    )


def _restore(offer: Offer, tool: Tool[..., Any], call: ToolCall, parsed: Parsed) -> Parsed:
    """Translate arguments for a provider's view into the author's terms.

    Translated arguments get the note `restored`.

    The view is tried first, because arguments wrapped for it could happen to fit the author's
    schema too. Arguments that a model sent in the author's terms anyway are accepted as they are.
    """
    restorer, validator, arguments = offer.restorers.get(call.name), tool.validator, parsed.value
    if restorer is None or validator is None:
        return parsed
    restored = restorer.restore(arguments)
    if not isinstance(restored, dict) or restored == arguments:
        return parsed
    try:
        if validator.is_valid(arguments) and not validator.is_valid(restored):
            return parsed
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001, S110  validation follows, and fails again
        pass
    unrounded = None if parsed.unrounded is None else restorer.restore(parsed.unrounded)
    return Parsed(restored, to_json(restored), (*parsed.notes, "restored"), unrounded)


def _find_offered(name: str, offer: Offer) -> Tool[..., Any] | ErrorCode:
    offered_tool = offer.tools.get(name)
    if offered_tool is not None:
        return tool_of(offered_tool)
    return ErrorCode.NOT_OFFERED if name in offer.known else ErrorCode.UNKNOWN_TOOL


def _undeclared(tool: Tool[..., Any], arguments: JsonObject) -> tuple[str, ...]:
    """Return the note on arguments that the schema accepts but does not name. No record shows
    them."""
    count = len(arguments.keys() - tool.definition.properties)
    return (f"undeclared:{count}",) if count and tool.validator is not None else ()


_VALIDATE, _INSTANTIATE = Stage.VALIDATE, Stage.INSTANTIATE  # reading them from the class is slow


def built(
    tool: Tool[..., Any],
    parsed: Parsed,
    earlier_values: FactoryValues | None,
    report: Callable[..., None],
    report_arguments: tuple[Any, ...] = (),
) -> tuple[BuiltArguments | None, tuple[HydrationError, ...], bool | None]:
    """Validate arguments, parse them once, and compare the value with what was sent.

    Return what was built, or errors, and whether the author said that the call may be retried. A
    failure of the author's code, or ours, is an `unusable_tool` error; it is also reported to
    `report`, which is a `Failed` that takes the items of `report_arguments` first.
    """
    definition, validator, arguments = tool.definition, tool.validator, parsed.value
    stage = _VALIDATE
    try:
        if validator is None or not validator.is_valid(arguments):
            errors = _violations(validator, definition, arguments)
            if errors:
                return None, errors, None
        stage = _INSTANTIATE
        result = tool.make(arguments, earlier_values)
        if result.normalised:
            stage = _VALIDATE
            if validator is not None and not validator.is_valid(_without_defaults(result)):
                return (
                    result,
                    _errors_of_validators(tool, parsed, result, partial(report, *report_arguments)),
                    None,
                )
    except KeyboardInterrupt:
        raise
    except BaseException as raised:  # noqa: BLE001  the author's code, or a panic in Rust
        cause = raised.__cause__ if isinstance(raised, FactoryFailed) else raised
        retryable = words_of(cause or raised).retryable
        report_failure = partial(report, *report_arguments)
        if stage is Stage.VALIDATE or not isinstance(raised, _REFUSALS):
            return None, _report_failure(raised, stage, report_failure), retryable
        return None, _errors_of_refusal(raised, tool, fresh(parsed.data), report_failure), retryable
    if parsed.unrounded is None:
        return result, (), None
    values = None if result.factory_values is None else result.factory_values.again()
    unrounded = Parsed(parsed.unrounded, parsed.data)
    return result, *built(tool, unrounded, values, report, report_arguments)[1:]


def _report_failed_call(
    call: ToolCall,
    tool: Tool[..., Any],
    on_exception: Callable[[ToolCall, BaseException], None] | None,
    part: str,
    raised: BaseException,
) -> None:
    log_raised(f"tool '{tool.definition.name}', {part},", raised)
    if on_exception is not None:
        on_exception(call, raised)


def _report_failure(
    raised: BaseException, stage: Stage, report: Failed
) -> tuple[HydrationError, ...]:
    """Report to the author what their code, or ours, raised. Return the error for the model, which
    never blames its arguments."""
    part = "its validator" if stage is Stage.VALIDATE else "when it was given its arguments"
    message = ErrorCode.UNUSABLE_TOOL.info.text
    if isinstance(raised, FactoryFailed):
        part = f"the default factory of '{raised.field}'"
        message = f"The tool cannot be used: the default of '{raised.field}' could not be made."
        raised = raised.__cause__ or raised
    report(part, raised)
    if isinstance(raised, MissingExtraError):
        message = raised.advice
    message = sentence(words_of(raised).text) or message
    return (HydrationError(stage, ErrorCode.UNUSABLE_TOOL, message),)


def _violations(
    validator: Validator | None, definition: ToolDefinition, arguments: JsonObject
) -> tuple[HydrationError, ...]:
    if validator is None:
        return () if definition.no_schema_mode is not None else (error_of(ErrorCode.NO_SCHEMA),)
    return tuple(
        HydrationError(Stage.VALIDATE, ErrorCode.INVALID_ARGUMENTS, message, path)
        for path, _, message in validator.violations(arguments)
    ) or (error_of(ErrorCode.INVALID_ARGUMENTS),)


def _without_defaults(result: BuiltArguments) -> JsonObject:
    """Return the arguments as validators changed them, without defaults, which no schema judges."""
    arguments = fresh(result.canonical)
    for pointer in reversed(result.defaults):  # backwards, so that array indexes stay valid
        remove_at(arguments, pointer)
    return arguments


def _errors_of_validators(
    tool: Tool[..., Any], parsed: Parsed, result: BuiltArguments, report: Failed
) -> tuple[HydrationError, ...]:
    """Return the errors for values that validators produced and the schema does not accept.

    The fault is the author's if the produced value has another type than the one sent, and the
    schema accepts the value that was sent.
    """
    text = "the tool's own validator turns this value into one that does not fit the tool's schema"
    sent, produced = fresh(parsed.data), _without_defaults(result)
    retyped = [
        path for path in result.normalised if _is_other(_at(sent, path), _at(produced, path))
    ]
    for path in retyped:
        parent, _, step = path.rpartition("/")
        holder = _at(produced, parent)
        holder[int(step) if isinstance(holder, list) else steps_of(f"/{step}")[0]] = _at(sent, path)
    by_code = bool(retyped and tool.validator is not None and tool.validator.is_valid(produced))
    faults = tuple(
        (tuple(steps_of(path)), text) for path in (retyped if by_code else result.normalised)
    )
    functions = dict.fromkeys(
        name for location, _ in faults for name in tool.code_at("".join(location[:1]))
    )
    error = NotAcceptedError(faults, tuple(functions), by_code=by_code)
    return _errors_of_refusal(error, tool, sent, report)


def _at(value: Any, pointer: str) -> Any:
    """Return the value at a JSON Pointer, or `...` if there is none."""
    try:
        for token in steps_of(pointer):
            value = value[int(token) if isinstance(value, list) else token]
    except (LookupError, TypeError, ValueError):
        return ...
    return value


def _is_other(sent: Any, produced: Any) -> bool:
    return sent is not ... and produced is not ... and not same_kind(sent, produced)


_MOST_NAMED = 3
_MOST_WARNED = 100
_WARNED: WeakKeyDictionary[Tool[..., Any], set[str]] = WeakKeyDictionary()


def _warn(tool: Tool[..., Any], places: Iterable[str], functions: tuple[str, ...]) -> None:
    """Warn the author, once for each place, that their code may be why a valid value is refused."""
    description = _places_text(re.sub(r"/[0-9]+(?![^/])", "/*", place) for place in places)
    descriptions = _WARNED.setdefault(tool, set())
    if description not in descriptions and len(descriptions) < _MOST_WARNED:
        descriptions.add(description)
        log_refused(tool.definition.name, description, functions[:_MOST_NAMED])


def _places_text(places: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(place or "the top" for place in places))


def _errors_of_refusal(
    raised: _Refusal, tool: Tool[..., Any], arguments: JsonObject, report: Failed
) -> tuple[HydrationError, ...]:
    """Return the errors from an author's own checks, which no schema can state.

    The text of a `ToolError` is meant for the model. The text of any other error may hold values,
    so only the faults that converters report are passed on.
    """
    if isinstance(raised, TooMuchWorkError):
        return (error_of(ErrorCode.TOO_LARGE, raised.text),)
    if isinstance(raised, ToolError):
        message = sentence(words_of(raised).text) or ErrorCode.INVALID_ARGUMENTS.info.text
        return (HydrationError(Stage.INSTANTIATE, ErrorCode.INVALID_ARGUMENTS, message),)
    faults = raised.faults if isinstance(raised, NotAcceptedError) else value_faults(raised)
    places = [_path(where, arguments, tool.definition) for where, _ in faults]
    if isinstance(raised, NotAcceptedError) and raised.by_code:
        functions = " or ".join(raised.code[:_MOST_NAMED] or A_VALIDATOR)
        error = MadeOtherwise(
            f"{functions} turned the valid value at {_places_text(places)} into one that the tool"
            " cannot take: a validator must return its value, and only a validator of a single field"
            " may change it"
        )
        return _report_failure(error, Stage.INSTANTIATE, report)
    if isinstance(raised, NotAcceptedError) and raised.code:
        _warn(tool, places, raised.code)
    return tuple(
        HydrationError(Stage.INSTANTIATE, ErrorCode.INVALID_ARGUMENTS, text, place)
        for place, (_, text) in zip(places, faults, strict=True)
    )


def _path(
    location: tuple[int | str, ...], arguments: JsonObject, definition: ToolDefinition
) -> str:
    """Return a pointer that contains only names from the schema itself.

    Steps that lead nowhere in the arguments are pydantic's own: the branch of a union, a key.
    """
    declared = definition.input_schema_json or ""
    node: Any = arguments
    tokens = []
    for step in location:
        if isinstance(node, dict) and step in node:
            tokens.append(escape_pointer(step) if f'"{step}"' in declared else "*")
        elif isinstance(node, list) and str(step).isdecimal() and int(step) < len(node):
            step = int(step)  # noqa: PLW2901
            tokens.append(str(step))
        else:
            continue
        node = node[step]
    return "".join(f"/{token}" for token in tokens)


def _reject(
    call: ToolCall,
    started: float,
    code: ErrorCode,
    message: str | None = None,
    *,
    definition: ToolDefinition | None = None,
) -> Rejected:
    seconds = time.perf_counter() - started
    provenance = Provenance(call.provider_id, call.arguments, seconds=seconds, notes=call.notes)
    return Rejected(call, (error_of(code, message),), provenance, definition)


def error_of(code: ErrorCode, message: str | None = None) -> HydrationError:
    """Return the error of this code, with its stage and, unless a message is given, its text."""
    info = code.info
    return HydrationError(info.stage, code, message or info.text)
