"""Names processes, and tells whether a named process has ended.

Rule: a process on another machine, or in another container, counts as running, because nobody here
can know.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

_PROC = Path("/proc")
_ENDED = "ended"


def this_process() -> str:
    """Return a name for this process: machine, process number, and start time."""
    number = os.getpid()
    return f"{_machine()} {number} {_start_time(number)}"


def has_ended(process: str) -> bool:
    """Return whether the process of that name is known to have ended."""
    machine, _, rest = process.partition(" ")
    number, _, start_time = rest.partition(" ")
    if os.name != "posix" or machine != _machine() or not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return _start_time(int(number)) not in ("", start_time)


def _machine() -> str:
    """Return a digest shared by all that see the same processes, until the next boot."""
    identifiers = [platform.node()]
    with suppress(OSError):
        identifiers.append((_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii"))
        identifiers.append(str((_PROC / "self/ns/pid").readlink()))
    return sha256("\n".join(identifiers).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _start_time(number: int) -> str:
    """Return when a process began, "" if that cannot be read."""
    try:
        stat = (_PROC / str(number) / "stat").read_bytes()
    except OSError:
        return ""
    fields = stat.rpartition(b")")[2].split()  # the process name may have spaces
    return _ENDED if fields[0] in (b"Z", b"X") else fields[19].decode()
