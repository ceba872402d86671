"""From what an author says to a checked `ToolDefinition`: names, annotations, visibility, examples."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from toolcrib.errors import DefinitionError, SchemaError
from toolcrib.schema import Default, Validator, ValidatorFactory
from toolcrib.schema.paths import path_exists
from toolcrib.schema.shape import schema_text
from toolcrib.tools.checked import Checked
from toolcrib.tools.secret import secret_properties
from toolcrib.values.definition import (
    ALL,
    All,
    AnnotationOptions,
    Annotations,
    Example,
    NoSchemaMode,
    ToolDefinition,
    Visibility,
)
from toolcrib.values.json import JsonObject, JsonValue, canonical_json

_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
MODES = ("read-only", "human-approval", "full")


class ToolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `@tool`, as one value; `validator` makes the validators, if not the default."""

    visible: Sequence[str] | All | None
    model_visible: Sequence[str] | All = ALL
    secret: Sequence[str] = ()
    name: str | None = None
    description: str | None = None
    input_schema: JsonObject | None = None
    output_schema: JsonObject | None = None
    examples: Sequence[tuple[str, Mapping[str, Any]]] = ()
    allow_no_schema: bool = False
    no_schema_mode: NoSchemaMode | None = None
    lazy: bool = False
    subprocess: bool = False
    validator: ValidatorFactory | None = None
    annotations: AnnotationOptions = {}
    is_own: bool = False  # somebody here wrote it, and can describe it


def with_feature(options: ToolOptions, feature: str) -> ToolOptions:
    """The same options; what a tool does is among its features whether or not its author says so."""
    said = options.annotations.get("features", ())
    if not isinstance(said, list | tuple) or feature in said:  # what is wrong is refused later
        return options
    annotations: AnnotationOptions = {**options.annotations, "features": (*said, feature)}
    return msgspec.structs.replace(options, annotations=annotations)


def build_definition(
    name: str,
    description: str,
    given: Checked | None,
    output: Checked | None,
    options: ToolOptions,
) -> ToolDefinition:
    """Checks what an author said beside the schemas. Raises DefinitionError."""
    if given is None and (not options.allow_no_schema or options.no_schema_mode is None):
        raise DefinitionError(
            f"tool '{name}' has no schema: give it one, or opt out with allow_no_schema=True "
            f"and a no_schema_mode ({', '.join(MODES)})"
        )
    if options.no_schema_mode is not None and options.no_schema_mode not in MODES:
        raise DefinitionError(f"tool '{name}': no_schema_mode is one of {', '.join(MODES)}")
    said = _annotations(name, options.annotations) if options.annotations else _NOTHING_SAID
    output_schema = None if output is None else output.schema
    described = _description(name, options.description or description)
    if options.is_own and not described.strip():
        raise DefinitionError(
            f"tool '{name}' has no description, by which a model chooses: write a docstring, or pass "
            "description=…"
        )
    return ToolDefinition(
        name=name,
        description=described,
        input_schema_json=None if given is None else given.text,
        output_schema_json=None if output is None else output.text,
        strict=said.strict,
        tags=said.tags,
        examples=tuple(_example(name, example) for example in options.examples),
        annotations=said.annotations,
        visible=None
        if options.visible is None
        else _visibility(name, "visible", options.visible, output_schema),
        model_visible=_visibility(name, "model_visible", options.model_visible, output_schema),
        secret=secret_properties(name, given, options.secret),
        no_schema_mode=options.no_schema_mode if given is None else None,
    )


def with_defaults(
    definition: ToolDefinition, given: Checked | None, defaults: Mapping[str, Default]
) -> ToolDefinition:
    """The definition with the defaults that its schema does not tell, so that its digest pins them."""
    properties: Any = {} if given is None else given.schema.get("properties", {})
    hidden = {
        name: default.shown
        for name, default in defaults.items()
        if not (default.is_json and _tells(properties.get(name), default.shown))
    }
    if not hidden:
        return definition
    return msgspec.structs.replace(definition, defaults_json=canonical_json(hidden))


