"""What became of a call, and why it was made: the error, the origin, the record, the outcome.

A record holds public views only (declared, not secret arguments; allowed result fields; fixed error
text). It is the one thing that sinks, events and audit are given.

What many records share is said once. A record holds an `Origin`, which is small; what is long (a
definition, a prompt, a choice) is an `Attachment`, kept once and referred to by its digest, which is
the SHA-256 of its text, so that whoever reads it can check it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from toolcrib.errors import ErrorCode, Stage
from toolcrib.values.call import HydrationError, PayloadRef, ValidatorInfo
from toolcrib.values.content import Image, Link, Part, PartInfo, brief_of, kind_of, media_type_of
from toolcrib.values.decision import ApprovalRequest, Approve, Decision, OuterCall
from toolcrib.values.definition import HasDefinition, NoSchemaMode, ToolDefinition
from toolcrib.values.json import (
    JsonObject,
    JsonValue,
    Veiled,
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

    `retryable` says that the call may be made again. It is never so for what may have happened: a tool
    that ran, and is neither idempotent nor read-only.
    """

    code: ErrorCode
    message: str
    stage: Stage
    retryable: bool
    details: tuple[HydrationError, ...] = ()

    def __str__(self) -> str:
        """Return `invalid_arguments at /value: expected number, got string`; last what has no path."""
        places = [f"{d.path}: {d.message}" for d in self.details if d.path]
        rest = [d.message for d in self.details if not d.path] or ([] if places else [self.message])
        return f"{self.code}{' at' if places else ':'} {'; '.join(places + rest)}"

    @staticmethod
    def of(
        code: ErrorCode,
        message: str | None = None,
        *,
        details: tuple[HydrationError, ...] = (),
        retryable: bool | None = None,
    ) -> CallError:
        """With the text of the code, and retryable as the code says, unless others are given."""
        stage, usual, text = code.info
        return CallError(
            code,
            message or text,
            details[0].stage if details else stage,
            usual if retryable is None else retryable,
            details,
        )


RecordStatus: TypeAlias = Literal[
    "started", "completed", "failed", "waiting", "planned", "rejected"
]
"""`planned` and `rejected` are calls that were hydrated, and that nobody was asked to run."""
KeyScope: TypeAlias = Literal["process", "store"]
_ENDS_OF_ATTEMPTS = (ErrorCode.CANCELLED, ErrorCode.NOT_RECORDED, ErrorCode.DUPLICATE_CALL)


FOR_RUN = "approved_for_run"
"""The note on a call with whose approval somebody said yes to its tool for the whole run."""


ALWAYS = "approved_always"
"""The note on a call with whose approval somebody gave a rule for calls like it."""


FOR_RUN_EXACTLY = "approved_exactly_for_run"
"""The note on a call with whose approval somebody said yes to the very same call for the whole run."""


LEFT_BEHIND = "left_behind"
"""The note on a call whose tool was told to stop, did not, and went on after its outcome was told."""


SUSPENDED = "suspended"
"""The note on a call that waits though its tool has begun: what that asks is to be answered."""


PART_WAITED = (
    "The call had begun, and waited for somebody's approval of a part of it. It does not go on here,"
    " and what it did before is not undone."
)
"""What is said of a suspended call that does not go on."""


EMULATED = "emulated"
"""The note on a call for whose tool something else stood in: nothing began, and nothing happened."""


MADE_UP = (
    "the run was emulated, so what its tools gave was made up, and nothing has happened: resume it"
    " with the agent that ToolEmulator(…).over(…) gives, or begin it anew"
)
"""What is said where such a run would go on for real."""


READ_UNTRUSTED = "read_untrusted"
"""The note on a call in whose tool a run was tainted: whoever is given its outcome again is, too."""


NO_JSON = msgspec.Raw(b"null")
"""The text of arguments and results that there are not."""


PEOPLE = ("system", "user")
_MOST_EXCLUDED = 200
_LONGEST_REASON = 300


