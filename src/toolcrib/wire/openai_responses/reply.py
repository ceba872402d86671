"""The reply under construction: what events and whole bodies of responses add to it.

A response has no finish reason: its status says whether it is whole, its items what is in it.
https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolcrib.errors import WireError
from toolcrib.values.call import ToolCall
from toolcrib.values.message import Reply, Usage
from toolcrib.values.offer import Offer
from toolcrib.wire.base import Wire
from toolcrib.wire.builder import Parts
from toolcrib.wire.calls import CONTRADICTORY, CallAssembler
from toolcrib.wire.ending import NATURAL, Ending
from toolcrib.wire.failure import reported_error
from toolcrib.wire.json_text import cached, counted, is_object, mended
from toolcrib.wire.openai_responses.kept import kept_items
from toolcrib.wire.openai_responses.output import Output

_GOES_ON = ("queued", "in_progress")
_ENDS = {
    "response.completed": "completed",
    "response.done": "completed",  # can1357/oh-my-pi#4692
    "response.incomplete": "incomplete",
    "response.cancelled": "cancelled",
    "response.failed": "failed",
}
_EVENTS: Mapping[str, Callable[[Output, dict[str, Any], Parts], None]] = {
    "response.output_item.added": Output.begun,
    "response.output_item.done": Output.done,
    "response.function_call_arguments.delta": Output.arguments_delta,
    "response.function_call_arguments.done": Output.arguments_done,
    "response.custom_tool_call_input.delta": Output.arguments_delta,
    "response.custom_tool_call_input.done": Output.arguments_done,
    "response.output_text.delta": Output.text,
    "response.output_text.done": Output.text,
    "response.refusal.delta": Output.text,
    "response.refusal.done": Output.text,
}


class ResponsesReply:
    """Takes events, gives the `Reply`. `known`, `over` and `torn` are a `Builder`'s."""

    def __init__(self, wire: Wire, *, offer: Offer, ids: str) -> None:
        self.known = self.over = self.torn = False
        self._wire = wire
        self._ending = Ending(wire, offer)
        self._offer = offer
        self._ids = ids
        self._output = Output(offer, ids)
        self._response: dict[str, Any] = {}
        self._id = ""

    def body(self, body: dict[str, Any], data: bytes) -> None:
        if not isinstance(body.get("output"), list) and body.get("object") != "response":
            raise WireError("the reply has no output: this is not a response")
        self._output.source.data = data
        self._output.listed(body.get("output"), [], streamed=False)
        self._end(body, body.get("status"))

    def event(self, event: dict[str, Any], data: bytes, name: bytes, parts: Parts) -> None:
        kind = event.get("type")
        if kind is None:
            kind = event["type"] = name.decode("utf-8", "replace")
        if kind in ("error", "response.error"):
            raise reported_error({key: value for key, value in event.items() if key != "type"})
        if not isinstance(kind, str) or not kind.startswith("response."):
            return
        self.known = True
        self._output.source.data = data
        if take := _EVENTS.get(kind):
            take(self._output, event, parts)
        elif isinstance(response := event.get("response"), dict):
            given = response.get("id")
            is_other = self._id not in ("", given)
            if is_other and (kind == "response.created" or (kind in _ENDS and given)):
                self._ending.sign("incomplete")  # of another one: the end of this is lost
            self._id = self._id or str(response.get("id") or "")
            self._response = response
            if kind in _ENDS:
                self._output.listed(response.get("output"), parts, streamed=True)
                self._end(response, _status(response, _ENDS[kind]))
        elif kind in _ENDS:
            self._end({}, _ENDS[kind])

    def _end(self, response: dict[str, Any], status: Any) -> None:
        """Take the response that says how it all ended. Raises ProviderError if it failed."""
        if status == "failed" or response.get("error"):
            raise reported_error(response.get("error") or "the response failed")
        self.known = self.over = True
        self._response = response or self._response
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        if reason or status == "incomplete":
            meaning = self._wire.meaning(str(reason or status))
            self._ending.said(reason or status, "incomplete" if meaning in NATURAL else meaning)
        else:
            self._ending.said(status or "", None if status else "stop")

    def finish(self, *, ended: bool, raw: Any) -> Reply:
        """The reply. Only a whole response is its end: `[DONE]` alone says nothing of its status."""
        if self.torn or not (ended and self.over):
            self._ending.sign("incomplete")
        items = self._output.items
        if any(item.cut for item in items if item.call or item.texts):
            self._ending.sign("length")
        calls = self._calls()
        usage = self._response.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        return self._ending.reply(
            (str(text) for item in items for text in item.texts.values()),
            calls,
            Usage(
                1,
                counted(usage, "input_tokens"),
                counted(usage, "output_tokens"),
                cached(usage, "input_tokens_details"),
            ),
            raw=self._response or raw,
            state=self._state(calls),
            refused=self._output.refused,
        )

    def _calls(self) -> tuple[ToolCall, ...]:
        """The calls. One that no sign has ended, and whose arguments are not whole, was cut."""
        assembler = CallAssembler(self._offer, self._ids)
        for item in self._output.calls:
            text = item.whole
            begun = not item.settled and bool(item.name or text)
            if begun and self._ending.cut is None and not is_object(mended(text)):
                self._ending.sign("incomplete")
            assembler.whole(
                item.call_id or item.id,
                item.name,
                text,
                fault=CONTRADICTORY if item.contradictory else None,
                notes=("streamed_otherwise",) if item.streamed_otherwise else (),
            )
        return self._ending.calls(assembler)

    def _state(self, calls: tuple[ToolCall, ...]) -> list[Any]:
        """The items for the next request; none if one of them has not come to its end."""
        output = self._output
        items = [item.final for item in output.items if item.final is not None]
        if len(items) < len(output.items) or len(calls) < len(output.calls):
            return []
        return kept_items(items, stored=self._response.get("store") is not False)


def _status(response: dict[str, Any], says: str) -> Any:
    """How a stream ended: by the event's own word, unless the status is a worse one.

    Some servers' `status` is still that of the beginning.
    """
    status = response.get("status")
    return says if says != "completed" or status is None or status in _GOES_ON else status
