"""A real browser (Debian's chromium) with a page of a chat app; a console error fails the test."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

import pytest
from playwright.async_api import BrowserContext, ConsoleMessage, Page, async_playwright, expect

expect.set_options(timeout=20_000)  # other tests may use the machine
_AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()


@asynccontextmanager
async def browsing(*expected: str) -> AsyncIterator[BrowserContext]:
    """Yield a browser; `expected` are parts of what its console may complain of."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no chromium on this machine")
    complaints: list[str] = []
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        browser = await playwright.chromium.launch(executable_path=chromium, args=arguments)
        context = await browser.new_context(viewport={"width": 1200, "height": 860})
        context.set_default_timeout(20_000)

        def listen(said: ConsoleMessage) -> None:
            if said.type == "error":
                complaints.append(said.text)

        context.on("console", listen)
        context.on("weberror", lambda raised: complaints.append(str(raised.error)))
        yield context
        await browser.close()
    assert [said for said in complaints if not any(each in said for each in expected)] == []


async def ask(page: Page, text: str) -> None:
    """Send a question, once the page has heard that the answer before it is over."""
    await page.get_by_label("Your question").fill(text)
    await expect(page.get_by_role("button", name="Send")).to_be_visible()
    await page.keyboard.press("Enter")


async def violations(page: Page) -> list[Any]:
    """Return what axe-core finds wrong with the page as it is, for those who cannot see it."""
    await page.evaluate(_AXE)
    found: dict[str, Any] = await page.evaluate("axe.run()")
    return [
        (each["id"], [node["target"] for node in each["nodes"]]) for each in found["violations"]
    ]
