"""Reading documents: JSON and YAML, versions, files beside them, and nothing beyond their folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from openapi.documents import document, input_of, made, one, with_body
from openapi.petstore import DOCUMENT
from openapi_spec_validator import validate
from rows import each_row

from toolcrib.bridges.openapi import openapi_catalog
from toolcrib.bridges.openapi.document import Document
from toolcrib.bridges.openapi.schemas import ApiSchemas
from toolcrib.errors import SourceError
from toolcrib.schema import compile_validator


def written(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_pet_shop_is_a_document() -> None:
    validate(Document(DOCUMENT).main.content)


@each_row("version", ["3.0.0", "3.0.3", "3.1.0", "3.1.1", "2.0"])
def test_a_document_is_read_from_json_yaml_or_a_dictionary(version: str, tmp_path: Path) -> None:
    source = one({"summary": "Do it."}, version=version)
    text = json.dumps(source)
    for given in (
        source,
        written(tmp_path / "a.json", text),
        str(written(tmp_path / "b.txt", b"\xef\xbb\xbf" + text.encode())),
        written(tmp_path / "c.yaml", text.replace('"openapi": "', '"openapi": "')),
    ):
        assert openapi_catalog(given).names == ("it",)


@each_row(
    ("content", "is_swagger", "is_3_1"),
    [
        ("swagger: 2.0", True, False),
        ("openapi: 3.0", False, False),
        ("openapi: 3.1", False, True),
        ("openapi: 3.1.2", False, True),
    ],
)
def test_a_version_is_read_with_and_without_quotes(
    content: str, is_swagger: bool, is_3_1: bool, tmp_path: Path
) -> None:
    read = Document(written(tmp_path / "a.yaml", content))
    assert (read.is_swagger, ApiSchemas(read, "request").is_3_1) == (is_swagger, is_3_1)


@each_row(
    ("given", "why"),
    [
        ("https://ada:canary@api.example.com/openapi.json", "nothing is fetched"),
        ("http://127.0.0.1:8000/openapi.json?key=canary", "nothing is fetched"),
        ('{"openapi": "3.0.0", "info": "canary"}', "this is the text of a document"),
        ("openapi: 3.0.0\ninfo: canary\n", "this is the text of a document"),
    ],
)
def test_what_is_no_path_is_told_and_not_repeated(given: str, why: str) -> None:
    with pytest.raises(SourceError, match=why) as caught:
        openapi_catalog(given)
    assert "canary" not in str(caught.value)


@each_row(
    ("name", "content", "why"),
    [
        ("a.json", "{", "a.json: it is not JSON at line 1"),
        ("a.json", '{"openapi": "3.0.0", "openapi": "3.0.1"}', "a key appears twice at line 1"),
        ("a.yaml", "openapi: 3.0.0\nopenapi: 3.0.1\n", "a key appears twice at line 2"),
        ("a.yaml", "openapi: [", "it is not YAML at line"),
        ("a.yaml", "openapi: !!python/object/apply:os.getcwd []", "it is not YAML at line 1"),
        ("a.yaml", b"openapi: \xff", "not readable as JSON or YAML"),
        ("a.yaml", "[" * 5000, "it"),
        ("a.json", "[]", "it does not say its version"),
        ("a.json", "{}", "it does not say its version"),
        ("a.yaml", "just text", "it does not say its version"),
        ("a.json", '{"openapi": "4.0.0"}', "it says '4.0.0'"),
        ("a.json", '{"swagger": "1.2"}', "it says '1.2'"),
        ("a.json", '{"openapi": 3}', "it does not say its version"),
    ],
)
def test_what_is_no_document(name: str, content: str | bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        openapi_catalog(written(tmp_path / name, content))
    assert why in str(caught.value)


def test_a_file_that_is_not_there_or_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "no.json", tmp_path):
        with pytest.raises(SourceError, match="it cannot be read"):
            openapi_catalog(path)
    with pytest.raises(SourceError, match="nothing is fetched: save the document"):
        openapi_catalog("https://shop.example/openapi.json")


def test_yaml_is_read_as_the_types_of_json(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.yaml",
        "openapi: 3.0.0\npaths: {}\n200: x\n"
        "said: [no, on, 2020-01-01, 010, 1e3, 0x1F, 1_0, ~, null, '5', 1:30]\n",
    )
    content = Document(path).main.content
    assert content["200"] == "x"
    assert content["said"] == [
        *("no", "on", "2020-01-01", 10, 1000.0, "0x1F", "1_0", None, None, "5", "1:30")
    ]


@each_row(
    ("text", "read"),
    [
        ("{<<: *a, z: 1}", {"x": 1, "y": 2, "z": 1}),
        ("{z: 1, <<: *a, x: 9}", {"x": 9, "y": 2, "z": 1}),
        ("{<<: [*b, *a]}", {"x": 7, "y": 2}),
        ("{<<: *b, <<: *a}", {"x": 7, "y": 2}),
        ("{<<: {x: 5, <<: *a}}", {"x": 5, "y": 2}),
        ("{<<: {}}", {}),
        ("{'<<': *b}", {"<<": {"x": 7}}),
    ],
)
@each_row("loader", ["CSafeLoader", "SafeLoader"])
def test_a_merge_key_takes_in_what_it_names(
    loader: str, text: str, read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yaml, "CSafeLoader", getattr(yaml, loader))
    head = "openapi: 3.0.0\npaths: {}\na: &a {x: 1, y: 2}\nb: &b {x: 7}\n"
    content = Document(written(tmp_path / "a.yaml", f"{head}said: {text}\n")).main.content
    assert content["said"] == read


def test_what_a_merge_key_takes_in_counts(tmp_path: Path) -> None:
    """In a schema, and in the operation whose key it names."""
    source = one({"requestBody": {"content": {"application/json": {"schema": {}}}}})
    text = yaml.safe_dump(source).replace(
        "schema: {}", "schema: {<<: {type: object, additionalProperties: false}, title: X}"
    )
    body = input_of(written(tmp_path / "a.yaml", text))["properties"]["body"]
    assert body == {"type": "object", "additionalProperties": False, "title": "X"}


@each_row(
    ("text", "why"),
    [
        ("{<<: 1}", "a merge key (<<) merges something that is not a mapping at line 3"),
        ("{<<: [{}, x]}", "a merge key (<<) merges something that is not a mapping at line 3"),
        ("&a {<<: *a}", "it is not YAML at line 3"),
    ],
)
def test_what_a_merge_key_cannot_take_in(text: str, why: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.yaml", f"openapi: 3.0.0\npaths: {{}}\nsaid: {text}\n")
    with pytest.raises(SourceError) as caught:
        Document(path)
    assert why in str(caught.value)


def test_merge_keys_that_multiply_are_refused_and_hold_nothing_up(tmp_path: Path) -> None:
    members = ", ".join(f"k{n}: 1" for n in range(2_000))
    merges = "\n".join(f"m{n}: {{<<: *a}}" for n in range(2_000))
    text = f"openapi: 3.0.0\npaths: {{}}\na: &a {{{members}}}\n{merges}\n"
    with pytest.raises(SourceError, match="merge too much"):
        Document(written(tmp_path / "a.yaml", text))


def test_a_dictionary_may_have_numbers_as_keys_as_yaml_reads_them() -> None:
    text = "openapi: 3.0.0\npaths: {/x: {get: {operationId: it, responses: {200: {content: {7: {}}}}}}}"
    catalog, refused = made(yaml.safe_load(text))
    assert (catalog.names, refused) == (("it",), [])


def test_an_alias_that_multiplies_is_refused_and_holds_nothing_up(tmp_path: Path) -> None:
    lines = ["openapi: 3.0.0", "bombs:", "  a0: &a0 {type: string}"]
    lines += [
        f"  a{n}: &a{n} {{properties: {{{', '.join(f'p{i}: *a{n - 1}' for i in range(9))}}}}}"
        for n in range(1, 9)
    ]
    lines += ["paths: {/x: {post: {requestBody: {content: {application/json: {schema: *a8}}}}}}"]
    _, (refused,) = made(written(tmp_path / "a.yaml", "\n".join(lines)))
    assert refused.reason == "too large"


def test_a_value_that_holds_itself_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.yaml", "openapi: 3.0.0\npaths: &a {/x: *a}")
    with pytest.raises(SourceError, match="it is not YAML at line 2"):
        openapi_catalog(path)


def test_references_lead_to_files_beside_the_document(tmp_path: Path) -> None:
    body = {"content": {"application/json": {"schema": {"$ref": "parts/pet.yaml#/Pet"}}}}
    source = document({"/x": {"$ref": "paths/x.json"}})
    written(tmp_path / "api.json", json.dumps(source))
    operation = {"operationId": "it", "responses": {}, "requestBody": {"$ref": "../bodies.json#/b"}}
    written(tmp_path / "paths/x.json", json.dumps({"post": operation}))
    written(tmp_path / "bodies.json", json.dumps({"b": body}))
    written(
        tmp_path / "parts/pet.yaml",
        "Pet: {properties: {kind: {$ref: 'kind.json'}, mate: {$ref: '#/Pet'}}}",
    )
    written(tmp_path / "parts/kind.json", '{"type": "string"}')
    schema = input_of(tmp_path / "api.json")
    assert schema["properties"]["body"] == {"$ref": "#/$defs/Pet"}
    assert schema["$defs"] == {
        "Pet": {"properties": {"kind": {"$ref": "#/$defs/kind"}, "mate": {"$ref": "#/$defs/Pet"}}},
        "kind": {"type": "string"},
    }


@each_row(
    ("ref", "why"),
    [
        ("../secret.json", "leads out of the folder"),
        ("link.json", "leads out of the folder"),
        ("%2e%2e/secret.json", "leads out of the folder"),
        ("no.json", "there is no such file"),
        ("a\0b.json", "there is no such file"),
        ("broken.json", "it is not JSON"),
        ("http://localhost/a.json", "nothing is fetched"),
        ("fine.json?x=1", "nothing is fetched"),
    ],
)
def test_no_reference_leads_out_of_the_folder(ref: str, why: str, tmp_path: Path) -> None:
    written(tmp_path / "secret.json", '{"description": "canary"}')
    written(tmp_path / "api/broken.json", "{")
    written(tmp_path / "api/fine.json", "{}")
    (tmp_path / "api/link.json").symlink_to(tmp_path / "secret.json")
    source: Any = one({"requestBody": {"content": {"application/json": {"schema": {"$ref": ref}}}}})
    catalog, (refused,) = made(written(tmp_path / "api/api.json", json.dumps(source)))
    assert (len(catalog), refused.reason) == (0, "reference")
    assert why in refused.text
    assert "canary" not in refused.text


@each_row("mapping", ["Cat", "../api.json#/components/schemas/Cat"])
def test_kinds_are_found_in_the_file_of_the_document(mapping: str, tmp_path: Path) -> None:
    """Where a schema that has kinds lies in another file."""
    base = {"$ref": "more/base.json#/Animal"}
    cat = {"allOf": [base], "required": ["lives"]}
    cow = {"allOf": [base], "required": ["milk"]}
    animal = {"discriminator": {"propertyName": "kind", "mapping": {"tom": mapping}}}
    written(tmp_path / "more/base.json", json.dumps({"Animal": animal}))
    source = with_body(base, components={"schemas": {"Cat": cat, "Cow": cow}})
    path = written(tmp_path / "api.json", json.dumps(source))
    validator = compile_validator(input_of(path))
    assert validator.is_valid({"body": {"kind": "tom", "lives": 9}})
    assert validator.is_valid({"body": {"kind": "Cow", "milk": 1}})
    for body in ({"kind": "tom"}, {"kind": "Cow"}, {"kind": "Cat", "lives": 9}):
        assert not validator.is_valid({"body": body})
