"""From an API's answer to what its tool gives, or to an error that a model can act on."""

from __future__ import annotations

import base64
import re
from http import HTTPStatus
from typing import Any

import orjson

from toolcrib.bridges.openapi.definition import AnswerKind, RequestPlan
from toolcrib.bridges.openapi.forms import SAFE, is_json, is_text
from toolcrib.bridges.openapi.request import ApiRequest
from toolcrib.bridges.openapi.server import HttpApi
from toolcrib.errors import OutcomeUnknown, ToolError
from toolcrib.kit.http import HttpAnswer, Unanswered
from toolcrib.schema import LazyValidator
from toolcrib.values.json import fresh

_IDEMPOTENT = SAFE | {"PUT", "DELETE"}
"""https://www.rfc-editor.org/rfc/rfc9110#section-9.2.2"""
_NOT_DONE = (408, 425, 429, 503)  # the same request may be made again, and later
_GATEWAYS = (502, 504)  # somebody else was asked, and nobody knows what they did
_SECONDS = re.compile(r"[0-9]{1,6}")  # of `Retry-After`: what is longer is not told
_LONGEST = 4_000  # characters of what an API says of its error


class ApiAnswers:
    """Takes the answers to the requests of one operation."""

    def __init__(self, plan: RequestPlan) -> None:
        self._method = plan.method
        self._validators = {
            status: {
                kind: None if one is None else LazyValidator(one) for kind, one in by_kind.items()
            }
            for status, by_kind in plan.schemas.items()
        }

    async def of(self, api: HttpApi, request: ApiRequest) -> Any:
        """Send a request and return what it gives. Raises ToolError."""
        try:
            answer = await api.send(request)
        except Unanswered as unanswered:
            raise self._unanswered(unanswered) from None
        if not 200 <= answer.status < 300:
            raise self._failed(answer)
        value = _value(answer)
        self._check(answer, value)
        return value

    def _unanswered(self, error: Unanswered) -> ToolError:
        """Return what is known of a request without an answer that can be taken."""
        status = error.status
        if 200 <= status < 300:
            return ToolError(f"It was done (status {status}), but {error}.", retryable=False)
        if 400 <= status < 500 or (status and self._method in SAFE):
            return ToolError(f"The API answered {status}, but {error}.", retryable=False)
        if not error.sent or self._method in SAFE:
            return error
        return OutcomeUnknown(
            f"The request was sent, and {error}: nobody knows whether it was done.",
            retryable=not status and self._method in _IDEMPOTENT,
        )

    def _failed(self, answer: HttpAnswer) -> ToolError:
        """Return the error of a status: the model reads the API's own words, and no record has them."""
        status = answer.status
        told = f"The API answered {status} {_phrase(status)}".rstrip()
        wait = answer.headers.get("retry-after", "")
        if status in _NOT_DONE and _SECONDS.fullmatch(wait):
            told += f", and to ask again in {wait} seconds"
        said = _said(answer)
        words = f"{told}. It says: {said}" if said else ""
        if status in _GATEWAYS and self._method not in SAFE:
            again = self._method in _IDEMPOTENT
            return OutcomeUnknown(f"{told}.", retryable=again, model_text=words)
        again = status in _NOT_DONE or (status >= 500 and self._method in SAFE)
        return ToolError(f"{told}.", retryable=again, model_text=words)

    def _check(self, answer: HttpAnswer, value: object) -> None:
        """Hold an answer to the schema of its own status and media type, where those differ.

        Raises ToolError. What the document does not list is held to all that it does, by the runner.
        """
        named = (str(answer.status), f"{answer.status // 100}XX", "DEFAULT")
        known = next((self._validators[name] for name in named if name in self._validators), None)
        done = f"It was done (status {answer.status}), but"
        if known is None and self._validators and value is None:
            raise ToolError(
                f"{done} the API's own description has no such answer, and it is empty.",
                retryable=False,
            )
        kind = _kind(answer)
        if known is None:
            return
        if kind not in known:
            told = f"{done} the API's own description has no answer of that media type."
            said = _said(answer)
            words = f"{told} It says: {said}" if said else ""
            raise ToolError(told, retryable=False, model_text=words)
        validator = known[kind]
        if validator is not None and not validator.is_valid(value):
            raise ToolError(
                f"{done} the answer is not what the API's own description says of that status.",
                retryable=False,
            )


def _kind(answer: HttpAnswer) -> AnswerKind:
    """Return what an answer is by its media type; an empty one is as null."""
    kind = answer.headers.get("content-type", "")
    if is_json(kind) or not answer.body:
        return "json"
    return "text" if is_text(kind) or "xml" in kind else "bytes"


def _value(answer: HttpAnswer) -> Any:
    """Return JSON as it is, text as text, and other bytes with their media type. Raises ToolError."""
    kind = answer.headers.get("content-type", "")
    if not answer.body:
        return None
    if is_json(kind):
        try:
            return fresh(answer.body)
        except (ValueError, RecursionError):
            told = f"It was done (status {answer.status}), but the answer is not the JSON that it says."
            raise ToolError(told, retryable=False) from None
    if is_text(kind) or "xml" in kind:
        return answer.body.decode("utf-8", "replace")
    return {
        "media_type": kind.partition(";")[0].strip(),
        "base64": base64.b64encode(answer.body).decode(),
    }


def _said(answer: HttpAnswer) -> str:
    """Return what an API says of an error, in one line."""
    if not answer.body:
        return ""
    if is_json(answer.headers.get("content-type", "")):
        try:
            return orjson.dumps(orjson.loads(answer.body)).decode()[:_LONGEST]
        except ValueError:
            return ""
    if _kind(answer) != "text":
        return ""
    text = answer.body[: _LONGEST * 4].decode("utf-8", "replace")
    return " ".join(text.split())[:_LONGEST]


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
