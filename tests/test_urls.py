"""A password is found, and is not shown, in whatever form its URL has."""

from __future__ import annotations

import base64
import time
from urllib.parse import quote, quote_plus

from hypothesis import given, settings
from hypothesis import strategies as st
from rows import each_row
from samples import sample, sampled

from toolcrib.testing.masking import masked_text
from toolcrib.urls import passwords_in, without_password, without_passwords

LOGINS = [
    "postgresql+psycopg://ada:{}@db.example:5432/crib",
    "REDIS://:{}@db.example",
    "mongodb+srv://ada:{}@one.example,two.example/crib?w=majority",
    "postgres://ada%40x.org:{}@db.example/crib?mail=a@b.org",
]
MEMBERS = [
    "postgresql:///crib?host=h&password={}",
    "jdbc:postgresql://db.example/crib?user=ada&password={}&ssl=true",
    "jdbc:sqlserver://db.example;user=ada;Password={}",
    "https://db.example/hook?v=1&api_key={}",
    "mysql://db.example/crib?passw%6frd={}",
]
WITHIN = [
    "mssql+pyodbc:///?odbc_connect=UID%3Dada%3BPWD%3D{}",
    "https://db.example/?next=https%3A%2F%2Fada%3A{}%40db.example%2F",
]
TOKENS = [
    "https://{}@db.example/1",
    "git+https://{}@db.example/crib.git",
    "HTTPS://{}@db.example?v=1",
]
CHARACTERS = "aB3@:/?#=%+!$*,~-_.'()"
RAW = st.text(CHARACTERS, min_size=12, max_size=30).map(lambda text: f"x{text}")
ANY = st.text(CHARACTERS + '&; "é', min_size=12, max_size=30).map(lambda text: f"x{text}x")


def recorded(text: str, url: str) -> str:
    """Return the text as a cassette has it where this URL is in the environment."""
    return masked_text(text, {each for each in passwords_in(url) if len(each) >= 12})


def is_kept_secret(url: str, password: str, *, written: str) -> None:
    assert password in passwords_in(url)
    for around in ("{}", "it is {}, so", '"{}"'):
        told = around.format(url)
        assert written not in without_passwords(told)
        kept = recorded(f"{told} {password}", told)
        assert password not in kept
        assert written not in kept
    assert written not in without_password(url)


@each_row(
    "mistyped",
    ["https:/{}@h/db", "postgresql//ada:{}@h/db", "postgresql:ada:{}@h", "http:/{}@h", "ada:{}@h"],
)
def test_a_url_that_is_mistyped_shows_none(mistyped: str) -> None:
    assert "pa55word" not in without_password(mistyped.format("pa55word"))


@given(form=st.sampled_from(LOGINS + MEMBERS), password=RAW)
@settings(deadline=None, max_examples=sample(300))
def test_a_password_that_nobody_escaped(form: str, password: str) -> None:
    if "://" not in password:
        is_kept_secret(form.format(password), password, written=password)


@given(form=st.sampled_from(LOGINS + MEMBERS + WITHIN + TOKENS), password=ANY, plus=st.booleans())
@settings(deadline=None, max_examples=sample(300))
def test_a_password_that_is_escaped(form: str, password: str, plus: bool) -> None:
    code = quote_plus if plus and form in MEMBERS else quote
    written = code(password, safe="")
    written = code(written, safe="") if form in WITHIN else written
    is_kept_secret(form.format(written), password, written=written)


@given(form=st.sampled_from(LOGINS + MEMBERS + WITHIN), password=ANY)
@settings(deadline=None, max_examples=sample(100))
def test_a_url_in_base64_has_none(form: str, password: str) -> None:
    written = quote(password, safe="")
    written = quote(written, safe="") if form in WITHIN else written
    url = form.format(written)
    coded = base64.b64encode(url.encode()).decode()
    start, _, end = recorded(coded, url).partition("[key]")
    left = len(url) - len(written) + 4  # characters of base64 that are of more than the password
    assert (len(start) + len(end)) * 3 / 4 <= left


@each_row(
    "url",
    [
        *("sqlite:///crib.db", "sqlite:///a folder/crib.db", "postgresql://ada@db.example/crib"),
        *("http://127.0.0.1:8080/v1#model", "mcp:npx -y @scope/tool@1.0", "give base_url=…"),
    ],
)
def test_what_has_no_password(url: str) -> None:
    assert passwords_in(url) == set()
    assert without_passwords(url) == url
    assert url.startswith("give") or without_password(url) == url


def test_a_login_without_a_password_is_shown_to_nobody() -> None:
    said = "'http://hush@127.0.0.1:1/v1' is no server"
    assert without_passwords(said) == "'http://***@127.0.0.1:1/v1' is no server"
    assert without_password("Https://hush@db.example/1") == "Https://***@db.example/1"
    assert passwords_in("redis://a-long-token@db.example") == {"a-long-token"}


def test_what_is_shown_of_a_query() -> None:
    advice = "(only to read: sqlite:///file:crib.db?mode=ro&uri=true)"
    assert without_passwords(advice) == advice
    assert without_passwords("no h/db?pass=a&b=c there") == "no h/db?… there"
    assert without_password("host=h password=hush") == "host=…"


@each_row(
    "text",
    sampled(
        [
            "//a:" * 30_000,
            "//a" * 30_000,
            "http://" * 15_000,
            "a=" * 60_000,
            "key=;" * 25_000,
            "a=%3d" * 20_000,
            "key" * 40_000,
            "@" * 99_999,
        ],
        part=4,
    ),
)
def test_to_look_for_them_takes_no_time(text: str) -> None:
    began = time.process_time()
    for read in (passwords_in, without_password, without_passwords):
        read(text)
        read(f"postgres://u:{text}")
    assert time.process_time() - began < 5