class Candidate(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """A tool that a pick looked at: its score in 0..1, None where it was not scored, and the reason."""

    name: str
    score: float | None = None
    reason: str = ""

    @staticmethod
    def of(name: str, score: float | None, reason: str) -> Candidate:
        """Return a candidate whose reason a record can hold, whoever wrote it."""
        text = encodable(reason)
        short = text if len(text) <= _LONGEST_REASON else f"{text[: _LONGEST_REASON - 1]}…"
        return Candidate(name, score, short)


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """Says why a run offered these tools to its model, and not others.

    `offered` are the tools on offer, the best first: those that `scorer` picked have a score, the
    others a reason (offered or called earlier in the conversation). `excluded` are the first of the
    `excluded_count` tools that were not scored or not permitted, each with the reason. `timed_out` says
    that nothing was scored in time, and the first tools of the catalog are offered.
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
        """Return a choice. `excluded` are names with reasons; only the first ones of many are kept."""
        kept, count = [], 0
        for name, why in excluded:
            count += 1
            if count <= _MOST_EXCLUDED:
                kept.append(Candidate.of(name, None, why))
        return Choice(scorer, tuple(offered), tuple(kept), count, timed_out)

    def with_offered(self, found: Iterable[Candidate]) -> Choice:
        """Return the choice with tools added that were found later."""
        known = {candidate.name for candidate in self.offered}
        new = tuple(candidate for candidate in found if candidate.name not in known)
        return msgspec.structs.replace(self, offered=self.offered + new) if new else self

    def about(self, name: str) -> Candidate | None:
        """Return what the choice says of an offered tool."""
        return next((found for found in self.offered if found.name == name), None)


class Expense(msgspec.Struct, frozen=True):
    """Replies of a model that were asked for, calls, and what those cost; by tool, too."""

    turns: int = 0
    calls: int = 0
    cost: float = 0.0
    per_tool: dict[str, int] = {}
    cost_per_tool: dict[str, float] = {}

    @staticmethod
    def of(definitions: Iterable[ToolDefinition]) -> Expense:
        """Return what one call of each of these is and costs."""
        calls: dict[str, int] = {}
        costs: dict[str, float] = {}
        total = 0.0
        for each in definitions:
            name, cost = each.name, each.annotations.cost
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
            self.cost + sign * more.cost if calls else 0.0,  # no rounding is left
            per_tool,
            {name: cost for name, cost in costs.items() if name in per_tool} if costs else costs,
        )

    def beyond(self, known: Expense) -> Expense:
        """Return what this has more than another one, of each tool."""
        more = self.plus(known, -1)
        calls = {name: number for name, number in more.per_tool.items() if number > 0}
        costs = {name: cost for name, cost in more.cost_per_tool.items() if name in calls}
        return Expense(max(0, more.turns), sum(calls.values()), sum(costs.values()), calls, costs)


def _sums(ones: Mapping[str, T], others: Mapping[str, T], sign: int) -> dict[str, T]:
    """Return the sums by name; a name goes where nothing is left."""
    zero: Any = 0
    sums = dict(ones)
    for name, number in others.items():
        sums[name] = sums.get(name, zero) + sign * number
    return sums if all(sums.values()) else {name: sum_ for name, sum_ in sums.items() if sum_}


class SpentWithin(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was spent within a call whose tool is an agent: what its run, and those within, asked and
    called for, and what its models used."""

    expense: Expense = Expense()
    usage: Usage = Usage()

    def plus(self, more: SpentWithin) -> SpentWithin:
        return SpentWithin(self.expense.plus(more.expense), self.usage + more.usage)

    def beyond(self, known: SpentWithin) -> SpentWithin:
        """Return what this has more than another one."""
        return SpentWithin(self.expense.beyond(known.expense), self.usage.beyond(known.usage))


AttachmentKind: TypeAlias = Literal["definition", "prompt", "choice"]


class Attachment(
    Veiled,
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    rename={"digest": "id", "kind": "status"},
):
    """A text that records refer to by digest: a tool's definition, a run's prompt, its choice of tools.

    `digest` is `sha256:` and the SHA-256 of `text`, which is canonical JSON (RFC 8785). `name` is a
    defined tool's; a definition belongs to no run, the others belong to run `run_id`.
    """

    veiled: ClassVar[tuple[str, ...]] = ("text",)

    digest: str
    kind: AttachmentKind
    text: str
    name: str = ""
    run_id: str = ""

    @staticmethod
    def of(kind: AttachmentKind, value: object, *, run_id: str) -> Attachment:
        """Make an attachment of a value that msgspec can write as JSON."""
        text = canonical_json(msgspec.to_builtins(value))
        return Attachment("sha256:" + sha256_hex(text), kind, text, run_id=run_id)

    @property
    def genuine(self) -> bool:
        """Whether the text is the one that the digest was made from."""
        return self.digest == "sha256:" + sha256_hex(self.text)


class Origin(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """The turn of a run that made a call.

    `model` and `provider` are those of the reply that the call came in. `prompt_digest` is over what
    people wrote (the system's and the user's messages) and over the definitions on offer;
    `choice_digest` over the `Choice` of tools, in a run that picks them. `turn` counts from 1; a call
    with 0 was asked for before its run was forked from the run `forked_from`.
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
    """Return what people wrote and what was on offer: the system's and user's messages, the tools by
    the digests of their definitions.

    What a model said and what its tools gave is no part of it: that is in the records of the calls, as
    far as anybody may see it, and what a tool gave may be secret. Of images and files there are sizes
    and digests.
    """
    said = [_said(m) for m in messages if m.role in PEOPLE and not m.from_tool]
    digests = [tool.get_definition().digest for tool in tools]
    return Attachment.of("prompt", {"messages": said, "tools": digests}, run_id=run_id)


def _said(message: Message) -> dict[str, object]:
    told: dict[str, object] = {"role": message.role, "content": encodable(message.content)}
    if message.images:
        told["images"] = [_said_image(image) for image in message.images]
    if message.parts:
        told["parts"] = [_said_part(part) for part in message.parts]
    return told


def _said_image(image: Image) -> object:
    """Return a digest, as it always was, of an image that is what it shows, or says nothing of it."""
    says_more = image.media_type != (shown_in(image.data) if image.data else "")
    digest = "sha256:" + sha256_hex(image.data or image.url)
    return _said_part(image) if says_more else digest


class AppliedRule(msgspec.Struct, frozen=True, gc=False):
    """Says which rule approved a call, who gave it, and when (seconds since the epoch)."""

    id: str
    by: str
    given_at: float


def _said_part(part: Part) -> object:
    """Return a text as it is; of anything else what it is, how large, and a digest."""
    if isinstance(part, str):
        return encodable(part)
    info = (
        PartInfo(kind_of(part), media_type_of(part)) if isinstance(part, Link) else brief_of(part)
    )
    fields = msgspec.structs.asdict(part).items()
    what = {name: encodable(it) if isinstance(it, str) else it for name, it in fields}
    return {"part": str(info), "digest": "sha256:" + sha256_hex(canonical_json(what))}


class ToolInvocationRecord(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    rename={"arguments_json": "arguments", "result_json": "result"},
):
    """Records one call, in a form that everybody who may read the log may see.

    Nobody can change a record that others have, too: arguments and result are kept as canonical JSON
    text (RFC 8785), and each look at `arguments` or `result` reads a new object from it.
    `msgspec.json.encode` writes a record as JSON, with `arguments` and `result` as objects.

    Records are kept as JSON for years: a field is added with a default, and never renamed, so that old
    ones can still be read. The library makes its records in `runner/recorder.py` and nowhere else.

    `started_at` and `ended_at` are seconds since the epoch, `seconds` is the monotonic duration.
    `arguments` is None for a call that did not validate: of that, only length and sha256 are kept. Of a
    call with secret arguments there is no sha256 but `arguments_mac`, made with a key: a sha256 over a
    short text can be tried out.
    `defaulted` points (JSON Pointers) to the arguments that were not sent and are the author's
    defaults. `notes` names the liberties that were taken in reading them, `over_time_limit` says
    that the tool completed past its limit, `left_behind` that it went on after its outcome was told,
    `suspended` that it has begun and waits, `read_untrusted` that a run was tainted in it, `emulated`
    that something stood in for its tool, and nothing happened (it has no key then),
    `undeclared:2` that it got two arguments which its schema does not name and no record shows, and
    `approved_for_run` that the yes was to the tool for the whole run, `approved_exactly_for_run` that
    it was to these arguments for the whole run; `repaired_by` says who repaired them, `edited` that
    whoever approved the call gave others in their place, whether they ran or not (where they did not
    fit, `arguments` are what was asked about). `approved_by` is who answered, also
    who said no; `refusal` is why. A call with the same `idempotency_key` does not run twice: as far as
    this process knows, or as the `store` knows. A run that was begun by a call of another run says
    which: `parent_run_id` and `parent_call_id`. `origin` is the turn that made the call, `picked` why
    the model was offered this tool, in a run that picks, and `payload` which answer of the provider
    the call stood in. `parts` says what content came with the result; its data is in no record.
    `spent` is what an agent that is the tool has spent in its run: whoever is given its outcome again
    has spent that, too. `process` is where a call that had waited within its tool goes on: an entry
    with it stands under a key of its own, so that it goes on in one process. `rule` is the one by
    which it was approved, or, with the note `approved_always`, which its approval gave.
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
        """Whether something stood in for the tool, and nothing happened."""
        return EMULATED in self.notes

    def __repr__(self) -> str:
        """Name the call and how it ended; `arguments` and `result` are for whoever asks for them."""
        return f"<ToolInvocationRecord {self.id!r} {self.name!r:.80}: {state_of(self)}>"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("id", self.id), ("name", self.name), ("state", state_of(self))]


def state_of(record: ToolInvocationRecord) -> str:
    """Return the status, and the code of the error, if there is one."""
    return record.status if record.error is None else f"{record.status} ({record.error.code})"


def earlier_key_of(run_id: str, call_id: str) -> str:
    """Return the key that a call had before keys were digests: ledgers hold such ones for good.

    Several calls can share one (run "1" with call "10", run "10" with call "10"): whoever looks there
    has to compare run and call, too.
    """
    return call_id if call_id.startswith(run_id) else f"{run_id}/{call_id}"


def has_begun(record: ToolInvocationRecord) -> bool:
    """Return whether a call had begun, and did not wait, by its record: only then has that a key."""
    return record.idempotency_key != ""


def is_final(record: ToolInvocationRecord) -> bool:
    """Return whether a record says for good what became of its call: completed, failed or denied.

    `outcome_unknown` is never final, it fills a gap. Without a key the call has not begun, and the end
    of one attempt (`cancelled`, `not_recorded`, `duplicate_call`) says nothing of the others.
    """
    if record.status == "completed":
        return True
    if record.status != "failed" or record.error is None:
        return False
    attempt = not has_begun(record) and record.error.code in _ENDS_OF_ATTEMPTS
    return not attempt and record.error.code is not ErrorCode.OUTCOME_UNKNOWN


def is_ended_by(record: ToolInvocationRecord, approval_id: str) -> bool:
    """Return whether a record says for good what became of its call, as an answer to this question was
    given."""
    return record.approval_id == approval_id and bool(record.approved_by) and is_final(record)


def standing(records: Sequence[ToolInvocationRecord]) -> ToolInvocationRecord:
    """Return the record that tells what became of one call, of all of its records in their order.

    The first final one of those that began stands: later ones add to it and never supersede it. If
    none is final, the last one is all that is known. Only where none began do the others count.
    """
    begun = [*filter(has_begun, records)] or records
    return next(filter(is_final, begun), begun[-1])


class Completed(Veiled, msgspec.Struct, frozen=True):
    """The tool ran: `value` for the application, `model` for the model, `public` for everyone else.

    `model_json` is the text of the model's view; each look at `model` or `public` gives a new object.
    Of a tool that gave content, `parts` are for the application and `model_parts` for the model, and
    `value` is the structured value, None where there is none.
    `notice` goes to the model with the result: that somebody changed its arguments, or that content
    was not kept. The outcome of a call that had run before is `replayed`: it was not run again. What
    another process had run is known by its record alone: then `value` and `model` are the public view,
    too, and there are no parts.
    """

    veiled: ClassVar[tuple[str, ...]] = ("value", "model_json", "notice", "parts", "model_parts")

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
    """Return the public result; of one with content also what may be said of that."""
    if not record.parts:
        return record.result
    result = {} if record.result is None else {"result": record.result}
    return {**result, "parts": [msgspec.to_builtins(info) for info in record.parts]}


def lost_parts(record: ToolInvocationRecord) -> str:
    """Say that a result had content that nobody has any more; empty if it had none."""
    if not record.parts:
        return ""
    told = "; ".join(map(str, record.parts))
    return f"The result of this call had content that was not kept: {told}."


class Failed(Veiled, msgspec.Struct, frozen=True):
    """The call did not complete; `error.message` is safe to show to the model.

    `told` is what the model reads in its place, where the tool has words for it alone
    (`ToolError.model_text`): no record has them.
    """

    veiled: ClassVar[tuple[str, ...]] = ("notice", "told")

    record: ToolInvocationRecord
    error: CallError
    notice: str = ""
    replayed: bool = False
    told: str = ""


class SuspendedCall(Veiled, msgspec.Struct, frozen=True):
    """What a call needs to go on whose tool has begun, and waits for an answer itself.

    `saved` is the tool's own JSON: of an agent, the state of its run. It is of this `call` and no
    other. `approval` is the question and the answer with which the call was let begin, if it had to be:
    nobody is asked again. `times` is how often it was claimed to go on before, as its ledger knows.
    `rule` is the one that gave that answer, with the id of the question that somebody had answered by
    it; the id is empty where the answer itself gave the rule.
    """

    veiled: ClassVar[tuple[str, ...]] = ("saved", "approval")

    saved: msgspec.Raw
    call: OuterCall = OuterCall("", "", "")
    times: int = 0
    approval: tuple[ApprovalRequest, Approve] | None = None
    rule: tuple[AppliedRule, str] | None = None


class Waiting(msgspec.Struct, frozen=True):
    """Nobody has answered `request` yet. Execute the same call again once somebody has.

    A call whose tool has begun, and asks itself, has `suspended`, and perhaps `others` to answer: it is
    executed again in a `CallScope` that has it, by the call's id.
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
    """Takes records, when a call is over.

    A sink that has to wait returns something to await, which is awaited to the end, however often the
    call is cancelled: what may hang there (a server, a queue) needs a time limit of its own, or `exec`
    hangs with it. One with an attribute `write_ahead = True` also gets a record of status `started`
    before a tool runs. One that has a method `attach` (`KeepsAttachments`) is given what records refer
    to, and one that has `write_run` (`WatchesRuns`) gets the records of runs.
    """

    def write(self, record: ToolInvocationRecord) -> Awaitable[object] | None: ...


@runtime_checkable
class KeepsAttachments(Protocol):
    """A sink that keeps what records refer to by digest, too: definitions, prompts, choices.

    One that may lose what it was given (its old entries are pruned) has an attribute `generation`,
    which is another value from then on: it is given what it lacks once more.
    """

    def attach(self, attachment: Attachment) -> Awaitable[None] | None:
        """Keep it; before the first record that refers to it, and perhaps more than once."""
        ...


@runtime_checkable
class Ledger(Protocol):
    """A sink that also keeps calls from running twice, in whichever process: an audit log is one.

    A ledger may have a method `mac(*parts: str) -> str`, a digest of texts made with a key of its own:
    it tells two calls with different secrets under one key apart, in whichever process. It may have an
    `async` method `last(call_id, *, run_id, approval_id)`: the outcome that an answer to that question
    gave a call, as the `record` of what it returns, or None. Such a call had no key.

    A final outcome is final: what is written under its key later adds to it (see `standing`).
    """

    def write(self, record: ToolInvocationRecord) -> Awaitable[ToolInvocationRecord | None] | None:
        """Keep a record; give the outcome that stands, if the key had a final one before."""
        ...

    async def begin(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
        """Claim `entry.idempotency_key` and write the entry, both or neither; it stays written.

        If the key is taken, by another `begin` or by an end that was written (`is_final`), nothing is
        written, and the record that stands under it is given: one that is not final belongs to a call
        that never came to its end, as far as anybody knows. An entry with a `process` claims that a
        call goes on, under a key of its own: if the call has ended for good, which stands under
        `key_of(run, call)`, nothing is written, and that outcome is given. A ledger with entries of old
        looks under `earlier_key_of(run, call)` too, for entries of that very run and call.
        """
        ...

    async def find(self, entry: ToolInvocationRecord) -> ToolInvocationRecord | None:
        """Return what `begin` would, without claiming the call."""
        ...
