"""Hermes and Qwen: JSON in `<tool_call>` tags, and the tags of Qwen3-Coder.

Formats: NousResearch/Hermes-Function-Calling (README); the chat templates of Qwen2.5, Qwen3 and
Qwen3-Coder, Qwen/Qwen3-Coder's `qwen3coder_tool_parser.py`.
"""

from __future__ import annotations

from toolcrib.wire.text_calls.block import Block
from toolcrib.wire.text_calls.cursor import Asking, Cursor, EndedError, NoCallError
from toolcrib.wire.text_calls.forms import function_tag, json_call, object_arguments, then
from toolcrib.wire.text_calls.syntax import Reader, TextSyntax

_CLOSER = "</tool_call>"


def _json_until(closer: str) -> Reader:
    def read(cursor: Cursor, block: Block) -> Asking[None]:
        yield from cursor.space()
        yield from json_call(cursor, block)
        yield from cursor.space()
        while (yield from cursor.sees("{")):
            yield from json_call(cursor, block)
            yield from cursor.space()
        yield from cursor.expect(closer)

    return read


def _unopened(cursor: Cursor, block: Block) -> Asking[None]:
    """A call whose opening tag was swallowed, as by what separates thinking from text."""
    try:
        yield from json_call(cursor, block)
        yield from cursor.space()
        yield from cursor.expect(_CLOSER)
    except EndedError:
        raise NoCallError from None


def _qwen(cursor: Cursor, block: Block) -> Asking[None]:
    yield from cursor.space()
    if not (yield from cursor.sees("<function=")):
        yield from _json_until(_CLOSER)(cursor, block)
        return
    while (yield from then(cursor, "<function=")):
        yield from function_tag(cursor, block)
    yield from cursor.expect(_CLOSER)


def _qwen_unopened(cursor: Cursor, block: Block) -> Asking[None]:
    yield from function_tag(cursor, block)
    yield from then(cursor, _CLOSER)


def _bracketed(cursor: Cursor, block: Block) -> Asking[None]:
    """`[Calling tool: name({"key": "value"})]`, which Qwen3 falls into over long conversations."""
    yield from cursor.space()
    call = block.call((yield from cursor.name()))
    yield from cursor.expect("(")
    yield from object_arguments(cursor, call.pieces.append)
    yield from cursor.expect(")]")


HERMES = TextSyntax(
    name="hermes",
    marks={"<tool_call>": _json_until(_CLOSER)},
    unmarked=_unopened,
    endings=("<|im_end|>",),
)
QWEN = TextSyntax(
    name="qwen",
    marks={
        "<tool_call>": _qwen,
        "<function=": _qwen_unopened,
        "<tools>": _json_until("</tools>"),
        "[Calling tool:": _bracketed,
    },
    unmarked=_unopened,
    endings=("<|im_end|>",),
)
