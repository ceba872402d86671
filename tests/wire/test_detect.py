"""Told from the content: every recorded body, and what is said of one that is of no wire."""

from __future__ import annotations

import base64
from collections import Counter
from pathlib import Path

import pytest
from rows import each_row
from wire.recorded_helpers import Row, edge_cases_of, recorded

from toolcrib.errors import WireError
from toolcrib.wire import WIRES, decode
from toolcrib.wire.registry import detect

MISTRAL = "openai-chat"
"""What Mistral's chat completions are taken for, on purpose: the outcome is the same."""


def body_of(row: Row) -> bytes:
    text: str = row["response_body"]
    if row["response_encoding"] == "base64":
        return base64.b64decode(text)
    return text.encode("utf-8", "surrogatepass")


def told(row: Row) -> str:
    try:
        return detect(body_of(row))
    except WireError as error:
        return str(error).partition(" (")[0].partition(": name")[0]


@each_row(
    ("name", "taken_for"),
    [
        ("openai-chat", {"openai-chat": 1326}),
        ("openai-responses", {"openai-responses": 557}),
        ("anthropic", {"anthropic": 633}),
        ("gemini", {"gemini": 414}),
        ("mistral", {MISTRAL: 90}),
        ("ollama", {"ollama": 33}),
        ("bedrock-converse", {"bedrock-converse": 176}),
        ("cohere", {"cohere": 57, "the format of the body is none of the known wires": 5}),
        # What is in Bedrock's InvokeModel is the model's own wire; streamed, it is wrapped once more.
        (
            "bedrock-invoke",
            {
                "the body is in the format of bedrock-invoke, which is not a known wire": 23,
                "anthropic": 11,
                "bedrock-converse": 6,
                "openai-chat": 4,
            },
        ),
    ],
)
def test_recorded_replies(name: str, taken_for: dict[str, int], shared_data: Path) -> None:
    rows = [row for row in recorded(shared_data, name) if row["kind"] != "error"]
    assert Counter(told(row) for row in rows) == taken_for


@each_row(
    ("name", "taken_for"),
    [
        ("openai-chat", {"openai-chat": 8}),
        ("openai-responses", {"openai-chat": 10}),  # the same form, which all read alike
        ("anthropic", {"anthropic": 10}),
        ("gemini", {"gemini": 13}),
        ("mistral", {"mistral": 1, "the format of the body is none of the known wires": 2}),
        ("cohere", {"cohere": 2}),
        (
            "bedrock-converse",
            {"the body may belong to several wires, bedrock-converse or cohere": 8},
        ),
    ],
)
def test_recorded_errors(name: str, taken_for: dict[str, int], shared_data: Path) -> None:
    rows = [row for row in recorded(shared_data, name) if row["kind"] == "error"]
    assert Counter(told(row) for row in rows) == taken_for


def test_mistral_taken_for_openai_is_read_the_same(shared_data: Path) -> None:
    for row in recorded(shared_data, "mistral"):
        if row["kind"] != "error":
            one, other = (decode(wire, row["response_body"]) for wire in ("mistral", MISTRAL))
            assert (one.text, one.tool_calls) == (other.text, other.tool_calls)
            assert (one.finish, one.usage) == (other.finish, other.usage)


@each_row("name", ["openai-chat", "openai-responses", "anthropic", "gemini", "ollama"])
def test_odd_bodies(name: str, shared_data: Path) -> None:
    unsaid = {"sse-plain-text-error", "utf8-split"}  # a sentence without JSON; no body at all
    for case in edge_cases_of(shared_data, name):
        if case["id"] not in unsaid:
            assert detect(case["body"].encode()) == name, case["id"]


@each_row(
    ("body", "name"),
    [
        (b"\xef\xbb\xbf \r\n" + b'{"choices": []}', "openai-chat"),
        (b'[{"candidates": []}, {}]', "gemini"),
        (b'{"choices": NaN, "candidates": [NaN]}', "gemini"),
        (b'{"candidates": [{"text": "\\ud800"}]}', "gemini"),
        (b'{\n"model": "m",\n"message": {},\n"done": false\n}\n{\n"done": true\n}\n', "ollama"),
        (b'{"type": "ping"}\n{"message": {}, "done": false}', "ollama"),
        (b": hello\n\nevent: ping\ndata: {}\n\n" + b'data: {"choices": []}', "openai-chat"),
        (b": x\n\n" * 40_000 + b'data: {"type": "message_start"}\n\n', "anthropic"),
        (b'data: {"type": "error", "error": {"type": "overloaded_error"}}\n\n', "anthropic"),
        (
            b'data: {"type": "error", "code": "x", "message": "m", "sequence_number": 3}',
            "openai-responses",
        ),
        (b'{"error": "model \\"x\\" not found"}', "openai-chat"),
        (b'{"error": {"code": 400, "message": "m", "status": "INVALID_ARGUMENT"}}', "gemini"),
        (b'{"error": {"code": 400, "message": "m"}}', "openai-chat"),
    ],
)
def test_by_content(body: bytes, name: str) -> None:
    assert detect(body) == name


def test_the_type_decides_where_the_content_does_not() -> None:
    assert detect(b'{"done": true}\n', "application/x-ndjson; charset=utf-8") == "ollama"
    assert detect(b'{"choices": []}', "application/x-ndjson") == "openai-chat"


@each_row(
    ("body", "said"),
    [
        (b"", r"none of the known wires \(openai-chat, .*\): it is empty$"),
        (b" \n", "it is empty$"),
        (b"<html>Bad gateway</html>", "<html>Bad gateway</html>$"),
        (b"[]", r": \[\]$"),
        (b"[[[]]]", "of the known wires"),
        (b"[" * 200_000, r"none of the known wires .*: \[\[\["),
        (b'"choices"', "of the known wires"),
        (b'{"choices"', "of the known wires"),
        (b"\xff\xfe\x00", "of the known wires"),
        (b'{"key": "sk-canary-123456"}', r"\[key\]"),
        (b"\x00\x00\x00\x10" + b"x" * 20, "AWS event stream"),
        (b'{"message": "no"}', "several wires, bedrock-converse or cohere: name one"),
    ],
)
def test_what_is_of_no_wire_says_so(body: bytes, said: str) -> None:
    with pytest.raises(WireError, match=said):
        detect(body)


def test_every_wire_is_told_or_told_why_not() -> None:
    tellable = {name for name in WIRES if name != "mistral"}
    assert tellable == {
        *("openai-chat", "openai-responses", "anthropic", "gemini", "ollama"),
        *("cohere", "bedrock-converse"),
    }
