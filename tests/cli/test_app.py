"""The command line as people script it: output, exit codes, one line for each error."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import typer
from rows import each_row
from samples import sampled

from toolcrib.cli import run
from toolcrib.cli.app import EXAMPLES, app
from toolcrib.cli.options import UnusableError
from toolcrib.errors import MissingExtraError

CANARY = "canary-91bc"
TOOLS = '''
import asyncio
from toolcrib import ALL, Image, tool

@tool(visible=ALL)
def draws() -> list[str | Image]:
    """Draw."""
    return ["a text", Image("image/png", "aGk=")]

@tool(visible=ALL, timeout=0.05)
async def hangs() -> str:
    """Never come back."""
    await asyncio.Event().wait()
    return ""

@tool(visible=ALL)
def leaks() -> str:
    """Raise a secret."""
    raise RuntimeError("canary-91bc")

@tool(visible=ALL)
def odd() -> dict:
    """Give what is no JSON."""
    return {"rows": [1, object()]}

@tool(visible=ALL, safe=False)
def risky(path: str) -> str:
    """Do something risky."""
    return f"done with {path}"
'''


class Result(NamedTuple):
    code: int
    out: str
    err: str


Toolcrib = Callable[..., Result]


@pytest.fixture
def toolcrib(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Toolcrib:
    """Runs a command line in an empty folder that holds `tools.py` and `notes.txt`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools.py").write_text(TOOLS, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("remember the milk\n", encoding="utf-8")
    listed = [{"name": "listed", "description": "Listed.", "input_schema": {"type": "object"}}]
    (tmp_path / "listed.json").write_text(json.dumps(listed), encoding="utf-8")

    def command(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run(list(arguments))
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return command


LOUD = """
import subprocess, sys
from toolcrib import ALL, tool

def says(text):
    print(f"print {text}", flush=True)
    subprocess.run([sys.executable, "-c", f"print('program {text}')"], check=True)

says("loading")

@tool(visible=ALL)
def loud() -> int:
    \"\"\"Say something and return a number.\"\"\"
    says("running")
    return 7
"""


@pytest.mark.parametrize("as_json", [False, True])
def test_what_a_tool_and_its_programs_print_is_not_the_result(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], as_json: bool
) -> None:
    path = tmp_path / "loud.py"
    path.write_text(LOUD, encoding="utf-8")
    code = run(["call", "loud", "--tools", str(path), *(["--json"] if as_json else [])])
    shown, err = capfd.readouterr()
    assert (code, json.loads(shown)["result"] if as_json else json.loads(shown)) == (0, 7)
    for who in ("print", "program"):
        assert f"{who} loading" in err
        assert f"{who} running" in err


def test_a_call_prints_its_result(toolcrib: Toolcrib) -> None:
    result = toolcrib("call", "calculate", '{"expression": "23*17+5"}')
    assert (result.code, json.loads(result.out), result.err) == (0, {"value": 396}, "")


def test_a_call_as_json_has_record_and_result(toolcrib: Toolcrib) -> None:
    result = toolcrib("call", "calculate", '{"expression": "1+1"}', "--json")
    value = json.loads(result.out)
    assert value["result"] == {"value": 2}
    assert value["record"]["status"] == "completed"
    assert value["record"]["decision"]["type"] == "allow"


def test_a_call_names_its_content_and_gives_it_as_json(toolcrib: Toolcrib) -> None:
    result = toolcrib("call", "draws", "{}", "--tools", "tools.py")
    assert (result.code, result.err) == (0, "")
    assert result.out == "a text\n[image: image/png, 2 bytes; not shown here]\n"
    value = json.loads(toolcrib("call", "draws", "{}", "--tools", "tools.py", "--json").out)
    image = {"type": "image", "media_type": "image/png", "data": "aGk="}
    assert (value["result"], value["parts"]) == (None, ["a text", image])
    assert [part["kind"] for part in value["record"]["parts"]] == ["text", "image"]


@pytest.mark.parametrize("arguments", ["-", "", " ", "null", " null\n"])
def test_empty_arguments_are_not_taken_for_none(toolcrib: Toolcrib, arguments: str) -> None:
    result = toolcrib("call", "current_time", arguments, stdin=b" \n")
    assert (result.code, result.out) == (2, "")
    assert "leave ARGS out, or give {}" in result.err
    assert toolcrib("call", "current_time").code == 0


