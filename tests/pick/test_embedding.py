from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from pick.pick_helpers import SHOP, entry, names, scores
from rows import each_row

from toolcrib.errors import MissingExtraError, PickError, SourceError
from toolcrib.pick import (
    CachedEmbedder,
    EmbeddingScorer,
    PickOptions,
    Query,
    WordVectors,
    pick_tools,
    vectors,
)

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


def at(cosine: float) -> list[float]:
    """The unit vector that lies so near to [1, 0]."""
    return [cosine, (1 - cosine**2) ** 0.5]


@each_row(("cosine", "score"), [(1.0, 1.0), (0.55, 0.5), (0.1, 0.0), (0.0, 0.0), (-1.0, 0.0)])
def test_calibration(cosine: float, score: float) -> None:
    scorer = EmbeddingScorer(Fixed({"q": [1, 0], "a: ": at(cosine)}))
    assert scores(scorer, "q", [entry("a")])[0] == pytest.approx(score, abs=1e-6)


def test_rows_of_any_length_are_brought_to_length_1() -> None:
    scorer = EmbeddingScorer(Fixed({"q": [5, 0], "a: ": [0.3, 0.4], "b: ": [0, 0]}))
    assert scores(scorer, "q", [entry("a"), entry("b")]) == pytest.approx([5 / 9, 0])


class Answering:
    """Gives whatever it was made with."""

    name = "mine"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def embed(self, texts: Sequence[str]) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer(len(texts)) if callable(self.answer) else self.answer


@each_row(
    ("answer", "said"),
    [
        (lambda n: np.full((n, 2), np.nan), "gave a number that is not finite"),
        (lambda n: np.full((n, 2), np.inf), "gave a number that is not finite"),
        (lambda n: np.ones((n + 1, 2)), r"gave shape \(2, 2\) for 1 texts, not one row for each"),
        (np.ones, r"gave shape \(1,\) for 1 texts"),
        (lambda n: np.ones((n, 0)), r"gave shape \(1, 0\) for 1 texts"),
        (None, r"gave shape \(\) for 1 texts|did not give rows of numbers"),
        ([["a"]], "did not give rows of numbers"),
        (RuntimeError("secret"), "raised RuntimeError$"),
    ],
)
async def test_what_an_embedder_may_not_give(answer: Any, said: str) -> None:
    options = PickOptions(scorer=EmbeddingScorer(Answering(answer)))
    with pytest.raises(PickError, match=f"^embedder 'mine' {said}"):
        await pick_tools("q", [entry("a")], options)


@pytest.mark.parametrize("size", [1e25, 1e-25, 1e39, 1e-300])
def test_rows_may_be_as_long_or_short_as_they_like(size: float) -> None:
    scorer = EmbeddingScorer(Answering(lambda n: np.full((n, 2), size)))
    assert scores(scorer, "q", [entry("a")]) == pytest.approx([1])


def test_what_an_embedder_does_with_its_rows_later_changes_nothing() -> None:
    kept = np.array([[1, 0]], "float32")
    scorer = EmbeddingScorer(Answering(lambda n: kept))
    assert scores(scorer, "q", [entry("a")]) == [1]
    kept[:] = [0, 1]
    assert scores(scorer, "q", [entry("a"), entry("b")]) == [1, 0]


def test_rows_may_be_read_only() -> None:
    def locked(count: int) -> Any:
        rows = np.full((count, 2), 3.0, "float32")
        rows.setflags(write=False)
        return rows

    assert scores(EmbeddingScorer(Answering(locked)), "q", [entry("a")]) == pytest.approx([1])


def test_a_deadline_stops_a_build_and_the_next_request_goes_on() -> None:
    embedder = Counting()
    scorer = EmbeddingScorer(embedder)
    tools = tuple(entry(f"tool_{i}") for i in range(600))
    late = Query("q", deadline=monotonic())
    for _ in range(12):
        with pytest.raises(PickError, match="before the index of the catalog was built"):
            scorer.hits(late, tools)
        if len(embedder.asked) == len(tools):
            break
    assert embedder.most <= 256
    assert len(scorer.hits(Query("q"), tools).values) == len(tools)
    assert embedder.asked.count("q") == 1
    assert len(embedder.asked) == len(tools) + 1


