"""Typed answers: the instruction for the model, and how its text, or its call, is read.

Rule: an answer is read as arguments are. The text is whole JSON, the schema that the model was told
validates it, and the reader of tools reads it, strictly: no key is dropped, no type becomes
another. Even if a provider was held to a view of the schema, the full schema decides. Several texts
are never joined into one answer: if a reply has more than one that may be it, there is no answer.

A model may be offered a tool whose call is the answer. It is hydrated like any call, but is not a
call of the run: nothing runs, no policy or person is asked, no budget is spent, and there is no
record, just as for a text answer. The history has it with its one result. It counts if it was
offered, is whole, and is the only call of its reply. An answer next to other calls was written
before anybody knew their results, so the others run, and the model is asked for the answer again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Sequence
from functools import partial
from itertools import chain, count
from typing import Any, NamedTuple

import jiter
import msgspec
import orjson

from toolcrib.errors import AnswerError, DefinitionError, ErrorCode, Stage
from toolcrib.failures import log_raised
from toolcrib.hydration import Parsed, ParseFailure, parse_json
from toolcrib.hydration.hydrate import built, hydrate, instance_of
from toolcrib.runner.stopped import ExceptionHook, rejection
from toolcrib.schema import Parameter, compile_validator, derive_input
from toolcrib.tools import Tool, tool_of
from toolcrib.values.call import HydrationError, Rejected, ToolCall
from toolcrib.values.definition import Annotations, ToolDefinition
from toolcrib.values.json import (
    JsonObject,
    JsonValue,
    canonical_bytes,
    canonical_json,
    read_unrounded,
)
from toolcrib.values.message import (
    ArgumentsPart,
    ChatRequest,
    LLMClient,
    Message,
    Offer,
    OutputFormat,
    OutputRestorer,
    Reply,
)
from toolcrib.values.record import CallError
from toolcrib.values.step import offer_of
from toolcrib.wire.forms import AnswerRestorer

_FENCES = ("```json", "```")
_INSTRUCTION = (
    "When you have the answer, write it as one JSON value and nothing else,"
    " valid by this JSON Schema: "
)
_INSTRUCTION_PATTERN = re.compile(rf"(?:^|\n\n){re.escape(_INSTRUCTION)}[^\n]*")
"""How instructions say a typed answer is written: alone, or after the author's text."""
ANSWER = "answer"
"""The one parameter of the answer tool."""
TOOL_NAME = "final_answer"
"""The name of the answer tool, unless a tool of the author's has it."""
_TOOL_DESCRIPTION = (
    "Give your answer with this, in place of writing it as text. It ends the conversation's turn, so"
    " call it alone, when all other calls have their results."
)
ANSWER_TAKEN = "This is the answer."
"""The result of a call that was the answer."""
_NOT_ALONE = (
    "An answer must be the only call of its reply, but this one was not: read the results of the"
    " other calls, and answer again."
)
_READS = Annotations(read_only=True, idempotent=True)
_MOST_ERRORS = 10
_CODE_FAILED = (
    "its own code failed (see the log of toolcrib.tools). The model's answer is not at fault."
)


class TakenAnswer(NamedTuple):
    """The answer that a call was: its value, its text in the terms of its type, its result."""

    value: Any
    text: str
    result: Message


