"""From a tool call to something that may run: resolve, parse, validate, instantiate.

Pure and synchronous; whatever a model gets wrong comes back as `Rejected`, never as an exception.
Arguments are judged by the author's own schema, whatever view of it the provider was sent: what was
made for a view is first put back into the author's terms, by the way back that the offer holds.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from pydantic import ValidationError

from toolcrib.errors import ErrorCode, Stage
from toolcrib.hydrate.parse import ParseFailure, parse_arguments, read_short
from toolcrib.schema.derive.unions import TooMuchWorkError
from toolcrib.schema.guard import escape_pointer
from toolcrib.schema.validator import Validator
from toolcrib.tools import Catalog, Tool, Tools, tool_of
from toolcrib.tools.component import NotAcceptedError, value_faults
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
from toolcrib.values.json import JsonObject
from toolcrib.values.offer import Offer, WayBack

_TOO_MANY_WAYS = "The arguments fit too many alternatives of the tool's schema. Send less."


def hydrate(call: ToolCall, offered: Offer | Catalog | Tools) -> HydrationResult:
    """Check one call against what was offered, and build the tool's instance. Runs nothing.

    Tools that are no Offer and no Catalog are made a Catalog at each call. Each failure has its stage
    (`parse`, `resolve`, `validate`, `instantiate`), its code and, where it is about one value, a JSON
    Pointer into the arguments.
    """
    started = time.perf_counter()
    if not call.complete or call.fault is not None:
        fault = call.fault or CallFault(ErrorCode.TRUNCATED)
        return _reject(call, started, fault.code, fault.message)
    if not isinstance(offered, Offer | Catalog):
        offered = Catalog(offered)
    if isinstance(offered, Catalog):
        entry = offered.entry(call.name)
        tool = ErrorCode.UNKNOWN_TOOL if entry is None else entry.tool
    else:
        tool = _offered(call.name, offered)
    if isinstance(tool, ErrorCode):
        return _reject(call, started, tool)
    sent, notes = read_short(call.arguments), call.notes
    if sent is None:
        parsed = parse_arguments(call.arguments)
        if isinstance(parsed, ParseFailure):
            return _reject(call, started, parsed.code, parsed.message, definition=tool.definition)
        sent, notes = parsed.value, call.notes + parsed.notes
    if isinstance(offered, Offer) and tool.validator is not None:
        way_back = offered.ways_back.get(call.name)
        restored = None if way_back is None else _restored(way_back, tool.validator, sent)
        if restored is not None:
            return _check(call, tool, sent, restored, (*notes, "restored"), started)
    return _check(call, tool, sent, sent, notes, started)


def hydrate_anew(hydrated: Hydrated, tool: Tool[..., Any]) -> HydrationResult:
    """A call once more, of the arguments that it has now: judged, and with an instance of its own.

    Whoever holds a call holds its arguments, too, and may have changed them since they were judged.
    """
    notes, arguments = hydrated.provenance.notes, hydrated.arguments
    started = time.perf_counter()
    judged = _check(hydrated.call, tool, arguments, arguments, notes, started)
    if isinstance(judged, Rejected):
        return judged
    return msgspec.structs.replace(judged, provenance=hydrated.provenance)


def _restored(way_back: WayBack, validator: Validator, sent: JsonObject) -> JsonObject | None:
    """What was sent for a provider's view, as the author's schema has it; None to take it as sent.

    The view decides first: arguments wrapped for it could happen to fit the author's schema too. A
    model that answered in the author's terms all the same is understood.
    """
    restored = way_back.restore(sent)
    if not isinstance(restored, dict) or restored == sent:
        return None
    if validator.is_valid(sent) and not validator.is_valid(restored):
        return None
    return restored


def _offered(name: str, offer: Offer) -> Tool[..., Any] | ErrorCode:
    thing = offer.tools.get(name)
    if thing is not None:
        return tool_of(thing)
    return ErrorCode.NOT_OFFERED if name in offer.known else ErrorCode.UNKNOWN_TOOL


def _check(
    call: ToolCall,
    tool: Tool[..., Any],
    sent: JsonObject,
    arguments: JsonObject,
    notes: tuple[str, ...],
    started: float,
) -> HydrationResult:
    definition, validator = tool.definition, tool.validator
    errors: tuple[HydrationError, ...] = ()
    instance = None
    if validator is None:
        if definition.no_schema_mode is None:
            errors = (_error(ErrorCode.NO_SCHEMA),)
    elif not validator.is_valid(arguments):
        errors = tuple(
            HydrationError(Stage.VALIDATE, ErrorCode.INVALID_ARGUMENTS, message, path)
            for path, _, message in validator.violations(arguments)
        ) or (_error(ErrorCode.INVALID_ARGUMENTS),)
    if not errors:
        try:
            instance = tool.build(arguments)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as raised:  # noqa: BLE001  an author's code, or a panic in Rust
            errors = _not_built(raised, arguments, definition)
    provenance = Provenance(
        call.provider_id,
        call.arguments,
        sent,
        validator is not None and not errors,
        None if validator is None else validator.info,
        time.perf_counter() - started,
        False,
        notes,
        definition.no_schema_mode,
    )
    if errors:
        return Rejected(call, errors, provenance, definition)
    return Hydrated(call, instance, definition, arguments, provenance)


def _not_built(
    raised: BaseException, arguments: JsonObject, definition: ToolDefinition
) -> tuple[HydrationError, ...]:
    """What a schema cannot say (an author's own checks) is judged by the author's own code.

    The text of what that raises may hold values: only the faults of converters are told.
    """
    if isinstance(raised, TooMuchWorkError):
        return (_error(ErrorCode.TOO_LARGE, _TOO_MANY_WAYS),)
    if isinstance(raised, NotAcceptedError):
        faults = raised.faults
    elif isinstance(raised, ValidationError):
        faults = value_faults(raised)
    else:
        faults = (((), "the tool does not accept these arguments"),)
    return tuple(
        HydrationError(
            Stage.INSTANTIATE,
            ErrorCode.INVALID_ARGUMENTS,
            text,
            _path(where, arguments, definition),
        )
        for where, text in faults
    )


def _path(
    location: tuple[int | str, ...], arguments: JsonObject, definition: ToolDefinition
) -> str:
    """A pointer in which only names that the schema itself holds appear.

    Steps that lead nowhere in the arguments are pydantic's own: the branch of a union, a key.
    """
    declared = definition.input_schema_json or ""
    node: Any = arguments
    shown = []
    for step in location:
        if isinstance(node, dict) and step in node:
            shown.append(escape_pointer(step) if f'"{step}"' in declared else "*")
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            shown.append(str(step))
        else:
            continue
        node = node[step]
    return "".join(f"/{token}" for token in shown)


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
    return Rejected(call, (_error(code, message),), provenance, definition)


def _error(code: ErrorCode, message: str | None = None) -> HydrationError:
    info = code.info
    return HydrationError(info.stage, code, message or info.text)
