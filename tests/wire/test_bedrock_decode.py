"""Replies of Bedrock's wire: tables of odd but possible bodies, whole and in pieces."""

from __future__ import annotations

import base64
import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample
from servers.bedrock import frame

from toolcrib.errors import (
    ClientError,
    OverloadedError,
    ProviderError,
    RateLimitError,
    RequestError,
    WireError,
)
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import (
    ArgumentsPart,
    ChatRequest,
    Message,
    Offer,
    ProviderState,
    Reply,
    TextPart,
    Usage,
)
from toolcrib.wire import decode, decoder, encode
from toolcrib.wire.framing import Event, FrameStream

Call = tuple[str, str, str]

OFFER = Offer.of([PlainTool(ToolDefinition(name=n, description="", input_schema_json="{}"))
                  for n in ("f", "g")])  # fmt: skip
A1, B2 = '{"a":1}', '{"b":2}'
LONG = '{"a": 1e400, "a" :12345678901234567890123}'


def start(index: Any = 0, **form: Any) -> bytes:
    return frame({"contentBlockIndex": index, "start": form}, event_type="contentBlockStart")


def use(id: Any = "x", name: Any = "f", index: Any = 0, **more: Any) -> bytes:
    return start(index, toolUse={"toolUseId": id, "name": name} | more)


def delta(index: Any = 0, **form: Any) -> bytes:
    return frame({"contentBlockIndex": index, "delta": form}, event_type="contentBlockDelta")


def piece(text: Any, index: Any = 0) -> bytes:
    return delta(index, toolUse={"input": text})


def stop(index: Any = 0) -> bytes:
    return frame({"contentBlockIndex": index}, event_type="contentBlockStop")


def ended(*frames: bytes, why: Any = "tool_use", usage: Any = None) -> bytes:
    begun = frame({"role": "assistant"}, event_type="messageStart")
    last = frame({"stopReason": why}, event_type="messageStop")
    return b"".join((begun, *frames, last, frame({"usage": usage or {}}, event_type="metadata")))


def whole(*content: Any, why: Any = "tool_use", **members: Any) -> bytes:
    message = {"role": "assistant", "content": content}
    return json.dumps({"output": {"message": message}, "stopReason": why} | members).encode()


def used(input: Any = (), id: Any = "x", name: Any = "f", **more: Any) -> dict[str, Any]:
    return {
        "toolUse": {"toolUseId": id, "name": name, "input": {} if input == () else input} | more
    }


def calls_of(reply: Reply) -> list[Call]:
    return [(call.provider_id, call.name, call.arguments) for call in reply.tool_calls]


def read(body: bytes) -> Reply:
    return decode("bedrock-converse", body, offer=OFFER)


READ: dict[str, tuple[bytes, str, list[Call]]] = {
    "text without a start": (ended(delta(text="H"), delta(text="i"), stop()), "Hi", []),
    "text with an empty start": (ended(start(), delta(text="Hi"), stop()), "Hi", []),
    "a call in pieces": (
        ended(use(), piece(""), piece('{"a"'), piece(":1}"), stop()),
        "",
        [("x", "f", A1)],
    ),
    "calls of one stream, interleaved": (
        ended(use(), use("y", "g", 1), piece('{"a"'), piece(B2, 1), piece(":1}"), stop(1), stop()),
        "",
        [("x", "f", A1), ("y", "g", B2)],
    ),
    "two calls under one index": (
        ended(use(), piece(A1), stop(), use("y", "g"), piece(B2), stop()),
        "",
        [("x", "f", A1), ("y", "g", B2)],
    ),
    "text under the index of a call": (
        ended(use(), piece(A1), delta(text="Hi")),
        "Hi",
        [("x", "f", A1)],
    ),
    "input with the beginning": (ended(use(input={"a": 1}), stop()), "", [("x", "f", A1)]),
    "an empty one, and more": (ended(use(input={}), piece(A1), stop()), "", [("x", "f", A1)]),
    "text with the beginning": (ended(start(text="H"), delta(text="i"), stop()), "Hi", []),
    "the end twice": (
        ended(use(), piece(A1), stop(), frame({"stopReason": "tool_use"}, event_type="messageStop")),
        "",
        [("x", "f", A1)],
    ),
    "tokens before the end": (
        frame({"usage": {}}, event_type="metadata") + ended(use(), piece(A1), stop()),
        "",
        [("x", "f", A1)],
    ),
    "no input": (ended(use(), stop()), "", [("x", "f", "{}")]),
    "no id": (ended(use(None), piece(A1)), "", [("", "f", A1)]),
    "no index": (ended(use(index=None), piece(A1, None)), "", [("x", "f", A1)]),
    "a number's every digit": (ended(use(), piece(LONG)), "", [("x", "f", LONG)]),
    "events of another day": (
        ended(delta(text="Hi"), frame({"x": 1}, event_type="news"), start(9, audio={})),
        "Hi",
        [],
    ),
    "a server's tool": (
        ended(use(type="server_tool_use"), piece(A1), stop(), use("y", "g", 1), piece(B2, 1)),
        "",
        [("y", "g", B2)],
    ),
    "whole: text and a call": (
        whole({"text": "Hi"}, used({"a": 1})),
        "Hi",
        [("x", "f", '{"a": 1}')],
    ),
    "whole: a call's type": (whole(used(type="tool_use")), "", [("x", "f", "{}")]),
    "whole: a server's tool": (whole(used(type="server_tool_use"), used(id="y")), "",
                               [("y", "f", "{}")]),
    "whole: input as text": (whole(used('{"a":1}')), "", [("x", "f", A1)]),
    "whole: input that is null": (whole(used(None)), "", [("x", "f", "{}")]),
    "whole: a number's every digit": (
        whole(used("%")).replace(b'"%"', LONG.encode()),
        "",
        [("x", "f", LONG)],
    ),
    "whole: half a surrogate pair": (whole(used({"a": "\ud83c"})), "",
                                     [("x", "f", '{"a": "\\ud83c"}')]),
    "whole: cited text": (
        whole({"citationsContent": {"content": [{"text": "a"}, {"text": "b"}], "citations": []}}),
        "ab",
        [],
    ),
    "whole: nothing": (whole(why="end_turn"), "", []),
}  # fmt: skip


