"""The commands, and how each of them ends.

Exit codes: 0 done, 1 the job failed, 2 the command line cannot be used, 4 a log could not be opened
or checked. An error is one line on stderr. With `--debug` the traceback is shown instead, also that
of a tool. With `--json`, stdout holds exactly one JSON value, which for a failure is `{"error":
{"kind", "message"}}`. After Ctrl-C the exit code is 130. Where calls may have run by then (`chat`,
`call`), the JSON value says which.
"""

from __future__ import annotations

import asyncio
import errno
import inspect
import io
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cache
from typing import Annotated, Any

import typer

from toolcrib.cli import approvals, audit, chat, doctor, mcp, pick, runs, tools, wires
from toolcrib.cli.options import (
    OPENED,
    SHOWS_TRACEBACKS,
    InterruptedTurn,
    UncheckedError,
    UnusableError,
)
from toolcrib.cli.render import print_json, printable
from toolcrib.errors import ToolcribError
from toolcrib.urls import without_passwords

_WRITE_ERRORS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))
_LIKE_OPTIONS = (frozenset(("--audit", "--log", "--store")), frozenset(("--provider", "--wire")))

# The examples at the end of each command's help. A test parses them all.
EXAMPLES: dict[str, tuple[str, ...]] = {
    "chat": (
        "toolcrib chat 'What time is it in Asia/Tokyo?'",
        "toolcrib chat --model openai:gpt-5 --tools shop.py --audit sqlite:///crib.db",
        "toolcrib chat --durable --tools shop.py",
    ),
    "serve": (
        "toolcrib serve --open",
        "toolcrib serve --model openai:gpt-5 --tools shop.py --audit sqlite:///crib.db",
        "toolcrib serve --durable --tools shop.py",
    ),
    "call": (
        """toolcrib call calculate '{"expression": "23*17+5"}'""",
        "echo '{\"order\": 77}' | toolcrib call refund - --tools shop.py --json",
    ),
    "pick": ("toolcrib pick 'how many miles is a marathon' --scorer light --explain",),
    "eval-pick": (
        "toolcrib eval-pick --tools tools.json --queries questions.jsonl --scorer light",
        "toolcrib eval-pick --set FOLDER --scorer keyword --scorer light",
    ),
    "encode": ("toolcrib encode --provider gemini --tools shop.py",),
    "decode": ("toolcrib decode answer.json", "curl … | toolcrib decode --tools shop.py"),
    "doctor": ("toolcrib doctor", "toolcrib doctor --json"),
    "providers": ("toolcrib providers --json",),
    "tools list": ("toolcrib tools list shop.py",),
    "tools show": ("toolcrib tools show refund --tools shop.py",),
    "tools check": ("toolcrib tools check shop.py --provider anthropic --provider gemini",),
    "tools lock": ("toolcrib tools lock shop.py", "toolcrib tools lock shop.py --check"),
    "local install": ("toolcrib local install --force",),
    "audit list": ("toolcrib audit list --tool refund --status failed --since 3d",),
    "audit show": ("toolcrib audit show call_77 --log sqlite:///crib.db",),
    "audit verify": ("toolcrib audit verify", "toolcrib audit verify --jsonl log.jsonl"),
    "audit head": ("toolcrib audit head --log sqlite:///crib.db",),
    "audit keygen": ("toolcrib audit keygen shop.key --name example.com/shop",),
    "audit checkpoint": ("toolcrib audit checkpoint today.checkpoint --signing-key shop.key",),
    "audit prove": ("toolcrib audit prove call_77 77.tlog-proof --checkpoint today.checkpoint",),
    "audit verify-inclusion": (
        "toolcrib audit verify-inclusion 77.tlog-proof --public-key example.com/shop+…",
    ),
    "audit migrate": ("toolcrib audit migrate --key-file audit.key",),
    "audit export": ("toolcrib audit export log.jsonl --since 30d",),
    "audit prune": ("toolcrib audit prune --before 90d",),
    "mcp serve": (
        "toolcrib mcp serve --tools shop.py --elicit --audit sqlite:///crib.db",
        "toolcrib mcp serve --tools shop.py --http 127.0.0.1:8018",
    ),
    "approvals list": ("toolcrib approvals list --store sqlite:///crib.db",),
    "approvals approve": (
        "toolcrib approvals approve apr_5f0c --by grace",
        "toolcrib approvals approve apr_5f0c --arguments '{\"order\": 78}'",
        "toolcrib approvals approve apr_5f0c --always --open cents --for 30d",
    ),
    "approvals rules list": ("toolcrib approvals rules list --store sqlite:///crib.db",),
    "approvals rules revoke": ("toolcrib approvals rules revoke rule_77aa",),
    "approvals refuse": ("toolcrib approvals refuse apr_77aa apr_90b1 --reason 'ask sales'",),
    "runs start": ("toolcrib runs start desk 'My tea was cold.' --agents shop.py:agents",),
    "runs list": ("toolcrib runs list --status waiting",),
    "runs show": ("toolcrib runs show run_77 --store postgresql+psycopg://db/runs",),
    "runs replay": ("toolcrib runs replay run_77", "toolcrib runs replay state.json --json"),
    "runs answer": (
        "toolcrib runs answer apr_5f0c --yes --by grace",
        "toolcrib runs answer apr_5f0c --no --reason 'ask sales'",
    ),
    "runs fork": ("toolcrib runs fork run_77 --turn 1 --reopen --agents shop.py:agents",),
    "runs cancel": ("toolcrib runs cancel run_77",),
    "runs resume": ("toolcrib runs resume run_77",),
    "runs resolve": ("toolcrib runs resolve run_77_2_0 --run run_77 --did-not --by grace",),
    "runs worker": ("toolcrib runs worker --agents shop.py:agents --workers 4",),
}