class Counting:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.most = 0

    def embed(self, texts: Sequence[str]) -> Any:
        self.asked += texts
        self.most = max(self.most, len(texts))
        return np.ones((len(texts), 2))


def test_a_deadline_stops_a_build_of_word_vectors_too() -> None:
    tools = tuple(entry(f"tool_{i}", f"Does thing {i}.", examples=("do it",)) for i in range(600))
    scorer, refused = EmbeddingScorer(), 0
    while refused < 100:
        try:
            found = scorer.hits(Query("do thing 5", deadline=monotonic() + (refused > 50)), tools)
            break
        except PickError:
            refused += 1
    expected = EmbeddingScorer().hits(Query("do thing 5"), tools)
    assert refused > 3
    assert list(found.values) == list(expected.values)


def test_what_was_embedded_before_a_failure_is_kept() -> None:
    class Failing(Counting):
        fails = True

        def embed(self, texts: Sequence[str]) -> Any:
            if self.fails and self.asked:
                raise RuntimeError("later")
            return super().embed(texts)

    embedder = Failing()
    scorer, tools = EmbeddingScorer(embedder), tuple(entry(f"tool_{i}") for i in range(300))
    with pytest.raises(PickError, match="raised RuntimeError"):
        scorer.hits(Query("q"), tools)
    embedder.fails = False
    scorer.hits(Query("q"), tools)
    assert len(embedder.asked) == len(tools) + 1


def test_requests_and_tools_have_one_length() -> None:
    scorer = EmbeddingScorer(Fixed3({"q": [1, 0], "a: ": [1, 0, 0]}))
    with pytest.raises(PickError, match="'Fixed3' gave 2 numbers for a request and 3 for a tool"):
        scorer.hits(Query("q"), [entry("a")])


class Fixed3:
    def __init__(self, table: dict[str, list[float]]) -> None:
        self.table = table

    def embed(self, texts: Sequence[str]) -> Any:
        return np.array([self.table[text] for text in texts], "float32")


def test_the_best_of_description_and_examples_counts() -> None:
    cosines = {"q": 1.0, "a: ": 0.2, "x": 0.9, "y": 0.3, "b: ": 0.5}
    scorer = EmbeddingScorer(Fixed({text: at(cosine) for text, cosine in cosines.items()}))
    found = scores(scorer, "q", [entry("b"), entry("a", examples=("y", "x")), entry("b")])
    assert [round(score, 3) for score in found] == [0.444, 0.889, 0.444]


def test_the_parts_of_a_request_count_too() -> None:
    asked = "Do the first thing now. Do the second thing now."
    table: dict[str, list[float]] = {
        asked: [1, 0],
        "Do the first thing now.": [1, 0],
        "Do the second thing now.": [0, 1],
        "a: ": [1, 0],
        "b: ": [0, 1],
    }
    hits = EmbeddingScorer(Fixed(table)).hits(Query(asked), [entry("a"), entry("b")])
    assert list(hits.values) == pytest.approx([1.0, 0.3])


def test_earlier_turns_weigh_less() -> None:
    embedder = Fixed({"q": [1, 0], "before": [0, 1], "a: ": [1, 0], "b: ": [0, 1]})
    hits = EmbeddingScorer(embedder).hits(Query("q", earlier=("before",)), [entry("a"), entry("b")])
    length = (1 + 0.3**2) ** 0.5
    assert list(hits.values) == pytest.approx([1 / length, 0.3 / length])


def test_requests_may_have_an_embedder_of_their_own() -> None:
    tools, asking = Fixed({"a: ": [1, 0]}), Fixed({"q": [1, 0]})
    assert scores(EmbeddingScorer(tools, asking=asking), "q", [entry("a")]) == [1]
    assert (tools.asked, asking.asked) == (["a: "], ["q"])


class Half(Fixed):
    """Reads the half of any text."""

    def reads(self, text: str) -> float:
        return 0.5


def test_what_an_embedder_cannot_read_is_as_near_to_every_tool(tmp_path: Path) -> None:
    embedder = Half({"q": [1, 0], "a: ": [1, 0], "b: ": [0, 1]})
    embedder.name = "half"  # type: ignore[attr-defined]
    for given in (embedder, CachedEmbedder(embedder, tmp_path / "vectors.sqlite")):
        scorer, tools = EmbeddingScorer(given), [entry("a"), entry("b")]
        assert list(scorer.hits(Query("q"), tools).values) == pytest.approx([0.65, 0.15])


