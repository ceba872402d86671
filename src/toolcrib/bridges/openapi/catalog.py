"""`openapi_catalog`: a tool for each operation of a document, and what becomes of its calls."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from toolcrib.bridges.openapi.answer import Answers
from toolcrib.bridges.openapi.definition import OperationReader, RequestPlan
from toolcrib.bridges.openapi.document import Document, Reason, Unusable
from toolcrib.bridges.openapi.forms import Operation, operations
from toolcrib.bridges.openapi.request import request_of
from toolcrib.bridges.openapi.server import HttpApi
from toolcrib.errors import DefinitionError, SchemaError
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


class Refused(msgspec.Struct, frozen=True):
    """An operation that is no tool: `operation` as in `GET /pets/{id}`, the kind of reason, and the text."""

    operation: str
    reason: Reason
    text: str

    def __str__(self) -> str:
        return f"{self.operation}: {self.text}"


@names_wrong_types
def openapi_catalog(
    document: str | Path | Mapping[str, Any],
    *,
    http: HttpApi | PerCall | None = None,
    visible: Visible | None = None,
    marks: Mapping[str, AnnotationOptions] | None = None,
    trust: Trusts | None = None,
    lock: Pins | None = None,
    on_refused: Callable[[Refused], object] | None = None,
) -> Catalog:
    """Return a tool for each operation of an OpenAPI 3.0, 3.1 or Swagger 2.0 document.

    `document` is the path of a JSON or YAML file, or what was parsed from one. `http` is what asks the
    API: an `ApiServer`, or `per_call` of a function that makes one for the caller; without it the
    tools can be offered and planned, and need `bind({HttpApi: …})` to run. `visible`, by the names of
    tools, is what may be shown of their results, `marks` are their annotations; `trust` and `lock` are
    those of `Catalog.trusting`. An operation that cannot be a tool is given to `on_refused`, which by
    default logs a warning. Raises SourceError for what cannot be read or is no such document,
    DefinitionError for wrong marks or visible fields, and CatalogError for a name that is not there.
    """
    source = Document(document)
    made = _Making(source, visible or {}, marks or {})
    tools = []
    for label, operation in operations(source):
        try:
            if isinstance(operation, Unusable):
                raise operation
            tools.append(made.tool(operation))
        except Unusable as unusable:
            (on_refused or _warned)(Refused(label, unusable.reason, str(unusable)))
    catalog = Catalog(tools, source=source.name)
    catalog.only(*(visible or {}), *(marks or {}))  # a mistyped name is an error
    if http is not None:
        catalog = catalog.bind({HttpApi: http})
    return catalog.trusting(trust, lock=lock) if trust else catalog


def _warned(refused: Refused) -> None:
    _LOGGER.warning("no tool is made of %s", refused)


class _Making:
    """Makes the tools of one document."""

    def __init__(
        self, document: Document, visible: Visible, marks: Mapping[str, AnnotationOptions]
    ) -> None:
        self._reader = OperationReader(document)
        self._visible, self._marks = visible, marks

    def tool(self, operation: Operation) -> Tool[..., Any]:
        """Return the tool of an operation. Raises Unusable; DefinitionError for what the author says."""
        form, plan = self._reader.read(operation)
        try:
            return self._made(form, plan)
        except SchemaError:
            if form.pop("output_schema", None) is None:
                raise
        return self._made(form, msgspec.structs.replace(plan, schemas={}))

    def _made(self, form: ImportedForm, plan: RequestPlan) -> Tool[..., Any]:
        try:
            return tool_from_dict(
                form, {plan.name: _caller(plan)}, self._visible.get(plan.name), marks=self._marks
            )
        except SchemaError as error:
            if "output_schema" in form:
                raise
            raise Unusable("schema", str(error)) from None
        except DefinitionError as error:
            if plan.name in self._marks or plan.name in self._visible:
                raise
            raise Unusable("schema", str(error)) from None


def _caller(plan: RequestPlan) -> Callable[..., Any]:
    """Return the function that makes the calls of an operation."""
    answers = Answers(plan)

    async def call(
        *, toolcrib_context: CallContext, toolcrib_api: HttpApi, **arguments: Any
    ) -> Any:
        request = request_of(plan, arguments, toolcrib_context.idempotency_key)
        return await answers.of(toolcrib_api, request)

    call.__name__ = call.__qualname__ = plan.name
    return call