@each_row(("body", "text", "calls"), READ.values(), ids=READ)
def test_what_is_read(body: bytes, text: str, calls: list[Call]) -> None:
    reply = read(body)
    assert (reply.text, calls_of(reply)) == (text, calls)
    assert reply.finish == ("tool_calls" if calls else "stop")
    assert all(call.complete for call in reply.tool_calls)
    assert [call.id for call in reply.tool_calls] == [f"call_{n}" for n in range(len(calls))]


@pytest.mark.parametrize("events", [(start(), piece(A1)), (piece(A1),)])
def test_a_call_whose_beginning_did_not_arrive_may_not_run(events: tuple[bytes, ...]) -> None:
    reply = read(ended(*events))
    assert (calls_of(reply), reply.finish) == ([("", "", A1)], "doubtful")
    assert not reply.tool_calls[0].complete


REASONS = [("end_turn", "tool_calls"), ("stop_sequence", "tool_calls"), ("tool_use", "tool_calls"),
           ("max_tokens", "length"), ("model_context_window_exceeded", "length"),
           ("guardrail_intervened", "content_filter"), ("content_filtered", "content_filter"),
           ("malformed_tool_use", "error"), ("malformed_model_output", "error"),
           ("something_new", "doubtful"), ("refusal", "refusal")]  # fmt: skip


@each_row(("reason", "finish"), REASONS)
def test_a_reason_that_is_no_natural_end_leaves_nothing_to_run(reason: str, finish: str) -> None:
    for body in (whole(used({"a": 1}), why=reason), ended(use(), piece(A1), stop(), why=reason)):
        reply = read(body)
        assert (reply.finish, reply.provider_finish) == (finish, reason)
        assert [call.complete for call in reply.tool_calls] == [finish == "tool_calls"]


CUT: dict[str, tuple[bytes, str]] = {
    "nothing at all": (b"", "incomplete"),
    "half of the first frame": (ended()[:20], "incomplete"),
    "no end": (b"".join((use(), piece(A1), stop())), "incomplete"),
    "the end torn": (ended(use(), piece(A1))[:-1], "incomplete"),
    "input that stops in a string": (ended(use(), piece('{"a": "b')), "length"),
    "whole: no reason": (whole(used({"a": 1}), why=None), "tool_calls"),
    "cut, and then a natural end": (
        use() + piece(A1) + frame({"stopReason": "max_tokens"}, event_type="messageStop") + ended(),
        "length",
    ),
}


@each_row(("body", "finish"), CUT.values(), ids=CUT)
def test_cut_replies(body: bytes, finish: str) -> None:
    reply = read(body)
    assert reply.finish == finish
    assert all(call.complete is (finish == "tool_calls") for call in reply.tool_calls)


