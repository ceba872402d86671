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
    bytes that is declared. `reserved_names` are those of parameters and keys by their place. No
    part of another argument is sent under one of them.
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
    reserved_names: Mapping[str, tuple[str, ...]] = {}
    defaults: Defaults = {}

    @property
    def digest(self) -> str:
        """`sha256:…` over what is sent for given arguments, and where."""
        request_parts = (
            self.method,
            self.path,
            self.server,
            self.security,
            self.parameters,
            self.body,
        )
        return digest(msgspec.to_builtins(request_parts))


class OperationReader:
    """Makes definitions from the operations of one document, in its order. Each name is given only
    once."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._request_schemas = ApiSchemas(document, "request", kinds=True)
        self._without_kinds = ApiSchemas(document, "request")
        self._answer_schemas = ApiSchemas(document, "answer")
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
        return self._request_schemas.has_kinds

    def read(
        self, name: str, operation: ApiOperation, *, kinds: bool = True
    ) -> tuple[ImportedForm, RequestPlan]:
        """Return the imported definition and the plan. Raises NoTool.

        Without `kinds`, arguments are not checked for the kinds in the mapping of a discriminator.
        """
        schemas = self._request_schemas if kinds else self._without_kinds
        arguments = _ArgumentSchema(schemas, operation.path)
        parameters = tuple(arguments.parameter(parameter) for parameter in operation.parameters)
        body = None if operation.body is None else arguments.body(operation.body)
        form: JsonObject = {"name": name, "description": operation.description}
        form["input_schema"] = arguments.schema()
        output, by_status = self._output_schemas(operation.responses)
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
            parameters=parameters,
            body=body,
            accept=_accept_header(operation.responses),
            schemas=by_status,
            media_types=_bytes_media_types(operation.responses),
            reserved_names=_reserved_names(operation),
            defaults={place: values for place, values in arguments.defaults.items() if values},
        )
        return ImportedForm(form, hints), plan

    def _output_schemas(
        self, responses: Mapping[str, ApiResponse]
    ) -> tuple[JsonObject | None, dict[str, Mapping[AnswerKind, JsonObject | None]]]:
        """Return the schema of an operation's results, and those of each status.

        Return None if a successful status does not describe its JSON, or also returns bytes, or if
        a schema cannot be used or is very large. Answers are then not checked.
        """
        successful = [status for status in responses if status[:1] == "2"]
        statuses = successful or [status for status in responses if status == "default"]
        by_status: dict[str, dict[AnswerKind, Translated]] = {}
        try:
            for status in statuses:
                by_kind = self._schemas_of_status(status, responses[status])
                if by_kind is None:
                    return None, {}
                by_status[status.upper()] = by_kind
            distinct: list[Translated] = []
            for schema in (schema for by_kind in by_status.values() for schema in by_kind.values()):
                if not any(same_json(schema.node, known.node) for known in distinct):
                    distinct.append(schema)
            if not distinct:
                return None, {}
            combined = distinct[0]
            if len(distinct) > 1:
                nodes, names, sizes = zip(*distinct, strict=True)
                combined = Translated({"anyOf": [*nodes]}, frozenset().union(*names), sum(sizes))
            output = self._answer_schemas.whole(combined, MAX_ANSWER_NODES)
            return None if _ANYTHING in distinct else output, {
                status: {
                    kind: self._answer_schemas.whole(schema, MAX_ANSWER_NODES)
                    if len(distinct) > 1
                    else None
                    for kind, schema in by_kind.items()
                }
                for status, by_kind in by_status.items()
            }
        except NoTool:
            return None, {}

    def _schemas_of_status(
        self, status: str, response: ApiResponse
    ) -> dict[AnswerKind, Translated] | None:
        """Return the schemas of one status, or None if it may return something that has none."""
        if not response.media_types and status in _EMPTY:
            return {"json": Translated({"type": "null"}, frozenset(), 1)}
        media_types = response.media_types
        if response.schema is None or not any(map(is_json, media_types)):
            return None
        schema = self._answer_schemas.translated(response.schema)
        if "*/*" in media_types:
            return {"json": schema, "text": schema, "bytes": schema}
        by_kind: dict[AnswerKind, Translated] = {"json": schema}
        if (
            any(map(is_text, media_types))
            and (text := self._text_schema(response.text)) is not None
        ):
            by_kind["text"] = text
        if "bytes" in map(kind_of, media_types):
            by_kind["bytes"] = _ANYTHING
        return by_kind

    def _text_schema(self, schema: Node | None) -> Translated | None:
        """Return the schema of a text, or None if it is described as the object that its JSON would
        be, and not as a string."""
        declared_type = None if schema is None else self._document.resolved(schema).get("type")
        if schema is None or declared_type is None:
            return Translated({"type": "string"}, frozenset(), 1)
        return self._answer_schemas.translated(schema) if declared_type.node == "string" else None


class _ArgumentSchema:
    def __init__(self, schemas: ApiSchemas, path: str) -> None:
        self._schemas = schemas
        self._fixed_query = parse_qsl(path.partition("?")[2], keep_blank_values=True)
        self.defaults: dict[tuple[str, str], tuple[JsonValue, ...]] = {}
        self._properties: dict[str, Any] = {}
        self._required: list[str] = []
        self._names: set[str] = set()

    def schema(self) -> JsonObject:
        schema = {
            "type": "object",
            "properties": self._properties,
            "required": self._required,
            "additionalProperties": False,
        }
        return self._schemas.with_definitions(schema, self._names)

    def parameter(self, parameter: ApiParameter) -> SentArgument:
        schema = self._described(self._translated(parameter.schema), parameter.description)
        if SECRET_MEMBER.fullmatch(parameter.name):
            schema["writeOnly"] = True  # records hide what looks like a key
        argument = self._add(parameter.name, schema, parameter.place, required=parameter.required)
        fixed_query = self._fixed_query if parameter.place == "query" else ()
        self.defaults[parameter.place, parameter.name] = (
            *self._schemas.defaults(parameter.schema),
            *(text for name, text in fixed_query if name == parameter.name),
        )
        return SentArgument(
            argument=argument,
            name=parameter.name,
            place=parameter.place,
            style=parameter.style,
            explode=parameter.explode,
            reserved=parameter.reserved,
            as_json=parameter.as_json,
            required=parameter.required,
        )

    def body(self, body: ApiBody) -> BodyPlan:
        kind = _kind(body.media_type)
        fields: Mapping[str, FormField] = {}
        if kind in ("text", "bytes"):
            schema: JsonObject = {"type": "string"} if kind == "text" else dict(_BASE64)
        elif kind == "json":
            schema = {} if body.schema is None else self._translated(body.schema)
        else:
            schema, fields = self._form(body)
        schema = self._described(schema, body.description)
        argument = self._add("body", schema, "request", required=body.required)
        if body.schema is not None and kind != "json":
            self.defaults["request", argument] = self._schemas.defaults(body.schema)
            field_defaults = self._schemas.defaults_of_properties(body.schema)
            self.defaults |= {("body", name): values for name, values in field_defaults.items()}
        return BodyPlan(argument, kind, body.media_type, fields)

    def _form(self, body: ApiBody) -> tuple[JsonObject, Mapping[str, FormField]]:
        """Return the schema of a form, and how its fields are sent. Raises NoTool."""
        if body.schema is None:
            raise NoTool("form", "its body is a form without fields")
        form = self._schemas.document.resolved(body.schema)
        schema = self._translated(form)
        if schema.setdefault("type", "object") != "object":
            raise NoTool("form", "its body is a form, but its schema is not an object")
        parts = list(self._schemas.parts(form))
        required = [entry.node for part in parts for entry in part.items("required")]
        declared: dict[str, Node] = {}
        for part in parts:
            declared = part.members("properties") | declared
        properties, fields = dict(as_object(schema.get("properties", {}))), {}
        for name, child in declared.items():
            is_sent = not self._schemas.is_hidden(child)
            is_required = is_sent and name in required
            field = fields[name] = self._field(body, name, child, required=is_required)
            if field.is_bytes and is_sent:
                properties[name] = self._bytes_schema(child, properties.get(name))
        return {**schema, "properties": properties} if properties else schema, fields

    def _bytes_schema(self, part: Node, schema: Any) -> JsonObject:
        """Return the schema of a field of bytes, or of a list of them, in a form that a model can
        write. `schema` is its own, or None if a part of the form's schema declares it."""
        annotations = {key: part.text(key) for key in ("title", "description") if part.text(key)}
        effective = self._schemas.effective(part)
        list_schema = None if effective.get("items") is None else self._translated(effective)
        encoded = _as_base64(as_object(annotations if schema is None else schema), list_schema)
        return {"anyOf": [encoded, {"type": "null"}]} if self._schemas.takes_null(part) else encoded

    def _field(self, body: ApiBody, name: str, part: Node, *, required: bool) -> FormField:
        """Return how a field of a form is sent, according to its schema and its encoding in the
        form. Before OpenAPI 3.1 there are no styles in parts, except those of Swagger 2.0."""
        encoding = body.encoding.get(name, Node(part.file, {}))
        schema = self._schemas.effective(part)
        element = schema.get("items")
        schema = schema if element is None else self._schemas.effective(element)
        media_type = encoding.text("contentType").partition(",")[0].strip()
        content_media_type = schema.text("contentMediaType")
        is_binary = _is_binary(schema, media_type or content_media_type)
        media_type = media_type or (content_media_type if is_binary else "")
        media_type = "" if "*" in media_type else media_type
        field = FormField(media_type=media_type, is_bytes=is_binary, required=required)
        if _kind(body.media_type) == "multipart" and not self._schemas.has_styled_parts:
            return field
        style = encoding.text("style") or "form"
        return field._replace(style=style, explode=encoding.flag("explode", style == "form"))

    def _translated(self, part: Node) -> JsonObject:
        translated = self._schemas.translated(part)
        self._names |= translated.names
        return as_object(translated.node)

    @staticmethod
    def _described(schema: JsonObject, description: str) -> JsonObject:
        if description and not schema.get("description"):
            return {**schema, "description": description}
        return schema

    def _add(self, name: str, schema: JsonObject, place: str, *, required: bool) -> str:
        base = NOT_IN_NAMES.sub("_", name)[:64].strip("_.-") or place
        in_use = {CONTEXT, API, *self._properties}
        numbered = (f"{base[:50]}_{place}_{number}" for number in range(2, len(in_use) + 3))
        argument = next(
            candidate
            for candidate in (base, f"{base[:50]}_{place}", *numbered)
            if candidate not in in_use
        )
        self._properties[argument] = schema
        if required:
            self._required.append(argument)
        return argument


