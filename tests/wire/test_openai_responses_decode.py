"""Replies of OpenAI Responses: tables of odd but possible bodies, whole and in pieces."""

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

from toolcrib.errors import ClientError, ErrorCode, ProviderError, WireError
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import ArgumentsPart, Offer, ProviderState, Reply, TextPart, Usage
from toolcrib.wire import OPENAI_RESPONSES, decode, decoder

Call = tuple[str, str, str]
Event = dict[str, Any]

OFFER = Offer.of([PlainTool(ToolDefinition(name=n, description="", input_schema_json="{}"))
                  for n in ("f", "g")])  # fmt: skip
A1, B2 = '{"a":1}', '{"b":2}'


def sse_of(*events: Event, named: bool = True) -> bytes:
    name = "event: {0[type]}\n" if named else ""
    return "".join(f"{name.format(e)}data: {json.dumps(e)}\n\n" for e in events).encode()


def members(given_: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in given_.items() if value is not None}


def called(arguments: Any = "", *, id: Any = "fc_1", call_id: Any = "x", name: Any = "f",
           status: Any = None) -> Event:  # fmt: skip
    form = {"type": "function_call", "id": id, "call_id": call_id, "name": name}
    return members(form | {"arguments": arguments, "status": status})


def message(*texts: str, kind: str = "output_text", **changes: Any) -> Event:
    key = "refusal" if kind == "refusal" else "text"
    content = [{"type": kind, key: text} for text in texts]
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": content} | changes


def begun(item: Event, index: Any = 0) -> Event:
    return members({"type": "response.output_item.added", "output_index": index, "item": item})


def done(item: Event, index: Any = 0) -> Event:
    return begun(item, index) | {"type": "response.output_item.done"}


def piece(delta: Any, *, id: Any = "fc_1", index: Any = 0, of: str = "function_call_arguments",
          **more: Any) -> Event:  # fmt: skip
    form = {"type": f"response.{of}.delta", "item_id": id, "output_index": index, "delta": delta}
    return members(form) | more


def settled(whole: Any, *, id: Any = "fc_1", index: Any = 0, of: str = "function_call_arguments",
            key: str = "arguments") -> Event:  # fmt: skip
    return members(
        {"type": f"response.{of}.done", "item_id": id, "output_index": index, key: whole}
    )


def ended(*output: Event, status: str | None = "completed", type: str = "completed",
          **more: Any) -> Event:  # fmt: skip
    response = members({"object": "response", "status": status}) | {"output": list(output)} | more
    return {"type": f"response.{type}", "response": response}


def whole(*output: Any, status: str | None = "completed", **more: Any) -> bytes:
    response = {"object": "response", "output": list(output), "status": status} | more
    return json.dumps(response).encode()


def calls_of(reply: Reply) -> list[Call]:
    return [(call.provider_id, call.name, call.arguments) for call in reply.tool_calls]


F, G = called(A1), called(B2, id="fc_2", call_id="y", name="g")
F0, G0 = called(), called(id="fc_2", call_id="y", name="g")
BOTH = [("x", "f", A1), ("y", "g", B2)]

