from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pick.pick_helpers import SHOP, entry, names, scores

from toolcrib.errors import MissingExtraError, PickError, SourceError
from toolcrib.pick import EmbeddingScorer, PickOptions, WordVectors, pick_tools, vectors

np = pytest.importorskip("numpy", reason="the extra 'pick' is not installed")
pytest.importorskip("tokenizers", reason="the extra 'pick' is not installed")

KIT = (
    entry(
        "calculate",
        "Work out an arithmetic expression.",
        parameters={"expression": {}},
        examples=("what is 12*7?", "half of 90"),
    ),
    entry("current_time", "Tell the time in a zone.", examples=("how late is it in Rome",)),
    entry("get_weather", "Tell the weather of a city.", tags=("forecast",)),
)
SCORER = EmbeddingScorer()


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("What is 23*17+5?", "calculate"),
        ("what time is it in Tokyo", "current_time"),
        ("is it raining in Bergen", "get_weather"),
        ("HALF OF 90", "calculate"),
    ],
)
async def test_nearest_tool(query: str, first: str) -> None:
    assert names(await pick_tools(query, KIT, PickOptions(scorer=SCORER)))[0] == first


async def test_reasons_name_what_was_near() -> None:
    options = PickOptions(scorer=SCORER, max_candidates=1)
    [by_example] = await pick_tools("half of 90", KIT, options)
    assert by_example.score == pytest.approx(1, abs=1e-5)
    assert by_example.reason == "near its example 'half of 90' (cosine 1.0)"
    assert by_example.provenance.details == {"cosine": 1.0, "example": "half of 90"}
    [by_text] = await pick_tools("tell the weather of a city", KIT, options)
    assert by_text.reason.startswith("near its description (cosine 0.")
    assert by_text.provenance.scorer == "embedding"


class Fixed:
    """Vectors by table; counts what it is asked."""

    def __init__(self, table: dict[str, list[float]]) -> None:
        self.table = table
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> Any:
        self.asked += texts
        return np.array([self.table[text] for text in texts], "float32").reshape(len(texts), 2)


@pytest.mark.parametrize(
    ("cosine", "score"),
    [(1.0, 1.0), (0.55, 0.5), (0.1, 0.0), (0.0, 0.0), (-1.0, 0.0), (1.000001, 1.0)],
)
def test_calibration(cosine: float, score: float) -> None:
    scorer = EmbeddingScorer(Fixed({"q": [1, 0], "a: ": [cosine, 0]}))
    assert scores(scorer, "q", [entry("a")])[0] == pytest.approx(score, abs=1e-6)


async def test_a_vector_of_nan_is_an_error() -> None:
    scorer = EmbeddingScorer(Fixed({"q": [1, 0], "a: ": [float("nan"), 0]}))
    with pytest.raises(PickError, match="scorer 'embedding' gave a weight that is not a finite number"):
        await pick_tools("q", [entry("a")], PickOptions(scorer=scorer))


def test_the_best_of_description_and_examples_counts() -> None:
    at = {"q": 1.0, "a: ": 0.2, "x": 0.9, "y": 0.3, "b: ": 0.5}
    scorer = EmbeddingScorer(Fixed({text: [cosine, 0] for text, cosine in at.items()}))
    found = scores(scorer, "q", [entry("b"), entry("a", examples=("y", "x")), entry("b")])
    assert [round(score, 3) for score in found] == [0.444, 0.889, 0.444]


def test_the_text_of_a_tool() -> None:
    embedder = Fixed({"q": [1, 0], "get user by id: Finds one. (user id) [people crm]": [1, 0]})
    tool = entry("getUser_byID", "Finds one.", parameters={"userId": {}}, tags=("people", "crm"))
    assert scores(EmbeddingScorer(embedder), "q", [tool])[0] == 1


def test_a_definition_is_embedded_once() -> None:
    embedder = Fixed({"q": [1, 0], "a: ": [1, 0], "b: ": [0, 1], "c: ": [0, 1]})
    scorer = EmbeddingScorer(embedder)
    for tools in ("ab", "ba", "abc", "ab"):
        scores(scorer, "q", tuple(entry(name) for name in tools))
    assert [text for text in embedder.asked if text != "q"] == ["a: ", "b: ", "c: "]


async def test_ties_keep_registration_order() -> None:
    twins = [entry("z", "Reads a gauge."), *(entry("z", "Reads a gauge.") for _ in range(2))]
    found = await pick_tools("gauge", twins, PickOptions(scorer=SCORER))
    assert [result.tool is twin for result, twin in zip(found, twins, strict=True)] == [True] * 3


@pytest.mark.parametrize("query", ["", "\x00", "\ud800", "天" * 1_000_000, "🦜", " " * 500_000])
async def test_hostile_requests_have_a_score(query: str) -> None:
    options = PickOptions(scorer=SCORER, min_score=0.0, allow_unsafe=True)
    assert all(0 <= result.score <= 1 for result in await pick_tools(query, SHOP, options))


def test_it_serves_many_threads() -> None:
    scorer = EmbeddingScorer()
    expected = scores(EmbeddingScorer(), "list the files", SHOP)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: scores(scorer, "list the files", list(SHOP)), range(40)))
    assert found == [expected] * 40


def test_no_tools_no_scores() -> None:
    assert list(scores(SCORER, "x", ())) == []


# --- WordVectors ----------------------------------------------------------------------------------


def test_vectors_are_unit_float32() -> None:
    found = WordVectors().embed(["What time is it?", "", "WHAT TIME IS IT?"])
    assert (found.shape, found.dtype) == ((3, 256), np.float32)
    assert np.linalg.norm(found, axis=1).tolist() == pytest.approx([1, 0, 1], abs=1e-5)
    assert (found[0] == found[2]).all()
    assert WordVectors().embed([]).shape == (0, 256)


def test_a_text_has_the_same_vector_in_any_company() -> None:
    one = WordVectors().embed(["the weather"])[0]
    assert (WordVectors().embed(["x", "the weather", "a longer one"])[1] == one).all()


def test_meaning_counts() -> None:
    found = WordVectors().embed(["how warm is it outside", "temperature", "bank account"])
    assert found[0] @ found[1] > found[0] @ found[2]


def test_the_wordllama_package_is_not_imported() -> None:
    WordVectors().embed(["x"])
    assert "wordllama" not in sys.modules


@pytest.mark.parametrize("module", ["wordllama", "numpy", "tokenizers", "safetensors"])
def test_a_missing_extra_is_said_at_once(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'toolcrib\[pick\]'"):
        EmbeddingScorer()


@pytest.mark.parametrize("content", [None, b"", b"{}"])
def test_broken_files_are_named(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "tokenizers").mkdir()
        (tmp_path / "tokenizers" / "l2_supercat_tokenizer_config.json").write_bytes(content)
    monkeypatch.setattr(vectors, "_package_folder", lambda: tmp_path)
    with pytest.raises(SourceError, match="cannot be read: reinstall wordllama"):
        WordVectors().embed(["x"])
