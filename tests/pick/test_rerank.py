from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pick.pick_helpers import SHOP, entry, scores
from rows import each_row

from toolcrib.errors import MissingExtraError, PickError
from toolcrib.pick import PickOptions, Query, pick_tools, vectors
from toolcrib.pick.hybrid import Light
from toolcrib.pick.rerank import Rerank

np = pytest.importorskip("numpy", reason="the extra 'pick' is not installed")
pytest.importorskip("tokenizers", reason="the extra 'pick' is not installed")


class Letters:
    """A text's vector says how often it has each letter; counts what it is asked."""

    name = "letters"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> Any:
        self.asked += texts
        rows = [[text.count(chr(97 + i)) for i in range(26)] for text in texts]
        return np.array(rows, "float32").reshape(len(texts), 26)


def test_the_weight_is_that_of_light_and_45_times_the_cosine() -> None:
    query, letters = Query("weather"), Letters()
    first = Light().hits(query, SHOP, None).values
    [asked, tool] = letters.embed(["weather", "list files: Lists the files of a folder."])
    cosine = float(asked @ tool / np.linalg.norm(asked) / np.linalg.norm(tool))
    hits = Rerank(letters).hits(query, SHOP)
    assert hits.positions == [0, 1, 2, 3, 4]
    assert hits.values[2] == pytest.approx(first[2] + 45 * cosine, rel=1e-4)


def test_only_the_best_are_ever_embedded() -> None:
    letters = Letters()
    tools = (*(entry(f"tool_{i}", f"Turns wheel {i}.") for i in range(60)), *SHOP)
    found = scores(Rerank(letters, keep=3), "weather of a city", tools)
    assert sum(score > 0 for score in found) <= 3
    assert len(letters.asked) == 1 + 3
    assert "get weather: Tells the weather of a city. (city) [meteorology]" in letters.asked


def test_a_tools_vector_is_made_once() -> None:
    letters = Letters()
    scorer = Rerank(letters)
    for text in ("weather", "files", "weather"):
        scores(scorer, text, SHOP)
    scorer.explain(Query("weather"), SHOP, [0])
    assert len(letters.asked) == len(set(letters.asked)) == len(SHOP) + 2


async def test_a_reason_tells_what_each_part_added() -> None:
    options = PickOptions(scorer=Rerank(Letters()), max_candidates=1, allow_unsafe=True)
    [found] = await pick_tools("weather of a city", SHOP, options)
    assert found.provenance.scorer == "rerank"
    parts: Any = (found.provenance.details or {})["parts"]
    assert list(parts) == ["keyword", "embedding", "reranking"]
    weight = Rerank(Letters()).hits(Query("weather of a city"), SHOP).best(1)[0][1]
    assert sum(parts.values()) == pytest.approx(weight, abs=1e-4)
    assert "reranking +" in found.reason


@each_row("query", ["", "\x00", "\ud800", "天" * 100_000, " " * 99_999])
async def test_hostile_requests_have_a_score(query: str) -> None:
    options = PickOptions(scorer=Rerank(Letters()), min_score=0.0, max_candidates=4)
    found = await pick_tools(query, SHOP, options)
    assert len(found) == 4
    assert all(0 <= result.score <= 1 for result in found)


async def test_an_embedder_that_fails_is_named() -> None:
    class Broken:
        name = "broken"

        def embed(self, texts: Sequence[str]) -> Any:
            return np.full((len(texts), 3), np.nan)

    with pytest.raises(PickError, match="embedder 'broken' gave a number that is not finite"):
        await pick_tools("x", SHOP, PickOptions(scorer=Rerank(Broken())))


@pytest.mark.parametrize("keep", [0, -1])
def test_it_keeps_at_least_one(keep: int) -> None:
    with pytest.raises(PickError, match="scorer 'rerank': keep must be at least 1"):
        Rerank(Letters(), keep=keep)


def test_it_may_keep_more_than_there_are() -> None:
    query, letters = Query("weather of a city"), Letters()
    assert Rerank(letters, keep=10**9).hits(query, SHOP).positions == list(range(len(SHOP)))


def test_no_tools_no_hits() -> None:
    assert scores(Rerank(Letters()), "x", ()) == []


def test_a_missing_extra_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[rerank\]'"):
        Rerank()


def test_the_transformer_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="the extra 'rerank' is not installed")
    monkeypatch.setenv("TOOLCRIB_CACHE", str(tmp_path))
    best = Rerank().hits(Query("Do I need an umbrella in Bergen?"), SHOP).best(1)
    assert best[0][0] == 0
    assert list(tmp_path.iterdir()) != []  # its vectors are kept
