"""idna: reST's field lists, complete hints, `bytes` in and out."""

from __future__ import annotations

import idna
from real.hinted import Case, Refusal, hinted

_NAME = "bücher.example"

CASES = (
    Case(idna.alabel, {"label": "bücher"}, lambda: idna.alabel("bücher")),
    Case(idna.check_bidi, {"label": "שלום", "check_ltr": True}, lambda: idna.check_bidi("שלום")),
    Case(idna.check_hyphen_ok, {"label": "a-b"}, lambda: idna.check_hyphen_ok("a-b")),
    Case(idna.check_initial_combiner, {"label": "a"}, lambda: idna.check_initial_combiner("a")),
    Case(
        hinted(idna.check_label, None, {"label": str | bytes}),
        {"label": "bücher"},
        lambda: idna.check_label("bücher"),
    ),
    Case(idna.check_nfc, {"label": "bücher"}, lambda: idna.check_nfc("bücher")),
    Case(
        hinted(
            idna.decode,
            str,
            {"s": str | bytes, "strict": bool, "uts46": bool, "std3_rules": bool, "display": bool},
        ),
        {"s": "xn--bcher-kva.example", "uts46": True},
        lambda: idna.decode("xn--bcher-kva.example", uts46=True),
    ),
    Case(
        hinted(
            idna.encode,
            bytes,
            {"s": str, "strict": bool, "uts46": bool, "std3_rules": bool},
        ),
        {"s": _NAME, "strict": True},
        lambda: idna.encode(_NAME, strict=True),
    ),
    Case(
        idna.intranges_contain,
        {"int_": 5, "ranges": [(4 << 32) | 9]},
        lambda: idna.intranges_contain(5, ((4 << 32) | 9,)),
    ),
    Case(
        hinted(idna.ulabel, str, {"label": str | bytes}),
        {"label": "xn--bcher-kva"},
        lambda: idna.ulabel("xn--bcher-kva"),
    ),
    Case(idna.uts46_remap, {"domain": "Bücher"}, lambda: idna.uts46_remap("Bücher")),
    Case(
        idna.valid_contextj,
        {"label": "\u0915\u094d\u200d\u0937", "pos": 2},
        lambda: idna.valid_contextj("\u0915\u094d\u200d\u0937", 2),
    ),
    Case(
        idna.valid_contexto,
        {"label": "l\u00b7l", "pos": 1},
        lambda: idna.valid_contexto("l\u00b7l", 1),
    ),
    Case(idna.valid_label_length, {"label": "a" * 64}, lambda: idna.valid_label_length("a" * 64)),
    Case(
        idna.valid_string_length,
        {"domain": _NAME, "trailing_dot": False},
        lambda: idna.valid_string_length(_NAME, trailing_dot=False),
    ),
)

REFUSED = (
    Refusal(idna.decode, ("decode", "'s'", "bytearray")),
    Refusal(idna.check_label, ("check_label", "'label'", "bytearray")),
)
