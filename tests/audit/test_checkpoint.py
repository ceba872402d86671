"""What is kept elsewhere shows every later change; a proof of one entry needs no log."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sqlite3
import stat
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from types import SimpleNamespace
from typing import Any

import pytest
from audit.audit_helpers import opened, record, write_calls
from audit.test_tamper import recompute
from children import run
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample
from waiting import until

from toolcrib import run_sync
from toolcrib.audit import (
    AuditLog,
    Checkpoint,
    Checkpoints,
    PublicKey,
    SigningKey,
    tree,
    verify_inclusion,
)
from toolcrib.audit.checkpoint import Proof
from toolcrib.errors import SourceError, ToolcribError

NAME = "example.com/shop"
KEY = "a key of sixteen bytes"
BASE64 = f"{ascii_uppercase}{ascii_lowercase}{digits}+/"


def signing(name: str = NAME, seed: bytes = b"s" * 32) -> SigningKey:
    """A key of one's own: only what signs is given."""
    private = Ed25519PrivateKey.from_private_bytes(seed)
    return SigningKey(PublicKey(name, private.public_key().public_bytes_raw()), private.sign)


def merkle(leaves: list[bytes]) -> bytes:
    """RFC 9162, 2.1.1, as it stands there."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return sha256(b"\1" + merkle(leaves[:split]) + merkle(leaves[split:])).digest()


LEAVES = [sha256(bytes([n % 256, n // 256])).digest() for n in range(600)]


@cache
def root_of(size: int) -> bytes:
    """Of a tree of the first leaves."""
    return merkle(LEAVES[:size])


@given(st.data())
@settings(max_examples=sample(60))
def test_the_tree_is_that_of_the_rfc_however_it_grew(data: st.DataObject) -> None:
    """Its root, now and when it was smaller, and each proof of inclusion; nothing else is proved."""
    size = data.draw(st.integers(1, len(LEAVES)))
    stored: dict[tree.Place, bytes] = {}
    grown = tree.Tree(0, lambda places: {p: stored[p] for p in places if p in stored})
    while grown.size < size:
        grown.extend(LEAVES[grown.size : min(size, grown.size + data.draw(st.integers(1, 80)))])
        assert grown.root() == root_of(grown.size)
        stored |= grown.changed()
    assert len(stored) == tree.count_of_tiles(size)
    old = data.draw(st.integers(1, size))
    assert grown.root_at(old) == root_of(old)
    index = data.draw(st.integers(0, size - 1))
    proof = grown.inclusion(index)
    assert tree.root_of_inclusion(LEAVES[index], index, size, proof) == root_of(size)
    other = data.draw(st.integers(0, size))
    for wrong in (
        tree.root_of_inclusion(LEAVES[(index + 1) % 600], index, size, proof),
        tree.root_of_inclusion(LEAVES[index], other, size, proof) if other != index else None,
        tree.root_of_inclusion(LEAVES[index], index, size, [*proof, LEAVES[0]]),
        tree.root_of_inclusion(LEAVES[index], index, size, proof[:-1]) if proof else None,
    ):
        assert wrong != root_of(size)


def test_a_checkpoint_of_the_specification_is_read() -> None:
    """The example of https://c2sp.org/tlog-checkpoint; its own signature is of a key nobody gave."""
    note = (
        "example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
        "— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/"
        "Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
    )
    read = Checkpoint.read(note)
    assert (read.origin, read.size) == ("example.com/behind-the-sofa", 20_852_163)
    assert read.text == note.partition("\n\n")[0] + "\n"
    with pytest.raises(SourceError, match="not signed by"):
        Checkpoint.opened(note, signing("example.com/behind-the-sofa").public)


def test_the_public_key_of_the_go_library_is_read() -> None:
    """From golang.org/x/mod/sumdb/note: its key and the note that it signed."""
    key = PublicKey.parse("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    text = (
        "If you think cryptography is the answer to your problem,\n"
        "then you don't know what your problem is.\n"
    )
    signature = "".join(
        (
            "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZ",
            "SNXgKvqfqdngotpRZb6KE6RyyBwJnAM=",
        )
    )
    assert key.id.hex() == "c74f20a3"
    assert PublicKey.parse(str(key)) == key
    signed = b64decode(signature)
    assert signed[:4] == key.id
    assert key.signed(text, signed[4:])
    assert not key.signed(text + "x", signed[4:])


