"""Picking: a run offers the tools that its conversation needs, and its model may search for more.

Rule: a tool that some policy never lets this caller call is neither offered nor found, and a call
of it is answered as if it did not exist. Whatever is picked, policies decide at the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias, TypedDict, TypeGuard

import msgspec

from toolcrib.errors import ToolError
from toolcrib.pick import PickOptions, PickResult, pick_tools
from toolcrib.pick.pick import candidates_of
from toolcrib.pick.scorer import scorer_name
from toolcrib.runner import ToolRunner
from toolcrib.tools import Catalog, Tool, capability, per_call, tool
from toolcrib.values.call import ToolCall
from toolcrib.values.context import CallContext, PolicyContext
from toolcrib.values.decision import Deny
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue
from toolcrib.values.message import Message, Offer
from toolcrib.values.record import Candidate, Choice, Completed, Outcome

# `Toolbox`: what one run offers to its model. Within a run it only grows, and only at its end.
#
# A provider caches a request up to the first byte that differs, and the tools come first: if a tool
# is removed or moved, it reads the whole conversation again.


class Toolbox:
    """Offers the same tools each turn; `chosen` says whether they are a selection to report."""

    chosen: ClassVar[bool] = False
    choice: Choice | None = None
    """Why these tools are offered, if they are a selection."""
    search_tool = ""
    """The tool among them that finds others, if there is one."""
    deferred: bool | None = None
    """The value of `ChatRequest.deferred`."""
    loads: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    """The tools that the last turn's calls loaded, by the id of the first call that did."""

    def __init__(self, catalog: Catalog, tools: tuple[HasDefinition, ...]) -> None:
        self._catalog = catalog
        self.tools = tools
        self._last_offer = _NO_OFFERS

    @staticmethod
    def of(catalog: Catalog, names: Iterable[str]) -> Toolbox:
        """Make a toolbox of those names for which the catalog has a tool."""
        return Toolbox(catalog, tuple(catalog[name] for name in names if name in catalog))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.get_definition().name for tool in self.tools)

    def take(self, outcomes: Iterable[Outcome]) -> bool:
        """Add what the calls of a turn asked for, and return whether the toolbox has grown."""
        del outcomes
        return False

    def offer(self, offer: Offer, tool_calls: Iterable[ToolCall]) -> Offer:
        """Return the offer, with the names in `tool_calls` of existing tools marked as known.

        A call of a known but not offered tool gets its own error code. A client that does not say
        what it offered, offered everything it was given.
        """
        reported, effective = self._last_offer
        if reported is not offer:
            effective = offer if offer.tools or offer.known else Offer.of(self.tools)
            self._last_offer = (offer, effective)
        unoffered = [call.name for call in tool_calls if call.name not in effective.tools]
        if not unoffered:
            return effective
        return msgspec.structs.replace(effective, known=effective.known | self.known(unoffered))

    def known(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names that belong to tools and may be named to the model."""
        return frozenset(name for name in names if name in self._catalog)

    def definition(self, name: str) -> ToolDefinition | None:
        """Return the definition of a tool that the model may be shown; None for any other name."""
        return self._catalog[name].get_definition() if self.known([name]) else None

    def close(self) -> None:
        """End the toolbox with its run."""


_NO_OFFERS = (Offer(), Offer())
"""The offer that a client reported, and the offer that it stands for."""


# `search_tools`: the tool by which a model asks for more tools, if only some are offered.
#
# It is a tool like any other: offered, hydrated, decided and recorded as such. It changes nothing;
# what it found is read from its result, and is on offer from the next turn on.

NAME = "search_tools"
_LONGEST = 300


def is_search(outcome: Outcome) -> TypeGuard[Completed]:
    """Return whether this is a completed search for more tools, whatever it found."""
    return isinstance(outcome, Completed) and outcome.record.name == NAME


@capability
class ToolSearch(Protocol):
    """The tools that the run of a call may have."""

    async def find(self, query: str, limit: int) -> Sequence[ToolDefinition]: ...


class FoundTool(TypedDict):
    name: str
    description: str


class FoundTools(TypedDict):
    tools: list[FoundTool]


# Written out: `Annotated[str, Field(…)]` would import a part of pydantic that loads slowly.
_SEARCH_INPUT: JsonObject = {
    "type": "object",
    "properties": {
        "query": {
            "type": "string",
            "minLength": 1,
            "maxLength": 1_000,
            "description": "What the tool should do, in a few words.",
        },
        "limit": {
            "type": "integer",
            "maximum": 10,
            "minimum": 1,
            "description": "How many tools to find at most.",
            "default": 5,
        },
    },
    "required": ["query"],
    "additionalProperties": False,
}


@cache
def search_tools() -> Tool[..., Any]:
    """Return the tool; made when it is first needed."""

    @tool(
        visible=["tools[].name"],
        read_only=True,
        idempotent=True,
        name=NAME,
        input_schema=_SEARCH_INPUT,
    )
    async def search(query: str, shelf: ToolSearch, limit: int = 5) -> FoundTools:
        """Find more tools, if none of those that you have does what is needed.

        Those that are found can be called from your next turn on.
        """
        found = await shelf.find(query, limit)
        return {"tools": [{"name": d.name, "description": _short(d.description)} for d in found]}

    return search


def names_found(result: JsonValue) -> list[str]:
    """Return the names in a record's result: its visible part."""
    tools = result.get("tools") if isinstance(result, dict) else None
    entries = tools if isinstance(tools, list) else []
    names = [entry.get("name") for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str)]


