"""A conversation begun at one provider goes on at any other: all pairs, from recorded replies.

What is sent is judged by the rules of the servers in `toolcrib.testing` and by the SDKs' types, and
read back by hand: every call that was made is there once, with its arguments and its one result.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from rows import each_row
from servers import anthropic, bedrock, gemini, responses
from servers.cohere import CohereServer
from servers.mistral import MistralServer
from servers.ollama import OllamaServer
from wire.recorded_helpers import Row, recorded
from wire.sdk_judges import judge_of

from toolcrib.errors import ClientError
from toolcrib.testing import scripted
from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import ChatRequest, Message, ProviderState, Reply
from toolcrib.wire import WIRES, Memo, decode, encode

FAULT_OF: dict[str, Callable[[Any], str | None]] = {
    "openai-chat": scripted.fault_of,
    "openai-responses": responses.fault_of,
    "anthropic": anthropic.fault_of,
    "gemini": gemini.fault_of,
    "mistral": MistralServer(()).fault,
    "ollama": OllamaServer(()).fault,
    "cohere": CohereServer(()).fault,
    "bedrock-converse": bedrock.fault_of,
}
PICTURE = Message.user("What is it?", (Image("image/png", "aGk="),))
ODD_IDS = ("", "", "p", "p", "a b|c", "x" * 300, "é", "functions.f:0")


def hand_made() -> list[Message]:
    """Ids that nobody gives, names that nobody takes, arguments that are none, a cut call."""
    texts = ('{"a": 12345678901234567890123}', "no JSON", '{"a": "b', "{}", '[{"a": 1}]')
    calls = tuple(
        ToolCall(
            f"odd:{at}/é", f"a tool/{at}", texts[at % 5], provider_id=given, complete=at % 5 != 2
        )
        for at, given in enumerate(ODD_IDS)
    )
    state = ProviderState("nowhere", {"secret": "kept to nobody at all, by anyone"})
    said = Message("assistant", "Hm 👍.", calls, provider_state=state)
    return [said, *(Message.tool(c, "", is_error=c.provider_id == "p") for c in reversed(calls))]


def kind_of(reply: Reply) -> str:
    cut = "cut " if reply.tool_calls and not reply.tool_calls[0].complete else ""
    several = "calls" if len(reply.tool_calls) > 1 else "call" if reply.tool_calls else "text"
    return f"{cut}{several}{', state' if reply.message.provider_state else ''}"


def replies(shared_data: Path, wire: str) -> Iterator[Reply]:
    """Two replies of every kind that was recorded of this wire, calls under ids of their own."""
    seen: dict[str, int] = {}
    for number, row in enumerate(recorded(shared_data, wire)):
        if row["status"] == 200 and row["kind"] in ("tool", "text"):
            reply = _decoded(wire, row, f"{wire}.{number}_")
            kind = "" if reply is None else kind_of(reply)
            seen[kind] = seen.get(kind, 0) + 1
            if reply is not None and seen[kind] <= 2:
                yield reply


def _decoded(wire: str, row: Row, ids: str) -> Reply | None:
    body = row["response_body"]
    data = base64.b64decode(body) if row.get("response_encoding") == "base64" else body.encode()
    try:
        return decode(wire, data, content_type=row["content_type"], ids=ids)
    except ClientError:
        return None  # of another endpoint


@functools.cache
def conversation(shared_data: Path, wire: str) -> tuple[Message, ...]:
    """What was said there, with results and errors in between."""
    messages: list[Message] = []
    for reply in replies(shared_data, wire):
        messages += [Message.user(f"And? {reply.finish}"), reply.message]
        made = list(enumerate(reply.tool_calls))
        messages += [
            Message.tool(call, f"seen {at}", is_error=at % 2 == 1) for at, call in reversed(made)
        ]
    return (Message.system("Be brief."), *messages, Message.user("So?"))


def asked(messages: tuple[Message, ...]) -> ChatRequest:
    """With the tools that were called on offer, but for those of the hand-made calls."""
    names = {call.name: None for m in messages for call in m.tool_calls if "/" not in call.name}
    schema = '{"type": "object", "properties": {"city": {"type": "string"}}}'
    tools = [ToolDefinition(name=n, description="D.", input_schema_json=schema) for n in names if n]
    return ChatRequest(messages, tuple(map(PlainTool, tools)))


class Seen(NamedTuple):
    """Calls as id and arguments, results as id and text, in the order of a body."""

    calls: list[tuple[str, Any]]
    results: list[tuple[str, Any]]


def _chat(body: Any) -> Seen:
    calls = [call for m in body["messages"] for call in m.get("tool_calls") or ()]
    results = [m for m in body["messages"] if m["role"] == "tool"]
    return Seen(
        [(call["id"], call["function"]["arguments"]) for call in calls],
        [(result["tool_call_id"], result["content"]) for result in results],
    )


def _responses(body: Any) -> Seen:
    def of(kind: str, member: str) -> list[tuple[str, Any]]:
        return [(i["call_id"], i[member]) for i in body["input"] if i.get("type") == kind]

    return Seen(of("function_call", "arguments"), of("function_call_output", "output"))


def _anthropic(body: Any) -> Seen:
    blocks = [
        b for m in body["messages"] if not isinstance(m["content"], str) for b in m["content"]
    ]
    return Seen(
        [(b["id"], b["input"]) for b in blocks if b["type"] == "tool_use"],
        [(b["tool_use_id"], b.get("content", "")) for b in blocks if b["type"] == "tool_result"],
    )


def _gemini(body: Any) -> Seen:
    parts = [part for content in body["contents"] for part in content["parts"]]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    results = [part["functionResponse"] for part in parts if "functionResponse" in part]
    return Seen(
        [(call["id"], call["args"]) for call in calls],
        [(result["id"], *result["response"].values()) for result in results],
    )


def _bedrock(body: Any) -> Seen:
    blocks = [(m["role"], block) for m in body["messages"] for block in m["content"]]
    uses = [block["toolUse"] for _, block in blocks if "toolUse" in block]
    results = [b["toolResult"] for role, b in blocks if role == "user" and "toolResult" in b]
    return Seen(
        [(use["toolUseId"], use["input"]) for use in uses if "type" not in use],
        [(result["toolUseId"], result["content"][0]["text"]) for result in results],
    )


READERS: dict[str, Callable[[Any], Seen]] = {
    "openai-chat": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "mistral": _chat,
    "ollama": _chat,
    "cohere": _chat,
    "bedrock-converse": _bedrock,
}
NOTHING = ("", "error", "(empty)")
"""What stands for a result without a text."""


def check(wire: str, request: ChatRequest) -> bytes:
    """The body, which its server takes, and which holds each call once, with its one result."""
    sent = encode(wire, request, model="m").body
    body = json.loads(sent)
    assert FAULT_OF[wire](body) is None
    calls, results = READERS[wire](body)
    assert len({id_ for id_, _ in calls}) == len(calls)
    assert sorted(id_ for id_, _ in calls) == sorted(id_ for id_, _ in results)
    made = [call for message in request.messages for call in message.tool_calls]
    assert [_object(text) for _, text in calls] == [_object(call.arguments) for call in made]
    answers = {m.call_id: m.content for m in request.messages if m.role == "tool"}
    told = dict(results)
    for (id_, _), call in zip(calls, made, strict=True):
        assert told[id_] == answers[call.id] or (not answers[call.id] and told[id_] in NOTHING)
    return sent


def _object(arguments: Any) -> Any:
    """Of a call that did not hold an object, the empty one goes back."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def secrets(messages: tuple[Message, ...]) -> dict[str, set[str]]:
    """By wire: long texts in its states that nothing else says, as signatures and hidden thoughts."""
    calls = [call for message in messages for call in message.tool_calls]
    said = [message.content for message in messages]
    said += [text for call in calls for text in (call.name, call.provider_id, call.arguments)]
    everything, found = "\n".join(said), dict[str, set[str]]()
    for state in (m.provider_state for m in messages if m.provider_state is not None):
        texts = {text for text in _texts(state.data) if len(text) > 20 and text not in everything}
        found[state.wire] = found.get(state.wire, set()) | texts
    return found


