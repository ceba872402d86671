"""What a scorer derives from a catalog: built once, and kept for the catalogs used last.

Rule: a build that a deadline interrupts is not lost. It stands still until the next request for the
same catalog, which goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from math import inf
from threading import TIMEOUT_MAX, Lock
from time import monotonic
from typing import Generic, TypeVar

from toolcrib.errors import PickError
from toolcrib.values.definition import HasDefinition, ToolDefinition

T = TypeVar("T")
Steps = Callable[[Sequence[ToolDefinition], Sequence[T]], Iterator[T | None]]
"""`steps(definitions, kept)`: the work on an index of these definitions in pieces, a None after each,
and the index as the last. `kept` are the indexes of other catalogs, that used last first."""

_AT_ONCE = 256


class _Entry(Generic[T]):
    def __init__(self) -> None:
        self.used = 0
        self.lock = Lock()
        self.steps: Iterator[T | None] | None = None
        self.built: list[T] = []


class CatalogCache(Generic[T]):
    """`build(definitions)` for the `size` catalogs used last; digests tell catalogs apart.

    Two threads that ask for the same new catalog build it once; other catalogs do not wait for it.
    """

    def __init__(self, build: Callable[[Sequence[ToolDefinition]], T], *, size: int = 8) -> None:
        self._steps: Steps[T] = lambda definitions, _: iter((build(definitions),))
        self._size = size
        self._lock = Lock()
        self._entries: dict[tuple[str, ...], _Entry[T]] = {}
        self._of_tuples: dict[int, tuple[tuple[HasDefinition, ...], _Entry[T]]] = {}
        self._uses = count(1)

    @classmethod
    def in_steps(cls, steps: Steps[T], *, size: int = 8) -> CatalogCache[T]:
        """A cache whose builds stop at a deadline, and may be derived from what is kept."""
        made = cls(lambda _: None, size=size)  # type: ignore[arg-type, return-value]
        made._steps = steps
        return made

    def get(self, tools: Sequence[HasDefinition], deadline: float = inf) -> T:
        """Raises PickError where the index is not there by `deadline` (as `time.monotonic()`)."""
        held = self._of_tuples.get(id(tools))  # a tuple that we hold cannot have changed
        if held is not None and held[0] is tools:
            held[1].used = next(self._uses)
            return held[1].built[0]
        definitions = _digested(tools, deadline)
        entry = self._entry(tuple([definition.digest for definition in definitions]))
        wait = -1 if deadline == inf else min(max(0.0, deadline - monotonic()), TIMEOUT_MAX)
        if not entry.lock.acquire(timeout=wait):
            raise _late()
        try:
            if not entry.built:
                entry.built.append(self._built(entry, definitions, deadline))
        finally:
            entry.lock.release()
        if isinstance(tools, tuple):
            self._hold(tools, entry)
        return entry.built[0]

    def _built(self, entry: _Entry[T], definitions: Sequence[ToolDefinition], deadline: float) -> T:
        if entry.steps is None:
            with self._lock:
                others = sorted(self._entries.values(), key=_last_use, reverse=True)
            entry.steps = self._steps(definitions, [each.built[0] for each in others if each.built])
        try:
            for index in entry.steps:
                if index is not None:
                    entry.steps = None
                    return index
                if monotonic() >= deadline:
                    break
            else:
                raise RuntimeError("the steps of a build ended without an index")
        except BaseException:
            entry.steps = None  # a generator that raised is over
            raise
        raise _late()

    def _entry(self, key: tuple[str, ...]) -> _Entry[T]:
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            entry.used = next(self._uses)
            if len(self._entries) > self._size:
                oldest = min(self._entries, key=lambda each: self._entries[each].used)
                self._forget(self._entries.pop(oldest))
            return entry

    def _hold(self, tools: tuple[HasDefinition, ...], entry: _Entry[T]) -> None:
        with self._lock:
            self._of_tuples.pop(id(tools), None)
            self._of_tuples[id(tools)] = (tools, entry)
            if len(self._of_tuples) > self._size:
                oldest = min(self._of_tuples, key=lambda each: self._of_tuples[each][1].used)
                del self._of_tuples[oldest]

    def _forget(self, entry: _Entry[T]) -> None:
        gone = [each for each, (_, kept) in self._of_tuples.items() if kept is entry]
        for each in gone:
            del self._of_tuples[each]


def _last_use(entry: _Entry[T]) -> int:
    return entry.used


def _digested(tools: Sequence[HasDefinition], deadline: float) -> list[ToolDefinition]:
    """Their definitions, each with its digest, which it keeps: so each call gets further."""
    definitions = [tool.get_definition() for tool in tools]
    without = [definition for definition in definitions if "digest" not in definition.__dict__]
    for start in range(0, len(without), _AT_ONCE):
        for definition in without[start : start + _AT_ONCE]:
            try:
                _ = definition.digest
            except ValueError:
                raise PickError(
                    f"tool {definition.name!r}: a schema or an example of its definition is no JSON, "
                    "or is nested too deeply"
                ) from None
        if monotonic() >= deadline:
            raise _late()
    return definitions


def _late() -> PickError:
    return PickError("the time of the query was over before the catalog's index was built")
