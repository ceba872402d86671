"""Calling a tool of the kit the way the runner does, and what its answer must satisfy."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

from toolcrib.tools import Catalog, tool_of


class StoppedClock:
    """Always the same moment: a Saturday, the 4th of July 2026, half past noon in UTC."""

    def now(self) -> datetime:
        return datetime(2026, 7, 4, 12, 30, 15, 123456, tzinfo=UTC)


async def call(catalog: Catalog, name: str, **arguments: Any) -> Any:
    """The result of a call whose arguments and result both fit the tool's schemas."""
    entry = catalog.by_name.get(name)
    assert entry is not None
    tool = entry.tool
    assert tool.validator is not None
    assert tool.validator.violations(arguments) == ()
    injected = {need.parameter: entry.bindings[need.interface] for need in tool.needs}
    result: Any = tool(**arguments, **injected)  # whatever the author's own code may pass
    if inspect.isawaitable(result):
        result = await result
    assert tool.output_validator is not None
    assert tool.output_validator.violations(result) == ()
    return result


def example_arguments(thing: Any) -> list[dict[str, Any]]:
    return [example.arguments for example in tool_of(thing).definition.examples]


def fresh(module: ModuleType) -> Any:
    """Return a second copy of a module, which has cached nothing yet; nobody can import it."""
    spec = spec_from_file_location(module.__name__, module.__file__)
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made
