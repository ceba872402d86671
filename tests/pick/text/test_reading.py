from __future__ import annotations

from math import nan

import pytest

from toolcrib.errors import PickError
from toolcrib.pick.text.reading import legible, part_read


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", 1),
        ("12:30 → 14:00", 1),
        ("What is the weather?", 1),
        ("Où est-ce que l’été à Łódź, ở Huế?", 1),
        ("cafe\u0301", 1),
        ("どこ", 0.1),
        ("погода", 0.1),
        ("α b", 0.55),
        ("\ud800", 1),
    ],
)
def test_letters_that_are_not_latin_count_a_tenth(text: str, part: float) -> None:
    assert legible(text) == pytest.approx(part)


class Reader:
    def __init__(self, said: object) -> None:
        self._said = said

    def reads(self, text: str) -> object:
        if isinstance(self._said, Exception):
            raise self._said
        return self._said


@pytest.mark.parametrize("embedder", [object(), Reader(1), Reader(True), Reader("1.0")])
def test_all_is_read_where_nothing_less_is_said(embedder: object) -> None:
    assert part_read(embedder, "text", "'model'") == 1


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (nan, "reads gave nan"),
        (1.5, "reads gave 1.5"),
        (-0.5, "reads gave -0.5"),
        ("all", "reads raised ValueError"),
        (None, "reads raised TypeError"),
        (RuntimeError("secret"), "reads raised RuntimeError"),
    ],
)
def test_what_reads_may_not_say(said: object, message: str) -> None:
    with pytest.raises(PickError, match=f"embedder 'model': {message}") as caught:
        part_read(Reader(said), "text", "'model'")
    assert "secret" not in str(caught.value)
