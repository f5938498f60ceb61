"""From what is configured to what is to be served. What does not go together is refused, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from typing import Any

from routewright.errors import Problem, ValidationFailed
from routewright.server.limits import ConnectionLimits, HttpLimits
from routewright.storage import SCHEMES, open_storage

from .building import settings_of
from .configuration import ServeFile, TlsEntry
from .plan import Address, Plan, Tls
from .sources import Sources
from .telemetry import check_installed
from .tls import server_context


def plan_of(sources: Sources) -> Plan:
    """What is to be served. Raises ``ValidationFailed`` naming what was written where."""
    file = sources.file
    with sources.naming():
        plan = Plan(
            address=Address(file.host, file.port),
            admin=None if file.admin.port is None else Address(file.admin.host, file.admin.port),
            tls=_tls(file.tls),
            workers=file.workers,
            root_path=file.root_path,
            trusted_proxies=file.trusted_proxies,
            environment=None if file.environment == "both" else file.environment,
            graceful_timeout_s=file.graceful_timeout_s,
            log_level=file.log_level,
            access_log=file.access_log,
            semconv=file.telemetry.semconv if file.telemetry.otel else None,
            store=_store(file.store),
            policies=file.policies,
            catalogue=file.catalogue,
            http=_told(file.http),
            connections=_told(file.connections),
            settings=_told(file.settings),
        )
        _check_address(file, plan)
        _check_store(plan)
        _check_admin(plan)
        _check_limits(plan)
        if plan.semconv is not None:
            check_installed()
    return plan


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address. Of names that is known of one."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _told(table: Any) -> dict[str, Any]:
    """What a table says, and what holds where it says nothing."""
    told: dict[str, Any] = table.model_dump(warnings=False)  # of defaults, which are as they are meant
    return told


def _tls(entry: TlsEntry) -> Tls | None:
    if entry.cert is None:
        for name in ("key", "key_password"):
            if getattr(entry, name) is not None:
                raise ValidationFailed.of(Problem(f"tls.{name}", "is given without a certificate", "give that, too"))
        return None
    tls = Tls(entry.cert, entry.key, entry.key_password)
    server_context(tls)
    return tls


def _store(said: str) -> str:
    is_url = "://" in said or said.startswith(tuple(f"{scheme}:" for scheme in SCHEMES))
    url = said if is_url else f"sqlite:///{said}"
    with _at("url", "store"):
        open_storage(url)
    return url


def _check_address(file: ServeFile, plan: Plan) -> None:
    host = plan.address.host
    if plan.tls is None and not is_loopback(host) and not file.insecure_bind:
        problem = f"is {host!r}, which other machines reach, and without TLS they would send their keys for all to read"
        hint = "give --tls-cert and --tls-key, or --insecure-bind if a proxy in front speaks TLS"
        raise ValidationFailed.of(Problem("host", problem, hint))


def _check_store(plan: Plan) -> None:
    if plan.in_memory and plan.workers > 1:
        problem = f"is memory:, which {plan.workers} workers cannot share: each would have keys and limits of its own"
        raise ValidationFailed.of(Problem("store", problem, "name a file, or take one worker"))


def _check_admin(plan: Plan) -> None:
    if plan.admin is None or plan.admin.port == 0:
        return
    first, last = plan.admin.port, plan.admin.port + plan.workers - 1
    if last > 65_535:
        problem = f"is {first}, and {plan.workers} workers need as many ports from there on"
        raise ValidationFailed.of(Problem("admin.port", problem, "take a lower one"))
    if first <= plan.address.port <= last:
        said = f"is {first}" if first == last else f"is {first}, so that workers take {first} to {last}"
        problem = f"{said}, and {plan.address.port} is where requests are answered"
        raise ValidationFailed.of(Problem("admin.port", problem, "take another one"))


def _check_limits(plan: Plan) -> None:
    with _at("HttpLimits", "http"):
        HttpLimits(**plan.http)
    with _at("ConnectionLimits", "connections"):
        ConnectionLimits(**plan.connections)
    with _at("ExecutionLimits", "settings.execution"), _at("Settings", "settings"), _at("Limits", "settings"):
        settings_of(plan)


@contextmanager
def _at(theirs: str, ours: str) -> Iterator[None]:
    """Let the problems of a struct name the key that it is made of."""
    try:
        yield
    except ValidationFailed as error:
        found = [each._replace(path=_renamed(each.path, theirs, ours)) for each in error.problems]
    else:
        return
    raise ValidationFailed.of(*found)


def _renamed(path: str, theirs: str, ours: str) -> str:
    return ours if path == theirs else path.replace(f"{theirs}.", f"{ours}.", 1) if path.startswith(theirs) else path
