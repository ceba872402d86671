"""Regular expressions that are arguments (`re.Pattern`) are compiled only after that work was counted.

Python compiles a range of a character class (`[a-z]`) letter by letter: up to 20 ms for one that is
wide, so that a pattern of a few KB took seconds. The work is counted with what a value makes its reader
read again, before `re` sees the pattern.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from toolcrib.schema.derive.cores import core_schemas, is_pydantics, rewritten
from toolcrib.schema.derive.roundtrip import spend_reading

# In units of a byte that is read again, 0.1 µs; measured with Python 3.11.
_LETTER = 100
_RANGE = 3_000
_WIDE_RANGE = 200_000
_WIDE = re.compile(r"-(?:[^\x00-\xff]|\\[uUN])")
_TOO_MUCH = "The arguments hold regular expressions that take too long to read. Send shorter ones."


def counting_patterns(core: Any) -> Any:
    """Return a core schema that reads the same, and counts the work of reading regular expressions."""
    if not any(map(_reads_pattern, core_schemas(core))):
        return core
    return rewritten(core, _counting)


def _reads_pattern(core: Any) -> bool:
    if core["type"] != "function-plain" or not is_pydantics(core):
        return False
    return str(getattr(core["function"]["function"], "__name__", "")).startswith("pattern_")


def _counting(core: Any) -> Any:
    if not _reads_pattern(core):
        return core
    function: Callable[[Any], Any] = core["function"]["function"]

    @wraps(function)  # it still is pydantic's own
    def read(value: Any) -> Any:
        if isinstance(value, str):
            spend_reading(_work(value), _TOO_MUCH)
        return function(value)

    return {**core, "function": {**core["function"], "function": read}}


def _work(pattern: str) -> int:
    wide = _WIDE_RANGE * len(_WIDE.findall(pattern))
    return _LETTER * len(pattern) + _RANGE * pattern.count("-") + wide
