"""Requests that are made again, as long as the caller has been given nothing of an answer.

What is worth another attempt, the error itself says (`ClientError.retryable`); when, the provider says,
or else a wait that doubles, and is the same for no two clients. Stopping and waiting are tenacity's.

Rule: a request has one time limit in all, for its attempts and the waits between them. A wait that
would end after it is not begun.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from toolcrib.errors import ClientError
from toolcrib.values.typed import Checked

if TYPE_CHECKING:
    import tenacity
    from tenacity.asyncio import AsyncRetrying

T = TypeVar("T")


class Retries(Checked, msgspec.Struct, frozen=True, kw_only=True):
    """Say how often a request is made in all, and how long is waited in between, in seconds.

    The first wait is `first_wait`, each further one twice as long, none longer than `longest_wait`; by
    chance, each is up to `first_wait` longer. A provider that says when to come back is heeded: where
    that is later than `longest_wait` its error is raised at once, with `.retry_after`. `sleep` is how
    to wait, and may be another in tests. Raises ValueError for numbers that are none of these.
    """

    attempts: int = 3
    first_wait: float = 0.5
    longest_wait: float = 60.0
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        if self.attempts.__class__ is not float:  # NaN is checked as the number that it is
            super().__post_init__()
        waits = 0 <= self.first_wait <= self.longest_wait and self.first_wait < math.inf
        if not (self.attempts >= 1 and waits):  # NaN is neither
            raise ValueError("Retries: at least one attempt, and 0 <= first_wait <= longest_wait")

    def allow(self, error: BaseException | None) -> bool:
        """Return whether another attempt is worth its while, were there one left."""
        if not isinstance(error, ClientError) or not error.retryable:
            return False
        return error.retry_after is None or error.retry_after <= self.longest_wait


class Attempts:
    """The attempts at one request; None is one attempt. tenacity is imported at the second one.

    `until` is the event loop's time at which all of them have to be over, None for no limit.
    """

    def __init__(self, retries: Retries | None, total: float | None = None) -> None:
        self._retries = retries
        self.until = None if total is None else asyncio.get_running_loop().time() + total
        self._attempts: AsyncRetrying | None = None
        self._now: tenacity.AttemptManager | None = None
        self._made = 0

    async def after(self, error: ClientError) -> None:
        """Wait until the request may be made again. Raises the error where it may not.

        An error that is raised after several attempts says how many they were.
        """
        self._made += 1
        try:
            await self._next(error)
        except ClientError:
            if self._made > 1:
                error.args = (f"{error} (after {self._made} attempts)",)
            raise

    async def _next(self, error: ClientError) -> None:
        if self._retries is None or not self._retries.allow(error):
            raise error
        if self._attempts is None or self._now is None:
            self._attempts = aiter(_retrying(self._retries, error, self.until))
            self._now = await anext(self._attempts)
        with self._now:
            raise error
        self._now = await anext(self._attempts)


async def retried(attempts: Attempts, ask: Callable[[float | None], Awaitable[T]]) -> T:
    """Return what `ask(until)` gives, asked again where its ClientError is worth it. Raises the last
    one."""
    while True:
        try:
            return await ask(attempts.until)
        except ClientError as error:
            failure = error
        await attempts.after(failure)


def _retrying(retries: Retries, error: ClientError, until: float | None) -> AsyncRetrying:
    """Raises the error itself where tenacity is not installed."""
    try:
        import tenacity
        from tenacity.asyncio import AsyncRetrying
    except ImportError:
        error.args = (f"{error} (trying again needs an extra: pip install 'toolcrib[http]')",)
        raise error from None
    backoff = tenacity.wait_exponential(retries.first_wait, retries.longest_wait)
    chance = tenacity.wait_random(0, retries.first_wait)

    def wait(state: tenacity.RetryCallState) -> float:
        failure = state.outcome.exception() if state.outcome is not None else None
        told = failure.retry_after if isinstance(failure, ClientError) else None
        return chance(state) + (backoff(state) if told is None else told)

    now = asyncio.get_running_loop().time

    def enough(state: tenacity.RetryCallState) -> bool:
        late = until is not None and now() + state.upcoming_sleep >= until
        return late or state.attempt_number >= retries.attempts

    return AsyncRetrying(
        stop=enough,
        retry=tenacity.retry_if_exception(retries.allow),
        wait=wait,
        sleep=retries.sleep,
        reraise=True,
    )