class OutputType:
    """The type of a run's `output`; the answer tool has none of the `taken_names`.

    Raises DefinitionError for a type that JSON cannot express.
    """

    def __init__(self, kind: Any, taken_names: Container[str] = ()) -> None:
        try:
            derived = derive_input([Parameter(ANSWER, kind)])
        except DefinitionError as error:
            reason = str(error).removeprefix(f"parameter '{ANSWER}': ")
            reason = reason.partition("; if your program provides it")[
                0
            ]  # an answer is the model's
            raise DefinitionError(f"output= cannot be read from JSON: {reason}") from None
        properties: Any = derived.schema["properties"]
        schema = {**properties[ANSWER]}
        if "$defs" in derived.schema:
            schema["$defs"] = derived.schema["$defs"]
        name = getattr(kind, "__name__", ANSWER)
        schema_json = canonical_json(derived.schema)
        definition = ToolDefinition(
            name=f"output={name}", description="", input_schema_json=schema_json, annotations=_READS
        )
        validator = compile_validator(derived.schema)

        def make_tool(definition: ToolDefinition) -> Tool[..., Any]:
            converters = derived.converters
            return Tool(definition, dict, validator=validator, converters=converters)

        self._tool = make_tool(definition)
        tool_definition = msgspec.structs.replace(
            definition, name=_free_name(taken_names), description=_TOOL_DESCRIPTION, strict=False
        )
        self._offered = make_tool(tool_definition)
        self._strict = make_tool(msgspec.structs.replace(tool_definition, strict=True))
        text = orjson.dumps(schema).decode()
        self.instructions = f"{_INSTRUCTION}{text}"
        self.format = OutputFormat(name, text, self._offered, self._strict)

    def read(
        self, text: str, restorer: OutputRestorer | None = None, hook: ExceptionHook | None = None
    ) -> tuple[Any, str | None]:
        """Return the value, or a complaint for the model: places and kinds of faults, not its text.

        `restorer` is from the view of the schema that the provider was held to. Raises AnswerError
        if the author's own code fails; `hook` is called with what it raised.
        """
        bare = unfenced(text)
        decoded = parse_json(bare)
        if isinstance(decoded, ParseFailure):
            return None, complaint_of([decoded.message])
        exact_value = read_unrounded(bare.encode())
        restore = (lambda value: value) if restorer is None else restorer.restore
        sent: JsonObject = {ANSWER: restore(decoded[0])}
        exact: JsonObject | None = None if exact_value is None else {ANSWER: restore(exact_value)}
        parsed = Parsed(sent, canonical_bytes(sent), (), exact)
        building, errors, _ = built(self._tool, parsed, None, partial(self._failed, text, hook))
        self._check_code(errors)
        if building is None or errors:
            return None, complaint_of([_describe(error) for error in errors[:_MOST_ERRORS]])
        return building.instance.arguments[ANSWER], None

    @property
    def definition(self) -> ToolDefinition:
        """The definition of the answer tool."""
        return self._offered.definition

    def calls_in(self, reply: Reply) -> list[ToolCall]:
        """Return the calls of a reply that are of the answer tool, if it was on offer."""
        name = self.definition.name
        calls = [call for call in reply.tool_calls if call.name == name]
        is_offered = calls and self._offer_of(reply).tools.get(name) in (
            self._offered,
            self._strict,
        )
        return calls if is_offered else []

    def _offer_of(self, reply: Reply) -> Offer:
        """Return what was offered: everything given to the client, if it does not say."""
        is_reported = reply.offer.tools or reply.offer.known
        return reply.offer if is_reported else Offer.of([self._offered])

    def judge(
        self, reply: Reply, hook: ExceptionHook | None
    ) -> TakenAnswer | dict[str, CallError] | None:
        """Return the answer that a reply's call is; None for a reply without answer calls.

        If answer calls are invalid, returns the reason by call id. Raises AnswerError if the
        author's own code fails; `hook` is called with what it raised.
        """
        answers = self.calls_in(reply)
        if not answers:
            return None
        if len(reply.tool_calls) > 1:
            error = CallError.of(ErrorCode.NOT_RUNNABLE, _NOT_ALONE)
            return {call.id: error for call in answers}
        (call,) = answers
        offer = self._offer_of(reply)
        result = hydrate(call, offer, on_exception=hook)
        if isinstance(result, Rejected):
            self._check_code(result.errors)
            return {call.id: rejection(result)}
        instance = instance_of(result, tool_of(offer.tools[call.name]))
        value, sent = instance.arguments[ANSWER], result.building.sent
        text = answer_in(call) if sent == result.provenance.parsed else ""
        return TakenAnswer(
            value, text or canonical_json(sent[ANSWER]), Message.tool(call, ANSWER_TAKEN)
        )

    def text_of(self, reply: Reply) -> str:
        """Return the unvalidated answer text in a reply's one call; "" for any other reply."""
        calls = self.calls_in(reply) if len(reply.tool_calls) == 1 else []
        return answer_in(calls[0]) if calls and calls[0].complete else ""

    def _check_code(self, errors: Sequence[HydrationError]) -> None:
        """Raise AnswerError if the author's own code is why there is no value."""
        if errors and errors[0].code is ErrorCode.UNUSABLE_TOOL:
            message = errors[0].message  # a factory's field, or a missing extra
            reason = _CODE_FAILED if message == ErrorCode.UNUSABLE_TOOL.info.text else message
            raise AnswerError(f"{self._tool.definition.name} cannot be read: {reason}")

    def _failed(
        self, text: str, hook: ExceptionHook | None, what: str, raised: BaseException
    ) -> None:
        log_raised(f"{self._tool.definition.name}, {what},", raised)
        if hook is not None:
            hook(ToolCall("", self._tool.definition.name, text), raised)

    @staticmethod
    def normalized(text: str, restorer: OutputRestorer | None) -> str:
        """Return the text of an answer that was read, in the terms of its type."""
        decoded = None if restorer is None else parse_json(unfenced(text))
        if restorer is None or decoded is None or isinstance(decoded, ParseFailure):
            return text
        restored = restorer.restore(decoded[0])
        return text if restored == decoded[0] else canonical_json(restored)


