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


class ArgumentRestorer(Protocol):
    """Turns arguments that fit a provider's view of a schema into the author's terms."""

    def restore(self, arguments: JsonObject) -> JsonObject:
        """Return what a model sent for the view, in the author's terms, and leave the input alone.

        Never raises: what does not fit the view is passed on as it is, to be judged.
        """
        ...

    def to_view(self, arguments: JsonObject) -> JsonObject:
        """Return valid arguments, such as those of an example, in the terms of the view."""
        ...


class OutputRestorer(Protocol):
    """Turns an answer that fits a provider's view of the output's schema into the author's terms."""

    def restore(self, answer: JsonValue) -> JsonValue:
        """Return the answer in the author's terms; never raise, and leave the input alone."""
        ...


class Offer(msgspec.Struct, frozen=True):
    """`tools` by their own names; `own_names` maps a wire name back where the two differ.

    `restorers`, by own name, undo what a provider's view of a schema changed about the arguments.
    `known` names tools that exist but were not offered: calling one of them is `not_offered`, while
    a name that nobody knows is `unknown_tool`.
    `output` undoes what a view of the request's output changed about the answer, if one did.
    """

    tools: Mapping[str, HasDefinition] = {}
    own_names: Mapping[str, str] = {}
    known: frozenset[str] = frozenset()
    restorers: Mapping[str, ArgumentRestorer] = {}
    output: OutputRestorer | None = None

    @staticmethod
    def of(
        tools: Iterable[Any],
        *,
        own_names: Mapping[str, str] | None = None,
        known: Iterable[str] = (),
        restorers: Mapping[str, ArgumentRestorer] | None = None,
    ) -> Offer:
        """Return the offer of these tools, in any form. Raises DefinitionError for what is no tool."""
        by_name = {tool.get_definition().name: tool for tool in offered_tools(tools)}
        absent = frozenset(known) - by_name.keys()
        return Offer(by_name, own_names or {}, absent, restorers or {})

    def own_name(self, wire_name: str) -> str:
        """Return the tool's own name for the name that a provider knows it by."""
        return self.own_names.get(wire_name, wire_name)
