"""What one request offered to a model, and what encoding changed about it.

It travels with the reply, so that hydration knows which tools the model could see, and under which
names, without asking anybody upstream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from toolcrib.values.definition import HasDefinition, offered_tools
from toolcrib.values.json import JsonObject, JsonValue


class WayBack(Protocol):
    """Between arguments as the author's schema has them, and as a provider's view of it has them."""

    def restore(self, arguments: JsonObject) -> JsonObject:
        """What a model sent for the view, as the author's schema has it; its input is left alone.

        Never raises: what does not fit the view is passed on as it is, to be judged.
        """
        ...

    def outward(self, arguments: JsonObject) -> JsonObject:
        """Valid arguments, such as those of an example, as the view has them."""
        ...


class OutputWayBack(Protocol):
    """From an answer as a provider's view of the output's schema has it, to the author's."""

    def restore(self, answer: JsonValue) -> JsonValue:
        """The answer as the author's schema has it; never raises, and leaves its input alone."""
        ...


class Offer(msgspec.Struct, frozen=True):
    """`tools` by their own names; `own_names` maps a wire name back where the two differ.

    `ways_back`, by own name, undo what a provider's view of a schema changed about the arguments.
    `known` names tools that exist but were not offered: calling one of them is `not_offered`, while
    a name that nobody knows is `unknown_tool`.
    `output` undoes what a view of the request's output changed about the answer, if one did.
    """

    tools: Mapping[str, HasDefinition] = {}
    own_names: Mapping[str, str] = {}
    known: frozenset[str] = frozenset()
    ways_back: Mapping[str, WayBack] = {}
    output: OutputWayBack | None = None

    @staticmethod
    def of(
        tools: Iterable[Any],
        *,
        own_names: Mapping[str, str] | None = None,
        known: Iterable[str] = (),
        ways_back: Mapping[str, WayBack] | None = None,
    ) -> Offer:
        """The offer of these tools, in any form. Raises DefinitionError for what is no tool."""
        by_name = {tool.get_definition().name: tool for tool in offered_tools(tools)}
        absent = frozenset(known) - by_name.keys()
        return Offer(by_name, own_names or {}, absent, ways_back or {})

    def own_name(self, wire_name: str) -> str:
        """The tool's own name for the name that a provider knows it by."""
        return self.own_names.get(wire_name, wire_name)
