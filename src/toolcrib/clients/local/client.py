"""`LocalClient`: an `LLMClient` that needs no key and no network, and asks back when it is not sure.

Rule: it does one thing, which is to make a call for the last request. Where Needle is installed,
tools and calls are ranked by how likely they are (`ranking`). Without it, the nearest tool is
chosen (`choosing`). Its arguments are pieces of the request if the request reads like an example
(`reading`), and are written by the model otherwise (`arguments`). A call that does not use every
number and quotation of the request, says something that is not in the request, or is cut, becomes a
question back. Results are stated (`telling`) and never rephrased by the model.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from toolcrib.clients.base import PlanningClient
from toolcrib.clients.local.arguments import SHOTS, fill, filled
from toolcrib.clients.local.choosing import ToolChooser
from toolcrib.clients.local.model import (
    NEEDLE,
    Completion,
    Model,
    check_engine,
    is_installed,
    model_at,
    model_path,
    until_given_up,
)
from toolcrib.clients.local.needle import Needle, needle_at
from toolcrib.clients.local.ranking import (
    CERTAIN,
    CallRanker,
    RankedCall,
    RankedTool,
    can_write,
)
from toolcrib.clients.local.reading import (
    invents,
    leaves_out,
    missing_required,
    patterns_of,
    tokens,
    words_around,
)
from toolcrib.clients.local.telling import arguments_in, json_text, tell, value_text
from toolcrib.errors import RequestError, SourceError
from toolcrib.pick import MiniLM
from toolcrib.tools import as_tools
from toolcrib.values.call import ToolCall
from toolcrib.values.content import File, Image, as_texts, part_info, text_in
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject
from toolcrib.values.message import (
    ArgumentsPart,
    ChatRequest,
    Message,
    Offer,
    Reply,
    Settings,
    StreamPart,
    TextPart,
    Usage,
)
from toolcrib.values.typed import names_wrong_types

_TIE = 0.03
"""Two tools whose scores differ by less than this cannot be told apart."""

_CERTAIN_MARGIN = 0.015
_CERTAIN_COST = 0.5
_CERTAIN_COMPUTED_COST = 0.25
"""A reading is certain up to the cost `_CERTAIN_COST` (`_CERTAIN_COMPUTED_COST` if it has
computed values), provided that the next one costs at least `_CERTAIN_MARGIN` more."""

_MOST_UNREAD_WORDS = 1
"""How many words that occur in no example a certain reading may leave out."""

_VAGUE_SCORE = 0.1
"""Below this score, a tool is not chosen if its values could be any words."""

_MOST_ELLIPTIC_TOKENS = 6
_COMPLETE_SCORE = 0.2
"""A short request that fits no tool better than this may continue the previous call."""

_AGREEMENTS = frozenset(
    ("yes", "yes please", "yep", "yeah", "y", "ok", "sure", "right", "exactly", "correct")
)
"""Texts that agree to a question back and say nothing else."""

_MASKED_TOOLS = 6
"""For how many tools, the nearest by words, the request is also compared without its values."""

_SELF_DESCRIPTION = (
    "I am a small embedded model that can only fill in tool calls; "
    "for a conversation, choose a bigger one, such as openai:NAME."
)
NO_FIT = f"None of the tools fits that, so I called none. {_SELF_DESCRIPTION}"
NO_TOOLS = f"There is no tool that I may call. {_SELF_DESCRIPTION}"
NO_EXAMPLES = (
    "I cannot fill in {} from that: the tool has no examples of requests, by which I would read it"
    f" (@tool(examples=[…])). {_SELF_DESCRIPTION}"
)
NO_REQUEST = f"There is nothing asked. {_SELF_DESCRIPTION}"


class LocalClient(PlanningClient):
    """The embedded model. It picks a tool by its examples and fills in the call, within a second or
    so.

    `path` is a GGUF file, by default the installed model. If the last message is a user's, the
    reply contains one call, asks back where that is in doubt (for a tool without `examples` it says
    that it cannot fill in the call), or says that no tool fits. A short message may continue the
    last call of the conversation. The default model works together with Needle if that is
    installed. A bare yes to a question about a call with its arguments then runs that call. If the
    last message is a tool's result, the reply states the results. `ToolChoice` is respected: where
    it demands a call, nothing is asked back.

    From `settings`, `temperature` (0 if unset) and `extra` are passed to llama.cpp unchanged, and
    `max_tokens` can only lower the limit of a call. The model does not reason, has no tools of its
    own, and gives no typed answers: `reasoning` other than "none", `provider_tools`, and the
    `output` of an agent raise RequestError.

    One completion runs at a time. Clients of one file share one loaded model, which is freed when
    the last of them is closed. A closed client can be used again. A process made by `fork` needs a
    client of its own that is made there. Raises MissingExtraError without the extra "local", and
    SourceError if the file does not exist.
    """

    @names_wrong_types
    def __init__(
        self,
        path: str | Path | None = None,
        *,
        settings: Settings = Settings(),  # noqa: B008  frozen
    ) -> None:
        check_engine()
        self.settings = settings
        self._path = _model_file(path)
        self._name = "local" if path is None else f"local:{self._path.stem}"
        self._model: Model | None = None
        self._chooser = ToolChooser()
        self._ranker = _new_ranker() if path is None else None

    @property
    def model(self) -> str:
        return self._name

    async def chat(self, request: ChatRequest) -> Reply:
        """Return the whole reply. Raises RequestError, ProviderError, and SourceError if the file
        is no model."""
        reply: Reply = await until_given_up(lambda given_up: self._answer(request, given_up))
        return msgspec.structs.replace(reply, model=self._name, provider="local")

    async def stream(self, request: ChatRequest) -> AsyncIterator[StreamPart]:
        """Yield the same reply in parts, which are all available at once."""
        reply = await self.chat(request)
        if reply.text:
            yield TextPart(reply.text)
        for call in reply.tool_calls:
            yield ArgumentsPart(call.id, call.name, call.arguments)
        yield reply

    async def aclose(self) -> None:
        self._model = None
        if self._ranker is not None:
            self._ranker = None  # this frees Needle, too, if no other client holds it
            self._ranker = _new_ranker()

    def __repr__(self) -> str:
        return f"LocalClient({self._name!r})"

    def _answer(self, request: ChatRequest, given_up: threading.Event) -> Reply:
        """Return the reply. This blocks, so it runs in a thread."""
        ChatRequest.check(request)
        self._settings_of(request)
        _refuse_pictures(request.messages)
        tools = as_tools(request.tools)
        offer = Offer.of(tools)
        if request.messages and request.messages[-1].from_tool:
            return _text_reply(tell(request.messages, offer), offer)
        ranker = None if _is_forced(request) else self._ranker
        request, confirmed_question = _confirmed_request(request) if ranker else (request, "")
        request_text = _last_request(request.messages)
        ranked = self._ranked(request, request_text, offer)
        if not ranked:
            may_call = tools and request.tool_choice.mode != "none"
            return _text_reply(
                (NO_FIT if may_call else NO_TOOLS) if request_text else NO_REQUEST, offer
            )
        if ranker and (confirmed_question or not _is_continuation(ranked[0])):
            return self._ranked_reply(ranker, request, ranked, offer, given_up, confirmed_question)
        best, tool = ranked[0], ranked[0].tool
        if _is_forced(request) or tool is None:
            return self._call_or_question(request, best, offer, given_up)
        if best.score < _VAGUE_SCORE and _is_vague(best, request_text):
            return _text_reply(NO_FIT, offer)
        others = [c.tool for c in ranked[1:] if c.score > best.score - _TIE and c.tool]
        if others:
            return _text_reply(f"Do you mean {tool.name} or {others[0].name}?", offer)
        return self._call_or_question(request, best, offer, given_up)

    def _ranked_reply(
        self,
        ranker: _ModelRanker,
        request: ChatRequest,
        ranked: Sequence[RankedTool],
        offer: Offer,
        given_up: threading.Event,
        confirmed_question: str,
    ) -> Reply:
        """Return a call whose tool and arguments together are certain enough, or which the user
        confirmed by a yes to `confirmed_question`. Otherwise return a question back."""
        request_text = _last_request(request.messages)
        is_elliptic = _is_elliptic(request, request_text)
        likely, calls = ranker.rank(request_text, ranked, offer, is_elliptic=is_elliptic)
        best, tool = likely[0], likely[0].tool
        if tool is None:
            return _text_reply(NO_FIT, offer)
        if best.score < CERTAIN:
            other = f" or {likely[1].tool.name}" if likely[1].tool else ""
            return _text_reply(f"Do you mean {tool.name}{other}?", offer)
        if not confirmed_question and not can_write(tool):
            return self._call_or_question(request, best, offer, given_up)
        question = _question_about(tool, calls[0].arguments if calls else {})
        is_certain = calls and best.score * calls[0].chance >= CERTAIN
        if not calls or not (question == confirmed_question if confirmed_question else is_certain):
            return _text_reply(question, offer)
        return _call_reply(
            request, tool, Completion(json_text(calls[0].arguments), True, 0, 0), offer
        )

    def _call_or_question(
        self, request: ChatRequest, best: RankedTool, offer: Offer, given_up: threading.Event
    ) -> Reply:
        """Return a call as the tool's examples or the model fill it in, or a question back."""
        request_text, tool, forced = _last_request(request.messages), best.tool, _is_forced(request)
        if tool is None:
            return _text_reply(NO_FIT, offer)
        is_unread = not best.readings and _reads_all_examples(tool)
        is_complete = is_unread and not (missing_required(tool, {}) or leaves_out(request_text, {}))
        certain_arguments = {} if is_complete else _certain_arguments(best, request_text)
        if certain_arguments is not None:
            return _call_reply(
                request, tool, Completion(json_text(certain_arguments), True, 0, 0), offer
            )
        if is_unread and not forced:
            return _text_reply(_question_about(tool, {}), offer)
        completion = self._completion(request, request_text, tool, given_up)
        if not forced and not (
            completion.whole and _is_supported(best, tool, request_text, completion.text)
        ):
            return _text_reply(
                _question_about(tool, best.readings[0].arguments if best.readings else {}), offer
            )
        return _call_reply(request, tool, completion, offer)

    def _ranked(self, request: ChatRequest, request_text: str, offer: Offer) -> list[RankedTool]:
        choice = request.tool_choice
        if choice.mode == "none":
            return []
        allowed = choice.allowed or tuple(offer.tools)
        allowed_tools = tuple(tool for name, tool in offer.tools.items() if name in allowed)
        if choice.mode == "tool":
            chosen = offer.tools.get(choice.name or "")
            if chosen is None:
                raise RequestError(
                    f"tool_choice names {choice.name!r}, which is not among the offered tools"
                )
            return self._chooser.rank(request_text, (chosen,), must=True)
        is_forced = choice.mode == "required"
        if is_forced and not allowed_tools:
            raise RequestError("tool_choice 'required' needs tools, but none are offered")
        if not request_text and not is_forced:
            return []
        ranked = self._chooser.rank(request_text, allowed_tools, must=is_forced)
        previous_call = _last_call(request.messages)
        complete_score = _COMPLETE_SCORE if ranked and ranked[0].tool else 0.0
        if previous_call is None or not ranked or ranked[0].score >= complete_score:
            return ranked
        if not _is_elliptic(request, request_text):
            return ranked
        continuation = self._chooser.follow(
            request_text, allowed_tools, previous_call.name, arguments_in(previous_call.arguments)
        )
        return ranked if continuation is None else [continuation]

    def _completion(
        self,
        request: ChatRequest,
        request_text: str,
        tool: ToolDefinition,
        given_up: threading.Event,
    ) -> Completion:
        model = self._model
        if model is None:
            model = self._model = model_at(self._path)
        shots = self._chooser.nearest(request_text, tool.examples, SHOTS)
        settings = self._settings_of(request)
        return fill(model, tool, request_text, shots=shots, settings=settings, given_up=given_up)

    def _settings_of(self, request: ChatRequest) -> Settings:
        """Raise RequestError for settings that the model cannot respect."""
        settings = request.settings.over(self.settings)
        if settings.reasoning not in (None, "none"):
            raise RequestError(
                f"reasoning={settings.reasoning!r}: the embedded model does not reason"
            )
        if settings.provider_tools:
            raise RequestError("provider_tools: the embedded model has no tools of its own")
        if request.output is not None:
            raise RequestError(
                "output: the embedded model gives no typed answers, only calls and text"
            )
        return settings


