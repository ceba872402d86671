"""What replies cost: counted from the tokens that providers report, cached ones apart."""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from typing import Any

import pytest
from rows import each_row
from servers.anthropic import anthropic_server

from toolcrib.clients import AnthropicClient, cost_of
from toolcrib.errors import MissingExtraError
from toolcrib.values.message import ChatRequest, Message, Reply, Usage
from toolcrib.wire import decode

ONE = Usage(1, 1000, 100)
PRICES: list[tuple[Usage, str, str | None, str | None]] = [
    # input and output of Claude Sonnet 4.5: 3 and 15 USD a million, a tenth and 5/4 for the cache
    (ONE, "claude-sonnet-4-5", "anthropic", "0.0045"),
    (ONE, "claude-sonnet-4-5", None, "0.0045"),
    (ONE, "claude-sonnet-4-5-20250929", "https://api.anthropic.com", "0.0045"),
    (Usage(1, 1000, 100, 1000), "claude-sonnet-4-5", "anthropic", "0.0018"),
    (Usage(1, 1000, 100, 0, 1000), "claude-sonnet-4-5", "anthropic", "0.00525"),
    (Usage(1, 1000, 100, 600, 400), "claude-sonnet-4-5", "anthropic", "0.00318"),
    (Usage(1, 1000, 100, 5000, 5000), "claude-sonnet-4-5", "anthropic", "0.0018"),
    # GPT-4o: 2.50 and 10 USD
    (ONE, "gpt-4o", "openai-responses", "0.0035"),
    (ONE, "gpt-4o", "http://localhost:8000/v1", None),
    # Gemini 2.5 Pro: 1.25 and 10 USD, from 200,000 tokens 2.50 and 15
    (ONE, "models/gemini-2.5-pro", "gemini", "0.00225"),
    (Usage(1, 300_000, 100), "gemini-2.5-pro", "gemini", "0.7515"),
    (ONE, "no-such-model", None, None),
    (ONE, "no-such-model", "openai", None),
    (ONE, "gpt-4o", "no-such-provider", None),
    (ONE, "", None, None),
    (Usage(), "gpt-4o", "openai", "0"),
]


@each_row(("usage", "model", "provider", "dollars"), PRICES)
def test_prices(usage: Usage, model: str, provider: str | None, dollars: str | None) -> None:
    cost = cost_of(usage, model, provider=provider)
    assert cost == (None if dollars is None else Decimal(dollars))


async def test_a_reply_knows_its_model() -> None:
    async with (
        anthropic_server(["Hello."]) as server,
        AnthropicClient("claude-sonnet-4-5", base_url=server.url) as client,
    ):
        reply = await client.chat(ChatRequest((Message.user("Hi"),)))
    assert reply.usage == Usage(1, 11, 7)
    assert cost_of(reply) == (11 * Decimal(3) + 7 * Decimal(15)) / 1_000_000
    assert cost_of(reply, "gpt-4o") == (11 * Decimal("2.5") + 7 * Decimal(10)) / 1_000_000
    assert cost_of(Reply(reply.message, "stop", reply.usage)) is None


SAID = {"message": {"content": "x"}, "finish_reason": "stop"}
CANDIDATE = {"content": {"parts": [{"text": "x"}]}, "finishReason": "STOP"}
CACHED: dict[str, tuple[dict[str, Any], Usage]] = {
    "openai-chat": (
        {
            "choices": [SAID],
            "usage": {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        },
        Usage(1, 9, 2, 4),
    ),
    "openai-responses": (
        {
            "output": [],
            "status": "completed",
            "usage": {
                "input_tokens": 9,
                "output_tokens": 2,
                "input_tokens_details": {"cached_tokens": 4},
            },
        },
        Usage(1, 9, 2, 4),
    ),
    "anthropic": (
        {
            "content": [],
            "stop_reason": "end_turn",
            "usage": {
                "input_tokens": 3,
                "output_tokens": 2,
                "cache_read_input_tokens": 4,
                "cache_creation_input_tokens": 2,
            },
        },
        Usage(1, 9, 2, 4, 2),
    ),
    "gemini": (
        {
            "candidates": [CANDIDATE],
            "usageMetadata": {
                "promptTokenCount": 9,
                "candidatesTokenCount": 2,
                "cachedContentTokenCount": 4,
            },
        },
        Usage(1, 9, 2, 4),
    ),
    "mistral": (
        {
            "choices": [SAID],
            "usage": {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        },
        Usage(1, 9, 2, 4),
    ),
    "bedrock-converse": (
        {
            "output": {"message": {"role": "assistant", "content": [{"text": "x"}]}},
            "stopReason": "end_turn",
            "usage": {
                "inputTokens": 3,
                "outputTokens": 2,
                "cacheReadInputTokens": 4,
                "cacheWriteInputTokens": 2,
            },
        },
        Usage(1, 9, 2, 4, 2),
    ),
}


@each_row("wire", CACHED)
def test_what_was_cached_is_counted(wire: str) -> None:
    body, usage = CACHED[wire]
    assert decode(wire, json.dumps(body)).usage == usage
    assert usage + Usage(1, 1, 1, 1, 1) == Usage(
        2, usage.input_tokens + 1, 3, usage.cache_read + 1, usage.cache_written + 1
    )


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(MissingExtraError, match=r"'\.\[prices\]'"):
        cost_of(ONE, "gpt-4o")
