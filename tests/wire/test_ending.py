"""How a reply ended: the first sign of a cut stays, and no call of a cut reply may run."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from rows import each_row

from toolcrib.values.message import FinishReason, Offer, ProviderState, Usage
from toolcrib.wire import ANTHROPIC, WIRES, Wire
from toolcrib.wire.calls import CallAssembler, Ending

WIRE = msgspec.structs.replace(
    ANTHROPIC,
    name="odd",
    natural_reasons=frozenset(("fine",)),
    finish_reasons={"full": "length", "no": "refusal", "used": "tool_calls"},
)
SPENT = Usage(1, 2, 3)

Seen = Callable[[Ending], object]


def ended(ending: Ending) -> None:
    ending.stop(ended=True)


def torn(ending: Ending) -> None:
    ending.torn = True


def not_ended(ending: Ending) -> None:
    ending.stop(ended=False)


TABLE: dict[str, tuple[list[Seen], FinishReason | None, str]] = {
    "nothing yet": ([], None, ""),
    "a word for the end": ([ended], None, ""),
    "no word for it": ([lambda e: e.stop(ended=False)], "incomplete", ""),
    "a reason is one": (
        [lambda e: e.take_reason("fine"), lambda e: e.stop(ended=False)],
        None,
        "fine",
    ),
    "half an event": (
        [lambda e: e.take_reason("fine"), torn, ended],
        "incomplete",
        "fine",
    ),
    "a cut, in any case": ([lambda e: e.take_reason("FULL"), ended], "length", "FULL"),
    "a refusal is a cut": ([lambda e: e.take_reason("no"), ended], "refusal", "no"),
    "of natural ends the last": (
        [lambda e: e.take_reason("used"), lambda e: e.take_reason("fine"), ended],
        None,
        "fine",
    ),
    "of cuts the first": (
        [
            lambda e: e.take_reason("fine"),
            lambda e: e.take_reason("full"),
            lambda e: e.take_reason("no"),
            ended,
        ],
        "length",
        "full",
    ),
    "a cut stays cut": (
        [lambda e: e.take_reason("full"), lambda e: e.take_reason("fine")],
        "length",
        "full",
    ),
    "a sign, then a reason": (
        [
            lambda e: e.take_sign("error"),
            lambda e: e.take_reason("full"),
            lambda e: e.take_reason("no"),
        ],
        "error",
        "full",
    ),
    "a natural sign is none": ([lambda e: e.take_sign("tool_calls")], None, ""),
    "another meaning": (
        [lambda e: e.take_reason("fine", "content_filter")],
        "content_filter",
        "fine",
    ),
    "what nobody has listed": ([lambda e: e.take_reason("new"), ended], "doubtful", "new"),
    "only the beginning of a long one": (
        [lambda e: e.take_reason("new" * 100_000)],
        "doubtful",
        ("new" * 334)[:1000],
    ),
    "a number": ([lambda e: e.take_reason(7)], "doubtful", "7"),
    "a natural word with detail": ([lambda e: e.take_reason("fine: but")], "doubtful", "fine: but"),
    "a call after a reason": (
        [lambda e: e.take_reason("fine"), lambda e: e.note_call(), not_ended],
        "incomplete",
        "fine",
    ),
    "a call before a reason": (
        [lambda e: e.note_call(), lambda e: e.take_reason("fine"), not_ended],
        None,
        "fine",
    ),
    "a voided reason, said again": (
        [
            lambda e: e.take_reason("fine"),
            lambda e: e.note_call(),
            lambda e: e.take_reason("fine"),
            not_ended,
        ],
        "incomplete",
        "fine",
    ),
    "a voided reason and the wire's own end": (
        [lambda e: e.take_reason("fine"), lambda e: e.note_call(), ended],
        None,
        "fine",
    ),
}


@each_row(("seen", "cut", "reason"), TABLE.values(), ids=TABLE)
def test_what_is_seen_of_the_end(seen: list[Seen], cut: FinishReason | None, reason: str) -> None:
    ending = Ending(WIRE, Offer())
    for sign in seen:
        sign(ending)
    assert (ending.cut, ending.reason) == (cut, reason)


REPLIES: dict[str, tuple[str, str | None, bool, FinishReason, bool]] = {
    "a call": ("fine", "{}", False, "tool_calls", True),
    "a call that was cut": ("full", "{}", False, "length", False),
    "half a call": ("fine", '{"a":', False, "length", False),
    "a call beside a refusal": ("fine", "{}", True, "tool_calls", True),
    "no call": ("used", None, False, "stop", True),
    "a refusal": ("fine", None, True, "refusal", True),
    "a refusal that was cut": ("full", None, True, "length", True),
}


@each_row(("reason", "arguments", "refused", "finish", "complete"), REPLIES.values(), ids=REPLIES)
def test_the_reply(
    reason: str, arguments: str | None, refused: bool, finish: FinishReason, complete: bool
) -> None:
    ending, assembler = Ending(WIRE, Offer()), CallAssembler(Offer(), "c")
    if arguments is not None:
        assembler.take_whole("id", "f", arguments)
    ending.take_reason(reason)
    calls = ending.calls(assembler)
    reply = ending.reply(["a", "\ud83d", "\ude00"], calls, SPENT, raw={"r": 1}, refused=refused)
    assert (reply.finish, reply.provider_finish, reply.text) == (finish, reason, "a😀")
    assert (reply.usage, reply.raw, reply.message.provider_state) == (SPENT, {"r": 1}, None)
    assert all(call.complete is complete for call in reply.tool_calls)
    assert len(reply.tool_calls) == (arguments is not None)


@pytest.mark.parametrize(("state", "kept"), [([], None), ({}, None), ([1], [1])])
def test_what_has_to_go_back_is_kept_under_the_name_of_the_wire(
    state: object, kept: object
) -> None:
    reply = Ending(WIRE, Offer()).reply([], (), SPENT, raw=None, state=state)
    assert reply.provider_finish is None
    assert reply.message.provider_state == (None if kept is None else ProviderState("odd", kept))


@each_row("wire", WIRES.values(), ids=WIRES)
def test_what_a_wire_does_not_list_is_doubtful(wire: Wire) -> None:
    ending = Ending(wire, Offer())
    for word in ("never heard of", "canceled", "server_error", "truncated", "stopped"):
        assert ending.meaning(word) == "doubtful"
    assert all(ending.meaning(r.upper()) == meaning for r, meaning in wire.finish_reasons.items())
    assert all(ending.meaning(r.upper()) == "stop" for r in wire.natural_reasons)
    assert wire.natural_reasons.isdisjoint(wire.finish_reasons)


def test_streams_of_servers_that_always_send_done_are_cut_without_it() -> None:
    azure = (f"x.openai.azure.{cloud}" for cloud in ("com", "us", "cn"))
    mistral = ("api.mistral.ai", "codestral.mistral.ai")
    for host in ("api.openai.com", "openrouter.ai", *azure, *mistral):
        ending = Ending(WIRES["openai-chat"].at(host), Offer())
        ending.take_reason("stop")
        ending.stop(ended=False)
        assert ending.cut == "incomplete"
    assert not WIRES["openai-chat"].at("notopenrouter.ai").always_done
    assert not WIRES["openai-chat"].at("localhost").always_done
