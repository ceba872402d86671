"""What a tool's process and its parent say to one another: JSON only, in frames.

The parent sends one line, the request, and nothing more; the end of that pipe means that the parent is
gone. The process answers in frames (a kind, a length, a JSON text): any number of parts, then either
a result or an ending. A length over the limit is refused before what it announces is read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import ClassVar, TypeAlias

import msgspec

from toolcrib.errors import CapabilityError, MissingExtraError, ToolError
from toolcrib.failures import Explained
from toolcrib.runner.output import Step, Unusable, too_large
from toolcrib.values.json import Veiled

PART, RESULT, ENDING = b"p", b"r", b"e"
_HEAD = struct.Struct(">cQ")
_ENDING_BYTES = 1_048_576  # an ending is a sentence, whatever the limit for results


class Request(Veiled, msgspec.Struct, frozen=True):
    """Which function to run, and for what call. `file` is where its module was loaded from.

    `arguments` and `pinned` are JSON text: what was sent, validated already, and what default factories
    made of this call. What the process makes of them has to have the digest `effective_sha256`, or the
    tool does not run. `deadline` is on the clock of `time.monotonic()`,
    which is one clock for all processes of a machine.
    """

    veiled: ClassVar[tuple[str, ...]] = ("arguments", "pinned")

    module: str
    qualname: str
    file: str
    input_schema: str | None
    arguments: str
    pinned: str
    effective_sha256: str
    call_id: str
    run_id: str
    idempotency_key: str
    caller: str
    roles: tuple[str, ...]
    deadline: float | None
    max_bytes: int


class Told(msgspec.Struct, frozen=True, tag="told"):
    """A ToolError, or a CapabilityError: the one text of an exception that crosses over."""

    text: str
    retryable: bool | None
    capability: bool


class Missing(msgspec.Struct, frozen=True, tag="missing"):
    """A MissingExtraError."""

    extra: str
    feature: str


class Bad(msgspec.Struct, frozen=True, tag="bad"):
    """The value is no result; `kind` is the type of what cannot be used, `path` leads to it."""

    why: str
    kind: str = ""
    path: tuple[tuple[str, bool], ...] = ()


class Raised(msgspec.Struct, frozen=True, tag="raised"):
    """Anything else: of what kind it was and where, not what it said."""

    kind: str
    where: str


class Unguarded(msgspec.Struct, frozen=True, tag="unguarded"):
    """The tool's module calls it when it is loaded."""


Ending: TypeAlias = Told | Missing | Bad | Raised | Unguarded


class ProcessFailed(Explained):
    """A tool's process gave no result; the text says how it ended, nothing of what it held."""


GARBLED = "its process said what cannot be understood"


def error_of(ending: Ending) -> Exception:
    """What the tool would have raised in this process."""
    match ending:
        case Told():
            kind = CapabilityError if ending.capability else ToolError
            return kind(ending.text, retryable=ending.retryable)
        case Missing():
            return MissingExtraError(ending.extra, ending.feature)
        case Bad():
            return Unusable(ending.why, ending.kind, tuple(Step(*step) for step in ending.path))
        case Raised():
            return ProcessFailed(f"{ending.kind} was raised at {ending.where}")
        case Unguarded():
            return ProcessFailed(
                "its module runs such tools when it is loaded, as its process has to: "
                'keep that under `if __name__ == "__main__":`'
            )


def frame(kind: bytes, body: bytes) -> bytes:
    return _HEAD.pack(kind, len(body)) + body


class Frames:
    """Bytes in, whole frames out."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytearray]]:
        """Raises Unusable when a frame announces more than the limit, ProcessFailed for no frame."""
        self._held += data
        while len(self._held) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._held)
            if kind not in (PART, RESULT, ENDING) or (kind == ENDING and length > _ENDING_BYTES):
                raise ProcessFailed(GARBLED)
            if length > self._max_bytes and kind != ENDING:
                raise too_large(self._max_bytes)
            end = _HEAD.size + length
            if len(self._held) < end:
                return
            body = self._held[_HEAD.size : end]
            del self._held[:end]
            yield kind, body
