"""Whole means whole: doubt ends a call, on every wire alike, by name.

Each row is a reply in which something is missing, said twice or said after the end. What may not run is
`truncated` or `contradictory`; what may, and was read with a liberty, is noted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from rows import each_row
from servers.bedrock import frame

from toolcrib.errors import ErrorCode, WireError
from toolcrib.hydration import hydrate
from toolcrib.values.call import Rejected
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import Offer, Reply
from toolcrib.wire import OPENAI_CHAT, WIRES, Wire, decode, decoder
from toolcrib.wire.calls import Ending

Json = dict[str, Any]

A, B = '{"a": 1}', '{"b": 2}'
ANY = ToolDefinition(name="f", description="", input_schema_json='{"type": "object"}')
OFFER = Offer.of([PlainTool(ANY), PlainTool(msgspec.structs.replace(ANY, name="g"))])
TRUNCATED, CONTRADICTORY = ErrorCode.TRUNCATED, ErrorCode.CONTRADICTORY


def sse(*events: Any) -> bytes:
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return "".join(f"data: {text}\n\n" for text in texts).encode()


# OpenAI's chat, and what is compatible


def chunk(*calls: Json, reason: str | None = None, **delta: Any) -> Json:
    said = delta | ({"tool_calls": list(calls)} if calls else {})
    return {"choices": [{"index": 0, "delta": said, "finish_reason": reason}]}


def piece(text: str | None = None, name: str | None = None, index: int = 0) -> Json:
    function = {"name": name, "arguments": text}
    given = {key: value for key, value in function.items() if value is not None}
    return {"index": index, "function": given} | ({"id": f"c{index}"} if name else {})


def valued_piece(value: Any) -> Json:
    """A piece whose arguments are no text."""
    return {"index": 0, "function": {"arguments": value}}


def whole_body(call: Json) -> bytes:
    message = {"tool_calls": [call]}
    return json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).encode()


NAMED, REST = chunk(piece("", "f")), chunk(piece(A))
WHOLE = chunk(piece(A, "f"))
END = chunk(reason="tool_calls")
DONE = "[DONE]"


def body(text: Any, reason: str = "tool_calls", **members: Any) -> bytes:
    call = {"id": "c", "function": {"name": "f", "arguments": text}}
    return json.dumps(
        {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": reason} | members]}
    ).encode()


def elsewhere(event: Json, choice: int = 1) -> Json:
    """The same chunk, of another choice."""
    (only,) = event["choices"]
    return {"choices": [only | {"index": choice}]}


HALF, MIDDLE, LAST = '{"a": [', "1, ", "2]}"
"""Arguments in pieces, that are JSON without the middle one, too."""


# Anthropic


def start(index: int = 0, id: str = "c", name: str = "f", **more: Any) -> Json:
    block = {"type": "tool_use", "id": id, "name": name, "input": {}} | more
    return {"type": "content_block_start", "index": index, "content_block": block}


def given(text: str, index: int = 0) -> Json:
    delta = {"type": "input_json_delta", "partial_json": text}
    return {"type": "content_block_delta", "index": index, "delta": delta}


def other(delta: Json, index: int = 0) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def stop(index: int = 0) -> Json:
    return {"type": "content_block_stop", "index": index}


def why(reason: str = "tool_use") -> Json:
    return {"type": "message_delta", "delta": {"stop_reason": reason}}


def began(id: str) -> Json:
    return {"type": "message_start", "message": {"id": id}}


OVER = {"type": "message_stop"}


# Bedrock


def b_start(index: int = 0, **more: Any) -> bytes:
    use = {"toolUse": {"toolUseId": "c", "name": "f"} | more}
    return frame({"contentBlockIndex": index, "start": use}, event_type="contentBlockStart")


def b_given(text: str, index: int = 0, kind: str = "contentBlockDelta") -> bytes:
    delta = {"contentBlockIndex": index, "delta": {"toolUse": {"input": text}}}
    return frame(delta, event_type=kind)


def b_stop(index: int = 0) -> bytes:
    return frame({"contentBlockIndex": index}, event_type="contentBlockStop")


B_WHY = frame({"stopReason": "tool_use"}, event_type="messageStop")
B_BEGINS = frame({"role": "assistant"}, event_type="messageStart")
B_OVER = frame({"usage": {}}, event_type="metadata")


# Cohere


def c_start(index: int = 0, id: str = "c", name: str = "f") -> Json:
    call = {"id": id, "type": "function", "function": {"name": name, "arguments": ""}}
    return {"type": "tool-call-start", "index": index, "delta": {"message": {"tool_calls": call}}}


def c_given(text: str, index: int = 0) -> Json:
    call = {"function": {"arguments": text}}
    return {"type": "tool-call-delta", "index": index, "delta": {"message": {"tool_calls": call}}}


NOTHING: tuple[Any, ...] = (
    None,
    {},
    {"message": {}},
    {"message": {"tool_calls": []}},
    {"message": {"tool_calls": {"function": {}}}},
)
"""Deltas that have no piece of a call."""


def c_stop(index: int = 0) -> Json:
    return {"type": "tool-call-end", "index": index}


def c_begins(id: str) -> Json:
    return {"type": "message-start", "id": id, "delta": {"message": {}}}


C_WHY = {"type": "message-end", "delta": {"finish_reason": "TOOL_CALL"}}


# Responses


def item(text: str, **more: Any) -> Json:
    return {
        "type": "function_call",
        "id": "i",
        "call_id": "c",
        "name": "f",
        "arguments": text,
    } | more


def added(text: str = "", **more: Any) -> Json:
    return {"type": "response.output_item.added", "output_index": 0, "item": item(text, **more)}


def pieces(text: str) -> Json:
    kind = "response.function_call_arguments.delta"
    return {"type": kind, "output_index": 0, "item_id": "i", "delta": text}


def settled(text: str) -> Json:
    kind = "response.function_call_arguments.done"
    return {"type": kind, "output_index": 0, "item_id": "i", "arguments": text}


def finished(text: str, **more: Any) -> Json:
    return {"type": "response.output_item.done", "output_index": 0, "item": item(text, **more)}


def in_both(more: Any, where: str) -> bytes:
    """A call that has something beside its function."""
    call = piece(A, "f") | more
    return whole_body(call) if where == "a body" else sse(chunk(call), END, DONE)


def numbered(number: int, event: Json) -> Json:
    return event | {"sequence_number": number}


def created(id: str) -> Json:
    return {"type": "response.created", "response": {"id": id, "status": "in_progress"}}


def completed(*items: Json, status: str = "completed", **more: Any) -> Json:
    response = {"status": status, "output": list(items)} | more
    return {"type": "response.completed", "response": response}


# Gemini, Ollama


def gem(*calls: Json, reason: str | None = None) -> Json:
    parts = [{"functionCall": call} for call in calls]
    candidate = {"content": {"parts": parts}} | ({"finishReason": reason} if reason else {})
    return {"candidates": [candidate]}


G = {"name": "f", "args": {"a": 1}}


def valued(value: bool | float | str, *, more: bool = False, **members: Any) -> Json:
    """A piece of a call with a value of its arguments."""
    kind = {bool: "boolValue", str: "stringValue"}.get(type(value), "numberValue")
    going = {"willContinue": True} if more else {}
    return members | going | {"partialArgs": [{"jsonPath": "$.a", kind: value}]}


NULLS = {"index": None, "delta": None, "content_block": None, "message": None}
PARTS_BEGIN = valued(1, name="f", more=True)
PARTS_MIDDLE = {"willContinue": True, "partialArgs": [{"jsonPath": "$.b", "numberValue": 2}]}
PARTS_LAST = {"willContinue": True, "partialArgs": [{"jsonPath": "$.c", "numberValue": 3}]}


def in_candidate(index: int, call: Json) -> Json:
    """A piece of a call in another candidate."""
    return {"candidates": [gem(call)["candidates"][0] | {"index": index}]}


def line(*calls: Json, done: bool = False, **more: Any) -> bytes:
    functions = [{"function": call} for call in calls]
    said = {"message": {"content": "", "tool_calls": functions}, "done": done} | more
    return json.dumps(said).encode() + b"\n"


O = {"name": "f", "arguments": {"a": 1}}  # noqa: E741


# The same call once more, where the wire has something else


def with_message(event: Json, text: str, name: str = "f") -> Json:
    """A chunk that has a whole message beside its delta."""
    (only,) = event["choices"]
    return {"choices": [only | {"message": {"tool_calls": [piece(text, name)]}}]}


def holding(event: Json, text: str, name: str = "f") -> Json:
    """An event of Anthropic's with a message that holds a whole call."""
    use = {"type": "tool_use", "id": "c", "name": name, "input": json.loads(text)}
    return event | {"message": event.get("message", {}) | {"content": [use]}}


def ended(event: Json, reason: str) -> Json:
    return event | {"message": event.get("message", {}) | {"stop_reason": reason}}


def c_holding(text: str) -> Json:
    call = {"id": "c", "function": {"name": "f", "arguments": text}}
    delta = {"finish_reason": "TOOL_CALL", "message": {"tool_calls": [call]}}
    return C_WHY | {"delta": delta}


HALVES = '{"a": ', "1}"
HALF_AFTER: dict[str, tuple[bytes, bytes]] = {
    "anthropic": (
        sse(start(), given(HALVES[0]), why(), given(HALVES[1]), stop()),
        sse(OVER),
    ),
    "bedrock-converse": (
        b_start() + b_given(HALVES[0]) + B_WHY + b_given(HALVES[1]) + b_stop(),
        B_OVER,
    ),
    "cohere": (
        sse(c_start(), c_given(HALVES[0]), C_WHY, c_given(HALVES[1]), c_stop()),
        sse(DONE),
    ),
}
"""A call whose pieces come before the reason and after it, and the wire's own end."""