class _ModelRanker:
    """Ranks tools and calls by Needle and by MiniLM's nearness."""

    def __init__(self, needle: Needle) -> None:
        self.call_ranker = CallRanker(needle)
        self._chooser = ToolChooser(MiniLM())

    def rank(
        self, request_text: str, ranked: Sequence[RankedTool], offer: Offer, *, is_elliptic: bool
    ) -> tuple[list[RankedTool], list[RankedCall]]:
        tools = tuple(offer.tools.values())
        likely = self.call_ranker.tools(
            request_text, ranked, self.nearness(request_text, ranked, tools)
        )
        context_words = words_around([p for d in tools for p in patterns_of(d.get_definition())])
        return likely, self.call_ranker.calls(
            request_text, likely[0], context_words, written=not is_elliptic
        )

    def nearness(
        self, request_text: str, ranked: Sequence[RankedTool], tools: Sequence[HasDefinition]
    ) -> dict[str | None, tuple[float, float]]:
        read_tools = [choice for choice in ranked if choice.tool and choice.readings][
            :_MASKED_TOOLS
        ]
        return self._chooser.nearness(
            request_text,
            tools,
            {choice.tool.name: choice.readings[0].masked for choice in read_tools if choice.tool},
        )


def _new_ranker() -> _ModelRanker | None:
    return _ModelRanker(needle_at(model_path(NEEDLE))) if is_installed(NEEDLE) else None


