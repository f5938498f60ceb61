"""What can be said on the command line."""

from __future__ import annotations

import argparse
from difflib import get_close_matches
from typing import Any, NoReturn, get_args

from routewright import __version__
from routewright._core.account import without_keys
from routewright.wire import Bucket, Environment, Goal, Modality, PlanName, Scope, Severity, Strategy

from .analytics_options import add_analytics
from .catalogue_options import CATALOGUE, add_catalogue, names
from .console_options import add_accounts, add_incidents, add_keys, add_secret
from .exits import exit_table
from .ledger_options import add_ledger
from .policies_options import add_policies
from .serve_options import add_serve
from .store_options import add_place, add_store
from .traces_options import add_feedback, add_traces

_DESCRIPTION = """\
Route chat requests across many language models: explainable choices, hard budgets, fallbacks, traces.

Providers are found by their keys in the environment (OPENAI_API_KEY, ...); --sandbox needs none.
Standard output holds the answer, or JSON, and nothing else; what is said about it goes to standard error."""

_EXAMPLES = """\
examples:
  routewright route --sandbox --explain --trace "Why is the sky blue?"
  routewright route --goal quality --max-cost 0.01 @question.txt
  git diff | routewright route --system "Write a commit message for this diff."
  routewright route --json "Name three rivers." | jq -r .output
  routewright decide --strategy latency-optimized --provider openai,anthropic "Hello"
  routewright models --modality image --provider google
  routewright catalogue import model_prices.json --output models.toml
  routewright policies check policies.toml
  routewright traces ls --store traces.db "status=failed" --since 2h
  routewright analytics usage --store traces.db --start-date 2026-11-01 --bucket week
  routewright ledger reconcile openai_costs.json --store traces.db
  KEY=$(routewright keys create acme --name website --store traces.db)
  routewright serve --port 8080 --store routewright.db"""

_PROMPT = """

The prompt is the argument, a file as @FILE or --file FILE, or else what is piped in."""
_TAKES = "[OPTIONS] [PROMPT | - | @FILE]"

_COMMANDS = {
    "route": ("answer a prompt with the model that fits it best", _PROMPT.lstrip(), _TAKES),
    "decide": (
        "say which model would answer, and why; nothing is called",
        f"No key is needed.{_PROMPT}",
        _TAKES,
    ),
    "serve": (
        "answer requests over HTTP at /v1",
        "The first start makes a store, an account and its keys, and says how to ask.\n\n"
        "What is not said here is taken from the environment (ROUTEWRIGHT_PORT, ...), else from the file of --config,\n"
        "else it is the default. SIGHUP reads the file anew; SIGTERM and Ctrl-C end what was begun, then the server.",
        "[OPTIONS]",
    ),
    "models": ("list the models that can be routed to", "Prices are US dollars per million tokens.", "[OPTIONS]"),
    "catalogue": (
        "keep the catalogue up to date: prices of others, models that end",
        "Each of its commands has a --help of its own.",
        "COMMAND [OPTIONS]",
    ),
    "policies": (
        "check policies before they are live",
        "Each of its commands has a --help of its own.",
        "COMMAND [OPTIONS]",
    ),
    "traces": (
        "list, show, export and delete what calls left in a store",
        "Each of its commands has a --help of its own.",
        "COMMAND [OPTIONS]",
    ),
    "analytics": (
        "report what the traces of a store add up to",
        "Each of its reports has a --help of its own.",
        "REPORT [OPTIONS]",
    ),
    "feedback": ("say how good an answer was", "It is kept beside the trace.", "[OPTIONS] ID SCORE [COMMENT]"),
    "ledger": (
        "read what was paid and billed, hold bills against it, put it right",
        "Each of its commands has a --help of its own.",
        "COMMAND [OPTIONS]",
    ),
    "accounts": (
        "set up who is served: plans, limits, credit",
        "Each of its commands has a --help of its own.",
        "COMMAND [OPTIONS]",
    ),
    "keys": (
        "make, list, change and revoke the keys of an account",
        "Each of its commands has a --help of its own.",
        "COMMAND [OPTIONS]",
    ),
    "incidents": (
        "say that something goes wrong for many, and that it is over",
        "Each of its commands has a --help of its own.",
        "COMMAND [OPTIONS]",
    ),
    "secret": (
        "change the secret that keys and cursors depend on",
        "Each of its commands has a --help of its own.",
        "COMMAND [OPTIONS]",
    ),
    "store": (
        "back up, check and upgrade a store, say how long it keeps traces",
        "Each of its commands has a --help of its own.",
        "COMMAND [OPTIONS]",
    ),
}
"""What each does, what else is to be said of it, what it takes."""

