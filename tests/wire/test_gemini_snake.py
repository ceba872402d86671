"""A reply that Google's SDK wrote in snake case is read as the one that the API sent."""

from __future__ import annotations

import json
from typing import Any

from google import genai
from rows import each_row

from toolcrib.hydration import hydrate
from toolcrib.tools import Catalog
from toolcrib.wire import decode

Json = dict[str, Any]
A = '{"a": 7.0000000000000001, "some_key": {"will_continue": 12345678901234567890123}}'


def candidate(*parts: Json, reason: str | None = "STOP", **more: Any) -> Json:
    made: Json = {"content": {"role": "model", "parts": list(parts)}, "index": 0, **more}
    return made if reason is None else made | {"finishReason": reason}


def call(name: str = "f", args: Any = None, **more: Any) -> Json:
    return {"functionCall": {"name": name, "args": {"a_b": 1} if args is None else args, **more}}


USAGE = {"promptTokenCount": 3, "candidatesTokenCount": 4, "cachedContentTokenCount": 2}
STREAMS: dict[str, list[Json]] = {
    "a call": [{"candidates": [candidate(call())], "usageMetadata": USAGE}],
    "two calls and a thought": [
        {
            "candidates": [
                candidate(
                    {"text": "Hm.", "thought": True, "thoughtSignature": "c2ln"},
                    {"text": "Well."},
                    call(id="c1") | {"thoughtSignature": "c2ln"},
                    call("g", {}, id="c2"),
                )
            ],
            "modelVersion": "gemini-3",
        }
    ],
    "a stream": [
        {"candidates": [candidate({"text": "Let me "}, reason=None)]},
        {"candidates": [candidate(call(), reason=None)], "usageMetadata": USAGE},
        {"candidates": [candidate({"text": ""})], "usageMetadata": USAGE},
    ],
    "values": [
        {
            "candidates": [
                candidate({"functionCall": {"name": "f", "willContinue": True}}, reason=None)
            ]
        },
        {
            "candidates": [
                candidate(
                    {
                        "functionCall": {
                            "partialArgs": [
                                {"jsonPath": "$.a_b", "stringValue": "x", "willContinue": True}
                            ],
                            "willContinue": True,
                        }
                    },
                    reason=None,
                )
            ]
        },
        {
            "candidates": [
                candidate(
                    {"functionCall": {"partialArgs": [{"jsonPath": "$.a_b", "stringValue": "y"}]}},
                    reason=None,
                )
            ]
        },
        {"candidates": [candidate({"functionCall": {}})]},
    ],
    "a cut": [{"candidates": [candidate(call(), reason="MAX_TOKENS")]}],
    "no reason": [{"candidates": [candidate(call(), reason=None)]}],
    "a block": [{"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": USAGE}],
    "text": [{"candidates": [candidate({"text": "Hi."})], "usageMetadata": USAGE}],
}


def sse(events: list[str]) -> str:
    return "".join(f"data: {event}\n\n" for event in events)


def seen(data: str) -> Json:
    reply = decode("gemini", data)
    calls = [
        (c.name, c.arguments, c.provider_id, c.complete, c.fault, c.notes) for c in reply.tool_calls
    ]
    return {
        "calls": calls, "text": reply.text, "finish": reply.finish, "usage": reply.usage,
        "reason": reply.provider_finish, "state": json.dumps(_state(reply), sort_keys=True),
    }  # fmt: skip


def _state(reply: Any) -> Any:
    kept = reply.message.provider_state
    return None if kept is None else _without_nulls(kept.data)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


@each_row("name", STREAMS)
def test_what_the_sdk_wrote_is_read_as_what_was_sent(name: str) -> None:
    events = STREAMS[name]
    models = [genai.types.GenerateContentResponse.model_validate(event) for event in events]
    snake = [model.model_dump_json() for model in models]
    bare = [model.model_dump_json(exclude_none=True) for model in models]
    plain = [json.dumps(event, separators=(",", ":")) for event in events]
    assert all('"prompt_feedback":' in text for text in snake)
    for written in (snake, bare):
        assert seen(sse(written)) == seen(sse(plain))
        if len(events) == 1:
            assert seen(written[0]) == seen(plain[0])


def test_of_arguments_the_very_bytes_count() -> None:
    part = '{"function_call": {"name": "f", "args": ' + A + "}}"
    body = '{"candidates": [{"content": {"parts": [' + part + ']}, "finish_reason": "STOP"}]}'
    for data in (body, sse([body]), f"[{body}]"):
        (made,) = decode("gemini", data).tool_calls
        assert (made.arguments, made.complete) == (A, True)
    twice = body.replace('"a":', '"some_key":')
    (made,) = decode("gemini", twice).tool_calls
    assert not hydrate(made, Catalog([])).success
    assert made.arguments.count("some_key") == 2


def test_a_call_in_the_other_writing_is_a_copy_of_the_first() -> None:
    for one, other in (("functionCall", "function_call"), ("function_call", "functionCall")):
        for args, runs in (({"a": 1}, True), ({"a": 2}, False)):
            first, second = (
                json.dumps(
                    {"candidates": [{"content": {"parts": [{key: {"name": "f", "args": said}}]}}]}
                )
                for key, said in ((one, {"a": 1}), (other, args))
            )
            ended = json.dumps(
                {"candidates": [{"content": {"parts": []}, "finish_reason": "STOP"}]}
            )
            (made,) = decode("gemini", sse([first, second, ended])).tool_calls
            assert made.complete is runs


@each_row("reason", ["MAX_TOKENS", "SAFETY", "ODD"])
def test_of_two_reasons_the_worse_counts(reason: str) -> None:
    for one, other in (("finishReason", "finish_reason"), ("finish_reason", "finishReason")):
        body = {"candidates": [candidate(call(), reason=None) | {one: "STOP", other: reason}]}
        (made,) = decode("gemini", json.dumps(body)).tool_calls
        assert not made.complete
