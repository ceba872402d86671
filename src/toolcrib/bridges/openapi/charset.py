"""The encoding of an answer's bytes: by its byte order mark, by what it declares, else UTF-8.

Rule: a text is exactly the one that was sent, or there is none. Bytes that are invalid in their
encoding, or whose encoding is not supported here, are not guessed at. JSON is read as UTF-8,
whatever it declares, if possible (RFC 8259, 8.1). The order is that of
https://encoding.spec.whatwg.org/#decode.
"""

from __future__ import annotations

import codecs
import re
from contextlib import suppress

from toolcrib.bridges.openapi.forms import is_json, is_xml

_MARKS = (
    (codecs.BOM_UTF32_LE, ""),  # begins with the mark of UTF-16
    (codecs.BOM_UTF32_BE, ""),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CHARSET = re.compile(r';\s*charset\s*=\s*"?([\w.:-]{1,40})', re.IGNORECASE | re.ASCII)
_XML_ENCODING = re.compile(rb"\s*<\?xml[^>]{0,200}?\sencoding\s*=\s*[\"']([\w.:-]{1,40})", re.ASCII)
_HTML_CHARSET = re.compile(
    rb"<meta\s[^>]{0,200}?charset\s*=\s*[\"']?([\w.:-]{1,40})", re.ASCII | re.I
)
_DECLARED_WITHIN = 1024  # bytes, as for HTML: https://html.spec.whatwg.org/#charset
_ENCODINGS = frozenset(
    codecs.lookup(name).name
    for name in (
        *("utf-8", "ascii", "utf-16", "utf-16-le", "utf-16-be", "koi8-r", "koi8-u", "mac-roman"),
        *(f"iso8859-{part}" for part in range(1, 17) if part != 12),
        *(f"cp{page}" for page in (866, 874, 932, 949, 950, *range(1250, 1259))),
        *("shift_jis", "euc_jp", "iso2022_jp", "gb2312", "gbk", "gb18030", "big5", "big5hkscs"),
        *("euc_kr", "johab", "tis-620"),
    )
)
"""Encodings of text alone. Some of Python's codecs decompress, or read escapes."""


def encoding_of(body: bytes, media_type: str) -> str:
    """Return the encoding of a text or of JSON, or an empty string if it is not supported here."""
    for mark, encoding in _MARKS:
        if body.startswith(mark):
            return encoding
    match = _CHARSET.search(media_type)
    charset = None if match is None else _supported(match[1])
    claims_json, claims_xml = is_json(media_type), is_xml(media_type)
    if (claims_json or claims_xml) and body[:4].count(b"\0") == 3:  # UTF-32
        return ""
    if (claims_json or claims_xml) and body[:2].count(b"\0") == 1:  # both begin with ASCII
        return "utf-16-be" if body[0] == 0 else "utf-16-le"
    if claims_json:
        with suppress(UnicodeDecodeError):
            body.decode()
            return "utf-8"
    if charset is None:
        claims_html = media_type.lower().startswith("text/html")
        declared = _XML_ENCODING.match(body) if claims_xml else None
        declared = _HTML_CHARSET.search(body[:_DECLARED_WITHIN]) if claims_html else declared
        charset = "utf-8" if declared is None else _supported(declared[1].decode())
        # UTF-16 could not be read like this
        charset = "utf-8" if charset.startswith("utf-16") else charset
    return charset


def text_of(body: bytes, media_type: str) -> str | None:
    """Return a text or JSON without its byte order mark, or None if the bytes are invalid in its
    encoding."""
    encoding = encoding_of(body, media_type)
    try:
        return body.decode(encoding) if encoding else None
    except UnicodeDecodeError:
        return None


def _supported(name: str) -> str:
    with suppress(LookupError):
        codec = codecs.lookup(name).name
        if codec in _ENCODINGS:
            return "utf-16-le" if codec == "utf-16" else codec
    return ""
