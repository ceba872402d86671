"""What a runner is given, checked when it is made: not at its first call, when a tool has run."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable

from toolcrib.errors import ToolcribError
from toolcrib.values.record import Sink


def check_numbers(
    *,
    timeout: object,
    concurrency: object,
    remember: object,
    approval_seconds: object,
    max_result_bytes: object,
) -> None:
    """Raises ToolcribError, naming what cannot be meant."""
    if timeout is not None:
        _check_seconds("timeout", timeout)
    _check_seconds("approval_seconds", approval_seconds)
    _check_whole("concurrency", concurrency, 1)
    _check_whole("remember", remember, 0)
    _check_whole("max_result_bytes", max_result_bytes, 1)


def checked_sinks(sinks: Iterable[Sink]) -> tuple[Sink, ...]:
    """Raises ToolcribError for what is no sink: it could not be told of a call that has run."""
    if not isinstance(sinks, Iterable):
        raise ToolcribError("sinks is a list: sinks=[sink]")
    given = tuple(sinks)
    for sink in given:
        if isinstance(sink, type) or not callable(getattr(sink, "write", None)):
            kind = sink if isinstance(sink, type) else type(sink)
            raise ToolcribError(f"a sink has a method write(record): {kind.__name__} is none")
    return given


def check_hook(hook: object) -> None:
    """Raises ToolcribError for what would say nothing: what a hook raises is dropped."""
    wrong = isinstance(hook, type) or inspect.iscoroutinefunction(hook) or not callable(hook)
    if hook is not None and wrong:
        raise ToolcribError("on_exception is a plain function: hook(call, raised)")


def _check_seconds(name: str, value: object) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:  # type: ignore[operator]
        raise ToolcribError(f"{name} is a number of seconds above 0")


def _check_whole(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ToolcribError(f"{name} is a whole number from {least}")
