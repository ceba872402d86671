"""A frozen `ToolDefinition` describes a tool. It is the only authority on the tool's schema.

Schemas are kept as JSON text and handed out as fresh copies, so that nothing can change one after
registration. Anything derived from a definition (validators, embeddings) is stored elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from math import inf
from string import Formatter
from typing import Any, Final, Literal, Protocol, TypeAlias, TypedDict, runtime_checkable

import msgspec

from toolcrib.errors import DefinitionError
from toolcrib.values.gemini_form import each_declared, gemini_form
from toolcrib.values.json import (
    JsonObject,
    JsonValue,
    canonical_json,
    canonical_text,
    encodable,
    escape_pointer,
    json_copy,
    sha256_hex,
)
from toolcrib.values.typed import Checked

NoSchemaMode: TypeAlias = Literal["read-only", "human-approval", "full"]
NO_MARKS: Final = "{}"


class All:
    """The type of `ALL`, which stands for every field and has to be written explicitly."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, All)  # a copied or unpickled one means the same

    def __hash__(self) -> int:
        return hash(All)

    def __repr__(self) -> str:
        return "ALL"


ALL: Final = All()
UNDECLARED: Final = "*"
"""In `ToolDefinition.secret`: the arguments that no property of the schema declares."""

Visibility: TypeAlias = tuple[str, ...] | All


class AnnotationOptions(TypedDict, total=False):
    """The annotations that `@tool` takes as keywords; `Annotations` says what they mean."""

    safe: bool
    read_only: bool
    idempotent: bool
    requires_approval: bool
    threat_level: Literal["low", "medium", "high"]
    allowed_roles: tuple[str, ...] | list[str]
    features: tuple[str, ...] | list[str]
    cost: float
    timeout: float | None
    exclusive: bool
    background: bool
    untrusted_output: bool
    tags: tuple[str, ...] | list[str]
    strict: bool | None
    marks: Mapping[str, Any]


class Annotations(msgspec.Struct, frozen=True, kw_only=True):
    """Marks on a tool that policies, pickers and runners read without parsing a schema.

    `cost` is in the unit of the application's budget and at least 0. `timeout` is in seconds and
    above 0; None means the runner's own. Without `allowed_roles` everybody may call the tool.
    `marks` are the author's own words for policies to read (`{"pii": True}`); toolcrib gives them
    no meaning. Raises ValueError for numbers out of range.
    """

    safe: bool = True
    read_only: bool = False
    idempotent: bool = False
    requires_approval: bool = False
    threat_level: Literal["low", "medium", "high"] = "low"
    allowed_roles: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    cost: float = 0.0
    timeout: float | None = None
    exclusive: bool = False
    untrusted_output: bool = False
    background: bool = False
    marks_json: str = NO_MARKS

    def __post_init__(self) -> None:
        if not 0 <= self.cost < inf:
            raise ValueError(f"cost must be a finite number, 0 or more, not {self.cost}")
        if self.timeout is not None and not 0 < self.timeout < inf:
            raise ValueError(
                f"timeout must be a finite number of seconds above 0, not {self.timeout}"
            )

    @property
    def marks(self) -> JsonObject:
        """A fresh copy, so that nobody can change what another policy reads."""
        return json_copy(self.marks_json)

    def to_dict(self) -> JsonObject:
        """Return all annotations as JSON, as `@tool` and `marks=` take them.

        `marks` and `allowed_roles` are included only if they are not empty, `background` only if
        true.
        """
        plain = self.facts()
        if not self.allowed_roles:
            del plain["allowed_roles"]
        return plain

    def facts(self) -> JsonObject:
        """Return all annotations as JSON, as digests cover them, even empty `allowed_roles`."""
        plain: JsonObject = msgspec.to_builtins(self)
        del plain["marks_json"]
        if not self.background:
            del plain["background"]  # digests are older than this field
        return plain if self.marks_json == NO_MARKS else {**plain, "marks": self.marks}


class Example(msgspec.Struct, frozen=True):
    """A request in a user's words, and the arguments that answer it (as JSON text)."""

    request: str
    arguments_json: str

    @property
    def arguments(self) -> JsonObject:
        return json_copy(self.arguments_json)


