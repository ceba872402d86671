from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from toolcrib.errors import PickError, SourceError
from toolcrib.pick import cached, vector_file
from toolcrib.pick.cached import CachedEmbedder
from toolcrib.pick.vector_file import VectorFile

np = pytest.importorskip("numpy", reason="the extra 'pick' is not installed")


class Counted:
    """A row from each text's hash; `asked` is every text it was asked for."""

    def __init__(self, dimensions: int = 8, name: str = "counted 1") -> None:
        self.name = name
        self.dimensions = dimensions
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> Any:
        self.asked += texts
        rows = np.zeros((len(texts), self.dimensions), "float32")
        for row, text in zip(rows, texts, strict=True):
            seed = sha256(text.encode("utf-8", "surrogatepass")).digest()
            row[:] = np.random.default_rng(list(seed)).normal(size=self.dimensions)
        return rows


def true_rows(texts: Sequence[str], dimensions: int = 8) -> Any:
    return Counted(dimensions).embed(texts)


TEXTS = ["one", "two", "one", "", "\ud800", "\x00", "drei\N{BUG}"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "below" / "vectors.sqlite"


def test_only_what_is_new_is_asked_for(path: Path) -> None:
    first = Counted()
    rows = CachedEmbedder(first, path).embed(TEXTS)
    assert (rows == true_rows(TEXTS)).all()
    assert rows.dtype == np.float32
    assert sorted(first.asked) == sorted(set(TEXTS))
    later = Counted()
    again = CachedEmbedder(later, path)
    assert (again.embed(["new", *TEXTS]) == true_rows(["new", *TEXTS])).all()
    assert later.asked == ["new"]
    assert again.embed([]).shape == (0, 8)
    assert again.name == "counted 1"


def test_what_is_stopped_in_the_middle_was_not_for_nothing(path: Path) -> None:
    class Stopping(Counted):
        def embed(self, texts: Sequence[str]) -> Any:
            if len(self.asked) > 500:
                raise KeyboardInterrupt
            return super().embed(texts)

    texts = [f"text {number}" for number in range(1000)]
    with pytest.raises(KeyboardInterrupt):
        CachedEmbedder(Stopping(), path).embed(texts)
    later = Counted()
    assert (CachedEmbedder(later, path).embed(texts) == true_rows(texts)).all()
    assert len(later.asked) == 1000 - 512


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_only_its_owner_may_read_it(path: Path) -> None:
    CachedEmbedder(Counted(), path).embed(["one"])
    assert path.stat().st_mode & 0o777 == 0o600


def test_names_are_kept_apart(path: Path) -> None:
    CachedEmbedder(Counted(name="a"), path).embed(TEXTS)
    for other in (CachedEmbedder(Counted(), path), CachedEmbedder(Counted(), path, name="b")):
        assert (other.embed(TEXTS) == true_rows(TEXTS)).all()
        assert other._embedder.asked  # type: ignore[attr-defined]
    same = Counted(name="b")
    CachedEmbedder(same, path, name="a").embed(TEXTS)
    assert same.asked == []


def test_another_number_of_dimensions_is_another_model(path: Path) -> None:
    CachedEmbedder(Counted(8), path).embed(["one", "two"])
    changed = Counted(16)
    embedder = CachedEmbedder(changed, path)
    assert (embedder.embed(["one", "new"]) == true_rows(["one", "new"], 16)).all()
    assert (embedder.embed(["one", "two"]) == true_rows(["one", "two"], 16)).all()
    assert changed.asked == ["new", "one", "new", "one", "two"]


@pytest.mark.parametrize("embedder", [object(), type("E", (), {"name": 3})()])
def test_an_embedder_needs_a_name(embedder: Any) -> None:
    with pytest.raises(ValueError, match="no name; pass name="):
        CachedEmbedder(embedder)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (np.zeros((1, 4), "float32"), "one row for each"),
        (np.zeros(2, "float32"), "one row for each"),
        ([[1.0], [2.0]], "one row for each"),
        (np.full((2, 4), np.nan, "float32"), "not finite"),
    ],
)
def test_what_is_no_vector_is_not_kept(answer: Any, says: str, path: Path) -> None:
    class Wrong:
        name = "wrong"

        def embed(self, texts: Sequence[str]) -> Any:
            return answer

    with pytest.raises(PickError, match=f"'wrong'.*{says}"):
        CachedEmbedder(Wrong(), path).embed(["one", "two"])
    right = CachedEmbedder(Counted(name="wrong"), path)
    assert (right.embed(["one", "two"]) == true_rows(["one", "two"])).all()


