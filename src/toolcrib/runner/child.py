"""The code in a tool's process: read one request, run one function, answer, wait for the end.

Rule: the process talks to its parent only through two pipes. They arrive as standard input and
output and are moved before any foreign code is loaded, so that what such code prints is discarded.
After its answer the process never ends on its own: the parent ends it, with everything it has
started. If the parent is gone, the process ends itself in the same way.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import os
import select
import signal
import sys
import threading
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any, Literal

import msgspec
from pydantic_core import from_json

from toolcrib.errors import (
    CapabilityError,
    MissingExtraError,
    OutcomeUnknown,
    ToolcribError,
    ToolError,
)
from toolcrib.failures import own_places, words_of
from toolcrib.runner import process
from toolcrib.runner.output import NOT_JSON, Unusable, json_text, not_json, too_large
from toolcrib.runner.process import (
    CONTENT,
    ENDING,
    PART,
    RESULT,
    UNGUARDED,
    Broken,
    ContentResult,
    Ending,
    ExtraMissing,
    NoResult,
    ProcessRequest,
    SafeText,
    frame,
)
from toolcrib.schema.derive.factories import FactoryFailed, FactoryValues
from toolcrib.tools import Tool
from toolcrib.tools.build import ToolOptions
from toolcrib.tools.decorator import make_function_tool
from toolcrib.values.content import ToolContent
from toolcrib.values.context import CallContext
from toolcrib.values.decision import ApprovalRequest, Caller
from toolcrib.values.definition import ALL
from toolcrib.values.json import JsonValue, encodable, json_copy, sentence, sha256_hex
from toolcrib.values.record import Outcome

_LOOK = 1.0  # seconds between two looks at who the parent is
_MAIN_MODULE = "__toolcrib_main__"  # name of the program's own file once loaded: not "__main__"


def main() -> None:
    parent, incoming, outgoing = os.getppid(), os.dup(0), os.dup(1)
    devnull = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(devnull, descriptor)
    with open(incoming, "rb", closefd=False) as pipe:
        request = msgspec.json.decode(pipe.readline(), type=ProcessRequest)
    watcher = threading.Thread(target=_end_with_parent, args=(incoming, parent), daemon=True)
    watcher.start()
    if sys.platform == "linux":
        _let_the_kernel_end_it(incoming)
    answers = _Answers(outgoing, request.max_bytes)
    answers.end(*_result_frame(request, answers))
    watcher.join()


def _end_with_parent(incoming: int, parent: int) -> None:
    """End when the pipe does, or when another process has become the parent.

    The parent sends nothing more, but a process that it has forked may hold the pipe open.
    """
    while os.getppid() == parent and not select.select([incoming], [], [], _LOOK)[0]:
        pass
    os.killpg(0, signal.SIGKILL)


def _let_the_kernel_end_it(incoming: int) -> None:
    """End with the parent even if C code, such as a regular expression, blocks every thread.

    By fcntl(2): when the pipe has something to read, this signal goes to this process group.
    """
    fcntl.fcntl(incoming, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(incoming, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(incoming, fcntl.F_SETFL, fcntl.fcntl(incoming, fcntl.F_GETFL) | os.O_ASYNC)


class _Answers:
    """Sends frames to the parent, and is the call's `Observer`: any thread may report parts."""

    def __init__(self, outgoing: int, max_bytes: int) -> None:
        self._pipe = open(outgoing, "wb")  # noqa: SIM115  for as long as the process lives
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._is_over = False

    def progress(self, _call_id: str, part: JsonValue) -> None:
        self._send(PART, json_text(part, self._max_bytes))

    def approval_requested(self, request: ApprovalRequest) -> None: ...

    def finished(self, outcome: Outcome) -> None: ...

    def end(self, kind: bytes, body: bytes) -> None:
        self._send(kind, body, over=True)

    def unguarded(self) -> None:
        """Tell the parent that the module calls its tools while it is loaded, and stop here."""
        self.end(ENDING, msgspec.json.encode(UNGUARDED))
        threading.Event().wait()

    def _send(self, kind: bytes, body: bytes, *, over: bool = False) -> None:
        with self._lock:
            if not self._is_over:
                self._is_over = over
                self._pipe.write(frame(kind, body))
                self._pipe.flush()


