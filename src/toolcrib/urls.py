"""The secrets of a URL: its login and the values of its query; and the names that secrets have.

Rule: all code that shows a URL, sends one or records what was sent uses this module. What is shown
has nothing that may be a secret; what is recorded is unchanged, except for what surely is one. A
URL may be part of a text, be mistyped or have a driver's own form (`jdbc:…;password=…`), and its
password may have unescaped characters.
"""

from __future__ import annotations

import base64
import re
from itertools import islice
from urllib.parse import unquote, unquote_plus, urlsplit

_LONG_WORDS = "token|secret|pass(?:word|wd|phrase|code)|authorization|credential|cookie|bearer"
_SHORT_WORDS = "key|pass|pwd|auth|cred|jwt"
SECRET_NAME = re.compile(f"{_LONG_WORDS}|{_SHORT_WORDS}|sig|code|session", re.IGNORECASE)
"""Matches the name of a header or a query member that holds a secret."""
_VARIABLE_WORDS = "pat|pw|private"
_WORD_ENDS = "[_.-]|(?-i:(?<=[a-z0-9])(?=[A-Z]))"
_ABOUT_WORDS = (
    "algorithm|audience|class|count|dir|domain|enabled|endpoint|expiry|expires|file|folder|header|host"
    "|ip|issuer|length|limit|method|mode|model|name|path|port|prefix|provider|region|registry|scope"
    "|size|sock|ttl|type|uri|url|user|version"
)
"""What the name of a variable ends with if it is about a secret, such as where it is stored."""
SECRET_VARIABLE = re.compile(
    rf"^(?!(?:.*[_.-])?(?:(?:{_ABOUT_WORDS})s?|^pwd)$)"
    rf".*?(?:{_LONG_WORDS}|(?:^|api|{_WORD_ENDS})(?:{_SHORT_WORDS}|{_VARIABLE_WORDS}))s?[0-9]*(?:$|{_WORD_ENDS})",
    re.IGNORECASE,
)
"""Matches the names of environment variables that hold a secret.

One of the name's words says so; a long one may also be the end of a word (`PGPASSWORD`). `PWD` is
the working folder.
"""
_LOGINS_END = re.compile("@")
_VALUES_END = re.compile("[;,'})]")
_MOST_ENDS = 8
_PUBLIC_MEMBERS = ("alt", "api-version", "mode", "uri")

_LOGIN = re.compile(r"//[^/\s:@]*:(?!//)((?:(?!://)[^\s\"]){1,4096})@")
_USER = re.compile(r"//([^\s:/@?#\"']{12,4096})@")
_WEB_USER = re.compile(r"(https?://)[^\s:/@?#\"']{1,4096}@", re.IGNORECASE)
"""A login without a password: over HTTP it is a token, elsewhere mostly a user if it is short."""
_MEMBER = re.compile(r"(?<![^?&;=\s\"'{])([\w.%-]{1,64})=")
_BEHIND_VALUE = re.compile(r"[\s&\"]")
_LONGEST_VALUE = 4096
_ODD_LOGIN = re.compile(r"""(//|[^\s:/@'"()]):(?!//)(?:(?!://)\S){1,256}@""")
_QUERY = re.compile(rf"([?&;#])(?!(?:{'|'.join(_PUBLIC_MEMBERS)})=)[^\s?&;#=]{{1,64}}=\S*")
_WHOLE_LOGIN = re.compile(r"(://[^:/@]*:).*", re.DOTALL)
_WHOLE_QUERY = re.compile(r"(\?|[;\s][^\s;=/:]+=|^[^\s=/:]+=).*", re.DOTALL)


def without_password(url: str) -> str:
    """Return what is meant as a URL, and may be mistyped, in a form to show.

    Its password becomes `***`, or its user if an HTTP URL has no password. The values of its query
    become `…`, since drivers have many names for a password.
    """
    login, mark, rest = url.rpartition("@")
    shown = _WHOLE_LOGIN.sub(r"\1***", login) + mark + rest
    return without_passwords(_WHOLE_QUERY.sub(r"\1…", _WEB_USER.sub(r"\1***@", shown)))


def without_passwords(text: str) -> str:
    """Return a text to show, without the logins and queries of what may be a mistyped URL."""
    return _QUERY.sub(r"\1…", _ODD_LOGIN.sub(r"\1:***@", _WEB_USER.sub(r"\1***@", text)))


def url_secrets(url: str) -> list[str]:
    """Return what may be secret in a URL to send requests to.

    That is its login, and the values of its query, except for members known to hold no secret.
    """
    members = (member.partition("=") for member in urlsplit(url).query.split("&"))
    secrets = [
        form
        for name, _, raw in members
        if name not in _PUBLIC_MEMBERS
        for form in _decoded_forms(raw)
    ]
    return secrets + login_of(url)


def login_of(url: str) -> list[str]:
    """Return the user and the password in a URL, and both as they are sent; [] without a login."""
    parts = urlsplit(url)
    if parts.username is None:
        return []
    user, password = parts.username, parts.password or ""
    login = f"{unquote(user)}:{unquote(password)}".encode()
    return [*_decoded_forms(user), *_decoded_forms(password), base64.b64encode(login).decode()]


def passwords_in(text: str) -> set[str]:
    """Return the secrets in a text.

    These are the passwords of all URLs, users of 12 characters or more without a password, and the
    values of members that have the name of a secret or hold a URL with one. If the end of a secret
    is unclear, every possible form is returned.
    """
    secrets, end = _named_secrets(text), 0
    for member in _MEMBER.finditer(text):
        if member.end() >= end:
            value = _member_value(text, member)
            end = member.end() + len(value)
            if "%" in value and (decoded := _named_secrets(unquote(value))):
                secrets |= decoded.union(_decoded_forms(value))
    return secrets


def _named_secrets(text: str) -> set[str]:
    """Return what is named as a secret in a text as it is written."""
    secrets: set[str] = set()
    for login in _LOGIN.findall(text):
        secrets |= _possible_secrets(login, _LOGINS_END)
    for user in _USER.findall(text):
        secrets.update(_decoded_forms(user))
    for member in _MEMBER.finditer(text):
        if SECRET_NAME.search(unquote(member[1])):
            secrets |= _possible_secrets(_member_value(text, member), _VALUES_END)
    return secrets


def _member_value(text: str, member: re.Match[str]) -> str:
    return _BEHIND_VALUE.split(text[member.end() : member.end() + _LONGEST_VALUE], maxsplit=1)[0]


def _possible_secrets(raw: str, ends: re.Pattern[str]) -> set[str]:
    """Return what a text may be if it ends earlier, and the whole."""
    prefixes = (raw[: end.start()] for end in islice(ends.finditer(raw), _MOST_ENDS))
    return {form for part in (*prefixes, raw) for form in _decoded_forms(part)}


def _decoded_forms(raw: str) -> list[str]:
    """Return a part of a URL in its decoded forms, and as it is written."""
    return list(dict.fromkeys((unquote(raw), unquote_plus(raw), raw)))
