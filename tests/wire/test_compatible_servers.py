"""Ways of servers that nearly speak OpenAI's chat, and of gateways to other wires."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from rows import each_row

from toolcrib.errors import ClientError, ProviderError, RequestError
from toolcrib.values.message import Usage
from toolcrib.wire import decode, decoder
from toolcrib.wire.calls import joined

Json = dict[str, Any]
Call = tuple[str, str, str]

A, B = '{"a":1}', '{"b":2}'


def sse_of(*chunks: Any, done: bool = True) -> bytes:
    lines = [c if isinstance(c, str) else json.dumps(c) for c in chunks]
    return "".join(f"data: {line}\n\n" for line in [*lines, *(["[DONE]"] if done else [])]).encode()


def delta(reason: str | None = None, **members: Any) -> Json:
    return {"choices": [{"index": 0, "delta": members, "finish_reason": reason}]}


def piece(text: Any = None, *, name: Any = None, id: Any = None, index: Any = 0) -> Json:
    function = {k: v for k, v in (("name", name), ("arguments", text)) if v is not None}
    members = {"index": index, "id": id, "function": function}
    return {k: v for k, v in members.items() if v is not None}


def ended(*chunks: list[Json]) -> bytes:
    return sse_of(*(delta(tool_calls=calls) for calls in chunks), delta("tool_calls"))


def whole(**message: Any) -> bytes:
    return json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).encode()


def calls_of(body: bytes, wire: str = "openai-chat") -> list[Call]:
    reply = decode(wire, body)
    assert reply.finish == "tool_calls"
    assert all(call.complete for call in reply.tool_calls)
    return [(call.provider_id, call.name, call.arguments) for call in reply.tool_calls]


F = [piece("", name="f", id="x")]

CALLS: dict[str, tuple[bytes, list[Call]]] = {
    "said again at the end (lidge-jun/opencodex#361)":
        (ended(F, [piece('{"a"')], [piece(":1}")], [piece(A)]), [("x", "f", A)]),
    "said again in other words (elizaOS/eliza#16973)":
        (ended(F, [piece('{"a": 1}')], [piece(A, name="f", id="x")]), [("x", "f", '{"a": 1}')]),
    "said three times in a whole body (Soju06/codex-lb#284)":
        (whole(tool_calls=[piece(A * 3, name="f", id="x")]), [("x", "f", A)]),
    "all so far in each piece (NousResearch/hermes-agent#35718)":
        (ended(F, [piece('{"a"')], [piece('{"a":1')], [piece(A)], [piece(A)]), [("x", "f", A)]),
    "an object that begins as the one in it":
        (ended(F, [piece('{"a":')], [piece('{"a":1}}')]), [("x", "f", '{"a":{"a":1}}')]),
    "the same behind a comma":
        (whole(tool_calls=[piece(f"{A},{A}", name="f")]), [("", "f", f"{A},{A}")]),
    "the same behind a line's end": (whole(tool_calls=[piece(f"{A}\n{A}", name="f")]), [("", "f", A)]),
    "garbage behind it": (ended(F, [piece(A + A[:-1])], [piece("]")]), [("x", "f", A + A[:-1] + "]")]),
    "another index, and the last call has begun its arguments":
        (ended([piece('{"a"', name="f", id="x")], [piece(":1}", index=2)]), [("x", "f", A)]),
    "another index, and the last call is whole":
        (ended([piece(A, name="f", id="x")], [piece("{}", index=1)], [piece("", index=1, name="g")]),
         [("x", "f", A), ("", "g", "{}")]),
    "no level of its own": (whole(tool_calls=[{"id": "x", "name": "f", "arguments": A}]),
                            [("x", "f", A)]),
    "no level of its own, an object":
        (sse_of(delta(tool_calls=[{"name": "f", "arguments": {"a": 1}}]), delta("stop")),
         [("", "f", '{"a": 1}')]),
    "an object beside half a surrogate pair":
        (whole(content="\ud83d", tool_calls=[piece({"a": 1}, name="f")]), [("", "f", '{"a": 1}')]),
    "an object that is no JSON":
        (whole(tool_calls=[piece({"a": float("nan")}, name="f")]), [("", "f", '{"a": NaN}')]),
}  # fmt: skip


@each_row(("body", "calls"), CALLS.values(), ids=CALLS)
def test_calls(body: bytes, calls: list[Call]) -> None:
    assert calls_of(body) == calls


@each_row("body", [body for body, _ in CALLS.values()], ids=CALLS)
def test_every_split_gives_the_same_reply(body: bytes) -> None:
    random_ = random.Random(3)  # noqa: S311
    expected = decode("openai-chat", body)
    for sizes in ([1] * len(body), [random_.randint(1, 40) for _ in body]):
        reading, at = decoder("openai-chat"), 0
        for size in sizes:
            reading.feed(body[at : at + size])
            at += size
        assert reading.finish() == expected


@each_row(
    ("message", "finish", "text"),
    [
        ({"content": "Hi", "tool_calls": [piece(A, name="f", id="x")]}, "tool_calls", "Hi"),
        ({"content": "\nHi", "tool_calls": [{"function": {"name": "f", "arguments": '{"a": 1}'}}]},
         "tool_calls", "Hi"),
        ({"content": "Hi, all.", "tool_calls": None}, "tool_calls", "Hi, all."),
        ({"content": "Hi", "tool_calls": [piece(B, name="f", id="x")]}, "doubtful", "Hi"),
        ({"content": "Hi", "tool_calls": [piece(A, name="g", id="x")]}, "doubtful", "Hi"),
        ({"content": "Hi", "tool_calls": [piece(A, name="f"), piece(B, name="f", index=1)]},
         "doubtful", "Hi"),
    ],
)  # fmt: skip
def test_a_stream_may_end_with_the_whole_message(message: Json, finish: str, text: str) -> None:
    """MiniMax: GCWing/OpenBitFun#792. It streams no `[DONE]`, and says what it is to say once more."""
    first = delta(
        tool_calls=[piece('{"a"', name="f", id="x")], content="Hi", reasoning_content="Hm"
    )
    again = {"message": {"reasoning_content": "Hm", **message}, "finish_reason": "tool_calls"}
    chunks = first, delta("tool_calls", tool_calls=[piece(":1}")]), {"choices": [again]}
    reply = decode("openai-chat", sse_of(*chunks, done=False))
    assert (reply.finish, reply.text) == (finish, text)
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("f", A)]
    state = reply.message.provider_state
    assert state is not None
    assert state.data == {"reasoning_content": "Hm"}