def _first_finds(
    by_call: Mapping[str, list[str]], new: AbstractSet[str], *, without: AbstractSet[str]
) -> dict[str, tuple[str, ...]]:
    """Return which of the new tools each call was the first to find.

    Calls in `without` have a notice in their results and cannot also load tools.
    """
    remaining = set(new)
    finds: dict[str, tuple[str, ...]] = {}
    for call_id, names in by_call.items():
        first = tuple(name for name in dict.fromkeys(names) if name in remaining)
        if first and call_id not in without:
            finds[call_id] = first
            remaining.difference_update(first)
    return finds


def _short(description: str) -> str:
    return description if len(description) <= _LONGEST else f"{description[: _LONGEST - 1]}…"


_MOST_TOOLS = 128
"""OpenAI takes no more in a request: openai/openai-openapi#76."""

_GATHER_FACTOR = 4
"""How many times `max_candidates` tools a session may gather before some are dropped."""

_DEEPER_FACTOR = 8
"""How many times as many tools the next look takes if policies left too few of those picked."""


_SEARCH = "the search for more tools"
_ALWAYS = "offered by each run of the agent"
_CALLED = "called earlier in the conversation"
_OFFERED = "offered earlier in the conversation"
_FOUND = f"found by {NAME}"


SearchTools: TypeAlias = bool | Literal["deferred", "listed"]
"""Whether a model can find more tools, and where it gets their definitions.

`deferred` puts them where they were found, `listed` in the list of all tools, whatever is known of
the provider.
"""

DEFERRED: Mapping[SearchTools, bool | None] = {
    False: None,
    True: None,
    "deferred": True,
    "listed": False,
}
"""The value of `ChatRequest.deferred` for each."""


class Best(NamedTuple):
    """The best tools for a request, best first, and the tools that policies deny, with reasons."""

    picks: list[PickResult]
    denied: list[tuple[str, str]]


def _denial(deny: Deny) -> str:
    return f"denied by {deny.policy or 'a policy'}: {deny.reason}"


