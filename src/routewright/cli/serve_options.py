"""What can be said to ``routewright serve``."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple, get_args

from routewright.wire import Environment


class _Flag(NamedTuple):
    key: str
    """The path of the key of the configuration that it says."""
    option: str
    does: str
    more: dict[str, Any]


def _word(metavar: str) -> dict[str, Any]:
    return {"metavar": metavar}


def _number(metavar: str, kind: type = int) -> dict[str, Any]:
    return {"metavar": metavar, "type": kind}


_GROUPS: dict[str, tuple[_Flag, ...]] = {
    "where": (
        _Flag("host", "--host", "the address to listen at (default: 127.0.0.1)", _word("ADDRESS")),
        _Flag("port", "--port", "the port; 0 is any that is free (default: 8080)", _number("N")),
        _Flag("tls.cert", "--tls-cert", "speak TLS with this certificate, in PEM", _word("FILE")),
        _Flag("tls.key", "--tls-key", "its private key", _word("FILE")),
        _Flag(
            "insecure_bind",
            "--insecure-bind",
            "speak plain HTTP where other machines reach it: for a proxy in front that ends TLS",
            {"action": "store_true"},
        ),
        _Flag("root_path", "--root-path", "what a proxy puts in front of all paths, as /llm", _word("/PREFIX")),
        _Flag("admin.port", "--admin-port", "answer /healthz, /readyz and /metrics there, without a key", _number("N")),
        _Flag("admin.host", "--admin-host", "for others than this machine (default: 127.0.0.1)", _word("ADDRESS")),
    ),
    "what": (
        _Flag("store", "--store", "a file, its URL, or memory: (default: sqlite:///routewright.db)", _word("URL")),
        _Flag("policies", "--policies", "policies that requests can name: TOML, JSON or Python", _word("FILE")),
        _Flag("catalogue", "--catalogue", "models and prices to put over the bundled ones", _word("FILE")),
        _Flag(
            "environment",
            "--environment",
            "whose keys are taken: production, sandbox or both (default: both)",
            {"choices": (*get_args(Environment), "both"), "metavar": "WHICH"},
        ),
    ),
    "how": (
        _Flag("workers", "--workers", "processes that answer (default: 1)", _number("N")),
        _Flag(
            "graceful_timeout_s",
            "--graceful-timeout",
            "how long requests may take to end when the server does (default: 30)",
            _number("SECONDS", float),
        ),
        _Flag(
            "log_level",
            "--log-level",
            "debug, info, warning or error (default: info)",
            {"choices": ("debug", "info", "warning", "error"), "metavar": "LEVEL"},
        ),
        _Flag(
            "access_log",
            "--access-log",
            "a line of JSON for each request, on standard output (default: yes)",
            {"action": argparse.BooleanOptionalAction},
        ),
    ),
}
FLAGS: dict[str, str] = {flag.key: flag.option for flags in _GROUPS.values() for flag in flags}
"""How each key is called here, by its path in a file."""


def add_serve(command: argparse.ArgumentParser) -> None:
    """Give the command ``serve`` its options. What is not given does not stand in what is parsed."""
    for title, flags in _GROUPS.items():
        group = command.add_argument_group(title)
        for flag in flags:
            group.add_argument(flag.option, dest=flag.key, default=argparse.SUPPRESS, help=flag.does, **flag.more)
    said = command.add_argument_group("configuration")
    said.add_argument("--config", metavar="FILE", help="a file in TOML (default: ROUTEWRIGHT_CONFIG, else none)")
    said.add_argument(
        "--check", action="store_true", help="say what would be served, and whether that can be; start nothing"
    )
    command.set_defaults(json=False)
