"""What happens in a run, as it happens. Public views only, never a `ToolCall`.

A run gives exactly one `RunStarted`, and exactly one `Done`, last. A call keeps one id from
`ToolCallStarted` to `ToolCallFinished`.
"""

from __future__ import annotations

from typing import ClassVar, TypeAlias

import msgspec

from toolcrib.values.decision import ApprovalRequest
from toolcrib.values.json import JsonObject, JsonValue, Veiled
from toolcrib.values.message import FinishReason, Usage
from toolcrib.values.origin import Choice
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.run import RunResult


class RunStarted(msgspec.Struct, frozen=True, tag="run_started"):
    """A run of the agent of that name and version, as far as it has them, begins or goes on.

    With `resumed` it goes on: the calls and questions that it waited for were told before, and are not
    told again.
    """

    run_id: str
    agent: str = ""
    agent_version: str = ""
    resumed: bool = False


class ToolsOffered(msgspec.Struct, frozen=True, tag="tools_offered"):
    """The tools that the model is offered from here on, all of them, in a run that picks.

    `choice` says why these: scores and reasons, and which tools were left out.
    """

    names: tuple[str, ...]
    choice: Choice | None = None


class TextDelta(Veiled, msgspec.Struct, frozen=True, tag="text_delta"):
    veiled: ClassVar[tuple[str, ...]] = ("text",)
    text: str


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
    id: str
    part: JsonValue


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
    | ToolsOffered
    | TextDelta
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
