"""What a client is asked: by a tool, and for approvals, where the author lets that client approve.

Rule: whoever makes a call may approve it only if `may_approve` says so for this caller and this
question with the arguments that will run, including arguments that an answer puts in place of
others. Anything but a clear yes is a no, and dismissing the question is no answer. The answer is to
exactly what was asked, and the runner compares it with the call once more before the tool runs.

A tool runs once. Up to protocol 2025-11-25 the client is asked within the call. From 2026-07-28 on,
a request that needs an answer ends with the question, and the client sends another one with the
answer. A tool that asks keeps waiting in this process. A call that needs an approval comes again
with our state, which is sealed, so that a client can neither read nor change it. The state has
everything that the call needs to go on, including the saved state of a tool that has begun and asks
itself (an agent).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Any, ClassVar, Literal, NoReturn, TypeAlias, TypeVar, cast
from weakref import WeakValueDictionary

import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, METHOD_NOT_FOUND
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from toolcrib.approvals import shown_request
from toolcrib.bridges.loops import LoopLost, run_in
from toolcrib.bridges.mcp.content import encodable_message
from toolcrib.doors import MayApprove, allows, anything, yes_of
from toolcrib.errors import ApprovalError, ErrorCode, SchemaError, ToolError
from toolcrib.hydration import parse_arguments
from toolcrib.hydration.parse import Parsed
from toolcrib.runner.approval import NotArguments, keeping
from toolcrib.runner.running import slots_lent
from toolcrib.schema import compile_validator
from toolcrib.tools import capability
from toolcrib.values.context import CallContext, CallScope, RunTally
from toolcrib.values.decision import (
    Always,
    Answer,
    ApprovalRequest,
    Approve,
    Approver,
    Caller,
    ForRun,
    Refuse,
    ReturnsApproval,
)
from toolcrib.values.json import JsonObject, Redacted, encodable
from toolcrib.values.record import SuspendedCall, Waiting

# seconds; a client that itself reports that it has gone delays the call by as much
_TO_BE_CANCELLED = 1.0
PATIENCE = 600.0  # seconds that a user gets, unless the tool's own time limit is shorter
_NOT_DECLARED = "This client cannot do that: it has not declared {}."
_NO_REPLY = "The client did not answer."
_INVALID_FORM = "The answers of the client's user do not fit the form."
_NO_FORM = "a form is {'type': 'object', 'properties': {…}}"
_NO_CLIENT = "The call does not come from an MCP client, so no user can be asked."

AnswerT = TypeVar("AnswerT", types.ElicitResult, types.CreateMessageResult, types.ListRootsResult)


class ClientQuestions:
    """Holds the questions that the tool of one call has asked its client, for the requests that
    bring answers.

    `asked` is done once there is a question that the client gets as the end of its request.
    `missing` is what the client would have had to declare for a question that could not be asked.
    """

    def __init__(self, context: ServerRequestContext[Any]) -> None:
        self.context = context
        self.loop = asyncio.get_running_loop()
        self.asked: asyncio.Future[None] = self.loop.create_future()
        self.missing: types.ClientCapabilities | None = None
        self._open: dict[str, types.InputRequest] = {}
        self._answers: dict[str, asyncio.Future[types.InputResponse]] = {}

    @property
    def open(self) -> types.InputRequests:
        """The questions without an answer, by key."""
        return dict(self._open)

    async def answer(self, request: types.InputRequest, key: str) -> types.InputResponse:
        """Return the answer that a later request brings. Raises ToolError if none does."""
        if not key or key in self._answers:
            numbered = (f"question_{n}" for n in count(len(self._answers) + 1))
            key = next(candidate for candidate in numbered if candidate not in self._answers)
        answer = self._answers[key] = self.loop.create_future()
        self._open[key] = request
        if not self.asked.done():
            self.asked.set_result(None)
        try:
            return await asyncio.wait_for(answer, PATIENCE)
        except TimeoutError:
            raise ToolError(_NO_REPLY) from None
        finally:
            self._open.pop(key, None)

    def take(
        self, context: ServerRequestContext[Any], responses: types.InputResponses | None
    ) -> None:
        """Give the tool the answers of another request. Answers to no open question are ignored."""
        self.context = context
        for key, response in (responses or {}).items():
            if self._open.pop(key, None) is not None:
                self._answers[key].set_result(response)
        if self.asked.done() and not self._open:
            self.asked = self.loop.create_future()


@capability
class McpClient:
    """Asks the client that makes a call: `await client.elicit(message, schema)`.

    A tool takes it as a parameter, which is bound by `catalog.bind({McpClient:
    per_call(calling_client)})`. Questions that are asked together (`asyncio.gather`) reach the
    client together, and clients of protocol 2026-07-28 see each under its `key`. Each method raises
    ToolError if the client has not declared that it can be asked this, or if it does not answer.
    """

    def __init__(self, questions: ClientQuestions) -> None:
        self._questions = questions

    @property
    def session(self) -> ServerSession:
        """The SDK's session of the request, for other messages to the client."""
        return self._questions.context.session

    @property
    def modern(self) -> bool:
        """Whether the client speaks protocol 2026-07-28 or a newer one. A question then ends its
        request, and the client sends another one with the answer. An older client is asked within
        its request."""
        return self.session.protocol_version in MODERN_PROTOCOL_VERSIONS

    async def elicit(
        self, message: str, schema: Mapping[str, Any], *, key: str = ""
    ) -> types.ElicitResult:
        """Ask the client's user to fill in a form.

        `schema` is the JSON Schema of an object whose properties are strings, numbers, booleans and
        choices. The answer's `action` says whether the user accepted. If so, `content` has the
        object, which fits the schema. Raises ToolError if the client's object does not fit, and
        SchemaError for a schema that no form has.
        """
        validator = compile_validator(dict(schema))
        if schema.get("type") != "object" or not isinstance(schema.get("properties"), Mapping):
            raise SchemaError(_NO_FORM)
        if not has_forms(self.session):
            self._cannot(types.ClientCapabilities(elicitation=types.ElicitationCapability()))
        form = types.ElicitRequestFormParams(message=message, requested_schema=dict(schema))
        answer = await self._ask(types.ElicitRequest(params=form), types.ElicitResult, key)
        if answer.action == "accept" and not validator.is_valid(answer.content or {}):
            raise ToolError(_INVALID_FORM)
        return answer

    async def sample(
        self, wanted: types.CreateMessageRequestParams, *, key: str = ""
    ) -> types.CreateMessageResult:
        """Let the client's model write a message, and return it."""
        if not self._declares("sampling"):
            self._cannot(types.ClientCapabilities(sampling=types.SamplingCapability()))
        request = types.CreateMessageRequest(params=wanted)
        return await self._ask(request, types.CreateMessageResult, key)

    async def roots(self, *, key: str = "") -> list[types.Root]:
        """Return the folders that the client works in."""
        if not self._declares("roots"):
            self._cannot(types.ClientCapabilities(roots=types.RootsCapability()))
        return (await self._ask(types.ListRootsRequest(), types.ListRootsResult, key)).roots

    def _declares(self, name: str) -> bool:
        capabilities = self.session.client_capabilities
        return (
            capabilities is not None
            and getattr(capabilities, name) is not None
            and _can_be_asked(self.session)
        )

    def _cannot(self, missing: types.ClientCapabilities) -> NoReturn:
        self._questions.missing = missing
        (name,) = missing.model_dump(exclude_none=True)
        raise ToolError(_NOT_DECLARED.format(name))

    async def _ask(self, request: types.InputRequest, kind: type[AnswerT], key: str) -> AnswerT:
        try:  # a plain tool asks from another loop, by `run_sync`
            return await run_in(self._questions.loop, partial(self._ask_there, request, kind, key))
        except LoopLost:
            raise ToolError(_NO_REPLY) from None

    async def _ask_there(
        self, request: types.InputRequest, kind: type[AnswerT], key: str
    ) -> AnswerT:
        request = encodable_message(request)
        with slots_lent():
            if self.modern:
                answer = await self._questions.answer(request, encodable(key))
            else:
                asked_by = self._questions.context.request_id
                metadata = ServerMessageMetadata(related_request_id=asked_by)
                try:
                    return await self.session.send_request(request, kind, metadata=metadata)
                except (MCPError, ValidationError) as error:
                    await cancelled_if_gone(error)
                    raise ToolError(_NO_REPLY) from None
        if not isinstance(answer, kind):
            raise ToolError(_NO_REPLY)
        return answer


