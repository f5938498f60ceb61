"""The webhook dispatcher on virtual time: schedule, leases, isolation and shutdown."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import anyio
import msgspec
import pytest
from msgspec.structs import replace

from routewright import MemoryStorage, Router, SqliteStorage, WebhookSigner
from routewright._core.crypto import NONCE, derive
from routewright._core.webhooks.endpoint import PURPOSE, add_secret
from routewright._engine.webhooks import IN_FLIGHT, LEASE_S, POLL_S, Dispatcher
from routewright.errors import InternalError, SignatureError, StorageUnavailable
from routewright.protocols import BaseStorage
from routewright.testing import FakeClock
from routewright.webhook import StandardWebhookSigner
from routewright.wire import (
    SYSTEM_ACCOUNT,
    ClaimDeliveries,
    Deliveries,
    Delivery,
    EndAttempt,
    Endpoint,
    Endpoints,
    PutEndpoint,
    PutEvent,
    SealedSecret,
    WebhookAnswer,
)
from tests.contracts.storage.samples import make_event

from .scripted_router import on_one_loop

pytestmark = pytest.mark.anyio

SECRET = WebhookSigner.new_secret().reveal()
KEYS = (derive(b"r" * 32, PURPOSE), derive(b"before" * 6, PURPOSE))
Script = str | int | tuple[int, float | None]
"""One outcome: a status, a status with its Retry-After, ``reset``, ``timeout`` or ``drip``."""
OUTCOMES: Sequence[Script] = (
    200, 204, 302, 400, 408, 410, (429, None), (429, 0.5), (429, 90.0), (429, 7_000.0), (429, 1e9), 500, 503,
    "reset", "timeout", "drip",
)  # fmt: skip
DELAYS = {1: 60.0, 2: 300.0, 3: 900.0, 4: 3600.0}
LONGEST = {1: 600.0, 2: 1800.0, 3: 7200.0, 4: 28_800.0}  # a Retry-After may lengthen to twice the next delay


class Receiver:
    """A ``WebhookTransport`` that answers as its script says."""

    def __init__(self, clock: FakeClock, answer: Callable[[str], Script] = lambda url: 200) -> None:
        self._clock = clock
        self._answer = answer
        self.posts: list[tuple[float, str, Mapping[str, str], bytes]] = []
        self.now = self.most = 0
        self.is_closed = False

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> WebhookAnswer:
        self.posts.append((self._clock.monotonic(), url, headers, body))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            match self._answer(url):
                case "reset":
                    raise ConnectionResetError("the connection was closed before an answer")
                case "timeout":
                    await self._clock.sleep(1e9)
                case "slow":
                    await self._clock.sleep(9.5)
                    return WebhookAnswer(200)
                case "drip":
                    while True:
                        await self._clock.sleep(0.9)
                case (int(status), retry_after_s):
                    return WebhookAnswer(status, retry_after_s)
                case int(status):
                    await self._clock.sleep(0.125)
                    return WebhookAnswer(status)
            raise AssertionError
        finally:
            self.now -= 1

    async def aclose(self) -> None:
        self.is_closed = True

    def times(self, url: str) -> list[float]:
        return [at for at, to, _, _ in self.posts if to == url]


def endpoint_of(number: int = 1, key: bytes = KEYS[0], **given: Any) -> Endpoint:
    fields: dict[str, Any] = {
        "id": f"whe_{number:04}", "account": "acme", "url": f"https://hooks.example/{number}",
        "events": ("router.error_burst",), "created_at": "2026-11-21T09:30:00.000Z", "secrets": (),
    }  # fmt: skip
    return add_secret(Endpoint(**fields | given), SECRET, key, number.to_bytes(NONCE))


async def emit(storage: Any, *numbers: int, account: str = "acme", **given: Any) -> None:
    await storage.apply(account, [PutEvent(make_event(number, account=account, **given)) for number in numbers])


async def deliveries(storage: Any) -> list[Delivery]:
    found: list[Delivery] = await storage.scan("acme", Deliveries(), after=None, limit=10_000)
    return found


def dispatcher_of(storage: Any, receiver: Any, clock: FakeClock, **given: Any) -> Dispatcher:
    return Dispatcher(storage, lambda: receiver, lambda: KEYS, clock, **given)


async def dispatched(storage: Any, receiver: Any, clock: FakeClock, *, for_s: float, dispatchers: int = 1) -> None:
    async with anyio.create_task_group() as tasks:
        for _ in range(dispatchers):
            tasks.start_soon(dispatcher_of(storage, receiver, clock).run)
        await clock.sleep(for_s)
        tasks.cancel_scope.cancel()


class Delivering:
    """A dispatcher that runs for the length of the context."""

    def __init__(
        self,
        answer: Callable[[str], Script] = lambda url: 200,
        storage: Any = None,
        clock: FakeClock | None = None,
        **given: Any,
    ) -> None:
        self.clock = clock = clock or FakeClock()
        self.storage: MemoryStorage = storage or MemoryStorage(clock=clock)
        self.receiver = Receiver(clock, answer)
        self.dispatcher = dispatcher_of(self.storage, self.receiver, clock, **given)

    async def __aenter__(self) -> Delivering:
        self._tasks = anyio.create_task_group()
        (await self._tasks.__aenter__()).start_soon(self.dispatcher.run)
        return self

    async def __aexit__(self, *raised: Any) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(*raised)

    async def begin(self) -> None:
        """One endpoint, one event."""
        await self.put(endpoint_of())
        await self.emit(1)

    async def put(self, *endpoints: Endpoint) -> None:
        for each in endpoints:
            await self.storage.apply("acme", [PutEndpoint(each)])

    async def emit(self, *numbers: int, **given: Any) -> None:
        await emit(self.storage, *numbers, **given)
        self.dispatcher.wake()


def expected(script: Sequence[Script]) -> tuple[list[float], str]:
    """When attempts begin, and how the delivery ends: spec 6.5 and contract 11, said once more."""
    at, times = 0.0, []
    for number, outcome in enumerate(script[:5], start=1):
        times.append(at)
        status, retry_after = outcome if isinstance(outcome, tuple) else (outcome, None)
        took = {"reset": 0.0, "timeout": 10.0, "drip": 10.0}.get(str(outcome), 0.125)
        took = 0.0 if isinstance(outcome, tuple) else took
        if isinstance(status, int) and 200 <= status < 300:
            return times, "delivered"
        if isinstance(status, int) and 300 <= status < 500 and status not in (408, 429):
            return times, "rejected"
        if number == 5:
            break
        delay = DELAYS[number]
        if retry_after is not None:
            delay = max(delay, min(retry_after, LONGEST[number]))
        at += took + delay
    return times, "failed_delivery"


@on_one_loop
async def test_the_schedule_is_exact_for_every_sequence_of_outcomes(full: bool) -> None:
    chance = Random()
    for _ in range(200 if full else 2):
        scripts = [[chance.choice(OUTCOMES) for _ in range(6)] for _ in range(100)]
        left = {f"https://hooks.example/{number}": iter(script) for number, script in enumerate(scripts)}
        async with Delivering(lambda url, left=left: next(left[url])) as running:  # type: ignore[misc]
            await running.put(*(endpoint_of(number) for number in range(100)))
            await running.emit(1)
            await running.clock.sleep(200_000.0)
            ended = {each.endpoint_id: each for each in await deliveries(running.storage)}
            for number, script in enumerate(scripts):
                times, state = expected(script)
                assert running.receiver.times(f"https://hooks.example/{number}") == pytest.approx(times, abs=1e-5), (
                    script
                )
                assert ended.get(endpoint_of(number).id) is None or ended[endpoint_of(number).id].state == state


def in_turn(*outcomes: Script) -> Callable[[str], Script]:
    """Answers with one after another."""
    left = iter(outcomes)
    return lambda url: next(left)


async def test_a_delivery_lists_the_outcome_of_each_attempt() -> None:
    async with Delivering(in_turn(503, "reset", "timeout", 204)) as running:
        await running.begin()
        await running.clock.sleep(2_000.0)
        (found,) = await deliveries(running.storage)
        told = [(each.status, each.error, each.duration_ms) for each in found.attempts]
        assert found.state == "delivered"
        assert told == [
            (503, None, 125.0),
            (None, "the connection was closed before an answer", 0.0),
            (None, "no answer within 10 s", 10_000.0),
            (204, None, 125.0),
        ]


async def test_each_attempt_has_a_new_signature_and_the_same_id_and_body() -> None:
    clock, signer = FakeClock(), WebhookSigner(SECRET)
    async with Delivering(in_turn(500, 500, 200), clock=clock) as running:
        await running.put(endpoint_of())
        await running.emit(1, data={"requests": 3, "text": "ü\u2028"})
        await clock.sleep(400.0)
        posts = running.receiver.posts
        assert len({post[2]["Service-Signature"] for post in posts}) == 3
        assert len({(post[2]["Service-Event-Id"], post[2]["Service-Idempotency-Key"], post[3]) for post in posts}) == 1
        for at, _, headers, body in posts:
            signer.verify(body, headers["Service-Signature"], clock.time() - clock.monotonic() + at)
        said = msgspec.json.decode(posts[0][3])
        assert [*said] == ["id", "type", "created_at", "api_version", "data"]
        assert said["data"] == {"requests": 3, "text": "ü\u2028"}
        assert {**posts[0][2], "Service-Signature": ""} == {
            "Content-Type": "application/json", "Service-Event-Id": said["id"], "Service-Event-Type": said["type"],
            "Service-Idempotency-Key": said["id"], "Service-Signature": "",
        }  # fmt: skip


async def test_during_a_rotation_both_secrets_sign_and_later_only_the_new_one() -> None:
    clock, newer = FakeClock(), WebhookSigner.new_secret().reveal()
    signers = WebhookSigner(SECRET), WebhookSigner(newer)
    endpoint = add_secret(endpoint_of(), newer, KEYS[0], b"n" * NONCE, now=clock.time(), overlap_s=100.0)
    async with Delivering(clock=clock) as running:
        await running.put(endpoint)
        for number in (1, 2):
            await running.emit(number)
            await clock.sleep(100.0)
        first, second = [(body, headers["Service-Signature"]) for _, _, headers, body in running.receiver.posts]
        now = clock.time()
        for signer in signers:
            signer.verify(*first, now)
        signers[1].verify(*second, now)
        with pytest.raises(SignatureError):
            signers[0].verify(*second, now)


async def test_an_endpoint_may_take_the_signatures_of_standard_webhooks() -> None:
    async with Delivering() as running:
        await running.put(endpoint_of(profile="standard"))
        await running.emit(1)
        await running.clock.sleep(1.0)
        ((_, _, headers, body),) = running.receiver.posts
        StandardWebhookSigner(SECRET).verify(body, headers, running.clock.time())
        assert "Service-Signature" not in headers


async def test_secrets_sealed_by_the_previous_root_secret_are_resealed(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    old = endpoint_of(key=KEYS[1])
    lost = endpoint_of(2, key=b"k" * 32)
    async with Delivering(clock=clock) as running:
        await running.put(old, lost)
        await running.emit(1)
        await clock.sleep(1.0)
        found = {each.endpoint_id: each for each in await deliveries(running.storage)}
        assert found[old.id].state == "delivered"
        assert (found[lost.id].state, found[lost.id].attempts) == ("waiting", ())  # for who has its root secret
        assert f"the signing secret of webhook endpoint {lost.id} cannot be read" in caplog.text
        resealed, _ = await running.storage.read("acme", Endpoints())
        await running.storage.apply("acme", [PutEndpoint(resealed)])
        alone = Dispatcher(running.storage, lambda: running.receiver, lambda: KEYS[:1], clock)
        assert resealed.secrets != old.secrets
        with anyio.CancelScope() as scope:
            running.dispatcher.is_stopping = True
            await emit(running.storage, 2)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(alone.run)
                await clock.sleep(1.0)
                scope.cancel()
        newest, *_ = [each for each in await deliveries(running.storage) if each.endpoint_id == old.id]
        assert newest.state == "delivered"


async def test_a_secret_that_cannot_be_opened_is_one_line_and_delays_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sealed_once = "bm9uY2Vub25jZW5vbmNlIWNvdmVyZWQgYnkgYSBjaXBoZXIgb2Ygb3VycyE="  # before AES-GCM
    async with Delivering() as running:
        swapped = replace(endpoint_of(1), secrets=endpoint_of(2).secrets)
        old = replace(endpoint_of(3), secrets=(SealedSecret(sealed_once),))
        no_base64 = replace(endpoint_of(4), secrets=(SealedSecret("\u00fc"),))
        await running.put(swapped, old, no_base64, endpoint_of(5))
        await running.emit(1, 2)
        await running.clock.sleep(100.0)
        assert {url for _, url, _, _ in running.receiver.posts} == {"https://hooks.example/5"}
        assert sorted(caplog.messages) == [
            f"the signing secret of webhook endpoint {endpoint.id} cannot be read; set ROUTEWRIGHT_SECRET to the root "
            "secret it was made with, or rotate the endpoint's secret"
            for endpoint in (swapped, old, no_base64)
        ]
        caplog.clear()
        monkeypatch.setitem(sys.modules, "cryptography", None)
        monkeypatch.delitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead")
        monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
        await running.emit(3)
        await running.clock.sleep(100.0)
        (line,) = caplog.messages
        assert line.startswith("opening signing secrets needs the extra 'webhooks'")


@on_one_loop
async def test_a_dead_endpoint_delays_the_first_attempts_of_no_other() -> None:
    dead = "https://hooks.example/0"
    async with Delivering(lambda url: "timeout" if url == dead else 200) as running:
        await running.put(endpoint_of(0))
        await running.emit(*range(1_000))
        await running.put(*(endpoint_of(number) for number in range(1, 100)))
        await running.clock.sleep(0.5)
        began = running.clock.monotonic()
        await running.emit(*range(1_000, 1_010))
        await running.clock.sleep(5.0)
        firsts = [at for at, url, _, _ in running.receiver.posts if url != dead]
        assert len(firsts) == 990
        assert max(firsts) - began < 1.0
        assert len(running.receiver.times(dead)) == 1


@on_one_loop
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_endpoints_of_one_account_that_hang_do_not_delay_another_account(kind: str, tmp_path: Any) -> None:
    clock = FakeClock()
    storage: Any = SqliteStorage(tmp_path / "s.db", clock=clock) if kind == "sqlite" else MemoryStorage(clock=clock)
    async with Delivering(lambda url: 200 if "victim" in url else "timeout", storage, clock) as running:
        await running.put(*(endpoint_of(number) for number in range(150)))
        for number in range(3):
            victim = endpoint_of(2_000 + number, account=f"victim{number}", url=f"https://hooks.example/victim{number}")
            await storage.apply(victim.account, [PutEndpoint(victim)])
        await running.emit(1)
        for number in range(3):
            await clock.sleep(7.0)
            began = clock.monotonic()
            await emit(storage, 100 + number, account=f"victim{number}")
            running.dispatcher.wake()
            await clock.sleep(2.0)
            (at,) = running.receiver.times(f"https://hooks.example/victim{number}")
            assert at - began < 0.1


@on_one_loop
async def test_no_account_has_more_than_a_quarter_of_the_attempts_while_others_wait() -> None:
    async with Delivering(lambda url: "slow") as running:
        for number in range(3):
            for place in range(300):
                endpoint = endpoint_of(1_000 * number + place, account=f"a{number}", url=f"https://a{number}/{place}")
                await running.storage.apply(endpoint.account, [PutEndpoint(endpoint)])
            await emit(running.storage, number, account=f"a{number}")
        running.dispatcher.wake()
        await running.clock.sleep(1.0)
        begun = Counter(url[:10] for _, url, _, _ in running.receiver.posts)
        assert begun == {f"https://a{number}": IN_FLIGHT // 4 for number in range(3)}
        await running.clock.sleep(60.0)
        assert len(running.receiver.posts) == 900


async def test_endpoints_beyond_the_first_claim_follow_as_soon_as_an_attempt_has_ended() -> None:
    async with Delivering() as running:
        for number in range(2 * IN_FLIGHT):
            account = f"a{number % 8}"
            await running.storage.apply(account, [PutEndpoint(endpoint_of(number, account=account))])
        for number in range(8):
            await emit(running.storage, number, account=f"a{number}")
        running.dispatcher.wake()
        await running.clock.sleep(1.0)
        assert len(running.receiver.posts) == 2 * IN_FLIGHT


async def test_the_first_endpoint_that_another_process_registers_is_served_within_five_seconds() -> None:
    clock = FakeClock()
    storage = MemoryStorage(clock=clock)
    receiver = Receiver(clock)
    dispatcher = dispatcher_of(storage, receiver, clock)
    dispatcher._poll_s = POLL_S  # as of a storage that other processes share
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(dispatcher.run)
        await clock.sleep(31.0)
        await storage.apply("acme", [PutEndpoint(endpoint_of())])
        await emit(storage, 1)
        await clock.sleep(5.0)
        assert len(receiver.posts) == 1
        tasks.cancel_scope.cancel()


@on_one_loop
async def test_slow_endpoints_of_an_account_leave_a_quarter_of_the_attempts_to_others() -> None:
    async with Delivering(lambda url: "slow") as running:
        await running.put(*(endpoint_of(number, url=f"https://hooks.example/{number:04}") for number in range(32)))
        await running.emit(*range(60))
        await running.clock.sleep(60.0)
        assert running.receiver.now == IN_FLIGHT * 3 // 4


@on_one_loop
async def test_dead_endpoints_have_half_of_the_attempts_at_most() -> None:
    async with Delivering(lambda url: "timeout" if int(url[-4:].strip("/e")) < 200 else 200) as running:
        await running.put(*(endpoint_of(number, url=f"https://hooks.example/{number:04}") for number in range(200)))
        await running.emit(1, 2, 3)
        await running.clock.sleep(35.0)  # all are known to be dead by then
        await running.put(endpoint_of(900, url="https://hooks.example/0900"))
        began = running.clock.monotonic()
        await running.emit(900)
        await running.clock.sleep(1.0)
        assert running.receiver.times("https://hooks.example/0900") == [began]
        assert running.receiver.most <= IN_FLIGHT
        assert running.receiver.now == IN_FLIGHT // 2


async def test_a_refused_outcome_delays_no_other() -> None:
    class Picky(MemoryStorage):
        async def apply(self, account: str, writes: Any) -> Any:
            if any(isinstance(each, EndAttempt) and each.endpoint_id == "whe_0001" for each in writes):
                raise InternalError("not this one")
            return await super().apply(account, writes)

    clock = FakeClock()
    storage = Picky(clock=clock)
    async with Delivering(storage=storage, clock=clock) as running:
        await running.put(*(endpoint_of(number) for number in range(20)))
        await running.emit(1)
        await clock.sleep(5.0)
        states = {each.endpoint_id: each.state for each in await deliveries(storage)}
        assert states.pop("whe_0001") == "in_flight"
        assert set(states.values()) == {"delivered"}


async def test_an_unreadable_root_secret_is_retried() -> None:
    clock, broken = FakeClock(), [True]

    def keys() -> Sequence[bytes]:
        if broken[0]:
            raise StorageUnavailable("other users can read the file")
        return KEYS

    async with Delivering(clock=clock) as running:
        running.dispatcher._keys = keys
        await running.begin()
        await clock.sleep(6.0)
        broken[0] = False
        await clock.sleep(60.0)
        (found,) = await deliveries(running.storage)
        assert (found.state, len(found.attempts)) == ("delivered", 1)


async def test_no_attempt_starts_if_its_lease_would_end_first() -> None:
    class Slow(MemoryStorage):
        async def apply(self, account: str, writes: Any) -> Any:
            done = await super().apply(account, writes)
            if isinstance(writes[0], ClaimDeliveries) and done[0].count and self.clock.monotonic() < 1.0:
                await self.clock.sleep(21.0)
            return done

    clock = FakeClock()
    async with Delivering(storage=Slow(clock=clock), clock=clock) as running:
        await running.begin()
        await clock.sleep(60.0)
        assert running.receiver.times(endpoint_of().url) == pytest.approx([21.0], abs=1e-5)


async def test_three_dispatchers_deliver_each_event_once_to_each_endpoint(tmp_path: Any) -> None:
    clock = FakeClock()
    storage = SqliteStorage(tmp_path / "store.db", clock=clock)
    receiver = Receiver(clock)
    for number in range(5):
        await storage.apply("acme", [PutEndpoint(endpoint_of(number))])
    await emit(storage, *range(40))
    await dispatched(storage, receiver, clock, for_s=10.0, dispatchers=3)
    told = [(url, headers["Service-Event-Id"]) for _, url, headers, _ in receiver.posts]
    assert len(told) == len(set(told)) == 200
    assert {each.state for each in await deliveries(storage)} == {"delivered"}
    await storage.aclose()


async def test_the_lease_of_a_dead_process_is_taken_over_when_it_ends() -> None:
    clock = FakeClock()
    async with Delivering(lambda url: 200, clock=clock) as running:
        await running.put(endpoint_of())
        running.dispatcher.is_stopping = True
        await running.emit(1)
        gone = dispatcher_of(running.storage, Receiver(clock, lambda url: "timeout"), clock)
        gone._store = partial(anyio.sleep, 0)  # type: ignore[method-assign]  # killed: nothing is recorded
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gone.run)
            await clock.sleep(5.0)
            tasks.cancel_scope.cancel()
        running.dispatcher.is_stopping = False
        running.dispatcher.wake()
        await clock.sleep(60.0)
        assert running.receiver.times(endpoint_of().url) == pytest.approx([LEASE_S], abs=1e-5)


async def test_attempts_in_flight_are_returned_on_cancellation() -> None:
    clock = FakeClock()
    storage = MemoryStorage(clock=clock)
    await storage.apply("acme", [PutEndpoint(endpoint_of())])
    await emit(storage, 1)
    hanging = Receiver(clock, lambda url: "timeout")
    await dispatched(storage, hanging, clock, for_s=5.0)
    assert hanging.is_closed
    (found,) = await deliveries(storage)
    assert (found.state, found.attempts) == ("waiting", ())
    receiver = Receiver(clock)
    await dispatched(storage, receiver, clock, for_s=1.0)
    assert len(receiver.posts) == 1


class Faltering(MemoryStorage):
    """Cannot be reached between two times."""

    since = until = 0.0

    async def apply(self, account: str, writes: Any) -> Any:
        if account == SYSTEM_ACCOUNT and self.since <= self.clock.monotonic() < self.until:
            raise StorageUnavailable("away")
        return await super().apply(account, writes)


async def test_outcomes_wait_for_an_unavailable_storage(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    storage = Faltering(clock=clock)
    async with Delivering(storage=storage, clock=clock) as running:
        await running.begin()
        storage.since, storage.until = 0.1, 8.0  # the attempt ends at 0.125
        await clock.sleep(20.0)
        (found,) = await deliveries(storage)
        assert (found.state, len(found.attempts), len(running.receiver.posts)) == ("delivered", 1, 1)
        assert [each.getMessage() for each in caplog.records] == ["webhooks wait for the storage: away"]


async def test_an_unexpected_exception_of_the_transport_fails_the_attempt(caplog: pytest.LogCaptureFixture) -> None:

    def answer(url: str) -> Script:
        raise RuntimeError("secret")

    async with Delivering(answer) as running:
        await running.begin()
        await running.clock.sleep(61.0)
        (found,) = await deliveries(running.storage)
        assert [each.error for each in found.attempts] == ["internal error"] * 2


async def test_the_log_says_once_when_an_endpoint_fails_and_when_it_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with Delivering(in_turn(503, "reset", 200, 200)) as running:
        await running.begin()
        await running.clock.sleep(400.0)
        await running.emit(2)
        await running.clock.sleep(1.0)
    assert [each.getMessage() for each in caplog.records] == [
        "webhook endpoint whe_0001 of acme fails: it answered 503",
        "webhook endpoint whe_0001 of acme works again, after 6 min",
    ]


async def test_a_disabled_endpoint_gets_nothing_more() -> None:
    async with Delivering(lambda url: 500) as running:
        await running.begin()
        await running.clock.sleep(1.0)
        await running.put(replace(endpoint_of(), disabled_at="2026-11-22T00:00:00.000Z"))
        await running.emit(2)
        await running.clock.sleep(10_000.0)
        assert len(running.receiver.posts) == 1


async def test_more_attempts_reach_the_last_delay_of_the_schedule() -> None:
    async with Delivering(lambda url: "reset", max_attempts=6) as running:
        await running.begin()
        await running.clock.sleep(50_000.0)
        assert running.receiver.times(endpoint_of().url) == pytest.approx([0, 60, 360, 1260, 4860, 19_260], abs=1e-5)


@pytest.mark.parametrize("has_accounts", [False, True])
def test_a_storage_without_accounts_is_not_asked_for_deliveries_at_the_start(has_accounts: bool) -> None:
    asked = list[object]()

    class Own(BaseStorage):
        accounts = MemoryStorage().accounts if has_accounts else None

        @property
        def has_endpoints(self) -> bool:
            asked.append(self)
            return False

        async def read(self, *_: object, **__: object) -> Any:
            raise StorageUnavailable("it is away")

        apply = scan = sweep = read

        async def aclose(self) -> None:
            pass

    storage: Any = Own()
    router = Router.sandbox(storage=storage)
    _ = router._parts.engine
    router.blocking.close()
    assert bool(asked) is has_accounts


@pytest.mark.full
async def test_memory_is_flat_over_a_million_deliveries() -> None:
    clock, chance, sizes = FakeClock(), Random(1), []
    storage = MemoryStorage(clock=clock, newest=1_000)
    async with Delivering(lambda url: chance.choice((200, 200, 200, 204, 404)), storage, clock=clock) as running:
        await running.put(*(endpoint_of(number) for number in range(100)))
        for number in range(10_000):
            await running.emit(number)
            await clock.sleep(1.0)
            running.receiver.posts.clear()
            if number % 500 == 499:
                await running.storage.sweep(clock.time())
                gc.collect()
                sizes.append(resident_kib())
        assert len(await deliveries(running.storage)) == 1_000
    assert max(sizes[10:]) - sizes[4] < 1_024, sizes  # under a KiB per thousand deliveries


def resident_kib() -> int:
    """The memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4
