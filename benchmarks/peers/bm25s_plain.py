"""bm25s as its documentation has it: its longer list of stop words, stems; over whole definitions."""

from __future__ import annotations

from collections.abc import Sequence

import bm25s
import Stemmer
from protocol import Search, Tool, serve
from text import full_text


def build(tools: list[Tool]) -> Search:
    stemmer = Stemmer.Stemmer("english")
    names = [tool["name"] for tool in tools]

    def tokens(texts: list[str]) -> object:
        return bm25s.tokenize(texts, stopwords="en_plus", stemmer=stemmer, show_progress=False)

    index = bm25s.BM25()
    index.index(tokens([full_text(tool) for tool in tools]), show_progress=False)

    def search(query: str, top: int) -> Sequence[str]:
        found, scores = index.retrieve(
            tokens([query]), k=min(top, len(names)), show_progress=False, n_threads=1
        )
        return [names[i] for i, score in zip(found[0], scores[0], strict=True) if score > 0]

    return search


if __name__ == "__main__":
    serve(build)
