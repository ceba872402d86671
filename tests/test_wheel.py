"""The wheel as a user installs it: the core alone, and each extra, into environments of their own.

Nothing of the developer's environment helps: what an extra needs has to be among what it names.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from children import pythons
from rows import each_row
from test_docs import blocks

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

CORE = """
import asyncio, importlib.util, sys
from toolcrib import ALL, Completed, ToolCall, ToolRunner, tool

@tool(visible=ALL)
def double(n: int) -> int:
    "Double a number."
    return 2 * n

async def run(*tools, call=ToolCall(id="c", name="double", arguments='{"n": 2}'), **options):
    done = await ToolRunner([double, *tools], **options).exec(call)
    assert isinstance(done, Completed), done
    return done

assert asyncio.run(run()).value == 4
assert importlib.util.find_spec("pytest") is None
assert "site-packages" in sys.modules["toolcrib"].__file__
"""
SERVED = """
from toolcrib.clients import OpenAIClient
from toolcrib.testing import openai_server
from toolcrib import Agent

async def ask():
    async with openai_server(["Hello."]) as server, OpenAIClient("m", base_url=server.url) as model:
        return (await Agent(model, [double]).run("Hi")).text

assert asyncio.run(ask()) == "Hello."
"""
PICKED = """
from toolcrib.pick import PickOptions, pick_tools
options = PickOptions(scorer="NAME", min_score=0.0, allow_unsafe=True)
(found,) = asyncio.run(pick_tools("double a number", [double], options))
assert found.score > 0
"""
LOGGED = """
from toolcrib.audit import AuditLog

async def log():
    async with AuditLog("sqlite://") as log:
        await run(sinks=[log])
        assert (await log.verify()).ok

asyncio.run(log())
"""
SIGNED = """
from toolcrib.audit import SigningKey
SigningKey.generate("example.com/shop", "shop.key")
"""
CHAT = """
from toolcrib import Agent
from toolcrib.chat import chat_app
from toolcrib.testing import ScriptedClient
assert chat_app(Agent(ScriptedClient(["hi"]), []), store="sqlite://").routes
"""
FRONTS = """
from toolcrib import Agent
from toolcrib.chat.ag_ui import ag_ui_route
from toolcrib.testing import ScriptedClient
assert ag_ui_route(Agent(ScriptedClient(["hi"]), [])).path == "/"
"""
LIMITED = """
from toolcrib.policies import rate_limit
asyncio.run(run(policy=[rate_limit("5/minute")]))
"""
KIT = """
from toolcrib import kit
call = ToolCall(id="c", name="calculate", arguments='{"expression": "23*17+5"}')
assert "396" in repr(asyncio.run(run(kit.catalog()["calculate"], call=call)).value)
"""
OTEL = """
from toolcrib.audit.otel import OpenTelemetry
asyncio.run(run(sinks=[OpenTelemetry()]))
"""
PRICED = """
from toolcrib.clients.providers import _library
_library()
"""
MCP = """
from toolcrib import Approve
from toolcrib.bridges.mcp import StdioServer, mcp_catalog

SERVER = "from mcp.server import MCPServer as S; s = S('s'); s.tool(name='answer')(lambda: 42); s.run()"

async def yes(request):
    return Approve("ada")

async def calls():
    async with mcp_catalog(StdioServer(sys.executable, ("-c", SERVER))) as catalog:
        answer = ToolCall(id="c", name="answer", arguments="{}")
        return (await run(catalog["answer"], call=answer, approver=yes)).value

assert asyncio.run(calls()) in (42, "42", {"result": 42})
"""
OPENAPI = """
from toolcrib.bridges.openapi import ApiServer, openapi_catalog
with open("api.yaml", "w") as document:
    document.write("openapi: 3.0.3\\npaths: {/x: {get: {operationId: find}}}")
assert openapi_catalog("api.yaml", http=ApiServer("https://api.example.com")).names == ("find",)
"""
LITELLM = """
from toolcrib import Agent
from toolcrib.bridges.litellm import litellm_client
model = litellm_client("openai/m", given={"mock_response": "Hello.", "api_key": "k"})
assert asyncio.run(Agent(model, [double]).run("Hi")).text == "Hello."
"""


DURABLE = """
from toolcrib import Agent
from toolcrib.durable import DurableAgents
from toolcrib.testing import ScriptedClient

async def durable():
    agents = {"a": Agent(ScriptedClient(["Hello."]), [double], state_key=b"k" * 32)}
    async with DurableAgents("sqlite:///runs.db", agents) as runs:
        return (await runs.result(await runs.start("a", "Hi"))).text

assert asyncio.run(durable()) == "Hello."
"""
BRIDGED = """
from toolcrib import ALL, ToolRunner, tool
from toolcrib.bridges.langchain import to_langchain_tools

