"""How often the embedded model picks the right tool of the kit, and fills it in exactly.

    python benchmarks/local_accuracy.py [--half tuning|held_out] [--weather] [--misses] [--json]

Asks the questions of `kit_questions.jsonl`, which were written before any of what they measure, and
before the kit knew of the weather: `get_weather` is offered with `--weather` only, and a question about
the weather counts as one that needs no tool.
Rule: the rows of the half `held_out` are counted and never shown, nor used for prompts or examples;
`--misses` shows those of the half `tuning`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from toolcrib import kit
from toolcrib.clients.local import LocalClient
from toolcrib.values.call import Hydrated
from toolcrib.values.client import Plan
from toolcrib.values.json import JsonObject

_QUESTIONS = Path(__file__).with_name("kit_questions.jsonl")
_HALVES = ("tuning", "held_out")


class Question(NamedTuple):
    """`arguments` gives the acceptable values of each parameter, None among them: may be left out."""

    id: str
    half: str
    ask: str
    tool: str | None
    arguments: dict[str, list[Any]]


class Answer(NamedTuple):
    """What became of a question; `seconds` of wall clock."""

    question: Question
    tool: str | None
    arguments: str
    exact: bool
    seconds: float

    @property
    def right_tool(self) -> bool:
        return self.tool == self.question.tool


class Figures(NamedTuple):
    """Counts over one half; `exact` and `needs_tool` over the questions that need a tool."""

    questions: int
    right_tool: int
    needs_tool: int
    right_of_needed: int
    exact: int
    mean_seconds: float
    slowest_seconds: float


def load(half: str | None) -> list[Question]:
    lines = _QUESTIONS.read_text(encoding="utf-8").splitlines()
    questions = [Question(**json.loads(line)) for line in lines if line.strip()]
    return [q for q in questions if half in (None, q.half)]


async def ask_all(questions: Sequence[Question], *, weather: bool = False) -> list[Answer]:
    catalog = kit.catalog(weather=weather)
    async with LocalClient() as client:
        await client.tool_call("What is 1 + 1?", catalog)  # loads the model, outside of the times
        return [await _ask(client, question, catalog) for question in questions]


async def _ask(client: LocalClient, question: Question, catalog: Any) -> Answer:
    started = perf_counter()
    plan = await client.tool_call(question.ask, catalog)
    seconds = perf_counter() - started
    call = plan[0].call if plan else None
    return Answer(
        question,
        call.name if call else None,
        call.arguments if call else "",
        _is_exact(plan, question),
        seconds,
    )


def _is_exact(plan: Plan, question: Question) -> bool:
    if question.tool is None:
        return not plan
    result = plan[0] if plan else None
    if not isinstance(result, Hydrated) or result.definition.name != question.tool:
        return False
    schema = result.definition.input_schema or {}
    return _accepted(result.arguments, question.arguments, schema)


def _accepted(given: JsonObject, wanted: dict[str, list[Any]], schema: JsonObject) -> bool:
    """Every parameter has an acceptable value; one left out stands for its default."""
    properties: Any = schema.get("properties", {})
    for name, part in properties.items():
        accepted = wanted.get(name, [None])
        if "default" in part and None in accepted:
            accepted = [*accepted, part["default"]]
        if not any(_same(name, given.get(name), value) for value in accepted):
            return False
    return set(given) <= set(properties)


def _same(name: str, given: Any, value: Any) -> bool:
    if name == "expression" and isinstance(given, str) and isinstance(value, str):
        return "".join(given.split()) == "".join(value.split())
    return not isinstance(given, bool) and bool(given == value)


def figures(answers: Sequence[Answer]) -> Figures:
    needed = [answer for answer in answers if answer.question.tool]
    seconds = [answer.seconds for answer in answers]
    return Figures(
        len(answers),
        sum(answer.right_tool for answer in answers),
        len(needed),
        sum(answer.right_tool for answer in needed),
        sum(answer.exact for answer in needed),
        round(sum(seconds) / len(seconds), 3),
        round(max(seconds), 3),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--half", choices=_HALVES, help="one half only")
    parser.add_argument("--weather", action="store_true", help="offer get_weather, too")
    parser.add_argument("--misses", action="store_true", help="show the tuning half's misses")
    parser.add_argument("--json", action="store_true", help="one JSON value on stdout")
    options = parser.parse_args()
    answers = asyncio.run(ask_all(load(options.half), weather=options.weather))
    found = {
        half: figures([answer for answer in answers if answer.question.half == half])
        for half in _HALVES
        if options.half in (None, half)
    }
    if options.json:
        json.dump({half: f._asdict() for half, f in found.items()}, sys.stdout, indent=2)
        print()
    else:
        _print_table(found)
    if options.misses:
        _print_misses(answers)


def _print_table(found: dict[str, Figures]) -> None:
    print(
        f"{'':9} {'right tool or none':>19} {'right tool':>11} {'exact call':>11} {'s, mean':>8} max"
    )
    for half, f in found.items():
        print(
            f"{half:9} {_share(f.right_tool, f.questions):>19} "
            f"{_share(f.right_of_needed, f.needs_tool):>11} {_share(f.exact, f.needs_tool):>11} "
            f"{f.mean_seconds:>8.2f} {f.slowest_seconds:.2f}"
        )


def _print_misses(answers: Sequence[Answer]) -> None:
    for answer in answers:
        question = answer.question
        if question.half == "tuning" and not (answer.right_tool and answer.exact):
            print(f"{question.id} {question.ask!r}", file=sys.stderr)
            print(f"    {answer.tool} {answer.arguments}", file=sys.stderr)
            print(f"    not {question.tool} {json.dumps(question.arguments)}", file=sys.stderr)


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} {part / whole:.0%}"


if __name__ == "__main__":
    main()
