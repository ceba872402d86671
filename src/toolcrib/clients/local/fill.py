"""Filling in a call: the model continues the tool's own examples, under the schema's grammar.

Rule: the model writes arguments and nothing else. Its text goes on as it wrote it, and hydration
judges it like any other model's.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

from toolcrib.clients.local.copying import narrowed
from toolcrib.clients.local.grammar import filled, grammar, size_of
from toolcrib.clients.local.model import Completion, Model, TooLongError
from toolcrib.errors import RequestError
from toolcrib.values.definition import Example, ToolDefinition
from toolcrib.values.json import JsonObject, encodable
from toolcrib.values.message import Settings

SHOTS = 4
_BUDGET = 4000
_LEAST_BUDGET = 200
_TOKENS = 64
_TOKENS_PER_PROPERTY = 32
_MOST_TOKENS = 512
_OWN_KEYS = frozenset(("prompt", "json_schema", "grammar", "n_predict", "stream", "n"))


def fill(
    model: Model,
    tool: ToolDefinition,
    request: str,
    *,
    shots: Sequence[Example],
    settings: Settings,
    given_up: threading.Event,
) -> Completion:
    """The arguments for the request, as JSON text. `shots` come nearest to the request first.

    What does not fit the context is left out: the farthest shots first, then the middle of the
    request. Raises what `Model.complete` does, and RequestError for settings that are not one's own.
    """
    for key in settings.extra:
        if key in _OWN_KEYS:
            raise RequestError(f"Settings.extra may not set {key!r}: the request says that itself")
    schema = tool.input_schema or {"type": "object"}
    request = " ".join(encodable(request).split())
    most = min(_MOST_TOKENS, _TOKENS + _TOKENS_PER_PROPERTY * size_of(schema))
    body: JsonObject = {
        "temperature": settings.temperature or 0,
        "cache_prompt": True,
        **settings.extra,
        "n_predict": min(most, settings.max_tokens or most),
    }
    budget = _BUDGET
    while budget >= _LEAST_BUDGET:
        asked = clipped(request, budget // 2)
        body["prompt"] = prompt(tool, asked, shots, budget)
        body["json_schema"] = grammar(schema, narrowed(tool, asked))
        try:
            return model.complete(body, given_up)
        except TooLongError:
            budget //= 2
    raise RequestError("the request does not fit the embedded model's context")


def prompt(tool: ToolDefinition, request: str, shots: Sequence[Example], budget: int) -> str:
    """At most about `budget` characters: the description, the shots nearest last, the request."""
    schema = tool.input_schema or {}
    head = f"{tool.name}: {clipped(' '.join(tool.description.split()), budget // 4)}\n\n"
    tail = f"Request: {request}\nArguments:"
    left = budget - len(head) - len(tail)
    kept: list[str] = []
    for shot in shots:
        arguments = json.dumps(filled(schema, shot.arguments), ensure_ascii=False)
        text = f"Request: {shot.request}\nArguments: {arguments}\n\n"
        left -= len(text)
        if left < 0:
            break
        kept.append(text)
    return head + "".join(reversed(kept)) + tail


def clipped(text: str, most: int) -> str:
    """The text, or of a longer one its beginning and its end."""
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]} … {text[-half:]}"
