"""The process that is killed: `python -m agent.inner_child URL DIRECTORY DIES`.

Runs an agent that calls another one, until it waits for an approval; then, each time that it is
started again, goes on from the state that was saved then, with a yes. DIES says where it is killed: in
the inner `tool` when it has done what it does, before the next reply of the `inner` model, or of the
`outer` one. With `slow` the tool waits until there is a file `go`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from toolcrib import ALL, Agent, Approve, RunState, ToolRunner, tool
from toolcrib.approvals import answer_later
from toolcrib.audit import AuditLog
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.message import ChatRequest


async def main(url: str, directory: Path, dies: str) -> None:
    def die(where: str) -> None:
        if dies == where:
            os.kill(os.getpid(), signal.SIGKILL)

    @tool(visible=ALL, safe=False, untrusted_output=True)
    async def refund(order: int) -> str:
        """Refund an order."""
        with (directory / "effects").open("a", encoding="utf-8") as effects:
            print(order, file=effects)
        die("tool")
        while dies == "slow" and not (directory / "go").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return f"refunded {order}"

    def says(where: str, text: str) -> Callable[[ChatRequest], str]:
        def turn(request: ChatRequest) -> str:
            die(where)
            return f"{text}: {request.messages[-1].content}"

        return turn

    saved = directory / "state"
    begins = not saved.exists()
    inner = [call("refund", order=7)] if begins else []
    outer = [call("clerk", prompt="refund order 7")] if begins else []
    clerk = Agent(ScriptedClient([*inner, says("inner", "clerk")]), [refund])
    async with AuditLog(url) as log:
        tools = [clerk.as_tool("clerk", "Handles refunds.", visible=ALL)]
        runner = ToolRunner(tools, approver=answer_later, sinks=[log])
        desk = Agent(ScriptedClient([*outer, says("outer", "desk")]), runner)
        if begins:
            result = await desk.run("My tea was cold.")
            saved.write_text(result.state.to_json(), encoding="utf-8")
        else:
            state = RunState.from_json(saved.read_bytes())
            result = await desk.resume(state, {state.pending[0].id: Approve("grace")})
        sys.stdout.write(f"{result.status} {result.state.tally.tainted} {result.text}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
