"""Tools in a process of their own: real processes, and none of them left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from runner import process_tools
from runner.process_tools import CANARY, WAYS_TO_DIE
from samples import sampled, whole_only

from toolcrib import (
    ALL,
    Caller,
    Catalog,
    Completed,
    ErrorCode,
    Failed,
    ToolCall,
    ToolRunner,
    discover,
    tool,
)
from toolcrib.runner import CallScope
from toolcrib.testing import MemorySink
from toolcrib.values.context import RunTally
from toolcrib.values.decision import ANONYMOUS
from toolcrib.values.json import JsonValue
from toolcrib.values.record import Outcome

PATIENCE = 30.0


class Watch:
    """Collects parts; `told` is set by the first."""

    def __init__(self) -> None:
        self.parts: list[Any] = []
        self.told = asyncio.Event()
        self.ended: list[str] = []

    def approval_requested(self, _request: object) -> None: ...

    def progress(self, _call_id: str, part: JsonValue) -> None:
        self.parts.append(part)
        self.told.set()

    def finished(self, outcome: Outcome) -> None:
        self.ended.append(outcome.record.status)


async def run(
    subject: Any, watch: Watch | None = None, caller: Caller = ANONYMOUS, **arguments: Any
) -> tuple[Outcome, list[BaseException]]:
    raised: list[BaseException] = []
    sink = MemorySink()
    runner = ToolRunner(
        [subject],
        sinks=[sink],
        timeout=PATIENCE,
        on_exception=lambda _c, error: raised.append(error),
    )
    call = ToolCall("call_0", subject.definition.name, json.dumps(arguments))
    outcome = await runner.exec(
        call, caller=caller, scope=CallScope(RunTally("run_7"), observer=watch)
    )
    assert [r for r in sink.records if r.status != "started"] == [outcome.record]
    return outcome, raised


def alive(pid: int) -> bool:
    """Not a zombie either, which whoever adopted it may not have buried yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_until_gone(*pids: int) -> None:
    patience = time.monotonic() + PATIENCE
    while any(map(alive, pids)):
        assert time.monotonic() < patience, f"still there: {[p for p in pids if alive(p)]}"
        time.sleep(0.01)


_BEFORE: set[int] = set()


@pytest.fixture(autouse=True)
def _children_before() -> None:
    """Other tests of this process may keep a server running."""
    _BEFORE.clear()
    _BEFORE.update(_children())


def _children() -> set[int]:
    """Of this process, those that nobody has waited for included."""
    children: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended by now
            told = (process / "stat").read_text(encoding="utf-8", errors="replace")
            if told.rpartition(")")[2].split()[1] == str(os.getpid()):
                children.add(int(process.name))
    return children


def no_children_left() -> bool:
    return _children() <= _BEFORE


