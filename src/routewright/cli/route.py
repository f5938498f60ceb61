"""The commands ``route`` and ``decide``."""

from __future__ import annotations

import argparse
import shlex
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from routewright import Answer, Decision, wire
from routewright.catalogue import Catalogue
from routewright.errors import InvalidJson, NoCandidates, RouterError
from routewright.policies import PolicyFile
from routewright.protocols import Cache, Storage
from routewright.router import Router, decode_request
from routewright.settings import Settings, WebhookSettings
from routewright.trace import TraceStore
from routewright.wire import Effort, Goal, JsonObject, Message, Model, Part, Reason, RouteRequest, Strategy
from routewright.wire.json_scan import quoted
from routewright.wire.problems import did_you_mean
from routewright.wire.timestamps import time_short

from .command import CATALOGUE, arg, either, flag, group, in_words, refused, repeated, several, verb
from .show import LIST_PRICE, USUAL_TIME, Block, Line, Row, Screen, Table, dollars, facts, pick, tokens
from .spans import trace_page
from .store import KEEPS, named_store

MAX_NAMED = 3
"""The number of models named for each rejection reason."""
NOTHING_CONFIGURED = "no provider is configured: showing the whole catalogue, of which no model can be called yet"
_HOW = "give it as an argument, pipe it in, or name a file with @FILE"

S = TypeVar("S", bound=msgspec.Struct)


def pair(text: str) -> tuple[str, str]:
    """Split ``KEY=VALUE``."""
    key = text.partition("=")[0]
    if not key or "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, text[len(key) + 1 :]


METADATA = repeated("--metadata KEY=VALUE", "tag of the trace", pair)
PROMPT = group(
    "the request",
    arg("prompt PROMPT | - | @FILE", "prompt; - reads standard input", nargs="?"),
    arg("--request FILE", "file with a route request in JSON; options override its fields"),
    arg("--system TEXT", "system message"),
    repeated("--image URL", "image to send with the prompt"),
    arg("--max-output-tokens N", "maximum length of the answer in tokens", float),
    arg("--reasoning", "reasoning effort", Effort),
    METADATA,
)
AIM = (
    arg("--goal", "what to optimize for (default: cost)", Goal),
    arg("--strategy", "how strongly to weigh the goal (default: balanced)", Strategy),
)
MODEL = several("--model ID,...", "use only these models")
PROVIDER = several("--provider NAME,...", "use only models of these providers")
SANDBOX = flag("--sandbox", "use canned answers: no key, no network, no cost")
POLICY = arg("--policy ID", "id or name of a policy in --policies", dest="policy_id")
POLICIES = arg("--policies FILE", "file of policies for --policy, TOML or JSON")
_REQUEST = (
    PROMPT,
    group(
        "the choice",
        *AIM,
        POLICY,
        arg("--max-cost USD", "maximum cost of this request", float),
        arg("--max-tokens N", "maximum tokens of this request, input and output together", float),
        arg("--timeout-ms MS", "timeout of the whole call (default: 60000)", float),
        either(
            several("--fallback ID,...", "models to fall back to, in order"),
            arg("--no-fallback", "use no fallback", action="store_const", const=[], dest="fallback"),
        ),
    ),
    group(
        "the models",
        either(MODEL, PROVIDER),
        several("--prefer ID,...", "models to try first, in this order, where they fit"),
        SANDBOX,
        CATALOGUE,
        POLICIES,
    ),
)


def request_of(args: Namespace, models: Sequence[Model]) -> RouteRequest:
    """Build the request from ``--request`` or the prompt. Other options override its fields.

    ``--provider`` selects from ``models``. Raises ``ValidationFailed``."""
    request = RouteRequest(_messages(args)) if args.request is None else _request_in_file(args)
    option = vars(args).get  # 'policies check' has no options for the choice
    model_ids = option("model")
    if providers := option("provider"):  # leave out free models: naming them in the list would opt in to them
        model_ids = [model.id for model in named_providers(providers, models) if not model.free_tier]
    changes = {name: option(name) for name in ("goal", "strategy", "policy_id", "prefer", "timeout_ms")} | {
        "models": model_ids,
        "fallback": _set(request.fallback, wire.Fallback, models=option("fallback")),
        "budget": _set(request.budget, wire.Budget, max_cost_usd=option("max_cost"), max_tokens=option("max_tokens")),
        "params": _set(request.params, wire.Params, max_output_tokens=args.max_output_tokens, reasoning=args.reasoning),
        "metadata": {**(request.metadata or {}), **dict(args.metadata)} or None,
    }
    return replace(request, **{name: value for name, value in changes.items() if value is not None})


