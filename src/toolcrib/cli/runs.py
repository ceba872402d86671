"""`toolcrib runs`: durable runs in a database, which are begun, answered and worked on here.

Only `start`, `fork` and `worker` need the agents. The other commands need neither agents nor tools.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, get_args

import typer

from toolcrib.agent import Agent
from toolcrib.agent.replay import ReplayedTurn, replayed
from toolcrib.cli.approvals import (
    ArgumentsOption,
    ByOption,
    check_name,
    edited_arguments,
    show_request,
)
from toolcrib.cli.listening import ended_by_signals, leave, stop_work
from toolcrib.cli.options import (
    RUNS,
    STORE_OF_RUNS,
    JsonOption,
    UnusableError,
    check_holds,
    check_url,
    extend_import_path,
    named_in_errors,
    one_of,
    stdout_on_stderr,
    with_open,
)
from toolcrib.cli.render import (
    call_line,
    err,
    one_line,
    out,
    print_json,
    print_rows,
    printable,
    spoken,
    when,
)
from toolcrib.errors import SourceError
from toolcrib.tools.sources import module_at
from toolcrib.values.decision import Answer, Approve, Caller, Refuse
from toolcrib.values.json import to_plain
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.run import Repeat, RunState

if TYPE_CHECKING:
    from toolcrib.durable import DurableAgents, StoredRun

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True, help="Runs that are kept in a database and survive their process."
)

StoreOption: TypeAlias = Annotated[
    str,
    typer.Option("--store", metavar="URL", envvar=STORE_OF_RUNS, help="The database of the runs."),
]
AgentsOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--agents",
        metavar="WHERE",
        help="MODULE:NAME or FILE.py:NAME, a dict of agents by name. Default NAME: `agents`.",
    ),
]
RunArgument: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
NewRunOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--run",
        metavar="ID",
        help="The id of the new run; a run with this id is started only once.",
    ),
]


@app.command("start")
def start(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")],
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to ask the agent.")],
    *,
    agents: AgentsOption,
    store: StoreOption = RUNS,
    caller: Annotated[
        str, typer.Option("--caller", metavar="ID", help="On behalf of this caller.")
    ] = "cli",
    run: NewRunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a run and print its id. A worker does the rest."""
    check_url(store)
    run_id = _with_agents(
        store,
        lambda durable: durable.start(agent, prompt, caller=Caller(caller), run_id=run),
        _agents(agents),
    )
    _print_run_id(run_id, as_json=as_json)


@app.command("fork")
def fork(  # noqa: PLR0913  one for each option
    run: RunArgument,
    *,
    agents: AgentsOption,
    turn: Annotated[
        int, typer.Option("--turn", metavar="N", help="The last turn to keep; 0 for none.")
    ],
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", help="What the user says next.")
    ] = None,
    reopen: Annotated[
        bool, typer.Option("--reopen", help="Decide again about the calls of that turn.")
    ] = False,
    repeat: Annotated[
        str,
        typer.Option(
            "--repeat",
            metavar="HOW",
            help="Whether to deny, ask about or allow calls that the original run made later.",
        ),
    ] = "deny",
    agent: Annotated[
        str, typer.Option("--agent", metavar="AGENT", help="Continue with this agent instead.")
    ] = "",
    store: StoreOption = RUNS,
    fork_id: NewRunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a run that goes on from an earlier turn of another one, and print its id."""
    check_url(store)
    repeat_choice = one_of(get_args(Repeat), repeat, "--repeat must be one of deny, ask, allow")
    fork_options: dict[str, Any] = {
        "turn": turn,
        "prompt": prompt,
        "reopen": reopen,
        "repeat": repeat_choice,
    }
    new_run_id = _with_agents(
        store,
        lambda durable: durable.fork(run, agent=agent, fork_id=fork_id, **fork_options),
        _agents(agents),
    )
    _print_run_id(new_run_id, as_json=as_json)


def _print_run_id(run_id: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"run": run_id})
    else:
        typer.echo(printable(run_id))


_LOOK_FOR_PARENT = 1.0  # seconds
_COLUMNS = dict.fromkeys(("run", "status", "agent", "caller", "since"), False) | {"why": True}


@app.command("list")
def list_runs(
    *,
    store: StoreOption = RUNS,
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="queued, running, waiting, completed, limited, failed …",
            autocompletion=lambda: list(import_module("toolcrib.durable").STATUSES),
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the runs, oldest first: id, status, agent, caller, since when, and why it ended."""
    statuses = import_module("toolcrib.durable").STATUSES
    status_filter = one_of(statuses, status, f"--status must be one of {', '.join(statuses)}")
    runs = _with_existing(store, lambda durable: durable.list(status_filter))
    if as_json:
        print_json([_run_summary(run) for run in runs])
        return
    if not runs and out.is_terminal:
        out.print("No runs match.")
        return
    table = ((r.id, r.status, r.agent, r.caller, when(r.updated_at), r.reason) for r in runs)
    rows = [[" ".join(printable(text).split()) for text in texts] for texts in table]
    print_rows(rows, _COLUMNS)


