"""Photograph the chat page in chromium, in every state that it has, and make its moving picture.

Usage: make pictures, or PYTHONPATH=tests python benchmarks/picture_page.py [STATE… | moving]

The model is scripted, all else is real: the endpoint over HTTP, its database, the tools, the page. Each
state goes to .pictures/, light and dark, wide and narrow; the few that docs/chat.md shows go to docs/.
"""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
import time
from pathlib import Path

from chat.browser import browsing
from chat.chat_helpers import serving
from chat.states import app, nothing, visit
from PIL import Image
from playwright.async_api import Page, expect

ROOT = Path(__file__).parents[1]
ALBUM, DOCS = ROOT / ".pictures", ROOT / "docs"
COLOURS = 96  # of a still
GAP = 12  # pixels
MOVING, QUALITY = (920, 620), 88
FRAME, PAUSE, READING, LONGEST, LAST = 0.05, 0.05, 0.9, 1.2, 3.0  # seconds of the moving picture


SHOWN = {  # pictures of docs/, and what stands side by side there
    "chat-approval": ["waiting-light-wide"],
    "chat-result": ["completed-dark-wide"],
    "chat-why": ["why-light-wide"],
    "chat-narrow": ["edit-light-narrow", "unknown-light-narrow", "hostile-dark-narrow"],
}


async def stills(names: list[str]) -> None:
    async def shoot(page: Page, name: str) -> None:
        if not names or name.rsplit("-", 2)[0] in names:
            await page.screenshot(path=ALBUM / f"{name}.png")

    ALBUM.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        await visit(shoot, folder)
    for name, places in SHOWN.items():
        _save_small([ALBUM / f"{place}.png" for place in places], DOCS / f"{name}.png")


def _save_small(sources: list[Path], target: Path) -> None:
    pictures = [Image.open(source).convert("RGB") for source in sources]
    width = sum(each.width + GAP for each in pictures) - GAP
    whole, at = Image.new("RGB", (width, pictures[0].height), "#8b949e"), 0
    for each in pictures:
        whole.paste(each, (at, 0))
        at += each.width + GAP
    whole.quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"{target}: {target.stat().st_size / 1000:.0f} kB")


# The moving picture: the page is looked at again and again while somebody uses it.


async def moving(target: Path) -> None:
    frames: list[tuple[float, bytes]] = []
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/crib.db"
        async with serving(app(url, PAUSE)) as base, browsing() as context:
            page = await context.new_page()
            await page.set_viewport_size({"width": MOVING[0], "height": MOVING[1]})
            await page.emulate_media(color_scheme="light", reduced_motion="reduce")
            await page.goto(base)
            await nothing(page)
            using = asyncio.create_task(_use(page))
            while not using.done():
                frames.append((time.monotonic(), await page.screenshot()))
                await asyncio.sleep(FRAME)
            await using
            frames.append((time.monotonic(), await page.screenshot()))
    _save_moving(frames, target)


async def _use(page: Page) -> None:
    question = page.get_by_label("Your question")
    await question.press_sequentially("Refund Ada 10 % of the lamp.", delay=45)
    await asyncio.sleep(READING / 2)
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("May this call run?")).to_be_visible()
    await asyncio.sleep(READING)
    approve = page.get_by_role("button", name="Approve", exact=True)
    await approve.hover()
    await approve.focus()
    await asyncio.sleep(READING)
    await approve.click()
    await expect(page.get_by_role("button", name="Ask again", exact=True)).to_be_visible()
    await asyncio.sleep(READING)
    await page.get_by_role("button", name="Why? refund").hover()
    await asyncio.sleep(READING / 2)
    await page.get_by_role("button", name="Why? refund").click()
    why = page.get_by_role("region", name="Why refund")
    await expect(why.get_by_text("Approved by")).to_be_visible()
    await why.evaluate("e => e.closest('.call').scrollIntoView({block: 'start'})")
    await asyncio.sleep(FRAME)


def _save_moving(frames: list[tuple[float, bytes]], target: Path) -> None:
    """Save what differs from the look before, for as long as it was there; long waits are cut short."""
    seen = [f for at, f in enumerate(frames) if at == 0 or f[1] != frames[at - 1][1]]
    ends = [at for at, _ in seen[1:]]
    waits = [min(LONGEST, end - at) for (at, _), end in zip(seen, ends, strict=False)]
    durations = [round(1000 * wait) for wait in (*waits, LAST)]
    pictures = [Image.open(io.BytesIO(data)).convert("RGB") for _, data in seen]
    pictures[0].save(
        target, save_all=True, append_images=pictures[1:], duration=durations, loop=0,
        quality=QUALITY, method=6, minimize_size=True,
    )  # fmt: skip
    size = target.stat().st_size / 1000
    print(f"{target}: {sum(durations) / 1000:.0f} s, {len(seen)} frames, {size:.0f} kB")


def main(arguments: list[str]) -> None:
    if arguments != ["moving"]:
        asyncio.run(stills(arguments))
    if arguments in ([], ["moving"]):
        asyncio.run(moving(DOCS / "page.webp"))


if __name__ == "__main__":
    main(sys.argv[1:])
