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
_FORBIDDING = frozenset(("nativefinishreason", "status"))
"""What can only forbid: a gateway's name for the model's own reason, and what many objects have."""
_MOST_MEMBERS = 1_000_000  # a reply may bring the probability of each token

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
    """Yield each reason in the form in which the provider sent it, wherever it is.

    Metadata that is too large to be read whole has a reason that is in no list.
    """
    if isinstance(status := metadata.get("status"), str):  # from OpenAI's Responses
        yield from _words(status)
    for count, (name, value) in enumerate(_members(metadata)):
        if count >= _MOST_MEMBERS:
            yield f"more than {_MOST_MEMBERS:,} members of metadata"
            return
        key = name.lower().replace("_", "").replace("-", "")
        if key in _REASONS:
            yield from _words(value)
        elif key in _FORBIDDING:
            yield from (word for word in _words(value) if word.lower() in _LISTED)


def _members(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the members of objects at any depth; items of lists have no name."""
    rest: list[Iterator[tuple[object, Any]]] = [iter(metadata.items())]
    while rest:
        for name, value in rest[-1]:
            yield str(name), value
            if isinstance(value, Mapping):
                rest.append(iter(value.items()))
                break
            if isinstance(value, list | tuple):
                rest.append(iter([("", item) for item in value]))
                break
        else:
            rest.pop()


def _words(reason: object) -> Iterator[str]:
    """Yield a reason as a string. null and empty values are no reason. Any other value is a reason
    that is in no list."""
    if isinstance(reason, Mapping):
        reason = reason.get("reason") or dict(reason) or None
    for element in reason if isinstance(reason, list) else [reason]:
        value = element.value if isinstance(element, Enum) else element
        if value is not None and (word := str(value).strip()):
            yield word
