"""Hydrated calls and contexts, made to measure."""

from __future__ import annotations

from typing import Any

import msgspec

from toolcrib import ALL, Caller, Catalog, Hydrated, PolicyContext, ToolCall, hydrate, tool
from toolcrib.values.context import RunTally
from toolcrib.values.decision import ANONYMOUS
from toolcrib.values.definition import NoSchemaMode
from toolcrib.values.record import ToolInvocationRecord

CANARY = "canary-7f3a"


@tool(visible=ALL)
async def subject(text: str) -> str:
    """Do it."""
    return text


def _hydrated() -> Hydrated:
    made = hydrate(ToolCall("c", "subject", f'{{"text": "{CANARY}"}}'), Catalog([subject]))
    assert isinstance(made, Hydrated)
    return made


_CALL = _hydrated()


def call_of(
    name: str = "subject",
    *,
    mode: NoSchemaMode | None = None,
    repaired: bool = False,
    notes: tuple[str, ...] = (),
    **marks: Any,
) -> Hydrated:
    """A call of a tool with these annotations; its argument is the canary."""
    definition = msgspec.structs.replace(
        _CALL.definition,
        name=name,
        no_schema_mode=mode,
        annotations=msgspec.structs.replace(_CALL.definition.annotations, **marks),
    )
    provenance = msgspec.structs.replace(
        _CALL.provenance,
        repaired=repaired,
        validated=mode is None,
        no_schema_mode=mode,
        notes=notes,
    )
    return msgspec.structs.replace(_CALL, definition=definition, provenance=provenance)


def context_of(tally: RunTally | None = None, caller: Caller = ANONYMOUS) -> PolicyContext:
    return PolicyContext(caller, RunTally() if tally is None else tally)


def over(name: str, seconds: float) -> ToolInvocationRecord:
    """The record of a call that is over."""
    return ToolInvocationRecord(
        id="c", name=name, status="completed", started_at=0.0, seconds=seconds
    )
