"""LangChain's tools for a catalog: their own schema validates, and their results are checked.

Nobody can tell who wrote a LangChain tool object: a function of yours, a package's tool and a
server's listing (through an adapter) are all a `StructuredTool`. So it counts as imported: it asks
for approval and its results are untrusted, until the author's own code says `own=True` or trusts
what it has read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from inspect import Parameter
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args, get_origin

from langchain_core.messages import ToolMessage
from langchain_core.messages.tool import ToolOutputMixin
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import (
    BaseTool,
    InjectedToolArg,
    InjectedToolCallId,
    StructuredTool,
    ToolException,
)
from langchain_core.tools import Tool as PlainLangChainTool
from langgraph.prebuilt import ToolRuntime
from langsmith import tracing_context
from pydantic import BaseModel, PrivateAttr, RootModel
from typing_extensions import Unpack

from toolcrib.bridges.langchain.args_class import NO_FIELDS, ArgsReader, ReadArguments
from toolcrib.bridges.langchain.blocks import content_in
from toolcrib.errors import DefinitionError, ToolError
from toolcrib.tools import Tool, get_definition
from toolcrib.tools.build import ToolOptions
from toolcrib.tools.component import BoundCall
from toolcrib.tools.decorator import make_function_tool
from toolcrib.tools.signature import read_hints
from toolcrib.values.content import ToolContent
from toolcrib.values.context import CallContext
from toolcrib.values.definition import ALL, All, AnnotationOptions
from toolcrib.values.json import JsonObject
from toolcrib.values.typed import check_type

Injected: TypeAlias = Mapping[str, Callable[[CallContext], Any]]
_Kind: TypeAlias = Literal["call id", "runtime", "other"]
_SPREAD = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_HIDDEN = ("args", "kwargs")
"""Parameters that LangChain shows as `v__args` and `v__kwargs`, names that no function has."""
_READ = "toolcrib_read"
"""The argument of a handler that holds all arguments, if the tool's own class has read them."""
_REFUSED = "The tool says that the call failed. Its message is for the model only."
_NOT_HERE = (
    "a tool that returns a Command controls the graph: give it to the graph directly, next "
    "to the tools of to_langchain_tools"
)


class WithArtifact(RootModel[Any]):
    """Holds the result of a tool whose `response_format` is "content_and_artifact".

    Its JSON, which the model gets, is the content, or null if that consists of parts. The
    application reads `value.artifact`.
    """

    _artifact: Any = PrivateAttr(default=None)

    @property
    def artifact(self) -> Any:
        """The part of the result that is for the application alone."""
        return self._artifact


def from_langchain_tool(
    tool: BaseTool,
    *,
    visible: Sequence[str] | All | None = None,
    own: bool = False,
    inject: Injected | None = None,
    name: str | None = None,
    model_visible: Sequence[str] | All = ALL,
    secret: Sequence[str] = (),
    output_schema: JsonObject | None = None,
    **annotations: Unpack[AnnotationOptions],
) -> Tool[..., Any]:
    """Return a tool that calls a LangChain tool. Its name, description and schema are kept
    unchanged.

    It counts as imported: each call asks for approval and its results are untrusted, until
    `Catalog.trusting` says otherwise. With `own=True` you say that you wrote it, or answer for it
    as if you had. `visible` names what others than the model may see of a result; without it they
    see nothing. `inject` has functions of the CallContext for arguments that LangChain injects
    (`InjectedState`, `InjectedStore`, your own). The id of the call and a ToolRuntime without a
    state are always provided. Lists of content blocks become parts, unless an `output_schema`
    describes them as JSON. The other options are those of `@tool`. Raises DefinitionError for a
    value that is no LangChain tool, and for an injected argument that nobody provides.
    """
    check_type("tool", tool, BaseTool, "a tool of LangChain's")
    injected = _injected_arguments(tool, inject or {})
    schema = _schema(tool)
    properties = schema.get("properties")
    _check_reached(tool, properties if isinstance(properties, dict) else {}, injected.made_by)
    options = ToolOptions(
        visible=visible,
        model_visible=model_visible,
        secret=secret,
        name=tool.name if name is None else name,
        description=tool.description,
        input_schema=schema,
        output_schema=output_schema,
        annotations={"tags": tuple(tool.tags or ()), **annotations},
        is_own=own,
    )
    built = _build(tool, injected, options)
    if own:
        return built
    form = {"name": options.name, "description": tool.description, "input_schema": schema}
    return built.brought(get_definition(form))


