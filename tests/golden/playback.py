"""Plays one script on virtual time, through public doors alone, and gives all that came of it as plain data."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from typing import Any

import anyio
import msgspec

from routewright import Answer, Decision, Event, Ledger, ProviderFault, RouteRequest, RouterError, UpstreamCall
from routewright.router import StepCall, StepDone, Steps, StepWait
from routewright.testing.provider import Pause
from routewright.wire import Chunk

from .bench import TYPES, Bench, line_of
from .randomness import Data
from .scripts import Script
from .turns import Turn

Outcome = dict[str, Any]
GOOD: Turn = [["text", "Well."], ["usage", 9, 3], ["finish", "stop"]]


def play(script: Script) -> Outcome:
    """Play a script in an event loop of its own."""
    return asyncio.run(_play(script))


async def _play(script: Script) -> Outcome:
    bench, events = Bench(script), list[Event]()
    bench.router.on_event(events.append)
    await bench.open_account(script["account"])
    calls = await _make(bench, script["calls"])
    await bench.clock.advance(1.0)
    await bench.router.flush()
    accounts = ["default", "acme"]
    outcome = {
        "calls": calls,
        "traces": [_plain(each) for name in accounts for each in await _traces(bench, name)],
        "ledger": {name: await _ledger(bench, name) for name in accounts},
        "events": [{"type": event.type, "data": _plain(event.data)} for event in events],
        "asked": {each.name: [_asked(call) for call in each.calls] for each in bench.providers},
        "left_open": sum(each.open_calls for each in bench.providers),
        "status": {model.id: model.availability.status for model in bench.router.models()},
        "standing": _plain(await bench.console.standing("acme")) if script["account"] else None,
    }
    await bench.router.aclose()
    return outcome


async def _make(bench: Bench, calls: list[Data]) -> list[Data]:
    """Make the calls in order, those of one group beside one another."""
    made: list[Data] = []
    for number, group in groupby(calls, lambda each: each.get("group")):
        if number is None:
            for call in group:
                await bench.clock.sleep(call.get("gap_s", 0.0))
                if not call.get("if_served") or "answer" in made[-1]:
                    made.append(await _call(bench, call))
            continue
        together = list(group)
        found: list[Data] = [{} for _ in together]
        async with anyio.create_task_group() as tasks:
            for place, call in enumerate(together):
                await bench.clock.sleep(call["gap_s"])
                tasks.start_soon(_put, bench, call, found, place)
        made += found
    return made


async def _put(bench: Bench, call: Data, found: list[Data], place: int) -> None:
    found[place] = await _call(bench, call)


async def _call(bench: Bench, call: Data) -> Data:
    """Make one call through its door, and say what came of it and when."""
    began, found = bench.clock.monotonic(), Data()
    try:
        with bench.clock.deadline(began + call.get("cancel_after_s", 100_000.0)) as limit:
            await _DOORS[call["door"]](bench, call, found)
        if limit.expired:
            found["cancelled"] = True
    except RouterError as error:
        found["error"] = _error(error)
    return found | {"began_s": began, "took_s": bench.clock.monotonic() - began}


def _given(bench: Bench, call: Data) -> Data:
    """The arguments of a door."""
    request, options = call["request"], dict(call["options"])
    if call["form"]:
        messages = [{"role": "user", "content": request}] if isinstance(request, str) else request
        request, options = {"messages": messages} | options, {}
        if call["form"] == "object":
            with suppress(msgspec.ValidationError):  # the wrong ones stay a dict
                request = msgspec.convert(request, RouteRequest)
    return {"request": request, "caller": bench.callers[call.get("caller")], **options}


async def _route(bench: Bench, call: Data, found: Data) -> None:
    answer: Answer[Any] = await bench.router.route(**_given(bench, call), output_type=TYPES[call.get("output_type")])
    found["answer"] = _answer(bench, answer)


async def _stream(bench: Bench, call: Data, found: Data) -> None:
    events = found["events"] = list[Data]()
    async with bench.router.stream(**_given(bench, call)) as stream:
        async for event in stream:
            events.append({"event": event.event, "id": event.id, "data": _plain(event.data)})
            if len(events) > call.get("stop_after", 10_000):
                found["stopped"] = True
                return
        found["headers"] = stream.headers
    found["answer"] = _answer(bench, stream.result)


async def _text(bench: Bench, call: Data, found: Data) -> None:
    pieces = found["pieces"] = list[str]()
    async with bench.router.stream(**_given(bench, call)) as stream:
        async for piece in stream.text():
            pieces.append(piece)
            if len(pieces) > call.get("stop_after", 10_000):
                found["stopped"] = True
                return
    found["answer"] = _answer(bench, stream.result)


async def _steps(bench: Bench, call: Data, found: Data) -> None:
    said = found["steps"] = list[Any]()
    with bench.router.steps(**_given(bench, call)) as steps:
        while len(said) <= call.get("stop_after", 10_000):
            match steps.next():
                case StepCall() as step:
                    said.append([step.model, step.attempt, step.timeout_s, steps.idle_s, _asked(step.upstream)])
                    await _feed(bench, steps, step)
                case StepWait(seconds):
                    said.append(["wait", seconds])
                    await bench.clock.sleep(seconds)
                case StepDone():
                    found["answer"] = _answer(bench, steps.result)
                    return
    found["stopped"] = True


async def _feed(bench: Bench, steps: Steps, step: StepCall) -> None:
    """Be the host: spend the time that the turn takes, then hand over what came."""
    turns = bench.turns.get(step.model)
    lines = [line_of(line) for line in (GOOD if turns is None else turns.turn(step.model))]
    takes_s = sum(line.seconds for line in lines if isinstance(line, Pause))
    await bench.clock.sleep(min(takes_s, step.timeout_s))
    rest = [line for line in lines if not isinstance(line, Pause)]
    if takes_s > step.timeout_s:
        steps.feed(ProviderFault("timeout", "the host waited in vain"))
    elif len(rest) == 1 and isinstance(rest[0], ProviderFault):
        steps.feed(rest[0])
    else:
        steps.feed(_chunks(rest))


def _chunks(lines: list[Any]) -> Iterator[Chunk]:
    for line in lines:
        if isinstance(line, ProviderFault):
            raise line
        yield line


async def _many(bench: Bench, call: Data, found: Data) -> None:
    given = {name: value for name, value in call["options"].items() if name not in ("budget", "idempotency_key")}
    limits = {"limit": call["limit"], "budget": call["budget"]}
    results = await bench.router.route_many(call["requests"], **limits, **given)
    found["many"] = [_error(each) if isinstance(each, RouterError) else _answer(bench, each) for each in results]


async def _decide(bench: Bench, call: Data, found: Data) -> None:
    decision = bench.router.decide(**_given(bench, call))
    found["decision"] = _decision(bench, decision) | {
        "candidates": _plain(decision.candidates), "input": _plain(decision.input), "score": decision.score,
        "token_count": decision.token_count, "explained": bench.router.explain(decision),
    }  # fmt: skip


async def _revoke(bench: Bench, call: Data, found: Data) -> None:
    await bench.revoke()


_DOORS = {
    "route": _route, "stream": _stream, "text": _text, "steps": _steps, "many": _many, "decide": _decide,
    "revoke": _revoke,
}  # fmt: skip


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=str)


def _answer(bench: Bench, answer: Answer[Any]) -> Data:
    return {
        "response": _plain(answer.response), "headers": answer.headers, "replayed": answer.replayed,
        "data": _plain(answer.data), "decision": _decision(bench, answer.decision), "trace": answer.trace.id,
    }  # fmt: skip


def _decision(bench: Bench, decision: Decision) -> Data:
    return {
        "model": decision.model, "chain": decision.chain, "reason": decision.reason, "digest": decision.digest,
        "output_cap": decision.output_cap, "fallback_affordable": decision.fallback_affordable,
        "rejected": _plain(decision.rejected), "replays": bench.router.replay(decision).digest == decision.digest,
    }  # fmt: skip


def _error(error: RouterError) -> Data:
    told = ("code", "status", "type", "retryable", "message", "detail", "headers", "request_id", "trace_id")
    return {"class": type(error).__name__} | {name: _plain(getattr(error, name)) for name in told}


def _asked(call: UpstreamCall) -> Data:
    """What a provider was asked."""
    plain: Data = _plain(call)
    return plain | {"model": call.model.id, "tools": len(call.tools or ())}


async def _traces(bench: Bench, account: str) -> list[Any]:
    """All traces of an account, oldest first."""
    return [each async for each in bench.router.traces.export(account=account)][::-1]


async def _ledger(bench: Bench, account: str) -> list[Any]:
    """All rows of an account, oldest first."""
    return [_plain(row) async for row in Ledger(bench.storage, clock=bench.clock).rows(account=account)][::-1]
