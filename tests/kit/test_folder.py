from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from rows import each_row

from toolcrib.errors import CapabilityError, SourceError
from toolcrib.kit import FolderLimits, JailedFolder
from toolcrib.kit.files import (
    NO_FILE,
    NO_FOLDER,
    NOT_A_FILE,
    NOT_A_FOLDER,
    NOT_ORDINARY,
    NOT_TEXT,
    OUTSIDE,
)

Ask = Callable[[JailedFolder, str], object]
ASKS: list[Ask] = [
    lambda jail, path: jail.list_folder(path),
    lambda jail, path: jail.read_text(path),
    lambda jail, path: jail.search("secret", path),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with ways out of it, beside one that holds a secret."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("secret", encoding="utf-8")
    (tmp_path / "root-twin").mkdir()
    (tmp_path / "root-twin" / "secret.txt").write_text("secret", encoding="utf-8")
    root = tmp_path / "root"
    (root / "docs" / "deep").mkdir(parents=True)
    (root / "docs" / "guide.md").write_text("# Guide\n", encoding="utf-8")
    (root / "readme.txt").write_text("Hello, wörld\n", encoding="utf-8")
    (root / "Zebra.txt").write_text("z", encoding="utf-8")
    (root / "link-in").symlink_to("docs/guide.md")
    (root / "folder-in").symlink_to("docs")
    (root / "absolute-in").symlink_to(root / "docs")
    (root / "link-out").symlink_to("../outside/secret.txt")
    (root / "folder-out").symlink_to(outside)
    (root / "via").symlink_to("folder-out")
    (root / "dangling").symlink_to("nothing")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    return root


@pytest.fixture
def jail(root: Path) -> JailedFolder:
    return JailedFolder(root)


@each_row("ask", ASKS)
@each_row(
    "path",
    [
        "..",
        "../",
        "../outside/secret.txt",
        "../nothing",
        "../root-twin/secret.txt",
        "docs/../../outside/secret.txt",
        "nothing/../../outside/secret.txt",
        "docs/" + "../" * 100 + "etc/passwd",
        "/",
        "/etc",
        "/etc/passwd",
        "//etc/passwd",
        "/proc/self/root/etc/passwd",
        "/dev/zero",
        "link-out",
        "folder-out",
        "folder-out/secret.txt",
        "folder-out/nothing",
        "via/secret.txt",
        "via/../secret.txt",
        "folder-in/../../outside/secret.txt",
    ],
)
def test_outside_is_outside_whether_or_not_it_is_there(
    jail: JailedFolder, ask: Ask, path: str
) -> None:
    with pytest.raises(CapabilityError) as caught:
        ask(jail, path)
    assert caught.value.safe_text == OUTSIDE


def test_an_absolute_path_outside_is_refused(jail: JailedFolder, root: Path) -> None:
    with pytest.raises(CapabilityError, match=OUTSIDE):
        jail.read_text(str(root.parent / "outside" / "secret.txt"))


@each_row("ask", ASKS)
@each_row(
    "path",
    [
        "nothing",
        "docs/nothing",
        "nothing/at/all",
        "dangling",
        "~",
        "~root",
        "a\0b",
        "../outside/secret.txt\0.md",
        "x" * 300,
        "x/" * 400,
        "x" * 100_000,
        "../" * 100_000,
        "\ud800",
        "$HOME",
        "*",
    ],
)
def test_what_cannot_be_there_is_missing(jail: JailedFolder, ask: Ask, path: str) -> None:
    with pytest.raises(CapabilityError) as caught:
        ask(jail, path)
    assert caught.value.safe_text in (NO_FILE, NO_FOLDER)


@pytest.mark.parametrize("ask", ASKS)
@pytest.mark.parametrize("path", ["loop", "loop/file", "loop/../loop"])
def test_a_link_to_itself_leads_nowhere(jail: JailedFolder, ask: Ask, path: str) -> None:
    with pytest.raises(CapabilityError):
        ask(jail, path)


@pytest.mark.parametrize(
    ("ask", "path", "says"),
    [
        (ASKS[0], "readme.txt", NOT_A_FOLDER),
        (ASKS[0], "pipe", NOT_A_FOLDER),
        (ASKS[0], "readme.txt/x", NOT_A_FOLDER),
        (ASKS[1], "docs", NOT_A_FILE),
        (ASKS[1], ".", NOT_A_FILE),
        (ASKS[1], "", NOT_A_FILE),
        (ASKS[1], "pipe", NOT_ORDINARY),
        (ASKS[1], "readme.txt/x", NOT_A_FOLDER),
        (ASKS[2], "pipe", NOT_ORDINARY),
    ],
)
def test_the_wrong_kind(jail: JailedFolder, ask: Ask, path: str, says: str) -> None:
    with pytest.raises(CapabilityError) as caught:
        ask(jail, path)
    assert caught.value.safe_text == says


def test_devices_and_sockets_are_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CapabilityError, match=NOT_ORDINARY):
        JailedFolder("/dev").read_text("zero")
    monkeypatch.chdir(tmp_path)  # a socket's path may not be long
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(CapabilityError, match=NOT_ORDINARY):
            JailedFolder(".").read_text("socket")


@pytest.mark.parametrize("path", [".", "", "./", "docs/..", "folder-in/..", "./docs/deep/../.."])
def test_the_root_has_many_names(jail: JailedFolder, path: str) -> None:
    assert jail.list_folder(path)["path"] == "."


