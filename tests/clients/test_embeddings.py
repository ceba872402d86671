"""Embeddings over real HTTP: a server of our own that is as awkward as may be, and llama.cpp's."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest
from rows import each_row

from toolcrib.clients import Retries
from toolcrib.clients.providers import EmbeddingsClient
from toolcrib.clients.transport import AiohttpTransport, Outgoing, Response
from toolcrib.errors import (
    AuthenticationError,
    ClientError,
    ConnectionFailed,
    OverloadedError,
    PickError,
    ProviderError,
    RateLimitError,
    RequestError,
    WireError,
)
from toolcrib.pick.embedding import CachedEmbedder, FunctionEmbedder
from toolcrib.testing import die_after, http_error, raw
from toolcrib.testing.scripted import OpenAIServer, RawTurn, serving

KEY = "sk-canary-0123456789abcdef"


class EmbeddingServer(OpenAIServer):
    """Answers with the turns that a test wrote down."""

    path: ClassVar[str] = "/embeddings"

    def fault(self, body: Any) -> str | None:
        texts = body["input"]
        fine = isinstance(texts, list) and all(isinstance(text, str) and text for text in texts)
        return (
            None
            if body["model"] and fine and set(body) <= {"model", "input", "dimensions"}
            else "?"
        )


def answer(*rows: list[float], indexes: list[int] | None = None) -> RawTurn:
    found = enumerate(rows) if indexes is None else zip(indexes, rows, strict=True)
    data = [{"object": "embedding", "index": at, "embedding": row} for at, row in found]
    body = {"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 1}}
    return raw(json.dumps(body), content_type="application/json")


def lengths(body: Any) -> RawTurn:
    """The length of each text, as the second of two numbers; the last text's row comes first."""
    rows = [[1.0, float(len(text))] for text in body["input"]]
    return answer(*reversed(rows), indexes=list(range(len(rows)))[::-1])


def client_of(server: EmbeddingServer, **options: Any) -> EmbeddingsClient:
    return EmbeddingsClient("m", base_url=server.url, **options)


async def test_one_vector_a_text_in_the_order_of_the_texts() -> None:
    async with (
        serving(EmbeddingServer([lengths])) as server,
        client_of(server, api_key=KEY, dimensions=2, headers={"X-Own": "1"}) as client,
    ):
        assert await client.embed(["a", "bb", "ccc"]) == [[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]]
        assert await client.embed([]) == []
    assert server.requests == [{"model": "m", "input": ["a", "bb", "ccc"], "dimensions": 2}]
    [headers] = server.headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert (headers["x-own"], headers["content-type"]) == ("1", "application/json")
    assert KEY not in repr(client)


async def test_integers_are_numbers() -> None:
    async with serving(EmbeddingServer([answer([1, 0])])) as server, client_of(server) as client:
        assert await client.embed(["a"]) == [[1.0, 0.0]]


@each_row(
    ("turn", "says"),
    [
        (answer(), "holds 0 vectors, not one for each of 2 texts"),
        (answer([1.0]), "holds 1 vectors"),
        (answer([1.0], [1.0], [1.0]), "holds 3 vectors"),
        (answer([1.0], [2.0], indexes=[0, 0]), "holds 2 vectors"),
        (answer([1.0], [2.0], indexes=[1, 2]), "holds 2 vectors"),
        (answer([1.0], [1.0, 2.0]), "different lengths"),
        (answer([], []), "empty ones"),
        (raw(""), "not have OpenAI's format"),
        (raw("[]"), "not have OpenAI's format"),
        (raw('{"data": [{"index": 0, "embedding": "secret"}]}'), "not have OpenAI's format"),
        (raw('{"data": [{"embedding": [1.0]}]}'), "not have OpenAI's format"),
        (
            raw('{"data": [], "x": ' + "[" * 200_000 + "]" * 200_000 + "}"),
            "not have OpenAI's format",
        ),
        (raw('{"data": [{"index": 0, "embedding": [1e400]}]}'), "not have OpenAI's format"),
        (raw('{"error": {"message": "a secret"}}'), "not have OpenAI's format"),
        (raw('{"data": [{"index": 0, "embedding": [1.0, NaN]}]}'), "not have OpenAI's format"),
        (raw('{"data": [{"index": 0, "embedding": [1.0, null]}]}'), "not have OpenAI's format"),
        (raw(b'{"data": [{"index": 0, "embedding": [1.0, \xff]}]}'), "not have OpenAI's format"),
        (raw("<html>Welcome</html>", content_type="text/html"), "not have OpenAI's format"),
    ],
)
async def test_answers_that_are_none(turn: RawTurn, says: str) -> None:
    async with serving(EmbeddingServer([turn])) as server, client_of(server) as client:
        with pytest.raises(WireError, match=f"answer of embedding model 'm' .*{says}") as raised:
            await client.embed(["a", "b"])
    assert "secret" not in str(raised.value)
    assert raised.value.__context__ is None
    assert len(server.requests) == 1