FAULTY: dict[str, tuple[str, bytes, ErrorCode | None]] = {
    # openai-chat and mistral: a reason that pieces of calls follow is void until `[DONE]`
    "only the name had come": ("openai-chat", sse(NAMED, END, REST), TRUNCATED),
    "only the name had come, mistral": ("mistral", sse(NAMED, END, REST), TRUNCATED),
    "a piece after the reason": ("openai-chat", sse(WHOLE, END, chunk(piece(""" """))), TRUNCATED),
    "a name after the reason": ("openai-chat", sse(END, WHOLE), TRUNCATED),
    "a reason voided, and said again": ("openai-chat", sse(END, WHOLE, END), TRUNCATED),
    "legacy, after the reason": (
        "openai-chat",
        sse(END, chunk(function_call={"name": "f", "arguments": A})),
        TRUNCATED,
    ),
    "a gateway's text after the reason": (
        "openai-chat",
        sse(WHOLE, END) + b"upstream error: reset\n\n",
        TRUNCATED,
    ),
    "a gateway's JSON after the reason": (
        "openai-chat",
        sse(WHOLE, END) + b'{"error": {"message": "reset"}}\n',
        TRUNCATED,
    ),
    "an error that says nothing": (
        "openai-chat",
        sse(WHOLE, END) + b"event: error\n\n",
        TRUNCATED,
    ),
    "no reason, no end": ("openai-chat", sse(WHOLE), TRUNCATED),
    "no reason but a native one": (
        "openai-chat",
        sse(WHOLE, {"choices": [{"index": 0, "delta": {}, "native_finish_reason": "STOP"}]}),
        TRUNCATED,
    ),
    "torn after the reason": ("openai-chat", sse(WHOLE, END) + b'data: {"cho', TRUNCATED),
    "a name, and pieces at another index": (
        "openai-chat",
        sse(chunk(piece("", "f")), chunk(piece(A, index=1)), END, DONE),
        TRUNCATED,
    ),
    "no name": ("openai-chat", sse(chunk(piece(A)), END, DONE), TRUNCATED),
    "a listed native cut": ("openai-chat", body(A, native_finish_reason="length"), TRUNCATED),
    # said twice, and not the same
    "true is not 1": ("openai-chat", body('{"p":1}{"p":true}'), CONTRADICTORY),
    "two objects": ("openai-chat", body(A + B), CONTRADICTORY),
    "two objects in pieces": ("openai-chat", sse(WHOLE, chunk(piece(B)), END, DONE), CONTRADICTORY),
    "a legacy call beside another one": (
        "openai-chat",
        sse(chunk(piece(A, "f"), function_call={"name": "f", "arguments": B}), END, DONE),
        CONTRADICTORY,
    ),
    "a torn legacy call beside another one": (
        "openai-chat",
        sse(chunk(piece(A, "f"), function_call={"name": "f", "arguments": '{"a":'}), END, DONE),
        TRUNCATED,
    ),
    "the torn beginning of a line": ("openai-chat", sse(WHOLE, END) + b"dat", TRUNCATED),
    **{
        f"{wire}: {name}": (wire, sse(*events, END, DONE), CONTRADICTORY)
        for wire in ("openai-chat", "mistral")
        for name, events in {
            "a piece at another choice": (
                chunk(piece(HALF, "f")),
                elsewhere(chunk(piece(MIDDLE))),
                chunk(piece(LAST)),
            ),
            "a piece at another choice that has no content": (
                chunk(piece(HALF, "f")),
                elsewhere(chunk(content="x")),
                elsewhere(chunk(piece(MIDDLE), content="x")),
                chunk(piece(LAST)),
            ),
            "a legacy piece at another choice": (
                chunk(function_call={"name": "f", "arguments": HALF}),
                elsewhere(chunk(function_call={"arguments": MIDDLE})),
                chunk(function_call={"arguments": LAST}),
            ),
            "all pieces at another choice": (
                chunk(piece("{}", "f")),
                elsewhere(chunk(piece(HALF))),
            ),
            **{
                f"an entry that brings nothing, {entry!r}": (
                    chunk(piece(HALF, "f")),
                    chunk(content="x", tool_calls=[entry]),
                    chunk(piece(LAST)),
                )
                for entry in (None, {}, {"index": 0}, {"index": 0, "Function": {"arguments": "1, "}})
            },
            "a piece at the index of an earlier call": (
                chunk(piece(A, "f")),
                chunk(piece(HALF, "g", 1)),
                chunk(piece(MIDDLE)),
                chunk(piece(LAST, index=1)),
            ),
        }.items()
    },
    # a value is all of the arguments, and no part of a text
    **{
        f"{wire}: a value among pieces, {name}": (wire, sse(*events, END, DONE), CONTRADICTORY)
        for wire in ("openai-chat", "mistral")
        for name, events in {
            "in a text": (chunk(piece('{"a": "', "f")), chunk(valued_piece({})), chunk(piece('"}'))),
            "after a half": (chunk(piece(" {", "f")), chunk(valued_piece({"a": 1}))),
            "other than the text": (WHOLE, chunk(valued_piece({"b": 2}))),
            "of another writing": (
                chunk(piece('{"a": ', "f")), chunk(valued_piece({"a": 1})), chunk(piece("}")),
            ),
            "of a function_call": (
                chunk(function_call={"name": "f", "arguments": '{"a": "'}),
                chunk(function_call={"arguments": {}}),
                chunk(function_call={"arguments": '"}'}),
            ),
        }.items()
    },
    # two places of one call that contradict each other
    **{
        f"{wire}: {name}": (wire, data, CONTRADICTORY)
        for wire in ("openai-chat", "mistral")
        for name, data in {
            f"{what} in {where}": in_both(more, where)
            for what, more in {
                "a custom input that differs": {"custom": {"name": "f", "input": B}},
                "a custom name that differs": {"custom": {"name": "g", "input": ""}},
                "arguments beside the function": {"arguments": B},
                "a name beside the function": {"name": "g"},
            }.items()
            for where in ("a piece", "a body")
        }.items()
    },
    "gemini: two spellings of a call in one part": (
        "gemini",
        sse({"candidates": [{"content": {"parts": [{"functionCall": G, "function_call": {
            "name": "f", "args": {"a": 2}}}]}, "finishReason": "STOP"}]}),
        CONTRADICTORY,
    ),
    "gemini: two spellings of a reason": (
        "gemini",
        sse({"candidates": [gem(G, reason="STOP")["candidates"][0] | {"finish_reason": "MAX_TOKENS"}]}),
        TRUNCATED,
    ),
    # Anthropic
    **{
        f"anthropic: a piece in an event {kind}": (
            "anthropic",
            sse(start(), given(HALF), given(MIDDLE) | {"type": kind}, given(LAST), stop(), why(), OVER),
            CONTRADICTORY,
        )
        for kind in ("later", "ping", "message_start", "message_delta", "content_block_stop", ["odd"])
    },
    "anthropic: a piece at the index of the provider's own call that had ended": (
        "anthropic",
        sse(start(type="server_tool_use"), stop(), start(1), given(HALF, 1), given(MIDDLE),
            given(LAST, 1), stop(1), why(), OVER),
        CONTRADICTORY,
    ),
    "anthropic: a piece of a kind that nobody knows": (
        "anthropic",
        sse(start(), given(HALF), other({"type": "later", "x": 1}), given(LAST), stop(), why(), OVER),
        CONTRADICTORY,
    ),
    "anthropic: an input of which nothing but a type came": (
        "anthropic",
        sse(start(), other({"type": "input_json_delta"}), stop(), why(), OVER),
        CONTRADICTORY,
    ),
    "anthropic: two pieces that are only a type": (
        "anthropic",
        sse(start(), *(2 * [other({"type": "input_json_delta"})]), given(A), stop(), why(), OVER),
        CONTRADICTORY,
    ),
    **{
        f"gemini: a piece {place}": (
            "gemini",
            sse(gem(PARTS_BEGIN), *middle, gem(PARTS_LAST), gem({}, reason="STOP")),
            CONTRADICTORY,
        )
        for place, middle in {
            "in another candidate": [in_candidate(1, PARTS_MIDDLE)],
            "in a second entry of its candidate": [
                {"candidates": [*gem()["candidates"], *gem(PARTS_MIDDLE)["candidates"]]}
            ],
            "that has no place for its values": [gem({"willContinue": True, "values": [1]})],
            "that says all and goes on": [gem({"willContinue": True, "args": {"b": 2}})],
        }.items()
    },
    "ollama: a cut, and then another reason": (
        "ollama",
        line(O) + line(done_reason="length") + line(done=True, done_reason="stop"),
        TRUNCATED,
    ),
    "anthropic: a piece under another name": (
        "anthropic",
        sse(start(), given(HALF), other({"type": "input_json_delta"}), given(LAST), stop(), why(),
            OVER),
        CONTRADICTORY,
    ),
    "begun, never delivered nor stopped": ("anthropic", sse(start(), why(), OVER), TRUNCATED),
    "begun, half delivered": ("anthropic", sse(start(), given('{"a":'), why(), OVER), TRUNCATED),
    "pieces before the beginning": (
        "anthropic",
        sse(given(A), start(), stop(), why(), OVER),
        TRUNCATED,
    ),
    "begun after the reply's own end": (
        "anthropic",
        sse(why("end_turn"), start(), given(A), stop(), OVER),
        TRUNCATED,
    ),
    "another message begins": (
        "anthropic",
        sse(began("m1"), start(), given(A), stop(), began("m2"), why(), OVER),
        TRUNCATED,
    ),
    "no reason at all": ("anthropic", sse(start(), given(A), stop(), OVER), TRUNCATED),
    "another input at the start": (
        "anthropic",
        sse(start(input={"b": 2}), given(A), stop(), why(), OVER),
        CONTRADICTORY,
    ),
    "more after its end": (
        "anthropic",
        sse(start(), given("{}"), stop(), given(A), why(), OVER),
        CONTRADICTORY,
    ),
    "one id for two tools": (
        "anthropic",
        sse(start(), start(name="g"), given(A), stop(), why(), OVER),
        CONTRADICTORY,
    ),
    # Bedrock
    "bedrock: never stopped": ("bedrock-converse", b_start() + B_WHY + B_OVER, TRUNCATED),
    "bedrock: pieces first": (
        "bedrock-converse",
        b_given(A) + b_start() + b_stop() + B_WHY + B_OVER,
        TRUNCATED,
    ),
    "bedrock: a piece of it at the index of nobody": (
        "bedrock-converse",
        b_start() + b_given(" {", 5) + b_given(A) + b_stop() + B_WHY + B_OVER,
        None,
    ),
    **{
        f"{wire}: half of it after the reason": (wire, data, TRUNCATED)
        for wire, (data, _) in HALF_AFTER.items()
    },
    "bedrock: begun after the end": (
        "bedrock-converse",
        B_WHY + b_start() + b_given(A) + b_stop() + B_OVER,
        TRUNCATED,
    ),
    **{
        f"bedrock: a piece in an event {kind}": (
            "bedrock-converse",
            b_start() + b_given(HALF) + b_given(MIDDLE, kind=kind) + b_given(LAST) + b_stop()
            + B_WHY + B_OVER,
            CONTRADICTORY,
        )
        for kind in ("contentBlockLater", "contentBlockStop", "metadata")
    },
    "bedrock: a piece at the index of the provider's own call that had ended": (
        "bedrock-converse",
        b_start(type="server_tool_use") + b_stop() + b_start(1) + b_given(HALF, 1) + b_given(MIDDLE)
        + b_given(LAST, 1) + b_stop(1) + B_WHY + B_OVER,
        CONTRADICTORY,
    ),
    "bedrock: another message begins": (
        "bedrock-converse",
        B_BEGINS + b_start() + b_given(A) + b_stop() + B_BEGINS + B_WHY + B_OVER,
        TRUNCATED,
    ),
    "anthropic: a piece of it at the index of nobody": (
        "anthropic",
        sse(start(), given(" {", 5), given(A), stop(), why(), OVER),
        None,
    ),
    "anthropic: a delta without a kind within it": (
        "anthropic",
        sse(start(), given("{"), other({"x": "a"}), given("}"), stop(), why(), OVER),
        CONTRADICTORY,
    ),
    # Cohere
    **{
        f"cohere: a piece in an event {kind}": (
            "cohere",
            sse(c_start(), c_given(HALF), c_given(MIDDLE) | {"type": kind}, c_given(LAST), c_stop(),
                C_WHY, DONE),
            CONTRADICTORY,
        )
        for kind in ("later", "message-end", "tool-call-end", ["odd"])
    },
    **{
        f"cohere: a piece that brings nothing, {delta!r}": (
            "cohere",
            sse(c_start(), c_given(HALF), c_given(MIDDLE) | {"delta": delta}, c_given(LAST), c_stop(),
                C_WHY, DONE),
            CONTRADICTORY,
        )
        for delta in NOTHING
    },
    "cohere: never ended": ("cohere", sse(c_start(), C_WHY, DONE), TRUNCATED),
    "cohere: begun after the end": (
        "cohere",
        sse(C_WHY, c_start(), c_given(A), c_stop(), DONE),
        TRUNCATED,
    ),
    "cohere: another message begins": (
        "cohere",
        sse(c_begins("m1"), c_start(), c_given(A), c_stop(), c_begins("m2"), C_WHY, DONE),
        TRUNCATED,
    ),
    "cohere: no reason": ("cohere", sse(c_start(), c_given(A), c_stop(), DONE), TRUNCATED),
    "cohere: two names under one id": (
        "cohere",
        sse(c_start(), c_given(A), c_start(name="g"), c_stop(), C_WHY, DONE),
        CONTRADICTORY,
    ),
    "cohere: another name after the call's end": (
        "cohere",
        sse(c_start(), c_stop(), c_start(name="g"), C_WHY, DONE),
        CONTRADICTORY,
    ),
    "cohere: a piece of it at the index of another that had ended": (
        "cohere",
        sse(c_start(), c_given("{"), c_start(1, "d"), c_stop(1), c_given('"a":', 1),
            c_given("}"), c_stop(), C_WHY, DONE),
        CONTRADICTORY,
    ),
    # Responses: whole copies are the same
    "four copies that contradict each other": (
        "openai-responses",
        sse(added(), pieces('{"a":0}'), settled('{"a":1}'), finished('{"a":2}'),
            completed(item('{"a":3}'))),
        CONTRADICTORY,
    ),
    "true for 1, in the list": (
        "openai-responses",
        sse(added(), settled('{"a":1}'), finished('{"a":1}'), completed(item('{"a":true}'))),
        CONTRADICTORY,
    ),
    "another name at the end": (
        "openai-responses",
        sse(added(), settled(A), finished(A, name="g"), completed()),
        CONTRADICTORY,
    ),
    "incomplete in the list": (
        "openai-responses",
        sse(added(), settled(A), finished(A), completed(item(A, status="incomplete"))),
        TRUNCATED,
    ),
    "no response at the end": ("openai-responses", sse(added(), finished(A), DONE), TRUNCATED),
    "another response begins": (
        "openai-responses",
        sse(created("r1"), added(), finished(A), created("r2"), completed()),
        TRUNCATED,
    ),
    "another response ends": (
        "openai-responses",
        sse(created("r1"), added(), finished(A), completed(id="r2")),
        TRUNCATED,
    ),
    **{
        f"responses: {name}": ("openai-responses", sse(*events), CONTRADICTORY)
        for name, events in {
            "another call_id at the end": (
                added(), settled(A), finished(A), completed(item(A, call_id="d")),
            ),
            "another call_id when it is done": (
                added(), settled(A), finished(A, call_id="d"), completed(),
            ),
            "in progress at the end, and was completed": (
                added(), settled(A), finished(A, status="completed"),
                completed(item(A, status="in_progress")),
            ),
            "a piece after the item's end": (
                added(), pieces("{}"), finished("{}"), pieces(" "), completed(item("{}")),
            ),
            "a piece after the whole arguments": (
                added(), pieces(A), settled(A), pieces("junk"), finished(A), completed(),
            ),
            "one event that names two calls": (
                added(), added(id="j", call_id="d") | {"output_index": 1}, settled(A),
                settled(A) | {"output_index": 1}, completed(),
            ),
            "an event lost, and only pieces": (
                numbered(1, added()), numbered(2, pieces('{"a": 1')), numbered(9, pieces("3}")),
                numbered(10, completed()),
            ),
        }.items()
    },
    "not among what the whole response lists": (
        "openai-responses",
        sse(added(), finished(A), completed({"type": "message", "id": "m", "content": []})),
        CONTRADICTORY,
    ),
    "the end, made of a piece": (
        "openai-responses",
        sse(added(), pieces(A), settled(A) | {"type": "response.completed"}),
        TRUNCATED,
    ),
    "a call that failed": (
        "openai-responses",
        sse(added(), finished(A, status="failed"), completed()),
        TRUNCATED,
    ),
    "a status that nobody lists": (
        "openai-responses",
        sse(added(), finished(A), completed(item(A), status="aborted")),
        TRUNCATED,
    ),
    "begun with the beginning of others": (
        "openai-responses",
        sse(added('{"b":'), settled(A), finished(A), completed()),
        CONTRADICTORY,
    ),
    "begun with the beginning of others, in pieces": (
        "openai-responses",
        sse(added('{"b":'), pieces(A), finished(A), completed()),
        CONTRADICTORY,
    ),
    "begun twice, otherwise": (
        "openai-responses",
        sse(added('{"b":'), added('{"a":'), pieces(A), finished(A), completed()),
        CONTRADICTORY,
    ),
    "begun again with nothing": (
        "openai-responses",
        sse(added('{"b":'), added(), pieces(A), finished(A), completed()),
        CONTRADICTORY,
    ),
    "begun with what no whole one says": (
        "openai-responses",
        sse(added(A + "x"), pieces(A), completed()),
        CONTRADICTORY,
    ),
    "begun with a placeholder": ("openai-responses", sse(added("{}"), completed()), TRUNCATED),
    # Gemini has no end of its own: a reason in or after the last event with a call
    "gemini: a call after the reason": ("gemini", sse(gem(reason="STOP"), gem(G)), TRUNCATED),
    "gemini: no reason": ("gemini", sse(gem(G)), TRUNCATED),
    "gemini: two values at one place": (
        "gemini",
        sse(gem(valued(1, name="f", more=True)), gem(valued(2), reason="STOP")),
        CONTRADICTORY,
    ),
    "gemini: true is not 1": (
        "gemini",
        sse(gem(valued(1, name="f", more=True)), gem(valued(True), reason="STOP")),
        CONTRADICTORY,
    ),
    "gemini: two texts at one place": (
        "gemini",
        sse(gem(valued("a", name="f", more=True)), gem(valued("b"), reason="STOP")),
        CONTRADICTORY,
    ),
    # Ollama
    "ollama: no end": ("ollama", line(O), TRUNCATED),
    "ollama: a reason that nobody lists": (
        "ollama",
        line(O) + line(done=True, done_reason="unload"),
        TRUNCATED,
    ),
    # a whole call, or a reason, where the wire has another place for it
    **{
        f"{wire}: {name}": (wire, data, CONTRADICTORY)
        for wire in ("openai-chat", "mistral")
        for name, data in {
            "a message beside the last delta": sse(WHOLE, with_message(END, B), DONE),
            "a message beside a delta": sse(with_message(WHOLE, B), END, DONE),
            "a message beside a whole delta, of another name": sse(
                with_message(WHOLE, A, "g"), END, DONE
            ),
            "a body with a delta too": body(A, delta={"tool_calls": [piece(B, "f")]}),
        }.items()
    },
    **{
        f"anthropic: a call in {place}": (
            "anthropic",
            sse(*before, start(), given(A), stop(), why(), *after),
            CONTRADICTORY,
        )
        for place, before, after in (
            ("message_start", [holding(began("m"), B)], [OVER]),
            ("message_start, of another name", [holding(began("m"), "{}", "g")], [OVER]),
            ("message_stop", [], [holding(OVER, B)]),
            ("message_stop, without arguments", [], [holding(OVER, "{}")]),
            ("a message_delta", [], [holding(why(), B), OVER]),
        )
    },
    "anthropic: only in message_stop": ("anthropic", sse(why(), holding(OVER, A)), CONTRADICTORY),
    **{
        f"anthropic: {reason} in {place}": (
            "anthropic",
            sse(*before, start(), given(A), stop(), why(), *after),
            TRUNCATED,
        )
        for reason in ("max_tokens", "canceled")
        for place, before, after in (
            ("message_start", [ended(began("m"), reason)], [OVER]),
            ("message_stop", [], [ended(OVER, reason)]),
            ("a ping", [{"type": "ping", "delta": {"stop_reason": reason}}], [OVER]),
        )
    },
    "cohere: a call in message-end": (
        "cohere",
        sse(c_start(), c_given(A), c_stop(), c_holding(B), DONE),
        CONTRADICTORY,
    ),
    "cohere: a reason in message-start": (
        "cohere",
        sse(c_begins("m") | {"delta": {"finish_reason": "MAX_TOKENS"}}, c_start(), c_given(A),
            c_stop(), C_WHY, DONE),
        TRUNCATED,
    ),
    **{
        f"responses: {place}": ("openai-responses", sse(*events, completed(item(A))), CONTRADICTORY)
        for place, events in {
            "whole arguments at the beginning": (added(B), pieces(A), settled(A), finished(A)),
            "whole arguments at the beginning, twice": (added(B), added(A), finished(A)),
            "in the output of a response that goes on": (
                created("r") | {"response": {"output": [item(B)], "status": "in_progress"}},
                added(), finished(A),
            ),
            "another name in the output of a response that goes on": (
                {"type": "response.in_progress", "response": {"output": [item("", name="g")]}},
                added(), finished(A),
            ),
        }.items()
    },
    **{
        f"responses: a response that goes on and says {said}": (
            "openai-responses",
            sse(created("r") | {"response": said}, added(), finished(A), completed(item(A))),
            TRUNCATED,
        )
        for said in (
            {"status": "incomplete"},
            {"status": "canceled"},
            {"incomplete_details": {"reason": "max_output_tokens"}},
        )
    },
    **{
        f"gemini: candidate 0 twice in one event, {name}": (
            "gemini",
            sse({"candidates": [gem(G, reason="STOP")["candidates"][0], second]}),
            code,
        )
        for name, second, code in (
            ("cut", {"index": 0, "finishReason": "MAX_TOKENS"}, TRUNCATED),
            ("cut, without its index", {"finishReason": "MAX_TOKENS"}, TRUNCATED),
            (
                "with another call",
                gem(G | {"args": {"a": 2}}, reason="STOP")["candidates"][0] | {"index": 0},
                CONTRADICTORY,
            ),
        )
    },
}  # fmt: skip


