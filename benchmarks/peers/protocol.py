"""The peers' side of `benchmarks/eval_peers.py`: one JSON object a line.

    → {"tools": [{"name", "description", "input_schema"}, …]}
    ← {"build_ms": 12.5}
    → {"query": "…", "top": 10}
    ← {"ranking": ["name", …], "cpu_ms": 0.8}
    … until stdin ends

Times are CPU milliseconds of the whole process. Whatever a library prints goes to stderr. Needs nothing
but Python: adapters run in environments of their own, where toolcrib is not installed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any, TypeAlias

Tool: TypeAlias = dict[str, Any]
Search: TypeAlias = Callable[[str, int], Sequence[str]]


def serve(build: Callable[[list[Tool]], Search]) -> None:
    """Answers stdin until it ends. `build(tools)` gives `search(query, top)`: names, best first."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(found: dict[str, Any]) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    asked = map(json.loads, sys.stdin.buffer)
    tools = next(asked)["tools"]
    began = process_time()
    search = build(tools)
    answer({"build_ms": (process_time() - began) * 1e3})
    for line in asked:
        began = process_time()
        ranking = search(line["query"], line["top"])
        spent = process_time() - began
        answer({"ranking": list(ranking)[: line["top"]], "cpu_ms": spent * 1e3})
