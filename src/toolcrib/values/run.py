"""A run of the agent loop: its limits, events and result, and the state that lets it go on later."""

from __future__ import annotations

import hmac
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from sys import float_info
from typing import (
    Any,
    ClassVar,
    Literal,
    Protocol,
    Self,
    TypeAlias,
    TypedDict,
    get_args,
    runtime_checkable,
)

import jiter
import msgspec

from toolcrib.errors import SourceError, ToolcribError, no_such
from toolcrib.values.context import RunTally
from toolcrib.values.decision import ANONYMOUS, ApprovalRequest, Caller
from toolcrib.values.json import JsonObject, JsonValue, Veiled, canonical_json, keyed_digest
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
from toolcrib.values.typed import Checked, came, check_type

RunStatus: TypeAlias = Literal["completed", "waiting", "limited", "failed", "cancelled"]


_LEAST = {"tool_errors": 1, "seconds": -math.inf}  # a deadline may be over


class Limits(Checked, msgspec.Struct, frozen=True):
    """Say where a run stops by itself: model turns, tool calls, seconds, tool cost. None is no limit.

    `tool_cost` is the sum of the `cost` that the called tools were declared with, in the author's unit.
    Turns, calls and tool cost of agents that are tools count, too.
    `corrections` is how often an answer that is not of the type of `output`, or an empty one, goes back
    to the model. `repeated_calls` is how many calls in a row may tell the model nothing new: each made
    before in the run, with the same arguments, and answered alike. `tool_errors` is how often in a row
    one tool may fail. `handovers` is how often the conversation may go to another agent.
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
            least = _LEAST.get(name, 0)
            if limit is None:
                continue
            # nothing is above NaN; and what is beyond all floats fails where seconds are counted
            beyond = isinstance(limit, int) and abs(limit) > float_info.max
            if beyond or not limit >= least:
                wanted = "a number" if least < 0 else f"at least {least}"
                wanted = "a number that a float can hold" if beyond else wanted
                raise ToolcribError(f"Limits: {name} is {wanted}, or None for no limit")


# What a run asks of its model, and what its instructions may know of it.


class RunOptions(TypedDict, total=False):
    """Keyword arguments that say what is asked of a model, by an agent for its runs or by one run.

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
    """Holds what a run asks of its model besides its messages and tools; None leaves it open."""

    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @staticmethod
    def of(options: RunOptions) -> RunSettings:
        """Return what these options say. Raises TypeError for one that there is not, or of a wrong
        type or that is no finite number, and for `extra` that no saved run can hold."""
        if not options:
            return _OPEN
        for name in options:
            if name not in RunOptions.__annotations__:
                raise TypeError(no_such("option", name, list(RunOptions.__annotations__)))
        choice = _choice_of(options.get("tool_choice"))
        made = RunSettings(**{**options, "tool_choice": choice})  # type: ignore[arg-type]
        if made.max_tokens is not None and made.max_tokens < 1:
            raise TypeError("max_tokens is at least 1")
        try:
            kept = msgspec.json.decode(msgspec.json.encode(made), type=RunSettings)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"the options of a run are kept as JSON: {error}") from None
        for name in RunOptions.__annotations__:
            given, back = getattr(made, name), getattr(kept, name)
            if not _is_same(given, back):
                raise TypeError(f"{name} is kept as JSON, which gives it back as another value")
        return kept

    def over(self, others: Settings) -> Self:
        """Return these settings, and what they leave open as `others` have it."""
        made = super().over(others)
        if not isinstance(others, RunSettings):
            return made
        choice, parallel = self.tool_choice, self.parallel_tool_calls
        return msgspec.structs.replace(
            made,
            tool_choice=others.tool_choice if choice is None else choice,
            parallel_tool_calls=others.parallel_tool_calls if parallel is None else parallel,
        )

    @property
    def of_requests(self) -> Settings:
        """The settings of each request, without what a request has a place of its own for."""
        return Settings(*(getattr(self, name) for name in Settings.__struct_fields__))

    def choice(self, *, called: bool) -> ToolChoice:
        """Return the choice of tools for a request of a run that has `called` one, or has not yet.

        A call that is demanded is demanded once: a model that had to call something in each reply could
        never answer.
        """
        choice = self.tool_choice
        if choice is None:
            return _AUTO
        if called and choice.mode in ("required", "tool"):
            return ToolChoice(allowed=choice.allowed)
        return choice


