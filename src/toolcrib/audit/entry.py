"""An entry of the audit log: the values, text and columns of its row, and the hash that seals it.

Rule: each entry seals the one before, and one seal covers everything that the log says about
itself.

An entry's hash is the SHA-256 of the RFC 8785 text of `{"at", "previous", "record", "seq"}`, in
hexadecimal; with a key it is the HMAC-SHA256 (RFC 2104). A plain chain proves nothing against
somebody who can write to the database, because it can be recomputed from any entry on. A key kept
out of the database, or a head or checkpoint kept elsewhere, makes that visible.

A log of format 2 begins with a genesis, entry 0, which has the format and the log's random id. The
seal of its `State` covers where it begins and ends, the index of its idempotency keys and the tree
of its entries: nothing else in the database counts unless it leads up to that seal. In format 1
only the last entry was sealed.

A seal does not say that it is the newest: an older copy of the database has a valid seal, too. So a
`Seal` remembers the newest state that was committed while the log is open; later states must follow
from it.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, get_args

import msgspec

from toolcrib.errors import ErrorCode, SourceError, ToolcribError
from toolcrib.storage import storable
from toolcrib.threads import renew_in_children
from toolcrib.values.json import (
    SHORTEST_KEY,
    canonical_bytes,
    canonical_json,
    fresh,
    sha256_hex,
)
from toolcrib.values.record import (
    NO_JSON,
    Attachment,
    AttachmentKind,
    RecordStatus,
    ToolInvocationRecord,
)
from toolcrib.values.run import RunRecord
from toolcrib.values.typed import HandWritten

FORMAT = 2  # the format of new logs; 1 has neither a sealed start nor a sealed tail


class AuditEntry(msgspec.Struct, frozen=True):
    """Holds one record as it was written: number `seq` in the log, `at` in seconds since the epoch.

    `hash` covers all of it and `previous`, the hash of the entry before. An entry is `intact` if
    that hash is right; otherwise somebody changed it, or the log is being read with another key.
    Only `AuditLog.verify` tells whether entries are missing, and finds what a recomputed hash
    hides.
    """

    seq: int
    at: float
    record: ToolInvocationRecord
    previous: str
    hash: str
    intact: bool = True


class AuditFilter(HandWritten, frozen=True, kw_only=True):
    """Says which entries are wanted: everything that is given must hold; None matches anything.

    `since` (inclusive) and `until` (exclusive) are about the time an entry was written, in seconds
    since the epoch. `after` is the `seq` after which to continue. With `newest`, the newest come
    first. With `latest`, entries saying that a call was planned or started, waits, or has an
    unknown outcome are left out if the log knows more about the call. Those that remain are calls
    that have not ended, as far as the log knows. Raises ToolcribError for a limit below 0.
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
        super().__post_init__()
        if self.limit is not None and self.limit < 0:
            raise ToolcribError("AuditFilter: limit is a number from 0, or None")


EVERYTHING = AuditFilter()


class Head(msgspec.Struct, frozen=True):
    """The last entry's number and hash; 0 and zeros for an empty log.

    Kept elsewhere, it proves that everything up to that entry is unchanged.
    """

    seq: int
    hash: str


class Fault(msgspec.Struct, frozen=True):
    """Says what the first error of a log is, and at which entry; None if that is not known."""

    seq: int | None
    what: str


class Verification(msgspec.Struct, frozen=True):
    """The result of checking a whole log: `checked` entries are in order, up to the fault.

    `head` is the last of them. `torn` says that the last line of an export was cut. A log of
    `format` 1 says neither where it begins nor where it ends, so entries missing there go
    unnoticed.
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
        """Whether it is known that nothing is missing at the start or at the end."""
        return self.ok and self.format > 1 and not self.torn


GENESIS = Head(0, "0" * 64)  # what the first entry of format 1 follows; the head of an empty log
NOTHING = Head(-1, "0" * 64)  # what a genesis follows


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a log says about itself: its last entry and, from format 2 on, the rest.

    `first` is the number of the entry that is leaf 0 of the tree, `root` the hash of the tree over
    all entries since then (`tree`), and `keys` the hash of the index of idempotency keys (`index`).
    """

    head: Head
    format: int = FORMAT
    log: str = ""
    first: int = 0
    keys: str = ""
    root: str = ""

    @property
    def size(self) -> int:
        """How many leaves the tree has."""
        return self.head.seq - self.first + 1

    def members(self) -> dict[str, Any]:
        """Return what the seal covers, as JSON."""
        head = {"hash": self.head.hash, "seq": self.head.seq}
        if self.format == 1:
            return head
        members = msgspec.structs.asdict(self) | head
        del members["head"]
        return members


