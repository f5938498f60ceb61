"""The commands ``route``, ``decide`` and ``models``."""

from __future__ import annotations

import argparse
import shlex
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
from msgspec.structs import replace

from routewright import Answer
from routewright._core.money import usd_text
from routewright._core.request.json_scan import quoted
from routewright._core.request.problems import did_you_mean
from routewright._core.request.read import decode_request
from routewright._core.routing.decision import Decision
from routewright.assembly import stale
from routewright.catalogue import Catalogue
from routewright.errors import InvalidJson, NoCandidates, NoProviders, RouterError
from routewright.policies import PolicyFile
from routewright.protocols import Cache, Storage
from routewright.router import Router
from routewright.settings import Settings, WebhookSettings
from routewright.trace import TraceStore
from routewright.wire import (
    Budget,
    Effort,
    Fallback,
    Goal,
    ImagePart,
    ImageUrl,
    Message,
    Modality,
    Model,
    OutputDelta,
    Params,
    Part,
    Reason,
    RouteFallback,
    RouteRequest,
    Strategy,
    TextPart,
)
from routewright.wire.analytics import time_short

from .command import Parser, add, add_catalogue_file, add_json, in_words, names, refused
from .show import LIST_PRICE, USUAL_TIME, Block, Line, Row, Screen, Table, aligned, dollars, facts, picked, tokens
from .spans import candidate_table, trace_page
from .store import add_place, named_store

CANDIDATES_SHOWN = 6
NAMED = 3
"""The number of models named for each rejection reason."""
_NOTHING_CONFIGURED = "no provider is configured: this is the whole catalogue, of which nothing can be called yet"
ASKS = "[PROMPT | - | @FILE]"
CHOICE = "goal strategy policy_id max_cost max_tokens timeout_ms fallback model prefer provider".split()
"""Options read by ``request_of``. A command without them sets them to None."""
_HOW = "give it as an argument, pipe it in, or name a file with @FILE"
_MODELS = ("model", "context", "in $/1M", "out $/1M", "quality", "besides text", "availability")

S = TypeVar("S", bound=msgspec.Struct)


def add_route(command: Parser) -> None:
    """Add the options of ``route``."""
    command.performs(_route, ASKS)
    add_request(command)
    shown = command.add_argument_group("output")
    add(shown, "--json", "one JSON object: the route response, or the error", action="store_true")
    add(shown, "--explain", "the decision: chosen, runner-up, rejected and why", action="store_true")
    add(shown, "--trace", "the span tree, with what took how long", action="store_true")
    stream = "the answer as it comes, or whole (default: as it comes if standard output is a terminal)"
    add(shown, "--stream", stream, action=argparse.BooleanOptionalAction)
    shown.add_argument("-q", "--quiet", action="store_true", help="the answer alone")
    add_place(command, writes=True)


def add_decide(command: Parser) -> None:
    """Add the options of ``decide``."""
    command.performs(_decide, ASKS)
    add_request(command)
    add_json(command, "one JSON object, with every candidate and rejection")
    add(command, "--explain", "which is what it does", action="store_true")
    add(command, "--why-not ID", "what would have to be true for this model to be chosen")


def add_models(command: Parser) -> None:
    """Add the options of ``models``."""
    command.performs(_models)
    kinds = "only models that take it: text, image or tool; may be repeated"
    add(command, "--modality KIND", kinds, action="append", choices=get_args(Modality), default=[])
    add(command, "--all", "also what cannot be called: deprecated, disabled, without a key", action="store_true")
    add_json(command)
    add(command, "--provider NAME,...", "only models of these providers", action="extend", type=names)
    add_catalogue_file(command)


def add_prompt(command: Parser) -> None:
    """Add the options for the prompt and the request."""
    asked = command.add_argument_group("the request")
    add(asked, "prompt PROMPT | - | @FILE", "what to ask; - is standard input", nargs="?")
    add(asked, "--file FILE", "read the prompt from a file")
    add(asked, "--request FILE", "a whole route request as JSON; options override it")
    add(asked, "--system TEXT", "a system message before the prompt")
    add(asked, "--image URL", "an image beside the prompt", action="append", default=[])
    add(asked, "--max-output-tokens N", "the longest answer wanted", type=float)
    add(asked, "--reasoning EFFORT", f"how much to think: {', '.join(get_args(Effort))}", choices=get_args(Effort))
    add(asked, "--metadata KEY=VALUE", "a tag for the trace; may be repeated", action="append", type=pair, default=[])


