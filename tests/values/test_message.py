"""Messages, requests and replies as values."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from toolcrib.values.call import ToolCall
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.message import ChatRequest, Message, Offer, Reply, Settings, ToolChoice, Usage

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


class Holder:
    def __init__(self, name: str) -> None:
        self.name = name

    def get_definition(self) -> ToolDefinition:
        return ToolDefinition(name=self.name, description="", input_schema_json=None)


A, B = Holder("a"), Holder("b")


def test_tools_by_their_own_names_in_order() -> None:
    offer = Offer.of([B, A])
    assert dict(offer.tools) == {"b": B, "a": A}
    assert list(offer.tools) == ["b", "a"]


def test_what_is_offered_is_not_among_the_rest() -> None:
    assert Offer.of([A], known=["a", "b", "c"]).known == {"b", "c"}


def test_wire_names_are_mapped_back() -> None:
    offer = Offer.of([A], own_names={"a_": "a"})
    assert [offer.own_name(name) for name in ("a_", "a", "zzz")] == ["a", "a", "zzz"]


def test_an_empty_offer() -> None:
    assert (dict(Offer().tools), dict(Offer().own_names), Offer().known) == ({}, {}, frozenset())


def test_an_offer_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Offer().known = frozenset("x")  # type: ignore[misc]


@pytest.mark.parametrize("temperature", [float("nan"), float("-inf"), 10**400])
def test_a_temperature_that_no_request_can_hold_is_refused_where_it_is_given(
    temperature: float,
) -> None:
    """JSON has no NaN. Some writers make `null` of it, which is another request."""
    with pytest.raises(ValueError, match="temperature must be a finite number"):
        Settings(temperature=temperature)
    with pytest.raises(ValueError, match="temperature must be a finite number"):
        replace(Settings(max_tokens=1), temperature=temperature)
