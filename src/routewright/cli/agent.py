"""The command ``agent``: works on a task in steps, and shows them as they happen."""

from __future__ import annotations

import importlib
import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_args

from routewright.agent import Agent
from routewright.errors import RouterError
from routewright.wire import AgentResponse, Goal, RunCompleted, Step, StepCompleted, StepStarted, Strategy
from routewright.wire.figures import time_short

from .command import Parser, add, add_catalogue_file, add_json, names, refused
from .route import pair, prompt_of, router_of
from .show import Line, Screen, dollars, facts
from .store import add_place, named_store

SHOWN = 200
"""Characters of what a step was given and gave."""


def add_agent(command: Parser) -> None:
    """Give the command ``agent`` its options."""
    command.performs(_agent, "[TASK | - | @FILE]")
    asked = command.add_argument_group("the task")
    add(asked, "prompt TASK | - | @FILE", "what to do; - is standard input", nargs="?")
    add(asked, "--file FILE", "read the task from a file")
    tool = "calculator, web_search, code_exec, or module:function; may be repeated"
    add(asked, "--tool NAME", tool, action="append", default=[])
    add(asked, "--resume ID", "go on with a run of --store that was interrupted")
    add(asked, "--metadata KEY=VALUE", "a tag for the traces; may be repeated", action="append", type=pair, default=[])
    limits = command.add_argument_group("limits")
    add(limits, "--max-steps N", "the most model and tool calls (default: 8)", type=int, default=8)
    add(limits, "--max-cost USD", "the most that the whole run may cost", type=float)
    add(limits, "--step-timeout-ms MS", "time for each step (default: 30000)", type=int, default=30_000)
    models = command.add_argument_group("the models")
    add(models, "--goal", "what matters most (default: cost)", choices=get_args(Goal))
    add(models, "--strategy", "how it is weighed (default: balanced)", choices=get_args(Strategy))
    add(models, "--model ID,...", "only these models", action="extend", type=names)
    add(models, "--sandbox", "canned answers: no key, no network, nobody is billed", action="store_true")
    add_catalogue_file(models)
    add(models, "--policies FILE", "policies in a TOML, JSON or Python file")
    add_json(command, "one JSON object: the response, or the error")
    add_place(command, writes=True)


async def _agent(args: Namespace, screen: Screen) -> None:
    """Work on a task in steps, with tools, within limits of steps, time and money.

    Each step is shown on standard error as it happens; the answer goes to standard output.
    """
    storage = named_store(args)
    if args.resume is not None and storage is None:
        raise refused("--resume", "needs the store that the run is in", "give --store PATH")
    router = router_of(args, sandbox=args.sandbox, storage=storage)
    options: dict[str, Any] = {} if args.model is None else {"models": args.model}
    agent = Agent(
        router,
        tools=[_tool(name) for name in args.tool],
        max_steps=args.max_steps,
        per_step_timeout_ms=args.step_timeout_ms,
        total_budget_usd=args.max_cost,
        goal=args.goal,
        strategy=args.strategy,
        **options,
    )
    async with router:
        if args.resume is not None:
            response = (await agent.resume(args.resume)).response
        else:
            metadata = dict(args.metadata) or None
            async with agent.stream(prompt_of(args), metadata=metadata) as events:
                response = await _watched(events, args, screen)
        if args.json:
            screen.json(response)
            return
        screen.text(response.output)
        screen.end_text()
        screen.say(Line(), facts(_told(response)))
        if storage is not None:
            await router.flush()
    if response.status == "failed" and response.error is not None:
        raise RouterError(f"the run failed: {response.error['message']}")


async def _watched(events: AsyncIterator[Any], args: Namespace, screen: Screen) -> AgentResponse:
    """Show each step as it ends, with the money that is gone."""
    spent_usd = 0.0
    async for event in events:
        match event:
            case StepStarted() if event.data.action == "tool_call" and not args.json:
                screen.note(f"{event.data.number:>3}  {event.data.tool} ...")
            case StepCompleted():
                spent_usd += event.data.cost_usd
                if not args.json:
                    screen.note(_step(event.data, spent_usd, args.max_cost))
            case RunCompleted():
                return event.data
    raise AssertionError("a run ends with run.completed")


def _step(step: Step, spent_usd: float, cap_usd: float | None) -> str:
    of = "" if cap_usd is None else f" of {dollars(cap_usd)}"
    took = time_short(step.duration_ms)
    if step.tool is not None:
        return f"{step.number:>3}  {step.tool}({_short(step.input)}) -> {_short(step.output)}, {took}"
    calls = ", ".join(step.output.get("tool_calls") or ())
    said = f"calls {calls}" if calls else str(step.output.get("error") or "answers")
    return f"{step.number:>3}  {step.model or 'model call'} {said}, {took}, {dollars(spent_usd)}{of} spent"


def _short(value: dict[str, Any]) -> str:
    text = ", ".join(str(each) for each in value.values())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _told(response: AgentResponse) -> dict[str, str]:
    summary = response.summary
    return {
        "status": response.status + (f": {response.marker}" if response.marker else ""),
        "steps": str(summary.total_steps),
        "cost": dollars(summary.total_cost_usd),
        "time": time_short(summary.total_latency_ms),
        "tools": ", ".join(summary.tools_used),
        "trace": response.trace_id,
        "waits for": ", ".join(call.function.name for call in response.pending_tool_calls),
    }


def _tool(name: str) -> Any:
    """A built-in tool by its name, or the function of ``module:function``."""
    module, colon, function = name.partition(":")
    if not colon:
        return name
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise refused("--tool", f"{name!r} cannot be imported: {error}", "give module:function") from error
