from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pick.pick_helpers import Entry, names
from rows import each_row

from toolcrib.errors import PickError, ToolcribError
from toolcrib.pick import Excluded, PickOptions, explain_pick, pick_tools
from toolcrib.pick.options import Filters
from toolcrib.pick.pick import candidates_of
from toolcrib.tools import Catalog, tool
from toolcrib.values.definition import ALL, Annotations, HasDefinition, ToolDefinition


def marked(name: str, *, tags: tuple[str, ...] = (), **marks: Any) -> Entry:
    return Entry(
        ToolDefinition(
            name=name,
            description="Does things.",
            input_schema_json='{"type": "object"}',
            annotations=Annotations(**marks),
            tags=tags,
        )
    )


TOOLS = (
    marked("free", tags=("mail", "read")),
    marked("dear", cost=5.0, tags=("mail",)),
    marked("admins", allowed_roles=("admin", "owner")),
    marked("streams", features=("streaming", "batch")),
    marked("risky", safe=False, cost=1.0),
)


def everything(_: object, __: HasDefinition) -> float:
    return 1.0


FILTERS: list[tuple[dict[str, Any], dict[str, str]]] = [
    ({}, {}),
    ({"allow_unsafe": False}, {"risky": "it is marked unsafe and allow_unsafe is off"}),
    ({"roles": ()}, {"admins": "it needs one of the roles admin, owner"}),
    ({"roles": ["user"]}, {"admins": "it needs one of the roles admin, owner"}),
    ({"roles": ["user", "owner"]}, {}),
    (
        {"features": ["streaming"]},
        dict.fromkeys(("free", "dear", "admins", "risky"), "it lacks streaming"),
    ),
    ({"without_features": {"streaming", "batch", "gpu"}}, {"streams": "it has batch, streaming"}),
    ({"max_cost": 1}, {"dear": "it costs 5, more than 1"}),
    (
        {"max_cost": 0},
        {"dear": "it costs 5, more than 0", "risky": "it costs 1, more than 0"},
    ),
    (
        {"tags": ["read", "x"]},
        dict.fromkeys(("dear", "admins", "streams", "risky"), "it has none of the tags read, x"),
    ),
    (
        {"only": ["free", "dear", "nowhere"]},
        dict.fromkeys(("admins", "streams", "risky"), "it is not in `only`"),
    ),
    ({"only": ()}, {entry.definition.name: "it is not in `only`" for entry in TOOLS}),
    ({"without": ["free"]}, {"free": "it is in `without`"}),
    ({"quota": {"free": 0, "dear": 2, "nowhere": 0}}, {"free": "its quota is used up"}),
    ({"quota": {"free": None, "dear": 0.5, "risky": -1}}, {"risky": "its quota is used up"}),
    ({"quota": {"dear": 0}.get}, {"dear": "its quota is used up"}),
    (
        {"allow_unsafe": False, "max_cost": 0.5, "quota": {"risky": 0}, "only": ["free", "risky"]},
        {
            "dear": "it is not in `only`; it costs 5, more than 0.5",
            "admins": "it is not in `only`",
            "streams": "it is not in `only`",
            "risky": "its quota is used up; it is marked unsafe and allow_unsafe is off; "
            "it costs 1, more than 0.5",
        },
    ),
]


@each_row(("given", "left_out"), FILTERS)
@each_row("form", [tuple, list])
async def test_each_filter_says_whom_it_left_out_and_why(
    given: dict[str, Any], left_out: dict[str, str], form: type
) -> None:
    options = PickOptions(
        **{"allow_unsafe": True, **given}, scorer=everything, max_candidates=9, debug=True
    )
    found = await pick_tools("x", form(TOOLS), options)
    kept = [entry.definition.name for entry in TOOLS if entry.definition.name not in left_out]
    assert names(found) == kept
    expected = tuple(Excluded(name, reason) for name, reason in left_out.items())
    assert all(set(result.provenance.excluded) == set(expected) for result in found)
    report = await explain_pick("x", form(TOOLS), options)
    assert {out.tool: out.reason for out in report.excluded} == left_out


def test_no_filter_is_on_unless_it_is_asked_for() -> None:
    options = PickOptions()
    assert (options.roles, options.max_cost, options.only, options.quota) == (None,) * 4
    assert (options.features, options.without_features) == ((), ())
    assert (options.tags, options.without) == ((), ())
    unsafe = ToolDefinition(
        name="x",
        description="x",
        input_schema_json=None,
        annotations=Annotations(safe=False, allowed_roles=("a",), cost=9.0),
    )
    assert len(options.filters().reasons(unsafe)) == 1
    assert PickOptions(allow_unsafe=True).filters().reasons(unsafe) == []


