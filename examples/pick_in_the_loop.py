"""Three hundred tools: the model is offered the few that fit, and searches for more by itself.

Usage: python examples/pick_in_the_loop.py [PROMPT]
"""

from __future__ import annotations

import os
import sys
from typing import Any

from toolcrib import (
    ALL,
    Agent,
    Catalog,
    PickOptions,
    Tool,
    ToolCallFinished,
    ToolRunner,
    ToolsOffered,
    run_sync,
    tool,
)
from toolcrib.policies import deny_by_default

MODEL = os.environ.get("MODEL", "local")  # the embedded one; or such as openai:gpt-5
VERBS = ("show", "list", "count", "archive", "print", "export")
THINGS = """
    order invoice refund parcel customer address supplier product price discount voucher basket
    review complaint return warranty contract employee salary holiday shift meeting room desk key
    badge laptop phone licence server backup certificate domain ticket incident alert report budget
    expense receipt tax account payment transfer loan share patent policy claim visit
""".split()  # noqa: SIM905  readable as text


def made(verb: str, thing: str) -> Tool[..., Any]:
    @tool(visible=ALL, read_only=True, name=f"{verb}_{thing}", description=f"{verb} the {thing}s")
    async def run(number: int = 1) -> str:
        return f"{verb} {thing} {number}: done"

    return run


async def main(prompt: str) -> None:
    catalog = Catalog([made(verb, thing) for thing in THINGS for verb in VERBS])
    allowed = [name for name in catalog.names if not name.endswith("_salary")]
    runner = ToolRunner(catalog, policy=deny_by_default(allow=[*allowed, "search_tools"]))
    agent = Agent(MODEL, runner, pick=PickOptions(max_candidates=3), search_tools=True)
    async with agent.stream(prompt) as stream:
        async for event in stream:
            match event:
                case ToolsOffered(names=names):
                    print(f"offered, of {len(catalog)}:", *names)
                case ToolCallFinished(record=record):
                    print("called:", record.name, record.arguments, record.result)
        print((await stream.result()).text)


if __name__ == "__main__":
    run_sync(main(sys.argv[1] if len(sys.argv) > 1 else "Export invoice 7 and archive it."))
