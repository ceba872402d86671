"""`toolcrib audit list` and `show`: what happened to calls, according to the audit log.

`audit_check` has the commands about the log itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
from rich.text import Text

from toolcrib.audit import (
    Attachment,
    AuditEntry,
    AuditFilter,
    AuditLog,
    Candidate,
    Choice,
    Origin,
    RunRecord,
)
from toolcrib.audit.why import why_of
from toolcrib.cli import audit_check
from toolcrib.cli.audit_check import exit_if_changed
from toolcrib.cli.options import (
    DATABASE,
    CallerOption,
    CallOption,
    CodeOption,
    EntryOption,
    JsonOption,
    KeyFileOption,
    LogOption,
    RunOption,
    SinceOption,
    StatusOption,
    ToolNameOption,
    UntilOption,
    UnusableError,
    log_to_read,
    named_entry,
    narrowed,
    of_log,
)
from toolcrib.cli.render import (
    answered,
    milliseconds,
    one_line,
    out,
    print_json,
    print_rows,
    short_json,
    shortened,
    when,
)
from toolcrib.urls import without_password
from toolcrib.values.decision import Allow, Ask, Deny
from toolcrib.values.json import to_plain
from toolcrib.values.record import (
    ALWAYS,
    FOR_RUN,
    FOR_RUN_EXACTLY,
    ToolInvocationRecord,
    has_begun,
    is_final,
    result_with_parts,
    same_call,
    standing,
)

# What happened to a call and where it came from, in sentences made from the log alone.

_MOST_CALLERS = 20
CHANGED = "not as written, or the log has a different key"
HIDDEN = "the entry that says how it ended is missing here, or cannot be checked"
_MOST_CANDIDATES = 5
_IDENTITY_FIELDS = {
    "name": "tool",
    "caller": "caller",
    "caller_roles": "roles",
    "definition_digest": "definition",
    "parent_run_id": "calling run",
    "parent_call_id": "calling call",
}
"""Fields in which an attempt may differ from the record that the story is told by, and how the
output calls them."""


class StoryLine(NamedTuple):
    """One line of a call's story. `at` is empty if the log does not say when it happened."""

    at: str
    what: str
    text: str


class Attempt(NamedTuple):
    """The entries of one attempt at a call, and the fields in which its records differ from the
    record that the story is told by. Another call may have come under the same id."""

    entries: list[AuditEntry]
    differs: dict[str, Any]


