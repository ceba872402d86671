"""Handing over: another agent continues the conversation, in the same run.

Rule: a run is one run, whoever speaks in it. Its spending, what it has read, the caller and the
approvals carry over; the strictest limits of all speakers hold. A handover is a call like any
other, decided on and recorded. It takes effect when every call of its reply has its result, and is
read from the conversation, so that a run resumed elsewhere knows it, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Protocol, TypedDict, TypeVar
from weakref import WeakSet

import msgspec

from toolcrib.agent.history import last_calls_and_results
from toolcrib.agent.saved import changed
from toolcrib.errors import CatalogError, ErrorCode, SourceError, Stage, ToolcribError
from toolcrib.tools import Catalog, Tool, tool
from toolcrib.values.call import Hydrated, HydrationError, HydrationResult, Rejected
from toolcrib.values.definition import ALL
from toolcrib.values.message import Message, ToolChoice
from toolcrib.values.run import Limits, RunState

_PREFIX = "hand_over_to_"
_MAX_NAME = 64 - len(_PREFIX)  # OpenAI takes no longer tool names
_HANDOVER_TOOLS: WeakSet[Tool[..., Any]] = WeakSet()
_SECOND_HANDOVER = "A reply can hand the conversation over only once: this was its second handover."


class HandsOver(Protocol):
    """What handing over needs of an agent; `handovers` are agents, or names in the run."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def handovers(self) -> tuple[Any, ...]: ...


A = TypeVar("A", bound=HandsOver)


class NextSpeaker(TypedDict):
    agent: str


Reason = Annotated[str, "Why, in a sentence. Whoever goes on has read all that was said."]


def handover_name(agent: str) -> str:
    """Return the name of the tool that hands over to the agent of this name.

    Raises ToolcribError for a name without an ASCII letter or digit, or with too many.
    """
    slug = re.sub(r"[^a-z0-9]+", "_", agent.lower()).strip("_")
    if not slug or len(slug) > _MAX_NAME:
        raise ToolcribError(
            f"agent {agent!r}: an agent that takes handovers needs a name= of at most {_MAX_NAME}"
            " characters, with a letter or a digit of ASCII"
        )
    return _PREFIX + slug


def handover_tools(handovers: Iterable[HandsOver | str]) -> Catalog:
    """Return the tools by which a model hands over to each of these agents."""
    tools = [
        _tool(each, "") if isinstance(each, str) else _tool(each.name, each.description)
        for each in handovers
    ]
    return Catalog(tools, source="handovers=")


def is_handover(tool: Tool[..., Any]) -> bool:
    """Return whether a tool is one of these, not an author's tool with such a name."""
    return tool in _HANDOVER_TOOLS


def _tool(agent: str, purpose: str) -> Tool[..., Any]:
    sentence = f"Hand the conversation over to '{agent}', who goes on with it in your place."

    @tool(
        visible=ALL,
        read_only=True,
        idempotent=True,
        name=handover_name(agent),
        description=f"{sentence} {purpose}".strip(),
    )
    async def hand_over(reason: Reason) -> NextSpeaker:
        del reason
        return {"agent": agent}

    _HANDOVER_TOOLS.add(hand_over)
    return hand_over


def checked_handovers(handovers: object) -> tuple[Any, ...]:
    """Return agents and names of agents. Raises TypeError for anything else."""
    listed = (
        tuple(handovers)
        if isinstance(handovers, Sequence) and not isinstance(handovers, str)
        else None
    )
    if listed is None or not all(
        isinstance(each, str) or hasattr(each, "handovers") for each in listed
    ):
        raise TypeError("handovers= is a list of Agents, or of names of Agents")
    return listed


def check_handovers(agent: HandsOver) -> None:
    """Raise ToolcribError for handovers that no agent can have."""
    own_tool = handover_name(agent.name)
    names = [each if isinstance(each, str) else each.name for each in agent.handovers]
    if own_tool in map(handover_name, names):
        raise ToolcribError(
            f"agent '{agent.name}' hands over to itself, or to an agent of its name"
        )
    names_by_tool: dict[str, str] = {}
    for name in names:
        other = names_by_tool.get(handover_name(name))
        if other is not None:
            clash = f"'{name}' twice" if name == other else f"'{other}' and '{name}'"
            raise ToolcribError(
                f"handovers= of agent '{agent.name}' has {clash}, which would be the same tool: list"
                " each agent once, by a name that differs from the others in a letter or digit"
            )
        names_by_tool[handover_name(name)] = name


def team_of(first: A) -> dict[str, A]:
    """Return the agents of a run that begins with `first`, by name: all that can be handed over to.

    Raises ToolcribError for two agents of one name.
    """
    team: dict[str, A] = {}
    tools: dict[str, A] = {}
    queue = [first]
    while queue:
        agent = queue.pop(0)
        namesake = tools.setdefault(handover_name(agent.name), agent)
        if namesake is not agent:
            pair = f"'{namesake.name}' and '{agent.name}'"
            raise ToolcribError(
                f"two agents of one run have names that are the same, or too much alike: {pair}"
            )
        if agent.name not in team:
            team[agent.name] = agent
            queue += [each for each in agent.handovers if not isinstance(each, str)]
    return team