BAD: list[tuple[dict[str, Any], str]] = [
    ({"roles": "admin"}, "roles must be a collection of str, not 'admin'"),
    ({"features": 3}, "features must be a collection of str, not 3"),
    ({"without_features": "x"}, "without_features must be a collection"),
    ({"tags": [1]}, "tags must hold str, not 1"),
    ({"tags": None}, "tags must be a collection of str, not None"),
    ({"only": "a"}, "only must be a collection"),
    ({"without": [None]}, "without must hold str, not None"),
    ({"max_cost": -1}, "max_cost must be 0 or more, or None for any cost, not -1"),
    ({"max_cost": float("nan")}, "max_cost"),
    ({"max_cost": "3"}, "max_cost"),
    ({"max_cost": True}, "max_cost"),
    ({"quota": 3}, "quota must be a mapping or a function, not 3"),
]


@each_row(("given", "says"), BAD)
def test_bad_values_are_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(PickError, match=says):
        PickOptions(**given)


class BrokenMapping(dict[str, float]):
    def items(self) -> Any:
        raise OSError("a secret")


def _raises(_: str) -> float:
    raise ValueError("a secret")


def _raises_ours(_: str) -> float:
    raise ToolcribError("as it is")


@each_row(
    ("quota", "says"),
    [
        ({"free": "2"}, "quota gave '2' for tool 'free', not a number of calls or None"),
        ({"free": True}, "quota gave True"),
        (BrokenMapping(), "quota raised OSError"),
        ({"free": float("nan")}, "quota gave nan"),
        (lambda _: "many", "quota gave 'many' for tool 'free'"),
        (_raises, "quota raised ValueError for tool 'free'"),
        (_raises_ours, "as it is"),
    ],
)
async def test_a_quota_that_is_none_is_an_error(quota: Any, says: str) -> None:
    with pytest.raises(ToolcribError, match=says) as raised:
        await pick_tools("x", TOOLS, PickOptions(quota=quota))
    assert "a secret" not in str(raised.value)


async def test_a_quota_is_read_at_every_pick() -> None:
    left = {"free": 1}
    options = PickOptions(quota=left, only=["free"], scorer=everything)
    assert names(await pick_tools("x", TOOLS, options)) == ["free"]
    left["free"] = 0
    assert await pick_tools("x", TOOLS, options) == []


async def test_a_quota_function_is_not_asked_about_tools_that_are_out_anyway() -> None:
    asked: list[str] = []
    options = PickOptions(quota=asked.append, max_cost=0.0, roles=(), scorer=everything)
    await pick_tools("x", TOOLS, options)
    assert asked == ["free", "streams"]


def test_options_do_not_change_with_the_list_that_they_were_given() -> None:
    roles = ["user"]
    options = PickOptions(roles=roles)
    roles.append("admin")
    assert options.roles == ("user",)
    assert options.filters() == Filters(roles=frozenset({"user"}))


def _many(count: int) -> Catalog:
    @tool(visible=ALL)
    def one() -> str:
        """Does it."""
        return ""

    return Catalog([one.renamed(f"tool_{i}") for i in range(count)])


NAMES = ["tool_0", "tool_2", "dear", "admins"]


@each_row("tools", [_many(3), TOOLS], ids=["catalog", "tuple"])
@each_row("quota", [None, {}, {"tool_1": 0, "free": 0}, {"free": 2}.get])
def test_of_what_cannot_change_candidates_are_found_once(
    tools: Any, quota: Mapping[str, int] | None
) -> None:
    first = candidates_of(tools, PickOptions(only=NAMES).filters(), quota)
    again = candidates_of(tools, PickOptions(only=NAMES[::-1]).filters(), quota)
    assert first.tools is again.tools
    other = candidates_of(tools, PickOptions(only=NAMES[1:]).filters(), quota)
    assert first.tools is not other.tools


def test_roles_that_no_tool_is_for_make_no_other_candidates() -> None:
    first = candidates_of(TOOLS, PickOptions(roles=["user:1", "admin"]).filters())
    again = candidates_of(TOOLS, PickOptions(roles=["admin", "user:2"]).filters())
    assert first.tools is again.tools
    assert "admins" in [tool.get_definition().name for tool in first.tools]
    nobody = candidates_of(TOOLS, PickOptions(roles=["user:1"]).filters())
    assert "admins" in [out.tool for out in nobody.excluded]


def test_the_candidates_used_last_are_kept() -> None:
    catalog = _many(3)
    plain = candidates_of(catalog, Filters())
    for i in range(20):
        candidates_of(catalog, Filters(without=frozenset({f"tool_{i}"})))
        assert candidates_of(catalog, Filters()) is plain
    old = Filters(without=frozenset({"tool_0"}))
    assert len(candidates_of(catalog, old).tools) == 2


def test_another_catalog_is_another_one() -> None:
    catalog = _many(3)
    candidates_of(catalog, Filters())
    more = catalog.with_tools(_many(1).prefixed("more_"))
    assert len(candidates_of(more, Filters()).tools) == 4
    assert len(candidates_of(catalog.without("tool_0"), Filters()).tools) == 2


def test_a_list_is_read_anew() -> None:
    tools = list(TOOLS)
    assert len(candidates_of(tools, Filters()).tools) == 4
    tools.append(marked("more"))
    assert len(candidates_of(tools, Filters()).tools) == 5
