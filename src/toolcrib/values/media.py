"""Detect the media types of images, documents and recordings by their first bytes.

Rule: bytes come before names. Providers look at the data and refuse it if it is declared as
something else. So a JPEG named `.png` is treated as a JPEG, and data whose first bytes contradict
its media type is an error here, where the message can name it.
"""

from __future__ import annotations

from base64 import b64decode
from mimetypes import guess_type
from pathlib import Path

from toolcrib.errors import SourceError
from toolcrib.values.typed import check_type

LARGEST = 20 * 1024 * 1024
"""The default limit on the size of a file, in bytes."""
_HEAD_BYTES = 64  # bytes that identify a file
_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"%PDF-", "application/pdf"),
    (b"ID3\2", "audio/mpeg"),
    (b"ID3\3", "audio/mpeg"),
    (b"ID3\4", "audio/mpeg"),
    (b"\xff\xfb", "audio/mpeg"),
    (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"),
    (b"\xff\xf1", "audio/aac"),
    (b"\xff\xf9", "audio/aac"),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"\0\0\x01\xba", "video/mpeg"),
)
_CONTAINERS = {  # containers, by bytes 0 to 3 and 8 to 11
    (b"RIFF", b"WEBP"): "image/webp",
    (b"RIFF", b"WAVE"): "audio/wav",
    (b"FORM", b"AIFF"): "audio/aiff",
    (b"FORM", b"AIFC"): "audio/aiff",
}
_TYPES_BY_BRAND = {  # of ISO media files
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis"), "image/heic"),
    **dict.fromkeys((b"hevc", b"hevx", b"hevm", b"hevs"), "image/heic"),
    **dict.fromkeys((b"mif1", b"mif2", b"msf1", b"miaf"), "image/heif"),
    **dict.fromkeys((b"avif", b"avis"), "image/avif"),
    b"qt  ": "video/quicktime",
    b"M4A ": "audio/mp4",
}
_TYPES_BY_SUFFIX = {  # text files whose names some Python versions and systems do not know
    ".jsonl": "application/jsonl",
    ".md": "text/markdown",
    ".toml": "application/toml",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}
_DETECTABLE = frozenset(
    [kind for _, kind in _SIGNATURES] + [*_CONTAINERS.values(), *_TYPES_BY_BRAND.values()]
)
_ALWAYS_SIGNED = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
"""Every file of these types begins with its signature. A PDF or a recording may have bytes before
it."""
_ALIKE = (  # types that their first bytes do not distinguish
    frozenset(("image/heic", "image/heif")),
    frozenset(("image/avif", "image/heif")),
    frozenset(("video/mp4", "video/quicktime", "audio/mp4")),
)


def shown_type(data: bytes) -> str:
    """Return the media type that the first bytes show; empty if they match no known type."""
    for signature, media_type in _SIGNATURES:
        if data.startswith(signature):
            return media_type
    if data.startswith(b"BM") and data[6:10] == b"\0\0\0\0":
        return "image/bmp"
    if data[4:8] == b"ftyp":
        brand_type = _TYPES_BY_BRAND.get(data[8:12], "video/mp4")
        return (
            "image/avif"
            if brand_type == "image/heif" and b"avif" in data[16:_HEAD_BYTES]
            else brand_type
        )
    return _CONTAINERS.get((data[:4], data[8:12]), "")


def shown_in(data: str) -> str:
    """Return the media type that base64 text shows; empty also for invalid base64."""
    try:
        return shown_type(b64decode(data[: _HEAD_BYTES * 2]))
    except ValueError:
        return ""


def contradiction(media_type: str, data: str) -> str:
    """Describe how base64 text contradicts its media type; empty if it may have that type.

    If files of a type need not begin with a signature, the type is believed unless another one
    shows.
    """
    if media_type not in _DETECTABLE:
        return ""
    detected = shown_type(b64decode(data[: _HEAD_BYTES * 2]))
    if not detected and media_type not in _ALWAYS_SIGNED:
        return ""
    if detected == media_type or any({detected, media_type} <= alike for alike in _ALIKE):
        return ""
    return f"its first bytes are those of {detected or 'something else'}, and not of {media_type}"


def read_file(path: str | Path, *, max_bytes: int) -> bytes:
    """Return the contents of a file.

    Raises SourceError if it does not exist, is not an ordinary file, cannot be read, is empty, or
    is larger than `max_bytes`.
    """
    check_type("path", path, (str, Path), "a str or a Path")
    check_type("max_bytes", max_bytes, int, "a number of bytes")
    file_path = Path(path)
    try:
        if not file_path.is_file():
            what = "that is not a regular file" if file_path.exists() else "there is no such file"
            raise SourceError(f"{file_path}: {'that is a folder' if file_path.is_dir() else what}")
        # the memory for the limit is allocated first, so it is no larger than the file needs
        limit = min(max_bytes, max(file_path.stat().st_size, LARGEST))
        with file_path.open("rb") as file:
            data = file.read(limit + 1)
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        reason = getattr(error, "strerror", None) or error
        raise SourceError(f"{file_path} cannot be read: {reason}") from None
    if len(data) > limit:
        raise SourceError(f"{file_path} is larger than max_bytes={max_bytes:,} allows")
    if not data:
        raise SourceError(f"{file_path} is empty")
    return data


def type_of_file(path: str | Path, data: bytes) -> str:
    """Return the media type of a file by its first bytes or else its name; empty if neither tells.

    The name of a compressed file (`report.pdf.gz`) says what is inside, so it does not count.
    """
    name = Path(path).name
    detected = shown_type(data) or _TYPES_BY_SUFFIX.get(Path(name).suffix.lower(), "")
    guessed, encoding = guess_type(name)
    return detected or ("" if encoding else guessed or "")
