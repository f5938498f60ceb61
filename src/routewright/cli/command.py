"""The parser of the command line, exit codes, and running a command.

A command's module is only loaded when it is used, so ``--help`` does not load the library."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from inspect import getdoc, iscoroutinefunction
from io import BytesIO, TextIOWrapper
from typing import Any, NoReturn, Protocol

import msgspec

from routewright import __version__, errors
from routewright._core.account import without_keys
from routewright.errors import RouterError, ValidationFailed
from routewright.wire import error_envelope
from routewright.wire.account import without_passwords

from .show import Line, Screen, discard_output, json_line

OK = 0
INTERNAL = 1
DISAGREES = 1
USAGE = 2
NOBODY_FITS = 3
UNFINISHED = 9
INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_CODES = {
    OK: "done",
    INTERNAL: "internal error, damaged or unavailable store (500), or a bill that differs from the ledger",
    USAGE: "invalid command line, file or request (400, 404, 409, 413)",
    NOBODY_FITS: "no model fits the constraints or the budget (422), or an agent run's budget is spent",
    4: "the content was refused by a policy, a guardrail or the provider (403)",
    5: "all tried models failed (502)",
    6: "timeout: --timeout-ms has passed (504)",
    7: "the account's key is not accepted, or its money is used up (401, 402)",
    8: "too many requests: wait, then try again (429)",
    UNFINISHED: "an agent's run is unfinished: it reached --max-steps, or waits for a tool's result",
    INTERRUPTED: "interrupted with Ctrl-C, or declined",
    BROKEN_PIPE: "the reader of the output has ended, as in: routewright models | head",
}
"""Exit codes and their meanings."""
_BY_STATUS = {422: NOBODY_FITS, 403: 4, 502: 5, 504: 6, 401: 7, 402: 7, 429: 8}

_DESCRIPTION = """\
Route chat requests across many language models: explainable choices, hard budgets, fallbacks, traces.

Providers are found by their keys in the environment (OPENAI_API_KEY, ...); --sandbox needs none.
Only the answer or JSON goes to standard output; everything else goes to standard error."""

_EXAMPLES = """\
examples:
  routewright route --sandbox --explain --trace "Why is the sky blue?"
  routewright route --goal quality --max-cost 0.01 @question.txt
  git diff | routewright route --system "Write a commit message for this diff."
  routewright route --json "Name three rivers." | jq -r .output
  routewright agent --tool calculator --max-cost 0.05 "What is 17.5 % of 2,340?"
  routewright decide --strategy latency-optimized --provider openai,anthropic "Hello"
  routewright models --modality image --provider google
  routewright catalogue import model_prices.json --output models.json
  routewright policies check policies.toml
  routewright traces ls --store traces.db "status=failed" --since 2h
  routewright analytics usage --store traces.db --start-date 2026-11-01 --bucket week
  routewright cache explain --cache cache.db "Why is the sky blue?"
  routewright ledger rows --store traces.db --since 2h
  KEY=$(routewright keys create acme --name website --store traces.db)
  routewright webhooks create acme https://hooks.example.com/in --store traces.db
  routewright serve --port 8080 --store routewright.db"""

_COMMANDS = {
    "route": ("route", "answer a prompt with the model that fits it best"),
    "agent": ("agent", "work on a task in steps, with tools"),
    "decide": ("route", "show which model would answer, and why, without calling it"),
    "serve": ("serve", "answer requests over HTTP at /v1"),
    "models": ("route", "list the available models"),
    "catalogue": ("catalogue", "update the catalogue: import prices, list deprecations"),
    "policies": ("catalogue", "check policies before deployment"),
    "traces": ("traces", "list, show, export and delete the traces of a store"),
    "analytics": ("analytics", "report usage, latency, fallbacks and cache hits of a store"),
    "cache": ("cache", "count, explain and remove answers in a response cache"),
    "feedback": ("traces", "rate an answer"),
    "ledger": ("ledger", "list costs and charges"),
    "accounts": ("accounts", "create accounts, change their plans, limits and credit"),
    "keys": ("accounts", "create, list, change and revoke the keys of an account"),
    "incidents": ("accounts", "open and resolve incidents that affect many callers"),
    "webhooks": ("webhooks", "register endpoints, inspect, replay and verify deliveries"),
    "secret": ("accounts", "change the secret of keys and cursors"),
    "store": ("store", "create, copy, back up, check and upgrade a store, set its retention"),
}
"""Module and help text of each command."""

_OF_REQUESTS = ("route", "agent", "decide", "models", "catalogue", "policies", "cache explain")
_WORDS = {
    **dict.fromkeys((" (maxCostUsd in a dict)", " (maxTokens in a dict)"), ""),
    "budget.maxCostUsd": "--max-cost",
    "budget.maxTokens": "--max-tokens",
    "budget.max_cost_usd": "--max-cost",
    "budget.max_tokens": "--max-tokens",
    "params.max_output_tokens": "--max-output-tokens",
    "params.reasoning": "--reasoning",
    "timeout_ms": "--timeout-ms",
    "policy_id": "--policy",
    "cache.max_error": "--max-error",
    "cache.threshold": "--threshold",
    "cache.namespace": "--namespace",
    "max_steps:": "--max-steps:",
    "per_step_timeout_ms:": "--step-timeout-ms:",
    "total_budget_usd:": "--max-cost:",
    "pass it to Router(policies=...)": "give its file as --policies",
    "Router.models()": "'routewright models --all'",
    "pass Router(providers=[...]), or use Router.sandbox()": "or add --sandbox",
}
"""Names in the library's messages about requests, and their options."""
_OF_FILE = re.compile(r"\.(toml|json|py): ")
"""Begins the path of a problem in a file."""
_ARGUMENTS = {
    "filter": "FILTER",
    "limits": "--requests-per-min, --tokens-per-min, --concurrency",
    "Retention.production_days": "--production-days",
    "Retention.sandbox_days": "--sandbox-days",
    "trace_id": "ID",
}
"""Arguments of the library with other names on the command line."""
_HINTS = {
    "bucket=day": "--bucket day",
    "change_account() changes its terms": "'routewright accounts change' changes its terms",
    "pass force=True to": "pass --force to",
    "or pass a datetime with a time zone": "or how long ago, as 30m, 2h, 7d",
    "pass RateLimits(requests_per_min=..., ...)": "give at least one of them",
    "Settings(rollup_keys=...)": "the setting rollup_keys",
}
"""Hints of the library, and their versions for the command line."""