class AgentPicking:
    """Picks for the runs of one agent.

    `runner` runs their calls: the one given, plus `search_tools` if wanted, plus the tools that are
    `always` offered. Raises CatalogError if a tool of the catalog has one of these names, or
    nearly.
    """

    def __init__(
        self,
        runner: ToolRunner,
        options: PickOptions,
        *,
        search: SearchTools,
        always: Catalog = Catalog(),  # noqa: B008  frozen
        answer_tools: int = 0,  # further tools in requests: the answer tool
    ) -> None:
        if runner.approver is not None:  # somebody may say yes: picking hides nothing unsafe
            options = msgspec.structs.replace(options, allow_unsafe=True)
        self.searches = bool(search)
        self._answer_tools = answer_tools
        self.deferred = DEFERRED[search]
        self.runner = runner
        self._catalog = runner.catalog
        self._options = options
        self._positions = {name: index for index, name in enumerate(runner.catalog.names)}
        self._open: dict[str, list[PickedToolbox]] = {}  # a saved run may be resumed twice at once
        if search:
            catalog = Catalog([search_tools()], source="search_tools=True")
            self.runner = runner.with_tools(catalog.bind({ToolSearch: per_call(self._of_call)}))
        self._always = (*([NAME] if search else []), *always.names)
        if always:
            self.runner = self.runner.with_tools(always)

    @property
    def max_tools(self) -> int:
        """How many tools a run may offer, including those that it always offers."""
        total = max(_MOST_TOOLS, self._options.max_candidates + max(1, len(self._always)))
        return total - self._answer_tools

    async def begin(
        self,
        messages: Sequence[Message],
        earlier: Iterable[str],
        context: PolicyContext,
        *,
        begun: bool = False,
    ) -> PickedToolbox:
        """Return the toolbox of a new run; `earlier` names what its conversation was offered.

        If the run has `begun` and another agent has spoken in the meantime, all of that stays.
        Raises what `pick_tools` raises.
        """
        best = await self.best(messages, context, self._options.max_candidates)
        picked = best.picks
        called = [call.name for message in messages for call in message.tool_calls]
        wanted_names = [*(p.definition.name for p in picked), *reversed(called)]
        names = self._initial_names(earlier, wanted_names, context, begun=begun)
        offered = [*(name for name in self._always if self.permits(name, context)), *names]
        return self.reopen(offered, context, self._choice(best, offered, called))

    def reopen(
        self, names: Iterable[str], context: PolicyContext, choice: Choice | None = None
    ) -> PickedToolbox:
        """Return the toolbox of a saved run that was offered these tools; the runner has all."""
        tools = tuple(self.runner.catalog[name] for name in names)
        toolbox = PickedToolbox(self, tools, context)
        toolbox.choice = choice
        self._open.setdefault(context.run.run_id, []).append(toolbox)
        return toolbox

    def close(self, toolbox: PickedToolbox, run_id: str) -> None:
        """Forget the toolbox of a run that is over."""
        toolboxes = self._open[run_id]
        toolboxes.remove(toolbox)
        if not toolboxes:
            del self._open[run_id]

    async def best(self, request: object, context: PolicyContext, count: int) -> Best:
        """Return the best tools for a request, best first, that the caller may ever call.

        Policies are asked about the few that were picked, not about a whole catalog.
        """
        options = msgspec.structs.replace(self._options, max_candidates=count)
        picks: list[PickResult] = []
        denied: list[tuple[str, str]] = []
        while True:
            picked = await pick_tools(request, self._catalog, options)
            if picked and picked[0].provenance.timed_out:  # the scorer is not asked again
                return Best(picks or self._as_registered(picked[0], context, count), denied)
            verdicts = [(p, self.runner.never_allows(p.definition, context)) for p in picked]
            picks = [p for p, deny in verdicts if deny is None]
            denied = [
                (p.definition.name, _denial(deny)) for p, deny in verdicts if deny is not None
            ]
            if len(picks) >= count or len(picked) < options.max_candidates:
                return Best(picks[:count], denied)
            more_candidates = options.max_candidates * _DEEPER_FACTOR
            options = msgspec.structs.replace(options, max_candidates=more_candidates)

    def permits(self, name: str, context: PolicyContext) -> bool:
        """Return whether the tool exists and this caller may call it under some circumstances."""
        entry = self.runner.catalog.by_name.get(name)
        return (
            entry is not None and self.runner.never_allows(entry.tool.definition, context) is None
        )

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Return the tools in catalog order, so that equal sets make equal requests."""
        return sorted(names, key=self._positions.__getitem__)

    def _choice(self, best: Best, offered: Iterable[str], called: Iterable[str]) -> Choice:
        """Return why these are offered: the scores of those picked, the source of the others."""
        on_offer, called_names = dict.fromkeys(offered), frozenset(called)
        scored = (Candidate.of(p.definition.name, p.score, p.reason) for p in best.picks)
        candidates = [c for c in scored if c.name in on_offer]
        picked = {c.name for c in candidates}
        for name in on_offer:
            if name not in picked:
                reason = _SEARCH if name == NAME else _CALLED if name in called_names else _OFFERED
                reason = _ALWAYS if name in self._always and name != NAME else reason
                candidates.append(Candidate(name, None, reason))
        _, excluded = candidates_of(self._catalog, self._options.filters(), self._options.quota)
        return Choice.of(
            scorer_name(self._options.chosen_scorer()),
            candidates,
            chain(best.denied, ((out.tool, out.reason) for out in excluded)),
            timed_out=any(p.provenance.timed_out for p in best.picks),
        )

    def _initial_names(
        self,
        earlier_names: Iterable[str],
        wanted_names: Iterable[str],
        context: PolicyContext,
        *,
        begun: bool,
    ) -> list[str]:
        """Return what was offered before, in its order, then what is newly wanted, best first.

        If too many have gathered, only wanted tools stay: those picked and those called, because a
        model repeats what it has seen itself do. If nothing is added, nothing is removed, unless it
        is more than a run may offer.
        """
        earlier, wanted = (
            self._eligible_names(names, context) for names in (earlier_names, wanted_names)
        )
        new, room = set(wanted).difference(earlier), self.max_tools - max(1, len(self._always))
        if begun:
            added = [name for name in wanted if name in new][: max(0, room - len(earlier))]
            return [*earlier, *self.in_order(added)]
        limit = min(room, _GATHER_FACTOR * self._options.max_candidates) if new else room
        if len(earlier) + len(new) > limit:
            earlier, new = [], set(wanted[:room])
        return [*earlier, *self.in_order(new)]

    def _eligible_names(self, names: Iterable[str], context: PolicyContext) -> list[str]:
        """Return those that could be picked for this caller now.

        The options also apply to what was offered or called before.
        """
        existing = [self._catalog[name] for name in dict.fromkeys(names) if name in self._positions]
        eligible, _ = candidates_of(existing, self._options.filters(), self._options.quota)
        eligible_names = (tool.get_definition().name for tool in eligible)
        return [name for name in eligible_names if self.permits(name, context)]

    def _as_registered(
        self, timed_out: PickResult, context: PolicyContext, count: int
    ) -> list[PickResult]:
        """Return the first permitted tools in the order of registration, marked as `timed_out` is."""
        candidates, _ = candidates_of(self._catalog, self._options.filters(), self._options.quota)
        permitted = (t for t in candidates if self.permits(t.get_definition().name, context))
        return [
            msgspec.structs.replace(timed_out, tool=tool, definition=tool.get_definition())
            for tool in islice(permitted, count)
        ]

    def _of_call(self, context: CallContext) -> PickedToolbox:
        return self._open[context.run_id][-1]


class PickedToolbox(Toolbox):
    """Holds what was picked for one run and found by its model since; it answers `search_tools`.

    `_names` are the names of its tools and of found tools that are offered from the next turn on.
    """

    chosen = True
    choice: Choice | None

    def __init__(
        self, picking: AgentPicking, tools: tuple[HasDefinition, ...], context: PolicyContext
    ) -> None:
        super().__init__(picking.runner.catalog, tools)
        self._picking = picking
        self._context = context
        self.search_tool = NAME if picking.searches else ""
        self.deferred = picking.deferred
        self._names = {tool.get_definition().name for tool in tools}
        self._scored: dict[str, Candidate] = {}

    def take(self, outcomes: Iterable[Outcome]) -> bool:
        """Take the found tools from the records: a call that is not run again has one, too."""
        searches = [outcome for outcome in outcomes if is_search(outcome)]
        by_call = {outcome.record.id: names_found(outcome.record.result) for outcome in searches}
        names = list(chain.from_iterable(by_call.values()))
        self.loads = {}
        if not names or not self._picking.searches:
            return False
        known = self.known(names)
        self._names.update(self._addable(name for name in names if name in known))
        new_names = self._names.intersection(names).difference(self.names)
        if new_names:
            with_notice = (outcome.record.id for outcome in searches if outcome.notice)
            self.loads = _first_finds(by_call, new_names, without=frozenset(with_notice))
            in_order = self._picking.in_order(new_names)
            candidates = (
                self._scored.get(name) or Candidate(name, None, _FOUND) for name in in_order
            )
            self.choice = (self.choice or Choice()).with_offered(candidates)
            self.tools = (*self.tools, *(self._catalog[name] for name in in_order))
            self._last_offer = _NO_OFFERS
        return bool(new_names)

    def known(self, names: Iterable[str]) -> frozenset[str]:
        return frozenset(name for name in names if self._picking.permits(name, self._context))

    def close(self) -> None:
        self._picking.close(self, self._context.run.run_id)

    async def find(self, query: str, limit: int) -> list[ToolDefinition]:
        """Return the best tools, including those already offered, as far as there is room for them.

        Raises ToolError.
        """
        picks = (await self._picking.best(query, self._context, limit)).picks
        if picks and picks[0].provenance.timed_out:
            raise ToolError("the search took too long", retryable=True)
        names = [p.definition.name for p in picks]
        # at once: other searches of this turn need room, too
        self._names.update(self._addable(names))
        if picks and self._names.isdisjoint(names):
            raise ToolError("no more tools can be offered in this run")
        for name, p in zip(names, picks, strict=True):
            reason = f"{_FOUND}: {p.reason}" if p.reason else _FOUND
            self._scored[name] = Candidate.of(name, p.score, reason)
        return [p.definition for p in picks if p.definition.name in self._names]

    def _addable(self, names: Iterable[str]) -> list[str]:
        """Return names that are neither offered nor promised yet, as many as there is room for."""
        room = max(0, self._picking.max_tools - len(self._names))
        return [name for name in names if name not in self._names][:room]