def test_a_file_of_arguments_is_read_from_stdin(toolcrib: Toolcrib) -> None:
    result = toolcrib("call", "current_time", "@arguments.json")
    assert (result.code, result.out) == (2, "")
    assert "to read it from a file: - < FILE" in result.err


def test_arguments_may_begin_with_a_byte_order_mark(toolcrib: Toolcrib) -> None:
    """As PowerShell writes them into a pipe."""
    arguments = b'\xef\xbb\xbf{"expression": "1 + 2"}'
    assert toolcrib("call", "calculate", "-", stdin=arguments).code == 0


REJECTED: list[tuple[list[str], bytes, str]] = [
    (
        ["convert_units", '{"value": "seventy", "from_unit": "km", "to_unit": "mile"}'],
        b"",
        "invalid_arguments at /value: expected number, got string",
    ),
    (["nobody", "{}"], b"", "unknown_tool: There is no tool of that name"),
    (["calculate", "{"], b"", "invalid_json"),
    (["calculate", '{"expression": NaN}'], b"", "invalid_json"),
    (["convert_units", '{"value": 1e400, "from_unit": "m", "to_unit": "m"}'], b"", "invalid_json"),
    (["calculate", '{"expression": "1", "expression": "2"}'], b"", "the same key appears twice"),
    (["calculate", "-"], b'{"expression": "' + b"1" * 10_000_000 + b'"}', "too_large"),
    (["read_file", '{"path": "../../etc/passwd"}'], b"", "capability_error: the path is outside"),
    (["hangs", "{}", "--tools", "tools.py"], b"", "timeout"),
    (["leaks", "{}", "--tools", "tools.py"], b"", "tool_error: The tool failed."),
    (["risky", '{"path": "x"}', "--tools", "tools.py", "--no"], b"", "approval_refused"),
    (["risky", '{"path": "x"}', "--tools", "tools.py"], b"", "at: pass --yes to approve it"),
    (["listed", "{}", "--tools", "listed.json"], b"", "listed: not_runnable: "),
]


@pytest.mark.parametrize(
    ("arguments", "stdin", "error"), REJECTED, ids=[f"{r[0][0]}-{r[2][:20]}" for r in REJECTED]
)
def test_a_call_that_does_not_complete_exits_with_1_and_says_why(
    toolcrib: Toolcrib, arguments: list[str], stdin: bytes, error: str
) -> None:
    result = toolcrib("call", *arguments, stdin=stdin)
    assert result.code == 1
    assert error in result.err
    assert result.out == ""
    assert CANARY not in result.err
    assert "Traceback" not in result.err
    recorded = toolcrib("call", *arguments, "--json", stdin=stdin)
    assert recorded.code == 1
    assert json.loads(recorded.out)["record"]["status"] == "failed"
    assert CANARY not in recorded.out


def test_yes_approves(toolcrib: Toolcrib) -> None:
    result = toolcrib("call", "risky", '{"path": "x"}', "--tools", "tools.py", "--yes")
    assert (result.code, result.out) == (0, "done with x\n")


UNUSABLE: list[tuple[list[str], str]] = [
    (["nope"], "No such command 'nope'"),
    (["call"], "Missing argument 'TOOL'. Try --help."),
    (["pick", "x", "--top", "0"], "equal to 1. Try --help."),
    (["approvals", "list", "--store", "sqlite:///."], "it is a directory"),
    (["tools", "show", "nope"], "no tool 'nope'; available: current_time"),
    (["tools", "list", "--tools", "nope.py"], "nope.py: there is no such file"),
    (["tools", "list", "--tools", "nope.json"], "nope.json: there is no such file"),
    (["tools", "list", "--tools", "no.such.module:x"], "No module named"),
    (["tools", "list", "--tools", "json:nothing"], "the module has no 'nothing'"),
    (["tools", "list", "--tools", "json:__doc__"], "it is not a Catalog"),
    (["tools", "list", "--tools", "whatever"], "give module:attribute"),
    (["tools", "list", "--tools", "mcp:server"], "there is no program 'server'"),
    (["encode", "--provider", "smoke"], "there is no provider 'smoke'"),
    (["decode", "nope.json"], "it cannot be read"),
    (["chat", "hi", "--model", "nope:x"], "there is no model 'nope:x'"),
]


