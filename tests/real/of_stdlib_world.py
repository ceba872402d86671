"""Dates, addresses, paths and other things of the world, of the standard library."""

from __future__ import annotations

import calendar
import email.message
import email.utils
import ipaddress
import mimetypes
import posixpath
import shutil
import signal
import urllib.parse
import uuid
import zoneinfo
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import PurePosixPath

from real.hinted import Case, hinted

Words = list[str]
_NAMESPACE = "6ba7b811-9dad-11d1-80b4-00c04fd430c8"
_MORNING = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)

CASES = (
    Case(
        hinted(calendar.monthrange, tuple[int, int], {"year": int, "month": int}),
        {"year": 2028, "month": 2},
        lambda: tuple(calendar.monthrange(2028, 2)),
    ),
    Case(
        hinted(calendar.isleap, bool, {"year": int}), {"year": 2100}, lambda: calendar.isleap(2100)
    ),
    Case(
        hinted(email.utils.format_datetime, str, {"dt": datetime, "usegmt": bool}),
        {"dt": "2026-03-01T09:30:00Z", "usegmt": True},
        lambda: email.utils.format_datetime(_MORNING, usegmt=True),
    ),
    Case(
        hinted(email.utils.parsedate_to_datetime, datetime, {"data": str}),
        {"data": "Sun, 01 Mar 2026 09:30:00 -0000"},  # which is what has no time zone
        lambda: email.utils.parsedate_to_datetime("Sun, 01 Mar 2026 09:30:00 -0000"),
    ),
    Case(
        hinted(email.utils.formataddr, str, {"pair": tuple[str | None, str], "charset": str}),
        {"pair": ["Grace", "grace@example.org"]},
        lambda: email.utils.formataddr(("Grace", "grace@example.org")),
    ),
    Case(
        hinted(zoneinfo.available_timezones, set[str], {}),
        {},
        zoneinfo.available_timezones,
    ),
    Case(
        hinted(ipaddress.ip_address, IPv4Address | IPv6Address, {"address": str}),
        {"address": "2001:db8::1"},
        lambda: ipaddress.ip_address("2001:db8::1"),
    ),
    Case(
        hinted(ipaddress.ip_network, IPv4Network | IPv6Network, {"address": str, "strict": bool}),
        {"address": "192.0.2.7/24", "strict": False},
        lambda: ipaddress.ip_network("192.0.2.7/24", strict=False),
    ),
    Case(
        hinted(urllib.parse.urljoin, str, {"base": str, "url": str, "allow_fragments": bool}),
        {"base": "https://example.org/a/b", "url": "../c"},
        lambda: urllib.parse.urljoin("https://example.org/a/b", "../c"),
    ),
    Case(
        hinted(
            urllib.parse.urlsplit,
            urllib.parse.SplitResult,
            {"url": str, "scheme": str, "allow_fragments": bool},
        ),
        {"url": "https://example.org/a?b#c"},
        lambda: urllib.parse.urlsplit("https://example.org/a?b#c"),
    ),
    Case(
        hinted(
            urllib.parse.parse_qs,
            dict[str, list[str]],
            {"qs": str, "keep_blank_values": bool, "max_num_fields": int | None},
        ),
        {"qs": "a=1&a=2&b=", "keep_blank_values": True},
        lambda: urllib.parse.parse_qs("a=1&a=2&b=", keep_blank_values=True),
    ),
    Case(
        hinted(urllib.parse.urlencode, str, {"query": dict[str, str | int | Words], "doseq": bool}),
        {"query": {"q": "tools", "page": 2, "tag": ["a", "b"]}, "doseq": True},
        lambda: urllib.parse.urlencode({"q": "tools", "page": 2, "tag": ["a", "b"]}, doseq=True),
    ),
    Case(
        hinted(uuid.uuid5, uuid.UUID, {"namespace": uuid.UUID, "name": str}),
        {"namespace": _NAMESPACE, "name": "example.org"},
        lambda: uuid.uuid5(uuid.NAMESPACE_URL, "example.org"),
    ),
    Case(
        hinted(posixpath.relpath, str, {"path": PurePosixPath, "start": PurePosixPath | None}),
        {"path": "/a/b/c", "start": "/a/d"},
        lambda: posixpath.relpath("/a/b/c", "/a/d"),
    ),
    Case(
        hinted(posixpath.commonpath, str, {"paths": Words}),
        {"paths": ["/a/b", "/a/c"]},
        lambda: posixpath.commonpath(["/a/b", "/a/c"]),
    ),
    Case(
        hinted(mimetypes.guess_type, tuple[str | None, str | None], {"url": str, "strict": bool}),
        {"url": "notes.txt.gz"},
        lambda: mimetypes.guess_type("notes.txt.gz"),
    ),
    Case(
        hinted(shutil.which, str | None, {"cmd": str, "path": str | None}),
        {"cmd": "no-such-program"},
        lambda: shutil.which("no-such-program"),
    ),
    Case(
        hinted(signal.strsignal, str | None, {"signalnum": signal.Signals}),
        {"signalnum": 15},
        lambda: signal.strsignal(signal.SIGTERM),
    ),
)
