"""LiteLLM's proxy, started for real, as one of the servers that speak OpenAI's wire."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp.test_utils import unused_port
from clients.exchanges import HI, answered, reply_of
from servers.anthropic import anthropic_server

from toolcrib.clients import OpenAIClient
from toolcrib.errors import ConnectionFailed, ProviderError, RateLimitError, RequestError
from toolcrib.testing import call, cut, die_after, http_error, openai_server

PROGRAM = Path(__file__).parents[2] / ".litellm-proxy" / "bin" / "litellm"
KEY = "sk-canary-0123456789abcdef0123456789abcdef"
TURN: list[Any] = ["Let me see. ", call("f", n=1)]
F: dict[str, Any] = {
    "name": "f",
    "description": "Do it.",
    "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}},
}
ASKED = msgspec.structs.replace(HI, tools=(F,))
DONE = "It is done."
SAID: list[Any] = [TURN, DONE, TURN, DONE, cut(TURN), http_error(429), die_after(400, cut(TURN))]
"""What each provider says: a call and its end, whole and streamed; a cut; an error; a broken stream."""


@asynccontextmanager
async def proxy(models: dict[str, dict[str, str]], folder: Path) -> AsyncIterator[str]:
    """Run the proxy for these models, and give its base URL."""
    if not PROGRAM.exists():
        pytest.skip("LiteLLM's proxy: run `make litellm-proxy`")
    listed = [{"model_name": name, "litellm_params": params} for name, params in models.items()]
    settings = {"num_retries": 0, "request_timeout": 30}
    (folder / "config.yaml").write_text(  # YAML is a superset of JSON
        json.dumps({"model_list": listed, "litellm_settings": settings}), encoding="utf-8"
    )
    port = unused_port()
    own = {"LITELLM_MASTER_KEY": KEY, "LITELLM_OFFLINE_MODE": "true"}
    own |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": ""}
    command = [str(PROGRAM), "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "proxy.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220  it only starts it
            command, cwd=folder, env=os.environ | own, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            await _answering(process, f"http://127.0.0.1:{port}/health/liveliness")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait(20)


async def _answering(process: subprocess.Popen[bytes], url: str) -> None:
    async with asyncio.timeout(120), aiohttp.ClientSession() as session:
        while process.poll() is None:
            try:
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(0.2)
    raise AssertionError("LiteLLM's proxy did not start")


@pytest.mark.exhaustive
async def test_the_proxy_is_a_server_of_openais_wire(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        openai = await stack.enter_async_context(openai_server(SAID))
        anthropic = await stack.enter_async_context(anthropic_server(SAID))
        models = {
            "of-openai": {"model": "openai/m", "api_base": openai.url, "api_key": "sk-a"},
            "of-anthropic": {
                "model": "anthropic/claude-sonnet-4-5",
                "api_base": anthropic.url,
                "api_key": "sk-b",
            },
        }
        url = await stack.enter_async_context(proxy(models, tmp_path))
        for model in models:
            async with OpenAIClient(model, base_url=url, api_key=KEY, retries=None) as client:
                await _speaks(client)
        async with OpenAIClient("of-openai", base_url=url, api_key="sk-wrong") as client:
            with pytest.raises(RequestError):  # 401 where the proxy has a database, else 400
                await client.chat(HI)
    assert (len(openai.requests), len(anthropic.requests)) == (len(SAID), len(SAID))


async def _speaks(client: OpenAIClient) -> None:
    for stream in (False, True):
        reply = await reply_of(client, ASKED, stream=stream)
        (made,) = reply.tool_calls
        assert (reply.text, made.complete, json.loads(made.arguments)) == (
            "Let me see. ",
            True,
            {"n": 1},
        )
        assert (reply.usage.input_tokens, reply.usage.output_tokens) == (11, 7)
        end = await reply_of(client, answered(ASKED, reply), stream=stream)
        assert (end.text, end.finish, end.tool_calls) == (DONE, "stop", ())
    reply = await reply_of(client, ASKED, stream=True)
    assert (reply.finish, [made.complete for made in reply.tool_calls]) == ("length", [False])
    with pytest.raises(RateLimitError) as caught:
        await client.chat(ASKED)
    assert "canary" not in str(caught.value)
    with pytest.raises((ConnectionFailed, ProviderError)):
        await reply_of(client, ASKED, stream=True)
