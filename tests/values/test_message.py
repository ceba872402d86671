"""Messages, requests and replies as values."""

from __future__ import annotations

import msgspec
import pytest

from toolcrib.values.call import ToolCall
from toolcrib.values.message import ChatRequest, Message, Reply, Settings, ToolChoice, Usage

CALL = ToolCall("c1", "look", "{}", provider_id="p1")


@pytest.mark.parametrize(
    ("message", "role", "content"),
    [
        (Message.system("s"), "system", "s"),
        (Message.user("u"), "user", "u"),
        (Message.assistant("a", (CALL,)), "assistant", "a"),
        (Message.tool(CALL, "r"), "tool", "r"),
    ],
)
def test_roles(message: Message, role: str, content: str) -> None:
    assert (message.role, message.content) == (role, content)
    assert msgspec.json.decode(msgspec.json.encode(message), type=Message) == message


def test_a_result_is_tied_to_its_call() -> None:
    message = Message.tool(CALL, "no", is_error=True)
    assert (message.call_id, message.name, message.is_error) == ("c1", "look", True)


def test_usage_adds_up() -> None:
    total = sum([Usage(1, 10, 5), Usage(1, 1, 2)], Usage())
    assert total == Usage(requests=2, input_tokens=11, output_tokens=7)


def test_a_reply_passes_on_what_its_message_says() -> None:
    reply = Reply(Message.assistant("a", (CALL,)), "tool_calls")
    assert (reply.text, reply.tool_calls) == ("a", (CALL,))


def test_defaults_are_not_shared() -> None:
    one, other = ChatRequest(()), ChatRequest(())
    assert one == other
    assert one.tool_choice == ToolChoice("auto")
    assert dict(Settings().extra) == {}
    with pytest.raises(AttributeError):
        one.id_prefix = "x"  # type: ignore[misc]
