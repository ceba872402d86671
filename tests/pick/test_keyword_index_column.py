from __future__ import annotations

from typing import Any

import pytest
from pick.pick_helpers import SHOP, entry
from rows import each_row

from toolcrib.errors import PickError
from toolcrib.pick import KeywordScorer, Query

np = pytest.importorskip("numpy", reason="the extra 'pick' is not installed")


@each_row(
    "query",
    [
        Query("read the weather report of a city"),
        Query("weather", earlier=("convert money",), used=("get_weather",)),
        Query("get_weather"),
        Query("nothing of zzzz"),
        Query(""),
    ],
)
def test_a_column_has_what_the_search_finds(query: Query) -> None:
    twins = [entry("weather_report", "Reads the weather report.") for _ in range(2)]
    first, tools = (
        (*SHOP, *twins),
        (*twins, *SHOP[1:], *SHOP),
    )  # the second is derived from the first
    scorer = KeywordScorer()
    for catalog in (first, tools):
        hits = scorer.hits(query, catalog)
        expected = dict(zip(hits.positions or (), hits.values, strict=True))
        found = scorer.weights(query, catalog)
        assert found.tolist() == [expected.get(at, 0.0) for at in range(len(catalog))]
        assert (scorer.glance(query, catalog) <= found).all()
        some: Any = np.array([2, len(catalog) - 1])
        assert scorer.weights(query, catalog, some).tolist() == found[some].tolist()


def test_a_deadline_stops_it() -> None:
    scorer = KeywordScorer()
    scorer.hits(Query("weather"), SHOP)
    with pytest.raises(PickError, match="the time limit of the query passed"):
        scorer.glance(Query("weather", deadline=0.0), SHOP)
