"""What the model is asked, and how it is made to fit."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from toolcrib.clients.local.arguments import clipped, fill, prompt
from toolcrib.clients.local.model import Completion, Model, TooLongError
from toolcrib.errors import RequestError
from toolcrib.values.definition import Example, ToolDefinition
from toolcrib.values.json import JsonObject
from toolcrib.values.message import Settings

SCHEMA = '{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"integer","default":1}}}'
SHOTS = [Example("near", '{"a":"x"}'), Example("far", '{"a":"y","b":2}')]
TOOL = ToolDefinition(
    name="do", description="Does\n it.", input_schema_json=SCHEMA, examples=tuple(SHOTS)
)


class Engine(Model):
    """Takes prompts of up to `room` characters, and keeps what it was sent."""

    def __init__(self, room: int = 100_000) -> None:
        super().__init__(Path("none.gguf"))
        self.room = room
        self.sent: list[JsonObject] = []

    def complete(self, body: JsonObject, given_up: threading.Event) -> Completion:
        self.sent.append(dict(body))
        if len(str(body["prompt"])) > self.room:
            raise TooLongError
        return Completion("{}", whole=True, input_tokens=1, output_tokens=1)


def ask(engine: Engine, request: str, settings: Settings = Settings()) -> Any:  # noqa: B008
    fill(
        engine,
        TOOL,
        request,
        shots=SHOTS,
        settings=settings,
        given_up=threading.Event(),
    )
    return engine.sent[-1]


def test_the_prompt() -> None:
    assert prompt(TOOL, "this one", SHOTS, 4000) == (
        "do: Does it.\n\n"
        'Request: far\nArguments: {"a": "y", "b": 2}\n\n'
        'Request: near\nArguments: {"a": "x", "b": 1}\n\n'
        "Request: this one\nArguments:"
    )


def test_the_farthest_examples_give_way_first() -> None:
    short = prompt(TOOL, "this one", SHOTS, 120)
    assert "near" in short
    assert "far" not in short


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Settings(), {"temperature": 0, "n_predict": 128}),
        (Settings(temperature=0.5, max_tokens=9), {"temperature": 0.5, "n_predict": 9}),
        (Settings(max_tokens=9999), {"n_predict": 128}),
        (Settings(extra={"seed": 7, "cache_prompt": False}), {"seed": 7, "cache_prompt": False}),
    ],
)
def test_settings(settings: Settings, expected: dict[str, Any]) -> None:
    body = ask(Engine(), "x", settings)
    assert {key: body[key] for key in expected} == expected


@pytest.mark.parametrize("key", ["prompt", "json_schema", "n_predict", "stream"])
def test_settings_do_not_replace_the_request(key: str) -> None:
    with pytest.raises(RequestError, match=key):
        ask(Engine(), "x", Settings(extra={key: 1}))


def test_a_long_request_is_cut_until_it_fits() -> None:
    engine = Engine(room=600)
    body = ask(engine, f"first {'word ' * 5000} last")
    assert len(engine.sent) > 1
    assert "Request: first word" in body["prompt"]
    assert "last\nArguments:" in body["prompt"]


def test_what_never_fits_is_refused() -> None:
    engine = Engine(room=0)
    with pytest.raises(RequestError, match="context"):
        ask(engine, "x")
    assert len(engine.sent) < 8


def test_text_that_is_no_utf8_is_replaced() -> None:
    assert "read ? now" in ask(Engine(), "read \ud800\n now")["prompt"]


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [("abc", 3, "abc"), ("abcdefghijk", 7, "ab … jk"), ("", 0, "")],
)
def test_clipped(text: str, most: int, expected: str) -> None:
    assert clipped(text, most) == expected
