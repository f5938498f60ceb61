"""``Console``: accounts, their money and keys, incidents, and the secret behind all keys."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from random import SystemRandom
from typing import Literal, get_args

import anyio
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from ._core.account import RANDOM_BYTES, SHOWN, is_live, new_key
from ._core.batch import MOST_CREDIT
from ._core.derive import seal
from ._core.money import usd_text
from ._core.request.problems import listed, shown
from ._core.terms import account_terms, changed, checked_account, credit_of, incident_terms, key_terms, told
from ._core.timestamps import timestamp
from ._core.webhooks.endpoint import (
    MAX_OVERLAP_S,
    OVERLAP_S,
    PURPOSE,
    SAMPLES,
    check_url,
    checked_events,
    is_place,
    opened,
    rotated,
)
from ._core.webhooks.outbox import ATTEMPT_S
from ._engine.hooks import events_of
from ._engine.storage import GuardedStorage, no_accounts, unhindered
from ._engine.webhooks import Dispatcher, post, wake
from ._engine.worker import Worker
from .arguments import (
    ENVIRONMENTS,
    check_choice,
    check_key_id,
    check_new_owner,
    check_owner,
    check_storage,
    check_whose,
)
from .authentication import Authenticator
from .backends.clock import SystemClock
from .blocking import Closing, Twin, plain
from .coordination import RECHECK_S
from .errors import NotFound, PreconditionFailed, Problem, StorageUnavailable, UnsupportedWrite, ValidationFailed
from .identity import Ids
from .protocols import Clock, Storage, WebhookTransport
from .root_secret import RootSecret, given_secrets
from .settings import WebhookSettings
from .storage import open_storage
from .webhook import WebhookSigner
from .wire import (
    SYSTEM_ACCOUNT,
    Account,
    AccountStanding,
    AddCredit,
    AllAccounts,
    Caller,
    Credit,
    DeleteEndpoint,
    Deliveries,
    Delivery,
    DeliveryAttempt,
    DeliveryState,
    Endpoint,
    Endpoints,
    Environment,
    EventType,
    Incident,
    IncidentCreated,
    Incidents,
    Key,
    Keys,
    KeyStanding,
    LedgerRows,
    NewEndpoint,
    NewKey,
    PlanName,
    Purse,
    PutAccount,
    PutEndpoint,
    PutEvent,
    PutIncident,
    PutKey,
    RateLimits,
    ReplayDeliveries,
    RevokeKey,
    Scope,
    SealedSecret,
    Severity,
    SignatureProfile,
    Standing,
    Stands,
    Write,
    Written,
)
from .wire.account import Secret


class Console(Closing):
    """Sets up accounts and their keys, and says whose a key is.

        console = Console("sqlite:///traces.db")
        await console.create_account("acme", plan="pro", monthly_limit_usd=500)
        new = await console.create_key("acme", name="website")
        caller = await console.authenticate(f"Bearer {new.secret.reveal()}", "production")

    ``storage`` is a storage or its URL, the one that the Routers have whose callers it speaks of. What it changes holds
    for the next call that is admitted there, and for what is only read within two seconds. ``secret`` takes the place
    of the root secret of the environment, or beside the store: one, or that in use and the one before it.
    ``recheck_s``: so long, at most two seconds, ``authenticate`` goes by what it found out before.

    Money is in US dollars, months are those of UTC. ``RateLimits`` are requests and tokens in any minute, and calls at
    a time. Plans: free (60, 60,000, 5), pro (600, 600,000, 25), team (3,000, 3,000,000, 100), enterprise (its
    ``limits``), unlimited."""

    def __init__(
        self,
        storage: Storage | str,
        *,
        secret: str | Sequence[str] | None = None,
        clock: Clock | None = None,
        recheck_s: float = RECHECK_S,
    ) -> None:
        if isinstance(storage, str):
            storage = open_storage(storage, clock=clock)
        check_storage(storage)
        self._storage = storage
        self._checked: Storage = GuardedStorage(storage)
        self._clock = clock or SystemClock()
        self._ids = Ids(self._clock, SystemRandom())
        self._secret = RootSecret(storage, os.environ, () if secret is None else given_secrets(secret))
        self._authenticator = Authenticator(self._checked, self._secret, self._clock, recheck_s)

    @cached_property
    def blocking(self) -> BlockingConsole:
        """The same methods for code without ``await``."""
        return BlockingConsole(self, Worker(self._clock))

    def __repr__(self) -> str:
        return f"Console({self._storage!r})"

    async def create_account(
        self,
        name: str,
        *,
        plan: PlanName = "free",
        limits: RateLimits | None = None,
        prepaid: bool = False,
        monthly_limit_usd: float | None = None,
    ) -> Account:
        """Set an account up. ``limits`` take the place of those of its plan, each that is not None; ``enterprise`` has
        no others. ``prepaid``: what its calls cost is paid from its ``credit``. ``monthly_limit_usd``: the most that it
        may be charged in a month, None without one. Raises ``ValidationFailed``, and ``InternalError`` if the storage
        has no ``accounts`` to enforce the terms."""
        self._check_accounts()
        check_new_owner("name", name)
        given = {"plan": plan, "limits": limits, "prepaid": prepaid, "monthly_limit_usd": monthly_limit_usd}
        account = checked_account(Account(name=name, created_at=self._now(), **account_terms(given)))
        try:
            await self._change(name, PutAccount(account, expect="absent"))
        except PreconditionFailed as error:
            problem = Problem("name", f"{told(name)} is set up already", "change_account() changes its terms")
            raise ValidationFailed.of(problem) from error
        return account

    async def change_account(
        self,
        name: str,
        *,
        plan: PlanName | UnsetType = UNSET,
        limits: RateLimits | UnsetType | None = UNSET,
        prepaid: bool | UnsetType = UNSET,
        monthly_limit_usd: float | UnsetType | None = UNSET,
    ) -> Account:
        """Change what is given of its terms, and nothing else, not what others change meanwhile. ``limits`` are taken
        as a whole: what is None in them is as its plan says; None ends all of its own. Raises ``NotFound`` and
        ``ValidationFailed``, and ``PreconditionFailed`` where others change it all the time."""
        given = {"plan": plan, "limits": limits, "prepaid": prepaid, "monthly_limit_usd": monthly_limit_usd}
        terms = account_terms(given)

        async def attempt() -> Account:
            there = await self.account(name)
            account = checked_account(changed(there, terms))
            await self._change(name, PutAccount(account, expect=there))
            return account

        return await unhindered(attempt, f"account {told(name)}")

    async def account(self, name: str) -> Account:
        """Its terms. Raises ``NotFound`` for one that nobody set up."""
        found = await self._stands(name)
        if found.account is None:
            raise NotFound(f"no account {told(name)}")
        return found.account

    async def accounts(self) -> list[Account]:
        """All that were set up, by name."""
        return await self._checked.read(SYSTEM_ACCOUNT, AllAccounts())

    async def credit(self, account: str, usd: float, *, note: str = "", id: str | None = None) -> Credit:
        """Add to the balance of an account; a negative amount takes back. Of an ``id`` that was there before, that of
        an invoice for instance, nothing is done; without one each call counts. Of an account that is not ``prepaid`` it
        is kept, and not used before it is. Raises ``NotFound`` and ``ValidationFailed``."""
        nanos, note, credit_id = credit_of(usd, note, id)
        given = AddCredit(credit_id or self._ids("cr_"), nanos, self._now(), note)
        await self.account(account)
        try:
            written = await self._change(account, given)
        except PreconditionFailed as error:
            problem = f"goes beyond ${usd_text(MOST_CREDIT)} of credit in all, the most that an account has"
            raise ValidationFailed.at("usd", problem, "take a smaller amount") from error
        if not written.created:
            await self._check_repeated(account, given)
        balance = _balance(await self._stands(account))
        return Credit(given.id, nanos, written.created, None if balance is None else balance.left_nanos)

    async def standing(self, account: str) -> AccountStanding:
        """Its balance, and what was charged this month; so of its keys that have budgets. Raises ``NotFound``."""
        stands = await self._stands(account)
        if stands.account is None:
            raise NotFound(f"no account {told(account)}")
        month = next(purse for purse in stands.purses if purse.level == "month")
        limited = [key for key in await self.keys(account) if key.has_limited_money]
        keys = [await self._key_standing(key) for key in limited]
        return AccountStanding(stands.account, _balance(stands), month, tuple(keys))

    async def create_key(
        self,
        account: str,
        *,
        name: str,
        environment: Environment = "production",
        scopes: Sequence[Scope] | None = None,
        limits: RateLimits | None = None,
        budget_usd: float | None = None,
        monthly_limit_usd: float | None = None,
    ) -> NewKey:
        """Make a key to an account. It is shown this once, and kept as a digest. ``scopes``: what it is for, None all.
        ``limits`` count besides those of the account, ``budget_usd`` is the most that may ever be charged for its
        calls, ``monthly_limit_usd`` the most in a month. Raises ``NotFound``, ``ValidationFailed`` and
        ``StorageUnavailable``, and ``InternalError`` if the storage has no ``accounts``."""
        self._check_accounts()
        given = {"name": name, "environment": environment, "scopes": scopes, "limits": limits,
                 "budget_usd": budget_usd, "monthly_limit_usd": monthly_limit_usd}  # fmt: skip
        terms = key_terms(given)
        await self.account(account)
        text = new_key(environment, secrets.token_bytes(RANDOM_BYTES))
        digest, prefix, now = self._digest(text), text[:SHOWN], self._now()
        key = Key(id=self._ids("key_"), account=account, digest=digest, prefix=prefix, created_at=now, **terms)
        await self._change(account, PutKey(key, expect="absent"))
        return NewKey(Secret(text), key)

    async def keys(self, account: str) -> list[Key]:
        """All keys to an account, oldest first, revoked ones too."""
        check_owner("account", account)
        return await self._checked.read(account, Keys())

    async def key(self, account: str, key_id: str) -> Key:
        """One of them. Raises ``NotFound`` alike for an unknown id and for another account's."""
        check_key_id("key_id", key_id)
        found = (await self._stands(account, key_id)).key
        if found is None:
            raise NotFound(f"no key {told(key_id)}")
        return found

    async def change_key(
        self,
        account: str,
        key_id: str,
        *,
        name: str | UnsetType = UNSET,
        scopes: Sequence[Scope] | UnsetType | None = UNSET,
        limits: RateLimits | UnsetType | None = UNSET,
        budget_usd: float | UnsetType | None = UNSET,
        monthly_limit_usd: float | UnsetType | None = UNSET,
    ) -> Key:
        """Change what is given of a key, and nothing else, not what others change meanwhile. ``limits`` are taken as a
        whole: what is None in them has no limit. Raises ``NotFound`` and ``ValidationFailed``, and
        ``PreconditionFailed`` where others change it all the time."""
        given = {"name": name, "scopes": scopes, "limits": limits, "budget_usd": budget_usd,
                 "monthly_limit_usd": monthly_limit_usd}  # fmt: skip
        terms = key_terms(given)

        async def attempt() -> Key:
            there = await self.key(account, key_id)
            key = changed(there, terms)
            await self._change(account, PutKey(key, expect=there))
            return key

        return await unhindered(attempt, f"key {told(key_id)}")

    async def revoke_key(self, account: str, key_id: str) -> Key:
        """Revoke a key for ever: within two seconds it is refused everywhere. The traces of its calls of the last 24
        hours, and of any that come after, are marked ``compromised``. Raises ``NotFound``."""
        await self.key(account, key_id)
        await self._change(account, RevokeKey(key_id, self._now()))
        return await self.key(account, key_id)

    async def authenticate(self, authorization: str | None, environment: Environment | None = None) -> Caller:
        """Whose the key in an ``Authorization`` header is, at an address of an environment (None: of both).

        Raises ``AuthenticationFailed`` for any invalid key, and ``StorageUnavailable``."""
        if environment is not None and environment not in ENVIRONMENTS:
            key_terms({"environment": environment})  # says what is wrong with it
        return await self._authenticator.caller(authorization, environment)

    async def open_incident(self, title: str, *, severity: Severity, status_url: str | None = None) -> Incident:
        """Open an incident that affects many. Stores the event ``incident.created`` with it. Raises
        ``ValidationFailed``."""
        terms, now = (
            incident_terms({"title": title, "severity": severity, "status_url": status_url}),
            self._clock.time(),
        )
        incident = Incident(id=self._ids("inc_"), started_at=timestamp(now), **terms)
        created = IncidentCreated(
            incident.id, incident.title, incident.severity, incident.started_at, incident.status_url
        )
        (event,) = events_of([created], Caller(SYSTEM_ACCOUNT), self._ids, now)
        await self._checked.apply(SYSTEM_ACCOUNT, [PutIncident(incident, expect="absent"), PutEvent(event.stored)])
        wake(self._storage)
        return incident

    async def resolve_incident(self, id: str) -> Incident:
        """Say that it is over; repeating it changes nothing. Raises ``NotFound``."""
        found = next((each for each in await self.incidents() if each.id == id), None)
        if found is None:
            raise NotFound(f"no incident {told(id)}")
        if found.resolved_at is not None:
            return found
        resolved = replace(found, resolved_at=self._now())
        await self._checked.apply(SYSTEM_ACCOUNT, [PutIncident(resolved, expect="present")])
        return resolved

    async def incidents(self) -> list[Incident]:
        """The last hundred, newest first."""
        return await self._checked.read(SYSTEM_ACCOUNT, Incidents())

    async def create_endpoint(
        self,
        account: str,
        url: str,
        *,
        events: Sequence[EventType] | None = None,
        environment: Environment = "production",
        profile: SignatureProfile = "service",
        allow_loopback: bool = False,
    ) -> NewEndpoint:
        """Register a webhook endpoint of an account. Its signing secret is shown this once. ``events``: the types that
        it receives, None all. ``profile``: ``standard`` signs as Standard Webhooks has it. ``url``: https, of a public
        host; ``allow_loopback`` takes this machine too, for development. Raises ``ValidationFailed``."""
        check_whose("account", account)
        check_choice("allow_loopback", allow_loopback, (True, False))
        check_choice("environment", environment, get_args(Environment))
        check_choice("profile", profile, get_args(SignatureProfile))
        check_url(url, allow_loopback=allow_loopback)
        secret = WebhookSigner.new_secret()
        endpoint = Endpoint(
            id=self._ids("whe_"),
            account=account,
            environment=environment,
            url=url,
            events=checked_events(events),
            profile=profile,
            created_at=self._now(),
            secrets=(SealedSecret(self._sealed(secret)),),
        )
        await self._put_endpoint(endpoint, "absent")
        return NewEndpoint(secret, endpoint)

    async def endpoints(self, account: str) -> list[Endpoint]:
        """The webhook endpoints of an account, oldest first, disabled ones too."""
        check_whose("account", account)
        return await self._checked.read(account, Endpoints())

    async def disable_endpoint(self, account: str, endpoint_id: str) -> Endpoint:
        """Deliver nothing more to an endpoint. What is pending ends as ``failed_delivery``. Raises ``NotFound``."""
        return await self._change_endpoint(account, endpoint_id, lambda there: replace(there, disabled_at=self._now()))

    async def enable_endpoint(self, account: str, endpoint_id: str) -> Endpoint:
        """Deliver new events to it again; ``replay`` delivers those that failed in the last 24 hours. Raises
        ``NotFound``."""
        return await self._change_endpoint(account, endpoint_id, lambda there: replace(there, disabled_at=None))

    async def delete_endpoint(self, account: str, endpoint_id: str) -> None:
        """Remove an endpoint and its deliveries. Raises ``NotFound``."""
        await self._endpoint(account, endpoint_id)
        await self._checked.apply(account, [DeleteEndpoint(endpoint_id)])

    async def rotate_endpoint(self, account: str, endpoint_id: str, *, overlap_s: float = OVERLAP_S) -> NewEndpoint:
        """Give an endpoint a new signing secret. For ``overlap_s`` seconds the one before it signs deliveries,
        too. Raises ``NotFound``."""
        given: object = overlap_s
        if not isinstance(given, int | float) or not 0 <= overlap_s <= MAX_OVERLAP_S:
            raise ValidationFailed.at("overlap_s", "is no such time", "take seconds, those of 30 days at most")
        secret = WebhookSigner.new_secret()

        def change(there: Endpoint) -> Endpoint:
            return rotated(there, self._sealed(secret), self._clock.time(), overlap_s)

        return NewEndpoint(secret, await self._change_endpoint(account, endpoint_id, change))

    async def deliveries(
        self,
        account: str,
        *,
        endpoint_id: str | None = None,
        state: DeliveryState | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> list[Delivery]:
        """Deliveries to the account's endpoints, newest event first: pending ones, and those of the last 24 hours.
        ``after``: the ``key`` of the last of the page before."""
        check_whose("account", account)
        check_choice("state", state, (None, *get_args(DeliveryState)))
        if endpoint_id is not None:
            await self._endpoint(account, endpoint_id)
        if type(limit) is not int:
            raise ValidationFailed.at("limit", "is not a whole number", "take 50, for example")
        if after is not None and not is_place(after):
            raise ValidationFailed.at("after", "is not the key of a delivery", "pass Delivery.key of the last one")
        return await self._checked.scan(account, Deliveries(endpoint_id, state), after=after, limit=limit)

    async def replay(self, account: str, endpoint_id: str, event_id: str | None = None) -> int:
        """Deliver again, under the same event id: one event, or all that an endpoint has not accepted. Those that wait
        for a retry are due at once, those that ended are replayed for 24 hours. Returns how many begin anew. Raises
        ``NotFound`` for an unknown endpoint."""
        await self._endpoint(account, endpoint_id)
        if event_id is not None and not is_place(event_id):
            raise ValidationFailed.at("event_id", "is no id of an event", "take evt_... of a delivery")
        asked = ReplayDeliveries(endpoint_id, event_id, self._clock.time())
        (written,) = await self._checked.apply(account, [asked])
        wake(self._storage)
        return int(written.count)

    async def deliver(self, settings: WebhookSettings | None = None, *, stop: anyio.Event | None = None) -> None:
        """Deliver the webhooks of the storage until cancelled: for a process that does nothing else, where Routers have
        ``WebhookSettings(deliver=False)``. Several processes may do so. Once ``stop`` is set it starts no attempts, and
        returns when those in flight have ended."""
        settings = settings or WebhookSettings()
        keys = partial(self._secret.keys, PURPOSE)
        most, made = settings.max_attempts, settings.open_transport
        dispatcher = Dispatcher(self._storage, made, keys, self._clock, max_attempts=most, poll_s=1.0)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dispatcher.run)
            if stop is not None:
                await stop.wait()
                with self._clock.deadline(self._clock.monotonic() + ATTEMPT_S):
                    await dispatcher.drain()
                tasks.cancel_scope.cancel()

    async def test_endpoint(
        self, account: str, endpoint_id: str, *, transport: WebhookTransport | None = None, allow_loopback: bool = False
    ) -> dict[EventType, DeliveryAttempt]:
        """Send a sample of each event that an endpoint selects, signed and once; nothing of it is stored. Returns what
        came of each. Raises ``NotFound``."""
        endpoint = await self._endpoint(account, endpoint_id)
        now, nonce = self._clock.time(), partial(secrets.token_bytes, 16)
        live = opened(endpoint, self._secret.keys(PURPOSE), now, nonce).secrets
        sender = transport or WebhookSettings(allow_loopback=allow_loopback).open_transport()
        try:
            found: dict[EventType, DeliveryAttempt] = {}
            for name in endpoint.events:
                (event,) = events_of([SAMPLES[name]], Caller(account, endpoint.environment), self._ids, now)
                found[name], _ = await post(sender, self._clock, endpoint, event.stored, live)
            return found
        finally:
            if transport is None:
                await sender.aclose()

    async def rotate_secret(self, *, force: bool = False) -> None:
        """Change the root secret. The one before it holds until the next change: a key goes over to the new one when it
        is used.

        Raises ``ValidationFailed`` where live keys were not used since the last change, which this one would end
        (``force=True`` lets it), and where the secret is the operator's to change; ``PreconditionFailed`` where another
        changed it just now, so that one change is not taken for two."""
        in_use = self._secret.live()[0]
        # seal signing secrets with the root secret in use that the one before it had sealed
        keys, now, nonce = self._secret.keys(PURPOSE), self._clock.time(), partial(secrets.token_bytes, 16)
        endpoints: Sequence[Endpoint] = ()
        with suppress(UnsupportedWrite):  # a host's storage may have none
            endpoints = await self._checked.read(SYSTEM_ACCOUNT, Endpoints(of_all=True))
        for endpoint in endpoints:
            resealed = opened(endpoint, keys, now, nonce).endpoint
            if resealed is not None:
                with suppress(PreconditionFailed):  # a process that delivers was faster
                    await self._put_endpoint(resealed, endpoint)
        left_behind = [] if force is True else await self._left_behind()
        if left_behind:
            names = listed([f"{key.name} of {key.account}" for key in left_behind])
            count = "1 live key was" if len(left_behind) == 1 else f"{len(left_behind)} live keys were"
            problem = f"{count} not used since the last change: {names}"
            hint = "have them used, or revoke them; force=True ends them"
            raise ValidationFailed.at("force", problem, hint)
        self._secret.rotate(in_use)

    async def aclose(self) -> None:
        """Free the storage."""
        await self._storage.aclose()

    def _now(self) -> str:
        return timestamp(self._clock.time())

    def _digest(self, text: str) -> str:
        """What is kept of a new key. Raises ``StorageUnavailable`` where nobody could tell it by that tomorrow."""
        if not self._secret.lasts:
            raise _passing("keys")
        return self._authenticator.peppers()[0].digest(text)

    def _check_accounts(self) -> None:
        if getattr(self._storage, "accounts", None) is None:
            raise no_accounts()

    def _sealed(self, secret: Secret) -> str:
        """A signing secret as it is stored. Raises ``StorageUnavailable`` where nobody could open it tomorrow."""
        if not self._secret.lasts:
            raise _passing("signing secrets")
        return seal(self._secret.keys(PURPOSE)[0], secret.reveal(), secrets.token_bytes(16))

    async def _endpoint(self, account: str, endpoint_id: str) -> Endpoint:
        found = next((each for each in await self.endpoints(account) if each.id == endpoint_id), None)
        if found is None:
            raise NotFound(f"no endpoint {told(endpoint_id)}")
        return found

    async def _put_endpoint(self, endpoint: Endpoint, expect: Endpoint | Literal["absent"]) -> Endpoint:
        await self._checked.apply(endpoint.account, [PutEndpoint(endpoint, expect=expect, at=self._clock.time())])
        wake(self._storage)
        return endpoint

    async def _change_endpoint(
        self, account: str, endpoint_id: str, change: Callable[[Endpoint], Endpoint]
    ) -> Endpoint:
        async def attempt() -> Endpoint:
            there = await self._endpoint(account, endpoint_id)
            return await self._put_endpoint(change(there), there)

        return await unhindered(attempt, f"endpoint {told(endpoint_id)}")

    async def _stands(self, account: str, key_id: str | None = None) -> Standing:
        check_owner("account", account)
        return await self._checked.read(account, Stands(self._now(), key_id))

    async def _key_standing(self, key: Key) -> KeyStanding:
        purses = (await self._stands(key.account, key.id)).purses
        total, month = (each for each in purses if each.level == "key")
        return KeyStanding(key, total, month)

    async def _change(self, account: str, write: Write) -> Written:
        """Change an account, and forget what was remembered of its keys."""
        (written,) = await self._checked.apply(account, [write])
        self._authenticator.forget(account)
        return written

    async def _check_repeated(self, account: str, given: AddCredit) -> None:
        """Refuse an id that stands for other credit."""
        rows = await self._checked.scan(account, LedgerRows(request_id=given.id), after=None, limit=1)
        before = sum(row.credit_nanos for row in rows)
        if rows and before != given.nanos:
            problem = f"{shown(given.id)} is that of ${usd_text(before)}"
            raise ValidationFailed.at("id", problem, "take another one for other credit")

    async def _left_behind(self) -> list[Key]:
        """Live keys that are digested with the secret before the one in use."""
        peppers = self._authenticator.peppers()
        if len(peppers) == 1:
            return []
        keys = [key for account in await self.accounts() for key in await self.keys(account.name)]
        return [key for key in keys if is_live(key) and peppers[1].made(key.digest)]


