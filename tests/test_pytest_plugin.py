"""The pytest plugin, in runs of pytest of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import children
import pytest

from toolcrib.testing import call, openai_server

SRC = Path(__file__).parents[1] / "src"
PROGRAM = '''
import os
import sys

import pytest

from toolcrib import ALL, Agent, tool
from toolcrib.clients import OpenAIClient


@tool(visible=ALL)
def double(n: int) -> int:
    """Double a number."""
    return 2 * n


async def test_agent(cassette):
    model = OpenAIClient("m", base_url=os.environ["SERVER"], transport=cassette)
    result = await Agent(model, [double]).run("Double 2")
    assert result.text == os.environ["ANSWER"]
'''
AGENT_FILE = "cassettes/test_it/test_agent.json"


ARGUMENTS = (
    *("-m", "pytest", "-q", "-W", "error", "--asyncio-mode=auto"),
    *("-o", "asyncio_default_fixture_loop_scope=function", "-p", "no:cacheprovider"),
    *("-p", "pytest_asyncio.plugin", "-p", "pytest_toolcrib"),
)


def environment_of(folder: Path, program: str, **more: str) -> dict[str, str]:
    (folder / "test_it.py").write_text(program, encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if name != "CI"}
    plain = {"PYTHONPATH": str(SRC), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "ANSWER": "It is 4."}
    return kept | plain | {"SERVER": "http://127.0.0.1:9/v1"} | more


def run(
    folder: Path, *arguments: str, program: str = PROGRAM, **more: str
) -> subprocess.CompletedProcess[str]:
    env = environment_of(folder, program, **more)
    return children.run(*ARGUMENTS, *arguments, cwd=folder, env=env)


async def record(folder: Path, *arguments: str, answer: str = "It is 4.") -> str:
    async with openai_server([call("double", n=2), answer]) as server:
        done = await asyncio.to_thread(run, folder, *arguments, SERVER=server.url)
    return done.stdout


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.json")}


async def test_it_is_recorded_once_and_replayed_then(tmp_path: Path) -> None:
    assert "1 passed" in await record(tmp_path)
    assert files(tmp_path) == {AGENT_FILE}
    for arguments, environment in (((), {}), (("--toolcrib-record=none",), {}), ((), {"CI": "1"})):
        done = run(tmp_path, *arguments, **environment)
        assert "1 passed" in done.stdout, done.stdout
    assert "1 passed" in await record(tmp_path, "--toolcrib-record=all")


async def test_the_example_of_the_docs_runs_with_no_other_plugin(tmp_path: Path) -> None:
    page = (SRC.parent / "docs" / "testing.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^def test_my_agent.*?(?=^```)", page, re.MULTILINE | re.DOTALL)
    program = PROGRAM.partition("async def")[0] + "from toolcrib import run_sync\n" + example
    plain = ("-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "-p", "pytest_toolcrib")
    async with openai_server([call("double", n=3), "6"]) as server:
        to_it = {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "k"}
        env = environment_of(tmp_path, program, **to_it)
        done = await asyncio.to_thread(children.run, *plain, cwd=tmp_path, env=env)
    assert "1 passed" in done.stdout, done.stdout


async def test_a_test_that_failed_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    assert "1 failed" in await record(tmp_path, answer="It is 5.")
    assert files(tmp_path) == set()
    assert "1 passed" in await record(tmp_path)
    before = (tmp_path / AGENT_FILE).read_text(encoding="utf-8")
    said = await record(tmp_path, "--toolcrib-record=all", answer="It is 5.")
    assert "1 failed" in said
    assert "error" not in said.splitlines()[-1]
    assert (tmp_path / AGENT_FILE).read_text(encoding="utf-8") == before


def test_what_was_not_recorded_is_one_failure(tmp_path: Path) -> None:
    done = run(tmp_path, "--toolcrib-record=none")
    assert "cannot be replayed: the file does not exist. To record it: " in done.stdout
    assert "by default unless CI is set" in done.stdout
    assert "1 failed in" in done.stdout
    assert "unrecognized" not in done.stderr


def test_each_test_has_its_own_file(tmp_path: Path) -> None:
    program = """
import pytest

class TestIt:
    @pytest.mark.parametrize("name", ["a", "a/b", "a:b", "../c", "x" * 300, "ä", "A"])
    def test_path(self, cassette, name):
        print("PATH", cassette.path)

def test_path(cassette):
    print("PATH", cassette.path)
"""
    done = run(tmp_path, "-s", "--toolcrib-record=once", program=program)
    paths = [
        Path(line.partition("PATH ")[2]) for line in done.stdout.splitlines() if "PATH " in line
    ]
    assert len({str(path).lower() for path in paths}) == 8
    assert {path.parent for path in paths} == {tmp_path / "cassettes" / "test_it"}
    assert {"test_path.json", "TestIt.test_path[a].json"} < {path.name for path in paths}
    assert all(len(path.name) < 130 for path in paths)


async def test_options_are_a_fixture(tmp_path: Path) -> None:
    assert "1 passed" in await record(tmp_path)
    other = PROGRAM.replace('"Double 2"', '"double 2"')
    assert "was not recorded" in run(tmp_path, program=other).stdout
    options = """
@pytest.fixture
def cassette_options():
    return {"compare": lambda body: len(body["messages"])}
"""
    assert "1 passed" in run(tmp_path, program=other + options).stdout


def test_who_does_not_use_it_does_not_import_toolcrib(tmp_path: Path) -> None:
    program = """
import sys

def test_it():
    assert "pytest_toolcrib" in sys.modules
    assert not [name for name in sys.modules if name.split(".")[0] in ("toolcrib", "aiohttp")]
"""
    env = environment_of(tmp_path, program)
    command = [sys.executable, *ARGUMENTS]
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert "1 passed" in done.stdout, done.stdout


async def test_no_byte_of_a_key_is_in_the_file(tmp_path: Path) -> None:
    program = PROGRAM.replace("transport=", 'api_key="sk-canary-123456", transport=')
    async with openai_server([call("double", n=2), "It is 4."]) as server:
        done = await asyncio.to_thread(run, tmp_path, program=program, SERVER=server.url)
    assert "1 passed" in done.stdout, done.stdout
    assert server.headers[0]["authorization"] == "Bearer sk-canary-123456"
    text = (tmp_path / AGENT_FILE).read_text(encoding="utf-8")
    assert "canary" not in text
    assert len(json.loads(text)["exchanges"]) == 2


@pytest.mark.parametrize("stop", ["raise KeyboardInterrupt", "pytest.exit('enough')"])
async def test_a_test_that_was_stopped_leaves_the_file_as_it_was(stop: str, tmp_path: Path) -> None:
    assert "1 passed" in await record(tmp_path)
    before = (tmp_path / AGENT_FILE).read_text(encoding="utf-8")
    program = PROGRAM.replace("    assert result", f"    {stop}\n    assert result")
    async with openai_server([call("double", n=2), "It is 5."]) as server:
        done = await asyncio.to_thread(
            run, tmp_path, "--toolcrib-record=all", program=program, SERVER=server.url
        )
    assert done.returncode == 2
    assert len(server.requests) == 2
    assert (tmp_path / AGENT_FILE).read_text(encoding="utf-8") == before
