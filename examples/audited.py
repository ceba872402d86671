"""Why did this run? A tool that needs a yes, a question that waits for it, and a log that is asked.

Usage: python examples/audited.py, and then, from the log alone: toolcrib audit show call_77
Once more in the same folder, it runs nothing: the log knows the call.
"""

from __future__ import annotations

from toolcrib import Approve, Caller, Completed, ToolCall, ToolRunner, Waiting, run_sync, tool
from toolcrib.approvals import ApprovalStore
from toolcrib.audit import AuditFilter, AuditLog


@tool(visible=["refunded_cents"], safe=False)
async def cancel_order(order_id: int) -> dict[str, int]:
    """Cancel an order and refund it."""
    return {"refunded_cents": 1250, "card_ending": 4242}


async def answer_as_grace(approvals: ApprovalStore) -> None:
    """In earnest another process: `toolcrib approvals approve ID --by grace`."""
    for request in await approvals.pending():
        print("asked:", request.tool, request.arguments, request.reason)
        await approvals.answer(request.id, Approve(by="grace"))


async def why(log: AuditLog, call_id: str) -> None:
    """Nothing is known here but the call's id and the log."""
    for entry in await log.entries(AuditFilter(call_id=call_id)):
        record = entry.record
        print(f"{entry.seq}: {record.name} {record.arguments} {record.status}")
        if record.status == "completed" and record.decision is not None:
            print(f"   {record.decision.policy} asked: {record.decision.reason}")
            print(f"   {record.approved_by} approved it, for {record.caller}: {record.result}")
    print(await log.why(call_id))
    print("as written:", (await log.verify()).ok)


async def main() -> None:
    approvals = ApprovalStore("sqlite:///crib.db")
    async with AuditLog("sqlite:///crib.db") as log:
        runner = ToolRunner([cancel_order], approver=approvals, sinks=[log])
        call = ToolCall("call_77", "cancel_order", '{"order_id": 77}')
        outcome = await runner.exec(call, caller=Caller("ada"))
        if isinstance(outcome, Waiting):
            await answer_as_grace(approvals)
            outcome = await runner.exec(call, caller=Caller("ada"))
        if isinstance(outcome, Completed):
            print("known:" if outcome.replayed else "result:", outcome.value)
        await why(log, call.id)
    await approvals.aclose()


if __name__ == "__main__":
    run_sync(main())