def codes_of(reply: Reply) -> list[ErrorCode | None]:
    results = [hydrate(call, OFFER) for call in reply.tool_calls]
    return [r.errors[0].code if isinstance(r, Rejected) else None for r in results]


@each_row(("wire", "data", "code"), FAULTY.values(), ids=FAULTY)
def test_a_call_in_doubt_does_not_run_and_says_why(
    wire: str, data: bytes, code: ErrorCode | None
) -> None:
    """Without a `code` the calls have several."""
    for sizes in (len(data), 1, 7):
        reading = decoder(wire, offer=OFFER)
        for at in range(0, len(data), sizes):
            reading.feed(data[at : at + sizes])
        reply = reading.finish()
        assert reply.tool_calls
        assert not any(call.complete for call in reply.tool_calls)
        codes = codes_of(reply)
        assert None not in codes
        assert code is None or codes == [code] * len(codes)
        assert reply.finish not in ("tool_calls", "stop")


DELETING = Offer.of(
    PlainTool(msgspec.structs.replace(ANY, name=name)) for name in ("delete", "delete_all", "find")
)
RENAMED = {
    "a longer name": ("delete", "delete_all"),
    "the rest of a name": ("delete", "_all"),
    "a shorter name": ("delete_all", "delete"),
    "another name": ("delete", "find"),
    "more of it, of which no tool is known": ("delete", "_many"),
}


