"""The stored state of durable runs: where each one is, what it asks, and which workers live.

Rule: a run is one row, and each of its segments begins with what the row has: a signed state, and
the answers to what that asks. The end of a segment is written once, by the first writer; it
includes the answers that arrived in the meantime. So an answer is used once, whoever gives it, and
none is lost: what a worker has not begun is `queued`, and is found again. A question that a run no
longer asks is removed, so that nobody answers it in vain. Whoever writes a run and its questions
locks the run first.

Rule: which agent executes a run, how it begins and how it ended are signed with the agent's key.
Without that key, a row can only be changed to say that the run continues, is cancelled, or has
failed, and such a row must have no text and no reason.

A worker executes a segment as long as the row is `running`, with that segment, and has the fence
with which it began: the worker checks this before each step. Whoever begins the segment again, even
the same worker, has another fence. A run that is cancelled while a worker executes it keeps that
fence until the worker has stopped, and begins no other segment until then. So only one segment of a
run is executed at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Literal, NamedTuple, TypeAlias, TypeVar, get_args

import msgspec

from toolcrib.closing import Closing
from toolcrib.errors import ApprovalError, ErrorCode, SourceError, ToolcribError
from toolcrib.runner.approval import checked_answer
from toolcrib.storage import Row, SqlDatabase, Transaction, as_column, storable
from toolcrib.values.decision import Answer, ApprovalRequest, Approve, LimitedApprove, Refuse
from toolcrib.values.json import Redacted, sha256_hex
from toolcrib.values.run import RunState, check_signature

StoredStatus: TypeAlias = Literal[
    "queued", "running", "waiting", "completed", "limited", "failed", "cancelled"
]
STATUSES: tuple[StoredStatus, ...] = get_args(StoredStatus)
T = TypeVar("T")
UNDER_WAY = ("queued", "running")
_ASKING_ONLY_THESE = ("waiting", "completed")  # others may be resumed, and ask again
_STOPS = ("queued", "cancelled")  # rows that may say how far a stopped run had come
Sign: TypeAlias = Callable[..., str]
"""Signs strings with an agent's key; the first string names their kind."""
_NO_RUN = "there is no run {!r} in the store"
_ANSWERS = msgspec.json.Decoder(dict[str, Approve | Refuse])
_REQUEST = msgspec.json.Decoder(ApprovalRequest)
_ROW = (
    "id, agent, caller, status, segment, began, state, cut, answers, text, reason, ended,"
    " created_at, updated_at"
)
_NEW = """INSERT INTO durable_runs (id, agent, caller, status, segment, state, answers, text, reason,
    ended, worker, created_at, updated_at) VALUES (:id, :agent, :caller, 'queued', 0, :state, '{}', '',
    '', :ended, '', :now, :now) ON CONFLICT DO NOTHING"""
_RUN_BY_ID = f"SELECT {_ROW} FROM durable_runs WHERE id = :id"  # noqa: S608  only our own names
_PLACE = "SELECT agent, status, segment, worker FROM durable_runs WHERE id = :id"
_RUNS = f"SELECT {_ROW} FROM durable_runs WHERE status IN :statuses ORDER BY created_at, id"  # noqa: S608
_QUEUED = """SELECT agent, id, segment FROM durable_runs WHERE status = 'queued' AND worker = ''
    AND agent IN :agents ORDER BY updated_at, id LIMIT 100"""
_GIVE_TO_ENGINE = """UPDATE durable_runs SET worker = :worker
    WHERE id = :id AND segment = :segment AND status = 'queued'"""
_BEGIN = """UPDATE durable_runs SET worker = :worker, updated_at = :now,
    cut = CASE WHEN status = 'queued' THEN '' ELSE cut END,
    status = CASE WHEN status = 'cancelled' THEN status ELSE 'running' END
    WHERE id = :id AND segment = :segment
    AND (status IN ('queued', 'running') OR (status = 'cancelled' AND worker <> ''))"""
_END = """UPDATE durable_runs SET status = :status, state = :state, began = :began, text = :text,
    reason = :reason, ended = :ended, answers = :answers, worker = '', updated_at = :now
    WHERE id = :id AND segment = :segment AND status = 'running' AND worker = :worker"""
