"""``Console``: administers accounts, keys, credit, policies, webhook endpoints, incidents and the root secret."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from math import inf
from random import SystemRandom
from typing import Literal, get_args

import anyio
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from . import errors, wire
from ._core.accounts.keys import RANDOM_BYTES, SHOWN, is_live, new_key
from ._core.accounts.keys import SCOPES as SCOPES
from ._core.accounts.purses import tags_of
from ._core.accounts.terms import SomeLimits as SomeLimits
from ._core.accounts.terms import account_terms, change, check_account, credit_of, describe, incident_terms, key_terms
from ._core.accounts.terms import limits_of as limits_of
from ._core.crypto import NONCE
from ._core.outcome import event_of
from ._core.request.rules import Range
from ._core.webhooks.endpoint import (
    MAX_OVERLAP_S,
    OVERLAP_S,
    PURPOSE,
    SAMPLES,
    add_secret,
    check_events,
    check_url,
    is_delivery_key,
    open_secrets,
    unreadable,
)
from ._core.webhooks.outbox import ATTEMPT_S
from ._core.write_batch import MOST_CREDIT
from ._engine.storage import GuardedStorage, no_accounts, unhindered
from ._engine.trace_log import FreshStorage
from ._engine.webhooks import Dispatcher, post, wake
from ._runtime.blocking import Closing, Twin, plain
from ._runtime.identity import Ids
from ._runtime.worker import Worker
from ._setup.arguments import ENVIRONMENTS, check_choice, check_key_id, check_owner, check_tenant, refuse_keys
from ._setup.authentication import Authenticator
from ._setup.comparison import compare_versions
from ._setup.coordination import RECHECK_S
from ._setup.root_secret import SECRET as SECRET
from ._setup.root_secret import RootSecret
from ._setup.root_secret import secret_path as secret_path
from ._setup.simulate import Simulator
from .backends.clock import SystemClock
from .catalogue import Catalogue
from .errors import NotFound, PreconditionFailed, StorageUnavailable, UnsupportedWrite, ValidationFailed, renaming
from .policies import BlockingPolicyStore, PolicyStore, explain_unknown, known_models
from .protocols import BaseStorage, Clock, LocalStorage, Storage, WebhookTransport, options_of
from .settings import WebhookSettings
from .storage import storage_at
from .trace import When
from .webhook import WebhookSigner
from .wire.account import Secret
from .wire.money import usd_text
from .wire.problems import listed, shown
from .wire.timestamps import start_of, timestamp

DELIVERIES = Range(1, 1_000, whole=True)
"""Items of a page of deliveries."""
NEAREST = 10
"""Limits in ``Console.nearest_limits``."""


class Console(Closing):
    """Manages accounts and their keys, and authenticates keys.

        console = Console("sqlite:///traces.db")
        await console.create_account("acme", plan="pro", monthly_limit_usd=500)
        new = await console.create_key("acme", name="website")
        caller = await console.authenticate(f"Bearer {new.secret.reveal()}", "production")

    ``storage`` is the storage of the Routers, or its URL. Changes apply to the next call that is admitted. Reads, the
    limits of a new tag, and the models and policies of a key change within two seconds. ``secret`` replaces the root
    secret of the environment or beside the store: one secret, or the present and the previous one. ``recheck_s``: how
    long ``authenticate`` trusts its cache, at most two seconds. ``catalogue``: models of your own, which ``policies``
    may name before a trace does.

    Money is in US dollars, months are in UTC. ``RateLimits`` are requests per minute, tokens per minute, and concurrent
    calls. Plans: free (60, 60,000, 5), pro (600, 600,000, 25), team (3,000, 3,000,000, 100), enterprise (its
    ``limits``), unlimited."""

    def __init__(
        self,
        storage: Storage | str,
        *,
        secret: str | Sequence[str] | None = None,
        clock: Clock | None = None,
        recheck_s: float = RECHECK_S,
        catalogue: Catalogue | None = None,
    ) -> None:
        self._storage = storage = storage_at(storage, clock)
        self._checked: Storage = GuardedStorage(storage)
        self._clock = clock or SystemClock()
        self._ids = Ids(self._clock, SystemRandom())
        self._secret = RootSecret(storage, os.environ, secret)
        self._catalogue = catalogue
        self._authenticator = Authenticator(self._checked, self._secret, self._clock, recheck_s)
        self.policies: PolicyStore = PolicyStore(storage, self._clock, self._ids, catalogue)
        """Policies in the storage: drafts, publications, versions."""

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
        plan: wire.PlanName = "free",
        limits: wire.RateLimits | None = None,
        prepaid: bool = False,
        daily_limit_usd: float | None = None,
        weekly_limit_usd: float | None = None,
        monthly_limit_usd: float | None = None,
        tag_limits: Sequence[wire.TagLimit | Mapping[str, str | float | None]] = (),
    ) -> wire.Account:
        """Create an account. ``limits`` override those of the plan, each that is not None; ``enterprise`` has no
        others. ``prepaid``: calls are paid from the account's ``credit``. ``daily_limit_usd``, ``weekly_limit_usd`` and
        ``monthly_limit_usd``: the most to be charged in a day, a week from Monday, and a month; None: unlimited.
        ``tag_limits``: the same for requests with a value of a metadata key, as ``{"key": "team", "value": "search",
        "daily_limit_usd": 10}``; without ``value``, for any value by itself. Raises ``ValidationFailed``, and
        ``InternalError`` if the storage has no ``accounts`` to enforce the terms."""
        self._check_accounts()
        if check_owner("name", name) != name.strip():
            raise ValidationFailed.at("name", f"must not begin or end with a blank, got {shown(name)}", "remove it")
        arguments = {"plan": plan, "limits": limits, "prepaid": prepaid, "daily_limit_usd": daily_limit_usd,
                 "weekly_limit_usd": weekly_limit_usd, "monthly_limit_usd": monthly_limit_usd,
                 "tag_limits": tag_limits}  # fmt: skip
        account = check_account(wire.Account(name=name, created_at=self._now(), **account_terms(arguments)))
        try:
            await self._change(name, wire.PutAccount(account, expect="absent"))
        except PreconditionFailed as error:
            problem = f"{describe(name)} exists already"
            raise ValidationFailed.at("name", problem, "change_account() changes its terms") from error
        return account

    async def change_account(
        self,
        name: str,
        *,
        plan: wire.PlanName | UnsetType = UNSET,
        limits: wire.RateLimits | UnsetType | None = UNSET,
        prepaid: bool | UnsetType = UNSET,
        daily_limit_usd: float | UnsetType | None = UNSET,
        weekly_limit_usd: float | UnsetType | None = UNSET,
        monthly_limit_usd: float | UnsetType | None = UNSET,
        tag_limits: Sequence[wire.TagLimit | Mapping[str, str | float | None]] | UnsetType = UNSET,
    ) -> wire.Account:
        """Change the given terms; concurrent changes of other terms are kept. ``limits`` and ``tag_limits`` are
        replaced as a whole: None in ``limits`` stands for the plan's value, None for all of them. Raises ``NotFound``
        and ``ValidationFailed``, and ``PreconditionFailed`` if concurrent changes never end."""
        arguments = {"plan": plan, "limits": limits, "prepaid": prepaid, "daily_limit_usd": daily_limit_usd,
                 "weekly_limit_usd": weekly_limit_usd, "monthly_limit_usd": monthly_limit_usd,
                 "tag_limits": tag_limits}  # fmt: skip
        terms = account_terms(arguments)

        async def attempt() -> wire.Account:
            current = await self.account(name)
            account = check_account(change(current, terms))
            await self._change(name, wire.PutAccount(account, expect=current))
            return account

        return await unhindered(attempt, f"account {describe(name)}")

    async def account(self, name: str) -> wire.Account:
        """The terms of an account. Raises ``NotFound``."""
        standing = await self._read_standing(check_owner("account", name))
        if standing.account is None:
            raise NotFound(f"no account {describe(name)}")
        return standing.account

    async def accounts(self) -> list[wire.Account]:
        """All accounts, by name."""
        return await self._checked.read(wire.SYSTEM_ACCOUNT, wire.AllAccounts())

    async def credit(self, account: str, usd: float, *, note: str = "", id: str | None = None) -> wire.Credit:
        """Add to the balance of an account; a negative amount subtracts. A repeated ``id``, such as an invoice number,
        is ignored; without one every call counts. An account that is not ``prepaid`` keeps the credit until it is.
        Raises ``NotFound`` and ``ValidationFailed``."""
        credit = credit_of(usd, note, id)
        write = wire.AddCredit(credit.id or self._ids("cr_"), credit.nanos, self._now(), credit.note)
        await self.account(account)
        try:
            written = await self._change(account, write)
        except PreconditionFailed as error:
            problem = f"would exceed ${usd_text(MOST_CREDIT)}, the most credit that an account may have in all"
            raise ValidationFailed.at("usd", problem, "pass a smaller amount") from error
        if not written.created:  # the id was used before: for the same amount?
            rows = await self._checked.scan(account, wire.LedgerRows(request_id=write.id), after=None, limit=1)
            before = sum(row.credit_nanos for row in rows)
            if rows and before != credit.nanos:
                problem = f"{shown(write.id)} was used for ${usd_text(before)}"
                raise ValidationFailed.at("id", problem, "pass another id for another amount")
        balance = _balance((await self._read_standing(account)).purses)
        return wire.Credit(write.id, credit.nanos, written.created, None if balance is None else balance.left_nanos)

    async def standing(self, account: str, *, tags: Mapping[str, object] | None = None) -> wire.AccountStanding:
        """The balance of an account and its charges of this day, week and month, also for its keys with budgets.
        ``tags``: metadata of a request whose limits to show, too. Raises ``NotFound``."""
        terms = await self.account(account)
        standing = await self._read_standing(account, tags=tags_of(terms, tags))
        own = {purse.level: purse for purse in standing.purses}
        limited_tags = tuple([purse for purse in standing.purses if purse.level == "tag"])
        keys = []
        for key in await self.keys(account):
            if key.has_limited_money:
                purses = (await self._read_standing(account, key.id)).purses
                of_key = [purse for purse in purses if purse.level == "key"]
                short = {purse.name.split(":")[-2]: purse for purse in of_key[1:-1]}
                keys.append(wire.KeyStanding(key, of_key[0], of_key[-1], short.get("day"), short.get("week")))
        return wire.AccountStanding(
            terms, _balance(standing.purses), own["month"], tuple(keys), own.get("day"), own.get("week"),
            limited_tags,
        )  # fmt: skip

    async def nearest_limits(self, account: str | None = None) -> list[wire.AccountPurse]:
        """The ten balances and limits of accounts that are used most, by the share that is spent or reserved. Those of
        keys and tags are left out. ``account``: of this one only; None: it reads every account with limits."""
        if account is not None:
            check_tenant("account", account)
        names = [other.name for other in await self.accounts() if other.has_limited_money]
        purses = [
            wire.AccountPurse(name, purse)
            for name in names
            if account in (None, name)
            for purse in (await self._read_standing(name)).purses
            if purse.limit_nanos is not None
        ]
        return sorted(purses, key=_by_share)[:NEAREST]

    async def create_key(
        self,
        account: str,
        *,
        name: str,
        environment: wire.Environment = "production",
        scopes: Sequence[wire.Scope] | None = None,
        limits: wire.RateLimits | None = None,
        budget_usd: float | None = None,
        daily_limit_usd: float | None = None,
        weekly_limit_usd: float | None = None,
        monthly_limit_usd: float | None = None,
        models: Sequence[str] | None = None,
        policies: Sequence[str] | None = None,
    ) -> wire.NewKey:
        """Create a key of an account. The result is the only place that shows it; a digest is stored. ``scopes``: None
        is all. ``limits`` apply beside those of the account. ``budget_usd`` is the most that its calls may ever be
        charged, ``daily_limit_usd``, ``weekly_limit_usd`` and ``monthly_limit_usd`` the most in a day, a week from
        Monday, and a month. ``models``: what its calls may use, in the words of a policy; ``policies``: names or ids of
        those of which its calls use one. Both must be known, as for ``policies.check_names``.

        A key of ``_system`` is an operator's, for ``authenticate_operator``. It has a name and scopes only:
        ``console:read``, or ``console:write``, which includes it. Raises ``NotFound``,
        ``ValidationFailed`` and ``StorageUnavailable``, and ``InternalError`` if the storage has no ``accounts``."""
        self._check_accounts()
        arguments = {"name": name, "environment": environment, "scopes": scopes, "limits": limits,
                 "budget_usd": budget_usd, "daily_limit_usd": daily_limit_usd, "weekly_limit_usd": weekly_limit_usd,
                 "monthly_limit_usd": monthly_limit_usd, "models": models, "policies": policies}  # fmt: skip
        terms = key_terms(arguments, account)
        if account != wire.SYSTEM_ACCOUNT:
            await self.account(account)
        await self.policies.check_names(terms["models"], terms["policies"])
        text = new_key(environment, secrets.token_bytes(RANDOM_BYTES))
        if not self._secret.is_durable:
            raise _without_secret("keys")
        digest = self._authenticator.load_peppers()[0].digest(text)
        terms |= {"digest": digest, "prefix": text[:SHOWN], "created_at": self._now()}
        key = wire.Key(id=self._ids("key_"), account=account, **terms)
        await self._change(account, wire.PutKey(key, expect="absent"))
        return wire.NewKey(Secret(text), key)

    async def keys(self, account: str) -> list[wire.Key]:
        """All keys of an account, or of operators (``_system``), oldest first, including revoked ones."""
        _check_key_owner(account)
        return await self._checked.read(account, wire.Keys())

    async def key(self, account: str, key_id: str) -> wire.Key:
        """A key of an account. Raises ``NotFound``, also for a key of another account."""
        check_key_id("key_id", key_id)
        _check_key_owner(account)
        key = (await self._read_standing(account, key_id)).key
        if key is None:
            raise NotFound(f"no key {describe(key_id)}")
        return key

    async def change_key(
        self,
        account: str,
        key_id: str,
        *,
        name: str | UnsetType = UNSET,
        scopes: Sequence[wire.Scope] | UnsetType | None = UNSET,
        limits: wire.RateLimits | UnsetType | None = UNSET,
        budget_usd: float | UnsetType | None = UNSET,
        daily_limit_usd: float | UnsetType | None = UNSET,
        weekly_limit_usd: float | UnsetType | None = UNSET,
        monthly_limit_usd: float | UnsetType | None = UNSET,
        models: Sequence[str] | UnsetType | None = UNSET,
        policies: Sequence[str] | UnsetType | None = UNSET,
    ) -> wire.Key:
        """Change the given terms of a key; concurrent changes of other terms are kept. ``limits`` are replaced as a
        whole: None in them is no limit. Raises ``NotFound`` and ``ValidationFailed``, and ``PreconditionFailed`` if
        concurrent changes never end."""
        arguments = {"name": name, "scopes": scopes, "limits": limits, "budget_usd": budget_usd,
                 "daily_limit_usd": daily_limit_usd, "weekly_limit_usd": weekly_limit_usd,
                 "monthly_limit_usd": monthly_limit_usd, "models": models, "policies": policies}  # fmt: skip
        terms = key_terms(arguments, account)
        await self.policies.check_names(terms.get("models"), terms.get("policies"))
        return await self._replace_key(account, key_id, lambda key: change(key, terms))

    async def revoke_key(self, account: str, key_id: str) -> wire.Key:
        """Revoke a key for good: within two seconds it is refused everywhere. Traces of its calls in the last 24 hours,
        and of any later ones, are marked ``compromised``. Raises ``NotFound``."""
        await self.key(account, key_id)
        await self._change(account, wire.RevokeKey(key_id, self._now()))
        return await self.key(account, key_id)

    async def authenticate(self, authorization: str | None, environment: wire.Environment | None = None) -> wire.Caller:
        """The caller of the key in an ``Authorization`` header. ``environment``: the one that was addressed; None: any.

        Raises ``AuthenticationFailed`` for any invalid key, ``PermissionDenied`` for an operator's, and
        ``StorageUnavailable``."""
        if environment is not None and environment not in ENVIRONMENTS:
            key_terms({"environment": environment})  # raises ValidationFailed
        caller = await self._authenticator.find_caller(authorization, environment)
        if caller.account == wire.SYSTEM_ACCOUNT:
            problem = "the API key is an operator's, for the page of the server"
            raise errors.PermissionDenied(f"{problem}; use one of an account")
        return caller

    async def authenticate_operator(self, authorization: str | None) -> wire.Caller:
        """The caller of an operator's key, a live key of ``_system``, in an ``Authorization`` header. ``scopes`` says
        what it may do; it cannot route.

        Raises ``AuthenticationFailed`` for any invalid key, ``PermissionDenied`` for one of an account, and
        ``StorageUnavailable``."""
        caller = await self._authenticator.find_caller(authorization, None)
        if caller.account != wire.SYSTEM_ACCOUNT:
            hint = "make one with 'routewright keys create _system --name NAME --scope console:read'"
            raise errors.PermissionDenied(f"the API key is not an operator's; {hint}")
        return caller

    async def end_sessions(self, key_id: str) -> wire.Key:
        """Sign an operator out wherever the key was used to sign in. The key stays valid. Raises ``NotFound``."""
        return await self._replace_key(wire.SYSTEM_ACCOUNT, key_id, lambda key: replace(key, signed_out_at=self._now()))

    def session_keys(self) -> tuple[bytes, ...]:
        """Keys that authenticate the sessions of operators, derived from the root secret: the present one, then the
        previous one after a rotation. Raises ``StorageUnavailable``."""
        return self._secret.derive_keys("ui session")

    async def open_incident(
        self, title: str, *, severity: wire.Severity, status_url: str | None = None
    ) -> wire.Incident:
        """Open an incident, and emit ``incident.created``. Raises ``ValidationFailed``."""
        terms = incident_terms({"title": title, "severity": severity, "status_url": status_url})
        now = self._clock.time()
        incident = wire.Incident(id=self._ids("inc_"), started_at=timestamp(now), **terms)
        created = wire.IncidentCreated(
            incident.id, incident.title, incident.severity, incident.started_at, incident.status_url
        )
        event = event_of(created, wire.Caller(wire.SYSTEM_ACCOUNT), self._ids("evt_"), now)
        await self._checked.apply(
            wire.SYSTEM_ACCOUNT, [wire.PutIncident(incident, expect="absent"), wire.PutEvent(event.stored)]
        )
        wake(self._storage)
        return incident

    async def resolve_incident(self, id: str) -> wire.Incident:
        """Mark an incident as resolved; repeating it has no effect. Raises ``NotFound``."""
        incident = next((incident for incident in await self.incidents() if incident.id == id), None)
        if incident is None:
            raise NotFound(f"no incident {describe(id)}")
        if incident.resolved_at is not None:
            return incident
        resolved = replace(incident, resolved_at=self._now())
        await self._checked.apply(wire.SYSTEM_ACCOUNT, [wire.PutIncident(resolved, expect="present")])
        return resolved

    async def incidents(self) -> list[wire.Incident]:
        """The last hundred incidents, newest first."""
        return await self._checked.read(wire.SYSTEM_ACCOUNT, wire.Incidents())

    async def create_endpoint(
        self,
        account: str,
        url: str,
        *,
        events: Sequence[wire.EventType] | None = None,
        environment: wire.Environment = "production",
        profile: wire.SignatureProfile = "service",
        allow_loopback: bool = False,
    ) -> wire.NewEndpoint:
        """Register a webhook endpoint of an account. The result is the only place that shows its signing secret.
        ``events``: the types to receive; None: all. ``profile``: ``standard`` signs as in Standard Webhooks. ``url``:
        https, on a public host; ``allow_loopback`` also allows this machine, for development. Raises
        ``ValidationFailed``, and ``ModuleNotFoundError`` without the extra ``webhooks``."""
        check_tenant("account", account)
        check_choice("allow_loopback", allow_loopback, (True, False))
        check_choice("environment", environment, get_args(wire.Environment))
        check_choice("profile", profile, get_args(wire.SignatureProfile))
        check_url(url, allow_loopback=allow_loopback)
        secret = WebhookSigner.new_secret()
        endpoint = wire.Endpoint(
            id=self._ids("whe_"),
            account=account,
            environment=environment,
            url=url,
            events=check_events(events),
            profile=profile,
            created_at=self._now(),
            secrets=(),
        )
        endpoint = add_secret(endpoint, secret.reveal(), self._sealing_key(), secrets.token_bytes(NONCE))
        await self._put_endpoint(endpoint, "absent")
        return wire.NewEndpoint(secret, endpoint)

    async def endpoints(self, account: str) -> list[wire.Endpoint]:
        """The webhook endpoints of an account, oldest first, including disabled ones."""
        check_tenant("account", account)
        return await self._checked.read(account, wire.Endpoints())

    async def disable_endpoint(self, account: str, endpoint_id: str) -> wire.Endpoint:
        """Stop deliveries to an endpoint. Pending ones end as ``failed_delivery``. Raises ``NotFound``."""
        return await self._change_endpoint(account, endpoint_id, lambda old: replace(old, disabled_at=self._now()))

    async def enable_endpoint(self, account: str, endpoint_id: str) -> wire.Endpoint:
        """Resume deliveries of new events; ``replay`` delivers those that failed in the last 24 hours. Raises
        ``NotFound``."""
        return await self._change_endpoint(account, endpoint_id, lambda old: replace(old, disabled_at=None))

    async def delete_endpoint(self, account: str, endpoint_id: str) -> None:
        """Remove an endpoint and its deliveries. Raises ``NotFound``."""
        await self._endpoint(account, endpoint_id)
        await self._checked.apply(account, [wire.DeleteEndpoint(endpoint_id)])

    async def rotate_endpoint(
        self, account: str, endpoint_id: str, *, overlap_s: float = OVERLAP_S
    ) -> wire.NewEndpoint:
        """Give an endpoint a new signing secret. For ``overlap_s`` seconds deliveries are signed with the old one, too.
        Raises ``NotFound``."""
        seconds: object = overlap_s
        if not isinstance(seconds, int | float) or not 0 <= overlap_s <= MAX_OVERLAP_S:
            problem = f"must be a number of seconds from 0 to {MAX_OVERLAP_S:.0f}, got {describe(seconds)}"
            raise ValidationFailed.at("overlap_s", problem, "pass at most 30 days")
        secret = WebhookSigner.new_secret()

        def change(current: wire.Endpoint) -> wire.Endpoint:
            nonce = secrets.token_bytes(NONCE)
            now = self._clock.time()
            return add_secret(current, secret.reveal(), self._sealing_key(), nonce, now=now, overlap_s=overlap_s)

        return wire.NewEndpoint(secret, await self._change_endpoint(account, endpoint_id, change))

    async def deliveries(
        self,
        account: str,
        *,
        endpoint_id: str | None = None,
        state: wire.DeliveryState | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> list[wire.Delivery]:
        """Deliveries to the account's endpoints, newest event first: pending ones, and those of the last 24 hours.
        ``after``: the ``key`` of the last item of the previous page. ``limit``: at most 1,000."""
        check_tenant("account", account)
        check_choice("state", state, (None, *get_args(wire.DeliveryState)))
        if endpoint_id is not None:
            await self._endpoint(account, endpoint_id)
        if type(limit) is not int or not DELIVERIES.admits(limit):
            raise ValidationFailed.at("limit", f"must be {DELIVERIES}, got {describe(limit)}", "for example 50")
        if after is not None and not is_delivery_key(after):
            raise ValidationFailed.at("after", "is not the key of a delivery", "pass Delivery.key of the last one")
        return await self._checked.scan(account, wire.Deliveries(endpoint_id, state), after=after, limit=limit)

    async def replay(self, account: str, endpoint_id: str, event_id: str | None = None) -> int:
        """Deliver again, under the same event id: one event, or all that an endpoint has not accepted. Pending retries
        become due at once; ended deliveries can be replayed for 24 hours. Returns the number of deliveries restarted.
        Raises ``NotFound`` for an unknown endpoint."""
        await self._endpoint(account, endpoint_id)
        if event_id is not None and not is_delivery_key(event_id):
            raise ValidationFailed.at("event_id", "is not the id of an event", "pass evt_... of a delivery")
        write = wire.ReplayDeliveries(endpoint_id, event_id, self._clock.time())
        (written,) = await self._checked.apply(account, [write])
        wake(self._storage)
        return int(written.count)

    async def deliver(self, settings: WebhookSettings | None = None, *, stop: anyio.Event | None = None) -> None:
        """Deliver the webhooks of the storage until cancelled: for dedicated processes, one or several, beside Routers
        with ``WebhookSettings(deliver=False)``. Once ``stop`` is set it starts no attempts, and returns when those in
        flight have ended."""
        settings = settings or WebhookSettings()
        keys = partial(self._secret.derive_keys, PURPOSE)
        dispatcher = Dispatcher(
            self._storage, settings.open_transport, keys, self._clock, max_attempts=settings.max_attempts, poll_s=1.0
        )
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(dispatcher.run)
            if stop is not None:
                await stop.wait()
                with self._clock.deadline(self._clock.monotonic() + ATTEMPT_S):
                    await dispatcher.drain()
                tasks.cancel_scope.cancel()

    async def test_endpoint(
        self, account: str, endpoint_id: str, *, transport: WebhookTransport | None = None, allow_loopback: bool = False
    ) -> dict[wire.EventType, wire.DeliveryAttempt]:
        """Send an endpoint a signed sample of each event type it receives, once, without storing anything. Returns the
        outcome by type. Raises ``NotFound``."""
        endpoint = await self._endpoint(account, endpoint_id)
        now = self._clock.time()
        opened = open_secrets(endpoint, self._secret.derive_keys(PURPOSE), now, partial(secrets.token_bytes, NONCE))
        if not opened.secrets:
            raise StorageUnavailable(unreadable(endpoint.id))
        sender = transport or WebhookSettings(allow_loopback=allow_loopback).open_transport()
        try:
            outcomes: dict[wire.EventType, wire.DeliveryAttempt] = {}
            for name in endpoint.events:
                event = event_of(SAMPLES[name], wire.Caller(account, endpoint.environment), self._ids("evt_"), now)
                outcomes[name], _ = await post(sender, self._clock, endpoint, event.stored, opened.secrets)
            return outcomes
        finally:
            if transport is None:
                await sender.aclose()

    async def rotate_secret(self, *, force: bool = False) -> None:
        """Rotate the root secret. The previous one stays valid until the next rotation; each key moves to the new one
        when it is used.

        Raises ``ValidationFailed`` if live keys were not used since the last rotation, since this one would invalidate
        them (``force=True`` allows it), or if the secret was configured by the operator; ``PreconditionFailed`` if
        another process has just rotated it."""
        # Rotating drops the secret before the last, with all that still depends on it. Signing secrets are encrypted,
        # so they are sealed anew here. Keys are stored as digests only: a key moves to the present secret when it is
        # used, so one that was not used since the last rotation would be lost. Hence the refusal. The secret in use is
        # read first, and compared when it is replaced: of two rotations at the same time one fails.
        # Tests: test_an_unused_key_blocks_the_next_rotation_unless_forced,
        # test_a_key_in_use_survives_any_number_of_rotations.
        present = self._secret.load()[0]
        roots = self._secret.derive_keys(PURPOSE)
        endpoints: Sequence[wire.Endpoint] = ()
        with suppress(UnsupportedWrite):  # a custom storage may not keep endpoints
            endpoints = await self._checked.read(wire.SYSTEM_ACCOUNT, wire.Endpoints(of_all=True))
        for endpoint in endpoints:
            resealed = open_secrets(endpoint, roots, self._clock.time(), partial(secrets.token_bytes, NONCE)).endpoint
            if resealed is not None:
                with suppress(PreconditionFailed):  # a delivering process has sealed it meanwhile
                    await self._put_endpoint(resealed, endpoint)
        unused_keys: list[wire.Key] = []
        peppers = self._authenticator.load_peppers()
        if force is not True and len(peppers) > 1:  # live keys still digested with the previous secret
            owners = [account.name for account in await self.accounts()]
            for owner in (*owners, wire.SYSTEM_ACCOUNT):
                keys = await self.keys(owner)
                unused_keys += [key for key in keys if is_live(key) and peppers[1].matches(key.digest)]
        if unused_keys:
            names = listed([f"{key.name} of {key.account}" for key in unused_keys])
            count = "1 live key was" if len(unused_keys) == 1 else f"{len(unused_keys)} live keys were"
            problem = f"{count} not used since the last rotation: {names}"
            raise ValidationFailed.at("force", problem, "use or revoke them, or pass force=True to invalidate them")
        self._secret.rotate(present)

    def strangers(self, digests: Sequence[str]) -> int | None:
        """Number of keys that are refused because they were made with another root secret, by the digests that
        ``routewright store check`` reads. None: it is not known here."""
        if not isinstance(self._storage, LocalStorage) and not self._secret.is_durable:
            return None
        return self._authenticator.count_strangers(digests)

    async def aclose(self) -> None:
        """Close the storage."""
        await self._storage.aclose()

    def _now(self) -> str:
        return timestamp(self._clock.time())

    def _check_accounts(self) -> None:
        if options_of(self._storage, BaseStorage).accounts is None:
            raise no_accounts()

    def _sealing_key(self) -> bytes:
        """Raises ``StorageUnavailable`` if the root secret is not persistent."""
        if not self._secret.is_durable:
            raise _without_secret("signing secrets")
        return self._secret.derive_keys(PURPOSE)[0]

    async def _endpoint(self, account: str, endpoint_id: str) -> wire.Endpoint:
        endpoint = next((endpoint for endpoint in await self.endpoints(account) if endpoint.id == endpoint_id), None)
        if endpoint is None:
            raise NotFound(f"no endpoint {describe(endpoint_id)}")
        return endpoint

    async def _put_endpoint(self, endpoint: wire.Endpoint, expect: wire.Endpoint | Literal["absent"]) -> wire.Endpoint:
        await self._checked.apply(endpoint.account, [wire.PutEndpoint(endpoint, expect=expect, at=self._clock.time())])
        wake(self._storage)
        return endpoint

    async def simulate(
        self, draft: str | wire.Policy, *, since: str = "7d", filter: str = "", account: str | None = None
    ) -> wire.SimulationReport:
        """Decide the stored requests of a time again under a draft, by its name, a version's label or as an object, and
        report what changes. No model is called.

        The requests are those that named the policy; if there are none, those without a policy. ``filter`` narrows
        them. ``since``: a time, or a span such as ``7d``. ``account`` None: all that were created, and ``default``.
        The draft may name the models that ``policies.check`` knows. Raises ``ValidationFailed`` and ``NotFound``."""
        refuse_keys({"draft": draft})
        if isinstance(draft, wire.Policy):
            version = wire.PolicyVersion("", "draft", "", draft)
        elif isinstance(draft, str):
            version = await self.policies.find(draft)
        else:
            raise ValidationFailed.at("draft", f"is {shown(draft)}", "pass a Policy, or the name of a policy")
        simulator = await self._simulator(since, filter, account)
        with renaming(explain_unknown):
            return await simulator.simulate(version)

    async def what_if(
        self,
        *,
        since: str = "30d",
        without: Sequence[str] = (),
        only: Sequence[str] = (),
        prices: Catalogue | None = None,
        cache: bool = True,
        filter: str = "",
        account: str | None = None,
    ) -> wire.WhatIfReport:
        """Decide the stored requests of a time again ``without`` some models or with ``only`` some, at the ``prices``
        of a catalogue that differ from the bundled ones, or with ``cache=False``, and report what they would have cost.
        No model is called. ``account`` None: all that were created, and ``default``. Raises ``ValidationFailed``."""
        refuse_keys({"without": without, "only": only, "prices": prices})
        check_choice("cache", cache, (True, False))
        if prices is not None and not isinstance(prices, Catalogue):
            raise ValidationFailed.at("prices", f"is {shown(prices)}", "pass a Catalogue, such as Catalogue.load(FILE)")
        # ``Catalogue.load`` overlays the bundled catalogue, whose other prices must not replace those of the traces.
        bundled = {model.id: (model.pricing_per_1m, model.price_changes) for model in Catalogue().models}
        models = () if prices is None else prices.models
        priced = [model for model in models if (model.pricing_per_1m, model.price_changes) != bundled.get(model.id)]
        return await (await self._simulator(since, filter, account)).what_if(without, only, priced, cache)

    async def _simulator(self, since: str, filter: str, account: str | None) -> Simulator:
        refuse_keys({"since": since, "filter": filter})
        if account is not None:
            check_tenant("account", account)
        storage: Storage = FreshStorage(self._storage, self._clock)
        index = await known_models(storage, self._catalogue)
        return Simulator(storage, self._clock, index, since=since, filter=filter, account=account)

    async def compare(
        self, name: str, *, since: When = "7d", account: str | None = None, environment: wire.Environment = "production"
    ) -> wire.PolicyComparison:
        """Compare the versions of a policy by the requests that they served: cost, errors, latency and feedback, with
        95 % intervals. The versions of a share are compared by the requests that it assigned.

        ``since``: a time, or a span such as ``7d``. ``account`` None: all that were created, and ``default``. Raises
        ``NotFound`` for a policy without versions, and ``ValidationFailed``."""
        refuse_keys({"name": name, "since": since})
        first = start_of(since, self._clock.time())
        check_choice("environment", environment, ENVIRONMENTS)
        storage: Storage = FreshStorage(self._storage, self._clock)
        return await compare_versions(storage, self._clock, name, first, account, environment)

    async def _replace_key(self, account: str, key_id: str, change: Callable[[wire.Key], wire.Key]) -> wire.Key:
        async def attempt() -> wire.Key:
            current = await self.key(account, key_id)
            key = change(current)
            await self._change(account, wire.PutKey(key, expect=current))
            return key

        return await unhindered(attempt, f"key {describe(key_id)}")

    async def _change_endpoint(
        self, account: str, endpoint_id: str, change: Callable[[wire.Endpoint], wire.Endpoint]
    ) -> wire.Endpoint:
        async def attempt() -> wire.Endpoint:
            current = await self._endpoint(account, endpoint_id)
            return await self._put_endpoint(change(current), current)

        return await unhindered(attempt, f"endpoint {describe(endpoint_id)}")

    async def _read_standing(self, account: str, key_id: str | None = None, tags: wire.Tags = ()) -> wire.Standing:
        return await self._checked.read(account, wire.Stands(self._now(), key_id, tags=tags))

    async def _change(self, account: str, write: wire.Write) -> wire.Written:
        """Write to an account, and drop its keys from the authenticator's cache."""
        (written,) = await self._checked.apply(account, [write])
        self._authenticator.forget(account)
        return written


