"""One key, one call, one result: an idempotency key is taken by one at a time, and its result is kept for a day."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from routewright._core.idempotency import KEPT_S
from routewright.errors import PreconditionFailed
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    AddCredit,
    ClaimByKey,
    ClaimKey,
    DeleteResults,
    EndClaim,
    Environment,
    KeepLease,
    KeyClaim,
    Settle,
    Written,
)

from .money import AT, LEASE_S, Till, make_row
from .samples import ODD_TEXTS
from .suite import Suite

NOW = 1_795_478_400.0
RESULT = b'\x00{"output":"\xff"}'
KEYS = (*(text for text in ODD_TEXTS if len(text.encode()) <= 64), "k" * 64)


def claim(call: str = "c", **given: Any) -> ClaimKey:
    """A call that wants the key ``i``."""
    facts: dict[str, Any] = {"key": "i", "environment": "production", "fingerprint": f"of {call}", "owner": "own"}
    return ClaimKey(call=call, **facts | {"lease_s": LEASE_S, "clock_s": 0.0, "at": NOW} | given)


def end(call: str = "c", result: bytes | None = RESULT, **given: Any) -> EndClaim:
    """The end of a call that has the key ``i``."""
    facts: dict[str, Any] = {"key": "i", "environment": "production", "until": NOW + KEPT_S}
    return EndClaim(call=call, result=result, **facts | given)


class Claims(Suite):
    """Idempotency keys."""

    async def test_one_call_has_a_key_and_the_next_is_told_which(self, storage: Storage) -> None:
        assert await _holder(storage) is None
        assert (await _put(storage, claim("c"))).created
        assert not (await _put(storage, claim("d", owner="other"))).created
        assert await _holder(storage) == KeyClaim("of c", "c", None)

    async def test_of_many_calls_at_once_one_gets_a_key(self, storage: Storage) -> None:
        won: list[str] = []

        async def ask(call: str) -> None:
            if (await _put(storage, claim(call))).created:
                won.append(call)

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(ask, f"c{number}")
        assert len(won) == 1
        found = await _holder(storage)
        assert found is not None
        assert found.call == won[0]

    async def test_a_result_is_kept_for_a_day_and_not_a_moment_longer(self, storage: Storage) -> None:
        await _put(storage, claim("c"))
        written = await _put(storage, end("c"))
        assert (written.created, written.count) == (False, 1)
        for at, clock_s in ((NOW, 0.0), (NOW + KEPT_S - 0.001, 1e6)):
            assert await _holder(storage, at=at, clock_s=clock_s) == KeyClaim("of c", "c", RESULT)
            assert not (await _put(storage, claim("d", at=at, clock_s=clock_s))).created
        assert await _holder(storage, at=NOW + KEPT_S) is None
        assert (await _put(storage, claim("d", at=NOW + KEPT_S))).created
        assert await _holder(storage) == KeyClaim("of d", "d", None)

    async def test_a_call_that_failed_lets_others_have_the_key(self, storage: Storage) -> None:
        await _put(storage, claim("c"))
        assert (await _put(storage, end("c", None))).count == 1
        assert await _holder(storage) is None
        assert (await _put(storage, claim("d"))).created

    async def test_a_key_whose_owner_is_gone_is_taken_over(self, storage: Storage) -> None:
        await _put(storage, claim("c", owner="dead"))
        assert not (await _put(storage, claim("d", owner="heir", clock_s=29.999))).created
        assert await _holder(storage, clock_s=30.0) is None
        assert (await _put(storage, claim("d", owner="heir", clock_s=30.0))).created
        assert await _holder(storage, clock_s=31.0) == KeyClaim("of d", "d", None)

    async def test_a_lease_that_is_kept_keeps_the_key(self, storage: Storage) -> None:
        await _put(storage, claim("c"))
        for clock_s in (20.0, 40.0):
            await storage.apply(SYSTEM_ACCOUNT, [KeepLease("own", LEASE_S, clock_s)])
        assert not (await _put(storage, claim("d", owner="other", clock_s=69.9))).created
        assert (await _put(storage, claim("d", owner="other", clock_s=70.0))).created

    async def test_a_key_is_free_where_the_clock_began_anew(self, storage: Storage) -> None:
        await _put(storage, claim("c", clock_s=10_000.0))
        assert await _holder(storage, clock_s=9_990.0) == KeyClaim("of c", "c", None), "it was read a while ago"
        assert await _holder(storage, clock_s=5.0) is None
        assert (await _put(storage, claim("d", owner="other", clock_s=5.0))).created

    @pytest.mark.parametrize("ended", [False, True])
    async def test_one_whose_key_was_taken_over_fails_with_all_of_its_batch(
        self, storage: Storage, ended: bool
    ) -> None:
        till = await Till(storage).open()
        await till.reserve("c", 10, owner="dead")
        await _put(storage, claim("c", owner="dead"))
        await _put(storage, claim("d", owner="heir", clock_s=31.0))
        if ended:
            await _put(storage, end("d", b"of d"))
        before = await till.purses(), await till.rows(), await _holder(storage, clock_s=31.0)
        settle = Settle(id="c", at=AT, rows=(make_row(charge=7),))
        with pytest.raises(PreconditionFailed) as failed:
            await storage.apply("acme", [AddCredit("x", 1, AT), settle, end("c")])
        assert failed.value.index == 2
        assert (await till.purses(), await till.rows(), await _holder(storage, clock_s=31.0)) == before
        assert (await _put(storage, end("c", None))).count == 0, "it has nothing to give back"
        assert await _holder(storage, clock_s=31.0) == before[2]

    async def test_one_that_nobody_took_over_may_end_late(self, storage: Storage) -> None:
        await _put(storage, claim("c"))
        await storage.apply(SYSTEM_ACCOUNT, [KeepLease("other", LEASE_S, 31.0)])
        await storage.sweep(NOW)
        assert await _holder(storage, clock_s=31.0) is None
        await _put(storage, end("c"))
        assert await _holder(storage, clock_s=31.0) == KeyClaim("of c", "c", RESULT)

    @pytest.mark.parametrize("left", ["given back", "never there"])
    async def test_a_result_is_put_back_where_nobody_has_the_key_any_more(self, storage: Storage, left: str) -> None:
        till = await Till(storage).open()
        await till.reserve("c", 10, owner="dead")
        if left == "given back":
            await _put(storage, claim("c", owner="dead"))
            await _put(storage, claim("d", owner="heir", clock_s=31.0))
            await _put(storage, end("d", None))
        settle, ends = Settle(id="c", at=AT, rows=(make_row(charge=7),)), end("c", fingerprint="of c")
        results = await storage.apply("acme", [settle, ends])
        assert [result.created for result in results] == [True, True]
        assert (await till.purses())["account"] == (7, 0)
        assert await _holder(storage, clock_s=31.0) == KeyClaim("of c", "c", RESULT)
        assert not (await _put(storage, claim("e", clock_s=31.0))).created
        assert await _put(storage, end("c", b"again", fingerprint="of c")) == Written(created=False)
        assert await _holder(storage, at=NOW + KEPT_S - 0.001) == KeyClaim("of c", "c", RESULT)
        assert (await _put(storage, claim("e", at=NOW + KEPT_S))).created

    async def test_a_failure_is_not_put_back(self, storage: Storage) -> None:
        assert await _put(storage, end("c", None, fingerprint="of c")) == Written(created=False, count=0)
        assert (await _put(storage, claim("d"))).created

    async def test_of_two_results_for_a_key_of_nobody_one_is_put_back_and_the_other_refused(
        self, storage: Storage
    ) -> None:
        ends = [end(call, call.encode(), fingerprint=f"of {call}") for call in ("c", "d")]
        with pytest.raises(PreconditionFailed) as failed:
            await storage.apply("acme", ends)
        assert failed.value.index == 1
        assert await _holder(storage) is None
        await storage.apply("acme", [ends[0], ends[0]])
        with pytest.raises(PreconditionFailed):
            await _put(storage, ends[1])
        assert await _holder(storage) == KeyClaim("of c", "c", b"c")

    @pytest.mark.parametrize("ended", [False, True])
    async def test_a_result_is_not_put_back_where_another_has_the_key(self, storage: Storage, ended: bool) -> None:
        await _put(storage, claim("c", owner="dead"))
        await _put(storage, claim("d", owner="heir", clock_s=31.0))
        if ended:
            await _put(storage, end("d", b"of d"))
        before = await _holder(storage, clock_s=31.0)
        with pytest.raises(PreconditionFailed):
            await _put(storage, end("c", fingerprint="of c"))
        assert await _holder(storage, clock_s=31.0) == before

    async def test_who_never_had_the_key_ends_nothing_without_a_fingerprint(self, storage: Storage) -> None:
        with pytest.raises(PreconditionFailed):
            await _put(storage, end("c"))
        assert (await _put(storage, end("c", None))).count == 0
        assert await _holder(storage) is None

    async def test_a_claim_and_its_end_may_be_said_twice(self, storage: Storage) -> None:
        assert [(await _put(storage, claim("c"))).created for _ in range(2)] == [True, True]
        for _ in range(2):
            await _put(storage, end("c"))
            await _put(storage, end("c", None))
        assert await _holder(storage) == KeyClaim("of c", "c", RESULT)
        assert not (await _put(storage, claim("c"))).created, "it has ended"

    async def test_a_result_is_booked_in_the_batch_of_its_settlement(self, storage: Storage) -> None:
        till = await Till(storage).open()
        await _put(storage, claim("c"))
        results = await storage.apply("acme", [Settle(id="c", at=AT, rows=(make_row(charge=7),)), end("c")])
        assert [result.created for result in results] == [True, False]
        assert await _holder(storage) == KeyClaim("of c", "c", RESULT)
        assert (await till.purses())["account"] == (7, 0)

    async def test_each_account_environment_and_key_has_a_claim_of_its_own(self, storage: Storage) -> None:
        names = [(account, environment, key) for account in ("acme", "o'ther") for environment in _BOTH for key in KEYS]
        for number, (account, environment, key) in enumerate(names):
            put = claim(f"c{number}", environment=environment, key=key)
            assert [result.created for result in await storage.apply(account, [put])] == [True]
            if number % 2:
                last = end(f"c{number}", str(number).encode(), environment=environment, key=key)
                await storage.apply(account, [last])
        for number, (account, environment, key) in enumerate(names):
            found = await storage.read(account, ClaimByKey(key, environment, 0.0, NOW))
            result = str(number).encode() if number % 2 else None
            assert found == KeyClaim(f"of c{number}", f"c{number}", result)

    @pytest.mark.parametrize("environment", ["production", "sandbox", None])
    async def test_results_are_deleted_and_calls_that_run_are_not(
        self, storage: Storage, environment: Environment | None
    ) -> None:
        for account in ("acme", "other"):
            for each in _BOTH:
                for key in ("ended", "ended too", "runs"):
                    call = f"{each} {key}"
                    await storage.apply(account, [claim(call, key=key, environment=each)])
                    if key != "runs":
                        await storage.apply(account, [end(call, key=key, environment=each)])
        gone = _BOTH if environment is None else (environment,)
        (written,) = await storage.apply("acme", [DeleteResults(environment)])
        assert written.count == 2 * len(gone)
        for account in ("acme", "other"):
            for each in _BOTH:
                found = [await storage.read(account, ClaimByKey(key, each, 0.0, NOW)) for key in ("ended", "runs")]
                assert [one is None for one in found] == [account == "acme" and each in gone, False]
        (written,) = await storage.apply("acme", [DeleteResults(environment)])
        assert written.count == 0

    async def test_a_sweep_takes_results_that_are_past_their_time_and_says_how_many(self, storage: Storage) -> None:
        for number in range(1_200):
            key = f"i{number}"
            until = NOW if number < 1_100 else NOW + 0.001
            await storage.apply("acme", [claim(key, key=key)])
            await storage.apply("acme", [end(key, key=key, until=until, durability="buffered")])
        await storage.apply("acme", [claim("runs", key="runs", at=NOW - 2 * KEPT_S)])
        assert await storage.sweep(NOW) == 1_100
        assert await storage.sweep(NOW) == 0
        found = [await storage.read("acme", ClaimByKey(key, "production", 0.0, NOW)) for key in ("i1100", "runs")]
        assert None not in found


_BOTH: tuple[Environment, ...] = ("production", "sandbox")


async def _put(storage: Storage, write: ClaimKey | EndClaim) -> Written:
    (written,) = await storage.apply("acme", [write])
    return written


async def _holder(storage: Storage, *, at: float = NOW, clock_s: float = 0.0) -> KeyClaim | None:
    return await storage.read("acme", ClaimByKey("i", "production", clock_s, at))
