"""What a wire gives to the decoder that all wires share: a reply under construction, and frames."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

from toolcrib.values.json import JsonObject
from toolcrib.values.message import ArgumentsPart, Reply, TextPart
from toolcrib.values.offer import Offer
from toolcrib.wire.base import Wire
from toolcrib.wire.sse import Event

Parts: TypeAlias = list[TextPart | ArgumentsPart]


class Builder(Protocol):
    """The reply under construction. Every method may raise ClientError, which ends the reply.

    `torn` is set by the decoder if a stream stopped in the middle of an event.
    """

    torn: bool

    @property
    def known(self) -> bool:
        """Whether anything was there that only this wire sends."""

    @property
    def over(self) -> bool:
        """Whether the provider has said, in its own way, that no event follows."""

    def body(self, body: JsonObject, data: bytes) -> None:
        """Take a whole body; `data` are its bytes."""

    def event(self, event: JsonObject, data: bytes, name: bytes, parts: Parts) -> None:
        """Take one event of a stream, and add what can be shown of it to `parts`."""

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """The reply. `ended` is whether the provider said that this was all of it."""


@runtime_checkable
class QuickBuilder(Builder, Protocol):
    """A builder that can read most events of its wire from their bytes, which saves half the time."""

    def usual(self, data: bytes, parts: Parts) -> bool:
        """Take an event, if it is a usual one; else nothing was done, and `event` is due."""


class MakeBuilder(Protocol):
    def __call__(self, wire: Wire, /, *, offer: Offer, ids: str) -> Builder: ...


class Frames(Protocol):
    """Cuts a stream into events; `foreign` counts lines that belong to none."""

    foreign: int

    def feed(self, data: bytes) -> list[Event]: ...

    def close(self) -> Event | None: ...
