"""From a parsed command line to its command. Each is loaded only where it is asked for."""

from __future__ import annotations

import msgspec

from routewright._core.account import without_keys
from routewright.errors import RouterError
from routewright.wire import error_envelope

from .blocks import Line
from .exits import OK
from .options import Arguments
from .screen import Screen, json_line
from .wording import said


def run(args: Arguments, screen: Screen) -> int:
    """Do what the command line says, and give the exit code. Raises ``RouterError``, which ``failed`` shows."""
    match args.command:
        case "policies":
            from .policies import run_policies

            return run_policies(args, screen)
        case "catalogue":
            from .catalogue import run_catalogue

            run_catalogue(args, screen)
        case "traces":
            from .traces import run_traces

            return run_traces(args, screen)
        case "feedback":
            from .traces import run_feedback

            run_feedback(args, screen)
        case "analytics":
            from .analytics import run_analytics

            run_analytics(args, screen)
        case "ledger":
            from .ledger import run_ledger

            return run_ledger(args, screen)
        case "accounts":
            from .accounts import run_accounts

            run_accounts(args, screen)
        case "keys":
            from .keys import run_keys

            return run_keys(args, screen)
        case "incidents":
            from .incidents import run_incidents

            run_incidents(args, screen)
        case "secret":
            from .secret import run_secret

            run_secret(args, screen)
        case "store":
            from .store import run_store

            return run_store(args, screen)
        case "serve":
            from .serve import run_serve

            return run_serve(args, screen)
        case _:
            from .commands import run_request

            run_request(args, screen)
    return OK


def failed(error: RouterError, args: Arguments, screen: Screen) -> None:
    """Show an error: the envelope of the specification under ``--json``, else a sentence."""
    if args.json:
        error.request_id = error.request_id or _new_id()
        screen.json(msgspec.json.decode(without_keys(json_line(error_envelope(error)))))
    screen.say(Line(f"routewright: {said(error, args)}", "bad"))


def _new_id() -> str:
    from random import SystemRandom

    from routewright.backends.clock import SystemClock  # loads asyncio, which a supervisor does without
    from routewright.identity import Ids

    return Ids(SystemClock(), SystemRandom())("req_")
