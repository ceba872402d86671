"""Views of tools: what each provider gets of a tool's schema, and what that loses.

An author's schema that the provider takes as it is goes out as the author's own text, byte for byte.
A view that the provider would refuse is never sent: one such tool fails a whole request.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, cast

import msgspec
import orjson

from toolcrib.errors import RequestError, SchemaError
from toolcrib.schema.lower import Dialect, Loss, accepts_unchanged, lower
from toolcrib.schema.validator import Validator, compile_validator
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject
from toolcrib.values.offer import ArgumentRestorer
from toolcrib.values.remembered import remembered
from toolcrib.wire.forms import Allowance, ShownTool, ToolForm, wire_names


class ToolView(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as one provider is sent it: `schema` is the view, `form` the provider's whole JSON.

    Both are fresh copies. `strict` is whether it is sent as such; `restorer` is None where arguments
    for the view are arguments for the tool.
    """

    definition: ToolDefinition
    wire_name: str
    schema: JsonObject
    strict: bool
    losses: tuple[Loss, ...]
    restorer: ArgumentRestorer | None
    form: JsonObject


class EncodedTools(msgspec.Struct, frozen=True, kw_only=True):
    """Tools as a request's bytes; `names` maps own to wire names, `restorers` own names."""

    names: Mapping[str, str]
    restorers: Mapping[str, ArgumentRestorer]
    body: bytes


class TextView(NamedTuple):
    """A view as text, so that whoever gets it gets a copy."""

    text: str
    losses: tuple[Loss, ...] = ()
    restorer: ArgumentRestorer | None = None
    strict: bool | None = None

    @property
    def refusal(self) -> Loss | None:
        return next((loss for loss in self.losses if loss.effect == "refused"), None)


_NO_SCHEMA = TextView('{"type":"object","properties":{}}')


def views_of(form: ToolForm, definitions: Sequence[ToolDefinition]) -> list[ToolView]:
    """Return each tool as the provider sees it, also those that it would refuse.

    Raises CatalogError for a name that comes twice.
    """
    names = wire_names(form.names, (definition.name for definition in definitions))
    return [
        _tool_view(form, definition, names[definition.name], view)
        for definition, view in zip(definitions, _views(form, definitions), strict=True)
    ]


def forms_of(form: ToolForm, definitions: Sequence[ToolDefinition]) -> list[JsonObject]:
    """Return the request's `tools`, fresh. Raises RequestError for a tool that would be refused."""
    views = views_of(form, definitions)
    for view in views:
        _check(form, view.definition, view.losses)
    return form.gather([view.form for view in views])


def encoded(form: ToolForm, definitions: Sequence[ToolDefinition]) -> EncodedTools:
    """Encode the request's `tools`, schemas spliced in as text. Raises as `forms_of` does."""
    names = wire_names(form.names, (definition.name for definition in definitions))
    restorers: dict[str, ArgumentRestorer] = {}
    shapes = []
    for definition, view in zip(definitions, _views(form, definitions), strict=True):
        _check(form, definition, view.losses)
        if view.restorer is not None:
            restorers[definition.name] = view.restorer
        schema = orjson.Fragment(view.text)
        shapes.append(form.shape(_told(form, definition, names[definition.name], view, schema)))
    body = orjson.dumps(form.gather(shapes))
    return EncodedTools(names=names, restorers=restorers, body=body)


def _tool_view(form: ToolForm, definition: ToolDefinition, name: str, view: TextView) -> ToolView:
    told = _told(form, definition, name, view, fresh(view.text))
    return ToolView(
        definition=definition,
        wire_name=name,
        schema=fresh(view.text),
        strict=view.strict is True,
        losses=(*view.losses, *_told_losses(form, definition, told)),
        restorer=view.restorer,
        form=form.shape(told),
    )


def _told(
    form: ToolForm, definition: ToolDefinition, name: str, view: TextView, schema: Any
) -> ShownTool:
    return ShownTool(
        name=name,
        description=definition.description,
        schema=schema,
        strict=view.strict,
        examples=_examples(form, definition, view),
    )