@each_row(
    ("status", "kind"),
    [
        (400, RequestError),
        (401, AuthenticationError),
        (404, RequestError),
        (429, RateLimitError),
        (500, ProviderError),
        (503, OverloadedError),
    ],
)
async def test_refusals_have_types_and_no_keys(status: int, kind: type[ClientError]) -> None:
    turn = http_error(status, f"no, not with the key {KEY}")
    async with (
        serving(EmbeddingServer([turn])) as server,
        client_of(server, api_key=KEY, retries=None) as client,
    ):
        with pytest.raises(kind, match="no, not with the key") as raised:
            await client.embed(["a"])
    assert (raised.value.status, type(raised.value)) == (status, kind)
    assert KEY not in str(raised.value)


async def test_what_utf_8_cannot_say_is_sent_as_a_question_mark() -> None:
    async with serving(EmbeddingServer([lengths])) as server, client_of(server) as client:
        assert await client.embed(["a\ud800", "\x00\N{BUG}"]) == [[1.0, 2.0], [1.0, 2.0]]
    assert server.requests[0]["input"] == ["a?", "\x00\N{BUG}"]


@pytest.mark.parametrize("key", ["sk-two\nlines", "sk-schlüssel"])
def test_a_key_that_no_header_can_hold(key: str) -> None:
    with pytest.raises(RequestError, match="'Authorization'") as raised:
        EmbeddingsClient("m", base_url="http://localhost:1/v1", api_key=key)
    assert key[:6] not in str(raised.value)


async def test_an_answer_is_closed_where_it_is_given_up() -> None:
    closed: list[bool] = []
    begun = asyncio.Event()

    class Stalling:
        status = 200
        headers: ClassVar[dict[str, str]] = {}

        async def chunks(self) -> AsyncIterator[bytes]:
            yield b"{"
            begun.set()
            await asyncio.Event().wait()

        async def aclose(self, *, whole: bool) -> None:
            closed.append(whole)

    class Way:
        async def send(self, request: Outgoing) -> Response:
            return Stalling()

        async def aclose(self) -> None: ...

    client = EmbeddingsClient("m", base_url="http://localhost:1/v1", transport=Way())
    task = asyncio.ensure_future(client.embed(["a"]))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == [False]


async def test_what_may_pass_is_tried_again() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    turns: list[Any] = [http_error(429, retry_after=3), die_after(20, answer([1.0])), answer([1.0])]
    async with (
        serving(EmbeddingServer(turns)) as server,
        client_of(server, retries=Retries(sleep=sleep)) as client,
    ):
        assert await client.embed(["a"]) == [[1.0]]
    assert len(server.requests) == 3
    assert 3 <= waits[0] <= 4


@pytest.mark.parametrize("after", [0, 1, 40])
async def test_a_server_that_dies(after: int) -> None:
    async with (
        serving(EmbeddingServer([die_after(after, answer([1.0, 2.0]))])) as server,
        client_of(server, retries=None) as client,
    ):
        with pytest.raises(ConnectionFailed):
            await client.embed(["a"])


async def test_nobody_there() -> None:
    async with EmbeddingsClient("m", base_url="http://127.0.0.1:9/v1", retries=None) as client:
        with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1:9"):
            await client.embed(["a"])


