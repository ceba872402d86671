"""The operations of a document in one form, for OpenAPI 3.0, 3.1 and Swagger 2.0.

Rule: what OpenAPI says to ignore is ignored (headers called `Authorization`, `Accept`,
`Content-Type`), and the name of a key is no parameter: keys come from whoever sends the request,
never from arguments. The wire facts are from https://spec.openapis.org/oas/v3.1.1.html and, for
2.0, from https://swagger.io/specification/v2/.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias, cast
from urllib.parse import quote, unquote, urlsplit

import msgspec

from toolcrib.bridges.openapi.document import Document, Node, NoTool

Place: TypeAlias = Literal["path", "query", "header", "cookie"]
AnswerKind: TypeAlias = Literal["json", "text", "bytes"]
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
SAFE = frozenset(("GET", "HEAD", "OPTIONS", "TRACE"))
"""The methods that only read: https://www.rfc-editor.org/rfc/rfc9110#section-9.2.1"""

_IGNORED = frozenset(
    (
        *("accept", "authorization", "content-type", "cookie", "idempotency-key", "te"),
        *("accept-encoding", "connection", "content-length", "expect", "host", "upgrade"),
        "transfer-encoding",
    )
)
"""Headers that are no parameters: those that OpenAPI ignores, and those that the sender fills in."""
_STYLES: Mapping[str, tuple[str, ...]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
"""The styles of each place. The first one is the default."""
_COLLECTIONS = {
    "csv": ("form", False),
    "ssv": ("spaceDelimited", False),
    "pipes": ("pipeDelimited", False),
    "multi": ("form", True),
}
_IN_BODY = ("body", "formData")
"""The places of those Swagger 2.0 parameters that belong to the body."""
_SCHEMA_KEYWORDS = frozenset(
    ("type", "format", "items", "default", "enum", "maximum", "exclusiveMaximum", "minimum",
     "exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems",
     "multipleOf")
)  # fmt: skip
"""What a Swagger 2.0 parameter says about its value, in addition to its name."""
_JSON = re.compile(r"(?:.*[/+])?(?:application)?json|\*/\*|application/\*", re.IGNORECASE)
_FORM = ("application/x-www-form-urlencoded", "multipart/form-data")
_SAFE_IN_PATHS = "/%:@!$&'()*+,;=~?"
VARIABLE = re.compile(r"\{([^{}]+)\}")
"""A variable of a path, and its name."""
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""Valid names of headers and cookies: https://www.rfc-editor.org/rfc/rfc9110#section-5.6.2"""


class ApiParameter(NamedTuple):
    """One parameter. With `as_json`, its value is sent as JSON text, whatever its style."""

    name: str
    place: Place
    required: bool
    schema: Node
    style: str
    explode: bool
    reserved: bool = False
    as_json: bool = False
    description: str = ""


class ApiBody(NamedTuple):
    """A request's body. `encoding` is what a form says about its fields."""

    media_type: str
    schema: Node | None
    required: bool
    description: str = ""
    encoding: Mapping[str, Node] = {}


class ApiResponse(NamedTuple):
    """Describes the answer of one status: its media types, and the schemas of its JSON and its text."""

    media_types: tuple[str, ...] = ()
    schema: Node | None = None
    text: Node | None = None


class SecurityScheme(msgspec.Struct, frozen=True):
    """How a key is sent.

    `kind` is `apiKey` (in `place` under `name`), `http` (by `name`, such as `basic` or `bearer`) or
    `unknown`. An OAuth 2 token is sent as `bearer`.
    """

    id: str
    kind: Literal["apiKey", "http", "unknown"]
    name: str = ""
    place: str = ""


Security: TypeAlias = tuple[tuple[SecurityScheme, ...], ...]
"""Alternatives, each with all schemes that are used together. There are none for a request without
keys."""


class ApiOperation(NamedTuple):
    """Holds one operation as its document describes it.

    `path` begins with `/`. `server` is the URL that the operation or its path names for itself, or
    "". It is a claim, which `ApiServer` follows to allowed origins only.
    """

    method: str
    path: str
    id: str
    description: str
    parameters: tuple[ApiParameter, ...]
    body: ApiBody | None
    responses: Mapping[str, ApiResponse]
    security: Security
    server: str
    keys: frozenset[tuple[str, str]] = frozenset()
    """Where the document's API keys are sent, and under which names."""


def operations(document: Document) -> Iterator[tuple[str, ApiOperation | NoTool]]:
    """Yield each operation, named in the form `GET /pets/{id}`, or why it cannot be used."""
    schemes = security_schemes(document)
    for path, item in document.root.members("paths").items():
        if path.startswith("x-"):
            continue
        try:
            path_item = document.resolved(item)
            methods = [name for name in METHODS if path_item.get(name) is not None]
        except NoTool as unusable:
            yield path, unusable
            continue
        for method in methods:
            label = f"{method.upper()} {path}"
            try:
                yield (
                    label,
                    _OperationParser(document, schemes, path, path_item, method).operation(),
                )
            except NoTool as unusable:
                yield label, unusable


def security_schemes(document: Document) -> dict[str, SecurityScheme]:
    """Return the schemes of a document, by the names that its operations use."""
    container = document.root if document.is_swagger else document.root.get("components")
    name = "securityDefinitions" if document.is_swagger else "securitySchemes"
    definitions = container.members(name) if container else {}
    schemes = {}
    for id_, part in definitions.items():
        try:
            schemes[id_] = _scheme(id_, document.resolved(part))
        except NoTool:
            schemes[id_] = SecurityScheme(id_, "unknown")
    return schemes


def _scheme(id_: str, part: Node) -> SecurityScheme:
    match part.text("type"):
        case "apiKey" if part.text("in") == "query" or (
            part.text("in") in ("header", "cookie") and TOKEN.fullmatch(part.text("name"))
        ):
            return SecurityScheme(id_, "apiKey", part.text("name"), part.text("in"))
        case "http" if TOKEN.fullmatch(part.text("scheme")):
            return SecurityScheme(id_, "http", part.text("scheme").lower())
        case "basic":
            return SecurityScheme(id_, "http", "basic")
        case "oauth2" | "openIdConnect":
            return SecurityScheme(id_, "http", "bearer")
    return SecurityScheme(id_, "unknown")


class _OperationParser:
    """Reads one operation. Raises NoTool for anything that cannot be understood."""

    def __init__(
        self,
        document: Document,
        schemes: Mapping[str, SecurityScheme],
        path: str,
        item: Node,
        method: str,
    ) -> None:
        self._document, self._schemes = document, schemes
        self._path, self._item, self._method = path, item, method
        self._part = Node(item.file, item.node[method])
        self._keys = frozenset(
            (scheme.place, _folded(scheme.name, scheme.place))
            for scheme in schemes.values()
            if scheme.kind == "apiKey"
        )
        if not isinstance(self._part.node, dict) or not path.startswith("/"):
            raise NoTool("form", "it is not an operation, or its path does not begin with '/'")
        if any(unquote(step) in (".", "..") for step in re.split("[?#]", path)[0].split("/")):
            raise NoTool("form", "its path has a step '.' or '..', which leads to another path")

    def operation(self) -> ApiOperation:
        part = self._part
        parameter_nodes = self._parameters()
        if self._document.is_swagger:
            body = self._body_2(parameter_nodes)
            parameters = [
                self._parameter_2(node)
                for node in parameter_nodes
                if node.text("in") not in _IN_BODY
            ]
        else:
            body, parameters = self._body(), [self._parameter(node) for node in parameter_nodes]
        texts = dict.fromkeys(filter(None, (part.text("summary"), part.text("description"))))
        return ApiOperation(
            method=self._method.upper(),
            path=_encoded(self._path),
            id=part.text("operationId"),
            description="\n\n".join(texts) or f"{self._method.upper()} {self._path}",
            parameters=tuple(self._sent_parameters(parameters)),
            body=body,
            responses={
                status: self._response(node) for status, node in part.members("responses").items()
            },
            security=self._security(),
            server=self._server(),
            keys=self._keys,
        )

    def _parameters(self) -> list[Node]:
        """Return the operation's own parameters, and those of its path that it does not replace."""
        by_name: dict[tuple[str, str], Node] = {}
        for holder in (self._item, self._part):
            declared: dict[tuple[str, str], Node] = {}
            for parameter in map(self._document.resolved, holder.items("parameters")):
                name, place = parameter.text("name"), parameter.text("in")
                if not name or not place:
                    raise NoTool("form", "a parameter has no name, or does not say where it is")
                if place in ("header", "cookie") and not TOKEN.fullmatch(name):
                    raise NoTool("form", f"no {place} can be called {name!r:.60}")
                earlier = declared.setdefault((_folded(name, place), place), parameter)
                if earlier.text("name") != name:
                    raise NoTool("form", f"two of its headers are called {name!r:.60}")
                declared[_folded(name, place), place] = parameter
            by_name |= declared
        return list(by_name.values())

    def _sent_parameters(self, parameters: Iterable[ApiParameter]) -> Iterator[ApiParameter]:
        """Yield the parameters that arguments are sent as, without keys and what the sender fills
        in."""
        variables = set(VARIABLE.findall(self._path))
        for parameter in parameters:
            folded = _folded(parameter.name, parameter.place)
            is_ignored = parameter.place == "header" and folded in _IGNORED
            if is_ignored or (parameter.place, folded) in self._keys:
                continue
            if parameter.place == "path":
                if parameter.name not in variables:
                    continue
                variables.discard(parameter.name)
            yield parameter
        if variables:
            raise NoTool(
                "form", f"its path has {{{min(variables)}}}, which is not one of its parameters"
            )

    def _parameter(self, part: Node) -> ApiParameter:
        name, place = part.text("name"), _place_of(part)
        content = part.members("content")
        json_content = next((media for kind, media in content.items() if is_json(kind)), None)
        if content and json_content is None:
            raise NoTool("media type", f"the parameter {name!r:.60} is sent as {_names(content)}")
        style = part.text("style") or _STYLES[place][0]
        if style not in _STYLES[place]:
            raise NoTool("form", f"the parameter {name!r:.60} has the style {style!r:.20}")
        schema = (json_content or part).get("schema")
        return ApiParameter(
            name=name,
            place=place,
            required=part.flag("required") or place == "path",
            schema=schema or Node(part.file, {}),
            style=style,
            explode=part.flag("explode", style == "form"),
            reserved=part.flag("allowReserved"),
            as_json=json_content is not None,
            description=part.text("description"),
        )

    def _parameter_2(self, part: Node) -> ApiParameter:
        place = _place_of(part)
        style, explode = _style_of(part)
        schema = {key: value for key, value in part.node.items() if key in _SCHEMA_KEYWORDS}
        return ApiParameter(
            name=part.text("name"),
            place=place,
            required=part.flag("required") or place == "path",
            schema=Node(part.file, schema),
            style=style if place == "query" else _STYLES[place][0],
            explode=explode if place == "query" else False,
            description=part.text("description"),
        )

    def _body(self) -> ApiBody | None:
        part = self._document.resolved(self._part.get("requestBody") or Node(self._part.file, {}))
        content = part.members("content")
        if not content:
            return None
        kind = _preferred_type(content)
        schema, encoding = content[kind].get("schema"), content[kind].members("encoding")
        return ApiBody(kind, schema, part.flag("required"), part.text("description"), encoding)

    def _body_2(self, parameters: list[Node]) -> ApiBody | None:
        """Return the body of Swagger 2.0: one parameter `in: body`, or all those `in: formData`."""
        consumes = self._media_types("consumes")
        body_parameter = next(
            (parameter for parameter in parameters if parameter.text("in") == "body"), None
        )
        if body_parameter is not None:
            kind = _preferred_type(consumes or ["application/json"])
            return ApiBody(
                kind,
                body_parameter.get("schema"),
                body_parameter.flag("required"),
                body_parameter.text("description"),
            )
        fields = [parameter for parameter in parameters if parameter.text("in") == "formData"]
        if not fields:
            return None
        has_file = any(parameter.text("type") == "file" for parameter in fields)
        kind = _FORM[1] if has_file or _FORM[0] not in (consumes or _FORM) else _FORM[0]
        keywords = _SCHEMA_KEYWORDS | {"description"}
        properties = {
            parameter.text("name"): {
                key: value for key, value in parameter.node.items() if key in keywords
            }
            for parameter in fields
        }
        required = [parameter.text("name") for parameter in fields if parameter.flag("required")]
        schema = {"type": "object", "properties": properties, "required": required}
        styles = {parameter.text("name"): _style_of(parameter) for parameter in fields}
        encoding = {
            name: Node(self._part.file, {"style": style, "explode": explode})
            for name, (style, explode) in styles.items()
        }
        return ApiBody(kind, Node(self._part.file, schema), bool(required), encoding=encoding)

    def _response(self, response: Node) -> ApiResponse:
        part = self._document.resolved(response)
        if self._document.is_swagger:
            schema = part.get("schema")
            kinds = self._media_types("produces") or ["application/json"]
            return ApiResponse(tuple(map(_base_type, kinds)) if schema else (), schema, schema)
        content = part.members("content")
        json_content = next((media for kind, media in content.items() if is_json(kind)), None)
        text_content = next((media for kind, media in content.items() if is_text(kind)), None)
        return ApiResponse(
            tuple(map(_base_type, content)),
            json_content.get("schema") if json_content else None,
            text_content.get("schema") if text_content else None,
        )

    def _media_types(self, key: str) -> list[str]:
        entries = self._part.items(key) or self._document.root.items(key)
        return [entry.node for entry in entries if isinstance(entry.node, str)]

    def _security(self) -> Security:
        has_own = isinstance(self._part.node.get("security"), list)
        requirements = (self._part if has_own else self._document.root).items("security")
        names = [
            requirement.node if isinstance(requirement.node, dict) else {}
            for requirement in requirements
        ]
        unknown = SecurityScheme("", "unknown")
        return tuple(
            tuple(self._schemes.get(name, unknown) for name in requirement) for requirement in names
        )

    def _server(self) -> str:
        """Return the URL of the operation's own server, with the defaults of its variables."""
        for holder in (self._part, self._item):
            for server in holder.items("servers"):
                url = server.text("url")
                for name, variable in server.members("variables").items():
                    url = url.replace(f"{{{name}}}", variable.text("default"))
                if "?" in url or "#" in url:
                    raise NoTool("form", "its server has a query or a fragment")
                try:
                    _ = urlsplit(url).port
                except ValueError:
                    raise NoTool("form", "its server is not a URL") from None
                return url
        return ""


def _encoded(path: str) -> str:
    """Return a path in the encoding of a URL. Raises NoTool.

    A fragment is left out, since it is never sent. Variables stay until a call gives their values.
    """
    parts = re.split(r"(\{[^{}]+\})", path.partition("#")[0])
    try:
        return "".join(
            part if index % 2 else quote(part, safe=_SAFE_IN_PATHS)
            for index, part in enumerate(parts)
        )
    except UnicodeEncodeError:
        raise NoTool(
            "form", "its path holds a lone surrogate, which cannot be sent in a request"
        ) from None


def _place_of(part: Node) -> Place:
    place = part.text("in")
    if place not in _STYLES:
        raise NoTool("form", f"the parameter {part.text('name')!r:.60} is in {place!r:.20}")
    return cast("Place", place)


def _style_of(part: Node) -> tuple[str, bool]:
    collection_format = part.text("collectionFormat") or "csv"
    if collection_format not in _COLLECTIONS:
        raise NoTool("form", f"the collectionFormat {collection_format!r:.20} cannot be sent")
    return _COLLECTIONS[collection_format]


def _folded(name: str, place: str) -> str:
    return name.lower() if place == "header" else name


def _base_type(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


def is_json(media_type: str) -> bool:
    return _JSON.fullmatch(_base_type(media_type)) is not None


def is_text(media_type: str) -> bool:
    kind = _base_type(media_type)
    return kind.startswith("text/") and not kind.endswith(("json", "xml"))


def kind_of(media_type: str) -> AnswerKind:
    """Return the kind of an answer with this media type. XML is text without a schema."""
    if is_json(media_type):
        return "json"
    return "text" if is_xml(media_type) or is_text(media_type) else "bytes"


def is_xml(media_type: str) -> bool:
    return _base_type(media_type).endswith(("/xml", "+xml"))


def is_bytes(media_type: str) -> bool:
    kind = _base_type(media_type)
    return kind.startswith(("image/", "audio/", "video/")) or kind in _BYTES


_BYTES = ("application/octet-stream", "application/pdf", "application/zip", "application/x-tar")


def _preferred_type(content: Mapping[str, Node] | list[str]) -> str:
    """Return the media type in which a body is sent: JSON is preferred to forms, then text, then
    bytes."""
    for matches in (is_json, lambda kind: _base_type(kind) in _FORM, is_text, is_bytes):
        fitting = [
            kind for kind in content if matches(kind) and kind.isascii() and kind.isprintable()
        ]
        if fitting:
            exact = [
                candidate
                for candidate in fitting
                if _base_type(candidate) in ("application/json", *_FORM)
            ]
            return (exact or fitting)[0]
    raise NoTool("media type", f"its body is sent as {_names(content)}")


def _names(content: Mapping[str, Node] | list[str]) -> str:
    return ", ".join(sorted(content))[:120]
