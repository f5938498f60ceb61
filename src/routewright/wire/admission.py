"""Shapes of admission: what a call asks for before it runs, and what it is granted (contract 7)."""

from __future__ import annotations

from msgspec import Struct

from .account import Account, Caller, Key
from .ledger import Purse, RunLimit
from .limits import WindowState


class Claim(Struct, frozen=True, gc=False):
    """An idempotency key that a call asks for. Its scope is the caller's account and environment."""

    key: str
    fingerprint: str
    """Hash of the request: another request may not use the same key."""


class Ask(Struct, frozen=True, kw_only=True, gc=False):
    """The most that one call may take. All of it is taken, or nothing.

    An ask with the id of a call that was admitted changes how much is reserved for that call, and takes nothing else.
    """

    id: str
    """The call's, which is its trace's."""
    caller: Caller
    at: float
    """Unix seconds when the call came: the month that pays for it."""
    lasts_s: float
    """The call ends within this time. What it still holds a lease later is taken back."""
    tokens: int = 0
    """The most that it may come to, input and output."""
    nanos: int = 0
    """The most that it may cost, reserved at every level that has a limit."""
    waits_s: float = 0.0
    """How long to wait for money or an idempotency key that other calls hold."""
    claim: Claim | None = None
    run: RunLimit | None = None
    """The agent run that the call belongs to."""
    slot: bool = True
    """False for calls of an agent run, which holds one for them."""
    windows: bool = True
    """False: its rate limits and its slot are counted elsewhere."""


class Grant(Struct, kw_only=True, gc=False):
    """An admitted call. Ended once, by ``settle`` or ``release``."""

    id: str
    caller: Caller
    nanos: int = 0
    """Reserved."""
    is_limited: bool = False
    """True if a balance, plan or budget limits its cost."""
    windows: tuple[WindowState, ...] = ()
    """Its rate limits, this call counted in."""


class Replay(Struct, frozen=True, gc=False):
    """The answer that was given under the same idempotency key."""

    result: bytes


class Short(Struct, frozen=True, gc=False):
    """A level has not enough money, and nothing was taken."""

    purse: Purse
    waits: bool
    """True if it would have, were it not for what other calls hold: they held it for as long as the ask could wait."""


class Left(Struct, frozen=True, gc=False):
    """The money a caller has left, as far as this process knows: good enough to decide by, while ``admit`` is exact."""

    account: Account | None
    """None: nobody set it up, so that nothing limits it."""
    key: Key | None
    nanos: int | None
    """At the level with the least left. None: nothing limits it."""
