"""The content of what a user says in a request: what goes as it is, and what is refused.

Rule: nothing is dropped, and nothing is told in place of being shown. Who asks about a picture wants
it looked at: a part that a wire has no form for, of a media type that is not among the wire's
`prompt_media`, or at an address that this provider does not fetch from, is a RequestError that names
it, and no request is made. A text, a link, and a file that is text, is text on every wire.
"""

from __future__ import annotations

from collections.abc import Callable

from toolcrib.errors import RequestError
from toolcrib.values.content import Media, brief_of, inline_data, told_in_text
from toolcrib.values.message import Message
from toolcrib.wire.history import History
from toolcrib.wire.results import Form, Make, as_media, is_taken


def in_prompt(
    history: History, message: Message, make: Make, text: Callable[[str], Form]
) -> list[Form]:
    """Return the parts of a user's message, in order; no text in them is blank. Raises RequestError."""
    forms, count = list[Form](), 0
    for part in message.parts:
        found = as_media(part)
        if found is None:
            forms += map(text, told_in_text((part,)))
            continue
        form = make(found, count) if is_taken(history.prompt_media, found) else None
        if form is None:
            raise _refusal(history, found)
        forms.append(form)
        count += 1
    return forms


def _refusal(history: History, part: Media) -> RequestError:
    who, what = history.keeper, f"{brief_of(part).kind} ({brief_of(part)})"
    if is_taken(history.prompt_media, part):
        if inline_data(part) is None:
            why = "by this address: fetch it yourself, and give its data"
        else:
            why = "by its data: it has no form for that"
        return RequestError(f"{who} takes no {what} {why}")
    taken = ", ".join(sorted(history.prompt_media)) or "none"
    return RequestError(
        f"{who} takes no {what}: with this model, it takes {taken}. If that is wrong of yours, say what"
        " it takes: prompt_media=[…] of the client"
    )