STREAMS: dict[str, tuple[list[Event], list[Call]]] = {
    "as documented": ([begun(F0), piece('{"a"'), piece(":1}"), settled(A1), done(F), ended(F)],
                      BOTH[:1]),
    "interleaved": ([begun(F0), begun(G0, 1), piece('{"a"'), piece('{"b":', id="fc_2", index=1),
                     piece(":1}"), piece("2}", id="fc_2", index=1), done(F), done(G, 1), ended(F, G)],
                    BOTH),
    "not listed in the end": ([begun(F0), piece(A1), done(F), ended()], BOTH[:1]),
    "listed only": ([begun(message()), done(message("Hi")), ended(message("Hi"), F)], BOTH[:1]),
    "nothing but the end": ([ended(F, G)], BOTH),
    "no pieces": ([begun(F0), settled(A1), done(F), ended(F)], BOTH[:1]),
    "done only": ([done(F), done(G, 1), ended()], BOTH),
    "pieces only": ([begun(F0), piece('{"a"'), piece(":1}"), ended()], BOTH[:1]),
    "pieces, and an empty end": ([begun(F0), piece(A1), settled(""), done(F0), ended(F0)], BOTH[:1]),
    "begun with it all": ([begun(F), ended()], BOTH[:1]),
    "begun with it all, and pieces": ([begun(F), piece('{"a"'), piece(":1}"), ended()], BOTH[:1]),
    "begun with an empty object": ([begun(called("{}")), piece(A1), ended()], BOTH[:1]),
    "no arguments": ([begun(F0), settled(""), done(F0), ended(F0)], [("x", "f", "{}")]),
    "the end corrects the pieces": ([begun(F0), piece('{"a":'), piece("9"), done(F), ended(F)],
                                    BOTH[:1]),
    "another id each time": (
        [begun(called(id="p")), piece('{"a"', id="q"), piece(":1}", id="r"), settled(A1, id="s"),
         done(called(A1, id="t")), ended(called(A1, id="u"))], BOTH[:1]),
    "one index for all": (
        [begun(F0), piece(A1), done(F), begun(G0), piece(B2, id="fc_2"), done(G), ended(F, G)], BOTH),
    "one index for all, interleaved": (
        [begun(F0), begun(G0), piece(A1), piece(B2, id="fc_2"), done(F), done(G), ended(F, G)], BOTH),
    "one index, no ids": (
        [begun(called(id=None)), piece(A1, id=None), done(called(A1, id=None)),
         begun(called(id=None, call_id="y", name="g")), piece(B2, id=None),
         done(called(B2, id=None, call_id="y", name="g")), ended()], BOTH),
    "one index, no ids, done only": (
        [done(called(A1, id=None)), done(called(B2, id=None, call_id="y", name="g")), ended()], BOTH),
    "no index": ([begun(F0, None), begun(G0, None), piece(A1, index=None),
                  piece(B2, id="fc_2", index=None), done(F, None), done(G, None), ended(F, G)], BOTH),
    "no index, no ids": (
        [begun(called(id=None), None), piece(A1, id=None, index=None), done(called(A1, id=None), None),
         begun(called(id=None, call_id="y", name="g"), None), piece(B2, id=None, index=None),
         done(called(B2, id=None, call_id="y", name="g"), None), ended()], BOTH),
    "items without ids or index": (  # llama.cpp
        [begun(called(id=None), None), piece(A1, id="x", index=None),
         begun(called(id=None, call_id="y", name="g"), None), piece(B2, id="y", index=None),
         done(called(A1, id=None), None), done(called(B2, id=None, call_id="y", name="g"), None),
         ended(called(A1, id=None), called(B2, id=None, call_id="y", name="g"))], BOTH),
    "items without ids or index, interleaved": (
        [begun(called(id=None), None), begun(called(id=None, call_id="y", name="g"), None),
         piece('{"a"', id="x", index=None), piece(B2, id="y", index=None),
         piece(":1}", id="x", index=None), ended()], BOTH),
    "one id for two": ([begun(F0), begun(called(call_id="y", name="g"), 1), piece(A1),
                        piece(B2, index=1), done(F), done(called(B2, call_id="y", name="g"), 1),
                        ended()], BOTH),
    "one call id for two": (
        [done(F), done(called(A1, id="fc_2"), 1), ended(F, called(A1, id="fc_2"))], BOTH[:1]),
    "two the same": ([done(F), done(called(A1, id="fc_2", call_id="y"), 1), ended()],
                     [("x", "f", A1), ("y", "f", A1)]),
    "begun twice": ([begun(F0), begun(F0), piece(A1), done(F), ended(F)], BOTH[:1]),
    "done twice": ([begun(F0), piece(A1), done(F), done(F), ended(F)], BOTH[:1]),
    "never begun": ([piece('{"a"'), piece(":1}"), done(F), ended(F)], BOTH[:1]),
    "name at the end of the arguments": (
        [begun(called(name=None)), piece(A1), settled(A1) | {"name": "f"}, ended()], BOTH[:1]),
    "no call id": ([done(called(A1, call_id=None)), ended()], [("fc_1", "f", A1)]),
    "no ids at all": ([done(called(A1, call_id=None, id=None)), ended()], [("", "f", A1)]),
    "nothing in it": ([begun(called(name="", call_id="")), done(called(name="")), done(F, 1), ended()],
                      BOTH[:1]),
    "an object": ([done(called({"a": 1})), ended()], [("x", "f", '{"a": 1}')]),
    "an object, listed": ([ended(F, called({"a": [2]}, id="z", call_id="z"))],
                          [*BOTH[:1], ("z", "f", '{"a": [2]}')]),
    "an object, settled": ([begun(F0), settled({"a": 1}), ended()], [("x", "f", '{"a": 1}')]),
    "null": ([begun(F0), settled("null"), ended()], [("x", "f", "{}")]),
    "half a surrogate": ([begun(F0), piece('{"a":"\ud83d'), piece('\ude00"}'), ended()],
                         [("x", "f", '{"a":"😀"}')]),
    "reasoning and text before": (
        [begun({"type": "reasoning", "id": "rs"}), done({"type": "reasoning", "id": "rs"}),
         begun(message(), 1), piece("Hi", of="output_text", id="msg_1", index=1),
         done(message("Hi"), 1), begun(F0, 2), piece(A1, index=2), done(F, 2), ended(F)], BOTH[:1]),
    "a custom tool": (
        [begun({"type": "custom_tool_call", "id": "c", "call_id": "x", "name": "f", "input": ""}),
         piece('{"a"', id="c", of="custom_tool_call_input"),
         piece(":1}", id="c", of="custom_tool_call_input"),
         settled(A1, id="c", of="custom_tool_call_input", key="input"),
         done({"type": "custom_tool_call", "id": "c", "call_id": "x", "name": "f", "input": A1}),
         ended()], BOTH[:1]),
    "status of the beginning": ([done(F), ended(F, status="in_progress")], BOTH[:1]),
    "no status": ([done(F), ended(F, status=None)], BOTH[:1]),
    "a call in progress": ([done(called(A1, status="in_progress")), ended()], BOTH[:1]),
    "events of no interest": (
        [{"type": "response.created", "response": {}}, {"type": "response.queued"}, done(F),
         {"type": "keepalive"}, {"type": "response.new_thing.delta", "delta": 5}, ended()], BOTH[:1]),
}  # fmt: skip


