"""Records: what is known of a call so far, until it is final, and how sinks are given it.

Records are made here and nowhere else, by keyword: a field that is added to them is filled here.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.runner.execute import until_done
from toolcrib.runner.output import (
    masked_arguments,
    masked_places,
    public_places,
    public_view,
    told_arguments,
)
from toolcrib.runner.running import CALLING, Calling
from toolcrib.runner.stopped import NOT_ITS_OWN, as_failure, raise_stop, rejection
from toolcrib.values.call import TOOL_CHANGED, Hydrated, HydrationResult
from toolcrib.values.content import PartInfo
from toolcrib.values.context import CallScope, StepRunner
from toolcrib.values.decision import ApprovalRequest, Approve, Caller, Decision
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, canonical_json, is_seen, keyed_digest
from toolcrib.values.record import (
    ALWAYS,
    NO_JSON,
    AppliedRule,
    Attachment,
    CallError,
    Failed,
    KeepsAttachments,
    KeyScope,
    Ledger,
    RecordStatus,
    Sink,
    SpentWithin,
    SuspendedCall,
    ToolInvocationRecord,
)
from toolcrib.values.run import RunRecord, WatchesRuns

_LONGEST_NOTICE = 2_000
_EDIT_REFUSED = (
    "Whoever approved this call changed its arguments to ones that do not fit. It has not run."
)
_EDITED = "Whoever approved this call changed its arguments."
_EDIT_FAILED = f"{_EDITED} It has not run."
_MAY_HAVE_RUN = frozenset((ErrorCode.OUTCOME_UNKNOWN, ErrorCode.DUPLICATE_CALL))
EditState: TypeAlias = Literal["none", "unread", "unfit", "taken"]
_NO_YES = frozenset((ErrorCode.APPROVAL_EXPIRED, ErrorCode.OTHER_CALL))
"""What ends a call because its answer is no yes to it."""
_NOT_OVER = frozenset({"started", "planned", "rejected"})  # nothing has run, or not to its end
_MOST_ATTACHED = 10_000
_OF_THIS_PROCESS = os.urandom(32)  # the key of digests where no ledger has one
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")


class CallFacts(msgspec.Struct, gc=False):
    """Holds what is known of one call so far, and what its records are made of.

    `came` says who called what: each record of the call is `came`, and what has become of it since.
    `key` is known once the call begins, and `spent` when the run of an agent that is its tool is over.
    """

    hydrated: HydrationResult
    scope: CallScope
    came: ToolInvocationRecord
    clock: float
    parent: Calling | None = None
    decision: Decision | None = None
    approved_by: str | None = None
    approval_id: str = ""
    refusal: str = ""
    # what an approver put in place of the arguments; `unread` if the call ended before it was read
    edit: EditState = "none"
    # of a call of which it is known that it began elsewhere: the record of that
    begun: ToolInvocationRecord | None = None
    unsure: bool = False  # whether that is of this call: nobody can compare them
    key: str = ""
    # of a call that goes on after it waited: for the nth time, claimed under this key
    claim: tuple[int, str] | tuple[()] = ()
    notes: tuple[str, ...] = ()
    spent: SpentWithin | None = None
    parts: tuple[PartInfo, ...] = ()
    rule: AppliedRule | None = None

    def take(self, hydrated: HydrationResult) -> None:
        """Take a repaired call; size and digest stay those of what was sent."""
        definition = hydrated.definition
        shown, defaulted = public_view(hydrated)
        self.hydrated = hydrated
        self.came = msgspec.structs.replace(
            self.came,
            name=public_name(hydrated),
            definition_digest="" if definition is None else definition.digest,
            arguments_json=shown,
            defaulted=defaulted,
        )

    def take_edit(self, hydrated: HydrationResult) -> None:
        """Take a call whose arguments an approver changed. How the model's call came stays what it
        was: its digest, the liberties taken in reading it, and who repaired it. Notes on arguments are
        on those that the record shows, which are the model's where the change did not fit."""
        came, fits = self.hydrated.provenance, isinstance(hydrated, Hydrated)
        now = hydrated.provenance.notes if fits else ()
        kept = (n for n in came.notes if n not in now and not (fits and _is_on_arguments(n)))
        provenance = msgspec.structs.replace(
            hydrated.provenance,
            repaired=came.repaired,
            repaired_by=came.repaired_by,
            notes=(*kept, *now),
        )
        hydrated = msgspec.structs.replace(hydrated, provenance=provenance)
        if fits:
            self.take(hydrated)
            self.edit = "taken"
        else:
            self.hydrated = hydrated

    def take_begun(self, known: ToolInvocationRecord, *, unsure: bool = False) -> None:
        """Take what is known of a call that began elsewhere: with which arguments, what judged these,
        and who let it. What its tool has marked as secret by now is masked."""
        self.begun, self.unsure, self.edit = known, unsure, "taken" if known.edited else "none"
        self.approved_by, self.approval_id = known.approved_by, known.approval_id
        self.rule, self.refusal = known.rule, known.refusal
        if ALWAYS in known.notes and ALWAYS not in self.notes:
            self.notes += (ALWAYS,)
        self._note_definition(known.definition_digest)
        told = msgspec.structs.replace(
            self.hydrated.provenance, validated=known.validated, validator=known.validator
        )
        self.hydrated = msgspec.structs.replace(self.hydrated, provenance=told)
        shown = masked_now(known, self.hydrated.definition)
        self.came = msgspec.structs.replace(
            self.came, arguments_json=shown.arguments_json, defaulted=shown.defaulted
        )

    def take_waiting(self, known: ToolInvocationRecord) -> None:
        """Take what is known of a call that waits in this process, and ends now: since when, too."""
        self.take_begun(known)
        self.decision = known.decision
        if known.started_at is not None:
            self.clock -= max(0.0, self.came.started_at - known.started_at)
            self.came = msgspec.structs.replace(self.came, started_at=known.started_at)

    def take_suspended(self, suspended: SuspendedCall) -> None:
        """Take by whose yes a call has begun that waits within, and by which rule, or which one that
        yes gave. It is told of the call however it ends: where it cannot go on, too."""
        if suspended.approval is None:
            return
        request, yes = suspended.approval
        self._note_definition(request.definition_digest)
        self.approved_by, self.approval_id = yes.by, request.id
        if self.edit == "none" and _is_edit(yes, request):  # with which it has begun, lapsed or not
            self.edit = "unread"
        if suspended.rule is not None:
            self.rule, asked = suspended.rule
            self.approval_id = asked or request.id
            self.notes += () if asked or ALWAYS in self.notes else (ALWAYS,)

    def _note_definition(self, begun_with: str) -> None:
        """Note that the tool is not the one that the call has begun with."""
        definition, notes = self.hydrated.definition, (*self.hydrated.provenance.notes, *self.notes)
        if definition is not None and definition.digest != begun_with and TOOL_CHANGED not in notes:
            self.notes += (TOOL_CHANGED,)

    def take_earlier_answer(self, by: str | None, edit: EditState) -> None:
        """Take the answer by which the call ended before: what was said now counts for nothing."""
        self.approved_by, self.edit = by, edit
        self.scope = msgspec.structs.replace(self.scope, answers={})

    def failed(self, error: CallError, told: str = "") -> Failed:
        if self.scope.answers and self.approved_by is None and error.code not in _NO_YES:
            self._note_answer()
        return Failed(self.record("failed", error=error), error, self.notice(error), told=told)

    def _note_answer(self) -> None:
        """Note an edit that was given beforehand, of a call that ended before it was read."""
        for id_, asked in self.scope.asked_about(self.hydrated.call.id):
            answer = self.scope.answers.get(id_)
            if isinstance(answer, Approve) and not asked.expired() and _is_edit(answer, asked):
                self.approved_by, self.approval_id, self.edit = answer.by, id_, "unread"

    def notice(self, error: CallError | None = None) -> str:
        """Tell the model, if the arguments were edited, which ones the result belongs to."""
        hydrated = self.hydrated
        if self.edit == "none":
            return ""
        if self.begun is not None:
            return made_with(self.came.arguments or {}, self.came.defaulted)
        if error is not None and not self.key and error.code in _MAY_HAVE_RUN:
            return _EDITED
        if self.key and self.edit != "taken":  # it has begun with what nobody can read now
            return _EDITED
        if self.edit == "unread" or (self.edit == "taken" and error is not None and not self.key):
            return _EDIT_FAILED
        if error is not None and error.code is ErrorCode.APPROVAL_REQUIRED:
            return _EDIT_FAILED  # whoever gave them may not: whether they fit is not what ended it
        if self.edit == "unfit" or not isinstance(hydrated, Hydrated):
            codes = {error.code for error in hydrated.errors}
            return _EDIT_FAILED if ErrorCode.UNUSABLE_TOOL in codes else _EDIT_REFUSED
        places = public_places(hydrated.definition, hydrated.defaults)
        return made_with(told_arguments(hydrated), places)

    def record(
        self,
        status: RecordStatus,
        result: bytes | None = None,
        error: CallError | None = None,
        *,
        key: str | None = None,
    ) -> ToolInvocationRecord:
        """Make the record of what is known by now: the one place where records are made.

        `result` is the public view as canonical JSON; `key` is that of a call that is about to begin.
        """
        provenance = self.hydrated.provenance
        over = status not in _NOT_OVER
        made = msgspec.structs.replace(
            self.came,
            status=status,
            result_json=NO_JSON if result is None or result == b"null" else msgspec.Raw(result),
            error=error,
            decision=self.decision,
            validated=provenance.validated,
            validator=provenance.validator,
            notes=provenance.notes + self.notes,
            idempotency_key=self.key if key is None else key,
            ended_at=time.time() if over else None,
            seconds=time.perf_counter() - self.clock if over else None,
        )
        if (
            self.approval_id
            or self.approved_by
            or provenance.repaired
            or provenance.no_schema_mode
            or self.parent
            or self.scope.choice
            or self.spent
        ):
            made = msgspec.structs.replace(made, **self._rare())
        if self.parts and status == "completed":
            made = msgspec.structs.replace(made, parts=self.parts)
        return made

    def going_on(self, claim: str, process: str) -> ToolInvocationRecord:
        """Return the entry that claims that the call goes on, in this process."""
        return msgspec.structs.replace(self.record("started", key=claim), process=process)

    @property
    def steps_around(self) -> StepRunner | None:
        """What keeps the steps of its run, or of the run that this is within."""
        return next((each.steps for each in self._scopes() if each.steps is not None), None)

    @property
    def may_have_begun(self) -> bool:
        """Whether it may have begun before: its run, or one that this is within, may have come here."""
        return any(each.went_before for each in self._scopes())

    def _scopes(self) -> Iterator[CallScope]:
        """Yield the scope of its run, and of those that this is within."""
        yield self.scope
        call = self.parent
        while call is not None:
            if isinstance(call.facts, CallFacts):
                yield call.facts.scope
            call = call.outer

    @property
    def called_off(self) -> bool:
        """Whether somebody has called off this call, or one that it is made within."""
        if self.scope.called_off():
            return True
        around = None if self.parent is None else self.parent.facts
        return isinstance(around, CallFacts) and around.called_off

    def _rare(self) -> dict[str, Any]:
        """Return the fields of a record that most calls leave at their defaults."""
        provenance, parent, choice = self.hydrated.provenance, self.parent, self.scope.choice
        return {
            "approved_by": self.approved_by,
            "approval_id": self.approval_id,
            "edited": self.edit != "none",
            "no_schema_mode": provenance.no_schema_mode,
            "repaired": provenance.repaired,
            "repaired_by": provenance.repaired_by,
            "refusal": self.refusal,
            "parent_run_id": "" if parent is None else parent.tally.run_id,
            "parent_call_id": "" if parent is None else parent.call_id,
            "spent": self.spent,
            "rule": self.rule,
            "picked": None if choice is None else choice.about(self.hydrated.call.name),
        }

    def attachments(self) -> Iterator[tuple[str, Callable[[], Attachment]]]:
        """Yield what the record refers to: a unique name, and what makes the attachment if needed."""
        definition = self.hydrated.definition
        if definition is not None:
            yield definition.digest, partial(_defined, definition)
        for attachment in self.scope.attachments:
            yield f"{attachment.run_id}/{attachment.digest}", partial(_as_it_is, attachment)


