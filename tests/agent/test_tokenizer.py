"""Tokens are counted by what is installed where it knows the model, and estimated elsewhere; nothing is
downloaded for it."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tiktoken", reason="it is not installed")

import tiktoken
from children import ENVIRONMENT

from toolcrib import Agent, ContextOptions
from toolcrib.agent.tokenizer import installed_tokenizer
from toolcrib.errors import PromptTooLargeError
from toolcrib.testing import ScriptedClient


def vocabularies() -> Path:
    """Return a folder with vocabularies of tiktoken, by the names that its cache has for them."""
    spec = find_spec("litellm")
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    for place in places:
        folder = Path(place, "litellm_core_utils", "tokenizers")
        if (folder / "fb374d419588a4632f3f557e76b4b70aebbca790").exists():
            return folder
    pytest.skip("there is no vocabulary here: LiteLLM brings them along")


@pytest.fixture(autouse=True)
def _nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(address: str) -> bytes:
        assert "://" not in address, f"{address} was fetched"
        return Path(address).read_bytes()

    monkeypatch.setattr("tiktoken.load.read_file", fetch)
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})


_LOADED: dict[str, object] = {}  # takes a second


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been loaded once is loaded, as in a process that goes on."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(vocabularies()))
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", _LOADED)


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache that has vocabularies, and may be changed."""
    folder = tmp_path / "cache"
    shutil.copytree(vocabularies(), folder)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
    return folder


@pytest.mark.parametrize(
    ("models", "encoding"),
    [
        (["gpt-4"], "cl100k_base"),
        (["gpt-oss-120b", "openai/gpt-oss-20b"], "o200k_harmony"),  # made of another one's file
        (["gpt-4o", "o3", "openai/gpt-4.1", "gpt-5.4-mini"], "o200k_base"),  # of a fallback
    ],
)
@pytest.mark.usefixtures("cached")
def test_a_known_model_is_counted_as_it_counts(models: list[str], encoding: str) -> None:
    found = installed_tokenizer(models)
    assert (found.how, found.why) == ("counted by tiktoken", f"tiktoken has {encoding}")
    assert found.count is not None
    for text in ("", "My tea was cold.", "<|endoftext|>", "Ж 漢字 \ud800", "a b\n" * 500):
        assert found.count(text) == len(tiktoken.get_encoding(encoding).encode_ordinary(text))


@pytest.mark.usefixtures("loaded")
def test_no_text_is_too_much_for_it() -> None:
    count = installed_tokenizer(["gpt-4o"]).count
    assert count is not None
    for text in (" " * 1_000_000, "a" * 200_000, "\n" * 200_000):  # the first panics as a whole
        assert 0 < count(text) < len(text)
    assert count("word " * 40_000) == pytest.approx(40_000, rel=0.001)


@pytest.mark.usefixtures("loaded")
def test_pieces_are_about_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolcrib.agent.tokenizer._PIECE", 10)
    count = installed_tokenizer(["gpt-4o"]).count
    assert count is not None
    text = "Refund order 77: 1 cup, 漢字, and \n\n\n{}" * 20
    whole = len(tiktoken.get_encoding("o200k_base").encode_ordinary(text))
    assert whole <= count(text) <= whole + len(text) // 10


@pytest.mark.parametrize(
    ("models", "why"),
    [
        (["claude-sonnet-4-5"], "does not know the model"),
        (["gpt-4o", "gpt-4"], "count in different ways"),
        (["gpt-4o", "mine"], "does not know the model"),
        ([""], "does not know the model"),
    ],
)
@pytest.mark.usefixtures("cached")
def test_what_it_does_not_know_is_estimated_and_why_is_said(models: list[str], why: str) -> None:
    found = installed_tokenizer(models)
    assert (found.count, found.how) == (None, "estimated")
    assert why in found.why