@each_row(("events", "calls"), STREAMS.values(), ids=STREAMS)
def test_streamed_calls(events: list[Event], calls: list[Call]) -> None:
    for named in (True, False):
        reply = decode("openai-responses", sse_of(*events, named=named), offer=OFFER)
        assert calls_of(reply) == calls
        assert reply.finish == "tool_calls"
        assert all(call.complete for call in reply.tool_calls)
        assert len({call.id for call in reply.tool_calls}) == len(calls)


HI = message("Hi", id="m1")


@each_row(
    ("events", "text", "calls"),
    [
        ([begun(HI), done(HI), ended({"type": "reasoning", "id": "r"}, message("Hi", id="m2"))],
         "Hi", []),
        ([begun(HI), done(HI), begun(called()), piece(A1), done(called(A1)),
          ended(message("Hi", id="m2"), called(A1, id="fc_2", call_id="y"))], "Hi", [("x", "f", A1)]),
        ([begun(called()), done(called(A1)), begun(called(id="fc_2", call_id="y"), 1),
          done(called(A1, id="fc_2", call_id="y"), 1),
          ended(HI, HI, *(called(A1, id=f"i{at}", call_id=f"c{at}") for at in range(2)))],
         "HiHi", [("x", "f", A1), ("y", "f", A1)]),
        ([begun(called()), done(called(A1)), ended(HI, called({"a": 1}, id="fc_1"))],
         "Hi", [("x", "f", '{"a": 1}')]),
    ],
)  # fmt: skip
def test_what_has_new_ids_at_the_end_is_not_said_twice(
    events: list[Event], text: str, calls: list[Call]
) -> None:
    """BerriAI/litellm#36375 (one index for several items), vllm-project/vllm#47916."""
    reply = decode("openai-responses", sse_of(*events), offer=OFFER)
    assert (reply.text, calls_of(reply)) == (text, calls)
    assert all(call.complete for call in reply.tool_calls)


