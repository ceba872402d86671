"""Cache results computed from texts, limited by bytes. `lru_cache` only limits the number of entries.

A schema may have 200 bytes or a million, so limiting the number of entries limits nothing. The
oldest entry is evicted first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from threading import Lock
from typing import TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
R = TypeVar("R")


def remembered(
    most: int, *, times: int = 2, each: int = 500
) -> Callable[[Callable[[*Ts], R]], Callable[[*Ts], R]]:
    """Decorate a function of hashable values to cache up to `most` bytes of results.

    An entry counts its texts `times` times, because what is made of a text grows with it, plus
    `each` bytes. Exceptions are not cached.
    """

    def decorate(function: Callable[[*Ts], R]) -> Callable[[*Ts], R]:
        cache: dict[object, tuple[R, int]] = {}
        lock = Lock()
        total = 0

        def keep(key: object, result: R, size: int) -> None:
            nonlocal total
            with lock:
                if key not in cache:
                    cache[key] = result, size
                    total += size
                while total > most:
                    total -= cache.pop(next(iter(cache)))[1]

        @wraps(function)
        def cached(*args: *Ts) -> R:
            entry = cache.get(args)
            if entry is not None:
                return entry[0]
            result = function(*args)
            texts = [arg for arg in args if isinstance(arg, str)]
            keep(args, result, each + times * sum(map(sys.getsizeof, texts)))
            return result

        return cached

    return decorate
