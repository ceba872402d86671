"""Whatever a document says, it is read or refused in words: nothing crashes, or holds anything up."""

from __future__ import annotations

import copy
import random
import time
from contextlib import suppress
from typing import Any

from openapi.petstore import DOCUMENT
from rows import each_row
from samples import PART, WHOLE

from toolcrib.bridges.openapi import RefusedOperation, openapi_catalog
from toolcrib.bridges.openapi.document import Document
from toolcrib.errors import SourceError

STRANGE: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        2**70,
        1.5,
        "",
        "x",
        "\ud800",
        "/",
        "#",
        "#/",
        "#/paths",
        "../x.json",
    ),
    *(
        [],
        [[]],
        [None],
        {},
        {"": {}},
        {"$ref": "#"},
        {"$ref": "#/paths"},
        {"$ref": 1},
        {"$ref": "x"},
    ),
    *({"type": "object"}, {"type": ["null"]}, {"nullable": True}, {"items": [{}]}, [{"a": 1}]),
    *(
        {"in": "query", "name": "x"},
        {"application/json": {}},
        {"200": {"content": {}}},
        "deepObject",
    ),
)


def places(node: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """All containers with a key of theirs."""
    members = node.items() if isinstance(node, dict) else enumerate(node)
    for key, child in list(members):
        found.append((node, key))
        if isinstance(child, dict | list):
            places(child, found)
    return found


def mutated(source: Any, seed: int) -> Any:
    draw = random.Random(seed)  # noqa: S311
    made = copy.deepcopy(source)
    for _ in range(draw.randint(1, 6)):
        node, key = draw.choice(places(made, []))
        match draw.randint(0, 3):
            case 0:
                node[key] = copy.deepcopy(draw.choice(STRANGE))
            case 1 if isinstance(node, dict):
                node[draw.choice([*map(str, STRANGE[:8]), "$ref", "type", "x-y"])] = node.pop(key)
            case 2:
                node[key] = {
                    "$ref": draw.choice(["#", "#/paths/~1pet", "#/components/schemas/Pet"])
                }
            case _:
                other, there = draw.choice(places(made, []))
                node[key] = copy.deepcopy(other[there])
    return made


@each_row("chunk", range(80 if WHOLE else 1))
def test_no_document_crashes(chunk: int) -> None:
    source = Document(DOCUMENT).main.content
    for seed in range(chunk * 100, chunk * 100 + 100):
        given, refused = mutated(source, seed), list[RefusedOperation]()
        began = time.monotonic()
        try:
            catalog = openapi_catalog(given, on_refused=refused.append)
        except SourceError:
            continue
        assert all(one.text for one in refused), seed
        assert len(catalog) + len(refused) <= 60, seed
        assert time.monotonic() - began < 5, seed


def test_no_key_and_no_text_crashes_wherever_it_stands() -> None:
    source = Document(DOCUMENT).main.content
    for at in range(0, len(places(copy.deepcopy(source), [])), 1 if WHOLE else PART):
        for as_key in (True, False):
            given = copy.deepcopy(source)
            node, key = places(given, [])[at]
            if not as_key:
                node[key] = "/\ud800"
            elif isinstance(node, dict):
                node[f"{key}\ud800"] = node.pop(key)
            with suppress(SourceError):
                openapi_catalog(given, on_refused=lambda _: None)
