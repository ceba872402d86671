from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import repeat
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any, cast

import pytest
from pick.pick_helpers import SHOP, Entry, entry, names
from rows import each_row
from samples import sample

from toolcrib.errors import MissingExtraError, PickError
from toolcrib.pick import Hits, PickOptions, Query, Score, explain_pick, pick_tools
from toolcrib.pick.options import Excluded
from toolcrib.threads import Work
from toolcrib.tools import Catalog, tool
from toolcrib.values.definition import ALL, HasDefinition, ToolDefinition

SOON_ENOUGH = 60_000.0
SOURCES = Path(__file__).parents[2] / "src"


class Batch:
    """A batch scorer that answers with what it was given."""

    name = "given"

    def __init__(self, *answer: Any) -> None:
        self.answer = answer

    def score(self, query: Query, tools: Sequence[HasDefinition]) -> Any:
        return self.answer


class AsyncBatch(Batch):
    """The same, after it has waited."""

    async def score(self, query: Query, tools: Sequence[HasDefinition]) -> Any:
        await asyncio.sleep(0)
        return self.answer


def by_length(request: object, tool: HasDefinition) -> float:
    return len(tool.get_definition().name) / 100


# --- options --------------------------------------------------------------------------------------


@each_row(
    ("bad", "says"),
    [
        ({"max_candidates": 0}, "max_candidates must be an int, 1 or more, not 0"),
        ({"max_candidates": 2.5}, "max_candidates"),
        ({"max_candidates": True}, "max_candidates"),
        ({"min_score": -0.1}, "min_score must be from 0 to 1, not -0.1"),
        ({"min_score": 1.1}, "min_score"),
        ({"min_score": float("nan")}, "min_score"),
        ({"min_score": "high"}, "min_score"),
        ({"timeout_ms": 0}, "timeout_ms must be above 0"),
        ({"timeout_ms": -5}, "timeout_ms"),
        ({"timeout_ms": float("inf")}, "timeout_ms"),
        ({"timeout_ms": float("nan")}, "timeout_ms"),
        ({"timeout_ms": 10**400}, "timeout_ms"),
        ({"allow_unsafe": "no"}, "allow_unsafe must be True or False, not 'no'"),
        ({"debug": 1}, "debug must be True or False, not 1"),
        (
            {"scorer": "keywords"},
            r"there is no scorer .keywords. \(did you mean 'keyword'\?\); there are: keyword, ",
        ),
        ({"scorer": Batch}, "scorer must be a name, an object"),
    ],
)
def test_options_are_checked(bad: dict[str, Any], says: str) -> None:
    with pytest.raises(PickError, match=says):
        PickOptions(**bad)


def test_options_are_frozen_and_have_the_documented_defaults() -> None:
    options = PickOptions()
    assert (options.max_candidates, options.min_score, options.allow_unsafe) == (3, 0.05, False)
    assert (options.scorer, options.timeout_ms, options.debug) == (None, None, False)
    with pytest.raises(AttributeError):
        options.max_candidates = 5  # type: ignore[misc]


# --- what comes back ------------------------------------------------------------------------------


async def test_a_result_carries_what_was_registered() -> None:
    [found] = await pick_tools("weather", SHOP)
    assert found.tool is SHOP[0]
    assert found.definition is SHOP[0].definition
    assert found.provenance.timed_out is False


class _Class:
    @classmethod
    def get_definition(cls) -> ToolDefinition:
        return SHOP[0].definition


async def test_tools_may_be_classes_and_any_iterable() -> None:
    [found] = await pick_tools("weather", (tool for tool in [_Class]))
    assert found.tool is _Class


async def test_an_empty_catalog_gives_nothing() -> None:
    assert await pick_tools("weather", []) == []


@pytest.mark.parametrize("tools", [[SHOP[0], "read_file"], [5], (None,)])
async def test_things_without_a_definition_are_named(tools: Any) -> None:
    with pytest.raises(PickError, match=r"tools\[[01]\], a (str|int|NoneType), has no definition"):
        await pick_tools("weather", tools)


async def test_a_definition_that_cannot_be_had_is_an_error() -> None:
    class Broken:
        def get_definition(self) -> ToolDefinition:
            raise OSError("a secret")

    with pytest.raises(PickError, match=r"tools\[1\], a Broken: get_definition raised OSError"):
        await pick_tools("weather", [SHOP[0], Broken()])


