"""Tools that a search found, sent at the place where they were found and not in the list of tools.

A provider caches a request up to the first byte that differs, and the list of tools comes first.
Claude's newest models may also refuse their own thoughts if it has changed. So the list stays the
same, and tools that are found are at the end, in the result of the search.

Rule: a tool is sent there only while the message that brought it is in the request. If that message
is gone (summarised, or left out), the tool is in the list again. Every request contains what is on
offer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from toolcrib.errors import RequestError
from toolcrib.values.message import ChatRequest, Message

Loaded: TypeAlias = Mapping[str, bytes]
"""The tools on offer that results bring: by own name, each as it is sent to the provider (JSON)."""


class DeferredForm(msgspec.Struct, frozen=True, kw_only=True):
    """Says how a provider accepts tools where they were found, and who is known to do so.

    `models` is a pattern (None: no model), `servers` a set of hosts. `mark` holds the members that
    such a tool has; `listed` says whether it is in the list of tools, too; `without` names the
    members that no tool may have in a request with a search. `search` turns the search tool into
    the form that the provider knows, and `call_name` is the name under which it is then called.
    """

    models: str | None
    servers: frozenset[str]
    mark: Mapping[str, Any]
    listed: bool
    without: frozenset[str] = frozenset()
    search: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    call_name: str = ""

    def at(self, host: str) -> DeferredForm:
        """Return the form with what is known about a server, by its host name."""
        is_known = any(host == name or host.endswith(f".{name}") for name in self.servers)
        return self if is_known else msgspec.structs.replace(self, models=None)

    def __repr__(self) -> str:
        return f"DeferredForm(models={self.models!r})"


def is_deferred(
    form: DeferredForm | None,
    request: ChatRequest,
    names: Mapping[str, str],
    *,
    wire: str,
    model: str,
) -> bool:
    """Return whether a request sends what its search found at the place where it was found.

    `names` is own name → wire name. It does not if the choice is one tool or among some tools,
    which names tools in the list, or if another tool is called like the search. Raises RequestError
    if it is asked for and the wire has no form for it.
    """
    if form is None:
        if request.deferred:
            advice = "cannot send tools in the results of a search; leave it None"
            raise RequestError(f"deferred=True: {wire} {advice}")
        return False
    is_known = form.models is not None and re.search(form.models, model) is not None
    is_wanted = is_known if request.deferred is None else request.deferred
    choice = request.tool_choice
    is_possible = not choice.allowed and choice.mode != "tool" and request.search_tool in names
    other_names = (
        *names.values(),
        *(provider_tool.get("type") for provider_tool in request.settings.provider_tools),
    )
    return is_wanted and is_possible and form.call_name not in other_names


def loads_of(message: Message, search: str) -> tuple[str, ...]:
    """Return the tools that a message brings, if it is a successful result of that search."""
    return message.loads if message.name == search and not message.is_error else ()


def found_tool_names(request: ChatRequest) -> frozenset[str]:
    """Return the names of the tools that the results of a request's search bring."""
    search = request.search_tool
    names = (
        name for message in request.messages if message.loads for name in loads_of(message, search)
    )
    return frozenset(names) - {search}
