"""What can be said to ``routewright catalogue``."""

from __future__ import annotations

import argparse
from typing import Any

CATALOGUE = "models and prices over the bundled ones, TOML or JSON"

_TOPICS = {
    "import": (
        "take prices from a price list of others",
        "FILE is a JSON file like litellm's price map or models.dev's api.json, or a models.dev folder. What would\n"
        "change is shown line by line, then written to a catalogue file. What the list does not say stays as it is.",
        "[OPTIONS] FILE",
    ),
    "deprecations": (
        "list which models end when, and which policies break then",
        "Models that have ended are listed, too, but for those that are disabled.",
        "[OPTIONS]",
    ),
    "show": (
        "show all that is known of one model",
        "Prices are US dollars per million tokens.",
        "[OPTIONS] MODEL",
    ),
}
"""What each does, what else is to be said of it, what it takes."""


def add_catalogue(command: argparse.ArgumentParser) -> None:
    """Give the command ``catalogue`` its own commands."""
    topics = command.add_subparsers(
        prog="routewright catalogue", dest="topic", metavar="COMMAND", title="commands", required=True
    )
    for name, (does, more, takes) in _TOPICS.items():
        said: dict[str, Any] = {"help": does, "description": f"{does[0].upper()}{does[1:]}.\n\n{more}"}
        topic = topics.add_parser(name, usage=f"routewright catalogue {name} {takes}", **said)
        _ADD[name](topic)
        topic.add_argument("--catalogue", metavar="FILE", help=CATALOGUE)
        topic.add_argument("--json", action="store_true", help="one JSON object")


def _add_import(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("file", metavar="FILE", help="the price list")
    topic.add_argument("--output", metavar="FILE",
                       help="the TOML file to write (default: that of --catalogue, else models.toml)")  # fmt: skip
    topic.add_argument("--provider", action="extend", type=names, metavar="NAME,...",
                       help="only their prices; the list's own names settle contradictions")  # fmt: skip
    topic.add_argument("--starts", metavar="DATE",
                       help="the prices hold from this day on (default: now, in the place of today's)")  # fmt: skip
    topic.add_argument("--as-of", metavar="DATE", help="the day of the list's facts (default: today)")
    topic.add_argument("--add", action="append", default=[], metavar="GLOB",
                       help="also new models whose ids match, as mistral/*; may be repeated")  # fmt: skip
    topic.add_argument("--dry-run", action="store_true", help="only show what would change")
    topic.add_argument(
        "--force", action="store_true", help="write over a file whose comments and layout are lost by it"
    )


def _add_deprecations(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("--within", type=int, metavar="DAYS", help="only what ends within so many days")
    topic.add_argument("--policies", metavar="FILE", help="policies to ask what they lose, TOML or JSON")


def _add_show(topic: argparse.ArgumentParser) -> None:
    topic.add_argument("model_id", metavar="MODEL", help="its id, or an alias")


_ADD = {"import": _add_import, "deprecations": _add_deprecations, "show": _add_show}


def names(text: str) -> list[str]:
    """Names that commas part."""
    return [name.strip() for name in text.split(",") if name.strip()]
