"""From an operation to a tool: its name, its arguments, its result, and the plan of its request.

Each parameter becomes an argument under its own name, in the characters that every provider takes.
The body becomes the argument `body`. If two arguments would have one name, the later one also says
where it is sent (`id_query`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote_plus

import msgspec

from toolcrib.bridges.openapi.document import Document, Node, NoTool
from toolcrib.bridges.openapi.forms import (
    SAFE,
    VARIABLE,
    AnswerKind,
    ApiBody,
    ApiOperation,
    ApiParameter,
    ApiResponse,
    Security,
    is_bytes,
    is_json,
    is_text,
    is_xml,
    kind_of,
)
from toolcrib.bridges.openapi.schemas import NOT_IN_NAMES, ApiSchemas, Translated, as_object
from toolcrib.clients.server import SECRET_MEMBER
from toolcrib.errors import CatalogError
from toolcrib.schema.derive.plain import same_json
from toolcrib.tools.catalog import Names
from toolcrib.values.definition import ImportedForm
from toolcrib.values.json import JsonObject, JsonValue, digest

CONTEXT, API = "toolcrib_context", "toolcrib_api"
"""The parameters that the runner fills in. No argument may have their names."""
LONGEST_NAME = 128
MAX_ANSWER_NODES = 2_000
"""An answer is not checked against a schema with more nodes, since those of many tools fill the
memory."""

_BASE64: JsonObject = {"type": "string", "contentEncoding": "base64"}
_EMPTY = ("204", "205")
_ANYTHING = Translated({}, frozenset(), 1)

BodyKind = Literal["json", "form", "multipart", "text", "bytes"]
Defaults: TypeAlias = Mapping[tuple[str, str], tuple[JsonValue, ...]]
"""The API's own values for arguments that are left out, by place and name. `body` is the place of
the fields of a form, and `request` that of the whole body."""


class FormField(NamedTuple):
    """How one field of a form is sent: by a style, or as a part with a media type.

    With `is_bytes` the argument is base64.
    """

    style: str = "form"
    explode: bool = True
    media_type: str = ""
    is_bytes: bool = False
    required: bool = False

    @property
    def has_style(self) -> bool:
        """Return whether it is sent in another style than a form's default."""
        return not self.is_bytes and (self.style, self.explode) != ("form", True)


class BodyPlan(msgspec.Struct, frozen=True):
    """How the argument `body` is sent."""

    argument: str
    kind: BodyKind
    media_type: str
    fields: Mapping[str, FormField] = {}


class SentArgument(msgspec.Struct, frozen=True):
    """How one argument is sent as a parameter, under the API's own name for it. A field of a form
    is `within` the argument of the body."""

    argument: str
    name: str
    place: str
    style: str
    explode: bool
    reserved: bool = False
    as_json: bool = False
    required: bool = False
    within: str = ""


class RequestPlan(msgspec.Struct, frozen=True):
    """What is known about an operation's requests before there is one.

    `accept` are the media types of its answers. `schemas` are those of successful answers by status
    and kind, or None if all have the same schema. `media_types` has, by status, the one kind of
    bytes that is declared. `taken` are the names of parameters and keys by their place. No part of
    another argument is sent under one of them.
    """

    name: str
    method: str
    path: str
    server: str
    security: Security
    parameters: tuple[SentArgument, ...]
    body: BodyPlan | None
    accept: str
    schemas: Mapping[str, Mapping[AnswerKind, JsonObject | None]]
    media_types: Mapping[str, str]
    taken: Mapping[str, tuple[str, ...]] = {}
    defaults: Defaults = {}

    @property
    def digest(self) -> str:
        """`sha256:…` over what is sent for given arguments, and where."""
        sent = (self.method, self.path, self.server, self.security, self.parameters, self.body)
        return digest(msgspec.to_builtins(sent))


