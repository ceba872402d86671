"""Check what an author declares, and build a `ToolDefinition` from it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple, TypeGuard

import msgspec
import orjson

from toolcrib.errors import DefinitionError, SchemaError, did_you_mean, no_such
from toolcrib.schema import (
    Default,
    JsonSchemaValidator,
    LazyValidator,
    Validator,
    ValidatorFactory,
    compile_validator,
)
from toolcrib.schema.guard import Inspected, inspect_schema, schema_text
from toolcrib.schema.references import (
    IN_PLACE,
    Draft,
    References,
    children,
    path_exists,
    subschemas,
)
from toolcrib.schema.validator import DeferredValidator, check_keywords, is_plain, validator_from
from toolcrib.values.definition import (
    ALL,
    RESULT,
    UNDECLARED,
    All,
    AnnotationOptions,
    Annotations,
    Example,
    NoSchemaMode,
    ToolDefinition,
    Visibility,
    names_in,
)
from toolcrib.values.json import JsonObject, JsonValue, canonical_json, json_copy

# Check and compile a tool's schemas. Only text that was found safe is kept.

_EXACT_TYPES_ONLY = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATETIME


class CheckedSchema(NamedTuple):
    """A checked schema: the text that is kept, and an object parsed from exactly that text."""

    text: str
    schema: JsonObject
    inspected: Inspected
    derived: bool = False


def check_given(name: str, schema_name: str, schema: JsonObject | None) -> CheckedSchema | None:
    """Check a schema given by an author, and copy it, so that changing the original changes nothing.

    Raises SchemaError, naming the tool and the place, for a schema that is not safe to use.
    """
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise DefinitionError(
            f"tool '{name}': {schema_name} must be a dict, not {type(schema).__name__}"
        )
    try:
        text = schema_text(schema)
        copy = json_copy(text)
        return CheckedSchema(text, copy, inspect_schema(copy))
    except SchemaError as error:
        raise SchemaError(f"tool '{name}', {schema_name}: {error.message}", error.pointer) from None


def check_derived(name: str, schema_name: str, schema: JsonObject | None) -> CheckedSchema | None:
    """Check a schema derived from hints. Most contain nothing expensive and no external
    reference."""
    text = _exact_text(schema)
    if text is not None and _is_harmless(text):
        copy = json_copy(text)
        if copy is not None and copy == schema:
            return CheckedSchema(text, copy, Inspected(Draft.D2020), derived=True)
    checked = check_given(name, schema_name, schema)
    return None if checked is None else checked._replace(derived=True)


def _exact_text(schema: JsonObject | None) -> str | None:
    """Return a schema as JSON, or None if it contains values of any other type than JSON's."""
    option = _EXACT_TYPES_ONLY | orjson.OPT_PASSTHROUGH_DATACLASS
    try:
        return orjson.dumps(schema, option=option).decode()
    except TypeError:
        return None


# Values that are slow to compare (see `Constants`): constants other than strings, and fractions.
_SLOW_CONSTANTS = re.compile(
    r'"enum":\[(?!"[^"\\]*"(?:,"[^"\\]*")*\])|"const":(?!")|"(?:minimum|maximum|exclusiveMinimum'
    r'|exclusiveMaximum|multipleOf)":-?[0-9]+[.eE]'
)
_MAX_CONSTANTS = 15


def _is_harmless(text: str) -> bool:
    """Return whether a schema has no pattern and no costly constant, and references only from the
    top to definitions that contain none."""
    top, _, shared = text.partition('"$defs":')
    references = top.count('"$ref":"#/$defs/')
    return (
        '"pattern' not in text
        and '"$' not in shared
        and top.count('"$') == references
        and _SLOW_CONSTANTS.search(text) is None
        and text.count('"const":') <= _MAX_CONSTANTS
    )


