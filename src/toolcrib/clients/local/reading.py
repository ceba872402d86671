"""Reading a request by the examples of a tool: which of its words belong to which argument.

Rule: this code knows no particular tool or phrase. An example is a pattern in which the argument
values are gaps. A request is aligned with it at the lowest cost, by equal and by similar words. The
content of a gap is then a piece of the request, unchanged. A value that an example computes from
the numbers of its request is computed in the same way from the new request's numbers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
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
_ENDS = frozenset("?!.,;:…")
_MOST_TOKENS = 60
_LONGEST = 10


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
    """An example as a pattern. `made` says how a value is computed from its parts."""

    example: Example
    items: tuple[Token | Gap, ...]
    made: Mapping[str, tuple[str | int, ...]]
    fixed: JsonObject


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
    found: list[Token] = []
    quote, opened = 0, False
    for match in re.finditer(_PARTS, text):
        kind, piece = str(match.lastgroup), match[0]
        if kind == "quote":
            opened = not opened
            quote += opened
            continue
        after = text[match.end() : match.end() + 1]
        if kind == "mark" and piece in _ENDS and (not after or after.isspace()):
            continue
        found.append(Token(piece.lower(), match.start(), match.end(), kind, quote if opened else 0))
    if opened:  # a quotation without an end does not count
        found = [token._replace(quote=0) if token.quote == quote else token for token in found]
    return tuple(found[:_MOST_TOKENS])


def patterns_of(definition: ToolDefinition) -> list[Pattern]:
    found = (pattern_of(definition, example) for example in definition.examples)
    return [pattern for pattern in found if pattern is not None]


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
    said = tokens(example.request)
    gaps: dict[int, tuple[int, Gap]] = {}
    made: dict[str, tuple[str | int, ...]] = {}
    fixed: JsonObject = {}
    for name, value in example.arguments.items():
        schema = _property(definition, name)
        found = _gaps(name, value, schema, example.request)
        if found is None:
            if value != schema.get("default", ...):
                return None
            fixed[name] = value
            continue
        places, recipe = found
        if any(i in gaps for i in places):
            return None
        gaps |= places
        if recipe:
            made[name] = recipe
    items: list[Token | Gap] = []
    at = 0
    while at < len(said):
        if at in gaps:
            at, gap = gaps[at]
            items.append(gap)
        else:
            items.append(said[at])
            at += 1
    return Pattern(example, tuple(items), made, fixed)


def properties_of(definition: ToolDefinition) -> JsonObject:
    """Return the schemas of a tool's parameters."""
    properties = (definition.input_schema or {}).get("properties")
    return properties if isinstance(properties, dict) else {}


def _property(definition: ToolDefinition, name: str) -> JsonObject:
    found = properties_of(definition).get(name)
    return found if isinstance(found, dict) else {}


_Places: TypeAlias = dict[int, tuple[int, Gap]]


def _gaps(
    name: str, value: JsonValue, schema: JsonObject, request: str
) -> tuple[_Places, tuple[str | int, ...]] | None:
    """Return where a value is in its request, and how it is computed if it is. Return None if it is
    nowhere."""
    said = tokens(request)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if not isinstance(value, str):
        for i, token in enumerate(said):
            if token.kind == "number" and number_of(token.text) == value:
                return {i: (i + 1, Gap(name, -1, "number", token.text))}, ()
        return None
    members = schema.get("enum")
    for i in range(len(said)):
        for j in range(i, min(len(said), i + _LONGEST)):
            if request[said[i].start : said[j].end].casefold() == value.casefold():
                texts = tuple(map(str, members)) if isinstance(members, list) else ()
                symbols = {token.kind for token in said[i : j + 1]} == {"number", "mark"}
                kind: Kind = "member" if texts else "symbols" if symbols else "words"
                gap = Gap(name, -1, kind, value, texts, quoted=said[i].quote > 0)
                return {i: (j + 1, gap)}, ()
    return _computed(name, value, said)