class OperationReader:
    """Makes definitions from the operations of one document, in its order. Each name is given only
    once."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._requests = ApiSchemas(document, "request", kinds=True)
        self._without_kinds = ApiSchemas(document, "request")
        self._answers = ApiSchemas(document, "answer")
        self._names = Names()

    def name(self, operation: ApiOperation) -> str:
        """Return a name that is not in use, and reserve it. Raises NoTool."""
        for name in _candidates(operation):
            try:
                self._names.take(name)
            except CatalogError:
                continue
            return name
        raise NoTool("name", "its possible names are already taken, or too similar to others")

    @property
    def has_kinds(self) -> bool:
        """Return whether any arguments that were read are checked for kinds."""
        return self._requests.has_kinds

    def read(
        self, name: str, operation: ApiOperation, *, kinds: bool = True
    ) -> tuple[ImportedForm, RequestPlan]:
        """Return the imported definition and the plan. Raises NoTool.

        Without `kinds`, arguments are not checked for the kinds in the mapping of a discriminator.
        """
        schemas = self._requests if kinds else self._without_kinds
        arguments = _ArgumentSchema(schemas, operation.path)
        sent = tuple(arguments.parameter(one) for one in operation.parameters)
        body = None if operation.body is None else arguments.body(operation.body)
        form: JsonObject = {"name": name, "description": operation.description}
        form["input_schema"] = arguments.schema()
        output, by_status = self._outputs(operation.responses)
        if output is not None:
            form["output_schema"] = output
        hints = {
            "readOnlyHint": operation.method in SAFE,
            "destructiveHint": operation.method == "DELETE",
        }
        plan = RequestPlan(
            name=name,
            method=operation.method,
            path=operation.path,
            server=operation.server,
            security=operation.security,
            parameters=sent,
            body=body,
            accept=_accept(operation.responses),
            schemas=by_status,
            media_types=_bytes_of(operation.responses),
            taken=_taken(operation),
            defaults={place: found for place, found in arguments.defaults.items() if found},
        )
        return ImportedForm(form, hints), plan

    def _outputs(
        self, responses: Mapping[str, ApiResponse]
    ) -> tuple[JsonObject | None, dict[str, Mapping[AnswerKind, JsonObject | None]]]:
        """Return the schema of an operation's results, and those of each status.

        Return None if a successful status does not describe its JSON, or also returns bytes, or if
        a schema cannot be used or is very large. Answers are then not checked.
        """
        good = [status for status in responses if status[:1] == "2"]
        statuses = good or [status for status in responses if status == "default"]
        found: dict[str, dict[AnswerKind, Translated]] = {}
        try:
            for status in statuses:
                made = self._output(status, responses[status])
                if made is None:
                    return None, {}
                found[status.upper()] = made
            different: list[Translated] = []
            for one in (one for made in found.values() for one in made.values()):
                if not any(same_json(one.node, other.node) for other in different):
                    different.append(one)
            if not different:
                return None, {}
            whole = different[0]
            if len(different) > 1:
                nodes, names, sizes = zip(*different, strict=True)
                whole = Translated({"anyOf": [*nodes]}, frozenset().union(*names), sum(sizes))
            output = self._answers.whole(whole, MAX_ANSWER_NODES)
            return None if _ANYTHING in different else output, {
                status: {
                    kind: self._answers.whole(one, MAX_ANSWER_NODES) if len(different) > 1 else None
                    for kind, one in made.items()
                }
                for status, made in found.items()
            }
        except NoTool:
            return None, {}

    def _output(self, status: str, response: ApiResponse) -> dict[AnswerKind, Translated] | None:
        """Return the schemas of one status, or None if it may return something that has none."""
        if not response.media_types and status in _EMPTY:
            return {"json": Translated({"type": "null"}, frozenset(), 1)}
        kinds = response.media_types
        if response.schema is None or not any(map(is_json, kinds)):
            return None
        made = self._answers.translated(response.schema)
        if "*/*" in kinds:
            return {"json": made, "text": made, "bytes": made}
        found: dict[AnswerKind, Translated] = {"json": made}
        if any(map(is_text, kinds)) and (text := self._text(response.text)) is not None:
            found["text"] = text
        if "bytes" in map(kind_of, kinds):
            found["bytes"] = _ANYTHING
        return found

    def _text(self, schema: Node | None) -> Translated | None:
        """Return the schema of a text, or None if it is described as the object that its JSON would
        be, and not as a string."""
        kind = None if schema is None else self._document.resolved(schema).get("type")
        if schema is None or kind is None:
            return Translated({"type": "string"}, frozenset(), 1)
        return self._answers.translated(schema) if kind.node == "string" else None


class _ArgumentSchema:
    def __init__(self, schemas: ApiSchemas, path: str) -> None:
        self._schemas = schemas
        self._fixed = parse_qsl(path.partition("?")[2], keep_blank_values=True)
        self.defaults: dict[tuple[str, str], tuple[JsonValue, ...]] = {}
        self._properties: dict[str, Any] = {}
        self._required: list[str] = []
        self._names: set[str] = set()

    def schema(self) -> JsonObject:
        made = {
            "type": "object",
            "properties": self._properties,
            "required": self._required,
            "additionalProperties": False,
        }
        return self._schemas.with_definitions(made, self._names)

    def parameter(self, given: ApiParameter) -> SentArgument:
        schema = self._described(self._translated(given.schema), given.description)
        if SECRET_MEMBER.fullmatch(given.name):
            schema["writeOnly"] = True  # records hide what looks like a key
        argument = self._add(given.name, schema, given.place, required=given.required)
        fixed = self._fixed if given.place == "query" else ()
        self.defaults[given.place, given.name] = (
            *self._schemas.defaults(given.schema),
            *(text for name, text in fixed if name == given.name),
        )
        return SentArgument(
            argument=argument,
            name=given.name,
            place=given.place,
            style=given.style,
            explode=given.explode,
            reserved=given.reserved,
            as_json=given.as_json,
            required=given.required,
        )

    def body(self, given: ApiBody) -> BodyPlan:
        kind = _kind(given.media_type)
        fields: Mapping[str, FormField] = {}
        if kind in ("text", "bytes"):
            schema: JsonObject = {"type": "string"} if kind == "text" else dict(_BASE64)
        elif kind == "json":
            schema = {} if given.schema is None else self._translated(given.schema)
        else:
            schema, fields = self._form(given)
        schema = self._described(schema, given.description)
        argument = self._add("body", schema, "request", required=given.required)
        if given.schema is not None and kind != "json":
            self.defaults["request", argument] = self._schemas.defaults(given.schema)
            named = self._schemas.defaults_of_properties(given.schema)
            self.defaults |= {("body", name): found for name, found in named.items()}
        return BodyPlan(argument, kind, given.media_type, fields)

    def _form(self, given: ApiBody) -> tuple[JsonObject, Mapping[str, FormField]]:
        """Return the schema of a form, and how its fields are sent. Raises NoTool."""
        if given.schema is None:
            raise NoTool("form", "its body is a form without fields")
        whole = self._schemas.document.resolved(given.schema)
        made = self._translated(whole)
        if made.setdefault("type", "object") != "object":
            raise NoTool("form", "its body is a form, but its schema is not an object")
        parts = list(self._schemas.parts(whole))
        required = [each.node for one in parts for each in one.items("required")]
        declared: dict[str, Node] = {}
        for one in parts:
            declared = one.members("properties") | declared
        properties, fields = dict(as_object(made.get("properties", {}))), {}
        for name, child in declared.items():
            is_sent = not self._schemas.is_hidden(child)
            needed = is_sent and name in required
            field = fields[name] = self._field(given, name, child, required=needed)
            if field.is_bytes and is_sent:
                properties[name] = self._of_bytes(child, properties.get(name))
        return {**made, "properties": properties} if properties else made, fields

    def _of_bytes(self, part: Node, schema: Any) -> JsonObject:
        """Return the schema of a field of bytes, or of a list of them, in a form that a model can
        write. `schema` is its own, or None if a part of the form's schema declares it."""
        told = {key: part.text(key) for key in ("title", "description") if part.text(key)}
        meant = self._schemas.meant(part)
        whole = None if meant.get("items") is None else self._translated(meant)
        made = _as_base64(as_object(told if schema is None else schema), whole)
        return {"anyOf": [made, {"type": "null"}]} if self._schemas.takes_null(part) else made

    def _field(self, body: ApiBody, name: str, part: Node, *, required: bool) -> FormField:
        """Return how a field of a form is sent, according to its schema and its encoding in the
        form. Before OpenAPI 3.1 there are no styles in parts, except those of Swagger 2.0."""
        encoding = body.encoding.get(name, Node(part.file, {}))
        one = self._schemas.meant(part)
        inner = one.get("items")
        one = one if inner is None else self._schemas.meant(inner)
        kind = encoding.text("contentType").partition(",")[0].strip()
        own = one.text("contentMediaType")
        binary = _is_binary(one, kind or own)
        kind = kind or (own if binary else "")
        kind = "" if "*" in kind else kind
        field = FormField(media_type=kind, is_bytes=binary, required=required)
        if _kind(body.media_type) == "multipart" and not self._schemas.has_styled_parts:
            return field
        style = encoding.text("style") or "form"
        return field._replace(style=style, explode=encoding.flag("explode", style == "form"))

    def _translated(self, part: Node) -> JsonObject:
        made = self._schemas.translated(part)
        self._names |= made.names
        return as_object(made.node)

    @staticmethod
    def _described(schema: JsonObject, description: str) -> JsonObject:
        if description and not schema.get("description"):
            return {**schema, "description": description}
        return schema

    def _add(self, name: str, schema: JsonObject, place: str, *, required: bool) -> str:
        base = NOT_IN_NAMES.sub("_", name)[:64].strip("_.-") or place
        taken = {CONTEXT, API, *self._properties}
        numbered = (f"{base[:50]}_{place}_{number}" for number in range(2, len(taken) + 3))
        argument = next(
            one for one in (base, f"{base[:50]}_{place}", *numbered) if one not in taken
        )
        self._properties[argument] = schema
        if required:
            self._required.append(argument)
        return argument