@each_row("wire", ["openai-chat", "mistral"])
@each_row(("first", "second"), RENAMED.values(), ids=RENAMED)
@each_row("again", ["", "call_1"])
def test_a_name_that_changes_after_the_arguments_began(
    wire: str, first: str, second: str, again: str
) -> None:
    """What came before the change may have been meant for another tool."""
    begun = {"index": 0, "id": "call_1", "function": {"name": first, "arguments": '{"p":'}}
    rest = {"index": 0, "id": again, "function": {"name": second, "arguments": "1}"}}
    reading = decoder(wire, offer=DELETING)
    reading.feed(sse(chunk(begun), chunk(rest), chunk(reason="tool_calls"), DONE))
    reply = reading.finish()
    assert codes_of(reply) == [CONTRADICTORY]
    assert not any(call.complete for call in reply.tool_calls)


def test_a_name_in_pieces_before_the_arguments_and_one_said_again() -> None:
    pieces = [("delete", ""), ("_all", ""), ("", '{"p":'), ("delete_all", "1}")]
    chunks = [
        chunk({"index": 0, "id": "call_1", "function": {"name": name, "arguments": text}})
        for name, text in pieces
    ]
    reading = decoder("openai-chat", offer=DELETING)
    reading.feed(sse(*chunks, chunk(reason="tool_calls"), DONE))
    (call,) = reading.finish().tool_calls
    assert (call.name, call.arguments, call.complete) == ("delete_all", '{"p":1}', True)


