"""Many conversations on one client, and one long conversation: what a turn costs.

Conversations take turns: all of them have their first, then all their second, and so on. An agent
runs each, over a transport in memory that says `call the tool` until the last turn. The floor has a
client for each conversation. Then one conversation grows to 3,000 turns, and its next request is
encoded; the floor dumps all messages anew by orjson, as by hand. CPU milliseconds a turn, the minimum
of the rounds, which take turns.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import orjson

from toolcrib import ALL, Agent, ToolCall, tool
from toolcrib.clients import OpenAIClient
from toolcrib.clients.transport import Outgoing
from toolcrib.values.message import ChatRequest, Message
from toolcrib.values.run import Limits
from toolcrib.wire import Memo, encode

ROUNDS = 5
TURNS = 60
CONVERSATIONS = (1, 16, 64, 256, 512)
LENGTHS = (30, 300, 3_000)
REACH = 1.2
"""How much more a turn may cost on one client than with a client for each conversation."""


@tool(visible=ALL, read_only=True)
async def look_up(query: str, limit: int = 10) -> dict[str, Any]:
    """Look something up on a shelf, by its name or a part of it."""
    return {"query": query, "found": [f"entry {n} of the shelf" for n in range(limit)]}


class Lockstep:
    """Lets a conversation go on when all others have come as far; `of` counts them."""

    def __init__(self, of: int) -> None:
        self._of = of
        self._waiting: list[asyncio.Future[None]] = []

    async def turn(self) -> None:
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        if len(self._waiting) == self._of:
            for each in self._waiting:
                each.set_result(None)
            self._waiting = []
        await mine


class Canned:
    """An answer in memory."""

    status = 200
    headers: Mapping[str, str] = {"content-type": "application/json", "content-length": "1"}

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body

    async def aclose(self, *, whole: bool = False) -> None: ...


class Loopback:
    """A transport whose server is a function."""

    def __init__(self, steps: Lockstep) -> None:
        self._steps = steps

    async def send(self, request: Outgoing) -> Canned:
        await self._steps.turn()
        turn = request.body.count(b'"role":"tool"')
        message: dict[str, Any] = {"role": "assistant", "content": "That was all of them."}
        reason = "stop"
        if turn < TURNS:
            given = orjson.dumps({"query": f"what is on shelf {turn}", "limit": 5}).decode()
            function = {"name": "look_up", "arguments": given}
            call = {"id": f"call_{turn}", "type": "function", "function": function}
            message, reason = {"role": "assistant", "tool_calls": [call]}, "tool_calls"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return Canned(orjson.dumps({"id": "c", "model": "m", "choices": [choice]}))

    async def aclose(self) -> None: ...


async def turn(conversations: int, *, together: bool) -> float:
    """Return the CPU milliseconds of one turn of one conversation."""
    steps = Lockstep(conversations)

    def client() -> OpenAIClient:
        return OpenAIClient(
            "m", base_url="http://here", api_key="none", transport=Loopback(steps), retries=None
        )

    one = client()
    agents = [
        Agent(one if together else client(), [look_up], limits=Limits(turns=TURNS + 1))
        for _ in range(conversations)
    ]
    started = time.process_time()
    prompts = (f"Conversation {n}: look up the shelves." for n in range(conversations))
    results = await asyncio.gather(*(a.run(p) for a, p in zip(agents, prompts, strict=True)))
    spent = time.process_time() - started
    assert all(len(result.records) == TURNS for result in results)
    return spent / (conversations * (TURNS + 1)) * 1e3


def _messages(turns: int) -> list[Message]:
    messages = [Message.user("Look up the tools of each shelf, one after the other.")]
    found = orjson.dumps([f"entry {n} of the shelf" for n in range(4)]).decode()
    for turn in range(turns):
        call = ToolCall(f"run_{turn}", "look_up", f'{{"query":"what is on shelf {turn}"}}')
        messages += [Message.assistant("", (call,)), Message.tool(call, found)]
    return messages


def _by_hand(messages: list[Message]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for message in messages:
        form: dict[str, Any] = {"role": message.role, "content": message.content or None}
        if message.tool_calls:
            form["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in message.tool_calls
            ]
        if message.call_id is not None:
            form["tool_call_id"] = message.call_id
        made.append(form)
    return made


def _spent(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return (time.process_time() - started) * 1e3


def encoding(turns: int) -> tuple[float, float, int]:
    """Return the floor and ours, milliseconds of one request, and the size of its body."""
    messages, memo, size = _messages(turns), Memo(), 0
    by_hand = _by_hand(messages)
    floor, ours = [], []

    def whole(upto: int) -> None:
        nonlocal size
        request = ChatRequest(tuple(messages[:upto]), (look_up,))
        size = len(encode("openai-chat", request, model="m", memo=memo).body)

    whole(len(messages) - 20)
    for upto in range(len(messages) - 18, len(messages) + 1, 2):
        ours.append(_spent(lambda upto=upto: whole(upto)))  # type: ignore[misc]
        floor.append(_spent(lambda: orjson.dumps({"model": "m", "messages": by_hand})))
    return min(floor), min(ours), size


async def main() -> None:
    print(f"{'conversations':<24}{'a client each':>15}{'one client':>12}{'ratio':>8}{'reach':>8}")
    for count in CONVERSATIONS:
        pairs = [
            (await turn(count, together=False), await turn(count, together=True))
            for _ in range(ROUNDS if count < 100 else 2)
        ]
        floor, ours = min(p[0] for p in pairs), min(p[1] for p in pairs)
        print(f"{count:<24}{floor:>15.3f}{ours:>12.3f}{ours / floor:>8.2f}{REACH:>8}")
    print(
        f"\n{'encoding a turn, after':<24}{'orjson ms':>15}{'ms':>12}{'ratio':>8}{'reach':>8}{'kB':>8}"
    )
    for turns in LENGTHS:
        floor, ours, size = encoding(turns)
        print(f"{turns:<24}{floor:>15.3f}{ours:>12.3f}{ours / floor:>8.2f}{1:>8}{size / 1e3:>8.0f}")


if __name__ == "__main__":
    asyncio.run(main())