def told(texts: set[str], body: bytes) -> set[str]:
    """Those of the texts that are in the body."""
    decoded = "\n".join(_texts(json.loads(body)))
    return {text for text in texts if text in decoded}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def test_all_wires_are_here() -> None:
    assert WIRES.keys() == FAULT_OF.keys() == READERS.keys()


@each_row("there", FAULT_OF)
@each_row("here", FAULT_OF)
def test_what_was_begun_here_goes_on_there(here: str, there: str, shared_data: Path) -> None:
    messages = (*conversation(shared_data, here), PICTURE)
    assert sum(len(message.tool_calls) for message in messages) > 3
    body, hidden = check(there, asked(messages)), secrets(messages)
    assert hidden.keys() <= {here}
    back = told(hidden.get(here, set()), body)
    assert bool(back) == (here == there and bool(hidden.get(here)))


@each_row("wire", FAULT_OF)
def test_a_model_that_goes_on_after_its_own_words(wire: str) -> None:
    """As where a run is resumed whose last reply was cut."""
    made = ToolCall("c1", "search", "{}")
    begun = (Message.user("Go."), Message.assistant("I look it"), Message.assistant("up."))
    check(wire, asked((*begun, Message.user("And?"))))
    check(wire, asked((*begun, Message.assistant("Now.", (made,)), Message.tool(made, "Nothing."))))


