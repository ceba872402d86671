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
    lacking,
    leaves_out,
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
from toolcrib.values.content import File, Image, brief_of, text_in, told_in_text
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

_NOBODY = -1
_COUNTED = 2
"""How many of a tool's nearest texts count, since a single one is too often near by accident."""

_OWN_GROUND = 0.5
"""From this cosine on, a request of `NO_TOOL` is so near to an offered tool that it belongs to the
tool."""

_MASKED = 0.3
"""The weight of the nearness without the values on both sides."""

_UNREAD = 0.4
"""The cost of reading that is assumed if there is no example to read by."""

_CLOSE = 0.03
"""Two tools whose scores differ by less than this cannot be told apart."""

_MARGIN = 0.015
_SHARE = 0.5
_COMPUTED = 0.25
"""A reading is certain up to the cost `_SHARE` (`_COMPUTED` if it has computed values), provided
that the next one costs at least `_MARGIN` more."""

_UNKNOWN_WORDS = 1
"""How many words that occur in no example a certain reading may leave out."""

_VAGUE = 0.1
"""Below this score, a tool is not chosen if its values could be any words."""

_ELLIPSIS = 6
_ALONE = 0.2
_FOLLOWS = 0.25
"""A short request that fits no tool better than this may continue the previous call, if reading it
as a continuation costs at most this much."""

_YES = frozenset(
    ("yes", "yes please", "yep", "yeah", "y", "ok", "sure", "right", "exactly", "correct")
)
"""Texts that agree to a question back and say nothing else."""

_MASKED_TOOLS = 6
"""For how many tools, the nearest by words, the request is also compared without its values."""

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


class _Index(msgspec.Struct, frozen=True):
    """Unit vectors with the mean removed. `owners[i]` is the tool of row i, or `_NOBODY`."""

    rows: Vectors
    owners: list[int]
    mean: Vectors

    def nearness(self, asked: Vectors, count: int) -> dict[int, float]:
        """Return for each owner the mean cosine of its nearest rows."""
        cosines = numpy().vecdot(self.rows, _centred(asked, self.mean)[0]).tolist()
        of: dict[int, list[float]] = {}
        for owner, cosine in zip(self.owners, cosines, strict=True):
            of.setdefault(owner, []).append(cosine)
        best = {owner: sorted(found)[-count:] for owner, found in of.items()}
        return {owner: fsum(found) / len(found) for owner, found in best.items()}


class _Offered(msgspec.Struct, frozen=True):
    """Holds what is derived from the offered tools: whole texts, texts without values, readers."""

    whole: _Index
    masked: _Index
    readers: list[RequestReader]