@each_row(
    ("options", "expected"),
    [
        (PickOptions(min_score=0.2), ["b", "c", "a"]),
        (PickOptions(min_score=0.2, max_candidates=2), ["b", "c"]),
        (PickOptions(min_score=0.5, max_candidates=9), ["b", "c"]),
        (PickOptions(min_score=0.9), ["b"]),
        (PickOptions(min_score=0.91), []),
        (PickOptions(min_score=0.0, max_candidates=9), ["b", "c", "a", "d", "e"]),
    ],
)
async def test_threshold_count_and_order(options: PickOptions, expected: list[str]) -> None:
    scores = {"a": 0.4, "b": 0.9, "c": 0.5, "d": 0.0, "e": 0}

    def table(_: object, tool: HasDefinition) -> float:
        return scores[tool.get_definition().name]

    picked = PickOptions(
        max_candidates=options.max_candidates, min_score=options.min_score, scorer=table
    )
    assert names(await pick_tools("x", [entry(name) for name in scores], picked)) == expected


async def test_equal_scores_keep_registration_order() -> None:
    tools = [entry(name) for name in ("z", "m", "a", "q")]
    found = await pick_tools("x", tools, PickOptions(max_candidates=4, scorer=lambda *_: 0.5))
    assert names(found) == ["z", "m", "a", "q"]


# --- unsafe tools ---------------------------------------------------------------------------------


async def test_unsafe_tools_are_not_even_scored() -> None:
    seen = []

    def scorer(_: object, tool: HasDefinition) -> float:
        seen.append(tool.get_definition().name)
        return 1.0

    await pick_tools("delete files", SHOP, PickOptions(scorer=scorer))
    assert seen == ["get_weather", "convertCurrency", "list_files", "read_file"]


async def test_unsafe_tools_come_on_request() -> None:
    assert "delete_files" not in names(await pick_tools("delete files", SHOP))
    found = await pick_tools("delete files", SHOP, PickOptions(allow_unsafe=True))
    assert names(found)[0] == "delete_files"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            PickOptions(debug=True),
            (Excluded("delete_files", "it is marked unsafe and allow_unsafe is off"),),
        ),
        (PickOptions(debug=True, allow_unsafe=True), ()),
        (PickOptions(), ()),
    ],
)
async def test_debug_lists_what_was_excluded(
    options: PickOptions, expected: tuple[Excluded, ...]
) -> None:
    found = await pick_tools("read files", SHOP, options)
    assert found
    assert {result.provenance.excluded for result in found} == {expected}


async def test_only_unsafe_tools_give_nothing() -> None:
    assert await pick_tools("delete files", [SHOP[3]]) == []


# --- scorers --------------------------------------------------------------------------------------


async def as_coroutine(request: object, tool: HasDefinition) -> Score:
    await asyncio.sleep(0)
    return Score(by_length(request, tool), "by length", {"n": 1})


class AsyncCallable:
    async def __call__(self, request: object, tool: HasDefinition) -> float:
        return by_length(request, tool)


@each_row(
    ("scorer", "name"),
    [
        (by_length, "by_length"),
        (as_coroutine, "as_coroutine"),
        (AsyncCallable(), "AsyncCallable"),
        (Batch(*(Score(len(tool.definition.name) / 100) for tool in SHOP[:3])), "given"),
        (Batch(0.11, 0.15, 0.1), "given"),
        (AsyncBatch(0.11, Score(0.15), 0.1), "given"),
    ],
)
async def test_every_kind_of_scorer(scorer: Any, name: str) -> None:
    found = await pick_tools("x", SHOP[:3], PickOptions(scorer=scorer))
    assert names(found) == ["convertCurrency", "get_weather", "list_files"]
    assert [result.score for result in found] == [0.15, 0.11, 0.1]
    assert {result.provenance.scorer for result in found} == {name}


async def test_reason_and_details_reach_the_result() -> None:
    found = await pick_tools("x", SHOP[:1], PickOptions(scorer=as_coroutine))
    assert (found[0].reason, found[0].provenance.details) == ("by length", {"n": 1})


async def test_functions_get_the_input_as_given_and_batch_scorers_its_text() -> None:
    got: list[object] = []
    given = {"ask": "weather"}

    def function(request: object, tool: HasDefinition) -> float:
        got.append(request)
        return 1

    class Text(Batch):
        def score(self, query: Query, tools: Sequence[HasDefinition]) -> Any:
            got.append(query.text)
            return [Score(1)]

    await pick_tools(given, SHOP[:1], PickOptions(scorer=function))
    await pick_tools(given, SHOP[:1], PickOptions(scorer=Text()))
    assert got[0] is given
    assert got[1] == "ask: weather"


