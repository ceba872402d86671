"""What became of arguments before they were decided on, kept for as long as their call waits.

A model answers for the view of a schema that its provider was sent, and what it sends may have been
repaired; and a default factory makes its value once a call. The way back is known to the offer of
that one request, and a repairer may be a model; a run that waits, and goes on in another process or
with another model, must come to the very arguments that somebody was asked to approve.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

import msgspec

from toolcrib.hydrate import RepairRequest, hydrate, repair
from toolcrib.runner import ToolRunner
from toolcrib.values.call import Hydrated, HydrationResult, Rejected, ToolCall
from toolcrib.values.json import JsonObject, JsonValue
from toolcrib.values.offer import Offer
from toolcrib.values.run import RepairedText


class _Known(msgspec.Struct, frozen=True):
    """The way back of one call that was restored before."""

    arguments: JsonObject

    def restore(self, arguments: JsonObject) -> JsonObject:
        """What it was restored to, which has been judged once; a copy, for a tool may change it."""
        return copy.deepcopy(self.arguments)

    def outward(self, arguments: JsonObject) -> JsonObject:
        return arguments


class _Before:
    """The repairer of one call that was repaired before."""

    def __init__(self, known: RepairedText) -> None:
        self.name = known.by
        self._text = known.text

    async def __call__(self, _request: RepairRequest) -> str:
        return self._text


class Restored:
    """What calls were restored to and repaired to, by their ids; `state` comes from a saved run."""

    def __init__(
        self,
        runner: ToolRunner,
        restored: Mapping[str, JsonObject],
        repaired: Mapping[str, RepairedText],
        pinned: Mapping[str, dict[str, JsonValue]],
    ) -> None:
        self._runner = runner
        self._known = dict(restored)
        self._repaired = dict(repaired)
        self._pinned = dict(pinned)

    async def hydrate(self, call: ToolCall, offer: Offer) -> HydrationResult:
        """`ToolRunner.hydrate`; a call that came to something before comes to the same."""
        if call.id in self._known:
            way_back = _Known(self._known[call.id])
            offer = msgspec.structs.replace(offer, ways_back={call.name: way_back})
        result = await self._judged(call, offer)
        told = result.provenance
        if isinstance(result, Hydrated) and "restored" in told.notes:
            self._known[call.id] = result.building.sent
        if isinstance(result, Hydrated) and result.building.pinned:
            self._pinned[call.id] = result.building.pinned
        if isinstance(result, Hydrated) and told.repaired_arguments is not None:
            self._repaired[call.id] = RepairedText(told.repaired_arguments, told.repaired_by)
        return result

    def restored(self, calls: Iterable[ToolCall]) -> dict[str, JsonObject]:
        """Of the calls that still wait."""
        return {call.id: self._known[call.id] for call in calls if call.id in self._known}

    def repaired(self, calls: Iterable[ToolCall]) -> dict[str, RepairedText]:
        """Of the calls that still wait."""
        return {call.id: self._repaired[call.id] for call in calls if call.id in self._repaired}

    def pinned(self, calls: Iterable[ToolCall]) -> dict[str, dict[str, JsonValue]]:
        """Of the calls that still wait: what default factories made of them."""
        return {call.id: self._pinned[call.id] for call in calls if call.id in self._pinned}

    def text(self, call: ToolCall) -> str:
        """The arguments as they were judged: what a provider can be sent again."""
        known = self._repaired.get(call.id)
        return call.arguments if known is None else known.text

    async def _judged(self, call: ToolCall, offer: Offer) -> HydrationResult:
        known, pinned = self._repaired.get(call.id), self._pinned.get(call.id)
        if known is None:
            return await self._runner.hydrate(call, offer, pinned=pinned)
        result = hydrate(call, offer, pinned=pinned)
        if not isinstance(result, Rejected):
            return result
        return await repair(result, offer, _Before(known), pinned=pinned)
