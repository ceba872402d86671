"""What real MCP servers list goes to every provider: encoded, legal there, and back unharmed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from real import there_and_back, told
from rows import each_row

from toolcrib import Catalog, get_definition
from toolcrib.lint import check_tools
from toolcrib.tools.sources import discover, read_definitions
from toolcrib.values.definition import ToolDefinition
from toolcrib.wire import FORMS, encode_tools, tool_views

LISTINGS = Path(__file__).parent / "listings"
SIZES = {
    "everything": 17,
    "filesystem": 14,
    "git": 12,
    "memory": 9,
    "sequential_thinking": 1,
    "time": 2,
}
FORM_NAMES = ("openai-chat", "openai-responses", "anthropic", "ollama", "gemini")
STRICT_FORMS = ("openai-chat", "openai-responses", "anthropic")

every_server = each_row("server", SIZES)
every_form = each_row("form", FORM_NAMES)
strict_or_not = each_row("strict", [False, True], ids=["plain", "strict"])


def saved(server: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((LISTINGS / f"{server}.json").read_text(encoding="utf-8"))
    return found


def definitions(server: str, strict: bool = False) -> list[ToolDefinition]:
    catalog = Catalog.from_definitions(read_definitions(LISTINGS / f"{server}.json"))
    found = [get_definition(tool) for tool in catalog]
    return [
        msgspec.structs.replace(definition, strict=True) if strict else definition
        for definition in found
    ]


def example(schema: Any, root: Any) -> Any:
    """The plainest value that fits, with every property; of a union it is the first member."""
    if not isinstance(schema, dict):
        return {}
    if "$ref" in schema:
        return example(_at(root, schema["$ref"]), root)
    for keyword in ("const", "default"):
        if keyword in schema:
            return schema[keyword]
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return example(schema["anyOf"][0], root)
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        return {name: example(child, root) for name, child in properties.items()}
    if schema.get("type") == "array":
        fewest = max(1, schema.get("minItems", 0))
        return [example(schema.get("items", {}), root) for _ in range(fewest)]
    return _plain(schema)


def _plain(schema: Any) -> Any:
    if schema.get("format") == "uri":
        return "https://example.org/data.txt"
    if schema.get("format") == "date-time":
        return "2026-03-01T09:30:00Z"
    plain = {"string": "text", "boolean": True, "number": 1.5, "integer": 1, "null": None}
    kind = schema.get("type", "string")
    least: Any = schema.get("minimum", plain[kind[0] if isinstance(kind, list) else kind])
    return least


def _at(root: Any, reference: str) -> Any:
    found: Any = root
    for token in reference.removeprefix("#").strip("/").split("/"):
        found = found[token] if token else found
    return found


def test_the_listings_are_those_of_six_servers() -> None:
    found = {path.stem: len(saved(path.stem)["tools"]) for path in LISTINGS.glob("*.json")}
    assert found == SIZES
    assert all(saved(s).keys() >= {"package", "serverInfo", "protocolVersion"} for s in SIZES)


@every_server
def test_a_listing_is_a_file_of_definitions_and_its_schemas_stay_as_they_are(server: str) -> None:
    listed = saved(server)["tools"]
    made = definitions(server)
    assert [d.name for d in made] == [tool["name"].replace("/", "_") for tool in listed]
    assert [d.input_schema for d in made] == [tool["inputSchema"] for tool in listed]
    assert [d.output_schema for d in made] == [tool.get("outputSchema") for tool in listed]
    assert [d.description for d in made] == [tool.get("description", "") for tool in listed]


def test_all_servers_together_are_one_catalog() -> None:
    together = discover(*(LISTINGS / f"{server}.json" for server in SIZES))
    assert len(together) == sum(SIZES.values()) == 55


@every_form
@every_server
def test_a_provider_gets_every_tool_under_a_legal_name(server: str, form: str) -> None:
    offered = definitions(server)
    sent: Any = encode_tools(form, offered)
    if form == "gemini":
        sent = sent[0]["functionDeclarations"]
    told_of = [one.get("function", one) for one in sent]
    assert [one["name"] for one in told_of] == [d.name for d in offered]
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", one["name"]) for one in told_of)
    assert "output" not in " ".join(key.lower() for one in told_of for key in one)


@strict_or_not
@every_form
@every_server
def test_what_fits_a_tool_goes_out_and_comes_back(server: str, form: str, strict: bool) -> None:
    for view in tool_views(form, definitions(server, strict)):
        canonical: Any = view.definition.input_schema
        whole = example(canonical, canonical)
        least = {name: whole[name] for name in canonical.get("required", ())}
        there_and_back.check(view, whole)
        there_and_back.check(view, least)


@strict_or_not
@every_form
@every_server
def test_a_view_is_a_copy_and_nothing_of_it_is_refused(
    server: str, form: str, strict: bool
) -> None:
    offered = definitions(server, strict)
    digests = [d.digest for d in offered]
    views = tool_views(form, offered)
    for view in views:
        view.schema.clear()
        view.form.clear()
    assert [d.digest for d in offered] == digests
    assert [loss for view in views for loss in view.losses if loss.effect == "refused"] == []


@pytest.mark.parametrize("form", STRICT_FORMS)
def test_which_tools_are_sent_as_strict(form: str) -> None:
    """The others say so among their losses."""
    loose = {
        view.definition.name
        for server in SIZES
        for view in tool_views(form, definitions(server, strict=True))
        if not view.strict
    }
    assert loose == set()


@every_server
def test_the_losses_are_those_that_are_listed(server: str) -> None:
    lines = [
        line
        for strict, forms in ((False, FORM_NAMES), (True, STRICT_FORMS))
        for form in forms
        for line in told.of_views(
            f"{form} strict" if strict else form, tool_views(form, definitions(server, strict))
        )
    ]
    told.check(f"mcp_{server}", lines)


def test_no_tool_of_theirs_would_be_refused_by_anybody() -> None:
    together = [definition for server in SIZES for definition in definitions(server)]
    found = check_tools(together)
    assert [f for f in found if f.effect == "refused"] == []
    told.check("mcp_all_as_linted", told.of_findings(f for f in found if not f.provider))


def test_the_forms_are_the_five_and_those_that_tell_what_another_does() -> None:
    assert set(FORMS) == {*FORM_NAMES, "mistral", "cohere", "bedrock-converse"}
    assert FORMS["bedrock-converse"].dialect is FORMS["anthropic"].dialect
    assert FORMS["mistral"].dialect is FORMS["openai-chat"].dialect
    assert FORMS["mistral"].shape is FORMS["openai-chat"].shape
