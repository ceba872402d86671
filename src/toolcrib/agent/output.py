"""A typed answer: what the model is told to write, and what its text is read as."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError

from toolcrib.errors import DefinitionError

_FENCES = ("```json", "```")


class OutputType:
    """The type of a run's `output`. Raises DefinitionError for one that JSON cannot express."""

    def __init__(self, kind: Any) -> None:
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(kind)
            schema = self._adapter.json_schema()
        except (PydanticSchemaGenerationError, PydanticUserError, TypeError) as error:
            first = str(error).partition("\n")[0]
            raise DefinitionError(f"output={kind!r} cannot be read from JSON ({first})") from None
        self.instructions = (
            "When you have the answer, write it as one JSON value and nothing else, valid by this "
            f"JSON Schema: {orjson.dumps(schema).decode()}"
        )

    def read(self, text: str) -> tuple[Any, str | None]:
        """The value; or what the model is told, with places and kinds but nothing of its text."""
        try:
            return self._adapter.validate_json(_unfenced(text)), None
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            places = "; ".join(
                f"/{'/'.join(str(step) for step in fault['loc'])}: {fault['type']}"
                for fault in found[:10]
            )
            return (
                None,
                f"That is not the JSON value that was asked for ({places}). Write it again.",
            )


def _unfenced(text: str) -> str:
    """Models put JSON between fences; the fences are not part of the value."""
    bare = text.strip()
    for fence in _FENCES:
        if bare.startswith(fence) and bare.endswith("```") and len(bare) >= len(fence) + 3:
            return bare[len(fence) : -3]
    return bare
