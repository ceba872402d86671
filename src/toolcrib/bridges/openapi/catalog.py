"""`openapi_catalog`: a tool for each operation of a document, and the handling of its calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from toolcrib.bridges.openapi.answer import ApiAnswers
from toolcrib.bridges.openapi.definition import OperationReader, RequestPlan
from toolcrib.bridges.openapi.document import Document, NoTool, Reason
from toolcrib.bridges.openapi.forms import ApiOperation, operations
from toolcrib.bridges.openapi.request import Sendable, request_of
from toolcrib.bridges.openapi.server import HttpApi
from toolcrib.errors import CatalogError, DefinitionError, SchemaError, did_you_mean
from toolcrib.tools.capability import PerCall
from toolcrib.tools.catalog import Catalog
from toolcrib.tools.component import Tool
from toolcrib.tools.decorator import tool_from_dict
from toolcrib.tools.trust import Pins, Trusts
from toolcrib.values.context import CallContext
from toolcrib.values.definition import All, AnnotationOptions, ImportedForm
from toolcrib.values.json import canonical_json
from toolcrib.values.typed import Checked, check_each, names_wrong_types

_LOGGER = logging.getLogger("toolcrib.bridges")

Visible: TypeAlias = Mapping[str, Sequence[str] | All]


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
    author = _AuthorSays(visible or {}, marks or {})
    if only is not None:
        only = frozenset(check_each("only", only, str, "a list of names of tools"))
    tools, names = [], []
    for label, made in operation_tools(source, only=only, author=author):
        if isinstance(made, NoTool):
            (on_refused or _warned)(RefusedOperation(label, made.reason, str(made)))
        elif isinstance(made, Tool):
            tools.append(made)
            names.append(made.definition.name)
        else:
            names.append(made)
    for name in (*(only or ()), *author.visible, *author.marks):
        if name not in names:
            raise CatalogError(f"{source.name}: it has no tool '{name}'{did_you_mean(name, names)}")
    catalog = Catalog(tools, source=source.name)
    if http is not None:
        catalog = catalog.bind({HttpApi: http})
    return catalog.trusting(trust, lock=lock) if trust else catalog


def _warned(refused: RefusedOperation) -> None:
    _LOGGER.warning("no tool was made of %s", refused)


class _AuthorSays(NamedTuple):
    """Holds the author's `visible` fields and marks, by the names of the tools."""

    visible: Visible
    marks: Mapping[str, AnnotationOptions]


_NOTHING_SAID = _AuthorSays({}, {})


def operation_tools(
    document: Document, *, only: Collection[str] | None = None, author: _AuthorSays = _NOTHING_SAID
) -> Iterator[tuple[str, Tool[..., Any] | NoTool | str]]:
    """Yield the result for each operation, which is named in the form `GET /pets/{id}`: its tool,
    the reason why there is none, or just the name of one that `only` leaves out."""
    reader = OperationReader(document)
    for label, operation in operations(document):
        try:
            if isinstance(operation, NoTool):
                raise operation
            name = reader.name(operation)
            wanted = only is None or name in only
            made = _tool(reader, name, operation, author) if wanted else name
        except NoTool as refused:
            yield label, refused
        else:
            yield label, made


def _tool(
    reader: OperationReader, name: str, operation: ApiOperation, author: _AuthorSays
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
        why = str(refused)
    tool = _usable(*reader.read(name, operation, kinds=False), author)
    _LOGGER.warning(
        "the arguments of '%s' are not checked against the mapping of a discriminator: %s",
        name,
        why,
    )
    return tool


def _usable(form: ImportedForm, plan: RequestPlan, author: _AuthorSays) -> Tool[..., Any]:
    """Return a tool. Answers whose schema cannot be used are not checked. Raises NoTool."""
    try:
        return _made(form, plan, author)
    except SchemaError as error:
        if form.pop("output_schema", None) is None:
            raise _unusable(error) from None
    try:
        return _made(form, msgspec.structs.replace(plan, schemas={}), author)
    except SchemaError as error:
        raise _unusable(error) from None


def _made(form: ImportedForm, plan: RequestPlan, author: _AuthorSays) -> Tool[..., Any]:
    """Return a tool whose digests include its request, so that another request is another tool.

    Raises SchemaError, NoTool, and DefinitionError for the author's options.
    """
    handlers, visible = {plan.name: _caller(plan)}, author.visible.get(plan.name)
    said = author.marks.get(plan.name, {})
    try:
        request = {"request": f"{plan.method} {plan.path}", "digest": plan.digest}
    except TypeError:
        raise NoTool(
            "form", "it holds a lone surrogate, which cannot be sent in a request"
        ) from None
    marks: AnnotationOptions = {**said, "marks": {**said.get("marks", {}), "openapi": request}}
    try:
        tool = tool_from_dict(form, handlers, visible, marks={plan.name: marks})
    except SchemaError:
        raise
    except DefinitionError as error:
        if plan.name in author.marks or plan.name in author.visible:
            raise
        raise _unusable(error) from None
    assert tool.imported is not None and tool.validator is not None  # noqa: S101, PT018  its form is
    tool.validator = Sendable(tool.validator, plan)
    brought = tool.imported.brought
    claims = canonical_json({"openapi": request})
    claimed = msgspec.structs.replace(brought.annotations, marks_json=claims)
    brought = msgspec.structs.replace(brought, annotations=claimed)
    tool.imported = tool.imported._replace(brought=brought)
    return tool


def _unusable(error: DefinitionError) -> NoTool:
    place = error.pointer.split("/") if isinstance(error, SchemaError) else []
    matched = place[-1:] == ["pattern"] or place[-2:-1] == ["patternProperties"]
    return NoTool("pattern" if matched else "schema", str(error))


def _caller(plan: RequestPlan) -> Callable[..., Any]:
    """Return the function that makes the calls of an operation."""
    answers = ApiAnswers(plan)

    async def call(
        *, toolcrib_context: CallContext, toolcrib_api: HttpApi, **arguments: Any
    ) -> Any:
        request = request_of(plan, arguments, toolcrib_context.idempotency_key)
        return await answers.of(toolcrib_api, request)

    call.__name__ = call.__qualname__ = plan.name
    return call
