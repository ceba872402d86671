"""Approvals that may be given days later, by another process: kept in a database, used once.

A call is asked about once: its run and its call id are unique among the rows. What comes back with
another request id is another call by now, and is refused, not asked about anew.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from toolcrib.closing import Closing
from toolcrib.errors import ApprovalError, ErrorCode
from toolcrib.runner.approval import checked_answer, differing, mismatch
from toolcrib.storage import OWNERS, Row, SqlDatabase, Transaction
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, Refuse
from toolcrib.values.json import encodable, sha256_hex
from toolcrib.values.typed import names_wrong_types

T = TypeVar("T")

_REQUEST = msgspec.json.Decoder(ApprovalRequest)
_YES_OR_NO: msgspec.json.Decoder[Approve | Refuse] = msgspec.json.Decoder(Approve | Refuse)
_SAVE = """INSERT INTO approvals (id, run_id, call_id, request, expires_at)
    VALUES (:id, :run_id, :call_id, :request, :expires_at) ON CONFLICT DO NOTHING"""
_FIND = "SELECT * FROM approvals WHERE id = :id"
_ASKED = "SELECT * FROM approvals WHERE run_id = :run_id AND call_id = :call_id"
_PENDING = """SELECT * FROM approvals WHERE answer IS NULL AND expires_at > :now
    ORDER BY expires_at, id"""
_USE = "UPDATE approvals SET used_at = :now WHERE id = :id"
_LONGEST = 200  # characters of a column: PostgreSQL's indexes take some 2,700 bytes of two of them
_ANSWER = """UPDATE approvals SET answer = :answer
    WHERE id = :id AND answer IS NULL AND expires_at > :now"""


class ApprovalStore(Closing):
    """An approver that saves each question, and answers it once somebody has: `ApprovalStore(url)`.

    The process that answers needs neither agent nor tools. `url` is SQLAlchemy's, such as
    `sqlite:///crib.db`; whoever may write to that database may approve. A SQLite file that is made is
    its owner's alone, unless `mode` is another one, for a group. All methods raise SourceError if it
    cannot be used, MissingExtraError without SQLAlchemy.
    """

    @names_wrong_types
    def __init__(self, url: str, *, mode: int = OWNERS) -> None:
        self._database = SqlDatabase(url, mode=mode)

    async def __call__(self, request: ApprovalRequest) -> Answer | None:
        """Return the answer; None while there is none. A yes is given out once, a no stays a no.

        A yes is spent when it is given out, before the tool begins: a process that is killed in
        between has spent it, and that call does not run any more. Raises ApprovalError:
        `already_used` if the yes was used before, `approval_expired` if it has lapsed, answered or
        not; `approval_mismatch` if the definition, the caller or the arguments of the call are others
        now, `other_call` if what is stored is about another call.
        """
        return await self._database.transact(lambda t: _take(t, request))

    async def pending(
        self, *, run_id: str | None = None, caller: str | None = None
    ) -> list[ApprovalRequest]:
        """Return the questions that nobody has answered and that have not lapsed, next to lapse first.

        Of one run or one caller (by their ids), if named. Raises ApprovalError if one cannot be read.
        """
        rows = await self._database.read(_PENDING, now=time.time())
        requests = [_stored(row, "request", _REQUEST) for row in rows]
        return [
            request
            for request in requests
            if run_id in (None, request.run_id) and caller in (None, request.caller)
        ]

    async def answer(self, request_id: str, answer: Answer) -> None:
        """Answer a question, for good.

        Raises ApprovalError if it is unknown (`unknown_approval`), lapsed or answered
        (`already_used`), or if this is no answer: an approval without a name, edited arguments that
        are no JSON object.
        """
        await self.answer_all({request_id: answer})

    async def answer_all(self, answers: Mapping[str, Answer]) -> None:
        """Answer several questions by their ids: all of them, or none.

        Raises ApprovalError as `answer` does; it names the question.
        """
        # in one order everywhere: two that answer the same questions cannot wait for each other
        texts = {
            request_id: _text(request_id, answers[request_id]) for request_id in sorted(answers)
        }
        if texts:
            await self._database.transact(lambda t: _answer_each(t, texts))

    async def aclose(self) -> None:
        """Close the connections; the next use opens new ones. `async with` does it, too."""
        await self._database.aclose()


def _take(transaction: Transaction, request: ApprovalRequest) -> Answer | None:
    """Save the question unless it is there; its answer, marked as used."""
    transaction.execute(
        _SAVE,
        id=request.id,
        run_id=_column(request.run_id),
        call_id=_column(request.call_id),
        request=msgspec.json.encode(request).decode(),
        expires_at=request.expires_at,
    )
    rows = transaction.rows(_FIND + transaction.for_update, id=request.id)
    if not rows:
        error = ApprovalError(
            f"call {request.call_id} was asked about before, and was another call then: "
            "its arguments, its tool's definition or its caller have changed",
            ErrorCode.APPROVAL_MISMATCH,
        )
        named = {"run_id": _column(request.run_id), "call_id": _column(request.call_id)}
        for row in transaction.rows(_ASKED, **named):
            asked = _stored(row, "request", _REQUEST)
            error.asked_digest, error.code = (
                asked.definition_digest,
                mismatch(differing(asked, request)),
            )
        raise error
    answer = _fitting_answer(rows[0], request)
    if isinstance(answer, Approve):
        transaction.execute(_USE, id=request.id, now=time.time())
    return answer


def _fitting_answer(row: Row, request: ApprovalRequest) -> Answer | None:
    """Return the answer in a row, if it is one to this very question and may still be used."""
    asked = _stored(row, "request", _REQUEST)
    differences = differing(asked, request)
    if row["expires_at"] != asked.expires_at:
        differences.append("expires_at")
    if differences:
        raise ApprovalError(
            f"approval {request.id} was given for another call: it differs in "
            + ", ".join(differences),
            mismatch(differences),
        )
    answer = None if row["answer"] is None else _stored(row, "answer", _YES_OR_NO)
    if isinstance(answer, Refuse):
        return answer
    if row["used_at"] is not None:
        raise ApprovalError(f"approval {request.id} was used before", ErrorCode.ALREADY_USED)
    if asked.expired():
        raise _lapsed(request.id)
    return answer


def _answer_each(transaction: Transaction, texts: Mapping[str, str]) -> None:
    now = time.time()
    for request_id, text in texts.items():
        if transaction.execute(_ANSWER, id=request_id, answer=text, now=now) == 1:
            continue
        rows = transaction.rows(_FIND, id=request_id)
        if not rows:
            raise ApprovalError(
                f"there is no approval request {request_id}", ErrorCode.UNKNOWN_APPROVAL
            )
        if rows[0]["answer"] is None:
            raise _lapsed(request_id)
        raise ApprovalError(f"approval {request_id} was answered before", ErrorCode.ALREADY_USED)


def _column(value: str) -> str:
    """Return an id as every database can hold and index it, and different for different ids: PostgreSQL
    has no NUL in its texts. What is asked about has it as it is."""
    text = encodable(value).replace("\0", "?")
    if text == value and len(value) <= _LONGEST:
        return value
    return f"{text[:100]}…{sha256_hex(value)}"


def _text(request_id: str, answer: Answer) -> str:
    try:
        return msgspec.json.encode(checked_answer(answer)).decode()
    except ApprovalError as error:
        message, code = f"approval {request_id}: {error}", error.code
    raise ApprovalError(message, code)


def _lapsed(request_id: str) -> ApprovalError:
    return ApprovalError(f"approval {request_id} has lapsed", ErrorCode.APPROVAL_EXPIRED)


def _stored(row: Row, column: str, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(row[column])
    except msgspec.DecodeError:
        pass
    raise ApprovalError(f"the {column} of approval {row['id']} in the database cannot be read")