class CallStory:
    """Everything in the log about one id of a run, in the order in which it was written.

    `record` is the first final outcome, or the last record if there is no final one. The story is
    told by it, and each of its `attempts` lists what differs from it. `attachments` are the texts
    that the records refer to, by digest. `callers` are the calls whose tools made this one, the
    nearest first. `whole` is False if the log's index of keys leads to another final entry than the
    ones listed here.
    """

    def __init__(
        self,
        entries: Iterable[AuditEntry],
        attachments: Mapping[str, Attachment] = MappingProxyType({}),
        callers: Sequence[CallStory] = (),
        *,
        whole: bool = True,
    ) -> None:
        self.entries = tuple(entries)
        self.attachments = attachments
        self.callers = tuple(callers)
        self.whole = whole
        self._records = [entry.record for entry in self.entries]
        self.record = standing(self._records)

    @property
    def changed(self) -> list[AuditEntry]:
        """The entries that are not as they were written, including those of the calls that made
        this one."""
        changed = [entry for entry in self.entries if not entry.intact]
        return changed + [entry for caller in self.callers for entry in caller.changed]

    @property
    def attempts(self) -> list[Attempt]:
        """The attempts under this id, in the order of their first entries.

        The entries of one attempt have the same start, arguments, tool, definition, caller and
        calling call.
        """
        groups: dict[tuple[Any, ...], list[AuditEntry]] = {}
        for entry in self.entries:  # entries of two processes may be interleaved
            record = entry.record
            request = (record.started_at, record.arguments_sha256, record.arguments_mac)
            identity = (getattr(record, field) for field in _IDENTITY_FIELDS)
            groups.setdefault((*request, *identity), []).append(entry)
        return [
            Attempt(entries, _differing(entries[0].record, self.record))
            for entries in groups.values()
        ]

    @property
    def others_began(self) -> bool:
        """Whether a call under this id other than the one that the story is told by may have begun."""
        return any(
            has_begun(record) and not same_call(record, self.record) for record in self._records
        )

    def why(self) -> str:
        """Return one sentence that says why the call ran or did not run."""
        return why_of(self._records)

    def lines(self) -> Iterator[StoryLine]:
        """Yield the lines that say when the call was asked for, what was decided and by whom, and
        how it ended."""
        final_seqs = (e.seq for e in self.entries if has_begun(e.record) and is_final(e.record))
        final_seq = next(final_seqs, None)
        for number, attempt in enumerate(self.attempts):
            is_after_end = final_seq is not None and final_seq < attempt.entries[0].seq
            yield from _attempt_lines(attempt, is_repeated=number > 0, is_after_end=is_after_end)
        facts = tuple(_facts(self.record, self.attachments))
        yield from (StoryLine("", what, text) for what, text in facts if text)
        for caller in self.callers:
            caller_record = caller.record
            other_call = "; or another call under this id" if caller.others_began else ""
            yield StoryLine(
                "",
                "called by",
                f"{caller_record.name}  {ids_of(caller_record)}: {outcome(caller_record)}{other_call}",
            )
        yield StoryLine("", "why", self.why())
        for entry in self.changed:
            yield StoryLine("", "changed", f"entry {entry.seq} is {CHANGED}")
        if not self.whole:
            yield StoryLine("", "changed", HIDDEN)


def _differing(record: ToolInvocationRecord, story_record: ToolInvocationRecord) -> dict[str, Any]:
    return {
        field: getattr(record, field)
        for field in _IDENTITY_FIELDS
        if getattr(record, field) != getattr(story_record, field)
    }


def stories(entries: Iterable[AuditEntry]) -> list[CallStory]:
    """Group entries by the ids of their calls, in the order of each call's first entry."""
    calls: dict[tuple[str, str], list[AuditEntry]] = {}
    for entry in entries:
        calls.setdefault((entry.record.run_id, entry.record.id), []).append(entry)
    return [CallStory(call_entries) for call_entries in calls.values()]


async def whole_stories(log: AuditLog, entries: Iterable[AuditEntry]) -> list[CallStory]:
    """Group entries into calls, with their attachments and calling calls read from the log.

    Raises SourceError for an attachment that is not as it was written.
    """
    complete_stories = []
    for story_so_far in stories(entries):
        call_entries, is_whole = await log.checked_call(story_so_far.entries)
        story = CallStory(call_entries)
        digests = [
            digest for entry in story.entries for digest in _attachment_digests(entry.record)
        ]
        attachments = await log.attachments(digests)
        callers = await _callers(log, story)
        complete_stories.append(CallStory(story.entries, attachments, callers, whole=is_whole))
    return complete_stories


async def _callers(log: AuditLog, story: CallStory) -> list[CallStory]:
    """Return the calls whose tools made a call, the nearest first, as far as the log has them."""
    callers: list[CallStory] = []
    record, seen = story.record, {(story.record.run_id, story.record.id)}
    while record.parent_call_id and len(callers) < _MOST_CALLERS:
        caller_ids = (record.parent_run_id, record.parent_call_id)
        if caller_ids in seen:
            break
        seen.add(caller_ids)
        entries = await log.entries(AuditFilter(run_id=caller_ids[0], call_id=caller_ids[1]))
        if not entries:
            break
        callers.append(CallStory(entries))
        record = callers[-1].record
    return callers


def _attachment_digests(record: ToolInvocationRecord) -> tuple[str, ...]:
    """Return the digests of the attachments that a record refers to."""
    origin = record.origin or Origin()
    return record.definition_digest, origin.prompt_digest, origin.choice_digest


