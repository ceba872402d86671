"""Arguments put back into their author's terms, kept for as long as their call waits.

A model answers for the view of a schema that its provider was sent. The way back is known to the offer
of that one request; a run that waits, and goes on in another process or with another model, must come
to the very arguments that somebody was asked to approve.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping

import msgspec

from toolcrib.hydrate import hydrate
from toolcrib.values.call import Hydrated, HydrationResult, ToolCall
from toolcrib.values.json import JsonObject
from toolcrib.values.offer import Offer


class _Known(msgspec.Struct, frozen=True):
    """The way back of one call that was restored before."""

    arguments: JsonObject

    def restore(self, arguments: JsonObject) -> JsonObject:
        """What it was restored to, which has been judged once; a copy, for a tool may change it."""
        return copy.deepcopy(self.arguments)

    def outward(self, arguments: JsonObject) -> JsonObject:
        return arguments


class Restored:
    """What calls were restored to, by their ids; `known` comes from a saved run."""

    def __init__(self, known: Mapping[str, JsonObject]) -> None:
        self._known = dict(known)

    def hydrate(self, call: ToolCall, offer: Offer) -> HydrationResult:
        """`hydrate`; a call that was restored before is restored to the same."""
        if call.id in self._known:
            way_back = _Known(self._known[call.id])
            offer = msgspec.structs.replace(offer, ways_back={call.name: way_back})
        result = hydrate(call, offer)
        if isinstance(result, Hydrated) and "restored" in result.provenance.notes:
            self._known[call.id] = copy.deepcopy(result.arguments)
        return result

    def of(self, calls: Iterable[ToolCall]) -> dict[str, JsonObject]:
        """Of the calls that still wait."""
        known = self._known
        return {call.id: known[call.id] for call in calls if call.id in known}
