"""Tools for these tests: nothing but their definitions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from toolcrib.pick import Query, Ranker
from toolcrib.values.definition import Annotations, Example, HasDefinition, ToolDefinition


class Entry(NamedTuple):
    """A thing with a definition."""

    definition: ToolDefinition

    def get_definition(self) -> ToolDefinition:
        return self.definition


def entry(name: str, description: str = "", **more: Any) -> Entry:
    """A tool; `parameters` is the schema's properties, `safe` and `examples` as in `@tool`."""
    properties = more.pop("parameters", {})
    return Entry(
        ToolDefinition(
            name=name,
            description=description,
            input_schema_json=json.dumps({"type": "object", "properties": properties}),
            annotations=Annotations(safe=more.pop("safe", True)),
            examples=tuple(Example(request, "{}") for request in more.pop("examples", ())),
            **more,
        )
    )


def scores(ranker: Ranker, text: str, tools: Sequence[HasDefinition]) -> list[float]:
    """The score of each tool, in their order; 0 for those that are no hit."""
    hits = ranker.hits(Query(text), tools)
    found = [0.0] * len(tools)
    for position, weight in hits.best(len(tools)):
        found[position] = hits.calibrated(weight)
    return found


def names(results: Iterable[Any]) -> list[str]:
    return [result.definition.name for result in results]


SHOP = (
    entry(
        "get_weather",
        "Tells the weather of a city.",
        parameters={"city": {"type": "string", "description": "A town, such as Lisbon."}},
        tags=("meteorology",),
    ),
    entry(
        "convertCurrency",
        "Converts an amount of money.",
        parameters={
            "amount": {"type": "number"},
            "targetUnit": {"enum": ["dollars", "euros"], "description": "What to get."},
        },
    ),
    entry("list_files", "Lists the files of a folder."),
    entry("delete_files", "Deletes files for good.", safe=False),
    entry("read_file", "Reads a text file.", parameters={"path": {"type": "string"}}),
)
