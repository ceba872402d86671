"""`openapi_catalog`: a tool for each operation of a document, and the handling of its calls.

An answer becomes the tool's result, or an error that a model can act on. On the command line
(`openapi:FILE#URL`), the user names the document's server.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from http.client import responses
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec
from jiter import from_json

from toolcrib.bridges.openapi.charset import text_of
from toolcrib.bridges.openapi.definition import OperationReader, RequestPlan
from toolcrib.bridges.openapi.document import Document, NoTool, Reason
from toolcrib.bridges.openapi.forms import (
    SAFE,
    ApiOperation,
    is_json,
    kind_of,
    operations,
    security_schemes,
)
from toolcrib.bridges.openapi.request import ApiRequest, Sendable, request_of
from toolcrib.bridges.openapi.server import ApiServer, HttpApi
from toolcrib.errors import (
    CapabilityError,
    CatalogError,
    DefinitionError,
    OutcomeUnknown,
    SchemaError,
    SourceError,
    ToolError,
    did_you_mean,
)
from toolcrib.failures import SafeLogger
from toolcrib.kit.http import HttpAnswer, Unanswered
from toolcrib.schema import LazyValidator
from toolcrib.tools.capability import PerCall
from toolcrib.tools.catalog import Catalog
from toolcrib.tools.component import Tool
from toolcrib.tools.decorator import tool_from_dict
from toolcrib.tools.trust import Pins, Trusts
from toolcrib.values.content import NO_TEXT, File, Image
from toolcrib.values.context import CallContext
from toolcrib.values.definition import All, AnnotationOptions, ImportedForm
from toolcrib.values.json import JsonValue, canonical_json, fresh, json_bytes
from toolcrib.values.typed import Checked, check_each, names_wrong_types

T = TypeVar("T")
_LOGGER = SafeLogger("toolcrib.bridges")

Visible: TypeAlias = Mapping[str, Sequence[str] | All]

_IDEMPOTENT = SAFE | {"PUT", "DELETE"}
"""https://www.rfc-editor.org/rfc/rfc9110#section-9.2.2"""
_NOT_DONE = (408, 425, 429, 503)  # the same request may be made again later
_GATEWAYS = (502, 504)  # another server was asked, and what it did is not known
_SECONDS = re.compile(r"[0-9]{1,6}")  # of `Retry-After`; longer values are not told
_NO_CONTENT = (204, 205)
_BYTES = "application/octet-stream"
_LONGEST = 4_000  # characters of an API's own error text

KEY = "TOOLCRIB_KEY_"
"""The prefix of variables that hold keys. The name of a security scheme follows, in capitals."""


class RefusedOperation(Checked, msgspec.Struct, frozen=True):
    """An operation that became no tool.

    `operation` has the form `GET /pets/{id}`. `reason` is the kind of fault, and `text` describes
    it.
    """

    operation: str
    reason: Reason
    text: str

    def __str__(self) -> str:
        return f"{self.operation}: {self.text}"


@names_wrong_types
def openapi_catalog(
    document: str | Path | Mapping[str, Any] | Document,
    *,
    http: HttpApi | PerCall | None = None,
    only: Collection[str] | None = None,
    visible: Visible | None = None,
    marks: Mapping[str, AnnotationOptions] | None = None,
    trust: Trusts | None = None,
    lock: Pins | None = None,
    on_refused: Callable[[RefusedOperation], object] | None = None,
) -> Catalog:
    """Return a tool for each operation of an OpenAPI 3.0, 3.1 or Swagger 2.0 document.

    `document` is the path of a JSON or YAML file, the parsed content of one, or a `Document`.
    `http` sends the requests. It is an `ApiServer`, or `per_call` of a function that makes one for
    the caller. Without it, the catalog needs `bind({HttpApi: …})` before its tools can run. `only`
    names the tools to make from a large document. `visible` says, by the names of tools, which
    fields of their results may be shown. `marks` are annotations of tools, also by name. `trust`
    and `lock` are those of `Catalog.trusting`. `on_refused` is called with each operation that
    cannot be a tool. By default, a warning is logged.

    Raises SourceError for a document that cannot be read or is of another kind, DefinitionError for
    invalid marks or visible fields, and CatalogError for an unknown name.
    """
    source = document if isinstance(document, Document) else Document(document)
    author = _AuthorOptions(visible or {}, marks or {})
    if only is not None:
        only = frozenset(check_each("only", only, str, "a list of names of tools"))
    tools, names = [], []
    for label, result in operation_tools(source, only=only, author=author):
        if isinstance(result, NoTool):
            (on_refused or _log_refused)(RefusedOperation(label, result.reason, str(result)))
        elif isinstance(result, Tool):
            tools.append(result)
            names.append(result.definition.name)
        else:
            names.append(result)
    for name in (*(only or ()), *author.visible, *author.marks):
        if name not in names:
            raise CatalogError(f"{source.name}: it has no tool '{name}'{did_you_mean(name, names)}")
    catalog = Catalog(tools, source=source.name)
    if http is not None:
        catalog = catalog.bind({HttpApi: http})
    return catalog.trusting(trust, lock=lock) if trust else catalog