async def cancelled_if_gone(error: Exception) -> None:
    """Wait to be cancelled if an error says that the client has gone, since the SDK then cancels
    its calls."""
    if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
        await asyncio.sleep(_TO_BE_CANCELLED)


def has_forms(session: ServerSession) -> bool:
    """Return whether a client can ask its user by a form. A client that names no way of asking can."""
    capabilities = session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):
        return False
    return _can_be_asked(session)


def _can_be_asked(session: ServerSession) -> bool:
    return session.can_send_request or session.protocol_version in MODERN_PROTOCOL_VERSIONS


CALLING: WeakValueDictionary[str, McpClient] = WeakValueDictionary()
"""The clients of the calls whose tools have begun, by the ids of the calls, which nobody can guess."""


def calling_client(context: CallContext) -> McpClient:
    """Return the MCP client that makes a call, or that makes the call around it if an agent is a
    tool. Raises ToolError if the caller is no MCP client."""
    within = () if context.around is None else context.around.scope.within
    for call_id in (context.call_id, *(outer.call_id for outer in within)):
        client = CALLING.get(call_id)
        if client is not None:
            return client
    raise ToolError(_NO_CLIENT)


# Approvals.

KEY = "approval"  # the key of a call's first question; the second is `approval_2`
NO = "no"
Yes: TypeAlias = ForRun | Literal["always"]
YES: dict[str, Yes] = {
    "yes": False,
    "yes, and to exactly this for the session": "exactly",
    "yes, and to this tool for the session": True,
    "yes, and always to exactly this": "always",
}
CANNOT_ASK = (
    "The call needs an approval, but this client cannot ask its user (it does not support "
    "elicitation). "
    "It did not run."
)
NO_ANSWER = (
    "The call needs an approval, but the client answered with an error, or not at all, when "
    "it was asked. "
    "It did not run."
)
DISMISSED = "The call needs an approval, but the client's user has not answered. It did not run."
TOO_LONG = "The data that the call needs to continue is too long for its client to keep."
_LONGEST_STATE = 2 * 1_048_576  # HTTP takes 4 MiB, for the sealed state with its call
_AGAIN = 1.0  # seconds until an approver that answers later is asked again


