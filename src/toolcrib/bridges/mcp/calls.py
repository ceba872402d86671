"""One call of an MCP client, from its request to its result, and the runs of a server's clients.

Rule: a call is a task of its own. It ends by itself, or is cancelled once if its client gives it
up, and is recorded either way. If its tool has asked the client something, it goes on between two
requests until it is answered or out of time. If it ended with a question for an approval, it goes
on as a new call would begin: through the runner that serves now, for the caller with their current
rights.

A run is what one client does, one call after the other. Untrusted content that a run has read makes
its later calls ask. A run is not forgotten while one of its calls goes on, including a task and a
call whose tool waits for an answer, but not a call that ended with a question for approval, because
nobody knows whether it comes again. Without sessions, the run is its caller's, and ends after `IDLE`
seconds in which no call went on and none was asked for.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any, NoReturn, TypeAlias, TypeGuard, assert_never

import anyio
import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolcrib.agent.history import content_of
from toolcrib.bridges.mcp.content import refused, result_of
from toolcrib.bridges.mcp.elicitation import (
    CALLING,
    Asked,
    ClientApprover,
    ClientQuestions,
    McpClient,
)
from toolcrib.bridges.mcp.faults import CLOSED
from toolcrib.doors import MayApprove
from toolcrib.errors import ApprovalError, ErrorCode
from toolcrib.failures import SafeLogger, log_raised
from toolcrib.hydration import hydrate
from toolcrib.runner import ToolRunner
from toolcrib.values.call import ToolCall
from toolcrib.values.context import CallScope, RunTally
from toolcrib.values.decision import ApprovalRequest, Caller
from toolcrib.values.json import JsonObject, JsonValue, is_finite
from toolcrib.values.record import PART_WAITED, CallError, Completed, Failed, Outcome, Waiting

IDLE = 1_800.0  # seconds
MOST_RUNS = 10_000
LOGGER = SafeLogger("toolcrib.mcp")
_MOST_PROGRESS = 100
_LONGEST_MESSAGE = 1_000
_NOT_RECORDED = "The outcome of the call could not be recorded."
_MISSING = "The tool needs a client capability that this client has not declared."
_BROKEN_OFF = (ErrorCode.CANCELLED, ErrorCode.OUTCOME_UNKNOWN)
GONE = "This call is no longer waiting for an answer."

_Context: TypeAlias = ServerRequestContext[Any, Any]
Result: TypeAlias = types.CallToolResult | types.InputRequiredResult


class OneCall:
    """A call under way: its task, who is asked about it, and where its progress goes."""

    def __init__(
        self,
        runner: ToolRunner,
        context: _Context,
        params: types.CallToolRequestParams,
        may_approve: MayApprove | None,
        *,
        caller: Caller,
        tally: RunTally,
        asked: Asked | None,
    ) -> None:
        """Begin a call. If it ended with questions before (`asked`), it is the same call again,
        with the answers. Raises MCPError if it has begun already for another caller."""
        call_id, pinned = f"call_{secrets.token_hex(8)}", JsonObject()
        if asked is not None:
            if asked.suspended is not None and asked.request.caller != caller.id:
                raise MCPError(INVALID_PARAMS, GONE)
            run_id, call_id = asked.call
            tally = tally if run_id == tally.run_id else asked.tally
            pinned = asked.pinned
        # the runner refuses and records arguments that are not JSON (NaN)
        text = json.dumps(params.arguments or {}, ensure_ascii=False)
        self.call = ToolCall(call_id, params.name, text)
        self.caller, self.tally = caller, tally
        self.questions = ClientQuestions(context)
        self._client = McpClient(self.questions)
        self._runner, self._params = runner, params
        self._progress = Progress(context.session)
        self._approver = ClientApprover(
            context,
            caller,
            tally=tally,
            call_id=call_id,
            may_approve=may_approve,
            other_approver=runner.approver,
            pinned=pinned,
        )
        self._ending = False
        self._scope = CallScope(tally, observer=self._progress, approver=self._approver)
        if asked is not None:
            answers = self._approver.answers(asked, params.input_responses)
            self._scope = asked.scope(self._scope, answers)
        scope = msgspec.structs.replace(self._scope, begins=self._begin)
        self.task = asyncio.ensure_future(runner.exec(self.call, caller=caller, scope=scope))

    def _begin(self) -> None:
        """Register the client for the tool, which begins. Of several requests that make the same
        call, one does."""
        CALLING[self.call.id] = self._client

    def take(self, context: _Context, responses: types.InputResponses | None) -> None:
        """Continue with another request and its answers."""
        self._progress.session = context.session
        self.questions.take(context, responses)

    async def ended(self, seconds: float | None = None) -> bool:
        """Wait until the call has ended, its tool has asked something, or the time is over. Return
        whether it has ended.

        If the waiting task is cancelled, the call is cancelled once and waited for. It has
        something to record, and a cancelled scope of anyio would interrupt each of its `await`s.
        """
        try:
            await asyncio.wait(
                (self.task, self.questions.asked),
                timeout=seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if self.task.done():
                await self._progress.told()
        except asyncio.CancelledError:
            self.task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait((self.task,))
            if not self.task.cancelled():
                self.task.exception()  # otherwise asyncio logs it as never retrieved
            raise
        finally:
            if self.task.done():
                self._progress.stop()
        return self.task.done()

    def end(self) -> None:
        """Cancel the call, since the server ends."""
        self._ending = True
        self.task.cancel()

    def give_up(self) -> None:
        """Cancel the call, which nobody waits for any more, even if it waits for an approval."""
        waiting, questions = self._waiting(), self.asked()
        if waiting is None or questions is None:
            self.task.cancel()
        else:
            self.task = asyncio.ensure_future(self._record_withdrawal(waiting, questions))

    async def _record_withdrawal(self, waiting: Waiting, questions: Asked) -> NoReturn:
        """Record that a call which ended with questions does not go on."""
        call = hydrate(self.call, self._runner.catalog, pinned=questions.pinned or None)
        await self._runner.refuse_all(
            [call],
            caller=self.caller,
            scope=questions.scope(self._scope, {}),
            code=ErrorCode.CANCELLED,
            began=waiting.record,
        )
        raise asyncio.CancelledError

    @property
    def unknown(self) -> Failed | None:
        """The outcome of a call that was cancelled while its tool went on, so that its end is not
        known."""
        outcome = self._progress.outcome
        if not self.task.cancelled() or not isinstance(outcome, Failed):
            return None
        return outcome if outcome.error.code is ErrorCode.OUTCOME_UNKNOWN else None

    def asked(self) -> Asked | None:
        """Return what the client's user is to approve, if the call has ended with such a question."""
        waiting = self._waiting()
        return None if waiting is None else self._approver.asked(waiting)

    def _waiting(self) -> Waiting | None:
        if not self.task.done() or self.task.cancelled() or self.task.exception() is not None:
            return None
        outcome = self.task.result()
        return outcome if isinstance(outcome, Waiting) else None

    def open(self) -> types.InputRequests:
        """Return the questions that wait for the client's user. The keys of approvals are their own
        ids, since a task may ask for further ones later."""
        questions = self.asked()
        if questions is None:
            return self.questions.open
        return {
            request.id: self._approver.question(request) for request in questions.requests.values()
        }

    def answered(
        self,
        runner: ToolRunner,
        context: _Context,
        responses: types.InputResponses,
        *,
        caller: Caller,
    ) -> OneCall:
        """Give the call the answers to what is `open`. Return the call that goes on: this one, or a
        new one of `runner` if this one has ended with questions for approvals. Raises MCPError."""
        questions = self.asked()
        if questions is None:
            self.take(context, responses)
            return self
        answers = {k: responses[e.id] for k, e in questions.requests.items() if e.id in responses}
        if not answers:
            return self
        params = self._params.model_copy(update={"input_responses": answers})
        may_approve, tally = self._approver.may_approve, self.tally
        return OneCall(
            runner, context, params, may_approve, caller=caller, tally=tally, asked=questions
        )

    def final(self) -> types.CallToolResult:
        """Return the result of a call that no request waits for. Raises MCPError."""
        result = self.result()
        if isinstance(result, types.InputRequiredResult):  # it needs an approval after all
            return refused(self.call, CallError.of(ErrorCode.APPROVAL_REQUIRED))
        return result

    def result(self) -> Result:
        """Return the result of the request. Raises MCPError."""
        try:
            was_interrupted = self._ending and self.task.cancelled()  # it is recorded nevertheless
            recorded = self._progress.outcome if was_interrupted else None
            outcome = recorded or self.unknown or self.task.result()
        except asyncio.CancelledError:
            raise MCPError(INVALID_PARAMS, GONE) from None
        except Exception as raised:  # noqa: BLE001  sinks may raise anything
            log_raised("a sink of the MCP server", raised)
            raise MCPError(INTERNAL_ERROR, _NOT_RECORDED) from None
        match outcome:
            case Waiting():
                return self._questions_result(outcome)
            case Failed(error=error) if self._ending and error.code in _BROKEN_OFF:
                # the SDK's own words, which tell a client to connect to the server again
                raise MCPError(CONNECTION_CLOSED, CLOSED, msgspec.to_builtins(error))
            case Failed(error=error) if error.code is ErrorCode.UNKNOWN_TOOL:
                raise MCPError(INVALID_PARAMS, error.message)
            case Failed() if self.questions.missing is not None and self._client.modern:
                data = types.MissingRequiredClientCapabilityErrorData(
                    required_capabilities=self.questions.missing
                )
                error_data = data.model_dump(mode="json", by_alias=True, exclude_none=True)
                raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, _MISSING, error_data)
            case Failed(error=error) if error.code is ErrorCode.APPROVAL_REQUIRED:
                reason = outcome.model_text or self._approver.why_not
                return result_of(
                    self.call, msgspec.structs.replace(outcome, model_text=reason), None
                )
            case Completed() | Failed():
                entry = self._runner.catalog.by_name.get(self.call.name)
                definition = None if entry is None else entry.tool.definition
                return result_of(self.call, outcome, definition)
            case _:
                assert_never(outcome)

    def _questions_result(self, waiting: Waiting) -> Result:
        """Return the questions that a call ended with, or an error if its client was asked none."""
        questions = self._approver.asked(waiting)
        try:
            if questions is not None:
                return self._approver.required(questions)
        except ApprovalError as error:
            message = f"{error} {PART_WAITED}" if waiting.suspended is not None else str(error)
            return refused(self.call, CallError.of(error.code, message))
        is_expired = waiting.request.expired()  # nobody answered in time
        code = ErrorCode.APPROVAL_EXPIRED if is_expired else ErrorCode.APPROVAL_REQUIRED
        return refused(self.call, CallError.of(code))


