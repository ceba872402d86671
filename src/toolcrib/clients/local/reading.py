"""Reading a request by the examples of a tool: which of its words belong to which argument.

Rule: this code knows no particular tool or phrase. An example is a pattern in which the argument
values are gaps. A request is aligned with it at the lowest cost, by equal and by similar words. The
content of a gap is then a piece of the request, unchanged. A value that an example computes from
the numbers of its request is computed in the same way from the new request's numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from toolcrib.pick.words import STOP_WORDS
from toolcrib.values.definition import Example, ToolDefinition
from toolcrib.values.json import JsonObject, JsonValue
from toolcrib.values.remembered import remembered

Likeness: TypeAlias = Callable[[str, str], float]
"""How similar two short texts are in meaning, with 1 for the same meaning."""

_PARTS = (  # a pattern that is compiled at the first request
    r"(?P<number>(?:(?<=\s)|^)-\d[\d,]*(?:\.\d+)?|\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\d)|\d+(?:\.\d+)?)"
    r"|(?P<word>[.~/]*[^\W\d](?:[\w./@:'’-]*[\w/])?|°\w?)"
    r"|(?P<quote>[\"“”`]|(?<!\w)['‘]|['’](?!\w))"
    r"|(?P<mark>[^\w\s])"
)
_END_MARKS = frozenset("?!.,;:…")
_MOST_TOKENS = 60
_LONGEST_VALUE = 10


class Token(NamedTuple):
    """One word, number or mark of a text. `quote` is the number of the quotation that contains it,
    or 0."""

    text: str
    start: int
    end: int
    kind: str
    quote: int

    @property
    def weight(self) -> float:
        """Return the cost of leaving the token out."""
        if self.kind == "number" or self.quote:
            return 1.5
        if self.kind == "mark":
            return 0.3
        return 0.25 if self.is_small else 1.0

    @property
    def is_small(self) -> bool:
        """Return whether it is a word that says little, such as "the" or "what's"."""
        return all(part in STOP_WORDS for part in re.split("['’]", self.text))


Kind: TypeAlias = Literal["number", "symbols", "words", "member"]


class Gap(msgspec.Struct, frozen=True):
    """The place of a value, or of a number in it (`part`). `sample` is the example's text there."""

    name: str
    part: int
    kind: Kind
    sample: str
    members: tuple[str, ...] = ()
    quoted: bool = False


class Pattern(msgspec.Struct, frozen=True):
    """An example as a pattern. `recipes` say how a value is computed from its parts, and
    `defaults` are the values that its request does not contain."""

    example: Example
    items: tuple[Token | Gap, ...]
    recipes: Mapping[str, tuple[str | int, ...]]
    defaults: JsonObject


class RequestReading(msgspec.Struct, frozen=True):
    """Arguments for a request according to one pattern.

    `cost` is 0 if everything is as in the example. `share` is the cost relative to that of leaving
    out everything that can be left out. `masked` is the request without its values. `unread` counts
    its words there that no example has, and counts words twice that an example has for a value.
    """

    cost: float
    share: float
    arguments: JsonObject
    pattern: Pattern
    masked: str
    unread: int = 0


@remembered(8 << 20, times=16)
def tokens(text: str) -> tuple[Token, ...]:
    """Return the words, numbers and marks of a text, without quotes and the marks that end it."""
    parsed: list[Token] = []
    quote, is_open = 0, False
    for match in re.finditer(_PARTS, text):
        kind, piece = str(match.lastgroup), match[0]
        if kind == "quote":
            is_open = not is_open
            quote += is_open
            continue
        after = text[match.end() : match.end() + 1]
        if kind == "mark" and piece in _END_MARKS and (not after or after.isspace()):
            continue
        parsed.append(
            Token(piece.lower(), match.start(), match.end(), kind, quote if is_open else 0)
        )
    if is_open:  # a quotation without an end does not count
        parsed = [token._replace(quote=0) if token.quote == quote else token for token in parsed]
    return tuple(parsed[:_MOST_TOKENS])


def patterns_of(definition: ToolDefinition) -> list[Pattern]:
    patterns = (pattern_of(definition, example) for example in definition.examples)
    return [pattern for pattern in patterns if pattern is not None]


def words_around(patterns: Sequence[Pattern]) -> frozenset[str]:
    """Return the words that stand around the values of examples."""
    return frozenset(i.text for p in patterns for i in p.items if isinstance(i, Token))


def without_values(pattern: Pattern) -> str:
    """Return the request of an example without its values."""
    return " ".join(item.text for item in pattern.items if isinstance(item, Token))