@each_row("there", FAULT_OF)
@each_row("here", FAULT_OF)
@pytest.mark.exhaustive
def test_the_sdk_takes_it_there(here: str, there: str, shared_data: Path) -> None:
    """And a picture in it."""
    judge, messages = judge_of(there), conversation(shared_data, here)
    body = encode(there, asked((*messages, PICTURE)), model="m").body
    assert b"aGk=" in body
    judge(body)


@functools.cache
def travelled(shared_data: Path) -> tuple[Message, ...]:
    """One conversation that was at every provider in turn, and there again, with odd calls between."""
    messages: list[Message] = []
    for stay in range(2):
        for wire in FAULT_OF:
            few = conversation(shared_data, wire)[stay : 14 + stay]
            end = max(at for at, message in enumerate(few) if message.role == "user")
            messages += [_renamed(message, f"{stay}") for message in few[:end]]
    return (*messages, Message.user("Odd?"), *hand_made(), Message.user("So?"))


def _renamed(message: Message, stay: str) -> Message:
    """With other ids of ours: those that the provider gave come twice."""
    calls = tuple(msgspec.structs.replace(c, id=f"{stay}.{c.id}") for c in message.tool_calls)
    call_id = message.call_id and f"{stay}.{message.call_id}"
    return msgspec.structs.replace(message, tool_calls=calls, call_id=call_id)


@each_row("wire", FAULT_OF)
@pytest.mark.exhaustive
def test_a_conversation_that_was_everywhere_goes_on(wire: str, shared_data: Path) -> None:
    messages = travelled(shared_data)
    body = check(wire, asked(messages))
    judge_of(wire)(body)
    hidden = secrets(messages)
    own = hidden.pop(wire, set())
    assert len(hidden) > 4
    assert told(set().union(*hidden.values()) - own, body) == set()


@each_row("wire", FAULT_OF)
def test_it_goes_on_turn_by_turn(wire: str, shared_data: Path) -> None:
    """Every prefix that ends with the user or with results is sent legally, and costs what is new."""
    messages, memo = travelled(shared_data), Memo()
    tools = asked(messages).tools
    for end in range(1, len(messages) + 1):
        whole = end == len(messages) or messages[end].role != "tool"
        if messages[end - 1].role in ("user", "tool") and whole:
            request = ChatRequest(messages[:end], tools)
            sent = encode(wire, request, model="m", memo=memo).body
            assert sent == encode(wire, request, model="m").body
            assert FAULT_OF[wire](json.loads(sent)) is None