class ToolChooser:
    """Finds the tool, and the examples, that are nearest to a request. Safe to use from threads."""

    def __init__(self, vectors: Embedder | None = None) -> None:
        self._vectors = vectors or WordVectors()
        self._indexes = CatalogCache(self._build)
        self._likeness = remembered(16 << 20)(self._alike)
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
        offered: _Offered = self._indexes.get(tools)
        found: dict[str | None, tuple[ToolDefinition | None, Sequence[RequestReading]]]
        found = {r.definition.name: (r.definition, r.read(request)) for r in offered.readers}
        found[None] = None, ()
        masked = {name: read[0].masked for name, (_, read) in found.items() if read}
        ranked = []
        for name, (near, bare) in self.nearness(request, tools, masked).items():
            tool, read = found[name]
            if tool or not must:
                score = _MASKED * bare + (1 - _MASKED) * near
                score -= read[0].share if read else _UNREAD
                ranked.append(RankedTool(score, tool, read))
        return sorted(ranked, key=lambda choice: -choice.score)

    def nearness(
        self, request: str, tools: Sequence[HasDefinition], masked: Mapping[str | None, str]
    ) -> dict[str | None, tuple[float, float]]:
        """Return how near each tool is, with and without values. The key None stands for no tool.

        `masked` has the request without the values that it has for each tool.
        """
        offered: _Offered = self._indexes.get(tools)
        whole = offered.whole.nearness(self._vectors.embed([_plain(request)]), _COUNTED)
        bare = offered.masked.nearness(self._vectors.embed([request.lower()]), 1)
        found: dict[str | None, tuple[float, float]] = {}
        for owner, near in whole.items():
            name = None if owner == _NOBODY else offered.readers[owner].definition.name
            other = bare[owner]
            if name in masked:
                text = self._vectors.embed([masked[name].lower()])
                other = max(other, offered.masked.nearness(text, 1)[owner])
            found[name] = (near, other)
        return found

    def follow(
        self, request: str, tools: Sequence[HasDefinition], name: str, before: JsonObject
    ) -> RankedTool | None:
        """Return readings of a request that leaves out what the previous call of a tool said."""
        offered: _Offered = self._indexes.get(tools)
        for reader in offered.readers:
            if reader.definition.name == name:
                found = reader.follow(request, before)
                if found and found[0].share <= _FOLLOWS:
                    return RankedTool(-found[0].share, reader.definition, found)
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

    def _alike(self, one: str, other: str) -> float:
        return float(numpy().dot(self._vector(one), self._vector(other)))

    def _build(self, definitions: Sequence[ToolDefinition]) -> _Offered:
        patterns = [patterns_of(definition) for definition in definitions]
        familiar = words_around([p for own in patterns for p in own])
        readers = [
            RequestReader(definition, own, self._likeness, familiar)
            for definition, own in zip(definitions, patterns, strict=True)
        ]
        whole = [
            (i, _plain(text))
            for i, d in enumerate(definitions)
            for text in (_said_of(d), *(example.request for example in d.examples))
        ]
        masked = [(i, _said_of(d).lower()) for i, d in enumerate(definitions)]
        masked += [(i, without_values(p)) for i, own in enumerate(patterns) for p in own]
        return _Offered(self._index(whole, _plain), self._index(masked, str.lower), readers)

    def _index(self, owned: Sequence[tuple[int, str]], form: Callable[[str], str]) -> _Index:
        tools = self._vectors.embed([text for _, text in owned])
        general = self._vectors.embed([form(text) for text in NO_TOOL])
        general = general[(general @ tools.T).max(axis=1) < _OWN_GROUND]
        np: Any = numpy()
        rows = np.concatenate([tools, general])
        mean = rows.mean(axis=0)
        return _Index(_centred(rows, mean), [i for i, _ in owned] + [_NOBODY] * len(general), mean)


def _said_of(definition: ToolDefinition) -> str:
    return f"{spaced_name(definition.name)}: {definition.description}"


def _plain(text: str) -> str:
    """Return the text with one token for every number, since a number's value says nothing about
    the tool."""
    return _NUMBER.sub("7", text.lower())


def _centred(vectors: Vectors, mean: Vectors) -> Vectors:
    """Subtract what the texts have in common, since it hides their differences."""
    moved = vectors - mean
    lengths = numpy().linalg.norm(moved, axis=1, keepdims=True)
    centred: Vectors = moved / numpy().maximum(lengths, 1e-9)
    return centred


# Stating a tool's result in plain words, without the model, which would invent things.
#
# Rule: every value comes from the tool. Only names, commas, line breaks and "the … is …" are added.
# This code knows no particular tool. Long values are shortened and marked as shortened.

_LONGEST = 4000
_MOST_LINES = 60
_SPOKEN = 3


def tell(messages: Sequence[Message], offer: Offer | None = None) -> str:
    """Return the results at the end of a conversation. Each is stated by its tool's `answer` if it
    has one. Several results are each preceded by the name of their tool."""
    results = _last_results(messages)
    texts = [
        _with_parts(message, _answered(message, messages, offer or Offer())) for message in results
    ]
    if len(texts) > 1:
        named = zip(results, texts, strict=True)
        texts = [f"{message.name or 'tool'}:\n{text}" for message, text in named]
    return _bounded("\n\n".join(texts))


