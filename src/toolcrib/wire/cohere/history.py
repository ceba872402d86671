"""The messages of a request to Cohere: OpenAI's, but for what its service says of them in refusing.

"system turn must be the first in the list": the texts of all system messages are one message, before
the others. "message must not be empty in a turn": what says and calls nothing is left out.
https://docs.cohere.com/reference/errors
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolcrib.values.message import Message
from toolcrib.wire.history import SentCall, dumps
from toolcrib.wire.openai_chat.history import ChatHistory, call_form


class CohereHistory(ChatHistory):
    """https://docs.cohere.com/v2/reference/chat, `messages`. A result has no error flag."""

    @property
    def silent(self) -> bool:
        return not (self._encoded or self.instructions)

    def encoded(self) -> bytes:
        others = super().encoded()
        if not self.instructions:
            return others
        first = dumps({"role": "system", "content": "\n\n".join(self.instructions)})
        return b"[" + first + (b"," if self._encoded else b"") + others[1:]

    def system(self, message: Message) -> Sequence[Any]:
        if message.content:
            self.instructions.append(message.content)
        return []

    def user(self, message: Message) -> Sequence[Any]:
        return super().user(message) if message.content or message.images else []

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        """Thinking, a plan and citations go back as they came, unless the text was changed since.

        "text content is not allowed when tool_calls are provided […] use 'tool_plan'"
        (vercel/ai#5794): so a text beside calls is their plan.
        """
        blocks, plan, citations = _kept(self.state(message))
        form: dict[str, Any] = {"role": "assistant"}
        if not calls:
            if not message.content:
                return []
            if not blocks or "".join(b.get("text", "") for b in blocks) != message.content:
                return [form | {"content": message.content}]
            cited = {"citations": citations} if citations else {}
            return [form | {"content": blocks} | cited]
        if thinking := [block for block in blocks if block.get("type") != "text"]:
            form["content"] = thinking
        if plans := [text for text in (plan, message.content) if text]:
            form["tool_plan"] = "\n\n".join(plans)
        return [form | {"tool_calls": [call_form(call) for call in calls]}]


def _kept(state: Any) -> tuple[list[dict[str, Any]], str, list[Any]]:
    """Content, plan and citations out of a state; of one that is something else, nothing."""
    state = state if isinstance(state, dict) else {}
    content, plan, citations = map(state.get, ("content", "tool_plan", "citations"))
    blocks = [b for b in content if _usable(b)] if isinstance(content, list) else []
    known = citations if isinstance(citations, list) else []
    return blocks, plan if isinstance(plan, str) else "", known


def _usable(block: Any) -> bool:
    return isinstance(block, dict) and isinstance(block.get("text", ""), str)
