"""The command ``serve``. This process only supervises; other processes load the library."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Literal

from routewright.serve.plan import ACCOUNT, Address, CommandOptions, Plan, Setup
from routewright.wire import Environment
from routewright.wire.account import without_password

from .command import ABSENT, OK, Declaration, arg, flag, group, refused, verb
from .show import Screen

_GROUPS: dict[str, dict[str, tuple[str, str, object]]] = {
    "network": {
        "host": ("--host ADDRESS", "address to listen on (default: 127.0.0.1)", str),
        "port": ("--port N", "port to listen on; 0 is any free one (default: 8080)", int),
        "tls.cert": ("--tls-cert FILE", "certificate for TLS, in PEM", str),
        "tls.key": ("--tls-key FILE", "private key of the certificate", str),
        "insecure_bind": ("--insecure-bind", "allow plain HTTP for other machines, behind a proxy that ends TLS", bool),
        "root_path": ("--root-path /PREFIX", "prefix that a proxy adds to all paths, as /llm", str),
        "health": ("--health", "also answer /healthz and /readyz at this address, without a key", bool),
        "cors_origins": ("--cors-origin ORIGIN", "origin of web pages that may send requests; * is all", list),
        "admin.port": ("--admin-port N", "port for /healthz, /readyz and /metrics, without a key", int),
        "admin.host": ("--admin-host ADDRESS", "address for --admin-port (default: 127.0.0.1)", str),
        "admin.ui": ("--ui", "also serve the page for operators at /ui of --admin-port, which needs a key", bool),
    },
    "data": {
        "store": ("--store URL", "a file, postgresql://..., or memory: (default: sqlite:///routewright.db)", str),
        "cache": ("--cache URL", "cache of answers: a file, redis://..., postgresql://..., or memory: (default)", str),
        "coordination": ("--coordination URL", "Redis, to share rate limits and notices between machines", str),
        "policies": ("--policies FILE", "file of policies that requests can name, TOML or JSON", str),
        "catalogue": ("--catalogue FILE", "file of models and prices that overlay the bundled ones", str),
        "environment": ("--environment", "keys to accept (default: both)", Literal["production", "sandbox", "both"]),
    },
    "operation": {
        "workers": ("--workers N", "number of worker processes (default: 1)", int),
        "graceful_timeout_s": ("--graceful-timeout S", "seconds for running requests at shutdown (default: 30)", float),
        "log_level": ("--log-level", "lowest level (default: info)", Literal["debug", "info", "warning", "error"]),
        "access_log": ("--access-log", "log each request as JSON on standard output (default: yes)", None),
    },
}
"""Flags, help texts and types by configuration key. None: ``--no-...`` reverses it."""
_ACTIONS = {bool: "store_true", list: "append", None: argparse.BooleanOptionalAction}
FLAGS = {key: option.split()[0] for flags in _GROUPS.values() for key, (option, *_) in flags.items()}
"""Flags by configuration key."""

_BODY = json.dumps({"messages": [{"role": "user", "content": "Why is the sky blue?"}]})
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Wildcard addresses, and the loopback address for each."""
_KEYS: dict[Environment, tuple[str, str]] = {
    "production": ("live key", "calls the models of your providers, for money"),
    "sandbox": ("test key", "canned answers, no provider, never billed"),
}


def _option(key: str, option: str, text: str, kind: object) -> Declaration:
    extra = {"action": _ACTIONS[kind]} if kind in _ACTIONS else {"kind": kind}
    return arg(option, text, default=ABSENT, dest=key, **extra)


@verb(
    "serve",
    *(group(title, *(_option(key, *flag) for key, flag in flags.items())) for title, flags in _GROUPS.items()),
    group(
        "configuration",
        arg("--config FILE", "configuration file in TOML (default: ROUTEWRIGHT_CONFIG, else none)"),
        flag("--check", "check the configuration and print it, without starting"),
    ),
)
def _run(args: Namespace, screen: Screen) -> int:
    """Answer requests over HTTP at /v1.

    The first start creates a store, an account and its keys, and prints a request to try.

    Options are read from the command line, then the environment (ROUTEWRIGHT_PORT, ...), then the file of --config.
    SIGHUP replaces the workers, which read policies, catalogue and certificate anew; SIGTERM and Ctrl-C finish running
    requests, then end the server."""
    check_extra("serve")
    options = CommandOptions(args.config, {key: value for key, value in vars(args).items() if key in FLAGS}, FLAGS)
    if args.check:
        return _check(options, screen)
    from routewright.serve.processes import run

    return run(options, partial(_warn, screen=screen), lambda *start: screen.text(started_page(*start)))


