"""Arguments that stream: the public ones show, however they are written and split, and no others."""

from __future__ import annotations

import json
from typing import Any

import jiter
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row

from toolcrib import ALL, Agent, Message, Reply, ToolArgumentsDelta, ToolCall, tool
from toolcrib.agent.stream import PublicText
from toolcrib.errors import ProviderError
from toolcrib.runner.output import public_arguments
from toolcrib.testing import ScriptedClient, call, raw_call
from toolcrib.values.definition import ToolDefinition

DECLARED = frozenset(("a", "b", "é", '"', "😀", ""))
NAMES = st.sampled_from([*DECLARED, "c", "aa", "A", "a\u200b", "canary"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(
        st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\{}[],:\n'), max_size=8
    ),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(NAMES, below, max_size=4),
    max_leaves=12,
)
SPACES = st.text(" \t\n\r", max_size=3)


def shown(text: str, cuts: list[int] | None = None) -> str:
    """What shows of a text that comes in pieces; by default in one."""
    public, pieces, last = PublicText(DECLARED), [], 0
    for cut in [*sorted(cuts or ()), len(text)]:
        pieces.append(public.feed(text[last:cut]))
        last = cut
    return "".join(pieces)


def one_by_one(text: str) -> str:
    return shown(text, list(range(len(text))))


def test_the_halves_of_a_surrogate_pair_show_together() -> None:
    public = PublicText(DECLARED)
    pieces = ['{"a":"x\ud83d', '\ude00","\ud83d', '\ude00":"\ud83d', '"}']
    outputs = [public.feed(piece) for piece in pieces]
    assert outputs == ['{"a":"x', '😀"', ',"😀":"', ""]  # half a pair alone is malformed


WHOLE: list[tuple[str, str]] = [
    ("{}", "{}"),
    (' { "a" : 1 , "b" : [ ] } ', '{"a" : 1,"b" : [ ]}'),
    ('{"c":1}', "{}"),
    ('{"c":{"a":1},"a":{"c":1}}', '{"a":{"c":1}}'),
    ('{"c":[1,{"a":2}],"b":"c","c":",\\"a\\":1"}', '{"b":"c"}'),
    (r'{"\u0061":1,"\u0063":2,"\u00E9":3}', r'{"\u0061":1,"\u00E9":3}'),
    (r'{"\uD83D\ude00":4,"\uD83D\ude01":5}', r'{"\uD83D\ude00":4}'),
    (r'{"\"":"\\","\\":"\""}', r'{"\"":"\\"}'),
    ('{"":-0.5e+10,"aa":true,"A":null,"a":false}', '{"":-0.5e+10,"a":false}'),
    ('{"a":"\x7f\u2028😀/\\/"}', '{"a":"\x7f\u2028😀/\\/"}'),
    ('{"a":[[[{"x":[{}]},0]]]}', '{"a":[[[{"x":[{}]},0]]]}'),
]  # fmt: skip


@each_row(("text", "public"), WHOLE, ids=[text for text, _ in WHOLE])
def test_declared_members_show(text: str, public: str) -> None:
    assert shown(text) == public
    assert one_by_one(text) == public


MALFORMED: list[tuple[str, str]] = [
    ("null", ""),
    ('[{"a":1}]', ""),
    ('"{\\"a\\":1}"', ""),
    ("{'a':'x'}", "{"),
    ('{"a":1}{"b":1}', '{"a":1}'),
    ('{"a":1} "b"', '{"a":1}'),
    ('{"a" "b":1}', '{"a"'),
    ('{"a":1 "b":2}', '{"a":1'),
    ('{"a":1,,"b":2}', '{"a":1'),
    ('{"a":1,}', '{"a":1'),
    ('{"a":[1,]}', '{"a":[1,'),
    ('{"a":[1}', '{"a":[1'),
    ('{"a":[1},"c":2}', '{"a":[1'),
    ('{"a":{"x":1],"c":2}', '{"a":{"x":1'),
    ('{"a":[1 "c":2}', '{"a":[1'),
    ('{"a":["x","c":2}', '{"a":["x","c"'),
    ('{"a":{"x" 1}', '{"a":{"x"'),
    ('{"a":{1:2}}', '{"a":{'),
    ('{"a":01}', '{"a":'),
    ('{"a":1.}', '{"a":'),
    ('{"a":+1}', '{"a":'),
    ('{"a":NaN}', '{"a":'),
    ('{"a":nullx}', '{"a":'),
    ('{"a":True,"b":1}', '{"a":'),
    ('{"a":"x\ny"}', '{"a":"x'),
    ('{"a":"x\\q y"}', '{"a":"x'),
    ('{"a":"\\u12g4 y"}', '{"a":"'),
    ('{"a":"\\ud800 y"}', '{"a":"'),
    ('{"a":"\\udc00 y"}', '{"a":"'),
    ('{"a":"x\ud800y"}', '{"a":"x'),
    ('{"a":1 // "b": 2\n}', '{"a":1'),
    ('\ufeff{"a":1}', ""),
    ("\xa0{}", ""),
]


@each_row(("text", "public"), MALFORMED, ids=[text[:40] for text, _ in MALFORMED])
def test_nothing_shows_from_where_a_text_is_malformed(text: str, public: str) -> None:
    assert shown(text).rstrip() == public
    assert one_by_one(text).rstrip() == public
    assert "canary" not in shown(text + ',"a":"canary"}' * 100)


CUT: list[tuple[str, str]] = [
    ("", ""),
    ('{"a', "{"),
    ('{"a"', '{"a"'),
    ('{"a":123', '{"a":'),
    ('{"a":tru', '{"a":'),
    ('{"a":"cut', '{"a":"cut'),
    (r'{"a":"cut\u00e', '{"a":"cut'),
    (r'{"a":"cut\ud83d\ude0', '{"a":"cut'),
    ('{"a":[1,{"x":2', '{"a":[1,{"x":'),
    ('{"a":1,"c":"canary', '{"a":1'),
]


@each_row(("text", "public"), CUT, ids=[text for text, _ in CUT])
def test_what_is_certain_of_a_cut_text_shows(text: str, public: str) -> None:
    assert shown(text) == public
    assert one_by_one(text) == public


@st.composite
def texts(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """An object, and one of the many ways to write it."""
    value = draw(st.dictionaries(NAMES, VALUES, max_size=6))
    indent = draw(st.sampled_from([None, 0, 1]))
    ascii_only = draw(st.booleans())

    def name(text: str) -> str:
        if not draw(st.booleans()):
            return json.dumps(text, ensure_ascii=ascii_only)
        units = memoryview(text.encode("utf-16-le")).cast("H")
        return '"' + "".join(f"\\u{unit:04x}" for unit in units) + '"'

    def space() -> str:
        return draw(SPACES)

    members = [
        f"{space()}{name(n)}{space()}:{space()}"
        f"{json.dumps(v, ensure_ascii=ascii_only, indent=indent)}{space()}"
        for n, v in value.items()
    ]
    return f"{space()}{{{','.join(members) or space()}}}{space()}", value


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[int]:
    return draw(st.lists(st.integers(0, len(text)), max_size=8))


@given(texts(), st.data())
def test_what_shows_is_an_object_of_the_declared_members(
    written: tuple[str, dict[str, Any]], data: st.DataObject
) -> None:
    text, value = written
    public = shown(text, data.draw(cuts(text)))
    assert public == shown(text)
    assert json.loads(public) == {n: v for n, v in value.items() if n in DECLARED}


@given(texts(), st.sampled_from('{}[]",:\\1ae- .\x01'), st.data())
def test_of_what_is_malformed_what_came_before_shows(
    written: tuple[str, dict[str, Any]], stray: str, data: st.DataObject
) -> None:
    """Another parser says how far a text is the beginning of JSON."""
    text, _ = written
    at = data.draw(st.integers(0, len(text)))
    text = text[:at] + stray + text[at + data.draw(st.integers(0, 3)) :]
    end = len(text)
    while end and not _begins_json(text[:end]):
        end -= 1
    public = shown(text, data.draw(cuts(text)))
    assert public.rstrip() == shown(text[:end]).rstrip()
    if public:
        assert jiter.from_json(public.encode(), partial_mode="trailing-strings").keys() <= DECLARED


def _begins_json(text: str) -> bool:
    try:
        jiter.from_json(text.encode(), partial_mode="trailing-strings")
    except ValueError:
        return False
    return True


def test_every_character_is_looked_at_a_bounded_number_of_times() -> None:
    """What is held back is short, whatever comes; so no piece is read again and again."""
    hostile = ['{"', '{"c":"', '{"a":[', '{"a":[1,', '{"a":{"x":', '{"a":', "{", '{"a":"\\u']
    for begin in hostile:
        for piece in ("k" * 7, "1,", "\\", " ", '"x":1,', "[", '["x"', "{}"):
            public = PublicText(DECLARED)
            public.feed(begin)
            for _ in range(2_000):
                public.feed(piece)
                assert len(public._held) <= 1_000


@tool(visible=ALL, input_schema={"type": "object", "properties": {"a": {"type": "string"}}})
async def opened(**others: Any) -> int:
    """Take anything."""
    return len(others)


@tool(visible=ALL, allow_no_schema=True, no_schema_mode="full")
async def unchecked(**others: Any) -> int:
    """Take anything, and check nothing."""
    return len(others)


DEFINITIONS = [opened.definition, unchecked.definition, opened.definition.renamed("other")]


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: d.name)
def test_what_streams_is_what_is_public_in_the_end(definition: ToolDefinition) -> None:
    arguments: dict[str, Any] = {"a": "x", "canary": "y"}
    streamed = PublicText.of(definition).feed(json.dumps(arguments))
    assert json.loads(streamed) == public_arguments(definition, arguments)


async def deltas(*turns: Any) -> list[ToolArgumentsDelta]:
    stream = Agent(ScriptedClient([*turns, ProviderError("enough")]), [opened, unchecked]).stream(
        ""
    )
    return [event async for event in stream if isinstance(event, ToolArgumentsDelta)]


async def test_events_of_parallel_calls_are_told_apart() -> None:
    calls = [call("opened", a="x", canary="y"), call("unchecked", a=1), raw_call("none", '{"a":1}')]
    told = await deltas(calls, [call("opened", a="z")])
    texts = {delta.id: "" for delta in told}
    for delta in told:
        assert delta.text
        texts[delta.id] += delta.text
    assert list(texts.values()) == ['{"a":"x"}', "{}", '{"a":"z"}']


async def test_a_reply_that_repeats_an_id_does_not_hide_what_the_next_one_says() -> None:
    def again(_request: Any) -> Any:
        calls = (ToolCall("same", "opened", '{"a":"x"}'),)
        return Reply(Message.assistant("", calls), "tool_calls")

    told = await deltas(again, again)
    assert "".join(delta.text for delta in told) == '{"a":"x"}' * 2
