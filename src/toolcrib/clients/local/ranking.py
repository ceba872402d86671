"""Ranks tools and calls by how likely they are: by the nearness of texts, the examples and Needle.

Rule: this code knows no particular tool or phrase. Each tool, and "no tool", gets a probability.
For the likeliest tool, so does each way to fill it in, and "none of these". They are a softmax over
a few sums. The weights are the only values that were fitted, on questions that are not in the
tests. `benchmarks/local_weights.py` fits and prints them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import exp, fsum, log
from typing import NamedTuple, TypeAlias

import msgspec

from toolcrib.clients.local.arguments import filled, narrowed, numbers, runs
from toolcrib.clients.local.needle import Needle, kind_of
from toolcrib.clients.local.reading import (
    RequestReading,
    Token,
    invents,
    leaves_out,
    missing_required,
    patterns_of,
    properties_of,
    tokens,
)
from toolcrib.pick.words import spaced_name
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue

CERTAIN = 0.55
"""The probability from which on a call is made."""

_TOOL_WEIGHTS = (0.25, 8.06, 4.45)
_NONE_WEIGHTS = (0.37, 10.16, 2.73)
_NONE = 0.52
"""The weights are for Needle's log-likelihood, and for the nearness with and without values."""

_CALL_WEIGHTS = (0.09, 0.14, 4.92, 1.27, -2.25)
_NO_CALL = -3.19
"""The weights are for the log-likelihood of the arguments, that of their unlikeliest token, the
cost of reading them by an example, whether Needle would write them, and whether they have no
values."""

_UNREAD_COST = 0.5
"""The assumed cost of reading for a call that no example gives."""

_MOST_TOOLS = 6
_MOST_READINGS = 3
_UNLIKELY = -8.0
_LEAST_SUM, _LEAST_TOKEN = -25.0, -12.0

Nearness: TypeAlias = Mapping[str | None, tuple[float, float]]
"""The nearness of each tool with and without values. The key None stands for no tool."""


class RankedTool(NamedTuple):
    """A tool (None: no tool fits), its score, and the readings of the request by its examples, best
    first."""

    score: float
    tool: ToolDefinition | None
    readings: Sequence[RequestReading] = ()


class RankedCall(msgspec.Struct, frozen=True):
    """Arguments, and their probability among all ways to fill in the call and "none of these"."""

    chance: float
    arguments: JsonObject