def _taken(operation: ApiOperation) -> dict[str, tuple[str, ...]]:
    fixed = operation.path.partition("?")[2]
    named = [
        *((one.place, one.name) for one in operation.parameters),
        *operation.keys,
        *(("query", unquote_plus(one.partition("=")[0])) for one in fixed.split("&")),
    ]
    return {
        place: tuple(
            dict.fromkeys(name for where, name in sorted(named) if where == place and name)
        )
        for place in ("path", "query", "cookie")
    }


def _kind(media_type: str) -> BodyKind:
    if is_json(media_type):
        return "json"
    if is_text(media_type):
        return "text"
    if is_bytes(media_type):
        return "bytes"
    return "multipart" if media_type.lower().startswith("multipart/") else "form"


def _is_binary(part: Node, media_type: str) -> bool:
    """Return whether a field is sent as bytes: it says so, or its media type does and no encoding
    is given."""
    if part.text("type") == "file" or part.text("format") == "binary":
        return True
    if part.text("contentMediaType") == "application/octet-stream":
        return True
    return is_bytes(media_type) and not is_xml(media_type) and not part.text("contentEncoding")


_LIMITS = ("minItems", "maxItems", "uniqueItems")


def _as_base64(schema: JsonObject, whole: JsonObject | None) -> JsonObject:
    """Return the schema of a field of bytes, or of a list of them that has the limits of `whole`."""
    if "items" in schema:
        return {**schema, "items": dict(_BASE64)}
    kept: JsonObject = {key: schema[key] for key in ("description", "title") if key in schema}
    if whole is None:
        return {**_BASE64, **kept}
    limits: JsonObject = {key: whole[key] for key in _LIMITS if key in whole}
    return {"type": "array", "items": dict(_BASE64), **limits, **kept}


