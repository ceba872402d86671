"""Replies that are lists of content blocks, numbered in a stream: Anthropic's and Bedrock's.

Calls of our tools and text are handled as on every wire. The provider's own tools are not run here,
and thinking is not part of the text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from toolcrib.values.message import Offer, Reply, Usage
from toolcrib.wire.base import Wire
from toolcrib.wire.calls import (
    CONTRADICTORY,
    NOWHERE,
    UNENDED,
    CallAssembler,
    Ending,
    index_of,
    reason_of,
)
from toolcrib.wire.decoding import Parts, token_count

_B = TypeVar("_B", bound="GrowingBlock")


class GrowingBlock(ABC):
    """A block that may still grow; `form` is its first form, `number` its place in the reply.

    `call` holds the members of a call that the provider does not run itself. `initial_input` is the
    input that came with its beginning, as text, until it has been taken. `stopped` says that the
    provider declared the block complete.
    """

    __slots__ = (
        "_citations",
        "_pieces",
        "call",
        "form",
        "initial_input",
        "kind",
        "number",
        "stopped",
    )

    id_key: ClassVar[str]

    def __init__(
        self, number: int, form: dict[str, Any], kind: str, call: dict[str, Any] | None
    ) -> None:
        self.number = number
        self.form = form
        self.kind = kind
        self.call = call
        self.initial_input = ""
        self.stopped = False
        self._pieces: dict[str, list[str]] = {}
        self._citations: list[Any] = []

    def is_repeated_by(self, call: dict[str, Any] | None) -> bool:
        """Return whether a call at the same index repeats the beginning of this one."""
        current = self.call
        if current is None or call is None or (self.stopped and not current.get(self.id_key)):
            return False
        return all(call.get(key) == current.get(key) for key in (self.id_key, "name"))

    def shares_id_with(self, call: dict[str, Any] | None) -> bool:
        """Return whether a call at the same index gives this one's id to another tool."""
        call_id = self.call.get(self.id_key) if self.call else None
        return call is not None and bool(call_id) and call.get(self.id_key) == call_id

    @property
    def unannounced(self) -> bool:
        """Whether it is a call that began with a piece of its input, and not with its name."""
        return self.call is not None and not (self.call.get("name") or self.stopped)

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """Return the block as it would have come in one piece; a call comes without its input."""


class BlockReply(ABC, Generic[_B]):
    """Takes events or a body, and gives the `Reply`. Each call is a block, whatever the block's
    index.

    `reason_key` is the member with a reason, and `usage_keys` names those of the usage: all input, the
    output, read from the cache, and written to it.
    """

    reason_key: ClassVar[str]
    usage_keys: ClassVar[tuple[str, ...]]

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        self.is_recognized = False
        self.is_over = False
        self.ending = Ending(wire, offer)
        self._blocks: list[_B] = []
        self._by_index: dict[object, _B] = {}
        self._text: list[str] = []
        self._calls = CallAssembler(offer, ids, has_end_marks=True)
        self._usage: dict[str, Any] = {}

    @abstractmethod
    def _begin(self, form: Any, index: object, tool_input: str, parts: Parts) -> _B:
        """Begin a block, whose text is shown at once; `tool_input` came with its beginning."""

    @abstractmethod
    def _state_blocks(self, forms: list[dict[str, Any]], *, is_cut: bool) -> list[dict[str, Any]]:
        """Return the blocks that have to be sent back: all, or none if text and calls say it all."""

    def _add_block(self, block: _B, index: object) -> _B:
        self._blocks.append(block)
        self._by_index[index] = self._by_index["number", block.number] = block
        return block

    def _take_start(
        self, form: Any, call: Any, raw_index: object, tool_input: str, parts: Parts
    ) -> None:
        """Take the beginning of a block, which may have begun before. An empty input is a
        placeholder."""
        index = index_of(raw_index)
        index = None if index is NOWHERE else index
        tool_input = tool_input if tool_input.strip("{} \t\r\n") else ""
        previous = self._by_index.get(index)
        if previous is not None and previous.is_repeated_by(call):
            if tool_input != previous.initial_input:
                self._calls.doubt(previous.number, CONTRADICTORY)
            return
        block = self._begin(form, index, tool_input, parts)
        if previous is None:
            return
        if previous.shares_id_with(call):
            self._calls.doubt(previous.number, CONTRADICTORY)
            self._calls.doubt(block.number, CONTRADICTORY)
        elif previous.unannounced:
            self._calls.doubt(block.number, UNENDED)  # earlier pieces may belong to it
        if self._calls.doubt_borrower(previous.number):
            self._calls.doubt(block.number, UNENDED)

    def _take_reason(self, message: Any) -> None:
        reason = message.get(self.reason_key) if isinstance(message, dict) else None
        if reason_of(reason):
            self.ending.take_reason(reason)
            self._calls.close()

    def _take_usage(self, message: Any) -> None:
        """Take the counts of a stream, which are totals so far. A count that is missing or 0
        changes nothing."""
        usage = message.get("usage") if isinstance(message, dict) else None
        if isinstance(usage, dict):
            self._usage |= {key: count for key, count in usage.items() if count}

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """Return the reply. `ended` says whether the provider declared it complete."""
        self.ending.stop(ended=ended)
        calls = self.ending.calls(self._calls)
        forms = [block.whole() for block in self._blocks]
        state = self._state_blocks(forms, is_cut=self.ending.cut is not None)
        input_key, output_key, read_key, write_key = self.usage_keys
        usage = Usage(
            1,
            token_count(self._usage, input_key, read_key, write_key),
            *(token_count(self._usage, key) for key in (output_key, read_key, write_key)),
        )
        return self.ending.reply(self._text, calls, usage, raw=raw, state=state)
