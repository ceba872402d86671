"""A typed answer in the provider's own form of it: `response_format` and its siblings.

Rule: the author's schema judges the answer, and its text is in the instructions, whatever a provider is
asked, too. The form only makes a valid answer likelier: what a provider, its model, its server or
the tools beside it are not known to take is not sent, and nothing is refused for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from toolcrib.schema.lower import Dialect
from toolcrib.schema.references import subschemas
from toolcrib.values.json import JsonObject, JsonValue
from toolcrib.values.message import ChatRequest
from toolcrib.values.offer import ArgumentRestorer, Offer
from toolcrib.values.remembered import remembered
from toolcrib.wire.forms import Allowance, StrictLimits
from toolcrib.wire.views import fresh, lowered_text

_WRAPPER = "answer"
_DEFINITIONS = "#/$defs/"
_COMBINED = frozenset(("$ref", "anyOf", "oneOf", "allOf", "enum", "const", "not", "if"))


class ShownAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The format of an answer as a provider is shown it; `schema` is JSON text, of an object."""

    name: str
    schema: str
    strict: bool


Shape: TypeAlias = Callable[[ShownAnswer], dict[str, Any]]


class OutputForm(msgspec.Struct, frozen=True, kw_only=True):
    """Says how a provider takes the schema of an answer; `shape` makes the
    members of a body that say it.

    They are put `within` that member of the body, or right into it. The `strict_dialect` is tried
    first, within `strict_limits` if there are some, then the other one. `plain`: every part has one
    type, and every object requires something. `beside_tools`: whether a request with tools may say it,
    too. It is said only to `models` that the pattern finds, and only at `servers`, if there are some.
    """

    shape: Shape
    within: str = ""
    strict_dialect: Dialect | None = None
    strict_limits: StrictLimits | None = None
    dialect: Dialect | None = None
    plain: bool = False
    beside_tools: bool = False
    models: str = ""
    servers: frozenset[str] = frozenset()

    def is_known_at(self, host: str) -> bool:
        """Return whether the server of that host name is known to take it."""
        return not self.servers or any(
            host == name or host.endswith(f".{name}") for name in self.servers
        )

    def everywhere(self) -> OutputForm:
        """Return the form for an author who knows that server and model take it."""
        return msgspec.structs.replace(self, models="", servers=frozenset())

    def __repr__(self) -> str:
        return f"OutputForm({self.shape.__module__!r})"


class AnswerRestorer(msgspec.Struct, frozen=True):
    """Undoes the view of an answer: `wrapper` holds it, and some nulls stand for nothing."""

    wrapper: str | None
    view: ArgumentRestorer | None

    def restore(self, answer: JsonValue) -> JsonValue:
        """Return the answer as the author's schema has it; what does not
        fit the view passes as it is."""
        if not isinstance(answer, dict):
            return answer
        restored = answer if self.view is None else self.view.restore(answer)
        if self.wrapper is not None and list(restored) == [self.wrapper]:
            return restored[self.wrapper]
        return restored


def asked_output(
    form: OutputForm | None, request: ChatRequest, body: dict[str, Any], *, model: str, offer: Offer
) -> Offer:
    """Ask for the request's output in `body`, if it can be; the offer says how the answer is read.

    What `Settings.extra` says of the same member stands.
    """
    output = request.output
    if output is None or form is None or re.search(form.models, model) is None:
        return offer
    if "tools" in body and not form.beside_tools:
        return offer
    if form.strict_limits is not None and any(
        tool.get_definition().strict for tool in offer.tools.values()
    ):
        return offer  # they share the limits
    made = _view(output.schema_json, form)
    if made is None:
        return offer
    schema, strict, restorer = made
    members = form.shape(ShownAnswer(name=_legal(output.name), schema=schema, strict=strict))
    into = body.get(form.within, {}) if form.within else body
    if not isinstance(into, Mapping) or not members.keys().isdisjoint(into):
        return offer
    body.update({form.within: {**into, **members}} if form.within else members)
    return msgspec.structs.replace(offer, output=restorer)


def _legal(name: str) -> str:
    """Return the name as OpenAI takes it: 64 of `A-Za-z0-9_-`."""
    return re.sub("[^A-Za-z0-9_-]", "_", name)[:64] or _WRAPPER


@remembered(4 << 20, times=4)
def _view(text: str, form: OutputForm) -> tuple[str, bool, AnswerRestorer | None] | None:
    """Return the view as text, whether it is strict, and the restorer of its answers."""
    wrapped = _as_object(text)
    if wrapped is None:
        return None
    whole, wrapper = wrapped
    for dialect in (form.strict_dialect, form.dialect):
        if dialect is None:
            continue
        view = lowered_text(whole, dialect)
        if view.refusal is not None or (form.plain and not _is_plain(fresh(view.text))):
            continue
        limits = form.strict_limits
        if limits is not None and Allowance(limits).refusal(view.text) is not None:
            continue
        changed = wrapper is not None or view.restorer is not None
        restorer = AnswerRestorer(wrapper, view.restorer) if changed else None
        return view.text, dialect is form.strict_dialect, restorer
    return None


def _as_object(text: str) -> tuple[str, str | None] | None:
    """Return the schema, put under one property where its top is not plainly
    an object, and that one's name.

    None for one that is no object and refers to itself otherwise than through its definitions.
    """
    given = fresh(text)
    schema = _unfolded(given)
    if schema.get("type") == "object" and _COMBINED.isdisjoint(schema):
        return text if schema is given else _text(schema), None
    if not all(ref.startswith(_DEFINITIONS) for ref in _refs(schema)):
        return None
    wrapper = _WRAPPER
    while f'"{wrapper}"' in text:  # an answer that has such a property by itself is told apart
        wrapper += "_"
    inner = {key: part for key, part in schema.items() if key not in ("$defs", "$schema")}
    whole: JsonObject = {
        "type": "object",
        "properties": {wrapper: inner},
        "required": [wrapper],
        "additionalProperties": False,
    }
    for shelf in ("$defs", "$schema"):
        if shelf in schema:
            whole[shelf] = schema[shelf]
    return _text(whole), wrapper


def _unfolded(schema: JsonObject) -> JsonObject:
    """Return the definition that the whole schema refers to, if that is all
    that it says, with the others."""
    ref, definitions = schema.get("$ref"), schema.get("$defs")
    if schema.keys() != {"$ref", "$defs"} or not isinstance(ref, str):
        return schema
    name = ref.removeprefix(_DEFINITIONS)
    target = definitions.get(name) if isinstance(definitions, dict) else None
    if not isinstance(definitions, dict) or not isinstance(target, dict) or "$defs" in target:
        return schema
    if ref not in _refs({"$defs": definitions}):  # of which it is not a part any more
        definitions = {key: part for key, part in definitions.items() if key != name}
    return {**target, "$defs": definitions} if definitions else target


def _refs(schema: JsonObject) -> set[str]:
    refs = (node.get("$ref") for _, node in subschemas(schema))
    return {ref for ref in refs if isinstance(ref, str)}


def _text(schema: JsonObject) -> str:
    """Numbers keep all their digits, which orjson would refuse."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _is_plain(view: JsonObject) -> bool:
    """Return whether each part has one type, and each object declares something that it requires."""
    return all(
        isinstance(part.get("type"), str)
        and (part["type"] != "object" or bool(part.get("properties") and part.get("required")))
        for _, part in subschemas(view)
    )