def _build(tool: BaseTool, injected: _InjectedArguments, options: ToolOptions) -> Tool[..., Any]:
    reader = _reader(tool, injected)
    read = content_in if options.output_schema is None else (lambda made: made)
    handler = _handler(tool, injected, reader, read, own=options.is_own)
    made = make_function_tool(handler, options, {})
    if reader is None:
        return made
    return Tool(
        made.definition,
        lambda read: BoundCall(handler, made.blocking, {_READ: read}),
        original=handler,
        validator=made.validator,
        output_validator=made.output_validator,
        takes_object=reader,
        accepts=made.accepts,
        accepts_matching=made.accepts_matching,
        context_parameter=made.context_parameter,
        blocking=made.blocking,
    )


def _reader(tool: BaseTool, injected: _InjectedArguments) -> ArgsReader | None:
    """Return a reader of the arguments by the tool's own class, or None if it has only a schema."""
    validating = tool.args_schema
    if isinstance(validating, dict) or (isinstance(tool, PlainLangChainTool) and not validating):
        return None
    model_class: Any = tool.tool_call_schema
    parameters = inspect.signature(_function_of(tool)).parameters.items()
    left_out = frozenset(name for name, parameter in parameters if parameter.kind in _SPREAD)
    if validating is None:
        return ArgsReader(tool, model_class, None, left_out)
    assert issubclass(validating, BaseModel)  # noqa: S101  checked by `_schema`
    has_injected = any(name in injected.made_by for name in validating.model_fields)
    return ArgsReader(tool, model_class if has_injected else validating, validating, left_out)


def _schema(tool: BaseTool) -> JsonObject:
    """Return the schema that LangChain shows to models, without injected parameters."""
    if isinstance(tool.args_schema, dict):
        return dict(tool.args_schema)
    if isinstance(tool, PlainLangChainTool) and tool.args_schema is None:  # takes one string
        return {"type": "object", "properties": dict(tool.args), "required": list(tool.args)}
    model_class = tool.tool_call_schema
    if not (isinstance(model_class, type) and issubclass(model_class, BaseModel)):
        raise DefinitionError(
            f"tool '{tool.name}': its args_schema is missing, or is a class of pydantic 1"
        )
    if isinstance(tool.args_schema, type) and issubclass(tool.args_schema, RootModel):
        raise DefinitionError(NO_FIELDS.format(tool.name))
    schema = model_class.model_json_schema()
    # the title and the description are the tool's own
    return {key: schema[key] for key in schema if key not in ("title", "description")}


def _check_reached(tool: BaseTool, shown_names: Collection[str], injected: Collection[str]) -> None:
    """Raise DefinitionError for arguments that no call can pass. LangChain calls by the names of
    arguments, does not show a field whose `validation_alias` has another name, passes on none that
    the class does not dump under its own name, and fills in some names itself."""
    cls = tool.args_schema
    names = set(shown_names)
    if isinstance(cls, type) and issubclass(cls, BaseModel):
        _check_fields(tool, cls, shown_names, injected)
        names |= cls.model_fields.keys() - set(injected)
    parameters = inspect.signature(_function_of(tool)).parameters
    filled_name = next(iter(sorted(names & _filled_in(tool, parameters))), None)
    if filled_name is not None:
        raise DefinitionError(
            f"tool '{tool.name}': LangChain fills in {filled_name!r} itself and ignores what was "
            "sent: rename the argument, or leave it out of the args_schema"
        )
    if isinstance(tool, PlainLangChainTool):  # passes its one string by position
        return
    kinds = {name: parameter.kind for name, parameter in parameters.items()}
    hidden = next((name for name in _HIDDEN if name in kinds and f"v__{name}" in shown_names), None)
    if hidden is not None:
        raise DefinitionError(
            f"tool '{tool.name}': LangChain passes no value to a parameter called {hidden!r}: "
            "rename it, or give the tool an args_schema"
        )
    takes_any_name = Parameter.VAR_KEYWORD in kinds.values()
    for name in shown_names:
        kind = kinds.get(name)
        is_positional = kind is Parameter.VAR_POSITIONAL and not takes_any_name
        if is_positional or kind is Parameter.POSITIONAL_ONLY:
            raise DefinitionError(
                f"tool '{tool.name}': LangChain gives arguments by name, which {name!r} cannot take"
            )