GOOD: dict[str, tuple[str, bytes, str, tuple[str, ...]]] = {
    # what is said where the wire has another place for it, and is the same
    "openai-chat: a message beside the last delta": (
        "openai-chat", sse(WHOLE, with_message(END, '{"a":1}'), DONE), A, ()
    ),
    "openai-chat: each piece in both": (
        "openai-chat",
        sse(*(
            {"choices": [{"delta": said, "message": said}]}
            for said in ({"tool_calls": [piece("", "f")]}, {"tool_calls": [piece(A)]})
        ), END, DONE),
        A,
        (),
    ),
    "anthropic: a copy in message_start and in message_stop": (
        "anthropic",
        sse(holding(began("m"), "{}"), start(), given(A), stop(), why(), holding(OVER, A)),
        A,
        (),
    ),
    "anthropic: a natural reason in message_start": (
        "anthropic",
        sse(ended(began("m"), "end_turn"), start(), given(A), stop(), why(), OVER),
        A,
        (),
    ),
    "cohere: a copy in message-end": (
        "cohere", sse(c_start(), c_given(A), c_stop(), c_holding(A), DONE), A, ()
    ),
    "responses: copies in what goes on": (
        "openai-responses",
        sse(created("r") | {"response": {"output": [item(A)]}}, added(A), finished(A),
            completed(item(A))),
        A,
        (),
    ),
    "gemini: a copy in one event": (
        "gemini",
        sse({"candidates": 2 * [gem(G, reason="STOP")["candidates"][0] | {"index": 0}]}),
        '{"a": 1}',
        (),
    ),
    "a piece in the chunk of the reason": (
        "openai-chat",
        sse(NAMED, chunk(piece(A), reason="tool_calls")),
        A,
        (),
    ),
    "under the reason stop": ("openai-chat", sse(WHOLE, chunk(reason="stop")), A, ()),
    "what does not void a reason": (
        "openai-chat",
        sse(
            WHOLE, END, END, {"choices": [], "usage": {"prompt_tokens": 1}}, chunk(content=" "),
            chunk({"index": 0, "function": {"arguments": ""}}),
        ),
        A,
        (),
    ),
    "another choice's calls do not void it": (
        "openai-chat",
        sse(WHOLE, END, elsewhere(chunk(piece(B, "g")))),
        A,
        (),
    ),
    "a voided reason, and the wire's own end": ("openai-chat", sse(NAMED, END, REST, DONE), A, ()),
    "the wire's own end without a reason": ("openai-chat", sse(WHOLE, DONE), A, ()),
    "more after the end": ("openai-chat", sse(WHOLE, END, DONE, chunk(piece(B))), A, ("after_end",)),
    "the end twice": ("openai-chat", sse(WHOLE, END, DONE, DONE) + b": bye\n\n", A, ()),
    "a native reason that nobody lists": (
        "openai-chat",
        body(A, native_finish_reason="FINISHED"),
        A,
        ("unlisted_native_reason",),
    ),
    "an empty string for a reason": ("openai-chat", body(A, ""), A, ()),
    "no text of arguments": ("openai-chat", body(""), "{}", ("empty_arguments",)),
    "null for arguments": ("openai-chat", body("null"), "{}", ("empty_arguments",)),
    "arguments absent": ("openai-chat", body(None), "{}", ("empty_arguments",)),
    "an empty object": ("openai-chat", body("{}"), "{}", ()),
    "an empty object first": ("openai-chat", body("{}" + A), A, ("empty_object_first",)),
    **{
        f"{wire}: said twice, {name}": (wire, sse(*map(chunk, calls), END, DONE), A, notes)
        for wire in ("openai-chat", "mistral")
        for name, calls, notes in (
            ("in the same words", (piece(A, "f"), piece(A)), ("said_twice",)),
            ("three times", (piece(A, "f"), piece(A), piece(A)), ("said_twice",)),
            ("as it grew", (piece('{"a"', "f"), piece('{"a": 1'), piece(A)), ("said_twice",)),
            ("as a value", (piece(A, "f"), valued_piece({"a": 1})), ("said_twice",)),
            ("and empty", (piece("", "f"), piece(A), piece("")), ()),
            ("a value and nothing", (piece("", "f"), valued_piece({"a": 1}), piece("")), ()),
        )
    },
    "a custom input that is the function's": (
        "openai-chat",
        sse(chunk(piece(A, "f") | {"custom": {"name": "f", "input": '{"a":1}'}}), END, DONE),
        A,
        (),
    ),
    "an empty custom": (
        "openai-chat",
        sse(chunk(piece(A, "f") | {"custom": {"name": "", "input": ""}}), END, DONE),
        A,
        (),
    ),
    "responses: an event lost, and a whole copy": (
        "openai-responses",
        sse(numbered(1, added()), numbered(2, pieces('{"a":')), numbered(9, finished(A)),
            numbered(10, completed())),
        A,
        ("streamed_otherwise",),
    ),
    "responses: numbers that begin anew": (
        "openai-responses",
        sse(numbered(5, added()), numbered(0, pieces(A)), numbered(1, completed())),
        A,
        (),
    ),
    "gemini: two spellings of one call": (
        "gemini",
        sse({"candidates": [{"content": {"parts": [{"functionCall": G, "function_call": G}]},
                             "finishReason": "STOP"}]}),
        A,
        (),
    ),
    "a text of JSON": ("openai-chat", body(json.dumps(A)), A, ("double_encoded",)),
    "mistral: a text of JSON": ("mistral", body(json.dumps(A)), A, ("double_encoded",)),
    "said twice": ("openai-chat", body('{"a": 1}{"a":1.0}'), A, ("said_twice",)),
    "anthropic: nothing delivered, and stopped": (
        "anthropic",
        sse(start(), given(""), stop(), why(), OVER),
        "{}",
        ("empty_arguments",),
    ),
    "anthropic: begun twice": (
        "anthropic",
        sse(start(), start(), given(A), stop(), why(), OVER),
        A,
        (),
    ),
    "anthropic: a piece without a type": (
        "anthropic",
        sse(start(), given(A) | {"delta": {"partial_json": A}}, stop(), why(), OVER),
        A,
        (),
    ),
    "a legacy copy of the call": (
        "openai-chat",
        sse(chunk(piece(A, "f"), function_call={"name": "f", "arguments": '{"a":1}'}), END, DONE),
        A,
        (),
    ),
    "anthropic: begun again after its end": (
        "anthropic",
        sse(start(), given(A), stop(), start(), stop(), why(), OVER),
        A,
        (),
    ),
    "anthropic: an empty object in a body": (
        "anthropic",
        json.dumps(
            {"type": "message", "stop_reason": "tool_use",
             "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
        ).encode(),
        "{}",
        (),
    ),
    "anthropic: delivered, never stopped": (
        "anthropic",
        sse(start(), given(A), why(), OVER),
        A,
        (),
    ),
    "anthropic: without the last event": ("anthropic", sse(start(), given(A), stop(), why()), A, ()),
    "bedrock: nothing delivered, and stopped": (
        "bedrock-converse",
        b_start() + b_stop() + B_WHY + B_OVER,
        "{}",
        ("empty_arguments",),
    ),
    "bedrock: begun twice": (
        "bedrock-converse",
        b_start() + b_start() + b_given(A) + b_stop() + B_WHY + B_OVER,
        A,
        (),
    ),
    "cohere: nothing delivered, and ended": (
        "cohere",
        sse(c_start(), c_stop(), C_WHY, DONE),
        "{}",
        ("empty_arguments",),
    ),
    "only the pieces differ": (
        "openai-responses",
        sse(added(), pieces('{"a": 7}'), settled(A), finished(A), completed(item(A))),
        A,
        ("streamed_otherwise",),
    ),
    "copies in other words": (
        "openai-responses",
        sse(added(), pieces(A), settled(A), finished('{"a":1.0}'), completed(item('{"a":1}'))),
        '{"a":1}',
        (),
    ),
    "an item in progress in a response that completed": (
        "openai-responses",
        sse(added(), finished(A, status="in_progress"), completed(item(A, status="in_progress"))),
        A,
        (),
    ),
    "responses: another one follows": (
        "openai-responses",
        sse(added(), finished(A), completed(item(A)), added(id="j"), completed()),
        A,
        ("after_end",),
    ),
    "gemini: a reason after the call": (
        "gemini",
        sse(gem(reason="STOP"), gem(G), gem(reason="STOP")),
        A,
        (),
    ),
    "gemini: no arguments": (
        "gemini",
        sse(gem({"name": "f"}, reason="STOP")),
        "{}",
        ("empty_arguments",),
    ),
    "gemini: a value said twice": (
        "gemini",
        sse(gem(valued(1, name="f", more=True)), gem(valued(1), reason="STOP")),
        A,
        (),
    ),
    "gemini: other values than the whole": (
        "gemini",
        sse(gem(valued(2, name="f", more=True)), gem({"args": {"a": 1}}, reason="STOP")),
        '{"a": 1}',
        ("streamed_otherwise",),
    ),
    "gemini: no values": (
        "gemini",
        sse(gem({"name": "f", "willContinue": True}), gem({}, reason="STOP")),
        "{}",
        ("empty_arguments",),
    ),
    "cohere: the beginning said again": (
        "cohere",
        sse(c_begins("m"), c_begins("m"), c_start(), c_given(A), c_stop(), C_WHY, DONE),
        A,
        (),
    ),
    "gemini: a call of another candidate in pieces, too": (
        "gemini",
        sse(gem(valued(1, name="f", more=True)), in_candidate(1, valued(1, name="f", more=True)),
            in_candidate(1, PARTS_LAST), in_candidate(1, {"name": None, "args": None}),
            gem({}, reason="STOP")),
        A,
        (),
    ),
    "anthropic: a first piece that was empty and left out": (
        "anthropic",
        sse(start(), other({"type": "input_json_delta"}), given(A), stop(), why(), OVER),
        A,
        (),
    ),
    "anthropic: members that are null": (
        "anthropic",
        sse(*(NULLS | event for event in (start(), given(A), stop(), why(), OVER))),
        A,
        (),
    ),
    "anthropic: every member in each event": (
        "anthropic",
        sse(*(NULLS | {"index": 0} | event for event in (
            {"type": "message_start", "message": {}}, start(), {"type": "ping"}, given(A), stop(),
            why(), OVER))),
        A,
        (),
    ),
    "cohere: members that are null": (
        "cohere",
        sse(c_start(), c_given(A), c_stop() | {"delta": None}, C_WHY | {"index": None}, DONE),
        A,
        (),
    ),
    "blanks that keep the connection open": (
        "openai-chat",
        b" \n".join([sse(NAMED), sse(REST), sse(END, DONE)]),
        A,
        (),
    ),
    "anthropic: events that nobody knows": (
        "anthropic",
        sse({"type": {"x": 1}}, {"type": ["odd"]},
            {"type": "later", "index": 0}, start(), {"type": "later", "x": 1},
            {"type": "ping"}, given(A), stop(), {"type": "later", "index": 0, "delta": {}}, why(),
            OVER),
        A,
        (),
    ),
    "bedrock: events that nobody knows": (
        "bedrock-converse",
        b_start() + frame({"x": 1}, event_type="later") + b_given(A) + b_stop()
        + frame({"contentBlockIndex": 0}, event_type="later") + B_WHY + B_OVER,
        A,
        (),
    ),
    "cohere: events that nobody knows": (
        "cohere",
        sse(c_start(), {"type": "later", "x": 1}, c_given(A), c_stop(),
            {"type": "later", "index": 0}, C_WHY, DONE),
        A,
        (),
    ),
    "another choice with a call": (
        "openai-chat",
        sse(NAMED, elsewhere(chunk(piece("", "g"))), elsewhere(chunk(piece(B))), REST, END, DONE),
        A,
        (),
    ),
    **{
        f"{wire}: half of it after the reason, and the end": (wire, data + end, A, ())
        for wire, (data, end) in HALF_AFTER.items()
    },
    "mistral: no text of arguments": ("mistral", body(""), "{}", ("empty_arguments",)),
    "mistral: no text of arguments in a stream": (
        "mistral", sse(NAMED, END, DONE), "{}", ("empty_arguments",),
    ),
    "responses: no text of arguments": (
        "openai-responses",
        sse(added(), settled(""), finished(""), completed(item(""))),
        "{}",
        ("empty_arguments",),
    ),
    **{
        f"ollama: arguments {said}": (
            "ollama", line({"name": "f"} | more) + line(done=True, done_reason="stop"), "{}",
            ("empty_arguments",),
        )
        for said, more in {"absent": {}, "null": {"arguments": None}}.items()
    },
    "ollama: the reason stop": ("ollama", line(O) + line(done=True, done_reason="stop"), A, ()),
}  # fmt: skip


@each_row(("wire", "data", "arguments", "notes"), GOOD.values(), ids=GOOD)
def test_a_whole_call_runs_and_what_was_taken_for_it_is_noted(
    wire: str, data: bytes, arguments: str, notes: tuple[str, ...]
) -> None:
    for sizes in (len(data), 1, 7):
        reading = decoder(wire, offer=OFFER)
        for at in range(0, len(data), sizes):
            reading.feed(data[at : at + sizes])
        reply = reading.finish()
        assert [(c.name, c.arguments, c.notes) for c in reply.tool_calls] == [
            ("f", arguments, notes)
        ]
        assert (codes_of(reply), reply.finish) == ([None], "tool_calls")


UNKNOWN = ("canceled", "server_error", "truncated", "incomplete_output")
REPLIES: dict[str, Any] = {
    "openai-chat": lambda reason: sse(
        chunk(content="Hi"), chunk(piece(A, "f"), reason=reason), DONE
    ),
    "mistral": lambda reason: sse(chunk(content="Hi"), chunk(piece(A, "f"), reason=reason), DONE),
    "anthropic": lambda reason: json.dumps(
        {
            "type": "message",
            "stop_reason": reason,
            "content": [
                {"type": "text", "text": "Hi"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
            ],
        }
    ).encode(),
    "gemini": lambda reason: json.dumps(
        {
            "candidates": [
                {
                    "content": {"parts": [{"text": "Hi"}, {"functionCall": G}]},
                    "finishReason": reason,
                }
            ]
        }
    ).encode(),
    "ollama": lambda reason: (
        line(O, content="Hi").replace(b'"content": ""', b'"content": "Hi"')
        + line(done=True, done_reason=reason)
    ),
    "cohere": lambda reason: json.dumps(
        {
            "finish_reason": reason,
            "message": {
                "content": [{"type": "text", "text": "Hi"}],
                "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": A}}],
            },
        }
    ).encode(),
    "bedrock-converse": lambda reason: json.dumps(
        {
            "output": {
                "message": {
                    "content": [
                        {"text": "Hi"},
                        {"toolUse": {"toolUseId": "c", "name": "f", "input": {"a": 1}}},
                    ]
                }
            },
            "stopReason": reason,
        }
    ).encode(),
    "openai-responses": lambda reason: json.dumps(
        {
            "object": "response",
            "status": reason,
            "output": [
                {
                    "type": "message",
                    "id": "m",
                    "content": [{"type": "output_text", "text": "Hi"}],
                },
                item(A),
            ],
        }
    ).encode(),
}


