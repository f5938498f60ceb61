"""The commands ``traces``, with ``ls``, ``show``, ``export`` and ``delete``, and ``feedback``."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import msgspec

from routewright._core.account_fields import told
from routewright._core.money import usd_text
from routewright._core.request.json_scan import quoted
from routewright._core.timestamps import timestamp
from routewright.errors import NotFound, StorageCorrupt
from routewright.trace import TraceStore
from routewright.wire import (
    AudioPart,
    Content,
    DecisionSpan,
    FilePart,
    ImagePart,
    PutFeedback,
    StepSpan,
    SubTraceSpan,
    TextPart,
    ToolCall,
    Trace,
)
from routewright.wire.analytics import time_short

from .command import INTERRUPTED, OK, Parser, add, add_json, refused
from .show import (
    LIST_PRICE,
    USUAL_TIME,
    Block,
    Line,
    Row,
    Screen,
    Table,
    about,
    cost,
    dollars,
    facts,
    json_line,
    moment,
    picked,
    replacing,
    tokens,
)
from .spans import STATUS_STYLES, candidate_table, span_table
from .store import WHEN, add_place, add_whose, check_apart, existing_store, other_accounts, when

PAGE = 200
COUNTED = 10_000
"""The most traces counted before asking for confirmation. Beyond it the prompt says "or more"."""

KINDS = {ImagePart: "an image", AudioPart: "a recording", FilePart: "a file"}
"""Names of parts other than text."""
_FILTER = """\
FILTER is key=value,key>=value ... with the keys status, kind, model, provider, policy_id, goal, strategy, environment,
cache_hit, fallback_used, error, cost_usd, duration_ms, compromised and metadata.NAME. Operators are = != >= <= > <;
a value in double quotes may hold commas. Put it in quotes: a shell has other plans for < and >."""
_LIST = ("trace", "created (UTC)", "status", "model", "duration", "cost", "")


def add_traces(command: Parser) -> None:
    """Add the subcommands of ``traces``."""
    ls = command.command("ls [FILTER]", _ls, _FILTER)
    show = command.command("show [ID]", _show)
    export = command.command("export [FILTER]", _export, _FILTER)
    delete = command.command("delete [ID | FILTER]", _delete, _FILTER)
    add(show, "trace_id ID", "the trace (default: the newest)", nargs="?")
    add(delete, "which ID | FILTER", "the id of a trace, or which traces", nargs="?")
    for each in (ls, export):
        add(each, "filter FILTER", "which traces (default: all)", nargs="?", default="")
    for each in (ls, export, delete):
        add(each, "--since WHEN", f"created then or later: {WHEN}")
        add(each, "--until WHEN", "created before then")
    add(ls, "--limit N", "how many, 1 to 200 (default: 50)", type=int, default=50)
    add(ls, "--cursor CURSOR", "continue after the last page, which printed it")
    add(export, "--output FILE", "where to write them (default: standard output)")
    export.set_defaults(json=False)
    add(delete, "--everything", "all traces of the account", action="store_true")
    delete.add_argument("-y", "--yes", action="store_true", help="do not ask")
    for each in (ls, show, export, delete):
        if each is not export:
            add_json(each)
        add_place(each)
        add_whose(each)


def add_feedback(command: Parser) -> None:
    """Add the arguments of ``feedback``."""
    command.performs(_feedback, "ID SCORE [COMMENT]")
    add(command, "trace_id ID", "the trace of the answer")
    add(command, "score SCORE", "from 0 (bad) to 1 (good)", type=float)
    add(command, "comment COMMENT", "and why", nargs="?")
    add_place(command)
    add_whose(command)
    add_json(command)


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


def _traces(count: int) -> str:
    return f"{count:,} trace{'' if count == 1 else 's'}"


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
    rows = []
    for item in page.data:
        flags = {"fallback": item.fallback_used, "cache hit": item.cache_hit, "compromised": item.compromised}
        notes = [item.error or "", *(said for said, holds in flags.items() if holds)]
        notes += [word for word in (item.kind, item.environment) if word not in ("route", "production")]
        created, spent = item.created_at[:19].replace("T", " "), about(item.cost_usd) if item.cost_usd else ""
        cells = (item.id, created, item.status, item.selected_model or "", time_short(item.duration_ms), spent)
        rows.append(Row((*cells, ", ".join(filter(None, notes))), STATUS_STYLES.get(item.status, "plain")))
    screen.report(page, Table(rows, _LIST, frozenset({4, 5})), note=note)


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
        feedback = await store.feedback_of(trace.id, account=args.account)
    body = {
        **msgspec.to_builtins(trace),
        "feedback": None if feedback is None else picked(feedback, "score comment at"),
    }
    screen.report(body, *_page(trace, feedback))


def _page(trace: Trace, feedback: PutFeedback | None) -> Iterator[Block]:
    """The result of a call, its spans, its decision, and its content if it was captured."""
    decision = next((span for span in trace.spans if isinstance(span, DecisionSpan)), None)
    if trace.kind == "agent":
        decision = None  # each of its model calls has a decision in its own trace
    chosen = None if decision is None or not decision.candidates else decision.candidates[0].model
    header = facts(_header(trace, chosen, feedback))
    style = STATUS_STYLES.get(trace.status, "good" if trace.status == "completed" else "plain")
    header.rows[0] = header.rows[0]._replace(style=style)
    yield from (Line(f"Trace {trace.id}", "title"), Line(), header, Line(), span_table(trace))
    if decision is not None:
        yield from (Line(), Line(f"Decision {decision.digest}", "title"))
        if chosen is not None:
            yield from (Line(), candidate_table(decision.candidates, chosen=chosen, served=trace.selected_model))
        most_first = sorted(decision.rejected.items(), key=lambda each: -each[1])
        given = trace.decision_input
        said = {
            "class": "" if given is None else given.policy_class,
            "rejected": ", ".join(f"{count:,} by {reason}" for reason, count in most_first),
        }
        if any(said.values()):
            yield from (Line(), facts(said))
    if trace.content is not None:
        yield from _words(trace.content)


def _header(trace: Trace, chosen: str | None, feedback: PutFeedback | None) -> dict[str, str]:
    sandbox = trace.environment == "sandbox"
    stood_in = f", in place of {chosen}" if trace.fallback_used and chosen is not None else ""
    charged = "" if trace.charged_usd in (0, trace.cost_usd) else f", of which {dollars(trace.charged_usd)} is charged"
    account = [trace.account, trace.environment, "" if trace.key_id is None else f"key {trace.key_id}"]
    account += ["compromised: the key was revoked"] if trace.compromised else []
    model = f"{trace.selected_model}{stood_in}{', from the cache' if trace.cache_hit else ''}"
    is_run = trace.kind == "agent"
    models = dict.fromkeys(span.model for span in trace.spans if isinstance(span, SubTraceSpan) and span.model)
    aims = {"goal": trace.goal, "strategy": trace.strategy}
    run = {}
    if is_run:  # without the steps of agents used as tools
        steps = sum(isinstance(span, StepSpan) and span.parent_id is None for span in trace.spans)
        run = {"model": "", "models": ", ".join(models) or "none answered", "steps": str(steps)}
    given, limits = trace.decision_input, []
    if given is not None and given.budget_nanos is not None:
        limits.append(f"${usd_text(given.budget_nanos)}")
    if given is not None and given.budget_tokens is not None:
        limits.append(f"{given.budget_tokens:,} tokens")
    rated = ""
    if feedback is not None:
        comment = "" if feedback.comment is None else f", {_json(feedback.comment)}"
        rated = f"{feedback.score:g}{comment}, at {timestamp(feedback.at)[:16].replace('T', ' ')} UTC"
    return {
        "status": trace.status if trace.error is None else f"{trace.status}: {trace.error}",
        "model": "none answered" if trace.selected_model is None else model,
        **run,
        "cost": cost(trace) + (LIST_PRICE if sandbox else charged),
        "tokens": tokens(trace.tokens) if trace.selected_model or is_run else "",
        "duration": time_short(trace.duration_ms) + (USUAL_TIME if sandbox and trace.selected_model else ""),
        "created": moment(trace.created_at),
        "asked for": ", ".join(f"{aim} {name}" for name, aim in aims.items() if aim),
        "budget": ", ".join(limits),
        "policy": ", ".join(filter(None, (trace.policy_version, trace.policy_id))),
        "account": ", ".join(filter(None, account)),
        "metadata": _metadata(trace.metadata),
        "children": "" if is_run else ", ".join(trace.children),  # the span tree shows those of a run
        "feedback": rated,
    }


def _metadata(metadata: Mapping[str, Any]) -> str:
    """Format metadata as ``key=value``. Strings are quoted only if needed."""

    def is_plain(value: object) -> bool:
        return isinstance(value, str) and value.isprintable() and value != "" and not set(value) & set(',="')

    return ", ".join(f"{key}={value if is_plain(value) else _json(value)}" for key, value in metadata.items())


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _words(content: Content) -> Iterator[Line]:
    """The redacted prompt and answer, indented to set them apart from the rest of the page."""
    for message in content.messages or ():
        said = message.content
        if said is not None and not isinstance(said, str):
            said = "\n".join(part.text if isinstance(part, TextPart) else f"[{KINDS[type(part)]}]" for part in said)
        who = message.role if message.name is None else f"{message.role} {message.name}"
        yield from _speech(who, said, message.tool_calls)
    if content.output is not None or content.tool_calls:
        yield from _speech("answer", content.output, content.tool_calls)


def _speech(who: str, text: str | None, calls: Iterable[ToolCall] | None) -> Iterator[Line]:
    yield from (Line(), Line(who, "title"))
    said = [text or "", *(f"{call.function.name}({call.function.arguments})" for call in calls or ())]
    yield from (Line(f"  {line}") for each in said for line in each.splitlines())


async def _export(args: Namespace, screen: Screen) -> None:
    """Write whole traces, each as one line of JSON, newest first."""
    if args.output is not None:
        check_apart("--output", Path(args.output), existing_store(args))
    async with TraceStore(existing_store(args)) as store, aclosing(store.export(**_selection(args))) as traces:
        if args.output is None:
            async for trace in traces:
                screen.json_line(await _with_feedback(store, trace))
            return
        count = 0
        with replacing(Path(args.output), 0o600) as file:  # traces can hold prompts
            async for trace in traces:
                file.write(json_line(await _with_feedback(store, trace)))
                count += 1
    screen.note(f"{_traces(count)} written to {args.output}")


async def _with_feedback(store: TraceStore, trace: Trace) -> Trace | dict[str, Any]:
    feedback = await store.feedback_of(trace.id, account=trace.account)
    if feedback is None:
        return trace
    return {**msgspec.to_builtins(trace), "feedback": picked(feedback, "score comment at")}


async def _delete(args: Namespace, screen: Screen) -> int:
    """Remove traces for good, with their feedback, and from the reports.

    Traces are removed that match everything given. A person is asked first; scripts need --yes."""
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
        if not args.yes and not await _confirmed(store, which, args, screen):
            screen.note("nothing is deleted")
            return INTERRUPTED
        count = await store.delete(**which, everything=args.everything)
    if count == 0 and "trace_id" in which:
        raise NotFound(f"no trace {quoted(which['trace_id'])}")
    screen.report({"deleted": count}, note=f"{_traces(count)} deleted")
    return OK


async def _confirmed(store: TraceStore, which: dict[str, Any], args: Namespace, screen: Screen) -> bool:
    """Ask for confirmation. Raises ``ValidationFailed`` without a terminal and ``NotFound`` for an unknown id."""
    count, cursor = 0, None
    if "trace_id" in which:
        count = 1
        with suppress(StorageCorrupt):  # damaged traces can be deleted
            await store.get(which["trace_id"], **picked(args, "account environment"))
    while "trace_id" not in which and count < COUNTED:
        page = await store.query(**which, limit=PAGE, cursor=cursor)
        count, cursor = count + len(page.data), page.next_cursor
        if cursor is None:
            break
    said = _traces(count) if count < COUNTED else f"{COUNTED:,} traces or more"
    return screen.ask(f"delete {said} of the account {args.account}?", otherwise=f"{said} would be deleted")
