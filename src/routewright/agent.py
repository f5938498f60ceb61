"""``Agent``: works on a task in steps; each calls a model or a tool (spec 2.4, contract 10)."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack

import msgspec

from . import wire
from ._core.agent.request import check_run, run_of
from ._core.agent.request import decode_run as decode_run
from ._core.money import usd
from ._core.request.read import ROUTE_ARGUMENTS, as_request, merge_tags
from ._core.structured_output import Form
from ._engine.agent import Run as Run
from ._engine.checkpoints import Resumption, checkpoint_of
from ._engine.storage import GuardedStorage
from ._engine.tool_calls import Approve, shown_text
from ._engine.turns import SYSTEM, AgentSettings
from ._runtime.blocking import Closing
from ._runtime.constructors import explains
from ._runtime.fork import importing
from .errors import NotFound, ValidationFailed
from .protocols import BaseTool, CodeSandbox, SearchBackend, Tool, ToolContext, ToolFailed, options_of
from .wire import Tool as Declaration
from .wire.foreign import HINTS, no_attribute
from .wire.ids import normalise_trace_id
from .wire.json_scan import quoted
from .wire.plain import PlainData
from .wire.problems import did_you_mean, hint_for, shown

if TYPE_CHECKING:
    from .router import Router

T_co = TypeVar("T_co", covariant=True)
ToolLike = str | Tool | Declaration | Callable[..., Any]
"""The name of a built-in tool, a tool, a declaration of a tool that the client runs, or a function."""
MAX_STEPS = 8
STEP_TIMEOUT_MS = 30_000
"""Defaults of the specification (2.4)."""
DENIED = '{"error":"the user did not approve this call"}'
BUILT_IN = ("calculator", "web_search", "code_exec")
_TASK = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "what to do, in plain words"}},
    "required": ["task"],
    "additionalProperties": False,
}


class RunOptions(TypedDict, total=False):
    """Options of one run; the defaults are the agent's."""

    caller: wire.Caller | None
    max_steps: int | None
    total_budget_usd: float | None
    metadata: dict[str, Any] | None
    conversation: str | None
    """Name of a stored conversation: its earlier turns are sent to the model, and this one is added."""
    idempotency_key: str | None


class AgentAnswer(PlainData, Generic[T_co]):
    """The outcome of a run. ``to_dict`` and ``to_json`` give its ``response`` as plain data."""

    _shape = wire.AgentResponse

    def __init__(self, response: wire.AgentResponse, data: T_co) -> None:
        self.response = response
        """The body of the HTTP response."""
        self.data = data
        """The answer parsed as ``output_type``; None without ``output_type`` or without an answer."""

    def __str__(self) -> str:
        return self.output

    def __repr__(self) -> str:
        # without text, since a repr ends up in logs
        return f"<AgentAnswer {self.trace_id}: {self.status}, steps: {len(self.steps)}>"

    if not TYPE_CHECKING:  # a type checker refuses these names

        def __getattr__(self, name: str) -> object:
            raise no_attribute(self, name)

    @property
    def _plain(self) -> wire.AgentResponse:
        return self.response

    @property
    def output(self) -> str:
        """The final answer, or the model's last text if there is none."""
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
    def error(self) -> dict[str, str] | None:
        """``code`` and ``message`` of a run that is ``failed`` or ``budget_exceeded``."""
        return self.response.error

    @property
    def steps(self) -> list[wire.Step]:
        """The steps, in order."""
        return self.response.steps

    @property
    def summary(self) -> wire.RunSummary:
        """Steps, cost, time and tools."""
        return self.response.summary

    @property
    def pending_tool_calls(self) -> list[wire.ToolCall]:
        """Calls left to you: ``Agent.resume`` takes their results."""
        return self.response.pending_tool_calls

    @property
    def trace_id(self) -> str:
        """Id of the run's trace, and of the run."""
        return self.response.trace_id


