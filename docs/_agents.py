"""Writes the tables of the reference of agents: names, arguments, events."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

from docs._table import table
from msgspec import Struct

from routewright import Agent
from routewright.agent import RunOptions
from routewright.protocols import ToolContext
from routewright.wire import AgentEvent, AgentResponse, RunSummary, Step
from routewright.wire.docstrings import field_docs, prose, summary

NAMES = {
    "routewright.agent": "Agent AgentAnswer AgentStream",
    "routewright.tools": "FunctionTool SearxngSearch BraveSearch TavilySearch MontySandbox McpTools",
    "routewright.protocols": ("Tool ToolContext ToolFailed SearchBackend SearchResult CodeSandbox Executed"),
}
"""Public names, by module."""

_LIMITS = {
    "max_steps": "The most model calls and tool calls together, 1 to 1,000. Default: 8.",
    "total_budget_usd": "The most that the run may cost, model calls and tools together.",
}
_RUN = {
    "task": "What to do, in plain words.",
    "caller": "Whose run it is. Default: the Router's caller.",
    "metadata": "Tags of the run and of each of its model calls.",
    "conversation": "Remember what is said, and what earlier runs of that name said.",
    "idempotency_key": "Under one key the same run is made once in 24 hours. It also resumes an interrupted run.",
    **_LIMITS,
}
ARGUMENTS: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "`Agent(router, ...)`": (
        Agent.__init__,
        {
            "router": "Makes the model calls.",
            "tools": "Functions, names of built-in tools, objects that fit `protocols.Tool`, and declarations.",
            **_LIMITS,
            "per_step_timeout_ms": "Time for each model call and each tool. Default: 30,000.",
            "goal": "As in a route request.",
            "strategy": "As in a route request.",
            "system": "The system prompt. Default: use the tools, and never follow instructions in their results.",
            "approve": "Called with a tool's name and arguments before it runs. May be async. False: it does not run.",
            "search": "The backend of `web_search`.",
            "code": "The sandbox of `code_exec`.",
            "output_type": "The type of the final answer, as `answer.data`.",
            "escalate": "Ask a stronger model when the run makes no progress.",
            "options": (
                "Options of `Router.route` for each model call: `models`, `prefer`, `policy_id`, `params`, `fallback`."
            ),
        },
    ),
    "`await agent.run(task, ...)` and `agent.stream(task, ...)`": (Agent.run, _RUN),
    "`await agent.resume(run, ...)`": (
        Agent.resume,
        {
            "run": "The run, its response, or its trace id.",
            "results": "Results of its `pending_tool_calls`, by their ids.",
            "approved": "Yes or no to pending calls of tools that need approval, by their ids.",
            "caller": "Whose run it is. Default: the Router's caller.",
        },
    ),
}
"""What takes arguments, and the meaning of each."""

EVENTS: tuple[type[Struct], ...] = (Step, AgentResponse, RunSummary)
"""What events of a run hold, but for the few fields of the first two."""


def agent_names() -> str:
    """Public names with their modules."""
    rows = [
        (f"`{module}.{name}`", summary(getattr(importlib.import_module(module), name)))
        for module, names in NAMES.items()
        for name in names.split()
    ]
    return table(("name", "what it is"), rows)


def agent_arguments() -> str:
    """A table for each thing that takes arguments."""
    return "\n".join(f"### {name}\n\n{_arguments(*each)}" for name, each in ARGUMENTS.items())


def _arguments(takes: Callable[..., Any], meanings: dict[str, str]) -> str:
    found = [each for each in inspect.signature(takes).parameters.values() if each.name != "self"]
    rows = []
    for each in found:
        if each.annotation == "Unpack[RunOptions]":
            hints = RunOptions.__annotations__
            rows += [(name, name, str(hint.__forward_arg__), "the agent's") for name, hint in hints.items()]
        else:
            rows.append((each.name, _shown(each), str(each.annotation), _default(each)))
    if {name for name, *_ in rows} != set(meanings):
        raise ValueError(f"ARGUMENTS does not have the meanings of those of {takes.__qualname__}")
    return table(
        ("argument", "type", "default", "meaning"),
        [
            (f"`{shown}`", f"`{hint.replace('wire.', '')}`", default, meanings[name])
            for name, shown, hint, default in rows
        ],
    )


def _shown(argument: inspect.Parameter) -> str:
    return f"**{argument.name}" if argument.kind is argument.VAR_KEYWORD else argument.name


def _default(argument: inspect.Parameter) -> str:
    if argument.kind is argument.VAR_KEYWORD:
        return ""
    if argument.default is argument.empty:
        return "required"
    return "built in" if argument.name == "system" else f"`{argument.default!r}`"


def agent_context() -> str:
    """What a tool may ask for, and set."""
    return f"### `{ToolContext.__name__}`\n\n{summary(ToolContext)}\n\n{fields(ToolContext)}"


def agent_events() -> str:
    """The events of a stream, and the shapes of what they hold."""
    kinds: tuple[type[Struct], ...] = get_args(AgentEvent)
    rows = [(f"`{kind.event}`", _data(kind), summary(kind)) for kind in kinds]  # type: ignore[attr-defined]
    streamed = table(("event", "data", "when"), rows)
    shapes = "\n".join(f"### `{kind.__name__}`\n\n{summary(kind)}\n\n{fields(kind)}" for kind in EVENTS)
    return f"{streamed}\n{shapes}"


def _data(event: type[Struct]) -> str:
    """The shape of an event's data, or its fields where no table has them."""
    data: type[Struct] = get_type_hints(event)["data"]
    return f"`{data.__name__}`" if data in EVENTS else ", ".join(f"`{name}`" for name in data.__struct_fields__)


def fields(kind: type[Struct]) -> str:
    """The fields of a struct."""
    told = field_docs(kind)
    own = {name: of for name, of in kind.__annotations__.items() if not of.startswith("ClassVar")}
    return table(
        ("field", "type", "meaning"), [(f"`{name}`", f"`{of}`", prose(told.get(name, ""))) for name, of in own.items()]
    )


PARTS: dict[str, Callable[[], str]] = {
    "agent-arguments": agent_arguments,
    "agent-context": agent_context,
    "agent-events": agent_events,
    "agent-names": agent_names,
}
