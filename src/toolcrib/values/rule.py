"""Approval rules: somebody's yes to further calls like the one they were asked about, until revoked.

A rule covers exactly one definition, one caller, and arguments whose closed part is the same
canonical JSON as when the rule was given. It is signed. So write access to the store is not enough
to create or widen a rule without the key. For secret arguments it holds a keyed digest, which
cannot be guessed by trying without the key.

A rule covers what somebody was asked, and no more. It does not cover questions of other policies
than those that asked then. It does not cover a run that has read untrusted content if the original
one had not. It does not cover a call whose arrival leaves a doubt; no rule is offered for those.
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
    Redacted,
    canonical_json,
    escape_pointer,
    fresh,
    keyed_digest,
    sha256_hex,
    to_plain,
)


class CallToApprove(Redacted, msgspec.Struct, frozen=True):
    """A call that somebody has to approve, as rules see it.

    `secrets` are the arguments that the request masks. `unlike` are the places of defaults that are
    shown only by type.
    """

    redacted: ClassVar[tuple[str, ...]] = ("secrets",)

    request: ApprovalRequest
    secrets: JsonObject
    unlike: tuple[str, ...]


class ApprovalRule(Redacted, msgspec.Struct, frozen=True, kw_only=True):
    """Somebody's approval of calls of a tool by a caller, given as the answer to `approval_id`.

    `closed` is the canonical JSON of the arguments that must be the same, with secret ones masked;
    those in `open` may have any value. Times are in seconds since the epoch. Without `expires_at`
    the rule holds until it is revoked. `within` lists the agents around the call, by the names of
    their tools.
    """

    redacted: ClassVar[tuple[str, ...]] = ("closed",)

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
        """The arguments that must be the same, with secret ones masked."""
        return fresh(self.closed)

    @property
    def title(self) -> str:
        """The tool, preceded by the agents that want to call it: `research > refund`."""
        return " > ".join([*self.within, self.tool])

    def expired(self) -> bool:
        return self.expires_at is not None and time.time() >= self.expires_at


def rule_id_of(approval_id: str) -> str:
    """Return the id of the rule that an answer to this question creates, whenever it is used."""
    return f"rule_{sha256_hex(approval_id)[:40]}"


def rule_from(
    call: CallToApprove, always: Always, by: str, key: bytes, *, given_at: float
) -> ApprovalRule:
    """Return the rule that an approval of this call creates. Raises ApprovalError as `check_open`
    does."""
    request = call.request
    check_open(always.open, request, call.secrets)
    opened = tuple(sorted({*always.open}))
    return ApprovalRule(
        id=rule_id_of(request.id),
        tool=request.tool,
        caller=request.caller,
        definition_digest=request.definition_digest,
        closed=_arguments_without(request.arguments, opened),
        open=opened,
        by=by,
        given_at=given_at,
        expires_at=None if always.seconds is None else given_at + always.seconds,
        approval_id=request.id,
        within=tuple(outer.tool for outer in request.within),
        asked_by=request.asked_by,
        untrusted=request.untrusted,
        unlike=_closed_places(call.unlike, opened),
        secrets_mac=_mac(call.secrets, request.id, key),
    )


def speaks_for(rule: ApprovalRule, call: CallToApprove, key: bytes) -> bool:
    """Return whether the rule covers a call."""
    request = call.request
    return (
        not rule.expired()
        and request.always
        and rule.definition_digest == request.definition_digest
        and (rule.tool, rule.caller) == (request.tool, request.caller)
        and rule.within == tuple(outer.tool for outer in request.within)
        and request.arguments.keys() >= set(rule.open)
        and rule.closed == _arguments_without(request.arguments, rule.open)
        and rule.unlike == _closed_places(call.unlike, rule.open)
        and hmac.compare_digest(rule.secrets_mac, _mac(call.secrets, rule.approval_id, key))
        and set(request.asked_by) <= set(rule.asked_by)
        and rule.untrusted >= request.untrusted
    )


def signature_of(rule: ApprovalRule, key: bytes) -> str:
    """Return the signature over the whole rule."""
    return keyed_digest(key, "approval rule", canonical_json(to_plain(rule)))


def check_open(names: Iterable[str], request: ApprovalRequest, secrets: Iterable[str]) -> None:
    """Raise ApprovalError unless all names are arguments of the call that may be left open.

    Secret arguments may not, because nobody was shown them.
    """
    for name in names:
        if name not in request.arguments:
            raise ApprovalError(f"the call has no argument '{name}' that could be left open")
        if name in secrets:
            raise ApprovalError(
                f"'{name}' is secret and cannot be left open, because nobody is shown its value"
            )


def _arguments_without(arguments: JsonObject, names: Iterable[str]) -> str:
    return canonical_json({n: v for n, v in arguments.items() if n not in set(names)})


def _closed_places(places: Iterable[str], opened: Iterable[str]) -> tuple[str, ...]:
    """Return the sorted JSON Pointers that do not lead into an open argument."""
    heads = {f"/{escape_pointer(name)}" for name in opened}
    closed = (place for place in places if "/" + place[1:].partition("/")[0] not in heads)
    return tuple(sorted(closed))


def _mac(secrets: JsonObject, approval_id: str, key: bytes) -> str:
    text = canonical_json(secrets)
    return keyed_digest(key, "secret arguments of an approval rule", approval_id, text)


class KeptRule(msgspec.Struct, frozen=True):
    """A stored rule. The rule is None if the stored data does not match its signature."""

    id: str
    rule: ApprovalRule | None


@runtime_checkable
class KeepsRules(Protocol):
    """Stores rules for several processes, and lets those who gave them inspect and revoke them.

    `toolcrib.approvals.ApprovalStore` does.
    """

    @property
    def keeps_rules(self) -> bool:
        """Whether it can keep rules, which requires a key to sign them."""
        ...

    async def rule_for(self, asked: CallToApprove, /) -> ApprovalRule | None:
        """Return a rule that covers a call, unless somebody was already asked about this call.

        Raises ApprovalError with `invalid_rule` if a rule for the tool and the caller does not
        match its signature.
        """
        ...

    async def keep_rule(
        self, asked: CallToApprove, always: Always, by: str, /
    ) -> ApprovalRule | None:
        """Store and return the rule that an approval creates; None if it has expired or was revoked.

        The rule is for what was asked, and starts when that was answered (`always.given_at`, if
        known), even if the run is resumed and the rule is stored again. Raises ApprovalError.
        """
        ...

    async def rules(self, *, caller: str | None = None) -> list[KeptRule]:
        """Return all rules, or those for one caller (by its id)."""
        ...

    async def revoke(self, rule_id: str, *, caller: str | None = None) -> None:
        """Delete a rule; with `caller`, only a rule for that caller. Raises ApprovalError with
        `unknown_approval` if there is none."""
        ...
