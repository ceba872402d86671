"""What a scorer derives from a catalog: built once, and kept for the catalogs used last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, TypeVar

from toolcrib.values.definition import HasDefinition, ToolDefinition

T = TypeVar("T")


class _Entry(Generic[T]):
    def __init__(self) -> None:
        self.lock = Lock()
        self.built: list[T] = []


class CatalogCache(Generic[T]):
    """`build(definitions)` for the `size` catalogs used last; digests tell catalogs apart.

    Two threads that ask for the same new catalog build it once; other catalogs do not wait for it.
    """

    def __init__(self, build: Callable[[Sequence[ToolDefinition]], T], *, size: int = 8) -> None:
        self._build = build
        self._size = size
        self._lock = Lock()
        self._entries: dict[tuple[str, ...], _Entry[T]] = {}
        self._last: tuple[tuple[HasDefinition, ...], T] | None = None

    def get(self, tools: Sequence[HasDefinition]) -> T:
        last = self._last
        if last is not None and last[0] is tools:  # a tuple that we hold cannot have changed
            return last[1]
        definitions = [tool.get_definition() for tool in tools]
        entry = self._entry(tuple([definition.digest for definition in definitions]))
        with entry.lock:
            if not entry.built:
                entry.built.append(self._build(definitions))
            index = entry.built[0]
        if isinstance(tools, tuple):
            self._last = (tools, index)
        return index

    def _entry(self, key: tuple[str, ...]) -> _Entry[T]:
        with self._lock:
            entry = self._entries.pop(key, None) or _Entry()
            self._entries[key] = entry
            if len(self._entries) > self._size:
                del self._entries[next(iter(self._entries))]
            return entry
