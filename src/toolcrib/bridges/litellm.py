"""LiteLLM as the way to a model: any provider that it reaches, behind a client of this library
(`litellm_client`). Needs the extra `litellm`.

Requests are encoded and replies are read as those of any server of OpenAI's chat wire; LiteLLM stands
where an HTTP server would.

Rule: what LiteLLM makes up is no end of a reply. It says `stop` where a stream broke off without a
reason, and where a provider gave none or one that it does not know. So the provider's own reason is
looked for, and a stream is whole only if LiteLLM had received one.

LiteLLM runs in an event loop of its own, in a thread that all its clients share: it makes requests that
block (it asks an Ollama server about its model), and counts tokens and prices in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
)
from importlib import import_module
from typing import Any, TypeAlias, TypeVar, Unpack

import msgspec

from toolcrib.clients.base import Options, WireClient
from toolcrib.clients.server import secrets_in, secrets_of
from toolcrib.clients.transport import Outgoing, RequestDeadline, Response, Timeouts
from toolcrib.errors import ClientError, ConnectionFailed, MissingExtraError, RequestError
from toolcrib.values.typed import names_wrong_types
from toolcrib.wire import OPENAI_CHAT

__all__ = ["LiteLLMTransport", "litellm_client"]

for _name in ("LITELLM_LOCAL_MODEL_COST_MAP", "LITELLM_OFFLINE_MODE"):
    os.environ.setdefault(
        _name, "true"
    )  # else it fetches price lists, in the import and in requests

try:
    _litellm: Any = import_module("litellm")
    _openai: Any = import_module("openai")  # whose errors LiteLLM's are
except ImportError:
    raise MissingExtraError("litellm", "toolcrib.bridges.litellm") from None

_WIRE = msgspec.structs.replace(OPENAI_CHAT, allowed_tools=False, always_done=True)
_ONE_ATTEMPT = {"max_retries": 0, "num_retries": 0}
"""Requests are made again by `retries=`, as for every client, and not by LiteLLM and its SDKs, too."""


@names_wrong_types
def litellm_client(
    model: str, *, given: Mapping[str, Any] | None = None, **options: Unpack[Options]
) -> WireClient:
    """Return a client for a model by LiteLLM's name for it: `anthropic/claude-…`, `ollama_chat/…`.

    `given` are further arguments of `litellm.acompletion`, for every request: `api_key`, `api_base`,
    `extra_headers`, `aws_region_name`, `vertex_project`. Without a key LiteLLM takes its own from the
    environment. The other options are those of `WireClient`, but for `transport` and `headers`.

    Raises RequestError where LiteLLM knows no provider for the model, or an option has no place here.
    """
    for name in ("transport", "headers"):
        if options.get(name) is not None:
            raise RequestError(f"{name}= has no place here: LiteLLM sends, by what given= holds")
    own = dict(given or {})
    transport = LiteLLMTransport(own, options.get("timeouts"))
    where = {name: own.get(name) for name in ("api_base", "custom_llm_provider")}
    try:
        provider = str(_litellm.get_llm_provider(model, **where)[1])
    except _openai.OpenAIError:
        provider = ""
    if not provider:
        raise RequestError(f"LiteLLM knows no provider for {model!r}: name it as PROVIDER/MODEL")
    server = f"https://{provider}.litellm"  # a name, of whom a reply's state may go back to
    options = {**options, "transport": transport}
    return WireClient(_WIRE, model, base_url=server, **options)


class LiteLLMTransport:
    """Sends requests of OpenAI's chat wire by `litellm.acompletion`; `litellm_client` makes it.

    `given` are further arguments of `acompletion`, for every request.
    """

    @names_wrong_types
    def __init__(self, given: Mapping[str, Any], timeouts: Timeouts | None = None) -> None:
        self._given = _ONE_ATTEMPT | dict(given)
        self._timeouts = timeouts or Timeouts()

    async def send(self, request: Outgoing) -> Response:
        """Return the answer, whose body may still be on its way.

        Raises ConnectionFailed where no provider is reached or none answers in time, RequestError where
        LiteLLM makes no request. An error that the provider reports is an answer with its status.
        """
        asked = self._given | json.loads(request.body)
        reply = _RawReply(asked.get("logger_fn"))
        deadline = RequestDeadline(self._timeouts, request.until)
        limit = asked.get("max_tokens") or asked.get("max_completion_tokens")
        try:
            async with deadline.reading():
                made = _litellm.acompletion(**asked | {"logger_fn": reply.note})
                answer = await _in_its_loop(made)
        except Exception as error:  # noqa: BLE001  of LiteLLM, of each provider's SDK
            refused = _refusal(error)
        else:
            if asked.get("stream"):
                return _LiteLLMResponse(_events(answer, deadline, limit), answer)
            return _LiteLLMResponse(_body(reply.judged(answer, limit)))
        if isinstance(refused, ClientError):
            raise refused
        status, headers, said = refused
        return _LiteLLMResponse(_body(said), status=status, headers=headers)

    async def aclose(self) -> None:
        """Do nothing: connections are LiteLLM's, which all of a process share."""

    @property
    def total(self) -> float | None:
        """The seconds that one request may take, with all attempts."""
        return self._timeouts.total

    @property
    def secrets(self) -> list[str]:
        """The keys in `given`, and those that LiteLLM may take from the environment and its
        settings."""
        own = {name: getattr(_litellm, name) for name in dir(_litellm) if name.endswith("_key")}
        named = {**os.environ, **own, **self._given}
        found = [v for k, v in named.items() if isinstance(v, str) and _SECRET.search(k)]
        found += secrets_in(json.dumps({"tools": self._given}, default=str).encode())
        return [*found, *secrets_of(str(self._given.get("api_base") or ""), {})]

    def __repr__(self) -> str:
        return "LiteLLMTransport()"