_QUEUE_NEXT = """UPDATE durable_runs SET status = 'queued', segment = segment + 1, answers = :answers,
    text = '', reason = '', worker = '', updated_at = :now
    WHERE id = :id AND segment = :segment AND status = :status AND worker = ''"""
_CANCEL = """UPDATE durable_runs SET status = 'cancelled', text = '', reason = '',
    updated_at = :now, worker = CASE WHEN status = 'running' THEN worker ELSE '' END
    WHERE id = :id AND status IN ('queued', 'running', 'waiting')"""
_SET_STOPPED = """UPDATE durable_runs SET cut = :cut, worker = '', updated_at = :now
    WHERE id = :id AND segment = :segment AND status = 'cancelled' AND worker = :worker"""
_ADD_QUESTION = """INSERT INTO durable_questions (id, run_id, request, signature, expires_at)
    VALUES (:id, :run_id, :request, :signature, :expires_at) ON CONFLICT DO NOTHING"""
_QUESTION = "SELECT run_id, answer FROM durable_questions WHERE id = :id"
_FORGET_QUESTIONS = """DELETE FROM durable_questions
    WHERE run_id = :id AND answer IS NULL AND expires_at > :now AND id NOT IN :asked"""
_SET_ANSWER = """UPDATE durable_questions SET answer = :answer WHERE id = :id AND answer IS NULL
    AND expires_at > :now"""
_ANSWERED = "SELECT id, answer FROM durable_questions WHERE id IN :ids AND answer IS NOT NULL"
_REQUESTS = "SELECT id, request FROM durable_questions WHERE id IN :ids"
_PENDING = """SELECT r.id, r.agent, q.request, q.signature
    FROM durable_questions q JOIN durable_runs r ON r.id = q.run_id
    WHERE q.answer IS NULL AND q.expires_at > :now AND r.status IN ('waiting', 'queued', 'running')
    ORDER BY q.expires_at, q.id"""
_EXPIRED_RUNS = """SELECT r.id, r.segment FROM durable_runs r WHERE r.status = 'waiting' AND NOT EXISTS
    (SELECT 1 FROM durable_questions q WHERE q.run_id = r.id AND q.answer IS NULL
        AND q.expires_at > :now) ORDER BY r.id"""
_STANDING = "SELECT id, segment, status, worker FROM durable_runs WHERE id IN :ids"
_BEAT = """INSERT INTO durable_workers (id, process, beat_at) VALUES (:id, :process, :now)
    ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at"""
_WORKERS = "SELECT id, process, beat_at FROM durable_workers"
_CLAIMS = """SELECT DISTINCT worker FROM durable_runs
    WHERE status IN ('queued', 'running') AND worker <> ''"""
_RETIRE = "UPDATE durable_workers SET beat_at = 0 WHERE id = :id"
_DELETE_WORKER = "DELETE FROM durable_workers WHERE id = :id"
_TAKE_BACK = "UPDATE durable_runs SET worker = '' WHERE worker = :id AND status = 'queued'"


class SegmentEnd(Redacted, msgspec.Struct, frozen=True):
    """How a segment ended; `signatures` maps the ids of its questions to their signatures."""

    redacted: ClassVar[tuple[str, ...]] = ("text",)

    status: StoredStatus
    state: RunState | None
    text: str = ""
    reason: str = ""
    signatures: dict[str, str] = {}


class SignedEnd(msgspec.Struct, frozen=True):
    """How the last ended segment of a run ended, or `queued` before one has.

    `state` and `outcome_digest` are the digests of the run's state from then on, and of its text
    and reason.
    """

    status: StoredStatus
    state: str
    outcome_digest: str = msgspec.field(name="told")
    signature: str = ""