async def test_it_runs_elsewhere_and_what_it_prints_goes_nowhere(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLCRIB_TEST_APART", "inherited")
    watch, fds = Watch(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    outcome, _ = await run(
        process_tools.where, watch, Caller("grace", ("admin",)), key=CANARY, number=2**70
    )
    assert isinstance(outcome, Completed)
    assert outcome.value.pop("pid") != os.getpid()
    assert 0 < outcome.value.pop("left") < PATIENCE
    assert outcome.value.pop("key") == outcome.record.idempotency_key
    assert outcome.value == {
        "leads": True,
        "number": 2**70,
        "caller": "grace",
        "roles": ["admin"],
        "variable": "inherited",
        "input": "",
    }
    assert watch.parts == [{"number": 2**70}, "second"]
    assert CANARY not in "".join(capfd.readouterr())
    assert no_children_left()
    assert len(os.listdir("/proc/self/fd")) <= fds + 1  # noqa: PTH208  the loop's own, made late


async def test_whoever_watches_and_fails_leaves_the_tool_alone_and_no_part_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(Watch):
        def progress(self, _call_id: str, _part: JsonValue) -> None:
            raise LookupError("whoever watches failed")

    broken = Broken()
    with pytest.raises(LookupError, match="whoever watches failed"):
        await run(process_tools.where, broken, key=CANARY, number=1)
    assert broken.ended == ["completed"]
    assert {r.name for r in caplog.records if r.levelname != "DEBUG"} == set()
    assert CANARY not in caplog.text
    assert no_children_left()


TOLD_OF = {
    "raises": "ValueError was raised at .*process_tools.py:[0-9]+ in _raise$",
    "exit 3": "its process ended with status 3 and gave no result",
    "segfault": "its process was ended by SIGSEGV and gave no result",
    "junk": "its process sent data that cannot be read",
}


@pytest.mark.parametrize(
    "how", [*TOLD_OF, *sampled([how for how in WAYS_TO_DIE if how not in TOLD_OF], part=8)]
)
async def test_a_process_that_dies_is_a_tool_that_failed(
    how: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever debugs is told how it ended."""
    outcome, raised = await run(process_tools.dies, how=how)
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, outcome.error.message) == (ErrorCode.TOOL_ERROR, "The tool failed.")
    assert [type(error).__name__ for error in raised] == ["ProcessFailed"]
    assert CANARY not in f"{outcome}{raised}{capfd.readouterr()}"
    assert no_children_left()
    with pytest.raises(Exception, match=TOLD_OF.get(how, "^")):
        raise raised[0]


@pytest.mark.parametrize(
    ("how", "code", "text", "retryable"),
    [
        whole_only("told", ErrorCode.TOOL_ERROR, "no such order", False),
        ("capability", ErrorCode.CAPABILITY_ERROR, "the shop is closed", False),
        ("lost", ErrorCode.OUTCOME_UNKNOWN, "the server is gone", False),
        ("extra", ErrorCode.NOT_RUNNABLE, "units needs an extra", False),
        ("large", ErrorCode.INVALID_OUTPUT, "larger than 4194304 bytes", False),
        whole_only("large part", ErrorCode.INVALID_OUTPUT, "larger than 4194304 bytes", False),
        whole_only("nan", ErrorCode.INVALID_OUTPUT, "it is not JSON", False),
        whole_only("object", ErrorCode.INVALID_OUTPUT, "it is not JSON", False),
        ("iterator", ErrorCode.INVALID_OUTPUT, "it is an iterator", False),
    ],
)
@pytest.mark.exhaustive
async def test_what_is_told_of_an_error(
    how: str, code: ErrorCode, text: str, retryable: bool
) -> None:
    outcome, _ = await run(process_tools.ends, how=how)
    assert isinstance(outcome, Failed)
    assert (outcome.error.code, outcome.error.retryable) == (code, retryable)
    assert text in outcome.error.message
    assert no_children_left()


async def test_a_function_that_is_no_tool_where_it_stands_under_another_name() -> None:
    made = tool(visible=ALL, subprocess=True)(process_tools.halve).renamed("other")
    outcome, _ = await run(made, day="2026-11-22")
    assert isinstance(outcome, Completed)
    assert outcome.value.pop("pid") != os.getpid()
    assert outcome.value == {"weekday": 7, "half": 5}
    assert made(date(2026, 11, 23), 4)["pid"] == os.getpid()  # called directly, it runs here


async def test_cancelled_it_is_killed_with_what_it_started() -> None:
    watch = Watch()
    task = asyncio.ensure_future(run(process_tools.lingers, watch))
    await asyncio.wait_for(watch.told.wait(), PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert no_children_left()
    wait_until_gone(*watch.parts[0])


async def test_cancelled_twice_it_is_waited_for_all_the_same() -> None:
    watch = Watch()
    task = asyncio.ensure_future(run(process_tools.lingers, watch, busy=True))
    await asyncio.wait_for(watch.told.wait(), PATIENCE)
    task.cancel("first")
    await asyncio.sleep(0)
    task.cancel("by its scope")
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    assert raised.value.args == ("by its scope",)
    assert no_children_left()
    wait_until_gone(*watch.parts[0])


@pytest.mark.parametrize("turns", sampled(range(1, 7), part=3))
async def test_cancelled_while_it_starts(turns: int) -> None:
    task = asyncio.ensure_future(run(process_tools.lingers))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert no_children_left()


async def test_what_it_leaves_behind_ends_with_it() -> None:
    watch = Watch()
    outcome, _ = await run(process_tools.lingers, watch, returns=True)
    assert isinstance(outcome, Completed)
    assert no_children_left()
    wait_until_gone(*watch.parts[0])


@pytest.mark.parametrize("seconds", [0.01, 1.0])
async def test_a_time_limit_kills_it(seconds: float) -> None:
    watch = Watch()
    outcome = await ToolRunner([process_tools.lingers], timeout=seconds).exec(
        ToolCall("c", "lingers", '{"busy": true}'), scope=CallScope(RunTally(), observer=watch)
    )
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.TIMEOUT
    assert no_children_left()
    wait_until_gone(*(pid for pids in watch.parts for pid in pids))


async def test_calls_of_one_reply_have_a_process_each() -> None:
    calls = [ToolCall(f"c{n}", "halve", '{"day": "2026-11-22"}') for n in range(3)]
    made = tool(visible=ALL, subprocess=True)(process_tools.halve)
    outcomes = await ToolRunner([made], timeout=PATIENCE).exec_all(calls)
    assert len({o.value["pid"] for o in outcomes if isinstance(o, Completed)}) == 3


def test_in_an_event_loop_of_another_thread() -> None:
    found: list[Outcome] = []
    made = tool(visible=ALL, subprocess=True)(process_tools.halve)
    thread = threading.Thread(
        target=lambda: found.append(asyncio.run(run(made, day="2026-11-22"))[0])
    )
    thread.start()
    thread.join(PATIENCE)
    assert [type(outcome) for outcome in found] == [Completed]


PROGRAM = """
import asyncio, os, sys
from toolcrib import ALL, CallContext, ToolCall, ToolRunner, tool
from toolcrib.runner import CallScope
from toolcrib.values.context import RunTally
from runner.process_tools import lingers

@tool(visible=ALL, subprocess=True)
def mine(number: int) -> dict[str, int]:
    'Mine.'
    return {"number": number, "pid": os.getpid()}

@tool(visible=ALL, subprocess=True)
def flags() -> dict[str, object]:
    'Flags.'
    said = f"{sys.flags.optimize} {sys.flags.no_user_site} {sys.warnoptions} {__debug__}"
    return {"number": said, "pid": os.getpid()}

class Watch:
    def progress(self, call_id, part):
        if sys.argv[3:] and os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
        print(*part, flush=True)
    def approval_requested(self, request): ...
    def finished(self, outcome): ...

async def main():
    name, arguments = sys.argv[1:3]
    scope = CallScope(RunTally(), observer=Watch())
    outcome = await ToolRunner([mine, flags, lingers], timeout=None).exec(
        ToolCall("c", name, arguments), scope=scope
    )
    print(outcome.value["number"], outcome.value["pid"] != os.getpid())

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    return path


def start(path: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(path.parent)])}
    command = [sys.executable, *(arguments[0].replace("FILE", str(path)).split())]
    return subprocess.Popen(
        [*command, *arguments[1:]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


@pytest.mark.parametrize("how", [whole_only("FILE"), "-m program"])
def test_a_tool_of_the_program_itself(how: str, program: Path) -> None:
    with start(program, how, "mine", '{"number": 7}') as started:
        said, _ = started.communicate(timeout=PATIENCE)
    assert said == "7 True\n"


@pytest.mark.exhaustive
def test_python_is_started_as_the_program_was(program: Path) -> None:
    with start(program, "-O -s -W error FILE", "flags", "{}") as started:
        said, _ = started.communicate(timeout=PATIENCE)
    assert said == "1 1 ['error'] False True\n"


@pytest.mark.exhaustive
def test_a_program_that_runs_its_tools_when_it_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    text = """
        import asyncio
        from toolcrib import ALL, ToolCall, ToolRunner, tool

        print("begun", flush=True)

        @tool(visible=ALL, subprocess=True)
        def mine() -> int:
            'Mine.'
            return 1

        runner = ToolRunner([mine], on_exception=lambda call, error: print(error))
        print(asyncio.run(runner.exec(ToolCall("c", "mine", "{}"))).error.code)
        """
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    with start(path, "FILE") as started:
        said, _ = started.communicate(timeout=PATIENCE)
    begun, told, code = said.splitlines()
    assert (begun, code) == ("begun", "tool_error")
    assert told.endswith('keep those calls under `if __name__ == "__main__":`')


@pytest.mark.parametrize("busy", [False, True])
def test_a_parent_that_is_killed_takes_it_along(busy: bool, program: Path) -> None:
    with start(program, "FILE", "lingers", json.dumps({"busy": busy})) as started:
        assert started.stdout is not None
        child, grandchild = map(int, started.stdout.readline().split())
        assert alive(child)
        started.kill()
    try:
        wait_until_gone(child, grandchild)
    finally:
        for pid in filter(alive, (child, grandchild)):
            os.kill(pid, signal.SIGKILL)


def test_a_parent_that_is_killed_takes_it_along_though_one_that_it_forked_lives(
    program: Path,
) -> None:
    """The forked process holds the same pipes."""
    arguments = ("lingers", json.dumps({"busy": False}), "forks")
    with start(program, "FILE", *arguments) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        child, grandchild = map(int, started.stdout.readline().split())
        started.kill()
        try:
            wait_until_gone(child, grandchild)
        finally:
            started.stdin.close()  # which ends what was forked
            for pid in filter(alive, (child, grandchild)):
                os.kill(pid, signal.SIGKILL)


async def test_a_tool_of_a_file_that_no_import_finds(tmp_path: Path) -> None:
    path = tmp_path / "of a file.py"
    text = """
        from toolcrib import ALL, tool

        @tool(visible=ALL, subprocess=True)
        def module() -> str:
            'Say which.'
            return __name__
        """
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    (entry,) = Catalog(discover(path)).entries
    outcome, _ = await run(entry.tool)
    assert isinstance(outcome, Completed)
    assert outcome.value == entry.tool.__wrapped__.__module__
