"""The parser of the command line, exit codes, and running a command.

A command's module is only loaded when it is used, so ``--help`` does not load the library."""

from __future__ import annotations

import argparse
import logging
import re
import sys
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from importlib import import_module
from inspect import getdoc, iscoroutinefunction
from io import BytesIO, TextIOWrapper
from secrets import token_hex
from typing import Any, NamedTuple, NoReturn, get_args

import msgspec

from routewright import __version__, errors
from routewright.errors import RouterError, ValidationFailed
from routewright.wire import error_envelope
from routewright.wire.account import without_keys, without_passwords

from .show import Screen, discard_output, json_line

OK = 0
INTERNAL = 1
GATE_FAILED = 1
USAGE = 2
NOBODY_FITS = 3
UNFINISHED = 9
INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_CODES = {
    OK: "done",
    INTERNAL: "internal error, damaged or unavailable store (500), a condition of --fail-if, or unreadable entries",
    USAGE: "invalid command line, file or request (400, 404, 409, 413)",
    NOBODY_FITS: "no model fits the constraints or the budget (422), or an agent run's budget is spent",
    4: "the content was refused by a policy, a guardrail or the provider (403)",
    5: "all tried models failed (502)",
    6: "timeout: --timeout-ms has passed (504)",
    7: "the account's key is not accepted, or its money is used up (401, 402)",
    8: "too many requests: wait, then try again (429)",
    UNFINISHED: "an agent's run is unfinished: it reached --max-steps, or waits for a tool's result",
    INTERRUPTED: "interrupted with Ctrl-C",
    BROKEN_PIPE: "the reader of the output has ended, as in: routewright models | head",
}
"""Exit codes and their meanings."""
RUN_EXITS = {"completed": OK, "partial": UNFINISHED, "budget_exceeded": NOBODY_FITS}
"""Exit codes of agent runs by status. A failed run exits with the code of its error."""
_BY_STATUS = {422: NOBODY_FITS, 403: 4, 502: 5, 504: 6, 401: 7, 402: 7, 429: 8}

_DESCRIPTION = """\
Route chat requests across many language models: explainable choices, hard budgets, fallbacks, traces.

Providers are found by their keys in the environment (OPENAI_API_KEY, ...); --sandbox needs none.
Only the answer or JSON goes to standard output; everything else goes to standard error."""

_EXAMPLES = """\
examples:
  routewright route --sandbox --explain --trace "Why is the sky blue?"
  git diff | routewright route --system "Write a commit message for this diff."
  routewright agent --tool calculator --max-cost 0.05 "What is 17.5 % of 2,340?"
  routewright traces ls --store traces.db "status=failed" --since 2h
  KEY=$(routewright keys create acme --name website --store traces.db)
  routewright serve --port 8080 --store routewright.db"""

_COMMANDS = {
    "route": ("route", "answer a prompt with the model that fits it best"),
    "agent": ("agent", "work on a task in steps, with tools"),
    "decide": ("route", "show which model would answer, and why, without calling it"),
    "serve": ("serve", "answer requests over HTTP at /v1"),
    "ui": ("ui", "show a store on a page in the browser"),
    "models": ("models", "list the available models, or show one"),
    "catalogue": ("catalogue", "import prices into a catalogue file"),
    "import": ("litellm", "take over the configuration of another gateway"),
    "policies": ("policies", "draft, check, simulate, publish and roll back policies"),
    "what-if": ("simulation", "show what stored traffic would have cost with other models or prices"),
    "traces": ("traces", "list, show, export and delete the traces of a store"),
    "status": ("status", "show what is wrong with vendors, keys, storage and webhooks"),
    "analytics": ("analytics", "report usage, latency, fallbacks and cache hits of a store"),
    "cache": ("cache", "count and remove answers in a response cache"),
    "feedback": ("traces", "rate an answer"),
    "ledger": ("ledger", "list and export costs and charges"),
    "accounts": ("accounts", "create accounts, change their plans, limits and credit"),
    "keys": ("accounts", "create, list, change and revoke the keys of an account"),
    "incidents": ("accounts", "open and resolve incidents that affect many callers"),
    "webhooks": ("webhooks", "register endpoints, inspect and replay deliveries"),
    "secret": ("accounts", "change the secret of keys and cursors"),
    "store": ("store", "create, copy, back up, check and upgrade a store, set its retention"),
}
"""Module and help text of each command."""

