"""A syntax of calls in text: a value that says which marks begin them, and which readers read them.

A reader is a generator that advances a `Cursor` and fills a `FoundCalls`. It raises `NoCallError`
if the text does not match the syntax, and lets `EndedError` pass if the text ends too early.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from functools import partial
from typing import Protocol

import msgspec

from toolcrib.errors import RequestError
from toolcrib.values.typed import Checked
from toolcrib.wire.text_calls.reading import (
    Asking,
    Cursor,
    EndedError,
    FoundCalls,
    Marks,
    NoCallError,
    Parameters,
    Sink,
    dictionary,
    json_of,
    json_string,
    keywords,
    nowhere,
    string,
)

_THINKING_NAMES = (
    *("think", "thinking", "thought", "reasoning", "reflection", "scratchpad", "antthinking"),
    *("longcat_think", "seed:think"),
)
THINKING = {f"<{name}>": f"</{name}>" for name in _THINKING_NAMES} | {
    "[THINK]": "[/THINK]",  # Magistral
    "◁think▷": "◁/think▷",  # Kimi
    "<|START_THINKING|>": "<|END_THINKING|>",  # Command
    "<|begin_of_thought|>": "<|end_of_thought|>",  # Sky-T1
    "<|channel>": "<channel|>",  # Gemma 4
    "<|channel|>analysis": "<|start|>",  # gpt-oss: up to its next message
    "<unused94>": "<unused95>",  # MedGemma
}
"""What models write around their thoughts, in any case."""


class Reader(Protocol):
    def __call__(self, cursor: Cursor, block: FoundCalls, /) -> Generator[None, None, None]: ...


class TextSyntax(Checked, msgspec.Struct, frozen=True, kw_only=True):
    """Says how a family of models writes calls in its text.

    `marks` are what calls begin with, each with the reader of what follows. `unmarked` reads calls
    that begin without a mark. It is tried where the text begins and where thinking ends, and raises
    NoCallError if anything else follows. `closers` are what calls at a mark end with: if a call was
    begun and then stopped being one, everything is text up to there, or to the end without a
    closer. `endings` are tokens that a server may leave in the text after calls; there they are
    dropped. `thinking` are the marks around thoughts, in any case, in which nothing is a call. If
    thinking ends without a beginning, it began with the text.

    Raises RequestError if a mark is not a string, or empty.
    """

    name: str
    marks: Mapping[str, Reader]
    unmarked: Reader | None = None
    closers: Mapping[str, str] = msgspec.field(default_factory=dict)
    endings: tuple[str, ...] = ()
    thinking: Mapping[str, str] = msgspec.field(default_factory=lambda: THINKING)

    def __post_init__(self) -> None:
        super().__post_init__()
        ends = (*self.closers.values(), *self.thinking, *self.thinking.values())
        for mark in (*self.marks, *self.endings, *ends):
            if not isinstance(mark, str) or not mark:
                raise RequestError(
                    f"the syntax {self.name!r}: the mark {mark!r} is not a string, or is empty"
                )

    def __repr__(self) -> str:
        return f"TextSyntax({self.name!r})"


# Forms of calls that several families share: JSON, Python, and strings in tags.


_ARGUMENTS = ("arguments", "parameters")
_JSON = msgspec.json.Decoder(msgspec.Raw)


def json_call(cursor: Cursor, block: FoundCalls) -> Asking[None]:
    """Read `{"name": …, "arguments": {…}}`, or with `parameters`, in any order.

    There may be a `type` and an `id`. A strict block may have nothing else, and its arguments have
    to be an object.
    """
    call = block.call()
    seen: set[str] = set()
    yield from cursor.expect("{")
    while True:
        yield from cursor.space()
        key = yield from string(cursor)
        key = "arguments" if key in _ARGUMENTS else key
        if key in seen or (block.strict and key not in ("name", "arguments", "type", "id")):
            raise NoCallError
        seen.add(key)
        yield from cursor.space()
        yield from cursor.expect(":")
        yield from cursor.space()
        char = yield from cursor.char()
        if key == "name":
            block.named(call, (yield from string(cursor)))
        elif key == "arguments" and (char == "{" or not block.strict):
            yield from cursor.value(call.pieces.append)
        elif key == "id" and char in "\"'":
            call.provider_id = yield from string(cursor)
        elif key == "arguments":
            raise NoCallError
        else:
            yield from cursor.value(nowhere)
        yield from cursor.space()
        if not (yield from cursor.take(",")):
            break
    yield from cursor.expect("}")
    if not call.name or (block.strict and not call.pieces):
        raise NoCallError


def python_call(cursor: Cursor, block: FoundCalls) -> Asking[None]:
    """Read `name(key="value", n=3)`: keyword arguments only."""
    name = yield from cursor.name()
    call = block.call(name)
    yield from cursor.expect("(")
    yield from keywords(cursor, call.pieces.append)


def some_calls(cursor: Cursor, block: FoundCalls) -> Asking[None]:
    """Read JSON calls with `;` between them, a list of JSON or Python calls, or one Python call."""
    char = yield from cursor.char()
    if char == "[":
        cursor.at += 1
        yield from _call_list(cursor, block)
    elif char != "{":
        yield from python_call(cursor, block)
    else:
        yield from json_call(cursor, block)
        while (yield from take_with_space(cursor, ";")):
            yield from json_call(cursor, block)


def object_arguments(cursor: Cursor, sink: Sink) -> Asking[None]:
    """Read arguments that must be an object."""
    yield from cursor.space()
    if (yield from cursor.char()) != "{":
        raise NoCallError
    yield from cursor.value(sink)


def function_tag(cursor: Cursor, block: FoundCalls) -> Asking[None]:
    """Read the rest of `<function=name>`: a JSON object, or `<parameter=key>` tags, and `</function>`.

    The line breaks next to a value's tags belong to the tags. A value may contain its closing tag,
    as long as nothing follows that may follow a value.
    """
    name = yield from cursor.name()
    call = block.call(name)
    yield from cursor.expect(">")
    yield from cursor.space()
    if (yield from cursor.sees("{")):
        yield from cursor.value(call.pieces.append)
    else:
        values = TagValues(block.parameters(name), call.pieces.append)
        while (yield from take_with_space(cursor, "<parameter=")):
            key = yield from cursor.key()
            yield from cursor.expect(">")
            value = yield from tag_value(cursor, "</parameter>", ("<parameter=", "</function>"))
            values.add(key, value.removeprefix("\n").removesuffix("\n"))
        values.close()
    yield from cursor.space()
    yield from cursor.expect("</function>")


def tag_value(cursor: Cursor, closer: str, followers: tuple[str, ...]) -> Asking[str]:
    """Return the text before a `closer` that is followed by one of `followers`."""
    pieces: list[str] = []
    marks = Marks((closer,))
    while True:
        yield from cursor.until(marks, pieces.append)
        value_end = len(pieces)
        pieces.append(closer)
        yield from cursor.space(pieces.append)
        for mark in followers:
            if (yield from cursor.sees(mark)):
                return "".join(pieces[:value_end])


class TagValues:
    """The arguments of a call whose values are bare text in tags; `sink` takes their JSON."""

    def __init__(self, parameters: Parameters, sink: Sink) -> None:
        self._parameters = parameters
        self._sink = sink
        self._separator = "{"

    def add(self, key: str, value: str, *, is_text: bool | None = None) -> None:
        """Add one argument. `is_text` says whether the tag declares it a string.

        If the tag says nothing, the schema decides. A value is a string wherever a string is
        allowed, except for `null` where that is allowed, too. Any other value is JSON, or else a
        Python literal, or else a string. So is a value about which the schema says nothing.
        """
        kinds = self._parameters.kinds(key)
        if is_text is None and not ("null" in kinds and value.strip() in ("null", "None")):
            is_text = "string" in kinds
        value_json = json_string(value) if is_text else _json(value)
        self._sink(f"{self._separator}{json_string(key)}: {value_json}")
        self._separator = ", "

    def close(self) -> None:
        self._sink("{}" if self._separator == "{" else "}")


def _json(text: str) -> str:
    stripped = text.strip()
    try:
        _JSON.decode(stripped)
    except (ValueError, RecursionError):
        return json_of(stripped) or json_string(text)
    return stripped


def _call_list(cursor: Cursor, block: FoundCalls) -> Asking[None]:
    while True:
        yield from cursor.space()
        is_json = (yield from cursor.char()) == "{"
        yield from (json_call if is_json else python_call)(cursor, block)
        yield from cursor.space()
        if not (yield from cursor.take(",")):
            break
    yield from cursor.expect("]")


def take_with_space(cursor: Cursor, mark: str) -> Asking[bool]:
    """Skip `mark`, with the whitespace around it, if it comes next; return whether it did."""
    yield from cursor.space()
    is_next = yield from cursor.take(mark)
    if is_next:
        yield from cursor.space()
    return is_next


# Hermes and Qwen: JSON in `<tool_call>` tags, and the tags of Qwen3-Coder.
#
# Formats: NousResearch/Hermes-Function-Calling (README); the chat templates of Qwen2.5, Qwen3 and
# Qwen3-Coder, Qwen/Qwen3-Coder's `qwen3coder_tool_parser.py`.


_CLOSER = "</tool_call>"


def _json_until(cursor: Cursor, block: FoundCalls, *, closer: str) -> Asking[None]:
    yield from cursor.space()
    yield from json_call(cursor, block)
    yield from cursor.space()
    while (yield from cursor.sees("{")):
        yield from json_call(cursor, block)
        yield from cursor.space()
    yield from cursor.expect(closer)


def _without_opener(cursor: Cursor, block: FoundCalls) -> Asking[None]:
    """Read a call whose opening tag was swallowed, for example when thinking was separated."""
    try:
        yield from json_call(cursor, block)
        yield from cursor.space()
        yield from cursor.expect(_CLOSER)
    except EndedError:
        raise NoCallError from None


def _qwen(cursor: Cursor, block: FoundCalls) -> Asking[None]:
    yield from cursor.space()
    if not (yield from cursor.sees("<function=")):
        yield from _json_until(cursor, block, closer=_CLOSER)
        return
    while (yield from take_with_space(cursor, "<function=")):
        yield from function_tag(cursor, block)
    yield from cursor.expect(_CLOSER)


def _qwen_unopened(cursor: Cursor, block: FoundCalls) -> Asking[None]:
    yield from function_tag(cursor, block)
    yield from take_with_space(cursor, _CLOSER)


def _qwen_bracketed(cursor: Cursor, block: FoundCalls) -> Asking[None]:
    """Read `[Calling tool: name({"key": "value"})]`, as Qwen3 does in long conversations."""
    yield from cursor.space()
    call = block.call((yield from cursor.name()))
    yield from cursor.expect("(")
    yield from object_arguments(cursor, call.pieces.append)
    yield from cursor.expect(")]")


HERMES = TextSyntax(
    name="hermes",
    marks={"<tool_call>": partial(_json_until, closer=_CLOSER)},
    closers={"<tool_call>": _CLOSER},
    unmarked=_without_opener,
    endings=("<|im_end|>",),
)
QWEN = TextSyntax(
    name="qwen",
    marks={
        "<tool_call>": _qwen,
        "<function=": _qwen_unopened,
        "<tools>": partial(_json_until, closer="</tools>"),
        "[Calling tool:": _qwen_bracketed,
    },
    closers={
        "<tool_call>": _CLOSER,
        "<function=": "</function>",
        "<tools>": "</tools>",
        "[Calling tool:": ")]",
    },
    unmarked=_without_opener,
    endings=("<|im_end|>",),
)


# Llama 3.1 to 4: JSON or Python, after a tag. Every syntax accepts it as the whole text.
#
# Formats: Meta's "Model cards and prompt formats" of Llama 3.1 (JSON based, `<|python_tag|>` for
# the built-in tools, `<function=…>`), 3.2 and 4 (a Python list of calls), and their chat templates.


_ENDINGS = ("<|python_end|>", "<|eom_id|>", "<|eot_id|>", "<|eot|>")


def _llama_tagged(cursor: Cursor, block: FoundCalls) -> Asking[None]:
    yield from cursor.space()
    yield from some_calls(cursor, block)
    for call in block.calls:  # a built-in tool is written `brave_search.call(query="…")`
        plain = call.name.removesuffix(".call")
        call.name = call.name if block.offers(call.name) else plain


LLAMA = TextSyntax(
    name="llama",
    marks={
        "<|python_tag|>": _llama_tagged,
        "<|python_start|>": _llama_tagged,
        "<function=": function_tag,
    },
    closers={"<function=": "</function>"},
    endings=_ENDINGS,
)


# Mistral: `[TOOL_CALLS]`, and a list of calls in JSON, or a name and its arguments.
#
# Formats: mistral-common's tokenizers v3 (list, with ids), v11 (name, `[CALL_ID]`, `[ARGS]`) and
# v13 (name, `[ARGS]`). A server that does not pass on its special tokens leaves only the list.


_MISTRAL_END = "</s>"


def _mistral_tagged(cursor: Cursor, block: FoundCalls) -> Asking[None]:
    yield from cursor.space()
    if (yield from cursor.char()) in "[{":
        yield from some_calls(cursor, block)
        return
    call = block.call((yield from cursor.name()))
    if (yield from cursor.take("[CALL_ID]")):
        call.provider_id = yield from cursor.name()
    yield from cursor.take("[ARGS]")
    yield from object_arguments(cursor, call.pieces.append)


MISTRAL_TEXT = TextSyntax(
    name="mistral",
    marks={"[TOOL_CALLS]": _mistral_tagged},
    endings=(_MISTRAL_END,),
)


# Gemma: Python or JSON in a fence, and the notation of FunctionGemma and Gemma 4.
#
# Formats: Google's "Function calling with Gemma" (a `tool_code` fence for Gemma 3), the chat
# templates of FunctionGemma (`<escape>` around strings) and Gemma 4 (`<|"|>` around them).


def _gemma_fenced(cursor: Cursor, block: FoundCalls) -> Asking[None]:
    yield from cursor.space()
    while not (yield from cursor.take("```")):
        yield from some_calls(cursor, block)
        yield from cursor.space()


def _gemma_call(cursor: Cursor, block: FoundCalls, *, quote: str, closer: str) -> Asking[None]:
    """Read `call:name{key:value}`, with `quote` around strings."""
    yield from cursor.space()
    yield from cursor.expect("call:")
    call = block.call((yield from cursor.name()))
    yield from dictionary(cursor, call.pieces.append, quote)
    yield from cursor.space()
    yield from cursor.expect(closer)


GEMMA = TextSyntax(
    name="gemma",
    marks={
        "```tool_code": _gemma_fenced,
        "```tool_call": _gemma_fenced,
        "<start_function_call>": partial(
            _gemma_call, quote="<escape>", closer="<end_function_call>"
        ),
        "<|tool_call>": partial(_gemma_call, quote='<|"|>', closer="<tool_call|>"),
    },
    closers={
        "<start_function_call>": "<end_function_call>",
        "<|tool_call>": "<tool_call|>",
    },
    endings=("<start_function_response>", "<|tool_response>", "<end_of_turn>", "<turn|>"),
)


# DeepSeek: the special tokens of V2.5 to V3.1 and R1, and the tags (DSML) of V3.2.
#
# Formats: the chat templates of DeepSeek-V3-0324, -R1, -V3.1 and -V3.2. The token that closes the
# list of calls may be missing where the model stops without it; each call's own may not.


_BEGIN, _SEPARATOR, _DEEPSEEK_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_BEGIN_ALL, _END_ALL = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_SENTENCE_END = "<｜end▁of▁sentence｜>"
_INVOKE_BEGIN, _INVOKE_END = '<｜DSML｜invoke name="', "</｜DSML｜invoke>"
_PARAMETER_BEGIN, _PARAMETER_END = '<｜DSML｜parameter name="', "</｜DSML｜parameter>"


def _deepseek_listed(cursor: Cursor, block: FoundCalls) -> Asking[None]:
    while (yield from take_with_space(cursor, _BEGIN)):
        yield from _deepseek_call(cursor, block)


def _deepseek_unlisted(cursor: Cursor, block: FoundCalls) -> Asking[None]:
    yield from _deepseek_call(cursor, block)
    yield from _deepseek_listed(cursor, block)


def _deepseek_call(cursor: Cursor, block: FoundCalls) -> Asking[None]:
    """Read `function`, the name, and fenced JSON (V2.5, V3, R1), or the name and JSON (V3.1)."""
    name = yield from cursor.name()
    yield from cursor.expect(_SEPARATOR)
    yield from cursor.space()
    if (yield from cursor.sees("{")):
        call = block.call(name)
        yield from cursor.value(call.pieces.append)
    else:
        call = block.call((yield from cursor.name()))
        yield from cursor.space()
        yield from cursor.expect("```json")
        yield from object_arguments(cursor, call.pieces.append)
        yield from cursor.space()
        yield from cursor.expect("```")
    yield from cursor.space()
    yield from cursor.expect(_DEEPSEEK_END)


def _dsml(cursor: Cursor, block: FoundCalls, *, closer: str) -> Asking[None]:
    while (yield from take_with_space(cursor, _INVOKE_BEGIN)):
        name = yield from cursor.name()
        yield from cursor.expect('">')
        call = block.call(name)
        values = TagValues(block.parameters(name), call.pieces.append)
        while (yield from take_with_space(cursor, _PARAMETER_BEGIN)):
            yield from _parameter(cursor, values)
        values.close()
        yield from cursor.expect(_INVOKE_END)
    yield from cursor.expect(closer)


def _parameter(cursor: Cursor, values: TagValues) -> Asking[None]:
    key = yield from cursor.key()
    yield from cursor.expect('" string=')
    string_flag = yield from string(cursor)
    yield from cursor.expect(">")
    value = yield from tag_value(cursor, _PARAMETER_END, (_PARAMETER_BEGIN, _INVOKE_END))
    values.add(key, value, is_text=string_flag == "true")


DEEPSEEK = TextSyntax(
    name="deepseek",
    marks={
        _BEGIN_ALL: _deepseek_listed,
        _BEGIN: _deepseek_unlisted,
        "<｜DSML｜function_calls>": partial(_dsml, closer="</｜DSML｜function_calls>"),
        "<｜DSML｜tool_calls>": partial(_dsml, closer="</｜DSML｜tool_calls>"),
    },
    closers={
        _BEGIN_ALL: _END_ALL,
        _BEGIN: _DEEPSEEK_END,
        "<｜DSML｜function_calls>": "</｜DSML｜function_calls>",
        "<｜DSML｜tool_calls>": "</｜DSML｜tool_calls>",
    },
    endings=(_END_ALL, _SENTENCE_END),
)
