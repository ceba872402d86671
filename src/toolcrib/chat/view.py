"""What a page shows of a conversation, as JSON: made from events, changed by operations.

Rule: a view has nothing that an event does not have, so it holds public views only. Every change is
an operation (`set` or `append-text` at a path, as in assistant-stream's `UpdateStateChunk`), and
applying all operations to an earlier snapshot gives the later one. The view keeps texts in pieces,
so that extending a long answer costs only what is new. A question is shown only while its turn
waits: as long as other calls run, nobody can answer it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, ClassVar, Final, Literal, TypeAlias, TypedDict, assert_never

import msgspec
import orjson

from toolcrib.agent.history import error_as_reported, error_in_result
from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import (
    JsonObject,
    JsonValue,
    Redacted,
    canonical_json,
    encodable,
    to_plain,
)
from toolcrib.values.record import Origin, ToolInvocationRecord, result_with_parts
from toolcrib.values.rule import KeptRule
from toolcrib.values.run import (
    ApprovalRequested,
    Done,
    Event,
    HandedOver,
    PartialOutput,
    ReasoningDelta,
    ReplyFinished,
    RunError,
    RunResult,
    RunStarted,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallFinished,
    ToolCallProgress,
    ToolCallStarted,
    ToolsOffered,
    UsageReported,
    limit_text,
)

Json: TypeAlias = dict[str, Any]

LARGEST_RESULT: Final = 64 * 1024
"""The most bytes of a result's, arguments' or progress's JSON that a page is sent.

