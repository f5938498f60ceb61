"""The commands ``route``, ``decide`` and ``models``: each reads its arguments, asks the library, shows what came."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import anyio
import msgspec

from routewright import Answer
from routewright._core.routing.decision import Decision
from routewright._core.routing.why_not import WhyNot
from routewright.assembly import stale
from routewright.catalogue import Catalogue
from routewright.errors import NoCandidates, NoProviders, RouterError
from routewright.policies import PolicyFile
from routewright.protocols import Storage
from routewright.router import Router
from routewright.settings import Settings
from routewright.trace import TraceStore
from routewright.wire import Model, OutputDelta, Policy, RouteFallback, RouteRequest

from .blocks import Block, Line
from .options import Arguments
from .page import answer_page, decision_page, is_current, models_page, refusal_page
from .place import named_store
from .request import named_providers, request_of
from .screen import Screen
from .span_tree import trace_page
from .wording import said

_NOTHING_CONFIGURED = "no provider is configured: this is the whole catalogue, of which nothing can be called yet"


def run_request(args: Arguments, screen: Screen) -> None:
    """Do what the command line says. Raises ``RouterError``."""
    match args.command:
        case "route":
            anyio.run(_route, args, screen)
        case "decide":
            _decide(args, screen)
        case _:
            _models(args, screen)


async def _route(args: Arguments, screen: Screen) -> None:
    storage = named_store(args)
    router = _router(args, sandbox=args.sandbox, storage=storage)
    request = request_of(args, router.models())
    async with router:
        if storage is not None:
            await TraceStore(storage).retention()  # a store that cannot be opened is told before anything is paid
        try:
            answer = await _answer(router, request, args, screen)
        except RouterError as error:
            if not args.json:
                screen.say(*await _failure_pages(router, error, args))
            if storage is not None and error.trace_id is not None:
                await _keep(router, error.trace_id, args, screen)
            raise
        if args.json:
            screen.json(_answer_json(answer, args))
        elif not args.quiet:
            screen.say(*_answer_pages(answer, args))
        if storage is not None:
            await _keep(router, answer.trace_id, args, screen)


async def _keep(router: Router, trace_id: str, args: Arguments, screen: Screen) -> None:
    """See to it that the trace is in the store, and say how to read it."""
    try:
        await router.flush()
    except RouterError as error:  # which does not undo the answer
        screen.say(Line(f"routewright: the trace is not in the store: {error}", "bad"))
        return
    if not (args.json or args.quiet):
        there = "" if args.store is None else f" --store={shlex.quote(args.store)}"
        screen.say(Line(), Line(f"kept: routewright traces show {trace_id}{there}", "dim"))


async def _answer(router: Router, request: RouteRequest, args: Arguments, screen: Screen) -> Answer:
    streams = screen.is_terminal if args.stream is None else args.stream
    if streams and not args.json:
        return await _streamed(router, request, screen)
    answer = await router.route(request)
    if not args.json:
        screen.text(answer.output)
        screen.end_text()
    return answer


async def _streamed(router: Router, request: RouteRequest, screen: Screen) -> Answer:
    async with router.stream(request) as stream:
        if not screen.is_terminal:
            stream.expect_text()  # what went into a pipe cannot be taken back
        async for event in stream:
            if isinstance(event, OutputDelta):
                screen.text(event.data.text)
            elif isinstance(event, RouteFallback) and event.data.restart:
                change = event.data
                screen.say(Line(f"[{change.from_model} failed; {change.to_model} begins again]", "bad"))
        screen.end_text()
        return stream.result


def _decide(args: Arguments, screen: Screen) -> None:
    router = _router(args, sandbox=args.sandbox)
    request = request_of(args, router.models())
    try:
        _show_decision(router, request, args, screen)
    except NoProviders:
        screen.say(Line(_NOTHING_CONFIGURED, "dim"))
        _show_decision(_router(args, sandbox=True), request, args, screen)


def _show_decision(router: Router, request: RouteRequest, args: Arguments, screen: Screen) -> None:
    why = None if args.why_not is None else router.why_not(request, args.why_not)
    try:
        decision = router.decide(request)
    except NoCandidates as error:
        if not args.json and error.detail.get("rejected_candidates"):
            screen.say(*refusal_page(error.detail), *_why_page(why, args))
        raise
    if args.json:
        screen.json(_decision_json(decision) | ({} if why is None else {"why_not": why}))
    else:
        screen.show(*decision_page(decision)[1:], *_why_page(why, args))


def _why_page(why: WhyNot | None, args: Arguments) -> list[Block]:
    return [] if why is None else [Line(), *map(Line, said(why, args).splitlines())]


def _models(args: Arguments, screen: Screen) -> None:
    today = datetime.now(UTC).date().isoformat()
    catalogue, settings = _catalogue(args) or Catalogue(), Settings(stale_after_days=None)  # it is said here
    age = stale(catalogue, today, Settings().stale_after_days)
    if age:
        screen.say(Line(age, "dim"))
    models = Router(catalogue=catalogue, settings=settings).models()
    configured = any(model.availability.status != "unavailable" for model in models)
    if not configured:
        screen.say(Line(_NOTHING_CONFIGURED, "dim"))
    listed = [
        model
        for model in _asked_for(models, args)
        if args.all or (is_current(model, today) and not (configured and model.availability.status == "unavailable"))
    ]
    if args.json:
        screen.json({"models": listed})
    elif listed:
        screen.show(*models_page(listed, today))
    else:
        screen.say(Line("no such model can be called; --all lists those that cannot, too", "dim"))


def _asked_for(models: list[Model], args: Arguments) -> list[Model]:
    found = models if args.provider is None else named_providers(args.provider, models)
    found = [model for model in found if set(args.modality) <= set(model.modalities or ())]
    return sorted(found, key=lambda model: model.id)


def _router(args: Arguments, *, sandbox: bool, storage: Storage | None = None) -> Router:
    make = Router.sandbox if sandbox else Router
    return make(catalogue=_catalogue(args), policies=_policies(args), storage=storage)


def _policies(args: Arguments) -> Sequence[Policy] | PolicyFile:
    return () if args.policies is None else PolicyFile(args.policies)  # whose errors name file and line


def _catalogue(args: Arguments) -> Catalogue | None:
    return None if args.catalogue is None else Catalogue.load(args.catalogue)


def _answer_pages(answer: Answer, args: Arguments) -> list[Block]:
    pages = answer_page(answer)
    pages += decision_page(answer.decision) if args.explain else []
    return pages + (trace_page(answer.trace) if args.trace else [])


async def _failure_pages(router: Router, error: RouterError, args: Arguments) -> list[Block]:
    pages: list[Block] = []
    if args.explain and error.detail.get("rejected_candidates"):
        pages += refusal_page(error.detail)
    if args.trace and error.trace_id is not None:
        pages += [*trace_page(await router.trace(error.trace_id)), Line()]
    return pages


def _answer_json(answer: Answer, args: Arguments) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(answer.response)
    if args.explain:
        body["decision"] = _decision_json(answer.decision)
    if args.trace:
        body["trace"] = answer.trace
    return body


def _decision_json(decision: Decision) -> dict[str, Any]:
    return {
        "model": decision.model,
        "chain": decision.chain,
        "score": decision.score,
        "reason": decision.reason,
        "output_cap": decision.output_cap,
        "fallback_affordable": decision.fallback_affordable,
        "candidates": decision.candidates,
        "rejected": decision.rejected,
        "digest": decision.digest,
        "input": decision.input,
    }
