"""A client for any model that LiteLLM reaches (`litellm_client`). Needs the extra `litellm`.

Requests are encoded and replies are decoded as for any server with OpenAI's chat wire. LiteLLM
takes the place of the HTTP server.

Rule: an end that LiteLLM makes up does not count as the end of a reply. It says `stop` where a
stream broke off without a reason, and where a provider gave none or an unknown one. So the
provider's own answer is observed where it arrives, in httpx below LiteLLM, and the reply ended as
that says. Calls of a reply that was not observed do not run. Neither do calls of an answer with
several choices: LiteLLM makes one stream of their pieces, and nobody knows which choice a call
belongs to.

LiteLLM runs in an event loop in another thread, which all its clients share, because it makes
requests that block (it asks an Ollama server about its model), and counts tokens and prices in
between.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import re
from base64 import b64decode
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from contextvars import ContextVar
from importlib import import_module
from typing import Any, TypeAlias, TypeGuard, TypeVar, Unpack

import msgspec

from toolcrib.bridges.loops import LoopThreads
from toolcrib.clients.base import Options, WireClient
from toolcrib.clients.server import remembered, secrets_in, secrets_of
from toolcrib.clients.transport import Outgoing, RequestDeadline, Response, Timeouts
from toolcrib.errors import (
    ClientError,
    ConnectionFailed,
    MissingExtraError,
    RequestError,
    WireError,
)
from toolcrib.values.typed import check_type, explains_wrong_types, names_wrong_types
from toolcrib.wire import OPENAI_CHAT
from toolcrib.wire.calls import reason_of
from toolcrib.wire.failure import reported_error
from toolcrib.wire.framing import EventStream, FrameStream, LineStream

__all__ = ["LiteLLMTransport", "litellm_client"]

# otherwise it fetches price lists during its import and in requests
for _name in ("LITELLM_LOCAL_MODEL_COST_MAP", "LITELLM_OFFLINE_MODE"):
    os.environ.setdefault(_name, "true")

try:
    _litellm: Any = import_module("litellm")
    _openai: Any = import_module("openai")  # LiteLLM's errors are based on its errors
    _httpx: Any = import_module("httpx")  # LiteLLM sends its requests with it
except ImportError:
    raise MissingExtraError("litellm", "toolcrib.bridges.litellm") from None

_WIRE = msgspec.structs.replace(OPENAI_CHAT, allowed_tools=False, always_done=True)
_SECRET = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)
_OPTIONS = Options.__annotations__.keys() - {"transport", "headers"}
_ONE_ATTEMPT = {"max_retries": 0, "num_retries": 0}
"""Retries are made by `retries=`, as for every client, and not by LiteLLM and its SDKs as well."""


@explains_wrong_types  # an option that is not there has a reason of its own
def litellm_client(
    model: str, *, given: Mapping[str, Any] | None = None, **options: Unpack[Options]
) -> WireClient:
    """Return a client for a model by LiteLLM's name for it: `anthropic/claude-…`, `ollama_chat/…`.

    `given` are further arguments of `litellm.acompletion`, for every request: `api_key`,
    `api_base`, `extra_headers`, `aws_region_name`, `vertex_project`. Without a key LiteLLM uses its
    own from the environment. The other options are those of `WireClient`, except `transport` and
    `headers`.

    Raises RequestError if LiteLLM knows no provider for the model, or if an option cannot be used
    here.
    """
    for name, value in options.items():
        if name not in _OPTIONS and value is not None:
            raise RequestError(
                f"{name}= cannot be used here: LiteLLM sends the request, with what given= holds"
            )
    check_type("model", model, str, "LiteLLM's name for a model, PROVIDER/MODEL")
    check_type("given", given, Mapping | None, "a dict of further arguments, such as api_key")
    arguments = dict(given or {})
    transport = LiteLLMTransport(arguments, options.get("timeouts"))
    provider_options = {name: arguments.get(name) for name in ("api_base", "custom_llm_provider")}
    try:
        provider = str(_litellm.get_llm_provider(model, **provider_options)[1])
    except _openai.OpenAIError:
        provider = ""
    if not provider:
        raise RequestError(f"LiteLLM knows no provider for {model!r}: name it as PROVIDER/MODEL")
    server = f"https://{provider}.litellm"  # names who may get back a reply's state
    options = {**options, "transport": transport}
    return WireClient(_WIRE, model, base_url=server, **options)


class LiteLLMTransport:
    """Sends requests of OpenAI's chat wire through `litellm.acompletion`. `litellm_client` makes
    it.

    `given` are further arguments of `acompletion`, for every request.
    """

    @names_wrong_types
    def __init__(self, given: Mapping[str, Any], timeouts: Timeouts | None) -> None:
        self._given = _ONE_ATTEMPT | dict(given)
        self._timeouts = timeouts or Timeouts()
        self._sent_secrets: tuple[str, ...] = ()

    async def send(self, request: Outgoing) -> Response:
        """Return the answer, whose body may still be arriving.

        Raises ConnectionFailed if no provider is reached or none answers in time, and RequestError
        if LiteLLM makes no request. An error that the provider reports is an answer with its
        status.
        """
        arguments = self._given | json.loads(request.body)
        observed = _ObservedAnswers(arguments, self._remember)
        deadline = RequestDeadline(self._timeouts, request.until)
        limit = arguments.get("max_tokens") or arguments.get("max_completion_tokens")
        try:
            async with deadline.reading():
                answer = await _in_its_loop(observed.during(_litellm.acompletion(**arguments)))
        except Exception as error:  # noqa: BLE001  of LiteLLM, of each provider's SDK
            refusal = _refusal(error, observed)
        else:
            if arguments.get("stream"):
                return _LiteLLMResponse(_events(answer, deadline, limit, observed), answer)
            return _LiteLLMResponse(_body(_whole_reply(answer, limit, observed)))
        if isinstance(refusal, ClientError):
            raise refusal
        status, headers, content = refusal
        return _LiteLLMResponse(_body(content), status=status, headers=headers)

    def _remember(self, request: Any) -> None:
        self._sent_secrets = remembered(self._sent_secrets, str(request.url), request.headers)

    async def aclose(self) -> None:
        """Do nothing, since LiteLLM's connections are shared by the whole process."""

    @property
    def total(self) -> float | None:
        """The seconds that one request may take, with all attempts."""
        return self._timeouts.total

    @property
    def secrets(self) -> list[str]:
        """The keys in `given`, those that LiteLLM may take from the environment and its settings,
        and those that it sent in headers and URLs."""
        settings = {
            name: getattr(_litellm, name) for name in dir(_litellm) if name.endswith("_key")
        }
        values = {**os.environ, **settings, **self._given}
        secrets = [v for k, v in values.items() if isinstance(v, str) and _SECRET.search(k)]
        secrets += secrets_in(json.dumps({"tools": self._given}, default=str).encode())
        return [
            *secrets,
            *secrets_of(str(self._given.get("api_base") or ""), {}),
            *self._sent_secrets,
        ]

    def __repr__(self) -> str:
        return "LiteLLMTransport()"


