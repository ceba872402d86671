"""The transport that records exchanges and replays them.

A file is written only when a block ended well, and then all at once, so neither a failed test nor a
killed one changes a file. A request that was not recorded is an error, and is never sent.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import copy
import itertools
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias, get_args
from urllib.parse import urlsplit

import msgspec

from toolcrib.clients import AiohttpTransport, Outgoing, Response, Transport
from toolcrib.clients.base import retry_after
from toolcrib.clients.transport import is_bounded
from toolcrib.errors import ConnectionFailed, SourceError, ToolcribError, listed
from toolcrib.storage import mode_of, replacing
from toolcrib.testing.masking import MASK, masked, masked_text, masked_url, secrets_of, unspelled
from toolcrib.values.json import Redacted, escape_pointer
from toolcrib.values.typed import names_wrong_types

# A cassette's file: JSON that people read, review and correct.
#
# Bodies are stored byte by byte, as lines of text if they are UTF-8, and as base64 otherwise.
# `chunks` are the lengths (in bytes) of the pieces in which a body arrived, and are left out for a
# single piece.

_VERSION = 1
_RECORD_AGAIN = "record it again"
_LINE = re.compile(r"[^\n]*\n+|[^\n]+")


class _InFile(
    Redacted, msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True
):
    """An object in the file."""


class RecordedRequest(_InFile, frozen=True, kw_only=True):
    """A request without its headers. `body` is its JSON, and `base64` any other body."""

    redacted: ClassVar[tuple[str, ...]] = ("url", "body", "base64")

    method: str
    url: str
    body: Any = None
    base64: str = ""


class RecordedResponse(_InFile, frozen=True, kw_only=True):
    """A response.

    `error` says how its connection broke, and `retryable` whether trying again may help. `left`
    says that its reader left, and how many seconds after the last piece, if that is known.
    `delimited` says whether its body told where it ends.
    """

    redacted: ClassVar[tuple[str, ...]] = ("headers", "text", "base64")

    status: int
    headers: dict[str, str] = {}
    text: list[str] = []
    base64: str = ""
    chunks: list[int] = []
    error: str = ""
    retryable: bool = True
    left: bool | float = False
    delimited: bool = True

    @staticmethod
    def of(
        status: int, headers: dict[str, str], chunks: list[bytes], **members: Any
    ) -> RecordedResponse:
        """Return the answer with this body; `members` are its other fields."""
        body = b"".join(chunks)
        sizes = [len(chunk) for chunk in chunks] if len(chunks) > 1 else []
        try:
            members["text"] = _LINE.findall(body.decode())
        except UnicodeDecodeError:
            members["base64"] = base64.b64encode(body).decode()
        return RecordedResponse(status=status, headers=headers, chunks=sizes, **members)

    def pieces(self) -> list[bytes]:
        """Return the body in the pieces in which it arrived. Raises ValueError if the lengths do
        not fit."""
        if self.text and self.base64:
            raise ValueError("a body must be either text or base64")
        body = "".join(self.text).encode() or base64.b64decode(self.base64, validate=True)
        if not self.chunks:
            return [body] if body else []
        if sum(self.chunks) != len(body) or min(self.chunks) < 1:
            raise ValueError(
                f"its chunks have {sum(self.chunks)} bytes but its body has {len(body)}; "
                "without `chunks` the body comes in one piece"
            )
        ends = itertools.accumulate(self.chunks, initial=0)
        return [body[start:end] for start, end in itertools.pairwise(ends)]


class Exchange(_InFile, frozen=True, kw_only=True):
    """A request, and its answer, or the `error` in place of one. `left` is how many seconds after
    sending it the program left, if there was neither."""

    request: RecordedRequest
    response: RecordedResponse | None = None
    error: str = ""
    retryable: bool = True
    left: bool | float = False


class _CassetteFile(_InFile, frozen=True, kw_only=True):
    toolcrib_cassette: int
    exchanges: list[Exchange]


def read(path: Path) -> list[Exchange]:
    """Return the exchanges in a file. Raises SourceError if it cannot be read or is no cassette."""
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
        version = data.get("toolcrib_cassette") if isinstance(data, dict) else None
        if isinstance(version, int) and version > _VERSION:
            raise SourceError(
                f"{path} was recorded by a newer toolcrib: its format is {version}, and this one "
                f"reads {_VERSION}. Upgrade toolcrib, or {_RECORD_AGAIN}"
            )
        exchanges = msgspec.convert(data, _CassetteFile).exchanges
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or another form
        raise SourceError(
            f"{path} is not a cassette: {error}. Correct it, or {_RECORD_AGAIN}"
        ) from None
    for index, exchange in enumerate(exchanges):
        _check_exchange(path, index, exchange)
    return exchanges


def _check_exchange(path: Path, index: int, exchange: Exchange) -> None:
    response = exchange.response
    try:
        if (response is not None) + bool(exchange.error) + bool(exchange.left) != 1:
            raise ValueError("it must have exactly one of response, error and left")
        urlsplit(exchange.request.url)
        if response is not None:
            response.pieces()
    except (ValueError, binascii.Error) as error:
        raise SourceError(
            f"{path} is not a cassette: $.exchanges[{index}]: {error}. Correct it, or {_RECORD_AGAIN}"
        ) from None


def check_writable(path: Path) -> None:
    """Raise SourceError if `write` could not write a file, or would replace what is none (a device).
    Nothing is changed."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    is_other = path.exists() and not path.is_file()
    if is_other or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise SourceError(f"{path} cannot be written: a file cannot be created there")


