"""Messages of a loop with OpenAI's SDK: read back as what they say, or refused where they say more."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row

from toolcrib import ALL, Agent, Message, ToolCall, tool
from toolcrib.errors import RequestError
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.message import ChatRequest
from toolcrib.wire import decode_messages, encode

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "3 degrees"}
LOOP: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "How "}, {"type": "text", "text": "warm?"}],
    },
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    RESULT,
    {"role": "assistant", "content": "3 degrees.", "refusal": None, "annotations": []},
]


def test_a_loop_is_read_as_what_it_says() -> None:
    made = ToolCall("c1", "look", '{"at": 1}', provider_id="c1")
    plain = [Message("assistant", "", (made,)), Message.tool(made, "3 degrees")]
    assert decode_messages(LOOP, untrusted=False) == (
        Message.system("Be kind."),
        Message.user("How warm?"),
        *plain,
        Message.assistant("3 degrees."),
    )
    assert [m.untrusted for m in decode_messages(LOOP)] == [False, False, True, True, True]


class Model:
    """As an SDK's object."""

    def model_dump(self) -> dict[str, Any]:
        return {"role": "assistant", "content": "hi", "audio": None, "function_call": None}


def test_the_objects_of_an_sdk_are_taken() -> None:
    assert decode_messages([Model()], untrusted=False) == (Message.assistant("hi"),)


def test_ids_that_a_server_counts_anew_are_told_apart() -> None:
    said = decode_messages([*LOOP, *LOOP[2:]])
    ids = [call.id for message in said for call in message.tool_calls]
    assert ids == ["c1", "c1_2"]
    assert [m.call_id for m in said if m.role == "tool"] == ids


BROKEN: list[tuple[list[Any], str]] = [
    ([{"role": "function", "content": "x"}], "messages[0].role: it must be one of system, "),
    ([{"content": "x"}], "messages[0].role: "),
    ([{"role": ["user"], "content": "x"}], "messages[0].role: "),
    (["hi"], "messages[0]: it must be a dictionary; got a str"),
    ([Message.user("hi")], "messages[0]: it must be a dictionary; got a Message"),
    ([{"role": "user", "content": None}], "messages[0].content: "),
    ([{"role": "user", "content": "x", "name": "eve"}], "messages[0].name: only role, content are"),
    ([{"role": "user", "tool_calls": [CALL]}], "messages[0].tool_calls: "),
    ([{"role": "assistant", "content": "", "refusal": "no"}], "messages[0].refusal: "),
    (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}],
        "messages[0].content[0].image_url: ",
    ),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]: "),
    ([RESULT], "messages[0].tool_call_id: there is no unanswered call with that id"),
    ([*LOOP, RESULT], "messages[5].tool_call_id: there is no unanswered call with that id"),
    (LOOP[:3], "messages: a call has no result yet: 'c1'"),
    ([*LOOP[:3], LOOP[4]], "messages[3]: a call has no result yet: 'c1'"),
    (
        [*LOOP[:3], RESULT | {"name": "other"}],
        "messages[3].name: the call with that id is a call of 'look'",
    ),
    ([*LOOP[:3], RESULT | {"content": {"degrees": 3}}], "messages[3].content: "),
    (
        [{"role": "assistant", "tool_calls": [CALL, CALL]}],
        "messages[0].tool_calls[1].id: another call",
    ),
    (
        [{"role": "assistant", "tool_calls": [CALL | {"type": "custom"}]}],
        "messages[0].tool_calls[0].type: ",
    ),
    (
        [
            {
                "role": "assistant",
                "tool_calls": [CALL | {"function": {"name": "f", "arguments": {}}}],
            }
        ],
        "messages[0].tool_calls[0].function.arguments: it must be JSON text; got a dict",
    ),
]


@each_row(("given", "told"), BROKEN)
def test_what_has_no_place_is_an_error_that_says_where(given: list[Any], told: str) -> None:
    with pytest.raises(RequestError) as raised:
        decode_messages(given)
    assert str(raised.value).startswith(told)