T = TypeVar("T")
_LOOPS = LoopThreads("toolcrib litellm")


async def _in_its_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in that loop, with this context. Return its value or raise its error. It is
    cancelled together with its caller."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, _LOOPS.loop()))


async def _next(stream: AsyncIterator[Any]) -> Any:
    return await anext(stream, None)


# Providers' answers, observed in httpx below LiteLLM.

_observing: ContextVar[_ObservedAnswers | None] = ContextVar("toolcrib litellm", default=None)
_send = _httpx.AsyncClient.send


@functools.wraps(_send)
async def _send_and_observe(client: Any, request: Any, **options: Any) -> Any:
    observed = _observing.get()
    if observed is None:  # not a request of one of our clients
        return await _send(client, request, **options)
    observed.remember(request)
    try:
        response = await _send(client, request, **options)
    except Exception as error:
        observed.failures.append(error)
        raise
    observed.note(response, streamed=bool(options.get("stream")))
    return response


_httpx.AsyncClient.send = _send_and_observe

_REASONS = ("finish_reason", "stop_reason", "done_reason", "finishReason", "stopReason")
"""Providers' names for the finish reason."""
_CALL_PIECE = re.compile(
    r'"(?:tool_calls|function_call|functionCall|toolUse|partial_json)": (?!null|""|\[\]|\{\})'
    r'|"type": "(?:tool_use|function_call)"'
)
"""What marks a piece of a call in the JSON of any provider."""
_DONE = "[DONE]"
_LAST_EVENTS = ("message_stop", "response.completed")
_ENDED = frozenset(("completed", "incomplete", "failed", "cancelled"))
_UNHEARD, _SEVERAL = "unheard", "several_choices"
"""This module's own finish reasons, after which no call runs."""
_Object: TypeAlias = dict[str, Any]


