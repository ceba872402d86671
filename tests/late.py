"""Import what takes a second only once something of it is used.

Each process of a run imports all test files, and runs the tests of some of them. `importlib.util` has
a lazy loader, too, but reads a module as soon as pytest asks whether it is a class.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SLOW = ("anthropic", "google.genai", "litellm", "openai")


class Unread(ModuleType):
    """A module until one of its names is asked for."""

    def __getattr__(self, name: str) -> Any:
        spec = self.__spec__
        if name.startswith("_") or spec is None:
            raise AttributeError(name)
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec.loader = self.__loader__ = spec.loader_state
        spec.loader_state.exec_module(self)
        sys.modules[spec.name] = sys.modules.pop(spec.name)  # after its own, as `import` has it
        return getattr(self, name)


class ReadsLate(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Unread(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave it to whoever asks for a name of the module."""


class FindsSlow:
    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path, target) if name in SLOW else None
        if found is not None:
            found.loader_state, found.loader = found.loader, ReadsLate()
        return found


def import_slow_ones_late() -> None:
    sys.meta_path.insert(0, FindsSlow)
