from __future__ import annotations

import os
import random
import sqlite3
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from children import WARNED, Talking
from pick.pick_helpers import SHOP, scores

from toolcrib.errors import PickError, SourceError
from toolcrib.pick import embedding as cached
from toolcrib.pick import vectors as vector_file
from toolcrib.pick.embedding import CachedEmbedder, EmbeddingScorer
from toolcrib.pick.vectors import VectorFile

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
    before = os.umask(0)
    try:
        CachedEmbedder(Counted(), path).embed(["one"])
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_names_are_kept_apart(path: Path) -> None:
    CachedEmbedder(Counted(name="a"), path).embed(TEXTS)
    for other in (CachedEmbedder(Counted(), path), CachedEmbedder(Counted(), path, name="b")):
        assert (other.embed(TEXTS) == true_rows(TEXTS)).all()
        assert other.uncached.asked  # type: ignore[attr-defined]
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
        (np.zeros((1, 4), "float32"), "not one row for each"),
        (np.zeros(2, "float32"), "not one row for each"),
        (np.zeros((2, 0), "float32"), "not one row for each"),
        (np.full((2, 4), np.nan, "float32"), "not finite"),
        (np.full((2, 4), 1e300), "not finite"),
        (np.array([["x", None]] * 2, object), "not give rows of numbers"),
        ([[1.0], [2.0, 3.0]], "not give rows of numbers"),
        (None, "not one row for each"),
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


def test_lists_of_numbers_are_rows(path: Path) -> None:
    class Plain:
        name = "plain"

        def embed(self, texts: Sequence[str]) -> Any:
            return [[1, 0.5] for _ in texts]

    for _ in range(2):
        rows = CachedEmbedder(Plain(), path).embed(["one", "two"])
        assert (rows.tolist(), rows.dtype) == ([[1.0, 0.5]] * 2, np.float32)


def test_rows_of_another_length_each_time_are_an_error(path: Path) -> None:
    class Growing(Counted):
        def embed(self, texts: Sequence[str]) -> Any:
            self.dimensions += 1
            return super().embed(texts)

    with pytest.raises(PickError, match="'counted 1' gave rows of different lengths"):
        CachedEmbedder(Growing(), path).embed([f"text {number}" for number in range(300)])


def test_no_text_and_no_name_is_in_the_file(path: Path) -> None:
    kept = CachedEmbedder(Counted(name="a-private-name"), path)
    kept.embed(["canary-4f1d of a tool", *TEXTS])
    data = path.read_bytes()
    assert b"canary" not in data
    assert b"private" not in data


def test_a_request_is_not_kept(path: Path) -> None:
    asking, of_tools = Counted(), Counted()
    scorer = EmbeddingScorer(CachedEmbedder(of_tools, path), asking=asking)
    scores(scorer, "list my files, then tell me the weather", SHOP)
    assert asking.asked
    with sqlite3.connect(path) as connection:
        kept = connection.execute("SELECT count(*) FROM entry").fetchone()
    assert kept == (len(set(of_tools.asked)),)
    assert not {*asking.asked} & {*of_tools.asked}
    connection.close()


# --- where it lies


