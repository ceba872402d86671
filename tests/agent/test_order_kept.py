"""What a provider has read of a request stays of use: tools are added at the end, and nothing moves.

A provider keeps a request up to the first byte that differs, and the tools come first.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from toolcrib import ALL, Agent, Catalog, PickOptions, run_sync, tool
from toolcrib.testing import ScriptedClient, call
from toolcrib.testing.scripted import Said
from toolcrib.wire import encode_tools

THINGS = ("mail", "song", "map", "note", "rate", "sun", "door", "lamp")


def made(name: str) -> Any:
    @tool(visible=ALL, name=f"use_{name}", description=f"Use the {name}.")
    async def use(text: str = "") -> str:
        return f"{name}: {text}"

    return use


CATALOG = Catalog([made(name) for name in THINGS])
SOME = st.sampled_from(THINGS)
TURNS = st.lists(
    st.one_of(
        SOME.map(lambda name: call("search_tools", query=f"use the {name}", limit=2)),
        SOME.map(lambda name: call(f"use_{name}")),
        st.lists(SOME, min_size=2, max_size=3).map(
            lambda names: [call("search_tools", query=name, limit=1) for name in names]
        ),
    ),
    max_size=5,
)
SENDS = st.lists(st.tuples(SOME, TURNS), min_size=1, max_size=3)
PICK = PickOptions(max_candidates=2)


def sent(client: ScriptedClient) -> list[str]:
    """Return the tools of each request, as bytes begin with them, but for the closing bracket."""
    return [
        json.dumps(encode_tools("anthropic", request.tools)).rstrip("]")
        for request in client.requests
    ]


@given(SENDS)
def test_each_request_of_a_session_begins_with_the_tools_of_the_one_before(sends: Any) -> None:
    turns: list[Said] = [turn for _, asked in sends for turn in (*asked, "done")]
    client = ScriptedClient(turns)
    session = Agent(client, CATALOG, pick=PICK, search_tools=True).session()

    async def talk() -> None:
        for about, _ in sends:
            await session.send(f"use the {about}")

    run_sync(talk())
    requests = [[each.get_definition().name for each in r.tools] for r in client.requests]
    for before, after in pairwise(zip(requests, sent(client), strict=True)):
        gathered = len({*before[0], *after[0]}) - 1 > 4 * PICK.max_candidates
        assert after[1].startswith(before[1]) or gathered  # it was sorted out, as is documented
        assert len(set(after[0])) == len(after[0])


@given(st.lists(SOME, max_size=3), st.lists(SOME, max_size=3))
def test_an_agent_that_is_handed_back_to_offers_what_it_did(first: Any, second: Any) -> None:
    def search(name: str) -> Said:
        return call("search_tools", query=name, limit=1)

    there = call("hand_over_to_second", reason="x")
    back = call("hand_over_to_first", reason="y")
    said: tuple[list[Said], list[Said]] = (
        [*map(search, first), there, *map(search, second), "done"],
        [*map(search, second), back],
    )
    clients = [ScriptedClient(turns) for turns in said]
    options: Any = {"pick": PICK, "search_tools": True}
    other = Agent(clients[1], CATALOG, name="second", handovers=["first"], **options)
    desk = Agent(clients[0], CATALOG, name="first", handovers=[other], **options)
    result = run_sync(desk.run("use the mail"))
    assert (result.status, result.agent) == ("completed", "first")
    for client in clients:
        assert all(after.startswith(before) for before, after in pairwise(sent(client)))
