"""A tool call on its way: as the model sent it, and what hydration made of it.

A call that may run and one that may not are different types, told apart by `match`. Arguments are
text, exactly as the model sent them, until hydration has read them.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal, Protocol, TypeAlias

import msgspec

from toolcrib.errors import ErrorCode, Stage
from toolcrib.values.definition import NoSchemaMode, ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue, Veiled, fresh
from toolcrib.values.typed import Checked


class PayloadRef(msgspec.Struct, frozen=True, gc=False):
    """Says which of a provider's answers a call stood in, so that a kept answer and a record match.

    `digest` is the SHA-256, in hex, and `size` the number of the bytes of a whole body, from its first
    bracket on; of a stream, those of the data of its events up to its end, each followed by a line
    feed. `position` is the call's place among the calls of that answer, from 0.
    """

    digest: str
    size: int
    position: int = 0


class CallFault(msgspec.Struct, frozen=True, gc=False):
    """Says why a call that did not arrive whole may not run: `truncated`, `contradictory`, or
    `invalid_json` of one that code made of what is none.

    `message` is what happened and what to do, where the code's own text is not enough; it holds
    nothing of what was sent.
    """

    code: ErrorCode
    message: str = ""


TOOL_CHANGED: Final = "tool_changed"
"""The note on a call whose tool is not the one that its model knew."""


class ToolCall(Checked, Veiled, msgspec.Struct, frozen=True, gc=False):
    """A tool call, as decoded from a reply.

    `id` is ours, unique in a conversation; `provider_id` is what the provider calls it (may be empty or
    repeated). `complete` is False if the call did not arrive whole: such a call never runs, and `fault`
    says why where the reply was not simply cut. `notes` names what the decoder had to take for it; they
    reach the record:

    * `written_in_text`: it stood in the text;
    * `empty_arguments`: the provider said that it ended and gave no text of arguments;
    * `empty_object_first`: an empty object stood before its arguments, and was dropped;
    * `said_twice`: its arguments, or all of it under its id, stood there more than once;
    * `streamed_otherwise`: its pieces said something else than the whole that followed them;
    * `after_end`: the provider sent more after it had said that this was the end;
    * `state_dropped`: what its reply brought to be sent back could not be saved, and is not sent back;
    * `tool_changed`: its run goes on in another process, where the tool's definition is another one.

    Raises ValueError for an id with a lone surrogate, which no log can hold.
    """

    veiled: ClassVar[tuple[str, ...]] = ("arguments",)
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
    """Says which validator judged the arguments, and when it was compiled (seconds since the epoch)."""

    name: str
    version: str
    compiled_at: float


class HydrationError(msgspec.Struct, frozen=True, gc=False):
    """Says why a call was rejected. `path` is a JSON Pointer into the
    arguments, `*` for undeclared keys.

    The message is made from the schema and the kind of the failure, never from the value.
    """

    stage: Stage
    code: ErrorCode
    message: str
    path: str = ""


class Provenance(Veiled, msgspec.Struct, frozen=True, gc=False):
    """Says how the arguments came to be: for the application and for audit, never for UI or logs.

    `sent` is the JSON text that was read, and `parsed` what it says, None where parsing failed: what
    was sent, without the defaults that became part of the call. `seconds` is the time that hydration
    took; `notes` names every liberty taken in reading (the call's own, `single_quotes`,
    `empty_arguments`), and `restored` where arguments made for a provider's view were put back into
    the author's terms. Of a repaired call, `repaired_arguments` is the text that was judged in place
    of `arguments`, which stay as the model sent them, and `repaired_by` says who made it.
    """

    veiled: ClassVar[tuple[str, ...]] = ("arguments", "sent", "repaired_arguments")

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


class FactoryMade(Protocol):
    """The values that default factories made for one call. `anew` says that one ran again, since JSON
    could not keep what it made, and `lost` that nothing shows whether this is the same value."""

    anew: bool
    lost: bool


class Building(Protocol):
    """Builds the instances of one call; `sent` is what they are built from. `pinned` has, as JSON, what
    default factories made, which run once a call: by factory, in the order of their calls.
    `made` has the very values, for the same process. `normalised` points to what an author's own
    validator changed. `distrusted` says that the tool was imported, and that nobody trusts it."""

    @property
    def sent(self) -> JsonObject: ...

    @property
    def pinned(self) -> dict[str, JsonValue]: ...

    @property
    def made(self) -> FactoryMade | None: ...

    @property
    def normalised(self) -> tuple[str, ...]: ...

    @property
    def distrusted(self) -> bool: ...

    def another(self) -> Any:
        """Return an instance that nobody else has."""
        ...


class Hydrated(Veiled, msgspec.Struct, frozen=True):
    """A call that was whole, parsed and valid. Nothing has run.

    `canonical` is the one value that counts, the effective arguments: what was sent, in canonical form
    (RFC 8785), with the defaults of what was not; `defaults` points (JSON Pointers) to those. Whoever
    looks at `arguments` or `tool` gets one of their own: nothing that is done to it reaches anybody
    else, or the instance that runs.
    """

    veiled: ClassVar[tuple[str, ...]] = ("canonical", "building")

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

    `retryable` is what the author's own `ToolError` said of that, if it said anything.
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
