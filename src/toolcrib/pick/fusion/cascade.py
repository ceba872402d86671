"""Two scorers in a row: a quick one looks at all tools, a thorough one at the best of them.

Rule: a tool that the first does not pick is no hit, whatever the second would say.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolcrib.errors import PickError
from toolcrib.pick.fusion.parts import as_ranker, reasons_of
from toolcrib.pick.scoring.hits import Hits
from toolcrib.pick.scoring.scorer import Ranker, Score, Scorer, has_to_be_awaited, in_answer
from toolcrib.pick.text.query import Query
from toolcrib.threads import in_thread
from toolcrib.values.definition import HasDefinition


class Cascade:
    """`first` picks `keep` tools of the catalog; `then` ranks and scores those, and sees no others.

    Each is a ranker, a batch scorer or a function `(text, tool)`, sync or async, and may be made of
    others itself: `Cascade(Light(), JudgeScorer(client))` asks a model about the best of many. What
    `then` knows of a catalog (how common a word is) it knows of the picked tools only.
    Raises PickError for what is no scorer and for a `keep` below 1. As deterministic, and
    as safe to use from threads, as the two are.
    """

    def __init__(
        self, first: Scorer, then: Scorer, *, keep: int = 100, name: str = "cascade"
    ) -> None:
        if keep < 1:
            raise PickError(f"scorer {name!r}: keep must be at least 1, not {keep!r}")
        self.name = name
        self._first = as_ranker(first)
        self._then = as_ranker(then)
        self._keep = keep

    @property
    def asynchronous(self) -> bool:
        """Whether one of the two has to be awaited: `pick_tools` does that, and `hits` cannot."""
        return has_to_be_awaited(self._first) or has_to_be_awaited(self._then)

    async def awaited(self, query: Query, tools: Sequence[HasDefinition]) -> Cascade:
        """The same with two that have their answers: `then` is asked about what `first` picked."""
        first = await in_answer(self._first, query, tools)
        kept = await in_thread(lambda: self._best(first, query, tools))
        then = await in_answer(self._then, query, tuple([tools[i] for i in kept]))
        return Cascade(_Chosen(first.name, kept), then, keep=self._keep, name=self.name)

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """The tools that `first` picked, by the weights that `then` gives them."""
        kept = self._kept(query, tools)
        hits = self._then.hits(query, tuple([tools[i] for i in kept]), limit)
        rows = range(len(kept)) if hits.positions is None else hits.positions
        return Hits(hits.values, [kept[row] for row in rows], hits.calibrated)

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """The reasons of `then`."""
        kept = self._kept(query, tools)
        row_of = {position: row for row, position in enumerate(kept)}
        known = [position for position in picked if position in row_of]
        few = tuple([tools[i] for i in kept])
        reasons = reasons_of(self._then, query, few, [row_of[position] for position in known])
        told = dict(zip(known, reasons, strict=True))
        missed = Score(0.0, f"not among the best {self._keep} of {self._first.name}")
        return [told.get(position, missed) for position in picked]

    def _kept(self, query: Query, tools: Sequence[HasDefinition]) -> list[int]:
        return self._best(self._first, query, tools)

    def _best(self, first: Ranker, query: Query, tools: Sequence[HasDefinition]) -> list[int]:
        """In registration order, so that equal ones stay in it."""
        return sorted(p for p, _ in first.hits(query, tools, self._keep).best(self._keep))


class _Chosen:
    """What `first` picked for one query."""

    def __init__(self, name: str, kept: list[int]) -> None:
        self.name = name
        self._kept = kept

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        return Hits([0.0] * len(self._kept), self._kept, float)
