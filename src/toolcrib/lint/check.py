"""`check_tools`: all rules over all tools, in an order that does not depend on chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from toolcrib.lint.finding import RULES, Fault, Finding
from toolcrib.lint.gather import OWN, gather
from toolcrib.lint.names import check_names
from toolcrib.lint.providers import check_form, chosen_forms
from toolcrib.lint.shared import check_shared
from toolcrib.lint.similar import check_similar
from toolcrib.lint.single import check_single
from toolcrib.tools import Tools
from toolcrib.values.definition import ToolDefinition
from toolcrib.wire import ToolForm


def check_tools(tools: Tools, providers: Iterable[str] | None = None) -> list[Finding]:
    """What is refused, lost or doubtful about each tool, whoever the provider is and for each.

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
) -> Iterator[tuple[int | None, str, Fault]]:
    for place, definition in enumerate(definitions):
        yield from ((place, "", fault) for fault in check_single(definition))
    for rule in (check_similar, check_shared):
        yield from ((place, "", fault) for place, fault in rule(definitions))
    names = [definition.name for definition in definitions]
    yield from ((place, "", fault) for place, fault in check_names(names))
    for form in forms:
        yield from ((place, form.name, fault) for place, fault in check_form(form, definitions))
