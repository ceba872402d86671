"""DeepSeek: the special tokens of V2.5 to V3.1 and R1, and the tags (DSML) of V3.2.

Formats: the chat templates of DeepSeek-V3-0324, -R1, -V3.1 and -V3.2. The token that closes the list of
calls may be missing where the model stops without it; each call's own may not.
"""

from __future__ import annotations

from toolcrib.wire.text_calls.block import Block
from toolcrib.wire.text_calls.cursor import Asking, Cursor
from toolcrib.wire.text_calls.forms import TagValues, object_arguments, tag_value, then
from toolcrib.wire.text_calls.literal import string
from toolcrib.wire.text_calls.syntax import Reader, TextSyntax

_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_BEGIN_ALL, _END_ALL = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_SENTENCE_END = "<｜end▁of▁sentence｜>"
_INVOKE, _INVOKED = '<｜DSML｜invoke name="', "</｜DSML｜invoke>"
_PARAMETER, _GIVEN = '<｜DSML｜parameter name="', "</｜DSML｜parameter>"


def _listed(cursor: Cursor, block: Block) -> Asking[None]:
    while (yield from then(cursor, _BEGIN)):
        yield from _one(cursor, block)


def _unlisted(cursor: Cursor, block: Block) -> Asking[None]:
    yield from _one(cursor, block)
    yield from _listed(cursor, block)


def _one(cursor: Cursor, block: Block) -> Asking[None]:
    """`function`, the name, and JSON in a fence (V2.5, V3, R1), or the name and JSON (V3.1)."""
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
    yield from cursor.expect(_END)


def _dsml(closer: str) -> Reader:
    def read(cursor: Cursor, block: Block) -> Asking[None]:
        while (yield from then(cursor, _INVOKE)):
            name = yield from cursor.name()
            yield from cursor.expect('">')
            call = block.call(name)
            values = TagValues(block.parameters(name), call.pieces.append)
            while (yield from then(cursor, _PARAMETER)):
                yield from _parameter(cursor, values)
            values.close()
            yield from cursor.expect(_INVOKED)
        yield from cursor.expect(closer)

    return read


def _parameter(cursor: Cursor, values: TagValues) -> Asking[None]:
    key = yield from cursor.key()
    yield from cursor.expect('" string=')
    says = yield from string(cursor)
    yield from cursor.expect(">")
    value = yield from tag_value(cursor, _GIVEN, (_PARAMETER, _INVOKED))
    values.add(key, value, is_text=says == "true")


DEEPSEEK = TextSyntax(
    name="deepseek",
    marks={
        _BEGIN_ALL: _listed,
        _BEGIN: _unlisted,
        "<｜DSML｜function_calls>": _dsml("</｜DSML｜function_calls>"),
        "<｜DSML｜tool_calls>": _dsml("</｜DSML｜tool_calls>"),
    },
    endings=(_END_ALL, _SENTENCE_END),
)
