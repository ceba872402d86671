"""K: 300 turns of results of 1 MB each, with a model that takes 32,000 tokens.

    python benchmarks/bench_context.py

The model is scripted, and each request is encoded for OpenAI's chat wire, with what its client
remembers. CPU milliseconds of a turn, in the first tenth of the turns and in the last: the tool and the
check of its result (`no context`: its messages are not sent at all), then with what is left out being
read from the run's own messages, a folder and SQLite. `largest` is the largest request in bytes,
`changed` how often the beginning of a request was not what the one before had sent, and `read` in how
many of 30 results, one of ten, the run found its text at the end.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from itertools import pairwise
from typing import Any

from toolcrib import Agent, Caller, ContextOptions, Limits, ResultStore, tool
from toolcrib.testing import ScriptedClient, call
from toolcrib.values.message import ChatRequest, Message, Reply
from toolcrib.wire import Memo, encode

TURNS = 300
TOKENS = 32_000
READ = 30
LINE = "a line of a long report that somebody has to read, number {}. "
ID = re.compile(r"read_result\(id='(\w+)'\)")


def text_of(number: int) -> str:
    line = LINE.format(number)
    return line * (1_000_000 // len(line))


@tool(visible=[], read_only=True)
async def report(number: int) -> str:
    """Give a report of a megabyte."""
    return text_of(number)


class Encoding(ScriptedClient):
    """Encodes what it is asked, and notes the CPU time."""

    def __init__(self, turns: list[Any], *, encodes: bool) -> None:
        super().__init__(turns)
        self.marks: list[float] = []
        self.sent: list[tuple[Message, ...]] = []
        self.largest = 0
        self._memo, self._encodes = Memo(), encodes

    async def chat(self, request: ChatRequest) -> Reply:
        self.marks.append(time.process_time())
        if self._encodes:
            body = encode("openai-chat", request, model="gpt-5", memo=self._memo).body
            self.largest = max(self.largest, len(body))
            self.sent.append(request.messages)
        return await super().chat(request)


async def measure(name: str, context: ContextOptions | None) -> None:
    calls = [call("report", number=number) for number in range(TURNS)]
    found = 0

    def read_all(request: ChatRequest) -> Any:
        ids = dict.fromkeys(i for m in request.messages for i in ID.findall(m.content))
        every = list(enumerate(ids))[:: TURNS // READ]
        return [call("read_result", id=i, search=f"number {n}.") for n, i in every]

    more = [] if context is None else [read_all]
    model = Encoding([*calls, *more, "That was all."], encodes=context is not None)
    limits = Limits(turns=TURNS + 10, calls=None)
    result = await Agent(model, [report], context=context, limits=limits).run(
        "Read them all.", caller=Caller("ada")
    )
    for message in result.messages:
        found += message.name == "read_result" and '"found":[{' in message.content
    steps = [1e3 * (later - mark) for mark, later in pairwise(model.marks[: TURNS + 1])]
    tenth = TURNS // 10
    first, last = sum(steps[:tenth]) / tenth, sum(steps[-tenth:]) / tenth
    changed = sum(a != b[: len(a)] for a, b in pairwise(model.sent))
    print(f"{name:<14}{first:>8.2f}{last:>8.2f}{model.largest:>10,}{changed:>9}{found:>6}")


async def main() -> None:
    print(f"{'CPU ms a turn':<14}{'first':>8}{'last':>8}{'largest':>10}{'changed':>9}{'read':>6}")
    await measure("no context", None)
    await measure("messages", ContextOptions(TOKENS))
    with tempfile.TemporaryDirectory() as folder:
        await measure("folder", ContextOptions(TOKENS, ResultStore(f"{folder}/results")))
        async with ResultStore(f"sqlite:///{folder}/crib.db") as store:
            await measure("SQLite", ContextOptions(TOKENS, store))


if __name__ == "__main__":
    asyncio.run(main())