class AgentStream(Closing):
    """The events of a run, to iterate once. Leaving its context ends the run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        """For servers: its headers and its deadline."""
        self._events = run.events()
        self._ready = deque[wire.AgentEvent]()
        """Events that ``start`` has waited for."""
        self._is_started = False

    def __aiter__(self) -> AsyncIterator[wire.AgentEvent]:
        return self

    async def __anext__(self) -> wire.AgentEvent:
        return self._ready.popleft() if self._ready else await anext(self._events)

    async def start(self) -> None:
        """Wait for the end of the first step. Raises as ``Agent.run`` if the run is refused before. Later failures are
        in the ``status`` of ``run.completed``."""
        events = list[wire.AgentEvent]()  # dropped if it is cancelled, which ends the run
        while not self._is_started and self.run.response is None:
            event = await anext(self._events, None)
            if event is None:
                raise RuntimeError("the run was refused or left before its first step ended; make a new one")
            events.append(event)
            self._is_started = not isinstance(event, wire.RunStarted | wire.StepStarted)
        self._ready.extend(events)

    async def sse(self) -> AsyncGenerator[bytes]:
        """The events as ``POST /v1/agents/run`` sends them (``Stream.sse``)."""
        async with self:
            async for event in self:
                yield event.to_sse()

    @property
    def result(self) -> AgentAnswer[Any]:
        """The outcome, after the last event."""
        if self.run.response is None:
            raise RuntimeError("the run has not ended: iterate over its events first")
        return AgentAnswer(self.run.response, self.run.data)

    async def aclose(self) -> None:
        """End a run that has not ended."""
        self._ready.clear()
        await self._events.aclose()


class Agent:
    """Works on a task with tools, within limits of steps, time and money.

        agent = Agent(router, tools=["calculator"], total_budget_usd=0.05)
        answer = await agent.run("What is 17.5 % of 2,340?")

    Each model call is a call of the Router: fallbacks, budgets, guardrails and traces apply. One Agent serves any
    number of runs at once."""

    @explains
    def __init__(
        self,
        router: Router,
        *,
        tools: Sequence[ToolLike] = (),
        max_steps: int | None = None,
        per_step_timeout_ms: int | None = None,
        total_budget_usd: float | None = None,
        goal: wire.Goal | None = None,
        strategy: wire.Strategy | None = None,
        system: str | None = SYSTEM,
        approve: Approve | None = None,
        search: SearchBackend | None = None,
        code: CodeSandbox | None = None,
        output_type: Any = None,
        escalate: bool = False,
        **options: object,
    ) -> None:
        """``max_steps`` (8) counts model and tool calls; each may take ``per_step_timeout_ms`` (30,000). ``system`` is
        the system prompt. ``approve(name, arguments)`` is called before each tool, and may be async. ``search`` and
        ``code`` are the backends of ``web_search`` and ``code_exec``. ``output_type``: the type of the final answer.
        ``escalate``: call a stronger model if the run makes no progress. ``options`` are those of ``Router.route``,
        such as ``models``, ``policy_id`` and ``params``.

        Raises ``ValidationFailed``."""
        hints = HINTS["Agent"]
        if isinstance(router, str):
            raise ValidationFailed.at("router", f"must be a Router, got {shown(router)}", hints["router"])
        self.router = router
        self._storage = GuardedStorage(router.storage)
        self._search = search
        self._code = code
        run_limits = {
            "max_steps": max_steps,
            "per_step_timeout_ms": per_step_timeout_ms,
            "total_budget_usd": total_budget_usd,
        }
        limits = check_run(run_of({"task": "-", **run_limits}))
        for name in options:
            if name in hints or name not in ROUTE_ARGUMENTS:
                known = (
                    {*Agent.__init__.__annotations__, *ROUTE_ARGUMENTS} - hints.keys() - {"router", "options", "return"}
                )
                hint = hints.get(name) or hint_for(name, "", sorted(known))
                raise ValidationFailed.at(name, "is not an argument", hint)
        if approve is not None and not callable(approve):
            raise ValidationFailed.at("approve", f"{shown(approve)} is not a function", "pass approve(name, arguments)")
        request = as_request(system or "-", {"goal": goal, "strategy": strategy, **options})
        names = {"fallback" if name == "max_retries" else name for name in options}
        self._options = {name: getattr(request, name) for name in names}
        own = wire.ModelStrategy(goal, strategy) if goal or strategy else None
        self._limits = msgspec.structs.replace(limits, model_strategy=own)
        self._approve = approve
        self._system = system
        self._escalates = escalate
        self._form: Form | None = None
        if output_type not in (None, str):
            with importing.lock:
                from ._setup.output import form_of  # loads pydantic

            self._form = form_of(output_type)
        if isinstance(tools, str) or not isinstance(tools, Sequence):
            raise ValidationFailed.at("tools", f"{shown(tools)} is not a list", "pass a list: tools=[...]")
        tools_by_name = {}
        for index, tool in enumerate(tools):
            agent_tool = self._make_tool(index, tool)
            name = agent_tool.spec.name if isinstance(agent_tool, Tool) else agent_tool.function_spec.name
            if name in tools_by_name or (name in BUILT_IN and not isinstance(tool, str)):
                raise ValidationFailed.at(f"tools[{index}]", f"is a second tool named {quoted(name)}", "rename it")
            tools_by_name[name] = agent_tool
        self._tools = {name: tool for name, tool in tools_by_name.items() if isinstance(tool, Tool)}
        self._client_tools = {name: tool for name, tool in tools_by_name.items() if not isinstance(tool, Tool)}

    @property
    def tools(self) -> list[str]:
        """The names of its tools."""
        return [*self._tools, *self._client_tools]

    async def run(self, task: str, **options: Unpack[RunOptions]) -> AgentAnswer[Any]:
        """Work on a task to the end.

        Raises as ``Router.route`` if the run is refused before its first step. Later failures are in the answer's
        ``status``."""
        run = self._start(task, options)
        return AgentAnswer(await run.finish(), run.data)

    def stream(self, task: str, **options: Unpack[RunOptions]) -> AgentStream:
        """Run a task and yield an event per step.

            async with agent.stream("...") as events:
                async for event in events:
                    print(event.event, event.data)
            print(events.result.output)

        The last event is ``run.completed``. Leaving the block early ends the run."""
        return AgentStream(self._start(task, options))

    async def resume(
        self,
        run: str | wire.AgentResponse | AgentAnswer[Any],
        results: Mapping[str, object] | None = None,
        *,
        approved: Mapping[str, bool] | None = None,
        caller: wire.Caller | None = None,
    ) -> AgentAnswer[Any]:
        """Continue a run that waits for its ``pending_tool_calls``, or was interrupted, after its last finished step.
        Finished steps are not paid for again.

        ``results`` has the results of the client's tools by call id. ``approved`` approves or denies calls of tools
        that need approval; approved ones are run here.

        Raises ``NotFound`` for a run that has ended or is older than a day, and ``ValidationFailed`` if a pending call
        has neither a result nor an approval."""
        trace_id = normalise_trace_id(run if isinstance(run, str) else run.trace_id)
        caller = self.router.resolve_caller(caller or self.router.caller)
        state = await checkpoint_of(self._storage, caller, trace_id)
        plan = self._settings(state.request)
        answers = {**(results or {}), **(approved or {})}
        absent = [name for name in state.tools if name not in plan.names]
        if absent:
            raise ValidationFailed.at("tools", f"lack {', '.join(absent)}, which the run uses", "pass the same tools")
        pending = {call.id: call.function.name for call in state.pending}
        missing = [id for id in pending if id not in answers] if state.status == "pending" else []
        if missing:
            raise ValidationFailed.at("results", f"lacks {', '.join(missing)}", "give one for each pending call")
        if answers.keys() - pending.keys() and state.status == "running":
            raise NotFound(f"{trace_id} was resumed before, and has continued since")
        for id in answers:
            if id not in pending or (id in (approved or {}) and pending[id] not in plan.unapproved):
                raise ValidationFailed.at(f"results[{quoted(id)}]", "is not a pending call", "see pending_tool_calls")
        try:
            texts = {id: shown_text(result) for id, result in (results or {}).items()}
        except ToolFailed as error:
            raise ValidationFailed.at("results", str(error), "pass texts or JSON values") from None
        texts |= {id: DENIED for id, yes in (approved or {}).items() if not yes}
        resumed = Resumption(state=state, results=texts, approved=[id for id, yes in (approved or {}).items() if yes])
        resumed_run = Run(self.router.engine, self._storage, plan, state.request, caller, resumed=resumed)
        return AgentAnswer(await resumed_run.finish(), resumed_run.data)

    def as_tool(self, name: str, description: str) -> Tool:
        """This agent as a tool of another agent. It spends the other's budget, limited by its own. Raises
        ``ValidationFailed`` if it has tools that wait for a client."""
        plan = self._settings(self._limits)
        if plan.client_tools or plan.unapproved:
            names = ", ".join([*plan.client_tools, *plan.unapproved])
            raise ValidationFailed.at("tools", f"{names} would wait for a client", "leave them out")
        return _AgentTool(self, name, description)

    def prepare(self, request: wire.AgentRequest, caller: wire.Caller | None = None) -> Run:
        """Prepare a run for a server. ``request.tools`` selects from the agent's tools. A request may lower the agent's
        limits, not raise them. Raises ``ValidationFailed`` for an unknown tool."""
        limits = {name: _least(getattr(request, name), getattr(self._limits, name)) for name in _CEILINGS}
        return self._run(msgspec.structs.replace(request, **limits), caller, is_remote=True)

    @cached_property
    def blocking(self) -> BlockingAgent:
        """``run`` and ``resume`` for code without ``await``."""
        return BlockingAgent(self)

    def _start(self, task: str, options: RunOptions, *, is_tool: bool = False) -> Run:
        fields: dict[str, Any] = {**options}
        caller = fields.pop("caller", None)
        if (conversation := fields.pop("conversation", None)) is not None:
            if not isinstance(conversation, str) or not conversation:
                raise ValidationFailed.at("conversation", f"is {shown(conversation)}", "pass its name")
            fields["metadata"] = {**(fields.get("metadata") or {}), "conversation": conversation}
        request = check_run(run_of({"task": task, **fields}, ("caller", "conversation")))
        for name in _CEILINGS:
            if getattr(request, name) is None:
                request = msgspec.structs.replace(request, **{name: getattr(self._limits, name)})
        return self._run(request, caller, is_tool=is_tool)

    def _run(
        self, request: wire.AgentRequest, caller: wire.Caller | None, *, is_tool: bool = False, is_remote: bool = False
    ) -> Run:
        router = self.router
        tags = router.tags_here
        run_request = msgspec.structs.replace(
            request,
            metadata=merge_tags(tags, request.metadata or {}) if tags else request.metadata,
            max_steps=request.max_steps or MAX_STEPS,
            per_step_timeout_ms=request.per_step_timeout_ms or STEP_TIMEOUT_MS,
            model_strategy=request.model_strategy or self._limits.model_strategy,
        )
        caller = router.resolve_caller(caller or router.caller)
        plan = self._settings(run_request)
        return Run(router.engine, self._storage, plan, run_request, caller, is_tool=is_tool, is_remote=is_remote)

    def _settings(self, request: wire.AgentRequest) -> AgentSettings:
        """The plan of a run, with all of the agent's tools or those that the request names."""
        tools = self._tools if request.tools is None else {}
        client_tools = self._client_tools if request.tools is None else {}
        for index, choice in enumerate(request.tools or ()):
            name = choice if isinstance(choice, str) else choice.function_spec.name
            if name in self._tools:
                tools[name] = self._tools[name]
            elif name in BUILT_IN:
                if not isinstance(choice, str):
                    raise ValidationFailed.at(f"tools[{index}]", f"{quoted(name)} is a built-in tool", "rename yours")
                tools[name] = self._built_in(name)
            elif isinstance(choice, str) and name not in self._client_tools:
                tool_names = list(dict.fromkeys([*BUILT_IN, *self.tools]))
                hint = did_you_mean(name, tool_names) or f"known: {', '.join(tool_names)}"
                raise ValidationFailed.at(f"tools[{index}]", f"{quoted(name)} is not a tool here", hint)
            else:
                client_tools[name] = self._client_tools[name] if isinstance(choice, str) else choice
        is_alone = self._approve is None  # nobody here can approve
        return AgentSettings(
            tools=tools,
            client_tools=client_tools,
            unapproved=[name for name, tool in tools.items() if is_alone and options_of(tool, BaseTool).needs_approval],
            system=self._system,
            approve=self._approve,
            form=self._form,
            escalates=self._escalates,
            options=self._options,
            tags=self.router.tags,
        )

    def _make_tool(self, index: int, tool: ToolLike) -> Tool | Declaration:
        if isinstance(tool, str):
            if tool not in BUILT_IN:
                hint = did_you_mean(tool, BUILT_IN) or f"built in are {', '.join(BUILT_IN)}"
                raise ValidationFailed.at(f"tools[{index}]", f"{quoted(tool)} is not a built-in tool", hint)
            return self._built_in(tool)
        if isinstance(tool, Declaration | Tool):
            return tool
        if callable(tool):
            with importing.lock:
                from .tools import FunctionTool  # loads pydantic

            return FunctionTool(tool)
        hint = "pass a function, a tool, or the name of a built-in one"
        if hasattr(tool, "__aenter__"):
            hint = "open it first: async with ... as tools, and pass tools=[*tools]"
        elif isinstance(tool, Mapping):
            hint = "pass routewright.Tool(name=..., parameters=...)"
        raise ValidationFailed.at(f"tools[{index}]", f"{shown(tool)} is not a tool", hint)

    def _built_in(self, name: str) -> Tool:
        with importing.lock:
            from .tools import Calculator, CannedSearch, CodeExec, WebSearch

        if name == "calculator":
            return Calculator()
        if name == "web_search":
            return WebSearch(CannedSearch() if self._search is None and self.router.is_sandbox else self._search)
        return CodeExec(self._code, self.router.clock.monotonic)