def test_it_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ ":memory:" is a file like others, and a relative path counts from where it was given."""
    monkeypatch.chdir(tmp_path)
    kept = CachedEmbedder(Counted(), ":memory:")
    kept.embed(["one"])
    (tmp_path / "other").mkdir()
    monkeypatch.chdir("other")
    kept.embed(["two"])
    later = Counted()
    CachedEmbedder(later, tmp_path / ":memory:").embed(["one", "two"])
    assert later.asked == []


@pytest.mark.parametrize("name", ["a?mode=memory", "b#c", "d%41", "e ü"])
def test_odd_names_of_files(name: str, tmp_path: Path) -> None:
    CachedEmbedder(Counted(), tmp_path / name).embed(["one"])
    assert [found.name for found in tmp_path.iterdir()] == [name]


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
    with pytest.raises(SourceError, match="diary is not a cache of vectors: delete it, or name"):
        CachedEmbedder(Counted(), path).embed(["one"])
    assert path.read_bytes() == before


def test_a_link_is_replaced_and_what_it_names_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "diary").write_text("mine", encoding="utf-8")
    (tmp_path / "cache" / "vectors.sqlite").symlink_to(tmp_path / "diary")
    monkeypatch.setenv("TOOLCRIB_CACHE", str(tmp_path / "cache"))
    CachedEmbedder(Counted()).embed(["one"])
    assert (tmp_path / "diary").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / "cache" / "vectors.sqlite").is_symlink()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for where in (pipe, Path("/dev/null"), Path("/dev/full")):
        with pytest.warns(RuntimeWarning, match="it is not a file"):
            CachedEmbedder(Counted(), where).embed(["one"])
        assert where.exists()
        assert not where.is_file()


def test_a_full_disk(path: Path) -> None:
    resource = pytest.importorskip("resource", reason="no limits on files here")
    kept = CachedEmbedder(Counted(256), path)
    kept.embed(["one"])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))
    texts = [f"text {number}" for number in range(300)]
    try:
        with pytest.warns(RuntimeWarning, match="kept in memory only"):
            assert (kept.embed(texts) == true_rows(texts, 256)).all()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    later = Counted(256)
    assert (CachedEmbedder(later, path).embed(["one"]) == true_rows(["one"], 256)).all()
    assert later.asked == []


@pytest.mark.parametrize("kind", ["a folder", "below a file", "no home", "nowhere"])
def test_without_a_disk_it_keeps_them_in_memory(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path: Path | None = tmp_path
    if kind == "below a file":
        (tmp_path / "file").touch()
        path = tmp_path / "file" / "vectors.sqlite"
    if kind == "nowhere":  # the working folder was deleted
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        path = Path("vectors.sqlite")
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

    def read_only(where: str, **options: Any) -> Any:  # root may write anything
        return connect(where.replace("mode=rw", "mode=ro"), **options)

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


@pytest.mark.parametrize("meanwhile", ["empty", "gone"])
def test_another_process_begins_a_broken_file_anew(
    meanwhile: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CachedEmbedder(Counted(), path).embed(["one"])
    path.write_bytes(path.read_bytes()[:100] + b"\x01" * 8092)
    connect = sqlite3.connect

    def connected(where: str, **options: Any) -> Any:
        monkeypatch.undo()
        connection = connect(where, **options)
        with pytest.raises(sqlite3.DatabaseError) as broken:
            connection.execute("SELECT * FROM sqlite_master")
        connection.close()
        path.unlink()
        if meanwhile == "empty":
            path.touch(mode=0o600)
        raise broken.value

    monkeypatch.setattr(sqlite3, "connect", connected)
    CachedEmbedder(Counted(), path).embed(["two"])
    later = Counted()
    CachedEmbedder(later, path).embed(["two"])
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
from pick.test_embedding_cached import Counted, true_rows
from toolcrib.pick.embedding import CachedEmbedder
kept = CachedEmbedder(Counted(64), Path(sys.argv[1]), max_bytes=400_000)
for number in range(int(sys.argv[2])):
    texts = [f"text {(number * 7 + more) % 1500}" for more in range(20)]
    assert (kept.embed(texts) == true_rows(texts, 64)).all()
    if number == 5:
        print("begun", flush=True)
"""


def test_processes_share_it_and_may_be_killed(tmp_path: Path) -> None:
    """Two that work, and three that are killed in the middle of what they do."""
    path = tmp_path / "shared.sqlite"
    with ExitStack() as stack:
        at_work = [Talking("-c", WORK, str(path), "40", env=WARNED) for _ in range(2)]
        for worker in at_work:
            stack.enter_context(worker)
        for number in range(3):
            with Talking("-c", WORK, str(path), "100000", env=WARNED) as victim:
                assert victim.stdout.readline() == "begun\n"
                time.sleep(0.01 * number)
        assert [worker.ended() for worker in at_work] == ["begun\n"] * 2
    texts = [f"text {number}" for number in range(1500)]
    kept = CachedEmbedder(Counted(64), path)
    assert (kept.embed(texts) == true_rows(texts, 64)).all()
    checked = sqlite3.connect(path)
    assert checked.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    checked.close()