def make_validator(
    name: str,
    schema_name: str,
    checked: CheckedSchema | None,
    *,
    factory: ValidatorFactory | None = None,
    lazy: bool = False,
) -> Validator | None:
    """Compile a schema now, or at its first use (if lazy or plain data). Raises SchemaError."""
    if checked is None:
        return None
    try:
        if lazy:
            return LazyValidator(checked.schema, factory or JsonSchemaValidator)
        if factory is None:
            if not checked.derived and is_plain(*checked[:3]):
                return DeferredValidator(checked.text)
            return _compiled(checked, may_share=schema_name == "output_schema")
        check_keywords(checked.schema, checked.inspected)
        return validator_from(factory, json_copy(checked.text))
    except SchemaError as error:
        raise SchemaError(f"tool '{name}', {schema_name}: {error.message}", error.pointer) from None
    except Exception as error:  # noqa: BLE001  another author's factory
        kind = type(error).__name__
        raise SchemaError(
            f"tool '{name}', {schema_name}: no validator can be made ({kind})"
        ) from None


def _compiled(checked: CheckedSchema, *, may_share: bool) -> Validator:
    """Compile a schema. Output schemas are often short and alike, so equal texts share one
    validator."""
    if not may_share or len(checked.text) > _MAX_SHARED_CHARACTERS:
        return JsonSchemaValidator(checked.schema, checked.inspected, checked.text)
    validator = _shared_validators.get(checked.text)
    if validator is None:
        validator = JsonSchemaValidator(checked.schema, checked.inspected, checked.text)
        if len(_shared_validators) >= _MAX_SHARED:
            _shared_validators.clear()
        _shared_validators[checked.text] = validator
    return validator


_shared_validators: dict[str, Validator] = {}
_MAX_SHARED_CHARACTERS, _MAX_SHARED = 200, 1024


def compile_schema(
    name: str,
    schema_name: str,
    text: str | None,
    *,
    factory: ValidatorFactory | None = None,
    lazy: bool = False,
) -> Validator | None:
    """Check a schema and make its validator. Raises SchemaError naming the tool and the place."""
    if text is None:
        return None
    checked = check_given(name, schema_name, json_copy(text))
    if checked is not None:
        checked = checked._replace(text=text)  # keep one text instead of two equal ones
    return make_validator(name, schema_name, checked, factory=factory, lazy=lazy)


def check_input(name: str, schema: JsonObject, *, derived: bool = False) -> CheckedSchema:
    """Check the schema of the arguments, whose top must declare an object."""
    message_start = f"tool '{name}': the top of input_schema must be type 'object'"
    check = check_derived if derived else check_given
    checked = check(name, "input_schema", schema) if isinstance(schema, dict) else None
    if checked is None:
        raise DefinitionError(f"{message_start}: it is not a dict, but {type(schema).__name__}")
    schema = checked.schema
    if schema.get("type") != "object":
        actual = f"has type {schema['type']!r:.80}" if "type" in schema else "has no type"
        hint = " (write the schema that its $ref leads to at the top)" if "$ref" in schema else ""
        raise DefinitionError(f"{message_start}: it {actual}{hint}")
    if "$ref" in schema and checked.inspected.draft is Draft.D7:
        raise DefinitionError(
            f"{message_start}, and draft 7 ignores all other keywords next to a $ref: write the schema "
            "that the $ref leads to at the top"
        )
    return checked


def named_arguments(schema: JsonObject) -> tuple[frozenset[str], Validator | None] | None:
    """Return the names that a schema declares at its top, with references and combined schemas, and
    a validator for further names.

    A parameter that the schema does not name belongs to the author, and no model may set it. Return
    None for a schema that explicitly allows other names by `additionalProperties` or
    `unevaluatedProperties`.
    """
    references = References(schema)
    opening = _argument_schemas(references, schema, without=_TESTING_KEYWORDS)
    if any(node.get(key, False) is not False for node in opening for key in _OTHER_PROPERTIES):
        return None
    nodes = list(_argument_schemas(references, schema))
    names = {name for node in nodes for name in node.get("properties", ())}
    required: Any = schema.get("required", ())
    # required names of other types are refused later
    names.update(required_name for required_name in required if isinstance(required_name, str))
    patterns = {pattern for node in nodes for pattern in node.get("patternProperties", {})}
    matching: JsonObject = {"anyOf": [{"pattern": pattern} for pattern in sorted(patterns)]}
    return frozenset(names), compile_validator(matching) if patterns else None