class Progress:
    """Passes on to a client what its call reports while it runs. A client that reads too slowly
    does not get everything.

    MCP has a number that grows, an optional total, and a text. A tool may give these itself
    (`{"progress": 2, "total": 5, "message": "…"}`). Any other part is counted, and becomes the
    text.
    """

    def __init__(self, session: ServerSession) -> None:
        self.session = session
        self._parts: asyncio.Queue[JsonValue] = asyncio.Queue(_MOST_PROGRESS)
        self._last_progress = -inf
        self._sender: asyncio.Task[None] | None = None
        self.outcome: Outcome | None = None  # in its recorded form

    def progress(self, _call_id: str, part: JsonValue) -> None:
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_parts())
        with suppress(asyncio.QueueFull):
            self._parts.put_nowait(part)

    def approval_requested(self, request: ApprovalRequest) -> None: ...

    def finished(self, outcome: Outcome) -> None:
        self.outcome = outcome

    async def told(self) -> None:
        """Wait until everything was sent to the client."""
        if self._sender is not None:
            await self._parts.join()

    def stop(self) -> None:
        if self._sender is not None:
            self._sender.cancel()

    async def _send_parts(self) -> None:
        while True:
            part = await self._parts.get()
            try:
                await self._send(part)
            except Exception as raised:  # noqa: BLE001  the result is still to come
                LOGGER.debug(
                    "a client did not accept a progress message (%s)", type(raised).__name__
                )
            finally:
                self._parts.task_done()

    async def _send(self, part: JsonValue) -> None:
        members = part if isinstance(part, dict) else {}
        progress = members.get("progress")
        total = members.get("total")
        message = members.get("message")
        if not _is_number(progress):
            progress, total, message = max(self._last_progress, 0) + 1, None, content_of(part)
        if progress <= self._last_progress:
            return  # the protocol requires growing numbers
        self._last_progress = float(progress)
        await self.session.report_progress(
            self._last_progress,
            float(total) if _is_number(total) else None,
            message[:_LONGEST_MESSAGE] if isinstance(message, str) else None,
        )


