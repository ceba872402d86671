"""Who stands for election: the tools that no filter leaves out, and why the others were.

Rule: what a catalog or a tuple holds cannot change, so of those the candidates are found once. Any
other iterable is read anew each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

from toolcrib.errors import PickError
from toolcrib.pick.filters import Excluded, exclusion
from toolcrib.tools import Catalog
from toolcrib.values.definition import HasDefinition, ToolDefinition


class Candidates(NamedTuple):
    """Tools to score, in registration order, and those that were left out."""

    tools: tuple[HasDefinition, ...]
    excluded: tuple[Excluded, ...]


_KEPT = 8
_of_catalogs: WeakKeyDictionary[Catalog, dict[bool, Candidates]] = WeakKeyDictionary()
_of_tuples: dict[tuple[int, bool], tuple[tuple[Any, ...], Candidates]] = {}


def candidates_of(tools: Iterable[Any], *, allow_unsafe: bool) -> Candidates:
    """Raises PickError, naming the place, for a thing that has no definition."""
    if isinstance(tools, Catalog):
        known = _of_catalogs.setdefault(tools, {})
        if allow_unsafe not in known:
            known[allow_unsafe] = _sorted_out(tools, allow_unsafe=allow_unsafe)
        return known[allow_unsafe]
    if not isinstance(tools, tuple):
        return _sorted_out(tools, allow_unsafe=allow_unsafe)
    key = (id(tools), allow_unsafe)
    kept = _of_tuples.get(key)  # it holds the tuple, so no other one can have its id
    if kept is None:
        kept = _of_tuples[key] = (tools, _sorted_out(tools, allow_unsafe=allow_unsafe))
        for old in list(_of_tuples)[: max(0, len(_of_tuples) - _KEPT)]:
            _of_tuples.pop(old, None)
    return kept[1]


def _sorted_out(tools: Iterable[Any], *, allow_unsafe: bool) -> Candidates:
    kept: list[HasDefinition] = []
    excluded: list[Excluded] = []
    for position, tool in enumerate(tools):
        definition = tool.get_definition() if hasattr(tool, "get_definition") else None
        if not isinstance(definition, ToolDefinition):
            raise PickError(f"tools[{position}], a {type(tool).__name__}, has no definition")
        reason = exclusion(definition, allow_unsafe=allow_unsafe)
        if reason is None:
            kept.append(cast("HasDefinition", tool))
        else:
            excluded.append(Excluded(definition.name, reason))
    return Candidates(tuple(kept), tuple(excluded))
