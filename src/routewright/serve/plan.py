"""What is to be served, where and how: a configuration that was found good, as it goes from process to process."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from routewright.contrib.semconv import Version
from routewright.wire import Account, Environment, Key

ACCOUNT = "main"
"""That of the first start."""


class Address(Struct, frozen=True):
    """Where something listens. A port of 0 takes any that is free."""

    host: str
    port: int


class Tls(Struct, frozen=True):
    """Files of a certificate and its key."""

    cert: str
    key: str | None = None
    key_password: str | None = None

    def __repr__(self) -> str:
        return f"Tls(cert={self.cert!r}, key={self.key!r})"


class Seed(Struct, frozen=True):
    """Who may call a server whose store is in memory: told to every worker, since none finds it on a disk."""

    account: Account
    keys: tuple[Key, ...]
    secret: str

    def __repr__(self) -> str:
        return f"Seed({self.account.name!r})"


class Begun(Struct, frozen=True):
    """What a start made."""

    keys: dict[Environment, str]
    """To be shown once; none: it was not the first start."""
    seed: Seed | None = None
    account: str = ACCOUNT
    """One that is there: that of the first start, if it is."""

    def __repr__(self) -> str:
        return f"Begun({sorted(self.keys)})"


class Plan(Struct, frozen=True, kw_only=True):
    """What is to be served."""

    address: Address
    admin: Address | None
    """Of the first worker; that of each further one is a port higher."""
    tls: Tls | None
    workers: int
    root_path: str
    environment: Environment | None
    """None: keys of both are taken."""
    trusted_proxies: tuple[str, ...]
    graceful_timeout_s: float
    log_level: str
    access_log: bool
    semconv: Version | None
    """Whose names spans have; None: none are exported."""
    store: str
    """Its URL."""
    policies: str | None
    catalogue: str | None
    http: dict[str, Any]
    connections: dict[str, Any]
    settings: dict[str, Any]
    """As the configuration has them; what they mean is known to the process that uses them."""
    seed: Seed | None = None

    @property
    def in_memory(self) -> bool:
        """What is kept ends with the worker."""
        return self.store.startswith("memory:")

    @property
    def environments(self) -> tuple[Environment, ...]:
        """Those whose keys are taken."""
        return ("production", "sandbox") if self.environment is None else (self.environment,)