Of a larger one it gets the beginning, as text.
"""
_MOST_PROGRESS = 50
_LIMIT_NOTE = "The run was stopped: {}."
BrokenOff: TypeAlias = Literal["interrupted", "failed"]
_BROKEN_OFF_NOTES: Final[Mapping[BrokenOff, str]] = {
    "interrupted": "The server stopped while this ran.",
    "failed": "The server could not save how this ended.",
}
_UNKNOWN_OUTCOME = (
    "It had begun when the run was interrupted, so its outcome is unknown. It does not run again."
)
_NOT_BEGUN = "It had not begun when the run was interrupted."
_NOT_WHOLE: Final = ("truncated", "The call did not arrive completely.")


class Operation(TypedDict):
    """One change of a view; `path` has the names, and the indexes as text, that lead to it."""

    type: Literal["set", "append-text"]
    path: list[str]
    value: Any


class ShownText(Redacted, msgspec.Struct, tag_field="kind", tag="text"):
    redacted: ClassVar[tuple[str, ...]] = ("text",)

    text: str


class ShownReasoning(Redacted, msgspec.Struct, tag_field="kind", tag="reasoning"):
    redacted: ClassVar[tuple[str, ...]] = ("text",)

    text: str


class ShownQuestion(Redacted, msgspec.Struct):
    """What a person is asked; `texts` has each argument as JSON, with all its digits.

    With `for_run` a yes may be for exactly this call for the rest of the run, with `for_tool` also
    for the whole tool. With `always` it may be a rule for calls of `title`: the tool, with the
    agents that call it.
    """

    redacted: ClassVar[tuple[str, ...]] = ("arguments",)

    id: str
    title: str
    reason: str
    arguments: Json
    texts: dict[str, str]
    defaults: list[str]
    asked_at: float
    expires_at: float
    for_run: bool
    for_tool: bool
    always: bool
    schema: Json | None


class ShownRule(Redacted, msgspec.Struct):
    """A rule: calls of `title` with these arguments do not ask its caller.

    Arguments that are `open` may have any value. `texts` are as in a question; without `expires_at`
    the rule holds until it is revoked.
    """

    redacted: ClassVar[tuple[str, ...]] = ("arguments", "texts")

    title: str
    arguments: Json
    texts: dict[str, str]
    open: list[str]
    by: str
    given_at: float
    expires_at: float | None


class ListedRule(msgspec.Struct):
    """A stored rule; None if it is not as it was signed.

    Such a rule lets nothing run, and calls that it may be about fail until it is revoked.
    """

    id: str
    rule: ShownRule | None


class ShownError(msgspec.Struct):
    code: str
    message: str


class ShownCall(Redacted, msgspec.Struct, tag_field="kind", tag="call"):
    redacted: ClassVar[tuple[str, ...]] = ("arguments",)

    id: str
    name: str
    state: Literal[
        "streaming", "called", "waiting", "completed", "failed", "denied", "cancelled", "unknown"
    ]
    args_text: str
    arguments: Json | None
    approval: ShownQuestion | None
    approved_by: str | None
    progress: list[Any]
    result: Any
    error: ShownError | None
    seconds: float | None
    decision: Json | None
    show: str


class ShownReply(msgspec.Struct):
    """What one reply of the model has used; `turn` counts from 1 in a run."""

    turn: int
    model: str
    provider: str
    usage: dict[str, int]


class ShownTurn(msgspec.Struct):
    id: str
    run_id: str
    asked: str
    at: float
    status: Literal[
        "running", "waiting", "completed", "limited", "failed", "cancelled", "interrupted"
    ]
    note: str
    model: str
    usage: dict[str, int] | None
    parts: list[ShownText | ShownReasoning | ShownCall]
    instead_of: str
    replies: list[ShownReply]


class ThreadHead(msgspec.Struct):
    id: str
    title: str


class ShownThread(msgspec.Struct):
    """What a page shows: a view is plain JSON of this form."""

    thread: ThreadHead
    turns: list[ShownTurn]


Definitions: TypeAlias = Callable[[str, str], ToolDefinition | None]
"""Returns the definition of a tool by its name and the name of the agent that offers it."""


def new_turn(turn_id: str, asked: str, *, at: float | None = None, instead_of: str = "") -> Json:
    """Return the view of a starting turn: what somebody asked, and no answer yet.

    `instead_of` is the id of the turn whose question it asks again.
    """
    return {
        "id": turn_id,
        "run_id": "",
        "asked": encodable(asked),
        "at": time.time() if at is None else at,
        "status": "running",
        "note": "",
        "model": "",
        "usage": None,
        "parts": [],
        "instead_of": instead_of,
        "replies": [],
    }


def line_of(turns: Iterable[Json]) -> list[Json]:
    """Return the turns that continue one another, out of all turns in the order asked.

    A turn that asks again replaces the earlier one, and everything after it.
    """
    line: list[Json] = []
    for turn in turns:
        ids = [continued["id"] for continued in line]
        if turn.get("instead_of") in ids:
            del line[ids.index(turn["instead_of"]) :]
        line.append(turn)
    return line


def shown_id(run_id: str, call_id: str) -> str:
    """Return the id under which a call is shown, unique among runs.

    Some clients number the calls of each reply from the start.
    """
    return call_id if call_id.startswith(f"{run_id}_") else f"{run_id}:{call_id}"


def own_id(run_id: str, shown: str) -> str:
    """Return the id that a call has in its run; ids of other runs and older versions stay."""
    return shown.removeprefix(f"{run_id}:")


def calls_of(turn: Json) -> dict[str, Json]:
    """Return the calls that are shown in a turn, by their ids within its run."""
    parts = (part for part in turn["parts"] if part["kind"] == "call")
    return {own_id(turn["run_id"], part["id"]): part for part in parts}


class TurnView:
    """Follows the events of one run, and maintains the view of its turn.

    Operations are relative to the turn. `definitions` returns the definitions of the speaker's
    tools. Callers who are `limited` may approve only some questions, and so no whole tool.
    """

    def __init__(self, turn: Json, definitions: Definitions, *, limited: bool = False) -> None:
        self.turn = turn
        self._definitions = definitions
        self._speaker = ""
        self._limited = limited
        self._parts: list[Json] = turn["parts"]
        self._calls = {
            own_id(turn["run_id"], part["id"]): index
            for index, part in enumerate(self._parts)
            if part["kind"] == "call"
        }
        self._unjoined: list[str] = []  # of the last part's text, not joined yet
        self._is_in_text = False  # whether the last part is a text of an unfinished reply
        self._questions: dict[str, Json] = {}  # by call, as long as the turn runs

    def snapshot(self) -> Json:
        """Return a copy of the present turn."""
        self._join()
        return deepcopy(self.turn)

    def ended(self, result: RunResult) -> tuple[TurnView, list[Operation]]:
        """Return the view after the end of the run, and the changes; this view is not changed."""
        ended_view = TurnView(self.snapshot(), self._definitions, limited=self._limited)
        ended_view._questions = dict(self._questions)
        ended_view._speaker = self._speaker
        return ended_view, ended_view.take(Done(result))

    def take(self, event: Event) -> list[Operation]:
        """Take the next event; return what it changes."""
        match event:
            case RunStarted(run_id=run_id, agent=agent):
                self._speaker = agent
                return [self._set(["run_id"], run_id), self._set(["status"], "running")]
            case TextDelta(text=text):
                return self._append_text("text", text)
            case ReasoningDelta(text=text):
                return self._append_text("reasoning", text)
            case ReplyFinished():
                return self._add_reply(event)
            case UsageReported(usage=usage):
                return [self._set(["usage"], to_plain(usage))]
            case RunError(message=message):
                return [self._set(["note"], encodable(message))]
            case Done(result=result):
                return self._show_end(result)
            case HandedOver(agent=agent):
                self._speaker = agent
                return []
            case ToolsOffered() | PartialOutput():  # its text is reported, too
                return []
            case _:
                return self._take_of_call(event)

    def _take_of_call(
        self,
        event: ToolArgumentsDelta
        | ToolCallStarted
        | ApprovalRequested
        | ToolCallProgress
        | ToolCallFinished,
    ) -> list[Operation]:
        match event:
            case ToolArgumentsDelta(id=call_id, name=name, text=text):
                return [*self._add_call(call_id, name), self._append_arguments(call_id, text)]
            case ToolCallStarted(id=call_id, name=name, arguments=arguments):
                changes = {"state": "called", "arguments": shown(arguments)}
                return [*self._add_call(call_id, name), *self._change(call_id, changes)]
            case ApprovalRequested(request=request, schema=schema):
                call_id = request.call_in(self.turn["run_id"])
                self._questions[call_id] = self._question(request, schema)
                added = self._add_call(call_id, request.tool)
                return [*added, *self._change(call_id, {"state": "waiting"})]
            case ToolCallProgress(id=call_id, part=part):
                return self._add_progress(call_id, part)
            case ToolCallFinished(record=record):
                return [
                    *self._add_call(record.id, record.name, record.origin),
                    *self._finish(record),
                ]
            case _:
                assert_never(event)

    def answered(self, call_id: str, by: str) -> list[Operation]:
        """Show that somebody has answered: the question is gone, and the run continues.

        Other questions come back when it waits again.
        """
        operations = [self._set(["status"], "running")]
        for other_id, index in self._calls.items():
            if self._parts[index]["approval"] is not None:
                self._questions[other_id] = self._parts[index]["approval"]
                operations += self._change(other_id, {"approval": None})
        self._questions.pop(call_id, None)
        changes = {"state": "called", "approved_by": by}
        return [*operations, *(self._change(call_id, changes) if call_id in self._calls else ())]

    def break_off(
        self, records: Mapping[str, ToolInvocationRecord], status: BrokenOff
    ) -> list[Operation]:
        """Show a run that nobody carries to its end; `records` are the last known of its calls.

        A call that began and has no end there is unknown; any other call had not begun.
        """
        operations: list[Operation] = []
        for call_id, record in records.items():
            operations += self._add_call(call_id, record.name, record.origin)
        for call_id, index in self._calls.items():
            if self._parts[index]["state"] not in _OPEN_STATES:
                continue
            last_record = records.get(call_id)
            if last_record is not None and last_record.status in ("completed", "failed"):
                operations += self._finish(last_record)
                continue
            state, code, text = (
                ("unknown", "outcome_unknown", _UNKNOWN_OUTCOME)
                if last_record is not None and last_record.status == "started"
                else ("cancelled", "cancelled", _NOT_BEGUN)
            )
            changes = {
                "state": state,
                "error": {"code": code, "message": text},
                "approval": None,
                **({} if last_record is None else {"arguments": shown(last_record.arguments)}),
            }
            operations += self._change(call_id, changes)
        return [
            *operations,
            self._set(["status"], status),
            self._set(["note"], _BROKEN_OFF_NOTES[status]),
        ]

    def _add_reply(self, event: ReplyFinished) -> list[Operation]:
        self._join()
        self._is_in_text = False
        reply = {
            "turn": event.turn,
            "model": event.model,
            "provider": event.provider,
            "usage": to_plain(event.usage),
        }
        replies = self.turn.setdefault("replies", [])  # a turn of an older version has none
        replies.append(reply)
        operations = [_operation("set", ["replies", str(len(replies) - 1)], deepcopy(reply))]
        if self.turn["model"] != event.model:
            operations.append(self._set(["model"], event.model))
        return operations

    def _append_text(self, kind: str, text: str) -> list[Operation]:
        text = encodable(text)
        if self._is_in_text and self._parts and self._parts[-1]["kind"] == kind:
            self._unjoined.append(text)
            index = str(len(self._parts) - 1)
            return [_operation("append-text", ["parts", index, "text"], text)]
        self._is_in_text = True
        return [self._add_part({"kind": kind, "text": text})]

    def _add_part(self, part: Json) -> Operation:
        self._join()
        self._parts.append(part)
        return _operation("set", ["parts", str(len(self._parts) - 1)], deepcopy(part))

    def _join(self) -> None:
        if self._unjoined:
            self._parts[-1]["text"] += "".join(self._unjoined)
            self._unjoined.clear()

    def _add_call(self, call_id: str, name: str, origin: Origin | None = None) -> list[Operation]:
        """Return the operation that adds a call, if it is not there.

        The call is the current speaker's, if its record does not name the agent.
        """
        if call_id in self._calls:
            return []
        self._calls[call_id] = len(self._parts)
        agent = self._speaker if origin is None else origin.agent
        definition = self._definitions(name, agent)
        marks = {} if definition is None else definition.annotations.marks
        show = marks.get("show")
        return [
            self._add_part(
                {
                    "kind": "call",
                    "id": encodable(shown_id(self.turn["run_id"], call_id)),
                    "name": encodable(name),
                    "state": "streaming",
                    "args_text": "",
                    "arguments": None,
                    "approval": None,
                    "approved_by": None,
                    "progress": [],
                    "result": None,
                    "error": None,
                    "seconds": None,
                    "decision": None,
                    "show": show if isinstance(show, str) else "",
                }
            )
        ]

    def _path(self, call_id: str) -> list[str]:
        return ["parts", str(self._calls[call_id])]

    def _change(self, call_id: str, changes: Mapping[str, Any]) -> list[Operation]:
        path = self._path(call_id)
        return [self._set([*path, name], value) for name, value in changes.items()]

    def _add_progress(self, call_id: str, part: JsonValue) -> list[Operation]:
        if call_id not in self._calls:
            return []
        parts = self._parts[self._calls[call_id]]["progress"]
        index = str(min(len(parts), _MOST_PROGRESS - 1))
        if len(parts) == _MOST_PROGRESS:
            parts.pop()  # drops the last one for the newer one
        parts.append(shown(part))
        return [_operation("set", [*self._path(call_id), "progress", index], deepcopy(parts[-1]))]

    def _question(self, request: ApprovalRequest, schema: JsonValue) -> Json:
        """Return what a person needs to answer a question.

        Its arguments are never cut, because the answer is about them.
        """
        return {
            "id": request.id,
            "title": encodable(request.title),
            "reason": f"{request.title}: {request.reason}" if request.within else request.reason,
            "arguments": decodable(readable(request.arguments)),
            "texts": decodable(_argument_texts(request.arguments)),
            "defaults": list(request.defaults),
            "asked_at": request.asked_at,
            "expires_at": request.expires_at,
            "for_run": request.for_run,
            "for_tool": request.for_run and not self._limited,
            "always": request.always and not self._limited,
            "schema": decodable(schema),
        }

    def _finish(self, record: ToolInvocationRecord) -> list[Operation]:
        error = error_as_reported(record)
        state = "failed" if error else "completed"
        if error is not None and error.code in _STATES_BY_CODE:
            state = _STATES_BY_CODE[error.code]
        return self._change(
            record.id,
            {
                "state": state,
                "arguments": shown(record.arguments),
                "approval": None,
                "approved_by": record.approved_by,
                "result": shown(result_with_parts(record)),
                "error": None if error is None else {"code": error.code, "message": error.message},
                "seconds": record.seconds,
                "decision": to_plain(record.decision),
            },
        )

    def _show_end(self, result: RunResult) -> list[Operation]:
        """Show the end of a run: calls end before their turn, and questions come after its end."""
        operations: list[Operation] = []
        is_waiting = result.status == "waiting"
        for call_id, index in self._calls.items():
            if self._parts[index]["state"] in _OPEN_STATES and not is_waiting:
                code, message = error_in_result(result.messages, call_id) or _NOT_WHOLE
                error = {"code": code, "message": message}
                state = _STATES_BY_CODE.get(code, "cancelled")
                operations += self._change(
                    call_id, {"state": state, "error": error, "approval": None}
                )
        if result.limit:
            operations.append(self._set(["note"], _LIMIT_NOTE.format(limit_text(result.limit))))
        operations.append(self._set(["status"], result.status))
        requests = {each.call_in(result.state.run_id): each for each in reversed(result.pending)}
        for call_id, request in requests.items():  # of an agent that asks several, the first
            question = self._questions.get(call_id)
            if question is None or question["id"] != request.id:
                question = self._question(request, None)
            if call_id in self._calls:
                operations += self._change(call_id, {"state": "waiting", "approval": question})
        return operations

    def _set(self, path: list[str], value: Any) -> Operation:
        self._join()
        container: Any = self.turn
        for name in path[:-1]:
            container = container[int(name)] if isinstance(container, list) else container[name]
        container[path[-1]] = value
        return _operation("set", path, deepcopy(value))

    def _append_arguments(self, call_id: str, text: str) -> Operation:
        call = self._parts[self._calls[call_id]]
        remaining = LARGEST_RESULT - len(call["args_text"])
        text = encodable(text)[: max(0, remaining)]
        call["args_text"] += text
        return _operation("append-text", [*self._path(call_id), "args_text"], text)


_OPEN_STATES: Final = ("streaming", "called", "waiting")
_STATES_BY_CODE: Final[Mapping[str, str]] = {
    "denied": "denied",
    "approval_refused": "denied",
    "approval_required": "denied",
    "budget_exceeded": "denied",
    "rate_limited": "denied",
    "repeated_effect": "denied",
    "cancelled": "cancelled",
    "outcome_unknown": "unknown",
}


def _operation(kind: Literal["set", "append-text"], path: Iterable[str], value: Any) -> Operation:
    return {"type": kind, "path": list(path), "value": value}


def bounded(value: JsonValue, most: int = LARGEST_RESULT, head: int = LARGEST_RESULT) -> Any:
    """Return a value that a browser can read, or the head of its JSON if that is too large."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_STRICT_INTEGER)
    except TypeError:  # an integer beyond 53 bits, or half of a surrogate pair
        value = readable(value)
        text = orjson.dumps(value)
    if len(text) <= most:
        return value
    return {"truncated": True, "bytes": len(text), "head": text[:head].decode("utf-8", "ignore")}


