"""What a syntax of calls in text is: a value that says by which marks they begin, and who reads them.

A reader is a generator that goes through a `Cursor` and fills a `Block`. It raises `NoCallError` where
the text is not the syntax's, and lets `EndedError` pass where it ends too early.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Protocol

import msgspec

from toolcrib.errors import RequestError
from toolcrib.values.typed import check_fields
from toolcrib.wire.text_calls.block import Block
from toolcrib.wire.text_calls.cursor import Cursor


class Reader(Protocol):
    def __call__(self, cursor: Cursor, block: Block, /) -> Generator[None, None, None]: ...


class TextSyntax(msgspec.Struct, frozen=True, kw_only=True):
    """How a family of models writes calls in its text.

    `marks` are what calls begin with, each with the reader of what comes after it. `unmarked` reads
    calls that begin with no mark; it is tried where the text begins, and where thinking ends, and
    raises NoCallError if anything else follows. `endings` are tokens that a server may leave in the
    text after calls: there they are dropped. `thinking` are the marks around thoughts, in which
    nothing is a call; if one ends that did not begin, it began with the text.

    Raises RequestError if a mark is no text, or an empty one.
    """

    name: str
    marks: Mapping[str, Reader]
    unmarked: Reader | None = None
    endings: tuple[str, ...] = ()
    thinking: Mapping[str, str] = msgspec.field(default_factory=lambda: {"<think>": "</think>"})

    def __post_init__(self) -> None:
        check_fields(self)
        for mark in (*self.marks, *self.endings, *self.thinking, *self.thinking.values()):
            if not isinstance(mark, str) or not mark:
                raise RequestError(
                    f"the syntax {self.name!r}: the mark {mark!r} is no text, or an empty one"
                )

    def __repr__(self) -> str:
        return f"TextSyntax({self.name!r})"