_EXITS = f"exit codes:\n{exit_table()}"


class Arguments(argparse.Namespace):
    """A parsed command line."""

    command: str | None
    json: bool
    provider: list[str] | None
    policies: str | None
    catalogue: str | None

    # route and decide
    prompt: str | None
    file: str | None
    request: str | None = None
    system: str | None
    image: list[str]
    goal: Goal | None
    strategy: Strategy | None
    policy: str | None
    model: list[str] | None
    prefer: list[str] | None
    fallback: list[str] | None
    max_cost: float | None
    max_tokens: float | None
    max_output_tokens: float | None
    timeout_ms: float | None
    metadata: list[tuple[str, str]]
    sandbox: bool

    # decide
    why_not: str | None = None

    # route
    stream: bool | None
    explain: bool
    trace: bool
    quiet: bool

    # serve
    config: str | None
    check: bool

    # models
    modality: list[Modality]
    all: bool

    # catalogue
    topic: str
    output: str | None
    starts: str | None
    as_of: str | None
    add: list[str]
    dry_run: bool
    force: bool
    within: int | None

    # route, traces, analytics, feedback and store
    store: str | None = None
    account: str
    environment: Environment | None

    # traces and feedback
    filter: str
    since: str | None
    until: str | None
    limit: int
    cursor: str | None
    which: str | None
    everything: bool
    yes: bool
    trace_id: str | None
    score: float
    comment: str | None

    # analytics
    start_date: str | None
    end_date: str | None
    group_by: str
    bucket: Bucket

    # ledger
    month: str | None
    by_day: bool
    first: str | None
    last: str | None
    tolerance: float
    of_provider: str | None
    attempt: int
    cost: float | None
    input_tokens: int | None
    output_tokens: int | None
    cached_tokens: int
    written_tokens: int
    reasoning_tokens: int

    # store
    target: str
    named: str | None
    production_days: float | None
    sandbox_days: float | None
    model_id: str | None

    # accounts, keys, incidents and secret
    name: str
    plan: PlanName
    prepaid: bool
    monthly_limit: float | None
    budget: float | None
    usd: float
    note: str
    id: str | None
    key_id: str
    scope: list[Scope] | None
    title: str
    severity: Severity
    status_url: str | None

    # policies
    policy_file: str
    strict: bool


def parser() -> argparse.ArgumentParser:
    """Make the parser of the whole command."""
    main = _Parser("routewright", description=_DESCRIPTION, epilog=f"{_EXAMPLES}\n\n{_EXITS}")
    main.add_argument("--version", action="version", version=f"routewright {__version__}")
    commands = main.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, add_options in _ADD.items():
        does, more, takes = _COMMANDS[name]
        said = f"{does[0].upper()}{does[1:]}. {more}"
        add_options(commands.add_parser(
            name, usage=f"routewright {name} {takes}", help=does, description=said
        ))  # fmt: skip
    return main