@app.command("show")
def show(run: RunArgument, *, store: StoreOption = RUNS, as_json: JsonOption = False) -> None:
    """Show a run: its status, its calls, those with an unknown outcome, its questions, its answer."""
    stored_run, unknown_calls = _with_existing(
        store, lambda durable: _run_with_unknown_calls(durable, run)
    )
    state = stored_run.last
    pending = state.pending if stored_run.status == "waiting" else ()
    if as_json:
        questions = {"pending": pending, "unknown": [call.id for call in unknown_calls]}
        details = {"calls": state.records, **questions, "text": stored_run.text}
        print_json({**_run_summary(stored_run), **to_plain(details)})
        return
    out.print(
        one_line(f"{stored_run.id}: {stored_run.status} {stored_run.reason}".rstrip()),
        style="bold",
    )
    for record in state.records:
        out.print(call_line(record))
    for record in unknown_calls:
        out.print(one_line(f"outcome unknown: {record.name}, call {record.id}"))
    for request in pending:
        show_request(request)
    if stored_run.text:
        out.print(printable(stored_run.text), highlight=False)


@app.command("replay")
def replay(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|STATE.json", help="The run's id, or a file with its saved state."
        ),
    ],
    *,
    store: StoreOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Show a recorded run turn by turn. No model is asked, and no tool is needed or run.

    The last saved state is shown, whoever signed it. A run under way has saved one when it last
    waited or stopped.
    """
    if run.endswith(".json"):
        state = _saved_state(Path(run))
    else:
        state = _with_existing(store, lambda durable: durable.show(run)).last
    turns = replayed(state)
    pending = state.pending
    if as_json:
        fork = None if state.fork is None else {"run": state.fork.run_id, "turn": state.fork.turn}
        summary = {"run": state.run_id, "caller": state.caller.id, "forked_from": fork}
        print_json({**summary, **to_plain({"turns": turns, "pending": pending})})
        return
    title = f"{state.run_id}, for {state.caller.id}"
    if state.fork is not None:
        title += f", forked from {state.fork.run_id} after turn {state.fork.turn}"
    out.print(one_line(title), style="bold")
    for turn in turns:
        _show_turn(turn)
    if not turns:
        prompt = next((m.content for m in reversed(state.messages) if m.by_user), "")
        out.print(f"user: {_indented(prompt)}\nnone of its turns is saved yet")
    for request in pending:
        show_request(request)


@app.command("answer")
def answer(
    question: Annotated[str, typer.Argument(metavar="ID", help="The full id of the question.")],
    *,
    yes: Annotated[bool, typer.Option("--yes/--no", help="Whether the call may run.")],
    store: StoreOption = RUNS,
    by: ByOption = None,
    arguments: ArgumentsOption = None,
    reason: Annotated[
        str,
        typer.Option(
            "--reason", metavar="TEXT", help="With --no: recorded, but not sent to the model."
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Answer a run's question, once and for good. The run goes on as soon as a worker is there."""
    if arguments is not None and not yes:
        raise UnusableError("--arguments needs --yes")
    edited = None if arguments is None else edited_arguments(arguments)
    name = check_name(by)
    given_answer: Answer = Approve(name, edited) if yes else Refuse(reason, name)
    run = _with_existing(store, lambda durable: durable.answer(question, given_answer))
    if as_json:
        print_json({"id": question, "run": run, "answer": "approve" if yes else "refuse"})
    else:
        out.print(printable(f"{'approved' if yes else 'refused'}: {run} continues"))


