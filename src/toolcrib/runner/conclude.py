"""The end of every call: whatever comes of it, or keeps it from coming to its end, is written down."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from toolcrib.errors import ErrorCode
from toolcrib.runner.attempt import Attempt
from toolcrib.runner.execute import cancel_requests
from toolcrib.runner.stopped import EndedBefore, Stopped
from toolcrib.values.record import CallError, Outcome


async def concluded(attempt: Attempt, work: Awaitable[Outcome], cancels: int) -> Outcome:
    """What comes of `work`, remembered and told, whatever ends it; see `ToolRunner.exec`.

    `cancels` is what `cancel_requests` said before.
    """
    draft = attempt.draft
    try:
        outcome = await work
    except Stopped as stopped:
        outcome = draft.failed(stopped.error)
    except EndedBefore as ended:
        return await attempt.ended_before(ended.outcome)
    except GeneratorExit:  # the loop is gone: nothing can be awaited any more
        attempt.settle(draft.failed(CallError.of(ErrorCode.CANCELLED)))
        raise
    except BaseException:  # an intent that could not be written, too
        await attempt.close(draft.failed(CallError.of(ErrorCode.CANCELLED)))
        raise
    outcome = await attempt.close(outcome)
    if cancel_requests() > cancels:
        raise asyncio.CancelledError  # the tool caught it; its outcome stands, and is told
    return outcome
