"""What happened to a call, and why it was made: the error, the origin, the record, the outcome.

A record holds only public views: declared arguments that are not secret, allowed result fields,
fixed error texts. Sinks, events and audit get records and nothing else about a call.

Data that many records share is stored once. A record holds an `Origin`, which is small. Long texts
(a definition, a prompt, a choice) are each an `Attachment`, kept once and referred to by its
digest. The digest is the SHA-256 of the text, so that any reader can verify it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from toolcrib.errors import ErrorCode, Stage
from toolcrib.values.call import TOOL_CHANGED, HydrationError, PayloadRef, ValidatorInfo
from toolcrib.values.content import Image, Link, Part, PartInfo, kind_of, media_type_of, part_info
from toolcrib.values.decision import ApprovalRequest, Approve, Decision, OuterCall
from toolcrib.values.definition import HasDefinition, NoSchemaMode, ToolDefinition
from toolcrib.values.json import (
    JsonObject,
    JsonValue,
    Redacted,
    canonical_json,
    encodable,
    fresh,
    sha256_hex,
)
from toolcrib.values.media import shown_in
from toolcrib.values.message import Message, Usage

T = TypeVar("T", int, float)


class CallError(msgspec.Struct, frozen=True, gc=False):
    """Says why a call did not complete. The message is safe: fixed text, or an author's `ToolError`.

    `retryable` says that the call may be made again. It is never true if an effect may have
    happened: the tool ran, and is neither idempotent nor read-only.
    """

    code: ErrorCode
    message: str
    stage: Stage
    retryable: bool
    details: tuple[HydrationError, ...] = ()

    def __str__(self) -> str:
        """Return `invalid_arguments at /value: expected number, got string`.

        Details without a path come last.
        """
        located = [f"{detail.path}: {detail.message}" for detail in self.details if detail.path]
        unlocated = [detail.message for detail in self.details if not detail.path] or (
            [] if located else [self.message]
        )
        return f"{self.code}{' at' if located else ':'} {'; '.join(located + unlocated)}"

    @staticmethod
    def of(
        code: ErrorCode,
        message: str | None = None,
        *,
        details: tuple[HydrationError, ...] = (),
        retryable: bool | None = None,
    ) -> CallError:
        """Return the error with the code's own text and retryability, unless others are given."""
        stage, default_retryable, text = code.info
        return CallError(
            code,
            message or text,
            details[0].stage if details else stage,
            default_retryable if retryable is None else retryable,
            details,
        )


RecordStatus: TypeAlias = Literal[
    "started", "completed", "failed", "waiting", "planned", "rejected"
]
"""`planned` and `rejected` are hydrated calls that nobody was asked to run."""
KeyScope: TypeAlias = Literal["process", "store"]
_ENDS_OF_ATTEMPTS = (ErrorCode.CANCELLED, ErrorCode.NOT_RECORDED, ErrorCode.DUPLICATE_CALL)


FOR_RUN = "approved_for_run"
"""The note on a call whose approval covers the tool for the whole run."""


ALWAYS = "approved_always"
"""The note on a call whose approval also made a rule for calls like it."""


FOR_RUN_EXACTLY = "approved_exactly_for_run"
"""The note on a call whose approval covers the same call for the whole run."""


LEFT_BEHIND = "left_behind"
"""The note on a call whose tool was told to stop, and still ran when the outcome was reported."""


SUSPENDED = "suspended"
"""The note on a call that waits although its tool has begun, because the tool asked a question."""


PART_WAITED = (
    "The call had begun and was waiting for approval of a part of it. It is not continued, "
    "and what it already did is not undone."
)
"""The error text for a suspended call that is not resumed."""


EMULATED = "emulated"
"""The note on a call whose tool was replaced by an emulation. Nothing began, and nothing
happened."""


MADE_UP = (
    "the run was emulated, so what its tools gave was made up, and nothing has happened: "
    "resume it with the agent that ToolEmulator(…).over(…) returns, or start a new run"
)
"""The error text if an emulated run would be resumed for real."""


READ_UNTRUSTED = "read_untrusted"
"""The note on a call inside whose tool a run was tainted. Whoever receives its outcome again is
tainted, too."""


NO_JSON = msgspec.Raw(b"null")
"""The text for absent arguments and results."""


PEOPLE = ("system", "user")
_MOST_EXCLUDED = 200
_LONGEST_REASON = 300