# --- where it lies


def test_the_users_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLCRIB_CACHE", str(tmp_path))
    CachedEmbedder(Counted()).embed(["one"])
    assert [found.name for found in tmp_path.iterdir()] == ["vectors.sqlite"]


def test_what_lies_in_our_own_folder_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLCRIB_CACHE", str(tmp_path))
    (tmp_path / "vectors.sqlite").write_bytes(b"\x00" * 10_000)
    CachedEmbedder(Counted()).embed(["one"])
    later = Counted()
    CachedEmbedder(later).embed(["one"])
    assert later.asked == []


def other_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_text("my diary", encoding="utf-8"),
        lambda path: path.write_bytes(b"\x00" * 4096),
        other_database,
    ],
)
def test_a_file_of_another_kind_is_refused_and_kept(write: Any, tmp_path: Path) -> None:
    path = tmp_path / "diary"
    write(path)
    before = path.read_bytes()
    with pytest.raises(SourceError, match="diary is no cache of vectors: delete it, or name"):
        CachedEmbedder(Counted(), path).embed(["one"])
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", ["a folder", "below a file", "no home"])
def test_without_a_disk_it_keeps_them_in_memory(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path: Path | None = tmp_path
    if kind == "below a file":
        (tmp_path / "file").touch()
        path = tmp_path / "file" / "vectors.sqlite"
    if kind == "no home":
        path = None
        for name in ("TOOLCRIB_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
            monkeypatch.delenv(name, raising=False)

        def no_home() -> Path:
            raise RuntimeError

        monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(cached, "_IN_MEMORY", 3)
    embedder = Counted()
    texts = ["one", "two", "three"]

    def begun() -> CachedEmbedder:
        kept = CachedEmbedder(embedder, path)
        kept.embed(texts)
        return kept

    with pytest.warns(RuntimeWarning, match="kept in memory only") as told:
        kept = begun()
    assert len(told) == 1
    assert (kept.embed(texts) == true_rows(texts)).all()
    assert embedder.asked == texts
    kept.embed(["four"])
    kept.embed(["two", "three", "four", "one"])
    assert embedder.asked == ["one", "two", "three", "four", "one"]


@pytest.mark.skipif(os.name == "nt", reason="POSIX permissions")
def test_a_file_that_can_only_be_read_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CachedEmbedder(Counted(), path).embed(["one"])
    connect = sqlite3.connect

    def read_only(found: Path, **options: Any) -> Any:  # root may write anything
        return connect(f"file:{found}?mode=ro", uri=True, **options)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    monkeypatch.setattr(vector_file, "_HOUR", -1)
    later = Counted()
    kept = CachedEmbedder(later, path)
    with pytest.warns(RuntimeWarning, match="attempt to write a readonly database"):
        kept.embed(["one", "two"])
    kept.embed(["one", "two"])
    assert later.asked == ["two"]


# --- broken files


def test_any_damage_costs_vectors_and_never_makes_wrong_ones(tmp_path: Path) -> None:
    """Bytes flipped, pages zeroed, the end cut off, at random; a healthy file comes of each."""
    texts = [f"text {number}" for number in range(200)]
    truth = true_rows(texts)
    whole = tmp_path / "whole"
    CachedEmbedder(Counted(), whole).embed(texts)
    data = whole.read_bytes()
    chance = random.Random(6)  # noqa: S311
    for number in range(45):
        broken = bytearray(data)
        for _ in range(chance.choice([1, 3, 50])):
            at = chance.choice([chance.randrange(100, len(data)), chance.randrange(100, 4096)])
            broken[at : at + chance.choice([1, 1, 512])] = chance.randbytes(1)
        if number % 3 == 0:
            del broken[chance.randrange(100, len(data)) :]
        path = tmp_path / str(number)
        path.write_bytes(broken)
        assert (CachedEmbedder(Counted(), path).embed(texts) == truth).all()
        healthy = Counted()
        assert (CachedEmbedder(healthy, path).embed(texts) == truth).all()
        assert healthy.asked == []


def test_an_entry_that_was_changed_is_not_there(path: Path) -> None:
    CachedEmbedder(Counted(), path).embed(["one", "two"])
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT key, bytes FROM entry").fetchall()
        connection.execute("UPDATE entry SET bytes = ? WHERE key = ?", (rows[0][1], rows[1][0]))
    connection.close()
    later = Counted()
    assert (CachedEmbedder(later, path).embed(["one", "two"]) == true_rows(["one", "two"])).all()
    assert len(later.asked) == 1


@pytest.mark.parametrize(
    "damage", ["DROP TABLE entry", "ALTER TABLE entry RENAME COLUMN used TO u"]
)
def test_a_table_that_is_not_as_it_was_is_made_anew(damage: str, path: Path) -> None:
    CachedEmbedder(Counted(), path).embed(["one"])
    with sqlite3.connect(path) as connection:
        connection.execute(damage)
    connection.close()
    CachedEmbedder(Counted(), path).embed(["one"])
    later = Counted()
    CachedEmbedder(later, path).embed(["one"])
    assert later.asked == []


def test_a_file_that_is_deleted_meanwhile_is_made_again(path: Path) -> None:
    kept = CachedEmbedder(Counted(), path)
    kept.embed(["one"])
    path.unlink()
    assert (kept.embed(["one"]) == true_rows(["one"])).all()
    assert path.is_file()


def test_a_busy_file_is_not_waited_for_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_file, "_PATIENCE", 0.05)
    CachedEmbedder(Counted(), path).embed(["one"])
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    later = Counted()
    kept = CachedEmbedder(later, path)
    assert (kept.embed(["one", "two"]) == true_rows(["one", "two"])).all()
    assert (kept.embed(["one", "two"]) == true_rows(["one", "two"])).all()
    assert later.asked == ["one", "two"]
    other.close()


# --- its size


def test_it_does_not_grow_beyond_its_size(path: Path) -> None:
    limit = 256 * 1024
    embedder = Counted(256)
    kept = CachedEmbedder(embedder, path, max_bytes=limit)
    for start in range(0, 1000, 50):
        kept.embed([f"text {number}" for number in range(start, start + 50)])
        assert path.stat().st_size < limit + 50 * 2048
    embedder.asked.clear()
    kept.embed([f"text {number}" for number in range(950, 1000)])
    assert embedder.asked == []
    kept.embed(["text 0"])
    assert embedder.asked == ["text 0"]


def test_what_was_used_last_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    embedder = Counted(256)
    kept = CachedEmbedder(embedder, path, max_bytes=128 * 1024)
    kept.embed(["first"])
    for number in range(300):
        now[0] += 4000
        kept.embed([f"text {number}"])
        kept.embed(["first"])
    assert embedder.asked.count("first") == 1


def test_a_file_that_holds_nothing_at_all_keeps_nothing(path: Path) -> None:
    file = VectorFile(path, max_bytes=0, sole=False)
    file.put({b"k": b"v"})
    assert file.get([b"k"]) == {}


def test_more_keys_than_one_statement_takes(path: Path) -> None:
    file = VectorFile(path, max_bytes=1 << 24, sole=False)
    entries = {str(number).encode(): b"x" * number for number in range(1700)}
    file.put(entries)
    assert file.get([*entries, b"other"]) == entries


# --- several at once


def test_threads(path: Path) -> None:
    texts = [f"text {number}" for number in range(40)]
    kept = CachedEmbedder(Counted(), path)
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda n: kept.embed(texts[n % 20 : n % 20 + 20]), range(80)))
    truth = true_rows(texts)
    assert all((found == truth[n % 20 : n % 20 + 20]).all() for n, found in enumerate(rows))