def _is_forced(request: ChatRequest) -> bool:
    return request.tool_choice.mode in ("required", "tool")


def _confirmed_request(request: ChatRequest) -> tuple[ChatRequest, str]:
    """Return the request that a bare yes refers to, and the question that it answers. Any other
    request is returned unchanged.

    The question is made again from that request, and only if it is the same does the call run.
    """
    answer = _last_request(request.messages).casefold().strip(" .,!")
    if answer not in _AGREEMENTS or len(request.messages) < 3:  # the request, the question, yes
        return request, ""
    original, question, _ = request.messages[-3:]
    if original.role != "user" or not question.content.endswith("?"):
        return request, ""
    return msgspec.structs.replace(request, messages=request.messages[:-2]), question.content


def _is_continuation(choice: RankedTool) -> bool:
    """Return whether the request was read as continuing the previous call."""
    return bool(choice.readings) and choice.score == -choice.readings[0].share


def _is_elliptic(request: ChatRequest, request_text: str) -> bool:
    """Return whether a request may leave out what the previous call said."""
    request_tokens = tokens(request_text)
    is_short = 0 < len(request_tokens) <= _MOST_ELLIPTIC_TOKENS and (
        request_tokens[0].is_small or request_tokens[0].quote > 0
    )
    return is_short and _last_call(request.messages) is not None


