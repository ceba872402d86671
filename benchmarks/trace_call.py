"""The way of one call: each function of toolcrib that it enters, by file, in the order of entering.

A reply of OpenAI's chat wire is decoded; its call is read, judged, run and recorded in an audit log by
a runner with the standard policy. A call before it has done what is worked out once. See `make trace`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

import toolcrib
from toolcrib import ALL, Completed, ToolRunner, tool
from toolcrib.audit import AuditLog
from toolcrib.wire import decode

ROOT = Path(toolcrib.__file__).parent
MOST_FILES, MOST_FUNCTIONS = 22, 90  # so that the way can be read in ten minutes
Entered = dict[Path, dict[CodeType, None]]


@tool(visible=ALL)
async def search(query: str, limit: int = 10) -> dict[str, int]:
    """Look something up."""
    return {"found": len(query) + limit}


@contextmanager
def traced(entered: Entered) -> Iterator[None]:
    """Note what this thread enters; comprehensions and lambdas count as part of their function."""

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and not code.co_name.startswith("<"):
            path = Path(code.co_filename)
            if path.is_relative_to(ROOT):
                entered.setdefault(path, {})[code] = None

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def body(number: int) -> bytes:
    function = {"name": "search", "arguments": '{"query": "tea"}'}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return json.dumps({"object": "chat.completion", "choices": [choice]}).encode()


async def one_call(runner: ToolRunner, number: int, entered: Entered) -> None:
    data = body(number)
    with traced(entered):
        reply = decode("openai-chat", data, content_type="application/json", ids=f"{number}_")
    (call,) = reply.tool_calls
    with traced(entered):
        outcome = await runner.exec(call)
    assert isinstance(outcome, Completed), outcome


async def main() -> None:
    entered: Entered = {}
    with tempfile.TemporaryDirectory() as folder:
        async with AuditLog(f"sqlite:///{folder}/log.db", key="a key of sixteen bytes") as log:
            runner = ToolRunner([search], sinks=[log])
            await one_call(runner, 0, {})
            await one_call(runner, 1, entered)
    for path, codes in entered.items():
        print(f"{path.relative_to(ROOT)}: {', '.join(code.co_qualname for code in codes)}")
    functions = sum(map(len, entered.values()))
    print(f"{len(entered)} files, {functions} functions")
    if len(entered) > MOST_FILES or functions > MOST_FUNCTIONS:
        raise SystemExit(f"the way is longer than {MOST_FILES} files, {MOST_FUNCTIONS} functions")


if __name__ == "__main__":
    asyncio.run(main())
