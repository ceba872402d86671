"""The one table of the characters that no reader sees, and what holds to it."""

from __future__ import annotations

import unicodedata

import pytest

from toolcrib.lint import check_tools
from toolcrib.values.decision import INVISIBLE

ALL = [chr(number) for number in range(0x110000)]


def test_all_of_their_categories_are_in_it() -> None:
    categories = ("Cc", "Cf", "Cs", "Zl", "Zp")
    named = {c for c in ALL if unicodedata.category(c) in categories} - {"\t", "\n"}
    assert named <= set(filter(INVISIBLE.match, ALL))


@pytest.mark.parametrize("text", ["héllo wörld", "東京 🍵", "ку́б", "a\tb\nc", "नमस्ते"])
def test_what_is_seen_is_not_in_it(text: str) -> None:
    assert not INVISIBLE.search(text)


def warned(description: str) -> bool:
    given = {"name": "t", "description": description, "input_schema": {"type": "object"}}
    return "text" in {finding.rule for finding in check_tools([given])}


def test_lint_warns_of_nothing_that_is_seen() -> None:
    assert not warned("".join(c for c in ALL if not INVISIBLE.match(c)))
    assert warned("a\u200bb")
