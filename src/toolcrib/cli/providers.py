"""`toolcrib providers`: what can be asked of each provider, from its own encoder."""

from __future__ import annotations

from rich.table import Table

from toolcrib.cli.options import JsonOption
from toolcrib.cli.render import out, print_json
from toolcrib.wire import WIRES, abilities

HEADINGS = {
    "none": "no tool",
    "required": "any tool",
    "one_tool": "one tool",
    "some_tools": "some tools",
    "one_call": "one call",
    "images": "images",
    "image_urls": "image URLs",
    "marks_errors": "errors",
    "strict": "strict",
    "typed": "typed",
}


_NARROW = 80  # a narrower table would cut its words


def rows() -> list[list[str]]:
    """For each wire its name and, in the order of HEADINGS, what it can be asked."""
    return [[name, *(_word(value) for value in abilities(wire))] for name, wire in WIRES.items()]


def _word(value: str | bool) -> str:
    return value if isinstance(value, str) else ("no", "yes")[value]


def providers(*, as_json: JsonOption = False) -> None:
    """Show what can be asked of each provider, as its own encoder says.

    Of the choices, `fewer` means that only those tools are sent that may be called. `one call`: a reply
    can be kept to one. `errors`: a failed result is marked as such. What is `no` among choices,
    calls and images is refused before anything is sent. `typed`: a typed answer's schema is sent in the
    provider's own form, `alone` only in requests without tools.
    """
    if as_json:
        print_json({name: abilities(wire)._asdict() for name, wire in WIRES.items()})
        return
    if out.width < _NARROW:
        for name, *words in rows():
            told = zip(HEADINGS.values(), words, strict=True)
            out.print(f"{name}: {', '.join(f'{heading} {word}' for heading, word in told)}")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(no_wrap=True)
    for heading in HEADINGS.values():
        table.add_column(heading.replace(" ", "\n"))  # else rich would cut other words
    for row in rows():
        table.add_row(*row)
    out.print(table)