def shown(value: JsonValue) -> Any:
    """Return a value as a page is sent it."""
    return decodable(bounded(value))


def decodable(value: Any) -> Any:
    """Return a JSON value with brackets around names that assistant-stream's decoder refuses.

    It would drop everything that was sent with them.
    """
    if isinstance(value, list):
        return [decodable(item) for item in value]
    if not isinstance(value, dict):
        return value
    members: Json = {}
    for name, part in value.items():
        has_prototype = name == "constructor" and isinstance(part, dict) and "prototype" in part
        unique_name = f"[{name}]" if name == "__proto__" or has_prototype else name
        while unique_name in members:
            unique_name = f"[{unique_name}]"
        members[unique_name] = decodable(part)
    return members


_FIRST_ROUNDED = 2**53  # from here on a browser's numbers are not exact


def readable(value: Any) -> Any:
    """Return a JSON value with each integer that a browser would round as a string."""
    if isinstance(value, dict):
        return {encodable(name): readable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [readable(item) for item in value]
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, int) and abs(value) >= _FIRST_ROUNDED:
        return str(value)
    return value


_MOVED_NUMBER = (
    "a large number that was shown as text came back in a different place, so it is unclear "
    "whether the number or the text is meant: write the number itself"
)
_ABSENT: Final = object()


