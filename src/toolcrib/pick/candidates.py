"""Who stands for election: the tools that no filter leaves out, and why the others were.

Rule: what a catalog or a tuple holds cannot change, so of those the candidates are found once for
each set of filters; the same tools come as the same tuple then, which scorers know again. Any other
iterable is read anew each time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from toolcrib.errors import PickError, ToolcribError
from toolcrib.pick.filters import Excluded, Filters, Quota, exclusion, used_up
from toolcrib.pick.scoring.kept import trim
from toolcrib.tools import Catalog
from toolcrib.values.definition import HasDefinition, ToolDefinition, as_plain, tools_in


class Candidates(NamedTuple):
    """Tools to score, in registration order, and those that were left out."""

    tools: tuple[HasDefinition, ...]
    excluded: tuple[Excluded, ...]


_KEPT = 8


class _Known(NamedTuple):
    """What is known of tools that cannot change.

    `held` is the tuple that they came in, so that no other one can have its id, and `tools` the single
    ones; `roles` are all that any tool is for: of a caller's roles the others make no difference.
    """

    held: tuple[Any, ...]
    tools: tuple[Any, ...]
    roles: frozenset[str]
    found: dict[Filters, Candidates]


_of_catalogs: WeakKeyDictionary[Catalog, _Known] = WeakKeyDictionary()
_of_tuples: dict[int, _Known] = {}


def candidates_of(tools: Iterable[Any], filters: Filters, quota: Quota | None = None) -> Candidates:
    """Raises PickError, naming the place, for a thing that has no definition, and as `used_up` does.

    A quota that is a function is asked about each tool that the filters leave, at every pick.
    """
    if quota is None:
        return _candidates(tools, filters)
    if isinstance(quota, Mapping):
        return _candidates(tools, _without(filters, used_up(quota, ())))
    if not isinstance(tools, Catalog | tuple):
        tools = list(tools_in(tools))  # it may be read once only
    found = _candidates(tools, filters)
    spent = used_up(quota, [tool.get_definition().name for tool in found.tools])
    return _candidates(tools, _without(filters, spent)) if spent else found


def _without(filters: Filters, spent: frozenset[str]) -> Filters:
    return msgspec.structs.replace(filters, used_up=spent)


def _candidates(tools: Iterable[Any], filters: Filters) -> Candidates:
    if isinstance(tools, Catalog):
        known = _of_catalogs.get(tools)
        if known is None:
            known = _of_catalogs[tools] = _known(tools, held=())
    elif isinstance(tools, tuple):
        known = _of_tuples.pop(id(tools), None) or _known(tools, held=tools)
        _of_tuples[id(tools)] = known
        trim(_of_tuples, _KEPT)
    else:
        return _sorted_out(_each(tools), filters)
    if filters.roles is not None:
        filters = msgspec.structs.replace(filters, roles=filters.roles & known.roles)
    found = known.found.pop(filters, None) or _sorted_out(known.tools, filters)
    known.found[filters] = found
    trim(known.found, _KEPT)
    return found


def _known(given: Iterable[Any], *, held: tuple[Any, ...]) -> _Known:
    tools = _each(given)
    definitions = [_definition(position, tool) for position, tool in enumerate(tools)]
    roles = {role for d in definitions for role in d.annotations.allowed_roles}
    return _Known(held, tools, frozenset(roles), {})


def _each(given: Iterable[Any]) -> tuple[Any, ...]:
    """The single tools; definitions and dictionaries as what has one."""
    return tuple(map(as_plain, tools_in(given)))


def _sorted_out(tools: Iterable[Any], filters: Filters) -> Candidates:
    kept: list[HasDefinition] = []
    excluded: list[Excluded] = []
    checks = filters.checks()
    for position, tool in enumerate(tools):
        definition = _definition(position, tool)
        reason = exclusion(checks, definition) if checks else None
        if reason is None:
            kept.append(tool)
        else:
            excluded.append(Excluded(definition.name, reason))
    return Candidates(tuple(kept), tuple(excluded))


def _definition(position: int, tool: Any) -> ToolDefinition:
    try:
        definition = tool.get_definition() if hasattr(tool, "get_definition") else None
    except ToolcribError:
        raise
    except Exception as error:
        what = f"tools[{position}], a {type(tool).__name__}"
        raise PickError(f"{what}: get_definition raised {type(error).__name__}") from error
    if not isinstance(definition, ToolDefinition):
        raise PickError(f"tools[{position}], a {type(tool).__name__}, has no definition")
    return definition
