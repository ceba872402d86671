"""Of a process that was named it is known whether it has ended, or nobody can tell."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from toolcrib.processes import has_ended, this_process

_SAYS = "from toolcrib.processes import this_process; print(this_process(), flush=True); input()"


@pytest.mark.skipif(os.name != "posix", reason="elsewhere nobody can tell")
@pytest.mark.parametrize("waited_for", [True, False])
def test_a_process_has_ended_once_it_was_killed(waited_for: bool) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _SAYS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        name = child.stdout.readline().strip()
        assert not has_ended(name)
        child.kill()
        if waited_for:
            child.wait()
        else:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(name) or not (waited_for or os.path.isdir("/proc"))  # noqa: PTH112


def test_of_one_elsewhere_nobody_can_tell() -> None:
    machine, number, began = this_process().split(" ")
    assert not has_ended(this_process())
    assert not has_ended(f"other {number} {began}")
    assert not has_ended(f"other {2**22 + 1} {began}")
    for name in ("", machine, f"{machine} ", f"{machine} x 1", f"{machine} -1 1", f"{machine} ² 1"):
        assert not has_ended(name)
    assert not has_ended(f"{machine} {10**30} 1")


def test_a_number_that_is_given_again_is_another_process() -> None:
    machine, number, began = this_process().split(" ")
    if not began:
        pytest.skip("nobody can tell here when a process began")
    assert has_ended(f"{machine} {number} {int(began) - 1}")
