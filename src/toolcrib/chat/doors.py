"""The checks that every interface of the chat shares: who asks, from where, how often, how much.

Rule: a refusal has a status, a code and a text, and repeats nothing of what was sent.
`authenticate` says who asks; without it only this machine may ask. Every body is read as the type
that its route takes, before the handler is called: no route ignores what is sent.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, NamedTuple, TypeAlias

import jiter
import msgspec

from toolcrib.agent import RunStream
from toolcrib.agent.saved import edit_fault
from toolcrib.doors import (
    HERE,
    MayApprove,
    anything,
    host_in,
    is_from_here,
    says_yes,
    token_matcher,
    yes_of,
)
from toolcrib.errors import ApprovalError, ErrorCode, MissingExtraError, ToolcribError
from toolcrib.failures import log_raised
from toolcrib.runner import ToolRunner
from toolcrib.runner.approval import check_always
from toolcrib.values.decision import (
    Always,
    Answer,
    ApprovalRequest,
    Approve,
    Caller,
    ForRun,
    LimitedApprove,
)
from toolcrib.values.json import ROUNDED, JsonObject, encodable, is_seen, is_whole, read_unrounded
from toolcrib.values.run import Done, Event, RunError, RunState
from toolcrib.values.typed import HandWritten, check_each, check_type, names_wrong_types

try:
    from sse_starlette import EventSourceResponse, ServerSentEvent
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
    from starlette.types import Receive, Scope, Send
except ImportError:
    raise MissingExtraError("chat", "starlette") from None

Authenticate: TypeAlias = Callable[[Request], Caller | Awaitable[Caller | None] | None]
Handler: TypeAlias = Callable[[Request, Caller, Any], Awaitable[Response]]
_LOCAL_HOSTS = (*HERE, "testserver")
_MOST_CALLERS = 10_000  # whose request rates are remembered
_TYPE_ERRORS = ("Expected ", "Object missing required field ")  # they name nothing that was sent


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """A body without members, or no body."""


class GivenRule(msgspec.Struct, forbid_unknown_fields=True):
    """What an answer for always says: which arguments may have any value, and how long it holds.

    The server determines when it was given.
    """

    open: tuple[str, ...] = ()
    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None

    def always(self) -> Always:
        """Return the rule. Raises ChatError."""
        try:
            return Always(self.open, self.seconds)
        except ValueError as error:  # such as 1e999
            raise ChatError(422, "invalid_answer", str(error)) from None


class ChatError(ToolcribError):
    """A request that cannot be granted: an HTTP status, a code for programs, a text for people."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class ChatLimits(HandWritten, frozen=True):
    """Limits what a caller can ask for.

    These are bytes of a body, characters of a text, requests a minute, and streams and runs at
    once. `heartbeat` is the number of seconds that a stream may be silent.
    """

    body_bytes: int = 256 * 1024
    text: int = 32_000
    requests: int = 240
    streams: int = 20
    runs: int = 8
    heartbeat: float = 15.0


@names_wrong_types
def bearer(token: str, caller: str = "local") -> Authenticate:
    """Return an `authenticate` that maps `Authorization: Bearer TOKEN` to one caller.

    Raises ValueError for a token that is too short, or that no header can bring.
    """
    is_token = token_matcher(token)

    def authenticate(request: Request) -> Caller | None:
        scheme, _, sent_token = request.headers.get("authorization", "").partition(" ")
        return Caller(caller) if is_token(sent_token) and scheme.lower() == "bearer" else None

    return authenticate