def _set(base: S | None, kind: type[S], **fields: object) -> S | None:
    """Override the given fields in a part of the request."""
    changes = {name: value for name, value in fields.items() if value is not None}
    return replace(kind() if base is None else base, **changes) if changes else base


def named_providers(providers: Sequence[str], models: Sequence[Model]) -> list[Model]:
    """The models of the given providers. Raises ``ValidationFailed`` for an unknown provider."""
    names = dict.fromkeys(model.provider for model in models)
    for name in providers:
        if name not in names:
            hint = did_you_mean(name, names) or f"known: {', '.join(sorted(names))}"
            raise refused("--provider", f"unknown provider {name!r}", hint)
    return [model for model in models if model.provider in providers]


def _request_in_file(args: Namespace) -> RouteRequest:
    others = {"a prompt": args.prompt, "--system": args.system, "--image": args.image}
    for name, value in others.items():
        if value:
            raise refused("--request", f"contains the messages, which excludes {name}", "leave out one of the two")
    label = f"--request {args.request}"
    body = _read(args.request, label)
    try:
        return decode_request(body)
    except InvalidJson as error:
        raise InvalidJson(f"{label}: {error}") from error


def _messages(args: Namespace) -> list[Message]:
    text = prompt_of(args)
    if not text.strip() and not args.image:
        raise refused("prompt", "is empty", _HOW)
    for url in args.image:
        if not url.startswith(("https:", "http:", "data:")):
            problem = f"{quoted(url)} is not a URL, and local files are not read"
            raise refused("--image", problem, "give https://... or data:image/png;base64,...")
    parts: list[Part] = [wire.TextPart(text)] if text else []
    parts += [wire.ImagePart(wire.ImageUrl(url)) for url in args.image]
    message = Message("user", parts if args.image else text)
    return [message] if args.system is None else [Message("system", args.system), message]


def prompt_of(args: Namespace) -> str:
    """The prompt: from the argument, a file or standard input."""
    source, label = "-", "standard input"
    if args.prompt is None and sys.stdin.isatty():
        raise refused("prompt", "is missing", _HOW)
    if args.prompt is not None and args.prompt.startswith("@"):
        source, label = args.prompt[1:], args.prompt
    elif args.prompt not in (None, "-"):
        return str(args.prompt)
    try:
        return _read(source, label).decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        hint = "convert it; an image goes into --image, as a URL"
        raise refused(label, f"is not UTF-8 text (byte {error.start})", hint) from error


def _read(source: str, label: str) -> bytes:
    """Read a file, or standard input if the name is ``-``."""
    try:
        return sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        hint = "pipe in a prompt that begins with '@'" if label.startswith("@") else ""
        raise refused(label, f"cannot be read: {error.strerror}", hint) from error


def router_of(args: Namespace, *, sandbox: bool, storage: Storage | None = None, cache: Cache | None = None) -> Router:
    """Create the Router that the options describe."""
    catalogue = None if args.catalogue is None else Catalogue.load(args.catalogue)
    policies = () if args.policies is None else PolicyFile(args.policies)  # its errors include file and line
    settings = Settings(webhooks=WebhookSettings(deliver=False))  # long-running processes deliver
    make = Router.sandbox if sandbox else Router
    return make(catalogue=catalogue, policies=policies, storage=storage, cache=cache, settings=settings)


@verb(
    "route",
    *_REQUEST,
    group(
        "output",
        flag("--json", "print one JSON object: the route response, or the error"),
        flag("--explain", "print the decision: chosen, runner-up, rejected and why"),
        flag("--trace", "print the span tree, with durations"),
        arg("--stream", "print the answer as it comes (default: on a terminal)", action=argparse.BooleanOptionalAction),
        flag("-q,--quiet", "print only the answer"),
    ),
    KEEPS,
)
async def _route(args: Namespace, screen: Screen) -> None:
    """Answer a prompt with the model that fits it best.

    The prompt is the argument, a file as @FILE, or standard input."""
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
            body: JsonObject = msgspec.to_builtins(answer.response)
            body |= {"decision": _decision_json(answer.decision)} if args.explain else {}
            screen.json(body | ({"trace": answer.trace} if args.trace else {}))
        elif not args.quiet:
            screen.say(*_answer_page(answer))
            screen.say(*([Line(), *_decision_page(router.explain(answer.decision))] if args.explain else ()))
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
            if isinstance(event, wire.OutputDelta):
                screen.text(event.data.text)
            elif isinstance(event, wire.RouteFallback) and event.data.restart:
                screen.note(f"[{event.data.from_model} failed; {event.data.to_model} starts over]", "bad")
        screen.end_text()
        return stream.result


