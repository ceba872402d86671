"""What lowering is about: the dialect of JSON Schema that an endpoint takes, and what a view loses.

The author's schema is never changed. A view of it is a fresh object, made for one dialect; it comes
with a list of what it no longer says, and with the way back for arguments that were made for it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import msgspec

from toolcrib.values.json import JsonObject
from toolcrib.values.offer import WayBack

Effect: TypeAlias = Literal["refused", "lost", "doubtful"]


class Loss(NamedTuple):
    """What a view cannot say, or not in the same way.

    `pointer` is a JSON Pointer into the author's schema; `keyword` is the keyword there. `refused`:
    the endpoint would refuse the tool. `lost`: the model is told less than the schema says, which
    still judges the arguments. `doubtful`: it works, and may surprise.
    """

    pointer: str
    keyword: str
    effect: Effect
    message: str


class Lowered(NamedTuple):
    """A view; `way_back` is None where whatever fits the view is sent as the author wants it."""

    schema: JsonObject
    losses: tuple[Loss, ...]
    way_back: WayBack | None = None


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """What an endpoint takes of JSON Schema, as data; None for a set means everything.

    `keywords` and `formats` are those it keeps. `refs`: `any` local one, only `#` and `#/$defs/x`
    (`plain`), or `none` (they are inlined, recursion to `unroll` levels). `closed`: every object is
    closed and every property required, what is optional being nullable (OpenAI's strict mode).
    `root_union`: whether the top may have `anyOf`, `oneOf` or `allOf`. `one_of`: whether `oneOf`
    is known; else it becomes `anyOf`. Schemas over `compact_over` bytes of JSON are shortened.
    """

    name: str
    keywords: frozenset[str] | None = None
    formats: frozenset[str] | None = None
    refs: Literal["any", "plain", "none"] = "any"
    ref_siblings: bool = True
    unroll: int = 3
    closed: bool = False
    root_union: bool = True
    one_of: bool = True
    max_depth: int | None = None
    max_properties: int | None = None
    compact_over: int | None = None