@each_row("events", [events for events, _ in STREAMS.values()], ids=STREAMS)
def test_every_split_gives_the_same_reply_and_parts(events: list[Event]) -> None:
    body = sse_of(*events)
    random_ = random.Random(7)  # noqa: S311
    expected = outcome_of(body, [len(body)])
    assert outcome_of(body, [1] * len(body)) == expected
    sizes = [random_.randint(1, 40) for _ in range(len(body))]
    assert outcome_of(body, sizes) == expected


def outcome_of(body: bytes, sizes: list[int]) -> tuple[Any, ...]:
    reading, parts, at = decoder("openai-responses", True, OFFER), [], 0
    for size in sizes:
        parts += reading.feed(body[at : at + size])
        at += size
    return parts, reading.finish()


@each_row("events", [events for events, _ in STREAMS.values()], ids=STREAMS)
def test_a_stream_that_stops_anywhere_has_no_call_that_may_run(events: list[Event]) -> None:
    body = sse_of(*events)
    end = body.rfind(b'data: {"type": "response.completed"')
    for at in sampled(range(end)):
        reading = decoder("openai-responses", True, OFFER)
        reading.feed(body[:at])
        reply = reading.finish()
        assert reply.finish == "incomplete"
        assert not any(call.complete for call in reply.tool_calls)


@pytest.mark.parametrize("events", [(begun(F0), piece(A1), done(F)), (begun(F0), piece('{"a"'))])
def test_done_instead_of_an_end_says_nothing_of_how_it_ended(events: tuple[Any, ...]) -> None:
    reply = decode("openai-responses", sse_of(*events) + b"data: [DONE]\n\n")
    assert (reply.finish, [call.complete for call in reply.tool_calls]) == ("incomplete", [False])


def test_parts_are_what_the_reply_is_made_of() -> None:
    text: dict[str, Any] = {"of": "output_text", "id": "msg_1", "content_index": 0}
    body = sse_of(
        {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}},
        begun(message()),
        piece("Let ", **text),
        piece("me.", **text),
        settled("Let me.", of="output_text", id="msg_1", key="text"),
        done(message("Let me.")),
        begun(F0, 1),
        begun(G0, 2),
        piece('{"a":', index=1),
        piece(B2, id="fc_2", index=2),
        piece("1}", index=1),
        done(F, 1),
        done(G, 2),
        ended(usage={"input_tokens": 5, "output_tokens": 3, "total_tokens": 8}, id="resp_1"),
    )
    reading = decoder("openai-responses", ids="r_1_")
    parts = reading.feed(body)
    assert reading.done
    assert reading.feed(b"data: {broken\n\n") == []
    reply = reading.finish()
    assert parts == [
        TextPart("Let "),
        TextPart("me."),
        ArgumentsPart("r_1_0", "f", '{"a":'),
        ArgumentsPart("r_1_1", "g", B2),
        ArgumentsPart("r_1_0", "f", "1}"),
    ]
    assert (reply.text, reply.usage, reply.provider_finish) == (
        "Let me.",
        Usage(1, 5, 3),
        "completed",
    )
    assert [call.id for call in reply.tool_calls] == ["r_1_0", "r_1_1"]
    assert reply.raw["id"] == "resp_1"
    assert reply.message.provider_state is None


def test_what_comes_only_at_an_end_is_shown_there() -> None:
    text = settled("Hi there", of="output_text", id="msg_1", key="text")
    piece_ = piece("Hi", of="output_text", id="msg_1")
    for events in (
        [begun(message()), piece_, text, done(message("Hi there")), ended()],
        [begun(message()), piece_, done(message("Hi there")), ended(message("Hi there"))],
        [done(message("Hi there")), ended(message("Hi there"))],
        [ended(message("Hi there"))],
    ):
        reading = decoder("openai-responses")
        parts = reading.feed(sse_of(*events))
        assert "".join(part.text for part in parts) == reading.finish().text == "Hi there"
    reading = decoder("openai-responses", ids="r_")
    assert reading.feed(sse_of(begun(F0), settled(A1), done(F), ended(F))) == [
        ArgumentsPart("r_0", "f", A1)
    ]


