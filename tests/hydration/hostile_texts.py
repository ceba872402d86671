"""Hostile argument texts of every kind, made from a seed: the test and the benchmark share them.

A maker is given dice and a size in characters, and gives a text of about that size, but for kinds
that are small by nature. `CODES` says how a call with such a text may end; None is a call that may run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable

from toolcrib.errors import ErrorCode

CANARY = "CANARY_h0st11e"
Maker = Callable[[random.Random, int], str]


def deep_lists(dice: random.Random, size: int) -> str:
    depth = min(size // 2, dice.choice([101, 150, 254, 255, 1024, 10**9]))
    return f'{{"a":{"[" * depth}{"]" * depth}}}'


def deep_objects(dice: random.Random, size: int) -> str:
    depth = min(size // 6, dice.choice([101, 254, 1024, 10**9]))
    return '{"a":' * depth + "1" + "}" * depth


def deep_and_wide(dice: random.Random, size: int) -> str:
    one = "[" * 99 + "]" * 99
    return f'{{"a":[{",".join([one] * max(1, size // 199))}]}}'


def open_only(dice: random.Random, size: int) -> str:
    return dice.choice(["[", '{"a":', '[{"a":', "{"]) * (size // 3)


def closed_only(dice: random.Random, size: int) -> str:
    return '{"a":1' + dice.choice(["]", "}", "]}"]) * size


def wide_list(dice: random.Random, size: int) -> str:
    return '{"a":[' + ",".join([dice.choice(["0", "[]", "{}", '""', "1e0"])] * (size // 2)) + "]}"


def wide_object(dice: random.Random, size: int) -> str:
    return '{"a":{' + ",".join(f'"{i}":0' for i in range(size // 8)) + "}}"


def undeclared(dice: random.Random, size: int) -> str:
    return "{" + ",".join(f'"{CANARY}{i}":0' for i in range(max(1, size // 22))) + "}"


def huge_integer(dice: random.Random, size: int) -> str:
    sign = dice.choice(["", "-"])
    return f'{{"a":{sign}{dice.randint(1, 9)}{"0" * max(41, dice.choice([41, 300, 4400, size]))}}}'


def huge_fraction(dice: random.Random, size: int) -> str:
    return f'{{"a":0.{"3" * size}{dice.choice(["", "e5", "E-400"])}}}'


def out_of_range(dice: random.Random, size: int) -> str:
    number = dice.choice(["1e400", "-1e309", "9" * 400 + ".0", "1e" + "9" * min(size, 5000)])
    return f'{{"a":[{number}]}}'


def many_numbers(dice: random.Random, size: int) -> str:
    return f'{{"a":[{",".join(["18446744073709551616"] * (size // 21))}]}}'


def not_finite(dice: random.Random, size: int) -> str:
    word = dice.choice(["NaN", "Infinity", "-Infinity", "nan", "-NaN", "inf"])
    return f'{{"a":[{"0," * (size // 2)}{word}]}}'


def lone_surrogate(dice: random.Random, size: int) -> str:
    half = dice.choice(
        ["\\ud800", "\\udfff", "\\ud800\\u0041", "\\udc00\\ud800", "\ud800", "\udfff"]
    )
    return f'{{"a":"{CANARY * (size // 14)}{half}"}}'


def not_utf8(dice: random.Random, size: int) -> str:
    """Bytes that are no UTF-8 reach a `str` as lone surrogates, by `surrogateescape`."""
    data = dice.randbytes(size) + b"\xff"
    return f'{{"a":"{data.decode("utf-8", "surrogateescape")}"}}'


def key_twice(dice: random.Random, size: int) -> str:
    other = dice.choice(['"a"', '"\\u0061"', ' "a" '])
    return f'{{"a":"{"x" * size}","n":{{"{CANARY}":1,"{CANARY}":2}},{other}:2}}'


def keys_over_and_over(dice: random.Random, size: int) -> str:
    return '{"a":{' + ",".join(['"a":1'] * max(2, size // 6)) + "}}"


def cut_anywhere(dice: random.Random, size: int) -> str:
    items = [{"id": i, "name": CANARY, "tags": ["x", None, 1.5]} for i in range(size // 60 + 1)]
    text = json.dumps({"a": items})
    return text[: dice.randrange(1, len(text))]


def one_byte_changed(dice: random.Random, size: int) -> str:
    text = json.dumps({"a": [{"id": i, "on": True} for i in range(size // 24 + 1)]})
    at = dice.randrange(len(text))
    return text[:at] + chr(dice.randrange(32)) + text[at + 1 :]


def noise(dice: random.Random, size: int) -> str:
    return "".join(dice.choices("{}[]\"',:\\/*#+-.eE0123456789 \n\ttrufalsn\x00é“”‘’`", k=size))


def quotes(dice: random.Random, size: int) -> str:
    parts = ["'", "''", "',", "'a',", "\\'", "'\"", "“", "“”", "‘", "'\n", '"\n"', '"\\\'",']
    part = dice.choice(parts)
    return "{'a': [" + part * (size // len(part)) + "]}"


def escapes(dice: random.Random, size: int) -> str:
    part = dice.choice(["\\", '\\"', '"\\', "\\u", "\\u00", "\\x41", "\\\n", "\\u0000"])
    return '{"a":"' + part * (size // len(part)) + '"}'


def comments(dice: random.Random, size: int) -> str:
    part = dice.choice(["/*", "*/", "/**/", "//", "//\n", "#", "#\n", "/*/"])
    return '{"a":1 ' + part * (size // len(part)) + "}"


def commas(dice: random.Random, size: int) -> str:
    parts = [",", ",]", "[,", ", }", ",,", "1,", "[1,],", ":", "a:", "a,", "True,", "{a:1,},"]
    part = dice.choice(parts)
    return '{"a":[' + part * (size // len(part)) + "]}"


def blanks(dice: random.Random, size: int) -> str:
    part = dice.choice([" ", "\n", "\t", "\xa0", "\ufeff", "\u2028", "\x0b", " a", "\xa0,"])
    return dice.choice(["{}{}", "{}", '{{"a":1,{}}}', '{{"a"{}:1}}']).replace("{}", part * size, 1)


def fences(dice: random.Random, size: int) -> str:
    part = dice.choice(["```", "```json\n", "{}", "a: ", "`", "text:\n", "x, "])
    return part * (size // len(part)) + '{"a": 1}'


def encoded_again(dice: random.Random, size: int) -> str:
    text = '{"a":1}'
    for _ in range(dice.randint(2, 12)):
        text = json.dumps(text)
    return text


def no_object(dice: random.Random, size: int) -> str:
    return dice.choice(["[" + "0," * (size // 2) + "0]", f'"{CANARY * (size // 14)}"', "1", "true"])


_JSON, _LARGE, _ARGUMENTS = (
    ErrorCode.INVALID_JSON,
    ErrorCode.TOO_LARGE,
    ErrorCode.INVALID_ARGUMENTS,
)
CODES: dict[Maker, set[ErrorCode | None]] = {
    deep_lists: {_LARGE, None},
    deep_objects: {_LARGE, None},
    deep_and_wide: {None},
    open_only: {_JSON, _LARGE},
    closed_only: {_JSON},
    wide_list: {None},
    wide_object: {None},
    undeclared: {_ARGUMENTS},
    huge_integer: {_LARGE},
    huge_fraction: {None},
    out_of_range: {_JSON},
    many_numbers: {None},
    not_finite: {_JSON},
    lone_surrogate: {_JSON},
    not_utf8: {_JSON},
    key_twice: {_JSON},
    keys_over_and_over: {_JSON},
    cut_anywhere: {_JSON},
    one_byte_changed: {_JSON, _ARGUMENTS, None},
    noise: {_JSON},
    quotes: {_JSON, None},
    escapes: {_JSON, None},
    comments: {_JSON},
    commas: {_JSON},
    blanks: {_JSON, _ARGUMENTS, None},
    fences: {_JSON},
    encoded_again: {_JSON},
    no_object: {_JSON},
}