refused = ValidationFailed.at
"""The error of an argument, or with an empty name of the whole command line."""
Run = Callable[[Namespace, Screen], Any]
"""A function or coroutine function that runs a command and returns its exit code; None is 0."""


class TakesArguments(Protocol):
    """A parser, or a group of its options."""

    def add_argument(self, *names: str, **rest: Any) -> Any:
        """Add an argument."""


class Parser(argparse.ArgumentParser):
    """Keeps line breaks in its texts, and refuses abbreviated options, which new options could make ambiguous."""

    source: tuple[str, str] | None = None
    """The module and the function that adds the arguments, called when the command is used."""
    _commands: Any = None

    def __init__(self, *args: Any, **rest: Any) -> None:
        rest |= {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(*args, **rest)

    def command(self, usage: str, run: Run, more: str = "") -> Parser:
        """Add a subcommand. ``usage``: its name and positional arguments."""
        if self._commands is None:
            self.usage = f"{self.prog} COMMAND [OPTIONS]"
            self.description = f"{self.description} Each command has its own --help."
            self._commands = self.add_subparsers(
                prog=self.prog, dest="topic", metavar="COMMAND", title="commands", required=True
            )
        name, _, takes = usage.partition(" ")
        does = (run.__doc__ or name).partition("\n")[0].rstrip(".")
        command: Parser = self._commands.add_parser(name, help=f"{does[0].lower()}{does[1:]}")
        command.performs(run, takes, more)
        return command

    def performs(self, run: Run, takes: str = "", more: str = "") -> None:
        """Set the function of this command. Its docstring is the help, followed by ``more``."""
        self.usage = f"{self.prog} [OPTIONS] {takes}".rstrip()
        self.description = f"{getdoc(run) or ''}\n\n{more}".strip()
        self.set_defaults(run=run, parser=self)

    def error(self, message: str) -> NoReturn:
        """Print an error and exit. API keys and passwords are masked."""
        super().error(without_passwords(without_keys(message)))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown arguments here, so that the error shows the usage of the subcommand."""
        if self.source is not None:
            module, add_arguments = self.source
            getattr(import_module(module, __package__), add_arguments)(self)
            self.source = None
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = get_close_matches(unknown[0], self._option_string_actions, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return parsed, unknown

    def spelling(self) -> dict[str, str]:
        """The name of each argument on the command line: its long option or metavar."""
        return {
            each.dest: next((option for option in each.option_strings if option.startswith("--")), str(each.metavar))
            for each in self._actions
        }


def parser() -> Parser:
    """Create the parser."""
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    main = Parser("routewright", description=_DESCRIPTION, epilog=f"{_EXAMPLES}\n\nexit codes:\n{codes}")
    main.add_argument("--version", action="version", version=f"routewright {__version__}")
    commands = main.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (module, does) in _COMMANDS.items():
        command = commands.add_parser(name, help=does, description=f"{does[0].upper()}{does[1:]}.")
        command.source = (f".{module}", f"add_{name}")
    return main


def run(argv: Sequence[str] | None) -> int:
    """Run one command line and return its exit code. None: the command line of this process."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # a closed stream
            setattr(sys, name, TextIOWrapper(BytesIO()))
    options = parser()
    args = options.parse_args(argv)
    if args.command is None:
        options.print_help(sys.stderr)
        return USAGE
    if args.command != "serve":  # a server configures logging itself, and works without rich
        if find_spec("rich") is None:
            options.error("this command needs rich, which is not installed; run: pip install 'routewright[cli]'")
        if logging.lastResort is not None:
            logging.getLogger("routewright").addHandler(logging.lastResort)
    try:
        screen = Screen(as_json=args.json)  # flushes what was written before
        try:
            if iscoroutinefunction(args.run):
                import anyio  # not needed by the supervisor of servers

                return anyio.run(args.run, args, screen) or OK
            return args.run(args, screen) or OK
        except RouterError as error:
            return _failed(error, args, screen)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        discard_output()
        return BROKEN_PIPE
    except OSError as error:  # of writing, since commands translate errors of reading
        discard_output()
        sys.stderr.write(f"routewright: cannot write the output: {error.strerror}\n")
        return INTERNAL


def _failed(error: RouterError, args: Namespace, screen: Screen) -> int:
    """Print an error, with ``--json`` also as the HTTP API's envelope, and return its exit code."""
    if isinstance(error, ValidationFailed) and not _is_of_request(args) and args.command != "serve":
        # name options instead of the library's arguments
        names = _ARGUMENTS | args.parser.spelling() | {"force": ""}
        hints = _HINTS | getattr(args, "hints", {})
        problems = []
        for each in error.problems:
            name, bracket, rest = each.path.partition("[")
            hint = each.hint
            for theirs, ours in hints.items():
                hint = hint.replace(theirs, ours)
            problems.append(each._replace(path=f"{names.get(name, name)}{bracket}{rest}", hint=hint))
        error = ValidationFailed.of(*problems) if problems else error
    if args.json:
        error.request_id = error.request_id or _new_id()
        screen.json(msgspec.json.decode(without_passwords(without_keys(json_line(error_envelope(error))))))
    message = f"routewright: {without_passwords(in_words(error, args))}"
    if args.command == "serve":
        screen.warn(message)
    else:
        screen.say(Line(message, "bad"))
    return exit_code(error)


def exit_code(error: RouterError | type[RouterError]) -> int:
    """The exit code of an error, by its HTTP status."""
    return _BY_STATUS.get(error.status, USAGE if error.status < 500 else INTERNAL)


def exit_code_of(code: str) -> int:
    """The exit code of an error code."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, RouterError)]
    return next((exit_code(kind) for kind in kinds if kind.code == code), INTERNAL)


def in_words(text: object, args: Namespace) -> str:
    """A message with options instead of fields, except for fields of ``--request`` and keys of files."""
    lines = str(text).split("\n")
    if _is_of_request(args) and getattr(args, "request", None) is None:
        for place, line in enumerate(lines):
            if not _OF_FILE.search(line):
                for field, option in _WORDS.items():
                    line = line.replace(field, option)
                lines[place] = line
    message = "\n".join(lines)
    is_option = getattr(args, "model", None) is not None  # overrides the models of a request
    return re.sub(r"^models\[\d+\]", "--model", message, flags=re.MULTILINE) if is_option else message


def _is_of_request(args: Namespace) -> bool:
    return args.command in _OF_REQUESTS or f"{args.command} {getattr(args, 'topic', '')}" in _OF_REQUESTS


def _new_id() -> str:
    from random import SystemRandom

    from routewright.backends.clock import SystemClock  # loads asyncio, too
    from routewright.identity import Ids

    return Ids(SystemClock(), SystemRandom())("req_")


def add(to: TakesArguments, argument: str, does: str, **rest: Any) -> None:
    """Add an argument with its metavar, as ``--limit N``."""
    name, _, metavar = argument.partition(" ")
    to.add_argument(name, help=does, **{"metavar": metavar, **rest} if metavar else rest)


def add_json(command: Parser, does: str = "one JSON object") -> None:
    """Add ``--json``."""
    add(command, "--json", does, action="store_true")


def add_catalogue_file(to: TakesArguments) -> None:
    """Add ``--catalogue``."""
    add(to, "--catalogue FILE", "models and prices over the bundled ones, TOML or JSON")


def number_or(word: str, number: Callable[[str], float] = float) -> Callable[[str], float | None]:
    """An argument type: a number, or a word for None."""

    def read(text: str) -> float | None:
        if text == word:
            return None
        try:
            return number(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor '{word}'") from None

    return read


def names(text: str) -> list[str]:
    """An argument type: names separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]
