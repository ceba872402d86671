"""Signed checkpoints: a copy kept elsewhere reveals every later change, even by the key's owner.

A checkpoint is a note of the log's name, the number of its entries and the root of the tree over
them (`tree`), in the form of https://c2sp.org/tlog-checkpoint, signed with Ed25519 as in
https://c2sp.org/signed-note. Keys are written as Go's `sumdb/note` writes them: `NAME+ID+KEY` is
public, `PRIVATE+KEY+NAME+ID+KEY` is not; NAME is the log's name, its origin. The signing key is
separate from the log and from its HMAC key.

Rule: the verifier brings the public key. No key is ever taken from what is being verified, except
that a checkpoint signed by both the old key and the new one names the new one.

Each text has only one spelling: base64 with spare bits set, an extra line or a malformed signature
line is refused, even where nothing depends on it. Two different texts are never the same
checkpoint.

A proof that one entry is in the log is also a file, in the form of https://c2sp.org/tlog-proof: the
entry (as `extra`), its index, the hashes up to the root, and the checkpoint. Checking it does not
need the log.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import os
import re
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from toolcrib.audit import tree
from toolcrib.errors import MissingExtraError, SourceError, ToolcribError
from toolcrib.failures import SafeLogger
from toolcrib.storage import replacing, write_new
from toolcrib.threads import renew_in_children
from toolcrib.values.decision import INVISIBLE
from toolcrib.values.typed import check_each, check_type, got_type

_NOT_ASYNC = "keep is a folder's path, or a function that is not async"
_log = SafeLogger("toolcrib.audit")
_ED25519 = b"\1"  # the signature type of https://c2sp.org/signed-note
_DASH = "— "
_ROTATES = "rotates to "
_END = "\n\n"  # between the text of a note and its signatures
_PROOF = "c2sp.org/tlog-proof@v1"
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")
_NAME = re.compile(r"[^\s+\x00-\x1f\x7f\ud800-\udfff]+")
_MOST_SIGNATURES = 32
_ID = 4  # bytes of a key's id


class PublicKey(msgspec.Struct, frozen=True):
    """Says whose signature is accepted: a name, and 32 bytes."""

    name: str
    key: bytes

    @staticmethod
    def parse(text: str) -> PublicKey:
        """Read `NAME+ID+KEY`. Raises SourceError for anything else."""
        check_type("text", text, str, "a text, as str(key) gives it")
        name, _, rest = text.strip().partition("+")
        key = rest.partition("+")[2]
        public = PublicKey(name, _key_bytes(key))
        if not _NAME.fullmatch(name) or str(public) != text.strip():
            raise SourceError("a public key is NAME+ID+KEY, as `toolcrib audit keygen` prints it")
        return public

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{_text(_ED25519 + self.key)}"

    @property
    def id(self) -> bytes:
        return sha256(self.name.encode() + b"\n" + _ED25519 + self.key).digest()[:_ID]

    def signed(self, text: str, signature: bytes) -> bool:
        """Return whether `signature` is this key's signature of the text."""
        ed25519, invalid = _ed25519()
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.key).verify(signature, text.encode())
        except (invalid, ValueError):
            return False
        return True


class SigningKey:
    """Signs checkpoints. `sign` may be any function, so the key need not leave its device."""

    def __init__(self, public: PublicKey, sign: Callable[[bytes], bytes]) -> None:
        check_type("public", public, PublicKey, "a PublicKey")
        if not callable(sign):
            raise TypeError(f"sign must be a function; {got_type(sign)}")
        _check_name(public.name)
        self.public = public
        self.sign = sign

    def __repr__(self) -> str:
        return f"SigningKey({str(self.public)!r})"

    @staticmethod
    def generate(name: str, file: Path | str) -> SigningKey:
        """Make a key and write it to a new file that only its owner can read."""
        check_type("name", name, str, "a text, the log's name")
        check_type("file", file, Path | str, "a path")
        _check_name(name)
        # Older keys with such names can still be loaded.
        if not name.isprintable() or INVISIBLE.search(name):
            raise SourceError(
                "a log's name has no invisible characters, nor any that turn the direction of writing"
            )
        seed = os.urandom(32)
        signing = SigningKey._of(name, seed)
        secret = _text(_ED25519 + seed)
        text = f"PRIVATE+KEY+{name}+{signing.public.id.hex()}+{secret}\n"
        try:
            write_new(Path(file), text.encode())
        except OSError as error:
            raise SourceError(f"{file}: {error.strerror}") from None
        return signing

    @staticmethod
    def load(file: Path | str) -> SigningKey:
        """Read the file that `generate` has written.

        Raises SourceError if it is not such a file, or if anybody but its owner can read it.
        """
        check_type("file", file, Path | str, "a path")
        try:
            mode = Path(file).stat().st_mode
            if not stat.S_ISREG(mode):  # opening a pipe would wait for its writer
                raise SourceError(f"{file}: it is not a file")
            others = os.name == "posix" and mode & 0o077
            text = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as error:
            raise SourceError(f"{file}: it cannot be read ({type(error).__name__})") from None
        if others:
            raise SourceError(f"{file}: others can read this key: chmod 600 it")
        parts = text.split("+", 4)
        if len(parts) == 5 and parts[:2] == ["PRIVATE", "KEY"]:
            signing = SigningKey._of(parts[2], _key_bytes(parts[4]))
            if signing.public.id.hex() == parts[3]:
                return signing
        raise SourceError(f"{file}: it is not a signing key: `toolcrib audit keygen` makes one")

    @staticmethod
    def _of(name: str, seed: bytes) -> SigningKey:
        private = _ed25519()[0].Ed25519PrivateKey.from_private_bytes(seed)
        return SigningKey(PublicKey(name, private.public_key().public_bytes_raw()), private.sign)


