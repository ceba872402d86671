"""A process loses its locks on a file when it closes any descriptor of it (POSIX, fcntl)."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import children
import pytest
from audit.audit_helpers import record
from children import WARNED

from toolcrib.audit import AuditLog
from toolcrib.errors import CapabilityError
from toolcrib.kit import JailedFolder
from toolcrib.kit.files import IN_USE, Reading, opened_folder

WRITE = """
import sqlite3, sys
from contextlib import closing
with closing(sqlite3.connect(sys.argv[1], timeout=0)) as other:
    try:
        other.execute("INSERT INTO t VALUES (2)")
        other.commit()
    except sqlite3.OperationalError as error:
        print(error, end="")
    else:
        print("written", end="")
"""
LOOK = """
import sqlite3, sys
from contextlib import closing
with closing(sqlite3.connect(sys.argv[1], timeout=0)) as other:
    print(*other.execute("SELECT count(*) FROM sqlite_master").fetchone(), end="")
"""
FORK = """
import os, sys
from toolcrib.kit import JailedFolder
from toolcrib.kit.files import Reading, opened_folder

root = sys.argv[1]
jail = JailedFolder(root)
with opened_folder(root, ()) as folder, Reading() as reading:
    with reading.file("notes.txt", folder) as stream:
        child = os.fork()
        if not child:
            try:
                os.fstat(stream.fileno())
                told = 1
            except OSError:
                told = 0 if jail.read_text("notes.txt")["text"] == "needle" else 2
            os._exit(told)
        assert stream.read() == b"needle"
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
Ask = Callable[[JailedFolder, str], object]


def search_all(jail: JailedFolder, _name: str) -> None:
    assert [match["path"] for match in jail.search("needle", ".")["matches"]] == ["notes.txt"]


def search_it(jail: JailedFolder, name: str) -> None:
    with pytest.raises(CapabilityError, match=IN_USE):
        jail.search("needle", name)


def read_it(jail: JailedFolder, name: str) -> None:
    with pytest.raises(CapabilityError) as caught:
        jail.read_text(name)
    assert caught.value.safe_text == IN_USE


def said(program: str, path: Path) -> str:
    """What another process says."""
    done = children.run("-c", program, str(path), env=WARNED)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def opened_below(root: Path) -> int:
    """How many descriptors this process has of the files in a folder."""
    files = [path.stat() for path in root.iterdir()]
    count = 0
    for number in range(256):
        with suppress(OSError):
            count += any(os.path.samestat(os.fstat(number), file) for file in files)
    return count


