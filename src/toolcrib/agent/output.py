"""Typed answers: the instruction for the model, and how its text is read.

Rule: an answer is read as arguments are. The text is whole JSON, the schema that the model was told
judges it, and the reader of tools reads it, strictly: no key is dropped, no kind becomes another. A
provider that was held to a view of the schema is judged by the schema all the same.
"""

from __future__ import annotations

from typing import Any

import orjson

from toolcrib.errors import DefinitionError, ToolError
from toolcrib.hydration import ParseFailure, parse_json
from toolcrib.schema import Parameter, compile_validator, derive_input
from toolcrib.tools.component import NotAcceptedError, read_typed
from toolcrib.values.json import JsonValue
from toolcrib.values.message import OutputFormat
from toolcrib.values.offer import OutputRestorer

_FENCES = ("```json", "```")
_ANSWER = "answer"
_SHOWN = 10


class OutputType:
    """The type of a run's `output`. Raises DefinitionError for one that JSON cannot express."""

    def __init__(self, kind: Any) -> None:
        try:
            derived = derive_input([Parameter(_ANSWER, kind)])
        except DefinitionError as error:
            raise DefinitionError(f"output= cannot be read from JSON ({error})") from None
        properties: Any = derived.schema["properties"]
        schema = {**properties[_ANSWER]}
        if "$defs" in derived.schema:
            schema["$defs"] = derived.schema["$defs"]
        self._validator = compile_validator(schema)
        self._converter = derived.converters.get(_ANSWER)
        text = orjson.dumps(schema).decode()
        self.instructions = (
            "When you have the answer, write it as one JSON value and nothing else, valid by this "
            f"JSON Schema: {text}"
        )
        self.format = OutputFormat(getattr(kind, "__name__", _ANSWER), text)

    def read(self, text: str, restorer: OutputRestorer | None = None) -> tuple[Any, str | None]:
        """Return the value, or a complaint for the model: places and kinds of faults, none of its text.

        `restorer` is from the view of the schema that the provider was held to.
        """
        found = parse_json(_unfenced(text))
        if isinstance(found, ParseFailure):
            return None, _complaint([found.message])
        (value,) = found
        if restorer is not None:
            value = restorer.restore(value)
        if not self._validator.is_valid(value):
            violations = self._validator.violations(value)[:_SHOWN]
            return None, _complaint(
                [f"{path or 'the top'}: {said}" for path, _, said in violations]
            )
        try:
            return self._typed(value), None
        except NotAcceptedError as error:
            faults = error.faults[:_SHOWN]
            return None, _complaint(
                [f"/{'/'.join(map(str, where[1:]))}: {said}" for where, said in faults]
            )
        except ToolError as error:  # an author's text for the model
            return None, _complaint([str(error.safe_text)])
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001  an author's validator; its text may hold anything
            return None, _complaint(["it is not accepted"])

    def _typed(self, value: JsonValue) -> Any:
        return value if self._converter is None else read_typed(self._converter, value, _ANSWER)


def _complaint(faults: list[str]) -> str:
    said = f" ({'; '.join(faults)})" if faults else ""
    return f"That is not the JSON value that was asked for{said}. Write it again."


def _unfenced(text: str) -> str:
    """Models put JSON between fences; the fences are not part of the value."""
    bare = text.strip()
    for fence in _FENCES:
        if bare.startswith(fence) and bare.endswith("```") and len(bare) >= len(fence) + 3:
            return bare[len(fence) : -3]
    return bare
