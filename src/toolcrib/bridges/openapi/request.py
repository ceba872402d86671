"""From the arguments of a call to the request that is sent, without any key.

Rule: no argument leaves the place that the document gives it. Everything that has a meaning in a
URL, a header or a cookie is encoded, and what cannot be encoded (a path of `..`, a line break in a
header) is refused. So is an object whose members would be sent under the name of something else,
and a value in a list that contains the separator, if its style cannot encode that. No two values
give the same request: a value that has no text of its own where it is sent is refused. If it is a
whole argument, or a field of a form, it is left out, unless the API would use something else in its
place (a `default` of its schema).
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import ClassVar, TypeAlias, cast
from urllib.parse import quote, unquote, unquote_plus

import msgspec

from toolcrib.bridges.openapi.definition import (
    BodyPlan,
    Defaults,
    FormField,
    RequestPlan,
    SentArgument,
)
from toolcrib.bridges.openapi.forms import SAFE, TOKEN, Security, is_json
from toolcrib.errors import ToolError
from toolcrib.schema.derive.plain import same_json
from toolcrib.schema.references import pointer_of
from toolcrib.schema.validator import Validator, Violation
from toolcrib.values.call import ValidatorInfo
from toolcrib.values.json import JsonValue, Redacted, is_whole, json_bytes
from toolcrib.values.typed import Checked

Pairs: TypeAlias = tuple[tuple[str, str], ...]
_Encode: TypeAlias = Callable[[str], str]

_DELIMITERS = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}
_IN_PATHS = {"label": ".", "matrix": ";"}
"""The separator of a list in a query and in an exploded path, where it is not a comma."""
_OF_RANGES = {"json": "application/json", "text": "text/plain", "bytes": "application/octet-stream"}
"""The media type of a body whose document says only `*/*`, `text/*` or `image/*`."""
_LIST, _NO_WORD = re.compile(r"[\[\0]"), re.compile(r"[\W_]")
_NO_NAME = re.compile(r"\\|%(?:22|0[AD])", re.IGNORECASE)
"""What the name of a part of a form may not contain. Servers that read quoted pairs lose a
backslash, and the others stand for escaped characters."""
_RESERVED = ":/?[]@!$'()*,;="  # without characters that end a value in a query
_OTHER_CHARSET = re.compile(
    r";\s*charset\s*=\s*(?!\"?utf-8\"?\s*(?:;|$))(?:\"[^\"]*\"|[^;]*)", re.IGNORECASE
)
_encoded: _Encode = partial(quote, safe="")


class ApiRequest(Checked, Redacted, msgspec.Struct, frozen=True, kw_only=True):
    """A request of an operation, without its keys.

    `path` begins with `/` and is encoded, with its query. `server` is the URL that the operation
    names for itself, or "". `security` has alternatives, one of which is to be added. Each is a
    tuple of schemes whose keys are sent together, and an empty one allows a request without keys.
    If there are no alternatives, the request needs no key.
    """

    redacted: ClassVar[tuple[str, ...]] = ("path", "headers", "cookies", "body")

    method: str
    path: str
    server: str = ""
    headers: Pairs = ()
    cookies: Pairs = ()
    body: bytes | None = None
    security: Security = ()


class Sendable:
    """Judges the arguments of one operation, by their schema and by whether they can be sent.

    Arguments that cannot be sent are reported before anybody is asked to approve them.
    """

    __slots__ = ("_plan", "_schema")

    def __init__(self, schema: Validator, plan: RequestPlan) -> None:
        self._schema, self._plan = schema, plan

    @property
    def info(self) -> ValidatorInfo:
        return self._schema.info

    def is_valid(self, value: object, /) -> bool:
        return self._schema.is_valid(value) and self._fault(value) is None

    def violations(self, value: object, /) -> tuple[Violation, ...]:
        if not self._schema.is_valid(value):
            return self._schema.violations(value)
        fault = self._fault(value)
        if fault is None:
            return ()
        path = fault.path if isinstance(fault, _LeftOutError) else ""
        return (Violation(path, "request", fault.safe_text),)

    def _fault(self, value: object) -> ToolError | None:
        try:
            request_of(self._plan, cast("Mapping[str, JsonValue]", value), "")
        except ToolError as error:
            return error
        return None


class _LeftOutError(ToolError):
    """The API uses something else in place of the argument at `path`, which has no text."""

    def __init__(self, *steps: str) -> None:
        super().__init__(
            f"{steps[-1]} cannot be null or empty, because it would be left out of the "
            "request and the API would use its default. Give a value, or leave it out to use "
            "that default"
        )
        self.path = pointer_of(steps)


def request_of(plan: RequestPlan, arguments: Mapping[str, JsonValue], key: str) -> ApiRequest:
    """Return the request of a call. `key` is its idempotency key. Raises ToolError for an argument
    that cannot be sent where it belongs."""
    arguments = {name: _as_shown(value) for name, value in arguments.items()}
    path, _, fixed_query = plan.path.partition("?")
    query_parameters = [one for one in plan.parameters if one.place == "query"]
    given_names = {one.name for one in query_parameters if arguments.get(one.argument) is not None}
    fixed = filter(None, fixed_query.split("&"))
    query = [one for one in fixed if unquote_plus(one.partition("=")[0]) not in given_names]
    headers: dict[str, str] = {"Accept": plan.accept}
    cookies: list[tuple[str, str]] = []
    names = {place: _Names(reserved) for place, reserved in plan.reserved_names.items()}
    for parameter in plan.parameters:
        value = arguments.get(parameter.argument)
        if parameter.argument not in arguments and not parameter.required:
            continue
        if parameter.place == "path":
            variable, segment = f"{{{parameter.name}}}", _path(parameter, value, names["path"])
            path = path.replace(variable, segment)
            query = [one.replace(variable, segment) for one in query]
        elif parameter.place == "query":
            query += _joined_pairs(parameter, value, names["query"], plan.defaults)
        elif parameter.place == "cookie":
            cookies += _sent_pairs(parameter, value, _encoded, names["cookie"], plan.defaults)
        elif value is None and not parameter.required:
            _check_left_out(
                value, plan.defaults.get((parameter.place, parameter.name), ()), parameter.argument
            )
        else:
            headers[parameter.name] = _header(parameter, value)
    if any(unquote(step) in (".", "..") for step in path.split("/")):
        raise ToolError("an argument that is part of the address cannot be '.' or '..'")
    if plan.method not in SAFE:
        headers["Idempotency-Key"] = key
    body = None
    if plan.body is not None and plan.body.argument in arguments:
        value = arguments[plan.body.argument]
        headers["Content-Type"], body = _body(plan.body, value, plan.defaults)
    return ApiRequest(
        method=plan.method,
        path=f"{path}?{'&'.join(query)}" if query else path,
        server=plan.server,
        headers=tuple(headers.items()),
        cookies=tuple(cookies),
        body=body,
        security=plan.security,
    )


def _as_shown(value: JsonValue) -> JsonValue:
    """Return a value with its numbers in the form that an approver is shown: 7.0 is 7."""
    if isinstance(value, list):
        return [_as_shown(child) for child in value]
    if isinstance(value, dict):
        return {name: _as_shown(child) for name, child in value.items()}
    return int(value) if isinstance(value, float) and is_whole(value) else value


# The styles of https://spec.openapis.org/oas/v3.1.1.html#style-values. What they leave open is sent
# in the form that most servers read: an object within an object as JSON text, a list in a
# `deepObject` as its name, repeated.


def _text(argument: str, value: JsonValue) -> str:
    """Return the text of a single value: a string unchanged, anything else as JSON. Raises
    ToolError."""
    if value is None:
        raise ToolError(
            f"{argument} cannot be or hold null: it is sent as text, which cannot express null"
        )
    return value if isinstance(value, str) else json_bytes(value).decode()


def _texts(
    parameter: SentArgument, value: JsonValue, encode: _Encode, delimiter: str, *, explode: bool
) -> list[str]:
    """Return the values of a list, or the names and values of an object: `a`, `1`, or exploded
    `a=1`.

    Raises ToolError for a value that still contains the delimiter after encoding.
    """
    if isinstance(value, list):
        texts = [encode(_text(parameter.argument, child)) for child in value]
        if texts == [""]:
            raise ToolError(
                f"{parameter.argument} cannot hold just one empty string, which would be sent as "
                "an empty list"
            )
    elif isinstance(value, dict):
        members = [
            (encode(name), encode(_text(parameter.argument, child)))
            for name, child in value.items()
        ]
        if explode and any("=" in name for name, _ in members):
            raise ToolError(f"a member of {parameter.argument} cannot have '=' in its name")
        texts = [text for member in members for text in member]
    else:
        return [encode(_text(parameter.argument, value))]
    if any(delimiter in text for text in texts):
        raise ToolError(
            f"the values in {parameter.argument} are sent with {unquote(delimiter)!r} between them, and"
            " cannot hold it"
        )
    if explode and isinstance(value, dict):
        return [f"{name}={text}" for name, text in zip(texts[::2], texts[1::2], strict=True)]
    return texts


class _Names:
    """The names in one place of a request.

    With `explode`, an object is sent under the names of its members. None of them may be that of
    another parameter, field or key, or of a member of another object.

    Names are compared in the way of the most lenient servers: without regard to case, without
    everything from a `[` on, and with `_` for all characters that are neither letters nor digits.
    """

    def __init__(self, reserved: Iterable[str]) -> None:
        self._reserved = reserved
        self._owners: dict[str, str] = {}

    def of(
        self, parameter: SentArgument, pairs: Iterable[tuple[str, str]]
    ) -> Iterator[tuple[str, str]]:
        """Yield the pairs of one argument. Raises ToolError."""
        for name, text in pairs:
            if name != parameter.name:
                normalize = str.casefold if parameter.style == "deepObject" else _normalized
                self._check(parameter.argument, parameter.name, name, normalize)
            if parameter.place == "cookie" and not TOKEN.fullmatch(name):
                raise ToolError(
                    f"a member of {parameter.argument} has a name that no cookie can have"
                )
            yield name, text

    def undeclared(self, argument: str, name: str) -> None:
        """Reserve a name that a model gave to a whole field. Raises ToolError."""
        self._check(argument, name, name, _normalized)

    def _check(self, argument: str, owner: str, name: str, normalize: _Encode) -> None:
        message, normalized = f"a member of {argument} would be sent as", normalize(name)
        clash = next(
            (candidate for candidate in self._reserved if normalize(candidate) == normalized), None
        )
        if clash is not None:
            raise ToolError(f"{message} {clash!r}, which is another")
        if self._owners.setdefault(normalized, owner) != owner:
            raise ToolError(f"{message} one of another object is")


def _normalized(name: str) -> str:
    start = _LIST.split(name.strip().casefold(), maxsplit=1)[0]
    return _NO_WORD.sub("_", start or name)


def _path(parameter: SentArgument, value: JsonValue, names: _Names) -> str:
    content = json_bytes(value).decode() if parameter.as_json else value
    delimiter = _IN_PATHS.get(parameter.style, ",") if parameter.explode else ","
    texts = _texts(parameter, content, _encoded, delimiter, explode=parameter.explode)
    if not any(texts):
        raise ToolError(f"{parameter.argument} cannot be empty: it is part of the address")
    if parameter.style == "label":
        return "." + delimiter.join(texts)
    if parameter.style == "matrix":
        name = _encoded(parameter.name)
        if parameter.explode and isinstance(content, dict):
            list(names.of(parameter, ((member, "") for member in content)))
            return "".join(f";{text}" for text in texts)
        if parameter.explode:
            return "".join(f";{name}={text}" for text in texts)
        return f";{name}={','.join(texts)}"
    return ",".join(texts)


def _header(parameter: SentArgument, value: JsonValue) -> str:
    content = json_bytes(value).decode() if parameter.as_json else value
    texts = _texts(parameter, content, str, ",", explode=parameter.explode)
    if not all(text.isascii() and text.isprintable() for text in texts):
        raise ToolError(f"{parameter.argument} is sent in a header: use printable ASCII characters")
    if any(text != text.strip() for text in texts):
        raise ToolError(
            f"{parameter.argument} is sent in a header, which loses spaces at the beginning and the end"
        )
    return ",".join(texts)


def _joined_pairs(
    parameter: SentArgument, value: JsonValue, names: _Names, defaults: Defaults
) -> list[str]:
    """Return the members of a query, or of a form in a body."""
    encode = partial(quote, safe=_RESERVED) if parameter.reserved else _encoded
    pairs = _sent_pairs(parameter, value, encode, names, defaults)
    return [f"{_encoded(name)}={text}" for name, text in pairs]


def _sent_pairs(
    parameter: SentArgument, value: JsonValue, encode: _Encode, names: _Names, defaults: Defaults
) -> list[tuple[str, str]]:
    """Return the names, which are not encoded, with their encoded values, without what is left out."""
    is_null = value is None and not parameter.required
    pairs = [] if is_null else [*names.of(parameter, _pairs(parameter, value, encode))]
    if not pairs:
        steps = (parameter.within, parameter.name) if parameter.within else (parameter.argument,)
        _check_left_out(value, defaults.get((parameter.place, parameter.name), ()), *steps)
    return pairs


def _check_left_out(value: JsonValue, defaults: Iterable[JsonValue], *steps: str) -> None:
    """Raise ToolError if the API uses something else in place of what is left out, at the end of
    this path into the arguments."""
    if not all(same_json(default, value) for default in defaults):
        raise _LeftOutError(*steps)


def _pairs(parameter: SentArgument, value: JsonValue, encode: _Encode) -> Iterator[tuple[str, str]]:
    """Yield the names, which are not encoded, with their encoded values."""
    if parameter.as_json:
        yield parameter.name, encode(json_bytes(value).decode())
    elif parameter.style == "deepObject":
        for name, text in _deep_pairs(parameter, parameter.name, value):
            yield name, encode(text)
    elif isinstance(value, list) and parameter.explode:
        for child in value:
            yield parameter.name, encode(_text(parameter.argument, child))
    elif isinstance(value, dict) and parameter.explode:
        for name, child in value.items():
            _check_not_lost(parameter, child == [])
            for element in child if isinstance(child, list) else [child]:
                yield name, encode(_text(parameter.argument, element))
    else:
        delimiter = _DELIMITERS.get(parameter.style, ",")
        delimiter = unquote(delimiter) if encode is str else delimiter
        yield (
            parameter.name,
            delimiter.join(_texts(parameter, value, encode, delimiter, explode=False)),
        )


def _deep_pairs(parameter: SentArgument, name: str, value: JsonValue) -> Iterator[tuple[str, str]]:
    _check_not_lost(parameter, value in ([], {}) and name != parameter.name)
    if isinstance(value, dict):
        for key, child in value.items():
            if "[" in key or "]" in key:
                raise ToolError(
                    f"a member of {parameter.argument} cannot have a bracket in its name"
                )
            yield from _deep_pairs(parameter, f"{name}[{key}]", child)
    elif isinstance(value, list):
        if any(isinstance(child, list | dict) for child in value):
            raise ToolError(f"a list in {parameter.argument} cannot hold lists or objects")
        for child in value:
            yield name, _text(parameter.argument, child)
    else:
        yield name, _text(parameter.argument, value)


def _check_not_lost(parameter: SentArgument, is_lost: bool) -> None:
    if is_lost:
        raise ToolError(
            f"{parameter.argument} cannot hold empty values, which would be left out of the request"
        )


# Bodies.


def _body(plan: BodyPlan, value: JsonValue, defaults: Defaults) -> tuple[str, bytes]:
    media_type = _OF_RANGES.get(plan.kind, "") if "*" in plan.media_type else plan.media_type
    if plan.kind == "json":
        return _as_utf8(media_type), json_bytes(value)
    if plan.kind == "text":
        media_type = f"{media_type.partition(';')[0]}; charset=utf-8"
        content = _text(plan.argument, value).encode()
    elif plan.kind == "bytes":
        content = _decoded(plan.argument, value)
    elif not isinstance(value, dict):
        raise ToolError(f"{plan.argument} is sent as a form, so it must be an object")
    else:
        media_type, content = _form(plan, value, defaults)
    if not content:
        _check_left_out(value, defaults.get(("request", plan.argument), ()), plan.argument)
    return media_type, content


def _form(plan: BodyPlan, fields: Mapping[str, JsonValue], defaults: Defaults) -> tuple[str, bytes]:
    """Return the content type and the bytes of a form, which is sent like a query or in parts."""
    names = _Names(plan.fields)
    for name in fields:
        if name not in plan.fields:
            names.undeclared(plan.argument, name)
    if plan.kind == "multipart":
        return _multipart(plan, fields, names, defaults)
    members = []
    for name, value in fields.items():
        field = plan.fields.get(name, FormField())
        if field.is_bytes and (value is not None or field.required):
            members.append(f"{_encoded(name)}={quote(_decoded(name, value), safe='')}")
        else:
            members += _joined_pairs(_field_parameter(plan, name), value, names, defaults)
    return _as_utf8(plan.media_type), "&".join(members).encode("ascii")


def _as_utf8(media_type: str) -> str:
    """Return a media type without another charset, since UTF-8 is sent."""
    return _OTHER_CHARSET.sub("", media_type)


def _field_parameter(plan: BodyPlan, name: str) -> SentArgument:
    field = plan.fields.get(name, FormField())
    return SentArgument(
        argument=name if name in plan.fields else plan.argument,
        name=name,
        place="body",
        style=field.style,
        explode=field.explode,
        as_json=bool(field.media_type) and is_json(field.media_type),
        required=field.required,
        within=plan.argument,
    )


def _multipart(
    plan: BodyPlan, fields: Mapping[str, JsonValue], names: _Names, defaults: Defaults
) -> tuple[str, bytes]:
    """Return a form in parts. A list becomes several parts, and everything but strings is sent as
    JSON, unless its field has a style."""
    boundary = secrets.token_hex(16)
    body = bytearray()
    for name, value in fields.items():
        field, parameter = plan.fields.get(name, FormField()), _field_parameter(plan, name)
        if isinstance(value, list) and None in value and not field.has_style:
            raise ToolError(
                f"{name} cannot hold null, which would be sent in the same way as null instead of "
                "the list"
            )
        parts = [
            (name, part_value) for part_value in (value if isinstance(value, list) else [value])
        ]
        if value is None and not parameter.as_json:
            parts = [] if not field.required else [(name, _text(name, value))]
        elif field.has_style and value is not None:
            parts, field = [*names.of(parameter, _pairs(parameter, value, str))], FormField()
        if not parts:
            _check_left_out(value, defaults.get((parameter.place, name), ()), plan.argument, name)
        if any(_NO_NAME.search(part_name) for part_name, _ in parts):
            raise ToolError(
                f"{plan.argument} cannot hold {name!r}: the name of a part may not contain a "
                "backslash or %22"
            )
        for part_name, part_value in parts:
            body += f"--{boundary}\r\n".encode() + _part(part_name, field, part_value) + b"\r\n"
    if not body:
        whole: JsonValue = dict(fields)
        _check_left_out(whole, defaults.get(("request", plan.argument), ()), plan.argument)
    body += f"--{boundary}--\r\n".encode()
    return f"multipart/form-data; boundary={boundary}", bytes(body)


def _part(name: str, field: FormField, value: JsonValue) -> bytes:
    """Return one part. Names are escaped as in https://html.spec.whatwg.org/#multipart-form-data."""
    escaped = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    headers = f'Content-Disposition: form-data; name="{escaped}"'
    media_type, content = field.media_type, b""
    if field.is_bytes:
        headers += f'; filename="{escaped}"'
        media_type, content = media_type or "application/octet-stream", _decoded(name, value)
    elif isinstance(value, str):
        content = value.encode()
    else:
        media_type = media_type or "application/json"
        content = json_bytes(value) if is_json(media_type) else _text(name, value).encode()
    media_type = media_type if field.is_bytes else _as_utf8(media_type)
    if media_type.isprintable() and media_type.isascii() and media_type:
        headers += f"\r\nContent-Type: {media_type}"
    return f"{headers}\r\n\r\n".encode() + content


def _decoded(name: str, value: JsonValue) -> bytes:
    try:
        return base64.b64decode(_text(name, value), validate=True)
    except (binascii.Error, ValueError):
        raise ToolError(f"{name} must be bytes in base64") from None