def _log_refused(refused: RefusedOperation) -> None:
    _LOGGER.warning("no tool was made of %s", refused)


class _AuthorOptions(NamedTuple):
    """Holds the author's `visible` fields and marks, by the names of the tools."""

    visible: Visible
    marks: Mapping[str, AnnotationOptions]


_NO_OPTIONS = _AuthorOptions({}, {})


def operation_tools(
    document: Document, *, only: Collection[str] | None = None, author: _AuthorOptions = _NO_OPTIONS
) -> Iterator[tuple[str, Tool[..., Any] | NoTool | str]]:
    """Yield the result for each operation, which is named in the form `GET /pets/{id}`: its tool,
    the reason why there is none, or just the name of one that `only` leaves out."""
    reader = OperationReader(document)
    for label, operation in operations(document):
        try:
            if isinstance(operation, NoTool):
                raise operation
            name = reader.name(operation)
            is_wanted = only is None or name in only
            result = _tool(reader, name, operation, author) if is_wanted else name
        except NoTool as refused:
            yield label, refused
        else:
            yield label, result


def _tool(
    reader: OperationReader, name: str, operation: ApiOperation, author: _AuthorOptions
) -> Tool[..., Any]:
    """Return a tool. If the schema of its arguments cannot be used with kinds, they are not checked
    for kinds.

    Raises NoTool.
    """
    try:
        return _usable(*reader.read(name, operation), author)
    except NoTool as refused:
        if not reader.has_kinds:
            raise
        reason = str(refused)
    tool = _usable(*reader.read(name, operation, kinds=False), author)
    _LOGGER.warning(
        "the arguments of '%s' are not checked against the mapping of a discriminator: %s",
        name,
        reason,
    )
    return tool


def _usable(form: ImportedForm, plan: RequestPlan, author: _AuthorOptions) -> Tool[..., Any]:
    """Return a tool. Answers whose schema cannot be used are not checked. Raises NoTool."""
    try:
        return _build(form, plan, author)
    except SchemaError as error:
        if form.pop("output_schema", None) is None:
            raise _refusal_of(error) from None
    try:
        return _build(form, msgspec.structs.replace(plan, schemas={}), author)
    except SchemaError as error:
        raise _refusal_of(error) from None


def _build(form: ImportedForm, plan: RequestPlan, author: _AuthorOptions) -> Tool[..., Any]:
    """Return a tool whose digests include its request, so that another request is another tool.

    Raises SchemaError, NoTool, and DefinitionError for the author's options.
    """
    handlers, visible = {plan.name: _call_handler(plan)}, author.visible.get(plan.name)
    author_marks = author.marks.get(plan.name, {})
    try:
        request = {"request": f"{plan.method} {plan.path}", "digest": plan.digest}
    except TypeError:
        raise NoTool(
            "form", "it holds a lone surrogate, which cannot be sent in a request"
        ) from None
    marks: AnnotationOptions = {
        **author_marks,
        "marks": {**author_marks.get("marks", {}), "openapi": request},
    }
    try:
        tool = tool_from_dict(form, handlers, visible, marks={plan.name: marks})
    except SchemaError:
        raise
    except DefinitionError as error:
        if plan.name in author.marks or plan.name in author.visible:
            raise
        raise _refusal_of(error) from None
    assert tool.imported is not None and tool.validator is not None  # noqa: S101, PT018  its form is
    tool.validator = Sendable(tool.validator, plan)
    brought = tool.imported.brought
    claims = canonical_json({"openapi": request})
    claimed = msgspec.structs.replace(brought.annotations, marks_json=claims)
    brought = msgspec.structs.replace(brought, annotations=claimed)
    tool.imported = tool.imported._replace(brought=brought)
    return tool