def _is_same(given: Any, kept: Any) -> bool:
    """Return whether a value is what JSON gave back: in lists, a tuple is one."""
    if isinstance(given, Mapping):
        return (
            isinstance(kept, Mapping)
            and {*given} == {*kept}
            and all(_is_same(one, kept[name]) for name, one in given.items())
        )
    if isinstance(given, list | tuple):
        return (
            isinstance(kept, list | tuple)
            and len(given) == len(kept)
            and all(map(_is_same, given, kept))
        )
    return bool(given == kept) and isinstance(given, bool) == isinstance(kept, bool)


_OPEN = RunSettings()
_AUTO = ToolChoice()
_MODES = ("auto", "none", "required")


def _choice_of(choice: object) -> ToolChoice | None:
    if choice is None or isinstance(choice, ToolChoice):
        return choice
    if not isinstance(choice, str):
        wanted = "'auto', 'none', 'required', the name of a tool, or a ToolChoice"
        raise TypeError(f"tool_choice is {wanted}; {came(choice)}")
    mode: Any = choice
    return ToolChoice(mode) if choice in _MODES else ToolChoice("tool", choice)


class RunInfo(Checked, Veiled, msgspec.Struct, frozen=True):
    """Says what is known of a run when it begins: for `instructions` that are a function of it.

    `agent` is the agent's name, `messages` are the history and the prompt, and `deps` the capabilities
    that were given to this run, by their interfaces.
    """

    veiled: ClassVar[tuple[str, ...]] = ("messages", "deps")

    run_id: str
    caller: Caller
    agent: str
    messages: tuple[Message, ...]
    deps: Mapping[type, Any] = {}

    @property
    def prompt(self) -> str:
        """Return the text that the user says to the agent: the last message, unless another agent has
        spoken since, and hands over."""
        said = (message.text for message in reversed(self.messages) if message.by_user)
        return next(said)


Instructions: TypeAlias = str | Callable[[RunInfo], str | Awaitable[str]]
"""What an agent tells its model: a text, or a function of the run that gives one, async or not."""


class RepairedText(Veiled, msgspec.Struct, frozen=True):
    """The text that `by` put in place of a call's arguments."""

    veiled: ClassVar[tuple[str, ...]] = ("text",)

    text: str
    by: str


class TurnMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Says where a turn of a run begins: how many messages there are `at` that time, and how many tools
    are `offered`, and what the run has used and taken (seconds) by then. `running` is what of that an
    agent in the background has used whose result is still to be told, by its call."""

    turn: int
    at: int
    usage: Usage = Usage()
    elapsed: float = 0.0
    corrections: int = 0
    offered: int = 0
    running: dict[str, Usage] = {}


def moved(marks: Iterable[TurnMark], by: int) -> tuple[TurnMark, ...]:
    """Return marks for messages before which there are so many more, or fewer."""
    return tuple(msgspec.structs.replace(mark, at=mark.at + by) for mark in marks)


Repeat: TypeAlias = Literal["deny", "ask", "allow"]
"""What becomes of a call that would do again what the run that was forked has done."""


class Effect(Veiled, msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that began in a run after the turn at which that was forked, of a tool that does more than
    read: what it did is not undone.

    `arguments` are those that its record shows, `defaulted` those of them that were not sent. `ended`
    is how, as `state_of` says it. With `any_arguments` the tool is an agent: its words may differ, and
    do the same. A call that is `reopened` is decided anew: an edit may have let it run as another one.
    """

    veiled: ClassVar[tuple[str, ...]] = ("arguments",)

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
    """Says which run another one was forked from, after which of its turns, and which effects had
    happened by then that this one does not know of; `repeat` is what becomes of their repetition.
    `asked` is a digest of what was asked for, by which a fork that is asked for again is known."""

    run_id: str
    turn: int
    effects: tuple[Effect, ...] = ()
    repeat: Repeat = "deny"
    asked: str = ""


