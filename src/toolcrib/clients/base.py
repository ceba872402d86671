"""A client consists of a wire, a transport and a base URL. All three are values that can be
replaced.

A call leaves a client only inside a whole `Reply`. If the connection breaks, or a stream ends
without saying so, that is an error, and what had arrived by then is only text for display. A
request is retried only while nothing of its answer has been passed on.

Rule: a request has one time limit, which includes all attempts and the waits between them. A wait
that would end after the limit is not begun.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import threading
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from datetime import UTC
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar
from urllib.parse import urlsplit

import msgspec

from toolcrib.clients.server import (
    checked_headers,
    checked_url,
    hidden,
    joined,
    merged,
    secrets_in,
    secrets_of,
)
from toolcrib.clients.transport import (
    AiohttpTransport,
    Outgoing,
    Response,
    Timeouts,
    Transport,
    is_bounded,
    limit_of,
)
from toolcrib.closing import Closing
from toolcrib.errors import (
    ClientError,
    ConnectionFailed,
    ProviderError,
    RateLimitError,
    RequestError,
    install_hint,
)
from toolcrib.hydration import hydrate
from toolcrib.tools import ToolLike, as_tools
from toolcrib.values.call import CallFault
from toolcrib.values.definition import HasDefinition
from toolcrib.values.message import (
    ChatRequest,
    LLMClient,
    Message,
    Offer,
    Plan,
    ReasoningPart,
    Reply,
    Settings,
    StreamPart,
    TextPart,
)
from toolcrib.values.step import offer_of
from toolcrib.values.typed import (
    HandWritten,
    check_type,
    explains_wrong_types,
    names_wrong_types,
)
from toolcrib.wire import (
    Decoder,
    Memo,
    TextSyntax,
    Wire,
    decoder,
    encode,
    http_error,
    syntax_of,
    wire_of,
)
from toolcrib.wire.base import REMEMBERED_BYTES
from toolcrib.wire.failure import safe_text

if TYPE_CHECKING:
    import tenacity
    from tenacity.asyncio import AsyncRetrying

T = TypeVar("T")


# Retries. The error says whether a request is worth retrying (`ClientError.retryable`). The
# provider says when, or else the wait doubles each time and has a random part. tenacity does the
# stopping and the waiting.


class Retries(HandWritten, frozen=True, kw_only=True):
    """Says how often a request is made in all, and how many seconds are waited between attempts.

    The first wait is `first_wait`, and each further one is twice as long, up to `longest_wait`. A
    random time of up to `first_wait` is added to each. A provider's own waiting time is respected.
    If it is longer than `longest_wait`, the error is raised at once, with `.retry_after`. Tests may
    replace `sleep`, which does the waiting. Raises ValueError for impossible numbers.
    """

    attempts: int = 3
    first_wait: float = 0.5
    longest_wait: float = 60.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        if self.attempts.__class__ is not float:  # NaN is left to the check of the numbers
            super().__post_init__()
        has_valid_waits = 0 <= self.first_wait <= self.longest_wait and self.first_wait < math.inf
        if not (self.attempts >= 1 and has_valid_waits):  # also True if one of them is NaN
            raise ValueError(
                "Retries: attempts must be at least 1, and 0 <= first_wait <= longest_wait"
            )

    def allow(self, error: BaseException | None) -> bool:
        """Return whether the error is worth another attempt, if any attempts are left."""
        if not isinstance(error, ClientError) or not error.retryable:
            return False
        return error.retry_after is None or error.retry_after <= self.longest_wait


class Attempts:
    """The attempts at one request. With `retries` None there is only one. tenacity is imported at
    the second attempt.

    `until` is the event loop's time at which all attempts have to be over, or None for no limit.
    """

    def __init__(self, retries: Retries | None, total: float | None = None) -> None:
        self._retries = retries
        self.until = None if total is None else asyncio.get_running_loop().time() + total
        self._attempts: AsyncRetrying | None = None
        self._attempt: tenacity.AttemptManager | None = None
        self._failure_count = 0

    async def after(self, error: ClientError) -> None:
        """Wait until the request may be made again. Raises the error if it may not.

        After several attempts, the error that is raised says how many there were.
        """
        self._failure_count += 1
        try:
            await self._next(error)
        except ClientError:
            if self._failure_count > 1:
                error.args = (f"{error} (after {self._failure_count} attempts)",)
            raise

    async def _next(self, error: ClientError) -> None:
        if self._retries is None or not self._retries.allow(error):
            raise error
        if self._attempts is None or self._attempt is None:
            self._attempts = aiter(_retrying(self._retries, error, self.until))
            self._attempt = await anext(self._attempts)
        with self._attempt:
            raise error
        self._attempt = await anext(self._attempts)


async def retried(attempts: Attempts, ask: Callable[[float | None], Awaitable[T]]) -> T:
    """Return what `ask(until)` returns, and retry it where its ClientError is worth it. Raises the
    last error."""
    while True:
        try:
            return await ask(attempts.until)
        except ClientError as error:
            failure = error
        await attempts.after(failure)


def _retrying(retries: Retries, error: ClientError, until: float | None) -> AsyncRetrying:
    """Return tenacity's loop. Raises the error itself if tenacity is not installed."""
    try:
        import tenacity
        from tenacity.asyncio import AsyncRetrying
    except ImportError:
        error.args = (
            f"{error} (to retry automatically, install the extra: {install_hint('http')})",
        )
        raise error from None
    backoff = tenacity.wait_exponential(retries.first_wait, retries.longest_wait)
    jitter = tenacity.wait_random(0, retries.first_wait)

    def wait(state: tenacity.RetryCallState) -> float:
        failure = state.outcome.exception() if state.outcome is not None else None
        provider_wait = failure.retry_after if isinstance(failure, ClientError) else None
        return jitter(state) + (backoff(state) if provider_wait is None else provider_wait)

    now = asyncio.get_running_loop().time

    def is_over(state: tenacity.RetryCallState) -> bool:
        is_too_late = until is not None and now() + state.upcoming_sleep >= until
        return is_too_late or state.attempt_number >= retries.attempts

    return AsyncRetrying(
        stop=is_over,
        retry=tenacity.retry_if_exception(retries.allow),
        wait=wait,
        sleep=retries.sleep,
        reraise=True,
    )