def _with_parts(result: Message, answer: str | None) -> str:
    """Return a text about a result and its content, which this model cannot see."""
    if not result.parts:
        return answer or _result(result)
    said = answer or (_result(result) if result.content else "")
    return "\n\n".join(filter(None, (said, *told_in_text(result.parts))))


def _answered(result: Message, messages: Sequence[Message], offer: Offer) -> str | None:
    tool = offer.tools.get(result.name or "")
    templates = () if tool is None else tool.get_definition().answer
    if not templates or result.is_error:
        return None
    made = (call for message in reversed(messages) for call in message.tool_calls)
    call = next((call for call in made if call.id == result.call_id), None)
    with suppress(ValueError, RecursionError):
        value: JsonValue = json.loads(result.content)
        given = {} if call is None else _arguments(call.arguments)
        return next(filter(None, (stated(one, given, value) for one in templates)), None)
    return None


def _result(message: Message) -> str:
    try:
        # Python's own JSON reader keeps every digit of an integer.
        value: JsonValue = json.loads(message.content)
        text = _error(value) if message.is_error else _sentence(value) or _told(value)
    except (ValueError, RecursionError):
        text = message.content
    if message.is_error:
        return f"The call of {message.name or 'the tool'} did not succeed: {text}"
    return text


def _sentence(value: JsonValue) -> str | None:
    """Return a few short fields as a sentence, or None for anything else."""
    if not isinstance(value, dict) or not 0 < len(value) <= _SPOKEN:
        return None
    if not all(_is_short(member) for member in value.values()):
        return None
    said = [f"the {spaced_name(name)} is {_scalar(member)}" for name, member in value.items()]
    text = " and ".join([", ".join(said[:-1]), said[-1]] if said[1:] else said)
    return f"{text[:1].upper()}{text[1:]}."


def _error(value: JsonValue) -> str:
    """Put an error into words: `{"error": {"message": …, "details": [{"path", "message"}]}}`, or
    any value."""
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str):
        return _told(value)
    lines = [str(error["message"])]
    details = error.get("details")
    for detail in details if isinstance(details, list) else ():
        if isinstance(detail, dict):
            lines.append(f"- {detail.get('path')}: {detail.get('message')}")
    return "\n".join(lines)


def _told(value: JsonValue) -> str:
    """Write short values on one line, then each list or long text below its name."""
    if isinstance(value, list):
        lines = [f"- {_item(item)}" for item in value[:_MOST_LINES]]
        if len(value) > _MOST_LINES:
            lines.append(f"… and {len(value) - _MOST_LINES} more")
        return "\n".join(lines) or "none"
    if not isinstance(value, dict):
        return _scalar(value)
    short = {name: member for name, member in value.items() if _is_short(member)}
    lines = [_line(short)] if short else []
    lines += [_block(name, member) for name, member in value.items() if name not in short]
    return "\n".join(lines) or "Done."


def _block(name: str, member: JsonValue) -> str:
    if member in ([], {}):
        return f"{name}: none"
    text = _told(member)
    return f"{name}:\n{indent(text, '  ') if isinstance(member, dict) else text}"


def _item(item: JsonValue) -> str:
    if isinstance(item, dict) and not any(isinstance(v, dict | list) for v in item.values()):
        return _line(item)
    return _scalar(item)


def _line(fields: dict[str, JsonValue]) -> str:
    return ", ".join(f"{name}: {_scalar(value)}" for name, value in fields.items())


def _is_short(value: JsonValue) -> bool:
    return "\n" not in value if isinstance(value, str) else not isinstance(value, dict | list)


def _scalar(value: JsonValue) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


def _bounded(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]} … (cut: {len(text)} characters in all)"


