"""What one provider makes of a catalog: its views of the schemas, its names, its limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from toolcrib.errors import (
    RequestError,
    no_such,
)
from toolcrib.lint.finding import RuleFault
from toolcrib.schema.lower.tree import Loss
from toolcrib.schema.references import escape_pointer, resolve_ref
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject
from toolcrib.wire import FORMS, ToolForm, ToolView, tool_views

_MOST_TOOLS = {
    "openai-chat": 128,  # openai/openai-openapi#76; the error is "array_above_max_length"
    "openai-responses": 128,  # as refused by servers of that format (zed-industries/zed#42393)
    "gemini": 512,  # "At most 512 function declarations" (google-gemini/gemini-cli#19083)
}
"""How many tools one request may offer, where that is known."""


def chosen_forms(providers: Iterable[str] | None) -> tuple[ToolForm, ...]:
    """Return the forms of these names, or all; `openai` stands for both of OpenAI's.

    Raises RequestError for a name that nobody knows.
    """
    if providers is None:
        return tuple(FORMS.values())
    wanted = [providers] if isinstance(providers, str) else list(providers)
    for provider in wanted:
        if not any(_means(provider, name) for name in FORMS):
            raise RequestError(no_such("provider", provider, FORMS))

    return tuple(f for f in FORMS.values() if any(_means(p, f.name) for p in wanted))


def _means(provider: str, name: str) -> bool:
    return provider == name or name.startswith(f"{provider}-")


def check_form(
    form: ToolForm, definitions: Sequence[ToolDefinition]
) -> Iterator[tuple[int | None, RuleFault]]:
    """Yield each fault with the position of its tool, None for the catalog as a whole."""
    views = tool_views(form, definitions)
    for place, view in enumerate(views):
        schema = view.definition.input_schema or {}
        for loss in view.losses:
            if not _of_no_use(form, loss, schema):
                yield place, _fault(form, view, loss)
    yield from _cut_alike(form, views)
    most = _MOST_TOOLS.get(form.name)
    if most is not None and len(definitions) > most:
        yield (
            None,
            RuleFault(
                "limit",
                "",
                f"a request that offers all {len(definitions)} tools is refused, {most} are the most: "
                "offer a choice of them (pick_tools)",
            ),
        )


def _fault(form: ToolForm, view: ToolView, loss: Loss) -> RuleFault:
    """Turn a loss into a fault that points into the schema, or to its top."""
    if not loss.pointer and loss.keyword == "name":
        return RuleFault("name", "/name", f"{loss.message}: give it a name that fits", loss.effect)
    length = len(view.definition.description)
    if (
        not loss.pointer
        and loss.keyword == "description"
        and length > (form.long_description or length)
    ):
        return RuleFault("limit", "/description", f"{loss.message}: it has {length}", loss.effect)
    at = f"{loss.pointer}/{escape_pointer(loss.keyword)}"
    there = resolve_ref(view.definition.input_schema or {}, f"#{at}") is not None
    return RuleFault(
        "schema",
        f"/input_schema{at if there else loss.pointer}",
        f"{loss.keyword}: {loss.message}",
        loss.effect,
    )


def _of_no_use(form: ToolForm, loss: Loss, schema: JsonObject) -> bool:
    """True of nearly every tool, and nothing to be done about it.

    A model need not read that an object takes no other properties; and `strict` is asked for
    where there is a strict mode.
    """
    if loss.effect == "refused":
        return False
    if loss.keyword == "strict":
        return form.strict_dialect is None
    node = resolve_ref(schema, f"#{loss.pointer}") if loss.keyword == "additionalProperties" else 0
    return isinstance(node, dict) and node.get("additionalProperties") is False


def _cut_alike(form: ToolForm, views: Sequence[ToolView]) -> Iterator[tuple[int, RuleFault]]:
    """Names that would be one name, were it not for the hash at the end of their wire names."""
    seen: dict[str, str] = {}
    for place, view in enumerate(views):
        own = view.definition.name
        changed = view.wire_name != own
        stem = view.wire_name.rpartition("_")[0] if changed else own
        other = seen.setdefault(stem, own)
        if changed and other != own:
            yield (
                place,
                RuleFault(
                    "name",
                    "/name",
                    f"cut to what the provider takes, it is called as '{other}' but for a hash "
                    f"({view.wire_name}): rename one of them",
                ),
            )
