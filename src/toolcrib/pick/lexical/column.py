"""What the tools of a catalog weigh by their words, as one column of numbers: for who has numpy.

Rule: a tool's weight is to the bit the one that `search.weigh` adds up, for each term and pair comes in
the same order.
"""

from __future__ import annotations

from typing import Any

from toolcrib.pick.lexical.postings import WordIndex
from toolcrib.pick.lexical.search import NAMED, Plan, check_time
from toolcrib.pick.scoring.arrays import numpy


class Column:
    """A query against one index. `singly` is what each tool's words weigh one by one, by position;
    float64, 0 for a tool that has none.

    Raises PickError once the deadline has passed.
    """

    def __init__(self, index: WordIndex, plan: Plan, deadline: float) -> None:
        np = numpy()
        self.index = index
        self._plan = plan
        self._slots = [np.frombuffer(term.posting.slots, "uint32") for term in plan.terms]
        self._places = np.frombuffer(index.slots, "int32")
        found = np.zeros(len(index.place))
        for term, slots in zip(plan.terms, self._slots, strict=True):
            check_time(deadline)
            impacts = np.frombuffer(term.posting.impacts, "float32").astype("float64")
            found[slots] += impacts * term.weight
        self.singly = found[self._places]

    def weights(self, positions: Any, deadline: float) -> Any:
        """What words weigh one by one and side by side, of the tools at these positions, or of all."""
        found = self.singly.copy() if positions is None else self.singly[positions]
        places = self._places if positions is None else self._places[positions]
        pairs, texts = self._plan.pairs, self.index.texts
        seen, has = numpy().zeros(len(texts), bool), {}
        for term in sorted({at for pair in pairs for at in (pair.first, pair.second)}):
            seen[self._slots[term]] = True
            has[term] = seen[places]
            seen[self._slots[term]] = False
        for pair in pairs:
            check_time(deadline)
            rows = (has[pair.first] & has[pair.second]).nonzero()[0]
            for row, slot in zip(rows.tolist(), places[rows].tolist(), strict=True):
                text = texts[slot]
                at = text.find(pair.words)
                if at >= 0:
                    found[row] += pair.weight * (NAMED if at < text.index("|") else 1)
        return found