def _check_fields(
    tool: BaseTool, cls: type[BaseModel], shown_names: Collection[str], injected: Collection[str]
) -> None:
    by_alias = cls.model_config.get("serialize_by_alias")
    for name, field in cls.model_fields.items():
        if field.is_required() and name not in shown_names and name not in injected:
            raise DefinitionError(
                f"tool '{tool.name}': its args_schema requires '{name}', which LangChain does "
                "not show to a model: use alias= instead of validation_alias="
            )
        if field.exclude or (by_alias and field.serialization_alias not in (None, name)):
            raise DefinitionError(
                f"tool '{tool.name}': LangChain passes on the fields that its args_schema "
                "dumps, and these do not include"
                f" '{name}' (exclude=True, or serialize_by_alias)"
            )


def _filled_in(tool: BaseTool, parameters: Mapping[str, Parameter]) -> set[str]:
    """Return the names that LangChain fills in when it calls a tool's function, or keeps for itself."""
    function = _function_of(tool)
    hints = read_hints(function, tool.name, {}, lenient=True)
    filled = {name for name, hint in hints.items() if hint is RunnableConfig}
    run_method = type(tool)._run if _is_sync(tool) else type(tool)._arun  # noqa: SLF001
    if function is run_method:
        return filled | ({"run_manager"} & parameters.keys())
    run_parameters = inspect.signature(run_method).parameters.values()
    kept_names = {parameter.name for parameter in run_parameters if parameter.kind not in _SPREAD}
    return filled | kept_names | ({"callbacks"} & parameters.keys())


class _InjectedArguments(NamedTuple):
    """Holds, by name, the functions that make each argument that no model sends.

    `needs_call` says that one of them is the id of the call, which LangChain takes from a whole
    call.
    """

    made_by: Injected
    needs_call: bool


def _injected_arguments(tool: BaseTool, inject: Injected) -> _InjectedArguments:
    kinds = _injected_kinds(tool)
    missing = [n for n, kind in kinds.items() if kind == "other" and n not in inject]
    unknown = [n for n in inject if n not in kinds]
    if unknown:
        raise DefinitionError(f"tool '{tool.name}': inject names {unknown[0]!r}, which it does not")
    if missing:
        raise DefinitionError(
            f"tool '{tool.name}' takes {', '.join(missing)}, which LangGraph injects: say "
            f"what to pass, inject={{{missing[0]!r}: lambda context: …}}"
        )
    defaults = {
        n: _PROVIDED[kind] for n, kind in kinds.items() if kind != "other" and n not in inject
    }
    needs_call = any(kinds[n] == "call id" for n in defaults)
    return _InjectedArguments({**inject, **defaults}, needs_call)


def _injected_kinds(tool: BaseTool) -> dict[str, _Kind]:
    """Return the parameters of a tool that LangChain fills in, according to its function or its
    schema."""
    kinds_by_name: dict[str, _Kind] = {}
    for source in (_function_of(tool), tool.args_schema):
        if source is None or isinstance(source, dict):
            continue
        for name, hint in read_hints(source, tool.name, {}, lenient=True).items():
            kind = _kind(hint)
            if kind is not None:
                kinds_by_name[name] = kind
    return kinds_by_name


def _function_of(tool: BaseTool) -> Callable[..., Any]:
    function: Callable[..., Any] | None = getattr(tool, "func", None) or getattr(
        tool, "coroutine", None
    )
    if function is not None:
        return function.func if isinstance(function, partial) else function
    return type(tool)._run if _is_sync(tool) else type(tool)._arun  # noqa: SLF001  like BaseTool


