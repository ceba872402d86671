"""An agent behind OpenAI's chat completions: for clients that speak nothing else.

Rule: a client sees an answer, as text, and no calls: the tools are the server's, and so is whatever
permits them. What a client says that was called, or approved, is context (`check_messages`).
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec

from toolcrib.agent import Agent, RunStream
from toolcrib.approvals import shown_request
from toolcrib.chat.doors import (
    Authenticate,
    ChatError,
    ChatLimits,
    Doors,
    RunEvents,
    leaving,
    retry_after,
)
from toolcrib.chat.messages import begin
from toolcrib.errors import MissingExtraError
from toolcrib.values.decision import Caller
from toolcrib.values.json import encodable
from toolcrib.values.run import Done, ReplyFinished, RunError, RunResult, TextDelta
from toolcrib.values.typed import names_wrong_types

try:
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route
except ImportError:
    raise MissingExtraError("chat", "starlette") from None

_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_WAITS = "This needs somebody's approval, which cannot be given here. It has not run: {} {}"


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Asked(msgspec.Struct):
    """What counts of a request: how to sample, and the tools, are the agent's."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: dict[str, Any] | None = None


@names_wrong_types
def openai_routes(
    agent: Agent,
    *,
    authenticate: Authenticate | None = None,
    allowed_origins: Sequence[str] = (),
    limits: ChatLimits = ChatLimits(),  # noqa: B008  frozen
) -> list[Route]:
    """Return the routes `/v1/chat/completions` and `/v1/models`, for an app of yours.

    The model's id is the agent's name, or `agent`. `authenticate`, `allowed_origins` and `limits` are
    as for `chat_app`. A call that needs an approval is for the agent's own approver; without one it is
    refused, and with one that answers later the answer ends with what has not run. A client that
    leaves cancels its run. Raises TypeError for other types.
    """
    doors = Doors(authenticate, None, allowed_origins, limits)
    front = _Completions(agent, doors)
    return [
        doors.route("POST", "/v1/chat/completions", front.complete, _refused),
        doors.route("GET", "/v1/models", front.models, _refused),
    ]


class _Completions:
    def __init__(self, agent: Agent, doors: Doors) -> None:
        self._agent = agent
        self._doors = doors
        self._model = agent.name or "agent"

    async def models(self, _request: Request, _caller: Caller) -> Response:
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "toolcrib"}
        return JSONResponse({"object": "list", "data": [model]})

    async def complete(self, request: Request, caller: Caller) -> Response:
        asked: _Asked = await self._doors.body(request, _Asked)
        self._check(asked)
        run = begin(self._doors, self._agent, caller, asked.messages)
        head: dict[str, Any] = {"id": f"chatcmpl-{os.urandom(12).hex()}", "model": self._model}
        head["created"] = int(time.time())
        if not asked.stream:
            return await self._whole(request, run, head)
        usage = asked.stream_options is not None and asked.stream_options.include_usage
        return RunEvents(run, _chunks(run, head, usage=usage), self._doors.limits.heartbeat)

    def _check(self, asked: _Asked) -> None:
        if asked.model != self._model:
            raise ChatError(404, "model_not_found", f"the model here is {self._model}")
        plain = (asked.response_format or {}).get("type", "text") == "text"
        if asked.tools or asked.functions or not plain or asked.n not in (None, 1):
            told = "the tools and the form of the answer are the server's, and there is one answer"
            raise ChatError(400, "unsupported_parameter", told)

    async def _whole(self, request: Request, run: RunStream, head: dict[str, Any]) -> Response:
        async with leaving(request, run):
            try:
                pieces = [piece async for piece in _answer(run)]
            except ChatError as error:
                return _refused(error, ran=True)
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        (result,) = (piece for piece in pieces if not isinstance(piece, str))
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": _finish(result)}
        told = {"object": "chat.completion", "choices": [choice], "usage": _usage(result)}
        return JSONResponse(head | told)


async def _chunks(
    run: RunStream, head: dict[str, Any], *, usage: bool
) -> AsyncGenerator[dict[str, Any] | str, None]:
    head = head | {"object": "chat.completion.chunk"}

    def chunk(delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
        return head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    try:
        async for piece in _answer(run):
            if isinstance(piece, str):
                yield chunk({"content": piece})
            else:
                yield chunk({}, _finish(piece))
                if usage:
                    yield head | {"choices": [], "usage": _usage(piece)}
                yield "[DONE]"
    except ChatError as error:
        yield _told(error)


async def _answer(run: RunStream) -> AsyncGenerator[str | RunResult, None]:
    """Yield what a run says, piece by piece, then how it ended. Raises ChatError where it failed."""
    failed, before, gap = ChatError(503, "cancelled", "the run was cancelled"), False, ""
    async for event in run:
        match event:
            case TextDelta(text=text):
                yield gap + encodable(text)
                before, gap = True, ""
            case ReplyFinished():
                gap = "\n\n" if before else ""
            case RunError(kind=kind, message=message):
                failed = ChatError(502, kind, encodable(message))
            case Done(result=result) if result.status not in ("failed", "cancelled"):
                for asked in result.pending:
                    yield gap + _WAITS.format(asked.tool, shown_request(asked))
                    gap = "\n\n"
                yield result
                return
    raise failed


def _finish(result: RunResult) -> str:
    return "length" if result.status == "limited" else "stop"


def _usage(result: RunResult) -> dict[str, int]:
    sent, written = result.usage.input_tokens, result.usage.output_tokens
    whole = sent + written
    return {"prompt_tokens": sent, "completion_tokens": written, "total_tokens": whole}


def _told(error: ChatError) -> dict[str, Any]:
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    kind = _KINDS.get(error.status, kind)
    return {"error": {"message": str(error), "type": kind, "param": None, "code": error.code}}


def _refused(error: ChatError, *, ran: bool = False) -> Response:
    """Return an error in OpenAI's form; of a run that began, its clients ask not once more."""
    headers = {"x-should-retry": "false"} if ran else retry_after(error)
    return JSONResponse(_told(error), error.status, headers)
