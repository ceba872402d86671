"""The messages of a request to Mistral: OpenAI's, under rules of its own for ids and for the order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolcrib.values.message import Message
from toolcrib.wire.history import IdRule, SentCall, SentResult
from toolcrib.wire.names import NameRule
from toolcrib.wire.openai_chat_history import ChatHistory

_HEARD = {"role": "assistant", "content": "OK."}


class MistralHistory(ChatHistory):
    """https://docs.mistral.ai/api/#tag/chat, `messages`.

    Mistral refuses a user's message directly after a result ("Unexpected role 'user' after role
    'tool'"): an assistant's word comes between the two. It refuses an assistant's message that says
    and calls nothing: that one is left out.
    """

    ids = IdRule("A-Za-z0-9", 9, exact=True)
    given_ids = ids

    def __init__(self, wire: str, rule: NameRule, names: Mapping[str, str]) -> None:
        super().__init__(wire, rule, names)
        self._after_results = False

    def system(self, message: Message) -> Sequence[Any]:
        return [*self._heard(), *super().system(message)]

    def user(self, message: Message) -> Sequence[Any]:
        return [*self._heard(), *super().user(message)]

    def assistant(self, message: Message, calls: Sequence[SentCall]) -> Sequence[Any]:
        state = self.state(message)
        if not (message.content or calls or state):
            return []
        self._after_results = False
        (form,) = super().assistant(message, calls)
        return [form | {"content": state}] if state else [form]

    def results(self, results: Sequence[SentResult]) -> Sequence[Any]:
        self._after_results = True
        return super().results(results)

    def _heard(self) -> Sequence[Any]:
        after, self._after_results = self._after_results, False
        return [_HEARD] if after else []
