"""Planning without acting: pick tools for a question, and see what the model would call.

Nothing runs; what was planned is in the audit log all the same: `toolcrib audit list --log sqlite:///plans.db`.

Usage: python examples/plan_only.py tools.json "What would a taxi for 12 km cost?"
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import aclosing
from pathlib import Path

from toolcrib import Catalog, Hydrated, PickOptions, Rejected, ToolRunner, pick_tools, run_sync
from toolcrib.audit import AuditLog
from toolcrib.clients import client_for

MODEL = os.environ.get("MODEL", "local")  # the embedded one; or such as openai:gpt-5


async def plan_only(tools: Path, question: str) -> None:
    catalog = Catalog.from_definitions(json.loads(tools.read_text(encoding="utf-8")))
    picks = await pick_tools(question, catalog, PickOptions(max_candidates=8))
    async with aclosing(client_for(MODEL)) as client, AuditLog("sqlite:///plans.db") as log:
        plan = await client.tool_call(question, [p.tool for p in picks])
        await ToolRunner(catalog, sinks=[log]).record_plan(plan)
    if not plan:
        print("no tool wanted:", plan.reply.text)
    for result in plan:
        match result:
            case Hydrated():
                print(result.definition.name, result.arguments)
            case Rejected():
                print(result.call.name, *(f"{e.code} at {e.path}" for e in result.errors))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    run_sync(plan_only(Path(sys.argv[1]), sys.argv[2]))
