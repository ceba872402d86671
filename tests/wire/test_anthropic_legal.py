"""Whatever was said at another provider, Anthropic's rules hold for what is sent of it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from samples import sample
from servers.anthropic import fault_of

from toolcrib.errors import RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.definition import PlainTool, ToolDefinition
from toolcrib.values.message import ChatRequest, Message, ProviderState, ToolChoice
from toolcrib.wire import encode

TEXTS = st.sampled_from(["", " \n", "Hi", "ü\ud800"])
NAMES = st.sampled_from(["f", "a.b", "", "x" * 200, "ü"])
IDS = st.sampled_from(["", "x", "call_1", "a:b|c", "y" * 500])
ARGUMENTS = st.sampled_from(["{}", '{"a": 1}', "", "[1]", '{"a": "\\ud83d"}', '{"a'])
BLOCKS: Any = st.sampled_from(
    [
        {"type": "thinking", "thinking": "Hm", "signature": "s"},
        {"type": "text", "text": "Hi"},
        {"type": "text", "text": " "},
        {"type": "tool_use", "id": "x", "name": "f"},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
    ]
)


@st.composite
def turns(draw: Any, number: int) -> list[Message]:
    """One message of any role, with the results of its calls."""
    role, text = draw(st.sampled_from(["system", "user", "assistant"])), draw(TEXTS)
    if role != "assistant":
        return [Message(role, text)]
    calls = tuple(
        ToolCall(f"r.{number}:{at}", draw(NAMES), draw(ARGUMENTS), provider_id=draw(IDS))
        for at in range(draw(st.integers(0, 3)))
    )
    data = draw(st.lists(BLOCKS, max_size=4))
    state = draw(st.sampled_from([None, ProviderState("anthropic", data)]))
    results = [Message.tool(call, draw(TEXTS), is_error=draw(st.booleans())) for call in calls]
    return [
        Message("assistant", text, calls, provider_state=state),
        *draw(st.permutations(results)),
    ]


TOOLS = tuple(
    PlainTool(ToolDefinition(name=name, description="", input_schema_json=None))
    for name in ("f", "a.b")
)
CHOICES = st.sampled_from(
    [ToolChoice(), ToolChoice("none"), ToolChoice("required", allowed=("f",)),
     ToolChoice("auto", allowed=("a.b",)), ToolChoice("tool", "a.b")]
)  # fmt: skip


@settings(max_examples=sample(300))
@given(st.data(), st.booleans(), CHOICES, st.sampled_from([None, True, False]))
def test_any_history_is_sent_legally(
    data: Any, with_tools: bool, choice: ToolChoice, parallel: bool | None
) -> None:
    history = [m for n in range(data.draw(st.integers(1, 4))) for m in data.draw(turns(n))]
    request = ChatRequest(tuple(history), parallel_calls=parallel)
    if with_tools:
        request = ChatRequest(tuple(history), TOOLS, choice, parallel_calls=parallel)
    try:
        sent = encode("anthropic", request, model="m", stream=True)
    except RequestError as error:
        assume("nothing to send" not in str(error))
        raise
    assert fault_of(json.loads(sent.body)) is None
