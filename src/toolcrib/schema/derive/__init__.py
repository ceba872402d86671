"""Derive JSON Schemas from Python signatures, using pydantic, and build typed arguments from JSON.

Values whose hint is plain JSON (`str`, `list[str]`, `dict[str, Any]` …) are passed on unchanged.
Only a hint that promises something else (a date, a dataclass, a whole number where JSON has `3.0`)
gets a converter, so that ordinary calls pay nothing. Every value that a derived schema accepts can
be built as typed arguments, except those listed in `EXCEPTIONS`. A hint that JSON Schema cannot
express, or only in part, is an error.
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
