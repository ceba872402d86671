"""langgraph-bigtool: its default retrieval over LangGraph's store, set up as its README has it.

The embedding function is MiniLM instead of a provider's.
"""

from __future__ import annotations

from collections.abc import Sequence

from langgraph.store.memory import InMemoryStore
from langgraph_bigtool.tools import get_default_retrieval_tool
from minilm import DIMENSIONS, MiniLM
from protocol import Search, Tool, serve

_NAMESPACE = ("tools",)


def build(tools: list[Tool]) -> Search:
    model = MiniLM()
    store = InMemoryStore(
        index={"embed": model.embed, "dims": DIMENSIONS, "fields": ["description"]}
    )
    for tool in tools:
        text = f"{tool['name']}: {tool['description']}"
        store.put(_NAMESPACE, tool["name"], {"description": text})
    retrieve, _ = get_default_retrieval_tool(_NAMESPACE, limit=10)

    def search(query: str, top: int) -> Sequence[str]:
        del top
        found: Sequence[str] = retrieve(query, store=store)
        return found

    return search


if __name__ == "__main__":
    serve(build)