async def test_an_explaining_scorer_is_asked_about_the_picked_only() -> None:
    asked: list[list[int]] = []

    class Explaining(Batch):
        def explain(
            self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
        ) -> Sequence[Score]:
            asked.append(list(picked))
            return [Score(0.0, f"because {i}") for i in picked]

    scorer = Explaining(0.1, 0.9, 0.01, 0.8)
    found = await pick_tools("x", SHOP[:3] + SHOP[4:], PickOptions(scorer=scorer))
    assert asked == [[1, 3, 0]]
    assert [(r.score, r.reason) for r in found] == [
        (0.9, "because 1"),
        (0.8, "because 3"),
        (0.1, "because 0"),
    ]


BAD = [
    (float("nan"), "gave nan"),
    (float("inf"), "gave inf"),
    (-0.01, "gave -0.01"),
    (1.01, "gave 1.01"),
    (10**400, "gave 10000"),
    (Fraction(3, 2), r"gave Fraction\(3, 2\)"),
    (None, "gave a NoneType"),
    ("0.5", "gave a str"),
    (Score(float("nan")), "gave nan"),
    (Score("high"), "gave a str"),  # type: ignore[arg-type]
    (Score(0.5, None), "gave a reason or details of the wrong type"),  # type: ignore[arg-type]
    (Score(0.5, "", [1]), "gave a reason or details of the wrong type"),  # type: ignore[arg-type]
]


@each_row(("bad", "says"), BAD)
@each_row("kind", ["function", "coroutine", "batch", "async batch"])
async def test_what_is_no_score_is_an_error(kind: str, bad: Any, says: str) -> None:
    async def coroutine(request: object, tool: HasDefinition) -> Any:
        return bad if tool is SHOP[1] else 1.0

    scorers: dict[str, Any] = {
        "function": lambda _, tool: bad if tool is SHOP[1] else 1.0,
        "coroutine": coroutine,
        "batch": Batch(1.0, bad),
        "async batch": AsyncBatch(1.0, bad),
    }
    named = {"function": "<lambda>", "coroutine": "coroutine"}.get(kind, "given")
    with pytest.raises(PickError, match=f"scorer '{named}' {says}.* for tool 'convertCurrency'"):
        await pick_tools("x", SHOP[:2], PickOptions(scorer=scorers[kind], max_candidates=1))


async def test_a_lambda_around_a_coroutine_is_told_what_to_do() -> None:
    scorer = PickOptions(scorer=lambda request, tool: as_coroutine(str(request), tool))
    with pytest.raises(PickError, match="declare the scorer with `async def`"):
        await pick_tools("x", SHOP, scorer)


def _raise(*_: object) -> Any:
    raise ValueError("a secret")


async def _raise_later(*_: object) -> Any:
    raise ValueError("a secret")


class RaisingBatch(Batch):
    def score(self, query: Query, tools: Sequence[HasDefinition]) -> Any:
        return _raise()


class RaisingLater(Batch):
    async def score(self, query: Query, tools: Sequence[HasDefinition]) -> Any:
        return _raise()


class RaisingExplanation(Batch):
    explain = _raise


class Answering(Batch):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def score(self, query: Query, tools: Sequence[HasDefinition]) -> Any:
        return self.answer


class AnsweringLater(Answering):
    async def score(self, query: Query, tools: Sequence[HasDefinition]) -> Any:
        return self.answer


class Hitting:
    name = "given"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Any:
        return self.answer


def _cancelled() -> Any:
    raise asyncio.CancelledError


async def _cancelled_later(*_: object) -> Any:
    return _cancelled()


