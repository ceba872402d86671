"""`LocalClient`: an `LLMClient` that needs no key and no network, and asks back when it is not
sure.

Rule: it does one thing, which is to make a call for the last request. Where Needle is installed,
the tool and the arguments are weighed (`weighing`). Without it, the nearest tool is chosen. Its
arguments are pieces of the request if the request reads like an example (`reading`), and are
written by the model otherwise (`arguments`). A call that does not use every number and quotation of
the request, says something that is not in the request, or is cut, becomes a question back. Results
are stated and never rephrased by the model.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from math import fsum
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from toolcrib.clients.base import PlanningClient
from toolcrib.clients.local.arguments import SHOTS, fill, filled
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
from toolcrib.clients.local.reading import (
    RequestReader,
    RequestReading,
    invents,
    leaves_out,
    missing_required,
    patterns_of,
    tokens,
    without_values,
    words_around,
)
from toolcrib.clients.local.weighing import (
    CERTAIN,
    RankedTool,
    WeighedCall,
    Weigher,
    can_write,
)
from toolcrib.errors import RequestError, SourceError
from toolcrib.pick import Embedder, MiniLM, WordVectors
from toolcrib.pick.scorer import CatalogCache, numpy
from toolcrib.pick.words import spaced_name
from toolcrib.tools import as_tools
from toolcrib.values.call import ToolCall
from toolcrib.values.content import File, Image, as_texts, part_info, text_in
from toolcrib.values.definition import Example, HasDefinition, ToolDefinition, stated
from toolcrib.values.json import JsonObject, JsonValue
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
from toolcrib.values.remembered import remembered
from toolcrib.values.typed import names_wrong_types

# Choosing the tool: the offered tool that is nearest to the request, or none.
#
# Rule: this code knows no particular tool or phrase. The mean of a request's word vectors is compared
# with the description of each tool, with the requests of its `examples`, and with `NO_TOOL`. This is
# done once with the values and once without them, and the cost of reading the request by the tool's
# examples is subtracted (`reading`). A small model that is asked to choose does much worse.


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors: TypeAlias = NDArray[np.float32]

NO_TOOL = (
    "Hello",
    "Good morning, how are you doing?",
    "What's up?",
    "Thank you so much for your help",
    "Great, that is all for now",
    "Goodbye, see you later",
    "Yes please",
    "Who are you?",
    "What can you do?",
    "What is your name?",
    "I feel a bit tired and sad today",
    "Sorry, I do not understand",
    "Tell me a joke",
    "Write a poem about the sea",
    "Make up a story for my children",
    "Translate this sentence into French",
    "Who discovered penicillin?",
    "Who was the first man on the moon?",
    "What is the capital of Portugal?",
    "What is the largest ocean in the world?",
    "How many people live in Brazil?",
    "When did the Roman empire fall?",
    "Where do penguins live?",
    "Explain how a car engine works",
    "How does the stock market work?",
    "What does the word serendipity mean?",
    "Which team won the championship last year?",
    "What do you think about modern art?",
    "Should I learn to play the guitar?",
    "Are electric cars better than petrol cars?",
    "Recommend me a good film",
    "How do I cook rice?",
    "Give me some advice about my career",
    "Book a flight for next week",
    "Play some music",
    "Will it be warm and sunny tomorrow?",
    "Remind me to call my brother tonight",
    "Write a message to my boss",
    "Buy me a pair of shoes",
)
"""Requests without a tool, or for a rarely available one: small talk, knowledge, opinions, errands."""

_NO_OWNER = -1
_NEAREST_COUNTED = 2
"""How many of a tool's nearest texts count, since a single one is too often near by accident."""

_NEAR_A_TOOL = 0.5
"""From this cosine on, a request of `NO_TOOL` is so near to an offered tool that it belongs to the
tool."""

_MASKED_WEIGHT = 0.3
"""The weight of the nearness without the values on both sides."""

_UNREAD_COST = 0.4
"""The cost of reading that is assumed if there is no example to read by."""

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
_CONTINUATION_COST = 0.25
"""A short request that fits no tool better than this may continue the previous call, if reading it
as a continuation costs at most this much."""