_CEILINGS = ("max_steps", "per_step_timeout_ms", "total_budget_usd")


class BlockingAgent:
    """``agent.blocking``: for scripts, threads and notebooks."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def run(self, task: str, **options: Unpack[RunOptions]) -> AgentAnswer[Any]:
        """As ``Agent.run``."""
        return self._agent.router.run_blocking(partial(self._agent.run, task, **options))

    def resume(self, run: Any, results: Mapping[str, Any] | None = None, **options: Any) -> AgentAnswer[Any]:
        """As ``Agent.resume``."""
        return self._agent.router.run_blocking(partial(self._agent.resume, run, results, **options))


class _AgentTool:
    def __init__(self, agent: Agent, name: str, description: str) -> None:
        self.spec = wire.FunctionSpec(name, description, _TASK)
        self._agent = agent

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> object:
        agent = self._agent
        left_nanos = context.left_nanos
        options = RunOptions(
            caller=context.caller,
            metadata={key: value for key, value in context.metadata.items() if key != "conversation"},
            total_budget_usd=_least(agent._limits.total_budget_usd, None if left_nanos is None else usd(left_nanos)),
        )
        if not agent.router.engine.admissions.is_immediate:  # so that a resumed outer run does not pay twice
            options["idempotency_key"] = f"{context.run_id}.tool.{context.step}"
        run = agent._start(arguments["task"], options, is_tool=True)
        try:
            response = await run.finish()
        finally:
            context.spent_usd = usd(run.spent_nanos)
            context.trace_id = run.trace_id
        error = None if response.error is None else response.error["message"]
        if response.status == "failed":
            raise ToolFailed(f"the agent failed: {error}")
        return {"status": response.status, "output": response.output} | ({"error": error} if error else {})


def _least(one: float | None, other: float | None) -> float | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)