@each_row(
    ("scorer", "says"),
    [
        (_raise, "scorer '_raise' raised ValueError for tool 'get_weather'"),
        (_raise_later, "scorer '_raise_later' raised ValueError for tool '"),
        (RaisingBatch(), "scorer 'given' raised ValueError"),
        (RaisingLater(), "scorer 'given' raised ValueError"),
        (AsyncBatch(1.0), "scorer 'given' gave 1 scores for 2 tools"),
        (RaisingExplanation(1.0, 1.0), "scorer 'given' raised ValueError"),
        (Batch(1.0), "scorer 'given' gave 1 scores for 2 tools"),
        (Batch(1.0, 1.0, 1.0), "scorer 'given' gave more than 2 scores for 2 tools"),
        (Answering(repeat(1.0)), "scorer 'given' gave more than 2 scores for 2 tools"),
        (Answering(None), "scorer 'given' raised TypeError"),
        (AnsweringLater(None), "scorer 'given' raised TypeError"),
        (lambda *_: _cancelled(), "scorer '<lambda>' raised CancelledError"),
        (_cancelled_later, "scorer '_cancelled_later' raised CancelledError"),
        (
            Hitting(Hits([1.0], [2], float)),
            "scorer 'given' named a tool twice, or a position where",
        ),
        (
            Hitting(Hits([1.0], [-1], float)),
            "scorer 'given' named a tool twice, or a position where",
        ),
        (Hitting(Hits([1.0, 1.0], [0, 0], float)), "scorer 'given' named a tool twice"),
        (Hitting(Hits([1.0], [0], _raise)), "scorer 'given' raised ValueError"),
        (Hitting(None), "scorer 'given' raised AttributeError"),
    ],
)
@each_row("timeout_ms", [None, SOON_ENOUGH])
async def test_a_scorer_that_fails_is_an_error(
    scorer: Any, says: str, timeout_ms: float | None
) -> None:
    with pytest.raises(PickError, match=says) as raised:
        await pick_tools("x", SHOP[:2], PickOptions(scorer=scorer, timeout_ms=timeout_ms))
    assert "a secret" not in str(raised.value)


async def test_errors_of_the_library_pass_as_they_are() -> None:
    def scorer(*_: object) -> float:
        raise MissingExtraError("pick", "this")

    with pytest.raises(MissingExtraError, match="toolcrib"):
        await pick_tools("x", SHOP, PickOptions(scorer=scorer))


# --- time -----------------------------------------------------------------------------------------


def _blocking(event: Event) -> Callable[..., float]:
    def scorer(*_: object) -> float:
        event.wait()
        return 1.0

    return scorer


async def _never(*_: object) -> float:
    await asyncio.Event().wait()
    return 1.0


async def _never_yields(*_: object) -> float:
    return 1.0


async def _fall_back(scorer: Any, tools: Sequence[Entry] = SHOP) -> None:
    found = await pick_tools("read the file", tools, PickOptions(**_late(scorer)))
    assert names(found) == ["get_weather", "convertCurrency"]
    assert {result.score for result in found} == {0.0}
    assert all(result.provenance.timed_out for result in found)
    assert found[0].reason == "no score within 1 ms: in registration order"


def _late(scorer: Any) -> dict[str, Any]:
    return {"scorer": scorer, "timeout_ms": 1, "max_candidates": 2}


@pytest.mark.parametrize("batch", [False, True])
async def test_a_scorer_that_blocks_falls_back(batch: bool) -> None:
    event = Event()

    class Blocking(Batch):
        def score(self, query: Query, tools: Sequence[HasDefinition]) -> Any:
            return [_blocking(event)()] * len(tools)

    try:
        await _fall_back(Blocking() if batch else _blocking(event))
    finally:
        event.set()


async def test_a_coroutine_that_waits_falls_back() -> None:
    await _fall_back(_never)


class Waiting(Batch):
    async def score(self, query: Query, tools: Sequence[HasDefinition]) -> Any:
        await asyncio.Event().wait()


async def test_an_async_batch_that_waits_falls_back() -> None:
    await _fall_back(Waiting())


class GivingUp(Batch):
    """What a scorer says once its deadline has passed does not count, an error neither."""

    async def score(self, query: Query, tools: Sequence[HasDefinition]) -> Any:
        while monotonic() < query.deadline:
            pass
        if self.answer:
            return self.answer[0]
        raise ValueError


@pytest.mark.parametrize("late", [GivingUp(), GivingUp([1.0] * 4), GivingUp("nonsense")])
async def test_what_comes_after_the_deadline_does_not_count(late: GivingUp) -> None:
    await _fall_back(late)


async def test_a_coroutine_that_never_suspends_falls_back() -> None:
    many = [*SHOP[:3], *(entry(f"tool{i}") for i in range(5_000))]
    await _fall_back(_never_yields, many)


async def test_the_fallback_leaves_unsafe_tools_out() -> None:
    found = await pick_tools(
        "x", SHOP, PickOptions(scorer=_never, timeout_ms=1, max_candidates=9, debug=True)
    )
    assert "delete_files" not in names(found)
    assert found[0].provenance.excluded[0].tool == "delete_files"