@app.command("cancel")
def cancel(run: RunArgument, *, store: StoreOption = RUNS) -> None:
    """Cancel a run, in whichever process it is. The outcome of a call that is interrupted is not
    known."""
    _with_existing(store, lambda durable: durable.cancel(run))
    out.print(printable(f"cancelled: {run}"))


@app.command("resume")
def resume(run: RunArgument, *, store: StoreOption = RUNS) -> None:
    """Resume a run that failed, was cancelled or reached a limit, from where it stopped."""
    _with_existing(store, lambda durable: durable.resume(run))
    out.print(printable(f"{run} continues"))


@app.command("resolve")
def resolve(
    call: Annotated[
        str, typer.Argument(metavar="CALL", help="The call's id, as `runs show` prints it.")
    ],
    *,
    happened: Annotated[
        bool, typer.Option("--happened/--did-not", help="Whether the call was done.")
    ],
    run: Annotated[str, typer.Option("--run", metavar="ID", help="The run that made the call.")],
    store: StoreOption = RUNS,
    by: ByOption = None,
    agents: Annotated[
        str | None,
        typer.Option("--agents", metavar="WHERE", help="Needed if their log is elsewhere."),
    ] = None,
) -> None:
    """Record in the log what a person knows about the outcome of a call that was interrupted."""
    agents_by_name = {} if agents is None else _agents(agents)
    name = check_name(by)
    _with_existing(
        store,
        lambda durable: durable.resolve(run, call, happened=happened, by=name),
        agents_by_name,
    )
    out.print(printable(f"{call}: it {'was' if happened else 'was not'} done, according to {name}"))


@app.command("worker")
def worker(
    *,
    agents: AgentsOption,
    store: StoreOption = RUNS,
    workers: Annotated[
        int, typer.Option("--workers", metavar="N", min=1, help="How many processes to start.")
    ] = 1,
    slots: Annotated[
        int,
        typer.Option(
            "--slots", metavar="N", min=1, help="How many runs a process works on at a time."
        ),
    ] = 8,
    grace: Annotated[
        float,
        typer.Option(
            "--grace", metavar="SECONDS", min=0, help="How long running calls may take to end."
        ),
    ] = 30.0,
    parent: Annotated[
        int, typer.Option("--parent", hidden=True, help="End when this process has ended.")
    ] = 0,
) -> int:
    """Work on the runs of a database until Ctrl-C or SIGTERM.

    After that no call begins, and calls under way may end within the grace period. Other workers go
    on with the runs. The next worker says that the outcome of an interrupted call is not known.
    """
    check_url(store)
    if workers > 1:
        options = ("--agents", agents, "--store", store, "--slots", str(slots))
        ends = ("--grace", str(grace), "--parent", str(os.getpid()))
        return _run_workers(workers, (*options, *ends))
    durable = import_module("toolcrib.durable").DurableAgents(store, _agents(agents), slots=slots)
    with named_in_errors(store):
        asyncio.run(_work_until_signal(durable, grace, parent))
    return 0


async def _work_until_signal(durable: DurableAgents, grace: float, parent: int) -> None:
    """Work until a signal comes and the calls under way have ended or were interrupted.

    The end of the process that started several workers, `parent`, is such a signal: nobody could
    end them any more. It is 0 for a worker that was started by itself.
    """
    stopped = asyncio.Event()
    await durable.__aenter__()
    with ended_by_signals(lambda _number: stopped.set()):
        err.print("Worker started. Ctrl-C ends it.")
        while not stopped.is_set() and parent in (0, os.getppid()):
            with suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), _LOOK_FOR_PARENT if parent else None)
        await stop_work(durable, grace)
        leave()


