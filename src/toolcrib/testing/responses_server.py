"""A real HTTP server on 127.0.0.1 that speaks OpenAI's Responses and says what a test wrote down."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import orjson

from toolcrib.testing.legal_responses import fault_of
from toolcrib.testing.loopback import (
    CutTurn,
    OpenAIServer,
    RawTurn,
    ServerTurn,
    halved,
    serving,
)
from toolcrib.testing.script import Said, ScriptedCall, Spoken, spoken
from toolcrib.values.message import Reply

_PIECE = 5


class ResponsesServer(OpenAIServer):
    """As `OpenAIServer`, in the words of OpenAI's other API, with all events of its streams."""

    path = "/responses"

    def fault(self, body: Any) -> str | None:
        return fault_of(body)

    def answer(self, turn: Said | Reply | CutTurn, *, number: int, stream: bool) -> RawTurn:
        was_cut = isinstance(turn, CutTurn)
        said = spoken(turn.turn if isinstance(turn, CutTurn) else turn)
        output = _output(halved(said) if was_cut else said, number, was_cut=was_cut)
        response = _response(number) | {
            "status": "incomplete" if was_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if was_cut else None,
            "output": output,
            "usage": _USAGE,
        }
        if not stream:
            return RawTurn(orjson.dumps(response), content_type="application/json")
        events = _events(output, number, response)
        return RawTurn(b"".join(_event(at, event) for at, event in enumerate(events)))


@contextlib.asynccontextmanager
async def responses_server(turns: Iterable[ServerTurn]) -> AsyncIterator[ResponsesServer]:
    """`async with responses_server(["Hi."]) as server:` and a client with `base_url=server.url`."""
    async with serving(ResponsesServer(turns)) as server:
        yield server


_USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 18,
}


def _response(number: int) -> dict[str, Any]:
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1760000000,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "scripted",
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": None,
    }


def _output(said: Spoken, number: int, *, was_cut: bool) -> list[dict[str, Any]]:
    """The items as they are in the end; of a response that was cut, the last is incomplete."""
    items = [_call(made, number, at) for at, made in enumerate(said.calls)]
    if said.text or not items:
        items.insert(0, _message(said.text, number))
    if was_cut:
        items[-1]["status"] = "incomplete"
    return items


def _message(text: str, number: int) -> dict[str, Any]:
    message = {"id": f"msg_{number}", "type": "message", "status": "completed", "role": "assistant"}
    return message | {"content": [_text(text)]}


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call(made: ScriptedCall, number: int, at: int) -> dict[str, Any]:
    return {
        "id": f"fc_{number}_{at}",
        "type": "function_call",
        "status": "completed",
        "call_id": f"call_{number}_{at}",
        "name": made.name,
        "arguments": made.arguments,
    }


def _events(output: list[Any], number: int, response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """https://platform.openai.com/docs/api-reference/responses-streaming, in the order there."""
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": _response(number)}
    for index, item in enumerate(output):
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        begun = item | empty | {"status": "in_progress"}
        yield {"type": "response.output_item.added", "output_index": index, "item": begun}
        grows = _text_events if item["type"] == "message" else _call_events
        for event in grows(item):
            yield event | {"item_id": item["id"], "output_index": index}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{response['status']}", "response": response}


def _text_events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    (part,) = item["content"]
    text, place = part["text"], {"content_index": 0}
    yield {"type": "response.content_part.added", "part": _text("")} | place
    for at in range(0, len(text), _PIECE):
        delta = {"delta": text[at : at + _PIECE], "logprobs": []}
        yield {"type": "response.output_text.delta"} | delta | place
    yield {"type": "response.output_text.done", "text": text, "logprobs": []} | place
    yield {"type": "response.content_part.done", "part": part} | place


def _call_events(item: dict[str, Any]) -> Iterator[dict[str, Any]]:
    text, kind = item["arguments"], "response.function_call_arguments"
    for at in range(0, len(text), _PIECE):
        yield {"type": f"{kind}.delta", "delta": text[at : at + _PIECE]}
    yield {"type": f"{kind}.done", "name": item["name"], "arguments": text}


def _event(number: int, event: dict[str, Any]) -> bytes:
    data = orjson.dumps(event | {"sequence_number": number})
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + data + b"\n\n"