class Asked(Redacted, msgspec.Struct, frozen=True, tag="asked"):
    """The questions that a call ended with. The client sends them back with the answers, and the
    call that comes with them is then the same one.

    `pinned` is what default factories made for it. A call that has begun goes on with what is
    `suspended`. `tainted` says whether its run had read untrusted content by then.
    """

    redacted: ClassVar[tuple[str, ...]] = ("nonce", "pinned")

    request: ApprovalRequest
    nonce: str
    pinned: JsonObject = {}
    others: tuple[ApprovalRequest, ...] = ()
    suspended: SuspendedCall | None = None
    tainted: bool = False

    @property
    def requests(self) -> dict[str, ApprovalRequest]:
        """The questions, by the keys of their forms."""
        others = {f"{KEY}_{n}": request for n, request in enumerate(self.others, 2)}
        return {KEY: self.request, **others}

    @property
    def call(self) -> tuple[str, str]:
        """The run and the id of the client's call. An agent asks within it."""
        first = self.request.within[0] if self.request.within else self.request
        return first.run_id, first.call_id

    @property
    def tally(self) -> RunTally:
        """A tally of its run, for a process that does not know the run."""
        return RunTally(self.call[0], self.nonce, tainted=self.tainted)

    def scope(self, scope: CallScope, answers: Mapping[str, Answer]) -> CallScope:
        """Return the scope in which the call goes on."""
        questions = {request.id: request for request in self.requests.values()}
        resumed = msgspec.structs.replace(scope, answers=answers, questions=questions, suspended={})
        return resumed if self.suspended is None else resumed.resuming(self.suspended)


class StillOpen(msgspec.Struct, frozen=True, tag="open"):
    """Names a call whose tool has asked the client something and waits for the answer in this
    process."""

    call_id: str


State: TypeAlias = Asked | StillOpen
_STATE: msgspec.json.Decoder[State] = msgspec.json.Decoder(State)


def written(state: State) -> str:
    return msgspec.json.encode(state).decode()


def read_state(text: str | None) -> State | None:
    """Read a state that we have sealed. Raises MCPError for any other text."""
    try:
        return None if text is None else _STATE.decode(text)
    except msgspec.DecodeError:
        raise MCPError(INVALID_PARAMS, "Invalid or expired requestState") from None