async def log_of(path: Path, calls: int = 20) -> tuple[str, Checkpoint]:
    """A keyed log, and a checkpoint that was kept when it had `calls`."""
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        await write_calls(log, range(calls))
        note = await log.checkpoint(signing())
        await write_calls(log, range(100, 103))
    return note, Checkpoint.opened(note, signing().public)


async def test_a_later_change_is_found_whoever_made_it(tmp_path: Path) -> None:
    """By somebody who has the log's key, and makes chain, index, tree and seals anew."""
    path = tmp_path / "crib.db"
    _, kept = await log_of(path)
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        assert (await log.verify(checkpoint=kept)).sealed
    whole = path.read_bytes()
    changes = [
        ("UPDATE audit_entries SET record = replace(record, '1.5', '2.5') WHERE seq = 4", "begin"),
        ("DELETE FROM audit_entries WHERE seq = 7", "begin"),
        ("UPDATE audit_entries SET at = at + 1 WHERE seq = 0", "begin"),
        ("DELETE FROM audit_entries WHERE seq > 30", "gone"),
        ("DELETE FROM audit_entries WHERE seq > 0", "gone"),
    ]
    for sql, told in changes:
        path.write_bytes(whole)
        recompute(path, KEY, partial(_execute, sql))
        async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
            assert (await log.verify()).ok, sql  # the key alone does not show it
            fault = (await log.verify(checkpoint=kept)).fault
            assert fault is not None, sql
            assert told in fault.what


def _execute(sql: str, connection: sqlite3.Connection) -> object:
    return connection.execute(sql)


async def test_an_older_copy_put_back_is_found(tmp_path: Path) -> None:
    path = tmp_path / "crib.db"
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        await write_calls(log, range(3))
    older = path.read_bytes()
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        await write_calls(log, range(3, 5))
        kept = Checkpoint.read(await log.checkpoint(signing()))
    path.write_bytes(older)
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        assert (await log.verify()).ok
        found = await log.verify(checkpoint=kept)
        assert found.fault is not None
        assert "entries are gone" in found.fault.what
        with pytest.raises(SourceError, match="does not continue that of the earlier checkpoint"):
            await log.checkpoint(signing(), after=kept.signed(signing()))


async def test_what_was_pruned_since_is_still_what_was_signed(tmp_path: Path) -> None:
    path = tmp_path / "crib.db"
    note, kept = await log_of(path)
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        at = (await log.entries())[25].at
        assert await log.prune(before=at) == 25
        assert (await log.verify(checkpoint=kept)).sealed
        later = await log.checkpoint(signing(), after=note)
        assert Checkpoint.read(later).size > kept.size
        proof = await log.prove(30, note)
        assert json.loads(verify_inclusion(proof, signing().public))["seq"] == 30
        with pytest.raises(SourceError, match="no entry 3 "):
            await log.prove(3, note)
    with opened(path) as connection:
        connection.execute(
            "UPDATE audit_tiles SET hashes = (SELECT hashes FROM audit_tiles WHERE place = '0/1')"
            " WHERE place = '0/0'"
        )
    async with AuditLog(f"sqlite:///{path}", key=KEY) as log:
        assert not (await log.verify()).ok


async def test_one_entry_is_proved_without_the_log(url: str) -> None:
    async with AuditLog(url, key=KEY) as log:
        await write_calls(log, range(20))
        note = await log.checkpoint(signing())
        await write_calls(log, range(30, 33))
        entry = await log.entry(7)
        assert entry is not None
        proof = await log.prove(7, note)
        told = json.loads(verify_inclusion(proof, signing().public))
        assert (told["seq"], told["at"]) == (7, entry.at)
        assert told["record"]["id"] == entry.record.id
        with pytest.raises(SourceError, match="came after the checkpoint"):
            await log.prove(45, note)
    assert [at for at, other in one_character_else(proof) if proves(other)] == []