def test_word_vectors_do_not_judge_a_script_that_they_cannot_read() -> None:
    tools = [entry("a", "查询天气预报"), entry("b", "发送电子邮件"), entry("c", "翻译一段文本")]
    values = EmbeddingScorer().hits(Query("今天天气怎么样"), tools).values
    assert max(values) - min(values) < 0.1
    assert min(values) > 0.2


def test_a_request_is_embedded_once() -> None:
    embedder = Fixed({"q": [1, 0], "a: ": [1, 0]})
    scorer, tools = EmbeddingScorer(embedder), [entry("a")]
    scorer.hits(Query("q"), tools)
    scorer.explain(Query("q"), tools, [0])
    assert embedder.asked.count("q") == 1


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


@each_row("query", ["", "\x00", "\ud800", "天" * 1_000_000, "🦜", " " * 500_000])
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


def of_catalog(documents: list[list[tuple[float, str]]]) -> Any:
    return [*WordVectors().catalog_steps(documents)][-1]


def test_common_words_count_less_in_a_catalog() -> None:
    words = ("weather", "money", "files")
    found = of_catalog([[(1.0, f"tool {word}")] for word in words])
    plain = WordVectors().embed([*words, *(f"tool {word}" for word in words)])
    assert np.linalg.norm(found, axis=1).tolist() == pytest.approx([1] * 3, abs=1e-5)
    for row in range(3):
        assert found[row] @ plain[row] > plain[3 + row] @ plain[row]


def test_a_document_is_the_weighted_sum_of_its_parts() -> None:
    [one, other, both, none] = of_catalog(
        [[(1.0, "alpha")], [(1.0, "")], [(1.0, "beta"), (0.5, "gamma"), (0.3, " ")], []]
    )
    b, g = WordVectors().embed(["beta", "gamma"])
    assert both @ (b + 0.5 * g) == pytest.approx(float(np.linalg.norm(b + 0.5 * g)), abs=1e-4)
    assert np.linalg.norm(one) == pytest.approx(1, abs=1e-5)
    assert not other.any()
    assert not none.any()


def test_rows_do_not_depend_on_where_a_document_stands() -> None:
    """Documents are read in batches, of several sizes here; a whole letter makes one by itself."""
    texts = ["weather", "the weather of Rome", "", "money " * 300, "a letter " * 2_000, "files"]
    documents = [[(1.0, text), (0.3, f"{at % 7}")] for at in range(100) for text in texts]
    found = of_catalog(documents)
    backwards = of_catalog(documents[::-1])
    assert np.abs(found - backwards[::-1]).max() < 1e-6
    for at in range(7 * len(texts), len(texts) * 14):
        assert np.abs(found[at] - found[at - 7 * len(texts)]).max() < 1e-6


def test_blanks_do_not_matter() -> None:
    one, other = WordVectors().embed(["the  weather\n in Rome ", "the weather in rome"])
    assert (one == other).all()


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
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[pick\]'"):
        EmbeddingScorer()


@pytest.mark.parametrize("content", [None, b"", b"{}"])
def test_broken_files_are_named(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is not None:
        (tmp_path / "tokenizers").mkdir()
        (tmp_path / "tokenizers" / "l2_supercat_tokenizer_config.json").write_bytes(content)
    monkeypatch.setattr(vectors, "package_folder", lambda *_: tmp_path)
    with pytest.raises(SourceError, match="cannot be read: reinstall wordllama"):
        WordVectors().embed(["x"])


def test_no_request_is_kept_on_disk(tmp_path: Path) -> None:
    embedder = Fixed({"q": [1, 0], "a: ": [1, 0]})
    cached = CachedEmbedder(embedder, tmp_path / "vectors.sqlite", name="fixed")
    scorer = EmbeddingScorer(cached)
    scores(scorer, "q", (entry("a"),))
    with closing(sqlite3.connect(tmp_path / "vectors.sqlite")) as file:
        assert file.execute("SELECT count(*) FROM entry").fetchone() == (1,)