@pytest.mark.parametrize(("arguments", "error"), UNUSABLE, ids=[" ".join(u[0]) for u in UNUSABLE])
def test_an_unusable_command_line_exits_with_2_and_one_line(
    toolcrib: Toolcrib, arguments: list[str], error: str
) -> None:
    result = toolcrib(*arguments)
    assert result.code == 2
    assert error in result.err
    assert result.err.count("\n") == 1
    assert result.out == ""


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "message"),
    [
        (["chat", "--json"], 2, "UnusableError", "--json needs a prompt"),
        (["pick", "--json"], 2, "UnusableError", "Missing argument"),
        (["tools", "show", "nope", "--json"], 2, "UnusableError", "no tool 'nope'"),
        (
            ["decode", "notes.txt", "--json"],
            1,
            "WireError",
            "the format of the body is none of the known wires",
        ),
        (["chat", "hi", "--model", "http://127.0.0.1:1#m", "--json"], 1, "ConnectionFailed", ""),
    ],
    ids=["usage", "argument", "tool", "wire", "provider"],
)
def test_a_failure_with_json_is_one_value_too(
    toolcrib: Toolcrib, arguments: list[str], code: int, kind: str, message: str
) -> None:
    result = toolcrib(*arguments)
    assert result.code == code
    error = json.loads(result.out)["error"]
    assert error["kind"] == kind
    assert message in error["message"]
    assert result.err == f"toolcrib: {error['message']}\n"


def test_a_prompt_may_be_called_json(toolcrib: Toolcrib) -> None:
    result = toolcrib("chat", "--model", "http://127.0.0.1:1#m", "--", "--json")
    assert (result.code, result.out) == (1, "")


def test_no_command_shows_the_help_and_no_error(toolcrib: Toolcrib) -> None:
    result = toolcrib()
    assert (result.code, result.err) == (2, "")
    assert "Usage: toolcrib" in result.out


def test_every_reason_is_told(toolcrib: Toolcrib) -> None:
    result = toolcrib("call", "calculate", '{"x": 1}')
    assert "the required property 'expression' is missing" in result.err
    assert "there is a property that is not declared" in result.err
    result = toolcrib("call", "calculate", '{"expression": 5, "x": 1}')
    assert result.err == (
        "toolcrib: calculate: invalid_arguments at /expression: expected string, got integer; "
        "/*: there is a property that is not declared\n"
    )


def test_the_same_command_twice_is_two_calls(toolcrib: Toolcrib) -> None:
    """The call's id is the tool's idempotency key."""
    results = [toolcrib("call", "calculate", '{"expression": "1"}', "--json") for _ in range(2)]
    first, second = (json.loads(result.out)["record"]["id"] for result in results)
    assert first != second


def test_a_wrong_definition_is_named(toolcrib: Toolcrib) -> None:
    Path("tools.json").write_text('[{"name": "a b", "input_schema": {}}]', encoding="utf-8")
    result = toolcrib("tools", "list", "--tools", "tools.json")
    assert result.code == 1
    assert "tool name 'a b'" in result.err


def test_tools_list_and_show(toolcrib: Toolcrib) -> None:
    listed = toolcrib("tools", "list", "--json")
    assert [tool["name"] for tool in json.loads(listed.out)] == [
        "current_time",
        "calculate",
        "convert_units",
        "list_files",
        "read_file",
        "search_files",
        "get_weather",
    ]
    assert "calculate" in toolcrib("tools", "list").out
    shown = json.loads(toolcrib("tools", "show", "convert_units", "--json").out)
    assert shown["input_schema"]["required"] == ["value", "from_unit", "to_unit"]
    assert "convert_units" in toolcrib("tools", "show", "convert_units").out


