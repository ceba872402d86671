"""From an operation to a definition: schemas, names, what is an argument, and what is refused."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from openapi.documents import body_of, document, input_of, made, one, plan_of, with_body
from rows import each_row

from toolcrib import Trusted
from toolcrib.bridges.openapi import openapi_catalog
from toolcrib.errors import CatalogError, DefinitionError
from toolcrib.schema import compile_validator
from toolcrib.tools.lock import lock_catalog
from toolcrib.values.json import json_copy


def with_pets(schema: Any, **schemas: Any) -> dict[str, Any]:
    return with_body(schema, components={"schemas": schemas})


NULL = {"type": "null"}


@each_row(
    ("given", "told"),
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": False}, {"type": "string"}),
        ({"nullable": True}, {}),
        ({"nullable": True, "description": "x"}, {"description": "x"}),
        (
            {"type": "string", "enum": ["a"], "nullable": True},
            {"type": ["string", "null"], "enum": ["a", None]},
        ),
        ({"enum": ["a"], "nullable": True}, {"anyOf": [{"enum": ["a"]}, NULL]}),
        (
            {"allOf": [{"type": "object"}], "nullable": True, "description": "x"},
            {"description": "x", "anyOf": [{"allOf": [{"type": "object"}]}, NULL]},
        ),
        ({"minimum": 1, "exclusiveMinimum": True}, {"exclusiveMinimum": 1}),
        ({"minimum": 1, "exclusiveMinimum": False}, {"minimum": 1}),
        ({"maximum": 1, "exclusiveMaximum": True}, {"exclusiveMaximum": 1}),
        ({"exclusiveMaximum": True}, {}),
        ({"exclusiveMaximum": 5}, {"exclusiveMaximum": 5}),
        (
            {"type": "string", "example": "a", "xml": {}, "externalDocs": {}, "x-thing": 1},
            {"type": "string"},
        ),
        (
            {"type": "object", "properties": {"nullable": {"type": "string", "nullable": True}}},
            {"type": "object", "properties": {"nullable": {"type": ["string", "null"]}}},
        ),
        (
            {"type": "array", "items": {"type": "integer", "nullable": True}},
            {"type": "array", "items": {"type": ["integer", "null"]}},
        ),
        ({"enum": [{"nullable": True}]}, {"enum": [{"nullable": True}]}),  # data
        ({"default": {"$ref": "#/nowhere"}}, {"default": {"$ref": "#/nowhere"}}),
        (
            {
                "properties": {"id": {"readOnly": True}, "name": {}, "pin": {"writeOnly": True}},
                "required": ["id", "name"],
            },
            {
                "properties": {"id": False, "name": {}, "pin": {"writeOnly": True}},
                "required": ["name"],
            },
        ),
    ],
)
def test_the_words_of_openapi_3_0_are_translated(given: Any, told: Any) -> None:
    assert body_of(with_body(given)) == told


BASE_OF_PETS = {
    "type": "object",
    "properties": {"id": {"type": "integer", "readOnly": True}, "name": {"type": "string"}},
    "required": ["id"],
}
NAMED = {"type": "object", "required": ["id", "name"], "properties": {"kind": {}}}
AS_BASE, AS_NAMED = {"$ref": "#/components/schemas/Base"}, {"$ref": "#/components/schemas/Named"}


@each_row("version", ["3.0.3", "3.1.0"])
@each_row(
    "given",
    [
        BASE_OF_PETS,
        AS_BASE,
        {"allOf": [AS_BASE, AS_NAMED]},
        {"allOf": [AS_NAMED, {"allOf": [AS_BASE]}]},
        {"allOf": [AS_BASE], "required": ["id"]},
        {"allOf": [AS_BASE, {"required": ["id", "name"]}]},
        {"oneOf": [AS_BASE], "required": ["id"]},
        {"allOf": [AS_NAMED], "properties": {"id": {"readOnly": True, "enum": [7]}}},
        {"allOf": [AS_BASE], "properties": {"id": {"type": "integer"}}},
        {"allOf": [AS_BASE], "oneOf": [{"required": ["id"]}]},
    ],
)
def test_what_only_an_answer_has_is_refused_and_never_demanded(version: str, given: Any) -> None:
    """However a schema is put together, and though it takes other names."""
    schemas = {"Base": BASE_OF_PETS, "Named": NAMED}
    source = with_body(given, version=version, components={"schemas": schemas})
    validator = compile_validator(input_of(source))
    assert validator.is_valid({"body": {"name": "x", "other": 1}})
    for value in (7, "not even an integer", None):
        why, *_ = validator.violations({"body": {"name": "x", "id": value}})
        assert "/body" in why.path


AS_ID = {"$ref": "#/components/schemas/Id"}
HIDDEN = [
    AS_ID,
    {"allOf": [AS_ID], "description": "How OpenAPI 3.0 describes what it refers to."},
    {"allOf": [AS_ID], "nullable": True},
    {"allOf": [{"type": "integer"}, {"allOf": [{}, AS_ID]}]},
    {"$ref": "#/components/schemas/Again"},
    {"anyOf": [AS_ID, {"type": "null"}]},
    {"oneOf": [{"enum": [None]}, {"allOf": [AS_ID]}, AS_ID]},
    {"allOf": [{"anyOf": [AS_ID, {"const": None}]}]},
]
NOT_HIDDEN = [
    {"anyOf": [AS_ID, {"type": "integer"}]},
    {"allOf": [AS_ID], "readOnly": False},
    {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    {"$ref": "#/components/schemas/Itself"},
    {"allOf": [{"type": "integer"}], "not": AS_ID},
]


@each_row("version", ["3.0.3", "3.1.0"])
@each_row(("given", "hidden"), [*((g, True) for g in HIDDEN), *((g, False) for g in NOT_HIDDEN)])
def test_a_property_is_read_only_however_it_says_so(
    version: str, given: Any, *, hidden: bool
) -> None:
    schemas = {
        "Id": {"type": "integer", "readOnly": True},
        "Again": {"allOf": [AS_ID]},
        "Itself": {"properties": {"id": {"$ref": "#/components/schemas/Itself"}}},
    }
    body = {"type": "object", "properties": {"id": given}, "required": ["id"]}
    schema = body_of(with_body(body, version=version, components={"schemas": schemas}))
    assert (schema["properties"]["id"] is False, "id" not in schema["required"]) == (hidden,) * 2


@each_row(("given", "hidden"), [*((g, True) for g in HIDDEN), *((g, False) for g in NOT_HIDDEN)])
@each_row("key", ["patternProperties", "additionalProperties", "unevaluatedProperties"])
def test_a_property_of_no_one_name_is_read_only_as_any_other(
    key: str, given: Any, *, hidden: bool
) -> None:
    schemas = {
        "Id": {"type": "integer", "readOnly": True},
        "Again": {"allOf": [AS_ID]},
        "Itself": {"properties": {"id": {"$ref": "#/components/schemas/Itself"}}},
    }
    of_more = {"^id": given} if key == "patternProperties" else given
    body: Any = {"type": "object", "properties": {"name": {}}, key: of_more}
    source = with_body(body, version="3.1.0", components={"schemas": schemas})
    made = body_of(source)[key]
    assert ((made["^id"] if key == "patternProperties" else made) is False) == hidden
    validator = compile_validator(input_of(source))
    assert validator.is_valid({"body": {"name": "x"}})
    assert not (hidden and validator.is_valid({"body": {"id_1": 7}}))


def test_what_only_a_request_has_is_not_demanded_of_an_answer() -> None:
    secret = {"properties": {"pin": {"type": "integer", "writeOnly": True}}}
    schema = answers(_200={JSON: {"allOf": [secret, {"required": ["pin"]}]}})
    validator = compile_validator(schema)
    assert validator.is_valid({})
    assert validator.is_valid({"pin": 7})


def test_a_file_that_only_an_answer_has_is_refused_in_a_form() -> None:
    file = {"type": "string", "format": "binary", "readOnly": True}
    source = with_body({"type": "object", "properties": {"a": file}}, "multipart/form-data")
    assert body_of(source)["properties"] == {"a": False}


@each_row(
    ("given", "told"),
    [
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"type": "string", "nullable": True}, {"type": "string"}),  # it has no such word
        ({"const": 1, "examples": [1]}, {"const": 1, "examples": [1]}),
        (True, {}),
        (False, {"not": {}}),
        (
            {"$ref": "#/components/schemas/A", "minLength": 2},
            {"$ref": "#/$defs/A", "minLength": 2},
        ),
    ],
)
def test_openapi_3_1_is_json_schema(given: Any, told: Any) -> None:
    schemas = {"schemas": {"A": {"type": "string"}}}
    assert body_of(with_body(given, version="3.1.0", components=schemas)) == told


@each_row(
    "beside",
    [
        {"minLength": 2},
        {"properties": {"a": {"readOnly": True}}},
        {
            "oneOf": [{"$ref": "#/components/schemas/A"}],
            "discriminator": {"propertyName": "kind"},
        },
        {
            "anyOf": [{"$ref": "#/components/schemas/A"}],
            "discriminator": {"propertyName": "kind"},
        },
    ],
)
def test_what_stands_beside_a_reference_counts_from_3_1_on(beside: Any) -> None:
    given = {"$ref": "#/components/schemas/A", "description": "x", **beside}
    source = with_pets(given, A={"type": "string"})
    assert body_of(source) == {"$ref": "#/$defs/A", "description": "x"}


def test_references_are_taken_in_however_they_recur() -> None:
    tree = {
        "type": "object",
        "properties": {"children": {"items": {"$ref": "#/components/schemas/A"}}},
    }
    schema = input_of(with_pets({"$ref": "#/components/schemas/A"}, A=tree, Unused={}))
    assert schema["$defs"] == {
        "A": {"type": "object", "properties": {"children": {"items": {"$ref": "#/$defs/A"}}}}
    }


def test_definitions_of_one_name_are_told_apart() -> None:
    source = with_pets(
        {"properties": {"a": {"$ref": "#/components/schemas/A"}, "b": {"$ref": "#/paths/~1y/A"}}},
        A={"type": "string"},
    )
    source["paths"]["/y"] = {"A": {"type": "integer"}}
    schema = input_of(source)
    assert schema["properties"]["body"]["properties"] == {
        "a": {"$ref": "#/$defs/A"},
        "b": {"$ref": "#/$defs/A_2"},
    }
    assert schema["$defs"] == {"A": {"type": "string"}, "A_2": {"type": "integer"}}


PETS = {
    "Cat": {
        "type": "object",
        "properties": {"kind": {"type": "string"}, "lives": {"type": "integer"}},
    },
    "Dog": {
        "type": "object",
        "properties": {"kind": {"type": "string"}, "barks": {"type": "boolean"}},
    },
}
EITHER = [{"$ref": "#/components/schemas/Cat"}, {"$ref": "#/components/schemas/Dog"}]


@each_row("key", ["oneOf", "anyOf"])
@each_row(
    ("mapping", "kind", "valid"),
    [
        (None, "Cat", True),
        (None, "cat", False),
        ({"cat": "#/components/schemas/Cat", "tom": "Cat", "dog": "Dog"}, "tom", True),
        ({"cat": "#/components/schemas/Cat", "tom": "Cat", "dog": "Dog"}, "dog", True),
        ({"cat": "#/components/schemas/Cat", "tom": "Cat", "dog": "Dog"}, "Cat", False),
        ({"cat": "#/components/schemas/Cat"}, "Dog", True),
    ],
)
def test_a_discriminator_tells_which_alternative_is_meant(
    key: str, mapping: Any, kind: str, valid: bool
) -> None:
    said = {"propertyName": "kind", **({"mapping": mapping} if mapping else {})}
    schema = input_of(with_pets({key: EITHER, "discriminator": said}, **PETS))
    validator = compile_validator(schema)
    assert validator.is_valid({"body": {"kind": kind}}) is valid
    assert not validator.is_valid({"body": {"lives": 9}})  # it does not say what it is


ANIMALS: dict[str, Any] = {
    "Animal": {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"type": "string"}, "mate": {"$ref": "#/components/schemas/Animal"}},
        "discriminator": {
            "propertyName": "kind",
            "mapping": {"cat": "#/components/schemas/Cat", "tom": "Cat", "lost": "nowhere"},
        },
    },
    "Cat": {
        "allOf": [
            {"$ref": "#/components/schemas/Animal"},
            {"required": ["lives"], "properties": {"lives": {"type": "integer"}}},
        ]
    },
    "Cow/1": {
        "allOf": [
            {"$ref": "#/components/schemas/Animal"},
            {"required": ["milk"], "properties": {"milk": {"type": "integer"}}},
        ]
    },
}
ANIMAL = {"$ref": "#/components/schemas/Animal"}


@each_row("version", ["3.0.3", "3.1.0"])
@each_row(
    ("given", "valid"),
    [
        ({"kind": "cat", "lives": 9}, True),
        ({"kind": "tom", "lives": 9, "mate": {"kind": "cat", "lives": 1}}, True),
        ({"kind": "Cow/1", "milk": 1}, True),
        ({"kind": "Animal"}, True),
        ({"kind": "lost"}, True),
        ({"kind": "cat"}, False),
        ({"kind": "tom", "lives": "nine"}, False),
        ({"kind": "Cow/1"}, False),
        ({"kind": "zebra"}, False),
        ({"kind": "Cat", "lives": 9}, False),
        ({"kind": "tom", "lives": 9, "mate": {"kind": "cat"}}, False),
        ({"lives": 9}, False),
    ],
)
@each_row("schema", [ANIMAL, {"type": "array", "items": ANIMAL}])
def test_a_schema_that_has_kinds_is_one_of_them(
    version: str, given: Any, valid: bool, schema: Any
) -> None:
    source = with_body(schema, version=version, components={"schemas": ANIMALS})
    body = given if schema is ANIMAL else [given]
    assert compile_validator(input_of(source)).is_valid({"body": body}) is valid


def kinds_of(name: str, kinds: int, properties: dict[str, Any]) -> dict[str, Any]:
    """A schema and as many kinds of it, each of which has these properties."""
    base = {
        "type": "object",
        "properties": {"kind": {"type": "string"}, "age": {"type": "integer"}},
        "discriminator": {"propertyName": "kind", "mapping": {"lost": "nowhere"}},
    }
    kind = {"allOf": [{"$ref": f"#/components/schemas/{name}"}], "properties": properties}
    return {name: base} | {f"{name}{at}": kind for at in range(kinds)}


AS_FOOD = {"$ref": "#/components/schemas/Food"}


@each_row(
    ("animals", "why"),
    [
        (kinds_of("Animal", 26, {f"n{at}": {} for at in range(2_000)}), "more than 50000 nodes"),
        (kinds_of("Animal", 60, {"eats": AS_FOOD}), "expand to more than 10000 nodes"),
        (kinds_of("Animal", 1, {"n": {"pattern": r"(a)\1"}}), "pattern"),
        (kinds_of("Animal", 1, {"n": {"$ref": "#/nowhere"}}), "leads nowhere"),
    ],
)
def test_arguments_are_held_to_no_kinds_whose_schema_cannot_be_used(
    caplog: pytest.LogCaptureFixture, animals: Any, why: str
) -> None:
    """Their operation is the tool that it is without a mapping; a warning says so."""
    source = with_pets(ANIMAL, **animals, **kinds_of("Food", 60, {}))
    eats = {**with_pets(AS_FOOD)["paths"]["/x"]["post"], "operationId": "eat"}
    source["paths"]["/eat"] = {"post": eats}
    caplog.clear()
    with caplog.at_level(logging.WARNING, "toolcrib.bridges"):
        schema = input_of(source)
    (said,) = caplog.messages
    assert said.startswith("the arguments of 'it' are not checked against the mapping")
    assert why in said
    del source["components"]["schemas"]["Animal"]["discriminator"]
    assert schema == input_of(source)
    held = compile_validator(input_of(source, "eat"))
    assert held.is_valid({"body": {"kind": "Food0"}})
    assert not held.is_valid({"body": {"kind": "any"}})


def test_a_schema_whose_kind_only_an_answer_tells_is_itself() -> None:
    animal: Any = json_copy(json.dumps(ANIMALS["Animal"]))
    animal["properties"]["kind"]["readOnly"] = True
    schema = input_of(with_pets(ANIMAL, **{**ANIMALS, "Animal": animal}))
    assert list(schema["$defs"]) == ["Animal"]


def test_a_kind_alone_is_itself() -> None:
    schema = input_of(with_pets({"$ref": "#/components/schemas/Cat"}, **ANIMALS))
    validator = compile_validator(schema)
    assert validator.is_valid({"body": {"kind": "anything", "lives": 9}})
    assert not validator.is_valid({"body": {"kind": "cat"}})


@each_row(
    ("reason", "text", "source"),
    [
        ("reference", "leads nowhere", with_body({"$ref": "#/components/schemas/A"})),
        ("reference", "leads nowhere", with_pets({"$ref": "#/components/schemas/A/x"}, A={})),
        ("reference", "nothing is fetched", with_body({"$ref": "https://evil.example/a.json"})),
        ("reference", "nothing is fetched", with_body({"$ref": "//evil.example/a.json"})),
        ("reference", "nothing is fetched", with_body({"$ref": "file:///etc/passwd"})),
        ("reference", "nothing is fetched", with_body({"$ref": "/etc/passwd"})),
        ("reference", "the document was not read from a file", with_body({"$ref": "a.json"})),
        ("reference", "not a path within", with_body({"$ref": "#Pet"})),
        (
            "reference",
            "form a loop",
            one({"parameters": [{"$ref": "#/paths/~1x/post/parameters/0"}]}),
        ),
        ("reference", "cannot be followed", with_body({"$dynamicRef": "#A"}, version="3.1.0")),
        (
            "schema",
            "leads back to itself",
            with_pets({"$ref": "#/components/schemas/A"}, A={"$ref": "#/components/schemas/A"}),
        ),
        ("schema", "not a usable schema", with_body({"type": "strnig"})),
        ("schema", "not a usable schema", with_body({"minLength": "1"})),
        ("schema", "a str is in a place where", with_body({"items": "x"})),
        ("schema", "no JSON|not JSON", with_body({"enum": [2**70]})),
        ("pattern", "no lookaround", with_body({"pattern": "^(?!aws:)"})),
        ("pattern", "no lookaround", with_body({"patternProperties": {"(?=a)": {}}})),
        (
            "too large",
            "nested too deeply",
            with_body(json_copy('{"items":' * 200 + "{}" + "}" * 200)),
        ),
        (
            "too large",
            "holds too much",
            with_body({"properties": {str(n): {} for n in range(60_000)}}),
        ),
        ("media type", "sent as application/xml", with_body({}, "application/xml")),
        (
            "media type",
            "is sent as text/csv",
            one({"parameters": [{"name": "a", "in": "query", "content": {"text/csv": {}}}]}),
        ),
        ("form", "is not an object", with_body({"type": "array"}, "multipart/form-data")),
        ("form", "without fields", one({"requestBody": {"content": {"multipart/form-data": {}}}})),
        ("form", "has no name", one({"parameters": [{"in": "query"}]})),
        ("form", "is in 'body'", one({"parameters": [{"name": "a", "in": "body"}]})),
        (
            "form",
            "the style 'wavy'",
            one({"parameters": [{"name": "a", "in": "query", "style": "wavy"}]}),
        ),
        ("form", "which is not one of its parameters", one({}, path="/x/{id}")),
        ("form", "a step '.' or '..'", one({}, path="/x/../y")),
        ("form", "a step '.' or '..'", one({}, path="/x/%2e%2E")),
        ("form", "a step '.' or '..'", one({}, path="/./x?a=/../")),
        (
            "form",
            "no header can be called 'a b'",
            one({"parameters": [{"name": "a b", "in": "header"}]}),
        ),
        ("form", "no cookie can be called", one({"parameters": [{"name": "a;b", "in": "cookie"}]})),
        (
            "form",
            "two of its headers are called 'x-a'",
            one({"parameters": [{"name": "X-A", "in": "header"}, {"name": "x-a", "in": "header"}]}),
        ),
        ("form", "a query or a fragment", one({"servers": [{"url": "https://x.example/?a="}]})),
        ("form", "server is not a URL", one({"servers": [{"url": "https://x.example:99999/"}]})),
        ("form", "server is not a URL", one({"servers": [{"url": "https://[::1/"}]})),
        ("media type", "is sent as", with_body({}, "application/json;\r\nX: y")),
        ("form", "does not begin with", one({}, path="x")),
        ("form", "not an operation", document({"/x": {"post": "it"}})),
    ],
)
def test_what_becomes_no_tool_is_named_with_its_reason(
    reason: str, text: str, source: dict[str, Any]
) -> None:
    source["paths"]["/fine"] = {"get": {"operationId": "fine", "responses": {}}}
    catalog, (refused,) = made(source)
    assert catalog.names == ("fine",)
    assert refused.operation.startswith("POST ")
    assert refused.reason == reason
    assert any(one in refused.text for one in text.split("|")), refused.text


def test_a_refusal_is_a_warning_unless_somebody_takes_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "toolcrib.bridges"):
        openapi_catalog(one({}, path="/x/{id}"))
    (said,) = caplog.messages
    assert said.startswith("no tool was made of POST /x/{id}: its path has {id}")


@each_row(
    ("operations", "names"),
    [
        ([("/a", "get", "findPets"), ("/b", "get", "findDogs")], ("findPets", "findDogs")),
        ([("/a", "get", "it"), ("/b", "get", "it")], ("it", "it_get")),
        (
            [("/a", "get", "it"), ("/b", "get", "it"), ("/c", "get", "it")],
            ("it", "it_get", "get_c"),
        ),
        ([("/a", "get", "getPet"), ("/b", "get", "get_pet")], ("getPet", "get_pet_get")),
        ([("/a/{id}", "get", ""), ("/a/id", "get", "")], ("get_a_by_id", "get_a_id")),
        ([("/", "get", "")], ("get",)),
        ([("/a", "get", "find pets/by:status")], ("find_pets_by_status",)),
        ([("/a", "get", "x" * 200)], ("x" * 128,)),
        ([("/a", "get", "x" * 200), ("/b", "get", "x" * 300)], ("x" * 128, "get_b")),
        ([("/a", "get", "日本")], ("get_a",)),
    ],
)
def test_each_operation_has_a_name_of_its_own(operations: Any, names: tuple[str, ...]) -> None:
    paths: dict[str, Any] = {}
    for path, method, id_ in operations:
        parameters: list[Any] = [{"name": "id", "in": "path", "schema": {}}]
        paths[path] = {method: {"operationId": id_, "responses": {}, "parameters": parameters}}
    catalog, refused = made(document(paths))
    assert (catalog.names, refused) == (names, [])


def test_arguments_of_one_name_say_where_they_are_sent() -> None:
    named = [
        ("id", "path"),
        ("id", "query"),
        ("id", "header"),
        ("body", "query"),
        ("$top", "query"),
    ]
    named += [("toolcrib_api", "query"), ("日本", "query"), ("a[b]", "query"), ("a_b", "query")]
    parameters: list[Any] = [{"name": name, "in": place, "schema": {}} for name, place in named]
    body = {"content": {"application/json": {"schema": {}}}, "required": True}
    source = one({"parameters": parameters, "requestBody": body}, path="/x/{id}")
    schema = input_of(source)
    assert list(schema["properties"]) == [
        *("id", "id_query", "id_header", "body", "top"),
        *("toolcrib_api_query", "query", "a_b", "a_b_query", "body_request"),
    ]
    assert schema["required"] == ["id", "body_request"]
    assert schema["additionalProperties"] is False
    assert [one.name for one in plan_of(source).parameters] == [name for name, _ in named]


def test_a_path_has_parameters_that_its_operations_replace() -> None:
    shared = [{"name": "a", "in": "query", "schema": {"type": "string"}}]
    own = [{"name": "a", "in": "query", "schema": {"type": "integer"}}]
    item = {
        "parameters": shared,
        "get": {"operationId": "g", "responses": {}},
        "post": {"operationId": "p", "responses": {}, "parameters": own},
    }
    source = document(
        {"/x": {"$ref": "#/components/pathItems/X"}}, components={"pathItems": {"X": item}}
    )
    assert input_of(source, "g")["properties"] == {"a": {"type": "string"}}
    assert input_of(source, "p")["properties"] == {"a": {"type": "integer"}}


def test_an_operation_replaces_a_header_however_it_is_written() -> None:
    shared = [{"name": "X-A", "in": "header", "schema": {"type": "string"}}]
    own = [{"name": "x-a", "in": "header", "schema": {"type": "integer"}}]
    item = {"parameters": shared, "get": {"operationId": "g", "responses": {}, "parameters": own}}
    assert input_of(document({"/x": item}), "g")["properties"] == {"x-a": {"type": "integer"}}


SCHEMES = {
    "header_key": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "query_key": {"type": "apiKey", "in": "query", "name": "key"},
    "cookie_key": {"type": "apiKey", "in": "cookie", "name": "sid"},
}


def test_no_argument_is_a_key_or_what_the_sender_fills_in() -> None:
    named = [("x-key", "header"), ("key", "query"), ("sid", "cookie"), ("Authorization", "header")]
    named += [("Accept", "header"), ("content-type", "header"), ("Idempotency-Key", "header")]
    named += [("Cookie", "header"), ("Host", "header"), ("Key", "query"), ("key", "header")]
    named += [("Accept-Encoding", "header"), ("TE", "header")]
    parameters = [{"name": name, "in": place, "schema": {}} for name, place in named]
    source = one({"parameters": parameters}, components={"securitySchemes": SCHEMES})
    assert list(input_of(source)["properties"]) == ["Key", "key"]


def test_what_looks_like_a_key_is_kept_from_records() -> None:
    names = ("access_token", "page")
    parameters: list[Any] = [{"name": name, "in": "query", "schema": {}} for name in names]
    catalog, _ = made(one({"parameters": parameters}))
    assert catalog["it"].get_definition().secret == ("access_token",)


@each_row(
    ("method", "asks", "safe", "claims"),
    [
        ("get", True, True, True),
        ("head", True, True, True),
        ("post", True, True, False),
        ("put", True, True, False),
        ("patch", True, True, False),
        ("delete", True, False, False),
    ],
)
def test_a_method_is_a_claim_that_makes_a_tool_stricter(
    method: str, asks: bool, safe: bool, claims: bool
) -> None:
    entry = made(one({}, method=method))[0].by_name["it"]
    marks = entry.tool.definition.annotations
    assert (marks.requires_approval, marks.safe, marks.read_only) == (asks, safe, False)
    assert entry.tool.imported is not None
    assert (entry.tool.imported.claims == "read_only") is claims


BASE: dict[str, Any] = {
    "parameters": [{"name": "id", "in": "query", "schema": {"type": "integer"}}],
    "summary": "Look at it.",
}


@each_row(
    "other",
    [
        one(BASE, method="put"),
        one(BASE, path="/admin"),
        one({**BASE, "parameters": [{**BASE["parameters"][0], "in": "header"}]}),
        one({**BASE, "parameters": [{**BASE["parameters"][0], "style": "deepObject"}]}),
        one({**BASE, "servers": [{"url": "https://other.example"}]}),
        one({**BASE, "security": [{}]}),
    ],
)
def test_another_request_is_another_tool(other: Any) -> None:
    """Though its name, its description and its schema are those that somebody read."""
    source = one(BASE)
    read = lock_catalog(openapi_catalog(source))
    trusted = openapi_catalog(source, trust={"it": Trusted()}, lock=read)
    assert not trusted["it"].get_definition().annotations.requires_approval
    assert input_of(other) == input_of(source)
    changed = openapi_catalog(other, trust={"it": Trusted()}, lock=read)
    assert changed["it"].get_definition().annotations.requires_approval
    digests = {one["it"].get_definition().digest for one in (trusted, changed)}
    assert len(digests) == 2


def test_policies_can_read_what_is_asked() -> None:
    source = one({}, path="/x/y", method="delete")
    catalog = openapi_catalog(source, marks={"it": {"marks": {"pii": True}}})
    marks: Any = catalog["it"].get_definition().annotations.marks
    assert marks["pii"] is True
    assert marks["openapi"]["request"] == "DELETE /x/y"


def answers(**responses: Any) -> Any:
    said = {
        status.lstrip("_"): {
            "content": {kind: {"schema": schema} for kind, schema in content.items()}
        }
        for status, content in responses.items()
    }
    catalog, refused = made(one({"responses": said}))
    assert refused == []
    return catalog["it"].get_definition().output_schema


JSON = "application/json"
TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
ONE, TRUE = {"enum": [1]}, {"enum": [True]}


@each_row(
    ("responses", "schema"),
    [
        ({"_200": {JSON: TEXT}}, TEXT),
        ({"_200": {JSON: TEXT}, "_404": {JSON: NUMBER}}, TEXT),
        ({"_200": {JSON: TEXT}, "_201": {JSON: TEXT}}, TEXT),
        ({"_200": {JSON: TEXT}, "_202": {JSON: NUMBER}}, {"anyOf": [TEXT, NUMBER]}),
        ({"_200": {JSON: ONE}, "_201": {JSON: TRUE}}, {"anyOf": [ONE, TRUE]}),
        ({"_200": {JSON: ONE}, "_201": {JSON: {"enum": [1.0]}}}, ONE),
        ({"_200": {JSON: TEXT}, "_204": {}}, {"anyOf": [TEXT, NULL]}),
        ({"_204": {}}, NULL),
        ({"_2XX": {JSON: TEXT}}, TEXT),
        ({"default": {JSON: TEXT}}, TEXT),
        ({"_200": {}, "default": {JSON: TEXT}}, None),
        ({"_200": {JSON: TEXT, "application/xml": {}}}, TEXT),
        ({"_200": {"text/csv": TEXT}}, None),
        ({"_200": {JSON: {"type": "file"}}}, None),
        ({"_200": {JSON: {"$ref": "#/nowhere"}}}, None),
        ({"_200": {JSON: NUMBER, "text/plain": TEXT}}, {"anyOf": [NUMBER, TEXT]}),
        ({"_200": {"text/plain": TEXT, JSON: NUMBER}}, {"anyOf": [NUMBER, TEXT]}),
        ({"_200": {JSON: NUMBER, "text/csv": {}}}, {"anyOf": [NUMBER, TEXT]}),
        ({"_200": {JSON: NUMBER, "text/plain": NUMBER}}, NUMBER),  # it is JSON that is asked for
        ({"_200": {JSON: NUMBER, "application/xml": NUMBER}}, NUMBER),
        ({"_200": {JSON: NUMBER, "application/pdf": {}}}, None),
        ({"_200": {"*/*": NUMBER}}, NUMBER),
        ({"_404": {JSON: TEXT}}, None),
        ({}, None),
        (
            {"_200": {JSON: {"properties": {"a": {"writeOnly": True}, "b": {"readOnly": True}}}}},
            {"properties": {"b": {"readOnly": True}}},
        ),
    ],
)
def test_what_a_tool_gives_is_what_its_operation_answers(responses: Any, schema: Any) -> None:
    told = answers(**responses)
    assert told == schema
    assert json.dumps(told) == json.dumps(schema)  # 1 is no True


def test_a_file_in_a_form_is_base64() -> None:
    schema = {
        "type": "object",
        "properties": {
            "one": {"type": "string", "format": "binary", "description": "a photo"},
            "many": {"type": "array", "items": {"$ref": "#/components/schemas/File"}},
            "name": {"type": "string"},
        },
    }
    source = with_body(schema, "multipart/form-data")
    source["components"] = {"schemas": {"File": {"type": "string", "format": "binary"}}}
    base64 = {"type": "string", "contentEncoding": "base64"}
    assert body_of(source)["properties"] == {
        "one": {**base64, "description": "a photo"},
        "many": {"type": "array", "items": base64},
        "name": {"type": "string"},
    }


BYTES: Any = {"type": "string", "contentMediaType": "application/octet-stream"}
BASE64 = {"type": "string", "contentEncoding": "base64"}
MANY = {"type": "array", "items": BASE64}
NULL = {"type": "null"}


@each_row(
    ("schema", "told"),
    [
        ({"anyOf": [BYTES, NULL], "title": "F"}, {"anyOf": [{**BASE64, "title": "F"}, NULL]}),
        ({"oneOf": [NULL, {"$ref": "#/components/schemas/File"}]}, {"anyOf": [BASE64, NULL]}),
        ({**BYTES, "type": ["string", "null"]}, {"anyOf": [BASE64, NULL]}),
        ({"allOf": [BYTES], "description": "it"}, {**BASE64, "description": "it"}),
        ({"$ref": "#/components/schemas/Files"}, {**MANY, "maxItems": 2}),
        (
            {"anyOf": [{"type": "array", "items": {"allOf": [BYTES]}, "minItems": 1}, NULL]},
            {"anyOf": [{**MANY, "minItems": 1}, NULL]},
        ),
        ({"contentMediaType": "image/png"}, BASE64),
        ({"type": "array", "items": {"contentMediaType": "image/*"}}, MANY),
        ({**BYTES, "allOf": [{"description": "At most 5 MB."}]}, BASE64),
    ],
)
def test_a_file_in_a_form_is_base64_however_it_says_so(schema: Any, told: Any) -> None:
    """As FastAPI says `UploadFile | None` and `list[UploadFile] | None`."""
    schemas: Any = {"File": BYTES, "Files": {**MANY, "items": BYTES, "maxItems": 2}}
    form = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    for given in (form, {"allOf": [{"$ref": "#/components/schemas/Form"}]}):
        source = with_body(given, "multipart/form-data", version="3.1.0")
        source["components"] = {"schemas": {**schemas, "Form": form}}
        assert body_of(source)["properties"]["a"] == told
        field = plan_of(source).body.fields["a"]  # type: ignore[union-attr]
        assert (field.is_bytes, field.required) == (True, True)


@each_row(
    ("schema", "media_type", "is_bytes"),
    [
        ({}, "image/png, image/jpeg", True),
        ({"type": "string"}, "application/octet-stream", True),
        ({"type": "string"}, "text/csv", False),
        ({"type": "string"}, "image/svg+xml", False),
        ({"type": "string", "contentEncoding": "base64"}, "image/png", False),
        ({"type": "string", "contentMediaType": "application/json"}, "", False),
    ],
)
def test_a_field_of_a_media_type_of_bytes_is_a_file(
    schema: Any, media_type: str, is_bytes: bool
) -> None:
    form = {"type": "object", "properties": {"a": schema}}
    said = {"encoding": {"a": {"contentType": media_type}}} if media_type else {}
    content = {"multipart/form-data": {"schema": form, **said}}
    plan = plan_of(one({"requestBody": {"content": content}}, version="3.1.0"))
    field = plan.body.fields["a"]  # type: ignore[union-attr]
    assert (field.is_bytes, field.media_type) == (is_bytes, media_type.partition(",")[0])


def test_what_an_author_says_of_a_tool_that_is_not_there_is_an_error() -> None:
    source = one({})
    mistyped: tuple[dict[str, Any], ...] = (
        {"only": ["its"]},
        {"visible": {"its": []}},
        {"marks": {"its": {}}},
    )
    for said in mistyped:
        with pytest.raises(
            CatalogError, match=r"the document: it has no tool 'its' \(did you mean 'it'"
        ):
            openapi_catalog(source, **said)
    with pytest.raises(TypeError, match=r"only must be a .*; got a str"):
        openapi_catalog(source, only="it")
    with pytest.raises(DefinitionError, match="there is no annotation"):
        openapi_catalog(source, marks={"it": {"saef": True}})  # type: ignore[typeddict-unknown-key]


def test_a_document_is_left_as_it_was() -> None:
    source = with_pets(
        {"$ref": "#/components/schemas/A", "nullable": True},
        A={"minimum": 1, "exclusiveMinimum": True},
    )
    before = json.dumps(source)
    made(source)
    assert json.dumps(source) == before