_AGREEMENTS = frozenset(
    ("yes", "yes please", "yep", "yeah", "y", "ok", "sure", "right", "exactly", "correct")
)
"""Texts that agree to a question back and say nothing else."""

_MASKED_TOOLS = 6
"""For how many tools, the nearest by words, the request is also compared without its values."""

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


class _Index(msgspec.Struct, frozen=True):
    """Unit vectors with the mean removed. `owners[i]` is the tool of row i, or `_NO_OWNER`."""

    rows: Vectors
    owners: list[int]
    mean: Vectors

    def nearness(self, query: Vectors, count: int) -> dict[int, float]:
        """Return for each owner the mean cosine of its nearest rows."""
        cosines = numpy().vecdot(self.rows, _centred(query, self.mean)[0]).tolist()
        cosines_of: dict[int, list[float]] = {}
        for owner, cosine in zip(self.owners, cosines, strict=True):
            cosines_of.setdefault(owner, []).append(cosine)
        best = {owner: sorted(nearest)[-count:] for owner, nearest in cosines_of.items()}
        return {owner: fsum(nearest) / len(nearest) for owner, nearest in best.items()}


class _CatalogIndex(msgspec.Struct, frozen=True):
    """What is derived from the offered tools: vectors of whole texts and of texts without values, and
    the readers of requests."""

    whole: _Index
    masked: _Index
    readers: list[RequestReader]


