"""The provider's own tools: behind the request's, as they stand, on every wire."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest
from rows import each_row

from toolcrib.clients import OpenAIClient, Settings
from toolcrib.errors import RequestError
from toolcrib.testing import openai_server
from toolcrib.values.call import ToolCall
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import ChatRequest, Message, ToolChoice
from toolcrib.wire import WIRES, encode

OWN: dict[str, Any] = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
ADD = PlainTool(ToolDefinition(name="add", description="Add.", input_schema_json="{}"))
HI = ChatRequest((Message.user("Hi"),))


def body_of(wire: str, request: ChatRequest) -> dict[str, Any]:
    body: dict[str, Any] = orjson.loads(encode(wire, request, model="m", stream=False).body)
    return body


def tools_of(wire: str, request: ChatRequest) -> list[Any] | None:
    body = body_of(wire, request)
    tools: list[Any] | None = body.get("toolConfig", body).get("tools")
    return tools


@each_row("wire", WIRES)
def test_they_go_behind_the_others(wire: str) -> None:
    settings = Settings(provider_tools=(OWN, {"googleSearch": {}}))
    with_ours = msgspec.structs.replace(HI, tools=(ADD,))
    ours = tools_of(wire, with_ours)
    assert ours is not None
    both = tools_of(wire, msgspec.structs.replace(with_ours, settings=settings))
    assert both == [*ours, OWN, {"googleSearch": {}}]
    alone = msgspec.structs.replace(HI, settings=settings)
    assert tools_of(wire, alone) == [OWN, {"googleSearch": {}}]
    assert tools_of(wire, HI) is None
    assert "tool_choice" not in body_of(wire, alone)


@pytest.mark.parametrize("wire", ["anthropic", "bedrock-converse"])
def test_they_stand_in_for_tools_that_were_called_and_are_gone(wire: str) -> None:
    call = ToolCall("c", "add", "{}", provider_id="c1")
    messages = (*HI.messages, Message.assistant("", (call,)), Message.tool(call, "3"))
    request = ChatRequest(messages, settings=Settings(provider_tools=(OWN,)))
    assert tools_of(wire, request) == [OWN]
    assert "tool_choice" not in body_of(wire, request)


NESTED: list[Any] = []
for _ in range(3000):
    NESTED = [NESTED]


@each_row("value", [object(), float("nan"), -float("inf"), {1}, "\ud800", {1: 2}, NESTED])
@each_row("wire", WIRES)
def test_what_is_no_json_is_refused(wire: str, value: Any) -> None:
    """Some writers make `null` of NaN, which is another request."""
    for member, settings in {
        "provider_tools": Settings(provider_tools=({"type": value},)),
        r"extra\['mine'\]": Settings(extra={"mine": value}),
    }.items():
        with pytest.raises(RequestError, match=f"{member} cannot be sent as JSON"):
            body_of(wire, msgspec.structs.replace(HI, settings=settings))


CAN_FORBID = {
    "openai-chat": "none",
    "openai-responses": "none",
    "anthropic": {"type": "none"},
    "mistral": "none",
    "cohere": "NONE",
}
"""How a wire says that no tool may be called, the provider's included; the others cannot."""


@pytest.mark.parametrize("tools", [(), (ADD,)], ids=["alone", "with ours"])
@each_row("wire", WIRES)
def test_none_of_them_may_be_called(wire: str, tools: tuple[PlainTool, ...]) -> None:
    request = ChatRequest(
        HI.messages, tools, ToolChoice("none"), Settings(provider_tools=(OWN,)))  # fmt: skip
    body = body_of(wire, request)
    is_sent = OWN["name"] in str(body)
    assert is_sent == (wire in CAN_FORBID)
    assert body.get("tool_choice") == CAN_FORBID.get(wire)
    if not tools and not is_sent:
        without = msgspec.structs.replace(request, settings=Settings())
        assert body == body_of(wire, without)


@each_row("wire", WIRES)
def test_a_choice_in_extra_is_sent_with_them(wire: str) -> None:
    settings = Settings(provider_tools=(OWN,), extra={"tool_choice": {"type": "web_search"}})
    request = msgspec.structs.replace(HI, settings=settings)
    assert body_of(wire, request)["tool_choice"] == {"type": "web_search"}


def test_a_choice_is_among_the_tools_on_offer() -> None:
    settings = Settings(provider_tools=(OWN,))
    request = ChatRequest(HI.messages, settings=settings, tool_choice=ToolChoice("required"))
    with pytest.raises(RequestError, match="needs tools"):
        body_of("openai-chat", request)


async def test_those_of_the_client_are_for_requests_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other: dict[str, Any] = {"type": "other"}
    async with (
        openai_server(["a", "b"]) as server,
        OpenAIClient("m", base_url=server.url, settings=Settings(provider_tools=(OWN,))) as client,
    ):
        monkeypatch.setattr(server, "fault", lambda _body: None)
        await client.chat(HI)
        asked = Settings(provider_tools=(other,))
        await client.chat(msgspec.structs.replace(HI, settings=asked))
    assert [request["tools"] for request in server.requests] == [[OWN], [other]]
