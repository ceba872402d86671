"""A tool call: as the model sent it, and what hydration made of it.

A call that may run and one that may not have different types, which `match` tells apart. Arguments
are text, exactly as the model sent them, until hydration has parsed them.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

import msgspec

from toolcrib.errors import ErrorCode, Stage
from toolcrib.values.definition import NoSchemaMode, ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue, Redacted, fresh
from toolcrib.values.typed import Checked

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


def name_in_records(name: str) -> str:
    """Return a name that no tool has as records show it: whole only if it looks like a name."""
    return name if _NAME.fullmatch(name) else "*"


class PayloadRef(msgspec.Struct, frozen=True, gc=False):
    """Identifies the provider answer that contained a call, to match stored answers to records.

    For a complete body, `digest` is its SHA-256 in hex and `size` its length in bytes, from the
    first bracket on. For a stream, both are taken over the data of its events up to its end, each
    followed by a line feed. `position` is the call's index among the calls of that answer, from 0.
    """

    digest: str
    size: int
    position: int = 0


class CallFault(msgspec.Struct, frozen=True, gc=False):
    """Says why a call that did not arrive whole may not run.

    `code` is `truncated`, `contradictory`, or `invalid_json` for a call that application code built
    from a value that is not JSON. `message` says what happened and what to do, where the code's own
    text is not enough. It contains nothing of what was sent.
    """

    code: ErrorCode
    message: str = ""


TOOL_CHANGED: Final = "tool_changed"
"""The note on a call whose tool has changed since the model saw it."""


class ToolCall(Checked, Redacted, msgspec.Struct, frozen=True, gc=False):
    """A tool call, as decoded from a reply.

    `id` is assigned by toolcrib and unique in a conversation. `provider_id` is the provider's own
    id, which may be empty or repeated. If the call did not arrive whole, `complete` is False, and
    the call never runs; `fault` then says why, unless the reply was simply cut. `notes` names what
    the decoder had to assume or tolerate, and is copied to the record:

    * `written_in_text`: the call was written in the text of the reply;
    * `empty_arguments`: the provider ended the call and sent no arguments;
    * `empty_object_first`: an empty object preceded the arguments, and was dropped;
    * `said_twice`: the arguments, or the whole call under its id, arrived more than once;
    * `streamed_otherwise`: the streamed pieces differ from the complete call that followed;
    * `after_end`: the provider sent more after it had signalled the end;
    * `state_dropped`: provider state to be sent back could not be saved, and is not sent back;
    * `tool_changed`: the run was resumed in another process, where the tool's definition differs.

    Raises ValueError for an id with a lone surrogate, which no log can hold.
    """

    redacted: ClassVar[tuple[str, ...]] = ("arguments",)
    logged: ClassVar[tuple[str, ...]] = ("id", "provider_id")

    id: str
    name: str
    arguments: str
    provider_id: str = ""
    complete: bool = True
    notes: tuple[str, ...] = ()
    fault: CallFault | None = None
    payload: PayloadRef | None = None


class ValidatorInfo(msgspec.Struct, frozen=True, gc=False):
    """Says which validator checked the arguments, and when it was compiled (epoch seconds)."""

    name: str
    version: str
    compiled_at: float


class HydrationError(msgspec.Struct, frozen=True, gc=False):
    """Says why a call was rejected. `path` is a JSON Pointer into the arguments, with `*` for
    undeclared keys.

    The message is built from the schema and the kind of failure, never from the value.
    """

    stage: Stage
    code: ErrorCode
    message: str
    path: str = ""


class Provenance(Redacted, msgspec.Struct, frozen=True, gc=False):
    """Says where the arguments came from. For the application and the audit log, never for a UI or
    other logs.

    `sent` is the JSON text that was parsed, and `parsed` its value, None if parsing failed. Neither
    includes the defaults that became part of the call. `seconds` is the time that hydration took.
    `notes` names everything that was tolerated while reading (the call's own notes,
    `single_quotes`, `empty_arguments`), and `restored` if arguments made for a provider's view were
    translated back into the author's terms. For a repaired call, `repaired_arguments` is the text
    that was checked in place of `arguments`, which stay as the model sent them, and `repaired_by`
    names the repairer.
    """

    redacted: ClassVar[tuple[str, ...]] = ("arguments", "sent", "repaired_arguments")

    provider_id: str
    arguments: str
    sent: bytes | None = None
    validated: bool = False
    validator: ValidatorInfo | None = None
    seconds: float = 0.0
    repaired: bool = False
    notes: tuple[str, ...] = ()
    no_schema_mode: NoSchemaMode | None = None
    repaired_arguments: str | None = None
    repaired_by: str = ""

    @property
    def parsed(self) -> JsonObject | None:
        return None if self.sent is None else fresh(self.sent)


class FactoryResults(Protocol):
    """The values that default factories made for one call.

    `anew` says that a factory ran again because JSON could not hold its value. `lost` says that it
    is unknown whether the value is the same as before.
    """

    anew: bool
    lost: bool


class Building(Protocol):
    """Builds the instances of one call from `sent`.

    Default factories run once per call. `pinned` holds what they made as JSON, by factory and in
    the order of their calls; `factory_values` holds the values themselves, for use in the same
    process. `normalised` points to what an author's own validator changed. `distrusted` says that
    the tool was imported and that nobody has trusted it.
    """

    @property
    def sent(self) -> JsonObject: ...

    @property
    def pinned(self) -> dict[str, JsonValue]: ...

    @property
    def factory_values(self) -> FactoryResults | None: ...

    @property
    def normalised(self) -> tuple[str, ...]: ...

    @property
    def distrusted(self) -> bool: ...

    def another(self) -> Any:
        """Return an instance that nothing else refers to."""
        ...


class Hydrated(Redacted, msgspec.Struct, frozen=True):
    """A call that arrived whole, parsed and validated. Nothing has run.

    `canonical` holds the effective arguments, the only value that counts: what was sent plus the
    defaults of what was not, in canonical form (RFC 8785). `defaults` points (JSON Pointers) to
    those defaults. Each access to `arguments` or `tool` gives a new object, so that changing it
    affects neither other readers nor the instance that runs.
    """

    redacted: ClassVar[tuple[str, ...]] = ("canonical", "building")

    call: ToolCall
    definition: ToolDefinition
    canonical: bytes
    provenance: Provenance
    building: Building
    defaults: tuple[str, ...] = ()

    @property
    def arguments(self) -> JsonObject:
        """A fresh copy of the effective arguments."""
        return fresh(self.canonical)

    @property
    def tool(self) -> Any:
        """A fresh instance, built like the one that will run."""
        return self.building.another()

    @property
    def success(self) -> Literal[True]:
        return True

    @property
    def errors(self) -> tuple[HydrationError, ...]:
        return ()


class Rejected(msgspec.Struct, frozen=True):
    """A call that cannot run, and why.

    `retryable` is what the author's own `ToolError` said about retrying, or None.
    """

    call: ToolCall
    errors: tuple[HydrationError, ...]
    provenance: Provenance
    definition: ToolDefinition | None = None
    retryable: bool | None = None

    @property
    def success(self) -> Literal[False]:
        return False

    @property
    def tool(self) -> None:
        return None


HydrationResult: TypeAlias = Hydrated | Rejected
