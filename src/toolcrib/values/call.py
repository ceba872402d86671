"""A tool call on its way: as the model sent it, and what hydration made of it.

A call that may run and one that may not are different types, told apart by `match`. Arguments are
text, exactly as the model sent them, until hydration has read them.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from toolcrib.errors import ErrorCode, Stage
from toolcrib.values.definition import NoSchemaMode, ToolDefinition
from toolcrib.values.json import JsonObject


class ToolCall(msgspec.Struct, frozen=True, gc=False):
    """One call as decoded from a reply.

    `id` is ours, unique in the thread; `provider_id` is what the provider calls it (may be empty or
    repeated). `complete` is False if the reply was cut: such a call never runs. `notes` names what the
    decoder had to take for it: `written_in_text` where it stood in the text. They reach the record.
    """

    id: str
    provider_id: str
    name: str
    arguments: str
    complete: bool = True
    notes: tuple[str, ...] = ()


class ValidatorInfo(msgspec.Struct, frozen=True, gc=False):
    """Which validator judged the arguments, and when it was compiled (seconds since the epoch)."""

    name: str
    version: str
    compiled_at: float


class HydrationError(msgspec.Struct, frozen=True, gc=False):
    """Why a call was rejected. `path` is a JSON Pointer into the arguments, `*` for undeclared keys.

    The message is made from the schema and the kind of the failure, never from the value.
    """

    stage: Stage
    code: ErrorCode
    message: str
    path: str = ""


class Provenance(msgspec.Struct, frozen=True, gc=False):
    """How the arguments came to be: for the application and for audit, never for UI or logs.

    `parsed` is what the text says, None where parsing failed; `seconds` is the time that hydration
    took; `notes` names every liberty taken in reading (the call's own, `single_quotes`,
    `empty_arguments`), and `restored` where arguments made for a provider's view were put back into
    the author's terms. Of a repaired call, `repaired_arguments` is the text that was judged in place
    of `arguments`, which stay as the model sent them, and `repaired_by` says who made it.
    """

    provider_id: str
    arguments: str
    parsed: JsonObject | None = None
    validated: bool = False
    validator: ValidatorInfo | None = None
    seconds: float = 0.0
    repaired: bool = False
    notes: tuple[str, ...] = ()
    no_schema_mode: NoSchemaMode | None = None
    repaired_arguments: str | None = None
    repaired_by: str = ""


class Hydrated(msgspec.Struct, frozen=True):
    """A call that was whole, parsed and valid, and the instance that it built. Nothing has run."""

    call: ToolCall
    tool: Any
    definition: ToolDefinition
    arguments: JsonObject
    provenance: Provenance

    @property
    def success(self) -> Literal[True]:
        return True

    @property
    def errors(self) -> tuple[HydrationError, ...]:
        return ()


class Rejected(msgspec.Struct, frozen=True):
    """A call that cannot run, and why."""

    call: ToolCall
    errors: tuple[HydrationError, ...]
    provenance: Provenance
    definition: ToolDefinition | None = None

    @property
    def success(self) -> Literal[False]:
        return False

    @property
    def tool(self) -> None:
        return None


HydrationResult: TypeAlias = Hydrated | Rejected
