"""Each way in which a call can end, frozen: outcome, records and events, whatever shape the code has.

`frozen_calls.json` holds all of them, without what differs at each run. A change that means to change
one writes the file anew, and says in its commit what changed and why:

    python tests/runner/test_frozen_calls.py
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import pytest

from toolcrib import (
    ALL,
    Allow,
    Approve,
    CallContext,
    Caller,
    Catalog,
    Completed,
    Deny,
    Failed,
    Refuse,
    ToolCall,
    ToolError,
    ToolRunner,
    Waiting,
    capability,
    tool,
)
from toolcrib.audit import AuditLog
from toolcrib.errors import ApprovalError, ErrorCode
from toolcrib.hydration import Sanitizer, hydrate
from toolcrib.runner import CallScope
from toolcrib.testing import MemorySink
from toolcrib.tools import per_call
from toolcrib.values.context import RunTally
from toolcrib.values.decision import Answer, ApprovalRequest
from toolcrib.values.json import to_plain
from toolcrib.values.record import Origin, Outcome

FROZEN = Path(__file__).with_name("frozen_calls.json")
GRACE = Caller("grace", ("admin",))


@capability
class Db(Protocol):
    def rows(self) -> int: ...


class Rows:
    def __init__(self, *, closing: bool = True) -> None:
        self.closing = closing

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self.closing:
            raise ValueError("it does not close")

    def rows(self) -> int:
        return 3


@tool(visible=["text"])
async def note(text: str, times: int = 2) -> dict[str, Any]:
    """Write something down."""
    return {"text": text * times, "hidden": "h"}


@tool(visible=ALL, model_visible=["a"], idempotent=True)
def plain(a: int, ctx: CallContext) -> dict[str, int]:
    """Run in a thread, and say so."""
    ctx.progress({"at": a})
    return {"a": a, "b": a}


@tool(visible=["n"])
async def parts(most: int) -> AsyncIterator[dict[str, int]]:
    """Give parts."""
    for n in range(most):
        yield {"n": n, "secret": n}


@tool(visible=ALL, secret=["password"], untrusted_output=True)
async def login(name: str, password: str) -> str:
    """Log in."""
    await asyncio.sleep(0)
    return name


@tool(visible=ALL, safe=False, read_only=True)
async def wipe(what: str, hard: bool = False) -> str:
    """Wipe something."""
    return f"{what} {hard}"


@tool(visible=ALL, requires_approval=True)
async def pay(amount: int) -> int:
    """Pay."""
    return amount


@tool(visible=ALL, allowed_roles=["admin"], cost=2.5, exclusive=True)
async def reset() -> str:
    """Reset."""
    return "done"


@tool(visible=ALL, timeout=0.01)
async def slow() -> int:
    """Take too long."""
    await asyncio.Event().wait()
    return 1


@tool(visible=ALL)
async def fails(how: str) -> Any:
    """Fail."""
    if how == "told":
        raise ToolError("say this", retryable=True)
    if how == "cancelled":
        raise asyncio.CancelledError
    if how == "not json":
        return {"a": object()}
    raise ValueError(how)


@tool(visible=["a"])
async def shown_to_nobody() -> Any:
    """Give what nobody said whether it shows."""
    return [1]


@tool(visible=ALL)
async def wrong() -> int:
    """Give what the schema does not say."""
    return "text"  # type: ignore[return-value]


@tool(visible=ALL)
async def needs(db: Db) -> int:
    """Read rows."""
    return db.rows()


class Watch:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def approval_requested(self, request: ApprovalRequest) -> None:
        self.events.append({"asked": request})

    def progress(self, call_id: str, part: Any) -> None:
        self.events.append({"progress": [call_id, part]})

    def finished(self, outcome: Outcome) -> None:
        self.events.append({"finished": outcome})


class Counts:
    """A policy that lets nothing run in the end."""

    def __call__(self, *_: object) -> Allow:
        return Allow()

    def count(self, *_: object) -> Deny:
        return Deny("too many")

    def settle(self, *_: object) -> None: ...


def answers(answer: Answer | BaseException | None) -> Callable[[Any], Awaitable[Any]]:
    async def approver(_request: ApprovalRequest) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return approver


class Ended(NamedTuple):
    """Calls, one after the other, and the runner that they go to."""

    calls: tuple[ToolCall, ...]
    options: dict[str, Any] = {}  # noqa: RUF012
    caller: Caller = Caller("ada")
    repairs: bool = False
    db: object = None


def call(name: str, arguments: str = "{}", call_id: str = "call_0", **more: Any) -> ToolCall:
    return ToolCall(call_id, name, arguments, provider_id="p_1", **more)


PAY = call("pay", '{"amount": 5}')
ENDINGS: dict[str, Ended] = {
    "completed": Ended((call("note", '{"text": "a"}'),)),
    "completed in a thread": Ended((call("plain", '{"a": 1}'),)),
    "completed in parts": Ended((call("parts", '{"most": 3}'),)),
    "completed with secrets, and tainted": Ended(
        (
            call("login", '{"name": "a", "password": "canary"}'),
            call("note", '{"text": "a"}', "call_1"),
        ),
        {"approver": answers(Approve("ann"))},
    ),
    "completed for a role": Ended((call("reset"),), caller=GRACE),
    "denied for want of a role": Ended((call("reset"),)),
    "denied by a policy": Ended(
        (call("note", '{"text": "a"}'),),
        {"policy": lambda _h, _c: Deny("no", code=ErrorCode.BUDGET_EXCEEDED)},
    ),
    "denied when counted": Ended((call("note", '{"text": "a"}'),), {"policy": Counts()}),
    "approval required": Ended((PAY,)),
    "waiting, asked twice": Ended((PAY, PAY), {"approver": answers(None)}),
    "approved": Ended((PAY,), {"approver": answers(Approve("ann"))}),
    "approved for the run": Ended(
        (PAY, call("pay", '{"amount": 6}', "call_1")),
        {"approver": answers(Approve("ann", for_run=True))},
    ),
    "approved for the run, exactly": Ended(
        (PAY, call("pay", '{"amount": 5}', "call_1"), call("pay", '{"amount": 6}', "call_2")),
        {"approver": answers(Approve("ann", for_run="exactly"))},
    ),
    "approved with other arguments": Ended(
        (PAY,), {"approver": answers(Approve("ann", {"amount": 7}))}
    ),
    "approved with wrong arguments": Ended(
        (PAY,), {"approver": answers(Approve("ann", {"amount": "a"}))}
    ),
    "approved with a default": Ended(
        (call("wipe", '{"what": "a"}'),), {"approver": answers(Approve("ann"))}
    ),
    "refused": Ended((PAY,), {"approver": answers(Refuse("too much", "ann"))}),
    "approver fails": Ended((PAY,), {"approver": answers(ValueError("x"))}),
    "approval is another call's": Ended(
        (PAY,), {"approver": answers(ApprovalError("x", ErrorCode.OTHER_CALL))}
    ),
    "timeout": Ended((call("slow"),)),
    "tool error": Ended((call("fails", '{"how": "raises"}'),)),
    "tool error that says why": Ended((call("fails", '{"how": "told"}'),)),
    "tool raises CancelledError": Ended((call("fails", '{"how": "cancelled"}'),)),
    "result is not JSON": Ended((call("fails", '{"how": "not json"}'),)),
    "result is not valid": Ended((call("wrong"),)),
    "redaction missing": Ended((call("shown_to_nobody"),)),
    "capability": Ended((call("needs"),), db=Rows()),
    "capability of the call": Ended((call("needs"),), db=per_call(Rows)),
    "capability cannot be made": Ended((call("needs"),), db=per_call(lambda: 1)),
    "capability cannot be closed": Ended(
        (call("needs"),), db=per_call(lambda: Rows(closing=False))
    ),
    "unknown tool": Ended((call("Not a name!"),)),
    "not JSON": Ended((call("note", '{"text": "a"'),)),
    "repaired": Ended(
        (call("wipe", "{'what': \"a\"}"),), {"approver": answers(Approve("ann"))}, repairs=True
    ),
    "read with a liberty": Ended((call("note", "{'text': 'a'}"),)),
    "not valid": Ended((call("note", '{"text": 1, "x": 2}'),)),
    "cut off": Ended((call("note", '{"text": "a"}', complete=False),)),
    "doubtful": Ended((call("note", '{"text": "a"}', notes=("written_in_text",)),)),
    "the same call again": Ended((call("note", '{"text": "a"}'), call("note", '{"text": "a"}'))),
    "the same failure again": Ended((call("fails", '{"how": "x"}'), call("fails", '{"how": "x"}'))),
    "another call of the same id": Ended(
        (call("note", '{"text": "a"}'), call("plain", '{"a": 1}'))
    ),
}


class Intents(MemorySink):
    write_ahead = True


KINDS = ("memory", "intents", "log")


async def calls_of(ended: Ended, kind: str) -> dict[str, Any]:
    catalog = Catalog(
        [note, plain, parts, login, wipe, pay, reset, slow, fails, shown_to_nobody, wrong]
    )
    if ended.db is not None:
        catalog = catalog.with_tools(Catalog([needs]).bind({Db: ended.db}))
    watch = Watch()
    tally = RunTally("run_1", "nonce")
    scope = CallScope(tally, observer=watch, origin=Origin(agent="agent", turn=1))
    options = dict(ended.options)
    if ended.repairs:
        options["repairer"] = Sanitizer()
    async with AuditLog("sqlite://") as log:
        memory = Intents() if kind == "intents" else MemorySink()
        sinks: list[Any] = [memory, log] if kind == "log" else [memory]
        runner = ToolRunner(catalog, sinks=sinks, **options)
        outcomes = [await runner.exec(one, caller=ended.caller, scope=scope) for one in ended.calls]
        entries = [entry.record for entry in await log.entries()]
        shown = {
            "outcomes": [views(outcome) for outcome in outcomes],
            "events": [
                [next(iter(event)), views(value)]
                for event in watch.events
                for value in event.values()
            ],
            "records": memory.records,
            "attached": sorted(f"{a.kind} {a.name}" for a in memory.attachments),
            "entries": entries,
            "tally": tally,
        }
        return builtins(shown)


def views(value: Any) -> Any:
    """An outcome as whoever has it sees it, without its record, which stands elsewhere."""
    match value:
        case Completed():
            shown = [value.value, value.model, value.public, value.notice, value.replayed]
            return ["Completed", *shown]
        case Failed():
            return ["Failed", value.error, value.notice, value.replayed]
        case Waiting():
            return ["Waiting", value.request]
        case _:
            return value


CHANGING = {
    "started_at", "ended_at", "seconds", "asked_at", "expires_at", "compiled_at", "version",
    "arguments_mac", "started",
}  # fmt: skip


def builtins(shown: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = settled(to_plain(shown))
    return found


def settled(value: Any) -> Any:
    """The same without times, versions and keys of this process."""
    if isinstance(value, dict):
        made = {name: settled(part) for name, part in value.items()}
        for name in CHANGING & made.keys():
            if made[name]:
                made[name] = "…"
        if "seconds_per_tool" in made:
            made["seconds_per_tool"] = sorted(made["seconds_per_tool"])
        return made
    return list(map(settled, value)) if isinstance(value, list | tuple) else value


async def others() -> dict[str, Any]:
    """Calls that are planned, refused, cancelled, called by a tool, or hydrated elsewhere."""
    shown: dict[str, Any] = {}
    catalog = Catalog([note, login])
    sink = MemorySink()
    runner = ToolRunner(catalog, sinks=[sink])
    both = [hydrate(call(n, '{"text": "a"}'), catalog) for n in ("note", "login")]
    await runner.record_plan(both, caller=GRACE)
    shown["planned"] = sink.records
    sink = MemorySink()
    runner = ToolRunner(catalog, sinks=[sink])
    await runner.refuse_all(both, caller=GRACE, scope=CallScope(RunTally("r")))
    shown["refused"] = sink.records

    inside = MemorySink()

    @tool(visible=ALL)
    async def outer() -> int:
        """Call another tool."""
        await runner.exec(call("note", '{"text": "a"}', "call_1"), scope=CallScope(RunTally("in")))
        return 1

    runner = ToolRunner([note, outer], sinks=[inside])
    await runner.exec(call("outer"), scope=CallScope(RunTally("out")))
    shown["called by a tool"] = inside.records
    sink = MemorySink()
    runner = ToolRunner([note.definition], sinks=[sink])
    await runner.exec(call("note", '{"text": "a"}'))
    shown["without code"] = sink.records
    begun = asyncio.Event()

    @tool(visible=ALL)
    async def waits() -> int:
        """Wait."""
        begun.set()
        await asyncio.Event().wait()
        return 1

    sink = Intents()
    runner = ToolRunner([waits], sinks=[sink])
    running = asyncio.ensure_future(runner.exec(call("waits")))
    await begun.wait()
    running.cancel()
    await asyncio.wait([running])
    shown["cancelled"] = sink.records
    return builtins(shown)


async def all_of(kind: str) -> dict[str, Any]:
    return {name: await calls_of(ended, kind) for name, ended in ENDINGS.items()}


def lines(found: dict[str, Any], name: str) -> Iterator[str]:
    for ending, shown in found.items():
        for part, value in shown.items() if isinstance(shown, dict) else [("", shown)]:
            values = value if isinstance(value, list) else [value]
            yield from (
                f"{name} | {ending} | {part} | {json.dumps(v, sort_keys=True)}" for v in values
            )


async def everything() -> list[str]:
    found = [line for kind in KINDS for line in lines(await all_of(kind), kind)]
    return [
        re.sub(r"0x[0-9a-f]+", "0x", line) for line in [*found, *lines(await others(), "others")]
    ]


async def test_each_ending_gives_the_outcome_records_and_events_that_it_gave(
    caplog: pytest.LogCaptureFixture,
) -> None:
    frozen = json.loads(FROZEN.read_text(encoding="utf-8"))
    with caplog.at_level("CRITICAL"):
        assert await everything() == frozen


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    text = json.dumps(asyncio.run(everything()), indent=0, ensure_ascii=False)
    FROZEN.write_text(text + "\n", encoding="utf-8")
