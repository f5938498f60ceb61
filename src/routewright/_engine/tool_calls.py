"""Runs one tool call of an agent: checks arguments, asks for approval, limits time and output."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from inspect import isawaitable
from typing import Any

from msgspec import MsgspecError, json

from routewright._core.agent.machine import Observation, arguments_shown, decode_object
from routewright._core.agent.request import find_misfits
from routewright.protocols import BaseTool, Clock, Tool, ToolContext, ToolFailed, options_of
from routewright.wire import Step, ToolCall
from routewright.wire.json_scan import is_shallow
from routewright.wire.problems import did_you_mean

Approve = Callable[[str, dict[str, Any]], bool | Awaitable[bool]]
"""Called with a tool's name and arguments before it runs; False blocks it."""

MOST_CHARACTERS = 16_000
"""The most of a result or an error. The rest is cut off, with a note for the model."""
MOST_ARGUMENTS = 256_000
"""The most characters of arguments."""
APPROVAL_S = 300.0
"""Time-out of ``approve``."""
MOST_COST_USD = 1e6
UNKNOWN = "unknown"
"""The name of a missing tool in steps and traces."""
_IN_THREAD = {"waiting": " while waiting for a thread; it did not run", "running": ", but it is still running"}
_log = logging.getLogger(__name__)


async def run_tool(
    tools: Mapping[str, Tool], call: ToolCall, context: ToolContext, clock: Clock, approve: Approve | None
) -> tuple[Step, Observation]:
    """Run one tool call. Errors become an observation and a step.

    The time until ``context.deadline`` restarts after the approval."""
    name, started = call.function.name, clock.monotonic()
    timeout_s = context.deadline - started
    still_running = False
    text = ""
    output: dict[str, Any]
    try:
        tool, arguments = _checked(tools, call)
        if approve is not None:
            with clock.deadline(started + APPROVAL_S) as limit:
                await _ask(approve, name, arguments)
            if limit.expired:
                raise ToolFailed(f"this call was not approved within {APPROVAL_S:.0f} s")
        context.deadline = clock.monotonic() + timeout_s
        with clock.deadline(context.deadline) as limit:
            result = await tool.run(arguments, context)
        if limit.expired:
            in_thread = options_of(tool, BaseTool).in_thread or ""
            still_running = in_thread == "running"
            raise ToolFailed(f"timed out after {timeout_s * 1000:.0f} ms{_IN_THREAD.get(in_thread, '')}")
        raw = _encoded(result)
        text = _cut(raw)
        output = {"result": text if text != raw or isinstance(result, str) else _shallow(raw)}
    except Exception as error:  # a tool of the host may raise anything; the model is told
        message = f"the tool failed with {type(error).__name__}"  # other messages may hold secrets
        if isinstance(error, ToolFailed):
            with suppress(Exception):  # its ``__str__`` may fail
                message = shown_text(str(error))
        else:
            _log.warning("tool %s failed", name, exc_info=error)
        output = {"error": message}
    cost_usd: Any = context.spent_usd
    if not isinstance(cost_usd, int | float) or not 0 <= cost_usd <= MOST_COST_USD:
        output = {"error": f"the tool reported a cost of {cost_usd}"}
        cost_usd = 0.0
    if "error" in output:
        text = json.encode(output).decode()
    if still_running:
        output["still_running"] = True
    step = Step(
        number=context.step,
        action="tool_call",
        tool=name if name in tools else UNKNOWN,  # a model may invent any name
        input=arguments_shown(call.function),
        output=output,
        duration_ms=round((clock.monotonic() - started) * 1000, 3),
        start_ms=0.0,
        cost_usd=cost_usd,
        trace_id=context.trace_id,
    )
    return step, Observation(call.id, text)


def shown_text(value: Any) -> str:
    """A result as the model sees it: text, or JSON, of at most ``MOST_CHARACTERS``. Raises ``ToolFailed`` for a value
    that JSON cannot hold."""
    return _cut(_encoded(value))


def _checked(tools: Mapping[str, Tool], call: ToolCall) -> tuple[Tool, dict[str, Any]]:
    name, raw = call.function.name, call.function.arguments.strip() or "{}"
    if (tool := tools.get(name)) is None:
        hint = did_you_mean(name, list(tools)) or f"known: {', '.join(tools) or 'none'}"
        raise ToolFailed(f"there is no tool {name!r}; {hint}")
    if len(raw) > MOST_ARGUMENTS:
        raise ToolFailed(f"the arguments have more than {MOST_ARGUMENTS} characters")
    try:
        arguments = decode_object(raw)
    except (MsgspecError, RecursionError):
        raise ToolFailed("the arguments are not one JSON object") from None
    validated = options_of(tool, BaseTool).validated
    if validated is not None:
        return tool, validated(arguments)
    if problems := find_misfits(arguments, tool.spec.parameters):
        raise ToolFailed("bad arguments: " + "; ".join(problems))
    return tool, arguments


async def _ask(approve: Approve, name: str, arguments: dict[str, Any]) -> None:
    try:
        answer = approve(name, arguments)
        if isawaitable(answer):
            answer = await answer
    except Exception as error:  # approve is the host's, too
        _log.warning("approve failed for tool %s", name, exc_info=True)
        raise ToolFailed(f"this call was not approved: approve failed with {type(error).__name__}") from None
    if not isinstance(answer, bool):
        kind = type(answer).__name__
        _log.warning("tool %s was not run: approve returned %s instead of bool", name, kind)
        raise ToolFailed(f"this call was not approved: approve returned {kind} instead of bool")
    if not answer:
        raise ToolFailed("the user did not approve this call")


def _encoded(value: Any) -> str:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()  # half a surrogate pair becomes "?"
    try:
        return json.encode(value, enc_hook=_dumped).decode()
    except (MsgspecError, TypeError, ValueError, AttributeError, RecursionError):
        raise ToolFailed(f"the result is of type {type(value).__name__}, which JSON cannot hold") from None


def _dumped(value: Any) -> Any:
    return value.model_dump(mode="json")  # pydantic models only; anything else fails


def _cut(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}\n[cut off: {len(text)} characters in all]"


def _shallow(raw: str) -> Any:
    """The value that a step shows; the JSON text if it nests too deep to be stored."""
    with suppress(RecursionError):
        value = json.decode(raw)
        if is_shallow(raw, value):
            return value
    return raw
