"""Whatever was said at another provider, Cohere's rules hold for what is sent of it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from samples import sample
from servers.cohere import CohereServer
from wire.test_anthropic_legal import CHOICES, TOOLS
from wire.test_bedrock_legal import turns

from toolcrib.errors import RequestError
from toolcrib.values.message import ChatRequest, Message, ProviderState, ToolChoice
from toolcrib.wire import encode

STATES: Any = st.fixed_dictionaries(
    {},
    optional={
        "content": st.lists(
            st.sampled_from(
                [
                    {"type": "thinking", "thinking": "Hm"},
                    {"type": "text", "text": "Hi"},
                    {"type": "text", "text": ""},
                    {"text": 5},
                    5,
                ]
            ),
            max_size=3,
        ),
        "tool_plan": st.sampled_from(["I look.", "", None]),
        "citations": st.sampled_from([[], [{"start": 0, "end": 2, "text": "Hi"}], "x"]),
    },
)


def with_state(data: Any, message: Message) -> Message:
    if message.role != "assistant":
        return message
    state = data.draw(st.one_of(st.none(), STATES, st.sampled_from(["junk", 5, [1]])))
    kept = None if state is None else ProviderState("cohere", state)
    return msgspec.structs.replace(message, provider_state=kept)


@settings(max_examples=sample(300), deadline=None)
@given(st.data(), st.booleans(), CHOICES)
def test_any_history_is_sent_legally(data: Any, with_tools: bool, choice: ToolChoice) -> None:
    history = [m for n in range(data.draw(st.integers(1, 4))) for m in data.draw(turns(n))]
    messages = tuple(with_state(data, message) for message in history)
    request = ChatRequest(messages, TOOLS, choice) if with_tools else ChatRequest(messages)
    try:
        sent = encode("cohere", request, model="m", stream=True)
    except RequestError as error:
        assume("nothing to send" not in str(error))
        raise
    assert CohereServer(()).fault(json.loads(sent.body)) is None