def _accept(responses: Mapping[str, ApiResponse]) -> str:
    """Return the media types to ask for: JSON if an operation has it, and otherwise all that it has."""
    told = [
        kind for status, one in responses.items() if status[:1] == "2" for kind in one.media_types
    ]
    kinds = [kind for kind in dict.fromkeys(told) if kind.isascii() and kind.isprintable()]
    wanted = [kind for kind in kinds if is_json(kind)] or kinds
    return ", ".join([*(wanted[:4] or ["application/json"]), "*/*;q=0.1"])


def _bytes_of(responses: Mapping[str, ApiResponse]) -> dict[str, str]:
    """Return the one media type of bytes for each status, empty if there is none or only a range
    (`image/*`)."""
    found = {}
    for status, one in responses.items():
        kinds = [kind for kind in one.media_types if is_bytes(kind) and "*" not in kind]
        found[status.upper()] = kinds[0] if len(kinds) == 1 else ""
    return found


def _candidates(operation: ApiOperation) -> Iterator[str]:
    """Yield names for an operation: its own, one made from its path, and those with a number."""
    spelled = VARIABLE.sub(r"by_\1", operation.path)
    by_path = _legal(f"{operation.method.lower()}{spelled}")
    own = _legal(operation.id)
    if own:
        yield own
        yield _legal(f"{own}_{operation.method.lower()}")
    yield by_path
    for number in range(2, 100):
        yield f"{(own or by_path)[: LONGEST_NAME - 4]}_{number}"


def _legal(name: str) -> str:
    return NOT_IN_NAMES.sub("_", name).strip("_.-")[:LONGEST_NAME]
