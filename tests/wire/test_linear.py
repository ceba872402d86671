"""The work on a reply grows with its bytes, whatever it says: what would take its square is a way for
a server to keep the event loop busy for minutes with a few megabytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from rows import each_row

from toolcrib.wire import decode

Json = dict[str, Any]


def sse(*events: Json, done: bool = True) -> bytes:
    lines = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    return b"".join([*lines, b"data: [DONE]\n\n"] if done else lines)


def chunk(*calls: Json, **members: Any) -> Json:
    return {"choices": [{"index": 0, "delta": {"tool_calls": calls, **members}}]}


def piece(index: int, text: str, **members: Any) -> Json:
    return {"index": index, "function": {"arguments": text} | members}


def item(number: int, text: str = "") -> Json:
    return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": text}


def added(number: int, **members: Any) -> Json:
    kind = "response.output_item.added"
    return {"type": kind, "output_index": number, "item": item(number), **members}


NAMELESS = {"type": "response.function_call_arguments.delta", "delta": " "}


def settled(number: int) -> Json:
    kind = "response.function_call_arguments.done"
    return {"type": kind, "output_index": number, "arguments": "{}"}


def large(count: int) -> str:
    """Arguments of as many objects."""
    return json.dumps({"a": [{}] * count})


def repeats_of_a_large_call(count: int) -> bytes:
    calls = piece(0, large(count), name="f"), piece(1, "{}", name="f")
    return sse(*map(chunk, calls), *[chunk(piece(0, "{}"))] * count)


def function_calls_beside(count: int) -> bytes:
    function = {"name": "f", "arguments": ""}
    return sse(
        *(
            chunk(
                piece(n, f'{{"a":{n}}}', name="f"),
                function_call=function | {"arguments": f'{{"a": {n}}}'},
            )
            for n in range(count)
        )
    )


def one_id_after_a_large_call(count: int) -> bytes:
    calls = [large(count), *['{"a":1}'] * count]
    block = {"type": "tool_use", "id": "t", "name": "f"}
    blocks = [
        {"type": "content_block_start", "index": n, "content_block": block | {"input": text}}
        for n, text in enumerate(map(json.loads, calls))
    ]
    return sse(*blocks, {"type": "message_stop"}, done=False)


def two_spellings(count: int) -> bytes:
    calls = ({"name": "f", "args": {"a": n}} for n in range(count))
    parts = [{"functionCall": call, "function_call": call} for call in calls]
    return sse({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}, done=False)


def copies_at_the_end(count: int) -> bytes:
    kind, functions = (
        "tool-call-start",
        [{"name": "f", "arguments": f'{{"a":{n}}}'} for n in range(count)],
    )
    starts = [
        {"type": kind, "index": n, "delta": {"message": {"tool_calls": {"function": function}}}}
        for n, function in enumerate(functions)
    ]
    copies = [{"function": f | {"arguments": f["arguments"] + " "}} for f in reversed(functions)]
    end = {"finish_reason": "TOOL_CALL", "message": {"tool_calls": copies}}
    return sse(*starts, {"type": "message-end", "delta": end})


def pieces_of_one_of_many(count: int) -> bytes:
    return sse(*map(added, range(count)), *[NAMELESS] * count)


def pieces_of_the_only_open_one(count: int) -> bytes:
    whole = (event for n in range(1, count) for event in (added(n), settled(n)))
    return sse(added(0), *whole, *[NAMELESS] * count)


def lost_events(count: int) -> bytes:
    return sse(*(added(n, sequence_number=2 * n) for n in range(count)))


def work_on(wire: str, body: bytes) -> int:
    """How many lines of Python run to decode a body."""
    count = 0

    def note(*_: object) -> Callable[..., Any]:
        nonlocal count
        count += 1
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        decode(wire, body)
    finally:
        sys.settrace(before)
    return count


@each_row(
    ("wire", "body"),
    [
        ("openai-chat", repeats_of_a_large_call),
        ("openai-chat", function_calls_beside),
        ("anthropic", one_id_after_a_large_call),
        ("gemini", two_spellings),
        ("cohere", copies_at_the_end),
        ("openai-responses", pieces_of_one_of_many),
        ("openai-responses", pieces_of_the_only_open_one),
        ("openai-responses", lost_events),
    ],
)
def test_the_work_is_linear_in_the_bytes(wire: str, body: Callable[[int], bytes]) -> None:
    few, many = body(50), body(400)
    decode(wire, few)  # patterns are compiled at their first use
    assert work_on(wire, many) / len(many) < 1.5 * work_on(wire, few) / len(few)
