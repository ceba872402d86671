"""Which of a response's items go back with the next request, as they came.

Reasoning goes back before what it led to, and only if the server can read it again. Refused
otherwise: "Item … not found", "… provided without its required following item".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

CALLS = frozenset(("function_call", "custom_tool_call"))
TEXTS = {"output_text": "text", "text": "text", "refusal": "refusal"}
"""Parts of a message that are text, and where they have it."""

_PLAIN = {
    "message": frozenset(("type", "id", "status", "role", "content")),
    "function_call": frozenset(("type", "id", "status", "call_id", "name", "arguments")),
}


def message_text(items: Iterable[Any]) -> str:
    """All text in the messages among these items, refusals too."""
    return "".join(text for item in items for _, text, _ in texts_of(item))


def texts_of(item: Any) -> Iterator[tuple[int, str, bool]]:
    """Place, text and whether it is a refusal, of each text in a message; other items have none."""
    if not isinstance(item, dict) or item.get("type") != "message":
        return
    content = item.get("content")
    if isinstance(content, str):
        yield 0, content, False
        return
    for at, part in enumerate(content if isinstance(content, list) else ()):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get(TEXTS[kind]) if isinstance(kind, str) and kind in TEXTS else None
        if isinstance(text, str):
            yield at, text, kind == "refusal"


def kept_items(items: list[dict[str, Any]], *, stored: bool) -> list[dict[str, Any]]:
    """What has to go back as it is; nothing where text and calls say as much.

    `stored` is whether the server may have kept the items, and knows them by their ids.
    """
    kept = [item for item in items if stored or not _unreadable(item)]
    while kept and kept[-1].get("type") == "reasoning":
        kept.pop()
    kinds = [item.get("type") for item in kept]
    in_order = "message" not in kinds[1:]
    return [] if in_order and all(map(_plain, kept)) else kept


def _unreadable(item: dict[str, Any]) -> bool:
    if item.get("type") != "reasoning":
        return False
    return not (item.get("encrypted_content") or item.get("content"))


def _plain(item: dict[str, Any]) -> bool:
    members = {key for key, value in item.items() if value is not None}
    refused = any(refusal for _, _, refusal in texts_of(item))
    return not refused and members <= _PLAIN.get(str(item.get("type")), frozenset())