_NEWER = (
    *("suspended", "settings", "speakers", "marks", "fork", "emulated", "instructions"),
    *("arrived", "given"),
)
_NEWER_OF_QUESTIONS = ("within", "always", "asked_by", "untrusted")
_NEWER_OF_SUSPENDED = ("rule",)
_SAYS_NOTHING: tuple[Any, ...] = (False, {}, [], None, msgspec.to_builtins(Expense()))


class RunState(Checked, Veiled, msgspec.Struct, frozen=True):
    """All that a run needs to go on in another process: JSON, no pickle.

    `offered` names the tools that the model could see in the turn that waits; `elapsed` is in
    seconds, without the time spent waiting; `pending` is what it waits for, and until when.
    `restored` has, by call id, the arguments of waiting calls that were made for a provider's view
    of their schema, in the author's terms: the offer that had the restorer ends with the process.
    `repaired` likewise has the text that took the place of a waiting call's arguments: whoever is
    asked, and asked again after a restart, is asked about the same. `pinned` has, by call id, what
    default factories made for a waiting call (`Building.pinned`): they run once a call. `origin` is the
    turn that made the waiting calls, and `choice` why the tools on offer were chosen, in a run that
    picks. `corrections` is how often an answer went back to the model. `suspended` has, by call id, the
    runs of agents that are tools, and wait themselves. `settings` are what this run, not its agent,
    asks of the model. `marks` say where each turn began, and `fork` which run this one was forked from.
    `speakers` names the agents that have spoken in the run, in order, where one may hand over to
    another: the last one goes on. `emulated` says that something stood in for tools, in it or before
    it was forked: nothing real goes on from there. `instructions` says whether the first message is the
    instructions of whoever speaks, and, until they are made, whether the second gives way to them; a
    state of an earlier version does not say that. `arrived` are results of calls in the background,
    which the model is told behind those of the calls that wait. `given` names the interfaces of the
    capabilities that the run was given as `deps`, and its tools need, by module and qualified name: it
    goes on with no others in their place. `signature` is that of an agent with a `state_key`, over all
    the rest.
    """

    veiled: ClassVar[tuple[str, ...]] = ("restored", "pinned")

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
    settings: RunSettings = _OPEN
    marks: tuple[TurnMark, ...] = ()
    fork: Fork | None = None
    speakers: tuple[str, ...] = ()
    emulated: bool = False
    instructions: Literal["first", "none", "replacing"] | None = None
    arrived: tuple[Message, ...] = ()
    given: tuple[str, ...] = ()
    version: int = 1
    signature: str = ""

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    def signed(self, key: bytes) -> RunState:
        """Return the state with the signature that `key` makes."""
        return msgspec.structs.replace(self, signature=self._signature(key))

    def check_signature(self, key: bytes) -> None:
        """Raise SourceError unless this is what was signed with `key`."""
        check_signature(self.signature, self._signature(key), "the saved state")

    def _signature(self, key: bytes) -> str:
        """Return the HMAC-SHA256 of the canonical JSON of what is saved, without the signature.

        What 0.2 did not have is left out where it says nothing: a state that it signed goes on.
        """
        saved = msgspec.json.decode(msgspec.structs.replace(self, signature="").to_json())
        newer = [(saved, name) for name in _NEWER]
        newer += [(saved["tally"], name) for name in ("inner", "begun")]
        newer += [(each, name) for each in saved["pending"] for name in _NEWER_OF_QUESTIONS]
        begun = saved["suspended"].values()
        newer += [(each, name) for each in begun for name in _NEWER_OF_SUSPENDED]
        for place, name in newer:
            if place[name] in _SAYS_NOTHING:
                del place[name]
        return keyed_digest(key, "toolcrib run state", canonical_json(saved))

    @staticmethod
    def from_json(text: str | bytes) -> RunState:
        """Raise SourceError if the text is not a saved state, or holds more than one."""
        check_type("text", text, (str, bytes), "the JSON of a saved state, str or bytes")
        try:
            state = msgspec.json.decode(text, type=RunState)
            check_all_read(text, state)
        except (ValueError, RecursionError) as error:
            raise SourceError(f"not a saved run: {error}") from None
        if state.version != 1:
            raise SourceError(f"a run saved by another version ({state.version}) cannot go on here")
        return state