# Errors of providers: the message from the body, and from the headers when to try again.

_MOST_ERROR_BYTES = 64 * 1024
_PATIENCE = 5.0
"""Seconds that reading an error's text may take, once the status is known."""
_BOOLEANS = {"true": True, "false": False}


async def refusal(response: Response) -> ClientError:
    """Return the error for an answer, with as much of its text as can be read.

    OpenAI and Anthropic tell their own clients by `x-should-retry` whether to try again.
    """
    body = b""
    with contextlib.suppress(ConnectionFailed, TimeoutError):
        async with asyncio.timeout(_PATIENCE):
            async for chunk in response.chunks():
                body += chunk
                if len(body) > _MOST_ERROR_BYTES:
                    break
    headers = response.headers
    wait = retry_after(headers, time.time())
    error = http_error(response.status, body, retry_after=wait)
    error.retryable = _BOOLEANS.get(headers.get("x-should-retry", "").lower(), error.retryable)
    if error.retryable and wait is not None:
        error.retry_after = wait
    return error


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds to wait according to an answer's headers (lower-case names), or None.

    `retry-after-ms` is sent by Azure and OpenAI. `retry-after` is in seconds, or a date (RFC 9110,
    10.2.3), from which `now`, in seconds since 1970, is subtracted. A date without a zone is in UTC
    (5.6.7).
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        waits = [_number(value) for value in headers.get(name, "").split(",")]  # one a line
        seconds = [wait for wait in waits if wait is not None]
        if len(seconds) == len(waits):
            return max(seconds) * unit
    from email.utils import parsedate_to_datetime  # takes 5 ms, which `import toolcrib` saves

    try:
        date = parsedate_to_datetime(headers.get("retry-after", ""))
        date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        return max(0.0, date.timestamp() - now)
    except (ValueError, TypeError, OverflowError):
        return None