class ClientApprover:
    """Asks about one call: the client that makes it if that may approve, or else the
    other approver.

    `asked` are the questions that the call has to end with. `why_not` says why the client was not
    asked. It is also the approver of an agent within the call.
    """

    def __init__(
        self,
        context: ServerRequestContext[Any],
        caller: Caller,
        *,
        tally: RunTally,
        call_id: str,
        may_approve: MayApprove | None,
        other_approver: Approver | None,
        pinned: JsonObject,
    ) -> None:
        self._session = context.session
        self._request_id = context.request_id
        self._caller = caller
        self._tally = tally
        self._call_id = call_id
        self.may_approve: MayApprove = may_approve or (lambda _caller, _request: False)
        self._other_approver = other_approver
        self._pinned = pinned
        self._asked: set[str] = set()
        self.why_not = ""
        self._dismissed: set[str] = set()
        self._others_yes: set[str] = set()

    def answers(
        self, questions: Asked, responses: types.InputResponses | None
    ) -> dict[str, Answer]:
        """Return the answers among `responses`, by the ids of their questions. Invalid answers, and
        those that this caller may not give, are left out."""
        answers: dict[str, Answer] = {}
        for key, request in questions.requests.items():
            response = (responses or {}).get(key)
            if not isinstance(response, types.ElicitResult):
                continue
            if response.action == "cancel":
                self._dismissed.add(request.id)
            elif allows(self.may_approve, self._caller, request):
                answers[request.id] = self._answer_of(response, request)
        return answers

    async def __call__(self, request: ApprovalRequest) -> Answer | None:
        """Ask, and return the answer. Raises ApprovalError if nobody can be asked."""
        return await self.ask_keeping(request, {})

    async def kept(self, run_id: str, call_id: str, _caller: str, /) -> JsonObject:
        """Return what default factories made for the call when it was asked about."""
        return self._pinned if self._is_own(run_id, call_id) else {}

    async def ask_keeping(self, request: ApprovalRequest, pinned: JsonObject, /) -> Answer | None:
        """Ask, and keep what default factories made. Raises ApprovalError if nobody can be asked."""
        if not allows(self.may_approve, self._caller, request):
            return await self._others_answer(request, pinned)
        if not has_forms(self._session):
            self.why_not = CANNOT_ASK
            return await self._others_answer(request, pinned)
        if request.id in self._dismissed:
            raise self._unanswered(DISMISSED)
        if self._session.protocol_version in MODERN_PROTOCOL_VERSIONS:
            self._asked.add(request.id)
            if self._is_own(request.run_id, request.call_id):
                self._pinned = pinned
            return None
        form = self._form_of(request)
        try:
            response = await self._session.elicit_form(
                form.message, form.requested_schema, self._request_id
            )
        except MCPError as error:  # the client cannot ask after all, or has gone
            await cancelled_if_gone(error)
            is_unsupported = error.code == METHOD_NOT_FOUND
            raise self._unanswered(CANNOT_ASK if is_unsupported else NO_ANSWER) from None
        except ValidationError:
            raise self._unanswered(NO_ANSWER) from None
        if response.action == "cancel":
            raise self._unanswered(DISMISSED)
        return self._answer_of(response, request)

    async def give_back(self, request: ApprovalRequest, /) -> None:
        """Give a yes back to the other approver, if that returned it."""
        if request.id in self._others_yes and isinstance(self._other_approver, ReturnsApproval):
            await self._other_approver.give_back(request)

    def asked(self, waiting: Waiting) -> Asked | None:
        """Return the questions that a call ends with, or None if the client was asked none."""
        own_requests = [request for request in waiting.requests if request.id in self._asked]
        if not own_requests:
            return None
        tally, others = self._tally, tuple(own_requests[1:])
        return Asked(
            own_requests[0], tally.nonce, self._pinned, others, waiting.suspended, tally.tainted
        )

    def required(self, questions: Asked) -> types.InputRequiredResult:
        """Return the end of a request with these questions. Raises ApprovalError if their state
        cannot be kept."""
        state = written(questions)
        if len(state) > _LONGEST_STATE:
            raise ApprovalError(TOO_LONG, ErrorCode.APPROVAL_REQUIRED)
        return types.InputRequiredResult(
            input_requests={
                key: self.question(request) for key, request in questions.requests.items()
            },
            request_state=state,
        )

    def question(self, request: ApprovalRequest) -> types.ElicitRequest:
        return types.ElicitRequest(params=self._form_of(request))

    def _is_own(self, run_id: str, call_id: str) -> bool:
        """Return whether this is the client's own call, and not one of an agent within it."""
        return (run_id, call_id) == (self._tally.run_id, self._call_id)

    def _form_of(self, request: ApprovalRequest) -> types.ElicitRequestFormParams:
        return form_of(request, offered(request, self.may_approve))

    def _answer_of(self, response: types.ElicitResult, request: ApprovalRequest) -> Answer:
        """Return the answer in a form. The runner checks a yes against what this caller may approve."""
        answer = answer_of(response, offered(request, self.may_approve), self._caller.id)
        if not isinstance(answer, Approve):
            return cast("Answer", answer)  # the runner reports an invalid answer
        terms = (answer.arguments, answer.for_run, answer.always)
        return yes_of(self.may_approve, self._caller, *terms)

    def _unanswered(self, reason: str) -> ApprovalError:
        self.why_not = reason
        return ApprovalError(reason, ErrorCode.APPROVAL_REQUIRED)

    async def _others_answer(self, request: ApprovalRequest, pinned: JsonObject) -> Answer | None:
        """Return the answer of the other approver. The client waits, however late it comes."""
        ask = keeping(self._other_approver, pinned)
        if ask is None:
            raise ApprovalError("nobody can be asked", ErrorCode.APPROVAL_REQUIRED)
        while True:
            answer = await ask(request)
            if isinstance(answer, Approve):
                self._others_yes.add(request.id)
            if answer is not None or request.expired():
                return answer
            await asyncio.sleep(_AGAIN)