def explain(app: typer.Typer, path: str = "") -> None:
    """Append the examples to each command's help, and join the lines of its paragraphs."""
    for command in app.registered_commands:
        paragraphs = inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(p.split()) for p in paragraphs.split("\n\n"))
        command.epilog = "\n\n".join(("Examples:", *EXAMPLES[f"{path}{command.name}"]))
    for group in app.registered_groups:
        if group.typer_instance is not None:
            explain(group.typer_instance, f"{path}{group.name} ")


UNCHECKED = 4
_MIN_COLUMNS = 76  # columns that help in boxes needs at least
_POSSIBLE_OPTIONS = re.compile(r" \(Possible options: (.+)\)")  # click's words
INTERRUPTED = 130  # the exit code of a shell for a program that Ctrl-C ended
_HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="toolcrib",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)
app.command("chat")(chat.chat)
app.command("serve")(chat.serve)
app.command("call")(tools.call)
app.command("pick")(pick.pick)
app.command("eval-pick")(pick.eval_pick)
app.command("encode")(wires.encode)
app.command("decode")(wires.decode)
app.command("providers")(wires.providers)
app.command("doctor")(doctor.doctor)
app.add_typer(tools.app, name="tools")
app.add_typer(doctor.local_app, name="local")
app.add_typer(audit.app, name="audit")
app.add_typer(approvals.app, name="approvals")
app.add_typer(mcp.app, name="mcp")
app.add_typer(runs.app, name="runs")
explain(app)


def _version(wanted: bool) -> None:
    if wanted:
        version = doctor.version_of("toolcrib")
        typer.echo(f"toolcrib {version}" if version else "toolcrib, run from source, not installed")
        raise typer.Exit


@app.callback()
def main(
    *,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback when something fails.")
    ] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Keep an agent's tools, pick them, check their calls, run them and write down what happened."""


@cache
def _command(*, narrow: bool) -> Callable[..., object]:
    """Make the command once, since a program may run many. A narrow terminal gets plain help,
    because boxes need room."""
    app.rich_markup_mode = None if narrow else "rich"
    command = typer.main.get_command(app)
    _hide_types_of_flags(command)
    return command


def _hide_types_of_flags(command: Any) -> None:
    """Leave out `<bool>`, which help would show next to each flag as if it took a value."""
    for parameter in command.get_params(typer.Context(command, **_HELP)):
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    for each in getattr(command, "commands", {}).values():
        _hide_types_of_flags(each)