# Which arguments no record may show: those that the author names, and those of secret types.
#
# A secret is found anywhere: behind references, in alternatives, below arrays and open objects.
# Where a schema leaves open which properties a part of it applies to, all of them count as secret.

_SECRET_MARKS = ('"writeOnly"', '"password"')  # every secret has one; most schemas have neither
_REFS = ("$ref", "$dynamicRef")
_OTHER_PROPERTIES = ("additionalProperties", "unevaluatedProperties")
_TESTING_KEYWORDS = frozenset(("not", "if"))  # schemas under these do not admit values


def secret_properties(
    tool: str, checked: CheckedSchema | None, author_names: Sequence[str]
) -> tuple[str, ...]:
    """Return the top-level properties that the author names, or that contain a secret anywhere.

    A secret is `writeOnly`, as pydantic declares a `SecretStr`, or has the format `password`. If
    undeclared properties may contain one, `UNDECLARED` stands for all of them. Raises
    DefinitionError for a name that is not a property of the schema.
    """
    if not _is_list_of_names(author_names):
        raise DefinitionError(f"tool '{tool}': secret is a list of parameters such as ['pin']")
    if checked is None:
        return tuple(dict.fromkeys(author_names))
    properties: Any = checked.schema.get("properties", {})
    for name in author_names:
        if name not in properties:
            raise DefinitionError(f"tool '{tool}': secret names {name!r}, which is no parameter")
    has_mark = any(mark in checked.text for mark in _SECRET_MARKS)
    if not (has_mark or author_names):
        return ()
    secret = _secret_names(checked.schema, frozenset(properties)) if has_mark else set()
    derived = [name for name in properties if name in secret]
    return tuple(dict.fromkeys([*author_names, *derived, *secret.intersection([UNDECLARED])]))


def _secret_names(schema: JsonObject, names: frozenset[str]) -> set[str]:
    references = References(schema)
    ids_with_secret = _ids_with_secret(references, schema)
    secret: set[str] = set()
    for node in _argument_schemas(references, schema):
        declared = node.get("properties", {})
        secret.update(name for name, child in declared.items() if id(child) in ids_with_secret)
        if any(
            id(child) in ids_with_secret for child in node.get("patternProperties", {}).values()
        ):
            secret |= names | {UNDECLARED}
        if any(id(node[key]) in ids_with_secret for key in _OTHER_PROPERTIES if key in node):
            secret |= names.difference(declared) | {UNDECLARED}
    return secret


def _argument_schemas(
    references: References, schema: JsonObject, *, without: frozenset[str] = frozenset()
) -> Iterator[dict[str, Any]]:
    """Yield the schemas that apply to the arguments as a whole, except under keywords `without`."""
    stack: list[Any] = [schema]
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        stack += _referenced(references, node)
        stack += (
            child
            for key in IN_PLACE.intersection(node) - without
            for _, child in children(None, key, node[key])
        )


def _ids_with_secret(references: References, schema: JsonObject) -> set[int]:
    """Return the ids of all schema nodes that contain a secret, directly or through references."""
    parents: dict[int, list[int]] = defaultdict(list)
    stack: list[Any] = [schema]
    seen: set[int] = set()
    queue: list[int] = []
    while stack:
        node = stack.pop()
        if id(node) in seen or not isinstance(node, dict | list):
            continue
        seen.add(id(node))
        inner = node
        if isinstance(node, dict):
            inner = [*node.values(), *_referenced(references, node)]
            if node.get("writeOnly") is True or node.get("format") == "password":
                queue.append(id(node))
        for child in inner:
            parents[id(child)].append(id(node))
        stack += inner
    ids_with_secret = set(queue)
    while queue:
        new_parents = [node for node in parents[queue.pop()] if node not in ids_with_secret]
        ids_with_secret.update(new_parents)
        queue += new_parents
    return ids_with_secret