def without_output(message: Message) -> Message | None:
    """Return a system message without the instructions for a typed answer, None if nothing is left.

    The next speaker may have another output type, or none.
    """
    if _INSTRUCTION not in message.content:
        return message
    text = _INSTRUCTION_PATTERN.sub("", message.content).removeprefix("\n\n")
    return msgspec.structs.replace(message, content=text) if text else None


def answer_in(call: ToolCall) -> str:
    """Return the answer in a call's arguments as the model wrote it; "" if there is none."""
    try:
        members = msgspec.json.decode(call.arguments, type=dict[str, msgspec.Raw])
        return bytes(members.get(ANSWER, b"")).decode()
    except (ValueError, RecursionError):
        return ""


def _free_name(taken_names: Container[str]) -> str:
    candidates = (f"{TOOL_NAME}_{number}" for number in count(2))
    return next(name for name in chain([TOOL_NAME], candidates) if name not in taken_names)


def _describe(error: HydrationError) -> str:
    """Return the text for the model about a fault; an author's own message has no place in it."""
    if error.stage is Stage.INSTANTIATE and not error.path:
        return error.message
    return f"{error.path.removeprefix(f'/{ANSWER}') or 'the top'}: {error.message}"


def complaint_of(faults: list[str]) -> str:
    """Return the text for the model about a text that is not an answer."""
    details = f" ({'; '.join(faults)})" if faults else ""
    return f"That is not the JSON value that was asked for{details}. Write it again."


def unfenced(text: str) -> str:
    """Return a text without the fences that models put around JSON."""
    bare = text.strip()
    for fence in _FENCES:
        if bare.startswith(fence) and bare.endswith("```") and len(bare) >= len(fence) + 3:
            return bare[len(fence) : -3]
    return bare


# A typed answer while it streams: the value that its text represents so far, for display.
#
# Rule: it is plain JSON data that nothing has validated. What the answer is, only the whole text
# says, once the reply has ended. Incomplete JSON never raises. A number shows when it is known to be
# whole; a number alone does not, because text may begin with it.
#
# A value is reported again when the text has grown by a thirty-second. So the total work grows with
# the length of the text, not with its square, however small the pieces are.