def run(arguments: list[str] | None = None) -> int:
    """Run one command line and return its exit code. `--debug` may stand before or after the
    command."""
    argv = sys.argv[1:] if arguments is None else arguments
    options_end = (*argv, "--").index("--")
    options, rest = argv[:options_end], argv[options_end:]
    debug, as_json = "--debug" in options, "--json" in options
    arguments = [*(option for option in options if option != "--debug"), *rest]
    _let_streams_take_all_text()
    token = SHOWS_TRACEBACKS.set(debug)
    try:
        code = _run(arguments)
    except UnusableError as error:
        return _report_failure(error, 2, debug=debug, as_json=as_json)
    except UncheckedError as error:
        return _report_failure(error, UNCHECKED, debug=debug, as_json=as_json)
    except ToolcribError as error:
        return _report_failure(error, 1, debug=debug, as_json=as_json)
    except InterruptedTurn:
        return INTERRUPTED
    except (KeyboardInterrupt, typer.Abort, asyncio.CancelledError):
        code = INTERRUPTED
    except BrokenPipeError:
        if sys.stderr is not None:
            sys.stderr.close()
        return 1
    except Exception as error:  # noqa: BLE001  the last line of defence: one line, no traceback
        return _report_unexpected(error, debug=debug, as_json=as_json)
    finally:
        SHOWS_TRACEBACKS.reset(token)
    if code == INTERRUPTED and as_json:
        _print_error("KeyboardInterrupt", "cancelled")
    return code if isinstance(code, int) else 0


def _run(arguments: list[str]) -> Any:
    """Run a command, then close everything that it has opened."""
    narrow = shutil.get_terminal_size().columns < _MIN_COLUMNS
    with ExitStack() as stack:
        token = OPENED.set(stack)
        try:
            code = _command(narrow=narrow)(
                args=arguments, prog_name="toolcrib", standalone_mode=False
            )
        finally:
            OPENED.reset(token)
        if code == INTERRUPTED:  # typer's code for Ctrl-C: whatever is open must stop, not wait
            raise KeyboardInterrupt
    return code


def _let_streams_take_all_text() -> None:
    """Make stdout and stderr write characters that their encoding lacks as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _report_unexpected(error: Exception, *, debug: bool, as_json: bool) -> int:
    usage = getattr(error, "format_message", None)  # a method of click, in typer's copy or not
    if isinstance(error, OSError) and error.filename is None and error.errno in _WRITE_ERRORS:
        write_error = ToolcribError(f"could not write the output or a file: {error.strerror}")
        return _report_failure(write_error, 1, debug=debug, as_json=as_json)
    if usage is None:
        return _report_failure(error, 1, debug=debug, as_json=as_json)
    if not usage():  # no command was given, and the help was shown already
        return 2
    if type(error).__name__ == "NoArgsIsHelpError":  # the same, but the help was not shown
        typer.echo(usage(), err=True)
        return 2
    _suggest_like_options(error)
    text = _POSSIBLE_OPTIONS.sub(r" (did you mean \1?)", usage()).removesuffix(".")
    if text.startswith("Missing option"):  # of two, such as --yes/--no, click names the first
        others = getattr(getattr(error, "param", None), "secondary_opts", ())
        text = " or ".join([text, *(f"'{name}'" for name in others)])
    unusable = UnusableError(f"{text}{'' if text.endswith('?') else '.'} Try --help.")
    return _report_failure(unusable, 2, debug=debug, as_json=as_json)


def _suggest_like_options(error: Any) -> None:
    """Add to an error the command's own options that mean what the given one would have meant."""
    for like in _LIKE_OPTIONS:
        if getattr(error, "option_name", None) in like and error.ctx is not None:
            names = {name for parameter in error.ctx.command.params for name in parameter.opts}
            error.possibilities = sorted(names & like) or error.possibilities


def _report_failure(error: Exception, code: int, *, debug: bool, as_json: bool) -> int:
    if debug:
        raise error
    message = without_passwords(str(error))
    if as_json:
        _print_error(type(error).__name__, message)
    kind = "" if isinstance(error, ToolcribError) else f"{type(error).__name__}: "
    line = printable(f"{kind}{message}").replace("\n", " ")
    if sys.stderr is not None:
        with suppress(OSError):  # the line cannot be shown; the exit code still tells
            sys.stderr.write(f"toolcrib: {line}\n")
    return code


def _print_error(kind: str, message: str) -> None:
    with suppress(OSError):  # stdout itself may be what failed
        print_json({"error": {"kind": kind, "message": message}})