def add_request(command: Parser) -> None:
    """Add the options for the request and for the choice of models."""
    add_prompt(command)
    choice = command.add_argument_group("the choice")
    add(choice, "--goal", "what matters most (default: cost)", choices=get_args(Goal))
    add(choice, "--strategy", "how it is weighed (default: balanced)", choices=get_args(Strategy))
    add(choice, "--policy ID", "id or name of a policy in --policies", dest="policy_id")
    add(choice, "--max-cost USD", "never spend more on this request", type=float)
    add(choice, "--max-tokens N", "never use more, input and output together", type=float)
    add(choice, "--timeout-ms MS", "time for everything (default: 60000)", type=float)
    chain = choice.add_mutually_exclusive_group()
    add(chain, "--fallback ID,...", "models to fall back to, in order", action="extend", type=names)
    add(chain, "--no-fallback", "no fallback", action="store_const", const=[], dest="fallback")
    pool = command.add_argument_group("the models")
    only = pool.add_mutually_exclusive_group()
    add(only, "--model ID,...", "only these models", action="extend", type=names)
    add(only, "--provider NAME,...", "only models of these providers", action="extend", type=names)
    add(pool, "--prefer ID,...", "try these first, in this order, where they fit", action="extend", type=names)
    add(pool, "--sandbox", "canned answers: no key, no network, nobody is billed", action="store_true")
    add_catalogue_file(pool)
    add(pool, "--policies FILE", "policies that --policy can name: TOML, JSON or Python")


