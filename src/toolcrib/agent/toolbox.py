"""`Toolbox`: what one run offers to its model. Within a run it only grows, and at its end.

A provider keeps what it has read of a request up to the first byte that is another one, and the tools
come first: a tool that goes, or moves, makes it read the whole conversation again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import ClassVar, TypeAlias

import msgspec

from toolcrib.tools import Catalog
from toolcrib.values.call import ToolCall
from toolcrib.values.context import PolicyContext
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.offer import Offer
from toolcrib.values.origin import Choice
from toolcrib.values.record import Outcome


class Toolbox:
    """The same tools in each turn; `chosen` says whether they are a choice, and worth telling."""

    chosen: ClassVar[bool] = False
    choice: Choice | None = None
    """Why these tools are offered, where they are a choice."""

    def __init__(self, catalog: Catalog, tools: tuple[HasDefinition, ...]) -> None:
        self._catalog = catalog
        self.tools = tools
        self._told = _NOTHING

    @staticmethod
    def of(catalog: Catalog, names: Iterable[str]) -> Toolbox:
        """Of those names for which the catalog has a tool."""
        return Toolbox(catalog, tuple(catalog[name] for name in names if name in catalog))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.get_definition().name for tool in self.tools)

    def take(self, outcomes: Iterable[Outcome]) -> bool:
        """Put in what the calls of a turn asked for. Whether there is more in it now."""
        del outcomes
        return False

    def offer(self, offer: Offer, asked: Iterable[ToolCall]) -> Offer:
        """What was offered; of names that were not, those of tools that there are have their own code.

        A client that does not say what it offered, offered all that it was given.
        """
        given, told = self._told
        if given is not offer:
            told = offer if offer.tools else Offer.of(self.tools)
            self._told = (offer, told)
        others = [call.name for call in asked if call.name not in told.tools]
        if not others:
            return told
        return msgspec.structs.replace(told, known=told.known | self.known(others))

    def known(self, names: Iterable[str]) -> frozenset[str]:
        """Those of these names that a model may know to be a tool's."""
        return frozenset(name for name in names if name in self._catalog)

    def definition(self, name: str) -> ToolDefinition | None:
        """Of a tool that a model may know of."""
        return self._catalog[name].get_definition() if self.known([name]) else None

    def close(self) -> None:
        """The run is over."""

    def _put(self, tools: tuple[HasDefinition, ...]) -> None:
        self.tools, self._told = tools, _NOTHING


_NOTHING = (Offer(), Offer())
"""What a client said that it offered, and what that means."""

OpenToolbox: TypeAlias = Callable[[PolicyContext], Awaitable[Toolbox]]
"""Makes the toolbox of a run, of whose caller and spending it is told."""
