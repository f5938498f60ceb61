"""Records that the processes of a server exchange: the command line, the checked configuration, the new keys.

The supervisor uses them, so nothing here loads the library."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from routewright.wire import Account, Environment, Key
from routewright.wire.account import without_password

ACCOUNT = "main"
"""The account that the first start creates."""


class Address(Struct, frozen=True):
    """Where a socket listens. Port 0 is any free port."""

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
    """Account and keys of an in-memory store, which the worker copies into its own."""

    account: Account
    keys: tuple[Key, ...]
    secret: str

    def __repr__(self) -> str:
        return f"Seed({self.account.name!r})"


class Setup(Struct, frozen=True):
    """Result of preparing the store."""

    keys: dict[Environment, str]
    """New keys, to be shown once. Only the first start creates keys."""
    seed: Seed | None = None
    account: str = ACCOUNT
    """An existing account, preferably the one of the first start."""

    def __repr__(self) -> str:
        return f"Setup({sorted(self.keys)})"


class Plan(Struct, frozen=True, kw_only=True):
    """A checked configuration."""

    address: Address
    admin: Address | None
    tls: Tls | None
    environment: Environment | None
    """The only environment whose keys are accepted. None: both."""
    otel: bool
    """Export spans and metrics."""
    store: str
    """URL."""
    cache: str = "memory:"
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
    """``http``, ``connections`` and ``settings`` are tables of the configuration."""
    cors_origins: tuple[str, ...] = ()
    fetches_urls: tuple[str, ...] = ()
    caller_extra: tuple[str, ...] = ()
    health: bool = False
    ui: bool = False
    """Serve the page at ``/ui`` of the administrator's address, under the names ``ui_hosts``."""
    ui_hosts: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Plan({self.address}, store={self.shown_store!r})"

    @property
    def shown_store(self) -> str:
        """Path or URL of the store, without a password."""
        return without_password(self.store).removeprefix("sqlite:///")

    @property
    def in_memory(self) -> bool:
        """True if the store is lost when the worker ends."""
        return self.store.startswith("memory:")


class CommandOptions(Struct, frozen=True):
    """Options of the command line."""

    config: str | None
    flags: dict[str, Any]
    """Values of the given flags, by configuration key."""
    names: dict[str, str]
    """Names of all flags, by configuration key."""


class Configuration(Struct, frozen=True):
    """A checked configuration with what ``--check`` prints."""

    plan: Plan
    facts: dict[str, str]
    warnings: tuple[str, ...]
    providers: tuple[str, ...]
    """Environment variables with keys or addresses of providers."""
