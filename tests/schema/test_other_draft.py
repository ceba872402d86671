"""Keywords that a schema's draft does not know: data to it, and no surprise to whoever reads on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from rows import each_row
from samples import sample
from schema.test_validator_deferred import KEYWORDS

from toolcrib.errors import SchemaError
from toolcrib.schema.lower.walk import lower
from toolcrib.schema.references import path_exists
from toolcrib.schema.validator import JsonSchemaValidator
from toolcrib.wire import anthropic, gemini, openai_chat

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
OF_DRAFT_7 = ("additionalItems", "dependencies")
OF_2020 = (
    "prefixItems", "dependentSchemas", "dependentRequired", "unevaluatedProperties", "contentSchema",
    "unevaluatedItems", "$dynamicRef", "$dynamicAnchor", "$anchor", "$defs", "minContains",
)  # fmt: skip
ODD: tuple[Any, ...] = (
    None, 3, "x", True, [3], [None], {"a": None}, {"a": 3}, {"a": ["b", 3]}, [[3]], {"$ref": 3},
)  # fmt: skip
VALUES: tuple[Any, ...] = ({}, {"a": 1, "b": {"a": [1]}}, [], [1, {"a": 1}, [2]], "x", 3, None)
DIALECTS = (anthropic.STRICT_DIALECT, openai_chat.STRICT_DIALECT, gemini.DIALECT)


def strange() -> Iterator[dict[str, Any]]:
    """Yield schemas with a keyword of the other draft, of every form, and with every keyword below."""
    for outer in (*OF_2020, *OF_DRAFT_7):
        named = {"$schema": DRAFT_7} if outer in OF_2020 else {}
        yield from ({**named, outer: value} for value in ODD)
        for inner, value in product(KEYWORDS, ODD):
            for below in ({inner: value}, {"a": {inner: value}}, [{inner: value}]):
                yield {**named, outer: below}


STRANGE = list(strange())


@each_row("part", range(8))
@pytest.mark.exhaustive
def test_what_is_registered_can_be_judged_explained_and_shown(part: int) -> None:
    taken = 0
    for node in STRANGE[part :: 8 * (8 // sample(8))]:
        inner = {key: value for key, value in node.items() if key != "$schema"}
        schema = {**node, "type": "object", "properties": {"p": inner, "q": {"items": inner}}}
        try:
            validators = JsonSchemaValidator(node), JsonSchemaValidator(schema)
        except SchemaError:
            continue
        taken += 1
        for validator, value in product(validators, VALUES):
            assert bool(validator.violations(value)) is not validator.is_valid(value)
        for path in ("a", "[].a", "p.a", "q[].a"):
            assert path_exists(schema, path) in (True, False)
        for dialect in DIALECTS:
            assert lower(schema, dialect).schema["type"] == "object"
    assert taken


@each_row(
    "node, place",
    (
        ({"$schema": DRAFT_7, "dependentRequired": {"a": None}}, "/dependentRequired/a"),
        ({"$schema": DRAFT_7, "prefixItems": [{"enum": None}]}, "/prefixItems/0/enum"),
        ({"items": {"additionalItems": {"allOf": 3}}}, "/items/additionalItems/allOf"),
        ({"additionalItems": {"dependentRequired": 3}}, "/additionalItems/dependentRequired"),
    ),
)  # fmt: skip
def test_what_has_not_the_form_of_its_draft_is_refused(node: Any, place: str) -> None:
    with pytest.raises(SchemaError, match=r"is a keyword of (2020-12|draft-07)") as refused:
        JsonSchemaValidator(node)
    assert refused.value.pointer == place


def test_a_keyword_of_the_other_draft_says_nothing() -> None:
    validator = JsonSchemaValidator({"$schema": DRAFT_7, "prefixItems": [{"type": "string"}]})
    assert validator.is_valid([3])
