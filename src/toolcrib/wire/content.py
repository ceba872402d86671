"""The content of what a user says and of tools' results in a request.

Rule for both: nothing is dropped. A string, a link, and a file that is text are text on every wire.

Rule for a result: a part that a wire has no form for, that has a media type outside the wire's
`result_media`, or that is somewhere this provider does not fetch from, is named in the text of the
result, at its position.

Rule for a prompt: nothing is described instead of being shown. Somebody who asks about a picture
wants it looked at. So a part that a wire has no form for, that has a media type outside the wire's
`prompt_media`, or that is at an address from which this provider does not fetch, is a RequestError
that names it, and no request is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from mimetypes import guess_extension
from typing import Any, TypeAlias

import msgspec

from toolcrib.errors import RequestError
from toolcrib.values.content import (
    File,
    Image,
    Link,
    Media,
    Part,
    brief_of,
    inline_data,
    kind_of,
    media_type_of,
    text_in,
    told_in_text,
)
from toolcrib.values.message import Message
from toolcrib.wire.history import History, SentResult

Form: TypeAlias = dict[str, Any]
Make: TypeAlias = Callable[[Media, int], Form | None]
"""Returns the wire's form of an image or a file, by its position from 0; None if there is none."""

IMAGES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
PDF = "application/pdf"
OFFICE = "application/vnd.openxmlformats-officedocument"
_ANY = "application/octet-stream"


def is_taken(media: frozenset[str], part: Media) -> bool:
    """Return whether a part has one of these media types; an image at an address may have any."""
    media_type = media_type_of(part)
    if media_type or not isinstance(part, Image):
        return media_type in media
    return not media.isdisjoint(IMAGES)


def as_media(part: Part) -> Media | None:
    """Return an image or a file that is not text, under the usual name of its media type.

    A file that is a picture becomes an Image, and a `data:` URL becomes data.
    """
    if isinstance(part, str | Link) or text_in(part) is not None:
        return None
    data, media_type = inline_data(part), media_type_of(part)
    url = part.url if data is None else ""
    if isinstance(part, File) and kind_of(part) != "image":
        return File(media_type, data or "", url, name=part.name)
    return Image(media_type, "", url) if data is None else Image(media_type or _ANY, data)


def _forms(
    message: Message, media: frozenset[str], make: Make
) -> Iterator[tuple[Part, Form | None]]:
    """Yield each part, and its form if it is sent unchanged."""
    count = 0
    for part in message.parts:
        found = as_media(part)
        form = make(found, count) if found is not None and is_taken(media, found) else None
        count += form is not None
        yield part, form


def in_blocks(
    message: Message, media: frozenset[str], make: Make, text: Callable[[str], Form]
) -> list[Form]:
    """Return a result's text and parts as blocks, in order, without blank texts."""
    blocks = [text(message.content)] if message.content.strip() else []
    for part, form in _forms(message, media, make):
        blocks += map(text, told_in_text((part,))) if form is None else [form]
    return blocks


def attached_to(name: str, result: SentResult) -> str:
    """Return the text before an attachment that is outside of its result."""
    return f"[{name} of the result of {result.name}, call {result.id}]"


def file_name(file: File, at: int) -> str:
    """Return the name of a file, or one that shows its type."""
    return file.name or f"file {at + 1}{guess_extension(media_type_of(file)) or ''}"


class Beside(msgspec.Struct, frozen=True):
    """A result's text, which names its attachments, and the attachments by these names."""

    text: str
    attached: Sequence[tuple[str, Form]]


def beside(message: Message, media: frozenset[str], make: Make) -> Beside:
    """Return a result's text, and its attachments outside of it."""
    if not message.parts:
        return Beside(message.content, ())
    texts, attached = [message.content], list[tuple[str, Form]]()
    for part, form in _forms(message, media, make):
        if form is None:
            texts += told_in_text((part,))
            continue
        name = f"attachment {len(attached) + 1}"
        texts += told_in_text((part,), why=name)
        attached.append((name, form))
    return Beside("\n\n".join(text for text in texts if text.strip()), attached)


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


def prompt_of(
    history: History,
    message: Message,
    image: Callable[[Image], Form],
    make: Make,
    text: Callable[[str], Form],
) -> str | list[Form]:
    """Return a user's text alone, or parts if there are any, with the `images` first."""
    if not (message.images or message.parts):
        return message.content
    said = [text(message.content)] if message.content else []
    return [*map(image, message.images), *said, *in_prompt(history, message, make, text)]


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