SAID = {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "Hi"}}
C_SAID = {"type": "content-delta", "index": 1, "delta": {"message": {"content": {"text": "Hi"}}}}
R_SAID = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "Hi"}]}
B_SAID = frame({"contentBlockIndex": 1, "delta": {"text": "Hi"}}, event_type="contentBlockDelta")
STREAMS: dict[str, Any] = {
    **{wire: REPLIES[wire] for wire in ("openai-chat", "mistral", "ollama")},
    "anthropic": lambda reason: sse(
        start(), given(A), stop(), SAID, stop(1), why(reason), OVER
    ),
    "gemini": lambda reason: sse(
        {"candidates": [{"content": {"parts": [{"text": "Hi"}]}}]}, gem(G), gem(reason=reason)
    ),
    "cohere": lambda reason: sse(
        c_start(), c_given(A), c_stop(), C_SAID,
        {"type": "message-end", "delta": {"finish_reason": reason}}, DONE,
    ),
    "bedrock-converse": lambda reason: (
        b_start() + b_given(A) + b_stop() + B_SAID
        + frame({"stopReason": reason}, event_type="messageStop") + B_OVER
    ),
    "openai-responses": lambda reason: sse(
        added(), settled(A), finished(A),
        {"type": "response.output_item.done", "output_index": 1, "item": R_SAID},
        completed(item(A), R_SAID, status=reason),
    ),
}  # fmt: skip
"""The same replies as streams."""


@each_row("wire", WIRES.values(), ids=WIRES)
@each_row("replies", {"whole": REPLIES, "in a stream": STREAMS}.values(), ids=["whole", "stream"])
def test_a_reason_that_nobody_lists_ends_the_calls_and_the_text_stays(
    wire: Wire, replies: dict[str, Any]
) -> None:
    for reason in UNKNOWN:
        reply = decode(wire, replies[wire.name](reason), offer=OFFER)
        assert (reply.finish, reply.text, reply.provider_finish) == ("doubtful", "Hi", reason)
        (result,) = [hydrate(call, OFFER) for call in reply.tool_calls]
        (error,) = result.errors
        assert error.code is TRUNCATED
        assert repr(reason) in error.message
        assert "natural_reasons=" in error.message


@each_row("wire", WIRES.values(), ids=WIRES)
@each_row("replies", {"whole": REPLIES, "in a stream": STREAMS}.values(), ids=["whole", "stream"])
def test_a_reason_may_be_nested_too_deep_to_be_written(wire: Wire, replies: dict[str, Any]) -> None:
    deep = b'{"a":' * 1000 + b"1" + b"}" * 1000
    body = replies[wire.name]("no reason")
    body = body if isinstance(body, bytes) else body.encode()
    assert body.count(b'"no reason"') == 1
    if wire.name == "bedrock-converse" and replies is STREAMS:
        return  # its frames have checksums
    reply = decode(wire, body.replace(b'"no reason"', deep), offer=OFFER)
    assert (reply.finish, reply.text) == ("doubtful", "Hi")


OPENAIS_NATURAL = (
    "stop tool_calls tool_call function_call tool_use end_turn stop_sequence eos eos_token complete"
    " completed"
)
NATURAL = {
    "openai-chat": OPENAIS_NATURAL,
    "mistral": OPENAIS_NATURAL,
    "openai-responses": "completed",
    "anthropic": "tool_use end_turn stop_sequence",
    "bedrock-converse": "tool_use end_turn stop_sequence",
    "gemini": "stop 1 unexpected_tool_call",
    "cohere": "tool_call complete stop_sequence",
    "ollama": "stop",
}
"""The words after which calls run, each with a source: one more lets calls run that were cut."""


@each_row("wire", WIRES.values(), ids=WIRES)
def test_the_reasons_after_which_calls_run_are_these(wire: Wire) -> None:
    listed = {word for word, said in wire.finish_reasons.items() if said in ("stop", "tool_calls")}
    assert wire.natural_reasons | listed == set(NATURAL[wire.name].split())
    for word in NATURAL[wire.name].split():
        for reason in (word, word.upper()):
            for replies in (REPLIES, STREAMS):
                reply = decode(wire, replies[wire.name](reason), offer=OFFER)
                assert (codes_of(reply), reply.finish) == ([None], "tool_calls")


NO_TEXT: tuple[Any, ...] = (0, 0.0, 5, True, False, [], {}, ["stop"], {"reason": "stop"})
BODIES: dict[str, tuple[str, bytes]] = {
    **{name: (name, build("REASON")) for name, build in REPLIES.items()},
    "openai-chat, whole": ("openai-chat", body(A, "REASON")),
    "mistral, whole": ("mistral", body(A, "REASON")),
    "anthropic, streamed": ("anthropic", sse(start(), given(A), stop(), why("REASON"), OVER)),
    "gemini, streamed": ("gemini", sse(gem(G, reason="REASON"))),
    "cohere, streamed": (
        "cohere",
        sse(c_start(), c_given(A), c_stop(), C_WHY | {"delta": {"finish_reason": "REASON"}}, DONE),
    ),
    "openai-responses, streamed": (
        "openai-responses",
        sse(added(), finished(A), completed(item(A), status="REASON")),
    ),
    "openai-responses, its details": (
        "openai-responses",
        sse(added(), finished(A), completed(item(A), incomplete_details={"reason": "REASON"})),
    ),
    "ollama, before the end": (
        "ollama",
        line(O, done_reason="REASON") + line(done=True, done_reason="stop"),
    ),
}


@each_row(("wire", "data"), BODIES.values(), ids=BODIES)
@each_row("reason", NO_TEXT)
def test_a_reason_that_is_no_text_is_no_natural_end(wire: str, data: bytes, reason: Any) -> None:
    """Only null and an empty text are none: what is false by Python's word is a reason all the same."""
    reply = decode(wire, data.replace(b'"REASON"', json.dumps(reason).encode()), offer=OFFER)
    assert reply.finish not in ("tool_calls", "stop")
    assert codes_of(reply) == [TRUNCATED]


def test_the_number_1_is_stop_on_gemini() -> None:
    event = gem(G)
    event["candidates"][0]["finishReason"] = 1
    assert codes_of(_read("gemini", sse(event))) == [None]


@each_row("reason", NO_TEXT)
def test_a_reason_of_bedrocks_stream_that_is_no_text_is_no_natural_end(reason: Any) -> None:
    end = frame({"stopReason": reason}, event_type="messageStop")
    reply = _read("bedrock-converse", b_start() + b_given(A) + b_stop() + end + B_OVER)
    assert codes_of(reply) == [TRUNCATED]


@each_row(("wire", "data"), BODIES.values(), ids=BODIES)
@each_row("reason", [None, ""])
def test_null_and_an_empty_text_are_no_reason(wire: str, data: bytes, reason: Any) -> None:
    reply = decode(wire, data.replace(b'"REASON"', json.dumps(reason).encode()), offer=OFFER)
    assert reply.provider_finish in (None, "stop", "completed")
    assert reply.finish != "doubtful"


Said = tuple[str, str]
"""The name and the arguments of a call."""


def b_call(at: int, said: Said) -> bytes:
    return b_start(at, name=said[0]) + b_given(said[1], at) + b_stop(at)


TWO_WITH_ONE_ID: dict[str, tuple[str, Callable[[list[Said]], bytes]]] = {
    "anthropic": (
        "anthropic",
        lambda calls: json.dumps(
            {"type": "message", "stop_reason": "tool_use",
             "content": [{"type": "tool_use", "id": "c", "name": name, "input": json.loads(text)}
                         for name, text in calls]}
        ).encode(),
    ),
    "anthropic, streamed": (
        "anthropic",
        lambda calls: sse(
            *(event for at, (name, text) in enumerate(calls)
              for event in (start(at, name=name), given(text, at), stop(at))),
            why(), OVER),
    ),
    "bedrock": (
        "bedrock-converse",
        lambda calls: json.dumps(
            {"stopReason": "tool_use",
             "output": {"message": {"content": [
                 {"toolUse": {"toolUseId": "c", "name": name, "input": json.loads(text)}}
                 for name, text in calls]}}}
        ).encode(),
    ),
    "bedrock, streamed": (
        "bedrock-converse",
        lambda calls: b"".join(b_call(*each) for each in enumerate(calls)) + B_WHY + B_OVER,
    ),
    "cohere": (
        "cohere",
        lambda calls: json.dumps(
            {"finish_reason": "TOOL_CALL",
             "message": {"tool_calls": [{"id": "c", "function": {"name": name, "arguments": text}}
                                        for name, text in calls]}}
        ).encode(),
    ),
    "cohere, streamed": (
        "cohere",
        lambda calls: sse(
            *(event for at, (name, text) in enumerate(calls)
              for event in (c_start(at, name=name), c_given(text, at), c_stop(at))),
            C_WHY, DONE),
    ),
    "openai-responses": (
        "openai-responses",
        lambda calls: json.dumps(
            {"object": "response", "status": "completed",
             "output": [item(text, name=name, id=f"i{at}")
                        for at, (name, text) in enumerate(calls)]}
        ).encode(),
    ),
    "openai-responses, streamed": (
        "openai-responses",
        lambda calls: sse(
            *(event | {"output_index": at} for at, (name, text) in enumerate(calls)
              for event in (added(name=name, id=f"i{at}"), finished(text, name=name, id=f"i{at}"))),
            completed()),
    ),
}  # fmt: skip