def number_of(text: str) -> int | float:
    value = float(text.replace(",", ""))
    return int(value) if value.is_integer() else value


def pattern_of(definition: ToolDefinition, example: Example) -> Pattern | None:
    """Return the example as a pattern, or None if one of its values does not come from its request."""
    request_tokens = tokens(example.request)
    gaps: dict[int, tuple[int, Gap]] = {}
    recipes: dict[str, tuple[str | int, ...]] = {}
    defaults: JsonObject = {}
    for name, value in example.arguments.items():
        schema = _property(definition, name)
        gaps_and_recipe = _gaps(name, value, schema, example.request)
        if gaps_and_recipe is None:
            if value != schema.get("default", ...):
                return None
            defaults[name] = value
            continue
        value_gaps, recipe = gaps_and_recipe
        if any(i in gaps for i in value_gaps):
            return None
        gaps |= value_gaps
        if recipe:
            recipes[name] = recipe
    items: list[Token | Gap] = []
    position = 0
    while position < len(request_tokens):
        if position in gaps:
            position, gap = gaps[position]
            items.append(gap)
        else:
            items.append(request_tokens[position])
            position += 1
    return Pattern(example, tuple(items), recipes, defaults)


def properties_of(definition: ToolDefinition) -> JsonObject:
    """Return the schemas of a tool's parameters."""
    properties = (definition.input_schema or {}).get("properties")
    return properties if isinstance(properties, dict) else {}


def _property(definition: ToolDefinition, name: str) -> JsonObject:
    schema = properties_of(definition).get(name)
    return schema if isinstance(schema, dict) else {}


_GapsByStart: TypeAlias = dict[int, tuple[int, Gap]]


def _gaps(
    name: str, value: JsonValue, schema: JsonObject, request: str
) -> tuple[_GapsByStart, tuple[str | int, ...]] | None:
    """Return where a value is in its request, and how it is computed if it is. Return None if it is
    nowhere."""
    request_tokens = tokens(request)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if not isinstance(value, str):
        for i, token in enumerate(request_tokens):
            if token.kind == "number" and number_of(token.text) == value:
                return {i: (i + 1, Gap(name, -1, "number", token.text))}, ()
        return None
    members = schema.get("enum")
    for i in range(len(request_tokens)):
        for j in range(i, min(len(request_tokens), i + _LONGEST_VALUE)):
            if (
                request[request_tokens[i].start : request_tokens[j].end].casefold()
                == value.casefold()
            ):
                member_texts = tuple(map(str, members)) if isinstance(members, list) else ()
                is_symbols = {token.kind for token in request_tokens[i : j + 1]} == {
                    "number",
                    "mark",
                }
                kind: Kind = "member" if member_texts else "symbols" if is_symbols else "words"
                gap = Gap(name, -1, kind, value, member_texts, quoted=request_tokens[i].quote > 0)
                return {i: (j + 1, gap)}, ()
    return _computed(name, value, request_tokens)


def _computed(
    name: str, value: str, request_tokens: Sequence[Token]
) -> tuple[_GapsByStart, tuple[str | int, ...]] | None:
    gaps: _GapsByStart = {}
    recipe: list[str | int] = []
    end = 0
    for token in tokens(value):
        if token.kind != "number":
            continue
        for i, candidate in enumerate(request_tokens):
            is_same = candidate.kind == "number" and number_of(candidate.text) == number_of(
                token.text
            )
            if is_same and i not in gaps:
                recipe += [value[end : token.start], len(gaps)]
                gaps[i] = (i + 1, Gap(name, len(gaps), "number", candidate.text))
                end = token.end
                break
    return (gaps, (*recipe, value[end:])) if gaps else None


def missing_required(definition: ToolDefinition, arguments: JsonObject) -> list[str]:
    """Return the required parameters without a value."""
    required = (definition.input_schema or {}).get("required")
    return [str(n) for n in required if n not in arguments] if isinstance(required, list) else []


def leaves_out(request: str, arguments: JsonObject) -> bool:
    """Return whether a number or a quotation of the request is missing in the arguments, or only a
    part of a number is there."""
    request_tokens, arguments_json = tokens(request), json.dumps(arguments, ensure_ascii=False)
    used_tokens, folded_json = tokens(arguments_json), arguments_json.casefold()
    used_numbers = {number_of(t.text) for t in used_tokens if t.kind == "number"}
    used_texts = {t.text for t in used_tokens}
    misses_number = any(
        (number_of(t.text) not in used_numbers and t.text not in folded_json)
        or _is_changed(request_tokens, index, folded_json)
        or _has_other_suffix(request_tokens, index, used_texts)
        for index, t in enumerate(request_tokens)
        if t.kind == "number"
    )
    return misses_number or any(t.quote and t.text not in folded_json for t in request_tokens)