@each_row(
    ("fragments", "text"),
    [
        ([], ""),
        (["", A, ""], A),
        (["{", '{"a"', '{"a":1}'], A),
        (['{"a"', '{"a":1', '{"a":2}'], '{"a"{"a":1{"a":2}'),
        (['{"a"', '{"a":1'], '{"a"{"a":1'),
    ],
)
def test_fragments_are_joined(fragments: list[str], text: str) -> None:
    assert joined(fragments) == text


CUT = {
    "content_filter: PROHIBITED_CONTENT": "content_filter",
    "function_call_filter: MALFORMED_FUNCTION_CALL": "error",
    "RECITATION": "content_filter",
    "guardrail_intervened": "content_filter",
    "refusal": "refusal",
    "max_completion_tokens": "length",
    "token_limit": "length",
    "cancelled": "incomplete",
    "repetition": "incomplete",
    "time_limit": "incomplete",
    "failed": "error",
}


@each_row("reason", CUT)
def test_a_reason_that_is_no_natural_end_is_a_cut(reason: str) -> None:
    reply = decode("openai-chat", sse_of(delta(tool_calls=[piece(A, name="f")]), delta(reason)))
    assert (reply.finish, reply.provider_finish) == (CUT[reason], reason)
    assert [call.complete for call in reply.tool_calls] == [False]


SAID = delta(tool_calls=[piece(A, name="f", id="x")])
LATE = {"object": "error", "message": "boom", "type": "BadRequestError", "code": 400}
ERRORS: dict[str, tuple[bytes, type[ClientError]]] = {
    "an error object in a stream": (sse_of(SAID, LATE), RequestError),
    "an error object": (json.dumps(LATE).encode(), RequestError),
    "a message": (b'{"message": "boom"}', ProviderError),
    "a detail": (b'{"detail": "boom"}', ProviderError),
    "a code and a message": (sse_of({"code": 500, "msg": "boom"}), ProviderError),
    "MiniMax": (b'{"choices":null,"base_resp":{"status_code":1,"status_msg":"boom"}}', ProviderError),
    "Groq, at the end": (sse_of(SAID, delta("stop") | {"x_groq": {"error": "boom"}}), ProviderError),
}  # fmt: skip


