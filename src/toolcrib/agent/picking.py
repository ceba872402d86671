"""Picking in the loop: a run offers the tools that its conversation needs, and its model may search.

Rule: a tool that some policy lets this caller call under no circumstances is neither offered nor found,
and a call of it is answered as if there were none. Whatever is picked, policy decides at the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from toolcrib.agent.search import NAME, ToolSearch, names_found, search_tools
from toolcrib.agent.toolbox import Toolbox
from toolcrib.errors import ToolError
from toolcrib.pick import PickOptions, PickResult, pick_tools
from toolcrib.pick.pick import candidates_of
from toolcrib.pick.scorer import scorer_name
from toolcrib.runner import ToolRunner
from toolcrib.tools import Catalog, per_call
from toolcrib.values.context import CallContext, PolicyContext
from toolcrib.values.decision import Deny
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.message import Message
from toolcrib.values.origin import Candidate, Choice
from toolcrib.values.record import Completed, Outcome

_MOST = 128
"""OpenAI takes no more in a request: openai/openai-openapi#76."""

_CARRIED = 4
"""So many times what is picked may gather over the runs of a session, before they are sorted out."""

_DEEPER = 8
"""Where policies left too few of those picked, so many times as many are looked at next."""


_SEARCH = "the search for more tools"
_CALLED = "called earlier in the conversation"
_OFFERED = "offered earlier in the conversation"
_FOUND = f"found by {NAME}"


class Best(NamedTuple):
    """The best tools for a request, best first; and those that policies keep from this caller, why."""

    kept: list[PickResult]
    denied: list[tuple[str, str]]


def candidate(picked: PickResult) -> Candidate:
    """A pick as records hold it."""
    return Candidate.of(picked.definition.name, picked.score, picked.reason)


def _why(deny: Deny) -> str:
    return f"denied by {deny.policy or 'a policy'}: {deny.reason}"


class Picking:
    """Picks for the runs of one agent.

    `runner` runs their calls: the one given, with `search_tools` if that is wanted. Raises CatalogError
    if a tool of the catalog is called so, or nearly so.
    """

    def __init__(self, runner: ToolRunner, options: PickOptions, *, search: bool) -> None:
        if runner.approver is not None:  # somebody may say yes: picking hides nothing unsafe
            options = msgspec.structs.replace(options, allow_unsafe=True)
        self.searches = search
        self.runner = runner
        self._catalog = runner.catalog
        self._options = options
        self._place = {name: at for at, name in enumerate(runner.catalog.names)}
        self._open: dict[str, list[PickedToolbox]] = {}  # a saved run may go on twice at once
        if search:
            own = Catalog([search_tools()], source="search_tools=True")
            self.runner = runner.with_tools(own.bind({ToolSearch: per_call(self._of_call)}))

    @property
    def most(self) -> int:
        """How many tools a run may offer, the search included."""
        return max(_MOST, self._options.max_candidates + 1)

    async def begin(
        self, messages: Sequence[Message], before: Iterable[str], context: PolicyContext
    ) -> PickedToolbox:
        """The toolbox of a new run; `before` names what the conversation was offered before it.

        Raises what `pick_tools` does.
        """
        best = await self.best(messages, context, self._options.max_candidates)
        picked = best.kept
        called = [call.name for message in messages for call in message.tool_calls]
        wanted = [*(p.definition.name for p in picked), *reversed(called)]
        names = self._at_first(before, wanted, context)
        search = [NAME] if self.searches and self.permits(NAME, context) else []
        offered = [*search, *names]
        return self.reopen(offered, context, self._choice(best, offered, called))

    def reopen(
        self, names: Iterable[str], context: PolicyContext, choice: Choice | None = None
    ) -> PickedToolbox:
        """The toolbox of a saved run, which was offered these; the runner has them all."""
        tools = tuple(self.runner.catalog[name] for name in names)
        toolbox = PickedToolbox(self, tools, context)
        toolbox.choice = choice
        self._open.setdefault(context.run.run_id, []).append(toolbox)
        return toolbox

    def close(self, toolbox: PickedToolbox, run_id: str) -> None:
        """Its run is over."""
        opened = self._open[run_id]
        opened.remove(toolbox)
        if not opened:
            del self._open[run_id]

    async def best(self, request: object, context: PolicyContext, count: int) -> Best:
        """The best tools for a request, best first, of those that the caller may ever call.

        Policies are asked about the few that were picked, not about a whole catalog.
        """
        options = msgspec.structs.replace(self._options, max_candidates=count)
        kept: list[PickResult] = []
        denied: list[tuple[str, str]] = []
        while True:
            picked = await pick_tools(request, self._catalog, options)
            if picked and picked[0].provenance.timed_out:  # the scorer is not asked again
                return Best(kept or self._as_registered(picked[0], context, count), denied)
            judged = [(p, self.runner.denies(p.definition, context)) for p in picked]
            kept = [p for p, deny in judged if deny is None]
            denied = [(p.definition.name, _why(deny)) for p, deny in judged if deny is not None]
            if len(kept) >= count or len(picked) < options.max_candidates:
                return Best(kept[:count], denied)
            deeper = options.max_candidates * _DEEPER
            options = msgspec.structs.replace(options, max_candidates=deeper)

    def permits(self, name: str, context: PolicyContext) -> bool:
        """Whether there is such a tool, and this caller may call it under some circumstances."""
        entry = self.runner.catalog.entry(name)
        return entry is not None and self.runner.denies(entry.tool.definition, context) is None

    def in_order(self, names: Iterable[str]) -> list[str]:
        """In that of the catalog: equal sets are equal requests, whichever tool was the best."""
        return sorted(names, key=self._place.__getitem__)

    def _choice(self, best: Best, offered: Iterable[str], called: Iterable[str]) -> Choice:
        """Why these are offered: the score of those that were picked, where the others come from."""
        on_offer, used = dict.fromkeys(offered), frozenset(called)
        candidates = [c for c in map(candidate, best.kept) if c.name in on_offer]
        picked = {c.name for c in candidates}
        for name in on_offer:
            if name not in picked:
                why = _SEARCH if name == NAME else _CALLED if name in used else _OFFERED
                candidates.append(Candidate(name, None, why))
        _, left_out = candidates_of(self._catalog, self._options.filters(), self._options.quota)
        return Choice.of(
            scorer_name(self._options.chosen_scorer()),
            candidates,
            chain(best.denied, ((out.tool, out.reason) for out in left_out)),
            timed_out=any(p.provenance.timed_out for p in best.kept),
        )

    def _at_first(
        self, before: Iterable[str], wanted: Iterable[str], context: PolicyContext
    ) -> list[str]:
        """What was offered before, as it was, and behind it what is wanted besides, best first.

        Where too much has gathered only what is wanted stays: what was picked, and what was called,
        for a model goes by what it has seen itself do. Where nothing is added nothing is taken away,
        unless it is more than a run may offer.
        """
        kept, needed = (self._eligible(names, context) for names in (before, wanted))
        new, room = set(needed).difference(kept), self.most - 1
        enough = min(room, _CARRIED * self._options.max_candidates) if new else room
        if len(kept) + len(new) > enough:
            kept, new = [], set(needed[:room])
        return [*kept, *self.in_order(new)]

    def _eligible(self, names: Iterable[str], context: PolicyContext) -> list[str]:
        """Those that could be picked for this caller now: the options hold for what was offered or
        called before, too."""
        there = [self._catalog[name] for name in dict.fromkeys(names) if name in self._place]
        left, _ = candidates_of(there, self._options.filters(), self._options.quota)
        found = (tool.get_definition().name for tool in left)
        return [name for name in found if self.permits(name, context)]

    def _as_registered(
        self, late: PickResult, context: PolicyContext, count: int
    ) -> list[PickResult]:
        """The first of the tools in the order of registration, marked as `late` is."""
        left, _ = candidates_of(self._catalog, self._options.filters(), self._options.quota)
        permitted = (t for t in left if self.permits(t.get_definition().name, context))
        return [
            msgspec.structs.replace(late, tool=tool, definition=tool.get_definition())
            for tool in islice(permitted, count)
        ]

    def _of_call(self, context: CallContext) -> PickedToolbox:
        return self._open[context.run_id][-1]


