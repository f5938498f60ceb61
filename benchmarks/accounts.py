"""An account with everything on: a plan, a balance, a limit a month, and a key with limits and a budget of its own."""

from __future__ import annotations

from routewright.protocols import Storage
from routewright.wire import Account, AddCredit, Caller, Key, PutAccount, PutKey, RateLimits

AT, AT_S = "2026-11-01T00:00:00.000Z", 1_793_491_200.0
PLENTY = 10**15
WIDE = RateLimits(requests_per_min=10**9, tokens_per_min=10**12, concurrency=10**6)
ACCOUNT = Account(name="acme", created_at=AT, plan="enterprise", limits=WIDE, prepaid=True, monthly_nanos=PLENTY)
KEY = Key(
    id="key_1", account="acme", environment="production", name="bench", prefix="sk_live_abcd", digest="00",
    created_at=AT, limits=WIDE, budget_nanos=PLENTY, monthly_nanos=PLENTY,
)  # fmt: skip
CALLER = Caller("acme", key_id=KEY.id)


async def open_account(storage: Storage) -> None:
    """Set it up."""
    await storage.apply("acme", [PutAccount(ACCOUNT), PutKey(KEY), AddCredit("cr_1", PLENTY, AT)])
