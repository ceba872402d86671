from __future__ import annotations

import asyncio
import functools
import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pick.pick_helpers import SHOP, names
from rows import each_row

from toolcrib.errors import MissingExtraError, PickError, RateLimitError
from toolcrib.pick import EmbeddingScorer, PickOptions, pick_tools
from toolcrib.pick.embedding import CachedEmbedder, FunctionEmbedder

np = pytest.importorskip("numpy", reason="the extra 'pick' is not installed")


def letters(texts: Sequence[str]) -> list[list[float]]:
    """How often each of 26 letters is in a text, and whether there is a text."""
    return [[*(float(text.count(chr(97 + at))) for at in range(26)), 1.0] for text in texts]


async def later(texts: Sequence[str]) -> list[list[float]]:
    await asyncio.sleep(0)
    return letters(texts)


class Endpoint:
    async def __call__(self, texts: list[str]) -> list[list[float]]:
        return await later(texts)


class Noted:
    """`asked` is every text it was given."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: list[str]) -> list[list[float]]:
        self.asked += texts
        return letters(texts)


KINDS: dict[str, Any] = {
    "sync": letters,
    "arrays": lambda texts: np.array(letters(texts), "float16"),
    "async": later,
    "partial": functools.partial(later),
    "coroutine": lambda texts: later([*texts]),
    "object": Endpoint(),
}
every = pytest.mark.parametrize("function", KINDS.values(), ids=KINDS)


@every
def test_unit_rows_in_order(function: Any) -> None:
    embedder = FunctionEmbedder(function, name="letters", batch=2)
    texts = ["abc", "b", "", " \n", "zebra", "abc", "\ud800"]
    rows = embedder.embed(texts)
    assert (rows.shape, rows.dtype) == ((7, 27), np.float32)
    assert np.linalg.norm(rows, axis=1).tolist() == pytest.approx([1, 1, 0, 0, 1, 1, 1])
    assert (rows[0] == rows[5]).all()
    assert rows[1].argmax() == 1
    assert embedder.embed([]).shape == (0, 27)


@pytest.mark.parametrize("size", [1e300, 1e-200])
def test_rows_of_any_size_become_unit_vectors(size: float) -> None:
    embedder = FunctionEmbedder(lambda texts: [[size, 0.0, size]] * len(texts), name="odd")
    assert embedder.embed(["a"]).tolist() == [[pytest.approx(0.5**0.5), 0, pytest.approx(0.5**0.5)]]


@every
async def test_in_a_pick(function: Any) -> None:
    scorer = EmbeddingScorer(FunctionEmbedder(function, name="letters"))
    picked = await pick_tools("convert currency", SHOP, PickOptions(scorer=scorer))
    assert names(picked)[0] == "convertCurrency"


def test_batches() -> None:
    sizes: list[int] = []

    def counted(texts: list[str]) -> Any:
        sizes.append(len(texts))
        assert isinstance(texts, list)
        return letters(texts)

    FunctionEmbedder(counted, name="c", batch=3).embed(["x", "", "y", "z", "a", " ", "b", "c"])
    assert sizes == [3, 3]
    blank = FunctionEmbedder(counted, name="c")
    assert blank.embed([]).shape == (0, 0)
    assert blank.embed(["", ""]).shape == (2, 27)
    assert sizes == [3, 3, 1]


def test_long_texts_are_cut() -> None:
    noted = Noted()
    FunctionEmbedder(noted, name="c").embed(["ab" * 10**6])
    assert [len(text) for text in noted.asked] == [8192]


async def test_at_most_four_batches_at_once() -> None:
    now, most = 0, 0

    async def counted(texts: list[str]) -> Any:
        nonlocal now, most
        now += 1
        most = max(most, now)
        for _ in range(5):
            await asyncio.sleep(0)
        now -= 1
        return letters(texts)

    embedder = FunctionEmbedder(counted, name="c", batch=1)
    rows = await asyncio.to_thread(embedder.embed, [chr(97 + at) for at in range(20)])
    assert rows[:, :26].argmax(axis=1).tolist() == list(range(20))
    assert most == 4


@each_row(
    ("answer", "says"),
    [
        (None, r"shape \(\) for 2 texts, not one row for each"),
        ([], r"shape \(0,\) for 2 texts"),
        ([[1.0, 2.0]], r"shape \(1, 2\) for 2 texts"),
        ([[1.0], [2.0], [3.0]], r"shape \(3, 1\) for 2 texts"),
        ([[], []], r"shape \(2, 0\) for 2 texts"),
        ([1.0, 2.0], r"shape \(2,\) for 2 texts"),
        ([[1.0], [1.0, 2.0]], "rows of numbers of the same length"),
        ([["a"], ["b"]], "rows of numbers"),
        ({"data": []}, "rows of numbers"),
        ([[1.0, float("nan")], [1.0, 2.0]], "not finite"),
        ([[1.0, float("inf")], [1.0, 2.0]], "not finite"),
        ([[10**400], [1]], "rows of numbers"),
    ],
)
def test_wrong_answers(answer: Any, says: str) -> None:
    async def awaited(_: list[str]) -> Any:
        return answer

    for function in (lambda _: answer, awaited):
        with pytest.raises(PickError, match=f"^embedder 'mine' .*{says}"):
            FunctionEmbedder(function, name="mine").embed(["one", "two"])


def test_another_length_than_before() -> None:
    answers = iter([[[1.0, 2.0]], [[1.0]]])
    embedder = FunctionEmbedder(lambda _: next(answers), name="mine", batch=1)
    with pytest.raises(PickError, match="'mine' gave 1 numbers per text, but 2 before"):
        embedder.embed(["one", "two"])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_raised(asynchronous: bool) -> None:
    def failing(error: Exception) -> Any:
        def function(_: list[str]) -> Any:
            raise error

        async def awaited(_: list[str]) -> Any:
            raise error

        return FunctionEmbedder(awaited if asynchronous else function, name="mine", batch=1)

    with pytest.raises(PickError, match=r"^embedder 'mine' raised KeyError$") as raised:
        failing(KeyError("secret")).embed(["one", "two"])
    assert "secret" not in str(raised.value)
    with pytest.raises(RateLimitError, match="slow down"):
        failing(RateLimitError("slow down")).embed(["one", "two"])


@pytest.mark.parametrize("wrong", [{"name": ""}, {"name": "x", "batch": 0}])
def test_wrong_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="FunctionEmbedder"):
        FunctionEmbedder(letters, **wrong)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtraError, match=r"FunctionEmbedder needs.*'\.\[pick\]'"):
        FunctionEmbedder(letters, name="x")


def test_cached_by_its_name(tmp_path: Path) -> None:
    noted = Noted()
    embedder = FunctionEmbedder(noted, name="letters")
    kept = CachedEmbedder(embedder, tmp_path / "vectors")
    first = kept.embed(["one", "", "two"])
    again = CachedEmbedder(embedder, tmp_path / "vectors").embed(["one", "", "two"])
    assert (first == again).all()
    assert noted.asked == ["one", "two"]


# --- the loop


def loops() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "toolcrib-loop"]


def test_one_loop_for_all_calls_of_all_threads() -> None:
    gc.collect()  # of other tests
    before = len(loops())
    seen: set[object] = set()

    async def noted(texts: list[str]) -> Any:
        seen.add(asyncio.get_running_loop())
        return letters(texts)

    embedder = FunctionEmbedder(noted, name="n")
    assert len(loops()) == before
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: embedder.embed(["a"]), range(20)))
    assert len(seen) == 1
    assert len(loops()) == before + 1


def test_the_loop_ends_with_its_embedder_and_closes_what_is_open() -> None:
    gc.collect()  # of other tests
    before = len(loops())
    closed: list[str] = []

    async def held() -> Any:
        try:
            yield
        finally:
            closed.append("generator")

    opened: list[Any] = []

    async def opening(texts: list[str]) -> Any:
        opened.append(held())
        await anext(opened[-1])
        return letters(texts)

    embedder = FunctionEmbedder(opening, name="n")
    embedder.embed(["a"])
    del embedder
    gc.collect()
    assert closed == ["generator"]
    assert len(loops()) == before


async def test_from_a_running_loop_it_only_waits() -> None:
    assert FunctionEmbedder(later, name="n").embed(["a"]).shape == (1, 27)


def _embedded(embedder: FunctionEmbedder, queue: Any) -> None:
    queue.put(embedder.embed(["abc"]).tobytes())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_a_fork() -> None:
    embedder = FunctionEmbedder(later, name="n")
    here = embedder.embed(["abc"]).tobytes()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with embedder._loop._lock:  # held by another thread, say
        child = context.Process(target=_embedded, args=(embedder, queue))
        child.start()
    assert queue.get(timeout=60) == here
    child.join()
    assert child.exitcode == 0
    assert embedder.embed(["abc"]).tobytes() == here


ENDING = """
import asyncio
from toolcrib.pick.embedding import FunctionEmbedder
async def held():
    try:
        yield
    finally:
        print("closed", flush=True)
async def function(texts):
    global kept
    kept = held()
    await anext(kept)
    asyncio.ensure_future(asyncio.sleep(60))
    return [[1.0] for _ in texts]
embedder = FunctionEmbedder(function, name="n")
embedder.embed(["a"])
"""


def test_a_program_that_ends_closes_what_is_open() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", ENDING],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")
