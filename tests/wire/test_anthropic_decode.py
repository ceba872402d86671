"""Replies of Anthropic's wire: tables of odd but possible bodies, whole and in pieces."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample, sampled

from toolcrib.errors import ClientError, OverloadedError, ProviderError, WireError
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import (
    ArgumentsPart,
    Message,
    Offer,
    ProviderState,
    Reply,
    TextPart,
    Usage,
)
from toolcrib.wire import ChatRequest, decode, decoder, encode

Call = tuple[str, str, str]

OFFER = Offer.of([PlainTool(ToolDefinition(name=n, description="", input_schema_json="{}"))
                  for n in ("f", "g")])  # fmt: skip
A1, B2 = '{"a":1}', '{"b":2}'
LONG = '{"a": 1e400, "a" :12345678901234567890123}'
START = {
    "type": "message_start",
    "message": {"type": "message", "role": "assistant", "content": []},
}
STOP = {"type": "message_stop"}


def sse_of(*events: Any) -> bytes:
    """Named events, as Anthropic sends them; text goes out as it stands."""
    lines = [e if isinstance(e, str) else f"event: {e['type']}\ndata: {json.dumps(e)}"
             for e in events]  # fmt: skip
    return "".join(f"{line}\n\n" for line in lines).encode()


def start(kind: str = "tool_use", index: Any = 0, **members: Any) -> dict[str, Any]:
    block = {"type": kind} | members
    return {"type": "content_block_start", "index": index, "content_block": block}


def call(id: str = "x", name: str = "f", input: Any = (), index: Any = 0) -> dict[str, Any]:
    """Call."""
    return start(index=index, id=id, name=name, input={} if input == () else input)


def delta(index: Any = 0, kind: str = "input_json_delta", **members: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind} | members}


def piece(text: Any, index: Any = 0) -> dict[str, Any]:
    return delta(index, partial_json=text)


def told(text: str, index: Any = 0) -> dict[str, Any]:
    return delta(index, "text_delta", text=text)


def stop(index: Any = 0) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def reason(reason: Any = "tool_use", **usage: Any) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


def ended(*events: Any, why: str = "tool_use") -> bytes:
    return sse_of(START, *events, reason(why), STOP)


def whole(*content: Any, why: str | None = "end_turn", **members: Any) -> bytes:
    body = {"type": "message", "role": "assistant", "content": content, "stop_reason": why}
    return json.dumps(body | members).encode()


def used(input: Any = (), id: Any = "x", name: Any = "f", **members: Any) -> dict[str, Any]:
    block = {"type": "tool_use", "id": id, "name": name, "input": {} if input == () else input}
    return block | members


def text(text: str, **members: Any) -> dict[str, Any]:
    return {"type": "text", "text": text} | members


def calls_of(reply: Reply) -> list[Call]:
    return [(call.provider_id, call.name, call.arguments) for call in reply.tool_calls]


STREAMS: dict[str, tuple[bytes, list[Call]]] = {
    "plain": (ended(call(), piece(""), piece('{"a"'), piece(":1}"), stop()), [("x", "f", A1)]),
    "no arguments": (ended(call(), piece(""), stop()), [("x", "f", "{}")]),
    "no delta at all": (ended(call(), stop()), [("x", "f", "{}")]),
    "two": (ended(call(), piece(A1), stop(), call("y", "g", index=1), piece(B2, 1), stop(1)),
            [("x", "f", A1), ("y", "g", B2)]),
    "interleaved": (ended(call(), call("y", "g", index=1), piece('{"a"'), piece(B2, 1), piece(":1}"),
                          stop(), stop(1)), [("x", "f", A1), ("y", "g", B2)]),
    "one tool twice": (ended(call(), piece(A1), stop(), call("y", index=1), piece(A1, 1), stop(1)),
                       [("x", "f", A1), ("y", "f", A1)]),
    "equal ids": (ended(call(), piece(A1), stop(), call(index=1), piece(A1, 1), stop(1)),
                  [("x", "f", A1)]),
    "no ids": (ended(call(""), piece(A1), stop(), call("", index=1), piece(A1, 1), stop(1)),
               [("", "f", A1), ("", "f", A1)]),
    "one index for all": (ended(call(), piece(A1), stop(), call("y"), piece(B2), stop()),
                          [("x", "f", A1), ("y", "f", B2)]),
    "one index for all, nothing stopped": (ended(call(), piece(A1), call("y"), piece(B2)),
                                           [("x", "f", A1), ("y", "f", B2)]),
    "no index": (ended(call(index=None), piece(A1, None), call("y", "g", index=None),
                       piece(B2, None)), [("x", "f", A1), ("y", "g", B2)]),
    "no index in deltas": (ended(call(index=3), piece(A1, None), stop(3)), [("x", "f", A1)]),
    "index of no use": (ended(call(index=[1]), piece(A1, {})), [("x", "f", A1)]),
    "input at the start": (ended(call(input={"a": 1}), stop()), [("x", "f", '{"a": 1}')]),
    "input at the start, and again in deltas": (ended(call(input={"a": 1}), piece(A1), stop()),
                                                [("x", "f", A1)]),
    "input at the start, empty deltas": (ended(call(input={"a": 1}), piece(""), stop()),
                                         [("x", "f", '{"a": 1}')]),
    "input at the start, no stop": (ended(call(input={"a": 1})), [("x", "f", '{"a": 1}')]),
    "input at the start, as text": (ended(call(input=A1), stop()), [("x", "f", A1)]),
    "input at the start keeps its bytes": (
        ended(call(input={"LONG": 1}), stop()).replace(b'{"LONG": 1}', LONG.encode()),
        [("x", "f", LONG)]),
    "input null": (ended(call(input=None), stop()), [("x", "f", "{}")]),
    "after text and thinking": (
        ended(start("thinking", thinking="", signature=""), delta(0, "thinking_delta", thinking="Hm"),
              delta(0, "signature_delta", signature="sig"), stop(), start("text", 1, text=""),
              told("Hi", 1), stop(1), call(index=2), piece(A1, 2), stop(2)), [("x", "f", A1)]),
    "beside a tool of the provider's": (
        ended(start("server_tool_use", id="s", name="web_search", input={}), piece('{"q":1}'), stop(),
              start("web_search_tool_result", 1, tool_use_id="s", content=[]), stop(1),
              call(index=2), piece(A1, 2), stop(2)), [("x", "f", A1)]),
    "pings": (sse_of(START, "event: ping\ndata: {\"type\": \"ping\"}", "event: ping\ndata: ",
                     'event: ping\ndata: ""', ": hm", call(), piece(A1), reason(), STOP),
              [("x", "f", A1)]),
    "events of tomorrow": (ended({"type": "later"}, call(), {"type": ["odd"]}, piece(A1),
                                 stop(), start("later", 1), delta(1, "later", more=1)),
                           [("x", "f", A1)]),
    "no event names": (ended(call(), piece(A1), stop()).replace(b"event: ", b"id: "),
                       [("x", "f", A1)]),
    "names only in the events": (
        ended(call(), piece(A1), stop()).replace(b'{"type": "content_block', b'{"was": "content_block'),
        [("x", "f", A1)]),
    "the reason is wrong": (ended(call(), piece(A1), stop(), why="end_turn"), [("x", "f", A1)]),
    "no last event": (sse_of(START, call(), piece(A1), stop(), reason()), [("x", "f", A1)]),
    "null for a piece": (ended(call(), piece(None), piece(A1), stop()), [("x", "f", A1)]),
    "half a surrogate": (ended(call(), piece('{"a":"\ud83d'), piece('\ude00"}'), stop()),
                         [("x", "f", '{"a":"😀"}')]),
    "id a number": (ended(call(7), piece(A1)), [("7", "f", A1)]),  # type: ignore[arg-type]
}  # fmt: skip


WITHOUT_A_NAME = {
    "nobody announced it": ended(piece('{"a"'), piece(":1}"), stop()),
    "pieces after a text": ended(start("text", text=""), told("Hi"), piece(A1)),
}


@pytest.mark.parametrize("body", WITHOUT_A_NAME.values(), ids=WITHOUT_A_NAME)
def test_a_call_whose_beginning_did_not_arrive_may_not_run(body: bytes) -> None:
    reply = decode("anthropic", body)
    assert (calls_of(reply), reply.finish) == ([("", "", A1)], "doubtful")
    assert not reply.tool_calls[0].complete


@each_row(("body", "calls"), STREAMS.values(), ids=STREAMS)
def test_streamed_calls(body: bytes, calls: list[Call]) -> None:
    reply = decode("anthropic", body, offer=OFFER)
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
    reading, parts, at = decoder("anthropic", True, OFFER), [], 0
    for size in sizes:
        parts += reading.feed(body[at : at + size])
        at += size
    try:
        return parts, reading.finish()
    except ClientError as error:
        return parts, repr(error)


def test_parts_are_what_the_reply_is_made_of() -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}
    first = {"type": "message_start", "message": {"usage": usage | {"output_tokens": 1}}}
    body = sse_of(
        first,
        start("text", text="Let "),
        told("me."),
        told(""),
        stop(),
        call(index=1),
        piece('{"a":', 1),
        piece("1}", 1),
        stop(1),
        call("y", "g", {"b": 2}, index=2),
        stop(2),
        reason(output_tokens=30, input_tokens=None),
        STOP,
    )
    reading = decoder("anthropic", ids="r_1_")
    parts = reading.feed(body)
    reply = reading.finish()
    assert parts == [
        TextPart("Let "),
        TextPart("me."),
        ArgumentsPart("r_1_0", "f", '{"a":'),
        ArgumentsPart("r_1_0", "f", "1}"),
        ArgumentsPart("r_1_1", "g", '{"b": 2}'),
    ]
    assert reading.done
    assert (reply.text, reply.usage) == ("Let me.", Usage(1, 125, 30, 100, 20))
    assert [call.id for call in reply.tool_calls] == ["r_1_0", "r_1_1"]
    assert reply.message.provider_state is None


def test_wire_names_come_back_as_own_names() -> None:
    reading = decoder("anthropic", True, Offer({}, {"weather_now_1": "weather.now"}))
    parts = reading.feed(ended(call(name="weather_now_1"), piece(A1)))
    assert parts == [ArgumentsPart("call_0", "weather.now", A1)]
    assert reading.finish().tool_calls[0].name == "weather.now"


ONE = (call(), piece(A1), stop())
CUT: dict[str, tuple[bytes, str]] = {
    "max_tokens": (ended(*ONE, why="max_tokens"), "length"),
    "max_tokens, no arguments": (ended(call(), piece(""), stop(), why="max_tokens"), "length"),
    "window": (ended(*ONE, why="model_context_window_exceeded"), "length"),
    "paused": (ended(*ONE, why="pause_turn"), "length"),
    "refusal": (ended(*ONE, why="refusal"), "refusal"),
    "no reason, no end": (sse_of(START, *ONE), "incomplete"),
    "torn event": (ended(*ONE)[:-90], "incomplete"),
    "torn after the reason": (sse_of(START, *ONE, reason()) + b'event: message_stop\ndata: {"t',
                              "incomplete"),
    "arguments torn, whatever the reason": (ended(call(), piece('{"a": "'), stop()), "length"),
    "a later reason does not mend it": (
        sse_of(START, *ONE, reason("max_tokens"), reason("tool_use"), STOP), "length"),
    "whole, max_tokens": (whole(used({"a": 1}), why="max_tokens"), "length"),
    "whole, refusal": (whole(used({"a": 1}), why="refusal"), "refusal"),
    "whole, no arguments": (whole(used(), why="max_tokens"), "length"),
}  # fmt: skip


@each_row(("body", "finish"), CUT.values(), ids=CUT)
def test_a_cut_reply_has_no_call_that_may_run(body: bytes, finish: str) -> None:
    reply = decode("anthropic", body)
    assert reply.finish == finish
    assert [call.complete for call in reply.tool_calls] == [False]
    assert reply.tool_calls[0].arguments in (A1, '{"a": 1}', "", "{}", '{"a": "')


@each_row("body", [body for body, _ in STREAMS.values()], ids=STREAMS)
def test_a_stream_that_stops_anywhere_has_no_call_that_may_run(body: bytes) -> None:
    ends = [
        at
        for at in (body.rfind(b'"stop_reason": "'), body.find(b'{"type": "message_stop'))
        if at > 0
    ]
    for at in sampled(range(min(ends))):
        reading = decoder("anthropic", True, OFFER)
        reading.feed(body[:at])
        reply = reading.finish()
        assert reply.finish == "incomplete"
        assert not any(call.complete for call in reply.tool_calls)


WHOLE: dict[str, tuple[bytes, list[Call], str, str]] = {
    "text": (whole(text("Hi")), [], "Hi", "stop"),
    "stop sequence": (whole(text("Hi"), why="stop_sequence"), [], "Hi", "stop"),
    "no reason": (whole(text("Hi"), why=None), [], "Hi", "stop"),
    "nothing": (whole(), [], "", "stop"),
    "refusal": (whole(why="refusal"), [], "", "refusal"),
    "reason says tools, there are none": (whole(text("Hi"), why="tool_use"), [], "Hi", "stop"),
    "reason says otherwise": (whole(used({"a": 1})), [("x", "f", '{"a": 1}')], "", "tool_calls"),
    "texts and calls": (whole(text("a"), used({"a": 1}), text("b")), [("x", "f", '{"a": 1}')], "ab",
                        "tool_calls"),
    "equal ids": (whole(used(), used()), [("x", "f", "{}")], "", "tool_calls"),
    "an object keeps its bytes": (whole(used({"L": 1})).replace(b'{"L": 1}', LONG.encode()),
                                  [("x", "f", LONG)], "", "tool_calls"),
    "input as text": (whole(used(A1)), [("x", "f", A1)], "", "tool_calls"),
    "no input": (whole({"type": "tool_use", "id": "x", "name": "f"}), [("x", "f", "{}")], "",
                 "tool_calls"),
    "input null": (whole(used(None)), [("x", "f", "{}")], "", "tool_calls"),
    "input a list": (whole(used([1])), [("x", "f", "[1]")], "", "tool_calls"),
    "blocks of tomorrow": (whole({"type": "later"}, {"type": ["odd"]}, {}, text("Hi")), [], "Hi",
                           "stop"),
    "half a surrogate": (whole(text("a\ud83d"), used({"a": 1})), [("x", "f", '{"a": 1}')],
                         "a\ufffd", "tool_calls"),
    "byte order mark": (b"\xef\xbb\xbf \n" + whole(text("Hi")), [], "Hi", "stop"),
}  # fmt: skip


@each_row(("body", "calls", "text_", "finish"), WHOLE.values(), ids=WHOLE)
def test_whole_bodies(body: bytes, calls: list[Call], text_: str, finish: str) -> None:
    reply = decode("anthropic", body, content_type="application/json")
    assert (calls_of(reply), reply.text, reply.finish) == (calls, text_, finish)
    for streaming in (False, True):
        reading = decoder("anthropic", streaming)
        for at in range(0, len(body), 3):
            assert reading.feed(body[at : at + 3]) == []
        assert reading.finish() == reply


THINKING = {"type": "thinking", "thinking": "Hm.", "signature": "sig"}
SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": "x"}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"url": "u"}]}
CITED = text("There.", citations=[{"cited_text": "T"}, {"cited_text": "h"}])
SUMMARY = {"type": "compaction", "content": "So far.", "encrypted_content": "e"}
CALLER = {"type": "code_execution_20260120", "tool_id": "s"}
PLACE = {"type": "tool_use", "id": "x", "name": "f"}

STATES: dict[str, tuple[list[Any], list[Any] | None]] = {
    "text and calls say it all": ([text("Hi"), used({"a": 1}, caller={"type": "direct"})], None),
    "no citations": ([text("Hi", citations=[]), text("!", citations=None)], None),
    "thinking": ([THINKING, text("Hi"), used({"a": 1})], [THINKING, text("Hi"), PLACE]),
    "redacted": ([{"type": "redacted_thinking", "data": "z"}],) * 2,
    "a search": ([text("Hi"), SEARCH, FOUND, CITED],) * 2,
    "who called": ([SEARCH, used({}, caller=CALLER)], [SEARCH, PLACE | {"caller": CALLER}]),
    "a summary": ([SUMMARY, text("Hi")],) * 2,
}


def streamed(content: list[Any]) -> bytes:
    """The events for a message, its texts in halves."""
    events: list[Any] = []
    for index, block in enumerate(content):
        begin, deltas = dict(block), []
        for member, kind in (("text", "text_delta"), ("thinking", "thinking_delta")):
            if member in block:
                begin[member] = ""
                deltas += [delta(index, kind, **{member: half})
                           for half in (block[member][:1], block[member][1:])]  # fmt: skip
        if "signature" in block:
            begin["signature"] = ""
            deltas.append(delta(index, "signature_delta", signature=block["signature"]))
        if block.get("citations"):
            begin["citations"] = []
            deltas += [delta(index, "citations_delta", citation=c) for c in block["citations"]]
        if "input" in block:
            begin["input"], given = {}, json.dumps(block["input"])
            deltas += [piece(half, index) for half in ("", given[:4], given[4:])]
        if block["type"] == "compaction":
            begin = {"type": "compaction", "content": ""}
            deltas.append(
                delta(index, "compaction_delta", **SUMMARY | {"type": "compaction_delta"})
            )
        events += [{"type": "content_block_start", "index": index, "content_block": begin}, *deltas,
                   stop(index)]  # fmt: skip
    return ended(*events)


@each_row(("content", "state"), STATES.values(), ids=STATES)
@each_row("body_of", [lambda content: whole(*content), streamed], ids=["whole", "streamed"])
def test_what_must_go_back_is_kept_and_goes_back(
    content: list[Any], state: list[Any] | None, body_of: Any
) -> None:
    reply = decode("anthropic", body_of(content))
    assert reply.message.provider_state == (ProviderState("anthropic", state) if state else None)
    results = [Message.tool(call, "x") for call in reply.tool_calls]
    request = ChatRequest((Message.user("Hi"), reply.message, *results))
    sent = json.loads(encode("anthropic", request, model="m").body)["messages"][1]["content"]
    if state is not None:
        assert sent == content


def test_what_was_cut_does_not_go_back() -> None:
    """Thinking without its signature, or a call of the provider's without its input, is refused."""
    thinking = start("thinking", thinking="", signature="")
    body = sse_of(START, thinking, delta(0, "thinking_delta", thinking="H"), stop(),
                  start("server_tool_use", 1, id="s", name="web_search", input={}),
                  piece('{"q":', 1), stop(1), reason("max_tokens"), STOP)  # fmt: skip
    assert decode("anthropic", body).message.provider_state is None
    unsigned = ended(thinking, delta(0, "thinking_delta", thinking="H"), stop(), why="end_turn")
    state = decode("anthropic", unsigned).message.provider_state
    assert state is not None
    assert state.data == [{"type": "thinking", "thinking": "H", "signature": ""}]


