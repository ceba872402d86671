"""Mistral: `[TOOL_CALLS]`, and a list of calls in JSON, or a name and its arguments.

Formats: mistral-common's tokenizers v3 (list, with ids), v11 (name, `[CALL_ID]`, `[ARGS]`) and v13
(name, `[ARGS]`). A server that keeps its special tokens to itself leaves the list alone.
"""

from __future__ import annotations

from toolcrib.wire.text_calls.block import Block
from toolcrib.wire.text_calls.cursor import Asking, Cursor
from toolcrib.wire.text_calls.forms import object_arguments, some_calls
from toolcrib.wire.text_calls.syntax import TextSyntax

_END = "</s>"


def _tagged(cursor: Cursor, block: Block) -> Asking[None]:
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
    marks={"[TOOL_CALLS]": _tagged},
    endings=(_END,),
    thinking={"<think>": "</think>", "[THINK]": "[/THINK]"},
)
