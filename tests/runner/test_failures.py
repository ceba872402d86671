"""What an author can see of their own failure: where in the log, all of it in the hook, no values."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
import numpy as np
import pydantic
import pytest
from rows import each_row
from runner import process_tools

from toolcrib import (
    ALL,
    Allow,
    ApprovalRequest,
    Approve,
    Ask,
    Catalog,
    ErrorCode,
    Failed,
    ToolCall,
    ToolError,
    ToolRunner,
    tool,
)
from toolcrib.agent.history import result_message
from toolcrib.errors import CapabilityError, OutcomeUnknown
from toolcrib.failures import LOGGER, own_places
from toolcrib.testing import MemorySink

CANARY = "canary-9e1f"


def helper() -> None:
    raise RuntimeError(CANARY)


@tool(visible=ALL)
async def raises(text: str) -> str:
    """Raise."""
    helper()
    return text


@tool(visible=ALL)
def raises_in_a_thread(text: str) -> str:
    """Raise in a thread."""
    raise KeyError(text)


@tool(visible=ALL)
async def raises_a_group(text: str) -> str:
    """Raise several."""
    raise ExceptionGroup(text, [ValueError(text), TypeError(text)])


@tool(visible=ALL)
async def cancels(text: str) -> str:
    """Raise a cancellation of its own."""
    raise asyncio.CancelledError(text)


@tool(visible=ALL)
async def says(text: str) -> str:
    """Say what is wrong."""
    raise ToolError("no such order")


@tool(visible=ALL)
async def streams(text: str) -> AsyncIterator[dict[str, str]]:
    """Raise while it streams."""
    yield {"text": "x"}
    raise LookupError(text)


def exec_logged(
    one: Any, caplog: pytest.LogCaptureFixture, **options: Any
) -> tuple[Failed, list[BaseException], str]:
    """The outcome of one call, what the hook was given, and the log."""
    told: list[BaseException] = []
    runner = ToolRunner(
        Catalog([one]), on_exception=lambda _call, raised: told.append(raised), **options
    )
    name = runner.catalog.names[0]
    call = ToolCall("c1", name, f'{{"text": "{CANARY}"}}')
    with caplog.at_level(logging.DEBUG):
        outcome = asyncio.run(runner.exec(call))
    assert isinstance(outcome, Failed)
    assert CANARY not in str(outcome.error)
    assert CANARY not in caplog.text
    return outcome, told, "\n".join(r.getMessage() for r in caplog.records if r.name == LOGGER.name)


@pytest.mark.parametrize(
    ("one", "kind", "function"),
    [
        (raises, "RuntimeError", "helper"),
        (raises_in_a_thread, "KeyError", "raises_in_a_thread"),
        (raises_a_group, "ExceptionGroup of TypeError, ValueError", "raises_a_group"),
        (cancels, "asyncio.exceptions.CancelledError", "cancels"),
        (streams, "LookupError", "streams"),
    ],
)
def test_the_log_says_which_tool_raised_what_and_where(
    one: Any, kind: str, function: str, caplog: pytest.LogCaptureFixture
) -> None:
    outcome, told, log = exec_logged(one, caplog)
    assert outcome.error.code is ErrorCode.TOOL_ERROR
    assert len(told) == 1
    name = one.get_definition().name
    assert log.startswith(f"tool '{name}' raised {kind} at {__file__}:")
    assert f" in {function}" in log
    assert [r.levelno for r in caplog.records if r.name == LOGGER.name] == [logging.WARNING]


def check(text: str) -> str:
    """A validator that fails, or that refuses."""
    if text == CANARY:
        helper()
    raise ValueError(text)


@tool(visible=ALL)
class Fails:
    """Fail in the constructor."""

    def __init__(self, text: str) -> None:
        if text != CANARY:
            raise ToolError("not today", retryable=False)
        helper()

    async def run(self) -> None: ...


@tool(visible=ALL)
async def checked(text: Annotated[str, pydantic.AfterValidator(check)]) -> None:
    """Take what a validator lets through."""


@pytest.mark.parametrize("one", [Fails, checked])
def test_a_failing_constructor_or_validator_is_logged_and_given_to_the_hook(
    one: Any, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[BaseException] = []
    runner = ToolRunner([one], on_exception=lambda _, raised: told.append(raised))
    name = one.get_definition().name
    call = ToolCall("c", name, json.dumps({"text": CANARY}))
    for run in (runner.hydrate, runner.exec):
        caplog.clear()
        told.clear()
        result: Any = asyncio.run(run(call))
        assert CANARY not in str(result.errors if run == runner.hydrate else result.error)
        assert [type(raised) for raised in told] == [RuntimeError]
        (log,) = caplog.records
        assert (log.name, log.levelno) == (LOGGER.name, logging.WARNING)
        said = log.getMessage()
        start = (
            f"tool '{name}', when it was given its arguments, raised RuntimeError at {__file__}:"
        )
        assert said.startswith(start)
        assert CANARY not in said
        assert "hydrate.py" not in said


@pytest.mark.parametrize(("one", "retryable"), [(Fails, False), (checked, True)])
def test_a_refusal_of_arguments_is_the_models_to_correct(
    one: Any, retryable: bool, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[BaseException] = []
    runner = ToolRunner([one], on_exception=lambda _, raised: told.append(raised))
    call = ToolCall("c", one.get_definition().name, '{"text": "other"}')
    outcome = asyncio.run(runner.exec(call))
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_ARGUMENTS
    assert outcome.error.retryable is retryable
    assert (told, caplog.records) == ([], [])


def test_the_authors_frames_are_named_and_ours_are_not(caplog: pytest.LogCaptureFixture) -> None:
    _, _, log = exec_logged(raises, caplog)
    assert f" in helper (by way of {__file__}:" in log
    assert "executor.py" not in log


def test_of_a_library_that_fails_by_itself_its_own_frames_are_named() -> None:
    try:
        json.loads("{")
    except ValueError as raised:
        ours = own_places(raised.__traceback__)
        theirs = own_places(raised.__traceback__.tb_next if raised.__traceback__ else None)
    assert [place.split(" in ")[0].rsplit(":", 1)[0] for place in ours] == [__file__]
    assert theirs[0].endswith(" in loads")


def test_what_an_author_said_is_in_the_record_and_not_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outcome, told, log = exec_logged(says, caplog)
    assert outcome.error.message == "no such order"
    assert (len(told), log) == (1, "")


def test_by_default_the_line_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Python prints warnings of loggers that nobody has set up; pytest has, so it is asked here."""
    handler = logging.lastResort
    assert handler is not None
    LOGGER.logger.addHandler(handler)
    try:
        asyncio.run(ToolRunner([raises]).exec(ToolCall("c", "raises", '{"text": "x"}')))
    finally:
        LOGGER.logger.removeHandler(handler)
    assert capsys.readouterr().err.startswith("tool 'raises' raised RuntimeError at ")


