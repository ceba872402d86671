from __future__ import annotations

import os
from pathlib import Path

import pytest
from rows import each_row

from toolcrib.errors import CapabilityError
from toolcrib.kit.files import (
    NOT_A_FILE,
    NOT_A_FOLDER,
    NOT_ALLOWED,
    NOT_ORDINARY,
    Reading,
    fixed_messages,
    looks_binary,
    opened_folder,
    printable,
    shown_path,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "real").mkdir(parents=True)
    (tmp_path / "root" / "real" / "file.txt").write_text("inside", encoding="utf-8")
    (tmp_path / "root" / "linked").symlink_to("real")
    (tmp_path / "root" / "file-link").symlink_to("real/file.txt")
    os.mkfifo(tmp_path / "root" / "pipe")
    return tmp_path / "root"


def test_a_file_below_folders_is_opened(root: Path) -> None:
    with (
        opened_folder(root, ("real",)) as folder,
        Reading() as reading,
        reading.file("file.txt", folder) as stream,
    ):
        assert stream.read() == b"inside"


@pytest.mark.parametrize("parts", [("linked",), ("linked", "file.txt"), ("pipe",), ("nowhere",)])
def test_a_link_on_the_way_is_an_error_even_inside(root: Path, parts: tuple[str, ...]) -> None:
    with pytest.raises(OSError), opened_folder(root, parts):  # noqa: PT011  it is any of them
        pass


@pytest.mark.parametrize(
    ("name", "says"),
    [("file-link", NOT_ORDINARY), ("pipe", NOT_ORDINARY), ("real", NOT_A_FILE)],
)
def test_only_ordinary_files_are_opened(root: Path, name: str, says: str) -> None:
    with (
        opened_folder(root, ()) as folder,
        Reading() as reading,
        pytest.raises(CapabilityError, match=says),
        reading.file(name, folder),
    ):
        pass


@pytest.mark.parametrize(("name", "error"), [("pipe", CapabilityError), ("file-link", OSError)])
def test_what_is_put_there_after_the_look_is_seen_when_opened(
    root: Path, name: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = (root / "real" / "file.txt").stat()
    with opened_folder(root, ()) as folder, Reading() as reading, monkeypatch.context() as patched:
        patched.setattr(os, "stat", lambda *_args, **_options: ordinary)
        with pytest.raises(error), reading.file(name, folder):
            pass


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (FileNotFoundError("/secret"), "missing"),
        (PermissionError("/secret"), NOT_ALLOWED),
        (NotADirectoryError("/secret"), NOT_A_FOLDER),
        (OSError(40, "/secret"), "missing"),
    ],
)
def test_errors_of_the_system_become_fixed_sentences(error: OSError, says: str) -> None:
    with pytest.raises(CapabilityError) as caught, fixed_messages("missing"):
        raise error
    assert caught.value.safe_text == says
    assert caught.value.__suppress_context__


def test_no_descriptor_is_left_open(root: Path) -> None:
    before = len(list(Path("/dev/fd").iterdir()))
    for name in ("pipe", "file-link", "real", "nowhere"):
        with pytest.raises((OSError, CapabilityError)), opened_folder(root, ("real", name)):
            pass
        with (
            opened_folder(root, ()) as folder,
            Reading() as reading,
            pytest.raises((OSError, CapabilityError)),
            reading.file(name, folder),
        ):
            pass
    assert len(list(Path("/dev/fd").iterdir())) == before


@each_row(
    ("text", "shown"),
    [
        ("plain é 日本 🙂", "plain é 日本 🙂"),
        ("a\tb", "a b"),
        ("a\x1b[31mb", "a\ufffd[31mb"),
        ("a\nb\rc", "a\ufffdb\ufffdc"),
        ("a\u202eb", "a\ufffdb"),
        ("a\udcffb", "a\ufffdb"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(("parts", "path"), [((), "."), (("a", "b\x1b"), "a/b\ufffd")])
def test_shown_path(parts: tuple[str, ...], path: str) -> None:
    assert shown_path(parts) == path


@pytest.mark.parametrize(
    ("content", "binary"),
    [(b"", False), (b"text", False), (b"\xff\xfe", False), (b"a\0b", True)],
)
def test_looks_binary(content: bytes, binary: bool) -> None:
    assert looks_binary(content) is binary
