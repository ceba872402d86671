"""A model that says a secret letter by letter has not said it."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from rows import each_row
from servers.anthropic import anthropic_server
from servers.bedrock import bedrock_server
from servers.ollama import ollama_server
from testing.cassette_helpers import Wired

from toolcrib.clients import AiohttpTransport, WireClient
from toolcrib.testing import call, cassette, openai_server
from toolcrib.testing.masking import masked, unspelled
from toolcrib.values.message import ChatRequest, Message, Reply
from toolcrib.wire.framing import FrameStream

KEY = "hunter2/ÄÖ-canary-77"
REQUEST = ChatRequest((Message.user("go"),))
SERVERS: dict[str, Any] = {
    "openai-chat": openai_server,
    "anthropic": anthropic_server,
    "ollama": ollama_server,
    "bedrock-converse": bedrock_server,
}


def said(text: str, secret: str = KEY, *, end: str = "\r\n", start: str = "") -> str:
    body = start + "".join(
        f"data: {json.dumps({'n': at, 'delta': {'text': letter}})}{end}{end}"
        for at, letter in enumerate(text)
    )
    chunks = unspelled([body[at : at + 7].encode() for at in range(0, len(body), 7)], [secret])
    lines = b"".join(chunks).decode().removeprefix(start).splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert [event["n"] for event in events] == list(range(len(text)))
    return "".join(event["delta"]["text"] for event in events)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"it is {KEY}, is it?", "it is [key], is it?"),
        (f"{KEY}{KEY}", "[key][key]"),
        (f"ä{KEY[:-1]}", f"ä{KEY[:-1]}"),
        (json.dumps(f"{KEY}!"), '"[key]!"'),
    ],
)
def test_letter_by_letter(text: str, kept: str) -> None:
    assert said(text) == kept


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("spell", [lambda at: True, lambda at: at % 2 == 0])
def test_letters_by_their_numbers_in_a_whole_body(spell: Any, indent: int | None) -> None:
    spelled = "".join(
        rf"\u{ord(letter):04x}" if spell(at) else json.dumps(letter)[1:-1]
        for at, letter in enumerate(KEY)
    )
    body = json.dumps({"choices": [{"content": "a KEY, b"}], "n": 1}, indent=indent)
    sent = body.replace("KEY", spelled).encode()
    kept = b"".join(unspelled([sent[:9], sent[9:]], [KEY]))
    assert json.loads(kept) == {"choices": [{"content": "a [key], b"}], "n": 1}


EVENTS: dict[str, Any] = {
    "openai-chat": lambda at, text: {
        "choices": [{"index": 0, "delta": {"tool_calls": [{"index": at, "arguments": text}]}}]
    },
    "openai-responses": lambda at, text: {"output_index": at, "delta": text},
    "item": lambda at, text: {"item_id": f"fc_{at}", "delta": text},
    "bedrock-converse": lambda at, text: {"contentBlockIndex": at, "delta": {"input": text}},
    "choices": lambda at, text: {"choices": [{"index": at, "delta": {"content": text}}]},
}


@each_row("form", EVENTS)
def test_calls_whose_pieces_alternate(form: str) -> None:
    """Readers join the pieces of each call by its index."""
    texts = [f"it is {KEY}.", "x" * len(f"it is {KEY}."), f"{KEY}, {KEY}"]
    events = [
        EVENTS[form](at, letter)
        for letters in zip(*(text.ljust(60) for text in texts), strict=True)
        for at, letter in enumerate(letters)
    ]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    lines = b"".join(unspelled([body[:99], body[99:]], [KEY])).decode().split("\n\n")
    kept = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    for at, said in enumerate(("it is [key].", texts[1], "[key], [key]")):
        pieces = [_text_of(event) for event in kept[at :: len(texts)]]
        assert "".join(pieces).rstrip() == said


def test_calls_that_are_continued_together_and_apart() -> None:
    def event(*calls: tuple[int, str]) -> bytes:
        deltas = [{"index": index, "arguments": piece} for index, piece in calls]
        return f"data: {json.dumps({'tool_calls': deltas})}\n\n".encode()

    body = b"".join(
        event((0, letter), (1, other)) if at % 2 else event((0, letter)) + event((1, other))
        for at, (letter, other) in enumerate(zip(f"a {KEY}", f"{KEY} b", strict=True))
    )
    told = ["", ""]
    for line in filter(None, b"".join(unspelled([body], [KEY])).decode().split("\n\n")):
        for delta in json.loads(line.removeprefix("data: "))["tool_calls"]:
            told[delta["index"]] += delta["arguments"]
    assert told == ["a [key]", "[key] b"]


def _text_of(value: Any) -> str:
    while isinstance(value, dict | list):
        value = value[0] if isinstance(value, list) else list(value.values())[-1]
    return str(value)


def test_a_space_as_forms_have_it() -> None:
    secret = 'pa"ss word-77'
    assert b"".join(masked([quote_plus(secret).encode()], [secret])) == b"[key]"


@each_row("end", ["\n", "\r", "\r\n"])
@each_row("start", ["", "\ufeff"], ids=["", "mark"])
def test_however_the_lines_of_a_stream_begin_and_end(start: str, end: str) -> None:
    assert said(KEY, end=end, start=start) == "[key]"


@each_row(
    "body",
    [
        b"",
        b"text",
        b'{"a": "hunter2/"}',
        b"data: 1\n\ndata: {}\n\ndata: [DONE]\n\n",
        b'data: {"a": "b"}\n\n' * 2,
        b"[" * 5000,
        b'data: {"a":' * 3,
        b"\0",
        b"\0" * 40,
        b"\0\0\0\x10\0\0\xff\xff" + b"x" * 20,
    ],
)
def test_what_spells_nothing_stays_as_it_is(body: bytes) -> None:
    chunks = [body[at : at + 3] for at in range(0, len(body), 3)]
    assert unspelled(chunks, [KEY]) == chunks


def frame(value: Any) -> bytes:
    name, kind = b":event-type", b"contentBlockDelta"
    headers = bytes([len(name)]) + name + b"\x07" + len(kind).to_bytes(2) + kind
    payload = json.dumps(value).encode()
    head = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    frame = head + zlib.crc32(head).to_bytes(4) + headers + payload
    return frame + zlib.crc32(frame).to_bytes(4)


@pytest.mark.parametrize("pieces", [["it is ", KEY, "."], ["it is ", *KEY, "."], [f"it is {KEY}."]])
def test_frames_stay_whole(pieces: list[str]) -> None:
    body = b"".join(frame({"delta": {"text": piece}}) for piece in pieces)
    kept = b"".join(masked(unspelled([body], [KEY]), [KEY]))
    events = FrameStream().feed(kept)
    assert {event.name for event in events} == {b"contentBlockDelta"}
    texts = [json.loads(event.data)["delta"]["text"] for event in events]
    assert "".join(texts) == "it is [key]."
    assert len(texts) == len(pieces)


@pytest.mark.parametrize("wire", SERVERS)
async def test_it_is_not_in_the_file_and_the_rest_is_replayed(
    wire: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEATHER_TOKEN", KEY)
    replies: list[Reply] = []
    async with SERVERS[wire]([[f"The key: {KEY}, yes", call("f", key=KEY)]]) as server:
        for record in ("all", "none"):
            wired = Wired(AiohttpTransport(), 5)
            with cassette(tmp_path / "tape.json", record=record, transport=wired) as tape:
                client = WireClient(wire, "m", base_url=server.url, transport=tape, retries=None)
                parts = [part async for part in client.stream(REQUEST)]
                replies += [part for part in parts if isinstance(part, Reply)]
                await client.aclose()
    live, replayed = replies
    assert KEY in live.text
    assert replayed.text == "The key: [key], yes"
    assert json.loads(replayed.tool_calls[0].arguments) == {"key": "[key]"}