_WHO = (
    "I am a small embedded model that can only fill in tool calls; "
    "for a conversation use --model (for example openai:NAME)."
)
NO_FIT = f"None of the tools fits that, so I called none. {_WHO}"
NO_TOOLS = f"There is no tool that I may call. {_WHO}"
NO_EXAMPLES = (
    "I cannot fill in {} from that: the tool has no examples of requests, by which I would read it"
    f" (@tool(examples=[…])). {_WHO}"
)
NO_REQUEST = f"There is nothing asked. {_WHO}"


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
        self._settings_of(request)
        _refuse_pictures(request.messages)
        tools = as_tools(request.tools)
        offer = Offer.of(tools)
        if request.messages and request.messages[-1].from_tool:
            return _said(tell(request.messages, offer), offer)
        weigher = None if _must(request) else self._weigher
        request, agreed = _agreed_to(request) if weigher else (request, "")
        asked = _last_request(request.messages)
        ranked = self._ranked(request, asked, offer)
        if not ranked:
            may_call = tools and request.tool_choice.mode != "none"
            return _said((NO_FIT if may_call else NO_TOOLS) if asked else NO_REQUEST, offer)
        if weigher and (agreed or not _follows(ranked[0])):
            return self._weighed(weigher, request, ranked, offer, given_up, agreed)
        best, tool = ranked[0], ranked[0].tool
        if _must(request) or tool is None:
            return self._read(request, best, offer, given_up)
        if best.score < _VAGUE and _is_vague(best, asked):
            return _said(NO_FIT, offer)
        others = [c.tool for c in ranked[1:] if c.score > best.score - _CLOSE and c.tool]
        if others:
            return _said(f"Do you mean {tool.name} or {others[0].name}?", offer)
        return self._read(request, best, offer, given_up)

    def _weighed(
        self,
        weigher: _Weigher,
        request: ChatRequest,
        ranked: Sequence[RankedTool],
        offer: Offer,
        given_up: threading.Event,
        agreed: str,
    ) -> Reply:
        """Return a call whose tool and arguments together are certain enough, or which was asked
        about in the words of `agreed`. Otherwise return a question back."""
        asked = _last_request(request.messages)
        elliptic = _is_elliptic(request, asked)
        found, calls = weigher.weigh(asked, ranked, offer, elliptic=elliptic)
        best, tool = found[0], found[0].tool
        if tool is None:
            return _said(NO_FIT, offer)
        if best.score < CERTAIN:
            other = f" or {found[1].tool.name}" if found[1].tool else ""
            return _said(f"Do you mean {tool.name}{other}?", offer)
        if not agreed and not can_write(tool):
            return self._read(request, best, offer, given_up)
        question = _ask(tool, calls[0].arguments if calls else {})
        certain = calls and best.score * calls[0].chance >= CERTAIN
        if not calls or not (question == agreed if agreed else certain):
            return _said(question, offer)
        return _call(request, tool, Completion(_json(calls[0].arguments), True, 0, 0), offer)

    def _read(
        self, request: ChatRequest, best: RankedTool, offer: Offer, given_up: threading.Event
    ) -> Reply:
        """Return a call as the tool's examples or the model fill it in, or a question back."""
        asked, tool, must = _last_request(request.messages), best.tool, _must(request)
        if tool is None:
            return _said(NO_FIT, offer)
        bare = not best.readings and _reads(tool)
        complete = bare and not (lacking(tool, {}) or leaves_out(asked, {}))
        sure = {} if complete else _sure(best, asked)
        if sure is not None:
            return _call(request, tool, Completion(_json(sure), True, 0, 0), offer)
        if bare and not must:
            return _said(_ask(tool, {}), offer)
        written = self._filled(request, asked, tool, given_up)
        if not must and not (written.whole and _agreed(best, tool, asked, written.text)):
            return _said(_ask(tool, best.readings[0].arguments if best.readings else {}), offer)
        return _call(request, tool, written, offer)

    def _ranked(self, request: ChatRequest, asked: str, offer: Offer) -> list[RankedTool]:
        choice = request.tool_choice
        if choice.mode == "none":
            return []
        allowed = choice.allowed or tuple(offer.tools)
        offered = tuple(tool for name, tool in offer.tools.items() if name in allowed)
        if choice.mode == "tool":
            named = offer.tools.get(choice.name or "")
            if named is None:
                raise RequestError(
                    f"tool_choice names {choice.name!r}, which is not among the offered tools"
                )
            return self._chooser.rank(asked, (named,), must=True)
        must = choice.mode == "required"
        if must and not offered:
            raise RequestError("tool_choice 'required' needs tools, but none are offered")
        if not asked and not must:
            return []
        ranked = self._chooser.rank(asked, offered, must=must)
        before = _last_call(request.messages)
        alone = _ALONE if ranked and ranked[0].tool else 0.0
        if before is None or not ranked or ranked[0].score >= alone:
            return ranked
        if not _is_elliptic(request, asked):
            return ranked
        follows = self._chooser.follow(asked, offered, before.name, _arguments(before.arguments))
        return ranked if follows is None else [follows]

    def _filled(
        self, request: ChatRequest, asked: str, tool: ToolDefinition, given_up: threading.Event
    ) -> Completion:
        model = self._model
        if model is None:
            model = self._model = model_at(self._path)
        shots = self._chooser.nearest(asked, tool.examples, SHOTS)
        settings = self._settings_of(request)
        return fill(model, tool, asked, shots=shots, settings=settings, given_up=given_up)

    def _settings_of(self, request: ChatRequest) -> Settings:
        """Raise RequestError for settings that the model cannot respect."""
        asked = request.settings.over(self.settings)
        if asked.reasoning not in (None, "none"):
            raise RequestError(f"reasoning={asked.reasoning!r}: the embedded model does not reason")
        if asked.provider_tools:
            raise RequestError("provider_tools: the embedded model has no tools of its own")
        return asked


