"""``Agent``: runs a task in steps, each of which is a call of a model or a tool (spec 2.4, contract 10)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from ._core.agent.request import checked_run
from ._core.money import usd
from ._core.request.json_scan import quoted
from ._core.request.problems import did_you_mean, shown
from ._core.structured_output import Form
from ._core.trace.ids import normalise_trace_id
from ._engine.agent import SYSTEM, Plan, checkpoint_of
from ._engine.agent import Run as Run
from ._engine.tool_calls import Approve
from .errors import Problem, ValidationFailed
from .fork import importing
from .protocols import CodeSandbox, SearchBackend, Tool, ToolContext, ToolFailed, ToolResult
from .wire import (
    AgentEvent,
    AgentRequest,
    AgentResponse,
    Caller,
    FunctionSpec,
    Goal,
    ModelStrategy,
    RunSummary,
    Step,
    Strategy,
    ToolCall,
)
from .wire import Tool as Declaration

if TYPE_CHECKING:
    from .router import Router

T_co = TypeVar("T_co", covariant=True)
ToolLike = str | Tool | Declaration | Callable[..., Any]
"""A built-in tool by its name, a tool, a declaration of one that the client runs, or a function."""
_BUILT_IN = ("calculator", "web_search", "code_exec")
_TASK = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "what to do, in plain words"}},
    "required": ["task"],
    "additionalProperties": False,
}


class AgentAnswer(Generic[T_co]):
    """The outcome of a run."""

    def __init__(self, response: AgentResponse, data: T_co) -> None:
        self.response = response
        """As HTTP would send it."""
        self.data = data
        """The answer as the ``output_type`` that was asked for; None without one, and of a run without an answer."""

    def __str__(self) -> str:
        return self.output

    def __repr__(self) -> str:
        # no text: a repr ends up in logs
        return f"<AgentAnswer {self.trace_id}: {self.status}, {len(self.steps)} steps>"

    @property
    def output(self) -> str:
        """The final answer; of a run that did not come to one, what the model said last."""
        return self.response.output

    @property
    def status(self) -> str:
        """``completed``, ``partial``, ``failed`` or ``budget_exceeded``."""
        return self.response.status

    @property
    def marker(self) -> str | None:
        """Why it is partial: ``max_steps_reached`` or ``tool_calls_pending``."""
        return self.response.marker

    @property
    def steps(self) -> list[Step]:
        """What was done, in order."""
        return self.response.steps

    @property
    def summary(self) -> RunSummary:
        """Steps, cost, time and tools."""
        return self.response.summary

    @property
    def pending_tool_calls(self) -> list[ToolCall]:
        """Calls left to you: ``Agent.resume`` takes their results."""
        return self.response.pending_tool_calls

    @property
    def trace_id(self) -> str:
        """Id of the run's trace, and of the run."""
        return self.response.trace_id