def run_line(run: RunRecord) -> str:
    """Return how a run ended, or that it waits: `run run_1 by shop 1.2, for ada: completed, …`."""
    agent = _agent_name(run)
    status = f"{run.status} ({run.limit})" if run.limit else run.status
    tokens = f"{run.usage.input_tokens}+{run.usage.output_tokens} tokens"
    duration = "" if run.seconds is None else f", {run.seconds:.1f} s"
    forked = (
        f", forked from {run.forked_from} after turn {run.forked_turn}" if run.forked_from else ""
    )
    return (
        f"run {run.run_id}{f' by {agent}' if agent else ''}{forked}, for {run.caller}: {status}, "
        f"turns: {run.turns}, calls begun: {run.calls}, {tokens}{duration}"
    )


def _agent_name(run_or_origin: RunRecord | Origin) -> str:
    """Return an agent's name and version, as far as they are known."""
    return " ".join(text for text in (run_or_origin.agent, run_or_origin.agent_version) if text)


def ids_of(record: ToolInvocationRecord) -> str:
    """Return the ids of a call, its run and its caller: `call_77, run run_1, for ada`."""
    run = f", run {record.run_id}" if record.run_id else ""
    caller = f", for {record.caller}" if record.caller else ""
    return f"{record.id}{run}{caller}"


def outcome(record: ToolInvocationRecord) -> str:
    """Return `completed`, `started` or `waiting`, or the error code of a failed call."""
    if record.status != "failed" or record.error is None:
        return record.status
    return record.error.code.value


def decision_of(record: ToolInvocationRecord) -> str:
    """Return the decision on a call, such as `ask by standard, approved by grace`."""
    decision = record.decision
    if decision is None:
        return ""
    text = f"{_DECISION_WORDS[type(decision)]} by {decision.policy or 'a policy without a name'}"
    return f"{text}, {answered(record)}" if record.approved_by else text


_DECISION_WORDS = {Allow: "allow", Ask: "ask", Deny: "deny"}
_SCOPE_TEXTS = {
    FOR_RUN: ", for the whole run",
    FOR_RUN_EXACTLY: ", for the same arguments in the whole run",
    ALWAYS: ", as a rule for such calls",
}


def _attempt_lines(
    attempt: Attempt, *, is_repeated: bool, is_after_end: bool
) -> Iterator[StoryLine]:
    record = attempt.entries[-1].record
    arguments = "arguments that did not validate"
    if record.arguments is not None:
        defaults = f" (defaults: {', '.join(record.defaulted)})" if record.defaulted else ""
        arguments = f"{short_json(record.arguments)}{defaults}"
    yield StoryLine(when(record.started_at), "asked again" if is_repeated else "asked", arguments)
    if attempt.differs:
        yield StoryLine(
            "",
            "differs",
            "; ".join(_difference_text(*difference) for difference in attempt.differs.items()),
        )
    if record.decision is not None:
        reason = f": {record.decision.reason}" if record.decision.reason else ""
        policy = record.decision.policy or "a policy without a name"
        yield StoryLine(
            "", "decided", f"{_DECISION_WORDS[type(record.decision)]} by {policy}{reason}"
        )
    if record.approved_by:
        details = ", with other arguments" if record.edited else ""
        details += "".join(scope for note, scope in _SCOPE_TEXTS.items() if note in record.notes)
        if record.rule is not None and ALWAYS not in record.notes:
            details += f", by the rule {record.rule.id} of {when(record.rule.given_at)}"
        yield StoryLine("", "answered", f"{answered(record)}{details}{_question_note(record)}")
    for entry in attempt.entries:
        yield _outcome_line(entry)
    if record.status == "started" and is_after_end:
        yield StoryLine("", "over", "it had already ended, so it did not run again")
    elif record.status == "started":
        yield StoryLine("", "unknown", "the log does not say how it ended")


def _difference_text(field: str, value: str | tuple[str, ...]) -> str:
    """Return one differing field of an attempt in words: `tool refund`, `no caller`."""
    text = value if isinstance(value, str) else ", ".join(value)
    return f"{_IDENTITY_FIELDS[field]} {text}" if text else f"no {_IDENTITY_FIELDS[field]}"


