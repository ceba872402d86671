"""A run of the agent loop: its limits, events and result, and the state to resume it from."""

from __future__ import annotations

import hmac
import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from sys import float_info
from typing import (
    Any,
    ClassVar,
    Literal,
    Protocol,
    TypeAlias,
    TypedDict,
    get_args,
    runtime_checkable,
)

import msgspec

from toolcrib.errors import SourceError, ToolcribError, counted, no_such
from toolcrib.values.context import RunTally
from toolcrib.values.decision import ANONYMOUS, ApprovalRequest, Caller
from toolcrib.values.json import (
    JsonObject,
    JsonValue,
    Redacted,
    canonical_json,
    keyed_digest,
    with_unique_keys,
)
from toolcrib.values.message import Effort, FinishReason, Message, Settings, ToolChoice, Usage
from toolcrib.values.record import (
    Choice,
    Expense,
    Origin,
    SpentWithin,
    SuspendedCall,
    ToolInvocationRecord,
    state_of,
)
from toolcrib.values.typed import Checked, HandWritten, check_type, explains_wrong_types, got_type

RunStatus: TypeAlias = Literal["completed", "waiting", "limited", "failed", "cancelled"]
_MINIMUMS = {"tool_errors": 1, "seconds": -math.inf}  # the deadline may have passed


class Limits(HandWritten, frozen=True):
    """Limits after which a run stops: model turns, tool calls, seconds, tool cost. None means no
    limit.

    `tool_cost` is the sum of the declared `cost` of the called tools, in the author's unit. Turns,
    calls and tool cost of agents used as tools count, too. `corrections` is how often an answer
    that is empty or not of the type `output` goes back to the model. `repeated_calls` is how many
    consecutive calls may tell the model nothing new: each was made before in the run with the same
    arguments and the same result. `tool_errors` is how often in a row one tool may fail.
    `handovers` is how often the conversation may go to another agent.
    """

    turns: int = 20
    calls: int | None = 100
    seconds: float | None = None
    tool_cost: float | None = None
    corrections: int | None = 3
    repeated_calls: int | None = 5
    tool_errors: int | None = 10
    handovers: int | None = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.__struct_fields__:
            limit = getattr(self, name)
            minimum = _MINIMUMS.get(name, 0)
            if limit is None:
                continue
            # Nothing is above NaN, and an integer beyond all floats fails where seconds are
            # computed.
            is_too_large = isinstance(limit, int) and abs(limit) > float_info.max
            if is_too_large or not limit >= minimum:
                requirement = "a number" if minimum < 0 else f"at least {minimum}"
                requirement = "a number that a float can hold" if is_too_large else requirement
                raise ToolcribError(f"Limits: {name} must be {requirement}, or None for no limit")


# What a run asks of its model, and what its instructions may know about the run.


class RunOptions(TypedDict, total=False):
    """Keyword arguments for the requests to a model, set by an agent for all its runs or for one run.

    `tool_choice` is "auto", "none", "required", the name of a tool, or a `ToolChoice`.
    """

    temperature: float | None
    max_tokens: int | None
    reasoning: Effort | None
    extra: Mapping[str, JsonValue]
    provider_tools: tuple[Mapping[str, JsonValue], ...]
    tool_choice: ToolChoice | str | None
    parallel_tool_calls: bool | None