_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?(e[0-9]+)?")  # `float` reads more: 1_000, nan


def _number(value: str) -> float | None:
    number = float(value) if _NUMBER.fullmatch(value.strip()) else math.inf
    return max(0.0, number) if math.isfinite(number) else None


# One request and its answer, as every client makes them.
#
# Rule: the answer is always closed in the end, and none of its errors contains a key.

_PARTIAL_CONTENT = 206
"""The status of a partial answer, which was not asked for."""


@asynccontextmanager
async def exchanged(
    transport: Transport, outgoing: Outgoing, base: str, headers: Mapping[str, str]
) -> AsyncGenerator[Response, None]:
    """Yield the answer. Raises ClientError if the server refused the request.

    Errors hide keys that a provider repeats: those in `base` and `headers`, those of the transport,
    and those for other servers in the request.
    """
    try:
        response = await transport.send(outgoing)
        is_whole = False
        try:
            if not 200 <= response.status < 300 or response.status == _PARTIAL_CONTENT:
                raise await refusal(response)
            yield response
            is_whole = True
        finally:
            await response.aclose(whole=is_whole)
    except ClientError as error:
        secrets = _secrets_sent(transport, outgoing, base, headers)
        error.args = tuple(
            hidden(part, secrets) if isinstance(part, str) else part for part in error.args
        )
        error.__context__ = None
        raise


def _secrets_sent(
    transport: Transport, outgoing: Outgoing, base: str, headers: Mapping[str, str]
) -> list[str]:
    secrets = (*secrets_of(base, headers), *secrets_in(outgoing.body))
    return [*secrets, *getattr(transport, "secrets", ())]


def _without_secrets(reply: Reply, secrets: list[str]) -> Reply:
    """Return the reply without secrets in the finish reason that the provider gave."""
    calls = tuple(
        msgspec.structs.replace(
            call, fault=CallFault(call.fault.code, hidden(call.fault.message, secrets))
        )
        if call.fault
        else call
        for call in reply.tool_calls
    )
    message = msgspec.structs.replace(reply.message, tool_calls=calls)
    reason = hidden(reply.provider_finish or "", secrets)
    return msgspec.structs.replace(reply, message=message, provider_finish=reason)


Tools: TypeAlias = Iterable[Any] | ToolLike


@names_wrong_types
def request_of(prompt: str | ChatRequest, tools: Tools) -> ChatRequest:
    """Return the request for a prompt with tools in any form: classes, functions, catalogs,
    dictionaries.

    A `ChatRequest` keeps its own tools if `tools` is empty, and its `id_prefix`. Without a prefix
    it gets one that no other request has.
    """
    request = ChatRequest((Message.user(prompt),)) if isinstance(prompt, str) else prompt
    offered = as_tools(tools) or as_tools(request.tools)
    return msgspec.structs.replace(request, tools=offered, id_prefix=request.new_prefix())


@names_wrong_types
def plan_of(reply: Reply, request: ChatRequest | None = None) -> Plan:
    """Return the reply's calls, hydrated against what was offered. No tool runs.

    A call of a tool that the request's `tool_choice` does not permit is rejected.
    """
    offer = reply.offer if request is None else reply.offer.permitted_by(request.tool_choice)
    return Plan([hydrate(call, offer) for call in reply.tool_calls], reply, request)


class PlanningClient(Closing):
    """Gives each client of this library `async with`, and a `tool_call` that is based on its own
    `chat`."""

    async def chat(self, request: ChatRequest) -> Reply:
        """Return the whole reply. Raises ClientError."""
        raise NotImplementedError

    async def tool_call(self, prompt: str | ChatRequest, tools: Tools = ()) -> Plan:
        """Return the calls that the model wants to make, hydrated. No tool runs. Raises ClientError."""
        request = request_of(prompt, tools)
        return plan_of(await self.chat(request), request)


