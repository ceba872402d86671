"""What callers have spent, in a database: `budget(…, per="caller", store=SpendStore(url))`.

Rule: a call is one row, by its run and its id, however often and by whomever it is made: a call
that is made again because its process was killed is not counted again. Each attempt that takes a
call holds it, and it is given back once all of them have given it back. A process that is killed in
between gives nothing back, which is too strict and never too lax. The spending of one caller is
counted one transaction at a time.

A model request is a row, too, written before the request is sent: if the store accepts no row,
nothing is sent. The row has no money until the request is paid for, and stays without if nobody
receives its answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import partial
from sys import float_info

from toolcrib.closing import Closing
from toolcrib.errors import SourceError, ToolcribError
from toolcrib.storage import OWNER_ONLY, SqlDatabase, Transaction, as_column
from toolcrib.values.context import ROUNDING, Payment, Spend
from toolcrib.values.json import is_finite
from toolcrib.values.typed import explains_wrong_types, names_wrong_types

__all__ = ["SpendStore"]

# A transaction that has written the caller's row has exclusive access to the caller's spending
# until it commits.
_LOCK_CALLER = """INSERT INTO spenders (caller) VALUES (:caller)
    ON CONFLICT (caller) DO UPDATE SET caller = excluded.caller"""
_FORGET = "DELETE FROM spent_calls WHERE caller = :caller AND kept_until <= :now"
_SPENT = """SELECT count(*), coalesce(sum(cost), 0.0) FROM spent_calls
    WHERE caller = :caller AND spent_at > :since AND call_key <> :call"""
_ON_TOOLS = " AND tool IN :tools"
_COUNT = """INSERT INTO spent_calls (caller, call_key, tool, cost, spent_at, kept_until, takers)
    VALUES (:caller, :call, :tool, :cost, :now, :kept_until, 1)
    ON CONFLICT (caller, call_key) DO UPDATE SET takers = spent_calls.takers + 1,
        cost = CASE WHEN excluded.cost > spent_calls.cost THEN excluded.cost
            ELSE spent_calls.cost END,
        spent_at = CASE WHEN excluded.spent_at > spent_calls.spent_at THEN excluded.spent_at
            ELSE spent_calls.spent_at END,
        kept_until = CASE WHEN excluded.kept_until > spent_calls.kept_until
            THEN excluded.kept_until ELSE spent_calls.kept_until END"""
_RELEASE = """UPDATE spent_calls SET takers = takers - 1
    WHERE caller = :caller AND call_key = :call"""
_GIVE_BACK = """DELETE FROM spent_calls
    WHERE caller = :caller AND call_key = :call AND takers <= 0"""

_PAID = """SELECT coalesce(sum(money), 0.0) AS money FROM paid_requests
    WHERE caller = :caller AND paid_at > :since"""
_FORGET_PAID = "DELETE FROM paid_requests WHERE caller = :caller AND kept_until <= :now"
_PAY = """INSERT INTO paid_requests (caller, request_key, money, paid_at, kept_until)
    VALUES (:caller, :request, :money, :now, :kept_until)
    ON CONFLICT (caller, request_key) DO UPDATE SET
        money = CASE WHEN excluded.money > paid_requests.money THEN excluded.money
            ELSE paid_requests.money END,
        paid_at = CASE WHEN excluded.money > paid_requests.money THEN excluded.paid_at
            ELSE paid_requests.paid_at END,
        kept_until = CASE WHEN excluded.kept_until > paid_requests.kept_until
            THEN excluded.kept_until ELSE paid_requests.kept_until END"""


class SpendStore(Closing):
    """Stores what callers spend in a database: `SpendStore(url)`.

    `url` is SQLAlchemy's, such as `sqlite:///runs.db`, or a server's. Budgets with the same
    database share what their callers have spent, in all processes. A new SQLite file is accessible
    only to its owner, unless `mode` says otherwise, for a group. All methods raise SourceError if
    the database cannot be used, the constructor MissingExtraError without SQLAlchemy.
    """

    @names_wrong_types
    def __init__(self, url: str, *, mode: int = OWNER_ONLY) -> None:
        self._database = SqlDatabase(url, mode=mode)

    @explains_wrong_types
    async def take(
        self,
        spend: Spend,
        limits: Mapping[str, float],
        *,
        only: Sequence[str] = (),
        window: float = math.inf,
    ) -> str | None:
        """Count a call, or return the limit (`calls`, `cost`) that it would exceed."""
        seconds = _seconds(window)
        _check_amounts(spend.cost, *limits.values())
        return await self._database.transact(partial(_take, spend, limits, only, seconds))

    @explains_wrong_types
    async def give_back(self, spend: Spend) -> None:
        """Undo one `take`: the call did not begin."""
        await self._database.transact(partial(_give_back, _key_columns(spend)))

    @explains_wrong_types
    async def paid(self, caller: str, *, window: float = math.inf) -> float:
        """Return the money that a caller's requests have cost in the last `window` seconds."""
        since = time.time() - _seconds(window)
        rows = await self._database.read(_PAID, caller=as_column(caller), since=since)
        return float(rows[0]["money"])

    @explains_wrong_types
    async def begin_request(
        self, caller: str, request: str, limit: float, *, window: float = math.inf
    ) -> bool:
        """Record a model request that is about to be sent; return whether it may be sent.

        It may not if its caller has paid `limit` in the last `window` seconds.
        """
        _check_amounts(limit)
        payment = Payment(caller, request, 0.0)
        return await self._database.transact(partial(_begin, payment, limit, _seconds(window)))

    @explains_wrong_types
    async def pay(self, payment: Payment, *, window: float = math.inf) -> None:
        """Count a model request once, however often this is called; keep it for the `window`."""
        _check_amounts(payment.money)
        await self._database.transact(partial(_pay, payment, _seconds(window)))

    async def aclose(self) -> None:
        """Close the connections; the next use opens new ones. `async with` does this, too."""
        await self._database.aclose()


