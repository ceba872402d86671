"""A refund that takes a weekend: begun by a web handler, approved days later, ended by a worker.

Usage: python examples/refund_desk.py handle 77 | approve | work

Each is a process of its own, and none waits for another. Instead of `approve`, a person may use
`toolcrib runs list --status waiting` and `toolcrib runs answer ID --yes`; instead of `work`, as many
`toolcrib runs worker --agents examples/refund_desk.py` as there are machines.
"""

from __future__ import annotations

import os
import sys

from cancel_order import MODEL, CancelOrder, Orders, ShopOrders

from toolcrib import Agent, Approve, Caller, Catalog, ToolRunner, run_sync
from toolcrib.durable import DurableAgents

# 32 random bytes in hexadecimal, the same in each process, and kept where no user is
KEY = bytes.fromhex(os.environ.get("DESK_KEY", "00" * 32))
STORE = os.environ.get("DESK_STORE", "sqlite:///runs.db")  # or postgresql+psycopg://HOST/NAME

tools = Catalog([CancelOrder]).bind({Orders: ShopOrders()})
agents = {"desk": Agent(MODEL, ToolRunner(tools), state_key=KEY)}


async def handle(order: str) -> None:
    """What a web handler does: it answers at once, whatever the run will take."""
    durable = DurableAgents(STORE, agents)
    prompt, name = f"Please cancel order {order}.", f"order-{order}"
    run_id = await durable.start("desk", prompt, caller=Caller("ada"), run_id=name)
    await durable.aclose()
    print(f"202 Accepted: {run_id}")


async def approve() -> None:
    durable = DurableAgents(STORE, agents)
    for request in await durable.pending():
        print(request.tool, request.arguments, request.reason)
        await durable.answer(request.id, Approve(by="grace"))
    await durable.aclose()


async def work() -> None:
    """Do what there is to do, and end; a worker of yours would go on."""
    async with DurableAgents(STORE, agents) as durable:
        for run in await durable.list():
            result = await durable.result(run.id)
            print(f"{run.id} is {result.status}: {result.text or 'somebody is asked'}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["handle", order]:
            run_sync(handle(order))
        case ["approve"]:
            run_sync(approve())
        case ["work"]:
            run_sync(work())
        case _:
            sys.exit(__doc__)