@each_row(("wire", "say"), TWO_WITH_ONE_ID.values(), ids=TWO_WITH_ONE_ID)
def test_two_calls_with_one_id_are_one_call_or_none(
    wire: str, say: Callable[[list[Said]], bytes]
) -> None:
    for other_call in (("g", A), ("f", B), ("f", '{"a": true}')):
        for calls in ([("f", A), other_call], [("f", A), ("f", A), other_call]):
            reply = _read(wire, say(calls))
            assert codes_of(reply) == [CONTRADICTORY] * 2
            assert not any(call.complete for call in reply.tool_calls)
    for again in (A, '{"a":1.0}'):
        reply = _read(wire, say([("f", A), ("f", again)]))
        assert [(c.arguments, c.notes) for c in reply.tool_calls] == [(A, ("said_twice",))]
        assert codes_of(reply) == [None]


@each_row("wire", ["openai-chat", "mistral", "gemini", "ollama"])
def test_where_servers_give_all_calls_one_id_each_runs(wire: str) -> None:
    """Gateways give the name of the tool for an id, and some servers a text that is always the same."""
    functions = [{"name": "f", "arguments": json.loads(text)} for text in (A, B)]
    calls = [{"id": "f", "function": function} for function in functions]
    reply: dict[str, Json] = {
        "gemini": gem(
            *({"id": "f", "name": "f", "args": f["arguments"]} for f in functions), reason="STOP"
        ),
        "ollama": {"message": {"tool_calls": calls}, "done": True, "done_reason": "stop"},
    }
    chat = {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "stop"}]}
    found = decode(wire, json.dumps(reply.get(wire, chat)), offer=OFFER)
    assert [json.loads(c.arguments) for c in found.tool_calls] == [{"a": 1}, {"b": 2}]
    assert codes_of(found) == [None, None]


@each_row("wire", ["openai-chat", "mistral"])
@each_row(("texts", "codes"), [((A, A), [None]), ((A, B), [CONTRADICTORY])])
def test_a_choice_that_is_there_twice_is_one_choice(
    wire: str, texts: tuple[str, str], codes: list[ErrorCode | None]
) -> None:
    (first,), (second,) = (json.loads(body(text))["choices"] for text in texts)
    data = json.dumps({"choices": [first, second]})
    assert codes_of(decode(wire, data, offer=OFFER)) == codes


NO_OBJECTS: dict[str, tuple[str, Any]] = {
    "cohere: delta": ("cohere", c_given("1") | {"delta": [1]}),
    "cohere: message": ("cohere", c_given("1") | {"delta": {"message": "1"}}),
    "openai-chat: function": ("openai-chat", chunk({"index": 0, "function": False})),
    "mistral: function": ("mistral", chunk({"index": 0, "function": 0})),
    **{
        f"{wire}: arguments {value!r}": (wire, chunk(valued_piece(value)))
        for wire in ("openai-chat", "mistral")
        for value in (0, 12, 1.5, False, True, [], [1])
    },
}
CONTAINERS: dict[str, tuple[Any, type]] = {
    "openai-chat: choices": (lambda value: {"choices": value}, list),
    "openai-chat: tool_calls": (lambda value: chunk(tool_calls=value), list),
    "mistral: tool_calls": (lambda value: chunk(tool_calls=value), list),
    "openai-chat: function_call": (lambda value: chunk(function_call=value), dict),
    "anthropic: content_block": (lambda value: start() | {"content_block": value}, dict),
    "anthropic: delta": (other, dict),
    "gemini: candidates": (lambda value: {"candidates": value}, list),
    "gemini: content": (lambda value: {"candidates": [{"content": value}]}, dict),
    "gemini: parts": (lambda value: {"candidates": [{"content": {"parts": value}}]}, list),
    "gemini: functionCall": (gem, dict),
    "gemini: partialArgs": (lambda value: gem({"name": "f", "partialArgs": value}), list),
    "cohere: delta": (lambda value: c_given("1") | {"delta": value}, dict),
    "cohere: message": (lambda value: c_given("1") | {"delta": {"message": value}}, dict),
    "cohere: tool_calls": (
        lambda value: c_given("1") | {"delta": {"message": {"tool_calls": value}}},
        list,
    ),
    "openai-responses: output": (
        lambda value: {"type": "response.completed", "response": {"output": value}},
        list,
    ),
    "openai-responses: item": (lambda value: added() | {"item": value}, dict),
    "ollama: message": (lambda value: {"message": value, "done": False}, dict),
    "ollama: tool_calls": (lambda value: {"message": {"tool_calls": value}}, list),
}
"""What holds a call or a piece of one on each wire, and the type that it has there."""
EMPTY: tuple[Any, ...] = ("", 0, False, {}, [])
TEXTS: dict[str, Callable[[object], Json]] = {
    "openai-chat: content": lambda value: chunk(content=value),
    "mistral: content": lambda value: chunk(content=value),
    "openai-chat: a part": lambda value: chunk(content=[{"type": "text", "text": value}]),
    "ollama: content": lambda value: {"message": {"content": value}, "done": False},
}
NO_OBJECTS |= {
    f"{name}, {empty!r}": (name.partition(":")[0], build(empty))
    for name, build in TEXTS.items()
    for empty in EMPTY
    if empty != "" and not isinstance(empty, list)
}
"""Where a call may be written in the text, a text is such a place, too."""
NO_OBJECTS |= {
    f"{name}, {empty!r}": (name.partition(":")[0], build(empty))
    for name, (build, right) in CONTAINERS.items()
    for empty in EMPTY
    if not isinstance(empty, right)
}


def test_a_piece_after_the_end_of_a_call_of_geminis_ends_it() -> None:
    """Its end may have come too early, so that it lacks the piece."""
    early = PARTS_MIDDLE | {"willContinue": False}
    reply = _read("gemini", sse(gem(PARTS_BEGIN), gem(early), gem(early, reason="STOP")))
    assert [call.complete for call in reply.tool_calls] == [False, False]


CALLS = sse(chunk(piece('{"a": 1}', "f", index=0)), chunk(piece('{"a": 2}', "f", index=1)))


def test_all_calls_said_again_at_the_end_are_copies() -> None:
    again = chunk(piece('{"a": 1}', index=0), piece('{"a": 2}', index=1))
    reply = _read("openai-chat", CALLS + sse(again, END, DONE))
    assert [call.arguments for call in reply.tool_calls] == ['{"a": 1}', '{"a": 2}']
    assert codes_of(reply) == [None, None]


@each_row("at", [0, 1])
def test_a_copy_is_a_stray_while_a_later_call_grows(at: int) -> None:
    """What the last one lacks may be what the first one has twice."""
    begun = chunk(piece('{"b": [', "f", index=2))
    ended = chunk(piece("]}", index=2))
    lost = chunk(piece(f'{{"a": {at + 1}}}', index=at))
    reply = _read("openai-chat", CALLS + sse(begun, lost, ended, END, DONE))
    assert not reply.tool_calls[2].complete


@pytest.mark.parametrize("kind", ["server_tool_use", "SERVER_TOOL_USE", "later", "", 0, {}, []])
def test_a_call_of_bedrocks_of_any_other_type_is_not_ours(kind: Any) -> None:
    begun = b_start(type=kind) + b_given(A) + b_stop()
    assert _read("bedrock-converse", begun + B_WHY + B_OVER).tool_calls == ()


@pytest.mark.parametrize("delta", [{}, [], "", 0, {"toolUse": {}}, {"toolUse": ""}])
def test_a_delta_of_bedrocks_that_brings_nothing_is_an_error(delta: Any) -> None:
    event = {"contentBlockIndex": 0, "delta": delta}
    with pytest.raises(WireError):
        _read("bedrock-converse", b_start() + frame(event, event_type="contentBlockDelta"))


@pytest.mark.parametrize("payload", [b"", b" ", b"null", b"{}"])
def test_an_empty_frame_of_bedrocks_is_a_delta_that_brings_nothing(payload: bytes) -> None:
    with pytest.raises(WireError):
        _read("bedrock-converse", b_start() + frame(payload, event_type="contentBlockDelta"))


def _read(wire: str, data: bytes) -> Reply:
    reading = decoder(wire, offer=OFFER)
    reading.feed(data)
    return reading.finish()


@each_row(("wire", "event"), NO_OBJECTS.values(), ids=NO_OBJECTS)
def test_what_holds_a_piece_and_is_of_another_type_is_an_error(wire: str, event: Any) -> None:
    """Left out it would be a hole in the arguments, which may still be JSON."""
    data = json.dumps(event).encode() + b"\n" if wire == "ollama" else sse(event)
    with pytest.raises(WireError):
        _read(wire, data)


@each_row("wire", WIRES.values(), ids=WIRES)
def test_a_reason_that_the_application_lists_is_a_natural_end(wire: Wire) -> None:
    known = msgspec.structs.replace(wire, natural_reasons=wire.natural_reasons | {"canceled"})
    reply = decode(known, REPLIES[wire.name]("CANCELED"), offer=OFFER)
    assert (reply.finish, codes_of(reply)) == ("tool_calls", [None])
    for cut, meaning in wire.finish_reasons.items():
        if meaning not in ("stop", "tool_calls"):
            both = msgspec.structs.replace(wire, natural_reasons=frozenset((cut,)))
            assert Ending(both, OFFER).meaning(cut) == meaning  # what is listed as a cut stays one