class ToolChooser:
    """Finds the tool, and the examples, that are nearest to a request. Safe to use from threads."""

    def __init__(self, vectors: Embedder | None = None) -> None:
        self._vectors = vectors or WordVectors()
        self._indexes = CatalogCache(self._build)
        self._likeness = remembered(16 << 20)(self._similarity)
        self._vector = remembered(16 << 20, each=2_000)(self._embedded)

    def choose(
        self, request: str, tools: Sequence[HasDefinition], *, must: bool = False
    ) -> ToolDefinition | None:
        """Return the nearest tool, or None if a request of `NO_TOOL` is nearer. With `must`, always
        return a tool."""
        ranked = self.rank(request, tools, must=must)
        return ranked[0].tool if ranked else None

    def rank(
        self, request: str, tools: Sequence[HasDefinition], *, must: bool = False
    ) -> list[RankedTool]:
        """Return the offered tools, the nearest first. Without `must`, None is among them."""
        if not tools:
            return []
        catalog_index: _CatalogIndex = self._indexes.get(tools)
        candidates: dict[str | None, tuple[ToolDefinition | None, Sequence[RequestReading]]]
        candidates = {
            r.definition.name: (r.definition, r.read(request)) for r in catalog_index.readers
        }
        candidates[None] = None, ()
        masked = {
            name: readings[0].masked for name, (_, readings) in candidates.items() if readings
        }
        ranked = []
        for name, (text_nearness, masked_nearness) in self.nearness(request, tools, masked).items():
            tool, readings = candidates[name]
            if tool or not must:
                score = _MASKED_WEIGHT * masked_nearness + (1 - _MASKED_WEIGHT) * text_nearness
                score -= readings[0].share if readings else _UNREAD_COST
                ranked.append(RankedTool(score, tool, readings))
        return sorted(ranked, key=lambda choice: -choice.score)

    def nearness(
        self, request: str, tools: Sequence[HasDefinition], masked: Mapping[str | None, str]
    ) -> dict[str | None, tuple[float, float]]:
        """Return how near each tool is, with and without values. The key None stands for no tool.

        `masked` has the request without the values that it has for each tool.
        """
        catalog_index: _CatalogIndex = self._indexes.get(tools)
        text_of = catalog_index.whole.nearness(
            self._vectors.embed([_plain(request)]), _NEAREST_COUNTED
        )
        masked_of = catalog_index.masked.nearness(self._vectors.embed([request.lower()]), 1)
        nearness_of: dict[str | None, tuple[float, float]] = {}
        for owner, text_nearness in text_of.items():
            name = None if owner == _NO_OWNER else catalog_index.readers[owner].definition.name
            masked_nearness = masked_of[owner]
            if name in masked:
                text = self._vectors.embed([masked[name].lower()])
                masked_nearness = max(
                    masked_nearness, catalog_index.masked.nearness(text, 1)[owner]
                )
            nearness_of[name] = (text_nearness, masked_nearness)
        return nearness_of

    def follow(
        self, request: str, tools: Sequence[HasDefinition], name: str, previous: JsonObject
    ) -> RankedTool | None:
        """Return readings of a request that leaves out what the previous call of a tool said."""
        catalog_index: _CatalogIndex = self._indexes.get(tools)
        for reader in catalog_index.readers:
            if reader.definition.name == name:
                readings = reader.follow(request, previous)
                if readings and readings[0].share <= _CONTINUATION_COST:
                    return RankedTool(-readings[0].share, reader.definition, readings)
        return None

    def nearest(self, request: str, examples: Sequence[Example], count: int) -> list[Example]:
        """Return up to `count` of the examples, those nearest to the request first."""
        if not examples:
            return []
        rows = self._vectors.embed([request, *(example.request for example in examples)])
        cosines = numpy().vecdot(rows[1:], rows[0]).tolist()
        order = sorted(range(len(examples)), key=lambda i: -cosines[i])
        return [examples[i] for i in order[:count]]

    def _embedded(self, text: str) -> Any:
        return self._vectors.embed([text])[0]

    def _similarity(self, text: str, other_text: str) -> float:
        return float(numpy().dot(self._vector(text), self._vector(other_text)))

    def _build(self, definitions: Sequence[ToolDefinition]) -> _CatalogIndex:
        patterns = [patterns_of(definition) for definition in definitions]
        familiar = words_around([p for tool_patterns in patterns for p in tool_patterns])
        readers = [
            RequestReader(definition, tool_patterns, self._likeness, familiar)
            for definition, tool_patterns in zip(definitions, patterns, strict=True)
        ]
        whole = [
            (i, _plain(text))
            for i, d in enumerate(definitions)
            for text in (_name_and_description(d), *(example.request for example in d.examples))
        ]
        masked = [(i, _name_and_description(d).lower()) for i, d in enumerate(definitions)]
        masked += [
            (i, without_values(p))
            for i, tool_patterns in enumerate(patterns)
            for p in tool_patterns
        ]
        return _CatalogIndex(self._index(whole, _plain), self._index(masked, str.lower), readers)

    def _index(self, owned: Sequence[tuple[int, str]], form: Callable[[str], str]) -> _Index:
        tools = self._vectors.embed([text for _, text in owned])
        general = self._vectors.embed([form(text) for text in NO_TOOL])
        general = general[(general @ tools.T).max(axis=1) < _NEAR_A_TOOL]
        np: Any = numpy()
        rows = np.concatenate([tools, general])
        mean = rows.mean(axis=0)
        return _Index(
            _centred(rows, mean), [i for i, _ in owned] + [_NO_OWNER] * len(general), mean
        )


def _name_and_description(definition: ToolDefinition) -> str:
    return f"{spaced_name(definition.name)}: {definition.description}"


def _plain(text: str) -> str:
    """Return the text with one token for every number, since a number's value says nothing about
    the tool."""
    return _NUMBER.sub("7", text.lower())


def _centred(vectors: Vectors, mean: Vectors) -> Vectors:
    """Subtract what the texts have in common, since it hides their differences."""
    differences = vectors - mean
    lengths = numpy().linalg.norm(differences, axis=1, keepdims=True)
    centred: Vectors = differences / numpy().maximum(lengths, 1e-9)
    return centred


# Stating a tool's result in plain words, without the model, which would invent things.
#
# Rule: every value comes from the tool. Only names, commas, line breaks and "the … is …" are added.
# This code knows no particular tool. Long values are shortened and marked as shortened.

_MOST_CHARACTERS = 4000
_MOST_LINES = 60
_MOST_SPOKEN_FIELDS = 3


