"""What a turn costs: only what is new in it is encoded, on every wire."""

from __future__ import annotations

from typing import Any

import pytest

from toolcrib.values.call import ToolCall
from toolcrib.values.message import ChatRequest, Message
from toolcrib.wire import WIRES, Memo, encode
from toolcrib.wire import request as request_module
from toolcrib.wire.views import encoded as encoded_tools

TOOLS: Any = ({"name": "f", "input_schema": {"type": "object"}},)
EACH = pytest.mark.parametrize("wire", WIRES)


def turn(name: str, number: int) -> tuple[Message, ...]:
    made = ToolCall(f"{name}_{number}", "f", "{}")
    return Message.assistant("", (made,)), Message.tool(made, f"{name} said {number}")


@EACH
def test_only_what_is_new_is_encoded(wire: str, encoded: list[Any]) -> None:
    memo = Memo()
    messages: tuple[Message, ...] = (Message.user("Hi"),)
    for number in range(5):
        messages += turn("a", number)
        encoded.clear()
        sent = encode(wire, ChatRequest(messages, TOOLS), model="m", memo=memo)
        assert len(encoded) <= (3 if number == 0 else 2)
        assert sent.body == encode(wire, ChatRequest(messages, TOOLS), model="m").body


@EACH
def test_conversations_that_take_turns(wire: str, encoded: list[Any]) -> None:
    memo = Memo()
    talks: dict[str, tuple[Message, ...]] = {name: (Message.user(name),) for name in "abcd"}
    for number in range(4):
        for name, said in talks.items():
            talks[name] = (*said, *turn(name, number))
            request = ChatRequest(talks[name], TOOLS)
            encoded.clear()
            sent = encode(wire, request, model="m", memo=memo)
            assert len(encoded) <= (3 if number == 0 else 2)
            assert sent.body == encode(wire, request, model="m").body


def test_not_more_conversations_than_some_are_kept() -> None:
    memo = Memo()
    for number in range(40):
        encode("openai-chat", ChatRequest((Message.user(f"{number}"),)), model="m", memo=memo)
    assert len(memo.others) == 15


@EACH
def test_the_same_tools_in_another_list_are_not_encoded_again(
    wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo, asked = Memo(), (Message.user("Hi"),)
    made: list[Any] = []

    def counting(*given: Any) -> Any:
        made.append(given)
        return encoded_tools(*given)

    monkeypatch.setattr(request_module, "encoded", counting)
    for _ in range(3):
        encode(wire, ChatRequest(asked, (*TOOLS,)), model="m", memo=memo)
    assert len(made) == 1
    encode(wire, ChatRequest(asked, (*TOOLS, {"name": "g"})), model="m", memo=memo)  # type: ignore[arg-type]
    assert len(made) == 2