def write(path: Path, exchanges: list[Exchange]) -> None:
    """Write the exchanges to the file, all or nothing. Until they are complete, the old file stays.

    Raises SourceError if that is not possible.
    """
    data = {"toolcrib_cassette": _VERSION, "exchanges": msgspec.to_builtins(exchanges)}
    text = json.dumps(data, ensure_ascii=False, indent=1)
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        text = json.dumps(data, indent=1)  # escapes lone surrogates, which UTF-8 lacks
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, mode=mode_of(path)) as file:
            file.write(f"{text}\n".encode())
    except OSError as error:
        raise SourceError(f"{path} cannot be written ({error.strerror})") from None


# A request is answered by the first unplayed exchange with the same request.
#
# Requests are the same if method, path with query, and body as JSON are the same, regardless of the
# order of keys. A masked text may be any text, since other texts are secret where it is replayed,
# or none. Headers do not count. If no other answer is left, the server does not count either, since
# keys and ports change.

Compare: TypeAlias = Callable[[Any], Any]
"""From a request's JSON body, of which it gets a copy, to the part of it that is compared."""

_RUN_ID = re.compile(r"(?<![A-Za-z0-9])run_[0-9a-f]{16,}(?![0-9a-f])")
_BLANK = re.compile(r"\s")
_MOST_DIFFERENCES = 3
_MAX_TEXT = 60
_SPARE = 1.0
"""Seconds that a program may take longer to leave than when it was recorded."""
_MISSING = object()


def recorded_request(request: Outgoing, secrets: Iterable[str]) -> RecordedRequest:
    """Return the request in the form in which a file may contain it."""
    body = b"".join(masked([request.body], secrets))
    url = masked_url(request.url, secrets)
    try:
        content: dict[str, Any] = {"body": json.loads(body) if body else None}
    except (ValueError, RecursionError):
        content = {"base64": base64.b64encode(body).decode()}
    return RecordedRequest(method=request.method, url=url, **content)


def path_of(request: RecordedRequest) -> str:
    return urlsplit(request.url)._replace(scheme="", netloc="").geturl()


class ComparedRequest(NamedTuple):
    """Holds the compared part of a request. `key` is its JSON."""

    method: str
    path: str
    base64: str
    body: Any
    key: str

    @classmethod
    def of(cls, request: RecordedRequest, compare: Compare | None) -> ComparedRequest:
        """Return the compared part of a request. Raises ToolcribError for a useless `compare`."""
        try:
            body = _compared(request.body, compare)
            parts = (request.method, path_of(request), request.base64, body)
            return cls(*parts, json.dumps(parts, sort_keys=True))
        except TypeError:
            raise ToolcribError("compare= must return a value that JSON can hold") from None

    def stands_for(self, current: ComparedRequest) -> bool:
        """Return whether this recorded request is that one. Masks in this one stand for any text."""
        return self.key == current.key or (
            MASK in self.key and all(map(_stands_for, self[:4], current))
        )