class Checkpoint(msgspec.Struct, frozen=True):
    """Says how many entries a log had (its genesis included), and the root of the tree over them.

    With `rotates_to` the log's next checkpoints are signed by that key.
    """

    origin: str
    size: int
    root: bytes
    rotates_to: PublicKey | None = None

    @property
    def text(self) -> str:
        more = "" if self.rotates_to is None else f"{_ROTATES}{self.rotates_to}\n"
        return f"{self.origin}\n{self.size}\n{_text(self.root)}\n{more}"

    def signed(self, *keys: SigningKey) -> str:
        """Return the note, with a line for each signature.

        Raises SourceError if what a key's `sign` returns is not its signature: a note that nobody
        can check is no evidence.
        """
        lines = []
        for key in keys:
            own = key.sign(self.text.encode())
            if not isinstance(own, bytes) or not key.public.signed(self.text, own):
                raise SourceError(f"the signature that was made does not belong to {key.public}")
            lines.append(f"{_DASH}{key.public.name} {_text(key.public.id + own)}\n")
        return f"{self.text}\n{''.join(lines)}"

    @staticmethod
    def read(note: str) -> Checkpoint:
        """Return the checkpoint in a note, with signatures unchecked. Raises SourceError."""
        check_type("checkpoint", note, str, "a text, the signed note")
        _signatures(note)
        return _parsed(f"{note.rpartition(_END)[0]}\n")

    @staticmethod
    def opened(note: str, *keys: PublicKey) -> Checkpoint:
        """Return the checkpoint of a note that all these keys have signed.

        The log must have the name of one of them, and a rotation must be signed by the new key,
        too. Raises SourceError otherwise.
        """
        checkpoint = Checkpoint.read(note)
        check_each("keys", keys, PublicKey, "one or more PublicKey")
        needed = list(keys) if checkpoint.rotates_to is None else [*keys, checkpoint.rotates_to]
        made = _signatures(note)
        if not keys or len(made) > _MOST_SIGNATURES:
            raise SourceError("the checkpoint cannot be checked: give the log's public key")
        for key in needed:
            own = [each[_ID:] for name, each in made if (name, each[:_ID]) == (key.name, key.id)]
            if not any(key.signed(checkpoint.text, signature) for signature in own):
                raise SourceError(f"the checkpoint is not signed by {key}")
        if checkpoint.origin not in (key.name for key in keys):
            raise SourceError("the checkpoint is of a log whose name differs from the key's")
        return checkpoint


class Proof(msgspec.Struct, frozen=True):
    """Proves that one entry is in a log, as a file.

    It holds the entry's text, its index, the hashes, and a checkpoint.
    """

    entry: str
    index: int
    hashes: tuple[bytes, ...]
    note: str

    @property
    def text(self) -> str:
        hashes = "".join(f"{_text(each)}\n" for each in self.hashes)
        extra = _text(self.entry.encode())
        return f"{_PROOF}\nextra {extra}\nindex {self.index}\n{hashes}\n{self.note}"

    @staticmethod
    def parse(text: str) -> Proof:
        """Read a proof. Raises SourceError for anything else."""
        check_type("proof", text, str, "a text, as AuditLog.prove gives it")
        head, _, note = text.partition(_END)
        lines = head.split("\n")
        if len(lines) < 3 or lines[0] != _PROOF or not lines[1].startswith("extra "):
            raise SourceError("it is not a proof of an entry: `toolcrib audit prove` makes one")
        entry = _bytes(lines[1].removeprefix("extra "))
        index = lines[2].removeprefix("index ")
        if not lines[2].startswith("index ") or not _SIZE.fullmatch(index):
            raise SourceError("it is not a proof of an entry: `toolcrib audit prove` makes one")
        hashes = tuple(map(_bytes, lines[3:]))
        if any(len(each) != len(tree.EMPTY) for each in hashes):
            raise SourceError("the proof has a hash that is not valid")
        try:
            return Proof(entry.decode(), int(index), hashes, note)
        except UnicodeError:
            raise SourceError("the proof's entry is not text") from None


