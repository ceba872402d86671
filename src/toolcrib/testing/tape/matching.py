"""Which recorded exchange answers a request: the first unplayed one of the same request.

The same is: method, path with query, and body as JSON, whose keys have no order.
Headers do not count, nor, where no other answer is left, the server: neither a key nor a port is the
same tomorrow.
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from toolcrib.clients import Outgoing
from toolcrib.errors import ToolcribError
from toolcrib.testing.tape.exchange import Asked
from toolcrib.testing.tape.masking import masked, masked_url

Compare: TypeAlias = Callable[[Any], Any]
"""From a request's JSON body, which is its own copy, to what of it is compared."""

_SHOWN = 3
_LONGEST = 60
_MISSING = object()


def asked(request: Outgoing, secrets: Iterable[str]) -> Asked:
    """The request as a file may hold it."""
    body = b"".join(masked([request.body], secrets))
    url = masked_url(request.url, secrets)
    try:
        return Asked(method=request.method, url=url, body=json.loads(body) if body else None)
    except (ValueError, RecursionError):
        coded = base64.b64encode(body).decode()
        return Asked(method=request.method, url=url, base64=coded)


def path_of(request: Asked) -> str:
    return urlsplit(request.url)._replace(scheme="", netloc="").geturl()


def key_of(request: Asked, compare: Compare | None) -> tuple[str, str, str]:
    """What two requests share if they are the same. Raises ToolcribError for a useless `compare`."""
    try:
        body = json.dumps(_compared(request, compare), sort_keys=True, separators=(",", ":"))
    except TypeError:
        raise ToolcribError("compare= has to give what JSON can hold") from None
    return request.method, path_of(request), body + request.base64


def differences(recorded: Asked, now: Asked, compare: Compare | None) -> list[str]:
    """One line for each place where they differ: `/messages/0/content: recorded "a", now "b"`."""
    pairs = [("method", recorded.method, now.method), ("path", path_of(recorded), path_of(now))]
    lines = [_line(name, old, new) for name, old, new in pairs if old != new]
    if recorded.base64 != now.base64:
        lines.append("the body, which is no JSON")
    there, here = _compared(recorded, compare), _compared(now, compare)
    return lines + [_line(*place) for place in _places(there, here, "")]


def shortened(lines: list[str]) -> str:
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more


def _compared(request: Asked, compare: Compare | None) -> Any:
    if compare is None or request.body is None:
        return request.body
    compared = compare(copy.deepcopy(request.body))
    if compared is None:
        raise ToolcribError(
            "compare= has to give what is compared, and gave None: is a return missing?"
        )
    return compared


def _places(old: Any, new: Any, at: str) -> Iterator[tuple[str, Any, Any]]:
    """JSON Pointers to what differs, with what is there; nothing below a place that does."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *(name for name in new if name not in old)]:
            below = f"{at}/{name.replace('~', '~0').replace('/', '~1')}"
            yield from _places(old.get(name, _MISSING), new.get(name, _MISSING), below)
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            there, here = (side[index] if index < len(side) else _MISSING for side in (old, new))
            yield from _places(there, here, f"{at}/{index}")
    elif type(old) is not type(new) or old != new:
        yield at or "the body", old, new


def _line(at: str, old: Any, new: Any) -> str:
    return f"{at}: recorded {_shown(old, new)}, now {_shown(new, old)}"


def _shown(value: Any, other: Any) -> str:
    """The value as JSON; of a long text the part around where it differs from the other."""
    if value is _MISSING:
        return "nothing"
    if isinstance(value, str) and isinstance(other, str) and len(value) > _LONGEST:
        equal = itertools.takewhile(
            lambda pair: pair[0] == pair[1], zip(value, other, strict=False)
        )
        start = max(0, sum(1 for _ in equal) - _LONGEST // 3)
        value = ("…" if start else "") + value[start:]
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