def _stands_for(old: Any, new: Any) -> bool:
    if isinstance(old, dict) and isinstance(new, dict):
        plain = [name for name in old if MASK not in name]
        others = [name for name in old if MASK in name]
        names = [*zip(plain, plain, strict=True)]
        names += zip(others, (name for name in new if name not in plain), strict=False)
        return len(old) == len(new) and all(
            new_name in new
            and _stands_for(old_name, new_name)
            and _stands_for(old[old_name], new[new_name])
            for old_name, new_name in names
        )
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_stands_for, old, new))
    if isinstance(old, str) and isinstance(new, str):
        return _matches_masked(new, *old.split(MASK))
    return type(old) is type(new) and bool(old == new)


def _matches_masked(text: str, first: str, *rest: str) -> bool:
    """Return whether a text is these pieces in order, with texts without blanks in between."""
    if not rest:
        return text == first
    position, end = len(first), len(text) - len(rest[-1])
    between = []
    for piece in rest[:-1]:
        index = text.find(piece, position, end)
        if index < 0:
            return False
        between.append(text[position:index])
        position = index + len(piece)
    is_whole = position <= end and text.startswith(first) and text.endswith(rest[-1])
    return is_whole and not any(map(_BLANK.search, [*between, text[position:end]]))


def differences(recorded: ComparedRequest, current: ComparedRequest) -> list[str]:
    """Return one line for each difference: `/messages/0/content: recorded "a", now "b"`."""
    pairs = [("method", recorded.method, current.method), ("path", recorded.path, current.path)]
    lines = [_difference_line(name, old, new) for name, old, new in pairs if old != new]
    if recorded.base64 != current.base64:
        lines.append("the body, which is not JSON")
    return lines + [
        _difference_line(*difference)
        for difference in _differing_values(recorded.body, current.body, "")
    ]


def _compared(body: Any, compare: Compare | None) -> Any:
    """Return the compared part of a body, with runs numbered in their order. The ids of runs, with
    which ids of calls begin, differ each time. Raises TypeError for values that are not JSON."""
    if compare is not None and body is not None:
        body = compare(copy.deepcopy(body))
        if body is None:
            raise ToolcribError(
                "compare= returned None instead of the value to compare: is a return missing?"
            )
    text, runs = json.dumps(body), dict[str, str]()
    return json.loads(_RUN_ID.sub(lambda run: runs.setdefault(run[0], f"run_{len(runs)}"), text))


