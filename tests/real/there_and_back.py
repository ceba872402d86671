"""What fits the author's schema fits a provider's view when it goes out, and comes back as it was."""

from __future__ import annotations

from typing import Any

from toolcrib.schema import compile_validator
from toolcrib.wire import ToolView


def check(view: ToolView, arguments: dict[str, Any]) -> None:
    """Fails, naming the tool, if the arguments do not survive."""
    canonical: Any = view.definition.input_schema
    name = view.definition.name
    assert compile_validator(canonical).is_valid(arguments), name
    out: dict[str, Any] = arguments
    back: dict[str, Any] = arguments
    if view.restorer is not None:
        out = view.restorer.to_view(arguments)
        back = view.restorer.restore(out)
    assert compile_validator(view.schema).is_valid(out), name
    assert compile_validator(canonical).is_valid(back), name
    assert _said(canonical, back) == _said(canonical, arguments), name


def _said(schema: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Without what is null and has null for its default: that says no more than nothing does."""
    properties: Any = schema.get("properties", {})
    return {
        name: value
        for name, value in arguments.items()
        if value is not None or properties.get(name, {}).get("default", ...) is not None
    }
