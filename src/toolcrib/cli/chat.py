"""`toolcrib chat` and `serve`: the agent loop in a terminal, and behind a page in the browser."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote

import typer

from toolcrib.agent import Agent, RunStream, Session
from toolcrib.cli.conversation import CALLER, continued_conversation
from toolcrib.cli.doctor import found_keys, found_servers
from toolcrib.cli.listening import TOKEN, leave, listener_at, serve_app, stop_work, url_host
from toolcrib.cli.options import (
    DATABASE,
    RUNS,
    STORE_OF_RUNS,
    ConsentOption,
    DataOption,
    InterruptedTurn,
    JsonOption,
    KeyFileOption,
    RecordOption,
    RulesOption,
    ToolsOption,
    UnusableError,
    approver,
    check_url,
    exception_hook,
    load_catalog,
    log_to_write,
    names_to_try,
    no_terminal,
    rules_in,
    state_key,
    stdout_on_stderr,
    store_of_runs,
    with_open,
)
from toolcrib.cli.render import Screen, err, one_line, print_json, printable
from toolcrib.clients import Transport, client_for
from toolcrib.clients.local import NEEDLE, is_installed
from toolcrib.clients.providers import PROVIDERS
from toolcrib.closing import Closing, close_all
from toolcrib.errors import (
    AuthenticationError,
    ClientError,
    PickError,
    RequestError,
    SourceError,
    ToolcribError,
    listed,
)
from toolcrib.pick import SCORERS, PickOptions
from toolcrib.runner import ToolRunner
from toolcrib.testing import cassette
from toolcrib.urls import without_password
from toolcrib.values.decision import Answer, ApprovalRequest, Approver
from toolcrib.values.json import canonical_json, to_plain
from toolcrib.values.message import LLMClient
from toolcrib.values.run import Event, RunResult, RunState

_MOST_LISTED = 3  # models listed in one line
_GRACE_SECONDS = 5.0  # seconds that calls of durable runs get to end
_RESUME_WORD = "/resume"  # typed to go on with a turn that failed
_END_WORDS = ("/quit", "/exit")  # typed to end the conversation, like Ctrl-D
_HELP_WORD = "/help"
_HELP = f"""\
{_RESUME_WORD}              go on with a turn whose provider failed; what ran is not run again
{", ".join(_END_WORDS)}         end the conversation, as Ctrl-D does
Ctrl-C               cancel a turn
Everything else goes to the model. `toolcrib chat --help` has the options."""
_REPORTED_FIELDS = (
    "status",
    "text",
    "limit",
    "records",
    "usage",
    "pending",
)  # of a result, with --json

_Prompt: TypeAlias = Annotated[
    str | None,
    typer.Argument(metavar="PROMPT", help="What to ask. Without it, a conversation starts."),
]
ModelOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        metavar="M",
        help="local (embedded, no key needed), local:FILE.gguf, PROVIDER:NAME "
        f"({', '.join(p for p in PROVIDERS if p != 'local')}), or URL#NAME for a compatible server.",
        autocompletion=lambda: [
            *(p if p == "local" else f"{p}:" for p in PROVIDERS),
            *(model for server in found_servers() for model in server.models),
        ],
    ),
]
CountOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--pick",
        metavar="N",
        min=1,
        help="Offer only the N best tools; a hosted model may search for more.",
    ),
]
ScorerOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"With --pick: the scorer that ranks the tools: {', '.join(SCORERS)}.",
        autocompletion=lambda: list(SCORERS),
    ),
]
_Cassette: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--cassette",
        metavar="FILE",
        help="Replay the provider's answers from FILE; if it does not exist, record them.",
    ),
]
_Record: TypeAlias = Annotated[
    bool, typer.Option("--record", help="With --cassette: record again, over FILE.")
]
_Durable: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--durable", help="Keep each turn as a run in a database, so that it survives this process."
    ),
]
_Runs: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help=f"With --durable: the database. Default: ${STORE_OF_RUNS}, or {RUNS}.",
    ),
]


def chat(  # noqa: PLR0913  the options of a command
    prompt: _Prompt = None,
    *,
    model: ModelOption = "local",
    tools: ToolsOption = None,
    database: DataOption = None,
    pick: CountOption = None,
    scorer: ScorerOption = None,
    consent: ConsentOption = None,
    rules: RulesOption = None,
    audit: RecordOption = None,
    key_file: KeyFileOption = None,
    cassette_file: _Cassette = None,
    record: _Record = False,
    durable: _Durable = False,
    store: _Runs = None,
    as_json: JsonOption = False,
) -> int:
    """Ask a model that may call tools, and see every call, its arguments and why it was allowed.

    You are asked before a risky call. With --rules, you may answer "always". Without PROMPT it is a
    conversation, which ends with Ctrl-D or /quit. With --durable, the same command goes on with
    runs that were open when its process ended.
    """
    if as_json and prompt is None:
        raise UnusableError("--json needs a prompt")
    if record and cassette_file is None:
        raise UnusableError("--record needs --cassette FILE")
    if store is not None and not durable:
        raise UnusableError("--store needs --durable")
    options = pick_options(pick, scorer)
    asker = _Asker(approver(consent))
    store_url = store_of_runs(store)
    key = state_key(store_url) if durable else None
    log, rule_store = log_to_write(audit, key_file), rules_in(rules, consent)
    sinks = () if log is None else (log,)
    catalog = load_catalog(tools, database=database)
    runner_approver = None if durable else asker
    hook = exception_hook()
    runner = ToolRunner(
        catalog, approver=runner_approver, rules=rule_store, sinks=sinks, on_exception=hook
    )
    if err.is_terminal and not as_json:
        err.print(who_answers(model))
    resources = (log, rule_store)
    agent_context = _opened_agent(
        model,
        runner,
        options,
        cassette_file=cassette_file,
        record=record,
        resources=resources,
        key=key,
    )
    with agent_context as (loop, agent):
        open_turns: list[Turn] = []
        new_turn: Callable[[str], Turn]
        if durable:
            options_json = canonical_json(
                [str(Path.cwd()), model, *(tools or (None,)), str(database), pick, scorer]
            )
            conversation, unfinished = loop.run(
                continued_conversation(agent, asker, store_url, options_json, prompt)
            )
            session, new_turn, open_turns = conversation.session, conversation.turn, [*unfinished]
        else:
            session = Session(agent)
            new_turn = functools.partial(_Turn, session)
        terminal = _Terminal(loop, session, new_turn, asker, model, as_json)
        if prompt is None:
            return _converse(terminal, open_turns)
        result = _answer(terminal, open_turns[-1] if open_turns else new_turn(prompt))
        return 0 if result.status == "completed" else 1


def who_answers(model: str) -> str:
    """Return a line that says which model answers. For the embedded one, it also names available
    others, which are never asked."""
    if model != "local":
        return f"{one_line(model)} answers."
    others = [f"{provider}:MODEL" for provider in found_keys()]
    others += [name for server in found_servers() for name in server.models]
    text = "The embedded model answers."
    if not is_installed(NEEDLE):
        text = "The embedded model answers, without Needle (toolcrib local install)."
    if not others:
        return text
    names = listed([one_line(name) for name in others], _MOST_LISTED, " or ")
    return f"{text} Also available: --model {names} (toolcrib doctor)."


@contextlib.contextmanager
def _opened_agent(
    model: str,
    runner: ToolRunner,
    pick: PickOptions | None,
    *,
    cassette_file: Path | None,
    record: bool,
    resources: Sequence[Closing | None],
    key: bytes | None,
) -> Iterator[tuple[asyncio.Runner, Agent]]:
    """Open an agent and the event loop that it runs in. Close both at the end."""
    with contextlib.ExitStack() as stack:
        transport = None
        if cassette_file is not None:
            transport = stack.enter_context(
                cassette(cassette_file, record="all" if record else "once")
            )
        searches = pick is not None and model.partition(":")[0] != "local"
        client = client_of(model, transport)
        agent = Agent(client, runner, pick=pick, search_tools=searches, state_key=key)
        loop = stack.enter_context(asyncio.Runner())
        stack.callback(lambda: loop.run(close_all(*resources)))
        stack.callback(lambda: loop.run(client.aclose()))
        yield loop, agent


def pick_options(count: int | None, scorer: str | None) -> PickOptions | None:
    """Return the options that `--pick` and `--scorer` ask for. Raises UnusableError."""
    if count is None:
        if scorer is not None:
            raise UnusableError("--scorer needs --pick N")
        return None
    try:
        return PickOptions(max_candidates=count, scorer=scorer)
    except PickError as error:
        raise UnusableError(f"--scorer: {error}") from None


class Turn(Protocol):
    """Runs one turn of a conversation."""

    async def run(self, show: Callable[[Event], None]) -> RunResult:
        """Run the turn and show its events. Leaving early cancels the run."""
        ...

    async def rest(self, show: Callable[[Event], None]) -> None:
        """Show the remaining events of a cancelled run, which say what became of its calls."""
        ...

    async def result(self) -> RunResult:
        """Return how the run ended. Raises CancelledError if it never began."""
        ...


class _Terminal(NamedTuple):
    """A conversation, with everything that its turns need except their texts."""

    loop: asyncio.Runner
    session: Session[Agent]
    new_turn: Callable[[str], Turn]
    asker: _Asker
    model: str
    as_json: bool


class _Asker:
    """An approver that first shows all earlier output, since the run is ahead of the screen."""

    def __init__(self, ask: Approver) -> None:
        self._ask = ask
        self.screen: Screen | None = None

    async def __call__(self, request: ApprovalRequest) -> Answer | None:
        if self.screen is None:
            return await self._ask(request)
        async with self.screen.question(request):
            return await self._ask(request)


def client_of(model: str, transport: Transport | None = None) -> LLMClient:
    """Return the client that `--model` names. Raises UnusableError."""
    try:
        return client_for(model, transport=transport)
    except AuthenticationError:
        raise
    except RequestError as error:
        raise UnusableError(f"--model: {error}") from None


def _converse(terminal: _Terminal, open_turns: list[Turn]) -> int:
    """Finish open turns, then converse until stdin ends or a turn waits for an answer. Return 0, or
    for a script the highest exit code of a turn.

    A person at the terminal has seen what went wrong, and a script has not.
    """
    if sys.stdin is None:
        raise UnusableError("stdin is closed: give a prompt")
    names = names_to_try(terminal.session.agent.runner.catalog.names)
    is_typed, exit_code = sys.stdin.isatty(), 0
    more = f", {_HELP_WORD} says more" if is_typed else ""
    err.print(f"{printable(terminal.model)}, with {names}. Ctrl-D ends{more}.")
    if is_typed:
        # without readline a terminal cuts lines after 4,095 bytes
        with contextlib.suppress(ImportError):
            import_module("readline")
    failed_state: RunState | None = None
    while True:
        try:
            turn = (
                open_turns.pop(0)
                if open_turns
                else _next_turn(terminal, failed_state, is_typed=is_typed)
            )
        except EOFError:
            if is_typed:
                print()  # noqa: T201  the shell's prompt starts on a new line
            return 0 if is_typed else exit_code
        try:
            status = _answer(terminal, turn).status
        except KeyboardInterrupt:
            continue
        except ToolcribError as error:
            err.print(f"toolcrib: {one_line(str(error))}")
            exit_code = 1
            state = error.state if isinstance(error, ClientError) else None
            failed_state = state if isinstance(state, RunState) else None
            if failed_state is not None:
                err.print(f"{_RESUME_WORD} continues from there; tools that ran are not run again.")
            continue
        failed_state = None
        if status == "waiting":
            return 1
        exit_code = max(exit_code, 0 if status == "completed" else 1)


def _next_turn(terminal: _Terminal, failed_state: RunState | None, *, is_typed: bool) -> Turn:
    """Return a turn for the next text on stdin, or one that goes on from `failed_state`, the state of
    a turn that failed. Raises EOFError at the end of stdin."""
    while True:
        try:
            text = input("> " if is_typed else "").strip()
        except UnicodeDecodeError:
            raise SourceError("stdin is not UTF-8") from None
        if is_typed and text in _END_WORDS:
            raise EOFError
        if is_typed and text == _HELP_WORD:
            err.print(_HELP)
            continue
        if text == _RESUME_WORD and failed_state is not None:
            return _Turn(terminal.session, text, failed_state)
        if text:
            return terminal.new_turn(text)


def _cancel_leftovers(loop: asyncio.Runner) -> None:
    """Cancel what is left of a turn that Ctrl-C interrupted, and wait for its end. The conversation
    then has what it did, and the next turn finds nothing unfinished."""

    async def cancel_others() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with contextlib.suppress(KeyboardInterrupt):
        loop.run(cancel_others())


def _no_output(*, as_json: bool) -> contextlib.AbstractContextManager[None]:
    return stdout_on_stderr() if as_json else contextlib.nullcontext()


def _answer(terminal: _Terminal, turn: Turn) -> RunResult:
    loop, as_json = terminal.loop, terminal.as_json
    is_first = terminal.model == "local" and not terminal.session.messages
    screen = Screen("loading the embedded model …" if is_first else "thinking …")
    show = (lambda _event: None) if as_json else screen.show  # then only the end is printed
    terminal.asker.screen = None if as_json else screen
    is_interrupted = False
    try:
        with _no_output(as_json=as_json):  # a tool's own output is no part of the one JSON value
            result = loop.run(turn.run(show))
    except KeyboardInterrupt:
        with _no_output(as_json=as_json):
            _cancel_leftovers(loop)
            loop.run(turn.rest(show))
            if not as_json:
                raise
            result, is_interrupted = loop.run(turn.result()), True
    finally:
        screen.close()
    if as_json:
        print_json(to_plain({name: getattr(result, name) for name in _REPORTED_FIELDS}))
    elif hint := next(filter(None, map(no_terminal, result.records)), ""):
        err.print(hint)
    if is_interrupted:
        raise InterruptedTurn
    return result


class _Turn:
    """Holds one run. Its result can be read even after Ctrl-C cancelled the run and its tools."""

    def __init__(
        self, session: Session[Agent], text: str, failed_state: RunState | None = None
    ) -> None:
        self._session = session
        self._text = text
        self._failed_state = failed_state
        self._stream: RunStream | None = None

    def _open_stream(self) -> RunStream:
        if self._failed_state is not None:
            return self._session.resume_stream(self._failed_state)
        return self._session.stream(self._text, caller=CALLER)

    async def run(self, show: Callable[[Event], None]) -> RunResult:
        async with self._open_stream() as self._stream:
            async for event in self._stream:
                show(event)
            return await self._stream.result()

    async def rest(self, show: Callable[[Event], None]) -> None:
        if self._stream is not None:
            async for event in self._stream:
                show(event)

    async def result(self) -> RunResult:
        if self._stream is None:
            raise asyncio.CancelledError
        return await self._stream.result()


# `toolcrib serve`: the agent loop behind a page in the browser, on this machine.

_Store: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help=f"The database of conversations. Default: {DATABASE}, or with --durable "
        f"${STORE_OF_RUNS}, or {RUNS}.",
    ),
]
_Host: TypeAlias = Annotated[
    str,
    typer.Option(
        "--host", metavar="ADDRESS", help="The address to listen on. Default: this machine only."
    ),
]
_Port: TypeAlias = Annotated[
    int, typer.Option("--port", metavar="N", min=0, max=65535, help="The port; 0 takes a free one.")
]
_Open: TypeAlias = Annotated[bool, typer.Option("--open", help="Open the page in a browser.")]


def serve(  # noqa: PLR0913  the options of a command
    *,
    model: ModelOption = "local",
    tools: ToolsOption = None,
    database: DataOption = None,
    pick: CountOption = None,
    scorer: ScorerOption = None,
    rules: RulesOption = None,
    audit: RecordOption = None,
    key_file: KeyFileOption = None,
    durable: _Durable = False,
    store: _Store = None,
    host: _Host = "127.0.0.1",
    port: _Port = 8017,
    opens: _Open = False,
) -> int:
    """Chat in the browser: calls as they come, approvals with their exact arguments, stored
    conversations.

    The printed address contains a token: $TOOLCRIB_TOKEN, or a new one if that is not set.
    Everybody who has the address may ask. Ctrl-C ends the server, and runs under way are stored as
    cancelled. With --durable they go on when the same command runs again, however the server ended.
    """
    store_url = store_of_runs(store) if durable else store or DATABASE
    check_url(store_url)
    key = state_key(store_url) if durable else None
    token = os.environ.get(TOKEN) or secrets.token_urlsafe()
    options = pick_options(pick, scorer)
    chat = import_module("toolcrib.chat")  # needs the extra `chat`
    try:
        authenticate = chat.bearer(token)
    except ValueError as error:
        raise UnusableError(f"${TOKEN}: {error}") from None
    log, rule_store = log_to_write(audit, key_file), rules_in(rules)
    catalog = load_catalog(tools, database=database)
    sinks = () if log is None else (log,)
    runner = ToolRunner(catalog, rules=rule_store, sinks=sinks, on_exception=exception_hook())
    searches = options is not None and model.partition(":")[0] != "local"
    agent = Agent(client_of(model), runner, pick=options, search_tools=searches, state_key=key)
    runs = (
        import_module("toolcrib.durable").DurableAgents(store_url, {"chat": agent})
        if durable
        else None
    )
    try:
        with_open(chat.ThreadStore(store_url), lambda threads: threads.list(""))
    except SourceError as error:
        raise UnusableError(f"--store {without_password(store_url)}: {error}") from None
    listener = listener_at(host, port, option=f"--host {host} --port {port}", free_port="--port 0")
    app = chat.chat_app(agent, store=store_url, authenticate=authenticate, durable=runs)
    err.print(f"{who_answers(model)} Tools: {printable(', '.join(catalog.names))}.")
    address = f"http://{url_host(host)}:{listener.getsockname()[1]}/#token={quote(token, safe='')}"
    err.print(f"{address}\nCtrl-C ends.", soft_wrap=True, highlight=False)
    if opens:
        webbrowser.open(address)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(app, listener, agent, (log, rule_store), runs))
    return 0


async def _serve(
    app: Any, listener: socket.socket, agent: Agent, resources: Sequence[Closing | None], runs: Any
) -> None:
    """Serve until Ctrl-C. Then cancel what runs, store it, and close everything. Durable runs are
    not cancelled: calls under way get time to end, and the next server goes on with the runs."""
    async with contextlib.AsyncExitStack() as stack:
        if runs is not None:
            stack.callback(leave)
        stack.push_async_callback(close_all, *resources)
        stack.push_async_callback(agent.client.aclose)
        if runs is not None:
            await runs.__aenter__()
            stack.push_async_callback(stop_work, runs, _GRACE_SECONDS)
        stack.push_async_callback(app.state.chat.aclose)
        await serve_app(app, listener, lifespan="off")
