"""Llama 3.1 to 4: JSON or Python, behind a tag; as all of the text every syntax has it.

Formats: Meta's "Model cards and prompt formats" of Llama 3.1 (JSON based, `<|python_tag|>` for the
tools that are built in, `<function=…>`), 3.2 and 4 (a Python list of calls), and their chat templates.
"""

from __future__ import annotations

from toolcrib.wire.text_calls.block import Block
from toolcrib.wire.text_calls.cursor import Asking, Cursor
from toolcrib.wire.text_calls.forms import function_tag, some_calls
from toolcrib.wire.text_calls.syntax import TextSyntax

_ENDINGS = ("<|python_end|>", "<|eom_id|>", "<|eot_id|>", "<|eot|>")


def _tagged(cursor: Cursor, block: Block) -> Asking[None]:
    yield from cursor.space()
    yield from some_calls(cursor, block)
    for call in block.calls:  # a tool that is built in is written `brave_search.call(query="…")`
        plain = call.name.removesuffix(".call")
        call.name = call.name if block.offers(call.name) else plain


LLAMA = TextSyntax(
    name="llama",
    marks={
        "<|python_tag|>": _tagged,
        "<|python_start|>": _tagged,
        "<function=": function_tag,
    },
    endings=_ENDINGS,
)