class CallRanker:
    """Ranks tools and calls. Safe to use from threads."""

    def __init__(self, needle: Needle) -> None:
        self._needle = needle

    def tools(
        self, request: str, ranked: Sequence[RankedTool], nearness: Nearness
    ) -> list[RankedTool]:
        """Return the likely tools, and None for no tool, with their probabilities as scores."""
        likely = likely_of(ranked, nearness)
        features = self.tool_features(request, likely, nearness)
        sums = [
            _sum(_TOOL_WEIGHTS, row) if c.tool else _NONE + _sum(_NONE_WEIGHTS, row)
            for c, row in zip(likely, features, strict=True)
        ]
        chances = zip(_chances(sums), likely, strict=True)
        with_chances = [candidate._replace(score=chance) for chance, candidate in chances]
        return sorted(with_chances, key=lambda candidate: -candidate.score)

    def tool_features(
        self, request: str, likely: Sequence[RankedTool], nearness: Nearness
    ) -> list[list[float]]:
        tools = sorted((c.tool for c in likely if c.tool), key=lambda tool: tool.name)
        log_likelihoods = self._needle.tools(request, tools)
        total = log(fsum(map(exp, log_likelihoods.values())) or 1e-300)
        names = [candidate.tool.name if candidate.tool else None for candidate in likely]
        return [[max(_UNLIKELY, log_likelihoods[name] - total), *nearness[name]] for name in names]

    def calls(
        self, request: str, candidate: RankedTool, context_words: frozenset[str], *, written: bool
    ) -> list[RankedCall]:
        """Return ways to fill in a call, the likeliest first. `context_words` are the
        words that stand around values in examples. With `written`, the model may also write one."""
        tool = candidate.tool
        if tool is None or candidate.score < CERTAIN:  # no call of this tool can be certain enough
            return []
        features = self.call_features(request, candidate, context_words, written=written)
        sums = [_NO_CALL, *(_sum(_CALL_WEIGHTS, row) for _, row in features)]
        chances = zip(_chances(sums)[1:], features, strict=True)
        calls = [RankedCall(chance, arguments) for chance, (arguments, _) in chances]
        return sorted(calls, key=lambda call: -call.chance)

    def call_features(
        self, request: str, candidate: RankedTool, context_words: frozenset[str], *, written: bool
    ) -> list[tuple[JsonObject, list[float]]]:
        """Return the ways that use everything that was said and nothing else, each with its
        features."""
        tool = candidate.tool
        if tool is None:
            return []
        ways = {
            _key(tool, reading.arguments): (_in_order(tool, reading.arguments), reading.share)
            for reading in reversed(candidate.readings[:_MOST_READINGS])
            if _is_complete(tool, request, reading.arguments)
        }
        written_arguments = (
            self._needle.write(request, tool, allowed(tool, request, context_words))
            if written
            else None
        )
        written_key = ""
        if (
            written_arguments is not None
            and _is_complete(tool, request, written_arguments)
            and not invents(tool, request, written_arguments)
        ):
            written_key = _key(tool, written_arguments)
            ways.setdefault(written_key, (written_arguments, _UNREAD_COST))
        scores = self._needle.calls(request, tool, [arguments for arguments, _ in ways.values()])
        return [
            (
                arguments,
                [*_likelihood(score), -share, float(key == written_key), float(not arguments)],
            )
            for (key, (arguments, share)), score in zip(ways.items(), scores, strict=True)
        ]


def _likelihood(score: Sequence[float]) -> tuple[float, float]:
    return max(_LEAST_SUM, fsum(score)), max(_LEAST_TOKEN, min(score))


def _in_order(tool: ToolDefinition, arguments: JsonObject) -> JsonObject:
    """Return the arguments in the order of the parameters, as the model would write them."""
    order = (*properties_of(tool), *arguments)
    return {name: arguments[name] for name in order if name in arguments}


