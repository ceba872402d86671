"""packaging: reST with roles at the start of a line, and examples after the fields."""

from __future__ import annotations

from packaging import utils
from real.hinted import Case, Refusal, hinted

CASES = (
    Case(
        utils.canonicalize_name,
        {"name": "Tool.Crib", "validate": True},
        lambda: utils.canonicalize_name("Tool.Crib", validate=True),
    ),
    Case(
        utils.is_normalized_name,
        {"name": "tool-crib"},
        lambda: utils.is_normalized_name("tool-crib"),
    ),
    Case(
        hinted(utils.canonicalize_version, str, {"version": str, "strip_trailing_zero": bool}),
        {"version": "1.4.0.0"},
        lambda: utils.canonicalize_version("1.4.0.0"),
    ),
)

REFUSED = (
    Refusal(utils.canonicalize_version, ("canonicalize_version", "'version'", "Version")),
    Refusal(utils.parse_wheel_filename, ("parse_wheel_filename", "return type")),
)