@pytest.mark.parametrize("where", ["tools.py", "tools:risky", "tools:hangs"])
def test_tools_from_python(toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.delitem(sys.modules, "tools", raising=False)
    result = toolcrib("tools", "list", "--tools", where, "--json")
    assert result.code == 0
    assert {tool["name"] for tool in json.loads(result.out)} <= {
        "draws",
        "hangs",
        "leaks",
        "odd",
        "risky",
    }
    monkeypatch.delitem(sys.modules, "tools", raising=False)


def test_pick_says_why(toolcrib: Toolcrib) -> None:
    picked = json.loads(toolcrib("pick", "convert miles to kilometers", "--json").out)
    assert picked[0]["name"] == "convert_units"
    assert 0 < picked[0]["score"] <= 1
    assert "convert_units" in toolcrib("pick", "convert miles", "--explain").out
    nothing = toolcrib("pick", "zzz")
    assert (nothing.code, nothing.err) == (0, "No tool matches.\n")


def test_pick_takes_definitions_that_no_provider_would(toolcrib: Toolcrib) -> None:
    rows = [{"name": "a.b/c", "description": "fly a kite"}, {"name": "x", "description": "swim"}]
    Path("odd.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    picked = json.loads(toolcrib("pick", "kite", "--tools", "odd.jsonl", "--json").out)
    assert [p["name"] for p in picked] == ["a.b/c"]


def test_encode_and_decode(toolcrib: Toolcrib) -> None:
    encoded = json.loads(toolcrib("encode", "--provider", "openai-chat").out)
    assert [tool["type"] for tool in encoded] == ["function"] * 7
    assert set(encoded[0]["function"]) == {"name", "description", "parameters"}
    body: dict[str, Any] = {
        "choices": [
            {
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": "one \x1b[2J moment",
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "add", "arguments": '{"a": 1}'},
                        }
                    ],
                },
            }
        ]
    }
    Path("body.json").write_text(json.dumps(body), encoding="utf-8")
    decoded = json.loads(toolcrib("decode", "body.json", "--json").out)
    assert decoded["finish"] == "tool_calls"
    assert decoded["tool_calls"][0]["arguments"] == '{"a": 1}'
    shown = toolcrib("decode", stdin=json.dumps(body).encode())
    assert 'add {"a": 1}' in shown.out
    assert "\x1b" not in shown.out


def test_decode_of_something_else_is_one_line(toolcrib: Toolcrib) -> None:
    result = toolcrib("decode", stdin=b"<html>")
    assert (result.code, result.out, result.err.count("\n")) == (1, "", 1)
    assert "Traceback" not in result.err


def test_help_names_every_command(toolcrib: Toolcrib) -> None:
    out = toolcrib("--help").out
    for command in {path.partition(" ")[0] for path in EXAMPLES}:
        assert f" {command} " in out


@each_row("path", EXAMPLES)
def test_each_option_says_what_it_is_for_and_no_flag_is_on(path: str) -> None:
    command: Any = typer.main.get_command(app)
    for name in path.split():
        command = command.commands[name]
    assert [each.name for each in command.params if not getattr(each, "help", None)] == []
    assert [each.name for each in command.params if each.default is True] == []