def _outcome_line(entry: AuditEntry) -> StoryLine:
    record = entry.record
    match record.status:
        case "started":
            return StoryLine(when(entry.at), "goes on" if record.process else "started", "")
        case "planned":
            return StoryLine(when(entry.at), "planned", "")
        case "waiting":
            return StoryLine(
                when(record.ended_at), "waits", f"for an answer{_question_note(record)}"
            )
    duration = f" ({milliseconds(record)})" if record.seconds is not None else ""
    texts = [short_json(result_with_parts(record))] if record.status == "completed" else []
    texts += [] if record.error is None else [one_line(str(record.error))]
    return StoryLine(
        when(record.ended_at or entry.at), record.status, f"{'; '.join(texts)}{duration}"
    )


def _facts(
    record: ToolInvocationRecord, attachments: Mapping[str, Attachment]
) -> Iterator[tuple[str, str]]:
    yield "repaired", f"by {record.repaired_by or 'a repairer'}" if record.repaired else ""
    yield "read with", ", ".join(note for note in record.notes if note not in _SCOPE_TEXTS)
    validator = record.validator
    validation = "" if validator is None else f"by {validator.name} {validator.version}"
    if validator is not None:
        validation += f", compiled {when(validator.compiled_at)}"
    mode = f" (mode {record.no_schema_mode})" if record.no_schema_mode else ""
    yield "validated", validation if record.validated else f"no{mode}"
    definition = _attachment_content(attachments, record.definition_digest)
    description = f": {definition['description']}" if definition.get("description") else ""
    yield "definition", f"{record.definition_digest}{shortened(description)}"
    yield "key", f"{record.idempotency_key} ({record.key_scope})" if record.idempotency_key else ""
    yield from _origin_facts(record, attachments)


def _origin_facts(
    record: ToolInvocationRecord, attachments: Mapping[str, Attachment]
) -> Iterator[tuple[str, str]]:
    """Yield caller, agent, model and prompt; of a text that is not in the log, only the digest."""
    yield "roles", ", ".join(record.caller_roles)
    origin = record.origin
    if origin is None:
        return
    turn = f"turn {origin.turn}" if origin.turn else ""
    forked = f"forked from run {origin.forked_from}" if origin.forked_from else ""
    yield "agent", ", ".join(text for text in (_agent_name(origin), turn, forked) if text)
    provider = f" ({origin.provider})" if origin.provider else ""
    yield "model", f"{origin.model}{provider}"
    if record.payload is not None:
        position = f"call {record.payload.position} of {record.payload.size} bytes"
        yield "answer", f"{position}, sha256:{record.payload.digest}"
    yield "prompt", origin.prompt_digest
    for message in _attachment_content(attachments, origin.prompt_digest).get("messages", ()):
        yield "", f"{message['role']}: {shortened(message['content'])}"
    yield from _choice_facts(record, attachments)


def _choice_facts(
    record: ToolInvocationRecord, attachments: Mapping[str, Attachment]
) -> Iterator[tuple[str, str]]:
    """Yield why the model was offered this tool, and which others were offered or left out."""
    origin = record.origin or Origin()
    if record.picked is not None:
        yield "picked", _candidate_text(record.picked)
    content = _attachment_content(attachments, origin.choice_digest)
    if not content:
        yield "choice", origin.choice_digest
        return
    choice = msgspec.convert(content, Choice)
    others = [candidate for candidate in choice.offered if candidate.name != record.name]
    timeout_note = (
        ", in catalog order, because no score was ready in time" if choice.timed_out else ""
    )
    yield "choice", f"by {choice.scorer or 'no scorer'}{timeout_note}"
    for candidate in others[:_MOST_CANDIDATES]:
        yield "  offered", _candidate_text(candidate)
    if len(others) > _MOST_CANDIDATES:
        yield "  offered", f"and {len(others) - _MOST_CANDIDATES} more"
    for candidate in choice.excluded[:_MOST_CANDIDATES]:
        yield "  left out", _candidate_text(candidate)
    if choice.excluded_count > _MOST_CANDIDATES:
        yield "  left out", f"and {choice.excluded_count - _MOST_CANDIDATES} more"


