"""The file of a cassette: readable, exact, whole or not written at all."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import each_row

from toolcrib.errors import SourceError
from toolcrib.testing.cassettes import Exchange, RecordedRequest, RecordedResponse, read, write

SRC = Path(__file__).parents[2] / "src"
ASKED = RecordedRequest(method="POST", url="http://host/x", body={"n": [1, None, "ä"]})
GOOD: dict[str, Any] = {
    "toolcrib_cassette": 1,
    "exchanges": [
        {"request": {"method": "POST", "url": "http://h/x"}, "response": {"status": 200}}
    ],
}


def answer(**members: Any) -> dict[str, Any]:
    (exchange,) = GOOD["exchanges"]
    return GOOD | {"exchanges": [exchange | {"response": {"status": 200} | members}]}


def test_it_is_read_by_people(tmp_path: Path) -> None:
    path = tmp_path / "a" / "tape.json"
    chunks = ['data: {"text": "wär'.encode(), "’s ✓".encode() + b'"}\n\ndata: [DONE]\n\n']
    said = RecordedResponse.of(200, {"content-type": "text/event-stream"}, chunks)
    write(path, [Exchange(request=ASKED, response=said), Exchange(request=ASKED, error="no")])
    assert (
        path.read_text(encoding="utf-8")
        == """\
{
 "toolcrib_cassette": 1,
 "exchanges": [
  {
   "request": {
    "method": "POST",
    "url": "http://host/x",
    "body": {
     "n": [
      1,
      null,
      "ä"
     ]
    }
   },
   "response": {
    "status": 200,
    "headers": {
     "content-type": "text/event-stream"
    },
    "text": [
     "data: {\\"text\\": \\"wär’s ✓\\"}\\n\\n",
     "data: [DONE]\\n\\n"
    ],
    "chunks": [
     20,
     26
    ]
   }
  },
  {
   "request": {
    "method": "POST",
    "url": "http://host/x",
    "body": {
     "n": [
      1,
      null,
      "ä"
     ]
    }
   },
   "error": "no"
  }
 ]
}
"""
    )


@given(st.lists(st.binary(min_size=1) | st.text(min_size=1).map(lambda t: t.encode()), max_size=5))
def test_any_bytes_come_back_in_their_pieces(chunks: list[bytes]) -> None:
    said = RecordedResponse.of(200, {}, chunks)
    assert said.pieces() == chunks
    assert bool(said.base64) is not _is_text(b"".join(chunks))


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("text", ["\ud800", "\x00\x7f\u2028", "🙂"])
def test_any_text_comes_back(text: str, tmp_path: Path) -> None:
    asked = RecordedRequest(method="POST", url="http://host/x", body={text: text})
    exchanges = [Exchange(request=asked, response=RecordedResponse(status=200))]
    write(tmp_path / "tape.json", exchanges)
    assert read(tmp_path / "tape.json") == exchanges


@each_row(
    ("data", "told"),
    [
        (GOOD | {"toolcrib_cassette": 2}, "was recorded by a newer toolcrib: its format is 2, and"),
        (
            GOOD | {"toolcrib_cassette": "1"},
            r"Expected `int`, got `str` - at `\$.toolcrib_cassette",
        ),
        ({"exchanges": []}, "is not a cassette: Object missing required field `toolcrib_cassette`"),
        ([], "is not a cassette: Expected `object`, got `array`"),
        (answer(status="x"), r"got `str` - at `\$.exchanges\[0\].response.status`. Correct it, or"),
        (answer(txt=[]), "unknown field `txt`"),
        (answer(text=["abc"], chunks=[1, 1]), r"\$.exchanges\[0\]: its chunks have 2 bytes but"),
        (answer(text=["abc"], chunks=[4, -1]), "its chunks have 3 bytes"),
        (answer(text=["\ud800"]), "surrogates not allowed"),
        (answer(base64="%"), r"\$.exchanges\[0\]: "),
        (answer(base64="AA==", text=["a"]), "a body must be either text or base64"),
        (
            GOOD | {"exchanges": [{"request": {"method": "POST", "url": "u"}}]},
            "must have exactly one of resp",
        ),
        (
            GOOD
            | {"exchanges": [{"request": {"method": "POST", "url": "u"}, "error": "e", "left": 1}]},
            "must have exactly one of resp",
        ),
        (
            GOOD
            | {"exchanges": [{"request": {"method": "POST", "url": "http://[x"}, "error": "e"}]},
            r"\$.exchanges\[0\]: Invalid IPv6 URL",
        ),
    ],
)
def test_a_file_that_was_tampered_with_says_where(data: Any, told: str, tmp_path: Path) -> None:
    path = tmp_path / "tape.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(SourceError, match=told) as failed:
        read(path)
    assert str(failed.value).startswith(f"{path} ")
    assert str(failed.value).endswith("record it again")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_json(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tape.json"
    path.write_bytes(content)
    with pytest.raises(SourceError, match="is not a cassette: "):
        read(path)


def test_a_body_mended_by_hand_needs_no_chunks() -> None:
    assert RecordedResponse(status=200, text=["a", "b\n"]).pieces() == [b"ab\n"]


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "tape.json"
    path.mkdir()
    with pytest.raises(SourceError, match="cannot be written"):
        write(path, [])
    assert list(tmp_path.iterdir()) == [path]


def test_a_process_that_is_killed_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "tape.json"
    old = [Exchange(request=ASKED, error="old")]
    write(path, old)
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from toolcrib.testing.cassettes import write\n"
        "Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write(Path(sys.argv[1]), [])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], env={"PYTHONPATH": str(SRC)}, check=False
    )
    assert done.returncode == -9
    assert len(list(tmp_path.iterdir())) == 2  # it was written, and not put in place
    assert read(path) == old


def test_two_that_write_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "tape.json"
    kinds = [[Exchange(request=ASKED, error=name * 50_000)] for name in "ab"]

    def often(exchanges: list[Exchange]) -> bool:
        for _ in range(20):
            write(path, exchanges)
            assert read(path) in kinds
        return True

    with ThreadPoolExecutor() as pool:
        assert all(pool.map(often, kinds))
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_an_editor_gave_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "tape.json"
    path.write_text(json.dumps(GOOD), encoding="utf-8-sig", newline="\r\n")
    assert len(read(path)) == 1
