"""What all contenders of `bench_people.py` are given: calls as people write them, and their tools.

Small has two plain arguments (51 B); medium (0.8 kB) and large (22.6 kB, 200 rows) take nested models
and return some. It imports no toolcrib: the peers, in environments of their own, import it too,
and some of them read hints as they stand: no `annotations` from the future.
"""

import json
from typing import Any

from pydantic import BaseModel

SIZES = ("small", "medium", "large")
ROWS = {"medium": 6, "large": 200}


class Item(BaseModel):
    """One line of an order."""

    sku: str
    name: str
    quantity: int
    price: float
    line: int


class Options(BaseModel):
    """How an order is sent."""

    currency: str
    shipping: str
    note: str


class Line(BaseModel):
    """One line of an invoice."""

    sku: str
    line: int
    total: float


class Invoice(BaseModel):
    """What an order costs."""

    title: str
    lines: list[Line]
    sum: float


async def look_up(query: str, limit: int) -> dict[str, int]:
    """Look something up."""
    return {"found": len(query) + limit}


def look_up_plainly(query: str, limit: int) -> dict[str, int]:
    """Look something up, without giving way."""
    return {"found": len(query) + limit}


async def order(title: str, items: list[Item], options: Options) -> Invoice:
    """Take an order."""
    lines = [Line(sku=i.sku, line=i.line, total=i.quantity * i.price) for i in items]
    return Invoice(title=title + options.note, lines=lines, sum=sum(line.total for line in lines))


def arguments(size: str) -> str:
    """The text of a call's arguments, as a model sends it."""
    if size == "small":
        return json.dumps({"query": "the price of tea in china", "limit": 10})
    item = {"sku": "A-1043-XL", "name": "a cotton shirt, blue, with a collar", "quantity": 3}
    given: dict[str, Any] = {
        "title": "an order of some size",
        "items": [item | {"price": 19.95, "line": line} for line in range(ROWS[size])],
        "options": {"currency": "EUR", "shipping": "standard", "note": "leave it at the door"},
    }
    return json.dumps(given)
