"""Limits on schemas that come from outside: an expensive or outward one is refused at registration.

A validator walks a schema as often as its `$ref`s expand, and one written to do so can hold a
process for minutes ("billion laughs"). So size, depth and expansions are counted before a validator
is compiled, and a `$ref` may only point into the schema itself: nothing is ever fetched.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from toolcrib.errors import SchemaError
from toolcrib.schema.expansion import (
    MAX_EXPANDED,
    MAX_EXPANDED_DEPTH,
    MAX_EXPANSIONS,
    Expanded,
    check_expansions,
)
from toolcrib.schema.keywords import Draft, draft_of
from toolcrib.schema.references import References, escape_pointer, resolve_ref
from toolcrib.schema.shape import MAX_BYTES, MAX_DEPTH, MAX_NODES, check_shape
from toolcrib.schema.survey import survey

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_EXPANDED",
    "MAX_EXPANDED_DEPTH",
    "MAX_EXPANSIONS",
    "MAX_NODES",
    "MAX_PATTERNS",
    "Inspected",
    "References",
    "check_schema",
    "escape_pointer",
    "inspect_schema",
    "resolve_ref",
]
MAX_PATTERNS = 1000


class Inspected(NamedTuple):
    """What a check found: the dialect, the patterns, and how many of them one text may meet."""

    draft: Draft
    patterns: frozenset[str] = frozenset()
    matches: int = 0


def check_schema(schema: dict[str, Any]) -> None:
    """Raises SchemaError, with a pointer, for a schema that could not be used safely.

    It must be JSON; of draft 2020-12 or draft 7; at most 100 deep, of 50,000 nodes and 1,000,000
    bytes; its references lead into itself, not in a circle, and expand to at most 1,000,000 nodes.
    Patterns are judged when a validator is compiled.
    """
    check_shape(schema)
    inspect_schema(schema)


def inspect_schema(schema: dict[str, Any]) -> Inspected:
    """`check_schema` for what is known to be JSON of a bearable size."""
    draft = draft_of(schema)
    whole = survey(schema, None, draft, whole=True)
    found = Expanded(frozenset(whole.patterns), whole.matches)
    if whole.refs or whole.total > MAX_EXPANDED:
        found = check_expansions(whole, References(schema), draft)
    if len(found.patterns) > MAX_PATTERNS:
        raise SchemaError(f"the schema has more than {MAX_PATTERNS} different patterns")
    return Inspected(draft, *found)