def test_wire_names_come_back_as_own_names() -> None:
    offer = Offer({}, {"weather_now_1": "weather.now"})
    reading = decoder("openai-responses", True, offer)
    named = called(name="weather_now_1")
    parts = reading.feed(sse_of(begun(named), piece(A1), done(named), ended()))
    assert parts == [ArgumentsPart("call_0", "weather.now", A1)]
    reply = reading.finish()
    assert (reply.tool_calls[0].name, reply.offer) == ("weather.now", offer)


LENGTH: dict[str, Any] = {"incomplete_details": {"reason": "max_output_tokens"}}
CUT: dict[str, tuple[bytes, str, str | None]] = {
    "incomplete": (
        sse_of(done(F), ended(F, status="incomplete", type="incomplete", **LENGTH)),
        "length", "max_output_tokens"),
    "incomplete, by its reason only": (
        sse_of(done(F), ended(F, **LENGTH)), "length", "max_output_tokens"),
    "incomplete, by its event only": (
        sse_of(done(F), ended(F, type="incomplete")), "incomplete", "incomplete"),
    "content filter": (
        sse_of(done(F), ended(F, status="incomplete", type="incomplete",
                              incomplete_details={"reason": "content_filter"})),
        "content_filter", "content_filter"),
    "another reason": (
        sse_of(done(F), ended(F, status="incomplete", incomplete_details={"reason": "boredom"})),
        "doubtful", "boredom"),
    "cancelled": (sse_of(done(F), ended(F, status="cancelled", type="cancelled")),
                  "incomplete", "cancelled"),
    "by the call's status": (
        sse_of(done(called(A1, status="incomplete")), ended()), "length", "completed"),
    "by a message's status": (
        sse_of(done(message("Hi", status="incomplete")), done(F, 1), ended()), "length", "completed"),
    "arguments torn": (sse_of(done(called('{"a": "')), ended()), "length", "completed"),
    "a call that never ended": (sse_of(begun(F0), ended()), "incomplete", "completed"),
    "a call that stopped in the middle": (
        sse_of(begun(F0), piece('{"a"'), ended()), "incomplete", "completed"),
    "torn event": (sse_of(done(F), ended(F))[:-30], "incomplete", None),
    "no end": (sse_of(done(F)), "incomplete", None),
    "whole, incomplete": (whole(F, status="incomplete", **LENGTH), "length", "max_output_tokens"),
    "whole, queued": (whole(F, status="queued"), "incomplete", "queued"),
    "whole, in progress": (whole(F, status="in_progress"), "incomplete", "in_progress"),
    "whole, a call's status": (whole(called(A1, status="incomplete")), "length", "completed"),
    "whole, arguments torn": (whole(called('{"a')), "length", "completed"),
}  # fmt: skip


@each_row(("body", "finish", "reason"), CUT.values(), ids=CUT)
def test_a_cut_reply_has_no_call_that_may_run(body: bytes, finish: str, reason: str | None) -> None:
    reply = decode("openai-responses", body)
    assert (reply.finish, reply.provider_finish) == (finish, reason)
    assert [call.complete for call in reply.tool_calls] == [False]
    assert reply.tool_calls[0].arguments in (A1, "", '{"a": "', '{"a', '{"a"')


BIG = '{"a": 1e400, "a" :12345678901234567890123}'
SHELL = {"type": "shell_call", "id": "sh", "call_id": "s", "action": {"commands": ["ls"]}}
SEARCHED = {"type": "custom_tool_call", "id": "c", "call_id": "s", "name": "x_search", "input": "q"}