_SIGNS = frozenset(("minus", "negative", "\N{MINUS SIGN}"))
_SCALES = frozenset(("half", "dozen", "hundred", "thousand", "million", "billion"))
_SUFFIX = r"[kmbt]|mn|mio|bn|e-?\d*|x[\da-f]*"  # as in 30k, 2mn, 1e3, 0x10


def _is_changed(request_tokens: Sequence[Token], index: int, folded_json: str) -> bool:
    """Return whether the words around a number change it, as in "minus 5" or "5 and a half", and do
    not occur in the arguments in that form."""
    texts = [token.text.casefold() for token in request_tokens]
    if (
        index
        and texts[index - 1] in _SIGNS
        and (index < 2 or request_tokens[index - 2].kind != "number")
    ):
        return True
    following = range(index + 1, min(index + 4, len(request_tokens)))
    scale_index = next((i for i in following if texts[i] in _SCALES), index)
    return scale_index > index and " ".join(texts[index : scale_index + 1]) not in folded_json


def _has_other_suffix(
    request_tokens: Sequence[Token], index: int, used_texts: Collection[str]
) -> bool:
    """Return whether what is written onto a number changes it, as in "30k" or "1e3", and is not in
    the arguments, as a unit would be."""
    number, *following = request_tokens[index : index + 2]
    return any(
        word.start == number.end
        and re.fullmatch(_SUFFIX, word.text) is not None
        and word.text not in used_texts
        for word in following
    )


_OWNER = r"['’]s(?= |$)"