def check_extra(command: str) -> None:
    """Raise ``ValidationFailed`` if the extra ``server`` is not installed."""
    missing = [name for name in ("uvicorn", "httptools") if find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        problem = f"'routewright {command}' needs {' and '.join(missing)}, which {are} not installed"
        raise refused("", problem, "run: pip install 'routewright[server]'")


def _check(options: CommandOptions, screen: Screen) -> int:
    from routewright.serve.prepare import prepare

    prepared = prepare(options, os.environ)
    facts = {name: value for name, value in prepared.facts.items() if value}
    width = max(map(len, facts))
    screen.text("".join(f"{name:<{width}}  {value}\n" for name, value in facts.items()))
    _warn(prepared.warnings, screen)
    return OK


def _warn(warnings: Sequence[str], screen: Screen) -> None:
    for warning in warnings:
        screen.note(f"routewright: {warning}", "plain")


def started_page(plan: Plan, setup: Setup, providers: Sequence[str]) -> str:
    """Where the server listens, and how to send a request. Only the first start has keys. ``providers``: the variables
    that hold their keys. Plain text, since ``serve`` works without rich."""
    return "".join(f"{line}\n" for line in _page(plan, setup, providers))


def _page(plan: Plan, setup: Setup, providers: Sequence[str]) -> Iterator[str]:
    workers = "1 worker" if plan.workers == 1 else f"{plan.workers} workers"
    yield f"routewright serves at {_url(plan)} with {workers}"
    if plan.admin is not None:
        yield f"health checks and metrics, without a key: http://{_host_port(plan.admin)}"
    store = shlex.quote(plan.shown_store)
    if plan.admin is not None and plan.ui:
        yield f"the page for operators, with a key of theirs: http://{_host_port(plan.admin)}/ui/"
        yield f"a key for it: routewright keys create _system --name NAME --scope console:write --store {store}"
    if setup.keys:
        location = "in memory and ends with the server" if plan.in_memory else store
        yield from ("", f"This is the first start. The store is {location}. The account {ACCOUNT!r} was created.")
        yield "ITS PLAN IS 'unlimited': THE REQUESTS AND THE SPENDING OF ITS LIVE KEYS ARE NOT LIMITED."
        if not plan.in_memory:
            yield f"To limit it: routewright accounts change {ACCOUNT} --plan pro --store {store}"
        yield ""
        width = max(map(len, setup.keys.values()))
        for environment, key in setup.keys.items():
            name, text = _KEYS[environment]
            yield f"{name}  {key:<{width}}  {text}"
        yield from ("Save them now: they are not shown again.", "", "Send a request from another terminal:", "")
        headers = f'-H "Authorization: Bearer {setup.keys.get("sandbox") or setup.keys["production"]}"'
        yield f"curl {_url(plan)}/v1/route {headers} -H \"Content-Type: application/json\" -d '{_BODY}'"
        if plan.tls is not None:
            yield "(curl must trust the certificate, and the address must be a name in it: see --cacert and --resolve)"
        if not plan.in_memory:
            yield from ("", "See its trace:", "", f"routewright traces ls --account {ACCOUNT} --store {store}")
    elif not plan.in_memory:
        yield f"another key: routewright keys create {shlex.quote(setup.account)} --name NAME --store {store}"
        yield "             with --environment sandbox for a test key; 'routewright accounts ls' lists the accounts"
    if without_password(plan.store) != plan.store:
        yield "             The commands need the store's password: in PGPASSWORD, or in a file that PGPASSFILE names."
    yield ""
    if plan.environment == "sandbox":
        return
    if providers:
        yield f"Live keys can call the models of the providers with a key in the environment: {', '.join(providers)}"
    else:
        yield "Live keys can call no model yet: the environment has no provider's key. Set one, such as OPENAI_API_KEY,"
        yield "and restart."


def _url(plan: Plan) -> str:
    return f"{'http' if plan.tls is None else 'https'}://{_host_port(plan.address)}"


def _host_port(address: Address) -> str:
    host = _WILDCARDS.get(address.host, address.host)
    return f"[{host}]:{address.port}" if ":" in host else f"{host}:{address.port}"
