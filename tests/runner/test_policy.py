"""Policies: what the standard one reads, and that the strictest wins."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from toolcrib import (
    ALL,
    Allow,
    Ask,
    Caller,
    Catalog,
    Deny,
    ErrorCode,
    Hydrated,
    PolicyContext,
    ToolCall,
    ToolRunner,
    hydrate,
    tool,
)
from toolcrib.errors import DefinitionError
from toolcrib.policies import Policy, budget, deny_by_default, require_roles, standard
from toolcrib.runner.policy import decide
from toolcrib.values.context import RunTally
from toolcrib.values.decision import ANONYMOUS
from toolcrib.values.definition import AnnotationOptions


def hydrated(
    marks: AnnotationOptions, *, schema: bool = True, mode: Any = None, repaired: bool = False
) -> Hydrated:
    if schema:

        @tool(visible=ALL, **marks)
        async def subject() -> str:
            """Do it."""
            return ""
    else:

        @tool(visible=ALL, allow_no_schema=True, no_schema_mode=mode, **marks)
        async def subject(**anything: Any) -> str:
            """Do anything."""
            return ""

    result = hydrate(ToolCall("c", "", "subject", "{}"), Catalog([subject]))
    assert isinstance(result, Hydrated)
    provenance = msgspec.structs.replace(result.provenance, repaired=repaired)
    return msgspec.structs.replace(result, provenance=provenance)


STANDARD: list[tuple[AnnotationOptions, dict[str, Any], type, str]] = [
    ({}, {}, Allow, ""),
    ({"read_only": True}, {}, Allow, ""),
    ({"safe": False}, {}, Ask, "not safe"),
    ({"requires_approval": True}, {}, Ask, "requires an approval"),
    ({"requires_approval": True, "read_only": True}, {}, Ask, "requires an approval"),
    ({"threat_level": "high"}, {}, Ask, "threat level"),
    ({"threat_level": "medium"}, {}, Allow, ""),
    ({"allowed_roles": ["admin"]}, {}, Deny, "admin"),
    ({}, {"repaired": True}, Ask, "repaired"),
    ({"read_only": True}, {"repaired": True}, Allow, ""),
    ({}, {"schema": False, "mode": "full"}, Allow, ""),
    ({}, {"schema": False, "mode": "human-approval"}, Ask, "human-approval"),
    ({"read_only": True}, {"schema": False, "mode": "human-approval"}, Ask, "human-approval"),
    ({}, {"schema": False, "mode": "read-only"}, Ask, "read-only"),
    ({"read_only": True}, {"schema": False, "mode": "read-only"}, Allow, ""),
]


@pytest.mark.parametrize(("marks", "how", "kind", "reason"), STANDARD)
def test_the_standard_policy(
    marks: AnnotationOptions, how: dict[str, Any], kind: type, reason: str
) -> None:
    decision = standard(hydrated(marks, **how), PolicyContext(ANONYMOUS, RunTally()))
    assert isinstance(decision, kind)
    assert reason in decision.reason
    assert decision.policy == "standard"


def test_after_untrusted_content_side_effects_ask() -> None:
    context = PolicyContext(ANONYMOUS, RunTally(tainted=True))
    assert isinstance(standard(hydrated({}), context), Ask)
    assert isinstance(standard(hydrated({"read_only": True}), context), Allow)


def allows(_call: Hydrated, _context: PolicyContext) -> Allow:
    return Allow("fine", "allows")


def asks(_call: Hydrated, _context: PolicyContext) -> Ask:
    return Ask("hm", "asks")


def denies(_call: Hydrated, _context: PolicyContext) -> Deny:
    return Deny("no", "denies")


def gives_nothing(_call: Hydrated, _context: PolicyContext) -> Any:
    return None


@pytest.mark.parametrize(
    ("policies", "winner"),
    [
        ([allows], "standard"),
        ([allows, asks], "asks"),
        ([asks, allows], "asks"),
        ([asks, denies], "denies"),
        ([denies, asks], "denies"),
        ([gives_nothing], "gives_nothing"),
    ],
)
def test_the_strictest_wins_whatever_the_order(policies: list[Policy], winner: str) -> None:
    decision = decide([standard, *policies], hydrated({}), PolicyContext(ANONYMOUS, RunTally()))
    assert decision.policy == winner


def test_a_role_check_that_passes_does_not_drop_an_approval() -> None:
    context = PolicyContext(Caller("root", ("admin",)), RunTally())
    decision = decide([standard, require_roles("admin")], hydrated({"safe": False}), context)
    assert isinstance(decision, Ask)


def test_deny_by_default_and_roles() -> None:
    context = PolicyContext(ANONYMOUS, RunTally())
    assert isinstance(deny_by_default(allow=["subject"])(hydrated({}), context), Allow)
    assert isinstance(deny_by_default(allow=["other"])(hydrated({}), context), Deny)
    assert isinstance(require_roles("admin")(hydrated({}), context), Deny)


@pytest.mark.parametrize(
    ("limits", "tally", "denied"),
    [
        ({"calls": 2}, RunTally(calls=1), False),
        ({"calls": 2}, RunTally(calls=2), True),
        ({"cost": 1.0}, RunTally(cost=0.5), False),
        ({"cost": 1.0}, RunTally(cost=0.6), True),
        ({"seconds": 1e9}, RunTally(started=0), False),
        ({"seconds": 0}, RunTally(started=0), True),
    ],
)
def test_a_budget(limits: dict[str, Any], tally: RunTally, denied: bool) -> None:
    decision = budget(**limits)(hydrated({"cost": 0.5}), PolicyContext(ANONYMOUS, tally))
    assert isinstance(decision, Deny) is denied
    if isinstance(decision, Deny):
        assert decision.code is ErrorCode.BUDGET_EXCEEDED


async def test_calls_of_one_reply_cannot_share_the_last_allowance() -> None:
    @tool(visible=ALL)
    async def spend() -> str:
        """Spend."""
        return "spent"

    runner = ToolRunner([spend], policy=budget(calls=1))
    outcomes = await runner.exec_all(ToolCall(f"c{n}", "", "spend", "{}") for n in range(3))
    assert [outcome.record.status for outcome in outcomes] == ["completed", "failed", "failed"]


def test_a_wrong_annotation_is_named() -> None:
    with pytest.raises(DefinitionError, match="threat_level"):
        hydrated({"threat_level": "enormous"})  # type: ignore[typeddict-item]
