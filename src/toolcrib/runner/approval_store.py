"""Approvals that may be given days later, by another process: kept in a database, used once."""

from __future__ import annotations

import time

import msgspec

from toolcrib.errors import ApprovalError, ErrorCode
from toolcrib.storage import Database, Row
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, Refuse


class ApprovalStore:
    """An approver that saves each question, and answers it once somebody has: `ApprovalStore(url)`.

    The process that answers needs neither agent nor tools. `url` is SQLAlchemy's, such as
    `sqlite:///crib.db`.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)

    async def __call__(self, request: ApprovalRequest) -> Answer | None:
        """The stored answer, once; None while there is none.

        Raises ApprovalError if it has lapsed or was used before.
        """
        await self._database.write(
            "INSERT INTO approvals (id, request, expires_at) VALUES (:id, :request, :expires_at)"
            " ON CONFLICT (id) DO NOTHING",
            id=request.id,
            request=msgspec.json.encode(request).decode(),
            expires_at=request.expires_at,
        )
        row = await self._row(request.id)
        if row["used_at"] is not None:
            raise ApprovalError(f"approval {request.id} was used before")
        _check_expiry(row)
        if row["answer"] is None:
            return None
        used = await self._database.write(
            "UPDATE approvals SET used_at = :now WHERE id = :id AND used_at IS NULL",
            id=request.id,
            now=time.time(),
        )
        if used != 1:
            raise ApprovalError(f"approval {request.id} was used before")
        return msgspec.json.decode(row["answer"], type=Approve | Refuse)

    async def pending(self) -> list[ApprovalRequest]:
        """The questions that nobody has answered and that have not lapsed, oldest first."""
        rows = await self._database.read(
            "SELECT request FROM approvals WHERE answer IS NULL AND expires_at > :now"
            " ORDER BY expires_at, id",
            now=time.time(),
        )
        return [msgspec.json.decode(row["request"], type=ApprovalRequest) for row in rows]

    async def answer(self, request_id: str, answer: Answer) -> None:
        """Answer a question, for good. Raises ApprovalError if unknown, lapsed or answered."""
        if not isinstance(answer, Approve | Refuse):
            raise ApprovalError(
                f"a {type(answer).__name__} is no answer: Approve(by=…) or Refuse()"
            )
        _check_expiry(await self._row(request_id))
        changed = await self._database.write(
            "UPDATE approvals SET answer = :answer WHERE id = :id AND answer IS NULL",
            id=request_id,
            answer=msgspec.json.encode(answer).decode(),
        )
        if changed != 1:
            raise ApprovalError(f"approval {request_id} was answered before")

    async def aclose(self) -> None:
        await self._database.aclose()

    async def _row(self, request_id: str) -> Row:
        rows = await self._database.read("SELECT * FROM approvals WHERE id = :id", id=request_id)
        if not rows:
            raise ApprovalError(f"there is no approval request {request_id}")
        return rows[0]


def _check_expiry(row: Row) -> None:
    if time.time() >= row["expires_at"]:
        raise ApprovalError("the approval has lapsed", ErrorCode.APPROVAL_EXPIRED)
