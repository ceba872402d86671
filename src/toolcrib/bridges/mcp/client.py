"""The client that makes a call, for a tool that has something to ask of its user.

Rule: a tool runs once. Up to protocol 2025-11-25 the client is asked while the tool waits; from
2026-07-28 on, the request ends with the question, the tool goes on waiting in this process, and the
client comes again with the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar
from weakref import WeakValueDictionary

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from toolcrib.errors import ToolError
from toolcrib.schema import compile_validator
from toolcrib.tools import capability
from toolcrib.values.context import CallContext

PATIENCE = 600.0  # seconds that a user has to answer, where the tool's own time limit gives as many
_CANNOT = "This client cannot do that: it has not declared {}."
_NOBODY = "The client has not answered."
_UNFIT = "What the client's user filled in does not fit the form."
_NO_CLIENT = "The call comes from no MCP client, so nobody can be asked."

AnswerT = TypeVar("AnswerT", types.ElicitResult, types.CreateMessageResult, types.ListRootsResult)


@capability
class McpClient:
    """Asks the client that makes a call: `await client.elicit(message, schema)`.

    A tool takes it as a parameter; bind it: `catalog.bind({McpClient: per_call(calling_client)})`. What
    is asked together (`asyncio.gather`) is asked at once. `key` names a question, as newer clients see
    it. Each method raises ToolError where the client has not declared that it can, and where no answer
    comes.
    """

    def __init__(self, context: ServerRequestContext[Any]) -> None:
        self._context = context
        self._questions: dict[str, types.InputRequest] = {}
        self._answers: dict[str, asyncio.Future[types.InputResponse]] = {}
        self.asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.missing: types.ClientCapabilities | None = None

    @property
    def session(self) -> ServerSession:
        """The SDK's session of the request, for what else a server may tell its client."""
        return self._context.session

    @property
    def modern(self) -> bool:
        """Whether the client asks again with its answers, from protocol 2026-07-28 on."""
        return self.session.protocol_version in MODERN_PROTOCOL_VERSIONS

    async def elicit(
        self, message: str, schema: Mapping[str, Any], *, key: str = ""
    ) -> types.ElicitResult:
        """Ask its user by a form: an object of texts, numbers, booleans and choices. What was filled in
        is as the schema has it, else this raises ToolError."""
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
        """Let its model write a message."""
        if not self._declares("sampling"):
            self._cannot(types.ClientCapabilities(sampling=types.SamplingCapability()))
        request = types.CreateMessageRequest(params=wanted)
        return await self._ask(request, types.CreateMessageResult, key)

    async def roots(self, *, key: str = "") -> list[types.Root]:
        """Ask for the folders that it works in."""
        if not self._declares("roots"):
            self._cannot(types.ClientCapabilities(roots=types.RootsCapability()))
        return (await self._ask(types.ListRootsRequest(), types.ListRootsResult, key)).roots

    def _declares(self, name: str) -> bool:
        told = self.session.client_capabilities
        return told is not None and getattr(told, name) is not None and _can_be_asked(self.session)

    def _cannot(self, missing: types.ClientCapabilities) -> NoReturn:
        self.missing = missing
        (name,) = missing.model_dump(exclude_none=True)
        raise ToolError(_CANNOT.format(name))

    async def _ask(self, request: types.InputRequest, kind: type[AnswerT], key: str) -> AnswerT:
        if self.modern:
            answer = await self._answered_later(request, key)
        else:
            related = ServerMessageMetadata(related_request_id=self._context.request_id)
            try:
                return await self.session.send_request(request, kind, metadata=related)
            except (MCPError, ValidationError):
                raise ToolError(_NOBODY) from None
        if not isinstance(answer, kind):
            raise ToolError(_NOBODY)
        return answer

    async def _answered_later(self, request: types.InputRequest, key: str) -> types.InputResponse:
        key = key if key and key not in self._answers else f"question_{len(self._answers) + 1}"
        answer = self._answers[key] = asyncio.get_running_loop().create_future()
        self._questions[key] = request
        if not self.asked.done():
            self.asked.set_result(None)
        try:
            return await asyncio.wait_for(answer, PATIENCE)
        except TimeoutError:
            raise ToolError(_NOBODY) from None
        finally:
            self._questions.pop(key, None)

    @property
    def questions(self) -> types.InputRequests:
        """What has been asked and not been answered, by key."""
        return dict(self._questions)

    def take(
        self, context: ServerRequestContext[Any], responses: types.InputResponses | None
    ) -> None:
        """Give the tool the answers that a client came again with; what answers no question is left."""
        self._context = context
        for key, given in (responses or {}).items():
            if self._questions.pop(key, None) is not None:
                self._answers[key].set_result(given)
        if self.asked.done() and not self._questions:
            self.asked = asyncio.get_running_loop().create_future()


def has_forms(session: ServerSession) -> bool:
    """Return whether a client can ask its user by a form; one that names no way means that."""
    told = session.client_capabilities
    ways = None if told is None else told.elicitation
    if ways is None or (ways.form is None and ways.url is not None):
        return False
    return _can_be_asked(session)


def _can_be_asked(session: ServerSession) -> bool:
    return session.can_send_request or session.protocol_version in MODERN_PROTOCOL_VERSIONS


CALLING: WeakValueDictionary[str, McpClient] = WeakValueDictionary()
"""The clients of the calls that are on their way, by the ids of the calls, which nobody can guess."""


def calling_client(context: CallContext) -> McpClient:
    """Return the client that makes a call. Raises ToolError where it comes from none."""
    client = CALLING.get(context.call_id)
    if client is None:
        raise ToolError(_NO_CLIENT)
    return client
