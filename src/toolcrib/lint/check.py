"""`check_tools`: apply all rules to all tools, and check what each provider makes of them.

The order of findings is deterministic.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from toolcrib.errors import CatalogError, DefinitionError, RequestError, SchemaError, no_such
from toolcrib.lint.rules import (
    RULES,
    Finding,
    RuleFault,
    check_names,
    check_shared,
    check_similar,
    check_single,
)
from toolcrib.schema.lower.tree import Loss
from toolcrib.schema.references import resolve_ref
from toolcrib.tools import Tools, get_definition
from toolcrib.tools.catalog import Names
from toolcrib.tools.decorator import tool_from_dict
from toolcrib.values.definition import ToolDefinition, tools_in
from toolcrib.values.json import JsonObject, escape_pointer
from toolcrib.wire import FORMS, ToolForm, ToolView, tool_views

_MOST_TOOLS = {
    "openai-chat": 128,  # openai/openai-openapi#76; the error is "array_above_max_length"
    "openai-responses": 128,  # as refused by servers of that format (zed-industries/zed#42393)
    "gemini": 512,  # "At most 512 function declarations" (google-gemini/gemini-cli#19083)
}
"""How many tools one request may offer, if that is known."""


def chosen_forms(providers: Iterable[str] | None) -> tuple[ToolForm, ...]:
    """Return the named forms, or all of them; `openai` stands for both of OpenAI's.

    Raises RequestError for an unknown name.
    """
    if providers is None:
        return tuple(FORMS.values())
    requested = [providers] if isinstance(providers, str) else list(providers)
    for provider in requested:
        if not any(_covers(provider, name) for name in FORMS):
            raise RequestError(no_such("provider", provider, FORMS))

    return tuple(f for f in FORMS.values() if any(_covers(p, f.name) for p in requested))


def _covers(provider: str, name: str) -> bool:
    return provider == name or name.startswith(f"{provider}-")


def check_form(
    form: ToolForm, definitions: Sequence[ToolDefinition]
) -> Iterator[tuple[int | None, RuleFault]]:
    """Yield each fault with the position of its tool, or None for the catalog as a whole."""
    views = tool_views(form, definitions)
    for index, view in enumerate(views):
        schema = view.definition.input_schema or {}
        for loss in view.losses:
            if not _is_unavoidable(form, loss, schema):
                yield index, _fault(form, view, loss)
    yield from _shortened_alike(views)
    limit = _MOST_TOOLS.get(form.name)
    if limit is not None and len(definitions) > limit:
        message = (
            f"a request that offers all {len(definitions)} tools is refused, because at "
            f"most {limit} are allowed: offer a selection of them (pick_tools)"
        )
        yield None, RuleFault("limit", "", message)


def _fault(form: ToolForm, view: ToolView, loss: Loss) -> RuleFault:
    """Turn a loss into a fault that points into the schema, or to its top."""
    if not loss.pointer and loss.keyword == "name":
        return RuleFault("name", "/name", f"{loss.message}: give it a name that fits", loss.effect)
    length = len(view.definition.description)
    is_long = length > (form.long_description or length)
    if is_long and not loss.pointer and loss.keyword == "description":
        return RuleFault("limit", "/description", f"{loss.message}: it has {length}", loss.effect)
    keyword_pointer = f"{loss.pointer}/{escape_pointer(loss.keyword)}"
    is_in_schema = (
        resolve_ref(view.definition.input_schema or {}, f"#{keyword_pointer}") is not None
    )
    pointer = f"/input_schema{keyword_pointer if is_in_schema else loss.pointer}"
    return RuleFault("schema", pointer, f"{loss.keyword}: {loss.message}", loss.effect)


def _is_unavoidable(form: ToolForm, loss: Loss, schema: JsonObject) -> bool:
    """Return whether a loss applies to nearly every tool, with nothing to be done about it.

    A model need not read that an object takes no other properties. `strict` is requested only where
    there is a strict mode.
    """
    if loss.effect == "refused":
        return False
    if loss.keyword == "strict":
        return form.strict_dialect is None
    is_closing = loss.keyword in ("additionalProperties", "unevaluatedProperties")
    node = resolve_ref(schema, f"#{loss.pointer}") if is_closing else 0
    return isinstance(node, dict) and node.get(loss.keyword) is False


def _shortened_alike(views: Sequence[ToolView]) -> Iterator[tuple[int, RuleFault]]:
    """Yield names whose wire names differ only in the hash at their end."""
    first_names: dict[str, str] = {}
    for index, view in enumerate(views):
        name = view.definition.name
        changed = view.wire_name != name
        stem = view.wire_name.rpartition("_")[0] if changed else name
        first_name = first_names.setdefault(stem, name)
        if changed and first_name != name:
            message = (
                "shortened to what the provider accepts, its name differs from that of "
                f"'{first_name}' only by a hash ({view.wire_name}): rename one of them"
            )
            yield index, RuleFault("name", "/name", message)


OWN = "toolcrib"


class GatheredTool(NamedTuple):
    """A tool as it was passed: its definition, if it has one, and why a catalog would refuse it."""

    name: str
    definition: ToolDefinition | None
    fault: RuleFault | None = None


def gather(tools: Tools) -> list[GatheredTool]:
    """Return the tools in the order given. A second tool with the same name has no definition.

    Raises DefinitionError if `tools` contains no tools at all, like a string.
    """
    names, seen_names = Names(), set[str]()
    entries: list[GatheredTool] = []
    for position, tool in enumerate(tools_in(tools), start=1):
        try:
            definition = get_definition(tool)
        except DefinitionError as error:
            entries.append(GatheredTool(_name(position, tool), None, _refused_fault(tool, error)))
            continue
        entry = GatheredTool(definition.name, definition)
        try:
            names.take(entry.name)
        except CatalogError as error:
            registered = None if entry.name in seen_names else definition
            entry = GatheredTool(
                entry.name, registered, RuleFault("name", "/name", str(error), "refused")
            )
        seen_names.add(entry.name)
        entries.append(entry)
    return entries


def _name(position: int, tool: Any) -> str:
    """Return the name of a tool if it can be shown; else its position in the list, from 1."""
    name = tool.get("name") if isinstance(tool, Mapping) else getattr(tool, "__name__", None)
    return name if isinstance(name, str) and name.strip() else f"#{position}"


def _refused_fault(tool: Any, error: DefinitionError) -> RuleFault:
    if not isinstance(error, SchemaError):
        return RuleFault("definition", "", _without_tool_name(str(error)), "refused")
    part = "input_schema"
    if isinstance(tool, Mapping) and "output_schema" in tool:
        try:  # is it valid without the output schema?
            tool_from_dict({k: v for k, v in tool.items() if k != "output_schema"}, {}, ())
            part = "output_schema"
        except DefinitionError:
            pass
    return RuleFault(
        "definition", f"/{part}{error.pointer}", _without_tool_name(error.message), "refused"
    )


def _without_tool_name(message: str) -> str:
    """Return a message without the leading name, which the finding has already."""
    return re.sub(r"^tool '[^']{1,128}'(?:, (?:in|out)put_schema)?: ", "", message)


def check_tools(tools: Tools, providers: Iterable[str] | None = None) -> list[Finding]:
    """Return what is refused, lost or doubtful about each tool, in general and for each provider.

    `tools`: a catalog, or a list of tools, catalogs and definition dictionaries. A dictionary that
    is not a definition becomes a finding, and the others are still checked. `providers`: names of
    `toolcrib.wire` forms (`openai` for both of OpenAI's); all of them if omitted. Findings are
    sorted by tool, then by provider, rule and pointer; those about all tools together come last.
    Nothing is imported, sent or run.

        assert not [f for f in check_tools(catalog) if f.effect == "refused"]

    Raises RequestError for an unknown provider, DefinitionError if `tools` is not a list of tools.
    """
    forms = chosen_forms(providers)
    entries = gather(tools)
    refused = {position for position, entry in enumerate(entries) if entry.fault}
    positions = [position for position, entry in enumerate(entries) if entry.definition is not None]
    definitions = [entry.definition for entry in entries if entry.definition is not None]
    provider_ranks = {"": 0, OWN: 1} | {form.name: 2 + index for index, form in enumerate(forms)}
    placed = [(position, OWN, entry.fault) for position, entry in enumerate(entries) if entry.fault]
    for index, provider, fault in _faults(definitions, forms):
        position = len(entries) if index is None else positions[index]
        if (
            fault.rule != "name" or provider or position not in refused
        ):  # refused: nothing more to say
            placed.append((position, provider, fault))
    placed.sort(
        key=lambda f: (
            f[0],
            provider_ranks[f[1]],
            RULES.index(f[2].rule),
            f[2].pointer,
        )
    )
    names = [entry.name for entry in entries] + [""]
    return [
        Finding(tool=names[position], provider=provider, **msgspec.structs.asdict(fault))
        for position, provider, fault in placed
    ]


def _faults(
    definitions: list[ToolDefinition], forms: Iterable[ToolForm]
) -> Iterator[tuple[int | None, str, RuleFault]]:
    for index, definition in enumerate(definitions):
        yield from ((index, "", fault) for fault in check_single(definition))
    for rule in (check_similar, check_shared):
        yield from ((index, "", fault) for index, fault in rule(definitions))
    names = [definition.name for definition in definitions]
    yield from ((index, "", fault) for index, fault in check_names(names))
    for form in forms:
        yield from ((index, form.name, fault) for index, fault in check_form(form, definitions))
