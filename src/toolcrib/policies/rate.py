"""`rate_limit`: a limit on calls in any stretch of time, by the library `limits`, an extra.

The notation and the strategy are the library's. What it needs to keep is kept here: its own memory
starts a thread at a call and goes through all keys it ever saw (10,000 callers took half a core).
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias, get_args

from toolcrib.errors import ErrorCode, MissingExtraError, ToolcribError
from toolcrib.policies.rules import names_of
from toolcrib.runner.policy import CountingPolicy
from toolcrib.values.call import Hydrated
from toolcrib.values.context import PolicyContext
from toolcrib.values.decision import Allow, Decision, Deny
from toolcrib.values.record import ToolInvocationRecord
from toolcrib.values.typed import explains_wrong_types

RatePer: TypeAlias = Literal["all", "tool", "caller", "run"]
_WITHIN: Final = Allow("within the rate limit", "rate_limit")


@explains_wrong_types
def rate_limit(
    limit: str, *, per: RatePer = "caller", only: str | Iterable[str] = ()
) -> CountingPolicy:
    """Deny, as `rate_limited`, a call that would be one too many.

    `"5/minute"` or `"100 per 2 hours"`: no more than that in any stretch of that length, of each
    caller, each tool, each run, or all together; what is denied does not count. `only` counts and
    limits the calls of the tools that it names. It holds in this process. Raises ToolcribError for
    what is no limit, or more than one, and MissingExtraError without the extra `limits`.
    """
    if per not in get_args(RatePer):
        raise ToolcribError(f"rate_limit: per is one of {', '.join(get_args(RatePer))}")
    return _RateLimit(limit, per, names_of(only, "rate_limit(only=…)"))


class _RateLimit:
    __name__ = "rate_limit"

    def __init__(self, limit: str, per: RatePer, named: frozenset[str]) -> None:
        self._item, self._limiter = _moving_window(limit)
        self._per = per
        self._named = named
        text = f"the limit of {self._item.amount} calls in {self._item.get_expiry()} seconds"
        whose = "" if per == "all" else f" a {per}"
        self._denial = Deny(f"{text}{whose} is reached", "rate_limit", ErrorCode.RATE_LIMITED)

    def __call__(self, hydrated: Hydrated, context: PolicyContext) -> Decision:
        if self._named and hydrated.definition.name not in self._named:
            return _WITHIN
        free = self._limiter.test(self._item, self._key(hydrated, context))
        return _WITHIN if free else self._denial

    def count(self, hydrated: Hydrated, context: PolicyContext) -> Deny | None:
        if self._named and hydrated.definition.name not in self._named:
            return None
        free = self._limiter.hit(self._item, self._key(hydrated, context))
        return None if free else self._denial

    def settle(self, record: ToolInvocationRecord, context: PolicyContext) -> None:
        """Do nothing: a call counts when it begins."""

    def _key(self, hydrated: Hydrated, context: PolicyContext) -> str:
        match self._per:
            case "all":
                return ""
            case "tool":
                return hydrated.definition.name
            case "caller":
                return context.caller.id
            case "run":
                return context.run.run_id


class _Windows:
    """When the last calls of each key were, oldest first: what `limits` asks of a moving window.

    Keys whose calls have all left the window are forgotten at the next call of any: no more is kept
    than what was called within a window. Seconds are on the monotonic clock.
    """

    def __init__(self) -> None:
        self._calls: dict[str, list[float]] = {}  # the key called last comes last
        self._lock = threading.Lock()  # a runner may serve several loops, each in its thread

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        with self._lock:
            now = time.monotonic()
            calls = self._calls.get(key, [])
            del calls[: bisect_right(calls, now - expiry)]
            if len(calls) + amount > limit:
                return False
            calls.extend([now] * amount)
            self._calls.pop(key, None)
            self._calls[key] = calls
            while self._calls[oldest := next(iter(self._calls))][-1] <= now - expiry:
                del self._calls[oldest]
            return True

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """When the window's first call was, and how many there were. Changes nothing."""
        now = time.monotonic()
        calls = self._calls.get(key, [])
        first = bisect_right(calls, now - expiry)
        return (calls[first] if first < len(calls) else now, len(calls) - first)


def _moving_window(limit: str) -> tuple[Any, Any]:
    """Return the limit as the library reads it, and its strategy over a memory of our own."""
    try:
        from limits import parse_many
        from limits.storage import Storage
        from limits.strategies import MovingWindowRateLimiter
    except ImportError:
        raise MissingExtraError("limits", "rate_limit") from None
    try:
        items = parse_many(limit)
    except ValueError:
        raise ToolcribError(
            'rate_limit: write a limit like "5/minute", "100 per 2 hours"'
        ) from None
    if len(items) != 1:
        raise ToolcribError("rate_limit: one limit; for a second one, a second policy")
    Storage.register(_Windows)
    windows: Any = _Windows()
    return items[0], MovingWindowRateLimiter(windows)
