"""Turns the configuration into a plan and prepares the store. Invalid configurations are refused before the start.

It loads the library, so it runs in its own process and keeps the supervisor small."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import get_args

from routewright import MemoryStorage
from routewright.backends.providers.environment import variables_set
from routewright.console import SECRET, Console
from routewright.errors import ValidationFailed, renaming
from routewright.protocols import LocalStorage
from routewright.router import Router
from routewright.server.app import check_origins
from routewright.server.http_limits import ConnectionLimits, HttpLimits
from routewright.settings import SystemClock
from routewright.storage import is_postgres, open_cache, open_coordination, open_storage, url_of
from routewright.wire import Environment, Key
from routewright.wire.account import without_password
from routewright.wire.problems import listed

from .config import ServeFile, Sources
from .parts import exporter, router_of, server_context, settings_of
from .plan import ACCOUNT, Address, CommandOptions, Configuration, Plan, Seed, Setup, Tls

KEY_NAME = "first"
"""Name of the keys that the first start creates."""
_EXPORTER = "opentelemetry.sdk"
_OTHERWISE = {"tls", "admin", "environment", "store", "cache", "coordination"}
_AS_WRITTEN = {name for name in ServeFile.model_fields if name in Plan.__struct_fields__} - _OTHERWISE
"""Keys that a plan takes from the file unchanged."""


def prepare(options: CommandOptions, environ: Mapping[str, str]) -> Configuration:
    """Read the configuration and load the models, policies and providers once. Raises ``RouterError``."""
    sources = Sources(options.flags, options.names, environ, options.config)
    plan = plan_of(sources)
    with sources.naming():
        router = router_of(plan, MemoryStorage())
    try:
        facts = _facts(plan, router, None if sources.document is None else sources.document.path)
    finally:
        router.blocking.close()
    warnings = list(sources.unknown)
    if plan.admin is not None and find_spec("prometheus_client") is None:
        warning = "admin.port: /metrics will have no figures: prometheus_client is not installed"
        warnings.append(f"{warning}; run: pip install 'routewright[metrics]'")
    return Configuration(plan, facts, tuple(warnings), tuple(variables_set(environ)))


def plan_of(sources: Sources) -> Plan:
    """The checked configuration. Raises ``ValidationFailed`` naming the flag, variable or line of the file."""
    file = sources.file
    as_written = file.model_dump(include=_AS_WRITTEN, warnings=False)  # defaults are no entries, which warns
    with sources.naming():
        tls = None if file.tls.cert is None else Tls(file.tls.cert, file.tls.key, file.tls.key_password)
        if tls is not None:
            server_context(tls)
        for name in ("key", "key_password") if tls is None else ():
            if getattr(file.tls, name) is not None:
                raise ValidationFailed.at(f"tls.{name}", "needs a certificate", "set tls.cert, too")
        plan = Plan(
            address=Address(file.host, file.port),
            admin=None if file.admin.port is None else Address(file.admin.host, file.admin.port),
            tls=tls,
            environment=None if file.environment == "both" else file.environment,
            ui=file.admin.ui,
            ui_hosts=file.admin.hosts,
            otel=file.telemetry.otel,
            store=_url("store", file.store, open_storage),
            cache=_url("cache", file.cache, open_cache),
            coordination=_url("coordination", file.coordination, open_coordination),
            **as_written,
        )
        _check(plan, file)
    return plan


async def set_up_store(plan: Plan) -> Setup:
    """Create the store and the cache. If there is no account, create one with the plan ``unlimited`` and a key for each
    environment. Raises ``RouterError``."""
    if plan.cache.startswith("sqlite:"):  # a cache that cannot be opened would only serve misses
        cache = open_cache(plan.cache)
        try:
            await cache.get(bytes(16), SystemClock().time())
        finally:
            await cache.aclose()
    storage = open_storage(plan.store)
    secret = secrets.token_hex(32) if isinstance(storage, MemoryStorage) else None
    async with Console(storage, secret=secret) as console:
        names = [account.name for account in await console.accounts()]
        if not names:
            try:
                await console.create_account(ACCOUNT, plan="unlimited")
            except ValidationFailed:
                names = [ACCOUNT]  # another server has just created it
        account = await console.account(ACCOUNT if ACCOUNT in names or not names else names[0])
        if names:
            return Setup({}, account=account.name)
        texts: dict[Environment, str] = {}
        keys: list[Key] = []
        for environment in get_args(Environment) if plan.environment is None else (plan.environment,):
            new = await console.create_key(ACCOUNT, name=KEY_NAME, environment=environment)
            texts[environment] = new.secret.reveal()
            keys.append(new.key)
    return Setup(texts, None if secret is None else Seed(account, tuple(keys), secret))


def _url(key: str, text: str, open_url: Callable[[str], object]) -> str:
    url = url_of(text)
    with _renamed("url", key):
        open_url(url)
    return url


def _check(plan: Plan, file: ServeFile) -> None:
    """Raise ``ValidationFailed`` for values that exclude each other."""
    if plan.tls is None and not _is_loopback(file.host) and not file.insecure_bind:
        problem = f"is {file.host!r}, which other machines can reach, and without TLS API keys can be read on the way"
        hint = "set --tls-cert and --tls-key, or --insecure-bind if a proxy in front terminates TLS"
        raise ValidationFailed.at("host", problem, hint)
    if plan.in_memory and plan.workers > 1:
        problem = f"is memory:, which {plan.workers} workers cannot share: each would have its own keys and limits"
        raise ValidationFailed.at("store", problem, "name a file, or run one worker")
    if is_postgres(plan.store) and not os.environ.get(SECRET):
        problem = "is not set, but a store in PostgreSQL needs it: API keys depend on it"
        raise ValidationFailed.at(SECRET, problem, "set the same on all machines ('openssl rand -hex 32')")
    if plan.ui:
        _check_page(plan, file)
    cached_in = _file_of(plan.cache)
    if cached_in is not None and cached_in == _file_of(plan.store):
        raise ValidationFailed.at("cache", "is the file of the store", "name another file, such as cache.db")
    if plan.admin is not None and file.port and plan.admin.port == file.port:
        problem = f"is {file.port}, but that is the port for requests"
        raise ValidationFailed.at("admin.port", problem, "choose another one")
    if plan.otel and not (find_spec("opentelemetry") and find_spec(_EXPORTER)):
        problem = f"needs {_EXPORTER}, which is not installed"
        raise ValidationFailed.at("telemetry.otel", problem, "run: pip install 'routewright[otel]'")
    if plan.otel:
        exporter("traces"), exporter("metrics")
    check_origins(plan.cors_origins, "cors_origins")
    with _renamed("HttpLimits", "http"), _renamed("ConnectionLimits", "connections"):
        HttpLimits(**plan.http)
        ConnectionLimits(**plan.connections)
    with _renamed("ExecutionLimits", "settings.execution"), _renamed("Settings|Limits", "settings"):
        settings_of(plan)


def _check_page(plan: Plan, file: ServeFile) -> None:
    """Raise ``ValidationFailed`` if operators could not sign in, or not safely."""
    if plan.admin is None:
        # no port by default: one that nobody named might be open to everybody
        raise ValidationFailed.at("admin.ui", "needs a port of its own", "set --admin-port, as 9000")
    if plan.in_memory:
        raise ValidationFailed.at("admin.ui", "needs a store that can hold keys of operators", "set --store to a file")
    if not _is_loopback(plan.admin.host) and not file.insecure_bind:
        problem = f"is {plan.admin.host!r}, which other machines can reach, and there is no TLS for operators' keys"
        hint = "leave it out, or set --insecure-bind if a proxy in front terminates TLS"
        raise ValidationFailed.at("admin.host", problem, hint)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _file_of(url: str) -> str | None:
    """The file that a URL names, or None."""
    return os.path.realpath(url.removeprefix("sqlite:///")) if url.startswith("sqlite:") else None


def _renamed(pattern: str, name: str) -> AbstractContextManager[None]:
    """Let problems of a struct name its configuration table."""
    return renaming(lambda problem: problem._replace(path=re.sub(rf"^({pattern})\b", name, problem.path)))


def _facts(plan: Plan, router: Router, config: Path | None) -> dict[str, str]:
    """Facts for ``--check``. Empty ones are not printed."""
    storage = open_storage(plan.store)
    if isinstance(storage, LocalStorage):
        store = plan.shown_store + ("" if storage.path.is_file() else " (will be created)")
    elif not plan.in_memory:
        store = plan.shown_store
    else:
        store = "in memory, lost when the server ends"
    policy_names = [policy.name for policy in router.policies()]
    available = sum(model.availability.status == "available" for model in router.models())
    return {
        "address": f"{'http' if plan.tls is None else 'https'}://{plan.address}{plan.root_path}",
        "admin": "" if plan.admin is None else f"http://{plan.admin} for health checks and metrics, without a key",
        "page": f"http://{plan.admin}/ui/ for operators, with a key of theirs" if plan.ui else "",
        "health": "/healthz and /readyz at the address, without a key" if plan.health else "",
        "web pages": ", ".join(plan.cors_origins),
        "fetch URLs": ", ".join(plan.fetches_urls),
        "more fields": ", ".join(plan.caller_extra),
        "workers": str(plan.workers),
        "keys": "live and test" if plan.environment is None else f"only {plan.environment}",
        "store": store,
        "cache": "" if plan.cache.startswith("memory:") else without_password(plan.cache).removeprefix("sqlite:///"),
        "coordination": "" if plan.coordination == "memory:" else without_password(plan.coordination),
        "certificate": "" if plan.tls is None else plan.tls.cert,
        "policies": "" if plan.policies is None else f"{plan.policies}: {listed(policy_names) or 'none'}",
        "catalogue": plan.catalogue or "",
        "models": f"{available} for live keys",
        "configuration": "" if config is None else str(config),
    }
