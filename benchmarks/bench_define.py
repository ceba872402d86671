"""E: 1,000 functions to definitions with validators, cold and warm, against the bare libraries.

Half of the functions take a model of their own, every second one a pydantic model, the others a
dataclass; models and functions are made before the clock starts. Each measurement has a process of
its own; cold is the first pass in it, warm the second over the same functions. The floor only
compiles ready schemas with jsonschema-rs and writes them with orjson; the last column is what
pydantic takes for an adapter of each model and its JSON Schema alone. CPU microseconds a function;
the minimum of the rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

COUNT = 1_000
ROUNDS = 5
REACH_COLD = 400
_PLAIN = '''
def look_up_{n}(query: str, limit: int = 10, tags: list[str] | None = None) -> dict[str, int]:
    """Look something up in shelf {n}.

    It is the fastest way to find out how often something was filed there.

    Args:
        query: What to look for, in plain words.
        limit: How many results there may be at most.
        tags: Only what has all of these.

    Returns:
        How often each was found.
    """
    return {{query: limit}}
'''
_PYDANTIC = '''
class Order{n}(BaseModel):
    """An order of shelf {n}."""

    sku: str = Field(min_length=1, description="The number of the article.")
    amount: Annotated[int, Field(ge=1, le=99)] = 1
    marks: list[str] = []
    due: date | None = None
'''
_DATACLASS = '''
@dataclass
class Order{n}:
    """An order of shelf {n}."""

    sku: str
    amount: Annotated[int, Field(ge=1, le=99)] = 1
    marks: list[str] = field(default_factory=list)
    due: date | None = None
'''
_TAKES_MODEL = '''
def take_order_{n}(customer: str, order: Order{n}, express: bool = False) -> dict[str, str]:
    """Take an order for shelf {n}.

    Args:
        customer: Who orders.
        order: What is ordered, and how much of it.
        express: Whether it is urgent.

    Returns:
        The state of each article.
    """
    return {{customer: order.sku}}
'''
_HEAD = """
from __future__ import annotations
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated
from pydantic import BaseModel, Field
"""


def make(kind: str) -> list[Callable[..., Any]]:
    """The functions; `kind` is `mixed`, or one of the three kinds alone."""
    parts: dict[str, Callable[[int], str]] = {
        "plain": lambda _: _PLAIN,
        "pydantic": lambda _: _PYDANTIC + _TAKES_MODEL,
        "dataclass": lambda _: _DATACLASS + _TAKES_MODEL,
        "mixed": lambda n: (_PLAIN, _PYDANTIC + _TAKES_MODEL, _PLAIN, _DATACLASS + _TAKES_MODEL)[
            n % 4
        ],
    }
    module = ModuleType(f"shop_{kind}")
    sys.modules[module.__name__] = module  # that is where hints are looked up
    text = _HEAD + "".join(parts[kind](n).format(n=n) for n in range(COUNT))
    exec(text, vars(module))  # noqa: S102  it stands above
    return [f for name, f in vars(module).items() if name.startswith(("look_up_", "take_order_"))]


def measure(kind: str) -> dict[str, float]:
    """One process: CPU microseconds a function."""
    import jsonschema_rs
    import orjson
    from pydantic import TypeAdapter

    from toolcrib import ALL, tool

    @tool(visible=ALL)
    def first(text: str) -> str:  # what loads late is loaded, as in any program that has a tool
        """Say something."""
        return text

    functions = make(kind)
    decorate = tool(visible=ALL)
    found = {}
    for name in ("cold", "warm"):
        started = time.process_time()
        tools = [decorate(function) for function in functions]
        found[name] = time.process_time() - started
    schemas = [(t.definition.input_schema or {}, t.definition.output_schema or {}) for t in tools]
    started = time.process_time()
    for pair in schemas:
        for schema in pair:
            jsonschema_rs.Draft202012Validator(schema)
            orjson.dumps(schema)
    found["floor"] = time.process_time() - started
    models = [
        vars(sys.modules[f"shop_{kind}"])[f.__annotations__["order"]]
        for f in make(kind)
        if "order" in f.__annotations__
    ]
    started = time.process_time()
    for model in models:
        TypeAdapter(model).json_schema()
    found["pydantic"] = time.process_time() - started
    return {name: seconds / COUNT * 1e6 for name, seconds in found.items()}


def main() -> None:
    """Each round in a fresh process, so that nothing is cached."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1])))
        return
    print(
        f"{'functions':<12}{'floor µs':>10}{'cold µs':>10}{'ratio':>8}{'warm µs':>10}{'reach µs':>10}"
        f"{'pydantic alone µs':>20}"
    )
    for kind in ("mixed", "plain", "pydantic", "dataclass"):
        rounds = [_fresh(kind) for _ in range(ROUNDS)]
        best = {name: min(r[name] for r in rounds) for name in rounds[0]}
        reach = REACH_COLD if kind == "mixed" else "–"
        print(
            f"{kind:<12}{best['floor']:>10.1f}{best['cold']:>10.1f}{best['cold'] / best['floor']:>8.1f}"
            f"{best['warm']:>10.1f}{reach:>10}{best['pydantic']:>20.1f}"
        )


def _fresh(kind: str) -> dict[str, float]:
    made = subprocess.run(  # noqa: S603  this file
        [sys.executable, __file__, kind], check=True, capture_output=True, text=True
    )
    result: dict[str, float] = json.loads(made.stdout)
    return result


if __name__ == "__main__":
    main()
