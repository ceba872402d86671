"""From anything that takes tools to definitions; what cannot be one becomes a finding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from toolcrib.errors import CatalogError, DefinitionError, SchemaError
from toolcrib.lint.finding import Fault
from toolcrib.tools import Tools, get_definition
from toolcrib.tools.definitions import tool_from_dict
from toolcrib.tools.names import Names
from toolcrib.values.definition import ToolDefinition, tools_in

OWN = "toolcrib"


class Gathered(NamedTuple):
    """One thing that was given: its definition, if it is one, and what a catalog would refuse."""

    name: str
    definition: ToolDefinition | None
    fault: Fault | None = None


def gather(tools: Tools) -> list[Gathered]:
    """In the order given. A name that is taken twice leaves the later tool without a definition.

    Raises DefinitionError if `tools` holds no tools at all, as a text does.
    """
    names, taken = Names(), set[str]()
    found: list[Gathered] = []
    for place, thing in enumerate(tools_in(tools), start=1):
        one = _gathered(place, thing)
        if one.definition is not None:
            try:
                names.take(one.name)
            except CatalogError as error:
                kept = None if one.name in taken else one.definition
                one = Gathered(one.name, kept, Fault("name", "/name", str(error), "refused"))
            taken.add(one.name)
        found.append(one)
    return found


def _gathered(place: int, thing: Any) -> Gathered:
    try:
        definition = get_definition(thing)
    except DefinitionError as error:
        return Gathered(_name(place, thing), None, _fault(thing, error))
    return Gathered(definition.name, definition)


def _name(place: int, thing: Any) -> str:
    """Its name, if it has one that can be shown; else its place, from 1."""
    name = thing.get("name") if isinstance(thing, Mapping) else getattr(thing, "__name__", None)
    return name if isinstance(name, str) and name.strip() else f"#{place}"


def _fault(thing: Any, error: DefinitionError) -> Fault:
    if not isinstance(error, SchemaError):
        return Fault("definition", "", _unnamed(str(error)), "refused")
    part = "input_schema"
    if isinstance(thing, Mapping) and "output_schema" in thing:
        try:  # without it, is all well?
            tool_from_dict({k: v for k, v in thing.items() if k != "output_schema"}, {}, ())
            part = "output_schema"
        except DefinitionError:
            pass
    return Fault("definition", f"/{part}{error.pointer}", _unnamed(error.message), "refused")


def _unnamed(message: str) -> str:
    """Without the name at its beginning, which the finding has."""
    return re.sub(r"^tool '[^']{1,128}'(?:, (?:in|out)put_schema)?: ", "", message)
