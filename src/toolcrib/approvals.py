"""Ready-made approvers: at the terminal, stored until somebody answers, or left open.

Rule: only a clear yes approves a call. A stored yes is used once.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import TextIO, TypeVar, cast
from weakref import WeakKeyDictionary

import msgspec

from toolcrib.closing import Closing
from toolcrib.errors import ApprovalError, ErrorCode
from toolcrib.failures import SafeLogger
from toolcrib.runner.approval import NO_RULE, check_always, checked_answer, differing, mismatch
from toolcrib.runner.recorder import to_the_end
from toolcrib.storage import OWNER_ONLY, Row, SqlDatabase, Transaction, as_column
from toolcrib.threads import in_thread
from toolcrib.values.decision import (
    Always,
    Answer,
    ApprovalRequest,
    Approve,
    LimitedApprove,
    Refuse,
)
from toolcrib.values.json import JsonObject, JsonValue, check_key, digest, keyed_digest
from toolcrib.values.rule import (
    ApprovalRule,
    CallToApprove,
    KeptRule,
    rule_from,
    rule_id_of,
    signature_of,
    speaks_for,
)
from toolcrib.values.typed import check_type, explains_wrong_types, names_wrong_types

if sys.platform != "win32":
    import termios

__all__ = [
    "Always",
    "ApprovalRule",
    "ApprovalStore",
    "KeptRule",
    "TerminalApprover",
    "answer_later",
]


async def answer_later(_request: ApprovalRequest) -> Answer | None:
    """Answer nothing: the call waits, and its run ends as `waiting` with the question `pending`.

    For agents whose runs are resumed by `Agent.resume(state, answers)`, as a web page does.
    """
    return None


# Questions as text, at a terminal or elsewhere: whole or visibly cut, in ASCII, and answered only
# after they were shown.
#
# Rule: nothing hides anything else. Parts that are too long share the room evenly, are cut in the
# middle so that the beginning and the end are seen, and say how much is left out.

_log = SafeLogger("toolcrib.approvals")
_ALWAYS_CHOICE = "always: yes, and always to exactly this"
_FOR_RUN_CHOICE = (
    "same: yes, and to exactly this for this run, run: yes, and to this tool for this run"
)
_POLL_SECONDS = 0.1
_SECONDS_TO_PRINT = 0.05  # for whoever prints the events of a run: the question comes after them
_MAX_PLACES = 20
_PLACE_ROOM = 100  # characters of each of them
_PLAIN_PLACE = re.compile(r"[\w/*~-]{1,100}", re.ASCII)
_REASON_ROOM = 1_000
_TERMINAL_CHARACTERS = 4_000
_MAX_SHOWN = 16_000
_MIN_ITEM_ROOM = 100  # characters of an item; items that would get fewer are left out
_OMISSION_ROOM = 40  # characters that say how much is left out


class TerminalApprover:
    """Asks at the terminal, one question at a time; anything but a clear yes is a no.

    If a yes for the run would spare the questions about further calls of the tool
    (`ApprovalRequest.for_run`), `run` gives it, and `same` gives it for calls with exactly these
    arguments. Otherwise both are a no like any other word. So is `always` (a rule for exactly these
    arguments), unless the question may have a rule. Without a terminal, or if its input has ended
    (Ctrl-D, a lost connection), there is no answer, and the call ends as `approval_required`. `by`
    is the approver's name in records.
    """

    @names_wrong_types
    def __init__(self, *, by: str = "terminal", source: TextIO | None = None) -> None:
        self._by = by
        self._source = source
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = (
            WeakKeyDictionary()
        )
        self._turn = threading.Lock()  # there is one terminal, however many loops there are

    async def __call__(self, request: ApprovalRequest) -> Answer:
        async with self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
            text, given_up = question(request), threading.Event()
            await asyncio.sleep(_SECONDS_TO_PRINT)
            try:
                answer = await in_thread(lambda: self._ask(text, given_up))
            finally:
                given_up.set()
        if answer is None:
            raise ApprovalError("there is nobody at a terminal", ErrorCode.APPROVAL_REQUIRED)
        if answer in ("y", "yes"):
            return Approve(by=self._by)
        if answer == "run" and request.for_run:
            return Approve(by=self._by, for_run=True)
        if answer == "same" and request.for_run:
            return Approve(by=self._by, for_run="exactly")
        if answer == "always" and request.always:
            return Approve(by=self._by, always=Always())
        return Refuse("not approved at the terminal", by=self._by)

    def _ask(self, text: str, given_up: threading.Event) -> str | None:
        """Return what was typed; None if the question was not shown, or the input has ended."""
        with self._turn:
            source, is_given = self._source or sys.stdin, self._source is not None
            if source is None or not (is_given or source.isatty()) or given_up.is_set():
                return None
            _forget_typed(source)
            sys.stderr.write(text)
            sys.stderr.flush()
            line = source.readline() if _has_line(source, given_up) else ""
            is_whole = line.endswith(("\n", "\r"))  # what was typed before Ctrl-D was not entered
            return line.strip().lower() if is_whole else None


def _forget_typed(source: TextIO) -> None:
    """Drop what was typed before a question was shown: it is not an answer to it."""
    if sys.platform != "win32":
        with suppress(OSError, ValueError, termios.error):  # not a terminal
            termios.tcflush(source, termios.TCIFLUSH)


def _has_line(source: TextIO, given_up: threading.Event) -> bool:
    """Wait for a line at a terminal; return False, leaving the line, once nobody waits for it.

    What cannot be watched (a file, a Windows console) is simply read.
    """
    try:
        while source.isatty() and not given_up.is_set():
            if select.select([source], [], [], _POLL_SECONDS)[0]:
                break
    except (OSError, ValueError):
        return True
    return not given_up.is_set()


def question(request: ApprovalRequest) -> str:
    """Return the question in ASCII: nothing in it moves a cursor or poses as another character."""
    tool = json.dumps(request.title)[1:-1]
    reason = json.dumps(request.reason)[1:-1]  # a policy may quote a model
    if len(reason) > _REASON_ROOM:
        reason = _cut(request.reason, _REASON_ROOM)
    choices = [_FOR_RUN_CHOICE] * request.for_run + [_ALWAYS_CHOICE] * request.always
    answers = ", ".join(["y/N", *choices])
    return f"Run {tool} {shown_request(request, _TERMINAL_CHARACTERS)}? ({reason}) [{answers}] "


def shown_request(request: ApprovalRequest, most: int = _MAX_SHOWN) -> str:
    """Return the arguments, and which of them are defaults that were not sent, all in ASCII."""
    # a model chooses the keys of dictionaries
    places = [
        place if _PLAIN_PLACE.fullmatch(place) else _cut(place, _PLACE_ROOM)
        for place in request.defaults[:_MAX_PLACES]
    ]
    hidden_count = len(request.defaults) - len(places)
    rest_note = f" and {hidden_count} more" if hidden_count else ""
    defaults_note = f" (defaults: {', '.join(places)}{rest_note})" if places else ""
    return f"{shown_arguments(request.arguments, most)}{defaults_note}"


def shown_rule(
    title: str, arguments: JsonObject, opened: Iterable[str], caller: str, most: int = _MAX_SHOWN
) -> str:
    """Return the pattern of a rule in ASCII: what must be equal, what may be any, and for whom."""
    names = ", ".join(json.dumps(name) for name in sorted(opened))
    open_note = f" with any {names}" if names else ""
    fixed = {name: value for name, value in arguments.items() if name not in set(opened)}
    text = f"{json.dumps(title)[1:-1]} {shown_arguments(fixed, most)}{open_note}"
    return f"{text}, for {json.dumps(caller)[1:-1]}"


def shown_arguments(arguments: JsonObject, most: int = _MAX_SHOWN) -> str:
    """Return arguments as JSON in ASCII, in about `most` characters.

    Omissions are marked by `<…>` outside of strings. If there are any, the digest of all arguments
    follows: sha256 over the canonical JSON (RFC 8785).
    """
    text = json.dumps(arguments)
    if len(text) <= most:
        return text
    cut = _cut(arguments, most)
    return text if cut == text else f"{cut} <{digest(arguments)}>"


def _cut(value: JsonValue, room: int) -> str:
    """Return a value as JSON, cut to the room unless the cut form is longer than the whole."""
    text = json.dumps(value)
    if len(text) <= room:
        return text
    cut = _shortened(value, text, room)
    return text if len(text) <= len(cut) else cut


def _shortened(value: JsonValue, text: str, room: int) -> str:
    if isinstance(value, list):
        return f"[{_cut_items([('', item) for item in value], room, 'items')}]"
    if isinstance(value, dict):
        members = [(f"{_cut(name, room // 2)}: ", item) for name, item in value.items()]
        return f"{{{_cut_items(members, room, 'members')}}}"
    quote, characters = ('"', value) if isinstance(value, str) else ("", text)
    half = max(room - _OMISSION_ROOM, _OMISSION_ROOM) // 2
    start = _fitting_count(characters, half)
    end = _fitting_count(characters[: -half - 1 : -1], half)
    omitted = f"<{len(characters) - start - end:,} more characters>"
    ends = characters[:start], characters[len(characters) - end :]
    first, last = (json.dumps(end_text)[1:-1].join((quote, quote)) for end_text in ends)
    return f"{first} {omitted} {last}"


def _fitting_count(characters: str, room: int) -> int:
    lengths = (len(json.dumps(character)) - len('""') for character in characters[:room])
    return sum(length <= room for length in accumulate(lengths))


def _cut_items(items: list[tuple[str, JsonValue]], room: int, item_kind: str) -> str:
    """Return all items, each cut to an even share of the room.

    If the room is too small for all, those in the middle are left out.
    """
    if room < _OMISSION_ROOM:
        return f"<{len(items):,} more {item_kind}>"
    sizes = [len(name) + len(json.dumps(value)) + len(", ") for name, value in items]
    share = _even_share(sizes, room - len("[]"))
    all_fit = share >= _MIN_ITEM_ROOM or len(items) == 1
    room -= 0 if all_fit else _OMISSION_ROOM
    ends: tuple[list[str], list[str]] = [], []
    remaining = deque(items)
    while remaining:
        from_end = not all_fit and len(ends[0]) > len(ends[1])
        name, value = remaining[-1 if from_end else 0]
        item_room = share if all_fit else min(room, _MIN_ITEM_ROOM)
        text = f"{name}{_cut(value, item_room - len(name) - len(', '))}"
        room -= len(text) + len(", ")
        if room < 0 and not all_fit:
            break
        ends[from_end].append(text)
        remaining.pop() if from_end else remaining.popleft()
    omission = [f"<{len(remaining):,} more {item_kind}>"] if remaining else []
    return ", ".join([*ends[0], *omission, *reversed(ends[1])])


def _even_share(sizes: list[int], room: int) -> int:
    """Return the size to cut to, so that all fit into the room; smaller ones stay whole."""
    for index, size in enumerate(sorted(sizes)):
        if size * (len(sizes) - index) > room:
            return room // (len(sizes) - index)
        room -= size
    return max(sizes, default=0)


# Approvals that may be given days later, by another process: stored in a database, used once.
#
# A call is asked about once: its run and its call id are unique among the rows. If the same call
# comes back with another request id, it has changed, and is refused instead of asked about again.

T = TypeVar("T")

_REQUEST_DECODER = msgspec.json.Decoder(ApprovalRequest)
_RULE_DECODER = msgspec.json.Decoder(ApprovalRule)
_NO_KEY = "this store keeps no rules, which have to be signed: give ApprovalStore(url, state_key=…)"
_CHANGED_RULE = (
    "rule {} was changed in the database, or was signed with another state_key: it lets no call"
    " run. Revoke it, and give a new one"
)
_CHANGED_QUESTION = (
    "question {} was changed in the database, or was asked with another state_key: no rule can be given"
    " as its answer"
)
_ANSWER_DECODER: msgspec.json.Decoder[Approve | Refuse] = msgspec.json.Decoder(Approve | Refuse)
_SAVE_QUESTION = """INSERT INTO approvals (id, run_id, call_id, request, expires_at, pinned, signature)
    VALUES (:id, :run_id, :call_id, :request, :expires_at, :pinned, :signature)
    ON CONFLICT DO NOTHING"""
_QUESTION_BY_ID = "SELECT * FROM approvals WHERE id = :id"
_QUESTIONS_OF_CALL = "SELECT * FROM approvals WHERE run_id = :run_id AND call_id = :call_id"
# a revoked rule keeps its id, without content, so that using its answer again gives no rule
_RULES = "SELECT * FROM approval_rules WHERE content <> ''"
_RULES_OF_CALLER = f"{_RULES} AND caller = :caller"
_RULES_FOR = """SELECT * FROM approval_rules
    WHERE definition_digest = :digest AND caller = :caller AND content <> ''"""
_RULE_BY_ID = "SELECT * FROM approval_rules WHERE id = :id AND content <> ''"
_KEEP_RULE = """INSERT INTO approval_rules (id, definition_digest, caller, content, signature)
    VALUES (:id, :definition_digest, :caller, :content, :signature)
    ON CONFLICT (id) DO UPDATE SET definition_digest = excluded.definition_digest,
        caller = excluded.caller, content = excluded.content, signature = excluded.signature
    WHERE approval_rules.content <> ''"""
_REVOKE = """UPDATE approval_rules SET definition_digest = '', caller = '', content = '', signature = ''
    WHERE id = :id AND content <> ''"""
_PENDING = """SELECT * FROM approvals WHERE answer IS NULL AND expires_at > :now
    ORDER BY expires_at, id"""
_MARK_USED = "UPDATE approvals SET used_at = :now WHERE id = :id"
_MARK_UNUSED = "UPDATE approvals SET used_at = NULL WHERE id = :id"
_IS_USED = "SELECT id FROM approvals WHERE id = :id AND used_at = :now"
_SAVE_ANSWER = """UPDATE approvals SET answer = :answer, answered_at = :now, signature = :signature
    WHERE id = :id AND answer IS NULL AND expires_at > :now"""


class ApprovalStore(Closing):
    """An approver that saves each question, and returns its answer once somebody has given it.

    `ApprovalStore(url)`: the process that answers needs neither agent nor tools. `url` is
    SQLAlchemy's, such as `sqlite:///crib.db`; anybody who may write to that database may approve. A
    new SQLite file is accessible only to its owner, unless `mode` says otherwise, for a group. With
    a `state_key` (32 random bytes, the same in all processes, stored out of users' reach) it stores
    rules, too: answers that hold for always (`Approve.always`). All methods raise SourceError if
    the database cannot be used. The constructor raises MissingExtraError without SQLAlchemy, and
    ToolcribError for a key that is too short; `pending()` at startup shows that the database works.
    """

    @names_wrong_types
    def __init__(self, url: str, *, mode: int = OWNER_ONLY, state_key: bytes | None = None) -> None:
        self._key = None if state_key is None else check_key("state_key", state_key)
        self._database = SqlDatabase(url, mode=mode)

    async def __call__(self, request: ApprovalRequest) -> Answer | None:
        """Return the answer; None while there is none. A yes is returned once, a no stays a no.

        A yes is used up when it is returned, before the tool begins. A call that is cancelled in
        between, or cannot be logged, gives it back; if the process is killed in between, the yes is
        spent, and that call no longer runs. Raises ApprovalError:
        `already_used` if the yes was used before; `approval_expired` if the question has expired,
        answered or not; `approval_mismatch` if the definition, the caller or the arguments of the
        call have changed; `other_call` if what is stored is about another call.
        """
        return await self.ask_keeping(request, {})

    @explains_wrong_types
    async def ask_keeping(self, request: ApprovalRequest, pinned: JsonObject, /) -> Answer | None:
        """Do the same, and store what default factories made for the call with a new question."""
        taken = await to_the_end(
            lambda: self._database.begin(lambda t: _take_answer(t, request, pinned, self._key))
        )
        if taken.cancelled is not None and isinstance(taken.value, Approve):
            await self.give_back(request)
        taken.check()
        return cast("Answer | None", taken.value)

    @explains_wrong_types
    async def give_back(self, request: ApprovalRequest, /) -> None:
        """Let the yes that was returned for this question be used again, by whoever asks first.

        Only whoever got the yes may call this, and only if the call has not begun.
        """
        given_back = await to_the_end(
            lambda: self._database.begin(lambda t: t.execute(_MARK_UNUSED, id=request.id))
        )
        given_back.check()

    async def kept(self, run_id: str, call_id: str, caller: str, /) -> JsonObject:
        """Return what default factories made for this caller's call when it was asked about.

        {} if it was not asked about, or if nothing was stored.
        """
        if not call_id:  # several questions may be about such calls
            return {}
        call_columns = {"run_id": as_column(run_id), "call_id": as_column(call_id)}
        for row in await self._database.read(_QUESTIONS_OF_CALL, **call_columns):
            with suppress(ApprovalError, ValueError):  # the call is not the one asked about
                stored_request = _decoded(row, "request", _REQUEST_DECODER)
                if row["pinned"] and stored_request.caller == caller:
                    return dict(json.loads(row["pinned"]))
        return {}

    async def pending(
        self, *, run_id: str | None = None, caller: str | None = None
    ) -> list[ApprovalRequest]:
        """Return the unanswered questions that have not expired, the soonest to expire first.

        Only those of one run or one caller (by their ids), if given. With a `state_key`, a question
        that was changed since it was asked has no `always`. One that cannot be read is left out,
        and the logger `toolcrib.approvals` names it.
        """
        rows = await self._database.read(_PENDING, now=time.time())
        requests = []
        for row in rows:
            try:
                request = _pending_request(row, self._key)
            except ApprovalError as error:  # the others can still be answered
                _log.warning("%s: it is not among the pending questions", error)
                continue
            if run_id in (None, request.run_id) and caller in (None, request.caller):
                requests.append(request)
        return requests

    async def answer(self, request_id: str, answer: Answer) -> None:
        """Answer a question, for good.

        Raises ApprovalError if it is unknown (`unknown_approval`), expired (`approval_expired`) or
        answered (`already_used`), or if the answer is invalid: an approval without a name, edited
        arguments that are not a JSON object, a rule where none can be given.
        """
        check_type("request_id", request_id, str, "the id of a question, such as request.id")
        await self.answer_all({request_id: answer})

    @explains_wrong_types
    async def answer_all(self, answers: Mapping[str, Answer]) -> None:
        """Answer several questions by their ids: all of them, or none.

        Raises ApprovalError as `answer` does; the error names the question.
        """
        # one order everywhere, so that two writers with the same questions cannot deadlock
        texts = {id_: _answer_text(id_, answers[id_]) for id_ in sorted(answers)}
        approvals = {id_: answer for id_, answer in answers.items() if isinstance(answer, Approve)}
        always_approvals = {
            id_: answer for id_, answer in approvals.items() if answer.always is not None
        }
        if texts:
            await self._database.transact(
                lambda t: _answer_each(t, texts, always_approvals, self._key)
            )

    @property
    def keeps_rules(self) -> bool:
        """Whether it stores rules, because it has a `state_key`."""
        return self._key is not None

    @explains_wrong_types
    async def rule_for(self, asked: CallToApprove, /) -> ApprovalRule | None:
        """Return the oldest rule that approves a call; None if somebody was asked about it before.

        Raises ApprovalError, `invalid_rule`, if a rule for the tool and the caller is not as it was
        signed.
        """
        return await self._database.transact(
            partial(_fitting_rule, asked, self._rule_key), write=False
        )

    @explains_wrong_types
    async def keep_rule(
        self, asked: CallToApprove, always: Always, by: str, /
    ) -> ApprovalRule | None:
        """Store the rule that a yes gives, and return it; None if it has expired or was revoked.

        So a run that resumes from the same state again does not bring it back. The rule lasts from
        when its answer was given, as far as that is known: from `always.given_at`, from when the
        question stored here was answered, or from when the rule was first stored. If the question
        is stored here, the rule covers what that asked. Raises ApprovalError if the rule cannot be
        stored.
        """
        return await self._database.transact(
            partial(_store_rule, asked, always, by, self._rule_key)
        )

    async def rules(self, *, caller: str | None = None) -> list[KeptRule]:
        """Return all rules, including expired ones; the content is left out if a rule was changed.

        Only those for one caller (by its id), if given.
        """
        key = self._rule_key
        caller_columns = {} if caller is None else {"caller": as_column(caller)}
        rows = await self._database.read(
            _RULES_OF_CALLER if caller_columns else _RULES, **caller_columns
        )
        stored_rules = [KeptRule(row["id"], _rule_in(row, key)) for row in rows]
        caller_rules = (
            stored_rule
            for stored_rule in stored_rules
            if stored_rule.rule is None or caller in (None, stored_rule.rule.caller)
        )
        return sorted(
            caller_rules,
            key=lambda stored_rule: 0 if stored_rule.rule is None else stored_rule.rule.given_at,
        )

    async def revoke(self, rule_id: str, *, caller: str | None = None) -> None:
        """Forget a rule: from now on it approves no call, in any process.

        Raises ApprovalError if there is no such rule (`unknown_approval`), or none for that
        `caller`.
        """
        caller_rules = [] if caller is None else await self.rules(caller=caller)
        is_theirs = caller is None or any(stored_rule.id == rule_id for stored_rule in caller_rules)
        if not is_theirs or not await self._database.write(_REVOKE, id=as_column(rule_id)):
            raise ApprovalError(f"there is no rule {rule_id}", ErrorCode.UNKNOWN_APPROVAL)

    @property
    def _rule_key(self) -> bytes:
        if self._key is None:
            raise ApprovalError(_NO_KEY)
        return self._key

    async def aclose(self) -> None:
        """Close the connections; the next use opens new ones. `async with` does this, too."""
        await self._database.aclose()


def _fitting_rule(call: CallToApprove, key: bytes, transaction: Transaction) -> ApprovalRule | None:
    request = call.request
    call_columns = {"run_id": as_column(request.run_id), "call_id": as_column(request.call_id)}
    if request.call_id and transaction.rows(_QUESTIONS_OF_CALL, **call_columns):
        return None
    rule_columns = {"digest": request.definition_digest, "caller": as_column(request.caller)}
    rules = []
    for row in transaction.rows(_RULES_FOR, **rule_columns):
        rule = _rule_in(row, key)
        if rule is None:
            raise ApprovalError(_CHANGED_RULE.format(row["id"]), ErrorCode.INVALID_RULE)
        if speaks_for(rule, call, key):
            rules.append(rule)
    return min(rules, key=lambda rule: rule.given_at, default=None)


def _store_rule(
    call: CallToApprove, always: Always, by: str, key: bytes, transaction: Transaction
) -> ApprovalRule | None:
    request, given_at = call.request, always.given_by(time.time())
    for row in transaction.rows(_QUESTION_BY_ID, id=request.id):
        stored_request = _verified_request(row, key)
        if not stored_request.always or stored_request.within != request.within:
            raise ApprovalError(NO_RULE)
        given_at = min(given_at, row["answered_at"] or given_at)
        request = msgspec.structs.replace(
            request, asked_by=stored_request.asked_by, untrusted=stored_request.untrusted
        )
    # if there is such a rule, the answer was used before
    for row in transaction.rows(_RULE_BY_ID, id=rule_id_of(request.id)):
        earlier = _rule_in(row, key)
        given_at = given_at if earlier is None else min(given_at, earlier.given_at)
    call = msgspec.structs.replace(call, request=request)
    rule = rule_from(call, always, by, key, given_at=given_at)
    if rule.expired():
        return None
    is_stored = transaction.execute(
        _KEEP_RULE,
        id=rule.id,
        definition_digest=rule.definition_digest,
        caller=as_column(rule.caller),
        content=msgspec.json.encode(rule).decode(),
        signature=signature_of(rule, key),
    )
    return rule if is_stored else None


def _rule_in(row: Row, key: bytes) -> ApprovalRule | None:
    """Return the rule in a row; None unless it is as it was signed, and in its own row."""
    try:
        rule = _RULE_DECODER.decode(row["content"])
    except msgspec.DecodeError:
        return None
    columns = (row["id"], row["definition_digest"], row["caller"])
    is_moved = columns != (rule.id, rule.definition_digest, as_column(rule.caller))
    return None if is_moved or not _has_signature(row, signature_of(rule, key)) else rule


def _has_signature(row: Row, signature: str) -> bool:
    actual = str(row["signature"]).encode("utf-8", "replace")
    return hmac.compare_digest(actual, signature.encode())


def _take_answer(
    transaction: Transaction, request: ApprovalRequest, pinned: JsonObject, key: bytes | None
) -> Answer | None:
    """Save the question if it is new; return its answer, marked as used."""
    text = msgspec.json.encode(request).decode()
    transaction.execute(
        _SAVE_QUESTION,
        id=request.id,
        run_id=as_column(request.run_id),
        call_id=as_column(request.call_id),
        request=text,
        expires_at=request.expires_at,
        pinned=json.dumps(pinned) if pinned else "",
        signature="" if key is None else _question_signature(key, request.id, text),
    )
    rows = transaction.rows(_QUESTION_BY_ID + transaction.for_update, id=request.id)
    if not rows:
        error = ApprovalError(
            f"call {request.call_id} was asked about before, as a different call: "
            "its arguments, its tool's definition or its caller have changed",
            ErrorCode.APPROVAL_MISMATCH,
        )
        call_columns = {"run_id": as_column(request.run_id), "call_id": as_column(request.call_id)}
        for row in transaction.rows(_QUESTIONS_OF_CALL, **call_columns):
            stored_request = _decoded(row, "request", _REQUEST_DECODER)
            error.asked_digest = stored_request.definition_digest
            error.code = mismatch(differing(stored_request, request))
        raise error
    answer = _fitting_answer(rows[0], request)
    if isinstance(answer, Approve) and answer.always is not None:
        _check_answer_signature(rows[0], key)
    if isinstance(answer, Approve):
        used = {"id": request.id, "now": time.time()}
        transaction.execute(_MARK_USED, **used)
        transaction.require([{"id": request.id}], _IS_USED, **used)
    return answer


def _fitting_answer(row: Row, request: ApprovalRequest) -> Answer | None:
    """Return the answer in a row, if it is for this very question and may still be used."""
    stored_request = _decoded(row, "request", _REQUEST_DECODER)
    differences = differing(stored_request, request)
    if row["expires_at"] != stored_request.expires_at:
        differences.append("expires_at")
    if differences:
        raise ApprovalError(
            f"approval {request.id} was given for another call: it differs in "
            + ", ".join(differences),
            mismatch(differences),
        )
    answer = None if row["answer"] is None else _decoded(row, "answer", _ANSWER_DECODER)
    if isinstance(answer, Refuse):
        return answer
    if row["used_at"] is not None:
        raise ApprovalError(f"approval {request.id} was used before", ErrorCode.ALREADY_USED)
    if stored_request.expired():
        raise _expired_error(request.id)
    return None if answer is None else answer.dated(row["answered_at"])


def _check_answer_signature(row: Row, key: bytes | None) -> None:
    """Raise ApprovalError for an answer that gives a rule and is not as it was signed."""
    if key is None or not _has_signature(row, _answer_signature(key, row)):
        reason = _NO_KEY if key is None else "it was changed, or signed with another state_key"
        message = f"the answer to approval {row['id']} gives a rule, but is not accepted: {reason}"
        raise ApprovalError(message, ErrorCode.INVALID_RULE)


def _pending_request(row: Row, key: bytes | None) -> ApprovalRequest:
    """Return the question in a row, without an offer that nobody could accept."""
    request = _decoded(row, "request", _REQUEST_DECODER)
    is_changed = key is not None and not _is_verified(row, key)
    return msgspec.structs.replace(request, always=False) if is_changed else request


def _verified_request(row: Row, key: bytes) -> ApprovalRequest:
    """Return the question in a row. Raises ApprovalError unless it is as it was signed when asked.

    The person answering must have seen what the rule is for.
    """
    if _is_verified(row, key):
        return _decoded(row, "request", _REQUEST_DECODER)
    raise ApprovalError(_CHANGED_QUESTION.format(row["id"]), ErrorCode.INVALID_RULE)


def _is_verified(row: Row, key: bytes) -> bool:
    has_question_signature = _has_signature(
        row, _question_signature(key, row["id"], row["request"])
    )
    return has_question_signature or _has_signature(row, _answer_signature(key, row))


def _question_signature(key: bytes, request_id: str, text: str) -> str:
    return keyed_digest(key, "question about an approval", request_id, text)


def _answer_signature(key: bytes, row: Row) -> str:
    """Return the signature of an answer that gives a rule; it covers the question and the time."""
    columns = (row["id"], row["request"], row["answer"], row["answered_at"])
    return keyed_digest(key, "answer that gives an approval rule", *map(str, columns))


def _answer_each(
    transaction: Transaction,
    texts: Mapping[str, str],
    always_approvals: Mapping[str, Approve],
    key: bytes | None,
) -> None:
    now = time.time()
    for request_id, text in texts.items():
        rows = transaction.rows(_QUESTION_BY_ID, id=as_column(request_id))
        signature = rows[0]["signature"] if rows else ""
        if rows and request_id in always_approvals:
            if key is None:
                raise ApprovalError(_NO_KEY)
            check_always(_verified_request(rows[0], key), always_approvals[request_id])
            signature = _answer_signature(key, {**rows[0], "answer": text, "answered_at": now})
        columns = {"id": as_column(request_id), "answer": text, "signature": signature, "now": now}
        if transaction.execute(_SAVE_ANSWER, **columns) == 1:
            continue
        if not rows:
            raise ApprovalError(
                f"there is no approval request {request_id}", ErrorCode.UNKNOWN_APPROVAL
            )
        if rows[0]["answer"] is None:
            raise _expired_error(request_id)
        raise ApprovalError(f"approval {request_id} was answered before", ErrorCode.ALREADY_USED)


def _answer_text(request_id: str, answer: Answer) -> str:
    try:
        if isinstance(answer, LimitedApprove):
            raise ApprovalError(
                "a LimitedApprove cannot be kept: give Approve(…) of somebody who may approve this"
            )
        return msgspec.json.encode(checked_answer(answer)).decode()
    except ApprovalError as error:
        message, code = f"approval {request_id}: {error}", error.code
    raise ApprovalError(message, code)


def _expired_error(request_id: str) -> ApprovalError:
    return ApprovalError(f"approval {request_id} has lapsed", ErrorCode.APPROVAL_EXPIRED)


def _decoded(row: Row, column: str, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(row[column])
    except msgspec.DecodeError:
        pass
    raise ApprovalError(f"the {column} of approval {row['id']} in the database cannot be read")
