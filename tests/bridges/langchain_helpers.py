"""A model that says what it was given to say, and graphs with it: LangChain's own, and one by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

ASKED = {"messages": [("user", "Please do.")]}


class ScriptedModel(BaseChatModel):
    """Says one reply after the other; which is next is in the conversation. `offered` are the tools."""

    replies: list[AIMessage]
    offered: list[Any]

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> ChatResult:
        said = sum(isinstance(message, AIMessage) for message in messages)
        return ChatResult(generations=[ChatGeneration(message=self.replies[said])])

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> ScriptedModel:
        self.offered[:] = tools
        return self

    @property
    def _llm_type(self) -> str:
        return "scripted"


def asks(name: str, id: str = "call_0", /, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, args=arguments, id=id, type="tool_call")


def reply(*calls: ToolCall, **metadata: Any) -> AIMessage:
    return AIMessage("" if calls else "Done.", tool_calls=list(calls), response_metadata=metadata)


def model(*replies: AIMessage) -> ScriptedModel:
    return ScriptedModel(replies=[*replies, reply()], offered=[])


def agent(tools: Sequence[BaseTool], *replies: AIMessage, saver: Any = None) -> Any:
    """Return an agent, which makes each call in a step of its own."""
    return create_agent(model(*replies), list(tools), checkpointer=saver)


def tool_node(tools: Sequence[BaseTool], *replies: AIMessage, saver: Any = None) -> Any:
    """Return a graph that makes all calls of a reply in one step."""
    scripted = model(*replies)

    def say(state: MessagesState) -> dict[str, Any]:
        return {"messages": [scripted.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", say)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


def thread(id: str = "thread_1", **configurable: Any) -> Any:
    return {"configurable": {"thread_id": id, **configurable}}


def told(result: Any) -> list[Any]:
    """Return the messages of tools."""
    return [message for message in result["messages"] if message.type == "tool"]
