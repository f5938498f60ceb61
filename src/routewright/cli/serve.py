"""The command ``serve``. What loads the library runs in other processes: this one supervises, and stays small."""

from __future__ import annotations

import os
from functools import partial
from importlib.util import find_spec

from msgspec.structs import replace

from routewright.errors import Problem, ValidationFailed
from routewright.serve.plan import Asked, Begun, Prepared

from .blocks import Block, Line, facts
from .exits import OK
from .options import Arguments
from .screen import Screen
from .serve_options import FLAGS
from .serve_page import started_page

_NEEDED = ("uvicorn", "httptools")


def run_serve(args: Arguments, screen: Screen) -> int:
    """Serve until told to end, and give the exit code. Raises ``RouterError``."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        problem = f"'routewright serve' needs {' and '.join(missing)}, which {are} not installed"
        raise ValidationFailed.of(Problem("", problem, "run: pip install 'routewright[server]'"))

    given = vars(args)
    asked = Asked(args.config, {key: given[key] for key in FLAGS if key in given}, FLAGS)
    return _check(asked, screen) if args.check else _serve(asked, screen)


def _check(asked: Asked, screen: Screen) -> int:
    from routewright.serve.prepare import prepare

    found = prepare(asked, os.environ)
    screen.show(facts(found.facts))
    _warn(found.warnings, screen)
    return OK


def _serve(asked: Asked, screen: Screen) -> int:
    from routewright.serve.logs import set_up
    from routewright.serve.supervisor import Signals, Supervisor, listening, preparing

    with Signals() as signals:
        with preparing(asked) as ask:
            found: Prepared = ask("plan")
            _warn(found.warnings, screen)
            plan, listeners = listening(found.plan, FLAGS)
            if signals.ending:
                return OK
            begun: Begun = ask("begin")
        plan = replace(plan, seed=begun.seed)
        set_up(plan.log_level)
        show = partial(_show, started_page(plan, begun, found.providers), screen)
        supervisor = Supervisor(plan, asked, listeners, signals, show)
        try:
            return supervisor.run()
        finally:
            if begun.keys and not supervisor.has_served:
                show()  # the keys are made, and are shown this once


def _show(page: list[Block], screen: Screen) -> None:
    screen.show(*page)
    screen.end_text()  # at once, in a pipe too


def _warn(warnings: tuple[str, ...], screen: Screen) -> None:
    for warning in warnings:
        screen.say(Line(f"routewright: {warning}", "dim"))
