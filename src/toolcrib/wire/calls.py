"""Assemble tool calls from pieces, and decide how their reply ended.

Servers number, name and repeat the pieces in many ways.

Rule for a piece: it continues what its index points at (without an index, what its id points at, or
else the last call), unless it can only be the beginning of another call: it has another id, or a
name once the arguments before it are whole. Fragments are joined once, at the end.

Rule for a call: it may run only if it has a name, began before the reply's own end, and its
arguments are whole. On a wire that ends each call separately, whole means that the end came or that
they are a JSON object. Missing arguments are `{}` only if the wire has ended the call. If something
is sent twice, both must be the same as JSON. A call that fails one of these has a `fault`, and
stays in the reply.

Rule for a stray, which is a piece that no call can have. It comes after its call's end, belongs to
a call that nobody began or that is whole while a later one grows, or comes where the wire has no
pieces. Some call that was open then lacks it, so none of those may run. A call is open until the
wire ends it, or else until the reply ends. A piece without index, id or name belongs to the only
call that may grow; if several may, it is a stray. An index that no call has counts as no index,
because some servers number the pieces. On a wire that sends a call's beginning once, a call whose
beginning is repeated with another name may not run either. A member that should hold calls and has
a type unknown to the wire is an error.

Rule for a copy, which is a complete call in an event that the wire uses for something else, such as
the message that a stream begins or ends with: if it matches none of the reply's calls, none of them
may run.

Rule for an id, on a wire whose provider gives each call its own: two calls with one id are one call
sent twice. If both are the same, it runs once; otherwise neither runs.

Rule for a provider's state: it is saved and sent back completely, or dropped completely. Dropping
it is noted and changes no call.

Rule for a reply (`Ending`): if its end is in doubt, its calls do not run. It ended if the provider
sent the wire's own mark (`[DONE]`, `message_stop` …), or sent a natural reason and then the
transport came to a clean end. A reason followed by pieces of calls is void: such a reply needs the
mark. A reason is natural if the wire lists it as such. The first sign that a reply was cut stays,
whether it is a reason or something else. Of several natural reasons the last counts. If the
wire does not list a reason at all, the calls do not run, and the text stays.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import islice, pairwise
from typing import Any, Final, TypeVar

import msgspec

from toolcrib.errors import ErrorCode, WireError
from toolcrib.values.call import CallFault, PayloadRef, ToolCall
from toolcrib.values.message import (
    ArgumentsPart,
    FinishReason,
    Message,
    Offer,
    ProviderState,
    Reply,
    Usage,
)
from toolcrib.wire.base import Wire
from toolcrib.wire.failure import safe_text
from toolcrib.wire.json_text import (
    LONGEST,
    SPACE,
    Balance,
    ends_early,
    escaped,
    is_object,
    json_key,
    mended,
    paired,
    same_json,
    savable,
    settled,
)

_T = TypeVar("_T")
_LONGEST_NAME = 1024
_LONGEST_REASON = 1000
_LONGEST_NUMBER = 10
_CLOSING = frozenset('}]"')
_MAX_COMPARED = 128
NAMELESS = CallFault(
    ErrorCode.TRUNCATED, "The start of the call, with the tool name, did not arrive. Call again."
)
UNENDED = CallFault(
    ErrorCode.TRUNCATED, "The call began, but its arguments were not completed. Call again."
)
LATE = CallFault(
    ErrorCode.TRUNCATED, "The call began after the reply had said that it was finished. Call again."
)
HALF = CallFault(ErrorCode.INVALID_JSON, "The arguments hold half of a surrogate pair. Call again.")
_TYPE_PHRASES: dict[type, str] = {dict: "an object", list: "a list", str: "text"}
CONTRADICTORY = CallFault(ErrorCode.CONTRADICTORY)
AMBIGUOUS = CallFault(
    ErrorCode.CONTRADICTORY,
    "The reply says something twice, in one object under one key. Call again.",
)


class _OpenCall(msgspec.Struct, eq=False):
    """A call that may still grow. `named_in_chunk` is the number of the chunk that gave its name.

    `ended` says that the wire has ended the call. Once the reply is over, `text` holds its
    arguments, and `is_object` says whether they are one JSON object.
    """

    id: str
    index: object = None
    provider_id: str = ""
    name: str = ""
    own_name: str = ""
    named_in_chunk: int = -1
    fragments: list[str] = []
    ended: bool = False
    is_borrower: bool = False  # it has a piece at an index that no call has
    fault: CallFault | None = None
    notes: tuple[str, ...] = ()
    text: str = ""
    is_object: bool = False
    _balance: Balance | None = None
    _key: Hashable = None
    _scanned_count: int = 0
    _blank_count: int = 0

    def has_arguments(self) -> bool:
        """Return whether its arguments have begun. Each blank fragment is examined once."""
        fragments = self.fragments
        while self._blank_count < len(fragments) and not fragments[self._blank_count].strip(SPACE):
            self._blank_count += 1
        return self._blank_count < len(fragments)

    def may_be_whole(self) -> bool:
        """Return False if the last fragment alone shows that the arguments are not whole, which
        saves a scan of the others."""
        last_fragment = self.fragments[-1].rstrip(SPACE) if self.fragments else ""
        return not last_fragment or last_fragment[-1] in _CLOSING

    def key(self) -> Hashable:
        """Return what the call shares with each call of the same name and arguments."""
        if self._key is None:
            self._key = json_key(self.text)
        return self.name, self._key

    def may_grow(self) -> bool:
        """Return whether the call may lack a piece."""
        return not (self.ended or self.is_whole())

    def is_whole(self) -> bool:
        """Return whether the arguments so far are balanced. Each fragment is examined once, on
        demand."""
        if self._balance is None:
            self._balance = Balance()
        for fragment in self.fragments[self._scanned_count :]:
            self._balance.scan(fragment)
        self._scanned_count = len(self.fragments)
        return self._balance.whole


class CallAssembler(msgspec.Struct, eq=False):
    """The calls of one reply. `take_piece` takes streamed pieces, `take_whole` complete calls.

    If `has_end_marks`, the wire ends each call by its own mark, which `end_call` reports, and gives
    each its own id. Otherwise a call ends with the reply, and all calls may have one id. A call that
    begins after `close` is too late to run. `chunk` is the number of the chunk that pieces are taken
    from.
    """

    offer: Offer
    ids: str
    has_end_marks: bool = False
    chunk: int = 0
    _closed: bool = False
    _calls: list[_OpenCall] = []
    _by_index: dict[object, _OpenCall] = {}
    _by_id: dict[str, _OpenCall] = {}
    _last: _OpenCall | None = None
    _judged_count: int = 0  # how many calls a stray piece has been checked against
    _grown_count: int = 0  # how many calls, from the first on, can no longer grow
    _copies: list[tuple[str, str, str]] = []
    # By an index that no call has: the call that took the piece sent there.
    _borrowers: dict[object, _OpenCall] = {}

    @property
    def last_id(self) -> str:
        """The id of the call that got the last piece; empty before the first."""
        return "" if self._last is None else self._last.id

    def end_call(self, index: object) -> None:
        """Note that the wire has ended the call at that index."""
        if (call := self._by_index.get(index)) is not None:
            call.ended = True
        self.doubt_borrower(index)

    def doubt(self, index: object, fault: CallFault) -> None:
        """Doubt the call at that index, so that it does not run. The first reason stays."""
        if (call := self._by_index.get(index)) is not None:
            call.fault = call.fault or fault

    def doubt_borrower(self, index: object) -> bool:
        """Doubt the call that took a piece at an index that turns out to be another call's.

        Return whether there is such a call.
        """
        call = self._borrowers.get(index)
        if call is not None:
            call.fault = call.fault or CONTRADICTORY
        return call is not None

    def doubt_last(self) -> None:
        """Doubt the last call of a sequential wire: it lacks the piece that belongs to none."""
        if self._last is not None:
            self._last.fault = self._last.fault or CONTRADICTORY

    def close(self) -> None:
        """Note that the reply has come to its own end: no call begins after it."""
        self._closed = True

    def take_piece(
        self, index: object, provider_id: str, name: str, text: str, *, is_all: bool = False
    ) -> ArgumentsPart | None:
        """Take one piece; `index` is None if the server sent none. Return the part to display, if any.

        With `is_all` its arguments came as one value, so they are not a part of others.
        """
        index = None if index is NOWHERE else index
        if index is not None:
            call = self._by_index.get(index)
            if call is not None and text and call.is_borrower:
                call.fault = call.fault or CONTRADICTORY
        else:
            call = None if provider_id or name or not text else self._only_growing()
        if provider_id or name or call is None:
            call = self._target(index, call, provider_id, name, text)
        self._last = call
        if not text:
            return None
        if call.ended or (is_all and call.has_arguments() and not call.is_whole()):
            call.fault = call.fault or CONTRADICTORY
        if self._is_stray(call, text):
            self.doubt_open_calls()
        call.fragments.append(text)
        return ArgumentsPart(call.id, call.own_name, text)

    def _is_stray(self, call: _OpenCall, text: str) -> bool:
        """Return whether the call that a piece points at cannot have it.

        If no mark ends a call, its name may still come; `finish` checks that.
        """
        if self.has_end_marks:
            return call.ended or not call.name
        if call is self._calls[-1] or not call.may_be_whole() or not text.strip(SPACE):
            return False
        return call.is_whole() and (call.fault is not None or not self._is_copy(call, text))

    def _is_copy(self, call: _OpenCall, text: str) -> bool:
        """Return whether a piece repeats what the call has, and no later call may lack it.

        Some gateways repeat all calls at the end (decolua/9router#2869).
        """
        if len(self._calls) > _MAX_COMPARED or not is_object(text.strip(SPACE)):
            return False
        later = self._calls[self._calls.index(call) + 1 :]
        return same_json("".join(call.fragments), text) and all(c.is_whole() for c in later)

    def take_empty_piece(self, index: object, *, has_contents: bool) -> None:
        """Take a piece that cannot contain what a call lacks.

        It may be the remains of one that could, unless it carries nothing at all (`has_contents` is
        False) and the call that it points at is whole, as are all others.
        """
        call = self._last if index is None else self._by_index.get(index)
        if has_contents or call is None or self._only_growing() is not None:
            self.doubt_open_calls()

    def doubt_open_calls(self) -> None:
        """Doubt each open call, because one of them may lack the piece that no call can have.

        Each call is examined once: after that it is in doubt, or was whole before.
        """
        for call in self._calls[self._judged_count :]:
            if not call.ended:
                call.fault = call.fault or (CONTRADICTORY if call.name else NAMELESS)
        self._judged_count = len(self._calls)

    def block_at(self, raw_index: object, *, of_call: bool = True) -> object:
        """Return the key of the block that an event continues, where calls are blocks among others.

        It is the event's index, if usable, or else `("number", …)` of the only call that may grow.
        """
        index = index_of(raw_index)
        if index is not None and index is not NOWHERE:
            return index
        number = self.index_of_open_call() if of_call else None
        return None if number is None else ("number", number)

    def index_of_open_call(self) -> object:
        """Return the index of the call for an event that does not say which call it belongs to."""
        call = self._only_growing()
        return None if call is None else call.index

    def _only_growing(self) -> _OpenCall | None:
        """Return the only call that may grow, or None if there is none.

        If there are several, doubt them, because each may lack the piece that came.
        """
        calls = self._calls
        if self._judged_count == len(calls):
            return None
        while self._grown_count < len(calls) and not calls[self._grown_count].may_grow():
            self._grown_count += 1
        growing = list(islice((call for call in calls[self._grown_count :] if call.may_grow()), 2))
        if self._judged_count or len(growing) > 1:
            self.doubt_open_calls()
            return None
        return growing[0] if growing else None

    def take_copy(self, provider_id: str, name: str, text: str) -> None:
        """Take a complete call from a place where the wire has none: it must match one of the
        reply's calls, or none runs.

        If its arguments are a placeholder, `text` is empty.
        """
        self._copies.append((provider_id, name, text))

    def _doubt_by_copies(self, calls: list[_OpenCall]) -> None:
        """Doubt all calls if a copy matches none of them. If there are no calls, show the
        copies."""
        ids_by_call: dict[Hashable, set[str]] = {}
        for call in calls:
            ids_by_call.setdefault(call.key(), set()).add(call.provider_id)
            ids_by_call.setdefault(call.name, set()).add(call.provider_id)
        if all(_is_copied(ids_by_call, *copy) for copy in self._copies):
            return
        for provider_id, name, text in () if calls else self._copies:
            call = self._open(None)
            call.provider_id, call.name, call.text = provider_id, name, text
            call.fault = CONTRADICTORY
            call.own_name = self.offer.own_names.get(name, name)
            call.is_object = len(text) <= LONGEST and is_object(text)
            calls.append(call)
        for call in calls:
            call.fault = call.fault or CONTRADICTORY

    @property
    def has_nameless_call(self) -> bool:
        """Whether arguments came of a call that was never named."""
        return any(not call.name and call.has_arguments() for call in self._calls)

    def take_whole(
        self,
        provider_id: str,
        name: str,
        text: str,
        *,
        fault: CallFault | None = None,
        notes: tuple[str, ...] = (),
    ) -> ArgumentsPart | None:
        """Take a complete call, and return the part to display, if any."""
        call = self._last = self._open(None)
        call.ended, call.notes = True, notes
        call.fault = call.fault or fault
        self._continue(call, provider_id, name)
        if not text:
            return None
        call.fragments.append(text)
        return ArgumentsPart(call.id, call.own_name, text)

    def finish(
        self, *, is_cut: bool, payload: PayloadRef | None = None
    ) -> tuple[tuple[ToolCall, ...], bool]:
        """Return the calls, and whether the reply was cut: known before, or seen in the
        arguments.

        A piece with neither name nor arguments is no call. `payload` is the answer that contained
        them.
        """
        calls: list[_OpenCall] = []
        for call in self._calls:
            text = "".join(call.fragments)
            if len(call.fragments) > 1 or not text.isascii():
                text = joined(call.fragments)
                if len(call.fragments) > 1 and len(text) <= len(call.fragments[-1]):
                    call.notes += ("said_twice",)
            call.text = text
            if call.name or text.strip(SPACE):
                call.is_object = len(text) <= LONGEST and is_object(text)
                calls.append(call)
        if self.has_end_marks:
            calls = _without_repeats(calls)
        if self._copies:
            self._doubt_by_copies(calls)
        is_cut = is_cut or (bool(calls) and not calls[-1].is_object and ends_early(calls[-1].text))
        for call, next_call in pairwise(calls):
            if not call.text and not next_call.name:
                call.fault = call.fault or UNENDED  # the nameless call's arguments may belong to it
        if not all(call.name for call in calls):
            self.doubt_open_calls()
        return tuple(
            self._tool_call(
                call, payload and PayloadRef(payload.digest, payload.size, position), is_cut=is_cut
            )
            for position, call in enumerate(calls)
        ), is_cut

    def _tool_call(self, call: _OpenCall, payload: PayloadRef | None, *, is_cut: bool) -> ToolCall:
        text, fault, notes = call.text, call.fault, call.notes
        if not is_cut:
            arguments, more_notes, is_consistent = (
                (text, (), True) if call.is_object else settled(text)
            )
            notes += more_notes
            if fault is None and not call.name:
                fault = NAMELESS
            if fault is None and self.has_end_marks and not (call.ended or call.is_object):
                fault = UNENDED
            if fault is None and not is_consistent:
                fault = CONTRADICTORY
            text = arguments if fault is None else text
        if not text.isascii():
            text, fault = _savable_arguments(text, fault)
        return ToolCall(
            id=call.id,
            provider_id=mended(call.provider_id),
            name=mended(call.own_name),
            arguments=text,
            complete=not is_cut and fault is None,
            notes=() if is_cut else notes,
            fault=fault,
            payload=payload,
        )

    def _target(
        self, index: object, call: _OpenCall | None, provider_id: str, name: str, text: str
    ) -> _OpenCall:
        if call is None:
            call = self._by_id.get(provider_id)
            if index is not None and name:
                call = None
            elif call is None and self._continues_last(index, provider_id, name, text):
                call = self._last
            elif call is None and text and not (provider_id or name or text.strip(SPACE)):
                call = self._only_growing()  # blanks begin no call, and may be part of a string
        is_renamed = (
            self.has_end_marks and call is not None and _is_renamed(call, provider_id, name)
        )
        if call is not None and is_renamed:
            call.fault = call.fault or CONTRADICTORY
        if call is None or self._begins(call, provider_id, name, text):
            call = self._open(index)
            if is_renamed:
                call.fault = call.fault or CONTRADICTORY
        elif index is not None and (provider_id or name):
            self._by_index[index] = call
        self._continue(call, provider_id, name)
        return call

    def _continues_last(self, index: object, provider_id: str, name: str, text: str) -> bool:
        """Return whether a piece that points at no call continues the last one.

        While the last call is not whole, an index alone does not indicate another call; nor does it
        indicate the last one if several may grow. If a call later begins or ends at that index, or
        pieces of the last call have their own index, the piece belonged to another call.
        """
        if index is None:
            return True
        if provider_id or name or self._last is None or self._last.ended:
            return False
        continues = bool(self._last.fragments) and not self._last.is_whole()
        if continues and text:
            self._only_growing()  # doubts them all if there are several
        if continues:
            self._borrowers[index], self._last.is_borrower = self._last, True
        return continues

    def _open(self, index: object) -> _OpenCall:
        call = _OpenCall(f"{self.ids}{len(self._calls)}", index)
        if self._closed:
            call.fault = LATE
        self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
            if self.doubt_borrower(index):
                call.fault = call.fault or CONTRADICTORY
        return call

    def _continue(self, call: _OpenCall, provider_id: str, name: str) -> None:
        if provider_id and not call.provider_id:
            call.provider_id = provider_id
            self._by_id[provider_id] = call
        if name:
            joined_name = self._joined_name(call.name, name) if call.name else name
            if (
                call.name
                and call.has_arguments()
                and self._is_other_name(call.name, name, joined_name)
            ):
                call.fault = call.fault or CONTRADICTORY
            call.name = joined_name
            call.own_name = self.offer.own_names.get(call.name, call.name)
            call.named_in_chunk = self.chunk

    def _is_other_name(self, current_name: str, name: str, new_name: str) -> bool:
        """Return whether a name that came after the first arguments is not the call's own."""
        return new_name != current_name or (name != current_name and self._knows(name))

    def _begins(self, call: _OpenCall, provider_id: str, name: str, text: str) -> bool:
        """Return whether the piece begins a call other than the one that it points at."""
        has_other_name = bool(name) and name not in call.name
        if provider_id and provider_id == call.provider_id:
            return has_other_name and call.is_whole()
        if provider_id and call.provider_id:
            if not name:
                return call.is_whole()
            has_made_up_id = (
                name == call.name and call.fragments and text and not _begins_object(text)
            )
            return not (has_made_up_id and not call.is_whole())
        if not name or not call.name or self._knows(call.name + name):
            return False
        if call.is_whole():
            return has_other_name or _begins_object(text)
        are_two_tools = has_other_name and self._knows(call.name) and self._knows(name)
        return call.named_in_chunk == self.chunk or (are_two_tools and not call.fragments)

    def _joined_name(self, current_name: str, piece: str) -> str:
        """Return a name from its pieces: a repeat changes nothing, a longer form replaces it."""
        if self._knows(current_name + piece):
            return current_name + piece
        if piece in current_name or len(current_name) > _LONGEST_NAME:
            return current_name
        return piece if piece.startswith(current_name) else current_name + piece

    def _knows(self, name: str) -> bool:
        return self.offer.own_name(name) in self.offer.tools


def _without_repeats(calls: list[_OpenCall]) -> list[_OpenCall]:
    """Return the calls without those that repeat an earlier one under its id."""
    by_id: dict[str, _OpenCall] = {}
    unique: list[_OpenCall] = []
    for call in calls:
        first = by_id.setdefault(call.provider_id, call) if call.provider_id else call
        if first is call:
            unique.append(call)
        elif first.key() == call.key():
            first.fault = first.fault or call.fault
            first.notes = tuple(dict.fromkeys((*first.notes, "said_twice")))
        else:
            first.fault = call.fault = CONTRADICTORY
            unique.append(call)
    return unique


def _is_copied(
    ids_by_call: Mapping[Hashable, set[str]], provider_id: str, name: str, text: str
) -> bool:
    """Return whether a call of that name, with the same arguments if there are any, has that id or
    either has none."""
    ids = ids_by_call.get((name, json_key(text)) if text else name, set())
    return bool(ids) and (not provider_id or not ids.isdisjoint((provider_id, "")))


def _is_renamed(call: _OpenCall, provider_id: str, name: str) -> bool:
    """Return whether a piece repeats the beginning of that call with another name."""
    has_same_id = bool(provider_id) and provider_id == call.provider_id
    return has_same_id and bool(name) and bool(call.name) and name != call.name


def joined(fragments: list[str]) -> str:
    """Join fragments; if each one repeats everything before it, return the last one.

    Surrogate pairs that were split over two fragments are joined; lone halves stay.
    """
    text = "".join(fragments)
    if len(fragments) > 1:
        pieces = [fragment for fragment in fragments if fragment]
        if len(pieces) > 1 and not is_object(text) and is_object(pieces[-1]):
            is_cumulative = all(after.startswith(before) for before, after in pairwise(pieces))
            text = pieces[-1] if is_cumulative else text
    return paired(text)


def _savable_arguments(text: str, fault: CallFault | None) -> tuple[str, CallFault | None]:
    """Return arguments in a form that can be saved, and the fault of their call.

    A call with half a surrogate pair in its arguments is refused, whether or not it is saved first.
    """
    escaped_text = escaped(text)
    return (mended(text), fault or HALF) if escaped_text is None else (escaped_text, fault)


def member_of(form: Mapping[str, Any], key: str, kind: type[_T]) -> _T | None:
    """Return a member's value, or None if it is absent or null. Raises WireError for another type.

    An empty string, a zero or a `false` in its place may be the remains of a call.
    """
    value = form.get(key)
    if value is None or isinstance(value, kind):
        return value
    raise WireError(f"`{key}` is not {_TYPE_PHRASES.get(kind, kind.__name__)}")


def text_of_member(form: Mapping[str, Any], key: str) -> str:
    """Return a member's text; empty if it is absent or null. Raises WireError for another type."""
    return member_of(form, key, str) or ""


def name_in(call: Mapping[str, Any]) -> str:
    """Return the name in a call; empty if there is none. Raises WireError if it is not text."""
    name = call.get("name") or ""
    if not isinstance(name, str):
        raise WireError("the name of a tool call is not text")
    return name


def misplaced(
    event: Mapping[str, Any], kind: object, members_by_kind: Mapping[str, tuple[str, ...]]
) -> bool:
    """Return whether an event has members for pieces of calls that events of its kind do not have.

    Its kind was changed, or is unknown. An unlisted kind has no such members.
    Other events of unknown kinds, such as a ping, contain no piece.
    """
    allowed = members_by_kind.get(kind, ()) if isinstance(kind, str) else ()
    others = (key for keys in members_by_kind.values() for key in keys if key not in allowed)
    return any(event.get(key) is not None for key in others)  # some servers write null members


def reason_of(reason: object) -> str:
    """Return the text of a reason for the end of a reply, or the beginning of a long one. Only null and
    "" are none, which is "".

    A value that is not a string is a reason, too, but one that is not listed. If it is nested too
    deep to be written, it is named by its type.
    """
    try:
        return "" if reason is None else str(reason)[:_LONGEST_REASON]
    except RecursionError:
        return type(reason).__name__


NOWHERE: Final = object()
"""An unusable index: neither a number nor a string."""


def index_of(index: object) -> object:
    """Return the index that a server gave a piece, or None. It is a number in any notation, or a
    string."""
    if type(index) is int or index is None:
        return index
    if type(index) is float and index.is_integer():
        return int(index)
    if type(index) is not str:
        return NOWHERE
    return int(index) if index.isdecimal() and len(index) < _LONGEST_NUMBER else index


def choice_of(form: dict[str, Any]) -> int:
    """Return the number of a choice, 0 if it has none. Raises WireError if it is not a number.

    Pieces of a call that belong to no known choice would leave a gap in some call.
    """
    raw_index = form.get("index")
    if type(raw_index) is int or raw_index is None:
        return raw_index or 0
    index = index_of(raw_index)
    if type(index) is not int:
        raise WireError("the index of a choice is not a number")
    return index


def _begins_object(text: str) -> bool:
    return text.lstrip(SPACE).startswith("{")


# The end of the reply, and the `Reply` itself.


NATURAL: frozenset[FinishReason] = frozenset(("stop", "tool_calls"))
"""Any other end is a cut. So is a refusal: it stops a reply in the middle, and the content so far
must not be relied on:
https://platform.claude.com/docs/en/test-and-evaluate/strengthen-guardrails/handle-streaming-refusals"""


class Ending(msgspec.Struct, eq=False):
    """The end of one reply, as it becomes known.

    `reason` is the provider's own word, empty if there was none. `natural` says that a natural
    reason came. `cut` says how the reply was cut; it is None as long as nothing indicates a cut.
    `notes` apply to all calls of the reply. The decoder sets what the reply was decoded from
    (`payload`, `events`), and whether the transport stopped before its own end, or in the middle of
    an event (`torn`).
    """

    wire: Wire
    offer: Offer
    reason: str = ""
    natural: bool = False
    cut: FinishReason | None = None
    notes: list[str] = []
    torn: bool = False
    payload: PayloadRef | None = None
    events: tuple[str, ...] = ()
    _voided: bool = False
    _fault: CallFault | None = None

    def meaning(self, reason: str) -> FinishReason:
        """Return the meaning of a reason for the end of a reply, in upper or lower case.

        Text after a colon is detail of a cut: `content_filter: PROHIBITED_CONTENT`.
        """
        word = reason.lower()
        meaning = self.wire.finish_reasons.get(word.partition(":")[0])
        return meaning or ("stop" if word in self.wire.natural_reasons else "doubtful")

    def take_reason(self, reason: object, meaning: FinishReason | None = None) -> None:
        """Take a reason with the wire's meaning, or the given `meaning`. The reason of a cut
        stays."""
        word = reason_of(reason)
        if self.cut is None or not self.reason:
            self.reason = word
        self.judge(word, meaning or self.meaning(word))

    def judge(self, word: str, meaning: FinishReason) -> None:
        """Take the meaning of a reason; `word` is how the provider put it."""
        if meaning in NATURAL:
            self.natural = True
        elif self.cut is None:
            self.cut = meaning
            if meaning == "doubtful":
                self._fault = unlisted(word)

    def take_stray_reason(self, reason: object) -> None:
        """Take a reason from an event that should not have one. It counts only if it is not
        natural."""
        word = reason_of(reason)
        if word and self.meaning(word) not in NATURAL:
            self.take_reason(word)

    def take_sign(self, meaning: FinishReason) -> None:
        """Take any other sign that the reply ended in that way."""
        if self.cut is None and meaning not in NATURAL:
            self.cut = meaning

    def take_ambiguity(self) -> None:
        """Note that an event has a member twice, so that nobody knows what it says."""
        self.take_sign("doubtful")
        self._fault = self._fault or AMBIGUOUS

    def note_call(self) -> None:
        """Note a non-empty piece of a call, which makes an earlier reason void."""
        self._voided = self._voided or self.natural

    def renew(self) -> None:
        """Let a reason count again: without a mark, one after the last call is the end."""
        self._voided = False

    def stop(self, *, ended: bool) -> None:
        """Note that nothing more follows. `ended` says whether the provider sent the wire's own
        mark."""
        ended_by_reason = self.natural and not self._voided and not self.wire.always_done
        if self.torn or not (ended or ended_by_reason):
            self.take_sign("incomplete")

    def calls(self, assembler: CallAssembler) -> tuple[ToolCall, ...]:
        """Return the calls. Their arguments may be the only sign that the reply was cut."""
        calls, is_cut = assembler.finish(is_cut=self.cut is not None, payload=self.payload)
        if is_cut:
            self.take_sign("length")
        if self._fault is not None:
            calls = tuple(msgspec.structs.replace(call, fault=self._fault) for call in calls)
        if self.notes:
            notes = tuple(dict.fromkeys(self.notes))
            calls = tuple(msgspec.structs.replace(c, notes=c.notes + notes) for c in calls)
        return calls

    def reply(
        self,
        text: Iterable[str],
        calls: tuple[ToolCall, ...],
        usage: Usage,
        *,
        raw: Any,
        state: Any = None,
        refused: bool = False,
        answers: tuple[str, ...] | None = None,
    ) -> Reply:
        """Return the reply.

        `text` is what the model said, in pieces, with an empty one (`APART`) where something other
        than text came between. `state` has to go back unchanged. `refused` says that the text is a
        complete refusal. `answers` are the texts that may be the answer, if the wire says which;
        otherwise they are the texts separated by `APART`.
        """
        text = list(text)
        if answers is None and APART in text:
            answers = _texts_apart(text)
        ids, given_ids = self.wire.history.ids, self.wire.history.given_ids
        has_own_id = given_ids is not None and any(  # an id that other providers need not accept
            not ids.legal(call.provider_id) and given_ids.legal(call.provider_id) for call in calls
        )
        if state:
            state, calls = _savable_state(state, calls)
        provider_state = (
            ProviderState(self.wire.keeper, state or None) if state or has_own_id else None
        )
        natural_finish: FinishReason = "refusal" if refused else "stop"
        if calls:
            natural_finish = "tool_calls" if any(call.complete for call in calls) else "doubtful"
        return Reply(
            Message("assistant", mended("".join(text)), calls, provider_state=provider_state),
            self.cut or natural_finish,
            usage,
            self.offer,
            mended(self.reason) or None,
            raw,
            events=self.events,
            payload=self.payload,
            answers=answers,
        )


def _savable_state(state: Any, calls: tuple[ToolCall, ...]) -> tuple[Any, tuple[ToolCall, ...]]:
    """Return the state of a reply in a form that can be saved, and the calls.

    If it cannot be saved, it is dropped completely and the calls say so, because half of it could
    mean something else.
    """
    try:
        return savable(state), calls
    except ValueError:
        noted_calls = (msgspec.structs.replace(c, notes=(*c.notes, "state_dropped")) for c in calls)
        return None, tuple(noted_calls)


APART = ""
"""Separates the pieces of a reply's text where something other than text came between."""


def _texts_apart(pieces: list[str]) -> tuple[str, ...]:
    """Return the texts that something else separates, without blank ones."""
    texts: list[list[str]] = [[]]
    for piece in pieces:
        if piece == APART:
            texts.append([])
        else:
            texts[-1].append(piece)
    return tuple(mended(text) for text in map("".join, texts) if text.strip())


def unlisted(reason: str) -> CallFault:
    """Return the fault of the calls of a reply that ended for a reason that is not listed."""
    excerpt = safe_text(reason, 60)
    return CallFault(
        ErrorCode.TRUNCATED,
        f"The reply ended for the reason {excerpt!r}, which is not known as a normal end, so its "
        "calls do not run. If it is one, the application can list it: "
        f"natural_reasons=[{excerpt!r}].",
    )


# Finish reasons that several wires know, because gateways pass on the model's own.


GEMINI_FILTERED: dict[str, FinishReason] = dict.fromkeys(
    (
        *("safety", "recitation", "blocklist", "prohibited_content", "spii", "model_armor"),
        *("image_safety", "image_prohibited_content", "image_recitation"),
    ),
    "content_filter",
)
"""https://ai.google.dev/api/generate-content#FinishReason, the reasons of a filter, in lower
case."""
