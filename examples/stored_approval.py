"""An approval that takes days: three processes, none of which has to wait for another.

Usage: python examples/stored_approval.py ask | decide | finish

Instead of `decide`, a person may use `toolcrib approvals list` and `toolcrib approvals approve ID`.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from cancel_order import MODEL, CancelOrder, Orders, ShopOrders

from toolcrib import Agent, Approve, Catalog, RunState, ToolRunner, run_sync
from toolcrib.approvals import ApprovalStore

saved = Path("waiting_run.json")
approvals = ApprovalStore("sqlite:///crib.db")


def make_agent() -> Agent:
    catalog = Catalog([CancelOrder]).bind({Orders: ShopOrders()})
    return Agent(MODEL, ToolRunner(catalog, approver=approvals))


async def ask() -> None:
    result = await make_agent().run("Please cancel order 77")
    if result.status == "waiting":
        saved.write_text(result.state.to_json(), encoding="utf-8")
        print("waiting for an approval")


async def decide() -> None:
    for request in await approvals.pending():
        print(request.tool, request.arguments, request.reason)
        await approvals.answer(request.id, Approve(by="grace"))


async def finish() -> None:
    state = RunState.from_json(saved.read_text(encoding="utf-8"))
    print((await make_agent().resume(state)).text)


async def closing(step: Callable[[], Awaitable[None]]) -> None:
    async with approvals:
        await step()


if __name__ == "__main__":
    steps = {"ask": ask, "decide": decide, "finish": finish}
    if sys.argv[1:] not in [[step] for step in steps]:
        sys.exit(__doc__)
    run_sync(closing(steps[sys.argv[1]]))
