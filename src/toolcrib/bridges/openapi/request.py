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
from toolcrib.values.json import JsonValue, Veiled, is_whole, json_bytes
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


class ApiRequest(Checked, Veiled, msgspec.Struct, frozen=True, kw_only=True):
    """A request of an operation, without its keys.

    `path` begins with `/` and is encoded, with its query. `server` is the URL that the operation
    names for itself, or "". `security` has alternatives, one of which is to be added. Each is a
    tuple of schemes whose keys are sent together, and an empty one allows a request without keys.
    If there are no alternatives, the request needs no key.
    """

    veiled: ClassVar[tuple[str, ...]] = ("path", "headers", "cookies", "body")

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
    path, _, asked = plan.path.partition("?")
    asking = [one for one in plan.parameters if one.place == "query"]
    given = {one.name for one in asking if arguments.get(one.argument) is not None}
    fixed = filter(None, asked.split("&"))
    query = [one for one in fixed if unquote_plus(one.partition("=")[0]) not in given]
    headers: dict[str, str] = {"Accept": plan.accept}
    cookies: list[tuple[str, str]] = []
    names = {place: _Names(taken) for place, taken in plan.taken.items()}
    for sent in plan.parameters:
        value = arguments.get(sent.argument)
        if sent.argument not in arguments and not sent.required:
            continue
        if sent.place == "path":
            variable, told = f"{{{sent.name}}}", _path(sent, value, names["path"])
            path = path.replace(variable, told)
            query = [one.replace(variable, told) for one in query]
        elif sent.place == "query":
            query += _joined(sent, value, names["query"], plan.defaults)
        elif sent.place == "cookie":
            cookies += _named(sent, value, _encoded, names["cookie"], plan.defaults)
        elif value is None and not sent.required:
            _check_left_out(value, plan.defaults.get((sent.place, sent.name), ()), sent.argument)
        else:
            headers[sent.name] = _header(sent, value)
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
        return [_as_shown(each) for each in value]
    if isinstance(value, dict):
        return {name: _as_shown(each) for name, each in value.items()}
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
    sent: SentArgument, value: JsonValue, encode: _Encode, delimiter: str, *, explode: bool
) -> list[str]:
    """Return the values of a list, or the names and values of an object: `a`, `1`, or exploded
    `a=1`.

    Raises ToolError for a value that still contains the delimiter after encoding.
    """
    if isinstance(value, list):
        texts = [encode(_text(sent.argument, each)) for each in value]
        if texts == [""]:
            raise ToolError(
                f"{sent.argument} cannot hold just one empty string, which would be sent as "
                "an empty list"
            )
    elif isinstance(value, dict):
        members = [
            (encode(name), encode(_text(sent.argument, each))) for name, each in value.items()
        ]
        if explode and any("=" in name for name, _ in members):
            raise ToolError(f"a member of {sent.argument} cannot have '=' in its name")
        texts = [text for member in members for text in member]
    else:
        return [encode(_text(sent.argument, value))]
    if any(delimiter in text for text in texts):
        raise ToolError(
            f"the values in {sent.argument} are sent with {unquote(delimiter)!r} between them, and"
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

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = taken
        self._made: dict[str, str] = {}

    def of(self, sent: SentArgument, pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """Yield the pairs of one argument. Raises ToolError."""
        for name, text in pairs:
            if name != sent.name:
                read = str.casefold if sent.style == "deepObject" else _read_as
                self._check(sent.argument, sent.name, name, read)
            if sent.place == "cookie" and not TOKEN.fullmatch(name):
                raise ToolError(f"a member of {sent.argument} has a name that no cookie can have")
            yield name, text

    def undeclared(self, argument: str, name: str) -> None:
        """Reserve a name that a model gave to a whole field. Raises ToolError."""
        self._check(argument, name, name, _read_as)

    def _check(self, argument: str, made_by: str, name: str, read: _Encode) -> None:
        what, read_as = f"a member of {argument} would be sent as", read(name)
        other = next((one for one in self._taken if read(one) == read_as), None)
        if other is not None:
            raise ToolError(f"{what} {other!r}, which is another")
        if self._made.setdefault(read_as, made_by) != made_by:
            raise ToolError(f"{what} one of another object is")


def _read_as(name: str) -> str:
    start = _LIST.split(name.strip().casefold(), maxsplit=1)[0]
    return _NO_WORD.sub("_", start or name)


def _path(sent: SentArgument, value: JsonValue, names: _Names) -> str:
    plain = json_bytes(value).decode() if sent.as_json else value
    delimiter = _IN_PATHS.get(sent.style, ",") if sent.explode else ","
    texts = _texts(sent, plain, _encoded, delimiter, explode=sent.explode)
    if not any(texts):
        raise ToolError(f"{sent.argument} cannot be empty: it is part of the address")
    if sent.style == "label":
        return "." + delimiter.join(texts)
    if sent.style == "matrix":
        name = _encoded(sent.name)
        if sent.explode and isinstance(plain, dict):
            list(names.of(sent, ((member, "") for member in plain)))
            return "".join(f";{text}" for text in texts)
        if sent.explode:
            return "".join(f";{name}={text}" for text in texts)
        return f";{name}={','.join(texts)}"
    return ",".join(texts)


def _header(sent: SentArgument, value: JsonValue) -> str:
    plain = json_bytes(value).decode() if sent.as_json else value
    texts = _texts(sent, plain, str, ",", explode=sent.explode)
    if not all(text.isascii() and text.isprintable() for text in texts):
        raise ToolError(f"{sent.argument} is sent in a header: use printable ASCII characters")
    if any(text != text.strip() for text in texts):
        raise ToolError(
            f"{sent.argument} is sent in a header, which loses spaces at the beginning and the end"
        )
    return ",".join(texts)


def _joined(sent: SentArgument, value: JsonValue, names: _Names, defaults: Defaults) -> list[str]:
    """Return the members of a query, or of a form in a body."""
    encode = partial(quote, safe=_RESERVED) if sent.reserved else _encoded
    pairs = _named(sent, value, encode, names, defaults)
    return [f"{_encoded(name)}={text}" for name, text in pairs]


def _named(
    sent: SentArgument, value: JsonValue, encode: _Encode, names: _Names, defaults: Defaults
) -> list[tuple[str, str]]:
    """Return the names, which are not encoded, with their encoded values, without what is left out."""
    is_null = value is None and not sent.required
    pairs = [] if is_null else [*names.of(sent, _pairs(sent, value, encode))]
    if not pairs:
        steps = (sent.within, sent.name) if sent.within else (sent.argument,)
        _check_left_out(value, defaults.get((sent.place, sent.name), ()), *steps)
    return pairs


def _check_left_out(value: JsonValue, taken: Iterable[JsonValue], *steps: str) -> None:
    """Raise ToolError if the API uses something else in place of what is left out, at the end of
    this path into the arguments."""
    if not all(same_json(one, value) for one in taken):
        raise _LeftOutError(*steps)


def _pairs(sent: SentArgument, value: JsonValue, encode: _Encode) -> Iterator[tuple[str, str]]:
    """Yield the names, which are not encoded, with their encoded values."""
    if sent.as_json:
        yield sent.name, encode(json_bytes(value).decode())
    elif sent.style == "deepObject":
        for name, text in _deep(sent, sent.name, value):
            yield name, encode(text)
    elif isinstance(value, list) and sent.explode:
        for each in value:
            yield sent.name, encode(_text(sent.argument, each))
    elif isinstance(value, dict) and sent.explode:
        for name, each in value.items():
            _check_held(sent, each == [])
            for one in each if isinstance(each, list) else [each]:
                yield name, encode(_text(sent.argument, one))
    else:
        delimiter = _DELIMITERS.get(sent.style, ",")
        delimiter = unquote(delimiter) if encode is str else delimiter
        yield sent.name, delimiter.join(_texts(sent, value, encode, delimiter, explode=False))


def _deep(sent: SentArgument, name: str, value: JsonValue) -> Iterator[tuple[str, str]]:
    _check_held(sent, value in ([], {}) and name != sent.name)
    if isinstance(value, dict):
        for key, child in value.items():
            if "[" in key or "]" in key:
                raise ToolError(f"a member of {sent.argument} cannot have a bracket in its name")
            yield from _deep(sent, f"{name}[{key}]", child)
    elif isinstance(value, list):
        if any(isinstance(child, list | dict) for child in value):
            raise ToolError(f"a list in {sent.argument} cannot hold lists or objects")
        for child in value:
            yield name, _text(sent.argument, child)
    else:
        yield name, _text(sent.argument, value)


def _check_held(sent: SentArgument, is_lost: bool) -> None:
    if is_lost:
        raise ToolError(
            f"{sent.argument} cannot hold empty values, which would be left out of the request"
        )


# Bodies.


def _body(plan: BodyPlan, value: JsonValue, defaults: Defaults) -> tuple[str, bytes]:
    kind = _OF_RANGES.get(plan.kind, "") if "*" in plan.media_type else plan.media_type
    if plan.kind == "json":
        return _as_utf8(kind), json_bytes(value)
    if plan.kind == "text":
        kind = f"{kind.partition(';')[0]}; charset=utf-8"
        made = _text(plan.argument, value).encode()
    elif plan.kind == "bytes":
        made = _decoded(plan.argument, value)
    elif not isinstance(value, dict):
        raise ToolError(f"{plan.argument} is sent as a form, so it must be an object")
    else:
        kind, made = _form(plan, value, defaults)
    if not made:
        _check_left_out(value, defaults.get(("request", plan.argument), ()), plan.argument)
    return kind, made


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
            members += _joined(_as_sent(plan, name), value, names, defaults)
    return _as_utf8(plan.media_type), "&".join(members).encode("ascii")


def _as_utf8(media_type: str) -> str:
    """Return a media type without another charset, since UTF-8 is sent."""
    return _OTHER_CHARSET.sub("", media_type)


def _as_sent(plan: BodyPlan, name: str) -> SentArgument:
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
    made = bytearray()
    for name, value in fields.items():
        field, sent = plan.fields.get(name, FormField()), _as_sent(plan, name)
        if isinstance(value, list) and None in value and not field.has_style:
            raise ToolError(
                f"{name} cannot hold null, which would be sent in the same way as null instead of "
                "the list"
            )
        parts = [(name, each) for each in (value if isinstance(value, list) else [value])]
        if value is None and not sent.as_json:
            parts = [] if not field.required else [(name, _text(name, value))]
        elif field.has_style and value is not None:
            parts, field = [*names.of(sent, _pairs(sent, value, str))], FormField()
        if not parts:
            _check_left_out(value, defaults.get((sent.place, name), ()), plan.argument, name)
        if any(_NO_NAME.search(called) for called, _ in parts):
            raise ToolError(
                f"{plan.argument} cannot hold {name!r}: the name of a part may not contain a "
                "backslash or %22"
            )
        for called, each in parts:
            made += f"--{boundary}\r\n".encode() + _part(called, field, each) + b"\r\n"
    if not made:
        whole: JsonValue = dict(fields)
        _check_left_out(whole, defaults.get(("request", plan.argument), ()), plan.argument)
    made += f"--{boundary}--\r\n".encode()
    return f"multipart/form-data; boundary={boundary}", bytes(made)


def _part(name: str, field: FormField, value: JsonValue) -> bytes:
    """Return one part. Names are escaped as in https://html.spec.whatwg.org/#multipart-form-data."""
    escaped = name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")
    said = f'Content-Disposition: form-data; name="{escaped}"'
    kind, data = field.media_type, b""
    if field.is_bytes:
        said += f'; filename="{escaped}"'
        kind, data = kind or "application/octet-stream", _decoded(name, value)
    elif isinstance(value, str):
        data = value.encode()
    else:
        kind = kind or "application/json"
        data = json_bytes(value) if is_json(kind) else _text(name, value).encode()
    kind = kind if field.is_bytes else _as_utf8(kind)
    if kind.isprintable() and kind.isascii() and kind:
        said += f"\r\nContent-Type: {kind}"
    return f"{said}\r\n\r\n".encode() + data


def _decoded(name: str, value: JsonValue) -> bytes:
    try:
        return base64.b64decode(_text(name, value), validate=True)
    except (binascii.Error, ValueError):
        raise ToolError(f"{name} must be bytes in base64") from None
