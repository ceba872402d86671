"""Mistral's wire: OpenAI's chat, but for what is replaced here.

Facts: https://docs.mistral.ai/api/#tag/chat and the types of the `mistralai` package.
"""

from __future__ import annotations

import msgspec

from toolcrib.wire.decoding import decoding_by
from toolcrib.wire.forms import MISTRAL_TOOLS
from toolcrib.wire.mistral.history import MistralHistory
from toolcrib.wire.mistral.reply import MistralReply
from toolcrib.wire.openai_chat import OPENAI_CHAT
from toolcrib.wire.output import MISTRAL_OUTPUT

MISTRAL = msgspec.structs.replace(
    OPENAI_CHAT,
    name="mistral",
    tools=MISTRAL_TOOLS,
    make_decoder=decoding_by(MistralReply),
    history=MistralHistory,
    required_choice="any",
    allowed_tools=False,
    stream_usage=False,
    state_per_server=False,
    output=MISTRAL_OUTPUT,
)
"""Usage comes with every stream, unasked."""
