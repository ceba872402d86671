"""Cases in the manner of JSONTestSuite: y must be read, n must be refused, i is for us to decide.

The suite's files are whole documents; a document that is no object stands in one here.
"""

from __future__ import annotations

from typing import Any

from rows import each_row

from toolcrib.hydration import Parsed, ParseFailure, parse_arguments

MUST_READ: list[tuple[str, str, Any]] = [
    ("array_arraysWithSpaces", "[[]   ]", [[]]),
    ("array_empty-string", '[""]', [""]),
    ("array_ending_with_newline", '["a"]\n', ["a"]),
    ("array_heterogeneous", '[null, 1, "1", {}]', [None, 1, "1", {}]),
    ("array_with_several_null", "[1,null,null,null,2]", [1, None, None, None, 2]),
    ("number_0e+1", "[0e+1]", [0.0]),
    ("number_after_space", "[ 4]", [4]),
    ("number_double_close_to_zero", f"[-0.{'0' * 77}1]", [-1e-78]),
    ("number_int_with_exp", "[20e1]", [200.0]),
    ("number_minus_zero", "[-0]", [0]),
    ("number_negative_int", "[-123]", [-123]),
    ("number_real_capital_e_neg_exp", "[1E-2]", [0.01]),
    ("number_simple_real", "[123.456789]", [123.456789]),
    ("object_basic", '{"asd":"sdf"}', {"asd": "sdf"}),
    ("object_empty_key", '{"":0}', {"": 0}),
    ("object_escaped_null_in_key", '{"foo\\u0000bar": 42}', {"foo\0bar": 42}),
    ("object_extreme_numbers", '{"min": -1.0e+28, "max": 1.0e+28}', {"min": -1e28, "max": 1e28}),
    ("string_1_2_3_bytes_UTF-8_sequences", '["\\u0060\\u012a\\u12AB"]', ["`Ī\u12ab"]),
    ("string_accepted_surrogate_pair", '["\\uD801\\udc37"]', ["\U00010437"]),
    ("string_allowed_escapes", '["\\"\\\\\\/\\b\\f\\n\\r\\t"]', ['"\\/\b\f\n\r\t']),
    ("string_backslash_and_u_escaped_zero", '["\\\\u0000"]', ["\\u0000"]),
    ("string_comments", '["a/*b*/c/*d//e"]', ["a/*b*/c/*d//e"]),
    ("string_in_array_with_leading_space", '[ "asd"]', ["asd"]),
    ("string_nonCharacterInUTF-8_U+FFFF", '["\uffff"]', ["\uffff"]),
    ("string_u+2028_line_sep", '["\u2028"]', ["\u2028"]),
    ("string_unescaped_char_delete", '["\x7f"]', ["\x7f"]),
    ("structure_lonely_false", "false", False),
    ("structure_lonely_null", "null", None),
    ("structure_whitespace_array", " [] ", []),
]
MUST_REFUSE: list[tuple[str, str]] = [
    ("array_1_true_without_comma", "[1 true]"),
    ("array_colon_instead_of_comma", '["": 1]'),
    ("array_comma_and_number", "[,1]"),
    ("array_double_comma", "[1,,2]"),
    ("array_extra_close", '["x"]]'),
    ("array_extra_comma", '["",]'),
    ("array_incomplete", '["x"'),
    ("array_inner_array_no_comma", "[3[4]]"),
    ("array_just_minus", "[-]"),
    ("incomplete_true", "[tru]"),
    ("multidigit_number_then_00", "123\x00"),
    ("number_++", "[++1234]"),
    ("number_+Inf", "[+Inf]"),
    ("number_-01", "[-01]"),
    ("number_-2.", "[-2.]"),
    ("number_.2e-3", "[.2e-3]"),
    ("number_0.3e", "[0.3e]"),
    ("number_1_000", "[1 000]"),
    ("number_1eE2", "[1eE2]"),
    ("number_hex_1_digit", "[0x1]"),
    ("number_infinity", "[Infinity]"),
    ("number_minus_infinity", "[-Infinity]"),
    ("number_NaN", "[NaN]"),
    ("number_U+FF11_fullwidth_digit_one", "[\uff11]"),
    ("number_with_leading_zero", "[012]"),
    ("object_bad_value", '["x", truth]'),
    ("object_bracket_key", '{[: "x"}'),
    ("object_comma_instead_of_colon", '{"x", null}'),
    ("object_double_colon", '{"x"::"b"}'),
    ("object_key_with_single_quotes", "{key: 'value'}"),
    ("object_missing_value", '{"a":'),
    ("object_non_string_key", "{1:1}"),
    ("object_repeated_null_null", "{null:null,null:null}"),
    ("object_several_trailing_commas", '{"id":0,,,,,}'),
    ("object_trailing_comment", '{"a":"b"}/**/'),
    ("object_unquoted_key", '{a: "b"}'),
    ("object_with_single_string", '{ "foo" : "bar", "a" }'),
    ("string_1_surrogate_then_escape_u", '["\\uD800\\u"]'),
    ("string_accentuated_char_no_quotes", "[é]"),
    ("string_escape_x", '["\\x00"]'),
    ("string_incomplete_escaped_character", '["\\u00A"]'),
    ("string_invalid_backslash_esc", '["\\a"]'),
    ("string_leading_uescaped_thinspace", '[\\u0020"asd"]'),
    ("string_no_quotes_with_bad_escape", "[\\n]"),
    ("string_unescaped_ctrl_char", '["a\x00a"]'),
    ("string_unescaped_newline", '["new\nline"]'),
    ("string_unescaped_tab", '["\t"]'),
    ("structure_capitalized_True", "[True]"),
    ("structure_close_unopened_array", "1]"),
    ("structure_double_array", "[][]"),
    ("structure_no_data_but_a_bracket", "["),
    ("structure_object_with_comment", '{"a":/*comment*/"b"}'),
    ("structure_open_array_comma", "[,"),
    ("structure_unicode-identifier", "å"),
    ("structure_UTF8_BOM_no_data", "\ufeff"),
    ("structure_whitespace_formfeed", "[\x0c]"),
    ("structure_whitespace_U+2060_word_joiner", "[\u2060]"),
]
OURS: list[tuple[str, str, Any]] = [
    ("number_double_huge_neg_exp", "[123.456e-789]", [0.0]),
    ("number_huge_exp", "[0.4e00669999999999999999999999999999999999999999999969999999006]", None),
    ("number_neg_int_huge_exp", "[-1e+9999]", None),
    ("number_real_neg_overflow", "[-123123e100000]", None),
    ("number_too_big_pos_int", "[100000000000000000000]", [10**20]),
    ("number_very_big_negative_int", f"[-{'2374623746732768942798327498324234'}]",
     [-2374623746732768942798327498324234]),
    ("object_key_lone_2nd_surrogate", '{"\\uDFAA":0}', None),
    ("string_1st_surrogate_but_2nd_missing", '["\\uDADA"]', None),
    ("string_inverted_surrogates_U+1D11E", '["\\uDd1e\\uD834"]', None),
    ("string_lone_second_surrogate", '["\\uDFAA"]', None),
    ("object_duplicated_key", '{"a":"b","a":"c"}', None),
    ("object_duplicated_key_and_value", '{"a":"b","a":"b"}', None),
    ("structure_500_nested_arrays", "[" * 500 + "]" * 500, None),
    ("structure_UTF-8_BOM_empty_object", "\ufeff{}", None),
]  # fmt: skip


@each_row(("name", "text", "value"), MUST_READ, ids=[n for n, *_ in MUST_READ])
def test_y(name: str, text: str, value: Any) -> None:
    data = f'{{"{name}":{text}}}'
    assert parse_arguments(data) == Parsed({name: value}, data.encode())


@each_row(("name", "text"), MUST_REFUSE, ids=[n for n, *_ in MUST_REFUSE])
def test_n(name: str, text: str) -> None:
    assert isinstance(parse_arguments(text), ParseFailure), name
    assert isinstance(parse_arguments(f'{{"a":{text}}}'), ParseFailure), name


@each_row(("name", "text", "value"), OURS, ids=[n for n, *_ in OURS])
def test_i(name: str, text: str, value: Any) -> None:
    result = parse_arguments(f'{{"a":{text}}}')
    if value is None:
        assert isinstance(result, ParseFailure), name
    else:
        assert isinstance(result, Parsed)
        assert (result.value, result.notes) == ({"a": value}, ()), name
