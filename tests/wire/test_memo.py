"""What a turn costs: only what is new in it is encoded, on every wire."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from rows import each_row

from toolcrib.errors import RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.message import ChatRequest, Message
from toolcrib.wire import WIRES, Memo, base, encode
from toolcrib.wire.forms import encoded as encoded_tools

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


@EACH
def test_a_list_that_grows_is_sent_as_it_is_by_then(wire: str) -> None:
    memo, messages = Memo(), [Message.user("Hi")]
    for number in range(3):
        request = ChatRequest(messages, TOOLS)  # type: ignore[arg-type]
        messages += turn("a", number)
        assert len(request.messages) == 2 * number + 1
        sent = encode(wire, request, model="m", memo=memo)
        assert sent.body == encode(wire, request, model="m").body


@pytest.mark.parametrize("tools", [list(TOOLS), iter(TOOLS)], ids=["a list", "a generator"])
def test_tools_are_those_that_were_given(tools: Any) -> None:
    request = ChatRequest((Message.user("Hi"),), tools)
    if isinstance(tools, list):
        tools.clear()
    first, second = (encode("openai-chat", request, model="m").body for _ in range(2))
    assert first == second == encode(
        "openai-chat", ChatRequest(request.messages, TOOLS), model="m").body  # fmt: skip


@each_row("messages", [Message.user("Hi"), "Hi", None])
def test_what_is_no_list_of_messages_is_no_request(messages: Any) -> None:
    with pytest.raises(TypeError, match="messages must be a list of messages"):
        ChatRequest(messages)


def talks_of(count: int, *, turns: int = 0) -> list[tuple[Message, ...]]:
    begun = [(Message.user(f"conversation {number}"),) for number in range(count)]
    return [
        talk + tuple(each for at in range(turns) for each in turn(f"{number}", at))
        for number, talk in enumerate(begun)
    ]


@EACH
@pytest.mark.exhaustive
def test_of_hundreds_of_conversations_only_what_is_new_is_encoded(
    wire: str, encoded: list[Any]
) -> None:
    memo = Memo()
    for turns in range(3):
        encoded.clear()
        for talk in talks_of(512, turns=turns):  # equal messages, and not the same ones
            encode(wire, ChatRequest(talk, TOOLS), model="m", memo=memo)
        assert len(encoded) <= 512 * 2
    assert len(memo.histories) == 512


def test_conversations_that_only_their_beginning_tells_apart(encoded: list[Any]) -> None:
    memo, same = Memo(), (Message.assistant("Go on?"), Message.user("yes"))
    for turns in range(4):
        encoded.clear()
        for (begun,) in talks_of(30):
            request = ChatRequest((begun, *same * turns))
            sent = encode("openai-chat", request, model="m", memo=memo)
            made = len(encoded)
            assert sent.body == encode("openai-chat", request, model="m").body
            del encoded[made:]
        assert len(encoded) == 30 * (2 if turns else 1)


def test_what_is_remembered_is_bounded_in_bytes(encoded: list[Any]) -> None:
    memo, long = Memo(max_bytes=100_000), "x" * 10_000
    for number in range(40):
        asked = (Message.user(f"{number}"), Message.assistant(long), Message.user("and?"))
        encode("openai-chat", ChatRequest(asked), model="m", memo=memo)
        assert memo.histories.size <= 100_000
    assert len(memo.histories) == 4  # each with its text and its messages, 20 kB and some
    encoded.clear()
    for number in (39, 38, 0, 39):  # the last ones are known
        asked = (Message.user(f"{number}"), Message.assistant(long), Message.user("and?"))
        encode("openai-chat", ChatRequest(asked), model="m", memo=memo)
    assert len(encoded) == 3
    encode("openai-chat", ChatRequest((Message.user(long * 10),)), model="m", memo=memo)
    assert len(memo.histories) == 4  # what is larger than all is not kept, and drives none out


def test_what_is_counted_is_about_what_it_takes() -> None:
    memo = Memo()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for talk in talks_of(50, turns=40):
            encode("openai-chat", ChatRequest(talk, TOOLS), model="m", memo=memo)
        del talk
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert memo.histories.size / 2 < taken < memo.histories.size * 1.5


def test_a_request_that_is_refused_leaves_nothing_behind() -> None:
    memo, (asked,) = Memo(), talks_of(1, turns=1)
    encode("openai-chat", ChatRequest(asked), model="m", memo=memo)
    open_call = Message.assistant("", (ToolCall("c", "f", "{}"),))
    for _ in range(2):
        with pytest.raises(RequestError):
            encode("openai-chat", ChatRequest((*asked, open_call)), model="m", memo=memo)
        assert len(memo.histories) == 0
    sent = encode("openai-chat", ChatRequest(asked), model="m", memo=memo)
    assert sent.body == encode("openai-chat", ChatRequest(asked), model="m").body


@EACH
def test_a_turn_with_other_tools_encodes_no_more_if_no_name_reads_otherwise(
    wire: str, encoded: list[Any]
) -> None:
    memo, talk = Memo(), talks_of(1, turns=3)[0]
    encode(wire, ChatRequest(talk, TOOLS), model="m", memo=memo)
    more: Any = (*TOOLS, {"name": "g", "input_schema": {"type": "object"}})
    for tools in (more, ()):
        encoded.clear()
        asked = ChatRequest((*talk, Message.user("And?")), tools)
        sent = encode(wire, asked, model="m", memo=memo)
        assert len(encoded) <= 1
        assert sent.body == encode(wire, asked, model="m").body


@EACH
def test_a_name_that_other_tools_change_is_encoded_anew(wire: str) -> None:
    memo, call = Memo(), ToolCall("c", "a b", "{}")
    talk = (Message.user("Hi"), Message.assistant("", (call,)), Message.tool(call, "1"))
    taken: Any = [({"name": name, "input_schema": {"type": "object"}},) for name in ("a b", "a_b")]
    both: Any = (*taken[1], *taken[0])
    for tools in (taken[0], both, taken[1], both):
        asked = ChatRequest(talk, tools)
        sent = encode(wire, asked, model="m", memo=memo)
        assert sent.body == encode(wire, asked, model="m").body


@EACH
def test_the_same_tools_in_another_list_are_not_encoded_again(
    wire: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memo, asked = Memo(), (Message.user("Hi"),)
    made: list[Any] = []

    def counting(*given: Any) -> Any:
        made.append(given)
        return encoded_tools(*given)

    monkeypatch.setattr(base, "encoded", counting)
    for _ in range(3):
        encode(wire, ChatRequest(asked, (*TOOLS,)), model="m", memo=memo)
    assert len(made) == 1
    encode(wire, ChatRequest(asked, (*TOOLS, {"name": "g"})), model="m", memo=memo)  # type: ignore[arg-type]
    assert len(made) == 2
