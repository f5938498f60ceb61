"""What all processes of a store agree on: the versions of policies, and what attempts taught."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from routewright._core.attempts.learned import EPOCH_S, added, epoch_at
from routewright.errors import UnsupportedWrite
from routewright.protocols import Storage
from routewright.wire import (
    SYSTEM_ACCOUNT,
    AddLearned,
    Learned,
    LearnedModel,
    LearnedSince,
    PolicyVersion,
    PolicyVersions,
    PutPolicyVersion,
)

from .basics import Suite
from .samples import NOW

DAY, NEXT_DAY = "2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"


class Agreeing(Suite):
    """Whoever asks is told the same."""

    async def test_a_content_has_the_version_that_it_had_first(self, storage: Storage) -> None:
        for created_at in (DAY, NEXT_DAY):
            (written,) = await storage.apply(SYSTEM_ACCOUNT, [PutPolicyVersion("one", "desk", created_at)])
            assert written.created == (created_at == DAY)
            assert await _labels(storage, "one") == ["desk@2026-11-21"]

    async def test_a_label_is_given_to_one_content_alone(self, storage: Storage) -> None:
        asked = [("one", "desk", DAY), ("two", "desk", DAY), ("three", "desk", NEXT_DAY), ("four", "desk", DAY),
                 ("five", "desk.2", DAY), ("six", "", DAY), ("seven", "désk%", DAY)]  # fmt: skip
        await storage.apply(SYSTEM_ACCOUNT, [PutPolicyVersion(*each) for each in asked])
        contents = [content for content, *_ in asked]
        assert await _labels(storage, *contents) == [
            *("desk@2026-11-21", "desk@2026-11-21.2", "desk@2026-11-22", "desk@2026-11-21.3"),
            *("desk.2@2026-11-21", "@2026-11-21", "désk%@2026-11-21"),
        ]

    async def test_contents_without_a_version_are_left_out(self, storage: Storage) -> None:
        await storage.apply(SYSTEM_ACCOUNT, [PutPolicyVersion("one", "desk", DAY)])
        found = await storage.read(SYSTEM_ACCOUNT, PolicyVersions(("none", "one")))
        assert found == [PolicyVersion("one", "desk@2026-11-21", DAY)]
        assert await storage.read(SYSTEM_ACCOUNT, PolicyVersions(())) == []
        assert await storage.read("acme", PolicyVersions(("one",))) == []

    async def test_versions_belong_to_no_account(self, storage: Storage) -> None:
        with pytest.raises(UnsupportedWrite):
            await storage.apply("acme", [PutPolicyVersion("one", "desk", DAY)])
        assert await _labels(storage, "one") == []

    async def test_what_processes_learned_is_added_up_and_known_from_the_next_epoch_on(self, storage: Storage) -> None:
        epoch, expected = epoch_at(NOW), None
        for later, good in ((0.0, 1.0), (0.5, 2.0), (EPOCH_S, 4.0), (0.0, 8.0)):
            more = Learned(NOW + later, good=good, first={7: good}, whole={1: 0.5, 900: good})
            expected = added("a/one", expected, more)
            await storage.apply(SYSTEM_ACCOUNT, [AddLearned("production", {"a/one": more, "b/two": more})])
            assert await _learned(storage) == [expected, replace(expected, model="b/two")]
        assert expected is not None
        assert (expected.epoch, round(expected.settled.good), round(expected.pending.good)) == (epoch + 1, 3, 12)

    async def test_only_those_are_told_that_were_added_to_since(self, storage: Storage) -> None:
        for number, model in enumerate(("a/one", "b/two", "c/three")):
            write = AddLearned("production", {model: Learned(NOW + number * EPOCH_S, bad=1.0)})
            await storage.apply(SYSTEM_ACCOUNT, [write])
        for number, expected in enumerate((3, 2, 1, 0)):
            assert len(await _learned(storage, epoch_at(NOW) + number)) == expected

    async def test_fleets_learn_apart_and_belong_to_no_account(self, storage: Storage) -> None:
        write = AddLearned("sandbox", {"a/one": Learned(NOW, bad=1.0)})
        with pytest.raises(UnsupportedWrite):
            await storage.apply("acme", [write])
        await storage.apply(SYSTEM_ACCOUNT, [write])
        assert await _learned(storage) == []
        assert await storage.read("acme", LearnedSince("sandbox", 0)) == []
        assert len(await storage.read(SYSTEM_ACCOUNT, LearnedSince("sandbox", 0))) == 1


async def _learned(storage: Storage, epoch: int = 0) -> list[LearnedModel]:
    return await storage.read(SYSTEM_ACCOUNT, LearnedSince("production", epoch))


async def _labels(storage: Storage, *contents: str) -> list[str]:
    found = {each.content: each.label for each in await storage.read(SYSTEM_ACCOUNT, PolicyVersions(contents))}
    return [found[each] for each in contents if each in found]
