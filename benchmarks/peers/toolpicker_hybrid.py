"""toolpicker: `ToolPicker.select`, BM25 alone or with `--minilm` fused with embeddings."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from protocol import Search, Tool, serve
from toolpicker import FunctionSchemaSource, ToolPicker


def build(tools: list[Tool]) -> Search:
    source = FunctionSchemaSource(
        [
            {
                "name": tool["name"],
                "description": tool["description"],
                "parameters": tool["input_schema"],
            }
            for tool in tools
        ]
    )
    picker = ToolPicker(source, embedder=_embedder() if "--minilm" in sys.argv else None)

    def search(query: str, top: int) -> Sequence[str]:
        return [tool.name for tool in picker.select(query, k=top)]

    return search


def _embedder() -> object:
    from minilm import DIMENSIONS, MiniLM

    class Embedder(MiniLM):
        dimensions = DIMENSIONS

    return Embedder()


if __name__ == "__main__":
    serve(build)