_LONGEST_ID = 200  # characters of a run's


def check_run_id(option: str, run_id: str) -> None:
    """Raise ToolcribError for an id that is blank, too long, or cannot be printed; "" is none."""
    check_type(option, run_id, str, "a str: the id of the run, as no other has it")
    if run_id and (not run_id.strip() or len(run_id) > _LONGEST_ID or not run_id.isprintable()):
        raise ToolcribError(f"{option}= is a text of at most 200 characters that can be printed")


def saved_run(suspended: SuspendedCall) -> RunState:
    """Return the state of the run that a call waits for. Raises SourceError."""
    return RunState.from_json(bytes(suspended.saved))


def spent_in(state: RunState) -> SpentWithin:
    """Return what a run has spent, with what agents that are its tools have."""
    own = state.tally.own.plus(Expense(turns=state.turn))
    return SpentWithin(own.plus(state.tally.inner), state.usage)


def check_all_read(text: str | bytes, made: object) -> None:
    """Raise ValueError where JSON has a member that was not read when this was made of it: one that is
    not known, or that is there twice. A signature is over what was read; another reader may take more.
    """
    data = text.encode() if isinstance(text, str) else text
    given = jiter.from_json(data, catch_duplicate_keys=True)
    again = msgspec.json.encode(made)
    if data == again:
        return
    extra = _member_beyond(given, msgspec.json.decode(again))
    if extra is not None:
        raise ValueError(f"it has a member {extra!r}, which a saved one does not have there")


def _member_beyond(given: Any, read: Any) -> str | None:
    """Return the first member of JSON that says something, and that what was read of it lacks: what
    says nothing may be a default that is not written."""
    left = [(given, read)]
    while left:
        one, other = left.pop()
        if isinstance(one, dict) and isinstance(other, dict):
            for name, value in one.items():
                if name in other:
                    left.append((value, other[name]))
                elif value:
                    return str(name)
        elif isinstance(one, list) and isinstance(other, list):
            left += zip(one, other, strict=False)
    return None