def _reads_all_examples(tool: ToolDefinition) -> bool:
    """Return whether requests can be read by all of a tool's examples. The model has nothing to add
    then."""
    return bool(tool.examples) and len(patterns_of(tool)) == len(tool.examples)


def _is_vague(choice: RankedTool, request_text: str) -> bool:
    """Return whether none of the values is a number, a quotation, a path or a name."""
    if not choice.readings or _is_continuation(choice):
        return False
    if any(token.quote for token in tokens(request_text)):
        return False
    values = choice.readings[0].arguments.values()
    texts = [value for value in values if isinstance(value, str)]
    return len(texts) == len(values) > 0 and all(t.islower() and t.isalpha() for t in texts)


def _certain_arguments(choice: RankedTool, request_text: str) -> JsonObject | None:
    """Return the arguments of the best reading if it is complete, uses everything that was said,
    and no other is as good."""
    tool, readings = choice.tool, choice.readings
    if tool is None or not readings:
        return None
    best = readings[0]
    if missing_required(tool, best.arguments) or leaves_out(request_text, best.arguments):
        return None
    if best.share > (_CERTAIN_COMPUTED_COST if best.pattern.recipes else _CERTAIN_COST):
        return None
    if best.unread > _MOST_UNREAD_WORDS:
        return None
    rivals = [r for r in readings[1:] if r.share < best.share + _CERTAIN_MARGIN]
    return None if rivals else best.arguments


