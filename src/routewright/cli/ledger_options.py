"""What can be said to ``routewright ledger``."""

from __future__ import annotations

import argparse
from typing import Any

from .catalogue_options import CATALOGUE
from .store_options import add_place

_RECONCILE = """\
FILE is what a provider says was used: a page of OpenAI's or Anthropic's usage or cost API, or several in an array;
Anthropic's or OpenRouter's CSV; or a table, CSV or JSON, with the columns date, model, requests, input_tokens,
output_tokens, cached_tokens and cost_usd, of which some may be missing.

It is held against the calls of all accounts in the same days, which are days of UTC on both sides. It ends with 0 where
both agree within the tolerance, or up to what was uncertain, and with 1 where they do not. Less than a cent never
counts."""

_CORRECT = """\
Say what an attempt of a call really cost, or how many tokens it used, which are priced as they were then. The
difference is booked, and charged where the call was; its trace and the analytics follow. Twice the same is once."""

_TOPICS = {
    "rows": ("list what was booked, newest first", "", "[OPTIONS]"),
    "statement": (
        "say what an account was charged in a month, and for what",
        "Months are those of UTC, and written 2026-11. Without one it is the present month.",
        "[OPTIONS] [MONTH]",
    ),
    "reconcile": ("hold a provider's usage export against the ledger", _RECONCILE, "[OPTIONS] FILE"),
    "correct": ("put right what an attempt was booked with", _CORRECT, "[OPTIONS] ID ATTEMPT"),
}
"""What each does, what else is to be said of it, what it takes."""

_WHEN = "a day, a time as 2026-11-22T09:30:00Z, or so long ago, as 30m, 2h, 7d"


def add_ledger(command: argparse.ArgumentParser) -> None:
    """Give the command ``ledger`` its own commands."""
    topics = command.add_subparsers(
        prog="routewright ledger", dest="topic", metavar="COMMAND", title="commands", required=True
    )
    for name, (does, more, takes) in _TOPICS.items():
        description = f"{does[0].upper()}{does[1:]}.\n\n{more}".rstrip()
        told: dict[str, Any] = {"help": does, "description": description}
        topic = topics.add_parser(name, usage=f"routewright ledger {name} {takes}", **told)
        _ADD[name](topic)
        add_place(topic)
        topic.add_argument("--json", action="store_true", help="one JSON object")


def _add_account(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("--account", default="default", metavar="NAME", help="whose it is (default: default)")


def _add_rows(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("--trace", dest="trace_id", metavar="ID", help="those of one call")
    topic.add_argument("--since", metavar="WHEN", help=f"of what began then or later: {_WHEN}")
    topic.add_argument("--until", metavar="WHEN", help="of what began before then")
    topic.add_argument("--limit", type=int, default=50, metavar="N", help="how many (default: 50)")
    _add_account(topic)


def _add_statement(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("month", nargs="?", metavar="MONTH", help="as 2026-11 (default: the present one)")
    topic.add_argument("--by-day", action="store_true", help="a line for each model and day")
    _add_account(topic)


def _add_reconcile(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("file", metavar="FILE", help="the export")
    topic.add_argument("--provider", dest="of_provider", metavar="NAME",
                       help="whose it is (default: as it says, else whoever serves its models)")  # fmt: skip
    topic.add_argument("--first", metavar="YYYY-MM-DD", help="the first day (default: its own)")
    topic.add_argument("--last", metavar="YYYY-MM-DD", help="the last day (default: its own)")
    topic.add_argument("--tolerance", type=_percent, default=0.01, metavar="PERCENT",
                       help="by how much the ledger may be off (default: 1%%)")  # fmt: skip
    topic.add_argument("--catalogue", metavar="FILE", help=CATALOGUE)


def _add_correct(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("trace_id", metavar="ID", help="the trace of the call")
    topic.add_argument("attempt", type=int, metavar="ATTEMPT", help="1, 2 ... as 'routewright ledger rows' lists them")
    topic.add_argument("--cost", type=float, metavar="USD", help="what it cost")
    for option, what in (
        ("--input", "input tokens, those from a cache and into it included"),
        ("--output", "output tokens, those that were thought included"),
    ):
        topic.add_argument(option, dest=f"{option[2:]}_tokens", type=int, metavar="N", help=what)
    for option, what in (
        ("--cached", "of the input, read from a cache"),
        ("--written", "of the input, written to a cache"),
        ("--reasoning", "of the output, thought before the answer"),
    ):
        topic.add_argument(option, dest=f"{option[2:]}_tokens", type=int, default=0, metavar="N", help=what)
    topic.add_argument("--note", default="", metavar="TEXT", help="why; it stands in the ledger")
    _add_account(topic)


def _percent(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / 100
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no share in per cent, as 1%") from None


_ADD = {"rows": _add_rows, "statement": _add_statement, "reconcile": _add_reconcile, "correct": _add_correct}
