"""Replies of OpenAI's chat wire: tables of odd but possible bodies, whole and in pieces."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample, sampled

from toolcrib.errors import (
    AuthenticationError,
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
    Offer,
    ReasoningPart,
    Reply,
    TextPart,
    Usage,
)
from toolcrib.wire import OPENAI_CHAT, decode, decoder, framing

Call = tuple[str, str, str]

OFFER = Offer.of([PlainTool(ToolDefinition(name=n, description="", input_schema_json="{}"))
                  for n in ("f", "g", "read", "read_file")])  # fmt: skip


def sse_of(*chunks: Any, done: bool = True) -> bytes:
    lines = [c if isinstance(c, str) else json.dumps(c) for c in chunks]
    return "".join(f"data: {line}\n\n" for line in [*lines, *(["[DONE]"] if done else [])]).encode()


def delta(reason: str | None = None, **members: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": members, "finish_reason": reason}]}


def piece(text: Any = None, *, name: Any = None, id: Any = None, index: Any = 0) -> dict[str, Any]:
    """One element of `tool_calls`; what is None is left out."""
    function = {k: v for k, v in (("name", name), ("arguments", text)) if v is not None}
    given_ = {"index": index, "id": id, "function": function}
    return {k: v for k, v in given_.items() if v is not None}


def whole(reason: str | None = "stop", **message: Any) -> bytes:
    message = {"role": "assistant", "content": None} | message
    return json.dumps({"choices": [{"message": message, "finish_reason": reason}]}).encode()


def calls_of(reply: Reply) -> list[Call]:
    return [(call.provider_id, call.name, call.arguments) for call in reply.tool_calls]


def ended(*chunks: list[dict[str, Any]], reason: str | None = "tool_calls") -> bytes:
    """A stream of chunks with these `tool_calls`, and a finish reason."""
    return sse_of(*(delta(tool_calls=calls) for calls in chunks), delta(reason))


A1, B2 = '{"a":1}', '{"b":2}'

STREAMS: dict[str, tuple[bytes, list[Call]]] = {
    "plain": (ended([piece("", name="f", id="x")], [piece('{"a"')], [piece(":1}")]),
              [("x", "f", A1)]),
    "interleaved": (ended([piece('{"a"', name="f", id="x"), piece("", name="g", id="y", index=1)],
                          [piece('{"b":', index=1)], [piece(":1}")], [piece("2}", index=1)]),
                    [("x", "f", A1), ("y", "g", B2)]),
    "no index": (ended([piece("", name="f", id="x", index=None)], [piece(A1, index=None)],
                       [piece(B2, name="g", id="y", index=None)]),
                 [("x", "f", A1), ("y", "g", B2)]),
    "no index, no id": (ended([piece(A1, name="f", index=None)], [piece(B2, name="f", index=None)]),
                        [("", "f", A1), ("", "f", B2)]),
    "no index, two without arguments in one chunk":
        (ended([piece("", name="f", index=None), piece("", name="f", index=None)]),
         [("", "f", "{}"), ("", "f", "{}")]),
    "no index, one id for all": (ended([piece(A1, name="f", id="x", index=None)],
                                       [piece(B2, name="g", id="x", index=None)]),
                                 [("x", "f", A1), ("x", "g", B2)]),
    "no index, back to an earlier id":
        (ended([piece("{", name="f", id="x", index=None)], [piece("{", name="g", id="y", index=None)],
               [piece('"a":1}', id="x", index=None)], [piece('"b":2}', id="y", index=None)]),
         [("x", "f", A1), ("y", "g", B2)]),
    "one index, other ids": (ended([piece(A1, name="f", id="x")], [piece(B2, name="f", id="y")]),
                             [("x", "f", A1), ("y", "f", B2)]),
    "one index, other ids, no arguments":
        (ended([piece("", name="f", id="x")], [piece("", name="f", id="y")]),
         [("x", "f", "{}"), ("y", "f", "{}")]),
    "one index twice in one chunk": (ended([piece(A1, name="f", id="x"), piece(B2, name="g", id="y")]),
                                     [("x", "f", A1), ("y", "g", B2)]),
    "one index, no ids, names": (ended([piece(A1, name="f")], [piece(A1, name="f")]),
                                 [("", "f", A1), ("", "f", A1)]),
    "one index, no ids, other name": (ended([piece("", name="f")], [piece("", name="g")]),
                                      [("", "f", "{}"), ("", "g", "{}")]),
    "an id for each chunk": (ended([piece('{"a"', name="f", id="x")], [piece(":1", id="y")],
                                   [piece("}", id="z")], [piece("", id="w")]),
                             [("x", "f", A1)]),
    "an id for each chunk, with names":
        (ended([piece('{"a"', name="f", id="x")], [piece(":1}", name="f", id="y")]),
         [("x", "f", A1)]),
    "index from 1": (ended([piece("", name="f", id="x", index=1)], [piece(A1, index=1)]),
                     [("x", "f", A1)]),
    "index as text": (ended([piece("", name="f", id="x", index="0")], [piece(A1, index="0")]),
                      [("x", "f", A1)]),
    "index of no use": (ended([piece("", name="f", id="x", index=[1])], [piece(A1, index=True)]),
                        [("x", "f", A1)]),
    "index only at first": (ended([piece("", name="f", id="x")], [piece(A1, index=None)]),
                            [("x", "f", A1)]),
    "index changes, id stays":
        (ended([piece('{"a"', name="f", id="x")], [piece(":1}", id="x", index=1)]),
         [("x", "f", A1)]),
    "index as position, one id for all":
        (ended([piece(A1, name="f", id="x")], [piece(B2, name="g", id="x", index=1)]),
         [("x", "f", A1), ("x", "g", B2)]),
    "id and name repeated": (ended([piece("", name="f", id="0")], [piece(A1, name="f", id="0")],
                                   [piece("", name="f", id="0")]), [("0", "f", A1)]),
    "name repeated": (ended([piece("", name="f", id="x")], [piece('{"a"', name="f")],
                            [piece(":1}", name="f")], [piece("", name="f")]), [("x", "f", A1)]),
    "name split": (ended([piece("", name="read", id="x")], [piece(A1, name="_file")]),
                   [("x", "read_file", A1)]),
    "name grows": (ended([piece("", name="re", id="x")], [piece("", name="read_fi")],
                         [piece(A1, name="read_file")]), [("x", "read_file", A1)]),
    "name late": (ended([piece('{"a"', id="x")], [piece(":1}", name="f")]), [("x", "f", A1)]),
    "id late": (ended([piece("", name="f")], [piece(A1, id="x")]), [("x", "f", A1)]),
    "id a number": (ended([piece(A1, name="f", id=7)]), [("7", "f", A1)]),
    "id and name empty": (ended([piece("", name="f", id="x")], [piece(A1, name="", id="")]),
                          [("x", "f", A1)]),
    "nothing in it": (ended([piece("", name="", id="")], [piece(A1, name="f", id="x")], reason="stop"),
                      [("x", "f", A1)]),
    "empty pieces": (ended([None, piece(A1, name="f", id="x")]), [("x", "f", A1)]),  # type: ignore[list-item]
    "an object": (ended([piece({"a": 1}, name="f", id="x")]), [("x", "f", '{"a": 1}')]),
    "junk first": (ended([piece("{}", name="f", id="x")], [piece(A1)]), [("x", "f", A1)]),
    "null": (ended([piece("null", name="f", id="x")]), [("x", "f", "{}")]),
    "doubly encoded": (ended([piece(json.dumps(A1), name="f", id="x")]), [("x", "f", A1)]),
    "half a surrogate": (ended([piece('{"a":"\ud83d', name="f", id="x")], [piece('\ude00"}')]),
                         [("x", "f", '{"a":"😀"}')]),
    "lone surrogate": (ended([piece('{"a":"\ud83d"}', name="f", id="x")]),
                       [("x", "f", r'{"a":"\ud83d"}')]),
    "legacy": (sse_of(delta(function_call={"name": "f", "arguments": ""}),
                      delta(function_call={"arguments": A1}), delta("function_call")),
               [("", "f", A1)]),
    "legacy beside": (sse_of(delta(function_call={"name": "f", "arguments": A1},
                                   tool_calls=[piece(A1, name="f", id="x")]), delta("stop")),
                      [("x", "f", A1)]),
    "one call, not a list": (sse_of(delta(tool_calls=piece(A1, name="f", id="x")), delta("stop")),
                             [("x", "f", A1)]),
    "under message": (sse_of({"choices": [{"message": {"tool_calls": [piece(A1, name="f", id="x")]}}]}),
                      [("x", "f", A1)]),
    "one line each": (sse_of(delta(tool_calls=[piece(A1, name="f", id="x")]), delta("stop"))
                      .replace(b"\n\n", b"\n"), [("x", "f", A1)]),
    "another choice": (sse_of({"choices": [{"index": 0, "delta": {}}]},
                              {"choices": [{"index": 1, "delta": {"tool_calls": [
                                  piece("{", name="g")]}}]},
                              delta("stop", tool_calls=[piece(A1, name="f", id="x")])),
                       [("x", "f", A1)]),
}  # fmt: skip


@each_row(("body", "calls"), STREAMS.values(), ids=STREAMS)
def test_streamed_calls(body: bytes, calls: list[Call]) -> None:
    reply = decode("openai-chat", body, offer=OFFER)
    assert calls_of(reply) == calls
    assert reply.finish == "tool_calls"
    assert all(call.complete for call in reply.tool_calls)
    assert len({call.id for call in reply.tool_calls}) == len(calls)


@each_row("body", [body for body, _ in STREAMS.values()], ids=STREAMS)
def test_every_split_gives_the_same_reply_and_parts(body: bytes) -> None:
    random_ = random.Random(7)  # noqa: S311
    expected = outcome_of(body, [len(body)])
    assert outcome_of(body, [1] * len(body)) == expected
    sizes = [random_.randint(1, 40) for _ in range(len(body))]
    assert outcome_of(body, sizes) == expected


def outcome_of(body: bytes, sizes: list[int]) -> tuple[Any, ...]:
    reading, parts, at = decoder("openai-chat", True, OFFER), [], 0
    for size in sizes:
        parts += reading.feed(body[at : at + size])
        at += size
    try:
        return parts, reading.finish()
    except ClientError as error:
        return parts, repr(error)


def test_parts_are_what_the_reply_is_made_of() -> None:
    body = sse_of(
        delta(role="assistant", content="", reasoning="hmm"),
        delta(content="Let "),
        delta(content="me."),
        delta(tool_calls=[piece("", name="f", id="x"), piece("", name="g", id="y", index=1)]),
        delta(tool_calls=[piece('{"a":', index=0)]),
        delta(tool_calls=[piece(B2, index=1)]),
        delta(tool_calls=[piece("1}", index=0)]),
        delta("tool_calls"),
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}},
    )
    reading = decoder("openai-chat", ids="r_1_")
    parts = reading.feed(body)
    reply = reading.finish()
    assert parts == [
        ReasoningPart("hmm"),
        TextPart("Let "),
        TextPart("me."),
        ArgumentsPart("r_1_0", "f", '{"a":'),
        ArgumentsPart("r_1_1", "g", B2),
        ArgumentsPart("r_1_0", "f", "1}"),
    ]
    assert reading.done
    assert (reply.text, reply.usage) == ("Let me.", Usage(1, 5, 3))
    assert [call.id for call in reply.tool_calls] == ["r_1_0", "r_1_1"]


def test_wire_names_come_back_as_own_names() -> None:
    offer = Offer({}, {"weather_now_1": "weather.now"})
    reading = decoder("openai-chat", True, offer)
    parts = reading.feed(ended([piece(A1, name="weather_now_1", id="x")]))
    reply = reading.finish()
    assert parts == [ArgumentsPart("call_0", "weather.now", A1)]
    assert (reply.tool_calls[0].name, reply.offer) == ("weather.now", offer)


ONE = [piece(A1, name="f", id="x")]
CUT: dict[str, tuple[bytes, str]] = {
    "length": (ended(ONE, reason="length"), "length"),
    "length, no arguments": (ended([piece("", name="f", id="x")], reason="length"), "length"),
    "in capitals": (ended(ONE, reason="MAX_TOKENS"), "length"),
    "content filter": (ended(ONE, reason="content_filter"), "content_filter"),
    "broke": (ended(ONE, reason="network_error"), "error"),
    "no reason, no end": (sse_of(delta(tool_calls=ONE), done=False), "incomplete"),
    "torn chunk": (ended(ONE)[:-30], "incomplete"),
    "torn after the reason": (sse_of(delta("stop", tool_calls=ONE), done=False) + b'data: {"us',
                              "incomplete"),
    "arguments torn, whatever the reason": (ended([piece('{"a": "', name="f", id="x")]), "length"),
    "reason of the native kind": (
        sse_of({"choices": [{"delta": {"tool_calls": ONE}, "finish_reason": "tool_calls",
                             "native_finish_reason": "length"}]}), "length"),
    "a later reason does not mend it": (
        sse_of(delta("length", tool_calls=ONE), delta("stop")), "length"),
    "an error beside the choice": (
        sse_of({"choices": [{"delta": {"tool_calls": ONE}, "finish_reason": "tool_calls",
                             "error": {"code": 502}}]}), "error"),
    "whole, length": (whole("length", tool_calls=ONE), "length"),
    "whole, empty arguments": (whole("length", tool_calls=[piece("", name="f")]), "length"),
    "whole, torn arguments": (whole("tool_calls", tool_calls=[piece('{"a', name="f")]), "length"),
}  # fmt: skip


@each_row(("body", "finish"), CUT.values(), ids=CUT)
def test_a_cut_reply_has_no_call_that_may_run(body: bytes, finish: str) -> None:
    reply = decode("openai-chat", body)
    assert reply.finish == finish
    assert [call.complete for call in reply.tool_calls] == [False]
    assert reply.tool_calls[0].arguments in (A1, "", '{"a": "', '{"a')


@each_row("body", [body for body, _ in STREAMS.values()], ids=STREAMS)
def test_a_stream_that_stops_anywhere_has_no_call_that_may_run(body: bytes) -> None:
    reasons = [at for at in (body.rfind(b'"finish_reason": "'), body.find(b"[DONE]")) if at > 0]
    for at in sampled(range(min(reasons))):
        reading = decoder("openai-chat", True, OFFER)
        reading.feed(body[:at])
        reply = reading.finish()
        assert reply.finish == "incomplete"
        assert not any(call.complete for call in reply.tool_calls)


BIG = '{"a": 1e400, "a" :12345678901234567890123}'

WHOLE: dict[str, tuple[bytes, list[Call], str, str]] = {
    "text": (whole(content="Hi"), [], "Hi", "stop"),
    "no reason": (whole(None, content="Hi"), [], "Hi", "stop"),
    "reason says tools, there are none": (whole("tool_calls", content="Hi"), [], "Hi", "stop"),
    "reason says stop": (whole("stop", tool_calls=ONE), [("x", "f", A1)], "", "tool_calls"),
    "text and calls": (whole("", content="Hi", tool_calls=ONE), [("x", "f", A1)], "Hi", "tool_calls"),
    "equal ids": (whole(tool_calls=[*ONE, *ONE]), [("x", "f", A1), ("x", "f", A1)], "", "tool_calls"),
    "equal indexes": (whole(tool_calls=[piece(A1, name="f"), piece(B2, name="g")]),
                      [("", "f", A1), ("", "g", B2)], "", "tool_calls"),
    "an object keeps its bytes": (
        whole(tool_calls=[piece("BIG", name="f")]).replace(b'"BIG"', BIG.encode()),
        [("", "f", BIG)], "", "tool_calls"),
    "no arguments": (whole(tool_calls=[piece(name="f", id="x")]), [("x", "f", "{}")], "", "tool_calls"),
    "a number": (whole(tool_calls=[piece(5, name="f")]), [("", "f", "5")], "", "tool_calls"),
    "custom": (whole(tool_calls=[{"id": "x", "custom": {"name": "f", "input": "4+4"}}]),
               [("x", "f", "4+4")], "", "tool_calls"),
    "legacy": (whole(function_call={"name": "f", "arguments": A1}), [("", "f", A1)], "", "tool_calls"),
    "legacy, an object": (whole(function_call={"name": "f", "arguments": {"a": 1}}),
                          [("", "f", '{"a": 1}')], "", "tool_calls"),
    "legacy, empty": (whole("", content="Hi", function_call={"name": "", "arguments": ""}),
                      [], "Hi", "stop"),
    "refusal": (whole(refusal="I will not."), [], "I will not.", "refusal"),
    "refusal, empty": (whole(content="Hi", refusal=""), [], "Hi", "stop"),
    "content in parts": (whole(content=[{"type": "text", "text": "a"}, {"type": "image"},
                                        {"type": "text", "text": "b"}]), [], "ab", "stop"),
    "under delta": (b'{"choices":[{"delta":{"content":"Hi"}}]}', [], "Hi", "stop"),
    "byte order mark": (b"\xef\xbb\xbf \n" + whole(content="Hi"), [], "Hi", "stop"),
}  # fmt: skip


@each_row(("body", "calls", "text", "finish"), WHOLE.values(), ids=WHOLE)
def test_whole_bodies(body: bytes, calls: list[Call], text: str, finish: str) -> None:
    reply = decode("openai-chat", body, content_type="application/json")
    assert (calls_of(reply), reply.text, reply.finish) == (calls, text, finish)
    assert reply.raw["choices"]
    for streaming in (False, True):
        reading = decoder("openai-chat", streaming)
        for at in range(0, len(body), 3):
            assert reading.feed(body[at : at + 3]) == []
        assert reading.finish() == reply


def test_reasons_are_normalised_and_kept() -> None:
    reply = decode("openai-chat", whole("tool_call", tool_calls=ONE))
    assert (reply.finish, reply.provider_finish) == ("tool_calls", "tool_call")
    assert decode("openai-chat", whole(None, content="x")).provider_finish is None


def test_a_call_in_the_text_is_text_unless_the_wire_says_otherwise() -> None:
    body = whole(content='{"name": "f", "parameters": {"a": 1}}')
    assert decode("openai-chat", body, offer=OFFER).finish == "stop"
    llama = msgspec.structs.replace(OPENAI_CHAT, text_calls="llama")
    reply = decode(llama, body, offer=OFFER)
    assert (calls_of(reply), reply.text) == ([("", "f", '{"a": 1}')], "")
    unknown = whole(content='{"name": "other", "parameters": {}}')
    assert decode(llama, unknown, offer=OFFER).finish == "stop"


ERRORS: list[tuple[bytes, type[ClientError], str]] = [
    (sse_of({"error": {"message": "busy", "code": "overloaded"}}, done=False), OverloadedError,
     "busy (overloaded)"),
    (sse_of(delta(content="Hi"), {"error": "text only"}), ProviderError, "text only"),
    (b'event: error\ndata: {"message": "bad"}\n\n', ProviderError, "bad"),
    (sse_of(delta("tool_calls", tool_calls=ONE), {"choices": [], "error": {"message": "late"}}),
     ProviderError, "late"),
    (b'{"error": {"message": "no", "code": 429}}', RateLimitError, "no"),
    (b'[{"error": {"message": "in a list"}}]', ProviderError, "in a list"),
    (sse_of("Number of choices must be greater than 0."), WireError, "Number of choices"),
    (sse_of("{broken", delta("stop")), WireError, "not a JSON object"),
    (sse_of('"text"'), WireError, "not a JSON object"),
    (sse_of({"choices": 5}), WireError, "`choices`"),
    (sse_of({"choices": [5]}), WireError, "`choices[0]`"),
    (sse_of({"type": "message_start", "message": {}}), WireError, "neither JSON nor an event stream"),
    (sse_of(delta(tool_calls=5)), WireError, "tool call"),
    (sse_of(delta(tool_calls=[5])), WireError, "tool call"),
    (sse_of(delta(tool_calls=[{"function": 5}])), WireError, "function"),
    (sse_of(delta(tool_calls=[piece(A1, name=5)])), WireError, "name"),
    (sse_of(delta(content=5)), WireError, "content"),
    (b"Not Found\n", WireError, "neither JSON nor an event stream"),
    (b"<html><title>502</title></html>", WireError, "not a JSON object"),
    (b"{}", WireError, "no choices"),
    (b'{"choices": []}', WireError, "no choices"),
    (b'{"choices": [{}]}', WireError, "neither `message`"),
    (b'{"choices": [{"message"', WireError, "not a JSON object"),
    (b'{"a":' * 100_000, WireError, "not a JSON object"),
    (b"[1, 2]", WireError, "not a JSON object"),
]  # fmt: skip


@each_row(("body", "kind", "said"), ERRORS)
def test_what_is_no_reply_is_a_typed_error(body: bytes, kind: type[ClientError], said: str) -> None:
    reading = decoder("openai-chat")
    reading.feed(body)
    if reading.done:
        assert reading.feed(b"data: {}\n\n") == []
    with pytest.raises(kind) as caught:
        reading.finish()
    assert said in str(caught.value)
    assert type(caught.value) is kind
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_an_empty_body_is_no_reply() -> None:
    with pytest.raises(WireError, match="empty"):
        decoder("openai-chat", False).finish()


def test_an_error_is_known_before_the_stream_ends() -> None:
    reading = decoder("openai-chat")
    assert reading.feed(sse_of(delta(content="Hi"), done=False)) == [TextPart("Hi")]
    assert not reading.done
    assert reading.feed(sse_of(delta(content="!"), {"error": "x"}, done=False)) == [TextPart("!")]
    assert reading.done


STATUSES: list[tuple[int, type[ClientError]]] = [
    (400, RequestError),
    (401, AuthenticationError),
    (403, AuthenticationError),
    (404, RequestError),
    (422, RequestError),
    (429, RateLimitError),
    (500, ProviderError),
    (503, OverloadedError),
    (302, WireError),
]


@each_row(("status", "kind"), STATUSES)
@each_row(
    ("body", "said"),
    [
        ('{"error": {"message": "because", "code": "why"}}', ": because (why)"),
        ('{"error": "because"}', ": because"),
        ('{"detail": [{"msg": "because", "loc": []}]}', ": because"),
        ('{"message": "because"}', ": because"),
        ("because\n of\tthis", ": because of this"),
        ("<html>502</html>", ""),
        ("", ""),
        ("{}", ""),
    ],
)
def test_statuses(status: int, kind: type[ClientError], body: str, said: str) -> None:
    with pytest.raises(kind) as caught:
        decode("openai-chat", body, status=status)
    assert type(caught.value) is kind
    assert caught.value.status == status
    assert str(caught.value).partition(f"(HTTP {status})")[2].startswith(said)


def test_error_texts_are_bounded_and_hold_no_key() -> None:
    text = "Incorrect API key provided: sk-proj-abc*****wxyz. " + "x" * 5000
    with pytest.raises(AuthenticationError) as caught:
        decode("openai-chat", json.dumps({"error": {"message": text}}), status=401)
    assert "sk-" not in str(caught.value)
    assert "[key]" in str(caught.value)
    assert len(str(caught.value)) < 600


def test_a_stream_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.wire.decoding.MAX_STREAM_BYTES", 1000)
    monkeypatch.setattr("toolcrib.wire.decoding.MAX_BYTES", 1000)
    for body in (sse_of(*[delta(content="x")] * 100), b'{"a": "' + b"x" * 2000):
        reading = decoder("openai-chat")
        reading.feed(body[:900])
        assert not reading.done
        reading.feed(body[900:1100])
        assert reading.done
        with pytest.raises(WireError, match="larger than 1000"):
            reading.finish()


def test_one_event_without_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing.EventStream.__init__, "__defaults__", (1000,))
    reading = decoder("openai-chat")
    for _ in range(300):
        reading.feed(b"data:")
    assert reading.done
    with pytest.raises(WireError, match="larger than 1000"):
        reading.finish()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "delta", "message", "tool_calls", "function", "name", "arguments", "id",
             "index", "content", "function_call", "error", "usage", "finish_reason", "refusal"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=sample(120))
@given(st.lists(_JSON, max_size=4), st.booleans())
def test_no_json_makes_it_crash(values: list[Any], streaming: bool) -> None:
    chunks = [{"choices": [{"delta": v, "message": v}]} if streaming else v for v in values]
    for body in (sse_of(*chunks), json.dumps(chunks[:1]).encode(), sse_of(*values)):
        try:
            reply = decode("openai-chat", body)
        except ClientError:
            continue
        assert (reply.finish == "tool_calls") == any(c.complete for c in reply.tool_calls)


@settings(max_examples=sample(100))
@given(st.binary(max_size=60), st.sampled_from([b"", b"data: ", b'data: {"choices":[{"delta":']))
def test_no_bytes_make_it_crash(data: bytes, start: bytes) -> None:
    try:
        reply = decode("openai-chat", start + data)
    except ClientError:
        return
    assert reply.finish in ("incomplete", "stop")


@pytest.mark.parametrize("repeat_name", [False, True])
@pytest.mark.exhaustive
def test_many_deltas_of_one_call_are_all_kept(repeat_name: bool) -> None:
    """With a name in each delta every one may begin a new call; that must not cost a new scan."""
    name = "f" if repeat_name else None
    pieces = [piece("{}", name=name)] * 20_000
    body = ended([piece('{"a":"', name="f")], *([one] for one in pieces), [piece('"}', name=name)])
    (call,) = decode("openai-chat", body).tool_calls
    assert call.arguments == '{"a":"' + "{}" * 20_000 + '"}'
