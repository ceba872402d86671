"""The client that makes a call, for a tool that has something to ask of its user.

Rule: a tool runs once. Up to protocol 2025-11-25 the client is asked while the tool waits; from
2026-07-28 on, the request ends with the question, the tool goes on waiting in this process, and the
client comes again with the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from toolcrib.errors import ToolError
from toolcrib.tools import capability
from toolcrib.values.context import CallContext

PATIENCE = 600.0  # seconds that a user has to answer, where the tool's own time limit gives as many
_CANNOT = "This client cannot ask its user: it has no elicitation."
_NOBODY = "The client's user has not answered."
_NO_CLIENT = "The call comes from no MCP client, so nobody can be asked."


@capability
class McpClient:
    """Asks the user of the client that makes a call: `await client.elicit(message, schema)`.

    A tool takes it as a parameter; bind it: `catalog.bind({McpClient: per_call(calling_client)})`.
    """

    def __init__(self, context: ServerRequestContext[Any]) -> None:
        self._context = context
        self._questions: dict[str, types.ElicitRequestFormParams] = {}
        self._answers: dict[str, asyncio.Future[types.ElicitResult]] = {}
        self.asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def session(self) -> ServerSession:
        """The SDK's session, for what else a server may ask of its client."""
        return self._context.session

    @property
    def modern(self) -> bool:
        return self.session.protocol_version in MODERN_PROTOCOL_VERSIONS

    async def elicit(self, message: str, schema: Mapping[str, Any]) -> types.ElicitResult:
        """Ask by a form: an object schema whose properties are texts, numbers, booleans or choices.

        Raises ToolError where the client has no way to ask, and where nobody answers.
        """
        if not has_forms(self.session):
            raise ToolError(_CANNOT)
        form = types.ElicitRequestFormParams(message=message, requested_schema=dict(schema))
        if self.modern:
            return await self._answered_later(form)
        try:
            return await self.session.elicit_form(
                form.message, form.requested_schema, self._context.request_id
            )
        except MCPError:
            raise ToolError(_NOBODY) from None

    async def _answered_later(self, form: types.ElicitRequestFormParams) -> types.ElicitResult:
        key = f"question_{len(self._answers) + 1}"
        answer = self._answers[key] = asyncio.get_running_loop().create_future()
        self._questions[key] = form
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
        return {key: types.ElicitRequest(params=form) for key, form in self._questions.items()}

    def take(
        self, context: ServerRequestContext[Any], responses: types.InputResponses | None
    ) -> None:
        """Give the tool the answers that a client came again with; what answers no question is left."""
        self._context = context
        for key, given in (responses or {}).items():
            if key in self._questions and isinstance(given, types.ElicitResult):
                del self._questions[key]
                self._answers[key].set_result(given)
        if self.asked.done() and not self._questions:
            self.asked = asyncio.get_running_loop().create_future()


def has_forms(session: ServerSession) -> bool:
    """Return whether a client can ask its user by a form; one that names no way means that."""
    told = session.client_capabilities
    ways = None if told is None else told.elicitation
    if ways is None or (ways.form is None and ways.url is not None):
        return False
    return session.can_send_request or session.protocol_version in MODERN_PROTOCOL_VERSIONS


CALLING: WeakValueDictionary[str, McpClient] = WeakValueDictionary()
"""The clients of the calls that are on their way, by the ids of the calls, which nobody can guess."""


def calling_client(context: CallContext) -> McpClient:
    """Return the client that makes a call. Raises ToolError where it comes from none."""
    client = CALLING.get(context.call_id)
    if client is None:
        raise ToolError(_NO_CLIENT)
    return client