def _computed(
    name: str, value: str, said: Sequence[Token]
) -> tuple[_Places, tuple[str | int, ...]] | None:
    places: _Places = {}
    recipe: list[str | int] = []
    at = 0
    for token in tokens(value):
        if token.kind != "number":
            continue
        for i, other in enumerate(said):
            same = other.kind == "number" and number_of(other.text) == number_of(token.text)
            if same and i not in places:
                recipe += [value[at : token.start], len(places)]
                places[i] = (i + 1, Gap(name, len(places), "number", other.text))
                at = token.end
                break
    return (places, (*recipe, value[at:])) if places else None


def lacking(definition: ToolDefinition, arguments: JsonObject) -> list[str]:
    """Return the required parameters without a value."""
    required = (definition.input_schema or {}).get("required")
    return [str(n) for n in required if n not in arguments] if isinstance(required, list) else []


def leaves_out(request: str, arguments: JsonObject) -> bool:
    """Return whether a number or a quotation of the request is missing in the arguments, or only a
    part of a number is there."""
    said, text = tokens(request), json.dumps(arguments, ensure_ascii=False)
    used = {number_of(t.text) for t in tokens(text) if t.kind == "number"}
    words = text.casefold()
    missed = any(
        (number_of(t.text) not in used and t.text not in words) or _is_changed(said, at, words)
        for at, t in enumerate(said)
        if t.kind == "number"
    )
    return missed or any(t.quote and t.text not in words for t in said)


_SIGNS = frozenset(("minus", "negative"))
_SCALES = frozenset(("half", "dozen", "hundred", "thousand", "million", "billion"))


def _is_changed(said: Sequence[Token], at: int, words: str) -> bool:
    """Return whether the words around a number change it, as in "minus 5" or "5 and a half", and do
    not occur in the arguments in that form."""
    texts = [token.text.casefold() for token in said]
    if at and texts[at - 1] in _SIGNS and (at < 2 or said[at - 2].kind != "number"):
        return True
    behind = range(at + 1, min(at + 4, len(said)))
    scale = next((place for place in behind if texts[place] in _SCALES), at)
    return scale > at and " ".join(texts[at : scale + 1]) not in words


_OWNER = r"['’]s(?= |$)"


