"""The standard policy: what every runner applies, whatever else it is given.

Roles deny. What is marked as risky, what nobody checked, what somebody else may have steered and what
was doubtful in how the call arrived asks. A doubt stands in the call's notes (`_DOUBTS`); about a tool
that only reads it does not ask. Who approved a tool for the whole run is not asked again for what the
tool is, or for what the run has read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from toolcrib.errors import ToolcribError
from toolcrib.values.call import Hydrated
from toolcrib.values.context import PolicyContext, RunTally
from toolcrib.values.decision import Allow, Ask, Decision, Deny
from toolcrib.values.definition import ToolDefinition

ALLOWED: Final = Allow("nothing about this tool asks for more", "standard")

_DOUBTS: Final = {
    "written_in_text": (
        "the call was written in the text of the reply, and this model's text calls are not trusted"
    ),
    "empty_arguments": "the reply had no arguments for it, and the tool has parameters",
    "streamed_otherwise": "its arguments were streamed otherwise than they arrived in the end",
}
"""The notes on a call that ask for a person, and what that person is told."""


class Standard(msgspec.Struct, frozen=True):
    """The standard policy as a value: give a runner another one to change what it may be told.

    A call whose arguments were repaired asks. With `repaired_reads="allow"` it does not if its tool
    is marked as read-only. Raises ToolcribError for any other word.
    """

    repaired_reads: Literal["ask", "allow"] = "ask"

    def __post_init__(self) -> None:
        if self.repaired_reads not in ("ask", "allow"):
            raise ToolcribError("repaired_reads is 'ask' or 'allow'")

    def always_allows(self, definition: ToolDefinition) -> bool:
        """Whether nothing about a tool itself asks or denies, whoever calls it.

        A call of it may still ask, for what was doubtful in how it arrived.
        """
        marks = definition.annotations
        return (
            marks.safe
            and not marks.requires_approval
            and not marks.allowed_roles
            and marks.threat_level != "high"
            and definition.no_schema_mode is None
        )

    def denies(self, definition: ToolDefinition, context: PolicyContext) -> Deny | None:
        """Whether the tool is for others than this caller: a `ForeseeingPolicy`."""
        roles = definition.annotations.allowed_roles
        if not roles or not set(roles).isdisjoint(context.caller.roles):
            return None
        return Deny(f"it needs one of the roles {', '.join(roles)}", "standard")

    def __call__(self, hydrated: Hydrated, context: PolicyContext) -> Decision:
        definition = hydrated.definition
        marks = definition.annotations
        denied = self.denies(definition, context) if marks.allowed_roles else None
        if denied is not None:
            return denied
        if (
            self.always_allows(definition)
            and not hydrated.provenance.repaired
            and not hydrated.provenance.notes
            and not (context.run.tainted and not marks.read_only)
        ):
            return ALLOWED  # the path of most calls; what follows says why not
        reasons = "; ".join(self._reasons(hydrated, context))
        return Ask(reasons, "standard") if reasons else ALLOWED

    def _reasons(self, hydrated: Hydrated, context: PolicyContext) -> Iterator[str]:
        """All of them: whoever is asked has to know of the repair, not only of the tool's marks."""
        marks, mode = hydrated.definition.annotations, hydrated.definition.no_schema_mode
        risky = context.run.tainted and not marks.read_only
        approved = (marks.requires_approval or risky) and context.run.approval_of(
            hydrated.definition.digest, context.caller.id
        )
        if marks.requires_approval and not approved:
            yield "the tool requires an approval"
        if not marks.safe:
            yield "the tool is marked as not safe"
        if marks.threat_level == "high":
            yield "the tool's threat level is high"
        if mode == "human-approval" or (mode == "read-only" and not marks.read_only):
            yield f"its arguments were not checked, and its mode is {mode}"
        if hydrated.provenance.repaired and not (
            marks.read_only and self.repaired_reads == "allow"
        ):
            yield "its arguments were repaired"
        if not marks.read_only:
            yield from _doubts(hydrated)
        if risky and not approved:
            yield "the run has read untrusted content, and this tool may have side effects"


def spared_for_run(definition: ToolDefinition, run: RunTally, caller: str) -> bool:
    """Whether a yes for the run would end what the standard policy asks about a tool itself."""
    marks = definition.annotations
    if run.approval_of(definition.digest, caller):
        return False  # somebody said it already: what asks now is another matter
    asked_anyway = (
        not marks.safe or marks.threat_level == "high" or definition.no_schema_mode is not None
    )
    return not asked_anyway and (marks.requires_approval or (run.tainted and not marks.read_only))


def _doubts(hydrated: Hydrated) -> Iterator[str]:
    """Say what was doubtful in how the call arrived, and was not said to be harmless."""
    notes = hydrated.provenance.notes
    for note, reason in _DOUBTS.items():
        harmless = (note == "written_in_text" and "text_call_trusted" in notes) or (
            note == "empty_arguments" and hydrated.definition.parameterless
        )
        if note in notes and not harmless:
            yield reason


standard: Final = Standard()