class BlockingConsole(Twin[Console]):
    """``console.blocking``: the methods of ``Console`` as plain functions.

    new = Console("sqlite:///traces.db").blocking.create_key("acme", name="website")"""

    create_account = plain(Console.create_account)
    change_account = plain(Console.change_account)
    account = plain(Console.account)
    accounts = plain(Console.accounts)
    credit = plain(Console.credit)
    standing = plain(Console.standing)
    create_key = plain(Console.create_key)
    keys = plain(Console.keys)
    key = plain(Console.key)
    change_key = plain(Console.change_key)
    revoke_key = plain(Console.revoke_key)
    authenticate = plain(Console.authenticate)
    open_incident = plain(Console.open_incident)
    resolve_incident = plain(Console.resolve_incident)
    incidents = plain(Console.incidents)
    create_endpoint = plain(Console.create_endpoint)
    endpoints = plain(Console.endpoints)
    disable_endpoint = plain(Console.disable_endpoint)
    enable_endpoint = plain(Console.enable_endpoint)
    delete_endpoint = plain(Console.delete_endpoint)
    rotate_endpoint = plain(Console.rotate_endpoint)
    deliveries = plain(Console.deliveries)
    replay = plain(Console.replay)
    deliver = plain(Console.deliver)
    test_endpoint = plain(Console.test_endpoint)
    rotate_secret = plain(Console.rotate_secret)


def _passing(what: str) -> StorageUnavailable:
    hint = "set ROUTEWRIGHT_SECRET, or pass secret= to Console"
    return StorageUnavailable(f"no root secret is kept anywhere, so that {what} would end with this process: {hint}")


def _balance(stands: Standing) -> Purse | None:
    return next((each for each in stands.purses if each.level == "account" and each.limit_nanos is not None), None)
