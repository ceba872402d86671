"""Where subschemas lie in a schema, and by which drafts it can be read.

Everything that is not named here is data: a `$ref` inside an `enum`, a `default` or a property that is
called `$ref` refers to nothing. The keywords of both drafts are taken together: what one of them
does not know is only looked at more carefully than it needs to be.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any

from toolcrib.errors import SchemaError


class Draft(StrEnum):
    """The drafts of JSON Schema that are really supported."""

    D2020 = "2020-12"
    D7 = "draft-07"


class Role(IntEnum):
    """What stands under a keyword."""

    ONE = 1  # a schema (`items` may be a list of them, in draft 7)
    MANY = 2  # a list of schemas
    NAMED = 3  # schemas by name
    SHELF = 4  # schemas by name that apply only where a `$ref` leads to them
    REF = 5
    ANCHOR = 6
    ID = 7
    DIALECT = 8
    PATTERN = 9
    PATTERNS = 10  # schemas by pattern
    UNKNOWN_REF = 11  # a reference of a draft that is not supported


ROLES: dict[str, Role] = {
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), Role.MANY),
    **dict.fromkeys(
        (
            "additionalItems",
            "additionalProperties",
            "contains",
            "contentSchema",
            "else",
            "if",
            "items",
            "not",
            "propertyNames",
            "then",
            "unevaluatedItems",
            "unevaluatedProperties",
        ),
        Role.ONE,
    ),
    **dict.fromkeys(("properties", "dependentSchemas", "dependencies"), Role.NAMED),
    **dict.fromkeys(("$defs", "definitions"), Role.SHELF),
    **dict.fromkeys(("$ref", "$dynamicRef"), Role.REF),
    **dict.fromkeys(("$anchor", "$dynamicAnchor"), Role.ANCHOR),
    "$id": Role.ID,
    "$schema": Role.DIALECT,
    "$recursiveRef": Role.UNKNOWN_REF,
    "pattern": Role.PATTERN,
    "patternProperties": Role.PATTERNS,
}
SHELVES = ("$defs", "definitions")
# These apply to the very value that the schema around them applies to, not to a part of it.
IN_PLACE = frozenset(
    ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
)

_DRAFTS = {
    "json-schema.org/draft/2020-12/schema": Draft.D2020,
    "json-schema.org/draft-07/schema": Draft.D7,
}


def draft_of(schema: dict[str, Any], default: Draft = Draft.D2020) -> Draft:
    """The draft that `$schema` names (with or without `#`, by http or https).

    Raises SchemaError, at `/$schema`, for any other: read as another draft it would mean another thing.
    """
    named = schema.get("$schema")
    if named is None and "$schema" not in schema:
        return default
    if isinstance(named, str):
        known = _DRAFTS.get(named.removesuffix("#").partition("://")[2])
        if known is not None and named.startswith(("http://", "https://")):
            return known
    raise SchemaError(
        "$schema names a dialect that is not supported: write the schema in draft 2020-12 "
        "('https://json-schema.org/draft/2020-12/schema') or in draft 7 "
        "('http://json-schema.org/draft-07/schema#')",
        "/$schema",
    )