class _ObservedAnswers:
    """Collects the HTTP answers to a request with these `arguments`, in all of LiteLLM's attempts.

    `failures` are the unsuccessful answers, and exceptions in place of an answer or within one.
    `remember` is called with each request. An application's callbacks may make requests as well.
    """

    def __init__(self, arguments: Mapping[str, Any], remember: Callable[[Any], None]) -> None:
        self.failures: list[Any] = []
        self.remember = remember
        # the application itself gives the answer, and no provider is asked
        self._is_mocked = bool(arguments.get("mock_response"))
        self._is_streaming = bool(arguments.get("stream"))
        self.bodies: list[tuple[bytes | bytearray, bool]] = []

    async def during(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and collect the answers meanwhile. It needs its own task, since this
        changes the context."""
        _observing.set(self)
        return await coroutine

    def note(self, response: Any, *, streamed: bool) -> None:
        """Keep the contents of an answer, as far as it is read."""
        if not response.is_success:
            self.failures.append(response)
            return
        if not streamed:
            self.bodies.append((response.content, False))
            return
        body, chunks = bytearray(), response.aiter_bytes
        self.bodies.append((body, self._is_streaming))

        async def noted(chunk_size: int | None = None) -> AsyncGenerator[bytes, None]:
            body.clear()  # the body may be read again
            try:
                async with contextlib.aclosing(_whole_events(chunks(chunk_size))) as pieces:
                    async for chunk in pieces:
                        body.extend(chunk)
                        yield chunk
            except Exception as error:
                if not _has_ended(bytes(body)):
                    body.clear()
                self.failures.append(error)
                raise

        response.aiter_bytes = noted

    def ending(self, litellm_reason: object) -> _Object:
        """Return how the reply ended, as members of a choice on the wire.

        If there are several reasons, an unnatural one counts. If the wire does not know that one,
        LiteLLM's reason counts, unless it is a natural one.
        """
        if self._is_mocked and not self.bodies:
            return {"finish_reason": litellm_reason}
        ends = [_end_of(bytes(body), streamed=streamed) for body, streamed in self.bodies]
        reasons = [reason for end in ends if end is not None for reason in end[0]]
        natural = _WIRE.natural_reasons
        reason: object = next((r for r in reasons if r.lower() not in natural), None)
        if reason is None:
            default = None if any(ends) else _UNHEARD
            reason = reasons[-1] if reasons else default
        elif str(reason).lower().partition(":")[0] not in _WIRE.finish_reasons:
            reason = (
                litellm_reason
                if isinstance(litellm_reason, str) and litellm_reason not in natural
                else reason
            )
        native_reasons = [native for end in ends if end is not None for native in end[1]]
        return {
            "finish_reason": reason,
            "native_finish_reason": native_reasons[-1] if native_reasons else None,
        }

    def failure_of(self, error: BaseException) -> Any:
        """Return the nearest of `failures` that an error was raised from. Otherwise return an answer
        with LiteLLM's status, or the last failure if LiteLLM only says that all its `fallbacks`
        failed. Return None if there is none."""
        for candidate in _raised_from(error):
            for failure in self.failures:
                if failure is candidate or failure is getattr(candidate, "response", None):
                    return failure
        if not isinstance(error, _openai.OpenAIError):
            return self.failures[-1] if self.failures else None
        status = getattr(error, "status_code", None)
        responses = [
            candidate for candidate in self.failures if isinstance(candidate, _httpx.Response)
        ]
        return next(
            (candidate for candidate in reversed(responses) if candidate.status_code == status),
            None,
        )

    def error(self) -> object:
        """Return the error in an answer whose status says success."""
        parsed_bodies = (_values(bytes(body))[0] for body, _ in self.bodies)
        errors = (holder.get("error") for values in parsed_bodies for holder in _holders(values))
        return next(filter(None, errors), None)


_EVENT = re.compile(rb".*(?:\n\n|\r\n\r\n|\r\r)", re.DOTALL)
_LINE, _ANY = re.compile(rb".*\n", re.DOTALL), re.compile(rb".*", re.DOTALL)
_UNITS = {b"{": _LINE, b"\0": _ANY, b"[": _ANY}
"""What a stream consists of, by its first byte: lines, AWS's frames, one array, or else events."""


async def _whole_events(chunks: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield a body in pieces that end where an event or a line of JSON ends.

    LiteLLM stops reading at the first line after the reason. Without this, it might stop within an
    event that has only half arrived, which would look like a stream that was cut.
    """
    pending = bytearray()
    unit = None
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            unit = unit or _UNITS.get(chunk[:1], _EVENT)
            pending += chunk
            if whole := unit.match(pending, max(0, len(pending) - len(chunk) - 3)):
                yield bytes(pending[: whole.end()])
                del pending[: whole.end()]
    if pending:
        yield bytes(pending)


def _raised_from(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and what it was raised from or while it was handled, the nearest first."""
    pending: list[BaseException] = [error]
    for current in pending:
        yield current
        others = (
            getattr(current, "original_exception", None),
            current.__cause__,
            current.__context__,
        )
        seen = set(map(id, pending))
        pending += [other for other in others if other is not None and id(other) not in seen]


def _end_of(body: bytes, *, streamed: bool) -> tuple[list[str], list[object]] | None:
    """Return the reasons in one body, and those of the model behind a gateway; None if it has no
    member for them.

    A stream is incomplete if it has no reason, goes on after it, or ends within an event. So is a
    single value in place of a stream, since LiteLLM reads nothing of it.
    """
    values, is_stream = _values(body)
    reasons: list[str] = []
    native_reasons: list[object] = []
    done: object = None
    has_member = False
    for holder in _holders(values):
        reasons += _reasons(holder)
        native_reasons += filter(reason_of, (holder.get("native_finish_reason"),))
        done = holder.get("done", done)  # Ollama's member
        has_member = has_member or done is not None or any(name in holder for name in _REASONS)
    stops_early = is_stream and (values or streamed) and not reasons
    is_cut = done is None and (stops_early or (streamed and not is_stream))
    if done not in (None, True) or is_cut or (is_stream and _is_unfinished(values)):
        reasons.append("incomplete")
    elif done and not reasons:
        reasons.append("stop")  # Ollama gives a reason only since 2024
    if not all(
        map(_is_first, (choice for part in _objects_in(values) for choice in _choices(part)))
    ):
        reasons.append(_SEVERAL)
    return (reasons, native_reasons) if reasons or has_member else None


def _is_unfinished(values: list[Any]) -> bool:
    """Return whether more of a stream was to come. Its last event is cut, or a piece of a call
    follows the reason. Then only a later `[DONE]`, or a later reason of Gemini or Ollama, ends it.
    """
    has_reason = is_voided = False
    for value in values:
        is_voided = is_voided or (has_reason and _CALL_PIECE.search(json.dumps(value)) is not None)
        if any(any(_reasons(holder)) for holder in _holders([value])):
            has_reason = True
            is_voided = is_voided and "choices" in value
    is_cut = any(isinstance(value, str) for value in values[-1:])
    return _DONE not in values and (is_voided or is_cut)


def _has_ended(body: bytes) -> bool:
    """Return whether a stream has come to the mark that ends it on its wire, after which the
    connection may close in any way. Gemini has no such mark."""
    values, is_stream = _values(body)
    last = values[-1] if is_stream and values else None
    if _is_object(last):
        return last.get("done") is True or last.get("type") in _LAST_EVENTS
    return last == _DONE


def _holders(values: Iterable[object]) -> Iterator[_Object]:
    """Yield the objects that may say how the reply ended. Only the provider's own objects count,
    since a model may write any name into its output."""
    for part in _objects_in(values):
        yield part
        yield from filter(_is_first, _choices(part))


def _objects_in(values: Iterable[object]) -> Iterator[_Object]:
    for value in filter(_is_object, values):
        yield from filter(_is_object, (value, value.get("delta"), value.get("response")))


def _choices(part: _Object) -> Iterator[_Object]:
    for choices in (part.get("choices"), part.get("candidates")):
        yield from filter(_is_object, choices if isinstance(choices, list) else ())


def _is_first(choice: _Object) -> bool:
    return choice.get("index") in (None, 0)


def _values(body: bytes) -> tuple[list[Any], bool]:
    """Return the JSON values of a body, and whether it is a stream of them: lines, server-sent
    events or AWS's frames. In a stream, anything that is not JSON is a string: `[DONE]`, or an
    event that was cut."""
    with contextlib.suppress(ValueError, RecursionError):
        document = json.loads(body)
        return (document if isinstance(document, list) else [document]), False
    splitter: EventStream | LineStream | FrameStream = EventStream()
    if body.startswith(b"\0"):
        splitter = FrameStream()
    elif body.lstrip().startswith(b"{"):
        splitter = LineStream()
    values: list[Any] = []
    try:
        for event in filter(None, (*splitter.feed(body), splitter.close())):
            values.append(_value(event.data))
    except WireError:  # everything before it was read
        values.append("")
    return values, True


def _value(data: bytes) -> Any:
    try:
        value = json.loads(data)
        encoded = value.get("bytes") if _is_object(value) else None  # from Bedrock's InvokeModel
        return json.loads(b64decode(encoded)) if isinstance(encoded, str) else value
    except (ValueError, RecursionError):
        return data.decode(errors="replace").strip()


def _is_object(value: object) -> TypeGuard[_Object]:
    return isinstance(value, dict)


def _reasons(holder: _Object) -> Iterator[str]:
    yield from filter(None, (reason_of(holder.get(name)) for name in _REASONS))
    status = str(holder.get("status"))
    if holder.get("object") == "response" and status in _ENDED:
        yield status
    if holder.get("error"):
        yield "error"


# LiteLLM's output in the form of the wire.


def _whole_reply(answer: Any, limit: object, observed: _ObservedAnswers) -> _Object:
    reply = _dumped(answer)
    for choice in reply.get("choices", [])[:1]:
        choice.update(observed.ending(choice.get("finish_reason")) | _length_reason(limit, reply))
    return reply


def _dumped(model: Any) -> _Object:
    dumped: _Object = model.model_dump(mode="json", exclude_none=True, warnings=False)
    return dumped


def _length_reason(limit: object, reply: _Object) -> _Object:
    """Return the reason for a reply that used up its tokens, which was cut whatever LiteLLM calls
    it.

    Ollama's `length` becomes `tool_calls` once there was a call.
    """
    used = reply.get("usage", {}).get("completion_tokens") or 0
    is_used_up = isinstance(limit, int) and 0 < limit <= used
    return {"native_finish_reason": "length"} if is_used_up else {}


async def _events(
    stream: Any, deadline: RequestDeadline, limit: object, observed: _ObservedAnswers
) -> AsyncGenerator[bytes, None]:
    """Yield a stream as server-sent events, with `[DONE]` if the provider said that it ended."""
    last_usage: _Object = {}
    litellm_reason: object = None
    indexes = {0: None}  # by LiteLLM's choices, in their order
    while True:
        try:
            async with deadline.reading():
                chunk = await _in_its_loop(observed.during(_next(stream)))
        except Exception as error:  # noqa: BLE001  of LiteLLM, of each provider's SDK
            failure = _refusal(error, observed)
            break
        if chunk is None:
            if reported := observed.error():
                raise reported_error(reported)
            ending = observed.ending(litellm_reason) | _length_reason(limit, last_usage)
            if ending["finish_reason"]:
                ends = [{"index": index, "delta": {}} | ending for index in indexes]
                yield _event({"choices": ends})
                yield b"data: [DONE]\n\n"
            return
        message = _dumped(chunk)
        for choice in message.get("choices", []):
            litellm_reason = choice.pop("finish_reason", litellm_reason)
            indexes[choice.get("index", 0)] = None
        last_usage = message if "usage" in message else last_usage
        yield _event(message)
    if isinstance(failure, ClientError):
        raise failure
    yield _event(failure[2])


def _event(message: _Object) -> bytes:
    return b"data: " + json.dumps(message).encode() + b"\n\n"


async def _body(reply: _Object) -> AsyncGenerator[bytes, None]:
    yield json.dumps(reply).encode()


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


# LiteLLM's errors, whose classes are OpenAI's, as answers with a status if there is one.

_Refusal: TypeAlias = tuple[int, Mapping[str, str], _Object]
_UNREADABLE = (_openai.APIConnectionError, _openai.InternalServerError)
"""LiteLLM's errors for an answer that it cannot read."""
_PASSED_HEADERS = ("retry-after", "retry-after-ms", "x-should-retry")


def _refusal(error: Exception, observed: _ObservedAnswers) -> ClientError | _Refusal:
    """Return the answer that an error stands for, or an error of this library if there was none.

    What was observed takes precedence over LiteLLM's own status, which is 500 for an unreachable
    server.
    """
    failure = observed.failure_of(error)
    is_broken = isinstance(failure, BaseException)
    response = None if is_broken else failure
    error = getattr(error, "original_exception", None) or error  # raised within a stream
    status = getattr(error, "status_code", None)
    if response is not None:
        status = response.status_code
    elif isinstance(error, TimeoutError | asyncio.TimeoutError | _openai.APITimeoutError):
        timeout = ConnectionFailed("LiteLLM did not answer within the time limit")
        timeout.retryable = False  # the provider may still be working on it
        return timeout
    elif not is_broken and (reported := observed.error()):
        return reported_error(reported)
    elif not is_broken and observed.bodies and isinstance(error, _UNREADABLE):
        return WireError("LiteLLM cannot read what the provider answered")
    elif is_broken or isinstance(error, _openai.APIConnectionError):
        return ConnectionFailed("LiteLLM: the provider was not reached, or the connection broke")
    is_known = isinstance(error, _openai.OpenAIError)
    if not isinstance(status, int) or not (is_known or response is not None):
        missing_module = f": {error.name}" if isinstance(error, ImportError) and error.name else ""
        return RequestError(f"LiteLLM sent no request ({type(error).__name__}{missing_module})")
    is_filter = isinstance(error, _litellm.ContentPolicyViolationError)
    code = "content_policy_violation" if is_filter else getattr(error, "code", None) or status
    error_body = {"message": str(error), "type": getattr(error, "type", None), "code": str(code)}
    response_headers = {} if response is None else response.headers
    headers = {name: response_headers[name] for name in _PASSED_HEADERS if name in response_headers}
    return (
        status if 300 <= status < 600 else 500,
        headers,
        {"error": error_body if is_known else {}},
    )
