"""Llama 3.1 to 4: JSON or Python, behind a tag or as all of the text.

Formats: Meta's "Model cards and prompt formats" of Llama 3.1 (JSON based, `<|python_tag|>` for the
tools that are built in, `<function=…>`), 3.2 and 4 (a Python list of calls), and their chat templates.
"""

from __future__ import annotations

from toolcrib.wire.text_calls.block import Block
from toolcrib.wire.text_calls.cursor import Asking, Cursor, NoCallError
from toolcrib.wire.text_calls.forms import function_tag, some_calls, then
from toolcrib.wire.text_calls.syntax import TextSyntax

_ENDINGS = ("<|python_end|>", "<|eom_id|>", "<|eot_id|>", "<|eot|>")


def _tagged(cursor: Cursor, block: Block) -> Asking[None]:
    yield from cursor.space()
    yield from some_calls(cursor, block)
    for call in block.calls:  # a tool that is built in is written `brave_search.call(query="…")`
        plain = call.name.removesuffix(".call")
        call.name = call.name if block.offers(call.name) else plain


def _whole(cursor: Cursor, block: Block) -> Asking[None]:
    """Calls that are all of the text; JSON also in a fence, as small models have it."""
    fenced = yield from cursor.take("```")
    if fenced:
        yield from cursor.take("json")
        yield from cursor.space()
    if (yield from cursor.char()) not in "{[":
        raise NoCallError
    yield from some_calls(cursor, block)
    yield from cursor.space()
    if fenced:
        yield from cursor.expect("```")
    yield from cursor.space()
    for ending in _ENDINGS:
        yield from then(cursor, ending)
    if (yield from cursor.peek()):
        raise NoCallError


LLAMA = TextSyntax(
    name="llama",
    marks={
        "<|python_tag|>": _tagged,
        "<|python_start|>": _tagged,
        "<function=": function_tag,
    },
    unmarked=_whole,
    endings=_ENDINGS,
)
