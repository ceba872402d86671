"""`openapi_catalog`: a tool for each operation of a document, and what becomes of its calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from toolcrib.bridges.openapi.answer import ApiAnswers
from toolcrib.bridges.openapi.definition import OperationReader, RequestPlan
from toolcrib.bridges.openapi.document import Document, NoTool, Reason
from toolcrib.bridges.openapi.forms import ApiOperation, operations
from toolcrib.bridges.openapi.request import request_of
from toolcrib.bridges.openapi.server import HttpApi
from toolcrib.errors import CatalogError, DefinitionError, SchemaError, did_you_mean
from toolcrib.tools.capability import PerCall
from toolcrib.tools.catalog import Catalog
from toolcrib.tools.component import Tool
from toolcrib.tools.decorator import tool_from_dict
from toolcrib.tools.trust import Pins, Trusts
from toolcrib.values.context import CallContext
from toolcrib.values.definition import All, AnnotationOptions, ImportedForm
from toolcrib.values.typed import names_wrong_types

_LOGGER = logging.getLogger("toolcrib.bridges")

Visible: TypeAlias = Mapping[str, Sequence[str] | All]


class RefusedOperation(msgspec.Struct, frozen=True):
    """An operation that is no tool: `operation` as in `GET /pets/{id}`, and why, in words."""

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

    `document` is the path of a JSON or YAML file, what was parsed from one, or a `Document`. `http`
    is what asks the API: an `ApiServer`, or `per_call` of a function that makes one for the caller;
    without it the tools can be offered and planned, and need `bind({HttpApi: …})` to run. Of a large
    document, `only` names the tools that are made. `visible`, by the names of tools, is what may be
    shown of their results, `marks` are their annotations; `trust` and `lock` are those of
    `Catalog.trusting`. An operation that cannot be a tool is given to `on_refused`, which by default
    logs a warning.

    Raises SourceError for what cannot be read or is no such document, DefinitionError for wrong marks
    or visible fields, and CatalogError for a name that is not there.
    """
    source = document if isinstance(document, Document) else Document(document)
    made = _Making(source, visible or {}, marks or {})
    tools, names = [], []
    for label, operation in operations(source):
        try:
            if isinstance(operation, NoTool):
                raise operation
            names.append(name := made.reader.name(operation))
            if only is None or name in only:
                tools.append(made.tool(name, operation))
        except NoTool as unusable:
            (on_refused or _warned)(RefusedOperation(label, unusable.reason, str(unusable)))
    for name in (*(only or ()), *(visible or {}), *(marks or {})):
        if name not in names:
            raise CatalogError(f"{source.name}: no tool '{name}'{did_you_mean(name, names)} in it")
    catalog = Catalog(tools, source=source.name)
    if http is not None:
        catalog = catalog.bind({HttpApi: http})
    return catalog.trusting(trust, lock=lock) if trust else catalog


def _warned(refused: RefusedOperation) -> None:
    _LOGGER.warning("no tool is made of %s", refused)


class _Making:
    """Makes the tools of one document."""

    def __init__(
        self, document: Document, visible: Visible, marks: Mapping[str, AnnotationOptions]
    ) -> None:
        self.reader = OperationReader(document)
        self._visible, self._marks = visible, marks

    def tool(self, name: str, operation: ApiOperation) -> Tool[..., Any]:
        """Return the tool of an operation; an answer whose schema cannot be used is what it is.

        Raises NoTool, and DefinitionError for what the author says of it.
        """
        form, plan = self.reader.read(name, operation)
        try:
            return self._made(form, plan)
        except SchemaError as error:
            if form.pop("output_schema", None) is None:
                raise _unusable(error) from None
        try:
            return self._made(form, msgspec.structs.replace(plan, schemas={}))
        except SchemaError as error:
            raise _unusable(error) from None

    def _made(self, form: ImportedForm, plan: RequestPlan) -> Tool[..., Any]:
        handlers, visible = {plan.name: _caller(plan)}, self._visible.get(plan.name)
        try:
            return tool_from_dict(form, handlers, visible, marks=self._marks)
        except SchemaError:
            raise
        except DefinitionError as error:
            if plan.name in self._marks or plan.name in self._visible:
                raise
            raise _unusable(error) from None


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