class PickedToolbox(Toolbox):
    """What was picked for one run and what its model has found since; it answers `search_tools`.

    `_names` are those of its tools and of what was found and is offered from the next turn on.
    """

    chosen = True
    choice: Choice | None

    def __init__(
        self, picking: Picking, tools: tuple[HasDefinition, ...], context: PolicyContext
    ) -> None:
        super().__init__(picking.runner.catalog, tools)
        self._picking = picking
        self._context = context
        self._names = {tool.get_definition().name for tool in tools}
        self._scored: dict[str, Candidate] = {}

    def take(self, outcomes: Iterable[Outcome]) -> bool:
        """What was found is read from the records: a call that is not run again has one, too."""
        found = [
            name
            for outcome in outcomes
            if isinstance(outcome, Completed) and outcome.record.name == NAME
            for name in names_found(outcome.record.result)
        ]
        if not found or not self._picking.searches:
            return False
        known = self.known(found)
        self._names.update(self._new(name for name in found if name in known))
        more = self._names.intersection(found).difference(self.names)
        if more:
            in_order = self._picking.in_order(more)
            new = (self._scored.get(name) or Candidate(name, None, _FOUND) for name in in_order)
            self.choice = (self.choice or Choice()).with_offered(new)
            self._put((*self.tools, *(self._catalog[name] for name in in_order)))
        return bool(more)

    def known(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(name for name in names if self._picking.permits(name, self._context))

    def close(self) -> None:
        self._picking.close(self, self._context.run.run_id)

    async def find(self, query: str, limit: int) -> list[ToolDefinition]:
        """The best tools, those that are offered already too, as far as there is room for them.

        Raises ToolError.
        """
        found = (await self._picking.best(query, self._context, limit)).kept
        if found and found[0].provenance.timed_out:
            raise ToolError("the search took too long", retryable=True)
        names = [p.definition.name for p in found]
        self._names.update(self._new(names))  # at once: other searches of this turn need room, too
        if found and self._names.isdisjoint(names):
            raise ToolError("no more tools can be offered in this run")
        for one in map(candidate, found):
            why = f"{_FOUND}: {one.reason}" if one.reason else _FOUND
            self._scored[one.name] = Candidate.of(one.name, one.score, why)
        return [p.definition for p in found if p.definition.name in self._names]

    def _new(self, names: Iterable[str]) -> list[str]:
        """Those that are neither offered nor promised yet, as many as there is room for."""
        room = max(0, self._picking.most - len(self._names))
        return [name for name in names if name not in self._names][:room]
