from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from toolcrib.errors import MissingExtraError, PickError
from toolcrib.pick import SCORERS, PickOptions, scorer_named
from toolcrib.pick import options as module
from toolcrib.pick.scorer import scorer_name


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing is remembered from before, nor after."""
    scorer_named.cache_clear()
    yield
    scorer_named.cache_clear()


def missing(extra: str) -> Any:
    def make() -> Any:
        raise MissingExtraError(extra, "it")

    return make


def test_the_names() -> None:
    assert list(SCORERS) == ["keyword", "embedding", "light", "rerank", "auto"]
    assert scorer_name(PickOptions().chosen_scorer()) == "keyword"


@pytest.mark.parametrize("name", ["keyword", "embedding", "light", "rerank"])
def test_a_name_is_one_scorer(name: str, fresh: None) -> None:
    try:
        scorer = scorer_named(name)
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert scorer.name == name
    assert scorer_named(name) is scorer


@pytest.mark.parametrize(
    ("absent", "taken"),
    [((), "rerank"), (("rerank",), "light"), (("rerank", "light"), "keyword")],
)
def test_auto_is_the_best_that_is_installed(
    absent: tuple[str, ...], taken: str, fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rerank", "light", "keyword"):
        made = missing("rerank") if name in absent else type(name, (), {"name": name})
        monkeypatch.setitem(module.SCORERS, name, made)
    assert scorer_named("auto").name == taken
    assert scorer_named("auto") is scorer_named(taken)


def test_a_missing_extra_is_named(fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.SCORERS, "light", missing("pick"))
    with pytest.raises(MissingExtraError, match=r"'\.\[pick\]'"):
        scorer_named("light")


def test_another_name_is_an_error() -> None:
    with pytest.raises(PickError, match="no scorer 'best'; there are: keyword, embedding, light"):
        scorer_named("best")