@each_row("given", [None, "hi", {"messages": LOOP}, 3])
def test_what_is_no_list_is_a_type_error(given: Any) -> None:
    with pytest.raises(TypeError, match="messages must be a list of dictionaries"):
        decode_messages(given)


TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
CALLS = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["{}", '{"x": 1}'])), max_size=3
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    said: list[Message] = []
    for number in range(draw(st.integers(1, 5))):
        match draw(st.sampled_from(["system", "user", "assistant"])):
            case "system":
                said.append(Message.system(draw(TEXT)))
            case "user":
                said.append(Message.user(draw(TEXT)))
            case _:
                made = draw(CALLS)
                calls = tuple(
                    ToolCall(f"c{number}-{at}", name, arguments, provider_id=f"c{number}-{at}")
                    for at, (name, arguments) in enumerate(made)
                )
                said.append(Message.assistant(draw(TEXT), calls))
                said += [Message.tool(call, draw(TEXT)) for call in draw(st.permutations(calls))]
    return tuple(said)


def sent(messages: tuple[Message, ...]) -> list[Any]:
    body: dict[str, Any] = json.loads(encode("openai-chat", ChatRequest(messages), model="m").body)
    told: list[Any] = body["messages"]
    return told


@given(conversations())
def test_what_is_sent_to_openai_is_read_back(messages: tuple[Message, ...]) -> None:
    assert decode_messages(sent(messages), untrusted=False) == messages


JUNK = st.sampled_from(
    [None, "", "x", 0, True, [], [None], {}, {"role": "user"}, "\ud800", "c1", CALL]
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container of a JSON value, with each of its keys."""
    keys: Any = value if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    return found + [
        deeper
        for key in keys
        if isinstance(value[key], dict | list)
        for deeper in places(value[key])
    ]


def read(given: list[Any]) -> tuple[tuple[Message, ...], str]:
    try:
        return decode_messages(given), ""
    except RequestError as error:
        return (), str(error)


@given(st.data())
def test_whatever_is_changed_is_read_or_refused(data: st.DataObject) -> None:
    """And what is read can be sent, with nothing of a model's or a tool's that is not marked."""
    changed = copy.deepcopy(LOOP)
    for _ in range(data.draw(st.integers(1, 3))):
        where, key = data.draw(st.sampled_from(places(changed) or [(changed, 0)]))
        if isinstance(where, dict) and data.draw(st.booleans()):
            where["more"] = copy.deepcopy(data.draw(JUNK))
        elif where:
            where[key] = copy.deepcopy(data.draw(JUNK))
    said, told = read(changed)
    assert told.startswith("messages") if told else sent(said)
    assert all(m.untrusted == (m.role in ("assistant", "tool")) for m in said)


@tool(visible=ALL)
async def look(at: int) -> str:
    """Look out of the window: here, trusted."""
    return f"{at} degrees"


@tool(visible=ALL)
async def send() -> str:
    """Send a mail."""
    return "sent"


@each_row(
    ("messages", "untrusted", "code"),
    [
        (LOOP, True, "approval_required"),
        (LOOP[:4], True, "approval_required"),
        (LOOP[4:], True, "approval_required"),
        (LOOP[:2], True, None),
        (LOOP, False, None),
    ],
)
async def test_what_was_said_elsewhere_taints_the_run(
    messages: list[Any], untrusted: bool, code: str | None
) -> None:
    """Also the result of a tool that has the name of one that is trusted here."""
    agent = Agent(ScriptedClient([call("send"), "Done."]), [look, send])
    history = decode_messages(messages, untrusted=untrusted)
    result = await agent.run("Send it.", history=history)
    error = result.records[0].error
    assert (error and error.code) == code


async def test_an_agent_says_how_dictionaries_become_messages() -> None:
    with pytest.raises(TypeError, match=r"decode_messages; history\[0\]: got a dict"):
        await Agent(ScriptedClient(["x"])).run("hi", history=LOOP)  # type: ignore[arg-type]