class RunSettings(Settings, frozen=True, omit_defaults=True):
    """Says what a run asks of its model besides messages and tools. None leaves a setting open."""

    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @staticmethod
    def of(options: RunOptions) -> RunSettings:
        """Return the settings for these options.

        Raises TypeError for an unknown option, for a value of a wrong type or that is not a finite
        number, and for an `extra` that a saved run cannot hold.
        """
        if not options:
            return _NO_SETTINGS
        for name in options:
            if name not in RunOptions.__annotations__:
                raise TypeError(no_such("option", name, list(RunOptions.__annotations__)))
        choice = _choice_of(options.get("tool_choice"))
        try:
            settings = RunSettings(**{**options, "tool_choice": choice})  # type: ignore[arg-type]
        except ValueError as error:
            raise TypeError(str(error)) from None
        if settings.max_tokens is not None and settings.max_tokens < 1:
            raise TypeError("max_tokens must be at least 1")
        try:
            decoded = msgspec.json.decode(msgspec.json.encode(settings), type=RunSettings)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(
                f"the options of a run must be JSON, because they are saved: {error}"
            ) from None
        for name in RunOptions.__annotations__:
            value, decoded_value = getattr(settings, name), getattr(decoded, name)
            if not _is_same(value, decoded_value):
                raise TypeError(
                    f"{name} must be JSON, because it is saved: reading it back gives a different "
                    "value"
                )
        return decoded

    @property
    def of_requests(self) -> Settings:
        """The settings of each request, without those that have their own field in a request."""
        return Settings(*(getattr(self, name) for name in Settings.__struct_fields__))

    def choice(self, *, called: bool) -> ToolChoice:
        """Return the tool choice for the next request of a run that has `called` a tool, or has not.

        A required call is required only once. A model that had to call a tool in each reply could
        never answer.
        """
        choice = self.tool_choice
        if choice is None:
            return ToolChoice()
        if called and choice.mode in ("required", "tool"):
            return ToolChoice(allowed=choice.allowed)
        return choice


def _is_same(value: Any, decoded: Any) -> bool:
    """Return whether a value survived JSON unchanged; a tuple counts as a list."""
    if isinstance(value, Mapping):
        return (
            isinstance(decoded, Mapping)
            and {*value} == {*decoded}
            and all(_is_same(element, decoded[name]) for name, element in value.items())
        )
    if isinstance(value, list | tuple):
        return (
            isinstance(decoded, list | tuple)
            and len(value) == len(decoded)
            and all(map(_is_same, value, decoded))
        )
    return bool(value == decoded) and isinstance(value, bool) == isinstance(decoded, bool)


_NO_SETTINGS = RunSettings()
_MODES = ("auto", "none", "required")


def _choice_of(choice: object) -> ToolChoice | None:
    if choice is None or isinstance(choice, ToolChoice):
        return choice
    if not isinstance(choice, str):
        expected = "'auto', 'none', 'required', the name of a tool, or a ToolChoice"
        raise TypeError(f"tool_choice must be {expected}; {got_type(choice)}")
    mode: Any = choice
    return ToolChoice(mode) if choice in _MODES else ToolChoice("tool", choice)


class RunInfo(Checked, Redacted, msgspec.Struct, frozen=True):
    """What is known about a run when it begins, for `instructions` that are a function.

    `agent` is the agent's name, `messages` are the history and the prompt, and `deps` are the
    capabilities that were given to this run, by interface.
    """

    redacted: ClassVar[tuple[str, ...]] = ("messages", "deps")

    run_id: str
    caller: Caller
    agent: str
    messages: tuple[Message, ...]
    deps: Mapping[type, Any] = {}

    @property
    def prompt(self) -> str:
        """The user's text to the agent: the last message, unless another agent spoke since."""
        texts = (message.text for message in reversed(self.messages) if message.by_user)
        return next(texts)


Instructions: TypeAlias = str | Callable[[RunInfo], str | Awaitable[str]]
"""What an agent tells its model: a string, or a sync or async function of the run."""


class RepairedText(Redacted, msgspec.Struct, frozen=True):
    """The text with which `by` replaced a call's arguments."""

    redacted: ClassVar[tuple[str, ...]] = ("text",)

    text: str
    by: str


class TurnMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Marks where a turn of a run begins.

    `at` is the number of messages and `offered` the number of tools at that time; `usage` and
    `elapsed` (seconds) are what the run has used by then. `running` is the share of that usage, by
    call, of background agents whose results have not been reported yet.
    """

    turn: int
    at: int
    usage: Usage = Usage()
    elapsed: float = 0.0
    corrections: int = 0
    offered: int = 0
    running: dict[str, Usage] = {}


def moved(marks: Iterable[TurnMark], by: int) -> tuple[TurnMark, ...]:
    """Return the marks shifted by a number of messages inserted before them, or removed."""
    return tuple(msgspec.structs.replace(mark, at=mark.at + by) for mark in marks)


Repeat: TypeAlias = Literal["deny", "ask", "allow"]
"""What happens to a call that would repeat something the original of a forked run has done."""


class Effect(Redacted, msgspec.Struct, frozen=True, omit_defaults=True):
    """An effect of the original run after the forked turn: a call that does more than read.

    It is not undone. `arguments` are those that its record shows, and `defaulted` those of them
    that were not sent. `ended` is how it ended, as `state_of` words it. `any_arguments` says that
    the tool is an agent, where different words may have the same effect. A `reopened` call is
    decided anew: an edit may have let it run as a different call.
    """

    redacted: ClassVar[tuple[str, ...]] = ("arguments",)

    run_id: str
    call_id: str
    turn: int
    tool: str
    ended: str
    arguments: JsonObject = {}
    defaulted: tuple[str, ...] = ()
    any_arguments: bool = False
    reopened: bool = False


class Fork(msgspec.Struct, frozen=True, omit_defaults=True):
    """Says which run this one was forked from, after which turn, and which effects it missed.

    `effects` had happened by the time of the fork. `repeat` says what happens if they are repeated.
    `asked` is a digest of the fork request, by which a repeated request is recognised.
    """

    run_id: str
    turn: int
    effects: tuple[Effect, ...] = ()
    repeat: Repeat = "deny"
    asked: str = ""


_NEWER_FIELDS = (
    *("suspended", "settings", "speakers", "marks", "fork", "emulated", "instructions"),
    *("arrived", "given", "answer"),
)
_NEWER_REQUEST_FIELDS = ("within", "always", "asked_by", "untrusted")
_NEWER_SUSPENDED_FIELDS = ("rule",)
_EMPTY_VALUES: tuple[Any, ...] = (False, {}, [], None, msgspec.to_builtins(Expense()))


class RunState(Checked, Redacted, msgspec.Struct, frozen=True):
    """Everything a run needs to continue in another process: JSON, no pickle.

    For the turn that waits, `offered` names the tools that the model could see. `elapsed` is in
    seconds, without the time spent waiting. `pending` holds what the run waits for, and until when.
    `origin` is the turn that made the waiting calls, and `choice` says why the tools were offered,
    in a run that picks.

    These are keyed by call id. `restored` holds the arguments of waiting calls that were made for a
    provider's view of their schema, in the author's terms, because the offer with the restorer ends
    with the process. `repaired` holds the texts that replaced the arguments of waiting calls, so
    that after a restart people are asked about the same arguments. `pinned` holds what default
    factories made for waiting calls (`Building.pinned`), because they run once per call.
    `suspended` holds the runs of agents used as tools that wait themselves.

    `corrections` is how often an answer went back to the model. `settings` are what this run, not
    its agent, asks of the model. `marks` say where each turn began, and `fork` which run this one
    was forked from. `speakers` names the agents that have spoken in the run, in order, where one
    may hand over to another; the last one continues. `emulated` says that tools were emulated, in
    this run or before it was forked, so it must not be resumed for real. `instructions` says
    whether the first message is the instructions of the current speaker and, until they are made,
    whether the second message is replaced by them; states of earlier versions do not say so.
    `arrived` are results of background calls, which the model is told after those of the waiting
    calls. `given` names, by module and qualified name, the interfaces of the capabilities that the
    run was given as `deps` and that its tools need. The run does not continue with others in their
    place. `answer` is the text of the answer with which the run completed. `signature` is made by
    an agent with a `state_key`, over everything else.
    """

    redacted: ClassVar[tuple[str, ...]] = ("restored", "pinned", "answer")

    run_id: str
    turn: int
    messages: tuple[Message, ...]
    usage: Usage = Usage()
    records: tuple[ToolInvocationRecord, ...] = ()
    tally: RunTally = msgspec.field(default_factory=RunTally)
    caller: Caller = ANONYMOUS
    offered: tuple[str, ...] = ()
    elapsed: float = 0.0
    pending: tuple[ApprovalRequest, ...] = ()
    restored: dict[str, JsonObject] = {}
    repaired: dict[str, RepairedText] = {}
    origin: Origin | None = None
    choice: Choice | None = None
    pinned: dict[str, JsonObject] = {}
    corrections: int = 0
    suspended: dict[str, SuspendedCall] = {}
    settings: RunSettings = _NO_SETTINGS
    marks: tuple[TurnMark, ...] = ()
    fork: Fork | None = None
    speakers: tuple[str, ...] = ()
    emulated: bool = False
    instructions: Literal["first", "none", "replacing"] | None = None
    arrived: tuple[Message, ...] = ()
    given: tuple[str, ...] = ()
    answer: str | None = None
    version: int = 1
    signature: str = ""

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @explains_wrong_types
    def signed(self, key: bytes) -> RunState:
        """Return the state with a signature made with `key`."""
        return msgspec.structs.replace(self, signature=self._signature(key))

    @explains_wrong_types
    def check_signature(self, key: bytes) -> None:
        """Raise SourceError unless the state matches its signature under `key`."""
        check_signature(self.signature, self._signature(key), "the saved state")

    def _signature(self, key: bytes) -> str:
        """Return the HMAC-SHA256 of the canonical JSON of the state without its signature.

        Fields that 0.2 did not have are left out if they are empty, so that states signed by 0.2
        stay valid.
        """
        saved = msgspec.json.decode(msgspec.structs.replace(self, signature="").to_json())
        optional_members = [(saved, name) for name in _NEWER_FIELDS]
        optional_members += [(saved["tally"], name) for name in ("inner", "begun")]
        optional_members += [
            (entry, name) for entry in saved["pending"] for name in _NEWER_REQUEST_FIELDS
        ]
        suspended_calls = saved["suspended"].values()
        optional_members += [
            (entry, name) for entry in suspended_calls for name in _NEWER_SUSPENDED_FIELDS
        ]
        for container, name in optional_members:
            if container[name] in _EMPTY_VALUES:
                del container[name]
        return keyed_digest(key, "toolcrib run state", canonical_json(saved))

    @staticmethod
    def from_json(text: str | bytes) -> RunState:
        """Parse a saved state. Raises SourceError if the text is not one, or contains more than
        one."""
        check_type("text", text, (str, bytes), "the JSON of a saved state, str or bytes")
        try:
            state = msgspec.json.decode(text, type=RunState)
            check_all_read(text, state)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"not a saved run, as RunState.to_json() gives it: {error}") from None
        if state.version != 1:
            raise SourceError(
                f"a run saved by another version ({state.version}) cannot be resumed with this "
                "version"
            )
        return state


_LONGEST_ID = 200  # characters of a run's id


def check_run_id(option: str, run_id: str | None) -> None:
    """Raise ToolcribError for an id that is blank, too long, or not printable; None means no id."""
    check_type(option, run_id, str | None, "a str: the unique id of the run")
    if run_id is None:
        return
    if not run_id.strip() or len(run_id) > _LONGEST_ID or not run_id.isprintable():
        raise ToolcribError(f"{option}= must be at most 200 printable characters, and not blank")


def saved_run(suspended: SuspendedCall) -> RunState:
    """Return the state of the run that a call waits for. Raises SourceError."""
    return RunState.from_json(bytes(suspended.saved))


def spent_in(state: RunState) -> SpentWithin:
    """Return what a run has spent, including agents used as its tools."""
    own_expense = state.tally.own_expense.plus(Expense(turns=state.turn))
    return SpentWithin(own_expense.plus(state.tally.inner), state.usage)


def check_all_read(text: str | bytes, parsed: object) -> None:
    """Raise ValueError if JSON has a member that parsing ignored because it is unknown or repeated.

    A signature covers only what was parsed, and another reader may accept more.
    """
    data = text.encode() if isinstance(text, str) else text
    encoded = msgspec.json.encode(parsed)
    if data == encoded:
        return
    original = json.loads(data, object_pairs_hook=with_unique_keys)
    extra = _member_beyond(original, msgspec.json.decode(encoded))
    if extra is not None:
        raise ValueError(f"it has an unknown member {extra!r}")


def _member_beyond(original: Any, parsed: Any) -> str | None:
    """Return the first non-empty member of JSON that is missing from what was parsed.

    Empty members are skipped, because they may be defaults that are not written.
    """
    pairs = [(original, parsed)]
    while pairs:
        original_node, parsed_node = pairs.pop()
        if isinstance(original_node, dict) and isinstance(parsed_node, dict):
            for name, value in original_node.items():
                if name in parsed_node:
                    pairs.append((value, parsed_node[name]))
                elif value:
                    return str(name)
        elif isinstance(original_node, list) and isinstance(parsed_node, list):
            pairs += zip(original_node, parsed_node, strict=False)
    return None


def check_signature(actual: str, expected: str, what: str) -> None:
    """Raise SourceError if a signature is missing or differs from the one computed here."""
    if not actual:
        raise SourceError(
            f"{what} has no signature: it was saved by an agent without state_key, or was changed since"
        )
    if not hmac.compare_digest(actual.encode("utf-8", "replace"), expected.encode()):
        raise SourceError(
            f"the signature of {what} does not match: it was changed, or saved with another state_key"
        )


class RunRecord(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    tag_field="status",
    tag="run",
    rename={"status": "outcome"},
):
    """A run of an agent, for the sinks that have a method `write_run`.

    A record is written when a run begins or is resumed (`running`), and when it has ended, waits,
    or is `handed_over` to another agent, which continues. The second of these has the same
    `started_at` (seconds since the epoch) as the first, and `seconds` says how long the run took.
    `provider` and `prompt_digest` belong to its last turn, as in the `Origin` of a call. `turns`,
    `calls` and `usage` are totals of the run so far, including the time before it waited. `calls`
    and `usage` include what agents used as tools have spent, although these have their own records.
    A forked run names the run and turn that it was forked from; its `calls` and `usage` include
    what that run had spent by then.
    """

    run_id: str
    status: RunStatus | Literal["running", "handed_over"]
    started_at: float
    seconds: float | None = None
    agent: str = ""
    agent_version: str = ""
    model: str = ""
    provider: str = ""
    prompt_digest: str = ""
    caller: str = ""
    caller_roles: tuple[str, ...] = ()
    parent_run_id: str = ""
    parent_call_id: str = ""
    turns: int = 0
    calls: int = 0
    usage: Usage = Usage()
    limit: str | None = None
    forked_from: str = ""
    forked_turn: int = 0


@runtime_checkable
class WatchesRuns(Protocol):
    """A sink that also receives the records of runs."""

    def write_run(self, record: RunRecord) -> Awaitable[None] | None: ...


_LIMIT_TEXTS = {
    "money": "what the caller may spend on models is used up",
    "empty_reply": "the model's reply was empty",
    "repeated_calls": "the model made the same calls again and again, and they gave nothing new",
    "tool_errors": "the model kept calling a tool that had only failed",
    "handovers": "the agents kept handing the conversation to one another",
}


def limit_text(limit: str) -> str:
    """Describe what ended a run that is `limited`."""
    if limit in get_args(FinishReason):
        return f"the last reply ended with {limit!r}"
    return _LIMIT_TEXTS.get(limit, f"the limit on {limit} is reached")


_SHOWN_CALLS = 20
"""The number of calls that the repr of a result lists."""


class RunResult(Redacted, msgspec.Struct, frozen=True):
    """Says how a run ended. `messages` is the whole history; `pending` is what the run waits for.
    `records` are those of its calls, in the order in which they ended.

    `limit` names the limit that ended it if `status` is `limited`: one of `Limits`, `empty_reply`,
    `money` if a budget of its caller has none left for its model, or how the last reply ended
    (`length`, `content_filter`; for a typed answer any `finish` but `stop`). An agent used as a
    tool may be limited by the `budget` of an enclosing run. `agent` is the name of the agent that
    spoke last, if it has one.
    """

    redacted: ClassVar[tuple[str, ...]] = ("text", "output")

    status: RunStatus
    text: str
    output: Any
    messages: tuple[Message, ...]
    usage: Usage
    records: tuple[ToolInvocationRecord, ...]
    pending: tuple[ApprovalRequest, ...]
    state: RunState
    limit: str | None = None
    agent: str = ""

    @property
    def run_id(self) -> str:
        """The run's id in the audit log."""
        return self.state.run_id

    def __repr__(self) -> str:
        """Say how the run and each call ended, or that a call waits, without the whole contents."""
        ended = self.status if self.limit is None else f"{self.status}: {self.limit}"
        calls = counted(len(self.records), "call")
        head = f"<RunResult {ended}, {counted(len(self.text), 'character')}, {calls}>"
        lines = [f"{entry.name!r:.80}: {state_of(entry)}" for entry in self.records[:_SHOWN_CALLS]]
        if len(self.records) > _SHOWN_CALLS:
            lines.append(f"and {len(self.records) - _SHOWN_CALLS} more")
        lines += [f"{entry.title!r:.80}: waiting" for entry in self.pending[:_SHOWN_CALLS]]
        return "\n  ".join([head, *lines])

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = {"status", "text", "records", "limit"}
        return [field for field in super().__rich_repr__() if field[0] in shown]


