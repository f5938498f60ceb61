"""The commands ``traces``, with ``ls``, ``show``, ``export`` and ``delete``, and ``feedback``."""

from __future__ import annotations

import re
import shlex
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec

from routewright._core.request.json_scan import quoted
from routewright.errors import NotFound, Problem, StorageCorrupt, ValidationFailed
from routewright.trace import TraceStore
from routewright.wire import PutFeedback, Trace

from .blocks import Line
from .draft import PRIVATE, replacing
from .exits import INTERRUPTED, OK
from .options import Arguments
from .place import check_apart, existing_store, opened_traces
from .screen import Screen, json_line
from .traces_page import list_page, show_page
from .when import when
from .whose import lack_of_traces
from .wording import arguments_named

PAGE = 200
COUNTED = 10_000
"""So many traces are counted before a person is asked; more are only said to be more."""

_DEFAULTS = {"account": "default", "limit": 50}
_OPERATOR = re.compile("[=<>]")


def run_traces(args: Arguments, screen: Screen) -> int:
    """Do what the command line says, and give the exit code. Raises ``RouterError``."""
    with arguments_named():
        return anyio.run(_TOPICS[args.topic], args, screen)


def run_feedback(args: Arguments, screen: Screen) -> None:
    """Keep what is said of an answer. Raises ``RouterError``."""
    with arguments_named():
        anyio.run(_feedback, args, screen)


async def _ls(args: Arguments, screen: Screen) -> int:
    async with opened_traces(args) as store:
        page = await store.query(**_selection(args), limit=args.limit, cursor=args.cursor)
        lack = "" if page.data or args.json else await lack_of_traces(store, args)
    if args.json:
        screen.json(page)
        return OK
    if page.data:
        screen.show(*list_page(page.data))
    else:
        screen.say(Line(lack or "no such trace", "dim"))
    if page.next_cursor is not None:
        screen.say(Line(f"older ones: {_older(args, page.next_cursor)}", "dim"))
    return OK


def _older(args: Arguments, cursor: str) -> str:
    """The command that lists the next page."""
    asked = {**_selection(args), "limit": args.limit, "store": args.store, "cursor": cursor}
    asked.pop("filter")
    given = {name: value for name, value in asked.items() if value not in (None, _DEFAULTS.get(name))}
    # in one word with its name a value may begin with a dash; so may a filter behind two
    words = [f"--{name}={shlex.quote(str(value))}" for name, value in given.items()]
    words += ["--", shlex.quote(args.filter)] if args.filter else []
    return " ".join(["routewright traces ls", *words])


async def _show(args: Arguments, screen: Screen) -> int:
    async with opened_traces(args) as store:
        trace = await _shown(store, args)
        feedback = await store.feedback_of(trace.id, account=args.account)
    if args.json:
        said = None if feedback is None else _feedback_json(feedback)
        screen.json({**msgspec.to_builtins(trace), "feedback": said})
    else:
        screen.show(*show_page(trace, feedback))
    return OK


async def _shown(store: TraceStore, args: Arguments) -> Trace:
    """The trace that is asked for. Raises ``NotFound``."""
    try:
        return await store.get(args.trace_id or await _newest(store, args), **_whose(args))
    except NotFound as error:
        lack = await lack_of_traces(store, args)
        if not lack:
            raise
        raise NotFound(lack if args.trace_id is None else f"{error}; {lack}") from error


async def _newest(store: TraceStore, args: Arguments) -> str:
    page = await store.query(**_whose(args), limit=1)
    if not page.data:
        raise NotFound(f"the account {quoted(args.account)} has no trace in that environment")
    return page.data[0].id


async def _export(args: Arguments, screen: Screen) -> int:
    if args.output is not None:
        check_apart("--output", Path(args.output), existing_store(args))
    async with opened_traces(args) as store, aclosing(store.export(**_selection(args))) as traces:
        if args.output is None:
            async for trace in traces:
                screen.json_line(await _told(store, trace))
            return OK
        count = await _written((await _told(store, trace) async for trace in traces), args.output)
    screen.say(Line(f"{_traces(count)} written to {args.output}", "dim"))
    return OK