NativeOutput: TypeAlias = bool | Literal["tool"] | None
"""How the schema of a typed answer is sent: in the provider's own form, as a tool, in words only,
or depending on what the server and the model are known to take."""


class Options(TypedDict, total=False):
    """Keyword arguments that each provider's client passes on to `WireClient`."""

    headers: Mapping[str, str] | None
    settings: Settings
    transport: Transport | None
    timeouts: Timeouts | None
    retries: Retries | None
    text_calls: TextSyntax | str | None
    text_calls_trusted: bool
    natural_reasons: Iterable[str]
    native_output: NativeOutput
    result_media: Iterable[str] | None
    prompt_media: Iterable[str] | None
    history_bytes: int


def with_headers(defaults: Mapping[str, str], options: Options) -> Options:
    """Return the options with these headers added, unless they have headers of the same name."""
    return {**options, "headers": merged(defaults, checked_headers(options.get("headers") or {}))}


def _with_text_calls(wire: Wire, syntax: TextSyntax | str | None, *, trusted: bool) -> Wire:
    if syntax is not None:
        wire = msgspec.structs.replace(wire, text_calls=syntax_of(syntax))
    if trusted and wire.text_calls is None:
        raise RequestError("text_calls_trusted needs text_calls, the syntax of the calls to trust")
    return msgspec.structs.replace(wire, text_calls_trusted=True) if trusted else wire


def _with_output(wire: Wire, native: NativeOutput) -> Wire:
    """Return the wire with its own form for typed answers, with a tool for them, or with neither.
    None leaves the wire's own choice."""
    if native is None:
        return wire
    if native == "tool":
        return msgspec.structs.replace(wire, output_tool=True)
    check_type("native_output", native, bool, "True, False, 'tool' or None")
    if not native:
        return msgspec.structs.replace(wire, output=None, output_tool=False)
    if wire.output is None:
        raise RequestError(f"native_output=True: {wire.name} has no native form for a typed answer")
    return msgspec.structs.replace(wire, output=wire.output.everywhere())


def _checked_size(name: str, value: int) -> int:
    check_type(name, value, int, "a number of bytes")
    if isinstance(value, bool) or value < 0:
        raise RequestError(f"{name} must be a number of bytes, 0 or more")
    return value


def _with_natural_reasons(wire: Wire, reasons: Iterable[str]) -> Wire:
    if isinstance(reasons, str):
        raise RequestError(f"natural_reasons must be a list: [{reasons!r}]")
    added = frozenset(reason.lower() for reason in reasons)
    return msgspec.structs.replace(wire, natural_reasons=wire.natural_reasons | added)


def _with_media(
    wire: Wire, where: Literal["result", "prompt"], media: Iterable[str] | None
) -> Wire:
    """Return the wire for models that take these media types in results, or in prompts. None keeps
    what is known. Raises RequestError for a single string."""
    if media is None:
        return wire
    if isinstance(media, str):
        raise RequestError(f"{where}_media must be a list of media types: [{media!r}]")
    media_types = frozenset(media_type.lower() for media_type in media)
    return msgspec.structs.replace(wire, **{f"{where}_media": media_types, f"{where}_models": ""})


class _PerThread(threading.local):
    """Holds each thread's own data, since two threads must not extend the same encoded history."""

    def __init__(self, history_bytes: int) -> None:
        self.memo = Memo(history_bytes)


