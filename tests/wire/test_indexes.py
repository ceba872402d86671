"""A piece that says of no call that it is its own is that of the only one that may grow, or a doubt.

An index is a number however it is written, or a text. One of no use counts as one that is not there.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from rows import each_row
from samples import sample
from servers.bedrock import frame
from wire.test_whole import B_OVER, B_WHY, C_WHY, DONE, END, OFFER, OVER, chunk, sse, why

from toolcrib.errors import WireError
from toolcrib.hydration import hydrate
from toolcrib.wire import decode

Index = Callable[[int], Any]
NUMBERS: dict[str, Index] = {"whole": int, "with a fraction": float, "digits": str}
USELESS: dict[str, Index] = {
    "true": bool,
    "half": lambda at: at + 0.5,
    "a list": lambda at: [at],
    "an object": lambda at: {"at": at},
    "null": lambda _: None,
}
NOBODYS = (7, -1, "x", "tool-0", 2, "99", 5.0)
NAMES = "fg"


class Piece:
    """The beginning of a call, a piece of its arguments, or its end."""

    def __init__(self, kind: str, call: int, text: str = "") -> None:
        self.kind, self.call, self.text = kind, call, text


def chat(pieces: list[Piece], index: Index) -> bytes:
    events = []
    for one in pieces:
        if one.kind == "begin":
            said = {"id": f"c{one.call}", "function": {"name": NAMES[one.call], "arguments": ""}}
            events.append(chunk(said | {"index": index(one.call)}))
        elif one.kind == "piece":
            events.append(chunk({"index": index(one.call), "function": {"arguments": one.text}}))
    return sse(*events, END, DONE)


def anthropic(pieces: list[Piece], index: Index) -> bytes:
    events: list[Any] = []
    for one in pieces:
        at = {"index": index(one.call)}
        if one.kind == "begin":
            block = {"type": "tool_use", "id": f"c{one.call}", "name": NAMES[one.call], "input": {}}
            events.append({"type": "content_block_start", "content_block": block} | at)
        elif one.kind == "piece":
            delta = {"type": "input_json_delta", "partial_json": one.text}
            events.append({"type": "content_block_delta", "delta": delta} | at)
        else:
            events.append({"type": "content_block_stop"} | at)
    return sse(*events, why(), OVER)


def bedrock(pieces: list[Piece], index: Index) -> bytes:
    made = b""
    for one in pieces:
        at = {"contentBlockIndex": index(one.call)}
        if one.kind == "begin":
            use = {"toolUse": {"toolUseId": f"c{one.call}", "name": NAMES[one.call]}}
            made += frame(at | {"start": use}, event_type="contentBlockStart")
        elif one.kind == "piece":
            delta = {"toolUse": {"input": one.text}}
            made += frame(at | {"delta": delta}, event_type="contentBlockDelta")
        else:
            made += frame(at, event_type="contentBlockStop")
    return made + B_WHY + B_OVER


def cohere(pieces: list[Piece], index: Index) -> bytes:
    events: list[Any] = []
    for one in pieces:
        kind = {"begin": "start", "piece": "delta", "end": "end"}[one.kind]
        event: dict[str, Any] = {"type": f"tool-call-{kind}", "index": index(one.call)}
        if one.kind != "end":
            call: dict[str, Any] = {"function": {"arguments": one.text}}
            if one.kind == "begin":
                call["id"], call["function"]["name"] = f"c{one.call}", NAMES[one.call]
            event["delta"] = {"message": {"tool_calls": call}}
        events.append(event)
    return sse(*events, C_WHY, DONE)


def responses(pieces: list[Piece], index: Index) -> bytes:
    events: list[Any] = []
    for one in pieces:
        at = {"output_index": index(one.call)}
        call = {"type": "function_call", "call_id": f"c{one.call}", "name": NAMES[one.call]}
        if one.kind == "begin":
            events.append(
                {"type": "response.output_item.added", "item": call | {"arguments": ""}} | at
            )
        elif one.kind == "piece":
            kind = "response.function_call_arguments.delta"
            events.append({"type": kind, "delta": one.text} | at)
    return sse(*events, {"type": "response.completed", "response": {"status": "completed"}})


STREAMS: dict[str, Callable[[list[Piece], Index], bytes]] = {
    "openai-chat": chat,
    "mistral": chat,
    "anthropic": anthropic,
    "bedrock-converse": bedrock,
    "cohere": cohere,
    "openai-responses": responses,
}
ENDED = ("anthropic", "bedrock-converse", "cohere")  # the wires that say where a call ends
TEXTS = ['{"a": 10}', '{"a": 2}', "{}", '{"a": [1, 2, 3]}', '{"a": "x{"}', '{"a":"x y"}']


def mixed(dice: random.Random) -> tuple[list[Piece], list[tuple[str, str]]]:
    """The pieces of two calls in one order or another, and the calls."""
    texts = [dice.choice(TEXTS) for _ in NAMES]
    of_each = []
    for call, text in enumerate(texts):
        cuts = sorted({0, len(text), *(dice.randrange(len(text)) for _ in range(3))})
        parts = [Piece("piece", call, text[a:b]) for a, b in pairwise(cuts)]
        of_each.append([Piece("begin", call), *parts, Piece("end", call)])
    made = []
    while any(of_each):
        made.append(dice.choice([pieces for pieces in of_each if pieces]).pop(0))
    if not dice.randrange(3):  # one after the other
        made.sort(key=lambda one: one.call)
    return made, list(zip(NAMES, texts, strict=True))


def runs(wire: str, data: bytes) -> list[tuple[str, str]]:
    try:
        reply = decode(wire, data, offer=OFFER)
    except WireError:
        return []
    return [(c.name, c.arguments) for c in reply.tool_calls if hydrate(c, OFFER).success]


def seeded(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311  to be repeated


@each_row("wire", STREAMS)
def test_a_number_is_that_number_however_it_is_written(wire: str) -> None:
    for seed in range(sample(40, part=4)):
        pieces, calls = mixed(seeded(seed))
        if wire == "openai-chat" and pieces[0].call:
            calls.reverse()
        for kind, index in NUMBERS.items():
            ran = runs(wire, STREAMS[wire](pieces, index))
            assert sorted(ran) == sorted(calls), (seed, kind)


@each_row("wire", STREAMS)
@each_row("kind", USELESS)
def test_a_piece_that_says_nothing_of_its_call_is_never_given_to_another(
    wire: str, kind: str
) -> None:
    for seed in range(sample(1000, part=80)):
        pieces, calls = mixed(seeded(seed))
        for some in (lambda at: True, lambda at: at == 1, lambda at: at == 0):
            said = lambda at, some=some: USELESS[kind](at) if some(at) else at  # noqa: E731
            ran = runs(wire, STREAMS[wire](pieces, said))
            assert set(ran) <= set(calls), (seed, ran)


@each_row("wire", STREAMS)
@each_row("odd", NOBODYS)
def test_a_piece_whose_index_no_call_has_is_never_given_to_another(wire: str, odd: Any) -> None:
    for seed in range(sample(1000, part=80)):
        pieces, calls = mixed(seeded(seed))
        kept = [one for one in pieces if one.kind != "end" or wire in ENDED]
        begun = [at for at, one in enumerate(kept) if one.kind != "begin"]
        for damaged in (
            {seeded(seed).choice(begun)},
            set(begun),
            set(seeded(seed).sample(begun, 2)),
        ):
            told = itertools.count()
            said = lambda at, told=told, bad=damaged: odd if next(told) in bad else at  # noqa: E731
            ran = runs(wire, STREAMS[wire](kept, said))
            assert set(ran) <= set(calls), (seed, damaged, ran)


@each_row("wire", STREAMS)
def test_a_piece_that_comes_before_its_call_is_given_to_no_other(wire: str) -> None:
    """Though only that one may grow: neither may be whole then."""
    pieces = [
        Piece("begin", 0),
        Piece("piece", 0, '{"a": '),
        Piece("piece", 1, "1}"),
        Piece("end", 0),
        Piece("begin", 1),
        Piece("piece", 1, "{}"),
        Piece("end", 1),
    ]
    assert runs(wire, STREAMS[wire](pieces, int)) == []


@each_row("wire", STREAMS)
@each_row("late", [False, True])
def test_a_piece_between_those_of_another_call_is_none_of_it(wire: str, *, late: bool) -> None:
    """The beginning of its call is lost, or comes after it."""
    begins = Piece("begin", 1)
    pieces = [
        Piece("begin", 0),
        Piece("piece", 0, '{"a": 1'),
        Piece("piece", 1, "0"),
        Piece("end", 1),
        Piece("piece", 0, "}"),
        Piece("end", 0),
        *([begins] if late else []),
    ]
    assert runs(wire, STREAMS[wire](pieces, int)) == []


def without_one(pieces: list[Piece], dice: random.Random) -> list[Piece]:
    at = dice.choice([at for at, one in enumerate(pieces) if one.kind != "piece"])
    return pieces[:at] + pieces[at + 1 :]


def with_one_moved(pieces: list[Piece], dice: random.Random) -> list[Piece]:
    at = dice.choice([at for at, one in enumerate(pieces) if one.kind != "piece"])
    left = pieces[:at] + pieces[at + 1 :]
    to = dice.randrange(len(pieces))
    return [*left[:to], pieces[at], *left[to:]]


@each_row("wire", STREAMS)
@each_row("damaged", [without_one, with_one_moved])
def test_what_runs_of_two_calls_is_what_was_sent(
    wire: str, damaged: Callable[[list[Piece], random.Random], list[Piece]]
) -> None:
    """Though the beginning or the end of one of them is lost, or comes at another time."""
    for seed in range(sample(4000, part=160)):
        pieces, calls = mixed(seeded(seed))
        kept = [one for one in pieces if one.kind != "end" or wire in ENDED]
        ran = runs(wire, STREAMS[wire](damaged(kept, seeded(seed)), int))
        assert set(ran) <= set(calls), (seed, ran)


@each_row("wire", ["openai-chat", "mistral", "anthropic", "cohere"])
@each_row("odd", NOBODYS)
def test_where_one_call_is_open_its_pieces_may_be_numbered(wire: str, odd: Any) -> None:
    cut = ['{"a": ', "1", "}"]
    pieces = [Piece("begin", 0), *(Piece("piece", 0, text) for text in cut), Piece("end", 0)]
    for indexes in ([0, 0, odd, odd, 0], [0, 0, 1, 2, 0]):
        told = iter(indexes)
        said = lambda _, told=told: next(told)  # noqa: E731
        assert runs(wire, STREAMS[wire](pieces, said)) == [("f", '{"a": 1}')]


@each_row("wire", STREAMS)
@each_row("kind", USELESS)
def test_where_one_call_is_open_an_index_is_not_needed(wire: str, kind: str) -> None:
    pieces = [
        Piece("begin", 0),
        Piece("piece", 0, '{"a": '),
        Piece("piece", 0, "1}"),
        Piece("end", 0),
    ]
    assert runs(wire, STREAMS[wire](pieces, USELESS[kind])) == [("f", '{"a": 1}')]
    known = iter([0])
    later = lambda at: next(known, USELESS[kind](at))  # noqa: E731
    assert runs(wire, STREAMS[wire](pieces, later)) == [("f", '{"a": 1}')]


@pytest.mark.parametrize("wire", ["openai-chat", "mistral"])
def test_many_calls_whose_pieces_say_nothing_take_no_long_time(wire: str) -> None:
    events = []
    for at in range(2000):
        said = {"id": f"c{at}", "index": True, "function": {"name": "f", "arguments": '{"a": '}}
        events += [chunk(said), chunk({"index": True, "function": {"arguments": f"{at}}}"}})]
    reply = decode(wire, sse(*events, END, DONE), offer=OFFER)
    assert [json.loads(call.arguments)["a"] for call in reply.tool_calls] == list(range(2000))
    assert all(call.complete for call in reply.tool_calls)


EMPTY: list[dict[str, Any]] = [
    {"index": 0},
    {"index": 0, "type": "function"},
    {"index": 0, "id": None, "name": "", "type": "function", "extra_content": None},
    {"type": "function"},
    {},
]


@each_row("wire", ["openai-chat", "mistral"])
@each_row("empty", EMPTY)
def test_a_piece_that_brings_nothing_is_nothing_once_no_call_may_lack_it(
    wire: str, empty: dict[str, Any]
) -> None:
    begun = chunk({"index": 0, "id": "c0", "function": {"name": "f", "arguments": '{"a": '}})
    more = chunk({"index": 0, "function": {"arguments": "1}"}})
    other = chunk({"index": 1, "id": "c1", "function": {"name": "g", "arguments": '{"a": '}})
    for events in ([begun, more, chunk(empty)], [chunk(empty), begun, more]):
        assert runs(wire, sse(*events, END, DONE)) == [("f", '{"a": 1}')]
    holed = chunk({"index": 0, "Function": {"arguments": "1"}})
    for events in (
        [begun, chunk(empty), more],
        [begun, more, holed],
        [begun, more, other, chunk(empty)],
        [begun, more, chunk({"index": 3})],
        [begun, more, chunk(empty), holed],
    ):
        assert runs(wire, sse(*events, END, DONE)) == []
