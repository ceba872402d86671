"""`toolcrib encode` and `decode`: one value on stdout, what there is to say about it on stderr."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from toolcrib.cli import run
from toolcrib.wire import FORMS, WIRES, encode_tools

TOOL = {
    "name": "book",
    "description": "Book a table.",
    "input_schema": {"type": "object", "properties": {"when": {"type": "string"}}},
}


@pytest.fixture
def tools(tmp_path: Path) -> str:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps([TOOL, TOOL | {"name": "x" * 100}]), encoding="utf-8")
    return str(path)


def encoded(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    code = run(["encode", *arguments])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if captured.out else None, captured.err


@pytest.mark.parametrize("wire", FORMS)
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_every_form_is_one_json_value(
    wire: str, more: tuple[str, ...], tools: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, value, said = encoded(capsys, "--provider", wire, "--tools", tools, *more)
    assert code == 0
    (first, *rest) = value[0]["functionDeclarations"] if wire == "gemini" else value
    assert (first.get("function") or first.get("toolSpec") or first)["name"] == "book"
    assert len(rest) == 1
    lines = said.splitlines()
    assert all(line.startswith(("book: ", "x" * 100)) for line in lines)
    renamed = [line for line in lines if ": doubtful: name: " in line]
    assert len(renamed) == (0 if wire == "anthropic" else 1)


def test_an_unknown_wire_is_an_unusable_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, value, said = encoded(capsys, "--provider", "smoke")
    assert (code, value) == (2, None)
    assert said == (
        f"toolcrib: --provider: there is no provider 'smoke'; there are: {', '.join(FORMS)}\n"
    )
    code, value, _ = encoded(capsys, "--provider", "smoke", "--json")
    assert (code, value["error"]["kind"]) == (2, "UnusableError")


def test_what_a_strict_tool_does_not_get_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "strict.py"
    path.write_text(
        "from toolcrib import ALL, tool\n\n"
        "@tool(visible=ALL, strict=True)\n"
        "def f(n: int) -> int:\n"
        '    """Count."""\n'
        "    return n\n",
        encoding="utf-8",
    )
    code, value, said = encoded(capsys, "--provider", "ollama", "--tools", str(path))
    assert (code, len(value)) == (0, 1)
    assert "f: lost: strict: it is sent without strict: " in said
    code, value, said = encoded(capsys, "--provider", "openai-chat", "--tools", str(path))
    assert value[0]["function"]["strict"] is True
    assert "without strict" not in said


def conversation(tmp_path: Path, value: Any) -> str:
    path = tmp_path / "conversation.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("wire", WIRES)
def test_a_conversation_becomes_the_body_of_a_request(
    wire: str, tools: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = {"id": "1", "provider_id": "", "name": "book", "arguments": '{"when":"now"}'}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Book."},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "done", "call_id": "1", "name": "book"},
    ]
    for value in (messages, {"run_id": "x", "messages": messages}):
        file = conversation(tmp_path, value)
        code, body, said = encoded(capsys, file, "--provider", wire, "--tools", tools, "-m", "some")
        assert code == 0
        assert "POST /" in said
        text = json.dumps(body)
        assert all(part in text for part in ("Be brief.", "Book.", "done", "Book a table."))
        assert ("some" in text) is (
            wire not in ("gemini", "bedrock-converse")
        )  # theirs is the path


@pytest.mark.parametrize("value", [{}, "text", [{"role": "nobody"}], {"messages": 1}])
def test_what_is_no_conversation_says_so(
    value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = conversation(tmp_path, value)
    code, _, said = encoded(capsys, file)
    assert code == 2
    assert said.startswith(f"toolcrib: {file}: it is not a conversation: ")


def test_a_conversation_that_an_editor_gave_a_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "marked.json"
    file.write_text('[{"role": "user", "content": "Hi"}]', encoding="utf-8-sig")
    code, body, _ = encoded(capsys, str(file))
    assert (code, body["messages"][0]["content"]) == (0, "Hi")


HELLO = {
    "openai-chat": {"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]},
    "anthropic": {
        "type": "message",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
    },
    "gemini": {"candidates": [{"content": {"parts": [{"text": "Hello"}]}, "finishReason": "STOP"}]},
    "ollama": {"message": {"content": "Hello"}, "done": True, "done_reason": "stop"},
}


def decoded(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["decode", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("wire", HELLO)
def test_a_body_is_told_by_its_content(
    wire: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = conversation(tmp_path, HELLO[wire])
    code, out, err = decoded(capsys, file)
    assert (code, out) == (0, "Hello\n")
    assert err.splitlines()[0] == f"wire: {wire}"
    code, out, err = decoded(capsys, file, "--json")
    assert (code, json.loads(out)["wire"], json.loads(out)["text"]) == (0, wire, "Hello")
    code, out, err = decoded(capsys, file, "--provider", wire)
    assert (code, out) == (0, "Hello\n")
    assert "wire:" not in err


def test_a_body_of_no_wire_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = conversation(tmp_path, {"nothing": 1})
    code, out, err = decoded(capsys, file)
    assert (code, out) == (1, "")
    assert err.startswith(
        "toolcrib: the format of the body is none of the known wires (openai-chat, "
    )
    assert err.endswith('{"nothing": 1}; name it with --provider\n')
    code, _, err = decoded(capsys, file, "--provider", "smoke")
    assert (code, err[:31]) == (2, "toolcrib: --provider: there is ")


def test_headers_before_a_body_are_no_body(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answer.txt"
    file.write_bytes(
        b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {"choices": []}\n\n'
    )
    for options in ((), ("--provider", "openai-chat")):
        code, out, err = decoded(capsys, str(file), *options)
        assert (code, out) == (2, "")
        assert err.endswith("remove them, and keep only the body\n")


def test_a_call_is_one_line_whatever_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    function = {"name": "f\nfinish: stop", "arguments": '{"a":\n1}'}
    message = {"tool_calls": [{"id": "1", "function": function}]}
    file = conversation(
        tmp_path, {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    )
    assert decoded(capsys, file)[:2] == (0, 'f\\nfinish: stop {"a":\\n1}\n')


def test_stdin_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("-",)):
        body = io.BytesIO(json.dumps(HELLO["ollama"]).encode())
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(body))
        code, out, _ = decoded(capsys, *arguments)
        assert (code, out) == (0, "Hello\n")


def test_calls_in_the_text_are_read_when_asked_for(
    tools: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = '<tool_call>\n{"name": "book", "arguments": {"when": "now"}}\n</tool_call>'
    body = {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    file = conversation(tmp_path, body)
    code, out, _ = decoded(capsys, file)
    assert (code, out.startswith("<tool_call>")) == (0, True)
    code, out, _ = decoded(capsys, file, "--text-calls", "hermes", "--tools", tools)
    assert (code, out) == (0, 'book {"when": "now"}\n')
    code, out, _ = decoded(capsys, file, "--text-calls", "hermes")  # the kit has no such tool
    assert (code, out.startswith("<tool_call>")) == (0, True)
    code, _, err = decoded(capsys, file, "--text-calls", "smoke")
    assert code == 2
    assert "--text-calls: there is no syntax 'smoke'; there are: hermes, " in err


def test_a_call_has_the_tools_own_name(
    tools: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not the one that its provider was told, where that refuses the tool's own."""
    own = "x" * 100
    function: Any = encode_tools("openai-chat", [{"name": own}])[0]["function"]
    name = function["name"]
    text = f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'
    native = [{"id": "1", "type": "function", "function": {"name": name, "arguments": "{}"}}]
    for message, asked in (
        ({"content": text}, ("--text-calls", "hermes")),
        ({"content": "", "tool_calls": native}, ()),
    ):
        body = {"choices": [{"message": message, "finish_reason": "stop"}]}
        code, out, _ = decoded(capsys, conversation(tmp_path, body), *asked, "--tools", tools)
        assert (code, out) == (0, f"{own} {{}}\n")


@pytest.mark.parametrize("body", [b"\0\0", b"\0", b"\0" * 11])
@pytest.mark.parametrize("wire", [None, *WIRES])
def test_a_body_with_nothing_of_a_reply_in_it_is_an_error(
    body: bytes, wire: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "body"
    file.write_bytes(body)
    code = run(["decode", str(file), *([] if wire is None else ["--provider", wire])])
    captured = capsys.readouterr()
    assert (code, captured.out) == (1, "")
    assert "toolcrib: " in captured.err
