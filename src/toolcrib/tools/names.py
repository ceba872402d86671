"""Which names may stand in one catalog: each once, and no two that a reader or a model would confuse.

Two names are confused if they differ only in case, underscores, hyphens and dots (`getUser`,
`get_user`, `get-user`), which some wires replace, or only in characters that look alike: `I`, `1` and
`l`; `O`, `0` and `o`. An underscore between two digits counts,
since it separates numbers: `v1_1` is not `v11`. A small `i` is no `l`: `get_mail` is not `get_mall`.
"""

from __future__ import annotations

import re

from toolcrib.errors import CatalogError

_UNDERSCORES = re.compile(r"(?<![0-9_.-])[_.-]+|[_.-]+(?![0-9_.-])|(?<=[_.-])[_.-]+")
_SEPARATORS = str.maketrans("-.", "__")
_LOOKALIKES = str.maketrans("I10", "llo")


class Names:
    """The names that are taken, and from which source each came."""

    __slots__ = ("_seen", "_sources")

    def __init__(self) -> None:
        self._sources: dict[str, str] = {}
        self._seen: dict[str, str] = {}

    def take(self, name: str, source: str = "") -> None:
        """Raises CatalogError, naming both tools and their sources, for a name that is refused."""
        if name in self._sources:
            raise CatalogError(f"two tools are called '{name}'{self._both(name, source)}: {_MEND}")
        bare = _UNDERSCORES.sub("", name).translate(_SEPARATORS)
        for key in {bare.casefold(), bare.translate(_LOOKALIKES).casefold()}:
            other = self._seen.setdefault(key, name)
            if other != name:
                raise CatalogError(
                    f"'{name}' and '{other}' {_difference(name, other)}"
                    f"{self._both(other, source)}: {_MEND}"
                )
        self._sources[name] = source

    def _both(self, other: str, source: str) -> str:
        first = self._sources[other]
        if first == source:
            return f" (both from {source})" if source else ""
        return f" (from {source or 'the application'} and from {first or 'the application'})"


_MEND = "rename one, or use .prefixed()"


def _only_letters(name: str) -> str:
    return re.sub("[_.-]", "", name.casefold())


def _difference(name: str, other: str) -> str:
    if name.casefold() == other.casefold():
        return "differ only in case"
    if _only_letters(name) == _only_letters(other):
        return "differ only in case and underscores"
    return "look alike"
