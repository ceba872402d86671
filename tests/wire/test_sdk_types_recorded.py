"""Every recorded reply, sent back with results for its calls, judged by the provider's own SDK."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rows import each_row
from samples import sampled
from wire.recorded_helpers import decoded, recorded
from wire.sdk_judges import judge_of

from toolcrib.errors import ClientError
from toolcrib.values.message import ChatRequest, Message, ProviderState
from toolcrib.wire import WIRES, encode

# the replies that were sent back, and how many of them the SDK has no types for
JUDGED: dict[str, tuple[int, int]] = {
    "openai-chat": (1320, 0),
    "openai-responses": (556, 11),
    "anthropic": (633, 17),
    "gemini": (414, 0),
    "mistral": (90, 0),
    "ollama": (33, 0),
    "cohere": (57, 0),
}

# The provider's own tools, which its SDK knows in beta only, or of which its types for what is sent
# lack a member of what comes; the provider takes back what it gave.
NOT_KNOWN: dict[str, frozenset[str]] = {
    "anthropic": frozenset(
        ("advisor_tool_result", "code_execution_tool_result", "mcp_tool_use", "mcp_tool_result")
    ),
    "openai-responses": frozenset(
        (
            "code_interpreter_call",
            "custom_tool_call",
            "file_search_call",
            "image_generation_call",
            "web_search_call",
        )
    ),
}


def kinds_of(state: ProviderState | None) -> Iterator[str]:
    for item in state.data if state is not None and isinstance(state.data, list) else ():
        yield str(item.get("type"))


@each_row("wire", sampled(JUDGED, part=3))
def test_what_came_can_go_back(wire: str, shared_data: Path) -> None:
    judge, sent, refused = judge_of(wire), 0, 0
    for row in recorded(shared_data, wire):
        try:
            message = decoded(WIRES[wire], row).message
        except ClientError:
            continue
        results = [Message.tool(call, "x") for call in message.tool_calls]
        messages: tuple[Any, ...] = (Message.user("Hi"), message, *results, Message.user("Bye"))
        body = encode(wire, ChatRequest(messages), model="m").body
        sent += 1
        try:
            judge(body)
        except ValueError:
            refused += 1
            kinds = set(kinds_of(message.provider_state))
            assert kinds & NOT_KNOWN.get(wire, frozenset()), (row["id"], kinds)
    assert (sent, refused) == JUDGED[wire]
