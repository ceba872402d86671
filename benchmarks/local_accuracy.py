"""How often the embedded model calls the right tool, exactly; and what it does when it does not.

    python benchmarks/local_accuracy.py [--half HALF] [--first|--worlds] [--misses] [--json]

Asks the 250 questions of `local_questions.jsonl`, over the kit and nine tools that exist only here;
with `--first` the 60 of `kit_questions.jsonl`, over the six tools that the kit had at first. The rows
of the halves `tune` and `held` were written before any of what they measure. The 50 of `fresh` were
written later, with the tools and their examples known but not the client's code, and before the client
was asked any of them. A hundred more came with Needle: 50 of them are in `tune`, the other 50 are
`last`, of which 30 were counted for the prototype. Arguments of null mean that the question lacks
something: asking back is right. A question may have a conversation before it.

With `--worlds` it asks the 420 of `local_worlds.json`, over seven catalogs of 8 to 10 tools that share
nothing with the kit: a home, travel, an office, a developer's machine, a shop, conversions, sport and
music. Whoever wrote them knew neither the client nor the other questions. They are harder, with
tools that are easily confused, 84 questions that no tool fits, 56 that lack an argument.

Rule: the rows of the halves `held`, `fresh` and `last` are counted and never shown, nor used for
prompts, weights or examples; `--misses` shows those of the half `tune`.

Shares are of all questions. `exact` is a whole right answer: the right call, rightly none, rightly a
question back. `silent` is a call that would run and is wrong in its tool or an argument; `asked` is a
question back that was not needed; the rest says that no tool fits, or is refused by the schema.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Literal, NamedTuple

from toolcrib import kit, tool
from toolcrib.clients.local import LocalClient
from toolcrib.errors import ToolError
from toolcrib.kit.arithmetic import evaluate
from toolcrib.values.call import Hydrated, ToolCall
from toolcrib.values.definition import Example, HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject
from toolcrib.values.message import ChatRequest, Message, Plan

_HERE = Path(__file__).parent
_HALVES = ("tune", "held", "fresh", "last")


class Question(NamedTuple):
    """`arguments` gives the acceptable values of each parameter, None among them: may be left out.

    `before` has the calls of the conversation before it, as request, tool and arguments.
    """

    id: str
    half: str
    ask: str
    tool: str | None
    arguments: dict[str, list[Any]] | None
    before: Sequence[tuple[str, str, JsonObject]] = ()


class Answer(NamedTuple):
    """What became of a question; `seconds` of wall clock."""

    question: Question
    tool: str | None
    said: str
    right_tool: bool
    exact: bool
    silent: bool
    asked: bool
    seconds: float


class Figures(NamedTuple):
    """Counts over one half, and seconds of a question."""

    questions: int
    right_tool: int
    exact: int
    silent: int
    asked: int
    median_seconds: float
    slowest_seconds: float


@tool(
    visible=[],
    examples=[
        ("Set a timer for 10 minutes", {"minutes": 10}),
        ("Start a timer of 45 minutes", {"minutes": 45}),
        ("I need a 3 minute timer for tea", {"minutes": 3, "label": "tea"}),
        ("Wake me in 20 minutes", {"minutes": 20}),
        ("Timer for the pasta, 9 minutes", {"minutes": 9, "label": "pasta"}),
    ],
)
def set_timer(minutes: int, label: str = "") -> str:
    """Start a timer that rings after some minutes."""
    return f"{minutes} {label}"


@tool(
    visible=[],
    examples=[
        ("Send Anna a message: see you at six", {"to": "Anna", "text": "see you at six"}),
        ("Tell Tom that the train is full", {"to": "Tom", "text": "the train is full"}),
        ("Write to Lea: I have the keys", {"to": "Lea", "text": "I have the keys"}),
        ("Message Paul that I found his hat", {"to": "Paul", "text": "I found his hat"}),
    ],
)
def send_message(to: str, text: str) -> str:
    """Send a text message to somebody."""
    return f"{to}: {text}"


@tool(
    visible=[],
    examples=[
        ("Turn the kitchen light on", {"room": "kitchen", "state": "on"}),
        ("Switch off the lamp in the hall", {"room": "hall", "state": "off"}),
        ("Make the light in the office go on", {"room": "office", "state": "on"}),
        ("cellar lights off", {"room": "cellar", "state": "off"}),
    ],
)
def switch_light(room: str, state: Literal["on", "off"]) -> str:
    """Switch the light of a room on or off."""
    return f"{room} {state}"


@tool(
    visible=[],
    examples=[
        ("Translate 'the red house' to Italian", {"text": "the red house", "language": "Italian"}),
        ('What is "cheese" in Polish?', {"text": "cheese", "language": "Polish"}),
        ("Say 'see you soon' in Dutch", {"text": "see you soon", "language": "Dutch"}),
        ("Put 'I am cold' into Greek", {"text": "I am cold", "language": "Greek"}),
    ],
)
def translate_text(text: str, language: str) -> str:
    """Translate a text into another language."""
    return f"{text} {language}"


@tool(
    visible=[],
    examples=[
        (
            "How many euros are 30 dollars?",
            {"amount": 30, "source": "dollars", "target": "euros"},
        ),
        ("Exchange 500 CHF to GBP", {"amount": 500, "source": "CHF", "target": "GBP"}),
        ("What is 80 yen worth in pesos?", {"amount": 80, "source": "yen", "target": "pesos"}),
        ("12.5 NOK in SEK", {"amount": 12.5, "source": "NOK", "target": "SEK"}),
    ],
)
def exchange_currency(amount: float, source: str, target: str) -> str:
    """Convert an amount of money from one currency to another."""
    return f"{amount} {source} {target}"


@tool(
    visible=[],
    examples=[
        ("What is the meaning of gregarious?", {"word": "gregarious"}),
        ("Look up the word quixotic", {"word": "quixotic"}),
        ("definition of harbinger", {"word": "harbinger"}),
    ],
)
def define_word(word: str) -> str:
    """Look a word up in the dictionary."""
    return word


@tool(
    visible=[],
    examples=[
        ("Roll 2 dice", {"count": 2}),
        ("Roll a 12 sided die", {"sides": 12}),
        ("Throw 4 dice with 8 sides each", {"count": 4, "sides": 8}),
    ],
)
def roll_dice(count: int = 1, sides: int = 6) -> str:
    """Roll some dice."""
    return f"{count} {sides}"


@tool(visible=[])
def track_parcel(number: str) -> str:
    """Say where a parcel is.

    Args:
        number: The tracking number.
    """
    return number


@tool(visible=[])
def find_contact(name: str) -> str:
    """Look up the phone number and the address of a person.

    Args:
        name: The person's name.
    """
    return name


class Defined(NamedTuple):
    """A tool that is only known by its definition."""

    definition: ToolDefinition

    def get_definition(self) -> ToolDefinition:
        return self.definition


_MADE_UP = (
    *(set_timer, send_message, switch_light, translate_text, exchange_currency),
    *(define_word, roll_dice, track_parcel, find_contact),
)


def load(half: str | None, *, first: bool) -> list[Question]:
    name = "kit_questions.jsonl" if first else "local_questions.jsonl"
    lines = (_HERE / name).read_text(encoding="utf-8").splitlines()
    questions = [Question(**json.loads(line)) for line in lines if line.strip()]
    return [q for q in questions if half in (None, q.half)]


def worlds() -> Iterator[tuple[list[Question], list[Defined]]]:
    """Yield the questions and the tools of each other catalog."""
    for world in json.loads((_HERE / "local_worlds.json").read_text(encoding="utf-8"))["catalogs"]:
        tools = [
            Defined(
                ToolDefinition(
                    name=each["name"],
                    description=each["description"],
                    input_schema_json=json.dumps(each["input_schema"]),
                    examples=tuple(
                        Example(example["request"], json.dumps(example["arguments"]))
                        for example in each["examples"]
                    ),
                )
            )
            for each in world["tools"]
        ]
        yield [Question("", world["name"], **asked) for asked in world["questions"]], tools


def catalog_of(*, first: bool) -> tuple[HasDefinition, ...]:
    offered = kit.catalog(weather=not first)
    return tuple(offered) if first else (*offered, *_MADE_UP)


async def ask_all(questions: Sequence[Question], catalog: Sequence[HasDefinition]) -> list[Answer]:
    async with LocalClient() as client:
        await client.tool_call("What is 1 + 1?", catalog)  # loads the model, outside of the times
        return [await _ask(client, question, catalog) for question in questions]


def _conversation(question: Question) -> list[Message]:
    messages = []
    for number, (request, name, arguments) in enumerate(question.before):
        call = ToolCall(f"before_{number}", name, json.dumps(arguments))
        messages += [Message.user(request), Message.assistant("", (call,))]
        messages += [Message.tool(call, '{"value": 1}'), Message.assistant("It is 1.")]
    return [*messages, Message.user(question.ask)]


async def _ask(client: LocalClient, question: Question, catalog: Sequence[HasDefinition]) -> Answer:
    request = ChatRequest(tuple(_conversation(question)), tuple(catalog))
    started = perf_counter()
    plan = await client.tool_call(request)
    seconds = perf_counter() - started
    call = plan[0].call if plan else None
    asks = call is None and plan.reply.text.rstrip().endswith("?")
    lacking = question.tool is not None and question.arguments is None
    exact = asks if lacking else not asks and _is_exact(plan, question)
    runs = call is not None and isinstance(plan[0], Hydrated)
    return Answer(
        question=question,
        tool=call.name if call else None,
        said=call.arguments if call else plan.reply.text,
        right_tool=exact if call is None else call.name == question.tool,
        exact=exact,
        silent=runs and not exact,
        asked=asks and not lacking,
        seconds=seconds,
    )


def _is_exact(plan: Plan, question: Question) -> bool:
    if question.tool is None:
        return not plan
    result = plan[0] if plan else None
    if not isinstance(result, Hydrated) or result.definition.name != question.tool:
        return False
    schema = result.definition.input_schema or {}
    return question.arguments is not None and _accepted(
        result.arguments, question.arguments, schema
    )


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
    if isinstance(given, str) and isinstance(value, str):
        if name == "expression":
            return _value(given) == _value(value)
        return given.casefold() == value.casefold()
    return isinstance(given, bool) == isinstance(value, bool) and bool(given == value)


def _value(expression: str) -> float | str:
    try:
        return round(evaluate(expression), 9)
    except ToolError:
        return expression


def figures(answers: Sequence[Answer]) -> Figures:
    seconds = [answer.seconds for answer in answers]
    return Figures(
        questions=len(answers),
        right_tool=sum(answer.right_tool for answer in answers),
        exact=sum(answer.exact for answer in answers),
        silent=sum(answer.silent for answer in answers),
        asked=sum(answer.asked for answer in answers),
        median_seconds=round(median(seconds), 3),
        slowest_seconds=round(max(seconds), 3),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--half", choices=_HALVES, help="one half only")
    others = parser.add_mutually_exclusive_group()
    others.add_argument("--first", action="store_true", help="the first 60 questions")
    others.add_argument("--worlds", action="store_true", help="seven other catalogs")
    parser.add_argument("--misses", action="store_true", help="show misses, none of them held out")
    parser.add_argument("--json", action="store_true", help="one JSON value on stdout")
    options = parser.parse_args()
    questions = load(options.half, first=options.first)
    if not questions:
        parser.error(f"the first 60 questions have no half {options.half}")
    asked = worlds() if options.worlds else [(questions, catalog_of(first=options.first))]
    answers = [answer for some, catalog in asked for answer in asyncio.run(ask_all(some, catalog))]
    halves = dict.fromkeys(answer.question.half for answer in answers)
    found = {half: figures([a for a in answers if a.question.half == half]) for half in halves}
    if options.worlds:
        found["all"] = figures(answers)
    if options.json:
        json.dump({half: f._asdict() for half, f in found.items()}, sys.stdout, indent=2)
        print()
    else:
        _print_table(found)
    if options.misses:
        _print_misses(answers)


def _print_table(found: dict[str, Figures]) -> None:
    print(
        f"{'':13} {'right tool or none':>19} {'exact':>10} {'silent':>10} {'asked':>10} "
        f"{'s, median':>10} max"
    )
    for half, f in found.items():
        shares = (_share(part, f.questions) for part in f[1:5])
        tool_share, *others = shares
        print(
            f"{half:13} {tool_share:>19} {' '.join(f'{s:>10}' for s in others)} "
            f"{f.median_seconds:>10.2f} {f.slowest_seconds:.2f}"
        )


def _print_misses(answers: Sequence[Answer]) -> None:
    for answer in answers:
        question = answer.question
        if question.half not in ("held", "fresh", "last") and not answer.exact:
            kind = "SILENT" if answer.silent else "asked" if answer.asked else "missed"
            print(f"{question.id} {kind} {question.ask!r}", file=sys.stderr)
            print(f"    {answer.tool} {answer.said[:150]}", file=sys.stderr)
            print(f"    not {question.tool} {json.dumps(question.arguments)}", file=sys.stderr)


def _share(part: int, whole: int) -> str:
    return f"{part}/{whole} {part / whole:.0%}"


if __name__ == "__main__":
    main()
