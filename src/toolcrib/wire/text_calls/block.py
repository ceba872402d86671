"""The calls in one block of text, under construction, and what is on offer for them.

A block is one: if one of its names is not on offer, all of it is text.
"""

from __future__ import annotations

from functools import cached_property

from toolcrib.schema.references import References
from toolcrib.values.json import JsonObject
from toolcrib.values.offer import Offer
from toolcrib.wire.json_text import Settled, is_object, settled
from toolcrib.wire.text_calls.cursor import NoCallError
from toolcrib.wire.text_calls.literal import json_of


class Written:
    """A call as it was written. `pieces` are its arguments so far.

    `native` is whether it stood where a model makes its calls: at a mark of the syntax, outside of
    fences, after words or in a line of its own, and with nothing but calls behind it.
    """

    __slots__ = ("name", "native", "pieces", "provider_id")

    def __init__(self, name: str) -> None:
        self.name = name
        self.pieces: list[str] = []
        self.provider_id = ""
        self.native = False

    def arguments(self) -> Settled:
        """The model's own text, if it is JSON; what says the same as JSON, if it is Python."""
        given = settled("".join(self.pieces))
        text = given.text if is_object(given.text) else json_of(given.text) or given.text
        return given._replace(text=text)


class Block:
    """What a reader finds. With `strict`, a name that is not on offer ends it at once."""

    def __init__(self, offer: Offer, *, strict: bool = False) -> None:
        self.calls: list[Written] = []
        self.strict = strict
        self._offer = offer

    def call(self, name: str = "") -> Written:
        """A new call, to be filled."""
        call = Written("")
        self.calls.append(call)
        if name:
            self.named(call, name)
        return call

    def named(self, call: Written, name: str) -> None:
        """Give a call its name. Raises NoCallError where an unknown one ends the block."""
        if self.strict and not self.offers(name):
            raise NoCallError
        call.name = name

    def offers(self, name: str) -> bool:
        return self._offer.own_name(name) in self._offer.tools

    def usable(self) -> bool:
        """Whether there are calls, and all of them of what is on offer."""
        return bool(self.calls) and all(self.offers(call.name) for call in self.calls)

    def parameters(self, name: str) -> Parameters:
        """What the schema of a tool says about its parameters."""
        tool = self._offer.tools.get(self._offer.own_name(name))
        return Parameters(None if tool is None else tool.get_definition().input_schema)


class Parameters:
    """The kinds of values that a tool's parameters take: names of JSON types, none if all."""

    def __init__(self, schema: JsonObject | None) -> None:
        self._schema = schema if isinstance(schema, dict) else {}

    @cached_property
    def _references(self) -> References:
        return References(self._schema)

    def kinds(self, name: str) -> frozenset[str]:
        properties = self._schema.get("properties")
        known = properties.get(name) if isinstance(properties, dict) else None
        return frozenset(self._kinds(known, 0))

    def _kinds(self, schema: object, depth: int) -> set[str]:
        if not isinstance(schema, dict) or depth > _DEEPEST:
            return set()
        if isinstance(ref := schema.get("$ref"), str):
            return self._kinds(self._references.resolve(ref), depth + 1)
        kinds = schema.get("type")
        if isinstance(kinds, str | list):
            return {kinds} if isinstance(kinds, str) else {k for k in kinds if isinstance(k, str)}
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if isinstance(values, list):
            return {_KINDS.get(type(value), "object") for value in values}
        for key in ("anyOf", "oneOf", "allOf"):
            if isinstance(branches := schema.get(key), list):
                return set().union(*(self._kinds(branch, depth + 1) for branch in branches))
        return set()


_DEEPEST = 8
_KINDS = {str: "string", bool: "boolean", type(None): "null", int: "integer", float: "number"}