class StoredRun(Redacted, msgspec.Struct, frozen=True):
    """A run as it is stored.

    `state` is the JSON of its signed state, which its segment begins with, or ended with; `answers`
    are those that it begins with. A cancelled run continues from there: its segments since `began`
    begin with this state, and take up each other's steps. `cut` is the JSON of the state in which
    it was stopped, until a worker continues it. `reason` is the limit that ended it, or why it
    failed; `ended` is the JSON of the `SignedEnd`.
    """

    redacted: ClassVar[tuple[str, ...]] = ("state", "cut", "answers", "text")

    id: str
    agent: str
    caller: str
    status: StoredStatus
    segment: int
    began: int
    state: str
    cut: str
    answers: str
    text: str
    reason: str
    ended: str
    created_at: float
    updated_at: float

    @staticmethod
    def new(agent: str, state: RunState, sign: Sign) -> StoredRun:
        """Return a run that has not begun. Raises ToolcribError for a caller that is not storable."""
        check_storable("the id of a caller", state.caller.id)
        now, saved = time.time(), state.to_json()
        run = StoredRun(
            id=state.run_id,
            agent=agent,
            caller=state.caller.id,
            status="queued",
            segment=0,
            began=0,
            state=saved,
            cut="",
            answers="{}",
            text="",
            reason="",
            ended="",
            created_at=now,
            updated_at=now,
        )
        return run.signed(sha256_hex(saved), sign)

    def after(self, end: SegmentEnd, sign: Sign) -> StoredRun:
        """Return the run after its segment has ended.

        If the end has no state, what was signed of the earlier state stays: a state that was
        changed, or belongs to a run that is over, still cannot be continued. With another key than
        the run was signed with, nothing is signed.
        """
        outcome = {"status": end.status, "text": storable(end.text), "reason": storable(end.reason)}
        if end.state is None:
            signed_end = self._end()
            if signed_end.signature != self._signature(signed_end, sign):
                return msgspec.structs.replace(self, status="failed", text="", reason="")
            run = msgspec.structs.replace(self, **outcome)
            return run.signed("" if signed_end.status == "completed" else signed_end.state, sign)
        saved = end.state.to_json()
        continuation = {"state": saved, "began": self.segment + 1, "answers": "{}"}
        run = msgspec.structs.replace(self, **outcome, **continuation)
        return run.signed(sha256_hex(saved), sign)

    def signed(self, state: str, sign: Sign) -> StoredRun:
        """Return the run with what it says about its end, and the digest of its state, signed."""
        end = SignedEnd(self.status, state, _outcome_digest(self.text, self.reason))
        end = msgspec.structs.replace(end, signature=self._signature(end, sign))
        return msgspec.structs.replace(self, ended=msgspec.json.encode(end).decode())

    def check(self, sign: Sign) -> None:
        """Raise SourceError if the run was changed; `sign` is the agent's."""
        end, what = self._end(), f"run {self.id} in the store"
        check_signature(end.signature, self._signature(end, sign), what)
        is_continued = (
            self.status in (*UNDER_WAY, "cancelled", "failed") and end.status != "completed"
        )
        expected = (
            end.outcome_digest if self.status == end.status else _NO_OUTCOME if is_continued else ""
        )
        actual = (_outcome_digest(self.text, self.reason), sha256_hex(self.state))
        if actual != (expected, end.state) or (self.cut and self.status not in _STOPS):
            raise SourceError(f"{what} was changed after it was signed")

    def _signature(self, end: SignedEnd, sign: Sign) -> str:
        identity = (self.id, self.agent, self.caller, str(self.began))
        return sign("toolcrib run end", *identity, end.status, end.state, end.outcome_digest)

    def _end(self) -> SignedEnd:
        try:
            return _SIGNED.decode(self.ended)
        except ValueError:  # not an end, or not JSON
            return SignedEnd(self.status, "", "")

    @property
    def given(self) -> dict[str, Answer]:
        """The answers. Raises SourceError for invalid ones."""
        answers: dict[str, Approve | Refuse]
        answers = _read(_ANSWERS, self.answers, f"the answers of run {self.id}")
        return dict(answers)

    @property
    def is_whole(self) -> bool:
        """Whether its last state has everything that it did.

        Either no segment has begun since, or what that segment did is there, too.
        """
        return self.began > self.segment or (bool(self.cut) and self.status == "cancelled")

    @property
    def last(self) -> RunState:
        """The last known state. Raises SourceError for an invalid one."""
        return RunState.from_json(self.cut or self.state)


def check_storable(what: str, text: str) -> None:
    """Raise ToolcribError for a string that not every database can store."""
    if storable(text) != text:
        raise ToolcribError(f"{what} is {text!r}, which holds NUL or a lone surrogate")


