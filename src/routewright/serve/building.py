"""A Router, as a plan has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from routewright.backends.storage.memory import MemoryStorage
from routewright.catalogue import Catalogue
from routewright.console import Console
from routewright.errors import StorageUnavailable
from routewright.policies import PolicyFile
from routewright.protocols import LocalStorage, Storage
from routewright.router import Router
from routewright.settings import Capture, ExecutionLimits, Limits, Retention, Settings
from routewright.storage import open_storage
from routewright.wire import PutAccount, PutKey

from .plan import Plan


def settings_of(plan: Plan) -> Settings:
    """The settings of a Router that shares its limits with those of all workers. Raises ``ValidationFailed``."""
    told = plan.settings
    limits = Limits(default_max_output_tokens=told["default_max_output_tokens"], workers=plan.workers)
    stale_after = told["stale_after_days"]
    return Settings(
        limits=limits,
        execution=ExecutionLimits(**told["execution"]),
        retention=_retention(told["retention"]),
        capture=None if told["capture"] is None else Capture(**told["capture"]),
        durability=told["durability"],
        lease_s=told["lease_s"],
        traceparent_to=told["traceparent_to"],
        rollup_keys=told["rollup_keys"],
        stale_after_days=None if stale_after == "never" else stale_after,
    )


def _retention(told: dict[str, Any] | None) -> Retention | None:
    if told is None:
        return None
    return Retention(**{name: None if days == "forever" else days for name, days in told.items()})


def storage_of(plan: Plan) -> Storage:
    """The store."""
    return open_storage(plan.store)


def store_file(plan: Plan) -> Path | None:
    """The file of the store; None: it is in memory."""
    storage = storage_of(plan)
    return storage.path if isinstance(storage, LocalStorage) else None


def existing_storage_of(plan: Plan) -> Storage:
    """The store, as the start of the server has left it. Raises ``StorageUnavailable`` where its file is gone: a new
    one would know of no account, key or balance."""
    storage = storage_of(plan)
    if isinstance(storage, LocalStorage) and not storage.path.is_file():
        what = "restore a backup, or end the server and start anew; without a backup it begins empty"
        raise StorageUnavailable(f"the store {storage.path} was removed while it was in use: {what}")
    return storage


def router_of(plan: Plan, storage: Storage) -> Router:
    """The Router. Raises ``ValidationFailed`` for a catalogue that is not valid."""
    return Router(
        catalogue=None if plan.catalogue is None else Catalogue.load(plan.catalogue),
        policies=() if plan.policies is None else PolicyFile(plan.policies),
        storage=storage,
        settings=settings_of(plan),
    )


def console_of(plan: Plan, router: Router, storage: Storage) -> Console:
    """What knows the keys."""
    secret = None if plan.seed is None else plan.seed.secret
    return Console(storage, coordination=router.coordination, secret=secret)


async def sow(plan: Plan, storage: Storage) -> None:
    """Put whom a memory has to know into it."""
    if plan.seed is not None:
        name = plan.seed.account.name
        await storage.apply(name, [PutAccount(plan.seed.account, expect="absent")])
        await storage.apply(name, [PutKey(key, expect="absent") for key in plan.seed.keys])


def check(plan: Plan) -> Router:
    """Load what a worker would: models, policies, providers. Raises ``ValidationFailed`` naming what is wrong."""
    router = router_of(plan, MemoryStorage())
    router.models()
    router.policies()
    return router
