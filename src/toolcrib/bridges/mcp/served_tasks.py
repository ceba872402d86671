"""Long calls as tasks (SEP-2663): the client gets a handle, and asks for the result later.

Rule: the server decides, and only for clients that take tasks. A call that has not ended after some
seconds becomes a task and goes on. A task belongs to its caller alone, by the caller's id, since
roles may change. It is kept for `TTL` seconds. A running task is cancelled if the client asks for
it and when the server ends, and so is one that waits for an approval. Both are recorded.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from toolcrib.bridges.mcp.calls import OneCall
from toolcrib.bridges.mcp.runs import ClientRuns
from toolcrib.bridges.mcp.tasks import EXTENSION, TaskParams, TaskUpdateParams
from toolcrib.runner import ToolRunner
from toolcrib.values.decision import Caller

TTL = 3_600.0
_POLL_MS = 1_000
_MOST = 1_000

_ANSWER: TypeAdapter[types.InputResponse] = TypeAdapter(types.InputResponse)
_Context: TypeAlias = ServerRequestContext[ClientRuns, Any]
Status: TypeAlias = Literal["working", "input_required", "completed", "failed", "cancelled"]


class _Task:
    def __init__(self, call: OneCall) -> None:
        self.id = secrets.token_urlsafe(24)
        self.call = call
        self.made = time.monotonic()
        self.given_up = False
        self._created = _now()

    @property
    def status(self) -> Status:
        task = self.call.task
        if not task.done():
            return "input_required" if self.call.questions.open else "working"
        if task.cancelled() and self.call.unknown is None:
            return "cancelled"
        if self.call.asked() is not None:  # it goes on with the answers
            return "input_required"
        return "completed"

    def give_up(self) -> None:
        """Cancel it, once."""
        if not self.given_up:
            self.given_up = True
            self.call.give_up()

    def told(self) -> dict[str, Any]:
        """Return the state of a task, without its result."""
        return {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self._created,
            "lastUpdatedAt": _now(),
            "ttlMs": int(TTL * 1000),
            "pollIntervalMs": _POLL_MS,
        }

    def detailed(self) -> dict[str, Any]:
        """Return everything about the task, as `tasks/get` does."""
        told = {**self.told(), "resultType": "complete"}
        if told["status"] == "input_required":
            told["inputRequests"] = {key: _plain(one) for key, one in self.call.open().items()}
        if told["status"] == "completed":
            try:
                told["result"] = _plain(self.call.final())
            except MCPError as error:
                told |= {"status": "failed", "error": _plain(error.error)}
        return told


def _read(responses: Mapping[str, Any]) -> Iterator[tuple[str, types.InputResponse]]:
    """Yield the answers by key, without malformed ones."""
    for key, given in responses.items():
        with suppress(ValidationError):
            yield key, _ANSWER.validate_python(given)


def _plain(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    return plain


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class ServedTasks:
    """Holds the tasks of a server, and answers what clients ask about them."""

    def __init__(self, who: Callable[[], Caller], serves: Callable[[], ToolRunner]) -> None:
        self._who = who
        self._serves = serves
        self._tasks: OrderedDict[str, _Task] = OrderedDict()

    @staticmethod
    def taken_by(context: _Context) -> bool:
        """Return whether a client takes a task in place of a result."""
        told = context.session.client_capabilities
        named = told is not None and EXTENSION in (told.extensions or {})
        return named and context.protocol_version in MODERN_PROTOCOL_VERSIONS

    def made_of(self, call: OneCall) -> dict[str, Any] | None:
        """Return the handle of a call that goes on, or None if there is no room for it."""
        now = time.monotonic()
        for name, one in [*self._tasks.items()]:
            if now - one.made <= TTL:
                break  # they are in the order of their creation
            if one.call.asked() is not None:
                one.give_up()  # it is forgotten the next time
            elif one.call.task.done():
                del self._tasks[name]
        if len(self._tasks) >= _MOST:
            return None
        task = _Task(call)
        self._tasks[task.id] = task
        return {**task.told(), "resultType": "task"}

    async def get(self, context: _Context, params: TaskParams) -> dict[str, Any]:
        task = self._of(context, params)
        context.lifespan_context.of(context, task.call.caller).hear(task.call.tally)
        return task.detailed()

    async def update(self, context: _Context, params: TaskUpdateParams) -> dict[str, Any]:
        task = self._of(context, params)
        if not task.given_up:
            given = dict(_read(params.input_responses))
            task.call = task.call.answered(self._serves(), context, given, caller=self._who())
            context.lifespan_context.of(context, task.call.caller).hold(task.call.task)
        return {"resultType": "complete"}

    async def cancel(self, context: _Context, params: TaskParams) -> dict[str, Any]:
        self._of(context, params).give_up()
        return {"resultType": "complete"}

    def _of(self, context: _Context, params: TaskParams) -> _Task:
        """Return a caller's task. Raises MCPError."""
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(METHOD_NOT_FOUND, "Method not found")
        if not self.taken_by(context):
            needed: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            told = "The client has not declared that it supports tasks."
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, told, needed)
        headers = getattr(context.request, "headers", None)
        if headers is not None and headers.get("mcp-name", "").strip() != params.task_id:
            raise MCPError(HEADER_MISMATCH, "Mcp-Name does not match the task in the body")
        task = self._tasks.get(params.task_id)
        if task is None or task.call.caller.id != self._who().id:
            raise MCPError(INVALID_PARAMS, "There is no such task.")
        return task

    def end(self) -> list[OneCall]:
        """Cancel tasks that run or wait. Return their calls, to be waited for."""
        for task in self._tasks.values():
            task.give_up()
        return [task.call for task in self._tasks.values()]
