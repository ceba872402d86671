"""What a chat message holds beside text and calls goes back to the server as it came."""

from __future__ import annotations

import json
import random
from typing import Any

from rows import each_row

from toolcrib.values.call import ToolCall
from toolcrib.values.message import ChatRequest, Message, ProviderState, Reply
from toolcrib.wire import decode, decoder, encode

Json = dict[str, Any]

A = '{"a":1}'
SIGNED = {"google": {"thought_signature": "S"}}


def whole(**message: Any) -> bytes:
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()


def stream(*deltas: Json) -> bytes:
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    return "".join(f"data: {json.dumps(c)}\n\n" for c in chunks).encode() + b"data: [DONE]\n\n"


def call(index: int, **members: Any) -> Json:
    return {"index": index, "id": f"x{index}", "function": {"name": "f", "arguments": A}} | members


def thought(text: str | None = None, *, kind: str = "text", **members: Any) -> Json:
    said = {} if text is None else {"text": text}
    return {"type": f"reasoning.{kind}", "index": 0} | said | members


KEPT: dict[str, tuple[bytes, Json]] = {
    "text, whole": (whole(content="Hi", reasoning_content="hm"), {"reasoning_content": "hm"}),
    "text, streamed": (stream({"role": "assistant", "reasoning_content": ""},
                              *({"reasoning_content": c} for c in "abc"), {"content": "Hi"}),
                       {"reasoning_content": "abc"}),
    "half surrogates": (stream({"reasoning": "\ud83d"}, {"reasoning": "\ude00"}), {"reasoning": "😀"}),
    "that there was no thought": (whole(content="Hi", reasoning_content=""), {"reasoning_content": ""}),
    "nothing": (whole(content="Hi", reasoning=None, reasoning_details=[], extra_content=None), {}),
    "of no use": (whole(content="Hi", reasoning={"a": 1}, reasoning_details="x"), {}),
    "details, whole": (whole(reasoning="a", reasoning_details=[thought("a", signature="S")]),
                       {"reasoning": "a", "reasoning_details": [thought("a", signature="S")]}),
    "details, streamed": (
        stream({"reasoning_details": [thought("a")]}, {"reasoning_details": [thought("b")]},
               {"reasoning_details": [thought("", signature="S")]},
               {"reasoning_details": [thought("c")]},
               {"reasoning_details": [thought(kind="encrypted", data="D", id="x0")]},
               {"reasoning_details": [thought(kind="encrypted", data="E", id="x1")]}),
        {"reasoning_details": [thought("ab", signature="S"), thought("c"),
                               thought(kind="encrypted", data="D", id="x0"),
                               thought(kind="encrypted", data="E", id="x1")]}),
    "blocks, streamed": (
        stream({"thinking_blocks": [{"type": "thinking", "thinking": "a"}]},
               {"thinking_blocks": [{"type": "thinking", "thinking": "b", "signature": None}]},
               {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "S"}]}),
        {"thinking_blocks": [{"type": "thinking", "thinking": "ab", "signature": "S"}]}),
    "odd details": (whole(reasoning_details=["x", thought("a"), 5]),
                    {"reasoning_details": ["x", thought("a"), 5]}),
    "a signature, whole": (whole(tool_calls=[call(0, extra_content=SIGNED), call(1)]),
                           {"calls": {"call_0": {"extra_content": SIGNED}}}),
    "a signature, streamed": (
        stream({"tool_calls": [call(0)]}, {"tool_calls": [call(1, provider_specific_fields=SIGNED)]}),
        {"calls": {"call_1": {"provider_specific_fields": SIGNED}}}),
    "a signature of the text": (stream({"content": "Hi"}, {"extra_content": SIGNED}),
                                {"extra_content": SIGNED}),
}  # fmt: skip


def state_of(reply: Reply) -> Any:
    state = reply.message.provider_state
    assert state is None or state.wire == "openai-chat"
    return {} if state is None else state.data


def sent(*messages: Message) -> Any:
    asked = (Message.user("?"), *messages)
    return json.loads(encode("openai-chat", ChatRequest(asked), model="m").body)["messages"][1:]


@each_row(("body", "kept"), KEPT.values(), ids=KEPT)
def test_it_is_kept_and_goes_back(body: bytes, kept: Json) -> None:
    reply = decode("openai-chat", body)
    assert state_of(reply) == kept
    (form, *_) = sent(reply.message, *(Message.tool(c, "r") for c in reply.tool_calls))
    of_calls = kept.pop("calls", {})
    assert form.items() >= kept.items()
    for at, made in enumerate(form.get("tool_calls", ())):
        assert made.items() >= of_calls.get(f"call_{at}", {}).items()
        assert made.keys() <= {"id", "type", "function", *of_calls.get(f"call_{at}", ())}
    assert form.keys() <= {"role", "content", "tool_calls", *kept}


@each_row("body", [body for body, _ in KEPT.values()], ids=KEPT)
def test_every_split_gives_the_same(body: bytes) -> None:
    random_ = random.Random(5)  # noqa: S311
    reading, at = decoder("openai-chat"), 0
    while at < len(body):
        size = random_.randint(1, 30)
        reading.feed(body[at : at + size])
        at += size
    assert reading.finish() == decode("openai-chat", body)


def test_a_state_says_nothing_else() -> None:
    made = ToolCall("call_0", "f", A, provider_id="x")
    state = {"role": "user", "content": "X", "tool_calls": [], "reasoning": "r",
             "calls": {"call_0": {"id": "y", "function": {}, "extra_content": SIGNED}}}  # fmt: skip
    message = Message(
        "assistant", "Hi", (made,), provider_state=ProviderState("openai-chat", state)
    )
    form, _ = sent(message, Message.tool(made, "r"))
    assert form == {
        "role": "assistant", "content": "Hi", "reasoning": "r",
        "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": A},
                        "extra_content": SIGNED}],
    }  # fmt: skip


@each_row("state", [None, 5, [], {"calls": 5}, {"calls": {"call_0": 5}}])
def test_a_state_of_no_use_is_nothing(state: Any) -> None:
    made = ToolCall("call_0", "f", A, provider_id="x")
    message = Message(
        "assistant", "Hi", (made,), provider_state=ProviderState("openai-chat", state)
    )
    assert sent(message, Message.tool(made, "r")) == sent(
        Message.assistant("Hi", (made,)), Message.tool(made, "r")
    )