class WireClient(PlanningClient):
    """An `LLMClient` for any server that speaks a known wire.

    `wire` is a name or a `Wire`. `headers` are sent with every request. `settings` are the defaults
    for what a request leaves open. `retries` says how often a request is made, with None for once.

    `text_calls` is the syntax, by name or as a value, of calls that the model writes in its text.
    Such calls ask for approval unless their tool is read-only. With `text_calls_trusted`, calls at
    the syntax's own marks do not ask for that reason. `natural_reasons` are finish reasons that
    this server gives for the natural end of a reply, in addition to those of the wire. Calls of a
    reply that ended for any other reason do not run.

    The schema of a typed answer is always in the instructions. `native_output` says how else it is
    sent. By default the provider's own form is used where server and model are known to take it,
    and next to tools a further tool where they are not. True uses that form in any case, "tool" a
    tool in each request, and False neither. `result_media` are the media types (`image/png`) of
    content that this server takes in results, in place of the wire's own. Other content is
    described to the model in text. `prompt_media` are the media types that a user's prompt may
    contain. Anything else is refused.

    `history_bytes` is how much memory each thread may use for encoded conversations (64 MB), of
    which the last used ones are kept. Others are encoded as a whole in each turn. One client serves
    any number of concurrent requests, also from the event loops of several threads. Raises
    RequestError if `text_calls_trusted` is given without a syntax, or if the wire has no form for a
    typed answer.
    """

    @names_wrong_types
    def __init__(  # noqa: PLR0913  optional settings of an application
        self,
        wire: Wire | str,
        model: str,
        *,
        base_url: str,
        headers: Mapping[str, str] | None = None,
        settings: Settings = Settings(),  # noqa: B008  frozen
        transport: Transport | None = None,
        timeouts: Timeouts | None = None,
        retries: Retries | None = Retries(),  # noqa: B008  frozen
        text_calls: TextSyntax | str | None = None,
        text_calls_trusted: bool = False,
        natural_reasons: Iterable[str] = (),
        native_output: NativeOutput = None,
        result_media: Iterable[str] | None = None,
        prompt_media: Iterable[str] | None = None,
        history_bytes: int = REMEMBERED_BYTES,
    ) -> None:
        wire = _with_output(_with_natural_reasons(wire_of(wire), natural_reasons), native_output)
        wire = _with_text_calls(wire, text_calls, trusted=text_calls_trusted)
        wire = _with_media(_with_media(wire, "result", result_media), "prompt", prompt_media)
        check_type("settings", settings, Settings, "a Settings, such as Settings(temperature=0)")
        self.settings = settings
        self._model = model
        self._base = checked_url(base_url)
        address = urlsplit(self._base)
        self.wire = wire.at(address.hostname or "", address.port)
        self._headers = checked_headers(headers or {})
        self._transport = transport or AiohttpTransport(timeouts)
        self._retries = retries
        self._per_thread = _PerThread(_checked_size("history_bytes", history_bytes))
        self._provider = f"{self.wire.name} at {address.hostname or 'an unknown server'}"
        self._last_tools: tuple[HasDefinition, ...] = ()

    @property
    def model(self) -> str:
        return self._model

    async def chat(self, request: ChatRequest) -> Reply:
        """Return the whole reply. Raises ClientError, whose subclasses say what went wrong."""
        attempts = Attempts(self._retries, limit_of(self._transport))
        return await retried(attempts, lambda until: self._reply(request, until))

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        """Yield text, reasoning and arguments as they arrive, and the whole `Reply` last.

        A failure before any text or argument arrived is retried, so reasoning may be yielded twice.
        Raises ClientError.
        """
        attempts = Attempts(self._retries, limit_of(self._transport))
        while True:
            has_begun = False
            try:
                async with contextlib.aclosing(self._parts(request, attempts.until)) as parts:
                    async for part in parts:
                        has_begun = has_begun or not isinstance(part, ReasoningPart)
                        yield part
            except ClientError as error:
                if has_begun:
                    raise
                failure = error
            else:
                return
            await attempts.after(failure)

    async def _reply(self, request: ChatRequest, until: float | None) -> Reply:
        outgoing, new_decoder = self._encoded(request, until, stream=False)
        async with exchanged(self._transport, outgoing, self._base, self._headers) as response:
            reply_decoder = new_decoder(response)
            async for chunk in response.chunks():
                reply_decoder.feed(chunk)
                if reply_decoder.done:
                    break
            return self._checked(reply_decoder.finish(clean=is_bounded(response)), outgoing)

    async def _parts(
        self, request: ChatRequest, until: float | None
    ) -> AsyncGenerator[StreamPart, None]:
        texts: list[str] = []
        outgoing, new_decoder = self._encoded(request, until, stream=True)
        async with exchanged(self._transport, outgoing, self._base, self._headers) as response:
            reply_decoder = new_decoder(response)
            async for chunk in response.chunks():
                for part in reply_decoder.feed(chunk):
                    if isinstance(part, TextPart):
                        texts.append(part.text)
                    yield part
                if reply_decoder.done:
                    break
            reply = self._checked(reply_decoder.finish(clean=is_bounded(response)), outgoing)
        streamed_text = "".join(texts)
        if reply.text.startswith(streamed_text) and reply.text != streamed_text:
            # all text of a server that does not stream, or text that might have become a call
            yield TextPart(reply.text[len(streamed_text) :])
        yield reply

    def offer(self, request: ChatRequest, reply: Reply) -> Offer:
        """Return the offer of the request that this reply answers. Raises what encoding raises."""
        del reply
        request = self._completed(request)
        return encode(
            self.wire, request, model=self._model, stream=False, memo=self._per_thread.memo
        ).offer

    @property
    def provider(self) -> str:
        """The wire and the server, as replies name them."""
        return self._provider

    async def aclose(self) -> None:
        await self._transport.aclose()

    def __repr__(self) -> str:
        server = Outgoing(method="", url=self._base, headers={}, body=b"").server
        return f"{type(self).__name__}({self._model!r}, {self.wire.name} at {server})"

    def _encoded(
        self, request: ChatRequest, until: float | None, *, stream: bool
    ) -> tuple[Outgoing, Callable[[Response], Decoder]]:
        request = self._completed(request)
        memo = self._per_thread.memo
        encoded = encode(self.wire, request, model=self._model, stream=stream, memo=memo)
        outgoing = Outgoing(
            method=encoded.method,
            url=joined(self._base, encoded.path),
            headers=merged(encoded.headers, self._headers),
            body=encoded.body,
            until=until,
        )

        def new_decoder(response: Response) -> Decoder:
            content_type = response.headers.get("content-type", "").lower()
            is_stream = stream or "event-stream" in content_type
            return decoder(self.wire, is_stream, encoded.offer, request.new_prefix())

        return outgoing, new_decoder

    def _checked(self, reply: Reply, outgoing: Outgoing) -> Reply:
        reason = safe_text(reply.provider_finish or "")
        because = f" (its reason: {reason})" if reason else ""
        if reply.finish == "incomplete":
            raise ConnectionFailed(f"the reply ended before it was complete{because}")
        if reply.finish == "error":
            raise ProviderError(f"the provider broke off its reply{because}")
        if reply.finish == "doubtful" or not self._is_listed(reply.provider_finish or ""):
            secrets = _secrets_sent(self._transport, outgoing, self._base, self._headers)
            reply = _without_secrets(reply, secrets)
        return msgspec.structs.replace(reply, model=self._model, provider=self._provider)

    def _is_listed(self, reason: str) -> bool:
        """Return whether a finish reason is one that the wire knows, without any detail."""
        word = reason.lower()
        return not word or word in self.wire.natural_reasons or word in self.wire.finish_reasons

    def _completed(self, request: ChatRequest) -> ChatRequest:
        """Return the request with this client's settings where it leaves them open."""
        ChatRequest.check(request)
        defaults, requested = self.settings, request.settings
        if defaults != Settings():
            request = msgspec.structs.replace(request, settings=requested.over(defaults))
        if request.tools is not self._last_tools:
            if not (
                isinstance(request.tools, tuple)
                and all(hasattr(tool, "get_definition") for tool in request.tools)
            ):
                request = msgspec.structs.replace(request, tools=as_tools(request.tools))
            self._last_tools = request.tools
        return request