def _result_frame(request: ProcessRequest, answers: _Answers) -> tuple[bytes, bytes]:
    try:
        value = _run(request, answers)
        content = ToolContent.of(value)
        value = value if content is None else content.value
        try:
            text = json_text(value, request.max_bytes)
        except Unusable as unusable:
            raise (unusable if unusable.why != NOT_JSON else not_json(value)) from None
        return (RESULT, text) if content is None else (CONTENT, _with_parts(text, content, request))
    except BaseException as raised:  # noqa: BLE001  an author's code may raise anything
        return ENDING, msgspec.json.encode(_ending(raised))


def _with_parts(text: bytes, content: ToolContent[Any], request: ProcessRequest) -> bytes:
    result = msgspec.json.encode(ContentResult(msgspec.Raw(text), tuple(content.parts)))
    if len(result) > request.max_bytes:
        raise too_large(request.max_bytes)
    return result


def _ending(raised: BaseException) -> Ending:
    if isinstance(raised, FactoryFailed) and raised.__cause__ is not None:
        raised = raised.__cause__
    words = words_of(raised)
    match raised:
        case ToolError() if words.text or isinstance(raised, CapabilityError | OutcomeUnknown):
            text = sentence(words.text)
            return SafeText(text, words.retryable, _kind_of(raised), sentence(words.model_text))
        case MissingExtraError():
            return ExtraMissing(str(raised.extra), str(raised.feature))
        case Unusable():
            return NoResult(raised.why, encodable(raised.kind), raised.path)
    locations = own_places(raised.__traceback__)
    location = locations[-1] if locations else "an unknown place"
    return Broken(encodable(f"{type(raised).__name__} was raised at {location}"))


def _kind_of(raised: ToolError) -> Literal["ToolError", "CapabilityError", "OutcomeUnknown"]:
    if isinstance(raised, OutcomeUnknown):
        return "OutcomeUnknown"
    return "CapabilityError" if isinstance(raised, CapabilityError) else "ToolError"


def _run(request: ProcessRequest, answers: _Answers) -> Any:
    process.while_loading = answers.unguarded
    module = _load_module(request)
    process.while_loading = None
    tool = _find_tool(module, request)
    injected = {}
    if tool.context_parameter is not None:
        injected[tool.context_parameter] = CallContext(
            request.call_id,
            request.run_id,
            request.idempotency_key,
            Caller(request.caller, request.roles),
            request.deadline,
            answers,
        )
    built = tool.make(
        from_json(request.arguments), FactoryValues.of_json(from_json(request.pinned))
    )
    if sha256_hex(built.canonical) != request.effective_sha256:
        raise ToolcribError(
            "the tool's process read other arguments than those that were decided on"
        )
    return tool.invoke(built.instance, injected)


def _find_tool(module: ModuleType, request: ProcessRequest) -> Tool[..., Any]:
    """Return the tool, or build one from the function if the program made its tool elsewhere."""
    target: Any = module
    for name in request.qualname.split("."):
        target = getattr(target, name)
    if isinstance(target, Tool):
        return target
    schema = None if request.input_schema is None else json_copy(request.input_schema)
    options = ToolOptions(
        visible=ALL, input_schema=schema, allow_no_schema=True, no_schema_mode="full", lazy=True
    )
    return make_function_tool(target, options, {})


def _load_module(request: ProcessRequest) -> ModuleType:
    """Import the module by its name, or load its file if it cannot be imported."""
    if request.module != "__main__" and _is_importable(request.module):
        return importlib.import_module(request.module)
    name = _MAIN_MODULE if request.module == "__main__" else request.module
    loader = SourceFileLoader(name, request.file)
    spec = importlib.util.spec_from_loader(name, loader)
    if spec is None:
        raise ImportError
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if request.module == "__main__":
        sys.modules["__main__"] = module
    loader.exec_module(module)
    return module


def _is_importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
