"""What users reported of calls in texts (`shared/data/wire/edge_cases.jsonl`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from wire.recorded_helpers import edge_cases_of
from wire.text_calls_helpers import chat_body, offer_of, with_syntax

from toolcrib.values.message import Reply
from toolcrib.wire import MISTRAL, SYNTAXES, Wire, decode

SYNTAX_OF = {
    "args-single-quotes-apostrophe": "hermes",
    "args-python-literal": "hermes",
    "hermes-missing-open": "hermes",
    "mistral-TOOL_CALLS-list": "mistral",
    "mistral-ARGS-multi": "mistral",
    "mistral-ARGS-prose": "mistral",
    "llama-python-tag": "llama",
    "llama-python-tag-pythonic": "llama",
    "fenced-json": "llama",
    "qwen3coder-no-open": "qwen",
    "qwen3coder-close-in-arg": "qwen",
    "qwen25coder-tools": "qwen",
    "calling-tool-bracket": "qwen",
    "gemma-call": "gemma",
    "dsml-split": "deepseek",
}


def answer(case: dict[str, Any], wire: Wire, body: bytes | str) -> Reply:
    """The reply to a request that offered what is expected to be called, or `terminal`."""
    names = {call["name"] for call in case["expected"]["tool_calls"]} or {"terminal"}
    return decode(wire, body, offer=offer_of(*names))


def as_expected(case: dict[str, Any], reply: Reply) -> bool:
    calls = [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]
    wanted = [(call["name"], call["arguments"]) for call in case["expected"]["tool_calls"]]
    run = reply.finish == ("tool_calls" if wanted else "stop")
    return run and calls == wanted and reply.text == case["expected"].get("text", reply.text)


def test_reported_texts(shared_data: Path) -> None:
    cases = edge_cases_of(shared_data, "text")
    assert {case["id"] for case in cases} == SYNTAX_OF.keys()
    for case in cases:
        body = chat_body(case["body"])
        for name in SYNTAXES:
            reply = answer(case, with_syntax(name), body)
            if name == SYNTAX_OF[case["id"]]:
                assert as_expected(case, reply), case["id"]
            if not reply.tool_calls:
                assert reply.text == case["body"]


@pytest.mark.parametrize("case_id", ["calls-as-json-list-in-text", "toolcall-plus-markup"])
def test_reported_replies_of_mistral(shared_data: Path, case_id: str) -> None:
    (case,) = (case for case in edge_cases_of(shared_data, "mistral") if case["id"] == case_id)
    syntax = "mistral" if case_id == "calls-as-json-list-in-text" else "hermes"
    wire = msgspec.structs.replace(MISTRAL, text_calls=syntax)
    reply = answer(case, wire, case["body"])
    assert as_expected(case, reply)
    assert reply.text == ""
