"""Contract of storages shared by processes: they respect each other, agree on shared data, and outlive dead ones."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from routewright._core.attempts.statistics import EPOCH_S, added, epoch_at
from routewright.errors import AuthenticationFailed, IdempotencyKeyReused, PreconditionFailed, UnsupportedWrite
from routewright.protocols import Storage
from routewright.testing import FakeClock
from routewright.wire import (
    SYSTEM_ACCOUNT,
    AddCredit,
    AddLearned,
    Budget,
    Claim,
    Learned,
    LearnedModel,
    LearnedSince,
    LedgerSums,
    Policy,
    PolicyRecord,
    PolicyRecords,
    PolicyShare,
    PolicyVersion,
    PolicyVersions,
    PutAccount,
    PutPolicyRecord,
    PutPolicyVersion,
    RateLimits,
    Replay,
    RevokeKey,
)

from .admission import A_MOMENT_S, AccountsSuite, waiting
from .samples import AT, MONTH, NOW, PURSES, RUN, Draft, Till, make_account, make_row, make_trace
from .traces import Suite

DESK = PolicyRecord(
    name="desk", draft=Policy(name="desk", budget=Budget(max_cost_usd=0.5), classes=[]), drafted_at=AT, content="one",
    share=PolicyShare("two", 0.25, "metadata.user"), changed_at=AT, changed_by="ada",
)  # fmt: skip
DAY, NEXT_DAY = "2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"


class Agreeing(Suite):
    """Data that all processes agree on."""

    async def test_a_content_keeps_its_first_version(self, storage: Storage) -> None:
        for created_at in (DAY, NEXT_DAY):
            (written,) = await storage.apply(SYSTEM_ACCOUNT, [PutPolicyVersion("one", "desk", created_at)])
            assert written.created == (created_at == DAY)
            assert await _labels(storage, "one") == ["desk@2026-11-21"]

    async def test_a_label_is_unique(self, storage: Storage) -> None:
        asked = [("one", "desk", DAY), ("two", "desk", DAY), ("three", "desk", NEXT_DAY), ("four", "desk", DAY),
                 ("five", "desk.2", DAY), ("six", "", DAY), ("seven", "désk%", DAY)]  # fmt: skip
        await storage.apply(SYSTEM_ACCOUNT, [PutPolicyVersion(*each) for each in asked])
        contents = [content for content, *_ in asked]
        assert await _labels(storage, *contents) == [
            *("desk@2026-11-21", "desk@2026-11-21.2", "desk@2026-11-22", "desk@2026-11-21.3"),
            *("desk.2@2026-11-21", "@2026-11-21", "désk%@2026-11-21"),
        ]

    async def test_a_version_keeps_its_text_and_who_first_published_it(self, storage: Storage) -> None:
        text = Policy(name="désk\0", prefer=["a/one"], min_quality=0.5)
        first = PutPolicyVersion("one", text.name, DAY, text, "ada", "cheaper")
        await storage.apply(SYSTEM_ACCOUNT, [first, replace(first, by="bob", note="again")])
        expected = [PolicyVersion("one", f"{text.name}@2026-11-21", DAY, text, "ada", "cheaper")]
        assert await storage.read(SYSTEM_ACCOUNT, PolicyVersions(("one",))) == expected
        assert await storage.read(SYSTEM_ACCOUNT, PolicyVersions(name=text.name)) == expected

    async def test_the_versions_of_a_name_are_listed_newest_first(self, storage: Storage) -> None:
        days = [NEXT_DAY, *[DAY] * 11, "2026-11-21T09:00:00.000Z"]
        writes = [PutPolicyVersion(f"content {n}", "desk", day) for n, day in enumerate(days)]
        await storage.apply(SYSTEM_ACCOUNT, [*writes, PutPolicyVersion("other", "desk.2", DAY)])
        versions = await storage.read(SYSTEM_ACCOUNT, PolicyVersions(name="desk"))
        assert [version.content for version in versions] == [f"content {n}" for n in (0, 12, *range(11, 0, -1))]
        assert await storage.read(SYSTEM_ACCOUNT, PolicyVersions(name="none")) == []
        assert await storage.read("acme", PolicyVersions(name="desk")) == []

    async def test_policy_records_are_kept_whole_and_listed_by_name(self, storage: Storage) -> None:
        assert await storage.read(SYSTEM_ACCOUNT, PolicyRecords()) == []
        puts = [PutPolicyRecord(record) for record in (DESK, _record("café"), replace(DESK, draft=None), DESK)]
        written = [await storage.apply(SYSTEM_ACCOUNT, [put]) for put in puts]
        assert [result.created for (result,) in written] == [True, True, False, False]
        assert await storage.read(SYSTEM_ACCOUNT, PolicyRecords()) == [_record("café"), DESK]
        assert await storage.read("acme", PolicyRecords()) == []
        with pytest.raises(UnsupportedWrite):
            await storage.apply("acme", [PutPolicyRecord(DESK)])

    async def test_a_policy_record_is_only_changed_as_it_was_read(self, storage: Storage) -> None:
        changed = replace(DESK, content="two", previous=("one",))
        await storage.apply(SYSTEM_ACCOUNT, [PutPolicyRecord(DESK, expect="absent")])
        await storage.apply(SYSTEM_ACCOUNT, [PutPolicyRecord(changed, expect=DESK)])
        puts = [PutPolicyRecord(_record("desk"), expect) for expect in ("absent", DESK, replace(changed, share=None))]
        for put in puts:
            with pytest.raises(PreconditionFailed) as refused:
                await storage.apply(SYSTEM_ACCOUNT, [PutPolicyVersion("lost", "desk", DAY), put])
            assert refused.value.index == 1
        with pytest.raises(PreconditionFailed):
            await storage.apply(SYSTEM_ACCOUNT, [PutPolicyRecord(_record("new"), expect=_record("new"))])
        assert await storage.read(SYSTEM_ACCOUNT, PolicyRecords()) == [changed]
        assert await _labels(storage, "lost") == []

    async def test_learned_statistics_are_added_up_and_settle_with_the_next_epoch(self, storage: Storage) -> None:
        epoch, expected = epoch_at(NOW), None
        for later, good in ((0.0, 1.0), (0.5, 2.0), (EPOCH_S, 4.0), (0.0, 8.0)):
            more = Learned(NOW + later, good=good, first={7: good}, whole={1: 0.5, 900: good})
            expected = added("a/one", expected, more)
            await storage.apply(SYSTEM_ACCOUNT, [AddLearned("production", {"a/one": more, "b/two": more})])
            assert await _learned(storage) == [expected, replace(expected, model="b/two")]
        assert expected is not None
        assert (expected.epoch, round(expected.settled.good), round(expected.pending.good)) == (epoch + 1, 3, 12)

    async def test_only_models_changed_since_are_returned(self, storage: Storage) -> None:
        for number, model in enumerate(("a/one", "b/two", "c/three")):
            write = AddLearned("production", {model: Learned(NOW + number * EPOCH_S, bad=1.0)})
            await storage.apply(SYSTEM_ACCOUNT, [write])
        for number, expected in enumerate((3, 2, 1, 0)):
            assert len(await _learned(storage, epoch_at(NOW) + number)) == expected


def _record(name: str) -> PolicyRecord:
    return PolicyRecord(name=name, owner="file policies.toml", changed_at=AT)


async def _learned(storage: Storage, epoch: int = 0) -> list[LearnedModel]:
    return await storage.read(SYSTEM_ACCOUNT, LearnedSince("production", epoch))


async def _labels(storage: Storage, *contents: str) -> list[str]:
    found = {each.content: each.label for each in await storage.read(SYSTEM_ACCOUNT, PolicyVersions(contents))}
    return [found[each] for each in contents if each in found]


class Owners(AccountsSuite):
    """Two processes. The first counts as dead if it makes no call for a lease."""

    @pytest.fixture
    async def second(self, full: Till, clock: FakeClock) -> AsyncIterator[Till]:
        """The same account in another process."""
        storage = self.other(clock)
        if storage is None:
            pytest.skip("other() opens no second one")
        yield Till(storage)
        await storage.aclose()

    async def test_processes_share_limits_money_and_answers(self, full: Till, second: Till) -> None:
        one = make_account(prepaid=True, monthly_nanos=1_000, limits=RateLimits(requests_per_min=3, concurrency=2))
        await full.put(PutAccount(one))
        await full.admit("c", 800, key="k", same="i")
        assert (await second.short("d", 300)).waits
        await second.admit("d", 200)
        assert (await full.limited())["limit_of"] == "concurrency"
        second.release("d")
        with pytest.raises(IdempotencyKeyReused):
            await second.ask("e", same=Claim("i", "of another"))
        await full.settle("c", make_row(charge=700, key_id="k"), result=b"answer")
        assert await second.ask("e", same="i") == Replay(b"answer")
        assert (await second.short("f", 301)).purse.spent_nanos == 700
        assert (await second.admit("f", 300)).windows[0].remaining == 0
        assert (await full.limited())["limit_of"] == "requests_per_min"

    async def test_changed_terms_apply_at_once_in_every_process(self, full: Till, second: Till) -> None:
        await second.admit("known", 1, key="k")
        second.release("known")
        await full.put(PutAccount(make_account(prepaid=True)))
        await full.put(AddCredit("more", 1_000, AT))
        assert (await second.short("c", 2_001)).purse.limit_nanos == 2_000
        await second.admit("c", 2_000)
        await second.short("d", 1_001, key="k")
        await full.put(RevokeKey("k", AT))
        with pytest.raises(AuthenticationFailed):
            await second.ask("d", key="k")

    async def test_money_freed_in_another_process_goes_to_waiting_calls(
        self, full: Till, second: Till, clock: FakeClock
    ) -> None:
        await full.admit("c", 1_000)
        async with waiting(second, clock, [("a", 500)]) as heard:
            full.release("c")
            await clock.advance(self.lease_s / 2)
            assert [*heard] == ["a"]

    async def test_reservations_of_a_dead_process_are_freed_with_an_expired_row(
        self, full: Till, second: Till, clock: FakeClock
    ) -> None:
        await full.put(PutAccount(make_account(prepaid=True, monthly_nanos=1_000, limits=RateLimits(concurrency=1))))
        await full.admit("lost", 800, key="k", run=RUN, lasts_s=600.0, same="i")
        await clock.advance(self.lease_s - A_MOMENT_S)
        await second.limited()
        await clock.advance(2 * A_MOMENT_S)
        await second.admit("c", 300, lasts_s=600.0, same="i")
        assert await second.purses() == {
            "run:r": (800, 0), "key:k": (0, 0), "key:k:2026-11": (0, 0), "account": (0, 300), MONTH: (0, 300),
        }  # fmt: skip
        (row,) = await second.rows(request_id="lost")
        said = row.attempt, row.kind, row.at, row.key_id, row.cost_nanos, row.charge_nanos, row.cost_range_nanos
        assert said == (0, "expired", AT, "k", 0, 0, (0, 800))
        assert row.note
        second.release("c")
        refused = await second.short("d", 300, run=RUN)
        assert (refused.purse.name, refused.purse.spent_nanos, refused.waits) == ("run:r", 800, False)

    @pytest.mark.parametrize("charge", [None, 0, 100, 900])
    async def test_an_expired_call_that_settles_late_is_booked_once(
        self, full: Till, second: Till, clock: FakeClock, charge: int | None
    ) -> None:
        await full.admit("lost", 800, key="k", run=RUN, lasts_s=600.0)
        await clock.advance(self.lease_s + 1.0)
        await second.admit("c", 100)
        rows = [] if charge is None else [make_row("lost", charge=charge)]
        for _ in range(2):
            await full.settle("lost", *rows)
            purses = await full.purses()
            assert {spent for spent, _ in purses.values()} == {charge or 0}
            assert purses["account"][1] == 100, "another has it by now"
        found = await second.rows(request_id="lost")
        assert [(row.kind, row.cost_range_nanos) for row in found] == [("attempt", None)] * len(rows)
        sums = await second.storage.read("acme", LedgerSums("2026-11-21", "2026-11-21"))
        assert "expired" not in [each.kind for each in sums]

    async def test_an_expired_call_keeps_its_answer_if_its_key_is_free(
        self, full: Till, second: Till, clock: FakeClock
    ) -> None:
        await full.admit("lost", 800, same="i", lasts_s=600.0)
        await clock.advance(self.lease_s + 1.0)
        await second.admit("c", 100)
        await full.settle("lost", make_row("lost", charge=500), result=b"late")
        assert await second.ask("d", same="i") == Replay(b"late")
        assert (await second.purses())["account"] == (500, 100)

    @pytest.mark.parametrize("ended", [False, True])
    async def test_an_expired_call_whose_key_was_taken_is_not_charged(
        self, full: Till, second: Till, clock: FakeClock, ended: bool
    ) -> None:
        trace = make_trace(1, account="acme")
        draft = Draft(trace)
        await full.admit(trace.id, 800, same="i", lasts_s=600.0)
        await clock.advance(self.lease_s + 1.0)
        await second.admit("c", 100, same="i")
        if ended:
            await second.settle("c", make_row(charge=60), result=b"answer")
        await full.settle(trace.id, make_row(trace.id, charge=500), result=b"late", trace=draft)
        assert draft.is_void
        assert [row.charge_nanos for row in await second.rows(request_id=trace.id)] == [0]
        assert [row.cost_nanos for row in await second.rows(request_id=trace.id)] == [500]
        if not ended:
            await second.settle("c", make_row(charge=60), result=b"answer")
        assert await full.ask("d", same="i") == Replay(b"answer")
        assert (await full.purses())["account"] == (60, 0)

    async def test_a_call_that_continues_after_its_lease_is_counted_once(
        self, full: Till, second: Till, clock: FakeClock
    ) -> None:
        await full.admit("slow", 300, run=RUN, lasts_s=600.0)
        await clock.advance(self.lease_s + 1.0)
        await second.admit("c", 100)
        second.release("c")
        assert await second.kinds() == ["expired"]
        await full.admit("slow", 200, run=RUN)
        await full.settle("slow", make_row("slow", charge=150))
        assert (await second.purses()) == dict.fromkeys(PURSES, (150, 0)) | dict.fromkeys(PURSES[1:3], (0, 0))
        assert await second.kinds() == ["attempt"]
