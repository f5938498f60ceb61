"""The command ``agent``: runs an agent on a task and shows each step as it happens."""

from __future__ import annotations

import importlib
import shlex
import sys
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import anyio
import msgspec

from routewright.agent import BUILT_IN, Agent
from routewright.errors import renaming
from routewright.protocols import CodeSandbox
from routewright.tools import SearxngSearch
from routewright.wire import AgentResponse, JsonObject, RunCompleted, RunStarted, Step, StepCompleted, StepStarted
from routewright.wire.json_scan import quoted
from routewright.wire.printable import one_line
from routewright.wire.problems import did_you_mean
from routewright.wire.timestamps import time_short

from .command import CATALOGUE, RUN_EXITS, arg, exit_code_of, flag, group, in_words, refused, repeated, verb
from .route import AIM, METADATA, MODEL, POLICIES, POLICY, SANDBOX, keep, prompt_of, router_of
from .show import Line, Screen, dollars, fields
from .spans import trace_page
from .store import KEEPS, existing_store, named_store

SHOWN = 200
"""The most characters shown of a step's input and output."""


@verb(
    "agent",
    group(
        "the task",
        arg("prompt TASK | - | @FILE", "task to work on; - reads standard input", nargs="?"),
        arg("--system TEXT", "system prompt"),
        arg("--conversation NAME", "conversation in --store to continue"),
        arg("--resume ID", "interrupted run in --store to continue"),
        METADATA,
    ),
    group(
        "the tools",
        repeated("--tool NAME", "tool to offer: calculator, or module:function"),
        arg("--code", "offer code_exec, which runs programs in this sandbox", choices=("monty",)),
        arg("--search URL", "offer web_search, which queries this SearXNG server"),
    ),
    group(
        "limits",
        arg("--max-steps N", "maximum number of model and tool calls", int, 8),
        arg("--max-cost USD", "maximum cost of the whole run", float),
        arg("--step-timeout-ms MS", "timeout of each step", int, 30_000),
    ),
    group("the models", *AIM, MODEL, SANDBOX, CATALOGUE, POLICY, POLICIES),
    flag("--trace", "print the span tree, with durations and costs"),
    flag("--json", "print one JSON object: the response, or the error"),
    KEEPS,
)
async def _agent(args: Namespace, screen: Screen) -> int:
    """Work on a task in steps, with tools, within limits of steps, time and money.

    Each step is shown on standard error as it happens; the answer goes to standard output."""
    storage = named_store(args) if args.resume is None else existing_store(args)
    if args.conversation is not None and storage is None:
        raise refused("--conversation", "needs a store", "give --store PATH")
    router = router_of(args, sandbox=args.sandbox, storage=storage)
    search = None if args.search is None else _search(args.search)
    options = {"system": args.system, "models": args.model, "policy_id": args.policy_id}
    agent = Agent(
        router,
        tools=_tools(args),
        max_steps=args.max_steps,
        per_step_timeout_ms=args.step_timeout_ms,
        total_budget_usd=args.max_cost,
        goal=args.goal,
        strategy=args.strategy,
        search=search,
        code=None if args.code is None else _sandbox(),
        **{name: value for name, value in options.items() if value is not None},
    )
    async with router, search or nullcontext():
        response = await _response(agent, args, screen, is_stored=storage is not None)
        error = response.error
        trace = await router.trace(response.trace_id) if args.trace else None
        if args.json:
            screen.json(msgspec.to_builtins(response) | ({} if trace is None else {"trace": trace}))
        else:
            screen.text(response.output)
            screen.end_text()
            totals = response.summary
            summary = {
                "status": response.status + (f": {response.marker}" if response.marker else ""),
                "steps": totals.total_steps,
                "cost_usd": totals.total_cost_usd,
                "time_ms": totals.total_latency_ms,
                "tools": totals.tools_used,
                "trace": response.trace_id,
                "waits for": [call.function.name for call in response.pending_tool_calls],
            }
            screen.say(Line(), fields(summary), *([] if trace is None else trace_page(trace)))
        if error is not None:
            screen.note(f"routewright: the run failed: {in_words(error['message'], args)}", "bad")
        if storage is not None:
            await keep(router, response.trace_id, args, screen)
    if error is not None and response.status == "failed":
        return exit_code_of(error["code"])
    return RUN_EXITS[response.status]