class ReadBack:
    """Undoes in an edit what `readable` did to the arguments that were shown.

    A string that stands for a number is read as that number in its place, and within an unchanged
    item of a list, wherever that is. Elsewhere it is refused, since it may mean the number or the
    string.
    """

    def __init__(self, shown: JsonObject) -> None:
        self._shown = shown
        self._texts = set(_number_texts(shown))

    def arguments(self, edited: JsonObject) -> JsonObject:
        """Return the edited arguments. Raises ValueError, whose text is for people."""
        if not self._texts:
            return edited
        try:
            return {n: self._part(v, self._shown.get(n, _ABSENT)) for n, v in edited.items()}
        except RecursionError:
            raise ValueError("the arguments are nested too deeply") from None

    def _part(self, edited: Any, shown: Any) -> Any:
        if isinstance(edited, dict):
            shown_members = shown if isinstance(shown, dict) else {}
            return {
                name: self._part(part, shown_members.get(name, _ABSENT))
                for name, part in edited.items()
            }
        if isinstance(edited, list):
            return self._items(edited, shown if isinstance(shown, list) else [])
        if not isinstance(edited, str) or edited not in self._texts:
            return edited
        if isinstance(shown, str | int) and edited == readable(shown):
            return shown
        raise ValueError(_MOVED_NUMBER)

    def _items(self, edited: list[Any], shown: list[Any]) -> list[Any]:
        """Return the items of a list. If its length changed, no item is known by its index."""
        is_same_length = len(edited) == len(shown)
        originals: dict[str, dict[str, Any]] = {}  # by their shown form
        for value in shown:
            originals.setdefault(canonical_json(readable(value)), {})[canonical_json(value)] = value
        items = []
        for index, part in enumerate(edited):
            text = canonical_json(part)
            if is_same_length and text == canonical_json(readable(shown[index])):
                items.append(shown[index])
            elif len(matches := originals.get(text, {})) == 1:
                items += matches.values()
            else:
                items.append(self._part(part, shown[index] if is_same_length else _ABSENT))
        return items


def _number_texts(value: Any) -> Iterator[str]:
    """Yield the strings that stand for numbers in a value as shown."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _number_texts(part)
    elif isinstance(value, int) and abs(value) >= _FIRST_ROUNDED:
        yield str(value)


def shown_rule(stored_rule: KeptRule) -> ListedRule:
    """Return a rule in the form that a page shows to its caller."""
    rule = stored_rule.rule
    if rule is None:
        return ListedRule(stored_rule.id, None)
    return ListedRule(
        stored_rule.id,
        ShownRule(
            title=encodable(rule.title),
            arguments=readable(rule.arguments),
            texts=_argument_texts(rule.arguments),
            open=[encodable(name) for name in rule.open],
            by=encodable(rule.by),
            given_at=rule.given_at,
            expires_at=rule.expires_at,
        ),
    )


def _argument_texts(arguments: JsonObject) -> dict[str, str]:
    return {encodable(name): _exact_json(value) for name, value in arguments.items()}


def _exact_json(value: JsonValue) -> str:
    """Return a value as JSON, with all its digits and signs."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text == encodable(text) else json.dumps(value)