def tell(messages: Sequence[Message], offer: Offer | None = None) -> str:
    """Return the results at the end of a conversation. Each is stated by its tool's `answer` if it
    has one. Several results are each preceded by the name of their tool."""
    results = _last_results(messages)
    texts = [
        _with_parts(message, _templated_answer(message, messages, offer or Offer()))
        for message in results
    ]
    if len(texts) > 1:
        pairs = zip(results, texts, strict=True)
        texts = [f"{message.name or 'tool'}:\n{text}" for message, text in pairs]
    return _bounded("\n\n".join(texts))


def _with_parts(result: Message, answer: str | None) -> str:
    """Return a text about a result and its content, which this model cannot see."""
    if not result.parts:
        return answer or _result_text(result)
    text = answer or (_result_text(result) if result.content else "")
    return "\n\n".join(filter(None, (text, *as_texts(result.parts))))


def _templated_answer(result: Message, messages: Sequence[Message], offer: Offer) -> str | None:
    tool = offer.tools.get(result.name or "")
    templates = () if tool is None else tool.get_definition().answer
    if not templates or result.is_error:
        return None
    calls = (call for message in reversed(messages) for call in message.tool_calls)
    call = next((call for call in calls if call.id == result.call_id), None)
    with suppress(ValueError, RecursionError):
        value: JsonValue = json.loads(result.content)
        arguments = {} if call is None else _arguments(call.arguments)
        return next(
            filter(None, (stated(template, arguments, value) for template in templates)), None
        )
    return None


def _result_text(message: Message) -> str:
    try:
        # Python's own JSON reader keeps every digit of an integer.
        value: JsonValue = json.loads(message.content)
        text = _error_text(value) if message.is_error else _sentence(value) or _as_text(value)
    except (ValueError, RecursionError):
        text = message.content
    if message.is_error:
        return f"The call of {message.name or 'the tool'} did not succeed: {text}"
    return text


def _sentence(value: JsonValue) -> str | None:
    """Return a few short fields as a sentence, or None for anything else."""
    if not isinstance(value, dict) or not 0 < len(value) <= _MOST_SPOKEN_FIELDS:
        return None
    if not all(_is_short(member) for member in value.values()):
        return None
    clauses = [
        f"the {spaced_name(name)} is {_value_text(member)}" for name, member in value.items()
    ]
    text = " and ".join([", ".join(clauses[:-1]), clauses[-1]] if clauses[1:] else clauses)
    return f"{text[:1].upper()}{text[1:]}."


