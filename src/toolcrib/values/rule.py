"""Rules: somebody's yes to calls like the one that they were asked about, until it is revoked.

A rule speaks for the very definition, the very caller, and arguments of which those that it closes are
the same canonical JSON as when it was given. It is signed: whoever can write where it is kept, and has
no key, can neither make one nor widen one. Of secret arguments it has a keyed digest, which nobody can
try out without the key.

Rule: it answers what somebody was asked, and no more. It does not speak for what other policies ask
than those that asked then, for a run that has read untrusted content if that one had not, or for a call
whose arrival leaves a doubt (about those no rule is offered).
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterable
from typing import ClassVar, Protocol, runtime_checkable

import msgspec

from toolcrib.errors import ApprovalError
from toolcrib.values.decision import Always, ApprovalRequest
from toolcrib.values.json import (
    JsonObject,
    Veiled,
    canonical_json,
    fresh,
    keyed_digest,
    sha256_hex,
    to_plain,
)


class CallToApprove(Veiled, msgspec.Struct, frozen=True):
    """A call that somebody has to approve, as rules look at it.

    `secrets` are the arguments that the request has masked, `unlike` the places of defaults of which
    only the type is shown.
    """

    veiled: ClassVar[tuple[str, ...]] = ("secrets",)

    request: ApprovalRequest
    secrets: JsonObject
    unlike: tuple[str, ...]


class ApprovalRule(Veiled, msgspec.Struct, frozen=True, kw_only=True):
    """Somebody's yes to calls of a tool by a caller, given as the answer to `approval_id`.

    `closed` is the canonical JSON of the arguments that have to be the same, secret ones masked; those
    that are `open` may have any value. Times are in seconds since the epoch; without `expires_at` it
    holds until it is revoked. `within` are the agents around the call, by the names of their tools.
    """

    veiled: ClassVar[tuple[str, ...]] = ("closed",)

    id: str
    tool: str
    caller: str
    definition_digest: str
    closed: str
    open: tuple[str, ...]
    by: str
    given_at: float
    expires_at: float | None
    approval_id: str
    within: tuple[str, ...]
    asked_by: tuple[str, ...]
    untrusted: bool
    unlike: tuple[str, ...]
    secrets_mac: str

    @property
    def arguments(self) -> JsonObject:
        """The arguments that have to be the same, secret ones masked."""
        return fresh(self.closed)

    @property
    def title(self) -> str:
        """The tool, behind the agents that want to call it: `research > refund`."""
        return " > ".join([*self.within, self.tool])

    def expired(self) -> bool:
        return self.expires_at is not None and time.time() >= self.expires_at


def rule_id_of(approval_id: str) -> str:
    """Return the id of the rule that an answer to this question gives, whenever it is taken."""
    return f"rule_{sha256_hex(approval_id)[:40]}"


def rule_from(
    asked: CallToApprove, always: Always, by: str, key: bytes, *, given_at: float
) -> ApprovalRule:
    """Return the rule that a yes to this call makes. Raises ApprovalError as `check_open` does."""
    request = asked.request
    check_open(always.open, request, asked.secrets)
    opened = tuple(sorted({*always.open}))
    return ApprovalRule(
        id=rule_id_of(request.id),
        tool=request.tool,
        caller=request.caller,
        definition_digest=request.definition_digest,
        closed=_without(request.arguments, opened),
        open=opened,
        by=by,
        given_at=given_at,
        expires_at=None if always.seconds is None else given_at + always.seconds,
        approval_id=request.id,
        within=tuple(outer.tool for outer in request.within),
        asked_by=request.asked_by,
        untrusted=request.untrusted,
        unlike=_closed_places(asked.unlike, opened),
        secrets_mac=_mac(asked.secrets, request.id, key),
    )


def speaks_for(rule: ApprovalRule, asked: CallToApprove, key: bytes) -> bool:
    """Return whether the rule speaks for a call."""
    request = asked.request
    return (
        not rule.expired()
        and request.always
        and rule.definition_digest == request.definition_digest
        and (rule.tool, rule.caller) == (request.tool, request.caller)
        and rule.within == tuple(outer.tool for outer in request.within)
        and request.arguments.keys() >= set(rule.open)
        and rule.closed == _without(request.arguments, rule.open)
        and rule.unlike == _closed_places(asked.unlike, rule.open)
        and hmac.compare_digest(rule.secrets_mac, _mac(asked.secrets, rule.approval_id, key))
        and set(request.asked_by) <= set(rule.asked_by)
        and rule.untrusted >= request.untrusted
    )


def signature_of(rule: ApprovalRule, key: bytes) -> str:
    """Return the signature over all of it."""
    return keyed_digest(key, "approval rule", canonical_json(to_plain(rule)))


def check_open(names: Iterable[str], request: ApprovalRequest, secrets: Iterable[str]) -> None:
    """Raise ApprovalError unless these are arguments of the call that may be left open: not secret
    ones, which nobody was shown."""
    for name in names:
        if name not in request.arguments:
            raise ApprovalError(f"the call has no argument '{name}' that could be left open")
        if name in secrets:
            raise ApprovalError(f"'{name}' is secret, and cannot be left open: nobody is shown it")


def _without(arguments: JsonObject, names: Iterable[str]) -> str:
    return canonical_json({n: v for n, v in arguments.items() if n not in set(names)})


def _closed_places(places: Iterable[str], opened: Iterable[str]) -> tuple[str, ...]:
    """Return the JSON Pointers that lead into no argument that is open."""
    heads = {"/" + name.replace("~", "~0").replace("/", "~1") for name in opened}
    closed = (place for place in places if "/" + place[1:].partition("/")[0] not in heads)
    return tuple(sorted(closed))


def _mac(secrets: JsonObject, approval_id: str, key: bytes) -> str:
    text = canonical_json(secrets)
    return keyed_digest(key, "secret arguments of an approval rule", approval_id, text)


class KeptRule(msgspec.Struct, frozen=True):
    """A rule as it is kept; None where what is kept is not what was signed."""

    id: str
    rule: ApprovalRule | None


@runtime_checkable
class KeepsRules(Protocol):
    """Keeps rules where several processes can ask for them, and where who has given them can look at
    them and revoke them. `toolcrib.approvals.ApprovalStore` does."""

    @property
    def keeps_rules(self) -> bool:
        """Whether it can: it has a key to sign them with."""
        ...

    async def rule_for(self, asked: CallToApprove, /) -> ApprovalRule | None:
        """Return a rule that speaks for a call, unless somebody was asked about this call before.

        Raises ApprovalError, `invalid_rule`, where a rule for the tool and the caller is not as it was
        signed.
        """
        ...

    async def keep_rule(
        self, asked: CallToApprove, always: Always, by: str, /
    ) -> ApprovalRule | None:
        """Keep the rule that a yes to a call makes, and return it; None if it has lapsed by now, or was
        revoked.

        It is one for what was asked, and lasts from when that was answered (`always.given_at`, if it is
        known), also where its run goes on once more and it is kept again. Raises ApprovalError.
        """
        ...

    async def rules(self, *, caller: str | None = None) -> list[KeptRule]:
        """Return all rules, or those that are for one caller (by its id)."""
        ...

    async def revoke(self, rule_id: str, *, caller: str | None = None) -> None:
        """Forget a rule, or with a `caller` one that is for that caller. Raises ApprovalError,
        `unknown_approval`, if there is none."""
        ...
