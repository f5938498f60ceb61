"""Reads the configuration and prepares the store in a process of its own, so that the supervisor stays small.

It is asked once for the plan, and then, if at all, to begin: to make the store and the first keys.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from msgspec import Struct

from routewright.errors import InternalError, RouterError

from .crew import start_with_line
from .plan import Begun, Plan


class Asked(Struct, frozen=True):
    """What the command line says of a server."""

    config: str | None
    flags: dict[str, Any]
    """Values by the paths of their keys."""
    names: dict[str, str]
    """How all flags are called, by the paths of their keys."""


class Prepared(Struct, frozen=True):
    """What is to be served, and what a person is told of it."""

    plan: Plan
    facts: dict[str, str]
    warnings: tuple[str, ...]
    providers: tuple[str, ...]
    """The variables that hold keys of providers, or their addresses."""


class Preparation:
    """A process that prepares: ``plan()``, then ``begin()``. Leaving the ``with`` ends it. Raises ``RouterError``."""

    def __init__(self, asked: Asked) -> None:
        try:
            self._process, self._ours = start_with_line("routewright-prepare", _prepare, asked)
        except OSError as error:
            raise InternalError(f"the process that reads the configuration cannot be started: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ours.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    @property
    def is_done(self) -> bool:
        """``plan()`` need not wait."""
        return self._ours.poll(0)

    def plan(self) -> Prepared:
        """What is to be served. Raises ``RouterError``."""
        prepared: Prepared = self._heard()
        return prepared

    def begin(self) -> Begun:
        """Make what is missing. Raises ``RouterError``."""
        with suppress(OSError):  # it has ended, and its silence says so
            self._ours.send("begin")
        begun: Begun = self._heard()
        return begun

    def _heard(self) -> Any:
        try:
            heard = self._ours.recv()
        except (EOFError, OSError) as error:
            raise InternalError("reading the configuration ended in a fault: see above") from error
        except Exception as error:  # it speaks another version, which was installed since this process began
            said = "another version of routewright is installed by now"
            raise InternalError(f"{said}: end the server, and start it anew") from error
        if isinstance(heard, RouterError):
            raise heard
        return heard


def prepared(asked: Asked, environ: Mapping[str, str]) -> Prepared:
    """Read the configuration, and try what a worker would do with it. Raises ``RouterError``."""
    from .building import check
    from .facts import facts_of, missing_of, providers_in
    from .planning import plan_of
    from .sources import gather

    sources = gather(asked.flags, asked.names, environ, asked.config)
    plan = plan_of(sources)
    with sources.naming():
        router = check(plan)
    try:
        facts = facts_of(plan, router, None if sources.document is None else sources.document.path)
    finally:
        router.blocking.close()
    return Prepared(plan, facts, (*sources.unknown, *missing_of(plan)), providers_in(environ))


def _prepare(asked: Asked, line: Connection) -> None:
    """What the process does."""
    import anyio

    try:
        found = prepared(asked, os.environ)
        line.send(found)
        if line.recv() == "begin":
            from .first_start import begin

            line.send(anyio.run(begin, found.plan))
    except RouterError as error:
        line.send(error)
    except (EOFError, BrokenPipeError):  # nobody asks any more
        pass
