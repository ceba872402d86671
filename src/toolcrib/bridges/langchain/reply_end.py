"""How a reply ended, according to the provider's finish reason in LangChain's message.

Rule: after a reason that no list of natural reasons contains, no call runs, as with this library's
own clients. The lists of all wires count, since the message does not say which wire it was.
LangChain completes the arguments of a reply that was cut, and the call then looks whole. A message
without any reason counts as whole, because fake models and some providers never give one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Any

from langchain_core.messages import AIMessage

from toolcrib.errors import ErrorCode
from toolcrib.values.call import CallFault
from toolcrib.wire import WIRES
from toolcrib.wire.calls import NATURAL, unlisted

_REASONS = frozenset(("finishreason", "stopreason", "donereason", "incompletedetails"))
"""Providers' names for it, in any case. The last one is OpenAI's, and holds a `reason`."""
_NATIVE = "nativefinishreason"  # a gateway's name for the model's own reason, which can only forbid
_HOLDERS = ("choices", "candidates")
_DEEPEST = 4

_MEANINGS = [item for wire in WIRES.values() for item in wire.finish_reasons.items()]
_LISTED = frozenset(word for word, meaning in _MEANINGS if meaning not in NATURAL)
_WHOLE = frozenset(word for word, meaning in _MEANINGS if meaning in NATURAL).union(
    *(wire.natural_reasons for wire in WIRES.values())
)


def fault_of(reply: AIMessage | None, natural: Collection[str]) -> CallFault | None:
    """Return a fault for the calls of a reply that may have been cut. `natural` has further
    reasons, in lower case, after which calls may run."""
    metadata = {} if reply is None else reply.response_metadata
    fault = None
    for reason in _reasons(metadata):
        word = reason.lower()
        if word.partition(":")[0] in _LISTED:
            return CallFault(ErrorCode.TRUNCATED)
        if not _is_natural(word, {*_WHOLE, *natural}):
            fault = unlisted(reason)
    return fault


def _is_natural(word: str, natural: Collection[str]) -> bool:
    """Return whether it is a natural reason, or several joined ones. LangChain joins what each
    chunk of a stream said, and some servers say it twice."""
    words = "|".join(re.escape(reason) for reason in natural if not reason.isdigit())
    return word in natural or re.fullmatch(f"(?:{words})+", word) is not None


def _reasons(metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield each reason in the form in which the provider sent it."""
    if isinstance(status := metadata.get("status"), str):  # from OpenAI's Responses
        yield from _words(status)
    for name, value in _members(metadata, _DEEPEST):
        key = name.lower().replace("_", "")
        if key in _REASONS:
            yield from _words(value)
        elif key == _NATIVE:
            yield from (word for word in _words(value) if word.lower() in _LISTED)


def _members(mapping: Mapping[str, Any], levels: int) -> Iterator[tuple[str, Any]]:
    for name, value in mapping.items():
        yield str(name), value
        inner = value if isinstance(value, list) and name in _HOLDERS else [value]
        for child in inner if levels else ():
            if isinstance(child, Mapping):
                yield from _members(child, levels - 1)


def _words(reason: object) -> Iterator[str]:
    """Yield a reason as a string. null and empty values are no reason. Any other value is a reason
    that is in no list."""
    if isinstance(reason, Mapping):
        reason = reason.get("reason") or dict(reason) or None
    for element in reason if isinstance(reason, list) else [reason]:
        value = element.value if isinstance(element, Enum) else element
        if value is not None and (word := str(value).strip()):
            yield word