def invents(definition: ToolDefinition, request: str, arguments: JsonObject) -> bool:
    """Return whether an argument says something that is not in its request.

    A default, a boolean and a member of an enum may be chosen freely. Any other value has to occur
    in the request ("Anna" in "Anna's"), or has to be made of its numbers, each used once, and
    otherwise only of words in the values of examples. A number is the value of as many arguments as
    the request says it, and no more.
    """
    said = tokens(request)
    text = " ".join(t.text for t in said)
    text = f" {text} {re.sub(_OWNER, '', text)} "
    given = [number_of(t.text) for t in said if t.kind == "number"]
    alone: list[float] = []
    for name, value in arguments.items():
        schema = _property(definition, name)
        chosen = isinstance(value, bool) or "enum" in schema
        if chosen or value == schema.get("default", ...):
            continue
        pieces = tokens(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        numbers = [number_of(t.text) for t in pieces if t.kind == "number"]
        if len(numbers) == len(pieces) == 1:
            alone += numbers
        stands = f" {' '.join(t.text for t in pieces)} " in text
        if stands and not all(t.is_small for t in pieces):
            continue
        samples = [str(e.arguments.get(name, "")) for e in definition.examples]
        known = {t.text for sample in samples for t in tokens(sample) if t.kind == "word"}
        computed = numbers and sorted(numbers) == sorted(given)
        if not computed or any(t.kind == "word" and t.text not in known for t in pieces):
            return True
    return any(alone.count(number) > given.count(number) for number in alone)


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
        self._quoted = {gap.name for gap in gaps if gap.quoted}
        self._values = {sample.lower() for sample in self._all_samples}

    def read(self, request: str) -> list[RequestReading]:
        """Return the readings of a request, the cheapest first, each with different arguments."""
        return _distinct([r for p in self.patterns if (r := self.laid(request, p, {}))])

    def follow(self, request: str, before: JsonObject) -> list[RequestReading]:
        """Return the readings of a request that leaves out what an earlier call said."""
        found = []
        for reading in (self.laid(request, p, before) for p in self.patterns if not p.made):
            if reading and reading.arguments != before:
                texts = [v for v in reading.arguments.values() if isinstance(v, str)]
                found += [reading] if len({*texts}) == len(texts) else []
        return sorted(_distinct(found), key=lambda r: r.cost)

    def laid(self, request: str, pattern: Pattern, before: JsonObject) -> RequestReading | None:
        """Return the cheapest alignment of a request with a pattern.

        With `before`, the arguments of an earlier call, gaps may stay empty.
        """
        said, items = tokens(request), pattern.items
        best: list[list[tuple[float, tuple[tuple[int, int], ...]] | None]]
        best = [[None] * (len(said) + 1) for _ in range(len(items) + 1)]
        best[0][0] = (0.0, ())
        for i in range(len(items) + 1):
            for j in range(len(said) + 1):
                here = best[i][j]
                if here is None:
                    continue
                for steps, taken, cost in self._steps(items, i, said, j, request, bool(before)):
                    total = here[0] + cost
                    old = best[i + steps][j + taken]
                    if old is None or total < old[0]:
                        gap = steps and isinstance(items[i], Gap)
                        path = (*here[1], (j, j + taken)) if gap else here[1]
                        best[i + steps][j + taken] = (total, path)
        end = best[-1][-1]
        return None if end is None else self._reading(request, pattern, before, *end)

    def _steps(
        self,
        items: Sequence[Token | Gap],
        i: int,
        said: Sequence[Token],
        j: int,
        request: str,
        follows: bool,
    ) -> list[tuple[int, int, float]]:
        found: list[tuple[int, int, float]] = []
        if j < len(said):
            known = said[j].kind == "word" and said[j].text in self._familiar
            found.append((0, 1, said[j].weight * (0.6 if known else 1)))
        if i == len(items):
            return found
        item = items[i]
        if isinstance(item, Token):
            found.append((1, 0, item.weight * (0.04 if follows else 1)))
            if j < len(said):
                cost = self._difference(item, said[j])
                found.append((1, 1, cost - (0.1 if follows and cost == 0 else 0)))
            return found
        if follows or (item.part < 0 and "default" in _property(self.definition, item.name)):
            found.append((1, 0, 0.3))
        for end in range(j + 1, min(len(said), j + _LONGEST) + 1):
            text = request[said[j].start : said[end - 1].end]
            fit = self._fit(item, said[j:end], said, text=text, follows=follows)
            if fit is not None:
                found.append((1, end - j, fit))
        return found

    def _difference(self, item: Token, token: Token) -> float:
        if item.text == token.text:
            return 0.0
        if item.kind != token.kind or "mark" in (item.kind, token.kind):
            return item.weight + token.weight
        return (1 - max(0.0, self._likeness(item.text, token.text))) * (item.weight + token.weight)

    def _fit(
        self, gap: Gap, piece: Sequence[Token], said: Sequence[Token], *, text: str, follows: bool
    ) -> float | None:
        """Return the cost of taking a piece of the request for a gap, or None if it cannot be taken."""
        quotes = {token.quote for token in piece}
        if quotes != {0}:  # a quotation is only taken as a whole
            whole = sum(token.quote in quotes for token in said) == len(piece)
            if len(quotes) > 1 or not whole:
                return None
        match gap.kind:
            case "number":
                return 0.0 if len(piece) == 1 and piece[0].kind == "number" else None
            case "member":
                return 0.0 if text.casefold() in map(str.casefold, gap.members) else None
            case "symbols":
                some = {token.kind for token in piece} == {"number", "mark"}
                return 0.0 if some and text.count("(") == text.count(")") else None
            case "words":
                samples = self._all_samples if follows else self._samples[gap.name]
                near = 1.0 if quotes != {0} else max(self._likeness(text, s) for s in samples)
                return self._words_fit(gap, piece, text, near)

    def _words_fit(self, gap: Gap, piece: Sequence[Token], text: str, near: float) -> float | None:
        if piece[0].quote:
            return 0.1 if gap.name in self._quoted or not self._quoted else 0.7
        long = len(tokens(gap.sample)) > 2
        if not long and not self._could_be(gap, piece):
            return None
        cost = sum((self._taken(token, long=long) for token in piece), 0.6 if gap.quoted else 0.0)
        cost += 0.25 * max(0, len(piece) - len(tokens(gap.sample)))
        if not long and len({_shape(word) for word in text.split()}) > 1:
            cost += 0.6
        if _is_path(text) != _is_path(gap.sample):
            cost += 0.4
        if text[:1].isupper() != gap.sample[:1].isupper() and not long:
            cost += 0.1
        return cost + (0.15 if long else 0.8) * (1 - max(0.0, near))

    def _taken(self, token: Token, *, long: bool) -> float:
        if token.kind != "word":
            return 0.3 if token.kind == "mark" else 0.9
        if token.is_small:
            return 0.2 if long else 0.8
        if long:
            return 0.2
        return 0.55 if token.text in self._familiar else 0.05

    def _could_be(self, gap: Gap, piece: Sequence[Token]) -> bool:
        """Return whether a piece has more than the words around values in examples, and is like the
        samples of its gap in its length and its small words."""
        if all(t.is_small or t.text in self._familiar - self._values for t in piece):
            return False
        samples = [tokens(sample) for sample in self._samples[gap.name]]
        if any(token.is_small for token in piece):
            return any(token.is_small for sample in samples for token in sample)
        return len(piece) <= 1 + max(map(len, samples))

    def _reading(
        self,
        request: str,
        pattern: Pattern,
        before: JsonObject,
        cost: float,
        path: tuple[tuple[int, int], ...],
    ) -> RequestReading:
        said = tokens(request)
        gaps = [item for item in pattern.items if isinstance(item, Gap)]
        arguments: JsonObject = dict(before) if before else dict(pattern.fixed)
        parts: dict[str, dict[int, str]] = {}
        masked, at = "", 0
        for gap, (start, end) in zip(gaps, path, strict=True):
            if start == end:
                continue
            first, last = said[start].start, said[end - 1].end
            text = request[first:last]
            masked, at = f"{masked}{request[at:first]}", last
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
        for name, recipe in pattern.made.items():
            given = parts.get(name, {})
            if all(isinstance(r, str) or r in given for r in recipe):
                arguments[name] = "".join(r if isinstance(r, str) else given[r] for r in recipe)
        weight = sum(t.weight for t in said) + sum(
            item.weight if isinstance(item, Token) else 1.0 for item in pattern.items
        )
        masked += request[at:]
        unread = sum(
            2 if t.text in self._values else t.text not in self._familiar
            for t in tokens(masked)
            if t.kind == "word" and not t.is_small
        )
        return RequestReading(cost, cost / max(weight, 1.0), arguments, pattern, masked, unread)


def _shape(word: str) -> str:
    """Return whether a word looks like a plain word, a name or a technical word."""
    if not word.isalpha():
        return "technical"
    return "plain" if word.islower() else "name" if word[1:].islower() else "technical"


def _is_path(text: str) -> bool:
    return bool(re.search(r"[./_]", text.strip("./")) or text[:1] in "./~")


def _distinct(readings: list[RequestReading]) -> list[RequestReading]:
    found: list[RequestReading] = []
    for reading in sorted(readings, key=lambda r: r.share):
        if all(reading.arguments != other.arguments for other in found):
            found.append(reading)
    return found
