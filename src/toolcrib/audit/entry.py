"""The values of the audit log."""

from __future__ import annotations

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.values.record import RecordStatus, ToolInvocationRecord
from toolcrib.values.typed import check_fields

FORMAT = 2  # of logs that are begun now; 1 has neither a sealed start nor a sealed tail


class AuditEntry(msgspec.Struct, frozen=True):
    """One record as it was written: number `seq` in the log, `at` in seconds since the epoch.

    `hash` is over all of it and over `previous`, the hash of the entry before. An entry is `intact` if
    that is so: else somebody changed it, or the log has another key than the one it is read with.
    Whether entries are missing, and what a recomputed hash hides, only `AuditLog.verify` says.
    """

    seq: int
    at: float
    record: ToolInvocationRecord
    previous: str
    hash: str
    intact: bool = True


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which entries: all that is given must hold; None is anything.

    `since` (inclusive) and `until` (exclusive) are about the time an entry was written, in seconds
    since the epoch. `after` is the `seq` to go on behind. With `newest`, the newest come first. With
    `latest`, that a call was planned or started, or waits, or that somebody did not know its outcome,
    is left out where the log knows more of it: what is left of these are the calls that have not
    ended, as far as the log knows.
    """

    run_id: str | None = None
    call_id: str | None = None
    tool: str | None = None
    caller: str | None = None
    status: RecordStatus | None = None
    code: ErrorCode | None = None
    since: float | None = None
    until: float | None = None
    after: int = 0
    limit: int | None = None
    newest: bool = False
    latest: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


EVERYTHING = AuditFilter()


class Head(msgspec.Struct, frozen=True):
    """The last entry's number and hash; 0 and zeros for an empty log. Kept elsewhere, it is proof
    that everything up to there is as it was."""

    seq: int
    hash: str


class Fault(msgspec.Struct, frozen=True):
    """The first thing that is wrong, and at which entry, where that can be told."""

    seq: int | None
    what: str


class Verification(msgspec.Struct, frozen=True):
    """What a check of the whole log came to: `checked` entries are in order, up to the fault.

    `head` is the last of them. `torn` says that the last line of an export was cut. A log of `format`
    1 says neither where it begins nor where it ends: entries can be missing there unseen.
    """

    checked: int
    head: Head
    fault: Fault | None = None
    torn: bool = False
    format: int = FORMAT

    @property
    def ok(self) -> bool:
        return self.fault is None

    @property
    def sealed(self) -> bool:
        """Whether it is known that nothing is missing at the start and at the end."""
        return self.ok and self.format > 1 and not self.torn
