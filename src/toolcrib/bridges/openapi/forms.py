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
_OF_SCHEMAS = frozenset(
    ("type", "format", "items", "default", "enum", "maximum", "exclusiveMaximum", "minimum",
     "exclusiveMinimum", "maxLength", "minLength", "pattern", "maxItems", "minItems", "uniqueItems",
     "multipleOf")
)  # fmt: skip
"""What a Swagger 2.0 parameter says about its value, in addition to its name."""
_JSON = re.compile(r"(?:.*[/+])?(?:application)?json|\*/\*|application/\*", re.IGNORECASE)
_FORM = ("application/x-www-form-urlencoded", "multipart/form-data")
_IN_PATHS = "/%:@!$&'()*+,;=~?"
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
            found = document.resolved(item)
            methods = [one for one in METHODS if found.get(one) is not None]
        except NoTool as unusable:
            yield path, unusable
            continue
        for method in methods:
            label = f"{method.upper()} {path}"
            try:
                yield label, _Reading(document, schemes, path, found, method).operation()
            except NoTool as unusable:
                yield label, unusable


def security_schemes(document: Document) -> dict[str, SecurityScheme]:
    """Return the schemes of a document, by the names that its operations use."""
    above = document.root if document.is_swagger else document.root.get("components")
    name = "securityDefinitions" if document.is_swagger else "securitySchemes"
    found = above.members(name) if above else {}
    made = {}
    for id_, part in found.items():
        try:
            made[id_] = _scheme(id_, document.resolved(part))
        except NoTool:
            made[id_] = SecurityScheme(id_, "unknown")
    return made


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


class _Reading:
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
            (one.place, _folded(one.name, one.place))
            for one in schemes.values()
            if one.kind == "apiKey"
        )
        if not isinstance(self._part.node, dict) or not path.startswith("/"):
            raise NoTool("form", "it is not an operation, or its path does not begin with '/'")
        if any(unquote(step) in (".", "..") for step in re.split("[?#]", path)[0].split("/")):
            raise NoTool("form", "its path has a step '.' or '..', which leads to another path")

    def operation(self) -> ApiOperation:
        part = self._part
        found = self._parameters()
        if self._document.is_swagger:
            body = self._body_2(found)
            parameters = [self._parameter_2(one) for one in found if one.text("in") not in _IN_BODY]
        else:
            body, parameters = self._body(), [self._parameter(one) for one in found]
        said = dict.fromkeys(filter(None, (part.text("summary"), part.text("description"))))
        return ApiOperation(
            method=self._method.upper(),
            path=_encoded(self._path),
            id=part.text("operationId"),
            description="\n\n".join(said) or f"{self._method.upper()} {self._path}",
            parameters=tuple(self._sent(parameters)),
            body=body,
            responses={
                status: self._response(one) for status, one in part.members("responses").items()
            },
            security=self._security(),
            server=self._server(),
            keys=self._keys,
        )

    def _parameters(self) -> list[Node]:
        """Return the operation's own parameters, and those of its path that it does not replace."""
        found: dict[tuple[str, str], Node] = {}
        for above in (self._item, self._part):
            own: dict[tuple[str, str], Node] = {}
            for one in map(self._document.resolved, above.items("parameters")):
                name, place = one.text("name"), one.text("in")
                if not name or not place:
                    raise NoTool("form", "a parameter has no name, or does not say where it is")
                if place in ("header", "cookie") and not TOKEN.fullmatch(name):
                    raise NoTool("form", f"no {place} can be called {name!r:.60}")
                before = own.setdefault((_folded(name, place), place), one)
                if before.text("name") != name:
                    raise NoTool("form", f"two of its headers are called {name!r:.60}")
                own[_folded(name, place), place] = one
            found |= own
        return list(found.values())

    def _sent(self, parameters: Iterable[ApiParameter]) -> Iterator[ApiParameter]:
        """Yield the parameters that arguments are sent as, without keys and what the sender fills
        in."""
        variables = set(VARIABLE.findall(self._path))
        for one in parameters:
            folded = _folded(one.name, one.place)
            ignored = one.place == "header" and folded in _IGNORED
            if ignored or (one.place, folded) in self._keys:
                continue
            if one.place == "path":
                if one.name not in variables:
                    continue
                variables.discard(one.name)
            yield one
        if variables:
            raise NoTool(
                "form", f"its path has {{{min(variables)}}}, which is not one of its parameters"
            )

    def _parameter(self, part: Node) -> ApiParameter:
        name, place = part.text("name"), _place_of(part)
        content = part.members("content")
        as_json = next((one for kind, one in content.items() if is_json(kind)), None)
        if content and as_json is None:
            raise NoTool("media type", f"the parameter {name!r:.60} is sent as {_names(content)}")
        style = part.text("style") or _STYLES[place][0]
        if style not in _STYLES[place]:
            raise NoTool("form", f"the parameter {name!r:.60} has the style {style!r:.20}")
        schema = (as_json or part).get("schema")
        return ApiParameter(
            name=name,
            place=place,
            required=part.flag("required") or place == "path",
            schema=schema or Node(part.file, {}),
            style=style,
            explode=part.flag("explode", style == "form"),
            reserved=part.flag("allowReserved"),
            as_json=as_json is not None,
            description=part.text("description"),
        )

    def _parameter_2(self, part: Node) -> ApiParameter:
        place = _place_of(part)
        style, explode = _collection(part)
        schema = {key: value for key, value in part.node.items() if key in _OF_SCHEMAS}
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
        kind = _chosen(content)
        schema, encoding = content[kind].get("schema"), content[kind].members("encoding")
        return ApiBody(kind, schema, part.flag("required"), part.text("description"), encoding)

    def _body_2(self, parameters: list[Node]) -> ApiBody | None:
        """Return the body of Swagger 2.0: one parameter `in: body`, or all those `in: formData`."""
        consumes = self._media_types("consumes")
        whole = next((one for one in parameters if one.text("in") == "body"), None)
        if whole is not None:
            kind = _chosen(consumes or ["application/json"])
            return ApiBody(
                kind, whole.get("schema"), whole.flag("required"), whole.text("description")
            )
        fields = [one for one in parameters if one.text("in") == "formData"]
        if not fields:
            return None
        has_file = any(one.text("type") == "file" for one in fields)
        kind = _FORM[1] if has_file or _FORM[0] not in (consumes or _FORM) else _FORM[0]
        kept = _OF_SCHEMAS | {"description"}
        properties = {
            one.text("name"): {key: value for key, value in one.node.items() if key in kept}
            for one in fields
        }
        required = [one.text("name") for one in fields if one.flag("required")]
        schema = {"type": "object", "properties": properties, "required": required}
        styles = {one.text("name"): _collection(one) for one in fields}
        encoding = {
            name: Node(self._part.file, {"style": style, "explode": explode})
            for name, (style, explode) in styles.items()
        }
        return ApiBody(kind, Node(self._part.file, schema), bool(required), encoding=encoding)

    def _response(self, given: Node) -> ApiResponse:
        part = self._document.resolved(given)
        if self._document.is_swagger:
            schema = part.get("schema")
            kinds = self._media_types("produces") or ["application/json"]
            return ApiResponse(tuple(map(_plain, kinds)) if schema else (), schema, schema)
        content = part.members("content")
        as_json = next((one for kind, one in content.items() if is_json(kind)), None)
        as_text = next((one for kind, one in content.items() if is_text(kind)), None)
        return ApiResponse(
            tuple(map(_plain, content)),
            as_json.get("schema") if as_json else None,
            as_text.get("schema") if as_text else None,
        )

    def _media_types(self, key: str) -> list[str]:
        own = self._part.items(key) or self._document.root.items(key)
        return [one.node for one in own if isinstance(one.node, str)]

    def _security(self) -> Security:
        own = isinstance(self._part.node.get("security"), list)
        given = (self._part if own else self._document.root).items("security")
        names = [each.node if isinstance(each.node, dict) else {} for each in given]
        unknown = SecurityScheme("", "unknown")
        return tuple(tuple(self._schemes.get(name, unknown) for name in each) for each in names)

    def _server(self) -> str:
        """Return the URL of the operation's own server, with the defaults of its variables."""
        for above in (self._part, self._item):
            for server in above.items("servers"):
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
            part if at % 2 else quote(part, safe=_IN_PATHS) for at, part in enumerate(parts)
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


