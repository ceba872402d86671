"""The forms of tools and of typed answers in a provider's requests, and the views of schemas in them.

A wire describes in a `ToolForm` and an `OutputForm` what its provider accepts. This module fills
them in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, cast

import msgspec
import orjson

from toolcrib.errors import CatalogError, RequestError, SchemaError
from toolcrib.schema.lower import Dialect, Loss, accepts_unchanged, lower
from toolcrib.schema.references import subschemas
from toolcrib.schema.validator import Validator, compile_validator
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue, sha256_hex
from toolcrib.values.message import ArgumentRestorer, ChatRequest, Offer, OutputFormat
from toolcrib.values.remembered import remembered

# Names that a provider accepts, for tools whose own names it would refuse.
#
# A legal name stays unchanged. Any other name is made legal from itself alone (its hash is part of
# it), so that it is the same in every request. It never collides with the legal name of another
# tool.

_DIGITS = 8
VERY_LARGE = 65_536
"""In characters. No provider states how large the schema of a tool may be. Beyond this (about
16,000 tokens) it would take up more of the context, in each request, than most conversations do."""


class NameRule(msgspec.Struct, frozen=True):
    """A provider's rule for names: `allowed` is the inside of a regular expression's character class.

    `limit` is a number of characters. `first` is the class of a name's first character, if there is
    a separate rule for it.
    """

    allowed: str
    limit: int
    first: str | None = None

    def legal(self, name: str) -> bool:
        return _legal_names(self).fullmatch(name) is not None


@lru_cache
def _legal_names(rule: NameRule) -> re.Pattern[str]:
    lookahead = "" if rule.first is None else f"(?=[{rule.first}])"
    return re.compile(f"{lookahead}[{rule.allowed}]{{1,{rule.limit}}}")


def wire_name(rule: NameRule, name: str, *, salt: int = 0) -> str:
    """Return the legal form of one name; `salt` gives alternatives, should the first be taken."""
    if not salt and rule.legal(name):
        return name
    stem = re.sub(f"[^{rule.allowed}]", "_", name) or "tool"
    if rule.first is not None and not re.match(f"[{rule.first}]", stem):
        stem = f"_{stem}"
    stem = stem[: rule.limit - _DIGITS - 1]
    return f"{stem}_{sha256_hex(f'{salt}:{name}' if salt else name)[:_DIGITS]}"


def wire_names(rule: NameRule, names: Iterable[str]) -> dict[str, str]:
    """Map own names to wire names, one to one. Raises CatalogError for a repeated name."""
    own_names = list(names)
    legal_names = set(filter(rule.legal, own_names))
    taken_names = set(legal_names)
    mapping: dict[str, str] = {}
    for name in own_names:
        if name in mapping:
            raise CatalogError(f"two tools on offer are called {name!r}: rename or drop one")
        if name in legal_names:
            mapping[name] = name
            continue
        salt = 0
        while (candidate := wire_name(rule, name, salt=salt)) in taken_names:
            salt += 1
        taken_names.add(candidate)
        mapping[name] = candidate
    return mapping


# How much strictness one request may contain, if a provider limits that.
#
# Tools are processed in order. One that would exceed a limit is sent without `strict`, because the
# provider would refuse the whole request.


class StrictLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the strict tools of one request together.

    `optional` counts properties that are not required, `unions` counts parts with `anyOf` or a list
    of types.
    """

    tools: int
    optional: int
    unions: int


_LIMIT_PHRASES = ("strict tools", "optional properties of strict tools", "unions in strict tools")


class Allowance:
    """Says what is left for the further tools of one request."""

    def __init__(self, limits: StrictLimits) -> None:
        self._limits = (limits.tools, limits.optional, limits.unions)
        self._used = (0, 0, 0)

    def refusal(self, view: str) -> str | None:
        """Return why a view cannot be strict after the others, or count it and return None."""
        tools, optional, unions = map(sum, zip(self._used, weight(view), strict=True))
        total = (tools, optional, unions)
        for limit, count, phrase in zip(self._limits, total, _LIMIT_PHRASES, strict=True):
            if count > limit:
                return (
                    f"a request may have at most {limit} {phrase}, and with this tool it would have "
                    f"{count}"
                )
        self._used = total
        return None