# LiteLLM's event loop, which lasts as long as the process.

T = TypeVar("T")
_lock = threading.Lock()
_begun: list[tuple[asyncio.AbstractEventLoop, threading.Thread]] = []


async def _in_its_loop(made: Coroutine[Any, Any, T]) -> T:
    """Return or raise what comes of it there, in this context; it is cancelled with whoever waits."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(made, _loop()))


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        if _begun and not _begun[0][1].is_alive():  # in a child that was forked
            _begun.clear()
        if not _begun:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="toolcrib litellm", daemon=True)
            thread.start()
            _begun.append((loop, thread))
        return _begun[0][0]


async def _next(stream: AsyncIterator[Any]) -> Any:
    return await anext(stream, None)


_SECRET = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)

# What LiteLLM gives, in the form of the wire.

_Said: TypeAlias = dict[str, Any]

_REASONS = ("finish_reason", "stop_reason", "done_reason", "finishReason", "stopReason")
"""What providers call the reason for the end of a reply."""
_HOLDERS = ("choices", "candidates")
_KNOWN = _WIRE.natural_reasons | _WIRE.finish_reasons.keys()


class _RawReply:
    """Listens to what LiteLLM logs of a whole reply: the provider's own body."""

    def __init__(self, other: Callable[[Any], object] | None) -> None:
        self._other = other
        self._body: object = None

    def note(self, details: Mapping[str, Any]) -> None:
        """Take what LiteLLM tells its `logger_fn`; an application's own one hears it, too."""
        if details.get("log_event_type") == "post_api_call":
            self._body = details.get("original_response")
        if self._other is not None:
            self._other(details)

    def judged(self, answer: Any, limit: object) -> _Said:
        """Return the reply with the provider's own reason, if its body has a place for one. Where that
        is none of the wire's, what LiteLLM makes of it counts, unless it says that all is well."""
        said = _dumped(answer)
        for choice in said.get("choices", [])[:1]:
            for reason in self._reasons():
                if (
                    str(reason).lower() in _KNOWN
                    or choice.get("finish_reason") in _WIRE.natural_reasons
                ):
                    choice["finish_reason"] = reason
            choice.update(_cut_by(limit, said))
        return said

    def _reasons(self) -> Iterable[object]:
        try:
            body: Any = json.loads(self._body) if isinstance(self._body, str | bytes) else None
        except (ValueError, RecursionError):
            return
        holders = [body]
        for name in _HOLDERS if isinstance(body, dict) else ():
            holders += body[name][:1] if isinstance(body.get(name), list) else []
        for holder in holders:
            if isinstance(holder, dict):
                yield from (holder[name] for name in _REASONS if name in holder)


