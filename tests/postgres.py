"""A PostgreSQL of our own, for tests: in a temporary folder, on a free port, gone afterwards.

The server refuses to run as root, so root starts it as another user.
"""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from conftest import missing

_names = itertools.count()


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


@contextmanager
def running_server() -> Iterator[str]:
    """The URL of a server, without the name of a database."""
    programs = _programs()
    if programs is None:
        missing("PostgreSQL: apt-get install postgresql")
        raise AssertionError
    name, before = _as_user()
    folder = Path(tempfile.mkdtemp(prefix="toolcrib-postgres-"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    if before:
        shutil.chown(folder, name)
    data = folder / "data"

    def run(program: str, *arguments: str) -> None:
        command = [*before, str(programs / program), "-D", str(data), *arguments]
        subprocess.run(command, check=True, cwd=folder, stdout=subprocess.DEVNULL, timeout=60)

    try:
        run("initdb", "-U", "crib", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories={folder}"
        )
        run("pg_ctl", "start", "-w", "-l", str(folder / "log"), "-o", options)
        try:
            yield f"postgresql+psycopg://crib@127.0.0.1:{port}/"
        finally:
            run("pg_ctl", "stop", "-m", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Callable[[], str]]:
    """Gives the URL of a fresh database each time it is called."""
    with running_server() as url:

        def fresh() -> str:
            name = f"crib_{next(_names)}"
            plain = url.replace("+psycopg", "") + "postgres"
            with psycopg.connect(plain, autocommit=True) as connection:
                connection.execute(f'CREATE DATABASE "{name}"')
            return url + name

        yield fresh