def test_a_listing_has_folders_first_and_says_what_links_lead_to(jail: JailedFolder) -> None:
    listing = jail.list_folder(".")
    assert not listing["truncated"]
    assert [(e["name"], e["kind"], e["size"]) for e in listing["entries"]] == [
        ("docs", "folder", 0),
        ("absolute-in", "folder", 0),
        ("dangling", "other", 0),
        ("folder-in", "folder", 0),
        ("folder-out", "other", 0),
        ("link-in", "file", 8),
        ("link-out", "other", 0),
        ("loop", "other", 0),
        ("pipe", "other", 0),
        ("readme.txt", "file", 14),
        ("via", "other", 0),
        ("Zebra.txt", "file", 1),
    ]


@pytest.mark.parametrize("path", ["folder-in", "absolute-in", "docs/", "docs/deep/.."])
def test_a_folder_is_named_by_where_it_really_is(jail: JailedFolder, path: str) -> None:
    listing = jail.list_folder(path)
    assert listing["path"] == "docs"
    assert [e["name"] for e in listing["entries"]] == ["deep", "guide.md"]


def test_an_absolute_path_inside_is_taken(jail: JailedFolder, root: Path) -> None:
    assert jail.list_folder(str(root / "docs"))["path"] == "docs"
    assert jail.read_text(str(root / "readme.txt"))["path"] == "readme.txt"


@pytest.mark.parametrize(("entries", "scanned"), [(3, 10_000), (200, 3)])
def test_a_listing_is_cut_and_says_so(root: Path, entries: int, scanned: int) -> None:
    listing = JailedFolder(root, FolderLimits(entries=entries, scanned=scanned)).list_folder(".")
    assert len(listing["entries"]) == 3
    assert listing["truncated"]


def test_a_listing_of_exactly_the_limit_is_whole(root: Path) -> None:
    listing = JailedFolder(root, FolderLimits(entries=12, scanned=12)).list_folder(".")
    assert len(listing["entries"]) == 12
    assert not listing["truncated"]


def test_names_cannot_steer_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2Jb\n.txt").touch()
    (tmp_path / os.fsdecode(b"\xff.txt")).touch()
    names = [e["name"] for e in JailedFolder(tmp_path).list_folder(".")["entries"]]
    assert sorted(names) == ["a\ufffd[2Jb\ufffd.txt", "\ufffd.txt"]


def test_reading(jail: JailedFolder) -> None:
    assert jail.read_text("readme.txt") == {
        "path": "readme.txt",
        "text": "Hello, wörld\n",
        "size": 14,
        "truncated": False,
    }


def test_a_link_inside_is_read_where_it_leads(jail: JailedFolder) -> None:
    read = jail.read_text("link-in")
    assert (read["path"], read["text"]) == ("docs/guide.md", "# Guide\n")


@each_row(
    ("content", "text", "truncated"),
    [
        (b"", "", False),
        (b"12345678", "12345678", False),
        (b"123456789", "12345678", True),
        (b"1234567\xc3\xa9", "1234567", True),
        (b"123456\xc3\xa9", "123456é", False),
        (b"caf\xe9", "caf\ufffd", False),
        (b"\xef\xbb\xbfabc", "abc", False),
        (b"a\r\nb", "a\r\nb", False),
    ],
)
def test_text_is_decoded_and_cut_between_characters(
    tmp_path: Path, content: bytes, text: str, truncated: bool
) -> None:
    (tmp_path / "file").write_bytes(content)
    read = JailedFolder(tmp_path, FolderLimits(file_bytes=8)).read_text("file")
    assert read == {"path": "file", "text": text, "size": len(content), "truncated": truncated}


@pytest.mark.parametrize("content", [b"\x7fELF\x02\x01\x01\0\0", "UTF-16".encode("utf-16")])
def test_a_binary_file_is_no_text(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CapabilityError, match=NOT_TEXT):
        JailedFolder(tmp_path).read_text("file")


def test_a_huge_file_costs_no_more_than_its_beginning(tmp_path: Path) -> None:
    with (tmp_path / "huge.txt").open("wb") as stream:
        stream.write(b"a" * 100_000)
        stream.truncate(1 << 40)
    read = JailedFolder(tmp_path).read_text("huge.txt")
    assert read["text"] == "a" * 65_536
    assert (read["size"], read["truncated"]) == (1 << 40, True)


def test_the_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    jail = JailedFolder(tmp_path / "alias")
    assert jail.read_text("readme.txt")["path"] == "readme.txt"
    assert jail.read_text(str(tmp_path / "alias" / "readme.txt"))["path"] == "readme.txt"


@pytest.mark.parametrize("name", ["nowhere", "readme.txt"])
def test_the_root_has_to_be_a_folder(root: Path, name: str) -> None:
    with pytest.raises(SourceError, match="there is no folder"):
        JailedFolder(root / name)


def test_a_system_that_cannot_open_relative_to_a_folder_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "supports_dir_fd", set())
    with pytest.raises(SourceError, match="openat"):
        JailedFolder(root)


def test_a_folder_that_becomes_a_link_after_it_was_resolved_is_no_way_out(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jail = JailedFolder(root)
    monkeypatch.setattr(jail, "_resolved", lambda path, _: tuple(path.split("/")))
    for path in ("folder-out/secret.txt", "link-out"):
        with pytest.raises(CapabilityError):
            jail.read_text(path)
    for ask in (ASKS[0], ASKS[2]):
        with pytest.raises(CapabilityError):
            ask(jail, "folder-out")