def proves(proof: str) -> bool:
    try:
        verify_inclusion(proof, signing().public)
    except SourceError:
        return False
    return True


def one_character_else(text: str) -> Iterator[tuple[int, str]]:
    """Each base64 character next to padding or a line's end as every other; the rest as some others."""
    chance = random.Random(20_261_122)  # noqa: S311  seeded
    for at, own in enumerate(text):
        last = own in BASE64 and text[at + 1 : at + 2] in ("=", "\n")
        for other in BASE64 if last else chance.sample("AZaz09+/=\n ", 2):
            if other != own:
                yield at, text[:at] + other + text[at + 1 :]
    yield from ((at, text[:at]) for at in range(len(text)))
    yield from ((len(text), text + more) for more in ("\n", " ", "—", "— \n", "— x \n", "\n\n"))


def spare_bits(text: str) -> str:
    """The same bytes in base64 that nobody writes: a bit that the last digit has left over is 1."""
    body = text.rstrip("=")
    assert body != text
    return f"{body[:-1]}{BASE64[BASE64.index(body[-1]) + 1]}{text[len(body) :]}"


def test_base64_has_one_spelling() -> None:
    key = signing()
    note = Checkpoint(NAME, 1, b"r" * 32, signing(seed=b"n" * 32).public).signed(
        key, signing(seed=b"n" * 32)
    )
    lines = note.split("\n")
    for number, before in ((2, ""), (5, f"— {NAME} "), (6, f"— {NAME} ")):
        changed = before + spare_bits(lines[number].removeprefix(before))
        other = "\n".join([*lines[:number], changed, *lines[number + 1 :]])
        for read in (Checkpoint.read, lambda text: Checkpoint.opened(text, key.public)):
            with pytest.raises(SourceError):
                read(other)
    bare = Checkpoint(NAME, 1, b"r" * 32).signed(key)
    stranger = signing("example.com/other").sign(b"x")
    for line in ("x", "—", f"— {NAME}", "— a+b AAAA", f"— other {spare_bits('AAAAAA==')}"):
        with pytest.raises(SourceError):
            Checkpoint.opened(f"{bare}{line}\n", key.public)
    unknown = b64encode(b"four" + stranger).decode()
    assert Checkpoint.opened(f"{bare}— other {unknown}\n", key.public).size == 1


def test_a_key_has_one_spelling() -> None:
    public = str(signing().public)
    for at in range(len(public)):
        for other in "AZaz09+/= ":
            changed = public[:at] + other + public[at + 1 :]
            if changed.strip() != public:
                with pytest.raises(SourceError):
                    PublicKey.parse(changed)


async def test_a_hash_has_one_text() -> None:
    """Base64 of 32 bytes ends with two bits that decoding drops: no other text may stand for it."""
    async with AuditLog("sqlite://") as log:
        await write_calls(log, range(20))
        proof = await log.prove(7, await log.checkpoint(signing()))
    hashes = [line for line in proof.partition("\n\n")[0].splitlines() if len(line) == 44]
    assert hashes
    for line in hashes:
        same = line[:-2] + chr(ord(line[-2]) + 1) + "="
        assert b64decode(same) == b64decode(line)
        with pytest.raises(SourceError, match="not written in base64"):
            verify_inclusion(proof.replace(line, same), signing().public)


def test_nothing_is_believed_of_another_key() -> None:
    note = Checkpoint(NAME, 1, b"r" * 32).signed(signing())
    assert Checkpoint.opened(note, signing().public).size == 1
    for key in (signing(seed=b"x" * 32), signing("example.com/other")):
        with pytest.raises(SourceError, match="not signed by"):
            Checkpoint.opened(note, key.public)
    other = Checkpoint("example.com/other", 1, b"r" * 32).signed(signing())
    with pytest.raises(SourceError, match="whose name differs"):
        Checkpoint.opened(other, signing().public)
    with pytest.raises(SourceError, match="give the log's public key"):
        Checkpoint.opened(note)
    for changed in (note.replace("\n1\n", "\n2\n"), note.replace("\n1\n", "\n01\n"), note[1:], ""):
        with pytest.raises(SourceError):
            Checkpoint.opened(changed, signing().public)