class _Remembered(NamedTuple):
    """A state, the edge of its tree, and the number of the log's oldest entry; None if unknown."""

    state: State
    edge: Mapping[Any, bytes] | None = None
    oldest: int | None = None


class Seal:
    """Hashes texts, with the log's key if it has one."""

    def __init__(self, key: str | bytes | None) -> None:
        if key is not None and not key:
            raise ToolcribError("the audit log's key is empty, so anybody could use it")
        # an environment variable may hold bytes that are not text: these very bytes are the key
        self._key = key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key
        self.known: dict[str, Any] = {}  # nodes sealed or checked before, by hash: see `index`
        self.newest: dict[
            str, State
        ] = {}  # by log, among all committed states that were read or written
        self._sealed: tuple[State | None, str] = (None, "")  # the last one that was asked for
        self.others_wrote = False  # whether others have written since this one did
        self._last: _Remembered | None = None  # the last one that was written here
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Make a new lock in a forked child, where another thread's lock would stay locked."""
        self._lock = threading.Lock()

    def check_new(self) -> None:
        """Raise SourceError if the key is too short for a new log; old logs may keep such a key."""
        if self._key is not None and len(self._key) < SHORTEST_KEY:
            raise SourceError(
                f"the audit log's key is at least {SHORTEST_KEY} random bytes, such as 32"
            )

    def __call__(self, text: str | bytes) -> str:
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        if self._key is None:
            return hashlib.sha256(data).hexdigest()
        return hmac.digest(self._key, data, "sha256").hex()

    def remember(
        self, state: State, edge: Mapping[Any, bytes] | None = None, oldest: int | None = None
    ) -> None:
        """Remember a committed state, unless a newer one is remembered.

        For a state that was written here, also remember the `edge` of its tree, and the number of
        the oldest entry if that is known.
        """
        with self._lock:
            newest = self.newest.get(state.log)
            if newest is None or state.head.seq > newest.head.seq:
                self.newest[state.log] = state
                self._last = _Remembered(state, edge, oldest)

    def remembered(self, state: State) -> _Remembered:
        """Return what is remembered of a state, if it was remembered last."""
        known = self._last
        return _Remembered(state) if known is None or known.state != state else known

    def subkey(self, purpose: str) -> bytes | None:
        """Return a key for another purpose, derived from the log's key; None without a key.

        What it makes can never pass for a seal, because all sealed texts begin with a brace.
        """
        if self._key is None:
            return None
        return hmac.digest(self._key, f"toolcrib {purpose}".encode(), "sha256")

    def entry(self, previous: Head, at: float, record: str) -> Head:
        """Return the head that an entry makes after `previous`; `record` is its canonical text."""
        number = previous.seq + 1
        return Head(number, self(_members(number, at, previous.hash, record, "")))

    def fits(self, row: tuple[Any, ...]) -> bool:
        """Return whether an entry's hash fits its row (number, time, text, previous hash, hash)."""
        seq, at, text, previous, hash_ = row
        try:
            return bool(self.entry(Head(seq - 1, previous), at, text).hash == hash_)
        except (TypeError, ValueError):
            return False

    def fits_state(self, state: State, sealed: str) -> bool:
        """Return whether a seal covers that state and was made with this key."""
        try:
            return self.state(state) == sealed
        except (TypeError, ValueError):
            return False

    def state(self, state: State) -> str:
        """Return the seal of a state, which only a holder of the key can make.

        It says that this is the whole log. Raises TypeError or ValueError if something in the state
        is not JSON.
        """
        known, sealed = self._sealed
        if known == state:
            return sealed
        members = state.members()
        plain = {int, str}.issuperset(map(type, members.values()))  # the usual case
        sealed = self(_sorted(members) if plain else canonical_json(members))
        self._sealed = state, sealed
        return sealed


def line(head: Head, at: float, previous: str, record: str) -> str:
    """Return an entry as one line of an export: RFC 8785 text.

    Without its `hash`, it is the text that was hashed.
    """
    return _members(head.seq, at, previous, record, f'"hash":"{head.hash}",')


def leaf(seq: int, at: float, record: str) -> str:
    """Return an entry as a leaf of the tree: RFC 8785 text, without the links of the chain."""
    return f'{{"at":{_seconds(at)},"record":{record},"seq":{seq}}}'


