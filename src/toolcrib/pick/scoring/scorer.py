"""What a scorer is: a ranker, a batch scorer, or a function of an input and a tool.

Rule: a scorer only weighs tools. Which are offered, how many and for how long is decided by who asks;
what of an answer is believed, `ranking` says.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from numbers import Real
from typing import Any, Protocol, TypeAlias, TypeGuard, cast, runtime_checkable

import msgspec

from toolcrib.errors import PickError
from toolcrib.pick.scoring.hits import Hits
from toolcrib.pick.text.query import Query
from toolcrib.values.definition import HasDefinition
from toolcrib.values.json import JsonObject


class Score(msgspec.Struct, frozen=True):
    """How well a tool fits a request: 0 not at all, 1 perfectly; `details` is JSON for audits."""

    score: float
    reason: str = ""
    details: JsonObject | None = None


class Ranker(Protocol):
    """Weighs a whole catalog at once and hands over numbers, not objects: fit for 100,000 tools.

    `hits` is synchronous, runs in a thread and may be called from several at once. Who asks with a
    `limit` takes the best so many only; without one all are wanted. Equal input gives equal hits,
    unless the query's deadline has passed.
    """

    @property
    def name(self) -> str: ...
    def hits(
        self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None
    ) -> Hits: ...


class BatchScorer(Protocol):
    """Scores all tools in one call, in their order: the easiest to write that sees the catalog.

    `score` runs in a thread and may be called from several at once; declared with `async def`, it
    runs on the event loop. Equal input must give equal scores.
    """

    @property
    def name(self) -> str: ...
    def score(
        self, query: Query, tools: Sequence[HasDefinition]
    ) -> Scores | Coroutine[Any, Any, Scores]: ...


@runtime_checkable
class AwaitedRanker(Protocol):
    """A ranker that is made of others, some of which may have to be awaited.

    Where it is `asynchronous`, who asks takes what `awaited` gives, for one query and these tools; its
    own `hits` raises PickError.
    """

    @property
    def asynchronous(self) -> bool: ...
    async def awaited(self, query: Query, tools: Sequence[HasDefinition]) -> Ranker: ...


@runtime_checkable
class ExplainingScorer(Protocol):
    """A ranker or batch scorer whose reasons cost more than its scores: asked for the picked only.

    `explain` answers with one Score for each position in `picked`, of which `reason` and `details`
    are taken. A scorer that adds others up has their weights in `details["parts"]`, by name.
    """

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]: ...


Scores: TypeAlias = Sequence["Score | float"]
ToolScorer: TypeAlias = Callable[[Any, HasDefinition], Score | float | Awaitable[Score | float]]
Scorer: TypeAlias = Ranker | BatchScorer | ToolScorer


def scorer_name(scorer: Scorer) -> str:
    """Its `name`, or that of the function."""
    name = getattr(scorer, "name", None) or getattr(scorer, "__name__", None)
    return name if isinstance(name, str) else type(scorer).__name__


def has_to_be_awaited(scorer: object) -> TypeGuard[AwaitedRanker]:
    """Whether it is a ranker of which a part is asynchronous."""
    return isinstance(scorer, AwaitedRanker) and scorer.asynchronous


async def in_answer(ranker: Ranker, query: Query, tools: Sequence[HasDefinition]) -> Ranker:
    """The ranker to ask in a thread: itself, or what it gives once its parts were awaited."""
    return await ranker.awaited(query, tools) if has_to_be_awaited(ranker) else ranker


def is_async(function: Callable[..., object]) -> bool:
    """Whether it has to be awaited: a coroutine function, or an object whose call is one."""
    call = getattr(function, "__call__", None)  # noqa: B004  an object's own, to inspect
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def checked_score(given: object, scorer: str, tool: HasDefinition) -> Score:
    """What a scorer gave for a tool, as a Score. Raises PickError, naming both, for what is none."""
    score = given if isinstance(given, Score) else None
    value = given if score is None else score.score
    if isinstance(value, Real) and 0.0 <= cast("float", value) <= 1.0:  # NaN fails this
        if score is None:
            return Score(float(value))
        if isinstance(score.reason, str) and isinstance(score.details, dict | None):
            return score
        what, wanted = "a reason or details of another type", "a text and a JSON object"
    else:
        what, wanted = _named(value), "a score in 0..1"
    tool_name = tool.get_definition().name
    raise PickError(f"scorer {scorer!r} gave {what} for tool {tool_name!r}, not {wanted}")


def _named(value: object) -> str:
    if inspect.iscoroutine(value):
        value.close()
        return "a coroutine (declare the scorer with `async def`)"
    return f"{value!r}" if isinstance(value, Real) else f"a {type(value).__name__}"
