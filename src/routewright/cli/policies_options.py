"""What can be said to ``routewright policies``."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from .catalogue_options import CATALOGUE

_CHECK = """\
Decides a request under each policy of FILE as routing would, and again without each provider: who serves it, at what
cost, and what breaks when a provider is lost. Nothing is called. Without a key the whole catalogue counts.

The request is a short one, unless a PROMPT or @FILE is given, or what --request holds."""


def add_policies(command: argparse.ArgumentParser, add_prompt: Callable[[argparse.ArgumentParser], None]) -> None:
    """Give the command ``policies`` its own commands."""
    topics = command.add_subparsers(
        prog="routewright policies", dest="topic", metavar="COMMAND", title="commands", required=True
    )
    check = topics.add_parser(
        "check",
        usage="routewright policies check [OPTIONS] FILE [PROMPT | @FILE]",
        help="say what routing under each policy comes to",
        description=_CHECK,
    )
    check.add_argument("policy_file", metavar="FILE", help="policies, TOML, JSON or Python")
    add_prompt(check)
    check.add_argument("--strict", action="store_true", help="a policy that hangs on one provider fails, too")
    check.add_argument("--sandbox", action="store_true", help="as if there were a key for every provider")
    check.add_argument("--catalogue", metavar="FILE", help=CATALOGUE)
    check.add_argument("--json", action="store_true", help="one JSON object")
    check.set_defaults(provider=None, model=None, prefer=None, fallback=None, goal=None, strategy=None, policy=None,
                       max_cost=None, max_tokens=None, timeout_ms=None)  # fmt: skip
