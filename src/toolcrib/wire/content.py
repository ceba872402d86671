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
    as_texts,
    inline_data,
    kind_of,
    media_type_of,
    part_info,
    text_in,
)
from toolcrib.values.message import Message
from toolcrib.wire.history import History, SentResult

Form: TypeAlias = dict[str, Any]
MakeForm: TypeAlias = Callable[[Media, int], Form | None]
"""Returns the wire's form of an image or a file, by its position from 0; None if there is none."""

IMAGES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
PDF = "application/pdf"
OFFICE = "application/vnd.openxmlformats-officedocument"
_ANY_TYPE = "application/octet-stream"


def is_taken(media_types: frozenset[str], part: Media) -> bool:
    """Return whether a part has one of these media types; an image at an address may have any."""
    media_type = media_type_of(part)
    if media_type or not isinstance(part, Image):
        return media_type in media_types
    return not media_types.isdisjoint(IMAGES)


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
    return Image(media_type, "", url) if data is None else Image(media_type or _ANY_TYPE, data)


def _forms(
    message: Message, media_types: frozenset[str], make_form: MakeForm
) -> Iterator[tuple[Part, Form | None]]:
    """Yield each part, and its form if it is sent unchanged."""
    count = 0
    for part in message.parts:
        media_part = as_media(part)
        form = (
            make_form(media_part, count)
            if media_part is not None and is_taken(media_types, media_part)
            else None
        )
        count += form is not None
        yield part, form


def in_blocks(
    message: Message,
    media_types: frozenset[str],
    make_form: MakeForm,
    make_text: Callable[[str], Form],
) -> list[Form]:
    """Return a result's text and parts as blocks, in order, without blank texts."""
    blocks = [make_text(message.content)] if message.content.strip() else []
    for part, form in _forms(message, media_types, make_form):
        blocks += map(make_text, as_texts((part,))) if form is None else [form]
    return blocks


def attachment_label(name: str, result: SentResult) -> str:
    """Return the text before an attachment that is outside of its result."""
    return f"[{name} of the result of {result.name}, call {result.id}]"


def file_name(file: File, position: int) -> str:
    """Return the name of a file, or one that shows its type."""
    return file.name or f"file {position + 1}{guess_extension(media_type_of(file)) or ''}"


class ResultContent(msgspec.Struct, frozen=True):
    """A result's text, which names its attachments, and the attachments by these names."""

    text: str
    attachments: Sequence[tuple[str, Form]]


def result_content(
    message: Message, media_types: frozenset[str], make_form: MakeForm
) -> ResultContent:
    """Return a result's text, and its attachments outside of it."""
    if not message.parts:
        return ResultContent(message.content, ())
    texts, attachments = [message.content], list[tuple[str, Form]]()
    for part, form in _forms(message, media_types, make_form):
        if form is None:
            texts += as_texts((part,))
            continue
        name = f"attachment {len(attachments) + 1}"
        texts += as_texts((part,), why=name)
        attachments.append((name, form))
    return ResultContent("\n\n".join(text for text in texts if text.strip()), attachments)


def in_prompt(
    history: History, message: Message, make_form: MakeForm, make_text: Callable[[str], Form]
) -> list[Form]:
    """Return the parts of a user's message, in order, without blank texts. Raises RequestError."""
    forms, count = list[Form](), 0
    for part in message.parts:
        media_part = as_media(part)
        if media_part is None:
            forms += map(make_text, as_texts((part,)))
            continue
        form = make_form(media_part, count) if is_taken(history.prompt_media, media_part) else None
        if form is None:
            raise _refusal(history, media_part)
        forms.append(form)
        count += 1
    return forms


def prompt_of(
    history: History,
    message: Message,
    make_image: Callable[[Image], Form],
    make_form: MakeForm,
    make_text: Callable[[str], Form],
) -> str | list[Form]:
    """Return a user's text alone, or parts if there are any, with the `images` first."""
    if not (message.images or message.parts):
        return message.content
    texts = [make_text(message.content)] if message.content else []
    return [
        *map(make_image, message.images),
        *texts,
        *in_prompt(history, message, make_form, make_text),
    ]


def _refusal(history: History, part: Media) -> RequestError:
    who, what = history.keeper, f"{part_info(part).kind} ({part_info(part)})"
    if is_taken(history.prompt_media, part):
        if inline_data(part) is None:
            why = "by this URL: download it, and pass its data"
        else:
            why = "as data: its API has no way to send that"
        return RequestError(f"{who} takes no {what} {why}")
    accepted = ", ".join(sorted(history.prompt_media)) or "none"
    return RequestError(
        f"{who} takes no {what}: with this model, it takes {accepted}. If your model takes more, "
        "list it in prompt_media=[…] of the client"
    )
