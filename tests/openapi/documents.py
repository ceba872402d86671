"""Small documents for tests, and what becomes of their operations."""

from __future__ import annotations

from typing import Any

from toolcrib.bridges.openapi import RefusedOperation, openapi_catalog
from toolcrib.bridges.openapi.definition import OperationReader, RequestPlan
from toolcrib.bridges.openapi.document import Document, NoTool
from toolcrib.bridges.openapi.forms import operations
from toolcrib.tools import Catalog


def document(paths: Any, *, version: str = "3.0.3", **more: Any) -> dict[str, Any]:
    said = {"swagger": version} if version.startswith("2") else {"openapi": version}
    return {**said, "info": {"title": "x", "version": "1"}, "paths": paths, **more}


def one(operation: Any, *, path: str = "/x", method: str = "post", **more: Any) -> dict[str, Any]:
    """A document with one operation."""
    return document({path: {method: {"operationId": "it", "responses": {}, **operation}}}, **more)


def with_body(schema: Any, media_type: str = "application/json", **more: Any) -> dict[str, Any]:
    return one({"requestBody": {"content": {media_type: {"schema": schema}}}}, **more)


def made(source: Any) -> tuple[Catalog, list[RefusedOperation]]:
    refused: list[RefusedOperation] = []
    return openapi_catalog(source, on_refused=refused.append), refused


def input_of(source: Any, name: str = "it") -> dict[str, Any]:
    """The schema of the arguments of a tool."""
    catalog, refused = made(source)
    assert refused == []
    schema = catalog[name].get_definition().input_schema
    assert schema is not None
    return schema


def body_of(source: Any) -> Any:
    return input_of(source)["properties"]["body"]


def plan_of(source: Any) -> RequestPlan:
    """The plan of the requests of a document's only operation."""
    read = Document(source)
    ((_, operation),) = operations(read)
    assert not isinstance(operation, NoTool), operation
    _, plan = OperationReader(read).read("it", operation)
    return plan
