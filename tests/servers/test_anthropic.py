"""The loopback server that speaks Anthropic's wire: what it refuses, and in which words."""

from __future__ import annotations

from typing import Any

from rows import each_row
from servers.anthropic import anthropic_server, fault_of

TOOL = {"name": "f", "input_schema": {"type": "object"}}
HI = [{"role": "user", "content": "Hi"}]
CALL = {"type": "tool_use", "id": "x", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "x", "content": "y"}
LATER = TOOL | {"name": "g", "defer_loading": True}
FOUND: dict[str, Any] = RESULT | {"content": [{"type": "tool_reference", "tool_name": "g"}]}
TURN = [{"role": "assistant", "content": [CALL]}, {"role": "user", "content": [RESULT]}]


def body(*messages: Any, **members: Any) -> dict[str, Any]:
    start = {"model": "m", "max_tokens": 9, "messages": [*HI, *messages]}
    return start | ({"tools": [TOOL]} if messages else {}) | members


def said(*content: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(content)}


def text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@each_row(
    "request_",
    [
        body(),
        body(system="x", tools=[TOOL], tool_choice={"type": "tool", "name": "f"}),
        body(*TURN),
        body(TURN[0], said(RESULT, text("and?"))),
        body(TURN[0], said(RESULT), said(text("and?"))),
        body(TURN[0], said(FOUND), tools=[TOOL, LATER]),
        body(tools=[LATER, TOOL]),
        body(*TURN, said(text("."), CALL | {"id": "y"}, role="assistant"),
             said(RESULT | {"tool_use_id": "y", "is_error": True})),
    ],
)  # fmt: skip
def test_legal_requests(request_: Any) -> None:
    assert fault_of(request_) is None


FAULTS: list[tuple[Any, str]] = [
    ([], "not a JSON object"),
    (body(seed=1), "seed: Extra inputs"),
    (body(model=1), "model"),
    (body(max_tokens=0), "max_tokens"),
    (body(messages=[]), "at least one"),
    (body(messages=[{"role": "system", "content": "x"}]), "messages.0"),
    (body(messages=[{"role": "user", "content": ""}]), "non-empty"),
    (body(said(text(" "))), "non-empty"),
    (body(system=" "), "system"),
    (body(tools=[TOOL, TOOL]), "tools.1.name"),
    (body(tools=[TOOL | {"name": "a b"}]), "tools.0.name"),
    (body(tools=[TOOL | {"parameters": {}}]), "tools.0.parameters: Extra"),
    (body(tools=[TOOL | {"input_schema": {"type": "object", "anyOf": []}}]), "input_schema"),
    (body(tools=[TOOL | {"input_schema": {}}]), "input_schema"),
    (body(tool_choice={"type": "any"}), "providing tools"),
    (body(tools=[TOOL], tool_choice={"type": "required"}), "tool_choice"),
    (body(tools=[TOOL], tool_choice={"type": "none", "name": "f"}), "tool_choice"),
    (body(tools=[TOOL], tool_choice={"type": "tool", "name": "g"}), "'g' not found"),
    (body(TURN[0]), "without `tool_result`"),
    (body(TURN[0], said(text("no"))), "without `tool_result`"),
    (body(*TURN, said(RESULT)), "without `tool_result`"),
    (body(TURN[0], said(text("first"), RESULT)), "must come first"),
    (body(*TURN, *TURN), "unique"),
    (body(said(CALL | {"id": "a.b"}, role="assistant"), said(RESULT | {"tool_use_id": "a.b"})),
     "unique"),
    (body(said(CALL | {"name": "a.b"}, role="assistant"), said(RESULT)), "tool_use.name"),
    (body(said(CALL | {"input": "{}"}, role="assistant"), said(RESULT)), "dictionary"),
    (body(said(CALL)), "wrong role"),
    (body(TURN[0], said(RESULT | {"is_error": True, "content": ""})), "cannot be empty"),
    (body(messages=[*HI, *TURN]), "must define tools"),
    (body(tools=[TOOL | {"defer_loading": True}]), "All tools have defer_loading set"),
    (body(TURN[0], said(FOUND)), "'g' has no corresponding tool definition"),
    (body(TURN[0], said(FOUND), tools=[TOOL, TOOL | {"name": "g"}]), "'g' has no corresponding"),
    (body(TURN[0], said(FOUND | {"content": [*FOUND["content"], text("g")]}), tools=[TOOL, LATER]),
     "'a text' has no corresponding"),
    (body(tools=[TOOL | {"input_examples": [{}]}, LATER]), "input_examples"),
]  # fmt: skip


@each_row(("request_", "fault"), FAULTS)
def test_illegal_requests(request_: Any, fault: str) -> None:
    assert fault in (fault_of(request_) or "")


async def test_the_server_is_anthropics() -> None:
    async with anthropic_server([]) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert not server.url.endswith("/v1")
