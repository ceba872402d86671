"""Turns what a user says to an agent into a message: text, or texts, images and files in order.

Rule: the prompt is checked before the run begins. Data that is not base64, or does not match its
stated media type, is an error that names the part, and no request is made.
"""

from __future__ import annotations

from toolcrib.errors import ToolcribError
from toolcrib.values.content import (
    PARTS,
    File,
    Image,
    Link,
    Media,
    Part,
    Prompt,
    info_of,
    inline_data,
    media_type_of,
)
from toolcrib.values.json import encodable
from toolcrib.values.media import contradiction
from toolcrib.values.message import Message
from toolcrib.values.typed import check_type

_EXPECTED = "a str, or a list of texts, Images and Files: what the user says"
_NO_UTF_8 = (
    "has half of a surrogate pair, which UTF-8 cannot encode: decode it with errors='replace', or give"
    " the bytes that it was read from to from_bytes(…)"
)
_NO_BASE64 = "is not base64: give its bytes to from_bytes(…), or its file to from_path(…)"
_PART = "a str, an Image, a File or a Link; a file is Image.from_path(…) or File.from_path(…)"


def prompt_message(prompt: Prompt) -> Message:
    """Return the user's message.

    Raises TypeError for something that is not a prompt, and ToolcribError for a part whose data
    does not match its description.
    """
    if isinstance(prompt, str):
        return Message.user(encodable(prompt))
    check_type("prompt", prompt, (list, tuple), _EXPECTED)
    parts = [_checked(f"prompt[{at}]", part) for at, part in enumerate(prompt)]
    first = parts.pop(0) if parts and isinstance(parts[0], str) else ""
    return Message("user", str(first), parts=tuple(parts))


def _checked(name: str, part: Part) -> Part:
    check_type(name, part, PARTS, _PART)
    if isinstance(part, str):
        return encodable(part)
    try:
        info_of(part)
    except UnicodeEncodeError as error:
        field = next(each for each in part.redacted if getattr(part, each) == error.object)
        raise ToolcribError(f"{name} cannot be sent: its {field} {_NO_UTF_8}") from None
    except ValueError:
        raise ToolcribError(f"{name} cannot be sent: its data {_NO_BASE64}") from None
    mismatch = "" if isinstance(part, Link) else _mismatch(part)
    if mismatch:
        raise ToolcribError(f"{name}: {mismatch}")
    return part


def _mismatch(part: Media) -> str:
    """Return why an image or a file does not match its description; empty if it may match."""
    data, media_type = inline_data(part), media_type_of(part)
    if data is None and part.url[:5].lower() == "data:":
        return "its address is data in an unknown form: write it as data:image/png;base64,…"
    if isinstance(part, Image) and (data or media_type) and not media_type.startswith("image/"):
        return f"an Image needs a type such as image/png, not {media_type or 'none'}: use a File"
    if isinstance(part, File) and not (part.data or part.url or part.text):
        return "the file is empty"
    return contradiction(media_type, data) if data else ""
