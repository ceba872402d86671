"""Hostile argument texts of 100 kB: what hydration and a repair by the sanitizer cost at worst.

Each kind of `tests/hydration/hostile_texts.py` is made with several seeds; of each text the minimum of
the rounds counts, of each kind the worst text. CPU milliseconds per 100 kB (of UTF-8).
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from hydration.hostile_texts import CODES

from toolcrib import ALL, Catalog, ToolCall, hydrate, tool
from toolcrib.hydration import Sanitizer, repair
from toolcrib.values.call import Rejected

ROUNDS = 3
SEEDS = 16
SIZE = 100_000
REACH = 50


@tool(visible=ALL)
def take(a: Any = None, n: int = 0) -> None:
    """Take anything."""


CATALOG = Catalog([take])


def _measure(once: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        once()
        best = min(best, time.process_time() - started)
    return best * 1e3


def _costs(text: str, loop: asyncio.AbstractEventLoop) -> tuple[float, float]:
    """Milliseconds per 100 kB of hydration, and of the repair that follows a rejection."""
    call = ToolCall("c", "take", text)
    share = max(1.0, len(text.encode("utf-8", "surrogatepass")) / SIZE)
    result = hydrate(call, CATALOG)
    read = _measure(lambda: hydrate(call, CATALOG))
    if not isinstance(result, Rejected):
        return read / share, 0.0
    sanitizer = Sanitizer()
    mended = _measure(lambda: loop.run_until_complete(repair(result, CATALOG, sanitizer)))
    return read / share, mended / share


def main() -> None:
    loop = asyncio.new_event_loop()
    print(f"{'kind':<22}{'hydrate ms':>11}{'repair ms':>11}{'reach ms':>10}")
    for maker in CODES:
        dice = random.Random(11)
        rows = [_costs(maker(dice, SIZE), loop) for _ in range(SEEDS)]
        read, mended = max(row[0] for row in rows), max(row[1] for row in rows)
        print(f"{maker.__name__:<22}{read:>11.2f}{mended:>11.2f}{REACH:>10}")
    loop.close()


if __name__ == "__main__":
    main()