WHOLE: dict[str, tuple[bytes, list[Call], str, str]] = {
    "text": (whole(message("Hi")), [], "Hi", "stop"),
    "text in parts": (whole(message("a", "b"), message("c")), [], "abc", "stop"),
    "text alone": (whole(message(content="Hi")), [], "Hi", "stop"),
    "parts of other kinds": (whole(message(content=[{"type": "image"}, 5, {"type": "text",
                                                                        "text": "Hi"}])),
                             [], "Hi", "stop"),
    "nothing": (whole(), [], "", "stop"),
    "no output": (b'{"object":"response","status":"completed"}', [], "", "stop"),
    "no status": (whole(F, status=None), BOTH[:1], "", "tool_calls"),
    "text and calls": (whole(message("Hi"), F, G), BOTH, "Hi", "tool_calls"),
    "equal ids": (whole(F, F), BOTH[:1], "", "tool_calls"),
    "an object keeps its bytes": (whole(called("BIG")).replace(b'"BIG"', BIG.encode()),
                                  [("x", "f", BIG)], "", "tool_calls"),
    "no arguments": (whole(called(None)), [("x", "f", "{}")], "", "tool_calls"),
    "custom": (whole({"type": "custom_tool_call", "call_id": "x", "name": "f", "input": "4+4"}),
               [("x", "f", "4+4")], "", "tool_calls"),
    "refusal": (whole(message("No.", kind="refusal")), [], "No.", "refusal"),
    "refusal, empty": (whole(message("", kind="refusal"), message("Hi")), [], "Hi", "stop"),
    "reasoning is no text": (whole({"type": "reasoning", "summary": [{"text": "hmm"}],
                                    "content": [{"type": "reasoning_text", "text": "hmm"}]}),
                             [], "", "stop"),
    "the provider's own tools": (whole(SHELL, {"type": "web_search_call", "id": "ws"},
                                       {"type": "mcp_call", "name": "f", "arguments": "{}"},
                                       {"type": "tool_search_call", "arguments": {}},
                                       message("Hi")), [], "Hi", "stop"),
    "byte order mark": (b"\xef\xbb\xbf \n" + whole(message("Hi")), [], "Hi", "stop"),
}  # fmt: skip


@each_row(("body", "calls", "text", "finish"), WHOLE.values(), ids=WHOLE)
def test_whole_bodies(body: bytes, calls: list[Call], text: str, finish: str) -> None:
    reply = decode("openai-responses", body, content_type="application/json")
    assert (calls_of(reply), reply.text, reply.finish) == (calls, text, finish)
    assert reply.raw["object"] == "response"
    for streaming in (False, True):
        reading = decoder("openai-responses", streaming)
        for at in range(0, len(body), 3):
            assert reading.feed(body[at : at + 3]) == []
        assert reading.finish() == reply


def test_refusals_stream_as_text() -> None:
    text: dict[str, Any] = {"of": "refusal", "id": "msg_1"}
    refused = message("I will not.", kind="refusal")
    reading = decoder("openai-responses")
    parts = reading.feed(sse_of(begun(message()), piece("I will ", **text), piece("not.", **text),
                                settled("I will not.", key="refusal", **text),
                                done(refused), ended(refused)))  # fmt: skip
    reply = reading.finish()
    assert parts == [TextPart("I will "), TextPart("not.")]
    assert (reply.text, reply.finish) == ("I will not.", "refusal")
    assert reply.message.provider_state == ProviderState("openai-responses", [refused])


def test_a_custom_call_for_a_tool_not_on_offer_is_the_providers_own() -> None:
    for body in (whole(SEARCHED, message("Found.")),
                 sse_of(begun(SEARCHED | {"input": ""}), piece("q", of="custom_tool_call_input"),
                        done(SEARCHED), done(message("Found."), 1), ended())):  # fmt: skip
        reading = decoder("openai-responses", True, OFFER)
        assert not any(isinstance(part, ArgumentsPart) for part in reading.feed(body))
        reply = reading.finish()
        assert (reply.tool_calls, reply.text, reply.finish) == ((), "Found.", "stop")
        assert reply.message.provider_state == ProviderState(
            "openai-responses", [SEARCHED, message("Found.")]
        )


REASONED = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "gAAA"}
NOT_ENCRYPTED = {"type": "reasoning", "id": "rs", "summary": []}
IN_CLEAR = NOT_ENCRYPTED | {"content": [{"type": "reasoning_text", "text": "hmm"}]}
PHASED = message("Hi", phase="final_answer")