_SIGNED = msgspec.json.Decoder(SignedEnd)


def _outcome_digest(text: str, reason: str) -> str:
    """Return the digest of what a row says about its end."""
    return sha256_hex(f"{len(text)}:{text}{reason}")


_NO_OUTCOME = _outcome_digest("", "")


class Place(NamedTuple):
    """Where a run is, and whether a worker executes it, or will without further action."""

    agent: str
    status: StoredStatus
    segment: int
    under_way: bool


class StoredQuestion(NamedTuple):
    """A question as it is stored, and its signature."""

    run_id: str
    agent: str
    request: ApprovalRequest
    signature: str


class RunStore(Closing):
    """The runs, questions and workers in one database.

    All methods raise SourceError if it cannot be used, the constructor MissingExtraError without
    SQLAlchemy.
    """

    def __init__(self, url: str) -> None:
        self._database = SqlDatabase(url)

    async def add(self, run: StoredRun) -> bool:
        """Store a run that has not begun; return False if its id already exists."""
        values = {"id": run.id, "agent": run.agent, "caller": run.caller, "state": run.state}
        added = await self._database.write(_NEW, **values, ended=run.ended, now=run.created_at)
        return added == 1

    async def run(self, run_id: str) -> StoredRun:
        """Return a run. Raises ToolcribError for an unknown id."""
        run = await self.find(run_id)
        if run is None:
            raise ToolcribError(_NO_RUN.format(run_id))
        return run

    async def find(self, run_id: str) -> StoredRun | None:
        """Return a run; None for an unknown id."""
        rows = await self._database.read(_RUN_BY_ID, id=as_column(run_id))
        return StoredRun(**rows[0]) if rows else None

    async def place(self, run_id: str) -> Place:
        """Return where a run is. Raises ToolcribError for an unknown id."""
        for row in await self._database.read(_PLACE, id=as_column(run_id)):
            status = row["status"]
            is_stopping = status == "cancelled" and row["worker"] != ""
            return Place(row["agent"], status, row["segment"], status in UNDER_WAY or is_stopping)
        raise ToolcribError(_NO_RUN.format(run_id))

    async def runs(self, statuses: Iterable[StoredStatus] = STATUSES) -> list[StoredRun]:
        """Return the runs of these statuses, oldest first."""
        rows = await self._database.read(_RUNS, statuses=list(statuses))
        return [StoredRun(**row) for row in rows]

    async def pending(self) -> list[StoredQuestion]:
        """Return the unanswered questions of runs, in the order in which they expire."""
        rows = await self._database.read(_PENDING, now=time.time())
        return [
            StoredQuestion(
                row["id"], row["agent"], _request_of(row["id"], row["request"]), row["signature"]
            )
            for row in rows
        ]

    async def shown(self, request_ids: Iterable[str]) -> dict[str, ApprovalRequest]:
        """Return these questions in the form that people are shown, by their ids."""
        rows = await self._database.read(_REQUESTS, ids=list(request_ids))
        return {row["id"]: _request_of(row["id"], row["request"]) for row in rows}

    async def answer(self, request_id: str, answer: Answer) -> str:
        """Answer a question, once and for good, and return the id of its run, which continues.

        Raises ApprovalError if the question is unknown (`unknown_approval`), answered
        (`already_used`) or expired (`approval_expired`), or if this is not an answer.
        """
        checked = checked_answer(answer)
        if isinstance(checked, LimitedApprove):
            raise ApprovalError(
                "a LimitedApprove cannot be stored: use Approve, if the person may give it"
            )
        if isinstance(checked, Approve):
            checked = checked.dated(time.time())
        text = msgspec.json.encode(checked).decode()
        return await self._database.transact(lambda t: _answer(t, request_id, text))

    async def cancel(self, run_id: str) -> bool:
        """Mark a run as cancelled, which its worker notices; return False if it is over."""
        return await self._database.write(_CANCEL, id=as_column(run_id), now=time.time()) == 1

    async def requeue(self, run: StoredRun) -> bool:
        """Let a run continue from where it stopped.

        Returns False if the run has moved on, or a worker is still stopping.
        """
        values = {"id": run.id, "segment": run.segment, "status": run.status}
        now = time.time()
        return await self._database.write(_QUEUE_NEXT, **values, answers=run.answers, now=now) == 1

    # For workers.

    async def queued(self, agents: Iterable[str]) -> list[tuple[str, str, int]]:
        """Return the queued segments of these agents that no worker has given to the engine.

        Each is the agent, the run's id and the segment's number.
        """
        rows = await self._database.read(_QUEUED, agents=list(agents))
        return [(row["agent"], row["id"], row["segment"]) for row in rows]

    async def mark_enqueued(self, run_id: str, segment: int, worker: str) -> None:
        """Note that a worker has given a segment to the engine."""
        await self._database.write(_GIVE_TO_ENGINE, id=run_id, segment=segment, worker=worker)

    async def begin(self, run_id: str, segment: int, fence: str) -> StoredRun | None:
        """Begin or continue a segment behind a new `fence`.

        Returns None if the segment is over, or another one has begun. In a cancelled run, a segment
        is only begun to find out how far a worker that died had come.
        """

        def work(transaction: Transaction) -> StoredRun | None:
            values = {"id": run_id, "segment": segment, "worker": fence, "now": time.time()}
            if transaction.execute(_BEGIN, **values) != 1:
                return None
            return StoredRun(**transaction.rows(_RUN_BY_ID, id=run_id)[0])

        return await self._database.transact(work)

    async def end(self, run: StoredRun, fence: str, ended: SegmentEnd) -> bool:
        """Write how a segment of a run ended, if it is behind this fence.

        `run` is what `after` returned. The run continues if what it asks was answered. Returns
        False if the fence differs, or the run was cancelled.
        """
        return await self._database.transact(lambda t: _end(t, run, fence, ended))

    async def stopped(self, run: StoredRun, fence: str, state: RunState | None) -> bool:
        """Note that a worker has stopped executing a cancelled run, and in which state.

        Returns False if the run does not belong to this worker.
        """
        values = {"id": run.id, "segment": run.segment, "worker": fence, "now": time.time()}
        cut = "" if state is None else state.to_json()
        return await self._database.write(_SET_STOPPED, **values, cut=cut) == 1

    async def queue_expired(self) -> None:
        """Let runs continue whose questions have all expired: their calls end as expired."""
        await self._database.transact(_queue_expired)

    async def ownerships(
        self, segments: Mapping[str, tuple[str, int]]
    ) -> dict[str, Literal["owned", "cancelled", "lost"]]:
        """Return, by fence, whether each of these segments may be continued behind it."""
        rows = await self._database.read(_STANDING, ids=[run_id for run_id, _ in segments.values()])
        statuses = {(row["worker"], row["id"], row["segment"]): row["status"] for row in rows}
        ownership_by_status: dict[str | None, Literal["owned", "cancelled"]] = {
            "running": "owned",
            "cancelled": "cancelled",
        }
        return {
            fence: ownership_by_status.get(statuses.get((fence, *key)), "lost")
            for fence, key in segments.items()
        }

    async def beat(self, worker: str, process: str) -> None:
        """Record a worker's heartbeat."""
        await self._database.write(_BEAT, id=worker, process=process, now=time.time())

    async def dead(
        self,
        worker: str,
        lease: float,
        has_ended: Callable[[str], bool],
        owners: Iterable[str] = (),
    ) -> list[str]:
        """Return the other workers that count as dead.

        They sent no heartbeat for `lease` seconds, whichever way the clocks differ, or their
        process has `ended`, or they were forgotten and have a run nevertheless: one in the store, or
        one of the `owners` that the engine knows. A thread of a worker that stops may claim it
        as late as that.
        """

        def read(transaction: Transaction) -> tuple[list[Row], set[str]]:
            claims = {fence.partition(":")[0] for (fence,) in transaction.tuples(_CLAIMS)}
            return transaction.rows(_WORKERS), claims

        rows, claims = await self._database.transact(read, write=False)
        now = time.time()
        alive = {
            row["id"]
            for row in rows
            if abs(now - row["beat_at"]) <= lease and not has_ended(row["process"])
        }
        return sorted({*claims, *owners, *(row["id"] for row in rows)} - alive - {worker})

    async def retire(self, worker: str) -> None:
        """Mark a worker as dead, so that others take over what it has begun."""
        await self._database.transact(lambda t: _take_back(t, _RETIRE, worker))

    async def leave(self, worker: str) -> None:
        """Forget a worker; others may give what it had only given to the engine."""
        await self._database.transact(lambda t: _take_back(t, _DELETE_WORKER, worker))

    async def open(self) -> None:
        """Open the database now, creating its tables."""
        await self._database.read(_WORKERS)

    async def aclose(self) -> None:
        await self._database.aclose()


