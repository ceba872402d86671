"""What one request offered."""

from __future__ import annotations

import pytest

from toolcrib.values.definition import ToolDefinition
from toolcrib.values.offer import Offer


class Holder:
    def __init__(self, name: str) -> None:
        self.name = name

    def get_definition(self) -> ToolDefinition:
        return ToolDefinition(name=self.name, description="", input_schema_json=None)


A, B = Holder("a"), Holder("b")


def test_tools_by_their_own_names_in_order() -> None:
    offer = Offer.of([B, A])
    assert dict(offer.tools) == {"b": B, "a": A}
    assert list(offer.tools) == ["b", "a"]


def test_what_is_offered_is_not_among_the_rest() -> None:
    assert Offer.of([A], known=["a", "b", "c"]).known == {"b", "c"}


def test_wire_names_are_mapped_back() -> None:
    offer = Offer.of([A], own_names={"a_": "a"})
    assert [offer.own_name(name) for name in ("a_", "a", "zzz")] == ["a", "a", "zzz"]


def test_an_empty_offer() -> None:
    assert (dict(Offer().tools), dict(Offer().own_names), Offer().known) == ({}, {}, frozenset())


def test_it_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Offer().known = frozenset("x")  # type: ignore[misc]
