"""What first bytes say of a file."""

from __future__ import annotations

from base64 import b64encode

import pytest

from toolcrib.values.media import contradiction, shown_type

HEADS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff\xe0", "image/jpeg"),
    (b"GIF89a", "image/gif"),
    (b"RIFF\1\2\3\4WEBP", "image/webp"),
    (b"RIFF\1\2\3\4WAVE", "audio/wav"),
    (b"FORM\1\2\3\4AIFC", "audio/aiff"),
    (b"\0\0\0\x18ftypheic", "image/heic"),
    (b"\0\0\0\x18ftypmif1", "image/heif"),
    (b"\0\0\0\x1cftypavis\0\0\0\0avismif1", "image/avif"),
    (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avif", "image/avif"),
    (b"\0\0\0\x18ftyphevs", "image/heic"),
    (b"\0\0\0\x18ftypisom", "video/mp4"),
    (b"\0\0\0\x14ftypqt  ", "video/quicktime"),
    (b"%PDF-1.7", "application/pdf"),
    (b"ID3\4", "audio/mpeg"),
    (b"BM\1\2\3\4\0\0\0\0", "image/bmp"),
    (b"BMW and others", ""),
    (b"ID3 is a tag", ""),
    (b"OggS", "audio/ogg"),
    (b"fLaC", "audio/flac"),
    (b"\x1aE\xdf\xa3", "video/webm"),
    (b"PK\3\4", ""),
    (b"", ""),
    (b"RIFF", ""),
)


@pytest.mark.parametrize(("head", "media_type"), HEADS)
def test_the_type_is_shown(head: bytes, media_type: str) -> None:
    assert shown_type(head) == media_type
    assert shown_type(head + b"more") == media_type
    assert media_type == "" or contradiction(media_type, b64encode(head).decode()) == ""


@pytest.mark.parametrize(
    ("media_type", "head", "said"),
    [
        ("image/png", b"\xff\xd8\xff", "those of image/jpeg, and not of image/png"),
        ("image/png", b"a picture", "those of something else, and not of image/png"),
        ("image/heic", b"\0\0\0\x18ftypmif1", ""),
        ("audio/mp4", b"\0\0\0\x18ftypisom", ""),
        ("application/zip", b"\xff\xd8\xff", ""),
        ("text/plain", b"%PDF-", ""),
        ("application/pdf", b"\n%PDF-", ""),
        ("audio/mpeg", b"\0\0\xff\xfb", ""),
    ],
)
def test_what_contradicts_is_said(media_type: str, head: bytes, said: str) -> None:
    found = contradiction(media_type, b64encode(head).decode())
    assert said in found
    assert bool(found) is bool(said)
