"""What an author trusts of imported tools.

A definition from a file or a server was written by somebody else. Whatever it claims, calls of its
tool need approval and its results taint the run, until the author trusts exactly that definition.
Rule: trust is bound to a tool's name and its definition's digest, so that another definition under
the same name is not trusted. The publisher's claims (hints) can only make a tool stricter. The
digest covers them, and everything else that toolcrib reads from the definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from toolcrib.errors import DefinitionError
from toolcrib.failures import SafeLogger
from toolcrib.values.definition import Annotations, ToolDefinition
from toolcrib.values.typed import HandWritten, got_type

_LOGGER = SafeLogger("toolcrib.tools")

TrustName: TypeAlias = Literal["read_only", "trusted"]
ClaimName: TypeAlias = Literal["read_only"]


class ReadOnly(HandWritten, frozen=True):
    """The author has read the definition: the tool only reads, and runs without asking.

    `digest` is the digest of the definition that was read (`toolcrib tools show` prints it). If it
    is left out, it is looked up in the lock file. The tool's results still taint the run, unless
    `untrusted_output=False`.
    """

    digest: str = ""
    untrusted_output: bool = True


class Trusted(HandWritten, frozen=True):
    """The author has read the definition: the tool may run without asking, including its effects.

    `digest` and `untrusted_output` are as in `ReadOnly`.
    """

    digest: str = ""
    untrusted_output: bool = True


Trust: TypeAlias = ReadOnly | Trusted
Trusts: TypeAlias = Mapping[str, Trust]


class Pins(Protocol):
    """Knows the digests of imported definitions that somebody has read, as a `Lock` does."""

    def origins(self) -> frozenset[str]: ...


class Imported(NamedTuple):
    """Remembers what an imported tool was before anybody trusted it.

    `definition` is the one that needs approval. `brought` is what was imported, with all its
    claims, regardless of its handler and its marks here. `own` are the marks that hold once it is
    trusted. `trust` is the author's trust, in force or lapsed.
    """

    definition: ToolDefinition
    brought: ToolDefinition
    own: Annotations
    trust: TrustName | Literal[""] = ""

    @property
    def origin(self) -> str:
        """The digest that trust is bound to."""
        return self.brought.digest

    @property
    def claims(self) -> ClaimName | Literal[""]:
        """The publisher's claim that nothing enforces, for whoever decides to trust the tool."""
        return "read_only" if self.brought.annotations.read_only else ""

    def otherwise(self) -> str:
        """Return the digest that the definition would have with the opposite read-only claim."""
        annotations = self.brought.annotations
        opposite = msgspec.structs.replace(annotations, read_only=not annotations.read_only)
        return msgspec.structs.replace(self.brought, annotations=opposite).digest


def trusted_by(
    definition: ToolDefinition, imported: Imported | None, trust: Trust, pins: Pins | None
) -> tuple[ToolDefinition, Imported]:
    """Return the definition as the author trusts it, if its digest is the one that was read.

    If it is not, the trust has lapsed: the tool asks as before anybody trusted it, whatever earlier
    trust was in force, and a warning is logged. Raises DefinitionError for a tool that was not
    imported, for a wrong kind of trust, and for trust without a digest if there is no lock to look
    it up.
    """
    name = definition.name
    if not isinstance(trust, ReadOnly | Trusted):
        raise DefinitionError(f"trust in '{name}' is ReadOnly() or Trusted(); {got_type(trust)}")
    if imported is None:
        raise DefinitionError(f"'{name}' was not imported: mark it where it is defined")
    if not trust.digest and pins is None:
        raise DefinitionError(
            f"trust in '{name}' needs the digest of the definition that you read: "
            'ReadOnly("sha256:…"), which `toolcrib tools show` prints, or lock= with the lock file '
            "that has it"
        )
    updated = imported._replace(trust="read_only" if isinstance(trust, ReadOnly) else "trusted")
    read_digests = {trust.digest} if trust.digest or pins is None else pins.origins()
    if imported.origin not in read_digests:
        _LOGGER.warning(
            "trust in '%s' has lapsed: its definition differs from the one that was read (it is %s)%s",
            name,
            imported.origin,
            _claim_note(imported) if imported.otherwise() in read_digests else "",
        )
        return imported.definition, updated
    own_annotations = imported.own
    annotations = msgspec.structs.replace(
        own_annotations,
        read_only=own_annotations.read_only or isinstance(trust, ReadOnly),
        untrusted_output=own_annotations.untrusted_output or trust.untrusted_output,
    )
    return msgspec.structs.replace(definition, annotations=annotations), updated


def _claim_note(imported: Imported) -> str:
    """Return the addition to the warning if the definition differs only in its read-only claim."""
    if imported.claims:
        return (
            ": the only difference is that it claims to read only (readOnlyHint). Earlier versions of "
            "toolcrib left that out of the digest"
        )
    return ": the only difference is that it no longer claims to read only (readOnlyHint)"
