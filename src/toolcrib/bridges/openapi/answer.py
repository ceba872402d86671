"""From an API's answer to the tool's result, or to an error that a model can act on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, TypeVar

from jiter import from_json

from toolcrib.bridges.openapi.charset import text_of
from toolcrib.bridges.openapi.definition import RequestPlan
from toolcrib.bridges.openapi.forms import SAFE, is_json, kind_of
from toolcrib.bridges.openapi.request import ApiRequest
from toolcrib.bridges.openapi.server import HttpApi
from toolcrib.errors import OutcomeUnknown, ToolError
from toolcrib.kit.http import HttpAnswer, Unanswered
from toolcrib.schema import LazyValidator
from toolcrib.values.content import NO_TEXT, File, Image
from toolcrib.values.json import JsonValue, fresh, json_bytes

T = TypeVar("T")

_IDEMPOTENT = SAFE | {"PUT", "DELETE"}
"""https://www.rfc-editor.org/rfc/rfc9110#section-9.2.2"""
_NOT_DONE = (408, 425, 429, 503)  # the same request may be made again later
_GATEWAYS = (502, 504)  # another server was asked, and what it did is not known
_SECONDS = re.compile(r"[0-9]{1,6}")  # of `Retry-After`; longer values are not told
_NO_CONTENT = (204, 205)
_BYTES = "application/octet-stream"
_LONGEST = 4_000  # characters of an API's own error text


class ApiAnswers:
    """Handles the answers to the requests of one operation."""

    def __init__(self, plan: RequestPlan) -> None:
        self._method = plan.method
        self._validators = {
            status: {
                kind: None if one is None else LazyValidator(one) for kind, one in by_kind.items()
            }
            for status, by_kind in plan.schemas.items()
        }
        self._media_types = plan.media_types

    async def of(self, api: HttpApi, request: ApiRequest) -> Any:
        """Send a request and return the result. Raises ToolError."""
        try:
            answer = await api.send(request)
        except Unanswered as unanswered:
            raise self._unanswered(unanswered) from None
        if not 200 <= answer.status < 300:
            raise self._failed(answer)
        if answer.body:
            value = _value(answer, _of_status(self._media_types, answer.status) or _BYTES)
        else:
            value = self._empty(answer)
        self._check(answer, None if isinstance(value, NO_TEXT) else value)
        return value

    def _empty(self, answer: HttpAnswer) -> str | None:
        """Return an empty string if that is what was sent and it is allowed."""
        known = _of_status(self._validators, answer.status)
        is_text = kind_of(answer.headers.get("content-type", "")) == "text"
        has_body = self._method != "HEAD" and answer.status not in _NO_CONTENT
        return "" if is_text and has_body and (known is None or "text" in known) else None

    def _unanswered(self, error: Unanswered) -> ToolError:
        """Return the error for a request without a usable answer, by what is known about it."""
        status = error.status
        if 200 <= status < 300:
            return ToolError(f"It was done (status {status}), but {error}.", retryable=False)
        if 400 <= status < 500 or (status and self._method in SAFE):
            return ToolError(f"The API answered {status}, but {error}.", retryable=False)
        if not error.sent or self._method in SAFE:
            return error
        return OutcomeUnknown(
            f"The request was sent, but {error}, so it is unknown whether it was done.",
            retryable=not status and self._method in _IDEMPOTENT,
        )

    def _failed(self, answer: HttpAnswer) -> ToolError:
        """Return the error for a status. The model reads the API's own words, and no record has
        them."""
        status = answer.status
        told = f"The API answered {status} {_phrase(status)}".rstrip()
        wait = answer.headers.get("retry-after", "")
        if status in _NOT_DONE and _SECONDS.fullmatch(wait):
            told += f", and asks to retry in {wait} seconds"
        told += "."
        words = _with_its_words(told, answer)
        if status in _GATEWAYS and self._method not in SAFE:
            again = self._method in _IDEMPOTENT
            return OutcomeUnknown(told, retryable=again, model_text=words)
        again = status in _NOT_DONE or (status >= 500 and self._method in SAFE)
        return ToolError(told, retryable=again, model_text=words)

    def _check(self, answer: HttpAnswer, value: object) -> None:
        """Check an answer against the schema of its own status and media type, if those differ.

        Raises ToolError. The runner checks an answer that the document does not list against
        everything that it does list. A picture or a file is not JSON, and its value is None, as for
        every result that is content alone.
        """
        known = _of_status(self._validators, answer.status)
        done = f"It was done (status {answer.status}), but"
        if known is None and self._validators and not answer.body:
            raise ToolError(
                f"{done} the answer is empty, which the API's description does not allow.",
                retryable=False,
            )
        if known is None:
            return
        has_kind = answer.body or value == ""
        kind = kind_of(answer.headers.get("content-type", "")) if has_kind else "json"
        if kind not in known:
            told = f"{done} the API's description has no answer with that media type."
            raise ToolError(told, retryable=False, model_text=_with_its_words(told, answer))
        validator = known[kind]
        if validator is not None and not validator.is_valid(value):
            raise ToolError(
                f"{done} the answer does not match the API's description for that status.",
                retryable=False,
            )


def _of_status(by_status: Mapping[str, T], status: int) -> T | None:
    """Return what a document says about a status: for itself, for its class, or by default."""
    named = (str(status), f"{status // 100}XX", "DEFAULT")
    return next((by_status[name] for name in named if name in by_status), None)


def _value(answer: HttpAnswer, declared: str) -> Any:
    """Return JSON as it is, text as a string, and other bytes as a picture or a file. Raises
    ToolError.

    `declared` is the media type of bytes whose server does not name one.
    """
    kind = answer.headers.get("content-type", "")
    if kind_of(kind) != "bytes":
        what, text = "JSON" if is_json(kind) else "text", text_of(answer.body, kind)
        try:
            if text is not None:
                return _read(text) if is_json(kind) else text
        except (ValueError, RecursionError):
            pass
        told = (
            f"It was done (status {answer.status}), but the answer is not valid {what}, as it "
            "claims to be."
        )
        raise ToolError(told, retryable=False)
    plain = kind.partition(";")[0].strip().lower()
    media_type = declared if plain in ("", _BYTES) else plain
    made = Image if media_type.startswith("image/") else File
    return made.from_bytes(media_type, answer.body)


def _read(text: str) -> JsonValue:
    """Return JSON in which no name occurs twice. Raises ValueError."""
    from_json(text.encode(), catch_duplicate_keys=True)
    return fresh(text)


def _with_its_words(told: str, answer: HttpAnswer) -> str:
    """Return the text for the model if the API says something about an error, else an empty string."""
    said = _said(answer)
    return f"{told} It says: {said}" if said else ""


def _said(answer: HttpAnswer) -> str:
    """Return the API's own text about an error, on one line."""
    kind = answer.headers.get("content-type", "")
    text = None if kind_of(kind) == "bytes" else text_of(answer.body, kind)
    if not text:
        return ""
    if is_json(kind):
        try:
            return json_bytes(_read(text)).decode()[:_LONGEST]
        except ValueError:
            return ""
    return " ".join(text[: _LONGEST * 4].split())[:_LONGEST]


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
