"""`Query`: a request as scorers read it, whatever it was given as.

Rule: a scorer sees text and names only, already cut to a fixed length, and knows until when it is
wanted.
"""

from __future__ import annotations

from math import inf
from time import monotonic

import msgspec

from toolcrib.errors import PickError
from toolcrib.pick.text.conversation import conversation_of
from toolcrib.pick.text.stringify import stringified
from toolcrib.pick.text.words import clip
from toolcrib.values.json import encodable

_MAX_EARLIER = 4
_MAX_USED = 64


class Query(msgspec.Struct, frozen=True):
    """What is asked for.

    `text` is the request; of a conversation the user's last turn, with up to four of those before it
    in `earlier`, the latest first, and in `used` the names of the tools that were called in it, the
    latest first. `deadline` is in seconds of `time.monotonic()`: an answer after it is of no use, and
    a scorer may give up then.
    """

    text: str
    earlier: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    deadline: float = inf


def query_of(request: object, timeout_ms: float | None = None) -> Query:
    """A query from whatever a request is given as.

    A string is the request. Of a conversation (a ChatRequest, a `Message`, dictionaries as providers
    have them, a list of such or of strings) the user's last turn is; system text and tool results
    never are. Anything else is read as words: the sentences in it, and where there are none, all its
    texts and numbers with their keys. Texts are cut to 16,384 characters, in their middle. Raises
    PickError for an object that cannot be read.
    """
    deadline = inf if timeout_ms is None else monotonic() + timeout_ms / 1000
    if isinstance(request, Query):
        return msgspec.structs.replace(request, deadline=min(deadline, request.deadline))
    if isinstance(request, str):
        return Query(clip(request), deadline=deadline)
    try:
        said = conversation_of(request)
        if said is None:
            return Query(stringified(request), deadline=deadline)
    except Exception as error:
        raise PickError(
            f"the input, a {type(request).__name__}, cannot be read ({type(error).__name__}); "
            "give its text"
        ) from error
    turns = [clip(turn) for turn in reversed(said.asked[-_MAX_EARLIER - 1 :])]
    called = dict.fromkeys(encodable(name) for name in reversed(said.called))
    return Query(
        turns[0] if turns else "",
        earlier=tuple(turns[1:]),
        used=tuple(called)[:_MAX_USED],
        deadline=deadline,
    )
