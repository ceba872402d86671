"""Google, NumPy and reST say the same thing."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import pytest
from rows import each_row

from toolcrib.schema import read_docstring
from toolcrib.schema.docstring import MAX_CHARS, class_doc

GOOGLE = """Book a table.

    It is kept for 15 minutes: be there.

    Args:
        place (str): Where to
            eat.
        seats: How many: at least one.
        *more: Further wishes.

    Returns:
        int: The number of the booking.

    Raises:
        ValueError: If it is closed.
    """
NUMPY = """Book a table.

    It is kept for 15 minutes: be there.

    Parameters
    ----------
    place : str
        Where to
        eat.
    seats : int, optional
        How many: at least one.
    *more
        Further wishes.

    Returns
    -------
    int
        The number of the booking.
    """
REST = """Book a table.

    It is kept for 15 minutes: be there.

    :param str place: Where to
        eat.
    :param seats: How many: at least one.
    :type seats: int
    :param *more: Further wishes.
    :returns: The number of the booking.
    :raises ValueError: If it is closed.
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_the_three_styles(text: str) -> None:
    description, parameters, _ = read_docstring(text)
    assert description == "Book a table.\n\nIt is kept for 15 minutes: be there."
    assert parameters == {
        "place": "Where to\neat.",
        "seats": "How many: at least one.",
        "more": "Further wishes.",
    }


@each_row(
    ("text", "description", "parameters"),
    [
        (None, "", {}),
        ("", "", {}),
        ("  \n\t\n", "", {}),
        ("One line.", "One line.", {}),
        ("  One line.  ", "One line.", {}),
        ("Look: a colon.", "Look: a colon.", {}),
        ("First\nsecond.", "First\nsecond.", {}),
        ("\n    Args:\n        a: The a.\n    ", "", {"a": "The a."}),
        ("Sum.\n\nAttributes:\n    a: The a.", "Sum.", {"a": "The a."}),
        (
            "Sum.\n\n    Parameters\n    ----------\n    x, y : float\n        Where.",
            "Sum.",
            {"x": "Where.", "y": "Where."},
        ),
        ("Sum.\n\nArgs:\n    a: The a.\n    b:", "Sum.", {"a": "The a."}),
        ("Sum.\n\nExample:\n    look(1)\n", "Sum.", {}),
        (
            "Sum.\n\nArgs:\t\n    élan, *ß: How.\n  it: Which.\n\nMore.",
            "Sum.\n\nMore.",
            {"élan": "How.", "ß": "How.", "it": "Which."},
        ),
        ("Sum.\n\nArgs:\n    a ({x: y}): The a.\n    b): The b.", "Sum.", {"a": "The a."}),
        ("Sum.\n\tMore.\n\n\tArgs:\n\t\ta: The\n\t\t  a.", "Sum.\nMore.", {"a": "The\na."}),
    ],
)
def test_what_else_people_write(
    text: str | None, description: str, parameters: dict[str, str]
) -> None:
    assert read_docstring(text)[:2] == (description, parameters)


@pytest.mark.parametrize(
    "text",
    ["x\n:param", "Sum.\n\nArgs:\n    a\n    b: y", "A\n::\n  :param\n  Returns:\n", "A\n:type a:"],
)
def test_what_cannot_be_read_is_a_description(text: str) -> None:
    description, parameters, _ = read_docstring(text)
    assert description.startswith(text[0])
    assert parameters in ({}, {"b": "y"})


PIECES = [
    "Args:", "Parameters", "----------", ":param", "a:", "\n", "    ", "x (int)", ":", "Returns:",
    "-------", ":type a:", "**kw", "a, b : int", "Raises:", '"', "`", "Defaults to 3.", "Example:",
    ">>> x", "::", "\t", "Attributes:", "Yields:", ".. deprecated:: 1", ":raises X:", ":rtype:",
    "@param x:", "Sum.", "{", "[int]", "(", "optional)",
]  # fmt: skip


def test_it_never_raises() -> None:
    dice = random.Random(1)  # noqa: S311  no secret is made of it
    for _ in range(1500):
        words = dice.choices(PIECES, k=dice.randint(1, 14))
        text = "Doc\n" + "".join(word + dice.choice(["", " ", "\n", "\n    "]) for word in words)
        description, parameters, _ = read_docstring(text)
        assert isinstance(description, str)
        assert all(parameters.values())


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_what_is_returned(text: str) -> None:
    assert read_docstring(text).returns == "The number of the booking."


