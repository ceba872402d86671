"""What one request offered to a model, and what encoding changed about it.

It travels with the reply, so that hydration knows which tools the model could see, and under which
names, without asking anybody upstream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from toolcrib.values.definition import HasDefinition


class Offer(msgspec.Struct, frozen=True):
    """`tools` by their own names; `own_names` maps a wire name back where the two differ.

    `known` names tools that exist but were not offered: calling one of them is `not_offered`, while
    a name that nobody knows is `unknown_tool`.
    """

    tools: Mapping[str, HasDefinition] = {}
    own_names: Mapping[str, str] = {}
    known: frozenset[str] = frozenset()

    @staticmethod
    def of(
        tools: Iterable[HasDefinition],
        *,
        own_names: Mapping[str, str] | None = None,
        known: Iterable[str] = (),
    ) -> Offer:
        by_name = {tool.get_definition().name: tool for tool in tools}
        return Offer(by_name, own_names or {}, frozenset(known) - by_name.keys())

    def own_name(self, wire_name: str) -> str:
        """The tool's own name for the name that a provider knows it by."""
        return self.own_names.get(wire_name, wire_name)