def _dumped(said: Any) -> _Said:
    dumped: _Said = said.model_dump(mode="json", exclude_none=True, warnings=False)
    return dumped


def _cut_by(limit: object, said: _Said) -> _Said:
    """Return the reason of a reply that used up its tokens: whatever LiteLLM calls it, it was cut.

    Ollama's `length` becomes `tool_calls` once there was a call.
    """
    spent = said.get("usage", {}).get("completion_tokens") or 0
    used_up = isinstance(limit, int) and 0 < limit <= spent
    return {"native_finish_reason": "length"} if used_up else {}


async def _events(
    stream: Any, deadline: RequestDeadline, limit: object
) -> AsyncGenerator[bytes, None]:
    """Yield a stream as server-sent events, with `[DONE]` where a reason for its end was received."""
    last: _Said = {}
    reason: object = None
    while True:
        try:
            async with deadline.reading():
                chunk = await _in_its_loop(_next(stream))
        except Exception as error:  # noqa: BLE001  of LiteLLM, of each provider's SDK
            broken = _refusal(error)
            break
        if chunk is None:
            if reason is not None:
                yield _event({"choices": [{"index": 0, "delta": {}} | _cut_by(limit, last)]})
                yield b"data: [DONE]\n\n"
            return
        said = _dumped(chunk)
        for choice in said.get("choices", []):
            if "finish_reason" in choice and choice.get("index", 0) == 0:
                reason = choice["finish_reason"] = getattr(stream, "received_finish_reason", None)
        last = said if "usage" in said else last
        yield _event(said)
    if isinstance(broken, ClientError):
        raise broken
    yield _event(broken[2])


def _event(said: _Said) -> bytes:
    return b"data: " + json.dumps(said).encode() + b"\n\n"


async def _body(said: _Said) -> AsyncGenerator[bytes, None]:
    yield json.dumps(said).encode()


class _LiteLLMResponse:
    def __init__(
        self,
        data: AsyncGenerator[bytes, None],
        stream: Any = None,
        *,
        status: int = 200,
        headers: Mapping[str, str] = {},
    ) -> None:
        self._data = data
        self._stream = stream
        self.status = status
        kind = "application/json" if stream is None else "text/event-stream"
        self.headers = {**headers, "content-type": kind}

    def chunks(self) -> AsyncIterator[bytes]:
        return self._data

    async def aclose(self, *, whole: bool) -> None:
        """Close the provider's connection, too, unless the stream came to its end."""
        await self._data.aclose()
        if not whole and self._stream is not None:
            with contextlib.suppress(Exception):
                await _in_its_loop(self._stream.aclose())


# LiteLLM's errors, which are OpenAI's with its own words: an answer with a status, where there is one.

_Refused: TypeAlias = tuple[int, Mapping[str, str], _Said]
_TOLD = ("retry-after", "retry-after-ms", "x-should-retry")


def _refusal(error: Exception) -> ClientError | _Refused:
    """Return the answer that an error stands for, or an error of this library where there was none."""
    error = getattr(error, "original_exception", None) or error  # in the middle of a stream
    if isinstance(error, TimeoutError | asyncio.TimeoutError | _openai.APITimeoutError):
        slow = ConnectionFailed("LiteLLM did not answer within the time limit")
        slow.retryable = False  # the provider may still be at work on it
        return slow
    if isinstance(error, _openai.APIConnectionError):
        return ConnectionFailed("LiteLLM: the provider was not reached, or the connection broke")
    status = getattr(error, "status_code", None)
    if not isinstance(error, _openai.OpenAIError) or not isinstance(status, int):
        return RequestError(f"LiteLLM made no request ({type(error).__name__})")
    is_filter = isinstance(error, _litellm.ContentPolicyViolationError)
    code = "content_policy_violation" if is_filter else getattr(error, "code", None) or status
    said = {"message": str(error), "type": getattr(error, "type", None), "code": str(code)}
    given = getattr(getattr(error, "response", None), "headers", {})
    headers = {name: given[name] for name in _TOLD if name in given}
    return status if 400 <= status < 600 else 500, headers, {"error": said}
