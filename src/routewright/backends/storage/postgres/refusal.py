"""Explains refused asks: builds a ``State`` from the facts that ``tick`` (accounts.sql) returns, and asks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routewright._core.accounts.holds import Hold, Wait
from routewright._core.accounts.state import State
from routewright._core.accounts.terms import limits_of
from routewright._core.idempotency import KeptResult, scope_of
from routewright._core.limits import Window
from routewright.backends.storage.tables.ledger import account_of, key_of
from routewright.errors import InternalError
from routewright.wire import Account, Ask, Key, Left, Replay, Short, WindowState

from .connections import unescape


class Terms:
    """The terms of a caller, from the bodies of their rows."""

    def __init__(self, bodies: dict[str, str | None]) -> None:
        self.account: Account | None = None if bodies["account"] is None else account_of(bodies["account"].encode())
        self.key: Key | None = None if bodies["key"] is None else key_of(bodies["key"].encode())


class _Facts:
    """The ``StoredAccounts`` of one ask."""

    def __init__(self, terms: Terms, facts: dict[str, Any]) -> None:
        self._terms = terms
        self._result = facts["kept"]
        self.purses = {unescape(name): sums for name, *sums in facts["purses"] or ()}

    def account(self, name: str) -> Account | None:
        return self._terms.account

    def key(self, account: str, key_id: str) -> Key | None:
        return self._terms.key

    def sums(self, account: str, purse: str) -> tuple[int, int]:
        amounts = self.purses.get(purse, (0, 0, 0))
        return amounts[0], amounts[1]

    def read_result(self, account: str, claim: bytes, now: float) -> KeptResult | None:
        row = self._result
        return None if row is None else KeptResult(row["fingerprint"], unescape(row["call"]), b"")  # read separately


def explain_refusal(
    ask: Ask, kind: str, terms: Terms, facts: dict[str, Any], at: float, now: float
) -> Replay | Wait | Short | Left | None:
    """The answer to an ask that was not granted. Raises what ``State.admit`` raises."""
    books = _Facts(terms, facts)
    state = State(books)
    state.begin(0, at, at)
    payer = state.payer(ask.caller, ask.at)
    usages = [usage for usage in facts["windows"] if usage is not None]
    for (_, window, _), usage in zip(payer.windows if ask.windows else (), usages, strict=True):
        leaving = (usage["requests_at"], usage["requests_need"], 0), (usage["tokens_at"], 0, usage["tokens_need"])
        entries = sorted(entry for entry in leaving if entry[0] is not None and entry[0] < usage["last"])
        window.fill(usage["requests"], usage["tokens"], usage["slots"], usage["last"], entries)
    for name, (_, _, reserved) in books.purses.items():
        state.purse(ask.caller.account, name).reserved = reserved
    claim = None if ask.claim is None else scope_of(ask.caller, ask.claim.key)
    if facts["held"] is not None:
        hold = facts["held"]
        state.holds[ask.id] = _hold(ask, tuple(map(unescape, hold["purses"])), hold["nanos"])
    elif claim is not None and facts["running"] is not None:
        state.claims.running[claim] = _hold(ask, (), 0, facts["running"])
    for name in facts["queued"]:
        state.queued[ask.caller.account, unescape(name)] = 1
    if kind == "looks":
        return state.look(ask.caller, ask.at, ask.run)
    if kind == "widens":
        return None
    answer = state.admit(ask, 0, now)
    if isinstance(answer, Hold):
        raise InternalError("PostgreSQL refused a call that the limits admit; run 'routewright store check'")
    return answer


def _hold(ask: Ask, purses: tuple[str, ...], nanos: int, fingerprint: str = "") -> Hold:
    caller = ask.caller
    return Hold(
        ask.id, caller.account, caller.key_id, ask.at, 0.0, (), 0, 0, nanos, purses, None, fingerprint, 0, 0.0, ask.run,
        ask.tags,
    )  # fmt: skip


def windows_of(terms: Terms, usages: Sequence[Any], at: float) -> tuple[WindowState, ...]:
    """The states of a grant's rate limits, of the account and of the key."""
    limits = limits_of(terms.account), None if terms.key is None else terms.key.limits
    states: list[WindowState] = []
    for limit, usage in zip(limits, usages, strict=True):
        if limit is not None and usage is not None:
            window = Window()
            window.fill(usage[0], usage[1], 0, usage[2])  # requests, tokens, and the time of the last
            states += window.states(limit, at)
    return tuple(states)
