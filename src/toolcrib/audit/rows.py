"""A record as a row: its text, and beside it what one may ask for, made from that text alone."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from typing import Any, TypeAlias, get_args

import msgspec

from toolcrib.audit.entry import AuditEntry
from toolcrib.errors import ErrorCode, SourceError, ToolcribError
from toolcrib.values.json import canonical_json, encodable, sha256_hex
from toolcrib.values.origin import Attachment, AttachmentKind
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.run import RunRecord

ENTRY = "seq, at, record, previous, hash"
COLUMNS = ("run_id", "call_id", "idempotency_key", "tool", "caller", "status", "code")
PRUNED, BEGUN = "pruned", "genesis"  # the statuses of entries that are about the log itself
ATTACHMENTS: tuple[str, ...] = get_args(AttachmentKind)  # of what records refer to
RUN = "run"  # of a run that has ended, or waits
NO_CALLS = (PRUNED, BEGUN, RUN, *ATTACHMENTS)  # the statuses of entries that are about no call
CLAIMS, FINAL, KINDS = 1, 2, 4
ENDED = ("completed", "failed")
UNKNOWN = ErrorCode.OUTCOME_UNKNOWN.value
# What reading a text raises that is not what it should be; a text may be nested too deeply.
UNREADABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
_LONGEST = 200  # characters of a column: PostgreSQL's indexes take some 2,700 bytes of two of them


class Pruned(msgspec.Struct, frozen=True):
    """What stands in place of a record where old entries were removed: up to which one, its hash."""

    through: int
    hash: str
    entries: int
    status: str = PRUNED


class Genesis(msgspec.Struct, frozen=True):
    """What stands in place of a record where a log of this format begins: its format, a random id.

    Where an older log was brought to this format, `through` is the last entry before that, `hash` its
    hash, and `first` the oldest one that was there.
    """

    log: str
    format: int
    first: int = 0
    through: int = -1
    hash: str = ""
    status: str = BEGUN


class _Error(msgspec.Struct, frozen=True):
    code: str


class Told(msgspec.Struct, frozen=True):
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


def _plain(value: object) -> str:
    """Text of a class of its own (a framework's, an enum's) is written as the text that it is."""
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError


# What msgspec writes is canonical, and 20 times faster, but for the order of keys beyond ASCII, for
# floats that are whole (1.0) or have an exponent, and for NaN, which it writes as null.
_sorted = msgspec.json.Encoder(order="sorted", enc_hook=_plain).encode
_EXPONENT = re.compile(rb"e-?[0-9]+[,}\]]")
_WHOLE = re.compile(rb"\.0[,}\]]")
_told = msgspec.json.Decoder(Told)
_record = msgspec.json.Decoder(ToolInvocationRecord)
_pruned = msgspec.json.Decoder(Pruned)
_genesis = msgspec.json.Decoder(Genesis)
_attachment = msgspec.json.Decoder(Attachment)
_run = msgspec.json.Decoder(RunRecord)
Kept: TypeAlias = ToolInvocationRecord | Pruned | Genesis | Attachment | RunRecord
_DECODERS: dict[type, Any] = {
    ToolInvocationRecord: _record,
    Pruned: _pruned,
    Genesis: _genesis,
    Attachment: _attachment,
    RunRecord: _run,
}


def text_of(record: Kept) -> str:
    """The RFC 8785 text. Raises SourceError if the record holds what is not JSON, or not a record's."""
    try:
        text = _sorted(record)
        if not text.isascii() or b"null" in text or _EXPONENT.search(text) or _WHOLE.search(text):
            text = canonical_json(msgspec.to_builtins(record, enc_hook=_plain)).encode()
        _DECODERS[type(record)].decode(text)
        return text.decode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        failure = "a record cannot be kept: it holds what is not JSON, or not a record's"
    raise SourceError(failure)  # out here it carries no context, which may quote the record


def told_of(text: str) -> Told:
    """Raises one of UNREADABLE if it is not a record's text."""
    return _told.decode(text)


def columns_of(told: Told) -> tuple[str, ...]:
    """What the columns of a record have to say, in the order of COLUMNS."""
    named = (told.run_id, told.id, told.idempotency_key, told.name, told.caller)
    return tuple(map(column, (*named, told.status, told.code)))


def kind_of(record: Told | ToolInvocationRecord) -> int:
    """What an entry says of its key: that it is claimed, how it ended for good, both or neither."""
    code = "" if record.error is None else record.error.code
    claims = record.status in ("started", "completed")
    return CLAIMS * claims + FINAL * (record.status in ENDED and code != UNKNOWN)


def column(value: str) -> str:
    """The value as every database can hold and index it: PostgreSQL has no NUL in its texts."""
    text = value if value.isprintable() else encodable(value).replace("\0", "?")
    return text if len(text) <= _LONGEST else f"{text[:100]}…{sha256_hex(text)}"


def seconds(at: float) -> float:
    """The time as every database compares it. Raises ToolcribError for NaN, which one takes for
    NULL and another for later than all."""
    if math.isnan(at):
        raise ToolcribError("NaN is no time")
    return float(at)


def entry_of(row: tuple[Any, ...], *, intact: bool = True) -> AuditEntry:
    """The entry of a row of ENTRY; raises SourceError if nothing can be read there."""
    seq, at, text, previous, own = row
    try:
        return AuditEntry(seq, at, _record.decode(text), previous, own, intact)
    except (*UNREADABLE, TypeError, ValueError):
        failure = f"entry {seq} of the audit log cannot be read: verify the log"
    raise SourceError(failure)


def attached(row: tuple[Any, ...]) -> Attachment:
    """The attachment of a row (number, text); raises SourceError if it is not the one of its digest."""
    seq, text = row
    with suppress(*UNREADABLE, TypeError, ValueError):
        attachment = _attachment.decode(text)
        if attachment.genuine:
            return attachment
    raise SourceError(f"entry {seq} of the audit log is not as it was written: verify the log")


def run_of(row: tuple[Any, ...]) -> RunRecord:
    """The run of a row (number, text); raises SourceError if nothing can be read there."""
    seq, text = row
    with suppress(*UNREADABLE, TypeError, ValueError):
        return _run.decode(text)
    raise SourceError(f"entry {seq} of the audit log cannot be read: verify the log")


def pruned_of(text: str) -> Pruned:
    """Raises one of UNREADABLE if the text is of something else."""
    return _pruned.decode(text)


def genesis_of(text: str) -> Genesis:
    """Raises one of UNREADABLE if the text is of something else."""
    return _genesis.decode(text)
