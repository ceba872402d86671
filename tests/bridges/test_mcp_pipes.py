"""Standard input, line by line: whole, bounded, and left at any time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from toolcrib.bridges.mcp import pipes
from toolcrib.bridges.mcp.pipes import StandardInput


@pytest.fixture
def pipe() -> Iterator[int]:
    """The end of a pipe that whoever writes has, whose other end is standard input."""
    before = os.dup(0)
    reads, writes = os.pipe()
    os.dup2(reads, 0)
    os.close(reads)
    yield writes
    os.dup2(before, 0)
    os.close(before)


async def test_lines_come_whole_however_they_are_cut(pipe: int) -> None:
    async with StandardInput() as source:
        for piece in (b"on", b"e\ntwo\nthr", "€".encode()[:1], "€".encode()[1:] + b"\n", b"cut"):
            os.write(pipe, piece)
            await asyncio.sleep(0.01)
        os.close(pipe)
        assert [line async for line in source] == ["one", "two", "thr€"]
        assert os.read(0, 1) == b""  # meanwhile nobody else reads what the client sends


async def test_a_line_without_end_ends_the_connection(
    pipe: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipes, "MAX_LINE", 100)
    async with StandardInput() as source:
        os.write(pipe, b"short\n" + b"x" * 101)
        async with asyncio.timeout(5):
            assert [line async for line in source] == ["short"]
    os.close(pipe)


async def test_it_can_be_left_while_nobody_writes(pipe: int) -> None:
    stop = asyncio.Event()
    async with StandardInput(stop) as source:
        stop.set()
        async with asyncio.timeout(5):
            assert [line async for line in source] == []
    os.close(pipe)
