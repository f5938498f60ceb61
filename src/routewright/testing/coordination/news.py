"""What one says all hear who listen, at once."""

from __future__ import annotations

import anyio

from routewright.protocols import Coordination
from routewright.testing.clock import FakeClock
from routewright.wire import Heard, Notice

from .suite import Suite

FIRST, SECOND = Notice("revoked", "key_1"), Notice("policies", "")


class News(Suite):
    """Notices."""

    async def test_one_who_asks_first_learns_where_the_news_are_at_once(
        self, coordination: Coordination, clock: FakeClock
    ) -> None:
        await coordination.announce(FIRST)
        asked = clock.monotonic()
        heard = await coordination.hear(None)
        assert (heard.notices, clock.monotonic()) == ((), asked)
        await coordination.announce(SECOND)
        assert (await coordination.hear(heard.last)).notices == (SECOND,)

    async def test_what_was_said_since_is_heard_in_order_and_once(self, coordination: Coordination) -> None:
        start = (await coordination.hear(None)).last
        for notice in (FIRST, SECOND, FIRST):
            await coordination.announce(notice)
        heard = await coordination.hear(start)
        assert heard.notices == (FIRST, SECOND, FIRST)
        await coordination.announce(SECOND)
        assert (await coordination.hear(heard.last)).notices == (SECOND,)

    async def test_one_who_waits_is_woken(self, coordination: Coordination, clock: FakeClock) -> None:
        start = (await coordination.hear(None)).last
        heard = list[Heard]()

        async def listen() -> None:
            heard.append(await coordination.hear(start))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(listen)
            await clock.sleep(1.0)
            said_at = clock.monotonic()
            await coordination.announce(FIRST)
        assert [each.notices for each in heard] == [(FIRST,)] * 3
        assert clock.monotonic() - said_at < 1.0

    async def test_one_who_waits_in_vain_is_told_so(self, coordination: Coordination, clock: FakeClock) -> None:
        start = (await coordination.hear(None)).last
        asked = clock.monotonic()
        heard = await coordination.hear(start)
        assert heard.notices == ()
        assert 0 < clock.monotonic() - asked < 30.0
        await coordination.announce(FIRST)
        assert (await coordination.hear(heard.last)).notices == (FIRST,)

    async def test_one_who_no_longer_waits_misses_nothing(self, coordination: Coordination, clock: FakeClock) -> None:
        start = (await coordination.hear(None)).last
        with clock.deadline(clock.monotonic() + 1.0) as deadline:
            await coordination.hear(start)
        assert deadline.expired
        await coordination.announce(FIRST)
        assert (await coordination.hear(start)).notices == (FIRST,)
