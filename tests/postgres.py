"""The PostgreSQL server of a test run: in a temporary folder, on a free port, gone afterwards.

The server refuses to run as root, so root starts it as another user. A database is hundreds of files:
one that a test is done with is emptied for another.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest

_names = itertools.count()
_EMPTY = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid();
    DROP SCHEMA public CASCADE;
    DROP SCHEMA IF EXISTS dbos CASCADE;
    CREATE SCHEMA public;
    GRANT USAGE ON SCHEMA public TO PUBLIC;
    DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET ALL', current_database()); END $$;
"""
_OPEN = "SELECT datname, query FROM pg_stat_activity WHERE datname = ANY(%s)"
_SECONDS_TO_CLOSE = 10.0  # for a thread or a process that is just ending


def _programs() -> Path | None:
    """The newest installation that has a server, Debian's way or on the path."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=str)
    if found:
        return found[-1].parent
    program = shutil.which("initdb")
    return None if program is None else Path(program).parent


def _as_user() -> tuple[str, list[str]]:
    """Who runs the server, and what has to come before its command."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name, []
    names = {entry.pw_name for entry in pwd.getpwall()}
    name = "postgres" if "postgres" in names else "nobody"
    return name, ["runuser", "-u", name, "--"]


def _run(folder: Path, program: str, *arguments: str) -> None:
    programs = _programs()
    if programs is None:
        pytest.skip("PostgreSQL: apt-get install postgresql")
    command = [*_as_user()[1], str(programs / program), "-D", str(folder / "data"), *arguments]
    subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, timeout=60)


def _start() -> tuple[Path, str]:
    """Start a server; return its folder, and its URL without the name of a database."""
    folder = Path(tempfile.mkdtemp(prefix="toolcrib-postgres-"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    name, before = _as_user()
    if before:
        shutil.chown(folder, name)
    try:
        _run(folder, "initdb", "-U", "crib", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"listen_addresses='127.0.0.1'\nport={port}\nunix_socket_directories='{folder}'\n"
        with (folder / "data/postgresql.conf").open("a", encoding="utf-8") as settings:
            settings.write(options)
        _begin(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder, f"postgresql+psycopg://crib@127.0.0.1:{port}/"


def _begin(folder: Path) -> None:
    _run(folder, "pg_ctl", "start", "-w", "-l", str(folder / "log"))


def _end(folder: Path, mode: str) -> None:
    _run(folder, "pg_ctl", "stop", "-w", "-m", mode)


def _stop(folder: Path) -> None:
    try:
        _end(folder, "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def shared_server(state: Path) -> Iterator[str]:
    """The server of this test run: who needs it first starts it, and who leaves last stops it.

    `state` is a file that all processes of the run lock while they come and go: the server's folder,
    its URL, and how many use it.
    """

    def change(by: int) -> str:
        with state.open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = json.loads(file.read() or "null")
            folder, url, users = known or (*map(str, _start()), 0)
            if users + by == 0:
                _stop(Path(folder))
            file.truncate(0)
            file.write(json.dumps([folder, url, users + by] if users + by else None))
            return str(url)

    url = change(1)
    try:
        yield url
    finally:
        change(-1)


class Databases:
    """The databases of one server: one is made when one is asked for and none is free."""

    def __init__(self, url: str) -> None:
        self.free: list[str] = []  # nobody needs what is in them
        self._url = url

    def empty(self) -> str:
        """Return the name of a database that has nothing in it, and no settings."""
        if self.free:
            name = self.free.pop()
            self._run(name, _EMPTY)
        else:
            name = f"crib_{os.getpid()}_{next(_names)}"
            self._run("postgres", f"CREATE DATABASE {name}")
        return name

    def url(self, name: str) -> str:
        return self._url + name

    def left_open(self, names: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return which of these databases a connection is still open to, and its last statement."""
        until = time.monotonic() + _SECONDS_TO_CLOSE
        while left := self._run("postgres", _OPEN, names):
            if time.monotonic() > until:
                break
            time.sleep(0.02)
        return left

    def _run(self, name: str, sql: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        plain = self.url(name).replace("+psycopg", "")
        with psycopg.connect(plain, autocommit=True) as connection:
            cursor = connection.execute(sql, values or None)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="session")
def databases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    """The databases of the server of all processes of this test run."""
    base = tmp_path_factory.getbasetemp()
    among_workers = "PYTEST_XDIST_WORKER" in os.environ
    state = (base.parent if among_workers else base) / "postgres.json"
    with shared_server(state) as url:
        yield Databases(url)


@pytest.fixture
def postgres(databases: Databases) -> Iterator[Callable[[], str]]:
    """Gives the URL of an empty database each time it is called."""
    given: list[str] = []

    def fresh() -> str:
        given.append(databases.empty())
        return databases.url(given[-1])

    yield fresh
    left = databases.left_open(given)
    assert not left, f"the test has not closed its connections: {left}"
    databases.free += given


class OwnServer:
    """A server of one test, which may be away for a while."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self.url = f"{url}postgres"

    def stop(self, mode: str) -> Callable[[], None]:
        """Stop it (`fast`, or `immediate` as in a crash); return what starts it again."""
        _end(self._folder, mode)
        return lambda: _begin(self._folder)


@pytest.fixture
def own_server() -> Iterator[OwnServer]:
    folder, url = _start()
    try:
        yield OwnServer(folder, url)
    finally:
        _stop(folder)