def _is_supported(choice: RankedTool, tool: ToolDefinition, request_text: str, text: str) -> bool:
    """Return whether the model's text is one of the two best readings, or invents nothing."""
    arguments = arguments_in(text)
    if leaves_out(request_text, arguments) or (not arguments and missing_required(tool, arguments)):
        return False
    if any(filled(tool.input_schema or {}, r.arguments) == arguments for r in choice.readings[:2]):
        return True
    if choice.readings and choice.readings[0].unread > _MOST_UNREAD_WORDS:
        return False
    is_computed = not choice.readings or bool(choice.readings[0].pattern.recipes)
    return is_computed and not invents(tool, request_text, arguments)


def _question_about(tool: ToolDefinition, arguments: JsonObject) -> str:
    """Return a question back, with what was understood and what is missing.

    An answer would be read by the tool's examples. If the tool has none, no answer is asked for.
    """
    if not tool.examples:
        return NO_EXAMPLES.format(tool.name)
    missing = missing_required(tool, arguments)
    values = ", ".join(f"{name}: {value_text(value)}" for name, value in arguments.items())
    call_text = f"{tool.name} with {values}" if values else tool.name
    if missing:
        return f"Do you mean {call_text}? Then what is {', '.join(missing)}?"
    return f"I am not sure that I understand. Do you mean {call_text}?"


def _call_reply(
    request: ChatRequest, tool: ToolDefinition, completion: Completion, offer: Offer
) -> Reply:
    call = ToolCall(
        f"{request.new_prefix()}0", tool.name, completion.text.strip(), complete=completion.whole
    )
    return Reply(
        Message.assistant("", (call,)),
        "tool_calls" if completion.whole else "length",
        Usage(1, completion.input_tokens, completion.output_tokens),
        offer,
        "stop" if completion.whole else "length",
    )


def _last_call(messages: Sequence[Message]) -> ToolCall | None:
    calls = [call for message in messages for call in message.tool_calls]
    return calls[-1] if calls else None


def _text_reply(text: str, offer: Offer) -> Reply:
    return Reply(Message.assistant(text), "stop", Usage(1), offer, "stop")


def _refuse_pictures(messages: Sequence[Message]) -> None:
    for message in messages:
        parts = message.parts if message.role == "user" else ()
        for part in (*message.images, *parts):
            if isinstance(part, Image | File) and text_in(part) is None:
                raise RequestError(
                    f"the embedded model takes only text, not the {part_info(part).kind} "
                    f"({part_info(part)})"
                )


def _last_request(messages: Sequence[Message]) -> str:
    last = messages[-1] if messages else None
    if last is None or last.role != "user":
        return ""
    return "\n\n".join((last.content, *as_texts(last.parts))).strip()


def _model_file(path: str | Path | None) -> Path:
    if path is None:
        if not is_installed():
            raise SourceError("the embedded model is not installed: run `toolcrib local install`")
        return model_path()
    file = Path(path).expanduser()
    if not file.is_file():
        raise SourceError(f"there is no model file {file}; give the path of a GGUF file")
    return file