@each_row(
    ("text", "returns"),
    [
        ("Sum.\n\nReturns:\n    The total: all of it.", "The total: all of it."),
        ("Sum.\n\nReturns:\n    dict[str, int]: By name.", "By name."),
        ("Sum.\n\nReturns:\n    int | None: Or\n    nothing.", "Or\nnothing."),
        ("Sum.\n\nReturns:\n    A list.\n\n    Sorted.", "A list.\n\nSorted."),
        ("Sum.\n\nReturns\n-------\nint\n    The sum.\n\nRaises\n------\nX\n    No.", "The sum."),
        ("Sum.\n\nReturns\n-------\nint", ""),
        ("Sum.\n\n:return: The sum.\n:rtype: int", "The sum."),
        ("Sum.\n\nRaises:\n    X: No.", ""),
    ],
)
def test_returns_as_people_write_them(text: str, returns: str) -> None:
    assert read_docstring(text).returns == returns


def test_types_in_brackets_and_text_after_a_section() -> None:
    text = (
        "Sum.\n\nArgs:\n    a (dict[str, Callable[[int], str]], optional): The a.\n"
        "    b: With a list:\n        - one: 1\n        - two\n\nAnd so on.\n\nNote:\n    Kept."
    )
    description, parameters, _ = read_docstring(text)
    assert parameters == {"a": "The a.", "b": "With a list:\n- one: 1\n- two"}
    assert description == "Sum.\n\nAnd so on.\n\nNote:\n    Kept."


@each_row(
    "piece",
    ["a", " ", "(", "[", ":", "\n", ":param ", "Args:\n", "    x: y\n", "-", "A\n---\n", "a, ",
     "\n ", "    a (", "x[", "*", "a | ", "Returns:\n  a[", "\t", ":returns", "    " * 50 + "a\n"],
)  # fmt: skip
def test_a_hostile_docstring_is_read_up_to_a_limit(piece: str) -> None:
    """Twice as much of it takes no longer: no more is read, and each line once."""
    text = "Doc.\n\n" + piece * (100_000 // len(piece))
    found = read_docstring(text)
    assert found == read_docstring(text + piece * 100_000)
    assert len(found.description) <= MAX_CHARS


ROLES = """Check (that
:func:`normal` agrees with
:class:`Name`) first.

.. versionadded:: 1.2
   It was not there before.

:param str name: The name,
   as it is written.
:param limit:
   How many.
:type limit: int
:returns: Whether it is
   normal.

>>> normal("a")
True
"""


def test_a_role_at_the_start_of_a_line_is_no_field() -> None:
    """What stands in no field is description, to the letter."""
    described, parameters, returns = read_docstring(ROLES)
    assert parameters == {"name": "The name,\nas it is written.", "limit": "How many."}
    assert returns == "Whether it is\nnormal."
    assert described == (
        "Check (that\n:func:`normal` agrees with\n:class:`Name`) first.\n\n"
        '.. versionadded:: 1.2\n   It was not there before.\n\n>>> normal("a")\nTrue'
    )


@each_row(
    ("text", "parameters"),
    [
        ("A.\n\n:param x: One.\nand on.\n\nNo more.", {"x": "One.\nand on."}),
        ("A.\n\n:param x: One.\n\n   Two.\n\nNo more.", {"x": "One.\n\nTwo."}),
        ("A.\n\n:param x:One.", {}),
        ("A.\n\n:keyword x: One.\n:arg y: Two.", {"x": "One.", "y": "Two."}),
        ("A.\n\n:paramount x: One.\n:meth:`f` does.", {}),
        (":param x: One.", {}),
        (":param x: One.\n:param y: Two.", {"x": "One.", "y": "Two."}),
        ("A.\n\n:returns: One.\n:return: Two.\n:rtype: int", {}),
    ],
)
def test_what_is_a_field(text: str, parameters: dict[str, str]) -> None:
    assert read_docstring(text).parameters == parameters


@dataclass
class Silent:
    x: int


class Tuple(NamedTuple):
    x: int


@dataclass
class Speaking:
    """Speak."""

    x: int


@pytest.mark.parametrize(("cls", "doc"), [(Silent, None), (Tuple, None), (Speaking, "Speak.")])
def test_a_generated_docstring_is_none(cls: type, doc: str | None) -> None:
    assert class_doc(cls) == doc


def test_what_is_no_text_is_no_docstring() -> None:
    assert read_docstring(5) == read_docstring(None)
