"""What a runner is given is checked when it is made."""

from __future__ import annotations

import math
from typing import Any

import pytest
from rows import each_row

from toolcrib import ALL, ToolCall, ToolRunner, tool
from toolcrib.errors import ToolcribError
from toolcrib.testing import MemorySink


@tool(visible=ALL)
async def f() -> int:
    """Do it."""
    return 1


@each_row(
    ("options", "told"),
    [
        ({"concurrency": 0}, "concurrency is a whole number from 1"),
        ({"concurrency": 1.5}, "concurrency is a whole number from 1"),
        ({"concurrency": True}, "concurrency is a whole number from 1"),
        ({"remember": -1}, "remember is a whole number from 0"),
        ({"max_result_bytes": 0}, "max_result_bytes is a whole number from 1"),
        ({"timeout": 0}, "timeout is a number of seconds above 0"),
        ({"timeout": math.nan}, "timeout is a number of seconds above 0"),
        ({"timeout": "5"}, "timeout is a number of seconds above 0"),
        ({"approval_seconds": math.nan}, "approval_seconds is a number of seconds above 0"),
        ({"approval_seconds": math.inf}, "approval_seconds is a number of seconds above 0"),
        ({"approval_seconds": -1}, "approval_seconds is a number of seconds above 0"),
        ({"sinks": [print]}, "builtin_function_or_method is none"),
        ({"sinks": [MemorySink]}, "MemorySink is none"),
        ({"sinks": MemorySink()}, "sinks is a list"),
        ({"on_exception": "print"}, "on_exception is a plain function"),
        ({"on_exception": MemorySink}, "on_exception is a plain function"),
        ({"on_exception": f.__wrapped__}, "on_exception is a plain function"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ToolcribError, match=told):
        ToolRunner([f], **options)


async def test_sinks_that_can_be_read_only_once_are_told() -> None:
    sink = MemorySink()
    sinks: Any = (s for s in [sink])
    await ToolRunner([f], sinks=sinks).exec(ToolCall("c", "f", "{}"))
    assert len(sink.records) == 1
