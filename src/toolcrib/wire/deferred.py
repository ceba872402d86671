"""Tools that a search found, told where they were found and not in the list of tools.

A provider keeps what it has read of a request up to the first byte that is another one, and the list
of tools comes first; Claude's newest models may refuse their own thoughts where it has changed. So it
stays as it was, and what is found stands at the end, in the result of the search.

Rule: a tool is told there only while the message that brought it is in the request. Where that is gone
(summed up, or left out) the tool is in the list again: what is on offer is told in every request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from toolcrib.errors import RequestError
from toolcrib.values.message import ChatRequest, Message

Loaded: TypeAlias = Mapping[str, bytes]
"""The tools on offer that results bring: by own name, each as the provider is told it (JSON)."""


class DeferredForm(msgspec.Struct, frozen=True, kw_only=True):
    """Says how a provider takes tools where they were found, and who is known to do so: the `models`
    that the pattern finds (None: not one), at `servers`.

    `mark` are the members of such a tool, and `listed` is whether it is in the list of tools, too;
    `without` are the members that no tool may have in a request with a search. `search` makes of the
    search tool what the provider knows it as; `call_name` is the name under which it is then called.
    """

    models: str | None
    servers: frozenset[str]
    mark: Mapping[str, Any]
    listed: bool
    without: frozenset[str] = frozenset()
    search: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    call_name: str = ""

    def at(self, host: str) -> DeferredForm:
        """Return the form as it is known at a server, by its host name."""
        known = any(host == name or host.endswith(f".{name}") for name in self.servers)
        return self if known else msgspec.structs.replace(self, models=None)

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
    """Return whether a request tells what its search found where it was found; `names` are own name →
    wire name.

    Not where the choice is among some tools, or is one of them: that names tools in the list; and not
    where another tool is called as the search would be. Raises RequestError where it is asked for, and
    the wire has no form for it.
    """
    if form is None:
        if request.deferred:
            said = "has no form for tools that are told where they were found; leave it None"
            raise RequestError(f"deferred=True: {wire} {said}")
        return False
    known = form.models is not None and re.search(form.models, model) is not None
    wanted = known if request.deferred is None else request.deferred
    choice = request.tool_choice
    fits = not choice.allowed and choice.mode != "tool" and request.search_tool in names
    others = (*names.values(), *(one.get("type") for one in request.settings.provider_tools))
    return wanted and fits and form.call_name not in others


def loads_of(message: Message, search: str) -> tuple[str, ...]:
    """Return the tools that a message brings: one that is a result of that search, and did not fail."""
    return message.loads if message.name == search and not message.is_error else ()


def brought(request: ChatRequest) -> frozenset[str]:
    """Return the names of the tools that the results of a request's search bring."""
    search = request.search_tool
    found = (name for m in request.messages if m.loads for name in loads_of(m, search))
    return frozenset(found) - {search}
