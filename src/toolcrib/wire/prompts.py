"""The content of what a user says in a request: what is sent unchanged, and what is refused.

Rule: nothing is dropped, and nothing is described instead of being shown. Somebody who asks about a
picture wants it looked at. So a part that a wire has no form for, that has a media type outside the
wire's `prompt_media`, or that is at an address from which this provider does not fetch, is a
RequestError that names it, and no request is made. A string, a link, and a file that is text are
text on every wire.
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
    """Return the parts of a user's message, in order, without blank texts. Raises RequestError."""
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
            why = "by this URL: download it, and pass its data"
        else:
            why = "as data: its API has no way to send that"
        return RequestError(f"{who} takes no {what} {why}")
    taken = ", ".join(sorted(history.prompt_media)) or "none"
    return RequestError(
        f"{who} takes no {what}: with this model, it takes {taken}. If your model takes more, "
        "list it in prompt_media=[…] of the client"
    )
