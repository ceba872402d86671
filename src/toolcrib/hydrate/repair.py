"""One repair of a call's arguments, and everything judged again.

What a repairer gives is nothing but another text: it goes the way of a text that a model sent, whole.
The call stays as the model sent it; both texts are kept, and who made the second. A cut call, one over
a limit and one whose tool is not known here are never repaired, and none is repaired twice.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import msgspec

from toolcrib.errors import ErrorCode, ToolcribError
from toolcrib.failures import log_raised
from toolcrib.hydrate.hydrate import hydrate
from toolcrib.tools import Catalog, Tools
from toolcrib.values.call import Hydrated, HydrationError, HydrationResult, Rejected, ToolCall
from toolcrib.values.definition import ToolDefinition
from toolcrib.values.json import JsonValue, encodable
from toolcrib.values.offer import Offer
from toolcrib.values.typed import names_wrong_types

_REPAIRABLE = frozenset((ErrorCode.INVALID_JSON, ErrorCode.INVALID_ARGUMENTS))
_INVALID_REPAIR = HydrationError(
    ErrorCode.INVALID_REPAIR.info.stage,
    ErrorCode.INVALID_REPAIR,
    ErrorCode.INVALID_REPAIR.info.text,
)
_NOTHING_USABLE = object()


class RepairRequest(msgspec.Struct, frozen=True):
    """A call that was rejected: as it was sent, the tool that it is for, and what is wrong with it."""

    call: ToolCall
    definition: ToolDefinition
    errors: tuple[HydrationError, ...]


@runtime_checkable
class Repairer(Protocol):
    """Makes another text of the arguments of a rejected call; `name` says in the records who did.

    None: there is nothing that it can mend. What it raises ends as `invalid_repair`, and its text is
    told to nobody.
    """

    @property
    def name(self) -> str: ...

    async def __call__(self, request: RepairRequest, /) -> str | None: ...


@names_wrong_types
def check_repairer(repairer: object) -> str:
    """Its name, as records have it. Raises ToolcribError for what can be told to be no repairer.

    A function is none, for want of a `name`; nor is what answers without `async`: while it asked
    somebody, everything else in the event loop would wait.
    """
    if isinstance(repairer, type):
        raise ToolcribError(f"a repairer is an object, not a class: {repairer.__name__}(…)")
    kind = type(repairer)
    try:
        name = getattr(repairer, "name", None)
    except Exception:  # noqa: BLE001  a property of others; its text may say anything
        name = None
    if not callable(repairer) or not isinstance(name, str):
        raise ToolcribError(
            "a repairer has a `name` and is called as async (RepairRequest) -> str | None; "
            f"this is none: {kind.__name__}"
        )
    function = inspect.unwrap(kind.__call__)
    if inspect.isfunction(function) and not inspect.iscoroutinefunction(function):
        raise ToolcribError(f"a repairer is async: {kind.__name__}.__call__ is a plain function")
    return encodable(name)


@names_wrong_types
def repairable(result: HydrationResult) -> bool:
    """Whether the arguments are at fault: their form, or what they hold. Nothing else is repaired."""
    return (
        isinstance(result, Rejected)
        and result.call.complete
        and result.definition is not None
        and not result.provenance.repaired
        and result.errors[0].code in _REPAIRABLE
    )


@names_wrong_types
async def repair(
    rejected: Rejected,
    offered: Offer | Catalog | Tools,
    repairer: Repairer,
    *,
    pinned: Mapping[str, JsonValue] | None = None,
) -> HydrationResult:
    """Repair a rejected call once, and judge what comes of it as if it had been sent.

    A call that is not `repairable`, or that the repairer finds nothing to mend in, comes back as it
    was. A repair that fails is a `Rejected` with `invalid_repair` first, then what is still wrong.
    Raises CancelledError, ToolcribError for what is no repairer, and nothing that one raises.
    """
    name = check_repairer(repairer)
    definition = rejected.definition
    if definition is None or not repairable(rejected):
        return rejected
    started = time.perf_counter()
    text = await _text_of(repairer, RepairRequest(rejected.call, definition, rejected.errors))
    if text is None:
        return rejected
    if not isinstance(text, str):
        judged: HydrationResult = rejected
        provenance = rejected.provenance
    else:
        text = str.__str__(text)  # a subclass of text may do as it likes
        judged = hydrate(
            msgspec.structs.replace(rejected.call, arguments=text), offered, pinned=pinned
        )
        provenance = msgspec.structs.replace(
            judged.provenance,
            arguments=rejected.provenance.arguments,
            repaired=True,
            repaired_arguments=text,
        )
    seconds = rejected.provenance.seconds + time.perf_counter() - started
    provenance = msgspec.structs.replace(provenance, repaired_by=name, seconds=seconds)
    if isinstance(judged, Hydrated):
        return msgspec.structs.replace(judged, call=rejected.call, provenance=provenance)
    # the place of a fault in a text that it has never seen would not help a model
    unread = judged.provenance.sent is None
    said = rejected if unread else judged
    errors = (_INVALID_REPAIR, *said.errors)
    return Rejected(rejected.call, errors, provenance, definition, said.retryable)


async def _text_of(repairer: Repairer, request: RepairRequest) -> object:
    """What the repairer gives, whatever it is; `_NOTHING_USABLE` if it raised."""
    try:
        return await repairer(request)
    except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit) as error:
        error.__cause__ = error.__context__ = None  # they may hold the arguments
        raise
    except BaseException as raised:  # noqa: BLE001  others' code; its text may hold the arguments
        log_raised(f"the repairer '{repairer.name}'", raised)
        return _NOTHING_USABLE
