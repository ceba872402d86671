"""Records: what is known of a call until its final record, and how records reach the sinks.

Rule: records are made here and nowhere else, by keyword. A field that is added to them is filled
here.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec

from toolcrib.errors import ErrorCode
from toolcrib.runner.execute import until_done
from toolcrib.runner.output import (
    arguments_for_model,
    masked_arguments,
    masked_pointers,
    public_pointers,
    public_view,
)
from toolcrib.runner.running import CALLING, Calling
from toolcrib.runner.stopped import NOT_ITS_OWN, as_failure, raise_stop, rejection
from toolcrib.tools import Catalog
from toolcrib.values.call import (
    TOOL_CHANGED,
    Hydrated,
    HydrationResult,
    Rejected,
    name_in_records,
)
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

_MAX_NOTICE = 2_000
_EDIT_REFUSED = (
    "Whoever approved this call changed its arguments, but the changed arguments are not valid. It has"
    " not run."
)
_EDITED = "Whoever approved this call changed its arguments."
_EDIT_FAILED = f"{_EDITED} It has not run."
_MAY_HAVE_RUN = frozenset((ErrorCode.OUTCOME_UNKNOWN, ErrorCode.DUPLICATE_CALL))
EditState: TypeAlias = Literal["none", "unread", "unfit", "taken"]
_NO_APPROVAL = frozenset((ErrorCode.APPROVAL_EXPIRED, ErrorCode.OTHER_CALL))
"""The codes that end a call because its answer is not a yes to it."""
_UNFINISHED = frozenset({"started", "planned", "rejected"})  # nothing has run, or not to its end
_MOST_ATTACHED = 10_000
_PROCESS_KEY = os.urandom(32)  # the key of digests if no ledger has one


class CallFacts(msgspec.Struct, gc=False):
    """Holds what is known of one call so far, from which its records are made.

    `initial` is its record as it arrived: each later record is that plus what has happened since.
    `key` is known once the call begins, and `spent` once the run of an agent that is its tool is
    over.
    """

    hydrated: HydrationResult
    scope: CallScope
    initial: ToolInvocationRecord
    start_clock: float
    parent: Calling | None = None
    decision: Decision | None = None
    approved_by: str | None = None
    approval_id: str = ""
    refusal: str = ""
    # What an approver put in place of the arguments; `unread` if the call ended before it was read.
    edit: EditState = "none"
    # The record of a call that is known to have begun elsewhere.
    begun_record: ToolInvocationRecord | None = None
    unsure: bool = False  # whether `begun_record` may be of another call: nobody can compare them
    key: str = ""
    # For a call resumed after it waited: how many times, and the key that claims it.
    claim: tuple[int, str] | tuple[()] = ()
    notes: tuple[str, ...] = ()
    spent: SpentWithin | None = None
    parts: tuple[PartInfo, ...] = ()
    rule: AppliedRule | None = None

    def take(self, hydrated: HydrationResult) -> None:
        """Take over a repaired call; size and digest remain those of what was sent."""
        definition = hydrated.definition
        arguments, defaulted = public_view(hydrated)
        self.hydrated = hydrated
        self.initial = msgspec.structs.replace(
            self.initial,
            name=public_name(hydrated),
            definition_digest="" if definition is None else definition.digest,
            arguments_json=arguments,
            defaulted=defaulted,
        )

    def take_edit(self, hydrated: HydrationResult) -> None:
        """Take over a call whose arguments an approver changed.

        How the model's call arrived stays unchanged: its digest, the liberties taken in reading it,
        and who repaired it. Notes on arguments are about those that the record shows, which are the
        model's if the edit did not fit.
        """
        sent, fits = self.hydrated.provenance, isinstance(hydrated, Hydrated)
        new_notes = hydrated.provenance.notes if fits else ()
        # notes on the arguments themselves are dropped with the arguments
        dropped = ("normalised", "undeclared:") if fits else ()
        kept_notes = (
            note for note in sent.notes if note not in new_notes and not note.startswith(dropped)
        )
        provenance = msgspec.structs.replace(
            hydrated.provenance,
            repaired=sent.repaired,
            repaired_by=sent.repaired_by,
            notes=(*kept_notes, *new_notes),
        )
        hydrated = msgspec.structs.replace(hydrated, provenance=provenance)
        if fits:
            self.take(hydrated)
            self.edit = "taken"
        else:
            self.hydrated = hydrated

    def take_begun(self, record: ToolInvocationRecord, *, unsure: bool = False) -> None:
        """Take over what is known of a call that began elsewhere.

        That is its arguments, how they were validated, and who approved it. What its tool has
        marked as secret by now is masked.
        """
        self.begun_record = record
        self.unsure = unsure
        self.edit = "taken" if record.edited else "none"
        self.approved_by, self.approval_id = record.approved_by, record.approval_id
        self.rule, self.refusal = record.rule, record.refusal
        if ALWAYS in record.notes and ALWAYS not in self.notes:
            self.notes += (ALWAYS,)
        self._note_definition(record.definition_digest)
        provenance = msgspec.structs.replace(
            self.hydrated.provenance, validated=record.validated, validator=record.validator
        )
        self.hydrated = msgspec.structs.replace(self.hydrated, provenance=provenance)
        masked = masked_record(record, self.hydrated.definition)
        self.initial = msgspec.structs.replace(
            self.initial, arguments_json=masked.arguments_json, defaulted=masked.defaulted
        )

    def take_waiting(self, record: ToolInvocationRecord) -> None:
        """Take over what is known of a call that waits in this process and ends now.

        This includes when it started.
        """
        self.take_begun(record)
        self.decision = record.decision
        if record.started_at is not None:
            self.start_clock -= max(0.0, self.initial.started_at - record.started_at)
            self.initial = msgspec.structs.replace(self.initial, started_at=record.started_at)

    def take_suspended(self, suspended: SuspendedCall) -> None:
        """Take over who approved a suspended call, and which rule was applied or given.

        The record has this however the call ends, even if it cannot resume.
        """
        if suspended.approval is None:
            return
        request, yes = suspended.approval
        self._note_definition(request.definition_digest)
        self.approved_by, self.approval_id = yes.by, request.id
        if self.edit == "none" and _is_edit(yes, request):  # expired or not, it began so
            self.edit = "unread"
        if suspended.rule is not None:
            self.rule, approval_id = suspended.rule
            self.approval_id = approval_id or request.id
            self.notes += () if approval_id or ALWAYS in self.notes else (ALWAYS,)

    def _note_definition(self, digest: str) -> None:
        """Note that the tool is not the one that the call began with."""
        definition, notes = self.hydrated.definition, (*self.hydrated.provenance.notes, *self.notes)
        if definition is not None and definition.digest != digest and TOOL_CHANGED not in notes:
            self.notes += (TOOL_CHANGED,)

    def take_earlier_answer(self, by: str | None, edit: EditState) -> None:
        """Take over the answer that ended the call before; the present answer does not count."""
        self.approved_by, self.edit = by, edit
        self.scope = msgspec.structs.replace(self.scope, answers={})

    def failed(self, error: CallError, model_text: str = "") -> Failed:
        if self.scope.answers and self.approved_by is None and error.code not in _NO_APPROVAL:
            self._note_answer()
        return Failed(
            self.record("failed", error=error), error, self.notice(error), model_text=model_text
        )

    def _note_answer(self) -> None:
        """Note an edit that was given in advance for a call that ended before the edit was read."""
        for id_, request in self.scope.questions_about(self.hydrated.call.id):
            answer = self.scope.answers.get(id_)
            if isinstance(answer, Approve) and not request.expired() and _is_edit(answer, request):
                self.approved_by, self.approval_id, self.edit = answer.by, id_, "unread"

    def notice(self, error: CallError | None = None) -> str:
        """Return what tells the model, after an edit, which arguments the result belongs to."""
        hydrated = self.hydrated
        if self.edit == "none":
            return ""
        if self.begun_record is not None:
            return edit_notice(self.initial.arguments or {}, self.initial.defaulted)
        if error is not None and not self.key and error.code in _MAY_HAVE_RUN:
            return _EDITED
        if self.key and self.edit != "taken":  # it began with arguments that cannot be read now
            return _EDITED
        if self.edit == "unread" or (self.edit == "taken" and error is not None and not self.key):
            return _EDIT_FAILED
        if error is not None and error.code is ErrorCode.APPROVAL_REQUIRED:
            return _EDIT_FAILED  # whoever edited may not: whether it fits is not why it ended
        if self.edit == "unfit" or not isinstance(hydrated, Hydrated):
            codes = {error.code for error in hydrated.errors}
            return _EDIT_FAILED if ErrorCode.UNUSABLE_TOOL in codes else _EDIT_REFUSED
        defaulted = public_pointers(hydrated.definition, hydrated.defaults)
        return edit_notice(arguments_for_model(hydrated), defaulted)

    def record(
        self,
        status: RecordStatus,
        result: bytes | None = None,
        error: CallError | None = None,
        *,
        key: str | None = None,
    ) -> ToolInvocationRecord:
        """Make the record of what is known by now: the one place where records are made.

        `result` is the public view as canonical JSON; `key` is the key of a call about to begin.
        """
        provenance = self.hydrated.provenance
        is_over = status not in _UNFINISHED
        record = msgspec.structs.replace(
            self.initial,
            status=status,
            result_json=NO_JSON if result is None or result == b"null" else msgspec.Raw(result),
            error=error,
            decision=self.decision,
            validated=provenance.validated,
            validator=provenance.validator,
            notes=provenance.notes + self.notes,
            idempotency_key=self.key if key is None else key,
            ended_at=time.time() if is_over else None,
            seconds=time.perf_counter() - self.start_clock if is_over else None,
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
            record = msgspec.structs.replace(record, **self._rare_fields())
        if self.parts and status == "completed":
            record = msgspec.structs.replace(record, parts=self.parts)
        return record

    def resuming_entry(self, claim: str, process: str) -> ToolInvocationRecord:
        """Return the entry that claims to resume the call in this process."""
        return msgspec.structs.replace(self.record("started", key=claim), process=process)

    @property
    def steps_around(self) -> StepRunner | None:
        """What stores the steps of its run, or of a run that this one is within."""
        return next((scope.steps for scope in self._scopes() if scope.steps is not None), None)

    @property
    def may_have_begun(self) -> bool:
        """Whether it may have begun before: its run or an outer one may have been here already."""
        return any(scope.may_have_begun for scope in self._scopes())

    def _scopes(self) -> Iterator[CallScope]:
        yield self.scope
        call = self.parent
        while call is not None:
            if isinstance(call.facts, CallFacts):
                yield call.facts.scope
            call = call.outer

    @property
    def called_off(self) -> bool:
        """Whether this call, or one that it is made within, was called off."""
        if self.scope.called_off():
            return True
        outer = None if self.parent is None else self.parent.facts
        return isinstance(outer, CallFacts) and outer.called_off

    def _rare_fields(self) -> dict[str, Any]:
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

    def attachments(self) -> Iterator[tuple[str, Attachment | ToolDefinition]]:
        """Yield what the record refers to, each with a unique name."""
        definition = self.hydrated.definition
        if definition is not None:
            yield definition.digest, definition
        for attachment in self.scope.attachments:
            yield f"{attachment.run_id}/{attachment.digest}", attachment


def _is_edit(answer: Approve, request: ApprovalRequest) -> bool:
    """Return whether a yes has other arguments than were asked about."""
    if answer.arguments is None or not is_seen(answer.by):
        return False
    try:
        return canonical_json(answer.arguments) != canonical_json(request.arguments)
    except (TypeError, ValueError, RecursionError):  # not JSON, so not what was asked
        return True


class SinkResult(NamedTuple):
    """Holds what a sink returned or raised.

    If the caller was cancelled in the meantime, it also holds the cancellation to raise.
    """

    value: object = None
    error: BaseException | None = None
    cancelled: asyncio.CancelledError | None = None

    def check(self) -> None:
        """Raise the cancellation, or the error, if there was one."""
        if self.cancelled is not None and self.error is not None:
            raise_stop(self.cancelled, self.error)
        stop = self.error if self.cancelled is None else self.cancelled
        if stop is not None:
            raise stop

    def without_error(self) -> SinkResult:
        """Return the same without the error, which is reported otherwise."""
        return SinkResult(self.value, None, self.cancelled)

    def and_then(self, other: SinkResult) -> SinkResult:
        """Return the same, with the first error and the first cancellation of both."""
        error, cancelled = self.error or other.error, self.cancelled or other.cancelled
        return SinkResult(self.value, error, cancelled)


DONE = SinkResult()
"""The result of a sink that returned nothing, without error or cancellation."""


def masked_record(
    record: ToolInvocationRecord, definition: ToolDefinition | None
) -> ToolInvocationRecord:
    """Return the record of a call, with arguments masked that this definition makes secret.

    Nothing is changed if the call began with this same definition.
    """
    if definition is None or not definition.secret or definition.digest == record.definition_digest:
        return record
    arguments = msgspec.json.encode(masked_arguments(definition, record.arguments or {}))
    return msgspec.structs.replace(
        record,
        arguments_json=msgspec.Raw(arguments),
        defaulted=masked_pointers(definition, record.defaulted),
    )


def edit_notice(arguments: JsonObject, defaulted: Sequence[str]) -> str:
    """Return what tells the model which edited arguments a call was made with."""
    text = canonical_json(arguments)
    if len(text) > _MAX_NOTICE:
        text = f"{text[:_MAX_NOTICE]} … ({len(text)} characters)"
    defaults = f" (defaults: {', '.join(defaulted)})" if defaulted else ""
    return f"{_EDITED} It was made with: {text}{defaults}"


class Recorder:
    """Begins the records of one runner's calls, and writes them to its sinks.

    A sink that keeps attachments gets what a record refers to before the record itself.
    """

    def __init__(self, sinks: tuple[Sink, ...], ledger: Ledger | None) -> None:
        self.sinks = sinks
        self.others = tuple(sink for sink in sinks if sink is not ledger)
        self.key_scope: KeyScope = "process" if ledger is None else "store"
        mac = getattr(ledger, "mac", None)
        self._mac = mac if callable(mac) else partial(keyed_digest, _PROCESS_KEY)
        keepers = [sink for sink in sinks if isinstance(sink, KeepsAttachments)]
        # For each keeper: the names of its attachments, with its generation at the time.
        self._attached: dict[int, dict[str, object]] = {id(keeper): {} for keeper in keepers}

    def facts(
        self,
        hydrated: HydrationResult,
        caller: Caller,
        scope: CallScope,
        parent: Calling | None = None,
        catalog: Catalog | None = None,
    ) -> CallFacts:
        """Return what is known of a call that arrives now; `parent` is the call whose tool made it.

        Arguments with secrets get no sha256, since guesses could be tested against it. They get a
        keyed digest bound to this call, so that equal secrets in two calls do not look equal. So do
        refused arguments if any tool of the `catalog` has secrets: the model may have meant it.
        """
        call, definition, tally = hydrated.call, hydrated.definition, scope.tally
        encoded = call.arguments.encode("utf-8", "surrogatepass")
        has_secrets = bool(definition and definition.secret) or (
            isinstance(hydrated, Rejected) and catalog is not None and catalog.has_secrets
        )
        arguments, defaulted = public_view(hydrated)
        initial = ToolInvocationRecord(
            id=call.id,
            name=public_name(hydrated) if definition is None else call.name,
            status="started",
            started_at=time.time(),
            run_id=tally.run_id,
            caller=caller.id,
            caller_roles=caller.roles,
            definition_digest="" if definition is None else definition.digest,
            arguments_json=arguments,
            arguments_bytes=len(encoded),
            arguments_sha256="" if has_secrets else sha256(encoded).hexdigest(),
            arguments_mac=self._mac(tally.run_id, call.id, call.arguments) if has_secrets else "",
            defaulted=defaulted,
            key_scope=self.key_scope,
            origin=scope.origin,
        )  # more keywords would make Python build a dictionary, which takes as long as all the rest
        if call.provider_id or call.payload is not None:
            payload = call.payload
            initial = msgspec.structs.replace(
                initial, provider_id=call.provider_id, payload=payload
            )
        return CallFacts(hydrated, scope, initial, time.perf_counter(), parent)

    def begin_write(
        self, sink: Sink, record: ToolInvocationRecord, facts: CallFacts
    ) -> SinkResult | Awaitable[SinkResult]:
        """Give a sink a record; return what it did at once, or what to await to the end."""
        if id(sink) in self._attached and (
            getattr(sink, "generation", None) is not None or self.lacks(sink, facts)
        ):
            return self.write(sink, record, facts)  # it may also have lost its attachments
        try:
            pending = sink.write(record)
        except NOT_ITS_OWN:
            raise
        except BaseException as raised:  # noqa: BLE001  a sink may raise anything
            return SinkResult(error=as_failure(raised))
        return DONE if pending is None else to_the_end(lambda: pending)

    async def write(self, sink: Sink, record: ToolInvocationRecord, facts: CallFacts) -> SinkResult:
        """Give a sink first what a record refers to, then the record, to the end.

        The record is written even if an attachment could not be. If writing shows that the sink
        lost an attachment, it gets that once more.
        """
        generation = getattr(sink, "generation", None)
        attach_result = await self.attach(sink, facts) if self.lacks(sink, facts) else DONE
        write_result = await to_the_end(partial(sink.write, record))
        has_kept = id(sink) not in self._attached or generation == getattr(sink, "generation", None)
        if has_kept and attach_result is DONE:
            return write_result
        is_unavailable = has_kept and write_result.error is not None  # it accepts nothing now
        reattach_result = DONE if is_unavailable else await self.attach(sink, facts)
        return write_result.and_then(attach_result).and_then(reattach_result)

    async def attach(self, sink: Sink, facts: CallFacts) -> SinkResult:
        """Give a sink the attachments of a call's record that it keeps and does not have yet."""
        sink_result, names = DONE, self._attached[id(sink)]
        generation = getattr(sink, "generation", None)
        lacking = [
            entry for entry in facts.attachments() if names.get(entry[0], self) != generation
        ]
        for name, attachment in lacking:
            generation = getattr(sink, "generation", None)
            attach_result = await to_the_end(
                partial(_attach, cast("KeepsAttachments", sink), attachment)
            )
            if attach_result.error is None and generation == getattr(sink, "generation", None):
                if len(names) >= _MOST_ATTACHED:
                    names.clear()  # a sink may get one twice
                names[name] = generation
            sink_result = sink_result.and_then(attach_result)
        return sink_result

    async def plan(
        self, hydrated: HydrationResult, caller: Caller, scope: CallScope, catalog: Catalog
    ) -> None:
        """Record, in every sink, a call that nobody is asked to run.

        It has no idempotency key, so no ledger mistakes it for a call that began. Raises what the
        first failing sink raises.
        """
        facts = self.facts(hydrated, caller, scope, CALLING.get(), catalog)
        error = None if isinstance(hydrated, Hydrated) else rejection(hydrated)
        record = facts.record("planned" if error is None else "rejected", error=error)
        sink_result = DONE
        for sink in self.sinks:
            sink_result = sink_result.and_then(await self.write(sink, record, facts))
        sink_result.check()

    async def write_run(self, record: RunRecord) -> None:
        """Tell every sink that watches runs. Raises what a sink raises, and CancelledError."""
        sink_result = DONE
        for sink in self.sinks:
            if isinstance(sink, WatchesRuns):
                sink_result = sink_result.and_then(
                    await to_the_end(partial(sink.write_run, record))
                )
        sink_result.check()

    def lacks(self, sink: Sink, facts: CallFacts) -> bool:
        """Return whether a sink keeps attachments and may lack one that the record refers to.

        Usually that is one definition. A sink may have lost what it was given in another
        generation.
        """
        names, definition = self._attached.get(id(sink)), facts.hydrated.definition
        if names is None:
            return False
        if facts.scope.attachments or definition is None:
            return bool(facts.scope.attachments)
        return names.get(definition.digest, self) != getattr(sink, "generation", None)


