"""Typed answers: the instruction for the model, and how its text is read.

Rule: an answer is read as arguments are. The text is whole JSON, the schema that the model was told
judges it, and the reader of tools reads it, strictly: no key is dropped, no kind becomes another. A
provider that was held to a view of the schema is judged by the schema all the same. Several texts
are never joined to one answer: where a reply has more than one that may be it, there is none.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import orjson

from toolcrib.errors import AnswerError, DefinitionError, ErrorCode, Stage
from toolcrib.failures import log_raised
from toolcrib.hydration import Parsed, ParseFailure, parse_json
from toolcrib.hydration.hydrate import built
from toolcrib.runner.stopped import ExceptionHook
from toolcrib.schema import Parameter, compile_validator, derive_input
from toolcrib.tools import Tool
from toolcrib.values.call import HydrationError, ToolCall
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonObject, canonical_bytes, canonical_json, kept_apart
from toolcrib.values.message import OutputFormat, OutputRestorer

_FENCES = ("```json", "```")
_ANSWER = "answer"
_SHOWN = 10
_FAILED = (
    "its own code failed, as the log of toolcrib.tools says. The model's answer is not at fault."
)


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
        name = getattr(kind, "__name__", _ANSWER)
        whole = canonical_json(derived.schema)
        self._tool: Tool[..., Any] = Tool(
            ToolDefinition(name=f"output={name}", description="", input_schema_json=whole),
            dict,
            validator=compile_validator(derived.schema),
            converters=derived.converters,
        )
        text = orjson.dumps(schema).decode()
        self.instructions = (
            "When you have the answer, write it as one JSON value and nothing else, valid by this "
            f"JSON Schema: {text}"
        )
        self.format = OutputFormat(name, text)

    def read(
        self, text: str, restorer: OutputRestorer | None = None, hook: ExceptionHook | None = None
    ) -> tuple[Any, str | None]:
        """Return the value, or a complaint for the model: places and kinds of faults, none of its text.

        `restorer` is from the view of the schema that the provider was held to. Raises AnswerError
        where the author's own code fails; `hook` is given what it raised.
        """
        bare = unfenced(text)
        found = parse_json(bare)
        if isinstance(found, ParseFailure):
            return None, complaint_of([found.message])
        apart = kept_apart(bare.encode())
        restore = (lambda value: value) if restorer is None else restorer.restore
        sent: JsonObject = {_ANSWER: restore(found[0])}
        exact: JsonObject | None = None if apart is None else {_ANSWER: restore(apart)}
        parsed = Parsed(sent, canonical_bytes(sent), (), exact)
        made, errors, _ = built(self._tool, parsed, None, partial(self._failed, text, hook))
        if errors and errors[0].code is ErrorCode.UNUSABLE_TOOL:
            said = errors[0].message  # a factory's field, an extra that is missing
            why = _FAILED if said == ErrorCode.UNUSABLE_TOOL.info.text else said
            raise AnswerError(f"{self._tool.definition.name} cannot be read: {why}")
        if made is None or errors:
            return None, complaint_of([_told(error) for error in errors[:_SHOWN]])
        return made.instance.arguments[_ANSWER], None

    def _failed(
        self, text: str, hook: ExceptionHook | None, what: str, raised: BaseException
    ) -> None:
        log_raised(f"{self._tool.definition.name}, {what},", raised)
        if hook is not None:
            hook(ToolCall("", self._tool.definition.name, text), raised)

    @staticmethod
    def told(text: str, restorer: OutputRestorer | None) -> str:
        """Return the text of an answer that was read, in the terms of its type."""
        found = None if restorer is None else parse_json(unfenced(text))
        if restorer is None or found is None or isinstance(found, ParseFailure):
            return text
        restored = restorer.restore(found[0])
        return text if restored == found[0] else canonical_json(restored)


def _told(error: HydrationError) -> str:
    """Return what is told of a fault of an answer; a text of the author's own has no place."""
    if error.stage is Stage.INSTANTIATE and not error.path:
        return error.message
    return f"{error.path.removeprefix(f'/{_ANSWER}') or 'the top'}: {error.message}"


def complaint_of(faults: list[str]) -> str:
    """Return what a model is told of a text that is no answer."""
    said = f" ({'; '.join(faults)})" if faults else ""
    return f"That is not the JSON value that was asked for{said}. Write it again."


def unfenced(text: str) -> str:
    """Return a text without the fences that models put around JSON; they are not part of the value."""
    bare = text.strip()
    for fence in _FENCES:
        if bare.startswith(fence) and bare.endswith("```") and len(bare) >= len(fence) + 3:
            return bare[len(fence) : -3]
    return bare
