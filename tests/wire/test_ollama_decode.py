"""Replies of Ollama's chat: tables of odd but possible lines, whole and in pieces."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample

from toolcrib.errors import ClientError, ProviderError, WireError
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import (
    ArgumentsPart,
    Offer,
    ProviderState,
    ReasoningPart,
    Reply,
    TextPart,
    Usage,
)
from toolcrib.wire import OLLAMA, decode, decoder

Call = tuple[str, str, str]


def line(done: bool = False, reason: str | None = None, **message: Any) -> dict[str, Any]:
    form: dict[str, Any] = {"model": "m", "message": {"role": "assistant", "content": ""} | message}
    return form | {"done": done} | ({"done_reason": reason} if reason else {})


def lines(*values: Any, end: str = "\n") -> bytes:
    return "".join((v if isinstance(v, str) else json.dumps(v)) + end for v in values).encode()


def call(name: Any = "f", arguments: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name} | ({} if arguments is None else {"arguments": arguments})
    return {"function": function} | more


def calls_of(reply: Reply) -> list[Call]:
    return [(c.provider_id, c.name, c.arguments) for c in reply.tool_calls]


END = line(True, "stop")
BIG = '{"a": 1e400, "a" :12345678901234567890123}'

REPLIES: dict[str, tuple[bytes, list[Call], str]] = {
    "text": (lines(line(content="Hi"), line(content="!"), END), [], "Hi!"),
    "in one piece": (lines(line(True, "stop", content="Hi")), [], "Hi"),
    "without a last line feed": (lines(line(True, "stop", content="Hi"), end=""), [], "Hi"),
    "CRLF, blank lines, a BOM": (
        b"\xef\xbb\xbf\r\n" + lines(line(content="Hi"), "", END, end="\r\n"), [], "Hi"),
    "printed over several lines": (json.dumps(line(True, content="Hi"), indent=2).encode(), [], "Hi"),
    "several of those": (
        "\n".join(json.dumps(v, indent=2) for v in (line(content="Hi"), END)).encode(), [], "Hi"),
    "a call before the end": (lines(line(tool_calls=[call("f", {"a": 1}, id="x")]), END),
                              [("x", "f", '{"a": 1}')], ""),
    "a call at the end": (lines(line(True, "stop", tool_calls=[call("f", {"a": 1})])),
                          [("", "f", '{"a": 1}')], ""),
    "equal calls": (lines(line(tool_calls=[call("f", {})] * 2), line(tool_calls=[call("f", {})]), END),
                    [("", "f", "{}")] * 3, ""),
    "equal ids": (lines(line(tool_calls=[call("f", {}, id="x"), call("g", {}, id="x")]), END),
                  [("x", "f", "{}"), ("x", "g", "{}")], ""),
    "equal indexes": (lines(line(tool_calls=[{"function": {"index": 0, "name": "f", "arguments": {}}}]),
                            line(tool_calls=[{"function": {"index": 0, "name": "g"}}]), END),
                      [("", "f", "{}"), ("", "g", "{}")], ""),
    "an object keeps its bytes": (
        lines(line(tool_calls=[call("f", "BIG")]), END).replace(b'"BIG"', BIG.encode()),
        [("", "f", BIG)], ""),
    "arguments as text": (lines(line(tool_calls=[call("f", '{"a": 1}')]), END),
                          [("", "f", '{"a": 1}')], ""),
    "objects, texts and none at all": (
        lines(line(tool_calls=[call("f", {"a": 1}), call("f", "{}"), call("f")]), END),
        [("", "f", '{"a": 1}'), ("", "f", "{}"), ("", "f", "{}")], ""),
    "a list": (lines(line(tool_calls=[call("f", [1])]), END), [("", "f", "[1]")], ""),
    "an id that is a number": (lines(line(tool_calls=[call("f", {}, id=7)]), END),
                               [("7", "f", "{}")], ""),
    "neither name nor arguments": (lines(line(tool_calls=[call("")], content="Hi"), END), [], "Hi"),
    "nulls": (lines(line(content=None, tool_calls=None, thinking=None), END), [], ""),
    "a last line without a message": (lines(line(content="Hi"), {"done": True}), [], "Hi"),
    "lines that follow the end": (lines(END, line(content="more"), {"error": "late"}), [], ""),
    "lines of something else": (lines({"status": "pulling"}, line(content="Hi"), END), [], "Hi"),
    "surrogates, split": (lines(line(content="\ud83d"), line(content="\ude00"), END), [], "😀"),
}  # fmt: skip


@each_row(("body", "calls", "text"), REPLIES.values(), ids=REPLIES)
@each_row("streaming", [True, False])
def test_replies(body: bytes, calls: list[Call], text: str, streaming: bool) -> None:
    reply = decode(OLLAMA, body)
    assert (calls_of(reply), reply.text) == (calls, text)
    assert reply.finish == ("tool_calls" if calls else "stop")
    for size in (1, 2, 3, 50):
        reading = decoder(OLLAMA, streaming)
        for at in range(0, len(body), size):
            reading.feed(body[at : at + size])
        assert reading.finish() == reply


CUT: dict[str, tuple[bytes, str]] = {
    "length": (lines(line(True, "length", tool_calls=[call("f", {})])), "length"),
    "the model was loaded": (lines(line(True, "load", tool_calls=[call("f", {})])), "doubtful"),
    "length, told later": (lines(line(tool_calls=[call("f", {})]), line(True, "length")), "length"),
    "no end": (lines(line(tool_calls=[call("f", {})])), "incomplete"),
    "torn": (lines(line(tool_calls=[call("f", {})]), END)[:-9], "incomplete"),
    "torn, then a line": (
        lines(line(tool_calls=[call("f", {})]), '{"done": tr', END),
        "incomplete",
    ),
    "a reason, but no end": (lines(line(False, "stop", tool_calls=[call("f", {})])), "incomplete"),
    "arguments torn, as text": (lines(line(True, "stop", tool_calls=[call("f", '{"a')])), "length"),
}


@each_row(("body", "finish"), CUT.values(), ids=CUT)
def test_a_cut_reply_has_no_call_that_may_run(body: bytes, finish: str) -> None:
    reply = decode(OLLAMA, body)
    assert reply.finish == finish
    assert [c.complete for c in reply.tool_calls] == [False]


def test_parts_come_with_their_lines() -> None:
    reading = decoder(OLLAMA, ids="r_1_", offer=Offer({}, {"weather_now_1": "weather.now"}))
    body = lines(
        line(content="", thinking="Hm"),
        line(content="Let "),
        line(content="me.", tool_calls=[call("weather_now_1", {"a": 1}), call("g", {})]),
    )
    assert reading.feed(body) == [
        ReasoningPart("Hm"),
        TextPart("Let "),
        TextPart("me."),
        ArgumentsPart("r_1_0", "weather.now", '{"a": 1}'),
        ArgumentsPart("r_1_1", "g", "{}"),
    ]
    assert not reading.done
    last = END | {"prompt_eval_count": 5, "eval_count": 3}
    assert reading.feed(lines(last)) == []
    assert reading.done
    reply = reading.finish()
    assert [c.id for c in reply.tool_calls] == ["r_1_0", "r_1_1"]
    assert (reply.usage, reply.raw, reply.provider_finish) == (Usage(1, 5, 3), last, "stop")


def test_thinking_is_kept_for_the_next_request() -> None:
    body = lines(line(thinking="A"), line(thinking="B"), line(content="Hi"), END)
    reply = decode(OLLAMA, body)
    assert reply.message.provider_state == ProviderState("ollama", {"thinking": "AB"})
    assert reply.text == "Hi"
    assert decode(OLLAMA, lines(END)).message.provider_state is None


ERRORS: dict[str, tuple[bytes, type[ClientError], str]] = {
    "whole": (b'{"error":"model not found"}', ProviderError, "model not found"),
    "in a stream": (lines(line(tool_calls=[call("f", {})]), {"error": "out of memory"}),
                    ProviderError, "out of memory"),
    "HTML": (b"<html>502</html>", WireError, "neither JSON nor an event stream"),
    "another format": (b'{"choices":[]}', WireError, "neither JSON nor an event stream"),
    "not JSON": (lines(line(content="Hi"), "nonsense"), WireError, "not a JSON object"),
    "a message that is text": (lines({"message": "Hi"}), WireError, "`message`"),
    "content that is a list": (lines(line(content=["Hi"])), WireError, "content"),
    "thinking that is a number": (lines(line(thinking=1)), WireError, "thinking"),
    "calls that are none": (lines(line(tool_calls={"a": 1})), WireError, "not a list"),
    "a call that is none": (lines(line(tool_calls=["f"])), WireError, "not an object"),
    "a call without a function": (lines(line(tool_calls=[{"id": "x"}])), WireError, "a function"),
    "a name that is none": (lines(line(tool_calls=[call(5, {})])), WireError, "name"),
    "a list of one line": (lines([line(tool_calls=[call("f", {})])]), WireError, "cannot be read"),
}  # fmt: skip


def test_arguments_that_are_no_strict_json_are_judged_later() -> None:
    """As on the other wires: what stands around them may be what a strict parser refuses."""
    body = lines(line(tool_calls=[call("f", {"a": float("nan")})]), END)
    (made,) = decode("ollama", body).tool_calls
    assert (made.arguments, made.complete) == ('{"a": NaN}', True)


@each_row(("body", "kind", "said"), ERRORS.values(), ids=ERRORS)
def test_errors(body: bytes, kind: type[ClientError], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        decode(OLLAMA, body)
    assert type(caught.value) is kind


def test_nothing_at_all_is_incomplete() -> None:
    assert decode(OLLAMA, b"").finish == "incomplete"


def test_a_call_in_a_text_is_one_of_the_wires_quirks() -> None:
    tool = ToolDefinition(name="f", description="", input_schema_json="{}")
    offer = Offer.of([PlainTool(tool)])
    body = lines(line(True, "stop", content='{"name": "f", "parameters": {"a": 1}}'))
    assert decode(OLLAMA, body, offer=offer).finish == "stop"
    wire = msgspec.structs.replace(OLLAMA, text_calls="llama")
    reply = decode(wire, body, offer=offer)
    assert (calls_of(reply), reply.text) == ([("", "f", '{"a": 1}')], "")
    assert decode(wire, body).tool_calls == ()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["message", "tool_calls", "function", "name", "arguments", "id", "content",
                         "thinking", "done", "done_reason", "error", "eval_count"]),
        inner,
        max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=sample(120))
@given(st.lists(_JSON, max_size=4), st.booleans())
def test_no_json_makes_it_crash(values: list[Any], in_messages: bool) -> None:
    chunks = [{"message": value} for value in values] if in_messages else values
    try:
        reply = decode(OLLAMA, lines(*map(json.dumps, chunks), END))
    except ClientError:
        return
    assert (reply.finish == "tool_calls") == any(c.complete for c in reply.tool_calls)


@settings(max_examples=sample(100))
@given(st.binary(max_size=60), st.sampled_from([b"", b"{", b'{"message":{']))
def test_no_bytes_make_it_crash(data: bytes, start: bytes) -> None:
    try:
        reply = decode(OLLAMA, start + data)
    except ClientError:
        return
    assert reply.finish == "incomplete"
