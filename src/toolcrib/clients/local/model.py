"""The engine: a GGUF file run by llama.cpp in this process, at one door to `xllamacpp`.

Rule: one completion at a time, in a thread, behind a lock that knows nothing of event loops. A
request that is given up while it waits never starts; one that has started runs to its bounded end,
and the next begins after it, on a whole engine.

The engine is an HTTP server inside; it is bound to a socket in a folder that is gone before anybody
could find it, and asks for a key that nobody knows (on Windows it is a loopback port with the key).
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import weakref
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from toolcrib.errors import MissingExtraError, ProviderError, SourceError
from toolcrib.threads import in_thread
from toolcrib.values.json import JsonObject

T = TypeVar("T")
_CONTEXT = 2048
_MOST_THREADS = 8
_SMALL = 512 * 1024 * 1024
"""Bytes of a model that writes with one thread. Threads wait for each other, spinning, hundreds of
times a token; if another program wants the cores, two of them write a small model's 15 tokens in up
to 25 seconds, where one takes 6 at most. Reading a prompt has work enough for all."""

_TOO_LONG = "exceed_context_size_error"


class TooLongError(Exception):
    """The prompt does not fit the model's context of 2048 tokens."""


class GivenUpError(Exception):
    """Nobody waits for the answer any more."""


class Completion(NamedTuple):
    """What the model wrote; `whole` is False if it was cut by the limit on its length."""

    text: str
    whole: bool
    input_tokens: int
    output_tokens: int


class Model:
    """A model file; loaded at the first completion, freed with the last reference to this."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._server: Any = None

    def complete(self, body: JsonObject, given_up: threading.Event) -> Completion:
        """Blocks: for a thread. `body` as llama.cpp's server takes it at `/completion`.

        Raises SourceError if the file is no model, TooLongError, GivenUpError, and ProviderError
        for what else the engine refuses.
        """
        with self._lock:
            if given_up.is_set():
                raise GivenUpError
            if self._server is None:
                self._server = _serve(self.path)
            try:
                answer = self._server.handle_completions(body)
            except (TypeError, ValueError, RuntimeError) as error:
                kind = type(error).__name__
                raise ProviderError(f"the embedded model takes no such request ({kind})") from None
        return _completion(answer)


_models: weakref.WeakValueDictionary[Path, Model] = weakref.WeakValueDictionary()
_models_lock = threading.Lock()


def model_at(path: Path) -> Model:
    """The model of this file, the same one for all who hold it. Not loaded yet."""
    place = path.resolve()
    with _models_lock:
        model = _models.get(place)
        if model is None:
            model = _models[place] = Model(place)
        return model


def check_engine() -> None:
    """Raises MissingExtraError where the engine is not installed."""
    if find_spec("xllamacpp") is None:
        raise MissingExtraError("local", "LocalClient")


async def until_given_up(work: Callable[[threading.Event], T]) -> T:
    """`work` in a thread; its event says that nobody waits for it any more."""
    given_up = threading.Event()
    try:
        return await in_thread(lambda: work(given_up))
    finally:
        given_up.set()


def _serve(path: Path) -> Any:
    try:
        import xllamacpp  # the extra's door
    except ImportError:
        raise MissingExtraError("local", "LocalClient") from None
    try:
        # The object cleans up at exit, too: a program may end while a model is still loading.
        import tempfile  # as in `download`

        with tempfile.TemporaryDirectory(prefix="toolcrib-", ignore_cleanup_errors=True) as folder:
            return xllamacpp.Server(_parameters(xllamacpp.CommonParams(), path, folder))
    except RuntimeError:
        raise SourceError(
            f"the model {path} cannot be loaded: it is no GGUF file, or a damaged one; the default "
            "model is checked and replaced by `toolcrib local install --force`"
        ) from None


def _parameters(params: Any, path: Path, folder: str) -> Any:
    threads = min(_cores(), _MOST_THREADS)
    params.model.path = str(path)
    params.cpuparams_batch.n_threads = threads
    params.cpuparams.n_threads = 1 if path.stat().st_size < _SMALL else threads
    params.n_ctx = _CONTEXT
    params.n_parallel = 1
    params.n_threads_http = 1
    params.verbosity = -1
    params.cache_ram_mib = 0
    params.n_ctx_checkpoints = 0
    params.fit_params = False
    params.ui = False
    params.hostnames = ["127.0.0.1" if sys.platform == "win32" else f"{folder}/s.sock"]
    params.api_keys = [secrets.token_hex(16)]
    return params


def _cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _completion(answer: Any) -> Completion:
    if not isinstance(answer, dict):
        raise ProviderError("the embedded model gave no answer")
    error = answer.get("error")
    if error:
        kind = error.get("type") if isinstance(error, dict) else None
        if kind == _TOO_LONG:
            raise TooLongError
        text = error.get("message") if isinstance(error, dict) else error
        raise ProviderError(f"the embedded model failed: {text}")
    choice, usage = answer["choices"][0], answer.get("usage", {})
    return Completion(
        choice["text"],
        choice["finish_reason"] == "stop",
        usage.get("prompt_tokens", 0),
        usage.get("completion_tokens", 0),
    )
