"""How certain a call is, weighed by the nearness of texts, the examples and Needle.

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
    lacking,
    leaves_out,
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

_UNREAD = 0.5
"""The assumed cost of reading for a call that no example gives."""

_OFFERED = 6
_READ = 3
_UNLIKELY = -8.0
_LEAST, _LEAST_TOKEN = -25.0, -12.0

Nearness: TypeAlias = Mapping[str | None, tuple[float, float]]
"""The nearness of each tool with and without values. The key None stands for no tool."""


class RankedTool(NamedTuple):
    """A tool (None: no tool fits), its score, and the readings of the request by its examples, best
    first."""

    score: float
    tool: ToolDefinition | None
    readings: Sequence[RequestReading] = ()


class WeighedCall(msgspec.Struct, frozen=True):
    """Arguments, and their probability among all ways to fill in the call and "none of these"."""

    chance: float
    arguments: JsonObject


class Weigher:
    """Weighs tools and calls. Safe to use from threads."""

    def __init__(self, needle: Needle) -> None:
        self._needle = needle

    def tools(self, asked: str, ranked: Sequence[RankedTool], near: Nearness) -> list[RankedTool]:
        """Return the likely tools, and None for no tool, with their probabilities as scores."""
        likely = likely_of(ranked, near)
        features = self.tool_features(asked, likely, near)
        sums = [
            _sum(_TOOL_WEIGHTS, row) if c.tool else _NONE + _sum(_NONE_WEIGHTS, row)
            for c, row in zip(likely, features, strict=True)
        ]
        chances = zip(_chances(sums), likely, strict=True)
        found = [one._replace(score=chance) for chance, one in chances]
        return sorted(found, key=lambda one: -one.score)

    def tool_features(
        self, asked: str, likely: Sequence[RankedTool], near: Nearness
    ) -> list[list[float]]:
        tools = sorted((c.tool for c in likely if c.tool), key=lambda tool: tool.name)
        logs = self._needle.tools(asked, tools)
        total = log(fsum(map(exp, logs.values())) or 1e-300)
        names = [one.tool.name if one.tool else None for one in likely]
        return [[max(_UNLIKELY, logs[name] - total), *near[name]] for name in names]

    def calls(
        self, asked: str, candidate: RankedTool, around: frozenset[str], *, written: bool
    ) -> list[WeighedCall]:
        """Return ways to fill in a call, the likeliest first. `around` has the words that stand
        around values in examples. With `written`, the model may also write one."""
        tool = candidate.tool
        if tool is None or candidate.score < CERTAIN:  # no call of this tool can be certain enough
            return []
        features = self.call_features(asked, candidate, around, written=written)
        sums = [_NO_CALL, *(_sum(_CALL_WEIGHTS, row) for _, row in features)]
        found = zip(_chances(sums)[1:], features, strict=True)
        calls = [WeighedCall(chance, arguments) for chance, (arguments, _) in found]
        return sorted(calls, key=lambda call: -call.chance)

    def call_features(
        self, asked: str, candidate: RankedTool, around: frozenset[str], *, written: bool
    ) -> list[tuple[JsonObject, list[float]]]:
        """Return the ways that use everything that was said and nothing else, each with its
        features."""
        tool = candidate.tool
        if tool is None:
            return []
        found = {
            _key(tool, reading.arguments): (_in_order(tool, reading.arguments), reading.share)
            for reading in reversed(candidate.readings[:_READ])
            if _says_all(tool, asked, reading.arguments)
        }
        own = self._needle.write(asked, tool, allowed(tool, asked, around)) if written else None
        key = ""
        if own is not None and _says_all(tool, asked, own) and not invents(tool, asked, own):
            key = _key(tool, own)
            found.setdefault(key, (own, _UNREAD))
        scores = self._needle.calls(asked, tool, [arguments for arguments, _ in found.values()])
        return [
            (arguments, [*_likelihood(score), -share, float(one == key), float(not arguments)])
            for (one, (arguments, share)), score in zip(found.items(), scores, strict=True)
        ]


def _likelihood(score: Sequence[float]) -> tuple[float, float]:
    return max(_LEAST, fsum(score)), max(_LEAST_TOKEN, min(score))


def _in_order(tool: ToolDefinition, arguments: JsonObject) -> JsonObject:
    """Return the arguments in the order of the parameters, as the model would write them."""
    order = (*properties_of(tool), *arguments)
    return {name: arguments[name] for name in order if name in arguments}


def likely_of(ranked: Sequence[RankedTool], near: Nearness) -> list[RankedTool]:
    """Return the nearest tools by `near`, then the best by their scores, and None for no tool."""
    tools = [one for one in ranked if one.tool]
    nearest = sorted(tools, key=lambda one: -fsum(near[one.tool.name if one.tool else None]))
    likely = nearest[: _OFFERED // 2]
    likely += [one for one in tools if one not in likely]
    return [*likely[:_OFFERED], RankedTool(0.0, None)]


def _sum(weights: Sequence[float], row: Sequence[float]) -> float:
    return fsum(weight * value for weight, value in zip(weights, row, strict=True))


def _chances(sums: Sequence[float]) -> list[float]:
    most = max(sums)
    parts = [exp(value - most) for value in sums]
    return [part / fsum(parts) for part in parts]


def _key(tool: ToolDefinition, arguments: JsonObject) -> str:
    whole = filled(tool.input_schema or {}, arguments)
    return json.dumps(whole, sort_keys=True, ensure_ascii=False).casefold()


def _says_all(tool: ToolDefinition, asked: str, arguments: JsonObject) -> bool:
    """Return whether nothing is missing or left out, and no value is a part of another one."""
    texts = [value.casefold() for value in arguments.values() if isinstance(value, str)]
    apart = not any(
        one in other for i, one in enumerate(texts) for j, other in enumerate(texts) if i != j
    )
    return apart and not lacking(tool, arguments) and not leaves_out(asked, arguments)


# The values that a parameter may have: pieces of the request, members of an enum, and values that
# the examples compute from numbers. Other parameters are left out.


def can_write(tool: ToolDefinition) -> bool:
    """Return whether each required parameter is of a kind that can be written."""
    return all(kind_of(properties_of(tool).get(name))[0] for name in lacking(tool, {}))


def allowed(tool: ToolDefinition, asked: str, around: frozenset[str]) -> dict[str, list[JsonValue]]:
    """Return the allowed values of each parameter that can be written."""
    properties, patterns, only = properties_of(tool), patterns_of(tool), narrowed(tool, asked)
    names = [tool.name, *properties]
    about = {t.text for t in tokens(f"{' '.join(map(spaced_name, names))} {tool.description}")}
    plain = (around | about) - {t.text for t in tokens(asked) if t.quote}
    found: dict[str, list[JsonValue]] = {}
    for name, part in properties.items():
        recipes = [p.made[name] for p in patterns if name in p.made]
        kind, members = kind_of(part)
        values: Sequence[JsonValue]
        if members:
            values = members
        elif recipes and kind == "string":
            values = _computed(tool, name, recipes, asked)
        elif kind == "string":
            narrow = only.get(name, {}).get("enum")
            pieces = _pieces(narrow if isinstance(narrow, list) else runs(asked), plain)
            samples = [tokens(str(e.arguments[name])) for e in tool.examples if name in e.arguments]
            values = [piece for piece in pieces if _is_like(samples, tokens(piece))]
        elif kind in ("number", "integer"):
            values = numbers(asked, whole=kind == "integer")
        else:
            values = [True, False] if kind == "boolean" else []
        found[name] = list({json.dumps(value): value for value in values}.values())
    return found


def _is_like(samples: Sequence[Sequence[Token]], piece: Sequence[Token]) -> bool:
    """Return whether a piece has small words only if a sample has some, and has about the samples'
    length."""
    if not samples or any(t.is_small for sample in samples for t in sample):
        return True
    return len(piece) <= 1 + max(map(len, samples)) and not any(t.is_small for t in piece)


def _pieces(runs_: Sequence[JsonValue], plain: frozenset[str]) -> list[str]:
    """Return the pieces that have more than small words and the words around values in examples."""
    found: list[str] = []
    for text in (piece for piece in runs_ if isinstance(piece, str)):
        owner = text[:-2] if text.endswith(("'s", "’s")) else text
        for form in (text, owner):
            if any(not t.is_small and t.text not in plain for t in tokens(form)):
                found.append(form)
    return found


def _is_symbols(text: str) -> bool:
    kinds = {t.kind for t in tokens(text)}
    return kinds == {"number", "mark"} and text.count("(") == text.count(")")


def _computed(
    tool: ToolDefinition, name: str, recipes: Sequence[tuple[str | int, ...]], asked: str
) -> list[str]:
    """Return what the request itself writes out with all its numbers. Otherwise return what the
    examples compute from them, in their order and in reverse."""
    said = [t.text.replace(",", "") for t in tokens(asked) if t.kind == "number"]
    written = [
        run for run in runs(asked) if _is_symbols(run) and not leaves_out(asked, {name: run})
    ]
    if written:
        return written
    found = [infix.join(said) for infix in _infixes(tool, name)] if len(said) > 1 else []
    for recipe in recipes:
        for given in (said, said[::-1]):
            if sum(isinstance(part, int) for part in recipe) == len(given):
                found.append("".join(r if isinstance(r, str) else given[r] for r in recipe))
    return found


def _infixes(tool: ToolDefinition, name: str) -> list[str]:
    found: dict[str, None] = {}
    for value in (example.arguments.get(name) for example in tool.examples):
        said = tokens(value) if isinstance(value, str) else ()
        for one, mark, other in zip(said, said[1:], said[2:], strict=False):
            if (one.kind, mark.kind, other.kind) == ("number", "mark", "number"):
                found[str(value)[one.end : other.start]] = None
    return list(found)