@tool(visible=ALL)
def double(number: int) -> int:
    "Double it."
    return 2 * number

(made,) = to_langchain_tools(ToolRunner([double]))
assert made.invoke({"number": 21}) in (42, "42")
"""
EXTRAS = {
    "": "",
    "ag-ui": FRONTS,
    "audit": LOGGED,
    "bedrock": "import toolcrib.clients.transport as s; s._botocore()",
    "chat": CHAT,
    "checkpoints": LOGGED + SIGNED,
    "cli": "from toolcrib.cli import run as command\nassert command(['--version']) == 0",
    "durable": DURABLE,
    "http": SERVED,
    "kit": KIT,
    "langchain": BRIDGED,
    "limits": LIMITED,
    "litellm": LITELLM,
    "mcp": MCP,
    "local": "import xllamacpp" + PICKED.replace("NAME", "embedding"),
    "openapi": OPENAPI,
    "otel": OTEL,
    "pick": PICKED.replace("NAME", "embedding"),
    "postgres": LOGGED + "import psycopg",
    "prices": PRICED,
    "rerank": PICKED.replace("NAME", "rerank"),
}


(EXAMPLE,), (SHOWN,) = (blocks(ROOT / "README.md", kind) for kind in ("python", "text"))


def uv(*arguments: str, cwd: Path) -> None:
    command = [sys.executable, "-m", "uv", "--quiet", *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in `TOOLCRIB_DIST`, which is to be released, or one that is built for the tests."""
    folder = Path(os.environ.get("TOOLCRIB_DIST") or tmp_path_factory.mktemp("wheel"))
    if not list(folder.glob("*.whl")):
        uv("build", "--wheel", "--out-dir", str(folder), str(ROOT), cwd=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.exhaustive
def test_it_holds_the_library_and_its_licence_alone(wheel: Path) -> None:
    assert wheel.name == f"toolcrib-{PROJECT['version']}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    inside = {name.partition("/")[0] for name in names}
    info = f"toolcrib-{PROJECT['version']}.dist-info"
    assert inside == {"toolcrib", "pytest_toolcrib.py", info}
    assert f"{info}/licenses/LICENSE" in names
    assert "toolcrib/py.typed" in names
    assert not [name for name in names if name.endswith((".pyc", ".db", ".jsonl.gz"))]


@pytest.mark.exhaustive  # it is built once more
def test_the_source_has_no_tests_and_no_recordings(tmp_path: Path) -> None:
    uv("build", "--sdist", "--out-dir", str(tmp_path), str(ROOT), cwd=tmp_path)
    (found,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(found) as archive:
        inside = {name.split("/")[1] for name in archive.getnames()}
    files = {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert inside == {"docs", "examples", "src", *files}


def test_the_newest_version_of_the_changelog_is_this_one() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert headings[:2] == ["Unreleased", PROJECT["version"]]


def test_each_extra_has_a_row() -> None:
    assert EXTRAS.keys() - {""} == PROJECT["optional-dependencies"].keys() - {"all"}


@pytest.mark.exhaustive
@each_row("extra", EXTRAS, ids=lambda extra: extra or "the core alone")
@each_row("python", pythons())
def test_it_is_installed_clean(python: str, extra: str, wheel: Path, tmp_path: Path) -> None:
    printed_clean(f"{CORE}\n{EXTRAS[extra]}", extra, wheel, tmp_path, python=python)


@pytest.mark.exhaustive
def test_the_example_of_the_readme_runs_where_all_is_installed(
    wheel: Path, tmp_path: Path, embedded_model: Path
) -> None:
    assert embedded_model.is_file()
    assert printed_clean(EXAMPLE, "all", wheel, tmp_path) == SHOWN


def printed_clean(
    program: str, extra: str, wheel: Path, folder: Path, python: str = sys.executable
) -> str:
    """Install the wheel into an environment of its own, and return what the program prints there."""
    uv("venv", "--python", python, str(folder / "venv"), cwd=folder)
    inside = str(folder / "venv" / "bin" / "python")
    what = f"toolcrib[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    uv("pip", "install", "--python", inside, what, cwd=folder)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TOOLCRIB"))}
    command = [inside, "-I", "-c", program]
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@each_row("kind", ["", "-dev", "-docs", "-uv"])
def test_what_is_locked_is_locked_by_hashes(kind: str) -> None:
    text = (ROOT / f"requirements{kind}.lock").read_text(encoding="utf-8")
    locked = re.findall(
        r"^([\w.,\[\]-]+)==.*\n((?:    --hash=sha256:[0-9a-f]{64}.*\n)*)", text, re.MULTILINE
    )
    assert len(locked) == len(re.findall(r"^[^\s#]", text, re.MULTILINE)) > 0
    assert [package for package, hashes in locked if not hashes] == []