class _Parser(argparse.ArgumentParser):
    """Keeps line ends in its texts, and takes no abbreviated options: scripts outlive the options of their day."""

    def __init__(self, *args: Any, **rest: Any) -> None:
        rest |= {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(*args, **rest)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end. No API key is repeated that stands in a wrong place."""
        super().error(without_keys(message))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse here what is not known, so that a command answers for its own options."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = get_close_matches(unknown[0], self._option_string_actions, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return parsed, unknown


def _add_route(command: argparse.ArgumentParser) -> None:
    _add_request(command)
    shown = command.add_argument_group("output")
    shown.add_argument("--json", action="store_true", help="one JSON object: the route response, or the error")
    shown.add_argument("--explain", action="store_true", help="the decision: chosen, runner-up, rejected and why")
    shown.add_argument("--trace", action="store_true", help="the span tree, with what took how long")
    shown.add_argument(
        "--stream",
        action=argparse.BooleanOptionalAction,
        help="the answer as it comes, or whole (default: as it comes if standard output is a terminal)",
    )
    shown.add_argument("-q", "--quiet", action="store_true", help="the answer alone")
    add_place(command, writes=True)


def _add_decide(command: argparse.ArgumentParser) -> None:
    _add_request(command)
    command.add_argument("--json", action="store_true", help="one JSON object, with every candidate and rejection")
    command.add_argument("--why-not", metavar="ID", help="what would have to be true for this model to be chosen")


def _add_models(command: argparse.ArgumentParser) -> None:
    command.add_argument("--modality", action="append", choices=get_args(Modality), default=[], metavar="KIND",
                         help="only models that take it: text, image or tool; may be repeated")  # fmt: skip
    command.add_argument("--all", action="store_true",
                         help="also what cannot be called: deprecated, disabled, without a key")  # fmt: skip
    command.add_argument("--json", action="store_true", help="one JSON object")
    command.add_argument("--provider", action="extend", type=names, metavar="NAME,...", help="only their models")
    command.add_argument("--catalogue", metavar="FILE", help=CATALOGUE)


def _add_prompt(command: argparse.ArgumentParser) -> None:
    asked = command.add_argument_group("the request")
    asked.add_argument("prompt", nargs="?", metavar="PROMPT | - | @FILE", help="what to ask; - is standard input")
    asked.add_argument("--file", metavar="FILE", help="read the prompt from a file")
    asked.add_argument("--request", metavar="FILE", help="a whole route request as JSON; options are put over it")
    asked.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    asked.add_argument("--image", action="append", default=[], metavar="URL", help="an image beside the prompt")
    asked.add_argument("--max-output-tokens", type=float, metavar="N", help="the longest answer wanted")
    asked.add_argument("--metadata", action="append", type=_pair, default=[], metavar="KEY=VALUE",
                       help="a tag for the trace; may be repeated")  # fmt: skip


def _add_request(command: argparse.ArgumentParser) -> None:
    _add_prompt(command)
    choice = command.add_argument_group("the choice")
    choice.add_argument("--goal", choices=get_args(Goal), help="what matters most (default: cost)")
    choice.add_argument("--strategy", choices=get_args(Strategy), help="how it is weighed (default: balanced)")
    choice.add_argument("--policy", metavar="ID", help="id or name of a policy in --policies")
    choice.add_argument("--max-cost", type=float, metavar="USD", help="never spend more on this request")
    choice.add_argument("--max-tokens", type=float, metavar="N", help="never use more, input and output together")
    choice.add_argument("--timeout-ms", type=float, metavar="MS", help="time for everything (default: 60000)")
    chain = choice.add_mutually_exclusive_group()
    chain.add_argument("--fallback", action="extend", type=names, metavar="ID,...", help="who follows on a failure")
    chain.add_argument("--no-fallback", action="store_const", const=[], dest="fallback", help="nobody does")
    pool = command.add_argument_group("the models")
    only = pool.add_mutually_exclusive_group()
    only.add_argument("--model", action="extend", type=names, metavar="ID,...", help="only these models")
    only.add_argument("--provider", action="extend", type=names, metavar="NAME,...", help="only models of theirs")
    pool.add_argument("--prefer", action="extend", type=names, metavar="ID,...",
                      help="try these first, in this order, where they fit")  # fmt: skip
    pool.add_argument("--sandbox", action="store_true", help="canned answers: no key, no network, nobody is billed")
    pool.add_argument("--catalogue", metavar="FILE", help=CATALOGUE)
    pool.add_argument("--policies", metavar="FILE", help="policies that --policy can name: TOML, JSON or Python")


def _add_catalogue(command: argparse.ArgumentParser) -> None:
    add_catalogue(command)


def _add_policies(command: argparse.ArgumentParser) -> None:
    add_policies(command, _add_prompt)


def _add_traces(command: argparse.ArgumentParser) -> None:
    add_traces(command)


def _add_analytics(command: argparse.ArgumentParser) -> None:
    add_analytics(command)


def _add_store(command: argparse.ArgumentParser) -> None:
    add_store(command)


_ADD = {
    "route": _add_route,
    "decide": _add_decide,
    "serve": add_serve,
    "models": _add_models,
    "catalogue": _add_catalogue,
    "policies": _add_policies,
    "traces": _add_traces,
    "analytics": _add_analytics,
    "feedback": add_feedback,
    "ledger": add_ledger,
    "accounts": add_accounts,
    "keys": add_keys,
    "incidents": add_incidents,
    "secret": add_secret,
    "store": _add_store,
}


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value
