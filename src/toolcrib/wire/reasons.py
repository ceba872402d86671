"""Reasons for the end of a reply that several wires know: gateways pass on the model's own."""

from __future__ import annotations

from toolcrib.values.message import FinishReason

GEMINI_FILTERED: dict[str, FinishReason] = {
    "safety": "content_filter",
    "recitation": "content_filter",
    "blocklist": "content_filter",
    "prohibited_content": "content_filter",
    "spii": "content_filter",
    "model_armor": "content_filter",
    "image_safety": "content_filter",
    "image_prohibited_content": "content_filter",
    "image_recitation": "content_filter",
}
"""https://ai.google.dev/api/generate-content#FinishReason, those of a filter, in lower case."""
