"""The settings and services that all calls of a runner share."""

from __future__ import annotations

import msgspec

from toolcrib.runner.executor import Executor
from toolcrib.runner.idempotency import IdempotencyCache, WriteAhead
from toolcrib.runner.policy import CountingPolicy, LookingPolicy, Policy, ReservingPolicy
from toolcrib.runner.recorder import Recorder
from toolcrib.runner.running import Limiter
from toolcrib.runner.stopped import Reporter
from toolcrib.tools import Catalog
from toolcrib.values.context import PayingPolicy
from toolcrib.values.decision import Approver
from toolcrib.values.rule import KeepsRules


class Setup(msgspec.Struct, frozen=True, eq=False):
    """Holds what all calls of a runner share."""

    catalog: Catalog
    policies: tuple[Policy, ...]
    at_once: tuple[Policy, ...]  # the policies that decide without awaiting
    looking: tuple[LookingPolicy, ...]  # async policies, which share `policy_seconds`
    policy_seconds: float
    counting: tuple[CountingPolicy, ...]
    reserving: tuple[ReservingPolicy, ...]
    paying: tuple[PayingPolicy, ...]
    approver: Approver | None
    rules: KeepsRules | None
    approval_seconds: float
    limiter: Limiter
    write_ahead: WriteAhead
    executor: Executor
    reporter: Reporter
    cache: IdempotencyCache
    max_result_bytes: int
    recorder: Recorder
