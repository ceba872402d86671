"""Fits the weights of `clients/local/ranking.py`, and prints them.

    python benchmarks/local_weights.py

Fitted on the half `tune` of `local_questions.jsonl` and of `kit_questions.jsonl`, and on each example
of each tool, asked as if the tool did not have it, which counts half. A question that goes on with a
call is left out. Each row is a choice: of the likely tools or none, of the ways to fill in a call or
none. What is printed of the certainty was measured on fifths that the weights were not fitted on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from local_accuracy import Defined, Question, _accepted, catalog_of, load

from toolcrib.clients.local import ranking
from toolcrib.clients.local.choosing import ToolChooser
from toolcrib.clients.local.client import _ModelRanker, _new_ranker
from toolcrib.clients.local.reading import patterns_of, words_around
from toolcrib.values.definition import HasDefinition
from toolcrib.values.message import Offer

_FOLDS = 5
_EXAMPLE = 0.5
_RIDGE = 0.02
_STEPS = 1500


class Row(NamedTuple):
    """Holds the features of each choice, "none" first, and which of them are right."""

    question: Question
    names: list[str | None]
    tools: Any
    right_tool: int | None
    calls: dict[str, tuple[Any, list[int]]]


def asked() -> Iterator[tuple[Question, Sequence[HasDefinition]]]:
    for first in (False, True):
        for question in load("tune", first=first):
            if not question.before:
                yield question, catalog_of(first=first)
    catalog = [tool.get_definition() for tool in catalog_of(first=False)]
    for tool in catalog:
        for example in tool.examples:
            others = tuple(other for other in tool.examples if other != example)
            less = msgspec.structs.replace(tool, examples=others)
            offered = [Defined(less if other is tool else other) for other in catalog]
            wanted = {name: [value] for name, value in example.arguments.items()}
            yield Question("", "example", example.request, tool.name, wanted), offered


def row_of(
    question: Question, tools: Sequence[HasDefinition], chooser: ToolChooser, ranker: _ModelRanker
) -> Row:
    offer = Offer.of(tuple(tools))
    ranked = chooser.rank(question.ask, tuple(offer.tools.values()))
    near = ranker.nearness(question.ask, ranked, tuple(offer.tools.values()))
    likely = ranking.likely_of(ranked, near)[::-1]
    features = ranker.call_ranker.tool_features(question.ask, likely, near)
    names = [one.tool.name if one.tool else None for one in likely]
    around = words_around([p for tool in tools for p in patterns_of(tool.get_definition())])
    best = [
        one.tool.name for one in ranker.call_ranker.tools(question.ask, ranked, near) if one.tool
    ]
    calls = {}
    for one in likely:
        if one.tool is None or one.tool.name not in (*best[:2], question.tool):
            continue
        found = ranker.call_ranker.call_features(question.ask, one, around, written=True)
        schema = one.tool.input_schema or {}
        right = [
            i + 1
            for i, (arguments, _) in enumerate(found)
            if one.tool.name == question.tool
            and question.arguments is not None
            and _accepted(arguments, question.arguments, schema)
        ]
        width = len(ranking._CALL_WEIGHTS)  # noqa: SLF001
        rows = [[1.0, *[0.0] * width], *([0.0, *row] for _, row in found)]
        calls[one.tool.name] = np.array(rows), right or [0]
    # Of no tool the features have weights of their own.
    empty = [0.0] * len(features[0])
    wide = [
        [0.0, *row, *empty] if name else [1.0, *empty, *row]
        for name, row in zip(names, features, strict=True)
    ]
    right_tool = names.index(question.tool) if question.tool in names else None
    return Row(question, names, np.array(wide), right_tool, calls)


def fit(rows: Sequence[tuple[Any, Sequence[int], float]]) -> Any:
    """Return the weights with which the softmax of the sums is likeliest right, held small a little."""
    scale = np.concatenate([features for features, _, _ in rows]).std(0) + 1e-9
    total = sum(weight for _, _, weight in rows)
    weights = np.zeros(len(scale))
    mean, spread = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, _STEPS + 1):
        slope = _RIDGE * weights
        for features, right, weight in rows:
            scaled = features / scale
            chances = softmax(scaled @ weights)
            wanted = np.zeros_like(chances)
            wanted[list(right)] = chances[list(right)]
            slope -= weight * ((wanted / wanted.sum() - chances) @ scaled) / total
        mean, spread = 0.9 * mean + 0.1 * slope, 0.999 * spread + 0.001 * slope**2
        weights -= 0.02 * (mean / (1 - 0.9**step)) / (np.sqrt(spread / (1 - 0.999**step)) + 1e-8)
    return weights / scale


def softmax(sums: Any) -> Any:
    parts = np.exp(sums - sums.max())
    return parts / parts.sum()


def weight_of(row: Row) -> float:
    return _EXAMPLE if row.question.half == "example" else 1.0


def tool_weights(rows: Sequence[Row]) -> Any:
    return fit([(r.tools, [r.right_tool], weight_of(r)) for r in rows if r.right_tool is not None])


def call_weights(rows: Sequence[Row]) -> Any:
    chosen = []
    for row in rows:
        some = [row.question.tool] if row.question.tool else [*row.calls][-1:]
        chosen += [
            (*row.calls[n], weight_of(row))
            for n in some
            if n in row.calls and len(row.calls[n][0]) > 1
        ]
    return fit(chosen)


def judged(row: Row, tool: Any, call: Any) -> tuple[float, bool, bool]:
    """Return how certain the best answer is, whether it is a call, and whether it is right."""
    chances = softmax(row.tools @ tool)
    best = int(chances.argmax())
    name = row.names[best]
    if name is None:
        return 1.0, False, row.question.tool is None
    features, right = row.calls.get(name, (np.zeros((1, len(call))), [0]))
    if len(features) == 1:
        return 0.0, True, False
    ways = softmax(features @ call)
    way = 1 + int(ways[1:].argmax())
    return float(chances[best] * ways[way]), True, way in right


def main() -> None:
    with_needle = _new_ranker()
    if with_needle is None:
        raise SystemExit("run `toolcrib local install`")
    chooser = ToolChooser()
    rows = [row_of(question, tools, chooser, with_needle) for question, tools in asked()]
    found = []
    for fold in range(_FOLDS):
        others = [row for i, row in enumerate(rows) if i % _FOLDS != fold]
        tool, call = tool_weights(others), call_weights(others)
        found += [(row, *judged(row, tool, call)) for row in rows[fold::_FOLDS]]
    for half in ("tune", "example"):
        some = [(c, calls, right) for row, c, calls, right in found if row.question.half == half]
        print(f"{half}: {len(some)}, no tool {sum(not calls for _, calls, _ in some)}")
        for certain in (0.3, 0.4, 0.45, 0.5, 0.55, 0.6):
            made = [right for c, calls, right in some if calls and c >= certain]
            print(f"  certain {certain}: {sum(made)} right, {len(made) - sum(made)} wrong")
    width = len(ranking._TOOL_WEIGHTS)  # noqa: SLF001
    none, *tool = tool_weights(rows).round(2).tolist()
    no_call, *call = call_weights(rows).round(2).tolist()
    print(f"_TOOL_WEIGHTS = {tuple(tool[:width])}")
    print(f"_NONE_WEIGHTS = {tuple(tool[width:])}\n_NONE = {none}")
    print(f"_CALL_WEIGHTS = {tuple(call)}\n_NO_CALL = {no_call}")


if __name__ == "__main__":
    main()