ERRORS: list[tuple[bytes, type[ClientError], str]] = [
    (sse_of({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
     OverloadedError, "Overloaded (overloaded_error)"),
    (sse_of(START, *ONE, reason(), {"type": "error", "error": {"message": "late"}}), ProviderError,
     "late"),
    (b'data: {"type": "error", "message": "bare"}\n\n', ProviderError, "bare"),
    (b'{"type": "error", "error": {"type": "api_error", "message": "no"}}', ProviderError, "no (api"),
    (b'{"type": "error", "message": "bare"}', ProviderError, "bare"),
    (sse_of(START, "event: content_block_delta\ndata: {broken"), WireError, "not a JSON object"),
    (sse_of({"type": "content_block_start", "index": 0}), WireError, "content block"),
    (sse_of({"type": "content_block_delta", "index": 0}), WireError, "no delta"),
    (sse_of(call(name=5)), WireError, "name"),  # type: ignore[arg-type]
    (sse_of(call(), piece({"a": 1})), WireError, "`partial_json`"),
    (sse_of(start("text", text=5)), WireError, "text"),
    (sse_of(told(5)), WireError, "`text`"),  # type: ignore[arg-type]
    (b'data: {"choices": [{"delta": {}}]}\n\n', WireError, "neither JSON nor an event stream"),
    (b'{"choices": [{"message": {}}]}', WireError, "no content blocks"),
    (b'{"content": "Hi"}', WireError, "no content blocks"),
    (b'{"content": [5]}', WireError, "content block"),
    (b"Not Found\n", WireError, "neither JSON nor an event stream"),
    (b"{}", WireError, "no content blocks"),
]  # fmt: skip


@each_row(("body", "kind", "said"), ERRORS)
def test_what_is_no_reply_is_a_typed_error(body: bytes, kind: type[ClientError], said: str) -> None:
    reading = decoder("anthropic")
    reading.feed(body)
    with pytest.raises(kind) as caught:
        reading.finish()
    assert said in str(caught.value)
    assert type(caught.value) is kind


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["text", "thinking", "tool_use", "server_tool_use", "text_delta",
                       "input_json_delta", "citations_delta", "compaction_delta"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["type", "content", "content_block", "delta", "index", "id", "name", "input", "text",
             "thinking", "signature", "partial_json", "citation", "citations", "stop_reason",
             "message", "usage", "input_tokens", "error", "caller"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip
_KINDS = st.sampled_from(
    ["message_start", "content_block_start", "content_block_delta", "content_block_stop",
     "message_delta", "message_stop", "ping"]
)  # fmt: skip


@settings(max_examples=sample(120))
@given(st.lists(st.tuples(_KINDS, _JSON), max_size=5))
def test_no_json_makes_it_crash(values: list[Any]) -> None:
    events = [
        {"type": kind, "index": 0, "content_block": v, "delta": v, "message": v, "usage": v}
        for kind, v in values
    ]
    for body in (sse_of(*events), json.dumps({"content": [v for _, v in values]}).encode()):
        try:
            reply = decode("anthropic", body)
        except ClientError:
            continue
        assert (reply.finish == "tool_calls") == any(c.complete for c in reply.tool_calls)
        results = [Message.tool(call, "x") for call in reply.tool_calls]
        request = ChatRequest((Message.user("Hi"), reply.message, *results))
        assert json.loads(encode("anthropic", request, model="m").body)["messages"]


@settings(max_examples=sample(100))
@given(st.binary(max_size=60), st.sampled_from([b"", b"data: ", b'data: {"type":"content_block']))
def test_no_bytes_make_it_crash(data: bytes, start_: bytes) -> None:
    try:
        reply = decode("anthropic", start_ + data)
    except ClientError:
        return
    assert reply.finish in ("incomplete", "stop")


def test_many_deltas_of_one_call_are_all_kept() -> None:
    pieces = [piece("{}")] * 20_000
    body = ended(call(), piece('{"a":"'), *pieces, piece('"}'), stop())
    (made,) = decode("anthropic", body).tool_calls
    assert made.arguments == '{"a":"' + "{}" * 20_000 + '"}'
