"""What can be said to ``routewright traces`` and ``routewright feedback``."""

from __future__ import annotations

import argparse
from typing import Any

from .store_options import add_place, add_whose

_FILTER = """\
FILTER is key=value,key>=value ... with the keys status, kind, model, provider, policy_id, goal, strategy, environment,
cache_hit, fallback_used, error, cost_usd, duration_ms, compromised and metadata.NAME. Operators are = != >= <= > <;
a value in double quotes may hold commas. Put it in quotes: a shell has other plans for < and >."""

_TOPICS = {
    "ls": ("list traces, newest first", _FILTER, "[OPTIONS] [FILTER]"),
    "show": (
        "show one trace: its spans, what they took and cost, among whom was chosen",
        "Without an ID it is the newest.",
        "[OPTIONS] [ID]",
    ),
    "export": (
        "write whole traces, each as one line of JSON, newest first",
        _FILTER,
        "[OPTIONS] [FILTER]",
    ),
    "delete": (
        "remove traces for good, with their feedback, and from the reports",
        f"All that is given has to hold of a trace. A person is asked first; scripts need --yes.\n\n{_FILTER}",
        "[OPTIONS] [ID | FILTER]",
    ),
}
"""What each does, what else is to be said of it, what it takes."""

_WHEN = "a day, a time as 2026-11-22T09:30:00Z, or so long ago, as 30m, 2h, 7d"


def add_traces(command: argparse.ArgumentParser) -> None:
    """Give the command ``traces`` its own commands."""
    topics = command.add_subparsers(
        prog="routewright traces", dest="topic", metavar="COMMAND", title="commands", required=True
    )
    for name, (does, more, takes) in _TOPICS.items():
        said: dict[str, Any] = {"help": does, "description": f"{does[0].upper()}{does[1:]}.\n\n{more}"}
        topic = topics.add_parser(name, usage=f"routewright traces {name} {takes}", **said)
        _ADD[name](topic)
        add_place(topic)
        add_whose(topic)


def add_feedback(command: argparse.ArgumentParser) -> None:
    """Give the command ``feedback`` its arguments."""
    command.add_argument("trace_id", metavar="ID", help="the trace of the answer")
    command.add_argument("score", type=float, metavar="SCORE", help="from 0 (bad) to 1 (good)")
    command.add_argument("comment", nargs="?", metavar="COMMENT", help="and why")
    add_place(command)
    add_whose(command)
    command.add_argument("--json", action="store_true", help="one JSON object")


def _add_ls(topic: argparse.ArgumentParser) -> None:
    _add_filter(topic)
    topic.add_argument("--limit", type=int, default=50, metavar="N", help="how many, 1 to 200 (default: 50)")
    topic.add_argument("--cursor", metavar="CURSOR", help="go on behind the last page, which named it")
    _add_json(topic)


def _add_show(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("trace_id", nargs="?", metavar="ID", help="the trace (default: the newest)")
    _add_json(topic)


def _add_export(topic: argparse.ArgumentParser) -> None:
    _add_filter(topic)
    topic.add_argument("--output", metavar="FILE", help="where to write them (default: standard output)")
    topic.set_defaults(json=False)


def _add_delete(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("which", nargs="?", metavar="ID | FILTER", help="the id of a trace, or which traces")
    _add_times(topic)
    topic.add_argument("--everything", action="store_true", help="all traces of the account")
    topic.add_argument("-y", "--yes", action="store_true", help="do not ask")
    _add_json(topic)


def _add_filter(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("filter", nargs="?", default="", metavar="FILTER", help="which traces (default: all)")
    _add_times(topic)


def _add_times(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("--since", metavar="WHEN", help=f"created then or later: {_WHEN}")
    topic.add_argument("--until", metavar="WHEN", help="created before then")


def _add_json(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("--json", action="store_true", help="one JSON object")


_ADD = {"ls": _add_ls, "show": _add_show, "export": _add_export, "delete": _add_delete}
