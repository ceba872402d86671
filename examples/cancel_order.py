"""A tool that changes something: it reaches the shop through a capability, and a person is asked.

Usage: python examples/cancel_order.py, with the embedded model; or with another one, as in
MODEL=openai:gpt-5 (and its key in OPENAI_API_KEY).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

from toolcrib import Agent, CallContext, Catalog, ToolError, ToolRunner, capability, run_sync, tool
from toolcrib.approvals import TerminalApprover

MODEL = os.environ.get("MODEL", "local")


@capability
class Orders(Protocol):
    async def cancel(self, order_id: int, key: str) -> int: ...


@tool(visible=["refunded_cents"], safe=False, timeout=10)
@dataclass(frozen=True)
class CancelOrder:
    """Cancel an order and refund it.

    Args:
        order_id: The number on the receipt.
    """

    order_id: int

    async def run(self, orders: Orders, ctx: CallContext) -> dict[str, int]:
        try:
            cents = await orders.cancel(self.order_id, key=ctx.idempotency_key)
        except KeyError:
            raise ToolError("there is no such order") from None
        return {"refunded_cents": cents}


class ShopOrders:
    """The shop's own adapter; here, two orders in memory."""

    def __init__(self) -> None:
        self.cents = {77: 1250, 78: 300}

    async def cancel(self, order_id: int, key: str) -> int:
        return self.cents.pop(order_id)


if __name__ == "__main__":
    catalog = Catalog([CancelOrder]).bind({Orders: ShopOrders()})
    agent = Agent(MODEL, ToolRunner(catalog, approver=TerminalApprover()))
    print(run_sync(agent.run("Please cancel order 77")).text)