def _schemas_below(references: References, roots: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield each schema that applies to a value of these schemas, or to a part of it."""
    pending = list(roots)
    seen: set[int] = set()
    while pending:
        root = pending.pop()
        if id(root) in seen:
            continue
        for _, node in subschemas(root):
            if id(node) not in seen:
                seen.add(id(node))
                yield node
                pending += _referenced(references, node)


def _referenced(references: References, node: dict[str, Any]) -> list[Any]:
    return [references.resolve(node[key]) for key in _REFS if isinstance(node.get(key), str)]


_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
MODES = ("read-only", "human-approval", "full")


class ToolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `@tool`; `validator` makes the validators, None for the default."""

    visible: Sequence[str] | All | None
    model_visible: Sequence[str] | All = ALL
    secret: Sequence[str] = ()
    name: str | None = None
    description: str | None = None
    input_schema: JsonObject | None = None
    output_schema: JsonObject | None = None
    examples: Sequence[tuple[str, Mapping[str, Any]]] = ()
    answer: str | Sequence[str] = ()
    allow_no_schema: bool = False
    no_schema_mode: NoSchemaMode | None = None
    lazy: bool = False
    subprocess: bool = False
    validator: ValidatorFactory | None = None
    annotations: AnnotationOptions = {}
    is_own: bool = False  # written in this application, so that it can be described
    imported: bool = False  # it came from a file or a server


def with_feature(options: ToolOptions, feature: str) -> ToolOptions:
    """Return the options with a feature added, whether or not the author declares it."""
    features = options.annotations.get("features", ())
    # wrong types are refused later
    if not isinstance(features, list | tuple) or feature in features:
        return options
    annotations: AnnotationOptions = {**options.annotations, "features": (*features, feature)}
    return msgspec.structs.replace(options, annotations=annotations)


def build_definition(
    name: str,
    description: str,
    checked_input: CheckedSchema | None,
    checked_output: CheckedSchema | None,
    options: ToolOptions,
) -> ToolDefinition:
    """Check what an author declared besides the schemas. Raises DefinitionError."""
    _check_types(name, options)
    if checked_input is None and (not options.allow_no_schema or options.no_schema_mode is None):
        raise DefinitionError(
            f"tool '{name}' has no schema: give it one, or opt out with allow_no_schema=True "
            f"and a no_schema_mode ({', '.join(MODES)})"
        )
    if options.no_schema_mode is not None and options.no_schema_mode not in MODES:
        raise DefinitionError(f"tool '{name}': no_schema_mode is one of {', '.join(MODES)}")
    stated = (
        stated_annotations(name, options.annotations) if options.annotations else _NO_ANNOTATIONS
    )
    output_schema = None if checked_output is None else checked_output.schema
    description_text = _description(name, options.description or description)
    if options.is_own and not description_text.strip():
        raise DefinitionError(
            f"tool '{name}' has no description, which a model needs to choose it: write a docstring, "
            "or pass description=…"
        )
    return ToolDefinition(
        name=name,
        description=description_text,
        input_schema_json=None if checked_input is None else checked_input.text,
        output_schema_json=None if checked_output is None else checked_output.text,
        strict=stated.strict,
        tags=stated.tags,
        examples=tuple(_example(name, example) for example in options.examples),
        annotations=stated.annotations,
        visible=None
        if options.visible is None
        else _visibility(name, "visible", options.visible, output_schema),
        model_visible=_visibility(name, "model_visible", options.model_visible, output_schema),
        secret=secret_properties(name, checked_input, options.secret),
        no_schema_mode=options.no_schema_mode if checked_input is None else None,
        answer=_answer(name, options.answer, checked_input, output_schema),
    )


_FLAGS = ("allow_no_schema", "lazy", "subprocess")


def _check_types(name: str, options: ToolOptions) -> None:
    """Raise DefinitionError for an option of a wrong type that no other check finds."""
    for flag in _FLAGS:
        value = getattr(options, flag)
        if not isinstance(value, bool):
            raise DefinitionError(
                f"tool '{name}': {flag} is True or False, not {type(value).__name__}"
            )
    if not isinstance(options.examples, list | tuple):
        raise DefinitionError(
            f"tool '{name}': examples is a list of pairs (request, arguments), with JSON arguments"
        )


def _answer(
    name: str,
    answer: str | Sequence[str],
    checked_input: CheckedSchema | None,
    output: JsonObject | None,
) -> tuple[str, ...]:
    """Return the answer sentences, which name parameters and result fields. Raises
    DefinitionError."""
    if not isinstance(answer, str | list | tuple):
        raise DefinitionError(f"tool '{name}': answer is a str or a list of them")
    templates = (answer,) if isinstance(answer, str) else tuple(answer)
    if not templates:
        return ()
    try:
        fields = [field for template in templates for field in names_in(template)]
    except ValueError as error:
        raise DefinitionError(f"tool '{name}': answer: {error}") from None
    parameters: Any = {} if checked_input is None else checked_input.schema.get("properties") or {}
    result_fields: Any = (output or {}).get("properties")
    if output is None or (result_fields is None and output.get("type") in (None, "object")):
        return templates  # the fields of the result are unknown
    known = [*parameters, *(result_fields or (RESULT,))]
    for field in fields:
        if field not in known:
            raise DefinitionError(
                f"tool '{name}': answer names {{{field}}}{did_you_mean(field, known)}; it may name "
                f"{', '.join(known)}"
            )
    return templates


def with_secrets(
    definition: ToolDefinition, checked_input: CheckedSchema | None, hinted: Sequence[str]
) -> ToolDefinition:
    """Return the definition with the secrets found in hints, which its schema need not declare."""
    declared: Any = hinted if checked_input is None else checked_input.schema.get("properties", {})
    secret = tuple(dict.fromkeys([*definition.secret, *(n for n in hinted if n in declared)]))
    if secret == definition.secret:
        return definition
    return msgspec.structs.replace(definition, secret=secret)


def without_secret_defaults(name: str, derived: CheckedSchema, secret: object) -> CheckedSchema:
    """Return a derived schema without the defaults of secrets, at any depth.

    Parameters that the author calls secret count, too, with everything inside them. Models,
    approvers and logs read schemas.
    """
    # wrong types are refused later
    author_names = secret if isinstance(secret, list | tuple) else ()
    has_mark = any(mark in derived.text for mark in _SECRET_MARKS)
    if not (author_names or has_mark) or '"default"' not in derived.text:
        return derived
    schema: Any = json_copy(derived.text)
    properties = schema.get("properties", {})
    references = References(schema)
    parameters = [name for name in author_names if isinstance(name, str) and name in properties]
    secret_nodes = list(_schemas_below(references, [properties[name] for name in parameters]))
    if has_mark:
        ids_with_secret = _ids_with_secret(references, schema)
        secret_nodes += [node for _, node in subschemas(schema) if id(node) in ids_with_secret]
    removed_defaults = [node.pop("default") for node in secret_nodes if "default" in node]
    return check_input(name, schema, derived=True) if removed_defaults else derived


def with_defaults(
    definition: ToolDefinition, checked_input: CheckedSchema | None, defaults: Mapping[str, Default]
) -> ToolDefinition:
    """Return the definition with the defaults that its schema does not state.

    Its digest then covers them. A secret default is given only by its type.
    """
    properties: Any = {} if checked_input is None else checked_input.schema.get("properties", {})
    unstated = {
        name: default.by_type() if name in definition.secret else default.shown
        for name, default in defaults.items()
        if not (default.is_json and _states_default(properties.get(name), default.shown))
    }
    if not unstated:
        return definition
    return msgspec.structs.replace(definition, defaults_json=canonical_json(unstated))


def _states_default(declared: Any, shown: JsonValue) -> bool:
    has_default = isinstance(declared, dict) and "default" in declared
    return has_default and canonical_json(declared["default"]) == canonical_json(shown)


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


class _StatedAnnotations(msgspec.Struct, frozen=True):
    annotations: Annotations
    tags: tuple[str, ...]
    strict: bool | None


_NO_ANNOTATIONS = _StatedAnnotations(Annotations(), (), None)


def stated_annotations(name: str, options: AnnotationOptions) -> _StatedAnnotations:
    """Return the annotations that an author gives to a tool. Raises DefinitionError."""
    separate = ("tags", "strict", "marks")
    fields: dict[str, Any] = {key: value for key, value in options.items() if key not in separate}
    unknown = fields.keys() - (set(Annotations.__struct_fields__) - {"marks_json"})
    if unknown:
        known_names = [*(f for f in Annotations.__struct_fields__ if f != "marks_json"), *separate]
        raise DefinitionError(f"tool '{name}': {no_such('annotation', min(unknown), known_names)}")
    roles = options.get("allowed_roles")
    if isinstance(roles, Collection) and not isinstance(roles, str) and not roles:
        raise DefinitionError(
            f"tool '{name}': allowed_roles is empty, so that nobody could call it: name the roles, or"
            " leave it out for everybody"
        )
    if options.get("marks"):
        fields["marks_json"] = _marks(name, options["marks"])
    try:
        stated = _StatedAnnotations(
            msgspec.convert(fields, Annotations),
            msgspec.convert(options.get("tags", ()), tuple[str, ...]),
            msgspec.convert(options.get("strict"), bool | None),
        )
    except msgspec.ValidationError as error:
        raise DefinitionError(f"tool '{name}': a wrong annotation: {error}") from None
    for key, value in options.items():
        if isinstance(value, AbstractSet):
            raise DefinitionError(
                f"tool '{name}': a wrong annotation: {key} is a set, whose order is another in each "
                "process: write a list"
            )
    return stated


def _marks(name: str, marks: Mapping[str, Any]) -> str:
    try:
        return schema_text(dict(marks))
    except (TypeError, ValueError, SchemaError):
        raise DefinitionError(
            f"tool '{name}': marks is a dictionary of JSON values, such as {{'pii': True}}"
        ) from None


def check_name(name: object) -> str:
    """Raise DefinitionError unless the name is 1 to 128 characters of `[a-zA-Z0-9_.-]`.

    A wire that accepts fewer characters gets a substitute name, and calls by that name are
    understood.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DefinitionError(
            f"tool name {str(name)[:80]!r}: use 1 to 128 of a-z, A-Z, 0-9, '_', '-' and '.', such as"
            " @tool(name='look_up')"
        )
    return name


def _is_list_of_names(value: object) -> TypeGuard[Sequence[str]]:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _visibility(
    name: str, option: str, paths: Sequence[str] | All, output_schema: JsonObject | None
) -> Visibility:
    if isinstance(paths, All):
        return paths
    if not _is_list_of_names(paths):
        raise DefinitionError(
            f"tool '{name}': {option} is a list of paths such as ['total'], or ALL"
        )
    for path in paths:
        try:
            exists = output_schema is None or path_exists(output_schema, path)
        except ValueError as error:
            raise DefinitionError(f"tool '{name}': {option}: {error}") from None
        if not exists:
            fields = (output_schema or {}).get("properties", {})
            likely = did_you_mean(path, fields) if isinstance(fields, dict) else ""
            raise DefinitionError(
                f"tool '{name}': {option} has {path!r}, which no result has{likely}"
            )
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
    """Raise DefinitionError for examples that the schema refuses, because a model copies them."""
    if validator is None:
        return
    for example in definition.examples:
        try:
            if validator.is_valid(example.arguments):
                continue
            violations = validator.violations(example.arguments)
        except SchemaError as error:
            text = f"tool '{definition.name}', input_schema: {error.message}"
            raise SchemaError(text, error.pointer) from None
        except Exception as error:  # another author's validator
            raise DefinitionError(
                f"tool '{definition.name}': its validator failed on the example "
                f"{example.request[:60]!r} ({type(error).__name__})"
            ) from error
        problems = "; ".join(f"{path or 'the top'}: {message}" for path, _, message in violations)
        raise DefinitionError(
            f"tool '{definition.name}': the example {example.request[:60]!r} does not fit "
            f"input_schema: {problems}"
        )
