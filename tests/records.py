"""What tests make records of."""

from __future__ import annotations

import msgspec

from toolcrib.values.json import JsonValue, canonical_json
from toolcrib.values.record import NO_JSON


def raw_json(value: JsonValue) -> msgspec.Raw:
    """Return arguments, or a result, as the text that a record holds; None as `NO_JSON`."""
    return NO_JSON if value is None else msgspec.Raw(canonical_json(value).encode())