def _candidate_text(candidate: Candidate) -> str:
    score = "" if candidate.score is None else f" {candidate.score:.3f}"
    return f"{candidate.name}{score}{f': {candidate.reason}' if candidate.reason else ''}"


def _attachment_content(attachments: Mapping[str, Attachment], digest: str) -> dict[str, Any]:
    """Return the content of an attachment, or nothing if the log does not have it."""
    attachment = attachments.get(digest)
    return {} if attachment is None else msgspec.json.decode(attachment.text, type=dict[str, Any])


def _question_note(record: ToolInvocationRecord) -> str:
    return f" (question {record.approval_id})" if record.approval_id else ""


# The commands, and how they show what a story says.

SHOWN = 50
_COLUMNS = {
    name: name == "decision"
    for name in ("time", "run", "call", "tool", "outcome", "decision", "took", "entry")
}

app = typer.Typer(no_args_is_help=True, help="Read, check and export the audit log.")


@app.command("list")
def list_calls(  # noqa: PLR0913  the options of a command line
    *,
    log: LogOption = DATABASE,
    key_file: KeyFileOption = None,
    run: RunOption = None,
    call: CallOption = None,
    tool: ToolNameOption = None,
    caller: CallerOption = None,
    status: StatusOption = None,
    code: CodeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most N.")] = SHOWN,
    as_json: JsonOption = False,
) -> None:
    """List calls, the newest first: when, which, how they ended, what was decided.

    Of a call that has ended, only its end is listed. `started` and `waiting` are calls that have
    not ended as far as the log knows. `took` includes the time that a person took to answer. In a file
    or a pipe, columns are separated by tabs. The last column is the number of the entry, for `show
    --entry`. Entries that are not as they were written
    are marked, and the exit code is then 1.
    """
    base_filter = AuditFilter(run_id=run, call_id=call, tool=tool, caller=caller, limit=limit)
    audit_filter = narrowed(base_filter, status=status, code=code, since=since, until=until)
    audit_filter = msgspec.structs.replace(audit_filter, newest=True, latest=True)
    audit_log = log_to_read(log, key_file)
    entries = of_log(log, audit_log, lambda audit: audit.entries(audit_filter))
    if as_json:
        print_json([to_plain(entry) for entry in entries])
    elif not entries and out.is_terminal:
        out.print("No calls match.")
    else:
        print_rows([_entry_cells(entry) for entry in entries], _COLUMNS)
    exit_if_changed(sum(not entry.intact for entry in entries))


