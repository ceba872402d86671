"""A left-behind tool ends after its call: its end is added to what is known about the call.

Rule: the end is worked out once, as if the tool had ended that way in time, and added in the event
loop of its call. If that loop has closed, or closes before the end is added, a new loop does it.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from toolcrib.errors import ErrorCode
from toolcrib.runner.execute import TimeLimitExceeded
from toolcrib.runner.executor import Executor, ToolPlan
from toolcrib.runner.stopped import Stopped
from toolcrib.threads import Ending, LeftWork, Work, cancel_requests
from toolcrib.values.call import Hydrated
from toolcrib.values.record import CallError, Completed, Failed

_LOOK = 0.05  # seconds between checks whether the loop has closed


def follow(
    body: Work,
    read: Callable[[Ending], Completed | Failed],
    add: Callable[[Completed | Failed], Awaitable[bool]],
) -> None:
    """Add the end of a left-behind tool to its call once its `body` is over.

    `read` returns the call's outcome, and is called once because reading may use up a value. `add`
    returns False if the end could not be written.
    """
    loop = asyncio.get_running_loop()

    def heard(value: Any, raised: BaseException | None) -> None:
        ended: list[Completed | Failed] = []
        added: list[bool] = []
        over = threading.Event()
        tasks = []  # a loop holds its tasks weakly

        async def end() -> None:
            if not ended:
                ended.append(read((value, raised)))
            added.append(await add(ended[0]))

        ending = end()

        async def in_loop() -> None:
            try:
                await ending
            finally:
                over.set()

        driving = in_loop()
        with suppress(RuntimeError):  # the loop has closed
            loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(driving)))
        while not (over.wait(_LOOK) or loop.is_closed()):
            if not threading.main_thread().is_alive():
                break  # the process ends, and nobody drives the loop
        for each in (driving, ending):  # they may wait in a closed loop, or not have begun
            with suppress(ValueError):
                each.close()
        if not any(added):
            asyncio.run(end())

    body.tell(heard)


def late_end(
    ending: Ending, plan: ToolPlan, hydrated: Hydrated, executor: Executor, *, late: bool
) -> Stopped | None:
    """Return how a call ended whose tool was left behind; None if the tool returned a value.

    `late` says that it had run out of time; otherwise its caller was cancelled.
    """
    value, raised = ending
    made = inspect.isawaitable(value)
    if raised is None and not made:
        return None
    if inspect.iscoroutine(value):
        value.close()  # a coroutine that nobody will await any more
    told = made or not plan.tool.blocking  # it was told to stop; a thread cannot be told
    if told and late and isinstance(raised, asyncio.CancelledError | TimeoutError | None):
        raised = TimeLimitExceeded()
    if raised is not None and not (told and isinstance(raised, asyncio.CancelledError)):
        ended = executor.ended(raised, plan, hydrated, LeftWork(), cancels=cancel_requests())
        if isinstance(ended, Stopped):
            return ended
    return Stopped(CallError.of(ErrorCode.CANCELLED))