async def test_after_the_deadline_no_further_tool_is_scored() -> None:
    asked: list[object] = []

    def slow(_: object, tool: HasDefinition) -> float:
        asked.append(tool)
        while monotonic() < began + 0.1:
            pass
        return 1.0

    async def slow_later(request: object, tool: HasDefinition) -> float:
        return slow(request, tool)

    for scorer in (slow, slow_later):
        asked.clear()
        began = monotonic()
        options = PickOptions(scorer=cast("Any", scorer), timeout_ms=50)
        found = await pick_tools("x", SHOP, options)
        assert all(result.provenance.timed_out for result in found)
        while Work.left_behind:  # noqa: ASYNC110  a thread is waited for
            await asyncio.sleep(0.01)
        assert len(asked) == 1


@pytest.mark.parametrize("count", [sys.maxsize, 10**30])
@pytest.mark.parametrize("scorer", ["keyword", lambda *_: 0.5])
async def test_all_tools_may_be_asked_for(scorer: Any, count: int) -> None:
    options = PickOptions(scorer=scorer, max_candidates=count, min_score=0, allow_unsafe=True)
    assert len(await pick_tools("weather", SHOP, options)) == len(SHOP)
    assert len((await explain_pick("weather", SHOP, options)).results) == len(SHOP)


async def test_a_thousand_picks_at_once() -> None:
    picks = [pick_tools(f"weather {i}", SHOP) for i in range(sample(1_000))]
    found = await asyncio.gather(*picks)
    assert {results[0].definition.name for results in found} == {"get_weather"}


async def test_in_time_the_limit_changes_nothing() -> None:
    plain = await pick_tools("list the files", SHOP)
    assert await pick_tools("list the files", SHOP, PickOptions(timeout_ms=SOON_ENOUGH)) == plain


async def test_the_loop_goes_on_while_a_scorer_works() -> None:
    event = Event()
    picking = asyncio.ensure_future(pick_tools("x", SHOP, PickOptions(scorer=_blocking(event))))
    await asyncio.sleep(0)
    assert not picking.done()
    event.set()
    assert len(await picking) == 3


async def test_cancelling_a_pick_cancels_its_scorer() -> None:
    cancelled = asyncio.Event()

    async def scorer(*_: object) -> float:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return 1.0

    options = PickOptions(scorer=scorer, timeout_ms=SOON_ENOUGH)
    picking = asyncio.ensure_future(pick_tools("x", SHOP, options))
    for _ in range(5):
        await asyncio.sleep(0)
    picking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await picking
    await cancelled.wait()


async def test_a_task_that_was_cancelled_before_can_still_tell_a_scorer_that_fails() -> None:
    """Whoever cleans up after a cancellation may pick, too: what counts is who is cancelled now."""

    async def cleans_up() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            with pytest.raises(PickError, match="raised CancelledError"):
                await pick_tools("x", SHOP[:2], PickOptions(scorer=_cancelled_later))
            raise

    cleaning = asyncio.ensure_future(cleans_up())
    await asyncio.sleep(0)
    cleaning.cancel()
    await asyncio.wait([cleaning])
    assert cleaning.cancelled()


def test_a_scorer_that_hangs_keeps_no_program_from_ending() -> None:
    program = """
import asyncio, threading
from toolcrib.pick import PickOptions, pick_tools
from toolcrib.values.definition import ToolDefinition
class Entry:
    def get_definition(self):
        return ToolDefinition(name="a", description="", input_schema_json="{}")
hang = lambda *_: threading.Event().wait()
print(len(asyncio.run(pick_tools("x", [Entry()], PickOptions(scorer=hang, timeout_ms=1)))))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": str(SOURCES)},
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_importing_the_room_loads_no_extra() -> None:
    program = (
        "import sys, toolcrib.pick;"
        "print({'numpy', 'tokenizers', 'safetensors', 'wordllama'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": str(SOURCES)},
    )
    assert (done.stdout, done.stderr) == ("set()\n", "")


async def test_real_tools_and_a_catalog() -> None:
    @tool(visible=ALL)
    def tell_time(zone: str) -> str:
        """Tell the time in a zone."""
        return zone

    @tool(visible=ALL, safe=False)
    @dataclass(frozen=True)
    class CancelOrder:
        """Cancel an order."""

        order_id: int

        async def run(self) -> str:
            return "done"

    catalog = Catalog([tell_time, CancelOrder])
    assert names(await pick_tools("the time zone", catalog)) == ["tell_time"]
    options = PickOptions(allow_unsafe=True)
    [found] = await pick_tools("cancel my order", catalog, options)
    assert found.definition.annotations.safe is False
    [found] = await pick_tools("cancel my order", [tell_time, CancelOrder], options)
    assert cast("object", found.tool) is CancelOrder