def check_signature(given: str, made: str, what: str) -> None:
    """Raise SourceError for a signature that is missing, or is not the one that was made here."""
    if not given:
        raise SourceError(
            f"{what} has no signature: it was saved by an agent without state_key, or changed since"
        )
    if not hmac.compare_digest(given.encode("utf-8", "replace"), made.encode()):
        raise SourceError(
            f"the signature of {what} does not fit: it was changed, or saved with another state_key"
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

    They are written when a run begins or goes on (`running`), and when it has ended or waits, or is
    `handed_over` to another agent, which goes on;
    `started_at` (seconds since the epoch) is then the same, and `seconds` how long it took. `provider`
    and `prompt_digest` are those of its last turn, as in the `Origin` of a call; `turns`, `calls` and
    `usage` are those of the run up to now, what was before it waited included. What agents that are its
    tools have spent is in `calls` and `usage`; they have records of their own. A run that was forked
    says which run it was forked from, after which turn; what that had spent by then is in `calls` and
    `usage`.
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
    """A sink that is also given the records of runs."""

    def write_run(self, record: RunRecord) -> Awaitable[None] | None: ...


_LIMITS = {
    "money": "what the caller may spend on models is used up",
    "empty_reply": "the model's reply was empty",
    "repeated_calls": "the model made the same calls again and again, which told it nothing new",
    "tool_errors": "the model called a tool again that had only failed",
    "handovers": "its agents handed the conversation to one another again and again",
}


def limit_text(limit: str) -> str:
    """Return in words what ended a run that is `limited`."""
    if limit in get_args(FinishReason):
        return f"the last reply ended as {limit!r}"
    return _LIMITS.get(limit, f"the limit on {limit} is reached")


_SHOWN = 20
"""How many calls the repr of a result has a line for."""


class RunResult(Veiled, msgspec.Struct, frozen=True):
    """Says how a run ended. `messages` is the whole history; `pending` what it waits for.

    `limit` names the limit that ended it, when `status` is `limited`: one of `Limits`, `empty_reply`,
    `money` where a budget of its caller has none left for its model,
    or how the last reply ended (`length`, `content_filter`; of a typed answer any `finish` but `stop`).
    An agent as a tool may be limited by the `budget` of a run around it. `agent` is the name of the one
    that spoke last, if it has one.
    """

    veiled: ClassVar[tuple[str, ...]] = ("text", "output")

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
        """The run's id, by which the audit log knows it."""
        return self.state.run_id

    def __repr__(self) -> str:
        """Say how it ended, and of each call the tool and its end, or that it waits: not all of it."""
        ended = self.status if self.limit is None else f"{self.status}: {self.limit}"
        head = f"<RunResult {ended}, {len(self.text)} characters, {len(self.records)} calls>"
        lines = [f"{each.name!r:.80}: {state_of(each)}" for each in self.records[:_SHOWN]]
        if len(self.records) > _SHOWN:
            lines.append(f"and {len(self.records) - _SHOWN} more")
        lines += [f"{each.title!r:.80}: waiting" for each in self.pending[:_SHOWN]]
        return "\n  ".join([head, *lines])

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        shown = {"status", "text", "records", "limit"}
        return [field for field in super().__rich_repr__() if field[0] in shown]


# What happens in a run, as it happens. Public views only, never a `ToolCall`.
#
# A run gives exactly one `RunStarted`, and exactly one `Done`, last. A call keeps one id from
# `ToolCallStarted` to `ToolCallFinished`.


class RunStarted(msgspec.Struct, frozen=True, tag="run_started"):
    """A run of the agent of that name and version, as far as it has them, begins or goes on.

    With `resumed` it goes on: the calls and questions that it waited for were told before, and are not
    told again.
    """

    run_id: str
    agent: str = ""
    agent_version: str = ""
    resumed: bool = False


class HandedOver(msgspec.Struct, frozen=True, tag="handed_over"):
    """The agent of that name and version speaks from here on; `by` has handed the conversation over."""

    agent: str
    by: str
    agent_version: str = ""


class ToolsOffered(msgspec.Struct, frozen=True, tag="tools_offered"):
    """The tools that the model is offered from here on, all of them, in a run that picks.

    `choice` says why these: scores and reasons, and which tools were left out.
    """

    names: tuple[str, ...]
    choice: Choice | None = None


class TextDelta(Veiled, msgspec.Struct, frozen=True, tag="text_delta"):
    veiled: ClassVar[tuple[str, ...]] = ("text",)
    text: str


class PartialOutput(Veiled, msgspec.Struct, frozen=True, tag="partial_output"):
    """What the typed answer says so far, as JSON data that nothing has judged: for display. The answer
    is `RunResult.output`; with each reply a new one begins."""

    veiled: ClassVar[tuple[str, ...]] = ("value",)
    value: JsonValue


class ReasoningDelta(Veiled, msgspec.Struct, frozen=True, tag="reasoning_delta"):
    """A piece of what the model lets us read of its reasoning: for display, never an answer."""

    veiled: ClassVar[tuple[str, ...]] = ("text",)
    text: str


class ReplyFinished(msgspec.Struct, frozen=True, tag="reply_finished"):
    """A reply of the model has ended: why, and what it alone has used. Its calls come after this."""

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


class ToolArgumentsDelta(Veiled, msgspec.Struct, frozen=True, tag="tool_arguments_delta"):
    """Arguments as they stream, for display; not given for tools with secret arguments."""

    veiled: ClassVar[tuple[str, ...]] = ("text",)

    id: str
    name: str
    text: str


class ToolCallProgress(msgspec.Struct, frozen=True, tag="tool_call_progress"):
    """A part of what a tool tells as it runs; `untrusted` if it may bring what others wrote."""

    id: str
    part: JsonValue
    untrusted: bool = False


class ApprovalRequested(msgspec.Struct, frozen=True, tag="approval_requested"):
    """A person is asked. `schema` is the tool's own input schema, by which arguments can be edited."""

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
