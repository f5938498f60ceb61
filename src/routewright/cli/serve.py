"""The command ``serve``. What loads the library is done in other processes: this one supervises, and stays small."""

from __future__ import annotations

import logging
import os
from functools import partial
from importlib.util import find_spec
from socket import socket

from msgspec.structs import replace

from routewright.errors import Problem, ValidationFailed
from routewright.serve.listeners import bound, listen
from routewright.serve.logs import fill_standard_streams, set_up
from routewright.serve.plan import Address, Plan
from routewright.serve.preparation import Asked, Preparation, prepared
from routewright.serve.signals import Signals
from routewright.serve.supervisor import Supervisor

from .blocks import Block, Line, facts
from .exits import OK
from .options import Arguments
from .screen import Screen
from .serve_options import FLAGS
from .serve_page import started_page

_NEEDED = ("uvicorn", "httptools")
_log = logging.getLogger("routewright.serve")


def run_serve(args: Arguments, screen: Screen) -> int:
    """Serve until told to end, and give the exit code. Raises ``RouterError``."""
    fill_standard_streams()
    _check_installed()
    given = vars(args)
    asked = Asked(args.config, {key: given[key] for key in FLAGS if key in given}, FLAGS)
    if args.check:
        return _check(asked, screen)
    with Signals() as signals:
        return _serve(asked, screen, signals)


def _check(asked: Asked, screen: Screen) -> int:
    found = prepared(asked, os.environ)
    screen.show(facts(found.facts))
    _warn(found.warnings, screen)
    return OK


def _serve(asked: Asked, screen: Screen, signals: Signals) -> int:
    with Preparation(asked) as preparation:
        found = preparation.plan()
        _warn(found.warnings, screen)
        plan, listeners = _listening(found.plan)
        signals.hold()  # keys that are made are shown, whatever comes
        begun = preparation.begin()
    plan = replace(plan, seed=begun.seed)
    set_up(plan.log_level)
    page = started_page(plan, begun, found.providers)
    show = _show if begun.keys else _try_to_show
    supervisor = Supervisor(plan, asked, listeners, signals.noted, partial(show, page, screen))
    code = supervisor.run()
    if begun.keys and not supervisor.has_served:
        _show(page, screen)  # the keys are made, and are shown this once
    return code


def _show(page: list[Block], screen: Screen) -> None:
    screen.show(*page)
    screen.end_text()  # at once, in a pipe too


def _try_to_show(page: list[Block], screen: Screen) -> None:
    """A server that has no keys to show serves on without its page."""
    try:
        _show(page, screen)
    except OSError as error:
        _log.warning("the start page cannot be written to standard output: %s", error)
        screen.discard()


def _listening(plan: Plan) -> tuple[Plan, list[socket]]:
    """The plan with ports that are taken, before anything is made that a start without them would leave behind."""
    try:
        listener = listen(plan.address, "address")
        plan = replace(plan, address=bound(listener, plan.address))
        return _administered(plan, listener)
    except ValidationFailed as error:
        raise ValidationFailed.of(
            *(each._replace(path=FLAGS["port" if each.path == "address" else each.path]) for each in error.problems)
        ) from error


def _administered(plan: Plan, listener: socket) -> tuple[Plan, list[socket]]:
    if plan.admin is None:
        return plan, [listener]
    first = listen(plan.admin, "admin.port")
    admin = bound(first, plan.admin)
    others = [listen(Address(admin.host, admin.port + place), "admin.port") for place in range(1, plan.workers)]
    return replace(plan, admin=admin), [listener, first, *others]


def _warn(warnings: tuple[str, ...], screen: Screen) -> None:
    for warning in warnings:
        screen.say(Line(f"routewright: {warning}", "dim"))


def _check_installed() -> None:
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        problem = f"'routewright serve' needs {' and '.join(missing)}, which {are} not installed"
        raise ValidationFailed.of(Problem("", problem, "run: pip install 'routewright[server]'"))