def offered(request: ApprovalRequest, may_approve: MayApprove) -> dict[str, Yes]:
    """Return the possible answers besides no. A caller who may approve only some questions is
    offered no yes to a whole tool, and no rule, since nobody has asked whether they may approve
    further calls."""
    may_approve_all = may_approve is anything
    is_offered = {
        False: True,
        "exactly": request.for_run,
        True: request.for_run and may_approve_all,
        "always": request.always and may_approve_all,
    }
    return {text: meaning for text, meaning in YES.items() if is_offered[meaning]}


def form_of(request: ApprovalRequest, yes: Mapping[str, Yes]) -> types.ElicitRequestFormParams:
    """Return the question in the form that a client shows: what would run, in ASCII, and why it is
    asked. `yes` are the answers to offer besides no."""
    answers = [NO, *yes]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "answer": {"type": "string", "title": "Run it?", "enum": answers},
            "arguments": {
                "type": "string",
                "title": "Other arguments",
                "description": "A JSON object, to run it with these instead. Leave it empty.",
            },
        },
        "required": ["answer"],
    }
    message = f"Run {request.title} {shown_request(request)}? ({request.reason})"
    return types.ElicitRequestFormParams(message=message, requested_schema=schema)


_FIELDS = {"answer", "arguments"}


def answer_of(
    response: types.ElicitResult, yes: Mapping[str, Yes], by: str
) -> Answer | NotArguments:
    """Return the answer in a form that offered `yes` besides no. Members that the form does not
    have make it a no. A yes to arguments that are no JSON object approves nothing that can run."""
    content = response.content or {}
    choice = content.get("answer")
    if response.action != "accept" or not isinstance(choice, str) or choice not in YES:
        return Refuse(f"the client's user said no ({response.action})", by=by)
    if choice not in yes:
        return Refuse("the answer was not one of the offered answers", by=by)
    if not content.keys() <= _FIELDS:  # a misspelt member was meant differently
        return Refuse("the answer had a field that the form does not have", by=by)
    meaning = yes[choice]
    approval = Approve(by, always=Always()) if meaning == "always" else Approve(by, for_run=meaning)
    other_arguments = content.get("arguments")
    if other_arguments is None or (
        isinstance(other_arguments, str) and not other_arguments.strip()
    ):
        return approval
    parsed = parse_arguments(other_arguments) if isinstance(other_arguments, str) else None
    if not isinstance(parsed, Parsed) or parsed.notes or parsed.unrounded is not None:
        return NotArguments("the other arguments in the form are not a JSON object", by)
    return msgspec.structs.replace(approval, arguments=parsed.value)