def _refusal_of(error: DefinitionError) -> NoTool:
    steps = error.pointer.split("/") if isinstance(error, SchemaError) else []
    is_pattern = steps[-1:] == ["pattern"] or steps[-2:-1] == ["patternProperties"]
    return NoTool("pattern" if is_pattern else "schema", str(error))


def _call_handler(plan: RequestPlan) -> Callable[..., Any]:
    answers = ApiAnswers(plan)

    async def call(
        *, toolcrib_context: CallContext, toolcrib_api: HttpApi, **arguments: Any
    ) -> Any:
        request = request_of(plan, arguments, toolcrib_context.idempotency_key)
        return await answers.of(toolcrib_api, request)

    call.__name__ = call.__qualname__ = plan.name
    return call


# Answers.


class ApiAnswers:
    """Handles the answers to the requests of one operation."""

    def __init__(self, plan: RequestPlan) -> None:
        self._method = plan.method
        self._validators = {
            status: {
                kind: None if schema is None else LazyValidator(schema)
                for kind, schema in by_kind.items()
            }
            for status, by_kind in plan.schemas.items()
        }
        self._media_types = plan.media_types

    async def of(self, api: HttpApi, request: ApiRequest) -> Any:
        """Send a request and return the result. Raises ToolError."""
        try:
            answer = await api.send(request)
        except Unanswered as unanswered:
            raise self._unanswered(unanswered) from None
        if not 200 <= answer.status < 300:
            raise self._failed(answer)
        if answer.body:
            value = _value_of(answer, _of_status(self._media_types, answer.status) or _BYTES)
        else:
            value = self._empty(answer)
        self._check(answer, None if isinstance(value, NO_TEXT) else value)
        return value

    def _empty(self, answer: HttpAnswer) -> str | None:
        """Return an empty string if that is what was sent and it is allowed."""
        validators = _of_status(self._validators, answer.status)
        is_text = kind_of(answer.headers.get("content-type", "")) == "text"
        has_body = self._method != "HEAD" and answer.status not in _NO_CONTENT
        return "" if is_text and has_body and (validators is None or "text" in validators) else None

    def _unanswered(self, error: Unanswered) -> ToolError:
        """Return the error for a request without a usable answer, by what is known about it."""
        status = error.status
        if 200 <= status < 300:
            return ToolError(f"It was done (status {status}), but {error}.", retryable=False)
        if 400 <= status < 500 or (status and self._method in SAFE):
            return ToolError(f"The API answered {status}, but {error}.", retryable=False)
        if not error.sent or self._method in SAFE:
            return error
        return OutcomeUnknown(
            f"The request was sent, but {error}, so it is unknown whether it was done.",
            retryable=not status and self._method in _IDEMPOTENT,
        )

    def _failed(self, answer: HttpAnswer) -> ToolError:
        """Return the error for a status. The model reads the API's own words, and no record has
        them."""
        status = answer.status
        message = f"The API answered {status} {responses.get(status, '')}".rstrip()
        retry_after = answer.headers.get("retry-after", "")
        if status in _NOT_DONE and _SECONDS.fullmatch(retry_after):
            message += f", and asks to retry in {retry_after} seconds"
        message += "."
        model_text = _with_api_text(message, answer)
        if status in _GATEWAYS and self._method not in SAFE:
            is_retryable = self._method in _IDEMPOTENT
            return OutcomeUnknown(message, retryable=is_retryable, model_text=model_text)
        is_retryable = status in _NOT_DONE or (status >= 500 and self._method in SAFE)
        return ToolError(message, retryable=is_retryable, model_text=model_text)

    def _check(self, answer: HttpAnswer, value: object) -> None:
        """Check an answer against the schema of its own status and media type, if those differ.

        Raises ToolError. The runner checks an answer that the document does not list against
        everything that it does list. A picture or a file is not JSON, and its value is None, as for
        every result that is content alone.
        """
        validators = _of_status(self._validators, answer.status)
        prefix = f"It was done (status {answer.status}), but"
        if validators is None and self._validators and not answer.body:
            raise ToolError(
                f"{prefix} the answer is empty, which the API's description does not allow.",
                retryable=False,
            )
        if validators is None:
            return
        has_kind = answer.body or value == ""
        kind = kind_of(answer.headers.get("content-type", "")) if has_kind else "json"
        if kind not in validators:
            message = f"{prefix} the API's description has no answer with that media type."
            raise ToolError(message, retryable=False, model_text=_with_api_text(message, answer))
        validator = validators[kind]
        if validator is not None and not validator.is_valid(value):
            raise ToolError(
                f"{prefix} the answer does not match the API's description for that status.",
                retryable=False,
            )


