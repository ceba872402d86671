"""JSON Schema: derive schemas from Python, limit them, compile validators. Knows nothing of
tools."""

from toolcrib.schema.bundle import bundle_refs
from toolcrib.schema.derive import (
    UNCHANGED_TYPES,
    Converter,
    Default,
    DerivedInput,
    Parameter,
    derive_input,
    derive_output,
)
from toolcrib.schema.docstring import DocumentedSignature, read_docstring
from toolcrib.schema.guard import check_schema
from toolcrib.schema.validator import (
    JsonSchemaValidator,
    LazyValidator,
    Validator,
    ValidatorFactory,
    Violation,
    compile_validator,
)

__all__ = [
    "UNCHANGED_TYPES",
    "Converter",
    "Default",
    "DerivedInput",
    "DocumentedSignature",
    "JsonSchemaValidator",
    "LazyValidator",
    "Parameter",
    "Validator",
    "ValidatorFactory",
    "Violation",
    "bundle_refs",
    "check_schema",
    "compile_validator",
    "derive_input",
    "derive_output",
    "read_docstring",
]
