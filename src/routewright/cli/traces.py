"""The commands ``traces``, with ``ls``, ``show``, ``export`` and ``delete``, and ``feedback``."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Iterator
from contextlib import aclosing, suppress

import msgspec

from routewright import wire
from routewright.errors import NotFound, StorageCorrupt
from routewright.trace import TraceStore
from routewright.wire import JsonObject, Trace, TraceItem
from routewright.wire.json_scan import quoted
from routewright.wire.timestamps import time_short

from .command import YES, arg, flag, refused, unconfirmed, verb
from .show import LIST_PRICE, USUAL_TIME, Block, Line, Screen, cost, fields, listing, pick, tokens, with_count
from .spans import STATUS_STYLES, candidate_table, span_table
from .store import LIMIT, SPAN, STORE, WHOSE, existing_store, store_verb, when

COUNTED = 200
"""The most traces counted without ``--yes``. Beyond it the message says "or more"."""

_FILTER = """\
FILTER is key=value,key>=value ... with the keys status, kind, model, provider, policy_id, goal, strategy, environment,
cache_hit, fallback_used, error, cost_usd, duration_ms, compromised and metadata.NAME. Operators are = != >= <= > <;
a value in double quotes may hold commas. Put it in quotes: a shell has other plans for < and >."""
_LIST = "id created_at status selected_model duration_ms cost_usd notes"
_FACTS = """created_at goal strategy charged_usd fallback_used cache_hit compromised policy_version policy_id account
    environment key_id metadata"""
_FILTERED = (arg("filter FILTER", "traces to select (default: all)", nargs="?", default=""), *SPAN, *WHOSE)


@store_verb(
    TraceStore,
    "feedback",
    arg("trace_id ID", "trace of the answer"),
    arg("score SCORE", "from 0 (bad) to 1 (good)", float),
    arg("comment COMMENT", "reason for the score", nargs="?"),
    *WHOSE,
)
async def _feedback(args: Namespace, screen: Screen, store: TraceStore) -> None:
    """Rate an answer.

    The feedback is stored beside the trace."""
    await store.feedback(args.trace_id, args.score, args.comment, **pick(args, "account environment"))
    screen.report(pick(args, "trace_id score comment"), note=f"feedback stored: {args.score:g} for {args.trace_id}")


def _selection(args: Namespace) -> JsonObject:
    return {"since": when(args.since), "until": when(args.until), **pick(args, "filter account environment")}


@store_verb(
    TraceStore, "traces ls", *_FILTERED, LIMIT, arg("--cursor CURSOR", "cursor of the page before"), more=_FILTER
)
async def _ls(args: Namespace, screen: Screen, store: TraceStore) -> None:
    """List traces, newest first."""
    page = await store.query(**_selection(args), limit=args.limit, cursor=args.cursor)
    note = "" if page.data else f"the account {quoted(args.account)} has no such trace; see 'routewright accounts ls'"
    if page.next_cursor is not None:
        note = f"for older traces add --cursor={page.next_cursor}"
    screen.report(
        page,
        listing([_item(item) for item in page.data], _LIST, lambda item: STATUS_STYLES.get(item["status"], "plain")),
        note=note,
    )


def _item(item: TraceItem) -> JsonObject:
    flags = {"fallback": item.fallback_used, "cache hit": item.cache_hit, "compromised": item.compromised}
    notes = [item.error or "", *(label for label, is_set in flags.items() if is_set)]
    notes += [word for word in (item.kind, item.environment) if word not in ("route", "production")]
    return {**msgspec.to_builtins(item), "notes": ", ".join(filter(None, notes))}


@store_verb(TraceStore, "traces show", arg("trace_id ID", "trace (default: the newest)", nargs="?"), *WHOSE)
async def _show(args: Namespace, screen: Screen, store: TraceStore) -> None:
    """Show one trace: its spans with duration and cost, and the candidates of its decision.

    Without an ID it is the newest."""
    owner = pick(args, "account environment")
    trace_id = args.trace_id
    if trace_id is None:
        newest = (await store.query(**owner, limit=1)).data
        if not newest:
            raise NotFound(f"the account {quoted(args.account)} has no trace")
        trace_id = newest[0].id
    trace = await store.get(trace_id, **owner)
    record = await _with_feedback(store, trace)
    screen.report(record, *_page(trace, record["feedback"]))


def _page(trace: Trace, feedback: JsonObject | None) -> Iterator[Block]:
    """The result of a call, its spans, its decision, and its content if it was captured."""
    sandbox, is_run = trace.environment == "sandbox", trace.kind == "agent"
    models = dict.fromkeys(span.model for span in trace.spans if isinstance(span, wire.SubTraceSpan) and span.model)
    # without the steps of agents used as tools
    steps = sum(isinstance(span, wire.StepSpan) and span.parent_id is None for span in trace.spans)
    inputs = trace.decision_input
    summary = {
        "status": trace.status if trace.error is None else f"{trace.status}: {trace.error}",
        "model": None if is_run else trace.selected_model or "none answered",
        "models": [*models],
        "steps": steps or None,
        "cost": cost(trace) + (LIST_PRICE if sandbox else ""),
        "tokens": tokens(trace.tokens) if trace.selected_model or is_run else None,
        "duration": time_short(trace.duration_ms) + (USUAL_TIME if sandbox and trace.selected_model else ""),
        **pick(trace, _FACTS),
        "budget": inputs and {"money_nanos": inputs.budget_nanos, "tokens": inputs.budget_tokens},
        "children": [] if is_run else trace.children,  # the span tree shows those of a run
        "feedback": feedback,
    }
    yield from (Line(f"Trace {trace.id}", "title"), Line(), fields(summary), Line(), span_table(trace))
    decision = next((span for span in trace.spans if isinstance(span, wire.DecisionSpan)), None)
    if decision is not None and not is_run:  # each model call of a run has a decision in its own trace
        reasons = sorted(decision.rejected.items(), key=lambda pair: -pair[1])
        yield from (Line(), Line(f"Decision {decision.digest}", "title"), Line())
        yield candidate_table(decision.candidates, served=trace.selected_model)
        rejected = ", ".join(f"{count:,} by {reason}" for reason, count in reasons)
        shadow = decision.shadow or None
        is_same = shadow is not None and shadow.model in [candidate.model for candidate in decision.candidates[:1]]
        words = shadow and f"{shadow.policy}: {shadow.model or shadow.reason}, {'same' if is_same else 'differs'}"
        yield from (Line(), fields({"class": inputs and inputs.policy_class, "rejected": rejected, "shadow": words}))
    if trace.content is not None:
        content = msgspec.json.format(msgspec.json.encode(trace.content)).decode()
        yield from (Line(), Line("Content", "title"), Line(), *map(Line, content.splitlines()))


@verb("traces export", *_FILTERED, STORE, more=_FILTER)
async def _export(args: Namespace, screen: Screen) -> None:
    """Write complete traces, each as one line of JSON, newest first."""
    async with TraceStore(existing_store(args)) as store, aclosing(store.export(**_selection(args))) as traces:
        await screen.export(await _with_feedback(store, trace) async for trace in traces)


async def _with_feedback(store: TraceStore, trace: Trace) -> JsonObject:
    feedback = await store.feedback_of(trace.id, account=trace.account)
    rating = None if feedback is None else pick(feedback, "score comment at")
    return {**msgspec.to_builtins(trace), "feedback": rating}


@store_verb(
    TraceStore,
    "traces delete",
    arg("which ID | FILTER", "id of a trace, or a filter", nargs="?"),
    *SPAN,
    flag("--everything", "all traces of the account"),
    YES,
    *WHOSE,
    more=_FILTER,
)
async def _delete(args: Namespace, screen: Screen, store: TraceStore) -> None:
    """Delete traces permanently, with their feedback, and from the reports.

    Traces must match all options to be deleted. Without --yes they are only counted."""
    args.filter = args.which if args.which is not None and re.search("[=<>]", args.which) else ""
    selection = _selection(args)
    if args.which is not None and not args.filter:
        selection["trace_id"] = args.which
    limits = [name for name in ("trace_id", "filter", "since", "until") if selection.get(name)]
    if args.everything and limits:
        raise refused("--everything", "cannot be combined with a selection", "leave out one of them")
    if not args.everything and not limits:
        hint = "give an id, a filter, --since or --until; --everything means all of the account"
        raise refused("ID | FILTER", "is missing", hint)
    if not args.yes:
        raise unconfirmed(f"{await _counted(store, selection, args)} would be deleted")
    count = await store.delete(**selection, everything=args.everything)
    if count == 0 and "trace_id" in selection:
        raise NotFound(f"no trace {quoted(selection['trace_id'])}")
    screen.report({"deleted": count}, note=f"{with_count(count, 'trace')} deleted")


async def _counted(store: TraceStore, selection: JsonObject, args: Namespace) -> str:
    """How many traces are selected, up to a bound. Raises ``NotFound`` for an unknown id."""
    if "trace_id" in selection:
        with suppress(StorageCorrupt):  # damaged traces can be deleted
            await store.get(selection["trace_id"], **pick(args, "account environment"))
        return with_count(1, "trace")
    page = await store.query(**selection, limit=COUNTED)
    return f"{with_count(len(page.data), 'trace')}{'' if page.next_cursor is None else ' or more'}"