def verify_inclusion(proof: str, *keys: PublicKey) -> str:
    """Return the entry (JSON text: time, record, number) that a proof shows to be in the log.

    Nothing but the proof and the public key is needed. Raises SourceError if its checkpoint is not
    signed by that key, or if the entry is not in its tree.
    """
    given = Proof.parse(proof)
    checkpoint = Checkpoint.opened(given.note, *keys)
    leaf = sha256(b"\0" + given.entry.encode()).digest()
    root = tree.root_of_inclusion(leaf, given.index, checkpoint.size, given.hashes)
    if root != checkpoint.root:
        raise SourceError("the entry is not in the log of this checkpoint")
    return given.entry


class Checkpoints:
    """When checkpoints are signed, by which key, and where they go: for `AuditLog(checkpoints=…)`.

    A checkpoint is signed after `every` records, after `seconds` in which there were some, when no
    records arrive for a while, and when the log is closed; never for each record. `keep` is a
    folder, or a function called with the note: bring it to a place where the log's owner cannot
    change it. Signing and storing run in a separate thread and may take their time. No record waits
    for them. Checkpoints that become due in the meantime are combined into one, the last, and
    closing the log waits for it. Each log has its own `Checkpoints`.
    """

    def __init__(
        self,
        key: SigningKey | Path | str,
        keep: Callable[[str], object] | Path | str,
        *,
        every: int = 1_000,
        seconds: float = 60.0,
    ) -> None:
        check_type("key", key, SigningKey | Path | str, "a SigningKey, or the path of its file")
        if not callable(keep):
            check_type("keep", keep, Path | str, "a folder's path, or a function")
        own = getattr(type(keep), "__call__", None)  # noqa: B004  for an object that is callable
        if inspect.iscoroutinefunction(keep) or inspect.iscoroutinefunction(own):
            raise TypeError(_NOT_ASYNC)  # nobody would await it, and nothing would be stored
        check_type("every", every, int, "a number of records")
        check_type("seconds", seconds, float | int, "a number of seconds")
        if every < 1 or not seconds > 0:
            raise ToolcribError(
                "checkpoints are signed every `every` records or `seconds` seconds: give 1 or more"
            )
        self._key = key if isinstance(key, SigningKey) else SigningKey.load(key)
        self._keep = keep if callable(keep) else _in_folder(Path(keep).absolute())
        self._every, self._seconds = every, seconds
        self._last: Checkpoint | None = None
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Make new locks in a forked child, where another thread's lock would stay locked.

        What the parent has written, the parent signs.
        """
        self._lock = threading.Lock()  # not held while a note is signed or stored
        self._written = 0
        self._at = time.monotonic()
        self._unkept: Checkpoint | None = None
        self._missed = False
        self._keeper: threading.Thread | None = None

    def count(self, records: int) -> bool:
        """Count written records, and return whether it is time for a checkpoint."""
        with self._lock:
            self._written += records
            late = time.monotonic() - self._at >= self._seconds
            return self._written >= self._every or (late and self._written > 0)

    def sign(self, tree_roots: Callable[[int], tuple[int, bytes, bytes | None]]) -> None:
        """Have the log's present state signed by the keeper thread, if anything is new.

        `tree_roots(size)` returns its size and root, and the root that it had at an earlier size. A log
        does not sign what does not follow from its last checkpoint. No record waits for this, or
        fails.
        """
        with self._lock:
            if not self._written:
                return
            try:
                self._sign(tree_roots)
            except BaseException as error:  # noqa: BLE001  the records are stored
                self._fail(error)

    @property
    def keeping(self) -> bool:
        """Whether this thread is the one that signs and stores; `close` would wait for itself."""
        return threading.current_thread() is self._keeper

    def close(self, tree_roots: Callable[[int], tuple[int, bytes, bytes | None]]) -> None:
        """Sign what is new, or was signed and not stored, and wait until it is stored."""
        self._wait()
        self.sign(tree_roots)
        self._wait()

    def _wait(self) -> None:
        keeper = self._keeper
        if keeper is not None:
            keeper.join()

    def _fail(self, error: BaseException) -> None:
        _log.warning("no checkpoint was signed (%s)", _reason(error))
        self._written, self._at = 1, time.monotonic()  # try again later, not at each record

    def _sign(self, tree_roots: Callable[[int], tuple[int, bytes, bytes | None]]) -> None:
        last = self._last
        size, root, before = tree_roots(0 if last is None else last.size)
        if last is not None and before != last.root:
            raise SourceError("the log does not continue that of the last checkpoint: verify it")
        checkpoint = Checkpoint(self._key.public.name, size, root)
        if last is None or last.size < size or self._missed:
            self._unkept, self._missed = checkpoint, False
            if self._keeper is None:
                name = "toolcrib-checkpoint"
                keeper = threading.Thread(target=self._keep_all, name=name, daemon=True)
                keeper.start()
                self._keeper = keeper
        self._last, self._written, self._at = checkpoint, 0, time.monotonic()

    def _keep_all(self) -> None:
        """Sign the last checkpoint and have its note stored, until there is no newer one."""
        while True:
            with self._lock:
                checkpoint, self._unkept = self._unkept, None
                if checkpoint is None:
                    self._keeper = None
                    return
            try:
                kept = self._keep(checkpoint.signed(self._key))
                if inspect.isawaitable(kept):
                    if inspect.iscoroutine(kept):
                        kept.close()
                    raise ToolcribError(f"nothing was kept: {_NOT_ASYNC}")
            except BaseException as error:  # noqa: BLE001  somebody's key or callback
                with self._lock:
                    self._missed = True
                    self._fail(error)


def _reason(error: BaseException) -> str:
    return str(error) if isinstance(error, ToolcribError) else type(error).__name__


def _in_folder(folder: Path) -> Callable[[str], object]:
    """Return a function that stores one file per size in a folder.

    If two logs have checkpoints of the same size, both are stored.
    """

    def keep(note: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        size, root = note.split("\n")[1:3]
        name = folder / f"{int(size):012}.checkpoint"
        if name.exists() and name.read_bytes().split(b"\n")[1:3] != [size.encode(), root.encode()]:
            _log.warning("%s: another log's checkpoint is there: verify the log with it", name)
            name = name.with_suffix(f".{sha256(note.encode()).hexdigest()[:16]}.checkpoint")
        with replacing(name) as opened:
            opened.write(note.encode())

    return keep


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise SourceError("a log's name has no spaces and no '+', such as example.com/shop")


def _parsed(text: str) -> Checkpoint:
    lines = text.split("\n")
    more = lines[3:-1]
    if len(lines) > 3 and not lines[-1] and lines[0] and _SIZE.fullmatch(lines[1]):
        if len(more) > 1 or not all(each.startswith(_ROTATES) for each in more):
            raise SourceError("the checkpoint has a line that this toolcrib cannot read")
        rotates_to = PublicKey.parse(more[0].removeprefix(_ROTATES)) if more else None
        checkpoint = Checkpoint(lines[0], int(lines[1]), _bytes(lines[2]), rotates_to)
        if checkpoint.text == text and len(checkpoint.root) == len(tree.EMPTY):
            return checkpoint
    raise SourceError(
        "it is not a checkpoint, which has name, size and root of a log, and signatures"
    )


def _signatures(note: str) -> list[tuple[str, bytes]]:
    """Return key name, and key id with signature, for each signature line of a note.

    Raises SourceError for a malformed signature line, whoever has signed it.
    """
    lines = note.rpartition(_END)[2].split("\n")
    found = []
    for line in lines[:-1]:
        name, _, signature = line.removeprefix(_DASH).partition(" ")
        made = _bytes(signature) if line.startswith(_DASH) and _NAME.fullmatch(name) else b""
        if len(made) <= _ID:
            raise SourceError("the checkpoint has a line that is not a signature")
        found.append((name, made))
    if lines[-1]:
        raise SourceError("the checkpoint was cut: its last line has no end")
    return found


def _key_bytes(text: str) -> bytes:
    key = _bytes(text)
    if len(key) != 33 or key[:1] != _ED25519:
        raise SourceError("it is not an Ed25519 key")
    return key[1:]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    """Decode base64 exactly as RFC 4648 writes it: no spare bit is set, no padding is left out."""
    with suppress(binascii.Error, ValueError):
        data = base64.b64decode(text, validate=True)
        if _text(data) == text:
            return data
    raise SourceError("it is not written in base64")


def _ed25519() -> tuple[Any, type[Exception]]:
    """Return the library's module. Raises MissingExtraError without it."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise MissingExtraError("checkpoints", "a signed checkpoint") from None
    return ed25519, InvalidSignature