@remembered(4 << 20)
def weight(view: str) -> tuple[int, int, int]:
    """Return what is limited (`_LIMIT_PHRASES`) of a view, which contains no references."""
    optional = unions = 0
    stack: list[Any] = [json.loads(view)]
    while stack:
        part = stack.pop()
        if not isinstance(part, dict):
            continue
        properties = part.get("properties", {})
        optional += len(properties.keys() - set(part.get("required", ())))
        unions += "anyOf" in part or isinstance(part.get("type"), list)
        stack += [*properties.values(), *part.get("anyOf", ()), part.get("items")]
    return 1, optional, unions


class ShownTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as a provider is shown it. `schema` is JSON, or encoded text to be spliced in.

    `strict` is None if nothing is said about it.
    """

    name: str
    description: str
    schema: Any
    strict: bool | None = None
    examples: tuple[JsonObject, ...] = ()


# A shape puts the facts of a tool in their places and decides nothing: which view of the schema a
# provider gets, under which name, and whether it is strict, has been decided before.
ToolShape: TypeAlias = Callable[[ShownTool], dict[str, Any]]
Gather: TypeAlias = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


class ToolForm(msgspec.Struct, frozen=True, kw_only=True):
    """Says how a provider takes tools: `shape` makes one, `gather` the request's list of them.

    Without a `strict_dialect` nothing is said about strictness; `strict_limits` apply to a whole
    request. `examples` is how many of a tool's examples are sent. `long_description` is the limit
    in characters that some of the provider's servers enforce.
    """

    name: str
    names: NameRule
    dialect: Dialect
    shape: ToolShape
    gather: Gather = list
    strict_dialect: Dialect | None = None
    strict_limits: StrictLimits | None = None
    examples: int = 0
    long_description: int | None = None

    def __repr__(self) -> str:
        return f"ToolForm({self.name!r})"


def described(tool: ShownTool) -> dict[str, Any]:
    """Return the members that nearly all forms have: the name and, if there is one, description."""
    members: dict[str, Any] = {"name": tool.name}
    return members | {"description": tool.description} if tool.description else members


# Views of tools: what each provider gets of a tool's schema, and what that loses.
#
# A schema that the provider accepts unchanged is sent as the author's own text, byte for byte. A
# view that the provider would refuse is never sent, because one such tool makes a whole request
# fail.


class ToolView(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as it is sent to one provider: `schema` is the view, `form` the provider's whole JSON.

    Both are fresh copies. `strict` says whether it is sent as strict. `restorer` is None if
    arguments for the view are arguments for the tool.
    """

    definition: ToolDefinition
    wire_name: str
    schema: JsonObject
    strict: bool
    losses: tuple[Loss, ...]
    restorer: ArgumentRestorer | None
    form: JsonObject


class EncodedTools(msgspec.Struct, frozen=True, kw_only=True):
    """Tools as a request's bytes and `shapes`.

    `names` maps own to wire names; `restorers` is keyed by own name.
    """

    names: Mapping[str, str]
    restorers: Mapping[str, ArgumentRestorer]
    body: bytes
    shapes: Sequence[Mapping[str, Any]]


class TextView(NamedTuple):
    """A view as text, so that each user parses a separate copy."""

    text: str
    losses: tuple[Loss, ...] = ()
    restorer: ArgumentRestorer | None = None
    strict: bool | None = None

    @property
    def refusal(self) -> Loss | None:
        return next((loss for loss in self.losses if loss.effect == "refused"), None)


_NO_SCHEMA = TextView('{"type":"object","properties":{}}')


def views_of(form: ToolForm, definitions: Sequence[ToolDefinition]) -> list[ToolView]:
    """Return each tool as the provider sees it, including those that it would refuse.

    Raises CatalogError for a repeated name.
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
    """Encode the request's `tools`, with schemas spliced in as text. Raises as `forms_of` does."""
    names = wire_names(form.names, (definition.name for definition in definitions))
    restorers: dict[str, ArgumentRestorer] = {}
    shapes = []
    for definition, view in zip(definitions, _views(form, definitions), strict=True):
        _check(form, definition, view.losses)
        if view.restorer is not None:
            restorers[definition.name] = view.restorer
        schema = orjson.Fragment(view.text)
        shapes.append(
            form.shape(_shown_tool(form, definition, names[definition.name], view, schema))
        )
    body = orjson.dumps(form.gather(shapes))
    return EncodedTools(names=names, restorers=restorers, body=body, shapes=shapes)