_GROWTH = 32
_LONGEST_HEAD = 16  # characters before a value: a fence, and white space after it
_FENCE = re.compile(r"\s*(?:```(?:json)?\s)?")
_QUOTES = re.compile(r'\\.|\\$|"', re.DOTALL)
_UNENDED = b"0123456789+-.eE"
_NOTHING: Any = object()
_NO_REPLY = Reply(Message.assistant(), "stop")


class PartialValue:
    """Reads the text of one reply as it arrives; `feed` it the pieces, in order.

    `wrapper` is the one property under which the provider was asked for a value that is not an
    object.
    """

    def __init__(self, wrapper: str | None) -> None:
        self._wrapper = wrapper
        self._text = bytearray()
        self._head = ""
        self._has_begun = False
        self._reported_size = 0
        self._in_text = False
        self._escaped = False
        self._last_value = _NOTHING

    def feed(self, piece: str) -> list[JsonValue]:
        """Return the value so far as a list of one; empty if there is none, or no new one."""
        if not self._has_begun:
            self._head = (self._head + piece).lstrip()
            fence = _FENCE.match(self._head)
            piece = self._head[fence.end() if fence else 0 :]
            if not piece.strip("`json \t\r\n") and len(self._head) < _LONGEST_HEAD:
                return []
            self._has_begun = True
        self._note_quotes(piece)
        self._text += piece.encode("utf-8", "replace")
        if len(self._text) - self._reported_size <= self._reported_size // _GROWTH:
            return []
        self._reported_size = len(self._text)
        return self._value()

    def end(self) -> list[JsonValue]:
        """Return the value of everything fed, in the same way."""
        return self._value() if self._reported_size < len(self._text) else []

    def _value(self) -> list[JsonValue]:
        text = bytes(self._text)
        if not self._in_text:
            text = text.rstrip(_UNENDED)
        try:
            value = jiter.from_json(text, partial_mode="trailing-strings", allow_inf_nan=False)
            json.dumps(value, allow_nan=False)  # 1e999 is read as infinity
        except ValueError:
            return []
        if not isinstance(value, dict | list | str):
            return []
        if isinstance(value, dict) and list(value) == [self._wrapper]:
            value = value[self._wrapper]
        if value in ({}, self._last_value):
            return []
        self._last_value = value
        return [value]

    def _note_quotes(self, piece: str) -> None:
        start = int(self._escaped and bool(piece))
        self._escaped = self._escaped and not piece
        for match in _QUOTES.finditer(piece, start):
            if match.group() == '"':
                self._in_text = not self._in_text
            elif len(match.group()) == 1:
                self._escaped = True


class PartialAnswer:
    """Reads the answer of one reply as it arrives: its text, or the arguments of an answer call.

    `tool` is the name of the answer tool.
    """

    def __init__(self, text: PartialValue, tool: str) -> None:
        self._reading = self._text = text
        self._tool = tool
        self._call_id: str | None = None

    @staticmethod
    def of(client: LLMClient, request: ChatRequest) -> PartialAnswer | None:
        """Return the reader for the reply to a request; None if it asks for no typed answer."""
        if request.output is None:
            return None
        restorer = offer_of(client, request, _NO_REPLY).output
        wrapper = restorer.wrapper if isinstance(restorer, AnswerRestorer) else None
        tool = request.output.tool
        name = "" if tool is None else tool.get_definition().name
        return PartialAnswer(PartialValue(wrapper), name)

    def feed(self, piece: str) -> list[JsonValue]:
        """Return what a piece of text adds, as `PartialValue.feed` does; nothing after a call."""
        return self._text.feed(piece) if self._reading is self._text else []

    def feed_call(self, part: ArgumentsPart) -> list[JsonValue]:
        """Return what a piece of a call adds, if it is of the first answer call."""
        if part.name != self._tool:
            return []
        if self._call_id is None:
            self._call_id, self._reading = part.call_id, PartialValue(ANSWER)
        return self._reading.feed(part.text) if part.call_id == self._call_id else []

    def end(self) -> list[JsonValue]:
        """Return the value of everything fed, in the same way."""
        return self._reading.end()
