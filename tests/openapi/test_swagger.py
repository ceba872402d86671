"""Swagger 2.0: the same tools, from its own words for bodies, forms, lists, answers and keys."""

from __future__ import annotations

import base64
import json
from typing import Any

from openapi.documents import document, input_of, made, one, plan_of
from openapi.petstore import petstore
from rows import each_row

from toolcrib import Approve, Completed, ToolCall, ToolRunner
from toolcrib.bridges.openapi import openapi_catalog
from toolcrib.bridges.openapi.request import request_of

PET = {
    "type": "object",
    "required": ["id", "name"],
    "properties": {"id": {"type": "integer", "readOnly": True}, "name": {"type": "string"}},
}
SHOP = document(
    {
        "/pet": {
            "post": {
                "operationId": "addPet",
                "consumes": ["application/xml", "application/json"],
                "parameters": [{"$ref": "#/parameters/pet"}],
                "responses": {"201": {"description": "x", "schema": {"$ref": "#/definitions/Pet"}}},
            }
        },
        "/pet/{petId}": {
            "parameters": [{"name": "petId", "in": "path", "type": "integer", "required": True}],
            "get": {
                "operationId": "getPetById",
                "responses": {"200": {"$ref": "#/responses/pet"}},
                "security": [{"api_key": []}],
            },
            "post": {
                "operationId": "rename",
                "parameters": [
                    {"name": "name", "in": "formData", "type": "string", "required": True}
                ],
                "responses": {"204": {"description": "x"}},
            },
        },
        "/pet/{petId}/photo": {
            "post": {
                "operationId": "photo",
                "parameters": [
                    {"name": "petId", "in": "path", "type": "integer", "required": True},
                    {"name": "file", "in": "formData", "type": "file", "description": "it"},
                ],
                "responses": {"200": {"description": "x", "schema": {"type": "object"}}},
            }
        },
    },
    version="2.0",
    host="evil.example",
    basePath="/elsewhere",
    produces=["application/json"],
    security=[{"petstore_auth": []}],
    definitions={"Pet": PET},
    parameters={
        "pet": {
            "name": "pet",
            "in": "body",
            "required": True,
            "schema": {"$ref": "#/definitions/Pet"},
        }
    },
    responses={"pet": {"description": "x", "schema": {"$ref": "#/definitions/Pet"}}},
    securityDefinitions={
        "api_key": {"type": "apiKey", "in": "header", "name": "api_key"},
        "petstore_auth": {"type": "oauth2", "flow": "application"},
    },
)


async def yes(_: object) -> Approve:
    return Approve(by="a test")


async def test_a_swagger_document_is_answered_by_the_same_shop() -> None:
    async with petstore() as (shop, api):
        runner = ToolRunner(openapi_catalog(SHOP, http=api), approver=yes)

        async def value(name: str, **arguments: Any) -> Any:
            outcome = await runner.exec(ToolCall(name, name, json.dumps(arguments)))
            assert isinstance(outcome, Completed), outcome
            return outcome.value

        assert await value("addPet", body={"name": "Rex"}) == {"name": "Rex", "id": 1}
        assert await value("rename", petId=1, body={"name": "Max"}) is None
        assert (await value("getPetById", petId=1))["name"] == "Max"
        photo = base64.b64encode(b"\x00\x01").decode()
        assert await value("photo", petId=1, body={"file": photo}) == {"bytes": 2}
    assert shop.forms[0]["file"] == b"\x00\x01"


def test_its_definitions_say_what_is_taken_and_given() -> None:
    catalog, refused = made(SHOP)
    assert refused == []
    assert input_of(SHOP, "addPet")["properties"]["body"] == {"$ref": "#/$defs/Pet"}
    form = input_of(SHOP, "photo")["properties"]["body"]
    assert form["properties"]["file"] == {
        "type": "string",
        "contentEncoding": "base64",
        "description": "it",
    }
    assert catalog["getPetById"].get_definition().output_schema == {
        "$ref": "#/$defs/Pet",
        "$defs": {"Pet": PET},
    }


def test_an_answer_is_json_where_nothing_else_is_said() -> None:
    responses = {"200": {"description": "x", "schema": {"type": "string"}}}
    catalog, _ = made(one({"responses": responses}, version="2.0"))
    assert catalog["it"].get_definition().output_schema == {"type": "string"}


@each_row(
    ("said", "path"),
    [
        ({}, "/x?a=1,2"),
        ({"collectionFormat": "csv"}, "/x?a=1,2"),
        ({"collectionFormat": "ssv"}, "/x?a=1%202"),
        ({"collectionFormat": "pipes"}, "/x?a=1%7C2"),
        ({"collectionFormat": "multi"}, "/x?a=1&a=2"),
    ],
)
def test_a_list_is_sent_in_its_collection_format(said: dict[str, str], path: str) -> None:
    parameter = {"name": "a", "in": "query", "type": "array", "items": {"type": "integer"}, **said}
    source = one({"parameters": [parameter]}, version="2.0")
    assert input_of(source)["properties"]["a"] == {"type": "array", "items": {"type": "integer"}}
    assert request_of(plan_of(source), {"a": [1, 2]}, "key").path == path


@each_row(
    ("parameter", "reason"),
    [
        ({"name": "a", "in": "query", "type": "array", "collectionFormat": "tsv"}, "form"),
        ({"name": "a", "in": "cookie", "type": "string"}, ""),
        ({"name": "a", "in": "elsewhere", "type": "string"}, "form"),
    ],
)
def test_what_cannot_be_sent(parameter: dict[str, str], reason: str) -> None:
    _, refused = made(one({"parameters": [parameter]}, version="2.0"))
    assert [each.reason for each in refused] == ([reason] if reason else [])