class Agent:
    """Works on a task with tools, within limits of steps, time and money.

        agent = Agent(router, tools=["calculator"], total_budget_usd=0.05)
        answer = await agent.run("What is 17.5 % of 2,340?")

    Each model call is a call of the Router: fallbacks, budgets, guardrails and traces apply. One Agent serves any
    number of runs at once.
    """

    def __init__(
        self,
        router: Router,
        *,
        tools: Sequence[ToolLike] = (),
        max_steps: int = 8,
        per_step_timeout_ms: int = 30_000,
        total_budget_usd: float | None = None,
        goal: Goal | None = None,
        strategy: Strategy | None = None,
        system: str | None = SYSTEM,
        approve: Approve | None = None,
        search: SearchBackend | None = None,
        code: CodeSandbox | None = None,
        output_type: Any = None,
        escalate: bool = False,
        **options: Any,
    ) -> None:
        """``system``: the system prompt. ``approve(name, arguments)`` is asked before each tool, and may be async.
        ``search`` and ``code`` are what ``web_search`` and ``code_exec`` use. ``output_type``: the type of the final
        answer. ``escalate``: asks a stronger model when the run makes no progress. ``options`` are those of
        ``Router.route``, such as ``models``, ``policy_id`` and ``params``.

        Raises ``ValidationFailed``."""
        self.router = router
        self._search, self._code = search, code
        self._defaults = AgentRequest(
            task="-",
            max_steps=max_steps,
            per_step_timeout_ms=per_step_timeout_ms,
            total_budget_usd=total_budget_usd,
            model_strategy=ModelStrategy(goal, strategy) if goal or strategy else None,
        )
        checked_run(self._defaults)
        wrong = sorted(
            options.keys() & {"tools", "tool_choice", "messages", "stream", "idempotency_key", "timeout_ms", "budget"}
        )
        if wrong:
            raise ValidationFailed.of(Problem(wrong[0], "is not an option of an agent", "it sets that for each step"))
        self._approve, self._system, self._escalates, self._options = approve, system, escalate, options
        self._form = None if output_type is None else _form_of(output_type)
        mine = [self._made(tool) for tool in tools]
        names = [tool.spec.name if isinstance(tool, Tool) else tool.function_spec.name for tool in mine]
        for name in names:
            if names.count(name) > 1:
                raise ValidationFailed.of(
                    Problem("tools", f"has two tools named {quoted(name)}", "name one of them anew")
                )
        self._tools = {tool.spec.name: tool for tool in mine if isinstance(tool, Tool)}
        self._client_tools = {tool.function_spec.name: tool for tool in mine if not isinstance(tool, Tool)}

    @property
    def tools(self) -> list[str]:
        """The names of its tools."""
        return [*self._tools, *self._client_tools]

    async def run(
        self,
        task: str,
        *,
        caller: Caller | None = None,
        max_steps: int | None = None,
        total_budget_usd: float | None = None,
        metadata: dict[str, Any] | None = None,
        conversation: str | None = None,
        idempotency_key: str | None = None,
    ) -> AgentAnswer[Any]:
        """Work on a task to the end. ``conversation``: a name under which what is said is kept, and remembered by later
        runs. What is not given is the agent's own.

        Raises what ``Router.route`` does for a caller that is refused before the first step. What happens later is in
        the answer's ``status``."""
        return await self._finished(
            self._run(task, caller, max_steps, total_budget_usd, metadata, conversation, idempotency_key)
        )

    @asynccontextmanager
    async def stream(
        self,
        task: str,
        *,
        caller: Caller | None = None,
        max_steps: int | None = None,
        total_budget_usd: float | None = None,
        metadata: dict[str, Any] | None = None,
        conversation: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncIterator[AsyncIterator[AgentEvent]]:
        """Work on a task, and tell of each step.

            async with agent.stream("...") as events:
                async for event in events:
                    print(event.event, event.data)

        The last event is ``run.completed``. Leaving the block early ends the run."""
        run = self._run(task, caller, max_steps, total_budget_usd, metadata, conversation, idempotency_key)
        events = run.events()
        try:
            yield events
        finally:
            await events.aclose()

    async def resume(
        self,
        run: str | AgentResponse | AgentAnswer[Any],
        results: Mapping[str, Any] | None = None,
        *,
        caller: Caller | None = None,
    ) -> AgentAnswer[Any]:
        """Go on with a run that waits for the ``results`` of its ``pending_tool_calls``, by their ids, or that was
        interrupted, after its last finished step. What was paid for is not paid for again.

        Raises ``NotFound`` for a run that has ended or is older than a day, and ``ValidationFailed`` where results are
        missing."""
        trace_id = normalise_trace_id(run if isinstance(run, str) else run.trace_id)
        who = self.router.resolve_caller(caller or self.router.caller)
        state = await checkpoint_of(self.router.storage, who, trace_id)
        given = {call_id: _text(result) for call_id, result in (results or {}).items()}
        missing = [call.id for call in state.pending if call.id not in given] if state.status == "pending" else []
        if missing:
            raise ValidationFailed.of(
                Problem("results", f"lacks {', '.join(missing)}", "give one for each pending call")
            )
        return await self._finished(
            Run(self.router.engine, self.router.storage, self._plan(state.request), state.request, who, state, given)
        )

    def as_tool(self, name: str, description: str) -> Tool:
        """This agent as a tool of another. It spends of the other's budget, at most its own."""
        return _AgentTool(self, name, description)

    def prepare(self, request: AgentRequest, caller: Caller | None = None) -> Run:
        """A run of a checked request, for servers: of its ``tools`` those with the names of this agent's run here.
        What it does not say is the agent's own. Raises ``ValidationFailed`` for an unknown name."""
        defaults, given = self._defaults, {name: getattr(request, name) for name in _INHERITED}
        made = msgspec.structs.replace(
            request, **{name: getattr(defaults, name) if value is None else value for name, value in given.items()}
        )
        who = self.router.resolve_caller(caller or self.router.caller)
        return Run(self.router.engine, self.router.storage, self._plan(made), made, who)

    @cached_property
    def blocking(self) -> BlockingAgent:
        """``run`` and ``resume`` for code without ``await``."""
        return BlockingAgent(self)

    def _run(
        self,
        task: str,
        caller: Caller | None,
        max_steps: int | None,
        total_budget_usd: float | None,
        metadata: dict[str, Any] | None,
        conversation: str | None,
        idempotency_key: str | None,
    ) -> Run:
        if conversation is not None:
            metadata = {**(metadata or {}), "conversation": conversation}
        request = AgentRequest(
            task=task,
            max_steps=max_steps,
            total_budget_usd=total_budget_usd,
            metadata=metadata,
            idempotency_key=idempotency_key,
        )
        return self.prepare(checked_run(request), caller)

    async def _finished(self, run: Run) -> AgentAnswer[Any]:
        return AgentAnswer(await run.finish(), run.data)

    def _plan(self, request: AgentRequest) -> Plan:
        """The tools of a run: all of the agent's, or those that the request names."""
        tools, client = self._tools, self._client_tools
        if request.tools is not None:
            tools, client = {}, {}
            for place, asked in enumerate(request.tools):
                name = asked if isinstance(asked, str) else asked.function_spec.name
                if name in self._tools:
                    tools[name] = self._tools[name]
                elif name in _BUILT_IN:
                    if not isinstance(asked, str):
                        said = f"{quoted(name)} is the name of a built-in tool"
                        raise ValidationFailed.of(Problem(f"tools[{place}]", said, "name yours otherwise"))
                    tools[name] = self._built_in(name)
                elif isinstance(asked, str):
                    known = [*_BUILT_IN, *self._tools]
                    hint = did_you_mean(name, known) or f"known: {', '.join(known)}"
                    raise ValidationFailed.of(Problem(f"tools[{place}]", f"{quoted(name)} is not a tool here", hint))
                else:
                    client[name] = asked
        if self._approve is None:  # nobody here can say yes
            asks = {name: tool for name, tool in tools.items() if getattr(tool, "needs_approval", False)}
            tools = {name: tool for name, tool in tools.items() if name not in asks}
            client = {**client, **{name: Declaration(function=tool.spec) for name, tool in asks.items()}}
        return Plan(
            tools=tools,
            client_tools=client,
            system=self._system,
            approve=self._approve,
            form=self._form,
            escalates=self._escalates,
            options=self._options,
        )

    def _made(self, tool: ToolLike) -> Tool | Declaration:
        if isinstance(tool, str):
            if tool not in _BUILT_IN:
                hint = did_you_mean(tool, _BUILT_IN) or f"built in are {', '.join(_BUILT_IN)}"
                raise ValidationFailed.of(Problem("tools", f"{quoted(tool)} is not a built-in tool", hint))
            return self._built_in(tool)
        if isinstance(tool, Declaration | Tool):
            return tool
        if callable(tool):
            with importing.lock:
                from .tools import FunctionTool  # loads pydantic

            return FunctionTool(tool)
        hint = "pass a function, a tool, or the name of a built-in one"
        raise ValidationFailed.of(Problem("tools", f"{shown(tool)} is not a tool", hint))

    def _built_in(self, name: str) -> Tool:
        with importing.lock:
            from .tools import Calculator, CannedSearch, CodeExec, WebSearch

        if name == "calculator":
            return Calculator()
        if name == "web_search":
            return WebSearch(CannedSearch() if self._search is None and self.router.is_sandbox else self._search)
        return CodeExec(self._code, self.router.clock.monotonic)


_INHERITED = ("max_steps", "per_step_timeout_ms", "total_budget_usd", "model_strategy")


class BlockingAgent:
    """``agent.blocking``: for scripts, threads and notebooks."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def run(self, task: str, **given: Any) -> AgentAnswer[Any]:
        """As ``Agent.run``."""
        return self._agent.router.run_blocking(partial(self._agent.run, task, **given))

    def resume(self, run: Any, results: Mapping[str, Any] | None = None, **given: Any) -> AgentAnswer[Any]:
        """As ``Agent.resume``."""
        return self._agent.router.run_blocking(partial(self._agent.resume, run, results, **given))


class _AgentTool:
    def __init__(self, agent: Agent, name: str, description: str) -> None:
        self.spec = FunctionSpec(name, description, _TASK)
        self._agent = agent

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> Any:
        own, left = self._agent._defaults.total_budget_usd, context.left_nanos
        budgets = [each for each in (own, None if left is None else usd(left)) if each is not None]
        answer = await self._agent.run(
            arguments["task"], caller=context.caller, total_budget_usd=min(budgets, default=None)
        )
        if answer.status == "failed":
            raise ToolFailed(f"the agent failed: {(answer.response.error or {}).get('code')}")
        result = {"status": answer.status, "output": answer.output}
        return ToolResult(result, answer.summary.total_cost_usd, answer.trace_id)


def _text(result: Any) -> str:
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()


def _form_of(output_type: Any) -> Form:
    with importing.lock:
        from .output import form_of  # loads pydantic

    return form_of(output_type)
