"""What a chunk or a body says beside its choices: what went wrong, and what was spent.

OpenAI has one member for each; compatible servers have places of their own.
"""

from __future__ import annotations

from typing import Any

from toolcrib.values.json import JsonObject
from toolcrib.values.message import Usage
from toolcrib.wire.failure import reported_error
from toolcrib.wire.json_text import cached, counted

_TEXTS = ("message", "detail", "msg")


def check_error(payload: JsonObject) -> None:
    """Raises ClientError for an error that is not under `error`.

    It takes the place of the choices (vLLM's and Mistral's `object: "error"`, FastAPI's `detail`,
    MiniMax's `base_resp`); Groq says in `x_groq` why it stopped a stream early.
    """
    stopped = _member(payload, "x_groq").get("error")
    if stopped:
        raise reported_error(stopped)
    if payload.get("choices") is not None:
        return
    status = _member(payload, "base_resp")
    if status.get("status_code"):
        raise reported_error({"message": status.get("status_msg"), "code": status["status_code"]})
    if payload.get("object") == "error" or any(isinstance(payload.get(k), str) for k in _TEXTS):
        raise reported_error(payload)


def usage_in(payload: JsonObject) -> JsonObject:
    """The counts: Groq streams them in `x_groq`, Moonshot in the choice (earendil-works/pi#2017)."""
    choices = payload.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    for holder in (payload, payload.get("x_groq"), choice):
        usage = _member(holder, "usage")
        if usage:
            return usage
    return {}


def spent(usage: JsonObject) -> Usage:
    """Of cached tokens, Moonshot and DeepSeek have counts of their own."""
    of_cache = cached(usage, "prompt_tokens_details")
    of_cache = of_cache or counted(usage, "cached_tokens")
    of_cache = of_cache or counted(usage, "prompt_cache_hit_tokens")
    asked, made = counted(usage, "prompt_tokens"), counted(usage, "completion_tokens")
    return Usage(1, asked, made, of_cache)


def _member(holder: Any, key: str) -> JsonObject:
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if isinstance(value, dict) else {}