def _differing_values(old: Any, new: Any, pointer: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield JSON Pointers to differences with both values, and nothing below one."""
    if _stands_for(old, new) or _stands_for(new, old):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            child_pointer = f"{pointer}/{escape_pointer(name)}"
            yield from _differing_values(
                old.get(name, _MISSING), new.get(name, _MISSING), child_pointer
            )
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            old_item, new_item = (
                side[index] if index < len(side) else _MISSING for side in (old, new)
            )
            yield from _differing_values(old_item, new_item, f"{pointer}/{index}")
    else:
        yield pointer or "the body", old, new


def _difference_line(pointer: str, old: Any, new: Any) -> str:
    return f"{pointer}: recorded {_value_text(old, new)}, now {_value_text(new, old)}"


def _value_text(value: Any, other: Any) -> str:
    """Return the value as JSON; of a long text, the part around the difference to the other."""
    if value is _MISSING:
        return "nothing"
    if isinstance(value, str) and isinstance(other, str) and len(value) > _MAX_TEXT:
        equal_pairs = itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(value, other, strict=False)
        )
        start = max(0, sum(1 for _ in equal_pairs) - _MAX_TEXT // 3)
        value = ("…" if start else "") + value[start:]
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"


# Replaying: each recorded answer once, and a helpful error for requests that were not recorded.


class Player:
    """Answers from a file. `missed` is the first request that had no answer."""

    def __init__(self, path: Path, exchanges: list[Exchange], compare: Compare | None) -> None:
        self.missed: ToolcribError | None = None
        self._path = path
        self._exchanges = exchanges
        self._compare = compare
        self._compared = [ComparedRequest.of(exchange.request, compare) for exchange in exchanges]
        self._unplayed = list(range(len(exchanges)))

    @property
    def remaining(self) -> int:
        return len(self._unplayed)

    async def send(self, request: Outgoing) -> Response:
        """Return the first unplayed answer to the request. An exactly equal request is preferred to
        one with masks, and one to the same server to others. Raises ConnectionFailed."""
        masked_request, plain_request = (
            recorded_request(request, each) for each in (secrets_of(request), ())
        )
        current = ComparedRequest.of(masked_request, self._compare)
        candidates = (current, ComparedRequest.of(plain_request, self._compare))
        keys = {each.key for each in candidates}
        matching = [index for index in self._unplayed if self._compared[index].key in keys]
        if not matching:
            matching = [index for index in self._unplayed if self._is_recorded(index, candidates)]
        if not matching:
            raise self.miss(self._problem(current, candidates))
        url = masked_request.url
        played = next(
            (index for index in matching if self._exchanges[index].request.url == url), matching[0]
        )
        self._unplayed.remove(played)
        exchange = self._exchanges[played]
        if exchange.left:
            raise await self.stayed(exchange.left, "the client gave up a request")
        if exchange.response is None:
            raise _broken(exchange.error, retryable=exchange.retryable)
        return _Played(exchange.response, self)

    def miss(self, problem: str) -> ToolcribError:
        error = ToolcribError(
            f'{self._path}: {problem}. To record it: cassette(…, record="all"), '
            'pytest --toolcrib-record=all, or delete the file where record is "once", as it is by '
            "default unless CI is set"
        )
        self.missed = self.missed or error
        return error

    async def stayed(self, seconds: float, event: str) -> ToolcribError:
        """Wait for a reader to leave as it did when it was recorded, and a little longer. Return an
        error to raise if it does not, since what comes next is not known."""
        await asyncio.sleep(seconds + _SPARE)
        return self.miss(f"{event} in the recording, but now the client waits for it")

    def _is_recorded(self, index: int, candidates: Iterable[ComparedRequest]) -> bool:
        return any(map(self._compared[index].stands_for, candidates))

    def _problem(self, current: ComparedRequest, candidates: Sequence[ComparedRequest]) -> str:
        request = f"{current.method} {current.path}"
        if not self._exchanges:
            file_state = "holds nothing" if self._path.exists() else "does not exist"
            return f"{request} cannot be replayed: the file {file_state}"
        if count := sum(
            self._is_recorded(index, candidates) for index in range(len(self._compared))
        ):
            return f"{request} was recorded {count}×, but is now sent once more"
        nearest = min(
            self._unplayed or range(len(self._exchanges)),
            key=lambda index: len(differences(self._compared[index], current)),
        )
        differing = listed(differences(self._compared[nearest], current), _MOST_DIFFERENCES, "; ")
        state = "" if self._unplayed else ", already replayed"
        nearest_note = f"Nearest is exchanges[{nearest}]{state}"
        return f"{request} was not recorded. {nearest_note}: {differing}"


def _broken(text: str, *, retryable: bool) -> ConnectionFailed:
    error = ConnectionFailed(text)
    error.retryable = retryable
    return error


class _Played:
    """A recorded answer."""

    def __init__(self, response: RecordedResponse, player: Player) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self.delimited = response.delimited
        self._response = response
        self._player = player

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self._response.pieces():
            yield piece
        if self._response.error:
            raise _broken(self._response.error, retryable=self._response.retryable)
        if self._response.left:
            raise await self._player.stayed(
                self._response.left, "the client did not read an answer to its end"
            )

    async def aclose(self, *, whole: bool) -> None:
        """Do nothing, since there is nothing to free."""
        del whole


# Recording: requests and answers are kept while they pass through.
#
# The reader of an answer gets its bytes as it would without recording.

_KEPT_HEADERS = frozenset(
    ("content-type", "retry-after", "retry-after-ms", "x-should-retry", "x-amzn-errortype")
)
"""The headers of an answer that a client acts on. No others are kept."""

_BROKEN_TEXT = "the connection broke"


class RecordingTransport:
    """Sends requests, and keeps the answers in the order in which the requests were sent."""

    def __init__(self, transport: Transport, secrets: Iterable[str] = ()) -> None:
        self._secrets = frozenset(secrets)
        self._takes: list[_Take] = []
        self._transport = transport

    async def send(self, request: Outgoing) -> Response:
        take = _Take(request)
        self._takes.append(take)
        try:
            response = await self._transport.send(request)
        except ConnectionFailed as error:
            take.failed(error)
            raise
        except asyncio.CancelledError:
            take.left()
            raise
        except BaseException:
            self._takes.remove(take)  # it was not sent, so there is nothing to replay
            raise
        take.answered(response)
        return take

    def exchanges(self) -> list[Exchange]:
        """Return the exchanges so far. A secret of one request is a secret in all of them."""
        request_secrets = (take.secrets | secrets_of(take.request) for take in self._takes)
        transport_secrets: Iterable[str] = getattr(self._transport, "secrets", ())
        secrets = set(self._secrets).union(transport_secrets, *request_secrets)
        return [take.exchange(secrets) for take in self._takes if take.is_over]


class _Take:
    """A request, and its answer as far as it was read."""

    def __init__(self, request: Outgoing) -> None:
        self.request = request
        self.secrets = secrets_of(request)  # now, since the environment may change until the end
        self._response: Response | None = None
        self._kept_headers: dict[str, str] = {}
        self._error = ""
        self._retryable = True
        self._chunks: list[bytes] = []
        self._is_whole = False
        self._last_heard = time.monotonic()
        self._left_after: bool | float = False

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> Mapping[str, str]:
        return self._answer.headers

    @property
    def delimited(self) -> bool:
        return is_bounded(self._answer)

    @property
    def is_over(self) -> bool:
        """Whether there is something to replay."""
        return self._response is not None or bool(self._error or self._left_after)

    def left(self) -> None:
        self._left_after = max(round(time.monotonic() - self._last_heard, 3), 0.001)

    def answered(self, response: Response) -> None:
        self._last_heard = time.monotonic()
        self._response = response
        self._kept_headers = _headers_to_keep(response.headers)

    def failed(self, error: ConnectionFailed) -> None:
        self._error = str(error) or _BROKEN_TEXT
        self._retryable = error.retryable

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._answer.chunks():
                self._last_heard = time.monotonic()
                self._chunks.append(data)
                yield data
        except ConnectionFailed as error:
            self.failed(error)
            raise
        self._is_whole = True

    async def aclose(self, *, whole: bool) -> None:
        self._is_whole = self._is_whole or whole
        self.left()
        await self._answer.aclose(whole=whole)

    def exchange(self, secrets: set[str]) -> Exchange:
        request, error = recorded_request(self.request, secrets), masked_text(self._error, secrets)
        if self._response is None:
            return Exchange(
                request=request, error=error, retryable=self._retryable, left=self._left_after
            )
        chunks = [chunk for chunk in self._chunks if chunk]
        response = RecordedResponse.of(
            self.status,
            {name: masked_text(value, secrets) for name, value in self._kept_headers.items()},
            masked(unspelled(chunks, secrets), secrets),
            error=error,
            retryable=self._retryable,
            left=not (self._is_whole or error) and (self._left_after or True),
            delimited=self.delimited,
        )
        return Exchange(request=request, response=response)

    @property
    def _answer(self) -> Response:
        if self._response is None:
            raise ToolcribError("there is no answer yet")
        return self._response


def _headers_to_keep(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers that a client acts on. A date to wait for becomes seconds."""
    kept_headers = {
        name.lower(): value for name, value in headers.items() if name.lower() in _KEPT_HEADERS
    }
    seconds = retry_after({"retry-after": kept_headers.get("retry-after", "")}, time.time())
    if seconds is not None and ":" in kept_headers["retry-after"]:
        kept_headers["retry-after"] = str(math.ceil(seconds))
    return kept_headers


Record: TypeAlias = Literal["once", "none", "all"]

_KEY_VARIABLES = (
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "MISTRAL_API_KEY",
    "CO_API_KEY",
    "AWS_BEARER_TOKEN_BEDROCK",
)
_PLACEHOLDER = "replay"
_placeholder_uses = Counter[str]()
"""How many replaying cassettes need the placeholder of each variable."""


@names_wrong_types
def cassette(
    path: str | os.PathLike[str],
    *,
    record: Record | None = None,
    transport: Transport | None = None,
    compare: Compare | None = None,
    secrets: Iterable[str] = (),
) -> Cassette:
    """`with cassette("tapes/weather.json") as tape: OpenAIClient("gpt-5", transport=tape)`.

    `record` is "once" (record if there is no file, otherwise replay it), "none" (only replay), or
    "all" (record everything anew). None means "none" if the environment has `CI`, else "once".
    `transport` sends the requests while recording, by default through aiohttp. `compare` gets a
    copy of a request's JSON body and returns the part that has to be the same. `secrets` are texts
    that must not be readable in the file, in addition to those that are known to be secret.

    Replaying needs no key: missing keys of the known providers are `"replay"` in the environment
    until the block ends. Raises SourceError for a file that is no cassette, and ToolcribError for a
    request that was not recorded.
    """
    mode = record or ("none" if os.environ.get("CI") else "once")
    if mode not in get_args(Record):
        raise ToolcribError(f"record={mode!r} is unknown; there are: once, none, all")
    return Cassette(Path(path), mode, transport=transport, compare=compare, secrets=secrets)


class Cassette:
    """A `Transport`, made by `cassette`, that works within its `with` block."""

    @names_wrong_types
    def __init__(
        self,
        path: Path,
        record: Record,
        *,
        transport: Transport | None = None,
        compare: Compare | None = None,
        secrets: Iterable[str] = (),
    ) -> None:
        self.path = path
        self._file = path.absolute()  # the working folder may change
        self._record = record
        self._transport = transport or AiohttpTransport()
        self._compare = compare
        self._secrets = _secret_texts(secrets)
        self._state: RecordingTransport | Player | None = None
        self._placeholders: list[str] = []

    @property
    def replaying(self) -> bool:
        """Whether answers come from the file. Raises ToolcribError outside of the block."""
        return isinstance(self._open_state(), Player)

    @property
    def remaining(self) -> int:
        """How many recorded exchanges have not been asked for yet, or 0 while recording."""
        state = self._open_state()
        return state.remaining if isinstance(state, Player) else 0

    def __enter__(self) -> Self:
        if self._state is not None:
            raise ToolcribError(
                f"the cassette {self.path} is already in use, in a block around this one"
            )
        exists = self._file.exists()
        if self._record == "all" or (self._record == "once" and not exists):
            check_writable(self._file)  # rather than after all requests were made
            self._state = RecordingTransport(self._transport, self._secrets)
            return self
        self._state = Player(self.path, read(self._file) if exists else [], self._compare)
        self._placeholders = [
            name
            for name in _KEY_VARIABLES
            if _placeholder_uses[name] or not os.environ.get(name, "").strip()
        ]
        _placeholder_uses.update(self._placeholders)
        for name in self._placeholders:
            os.environ[name] = os.environ.get(name, "").strip() or _PLACEHOLDER
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        state = self._state
        self.discard()
        if kind is not None:
            return
        if isinstance(state, RecordingTransport) and (exchanges := state.exchanges()):
            write(self._file, exchanges)
        elif isinstance(state, Player) and state.missed is not None:
            raise state.missed  # also if code between here and the client caught it

    def discard(self) -> None:
        """End it like a block that failed, without writing anything."""
        self._state = None
        _placeholder_uses.subtract(self._placeholders)
        for name in self._placeholders:
            if not _placeholder_uses[name] and os.environ.get(name) == _PLACEHOLDER:
                del os.environ[name]
        self._placeholders = []

    @property
    def secrets(self) -> Iterable[str]:
        """The secrets of the wrapped transport."""
        return getattr(self._transport, "secrets", ())

    async def send(self, request: Outgoing) -> Response:
        """Return the recorded answer, or the real one. Raises ConnectionFailed, recorded or real."""
        return await self._open_state().send(request)

    async def aclose(self) -> None:
        await self._transport.aclose()

    def _open_state(self) -> RecordingTransport | Player:
        if self._state is None:
            raise ToolcribError(
                f"the cassette {self.path} is not in use: open it with `with cassette(…) as tape:`"
            )
        return self._state


def _secret_texts(secrets: Iterable[str]) -> frozenset[str]:
    texts = frozenset([secrets] if isinstance(secrets, str) else secrets)
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise ToolcribError("secrets= takes strings, none of them blank")
    return texts
