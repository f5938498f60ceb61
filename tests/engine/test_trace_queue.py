"""A Router's reads and deletes include its own traces that are not written yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from routewright import Console, MemoryStorage, Router, Settings, TraceStore
from routewright.errors import NotFound, StorageUnavailable
from routewright.testing import FakeClock
from routewright.wire import PutTrace, Write, Written

from .scripted_router import to_close

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("closing")]


class Busy(MemoryStorage):
    """Traces wait for it, and those of ``busy`` accounts cannot be written for now."""

    keep = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.busy: set[str] = set()

    async def apply(self, account: str, writes: Sequence[Write]) -> list[Written]:
        if account in self.busy and isinstance(writes[0], PutTrace):
            raise StorageUnavailable("busy")
        return await super().apply(account, writes)


def over(storage: Busy) -> tuple[Router, Busy]:
    """A Router that is closed at the end of the test, and its storage."""
    router = Router.sandbox(storage=storage, settings=Settings(clock=FakeClock(autojump=False)))
    to_close.append(router)
    return router, storage


async def count(storage: Busy, account: str = "default") -> int:
    return len([trace async for trace in TraceStore(storage).export(account=account)])


@pytest.mark.parametrize("which", [{"everything": True}, {"filter": "metadata.customer=c-17"}, {}])
async def test_a_deletion_is_refused_while_queued_traces_cannot_be_written(which: dict[str, Any]) -> None:
    router, storage = over(Busy())
    await router.route("hi", metadata={"customer": "c-17"})
    await router.flush()
    storage.busy.add("default")
    answer = await router.route("hi", metadata={"customer": "c-17"})
    which = which or {"trace_id": answer.trace_id}
    said = "1 of this account's traces wait for the storage; delete again once it is back"
    with pytest.raises(StorageUnavailable, match=said):
        await router.traces.delete(**which)
    assert (await count(storage), router.trace_counts.waiting) == (1, 1)
    storage.busy.clear()
    assert await router.traces.delete(**which) == (1 if "trace_id" in which else 2)
    await router.flush()
    assert await count(storage) == (1 if "trace_id" in which else 0)


async def test_a_queued_trace_of_a_revoked_key_is_marked_compromised() -> None:
    router, storage = over(Busy())
    console = Console(storage, secret="0123456789abcdef" * 4, clock=FakeClock())
    await console.create_account("acme")
    new = await console.create_key("acme", name="x", environment="sandbox")
    settle, away = storage.accounts.settle, [StorageUnavailable("away")]

    async def settled(*asked: Any) -> Any:
        if away:
            raise away.pop()
        return await settle(*asked)

    storage.accounts.settle = settled  # type: ignore[assignment, method-assign]
    answer = await router.route("hi", caller=await console.authenticate(f"Bearer {new.secret.reveal()}", "sandbox"))
    await console.revoke_key("acme", new.key.id)
    assert router.trace_counts.waiting == 1
    assert (await router.traces.get(answer.trace_id, account="acme")).compromised


async def test_a_deletion_includes_queued_traces() -> None:
    router, storage = over(Busy())
    await router.route("hi")
    assert await router.traces.delete(everything=True) == 1
    assert (await count(storage), router.trace_counts.waiting) == (0, 0)


async def test_queued_traces_delay_no_feedback_and_no_report() -> None:
    router, storage = over(Busy())
    answer = await router.route("hi")
    await router.flush()
    storage.busy.add("default")
    await router.route("hi")
    await router.traces.feedback(answer.trace_id, 1.0)
    assert (await router.traces.usage()).totals.requests == 1


class Plain(Busy):
    """Neither hashable nor equal to itself."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False


async def test_any_store_of_the_same_storage_object_reads_what_each_router_has_queued() -> None:
    storage = Plain()
    store = TraceStore(storage, clock=FakeClock())
    routers = [over(storage)[0] for _ in range(2)]
    answers = [await router.route("hi") for router in routers]
    assert [router.trace_counts.waiting for router in routers] == [1, 1]
    for answer in answers:
        assert (await store.get(answer.trace_id)).id == answer.trace_id
        with pytest.raises(NotFound):
            await TraceStore(Busy()).get(answer.trace_id)
    assert [router.trace_counts.waiting for router in routers] == [1, 1], "they were read from the queues"
    assert (await store.usage(environment="all")).totals.requests == 2
    assert [router.trace_counts.waiting for router in routers] == [0, 0]
    for router in routers:
        await router.route("hi")
    storage.busy.add("default")
    with pytest.raises(StorageUnavailable, match="2 of this account's traces wait"):
        await store.delete(everything=True)
    storage.busy.clear()
    assert len((await store.query()).data) == 4