class _Weigher:
    """Weighs tools and calls by Needle and by MiniLM's nearness."""

    def __init__(self, needle: Needle) -> None:
        self.weigher = Weigher(needle)
        self._chooser = ToolChooser(MiniLM())

    def weigh(
        self, asked: str, ranked: Sequence[RankedTool], offer: Offer, *, elliptic: bool
    ) -> tuple[list[RankedTool], list[WeighedCall]]:
        tools = tuple(offer.tools.values())
        found = self.weigher.tools(asked, ranked, self.nearness(asked, ranked, tools))
        around = words_around([p for d in tools for p in patterns_of(d.get_definition())])
        return found, self.weigher.calls(asked, found[0], around, written=not elliptic)

    def nearness(
        self, asked: str, ranked: Sequence[RankedTool], tools: Sequence[HasDefinition]
    ) -> dict[str | None, tuple[float, float]]:
        some = [one for one in ranked if one.tool and one.readings][:_MASKED_TOOLS]
        return self._chooser.nearness(
            asked, tools, {one.tool.name: one.readings[0].masked for one in some if one.tool}
        )


def _weigher() -> _Weigher | None:
    return _Weigher(needle_at(model_path(NEEDLE))) if is_installed(NEEDLE) else None


def _must(request: ChatRequest) -> bool:
    return request.tool_choice.mode in ("required", "tool")


def _agreed_to(request: ChatRequest) -> tuple[ChatRequest, str]:
    """Return the request that a bare yes refers to, and the question that it answers. Any other
    request is returned unchanged.

    The question is made again from that request, and only if it is the same does the call run.
    """
    yes = _last_request(request.messages).casefold().strip(" .,!")
    if yes not in _YES or len(request.messages) < 3:  # the request, the question, yes
        return request, ""
    before, question, _ = request.messages[-3:]
    if before.role != "user" or not question.content.endswith("?"):
        return request, ""
    return msgspec.structs.replace(request, messages=request.messages[:-2]), question.content


def _follows(choice: RankedTool) -> bool:
    """Return whether the request was read as continuing the previous call."""
    return bool(choice.readings) and choice.score == -choice.readings[0].share


def _is_elliptic(request: ChatRequest, asked: str) -> bool:
    """Return whether a request may leave out what the previous call said."""
    said = tokens(asked)
    short = 0 < len(said) <= _ELLIPSIS and (said[0].is_small or said[0].quote > 0)
    return short and _last_call(request.messages) is not None