def _is_on_arguments(note: str) -> bool:
    """Return whether a note is on what the arguments are, and not on how they came."""
    return note == "normalised" or note.startswith("undeclared:")


def _is_edit(answer: Approve, asked: ApprovalRequest) -> bool:
    """Return whether a yes has other arguments than were asked about."""
    if answer.arguments is None or not is_seen(answer.by):
        return False
    try:
        return canonical_json(answer.arguments) != canonical_json(asked.arguments)
    except (TypeError, ValueError, RecursionError):  # no JSON, which was not asked about
        return True


class SinkResult(NamedTuple):
    """Holds what a sink gave, or raised; and, if the caller was cancelled
    meanwhile, what it has to raise."""

    given: object = None
    error: BaseException | None = None
    cancelled: asyncio.CancelledError | None = None

    def check(self) -> None:
        """Raise the cancellation, or the error, if there was one."""
        if self.cancelled is None and self.error is not None:
            raise self.error
        if self.cancelled is not None and self.error is not None:
            raise_stop(self.cancelled, self.error)
        if self.cancelled is not None:
            raise self.cancelled

    def only_stop(self) -> SinkResult:
        """Return the same without the error, which is told otherwise."""
        return SinkResult(self.given, None, self.cancelled)

    def and_then(self, later: SinkResult) -> SinkResult:
        """Return the same, with the first error and the first cancellation of both."""
        error, cancelled = self.error or later.error, self.cancelled or later.cancelled
        return SinkResult(self.given, error, cancelled)