def _run_workers(count: int, options: tuple[str, ...]) -> int:
    """Start several worker processes, and end when they have ended."""
    command = [sys.executable, "-m", "toolcrib", "runs", "worker", *options]
    processes = [subprocess.Popen(command) for _ in range(count)]  # noqa: S603  this program itself

    def end(signal_number: int, _frame: object) -> None:
        for process in processes:
            process.send_signal(signal_number)

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, end)
    return max(process.wait() for process in processes)


def _saved_state(path: Path) -> RunState:
    """Return the state in a file. Raises UnusableError, or SourceError if it is no saved state."""
    try:
        return RunState.from_json(path.read_bytes())
    except OSError as error:
        raise UnusableError(f"{path}: {error.strerror}") from None
    except SourceError as error:
        raise SourceError(f"{path}: {error}") from None


def _indented(text: str) -> str:
    """Indent the further lines of a text, so that none looks like a line of a call or a turn."""
    return spoken(text).replace("\n", "\n  ")


def _show_turn(turn: ReplayedTurn) -> None:
    """Show what was said before a turn, and what the turn did."""
    for prompt in turn.before:
        out.print(f"user: {_indented(prompt)}")
    duration = "" if turn.seconds is None else f" · {turn.seconds:.1f} s"
    usage = turn.usage
    tokens = "" if usage is None else f" · {usage.input_tokens}+{usage.output_tokens} tokens"
    out.print(f"turn {turn.turn}{duration}{tokens}", style="dim")
    if turn.text:
        out.print(f"  {_indented(turn.text)}")
    for record in turn.calls:
        out.print(call_line(record))
    for call in turn.unrecorded:
        out.print(f"… {one_line(call.name)}  {one_line(call.code)}")


async def _run_with_unknown_calls(
    durable: DurableAgents, run: str
) -> tuple[StoredRun, Sequence[ToolInvocationRecord]]:
    stored_run = await durable.show(run)
    is_active = stored_run.status in ("queued", "running")
    return stored_run, () if is_active else await durable.unknown_calls(run)


def _run_summary(run: StoredRun) -> dict[str, Any]:
    hidden_fields = ("began", "state", "cut", "answers", "text", "ended")
    return {name: getattr(run, name) for name in run.__struct_fields__ if name not in hidden_fields}


def _with_existing(
    url: str,
    work: Callable[[DurableAgents], Awaitable[T]],
    agents: Mapping[str, Agent] | None = None,
) -> T:
    check_holds("durable_runs", url, "it holds no runs", option="--store")
    return _with_agents(url, work, agents or {})


def _with_agents(
    url: str, work: Callable[[DurableAgents], Awaitable[T]], agents: Mapping[str, Agent]
) -> T:
    durable: DurableAgents = import_module("toolcrib.durable").DurableAgents(url, agents)
    with named_in_errors(url):
        return with_open(durable, work)


def _agents(where: str) -> dict[str, Agent]:
    """Return the agents that `--agents` names; a single one under its own name, or as `agent`."""
    source, colon, name = where.rpartition(":")
    if not colon:
        source, name = where, "agents"
    if source.endswith(".py") and not Path(source).is_file():
        raise UnusableError(f"--agents {source}: there is no such file")
    extend_import_path(source)
    try:
        with stdout_on_stderr():
            module = module_at(source)
    except SourceError as error:
        raise SourceError(f"--agents {error}") from error
    if not hasattr(module, name):
        raise UnusableError(f"--agents {where}: it has no '{name}': name a dict of agents by name")
    agents = getattr(module, name)
    if isinstance(agents, Agent):
        agents = {agents.name or "agent": agents}
    if not isinstance(agents, Mapping) or not all(
        isinstance(agent, Agent) for agent in agents.values()
    ):
        raise UnusableError(f"--agents {where}: '{name}' is not a dict of agents by name")
    return dict(agents)