def _reads(tool: ToolDefinition) -> bool:
    """Return whether requests can be read by all of a tool's examples. The model has nothing to add
    then."""
    return bool(tool.examples) and len(patterns_of(tool)) == len(tool.examples)


def _is_vague(choice: RankedTool, asked: str) -> bool:
    """Return whether none of the values is a number, a quotation, a path or a name."""
    if not choice.readings or _follows(choice):
        return False
    if any(token.quote for token in tokens(asked)):
        return False
    values = choice.readings[0].arguments.values()
    texts = [value for value in values if isinstance(value, str)]
    return len(texts) == len(values) > 0 and all(t.islower() and t.isalpha() for t in texts)


def _sure(choice: RankedTool, asked: str) -> JsonObject | None:
    """Return the arguments of the best reading if it is complete, uses everything that was said,
    and no other is as good."""
    tool, readings = choice.tool, choice.readings
    if tool is None or not readings:
        return None
    best = readings[0]
    if lacking(tool, best.arguments) or leaves_out(asked, best.arguments):
        return None
    if best.share > (_COMPUTED if best.pattern.made else _SHARE):
        return None
    if best.unread > _UNKNOWN_WORDS:
        return None
    close = [r for r in readings[1:] if r.share < best.share + _MARGIN]
    return None if close else best.arguments


def _agreed(choice: RankedTool, tool: ToolDefinition, asked: str, text: str) -> bool:
    """Return whether the model's text is one of the two best readings, or invents nothing."""
    written = _arguments(text)
    if leaves_out(asked, written) or (not written and lacking(tool, written)):
        return False
    if any(filled(tool.input_schema or {}, r.arguments) == written for r in choice.readings[:2]):
        return True
    if choice.readings and choice.readings[0].unread > _UNKNOWN_WORDS:
        return False
    computed = not choice.readings or bool(choice.readings[0].pattern.made)
    return computed and not invents(tool, asked, written)


def _ask(tool: ToolDefinition, arguments: JsonObject) -> str:
    """Return a question back, with what was understood and what is missing.

    An answer would be read by the tool's examples. If the tool has none, no answer is asked for.
    """
    if not tool.examples:
        return NO_EXAMPLES.format(tool.name)
    missing = lacking(tool, arguments)
    known = ", ".join(f"{name}: {_scalar(value)}" for name, value in arguments.items())
    meant = f"{tool.name} with {known}" if known else tool.name
    if missing:
        return f"Do you mean {meant}? Then what is {', '.join(missing)}?"
    return f"I am not sure that I understand. Do you mean {meant}?"


def _call(request: ChatRequest, tool: ToolDefinition, written: Completion, offer: Offer) -> Reply:
    call = ToolCall(
        f"{request.new_prefix()}0", tool.name, written.text.strip(), complete=written.whole
    )
    return Reply(
        Message.assistant("", (call,)),
        "tool_calls" if written.whole else "length",
        Usage(1, written.input_tokens, written.output_tokens),
        offer,
        "stop" if written.whole else "length",
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


def _said(text: str, offer: Offer) -> Reply:
    return Reply(Message.assistant(text), "stop", Usage(1), offer, "stop")


def _last_results(messages: Sequence[Message]) -> list[Message]:
    """Return the tool results at the end of the conversation, or only those that came later, if any
    did."""
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
                    f"the embedded model takes only text, not the {brief_of(part).kind} "
                    f"({brief_of(part)})"
                )


def _last_request(messages: Sequence[Message]) -> str:
    last = messages[-1] if messages else None
    if last is None or last.role != "user":
        return ""
    return "\n\n".join((last.content, *told_in_text(last.parts))).strip()


def _model_file(path: str | Path | None) -> Path:
    if path is None:
        if not is_installed():
            raise SourceError("the embedded model is not installed: run `toolcrib local install`")
        return model_path()
    given = Path(path).expanduser()
    if not given.is_file():
        raise SourceError(f"there is no model file {given}; give the path of a GGUF file")
    return given