# Fallbacks: if one client cannot answer, the next one is asked.
#
# Once part of an answer was passed on, its errors are raised to the caller, since no other client
# can go on in the middle of a sentence.

_FALLBACK_ERRORS = (ConnectionFailed, RateLimitError, ProviderError)


@explains_wrong_types
def fallback(
    clients: Sequence[LLMClient], *, on: tuple[type[ClientError], ...] = _FALLBACK_ERRORS
) -> FallbackClient:
    """Make one client out of several. The next one is asked if one raises an error of a kind in
    `on`.

    Each client makes its own attempts first (`retries=`). A refused request would be refused by the
    next client as well, and a wrong key should be noticed, so neither is in `on` unless you add it.
    Raises RequestError if there are no clients, and for a value that is no client or no such error.
    """
    return FallbackClient(clients, on)


def models_of(client: LLMClient) -> tuple[str, ...]:
    """Return the models that a client may ask. A fallback has several."""
    return tuple(member.model for member in _asked_clients(client))


def _asked_clients(client: LLMClient) -> Iterator[LLMClient]:
    """Yield the clients that send requests: itself, or those of a fallback, at any depth."""
    if isinstance(client, FallbackClient):
        for member in client.clients:
            yield from _asked_clients(member)
    else:
        yield client


class FallbackClient(PlanningClient):
    """Asks clients in turn until one answers. `Reply.model` says which one did."""

    @explains_wrong_types
    def __init__(self, clients: Sequence[LLMClient], on: tuple[type[ClientError], ...]) -> None:
        self._clients = tuple(clients)
        if not self._clients:
            raise RequestError("fallback: give at least one client")
        for client in self._clients:
            if not isinstance(client, LLMClient):
                raise RequestError(
                    f"fallback: {client!r} is not a client; client_for(name) makes one"
                )
        if not all(isinstance(kind, type) and issubclass(kind, ClientError) for kind in on):
            raise RequestError("fallback: on=(…) takes subclasses of ClientError")
        self._error_types = tuple(on)

    @property
    def clients(self) -> tuple[LLMClient, ...]:
        """The clients, in the order in which they are asked."""
        return self._clients

    @property
    def model(self) -> str:
        """The model of the first client, which is meant to answer."""
        return self._clients[0].model

    async def chat(self, request: ChatRequest) -> Reply:
        """Return the first whole reply. Raises the last client's error, with a note that lists all
        errors."""
        failures: list[ClientError] = []
        for client in self._clients:
            try:
                return await client.chat(request)
            except self._error_types as error:
                failures.append(error)
        raise self._last_of(failures)

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        """Yield what `chat` returns, in parts. After the first part no other client is asked."""
        failures: list[ClientError] = []
        for client in self._clients:
            has_begun = False
            parts = client.stream(request)
            try:
                async for part in parts:
                    has_begun = has_begun or not isinstance(part, ReasoningPart)
                    yield part
            except self._error_types as error:
                if has_begun:
                    raise
                failures.append(error)
            else:
                return
            finally:
                if isinstance(parts, AsyncGenerator):
                    await parts.aclose()
        raise self._last_of(failures)

    @explains_wrong_types
    def offer(self, request: ChatRequest, reply: Reply) -> Offer:
        """Return the offer of the request to the client that gave this reply."""
        origin = (reply.model, reply.provider)
        clients = list(_asked_clients(self))
        for client in clients:
            if (client.model, getattr(client, "provider", "")) == origin:
                return offer_of(client, request, reply)
        return offer_of(clients[0], request, reply)

    async def aclose(self) -> None:
        """Close all clients, even if closing one of them fails."""
        async with contextlib.AsyncExitStack() as stack:
            for client in self._clients:
                stack.push_async_callback(client.aclose)

    def __repr__(self) -> str:
        return f"fallback({list(self._clients)!r})"

    def _last_of(self, failures: list[ClientError]) -> ClientError:
        """Return the last failure, with a note that lists all clients, since the first failure is
        often the cause."""
        for client, failure in zip(self._clients, failures, strict=True):
            failures[-1].add_note(f"{client.model}: {type(failure).__name__}: {failure}")
        return failures[-1]