def _members(seq: int, at: float, previous: str, record: str, hash_member: str) -> str:
    return f'{{"at":{_seconds(at)},{hash_member}"previous":"{previous}","record":{record},"seq":{seq}}}'


@lru_cache(maxsize=1024, typed=True)  # each is written twice
def _seconds(at: float) -> str:
    """Write a time as RFC 8785 does; for present-day times `repr` does that faster."""
    as_repr = at.__class__ is float and 1.0 < at < 1e15 and not at.is_integer()
    return repr(at) if as_repr else canonical_json(at)


ENTRY = "seq, at, record, previous, hash"
COLUMNS = ("run_id", "call_id", "idempotency_key", "tool", "caller", "status", "code")
ROW = ", ".join((ENTRY, *COLUMNS))
PRUNED, BEGUN = "pruned", "genesis"  # the statuses of entries about the log itself
ATTACHMENTS: tuple[str, ...] = get_args(AttachmentKind)  # of attachments that records refer to
RUN = "run"  # of a run that has ended, or waits
NO_CALLS = (PRUNED, BEGUN, RUN, *ATTACHMENTS)  # the statuses of entries that are about no call
BEGAN, FINAL, KINDS = 1, 2, 4
ENDED = ("completed", "failed")
UNKNOWN = ErrorCode.OUTCOME_UNKNOWN.value
# What reading a malformed text raises; a text may be nested too deeply.
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
_LONGEST = 200  # characters of a column: PostgreSQL's indexes take some 2,700 bytes for two columns


class Pruned(msgspec.Struct, frozen=True):
    """Replaces the entries that were pruned: up to entry `through`, whose hash is `hash`."""

    through: int
    hash: str
    entries: int
    status: str = PRUNED


class Genesis(msgspec.Struct, frozen=True):
    """The first entry of a log of this format, with the log's random id.

    If an older log was migrated, `through` is the last entry before that, `hash` its hash, and
    `first` the oldest entry that was there.
    """

    log: str
    format: int
    first: int = 0
    through: int = -1
    hash: str = ""
    status: str = BEGUN


class _Error(msgspec.Struct, frozen=True):
    code: str


class Summary(msgspec.Struct, frozen=True):
    """The part of a record's text that its columns repeat."""

    id: str = ""
    name: str = ""
    status: str = ""
    run_id: str = ""
    caller: str = ""
    idempotency_key: str = ""
    error: _Error | None = None

    @property
    def code(self) -> str:
        return "" if self.error is None else self.error.code


def _plain(value: object) -> Any:
    """Return a string of a subclass (a framework's, an enum's) as a plain string."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, msgspec.Raw):
        return fresh(bytes(value))
    raise TypeError


# msgspec writes canonical text, 20 times faster, with these exceptions: the order of keys beyond
# ASCII (a call's record has no keys but the names of its fields), whole floats (1.0) and floats
# with an exponent, and NaN, which it writes as null.
_sorted = msgspec.json.Encoder(order="sorted", enc_hook=_plain).encode
_EXPONENT = re.compile(rb"e[+-]?[0-9]+[,}\]]")
_WHOLE = re.compile(rb"\.0[,}\]]")
# Each reads the text of its kind, and raises one of UNREADABLE for anything else.
summary_of = msgspec.json.Decoder(Summary).decode
pruned_of = msgspec.json.Decoder(Pruned).decode
genesis_of = msgspec.json.Decoder(Genesis).decode
_decode_record = msgspec.json.Decoder(ToolInvocationRecord).decode
_decode_attachment = msgspec.json.Decoder(Attachment).decode
_decode_run = msgspec.json.Decoder(RunRecord).decode
StoredRecord: TypeAlias = ToolInvocationRecord | Pruned | Genesis | Attachment | RunRecord
_DECODERS: dict[type, Any] = {
    ToolInvocationRecord: _decode_record,
    Pruned: pruned_of,
    Genesis: genesis_of,
    Attachment: _decode_attachment,
    RunRecord: _decode_run,
}


def check_arguments(record: ToolInvocationRecord) -> None:
    """Raise ValueError if a record's arguments are not an object."""
    if record.arguments_json != NO_JSON and bytes(record.arguments_json)[:1] != b"{":
        raise ValueError("arguments are no object")


def text_and_record(record: StoredRecord) -> tuple[str, StoredRecord]:
    """Return the RFC 8785 text of a record, and the record that is read from it.

    Raises SourceError if the record holds something that is not JSON, or does not fit a record.
    """
    try:
        text = _sorted(record)
        if _may_differ(record, text):
            text = canonical_json(msgspec.to_builtins(record, enc_hook=_plain)).encode()
        known: StoredRecord = _DECODERS[type(record)](text)
        if isinstance(known, ToolInvocationRecord):
            check_arguments(known)
        return text.decode(), known
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        failure = (
            "a record cannot be kept: it holds something that is not JSON, or that no record has"
        )
    raise SourceError(failure)  # raised outside, without a context that may quote the record


