"""`Query`: a request as scorers read it, whatever it was given as.

Rule: a scorer sees text and names only, already cut to a fixed length, and knows until when it is
wanted.
"""

from __future__ import annotations

from math import inf
from time import monotonic

import msgspec

from toolcrib.pick.text import request_text


class Query(msgspec.Struct, frozen=True):
    """What is asked for.

    `text` is the request; of a conversation the user's last turn, with those before it in `earlier`,
    the latest first, and the names of the tools that were called since in `used`. `deadline` is in
    seconds of `time.monotonic()`: an answer after it is of no use, and a scorer may give up then.
    """

    text: str
    earlier: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    deadline: float = inf


def query_of(request: object, timeout_ms: float | None = None) -> Query:
    """A query from a string, or from anything that JSON can write.

    Raises PickError for an object that JSON has no form for.
    """
    deadline = inf if timeout_ms is None else monotonic() + timeout_ms / 1000
    return Query(request_text(request), deadline=deadline)
