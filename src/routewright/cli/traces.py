"""The commands ``traces``, with ``ls``, ``show``, ``export`` and ``delete``, and ``feedback``."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Iterator
from contextlib import aclosing, suppress
from typing import Any

import msgspec

from routewright import wire
from routewright._core.account_fields import told
from routewright._core.request.json_scan import quoted
from routewright.errors import NotFound, StorageCorrupt
from routewright.trace import TraceStore
from routewright.wire import PutFeedback, Trace, TraceItem
from routewright.wire.analytics import time_short

from .command import YES, arg, flag, refused, unconfirmed, verb
from .show import LIST_PRICE, USUAL_TIME, Block, Line, Screen, cost, counted, facts, fields, listing, picked, tokens
from .spans import STATUS_STYLES, candidate_table, span_table
from .store import IN_STORE, LIMIT, OUTPUT, SPAN, STORE, WHOSE, check_apart, existing_store, other_accounts, when

PAGE = 200
COUNTED = 10_000
"""The most traces counted without ``--yes``. Beyond it the message says "or more"."""

_FILTER = """\
FILTER is key=value,key>=value ... with the keys status, kind, model, provider, policy_id, goal, strategy, environment,
cache_hit, fallback_used, error, cost_usd, duration_ms, compromised and metadata.NAME. Operators are = != >= <= > <;
a value in double quotes may hold commas. Put it in quotes: a shell has other plans for < and >."""
_LIST = "id created_at status selected_model duration_ms cost_usd notes"
_FACTS = """created_at goal strategy charged_usd fallback_used cache_hit compromised policy_version policy_id account
    environment key_id metadata"""
_FILTERED = (arg("filter FILTER", "which traces (default: all)", nargs="?", default=""), *SPAN, *WHOSE)


@verb(
    "feedback",
    arg("trace_id ID", "the trace of the answer"),
    arg("score SCORE", "from 0 (bad) to 1 (good)", float),
    arg("comment COMMENT", "and why", nargs="?"),
    *WHOSE,
    *IN_STORE,
)
async def _feedback(args: Namespace, screen: Screen) -> None:
    """Say how good an answer was.

    The feedback is kept beside the trace."""
    async with TraceStore(existing_store(args)) as store:
        await store.feedback(args.trace_id, args.score, args.comment, **picked(args, "account environment"))
    screen.report(picked(args, "trace_id score comment"), note=f"kept: {args.score:g} for {args.trace_id}")


def _selection(args: Namespace) -> dict[str, Any]:
    return {
        "filter": args.filter,
        "since": when(args.since),
        "until": when(args.until),
        **picked(args, "account environment"),
    }


async def _lack(store: TraceStore, args: Namespace) -> str:
    """A message if the account has no traces, else an empty string."""
    if (await store.query(account=args.account, limit=1)).data:
        return ""
    return f"the account {told(args.account)} has no trace there{await other_accounts(args) or ''}"


@verb(
    "traces ls",
    *_FILTERED,
    LIMIT,
    arg("--cursor CURSOR", "continue after the last page, which printed it"),
    *IN_STORE,
    more=_FILTER,
)
async def _ls(args: Namespace, screen: Screen) -> None:
    """List traces, newest first."""
    async with TraceStore(existing_store(args)) as store:
        page = await store.query(**_selection(args), limit=args.limit, cursor=args.cursor)
        note = "" if page.data or args.json else await _lack(store, args) or "no such trace"
    if page.next_cursor is not None:
        usual = {"account": "default", "limit": 50, "filter": args.filter}
        asked = {**_selection(args), "limit": args.limit, "store": args.store, "cursor": page.next_cursor}
        given = {name: str(value) for name, value in asked.items() if value not in (None, usual.get(name))}
        # --name=value allows values that begin with a dash; -- allows such a filter
        words = [f"--{name}={shlex.quote(value)}" for name, value in given.items()]
        words += ["--", shlex.quote(args.filter)] if args.filter else []
        note = f"older ones: {' '.join(['routewright traces ls', *words])}"
    screen.report(
        page,
        listing([_item(item) for item in page.data], _LIST, lambda item: STATUS_STYLES.get(item["status"], "plain")),
        note=note,
    )


def _item(item: TraceItem) -> dict[str, Any]:
    flags = {"fallback": item.fallback_used, "cache hit": item.cache_hit, "compromised": item.compromised}
    notes = [item.error or "", *(said for said, holds in flags.items() if holds)]
    notes += [word for word in (item.kind, item.environment) if word not in ("route", "production")]
    return {**msgspec.to_builtins(item), "notes": ", ".join(filter(None, notes))}


@verb("traces show", arg("trace_id ID", "the trace (default: the newest)", nargs="?"), *WHOSE, *IN_STORE)
async def _show(args: Namespace, screen: Screen) -> None:
    """Show one trace: its spans, what they took and cost, the candidates of its decision.

    Without an ID it is the newest."""
    whose = picked(args, "account environment")
    async with TraceStore(existing_store(args)) as store:
        try:
            trace_id = args.trace_id
            if trace_id is None:
                newest = (await store.query(**whose, limit=1)).data
                if not newest:
                    raise NotFound(f"the account {quoted(args.account)} has no trace in that environment")
                trace_id = newest[0].id
            trace = await store.get(trace_id, **whose)
        except NotFound as error:
            lack = await _lack(store, args)
            if not lack:
                raise
            raise NotFound(lack if args.trace_id is None else f"{error}; {lack}") from error
        rating = _rating(await store.feedback_of(trace.id, account=args.account))
    screen.report({**msgspec.to_builtins(trace), "feedback": rating}, *_page(trace, rating))


def _page(trace: Trace, feedback: dict[str, Any] | None) -> Iterator[Block]:
    """The result of a call, its spans, its decision, and its content if it was captured."""
    sandbox, is_run = trace.environment == "sandbox", trace.kind == "agent"
    models = dict.fromkeys(span.model for span in trace.spans if isinstance(span, wire.SubTraceSpan) and span.model)
    # without the steps of agents used as tools
    steps = sum(isinstance(span, wire.StepSpan) and span.parent_id is None for span in trace.spans)
    budget = trace.decision_input
    named = {
        "status": trace.status if trace.error is None else f"{trace.status}: {trace.error}",
        "model": None if is_run else trace.selected_model or "none answered",
        "models": [*models],
        "steps": steps or None,
        "cost": cost(trace) + (LIST_PRICE if sandbox else ""),
        "tokens": tokens(trace.tokens) if trace.selected_model or is_run else None,
        "duration": time_short(trace.duration_ms) + (USUAL_TIME if sandbox and trace.selected_model else ""),
        **picked(trace, _FACTS),
        "budget": budget and {"money_nanos": budget.budget_nanos, "tokens": budget.budget_tokens},
        "children": [] if is_run else trace.children,  # the span tree shows those of a run
        "feedback": feedback,
    }
    yield from (Line(f"Trace {trace.id}", "title"), Line(), fields(named), Line(), span_table(trace))
    decision = next((span for span in trace.spans if isinstance(span, wire.DecisionSpan)), None)
    if decision is not None and not is_run:  # each model call of a run has a decision in its own trace
        most_first = sorted(decision.rejected.items(), key=lambda each: -each[1])
        yield from (Line(), Line(f"Decision {decision.digest}", "title"), Line())
        yield candidate_table(decision.candidates, served=trace.selected_model)
        rejected = ", ".join(f"{count:,} by {reason}" for reason, count in most_first)
        policy_class = "" if trace.decision_input is None else trace.decision_input.policy_class
        yield from (Line(), facts({"class": policy_class, "rejected": rejected}))
    if trace.content is not None:
        content = msgspec.json.format(msgspec.json.encode(trace.content)).decode()
        yield from (Line(), Line("Content", "title"), Line(), *map(Line, content.splitlines()))


@verb("traces export", *_FILTERED, OUTPUT, STORE, more=_FILTER)
async def _export(args: Namespace, screen: Screen) -> None:
    """Write whole traces, each as one line of JSON, newest first."""
    check_apart(args)
    async with TraceStore(existing_store(args)) as store, aclosing(store.export(**_selection(args))) as traces:
        await screen.export((await _with_feedback(store, trace) async for trace in traces), args.output, "trace")


async def _with_feedback(store: TraceStore, trace: Trace) -> dict[str, Any] | Trace:
    rating = _rating(await store.feedback_of(trace.id, account=trace.account))
    return trace if rating is None else {**msgspec.to_builtins(trace), "feedback": rating}


def _rating(feedback: PutFeedback | None) -> dict[str, Any] | None:
    return None if feedback is None else picked(feedback, "score comment at")


@verb(
    "traces delete",
    arg("which ID | FILTER", "the id of a trace, or which traces", nargs="?"),
    *SPAN,
    flag("--everything", "all traces of the account"),
    YES,
    *WHOSE,
    *IN_STORE,
    more=_FILTER,
)
async def _delete(args: Namespace, screen: Screen) -> None:
    """Remove traces for good, with their feedback, and from the reports.

    Traces are removed that match everything given. Without --yes they are only counted."""
    args.filter = args.which if args.which is not None and re.search("[=<>]", args.which) else ""
    which = _selection(args)
    if args.which is not None and not args.filter:
        which["trace_id"] = args.which
    limits = [name for name in ("trace_id", "filter", "since", "until") if which.get(name)]
    if args.everything and limits:
        raise refused("--everything", "cannot be combined with a selection", "leave out one of them")
    if not args.everything and not limits:
        hint = "give an id, a filter, --since or --until; --everything means all of the account"
        raise refused("ID | FILTER", "is missing", hint)
    async with TraceStore(existing_store(args)) as store:
        if not args.yes:
            raise unconfirmed(f"{await _counted(store, which, args)} would be deleted")
        count = await store.delete(**which, everything=args.everything)
    if count == 0 and "trace_id" in which:
        raise NotFound(f"no trace {quoted(which['trace_id'])}")
    screen.report({"deleted": count}, note=f"{counted(count, 'trace')} deleted")


async def _counted(store: TraceStore, which: dict[str, Any], args: Namespace) -> str:
    """How many traces are selected, up to a bound. Raises ``NotFound`` for an unknown id."""
    count, cursor = 0, None
    if "trace_id" in which:
        with suppress(StorageCorrupt):  # damaged traces can be deleted
            await store.get(which["trace_id"], **picked(args, "account environment"))
        return counted(1, "trace")
    while count < COUNTED:
        page = await store.query(**which, limit=PAGE, cursor=cursor)
        count, cursor = count + len(page.data), page.next_cursor
        if cursor is None:
            return counted(count, "trace")
    return f"{COUNTED:,} traces or more"