_OF_REQUESTS = ("route", "agent", "decide", "models", "catalogue", "policies")
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
    "max_steps:": "--max-steps:",
    "per_step_timeout_ms:": "--step-timeout-ms:",
    "total_budget_usd": "--max-cost",
    "pass it to Router(policies=...) or publish it in storage": "give its file as --policies, or publish it",
    "Console.policies.roll_back() publishes it again": "'routewright policies rollback' publishes it again",
    "by models=[Model(id=...)] of its provider, or in a catalogue file": "in the file of --catalogue",
    "pass Router(providers=[...]), or use Router.sandbox()": "or add --sandbox",
}
"""Names in the library's messages about requests, and their options."""
_OF_FILE = re.compile(r"\.(toml|json): ")
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
    "at most 36500, or None": "at most 36500, or forever",
    "change_account() changes its terms": "'routewright accounts change' changes its terms",
    "pass force=True to": "pass --force to",
    "draft(policy) first": "'routewright policies draft FILE' saves one",
    "roll_back() ends the share, discard() drops": "'policies rollback' ends the share, 'policies discard' drops",
    "with Console(catalogue=...)": "with --catalogue",
    "Router.models()": "'routewright models --all'",
    "free the name with retire()": "free the name with 'routewright policies retire'",
    "or pass a datetime with a time zone": "or how long ago, as 30m, 2h, 7d",
    "pass RateLimits(requests_per_min=..., ...)": "give at least one of them",
    "Settings(rollup_keys=...)": "the setting rollup_keys",
}
"""Hints of the library, and their versions for the command line."""

refused = ValidationFailed.at
"""The error of an argument, or with an empty name of the whole command line."""


def unconfirmed(action: str) -> ValidationFailed:
    """The error of a command that needs ``--yes`` and does not have it."""
    return refused("", action, "repeat with --yes to do it")


Run = Callable[[Namespace, Screen], object]
"""A function or coroutine function that runs a command and returns its exit code; None is 0."""
Declaration = Callable[[Any], object]
"""Adds arguments to a parser, or to a group of its arguments."""


class Verb(NamedTuple):
    """A command: its function, whose docstring is the help, followed by ``more``, and its arguments."""

    run: Run
    arguments: tuple[Declaration, ...]
    more: str


_VERBS: dict[str, dict[str, Verb]] = defaultdict(dict)
"""By noun and name; the name of a noun that is a command itself is empty."""


def verb(command: str, *arguments: Declaration, more: str = "") -> Callable[[Run], Run]:
    """Declare a function as a command, such as ``accounts create`` or ``route``."""
    noun, name = (*command.split(), "")[:2]

    def declare(run: Run) -> Run:
        _VERBS[noun][name] = Verb(run, arguments, more)
        return run

    return declare


def arg(names: str, text: str, kind: object = str, default: object = None, **rest: object) -> Declaration:
    """An argument with its metavar, as ``--limit N`` or ``-y,--yes``; one without dashes is positional.

    ``kind`` reads the text, or is a ``Literal`` of what it may be."""
    options = names.split()[0]
    metavar = names.partition(" ")[2]
    choices = get_args(kind)
    rest |= {"choices": choices} if choices else {} if kind is str else {"type": kind}
    rest |= {"metavar": metavar} if metavar else {}
    if default is not None:
        rest["default"] = default
        text += "" if default in ([], ABSENT, "") else f" (default: {default})"
    return lambda parser: parser.add_argument(*options.split(","), help=text, **rest)


def repeated(names: str, text: str, kind: object = str) -> Declaration:
    """An option that may be repeated."""
    return arg(names, f"{text}; may be repeated", kind, [], action="append")


def several(names: str, text: str, **rest: object) -> Declaration:
    """An option with names separated by commas, as ``--model ID,...``, that may be repeated."""
    return arg(names, text, separated, action="extend", **rest)


def flag(names: str, text: str, **rest: object) -> Declaration:
    """An option without a value."""
    return arg(names, text, action="store_true", **rest)


def group(title: str, *arguments: Declaration) -> Declaration:
    """Arguments under a title of their own in the help."""
    return lambda parser: _add(parser.add_argument_group(title), arguments)


def either(*arguments: Declaration) -> Declaration:
    """Arguments that exclude each other."""
    return lambda parser: _add(parser.add_mutually_exclusive_group(), arguments)


def _add(parser: Any, arguments: Iterable[Declaration]) -> None:
    for declare in arguments:
        declare(parser)


ABSENT = argparse.SUPPRESS
"""The default of options that are not among the arguments unless they are given."""
JSON = flag("--json", "print one JSON object")
YES = flag("-y,--yes", "do it; without it the command only reports what it would do")
CATALOGUE = arg("--catalogue FILE", "file of models and prices that overlay the bundled ones, TOML or JSON")