class Doors:
    """Lets a request in, or says why not: who it is from, its origin, how many came before."""

    def __init__(
        self,
        authenticate: Authenticate | None,
        may_approve: MayApprove | None,
        origins: Sequence[str],
        limits: ChatLimits,
    ) -> None:
        self._authenticate = authenticate
        self._may_approve = may_approve or anything
        check_each("allowed_origins", origins, str, 'a list of str: ["https://…"]')
        self._origins = {origin.lower() for origin in origins}  # origins are case-insensitive
        self.limits = limits
        self._request_budgets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._runs: Counter[str] = Counter()

    def route(
        self,
        method: str,
        path: str,
        handler: Handler,
        body_type: type[msgspec.Struct] = Nothing,
        *,
        refused: Callable[[ChatError], Response] | None = None,
    ) -> Route:
        """Return the route of a handler, which is called with the caller and the decoded body.

        `refused` makes the response to a ChatError.
        """
        refused = refused or refusal

        async def endpoint(request: Request) -> Response:
            try:
                caller = await self.caller(request)
                return await handler(request, caller, await self._body(request, body_type))
            except ChatError as error:
                return refused(error)
            except ToolcribError as error:  # toolcrib's own, so its text is safe
                return refused(ChatError(503, "unavailable", str(error)))
            except ClientDisconnect:  # while it sent its body: nobody reads an answer
                return Response(status_code=400)

        return Route(path, endpoint, methods=[method], name=handler.__name__.strip("_"))

    def run(self, caller: Caller, start: Callable[[], RunStream]) -> RunStream:
        """Start one of the runs that a caller may have at once. Raises ChatError."""
        if self._runs[caller.id] >= self.limits.runs:
            raise too_many_runs()
        stream = start()
        self._runs[caller.id] += 1
        stream.when_ended(lambda _result: self._run_ended(caller.id))
        return stream

    def _run_ended(self, caller_id: str) -> None:
        self._runs[caller_id] -= 1
        if not self._runs[caller_id]:
            del self._runs[caller_id]

    def may_approve(self, caller: Caller, request: ApprovalRequest) -> bool:
        """Return whether a caller may answer. Anything but yes or no is a failure."""
        try:
            return says_yes(self._may_approve, caller, request)
        except (ToolcribError, HTTPException):
            raise
        except Exception as error:  # noqa: BLE001  the application's code
            raise _failed("may_approve", error) from None

    @property
    def limited(self) -> bool:
        """Whether callers may approve only some questions."""
        return self._may_approve is not anything

    def yes_of(
        self,
        caller: Caller,
        arguments: JsonObject | None,
        for_run: ForRun,
        always: GivenRule | None,
    ) -> Approve:
        """Return a caller's approval, which the runner limits to what they may approve.

        Raises ChatError.
        """
        rule = None if always is None else always.always()
        return yes_of(self._may_approve, caller, arguments, for_run, rule)

    def check_text(self, text: str) -> None:
        """Raise ChatError for a text that has no visible characters, or is too long."""
        if not is_seen(text):
            raise ChatError(422, "no_text", "a message needs text")
        if len(text) > self.limits.text:
            raise ChatError(
                413, "too_long", f"a text may have at most {self.limits.text:,} characters"
            )

    async def caller(self, request: Request) -> Caller:
        """Return the caller. Raises ChatError."""
        self._check_origin(request)
        caller = await self._authenticated_caller(request)
        if caller is None:
            raise ChatError(
                401, "unauthenticated", "sign in first: this request has no valid credentials"
            )
        self._check_rate(caller.id)
        return caller

    async def _body(self, request: Request, type_: type[msgspec.Struct]) -> Any:
        """Return the decoded JSON body of a request. Raises ChatError."""
        if request.method in ("GET", "HEAD"):  # a body has no meaning here, by RFC 9110
            return Nothing()
        received = bytearray()
        async for chunk in request.stream():
            received += chunk
            if len(received) > self.limits.body_bytes:
                message = f"a request may have at most {self.limits.body_bytes:,} bytes"
                raise ChatError(413, "too_large", message)
        if not received and type_ is Nothing:
            return Nothing()
        content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type != "application/json":
            raise ChatError(415, "not_json", "send JSON, with the content type application/json")
        try:
            body = jiter.from_json(bytes(received), allow_inf_nan=False, catch_duplicate_keys=True)
            if read_unrounded(bytes(received)) is not None:  # an edit may mean its digits
                raise ChatError(422, "invalid_body", ROUNDED)
            return msgspec.convert(_with_whole_numbers(body), type_)
        except msgspec.ValidationError as error:
            raise _body_refusal(error, body, type_) from None
        except ValueError as error:
            if "duplicate key" in str(error):  # nobody can know which of the two counts
                message = "an object in the body has a duplicate key"
                raise ChatError(400, "key_twice", message) from None
            message = (
                "is not valid JSON" if received.strip() else f"is empty: {_expected_body(type_)}"
            )
            raise ChatError(422, "invalid_body", f"the body {message}") from None

    async def _authenticated_caller(self, request: Request) -> Caller | None:
        if self._authenticate is None:
            host_header = request.headers.get("host", "")
            host = host_in(host_header) if host_header else "localhost"
            client = None if request.client is None else request.client.host
            if not is_from_here(client, request.headers.items()) or host not in _LOCAL_HOSTS:
                raise ChatError(
                    403,
                    "elsewhere",
                    "only this machine may send requests, because no sign-in is set up",
                )
            return Caller("local")
        try:
            result = self._authenticate(request)
            caller = await result if inspect.isawaitable(result) else result
            check_type("what authenticate gives", caller, (Caller, type(None)), "a Caller, or None")
        except (ToolcribError, HTTPException):
            raise  # these say themselves what to answer
        except Exception as error:  # noqa: BLE001  the application's code
            raise _failed("authenticate", error) from None
        return caller

    def _check_origin(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if origin is None or origin.lower() in self._origins:
            return
        origin_host = origin.lower().partition("://")[2]  # an origin has no path: host and port
        if not origin_host or origin_host != request.headers.get("host", "").lower():
            raise ChatError(403, "wrong_origin", "requests from this origin are not allowed")

    def _check_rate(self, caller_id: str) -> None:
        """Take one of the caller's requests, which refill evenly over a minute (a token bucket)."""
        capacity, now = float(self.limits.requests), time.monotonic()
        tokens, refilled_at = self._request_budgets.pop(caller_id, (capacity, now))
        tokens = min(capacity, tokens + (now - refilled_at) * capacity / 60)
        self._request_budgets[caller_id] = (max(tokens - 1, 0.0), now)
        if len(self._request_budgets) > _MOST_CALLERS:
            self._request_budgets.popitem(last=False)
        if tokens < 1:
            raise ChatError(429, "too_many_requests", "too many requests: try again in a moment")


def _with_whole_numbers(body: Any) -> Any:
    """Return a body whose own members are integers if their text says so: `1.0` is 1."""
    if not isinstance(body, dict):
        return body
    return {k: int(v) if type(v) is float and is_whole(v) else v for k, v in body.items()}


class NotAClients(NamedTuple):
    """Something that a client may not say: why, and the member names and roles that say it."""

    why: str
    words: str


NOT_A_CLIENTS = {
    "approval": NotAClients(
        "an approval must be sent to the address of its question",
        "approval approvals approve approved decision forrun",
    ),
    "tool_result": NotAClients(
        "a client cannot send tool results",
        "result results toolresult toolresults tooloutput tooloutputs toolcallid tooluseid"
        " role:tool role:function role:toolresult role:functioncalloutput",
    ),
    "tool_call": NotAClients(
        "a client cannot send tool calls",
        "call calls toolcall toolcalls functioncall role:toolcall role:tooluse role:functioncall",
    ),
    "assistant_message": NotAClients(
        "a client cannot send assistant messages",
        "assistant assistantmessage role:assistant role:model role:ai role:chatbot",
    ),
    "system_message": NotAClients(
        "a client cannot send instructions",
        "system systemmessage systemprompt systeminstruction instructions role:system role:developer",
    ),
    "caller": NotAClients(
        "a client cannot say who the caller is", "caller by approvedby user userid roles"
    ),
    "history": NotAClients(
        "a client cannot send the history, which the server keeps",
        "messages history turns contents conversation",
    ),
}
"""What a client may not say, by the code of its refusal; the first match is reported.

The words have only letters, in lower case.
"""


def _body_refusal(error: msgspec.ValidationError, body: Any, type_: type[Any]) -> ChatError:
    """Return why a body is refused, preferring a reason in NOT_A_CLIENTS."""
    if isinstance(body, dict) and type_.__struct_config__.forbid_unknown_fields:
        declared = type_.__struct_encode_fields__
        claims = set(_claims({name: part for name, part in body.items() if name not in declared}))
        for code, (why, claim_words) in NOT_A_CLIENTS.items():
            if not claims.isdisjoint(claim_words.split()):
                return ChatError(422, code, f"{why}: {_expected_body(type_)}")
    return ChatError(422, "invalid_body", body_fault(error, type_))


def _claims(part: Any) -> Iterator[str]:
    """Yield the names of all members in a part of a body, and the values of `role` and `type`."""
    for item in part if isinstance(part, list) else ():
        yield from _claims(item)
    for name, inner in part.items() if isinstance(part, dict) else ():
        letters = _letters_of(name)
        yield letters
        if isinstance(inner, str) and letters in ("role", "type"):
            yield f"role:{_letters_of(inner)}"
        yield from _claims(inner)


def _letters_of(name: str) -> str:
    return "".join(filter(str.isalpha, name)).lower()


def _expected_body(type_: type[Any]) -> str:
    if type_ is Nothing:
        return "the body must be empty"
    return f"the body may have only {', '.join(type_.__struct_encode_fields__)}"


def body_fault(error: msgspec.ValidationError, type_: type[Any], whole: str = "the body") -> str:
    """Return where a body is wrong, and what is expected there; of what was sent, only its type."""
    text = str(error)
    if text.startswith("Object contains unknown field"):  # the name follows, whatever it says
        return _expected_body(type_)
    expectation, separator, path = text.rpartition(" - at `$")
    expectation, location = (expectation, path.strip(".`")) if separator else (text, whole)
    if not expectation.startswith(_TYPE_ERRORS):
        return f"{location}: this value is not allowed"
    return f"{location}: {expectation[0].lower()}{expectation[1:].replace('`', '')}"


def _failed(what: str, error: Exception) -> ChatError:
    """Return the refusal for a failure in the application's own function; the log says where."""
    log_raised(f"the chat's `{what}`", error)
    return ChatError(500, "failed", "the application failed to check who may do that")


def too_many_runs() -> ChatError:
    return ChatError(429, "too_many_runs", "you have too many runs: wait until one has ended")


async def check_answer(
    runner: ToolRunner,
    state: RunState,
    request: ApprovalRequest,
    answer: Answer,
    may_answer: Callable[[ApprovalRequest], bool],
) -> None:
    """Raise ChatError for an answer that cannot be accepted.

    It may be a yes that is too late, come from somebody who may not give it, go beyond what was
    offered, or have arguments that the tool refuses, which are listed place by place.
    """
    if isinstance(answer, Approve) and request.expired():
        message = "nobody answered in time, so the call does not run: deny it to continue"
        raise ChatError(410, "approval_expired", message)
    if isinstance(answer, Approve) and not is_seen(answer.by):
        raise ChatError(403, "may_not_approve", "you have no name, so you may not approve a call")
    if not may_answer(request):
        raise ChatError(403, "may_not_approve", "you may not answer for this call")
    if isinstance(answer, Approve) and answer.for_run and not request.for_run:
        raise ChatError(
            422, "invalid_answer", "this question is about one call only: answer without for_run"
        )
    if isinstance(answer, Approve) and answer.always is not None:
        _check_rule(request, answer)
    if isinstance(answer, LimitedApprove) and answer.for_run is True:
        message = (
            "for the rest of the run you may approve only calls with exactly these arguments, "
            "not all calls of the tool"
        )
        raise ChatError(403, "may_not_approve", message)
    if isinstance(answer, Approve) and answer.arguments is not None:
        fault = await edit_fault(runner, state, request, answer)
        if fault is not None and fault.code is ErrorCode.APPROVAL_REQUIRED:
            raise ChatError(403, "may_not_approve", "you may not change the arguments in this way")
        if fault is not None:
            places = [
                f"{detail.path or 'the arguments'}: {detail.message}" for detail in fault.details
            ]
            raise ChatError(422, str(fault.code), "; ".join(places) or fault.message)


def refusal(error: ChatError) -> Response:
    """Return an error in the form of the chat app's routes."""
    body = {"error": {"code": error.code, "message": str(error)}}
    return JSONResponse(body, error.status, retry_after(error))


def retry_after(error: ChatError) -> dict[str, str]:
    """Return the header that says when to ask again, if that is of use."""
    return {"retry-after": "5"} if error.status in (429, 503) else {}


# A client that disconnects no longer waits for an answer: a run of one request ends with it.


@asynccontextmanager
async def leaving(request: Request, run: RunStream) -> AsyncIterator[None]:
    """Cancel a run when its client disconnects, and at the end in any case."""
    watcher = asyncio.create_task(_cancel_on_disconnect(request, run))
    try:
        async with run:
            yield
    finally:
        watcher.cancel()


async def _cancel_on_disconnect(request: Request, run: RunStream) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    with suppress(ToolcribError):  # nobody is left to hear how it failed
        await run.cancel()


async def followed(run: RunStream) -> AsyncGenerator[Event, None]:
    """Yield the events of a run. Raises ChatError if it failed or was cancelled."""
    failure = ChatError(503, "cancelled", "the run was cancelled")
    async for event in run:
        match event:
            case RunError(kind=kind, message=message):
                failure = ChatError(502, kind, encodable(message))
            case Done(result=result) if result.status in ("failed", "cancelled"):
                raise failure
            case _:
                yield event


class OfRun(Response):
    """Mixed into a response that streams a run: cancels the run when its reader disconnects."""

    run: RunStream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self.run:
            await super().__call__(scope, receive, send)


class RunEvents(OfRun, EventSourceResponse):
    """Sends the course of a run as server-sent events, each a string or JSON."""

    def __init__(
        self, run: RunStream, events: AsyncGenerator[str | dict[str, Any], None], heartbeat: float
    ) -> None:
        self.run = run
        super().__init__(_server_events(events), ping=heartbeat, sep="\n")


async def _server_events(
    events: AsyncGenerator[str | dict[str, Any], None],
) -> AsyncGenerator[ServerSentEvent, None]:
    async for event in events:
        text = event if isinstance(event, str) else msgspec.json.encode(event).decode()
        yield ServerSentEvent(text, sep="\n")  # some clients split events only at two line feeds


def _check_rule(request: ApprovalRequest, answer: Approve) -> None:
    """Raise ChatError for a rule that was not offered, may not be given by them, or is invalid."""
    if isinstance(answer, LimitedApprove):
        raise ChatError(403, "may_not_approve", "you may approve this call, but not make a rule")
    try:
        check_always(request, answer)
    except ApprovalError as error:
        raise ChatError(422, "invalid_answer", str(error)) from None