def _tells(declared: Any, shown: JsonValue) -> bool:
    told = isinstance(declared, dict) and "default" in declared
    return told and canonical_json(declared["default"]) == canonical_json(shown)


def _description(name: str, text: object) -> str:
    if not isinstance(text, str):
        raise DefinitionError(
            f"tool '{name}': description must be a str, not {type(text).__name__}"
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DefinitionError(f"tool '{name}': description holds a lone surrogate") from None
    return text


class _Said(NamedTuple):
    annotations: Annotations
    tags: tuple[str, ...]
    strict: bool | None


_NOTHING_SAID = _Said(Annotations(), (), None)


def _annotations(name: str, given: AnnotationOptions) -> _Said:
    apart = ("tags", "strict", "marks")
    rest: dict[str, Any] = {key: value for key, value in given.items() if key not in apart}
    unknown = rest.keys() - (set(Annotations.__struct_fields__) - {"marks_json"})
    if unknown:
        raise DefinitionError(f"tool '{name}': unknown annotation {', '.join(sorted(unknown))}")
    if "allowed_roles" in given and _is_empty(given["allowed_roles"]):
        raise DefinitionError(
            f"tool '{name}': allowed_roles is empty, so that nobody could call it: name the roles, or"
            " leave it out for everybody"
        )
    if given.get("marks"):
        rest["marks_json"] = _marks(name, given["marks"])
    try:
        return _Said(
            msgspec.convert(rest, Annotations),
            msgspec.convert(given.get("tags", ()), tuple[str, ...]),
            msgspec.convert(given.get("strict"), bool | None),
        )
    except msgspec.ValidationError as error:
        raise DefinitionError(f"tool '{name}': a wrong annotation: {error}") from None


def _is_empty(collection: object) -> bool:
    return isinstance(collection, Collection) and not isinstance(collection, str) and not collection


def _marks(name: str, marks: Mapping[str, Any]) -> str:
    """As JSON text, which nobody can change."""
    try:
        return schema_text(dict(marks))
    except (TypeError, ValueError, SchemaError):
        raise DefinitionError(
            f"tool '{name}': marks is a dictionary of JSON values, such as {{'pii': True}}"
        ) from None


def check_name(name: object) -> str:
    """Raises DefinitionError unless it is 1 to 128 of `[a-zA-Z0-9_.-]`.

    A wire that takes fewer gets a name that it takes, and calls by that name are understood.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DefinitionError(
            f"tool name {str(name)[:80]!r}: use 1 to 128 of a-z, A-Z, 0-9, '_', '-' and '.'"
        )
    return name


def _visibility(
    name: str, option: str, paths: Sequence[str] | All, output_schema: JsonObject | None
) -> Visibility:
    if isinstance(paths, All):
        return paths
    if not isinstance(paths, list | tuple) or not all(isinstance(path, str) for path in paths):
        raise DefinitionError(
            f"tool '{name}': {option} is a list of paths such as ['total'], or ALL"
        )
    for path in paths:
        try:
            known = output_schema is None or path_exists(output_schema, path)
        except ValueError as error:
            raise DefinitionError(f"tool '{name}': {option}: {error}") from None
        if not known:
            raise DefinitionError(f"tool '{name}': {option} has {path!r}, which no result has")
    return tuple(paths)


def _example(name: str, example: tuple[str, Mapping[str, Any]]) -> Example:
    try:
        request, arguments = example
        return Example(str(request), schema_text(dict(arguments)))
    except (TypeError, ValueError, SchemaError):
        raise DefinitionError(
            f"tool '{name}': an example is a pair (request, arguments), with JSON arguments"
        ) from None


def check_examples(definition: ToolDefinition, validator: Validator | None) -> None:
    """Raises DefinitionError for arguments that the schema refuses: a model would copy them."""
    if validator is None:
        return
    for example in definition.examples:
        if not validator.is_valid(example.arguments):
            found = "; ".join(
                f"{path or 'the top'}: {message}"
                for path, _, message in validator.violations(example.arguments)
            )
            raise DefinitionError(
                f"tool '{definition.name}': the example {example.request[:60]!r} does not fit "
                f"input_schema: {found}"
            )
