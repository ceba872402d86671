"""Where the cache is, on each system."""

from __future__ import annotations

import sys

import pytest
from rows import each_row

from toolcrib.storage.cache_folder import cache_folder


@each_row(
    ("platform", "environment", "expected"),
    [
        ("linux", {}, "/home/me/.cache/toolcrib"),
        ("linux", {"XDG_CACHE_HOME": "/c"}, "/c/toolcrib"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/toolcrib"),
        ("darwin", {}, "/home/me/Library/Caches/toolcrib"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/toolcrib/Cache"),
        ("linux", {"TOOLCRIB_CACHE": "/t", "XDG_CACHE_HOME": "/c"}, "/t"),
        ("win32", {"TOOLCRIB_CACHE": "/t"}, "/t"),
    ],
)
def test_where_the_cache_is(
    monkeypatch: pytest.MonkeyPatch, platform: str, environment: dict[str, str], expected: str
) -> None:
    for name in ("TOOLCRIB_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder().as_posix() == expected