DONE = SinkResult()
"""What a sink did that gave nothing, in nobody's way."""


def masked_now(
    known: ToolInvocationRecord, definition: ToolDefinition | None
) -> ToolInvocationRecord:
    """Return the record of a call that began with another definition of its tool, with the arguments
    masked that are secret by this one."""
    if definition is None or not definition.secret or definition.digest == known.definition_digest:
        return known
    arguments = msgspec.json.encode(masked_arguments(definition, known.arguments or {}))
    return msgspec.structs.replace(
        known,
        arguments_json=msgspec.Raw(arguments),
        defaulted=masked_places(definition, known.defaulted),
    )


def made_with(arguments: JsonObject, defaulted: Sequence[str]) -> str:
    """Tell the model with which arguments a call was made that whoever approved it had edited."""
    ran = canonical_json(arguments)
    if len(ran) > _LONGEST_NOTICE:
        ran = f"{ran[:_LONGEST_NOTICE]} … ({len(ran)} characters)"
    marked = f" (defaults: {', '.join(defaulted)})" if defaulted else ""
    return f"{_EDITED} It was made with: {ran}{marked}"


class Recorder:
    """Begins the records of one runner's calls, and writes them to its sinks.

    A sink that keeps attachments has been given what a record refers to before it is given the record.
    """

    def __init__(self, sinks: tuple[Sink, ...], ledger: Ledger | None) -> None:
        self.sinks = sinks
        self.others = tuple(sink for sink in sinks if sink is not ledger)
        self.key_scope: KeyScope = "process" if ledger is None else "store"
        mac = getattr(ledger, "mac", None)
        self._mac = mac if callable(mac) else partial(keyed_digest, _OF_THIS_PROCESS)
        keepers = [sink for sink in sinks if isinstance(sink, KeepsAttachments)]
        # of each, the names of what it was given, with the generation that it was of before and after
        self._attached: dict[int, dict[str, object]] = {id(keeper): {} for keeper in keepers}

    def facts(
        self,
        hydrated: HydrationResult,
        caller: Caller,
        scope: CallScope,
        parent: Calling | None = None,
    ) -> CallFacts:
        """Return what is known of a call that comes in now, made by the tool of `parent` if by one.

        Of arguments that hold secrets there is no sha256, which could be tried out, but a keyed digest,
        bound to this call: equal secrets of two calls do not look equal.
        """
        call, definition, tally = hydrated.call, hydrated.definition, scope.tally
        data = call.arguments.encode("utf-8", "surrogatepass")
        secret = () if definition is None else definition.secret
        shown, defaulted = public_view(hydrated)
        came = ToolInvocationRecord(
            id=call.id,
            name=public_name(hydrated) if definition is None else call.name,
            status="started",
            started_at=time.time(),
            run_id=tally.run_id,
            caller=caller.id,
            caller_roles=caller.roles,
            definition_digest="" if definition is None else definition.digest,
            arguments_json=shown,
            arguments_bytes=len(data),
            arguments_sha256="" if secret else sha256(data).hexdigest(),
            arguments_mac=self._mac(tally.run_id, call.id, call.arguments) if secret else "",
            defaulted=defaulted,
            key_scope=self.key_scope,
            origin=scope.origin,
        )  # Python makes a dictionary of more keywords, which takes as long as all the rest
        if call.provider_id or call.payload is not None:
            payload = call.payload
            came = msgspec.structs.replace(came, provider_id=call.provider_id, payload=payload)
        return CallFacts(hydrated, scope, came, time.perf_counter(), parent)

    def begin_write(
        self, sink: Sink, record: ToolInvocationRecord, facts: CallFacts
    ) -> SinkResult | Awaitable[SinkResult]:
        """Give a sink a record: what it did at once, or what is awaited to the end."""
        names = self._attached.get(id(sink)) if self._attached else None
        if names is not None and (
            getattr(sink, "generation", None) is not None or self.lacks(sink, facts)
        ):
            return self.write(sink, record, facts)  # or may turn out to have lost what it had
        try:
            pending = sink.write(record)
        except NOT_ITS_OWN:
            raise
        except BaseException as raised:  # noqa: BLE001  a sink may raise anything
            return SinkResult(error=as_failure(raised))
        return DONE if pending is None else to_the_end(lambda: pending)

    async def write(self, sink: Sink, record: ToolInvocationRecord, facts: CallFacts) -> SinkResult:
        """Give a sink a record, and before it what the record refers to, to the end.

        The record is written also where what it refers to could not be. What a sink had lost, as it
        turns out by writing, is given to it once more.
        """
        generation = getattr(sink, "generation", None)
        attached = await self.attach(sink, facts) if self.lacks(sink, facts) else DONE
        written = await to_the_end(partial(sink.write, record))
        kept = id(sink) not in self._attached or generation == getattr(sink, "generation", None)
        if kept and attached is DONE:
            return written
        away = kept and written.error is not None  # it takes nothing just now
        lost = DONE if away else await self.attach(sink, facts)
        return written.and_then(attached).and_then(lost)

    async def attach(self, sink: Sink, facts: CallFacts) -> SinkResult:
        """Give a sink what the record of a call will refer to, if it keeps that and has it not yet."""
        told = DONE
        if not self.lacks(sink, facts):
            return told
        names, wanted = self._attached[id(sink)], facts.attachments()
        missing = [(n, make) for n, make in wanted if not self._has(sink, n)]
        for name, make in missing:
            generation = getattr(sink, "generation", None)
            attached = await to_the_end(partial(_attach, cast("KeepsAttachments", sink), make))
            if attached.error is None and generation == getattr(sink, "generation", None):
                if len(names) >= _MOST_ATTACHED:
                    names.clear()  # a sink may be given one again
                names[name] = generation
            told = told.and_then(attached)
        return told

    async def plan(self, hydrated: HydrationResult, caller: Caller, scope: CallScope) -> None:
        """Write down, in every sink, a call that nobody is asked to run. It has no idempotency key, and
        so no ledger takes it for one that was begun. Raises what the first failing sink does."""
        facts = self.facts(hydrated, caller, scope, CALLING.get())
        if isinstance(hydrated, Hydrated):
            record = facts.record("planned")
        else:
            record = facts.record("rejected", error=rejection(hydrated))
        told = DONE
        for sink in self.sinks:
            told = told.and_then(await self.write(sink, record, facts))
        told.check()

    async def write_run(self, record: RunRecord) -> None:
        """Tell every sink that watches runs. Raises what a sink raises, and CancelledError."""
        told = DONE
        for sink in self.sinks:
            if isinstance(sink, WatchesRuns):
                told = told.and_then(await to_the_end(partial(sink.write_run, record)))
        told.check()

    def lacks(self, sink: Sink, facts: CallFacts) -> bool:
        """Return whether a sink keeps attachments, and may lack one that the call's record refers to.

        Mostly that is one definition. A sink may have lost what it was given in another generation.
        """
        if id(sink) not in self._attached:
            return False
        definition = facts.hydrated.definition
        known = definition is None or self._has(sink, definition.digest)
        return not known or bool(facts.scope.attachments)

    def _has(self, sink: Sink, name: str) -> bool:
        """Return whether a sink was given this while it was of the generation that it is of now."""
        return self._attached[id(sink)].get(name, self) == getattr(sink, "generation", None)