@pytest.mark.parametrize("lack", ["no file", "another", "no cache", "empty"])
def test_nothing_is_fetched_that_the_cache_does_not_have(
    lack: str, cached: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = cached / "fb374d419588a4632f3f557e76b4b70aebbca790"
    if lack == "another":
        file.write_bytes(file.read_bytes()[:-1])
    elif lack == "no file":
        file.unlink()
    elif lack == "no cache":
        monkeypatch.delenv("TIKTOKEN_CACHE_DIR")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    else:
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", "")
    found = installed_tokenizer(["gpt-4o"])
    assert (found.count, found.why) == (
        None,
        "tiktoken's cache does not have o200k_base, and nothing is downloaded",
    )
    assert file.exists() == (lack != "no file")  # tiktoken removes one that does not fit


def test_what_another_one_is_made_of_has_to_be_in_the_cache(cached: Path) -> None:
    (cached / "fb374d419588a4632f3f557e76b4b70aebbca790").unlink()
    found = installed_tokenizer(["gpt-oss-120b"])
    assert found.why == "tiktoken's cache does not have o200k_harmony, and nothing is downloaded"


def _fetches() -> dict[str, Any]:
    raise AssertionError("it was asked for")


def o200k_base() -> dict[str, Any]:
    return around()


def around() -> dict[str, Any]:
    return o200k_base()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: _fetches() | o200k_base(), id="more than another one's"),
        pytest.param(lambda: around(), id="itself"),  # noqa: PLW0108  its code is read
        pytest.param(lambda: {}, id="nothing"),  # noqa: PIE807  it has code
        pytest.param(_fetches, id="who knows"),
    ],
)
@pytest.mark.usefixtures("cached")
def test_one_of_which_nobody_knows_what_it_is_made_of_is_not_asked_for(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiktoken.list_encoding_names()
    makers = {**tiktoken.registry.ENCODING_CONSTRUCTORS, "around": around, "made": make}  # type: ignore[dict-item]
    if make.__code__.co_names == ("around",):
        makers |= {"o200k_base": o200k_base}
    monkeypatch.setattr("tiktoken.registry.ENCODING_CONSTRUCTORS", makers)
    monkeypatch.setitem(tiktoken.model.MODEL_TO_ENCODING, "mine", "made")
    found = installed_tokenizer(["mine"])
    assert found.how == "estimated"
    assert found.why.startswith("it is not known from which files tiktoken makes made, and nothing")


def test_one_that_the_application_has_loaded_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loaded:
        def encode_ordinary(self, text: str) -> list[str]:
            return text.split()

    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {"o200k_base": Loaded()})
    count = installed_tokenizer(["gpt-4o"]).count
    assert count is not None
    assert count("one two three") == 3


async def _said_of(**options: Any) -> str:
    asked = ContextOptions(tokens=500, **options.pop("context", {}))
    agent = Agent(ScriptedClient([], model="gpt-4o"), context=asked, **options)
    with pytest.raises(PromptTooLargeError) as raised:
        await agent.run("word " * 1_000)
    return str(raised.value)


@pytest.mark.usefixtures("loaded")
async def test_what_is_said_tells_which_of_them_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Steps:
        async def run(self, _name: str, work: Any, type: Any) -> Any:
            del type
            return await work()

    caplog.set_level(logging.DEBUG, "toolcrib.agent")
    assert "messages[0], of the user, takes 1009" in await _said_of()
    assert "tokens (counted by tiktoken)" in await _said_of()
    assert "tokens of gpt-4o are counted by tiktoken: tiktoken has o200k_base" in caplog.text
    assert "tokens (estimated)" in await _said_of(durability=Steps())
    assert "tokens (counted)" in await _said_of(context={"count": lambda text: len(text) // 5})
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    assert "tokens (estimated)" in await _said_of()
    assert "tokens of gpt-4o are estimated: tiktoken is not installed" in caplog.text


def test_it_is_imported_only_for_a_context_that_has_no_tokenizer_of_its_own() -> None:
    code = (
        "import sys; from toolcrib import Agent, ContextOptions; from toolcrib.testing import *;"
        " Agent(ScriptedClient([]));"
        " Agent(ScriptedClient([]), context=ContextOptions(tokens=100_000, count=len));"
        " print('tiktoken' in sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert said.stdout == "False\n"
