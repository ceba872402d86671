"""The default scorer: words shared by request and definition, weighed by BM25 in SQLite's FTS5.

Rule: SQLite sees only words of our own making (`text.words`), each one quoted, so no request can
be FTS syntax; and every bound on cost (characters, terms) is fixed, not the caller's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import log
from threading import Lock
from typing import NamedTuple
from weakref import finalize

from toolcrib.errors import PickError
from toolcrib.pick.hits import Hits
from toolcrib.pick.index import CatalogCache
from toolcrib.pick.query import Query
from toolcrib.pick.scorer import Score
from toolcrib.pick.text import Fields, fields, words
from toolcrib.values.definition import HasDefinition, ToolDefinition
from toolcrib.values.json import JsonObject

_LABELS = Fields("name", "description", "parameters", "parameter descriptions", "tags")
_WEIGHTS = Fields("4", "1", "1", "0.6", "0.5")

# Porter stems; a combining mark is part of its word, as it is in `text.words`.
_TOKENIZER = "tokenize=\"porter unicode61 remove_diacritics 2 categories 'L* N* Co Mn Mc'\""
_SCHEMA = f"""
CREATE VIRTUAL TABLE docs USING fts5({", ".join(Fields._fields)}, {_TOKENIZER});
CREATE VIRTUAL TABLE vocabulary USING fts5vocab(docs, row);
CREATE VIRTUAL TABLE asked USING fts5(word, {_TOKENIZER});
CREATE VIRTUAL TABLE stems USING fts5vocab(asked, instance);
"""
_INSERT = f"INSERT INTO docs(rowid, {', '.join(Fields._fields)}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608  constants only
_SEARCH = f"SELECT rowid, -bm25(docs, {', '.join(_WEIGHTS)}) FROM docs WHERE docs MATCH ?"  # noqa: S608
_HIGHLIGHTS = ", ".join(f"highlight(docs, {i}, '[', ']')" for i in range(len(Fields._fields)))
_EXPLAIN = f"SELECT {_HIGHLIGHTS} FROM docs WHERE docs MATCH ? AND rowid = ?"  # noqa: S608

# FTS5 gives a word no weight once half of all rows have it. Below this many tools that would mute
# most words, so rows of a word that nobody can ask for (private use) fill the table up.
_ROWS = 100
_FILLER = "\ue000"
_SATURATION = 2.2  # FTS5's k1 + 1: what one word's idf is multiplied by, at most
_MAX_TERMS = 64
_ENOUGH = 10
_NO_MATCH = Score(0.0, "no word in common")


class KeywordScorer:
    """Scores by weighted BM25 over name, description, parameters and tags; needs no extra.

    The score says how much of a request a tool answers. With `s` the BM25 sum, `m` the mean idf of
    the request's words that the catalog knows, `n` the number of its words (stop words not counted,
    at most 10, since no tool repeats a whole letter): `r = s / (2.2 * m * n)`, 2.2 being what BM25
    multiplies an idf by at most. The score is `r` up to 0.5 and `1 - 1/(4r)` above, always below 1.
    A tool that shares no word scores 0. Of a long request the 64 rarest words count.

    Deterministic; one index per catalog, kept for the eight used last; safe to use from threads.
    """

    name = "keyword"

    def __init__(self) -> None:
        self._indexes = CatalogCache(_Index)

    def hits(self, query: Query, tools: Sequence[HasDefinition], limit: int | None = None) -> Hits:
        """The tools that share a word, by their BM25. Raises PickError where SQLite has no FTS5."""
        return self._indexes.get(tools).hits(query.text)

    def explain(
        self, query: Query, tools: Sequence[HasDefinition], picked: Sequence[int]
    ) -> Sequence[Score]:
        """For the tools at these positions, which words were found in which fields."""
        return self._indexes.get(tools).explain(query.text, picked)


class _Query(NamedTuple):
    match: str
    ideal: float


class _Index:
    def __init__(self, definitions: Sequence[ToolDefinition]) -> None:
        self._rows = max(len(definitions), _ROWS)
        self._lock = Lock()
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        finalize(self, self._db.close).atexit = False  # a thread may still be in it then
        try:
            self._db.executescript(_SCHEMA)
        except sqlite3.OperationalError as error:
            raise PickError(
                f"keyword picking needs SQLite with FTS5, which this Python lacks ({error}); "
                "pass another scorer in PickOptions"
            ) from error
        with self._transaction("COMMIT"):
            self._db.executemany(_INSERT, _rows(definitions))
        self._found_in: dict[str, int] = dict(
            self._db.execute("SELECT term, doc FROM vocabulary").fetchall()
        )

    def hits(self, query: str) -> Hits:
        with self._lock:
            asked = self._query(query)
            found = self._db.execute(_SEARCH, (asked.match,)).fetchall() if asked else []
        ideal = asked.ideal if asked else 1.0
        return Hits(
            [bm25 for _, bm25 in found],
            [row for row, _ in found],
            lambda bm25: _calibrated(bm25 / ideal),
        )

    def explain(self, query: str, picked: Sequence[int]) -> list[Score]:
        with self._lock:
            asked = self._query(query)
            rows = [
                self._db.execute(_EXPLAIN, (asked.match, row)).fetchone() if asked else None
                for row in picked
            ]
        return [_NO_MATCH if row is None else _explanation(row) for row in rows]

    def _query(self, query: str) -> _Query | None:
        # Names keep their stop words, so a request of nothing else can still find one.
        asked = dict.fromkeys(words(query) or words(query, stop_words=True))
        by_stem = {stem: word for word, stem in self._stemmed(list(asked))}
        idf = {stem: self._idf(stem) for stem in by_stem if stem in self._found_in}
        if not idf:
            return None
        rarest = sorted(idf, key=lambda stem: (-idf[stem], stem))[:_MAX_TERMS]
        mean = sum(idf.values()) / len(idf)
        return _Query(
            match=" OR ".join(
                f'"{word}"' for word in dict.fromkeys(by_stem[stem] for stem in rarest)
            ),
            ideal=_SATURATION * mean * min(len(by_stem), _ENOUGH),
        )

    def _stemmed(self, asked: list[str]) -> list[tuple[str, str]]:
        """(word, stem) pairs, by SQLite's own tokenizer: the words pass through a table."""
        with self._transaction("ROLLBACK"):
            self._db.executemany("INSERT INTO asked(rowid, word) VALUES (?, ?)", enumerate(asked))
            found = self._db.execute("SELECT doc, term FROM stems ORDER BY doc DESC").fetchall()
        return [(asked[row], stem) for row, stem in found if stem]  # a lone mark stems to nothing

    def _idf(self, stem: str) -> float:
        """FTS5's own: see "The bm25() function" in SQLite's FTS5 documentation."""
        count = self._found_in[stem]
        return max(log((self._rows - count + 0.5) / (count + 0.5)), 1e-6)

    @contextmanager
    def _transaction(self, end: str) -> Iterator[None]:
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute(end)


def _rows(definitions: Sequence[ToolDefinition]) -> Iterator[tuple[int | str, ...]]:
    longest = 0
    for row, definition in enumerate(definitions):
        text = fields(definition)
        columns = [words(text.name, stop_words=True), *(words(column) for column in text[1:])]
        longest += sum(map(len, columns))
        yield (row, *(" ".join(column) for column in columns))
    if not definitions:
        return
    filler = " ".join([_FILLER] * max(1, longest // len(definitions)))
    for row in range(len(definitions), _ROWS):
        yield (row, "", filler, "", "", "")


def _calibrated(share: float) -> float:
    return share if share <= 0.5 else 1 - 0.25 / share


def _explanation(row: Sequence[str]) -> Score:
    matched = {
        label: list(dict.fromkeys(word[1:-1] for word in text.split() if word[0] == "["))
        for label, text in zip(_LABELS, row, strict=True)
        if "[" in text
    }
    reason = "; ".join(f"{label}: {', '.join(found)}" for label, found in matched.items())
    by_field: JsonObject = {label: [*found] for label, found in matched.items()}
    return Score(0.0, reason, {"matched": by_field})
