"""What authors learn from the log when their own code fails: where it failed, never what it said.

Rule: the logger `toolcrib.tools` gets one line at WARNING for each exception that toolcrib handles
in place of a result (from a tool, its constructor or validators, a capability, a policy, an
approver, a repairer). The line names that code, the kind of the exception, and the file, line and
function of the author's own frames. Exception messages, arguments and results are in no log: they
may hold secrets, and logs are read by others. The exception itself goes to a runner's
`on_exception`, which is for debugging.
"""

from __future__ import annotations

import logging
import sysconfig
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from toolcrib.errors import MissingExtraError, SchemaError, ToolError

_MAX_FRAMES = 8
_TOOLCRIB_PATH = str(Path(__file__).parent)
_LIBRARY_PATHS = tuple(
    sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """The logger of this name. Writing to it never raises, so it never decides how a call ends.

    A closed standard error, or a handler, filter or formatter of the application, may raise.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name))

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1  # this is not where it happened
        try:
            super().log(level, msg, *args, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001, S110  the line is lost
            pass


LOGGER = SafeLogger("toolcrib.tools")


class Explained(Exception):  # noqa: N818  a base class: subclasses name what happened
    """An exception of toolcrib's own whose message holds no value, so that it may be logged."""


class OddError(Exception):
    """Stands for an author's exception of this `kind`, which raises when it is asked for its class."""

    def __init__(self, kind: type[BaseException]) -> None:
        super().__init__()
        self.kind = kind


def readable(raised: BaseException) -> BaseException:
    """Return an exception that can be told apart from others: this one, or an `OddError` for it."""
    try:
        isinstance(raised, OddError)  # asks for its class
    except Exception:  # noqa: BLE001  a property of an author's class
        traceback = BaseException.__getattribute__(raised, "__traceback__")
        return OddError(type(raised)).with_traceback(traceback)
    return raised


class Words(NamedTuple):
    """Holds the texts of an author's error, which a class of the author's own may lack."""

    text: str = ""
    model_text: str = ""
    retryable: bool | None = None


def words_of(raised: BaseException) -> Words:
    """Return what an error says for the model: nothing unless it is a ToolError.

    Attributes of a wrong type count as missing.
    """
    try:
        if not isinstance(raised, ToolError):
            return Words()
        text, model_text, retryable = raised.safe_text, raised.model_text, raised.retryable
    except Exception:  # noqa: BLE001  properties of an author's class
        return Words()
    return Words(
        text if isinstance(text, str) else "",
        model_text if isinstance(model_text, str) else "",
        retryable if isinstance(retryable, bool) else None,
    )


def log_raised(what: str, raised: BaseException) -> None:
    """Log that `what` (`tool 'pay'`) raised, unless the error has a text that is told elsewhere."""
    raised = readable(raised)
    if words_of(raised).text:
        return
    if isinstance(raised, Explained | SchemaError | MissingExtraError):
        LOGGER.warning("%s failed: %s", what, raised)
        return
    places = own_places(raised.__traceback__)
    while not places and raised.__cause__ is not None:  # Python wraps some, like StopIteration
        raised = raised.__cause__
        places = own_places(raised.__traceback__)
    location = f" at {places[-1]}" if places else ""
    route = f" (by way of {', '.join(places[:-1])})" if len(places) > 1 else ""
    LOGGER.warning("%s raised %s%s%s", what, _kind(raised), location, route)


def log_without_code(name: str) -> None:
    """Log that a tool of the program's own catalog cannot be run, and what it lacks."""
    LOGGER.warning(
        "tool '%s' cannot be run: it is a definition without code; pass its handler: "
        "Catalog.from_definitions(…, handlers={'%s': …})",
        name,
        name,
    )


def log_without_approver(name: str, *, imported: bool) -> None:
    """Log that a call needs an approval and that its runner has nobody to ask."""
    trust = "; or trust the imported tool, as `toolcrib tools check` shows" if imported else ""
    LOGGER.warning(
        "a call of tool '%s' needs an approval, and nobody can be asked: "
        "ToolRunner(tools, approver=…)%s",
        name,
        trust,
    )


def log_unusable(what: str, why: str) -> None:
    """Log that `what` gave a value that cannot be used; `why` is a sentence that holds no value."""
    LOGGER.warning("%s gave a result that cannot be used: %s", what, why)


def log_refused(tool: str, places: str, code: tuple[str, ...]) -> None:
    """Log that arguments were refused although they fit the tool's schema.

    The author's own code may be the cause: a value that a validator forgot to return looks as if it
    had been sent.
    """
    LOGGER.warning(
        "tool '%s' refused at %s what its schema takes, and its own code may be why (%s): does each"
        " validator return its value, of the type of its hint? This is said once for each place",
        tool,
        places,
        " or ".join(code),
    )


def log_over_time(tool: str, seconds: float, limit: float) -> None:
    """Log that a tool completed past its time limit, because something blocked the event loop."""
    LOGGER.warning(
        "tool '%s' completed after %.1f s, and its time limit is %g s: something blocked the event"
        " loop, itself or another tool, so that no limit could end it; let what takes long run in a"
        " thread (a plain function does), or await it",
        tool,
        seconds,
        limit,
    )


def own_places(traceback: TracebackType | None) -> list[str]:
    """Return `file:line in function` of the author's frames, outermost first, at most the last 8.

    If none is the author's own, returns those of libraries, but never toolcrib's.
    """
    outside: list[tuple[str, str]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith((_TOOLCRIB_PATH, "<frozen ")):
            place = f"{code.co_filename}:{traceback.tb_lineno} in {code.co_qualname}"
            outside.append((code.co_filename, place))
        traceback = traceback.tb_next
    author_places = [place for file, place in outside if not file.startswith(_LIBRARY_PATHS)]
    return (author_places or [place for _, place in outside])[-_MAX_FRAMES:]


def _kind(raised: BaseException) -> str:
    """Return `module.Kind` of an exception; for a group, also the kinds in it."""
    kind = raised.kind if isinstance(raised, OddError) else type(raised)
    try:
        name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    except Exception:  # noqa: BLE001  an author's metaclass
        return "an exception whose class has no name"
    if isinstance(raised, BaseExceptionGroup):
        member_kinds = sorted({type(member).__qualname__ for member in raised.exceptions})
        return f"{name} of {', '.join(member_kinds)}"
    return name
