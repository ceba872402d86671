"""Google, NumPy and reST say the same thing."""

from __future__ import annotations

import random

import pytest

from toolcrib.schema import read_docstring

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
    description, parameters = read_docstring(text)
    assert description == "Book a table.\n\nIt is kept for 15 minutes: be there."
    assert parameters == {
        "place": "Where to\neat.",
        "seats": "How many: at least one.",
        "more": "Further wishes.",
    }


@pytest.mark.parametrize(
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
    ],
)
def test_what_else_people_write(
    text: str | None, description: str, parameters: dict[str, str]
) -> None:
    assert read_docstring(text) == (description, parameters)


@pytest.mark.parametrize(
    "text",
    ["x\n:param", "Sum.\n\nArgs:\n    a\n    b: y", "A\n::\n  :param\n  Returns:\n", "A\n:type a:"],
)
def test_what_cannot_be_read_is_a_description(text: str) -> None:
    description, parameters = read_docstring(text)
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
        description, parameters = read_docstring(text)
        assert isinstance(description, str)
        assert all(parameters.values())
