"""The chain as its definition says, computed here by other means."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from audit.audit_helpers import record, write_calls
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row

from toolcrib.audit import AuditFilter, AuditLog, Fault, Head, verify_jsonl
from toolcrib.audit.entry import Seal, text_and_record
from toolcrib.audit.entry import line as line_of
from toolcrib.values.json import canonical_json, to_plain

KEYS = [None, "a key of sixteen bytes", b"\0\xff" * 8]


@pytest.mark.parametrize("key", KEYS)
async def test_each_line_without_its_hash_is_what_was_hashed(url: str, key: Any) -> None:
    secret = key.encode() if isinstance(key, str) else key
    async with AuditLog(url, key=key) as log:
        await write_calls(log, range(3))
        lines = [line async for line in log.export()]
    previous = "0" * 64
    for number, line in enumerate(lines[:-1]):
        assert line.endswith("}\n")
        entry = json.loads(line)
        assert canonical_json(entry) == line.rstrip("\n")
        own = entry.pop("hash")
        assert own == sealed(entry, secret)
        assert (entry["seq"], entry["previous"]) == (number, previous)
        previous = own
    end = json.loads(lines[-1])
    seal = end.pop("seal")
    assert seal == sealed(end, secret)
    assert (end["seq"], end["hash"], end["format"]) == (6, previous, 2)
    genesis = json.loads(lines[0])["record"]
    assert (genesis["status"], genesis["format"]) == ("genesis", 2)
    assert genesis["log"] == end["log"]


def sealed(value: Any, secret: bytes | None) -> str:
    text = canonical_json(value).encode()
    if secret is None:
        return hashlib.sha256(text).hexdigest()
    return hmac.new(secret, text, "sha256").hexdigest()


async def test_a_key_from_the_environment_is_its_bytes() -> None:
    lines = await exported(os.fsdecode(b"\xff\xc3\xa9" * 6))
    assert verify_jsonl(lines, key=b"\xff\xc3\xa9" * 6).ok


async def exported(key: str | None = None) -> list[str]:
    async with AuditLog("sqlite://", key=key) as log:
        await write_calls(log, range(5))
        return [line async for line in log.export()]


@pytest.mark.parametrize("key", [None, "a key of sixteen bytes"])
async def test_an_export_is_checked_without_its_database(key: str | None) -> None:
    lines = await exported(key)
    found = verify_jsonl(lines, key=key)
    assert (found.ok, found.checked, found.torn) == (True, 10, False)
    assert found.head.seq == 10
    assert verify_jsonl(lines, key=key, head=found.head).ok
    assert verify_jsonl([], key=key, filtered=True).ok
    assert found.sealed


@pytest.mark.parametrize("cut", [1, 20, 300])
async def test_one_cut_line_is_forgiven_at_the_end_only(cut: int) -> None:
    lines = await exported()
    for end, checked in ((-1, 10), (-2, 9)):
        found = verify_jsonl([*lines[:end], lines[end][:-cut].rstrip("}")])
        assert (found.ok, found.checked, found.torn) == (True, checked, True)
        assert not found.sealed
    found = verify_jsonl([*lines[:5], lines[5][:-cut].rstrip("}"), *lines[6:]])
    assert (found.fault, found.checked) == (Fault(5, "the line is not an entry"), 4)


def changed(lines: list[str], line: int, /, **members: Any) -> list[str]:
    entry = json.loads(lines[line]) | members
    line %= len(lines)
    return [*lines[:line], canonical_json(entry) + "\n", *lines[line + 1 :]]


TAMPERED: list[tuple[str, Any, int | None]] = [
    ("erased", lambda _: [], None),
    ("emptied", lambda lines: [lines[0], lines[-1]], 1),
    ("emptied to the genesis", lambda lines: lines[:1], 1),
    ("genesis removed", lambda lines: lines[1:], 1),
    ("first removed", lambda lines: [lines[0], *lines[2:]], 2),
    ("middle removed", lambda lines: lines[:5] + lines[6:], 6),
    ("last removed", lambda lines: [*lines[:-2], lines[-1]], 10),
    ("tail removed", lambda lines: lines[:-4], 8),
    ("end removed", lambda lines: lines[:-1], 11),
    ("end twice", lambda lines: [*lines, lines[-1]], 11),
    ("end too early", lambda lines: [*lines[:-2], *lines[:-3:-1]], 10),
    ("end changed", lambda lines: changed(lines, -1, seq=9), None),
    ("index changed", lambda lines: changed(lines, -1, keys="0" * 32), None),
    ("swapped", lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]], 5),
    ("twice", lambda lines: [*lines[:4], lines[3], *lines[4:]], 3),
    ("record", lambda lines: changed(lines, 3, record={"id": "call_1", "name": "pay"}), 3),
    ("genesis", lambda lines: changed(lines, 0, record={"id": "call_1", "name": "pay"}), 0),
    ("time", lambda lines: changed(lines, 3, at=1.5), 3),
    ("hash", lambda lines: changed(lines, 3, hash="0" * 64), 3),
    ("previous", lambda lines: changed(lines, 3, previous="0" * 64), 3),
    ("number", lambda lines: changed(lines, 3, seq=-1), 3),
    ("a member more", lambda lines: changed(lines, 3, note="!"), 3),
]


@each_row(("name", "tamper", "seq"), TAMPERED, ids=[t[0] for t in TAMPERED])
async def test_a_changed_export_is_found(name: str, tamper: Any, seq: int | None) -> None:
    found = verify_jsonl(tamper(await exported()))
    assert found.fault is not None, name
    assert found.fault.seq == seq


async def test_a_filtered_export_is_checked_entry_by_entry() -> None:
    async with AuditLog("sqlite://", key="k" * 16) as log:
        await write_calls(log, range(5))
        lines = [line async for line in log.export(AuditFilter(status="completed"))]
    assert not verify_jsonl(lines, key="k" * 16).ok
    assert verify_jsonl(lines, key="k" * 16, filtered=True).ok
    assert not verify_jsonl(changed(lines, 2, at=1.5), key="k" * 16, filtered=True).ok
    assert not verify_jsonl(lines[::-1], key="k" * 16, filtered=True).ok
    assert not verify_jsonl(lines, key="another", filtered=True).ok


@each_row(
    "garbage",
    ["", "null", "[]", "{", '{"seq":1}', "\0", "é" * 9, "1" * 9999, "[" * 99_999, '{"at":' * 9999],
)
def test_garbage_is_a_finding(garbage: str) -> None:
    assert verify_jsonl([garbage, garbage]).fault is not None
    assert verify_jsonl([garbage + "\n"]).fault == Fault(1, "the line is not an entry")


@each_row("garbage", ["null", '{"seq":1}', "\0", "root:x:0:0", "[" * 99_999])
def test_what_no_cut_can_leave_is_a_finding(garbage: str) -> None:
    assert verify_jsonl([garbage]).fault == Fault(1, "the line is not an entry")


CHANGED_ENDS: list[Callable[[str], str]] = [
    lambda line: line.replace('"first":', '"first": '),
    lambda line: '{"x":1,' + line[1:],
    lambda line: line[:-1] + "x",
    lambda line: line[:-2] + "\n",
    lambda line: line[:-1] + " " + "\n",
    lambda line: line.replace("{", "[", 1),
    lambda _: "\n",
]


@each_row("change", CHANGED_ENDS)
async def test_a_changed_last_line_was_not_cut(change: Callable[[str], str]) -> None:
    *before, last = await exported()
    found = verify_jsonl([*before, change(last)])
    assert (found.fault, found.torn) == (Fault(11, "the line is not an entry"), False)


async def test_a_last_line_may_be_cut_anywhere() -> None:
    *before, last = await exported()
    for end in range(len(last) - 1):
        found = verify_jsonl([*before, last[:end]])
        assert (found.ok, found.checked, found.torn) == (True, 10, True), end
        assert not found.sealed
    assert verify_jsonl([*before, last[:-1]]).sealed


async def test_a_member_twice_is_found() -> None:
    """Readers differ in which of the two they take."""
    lines = await exported()
    twice = lines[3].replace('"record":', '"record":{"id":"call_9"},"record":', 1)
    found = verify_jsonl([*lines[:3], twice, *lines[4:]])
    assert found.fault == Fault(3, "the line is not an entry")


async def test_a_record_nested_too_deeply_is_a_finding() -> None:
    lines = await exported()
    deep = '{"result":' + "[" * 100_000 + "]" * 100_000 + "}"
    head = Seal(None).entry(Head(0, "0" * 64), 1.5, deep)
    assert verify_jsonl([line_of(head, 1.5, "0" * 64, deep), *lines[1:]]).fault is not None


async def test_a_kept_head_shows_a_chain_that_was_cut() -> None:
    lines = await exported()
    head = verify_jsonl(lines).head
    cut = [*lines[:-2], lines[-2][:100]]
    assert verify_jsonl(cut).ok
    found = verify_jsonl(cut, head=head)
    assert found.fault == Fault(10, "the entry of the head that was kept is missing")
    found = verify_jsonl(lines, head=Head(4, "f" * 64))
    assert found.fault == Fault(4, "the entry does not have the hash of the head that was kept")
    assert verify_jsonl(lines, head=Head(0, "0" * 64)).ok


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize(
    "held",
    [b'{"a":1.0}', b'{"b":1e5}', b'{"\\u00fc":null, "a":1}', b'{"b":null,"a":2}'],
)
def test_what_is_held_as_another_text_is_made_canonical(held: bytes) -> None:
    """Nobody makes such a record but by hand."""
    one = msgspec.structs.replace(record(1), result_json=msgspec.Raw(held))
    assert text_and_record(one)[0] == canonical_json(to_plain(one))


@given(JSON, st.floats(0, 1e17), st.sampled_from(["1.0,", ":1e5}", "null", "3e7", "\x7f\0\n"]))
def test_the_quick_text_is_the_canonical_one(result: Any, started_at: float, name: str) -> None:
    one = record(1, result=result, started_at=started_at, name=name)
    assert text_and_record(one)[0] == canonical_json(to_plain(one))
    assert msgspec.json.decode(text_and_record(one)[0], type=type(one)) == one
