"""Replies of Gemini's wire: tables of odd but possible bodies, whole and in pieces."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample, sampled

from toolcrib.errors import ClientError, ProviderError, RequestError, WireError
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import (
    ArgumentsPart,
    ChatRequest,
    Message,
    Offer,
    ProviderState,
    ReasoningPart,
    Reply,
    TextPart,
    Usage,
)
from toolcrib.wire import decode, decoder, encode

Call = tuple[str, str, str]
Json = dict[str, Any]

OFFER = Offer.of([PlainTool(ToolDefinition(name=n, description="", input_schema_json="{}"))
                  for n in ("f", "g")])  # fmt: skip
SIGNED = {"thoughtSignature": "c2ln"}
A1, B2 = '{"a": 1}', '{"b": 2}'
LONG = '{"n": 12345678901234567890123, "x":1.10, "n":2}'


def chunk(*parts: Any, why: Any = None, **members: Any) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": list(parts)}}
    if why is not None:
        candidate["finishReason"] = why
    return {"candidates": [candidate], "modelVersion": "m"} | members


def called(args: Any = None, name: Any = "f", /, **members: Any) -> Json:
    """A part; what is None is left out."""
    given_ = {"name": name, "args": args} | members
    return {"functionCall": {key: v for key, v in given_.items() if v is not None}}


NULLS = {"stringValue": None, "numberValue": None, "boolValue": None, "nullValue": None}


def value(
    path: str, text: Any, more: bool = False, key: str = "stringValue", beside: Json | None = None
) -> Json:
    """A piece of the arguments of a call that goes on."""
    partial = {"jsonPath": path, key: text} | ({"willContinue": True} if more else {})
    partial |= beside or {}
    return {"functionCall": {"partialArgs": [partial], "willContinue": True}}


def said(text: Any, **members: Any) -> Json:
    return {"text": text} | members


def sse_of(*chunks: Any) -> bytes:
    lines = [c if isinstance(c, str) else json.dumps(c) for c in chunks]
    return "".join(f"data: {line}\r\n\r\n" for line in lines).encode()


def ended(*parts: Any, why: Any = "STOP") -> bytes:
    """A stream with one part in each chunk, and a reason in the last."""
    return sse_of(*(chunk(part) for part in parts), chunk(said(""), why=why))


def whole(*parts: Any, why: Any = "STOP") -> bytes:
    return json.dumps(chunk(*parts, why=why)).encode()


def calls_of(reply: Reply) -> list[Call]:
    return [(call.provider_id, call.name, call.arguments) for call in reply.tool_calls]


HEAD = called(willContinue=True)
TAIL: Json = {"functionCall": {}}

STREAMS: dict[str, tuple[bytes, list[Call]]] = {
    "plain": (ended(called({"a": 1})), [("", "f", A1)]),
    "an id": (ended(called({"a": 1}, id="x")), [("x", "f", A1)]),
    "with the reason": (sse_of(chunk(called({"a": 1}), why="STOP")), [("", "f", A1)]),
    "two in one chunk": (sse_of(chunk(called({"a": 1}), called({"b": 2}, "g"), why="STOP")),
                         [("", "f", A1), ("", "g", B2)]),
    "two in two chunks": (ended(called({"a": 1}), called({"a": 1})), [("", "f", A1), ("", "f", A1)]),
    "one id for both": (ended(called({"a": 1}, id="x"), called({"b": 2}, id="x")),
                        [("x", "f", A1), ("x", "f", B2)]),
    "between texts": (ended(said("a"), called({"a": 1}), said("b")), [("", "f", A1)]),
    "between thoughts": (ended(said("a", thought=True), called({"a": 1}) | SIGNED),
                         [("", "f", A1)]),
    "after the reason": (sse_of(chunk(said("a"), why="STOP"), chunk(called({"a": 1}), why="STOP")),
                         [("", "f", A1)]),
    "no arguments": (ended(called()), [("", "f", "{}")]),
    "arguments null": (ended({"functionCall": {"name": "f", "args": None}}), [("", "f", "{}")]),
    "arguments empty": (ended(called({})), [("", "f", "{}")]),
    "arguments as text": (ended(called(A1)), [("", "f", A1)]),
    "nothing in it": (ended(TAIL, called({"a": 1})), [("", "f", A1)]),
    "null beside it": (ended(said("a") | {"functionCall": None}, called({"a": 1})),
                       [("", "f", A1)]),
    "an object keeps its bytes": (ended(called({"L": 1})).replace(b'{"L": 1}', LONG.encode()),
                                  [("", "f", LONG)]),
    "a tool that nobody declared": (ended(called({}, "h"), why="UNEXPECTED_TOOL_CALL"),
                                    [("", "h", "{}")]),
    "a number as the reason": (ended(called({"a": 1}), why=1), [("", "f", A1)]),
    "an end in OpenAI's way": (sse_of(chunk(called({"a": 1})), "[DONE]"), [("", "f", A1)]),
    "blank lines and comments": (b": hi\n\n" + ended(called({"a": 1})).replace(b"\r\n", b"\n"),
                                 [("", "f", A1)]),
    "another candidate beside it": (
        sse_of({"candidates": [{"index": 1, **chunk(called({"a": 1}))["candidates"][0]},
                               *chunk(called({"b": 2}))["candidates"]]}, chunk(why="STOP"),
               {"candidates": [{"index": 1, "finishReason": "STOP"}]}),
        [("", "f", A1)]),
    "half a surrogate": (ended(called({"a": "\ud83d"})), [("", "f", r'{"a": "\ud83d"}')]),
    "as an array": (b"[" + json.dumps(chunk(called({"a": 1}))).encode() + b"\n,\r\n"
                    + json.dumps(chunk(called({"b": 2}), why="STOP")).encode() + b"]",
                    [("", "f", A1), ("", "f", B2)]),
    "as an array of one": (b"[" + whole(called({"L": 1})).replace(b'{"L": 1}', LONG.encode()) + b"]",
                           [("", "f", LONG)]),
    "as an array, half a surrogate": (b" [" + whole(called({"a": "\ud83d"})) + b"]",
                                      [("", "f", r'{"a": "\ud83d"}')]),
    "in values": (ended(HEAD, value("$.s", "x", True), value("$.s", "y"), TAIL),
                  [("", "f", '{"s": "xy"}')]),
    "in values, at once": (
        ended(called(id="x", partialArgs=[{"jsonPath": "$.n", "numberValue": 5},
                                          {"jsonPath": "$.b", "boolValue": False},
                                          {"jsonPath": "$.z", "nullValue": "NULL_VALUE"}])),
        [("x", "f", '{"n": 5, "b": false, "z": null}')]),
    "in values, of a tree": (
        ended(HEAD, value("$.a[0].b", "x"), value("$.a[0].c", 1.5, key="numberValue"),
              value("$['a'][1]['it\\'s']", "y"), value('$.a[2]["d.e"][0][0]', True, key="boolValue"),
              TAIL),
        [("", "f", json.dumps({"a": [{"b": "x", "c": 1.5}, {"it's": "y"}, {"d.e": [[True]]}]}))]),
    "in values, all members of each, null but for one": (
        ended(HEAD, value("$.n", 5, key="numberValue", beside=NULLS | {"numberValue": 5}),
              value("$.z", None, beside=NULLS), called(None, None, partialArgs=[]), TAIL),
        [("", "f", '{"n": 5, "z": null}')]),
    "in values, beside empty arguments": (
        ended(called({}, willContinue=True), value("$.a", 1, key="numberValue"), called({}, None)),
        [("", "f", A1)]),
    "in values, names with escapes": (
        ended(HEAD, value(r"""$['a\n"\'\u00e9']""", "x"), value(r'$["\ud83d\ude00\"\\"]', "y"), TAIL),
        [("", "f", json.dumps({"a\n\"'é": "x", "😀\"\\": "y"}, ensure_ascii=False))]),
    "in values, a pair in two halves": (
        ended(HEAD, value("$.a", "x\ud83d", True), value("$.a", "\ude00y"), TAIL),
        [("", "f", '{"a": "x😀y"}')]),
    "in values, half a surrogate": (ended(HEAD, value("$.a", "é\ud83d"), TAIL),
                                    [("", "f", r'{"a": "\u00e9\ud83d"}')]),
    "in values, names with half a surrogate": (
        ended(HEAD, value("$['\ud83d']", "x"), value("$['\ud83e']", "y"), TAIL),
        [("", "f", r'{"\ud83d": "x", "\ud83e": "y"}')]),
    "in values, none": (ended(HEAD, TAIL), [("", "f", "{}")]),
    "in values, then whole": (ended(HEAD, value("$.a", 1, key="numberValue"), TAIL, called({"b": 2})),
                              [("", "f", A1), ("", "f", B2)]),
    "in values, with the whole at the end": (ended(HEAD, value("$.s", "x"), called({"a": 1}, None)),
                                             [("", "f", A1)]),
}  # fmt: skip
ARRAYS = {name for name, (body, _) in STREAMS.items() if body.lstrip().startswith(b"[")}


@each_row(("body", "calls"), STREAMS.values(), ids=STREAMS)
def test_streamed_calls(body: bytes, calls: list[Call]) -> None:
    reply = decode("gemini", body, offer=OFFER)
    assert calls_of(reply) == calls
    assert reply.finish == "tool_calls"
    assert all(call.complete for call in reply.tool_calls)
    assert [call.id for call in reply.tool_calls] == [f"call_{n}" for n in range(len(calls))]


@each_row("body", [body for body, _ in STREAMS.values()], ids=STREAMS)
def test_every_split_gives_the_same_reply_and_parts(body: bytes) -> None:
    random_ = random.Random(7)  # noqa: S311
    expected = outcome_of(body, [len(body)])
    assert outcome_of(body, [1] * len(body)) == expected
    sizes = [random_.randint(1, 40) for _ in range(len(body))]
    assert outcome_of(body, sizes) == expected


def outcome_of(body: bytes, sizes: list[int]) -> tuple[Any, ...]:
    reading, parts, at = decoder("gemini", True, OFFER), [], 0
    for size in sizes:
        parts += reading.feed(body[at : at + size])
        at += size
    return parts, reading.finish()


def test_parts_are_what_the_reply_is_made_of() -> None:
    usage = {"promptTokenCount": 5, "toolUsePromptTokenCount": 20, "thoughtsTokenCount": 100}
    body = sse_of(
        chunk(said("Hm", thought=True), said("Let "), usageMetadata=usage),
        chunk(said("me."), called({"a": 1})),
        chunk(HEAD),
        chunk(value("$.b", 2, key="numberValue")),
        chunk(TAIL, why="STOP", usageMetadata={"candidatesTokenCount": 30}),
    )
    reading = decoder("gemini", True, Offer({}, {"f": "weather.now"}), ids="r_1_")
    parts = reading.feed(body)
    reply = reading.finish()
    assert parts == [
        ReasoningPart("Hm"),
        TextPart("Let "),
        TextPart("me."),
        ArgumentsPart("r_1_0", "weather.now", A1),
        ArgumentsPart("r_1_1", "weather.now", B2),
    ]
    assert (reply.text, reply.usage) == ("Let me.", Usage(1, 25, 130))
    calls = [(call.id, call.name) for call in reply.tool_calls]
    assert calls == [("r_1_0", "weather.now"), ("r_1_1", "weather.now")]
    assert (reply.provider_finish, reply.raw) == (
        "STOP",
        {"modelVersion": "m", "usageMetadata": usage},
    )


ONE = called({"a": 1})
CUT: dict[str, tuple[bytes, str]] = {
    "max_tokens": (ended(ONE, why="MAX_TOKENS"), "length"),
    "max_tokens as a number": (ended(ONE, why=2), "length"),
    "safety as a number": (ended(ONE, why=3), "content_filter"),
    "a number of several meanings": (ended(ONE, why=9), "doubtful"),
    "safety": (ended(ONE, why="SAFETY"), "content_filter"),
    "recitation": (ended(ONE, why="RECITATION"), "content_filter"),
    "malformed": (ended(ONE, why="MALFORMED_FUNCTION_CALL"), "error"),
    "too many": (ended(ONE, why="TOO_MANY_TOOL_CALLS"), "error"),
    "other": (ended(ONE, why="OTHER"), "error"),
    "a reason of tomorrow": (ended(ONE, why="MELTDOWN"), "doubtful"),
    "no name": (ended(called({"a": 1}, None)), "doubtful"),
    "no reason": (sse_of(chunk(ONE)), "incomplete"),
    "a reason that says nothing": (ended(ONE, why="FINISH_REASON_UNSPECIFIED"), "incomplete"),
    "torn": (ended(ONE)[:-20], "incomplete"),
    "torn after the reason": (ended(ONE) + b'data: {"cand', "incomplete"),
    "a later reason does not mend it": (
        sse_of(chunk(ONE, why="MAX_TOKENS"), chunk(why="STOP")), "length"),
    "an earlier reason does not either": (
        sse_of(chunk(ONE, why="STOP"), chunk(why="MAX_TOKENS")), "length"),
    "values without an end": (ended(HEAD, value("$.s", "x")), "incomplete"),
    "values, and too early an end": (ended(HEAD, value("$.s", "x", True), TAIL), "incomplete"),
    "the prompt was blocked": (
        sse_of(chunk(ONE, why="STOP", promptFeedback={"blockReason": "SAFETY"})), "content_filter"),
    "whole, max_tokens": (whole(ONE, why="MAX_TOKENS"), "length"),
    "whole, no arguments": (whole(called(), why="MAX_TOKENS"), "length"),
    "an array without a reason": (b"[" + json.dumps(chunk(ONE)).encode() + b"]", "incomplete"),
}  # fmt: skip


@each_row(("body", "finish"), CUT.values(), ids=CUT)
def test_a_cut_reply_has_no_call_that_may_run(body: bytes, finish: str) -> None:
    reply = decode("gemini", body)
    assert reply.finish == finish
    assert [call.complete for call in reply.tool_calls] == [False]
    assert reply.tool_calls[0].arguments in (A1, "")


def test_a_call_that_never_ended_spoils_the_reply() -> None:
    reply = decode("gemini", ended(HEAD, value("$.s", "x"), called({"a": 1}, "g")))
    assert calls_of(reply) == [("", "f", ""), ("", "g", A1)]
    assert (reply.finish, [c.complete for c in reply.tool_calls]) == ("incomplete", [False] * 2)


@each_row("name", sorted(set(STREAMS) - ARRAYS))
def test_a_stream_that_stops_anywhere_has_no_call_that_may_run(name: str) -> None:
    body = STREAMS[name][0]
    ends = [at for at in (body.find(b'"finishReason"'), body.find(b"[DONE]")) if at > 0]
    for at in sampled(range(min(ends))):
        reading = decoder("gemini", True, OFFER)
        reading.feed(body[:at])
        reply = reading.finish()
        assert reply.finish == "incomplete"
        assert not any(call.complete for call in reply.tool_calls)


@pytest.mark.parametrize("name", sorted(ARRAYS))
def test_an_array_that_stops_anywhere_is_no_reply(name: str) -> None:
    body = STREAMS[name][0].strip()
    for at in range(1, len(body)):
        reading = decoder("gemini", True, OFFER)
        reading.feed(body[:at])
        with pytest.raises(WireError):
            reading.finish()


WHOLE: dict[str, tuple[bytes, list[Call], str, str]] = {
    "text": (whole(said("Hi")), [], "Hi", "stop"),
    "texts": (whole(said("H"), said("i")), [], "Hi", "stop"),
    "no reason": (whole(said("Hi"), why=None), [], "Hi", "stop"),
    "cut before a word": (b'{"candidates": [{"finishReason": "MAX_TOKENS"}]}', [], "", "length"),
    "no parts": (b'{"candidates": [{"content": {"role": "model"}, "finishReason": "STOP"}]}', [], "",
                 "stop"),
    "parts null": (b'{"candidates": [{"content": {"parts": null}}]}', [], "", "stop"),
    "the prompt was blocked": (b'{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}', [], "",
                               "content_filter"),
    "the prompt was not": (b'{"promptFeedback": {}, "candidates": [{"finishReason": "STOP"}]}', [],
                           "", "stop"),
    "nothing at all": (b'{"usageMetadata": {}, "modelVersion": "m"}', [], "", "incomplete"),
    "no candidates": (b'{"candidates": []}', [], "", "incomplete"),
    "a malformed call": (whole(why="MALFORMED_FUNCTION_CALL"), [], "", "error"),
    "an unexpected call that is not there": (whole(why="UNEXPECTED_TOOL_CALL"), [], "", "error"),
    "thoughts are no text": (whole(said("Hm", thought=True), said("Hi")), [], "Hi", "stop"),
    "the provider's own tools": (whole({"executableCode": {"code": "1"}}, {"toolCall": {"id": "x"}},
                                       said("Hi")), [], "Hi", "stop"),
    "a picture": (whole({"inlineData": {"mimeType": "image/png", "data": "aGk="}}), [], "", "stop"),
    "parts of tomorrow": (whole({"later": 1}, {}, said("Hi")), [], "Hi", "stop"),
    "a call": (whole(called({"a": 1}, id="x")), [("x", "f", A1)], "", "tool_calls"),
    "half a surrogate": (whole(said("a\ud83d"), called({"a": 1})), [("", "f", A1)], "a\ufffd",
                         "tool_calls"),
    "a pair in two halves": (whole(said("\ud83d"), said("\ude00")), [], "\U0001f600", "stop"),
    "byte order mark": (b"\xef\xbb\xbf \n" + whole(said("Hi")), [], "Hi", "stop"),
}  # fmt: skip


@each_row(("body", "calls", "text", "finish"), WHOLE.values(), ids=WHOLE)
def test_whole_bodies(body: bytes, calls: list[Call], text: str, finish: str) -> None:
    reply = decode("gemini", body, content_type="application/json")
    assert (calls_of(reply), reply.text, reply.finish) == (calls, text, finish)
    for streaming in (False, True):
        reading = decoder("gemini", streaming)
        for at in range(0, len(body), 3):
            assert reading.feed(body[at : at + 3]) == []
        assert reading.finish() == reply


CALL_0: Json = {"functionCall": {"id": "call_0"}}
STATES: dict[str, tuple[list[Json], list[Json] | None]] = {
    "text and calls say it all": ([said("a"), said("b"), called({"a": 1}, id="x")], None),
    "a signed call": ([called({"a": 1}) | SIGNED], [CALL_0 | SIGNED]),
    "a signed text": ([said("a") | SIGNED, said("b")], [said("a") | SIGNED, said("b")]),
    "a signature of its own": ([said("a"), said("b"), said("") | SIGNED],
                               [said("ab"), said("") | SIGNED]),
    "text after a signature": ([said("a") | SIGNED, said("b"), said("c")],
                               [said("a") | SIGNED, said("bc")]),
    "thoughts": ([said("H", thought=True), said("m", thought=True), said("a"), said("b")],
                 [said("Hm", thought=True), said("ab")]),
    "own tools": ([{"executableCode": {"code": "1"}}, called({}), said("")],
                  [{"executableCode": {"code": "1"}}, CALL_0]),
    "a call in values": ([HEAD | SIGNED, value("$.s", "x"), TAIL], [CALL_0 | SIGNED]),
    "a signature that comes late": ([HEAD, TAIL | SIGNED], [CALL_0 | SIGNED]),
}  # fmt: skip


@each_row(("parts", "state"), STATES.values(), ids=STATES)
def test_what_must_go_back_is_kept(parts: list[Json], state: list[Json] | None) -> None:
    reply = decode("gemini", ended(*parts))
    assert reply.message.provider_state == (state and ProviderState("gemini", state))


ERRORS: list[tuple[bytes, type[ClientError], str]] = [
    (b'{"error": {"code": 400, "message": "no", "status": "INVALID"}}', RequestError, "no"),
    (b'[{"error": {"code": 400, "message": "no"}}]', RequestError, "no"),
    (b'[{"candidates": []}, {"error": {"message": "late"}}]', ProviderError, "late"),
    (sse_of(chunk(ONE), {"error": {"message": "late"}}), ProviderError, "late"),
    (sse_of(chunk(ONE), "{broken"), WireError, "not a JSON object"),
    (sse_of(chunk(5)), WireError, "list of parts"),
    (sse_of({"candidates": {}}) + sse_of({"candidates": 5}), WireError, "not a list"),
    (sse_of({"candidates": [5]}), WireError, "not an object"),
    (sse_of({"candidates": [{"content": [5]}]}), WireError, "not an object"),
    (sse_of(chunk(said(5))), WireError, "text"),
    (sse_of(chunk({"functionCall": 5})), WireError, "function call"),
    (sse_of(chunk(called({}, 5))), WireError, "function call"),
    (sse_of(chunk(HEAD), chunk(value("location", "x"))), WireError, "path"),
    (sse_of(chunk(HEAD), chunk(value("$", "x"))), WireError, "path"),
    (sse_of(chunk(HEAD), chunk(value("$..a", "x"))), WireError, "path"),
    (sse_of(chunk(HEAD), chunk(value("$" + ".a" * 65, "x"))), WireError, "path"),
    (sse_of(chunk(HEAD), chunk(value("$.a[1]", "x"))), WireError, "earlier"),
    (sse_of(chunk(HEAD), chunk(value("$.a[999999999]", "x"))), WireError, "earlier"),
    (sse_of(chunk(HEAD), chunk(value("$[0]", "x"))), WireError, "earlier"),
    (sse_of(chunk(HEAD), chunk(value("$.a", "x")), chunk(value("$.a.b", "x"))), WireError, "earlier"),
    (sse_of(chunk(HEAD), chunk(value("$.a", [1]))), WireError, "value"),
    (sse_of(chunk(HEAD), chunk(value("$.a", 5))), WireError, "a different type"),
    (sse_of(chunk(HEAD), chunk(value("$.a", True, key="numberValue"))), WireError, "a different type"),
    (sse_of(chunk(HEAD), chunk(value("$.a", 1, key="boolValue"))), WireError, "a different type"),
    (sse_of(chunk(HEAD), chunk(value("$.a", "x", beside={"boolValue": True}))), WireError, "one value"),
    (sse_of(chunk(HEAD), chunk(value(r"$['\x']", "x"))), WireError, "path"),
    (sse_of(chunk(called({}, 0))), WireError, "function call"),
    (sse_of(chunk(called(partialArgs=[5]))), WireError, "not an object"),
    (b'data: {"choices": [{"delta": {}}]}\n\n', WireError, "neither JSON nor an event stream"),
    (b'{"choices": [{"message": {}}]}', WireError, "no candidates"),
    (b'[{"choices": []}, {"choices": []}]', WireError, "not a JSON object"),
    (b"[]", WireError, "not a JSON object"),
    (b"[5]", WireError, "not a JSON object"),
    (b"Not Found\n", WireError, "neither JSON nor an event stream"),
    (b"{}", WireError, "no candidates"),
]  # fmt: skip


@each_row(("body", "kind", "words"), ERRORS)
def test_what_is_no_reply_is_a_typed_error(
    body: bytes, kind: type[ClientError], words: str
) -> None:
    reading = decoder("gemini")
    reading.feed(body)
    with pytest.raises(kind) as caught:
        reading.finish()
    assert words in str(caught.value)
    assert type(caught.value) is kind


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from(["$.a", "$.a[0]", "STOP", 1]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["candidates", "content", "parts", "index", "id", "name", "args", "text", "thought",
             "thoughtSignature", "functionCall", "partialArgs", "jsonPath", "stringValue",
             "numberValue", "willContinue", "finishReason", "usageMetadata", "promptFeedback",
             "blockReason", "promptTokenCount", "error"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip
_PARTS = st.lists(
    st.fixed_dictionaries({}, optional={"text": _JSON, "thoughtSignature": _JSON, "inlineData": _JSON})
    | st.fixed_dictionaries({"functionCall": st.fixed_dictionaries({}, optional={
        "name": st.sampled_from(["f", "g", "", None, 5]), "id": _JSON, "args": _JSON,
        "willContinue": st.booleans(), "partialArgs": st.lists(st.fixed_dictionaries(
            {"jsonPath": st.sampled_from(["$.a", "$.b[0]", "$.b[1]", "$.c.d", "$"])},
            optional={"stringValue": _JSON, "numberValue": _JSON, "willContinue": st.booleans()}),
            max_size=2)})}),
    max_size=4)  # fmt: skip


@settings(max_examples=sample(120))
@given(st.lists(_JSON | st.builds(chunk), max_size=3), st.lists(_PARTS, max_size=3))
def test_no_json_makes_it_crash(values: list[Any], lists: list[list[Any]]) -> None:
    chunks = [*values, *(chunk(*parts) for parts in lists), chunk(why="STOP")]
    for body in (sse_of(*chunks), json.dumps(chunks).encode(), json.dumps(chunks[0]).encode()):
        try:
            reply = decode("gemini", body)
        except ClientError:
            continue
        assert (reply.finish == "tool_calls") == any(c.complete for c in reply.tool_calls)
        results = [Message.tool(call, "x") for call in reply.tool_calls]
        request = ChatRequest((Message.user("Hi"), reply.message, *results))
        assert json.loads(encode("gemini", request, model="m").body)["contents"]


@settings(max_examples=sample(100))
@given(st.binary(max_size=60), st.sampled_from([b"", b"data: ", b'data: {"candidates":[', b"[{"]))
def test_no_bytes_make_it_crash(data: bytes, start: bytes) -> None:
    try:
        reply = decode("gemini", start + data)
    except ClientError:
        return
    assert reply.finish in ("incomplete", "stop")


@pytest.mark.exhaustive
def test_many_pieces_are_all_kept() -> None:
    pieces = [value("$.s", "{}", True)] * 20_000
    body = ended(said("a"), HEAD | SIGNED, *pieces, value("$.s", ""), TAIL, *[said("b")] * 20_000)
    reply = decode("gemini", body)
    assert calls_of(reply) == [("", "f", json.dumps({"s": "{}" * 20_000}))]
    assert reply.text == "a" + "b" * 20_000
    assert reply.message.provider_state == ProviderState(
        "gemini", [said("a"), CALL_0 | SIGNED, said("b" * 20_000)]
    )


def test_a_part_that_is_nested_too_deeply_for_other_parsers_changes_no_call() -> None:
    """It was a TypeError: orjson reads 1,000 levels, and what cut the arguments out does not."""
    deep = '{"a":' * 1000 + "1" + "}" * 1000
    call = '{"functionCall":{"name":"f","args":{"x":1}}}'
    candidate = f'{{"content":{{"parts":[{call}]}},"finishReason":"STOP"}}'
    body = f'{{"candidates":[{candidate}],"usageMetadata":{{"deep":{deep}}}}}'
    (made,) = decode("gemini", body).tool_calls
    assert (made.name, made.complete, json.loads(made.arguments)) == ("f", True, {"x": 1})


def test_a_list_of_one_that_is_nested_too_deeply_for_other_parsers_is_its_item() -> None:
    deep = '{"a":' * 1000 + "1" + "}" * 1000
    body = f'data: [{{"candidates":[{{"finishReason":"STOP"}}],"deep":{deep}}}]\n\n'
    assert decode("gemini", body).finish == "stop"


def test_a_call_whose_member_is_written_with_an_escape_is_a_call() -> None:
    """It was an AttributeError."""
    call = r'{"functionC\u0061ll":{"name":"f","args":{"x": 1}}}'
    body = f'{{"candidates":[{{"content":{{"parts":[{call}]}},"finishReason":"STOP"}}]}}'
    (made,) = decode("gemini", body).tool_calls
    assert (made.name, made.complete, made.arguments) == ("f", True, '{"x": 1}')