def invents(definition: ToolDefinition, request: str, arguments: JsonObject) -> bool:
    """Return whether an argument says something that is not in its request.

    A default, a boolean and a member of an enum may be chosen freely. Any other value has to occur
    in the request ("Anna" in "Anna's"), or has to be made of its numbers, each used once, and
    otherwise only of words in the values of examples. A number is the value of as many arguments as
    the request says it, and no more.
    """
    request_tokens = tokens(request)
    text = " ".join(t.text for t in request_tokens)
    text = f" {text} {re.sub(_OWNER, '', text)} "
    request_numbers = [number_of(t.text) for t in request_tokens if t.kind == "number"]
    single_numbers: list[float] = []
    for name, value in arguments.items():
        schema = _property(definition, name)
        is_free = isinstance(value, bool) or "enum" in schema
        if is_free or value == schema.get("default", ...):
            continue
        pieces = tokens(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        numbers = [number_of(t.text) for t in pieces if t.kind == "number"]
        if len(numbers) == len(pieces) == 1:
            single_numbers += numbers
        is_in_request = f" {' '.join(t.text for t in pieces)} " in text
        if is_in_request and not all(t.is_small for t in pieces):
            continue
        samples = [str(e.arguments.get(name, "")) for e in definition.examples]
        sample_words = {t.text for sample in samples for t in tokens(sample) if t.kind == "word"}
        is_computed = numbers and sorted(numbers) == sorted(request_numbers)
        if not is_computed or any(t.kind == "word" and t.text not in sample_words for t in pieces):
            return True
    return any(
        single_numbers.count(number) > request_numbers.count(number) for number in single_numbers
    )


class RequestReader:
    """Aligns requests with the patterns of one tool."""

    def __init__(
        self,
        definition: ToolDefinition,
        patterns: Sequence[Pattern],
        likeness: Likeness,
        familiar: frozenset[str],
    ) -> None:
        """`familiar` has the words that all tools' examples use around values, and that are rarely
        a value."""
        self.definition = definition
        self.patterns = patterns
        self._likeness = likeness
        self._familiar = familiar
        self._samples: dict[str, set[str]] = {}
        for p in self.patterns:
            for item in p.items:
                if isinstance(item, Gap) and item.kind == "words":
                    self._samples.setdefault(item.name, set()).add(item.sample)
        self._all_samples = set().union(*self._samples.values())
        gaps = [item for p in patterns for item in p.items if isinstance(item, Gap)]
        self._quoted_names = {gap.name for gap in gaps if gap.quoted}
        self._sample_texts = {sample.lower() for sample in self._all_samples}

    def read(self, request: str) -> list[RequestReading]:
        """Return the readings of a request, the cheapest first, each with different arguments."""
        return _distinct([r for p in self.patterns if (r := self.aligned(request, p, {}))])

    def follow(self, request: str, previous: JsonObject) -> list[RequestReading]:
        """Return the readings of a request that leaves out what an earlier call said."""
        readings = []
        for reading in (self.aligned(request, p, previous) for p in self.patterns if not p.recipes):
            if reading and reading.arguments != previous:
                texts = [v for v in reading.arguments.values() if isinstance(v, str)]
                readings += [reading] if len({*texts}) == len(texts) else []
        return sorted(_distinct(readings), key=lambda r: r.cost)

    def aligned(
        self, request: str, pattern: Pattern, previous: JsonObject
    ) -> RequestReading | None:
        """Return the cheapest alignment of a request with a pattern.

        With `previous`, the arguments of an earlier call, gaps may stay empty.
        """
        request_tokens, items = tokens(request), pattern.items
        best: list[list[tuple[float, tuple[tuple[int, int], ...]] | None]]
        best = [[None] * (len(request_tokens) + 1) for _ in range(len(items) + 1)]
        best[0][0] = (0.0, ())
        for i in range(len(items) + 1):
            for j in range(len(request_tokens) + 1):
                state = best[i][j]
                if state is None:
                    continue
                for item_count, token_count, cost in self._moves(
                    items, i, request_tokens, j, request, bool(previous)
                ):
                    total = state[0] + cost
                    cheapest = best[i + item_count][j + token_count]
                    if cheapest is None or total < cheapest[0]:
                        fills_gap = item_count and isinstance(items[i], Gap)
                        path = (*state[1], (j, j + token_count)) if fills_gap else state[1]
                        best[i + item_count][j + token_count] = (total, path)
        final = best[-1][-1]
        return None if final is None else self._reading(request, pattern, previous, *final)

    def _moves(
        self,
        items: Sequence[Token | Gap],
        i: int,
        request_tokens: Sequence[Token],
        j: int,
        request: str,
        is_continuation: bool,
    ) -> list[tuple[int, int, float]]:
        moves: list[tuple[int, int, float]] = []
        if j < len(request_tokens):
            is_familiar = (
                request_tokens[j].kind == "word" and request_tokens[j].text in self._familiar
            )
            moves.append((0, 1, request_tokens[j].weight * (0.6 if is_familiar else 1)))
        if i == len(items):
            return moves
        item = items[i]
        if isinstance(item, Token):
            moves.append((1, 0, item.weight * (0.04 if is_continuation else 1)))
            if j < len(request_tokens):
                cost = self._difference(item, request_tokens[j])
                moves.append((1, 1, cost - (0.1 if is_continuation and cost == 0 else 0)))
            return moves
        if is_continuation or (
            item.part < 0 and "default" in _property(self.definition, item.name)
        ):
            moves.append((1, 0, 0.3))
        for end in range(j + 1, min(len(request_tokens), j + _LONGEST_VALUE) + 1):
            text = request[request_tokens[j].start : request_tokens[end - 1].end]
            fit = self._fit(
                item,
                request_tokens[j:end],
                request_tokens,
                text=text,
                is_continuation=is_continuation,
            )
            if fit is not None:
                moves.append((1, end - j, fit))
        return moves

    def _difference(self, item: Token, token: Token) -> float:
        if item.text == token.text:
            return 0.0
        if item.kind != token.kind or "mark" in (item.kind, token.kind):
            return item.weight + token.weight
        return (1 - max(0.0, self._likeness(item.text, token.text))) * (item.weight + token.weight)

    def _fit(
        self,
        gap: Gap,
        piece: Sequence[Token],
        request_tokens: Sequence[Token],
        *,
        text: str,
        is_continuation: bool,
    ) -> float | None:
        """Return the cost of taking a piece of the request for a gap, or None if it cannot be taken."""
        quotes = {token.quote for token in piece}
        if quotes != {0}:  # a quotation is only taken as a whole
            is_whole = sum(token.quote in quotes for token in request_tokens) == len(piece)
            if len(quotes) > 1 or not is_whole:
                return None
        match gap.kind:
            case "number":
                return 0.0 if len(piece) == 1 and piece[0].kind == "number" else None
            case "member":
                return 0.0 if text.casefold() in map(str.casefold, gap.members) else None
            case "symbols":
                is_symbols = {token.kind for token in piece} == {"number", "mark"}
                return 0.0 if is_symbols and text.count("(") == text.count(")") else None
            case "words":
                samples = self._all_samples if is_continuation else self._samples[gap.name]
                likeness = 1.0 if quotes != {0} else max(self._likeness(text, s) for s in samples)
                return self._words_fit(gap, piece, text, likeness)

    def _words_fit(
        self, gap: Gap, piece: Sequence[Token], text: str, likeness: float
    ) -> float | None:
        if piece[0].quote:
            return 0.1 if gap.name in self._quoted_names or not self._quoted_names else 0.7
        is_long = len(tokens(gap.sample)) > 2
        if not is_long and not self._could_be(gap, piece):
            return None
        cost = sum(
            (self._token_cost(token, is_long=is_long) for token in piece),
            0.6 if gap.quoted else 0.0,
        )
        cost += 0.25 * max(0, len(piece) - len(tokens(gap.sample)))
        if not is_long and len({_shape(word) for word in text.split()}) > 1:
            cost += 0.6
        if _is_path(text) != _is_path(gap.sample):
            cost += 0.4
        if text[:1].isupper() != gap.sample[:1].isupper() and not is_long:
            cost += 0.1
        return cost + (0.15 if is_long else 0.8) * (1 - max(0.0, likeness))

    def _token_cost(self, token: Token, *, is_long: bool) -> float:
        if token.kind != "word":
            return 0.3 if token.kind == "mark" else 0.9
        if token.is_small:
            return 0.2 if is_long else 0.8
        if is_long:
            return 0.2
        return 0.55 if token.text in self._familiar else 0.05

    def _could_be(self, gap: Gap, piece: Sequence[Token]) -> bool:
        """Return whether a piece has more than the words around values in examples, and is like the
        samples of its gap in its length and its small words."""
        if all(t.is_small or t.text in self._familiar - self._sample_texts for t in piece):
            return False
        samples = [tokens(sample) for sample in self._samples[gap.name]]
        if any(token.is_small for token in piece):
            return any(token.is_small for sample in samples for token in sample)
        return len(piece) <= 1 + max(map(len, samples))

    def _reading(
        self,
        request: str,
        pattern: Pattern,
        previous: JsonObject,
        cost: float,
        path: tuple[tuple[int, int], ...],
    ) -> RequestReading:
        request_tokens = tokens(request)
        gaps = [item for item in pattern.items if isinstance(item, Gap)]
        arguments: JsonObject = dict(previous) if previous else dict(pattern.defaults)
        parts: dict[str, dict[int, str]] = {}
        masked, position = "", 0
        for gap, (start, end) in zip(gaps, path, strict=True):
            if start == end:
                continue
            text_start, text_end = request_tokens[start].start, request_tokens[end - 1].end
            text = request[text_start:text_end]
            masked, position = f"{masked}{request[position:text_start]}", text_end
            if gap.part >= 0:
                parts.setdefault(gap.name, {})[gap.part] = text.replace(",", "")
            elif gap.kind == "number" and _property(self.definition, gap.name).get("type") in (
                "integer",
                "number",
            ):
                arguments[gap.name] = number_of(text)
            elif gap.kind == "member":
                arguments[gap.name] = next(
                    m for m in gap.members if m.casefold() == text.casefold()
                )
            else:
                arguments[gap.name] = text
        for name, recipe in pattern.recipes.items():
            gap_texts = parts.get(name, {})
            if all(isinstance(r, str) or r in gap_texts for r in recipe):
                arguments[name] = "".join(r if isinstance(r, str) else gap_texts[r] for r in recipe)
        total_weight = sum(t.weight for t in request_tokens) + sum(
            item.weight if isinstance(item, Token) else 1.0 for item in pattern.items
        )
        masked += request[position:]
        unread = sum(
            2 if t.text in self._sample_texts else t.text not in self._familiar
            for t in tokens(masked)
            if t.kind == "word" and not t.is_small
        )
        return RequestReading(
            cost, cost / max(total_weight, 1.0), arguments, pattern, masked, unread
        )


def _shape(word: str) -> str:
    """Return whether a word looks like a plain word, a name or a technical word."""
    if not word.isalpha():
        return "technical"
    return "plain" if word.islower() else "name" if word[1:].islower() else "technical"


def _is_path(text: str) -> bool:
    return bool(re.search(r"[./_]", text.strip("./")) or text[:1] in "./~")


def _distinct(readings: list[RequestReading]) -> list[RequestReading]:
    distinct: list[RequestReading] = []
    for reading in sorted(readings, key=lambda r: r.share):
        if all(reading.arguments != other.arguments for other in distinct):
            distinct.append(reading)
    return distinct