# Events of a run, as they happen. They contain public views only, never a `ToolCall`.
#
# A run gives exactly one `RunStarted`, and exactly one `Done`, last. A call keeps one id from
# `ToolCallStarted` to `ToolCallFinished`.


class RunStarted(msgspec.Struct, frozen=True, tag="run_started"):
    """A run of the agent with this name and version, if it has them, begins or is resumed.

    With `resumed`, the calls and questions that it waited for were reported before and are not
    reported again.
    """

    run_id: str
    agent: str = ""
    agent_version: str = ""
    resumed: bool = False


class HandedOver(msgspec.Struct, frozen=True, tag="handed_over"):
    """The agent with this name and version speaks from here on; `by` handed over to it."""

    agent: str
    by: str
    agent_version: str = ""


class ToolsOffered(msgspec.Struct, frozen=True, tag="tools_offered"):
    """All tools that the model is offered from here on, in a run that picks.

    `choice` says why: scores and reasons, and which tools were left out.
    """

    names: tuple[str, ...]
    choice: Choice | None = None


class TextDelta(Redacted, msgspec.Struct, frozen=True, tag="text_delta"):
    redacted: ClassVar[tuple[str, ...]] = ("text",)
    text: str


class PartialOutput(Redacted, msgspec.Struct, frozen=True, tag="partial_output"):
    """The typed answer so far, as JSON data that nothing has validated: for display only.

    The final answer is `RunResult.output`. Each reply starts a new one.
    """

    redacted: ClassVar[tuple[str, ...]] = ("value",)
    value: JsonValue


