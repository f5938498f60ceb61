"""What can be said to ``routewright analytics``."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from routewright.wire import Bucket

from .store_options import add_place, add_whose

_DAYS = "Days are UTC, both ends included; without dates it is the last seven."

_TOPICS = {
    "usage": "requests, errors, money and tokens, by time and group",
    "cache": "what the response cache saved, and how old its hits were",
    "fallback": "how often another model had to serve, why, and which models fail",
    "latency": "how long requests took, by model and strategy",
}
"""What each shows."""


def add_analytics(command: argparse.ArgumentParser) -> None:
    """Give the command ``analytics`` its own commands."""
    topics = command.add_subparsers(
        prog="routewright analytics", dest="topic", metavar="REPORT", title="reports", required=True
    )
    for name, shows in _TOPICS.items():
        told: dict[str, Any] = {"help": shows, "description": f"{shows[0].upper()}{shows[1:]}.\n\n{_DAYS}"}
        topic = topics.add_parser(name, usage=f"routewright analytics {name} [OPTIONS]", **told)
        topic.add_argument("--start-date", metavar="YYYY-MM-DD", help="the first day")
        topic.add_argument("--end-date", metavar="YYYY-MM-DD", help="the last day")
        if name == "usage":
            _add_usage(topic)
        add_place(topic)
        add_whose(topic)
        topic.add_argument("--json", action="store_true", help="one JSON object")


def _add_usage(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("--group-by", default="model", metavar="WHAT",
                       help="model, tenant, workflow or metadata.KEY (default: model)")  # fmt: skip
    topic.add_argument("--bucket", choices=get_args(Bucket), default="day",
                       help="hour, day, week or month (default: day)", metavar="SPAN")  # fmt: skip
