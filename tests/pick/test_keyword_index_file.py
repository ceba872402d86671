from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pick.pick_helpers import SHOP, entry, scores

from toolcrib.errors import PickError
from toolcrib.pick import KeywordScorer, Query
from toolcrib.pick import keyword as scorer_module
from toolcrib.pick import keyword_index as index_file
from toolcrib.pick import keyword_index as postings

QUERY = "convert or read the files of a city"
EXPECTED = scores(KeywordScorer(), QUERY, SHOP)


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tools each index was built of."""
    counts: list[int] = []
    real = postings.index_steps

    def counted(definitions: list[object], kept: list[object]) -> object:
        counts.append(len(definitions))
        return real(definitions, kept)  # type: ignore[arg-type]

    monkeypatch.setattr(scorer_module, "index_steps", counted)
    return counts


def test_an_index_is_read_and_not_built(tmp_path: Path, built: list[int]) -> None:
    folder = tmp_path / "deep" / "indexes"
    for _ in range(3):
        assert scores(KeywordScorer(folder), QUERY, SHOP) == EXPECTED
    assert built == [5]
    assert len(files(folder)) == 1


def test_a_derived_index_is_read_as_it_was(tmp_path: Path, built: list[int]) -> None:
    scorer = KeywordScorer(tmp_path)
    changed = (*SHOP[3:0:-1], entry("zip_files", "Packs files."), SHOP[4])
    expected = scores(KeywordScorer(), QUERY, changed)
    scores(scorer, QUERY, SHOP)
    built.clear()
    assert scores(scorer, QUERY, changed) == expected
    assert scores(KeywordScorer(tmp_path), QUERY, changed) == expected
    assert built == [5]


def _other_catalog(path: Path) -> None:
    KeywordScorer(path.parent).hits(Query("x"), SHOP[:2])
    other = next(file for file in files(path.parent) if file != path)
    other.replace(path)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"SQLite format 3\0" + bytes(100)),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:20]),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.write_bytes(path.read_bytes().replace(b"weather", b"leather")),
        lambda path: path.write_bytes(b"older   " + path.read_bytes()[8:]),
        _other_catalog,
    ],
    ids=["empty", "foreign", "cut", "short", "longer", "changed", "older", "other"],
)
def test_a_file_that_is_not_right_is_not_there(
    spoil: object, tmp_path: Path, built: list[int]
) -> None:
    scores(KeywordScorer(tmp_path), QUERY, SHOP)
    [path] = files(tmp_path)
    spoil(path)  # type: ignore[operator]
    built.clear()
    assert scores(KeywordScorer(tmp_path), QUERY, SHOP) == EXPECTED
    assert scores(KeywordScorer(tmp_path), QUERY, SHOP) == EXPECTED  # it was replaced
    assert built == [5]


@pytest.mark.parametrize("kind", ["pipe", "endless", "folder", "huge", "unreadable"])
def test_what_is_no_file_is_not_waited_for(kind: str, tmp_path: Path, built: list[int]) -> None:
    scores(KeywordScorer(tmp_path), QUERY, SHOP)
    [path] = files(tmp_path)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        (path / "below").mkdir(parents=True)
    elif kind == "huge":
        path.touch()
        os.truncate(path, 1 << 40)  # a hole: it takes no room
    elif kind == "unreadable":
        path.write_bytes(b"")
        path.chmod(0)
    else:
        path.symlink_to("/dev/zero")
    built.clear()
    for _ in range(2):
        assert scores(KeywordScorer(tmp_path), QUERY, SHOP) == EXPECTED
    assert built == [5] * (2 if kind == "folder" else 1)


def test_a_folder_that_may_only_be_read_serves(
    tmp_path: Path, built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores(KeywordScorer(tmp_path), QUERY, SHOP)

    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "utime", refused)
    built.clear()
    assert scores(KeywordScorer(tmp_path), QUERY, SHOP) == EXPECTED
    assert built == []


def test_a_full_disk_costs_only_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert scores(KeywordScorer(tmp_path), QUERY, SHOP) == EXPECTED
    assert files(tmp_path) == []


def test_what_cannot_be_removed_keeps_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_file, "_KEPT", 1)
    for name in ("0.words", "1.unfinished"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    for count in (1, 2, 3):
        scores(KeywordScorer(tmp_path), QUERY, SHOP[:count])
    assert len(files(tmp_path)) == 3


def test_another_version_has_other_files(
    tmp_path: Path, built: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores(KeywordScorer(tmp_path), QUERY, SHOP)
    monkeypatch.setattr(index_file, "_VERSION", 0)
    assert scores(KeywordScorer(tmp_path), QUERY, SHOP) == EXPECTED
    assert built == [5, 5]


def test_the_files_used_last_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_file, "_KEPT", 2)
    (tmp_path / "notes.txt").write_text("not ours", encoding="utf-8")
    abandoned = tmp_path / "0.unfinished"
    abandoned.write_bytes(b"of a process that was killed")
    os.utime(abandoned, (0, 0))
    for age, count in enumerate((1, 2, 3)):
        scores(KeywordScorer(tmp_path), QUERY, SHOP[:count])
        newest = max(tmp_path.glob("*.words"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (1e9 + age, 1e9 + age))
    left = [path for path in files(tmp_path) if path.suffix == ".words"]
    assert len(left) == 2
    assert [path.name for path in files(tmp_path) if path not in left] == ["notes.txt"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(PickError, match="file/below for indexes cannot be made"):
        KeywordScorer(tmp_path / "file" / "below")


def test_a_folder_that_is_gone_costs_only_the_file(tmp_path: Path) -> None:
    scorer = KeywordScorer(tmp_path / "indexes")
    (tmp_path / "indexes").rmdir()
    assert scores(scorer, QUERY, SHOP) == EXPECTED


def test_several_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: scores(KeywordScorer(tmp_path), QUERY, SHOP), range(12)))
    assert found == [EXPECTED] * 12
    assert len(files(tmp_path)) == 1


def test_processes_that_are_killed_leave_a_folder_that_serves(tmp_path: Path) -> None:
    script = (
        "import sys; from pick.pick_helpers import *; from toolcrib.pick import KeywordScorer\n"
        "while True:\n"
        "    for n in range(1, 6):\n"
        "        scores(KeywordScorer(sys.argv[1]), 'files', SHOP[:n]); print(n, flush=True)\n"
        "        [path.unlink(missing_ok=True) for path in __import__('pathlib').Path(sys.argv[1])"
        ".glob('*.words')]\n"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    said = [[writer.stdout and writer.stdout.readline() for _ in range(20)] for writer in writers]
    for writer in writers:
        writer.kill()
        writer.communicate()
    assert all(map(all, said))  # they were at work
    for _ in range(2):
        assert scores(KeywordScorer(tmp_path), QUERY, SHOP) == EXPECTED