async def _response(agent: Agent, args: Namespace, screen: Screen, *, is_stored: bool) -> AgentResponse:
    """Execute the run. If it is interrupted and its store keeps it, print how to resume it."""
    run: list[str] = [] if args.resume is None else [args.resume]
    try:
        if args.resume is not None:
            return (await agent.resume(args.resume)).response
        task = prompt_of(args)
        async with agent.stream(task, metadata=dict(args.metadata) or None, conversation=args.conversation) as events:
            return await _watch(events, args, screen, run)
    except anyio.get_cancelled_exc_class():
        if run and is_stored:
            screen.note(f"resume with: {_resume_command(run[0], args)}")
        raise


def _resume_command(trace_id: str, args: Namespace) -> str:
    """The command that resumes a run. It repeats the tools and models, which the checkpoint does not contain."""
    words = ["routewright", "agent", "--resume", trace_id]
    for name in ("store", "tool", "code", "search", "model", "sandbox", "catalogue", "policies"):
        value = getattr(args, name)
        for argument in value if isinstance(value, list) else [value]:
            if argument:
                words += [f"--{name}"] if argument is True else [f"--{name}", argument]
    return shlex.join(words)


async def _watch(events: AsyncIterator[Any], args: Namespace, screen: Screen, run: list[str]) -> AgentResponse:
    """Print each step as it ends, with the money spent so far. Prints the run's id and stores it in ``run``."""
    spent_usd = 0.0
    async for event in events:
        match event:
            case RunStarted():
                run.append(event.data.trace_id)
                screen.note(f"run {event.data.trace_id}")
            case StepStarted() if event.data.action == "tool_call" and not args.json:
                screen.note(f"{event.data.number:>3}  {one_line(event.data.tool or '')} ...")
            case StepCompleted():
                spent_usd += event.data.cost_usd
                if not args.json:
                    screen.note(one_line(_step(event.data, spent_usd, args.max_cost)))
            case RunCompleted():
                return event.data
    raise AssertionError("a run ends with run.completed")


def _step(step: Step, spent_usd: float, cap_usd: float | None) -> str:
    duration = time_short(step.duration_ms)
    cap = "" if cap_usd is None else f" of {dollars(cap_usd)}"
    if step.tool is not None:
        return f"{step.number:>3}  {step.tool}({_shorten(step.input)}) -> {_shorten(step.output)}, {duration}"
    outcome = ", ".join(step.output.get("tool_calls") or ()) or str(step.output.get("error") or "answers")
    return f"{step.number:>3}  {step.model or 'model call'}: {outcome}, {duration}, {dollars(spent_usd)}{cap} spent"


def _shorten(value: JsonObject) -> str:
    text = ", ".join(str(part) for part in value.values())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _tools(args: Namespace) -> list[Any]:
    """The tools the options name. Refuses tools that would reject every call."""
    names = dict.fromkeys(args.tool)
    if "code_exec" in names and args.code is None:
        raise refused("--tool", "code_exec needs a sandbox", "give --code monty")
    if "web_search" in names and args.search is None and not args.sandbox:
        raise refused("--tool", "web_search needs a search engine", "give --search with the URL of a SearXNG server")
    if args.code is not None:
        names["code_exec"] = None
    if args.search is not None:
        names["web_search"] = None
    return [_tool(name) for name in names]


def _tool(name: str) -> Any:
    """A built-in tool by name, or a function as ``module:function``."""
    if name in BUILT_IN:
        return name
    module = name.partition(":")[0]
    function = name.partition(":")[2]
    if not (module and function):
        dotted = ":".join(name.rsplit(".", 1)) if "." in name else "module:function"
        hint = did_you_mean(name, BUILT_IN) or f"write your own function as {dotted}"
        raise refused("--tool", f"{quoted(name)} is not a built-in tool", hint)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        problem = f"importing {quoted(module)} raised {type(error).__name__}: {error}"
        raise refused("--tool", problem, "run it alone to see why") from error
    if not callable(getattr(imported, function, None)):
        raise refused(
            "--tool",
            f"{quoted(module)} has no function {quoted(function)}",
            did_you_mean(function, vars(imported)) or "name one that the module defines",
        )
    return getattr(imported, function)


def _sandbox() -> CodeSandbox:
    """The sandbox of ``--code``. Raises ``ValidationFailed`` if it is not installed."""
    try:
        from routewright.tools import MontySandbox
    except ModuleNotFoundError as error:
        raise refused("--code", str(error), "or run the agent without it") from error
    return MontySandbox()


def _search(url: str) -> SearxngSearch:
    with renaming(lambda problem: problem._replace(path="--search")):
        return SearxngSearch(url)