def _tool_view(form: ToolForm, definition: ToolDefinition, name: str, view: TextView) -> ToolView:
    shown = _shown_tool(form, definition, name, view, fresh(view.text))
    return ToolView(
        definition=definition,
        wire_name=name,
        schema=fresh(view.text),
        strict=view.strict is True,
        losses=(*view.losses, *_sending_losses(form, definition, shown)),
        restorer=view.restorer,
        form=form.shape(shown),
    )


def _shown_tool(
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
    """Return the first few examples that fit the schema that is sent. Any other would make the
    request fail."""
    if not form.examples or not definition.examples:
        return ()
    examples: Iterable[JsonObject] = (example.arguments for example in definition.examples)
    if view.restorer is not None:
        examples = map(view.restorer.to_view, examples)
    if view.text != definition.input_schema_json:
        examples = filter(_validator(view.text).is_valid, examples)
    return tuple(islice(examples, form.examples))


def _views(form: ToolForm, definitions: Sequence[ToolDefinition]) -> list[TextView]:
    allowance = None if form.strict_limits is None else Allowance(form.strict_limits)
    return [_view(form, definition, allowance) for definition in definitions]


def _view(form: ToolForm, definition: ToolDefinition, allowance: Allowance | None) -> TextView:
    """Return the view that is sent. It is strict if the author asked for that and it loses only
    detail."""
    text, strict = definition.input_schema_json, definition.strict
    strict_member = None if form.strict_dialect is None else strict
    if not strict:
        view = _plain(form, text)
        return view if strict_member is None else view._replace(strict=strict_member)
    if form.strict_dialect is None:
        return _not_strict(form, text, f"{form.name} has no strict mode")
    if text is None:
        return _not_strict(form, text, "the tool has no schema")
    view = lowered_text(text, form.strict_dialect)
    refusal = view.refusal
    if refusal is not None:
        where = refusal.pointer or "the top"
        return _not_strict(form, text, f"{refusal.message} (at {where})")
    excess = None if allowance is None else allowance.refusal(view.text)
    return view._replace(strict=True) if excess is None else _not_strict(form, text, excess)


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
        loss = _schema_fault(schema)
        if loss is None:
            raise
        return TextView(text, (loss,))
    if view.schema != schema:
        text = json.dumps(view.schema, ensure_ascii=False, separators=(",", ":"))
    return TextView(text, view.losses, view.restorer)


def _schema_fault(schema: JsonObject) -> Loss | None:
    """Return why something is not a schema. A handmade definition gets here unchecked."""
    try:
        compile_validator(schema)
    except SchemaError as error:
        keyword = error.pointer.rpartition("/")[2]
        return Loss(error.pointer, keyword, "refused", f"it is not a JSON Schema: {error.message}")
    return None


def fresh(text: str) -> JsonObject:
    """Parse a schema, keeping all digits of its numbers, which orjson would round."""
    return cast("JsonObject", json.loads(text))


def _sending_losses(form: ToolForm, definition: ToolDefinition, shown: ShownTool) -> Iterable[Loss]:
    limit = form.long_description
    if limit is not None and len(definition.description) > limit:
        yield Loss(
            "",
            "description",
            "doubtful",
            f"the tool's description is longer than the {limit} characters "
            "that some servers of this format accept",
        )
    if shown.name != definition.name:
        yield Loss("", "name", "doubtful", f"the model knows the tool as {shown.name!r}")
    if len(shown.examples) < min(form.examples, len(definition.examples)):
        yield Loss(
            "",
            "examples",
            "lost",
            "an example does not fit the schema as it is sent, and is left out",
        )


def _check(form: ToolForm, definition: ToolDefinition, losses: Iterable[Loss]) -> None:
    for loss in losses:
        if loss.effect == "refused":
            raise RequestError(
                f"{form.name} would refuse the tool {definition.name!r}, and the request with it: "
                f"{loss.message} ({loss.keyword!r} at {loss.pointer or 'the top'} of its schema). "
                f"Change the schema, or leave the tool out"
            )


# A typed answer in the provider's own form: `response_format` and the like.
#
# Rule: the author's schema judges the answer and its text is in the instructions, whatever else a
# provider is told. The form only makes a valid answer likelier. It is not sent if the provider, its
# model, its server or the accompanying tools are not known to support it, and nothing is refused
# because of that. If the format cannot be combined with tools, a tool is offered whose call is the
# answer.

_WRAPPER = "answer"
_DEFINITIONS = "#/$defs/"
_COMBINING_KEYWORDS = frozenset(("$ref", "anyOf", "oneOf", "allOf", "enum", "const", "not", "if"))


class ShownAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The format of an answer as a provider is shown it; `schema` is JSON text of an object."""

    name: str
    schema: str
    strict: bool


AnswerShape: TypeAlias = Callable[[ShownAnswer], dict[str, Any]]


class OutputForm(msgspec.Struct, frozen=True, kw_only=True):
    """Says how a provider takes the schema of an answer; `shape` makes the members of a body for it.

    They are put into the member `within` of the body, or into the body itself. The `strict_dialect`
    is tried first, within `strict_limits` if there are some, then the other one. `plain`: every
    part has one type, and every object requires something. `beside_tools`: whether a request with
    tools may have it, too. It is sent only to `models` that match the pattern, and only to
    `servers`, if there are some.
    """

    shape: AnswerShape
    within: str = ""
    strict_dialect: Dialect | None = None
    strict_limits: StrictLimits | None = None
    dialect: Dialect | None = None
    plain: bool = False
    beside_tools: bool = False
    models: str = ""
    servers: frozenset[str] = frozenset()

    def is_known_at(self, host: str) -> bool:
        """Return whether the server with that host name is known to support it."""
        return not self.servers or any(
            host == name or host.endswith(f".{name}") for name in self.servers
        )

    def everywhere(self) -> OutputForm:
        """Return the form for an author who knows that server and model support it."""
        return msgspec.structs.replace(self, models="", servers=frozenset())

    def __repr__(self) -> str:
        return f"OutputForm({self.shape.__module__!r})"


class AnswerRestorer(msgspec.Struct, frozen=True):
    """Undoes the view of an answer: `wrapper` contains it, and some nulls mean absence."""

    wrapper: str | None
    view: ArgumentRestorer | None

    def restore(self, answer: JsonValue) -> JsonValue:
        """Return the answer in the author's terms; unchanged if it does not fit the view."""
        if not isinstance(answer, dict):
            return answer
        restored = answer if self.view is None else self.view.restore(answer)
        if self.wrapper is not None and list(restored) == [self.wrapper]:
            return restored[self.wrapper]
        return restored


def asked_output(
    form: OutputForm | None, request: ChatRequest, body: dict[str, Any], *, model: str, offer: Offer
) -> Offer:
    """Ask for the request's output in `body`, if possible. The returned offer says how the answer
    is read.

    If `Settings.extra` sets the same member, that takes precedence.
    """
    output = request.output
    if output is None or form is None:
        return offer
    view = _format_of(form, output, offer.tools.values(), has_tools="tools" in body, model=model)
    if view is None:
        return offer
    schema, strict, restorer = view
    members = form.shape(ShownAnswer(name=_legal_name(output.name), schema=schema, strict=strict))
    holder = body.get(form.within, {}) if form.within else body
    if not isinstance(holder, Mapping) or not members.keys().isdisjoint(holder):
        return offer
    body.update({form.within: {**holder, **members}} if form.within else members)
    return msgspec.structs.replace(offer, output=restorer)


def offered_output(
    tools: ToolForm,
    form: OutputForm | None,
    request: ChatRequest,
    *,
    model: str,
    as_tool: bool | None,
) -> ChatRequest:
    """Return a request with a tool for its output, if that replaces the format.

    `as_tool` says whether it does; with None it does if the format cannot be combined with the
    tools. A tool that the provider would refuse is not offered.
    """
    output = request.output
    if output is None or output.tool is None or as_tool is False:
        return request
    if as_tool is None:
        request_tools = request.tools
        if not request_tools:
            return request
        if form is not None and _format_of(
            form, output, request_tools, has_tools=True, model=model
        ):
            return request
    is_known_model = form is not None and re.search(form.models, model) is not None
    extended = request.with_answer_tool(strict=is_known_model and tools.strict_dialect is not None)
    answer_tool = extended.tools[-1].get_definition() if extended is not request else None
    if answer_tool is None or _view(tools, answer_tool, None).refusal is not None:
        return request
    return extended


def _format_of(
    form: OutputForm,
    output: OutputFormat,
    tools: Iterable[HasDefinition],
    *,
    has_tools: bool,
    model: str,
) -> tuple[str, bool, AnswerRestorer | None] | None:
    """Return the view of the output as `_answer_view` does, or None if it cannot be used.

    That depends on the model and the tools. `has_tools` says that the request has tools, including the
    provider's own.
    """
    if re.search(form.models, model) is None or (has_tools and not form.beside_tools):
        return None
    if form.strict_limits is not None and any(tool.get_definition().strict for tool in tools):
        return None  # they share the limits
    return _answer_view(output.schema_json, form)


def _legal_name(name: str) -> str:
    """Return the name in a form that OpenAI accepts: 64 of `A-Za-z0-9_-`."""
    return re.sub("[^A-Za-z0-9_-]", "_", name)[:64] or _WRAPPER


@remembered(4 << 20, times=4)
def _answer_view(text: str, form: OutputForm) -> tuple[str, bool, AnswerRestorer | None] | None:
    """Return the view as text, whether it is strict, and the restorer of its answers."""
    wrapped = _as_object(text)
    if wrapped is None:
        return None
    object_schema, wrapper = wrapped
    for dialect in (form.strict_dialect, form.dialect):
        if dialect is None:
            continue
        view = lowered_text(object_schema, dialect)
        if view.refusal is not None or (form.plain and not _is_plain(fresh(view.text))):
            continue
        limits = form.strict_limits
        if limits is not None and Allowance(limits).refusal(view.text) is not None:
            continue
        is_changed = wrapper is not None or view.restorer is not None
        restorer = AnswerRestorer(wrapper, view.restorer) if is_changed else None
        return view.text, dialect is form.strict_dialect, restorer
    return None


def _as_object(text: str) -> tuple[str, str | None] | None:
    """Return the schema and None, or wrapped in one property if its top is not plainly an object.

    The second value is then the property's name.

    Return None if it would have to be wrapped and refers to itself other than through its
    definitions.
    """
    original = fresh(text)
    schema = _unfolded(original)
    if schema.get("type") == "object" and _COMBINING_KEYWORDS.isdisjoint(schema):
        return text if schema is original else _text(schema), None
    if not all(ref.startswith(_DEFINITIONS) for ref in _refs(schema)):
        return None
    wrapper = _WRAPPER
    while f'"{wrapper}"' in text:  # an answer may have such a property
        wrapper += "_"
    inner = {key: part for key, part in schema.items() if key not in ("$defs", "$schema")}
    wrapped: JsonObject = {
        "type": "object",
        "properties": {wrapper: inner},
        "required": [wrapper],
        "additionalProperties": False,
    }
    for keyword in ("$defs", "$schema"):
        if keyword in schema:
            wrapped[keyword] = schema[keyword]
    return _text(wrapped), wrapper


def _unfolded(schema: JsonObject) -> JsonObject:
    """Return the definition that a schema only refers to, together with the others."""
    ref, definitions = schema.get("$ref"), schema.get("$defs")
    if schema.keys() != {"$ref", "$defs"} or not isinstance(ref, str):
        return schema
    name = ref.removeprefix(_DEFINITIONS)
    target = definitions.get(name) if isinstance(definitions, dict) else None
    if not isinstance(definitions, dict) or not isinstance(target, dict) or "$defs" in target:
        return schema
    if ref not in _refs({"$defs": definitions}):  # it is no longer needed
        definitions = {key: part for key, part in definitions.items() if key != name}
    return {**target, "$defs": definitions} if definitions else target


def _refs(schema: JsonObject) -> set[str]:
    refs = (node.get("$ref") for _, node in subschemas(schema))
    return {ref for ref in refs if isinstance(ref, str)}


def _text(schema: JsonObject) -> str:
    """Write JSON with all digits of its numbers, which orjson would refuse."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _is_plain(view: JsonObject) -> bool:
    """Return whether each part has one type, and each object declares and requires something."""
    return all(
        isinstance(part.get("type"), str)
        and (part["type"] != "object" or bool(part.get("properties") and part.get("required")))
        for _, part in subschemas(view)
    )