async def _told(store: TraceStore, trace: Trace) -> Trace | dict[str, Any]:
    """A trace, with what a user said of it."""
    feedback = await store.feedback_of(trace.id, account=trace.account)
    return trace if feedback is None else {**msgspec.to_builtins(trace), "feedback": _feedback_json(feedback)}


def _feedback_json(feedback: PutFeedback) -> dict[str, Any]:
    return {name: getattr(feedback, name) for name in ("score", "comment", "at")}


async def _written(traces: AsyncIterator[Trace | dict[str, Any]], name: str) -> int:
    """Write traces to a file, and count them. There are prompts in some: only its owner can read a new one."""
    count = 0
    try:
        with replacing(Path(name), PRIVATE) as file:
            async for trace in traces:
                file.write(json_line(trace))
                count += 1
    except OSError as error:
        problem = f"{name} cannot be written: {error.strerror}"
        raise ValidationFailed.of(Problem("--output", problem, "check the path")) from error
    return count


async def _delete(args: Arguments, screen: Screen) -> int:
    which = _condemned(args)
    async with opened_traces(args) as store:
        if not args.yes and not await _confirmed(store, which, args, screen):
            screen.say(Line("nothing is deleted", "dim"))
            return INTERRUPTED
        count = await store.delete(**which)
    if count == 0 and "trace_id" in which:
        raise NotFound(f"no trace {quoted(which['trace_id'])}")
    if args.json:
        screen.json({"deleted": count})
    else:
        screen.say(Line(f"{_traces(count)} deleted", "dim"))
    return OK


def _condemned(args: Arguments) -> dict[str, Any]:
    """Which traces are to be removed. Raises ``ValidationFailed`` where that is left open, or said twice."""
    args.filter = args.which if args.which is not None and _OPERATOR.search(args.which) else ""
    which = _selection(args)
    if args.which is not None and not args.filter:
        which["trace_id"] = args.which
    limits = [name for name in ("trace_id", "filter", "since", "until") if which.get(name)]
    if args.everything and limits:
        raise ValidationFailed.of(Problem("--everything", "is more than what else is given", "leave out one of them"))
    if not args.everything and not limits:
        hint = "give an id, a filter, --since or --until; --everything means all of the account"
        raise ValidationFailed.of(Problem("ID | FILTER", "is missing", hint))
    return {**which, "everything": args.everything}


async def _confirmed(store: TraceStore, which: dict[str, Any], args: Arguments, screen: Screen) -> bool:
    """Ask a person. Raises ``ValidationFailed`` where nobody can be asked, and ``NotFound`` for an unknown id."""
    count = await _count(store, which, args)
    said = _traces(count) if count < COUNTED else f"{COUNTED:,} traces or more"
    if not screen.asks:
        raise ValidationFailed.of(Problem("", f"{said} would be deleted", "give --yes to have it done"))
    return screen.ask(f"delete {said} of the account {args.account}?")


async def _count(store: TraceStore, which: dict[str, Any], args: Arguments) -> int:
    if "trace_id" in which:
        with suppress(StorageCorrupt):  # which is one, too, and may have to go for being so
            await store.get(which["trace_id"], **_whose(args))
        return 1
    asked = {name: value for name, value in which.items() if name != "everything"}
    count, cursor = 0, None
    while count < COUNTED:
        page = await store.query(**asked, limit=PAGE, cursor=cursor)
        count, cursor = count + len(page.data), page.next_cursor
        if cursor is None:
            break
    return count


async def _feedback(args: Arguments, screen: Screen) -> None:
    async with opened_traces(args) as store:
        await store.feedback(args.trace_id or "", args.score, args.comment, **_whose(args))
    if args.json:
        screen.json({"trace_id": args.trace_id, "score": args.score, "comment": args.comment})
    else:
        screen.say(Line(f"kept: {args.score:g} for {args.trace_id}", "dim"))


def _whose(args: Arguments) -> dict[str, Any]:
    return {"account": args.account, "environment": args.environment}


def _selection(args: Arguments) -> dict[str, Any]:
    """The arguments of a ``TraceStore`` that say which traces."""
    return {"filter": args.filter, "since": when(args.since), "until": when(args.until), **_whose(args)}


def _traces(count: int) -> str:
    return f"{count:,} trace{'' if count == 1 else 's'}"


_TOPICS = {"ls": _ls, "show": _show, "export": _export, "delete": _delete}
