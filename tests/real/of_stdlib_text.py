"""Text, of the standard library: wrapping, comparing, escaping, splitting, encoding."""

from __future__ import annotations

import ast
import base64
import difflib
import fnmatch
import html
import inspect
import json
import re
import shlex
import string
import textwrap
import unicodedata
from typing import Any, Literal

from real.hinted import Case, hinted

Words = list[str]

CASES = (
    Case(
        hinted(textwrap.shorten, str, {"text": str, "width": int}),
        {"text": "Hello  wide world!", "width": 12},
        lambda: textwrap.shorten("Hello  wide world!", 12),
    ),
    Case(
        hinted(textwrap.indent, str, {"text": str, "prefix": str}),
        {"text": "a\nb", "prefix": "> "},
        lambda: textwrap.indent("a\nb", "> "),
    ),
    Case(
        hinted(textwrap.dedent, str, {"text": str}),
        {"text": "  a\n  b"},
        lambda: textwrap.dedent("  a\n  b"),
    ),
    Case(
        hinted(
            difflib.get_close_matches,
            Words,
            {"word": str, "possibilities": Words, "n": int, "cutoff": float},
        ),
        {"word": "appel", "possibilities": ["ape", "apple", "peach"]},
        lambda: difflib.get_close_matches("appel", ["ape", "apple", "peach"]),
    ),
    Case(
        hinted(html.escape, str, {"s": str, "quote": bool}),
        {"s": "<a href='x'>", "quote": False},
        lambda: html.escape("<a href='x'>", quote=False),
    ),
    Case(
        hinted(html.unescape, str, {"s": str}),
        {"s": "&gt;&#62;"},
        lambda: html.unescape("&gt;&#62;"),
    ),
    Case(
        hinted(fnmatch.filter, Words, {"names": Words, "pat": str}),
        {"names": ["a.py", "b.txt"], "pat": "*.py"},
        lambda: fnmatch.filter(["a.py", "b.txt"], "*.py"),
    ),
    Case(hinted(unicodedata.name, str, {"chr": str}), {"chr": "ß"}, lambda: unicodedata.name("ß")),
    Case(
        hinted(
            unicodedata.normalize,
            str,
            {"form": Literal["NFC", "NFD", "NFKC", "NFKD"], "unistr": str},
        ),
        {"form": "NFKC", "unistr": "ﬁne"},
        lambda: unicodedata.normalize("NFKC", "ﬁne"),
    ),
    Case(
        hinted(shlex.join, str, {"split_command": Words}),
        {"split_command": ["cp", "my file", "there"]},
        lambda: shlex.join(["cp", "my file", "there"]),
    ),
    Case(
        hinted(string.capwords, str, {"s": str, "sep": str | None}),
        {"s": "tool crib", "sep": None},
        lambda: string.capwords("tool crib"),
    ),
    Case(
        hinted(re.split, list[str | None], {"pattern": str, "string": str, "maxsplit": int}),
        {"pattern": r"(,)|;", "string": "a,b;c"},
        lambda: re.split(r"(,)|;", "a,b;c"),
    ),
    Case(
        hinted(inspect.cleandoc, str, {"doc": str}),
        {"doc": "One.\n\n    Two."},
        lambda: inspect.cleandoc("One.\n\n    Two."),
    ),
    Case(
        hinted(base64.b64encode, bytes, {"s": bytes, "altchars": bytes | None}),
        {"s": "tööl"},
        lambda: base64.b64encode("tööl".encode()),
    ),
    Case(
        hinted(base64.b64decode, bytes, {"s": str, "validate": bool}),
        {"s": "dMO2w7Zs", "validate": True},
        lambda: base64.b64decode("dMO2w7Zs", validate=True),
    ),
    Case(
        hinted(ast.literal_eval, Any, {"node_or_string": str}),
        {"node_or_string": "{'a': [1, None]}"},
        lambda: ast.literal_eval("{'a': [1, None]}"),
    ),
    Case(
        hinted(
            json.dumps,
            str,
            {"obj": Any, "ensure_ascii": bool, "indent": int | str | None, "sort_keys": bool},
        ),
        {"obj": {"b": [1.5], "a": None}, "sort_keys": True, "indent": 2},
        lambda: json.dumps({"b": [1.5], "a": None}, sort_keys=True, indent=2),
    ),
)
