from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pick.pick_helpers import SHOP, entry
from rows import each_row
from samples import sample

from toolcrib.pick import Query
from toolcrib.pick.keyword import WordIndex, entry_of, index_steps, plan_of, query_words, weigh
from toolcrib.values.definition import ToolDefinition

WORDS = ("red", "green", "blue", "market", "price", "weather", "file", "files", "zebra")
TOOLS = st.builds(
    lambda name, text: entry(name, " ".join(text)).definition,
    st.sampled_from(WORDS),
    st.lists(st.sampled_from(WORDS), max_size=6),
)


def built(definitions: list[ToolDefinition], *kept: WordIndex) -> WordIndex:
    return [index for index in index_steps(definitions, kept) if index is not None][-1]


def ranking(index: WordIndex, text: str, limit: int | None) -> list[tuple[float, int]]:
    plan = plan_of(index, query_words(Query(text, used=("zebra",))))
    weighed = weigh(index, plan, limit, float("inf"))
    return sorted((-weight, index.positions[slot]) for slot, weight in weighed.items())


@settings(max_examples=sample(150), deadline=None)
@given(st.data())
def test_a_derived_index_equals_one_built_anew(data: st.DataObject) -> None:
    definitions = data.draw(st.lists(TOOLS, min_size=1, max_size=12))
    index = built(definitions)
    for _ in range(3):
        kept = data.draw(st.permutations(definitions))[data.draw(st.integers(0, 4)) :]
        new = data.draw(st.lists(TOOLS, max_size=4))
        definitions = data.draw(st.permutations([*kept, *new]))
        index = built(definitions, index)
        fresh = built(definitions)
        assert {word: len(p.slots) for word, p in index.postings.items()} == {
            word: len(p.slots) for word, p in fresh.postings.items()
        }
        for text in ("red market price", "zebra files", "blue green weather reds markets"):
            for limit in (None, 1, 3):
                assert ranking(index, text, limit) == ranking(fresh, text, limit)


def test_what_an_index_holds_of_a_tool() -> None:
    tool = entry(
        "getUser_byID",
        "Finds the users' 東京 cryptocurrencies, Zürich 2024.",
        parameters={"userName": {"description": "Of whom.", "enum": ["a1", "b"]}},
        tags=("people",),
    )
    impacts, text = entry_of(tool.definition)
    told = f"{text} {[(word, round(impact, 6)) for word, impact in impacts.items()]}"
    assert sha256(told.encode()).hexdigest()[:16] == "9a1b0ee5128f3b79"


def test_what_is_shared_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    definitions = [tool.definition for tool in SHOP]
    index = built(definitions)
    read: list[str] = []

    def entry_of(definition: ToolDefinition) -> tuple[dict[str, float], str]:
        read.append(definition.name)
        return {definition.name: 1.0}, ""

    monkeypatch.setattr("toolcrib.pick.keyword.entry_of", entry_of)
    built([*definitions[::-1], entry("new").definition], index)
    assert read == ["new"]
    read.clear()
    built([entry("a").definition, entry("b").definition, definitions[0]], index)
    assert read == ["a", "b", "get_weather"]  # less than half is shared: from the beginning


def test_an_index_is_not_changed_by_what_is_derived_from_it() -> None:
    definitions = [tool.definition for tool in SHOP]
    index = built(definitions)
    before = ranking(index, "weather or files", None)
    built([*definitions[1:], entry("weather_files", "weather").definition], index)
    assert ranking(index, "weather or files", None) == before


@each_row(
    ("word", "expected"),
    [
        ("crypto", None),
        ("weath", ("weather", 5 / 7)),
        ("weathervane", ("weather", 7 / 11)),
        ("weathen", ("weather", 6 / 7)),
        ("wea", None),
        ("2024", None),
        ("marketing", ("market", 6 / 9)),
        ("folderol", ("folder", 6 / 8)),
    ],
)
def test_nearest(word: str, expected: tuple[str, float] | None) -> None:
    tools = [*(tool.definition for tool in SHOP), entry("market").definition]
    assert built(tools).nearest(word) == expected