def _attach(
    sink: KeepsAttachments, attachment: Attachment | ToolDefinition
) -> Awaitable[object] | None:
    if isinstance(attachment, ToolDefinition):
        attachment = Attachment(
            attachment.digest, "definition", attachment.canonical(), attachment.name
        )
    return sink.attach(attachment)


def public_name(call: HydrationResult) -> str:
    """Return the name for records; a made-up one shows only if it looks like a name."""
    name = call.call.name
    return name if call.definition else name_in_records(name)


async def to_the_end(work: Callable[[], Awaitable[object] | object]) -> SinkResult:
    """Start something and, if it is awaitable, await it to its end.

    However often the caller is cancelled, it is not interrupted.
    """
    cancelled = None
    try:
        pending = work()
        if pending is None:
            return DONE
        if isinstance(pending, asyncio.Future):  # from an audit log: it needs no task
            future: asyncio.Future[object] = pending
        elif inspect.isawaitable(pending):
            future = asyncio.ensure_future(pending)
        else:
            return SinkResult(pending)
        cancelled = await until_done(future)
        value = future.result()
    except NOT_ITS_OWN:
        raise
    except BaseException as raised:  # noqa: BLE001  a sink may raise anything
        return SinkResult(None, raised if cancelled else as_failure(raised), cancelled)
    return DONE if value is None and cancelled is None else SinkResult(value, None, cancelled)
