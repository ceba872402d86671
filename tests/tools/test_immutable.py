"""A definition cannot be changed in any documented way, and its digest is the same everywhere."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from children import pythons
from rows import each_row

from toolcrib import ALL, ToolCall, ToolDefinition, hydrate, tool
from toolcrib.tools import Catalog
from toolcrib.values.json import canonical_json, canonical_text, digest

SOURCE = Path(__file__).parents[2] / "src" / "toolcrib" / "values" / "json.py"


def made(schema: Any, tags: Any, examples: Any, roles: Any) -> Any:
    @tool(
        visible=["n"],
        input_schema=schema,
        output_schema={"type": "object", "properties": {"n": {}}},
        tags=tags,
        examples=examples,
        allowed_roles=roles,
    )
    def look(a: int) -> dict[str, int]:
        """Look."""
        return {"n": a}

    return look


def given() -> tuple[Any, Any, Any, Any]:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    return schema, ["t"], [("q", {"a": 1})], ["admin"]


def test_nothing_that_an_author_keeps_changes_it() -> None:
    parts = given()
    look = made(*parts)
    before = look.definition
    digest_before = before.digest
    schema, tags, examples, roles = parts
    schema["properties"]["a"]["enum"].append(3)
    schema.clear()
    tags.append("x")
    examples[0][1]["a"] = "x"
    examples.clear()
    roles.clear()
    assert look.definition is before
    assert made(*given()).definition == before
    assert before.digest == digest_before
    assert (before.tags, before.annotations.allowed_roles) == (("t",), ("admin",))
    assert [e.arguments for e in before.examples] == [{"a": 1}]
    assert not hydrate(ToolCall("c", "look", '{"a":3}'), Catalog([look])).success


def test_nothing_that_it_hands_out_changes_it() -> None:
    look = made(*given())
    definition: ToolDefinition = look.definition
    for handed in (definition.input_schema, definition.output_schema, definition.to_dict()):
        assert handed is not None
        handed.clear()
    handed_out: Any = definition.input_schema
    handed_out["properties"]["a"]["enum"].append(3)
    definition.examples[0].arguments["a"] = 2
    assert definition.input_schema == given()[0]
    assert definition.examples[0].arguments == {"a": 1}
    assert not hydrate(ToolCall("c", "look", '{"a":3}'), Catalog([look])).success
    for name in ("name", "description", "tags", "digest", "input_schema_json", "visible"):
        with pytest.raises(AttributeError):
            setattr(definition, name, "x")
    for name in ("safe", "allowed_roles"):
        with pytest.raises(AttributeError):
            setattr(definition.annotations, name, False)
    assert made(*given()).definition.digest == definition.digest


def test_copies_are_equal() -> None:
    for visible in (ALL, ["n"]):
        definition = msgspec.structs.replace(made(*given()).definition, visible=visible)
        pickled = pickle.loads(pickle.dumps(definition))  # noqa: S301  our own bytes
        for again in (pickled, copy.copy(definition), copy.deepcopy(definition)):
            assert again == definition
            assert again.digest == definition.digest
            assert hash(again.model_visible) == hash(ALL)


def test_a_digest_is_made_from_what_is_there() -> None:
    definition = made(*given()).definition
    facts = {
        **definition.to_dict(),
        "strict": None,
        "tags": ["t"],
        "annotations": {
            "safe": True,
            "read_only": False,
            "idempotent": False,
            "requires_approval": False,
            "threat_level": "low",
            "allowed_roles": ["admin"],
            "features": [],
            "cost": 0,
            "timeout": None,
            "exclusive": False,
            "untrusted_output": False,
        },
        "visible": ["n"],
        "model_visible": "*",
        "secret": [],
        "examples": [["q", {"a": 1}]],
        "no_schema_mode": None,
    }
    assert definition.digest == digest(facts)


TEXTS = [
    '{"b":1,"a":{"d":[],"c":"x"}}',
    '{"a":2.0,"b":1e30,"c":-0.0,"d":1E-7,"e":0.1}',
    '{"é":1,"z":2,"\U0001f600":3,"\uffff":4}',
    '{"a":"é \\u2028 \\u0001 \\" \\\\ / \U0001f600","b":"v1.5"}',
    '{"n":18446744073709551615,"m":-9223372036854775808,"t":true,"f":false,"z":null}',
    "[]",
    '"1.5"',
]


@each_row("text", TEXTS)
def test_text_of_our_own_making_gives_the_same_text(text: str) -> None:
    assert canonical_text(text) == canonical_json(json.loads(text))
    value = json.loads(text)
    if isinstance(value, dict):
        members = list(value.items())
        random.Random(7).shuffle(members)  # noqa: S311  an order, not a secret
        assert canonical_json(dict(members)) == canonical_json(value)


# Our canonical text, with the standard library's JSON in place of orjson, which other Pythons lack.
OTHER = """
import json, sys, types
orjson = types.ModuleType("orjson")
orjson.OPT_SORT_KEYS = 1
orjson.loads = json.loads
def dumps(value, option=0):
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=bool(option))
    return text.encode()
orjson.dumps = dumps
sys.modules["orjson"] = orjson
scope = {"__name__": "values_json"}
exec(compile(open(sys.argv[1], encoding="utf-8").read(), "json.py", "exec"), scope)
print([scope["digest"](json.loads(text)) for text in json.loads(sys.argv[2])])
"""


@each_row("python", pythons())
@each_row("seed", ["0", "77"])
def test_digests_are_the_same_in_other_pythons(python: str, seed: str) -> None:
    printed = subprocess.run(
        [python, "-c", OTHER, str(SOURCE), json.dumps(TEXTS)],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed.strip() == str([digest(json.loads(text)) for text in TEXTS])
