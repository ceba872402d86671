"""Python signatures as JSON Schemas, by pydantic; and readers that make typed arguments of JSON.

What is plain JSON by its hint (`str`, `list[str]`, `dict[str, Any]` …) is passed on as it is; only a
hint that promises something else (a date, a dataclass, a whole number where JSON has `3.0`) gets a
converter, so that the common call pays for nothing. Each value that a derived schema accepts makes
typed arguments, but for those that `EXCEPTIONS` lists; a hint that JSON Schema cannot express, or
only a part of it, is an error.
"""

from toolcrib.schema.derive.adapters import UNCHANGED_TYPES, Converter
from toolcrib.schema.derive.constraints import EXCEPTIONS
from toolcrib.schema.derive.defaults import Default, Factory
from toolcrib.schema.derive.parameters import (
    NO_DEFAULT,
    DerivedInput,
    DerivedObject,
    Parameter,
    check_types,
    converter_for,
    converters_for,
    defaults_of,
    derive_input,
    derive_object,
    derive_output,
    readable,
    secret_parameters,
)

__all__ = [
    "EXCEPTIONS",
    "NO_DEFAULT",
    "UNCHANGED_TYPES",
    "Converter",
    "Default",
    "DerivedInput",
    "DerivedObject",
    "Factory",
    "Parameter",
    "check_types",
    "converter_for",
    "converters_for",
    "defaults_of",
    "derive_input",
    "derive_object",
    "derive_output",
    "readable",
    "secret_parameters",
]
