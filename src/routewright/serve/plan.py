"""What the processes of a server tell each other: the command line, the checked configuration, and the first start.

The supervisor reads these records, so nothing here loads the library."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from routewright.contrib.semconv import Version
from routewright.wire import Account, Environment, Key
from routewright.wire.account import without_password

ACCOUNT = "main"
"""The account that the first start creates."""


class Address(Struct, frozen=True):
    """Where a socket listens. Port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Tls(Struct, frozen=True):
    """Files of a certificate and its key."""

    cert: str
    key: str | None = None
    key_password: str | None = None

    def __repr__(self) -> str:
        return f"Tls(cert={self.cert!r}, key={self.key!r})"


class Seed(Struct, frozen=True):
    """The account and keys of a store in memory, which every worker puts into its own."""

    account: Account
    keys: tuple[Key, ...]
    secret: str

    def __repr__(self) -> str:
        return f"Seed({self.account.name!r})"


class Begun(Struct, frozen=True):
    """What the start created in the store."""

    keys: dict[Environment, str]
    """New keys, to be shown once; empty unless this was the first start."""
    seed: Seed | None = None
    account: str = ACCOUNT
    """An account that exists: the one of the first start, if it does."""

    def __repr__(self) -> str:
        return f"Begun({sorted(self.keys)})"


class Plan(Struct, frozen=True, kw_only=True):
    """A checked configuration."""

    address: Address
    admin: Address | None
    """Of the first worker; each further worker listens one port higher."""
    tls: Tls | None
    environment: Environment | None
    """None: keys of both are accepted."""
    semconv: Version | None
    """The semantic conventions of exported spans; None: no export."""
    store: str
    """Its URL."""
    cache: str = "memory:"
    """The URL of the response cache."""
    coordination: str = "memory:"
    processes: int | None = None
    seed: Seed | None = None
    workers: int
    root_path: str
    trusted_proxies: tuple[str, ...]
    graceful_timeout_s: float
    log_level: str
    access_log: bool
    policies: str | None
    catalogue: str | None
    http: dict[str, Any]
    connections: dict[str, Any]
    settings: dict[str, Any]
    """Tables as the configuration has them."""
    cors_origins: tuple[str, ...] = ()
    health: bool = False

    def __repr__(self) -> str:
        return f"Plan({self.address}, store={self.shown_store!r})"

    @property
    def shown_store(self) -> str:
        """The store as people name it, without a password."""
        return without_password(self.store).removeprefix("sqlite:///")

    @property
    def in_memory(self) -> bool:
        """The store ends with the worker."""
        return self.store.startswith("memory:")


class Asked(Struct, frozen=True):
    """What the command line says of a server."""

    config: str | None
    flags: dict[str, Any]
    """Values by the paths of their keys."""
    names: dict[str, str]
    """The names of all flags, by the paths of their keys."""


class Prepared(Struct, frozen=True):
    """A checked configuration, and what to print about it."""

    plan: Plan
    facts: dict[str, str]
    warnings: tuple[str, ...]
    providers: tuple[str, ...]
    """The environment variables that hold keys or addresses of providers."""
