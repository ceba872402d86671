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

    `keywords` and `formats` are those it keeps: what can be said with the kept ones is (`oneOf` as
    `anyOf`, `const` as `enum`, `allOf` merged), the rest moves into descriptions where it can.
    `root_without`: keywords that the top may not have; a top that needs one is wrapped in a
    property. `refs`: `any` local one, only `#` and `#/$defs/x` (`plain`), or `none` (they are
    inlined, recursion to `unroll` levels). `ref_siblings`: whether `$ref` may have neighbours.
    `closed`: every object is closed and every part typed, and what cannot be is refused, recursion
    that would be cut too; `all_required`: every property is required besides, what is optional
    being nullable. `booleans`: whether `true` and `false` are known as schemas.
    `need_items`: whether an array must say its items. `lookaround`: whether patterns may have it.
    `property_names`: a pattern for the names at the top. `max_…` limit the whole view; `max_names`
    is in characters, of property and definition names, enum and const values; `max_long_enum` too,
    of one enum of over 250 values. Schemas over `compact_over` bytes of JSON are shortened.
    """

    name: str
    keywords: frozenset[str] | None = None
    formats: frozenset[str] | None = None
    root_without: frozenset[str] = frozenset()
    refs: Literal["any", "plain", "none"] = "any"
    ref_siblings: bool = True
    unroll: int = 3
    closed: bool = False
    all_required: bool = False
    booleans: bool = True
    need_items: bool = False
    lookaround: bool = True
    property_names: str | None = None
    max_depth: int | None = None
    max_properties: int | None = None
    max_enum: int | None = None
    max_long_enum: int | None = None
    max_names: int | None = None
    compact_over: int | None = None
