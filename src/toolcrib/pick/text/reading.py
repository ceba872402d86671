"""What part of a text an embedder can read: a model knows the words of some languages only.

Rule: only the embedder knows; one that does not say reads all.
"""

from __future__ import annotations

from toolcrib.errors import PickError
from toolcrib.pick.text.words import clip

_FOREIGN = 0.1


def legible(text: str) -> float:
    """What part of a text a model made for English reads, 0.1 to 1.

    A letter that is not Latin counts a tenth: such a model knows it by itself, not in its word.
    """
    if text.isascii():
        return 1.0
    letters = [c for c in clip(text) if c.isalpha()]
    latin = sum(c < "\u0250" or "\u1e00" <= c <= "\u1eff" for c in letters)
    return (latin + _FOREIGN * (len(letters) - latin)) / len(letters) if letters else 1.0


def part_read(embedder: object, text: str, name: str) -> float:
    """What the embedder's `reads` says of a text, 0..1; 1 without one.

    Raises PickError, naming the embedder, where that raises or is no such number.
    """
    reads = getattr(embedder, "reads", None)
    if not callable(reads):
        return 1.0
    try:
        part = float(reads(text))
    except Exception as error:
        raise PickError(f"embedder {name}: reads raised {type(error).__name__}") from error
    if not 0 <= part <= 1:
        raise PickError(f"embedder {name}: reads gave {part}, not a part in 0..1")
    return part