@tool(visible=ALL)
async def gives_nan(text: str) -> float:
    """Give what is not JSON."""
    return float("nan")


@tool(visible=ALL, safe=False)
async def asks(text: str) -> str:
    """Need approval."""
    return text


async def nobody(_request: ApprovalRequest) -> Any:
    helper()


class NoName(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise RuntimeError(CANARY)


class Odd(Exception, metaclass=NoName):  # noqa: N818
    pass


@tool(visible=ALL)
async def raises_what_has_no_name(text: str) -> str:
    """Raise."""
    raise Odd


@each_row(
    "raised", [ValueError("closed"), GeneratorExit(), asyncio.CancelledError(), SystemExit(3)]
)
async def test_a_line_that_cannot_be_logged_changes_no_call(raised: BaseException) -> None:
    """A closed standard error, or a filter of the application's own, which raises."""

    def refuses(_record: logging.LogRecord) -> bool:
        raise raised

    sink = MemorySink()
    tools: list[Any] = [raises, raises_in_a_thread, gives_nan, asks, raises_what_has_no_name]
    runner = ToolRunner(tools, approver=nobody, sinks=[sink])
    LOGGER.logger.addFilter(refuses)
    try:
        outcomes = await runner.exec_all(
            ToolCall(each.definition.name, each.definition.name, '{"text": "x"}') for each in tools
        )
    finally:
        LOGGER.logger.removeFilter(refuses)
    codes = [each.error.code for each in outcomes if isinstance(each, Failed)]
    failed = ErrorCode.TOOL_ERROR
    assert codes == [failed, failed, ErrorCode.INVALID_OUTPUT, ErrorCode.APPROVAL_FAILED, failed]
    assert len(sink.records) == len(tools)


@dataclasses.dataclass
class Row:
    total: Any


class Model(pydantic.BaseModel):
    row: Any


class Struct(msgspec.Struct):
    row: Any


NUMBER = "a value of type numpy.int64"


@pytest.mark.parametrize(
    ("value", "logged", "whole"),
    [
        (np.int64(7), f"({NUMBER} at the top)", f"({NUMBER} at the top)"),
        ({"rows": [1, np.int64(7)]}, f"({NUMBER} at /rows/1)", f"({NUMBER} at /rows/1)"),
        ({CANARY: np.int64(7)}, f"({NUMBER} at /*)", f"({NUMBER} at /{CANARY})"),
        ({"rows": Row(np.int64(7))}, f"({NUMBER} at /rows/total)", f"({NUMBER} at /rows/total)"),
        (Model(row={"x": object()}), "type object at /row/*)", "type object at /row/x)"),
        (Struct({1: object()}), "type object at /row/*)", "type object at /row/1)"),
        ({"rows": float("nan")}, "(a float that is NaN or infinite at /rows)", "at /rows)"),
        ({"rows": "\ud800"}, "(a str with a lone surrogate at /rows)", "at /rows)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_result_that_is_no_json_says_what_and_where(
    value: Any, logged: str, whole: str, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(visible=["rows"])
    async def gives(text: str) -> Any:
        """Give."""
        return value

    outcome, told, log = exec_logged(gives, caplog)
    assert outcome.error.code is ErrorCode.INVALID_OUTPUT
    assert outcome.error.message.endswith("a result that cannot be used: it is not JSON.")
    assert log.startswith("tool 'gives' gave a result that cannot be used: it is not JSON (")
    assert log.endswith(logged)
    [raised] = told
    assert str(raised).endswith(whole)


class Writes(pydantic.BaseModel):
    a: int = 1

    @pydantic.field_serializer("a")
    def write(self, a: int) -> int:
        helper()
        return a


class Computes(pydantic.BaseModel):
    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> int:
        helper()
        return 1


@pytest.mark.parametrize(
    "value",
    [Writes(), [Writes()], {"rows": Computes()}],
    ids=["a serializer", "in a list", "a field"],
)
def test_what_a_results_own_code_raises_as_it_is_written_is_told_to_its_author(
    value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(visible=["rows"])
    async def gives(text: str) -> Any:
        """Give."""
        return value

    outcome, [raised], log = exec_logged(gives, caplog)
    assert outcome.error.code is ErrorCode.INVALID_OUTPUT
    assert repr(raised.__cause__) == repr(RuntimeError(CANARY))
    assert "raised RuntimeError at" in log
    assert "in helper" in log


def test_a_result_that_contains_itself_ends_the_search(caplog: pytest.LogCaptureFixture) -> None:
    around: list[Any] = []
    around.append(around)

    @tool(visible=ALL)
    async def gives(text: str) -> Any:
        """Give."""
        return around

    _, _, log = exec_logged(gives, caplog)
    assert "a value of type list at " in log


def test_a_part_that_is_no_json(caplog: pytest.LogCaptureFixture) -> None:
    @tool(visible=["rows"])
    async def gives(text: str) -> AsyncIterator[Any]:
        """Give."""
        yield {"rows": np.int64(1)}

    _, told, log = exec_logged(gives, caplog)
    assert log.endswith(f"({NUMBER} at /rows)")
    assert len(told) == 1


def test_a_result_not_by_its_schema_is_in_the_log_too(caplog: pytest.LogCaptureFixture) -> None:
    @tool(visible=ALL)
    async def counts(text: str) -> int:
        """Count."""
        return text  # type: ignore[return-value]

    _, told, log = exec_logged(counts, caplog)
    assert log.endswith("the top: expected integer, got string")
    assert len(told) == 1


def test_a_process_that_raised_says_where(caplog: pytest.LogCaptureFixture) -> None:
    runner = ToolRunner([process_tools.dies, process_tools.ends])
    for name, how in (("dies", CANARY), ("ends", "object")):
        asyncio.run(runner.exec(ToolCall(f"of_{name}", name, f'{{"how": "{how}"}}')))
    raised, no_json = (r.getMessage() for r in caplog.records if r.name == LOGGER.name)
    assert raised.startswith("tool 'dies' failed: KeyError was raised at ")
    assert "process_tools.py:" in raised
    assert no_json.endswith("(a value of type object at /*)")
    assert CANARY not in caplog.text


def test_a_policy_that_raises_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    def strict(_call: object, _context: object) -> Allow:
        raise LookupError(CANARY)

    outcome, _, log = exec_logged(raises, caplog, policy=strict)
    assert outcome.error.code is ErrorCode.DENIED
    assert log.startswith("policy 'strict' raised LookupError at ")


def test_what_raises_may_have_a_class_that_cannot_be_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Strange(Exception):  # noqa: N818
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise RuntimeError(CANARY)

    def strict(_call: object, _context: object) -> Allow:
        raise Strange

    async def approver(_request: object) -> Approve:
        raise Strange

    outcome, _, log = exec_logged(raises, caplog, policy=strict)
    assert outcome.error.code is ErrorCode.DENIED
    assert "Strange at " in log
    outcome, _, log = exec_logged(raises, caplog, policy=lambda _c, _x: Ask("x"), approver=approver)
    assert outcome.error.code is ErrorCode.APPROVAL_FAILED
    assert "Strange at " in log


def test_a_repairer_that_raises_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    class Repairer:
        name = "mender"

        async def __call__(self, _request: object) -> str:
            raise LookupError(CANARY)

    runner = ToolRunner([raises], repairer=Repairer())
    with caplog.at_level(logging.DEBUG):
        asyncio.run(runner.exec(ToolCall("c", "raises", "{'text': 1")))
    assert "the repairer 'mender' raised LookupError at " in caplog.text
    assert CANARY not in caplog.text


def test_a_hook_that_fails_is_told_of_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def hook(_call: object, _raised: object) -> None:
        raise LookupError(CANARY)

    runner = ToolRunner([raises], on_exception=hook)
    outcome = asyncio.run(runner.exec(ToolCall("c", "raises", '{"text": "x"}')))
    assert isinstance(outcome, Failed)
    assert "on_exception raised LookupError at " in caplog.text
    assert CANARY not in caplog.text


@tool(visible=ALL)
def stops(text: str) -> str:
    """Ask an iterator that has no more."""
    return next(iter(()))


def test_what_python_made_of_an_exception_is_traced_to_its_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, _, log = exec_logged(stops, caplog)
    assert log.startswith(f"tool 'stops' raised StopIteration at {__file__}:")


@tool(visible=ALL)
async def quotes(text: str) -> str:
    """Quote somebody."""
    raise ToolError("the shop refused", model_text=CANARY)


@pytest.mark.parametrize("apart", [False, True])
async def test_words_for_the_model_alone_are_in_no_record(apart: bool) -> None:
    name, said = ("ends", process_tools.CANARY) if apart else ("quotes", CANARY)
    tools = [process_tools.ends] if apart else [quotes]
    sink = MemorySink()
    call = ToolCall("c1", name, '{"how": "quoted"}' if apart else '{"text": "x"}')
    runner = ToolRunner(tools, sinks=[sink])
    for _ in range(2):  # the second is told again, and does not run
        outcome = await runner.exec(call)
        assert isinstance(outcome, Failed)
        assert (outcome.error.message, outcome.model_text) == ("the shop refused", said)
        assert said not in repr(outcome)
        message = result_message(call, outcome, None)
        assert message is not None
        assert said in message.content
        assert "the shop refused" not in message.content
    assert [said in msgspec.json.encode(record).decode() for record in sink.records] == [False]


@tool(visible=ALL)
async def rambles(text: str) -> str:
    """Say too much."""
    raise {"ToolError": ToolError, "capability": CapabilityError, "lost": OutcomeUnknown}[text](
        "x" * 3_000_000, model_text="y" * 6_000_000
    )


@pytest.mark.parametrize("how", ["ToolError", "capability", "lost", "apart"])
async def test_the_text_of_an_error_is_bounded(how: str) -> None:
    """An error is no way around the bounds of a result."""
    tools = [process_tools.ends] if how == "apart" else [rambles]
    name, arguments = ("ends", {"how": "long"}) if how == "apart" else ("rambles", {"text": how})
    outcome = await ToolRunner(tools).exec(ToolCall("c", name, json.dumps(arguments)))
    assert isinstance(outcome, Failed)
    assert outcome.record.error is not None
    for text in (outcome.error.message, outcome.model_text, outcome.record.error.message):
        assert (len(text), text[-7:], set(text[:-7])) == (65_536, "… [cut]", {text[0]})
    code = {"capability": "capability_error", "lost": "outcome_unknown"}.get(how, "tool_error")
    assert outcome.error.code == code


async def test_the_text_of_an_error_is_bounded_where_arguments_are_refused() -> None:
    @tool(visible=ALL, name="made")
    class Made:
        """Make it."""

        def __init__(self, n: int) -> None:
            raise ToolError("x" * 3_000_000)

        async def run(self) -> int:
            return 1

    outcome = await ToolRunner([Made]).exec(ToolCall("c", "made", '{"n": 1}'))
    assert isinstance(outcome, Failed)
    told = [outcome.error.message, *(detail.message for detail in outcome.error.details)]
    assert {len(text) for text in told} == {65_536}


async def test_the_longest_text_that_is_not_cut() -> None:
    @tool(visible=ALL)
    async def tells() -> str:
        """Tell."""
        raise ToolError("x" * 65_536, model_text="y" * 65_536)

    outcome = await ToolRunner([tells]).exec(ToolCall("c", "tells", "{}"))
    assert isinstance(outcome, Failed)
    assert (outcome.error.message, outcome.model_text) == ("x" * 65_536, "y" * 65_536)


class Evil(list[int]):
    def __iter__(self) -> Any:
        raise GeneratorExit


@tool(visible=ALL)
async def gives_evil(text: str) -> object:
    """Give a result whose own code raises."""
    return Evil([1])


async def test_what_a_result_raises_as_it_is_read_is_no_end_of_the_event_loop() -> None:
    sink = MemorySink()
    outcome = await ToolRunner([gives_evil], sinks=[sink]).exec(
        ToolCall("c", "gives_evil", '{"text": "x"}')
    )
    assert isinstance(outcome, Failed)
    assert outcome.error.code is ErrorCode.INVALID_OUTPUT
    assert [record.status for record in sink.records] == ["failed"]
