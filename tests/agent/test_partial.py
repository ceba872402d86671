"""The value of a typed answer while it streams."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import jiter
import pytest
from agent.test_output import SERVED
from hypothesis import given
from hypothesis import strategies as st

from toolcrib import Agent, PartialOutput, ReplyFinished
from toolcrib.agent.output import PartialValue
from toolcrib.testing import ScriptedClient

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=20,
)


def told(text: str, pieces: int = 1, wrapper: str | None = None) -> list[Any]:
    reader = PartialValue(wrapper)
    cut = (text[at : at + pieces] for at in range(0, len(text), pieces))
    return [*(value for piece in cut for value in reader.feed(piece)), *reader.end()]


def test_what_is_there_is_told_and_a_number_when_it_is_whole() -> None:
    assert told('{"a": 12, "b": "x\\n1"}') == [
        {"a": 12},
        {"a": 12, "b": ""},
        {"a": 12, "b": "x"},
        {"a": 12, "b": "x\n"},
        {"a": 12, "b": "x\n1"},
    ]


@given(values, st.integers(1, 30))
def test_no_half_of_json_raises_and_texts_only_grow(value: Any, pieces: int) -> None:
    said = told(json.dumps(value), pieces)
    for one in said:
        assert fits(one, value)
    assert value == {} or said[-1:] in ([value], []) or isinstance(value, int | float)


def fits(part: Any, whole: Any) -> bool:
    """Whether a value is a beginning of another one."""
    if isinstance(whole, dict):
        known = isinstance(part, dict) and list(part) == list(whole)[: len(part)]
        return known and all(fits(part[name], whole[name]) for name in part)
    if isinstance(whole, list):
        return isinstance(part, list) and all(map(fits, part, whole)) and len(part) <= len(whole)
    if isinstance(whole, str):
        return isinstance(part, str) and whole.startswith(part)
    return type(part) is type(whole) and bool(part == whole)


@given(st.text(), st.integers(1, 5))
def test_no_text_raises(text: str, pieces: int) -> None:
    told(text, pieces)
    told('{"a": "' + text, pieces)


def test_what_is_nested_deeper_than_any_answer_does_not_raise() -> None:
    assert told("[" * 1_000)[0] == []


@pytest.mark.parametrize("text", [
    "Here it is.", "", "{'a': 1}", "nul", "\ud800", "```py", "12 monkeys", "true story", "NaN",
    "-Infinity", "[NaN", '{"a": 1e999, "b": 1', '[-Infinity, 1]',
])  # fmt: skip
def test_what_is_no_json_has_no_value(text: str) -> None:
    assert [value for value in told(text) if value != []] == []


@pytest.mark.parametrize(
    "before", ["```json\n", "```\n", " \n ", "\n```json\n\n", "\n" * 40 + "```json\n"]
)
def test_a_fence_is_no_part_of_it(before: str) -> None:
    assert told(before + '["a"]\n```')[-1] == ["a"]


def test_one_property_that_stands_for_all_is_taken_out_and_an_empty_object_says_nothing() -> None:
    assert told('{"answer": [1, 2, 3]}', wrapper="answer") == [[], [1], [1, 2], [1, 2, 3]]
    assert told("{}") == []


def test_all_together_cost_what_the_text_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No clock: the bytes that are read, for a text and for one of four times its length."""
    read: list[int] = []
    parse = jiter.from_json

    def counted(data: bytes, **options: Any) -> Any:
        read.append(len(data))
        return parse(data, **options)

    monkeypatch.setattr(jiter, "from_json", counted)
    totals = []
    for rows in (200, 800):
        read.clear()
        rows_of_it = [{"name": f"row {n:05}", "text": "x" * 40} for n in range(rows)]
        text = json.dumps(rows_of_it)
        assert told(text, 3)[-1] == rows_of_it
        totals.append(sum(read) / len(text))
        assert len(read) > 60
    assert totals[1] < totals[0] * 1.1
    assert max(totals) < 40


@dataclass
class City:
    name: str
    people: int


async def partials(agent: Agent) -> tuple[list[Any], Any]:
    found: list[Any] = []
    async with agent.stream("Which city?") as stream:
        async for event in stream:
            if isinstance(event, PartialOutput):
                found.append(event.value)
            elif isinstance(event, ReplyFinished):
                found.append("|")
    return found, (await stream.result()).output


async def test_each_reply_begins_anew_and_the_result_is_what_was_judged() -> None:
    model = ScriptedClient(['{"name": 7}', '{"name": "Rome", "people": 3}'])
    found, output = await partials(Agent(model, output=City))
    assert output == City("Rome", 3)
    assert found.count("|") == 2
    assert found[-2:] == [{"name": "Rome", "people": 3}, "|"]


async def test_without_a_type_there_is_none() -> None:
    found, _ = await partials(Agent(ScriptedClient(['{"name": 7}'])))
    assert found == ["|"]


@pytest.mark.parametrize("wire", SERVED)
async def test_each_provider_streams_it_also_out_of_the_one_property(wire: str) -> None:
    async with (
        SERVED[wire].server(['{"answer": ["a", "b"]}']) as server,
        SERVED[wire].client(server.url) as client,
    ):
        found, output = await partials(Agent(client, output=list[str]))
    assert output == ["a", "b"]
    assert found[-2:] == [["a", "b"], "|"]
    assert all(isinstance(value, list) for value in found[:-1])


async def test_what_a_reader_changes_is_its_own_copy() -> None:
    model = ScriptedClient(['["a", "b"]'])
    async with Agent(model, output=list[str]).stream("Which?") as stream:
        async for event in stream:
            if isinstance(event, PartialOutput):
                assert isinstance(event.value, list)
                event.value.append("c")
                assert "'c'" not in repr(event)
    assert (await stream.result()).output == ["a", "b"]
