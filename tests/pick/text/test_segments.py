from __future__ import annotations

import re

import pytest

from toolcrib.pick.text.segments import segments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n . !", []),
        ("Weather", ["Weather"]),
        ("What is the weather in Rome?", ["What is the weather in Rome?"]),
        (
            "Find a flight to Rome. Book me a hotel.",
            ["Find a flight to Rome.", "Book me a hotel."],
        ),
        (
            "find me a flight and then book a hotel there",
            ["find me a flight", "and then book a hotel there"],
        ),
        (
            "Find me a flight, then book a hotel; also rent a car",
            ["Find me a flight", "then book a hotel", "also rent a car"],
        ),
        ("Authenticate the strengthening of it", ["Authenticate the strengthening of it"]),
        ("Hello! Tell me the time please.", ["Hello! Tell me the time please."]),
        ("Tell me the time. Thanks!", ["Tell me the time. Thanks!"]),
        ("Take 3.5 percent of file.txt", ["Take 3.5 percent of file.txt"]),
        ("Ask Dr. Smith about it", ["Ask Dr. Smith about it"]),
        ("1. open the file\n2. count its lines", ["1. open the file", "2. count its lines"]),
        ("查询北京天气。然后订一张票！谢谢", ["查询北京天气。", "然后订一张票！ 谢谢"]),
        ("كم الساعة في روما؟ احجز لي فندقا هناك", ["كم الساعة في روما؟", "احجز لي فندقا هناك"]),
        ("मौसम कैसा है आज। होटल बुक करो अभी", ["मौसम कैसा है आज।", "होटल बुक करो अभी"]),
    ],
)
def test_parts(text: str, expected: list[str]) -> None:
    assert segments(text) == expected


@pytest.mark.parametrize(("count", "found"), [(7, 7), (8, 8), (9, 8), (16, 8), (100, 8)])
def test_at_most_eight(count: int, found: int) -> None:
    parts = segments(" ".join(f"Do the thing {number}." for number in range(count)))
    assert len(parts) == found
    assert max(part.count(".") for part in parts) <= -(-count // 8)


@pytest.mark.parametrize(
    "text",
    [
        "Book it, then tell me. Also: what now?\n- one more thing for you\n- yes",
        "then then then also also",
        "。" * 50 + "words words words",
        "a.b! c? " * 400,
        "\ud800 lone and \x00 control then\u2028more of it",
    ],
)
def test_no_word_is_lost_or_said_twice(text: str) -> None:
    kept = text.replace("\ud800", "?").replace(",", "").replace("。", "").split()
    again = " ".join(segments(text)).replace(",", "").replace("。", "").split()
    assert again == kept


@pytest.mark.parametrize("text", ["。" * 16_000, ";\n " * 5_000, "a. " * 5_000 + "," * 999])
def test_each_character_is_read_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or else a request of 16,000 full stops takes 14 s."""
    read: list[int] = []

    def counting(pattern: str, piece: str) -> list[str]:
        read.append(len(piece))
        return found(pattern, piece)

    found = re.findall
    monkeypatch.setattr(re, "findall", counting)
    assert len(segments(text)) <= 8
    assert 0 < sum(read) <= len(text)


def test_a_megabyte_is_cut() -> None:
    text = "then " * 200_000
    assert sum(len(part) for part in segments(text)) < 20_000
