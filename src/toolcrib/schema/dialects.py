"""The dialects of JSON Schema that endpoints take, each with the source of its facts.

A dialect says what is known to be kept or refused. Where a provider says nothing, the keyword stays.
"""

from __future__ import annotations

from toolcrib.schema.lower.tree import Dialect

# No provider says how large the schema of a tool may be. Beyond this (about 16,000 tokens) it would
# take more of a context than most conversations do, in each request.
_VERY_LARGE = 65_536

# Servers that speak a provider's wire format (vLLM, llama.cpp, LiteLLM …) and take any schema.
VERBATIM = Dialect(name="verbatim")

# "schema must have type 'object' and not have 'oneOf'/'anyOf'/'allOf'/'enum'/'not' at the top level"
# and "array schema missing items" are the endpoint's own messages for functions without `strict`
# (as quoted in chatanywhere/GPT_API_free#403). Whether it takes `true` as a schema is not said:
# `{}` means the same.
OPENAI = Dialect(
    name="openai",
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum", "not", "$ref"}),
    booleans=False,
    need_items=True,
    compact_over=_VERY_LARGE,
)

# https://platform.openai.com/docs/guides/structured-outputs#supported-schemas: the keywords, formats
# and limits, as of 2026. The `min/maxLength` of newer models are left out: fine-tuned ones refuse them.
_OPENAI_STRICT_KEYWORDS = frozenset(
    ("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const",
     "$ref", "$defs", "title", "description", "pattern", "format", "multipleOf", "minimum",
     "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems")
)  # fmt: skip
OPENAI_STRICT = Dialect(
    name="openai-strict",
    keywords=_OPENAI_STRICT_KEYWORDS,
    formats=frozenset(
        {"date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
    ),
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum", "const", "$ref"}),
    refs="plain",
    ref_siblings=False,
    closed=True,
    all_required=True,
    booleans=False,
    need_items=True,
    lookaround=False,
    max_depth=10,
    max_properties=5_000,
    max_enum=1_000,
    max_long_enum=15_000,
    max_names=120_000,
    compact_over=_VERY_LARGE,
)

# "input_schema does not support oneOf, allOf, or anyOf at the top level" (anthropics/claude-code
# #40075); "Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'", which looks at the top only
# (anthropics/claude-code#79418, decocms/studio#6874).
ANTHROPIC = Dialect(
    name="anthropic",
    root_without=frozenset({"anyOf", "oneOf", "allOf", "$ref"}),
    property_names=r"[a-zA-Z0-9_.-]{1,64}",
    compact_over=_VERY_LARGE,
)

# https://platform.claude.com/docs/en/build-with-claude/structured-outputs#json-schema-limitations, as
# of 2026, which strict tools share: "If you use an unsupported feature, you'll receive a 400 error".
# Optional properties stay optional. Patterns ("complex patterns may result in 400 errors") and
# `minItems` (0 and 1 only) go into descriptions. References are taken if they are not recursive, but
# nothing next to them, and how a definition counts that is used twice is not said: they are inlined.
_ANTHROPIC_STRICT_KEYWORDS = frozenset(
    ("type", "properties", "required", "additionalProperties", "items", "anyOf", "enum", "const",
     "title", "description", "default", "format")
)  # fmt: skip
_ANTHROPIC_STRICT_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid")
)  # fmt: skip
ANTHROPIC_STRICT = Dialect(
    name="anthropic-strict",
    keywords=_ANTHROPIC_STRICT_KEYWORDS,
    formats=_ANTHROPIC_STRICT_FORMATS,
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum", "const", "$ref"}),
    refs="none",
    unroll=1,
    closed=True,
    booleans=False,
    need_items=True,
    property_names=r"[a-zA-Z0-9_.-]{1,64}",
    compact_over=_VERY_LARGE,
)

# What the structs ToolProperty and ToolFunctionParameters of ollama's api/types.go decode; the rest
# is dropped on the way to the model. `true` cannot be decoded at all. Templates print the schema into
# the prompt, and the context window is small unless it is asked for.
OLLAMA = Dialect(
    name="ollama",
    keywords=frozenset({"type", "anyOf", "items", "description", "enum", "properties", "required"}),
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum", "description"}),
    refs="none",
    booleans=False,
    compact_over=16_384,
)

# The keywords that Google's API definition lists for schemas given as JSON Schema
# (googleapis: generativelanguage/v1beta/generative_service.proto, `_responseJsonSchema`; the
# `parametersJsonSchema` of a function says no more than "JSON Schema"). There, cyclic references
# may only stand in properties that are not required, and nothing may stand next to a `$ref`: so they
# are inlined. Formats: https://ai.google.dev/gemini-api/docs/structured-output.
_GEMINI_KEYWORDS = frozenset(
    ("type", "format", "title", "description", "enum", "items", "prefixItems", "minItems",
     "maxItems", "minimum", "maximum", "anyOf", "properties", "additionalProperties", "required",
     "propertyOrdering")
)  # fmt: skip
GEMINI = Dialect(
    name="gemini",
    keywords=_GEMINI_KEYWORDS,
    formats=frozenset({"date-time", "date", "time"}),
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum"}),
    refs="none",
    booleans=False,
    need_items=True,
    compact_over=_VERY_LARGE,
)

# "schema must be an object" (https://docs.cohere.com/reference/errors); what else is unsupported
# (https://docs.cohere.com/docs/structured-outputs) is so only where a request has `strict_tools`.
COHERE = Dialect(
    name="cohere",
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum", "not", "$ref"}),
    booleans=False,
    compact_over=_VERY_LARGE,
)

# What https://docs.cohere.com/docs/structured-outputs does not list as unsupported for an answer: no
# combinations, ranges or lengths. A part that would lose its type is for the caller to see.
COHERE_OUTPUT = Dialect(
    name="cohere-output",
    keywords=frozenset({"type", "items", "description", "enum", "properties", "required"}),
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum"}),
    refs="none",
    booleans=False,
    need_items=True,
    compact_over=_VERY_LARGE,
)

# What every endpoint here takes.
PORTABLE = Dialect(
    name="portable",
    keywords=frozenset({"type", "items", "description", "enum", "properties", "required"}),
    root_without=frozenset({"anyOf", "oneOf", "allOf", "enum"}),
    refs="none",
    booleans=False,
    need_items=True,
    property_names=r"[a-zA-Z0-9_.-]{1,64}",
)