async def test_keys_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[Outgoing]()

    async def keeps(_transport: AiohttpTransport, request: Outgoing) -> Response:
        sent.append(request)
        raise ConnectionFailed("not asked")

    monkeypatch.setattr(AiohttpTransport, "send", keeps)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(AuthenticationError, match="OPENAI_API_KEY"):
        EmbeddingsClient("m")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    for client in (
        EmbeddingsClient("m", retries=None),
        EmbeddingsClient("m", base_url="http://localhost:1/v1", retries=None),
    ):
        with pytest.raises(ConnectionFailed, match="not asked"):
            await client.embed(["a"])
    assert [KEY in str(dict(request.headers)) for request in sent] == [True, False]
    assert repr(EmbeddingsClient("m")) == "EmbeddingsClient('m' at https://api.openai.com)"
    with pytest.raises(RequestError, match="base URL"):
        EmbeddingsClient("m", base_url="localhost")


# --- as the function of an embedder


async def test_as_an_embedder(tmp_path: Path) -> None:
    pytest.importorskip("numpy", reason="the extra 'pick' is not installed")
    async with (
        serving(EmbeddingServer([lengths] * 4)) as server,
        client_of(server) as client,
    ):
        embedder = FunctionEmbedder(client, name="lengths", batch=2)
        kept = CachedEmbedder(embedder, tmp_path / "vectors")
        rows = await asyncio.to_thread(kept.embed, ["a", "bb", "", "ccc", "a"])
        assert rows[:, 1].tolist() == pytest.approx([2**-0.5, 0.8**0.5, 0, 0.9**0.5, 2**-0.5])
        assert (await asyncio.to_thread(kept.embed, ["", "bb"]) == rows[[2, 1]]).all()
        assert [len(body["input"]) for body in server.requests] == [2, 1]
        assert await client.embed(["dddd"]) == [[1.0, 4.0]]  # on another loop, meanwhile


async def test_an_embedders_errors() -> None:
    pytest.importorskip("numpy", reason="the extra 'pick' is not installed")
    turns = [http_error(401), answer([1.0]), answer([1.0, 2.0])]
    async with serving(EmbeddingServer(turns)) as server, client_of(server) as client:
        embedder = FunctionEmbedder(client, name="mine")
        with pytest.raises(AuthenticationError):
            await asyncio.to_thread(embedder.embed, ["a"])
        await asyncio.to_thread(embedder.embed, ["a"])
        with pytest.raises(PickError, match="'mine' gave 2 numbers per text, but 1 before"):
            await asyncio.to_thread(embedder.embed, ["a"])


async def test_what_is_collected_at_once_has_closed_its_connections() -> None:
    pytest.importorskip("numpy", reason="the extra 'pick' is not installed")
    async with serving(EmbeddingServer([answer([1.0])])) as server:
        circle: list[object] = [FunctionEmbedder(client_of(server), name="mine")]
        circle.append(circle)
        await asyncio.to_thread(circle[0].embed, ["a"])  # type: ignore[attr-defined]
        del circle
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            await asyncio.to_thread(gc.collect)
    assert [str(warning.message) for warning in told] == []


# --- a server that is not ours


@pytest.fixture(scope="module")
def llama(embedded_model: Path) -> Iterator[str]:
    """Where llama.cpp listens; a model that talks, whose token vectors are averaged."""
    if find_spec("xllamacpp") is None:
        pytest.skip("the extra `local`")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(embedded_model)
    params.embedding, params.pooling_type = (
        True,
        xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN,
    )
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [KEY]
    params.n_ctx, params.n_parallel, params.n_threads_http = 512, 1, 2
    params.cpuparams.n_threads = 1
    params.verbosity, params.ui, params.fit_params, params.cache_ram_mib = -1, False, False, 0
    running = xllamacpp.Server(params)
    yield f"{running.listening_address}/v1"
    del running


async def test_over_llama_cpp(llama: str) -> None:
    async with EmbeddingsClient("m", base_url=llama, api_key=KEY) as client:
        rows = await client.embed(["the weather in Rome", "x", "the weather in Rome"])
        assert {len(row) for row in rows} == {576}
        assert rows[0] == pytest.approx(rows[2], abs=1e-3)
        assert rows[0] != pytest.approx(rows[1], abs=1e-2)
    async with EmbeddingsClient("m", base_url=llama, api_key="sk-not-this-one") as client:
        with pytest.raises(AuthenticationError):
            await client.embed(["a"])
