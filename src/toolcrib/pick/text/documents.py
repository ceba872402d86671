"""What stands for a tool where it is embedded: its definition as plain text.

Rule: a text depends on the definition alone, so one digest has one set of vectors.
"""

from __future__ import annotations

from toolcrib.pick.text.words import fields, spaced_name
from toolcrib.values.definition import ToolDefinition

_PARAMETERS = 0.3
"""What a tool's parameters weigh beside its name and description."""


def parts_of(definition: ToolDefinition) -> list[tuple[float, str]]:
    """For an embedder that adds parts up: each with what it counts."""
    said = fields(definition)
    tags = f" [{said.tags}]" if said.tags else ""
    return [
        (1.0, f"{spaced_name(said.name)}: {said.description}{tags}"),
        (_PARAMETERS, spaced_name(said.parameters)),
        (_PARAMETERS, said.parameter_text),
    ]


def texts_of(definition: ToolDefinition) -> list[str]:
    """For any embedder: the description first, then the request of each example."""
    found = fields(definition)
    text = f"{spaced_name(found.name)}: {found.description}"
    if found.parameters:
        text += f" ({spaced_name(found.parameters)})"
    if found.tags:
        text += f" [{found.tags}]"
    return [text, *(example.request for example in definition.examples)]
