from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rows import each_row

from toolcrib.kit import FolderLimits, JailedFolder, SearchLimits


def write(root: Path, files: dict[str, str | bytes]) -> JailedFolder:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return JailedFolder(root)


def limited(root: Path, **limits: Any) -> JailedFolder:
    return JailedFolder(root, FolderLimits(search=SearchLimits(**limits)))


def places(jail: JailedFolder, query: str, path: str = ".") -> list[tuple[str, int]]:
    return [(m["path"], m["line"]) for m in jail.search(query, path)["matches"]]


def test_matches_come_in_order_with_path_line_and_text(tmp_path: Path) -> None:
    jail = write(
        tmp_path,
        {
            "b.txt": "one\nTODO two\n\ttodo\tthree\r\n",
            "a/z.py": "# Todo\n",
            "a/y/deep.md": "no\n",
            "c.txt": "nothing",
        },
    )
    assert jail.search("todo", ".") == {
        "matches": [
            {"path": "b.txt", "line": 2, "text": "TODO two"},
            {"path": "b.txt", "line": 3, "text": " todo three"},
            {"path": "a/z.py", "line": 1, "text": "# Todo"},
        ],
        "truncated": False,
    }


@each_row(
    ("query", "path", "found"),
    [
        ("x", "a", [("a/one.txt", 1), ("a/b/two.txt", 1)]),
        ("x", "a/b", [("a/b/two.txt", 1)]),
        ("x", "a/one.txt", [("a/one.txt", 1)]),
        ("X", "./a/../a", [("a/one.txt", 1), ("a/b/two.txt", 1)]),
        ("x.*", ".", []),
        ("[", ".", [("top.txt", 2)]),
        ("STRASSE", ".", [("top.txt", 3)]),
        ("a\nb", ".", []),
    ],
)
def test_where_and_what(
    tmp_path: Path, query: str, path: str, found: list[tuple[str, int]]
) -> None:
    jail = write(
        tmp_path,
        {"a/one.txt": "x", "a/b/two.txt": "x", "top.txt": "a\nb [\nStraße"},
    )
    assert places(jail, query, path) == found


def test_what_is_hidden_installed_or_binary_is_left_out(tmp_path: Path) -> None:
    jail = write(
        tmp_path,
        {
            ".git/config": "needle",
            ".env": "needle",
            "node_modules/a.js": "needle",
            "__pycache__/a.py": "needle",
            "lib/site-packages/a.py": "needle",
            "my-env/pyvenv.cfg": "needle",
            "my-env/lib/a.py": "needle",
            "image.png": b"\x89PNG\0needle",
            "utf16.txt": "needle".encode("utf-16"),
            "kept.txt": "needle",
            "latin.txt": b"caf\xe9 needle",
        },
    )
    assert places(jail, "needle") == [("kept.txt", 1), ("latin.txt", 1)]
    assert places(jail, "needle", ".git") == [(".git/config", 1)]
    assert places(jail, "needle", ".env") == [(".env", 1)]


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(tmp_path / "outside", {"secret.txt": "needle"})
    jail = write(root, {"real.txt": "needle", "folder/real.txt": "needle"})
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "out.txt").symlink_to(tmp_path / "outside" / "secret.txt")
    (root / "again").symlink_to(".")
    os.mkfifo(root / "pipe.txt")
    assert places(jail, "needle") == [("real.txt", 1), ("folder/real.txt", 1)]


@each_row(
    ("limits", "found"),
    [
        ({"matches": 2}, 2),
        ({"matches": 1}, 1),
        ({"files": 1}, 1),
        ({"bytes": 5}, 1),
        ({"seconds": 0.0}, 0),
        ({"depth": 1}, 2),
    ],
)
def test_a_search_that_ends_early_says_so(
    tmp_path: Path, limits: dict[str, Any], found: int
) -> None:
    write(tmp_path, {"a.txt": "needle", "b/b.txt": "needle", "b/c/c.txt": "needle"})
    result = limited(tmp_path, **limits).search("needle", ".")
    assert len(result["matches"]) == found
    assert result["truncated"]


def test_a_search_that_finds_no_file_ends_in_time_as_well(tmp_path: Path) -> None:
    write(tmp_path, {"a/.hidden": "needle", "b/c/.hidden": "needle"})
    assert limited(tmp_path, seconds=0.0).search("needle", ".")["truncated"]


def test_a_search_that_just_fits_is_whole(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "needle\nneedle", "b/c/d.txt": "no"})
    jail = limited(tmp_path, matches=3, files=2, depth=2, file_bytes=13)
    result = jail.search("needle", ".")
    assert len(result["matches"]) == 2
    assert not result["truncated"]


def test_matches_within_one_file_are_cut_too(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "needle\n" * 10})
    result = limited(tmp_path, matches=4).search("needle", "a.txt")
    assert [m["line"] for m in result["matches"]] == [1, 2, 3, 4]
    assert result["truncated"]


def test_a_large_file_is_searched_up_to_a_limit(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": "needle\n" + "x" * 100 + "\nneedle"})
    result = limited(tmp_path, file_bytes=50).search("needle", ".")
    assert [m["line"] for m in result["matches"]] == [1]
    assert result["truncated"]


@each_row(
    ("line", "text"),
    [
        ("needle", "needle"),
        ("needle" + "-" * 20, "needle----------…"),
        ("-" * 20 + "needle", "…----------needle"),
        ("-" * 20 + "needle" + "-" * 20, "…----needle------…"),
        ("a\x1b[31mneedle", "a\ufffd[31mneedle"),
        ("\N{LATIN SMALL LETTER SHARP S}" * 20 + "needle" + "-" * 20, "…ßßßßneedle------…"),
        ("-" * 20 + "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}needle", "…---------İneedle"),
        ("\ufeffneedle", "needle"),
    ],
)
def test_a_long_line_is_cut_around_the_match(tmp_path: Path, line: str, text: str) -> None:
    write(tmp_path, {"a.txt": line})
    result = limited(tmp_path, line_characters=16).search("needle", ".")
    assert [m["text"] for m in result["matches"]] == [text]


def test_very_deep_folders_end_the_search_not_the_program(tmp_path: Path) -> None:
    write(tmp_path, {"a/" * 300 + "deep.txt": "needle", "top.txt": "needle"})
    result = JailedFolder(tmp_path).search("needle", ".")
    assert [m["path"] for m in result["matches"]] == ["top.txt"]
    assert result["truncated"]
