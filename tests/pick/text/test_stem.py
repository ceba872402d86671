from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolcrib.pick.text import stem as module
from toolcrib.pick.text.stem import stem, stems
from toolcrib.pick.text.words import words


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        # Porter's own examples, step by step
        ("caresses", "caress"),
        ("ponies", "poni"),
        ("ties", "ti"),
        ("cats", "cat"),
        ("feed", "feed"),
        ("agreed", "agre"),
        ("plastered", "plaster"),
        ("bled", "bled"),
        ("motoring", "motor"),
        ("sing", "sing"),
        ("conflated", "conflat"),
        ("troubled", "troubl"),
        ("hopping", "hop"),
        ("falling", "fall"),
        ("hissing", "hiss"),
        ("filing", "file"),
        ("happy", "happi"),
        ("sky", "sky"),
        ("relational", "relat"),
        ("conditional", "condit"),
        ("vietnamization", "vietnam"),
        ("formaliti", "formal"),
        ("triplicate", "triplic"),
        ("hopefulness", "hope"),
        ("revival", "reviv"),
        ("adjustment", "adjust"),
        ("adoption", "adopt"),
        ("probate", "probat"),
        ("rate", "rate"),
        ("cease", "ceas"),
        ("controll", "control"),
        ("roll", "roll"),
        ("generalizations", "gener"),
        ("oscillators", "oscil"),
        ("possibly", "possibl"),
        ("topologies", "topolog"),
        ("ies", "i"),
        ("sses", "ss"),
        ("a", "a"),
        ("s", "s"),
        ("as", "as"),
        ("say", "sai"),
        ("eed", "eed"),
        ("ing", "ing"),
        # what is no English word
        ("is", "is"),
        ("sha256", "sha256"),
        ("90s", "90"),
        ("zürich", "zurich"),
        ("prévisions", "previs"),
        ("прогноз", "прогноз"),
        ("हिन्दी", "हिन्दी"),
        ("날씨", "날씨"),
        ("天気", "天気"),
        ("\u0301", "\u0301"),
    ],
)
def test_stem(word: str, expected: str) -> None:
    assert stem(word) == expected


@given(st.text(alphabet=st.characters(), max_size=100))
def test_stems_are_those_of_the_words(text: str) -> None:
    assert stems(text) == [stem(word) for word in words(text)]
    assert stems(text, stop_words=True) == [stem(word) for word in words(text, stop_words=True)]
    assert all(stems(text))


def test_what_is_remembered_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    known = module._STEMS
    monkeypatch.setattr(module, "_MOST", 3)
    known.clear()
    for text in ("東京の天気" * 20, "aB" * 100, *(f"word{i}s more" for i in range(20))):
        once = stems(text)
        assert stems(text) == once
        assert len(known) <= 3
        assert max(map(len, known), default=0) <= module._LONGEST