async def keep(router: Router, trace_id: str, args: Namespace, screen: Screen) -> None:
    """Wait until the trace is in the store, and print how to read it."""
    try:
        await router.flush()
    except RouterError as error:  # the answer is still valid
        screen.note(f"routewright: the trace is not in the store: {error}", "bad")
        return
    if not (args.json or getattr(args, "quiet", False)):
        option = "" if args.store is None else f" --store={shlex.quote(args.store)}"
        screen.say(Line(), Line(f"trace stored: routewright traces show {trace_id}{option}", "dim"))


def _answer_page(answer: Answer) -> list[Block]:
    response = answer.response
    routing = answer.routing
    sandbox = answer.trace.environment == "sandbox"
    substitution = "" if response.fallback_model is None else f", instead of {response.primary_model}, which failed"
    is_cut = response.finish_reason in ("length", "budget")
    ignored = ", ".join(routing.ignored_params)
    summary = {
        "model": routing.selected_model + substitution,
        "cost": dollars(routing.cost_usd) + (LIST_PRICE if sandbox else ""),
        "tokens": tokens(routing.tokens),
        "time": time_short(routing.latency_ms) + (USUAL_TIME if sandbox else ""),
        "trace": response.trace_id,
        "ended by": f"{response.finish_reason}: the answer is cut" if is_cut else "",
        "ignored": ignored and f"{ignored}, which the model does not support",
        "calls": ", ".join(f"{call.function.name}({call.function.arguments})" for call in answer.tool_calls or ()),
    }
    return [Line(), facts(summary)]


@verb(
    "decide",
    *_REQUEST,
    flag("--json", "print one JSON object, with every candidate and rejection"),
    arg("--why-not ID", "model that is not chosen: print what would have to change"),
)
def _decide(args: Namespace, screen: Screen) -> None:
    """Show which model would answer, and why, without calling it.

    No key is needed. The prompt is the argument, a file as @FILE, or standard input."""
    router = router_of(args, sandbox=args.sandbox)
    request = request_of(args, router.models())
    why: JsonObject = {}
    lines: list[Line] = []
    try:
        if all(model.availability.status == "unavailable" for model in router.models()):
            screen.note(NOTHING_CONFIGURED)
            router = router_of(args, sandbox=True)
        if args.why_not is not None:
            why = {"why_not": router.why_not(request, args.why_not)}
            lines = [Line(), *map(Line, in_words(why["why_not"], args).splitlines())]
        decision = router.decide(request)
    except NoCandidates as error:
        if not args.json and error.detail.get("rejected_candidates"):
            screen.say(*_refusal_page(error.detail), *lines)
        raise
    screen.report(_decision_json(decision) | why, *_decision_page(router.explain(decision)), *lines)


def _decision_json(decision: Decision) -> JsonObject:
    return pick(decision, "model chain score reason output_cap fallback_affordable candidates rejected digest input")


def _decision_page(explained: str) -> list[Block]:
    reason, *lines = explained.splitlines()
    return [Table([Row((reason,), "title")], prose=True), *map(Line, lines)]


def _refusal_page(detail: Mapping[str, Any]) -> list[Block]:
    """Why no model fits: by each reason how many models, and the first of them. ``detail`` comes from the error."""
    by_reason: dict[str, list[str]] = {}
    for candidate in sorted(detail["rejected_candidates"], key=lambda row: row["estimated_cost_usd"] or 0.0):
        # prices are relevant only to budget rejections
        price = f" {dollars(candidate['estimated_cost_usd'])}" if candidate["reason"] == Reason.BUDGET_COST else ""
        by_reason.setdefault(candidate["reason"], []).append(f"{candidate['model']}{price}")
    rows = [
        Row((str(len(models)), reason, ", ".join(models[:MAX_NAMED]) + (" ..." if len(models) > MAX_NAMED else "")))
        for reason, models in sorted(by_reason.items(), key=lambda pair: -len(pair[1]))
    ]
    title = f"Decision: none of {len(detail['rejected_candidates'])} models fits"
    return [Line(title, "title"), Line(), Table(rows, ">rejected | by | among them", prose=True), Line()]