async def test_a_rotation_is_signed_by_both(url: str) -> None:
    old, new = signing(), signing(seed=b"n" * 32)
    async with AuditLog(url) as log:
        await write_calls(log, range(2))
        note = await log.checkpoint(old, rotates_to=new)
    assert Checkpoint.opened(note, old.public).rotates_to == new.public
    lines = note.splitlines(keepends=True)
    for missing in (lines[:-1], [*lines[:-2], lines[-1]]):
        with pytest.raises(SourceError, match="not signed by"):
            Checkpoint.opened("".join(missing), old.public)
    thief = Checkpoint(NAME, 9, b"r" * 32, signing(seed=b"t" * 32).public)
    with pytest.raises(SourceError, match="not signed by"):
        Checkpoint.opened(thief.signed(signing(seed=b"t" * 32)), old.public)


def test_a_key_is_its_owners_alone(tmp_path: Path) -> None:
    file = tmp_path / "shop.key"
    made = SigningKey.generate(NAME, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert SigningKey.load(file).public == made.public
    secret = file.read_text(encoding="utf-8").strip().split("+", 4)[4]
    assert secret not in repr(made)
    with pytest.raises(SourceError, match="exists"):
        SigningKey.generate(NAME, file)
    file.chmod(0o640)
    with pytest.raises(SourceError, match="chmod 600"):
        SigningKey.load(file)
    for text in ("", "PRIVATE+KEY+x+00000000+AAAA", str(made.public)):
        file.write_text(text, encoding="utf-8")
        file.chmod(0o600)
        with pytest.raises(SourceError):
            SigningKey.load(file)
    with pytest.raises(SourceError, match="no spaces"):
        SigningKey.generate("a shop", tmp_path / "other.key")


async def test_checkpoints_are_signed_every_so_often_and_on_close(url: str) -> None:
    kept: list[str] = []
    given = Checkpoints(signing(), kept.append, every=10, seconds=3600)
    async with AuditLog(url, key=KEY, checkpoints=given) as log:
        await write_calls(log, range(4))
        assert kept == []
        for calls, signed in ((range(4, 5), 1), (range(5, 10), 2)):
            await write_calls(log, calls)
            await until(lambda n=signed: len(kept) == n)  # type: ignore[misc]
        await log.write(record(50))
    sizes = [Checkpoint.opened(note, signing().public).size for note in kept]
    assert sizes == [11, 21, 22]
    if url != "sqlite://":
        async with AuditLog(url, key=KEY) as log:
            for note in kept:
                assert (await log.verify(checkpoint=Checkpoint.read(note))).ok


async def test_a_checkpoint_is_signed_after_seconds_in_which_there_were_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr("toolcrib.audit.checkpoint.time", SimpleNamespace(monotonic=lambda: now[0]))
    kept: list[str] = []
    given = Checkpoints(signing(), kept.append, every=10_000, seconds=60)
    async with AuditLog("sqlite://", key=KEY, checkpoints=given) as log:
        for after, signed in ((0, 0), (59, 0), (2, 1), (59, 1), (2, 2)):
            now[0] += after
            await log.write(record(int(now[0])))
            await until(lambda n=signed: len(kept) >= n)  # type: ignore[misc]
        # the number of entries at each: the log's own first one, and the records
        assert [Checkpoint.opened(note, signing().public).size for note in kept] == [4, 6]


async def test_a_checkpoint_is_signed_when_nothing_comes_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcrib.audit.append._IDLE_SECONDS", 0.05)
    kept: list[str] = []
    given = Checkpoints(signing(), kept.append, every=10_000, seconds=3600)
    async with AuditLog("sqlite://", key=KEY, checkpoints=given) as log:
        await log.write(record(1))
        await until(lambda: bool(kept))
    assert len(kept) == 1, "nothing was new when it was closed"


@pytest.mark.parametrize("raised", [ValueError, asyncio.CancelledError, SystemExit])
async def test_no_record_fails_with_whoever_keeps_a_checkpoint(
    tmp_path: Path, raised: type[BaseException]
) -> None:
    def keep(_note: str) -> None:
        raise raised

    given = Checkpoints(signing(), keep, every=1)
    async with AuditLog(f"sqlite:///{tmp_path}/crib.db", checkpoints=given) as log:
        assert await log.begin(record(1, "started")) is None
        await log.write(record(1))
        assert (await log.verify()).checked == 2


async def test_no_record_waits_for_whoever_keeps_a_checkpoint(url: str) -> None:
    """It is given one note at a time, the last that there is, and closing the log waits for it."""
    kept, at_once, goes_on = list[str](), list[int](), threading.Event()

    def keep(note: str) -> None:
        at_once.append(1)
        assert len(at_once) == 1
        assert goes_on.wait(30)
        kept.append(note)
        at_once.pop()

    log = AuditLog(url, key=KEY, checkpoints=Checkpoints(signing(), keep, every=2))
    for n in range(5):
        await asyncio.wait_for(write_calls(log, range(n, n + 1)), 10)
        await until(lambda: bool(at_once))
    assert kept == []
    closing = asyncio.ensure_future(log.aclose())
    await asyncio.sleep(0.05)
    assert not closing.done()
    goes_on.set()
    await closing
    sizes = [Checkpoint.opened(note, signing().public).size for note in kept]
    assert sizes == [3, 11]


@pytest.mark.parametrize("more", [0, 1])
async def test_what_was_not_kept_is_signed_again(more: int, url: str) -> None:
    kept, failed = list[str](), threading.Event()

    def keep(note: str) -> None:
        if not failed.is_set():
            failed.set()
            raise OSError
        kept.append(note)

    async with AuditLog(url, checkpoints=Checkpoints(signing(), keep, every=2)) as log:
        await write_calls(log, range(1))
        await until(failed.is_set)
        await write_calls(log, range(1, 1 + more))
    assert Checkpoint.opened(kept[-1], signing().public).size == 3 + 2 * more


def test_who_keeps_checkpoints_is_not_async() -> None:
    """Nobody would await it, and nothing would be kept."""

    async def keep(_note: str) -> None:
        raise AssertionError

    class Keeper:
        async def __call__(self, _note: str) -> None:
            raise AssertionError

    for one in (keep, Keeper(), partial(keep)):
        with pytest.raises(TypeError, match="not async"):
            Checkpoints(signing(), one)


async def test_what_has_to_be_awaited_is_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[str] = []

    async def keep(note: str) -> None:
        kept.append(note)

    def begins(note: str) -> object:
        return keep(note)

    given = Checkpoints(signing(), begins, every=1)
    async with AuditLog(f"sqlite:///{tmp_path}/crib.db", checkpoints=given) as log:
        await write_calls(log, range(2))
    assert kept == []
    assert (
        "nothing was kept: keep is a folder's path, or a function that is not async" in caplog.text
    )


async def test_who_keeps_checkpoints_does_not_close_the_log_and_wait_for_itself(
    tmp_path: Path,
) -> None:
    raised: list[str] = []

    def keep(_note: str) -> None:
        try:
            run_sync(log.aclose())
        except ToolcribError as error:
            raised.append(str(error))

    log = AuditLog(
        f"sqlite:///{tmp_path}/crib.db", checkpoints=Checkpoints(signing(), keep, every=1)
    )
    async with asyncio.timeout(10):
        await write_calls(log, range(2))
        await log.aclose()
    assert set(raised) == {"a function that keeps the checkpoints of a log cannot close that log"}


async def test_in_a_folder_each_is_a_file_of_its_owners(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    given = Checkpoints(SigningKey.generate(NAME, tmp_path / "k"), folder, every=2)
    async with AuditLog(f"sqlite:///{tmp_path}/crib.db", checkpoints=given) as log:
        await write_calls(log, range(2))
    files = sorted(folder.iterdir())
    names = [file.name for file in files]
    assert names[-1] == "000000000005.checkpoint"
    assert names[:-1] in ([], ["000000000003.checkpoint"])  # it was due while the log grew
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


async def test_no_checkpoint_is_written_through_a_link(tmp_path: Path) -> None:
    folder, precious = tmp_path / "kept", tmp_path / "precious"
    folder.mkdir()
    precious.write_text("as it was", encoding="utf-8")
    (folder / f".{3:012}.{os.getpid()}.part").symlink_to(precious)
    given = Checkpoints(SigningKey.generate(NAME, tmp_path / "k"), folder, every=2)
    async with AuditLog(f"sqlite:///{tmp_path}/crib.db", checkpoints=given) as log:
        await write_calls(log, range(1))
    assert precious.read_text(encoding="utf-8") == "as it was"
    assert not (folder / f"{3:012}.checkpoint").is_symlink()
    assert len(list(folder.glob("*.checkpoint"))) == 1


async def test_a_folder_keeps_what_shows_that_a_log_was_put_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, folder = tmp_path / "crib.db", tmp_path / "kept"

    async def written(number: int) -> None:
        async with AuditLog(f"sqlite:///{path}", checkpoints=Checkpoints(signing(), folder)) as log:
            await log.write(record(number))

    await written(1)
    older = path.read_bytes()
    await written(2)
    signed = (folder / "000000000003.checkpoint").read_text()
    path.write_bytes(older)
    await written(3)
    assert (folder / "000000000003.checkpoint").read_text() == signed
    assert len(list(folder.iterdir())) == 3
    assert "another log's checkpoint" in caplog.text
    async with AuditLog(f"sqlite:///{path}") as log:
        kept = Checkpoint.opened(signed, signing().public)
        assert not (await log.verify(checkpoint=kept)).ok


@each_row("given", [b"x", b"", "text", bytes(64), None])
async def test_a_note_that_nobody_could_check_is_not_given(given: Any) -> None:
    key = SigningKey(signing().public, lambda _text: given)
    async with AuditLog("sqlite://") as log:
        await log.write(record(1))
        with pytest.raises(SourceError, match="does not belong to"):
            await log.checkpoint(key)


@each_row("name", ["", "a b", "a+b", "a\nb", "a\u2028b", "\ud800"])
def test_what_is_no_name_names_no_key(name: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="a log's name"):
        SigningKey(PublicKey(name, signing().public.key), signing().sign)
    with pytest.raises(SourceError, match="a log's name"):
        SigningKey.generate(name, tmp_path / "k")


@pytest.mark.parametrize("number", [-1, 3, 2**63, 10**30])
async def test_what_is_no_entrys_number_is_not_proved(number: int, url: str) -> None:
    async with AuditLog(url) as log:
        await log.write(record(1))
        note = await log.checkpoint(signing())
        with pytest.raises(SourceError, match="there is no entry"):
            await log.prove(number, note)


async def test_a_log_that_was_put_back_is_not_signed_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, kept = tmp_path / "crib.db", list[str]()
    given = Checkpoints(signing(), kept.append, every=1)
    async with AuditLog(f"sqlite:///{path}", key=KEY, checkpoints=given) as log:
        await log.write(record(1))
        await until(lambda: len(kept) == 1)
        recompute(path, KEY, lambda c: c.execute("UPDATE audit_entries SET at = 5.5 WHERE seq = 1"))
        with pytest.raises(SourceError, match="not the one that was open"):
            await log.write(record(2))
    async with AuditLog(f"sqlite:///{path}", key=KEY, checkpoints=given) as log:
        await log.write(record(2))
        assert len(kept) == 1
    assert "does not continue that of the last checkpoint" in caplog.text


async def test_what_goes_wrong_with_a_checkpoint_fails_no_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(_note: str) -> None:
        raise OSError("canary")

    given = Checkpoints(signing(), full, every=1)
    async with AuditLog("sqlite://", checkpoints=given) as log:
        await log.write(record(1))
        await log.write(record(2))
        assert len(await log.entries()) == 2
    assert "no checkpoint was signed (OSError)" in caplog.text
    assert "canary" not in caplog.text


@pytest.mark.parametrize("given", [{"every": 0}, {"seconds": 0}, {"seconds": float("nan")}])
def test_never_is_not_how_often(given: dict[str, float]) -> None:
    with pytest.raises(ToolcribError, match="signed every"):
        Checkpoints(signing(), print, **given)  # type: ignore[arg-type]


WRITES = """
import asyncio, sys
sys.path[:0] = ["tests"]
from audit.audit_helpers import record
from audit.test_checkpoint import signing
from toolcrib.audit import AuditLog, Checkpoints

async def main(url, number):
    kept = []
    given = Checkpoints(signing(), kept.append, every=7)
    async with AuditLog(url, key="a key of sixteen bytes", checkpoints=given) as log:
        for at in range(30):
            await log.write(record(at, id=f"{number}-{at}", idempotency_key=f"{number}-{at}"))
    print("\\0".join(kept))

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
async def test_several_writers_feed_one_tree(url: str) -> None:
    """Each signs while the others write: every checkpoint is of the same log."""

    def notes(number: int) -> list[str]:
        done = run("-c", WRITES, url, str(number))
        assert done.returncode == 0, done.stderr
        return done.stdout.rstrip("\n").split("\0")

    found = await asyncio.gather(*(asyncio.to_thread(notes, number) for number in range(3)))
    kept = [
        Checkpoint.opened(f"{note.rstrip()}\n", signing().public) for each in found for note in each
    ]
    assert len(kept) >= 12
    assert len({one.size for one in kept}) > 3
    async with AuditLog(url, key=KEY) as log:
        for one in kept:
            assert (await log.verify(checkpoint=one)).sealed
        assert len(await log.entries()) == 90


def in_memory(size: int, place: int, own: bytes) -> tree.Tree:
    """A tree of that many entries, each a leaf of its number, but for `own` at its place."""

    def leaf(index: int) -> bytes:
        return own if index == place else sha256(index.to_bytes(8, "big")).digest()

    stored: dict[tree.Place, bytes] = {}
    grown = tree.Tree(0, lambda places: {p: stored[p] for p in places if p in stored})
    for first in range(0, size, 10_000):
        grown.extend([leaf(index) for index in range(first, min(first + 10_000, size))])
        stored |= grown.changed()
    return grown


@pytest.mark.exhaustive  # a million hashes
async def test_a_proof_among_a_million_is_short_and_checked_at_once() -> None:
    async with AuditLog("sqlite://", key=KEY) as log:
        await log.write(record(1))
        entry = Proof.parse(await log.prove(1, await log.checkpoint(signing()))).entry
    size, place = 1_000_000, 777_777
    grown = in_memory(size, place, sha256(b"\0" + entry.encode()).digest())
    hashes = grown.inclusion(place)
    assert len(hashes) <= 20
    note = Checkpoint(NAME, size, grown.root()).signed(signing())
    proof, seconds = Proof(entry, place, tuple(hashes), note).text, []
    for _ in range(5):
        began = time.perf_counter()
        assert verify_inclusion(proof, signing().public) == entry
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 0.01
    assert not proves(Proof(entry, place + 1, tuple(hashes), note).text)


@pytest.mark.parametrize(
    "hidden", ["\u202e", "\u2066", "\u200b", "\u200e", "\xad", "\u3164", "\ufe0f"]
)
def test_no_key_is_made_whose_name_shows_otherwise_and_an_existing_one_opens(
    tmp_path: Path, hidden: str
) -> None:
    name, file = f"example.com/{hidden}pohs", tmp_path / "x.key"
    with pytest.raises(SourceError, match="no invisible characters"):
        SigningKey.generate(name, file)
    assert not file.exists()
    visible = SigningKey.generate("example.com/shop", file).public
    own = PublicKey(name, visible.key)
    secret = file.read_text(encoding="utf-8").split("+", 4)[4].strip()
    file.write_text(f"PRIVATE+KEY+{name}+{own.id.hex()}+{secret}\n", encoding="utf-8")
    file.chmod(0o600)
    assert SigningKey.load(file).public == own == PublicKey.parse(str(own))
