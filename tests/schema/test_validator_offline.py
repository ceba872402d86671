"""Nothing is ever fetched: a server and a file that every reference leads to are never read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from rows import each_row

from toolcrib.errors import SchemaError
from toolcrib.schema import LazyValidator, compile_validator
from toolcrib.schema.guard import inspect_schema
from toolcrib.schema.references import Draft
from toolcrib.schema.validator import _compiled, check_keywords

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


class Counting(BaseHTTPRequestHandler):
    """Answers with a schema that refuses everything, and keeps what was asked for."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"not": {}}')

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    handler = type("Handler", (Counting,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}", asked
        listening.shutdown()


def outward(to: str) -> list[dict[str, Any]]:
    """Every place where a schema can name another one."""
    ref = {"$ref": f"{to}/a"}
    return [
        ref,
        {"properties": {"a": ref}},
        {"$dynamicRef": f"{to}/a#m"},
        {"$recursiveRef": f"{to}/a"},
        {"$schema": f"{to}/a"},
        {"properties": {"a": {"$schema": f"{to}/a", "$id": f"{to}/b"}}},
        {"$id": f"{to}/a", "properties": {"a": {"$ref": "b.json"}}},
        {"$id": f"{to}/a", "properties": {"a": {"$ref": "#/properties/b"}, "b": {}}},
        {"properties": {"a": {"$id": f"{to}/a", "$ref": "#/properties/b"}}},
        {"contentMediaType": "application/json", "contentSchema": ref},
        {"$defs": {"unused": ref}},
        {"dependencies": {"a": ref}},
        {"items": [ref], "additionalItems": ref},
        {"unevaluatedProperties": ref},
        {"$vocabulary": {f"{to}/a": True}},
        {"x-own": {**ref, "$id": f"{to}/b"}, "properties": {"a": {"$ref": "#/x-own"}}},
        {"enum": [ref], "const": {"$schema": f"{to}/a"}, "default": ref},
    ]


@each_row("draft", [None, DRAFT_7])
@each_row("number", range(len(outward(""))))
def test_nothing_is_asked_for(
    server: tuple[str, list[str]], tmp_path: Path, number: int, draft: str | None
) -> None:
    """Neither by a whole validator, nor by the library alone where nobody checked the schema."""
    address, asked = server
    (tmp_path / "a").write_text('{"not": {}}', encoding="utf-8")
    for to in (address, tmp_path.as_uri()):
        schema = {**({"$schema": draft} if draft else {}), **outward(to)[number]}
        for make in (compile_validator, LazyValidator):
            try:
                made = make(schema)
            except SchemaError:
                continue
            made.is_valid({"a": 1})
            made.violations({"a": 1})
        inspected = inspect_schema({})._replace(draft=Draft.D7 if draft else Draft.D2020)
        for use in (_compiled, check_keywords):
            try:
                use(schema, inspected)
            except SchemaError:
                continue
    assert asked == []


def test_the_server_would_have_been_asked(server: tuple[str, list[str]]) -> None:
    address, asked = server
    assert not jsonschema_rs.Draft202012Validator({"$ref": f"{address}/a"}).is_valid(1)
    assert asked == ["/a"]
    asked.clear()