class ReasoningDelta(Redacted, msgspec.Struct, frozen=True, tag="reasoning_delta"):
    """A piece of the reasoning that the model discloses: for display, never an answer."""

    redacted: ClassVar[tuple[str, ...]] = ("text",)
    text: str


class ReplyFinished(msgspec.Struct, frozen=True, tag="reply_finished"):
    """A reply of the model has ended: why, and what it alone has used. Its calls come after
    this."""

    turn: int
    finish: FinishReason
    usage: Usage
    model: str = ""
    provider: str = ""


class ToolCallStarted(msgspec.Struct, frozen=True, tag="tool_call_started"):
    """A whole call has arrived. `arguments` is None if they did not validate."""

    id: str
    name: str
    arguments: JsonObject | None


class ToolArgumentsDelta(Redacted, msgspec.Struct, frozen=True, tag="tool_arguments_delta"):
    """Arguments as they stream, for display; not given for tools with secret arguments."""

    redacted: ClassVar[tuple[str, ...]] = ("text",)

    id: str
    name: str
    text: str


class ToolCallProgress(msgspec.Struct, frozen=True, tag="tool_call_progress"):
    """A progress report of a running tool; `untrusted` if it may contain what others wrote."""

    id: str
    part: JsonValue
    untrusted: bool = False


class ApprovalRequested(msgspec.Struct, frozen=True, tag="approval_requested"):
    """A person is asked. `schema` is the tool's own input schema, for editing the arguments."""

    request: ApprovalRequest
    schema: JsonObject | None = None


class ToolCallFinished(msgspec.Struct, frozen=True, tag="tool_call_finished"):
    record: ToolInvocationRecord


class UsageReported(msgspec.Struct, frozen=True, tag="usage_reported"):
    """The run's usage so far."""

    usage: Usage


class RunError(msgspec.Struct, frozen=True, tag="run_error"):
    """The run failed: the kind of the error, and text that is safe to show."""

    kind: str
    message: str


class Done(msgspec.Struct, frozen=True, tag="done"):
    result: RunResult


Event: TypeAlias = (
    RunStarted
    | HandedOver
    | ToolsOffered
    | TextDelta
    | PartialOutput
    | ReasoningDelta
    | ReplyFinished
    | ToolCallStarted
    | ToolArgumentsDelta
    | ToolCallProgress
    | ApprovalRequested
    | ToolCallFinished
    | UsageReported
    | RunError
    | Done
)