def _attach(sink: KeepsAttachments, make: Callable[[], Attachment]) -> Awaitable[object] | None:
    return sink.attach(make())


def _defined(definition: ToolDefinition) -> Attachment:
    return Attachment(definition.digest, "definition", definition.canonical(), definition.name)


def _as_it_is(attachment: Attachment) -> Attachment:
    return attachment


def public_name(call: HydrationResult) -> str:
    """Return the name for records; one that a model made up shows only if it looks like a name."""
    name = call.call.name
    return name if call.definition or _NAME.fullmatch(name) else "*"


async def to_the_end(work: Callable[[], Awaitable[object] | object]) -> SinkResult:
    """Begin something, and await it to its end, if there is something to await: cancelling the caller,
    however often, must not interrupt it."""
    cancelled = None
    try:
        pending = work()
        if pending is None:
            return DONE
        if not inspect.isawaitable(pending):
            return SinkResult(pending)
        future = asyncio.ensure_future(pending)
        cancelled = await until_done(future)
        given = future.result()
    except NOT_ITS_OWN:
        raise
    except BaseException as raised:  # noqa: BLE001  a sink may raise anything
        return SinkResult(None, raised if cancelled else as_failure(raised), cancelled)
    return DONE if given is None and cancelled is None else SinkResult(given, None, cancelled)
