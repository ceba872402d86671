"""Tool calls, assembled from pieces that servers number, name and repeat as they like.

The rule for a piece: what its index (without one its id, or the last call) points at is what it
goes on with, unless it can only be the beginning of another call: another id, or a name once the
arguments before it are whole. Fragments are joined once, at the end.

The rule for a call: it may run only if it has a name, was begun before the reply's own end, and its
arguments are whole: on a wire that ends each call by itself they have that end, or are a JSON object.
No text of arguments at all is `{}` only where the wire has ended the call. What is said twice must be
the same, as JSON. Where that is in doubt the call has a `fault`, and stays in the reply.

The rule for a stray, which is a piece that no call can have: one after its call's end, of a call that
nobody began, at a call that is whole while a later one grows, or where the wire has no pieces. It is
missing from whichever call was open then, so none of those may run; a call is open until the wire ends
it, or else until the reply ends. Nor may a call run whose beginning is said again with another name, on
a wire that says it once. A member that holds calls and has another type than the wire's is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, TypeVar

from toolcrib.errors import ErrorCode, WireError
from toolcrib.values.call import CallFault, ToolCall
from toolcrib.values.message import ArgumentsPart
from toolcrib.values.offer import Offer
from toolcrib.wire.json_text import (
    SPACE,
    Balance,
    ends_early,
    is_object,
    mended,
    same_json,
    settled,
)

_T = TypeVar("_T")
_LONGEST_NAME = 1024
_LONGEST_NUMBER = 10
_CLOSING = frozenset('}]"')
_MOST_COPIED = 128
NAMELESS = CallFault(
    ErrorCode.TRUNCATED, "The beginning of the call, with its name, did not arrive. Call again."
)
UNENDED = CallFault(
    ErrorCode.TRUNCATED, "The call was begun, and its arguments never came to an end. Call again."
)
LATE = CallFault(
    ErrorCode.TRUNCATED, "The call began after the reply had ended by its own word. Call again."
)
_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "text"}
CONTRADICTORY = CallFault(ErrorCode.CONTRADICTORY)


class _OpenCall:
    """A call that may still grow. `named_in` is the number of the chunk that gave its name.

    `ended` is whether the wire has said that the call came to its end.
    """

    __slots__ = (
        "_balance",
        "_blank",
        "_scanned",
        "ended",
        "fault",
        "fragments",
        "id",
        "name",
        "named_in",
        "notes",
        "own",
        "provider_id",
    )

    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self.provider_id = ""
        self.name = ""
        self.own = ""
        self.named_in = -1
        self.fragments: list[str] = []
        self.ended = False
        self.fault: CallFault | None = None
        self.notes: tuple[str, ...] = ()
        self._balance: Balance | None = None
        self._scanned = 0
        self._blank = 0

    def has_arguments(self) -> bool:
        """Return whether its arguments have begun; every blank fragment is looked at once."""
        fragments = self.fragments
        while self._blank < len(fragments) and not fragments[self._blank].strip(SPACE):
            self._blank += 1
        return self._blank < len(fragments)

    def may_be_whole(self) -> bool:
        """Return False where the last fragment already shows that the arguments are not whole: this
        spares the others a scan."""
        last = self.fragments[-1].rstrip(SPACE) if self.fragments else ""
        return not last or last[-1] in _CLOSING

    def whole(self) -> bool:
        """Return whether the arguments so far are balanced; every fragment
        is looked at once, if asked."""
        if self._balance is None:
            self._balance = Balance()
        for fragment in self.fragments[self._scanned :]:
            self._balance.scan(fragment)
        self._scanned = len(self.fragments)
        return self._balance.whole


class CallAssembler:
    """The calls of one reply. `piece` takes streamed pieces, `whole` calls in one piece.

    With `marked` the wire ends each call by a mark of its own, which `end` tells; else the reply's end
    is that of its calls. What begins after `close` is too late to run.
    """

    def __init__(self, offer: Offer, ids: str, *, marked: bool = False) -> None:
        self._offer = offer
        self._ids = ids
        self._marked = marked
        self._closed = False
        self._calls: list[_OpenCall] = []
        self._by_index: dict[object, _OpenCall] = {}
        self._by_id: dict[str, _OpenCall] = {}
        self._last: _OpenCall | None = None
        self._chunk = 0
        self._judged = 0  # how many calls a stray piece has been checked against

    @property
    def last_id(self) -> str:
        """The id of the call that the last piece was of; empty before the first."""
        return "" if self._last is None else self._last.id

    def end(self, index: object) -> None:
        """Note that the wire has ended the call at that index."""
        if (call := self._by_index.get(index)) is not None:
            call.ended = True

    def doubt(self, index: object, fault: CallFault) -> None:
        """Doubt the call at that index, so that it does not run; the first reason stays."""
        if (call := self._by_index.get(index)) is not None:
            call.fault = call.fault or fault

    def doubt_last(self) -> None:
        """Doubt the last call: on a wire whose calls come one after the other, a piece of none is one
        that it lacks."""
        if self._last is not None:
            self._last.fault = self._last.fault or CONTRADICTORY

    def close(self) -> None:
        """Note that the reply has come to its own end: no call begins after it."""
        self._closed = True

    def next_chunk(self) -> None:
        self._chunk += 1

    def piece(self, index: object, provider_id: str, name: str, text: str) -> ArgumentsPart | None:
        """Take one piece; `index` is None where the server sent none.

        Gives the part to display, if there is something to.
        """
        call = self._by_index.get(index) if index is not None else None
        if provider_id or name or call is None:
            call = self._target(index, call, provider_id, name, text)
        self._last = call
        if not text:
            return None
        if call.ended:
            call.fault = call.fault or CONTRADICTORY
        if self._is_stray(call, text):
            self.stray()
        call.fragments.append(text)
        return ArgumentsPart(call.id, call.own, text)

    def _is_stray(self, call: _OpenCall, text: str) -> bool:
        """Return whether the call that a piece points at cannot have it. Where no mark ends a call, its
        name may still come, which `finish` sees."""
        if self._marked:
            return call.ended or not call.name
        if call is self._calls[-1] or not call.may_be_whole() or not text.strip(SPACE):
            return False
        return call.whole() and not self._is_copy(call, text)

    def _is_copy(self, call: _OpenCall, text: str) -> bool:
        """Return whether a piece says again what the call has, and no later call grows that may lack
        it: some gateways repeat all calls at the end (decolua/9router#2869)."""
        if len(self._calls) > _MOST_COPIED or not is_object(text.strip(SPACE)):
            return False
        later = self._calls[self._calls.index(call) + 1 :]
        return same_json("".join(call.fragments), text) and all(one.whole() for one in later)

    def stray(self) -> None:
        """Doubt each open call, since a piece came that no call can have: one of them may lack it.

        Each call is looked at once: after that it is in doubt, or was whole before.
        """
        for call in self._calls[self._judged :]:
            if not call.ended:
                call.fault = call.fault or (CONTRADICTORY if call.name else NAMELESS)
        self._judged = len(self._calls)

    @property
    def nameless(self) -> bool:
        """Whether arguments came of a call that was never named."""
        return any(not call.name and call.has_arguments() for call in self._calls)

    def whole(
        self,
        provider_id: str,
        name: str,
        text: str,
        *,
        fault: CallFault | None = None,
        notes: tuple[str, ...] = (),
    ) -> ArgumentsPart | None:
        """Take a call in one piece, and give the part to display, if there is something to."""
        call = self._last = self._open(None)
        call.ended, call.notes = True, notes
        call.fault = call.fault or fault
        self._continue(call, provider_id, name)
        if not text:
            return None
        call.fragments.append(text)
        return ArgumentsPart(call.id, call.own, text)

    def finish(self, *, cut: bool) -> tuple[tuple[ToolCall, ...], bool]:
        """Return the calls, and whether the reply was cut: known before, or seen by its last arguments.

        A piece that brought neither name nor arguments is no call.
        """
        read = [(call, joined(call.fragments)) for call in self._calls]
        read = [(call, _paired(text)) for call, text in read if call.name or text.strip(SPACE)]
        cut = cut or (bool(read) and ends_early(read[-1][1]))
        for (call, text), (after, _) in pairwise(read):
            if not text and not after.name:
                call.fault = call.fault or UNENDED  # what the nameless one brings may be its own
        if self.nameless:
            self.stray()
        return tuple(_cut(c, text) if cut else self._made(c, text) for c, text in read), cut

    def _made(self, call: _OpenCall, text: str) -> ToolCall:
        """Return the call of a reply that was not cut."""
        arguments, notes, same = settled(text)
        fault = call.fault
        if fault is None and not call.name:
            fault = NAMELESS
        if fault is None and self._marked and not call.ended and not is_object(text.strip(SPACE)):
            fault = UNENDED
        if fault is None and not same:
            fault = CONTRADICTORY
        return ToolCall(
            id=call.id,
            provider_id=mended(call.provider_id),
            name=mended(call.own),
            arguments=arguments if fault is None else text,
            complete=fault is None,
            notes=call.notes + notes,
            fault=fault,
        )

    def _target(
        self, index: object, call: _OpenCall | None, provider_id: str, name: str, text: str
    ) -> _OpenCall:
        if call is None:
            call = self._by_id.get(provider_id)
            if index is not None and name:
                call = None
            elif call is None and self._goes_on(index, provider_id, name):
                call = self._last
        renamed = self._marked and call is not None and _is_renamed(call, provider_id, name)
        if call is not None and renamed:
            call.fault = call.fault or CONTRADICTORY
        if call is None or self._begins(call, provider_id, name, text):
            call = self._open(index)
            if renamed:
                call.fault = call.fault or CONTRADICTORY
        elif index is not None:
            self._by_index[index] = call
        self._continue(call, provider_id, name)
        return call

    def _goes_on(self, index: object, provider_id: str, name: str) -> bool:
        """Return whether a piece that points at no call is more of the last one: an index alone is no
        sign of another call while the last one is not whole."""
        if index is None:
            return True
        if provider_id or name or self._last is None or self._last.ended:
            return False
        return bool(self._last.fragments) and not self._last.whole()

    def _open(self, index: object) -> _OpenCall:
        call = _OpenCall(f"{self._ids}{len(self._calls)}")
        if self._closed:
            call.fault = LATE
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        return call

    def _continue(self, call: _OpenCall, provider_id: str, name: str) -> None:
        if provider_id and not call.provider_id:
            call.provider_id = provider_id
            self._by_id[provider_id] = call
        if name:
            joined_name = self._joined(call.name, name) if call.name else name
            if (
                call.name
                and call.has_arguments()
                and self._is_another(call.name, name, joined_name)
            ):
                call.fault = call.fault or CONTRADICTORY
            call.name = joined_name
            call.own = self._offer.own_name(call.name)
            call.named_in = self._chunk

    def _is_another(self, before: str, name: str, joined_name: str) -> bool:
        """Return whether a name that follows the first arguments is not that
        of the call they belong to."""
        return joined_name != before or (name != before and self._knows(name))

    def _begins(self, call: _OpenCall, provider_id: str, name: str, text: str) -> bool:
        """Return whether the piece is the beginning of another call than the one that it points at."""
        another_name = bool(name) and name not in call.name
        if provider_id and provider_id == call.provider_id:
            return another_name and call.whole()
        if provider_id and call.provider_id:
            if not name:
                return call.whole()
            made_up = name == call.name and call.fragments and text and not _opens(text)
            return not (made_up and not call.whole())
        if not name or not call.name or self._knows(call.name + name):
            return False
        if call.whole():
            return another_name or _opens(text)
        two_tools = another_name and self._knows(call.name) and self._knows(name)
        return call.named_in == self._chunk or (two_tools and not call.fragments)

    def _joined(self, before: str, name: str) -> str:
        """Return a name from its pieces: a repeat changes nothing, a longer form replaces it."""
        if self._knows(before + name):
            return before + name
        if name in before or len(before) > _LONGEST_NAME:
            return before
        return name if name.startswith(before) else before + name

    def _knows(self, name: str) -> bool:
        return self._offer.own_name(name) in self._offer.tools


def _is_renamed(call: _OpenCall, provider_id: str, name: str) -> bool:
    """Return whether the beginning of that call is said again, with another name."""
    same = bool(provider_id) and provider_id == call.provider_id
    return same and bool(name) and bool(call.name) and name != call.name


def _cut(call: _OpenCall, text: str) -> ToolCall:
    return ToolCall(
        call.id,
        mended(call.own),
        text,
        provider_id=mended(call.provider_id),
        complete=False,
        fault=call.fault,
    )


def joined(fragments: list[str]) -> str:
    """Return the text in these fragments; that of the last, where each says
    again all there was before it."""
    text = "".join(fragments)
    pieces = [fragment for fragment in fragments if fragment]
    if len(pieces) < 2 or is_object(text) or not is_object(pieces[-1]):
        return text
    grows = all(after.startswith(before) for before, after in pairwise(pieces))
    return pieces[-1] if grows else text


def member_of(form: Mapping[str, Any], key: str, kind: type[_T]) -> _T | None:
    """Return what a member holds, None where it is not there or null. Raises WireError where it is of
    another type: an empty text, a zero or a `false` in its place may be what is left of a call."""
    value = form.get(key)
    if value is None or isinstance(value, kind):
        return value
    raise WireError(f"`{key}` is not {_KINDS.get(kind, kind.__name__)}")


def misplaced(
    event: Mapping[str, Any], kind: object, places: Mapping[str, tuple[str, ...]]
) -> bool:
    """Return whether an event holds what a piece of a call stands in, where events of its kind have no
    place for it: its kind was changed, or nobody knows it. `places` are those that each kind has; a
    kind that is not among them has none. Others of unknown kinds, such as a ping, hold no piece."""
    has = places.get(kind, ()) if isinstance(kind, str) else ()
    members = (key for keys in places.values() for key in keys if key not in has)
    return any(event.get(key) is not None for key in members)  # some servers write all that is null


def index_of(given: object) -> int | str | None:
    """Return the index that a server gave to a piece; one that is neither
    a number nor a text is none."""
    return given if type(given) is int or type(given) is str else None


def choice_of(form: dict[str, Any]) -> int:
    """Return the number of a choice, 0 where it has none. Raises WireError for one that is no number:
    pieces of a call that belong to nobody known would be a hole in it."""
    given = form.get("index")
    if given is None:
        return 0
    if isinstance(given, str) and given.isdecimal() and len(given) < _LONGEST_NUMBER:
        return int(given)
    if type(given) is float and given.is_integer():
        return int(given)
    if type(given) is not int:
        raise WireError("the index of a choice is not a number")
    return given


def _opens(text: str) -> bool:
    return text.lstrip(SPACE).startswith("{")


def _paired(text: str) -> str:
    """Surrogate pairs that were split over two fragments, made whole; lone ones stay."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text