def _is_number(value: object) -> TypeGuard[int | float]:
    """Return whether MCP can send the number, which excludes infinities and numbers beyond a float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and is_finite(value)


class ClientRun:
    """One run, whose calls share a tally. `used` is when it was last used. `session` is told when
    the list of tools has changed."""

    def __init__(self) -> None:
        self.used = monotonic()
        self.tally = RunTally(f"mcp_{secrets.token_hex(8)}", secrets.token_hex(16), self.used)
        self.session: ServerSession | None = None
        self._calls: set[asyncio.Future[Any]] = set()

    @property
    def goes_on(self) -> bool:
        return bool(self._calls)

    @property
    def is_over(self) -> bool:
        return not self._calls and monotonic() - self.used > IDLE

    def hold(self, call: asyncio.Future[Any]) -> None:
        """Keep the run while a call goes on."""
        self._calls.add(call)
        call.add_done_callback(self._ended)

    def hear(self, tally: RunTally) -> None:
        """Count what a call has read whose client is told about it now. The call may have begun in
        a run that is over, in another connection, or in another process."""
        self.tally.tainted = self.tally.tainted or tally.tainted

    def _ended(self, call: asyncio.Future[Any]) -> None:
        self._calls.discard(call)
        self.used = monotonic()


class ClientRuns:
    """Holds the runs of one connection, or of all HTTP clients."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], ClientRun] = {}

    def of(self, context: _Context, caller: Caller) -> ClientRun:
        """Return the run that a request belongs to, by its session and its caller."""
        modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        headers = getattr(context.request, "headers", {})
        key = ("" if modern else headers.get("mcp-session-id", ""), caller.id)
        run = self._runs.get(key)
        if run is None or (modern and context.request is not None and run.is_over):
            run = self._runs[key] = ClientRun()
        run.used = monotonic()
        if not modern:
            run.session = context.session
        if len(self._runs) > MOST_RUNS:
            self._forget_one(run)
        return run

    def sessions(self) -> list[ServerSession]:
        return [run.session for run in self._runs.values() if run.session is not None]

    def _forget_one(self, new: ClientRun) -> None:
        """Forget the run that was used longest ago, among those in which no call goes on."""
        idle = {k: run.used for k, run in self._runs.items() if not run.goes_on and run is not new}
        if idle:
            del self._runs[min(idle, key=idle.__getitem__)]
