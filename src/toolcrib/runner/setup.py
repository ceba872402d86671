"""What all calls of a runner use."""

from __future__ import annotations

import msgspec

from toolcrib.runner.executor import Executor
from toolcrib.runner.idempotency import IdempotencyCache, WriteAhead
from toolcrib.runner.policy import CountingPolicy, Policy, ReservingPolicy
from toolcrib.runner.recorder import Recorder
from toolcrib.runner.running import Limiter
from toolcrib.runner.stopped import Reporter
from toolcrib.tools import Catalog
from toolcrib.values.decision import Approver


class Setup(msgspec.Struct, frozen=True, eq=False):
    """Holds what all calls of a runner use."""

    catalog: Catalog
    policies: tuple[Policy, ...]
    counting: tuple[CountingPolicy, ...]
    reserving: tuple[ReservingPolicy, ...]
    approver: Approver | None
    approval_seconds: float
    limiter: Limiter
    write_ahead: WriteAhead
    executor: Executor
    reporter: Reporter
    cache: IdempotencyCache
    max_result_bytes: int
    recorder: Recorder
