"""Recorded requests, read into our types and encoded anew: the same, where they use what we support."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from wire.chat_reader import Unsupported, normal, request_of
from wire.recorded_helpers import recorded

from toolcrib.wire import OPENAI_CHAT, encode

ASKED_FOR = msgspec.structs.replace(OPENAI_CHAT, stream_usage=False)
"""Usage of a stream is asked for where the recorded body did."""


@pytest.fixture(scope="module")
def bodies(shared_data: Path) -> dict[str, dict[str, Any]]:
    rows = recorded(shared_data, "openai-chat")
    return {row["id"]: row["request"] for row in rows if (row["request"] or {}).get("tools")}


def test_recorded_requests_are_encoded_again(bodies: dict[str, dict[str, Any]]) -> None:
    unsupported: Counter[str] = Counter()
    other: Counter[str] = Counter()
    for body in bodies.values():
        try:
            request = request_of(body)
        except Unsupported as part:
            unsupported[str(part)] += 1
            continue
        model, stream = body.get("model", "m"), body.get("stream") or False
        sent = encode(ASKED_FOR, request, model=model, stream=stream)
        made = normal(json.loads(sent.body), required="required")
        given = normal({"model": "m"} | body, required="required")
        other.update(difference(made, given))
    assert len(bodies) == 1258
    assert unsupported == {
        "a choice in another form": 32,  # Anthropic's
        "developer": 7,
        "a tool of the provider's own": 2,
        "file": 1,
    }
    assert other == {
        "the schema of a strict tool": 99,  # theirs was lowered by another hand
        "the type of a choice": 2,  # it is missing in the recorded body
        "a null": 1,
    }


def difference(made: dict[str, Any], given: dict[str, Any]) -> Iterator[str]:
    for key in given | made:
        if made.get(key) == given.get(key):
            continue
        if key == "tools":
            yield from filter(None, map(_of_tools, made[key], given[key]))
        elif key == "tool_choice" and made[key] == {"type": "function"} | given[key]:
            yield "the type of a choice"
        elif made[key] == _without_nulls(given[key]):
            yield "a null"
        else:
            yield key


def _of_tools(made: dict[str, Any], given: dict[str, Any]) -> str:
    here, there = made["function"], given["function"]
    differs = [key for key in here | there if here.get(key) != there.get(key)]
    if differs == ["parameters"] and there.get("strict"):
        return "the schema of a strict tool"
    return f"a tool's {differs}" if differs else ""


def _without_nulls(messages: Any) -> Any:
    return [{key: value for key, value in m.items() if value is not None} for m in messages]
