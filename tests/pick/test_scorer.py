from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import monotonic

import pytest
from pick.pick_helpers import SHOP, Entry, entry

from toolcrib.errors import PickError
from toolcrib.pick.scorer import CatalogCache
from toolcrib.values.definition import ToolDefinition


def names(definitions: Sequence[ToolDefinition]) -> str:
    return " ".join(definition.name for definition in definitions)


def noted_in(built: list[str]) -> Callable[[Sequence[ToolDefinition]], int]:
    def build(definitions: Sequence[ToolDefinition]) -> int:
        built.append(names(definitions))
        return len(built)

    return build


def test_an_index_is_built_once_per_catalog() -> None:
    built: list[int] = []

    def build(definitions: Sequence[ToolDefinition]) -> int:
        built.append(len(definitions))
        return len(built)

    cache = CatalogCache[int](build)
    assert [cache.get(tools) for tools in (SHOP, list(SHOP), SHOP[:2], SHOP)] == [1, 1, 2, 1]
    changed = (entry("get_weather", "Another text."), *SHOP[1:])
    assert cache.get(changed) == 3
    assert built == [5, 2, 5]


def test_the_catalogs_used_last_are_kept() -> None:
    built: list[str] = []
    cache = CatalogCache[int](noted_in(built), size=2)
    catalogs = [SHOP[:1], SHOP[1:2], SHOP[2:3]]
    for tools in (*catalogs, catalogs[1], catalogs[0]):
        cache.get(list(tools))
    assert built == ["get_weather", "convertCurrency", "list_files", "get_weather"]


def test_catalogs_of_too_many_tools_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.pick.scorer.MOST_TOOLS", 3)
    built: list[str] = []
    cache = CatalogCache[int](noted_in(built))
    for tools in (SHOP[:2], SHOP[2:3], SHOP[:2], SHOP[2:4], SHOP[2:4], SHOP[2:3], SHOP[:2]):
        cache.get(list(tools))
    assert len(built) == 5  # the second and the third pair take each other's place
    cache.get(list(SHOP))  # larger than all that is kept, and kept all the same
    cache.get(list(SHOP))
    assert len(built) == 6


def test_a_tuple_that_is_asked_for_again_is_used() -> None:
    built: list[str] = []
    cache = CatalogCache[int](noted_in(built), size=2)
    often = SHOP[:1]
    for other in (SHOP[1:2], SHOP[2:3], SHOP[3:4]):
        cache.get(often)
        cache.get(other)
    cache.get(list(often))
    assert built == ["get_weather", "convertCurrency", "list_files", "delete_files"]


def test_a_catalog_that_is_forgotten_is_let_go() -> None:
    cache = CatalogCache[object](lambda _: object(), size=2)
    gone = []
    for i in range(6):
        tools = (_Seen(f"tool{i}"),)
        gone.append(weakref.ref(tools[0]))
        cache.get(tools)
        cache.get(list(tools))
        del tools
    gc.collect()
    assert [seen() is None for seen in gone] == [True] * 4 + [False] * 2


class _Seen:
    def __init__(self, name: str) -> None:
        self.definition = entry(name).definition

    def get_definition(self) -> ToolDefinition:
        return self.definition


def test_a_list_that_changed_is_another_catalog() -> None:
    cache = CatalogCache[str](names)
    tools = list(SHOP[:2])
    assert cache.get(tools) == "get_weather convertCurrency"
    del tools[0]
    assert cache.get(tools) == "convertCurrency"


def test_threads_that_want_one_catalog_build_it_once() -> None:
    built: list[str] = []
    begun, go_on = Event(), Event()

    def build(definitions: Sequence[ToolDefinition]) -> str:
        begun.set()
        go_on.wait(10)
        built.append(names(definitions))
        return built[-1]

    cache = CatalogCache[str](build)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(cache.get, list(SHOP)) for _ in range(3)]
        begun.wait(10)
        with pytest.raises(PickError, match="before the index of the catalog was built"):
            cache.get(SHOP, monotonic() + 1e-3)  # another builds it, and takes longer
        go_on.set()
        assert {done.result() for done in waiting} == {names([t.definition for t in SHOP])}
    assert len(built) == 1


def test_a_build_that_is_late_is_taken_up_again() -> None:
    steps: list[int] = []

    def slowly(definitions: Sequence[ToolDefinition], _: Sequence[str]) -> Iterator[str | None]:
        for step in range(4):
            steps.append(step)
            yield None
        yield names(definitions)

    cache = CatalogCache.in_steps(slowly)
    tools = (entry("one"), entry("two"))
    for made in ([0], [0, 1], [0, 1, 2]):
        with pytest.raises(PickError, match="before the index of the catalog was built"):
            cache.get(tools, monotonic() - 1)
        assert steps == made
    assert cache.get(tools) == "one two"
    assert steps == [0, 1, 2, 3]
    assert cache.get(tools, monotonic() - 1) == "one two"


def test_other_indexes_are_offered_to_a_build() -> None:
    offered: list[list[str]] = []

    def steps(definitions: Sequence[ToolDefinition], kept: Sequence[str]) -> Iterator[str | None]:
        offered.append(list(kept))
        yield names(definitions)

    cache = CatalogCache.in_steps(steps)
    for tools in (SHOP[:1], SHOP[1:2], SHOP[2:3]):
        cache.get(tools)
    assert offered == [[], ["get_weather"], ["convertCurrency", "get_weather"]]


def test_a_build_that_fails_begins_anew() -> None:
    failing = [True]

    def steps(definitions: Sequence[ToolDefinition], _: Sequence[str]) -> Iterator[str | None]:
        yield None
        if failing.pop():
            raise PickError("no")
        yield names(definitions)

    failing.insert(0, False)
    cache = CatalogCache.in_steps(steps)
    with pytest.raises(PickError, match="no"):
        cache.get(SHOP[:1])
    assert cache.get(SHOP[:1]) == "get_weather"


@pytest.mark.parametrize("schema", ["{bad", '{"a":' * 5_000 + "1" + "}" * 5_000])
def test_a_definition_that_cannot_be_read_is_named(schema: str) -> None:
    odd = Entry(ToolDefinition(name="odd", description="", input_schema_json=schema))
    with pytest.raises(PickError, match="tool 'odd': a schema or an example"):
        CatalogCache[str](names).get((*SHOP, odd))