def pair(text: str) -> tuple[str, str]:
    """Split ``KEY=VALUE``."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def request_of(args: Namespace, models: Sequence[Model]) -> RouteRequest:
    """Build the request from ``--request`` or the prompt. Other options override its fields.

    ``--provider`` selects from ``models``. Raises ``ValidationFailed``."""
    request = RouteRequest(_messages(args)) if args.request is None else _whole(args)
    only = args.model
    if args.provider is not None:  # leave out free models: naming them in the list would opt in to them
        only = [model.id for model in named_providers(args.provider, models) if not model.free_tier]
    given = picked(args, "goal strategy policy_id prefer timeout_ms") | {
        "models": only,
        "fallback": _over(request.fallback, Fallback, models=args.fallback),
        "budget": _over(request.budget, Budget, max_cost_usd=args.max_cost, max_tokens=args.max_tokens),
        "params": _over(request.params, Params, max_output_tokens=args.max_output_tokens, reasoning=args.reasoning),
        "metadata": {**(request.metadata or {}), **dict(args.metadata)} or None,
    }
    return replace(request, **{name: value for name, value in given.items() if value is not None})


def _over(base: S | None, kind: type[S], **given: Any) -> S | None:
    """Override the given fields in a part of the request."""
    said = {name: value for name, value in given.items() if value is not None}
    return replace(kind() if base is None else base, **said) if said else base


def named_providers(wanted: Sequence[str], models: Sequence[Model]) -> list[Model]:
    """The models of the given providers. Raises ``ValidationFailed`` for an unknown provider."""
    known = dict.fromkeys(model.provider for model in models)
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known) or f"known: {', '.join(sorted(known))}"
            raise refused("--provider", f"unknown provider {name!r}", hint)
    return [model for model in models if model.provider in wanted]


def _whole(args: Namespace) -> RouteRequest:
    beside = {"a prompt": args.prompt, "--file": args.file, "--system": args.system, "--image": args.image}
    for name, value in beside.items():
        if value:
            raise refused("--request", f"holds the messages, so {name} has no place", "leave out one of the two")
    called = f"--request {args.request}"
    body = _read(args.request, called)
    try:
        return decode_request(body)
    except InvalidJson as error:
        raise InvalidJson(f"{called}: {error}") from error


def _messages(args: Namespace) -> list[Message]:
    text = prompt_of(args)
    if not text.strip() and not args.image:
        raise refused("prompt", "is empty", _HOW)
    for url in args.image:
        if not url.startswith(("https:", "http:", "data:")):
            problem = f"{quoted(url)} is no URL, and files are not read"
            raise refused("--image", problem, "give https://... or data:image/png;base64,...")
    parts: list[Part] = [TextPart(text)] if text else []
    parts += [ImagePart(ImageUrl(url)) for url in args.image]
    asked = Message("user", parts if args.image else text)
    return [asked] if args.system is None else [Message("system", args.system), asked]


def prompt_of(args: Namespace) -> str:
    """The prompt: from the argument, a file or standard input."""
    source, called = "-", "standard input"
    if args.file is not None:
        if args.prompt is not None:
            raise refused("prompt", "is given twice", "give PROMPT or --file")
        source, called = args.file, f"--file {args.file}"
    elif args.prompt is None and sys.stdin.isatty():
        raise refused("prompt", "is missing", _HOW)
    elif args.prompt is not None and args.prompt.startswith("@"):
        source, called = args.prompt[1:], args.prompt
    elif args.prompt not in (None, "-"):
        return str(args.prompt)
    try:
        return _read(source, called).decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        problem, hint = f"is not UTF-8 text (byte {error.start})", "convert it; an image goes into --image, as a URL"
        raise refused(called, problem, hint) from error


def _read(source: str, called: str) -> bytes:
    """Read a file, or standard input if the name is ``-``."""
    try:
        return sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        hint = "to ask something that begins with '@', pipe it in" if called.startswith("@") else ""
        raise refused(called, f"cannot be read: {error.strerror}", hint) from error


def router_of(args: Namespace, *, sandbox: bool, storage: Storage | None = None, cache: Cache | None = None) -> Router:
    """Create the Router that the options describe."""
    catalogue = None if args.catalogue is None else Catalogue.load(args.catalogue)
    policies = () if args.policies is None else PolicyFile(args.policies)  # its errors include file and line
    settings = Settings(webhooks=WebhookSettings(deliver=False))  # long-running processes deliver
    make = Router.sandbox if sandbox else Router
    return make(catalogue=catalogue, policies=policies, storage=storage, cache=cache, settings=settings)


async def _route(args: Namespace, screen: Screen) -> None:
    """Answer a prompt with the model that fits it best.

    The prompt is the argument, a file as @FILE or --file FILE, or else what is piped in."""
    storage = named_store(args)
    router = router_of(args, sandbox=args.sandbox, storage=storage)
    request = request_of(args, router.models())
    async with router:
        if storage is not None:
            await TraceStore(storage).retention()  # fail before spending money if the store cannot be opened
        try:
            answer = await _answer(router, request, args, screen)
        except RouterError as error:
            if not args.json and args.explain and error.detail.get("rejected_candidates"):
                screen.say(*_refusal_page(error.detail))
            if not args.json and args.trace and error.trace_id is not None:
                screen.say(*trace_page(await router.trace(error.trace_id)), Line())
            if storage is not None and error.trace_id is not None:
                await keep(router, error.trace_id, args, screen)
            raise
        if args.json:
            body: dict[str, Any] = msgspec.to_builtins(answer.response)
            body |= {"decision": _decision_json(answer.decision)} if args.explain else {}
            screen.json(body | ({"trace": answer.trace} if args.trace else {}))
        elif not args.quiet:
            screen.say(*_answer_page(answer))
            screen.say(*(_decision_page(answer.decision) if args.explain else ()))
            screen.say(*(trace_page(answer.trace) if args.trace else ()))
        if storage is not None:
            await keep(router, answer.trace_id, args, screen)


async def _answer(router: Router, request: RouteRequest, args: Namespace, screen: Screen) -> Answer:
    streams = screen.is_terminal if args.stream is None else args.stream
    if not streams or args.json:
        answer = await router.route(request)
        if not args.json:
            screen.text(answer.output)
            screen.end_text()
        return answer
    async with router.stream(request) as stream:
        if not screen.is_terminal:
            stream.expect_text()  # output written to a pipe cannot be retracted
        async for event in stream:
            if isinstance(event, OutputDelta):
                screen.text(event.data.text)
            elif isinstance(event, RouteFallback) and event.data.restart:
                change = event.data
                screen.say(Line(f"[{change.from_model} failed; {change.to_model} begins again]", "bad"))
        screen.end_text()
        return stream.result


async def keep(router: Router, trace_id: str, args: Namespace, screen: Screen) -> None:
    """Wait until the trace is in the store, and print how to read it."""
    try:
        await router.flush()
    except RouterError as error:  # the answer is still valid
        screen.say(Line(f"routewright: the trace is not in the store: {error}", "bad"))
        return
    if not (args.json or getattr(args, "quiet", False)):
        there = "" if args.store is None else f" --store={shlex.quote(args.store)}"
        screen.say(Line(), Line(f"kept: routewright traces show {trace_id}{there}", "dim"))


def _answer_page(answer: Answer) -> list[Block]:
    response, routing = answer.response, answer.routing
    sandbox = answer.trace.environment == "sandbox"
    stood_in = "" if response.fallback_model is None else f", in place of {response.primary_model}, which failed"
    cut = response.finish_reason in ("length", "budget")
    ignored = ", ".join(routing.ignored_params)
    named = {
        "model": routing.selected_model + stood_in,
        "cost": dollars(routing.cost_usd) + (LIST_PRICE if sandbox else ""),
        "tokens": tokens(routing.tokens),
        "time": time_short(routing.latency_ms) + (USUAL_TIME if sandbox else ""),
        "trace": response.trace_id,
        "ended by": f"{response.finish_reason}: the answer is cut" if cut else "",
        "ignored": ignored and f"{ignored}, which the model does not take",
        "calls": ", ".join(f"{call.function.name}({call.function.arguments})" for call in answer.tool_calls or ()),
    }
    return [Line(), facts(named)]


def _decide(args: Namespace, screen: Screen) -> None:
    """Say which model would answer, and why; nothing is called.

    No key is needed. The prompt is the argument, a file as @FILE or --file FILE, or else what is piped in."""
    router = router_of(args, sandbox=args.sandbox)
    request = request_of(args, router.models())
    try:
        _show_decision(router, request, args, screen)
    except NoProviders:
        screen.note(_NOTHING_CONFIGURED)
        _show_decision(router_of(args, sandbox=True), request, args, screen)


def _show_decision(router: Router, request: RouteRequest, args: Namespace, screen: Screen) -> None:
    why = None if args.why_not is None else router.why_not(request, args.why_not)
    why_lines = [] if why is None else [Line(), *map(Line, in_words(why, args).splitlines())]
    try:
        decision = router.decide(request)
    except NoCandidates as error:
        if not args.json and error.detail.get("rejected_candidates"):
            screen.say(*_refusal_page(error.detail), *why_lines)
        raise
    body = _decision_json(decision) | ({} if why is None else {"why_not": why})
    screen.report(body, *_decision_page(decision)[1:], *why_lines)


def _decision_json(decision: Decision) -> dict[str, Any]:
    return picked(decision, "model chain score reason output_cap fallback_affordable candidates rejected digest input")


def _decision_page(decision: Decision) -> list[Block]:
    """Explains a decision: candidates in order, fallback models in order, and rejected models."""
    given, candidates, rejected = decision.input, decision.candidates, decision.rejected
    aim = f"{given.goal} goal, {given.strategy} strategy" if given.weights is None else "the policy's own weights"
    asked = len(candidates) + sum(each.reason != Reason.WHITELIST for each in rejected)
    title = f"Decision: {aim}; {len(candidates)} of {asked} models fit"
    size = given.tokens
    bounds = f"at least {size.low}, at most {size.high}, so counting changes nothing"
    limits = {
        f"${usd_text(given.budget_nanos or 0)}": given.budget_nanos is not None,
        f"{given.budget_tokens} tokens": given.budget_tokens is not None,
        f"at most {decision.output_cap} tokens of output": decision.output_cap is not None,
        "which pays for no fallback after it": not decision.fallback_affordable,
    }
    why = {each.model: each.reason for each in rejected}
    named = {
        "preferred": ", then ".join(f"{each} ({why[each]})" if each in why else each for each in given.prefer),
        "fallback": ", then ".join(decision.chain) or "none",
        "input": f"{size.best} tokens, counted" if size.counted else f"about {size.best} tokens; {bounds}",
        "est. cost": "of an answer of the model's usual length; a call costs what it uses",
        "limits": ", ".join(limit for limit, holds in limits.items() if holds),
        "class": decision.policy_class or "",
        "rejected": "" if rejected else "none",
        "digest": decision.digest,
    }
    shown, further = candidates[:CANDIDATES_SHOWN], len(candidates[CANDIDATES_SHOWN:])
    table = candidate_table(shown, chosen=decision.model, further=further)
    reasons = _rejections((each.model, each.reason, None) for each in rejected)
    return [Line(), Line(title, "title"), Line(), table, Line(), facts(named), *reasons]


def _refusal_page(detail: Mapping[str, Any]) -> list[Block]:
    """Explains why no model fits: the rejected models and the reasons. ``detail`` comes from the error."""
    rejected = [
        # prices are relevant only to budget rejections
        (each["model"], each["reason"], each["estimated_cost_usd"] if each["reason"] == Reason.BUDGET_COST else None)
        for each in detail["rejected_candidates"]
    ]
    return [Line(f"Decision: none of {len(rejected)} models fits", "title"), *_rejections(rejected), Line()]


def _rejections(rejected: Iterable[tuple[str, str, float | None]]) -> Iterator[Block]:
    """One line per reason, with the number of models and some names. If prices are given, the cheapest models."""
    by_reason: dict[str, list[tuple[str, float | None]]] = {}
    for model, reason, cost_usd in rejected:
        by_reason.setdefault(str(reason), []).append((model, cost_usd))
    rows = []
    for reason, models in sorted(by_reason.items(), key=lambda each: -len(each[1])):
        cheapest = sorted(models, key=lambda each: each[1] or 0.0)[:NAMED]
        some = ", ".join(model if cost is None else f"{model} {dollars(cost)}" for model, cost in cheapest)
        rows.append(Row((str(len(models)), reason, some + (" ..." if len(models) > NAMED else "")), "dim"))
    if rows:
        yield from (Line(), Table(rows, ("rejected", "by", "among them"), frozenset({0}), prose=True))


def _models(args: Namespace, screen: Screen) -> None:
    """List the models that can be routed to.

    Prices are US dollars per million tokens."""
    today = datetime.now(UTC).date().isoformat()
    catalogue = Catalogue() if args.catalogue is None else Catalogue.load(args.catalogue)
    age = stale(catalogue, today, Settings().stale_after_days)
    if age:
        screen.note(age)
    models = Router(catalogue=catalogue, settings=Settings(stale_after_days=None)).models()
    configured = any(model.availability.status != "unavailable" for model in models)
    if not configured:
        screen.note(_NOTHING_CONFIGURED)
    found = models if args.provider is None else named_providers(args.provider, models)
    listed = [model for model in found if set(args.modality) <= set(model.modalities or ())]
    if not args.all:
        listed = [model for model in listed if _is_current(model, today)]
        listed = [each for each in listed if not configured or each.availability.status != "unavailable"]
    listed.sort(key=lambda model: model.id)
    prices = [model.pricing_per_1m for model in listed]
    inputs = aligned([None if price is None else price.input_usd for price in prices])
    outputs = aligned([None if price is None else price.output_usd for price in prices])
    rows = []
    for model, paid, earned in zip(listed, inputs, outputs, strict=True):
        window = "" if model.context_window is None else f"{model.context_window:,}"
        quality = "" if model.quality is None else f"{model.quality:.2f}"
        kinds = " ".join(kind for kind in model.modalities or () if kind != "text")
        cells = (model.id, window, paid, earned, quality, kinds, _availability(model, today))
        rows.append(Row(cells, "plain" if _is_current(model, today) else "dim"))
    note = "" if listed else "no such model can be called; --all lists those that cannot, too"
    screen.report({"models": listed}, Table(rows, _MODELS, frozenset({1, 2, 3, 4})), note=note)


def _is_current(model: Model, today: str) -> bool:
    """True if neither disabled nor deprecated."""
    return not model.disabled and (model.deprecated_at is None or model.deprecated_at[:10] > today)


def _availability(model: Model, today: str) -> str:
    retires = None if model.deprecated_at is None else model.deprecated_at[:10]
    if model.disabled:
        return "disabled"
    if not _is_current(model, today):
        return f"deprecated {retires}"
    if model.availability.status == "unavailable":
        return "no key"
    status = "free offer, by name" if model.free_tier else model.availability.status
    return status if retires is None else f"until {retires}"