def _of_status(by_status: Mapping[str, T], status: int) -> T | None:
    """Return what a document says about a status: for itself, for its class, or by default."""
    statuses = (str(status), f"{status // 100}XX", "DEFAULT")
    return next((by_status[name] for name in statuses if name in by_status), None)


def _value_of(answer: HttpAnswer, declared: str) -> Any:
    """Return JSON as it is, text as a string, and other bytes as a picture or a file. Raises
    ToolError.

    `declared` is the media type of bytes whose server does not name one.
    """
    content_type = answer.headers.get("content-type", "")
    if kind_of(content_type) != "bytes":
        expected = "JSON" if is_json(content_type) else "text"
        text = text_of(answer.body, content_type)
        try:
            if text is not None:
                return _parsed_json(text) if is_json(content_type) else text
        except (ValueError, RecursionError):
            pass
        message = (
            f"It was done (status {answer.status}), but the answer is not valid {expected}, as it "
            "claims to be."
        )
        raise ToolError(message, retryable=False)
    base_type = content_type.partition(";")[0].strip().lower()
    media_type = declared if base_type in ("", _BYTES) else base_type
    part_class = Image if media_type.startswith("image/") else File
    return part_class.from_bytes(media_type, answer.body)


def _parsed_json(text: str) -> JsonValue:
    """Return JSON in which no name occurs twice. Raises ValueError."""
    from_json(text.encode(), catch_duplicate_keys=True)
    return fresh(text)


def _with_api_text(message: str, answer: HttpAnswer) -> str:
    """Return the text for the model, with the API's own text about an error on one line, or an empty
    string if the API says nothing."""
    content_type = answer.headers.get("content-type", "")
    text = None if kind_of(content_type) == "bytes" else text_of(answer.body, content_type)
    if not text:
        return ""
    if is_json(content_type):
        try:
            text = json_bytes(_parsed_json(text)).decode()
        except ValueError:
            return ""
    else:
        text = " ".join(text[: _LONGEST * 4].split())
    return f"{message} It says: {text[:_LONGEST]}" if text else ""


# The command line.


class _NoServer:
    """Used if nobody named a server, since the document's own server is only a claim."""

    async def send(self, request: ApiRequest) -> HttpAnswer:
        message = "name a server: --tools openapi:FILE#https://api.example.com/v1"
        raise CapabilityError(message, retryable=False)


def catalog_of(where: str) -> Catalog:
    """Return the tools of `FILE`, which can be read, or of `FILE#URL`, which run.

    Keys come from the environment: `TOOLCRIB_KEY_API_KEY` for the scheme `api_key`. They are sent
    to the named server and to no other. Raises the same errors as `openapi_catalog`.
    """
    file, _, url = where.partition("#")
    if not file:
        raise SourceError("openapi: needs a document: write openapi:FILE, or openapi:FILE#URL")
    document = Document(file)
    if not url:
        return openapi_catalog(document, http=_NoServer())
    names = {name: re.sub(r"\W", "_", name).upper() for name in security_schemes(document)}
    values = {name: os.environ.get(KEY + variable) for name, variable in names.items()}
    keys = {name: key for name, key in values.items() if key}
    return openapi_catalog(document, http=ApiServer(url, keys=keys))
