"""What may be the one answer of a reply: several texts are never joined to one that nobody wrote."""

from __future__ import annotations

import json
from typing import Any

from rows import each_row
from servers.bedrock import frame

from toolcrib.wire import decode

Json = dict[str, Any]
SEARCH = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
RAN = ({"executableCode": {"code": "1"}}, {"codeExecutionResult": {"output": "1"}})


def said(text: str, phase: str | None = None) -> Json:
    content = [{"type": "output_text", "text": part} for part in text.split("|")]
    return {"type": "message", "role": "assistant", "content": content, "phase": phase}


def response(*items: Json) -> bytes:
    return json.dumps({"object": "response", "status": "completed", "output": items}).encode()


def streamed(*items: Json) -> bytes:
    events: list[Json] = []
    for index, item in enumerate(items):
        at = {"output_index": index}
        events.append({"type": "response.output_item.added", **at, "item": item | {"content": []}})
        for number, part in enumerate(item["content"]):
            events.append(
                {"type": "response.output_text.delta", **at, "content_index": number,
                 "delta": part["text"]}
            )  # fmt: skip
    end = {"type": "response.completed", "response": {"object": "response", "status": "completed"}}
    return sse(*events, end)


def sse(*events: Json) -> bytes:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()


def text(said: str) -> Json:
    return {"type": "text", "text": said}


def anthropic(*blocks: Json) -> bytes:
    return json.dumps({"type": "message", "content": blocks, "stop_reason": "end_turn"}).encode()


def anthropic_stream(*blocks: Json) -> bytes:
    events: list[Json] = [{"type": "message_start", "message": {}}]
    for index, block in enumerate(blocks):
        empty = block | {"text": ""} if "text" in block else block
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        if "text" in block:
            delta = {"type": "text_delta", "text": block["text"]}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}})
    return sse(*events, {"type": "message_stop"})


def gemini(*parts: Json) -> bytes:
    content = {"parts": parts, "role": "model"}
    return json.dumps({"candidates": [{"content": content, "finishReason": "STOP"}]}).encode()


def bedrock(*blocks: Json) -> bytes:
    message = {"role": "assistant", "content": blocks}
    return json.dumps({"output": {"message": message}, "stopReason": "end_turn"}).encode()


def bedrock_stream(*blocks: Json) -> bytes:
    sent = frame({"role": "assistant"}, event_type="messageStart")
    for index, block in enumerate(blocks):
        delta = {"contentBlockIndex": index, "delta": block}
        sent += frame(delta, event_type="contentBlockDelta")
        sent += frame({"contentBlockIndex": index}, event_type="contentBlockStop")
    return sent + frame({"stopReason": "end_turn"}, event_type="messageStop")


def cohere(*blocks: Json) -> bytes:
    message = {"role": "assistant", "content": blocks}
    return json.dumps({"message": message, "finish_reason": "COMPLETE"}).encode()


def chat(content: Any) -> bytes:
    choice = {"index": 0, "message": {"content": content}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice]}).encode()


OWN_THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "s"}
USE = {"toolUse": {"toolUseId": "u", "name": "n", "input": {}, "type": "server_tool_use"}}
REASONED = {"reasoningContent": {"text": "hm"}}
# wire, what came, the texts that may be the answer
ROWS: dict[str, tuple[str, bytes, tuple[str, ...]]] = {
    "messages": ("openai-responses", response(said("1"), said("2")), ("1", "2")),
    "messages in a stream": ("openai-responses", streamed(said("1"), said("2")), ("1", "2")),
    "parts of a message": ("openai-responses", response(said("1|2")), ("12",)),
    "parts in a stream": ("openai-responses", streamed(said("1|2")), ("12",)),
    "a message that is blank": ("openai-responses", response(said("\n"), said("2")), ("2",)),
    "a commentary": ("openai-responses", response(said("1", "commentary"), said("2")), ("2",)),
    "a commentary alone": ("openai-responses", response(said("1", "commentary")), ()),
    "a final answer": (
        "openai-responses",
        response(said("1"), said("2", "final_answer"), said("3", "commentary")),
        ("2",),
    ),
    "a final answer in a stream": (
        "openai-responses",
        streamed(said("1"), said("2", "final_answer")),
        ("2",),
    ),
    "two final answers": (
        "openai-responses",
        response(said("1", "final_answer"), said("2", "final_answer")),
        ("1", "2"),
    ),
    "around a search": ("anthropic", anthropic(text("1"), SEARCH, FOUND, text("2")), ("1", "2")),
    "around a search in a stream": (
        "anthropic",
        anthropic_stream(text("1"), SEARCH, FOUND, text("2")),
        ("1", "2"),
    ),
    "around a thought": ("anthropic", anthropic(text("1"), OWN_THOUGHT, text("2")), ("1", "2")),
    "after a search": ("anthropic", anthropic(SEARCH, FOUND, text("1"), text("2")), ("12",)),
    "after a thought in a stream": ("anthropic", anthropic_stream(OWN_THOUGHT, text("1")), ("1",)),
    "around code": ("gemini", gemini({"text": "1"}, *RAN, {"text": "2"}), ("1", "2")),
    "around a thought of Gemini's": (
        "gemini",
        gemini({"text": "1"}, {"text": "hm", "thought": True}, {"text": "2"}),
        ("1", "2"),
    ),
    "after a thought of Gemini's": (
        "gemini",
        gemini({"text": "7", "thought": True}, {"text": "1"}, {"text": "2"}),
        ("12",),
    ),
    "around a tool of Bedrock's": (
        "bedrock-converse",
        bedrock({"text": "1"}, USE, {"text": "2"}),
        ("1", "2"),
    ),
    "around reasoning in a stream": (
        "bedrock-converse",
        bedrock_stream({"text": "1"}, REASONED, {"text": "2"}),
        ("1", "2"),
    ),
    "after reasoning in a stream": (
        "bedrock-converse",
        bedrock_stream(REASONED, {"text": "1"}, {"text": "2"}),
        ("12",),
    ),
    "around a thought of Cohere's": (
        "cohere",
        cohere(text("1"), {"type": "thinking", "thinking": "hm"}, text("2")),
        ("1", "2"),
    ),
}
JOINED: dict[str, tuple[str, bytes]] = {
    "parts of Gemini's": (
        "gemini",
        gemini({"text": "1"}, {"thoughtSignature": "s"}, {"text": "2"}),
    ),
    "blocks": ("anthropic", anthropic(text("1"), text("2"))),
    "blocks in a stream": ("anthropic", anthropic_stream(text("1"), text("2"))),
    "blocks of Bedrock's": ("bedrock-converse", bedrock_stream({"text": "1"}, {"text": "2"})),
    "parts of Cohere's": ("cohere", cohere(text("1"), text("2"))),
    "content": ("openai-chat", chat("12")),
    "a list of content": ("openai-chat", chat([text("1"), text("2")])),
    "a list of Mistral's": ("mistral", chat([text("1"), text("2")])),
}


@each_row(("wire", "data", "answers"), ROWS.values(), ids=ROWS)
def test_texts_that_stand_apart_are_several_answers(
    wire: str, data: bytes, answers: tuple[str, ...]
) -> None:
    reply = decode(wire, data)
    assert (reply.finish, reply.answers) == ("stop", answers)


@each_row(("wire", "data"), JOINED.values(), ids=JOINED)
def test_pieces_of_one_text_are_one_answer(wire: str, data: bytes) -> None:
    reply = decode(wire, data)
    assert (reply.finish, reply.text, reply.answers) == ("stop", "12", None)