def likely_of(ranked: Sequence[RankedTool], nearness: Nearness) -> list[RankedTool]:
    """Return the nearest tools by `nearness`, then the best by their scores, and None for no tool."""
    tools = [candidate for candidate in ranked if candidate.tool]
    nearest = sorted(
        tools,
        key=lambda candidate: -fsum(nearness[candidate.tool.name if candidate.tool else None]),
    )
    likely = nearest[: _MOST_TOOLS // 2]
    likely += [candidate for candidate in tools if candidate not in likely]
    return [*likely[:_MOST_TOOLS], RankedTool(0.0, None)]


def _sum(weights: Sequence[float], row: Sequence[float]) -> float:
    return fsum(weight * value for weight, value in zip(weights, row, strict=True))


def _chances(sums: Sequence[float]) -> list[float]:
    largest = max(sums)
    parts = [exp(value - largest) for value in sums]
    return [part / fsum(parts) for part in parts]


def _key(tool: ToolDefinition, arguments: JsonObject) -> str:
    complete_arguments = filled(tool.input_schema or {}, arguments)
    return json.dumps(complete_arguments, sort_keys=True, ensure_ascii=False).casefold()


def _is_complete(tool: ToolDefinition, request: str, arguments: JsonObject) -> bool:
    """Return whether nothing is missing or left out, and no value is a part of another one."""
    texts = [value.casefold() for value in arguments.values() if isinstance(value, str)]
    are_separate = not any(
        text in other_text
        for i, text in enumerate(texts)
        for j, other_text in enumerate(texts)
        if i != j
    )
    return (
        are_separate
        and not missing_required(tool, arguments)
        and not leaves_out(request, arguments)
    )


# The values that a parameter may have: pieces of the request, members of an enum, and values that
# the examples compute from numbers. Other parameters are left out.


def can_write(tool: ToolDefinition) -> bool:
    """Return whether each required parameter is of a kind that can be written."""
    return all(kind_of(properties_of(tool).get(name))[0] for name in missing_required(tool, {}))


def allowed(
    tool: ToolDefinition, request: str, context_words: frozenset[str]
) -> dict[str, list[JsonValue]]:
    """Return the allowed values of each parameter that can be written."""
    properties, patterns, narrower = properties_of(tool), patterns_of(tool), narrowed(tool, request)
    names = [tool.name, *properties]
    tool_words = {t.text for t in tokens(f"{' '.join(map(spaced_name, names))} {tool.description}")}
    common_words = (context_words | tool_words) - {t.text for t in tokens(request) if t.quote}
    values_of: dict[str, list[JsonValue]] = {}
    for name, schema in properties.items():
        recipes = [p.recipes[name] for p in patterns if name in p.recipes]
        kind, members = kind_of(schema)
        values: Sequence[JsonValue]
        if members:
            values = members
        elif recipes and kind == "string":
            values = _computed(tool, name, recipes, request)
        elif kind == "string":
            candidates = narrower.get(name, {}).get("enum")
            pieces = _pieces(
                candidates if isinstance(candidates, list) else runs(request), common_words
            )
            samples = [tokens(str(e.arguments[name])) for e in tool.examples if name in e.arguments]
            values = [piece for piece in pieces if _is_like(samples, tokens(piece))]
        elif kind in ("number", "integer"):
            values = numbers(request, whole=kind == "integer")
        else:
            values = [True, False] if kind == "boolean" else []
        values_of[name] = list({json.dumps(value): value for value in values}.values())
    return values_of


def _is_like(samples: Sequence[Sequence[Token]], piece: Sequence[Token]) -> bool:
    """Return whether a piece has small words only if a sample has some, and has about the samples'
    length."""
    if not samples or any(t.is_small for sample in samples for t in sample):
        return True
    return len(piece) <= 1 + max(map(len, samples)) and not any(t.is_small for t in piece)


def _pieces(sequences: Sequence[JsonValue], common_words: frozenset[str]) -> list[str]:
    """Return the pieces that have more than small words and the words around values in examples."""
    pieces: list[str] = []
    for text in (piece for piece in sequences if isinstance(piece, str)):
        without_possessive = text[:-2] if text.endswith(("'s", "’s")) else text
        for form in (text, without_possessive):
            if any(not t.is_small and t.text not in common_words for t in tokens(form)):
                pieces.append(form)
    return pieces


def _is_symbols(text: str) -> bool:
    kinds = {t.kind for t in tokens(text)}
    return kinds == {"number", "mark"} and text.count("(") == text.count(")")


def _computed(
    tool: ToolDefinition, name: str, recipes: Sequence[tuple[str | int, ...]], request: str
) -> list[str]:
    """Return what the request itself writes out with all its numbers. Otherwise return what the
    examples compute from them, in their order and in reverse."""
    request_numbers = [t.text.replace(",", "") for t in tokens(request) if t.kind == "number"]
    expressions = [
        run for run in runs(request) if _is_symbols(run) and not leaves_out(request, {name: run})
    ]
    if expressions:
        return expressions
    computed = (
        [infix.join(request_numbers) for infix in _infixes(tool, name)]
        if len(request_numbers) > 1
        else []
    )
    for recipe in recipes:
        for operands in (request_numbers, request_numbers[::-1]):
            if sum(isinstance(part, int) for part in recipe) == len(operands):
                computed.append("".join(r if isinstance(r, str) else operands[r] for r in recipe))
    return computed


def _infixes(tool: ToolDefinition, name: str) -> list[str]:
    infixes: dict[str, None] = {}
    for value in (example.arguments.get(name) for example in tool.examples):
        value_tokens = tokens(value) if isinstance(value, str) else ()
        for left, mark, right in zip(
            value_tokens, value_tokens[1:], value_tokens[2:], strict=False
        ):
            if (left.kind, mark.kind, right.kind) == ("number", "mark", "number"):
                infixes[str(value)[left.end : right.start]] = None
    return list(infixes)