STATES: dict[str, tuple[list[Event], dict[str, Any], list[Event] | None]] = {
    "text": ([message("Hi")], {}, None),
    "text and calls": ([message("Hi"), F, G], {}, None),
    "a call before the text": ([F, message("Hi")], {}, [F, message("Hi")]),
    "reasoning, encrypted": ([REASONED, F], {"store": False}, [REASONED, F]),
    "reasoning, in the clear": ([IN_CLEAR, F], {"store": False}, [IN_CLEAR, F]),
    "reasoning, stored": ([NOT_ENCRYPTED, F], {"store": True}, [NOT_ENCRYPTED, F]),
    "reasoning that nobody can read": ([NOT_ENCRYPTED, F], {"store": False}, None),
    "reasoning that led to nothing": ([REASONED], {}, None),
    "reasoning at the end": ([PHASED, REASONED], {}, [PHASED]),
    "a phase": ([PHASED], {}, [PHASED]),
    "no phase": ([message("Hi", phase=None)], {}, None),
    "a call with more to it": ([F | {"namespace": "n"}], {}, [F | {"namespace": "n"}]),
    "the provider's own tools": ([SHELL, message("Hi")], {}, [SHELL, message("Hi")]),
}


@each_row(("output", "more", "kept"), STATES.values(), ids=STATES)
def test_what_goes_back_to_the_provider(
    output: list[Event], more: dict[str, Any], kept: list[Event] | None
) -> None:
    state = None if kept is None else ProviderState("openai-responses", kept)
    events = [done(item, at) for at, item in enumerate(output)]
    for body in (
        whole(*output, **more),
        sse_of(*events, ended(*output, **more)),
        sse_of(*events, ended(**more)),
        sse_of(ended(*output, **more)),
    ):
        assert decode("openai-responses", body).message.provider_state == state


def test_the_state_is_that_of_a_wire_by_its_own_name() -> None:
    azure = msgspec.structs.replace(OPENAI_RESPONSES, name="azure")
    state = decode(azure, whole(REASONED, F)).message.provider_state
    assert state == ProviderState("azure", [REASONED, F])


def test_a_call_in_the_text_is_text_unless_the_wire_says_otherwise() -> None:
    body = whole(message('{"name": "f", "parameters": {"a": 1}}'))
    assert decode("openai-responses", body, offer=OFFER).finish == "stop"
    llama = msgspec.structs.replace(OPENAI_RESPONSES, text_calls="llama")
    reply = decode(llama, body, offer=OFFER)
    assert (calls_of(reply), reply.text) == ([("", "f", '{"a": 1}')], "")


ERRORS: list[tuple[bytes, type[ClientError], str]] = [
    (sse_of({"type": "error", "code": "busy", "message": "wait", "param": None}, named=False),
     ProviderError, "wait (busy)"),
    (sse_of({"type": "error", "code": "busy", "message": "wait"}), ProviderError, "wait (busy)"),
    (sse_of({"type": "error", "error": {"message": "wait"}}), ProviderError, "wait"),
    (sse_of(done(F), ended(type="failed", status="failed", error={"message": "m", "code": "c"})),
     ProviderError, "m (c)"),
    (sse_of(done(F), ended(status="failed")), ProviderError, "failed"),
    (sse_of(done(F), {"type": "response.failed"}), ProviderError, "failed"),
    (whole(F, status="failed", error={"message": "m", "code": "c"}), ProviderError, "m (c)"),
    (whole(F, status="failed"), ProviderError, "failed"),
    (b'{"error": {"message": "no"}}', ProviderError, "no"),
    (b'{"id": "chatcmpl-1", "choices": []}', WireError, "no output"),
    (b"{}", WireError, "no output"),
    (whole(5), WireError, "not an object"),
    (whole({"type": 5}), WireError, "`type`"),
    (whole(called(A1, name=5)), WireError, "`name`"),
    (whole(called(A1, call_id=5)), WireError, "`call_id`"),
    (sse_of({"type": "response.output_item.added"}), WireError, "not an object"),
    (sse_of(piece(5)), WireError, "`delta`"),
    (sse_of(piece(["x"], of="output_text")), WireError, "`delta`"),
    (sse_of({"type": "message_start"}), WireError, "neither JSON nor an event stream"),
    (b'data: {"choices": []}\n\n', WireError, "neither JSON nor an event stream"),
    (b"data: {broken\n\n", WireError, "not a JSON object"),
    (b"<html></html>", WireError, "not a JSON object"),
]  # fmt: skip


