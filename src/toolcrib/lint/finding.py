"""What a linter says: one `Finding` for one thing that is worth a reader's time."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import msgspec

from toolcrib.schema.lower.tree import Effect

Rule: TypeAlias = Literal[
    "definition",  # it cannot be a tool: what registration would say
    "name",  # taken, changed on the wire, or easily confused with another
    "limit",  # more tools, or a longer description, than an endpoint takes
    "schema",  # what a provider's view of the schema cannot say
    "description",  # missing, too short, or nothing but the name
    "parameter",  # parameters without a description
    "similar",  # two tools described in the same words
    "conflict",  # parameters named alike that mean different things
    "spelling",  # one parameter under several names
    "default",  # a default that the schema itself refuses
    "enum",  # an enum without a type
    "text",  # hidden characters, or sentences that give a model orders
]
RULES: tuple[Rule, ...] = get_args(Rule)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`pointer` is a JSON Pointer into the tool's dictionary form (`/input_schema/properties/id`).

    `tool` is "" for what is true of all of them together. `provider` is "" for what is so whoever
    the provider is, and "toolcrib" for what toolcrib itself refuses. `refused`: the request or the
    registration fails; `lost`: the model sees less than the definition says; `doubtful`: it
    works, and a model or a reader may be misled. `message` says what, and what to do.
    """

    tool: str
    provider: str
    effect: Effect
    rule: Rule
    pointer: str
    message: str


class RuleFault(msgspec.Struct, frozen=True):
    """A finding on its way: the rules know neither the tool's place nor the provider."""

    rule: Rule
    pointer: str
    message: str
    effect: Effect = "doubtful"
