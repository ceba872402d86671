"""Recorded requests with tools, made again out of semantic types: 349 of 360 come out the same.

Where they do not, the reason is written down here. Requests with the provider's own tools, which the
semantic types have no word for, are not among them.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from wire.gemini_reader import Unsupported, camel, declared, normal, request_of

from toolcrib.errors import SchemaError
from toolcrib.wire import encode, tool_views

Row = dict[str, Any]

LOWERED = {
    "default": {"07490cde4b21ffeb", "33fd63e24c4085c7", "3bb55a95f9cb8e9f", "82eeab58f8fae97d",
                "a32d8d27c74931c0", "b898464c33885942", "ddb567ca064bc507"},
    "$ref": {"607b15e6eed392f7", "bcdd44e6b5a1a0b1", "ca82cfe0afaeecc5"},
}  # fmt: skip
"""A keyword that the view for Gemini goes without: told in words, or put in place."""
REFUSED = {"1c484de6cd5964ac": "a pattern that looks ahead is not safe to use"}
UNSUPPORTED = {"the provider's own tools": 24, "a result that is not text": 1}


@pytest.fixture(scope="module")
def bodies(shared_data: Path) -> dict[str, Any]:
    with gzip.open(shared_data / "wire/gemini.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return {row["id"]: camel(row["request"]) for row in rows if (row["request"] or {}).get("tools")}


def test_recorded_requests_come_out_the_same(bodies: dict[str, Any]) -> None:
    same, different, refused = 0, set(), set()
    unsupported: dict[str, int] = {}
    for row, body in bodies.items():
        try:
            made = json.loads(encode("gemini", request_of(body), model="m").body)
        except Unsupported as error:
            unsupported[str(error)] = unsupported.get(str(error), 0) + 1
            continue
        except SchemaError:
            refused.add(row)
            continue
        ours, theirs = normal(made, like=body), normal(body)
        if ours != theirs:
            different.add(row)
            ours, theirs = (value | {"tools": []} for value in (ours, theirs))
        else:
            same += 1
        assert ours == theirs, row
    assert (same, refused, unsupported) == (349, set(REFUSED), UNSUPPORTED)
    assert different == set().union(*LOWERED.values())


def test_a_view_that_differs_does_so_for_its_reason(bodies: dict[str, Any]) -> None:
    for keyword, rows in LOWERED.items():
        for row in rows:
            views = tool_views("gemini", request_of(bodies[row]).tools)
            schemas = json.dumps([view.schema for view in views])
            assert f'"{keyword}"' in json.dumps(declared(bodies[row]))
            assert f'"{keyword}"' not in schemas
