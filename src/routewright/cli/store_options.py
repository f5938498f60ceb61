"""What can be said of a store: where it is, whose things are meant, and to ``routewright store``."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from routewright.wire import Environment

VARIABLE = "ROUTEWRIGHT_STORE"
"""The environment variable that names the store where ``--store`` does not."""

_TOPICS = {
    "backup": (
        "copy it, as it is at one moment",
        "Others may write meanwhile. The secret beside the store is copied, too, to TARGET.secret: keep it as safe.",
        "[OPTIONS] TARGET",
    ),
    "check": (
        "read all of it, and say what is wrong",
        "Takes some seconds a gigabyte; others may write meanwhile. What is damaged ends with 1. Keys are counted\n"
        "that were made with another root secret than the one beside the store, or in ROUTEWRIGHT_SECRET: they are\n"
        "refused.",
        "[OPTIONS] [STORE]",
    ),
    "upgrade": (
        "bring it to the version that this routewright needs",
        "A copy of what it was is left beside it. Stop what uses it first.",
        "[OPTIONS] [STORE]",
    ),
    "retain": (
        "say how long traces are kept, and remove what is older",
        "Without options it says how long they are kept. Reports go on counting those that are removed.",
        "[OPTIONS]",
    ),
}
"""What each does, what else is to be said of it, what it takes."""


def add_place(command: argparse.ArgumentParser, *, writes: bool = False) -> None:
    """Let a command be told which store."""
    does = "keep the trace there; it" if writes else "the store, which"
    said = f"{does} is a file as traces.db, or sqlite:///traces.db (default: {VARIABLE})"
    command.add_argument("--store", metavar="URL", help=said)


def add_whose(command: argparse.ArgumentParser) -> None:
    """Let a command be told whose traces."""
    command.add_argument("--account", default="default", metavar="NAME", help="whose they are (default: default)")
    command.add_argument("--environment", choices=get_args(Environment), help="only those of this one (default: both)")


def add_store(command: argparse.ArgumentParser) -> None:
    """Give the command ``store`` its own commands."""
    topics = command.add_subparsers(
        prog="routewright store", dest="topic", metavar="COMMAND", title="commands", required=True
    )
    for name, (does, more, takes) in _TOPICS.items():
        said: dict[str, Any] = {"help": does, "description": f"{does[0].upper()}{does[1:]}.\n\n{more}"}
        topic = topics.add_parser(name, usage=f"routewright store {name} {takes}", **said)
        _ADD[name](topic)
        add_place(topic)
        topic.add_argument("--json", action="store_true", help="one JSON object")


def _add_backup(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("target", metavar="TARGET", help="the file to make")


def _add_file(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("named", nargs="?", metavar="STORE", help="the same as --store")


def _add_retain(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("--production-days", type=_days, default=argparse.SUPPRESS, metavar="N | forever",
                       help="how long traces of production are kept (at first: 30)")  # fmt: skip
    topic.add_argument("--sandbox-days", type=_days, default=argparse.SUPPRESS, metavar="N | forever",
                       help="how long those of the sandbox are (at first: 1)")  # fmt: skip


_ADD = {"backup": _add_backup, "check": _add_file, "upgrade": _add_file, "retain": _add_retain}


def _days(text: str) -> float | None:
    if text == "forever":
        return None
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of days nor 'forever'") from None
