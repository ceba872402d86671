"""The scripted model and the sink in memory."""

from __future__ import annotations

from typing import Any

import pytest
from rows import each_row

from toolcrib.errors import ProviderError, ToolcribError
from toolcrib.testing import MemorySink, ScriptedClient, call, raw_call
from toolcrib.values.call import Hydrated, Rejected, ToolCall
from toolcrib.values.message import ArgumentsPart, ChatRequest, LLMClient, Message, Reply, TextPart
from toolcrib.values.record import RecordStatus, ToolInvocationRecord

ASK = ChatRequest((Message.user("Hi"),), id_prefix="r_0_")
ADD: dict[str, Any] = {
    "name": "add",
    "description": "Add.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
}


def said_by(reply: Reply) -> tuple[str, list[tuple[str, str, str]], str]:
    return reply.text, [(c.id, c.name, c.arguments) for c in reply.tool_calls], reply.finish


TURNS: list[tuple[Any, tuple[str, list[tuple[str, str, str]], str]]] = [
    ("Hello", ("Hello", [], "stop")),
    (call("add", a=1), ("", [("r_0_0", "add", '{"a":1}')], "tool_calls")),
    (
        ["Let me ", call("add", a=1), "see", raw_call("add", "{")],
        ("Let me see", [("r_0_0", "add", '{"a":1}'), ("r_0_1", "add", "{")], "tool_calls"),
    ),
    (lambda request: f"{len(request.messages)} message", ("1 message", [], "stop")),
    (Reply(Message.assistant("as it is"), "length"), ("as it is", [], "length")),
]


def test_a_call_has_any_json_as_its_arguments() -> None:
    assert call("add", a=2**70, b=[-(10**30)]).arguments == (
        '{"a":1180591620717411303424,"b":[-1000000000000000000000000000000]}'
    )
    assert call("add", name=None, arguments=[1], self={}).arguments == (
        '{"name":null,"arguments":[1],"self":{}}'
    )
    with pytest.raises(TypeError, match=r"arguments of call\('add', …\) are not JSON"):
        call("add", a=object())


@each_row(("turn", "said"), TURNS)
async def test_turns(turn: Any, said: Any) -> None:
    client = ScriptedClient([turn, turn])
    reply = await client.chat(ASK)
    assert said_by(reply) == said
    *parts, last = [part async for part in client.stream(ASK)]
    assert last == reply
    assert client.requests == [ASK, ASK]
    assert client.remaining == 0
    assert "".join(part.text for part in parts if isinstance(part, TextPart)) == reply.text
    for made in reply.tool_calls:
        pieces = [p.text for p in parts if isinstance(p, ArgumentsPart) and p.call_id == made.id]
        assert "".join(pieces) == made.arguments


async def test_text_streams_in_pieces() -> None:
    client = ScriptedClient(["a longer sentence than that"])
    assert len([part async for part in client.stream(ASK)]) > 3


async def test_an_exception_is_raised() -> None:
    client = ScriptedClient([ProviderError("down"), lambda _: ProviderError("down too")])
    for _ in range(2):
        with pytest.raises(ProviderError, match="down"):
            await client.chat(ASK)


async def test_a_script_that_is_used_up_says_so() -> None:
    client = ScriptedClient(["one"])
    await client.chat(ASK)
    with pytest.raises(ToolcribError, match=r"used up: it has 1 turn,.*user, 2 characters"):
        await client.chat(ASK)


def test_a_text_is_no_script() -> None:
    with pytest.raises(
        ToolcribError, match=r"turns must be a list .* as in ScriptedClient\(\['…'\]\)"
    ):
        ScriptedClient("hello")


@pytest.mark.parametrize("turn", [5, ["text", 5], None])
async def test_what_is_no_turn_is_refused(turn: Any) -> None:
    with pytest.raises(TypeError, match="turn"):
        await ScriptedClient([turn]).chat(ASK)


async def test_a_plan_is_hydrated_against_what_was_offered() -> None:
    turn = [call("add", a=1), call("add", a="x"), call("other"), raw_call("add", '{"a":')]
    async with ScriptedClient([turn]) as client:
        plan = await client.tool_call("Add one.", [ADD])
    assert [type(result) for result in plan] == [Hydrated, Rejected, Rejected, Rejected]
    assert plan.reply.offer.tools.keys() == {"add"}
    assert client.requests[0].messages == (Message.user("Add one."),)


def test_it_is_a_client() -> None:
    client: LLMClient = ScriptedClient([], model="m")
    assert isinstance(client, LLMClient)
    assert client.model == "m"


def test_a_scripted_reply_keeps_its_calls() -> None:
    made = ToolCall("own", "add", "{}", provider_id="p")
    assert Reply(Message.assistant("", (made,)), "tool_calls").tool_calls == (made,)


def test_the_sink_keeps_records_in_order() -> None:
    sink = MemorySink()
    statuses: list[RecordStatus] = ["started", "completed", "started", "failed", "waiting"]
    records = [
        ToolInvocationRecord(id=f"c{at}", name="f", status=status, started_at=0.0)
        for at, status in enumerate(statuses)
    ]
    for record in records:
        sink.write(record)
    assert sink.records == records
    assert [record.id for record in sink.finished()] == ["c1", "c3", "c4"]
