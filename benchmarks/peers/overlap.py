"""Token overlap: how many distinct words of the request stand in a tool's name and description."""

from __future__ import annotations

import re
from collections.abc import Sequence

from protocol import Search, Tool, serve


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", text.lower()))


def build(tools: list[Tool]) -> Search:
    known = [(tool["name"], _words(f"{tool['name']} {tool['description']}")) for tool in tools]

    def search(query: str, top: int) -> Sequence[str]:
        asked = _words(query)
        shared = [(len(asked & words), name) for name, words in known]
        best = sorted((pair for pair in shared if pair[0]), key=lambda pair: -pair[0])
        return [name for _, name in best[:top]]

    return search


if __name__ == "__main__":
    serve(build)
