"""The client that makes a call, for a tool that has to ask the client's user something.

Rule: a tool runs once. Up to protocol 2025-11-25 the client is asked while the tool waits. From
2026-07-28 on, the request ends with the question, the tool keeps waiting in this process, and the
client sends another request with the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import count
from typing import Any, NoReturn, TypeVar
from weakref import WeakValueDictionary

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import CONNECTION_CLOSED
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from toolcrib.errors import ToolError
from toolcrib.runner.running import slots_lent
from toolcrib.schema import compile_validator
from toolcrib.tools import capability
from toolcrib.values.context import CallContext

# seconds; a client that itself reports that it has gone delays the call by as much
_TO_BE_CANCELLED = 1.0
PATIENCE = 600.0  # seconds that a user gets, unless the tool's own time limit is shorter
_CANNOT = "This client cannot do that: it has not declared {}."
_NOBODY = "The client did not answer."
_UNFIT = "The answers of the client's user do not fit the form."
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
        self.asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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
            made = (f"question_{n}" for n in count(len(self._answers) + 1))
            key = next(each for each in made if each not in self._answers)
        answer = self._answers[key] = asyncio.get_running_loop().create_future()
        self._open[key] = request
        if not self.asked.done():
            self.asked.set_result(None)
        try:
            return await asyncio.wait_for(answer, PATIENCE)
        except TimeoutError:
            raise ToolError(_NOBODY) from None
        finally:
            self._open.pop(key, None)

    def take(
        self, context: ServerRequestContext[Any], responses: types.InputResponses | None
    ) -> None:
        """Give the tool the answers of another request. Answers to no open question are ignored."""
        self.context = context
        for key, given in (responses or {}).items():
            if self._open.pop(key, None) is not None:
                self._answers[key].set_result(given)
        if self.asked.done() and not self._open:
            self.asked = asyncio.get_running_loop().create_future()


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
        object, which fits the schema. Raises ToolError if the client's object does not fit.
        """
        validator = compile_validator(dict(schema))
        if not has_forms(self.session):
            self._cannot(types.ClientCapabilities(elicitation=types.ElicitationCapability()))
        form = types.ElicitRequestFormParams(message=message, requested_schema=dict(schema))
        answer = await self._ask(types.ElicitRequest(params=form), types.ElicitResult, key)
        if answer.action == "accept" and not validator.is_valid(answer.content or {}):
            raise ToolError(_UNFIT)
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
        told = self.session.client_capabilities
        return told is not None and getattr(told, name) is not None and _can_be_asked(self.session)

    def _cannot(self, missing: types.ClientCapabilities) -> NoReturn:
        self._questions.missing = missing
        (name,) = missing.model_dump(exclude_none=True)
        raise ToolError(_CANNOT.format(name))

    async def _ask(self, request: types.InputRequest, kind: type[AnswerT], key: str) -> AnswerT:
        with slots_lent():
            return await self._answer(request, kind, key)

    async def _answer(self, request: types.InputRequest, kind: type[AnswerT], key: str) -> AnswerT:
        if self.modern:
            answer = await self._questions.answer(request, key)
        else:
            related = ServerMessageMetadata(related_request_id=self._questions.context.request_id)
            try:
                return await self.session.send_request(request, kind, metadata=related)
            except (MCPError, ValidationError) as error:
                await cancelled_if_gone(error)
                raise ToolError(_NOBODY) from None
        if not isinstance(answer, kind):
            raise ToolError(_NOBODY)
        return answer


async def cancelled_if_gone(error: Exception) -> None:
    """Wait to be cancelled if an error says that the client has gone, since the SDK then cancels
    its calls."""
    if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
        await asyncio.sleep(_TO_BE_CANCELLED)


def has_forms(session: ServerSession) -> bool:
    """Return whether a client can ask its user by a form. A client that names no way of asking can."""
    told = session.client_capabilities
    ways = None if told is None else told.elicitation
    if ways is None or (ways.form is None and ways.url is not None):
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
