"""Whose certificates are believed: those of the system, or of `SSL_CERT_FILE`."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web
from children import ENVIRONMENT

CHILD = """
import asyncio, sys
from toolcrib.clients import OpenAIClient
from toolcrib.errors import ConnectionFailed
from toolcrib.values.message import ChatRequest, Message

async def main():
    async with OpenAIClient("m", base_url=sys.argv[1], retries=None) as client:
        try:
            print((await client.chat(ChatRequest((Message.user("Hi"),)))).text)
        except ConnectionFailed as error:
            print(error.retryable, error)

asyncio.run(main())
"""
BODY = {"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]}


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that nobody has signed, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    made, key = tmp_path / "made.pem", tmp_path / "key.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=x"
    name = ("-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(key), "-out", str(made))
    subprocess.run([openssl, *words.split(), *name, *files], check=True, capture_output=True)
    return made, key


@pytest.mark.exhaustive
async def test_the_certificates_of_the_environment(certificate: tuple[Path, Path]) -> None:
    made, key = certificate

    async def answer(_request: web.Request) -> web.Response:
        return web.json_response(BODY)

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made, key)
    app = web.Application()
    app.router.add_post("/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        url = f"https://127.0.0.1:{runner.addresses[0][1]}"
        assert await said(url, {}) == f"False {url}: its certificate is not valid"
        assert await said(url, {"SSL_CERT_FILE": str(made)}) == "Hello."
    finally:
        await runner.cleanup()


async def said(url: str, environment: dict[str, str]) -> str:
    """What a client says in a process of its own, where the environment is read anew."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", CHILD, url),
        stdout=asyncio.subprocess.PIPE,
        env=ENVIRONMENT | {"SSL_CERT_FILE": ""} | environment,
    )
    out, _ = await child.communicate()
    return out.decode().strip()