class Candidate(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A tool that a pick considered: its score in 0..1 (None if not scored) and the reason."""

    name: str
    score: float | None = None
    reason: str = ""

    @staticmethod
    def of(name: str, score: float | None, reason: str) -> Candidate:
        """Return a candidate with a reason that a record can hold, whoever wrote it."""
        text = encodable(reason)
        short = text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 1]}…"
        return Candidate(name, score, short)


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """Says why a run offered these tools to its model, and not others.

    `offered` are the tools on offer, the best first. Those picked by `scorer` have a score, the
    others a reason (offered or called earlier in the conversation). `excluded` lists the first of
    the `excluded_count` tools that were not scored or not permitted, each with the reason.
    `timed_out` says that scoring did not finish in time, so that the first tools of the catalog are
    offered.
    """

    scorer: str = ""
    offered: tuple[Candidate, ...] = ()
    excluded: tuple[Candidate, ...] = ()
    excluded_count: int = 0
    timed_out: bool = False

    @staticmethod
    def of(
        scorer: str,
        offered: Iterable[Candidate],
        excluded: Iterable[tuple[str, str]],
        *,
        timed_out: bool = False,
    ) -> Choice:
        """Return a choice. `excluded` are names with reasons; if there are many, only the first are
        kept."""
        first_excluded, count = [], 0
        for name, reason in excluded:
            count += 1
            if count <= _MOST_EXCLUDED:
                first_excluded.append(Candidate.of(name, None, reason))
        return Choice(scorer, tuple(offered), tuple(first_excluded), count, timed_out)

    def with_offered(self, found: Iterable[Candidate]) -> Choice:
        """Return the choice with tools added that were found later."""
        known = {candidate.name for candidate in self.offered}
        new = tuple(candidate for candidate in found if candidate.name not in known)
        return msgspec.structs.replace(self, offered=self.offered + new) if new else self

    def about(self, name: str) -> Candidate | None:
        """Return what the choice says about an offered tool."""
        return next((candidate for candidate in self.offered if candidate.name == name), None)


class Expense(msgspec.Struct, frozen=True):
    """The model replies asked for, the calls, and what the calls cost; also by tool."""

    turns: int = 0
    calls: int = 0
    cost: float = 0.0
    per_tool: dict[str, int] = {}
    cost_per_tool: dict[str, float] = {}

    @staticmethod
    def of(definitions: Iterable[ToolDefinition]) -> Expense:
        """Return the expense of one call of each of these tools."""
        calls: dict[str, int] = {}
        costs: dict[str, float] = {}
        total = 0.0
        for definition in definitions:
            name, cost = definition.name, definition.annotations.cost
            calls[name] = calls.get(name, 0) + 1
            if cost:
                costs[name] = costs.get(name, 0.0) + cost
                total += cost
        return Expense(0, sum(calls.values()), total, calls, costs)

    def plus(self, more: Expense, sign: int = 1) -> Expense:
        calls = self.calls + sign * more.calls
        per_tool = _sums(self.per_tool, more.per_tool, sign)
        costs = _sums(self.cost_per_tool, more.cost_per_tool, sign)
        return Expense(
            self.turns + sign * more.turns,
            calls,
            self.cost + sign * more.cost if calls else 0.0,  # no rounding error is left
            per_tool,
            {name: cost for name, cost in costs.items() if name in per_tool} if costs else costs,
        )

    def beyond(self, known: Expense) -> Expense:
        """Return the difference from an earlier expense, also by tool."""
        more = self.plus(known, -1)
        calls = {name: number for name, number in more.per_tool.items() if number > 0}
        costs = {name: cost for name, cost in more.cost_per_tool.items() if name in calls}
        return Expense(max(0, more.turns), sum(calls.values()), sum(costs.values()), calls, costs)


def _sums(first: Mapping[str, T], second: Mapping[str, T], sign: int) -> dict[str, T]:
    zero: Any = 0
    sums = dict(first)
    for name, number in second.items():
        sums[name] = sums.get(name, zero) + sign * number
    return sums if all(sums.values()) else {name: sum_ for name, sum_ in sums.items() if sum_}


class SpentWithin(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was spent within a call whose tool is an agent, by its run and the runs inside it."""

    expense: Expense = Expense()
    usage: Usage = Usage()

    def plus(self, more: SpentWithin) -> SpentWithin:
        return SpentWithin(self.expense.plus(more.expense), self.usage + more.usage)

    def beyond(self, known: SpentWithin) -> SpentWithin:
        """Return the difference from an earlier amount."""
        return SpentWithin(self.expense.beyond(known.expense), self.usage.beyond(known.usage))


AttachmentKind: TypeAlias = Literal["definition", "prompt", "choice"]


class Attachment(
    Redacted,
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    rename={"digest": "id", "kind": "status"},
):
    """A text that records refer to by digest: a definition, a run's prompt, its choice of tools.

    `digest` is `sha256:` and the SHA-256 of `text`, which is canonical JSON (RFC 8785). `name` is
    the tool's name for a definition. A definition belongs to no run, the others to run `run_id`.
    """

    redacted: ClassVar[tuple[str, ...]] = ("text",)

    digest: str
    kind: AttachmentKind
    text: str
    name: str = ""
    run_id: str = ""

    @staticmethod
    def of(kind: AttachmentKind, value: object, *, run_id: str) -> Attachment:
        """Return an attachment for a value that msgspec can write as JSON."""
        text = canonical_json(msgspec.to_builtins(value))
        return Attachment("sha256:" + sha256_hex(text), kind, text, run_id=run_id)

    @property
    def genuine(self) -> bool:
        """Whether the text is the one that the digest was computed from."""
        return self.digest == "sha256:" + sha256_hex(self.text)


class Origin(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """The turn of a run that made a call.

    `model` and `provider` belong to the reply that the call came in. `prompt_digest` covers what
    people wrote (system and user messages) and the definitions on offer. `choice_digest` covers the
    `Choice` of tools, in a run that picks them. `turn` counts from 1. It is 0 for a call that was
    requested before its run was forked from the run `forked_from`.
    """

    agent: str = ""
    agent_version: str = ""
    turn: int = 0
    model: str = ""
    provider: str = ""
    prompt_digest: str = ""
    choice_digest: str = ""
    forked_from: str = ""


def prompt_of(
    messages: Iterable[Message], tools: Iterable[HasDefinition], *, run_id: str = ""
) -> Attachment:
    """Return what people wrote and what was offered: system and user messages, digests of definitions.

    Model output and tool results are not included. The records of the calls have them, as far as
    they may be shown, and a tool's result may be secret. Images and files are represented by sizes
    and digests.
    """
    prompt_messages = [
        _prompt_message(message)
        for message in messages
        if message.role in PEOPLE and not message.from_tool
    ]
    digests = [tool.get_definition().digest for tool in tools]
    return Attachment.of("prompt", {"messages": prompt_messages, "tools": digests}, run_id=run_id)


def _prompt_message(message: Message) -> dict[str, object]:
    fields: dict[str, object] = {"role": message.role, "content": encodable(message.content)}
    if message.images:
        fields["images"] = [_prompt_image(image) for image in message.images]
    if message.parts:
        fields["parts"] = [_prompt_part(part) for part in message.parts]
    return fields


def _prompt_image(image: Image) -> object:
    """Return only a digest if the media type says no more than the data, else a description.

    Earlier versions wrote only the digest, so prompts that they recorded keep theirs.
    """
    says_more = image.media_type != (shown_in(image.data) if image.data else "")
    digest = "sha256:" + sha256_hex(image.data or image.url)
    return _prompt_part(image) if says_more else digest


class AppliedRule(msgspec.Struct, frozen=True, gc=False):
    """Says which rule approved a call, who gave it, and when (seconds since the epoch)."""

    id: str
    by: str
    given_at: float


def _prompt_part(part: Part) -> object:
    """Return a string as it is, and a description with a size and a digest for any other part."""
    if isinstance(part, str):
        return encodable(part)
    info = (
        PartInfo(kind_of(part), media_type_of(part)) if isinstance(part, Link) else part_info(part)
    )
    fields = msgspec.structs.asdict(part).items()
    encoded = {
        name: encodable(value) if isinstance(value, str) else value for name, value in fields
    }
    return {"part": str(info), "digest": "sha256:" + sha256_hex(canonical_json(encoded))}


class ToolInvocationRecord(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    rename={"arguments_json": "arguments", "result_json": "result"},
):
    """Records one call, in a form that everybody who may read the log may see.

    A record shared with others cannot be changed. Arguments and result are kept as canonical JSON
    text (RFC 8785), and each access to `arguments` or `result` parses a new object.
    `msgspec.json.encode` writes a record as JSON, with `arguments` and `result` as objects.

    Records are kept as JSON for years. So fields are only added, with a default, and never renamed,
    and old records stay readable. The library creates records only in `runner/recorder.py`.

    `started_at` and `ended_at` are seconds since the epoch; `seconds` is the monotonic duration,
    with the time in which an approver was waited for. `arguments` is None for a call that did not
    validate; only the length and sha256 of the text that was sent are kept. A call with secret
    arguments has `arguments_mac`, made with a key, in place of the sha256, because a short text
    could be guessed from its sha256. `defaulted` points (JSON Pointers) to the arguments that were
    not sent and are the author's defaults.

    `notes` names what was tolerated in reading the arguments, and these facts:

    * `over_time_limit`: the tool completed after its time limit;
    * `left_behind`: it was still running when its outcome was reported;
    * `suspended`: it has begun, and waits;
    * `read_untrusted`: a run was tainted in it;
    * `emulated`: an emulation replaced the tool, and nothing happened (the call has no key then);
    * `undeclared:2`: it got two arguments that its schema does not name and no record shows;
    * `approved_for_run`: the approval covers the tool for the whole run;
    * `approved_exactly_for_run`: the approval covers these arguments for the whole run.

    `repaired_by` names who repaired the arguments. `edited` says that the approver replaced them,
    whether or not the new ones ran (if they did not fit, `arguments` are those that were asked
    about). `approved_by` is who answered, also with a refusal; `refusal` is the reason. `rule` is
    the rule that approved the call or, with the note `approved_always`, the one that its approval
    made.

    A call with the same `idempotency_key` does not run twice, as far as this process or the `store`
    knows. `parent_run_id` and `parent_call_id` name the call that began this run, if there is one.
    `origin` is the turn that made the call, `picked` says why the model was offered this tool, in a
    run that picks, and `payload` identifies the provider's answer that contained the call. `parts`
    describes content that came with the result; no record has its data. `spent` is what an agent
    used as the tool has spent in its run. Whoever receives its outcome again has spent that, too.
    `process` says where a call that had waited inside its tool is resumed. An entry with it has a
    separate key, so that only one process resumes the call.
    """

    id: str
    name: str
    status: RecordStatus
    started_at: float
    run_id: str = ""
    caller: str = ""
    provider_id: str = ""
    definition_digest: str = ""
    arguments_json: msgspec.Raw = NO_JSON
    arguments_bytes: int = 0
    arguments_sha256: str = ""
    result_json: msgspec.Raw = NO_JSON
    error: CallError | None = None
    decision: Decision | None = None
    approved_by: str | None = None
    validated: bool = False
    no_schema_mode: NoSchemaMode | None = None
    repaired: bool = False
    repaired_by: str = ""
    notes: tuple[str, ...] = ()
    validator: ValidatorInfo | None = None
    approval_id: str = ""
    refusal: str = ""
    edited: bool = False
    idempotency_key: str = ""
    key_scope: KeyScope = "process"
    ended_at: float | None = None
    seconds: float | None = None
    defaulted: tuple[str, ...] = ()
    parent_run_id: str = ""
    parent_call_id: str = ""
    arguments_mac: str = ""
    caller_roles: tuple[str, ...] = ()
    origin: Origin | None = None
    picked: Candidate | None = None
    payload: PayloadRef | None = None
    parts: tuple[PartInfo, ...] = ()
    spent: SpentWithin | None = None
    process: str = ""
    rule: AppliedRule | None = None

    @property
    def arguments(self) -> JsonObject | None:
        return fresh(bytes(self.arguments_json))

    @property
    def result(self) -> JsonValue:
        return fresh(bytes(self.result_json))

    @property
    def emulated(self) -> bool:
        """Whether an emulation replaced the tool, so that nothing happened."""
        return EMULATED in self.notes

    def __repr__(self) -> str:
        """Name the call and how it ended, without `arguments` and `result`."""
        return f"<ToolInvocationRecord {self.id!r} {self.name!r:.80}: {state_of(self)}>"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("id", self.id), ("name", self.name), ("state", state_of(self))]


def state_of(record: ToolInvocationRecord) -> str:
    """Return the status, and the error code if there is one."""
    return record.status if record.error is None else f"{record.status} ({record.error.code})"


def earlier_key_of(run_id: str, call_id: str) -> str:
    """Return the key that a call had before keys were digests. Ledgers still hold such keys.

    Several calls can share one (run "1" with call "10", run "10" with call "10"), so a lookup must
    compare run and call as well.
    """
    return call_id if call_id.startswith(run_id) else f"{run_id}/{call_id}"


def has_begun(record: ToolInvocationRecord) -> bool:
    """Return whether the record shows that the call had begun and did not wait. Only then it has a
    key."""
    return record.idempotency_key != ""


def is_final(record: ToolInvocationRecord) -> bool:
    """Return whether a record settles what happened to its call: completed, failed or denied.

    `outcome_unknown` is never final; it fills a gap. A record without a key belongs to a call that
    has not begun: the end of one attempt (`cancelled`, `not_recorded`, `duplicate_call`) does not
    settle the others.
    """
    if record.status == "completed":
        return True
    if record.status != "failed" or record.error is None:
        return False
    is_attempt = not has_begun(record) and record.error.code in _ENDS_OF_ATTEMPTS
    return not is_attempt and record.error.code is not ErrorCode.OUTCOME_UNKNOWN


def is_ended_by(record: ToolInvocationRecord, approval_id: str) -> bool:
    """Return whether a record settles its call as the answer to this question."""
    return record.approval_id == approval_id and bool(record.approved_by) and is_final(record)


def standing(records: Sequence[ToolInvocationRecord]) -> ToolInvocationRecord:
    """Return the one record that determines the outcome of a call, given all its records in order.

    It is the first final record of those with a begun call; later ones add to it and never replace
    it. If none is final, it is the last one. Records of a call that had not begun count only if
    there are no others.
    """
    begun = [*filter(has_begun, records)] or records
    return next(filter(is_final, begun), begun[-1])


def same_call(record: ToolInvocationRecord, current: ToolInvocationRecord) -> bool:
    """Return whether two records under one key are of one call: same tool, caller, arguments.

    Every record under a key is compared with the call before anybody gets it. The tool may have
    another definition only if what its run has kept of the call shows that it changed.
    """
    is_same_tool = record.definition_digest == current.definition_digest or (
        TOOL_CHANGED in current.notes and record.name == current.name
    )
    return (
        is_same_tool
        and record.caller == current.caller
        and record.arguments_sha256 == current.arguments_sha256
        and record.arguments_bytes == current.arguments_bytes
        and (record.arguments_sha256 != "" or _same_secrets(record, current))
    )


def _same_secrets(record: ToolInvocationRecord, current: ToolInvocationRecord) -> bool:
    """Compare two calls with secrets by their keyed digests, if both were made with the same key.

    Otherwise (the ledger has no key, or the earlier record is old or from another process) the
    visible arguments decide, if nobody changed them.
    """
    if record.arguments_mac == current.arguments_mac != "":
        return True
    if mac_key(record) == mac_key(current) != "":
        return False
    is_changed = record.edited or current.edited or record.repaired or current.repaired
    return is_changed or canonical_json(record.arguments) == canonical_json(current.arguments)


def mac_key(record: ToolInvocationRecord) -> str:
    """Return which key the digest of a call's secrets was made with."""
    return record.arguments_mac.rpartition(":")[0]


class Completed(Redacted, msgspec.Struct, frozen=True):
    """The tool ran: `value` for the application, `model` for the model, `public` for everyone else.

    `model_json` is the text of the model's view. Each access to `model` or `public` gives a new
    object. If the tool gave content, `parts` are for the application and `model_parts` for the
    model, and `value` is the structured value, or None if there is none. `notice` goes to the model
    with the result, saying that somebody changed its arguments or that content was not kept.
    `replayed` says that the call had run before and was not run again. If it ran in another
    process, only its record is known: then `value` and `model` are the public view, too, and there
    are no parts.
    """

    redacted: ClassVar[tuple[str, ...]] = ("value", "model_json", "notice", "parts", "model_parts")

    record: ToolInvocationRecord
    value: Any
    model_json: bytes
    notice: str = ""
    replayed: bool = False
    parts: tuple[Part, ...] = ()
    model_parts: tuple[Part, ...] = ()

    @property
    def model(self) -> JsonValue:
        return fresh(self.model_json)

    @property
    def public(self) -> JsonValue:
        return self.record.result


def result_with_parts(record: ToolInvocationRecord) -> JsonValue:
    """Return the public result, with a description of its content if it has any."""
    if not record.parts:
        return record.result
    result = {} if record.result is None else {"result": record.result}
    return {**result, "parts": [msgspec.to_builtins(info) for info in record.parts]}


def lost_parts(record: ToolInvocationRecord) -> str:
    """Say that a result had content that is no longer available; empty if it had none."""
    if not record.parts:
        return ""
    descriptions = "; ".join(map(str, record.parts))
    return f"The result of this call had content that was not kept: {descriptions}."


class Failed(Redacted, msgspec.Struct, frozen=True):
    """The call did not complete; `error.message` is safe to show to the model.

    `model_text` is what the model reads instead, if the tool has a text for the model alone
    (`ToolError.model_text`). No record has it.
    """

    redacted: ClassVar[tuple[str, ...]] = ("notice", "model_text")

    record: ToolInvocationRecord
    error: CallError
    notice: str = ""
    replayed: bool = False
    model_text: str = ""


class SuspendedCall(Redacted, msgspec.Struct, frozen=True):
    """What is needed to resume a call whose tool has begun and itself waits for an answer.

    `saved` is the tool's own JSON; for an agent, the state of its run. It belongs to this `call`
    only. `approval` is the question and answer that let the call begin, if it needed approval, so
    nobody is asked again. `times` is how often its ledger saw it claimed for resumption. `rule` is
    the rule that gave that answer, with the id of the question that created the rule; the id is
    empty if the answer itself created it.
    """

    redacted: ClassVar[tuple[str, ...]] = ("saved", "approval")

    saved: msgspec.Raw
    call: OuterCall = OuterCall("", "", "")
    times: int = 0
    approval: tuple[ApprovalRequest, Approve] | None = None
    rule: tuple[AppliedRule, str] | None = None


class Waiting(msgspec.Struct, frozen=True):
    """Nobody has answered `request` yet. Execute the same call again once somebody has.

    If the call's tool has begun and itself asks, `suspended` is set, and `others` may hold further
    questions. Such a call is executed again in a `CallScope` that has `suspended`, by the call's
    id.
    """

    record: ToolInvocationRecord
    request: ApprovalRequest
    others: tuple[ApprovalRequest, ...] = ()
    suspended: SuspendedCall | None = None

    @property
    def requests(self) -> tuple[ApprovalRequest, ...]:
        return (self.request, *self.others)


Outcome: TypeAlias = Completed | Failed | Waiting


class Sink(Protocol):
    """Takes records of finished calls.

    A sink that has to wait returns an awaitable, which is always awaited to the end, however often
    the call is cancelled. If it may hang (a server, a queue) it needs its own timeout, or `exec`
    hangs with it. A sink with an attribute `write_ahead = True` also gets a record of status
    `started` before a tool runs. A sink with a method `attach` (`KeepsAttachments`) receives what
    records refer to, and one with `write_run` (`WatchesRuns`) receives the records of runs.
    """

    def write(self, record: ToolInvocationRecord) -> Awaitable[object] | None: ...


@runtime_checkable
class KeepsAttachments(Protocol):
    """A sink that also keeps what records refer to by digest: definitions, prompts, choices.

    A sink that may lose attachments (because old entries are pruned) has an attribute `generation`,
    which changes when that happens. It is then given what it lacks again.
    """

    def attach(self, attachment: Attachment) -> Awaitable[None] | None:
        """Keep an attachment. Called before the first record that refers to it, and perhaps
        repeatedly."""
        ...


@runtime_checkable
class Ledger(Protocol):
    """A sink that also prevents calls from running twice, in any process. An audit log is one.

    A ledger may have a method `mac(*parts: str) -> str`, which returns a digest of texts made with
    the ledger's own key. It distinguishes two calls with different secrets under one idempotency
    key, in any process. It may have an `async` method `last(call_id, *, run_id, approval_id)`,
    which returns the outcome that the answer to that question gave a call (as the `record` of the
    returned object) or None. Such a call had no key.

    A final outcome is final: what is written under its key later adds to it (see `standing`).
    """

    def write(self, record: ToolInvocationRecord) -> Awaitable[ToolInvocationRecord | None] | None:
        """Keep a record. Return the outcome that stands if the key already had a final one."""
        ...

    def begin(self, entry: ToolInvocationRecord) -> Awaitable[ToolInvocationRecord | None]:
        """Claim `entry.idempotency_key` and write the entry, atomically and durably.

        If the key is taken, by another `begin` or by a final record (`is_final`), write nothing and
        return the record that stands under it. If that is not final, it belongs to a call that
        never finished, as far as is known. An entry with a `process` claims the resumption of a
        call, under a separate key. If the call already has a final outcome under `key_of(run,
        call)`, write nothing and return that outcome. A ledger with entries of the old format also
        looks under `earlier_key_of(run, call)`, for entries of exactly that run and call.
        """
        ...

    async def find(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
        """Return what `begin` would, without claiming the call."""
        ...