def test_parts_come_as_soon_as_they_are_known() -> None:
    reading = decoder("bedrock-converse", offer=OFFER, ids="r_")
    assert reading.feed(delta(text="Hi")) == [TextPart("Hi")]
    assert reading.feed(delta(text="")) == []
    assert reading.feed(use(index=1)) == []
    assert reading.feed(piece('{"a', 1)) == [ArgumentsPart("r_0", "f", '{"a')]
    assert not reading.done
    assert reading.feed(ended()) == []
    assert reading.done


def test_tokens_are_added_up_with_those_of_the_cache() -> None:
    counts = {"inputTokens": 3, "outputTokens": 5, "cacheReadInputTokens": 7,
              "cacheWriteInputTokens": 11, "cacheReadInputTokenCount": 7}  # fmt: skip
    for body in (ended(usage=counts, why="end_turn"), whole(why="end_turn", usage=counts)):
        assert read(body).usage == Usage(1, 21, 5, 7, 11)


REASONING = {"reasoningContent": {"reasoningText": {"text": "Hm", "signature": "c2ln"}}}
UNSIGNED = {"reasoningContent": {"reasoningText": {"text": "Hm"}}}
HIDDEN = {"reasoningContent": {"redactedContent": base64.b64encode(b"abc").decode()}}
RAN = used({"a": 1}, type="server_tool_use")
RESULT = {"toolResult": {"toolUseId": "x", "type": "t", "content": [{"json": 1}, {"json": 2}]}}
CITED = {"citationsContent": {"content": [{"text": "Hi"}], "citations": [{"title": "T"}]}}


def thought(**member: str) -> bytes:
    return delta(reasoningContent=member)


KEPT: dict[str, tuple[bytes, list[Any]]] = {
    "reasoning": (
        ended(thought(text="H"), thought(text="m"), thought(signature="c2ln"), stop(),
              use(index=1), piece(A1, 1)),
        [REASONING, {"toolUse": {"toolUseId": "x", "name": "f"}}],
    ),
    "reasoning without a signature": (ended(thought(text="Hm"), delta(1, text="Hi")),
                                      [UNSIGNED, {"text": "Hi"}]),
    "the same, cut": (ended(thought(text="Hm"), delta(1, text="Hi"), why="max_tokens"),
                      [{"text": "Hi"}]),
    "hidden reasoning in two pieces": (
        ended(thought(redactedContent="YQ=="), thought(redactedContent="YmM=")),
        [HIDDEN],
    ),
    "a server's tool": (
        ended(use(type="server_tool_use"), piece(A1),
              start(1, toolResult={"toolUseId": "x", "type": "t"}),
              delta(1, toolResult=[{"json": 1}]), delta(1, toolResult=[{"json": 2}])),
        [RAN, RESULT],
    ),
    "a server's tool that was cut": (
        ended(use(type="server_tool_use"), piece('{"a'), why="max_tokens"), []),
    "citations": (
        ended(delta(text="H"), delta(citation={"title": "T"}), delta(text="i")), [CITED]),
    "an image": (
        ended(start(image={"format": "png"}), delta(image={"source": {"bytes": "aGk="}})),
        [{"image": {"format": "png", "source": {"bytes": "aGk="}}}],
    ),
    "whole": (whole(REASONING, {"text": "Hi"}, used(), why="tool_use"),
              [REASONING, {"text": "Hi"}, {"toolUse": {"toolUseId": "x", "name": "f"}}]),
    "nothing but text and calls": (whole({"text": "Hi"}, used()), []),
    "nothing but text and calls, in a stream": (ended(start(), delta(text="Hi"), use(index=1)), []),
}  # fmt: skip


@each_row(("body", "state"), KEPT.values(), ids=KEPT)
def test_what_is_kept_to_be_sent_back(body: bytes, state: list[Any]) -> None:
    expected = ProviderState("bedrock-converse", state) if state else None
    assert read(body).message.provider_state == expected


def exception(kind: str, **payload: Any) -> bytes:
    return frame(payload, message_type="exception", exception_type=kind)


ERRORS: dict[str, tuple[bytes, type[ClientError], str]] = {
    "throttling": (exception("throttlingException", message="Slow"), RateLimitError, "Slow"),
    "overload": (exception("serviceUnavailableException", message="Full"), OverloadedError, "Full"),
    "a failure": (exception("internalServerException", message="Oh"), ProviderError, "Oh"),
    "a model's failure": (
        exception("modelStreamErrorException", message="Oh", originalStatusCode=424),
        ProviderError,
        r"Oh \(modelStreamErrorException\)",
    ),
    "a refusal": (exception("validationException", message="No"), RequestError, "No"),
    "an unmodelled error": (
        frame(b"", message_type="error", error_code="InternalFailure", error_message="Oh"),
        ProviderError,
        r"Oh \(InternalFailure\)",
    ),
}