def _examples(form: ToolForm, definition: ToolDefinition, view: TextView) -> tuple[JsonObject, ...]:
    """Return the first few that fit what is sent: one that does not would
    be refused, with the request."""
    if not form.examples or not definition.examples:
        return ()
    given: Iterable[JsonObject] = (example.arguments for example in definition.examples)
    if view.restorer is not None:
        given = map(view.restorer.to_view, given)
    if view.text != definition.input_schema_json:
        given = filter(_validator(view.text).is_valid, given)
    return tuple(islice(given, form.examples))


def _views(form: ToolForm, definitions: Sequence[ToolDefinition]) -> list[TextView]:
    """Return the views of one request, in their order."""
    allowance = None if form.strict_limits is None else Allowance(form.strict_limits)
    return [_view(form, definition, allowance) for definition in definitions]


def _view(form: ToolForm, definition: ToolDefinition, allowance: Allowance | None) -> TextView:
    """Return the view that is sent; strict if the author asked for it and
    it costs nothing but detail."""
    text, strict = definition.input_schema_json, definition.strict
    said = None if form.strict_dialect is None else strict
    if not strict:
        view = _plain(form, text)
        return view if said is None else view._replace(strict=said)
    if form.strict_dialect is None:
        return _not_strict(form, text, f"{form.name} has no strict mode")
    if text is None:
        return _not_strict(form, text, "the tool has no schema")
    view = lowered_text(text, form.strict_dialect)
    refusal = view.refusal
    if refusal is not None:
        where = refusal.pointer or "the top"
        return _not_strict(form, text, f"{refusal.message} (at {where})")
    over = None if allowance is None else allowance.refusal(view.text)
    return view._replace(strict=True) if over is None else _not_strict(form, text, over)


def _plain(form: ToolForm, text: str | None) -> TextView:
    return _NO_SCHEMA if text is None else lowered_text(text, form.dialect)


def _not_strict(form: ToolForm, text: str | None, why: str) -> TextView:
    view = _plain(form, text)
    loss = Loss("", "strict", "lost", f"it is sent without strict: {why}")
    return view._replace(losses=(*view.losses, loss))


@remembered(16 << 20, times=20)
def _validator(view: str) -> Validator:
    return compile_validator(fresh(view))


@remembered(32 << 20, times=4)
def lowered_text(text: str, dialect: Dialect) -> TextView:
    schema = fresh(text)
    try:
        if accepts_unchanged(schema, dialect):
            return TextView(text)
        view = lower(schema, dialect)
    except Exception:
        fault = _fault(schema)
        if fault is None:
            raise
        return TextView(text, (fault,))
    if view.schema != schema:
        text = json.dumps(view.schema, ensure_ascii=False, separators=(",", ":"))
    return TextView(text, view.losses, view.restorer)


def _fault(schema: JsonObject) -> Loss | None:
    """Return why something is no schema: a definition made by hand gets here without a check."""
    try:
        compile_validator(schema)
    except SchemaError as error:
        keyword = error.pointer.rpartition("/")[2]
        return Loss(error.pointer, keyword, "refused", f"it is no JSON Schema: {error.message}")
    return None


def fresh(text: str) -> JsonObject:
    """Numbers keep all their digits, which orjson would round."""
    return cast("JsonObject", json.loads(text))


def _told_losses(form: ToolForm, definition: ToolDefinition, told: ShownTool) -> Iterable[Loss]:
    limit = form.long_description
    if limit is not None and len(definition.description) > limit:
        yield Loss(
            "",
            "description",
            "doubtful",
            f"the tool's description is longer than the {limit} characters "
            "that some servers of this format take",
        )
    if told.name != definition.name:
        yield Loss("", "name", "doubtful", f"the model knows the tool as {told.name!r}")
    if len(told.examples) < min(form.examples, len(definition.examples)):
        yield Loss("", "examples", "lost", "an example that does not fit the view is not sent")


def _check(form: ToolForm, definition: ToolDefinition, losses: Iterable[Loss]) -> None:
    for loss in losses:
        if loss.effect == "refused":
            raise RequestError(
                f"{form.name} would refuse the tool {definition.name!r}, and the request with it: "
                f"{loss.message} ({loss.keyword!r} at {loss.pointer or 'the top'} of its schema). "
                f"Change the schema, or leave the tool out"
            )
