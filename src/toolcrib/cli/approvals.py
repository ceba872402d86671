"""`toolcrib approvals`: the approval requests that runs have stored in a database, and their
answers.

It needs neither the agent nor its tools. Rule: an answer names each request by its full id. No
command approves everything that happens to be waiting.
"""

from __future__ import annotations

import getpass
import re
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeAlias, TypeVar

import msgspec
import typer

from toolcrib.approvals import ApprovalStore, KeptRule, shown_arguments, shown_request, shown_rule
from toolcrib.cli.options import (
    DATABASE,
    JsonOption,
    UnusableError,
    check_holds,
    state_key,
    with_open,
)
from toolcrib.cli.render import out, print_json, printable, when
from toolcrib.errors import ApprovalError, SourceError
from toolcrib.hydration import ParseFailure, parse_arguments
from toolcrib.runner.output import MASK
from toolcrib.urls import without_password
from toolcrib.values.decision import Always, Answer, ApprovalRequest, Approve, ForRun, Refuse
from toolcrib.values.json import ROUNDED, JsonObject, to_plain

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True, help="Answer the approval requests that runs are waiting for."
)

IdsArgument: TypeAlias = Annotated[
    list[str],
    typer.Argument(metavar="ID", help="The request ids. Either all of them are answered or none."),
]
StoreOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--store",
        metavar="URL",
        help="The database, as an SQLAlchemy URL. (Durable runs: toolcrib runs answer.)",
    ),
]
ByOption: TypeAlias = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Who answers. Default: your login name.")
]
ArgumentsOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--arguments", metavar="JSON", help="Run it with these arguments instead."),
]
_SPAN_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@app.command("list")
def list_pending(
    *,
    store: StoreOption = DATABASE,
    run: Annotated[
        str | None, typer.Option("--run", metavar="ID", help="Only requests of this run.")
    ] = None,
    caller: Annotated[
        str | None, typer.Option("--caller", metavar="ID", help="Only requests of this caller.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the requests that wait for an answer, those that lapse first at the top.

    In a file or a pipe each request is one line with columns separated by tabs: id, tool,
    arguments, reason, caller, how long ago it was asked, how long until it lapses. Long values are
    shortened and marked as shortened; --json has them in full.
    """
    requests = _with_store(store, lambda approvals: approvals.pending(run_id=run, caller=caller))
    if as_json:
        print_json(to_plain(requests))
        return
    for request in requests:
        if out.is_terminal:
            show_request(request)
        else:
            typer.echo("\t".join(_columns(request)))
    if not requests and out.is_terminal:
        out.print("No requests are waiting for an answer.")


@app.command("approve")
def approve(  # noqa: PLR0913  one for each option
    ids: IdsArgument,
    *,
    store: StoreOption = DATABASE,
    by: ByOption = None,
    arguments: ArgumentsOption = None,
    for_run: Annotated[
        bool, typer.Option("--for-run", help="Do not ask about this tool again in this run.")
    ] = False,
    for_run_exactly: Annotated[
        bool,
        typer.Option(
            "--for-run-exactly",
            help="Do not ask about this tool with exactly these arguments again in this run.",
        ),
    ] = False,
    always: Annotated[
        bool,
        typer.Option(
            "--always", help="Do not ask about calls like this one of this caller any more."
        ),
    ] = False,
    opened: Annotated[
        list[str] | None,
        typer.Option(
            "--open", metavar="ARGUMENT", help="With --always: let this argument have any value."
        ),
    ] = None,
    lasts: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="SPAN",
            help="With --always: how long the rule holds, such as 12h or 30d.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --always: do not ask to confirm the rule.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Approve requests: each call may run once, with exactly the arguments that are shown."""
    if always:
        if arguments is not None or for_run or for_run_exactly or len(set(ids)) > 1:
            raise UnusableError(
                "--always takes one request and cannot be combined with --arguments, "
                "--for-run or --for-run-exactly"
            )
        rule = Always(tuple(opened or ()), None if lasts is None else seconds_of(lasts))
        _answer_always(
            ids[0], Approve(check_name(by), always=rule), store, is_confirmed=yes, as_json=as_json
        )
        return
    if opened or lasts is not None or yes:
        raise UnusableError("--open, --for and --yes need --always")
    if arguments is not None and len(set(ids)) > 1:
        raise UnusableError(
            "--arguments takes one request: approve the others in separate commands"
        )
    edited = None if arguments is None else edited_arguments(arguments)
    if for_run and for_run_exactly:
        raise UnusableError("--for-run already covers any arguments: leave out --for-run-exactly")
    for_rest: ForRun = "exactly" if for_run_exactly else for_run
    _answer(ids, Approve(check_name(by), edited, for_rest), store, as_json=as_json)


@app.command("refuse")
def refuse(
    ids: IdsArgument,
    *,
    store: StoreOption = DATABASE,
    by: ByOption = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Recorded, but not sent to the model.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Refuse requests for good. The model is told that its call was refused, but not why."""
    _answer(ids, Refuse(reason, check_name(by)), store, as_json=as_json)


rules = typer.Typer(no_args_is_help=True, help="Rules: answers that were given for always.")
app.add_typer(rules, name="rules")


@rules.command("list")
def list_rules(*, store: StoreOption = DATABASE, as_json: JsonOption = False) -> None:
    """List the rules, oldest first, each with its pattern. Rules that were changed after they were
    signed are listed, too.

    In a file or a pipe each rule is one line with columns separated by tabs: id, pattern, who gave
    it, when, until when it is valid.
    """
    stored_rules = _with_store(store, lambda approvals: approvals.rules(), has_rule_key=True)
    if as_json:
        print_json(to_plain(stored_rules))
        return
    for stored_rule in stored_rules:
        columns = _rule_columns(stored_rule)
        if out.is_terminal:
            name, pattern, by, given_at, until = columns
            out.print(f"{name}  given by {by} at {given_at}, until {until}", style="dim")
            out.print(f"  {pattern}", style="bold")
        else:
            typer.echo("\t".join(columns))
    if not stored_rules and out.is_terminal:
        out.print("There are no rules.")


@rules.command("revoke")
def revoke_rules(
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="The ids of the rules.")],
    *,
    store: StoreOption = DATABASE,
) -> None:
    """Revoke rules in all processes at once: calls that they approved ask again. Known rules are
    revoked even if another id is unknown."""

    async def work(approvals: ApprovalStore) -> None:
        unknown: list[ApprovalError] = []
        for rule_id in dict.fromkeys(ids):
            try:
                await approvals.revoke(rule_id)
            except ApprovalError as error:
                unknown.append(error)
            else:
                out.print(printable(f"revoked: {rule_id}"))
        if unknown:
            raise ApprovalError("; ".join(map(str, unknown)), unknown[0].code)

    _with_store(store, work)


def _rule_columns(stored_rule: KeptRule) -> tuple[str, ...]:
    rule = stored_rule.rule
    if rule is None:
        explanation = (
            "it was changed, or signed with a different key: it lets nothing run; revoke it"
        )
        return _cell(stored_rule.id), explanation, "?", "?", "?"
    until = "it is revoked" if rule.expires_at is None else when(rule.expires_at)
    lapsed_note = " (lapsed)" if rule.expired() else ""
    pattern = shown_rule(rule.title, rule.arguments, rule.open, rule.caller)
    return _cell(rule.id), pattern, _cell(rule.by), when(rule.given_at), until + lapsed_note


def seconds_of(span: str) -> float:
    """Return the seconds in a time span such as `90s`, `15min`, `12h` or `30d`. Raises
    UnusableError."""
    units = {unit: size for size, unit in _SPAN_UNITS}
    match = re.fullmatch(r"(\d{1,6})\s*([a-z]+)", span.strip())
    if match is None or match[2] not in units or not int(match[1]):
        raise UnusableError(f"--for {span!r}: give a time span such as 90s, 15min, 12h or 30d")
    return float(int(match[1]) * units[match[2]])


def _answer_always(
    request_id: str, answer: Approve, store: str, *, is_confirmed: bool, as_json: bool
) -> None:
    """Show a rule's pattern, ask at the terminal to confirm it unless `is_confirmed`, and give it."""
    pending = _with_store(store, lambda approvals: approvals.pending(), has_rule_key=True)
    request = next(
        (pending_request for pending_request in pending if pending_request.id == request_id), None
    )
    open_arguments = () if answer.always is None else answer.always.open
    if request is not None:
        pattern = shown_rule(request.title, request.arguments, open_arguments, request.caller)
        typer.echo(f"always: {pattern}", err=True)
        if not is_confirmed and not sys.stdin.isatty():
            raise UnusableError("there is no terminal to confirm this rule at: pass --yes")
        if not is_confirmed and not typer.confirm("Give this rule?", err=True):
            raise UnusableError("no rule was given, and the request is still unanswered")
    _answer([request_id], answer, store, as_json=as_json, has_rule_key=True)


def _answer(
    ids: list[str], answer: Answer, store: str, *, as_json: bool, has_rule_key: bool = False
) -> None:
    async def work(approvals: ApprovalStore) -> list[ApprovalRequest]:
        pending = await approvals.pending()
        await approvals.answer_all(dict.fromkeys(ids, answer))
        return [request for request in pending if request.id in ids]

    requests = _with_store(store, work, has_rule_key=has_rule_key)
    edited = answer.arguments if isinstance(answer, Approve) else None
    if edited is not None:
        edited = _mask_unseen(edited, requests)
        answer = msgspec.structs.replace(answer, arguments=edited)
    if as_json:
        print_json({"ids": list(dict.fromkeys(ids)), "answer": to_plain(answer)})
        return
    verb = "approved" if isinstance(answer, Approve) else "refused"
    if isinstance(answer, Approve) and answer.always is not None:
        verb = "approved, always"
    for request in requests:
        edit_note = "" if edited is None else f", to run with {shown_arguments(edited)}"
        out.print(printable(f"{verb}: {request.title} {shown_request(request)}{edit_note}"))


def _mask_unseen(edited: JsonObject, requests: list[ApprovalRequest]) -> JsonObject:
    """Mask the values of an edit that the request did not show, since they may be secret."""
    shown_names = {
        n for request in requests for n, value in request.arguments.items() if value != MASK
    }
    return {name: value if name in shown_names else MASK for name, value in edited.items()}


def _with_store(
    url: str, work: Callable[[ApprovalStore], Awaitable[T]], *, has_rule_key: bool = False
) -> T:
    """Return the result of `work` on the store, opened with the key of rules if `has_rule_key`."""
    check_holds("approvals", url, "it holds no approvals", option="--store")
    key = state_key(url, make=False) if has_rule_key else None  # a new key has signed nothing
    try:
        return with_open(ApprovalStore(url, state_key=key), work)
    except SourceError as error:
        raise SourceError(f"{without_password(url)}: {error}") from error


def check_name(by: str | None) -> str:
    if by is None:
        try:
            by = getpass.getuser()
        except (OSError, KeyError, ImportError):
            raise UnusableError("your login name cannot be found: give --by NAME") from None
    if not by.strip():
        raise UnusableError("--by is empty: give the name of who answers")
    return by


def edited_arguments(text: str) -> JsonObject:
    """Parse arguments strictly: mistakes that a model is forgiven are errors here."""
    parsed = parse_arguments(text)
    if isinstance(parsed, ParseFailure):
        raise UnusableError(f"--arguments: {parsed.message}")
    if parsed.notes:
        raise UnusableError("--arguments: give one JSON object, such as '{\"amount\": 5}'")
    if parsed.unrounded is not None:
        raise UnusableError(f"--arguments: {ROUNDED}")
    return parsed.value


def show_request(request: ApprovalRequest) -> None:
    request_id, tool, arguments, reason, caller, age, remaining = _columns(request)
    out.print(f"{request_id}  asked {age} ago, expires in {remaining}", style="dim")
    out.print(f"  {tool} {arguments}", style="bold")
    out.print(f"  for {caller}: {reason}")


def _columns(request: ApprovalRequest) -> tuple[str, ...]:
    now = time.time()
    return (
        _cell(request.id),
        _cell(request.title),
        shown_request(request),
        _cell(request.reason),
        _cell(request.caller),
        _span(now - request.asked_at) if request.asked_at else "?",
        _span(request.expires_at - now),
    )


def _cell(text: str) -> str:
    return " ".join(printable(text).split())


def _span(seconds: float) -> str:
    """Return a time span in the largest unit that fits, rounded down, such as `3 h`."""
    whole_seconds = max(0, int(seconds))
    size, unit = next((u for u in _SPAN_UNITS if whole_seconds >= u[0]), _SPAN_UNITS[-1])
    return f"{whole_seconds // size} {unit}"