@each_row(("body", "kind", "words"), ERRORS.values(), ids=ERRORS)
def test_an_exception_in_a_stream_ends_it(body: bytes, kind: type[ClientError], words: str) -> None:
    reading = decoder("bedrock-converse", offer=OFFER)
    data = use() + piece(A1) + body
    parts = reading.feed(data + ended())
    assert (parts, reading.done) == ([ArgumentsPart("call_0", "f", A1)], True)
    with pytest.raises(kind, match=words) as caught:
        reading.finish()
    assert type(caught.value) is kind


ILL: dict[str, bytes] = {
    "an event that is no JSON": frame(b"{", event_type="metadata"),
    "an event that is no object": frame([1, 2], event_type="metadata"),
    "no delta": frame({"contentBlockIndex": 0}, event_type="contentBlockDelta"),
    "text that is none": delta(text=5),
    "input that is no text": piece({"a": 1}),
    "a start that is none": frame({"contentBlockIndex": 0}, event_type="contentBlockStart"),
    "a name that is no text": use(name=["f"]),
    "a call that is none": start(toolUse=5),
    "whole: a call that is none": whole({"toolUse": "f"}),
    "no event of Converse": frame({"a": 1}, event_type="initial-response"),
    "server-sent events": b'data: {"delta": {"text": "Hi"}}\n\n',
    "a page": b"<html>Bad gateway</html>",
    "another JSON": b'{"choices": []}',
    "an unknown operation": b'{"Output":{"__type":"UnknownOperationException"},"Version":"1.0"}',
    "content that is none": b'{"output": {"message": {"content": "Hi"}}}',
    "a block that is none": whole("Hi"),
    "a body cut": whole({"text": "Hi"})[:-4],
}


@each_row("body", ILL.values(), ids=ILL)
def test_what_is_not_of_this_wire_is_a_wire_error(body: bytes) -> None:
    with pytest.raises(WireError):
        read(body)


def test_a_call_nested_too_deeply_is_an_error_and_no_crash() -> None:
    deep = whole(used("%")).replace(b'"%"', b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
    with pytest.raises(ClientError):
        read(deep)


JUNK: list[Any] = [None, 5, "x", [], [5], {}, {"text": 5}, {"content": 5}, {"input": 5}]


@each_row("name", sorted(READ | KEPT))
def test_members_that_are_something_else_never_crash(name: str) -> None:
    """Every value of every event or body in turn is replaced by junk."""
    body = (READ | KEPT)[name][0]
    events = [Event(b"", body)] if body.startswith(b"{") else FrameStream().feed(body)
    for at, event in enumerate(events):
        payload = json.loads(event.data)
        for changed in _replaced(payload):
            data = json.dumps(changed).encode()
            if event.name:
                frames = [frame(e.data, event_type=e.name.decode()) for e in events]
                frames[at] = frame(data, event_type=event.name.decode())
                data = b"".join(frames)
            reading = decoder("bedrock-converse", offer=OFFER)
            reading.feed(data)
            with contextlib.suppress(ClientError):
                reply = reading.finish()
                results = [Message.tool(call, "x") for call in reply.tool_calls]
                request = ChatRequest((Message.user("Hi"), reply.message, *results))
                assert encode("bedrock-converse", request, model="m").body


def _replaced(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            for junk in (*JUNK, *_replaced(value[key])):
                copy = value.copy()
                copy[key] = junk
                yield copy


@settings(max_examples=sample(60), deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(sorted(READ | KEPT)))
def test_bytes_that_changed_on_the_way_never_crash(seed: int, name: str) -> None:
    """A stream's checksums find every change of a bit; a body may become another."""
    random_ = random.Random(seed)  # noqa: S311
    body = (READ | KEPT)[name][0]
    at = random_.randrange(len(body))
    changed = body[:at] + bytes([body[at] ^ (1 << random_.randrange(8))]) + body[at + 1 :]
    reading = decoder("bedrock-converse", offer=OFFER)
    for data in (changed[:at], changed[at:]):
        reading.feed(data)
    try:
        reply = reading.finish()
    except ClientError:
        return
    if not body.startswith(b"{"):
        assert not any(call.complete for call in reply.tool_calls)
