"""JSON Schema: derived from Python, guarded, compiled to validators. Knows no tools."""

from toolcrib.schema.derive import Converter, DerivedInput, Parameter, derive_input, derive_output
from toolcrib.schema.docstring import DocumentedSignature, read_docstring
from toolcrib.schema.guard import check_schema
from toolcrib.schema.validator import JsonSchemaValidator, Validator, Violation, compile_validator

__all__ = [
    "Converter",
    "DerivedInput",
    "DocumentedSignature",
    "JsonSchemaValidator",
    "Parameter",
    "Validator",
    "Violation",
    "check_schema",
    "compile_validator",
    "derive_input",
    "derive_output",
    "read_docstring",
]