def _take(
    spend: Spend,
    limits: Mapping[str, float],
    only: Sequence[str],
    window: float,
    transaction: Transaction,
) -> str | None:
    key_columns = _key_columns(spend)
    transaction.execute(_LOCK_CALLER, caller=key_columns["caller"])
    now = time.time()
    transaction.execute(_FORGET, caller=key_columns["caller"], now=now)
    tools = {"tools": [as_column(name) for name in only]} if only else {}
    query = _SPENT + _ON_TOOLS if only else _SPENT
    ((calls, cost),) = transaction.tuples(query, **key_columns, **tools, since=now - window)
    for unit, total in (("calls", calls + 1), ("cost", cost + spend.cost)):
        if total > limits.get(unit, math.inf):
            return unit
    columns = {"tool": as_column(spend.tool), "cost": spend.cost, "kept_until": now + window}
    _check_stored(transaction.execute(_COUNT, **key_columns, **columns, now=now))
    return None


def _give_back(key_columns: Mapping[str, str], transaction: Transaction) -> None:
    transaction.execute(_RELEASE, **key_columns)
    transaction.execute(_GIVE_BACK, **key_columns)


def _begin(payment: Payment, limit: float, window: float, transaction: Transaction) -> bool:
    caller = as_column(payment.caller)
    transaction.execute(_LOCK_CALLER, caller=caller)
    ((paid,),) = transaction.tuples(_PAID, caller=caller, since=time.time() - window)
    if paid * ROUNDING >= limit:
        return False
    _pay(payment, window, transaction)
    return True


def _pay(payment: Payment, window: float, transaction: Transaction) -> None:
    caller = as_column(payment.caller)
    transaction.execute(_LOCK_CALLER, caller=caller)
    now = time.time()
    transaction.execute(_FORGET_PAID, caller=caller, now=now)
    columns = {"request": as_column(payment.request), "money": payment.money}
    kept_until = now + window
    _check_stored(
        transaction.execute(_PAY, caller=caller, **columns, now=now, kept_until=kept_until)
    )


def _check_stored(rows: int) -> None:
    """Raise SourceError if a trigger, or a rule, has dropped what was written."""
    if rows != 1:
        raise SourceError(
            "the database did not store what was spent: look for a trigger, or a rule, on its tables"
        )


def _seconds(window: float) -> float:
    """Return a window. Raises ToolcribError for an invalid one: with NaN nothing would count."""
    if (window > float_info.max and window != math.inf) or not window > 0:
        raise ToolcribError("window= is a number of seconds above 0 that a float can hold, or inf")
    return window


def _check_amounts(*amounts: float) -> None:
    """Raise ToolcribError for an amount that is not finite: NaN would exceed no limit."""
    if not all(map(is_finite, amounts)):
        raise ToolcribError("costs, money and limits are finite numbers")


def _key_columns(spend: Spend) -> dict[str, str]:
    return {"caller": as_column(spend.caller), "call": as_column(spend.call)}