WORK = """
import sys
from pathlib import Path
from pick.test_cached import Counted, true_rows
from toolcrib.pick.cached import CachedEmbedder
kept = CachedEmbedder(Counted(64), Path(sys.argv[1]), max_bytes=400_000)
for number in range(int(sys.argv[2])):
    texts = [f"text {(number * 7 + more) % 1500}" for more in range(20)]
    assert (kept.embed(texts) == true_rows(texts, 64)).all()
    if number == 5:
        print("begun", flush=True)
"""


def worker(path: Path, rounds: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", WORK, str(path), str(rounds)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_share_it_and_may_be_killed(tmp_path: Path) -> None:
    """Two that work, and three that are killed in the middle of what they do."""
    path = tmp_path / "shared.sqlite"
    workers = [worker(path, 40) for _ in range(2)]
    for number in range(3):
        victim = worker(path, 100_000)
        assert victim.stdout is not None
        assert victim.stdout.readline() == "begun\n"
        time.sleep(0.01 * number)
        victim.kill()
        victim.communicate()
    for process in workers:
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    texts = [f"text {number}" for number in range(1500)]
    kept = CachedEmbedder(Counted(64), path)
    assert (kept.embed(texts) == true_rows(texts, 64)).all()
    checked = sqlite3.connect(path)
    assert checked.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    checked.close()
