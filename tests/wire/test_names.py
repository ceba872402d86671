"""Names that a provider accepts, one to one with the tools' own."""

from __future__ import annotations

import pytest
from rows import each_row

from toolcrib.errors import CatalogError
from toolcrib.wire.forms import NameRule, wire_name, wire_names

RULE = NameRule("A-Za-z0-9_-", 64)

LEGAL = ["a", "get_weather", "GET-1", "x" * 64]
ILLEGAL = ["", "a.b", "a b", "a\n", "x" * 65, "größe", "数える", "a/b" * 40, "\ud800"]


@pytest.mark.parametrize("name", LEGAL)
def test_legal_names_stay(name: str) -> None:
    assert wire_name(RULE, name) == name


@each_row("name", ILLEGAL)
def test_others_are_made_legal_and_always_the_same(name: str) -> None:
    made = wire_name(RULE, name)
    assert RULE.legal(made)
    assert made != name
    assert wire_names(RULE, ["other", name])[name] == made


def test_the_mapping_is_one_to_one() -> None:
    names = [*LEGAL, *ILLEGAL, "a_b", "a:b", "a;b", "a,b"]
    mapping = wire_names(RULE, names)
    assert list(mapping) == names
    assert len(set(mapping.values())) == len(names)


def test_a_made_name_gives_way_to_a_tool_that_is_called_so() -> None:
    taken = wire_name(RULE, "a.b")
    mapping = wire_names(RULE, ["a.b", taken])
    assert mapping[taken] == taken
    assert mapping["a.b"] == wire_name(RULE, "a.b", salt=1)


def test_one_name_twice_is_refused() -> None:
    with pytest.raises(CatalogError, match="'f'"):
        wire_names(RULE, ["f", "g", "f"])


BEGINNING = NameRule("A-Za-z0-9_.-", 64, first="A-Za-z_")


@each_row(
    ("name", "begins"),
    [("9 lives", "_9_lives_"), ("-a", "_-a_"), ("", "tool_"), ("9" * 65, "_999"), ("a b", "a_b_")],
)
def test_a_rule_for_the_first_character(name: str, begins: str) -> None:
    assert not BEGINNING.legal(name)
    made = wire_name(BEGINNING, name)
    assert BEGINNING.legal(made)
    assert made.startswith(begins)
    assert BEGINNING.legal("_a.b-9")