class Parser(argparse.ArgumentParser):
    """Keeps line breaks in its texts, and refuses abbreviated options, which new options could make ambiguous."""

    noun: tuple[str, str] | None = None
    """The command and the module that declares it, which is loaded when the command is used."""

    def __init__(self, *args: Any, **rest: Any) -> None:
        rest |= {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(*args, **rest)

    def _offer(self, verbs: dict[str, Verb]) -> None:
        self.usage = f"{self.prog} COMMAND [OPTIONS]"
        self.description = f"{self.description} Each command has its own --help."
        commands = self.add_subparsers(prog=self.prog, metavar="COMMAND", title="commands", required=True)
        for name, verb in verbs.items():
            text = (verb.run.__doc__ or name).partition("\n")[0].rstrip(".")
            commands.add_parser(name, help=f"{text[0].lower()}{text[1:]}").perform(verb)

    def perform(self, verb: Verb) -> None:
        """Make this the parser of a verb."""
        _add(self, verb.arguments)
        words = [
            " ".join((*action.option_strings[:1], str(action.metavar))) if action.required else f"[{action.metavar}]"
            for action in self._actions
            if action.required or not action.option_strings
        ]
        self.usage = " ".join((self.prog, "[OPTIONS]", *words))
        self.description = f"{getdoc(verb.run) or ''}\n\n{verb.more}".strip()
        self.set_defaults(run=verb.run, parser=self)

    def error(self, message: str) -> NoReturn:
        """Print an error and exit. API keys and passwords are masked."""
        if choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            message += _did_you_mean(choice[1], re.findall(r"[\w-]+", choice[2]))
        message = message.replace("expected one argument", "expected a value that does not begin with '-'")
        message = re.sub(r"invalid float value: ('.*')", r"\1 is not a number, such as 0.1", message)
        super().error(without_passwords(without_keys(message)))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown arguments here, so that the error shows the usage of the subcommand."""
        if self.noun is not None:
            noun, module = self.noun
            import_module(module, __package__)
            if "" in _VERBS[noun]:
                self.perform(_VERBS[noun][""])
            else:
                self._offer(_VERBS[noun])
            self.noun = None
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            hint = _did_you_mean(unknown[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return parsed, unknown

    def spelling(self) -> dict[str, str]:
        """The name of each argument on the command line: its long option or metavar."""
        return {
            action.dest: next((flag for flag in action.option_strings if flag.startswith("--")), str(action.metavar))
            for action in self._actions
        }


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def parser() -> Parser:
    """Create the parser."""
    codes = "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
    main = Parser("routewright", description=_DESCRIPTION, epilog=f"{_EXAMPLES}\n\nexit codes:\n{codes}")
    main.add_argument("--version", action="version", version=f"routewright {__version__}")
    main.set_defaults(json=False)  # for commands without --json
    commands = main.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (module, text) in _COMMANDS.items():
        command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        command.noun = (name, f".{module}")
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
    if args.command != "serve" and logging.lastResort is not None:  # a server configures logging itself
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
        except ModuleNotFoundError as error:  # names the extra to install
            sys.stderr.write(f"routewright: {error}\n")
            return USAGE
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
        problems = []
        for problem in error.problems:
            name = problem.path.partition("[")[0]
            hint = problem.hint
            for library_hint, own_hint in _HINTS.items():
                hint = hint.replace(library_hint, own_hint)
            path = names.get(name, name) + problem.path.removeprefix(name)
            problems.append(problem._replace(path=path, hint=hint))
        error = ValidationFailed.of(*problems) if problems else error
    if args.json:
        error.request_id = error.request_id or f"req_{token_hex(13)}"
        error.outside = None  # its reader is the owner
        screen.json(msgspec.json.decode(without_passwords(without_keys(json_line(error_envelope(error))))))
    screen.note(f"routewright: {without_passwords(in_words(error, args))}", "bad")
    return exit_code(error)


def _is_of_request(args: Namespace) -> bool:
    """True for commands with the options of a request. Of ``policies`` only ``check`` has them."""
    return args.command in _OF_REQUESTS and (args.command != "policies" or "prompt" in args)


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
        for index, line in enumerate(lines):
            if not _OF_FILE.search(line):
                for field, option in (_WORDS | _HINTS).items():
                    line = line.replace(field, option)
                lines[index] = line
    message = "\n".join(lines)
    is_option = getattr(args, "model", None) is not None  # overrides the models of a request
    return re.sub(r"^models\[\d+\]", "--model", message, flags=re.MULTILINE) if is_option else message


def number_or(word: str, parse: Callable[[str], float] = float) -> Callable[[str], float | None]:
    """An argument type: a number, or a word for None."""

    def read(text: str) -> float | None:
        if text == word:
            return None
        try:
            return parse(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor '{word}'") from None

    return read


def separated(text: str) -> list[str]:
    """An argument type: names separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]
