"""Gemma: Python or JSON in a fence, and the notation of FunctionGemma and Gemma 4.

Formats: Google's "Function calling with Gemma" (a `tool_code` fence for Gemma 3), the chat templates of
FunctionGemma (`<escape>` around texts) and Gemma 4 (`<|"|>` around them).
"""

from __future__ import annotations

from toolcrib.wire.text_calls.block import Block
from toolcrib.wire.text_calls.cursor import Asking, Cursor
from toolcrib.wire.text_calls.forms import some_calls
from toolcrib.wire.text_calls.literal import dictionary
from toolcrib.wire.text_calls.syntax import Reader, TextSyntax


def _fenced(cursor: Cursor, block: Block) -> Asking[None]:
    yield from cursor.space()
    while not (yield from cursor.take("```")):
        yield from some_calls(cursor, block)
        yield from cursor.space()


def _noted(quote: str, closer: str) -> Reader:
    """`call:name{key:value}`, with `quote` around texts."""

    def read(cursor: Cursor, block: Block) -> Asking[None]:
        yield from cursor.space()
        yield from cursor.expect("call:")
        call = block.call((yield from cursor.name()))
        yield from dictionary(cursor, call.pieces.append, quote)
        yield from cursor.space()
        yield from cursor.expect(closer)

    return read


GEMMA = TextSyntax(
    name="gemma",
    marks={
        "```tool_code": _fenced,
        "```tool_call": _fenced,
        "<start_function_call>": _noted("<escape>", "<end_function_call>"),
        "<|tool_call>": _noted('<|"|>', "<tool_call|>"),
    },
    endings=("<start_function_response>", "<|tool_response>", "<end_of_turn>", "<turn|>"),
    thinking={"<think>": "</think>", "<|channel>": "<channel|>"},
)
