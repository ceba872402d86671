"""Each attack on schemas and names ends in an error of ours, that says what and where, at once.

They are tried in another process: a hang in a C library can be ended in no other way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from rows import each_row
from schema.attacks import ATTACKS, refusal

from toolcrib.errors import DefinitionError, SchemaError

PATIENCE = 60  # seconds, on a machine that may be busy; each takes milliseconds


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"))
    yield pool
    for process in pool._processes.values():
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)


@each_row("name", ATTACKS)
def test_an_attack_is_refused(name: str, elsewhere: ProcessPoolExecutor) -> None:
    attack = ATTACKS[name]
    refused = elsewhere.submit(refusal, name).result(timeout=PATIENCE)
    assert refused is not None
    assert refused.kind in {DefinitionError.__name__, SchemaError.__name__}
    assert re.search(attack.text.replace("$", r"\$"), refused.text), refused.text
    assert refused.pointer.startswith(attack.pointer)
    assert len(refused.text) < 900
    refused.text.encode()
