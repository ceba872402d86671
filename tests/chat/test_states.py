"""Every state of the page, in each width and colour: nobody is left out, and nothing is too wide."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat.browser import violations
from chat.states import visit
from playwright.async_api import Page, expect

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
OF_THE_PAGE = [
    "why",
    "edit",
    "form",
    "deny",
    "anew",
    "earlier",
    "search",
    "menu",
    "rename",
    "delete",
    "always",
    "rules",
]
"""States that a page has by itself, and loses with it."""


@pytest.mark.exhaustive
async def test_each_state_is_for_everybody_and_outlives_a_reload(tmp_path: Path) -> None:
    wrong: dict[str, object] = {}

    async def look(page: Page, name: str) -> None:
        found = await violations(page)
        if found or await page.evaluate(OVERFLOW) > 0:
            wrong[name] = found or "it is wider than the screen"
        if name.endswith("-dark-narrow"):  # the last look at a state
            await _reload(page, name.removesuffix("-dark-narrow"))

    await visit(look, str(tmp_path))
    assert wrong == {}


async def _reload(page: Page, state: str) -> None:
    """What the server knows is there again, and goes on: the next state is reached from here."""
    if state in (*OF_THE_PAGE, "alert", "lost", "sign-in"):
        return
    shown = page.locator(".viewport")
    before = await shown.inner_text()
    await page.reload()
    await expect(shown).to_have_text(before, use_inner_text=True)
