"""An unknown option of an agent or a run is answered with whose option it is.

Agent, limits, runner and run have options of their own. Somebody who is new here looks for one in
the wrong place, or by the word of another library.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from inspect import signature
from typing import Literal

from toolcrib.errors import no_such
from toolcrib.runner import ToolRunner
from toolcrib.values.run import Limits, RunOptions

_OF_AGENTS = (
    "model",
    "tools",
    "instructions",
    "settings",
    "limits",
    "pick",
    "search_tools",
    "output",
    "name",
    "version",
    "record_prompts",
    "state_key",
    "durability",
    "context",
    "handovers",
    "description",
)
"""The parameters of `Agent` besides the options that it shares with its runs."""

_OF_RUNS = ("caller", "deps", "history")
_WORDS_ELSEWHERE = {
    "system": "instructions",
    "system_prompt": "instructions",
    "response_format": "output",
    "messages": "history",
    "user": "caller",
    "audit": "sinks",
    "max_steps": "max_turns",
    "max_iterations": "max_turns",
    "recursion_limit": "max_turns",
}
_WAYS_ELSEWHERE = {
    "memory": "a session keeps a conversation: agent.session()",
    "retries": "a client has it for requests, and Limits(corrections=…) for typed answers",
    "max_retries": "a client has it: OpenAIClient(model, retries=Retries(…))",
}
_LIKENESS = 0.7  # `policies` is meant for `policy`, and `role` not for `rules`


def check_options(owner: Literal["an agent", "a run"], options: Mapping[str, object]) -> None:
    """Raise TypeError for an option that is not one of `RunOptions`, which the model gets."""
    unknown = next((name for name in options if name not in RunOptions.__annotations__), None)
    if unknown is None:
        return
    own = [*(_OF_AGENTS if owner == "an agent" else _OF_RUNS), *RunOptions.__annotations__]
    meant = _WORDS_ELSEWHERE.get(unknown, unknown)
    if unknown in _WAYS_ELSEWHERE:
        raise TypeError(f"{owner} has no option {unknown!r}; {_WAYS_ELSEWHERE[unknown]}")
    limit = meant.removeprefix("max_")
    if limit in Limits.__struct_fields__ and unknown not in _OF_AGENTS:
        limits = f"limits=Limits({limit}=…)"
        agents = limits if owner == "an agent" else f"Agent(model, tools, {limits})"
        raise TypeError(
            f"{owner} has no option {unknown!r}; set it in the agent's limits: {agents}"
        )
    elsewhere = {
        **{name: _in_runner(name) for name in signature(ToolRunner).parameters},
        **{name: _in_agent(name) for name in _OF_AGENTS},
        **{name: f"each run has it: agent.run(prompt, {name}=…)" for name in _OF_RUNS},
        **{name: "" if meant == unknown else f"it is called {name!r}" for name in own},
    }
    matches = get_close_matches(meant, elsewhere, n=1, cutoff=_LIKENESS)
    if matches and elsewhere[matches[0]]:
        raise TypeError(f"{owner} has no option {unknown!r}; {elsewhere[matches[0]]}")
    raise TypeError(no_such("option", unknown, own))


def _in_runner(name: str) -> str:
    return f"its runner has {name!r}: Agent(model, ToolRunner(tools, {name}=…))"


def _in_agent(name: str) -> str:
    new = "agent.replace(" if name in ("model", "tools", "durability") else "Agent(model, tools, "
    return f"its agent has it: {new}{name}=…)"
