"""The standard library: free-form docstrings, no hints, some functions in C; and what is no tool."""

from __future__ import annotations

import difflib
import email.message
import email.utils
import heapq
import math
import re
import shutil
import statistics
import textwrap
from collections.abc import Callable
from typing import IO, Any

from real import of_stdlib_numbers, of_stdlib_text, of_stdlib_world
from real.hinted import Refusal, hinted

Numbers = list[float]

CASES = (*of_stdlib_numbers.CASES, *of_stdlib_text.CASES, *of_stdlib_world.CASES)

REFUSED = (
    Refusal(math.gcd, ("gcd", "builtin")),
    Refusal(statistics.correlation, ("correlation", "'x'", "positional only")),
    Refusal(statistics.stdev, ("stdev", "data", "xbar", "no type hint")),
    Refusal(textwrap.wrap, ("wrap", "text", "width", "**kwargs")),
    Refusal(shutil.ignore_patterns, ("ignore_patterns", "*patterns")),
    Refusal(difflib.unified_diff, ("unified_diff", "yields")),
    Refusal(
        hinted(heapq.nlargest, Numbers, {"n": int, "iterable": Numbers, "key": Callable[..., Any]}),
        ("nlargest", "'key'"),
    ),
    Refusal(
        hinted(isinstance, bool, {"obj": Any, "class_or_tuple": type | tuple[type, ...]}),
        ("isinstance", "'class_or_tuple'"),
    ),
    Refusal(
        hinted(shutil.copyfileobj, None, {"fsrc": IO[str], "fdst": IO[str]}),
        ("copyfileobj", "'fsrc'"),
    ),
    Refusal(
        hinted(re.sub, str, {"pattern": re.Pattern[str], "repl": str, "string": type}),
        ("sub", "'string'"),
    ),
    Refusal(
        hinted(email.message_from_string, email.message.Message, {"s": str}),
        ("message_from_string", "return type"),
    ),
)
