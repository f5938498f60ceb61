"""What can be said to ``routewright accounts``, ``keys``, ``incidents`` and ``secret``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any, get_args

from routewright.wire import Environment, PlanName, Scope, Severity

from .catalogue_options import names
from .store_options import add_place

Add = Callable[[argparse.ArgumentParser], None]

_ACCOUNTS = {
    "create": ("set up an account", "Of a store that is not there yet it begins one.", "[OPTIONS] NAME"),
    "ls": ("list the accounts", "Limits are those of the plan, or an account's own.", "[OPTIONS]"),
    "show": ("show an account: its terms, its balance, what was charged this month", "", "[OPTIONS] NAME"),
    "change": (
        "change the terms of an account",
        "What is not given stays as it is, each limit for itself. It holds within two seconds in all that run.",
        "[OPTIONS] NAME",
    ),
    "credit": (
        "add to the balance of a prepaid account",
        "A negative amount takes back. Of an --id that was there before nothing is done. Credit of an account that is\n"
        "not prepaid is kept, and not used before it is.",
        "[OPTIONS] NAME USD",
    ),
}
_KEYS = {
    "create": (
        "make a key to an account, and write it to standard output",
        "It is shown this once. What is said about it goes to standard error:\n\n"
        "  KEY=$(routewright keys create acme --name website)",
        "[OPTIONS] --name NAME ACCOUNT",
    ),
    "ls": ("list the keys of an account, oldest first", "", "[OPTIONS] ACCOUNT"),
    "show": (
        "show a key: its terms, and what was charged for its calls, if it has a budget",
        "",
        "[OPTIONS] ACCOUNT ID",
    ),
    "change": (
        "change the terms of a key",
        "What is not given stays as it is, each limit for itself. It holds within two seconds in all that run. A key\n"
        "that was revoked stays so.",
        "[OPTIONS] ACCOUNT ID",
    ),
    "revoke": (
        "revoke a key for ever",
        "It is refused within two seconds by all that run. The traces of its calls of the last 24 hours are marked as\n"
        "compromised. A person is asked first; scripts need --yes.",
        "[OPTIONS] ACCOUNT ID",
    ),
}
_INCIDENTS = {
    "open": ("say that something goes wrong for many", "The event incident.created tells of it.", "[OPTIONS] TITLE"),
    "resolve": ("say that it is over", "", "[OPTIONS] ID"),
    "ls": ("list the last hundred incidents, newest first", "", "[OPTIONS]"),
}
_SECRET = {
    "rotate": (
        "change the root secret beside the store",
        "The one before it holds until the next change. A key goes over to the new one when it is used; while some\n"
        "have not, the secret is not changed again.",
        "[OPTIONS]",
    ),
}
"""What each does, what else is to be said of it, what it takes."""


def add_accounts(command: argparse.ArgumentParser) -> None:
    """Give the command ``accounts`` its own commands."""
    _add(command, "accounts", _ACCOUNTS, {
        "create": _add_create_account, "show": _add_name, "change": _add_change, "credit": _add_credit,
    })  # fmt: skip


def add_keys(command: argparse.ArgumentParser) -> None:
    """Give the command ``keys`` its own commands."""
    _add(command, "keys", _KEYS, {
        "create": _add_create_key, "ls": _add_account, "show": _add_key, "change": _add_change_key,
        "revoke": _add_revoke,
    })  # fmt: skip


def add_incidents(command: argparse.ArgumentParser) -> None:
    """Give the command ``incidents`` its own commands."""
    _add(command, "incidents", _INCIDENTS, {"open": _add_open, "resolve": _add_incident})


def add_secret(command: argparse.ArgumentParser) -> None:
    """Give the command ``secret`` its own command."""
    _add(command, "secret", _SECRET, {"rotate": _add_rotate})


def _add(
    command: argparse.ArgumentParser, name: str, said: Mapping[str, tuple[str, str, str]], adding: Mapping[str, Add]
) -> None:
    topics = command.add_subparsers(
        prog=f"routewright {name}", dest="topic", metavar="COMMAND", title="commands", required=True
    )
    for topic_name, (does, more, takes) in said.items():
        description = f"{does[0].upper()}{does[1:]}.\n\n{more}".rstrip()
        told: dict[str, Any] = {"help": does, "description": description}
        topic = topics.add_parser(topic_name, usage=f"routewright {name} {topic_name} {takes}", **told)
        if topic_name in adding:
            adding[topic_name](topic)
        add_place(topic)
        topic.add_argument("--json", action="store_true", help="one JSON object")


def _add_name(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("name", metavar="NAME", help="the account")


def _add_create_account(topic: argparse.ArgumentParser) -> None:
    _add_name(topic)
    topic.add_argument("--plan", choices=get_args(PlanName), default="free", metavar="PLAN",
                       help="free, pro, team, enterprise or unlimited (default: free)")  # fmt: skip
    _add_terms(topic)


def _add_change(topic: argparse.ArgumentParser) -> None:
    _add_name(topic)
    topic.add_argument("--plan", choices=get_args(PlanName), default=argparse.SUPPRESS, metavar="PLAN",
                       help="free, pro, team, enterprise or unlimited")  # fmt: skip
    _add_terms(topic)


def _add_terms(topic: argparse.ArgumentParser) -> None:
    _add_limits(topic, "plan", "in place of the plan's: a number, or plan")
    topic.add_argument("--prepaid", action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS,
                       help="calls are paid from its balance, which credit fills (default: they are not)")  # fmt: skip
    _add_money(topic, "--monthly-limit", "the most that it may be charged in a month, or none")


def _add_limits(topic: argparse.ArgumentParser, none: str, more: str) -> None:
    for option, what in (
        ("--requests-per-min", "requests a minute"),
        ("--tokens-per-min", "tokens a minute"),
        ("--concurrency", "calls at a time"),
    ):
        topic.add_argument(option, type=_or_none(int, none), default=argparse.SUPPRESS, metavar="N",
                           help=f"{what}, {more}")  # fmt: skip


def _add_money(topic: argparse.ArgumentParser, option: str, what: str) -> None:
    topic.add_argument(option, type=_or_none(float, "none"), default=argparse.SUPPRESS, metavar="USD", help=what)


def _add_credit(topic: argparse.ArgumentParser) -> None:
    _add_name(topic)
    topic.add_argument("usd", type=float, metavar="USD", help="how much")
    topic.add_argument("--note", default="", metavar="TEXT", help="what it is for; it stands in the ledger")
    topic.add_argument("--id", metavar="ID", help="of an invoice, say: what has one is done once")


def _add_account(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("account", metavar="ACCOUNT", help="whose they are")


def _add_create_key(topic: argparse.ArgumentParser) -> None:
    _add_account(topic)
    topic.add_argument("--name", required=True, metavar="NAME", help="what its owner calls it")
    topic.add_argument("--environment", choices=get_args(Environment), default="production",
                       help="production or sandbox (default: production)")  # fmt: skip
    topic.add_argument("--scope", action="extend", type=names, metavar="SCOPE,...",
                       help=f"what it is for: {', '.join(get_args(Scope))} (default: all)")  # fmt: skip
    _add_key_terms(topic)


def _add_change_key(topic: argparse.ArgumentParser) -> None:
    _add_key(topic)
    topic.add_argument("--name", default=argparse.SUPPRESS, metavar="NAME", help="what its owner calls it")
    topic.add_argument("--scope", type=_scopes, default=argparse.SUPPRESS, metavar="SCOPE,...",
                       help=f"what it is for: {', '.join(get_args(Scope))}, or all")  # fmt: skip
    _add_key_terms(topic)


def _add_key_terms(topic: argparse.ArgumentParser) -> None:
    _add_limits(topic, "none", "besides those of the account: a number, or none")
    _add_money(topic, "--budget", "the most that may ever be charged for its calls, or none")
    _add_money(topic, "--monthly-limit", "the most that may be charged for them in a month, or none")


def _add_key(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("account", metavar="ACCOUNT", help="whose it is")
    topic.add_argument("key_id", metavar="ID", help="the key, as 'routewright keys ls' lists it")


def _add_revoke(topic: argparse.ArgumentParser) -> None:
    _add_key(topic)
    topic.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _add_open(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("title", metavar="TITLE", help="what goes wrong")
    topic.add_argument("--severity", choices=get_args(Severity), default="major", help="how bad it is (default: major)")
    topic.add_argument("--status-url", metavar="URL", help="where more is said about it")


def _add_incident(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("id", metavar="ID", help="the incident, as 'routewright incidents ls' lists it")


def _add_rotate(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("--force", action="store_true", help="end live keys that were not used since the last change")


def _scopes(text: str) -> list[str] | None:
    return None if text == "all" else names(text)


def _or_none(number: Callable[[str], float], none: str) -> Callable[[str], float | None]:
    def read(text: str) -> float | None:
        if text == none:
            return None
        try:
            return number(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor '{none}'") from None

    return read