def _error_text(value: JsonValue) -> str:
    """Put an error into words: `{"error": {"message": …, "details": [{"path", "message"}]}}`, or
    any value."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return _as_text(value)
    lines = [str(error["message"])]
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict):
            lines.append(f"- {detail.get('path')}: {detail.get('message')}")
    return "\n".join(lines)


def _as_text(value: JsonValue) -> str:
    """Write short values on one line, then each list or long text below its name."""
    if isinstance(value, list):
        lines = [f"- {_item_text(item)}" for item in value[:_MOST_LINES]]
        if len(value) > _MOST_LINES:
            lines.append(f"… and {len(value) - _MOST_LINES} more")
        return "\n".join(lines) or "none"
    if not isinstance(value, dict):
        return _value_text(value)
    short = {name: member for name, member in value.items() if _is_short(member)}
    lines = [_line(short)] if short else []
    lines += [_block(name, member) for name, member in value.items() if name not in short]
    return "\n".join(lines) or "Done."


def _block(name: str, member: JsonValue) -> str:
    if member in ([], {}):
        return f"{name}: none"
    text = _as_text(member)
    return f"{name}:\n{indent(text, '  ') if isinstance(member, dict) else text}"


def _item_text(item: JsonValue) -> str:
    if isinstance(item, dict) and not any(isinstance(v, dict | list) for v in item.values()):
        return _line(item)
    return _value_text(item)


def _line(fields: dict[str, JsonValue]) -> str:
    return ", ".join(f"{name}: {_value_text(value)}" for name, value in fields.items())


def _is_short(value: JsonValue) -> bool:
    return "\n" not in value if isinstance(value, str) else not isinstance(value, dict | list)


def _value_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bounded(text: str) -> str:
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:_MOST_CHARACTERS]} … (cut: {len(text)} characters in all)"


_SELF_DESCRIPTION = (
    "I am a small embedded model that can only fill in tool calls; "
    "for a conversation use --model (for example openai:NAME)."
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
    `max_tokens` can only lower the limit of a call. The model does not reason, and has no tools of
    its own: `reasoning` other than "none", and `provider_tools`, raise RequestError.

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
        self._weigher = _weigher() if path is None else None

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
        if self._weigher is not None:
            self._weigher = None  # this frees Needle, too, if no other client holds it
            self._weigher = _weigher()

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
        weigher = None if _is_forced(request) else self._weigher
        request, confirmed_question = _confirmed_request(request) if weigher else (request, "")
        request_text = _last_request(request.messages)
        ranked = self._ranked(request, request_text, offer)
        if not ranked:
            may_call = tools and request.tool_choice.mode != "none"
            return _text_reply(
                (NO_FIT if may_call else NO_TOOLS) if request_text else NO_REQUEST, offer
            )
        if weigher and (confirmed_question or not _is_continuation(ranked[0])):
            return self._weighed_reply(
                weigher, request, ranked, offer, given_up, confirmed_question
            )
        best, tool = ranked[0], ranked[0].tool
        if _is_forced(request) or tool is None:
            return self._call_or_question(request, best, offer, given_up)
        if best.score < _VAGUE_SCORE and _is_vague(best, request_text):
            return _text_reply(NO_FIT, offer)
        others = [c.tool for c in ranked[1:] if c.score > best.score - _TIE and c.tool]
        if others:
            return _text_reply(f"Do you mean {tool.name} or {others[0].name}?", offer)
        return self._call_or_question(request, best, offer, given_up)

    def _weighed_reply(
        self,
        weigher: _Weigher,
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
        likely, calls = weigher.weigh(request_text, ranked, offer, is_elliptic=is_elliptic)
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
        return _call_reply(request, tool, Completion(_json(calls[0].arguments), True, 0, 0), offer)

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
                request, tool, Completion(_json(certain_arguments), True, 0, 0), offer
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
            request_text, allowed_tools, previous_call.name, _arguments(previous_call.arguments)
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
        return settings


class _Weigher:
    """Weighs tools and calls by Needle and by MiniLM's nearness."""

    def __init__(self, needle: Needle) -> None:
        self.weigher = Weigher(needle)
        self._chooser = ToolChooser(MiniLM())

    def weigh(
        self, request_text: str, ranked: Sequence[RankedTool], offer: Offer, *, is_elliptic: bool
    ) -> tuple[list[RankedTool], list[WeighedCall]]:
        tools = tuple(offer.tools.values())
        likely = self.weigher.tools(
            request_text, ranked, self.nearness(request_text, ranked, tools)
        )
        context_words = words_around([p for d in tools for p in patterns_of(d.get_definition())])
        return likely, self.weigher.calls(
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


def _weigher() -> _Weigher | None:
    return _Weigher(needle_at(model_path(NEEDLE))) if is_installed(NEEDLE) else None


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
    arguments = _arguments(text)
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
    values = ", ".join(f"{name}: {_value_text(value)}" for name, value in arguments.items())
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


def _arguments(text: str) -> JsonObject:
    try:
        value: JsonValue = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _last_call(messages: Sequence[Message]) -> ToolCall | None:
    calls = [call for message in messages for call in message.tool_calls]
    return calls[-1] if calls else None


def _text_reply(text: str, offer: Offer) -> Reply:
    return Reply(Message.assistant(text), "stop", Usage(1), offer, "stop")


def _last_results(messages: Sequence[Message]) -> list[Message]:
    """Return the tool results at the end of the conversation.

    If the last ones are later results of background calls, only those are returned.
    """
    first, role = len(messages), messages[-1].role if messages else "tool"
    while first and messages[first - 1].from_tool and messages[first - 1].role == role:
        first -= 1
    return [msgspec.structs.replace(m, content=m.result_text) for m in messages[first:]]


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