def check_own_names(agent: str, names: Iterable[str], reserved: Mapping[str, str]) -> None:
    """Raise CatalogError if an agent's tool has a name that its run reserves.

    `reserved` maps each reserved name to the words for it.
    """
    for name in names:
        if name in reserved:
            raise CatalogError(
                f"agent '{agent}': its tool '{name}' has the name of {reserved[name]}: rename it"
            )


def check_resolved(team: Mapping[str, HandsOver]) -> None:
    """Raise ToolcribError if an agent hands over to a name that no agent of the run has."""
    for agent in team.values():
        for each in agent.handovers:
            if isinstance(each, str) and each not in team:
                raise ToolcribError(
                    f"agent '{agent.name}' hands over to '{each}', which is not an agent of"
                    f" this run ({', '.join(team)}): begin with an agent that leads to it"
                )


def targets_of(agent: HandsOver) -> dict[str, str]:
    """Return the agents that an agent may hand over to, by the names of the handover tools."""
    names = (each if isinstance(each, str) else each.name for each in agent.handovers)
    return {handover_name(name): name for name in names}


def handover_target(messages: Sequence[Message], handover_targets: Mapping[str, str]) -> str | None:
    """Return the agent that the last reply has handed over to, if all its calls have results.

    If there are several handovers, the first successful one counts.
    """
    calls, results = last_calls_and_results(messages)
    if not calls or any(call.id not in results for call in calls):
        return None
    succeeded = (call.name for call in calls if not results[call.id].is_error)
    return next((handover_targets[name] for name in succeeded if name in handover_targets), None)


def with_one_handover(
    calls: Sequence[HydrationResult], handover_targets: Mapping[str, str]
) -> list[HydrationResult]:
    """Return the calls of one reply, of which only the first handover can run."""
    results: list[HydrationResult] = []
    has_handed_over = False
    for call in calls:
        hands_over = isinstance(call, Hydrated) and call.definition.name in handover_targets
        if hands_over and has_handed_over:
            error = HydrationError(Stage.RUN, ErrorCode.NOT_RUNNABLE, _SECOND_HANDOVER)
            results.append(Rejected(call.call, (error,), call.provenance, call.definition))
        else:
            results.append(call)
        has_handed_over = has_handed_over or hands_over
    return results


def over_limit(
    limits: Limits,
    speakers: Sequence[str],
    calls: Iterable[HydrationResult],
    handover_targets: Mapping[str, str],
) -> str | None:
    """Return the limit that keeps a run from one more handover, if these calls have one."""
    if limits.handovers is None or len(speakers) <= limits.handovers:
        return None
    has_handover = any(
        isinstance(call, Hydrated) and call.definition.name in handover_targets for call in calls
    )
    return "handovers" if has_handover else None


def strictest(limits: Iterable[Limits]) -> Limits:
    """Return the limits that satisfy all of these."""
    all_limits = list(limits)
    minimums: dict[str, Any] = {}
    for name in Limits.__struct_fields__:
        values = (getattr(one, name) for one in all_limits)
        minimums[name] = min((value for value in values if value is not None), default=None)
    return Limits(**minimums)


def within_catalog(choice: ToolChoice | None, catalog: Catalog) -> ToolChoice | None:
    """Return a choice of tools restricted to another agent's tools: it allows nothing more."""
    if choice is None or not choice.allowed:
        return choice
    allowed = tuple(name for name in choice.allowed if name in catalog)
    return msgspec.structs.replace(choice, allowed=allowed) if allowed else ToolChoice("none")


def check_speakers(state: RunState, team: Mapping[str, Mapping[str, str]]) -> None:
    """Raise SourceError if the speakers of a saved run contradict the team or the run's records.

    Each speaker must have been handed over to by the one before, and the last must have asked for
    what waits. `team` maps each agent to its handover targets, the first agent first. If no speaker is
    named, the first agent has spoken alone, whatever its name was then.
    """
    speakers = state.speakers
    for name in speakers:
        if name not in team:
            raise SourceError(
                f"the run was handed over to '{name}', but this agent does not lead to it; it leads"
                f" to: {', '.join(team)}"
            )
    tools = {
        tool: name for handover_targets in team.values() for tool, name in handover_targets.items()
    }
    handovers = [
        each for each in state.records if each.status == "completed" and each.name in tools
    ]
    last = next(
        (m.tool_calls for m in reversed(state.messages) if m.role == "assistant"),
        (),
    )
    if handovers and state.pending and any(call.id == handovers[-1].id for call in last):
        handovers.pop()  # it waits for the other calls of its reply
    if [tools[each.name] for each in handovers] != list(speakers[1:]):
        raise changed("speakers", "the records of the run have other handovers")
    agents = [each.origin.agent for each in state.records if each.origin is not None]
    asking_agent = None if state.origin is None else state.origin.agent
    if not speakers:
        if {asking_agent, *agents} & {*list(team)[1:]}:
            raise changed("speakers", "another agent has spoken in the run")
        return
    if (agents and agents[0] != speakers[0]) or not {*agents} <= {*speakers}:
        raise changed("speakers", "a call of the run was made by another agent")
    if state.pending and asking_agent is not None and asking_agent != speakers[-1]:
        raise changed("speakers", "the calls that wait were made by another agent")