def test_a_call_in_the_text_ends_with_its_reply_too() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    wire = msgspec.structs.replace(OPENAI_CHAT, text_calls="hermes")
    reply = decode(wire, sse(chunk(content=text, reason="server_error"), DONE), offer=OFFER)
    (result,) = [hydrate(call, OFFER) for call in reply.tool_calls]
    assert result.errors[0].code is TRUNCATED
    assert "natural_reasons=['server_error']" in result.errors[0].message


def test_a_body_that_a_closed_connection_ended_needs_the_wires_own_end() -> None:
    for data, whole in ((sse(WHOLE, END), False), (sse(WHOLE, END, DONE), True), (body(A), True)):
        reading = decoder(OPENAI_CHAT, offer=OFFER)
        reading.feed(data)
        assert [call.complete for call in reading.finish(clean=False).tool_calls] == [whole]


@each_row("wire", ["openai-chat", "mistral", "anthropic", "cohere"])
@each_row(
    "line",
    [b"upstream reset\n\n", b"da\nta: {}\n\n", b"<html>\n\n", b"data\n: {}\n\n", b"dat: {}\n\n"],
)
def test_a_line_of_no_event_before_the_end_is_a_cut(wire: str, line: bytes) -> None:
    """It may be what is left of an event; what comes after the end is nobody's."""
    before, after = {
        "openai-chat": (sse(NAMED), sse(REST, END, DONE)),
        "mistral": (sse(NAMED), sse(REST, END, DONE)),
        "anthropic": (sse(start()), sse(given(A), stop(), why(), OVER)),
        "cohere": (sse(c_start()), sse(c_given(A), c_stop(), C_WHY, DONE)),
    }[wire]
    for size in (1, 7, 10_000):
        for data, whole in ((before + line + after, False), (before + after + line, True)):
            reading = decoder(wire, offer=OFFER)
            for at in range(0, len(data), size):
                reading.feed(data[at : at + size])
            assert [call.complete for call in reading.finish().tool_calls] == [whole]


def test_what_follows_the_end_in_one_event_is_not_read() -> None:
    for later in (chunk(piece(A, "f"), reason="tool_calls"), END):
        lines = [json.dumps(chunk(content="Hi")), DONE, json.dumps(later)]
        reply = decode("openai-chat", "".join(f"data: {text}\n" for text in lines), offer=OFFER)
        assert (reply.tool_calls, reply.text) == ((), "Hi")
    lines = [json.dumps(WHOLE), DONE, json.dumps(chunk(piece("{}", "g", index=1)))]
    (call,) = decode("openai-chat", "".join(f"data: {text}\n" for text in lines)).tool_calls
    assert (call.name, call.complete, call.notes) == ("f", True, ("after_end",))


TWICE = '{"a": 1, "a": 2}'
AS_VALUES = {
    "openai-chat": '{"choices": [{"message": {"tool_calls": [{"function": {"name": "f",'
    ' "arguments": @}}]}, "finish_reason": "stop"}%]}',
    "anthropic": '{"content": [{"type": "tool_use", "id": "t", "name": "f", "input": @}],'
    ' "stop_reason": "tool_use", "x": [{}%]}',
    "gemini": '{"candidates": [{"content": {"parts": [{"functionCall": {"name": "f",'
    ' "args": @}}]}, "finishReason": "STOP"}%]}',
    "bedrock-converse": '{"output": {"message": {"content": [{"toolUse": {"toolUseId": "t",'
    ' "name": "f", "input": @}}]}}, "stopReason": "tool_use", "x": [{}%]}',
    "ollama": '{"message": {"tool_calls": [{"function": {"name": "f", "arguments": @}}]},'
    ' "done": true, "done_reason": "stop", "x": [{}%]}',
    "openai-responses": '{"object": "response", "output": [{"type": "function_call", "call_id": "t",'
    ' "name": "f", "arguments": @}], "status": "completed", "x": [{}%]}',
}  # fmt: skip
ODD = (
    "",
    ', {"index": 1, "message": {}, "x": NaN}',
    ', {"index": 1, "message": {}, "x": "\\ud800"}',
    ', {"index": 1, "message": {}, "content": 7, "delta": 7}',
)


@each_row("odd", ODD)
@each_row(("wire", "body"), AS_VALUES.items(), ids=AS_VALUES)
def test_a_key_that_is_there_twice_is_never_lost(wire: str, body: str, odd: str) -> None:
    """Whatever the JSON around the arguments is, they are judged as they were sent."""
    (call,) = decode(wire, body.replace("@", '{"a": "\\ud800"}').replace("%", odd)).tool_calls
    assert (json.loads(call.arguments), call.complete) == ({"a": "\ud800"}, True)
    sent = body.replace("@", TWICE).replace("%", odd)
    for data in (sent, f"[{sent}]") if wire == "gemini" else (sent,):
        reply = decode(wire, data, offer=OFFER)
        assert [call.arguments for call in reply.tool_calls] == [TWICE]
        assert codes_of(reply) == [ErrorCode.INVALID_JSON]


SAID_TWICE: dict[str, tuple[str, bytes, str]] = {
    "openai-chat: a reason": ("openai-chat", sse(WHOLE, END, DONE), '"finish_reason": "length"'),
    "openai-chat: a delta": ("openai-chat", sse(NAMED, REST, END, DONE), '"delta": {}'),
    "openai-chat: choices": ("openai-chat", sse(NAMED, REST, END, DONE), '"choices": []'),
    "openai-chat: arguments": ("openai-chat", sse(NAMED, REST, END, DONE), '"arguments": "1"'),
    "openai-chat: a body": ("openai-chat", body(A), '"finish_reason": "length"'),
    "mistral: a reason": ("mistral", sse(WHOLE, END, DONE), '"finish_reason": "length"'),
    "anthropic: a reason": (
        "anthropic",
        sse(start(), given(A), stop(), why(), OVER),
        '"stop_reason": "max_tokens"',
    ),
    "anthropic: a piece": (
        "anthropic",
        sse(start(), given(A), stop(), why(), OVER),
        '"partial_json": "{"',
    ),
    "bedrock-converse: a name": (
        "bedrock-converse",
        json.dumps(
            {
                "output": {"message": {"content": [{"toolUse": {"toolUseId": "t", "name": "f",
                "input": {}}}]}},
                "stopReason": "tool_use",
            }
        ).encode(),
        '"name": "g"',
    ),
    "gemini: a reason": ("gemini", sse(gem(G, reason="STOP")), '"finishReason": "SAFETY"'),
    "gemini: a call": ("gemini", sse(gem(G, reason="STOP")), '"functionCall": {"name": "g"}'),
    "gemini: a list": (
        "gemini",
        json.dumps([gem(G, reason="STOP")]).encode(),
        '"finishReason": "SAFETY"',
    ),
    "ollama: a reason": ("ollama", line(O, done=True, done_reason="stop"), '"done_reason": "length"'),
    "cohere: a name": (
        "cohere",
        sse(c_start(), c_given(A), c_stop(), C_WHY, DONE),
        '"name": "g"',
    ),
    "openai-responses: arguments": (
        "openai-responses",
        sse(finished(A), completed(item(A))),
        '"arguments": "{}"',
    ),
}  # fmt: skip


@each_row(("wire", "data", "member"), SAID_TWICE.values(), ids=SAID_TWICE)
def test_where_a_key_is_there_twice_no_call_runs(wire: str, data: bytes, member: str) -> None:
    """Who reads the first of the two reads another reply."""
    key = member.partition(":")[0].encode()
    for at in {data.index(key), data.rindex(key)}:
        said = data[:at] + member.encode() + b", " + data[at:]
        for text in (said, said.replace(b'": ', b'":').replace(b", ", b",")):
            reply = decode(wire, text, offer=OFFER)
            assert codes_of(reply) == [CONTRADICTORY]
            assert not any(call.complete for call in reply.tool_calls)
            assert reply.finish not in ("tool_calls", "stop")


@each_row("at", ["item", "response"])
def test_half_a_surrogate_in_an_event_of_responses_loses_no_arguments(at: str) -> None:
    event: Json = (
        finished("ARGUMENTS", x="HALF") if at == "item" else completed(item("ARGUMENTS"), x="HALF")
    )
    data = sse(*([event, completed()] if at == "item" else [event]))
    data = data.replace(b'"ARGUMENTS"', TWICE.encode()).replace(b"HALF", b"\\ud800")
    reply = decode("openai-responses", data, offer=OFFER)
    assert [call.arguments for call in reply.tool_calls] == [TWICE]
    assert codes_of(reply) == [ErrorCode.INVALID_JSON]


def test_no_piece_is_lost_because_a_choice_has_its_number_otherwise() -> None:
    """`{` and `}` without what was between them are a call that nobody made."""
    odd_ones: tuple[Any, ...] = ("first", 0.5, True, [], "9" * 5000)
    for index in ("0", 0.0, None):
        piece_of = chunk(piece('"a": 1'))
        piece_of["choices"][0]["index"] = index
        (call,) = decode(
            "openai-chat", sse(chunk(piece("{", "f")), piece_of, chunk(piece("}")), END, DONE)
        ).tool_calls
        assert (call.arguments, call.complete) == ('{"a": 1}', True)
    for other in odd_ones:
        piece_of = chunk(piece('"a": 1'))
        piece_of["choices"][0]["index"] = other
        with pytest.raises(WireError, match="index of a choice"):
            decode("openai-chat", sse(chunk(piece("{", "f")), piece_of, chunk(piece("}")), END))
        odd = gem(G, reason="STOP")
        odd["candidates"][0]["index"] = other
        with pytest.raises(WireError, match="index of a choice"):
            decode("gemini", sse(odd))