_DECLARING_KEYWORDS: Final = (
    *("properties", "patternProperties", "required", "minProperties", "dependentSchemas"),
    *("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
)
_OPENING_KEYWORDS: Final = ("additionalProperties", "unevaluatedProperties")
"""The keywords by which an object's schema names or requires a key, or allows any key."""


class ToolDefinition(Checked, msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A tool as a model, a policy and an auditor know it.

    `visible` is the allowlist of result fields for UI, logs, telemetry and audit, and
    `model_visible` is the allowlist for the model. Both are dotted paths (`items[].id`) or `ALL`.
    If the author declared nothing, `visible` is None, no field is shown, and the result is marked
    `redaction_missing`. `secret` names top-level arguments that no record may show; `*` stands for
    those that the schema does not name. `defaults_json` holds the defaults of the author's code
    that the input schema does not state. `answer` holds the sentences with which a model that
    writes no text states a result.

    Raises DefinitionError for text with a lone surrogate, which no provider and no file can hold.
    """

    name: str
    description: str
    input_schema_json: str | None
    output_schema_json: str | None = None
    strict: bool | None = None
    tags: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    annotations: Annotations = Annotations()
    visible: Visibility | None = None
    model_visible: Visibility = ALL
    secret: tuple[str, ...] = ()
    no_schema_mode: NoSchemaMode | None = None
    defaults_json: str | None = None
    answer: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except TypeError as error:
            raise DefinitionError(str(error)) from None
        try:
            "".join(self._texts()).encode()
        except (UnicodeEncodeError, TypeError):
            raise DefinitionError(
                f"tool '{encodable(str(self.name))}': a text in its definition is not a str, "
                "or holds a lone surrogate"
            ) from None

    @cached_property
    def digest(self) -> str:
        """`sha256:…` over all fields, so that two different definitions have different digests.

        It is not a field, so nobody can claim a digest. It is computed on first access, because
        most definitions are read without it. Raises ValueError if a schema or an example is not
        JSON.
        """
        return "sha256:" + sha256_hex(self.canonical())

    @property
    def input_schema(self) -> JsonObject | None:
        """A fresh copy of the author's schema; None only for a tool that opted out of one."""
        return None if self.input_schema_json is None else json_copy(self.input_schema_json)

    @cached_property
    def properties(self) -> frozenset[str]:
        """The names of the parameters that the schema declares."""
        declared = (self.input_schema or {}).get("properties")
        return frozenset(declared) if isinstance(declared, dict) else frozenset()

    @cached_property
    def pointers(self) -> frozenset[str]:
        """The JSON Pointers of those parameters."""
        return frozenset(f"/{escape_pointer(name)}" for name in self.properties)

    @cached_property
    def closed(self) -> bool:
        """Whether valid arguments contain only what `properties` names."""
        schema = self.input_schema or {}
        return schema.get("additionalProperties") is False and "patternProperties" not in schema

    @cached_property
    def parameterless(self) -> bool:
        """Whether the schema declares no parameter, so that empty arguments are complete."""
        schema = self.input_schema
        if schema is None or any(schema.get(key) for key in _DECLARING_KEYWORDS):
            return False
        return all(schema.get(key, False) is False for key in _OPENING_KEYWORDS)

    @property
    def output_schema(self) -> JsonObject | None:
        return None if self.output_schema_json is None else json_copy(self.output_schema_json)

    def renamed(self, name: str) -> ToolDefinition:
        return msgspec.structs.replace(self, name=name)

    def to_dict(self) -> JsonObject:
        """Return the dictionary form: `{name, description, input_schema, output_schema?}`."""
        form: JsonObject = {"name": self.name, "description": self.description}
        if self.input_schema_json is not None:
            form["input_schema"] = json_copy(self.input_schema_json)
        if self.output_schema_json is not None:
            form["output_schema"] = json_copy(self.output_schema_json)
        return form

    def _texts(self) -> list[str]:
        marks = self.annotations
        texts = [self.name, self.description, self.input_schema_json or ""]
        texts += [self.output_schema_json or "", self.defaults_json or "", *self.tags, *self.secret]
        texts += [*self.answer, *marks.allowed_roles, *marks.features, marks.marks_json]
        for paths in (self.visible, self.model_visible):
            texts += () if isinstance(paths, All) else paths or ()
        for example in self.examples:
            texts += (example.request, example.arguments_json)
        return texts

    def canonical(self) -> str:
        """Return the RFC 8785 text of all fields, which the digest covers. Absent schemas, defaults
        and answers are left out."""
        examples: list[JsonValue] = [[e.request, e.arguments] for e in self.examples]
        schemas = (
            ("input_schema", self.input_schema_json),
            ("output_schema", self.output_schema_json),
            ("defaults", self.defaults_json),
        )
        facts = {
            "name": canonical_json(self.name),
            "description": canonical_json(self.description),
            **{name: canonical_text(text) for name, text in schemas if text is not None},
            "strict": canonical_json(self.strict),
            "tags": canonical_json(self.tags),
            "annotations": canonical_json(self.annotations.facts()),
            "visible": _visibility(self.visible),
            "model_visible": _visibility(self.model_visible),
            "secret": canonical_json(self.secret),
            "examples": canonical_json(examples),
            "no_schema_mode": canonical_json(self.no_schema_mode),
        }
        if self.answer:
            facts["answer"] = canonical_json(self.answer)
        return "{" + ",".join(f'"{name}":{facts[name]}' for name in sorted(facts)) + "}"


@lru_cache(maxsize=1024)
def _visibility(paths: Visibility | None) -> str:
    return '"*"' if isinstance(paths, All) else canonical_json(paths)


@runtime_checkable
class HasDefinition(Protocol):
    """Anything that has a definition: a tool made by `@tool`, a class decorated with it."""

    def get_definition(self) -> ToolDefinition: ...


class ImportedForm(dict[str, Any]):
    """The dictionary form of a definition from a file or a server, not from the application.

    Until the author trusts the tool, its calls need approval and its results taint the run. `hints`
    is what the tool's publisher claims (MCP's `annotations`). Claims can only make a tool stricter.
    """

    def __init__(self, form: Mapping[str, Any], hints: object = None) -> None:
        super().__init__(form)
        self.hints: Mapping[str, object] = hints if isinstance(hints, Mapping) else {}

    def strictness(self) -> AnnotationOptions:
        """Return the marks that the claims make stricter."""
        options: AnnotationOptions = {}
        if self.hints.get("destructiveHint") is True:
            options["safe"] = False
        if self.hints.get("openWorldHint") is True:
            options["untrusted_output"] = True
        return options

    def claims(self) -> AnnotationOptions:
        """Return everything the claims say: what makes the tool stricter, and what only informs
        whoever decides to trust it."""
        claims_read_only = self.hints.get("readOnlyHint") is True
        return {**self.strictness(), **({"read_only": True} if claims_read_only else {})}


_NO_PARAMETERS: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}


# Settings for how Anthropic's API sends or caches the tools of one request. They say nothing about
# the tool itself. Prompt caching of toolcrib's own requests is a setting of the client.
_REQUEST_SETTINGS = frozenset(("cache_control", "defer_loading", "eager_input_streaming"))
_KEYS_FROM_MCP = {
    "name": "name",
    "description": "description",
    "inputSchema": "input_schema",
    "outputSchema": "output_schema",
}


def mcp_form(form: Mapping[str, Any]) -> ImportedForm | None:
    """Convert MCP's form of a tool into toolcrib's form, as imported; return None for another form.

    A `/` in the name becomes `_`, since no provider accepts one. Other members (title, _meta) are
    dropped. https://modelcontextprotocol.io/specification/2025-06-18/server/tools
    """
    if "inputSchema" not in form or not form.keys().isdisjoint(("input_schema", "output_schema")):
        return None
    converted = {
        our_key: form[their_key]
        for their_key, our_key in _KEYS_FROM_MCP.items()
        if their_key in form
    }
    if isinstance(converted.get("name"), str):
        converted["name"] = converted["name"].replace("/", "_")
    return ImportedForm(converted, form.get("annotations"))


def own_form(form: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert the form of a tool of OpenAI, Anthropic, Gemini or MCP into toolcrib's form.

    That is `{name, description, input_schema, output_schema?, strict?, input_examples?}`. Any other
    form is returned unchanged. Raises DefinitionError for a tool that runs at its provider.
    https://platform.openai.com/docs/api-reference/chat/create (`tools`), likewise for Responses;
    https://platform.claude.com/docs/en/api/messages/create (`tools`), where `custom` may be left
    out; `gemini_form` documents Gemini's.
    """
    imported = mcp_form(form)
    if imported is not None:
        return imported
    gemini_tool = gemini_form(form)
    if gemini_tool is not None:
        gemini_tool.setdefault("input_schema", _NO_PARAMETERS)
    converted = _form_of_type(form) if gemini_tool is None else gemini_tool
    if isinstance(form, ImportedForm) and converted is not form:
        return ImportedForm(converted, form.hints)
    return converted


def _form_of_type(form: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a tool of OpenAI or Anthropic, which says its `type`; return any other unchanged."""
    if not form.keys().isdisjoint(_REQUEST_SETTINGS):
        form = {key: value for key, value in form.items() if key not in _REQUEST_SETTINGS}
    kind = form.get("type")
    if not isinstance(kind, str):
        return form
    if kind == "custom" and "input_schema" in form:
        converted = {key: value for key, value in form.items() if key != "type"}
    elif kind != "function":
        raise DefinitionError(
            f"a {kind[:40]!r} tool runs at its provider: give it to the client, not as a definition"
        )
    else:
        function = form.get("function", form)
        if not isinstance(function, Mapping):
            raise DefinitionError(
                "the 'function' of a definition of type 'function' must be a dictionary"
            )
        converted = {
            key: function[key] for key in function if key not in ("type", "parameters", "strict")
        }
        parameters = function.get("parameters")  # "omitting" them "defines an empty parameter list"
        converted["input_schema"] = _NO_PARAMETERS if parameters is None else parameters
        if function.get("strict") is not None:
            converted["strict"] = function["strict"]
    return converted


def single_forms(form: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the tools that a dictionary describes: one, or as many as Gemini's form declares.

    Raises DefinitionError.
    """
    tools = each_declared(form)
    if isinstance(form, ImportedForm):
        return [tool if tool is form else ImportedForm(tool, form.hints) for tool in tools]
    return tools


def examples_of_form(form: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Convert Anthropic's `input_examples`, which are arguments without a request, into examples.

    Raises DefinitionError if they are not a list of objects.
    """
    examples = form.get("input_examples") or []
    if not isinstance(examples, list | tuple) or not all(
        isinstance(arguments, Mapping) for arguments in examples
    ):
        raise DefinitionError(
            f"the input_examples of {form.get('name')!r} are not a list of objects"
        )
    return [("", arguments) for arguments in examples]


def marks_of_form(form: Mapping[str, Any]) -> Annotations:
    """Return the marks for a dictionary without any. An imported tool needs approval."""
    if not isinstance(form, ImportedForm):
        return Annotations()
    return asking(msgspec.convert(form.strictness(), Annotations))


def asking(annotations: Annotations) -> Annotations:
    """Return the marks of an imported tool that nobody has trusted."""
    return msgspec.structs.replace(annotations, requires_approval=True, untrusted_output=True)


class PlainTool(msgspec.Struct, frozen=True):
    """A definition without code, as a tool on offer."""

    definition: ToolDefinition

    def get_definition(self) -> ToolDefinition:
        return self.definition


def tools_in(tools: object, *, whole: type | None = None) -> Iterator[Any]:
    """Yield the single tools in any accepted form, in order. Only this function knows all the forms.

    A tool, a decorated class, a definition and a definition's dictionary form are one tool each. A
    catalog or any other iterable holds tools or further such iterables. An instance of `whole` is
    yielded as it is, without looking into it. So is an object that is not a tool: the caller
    reports what is wrong with it. Raises DefinitionError for a string or None in place of tools.
    """
    if tools is None or isinstance(tools, str | bytes):
        hint = "; to load a file or a module, use discover(…)" if isinstance(tools, str) else ""
        kind = type(tools).__name__
        raise DefinitionError(
            f"give tools, definitions, or a list or Catalog of them, not {kind}{hint}"
        )
    yield from _tools_in(tools, whole, _MAX_LEVELS)


_MAX_LEVELS = 16


def _tools_in(thing: object, whole: type | None, levels: int) -> Iterator[Any]:
    if isinstance(thing, Mapping):
        yield from single_forms(thing)
    elif _is_single(thing) or not levels or (whole is not None and isinstance(thing, whole)):
        yield thing
    elif isinstance(thing, Iterable):
        for inner in thing:
            if inner.__class__ is dict:
                yield from single_forms(inner)
            else:
                yield from _tools_in(inner, whole, levels - 1)


def _is_single(thing: object) -> bool:
    if isinstance(thing, (ToolDefinition, type, str, bytes)) or hasattr(thing, "get_definition"):
        return True
    # a pydantic model iterates over its fields
    return not isinstance(thing, Iterable) or hasattr(type(thing), "model_fields")


def offered_tools(
    tools: object, text: Callable[[str, JsonObject], str] | None = None
) -> Iterator[HasDefinition]:
    """Yield the same tools, each with its definition, as an `Offer` holds them.

    `text` is passed to `definition_of_form`. Raises DefinitionError for an object that is not a
    tool.
    """
    for thing in tools_in(tools):
        tool = as_plain(thing, text)
        if not hasattr(tool, "get_definition"):
            raise DefinitionError(f"{type(tool).__name__} is not a tool: it has no definition")
        yield tool


def as_plain(thing: Any, text: Callable[[str, JsonObject], str] | None = None) -> Any:
    """Wrap a definition or its dictionary form as a tool; return anything else unchanged."""
    if isinstance(thing, Mapping):
        thing = definition_of_form(thing, text)
    return PlainTool(thing) if isinstance(thing, ToolDefinition) else thing


_FOREIGN_KEYS = ("parameters", "inputSchema")  # the names of the schema at providers and in MCP


def definition_of_form(
    form: Mapping[str, Any], text: Callable[[str, JsonObject], str] | None = None
) -> ToolDefinition:
    """Return the definition for `{name, description, input_schema}`. Other members are ignored.

    `text` turns a schema into JSON text (called with name and schema), and may refuse it. Raises
    DefinitionError for a form without a name, and for a schema that is not a JSON object or has
    another key.
    """
    form = own_form(form)
    name, schema = form.get("name"), form.get("input_schema")
    description, strict = form.get("description") or "", form.get("strict")
    if not isinstance(name, str) or not name:
        raise DefinitionError("a definition needs a name: {name, description, input_schema}")
    foreign_key = next((key for key in _FOREIGN_KEYS if key in form), None)
    if schema is None and foreign_key is not None:
        raise DefinitionError(
            f"{name!r}: unknown key {foreign_key!r} (it is called input_schema here)"
        )
    if schema is not None and not isinstance(schema, Mapping):
        raise DefinitionError(f"the input_schema of {name!r} is not a JSON object")
    return ToolDefinition(
        name=name,
        description=description if isinstance(description, str) else str(description),
        input_schema_json=None if schema is None else (text or _text)(name, dict(schema)),
        strict=strict if isinstance(strict, bool) else None,
        examples=tuple(
            Example(request, _text(name, dict(arguments)))
            for request, arguments in examples_of_form(form)
        ),
        annotations=marks_of_form(form),
    )


def _text(name: str, schema: JsonObject) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise DefinitionError(f"the input_schema of {name!r} is not JSON") from None


# The sentence that states a result: a tool's `answer`, such as `{expression} is {value}`.
#
# Braces hold names of fields of the result and of arguments; the result's fields come first.
# `{result}` is a result that is not an object. No other feature of Python's format strings is
# supported, and each value comes from the call itself.

RESULT = "result"
_LONGEST_VALUE = 300


def names_in(template: str) -> tuple[str, ...]:
    """Return the names in a template's braces. Raises ValueError saying what is wrong with the
    template."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError:
        raise ValueError(
            "a brace is not closed or not opened; to write a brace itself, double it"
        ) from None
    except TypeError:
        raise ValueError("it must be a str, such as '{expression} is {value}'") from None
    for _, name, form, conversion in parts:
        if name is not None and (form or conversion or not name.isidentifier()):
            raise ValueError("each pair of braces must hold a name and nothing else")
    return tuple(name for _, name, _, _ in parts if name is not None)


def stated(template: str, arguments: Mapping[str, JsonValue], result: JsonValue) -> str | None:
    """Return the sentence, or None if a value is missing or cannot be stated in a sentence."""
    fields = result if isinstance(result, dict) else {RESULT: result}
    pieces = []
    for literal, name, _, _ in Formatter().parse(template):
        pieces.append(literal)
        if name is None:
            continue
        value = fields.get(name, arguments.get(name))
        if value is None or isinstance(value, dict | list):
            return None
        text = value if isinstance(value, str) else canonical_json(value)
        if len(text) > _LONGEST_VALUE or not text.isprintable():
            return None
        pieces.append(text)
    return "".join(pieces)
