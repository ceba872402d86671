"""What a reply costs. Prices are those that genai-prices brings along; nothing is fetched.

A price that is not known is None, never zero.
"""

from __future__ import annotations

from decimal import Decimal
from types import ModuleType

from toolcrib.errors import MissingExtraError
from toolcrib.values.message import Reply, Usage
from toolcrib.values.typed import names_wrong_types

_PROVIDERS = {"gemini": "google", "bedrock": "aws", "openai-responses": "openai"}
"""What genai-prices calls a provider, where `client_for` has another name for it."""


@names_wrong_types
def cost_of(
    spent: Reply | Usage, model: str | None = None, *, provider: str | None = None
) -> Decimal | None:
    """US dollars for a reply, or for the tokens of one request; None where no price is known.

    `model` defaults to the one that the reply says was asked. `provider` is a name as `client_for` and
    genai-prices have them ("openai", "bedrock", "openrouter"), or a base URL; without it the model's
    name alone decides, and a private server that uses a known name is charged for.

    A long request may cost more by the token than a short one: add up what replies cost, do not price
    the sum of their tokens. Raises MissingExtraError.
    """
    library = _library()
    usage = spent.usage if isinstance(spent, Reply) else spent
    name = model or (spent.model if isinstance(spent, Reply) else "")
    read = min(usage.cache_read, usage.input_tokens)
    tokens = library.Usage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=read,
        cache_write_tokens=min(usage.cache_written, usage.input_tokens - read),
        output_tokens=usage.output_tokens,
    )
    where = {}
    if provider is not None:
        is_url = provider.startswith(("http://", "https://"))
        key = "provider_api_url" if is_url else "provider_id"
        where[key] = _PROVIDERS.get(provider, provider)
    try:
        price: Decimal = library.calc_price(
            tokens, name.removeprefix("models/"), **where
        ).total_price
    except LookupError:
        return None
    return price


def _library() -> ModuleType:
    try:
        import genai_prices
    except ImportError:
        raise MissingExtraError("prices", "the cost of a reply") from None
    return genai_prices
