"""Schema files that refer to each other, taken into one: what it means stays the same."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from rows import each_row

from toolcrib import ALL, tool
from toolcrib.errors import SchemaError, SourceError
from toolcrib.schema import bundle_refs, check_schema, compile_validator
from toolcrib.schema.bundle import MAX_FILES

D7 = "http://json-schema.org/draft-07/schema#"
TEXT = {"type": "string"}
CASES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "a whole file": (
        {"main.json": {"properties": {"a": {"$ref": "other.json"}}}, "other.json": TEXT},
        [{"a": "x"}, {"a": 1}, {}],
    ),
    "a place in a file": (
        {
            "main.json": {"properties": {"a": {"$ref": "defs/x.json#/definitions/Y"}}},
            "defs/x.json": {"definitions": {"Y": {"$ref": "#/definitions/Z"}, "Z": TEXT}},
        },
        [{"a": "x"}, {"a": 1}],
    ),
    "an anchor": (
        {
            "main.json": {"items": {"$ref": "./a.json#here"}, "$defs": {"q": {"$anchor": "here"}}},
            "a.json": {"$defs": {"q": {"$anchor": "here", **TEXT}}},
        },
        [["x"], [1]],
    ),
    "relative to the file that it stands in": (
        {
            "main.json": {"properties": {"a": {"$ref": "deep/er/one.json"}}},
            "deep/er/one.json": {"items": {"$ref": "../two.json"}},
            "deep/two.json": {"properties": {"b": {"$ref": "../two.json"}}},
            "two.json": {"type": "integer"},
        },
        [{"a": [{"b": 1}]}, {"a": [{"b": "x"}]}],
    ),
    "in a circle": (
        {
            "main.json": {"properties": {"a": {"$ref": "a.json"}}},
            "a.json": {"type": "object", "properties": {"b": {"$ref": "b.json"}}},
            "b.json": {"properties": {"a": {"$ref": "a.json"}, "m": {"$ref": "main.json"}}},
        },
        [{"a": {"b": {"a": {"b": {}}}}}, {"a": {"b": {"a": 1}}}, {"a": {"b": {"m": {"a": 1}}}}],
    ),
    "back into the first file": (
        {
            "main.json": {"$defs": {"t": TEXT}, "properties": {"a": {"$ref": "a.json"}}},
            "a.json": {"anyOf": [{"$ref": "main.json#/$defs/t"}, {"type": "null"}]},
        },
        [{"a": "x"}, {"a": None}, {"a": 1}],
    ),
    "names that are taken": (
        {
            "main.json": {
                "$defs": {"Y": {"type": "null"}},
                "properties": {
                    "n": {"$ref": "#/$defs/Y"},
                    "a": {"$ref": "a.json#/$defs/Y"},
                    "b": {"$ref": "b.json#/$defs/Y"},
                },
            },
            "a.json": {"$defs": {"Y": TEXT}},
            "b.json": {"$defs": {"Y": {"type": "integer"}}},
        },
        [{"n": None, "a": "x", "b": 1}, {"n": 1}, {"a": 1}, {"b": "x"}],
    ),
    "beside other keywords": (
        {
            "main.json": {"properties": {"a": {"$ref": "a.json", "maxLength": 2}}},
            "a.json": {**TEXT, "minLength": 1},
        },
        [{"a": "xx"}, {"a": "xxx"}, {"a": ""}],
    ),
    "draft 7": (
        {
            "main.json": {
                "$schema": D7,
                "properties": {"a": {"$ref": "a.json", "maxLength": 2}, "b": {"$ref": "a.json#n"}},
            },
            "a.json": {
                "$schema": D7,
                "items": [TEXT, {"$ref": "#/definitions/n"}],
                "definitions": {"n": {"$id": "#n", "type": "integer"}},
            },
        },
        [{"a": ["x", 1]}, {"a": ["x", "x"]}, {"b": 1}, {"b": "x"}, {"a": [1]}],
    ),
    "data is left alone": (
        {
            "main.json": {
                "enum": [{"$ref": "nowhere.json"}, 1],
                "properties": {"$ref": {"$ref": "a.json"}},
                "default": {"$ref": "http://example.com"},
            },
            "a.json": TEXT,
        },
        [{"$ref": "nowhere.json"}, 1, {"$ref": "x"}],
    ),
    "keywords of one's own that hold schemas": (
        {
            "main.json": {
                "items": {"$ref": "#/components/schemas/a"},
                "components": {"schemas": {"a": {"items": {"$ref": "api.json#/components/x%20y"}}}},
            },
            "api.json": {
                "components": {"x y": {"items": {"$ref": "#/components/z~1w"}}, "z/w": TEXT}
            },
        },
        [[[["x"]]], [[[1]]]],
    ),
    "true and false are schemas": (
        {
            "main.json": {
                "properties": {"a": {"$ref": "t.json"}, "b": {"$ref": "t.json#/$defs/no"}}
            },
            "t.json": {"$defs": {"no": False}},
        },
        [{"a": 1}, {"b": 1}],
    ),
    "identifiers of the files": (
        {
            "main.json": {"$id": "urn:main", "items": {"$ref": "a.json"}},
            "a.json": {"properties": {"t": {"$ref": "#/$defs/t"}}, "$defs": {"t": TEXT}},
        },
        [[{"t": "x"}], [{"t": 1}]],
    ),
}


def written(folder: Path, files: Mapping[str, Any]) -> Path:
    for name, schema in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
        path.write_text(text, encoding="utf-8")
    return folder / next(iter(files))


def judged_apart(files: Mapping[str, Any]) -> Any:
    """The same files, as an independent implementation reads them one by one."""
    base = "http://files.invalid/"
    main = {k: v for k, v in files["main.json"].items() if k != "$id"}
    draft7 = main.get("$schema") == D7
    compiler = jsonschema_rs.Draft7Validator if draft7 else jsonschema_rs.Draft202012Validator
    return compiler(
        {"$id": base + "main.json", **main},
        retriever=lambda uri: files[uri.removeprefix(base)],
    )


@each_row(("files", "values"), CASES.values(), ids=CASES)
@pytest.mark.exhaustive
def test_the_whole_means_what_the_files_do(
    files: dict[str, Any], values: list[Any], tmp_path: Path
) -> None:
    made = bundle_refs(written(tmp_path, files))
    check_schema(made)
    ours, theirs = compile_validator(made), judged_apart(files)
    judgements = [ours.is_valid(value) for value in values]
    assert judgements == [theirs.is_valid(value) for value in values]
    assert len(set(judgements)) == 2
    assert bundle_refs(str(tmp_path / "main.json")) == made


def test_names_are_given_in_order(tmp_path: Path) -> None:
    made: Any = bundle_refs(written(tmp_path, CASES["names that are taken"][0]))
    assert list(made["$defs"]) == ["Y", "Y_2", "Y_3"]
    assert made["properties"]["b"] == {"$ref": "#/$defs/Y_3"}


def test_what_is_referred_to_twice_is_there_once(tmp_path: Path) -> None:
    files = {
        "main.json": {"prefixItems": [{"$ref": "a.json#x"}, {"$ref": "./a.json#/$defs/x"}]},
        "a.json": {"$defs": {"x": {"$anchor": "x"}, "unused": {"$ref": "http://example.com"}}},
    }
    assert bundle_refs(written(tmp_path, files)) == {
        "prefixItems": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/x"}],
        "$defs": {"x": {}},
    }


def test_one_file_alone_is_itself(tmp_path: Path) -> None:
    schema = {"$schema": D7, "type": "object", "definitions": {"a": {"$ref": "#"}}, "x": 1.5}
    assert bundle_refs(written(tmp_path, {"one.json": schema})) == schema


def test_a_tool_of_it(tmp_path: Path) -> None:
    files = {
        "main.json": {"type": "object", "properties": {"a": {"$ref": "a.json"}}, "required": ["a"]},
        "a.json": TEXT,
    }

    @tool(visible=ALL, input_schema=bundle_refs(written(tmp_path, files)))
    def take(a: str) -> str:
        """Take."""
        return a

    assert take.definition.input_schema is not None


def test_a_wider_root_may_be_given(tmp_path: Path) -> None:
    files = {"in/main.json": {"items": {"$ref": "../shared/a.json"}}, "shared/a.json": TEXT}
    path = written(tmp_path, files)
    with pytest.raises(SchemaError, match="leads out of the folder") as caught:
        bundle_refs(path)
    assert caught.value.pointer == "/items/$ref"
    assert bundle_refs(path, root=tmp_path) == {
        "items": {"$ref": "#/$defs/a"},
        "$defs": {"a": TEXT},
    }


def chain(count: int) -> dict[str, Any]:
    files: dict[str, Any] = {"main.json": {"$ref": "0.json"}}
    return files | {f"{i}.json": {"items": {"$ref": f"{i + 1}.json"}} for i in range(count)}


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "http": ({"main.json": {"$ref": "http://127.0.0.1:9/x"}}, "nothing is fetched", "/$ref"),
    "file URL": ({"main.json": {"$ref": "file:///etc/passwd"}}, "nothing is fetched", "/$ref"),
    "absolute": ({"main.json": {"$ref": "/etc/hostname"}}, "nothing is fetched", "/$ref"),
    "a host": ({"main.json": {"$ref": "//127.0.0.1/x"}}, "nothing is fetched", "/$ref"),
    "a query": ({"main.json": {"$ref": "a.json?x"}, "a.json": {}}, "nothing is fetched", "/$ref"),
    "out": ({"main.json": {"items": {"$ref": "../x"}}}, "leads out of the folder", "/items/$ref"),
    "out, encoded": ({"main.json": {"$ref": "%2e%2e/x"}}, "leads out of the folder", "/$ref"),
    "no file": ({"main.json": {"$ref": "gone.json"}}, "no such file", "/$ref"),
    "a NUL": ({"main.json": {"$ref": "a%00"}}, "does not name a file", "/$ref"),
    "a long name": ({"main.json": {"$ref": "a" * 5000}}, "does not name a file|no such file", "/$ref"),
    "a folder": ({"main.json": {"$ref": "d"}, "d/x": {}}, "no such file", "/$ref"),
    "nothing there": ({"main.json": {"$ref": "a.json#/x"}, "a.json": {}}, "a.json", "/$ref"),
    "no schema there": ({"main.json": {"$ref": "a.json#/x"}, "a.json": {"x": 1}},
        "lead to a schema", "/$ref"),
    "in another file": (
        {"main.json": {"$ref": "a.json"}, "a.json": {"not": {"$ref": "http://x"}}},
        "^a.json: ", "/not/$ref",
    ),
    "below a place in another file": (
        {"main.json": {"$ref": "a.json#/$defs/q"}, "a.json": {"$defs": {"q": {"$ref": "b"}}}},
        "^a.json: ", "/$defs/q/$ref",
    ),
    "no JSON": ({"main.json": {"$ref": "a.json"}, "a.json": "{'a': 1}"}, "a.json is not JSON", ""),
    "NaN": ({"main.json": {"$ref": "a.json"}, "a.json": '{"a": NaN}'}, "a.json is not JSON", ""),
    "a key twice": ({"main.json": '{"a":1,"a":2}'}, "a key appears twice at line 1", ""),
    "no object": ({"main.json": "[1]"}, "a schema to bundle must be a JSON object", ""),
    "a number": ({"main.json": {"$ref": "a.json"}, "a.json": "1"}, "^a.json: it is not JSON", ""),
    "too deep": ({"main.json": '{"not":' * 150 + "{}" + "}" * 150}, "nested deeper|not JSON", ""),
    "too many files": (chain(MAX_FILES + 5), "more than 200 files", ""),
    "too large": ({"main.json": json.dumps({"title": "x" * 5_000_000})}, "longer than", ""),
    "two dialects": (
        {"main.json": {"$ref": "a.json"}, "a.json": {"$schema": D7}}, "use one dialect", "/$schema",
    ),
    "a strange dialect": ({"main.json": {"$schema": "http://x"}}, "not supported", "/$schema"),
    "$dynamicRef between files": (
        {"main.json": {"$dynamicRef": "a.json#x"}, "a.json": {"$dynamicAnchor": "x"}},
        "use \\$ref", "/$dynamicRef",
    ),
    "an $id below the top": (
        {"main.json": {"items": {"$id": "urn:x", "not": {"$ref": "a.json"}}}, "a.json": {}},
        "remove that", "/items/not/$ref",
    ),
    "a loop": (
        {"main.json": {"$ref": "a.json"}, "a.json": {"$ref": "main.json"}}, "never end", "",
    ),
    "definitions that are none": ({"main.json": {"$defs": 3}}, "is not an object", "/$defs"),
}  # fmt: skip


@each_row(("files", "text", "pointer"), WRONG.values(), ids=WRONG)
def test_what_is_refused(files: dict[str, Any], text: str, pointer: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=text) as caught:
        bundle_refs(written(tmp_path, files))
    assert caught.value.pointer.startswith(pointer)
    assert len(str(caught.value)) < 700
    assert str(tmp_path) not in str(caught.value)


def test_links_lead_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"const": "CANARY"}', encoding="utf-8")
    path = written(tmp_path / "in", {"main.json": {"items": {"$ref": "link.json"}}})
    (path.parent / "link.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(SchemaError, match="leads out of the folder"):
        bundle_refs(path)
    (path.parent / "link.json").unlink()
    (path.parent / "link.json").symlink_to("link.json")
    with pytest.raises(SchemaError, match=r"link\.json"):
        bundle_refs(path)
    (path.parent / "link.json").unlink()
    os.mkfifo(path.parent / "link.json")
    with pytest.raises(SchemaError, match="no such file"):
        bundle_refs(path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot be read: No such file"):
        bundle_refs(tmp_path / "gone.json")
    with pytest.raises(SourceError, match="it is not a file"):
        bundle_refs(tmp_path)
    path = written(tmp_path, {"in/main.json": {}})
    (tmp_path / "other").mkdir()
    with pytest.raises(SourceError, match="outside the root"):
        bundle_refs(path, root=tmp_path / "other")
    (tmp_path / "latin.json").write_bytes(b'{"title": "\xe9"}')
    with pytest.raises(SchemaError, match="byte 11 is not UTF-8"):
        bundle_refs(tmp_path / "latin.json")
    (tmp_path / "bom.json").write_bytes(b'\xef\xbb\xbf{"title": "x"}')
    assert bundle_refs(tmp_path / "bom.json") == {"title": "x"}
