"""The commands ``route``, ``decide`` and ``models``: each reads its arguments, asks the library, shows what came."""

from __future__ import annotations

from datetime import UTC, datetime
from random import SystemRandom
from typing import Any

import anyio
import msgspec

from routewright._core.decision import Decision
from routewright._core.why_not import WhyNot
from routewright._engine.answer import Answer
from routewright._engine.identity import Ids
from routewright.assembly import stale
from routewright.backends.clock import SystemClock
from routewright.catalogue import Catalogue
from routewright.errors import NoCandidates, NoProviders, RouterError
from routewright.router import Router
from routewright.settings import Settings
from routewright.wire import Model, OutputDelta, Policy, RouteFallback, RouteRequest, error_envelope

from .blocks import Block, Line
from .exits import OK
from .options import Arguments
from .page import answer_page, decision_page, is_current, models_page, refusal_page, trace_page
from .request import named_providers, request_of
from .screen import Screen

_NOTHING_CONFIGURED = "no provider is configured: this is the whole catalogue, of which nothing can be called yet"

_OPTIONS = {
    "budget.maxCostUsd": "--max-cost",
    "budget.maxTokens": "--max-tokens",
    "params.max_output_tokens": "--max-output-tokens",
    "timeout_ms": "--timeout-ms",
    "policy_id": "--policy",
    "pass it to Router(policies=...)": "give its file as --policies",
    "Router.models()": "'routewright models --all'",
    "pass Router(providers=[...]), or use Router.sandbox()": "or add --sandbox",
}
"""What the library's messages name, and what it is here."""


def run(args: Arguments, screen: Screen) -> int:
    """Do what the command line says, and give the exit code. Raises ``RouterError``, which ``failed`` shows."""
    match args.command:
        case "policies":
            from .policies import run_policies  # which the other commands do not need

            return run_policies(args, screen)
        case "route":
            anyio.run(_route, args, screen)
        case "decide":
            _decide(args, screen)
        case "catalogue":
            from .catalogue import run_catalogue  # which the other commands do not need

            run_catalogue(args, screen)
        case _:
            _models(args, screen)
    return OK


def failed(error: RouterError, args: Arguments, screen: Screen) -> None:
    """Show an error: the envelope of the specification under ``--json``, else a sentence."""
    if args.json:
        error.request_id = error.request_id or Ids(SystemClock(), SystemRandom())("req_")
        screen.json(error_envelope(error))
    screen.say(Line(f"routewright: {_said(error, args)}", "bad"))


def _said(text: object, args: Arguments) -> str:
    """What the library says, with options in the place of fields."""
    message = str(text)
    if args.request is not None:
        return message  # who writes JSON knows the fields by their own names
    for field, option in _OPTIONS.items():
        message = message.replace(field, option)
    return message


async def _route(args: Arguments, screen: Screen) -> None:
    async with _router(args, sandbox=args.sandbox) as router:
        request = request_of(args, router.models())
        try:
            answer = await _answer(router, request, args, screen)
        except RouterError as error:
            if not args.json:
                screen.say(*await _failure_pages(router, error, args))
            raise
    if args.json:
        screen.json(_answer_json(answer, args))
    elif not args.quiet:
        screen.say(*_answer_pages(answer, args))


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
    return [] if why is None else [Line(), *map(Line, _said(why, args).splitlines())]


def _models(args: Arguments, screen: Screen) -> None:
    today = datetime.now(UTC).date().isoformat()
    catalogue, settings = _catalogue(args) or Catalogue(), Settings(stale_after_days=None)  # it is said here
    said = stale(catalogue, today, Settings().stale_after_days)
    if said:
        screen.say(Line(said, "dim"))
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


def _router(args: Arguments, *, sandbox: bool) -> Router:
    make = Router.sandbox if sandbox else Router
    return make(catalogue=_catalogue(args), policies=_policies(args))


def _policies(args: Arguments) -> list[Policy]:
    if args.policies is None:
        return []
    from routewright.policy_file import read_policies  # loads pydantic

    return read_policies(args.policies)


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