def _collection(part: Node) -> tuple[str, bool]:
    said = part.text("collectionFormat") or "csv"
    if said not in _COLLECTIONS:
        raise NoTool("form", f"the collectionFormat {said!r:.20} cannot be sent")
    return _COLLECTIONS[said]


def _folded(name: str, place: str) -> str:
    return name.lower() if place == "header" else name


def _plain(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()


def is_json(media_type: str) -> bool:
    return _JSON.fullmatch(_plain(media_type)) is not None


def is_text(media_type: str) -> bool:
    kind = _plain(media_type)
    return kind.startswith("text/") and not kind.endswith(("json", "xml"))


def kind_of(media_type: str) -> AnswerKind:
    """Return the kind of an answer with this media type. XML is text without a schema."""
    if is_json(media_type):
        return "json"
    return "text" if is_xml(media_type) or is_text(media_type) else "bytes"


def is_xml(media_type: str) -> bool:
    return _plain(media_type).endswith(("/xml", "+xml"))


def is_bytes(media_type: str) -> bool:
    kind = _plain(media_type)
    return kind.startswith(("image/", "audio/", "video/")) or kind in _BYTES


_BYTES = ("application/octet-stream", "application/pdf", "application/zip", "application/x-tar")


def _chosen(content: Mapping[str, Node] | list[str]) -> str:
    """Return the media type in which a body is sent: JSON is preferred to forms, then text, then
    bytes."""
    for wanted in (is_json, lambda kind: _plain(kind) in _FORM, is_text, is_bytes):
        fitting = [
            kind for kind in content if wanted(kind) and kind.isascii() and kind.isprintable()
        ]
        if fitting:
            exact = [one for one in fitting if _plain(one) in ("application/json", *_FORM)]
            return (exact or fitting)[0]
    raise NoTool("media type", f"its body is sent as {_names(content)}")


def _names(content: Mapping[str, Node] | list[str]) -> str:
    return ", ".join(sorted(content))[:120]