def _answer(transaction: Transaction, request_id: str, text: str) -> str:
    unknown = ApprovalError(f"no run has the question {request_id}", ErrorCode.UNKNOWN_APPROVAL)
    rows = transaction.rows(_QUESTION, id=as_column(request_id))
    if not rows:
        raise unknown
    run_id = str(rows[0]["run_id"])
    runs = transaction.rows(_RUN_BY_ID + transaction.for_update, id=run_id)
    if not runs:
        raise SourceError(f"the run of question {request_id} is gone from the store")
    if transaction.execute(_SET_ANSWER, id=request_id, answer=text, now=time.time()) != 1:
        rows = transaction.rows(_QUESTION, id=request_id)
        if not rows:
            raise unknown
        if rows[0]["answer"] is None:
            raise ApprovalError(f"question {request_id} has expired", ErrorCode.APPROVAL_EXPIRED)
        raise ApprovalError(f"question {request_id} was already answered", ErrorCode.ALREADY_USED)
    _queue_next(transaction, StoredRun(**runs[0]))
    return run_id


def _end(transaction: Transaction, run: StoredRun, fence: str, ended: SegmentEnd) -> bool:
    key = {"id": run.id, "segment": run.segment, "worker": fence, "now": time.time()}
    fields = {"state": run.state, "began": run.began, "answers": run.answers, "ended": run.ended}
    outcome = {"status": run.status, "text": run.text, "reason": run.reason}
    transaction.rows(_RUN_BY_ID + transaction.for_update, id=run.id)
    if transaction.execute(_END, **key, **fields, **outcome) != 1:
        return False
    requests = () if ended.state is None else ended.state.pending
    if run.status in _ASKING_ONLY_THESE:
        asked = ["", *(request.id for request in requests)]
        transaction.execute(_FORGET_QUESTIONS, id=run.id, now=key["now"], asked=asked)
    for request in requests:
        question = {"id": request.id, "run_id": run.id, "expires_at": request.expires_at}
        signature = ended.signatures.get(request.id, "")
        transaction.execute(
            _ADD_QUESTION, **question, request=request_text(request), signature=signature
        )
    _queue_next(transaction, run)
    return True