@each_row(("body", "kind"), ERRORS.values(), ids=ERRORS)
def test_errors_in_other_places_are_errors(body: bytes, kind: type[ClientError]) -> None:
    with pytest.raises(kind, match="boom") as caught:
        decode("openai-chat", body)
    assert type(caught.value) is kind


SPENT = {"prompt_tokens": 5, "completion_tokens": 3}
LAST = delta("stop")["choices"][0]


@pytest.mark.parametrize(
    ("last", "usage"),
    [
        (delta("stop") | {"x_groq": {"id": "req", "usage": SPENT}}, Usage(1, 5, 3)),
        ({"choices": [LAST | {"usage": SPENT | {"cached_tokens": 2}}]}, Usage(1, 5, 3, 2)),
        (delta("stop") | {"usage": SPENT | {"prompt_cache_hit_tokens": 4}}, Usage(1, 5, 3, 4)),
        (delta("stop") | {"usage": [], "x_groq": None}, Usage(1)),
    ],
)
def test_usage_in_other_places(last: Json, usage: Usage) -> None:
    reply = decode("openai-chat", sse_of(delta(content="Hi"), delta(content="!"), last))
    assert (reply.text, reply.finish, reply.usage) == ("Hi!", "stop", usage)


HI = sse_of(delta(content="Hi"), done=False)


@pytest.mark.parametrize(
    "body",
    [
        sse_of("null", delta(content="Hi"), "null", delta("stop")),
        sse_of(delta(content="Hi"), delta("stop"), '"[DONE]"', done=False),
        HI + b"event: heartbeat\ndata: ok\n\n" + sse_of(delta("stop")),
        HI + b"event: keep-alive\ndata: 12\n\n" + sse_of(delta("stop")),
    ],
)
def test_what_says_nothing_is_nothing(body: bytes) -> None:
    reply = decode("openai-chat", body)
    assert (reply.text, reply.finish) == ("Hi", "stop")


def test_a_thought_among_the_parts_is_no_text() -> None:
    parts = [{"type": "reasoning", "text": "hm"}, {"type": "text", "text": "H"}, {"text": "i"}]
    assert decode("openai-chat", sse_of(delta(content=parts), delta("stop"))).text == "Hi"


CALL = {"type": "function_call", "id": "fc", "call_id": "x", "name": "f", "arguments": A}
DONE = {"type": "response.output_item.done", "output_index": 0, "item": CALL}


def response_done(status: str, **members: Any) -> bytes:
    response = {"status": status, "output": [CALL]} | members
    return sse_of(DONE, {"type": "response.done", "response": response})


def test_another_word_for_the_end_of_a_response() -> None:
    assert calls_of(response_done("completed"), "openai-responses") == [("x", "f", A)]
    cut = response_done("incomplete", incomplete_details={"reason": "max_output_tokens"})
    assert decode("openai-responses", cut).finish == "length"
    with pytest.raises(ProviderError, match="boom"):
        decode("openai-responses", response_done("failed", error={"message": "boom"}))


def test_another_word_for_the_error_of_a_response() -> None:
    with pytest.raises(ProviderError, match="boom"):
        decode("openai-responses", sse_of(DONE, {"type": "response.error", "message": "boom"}))


@pytest.mark.parametrize(("reason", "finish"), [("sensitive", "content_filter"),
    ("malformed_tool_use", "error"), ("cancelled", "incomplete"),
    ("canceled", "doubtful")])  # fmt: skip
def test_reasons_of_servers_that_imitate_anthropic(reason: str, finish: str) -> None:
    block = {"type": "tool_use", "id": "x", "name": "f", "input": {"a": 1}}
    body = {"type": "message", "content": [block], "stop_reason": reason}
    reply = decode("anthropic", json.dumps(body))
    assert (reply.finish, reply.tool_calls[0].complete) == (finish, False)


def test_a_count_of_nothing_does_not_undo_one_of_something() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 5}}}
    last = {"type": "message_delta", "delta": {"stop_reason": "end_turn"},
            "usage": {"input_tokens": 0, "output_tokens": 3}}  # fmt: skip
    body = sse_of(start, last, {"type": "message_stop"}, done=False)
    assert decode("anthropic", body).usage == Usage(1, 5, 3)
