"""How sure a call is: what the nearness of texts, the examples and Needle say of it, weighed.

Rule: nothing here knows any tool or phrase. Each tool, and "no tool", gets a chance, and for the
likeliest one each way to fill it in, and "none of these": a softmax over a few sums. Their weights are
the only thing that was ever fitted, on questions that are no part of the tests: by
`benchmarks/local_weights.py`, which also prints them.
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
    tokens,
)
from toolcrib.pick.words import spaced_name
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue

CERTAIN = 0.55
"""The chance from which a call is made."""

_TOOL_WEIGHTS = (0.25, 8.06, 4.45)
_NONE_WEIGHTS = (0.37, 10.16, 2.73)
_NONE = 0.52
"""Of Needle's log-likelihood, and of the nearness as a whole and without values."""

_CALL_WEIGHTS = (0.09, 0.14, 4.92, 1.27, -2.25)
_NO_CALL = -3.19
"""Of the log-likelihood of the arguments and of their unlikeliest token, of what it costs to read them
by an example, of being what Needle would write, and of having no values."""

_UNREAD = 0.5
"""What it costs to read a call that no example gives."""

_OFFERED = 6
_READ = 3
_UNLIKELY = -8.0
_LEAST, _LEAST_TOKEN = -25.0, -12.0

Nearness: TypeAlias = Mapping[str | None, tuple[float, float]]
"""For each tool, and None for no tool: as a whole, and without values."""


class RankedTool(NamedTuple):
    """A tool (None: no tool fits), its score, and how the request reads by its examples, best first."""

    score: float
    tool: ToolDefinition | None
    readings: Sequence[RequestReading] = ()


class WeighedCall(msgspec.Struct, frozen=True):
    """Arguments and their chance among all, and "none of these"."""

    chance: float
    arguments: JsonObject


class Weigher:
    """Weighs tools and calls. Safe to use from threads."""

    def __init__(self, needle: Needle) -> None:
        self._needle = needle

    def tools(self, asked: str, ranked: Sequence[RankedTool], near: Nearness) -> list[RankedTool]:
        """Return the likely ones, no tool among them, with their chances as scores."""
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
        """Return ways to fill in a call, the likeliest first. `around` has the words that stand around
        values in examples; with `written` the model may write one, too."""
        tool = candidate.tool
        if tool is None or candidate.score < CERTAIN:  # whatever is in it, it would not be certain
            return []
        features = self.call_features(asked, candidate, around, written=written)
        sums = [_NO_CALL, *(_sum(_CALL_WEIGHTS, row) for _, row in features)]
        found = zip(_chances(sums)[1:], features, strict=True)
        calls = [WeighedCall(chance, arguments) for chance, (arguments, _) in found]
        return sorted(calls, key=lambda call: -call.chance)

    def call_features(
        self, asked: str, candidate: RankedTool, around: frozenset[str], *, written: bool
    ) -> list[tuple[JsonObject, list[float]]]:
        """Return the ways that use all that was said, and nothing else, each with what is weighed."""
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
    properties = (tool.input_schema or {}).get("properties")
    order = [*properties] if isinstance(properties, dict) else []
    return {name: arguments[name] for name in (*order, *arguments) if name in arguments}


def likely_of(ranked: Sequence[RankedTool], near: Nearness) -> list[RankedTool]:
    """Return the tools that are nearest by `near` and else by their scores; and no tool."""
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
    """Return whether nothing is lacking or left out, and no value is a part of another one."""
    texts = [value.casefold() for value in arguments.values() if isinstance(value, str)]
    apart = not any(
        one in other for i, one in enumerate(texts) for j, other in enumerate(texts) if i != j
    )
    return apart and not lacking(tool, arguments) and not leaves_out(asked, arguments)


# The values that a parameter may have: pieces of the request, members of an enum, and what the
# examples compute of numbers. Other parameters are left out.


def can_write(tool: ToolDefinition) -> bool:
    """Return whether each required parameter is of a kind that can be written."""
    properties = (tool.input_schema or {}).get("properties")
    parts = properties if isinstance(properties, dict) else {}
    return all(kind_of(parts.get(name))[0] for name in lacking(tool, {}))


def allowed(tool: ToolDefinition, asked: str, around: frozenset[str]) -> dict[str, list[JsonValue]]:
    """Return for each parameter that can be written the values that it may have."""
    schema = tool.input_schema or {}
    properties = schema.get("properties")
    patterns = patterns_of(tool)
    only = narrowed(tool, asked)
    names = [tool.name, *(properties if isinstance(properties, dict) else ())]
    about = {t.text for t in tokens(f"{' '.join(map(spaced_name, names))} {tool.description}")}
    plain = (around | about) - {t.text for t in tokens(asked) if t.quote}
    found: dict[str, list[JsonValue]] = {}
    for name, part in properties.items() if isinstance(properties, dict) else ():
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
    """Return whether a piece has small words only if a sample has, and is else about as long."""
    if not samples or any(t.is_small for sample in samples for t in sample):
        return True
    return len(piece) <= 1 + max(map(len, samples)) and not any(t.is_small for t in piece)


def _pieces(runs_: Sequence[JsonValue], plain: frozenset[str]) -> list[str]:
    """Return the pieces that have more than small words and what examples say around values."""
    found: list[str] = []
    for piece in runs_:
        text = piece if isinstance(piece, str) else ""
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
    """Return what the request writes out with all its numbers; else what the examples compute of them,
    as they stand and turned round."""
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
    """Return the marks that stand between two numbers in the examples' values."""
    found: dict[str, None] = {}
    for value in (example.arguments.get(name) for example in tool.examples):
        said = tokens(value) if isinstance(value, str) else ()
        for one, mark, other in zip(said, said[1:], said[2:], strict=False):
            if (one.kind, mark.kind, other.kind) == ("number", "mark", "number"):
                found[str(value)[one.end : other.start]] = None
    return list(found)