def request_text(request: ApprovalRequest) -> str:
    """Return a question as it is stored, and signed."""
    return msgspec.json.encode(request).decode()


def _request_of(run_id: str, text: str) -> ApprovalRequest:
    return _read(_REQUEST, text, f"a question of run {run_id}")


def _read(decoder: msgspec.json.Decoder[T], text: str, what: str) -> T:
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"{what} in the store cannot be read, because it was changed: {error}"
        ) from None


def _queue_next(transaction: Transaction, run: StoredRun) -> None:
    """Queue the next segment of a waiting run, if any of its questions has been answered."""
    if run.status != "waiting":
        return
    ids = [request.id for request in RunState.from_json(run.state).pending]
    answers = transaction.rows(_ANSWERED, ids=ids) if ids else []
    if not answers:
        return
    text = msgspec.json.encode({row["id"]: msgspec.Raw(row["answer"]) for row in answers}).decode()
    key = {"id": run.id, "segment": run.segment, "status": "waiting", "now": time.time()}
    transaction.execute(_QUEUE_NEXT, **key, answers=text)


def _take_back(transaction: Transaction, statement: str, worker: str) -> None:
    transaction.execute(_TAKE_BACK, id=worker)
    transaction.execute(statement, id=worker)


def _queue_expired(transaction: Transaction) -> None:
    now = time.time()
    for run_id, segment in list(transaction.tuples(_EXPIRED_RUNS, now=now)):
        key = {"id": run_id, "segment": segment, "status": "waiting", "now": now}
        transaction.execute(_QUEUE_NEXT, **key, answers="{}")