def _may_differ(record: StoredRecord, text: bytes) -> bool:
    """Return whether the RFC 8785 text of a record may differ from msgspec's.

    What a call's record holds as canonical text is only compared with what it should be.
    """
    if not isinstance(record, ToolInvocationRecord):
        return not text.isascii() or _is_doubtful(text)
    if not _is_doubtful(text):
        return False
    parts = (record.arguments_json, record.result_json)
    without_parts = msgspec.structs.replace(record, arguments_json=NO_JSON, result_json=NO_JSON)
    return _is_doubtful(_sorted(without_parts)) or any(
        canonical_bytes(fresh(bytes(part))) != bytes(part) for part in parts
    )


def _is_doubtful(text: bytes) -> bool:
    return bool(b"null" in text or _EXPONENT.search(text) or _WHOLE.search(text))


def summary_of_call(record: ToolInvocationRecord) -> Summary:
    """Return the summary of a call's record that was read from its text."""
    return Summary(
        record.id,
        record.name,
        record.status,
        record.run_id,
        record.caller,
        record.idempotency_key,
        None if record.error is None else _Error(record.error.code.value),
    )


def columns_of(summary: Summary) -> tuple[str, ...]:
    """Return what the columns of a record must say, in the order of COLUMNS."""
    ids = (summary.run_id, summary.id, summary.idempotency_key, summary.name, summary.caller)
    columns = (*ids, summary.status, summary.code)
    joined = "".join(columns)
    if len(joined) <= _LONGEST and joined.isprintable():  # then each is unchanged
        return columns
    return tuple(map(column, columns))


def columns_agree(row: Sequence[Any]) -> bool:
    """Return whether a row's columns agree with its record. No hash covers the columns."""
    try:
        return columns_of(summary_of(row[2])) == tuple(row[5:])
    except (*UNREADABLE, TypeError, ValueError):
        return False


def kind_of(record: Summary | ToolInvocationRecord) -> int:
    """Return what an entry says about its key's call: that it began, its final end, both, or 0.

    Either claims the key. A failed call of a tool that only reads has only its end.
    """
    code = "" if record.error is None else record.error.code
    began = record.status in ("started", "completed")
    return BEGAN * began + FINAL * (record.status in ENDED and code != UNKNOWN)


def column(value: str) -> str:
    """Return the value in a form that every database can hold and index."""
    text = value if value.isprintable() else storable(value)
    return text if len(text) <= _LONGEST else f"{text[:100]}…{sha256_hex(text)}"


def seconds(at: float) -> float:
    """Return the time in a form that every database compares correctly.

    Raises ToolcribError for NaN, which one database takes for NULL and another for later than all, and
    for an integer that no float can hold.
    """
    try:
        found = float(at)
    except OverflowError:
        found = math.nan
    if math.isnan(found):
        raise ToolcribError("NaN is no time, and neither is a number that a float cannot hold")
    return found


def entry_of(row: tuple[Any, ...], *, intact: bool = True) -> AuditEntry:
    """Return the entry of a row of ENTRY. Raises SourceError if it cannot be read."""
    seq, at, text, previous, hash_ = row
    try:
        record = _decode_record(text)
        check_arguments(record)
        return AuditEntry(seq, at, record, previous, hash_, intact)
    except (*UNREADABLE, TypeError, ValueError):
        failure = f"entry {seq} of the audit log cannot be read: verify the log"
    raise SourceError(failure)


def attachment_of(row: tuple[Any, ...]) -> Attachment:
    """Return the attachment of a row (number, text).

    Raises SourceError if it does not have its digest.
    """
    seq, text = row
    with suppress(*UNREADABLE, TypeError, ValueError):
        attachment = _decode_attachment(text)
        if attachment.genuine:
            return attachment
    raise SourceError(f"entry {seq} of the audit log is not as it was written: verify the log")


def run_of(row: tuple[Any, ...]) -> RunRecord:
    """Return the run of a row (number, text). Raises SourceError if it cannot be read."""
    seq, text = row
    with suppress(*UNREADABLE, TypeError, ValueError):
        return _decode_run(text)
    raise SourceError(f"entry {seq} of the audit log cannot be read: verify the log")
