"""Who may connect and who may approve, where tools are served: by the chat, and by the MCP server.

Rule: a server without a token answers only this machine, and a token is too long to be guessed. A
caller may approve only what the application's own function returns True for. That function sees the
question with the arguments that will run, in its own copy, so that neither other arguments nor a
yes for a whole tool goes beyond it.
"""

from __future__ import annotations

import hmac
import inspect
import ipaddress
import re
from collections.abc import Callable, Iterable
from typing import TypeAlias

from toolcrib.failures import log_raised
from toolcrib.runner.approval import own_request
from toolcrib.values.decision import (
    Always,
    ApprovalRequest,
    Approve,
    Caller,
    ForRun,
    LimitedApprove,
)
from toolcrib.values.json import JsonObject
from toolcrib.values.typed import check_type

MayApprove: TypeAlias = Callable[[Caller, ApprovalRequest], bool]
SHORTEST_TOKEN = 16
HERE = ("localhost", "127.0.0.1", "[::1]")
"""The names that this machine has in URLs."""
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^\[\]:/?#@\s]*)(?::[0-9]{1,5})?")


def token_matcher(token: str) -> Callable[[str], bool]:
    """Return a function that says whether a request brings exactly this token.

    Raises ValueError for a token that is too short, or that no header can bring.
    """
    is_sendable = token.isascii() and token.isprintable() and token == token.strip()
    if len(token) < SHORTEST_TOKEN or not is_sendable:
        raise ValueError(
            f"a token has at least {SHORTEST_TOKEN} characters, all of them printable ASCII, and no "
            "space at its ends: secrets.token_urlsafe() makes one"
        )
    expected = token.encode()

    def is_token(candidate: str) -> bool:
        return hmac.compare_digest(candidate.strip().encode("utf-8", "surrogatepass"), expected)

    return is_token


def host_in(text: str) -> str | None:
    """Return the name in `name` or `name:port`, in lower case; None if anything else follows.

    `127.0.0.1:80.evil.com` is not a name of this machine.
    """
    match = _HOST.fullmatch(text)
    return None if match is None else match[1].lower()


def is_from_here(client: str | None, headers: Iterable[tuple[str, str]]) -> bool:
    """Return whether a request comes from this machine, and on behalf of nobody elsewhere.

    Its client has a loopback address, or none. A proxy on this machine says in its headers on whose
    behalf it asks.
    """
    forwarded = [value for name, value in headers if name.lower() in _FORWARDED]
    addresses = [address.strip() for value in forwarded for address in value.split(",")]
    return (client in (None, "testclient") or _is_here(client)) and all(map(_is_here, addresses))


def _is_here(address: str) -> bool:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped:  # from a dual-stack socket
        ip = ip.ipv4_mapped
    return ip.is_loopback


def anything(_caller: Caller, _request: ApprovalRequest) -> bool:
    """Let callers approve anything that they ask for. Then a yes may be for a whole tool, too."""
    return True


def yes_of(
    may_approve: MayApprove,
    caller: Caller,
    arguments: JsonObject | None = None,
    for_run: ForRun = False,
    always: Always | None = None,
) -> Approve:
    """Return a caller's approval, which the runner limits to what the application permits."""
    if may_approve is anything:
        return Approve(caller.id, arguments, for_run, always)
    return LimitedApprove(
        caller.id,
        arguments,
        for_run,
        always,
        may=lambda request: allows(may_approve, caller, request),
    )


def allows(may_approve: MayApprove, caller: Caller, request: ApprovalRequest) -> bool:
    """Return whether the application lets a caller answer.

    If its function fails, logs that and returns False.
    """
    try:
        return says_yes(may_approve, caller, request)
    except Exception as raised:  # noqa: BLE001  the application's code
        log_raised("`may_approve`", raised)
        return False


def says_yes(may_approve: MayApprove, caller: Caller, request: ApprovalRequest) -> bool:
    """Return whether the application lets a caller answer.

    Raises what its function raises, and TypeError for anything but True or False: the coroutine of
    an async function would be truthy.
    """
    permission: object = may_approve(caller, own_request(request))
    if inspect.iscoroutine(permission):
        permission.close()
    check_type(
        "what may_approve gives",
        permission,
        bool,
        "True or False, from a function that is not async",
    )
    return permission is True