def lock(root: Path) -> sqlite3.Connection:
    """A database that nobody else may write to, or read, as long as this is open."""
    connection = sqlite3.connect(root / "crib.db", isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    connection.execute("INSERT INTO t VALUES (1)")
    return connection


@pytest.fixture(params=["delete", "wal"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    (tmp_path / "notes.txt").write_text("needle", encoding="utf-8")
    with closing(sqlite3.connect(tmp_path / "crib.db")) as connection:
        connection.execute(f"PRAGMA journal_mode={request.param}")
        connection.execute("CREATE TABLE t (n INTEGER)")
        connection.commit()
    return tmp_path


@pytest.fixture
def held(root: Path) -> Iterator[Path]:
    with closing(lock(root)):
        (root / "linked").symlink_to("crib.db")
        (root / "hard.db").hardlink_to(root / "crib.db")
        yield root


@pytest.mark.parametrize("ask", [search_all, search_it, read_it])
@pytest.mark.parametrize("name", ["crib.db", "linked", "hard.db"])
def test_what_this_process_has_locked_stays_locked(held: Path, ask: Ask, name: str) -> None:
    ask(JailedFolder(held), name)
    assert said(WRITE, held / "crib.db") == "database is locked"


@pytest.mark.parametrize("root", ["wal"], indirect=True)
@pytest.mark.parametrize("name", ["crib.db-wal", "crib.db-shm"])
def test_files_beside_the_database_are_in_use_too(held: Path, name: str) -> None:
    read_it(JailedFolder(held), name)
    search_it(JailedFolder(held), name)
    assert said(WRITE, held / "crib.db") == "database is locked"


@pytest.mark.parametrize("ask", [search_all, search_it, read_it])
async def test_an_open_audit_log_keeps_its_locks(tmp_path: Path, ask: Ask) -> None:
    """Who closes a database last removes its log: another who did had not seen that we have it."""
    (tmp_path / "notes.txt").write_text("needle", encoding="utf-8")
    async with AuditLog(f"sqlite:///{tmp_path}/crib.db") as log:
        await log.write(record(1))
        ask(JailedFolder(tmp_path), "crib.db")
        assert int(said(LOOK, tmp_path / "crib.db"))
        assert (tmp_path / "crib.db-wal").exists()
        await log.write(record(2))
        assert (await log.verify()).ok


def test_what_is_opened_meanwhile_is_not_closed_before_it_is_free(root: Path) -> None:
    with (
        opened_folder(root, ()) as folder,
        Reading() as reading,
        reading.file("crib.db", folder) as stream,
    ):
        connection = lock(root)
        assert stream.read(6) == b"SQLite"
    assert said(WRITE, root / "crib.db") == "database is locked"
    search_all(JailedFolder(root), ".")
    read_it(JailedFolder(root), "crib.db")
    assert said(WRITE, root / "crib.db") == "database is locked"
    connection.close()
    assert JailedFolder(root).search("needle", "crib.db")["matches"] == []
    assert opened_below(root) == 0


def test_what_takes_a_files_place_after_the_look_is_not_closed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = (root / "notes.txt").stat()
    with closing(lock(root)):
        with opened_folder(root, ()) as folder, Reading() as reading, monkeypatch.context() as m:
            m.setattr(os, "stat", lambda *_args, **_options: ordinary)
            with pytest.raises(CapabilityError, match=IN_USE), reading.file("crib.db", folder):
                pass
        assert said(WRITE, root / "crib.db") == "database is locked"


def test_without_a_descriptor_left_to_look_through_nothing_is_closed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_path: str) -> list[str]:
        raise OSError(errno.EMFILE, "too many")

    with monkeypatch.context() as m, opened_folder(root, ()) as folder, Reading() as reading:
        with reading.file("crib.db", folder):
            connection = lock(root)
        m.setattr(os, "listdir", none_left)
        with pytest.raises(CapabilityError):
            JailedFolder(root).read_text("notes.txt")
    assert said(WRITE, root / "crib.db") == "database is locked"
    connection.close()
    search_all(JailedFolder(root), ".")
    assert opened_below(root) == 0


def test_where_descriptors_cannot_be_listed_nothing_is_known_to_be_in_use(
    held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_listing(path: str) -> list[str]:
        raise FileNotFoundError(errno.ENOENT, path)

    before = opened_below(held)
    with monkeypatch.context() as m:
        m.setattr(os, "listdir", no_listing)
        assert JailedFolder(held).search("needle", "crib.db")["matches"] == []
        search_all(JailedFolder(held), ".")
    assert opened_below(held) == before


def test_readers_are_not_in_each_others_way(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("needle", encoding="utf-8")
    with (
        opened_folder(tmp_path, ()) as folder,
        Reading() as reading,
        reading.file("notes.txt", folder) as stream,
    ):
        search_all(JailedFolder(tmp_path), ".")
        assert JailedFolder(tmp_path).read_text("notes.txt")["text"] == "needle"
        assert stream.read() == b"needle"
    assert opened_below(tmp_path) == 0


def test_a_search_of_many_files_leaves_no_descriptor(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number:02}.txt").write_text("needle", encoding="utf-8")
    assert len(JailedFolder(tmp_path).search("needle", ".")["matches"]) == 50
    assert JailedFolder(tmp_path).search("nowhere", ".")["matches"] == []
    assert opened_below(tmp_path) == 0


def test_a_forked_child_has_none_of_its_parents_readings(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("needle", encoding="utf-8")
    assert said(FORK, tmp_path) == ""
