"""Tools without a schema: refused, unless by leave and in a mode; marked wherever they are recorded."""

from __future__ import annotations

from typing import Any

import pytest

from toolcrib import (
    ALL,
    Approve,
    Caller,
    Catalog,
    Completed,
    Failed,
    Hydrated,
    ToolCall,
    ToolRunner,
    hydrate,
    tool,
)
from toolcrib.errors import DefinitionError
from toolcrib.tools.build import MODES


def anything(**arguments: Any) -> int:
    """Take anything."""
    return len(arguments)


def test_refused_by_default() -> None:
    for options in ({}, {"allow_no_schema": True}, {"no_schema_mode": "full"}):
        with pytest.raises(DefinitionError, match=r"'anything' has no schema: .*allow_no_schema"):
            tool(visible=ALL, **options)(anything)
    with pytest.raises(DefinitionError, match="has no schema"):
        Catalog.from_definitions([{"name": "anything", "description": ""}])


@pytest.mark.parametrize("mode", MODES)
async def test_each_mode_is_recorded_as_not_validated(mode: Any) -> None:
    made = tool(visible=ALL, allow_no_schema=True, no_schema_mode=mode, read_only=True)(anything)
    call = ToolCall("c", "anything", '{"a":1,"b":2}')
    hydrated = hydrate(call, Catalog([made]))
    assert isinstance(hydrated, Hydrated)
    assert made.definition.no_schema_mode == mode
    provenance = hydrated.provenance
    assert (provenance.validated, provenance.validator) == (False, None)
    assert provenance.no_schema_mode == mode

    async def approver(_request: Any) -> Approve:
        return Approve(by="grace")

    ended = await ToolRunner([made], approver=approver).exec(call, caller=Caller("ada"))
    assert isinstance(ended, Completed)
    assert (ended.record.validated, ended.record.no_schema_mode) == (False, mode)


async def test_what_is_refused_is_marked_too() -> None:
    made = tool(visible=ALL, allow_no_schema=True, no_schema_mode="human-approval")(anything)
    ended = await ToolRunner([made]).exec(ToolCall("c", "anything", "{}"), caller=Caller("ada"))
    assert isinstance(ended, Failed)
    assert (ended.record.validated, ended.record.no_schema_mode) == (False, "human-approval")
