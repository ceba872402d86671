"""What the loopback servers of Ollama and Mistral refuse; the clients' tests judge their answers."""

from __future__ import annotations

import json
from typing import Any

from rows import each_row
from servers.mistral import MistralServer
from servers.ollama import OllamaServer

from toolcrib.testing import raw_call

HI: list[Any] = [{"role": "user", "content": "Hi"}]


def called(arguments: Any, id_: str = "call00100") -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    calls = [{"id": id_, "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


OLLAMA: dict[str, tuple[Any, str]] = {
    "no object": ([], "model is required"),
    "no model": ({"messages": HI}, "model is required"),
    "a choice": ({"tool_choice": "auto", "messages": HI}, "unknown member 'tool_choice'"),
    "temperature outside the options": ({"temperature": 1, "messages": HI}, "'temperature'"),
    "a strict tool": (
        {
            "messages": HI,
            "tools": [{"type": "function", "function": {"name": "f", "strict": True}}],
        },
        "invalid tool",
    ),
    "arguments that are text": ({"messages": [called("{}")]}, "cannot unmarshal string"),
    "content that is null": ({"messages": [{"role": "user", "content": None}]}, "'user'"),
    "a role that there is not": ({"messages": [{"role": "x", "content": ""}]}, "'x'"),
    "a result of no tool": ({"messages": [{"role": "tool", "content": "1"}]}, "tool_name"),
    "an address for an image": (
        {"messages": [{"role": "user", "content": "", "images": ["https://a.test/b.png"]}]},
        "illegal base64",
    ),
}


@each_row(("body", "said"), OLLAMA.values(), ids=OLLAMA)
def test_what_ollama_refuses(body: Any, said: str) -> None:
    named = (
        {"model": "m"} | body if isinstance(body, dict) and said != "model is required" else body
    )
    assert said in (OllamaServer([]).fault(named) or "")


def test_ollama_streams_a_call_in_one_line() -> None:
    turn = raw_call("f", '{\n"a":\r\n1\n}')
    first, last = OllamaServer([]).answer(turn, number=1, stream=True).body.splitlines()
    (made,) = json.loads(first)["message"]["tool_calls"]
    assert (made["function"]["arguments"], json.loads(last)["done"]) == ({"a": 1}, True)


def result(id_: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "content": "1"}


TOOLS = {"tools": [{"type": "function", "function": {"name": "f"}}]}

MISTRAL: dict[str, tuple[dict[str, Any], str]] = {
    "what OpenAI refuses": ({"messages": []}, "too short"),
    "a choice of another's": ({"messages": HI, "tool_choice": "must"} | TOOLS, "'must'"),
    "a choice among some": (
        {"messages": HI, "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}} | TOOLS,
        "not permitted",
    ),
    "options of a stream": (
        {"messages": HI, "stream": True, "stream_options": {}},
        "stream_options",
    ),
    "a message that says nothing": (
        {"messages": [{"role": "assistant", "content": ""}]},
        "not none",
    ),
    "an id of another's": (
        {"messages": [called("{}", "call_abc"), result("call_abc")]},
        "Tool call id was call_abc",
    ),
}


@each_row(("body", "said"), MISTRAL.values(), ids=MISTRAL)
def test_what_mistral_refuses(body: dict[str, Any], said: str) -> None:
    assert said in (MistralServer([]).fault({"model": "m"} | body) or "")


def test_what_both_take() -> None:
    assert OllamaServer([]).fault({"model": "m", "messages": [*HI, called({})]}) is None
    body = {
        "model": "m",
        "messages": [*HI, called("{}"), result("call00100")],
        "tool_choice": "any",
    }
    assert MistralServer([]).fault(body | TOOLS) is None
