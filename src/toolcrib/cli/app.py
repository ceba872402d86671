"""The commands, and how each of them ends.

Exit codes: 0 done, 1 the job failed, 2 an unusable command line. An error is one line on stderr;
`--debug` gives the traceback instead, that of a tool, too. With `--json`, stdout holds exactly one
JSON value, that of a failure being `{"error": {"kind", "message"}}`. After Ctrl-C the code is 130, and
where calls may have run by then (`chat`, `call`), the JSON value says which.
"""

from __future__ import annotations

import asyncio
import io
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from toolcrib.cli import (
    approvals,
    audit,
    call,
    chat,
    eval_pick,
    local,
    pick,
    providers,
    tools,
    wires,
)
from toolcrib.cli.examples import explain
from toolcrib.cli.options import SHOWS_TRACEBACKS, InterruptedTurn
from toolcrib.cli.render import print_json, printable
from toolcrib.cli.where import UnusableError
from toolcrib.errors import ToolcribError

INTERRUPTED = 130  # the exit code that shells give to what Ctrl-C ended

app = typer.Typer(
    name="toolcrib",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("chat")(chat.chat)
app.command("call")(call.call)
app.command("pick")(pick.pick)
app.command("eval-pick")(eval_pick.eval_pick)
app.command("encode")(wires.encode)
app.command("decode")(wires.decode)
app.command("providers")(providers.providers)
app.add_typer(tools.app, name="tools")
app.add_typer(local.app, name="local")
app.add_typer(audit.app, name="audit")
app.add_typer(approvals.app, name="approvals")
explain(app)


def _version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"toolcrib {version('toolcrib')}")
        except PackageNotFoundError:
            typer.echo("toolcrib, from its source: it is not installed")
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


def run(arguments: list[str] | None = None) -> int:
    """Run one command line; the exit code. `--debug` may stand before the command or behind it."""
    given = sys.argv[1:] if arguments is None else arguments
    end = (*given, "--").index("--")
    options, rest = given[:end], given[end:]
    debug, as_json = "--debug" in options, "--json" in options
    arguments = [*(option for option in options if option != "--debug"), *rest]
    _let_streams_take_all_text()
    before = SHOWS_TRACEBACKS.set(debug)
    try:
        code = app(args=arguments, prog_name="toolcrib", standalone_mode=False)
    except UnusableError as error:
        return _failed(error, 2, debug=debug, as_json=as_json)
    except ToolcribError as error:
        return _failed(error, 1, debug=debug, as_json=as_json)
    except InterruptedTurn:
        return INTERRUPTED
    except (KeyboardInterrupt, typer.Abort, asyncio.CancelledError):
        code = INTERRUPTED
    except BrokenPipeError:
        if sys.stderr is not None:
            sys.stderr.close()
        return 1
    except Exception as error:  # noqa: BLE001  the last line of defence: one line, no traceback
        return _unforeseen(error, debug=debug, as_json=as_json)
    finally:
        SHOWS_TRACEBACKS.reset(before)
    if code == INTERRUPTED and as_json:  # typer makes an exit of Ctrl-C, too
        _print_error("KeyboardInterrupt", "cancelled")
    return code if isinstance(code, int) else 0


def _let_streams_take_all_text() -> None:
    """A terminal need not be UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _unforeseen(error: Exception, *, debug: bool, as_json: bool) -> int:
    usage = getattr(error, "format_message", None)  # click's, in whichever copy typer uses
    if usage is None:
        return _failed(error, 1, debug=debug, as_json=as_json)
    if not usage():  # no command was given, and the help has been shown
        return 2
    unusable = UnusableError(f"{usage().removesuffix('.')}. Try --help.")
    return _failed(unusable, 2, debug=debug, as_json=as_json)


def _failed(error: Exception, code: int, *, debug: bool, as_json: bool) -> int:
    if debug:
        raise error
    if as_json:
        _print_error(type(error).__name__, str(error))
    kind = "" if isinstance(error, ToolcribError) else f"{type(error).__name__}: "
    line = printable(f"{kind}{error}").replace("\n", " ")
    if sys.stderr is not None:
        with suppress(OSError):  # nobody can be told, but the exit code holds
            sys.stderr.write(f"toolcrib: {line}\n")
    return code


def _print_error(kind: str, message: str) -> None:
    with suppress(OSError):  # stdout may be what failed
        print_json({"error": {"kind": kind, "message": message}})