@app.command("show")
def show(
    wanted: Annotated[
        str | None,
        typer.Argument(metavar="ID", help="The id of a run, of a call, or of both as RUN/CALL."),
    ] = None,
    *,
    seq: EntryOption = None,
    log: LogOption = DATABASE,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what happened to each call of a run, or to one call, and why it ran or did not run.

    It also shows where the call came from: caller, agent, model, prompt, the choice of tools, the
    definition in force, and the call whose tool made it. Entries that are not as they were written
    are marked, and the exit code is then 1.
    """
    subject = named_entry(wanted, seq)

    async def read(audit_log: AuditLog) -> tuple[list[CallStory], list[tuple[RunRecord, bool]]]:
        if wanted is None:
            return await whole_stories(audit_log, await _with_entry(audit_log, seq or 0)), []
        entries = await _entries_of(audit_log, wanted)
        return await whole_stories(audit_log, entries), await audit_log.checked_runs(wanted)

    calls, runs = of_log(log, log_to_read(log, key_file), read)
    if not calls and not runs:
        raise UnusableError(f"{without_password(log)}: it has no {subject}")
    if as_json:
        print_json(
            {
                "id": wanted or "",
                "entry": seq,
                "runs": [{**to_plain(run), "intact": intact} for run, intact in runs],
                "calls": [_story_json(call) for call in calls],
            }
        )
    else:
        _print_stories(calls, runs)
    changed_seqs = {entry.seq for call in calls for entry in call.changed}
    hidden_count = sum(not call.whole for call in calls)
    exit_if_changed(len(changed_seqs) + hidden_count + sum(not intact for _, intact in runs))


async def _entries_of(log: AuditLog, call_or_run: str) -> list[AuditEntry]:
    """Return the entries of a run, of calls with that id, and of RUN/CALL.

    Ids come from providers: an id may look like RUN/CALL or contain a slash, and hides nothing
    then. An id that is a number is an id, never the number of an entry. An empty id is that of a
    call, since calls that no agent made have no run.
    """
    filters = [
        AuditFilter(call_id=call_or_run),
        *[AuditFilter(run_id=call_or_run)] * (call_or_run != ""),
    ]
    slashes = [position for position, character in enumerate(call_or_run) if character == "/"]
    filters += [
        AuditFilter(run_id=call_or_run[:position], call_id=call_or_run[position + 1 :])
        for position in slashes
        if position
    ]
    entries = {
        entry.seq: entry for audit_filter in filters for entry in await log.entries(audit_filter)
    }
    return [entries[seq] for seq in sorted(entries)]


async def _with_entry(log: AuditLog, seq: int) -> list[AuditEntry]:
    """Return the entries of the call that one entry is about."""
    entry = await log.entry(seq)
    if entry is None:
        return []
    record = entry.record
    others = await log.entries(AuditFilter(run_id=record.run_id, call_id=record.id))
    if record.id:
        return others or [entry]
    # calls without an id have nothing else in common
    key = (record.idempotency_key, record.started_at)
    return [
        other for other in others if (other.record.idempotency_key, other.record.started_at) == key
    ]


def _print_stories(calls: list[CallStory], runs: list[tuple[RunRecord, bool]]) -> None:
    for run, intact in runs:
        mark = "" if intact else f"  ({CHANGED})"
        out.print(one_line(f"{run_line(run)}{mark}"))
    if runs and calls:
        out.print()
    for index, story in enumerate(calls):
        if index:
            out.print()
        _print_story(story)


def _entry_cells(entry: AuditEntry) -> tuple[str, ...]:
    record = entry.record
    ids = (record.run_id, record.id, record.name)
    outcome_cells = (outcome(record), decision_of(record), milliseconds(record))
    number = f"{entry.seq}" if entry.intact else f"{entry.seq} ({CHANGED})"
    return tuple(map(_cell, (when(record.started_at), *ids, *outcome_cells, number)))


def _cell(text: str) -> str:
    return shortened(one_line(text))


def _story_json(story: CallStory) -> dict[str, Any]:
    record = story.record
    attachments = {
        digest: {"kind": attachment.kind, "text": json.loads(attachment.text)}
        for digest, attachment in story.attachments.items()
    }
    return {
        "run_id": record.run_id,
        "id": record.id,
        "name": record.name,
        "why": story.why(),
        "entries": [to_plain(entry) for entry in story.entries],
        "attempts": [
            {"entries": [entry.seq for entry in attempt.entries], "differs": attempt.differs}
            for attempt in story.attempts
        ],
        "whole": story.whole,
        "attachments": attachments,
        "called_by": [_story_json(caller) for caller in story.callers],
    }


def _print_story(story: CallStory) -> None:
    title = Text().append(_cell(story.record.name), style="bold")
    title.append(_cell(f"  {ids_of(story.record)}"), style="dim")
    out.print(title)
    for line in story.lines():
        text = Text().append(f"  {line.at:<24}  ", style="dim")
        text.append(f"{line.what:<11} ", style="bold")
        text.append(one_line(line.text))
        text.rstrip()
        out.print(text)


app.command("verify")(audit_check.verify)
app.command("head")(audit_check.head)
app.command("migrate")(audit_check.migrate)
app.command("keygen")(audit_check.keygen)
app.command("checkpoint")(audit_check.checkpoint)
app.command("prove")(audit_check.prove)
app.command("verify-inclusion")(audit_check.check_inclusion)
app.command("export")(audit_check.export)
app.command("prune")(audit_check.prune)