def _kind(hint: Any) -> _Kind | None:
    marks: list[Any] = [hint, get_origin(hint)]
    if get_origin(hint) is Annotated:
        marks = list(get_args(hint))
    kinds = [mark if isinstance(mark, type) else type(mark) for mark in marks]
    if any(issubclass(kind, ToolRuntime) for kind in kinds):
        return "runtime"
    if any(issubclass(kind, InjectedToolCallId) for kind in kinds):
        return "call id"
    return "other" if any(issubclass(kind, InjectedToolArg) for kind in kinds) else None


def _is_sync(tool: BaseTool) -> bool:
    """Return whether LangChain would run it in a thread. Then the runner does so instead, and knows
    about it."""
    if isinstance(tool, StructuredTool | PlainLangChainTool):
        return tool.coroutine is None
    return type(tool)._arun is BaseTool._arun  # noqa: SLF001  there is no other way to know


def _handler(
    tool: BaseTool,
    injected: _InjectedArguments,
    reader: ArgsReader | None,
    read_result: Callable[[Any], Any],
    *,
    own: bool,
) -> Callable[..., Any]:
    """Return the function that a runner calls. If the tool is not our `own`, its error texts are
    for the model alone, since nobody has read them."""
    strict_tool = tool
    if tool.handle_tool_error or tool.handle_validation_error:  # else errors would be results
        unhandled = {"handle_tool_error": False, "handle_validation_error": False}
        strict_tool = tool.model_copy(update=unhandled)
    as_tool_call = injected.needs_call or tool.response_format == "content_and_artifact"
    config: RunnableConfig = {"callbacks": []}  # callbacks would get all arguments

    def asked(arguments: dict[str, Any], context: CallContext) -> dict[str, Any]:
        injected_values = {n: make(context) for n, make in injected.made_by.items()}
        read_arguments = arguments.get(_READ)
        if reader is not None and isinstance(read_arguments, ReadArguments):
            passed = reader.passed_on(read_arguments, injected_values, context.call_id)
        else:
            passed = arguments | injected_values
        if not as_tool_call:
            return passed
        return {"type": "tool_call", "name": tool.name, "id": context.call_id, "args": passed}

    def call(toolcrib_context: CallContext, **arguments: Any) -> Any:
        with tracing_context(enabled=False):
            try:
                result = strict_tool.invoke(asked(arguments, toolcrib_context), config)
                return _result(tool, result, read_result, own)
            except ToolException as raised:
                raise _tool_error(tool, raised, own) from raised

    async def acall(toolcrib_context: CallContext, **arguments: Any) -> Any:
        with tracing_context(enabled=False):
            try:
                result = await strict_tool.ainvoke(asked(arguments, toolcrib_context), config)
                return _result(tool, result, read_result, own)
            except ToolException as raised:
                raise _tool_error(tool, raised, own) from raised

    return call if _is_sync(tool) else acall


def _runtime(context: CallContext) -> ToolRuntime[Any, Any]:
    return ToolRuntime(
        state={},
        context=None,
        config={},
        stream_writer=context.progress,
        tool_call_id=context.call_id,
        store=None,
    )


_PROVIDED: Mapping[_Kind, Callable[[CallContext], Any]] = {
    "call id": lambda context: context.call_id,
    "runtime": _runtime,
}


def _result(tool: BaseTool, returned: Any, read_content: Callable[[Any], Any], own: bool) -> Any:
    if not isinstance(returned, ToolMessage):
        values = returned if isinstance(returned, list) else [returned]
        if any(isinstance(value, ToolOutputMixin) for value in values):
            raise TypeError(_NOT_HERE)
        return read_content(returned)
    if returned.status == "error":
        raise _refusal(returned.text, own)
    content = read_content(returned.content)
    if tool.response_format != "content_and_artifact":
        return content
    tool_content = ToolContent.of(content)
    result = WithArtifact(content if tool_content is None else None)
    result._artifact = returned.artifact  # noqa: SLF001  our own class
    return result if tool_content is None else ToolContent(result, tool_content.parts)


def _tool_error(tool: BaseTool, raised: ToolException, own: bool) -> ToolError:
    """Return what the model reads of an error, according to the tool's own settings."""
    handler: Any = tool.handle_tool_error
    text = handler(raised) if callable(handler) else handler
    return _refusal(text if isinstance(text, str) else str(raised), own)


def _refusal(text: str, own: bool) -> ToolError:
    return ToolError(text) if own else ToolError(_REFUSED, model_text=text)
