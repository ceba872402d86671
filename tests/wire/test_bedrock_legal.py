"""Whatever was said at another provider, Bedrock's rules hold for what is sent of it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from samples import sample
from servers.bedrock import fault_of
from wire.test_anthropic_legal import ARGUMENTS, CHOICES, IDS, NAMES, TEXTS, TOOLS

from toolcrib.errors import RequestError
from toolcrib.values.call import ToolCall
from toolcrib.values.content import Image
from toolcrib.values.message import ChatRequest, Message, ProviderState, Settings, ToolChoice
from toolcrib.wire import encode

BLOCKS: Any = st.sampled_from(
    [
        {"reasoningContent": {"reasoningText": {"text": "Hm", "signature": "s"}}},
        {"reasoningContent": {"reasoningText": {"text": "Hm"}}},
        {"reasoningContent": {"redactedContent": "YQ=="}},
        {"text": "Hi"},
        {"text": " "},
        {"citationsContent": {"content": [{"text": "Hi"}], "citations": []}},
        {"toolUse": {"toolUseId": "x", "name": "f"}},
        {"toolUse": {"toolUseId": "s", "name": "g", "input": {}, "type": "server_tool_use"}},
    ]
)
EXTRA: Any = st.sampled_from([{}, {"cachePoint": {"type": "default"}}])


@st.composite
def turns(draw: Any, number: int) -> list[Message]:
    """One message of any role, with the results of its calls."""
    role, text = draw(st.sampled_from(["system", "user", "assistant"])), draw(TEXTS)
    if role != "assistant":
        images = draw(st.sampled_from([(), (Image("image/png", "aGk="),)]))
        return [Message(role, text, images=images if role == "user" else ())]
    calls = tuple(
        ToolCall(f"r.{number}:{at}", draw(NAMES), draw(ARGUMENTS), provider_id=draw(IDS))
        for at in range(draw(st.integers(0, 3)))
    )
    data = draw(st.lists(BLOCKS, max_size=4))
    state = draw(st.sampled_from([None, ProviderState("bedrock-converse", data)]))
    results = [Message.tool(call, draw(TEXTS), is_error=draw(st.booleans())) for call in calls]
    return [
        Message("assistant", text, calls, provider_state=state),
        *draw(st.permutations(results)),
    ]


@settings(max_examples=sample(300), deadline=None)
@given(st.data(), st.booleans(), CHOICES, EXTRA)
def test_any_history_is_sent_legally(
    data: Any, with_tools: bool, choice: ToolChoice, extra: Any
) -> None:
    history = [m for n in range(data.draw(st.integers(1, 4))) for m in data.draw(turns(n))]
    request = ChatRequest(tuple(history), settings=Settings(extra=extra))
    if with_tools:
        request = ChatRequest(tuple(history), TOOLS, choice, Settings(extra=extra))
    try:
        sent = encode("bedrock-converse", request, model="m", stream=True)
    except RequestError as error:
        assume("nothing to send" not in str(error))
        raise
    assert fault_of(json.loads(sent.body)) is None