class BlockingConsole(Twin[Console]):
    """``console.blocking``: the methods of ``Console`` as plain functions.

    new = Console("sqlite:///traces.db").blocking.create_key("acme", name="website")"""

    @cached_property
    def policies(self) -> BlockingPolicyStore:
        """Policies in the storage."""
        return BlockingPolicyStore(self._of.policies, self._worker)

    create_account = plain(Console.create_account)
    change_account = plain(Console.change_account)
    account = plain(Console.account)
    accounts = plain(Console.accounts)
    credit = plain(Console.credit)
    standing = plain(Console.standing)
    nearest_limits = plain(Console.nearest_limits)
    create_key = plain(Console.create_key)
    keys = plain(Console.keys)
    key = plain(Console.key)
    change_key = plain(Console.change_key)
    revoke_key = plain(Console.revoke_key)
    end_sessions = plain(Console.end_sessions)
    authenticate = plain(Console.authenticate)
    authenticate_operator = plain(Console.authenticate_operator)
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
    simulate = plain(Console.simulate)
    what_if = plain(Console.what_if)
    compare = plain(Console.compare)


def _by_share(entry: wire.AccountPurse) -> tuple[float, str]:
    """The order of limits: the fullest first."""
    purse = entry.purse
    used_nanos = purse.spent_nanos + purse.reserved_nanos
    return -used_nanos / purse.limit_nanos if purse.limit_nanos else -inf, entry.account


def _check_key_owner(account: object) -> None:
    if account != wire.SYSTEM_ACCOUNT:
        check_owner("account", account)


def _without_secret(kind: str) -> StorageUnavailable:
    problem = f"no root secret is stored, so {kind} would become invalid when this process ends"
    return StorageUnavailable(f"{problem}; set ROUTEWRIGHT_SECRET, or pass secret= to Console")


def _balance(purses: Sequence[wire.Purse]) -> wire.Purse | None:
    return next((purse for purse in purses if purse.level == "account" and purse.limit_nanos is not None), None)
