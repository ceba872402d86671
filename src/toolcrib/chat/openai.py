"""An agent behind OpenAI's chat completions: for clients that speak nothing else.

Rule: a client sees an answer, as text, and no calls: the tools are the server's, and so is the
decision about them. What a client says was called, or approved, is context (`check_messages`). What
was sent cannot be taken back, so the content for a typed agent is only the accepted answer, and a
waiting call is reported as a refusal. A request for something unsupported is refused, not ignored.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from toolcrib.agent import Agent, RunStream
from toolcrib.approvals import shown_request
from toolcrib.chat.doors import (
    Authenticate,
    ChatError,
    ChatLimits,
    Doors,
    Nothing,
    RunEvents,
    followed,
    leaving,
    retry_after,
)
from toolcrib.chat.messages import begin
from toolcrib.values.decision import Caller
from toolcrib.values.json import encodable
from toolcrib.values.run import Done, ReplyFinished, RunResult, TextDelta
from toolcrib.values.typed import names_wrong_types

_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_WAITING_TEXT = "This call needs an approval, which cannot be given here. It has not run: {} {}"


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _CompletionRequest(msgspec.Struct):
    """The members of a request that count: sampling and tools are the agent's."""

    model: str
    messages: list[dict[str, Any]]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None


_NOTHING_ASKED: Final[Mapping[str, tuple[Any, ...]]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "n": (1,),
    "stop": ([],),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
}
"""Parameters that would need another answer, and the values besides null that ask for nothing."""


@names_wrong_types
def openai_routes(
    agent: Agent,
    *,
    authenticate: Authenticate | None = None,
    allowed_origins: Sequence[str] = (),
    limits: ChatLimits = ChatLimits(),  # noqa: B008  frozen
) -> list[Route]:
    """Return the routes `/v1/chat/completions` and `/v1/models`, for your own app.

    The model's id is the agent's name, or `agent`. `authenticate`, `allowed_origins` and `limits`
    are as for `chat_app`. A call that needs an approval goes to the agent's own approver; without
    one it is refused, and with one that answers later the answer ends with what has not run. If a
    client disconnects, its run is cancelled. Raises TypeError for other types.
    """
    doors = Doors(authenticate, None, allowed_origins, limits)
    front = _Completions(agent, doors)
    return [
        doors.route(
            "POST",
            "/v1/chat/completions",
            front.complete,
            _CompletionRequest,
            refused=_error_response,
        ),
        doors.route("GET", "/v1/models", front.models, refused=_error_response),
    ]


class _Completions:
    def __init__(self, agent: Agent, doors: Doors) -> None:
        self._agent = agent
        self._doors = doors
        self._model = agent.name or "agent"

    async def models(self, _request: Request, _caller: Caller, _body: Nothing) -> Response:
        model = {"id": self._model, "object": "model", "created": 0, "owned_by": "toolcrib"}
        return JSONResponse({"object": "list", "data": [model]})

    async def complete(
        self, request: Request, caller: Caller, body: _CompletionRequest
    ) -> Response:
        if body.model != self._model:
            raise ChatError(404, "model_not_found", f"there is no such model; use {self._model}")
        for name, neutral_values in _NOTHING_ASKED.items():
            if getattr(body, name) not in (None, *neutral_values):
                reason = "is not supported: the server decides the tools and the form of the answer"
                raise ChatError(400, "unsupported_parameter", f"{name} {reason}")
        run = begin(self._doors, self._agent, caller, body.messages)
        is_typed = self._agent.output is not str
        texts = _answer_texts(run, is_typed=is_typed)
        id_, now = f"chatcmpl-{os.urandom(12).hex()}", int(time.time())
        header = {"id": id_, "model": self._model, "created": now}
        if body.stream:
            with_usage = bool(body.stream_options and body.stream_options.include_usage)
            return RunEvents(
                run,
                _chunks(run, texts, header, with_usage=with_usage, is_typed=is_typed),
                self._doors.limits.heartbeat,
            )
        try:
            async with leaving(request, run):
                text = "".join([piece async for piece in texts])
                result = await run.result()
        except ChatError as error:
            return _error_response(error, has_run=True)
        refusal = _refusal(result) if is_typed else None
        content = text if refusal is None else None
        message = {"role": "assistant", "content": content, "refusal": refusal}
        choice = {"index": 0, "message": message, "finish_reason": _finish(result)}
        completion = {"object": "chat.completion", "choices": [choice], "usage": _usage(result)}
        return JSONResponse(header | completion)


async def _chunks(
    run: RunStream,
    texts: AsyncGenerator[str, None],
    header: dict[str, Any],
    *,
    with_usage: bool,
    is_typed: bool,
) -> AsyncGenerator[dict[str, Any] | str, None]:
    header = header | {"object": "chat.completion.chunk"}

    def chunk(delta: dict[str, str], finish: str | None = None) -> dict[str, Any]:
        return header | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    try:
        async for piece in texts:
            yield chunk({"content": piece})
        result = await run.result()
        if is_typed and (refusal := _refusal(result)) is not None:
            yield chunk({"refusal": refusal})
        yield chunk({}, _finish(result))
        if with_usage:
            yield header | {"choices": [], "usage": _usage(result)}
        yield "[DONE]"
    except ChatError as error:
        yield _error_json(error)


async def _answer_texts(run: RunStream, *, is_typed: bool) -> AsyncGenerator[str, None]:
    """Yield what a run says, piece by piece, and what has not run. Raises ChatError if it failed.

    If the agent has a typed output (`is_typed`), that is only the accepted answer, known at the end.
    """
    has_text, separator = False, ""
    async for event in followed(run):
        match event:
            case TextDelta(text=text) if not is_typed:
                yield separator + encodable(text)
                has_text, separator = True, ""
            case ReplyFinished():
                separator = "\n\n" if has_text else ""
            case Done(result=result) if is_typed:
                if result.status == "completed":
                    yield encodable(result.text)
            case Done(result=result):
                if (refusal := _refusal(result)) is not None:
                    yield separator + refusal


def _refusal(result: RunResult) -> str | None:
    """Return what has not run because nobody has answered yet; None if nothing waits."""
    texts = [
        _WAITING_TEXT.format(request.title, shown_request(request)) for request in result.pending
    ]
    return "\n\n".join(texts) if texts else None


def _finish(result: RunResult) -> str:
    return "length" if result.status == "limited" else "stop"


def _usage(result: RunResult) -> dict[str, int]:
    input_tokens, output_tokens = result.usage.input_tokens, result.usage.output_tokens
    return {
        "prompt_tokens": input_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
    }


def _error_json(error: ChatError) -> dict[str, Any]:
    client_error = _ERROR_TYPES.get(error.status, "invalid_request_error")
    error_type = "server_error" if error.status >= 500 else client_error
    return {"error": {"message": str(error), "type": error_type, "param": None, "code": error.code}}


def _error_response(error: ChatError, *, has_run: bool = False) -> Response:
    """Return an error in OpenAI's form; if the run began, clients are told not to retry."""
    headers = {"x-should-retry": "false"} if has_run else retry_after(error)
    return JSONResponse(_error_json(error), error.status, headers)