@each_row(("body", "kind", "said"), ERRORS)
def test_what_is_no_reply_is_a_typed_error(body: bytes, kind: type[ClientError], said: str) -> None:
    reading = decoder("openai-responses")
    reading.feed(body)
    with pytest.raises(kind) as caught:
        reading.finish()
    assert said in str(caught.value)
    assert type(caught.value) is kind


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5)
    | st.sampled_from(["function_call", "custom_tool_call", "message", "reasoning", "completed"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["type", "item", "output_index", "item_id", "delta", "arguments", "response", "output",
             "status", "incomplete_details", "reason", "content", "text", "call_id", "name", "id",
             "error", "usage", "input", "content_index", "encrypted_content"]
        ),
        inner,
        max_size=6,
    ),
    max_leaves=20,
)  # fmt: skip
_KINDS = st.sampled_from(
    ["output_item.added", "output_item.done", "function_call_arguments.delta", "output_text.delta",
     "function_call_arguments.done", "custom_tool_call_input.done", "completed", "created"]
)  # fmt: skip


@settings(max_examples=sample(120))
@given(st.lists(st.tuples(_KINDS, _JSON), max_size=4))
def test_no_json_makes_it_crash(values: list[tuple[str, Any]]) -> None:
    events = []
    for kind, value in values:
        more = value if isinstance(value, dict) else {"item": value, "response": value}
        events.append(more | {"type": f"response.{kind}"})
    bodies = [json.dumps({"object": "response"} | e).encode() for e in events[:1]]
    for body in (sse_of(*events), *bodies):
        try:
            reply = decode("openai-responses", body)
        except ClientError:
            continue
        assert (reply.finish == "tool_calls") == any(c.complete for c in reply.tool_calls)


@pytest.mark.exhaustive
def test_many_events_of_one_call_are_read_once() -> None:
    """Ends in between would each join all that was there, were they not told by their length."""
    events = [begun(F0)]
    for _ in range(20_000):
        events += [piece("{}"), settled("x")]
    body = sse_of(*events, settled(A1), ended())
    (call,) = decode("openai-responses", body).tool_calls
    assert call.arguments == A1
    many = [called(A1, id=f"fc_{n}", call_id="x") for n in range(5_000)]
    (call,) = decode("openai-responses", sse_of(*map(done, many), ended(*many))).tool_calls
    assert (call.arguments, call.notes) == (A1, ("said_twice",))


@given(
    arguments=st.dictionaries(
        st.text("ab", min_size=1), st.integers() | st.text("xy~"), min_size=1
    ),
    cut=st.integers(min_value=0),
    again=st.booleans(),
    whole=st.booleans(),
    wrong=st.none() | st.integers(min_value=0),
)
def test_what_a_call_begins_with_is_what_it_goes_on_with(
    arguments: dict[str, Any], cut: int, again: bool, whole: bool, wrong: int | None
) -> None:
    """Whether the pieces go on from the beginning, or say it again; one other character is doubt."""
    text = json.dumps(arguments)
    beginning = text[: cut % len(text)]
    rest = text if again or not whole else text[len(beginning) :]
    if wrong is not None and (told := beginning.strip("{} ")):
        at = beginning.index(told) + wrong % len(told)
        beginning = f"{beginning[:at]}^{beginning[at + 1 :]}"
    end = [settled(text), done(called(text))] if whole else []
    (call,) = decode(
        "openai-responses", sse_of(begun(called(beginning)), piece(rest), *end, ended())
    ).message.tool_calls
    doubtful = "^" in beginning
    assert call.complete is not doubtful
    assert (call.fault is not None and call.fault.code == ErrorCode.CONTRADICTORY) is doubtful
    if not doubtful:
        assert json.loads(call.arguments) == arguments
