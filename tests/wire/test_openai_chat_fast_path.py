"""Usual chunks mean what they mean when they are read with care, and unusual ones are left alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toolcrib.values.message import Reply
from toolcrib.wire import OPENAI_CHAT, decoder, openai_chat_reply
from toolcrib.wire.openai_chat_reply import fast_choice

BEGIN = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}], "id": "x"}
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def delta(**members: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": members}]}


def choice(**members: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": "x"}} | members]}


def call(**members: Any) -> dict[str, Any]:
    return delta(tool_calls=[members])


def function(**members: Any) -> dict[str, Any]:
    return {"index": 0, "function": members}


USUAL: dict[str, Any] = {
    "text": delta(content="a\nb"),
    "text and a thought": delta(content="a", role="assistant", reasoning_content="hm"),
    "nothing": delta(),
    "nulls": delta(content=None, tool_calls=None, function_call=None, refusal=None),
    "a call begins": call(index=0, id="c", type="function", function={"name": "f"}),
    "a call goes on": call(**function(arguments='{"a"')),
    "nulls of a call": call(index=0, id=None, function={"name": None, "arguments": "1"}),
    "no index": call(id="c", function={"name": "f", "arguments": "{}"}),
    "two calls": delta(
        tool_calls=[function(arguments="1"), function(arguments="2") | {"index": 1}]
    ),
    "name and id again": call(id="c", **function(name="f", arguments="{}")),
    "another choice": {"choices": [{"index": 1, "delta": {"content": "no"}}]},
    "no reason yet": choice(finish_reason=None, logprobs=None, native_finish_reason=""),
    "nothing used yet": delta(content="x") | {"usage": None, "error": None},
    "members in between": {"id": "a", "object": "b", "created": 1} | delta(content="y"),
}
UNUSUAL: dict[str, Any] = {
    "a reason": choice(finish_reason="stop"),
    "another server's reason": choice(native_finish_reason="length"),
    "an error of the choice": choice(error={"message": "x"}),
    "usage": delta(content="x") | {"usage": {"prompt_tokens": 1}},
    "usage alone": {"choices": [], "usage": {"prompt_tokens": 2}},
    "two choices": {"choices": [*delta(content="a")["choices"], *delta(content="b")["choices"]]},
    "a whole message": {"choices": [{"index": 0, "message": {"content": "x"}}]},
    "a message and no delta": {"choices": [{"delta": None, "message": {"content": "x"}}]},
    "no choices": {"id": "x"},
    "a list of texts": delta(content=[{"type": "text", "text": "x"}]),
    "a refusal": delta(refusal="no"),
    "an older call": delta(function_call={"name": "f", "arguments": "{}"}),
    "a custom call": call(index=0, id="c", custom={"name": "f", "input": "x"}),
    "a custom call beside a function": call(custom={"name": "g"}, **function(name="f")),
    "a name beside a function": call(name="g", **function(name="f", arguments="{}")),
    "arguments beside a function": call(arguments='{"a": 1}', **function(name="f", arguments="{}")),
    "arguments that are an object": call(**function(name="f", arguments={"a": 1})),
    "an index that is text": call(index="0", function={"name": "f", "arguments": "{}"}),
    "a null among the calls": delta(tool_calls=[None, function(name="f", arguments="{}")]),
    "one call and no list": delta(tool_calls=function(name="f", arguments="{}")),
    "an id that is a number": call(index=0, id=7, function={"name": "f", "arguments": "{}"}),
    "an index that is null": choice(index=None),
}


def decoded(*events: Any) -> tuple[list[Any], Reply]:
    """What streams, and the reply but for what is the provider's payload."""
    reading = decoder(OPENAI_CHAT)
    text = "".join(f"data: {e if isinstance(e, str) else json.dumps(e)}\n\n" for e in events)
    parts = reading.feed(text.encode())
    return parts, reading.finish()


@pytest.fixture
def carefully(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`decoded`, where no chunk is taken for a usual one."""

    def read(*events: Any) -> tuple[list[Any], Reply]:
        with monkeypatch.context() as patch:
            patch.setattr(openai_chat_reply, "_PATIENCE", 0)
            return decoded(*events)

    return read


@pytest.mark.parametrize("event", USUAL.values(), ids=USUAL)
def test_fast_choices_mean_the_same(event: Any, carefully: Any) -> None:
    fast_choice(json.dumps(event).encode())
    for events in ((BEGIN, event, END), (BEGIN, event, event, END), (event, BEGIN, event)):
        assert decoded(*events) == carefully(*events)


@pytest.mark.parametrize("event", UNUSUAL.values(), ids=UNUSUAL)
def test_unfast_choices_are_left_to_others(event: Any, carefully: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        fast_choice(json.dumps(event).encode())
    events = (BEGIN, event, END, "[DONE]")
    assert decoded(*events) == carefully(*events)


@pytest.mark.parametrize("text", [r'"\ud83d"', r'"\ud83d", "x": NaN', '"a", "x": ["'])
def test_what_only_care_can_read(text: str, carefully: Any) -> None:
    torn = json.dumps(delta(content=0)).replace("0}", text + "}")
    events = (BEGIN, torn, delta(content="b"), END)
    if text.endswith('["'):
        for read in (decoded, carefully):
            with pytest.raises(Exception, match="not a JSON object"):
                read(*events)
    else:
        assert decoded(*events) == carefully(*events)


def test_a_server_that_is_always_unusual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting each chunk's usage, as xAI does: it is soon no longer tried."""
    tried: list[bytes] = []

    def reading(data: bytes) -> Any:
        tried.append(data)
        return fast_choice(data)

    monkeypatch.setattr(openai_chat_reply, "fast_choice", reading)
    chunks = [delta(content="x") | {"usage": {"prompt_tokens": at}} for at in range(1, 100)]
    _, reply = decoded(BEGIN, *chunks, END, "[DONE]")
    assert (reply.text, reply.usage.input_tokens) == ("x" * 99, 99)
    assert len(tried) == 16