def _reserved_names(operation: ApiOperation) -> dict[str, tuple[str, ...]]:
    fixed_query = operation.path.partition("?")[2]
    pairs = [
        *((one.place, one.name) for one in operation.parameters),
        *operation.keys,
        *(("query", unquote_plus(one.partition("=")[0])) for one in fixed_query.split("&")),
    ]
    return {
        place: tuple(
            dict.fromkeys(name for where, name in sorted(pairs) if where == place and name)
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


def _as_base64(schema: JsonObject, list_schema: JsonObject | None) -> JsonObject:
    """Return the schema of a field of bytes, or of a list of them that has the limits of
    `list_schema`."""
    if "items" in schema:
        return {**schema, "items": dict(_BASE64)}
    annotations: JsonObject = {
        key: schema[key] for key in ("description", "title") if key in schema
    }
    if list_schema is None:
        return {**_BASE64, **annotations}
    limits: JsonObject = {key: list_schema[key] for key in _LIMITS if key in list_schema}
    return {"type": "array", "items": dict(_BASE64), **limits, **annotations}


def _accept_header(responses: Mapping[str, ApiResponse]) -> str:
    """Return the media types to ask for: JSON if an operation has it, and otherwise all that it has."""
    declared = [
        kind
        for status, response in responses.items()
        if status[:1] == "2"
        for kind in response.media_types
    ]
    kinds = [kind for kind in dict.fromkeys(declared) if kind.isascii() and kind.isprintable()]
    preferred = [kind for kind in kinds if is_json(kind)] or kinds
    return ", ".join([*(preferred[:4] or ["application/json"]), "*/*;q=0.1"])


def _bytes_media_types(responses: Mapping[str, ApiResponse]) -> dict[str, str]:
    """Return the one media type of bytes for each status, empty if there is none or only a range
    (`image/*`)."""
    by_status = {}
    for status, response in responses.items():
        kinds = [kind for kind in response.media_types if is_bytes(kind) and "*" not in kind]
        by_status[status.upper()] = kinds[0] if len(kinds) == 1 else ""
    return by_status


def _candidates(operation: ApiOperation) -> Iterator[str]:
    """Yield names for an operation: its own, one made from its path, and those with a number."""
    spelled = VARIABLE.sub(r"by_\1", operation.path)
    by_path = _legal_name(f"{operation.method.lower()}{spelled}")
    by_id = _legal_name(operation.id)
    if by_id:
        yield by_id
        yield _legal_name(f"{by_id}_{operation.method.lower()}")
    yield by_path
    for number in range(2, 100):
        yield f"{(by_id or by_path)[: LONGEST_NAME - 4]}_{number}"


def _legal_name(name: str) -> str:
    return NOT_IN_NAMES.sub("_", name).strip("_.-")[:LONGEST_NAME]
