"""Names that a reader or a model would confuse are refused, and real catalogs are not."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from rows import each_row

from toolcrib.errors import CatalogError
from toolcrib.tools.catalog import Names


@each_row(
    ("name", "other", "text"),
    [
        ("alpha", "alpha", "two tools are called 'alpha'"),
        ("getX", "getx", "differ only in case: rename one, or use .prefixed()"),
        ("get_user", "getUser", "differ only in case and underscores"),
        ("get_user", "get__user", "differ only in case and underscores"),
        ("get_user", "_get_user_", "differ only in case and underscores"),
        ("search_1", "search1", "differ only in case and underscores"),
        ("x1_1", "x1__1", "differ only in case and underscores"),
        ("tool10", "tool1o", "look alike"),
        ("tool10", "toolIO", "look alike"),
        ("tool_1", "tool_l", "look alike"),
        ("get_orders", "get_0rders", "look alike"),
        ("get_orders", "Get0rders", "look alike"),
        ("list_all", "Iist_all", "look alike"),
    ],
)
def test_names_that_would_be_confused(name: str, other: str, text: str) -> None:
    for first, second in ((name, other), (other, name)):
        names = Names()
        names.take(first)
        with pytest.raises(CatalogError, match=re.escape(text)) as refused:
            names.take(second)
        assert f"'{first}'" in str(refused.value)
        assert f"'{second}'" in str(refused.value)


DISTINCT = [
    ["search_1", "search_2", "search_10", "search_11", "search_1_1", "search_1_0", "search_2_1"],
    ["v1_1", "v11", "v1_11", "v11_1", "v111"],
    ["sha3_256", "sha3256"],
    ["get_mail", "get_mall", "find_tail", "find_tall", "on_fail", "on_fall", "bit", "blt"],
    ["get", "gets", "get_all", "get_all_users", "set"],
    ["a", "b", "_"],
    ["step_0", "step_1", "step_2", "step0_1", "step01"],
]


@each_row("group", DISTINCT, ids=lambda group: group[0])
def test_names_that_are_told_apart(group: list[str]) -> None:
    for pair in itertools.permutations(group, 2):
        names = Names()
        for name in pair:
            names.take(name)


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        ("", "b.json", "(from b.json and from the application)"),
        ("a.json", "", "(from the application and from a.json)"),
        ("a.json", "b.json", "(from b.json and from a.json)"),
        ("a.json", "a.json", "(both from a.json)"),
    ],
)
def test_both_sources_are_named(first: str, second: str, text: str) -> None:
    for name in ("alpha", "Alpha"):
        names = Names()
        names.take("alpha", first)
        with pytest.raises(CatalogError, match=re.escape(text)):
            names.take(name, second)


# Found by looking at each: pairs that differ in case and underscores only, from sets that were pooled.
@pytest.mark.parametrize(("folder", "refused"), [("bfcl", 13), ("metatool", 0), ("nestful", 1)])
def test_real_names_are_not_confused(shared_data: Path, folder: str, refused: int) -> None:
    text = (shared_data / "pick" / folder / "tools.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line)["name"] for line in text.splitlines()]
    names, found = Names(), []
    for name in dict.fromkeys(re.sub(r"[^A-Za-z0-9_]", "_", row) for row in rows):
        try:
            names.take(name)
        except CatalogError as error:
            found.append(str(error))
    assert len(found) == refused
    assert all("differ only in case" in error for error in found)
