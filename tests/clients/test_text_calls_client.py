"""Clients of models that write calls in their text."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from servers.ollama import ollama_server
from wire.recorded_helpers import without_payload

from toolcrib import Caller, ToolRunner, tool
from toolcrib.clients import OllamaClient, OpenAIClient, WireClient
from toolcrib.errors import RequestError
from toolcrib.testing import cut, openai_server
from toolcrib.values.call import Hydrated
from toolcrib.values.message import ChatRequest, Message, Reply, TextPart
from toolcrib.wire import OPENAI_CHAT, SYNTAXES

ADD: dict[str, Any] = {
    "name": "add",
    "description": "Add.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}
REQUEST = ChatRequest((Message.user("Hi"),), tools=(ADD,), id_prefix="r_")  # type: ignore[arg-type]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


async def streamed(client: WireClient) -> tuple[str, Reply]:
    parts = [part async for part in client.stream(REQUEST)]
    reply = parts[-1]
    assert isinstance(reply, Reply)
    return "".join(part.text for part in parts if isinstance(part, TextPart)), reply


@pytest.mark.parametrize("syntax", ["hermes", SYNTAXES["hermes"]])
async def test_openai(syntax: Any) -> None:
    async with (
        openai_server([f"I add.\n{CALL}", f"I add.\n{CALL}", CALL]) as server,
        OpenAIClient("m", base_url=server.url, text_calls=syntax) as client,
    ):
        shown, reply = await streamed(client)
        assert (shown, reply.text, reply.finish) == ("I add.", "I add.", "tool_calls")
        assert [(c.id, c.name, c.arguments) for c in reply.tool_calls] == [
            ("r_0", "add", '{"a": 1}')
        ]
        whole = await client.chat(REQUEST)
        assert without_payload(whole.message) == without_payload(reply.message)
        (planned,) = await client.tool_call("Add.", [ADD])
        assert isinstance(planned, Hydrated)
        assert planned.arguments == {"a": 1}


async def test_ollama() -> None:
    async with (
        ollama_server([CALL]) as server,
        OllamaClient("m", base_url=server.url, text_calls="qwen") as client,
    ):
        shown, reply = await streamed(client)
        assert (shown, [call.name for call in reply.tool_calls]) == ("", ["add"])


@pytest.mark.parametrize("text", ["a < b, <tool", "I call <tool_call>\n", "so \n\n", CALL[:-3]])
async def test_what_was_held_back_is_shown_in_the_end(text: str) -> None:
    async with (
        openai_server([text]) as server,
        OpenAIClient("m", base_url=server.url, text_calls="hermes") as client,
    ):
        shown, reply = await streamed(client)
    assert shown == reply.text
    assert reply.finish == ("length" if reply.tool_calls else "stop")
    assert reply.text == ("" if reply.tool_calls else text)


async def test_a_reply_that_was_cut() -> None:
    async with (
        openai_server([cut(CALL)]) as server,
        OpenAIClient("m", base_url=server.url, text_calls="hermes") as client,
    ):
        _, reply = await streamed(client)
    assert reply.finish == "length"
    assert [call.complete for call in reply.tool_calls] == [False]


async def test_a_text_is_text_otherwise() -> None:
    async with openai_server([CALL]) as server, OpenAIClient("m", base_url=server.url) as client:
        shown, reply = await streamed(client)
    assert (shown, reply.text, reply.tool_calls) == (CALL, CALL, ())


def test_a_syntax_that_nobody_knows() -> None:
    with pytest.raises(RequestError, match="there are: deepseek"):
        WireClient("ollama", "m", base_url="http://localhost", text_calls="klingon")


async def test_a_text_call_waits_for_a_person_unless_its_model_is_trusted() -> None:
    @tool(visible=())
    def add(a: int) -> int:
        """Add."""
        return a

    fenced = f"```\n{CALL}\n```"
    statuses = []
    for trusted in (False, True):
        async with (
            openai_server([CALL, fenced, f"Write `{CALL}` for it."]) as server,
            OpenAIClient(
                "m", base_url=server.url, text_calls="hermes", text_calls_trusted=trusted
            ) as client,
        ):
            for _ in range(2):
                (planned,) = await client.tool_call("Add.", [add])
                ended = await ToolRunner([add]).exec(planned, caller=Caller("ann"))
                statuses.append((ended.record.status, ended.record.error))
            assert not await client.tool_call("Add.", [add])
    codes = [error and error.code for _, error in statuses]
    assert codes == ["approval_required", "approval_required", None, "approval_required"]


def test_there_is_something_to_trust() -> None:
    with pytest.raises(RequestError, match="text_calls_trusted needs text_calls"):
        WireClient("ollama", "m", base_url="http://localhost", text_calls_trusted=True)
    wire = msgspec.structs.replace(OPENAI_CHAT, text_calls="qwen")
    client = WireClient(wire, "m", base_url="http://localhost", text_calls_trusted=True)
    assert client.wire.text_calls_trusted


@pytest.mark.parametrize(
    ("text", "status"),
    [(CALL, "completed"), (CALL.replace("1", '"x"'), "failed"), (cut(CALL), "failed")],
)
async def test_the_record_says_that_it_was_written_in_text(text: Any, status: str) -> None:
    @tool(visible=(), read_only=True)
    def add(a: int) -> int:
        """Add."""
        return a

    async with (
        openai_server([text]) as server,
        OpenAIClient("m", base_url=server.url, text_calls="hermes") as client,
    ):
        (planned,) = await client.tool_call("Add.", [add])
    ended = await ToolRunner([add]).exec(planned, caller=Caller("ann"))
    assert (ended.record.status, ended.record.notes) == (status, ("written_in_text",))