@each_row("columns", ["60", "100"])
def test_no_flag_looks_as_if_it_took_a_value(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    shown = toolcrib("chat", "--help").out
    assert "bool" not in shown
    for option in ("--durable", "--json", "--yes", "--no", "-h", "--help", "--pick"):
        assert option in shown


def parsed(words: list[str]) -> str:
    """The path of the command that these words would run. Raises for what it does not take."""
    command: Any = typer.main.get_command(app)
    context, path = command.make_context("toolcrib", words), []
    while hasattr(command, "commands"):
        name, command, words = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        context = command.make_context(name, words, parent=context)
        path.append(name)
    return " ".join(path)


@each_row("path", sampled(EXAMPLES, part=3))
def test_the_help_of_a_command_ends_with_examples_that_it_takes(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    shown = toolcrib(*path.split(), "--help").out
    for example in EXAMPLES[path]:
        assert example in shown
        words = shlex.split(example)
        assert parsed(words[words.index("toolcrib") + 1 :]) == path


@pytest.mark.parametrize("words", [["providers"], ["--help"]])
def test_an_unknown_width_hides_nothing(words: list[str]) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "toolcrib", *words],
        env={**os.environ, "COLUMNS": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(child.stdout.split()) > 20


def test_the_paragraphs_of_a_help_fill_its_lines(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert "`one call`: a reply can be kept to one." in toolcrib("providers", "--help").out


@pytest.mark.parametrize("place", [0, 2])
def test_debug_may_stand_anywhere(toolcrib: Toolcrib, place: int) -> None:
    words = ["tools", "list", "--tools", "nope.json"]
    words.insert(place, "--debug")
    with pytest.raises(UnusableError, match="there is no such file"):
        toolcrib(*words)


@pytest.mark.parametrize("debug", [True, False])
def test_debug_shows_the_traceback_of_a_tool(toolcrib: Toolcrib, debug: bool) -> None:
    """Without it, the log's line says where the tool failed, and nothing of what it said."""
    words = ["call", "leaks", "{}", "--tools", "tools.py"]
    result = toolcrib(*words, *(["--debug"] if debug else []))
    assert result.code == 1
    assert ("Traceback" in result.err) is debug
    assert ("canary-91bc" in result.err) is debug
    if debug:  # the whole of it: from our own frames to the author's
        frames = re.findall(r'File "([^"]+)", line \d+, in (\w+)', result.err)
        assert (Path(frames[-1][0]).name, frames[-1][1]) == ("tools.py", "leaks")
        assert any("toolcrib/runner" in Path(file).as_posix() for file, _ in frames)


@pytest.mark.parametrize("debug", [True, False])
def test_debug_shows_the_traceback_of_a_result_that_is_no_json(
    toolcrib: Toolcrib, debug: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Without it, the log's line has the type, and the place without the author's own keys."""
    result = toolcrib("call", "odd", "{}", "--tools", "tools.py", *(["--debug"] if debug else []))
    assert result.code == 1
    assert ("Traceback" in result.err) is debug
    assert ("a value of type object at /rows/1" in result.err) is debug
    assert debug or "a value of type object at /*/1" in caplog.text


def test_debug_behind_dashes_is_an_argument(toolcrib: Toolcrib) -> None:
    result = toolcrib("call", "--", "--debug")
    assert (result.code, result.err.count("\n")) == (1, 1)
    assert "unknown_tool" in result.err


def test_the_version_of_a_source_that_is_not_installed(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("toolcrib.cli.doctor.version", absent)
    assert toolcrib("--version") == (0, "toolcrib, run from source, not installed\n", "")


def test_an_exit_code_needs_no_stderr(toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)  # as Python has it where it was closed
    assert toolcrib("tools", "list", "nope.json").code == 2


def test_a_full_disk_is_said_to_be_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("sys.stdout", Full())
    assert run(["--version"]) == 1
    assert "could not write the output or a file: No space left" in capsys.readouterr().err


def test_a_call_of_no_tool_names_those_that_there_are(toolcrib: Toolcrib) -> None:
    error = toolcrib("call", "hang", "--tools", "tools.py").err
    assert error.endswith(
        "no tool of that name (did you mean 'hangs'?); available: draws, hangs, leaks, odd, risky\n"
    )
    error = toolcrib("call", "price_of").err
    assert "There is no tool of that name in the kit; available: current_time, " in error
    assert error.endswith("; for your own tools use --tools FILE.py\n")


@pytest.mark.parametrize(
    ("consent", "said"), [([], "pass --yes to approve it"), (["--no"], "not approved")]
)
def test_a_call_that_nobody_can_be_asked_about_says_so(
    toolcrib: Toolcrib, consent: list[str], said: str
) -> None:
    error = toolcrib("call", "risky", '{"path": "x"}', "--tools", "tools.py", *consent).err
    assert error.endswith(f"{said}.\n")


def test_without_the_kit_tools_can_be_named(
    toolcrib: Toolcrib, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(**_given: object) -> None:
        raise MissingExtraError("kit", "toolcrib.kit")

    monkeypatch.setattr("toolcrib.kit.catalog", absent)
    result = toolcrib("tools", "list")
    assert (result.code, result.out) == (2, "")
    assert result.err.endswith(
        "'.[kit]' in a checkout of toolcrib, or name your own tools: --tools WHERE\n"
    )


def test_of_many_tools_those_with_a_name_like_it(toolcrib: Toolcrib) -> None:
    names = [*(f"tool_{n:04}" for n in range(500)), "refund"]
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in names]
    Path("many.json").write_text(json.dumps(tools), encoding="utf-8")
    error = toolcrib("tools", "show", "refunt", "--tools", "many.json").err
    assert (
        error
        == "toolcrib: no tool 'refunt' (did you mean 'refund'?); available: refund, … (501 in all)\n"
    )


class Interrupted(ModuleType):
    def __getattr__(self, name: str) -> object:
        raise KeyboardInterrupt


def test_ctrl_c_while_the_command_is_imported_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "toolcrib.cli", Interrupted("toolcrib.cli"))
    monkeypatch.delitem(sys.modules, "toolcrib.__main__", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("toolcrib.__main__", run_name="__main__")
    assert ended.value.code == 130
