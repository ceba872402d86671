"""`check_tools`: all rules over all tools, in an order that does not depend on chance."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from toolcrib.errors import CatalogError, DefinitionError, SchemaError
from toolcrib.lint.all_tools import check_names, check_shared, check_similar
from toolcrib.lint.finding import RULES, Finding, RuleFault
from toolcrib.lint.one_provider import check_form, chosen_forms
from toolcrib.lint.one_tool import check_single
from toolcrib.tools import Tools, get_definition
from toolcrib.tools.catalog import Names
from toolcrib.tools.definitions import tool_from_dict
from toolcrib.values.definition import ToolDefinition, tools_in
from toolcrib.wire import ToolForm

OWN = "toolcrib"


class Gathered(NamedTuple):
    """One thing that was given: its definition, if it is one, and what a catalog would refuse."""

    name: str
    definition: ToolDefinition | None
    fault: RuleFault | None = None


def gather(tools: Tools) -> list[Gathered]:
    """Return the tools in the order given. A second tool of one name has no definition.

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
                one = Gathered(one.name, kept, RuleFault("name", "/name", str(error), "refused"))
            taken.add(one.name)
        found.append(one)
    return found


def _gathered(place: int, thing: Any) -> Gathered:
    try:
        definition = get_definition(thing)
    except DefinitionError as error:
        return Gathered(_name(place, thing), None, _refusal(thing, error))
    return Gathered(definition.name, definition)


def _name(place: int, thing: Any) -> str:
    """Return the name of a tool if it can be shown; else its place in the list, from 1."""
    name = thing.get("name") if isinstance(thing, Mapping) else getattr(thing, "__name__", None)
    return name if isinstance(name, str) and name.strip() else f"#{place}"


def _refusal(thing: Any, error: DefinitionError) -> RuleFault:
    if not isinstance(error, SchemaError):
        return RuleFault("definition", "", _unnamed(str(error)), "refused")
    part = "input_schema"
    if isinstance(thing, Mapping) and "output_schema" in thing:
        try:  # without it, is all well?
            tool_from_dict({k: v for k, v in thing.items() if k != "output_schema"}, {}, ())
            part = "output_schema"
        except DefinitionError:
            pass
    return RuleFault("definition", f"/{part}{error.pointer}", _unnamed(error.message), "refused")


def _unnamed(message: str) -> str:
    """Without the name at its beginning, which the finding has."""
    return re.sub(r"^tool '[^']{1,128}'(?:, (?:in|out)put_schema)?: ", "", message)


def check_tools(tools: Tools, providers: Iterable[str] | None = None) -> list[Finding]:
    """Return what is refused, lost or doubtful about each tool, whoever the provider is and for each.

    `tools`: a catalog, or a list of tools, catalogs and definition dictionaries, where a dictionary
    that is no definition becomes a finding and the others are checked all the same. `providers`:
    names of `toolcrib.wire` forms (`openai` for both of OpenAI's), all of them if left out. Findings
    are in the order of the tools, then of providers, rules and pointers; those about all tools
    together come last. Nothing is imported, sent or run.

        assert not [f for f in check_tools(catalog) if f.effect == "refused"]

    Raises RequestError for an unknown provider, DefinitionError if `tools` is not a list of tools.
    """
    forms = chosen_forms(providers)
    gathered = gather(tools)
    clashing = {place for place, one in enumerate(gathered) if one.fault}
    whole = [place for place, one in enumerate(gathered) if one.definition is not None]
    definitions = [one.definition for one in gathered if one.definition is not None]
    order = {"": 0, OWN: 1} | {form.name: 2 + at for at, form in enumerate(forms)}
    found = [(place, OWN, one.fault) for place, one in enumerate(gathered) if one.fault]
    for at, provider, fault in _faults(definitions, forms):
        place = len(gathered) if at is None else whole[at]
        if fault.rule != "name" or provider or place not in clashing:  # it is refused: enough
            found.append((place, provider, fault))
    found.sort(key=lambda f: (f[0], order[f[1]], RULES.index(f[2].rule), f[2].pointer))
    names = [one.name for one in gathered] + [""]
    return [
        Finding(
            tool=names[place],
            provider=provider,
            effect=fault.effect,
            rule=fault.rule,
            pointer=fault.pointer,
            message=fault.message,
        )
        for place, provider, fault in found
    ]


def _faults(
    definitions: list[ToolDefinition], forms: Iterable[ToolForm]
) -> Iterator[tuple[int | None, str, RuleFault]]:
    for place, definition in enumerate(definitions):
        yield from ((place, "", fault) for fault in check_single(definition))
    for rule in (check_similar, check_shared):
        yield from ((place, "", fault) for place, fault in rule(definitions))
    names = [definition.name for definition in definitions]
    yield from ((place, "", fault) for place, fault in check_names(names))
    for form in forms:
        yield from ((place, form.name, fault) for place, fault in check_form(form, definitions))
